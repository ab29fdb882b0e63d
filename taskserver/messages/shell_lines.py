"""Lines of client.py that may be copied whole, into a terminal or a crontab."""

from __future__ import annotations

import sys
from itertools import takewhile
from pathlib import Path
from shlex import quote

from .error_text import MAX_ERROR_LENGTH
from .programs import IS_INSTALLED


def client_in(folder: Path) -> str:
    """The begin of a line of client.py, as a crontab and a shell take it."""
    python = quote(sys.executable or "python3")
    if IS_INSTALLED:
        return f"{python} -m taskserver --folder {quote(str(folder))}"
    return f"{python} {quote(str(folder / 'client.py'))}"


def begin_in_shell(text: str) -> str:
    """The begin of a text as an argument that may be copied into a terminal or a crontab; empty where there is none.

    It ends before the first character that would command a terminal, or that cron changes: % is a new line to it, and
    some take two backslashes for one.
    """
    begin = "".join(takewhile(lambda character: character.isprintable() and character not in "%\\", text))
    return quote(begin) if begin else ""


def error_in_shell(line: str) -> str:
    """The arguments by which client.py chooses an error: by the whole line, or by the begin that may be copied."""
    begin = begin_in_shell(line)
    is_whole = begin == quote(line) and len(line) < MAX_ERROR_LENGTH
    option = "--error-line" if is_whole else "--error"
    return f"{option}={begin}" if begin else ""  # by "=", as a line may begin with "-"
