"""What a document has: blocks of code, to paste too, tables, links, headings, and words in backticks."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from taskserver.stores.schema import script
from tests.support.deployment import ROOT
from tests.support.queues import Queue

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
    """The heading of second order above it; empty above the first one."""
    line: int
    kind: str
    """The word behind the fence."""
    text: str

    def __str__(self) -> str:
        return f"{self.document}, line {self.line}: {self.text.splitlines()[0].strip()}"


@lru_cache
def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(document: str) -> list[Block]:
    """Those between fences."""
    text, found = read(document), []
    for match in FENCED.finditer(text):
        before = text[: match.start()]
        _, *sections = re.split(r"^## (.*)$", FENCED.sub("", before), flags=re.MULTILINE)
        content = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        section = sections[-2] if sections else ""
        found.append(Block(document, section, before.count("\n") + 1, match[2] or "without a kind", content))
    return found


def sections(document: str) -> list[tuple[str, list[Block]]]:
    """The sections that have blocks, in order."""
    return [(section, list(group)) for section, group in groupby(blocks(document), lambda block: block.section)]


def prose(document: str) -> str:
    """A document without its blocks between fences."""
    return FENCED.sub("", read(document))


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
    """The rows of the one table whose first columns have these heads, by their first column."""
    found = [rows for first, rows in _tables(document) if first[: len(heads)] == list(heads)]
    assert len(found) == 1, f"{document} has {len(found)} tables with the heads {heads}"
    rows = {row[0]: row[1:] for row in found[0]}
    assert len(rows) == len(found[0]), f"{document}: a row of the table {heads} is there twice"
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


LETTERS = "docs/work/letters.md"
RECIPES = "docs/work/recipes.md"
PHP = "docs/php.md"
WORDPRESS = "docs/wordpress.md"


def python_of(place: str) -> list[str]:
    """The blocks of tasks of a page, or of its section behind a #, and not those that add them."""
    page, _, section = place.partition("#")
    found = [block.text for block in blocks(page) if block.kind == "python" and section in ("", block.section)]
    return [text for text in found if "import TaskServer" not in text]


PROGRAMS = python_of(f"{RECIPES}#A program")[0]
"""The file programs.py."""


def paste(queue: Queue, place: str, edits: Mapping[str, str], parts: slice = slice(None), below: str = "") -> None:
    """Write what `python_of` finds into tasks.py, edited as its owner would, and the code `below` under it."""
    (queue.folder / "programs.py").write_text(PROGRAMS, encoding="utf-8")
    text = "\n".join(python_of(place)[parts])
    for old, new in edits.items():
        assert old in text, f"{place} has no {old}"
        text = text.replace(old, new)
    queue.define(text.replace("/home/you", str(home(queue))) + below)


def home(queue: Queue) -> Path:
    """The folder that the pages call /home/you."""
    return queue.deployment.home
