"""What a task reports of itself while it runs, progress(), and what it learns: current_task(), a cancel, a lost lease.

The tasks call functions of the tests themselves: so a test sees what its task saw.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import copy_context
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from taskserver import Progress, Retry, TaskServer, TaskState, current_task, progress
from taskserver.interrupts.stop import TaskInterrupted
from taskserver.model.results import read_progress
from taskserver.model.task import CANCELLED, Status
from taskserver.worker import heartbeat, task_context
from taskserver.worker.task_context import CurrentTask
from tests.support.databases import EACH_DATABASE
from tests.support.locks import holding
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.proxy import Proxy
from tests.support.servers import MySQLServer
from tests.support.sites import Site
from tests.support.threads import in_another_thread

OFTEN_SECONDS = 0.1

Act = Callable[[], object]
CODE = """
from taskserver import task

does = []

def act(name=None): return does[-1]() if name is None else name

@task(max_attempts=1)
def act_once(): return does[-1]()

@task(batch=50)
def act_for_several(items): return does[-1](items)
"""


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat stores, and looks for a cancel, ten times a second in place of once."""
    monkeypatch.setattr(heartbeat, "LOOK_AT_CALL_SECONDS", OFTEN_SECONDS)
    monkeypatch.setattr(heartbeat, "AT_MOST_EVERY_SECONDS", 0.9 * OFTEN_SECONDS)
    monkeypatch.setattr(task_context, "LOOK_AT_CALL_SECONDS", OFTEN_SECONDS)


class Acts(Site):
    """No lease needs a renewal while a test waits."""

    def __init__(self, dsn: str, folder: Path, code: str, settings: Mapping[str, Any]) -> None:
        super().__init__(dsn, folder, code, {"mode": "mark", "lease": 600, "max_attempts": 3} | dict(settings))

    def act(self, does: Callable[..., object], task: str = "act") -> TaskState:
        """Add a task that does this, and run it. What became of it."""
        self.module.does.append(does)
        task_id = self.add_args(task)
        self.run(1)
        state = self.server.get(task_id)
        assert state is not None
        return state

    def cancel(self, task_id: int) -> None:
        """As a person does, from elsewhere."""
        with TaskServer(self.dsn) as operator:
            assert operator.cancel(task_id) == 1


SITE = Acts


def this_task() -> CurrentTask:
    task = current_task()
    assert task is not None
    return task


# ---- stored


