"""How commands print: tables for people, JSON for programs; control characters are escaped in both."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, TextIO, TypeVar

from ...health.acceptance import Acceptances
from ...messages.text import MAX_LINE, printable
from ...messages.text import in_units as spelt_in_units
from ...model.task import Status, name_of_status
from ...stores.queue.dependencies import Links
from ...stores.queue.stats import COLUMNS, HourStats
from ...stores.records import ErrorCount, StoredTask
from ...stores.words import INSTANTS
from .style import BOLD, COLOURS, cut, painted, width_of

CLAIMED, RUNNING = "claimed", "running"
"""What a task in progress does: it waits for its turn in a worker, or runs."""
MAX_CELL = 60
"""Columns of a cell where no terminal tells how wide it is, but of the last one, which moves no other."""
MAX_LAST_CELL = 500
USUAL_WIDTH = 80
MIN_CELL = 20
"""Columns of a text on a narrow terminal; a table that needs more is broken by the terminal."""
MAX_LINES = 50
MAX_IDS_SHOWN = 5
"""Ids of other tasks in a cell."""
"""Lines of a kind that a person sees of what rows may make up by the thousand; `--json` has all."""

T = TypeVar("T")


def largest(several: Sequence[T], size: Callable[[T], float]) -> tuple[Sequence[T], Sequence[T]]:
    """The part that a person sees, and the rest: all as they stand, or the largest MAX_LINES, the largest first."""
    if len(several) <= MAX_LINES:
        return several, ()
    ordered = sorted(several, key=size, reverse=True)
    return ordered[:MAX_LINES], ordered[MAX_LINES:]


class Whole(str):
    """A text that no table cuts, as an instant."""


class Amount(Whole):
    """A number with its unit, aligned in a table as numbers are."""


class Word(Whole):
    """A word that has a colour on a terminal, as the name of a status has."""


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]], unless_narrow: Sequence[str] = ()) -> None:
    """Print a table: columns as wide as they need, numbers aligned to the right.

    A terminal shows as much of long texts as fits into its width. Where texts would get less than MIN_CELL columns, it
    shows none of the columns that `unless_narrow` heads, the first of them first, and says so.
    """
    left_out = []
    for head in unless_narrow:
        if _room_for_texts(heads, rows) >= MIN_CELL:
            break
        at = heads.index(head)
        heads, rows = _without(heads, at), [_without(row, at) for row in rows]
        left_out.append(head)
    _print_lines(heads, rows)
    if left_out:
        print(f"(a wider terminal, a pipe and --json also have: {', '.join(left_out)})")


def _without(cells: Sequence[T], at: int) -> Sequence[T]:
    return [*cells[:at], *cells[at + 1 :]]


def _print_lines(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    most = [MAX_CELL] * (len(heads) - 1) + [MAX_LAST_CELL]
    if sys.stdout.isatty():
        most = [max(_room_for_texts(heads, rows), MIN_CELL)] * len(heads)
    is_number = _are_all(rows, int, Amount)
    lines = [
        [
            _text(value) if isinstance(value, Whole) else cut(_text(value), room)
            for value, room in zip(row, most, strict=True)
        ]
        for row in rows
    ]
    lines.insert(0, list(heads))
    widths = [max(map(width_of, column)) for column in zip(*lines, strict=True)]
    for values, line in zip((heads, *rows), lines, strict=True):
        cells = []
        for value, cell, width, is_right in zip(values, line, widths, is_number, strict=True):
            blanks = " " * (width - width_of(cell))
            colour = BOLD if values is heads else COLOURS.get(value, "") if isinstance(value, Word) else ""
            shown = painted(cell, colour, sys.stdout) if cell else cell
            cells.append(f"{blanks}{shown}" if is_right else f"{shown}{blanks}")
        print("  ".join(cells).rstrip())


def _room_for_texts(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> int:
    """The columns that the longest texts may have, so that the table fits the terminal: 0 where it cannot.

    Many without a terminal.
    """
    if not sys.stdout.isatty():
        return MAX_LINE
    widths = [max(width_of(_text(value)) for value in column) for column in zip(heads, *rows, strict=True)]
    are_whole = _are_all(rows, int, Whole)
    room = terminal_width(sys.stdout) - 2 * (len(heads) - 1)
    room -= sum(width for width, is_whole in zip(widths, are_whole, strict=True) if is_whole)
    texts = sorted(width for width, is_whole in zip(widths, are_whole, strict=True) if not is_whole)
    if room < 0:  # what no table cuts does not fit
        return 0
    # Short texts take what they need, and the longer ones share the rest.
    for more, width in zip(range(len(texts), 0, -1), texts, strict=True):
        if width * more > room:
            return room // more
        room -= width
    return MAX_LINE


def terminal_width(stream: TextIO) -> int:
    """The width in characters; USUAL_WIDTH where the stream is no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except (OSError, ValueError):
        return USUAL_WIDTH


