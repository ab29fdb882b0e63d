"""What a task reports of itself while it runs, progress(), and what it learns: current_task(), a cancel, a lost lease.

The tasks are functions of the tests themselves, which `act` calls: so a test sees what its task saw.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import copy_context
from itertools import pairwise
from typing import Any

import pytest

import taskserver
from taskserver import Progress, Retry, TaskServer, TaskState, current_task, progress
from taskserver.interrupts.stop import TaskInterrupted
from taskserver.model.results import read_progress
from taskserver.model.selection import Selection
from taskserver.model.task import CANCELLED, Status
from taskserver.worker import heartbeat, task_context
from taskserver.worker.task_context import CurrentTask
from tests.support.databases import EACH_DATABASE
from tests.support.locks import holding
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.proxy import Proxy
from tests.support.queues import Queue
from tests.support.servers import MySQLServer
from tests.support.threads import in_another_thread

NOBODYS_GROUP = 4294967294
"""Without a task: whoever works for it takes back what is due, and runs nothing."""
OFTEN_SECONDS = 0.1

Act = Callable[[], object]
_acts: dict[str, Callable[..., object]] = {}


def act(name: str = "act") -> object:
    """The task of these tests."""
    return _acts[name]()


@taskserver.task(max_attempts=1)
def act_once(name: str = "act") -> object:
    return _acts[name]()


@taskserver.task(batch=50)
def act_for_several(items: list[Any]) -> object:
    return _acts["act"](items)


@pytest.fixture(autouse=True)
def _no_acts() -> Iterator[None]:
    yield
    _acts.clear()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat stores, and looks for a cancel, ten times a second in place of once."""
    monkeypatch.setattr(heartbeat, "LOOK_AT_CALL_SECONDS", OFTEN_SECONDS)
    monkeypatch.setattr(heartbeat, "AT_MOST_EVERY_SECONDS", 0.9 * OFTEN_SECONDS)
    monkeypatch.setattr(task_context, "LOOK_AT_CALL_SECONDS", OFTEN_SECONDS)


def server_of(queue: Queue, proxy: Proxy | None = None, **settings: Any) -> TaskServer:
    """One whose tasks are those of this file; no lease needs a renewal while a test waits.

    With a proxy, over a network that a test may cut.
    """
    chosen: dict[str, Any] = {"modules": __name__, "mode": "mark", "lease": 600, "max_attempts": 3} | settings
    return TaskServer(proxy.dsn(queue.dsn) if proxy else queue.dsn, folder=queue.folder, **chosen)


@pytest.fixture
def server(queue: Queue) -> Iterator[TaskServer]:
    with server_of(queue) as server:
        yield server


def run(server: TaskServer, does: Act, task: Callable[..., object] = act) -> TaskState:
    """Add a task that does this, and run it. What became of it."""
    _acts["act"] = does
    task_id = server.add_task(task)
    server.run(max_tasks=1)
    state = server.get(task_id)
    assert state is not None
    return state


def this_task() -> CurrentTask:
    task = current_task()
    assert task is not None
    return task


def in_row(queue: Queue, column: str = "progress") -> Any:
    """Of the only row."""
    ((value,),) = queue.rows(column)
    return value


def cancel(queue: Queue, task_id: int) -> None:
    """As a person does, from elsewhere."""
    with TaskServer(queue.dsn) as operator:
        assert operator.cancel(Selection(ids=(task_id,))) == 1


# ---- stored


