"""How commands print: tables for people, JSON for programs. Control characters are escaped in both."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, TextIO, TypeVar

from ...messages.text import in_units as spelt_in_units
from ...messages.text import iso, local, printable, zone
from ...model.task import name_of_status
from ...stores.queue.dependencies import Links
from ...stores.queue.stats import KEY, HourStats
from ...stores.records import ErrorCount, StoredTask
from ...stores.words import INSTANTS

MAX_CELL, MAX_LAST_CELL, MIN_LAST_CELL = 60, 500, 20
"""Characters of a cell; of the last one in a line; and of that on a narrow terminal, which breaks the line then."""
MAX_LINES = 50
"""Lines of a kind of which rows may make thousands; `--json` has them all."""
USUAL_WIDTH = 80
BOLD = "1"
COLOURS = {
    **dict.fromkeys(("fatal", "critical"), "31"),  # red
    **dict.fromkeys(("error", "warning"), "33"),  # yellow
    **dict.fromkeys(("done", "ok"), "32"),  # green
}
"""The colour of each word that has one; the word is there without it, too."""

T = TypeVar("T")


class Amount(str):
    """A number with its unit, aligned in a table as numbers are."""


class Word(str):
    """A word that has a colour on a terminal, as the name of a status has."""


# ---- for people


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table: columns as wide as they need, numbers aligned to the right.

    Long cells are cut: the last one of a line where the terminal ends.
    """
    columns = [
        [head, *(cut(_text(value), MAX_CELL) for value in values)]
        for head, values in zip(heads[:-1], zip(*(row[:-1] for row in rows), strict=True), strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    room = MAX_LAST_CELL
    if sys.stdout.isatty():
        room = max(terminal_width(sys.stdout) - sum(width + 2 for width in widths), MIN_LAST_CELL)
    columns.append([heads[-1], *(cut(_text(row[-1]), room) for row in rows)])
    widths.append(max(map(len, columns[-1])))
    is_right = [all(isinstance(value, (int, Amount)) for value in column) for column in zip(*rows, strict=True)]
    for values, cells in zip((heads, *rows), zip(*columns, strict=True), strict=True):
        line = []
        for value, cell, width, right in zip(values, cells, widths, is_right, strict=True):
            colour = BOLD if values is heads else COLOURS.get(value, "") if isinstance(value, Word) else ""
            blanks, shown = " " * (width - len(cell)), painted(cell, colour, sys.stdout)
            line.append(blanks + shown if right else shown + blanks)
        print("  ".join(line).rstrip())


def _text(value: object) -> str:
    return printable("" if value is None else str(value))


def cut(text: str, most: int) -> str:
    """The text in at most so many characters: if it is longer, its begin and an ellipsis."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def terminal_width(stream: TextIO) -> int:
    """The width in characters; USUAL_WIDTH if the stream is no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except (OSError, ValueError):
        return USUAL_WIDTH


def painted(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour (or BOLD) on a terminal, unless NO_COLOR is set (no-color.org) or it is a dumb one."""
    wanted = colour and stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[{colour}m{text}\x1b[0m" if wanted else text


def note(text: str) -> None:
    """Print a line on standard error."""
    print(printable(text), file=sys.stderr)


def largest(several: Sequence[T], size: Callable[[T], float]) -> tuple[Sequence[T], Sequence[T]]:
    """The part that a person sees, and the rest: all as they stand, or the largest MAX_LINES, the largest first."""
    if len(several) <= MAX_LINES:
        return several, ()
    ordered = sorted(several, key=size, reverse=True)
    return ordered[:MAX_LINES], ordered[MAX_LINES:]


def headed(name: str) -> str:
    """The head of a column of instants, which names their zone."""
    return f"{name} ({zone()})"


def in_column(instant: datetime | str | None, characters: int = 19) -> str:
    """An instant of a row below such a head; another zone, as that of summer in winter, stands beside it.

    A text that is no instant, as a column of SQLite may hold, stays as it is.
    """
    found = local(instant)
    if found is None:
        return str(instant or "")
    name = found.strftime("%Z")
    return f"{found:%Y-%m-%d %H:%M:%S}"[:characters] + (f" {name}" if name != zone() else "")


def in_units(seconds: float | None) -> Amount:
    """Seconds in a person's unit, with about two significant digits; empty for None."""
    return Amount("" if seconds is None else spelt_in_units(seconds))


def status_name(status: int) -> Word:
    """The name of a status; `status_9` for a number that is no status, which a row may hold."""
    return Word(name_of_status(status))


def first_line(text: str | None) -> str:
    """The first line of an error_text."""
    return (text or "").partition("\n")[0]


def some_ids(ids: Sequence[int], most: int) -> str:
    """The first ids, and how many more there are."""
    shown = ", ".join(map(str, ids[:most]))
    return f"{shown} and {len(ids) - most} more" if len(ids) > most else shown


# ---- for programs


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


def task_as_json(task: StoredTask, links: Links, now: str) -> dict[str, Any]:
    """A task by its columns and links, with the name of its status; `now` is the database's clock, as text in UTC."""
    report = task._asdict() | links._asdict()
    report |= {column: instant_as_json(report[column]) for column in INSTANTS if column in report}
    return report | {"status_name": status_name(task.status), "run_seconds": task.run_seconds(now)}


def stats_as_json(one: HourStats, column: str) -> dict[str, Any]:
    """The stats of an hour, a group or a task name, which `column` names, with their means."""
    report = one.as_dict()
    return {column: report.pop(column)} | {name: value for name, value in report.items() if name not in KEY}


def error_as_json(error: ErrorCount) -> dict[str, Any]:
    """An error of several tasks."""
    instants = {name: instant_as_json(getattr(error, name)) for name in ("first_seen", "last_seen")}
    return error._asdict() | instants


def instant_as_json(instant: datetime | str | None) -> str | None:
    """An instant of a row in ISO 8601, in UTC, as 2026-01-31T12:00:00.000000Z."""
    return f"{instant.replace(' ', 'T')}Z" if isinstance(instant, str) else iso(instant)
