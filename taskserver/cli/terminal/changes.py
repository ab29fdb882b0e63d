"""What differs between two pictures of the same kind, made to stand out in the newer one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

STANDS_OUT, NO_MORE = "\x1b[7m", "\x1b[27m"
"""Dark on light for light on dark; a colour of the text stays."""
_WORD = re.compile(r"(?P<colour>\x1b\[[\d;]*m)|(?P<age>\d+ (?:s|min|h|d)\b)|[^\s\x1b]+")
Span = tuple[int, int]


def with_changes(old: Sequence[str], new: Sequence[str], has_colours: bool) -> list[str]:
    """The new lines; words that differ stand out, or without colours an asterisk stands before their line.

    Ages do not stand out: they differ from look to look, and tell nothing but that time goes by.
    """
    lines = []
    for earlier, line in _pairs(old, new):
        spans = _changed(earlier, line)
        lines.append(_painted(line, spans) if has_colours else f"{'*' if spans else ' '} {line}")
    return lines


def _pairs(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each new line after the old one in its place, which is empty for a line that has come up."""
    matcher = SequenceMatcher(None, list(map(_form, old)), list(map(_form, new)), autojunk=False)
    for _, first_old, end_old, first, end in matcher.get_opcodes():
        earlier = [*old[first_old:end_old], *[""] * (end - first)]
        yield from zip(earlier, new[first:end], strict=False)


def _form(line: str) -> tuple[str, ...]:
    """What stays of a line while its numbers change: a line of a table keeps its first word, as the group's number."""
    first, *rest = [word for word, _ in _words(line)] or [""]
    return (first, *(re.sub(r"\d+", "0", word) for word in rest))


def _words(line: str) -> list[tuple[str, Span]]:
    return [
        ("" if found["age"] else found[0], found.span()) for found in _WORD.finditer(line) if found["colour"] is None
    ]


def _changed(old: str, new: str) -> list[Span]:
    """Where the words are that differ."""
    before, after = [word for word, _ in _words(old)], _words(new)
    if len(before) == len(after):  # as of a table, where a number must not be taken for that of another column
        return [span for earlier, (word, span) in zip(before, after, strict=True) if earlier != word]
    matcher = SequenceMatcher(None, before, [word for word, _ in after], autojunk=False)
    return [
        span
        for kind, _, _, first, end in matcher.get_opcodes()
        if kind in ("replace", "insert")
        for _, span in after[first:end]
    ]


def _painted(line: str, spans: Sequence[Span]) -> str:
    for first, end in reversed(spans):
        line = f"{line[:first]}{STANDS_OUT}{line[first:end]}{NO_MORE}{line[end:]}"
    return line
