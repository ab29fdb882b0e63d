"""The tables of mutations, *.txt beside this file, written as a patch is.

file stores/queue/due.py            in taskserver/; it holds for all below, until the next
tests test_due test_leases          where to look first, in this order, wherever these files lie in tests/

a task in progress is not woken     what the mutation breaks, which is its name
- text that stands once in the file (several such lines are several lines of it)
+ text in its place; without it `pass`, and of a condition `if False:`
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TABLES = Path(__file__).parent


class Mutation(NamedTuple):
    """One change of one file."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def applied(self, text: str) -> str:
        """The file's text with the change. Raises ValueError where the table is out of date."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: this stands {text.count(self.old)} times in {self.file}:\n{self.old}")
        return text.replace(self.old, self.new)


def mutations() -> list[Mutation]:
    """All rows of all tables, in order."""
    return [mutation for table in sorted(TABLES.glob("*.txt")) for mutation in _read(table)]


def _read(table: Path) -> Iterator[Mutation]:
    file, name, tests = "", "", list[str]()
    old, new = list[str](), list[str]()
    for line in [*table.read_text(encoding="utf-8").splitlines(), ""]:
        word, _, rest = line.partition(" ")
        if word in ("-", "+"):
            (old if word == "-" else new).append(rest)
            continue
        if old:
            default = re.sub("if .*:", "if False:", old[0]) if re.fullmatch("(el)?if .*:", old[0]) else "pass"
            yield Mutation(name, file, "\n".join(old), "\n".join(new) if new else default, tests)
            old, new = [], []
        if word == "file":
            file = f"taskserver/{rest}"
        elif word == "tests":
            tests = rest.split()
        elif word not in ("", "#"):
            name = line
