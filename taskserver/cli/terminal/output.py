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
"""No column is cut to less, so instants and numbers stay whole."""
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


def print_table(heads: Sequence[str], rows: Sequence[Sequence[object]], spare: Collection[str] = ()) -> None:
    """Print a table: columns as wide as they need, numbers aligned to the right, long cells cut.

    On a terminal a row is one line. Where the terminal is narrow, the columns that `spare` heads are left out, the
    first of them first, and then the widest ones are cut.
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


def in_column(instant: datetime | None, characters: int = 19) -> str:
    """An instant below such a head; another zone, as that of summer in winter, stands beside it. Empty for None."""
    text, name = in_sentence(instant)[:characters], in_sentence(instant, "%Z")
    return text if name in ("", zone()) else f"{text} {name}"


def in_units(seconds: float | None) -> Amount:
    """Seconds in a person's unit, with about two significant digits; empty for None."""
    return Amount(spelt_in_units(seconds))


def status_name(status: int) -> Word:
    """The name of a status; `status_9` for a number that is no status, which a row may hold."""
    return Word(name_of_status(status))


def some_ids(ids: Sequence[int], most: int) -> str:
    """The first ids, and how many more there are."""
    shown = ", ".join(map(str, ids[:most]))
    return f"{shown} and {len(ids) - most} more" if len(ids) > most else shown


# ---- for programs


def as_json(value: object) -> str:
    """The JSON text of a value, for `--json`."""
    # ASCII: a terminal obeys no control character, and no encoding of a pipe matters.
    return json.dumps(plain(value), indent=2, allow_nan=False)


def stats_as_json(one: HourStats, column: str) -> dict[str, Any]:
    """The stats of an hour, a group or a task name, which `column` names, with their means."""
    report = one.as_dict()
    return {column: report.pop(column)} | {name: value for name, value in report.items() if name not in KEY}
