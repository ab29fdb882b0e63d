"""Which run of a task each of its starts led to: the database counted the one, the task itself noted the other."""

from __future__ import annotations

from collections.abc import Sequence

from tests.faults.chaos.evidence import Run

CLOCKS_DIFFER_SECONDS = 0.01
"""The database's and ours; SQLite's has milliseconds."""


def match_begins(runs: Sequence[Run], starts: Sequence[float]) -> tuple[dict[float, Run], list[Run]]:
    """The run that each start led to, and runs without a start. A run belongs to the last free start before it.

    A worker that was frozen between the two begins late, when another has started the task again.
    """
    begun: dict[float, Run] = {}
    uncounted = []
    for run in sorted(runs, key=lambda run: run.began):
        free = [start for start in starts if start not in begun]
        before = [start for start in free if start <= run.began]
        if before:
            begun[max(before)] = run
        elif free and min(free) <= run.began + CLOCKS_DIFFER_SECONDS:
            begun[min(free)] = run
        else:
            uncounted.append(run)
    return begun, uncounted