def test_it_is_stored_at_most_once_a_second_and_the_last_one_as_the_task_ends(
    queue: Queue, server: TaskServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[tuple[int, float]] = []
    real = server.store.finishes.write_progress

    def write(tasks: Any, text: str, conflict_seconds: float) -> None:
        real(tasks, text, conflict_seconds)
        writes.append((json.loads(text)["done"], time.monotonic()))

    monkeypatch.setattr(server.store.finishes, "write_progress", write)
    last = 0

    def work() -> None:
        nonlocal last
        until = time.monotonic() + 2.2
        while time.monotonic() < until:
            last += 1
            progress(last)

    run(server, work)
    assert last > 5_000  # a call costs less than a look into the database
    *timely, (at_the_end, _) = writes
    assert 1 <= len(timely) <= 2
    assert all(later - earlier > 0.85 for (_, earlier), (_, later) in pairwise(timely))
    assert (at_the_end, json.loads(in_row(queue))) == (last, {"done": last})


@pytest.mark.parametrize(
    ("status", "mode"), [(Status.DONE, "mark"), (Status.DONE, "move"), (Status.ERROR, "mark"), (Status.FATAL, "mark")]
)
def test_the_last_one_is_stored_however_the_task_ends(queue: Queue, status: Status, mode: str) -> None:
    def work() -> None:
        progress(1, 3)
        progress(2, 3, "almost")
        if status is not Status.DONE:
            raise ValueError("as it was asked to")

    with server_of(queue, mode=mode) as server:
        state = run(server, work, act_once if status is Status.FATAL else act)
    assert (state.status, state.progress) == (status, Progress(2, 3, "almost"))


def test_the_next_attempt_begins_without_one_and_a_task_knows_itself(queue: Queue, server: TaskServer) -> None:
    seen: list[object] = []
    tasks: list[CurrentTask] = []

    def work() -> None:
        seen.append(in_row(queue))
        tasks.append(this_task())
        if len(seen) == 1:
            progress(7, 9)
            raise Retry("once more", delay=0)

    state = run(server, work)
    assert state.progress == Progress(7, 9)
    queue.end_backoffs()
    server.run()
    assert seen == [None, None]
    assert queue.rows("status, attempts, progress") == [(Status.DONE, 2, None)]
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
def test_a_cancelled_task_that_asks_is_interrupted_within_seconds(
    queue: Queue, call: str, is_main_thread: bool
) -> None:
    heard: list[object] = []

    def work() -> None:
        progress(1, 9)
        cancel(queue, this_task().id)
        began_at = time.monotonic()
        try:
            ask(CALLS[call])
        except Exception:
            heard.append("an Exception")
        finally:
            heard.append(time.monotonic() - began_at < 5)  # two, and more for a machine that is busy

    with server_of(queue) as server:
        if is_main_thread:
            run(server, work)
        else:
            in_another_thread(lambda: run(server, work))
    assert heard == [True]
    assert queue.rows("status, error_text") == [(Status.CANCELLED, CANCELLED)]
    assert read_progress(in_row(queue)) == Progress(1, 9)


@EACH_DATABASE
@pytest.mark.usefixtures("often")
def test_a_task_whose_claim_was_taken_is_interrupted_and_writes_nothing(queue: Queue, server: TaskServer) -> None:
    heard: list[str] = []

    def work() -> None:
        progress(1)
        queue.sql("UPDATE jobs_queue SET claim = 17, progress = NULL")
        for _ in range(2):  # each call again
            try:
                ask(CALLS["progress"])
            except TaskInterrupted as error:
                heard.append(str(error))
        current_task()

    _acts["act"] = work
    server.add_task(act)
    result = server.run(max_tasks=1)
    assert [text.partition(",")[0][:18] for text in heard] == ["its lease was lost"] * 2
    assert (result.lost, result.done, result.failed, result.fatal) == (1, 0, 0, 0)
    assert queue.rows("status, claim, progress, error_text") == [(Status.IN_PROGRESS, 17, None, None)]


@pytest.mark.usefixtures("often")
def test_a_task_of_one_start_that_was_given_up_as_lost_goes_on_and_is_done(queue: Queue, server: TaskServer) -> None:
    seen: list[object] = []

    def work() -> None:
        progress(1, 2)
        queue.end_leases()
        with server_of(queue) as other:
            other.run(groups=[NOBODYS_GROUP])
        seen.append(in_row(queue, "status"))
        ask(seconds=5 * OFTEN_SECONDS)
        progress(2, 2)
        seen.append(current_task() is not None)

    run(server, work, act_once)
    assert (seen, in_row(queue, "status")) == ([Status.FATAL, True], Status.DONE)


# ---- one call of several


def several(server: TaskServer, does: Callable[[list[Any]], object], **first: Any) -> list[int]:
    """Three tasks of one call, run; their ids."""
    _acts["act"] = does
    task = f"{__name__}.act_for_several"
    ids = server.add_tasks([{"task": task, **first}, {"task": task}, {"task": task}])
    server.run(max_tasks=3)
    return ids


@pytest.mark.usefixtures("often")
def test_in_a_call_of_several_it_is_stored_for_each_of_them_that_is_ours(queue: Queue, server: TaskServer) -> None:
    seen: list[CurrentTask] = []

    def work(items: list[Any]) -> None:
        progress(1, len(items))
        wait_until(lambda: queue.rows("progress") == [('{"done":1,"total":3}',)] * 3)
        seen.append(this_task())
        queue.sql("UPDATE jobs_queue SET claim = 17 WHERE id = 1")
        ask(lambda: progress(3, 3), 5 * OFTEN_SECONDS)

    ids = several(server, work)
    assert [(task.id, task.ids, task.attempt) for task in seen] == [(ids[0], tuple(ids), 1)]
    assert queue.rows("status, progress") == [
        (Status.IN_PROGRESS, '{"done":1,"total":3}'),
        *[(Status.DONE, '{"done":3,"total":3}')] * 2,
    ]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("others_may_start_again", [True, False])
def test_a_cancel_of_one_of_several_is_heard_if_all_may_start_again(
    queue: Queue, server: TaskServer, others_may_start_again: bool
) -> None:
    heard: list[int] = []

    def work(items: list[Any]) -> None:
        if len(items) < 3:
            return
        cancel(queue, this_task().ids[2])
        try:
            ask(CALLS["progress"], WAIT_SECONDS if others_may_start_again else 5 * OFTEN_SECONDS)
        finally:
            heard.append(len(items))
        heard.append(0)

    several(server, work, **({} if others_may_start_again else {"max_attempts": 1}))
    assert heard == ([3] if others_may_start_again else [3, 0])
    done = Status.DONE
    assert queue.statuses() == [done, done, Status.CANCELLED if others_may_start_again else done]


# ---- others in the way


@EACH_DATABASE
@pytest.mark.usefixtures("often")
def test_a_row_that_somebody_holds_costs_the_task_no_time_and_the_last_one_waits_for_it(
    queue: Queue, server: TaskServer
) -> None:
    seconds: list[float] = []
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with holding(queue.dsn):
            is_held.set()
            assert is_over.wait(WAIT_SECONDS)
            time.sleep(0.7)

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

    state = run(server, work)
    assert max(seconds) < 0.1
    assert (state.status, state.attempts, state.progress) == (Status.DONE, 1, Progress(50, 50))


def test_a_database_that_is_away_for_a_while_does_not_fail_the_task(
    mysql_queue: Queue, mysql_server: MySQLServer
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

    with Proxy(mysql_server.host, mysql_server.port) as proxy, server_of(mysql_queue, proxy) as server:
        state = run(server, work)
    assert sum(seconds) < 1
    assert (state.status, state.attempts, state.progress) == (Status.DONE, 1, Progress(3, 3))


# ---- threads and event loops


def test_it_works_in_an_event_loop_and_in_threads_with_the_task_s_context(queue: Queue, server: TaskServer) -> None:
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
        assert in_row(queue) is None
        report(1)
        await asyncio.gather(asyncio.to_thread(report, 2), asyncio.to_thread(report, 2))
        await asyncio.create_task(report_later())

    state = run(server, lambda: asyncio.run(wait()))
    assert seen == [state.id] * 4
    assert (state.status, state.progress) == (Status.DONE, Progress(3, 3))


def test_a_thread_that_outlives_its_task_reports_nothing_and_is_not_interrupted(server: TaskServer) -> None:
    over, left = threading.Event(), list[threading.Thread]()
    seen: list[object] = []
    asked = 0

    def outlive() -> None:
        nonlocal asked
        try:
            while current_task() is not None:  # also in the moment in which the task ends
                asked += 1
            over.wait(WAIT_SECONDS)
            progress(99)
            seen.append(current_task())
        except BaseException as error:
            seen.append(error)

    def work() -> None:
        progress(1)
        left.append(threading.Thread(target=copy_context().run, args=(outlive,)))
        left[-1].start()
        time.sleep(0.01)

    states = [run(server, work) for _ in range(10)]
    over.set()
    for thread in left:
        thread.join(WAIT_SECONDS)
    assert (seen, asked > 100) == ([None] * 10, True)
    assert [state.progress for state in map(server.get, [one.id for one in states]) if state] == [Progress(1)] * 10
