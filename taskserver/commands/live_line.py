"""A line on a terminal that is written over as work goes on; where there is no terminal, nothing."""

from __future__ import annotations

import shutil
import time
from typing import TextIO

from ..printable import printable

EVERY_SECONDS = 0.1
BAR_WIDTH = 30


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
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{printable(text)[:width]}")
        self._stream.flush()
        self._stands = True

    def clear(self) -> None:
        if self._stands:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._stands = False


def bar(part: float) -> str:
    """A bar for a part from 0 to 1."""
    filled = round(BAR_WIDTH * min(max(part, 0.0), 1.0))
    return f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {part:4.0%}"
