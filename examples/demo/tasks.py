"""The demo's three kinds of work, as plain functions: a row of the queue names one and holds its arguments.

Each may run twice: it replaces what it wrote before, and a letter that is sent again has the same Message-ID.
`python -m examples.demo.tasks shared memory` searches by hand.
"""

from __future__ import annotations

import ast
import hashlib
import mailbox
import os
import re
import sqlite3
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import closing, contextmanager
from email.message import EmailMessage
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "var" / "demo"
LIBRARY = Path(sysconfig.get_path("stdlib"))
PAGE = "<!DOCTYPE html>\n<meta charset='utf-8'>\n<title>{module}</title>\n<h1>{module}</h1>\n<pre>{text}</pre>\n"
TABLE = "CREATE VIRTUAL TABLE IF NOT EXISTS modules USING fts5(module, text, tokenize = 'porter unicode61')"
# A word in the module's name weighs more than one in its text.
SEARCH = """
    SELECT module, snippet(modules, -1, '[', ']', ' ... ', 14) FROM modules WHERE modules MATCH ?
    ORDER BY bm25(modules, 10.0, 1.0), module LIMIT 5
"""


def index_module(path: str) -> None:
    """Group 6: put one module into the search index, as `asyncio/queues.py`, relative to the standard library."""
    module = _module_of(path)
    with _index() as rows:
        rows.execute("DELETE FROM modules WHERE module = ?", (module,))
        rows.execute("INSERT INTO modules VALUES (?, ?)", (module, _documentation(path)))


def render_page(path: str) -> None:
    """Group 5: write the HTML page of a module; a reader sees the old page or the new one."""
    module = _module_of(path)
    new = FOLDER / "pages" / f"{module}.{os.getpid()}"
    new.write_text(PAGE.format(module=escape(module), text=escape(_documentation(path))), encoding="utf-8")
    new.replace(FOLDER / "pages" / f"{module}.html")


def send_letter(to: str, query: str) -> None:
    """Group 3: mail what a saved search finds, into the Maildir `mail/`."""
    hits = _search(query)
    letter = EmailMessage()
    letter["From"] = "Module search <search@example.org>"
    letter["To"] = to
    letter["Subject"] = f"{len(hits) or 'No'} modules for: {query}"
    letter["Message-ID"] = f"<{hashlib.sha256(f'{to} {query}'.encode()).hexdigest()[:32]}@example.org>"
    letter.set_content("\n".join(hits) or "Nothing.")
    mailbox.Maildir(FOLDER / "mail").add(letter)


def _search(query: str) -> list[str]:
    """The modules that hold every word of the query, best first, each with the place where they do."""
    # Quoted, a word is only a word: NOT, NEAR and * mean nothing to FTS5.
    words = " ".join(f'"{word}"' for word in re.findall(r"\w+", query))
    with _index() as rows:
        hits = rows.execute(SEARCH, (words,)).fetchall() if words else []
    return [f"{module}: {' '.join(place.split())}" for module, place in hits]


@contextmanager
def _index() -> Iterator[sqlite3.Connection]:
    """A connection, whose writes are committed at the end; several workers wait for each other."""
    with closing(sqlite3.connect(FOLDER / "index.db", timeout=30)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(TABLE)
        yield connection


def _module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _documentation(path: str) -> str:
    """The docstrings of a module and of its functions and classes, each below its name."""
    parts = []
    for node in ast.walk(ast.parse((LIBRARY / path).read_bytes(), filename=path)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            parts += [f"{getattr(node, 'name', '')}\n{text}"] if text else []
    return "\n\n".join(parts).encode("utf-8", "backslashreplace").decode()  # SQLite stores no lone surrogate


if __name__ == "__main__":
    print("\n".join(_search(" ".join(sys.argv[1:]))))
