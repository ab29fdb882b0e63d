"""What a task tells of itself while it runs, progress(), and what it hears: current_task(), a cancel, a lost lease.

The tasks are functions of the tests themselves, which `act` calls: so a test sees what its task saw.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
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
from taskserver.worker.task_context import CurrentTask
from tests.support.locks import holding
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.proxy import Proxy
from tests.support.queues import Queue
from tests.support.servers import MySQLServer
from tests.support.threads import in_another_thread, together

NOBODYS_GROUP = 4294967294
"""Without a task: whoever works for it takes back what is due, and runs nothing."""
NO_RUN_YET = "no worker ran yet: is worker.py in a crontab?\n"
HEARD_SECONDS = 5.0
"""A cancel is heard within about two seconds by a task that asks; this is more, for a machine that is busy."""

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


def server_of(queue: Queue, proxy: Proxy | None = None, **settings: Any) -> TaskServer:
    """One whose tasks are those of this file; nothing comes by its heartbeat while a test waits, unless it says so.

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


TELLING = {
    "sqlite": [
        "CREATE TABLE told (number INTEGER PRIMARY KEY, progress TEXT, at REAL)",
        "CREATE TRIGGER note_progress AFTER UPDATE OF progress ON jobs_queue WHEN new.progress IS NOT NULL "
        "BEGIN INSERT INTO told (progress, at) VALUES (new.progress, julianday('now') * 86400.0); END",
    ],
    "mysql": [
        "CREATE TABLE told (number INT AUTO_INCREMENT PRIMARY KEY, progress TEXT, at DECIMAL(20, 6))",
        "CREATE TRIGGER note_progress AFTER UPDATE ON jobs_queue FOR EACH ROW INSERT INTO told (progress, at) "
        "SELECT NEW.progress, UNIX_TIMESTAMP(SYSDATE(6)) FROM DUAL "
        "WHERE NEW.progress IS NOT NULL AND NOT (NEW.progress <=> OLD.progress)",
    ],
    "postgresql": [
        "CREATE TABLE told (number SERIAL PRIMARY KEY, progress TEXT, "
        "at FLOAT DEFAULT EXTRACT(EPOCH FROM clock_timestamp()))",
        "CREATE FUNCTION note_progress() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO told (progress) VALUES (NEW.progress); RETURN NULL; END $$",
        "CREATE TRIGGER note_progress AFTER UPDATE ON jobs_queue FOR EACH ROW "
        "WHEN (NEW.progress IS NOT NULL AND NEW.progress IS DISTINCT FROM OLD.progress) "
        "EXECUTE FUNCTION note_progress()",
    ],
}


class Writes:
    """Every progress that a row ever had, with its instant in seconds: a trigger writes them down."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        for statement in TELLING[queue.kind]:
            queue.sql(statement)

    def all(self) -> list[tuple[float, float]]:
        """What was done by then, and when."""
        rows = self._queue.sql("SELECT progress, at FROM told ORDER BY number")
        return [(json.loads(text)["done"], float(at)) for text, at in rows]

    def done(self) -> list[float]:
        return [done for done, _ in self.all()]


# ---- stored


def test_it_is_stored_at_most_once_a_second_and_the_last_one_as_the_task_ends(queue: Queue, server: TaskServer) -> None:
    writes = Writes(queue)
    last = 0

    def work() -> None:
        nonlocal last
        until = time.monotonic() + 3.2
        while time.monotonic() < until:
            last += 1
            progress(last)

    run(server, work)
    assert last > 10_000  # a call costs less than a look into the database
    *timely, (at_the_end, _) = writes.all()
    assert at_the_end == last
    assert 1 <= len(timely) <= 3  # within two seconds of the call, and a second apart
    pauses = [later - earlier for (_, earlier), (_, later) in pairwise(timely)]
    assert all(pause > 0.98 for pause in pauses)
    assert json.loads(in_row(queue)) == {"done": last}


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


# ---- the task itself


def test_the_time_left_grows_less_and_is_none_without_a_timeout(sqlite_queue: Queue) -> None:
    lefts: list[float | None] = []

    def work() -> None:
        for _ in range(2):
            lefts.append(this_task().time_left)
            time.sleep(0.1)

    for timeout in (20, 0):
        with server_of(sqlite_queue, timeout=timeout) as server:
            run(server, work)
    first, second, *without = lefts
    assert 20 >= (first or 0) > (second or 0) + 0.09 > 10
    assert without == [None, None]


# ---- a cancel, a lost lease

CALLS: dict[str, Callable[[], object]] = {"progress": lambda: progress(1, 9), "current_task": current_task}
EACH_CALL = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def ask(call: Callable[[], object] = current_task, seconds: float = HEARD_SECONDS) -> None:
    """In a loop, as a long task does at each of its steps."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        call()
        time.sleep(0.01)


