"""What is measured in turns: adding, draining, an empty run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .place import Place

START_SECONDS = 30.0
"""So long may the workers take until the first call."""
POLL_SECONDS = 0.004
DRAIN_SECONDS = 4.0
"""A drain ends after so long at the latest, also one of a million tasks."""


class Part(NamedTuple):
    """One figure of each peer."""

    title: str
    unit: str
    measure: Callable[[Place], float]
    rounds: int
    more_is_better: bool = True


def parts(quick: bool) -> dict[str, Part]:
    """By name; the sizes are such that all peers take less than 90 minutes."""
    adds, many, waiting = (50, 500, 300) if quick else (1_000, 10_000, 10_000)
    million, quota = (2_000, 200) if quick else (1_000_000, 5_000)
    rounds = 1 if quick else 3
    found = {
        "add": Part(f"add {adds:,}, one by one", "tasks/s", lambda place: place.add("add", adds), rounds),
        "add_many": Part(f"add {many:,} in bulk", "tasks/s", lambda place: place.add("add_many", many), rounds),
    }
    for workers in (1, 2, 4):
        measure = partial(drain, workers=workers, waiting=waiting, quota=waiting)
        found[f"drain_{workers}"] = Part(
            f"{workers} worker{'s' * (workers > 1)}, {waiting:,} waiting", "tasks/s", measure, rounds
        )
    measure = partial(drain, workers=1, waiting=million, quota=quota, fill_below=million // 2)
    found["million"] = Part(f"1 worker, {million:,} waiting", "tasks/s", measure, rounds)
    found["empty_cpu"] = Part("empty run, CPU", "ms", lambda place: place.empty_run()[0], rounds, False)
    found["empty_memory"] = Part("empty run, memory", "MB", lambda place: place.empty_run()[1], rounds, False)
    return found


def drain(place: Place, *, workers: int, waiting: int, quota: int, fill_below: int | None = None) -> float:
    """Tasks a second, from when all workers work (or a third is done) until the last call; DRAIN_SECONDS at most.

    The table is filled before, if fewer than `fill_below` wait: so the starts of programs are not counted.
    """
    if fill_below is None or place.unfinished() < fill_below:
        place.fill(waiting)
    with place.working(workers) as programs:
        begun = time.monotonic()
        while not any(calls := place.calls(len(programs))):
            _pause(place, begun)
        begun = time.monotonic()
        while not all(calls) and sum(calls) < quota / 3 and time.monotonic() - begun < DRAIN_SECONDS:
            time.sleep(POLL_SECONDS)
            calls = place.calls(len(programs))
        before, begun = sum(calls), time.monotonic()
        last = now = begun
        while sum(calls) < quota and now - begun < DRAIN_SECONDS:
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            if (found := place.calls(len(programs))) != calls:
                calls, last = found, now
    return (sum(calls) - before) / (last - begun) if last > begun else 0.0


def _pause(place: Place, begun: float) -> None:
    time.sleep(POLL_SECONDS)
    if time.monotonic() - begun > START_SECONDS:
        said = (place.folder / "log").read_text(errors="replace").strip()[-300:]
        raise RuntimeError(f"no task was called in {START_SECONDS:.0f} s; its log ends: {' '.join(said.split())}")
