"""How an interrupt reaches a task that is an `async def` function."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.coroutines import as_plain
from taskserver.interrupts.stop import STOPPED, Stop, TaskInterrupted
from taskserver.model.task import CANCELLED
from tests.support.processes import WAIT_SECONDS

AGAIN_SECONDS = 0.3
TIMEOUT = 0.1
OUTRAN = r"it ran for longer than its timeout of 0\.1 s"

Made = Callable[[], Coroutine[Any, Any, Any]]


def hang() -> None:
    # A function of its own: in a loop of the `try` itself, Python 3.13 forgets the `finally` after an interrupt.
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        pass


def interrupted(made: Made) -> float:
    """Run a coroutine until its timeout interrupts it; the seconds that it took."""
    began_at = time.monotonic()
    with Alarm(Stop(), AGAIN_SECONDS) as alarm, pytest.raises(TaskInterrupted, match=OUTRAN):
        alarm.call(TIMEOUT, as_plain(made))
    assert Alarm.coroutine is None
    return time.monotonic() - began_at


def test_a_coroutine_that_outruns_its_timeout_cleans_up_and_so_do_all_that_it_began() -> None:
    steps: list[str] = []
    loops: list[asyncio.AbstractEventLoop] = []

    class Connection:
        async def __aenter__(self) -> None:
            steps.append("entered")

        async def __aexit__(self, *error: object) -> None:
            await asyncio.sleep(AGAIN_SECONDS / 4)
            steps.append("left")

    async def child() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(AGAIN_SECONDS / 4)
            steps.append("child cancelled")
            raise

    async def task() -> None:
        loops.append(asyncio.get_running_loop())
        children = [asyncio.create_task(child()), asyncio.create_task(child())]
        try:
            async with Connection():
                await asyncio.gather(children[0], asyncio.sleep(60))
        finally:
            steps.append("finally")

    assert interrupted(task) < 5
    assert steps == ["entered", "child cancelled", "left", "finally", "child cancelled"]
    assert loops[0].is_closed()


@pytest.mark.parametrize("is_child", [False, True])
def test_a_coroutine_that_never_awaits_is_interrupted_where_it_is(is_child: bool) -> None:
    steps: list[str] = []

    async def busy() -> None:
        try:
            hang()
        finally:
            steps.append("finally")

    async def parent() -> None:
        left = asyncio.create_task(busy())
        try:
            await asyncio.sleep(60)
        finally:
            steps.append(f"parent of {left.done()}")

    assert interrupted(parent if is_child else busy) < 5
    assert steps == (["finally", "parent of True"] if is_child else ["finally"])


def test_a_coroutine_that_swallows_its_cancellation_is_cancelled_again() -> None:
    swallowed: list[int] = []

    async def task() -> None:
        for number in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed.append(number)
        await asyncio.sleep(60)

    assert interrupted(task) > 2 * AGAIN_SECONDS
    assert swallowed == [0, 1]


def test_no_coroutine_that_is_interrupted_waits_for_its_threads() -> None:
    ended = threading.Event()
    try:
        assert interrupted(lambda: asyncio.to_thread(ended.wait, 60)) < 5
    finally:
        ended.set()


def test_a_coroutine_that_returns_though_it_was_cancelled_has_returned() -> None:
    async def task() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
        return "all the same"

    with Alarm(Stop(), AGAIN_SECONDS) as limit:
        assert limit.call(TIMEOUT, as_plain(task)) == "all the same"
        assert limit.has_interrupted


def test_a_cancelled_coroutine_gets_the_reason() -> None:
    async def task() -> None:
        limit.interrupt(limit.number, CANCELLED)
        await asyncio.sleep(60)

    with Alarm(Stop(), AGAIN_SECONDS) as limit, pytest.raises(TaskInterrupted, match=CANCELLED):
        limit.call(0, as_plain(task))


def test_a_task_is_cancelled_also_where_a_child_that_nobody_awaits_has_asked() -> None:
    async def child() -> None:
        try:
            limit.interrupt_here(CANCELLED)
        finally:
            limit.interrupt(limit.number, CANCELLED)

    async def task() -> None:
        own = asyncio.ensure_future(child())
        await asyncio.sleep(10)
        own.cancel()

    with Alarm(Stop(), 60) as limit, pytest.raises(TaskInterrupted, match=CANCELLED):
        limit.call(20, as_plain(task))


def test_a_second_request_to_stop_cancels_a_coroutine() -> None:
    stop, steps = Stop(), list[str]()

    async def task() -> None:
        try:
            for _ in range(2):
                signal.raise_signal(signal.SIGUSR1)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise

    before = signal.signal(signal.SIGUSR1, lambda *_: stop.ask())
    try:
        with Alarm(stop, AGAIN_SECONDS) as limit, pytest.raises(TaskInterrupted, match=STOPPED):
            limit.call(0, as_plain(task))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert steps == ["cancelled"]


def test_a_coroutine_that_was_cancelled_by_its_own_code_is_not_taken_for_interrupted() -> None:
    async def task() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(0)

    with Alarm(Stop(), AGAIN_SECONDS) as limit, pytest.raises(asyncio.CancelledError):
        limit.call(0, as_plain(task))
