"""What stands out of a picture that follows another one, and lines that are cut with their colours."""

from __future__ import annotations

import re

import pytest

from taskserver.cli.terminal.changes import NO_MORE, STANDS_OUT, with_changes


def standing_out(old: str, new: str) -> list[str]:
    text = "\n".join(with_changes(old.split("\n"), new.split("\n"), has_colours=True))
    assert text.replace(STANDS_OUT, "").replace(NO_MORE, "") == new
    return re.findall(f"{re.escape(STANDS_OUT)}(.*?){re.escape(NO_MORE)}", text)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", []),
        ("no tasks", "no tasks", []),
        ("3  5  0  0", "3  0  5  0", ["0", "5"]),
        ("3  5  0", "3    15  0", ["15"]),
        ("3  1\nall  1", "2  1\n3  1\nall  2", ["2", "1", "2"]),
        ("2  1\n3  1\nall  2", "3  1\nall  1", ["1"]),
        ("4 in error: they failed", "5 in error: they failed", ["5"]),
        ("began 5 s ago, is at work", "began 2 min ago, is at work", []),
        ("began 5 s ago, is at work", "began 7 s ago, ended: empty", ["ended:", "empty"]),
        ("task 1 a has run for 3 s: 5 of 10", "task 1 a has run for 5 s: 6 of 10", ["6"]),
        ("\x1b[32mall is well\x1b[0m", "\x1b[31mact\x1b[0m: so", ["act", ":", "so"]),
        ("x", "x\n\ngone: process 7", ["gone:", "process", "7"]),
    ],
)
def test_words_that_differ_stand_out_and_ages_do_not(old: str, new: str, expected: list[str]) -> None:
    assert standing_out(old, new) == expected


def test_without_colours_an_asterisk_stands_before_what_changed() -> None:
    assert with_changes(["a 1", "b 1"], ["a 2", "b 1", "c"], has_colours=False) == ["* a 2", "  b 1", "* c"]
