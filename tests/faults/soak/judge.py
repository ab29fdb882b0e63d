"""Whether something grew in the second half of its time: by the median of all slopes, which few odd samples move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

LEAST_SAMPLES = 12
"""Of a second half; of fewer nothing can be said."""
Series = Sequence[tuple[float, float]]
"""Seconds since the begin, and a value."""


class Tolerance(NamedTuple):
    """How much the second half may add."""

    share: float
    """Of the median."""
    amount: float


TOLERANCES: Mapping[str, Tolerance] = {
    "worker MB": Tolerance(0.05, 2.0),
    "worker files": Tolerance(0.0, 2.0),
    "supervisor MB": Tolerance(0.05, 1.0),
    "supervisor files": Tolerance(0.0, 2.0),
    "web MB": Tolerance(0.05, 2.0),
    "web files": Tolerance(0.0, 2.0),
    "processes": Tolerance(0.0, 4.0),
    "connections": Tolerance(0.0, 4.0),
    "server MB": Tolerance(0.1, 30.0),
    "server files": Tolerance(0.1, 20.0),
    "disk MB": Tolerance(0.1, 20.0),
    "table MB": Tolerance(0.2, 2.0),
    "queue rows": Tolerance(0.2, 100.0),
    "done rows": Tolerance(0.2, 100.0),
    "other rows": Tolerance(0.1, 60.0),
    "var files": Tolerance(0.0, 20.0),  # a note of an outage stays for an hour
    "oldest ready s": Tolerance(0.0, 60.0),
}
"""Of all that is judged. Other rows are those of the helping tables: stats get some each hour."""
MOST: Mapping[str, float] = {"log MB": 42.0, "oldest ready s": 300.0}
"""What no sample may pass: the log is rotated at 10 MB, and three old files stay."""


class Growth(NamedTuple):
    """What became of a value."""

    name: str
    first: float
    last: float
    most: float
    added: float | None
    """By the second half; None: too few samples."""
    allowed: float

    @property
    def fault(self) -> str | None:
        if self.most > MOST.get(self.name, self.most):
            return f"{self.name} was {self.most:.1f}, and {MOST[self.name]:g} is the most"
        if self.added is not None and self.added > self.allowed:
            return f"{self.name} grew by {self.added:.1f} in the second half, and {self.allowed:.1f} is tolerated"
        return None

    def __str__(self) -> str:
        added = "too short" if self.added is None else f"{self.added:+.1f} of {self.allowed:.1f}"
        return f"{self.name:16}{self.first:10.1f}{self.last:10.1f}{self.most:10.1f}  {added}"


def growths(samples: Sequence[Mapping[str, float]]) -> Iterator[Growth]:
    """Of each name in the samples; one may lack in some. Those of a process are `NAME @PID`: the oldest counts."""
    for name in sorted(TOLERANCES.keys() | MOST.keys()):
        series = _longest(name, samples)
        if series:
            values = [value for _, value in series]
            tolerance = TOLERANCES.get(name, Tolerance(0.0, float("inf")))
            allowed = max(tolerance.share * median(values), tolerance.amount)
            yield Growth(name, values[0], values[-1], max(values), added_by_second_half(series), allowed)


def _longest(name: str, samples: Sequence[Mapping[str, float]]) -> Series:
    keys = {key for sample in samples for key in sample if key.partition(" @")[0] == name}
    found = [[(sample["at"], sample[key]) for sample in samples if key in sample] for key in sorted(keys)]
    return max(found, key=len, default=[])


def added_by_second_half(series: Series) -> float | None:
    """By the slope of Theil and Sen."""
    begin, end = series[0][0], series[-1][0]
    half = [(at, value) for at, value in series if at >= (begin + end) / 2]
    if len(half) < LEAST_SAMPLES:
        return None
    slopes = [(later - earlier) / (then - at) for (at, earlier), (then, later) in combinations(half, 2)]
    return median(slopes) * (end - half[0][0])
