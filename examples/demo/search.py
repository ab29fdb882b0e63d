"""The demo's search index: one row for each module of the standard library, in SQLite with FTS5.

tasks.py writes and reads it. `python -m examples.demo.search shared memory` asks it by hand.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "var" / "demo"
TABLE = "CREATE VIRTUAL TABLE IF NOT EXISTS modules USING fts5(module, text, tokenize = 'porter unicode61')"
# A word in the module's name weighs more than one in its text.
SEARCH = """
    SELECT module, snippet(modules, -1, '[', ']', ' ... ', 14) FROM modules WHERE modules MATCH ?
    ORDER BY bm25(modules, 10.0, 1.0), module LIMIT 5
"""


def page_of(module: str) -> Path:
    """The HTML page of a module."""
    return FOLDER / "pages" / f"{module}.html"


@contextmanager
def index() -> Iterator[sqlite3.Connection]:
    """A connection, whose writes are committed at the end; several workers wait for each other."""
    with closing(sqlite3.connect(FOLDER / "index.db", timeout=30)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(TABLE)
        yield connection


def search(query: str) -> list[tuple[str, str]]:
    """The modules that hold every word of the query, best first, each with the place where they do."""
    # Quoted, a word is only a word: NOT, NEAR and * mean nothing to FTS5.
    words = " ".join(f'"{word}"' for word in re.findall(r"\w+", query))
    with index() as rows:
        hits = rows.execute(SEARCH, (words,)).fetchall() if words else []
    return [(module, " ".join(place.split())) for module, place in hits]


if __name__ == "__main__":
    for module, place in search(" ".join(sys.argv[1:])):
        print(f"{module}: {place}\n    {os.path.relpath(page_of(module))}")
