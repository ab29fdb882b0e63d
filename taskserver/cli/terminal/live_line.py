"""A line on a terminal that is overwritten as work goes on; without a terminal it prints nothing."""

from __future__ import annotations

import os
import time
from typing import TextIO

from ...messages.text import printable

EVERY_SECONDS = 0.1
BAR_WIDTH = 30
USUAL_WIDTH = 80


class LiveLine:
    """Shows a text at most ten times a second; used in a `with`, it is gone after it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._shown_at = float("-inf")
        self._is_shown = False

    def __enter__(self) -> LiveLine:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        if not self._is_terminal or time.monotonic() - self._shown_at < EVERY_SECONDS:
            return
        self._shown_at = time.monotonic()
        width = terminal_width(self._stream) - 1
        self._write(f"\r\x1b[K{printable(text)[:width]}")
        self._is_shown = True

    def clear(self) -> None:
        if self._is_shown:
            self._write("\r\x1b[K")
            self._is_shown = False

    def end(self, text: str) -> None:
        """Print a last line that stays."""
        self.clear()
        if self._is_terminal:
            self._write(f"{printable(text)}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a task closed the stream, or the terminal is gone
            self._is_terminal = False


def terminal_width(stream: TextIO) -> int:
    """The width in characters; USUAL_WIDTH where the stream is no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except (OSError, ValueError):
        return USUAL_WIDTH


def bar(part: float) -> str:
    """A bar for a part from 0 to 1."""
    filled = round(BAR_WIDTH * min(max(part, 0.0), 1.0))
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {part:4.0%}"
