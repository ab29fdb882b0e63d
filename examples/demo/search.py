"""The demo's search index: one document for each module of the standard library, in SQLite with FTS5.

tasks.py writes and reads it; rows can't call what is here, since it is defined outside tasks.py.
`python -m examples.demo.search shared memory` asks it by hand.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUSY_SECONDS = 30.0

TABLES = (
    """
    CREATE TABLE IF NOT EXISTS documents (
        id INTEGER PRIMARY KEY,
        module TEXT NOT NULL UNIQUE,
        path TEXT NOT NULL,
        docstring TEXT NOT NULL,
        definitions TEXT NOT NULL  -- JSON: [[signature, docstring], ...]
    )
    """,
    """
    CREATE VIRTUAL TABLE IF NOT EXISTS documents_text
    USING fts5(module, docstring, definitions, tokenize = 'porter unicode61')
    """,
)
PUT_DOCUMENT = """
    INSERT INTO documents (module, path, docstring, definitions) VALUES (?, ?, ?, ?)
    ON CONFLICT (module) DO UPDATE
    SET path = excluded.path, docstring = excluded.docstring, definitions = excluded.definitions
"""
DOCUMENT_ID = "SELECT id FROM documents WHERE module = ?"
DROP_TEXT = "DELETE FROM documents_text WHERE rowid = ?"
PUT_TEXT = "INSERT INTO documents_text (rowid, module, docstring, definitions) VALUES (?, ?, ?, ?)"
GET_DOCUMENT = "SELECT module, path, docstring, definitions FROM documents WHERE module = ?"
COUNT_DOCUMENTS = "SELECT COUNT(*) FROM documents JOIN documents_text ON documents_text.rowid = documents.id"
# A word in the module's name weighs more than one in its docstring, and that more than one further down.
SEARCH = """
    SELECT module, snippet(documents_text, -1, '[', ']', ' ... ', 14)
    FROM documents_text WHERE documents_text MATCH ?
    ORDER BY bm25(documents_text, 10.0, 4.0, 1.0), rowid LIMIT ?
"""


@dataclass(frozen=True)
class Document:
    """What the index holds of one module; a definition is its signature and its docstring."""

    module: str
    path: str
    docstring: str
    definitions: list[tuple[str, str]]


@dataclass(frozen=True)
class Hit:
    """A module that matches a search, and the place where it does."""

    module: str
    snippet: str


def demo_folder() -> Path:
    """Where everything is written: the index, `pages/` and `mail/`."""
    return Path(os.environ.get("DEMO_FOLDER") or ROOT / "var" / "demo")


def module_name(path: str) -> str:
    """`asyncio/queues.py` → `asyncio.queues`, `asyncio/__init__.py` → `asyncio`."""
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def page_path(module: str) -> Path:
    """The HTML cache page of a module."""
    return demo_folder() / "pages" / f"{module}.html"


def put_document(document: Document) -> None:
    """Put a document in; one of the same module is replaced, so that a task may safely run twice."""
    listing = "\n".join(f"{signature}\n{docstring}" for signature, docstring in document.definitions)
    definitions = json.dumps(document.definitions)
    with _index() as index:
        index.execute("BEGIN IMMEDIATE")
        index.execute(PUT_DOCUMENT, (document.module, document.path, document.docstring, definitions))
        (document_id,) = index.execute(DOCUMENT_ID, (document.module,)).fetchone()
        index.execute(DROP_TEXT, (document_id,))
        index.execute(PUT_TEXT, (document_id, document.module, document.docstring, listing))
        index.execute("COMMIT")


def get_document(module: str) -> Document:
    """The document of a module; LookupError if it isn't in the index."""
    with _index() as index:
        row = index.execute(GET_DOCUMENT, (module,)).fetchone()
    if row is None:
        raise LookupError(f"{module!r} is not in the index")
    name, path, docstring, definitions = row
    return Document(name, path, docstring, [(signature, text) for signature, text in json.loads(definitions)])


def count_documents() -> int:
    """How many modules can be found."""
    with _index() as index:
        (count,) = index.execute(COUNT_DOCUMENTS).fetchone()
    return int(count)


def search(query: str, limit: int = 5) -> list[Hit]:
    """The modules that hold every word of the query, best first."""
    words = re.findall(r"\w+", query)
    if not words:
        raise ValueError(f"no word to search for in {query!r}")
    # Quoted, a word is only a word: NOT, NEAR and * mean nothing to FTS5.
    match = " ".join(f'"{word}"' for word in words)
    with _index() as index:
        rows = index.execute(SEARCH, (match, limit)).fetchall()
    return [Hit(module, " ".join(snippet.split())) for module, snippet in rows]


@contextmanager
def _index() -> Iterator[sqlite3.Connection]:
    """A connection of its own for each call; several workers wait for each other, BUSY_SECONDS at most."""
    demo_folder().mkdir(parents=True, exist_ok=True)
    path = demo_folder() / "index.db"
    with closing(sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)) as index:
        for table in TABLES:
            index.execute(table)
        yield index


def main(words: list[str]) -> int:
    """Print the best hits with their pages."""
    try:
        hits = search(" ".join(words))
    except ValueError as error:
        print(f"search: {error}", file=sys.stderr)
        return 2
    for hit in hits:
        print(f"{hit.module}: {hit.snippet}\n    {os.path.relpath(page_path(hit.module))}")
    return 0 if hits else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
