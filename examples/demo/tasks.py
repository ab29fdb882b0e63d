"""The demo's three kinds of work, as plain functions: a row of the queue names one and holds its arguments.

Group 6 reads modules of the installed standard library into a search index, group 5 renders an HTML cache page of
each, group 3 mails saved searches. Every one may run twice, or beside others: it replaces what it wrote before
(a letter comes again, under the same Message-ID).
"""

from __future__ import annotations

import ast
import hashlib
import mailbox
import os
import smtplib
import sysconfig
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from email.message import EmailMessage
from email.utils import format_datetime
from html import escape
from pathlib import Path

from examples.demo.search import Document, demo_folder, get_document, module_name, page_path, put_document, search

__all__ = ["index_module", "render_page", "send_letter"]

LIBRARY = Path(sysconfig.get_path("stdlib")).resolve()
SMTP_SECONDS = 30.0

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{module}</title>
<style>body {{ max-width: 50em; margin: 2em auto; font-family: sans-serif }} pre {{ white-space: pre-wrap }}</style>
</head>
<body>
<h1>{module}</h1>
<p><code>{path}</code></p>
<pre>{docstring}</pre>
{definitions}</body>
</html>
"""
DEFINITION = "<h2><code>{signature}</code></h2>\n<pre>{docstring}</pre>\n"


def index_module(path: str) -> None:
    """Group 6: put one module into the search index, e.g. `asyncio/queues.py`, relative to the standard library."""
    # Symlinks are not followed here: Debian's own, in that folder, lead out of it.
    source = Path(os.path.normpath(LIBRARY / path))
    if LIBRARY not in source.parents:
        raise ValueError(f"{path!r} lies outside the standard library")
    tree = ast.parse(source.read_bytes(), filename=path)
    put_document(Document(module_name(path), path, _docstring(tree), list(_definitions(tree))))


def render_page(module: str) -> None:
    """Group 5: write the HTML cache page of an indexed module; a reader sees the old page or the new one, no half."""
    document = get_document(module)
    definitions = "".join(
        DEFINITION.format(signature=escape(signature), docstring=escape(docstring))
        for signature, docstring in document.definitions
    )
    page = PAGE.format(
        module=escape(document.module),
        path=escape(document.path),
        docstring=escape(document.docstring),
        definitions=definitions,
    )
    _replace_file(page_path(document.module), page)


def send_letter(to: str, query: str) -> None:
    """Group 3: mail what a saved search finds, into the Maildir `mail/`, or by SMTP if DEMO_SMTP is `host:port`."""
    letter = _letter(to, query)
    smtp = os.environ.get("DEMO_SMTP")
    if smtp:
        host, _, port = smtp.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=SMTP_SECONDS) as server:
            server.send_message(letter)
    else:
        _maildir().add(letter)


def _definitions(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The public functions, classes and methods that have a docstring, in the order of the file."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            docstring = _docstring(node)
            if docstring:
                yield _signature(node, prefix), docstring
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node, f"{prefix}{node.name}.")


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, prefix: str) -> str:
    if isinstance(node, ast.ClassDef):
        return f"class {prefix}{node.name}"
    return f"{prefix}{node.name}({ast.unparse(node.args)})"


def _docstring(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """The docstring, with a lone surrogate written as an escape: SQLite stores UTF-8 alone."""
    return (ast.get_docstring(node) or "").encode("utf-8", "backslashreplace").decode("utf-8")


def _replace_file(path: Path, text: str) -> None:
    """Write beside the target, then rename: on one file system that is atomic."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=".", delete=False) as file:
        try:
            file.write(text)
            file.close()
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _letter(to: str, query: str) -> EmailMessage:
    now = datetime.now(timezone.utc)
    hits = search(query)
    letter = EmailMessage()
    letter["From"] = "Module search <search@example.org>"
    letter["To"] = to
    letter["Subject"] = f"{len(hits) or 'No'} modules for: {query}"
    letter["Date"] = format_datetime(now)
    # The same letter of the same day has the same id, so that a mail program can drop one that was sent twice.
    identity = hashlib.sha256(f"{now:%Y-%m-%d}\n{to}\n{query}".encode()).hexdigest()[:32]
    letter["Message-ID"] = f"<{identity}@example.org>"
    entries = [f"{hit.module}\n  {hit.snippet}\n  {page_path(hit.module).resolve().as_uri()}\n" for hit in hits]
    letter.set_content("\n".join([f"Your saved search: {query}\n", *entries]))
    return letter


def _maildir() -> mailbox.Maildir:
    """The Maildir; made here, because mailbox's own making fails where two workers do it at once."""
    folder = demo_folder() / "mail"
    for name in ("tmp", "new", "cur"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return mailbox.Maildir(folder, create=False)