def _are_all(rows: Sequence[Sequence[object]], *kinds: type) -> list[bool]:
    """For each column whether all of its values are of these kinds."""
    return [all(isinstance(value, kinds) for value in column) for column in zip(*rows, strict=True)]


def _text(value: object) -> str:
    return printable("" if value is None else str(value))


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


def note(text: str) -> None:
    """Print a line on standard error."""
    print(printable(text), file=sys.stderr)


def first_line(text: str | None) -> str:
    """The first line of an error_text."""
    return (text or "").partition("\n")[0]


def some_ids(ids: Sequence[int], most: int = MAX_IDS_SHOWN) -> str:
    """The first ids, and how many more there are."""
    shown = ", ".join(map(str, ids[:most]))
    return f"{shown} and {len(ids) - most} more" if len(ids) > most else shown


def task_as_json(task: StoredTask, links: Links, now: str) -> dict[str, Any]:
    """A task by its columns and links, its instants as 2026-01-31T12:00:00.000000Z, with the name of its status.

    `now` is the database's clock, as text in UTC: it tells how long a task has run.
    """
    report = task._asdict() | links._asdict()
    for column in INSTANTS:
        if column in report:
            report[column] = instant_as_json(report[column])
    report["status_name"] = status_name(task.status)
    report["run_seconds"] = task.run_seconds(now)
    return report


def stats_as_json(one: HourStats, column: str) -> dict[str, Any]:
    """The stats of an hour, a group or a task name, which `column` names, with their means."""
    key = getattr(one, column)
    stats = {name: getattr(one, name) for name in COLUMNS}
    means = {"mean_run_seconds": one.mean_run_seconds, "mean_wait_seconds": one.mean_wait_seconds}
    return {column: instant_as_json(key) if column == "hour" else key} | stats | means


def accepted_report(found: Mapping[str, Mapping[str, Any]], acceptances: Acceptances) -> list[dict[str, Any]]:
    """What was found and is accepted, by name, each with the reason and since when."""
    return [
        {**report, "reason": accepted.reason, "since": instant_as_json(accepted.since)}
        for report, accepted in ((report, acceptances.by_name[name]) for name, report in found.items())
    ]


def error_as_json(error: ErrorCount) -> dict[str, Any]:
    """An error of several tasks, its instants as above."""
    report = error._asdict()
    for instant in ("first_seen", "last_seen"):
        report[instant] = instant_as_json(report[instant])
    return report


def instant_as_json(text: str | None) -> str | None:
    """An instant of a row in ISO 8601, in UTC, as JSON readers know it."""
    return None if text is None else f"{text.replace(' ', 'T')}Z"


def status_name(status: int) -> Word:
    """The name of a status; `status_9` for a number that is no status, which a row may hold."""
    return Word(name_of_status(status))


def status_in_words(task: StoredTask) -> Word:
    """The status of a task for a person: of one in progress whether it is claimed or runs."""
    if task.status != Status.IN_PROGRESS:
        return status_name(task.status)
    return Word(RUNNING if task.started_at else CLAIMED)


def in_units(seconds: float | None) -> Amount:
    """Seconds in a person's unit, with about two significant digits; empty for None."""
    return Amount("" if seconds is None else spelt_in_units(seconds))
