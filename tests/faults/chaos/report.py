"""The report of a chaos run: what struck, what became of the tasks and workers, and which promises failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.faults.chaos.begins import match_begins
from tests.faults.chaos.evidence import PLACES, Evidence
from tests.faults.chaos.told import lost_runs, told_as_lost

MOST_FAILURES_TOLD = 20


class Report(NamedTuple):
    """What a chaos run found."""

    evidence: Evidence
    failures: list[str]
    heading: str

    def __str__(self) -> str:
        return "\n".join([self.heading, *_table(self.evidence), *self.failures[:MOST_FAILURES_TOLD]])


def _table(evidence: Evidence) -> Iterator[str]:
    struck = Counter(strike.kind for strike in evidence.strikes)
    yield f"  {'fault':<26}{'planned':>8}{'struck':>8}"
    for kind in evidence.kinds:
        yield f"  {kind:<26}{evidence.planned[kind]:>8}{struck[kind]:>8}"
    shown = Counter(run.kind for run in evidence.runs if run.is_shown)
    yield f"  {'task':<26}{'added':>8}{'shown':>8}"
    for kind in evidence.task_kinds:
        yield f"  {kind:<26}{evidence.added[kind]:>8}{shown[kind]:>8}"
    done = Counter(row.place for row in evidence.rows if row.is_done)
    fatal = sum(row.status == 4 for row in evidence.rows)
    modes = ", ".join(f"{done[place]} in mode {mode}" for mode, place in PLACES.items())
    lost = sum(event.is_lost for event in evidence.events)
    unbegun = sum(
        len(starts) - len(match_begins(evidence.runs_of[number], starts)[0])
        for number, starts in ((row.number, evidence.starts_of(row.number)) for row in evidence.rows)
    )
    said = sum(told_as_lost(worker).total() for worker in evidence.workers)
    lost_alive = sum(evidence.was_outlived(run) for run, _ in lost_runs(evidence))
    outcomes = Counter(run.outcome for run in evidence.runs)
    codes = Counter(worker.code for worker in evidence.workers)
    yield (
        f"  tasks: {len(evidence.acknowledged)} acknowledged, {len(evidence.unknown)} unknown, of which "
        f"{len(evidence.unknown & evidence.row_of.keys())} were there; {done.total()} done ({modes}), {fatal} fatal"
    )
    yield f"  runs of tasks: {len(evidence.runs)}; {', '.join(f'{n} {how}' for how, n in outcomes.most_common())}"
    yield f"  taken back as lost: {lost}; counted starts that never began: {unbegun}"
    yield f"  runs that lost their lease under a worker that went on: {lost_alive}; lost leases told: {said}"
    yield f"  overlapping runs: {_overlapping(evidence)}"
    yield (
        f"  keys: changed while their task ran: {evidence.changed_while_it_ran}; runs that came to their end: "
        f"{len(evidence.kept_runs)}; newest versions: {evidence.changed}"
    )
    given_up = sum(error.startswith("dependency: ") for error in evidence.tied_errors.values())
    yield (
        f"  tied tasks: {len(evidence.tied)}, of which {sum(bool(one.parents) for one in evidence.tied)} waited for "
        f"others and {given_up} were fatal because of them; runs of them: {len(evidence.tied_runs)}"
    )
    yield f"  workers: {len(evidence.workers)}; exit codes {dict(codes.most_common())}"
    words = Counter(re.sub(r"[0-9a-f_]{9,}", "…", line) for line in _last_words(evidence))
    yield from (f"  {times:>4} × {line:.200}" for line, times in words.most_common(10))


def _last_words(evidence: Evidence) -> Iterator[str]:
    for worker in evidence.workers:
        yield from (line for line in worker.errors.splitlines() if worker.code == 1 and " is fatal: " not in line)


def _overlapping(evidence: Evidence) -> int:
    return sum(
        second.began < evidence.end_of(first) for runs in evidence.runs_of.values() for first, second in pairwise(runs)
    )
