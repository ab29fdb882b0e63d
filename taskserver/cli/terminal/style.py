"""How text looks on a terminal: its width in columns, and its few colours."""

from __future__ import annotations

import os
from typing import TextIO

_CONJOINING = range(0x1160, 0x1200)
"""Vowels and final consonants of Korean syllables, which terminals draw into the syllable before them."""

BOLD = "1"
COLOURS = {
    **dict.fromkeys(("fatal", "critical", "act"), "31"),  # red
    **dict.fromkeys(("error", "warning", "look"), "33"),  # yellow
    **dict.fromkeys(("done", "ok", "well"), "32"),  # green
}
"""The colour of each word that has one; the word is there without it, too."""


def width_of(text: str) -> int:
    """The columns that a text takes on a terminal: two for a wide character, none for one that combines."""
    return len(text) if text.isascii() else sum(map(_width_of_character, text))


def cut(text: str, most: int) -> str:
    """The text in at most so many columns: where it is longer, its begin and an ellipsis."""
    if width_of(text) <= most:
        return text
    room = most - 1
    for end, character in enumerate(text):
        room -= _width_of_character(character)
        if room < 0:
            return f"{text[:end]}…"
    return text


def _width_of_character(character: str) -> int:
    from unicodedata import category, east_asian_width  # most tables are ASCII

    if character.isascii():
        return 1
    if category(character) in ("Mn", "Me", "Cf") or ord(character) in _CONJOINING:
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def painted(text: str, colour: str, stream: TextIO) -> str:
    """The text in a colour (or BOLD), where the stream is a terminal that is to have colours."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and has_colours(stream) else text


def has_colours(stream: TextIO) -> bool:
    """Whether colours are wanted: on a terminal, unless NO_COLOR is set (no-color.org) or it is a dumb one."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
