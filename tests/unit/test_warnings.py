"""What the text of a module says against a task that is added."""

from __future__ import annotations

import json
from typing import Any

import pytest

from taskserver.cli.terminal.warnings import NOT_FOUND, doubt_of_text

SOURCE = b"""
import taskserver as ts
from celery import shared_task
raise SystemExit("nothing of this runs")

def send(to, /, subject="x" * 99, *, copies=1): pass
async def fetch(*urls, **options): pass
@ts.task(max_attempts=1)
def once(to): pass
@ts.task(batch=5)
def many(items): pass
@app.task(bind=True)
def foreign(self, to): pass
@shared_task
def shared(to): pass
@dramatiq.actor(max_retries=3)
def actor(to): pass
@cached
def decorated(to): pass
class Letter:
    @staticmethod
    def post(to): pass
    @staticmethod
    def send(): pass
"""


@pytest.mark.parametrize(
    ("function", "args", "words"),
    [
        ("send", ["a"], ""),
        ("send", None, "tasks.send(to, /, subject=…, *, copies=…) does not take these arguments: missing a required"),
        ("send", ["a", "b", "c"], "too many positional arguments"),
        ("fetch", {"depth": 3}, ""),
        (
            "once",
            {"too": "a"},
            "tasks.once(to) does not take these arguments: missing a required argument",
        ),
        (
            "foreign",
            ["a"],
            "@app.task makes tasks.foreign a task of another queue: remove it, see docs/",
        ),
        ("actor", ["a"], "@dramatiq.actor makes"),
        ("decorated", [1, 2, 3], ""),
        ("Letter.send", [], ""),
        ("actr", [], f"module tasks has no function 'actr'; {NOT_FOUND}; did you mean 'actor'?"),
    ],
)
def test_what_a_worker_would_refuse_is_seen_in_the_text(function: str, args: Any, words: str) -> None:
    found = doubt_of_text(SOURCE, f"tasks.{function}", "tasks", function.rpartition(".")[2], json.dumps(args))
    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize("source", [b"def send(:", b"\0", b"\xff", b"(" * 10_000])
def test_a_text_that_cannot_be_read_raises_no_doubt(source: bytes) -> None:
    assert doubt_of_text(source, "tasks.send", "tasks", "send", None) == ""
