"""The memory in which workers tell their supervisor how they end."""

from __future__ import annotations

import time

import pytest

from taskserver.cli.report import Report
from taskserver.cli.shared_memory import MAX_WORDS, SharedMemory
from taskserver.messages.printable import printable


@pytest.mark.parametrize("text", ["😀", "ß", '"', "\\", "\x1b", "\udcff"], ids=ascii)
def test_a_long_report_stays_within_its_cell(text: str) -> None:
    memory = SharedMemory(2)
    memory.tell_deadline(1, 7.0)
    words = printable(text * 2000)
    memory.tell_report(0, Report(1, (1, 2, 3, 4, 5, 6), words))
    assert memory.report(0) == Report(1, [1, 2, 3, 4, 5, 6], words[:MAX_WORDS])
    assert (memory.deadline(1), memory.report(1), memory.untold(0), memory.stops()) == (7.0, None, 0, 0)


def test_the_first_worker_with_a_slot_says_when_the_place_got_it() -> None:
    memory = SharedMemory(1)
    memory.begin(0)  # of a worker that died before it had one
    memory.begin(0)
    memory.tell_slot(0)
    first = memory.slot_at(0)
    time.sleep(0.01)
    memory.tell_slot(0)
    assert memory.slot_at(0) == first
