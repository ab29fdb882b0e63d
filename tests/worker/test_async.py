"""Tasks that are `async def` functions, in each way to execute; how interrupts reach them is in test_coroutines.py."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

import pytest

from taskserver import Status
from tests.support.processes import assert_shows_where_it_hangs, assert_silent, end_of
from tests.support.queues import Queue
from tests.support.sites import Site

CODE = """
import asyncio
import contextvars

import taskserver
from taskserver import Fatal, Retry, current_task, progress, task

seen = []
kept = contextvars.ContextVar("kept", default=None)


async def add(a, b):
    await asyncio.sleep(0)
    return {"sum": a + b}


async def double(sum):
    return 2 * sum


async def tells(steps):
    async def step(number):
        progress(number, steps)
        seen.append((current_task().id, kept.get()))
    kept.set("outer")
    await asyncio.gather(*map(step, range(steps)))
    await asyncio.to_thread(lambda: seen.append((current_task().id, kept.get())))


async def looks():
    seen.append((kept.get(), asyncio.get_running_loop()))
    kept.set("changed")


async def fails():
    await asyncio.sleep(0)
    raise ValueError("no luck")


async def comes_again():
    raise Retry("not yet", delay=1000)


async def goes():
    raise Fatal("gone")


async def leaves_a_child():
    async def child():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
    asyncio.create_task(child())
    await asyncio.sleep(0)


async def in_groups():
    async with asyncio.TaskGroup() as group:
        group.create_task(fails())
        group.create_task(asyncio.sleep(60))


async def rescue(error):
    seen.append(f"rescue: {error}")


@task(max_attempts=1, on_fatal=rescue)
async def rescued():
    raise ValueError("in the end")


@task(batch=10)
async def together(items):
    await asyncio.sleep(0)
    seen.append(items)
    return [ValueError("bad") if item["n"] == 1 else None for item in items]


@task(commit_every=10)
async def shared(n):
    seen.append(n)


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


def test_coroutines_are_stages_of_a_pipeline(kept_site: Site) -> None:
    stages = [f"{kept_site.name}.{name}" for name in ("add", "double")]
    task_id = kept_site.server.add_pipeline(stages, {"a": 3, "b": 4})
    kept_site.run()
    state = kept_site.server.get(task_id)
    assert state is not None
    assert state.result == 14


def test_all_that_a_coroutine_gathers_or_sends_into_a_thread_knows_its_task(kept_site: Site) -> None:
    task_id = kept_site.add_args("tells", {"steps": 3})
    kept_site.run()
    assert kept_site.module.seen == [(task_id, "outer")] * 4
    state = kept_site.server.get(task_id)
    assert state is not None
    assert state.progress is not None
    assert state.progress.total == 3


@pytest.mark.parametrize(
    ("name", "error", "status"),
    [
        ("fails", "ValueError: no luck", Status.ERROR),
        ("comes_again", "Retry: not yet", Status.ERROR),
        ("goes", "Fatal: gone", Status.FATAL),
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
    assert kept_site.module.seen == (["finally"] if name == "hangs" else [])


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


def test_coroutines_share_their_commits(kept_site: Site) -> None:
    for number in range(3):
        kept_site.add_args("shared", {"n": number})
    assert kept_site.run().done == 3
    assert kept_site.module.seen == [0, 1, 2]


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


# ---- in real workers

SLOW = """
import asyncio, taskserver

async def swallow():
    note("begun")
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("swallowed")

async def wait():
    note("begun")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    finally:
        await asyncio.sleep(0.05)
        note("finally")

def plain():
    import sys
    note("asyncio" in sys.modules)
"""


def test_a_second_signal_cancels_a_coroutine(sqlite_queue: Queue) -> None:
    sqlite_queue.define(SLOW)
    sqlite_queue.add("tasks.wait")
    worker = sqlite_queue.start_task()
    worker.send_signal(signal.SIGTERM)
    time.sleep(0.2)  # closer together they count once
    worker.send_signal(signal.SIGTERM)
    assert end_of(worker)[0] == 0
    assert sqlite_queue.notes() == ["begun", "cancelled", "finally"]
    assert sqlite_queue.first_lines() == ["TaskInterrupted: stopped by a second signal"]


def test_a_coroutine_that_a_person_cancels_is_cancelled(make_queue: Callable[..., Queue], sqlite_dsn: str) -> None:
    queue = make_queue(sqlite_dsn, settings={"TASKSERVER_LEASE": "1"})
    queue.define(SLOW)
    queue.add("tasks.wait")
    worker = queue.start_task()
    assert queue.client("cancel", 1).returncode == 0
    assert end_of(worker)[0] == 0
    assert queue.notes() == ["begun", "cancelled", "finally"]
    assert queue.first_lines() == ["cancelled"]


def test_a_coroutine_that_heeds_no_cancellation_is_ended_with_its_worker(
    make_queue: Callable[..., Queue], sqlite_dsn: str
) -> None:
    queue = make_queue(sqlite_dsn, settings={"TASKSERVER_LEASE": "1", "TASKSERVER_TIMEOUT": "1"})
    queue.define(SLOW)
    queue.add("tasks.swallow")
    ended = queue.worker()
    assert ended.returncode == 1
    assert_shows_where_it_hangs(ended.stderr, "asyncio")
    assert queue.notes()[:2] == ["begun", "swallowed"]
    assert queue.notes().count("swallowed") > 1


def test_a_run_without_coroutines_imports_no_asyncio(sqlite_queue: Queue) -> None:
    sqlite_queue.define(SLOW.replace("import asyncio, taskserver", ""))
    sqlite_queue.add("tasks.plain")
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.notes() == ["False"]