@EACH_CALL
@pytest.mark.parametrize("is_main_thread", [True, False])
def test_a_cancelled_task_that_asks_is_interrupted_within_seconds(
    queue: Queue, call: Callable[[], object], is_main_thread: bool
) -> None:
    heard: list[str] = []

    def work() -> None:
        progress(1, 9)
        cancel(queue, this_task().id)
        try:
            ask(call)
            heard.append("nothing")
        except Exception:
            heard.append("an Exception")
        finally:
            heard.append("finally")

    with server_of(queue) as server:
        if is_main_thread:
            run(server, work)
        else:
            in_another_thread(lambda: run(server, work))
    assert heard == ["finally"]
    assert queue.rows("status, error_text") == [(Status.CANCELLED, CANCELLED)]
    assert read_progress(in_row(queue)) == Progress(1, 9)


@EACH_CALL
def test_a_task_whose_claim_was_taken_is_interrupted_within_seconds(
    queue: Queue, server: TaskServer, call: Callable[[], object]
) -> None:
    heard: list[str] = []

    def work() -> None:
        progress(1)
        queue.sql("UPDATE jobs_queue SET claim = 17, progress = NULL")
        for _ in range(2):  # each call again
            try:
                ask(call)
            except TaskInterrupted as error:
                heard.append(str(error))
        call()

    _acts["act"] = work
    server.add_task(act)
    result = server.run(max_tasks=1)
    assert len(heard) == 2
    assert heard[0].startswith("its lease was lost")
    assert (result.lost, result.done, result.failed, result.fatal) == (1, 0, 0, 0)
    assert queue.rows("status, claim, progress, error_text") == [(Status.IN_PROGRESS, 17, None, None)]


def test_a_task_of_one_start_that_was_given_up_as_lost_goes_on_and_is_done(queue: Queue, server: TaskServer) -> None:
    seen: list[object] = []

    def work() -> None:
        progress(1, 2)
        queue.end_leases()
        with server_of(queue) as other:
            other.run(groups=[NOBODYS_GROUP])
        seen.append(in_row(queue, "status"))
        ask(seconds=2.2)
        progress(2, 2)
        seen.append(current_task() is not None)

    run(server, work, act_once)
    assert seen == [Status.FATAL, True]
    assert in_row(queue, "status") == Status.DONE


# ---- one call of several


def several(server: TaskServer, does: Callable[[list[Any]], object], **first: Any) -> list[int]:
    """Three tasks of one call, run; their ids."""
    _acts["act"] = does
    task = f"{__name__}.act_for_several"
    ids = server.add_tasks([{"task": task, **first}, {"task": task}, {"task": task}])
    server.run(max_tasks=3)
    return ids


def test_in_a_call_of_several_it_is_stored_for_each_of_them(queue: Queue, server: TaskServer) -> None:
    seen: list[CurrentTask] = []

    def work(items: list[Any]) -> None:
        progress(1, len(items))
        wait_until(lambda: queue.rows("progress") == [('{"done":1,"total":3}',)] * 3)
        seen.append(this_task())
        progress(3, len(items))

    ids = several(server, work)
    assert [(task.id, task.ids, task.attempt) for task in seen] == [(ids[0], tuple(ids), 1)]
    assert queue.rows("status, progress") == [(Status.DONE, '{"done":3,"total":3}')] * 3


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
            ask(lambda: progress(1, 3), HEARD_SECONDS if others_may_start_again else 2.2)
        finally:
            heard.append(len(items))
        heard.append(0)

    several(server, work, **({} if others_may_start_again else {"max_attempts": 1}))
    assert heard == ([3] if others_may_start_again else [3, 0])
    done = Status.DONE
    assert queue.statuses() == ([done, done, Status.CANCELLED] if others_may_start_again else [done] * 3)


def test_a_call_of_several_goes_on_while_one_of_them_is_ours(queue: Queue, server: TaskServer) -> None:
    def work(items: list[Any]) -> None:
        queue.sql("UPDATE jobs_queue SET claim = 17 WHERE id = 1")
        ask(lambda: progress(2, 3), 2.2)

    several(server, work)
    assert queue.rows("status, progress") == [(1, None)] + [(Status.DONE, '{"done":2,"total":3}')] * 2


# ---- others in the way


def test_a_row_that_somebody_holds_costs_the_task_no_time(queue: Queue, server: TaskServer) -> None:
    seconds: list[float] = []

    def work() -> None:
        with holding(queue.dsn):
            for number in range(200):
                began_at = time.monotonic()
                progress(number, 200)
                seconds.append(time.monotonic() - began_at)
                time.sleep(0.01)

    state = run(server, work)
    assert max(seconds) < 0.1
    assert (state.status, state.attempts, state.progress) == (Status.DONE, 1, Progress(199, 200))


