"""Interleaved pairs and their ratios: what every benchmark measures with, and the lines that it returns.

A machine's noise moves both sides of a pair alike, so ratios are read, never times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Literal, NamedTuple

SLICE_ROWS = 50


class Bound(NamedTuple):
    """What a ratio must reach: at least, or at most, `limit`."""

    kind: Literal["at least", "at most"]
    limit: float

    def holds(self, ratio: float) -> bool:
        """Whether this ratio is on the right side; the limit itself is."""
        return ratio >= self.limit if self.kind == "at least" else ratio <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.kind == 'at least' else '<='} {self.limit:g}"


class Line(NamedTuple):
    """One line of the table: medians of both sides, and the pairs' ratios ours / floor."""

    name: str
    ours: float
    floor: float
    unit: str
    ratios: list[float]
    bound: Bound | None = None

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios (not the ratio of the medians)."""
        return median(self.ratios)

    @property
    def is_over(self) -> bool:
        """Whether the line has a bound that its ratio does not keep."""
        return self.bound is not None and not self.bound.holds(self.ratio)


def compare(
    name: str,
    ours: Callable[[], float],
    floor: Callable[[], float],
    *,
    pairs: int,
    unit: str,
    bound: Bound | None = None,
    after: Callable[[], object] = lambda: None,
) -> Line:
    """Measure both sides `pairs` times in turn, each first in every second pair; `after` runs after each pair."""
    taken: list[tuple[float, float]] = []
    for number in range(pairs):
        if number % 2:
            below = floor()
            taken.append((ours(), below))
        else:
            above = ours()
            taken.append((above, floor()))
        after()
    return line_of(name, taken, unit=unit, bound=bound)


def compare_slices(
    name: str,
    ours: Callable[[int, int], object],
    floor: Callable[[int, int], object],
    *,
    rows: int,
    pairs: int,
    bound: Bound | None = None,
    after: Callable[[], object],
) -> Line:
    """Rates of `rows` rows as a pair, done in turn in small slices (from, to), so that noise meets both alike."""
    sides = (ours, floor)
    taken = []
    for _ in range(pairs):
        took = [0.0, 0.0]
        for number, begin in enumerate(range(0, rows, SLICE_ROWS)):
            for side in (0, 1) if number % 2 else (1, 0):
                took[side] += seconds(partial(sides[side], begin, min(rows, begin + SLICE_ROWS)))
        taken.append((rows / took[0], rows / took[1]))
        after()
    return line_of(name, taken, unit="rows/s", bound=bound)


def line_of(name: str, taken: list[tuple[float, float]], *, unit: str, bound: Bound | None = None) -> Line:
    """The line of pairs (ours, floor) that were measured elsewhere."""
    return Line(
        name,
        ours=median(pair[0] for pair in taken),
        floor=median(pair[1] for pair in taken),
        unit=unit,
        ratios=[pair[0] / pair[1] for pair in taken],
        bound=bound,
    )


def seconds(work: Callable[[], object]) -> float:
    """How long `work` takes, in seconds of the wall clock."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
