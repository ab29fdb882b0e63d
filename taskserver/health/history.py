"""What was done hour by hour, summed up for a table, a chart or JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..stores.queue.stats import HourStats, total

NO_CALLABLE = "(no callable)"
"""Stands for the empty task name."""


def totals_by(column: str, stats: Iterable[HourStats]) -> list[HourStats]:
    """One total for each value of a column (`hour`, `group_id` or `task`), in order of the values."""
    by_value: dict[Any, list[HourStats]] = {}
    for one in stats:
        by_value.setdefault(getattr(one, column), []).append(one)
    return [total(by_value[value]) for value in sorted(by_value)]


def ended_attempts(one: HourStats) -> int:
    """Attempts that came to an end, well or not: done, failed or lost."""
    return one.done + one.failed + one.lost
