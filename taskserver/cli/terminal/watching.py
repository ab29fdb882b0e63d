"""Looks at something again and again, and draws it on the whole terminal until a person has seen enough."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Generic, TypeVar

from ...errors import DatabaseError, SettingError
from ...messages.programs import CLIENT, IS_INSTALLED
from ...messages.text import age, printable
from .changes import with_changes
from .screen import Screen, whole_terminal
from .style import BOLD, has_colours, painted

EVERY_SECONDS = 2.0
"""From the end of a look to the begin of the next: a slow database is not asked more often than it answers."""

T = TypeVar("T")


def watch(look: Callable[[], T], show: Callable[[T], None]) -> None:
    """Look, and draw what `show` prints of it, until Ctrl-C, the key q or a signal to end.

    Raises SettingError where there is no terminal, and DatabaseError of the first look. A database that goes away later
    is told above the last picture.
    """
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        command = CLIENT if IS_INSTALLED else f"python3 {CLIENT}"
        raise SettingError(
            f"--watch draws on a whole terminal, and standard output is none: `watch -n2 {command} status` "
            "prints the status again and again"
        )
    watched = _Watched(look, show)
    with suppress(KeyboardInterrupt), whole_terminal() as screen:
        screen.redraw = lambda: watched.draw(screen)
        while True:
            watched.draw(screen)
            screen.pause(EVERY_SECONDS)
            watched.look()


class _Watched(Generic[T]):
    def __init__(self, look: Callable[[], T], show: Callable[[T], None]) -> None:
        self._read = look
        self._show = show
        self._newest = self._before = look()
        self._read_at = time.time()
        self._away_since: float | None = None
        self._error = ""

    def look(self) -> None:
        self._before = self._newest
        try:
            self._newest = self._read()
        except DatabaseError as error:
            self._away_since = self._away_since or time.time()
            self._error = printable(str(error))
        else:
            self._read_at, self._away_since = time.time(), None

    def draw(self, screen: Screen) -> None:
        heads = [f"{_clock(self._read_at)}, every {EVERY_SECONDS:.0f} s; q or Ctrl-C ends it"]
        if self._away_since is not None:
            lasted = age(time.time() - self._away_since)
            words = f"no answer since {_clock(self._away_since)}, for {lasted}; trying again: {self._error}"
            heads.append(painted(words, BOLD, sys.stdout))
        before, newest = self._lines_of(self._before), self._lines_of(self._newest)
        screen.draw(heads, with_changes(before, newest, has_colours(sys.stdout)))

    def _lines_of(self, seen: T) -> list[str]:
        canvas = _Canvas(sys.stdout.fileno())
        with redirect_stdout(canvas), redirect_stderr(canvas):
            self._show(seen)
        return canvas.getvalue().rstrip("\n").split("\n")


class _Canvas(io.StringIO):
    """Takes what is printed for a terminal."""

    def __init__(self, terminal: int) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._terminal


def _clock(instant: float) -> str:
    return time.strftime("%H:%M:%S %Z", time.localtime(instant))