@pytest.mark.long
@pytest.mark.parametrize("is_silent", [False, True], ids=["away", "silent"])
def test_a_database_that_is_away_for_a_while_does_not_fail_the_task(
    mysql_queue: Queue, mysql_server: MySQLServer, is_silent: bool
) -> None:
    seconds: list[float] = []

    def work() -> None:
        progress(1, 3)
        if is_silent:
            proxy.stall()
            time.sleep(1.1)
        else:
            proxy.refuse()
            assert proxy.reset() > 0
        until = time.monotonic() + 1.5
        while time.monotonic() < until or len(seconds) < 20:
            for call in CALLS.values():
                began_at = time.monotonic()
                call()
                seconds.append(time.monotonic() - began_at)
            time.sleep(0.01)
        proxy.pass_on()
        progress(3, 3)

    with Proxy(mysql_server.host, mysql_server.port) as proxy, server_of(mysql_queue, proxy) as server:
        state = run(server, work)
    assert sum(seconds) < 1
    assert (state.status, state.attempts, state.progress) == (Status.DONE, 1, Progress(3, 3))


def test_the_last_one_is_stored_though_somebody_holds_the_row_as_the_task_ends(
    queue: Queue, server: TaskServer
) -> None:
    holds = threading.Event()
    holders: list[threading.Thread] = []

    def hold() -> None:
        with holding(queue.dsn):
            holds.set()
            time.sleep(2.5)

    def work() -> None:
        progress(2, 10)
        holders.append(threading.Thread(target=hold))
        holders[0].start()
        assert holds.wait(WAIT_SECONDS)
        progress(10, 10)

    began_at = time.monotonic()
    state = run(server, work)
    assert time.monotonic() - began_at > 2.5
    holders[0].join(WAIT_SECONDS)
    assert (state.status, state.attempts, state.progress) == (Status.DONE, 1, Progress(10, 10))


# ---- threads, processes, event loops


def test_tasks_of_two_threads_of_one_process_see_each_its_own(queue: Queue, server: TaskServer) -> None:
    both = threading.Barrier(2, timeout=WAIT_SECONDS)
    seen: dict[str, set[int]] = {"a": set(), "b": set()}

    def work(name: str) -> None:
        both.wait()
        for number in range(200):
            seen[name].add(this_task().id)
            progress(number, text=name)
        both.wait()

    _acts.update({name: lambda name=name: work(name) for name in seen})
    ids = {name: server.add_task(act, [name]) for name in seen}
    with together(*[lambda: server.run(max_tasks=1)] * 2):
        pass
    assert seen == {name: {task_id} for name, task_id in ids.items()}
    told = [json.loads(told) for (told,) in queue.rows("progress")]
    assert told == [{"done": 199, "text": name} for name in ids]


def test_it_works_in_an_event_loop_and_in_threads_with_the_task_s_context(queue: Queue, server: TaskServer) -> None:
    seen: list[int] = []

    def ask(number: int) -> None:
        seen.append(this_task().id)
        progress(number, 3)

    def ask_in_vain() -> None:
        assert current_task() is None
        progress(5, 5)

    async def ask_later() -> None:
        ask(3)

    async def wait() -> None:
        in_another_thread(ask_in_vain)
        assert in_row(queue) is None
        ask(1)
        await asyncio.gather(asyncio.to_thread(ask, 2), asyncio.to_thread(ask, 2))
        await asyncio.create_task(ask_later())

    state = run(server, lambda: asyncio.run(wait()))
    assert seen == [state.id] * 4
    assert (state.status, state.progress) == (Status.DONE, Progress(3, 3))


def test_a_thread_that_a_task_left_behind_tells_nothing_any_more(queue: Queue, server: TaskServer) -> None:
    writes = Writes(queue)
    over, left = threading.Event(), []
    seen: list[object] = []

    def ask() -> None:
        over.wait(WAIT_SECONDS)
        progress(99)
        seen.append(current_task())

    def work() -> None:
        progress(1)
        left.append(threading.Thread(target=copy_context().run, args=(ask,)))
        left[0].start()

    run(server, work)
    over.set()
    left[0].join(WAIT_SECONDS)
    assert seen == [None]
    assert writes.done() == [1]


def test_a_thread_that_asks_while_its_task_ends_is_not_told_that_it_was_lost(queue: Queue, server: TaskServer) -> None:
    raised: list[BaseException] = []
    threads: list[threading.Thread] = []
    asked: list[int] = []

    def ask() -> None:
        try:
            while current_task() is not None:
                asked.append(1)
        except BaseException as error:
            raised.append(error)

    def work() -> None:
        threads.append(threading.Thread(target=copy_context().run, args=(ask,)))
        threads[-1].start()
        time.sleep(0.01)

    for _ in range(30):
        run(server, work)
        threads[-1].join(WAIT_SECONDS)
    assert len(asked) > 100
    assert raised == []


