"""What stands in a document: its blocks of code, its tables, links, headings, and words in backticks."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from taskserver.stores.schema import script
from tests.support.deployment import ROOT

REFERENCE = "docs/reference.md"
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")),
    *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("examples/**/*.md")),
]


class Block(NamedTuple):
    """A block of code in a document."""

    document: str
    section: str
    """The heading of second order that it stands under; empty above the first one."""
    line: int
    kind: str
    """The word behind the fence; empty for a block that is only indented."""
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0].strip()

    def __str__(self) -> str:
        return f"{self.document}, line {self.line}: {self.first_line}"


@lru_cache
def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str) -> list[Block]:
    """All of them: those between fences, and those that are indented by four spaces after a blank line."""
    return [Block(document, *rest) for rest in _blocks(read(document).splitlines())]


def _blocks(lines: list[str]) -> Iterator[tuple[str, int, str, str]]:
    section, paragraph, number = "", "", 0
    while number < len(lines):
        line = lines[number]
        fence = re.fullmatch(r"( *)```(\w*)", line)
        end = number + 1
        if line.startswith("## "):
            section = line[3:]
        if fence:
            while lines[end] != f"{fence[1]}```":
                end += 1
            content = [part.removeprefix(fence[1]) for part in lines[number + 1 : end]]
            yield section, number + 1, fence[2] or "without a kind", "\n".join(content) + "\n"
            end += 1
        elif line.startswith("    ") and number and not lines[number - 1].strip() and not _is_list(paragraph):
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            yield section, number + 1, "", "\n".join(part[4:] for part in lines[number:end]).rstrip() + "\n"
        elif line.strip() and (not lines[number - 1].strip() or _is_list(line)):
            paragraph = line
        number = end


def _is_list(line: str) -> bool:
    return bool(re.match(r" *([-*]|\d+\.) ", line))


def sections(document: str) -> list[tuple[str, list[Block]]]:
    """The sections that have blocks, in order."""
    return [(section, list(group)) for section, group in groupby(blocks(document), lambda block: block.section)]


def prose(document: str) -> str:
    """A document without its blocks between fences."""
    return re.sub(r"^( *)```.*?^\1```$", "", read(document), flags=re.MULTILINE | re.DOTALL)


def words_in_backticks(document: str) -> list[str]:
    found = re.findall(r"``(.+?)``|`([^`]+)`", prose(document), re.DOTALL)
    return [" ".join((double or single).split()) for double, single in found]


def links(document: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(document))


def anchors(path: Path) -> set[str]:
    """Of the headings of a document, as the sites that show it make them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table(document: str, *heads: str) -> dict[str, list[str]]:
    """The rows of the one table whose first columns have these heads, by what stands in their first column."""
    found = [rows for first, rows in _tables(document) if first[: len(heads)] == list(heads)]
    assert len(found) == 1, f"{document} has {len(found)} tables with the heads {heads}"
    rows = {row[0]: row[1:] for row in found[0]}
    assert len(rows) == len(found[0]), f"{document}: a row of the table {heads} stands there twice"
    return rows


def _tables(document: str) -> Iterator[tuple[list[str], list[list[str]]]]:
    for found in re.findall(r"(?:^ *\|.*\|$\n?)+", read(document), re.MULTILINE):
        heads, _, *rows = [_cells(line) for line in found.splitlines()]
        yield heads, rows


def _cells(line: str) -> list[str]:
    """Plain: `x` is x."""
    cells = re.split(r"(?<!\\)\|", line.strip()[1:-1])
    return [re.sub(r"^`([^`]+)`$", r"\1", cell.strip()).replace("\\|", "|") for cell in cells]


# ---- the schema


def columns_in_sqlite(name: str) -> list[str]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(script("sqlite"))
    return [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]


def columns_in_mysql(name: str) -> list[str]:
    found = re.search(rf"CREATE TABLE IF NOT EXISTS {name} \((.*?)\n\)", (ROOT / "schema.sql").read_text(), re.DOTALL)
    assert found
    return re.findall(r"^  ([a-z_]+) +[A-Z]", found[1], re.MULTILINE)
