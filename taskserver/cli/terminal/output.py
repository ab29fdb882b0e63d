"""How commands print: tables for people, JSON for programs; control characters are escaped in both."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, TypeVar

from ...messages.printable import printable
from ...model.task import Status
from ...stores.database.records import StoredTask
from ...stores.database.statements import INSTANTS
from ...stores.queue.dependency_trees import Links
from ...stores.queue.stats import COLUMNS, HourStats

MAX_CELL = 60
MAX_LINES = 50
"""Lines of a kind that a person sees of what rows may make up by the thousand; `--json` has all."""

T = TypeVar("T")


def largest(several: Sequence[T], size: Callable[[T], float]) -> tuple[Sequence[T], Sequence[T]]:
    """The part that a person sees, and the rest: all as they stand, or the largest MAX_LINES, the largest first."""
    if len(several) <= MAX_LINES:
        return several, ()
    ordered = sorted(several, key=size, reverse=True)
    return ordered[:MAX_LINES], ordered[MAX_LINES:]


class Amount(str):
    """A number with its unit, aligned in a table as numbers are."""


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: columns as wide as they need, numbers aligned to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    right = [all(isinstance(row[index], (int, Amount)) for row in rows) for index in range(len(heads))]
    for line in (heads, *cells):
        aligned = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(line, widths, right, strict=True)
        )
        print("  ".join(aligned).rstrip())


def _cell(value: object) -> str:
    text = printable("" if value is None else str(value))
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"


def as_json(value: object) -> str:
    """The JSON text of a value, for `--json`."""
    # ASCII: a terminal obeys no control character, and no encoding of a pipe matters.
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def _finite(value: object) -> object:
    """The value with infinite numbers as texts: JSON has none, and a column without a type may hold one."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def task_as_json(task: StoredTask, links: Links) -> dict[str, Any]:
    """A task by its columns and links, its instants as 2026-01-31T12:00:00.000000Z, with the name of its status."""
    report = task._asdict() | links._asdict()
    for column in INSTANTS:
        if column in report:
            report[column] = instant_as_json(report[column])
    report["status_name"] = status_name(task.status)
    return report


def stats_as_json(one: HourStats, column: str) -> dict[str, Any]:
    """The stats of an hour, a group or a task name, which `column` names, with their means."""
    key = getattr(one, column)
    stats = {name: getattr(one, name) for name in COLUMNS}
    means = {"mean_run_seconds": one.mean_run_seconds, "mean_wait_seconds": one.mean_wait_seconds}
    return {column: instant_as_json(key) if column == "hour" else key} | stats | means


def instant_as_json(text: str | None) -> str | None:
    """An instant of a row in ISO 8601, in UTC, as JSON readers know it."""
    return None if text is None else f"{text.replace(' ', 'T')}Z"


def status_name(status: int) -> str:
    """The name of a status; `status_9` for a number that is no status, which a row may hold."""
    return Status(status).name.lower() if status in set(Status) else f"status_{status}"