def test_a_task_that_asks_as_it_begins_needs_no_second_connection(queue: Queue, server: TaskServer) -> None:
    looks: list[object] = []
    real = server.store.finishes.claimed_still

    def look(tasks: Any) -> dict[int, bool]:
        looks.append(tasks)
        return real(tasks)

    server.store.finishes.claimed_still = look  # type: ignore[method-assign]

    def work(pause: float) -> None:
        this_task()
        time.sleep(pause)
        this_task()
        time.sleep(1.2)

    run(server, lambda: work(0.0))
    assert looks == []
    run(server, lambda: work(1.1))
    assert len(looks) == 1, "it asked when it had run for a second"


def test_a_process_that_a_task_forked_tells_nothing_and_harms_nobody(queue: Queue, server: TaskServer) -> None:
    codes: list[int | None] = []

    def tell() -> None:
        this_task()
        time.sleep(1.1)
        progress(50, 100, "from a child")

    def work() -> None:
        progress(1, 100)
        children = [multiprocessing.get_context("fork").Process(target=tell) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join(WAIT_SECONDS)
            codes.append(child.exitcode)
        wait_until(lambda: read_progress(in_row(queue)) == Progress(1, 100))
        progress(100, 100)
        assert current_task() is not None

    _acts["then"] = lambda: progress(7)
    run(server, work)
    server.add_task(act, ["then"])
    server.run()
    assert codes == [0, 0]
    assert queue.rows("status, attempts, progress") == [
        (Status.DONE, 1, '{"done":100,"total":100}'),
        (Status.DONE, 1, '{"done":7}'),
    ]


# ---- what may be told


def test_a_wrong_value_fails_the_attempt_and_says_which_and_an_odd_text_is_stored(
    queue: Queue, server: TaskServer
) -> None:
    assert str(run(server, lambda: progress(-1)).error).startswith("SettingError: progress: done is -1; allowed: a")
    odd = "\x00\x1b[2J\ud800 Grüße 🎉\n" + "ü" * 300
    assert run(server, lambda: progress(1, 2, odd)).progress == Progress(1, 2, odd.replace("\ud800", "?")[:200])


# ---- read


def test_a_forged_progress_counts_as_none_and_breaks_no_command(sqlite_queue: Queue) -> None:
    forged = ["no JSON", '{"done": 1e400}', "[" * 20_000, "", b"{}"]
    for told in forged:
        running_row(sqlite_queue, told)
    with TaskServer(sqlite_queue.dsn) as server:
        states = [server.get(number + 1) for number in range(len(forged))]
        assert [state and state.progress for state in states] == [None] * len(forged)
        assert [task.progress for task in server.store.views.running(10)] == [None] * len(forged)
    running_row(sqlite_queue, '{"done": 1, "text": "\\ud800"}')
    shows = [("show", number + 1) for number in range(len(forged) + 1)]
    for command in (("status",), *shows):
        for as_json in ((), ("--json",)):
            ended = sqlite_queue.here(*command, *as_json)
            assert (ended.returncode, ended.stderr.replace(NO_RUN_YET, "")) == (0, ""), command


def running_row(queue: Queue, told: object, age_seconds: int = 0) -> None:
    """A row as that of a task that runs, and told this."""
    queue.sql(
        "INSERT INTO jobs_queue (task, status, attempts, claim, due_at, started_at, progress) "
        f"VALUES ('tasks.resize', 1, 1, 5, {queue.now}, {queue.ago(age_seconds)}, ?)",
        told,
    )


def test_status_and_show_tell_how_far_a_running_task_has_come(queue: Queue) -> None:
    def client(*args: object) -> str:
        return queue.here(*args).stdout

    running_row(queue, '{"done": 3, "total": 8, "text": "reading"}', 300)
    queue.add("tasks.resize")
    assert "task 1 tasks.resize has run for 5 min: 3 of 8 (37 %): reading" in client("status")
    (task,) = json.loads(client("status", "--json"))["running"]
    assert 300 <= task.pop("seconds") < 360
    told = {"done": 3, "total": 8, "text": "reading"}
    assert task == {"id": 1, "task": "tasks.resize", "group_id": 0, "attempts": 1, "number": 0, "progress": told}
    assert "  progress     3 of 8 (37 %): reading\n" in client("show", 1)
    running_row(queue, json.dumps({"done": 1, "text": "\x1b[2J\x07\r\n\x9b evil \u202e"}))
    for command in (["status"], ["show", 3]):
        told_of_evil = client(*command)
        assert "evil" in told_of_evil
        assert not {"\x1b", "\x07", "\r", "\x9b"} & set(told_of_evil)
