"""A line on a terminal that is written over as work goes on; where there is no terminal, nothing."""

from __future__ import annotations

import os
import time
from typing import TextIO

from ..printable import printable

EVERY_SECONDS = 0.1
BAR_WIDTH = 30
USUAL_WIDTH = 80


class LiveLine:
    """Shows its text at most ten times a second."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._shown_at = float("-inf")
        self._stands = False

    def show(self, text: str) -> None:
        if not self._is_terminal or time.monotonic() - self._shown_at < EVERY_SECONDS:
            return
        self._shown_at = time.monotonic()
        width = terminal_width(self._stream) - 1
        self._write(f"\r\x1b[K{printable(text)[:width]}")
        self._stands = True

    def clear(self) -> None:
        if self._stands:
            self._write("\r\x1b[K")
            self._stands = False

    def end(self, text: str) -> None:
        """Leave a last line that stays."""
        self.clear()
        if self._is_terminal:
            self._write(f"{printable(text)}\n")

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # a task closed it, or the terminal is gone
            self._is_terminal = False


def terminal_width(stream: TextIO) -> int:
    """In characters."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or USUAL_WIDTH
    except (OSError, ValueError):
        return USUAL_WIDTH


def bar(part: float) -> str:
    """A bar for a part from 0 to 1."""
    filled = round(BAR_WIDTH * min(max(part, 0.0), 1.0))
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {part:4.0%}"
