"""Slots and their successors; tests/worker/test_linger.py has them with real workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from taskserver.host.slots import Slots

MakeSlots = Callable[[], Slots]


@pytest.fixture
def make(tmp_path: Path) -> MakeSlots:
    return lambda: Slots(tmp_path, "host", "queue", "all", 1)


class Successor:
    """Waits for a slot in a thread of its own, and looks for it when it is told to."""

    def __init__(self, slots: Slots, pool: ThreadPoolExecutor) -> None:
        self._waits, self._goes_on, self.is_wanted = Event(), Event(), True
        self.has_slot: Future[bool] = pool.submit(slots.take_or_succeed, self._wait)
        assert self._waits.wait(10)

    def _wait(self, seconds: float) -> bool:
        self._waits.set()
        return self._goes_on.wait(10) and self.is_wanted

    def end(self, is_wanted: bool = True) -> bool:
        self.is_wanted = is_wanted
        self._goes_on.set()
        return self.has_slot.result(10)


def test_a_worker_heeds_its_successor(make: MakeSlots) -> None:
    worker, next_one = make(), make()
    assert worker.take()
    assert not worker.has_successor()
    with ThreadPoolExecutor() as pool:
        successor = Successor(next_one, pool)
        assert worker.has_successor()
        worker.leave()
        assert successor.end()
        last = Successor(make(), pool)
        assert next_one.has_successor()
        assert not last.end(is_wanted=False)
    next_one.leave()


def test_a_successor_that_let_a_free_slot_be_is_not_heeded_and_the_next_one_is(make: MakeSlots) -> None:
    """It stands still, as by SIGSTOP: whoever has the slot would leave for nobody."""
    before, worker = make(), make()
    assert before.take()
    with ThreadPoolExecutor() as pool:
        still = Successor(make(), pool)
        before.leave()
        assert worker.take_or_succeed(lambda seconds: False)
        assert not worker.has_successor()
        assert not worker.has_successor()
        assert not still.end(is_wanted=False)
        assert not worker.has_successor()
        other = Successor(make(), pool)
        assert worker.has_successor()
        assert not other.end(is_wanted=False)
    worker.leave()
