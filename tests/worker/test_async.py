"""Tasks that are `async def` functions, in each way to execute; how interrupts reach them is in test_coroutines.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from taskserver import Status
from tests.support.sites import Site

CODE = """
import asyncio

import taskserver
from taskserver import Retry, task

seen = []


async def add(a, b):
    await asyncio.sleep(0)
    return {"sum": a + b}


async def fails():
    await asyncio.sleep(0)
    raise ValueError("no luck")


async def comes_again():
    raise Retry("not yet", delay=1000)


async def leaves_a_child():
    async def child():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
    asyncio.create_task(child())
    await asyncio.sleep(0)


async def rescue(error):
    seen.append(error)
    raise error


@task(max_attempts=1, on_fatal=rescue)
async def rescued():
    raise ValueError("in the end")


@task(batch=10)
async def together(items):
    await asyncio.sleep(0)
    seen.append(items)
    return [ValueError("bad") if item["n"] == 1 else None for item in items]


@task(transactional=True)
async def transactional(fails):
    cursor = taskserver.connection().cursor()
    cursor.execute("INSERT INTO effects (number) VALUES (1)")
    await asyncio.sleep(0)
    if fails:
        raise ValueError("rolled back")


@task(timeout=0.2)
async def hangs():
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        seen.append("finally")
"""


def first_error(site: Site) -> str:
    return site.first_lines()[0]


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
    ("name", "error", "status"),
    [
        ("fails", "ValueError: no luck", Status.ERROR),
        ("comes_again", "Retry: not yet", Status.ERROR),
        ("rescued", "ValueError: in the end", Status.FATAL),
        ("hangs", "TaskInterrupted: it ran for longer than its timeout of 0.2 s", Status.ERROR),
    ],
)
def test_a_coroutine_fails_as_any_other_task(kept_site: Site, name: str, error: str, status: Status) -> None:
    kept_site.add_args(name)
    kept_site.run()
    [(found, text)] = kept_site.columns("status, error_text")
    assert (found, text.partition("\n")[0]) == (status, error)
    assert "asyncio/runners.py" not in text
    if name in ("fails", "hangs"):
        assert f"in {name}" in text
    assert len(kept_site.module.seen) == (name in ("hangs", "rescued"))


def test_what_a_coroutine_leaves_behind_is_cancelled(kept_site: Site) -> None:
    kept_site.add_args("leaves_a_child")
    assert kept_site.run().done == 1
    assert kept_site.module.seen == ["cancelled"]


def test_a_coroutine_takes_several_tasks_and_tells_of_each(kept_site: Site) -> None:
    for number in range(3):
        kept_site.add_args("together", {"n": number})
    result = kept_site.run()
    assert (result.done, result.failed) == (2, 1)
    assert kept_site.module.seen == [[{"n": 0}, {"n": 1}, {"n": 2}]]


def test_a_coroutine_writes_in_the_transaction_that_completes_its_task(site: Site) -> None:
    site.rows.execute("DROP TABLE IF EXISTS effects")
    site.rows.execute("CREATE TABLE effects (number INTEGER)")
    site.add_args("transactional", {"fails": False})
    site.add_args("transactional", {"fails": True})
    result = site.run(max_tasks=2)
    assert (result.done, result.failed) == (1, 1)
    assert site.rows.execute("SELECT COUNT(*) FROM effects") == [(1,)]


def test_a_worker_called_from_an_event_loop_says_so_and_one_in_its_thread_works(kept_site: Site) -> None:
    async def site() -> None:
        kept_site.run(max_tasks=1)
        assert "cannot be called from a running event loop" in first_error(kept_site)
        kept_site.server.retry(1)
        await asyncio.to_thread(kept_site.run)

    kept_site.add_args("add", {"a": 1, "b": 2})
    asyncio.run(site())
    assert kept_site.columns("status") == [(Status.DONE,)]
