"""Slots and their successors; tests/process/test_slots.py has them with real workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from taskserver.host.slots import Slots

MakeSlots = Callable[..., Slots]


@pytest.fixture
def make(tmp_path: Path) -> MakeSlots:
    return lambda most=1: Slots(tmp_path, "host", "queue", "all", most)


class Successor:
    """Waits for a slot in a thread of its own, and looks for it when it is told to."""

    def __init__(self, slots: Slots, pool: ThreadPoolExecutor) -> None:
        self._waits, self._goes_on, self.is_wanted = Event(), Event(), True
        self.has_slot: Future[bool] = pool.submit(slots.take_or_wait, self._wait)
        assert self._waits.wait(10)

    def _wait(self, seconds: float) -> bool:
        self._waits.set()
        return self._goes_on.wait(10) and self.is_wanted

    def end(self, is_wanted: bool = True) -> bool:
        self.is_wanted = is_wanted
        self._goes_on.set()
        return self.has_slot.result(10)


def test_a_successor_goes_before_a_newcomer_that_comes_as_the_slot_gets_free(make: MakeSlots) -> None:
    before, waiting, newcomer = make(), make(), make()
    assert before.take()
    with ThreadPoolExecutor() as pool:
        successor = Successor(waiting, pool)
        before.leave()

        def wait(seconds: float) -> bool:
            assert successor.end()
            return False

        assert not newcomer.take_or_wait(wait)
    waiting.leave()


def test_a_successor_waits_for_the_worker_that_has_its_slot_for_longest(make: MakeSlots) -> None:
    """Those of one line come one after the other: the second must not wait for the first."""
    one, other, next_one = (make(2) for _ in range(3))
    assert one.take()
    assert other.take()
    one.leave()
    time.sleep(0.02)  # two instants for any file system
    assert next_one.take()
    with ThreadPoolExecutor() as pool:
        successor = Successor(make(2), pool)
        assert (next_one.has_successor(), other.has_successor()) == (False, True)
        assert not successor.end(is_wanted=False)
    next_one.leave()
    other.leave()
