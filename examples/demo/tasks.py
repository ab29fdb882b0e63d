"""The demo's three kinds of work, as plain functions: a row of the queue names one and holds its arguments.

Each may run twice: it replaces what it wrote before, and a letter that is sent again has the same Message-ID.
"""

from __future__ import annotations

import ast
import hashlib
import mailbox
import os
import smtplib
import sysconfig
from email.message import EmailMessage
from html import escape
from pathlib import Path

from examples.demo.search import FOLDER, index, page_of, search

LIBRARY = Path(sysconfig.get_path("stdlib"))
PAGE = "<!DOCTYPE html>\n<meta charset='utf-8'>\n<title>{module}</title>\n<h1>{module}</h1>\n<pre>{text}</pre>\n"


def index_module(path: str) -> None:
    """Group 6: put one module into the search index, as `asyncio/queues.py`, relative to the standard library."""
    module = _module_of(path)
    with index() as rows:
        rows.execute("DELETE FROM modules WHERE module = ?", (module,))
        rows.execute("INSERT INTO modules VALUES (?, ?)", (module, _documentation(path)))


def render_page(path: str) -> None:
    """Group 5: write the HTML page of a module; a reader sees the old page or the new one."""
    page = page_of(_module_of(path))
    page.parent.mkdir(exist_ok=True)
    new = page.with_suffix(f".{os.getpid()}")
    new.write_text(PAGE.format(module=escape(page.stem), text=escape(_documentation(path))), encoding="utf-8")
    new.replace(page)


def send_letter(to: str, query: str) -> None:
    """Group 3: mail what a saved search finds, into the Maildir `mail/`, or by SMTP if DEMO_SMTP is `host:port`."""
    hits = search(query)
    letter = EmailMessage()
    letter["From"] = "Module search <search@example.org>"
    letter["To"] = to
    letter["Subject"] = f"{len(hits) or 'No'} modules for: {query}"
    letter["Message-ID"] = f"<{hashlib.sha256(f'{to} {query}'.encode()).hexdigest()[:32]}@example.org>"
    letter.set_content("\n".join(f"{module}\n  {place}\n  {page_of(module).as_uri()}\n" for module, place in hits))
    if smtp := os.environ.get("DEMO_SMTP"):
        host, _, port = smtp.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=30) as server:
            server.send_message(letter)
    else:
        mailbox.Maildir(FOLDER / "mail", create=False).add(letter)


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
