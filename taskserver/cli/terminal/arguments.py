"""Reading arguments and reporting wrong usage; apart from program.py, as a plain crontab line needs no argparse."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ...errors import SPANS, UNIT_SECONDS, span_seconds
from ...messages.text import nearest, printable
from ...model.task import MAX_GROUP_ID, MAX_GROUPS
from .program import Exit

if TYPE_CHECKING:
    from datetime import datetime


class Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line. Takes no abbreviated options: a new option could make them ambiguous."""

    about_more = ""
    """A hint for one argument that was given as several."""

    usage_exit: int = Exit.USAGE

    usage_head = ""
    """The begin of the line of wrong usage on standard output, for a command of which others read that alone."""

    about_commands = ""
    """The help of a program with commands: all of them, with a line each."""

    _is_intermixed = False

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, **keywords)
        # No option begins with a digit: `--since -1h` has a value, which is refused as that.
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    # Typed as argparse types it.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Take options before, behind and between the arguments.

        Surplus arguments are refused here, where the command is known for which they were meant.
        """
        if self._subparsers:
            options, more = super().parse_known_args(args, namespace)
            if more:
                self.error(
                    f"unrecognized arguments: {' '.join(more)}; options follow their command: {self.prog} COMMAND …"
                )
            return options, more
        if self._is_intermixed:
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True  # the next line calls this again, once for the options and once for the arguments
        try:
            options, more = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False
        if more:
            self.error(f"unrecognized arguments: {' '.join(more)}{self._hint(more)}")
        return options, more

    def _hint(self, more: Sequence[str]) -> str:
        option = next((word.partition("=")[0] for word in more if word.startswith("-")), None)
        if option is None:
            return f"; {self.about_more}" if self.about_more else ""
        meant = nearest(f"--{option.lstrip('-')}", self._option_string_actions)
        return f"; did you mean {meant}?" if meant else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        meant = nearest(str(value), choices)
        hint = f"; did you mean {meant!r}?" if meant else f" (choose from {', '.join(map(repr, choices))})"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")

    def format_help(self) -> str:
        return f"{self.format_usage()}\n{self.about_commands}" if self.about_commands else super().format_help()

    def error(self, message: str) -> NoReturn:
        words = f"{printable(message)}; see {self.prog} --help"
        if self.usage_head:
            print(f"{self.usage_head}: {words}")
            self.exit(self.usage_exit)
        self.exit(self.usage_exit, f"{self.prog}: {words}\n")


def whole_number(least: int, most: int | None = None, hint: str = "") -> Callable[[str], int]:
    """An argument's type: a whole number within limits, both allowed; an error ends with `hint`."""
    allowed = f"a whole number from {least} to {most}" if most is not None else f"a whole number from {least} on"

    def parse(text: str) -> int:
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= 20:
            value = int(text)
            if least <= value and (most is None or value <= most):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}{hint}")

    return parse


def whole_seconds(least: int, most: int) -> Callable[[str], int]:
    """An argument's type: whole seconds within limits, both allowed, or a span of time as 5m."""
    parse_number = whole_number(least, most, hint=f", of seconds, nor a span {SPANS}")

    def parse(text: str) -> int:
        seconds = span_seconds(text)
        return seconds if seconds is not None and least <= seconds <= most else parse_number(text)

    return parse


def seconds(or_zero: bool = False) -> Callable[[str], float]:
    """An argument's type: a number of seconds, above 0 or from 0 on, or a span of time as 5m."""
    parse_number = number_of("seconds", or_zero, hint=f", nor a span {SPANS}")

    def parse(text: str) -> float:
        found = span_seconds(text)
        return parse_number(text) if found is None or (found == 0 and not or_zero) else found

    return parse


def number_of(unit: str, or_zero: bool = False, hint: str = "") -> Callable[[str], float]:
    """An argument's type: a number of a unit, above 0 or from 0 on; an error ends with `hint`."""
    allowed = f"a number of {unit} {'from 0 on' if or_zero else 'above 0'}"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if 0 < value < float("inf") or (or_zero and value == 0):
            return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}{hint}")

    return parse


ABOUT_GROUPS = "write group ids with commas and no spaces, as 3,5,6"


def group_ids(text: str) -> list[int]:
    """An argument's type: group ids, as 3 or 3,5,6."""
    parse = whole_number(0, MAX_GROUP_ID)
    try:
        groups = [parse(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not right: {ABOUT_GROUPS}, from 0 to {MAX_GROUP_ID}") from None
    if len(groups) > MAX_GROUPS:
        raise argparse.ArgumentTypeError(f"it names {len(groups)} groups; at most {MAX_GROUPS} are allowed")
    return groups


def add_groups(parser: Any) -> None:
    """Add the option that restricts a command to some groups."""
    parser.add_argument(
        "--group", dest="groups", metavar="G", action="extend", type=group_ids, default=[], help="as 3 or 3,5,6"
    )
    parser.about_more = ABOUT_GROUPS


MAX_SPAN_DAYS = 36_500
"""The limit of stores/queue/pruning.py, which refuses more."""


SINCE = "a span as 90s, 30m, 24h, 7d, or an instant as 2026-01-31 or 2026-01-31T12:00+01:00 (without a zone: UTC)"


def since(text: str) -> int | datetime:
    """An argument's type: a span of time before now, in seconds, or an instant."""
    from datetime import timezone  # worker.py takes no instant

    from ...model.new_task import read_instant

    try:
        instant = read_instant(text)
    except ValueError:
        return span(text, "; or an instant, as 2026-01-31 or 2026-01-31T12:00+01:00")
    return instant if instant.utcoffset() is not None else instant.replace(tzinfo=timezone.utc)


def span(text: str, hint: str = "") -> int:
    """An argument's type: a span of time, as 90s, 30m, 24h or 7d; returns seconds. An error ends with `hint`."""
    seconds = span_seconds(text)
    if seconds is not None and seconds <= MAX_SPAN_DAYS * UNIT_SECONDS["d"]:
        return seconds
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a span of time; allowed: as 90s, 30m, 24h, 7d or 4w, at most {MAX_SPAN_DAYS}d{hint}"
    )
