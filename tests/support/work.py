"""The functions that pages of docs/ have to paste, in a queue's tasks.py as an owner pastes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.documents import blocks
from tests.support.queues import Queue

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
