"""How arguments are read and wrong usage is told; apart from program.py, as a plain crontab line needs none of it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from ..printable import printable
from .program import Exit


class Parser(argparse.ArgumentParser):
    """Tells wrong usage in one line; options are written out, as a new one could make short forms ambiguous."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, **keywords)

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, f"{self.prog}: {printable(message)}; see {self.prog} --help\n")


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argument's type: a whole number within limits, both allowed."""
    allowed = f"a whole number from {least} to {most}" if most is not None else f"a whole number from {least} on"

    def parse(text: str) -> int:
        digits = text.removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= 20:
            value = int(text)
            if least <= value and (most is None or value <= most):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")

    return parse
