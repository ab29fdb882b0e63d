"""The functions of docs/work, in a queue's tasks.py as an owner pastes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.documents import blocks
from tests.support.queues import Queue

FOLDER = "docs/work"


def python_of(document: str) -> list[str]:
    """Its blocks of tasks, and not those that add them."""
    found = [block.text for block in blocks(document) if block.kind == "python"]
    return [text for text in found if "import TaskServer" not in text]


PROGRAMS = python_of(f"{FOLDER}/programs.md")[0]
"""The file programs.py."""


def paste(queue: Queue, page: str, edits: Mapping[str, str], parts: slice = slice(None), below: str = "") -> None:
    """Have a page's functions in tasks.py, edited as their owner would, and the code `below` under them."""
    (queue.folder / "programs.py").write_text(PROGRAMS, encoding="utf-8")
    text = "\n".join(python_of(f"{FOLDER}/{page}")[parts])
    for old, new in edits.items():
        assert old in text, f"{page} has no {old}"
        text = text.replace(old, new)
    queue.define(text.replace("/home/you", str(home(queue))) + below)


def home(queue: Queue) -> Path:
    """The folder that the pages call /home/you."""
    return queue.deployment.home
