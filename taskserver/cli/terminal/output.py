"""How commands print: tables for people, JSON for programs. Control characters are escaped in both."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, TextIO, TypeVar

from ...messages.text import in_sentence, plain, printable, zone
from ...messages.text import in_units as spelt_in_units
from ...model.task import name_of_status
from ...stores.queue.stats import KEY, HourStats

MAX_CELL, MAX_LAST_CELL = 60, 500
"""Characters of a cell, and of the last one in a line."""
MIN_CUT = 20
"""No column is cut to less, so times and numbers stay whole."""
MAX_LINES = 50
"""Lines of a kind that may have thousands; `--json` has them all."""
USUAL_WIDTH = 80
BOLD = "1"
COLOURS = {
    **dict.fromkeys(("fatal", "critical"), "31"),  # red
    **dict.fromkeys(("error", "warning"), "33"),  # yellow
    **dict.fromkeys(("done", "ok"), "32"),  # green
}
"""The words that have a colour."""

T = TypeVar("T")


class Amount(str):
    """A number with its unit, aligned in a table like numbers."""


class Word(str):
    """A word that may have a colour on a terminal, such as the name of a status."""


# ---- for people


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]], spare: Collection[str] = ()) -> None:
    """Print a table: columns as wide as needed, numbers aligned to the right, long cells cut.

    On a terminal a row is one line. If the terminal is narrow, the columns of `spare` are left out in that order, then
    the widest ones are cut.
    """
    columns = [[head, *map(_text, values)] for head, values in zip(heads, zip(*rows, strict=True), strict=True)]
    widths = [min(max(map(len, column)), MAX_CELL) for column in columns]
    widths[-1] = min(max(map(len, columns[-1])), MAX_LAST_CELL)
    shown, left_out = list(range(len(heads))), []
    if sys.stdout.isatty():
        room = terminal_width(sys.stdout)
        for index in map(list(heads).index, spare):
            if sum(min(widths[one], MIN_CUT) + 2 for one in shown) - 2 > room:
                shown.remove(index)
                left_out.append(heads[index])
        while sum(widths[one] + 2 for one in shown) - 2 > room:
            widest = max(shown, key=widths.__getitem__)
            if widths[widest] <= MIN_CUT:
                break
            widths[widest] -= 1
    is_right = [all(isinstance(value, (int, Amount)) for value in column) for column in zip(*rows, strict=True)]
    for number, values in enumerate((heads, *rows)):
        line = []
        for one in shown:
            cell, value = cut(columns[one][number], widths[one]), values[one]
            colour = COLOURS.get(value, "") if isinstance(value, Word) else "" if number else BOLD
            blanks, text = " " * (widths[one] - len(cell)), painted(cell, colour, sys.stdout)
            line.append(blanks + text if is_right[one] else text + blanks)
        print("  ".join(line).rstrip())
    if left_out:
        print(f"a wider terminal also shows: {', '.join(left_out)}")


def _text(value: object) -> str:
    return printable("" if value is None else str(value))


def cut(text: str, most: int) -> str:
    """The text in at most so many characters, with an ellipsis if it is cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def terminal_width(stream: TextIO) -> int:
    """In characters; USUAL_WIDTH if the stream is no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except (OSError, ValueError):
        return USUAL_WIDTH


def painted(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour (or BOLD) on a terminal, unless NO_COLOR is set (no-color.org) or it is dumb."""
    wanted = colour and stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[{colour}m{text}\x1b[0m" if wanted else text


def note(text: str) -> None:
    """Print a line on standard error."""
    print(printable(text), file=sys.stderr)


def show_heading(name: str) -> None:
    """Print the name of one of several queues; nothing if it is empty, as that of the only one."""
    if name:
        print(painted(printable(f"== {name} =="), BOLD, sys.stdout), flush=True)


def largest(several: Sequence[T], size: Callable[[T], float]) -> tuple[Sequence[T], Sequence[T]]:
    """What to show, and the rest: all in their order, or only the largest MAX_LINES, largest first."""
    if len(several) <= MAX_LINES:
        return several, ()
    ordered = sorted(several, key=size, reverse=True)
    return ordered[:MAX_LINES], ordered[MAX_LINES:]


def headed(name: str) -> str:
    """The head of a column of times, with their zone."""
    return f"{name} ({zone()})"


def in_column(instant: datetime | None, characters: int = 19) -> str:
    """A time below such a head, with its zone if that differs, as in summer; empty for None."""
    text, name = in_sentence(instant)[:characters], in_sentence(instant, "%Z")
    return text if name in ("", zone()) else f"{text} {name}"


def in_units(seconds: float | None) -> Amount:
    """Seconds in a readable unit, with about two significant digits; empty for None."""
    return Amount(spelt_in_units(seconds))


def status_name(status: int) -> Word:
    """The name of a status; `status_9` for an unknown number."""
    return Word(name_of_status(status))


def some_ids(ids: Sequence[int], most: int) -> str:
    """The first ids, and the number of the others."""
    shown = ", ".join(map(str, ids[:most]))
    return f"{shown} and {len(ids) - most} more" if len(ids) > most else shown


# ---- for programs


def as_json(value: object) -> str:
    """The JSON text of a value, for `--json`."""
    # ASCII, so that control characters are escaped and the encoding of a pipe does not matter.
    return json.dumps(plain(value), indent=2, allow_nan=False)


def stats_as_json(one: HourStats, column: str) -> dict[str, Any]:
    """The stats with their means; `column` is the key that they are grouped by."""
    report = one.as_dict()
    return {column: report.pop(column)} | {name: value for name, value in report.items() if name not in KEY}
