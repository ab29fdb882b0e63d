"""What the workers of one line tell their supervisor, in memory that they share; a task cannot close it."""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from typing import Any

from .report import Report
from .terminal.log import Tokens

NO_DEADLINE = float("inf")
MAX_REPORT_BYTES = 4096
MAX_WORDS = 500
"""Characters of a report's words: each takes six bytes at most."""
_HEAD = struct.Struct("ddI")
"""By time.monotonic: when the call that runs is to end, and when the first worker of the place got its slot. Then the
length of the report behind it."""
_CELL_BYTES = _HEAD.size + MAX_REPORT_BYTES


class SharedMemory:
    """A cell for each place. The worker there writes, and its supervisor reads."""

    def __init__(self, count: int) -> None:
        self._memory = mmap.mmap(-1, count * _CELL_BYTES)

    def begin(self, number: int) -> None:
        """Forget the deadline and the report of the worker before."""
        _, slot_at, _ = self._head(number)
        self._write(number, NO_DEADLINE, slot_at, 0)

    def tell_deadline(self, number: int, instant: float) -> None:
        """Say by when the call that runs is to end."""
        struct.pack_into("d", self._memory, number * _CELL_BYTES, instant)

    def tell_slot(self, number: int) -> None:
        """Say that the place's first worker has its slot now."""
        deadline, _, length = self._head(number)
        self._write(number, deadline, time.monotonic(), length)

    def tell_report(self, number: int, report: Report) -> None:
        """Say how the worker ended."""
        told = json.dumps(report._replace(words=report.words[:MAX_WORDS])).encode()
        deadline, slot_at, _ = self._head(number)
        first = number * _CELL_BYTES + _HEAD.size
        self._memory[first : first + len(told)] = told
        self._write(number, deadline, slot_at, len(told))

    def deadline(self, number: int) -> float:
        """When the call that runs is to end."""
        return self._head(number)[0]

    def slot_at(self, number: int) -> float:
        """When the place's first worker got its slot; now, where it has none yet."""
        return self._head(number)[1] or time.monotonic()

    def report(self, number: int) -> Report | None:
        """How the worker ended; None where it died before it could say so."""
        length = self._head(number)[2]
        first = number * _CELL_BYTES + _HEAD.size
        found: Any = json.loads(self._memory[first : first + length]) if length else None
        return found and Report._make(found)

    def _head(self, number: int) -> tuple[float, float, int]:
        deadline, slot_at, length = _HEAD.unpack_from(self._memory, number * _CELL_BYTES)
        return deadline, slot_at, length

    def _write(self, number: int, *head: float) -> None:
        _HEAD.pack_into(self._memory, number * _CELL_BYTES, *head)


class SharedTokens(Tokens):
    """So many lines that several processes may write together: bytes in a pipe, of which each line takes one."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._pipe, writes = os.pipe()
        os.write(writes, b"." * count)
        os.close(writes)
        self._opened = os.fstat(self._pipe)

    def take(self) -> bool:
        try:
            # A task may have closed it, and something else have got its number.
            return os.path.samestat(os.fstat(self._pipe), self._opened) and bool(os.read(self._pipe, 1))
        except OSError:
            return False