def test_it_is_stored_at_most_once_a_second_and_at_the_end(
    make_site: Any, site_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(site_dsn, lease=6)  # for whose sake the heartbeat beats four times a second
    writes: list[tuple[int, float]] = []
    real = site.store.finishes.write_progress

    def write(tasks: Any, text: str, conflict_seconds: float) -> None:
        real(tasks, text, conflict_seconds)
        writes.append((json.loads(text)["done"], time.monotonic()))

    monkeypatch.setattr(site.store.finishes, "write_progress", write)
    last = 0

    def work() -> None:
        nonlocal last
        until = time.monotonic() + 2.2
        while time.monotonic() < until:
            last += 1
            progress(last)

    site.act(work)
    assert last > 5_000  # a call costs less than a look into the database
    *timely, (at_the_end, _) = writes
    assert 1 <= len(timely) <= 2
    assert all(later - earlier > 0.85 for (_, earlier), (_, later) in pairwise(timely))
    assert (at_the_end, json.loads(site.rows.one("progress"))) == (last, {"done": last})


@pytest.mark.parametrize(
    ("status", "mode"), [(Status.DONE, "mark"), (Status.DONE, "move"), (Status.ERROR, "mark"), (Status.FATAL, "mark")]
)
def test_the_last_one_is_stored_however_the_task_ends(make_site: Any, site_dsn: str, status: Status, mode: str) -> None:
    def work() -> None:
        progress(1, 3)
        progress(2, 3, "almost")
        if status is not Status.DONE:
            raise ValueError("as it was asked to")

    state = make_site(site_dsn, mode=mode).act(work, "act_once" if status is Status.FATAL else "act")
    assert (state.status, state.progress) == (status, Progress(2, 3, "almost"))


def test_the_next_attempt_begins_without_one_and_a_task_knows_itself(site: Acts) -> None:
    seen: list[object] = []
    tasks: list[CurrentTask] = []

    def work() -> None:
        seen.append(site.rows.one("progress"))
        tasks.append(this_task())
        if len(seen) == 1:
            progress(7, 9)
            raise Retry("once more", delay=0)

    state = site.act(work)
    assert state.progress == Progress(7, 9)
    site.rows.set("due_at = created_at")
    site.run()
    assert seen == [None, None]
    assert site.columns("status, attempts, progress") == [(Status.DONE, 2, None)]
    assert [task[:3] for task in tasks] == [(state.id, 1, 3), (state.id, 2, 3)]
    assert tasks[0].ids == (state.id,)
    assert 590 < (tasks[0].time_left or 0) <= 600


# ---- a cancel, a lost lease


def ask(call: Callable[[], object] = current_task, seconds: float = WAIT_SECONDS) -> None:
    """In a loop, as a long task does at each of its steps."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        call()
        time.sleep(0.01)


CALLS: dict[str, Act] = {"progress": lambda: progress(1, 9), "current_task": current_task}


@pytest.mark.parametrize(("call", "is_main_thread"), [("progress", True), ("current_task", True), ("progress", False)])
def test_a_cancelled_task_that_asks_is_interrupted_within_seconds(site: Acts, call: str, is_main_thread: bool) -> None:
    heard: list[object] = []

    def work() -> None:
        progress(1, 9)
        site.cancel(this_task().id)
        began_at = time.monotonic()
        try:
            ask(CALLS[call])
        except Exception:
            heard.append("an Exception")
        finally:
            heard.append(time.monotonic() - began_at < 5)  # two, and more for a machine that is busy

    if is_main_thread:
        site.act(work)
    else:
        in_another_thread(lambda: site.act(work))
    assert heard == [True]
    assert site.columns("status, error_text") == [(Status.CANCELLED, CANCELLED)]
    assert read_progress(site.rows.one("progress")) == Progress(1, 9)


@EACH_DATABASE
@pytest.mark.usefixtures("often")
def test_a_task_whose_claim_was_taken_is_interrupted_and_writes_nothing(site: Acts) -> None:
    heard: list[str] = []

    def work() -> None:
        progress(1)
        site.rows.execute("UPDATE jobs_queue SET claim = 17, progress = NULL")
        for _ in range(2):  # each call again
            try:
                ask(CALLS["progress"])
            except TaskInterrupted as error:
                heard.append(str(error))
        current_task()

    site.module.does.append(work)
    site.add_args("act")
    result = site.run(1)
    assert [text.partition(",")[0][:18] for text in heard] == ["its lease was lost"] * 2
    assert (result.lost, result.done, result.failed, result.fatal) == (1, 0, 0, 0)
    assert site.columns("status, claim, progress, error_text") == [(Status.IN_PROGRESS, 17, None, None)]


# ---- one call of several


@pytest.mark.usefixtures("often")
def test_in_a_call_of_several_it_is_stored_for_each_of_them_that_is_ours(site: Acts) -> None:
    seen: list[CurrentTask] = []

    def work(items: list[Any]) -> None:
        progress(1, len(items))
        wait_until(lambda: site.columns("progress") == [('{"done":1,"total":3}',)] * 3)
        seen.append(this_task())
        site.rows.execute("UPDATE jobs_queue SET claim = 17 WHERE id = 1")
        ask(lambda: progress(3, 3), 5 * OFTEN_SECONDS)

    site.module.does.append(work)
    ids = [site.add_args("act_for_several") for _ in range(3)]
    site.run(3)
    assert [(task.id, task.ids, task.attempt) for task in seen] == [(ids[0], tuple(ids), 1)]
    assert site.columns("status, progress") == [
        (Status.IN_PROGRESS, '{"done":1,"total":3}'),
        *[(Status.DONE, '{"done":3,"total":3}')] * 2,
    ]


# ---- others in the way


@EACH_DATABASE
@pytest.mark.usefixtures("often")
def test_a_held_row_costs_no_time_and_gets_the_last_one(site: Acts) -> None:
    seconds: list[float] = []
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with holding(site.dsn):
            is_held.set()
            assert is_over.wait(WAIT_SECONDS)
            time.sleep(2.5)  # longer than a server waits for a lock by itself

    def work() -> None:
        threading.Thread(target=hold).start()
        assert is_held.wait(WAIT_SECONDS)
        for number in range(50):
            began_at = time.monotonic()
            progress(number, 50)
            seconds.append(time.monotonic() - began_at)
            time.sleep(0.01)
        is_over.set()
        progress(50, 50)

    state = site.act(work)
    assert max(seconds) < 0.1
    assert (state.status, state.attempts, state.progress) == (Status.DONE, 1, Progress(50, 50))


def test_a_database_that_is_away_fails_no_task(
    make_site: Any, mysql_server: MySQLServer, emptied_mysql_dsn: str
) -> None:
    seconds: list[float] = []

    def work() -> None:
        progress(1, 3)
        proxy.refuse()
        assert proxy.reset() > 0
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            began_at = time.monotonic()
            progress(2, 3)
            seconds.append(time.monotonic() - began_at)
            time.sleep(0.01)
        proxy.pass_on()
        progress(3, 3)

    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        state = make_site(proxy.dsn(emptied_mysql_dsn)).act(work)
    assert sum(seconds) < 1
    assert (state.status, state.attempts, state.progress) == (Status.DONE, 1, Progress(3, 3))


# ---- threads and event loops


def test_it_works_in_an_event_loop_and_in_threads_with_the_task_s_context(site: Acts) -> None:
    seen: list[int] = []

    def report(number: int) -> None:
        seen.append(this_task().id)
        progress(number, 3)

    def report_in_vain() -> None:
        assert current_task() is None
        progress(5, 5)

    async def report_later() -> None:
        report(3)

    async def wait() -> None:
        in_another_thread(report_in_vain)
        assert site.rows.one("progress") is None
        report(1)
        await asyncio.gather(asyncio.to_thread(report, 2), asyncio.to_thread(report, 2))
        await asyncio.create_task(report_later())

    state = site.act(lambda: asyncio.run(wait()))
    assert seen == [state.id] * 4
    assert (state.status, state.progress) == (Status.DONE, Progress(3, 3))


def test_a_thread_that_outlives_its_task_reports_nothing_and_is_not_interrupted(site: Acts) -> None:
    left: list[threading.Thread] = []
    seen: list[object] = []

    def outlive() -> None:
        try:
            until = time.monotonic() + WAIT_SECONDS
            while current_task() is not None and time.monotonic() < until:
                pass  # it asks also in the moment in which the task ends
            progress(99)
            seen.append(current_task())
        except BaseException as error:
            seen.append(error)

    def work() -> None:
        progress(1)
        left.append(threading.Thread(target=copy_context().run, args=(outlive,)))
        left[-1].start()
        time.sleep(0.01)

    states = [site.act(work) for _ in range(5)]
    for thread in left:
        thread.join(WAIT_SECONDS)
    assert seen == [None] * 5
    assert [state.progress for state in map(site.server.get, [one.id for one in states]) if state] == [Progress(1)] * 5
