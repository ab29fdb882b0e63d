"""Tasks that are `async def` functions, and how an interrupt reaches them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from taskserver import Status
from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.coroutines import as_plain
from taskserver.interrupts.stop import Stop, TaskInterrupted
from tests.support.processes import WAIT_SECONDS
from tests.support.sites import Site

CODE = """
import asyncio

from taskserver import task

seen = []


async def add(a, b):
    await asyncio.sleep(0)
    return {"sum": a + b}


async def fails():
    await asyncio.sleep(0)
    raise ValueError("no luck")


async def leaves_a_child():
    async def child():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
    asyncio.create_task(child())
    await asyncio.sleep(0)


@task(timeout=0.2)
async def hangs():
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        seen.append("finally")
"""
AGAIN_SECONDS = 0.3
TIMEOUT = 0.2
OUTRAN = r"it ran for longer than its timeout of 0\.2 s"

Made = Callable[[], Coroutine[Any, Any, Any]]


@pytest.fixture
def kept_site(make_site: Callable[..., Site], sqlite_dsn: str) -> Site:
    return make_site(sqlite_dsn, mode="mark")


def test_a_coroutine_s_return_value_is_its_task_s_result(kept_site: Site) -> None:
    task_id = kept_site.add_args("add", {"a": 1, "b": 2})
    kept_site.run()
    state = kept_site.server.get(task_id)
    assert state is not None
    assert (state.status, state.result) == (Status.DONE, {"sum": 3})


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("fails", "ValueError: no luck"),
        ("hangs", "TaskInterrupted: it ran for longer than its timeout of 0.2 s"),
    ],
)
def test_a_coroutine_fails_as_any_other_task(kept_site: Site, name: str, error: str) -> None:
    kept_site.add_args(name)
    kept_site.run()
    [(status, text)] = kept_site.columns("status, error_text")
    assert (status, text.partition("\n")[0]) == (Status.ERROR, error)
    assert "asyncio/runners.py" not in text
    assert f"in {name}" in text
    assert kept_site.module.seen == ["finally"] * (name == "hangs")


def test_what_a_coroutine_leaves_behind_is_cancelled(kept_site: Site) -> None:
    kept_site.add_args("leaves_a_child")
    assert kept_site.run().done == 1
    assert kept_site.module.seen == ["cancelled"]


def test_a_worker_called_from_an_event_loop_says_so_and_one_in_its_thread_works(kept_site: Site) -> None:
    async def site() -> None:
        kept_site.run(max_tasks=1)
        assert "cannot be called from a running event loop" in kept_site.first_lines()[0]
        kept_site.server.retry(1)
        await asyncio.to_thread(kept_site.run)

    kept_site.add_args("add", {"a": 1, "b": 2})
    asyncio.run(site())
    assert kept_site.columns("status") == [(Status.DONE,)]


# ---- interrupts


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

    async def sleep(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(AGAIN_SECONDS / 4)
            steps.append(name)

    async def task() -> None:
        children = [asyncio.create_task(sleep("awaited")), asyncio.create_task(sleep("not awaited"))]
        try:
            await children[0]
        finally:
            steps.append("task")

    assert interrupted(task) < 5
    assert steps == ["awaited", "task", "not awaited"]


def test_a_coroutine_that_never_awaits_is_interrupted_where_it_is() -> None:
    steps: list[str] = []

    async def busy() -> None:
        try:
            hang()
        finally:
            steps.append("finally")

    assert interrupted(busy) < 5
    assert steps == ["finally"]


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


def test_a_coroutine_that_was_cancelled_by_its_own_code_is_not_taken_for_interrupted() -> None:
    async def task() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(0)

    with Alarm(Stop(), AGAIN_SECONDS) as limit, pytest.raises(asyncio.CancelledError):
        limit.call(0, as_plain(task))
