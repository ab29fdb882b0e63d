"""What the workers of one line tell their supervisor, in memory that they share; a task cannot close it."""

from __future__ import annotations

import json
import mmap
import os
import struct
import time
from contextlib import suppress
from typing import Any

from .report import Report
from .terminal.log import Tokens

NO_DEADLINE = float("inf")
MAX_REPORT_BYTES = 4096
MAX_WORDS = 900
"""Characters of a report's words, which are printable: each takes four bytes at most."""
_DEADLINE, _SLOT_AT, _LENGTH, _UNTOLD = 0, 8, 16, 20
"""Where these stand in a cell: two instants of time.monotonic, the length of the report (of the supervisor: how often
the workers were asked to end), and a count for each kind of line. The report stands behind them."""
_REPORT = 64
_CELL_BYTES = _REPORT + MAX_REPORT_BYTES
_INSTANT, _COUNT = struct.Struct("d"), struct.Struct("I")


class SharedMemory:
    """A cell for each place, and one for the supervisor. Who is there writes, and the supervisor reads."""

    def __init__(self, places: int) -> None:
        self._cells = places + 1
        self._memory = mmap.mmap(-1, self._cells * _CELL_BYTES)

    def begin(self, number: int) -> None:
        """Forget the deadline and the report of the worker before."""
        self.tell_deadline(number, NO_DEADLINE)
        self._put(_COUNT, number, _LENGTH, 0)

    def tell_deadline(self, number: int, instant: float) -> None:
        """Say by when the call that runs is to end."""
        self._put(_INSTANT, number, _DEADLINE, instant)

    def deadline(self, number: int) -> float:
        """When the call that runs is to end."""
        return self._get(_INSTANT, number, _DEADLINE)

    def tell_stop(self) -> None:
        """Say that all workers are asked to end, once more."""
        self._put(_COUNT, self._cells - 1, _LENGTH, self.stops() + 1)

    def stops(self) -> int:
        """How often the workers were asked to end."""
        return int(self._get(_COUNT, self._cells - 1, _LENGTH))

    def tell_slot(self, number: int) -> None:
        """Say that a worker has its slot now; where it is the first one of its place to have one."""
        if not self._get(_INSTANT, number, _SLOT_AT):
            self._put(_INSTANT, number, _SLOT_AT, time.monotonic())

    def slot_at(self, number: int) -> float:
        """When the first worker of the place that had a slot got it; now, where none has."""
        return self._get(_INSTANT, number, _SLOT_AT) or time.monotonic()

    def tell_report(self, number: int, report: Report) -> None:
        """Say how the worker ended."""
        told = json.dumps(report._replace(words=report.words[:MAX_WORDS]), ensure_ascii=False).encode()
        first = number * _CELL_BYTES + _REPORT
        self._memory[first : first + len(told)] = told
        self._put(_COUNT, number, _LENGTH, len(told))

    def report(self, number: int) -> Report | None:
        """How the worker ended; None where it died before it could say so."""
        length = int(self._get(_COUNT, number, _LENGTH))
        first = number * _CELL_BYTES + _REPORT
        found: Any = json.loads(self._memory[first : first + length]) if length else None
        return found and Report._make(found)

    def count_untold(self, number: int, kind: int) -> None:
        """Count a record that gets no line."""
        place = _UNTOLD + kind * _COUNT.size
        self._put(_COUNT, number, place, int(self._get(_COUNT, number, place)) + 1)

    def untold(self, kind: int) -> int:
        """How many records of a kind got no line."""
        return sum(int(self._get(_COUNT, number, _UNTOLD + kind * _COUNT.size)) for number in range(self._cells))

    def _put(self, form: struct.Struct, number: int, place: int, value: float) -> None:
        form.pack_into(self._memory, number * _CELL_BYTES + place, value)

    def _get(self, form: struct.Struct, number: int, place: int) -> float:
        value: float = form.unpack_from(self._memory, number * _CELL_BYTES + place)[0]
        return value


class SharedTokens(Tokens):
    """So many lines that several processes may write together: bytes in a pipe, of which each line takes one."""

    def __init__(self, count: int, memory: SharedMemory, kind: int) -> None:
        super().__init__(count)
        self._memory = memory
        self._kind = kind
        self.number = 0
        """The number of the cell in which this process counts records that get no line."""
        self._pipe, writes = os.pipe()
        os.write(writes, b"." * count)
        os.close(writes)
        self._opened = os.fstat(self._pipe)

    def take(self) -> bool:
        is_left = False
        with suppress(OSError):
            # A task may have closed it, and something else have got its number.
            is_left = os.path.samestat(os.fstat(self._pipe), self._opened) and bool(os.read(self._pipe, 1))
        if not is_left:
            self._memory.count_untold(self.number, self._kind)
        return is_left
