"""How commands print: tables for people, JSON for programs, and nothing that a terminal would obey."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from typing import Any

from ..lifecycle import Status
from ..printable import printable
from ..stores.chains import Links
from ..stores.rows import StoredTask
from ..stores.tables import INSTANTS

LONGEST_CELL = 60


class Amount(str):
    """A number with its unit: in a table it stands as numbers do."""


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need; numbers to the right."""
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
    return text if len(text) <= LONGEST_CELL else f"{text[: LONGEST_CELL - 1]}…"


def as_json(value: object) -> str:
    """JSON for `--json`."""
    # ASCII: a terminal obeys no control character, and no encoding of a pipe matters.
    return json.dumps(_sayable(value), indent=2, allow_nan=False)


def _sayable(value: object) -> object:
    """JSON has no infinite numbers, and a column without a type may hold one."""
    if isinstance(value, dict):
        return {key: _sayable(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sayable(part) for part in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def task_as_json(task: StoredTask, links: Links) -> dict[str, Any]:
    """A task with its columns' names as keys, instants as 2026-01-31T12:00:00.000000Z, and its status named too."""
    report = task._asdict() | links._asdict()
    for column in INSTANTS:
        if column in report:
            report[column] = instant_as_json(report[column])
    report["status_name"] = status_name(task.status)
    return report


def instant_as_json(text: str | None) -> str | None:
    """An instant of a row, in UTC, in the form that JSON readers know."""
    return None if text is None else f"{text.replace(' ', 'T')}Z"


def status_name(status: int) -> str:
    """The name of a status; a row may hold a number that is none."""
    return Status(status).name.lower() if status in set(Status) else f"status_{status}"
