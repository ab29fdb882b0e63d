"""Leases and claims: workers that are killed, frozen or slow, as processes; rows as SQL sees them.

Where a test says that a lease ended, SQL has put its end into the past, which is all that time would do: so no test
depends on how fast this machine is. Few tests wait for a real lease.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent import futures
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple

import pytest

from taskserver import DatabaseError, RunResult, Stop, TaskServer
from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.stop import TaskInterrupted
from taskserver.model.attempt import Start
from taskserver.model.task import ClaimedTask
from taskserver.stores.queue.batches import Batches
from taskserver.worker import heartbeat, task_context
from taskserver.worker.claimed import Claimed
from taskserver.worker.heartbeat import Heartbeat
from taskserver.worker.task_context import CallPlan
from tests.support.locks import are_locks_awaited
from tests.support.processes import WAIT_SECONDS, assert_silent, end_of, freeze, kill, thaw, wait_until
from tests.support.queues import Queue
from tests.support.rows import Rows
from tests.support.servers import MySQLServer

OTHER_GROUP = "4294967294"
"""Without a task: whoever works for it takes back what is due, and runs nothing."""
LOST = "lost: its worker vanished, hung, or could not record its end, and its lease ended"
SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "10", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends, is renewed or comes back while a test looks, unless it says so."""
ONCE = {"TASKSERVER_MAX_ATTEMPTS": "1"}

TASKS = """
import os
import signal
import threading
import time

WORKER = os.environ.get("WORKER", "")  # the name that a test gave it
server, may_end = None, threading.Event()  # where a test runs tasks itself


def hold(name="task"):
    note(f"{name} started by {WORKER}")
    while not (HERE / f"go-{WORKER}").exists():
        time.sleep(0.01)
    note(f"{name} finished by {WORKER}")


def hold_and_fail():
    hold()
    raise ValueError("too late")


def kill_worker():
    note("killing")
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def use_connection():
    with server.store.database.session().in_use:
        may_end.wait(30)


def nothing():
    pass


"""


def start_holding(queue: Queue, *args: object, name: str = "first", **env: str) -> subprocess.Popen[str]:
    """A worker of that name that has begun to run `hold`, and goes on once `let_go` is called."""
    return queue.start_task(*args, WORKER=name, **env)


def let_go(queue: Queue, name: str = "first") -> None:
    queue.go(f"go-{name}")


def take_back(queue: Queue) -> None:
    """The lease of the running task ends, another worker takes it back, and its backoff ends too."""
    queue.end_leases()
    assert_silent(queue.worker(0, OTHER_GROUP))
    queue.end_backoffs()
    assert queue.statuses() == [3]


def assert_too_late(queue: Queue, process: subprocess.Popen[str]) -> None:
    """The first worker, frozen so far, goes on, says that its lease was lost, and changes nothing of what is there."""
    before = queue.rows(), queue.rows(table="jobs_queue_done")
    let_go(queue)
    thaw(process)
    code, output, errors = end_of(process)
    assert (code, output, len(errors.splitlines())) == (0, "", 1), errors
    assert "task 1 " in errors
    assert "lease was lost" in errors
    assert (queue.rows(), queue.rows(table="jobs_queue_done")) == before


def kill_elsewhere(queue: Queue, process: subprocess.Popen[str]) -> None:
    """Kill a worker of which the next run cannot know that it is gone, as of one on another host."""
    kill(process)
    queue.move_workers()


# ---- a worker that was killed


def test_the_tasks_of_a_killed_worker_come_back_once_its_lease_has_ended_and_not_before(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    queue.add("tasks.hold", None, 0, -1)
    for number, priority in enumerate([5, 0, 5, 0]):
        queue.add("tasks.note", f'["{number}"]', 0, priority)
    queue.sql("UPDATE jobs_queue SET attempts = 3 WHERE id = 3")
    kill_elsewhere(queue, start_holding(queue))
    claimed = queue.rows()
    assert queue.statuses() == [1] * 5
    queue.add("tasks.note", '["later"]', 0, 5)
    assert_silent(queue.worker())
    assert queue.notes()[1:] == ["later"]
    assert queue.rows() == claimed
    queue.add("tasks.note", '["latest"]', 0, 0)
    queue.end_leases()
    assert_silent(queue.worker("--mode", "mark"))
    assert queue.notes()[2:] == ["1", "3", "latest", "0", "2"]
    assert queue.rows("status, attempts, claim") == [(3, 1, None), *[(2, 1, None), (2, 4, None)], *[(2, 1, None)] * 3]


def test_the_task_that_a_killed_worker_was_running_has_used_its_attempt_and_waits(queue: Queue) -> None:
    queue.add("tasks.hold")
    kill_elsewhere(queue, start_holding(queue))
    queue.end_leases()
    assert_silent(queue.worker())
    wait = queue.seconds_between("updated_at", "due_at")
    ((status, attempts, most, claim, error_text, seconds),) = queue.rows(
        f"status, attempts, max_attempts, claim, error_text, {wait}"
    )
    assert (status, attempts, most, claim, error_text) == (3, 1, 10, None, LOST)
    assert 500 <= float(seconds) <= 550.01
    queue.end_backoffs()
    let_go(queue, "second")
    assert_silent(queue.worker(WORKER="second"))
    assert queue.notes() == ["task started by first", "task started by second", "task finished by second"]
    assert queue.rows() == []


def test_a_lease_is_counted_by_the_database_and_its_tasks_are_not_taken_before_its_end(queue: Queue) -> None:
    for number in range(3):
        queue.add("tasks.note", f'["{number}"]')
    with TaskServer(queue.dsn, lease=1) as vanished:
        assert len(vanished.store.claims.claim(3, ()).tasks) == 3
    ((end, is_a_second),) = {*queue.rows(f"due_at, ABS({queue.seconds_between('updated_at', 'due_at')} - 1) < 0.2")}
    assert is_a_second
    wait_until(lambda: queue.run_here(mode="mark").done)
    assert queue.notes() == ["0", "1", "2"]
    assert all(started_at > end for (started_at,) in queue.rows("started_at"))


def test_a_task_that_kills_its_worker_each_time_ends_fatal_and_lets_the_others_run(queue: Queue) -> None:
    settings = {"TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "fixed:0"}
    queue.add("tasks.kill_worker")
    queue.add("tasks.note")
    codes = []
    while 1 in (statuses := queue.statuses()) or 0 in statuses or 3 in statuses:
        codes.append(queue.worker(**settings).returncode)
        queue.move_workers()
        queue.end_leases()
        assert len(codes) < 12
    assert queue.notes().count("killing") == 3
    assert queue.notes().count("noted") == 1
    assert codes.count(0) == len(codes) - 3
    assert queue.rows("task, status, attempts, error_text") == [("tasks.kill_worker", 4, 3, LOST)]


def test_a_module_that_kills_the_process_when_imported_uses_attempts_and_does_not_loop(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    settings = {
        "TASKSERVER_MAX_ATTEMPTS": "2",
        "TASKSERVER_BACKOFF": "fixed:0",
        "TASKSERVER_MODULES": "tasks,deadly",
    }
    queue.deployment.write_tasks("import os, tasks\n\ntasks.note('imported')\nos._exit(9)\n", "deadly.py")
    queue.add("deadly.task")
    queue.add("tasks.note")
    for expected in ([1, 1], [1]):
        assert queue.worker(**settings).returncode == 9
        queue.move_workers()
        assert queue.statuses()[: len(expected)] == expected
        queue.end_leases()
    for _ in range(2):
        assert queue.worker(**settings).returncode == 0
        queue.end_leases()
    assert queue.notes().count("imported") == 2
    assert queue.notes().count("noted") == 1
    assert queue.rows("task, status, attempts, error_text") == [("deadly.task", 4, 2, LOST)]


def test_a_task_of_one_attempt_whose_worker_was_killed_at_the_import_is_lost_until_its_retry(
    sqlite_queue: Queue,
) -> None:
    """Its function, which says that it has one attempt, was not known yet."""
    sqlite_queue.define(
        "\nimport os, signal\nfrom taskserver import task\n\n@task(max_attempts=1)\ndef once():\n    note('once')\n\n"
        "if not (HERE / 'killed').exists():\n    (HERE / 'killed').touch()\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    sqlite_queue.add("tasks.once")
    assert sqlite_queue.worker().returncode == -signal.SIGKILL
    sqlite_queue.move_workers()
    for _ in range(2):
        sqlite_queue.end_leases()
        sqlite_queue.end_backoffs()
        told = sqlite_queue.worker().stderr
    assert told == f"task 1 tasks.once is fatal: {LOST}\n"
    words = "BadTask: it was started once, as often as it may: client.py retry 1 runs it again"
    assert sqlite_queue.rows("status, attempts, error_text") == [(4, 1, f"{LOST}\n{words}")]
    assert sqlite_queue.client("retry", "1").returncode == 0
    assert_silent(sqlite_queue.worker())
    assert (sqlite_queue.notes(), sqlite_queue.rows()) == (["once"], [])


def test_a_half_uploaded_module_is_tried_again_after_its_backoff_and_runs_once_mended(queue: Queue) -> None:
    queue.define("def half(:\n")
    queue.add("tasks.note")
    queue.add("tasks.note")
    assert queue.run_here().failed == 2
    wait = queue.seconds_between("updated_at", "due_at")
    for status, attempts, claim, error_text, seconds in queue.rows(f"status, attempts, claim, error_text, {wait}"):
        assert (status, attempts, claim) == (3, 1, None)
        assert "SyntaxError" in error_text.partition("\n")[0]
        assert 500 <= float(seconds) <= 550.01
    queue.define("")
    queue.run_here()
    assert queue.notes() == [], "before its backoff ended"
    queue.end_backoffs()
    queue.run_here(mode="mark")
    assert queue.rows("status, attempts, error_text") == [(2, 2, None)] * 2
    assert queue.notes() == ["noted"] * 2


# ---- a worker that is slow


def test_a_task_that_runs_for_several_leases_is_not_taken_over(queue: Queue) -> None:
    lease = 2
    queue.add("tasks.hold")
    process = start_holding(queue, TASKSERVER_LEASE=str(lease))
    ends: set[object] = set()
    looks = 0
    passed = queue.seconds_between("started_at", queue.now)
    with TaskServer(queue.dsn, folder=queue.folder, backoff="fixed:0") as other:
        while float(queue.rows(passed)[0][0]) < 1.5 * lease:
            result = other.run()
            assert result.taken == 0
            ends.add(queue.rows("due_at")[0][0])
            looks += 1
            time.sleep(0.02)
    let_go(queue)
    assert end_of(process) == (0, "", "")
    assert queue.notes() == ["task started by first", "task finished by first"]
    assert queue.rows() == []
    assert looks > 10
    assert len(ends) >= 4, "renewed each third of a lease"


def test_tasks_that_wait_under_a_long_one_are_given_back_after_a_third_of_a_lease(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    lease = 3
    queue.add("tasks.hold")
    for number in range(3):
        queue.add("tasks.note", f'["{number}"]')
    queue.sql("UPDATE jobs_queue SET attempts = 2 WHERE id = 3")
    process = start_holding(queue, TASKSERVER_LEASE=str(lease))
    assert queue.statuses() == [1] * 4
    wait_until(lambda: queue.statuses() == [1, 0, 0, 0])
    assert queue.rows("attempts, claim, due_at, started_at")[1:] == [(n, None, None, None) for n in (0, 2, 0)]
    ((passed,),) = queue.sql(f"SELECT {queue.seconds_between('started_at', queue.now)} FROM jobs_queue WHERE id = 1")
    assert float(passed) >= lease / 3 - 0.05
    assert_silent(queue.worker())
    assert queue.notes()[1:] == ["0", "1", "2"]
    assert process.poll() is None
    let_go(queue)
    assert end_of(process) == (0, "", "")
    assert queue.rows() == []
    # The record is that of the run that ended last.
    assert queue.sql("SELECT taken, done, lost, released FROM jobs_queue_workers") == [(1, 1, 0, 3)]


class Clock:
    """In the place of the alarm's clock: its instants are the test's, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._reads = 0
        for module in (heartbeat, task_context):
            monkeypatch.setattr(module, "now", self.read)

    def read(self) -> float:
        self._reads += 1
        return self.now

    def turn_to(self, instant: float) -> None:
        """Returns once the heartbeat, which reads it some times a look, has looked what is due by then."""
        self.now = instant
        before = self._reads
        wait_until(lambda: self._reads > before + 30)


@pytest.mark.parametrize(
    ("begins_at", "given_back_at"), [(0.0, 1 / 3), (0.3, 1 / 2)], ids=["under one task", "of a claim"]
)
def test_unstarted_tasks_go_back_after_a_third_of_a_lease_under_one_task(
    sqlite_queue: Queue, monkeypatch: pytest.MonkeyPatch, begins_at: float, given_back_at: float
) -> None:
    """Instants are in parts of a lease, from the claim on."""
    lease_seconds = 0.06  # by which the heartbeat looks often; what is due it learns from this clock alone
    clock = Clock(monkeypatch)
    claimed_at = clock.now
    for _ in range(3):
        sqlite_queue.add("tasks.hold")
    with (
        TaskServer(sqlite_queue.dsn) as server,
        Heartbeat(server.store, Alarm(Stop(), 1), lease_seconds, 0, False) as beat,
    ):
        server.store.lease_seconds = lease_seconds  # type: ignore[assignment]
        batch = beat.guard(server.store.claims.claim(3, ()).tasks, claimed_at)
        task = batch.take()
        assert task is not None
        assert server.store.finishes.advance([], Start(task, None)) == ([], True)
        clock.now += begins_at * lease_seconds
        beat.begin(CallPlan([task], 0, 10))
        beat.start()
        clock.turn_to(claimed_at + (given_back_at - 0.01) * lease_seconds)
        assert sqlite_queue.statuses() == [1, 1, 1]
        clock.turn_to(claimed_at + (given_back_at + 0.01) * lease_seconds)
        assert sqlite_queue.statuses() == [1, 0, 0]


def test_between_tasks_a_worker_gives_back_what_it_has_held_for_half_a_lease(queue: Queue, whole_claims: None) -> None:
    queue.define("\ndef tick():\n    note('tick')\n    time.sleep(0.25)\n")
    for _ in range(6):
        queue.add("tasks.tick")
    result = queue.run_here(mode="mark", lease=2)
    assert (result.taken, result.done, result.lost, result.released > 0) == (6, 6, 0, True)
    assert queue.notes() == ["tick"] * 6
    assert queue.rows("status, attempts") == [(2, 1)] * 6


# ---- a worker that was frozen


@pytest.mark.parametrize("task", ["hold", "hold_and_fail"])
def test_a_worker_that_was_frozen_changes_nothing_in_a_task_that_another_runs(queue: Queue, task: str) -> None:
    queue.add(f"tasks.{task}")
    first = start_holding(queue)
    freeze(first)
    take_back(queue)
    second = start_holding(queue, name="second")
    assert queue.rows("status, attempts, started_at IS NOT NULL") == [(1, 2, 1)]
    assert_too_late(queue, first)
    let_go(queue, "second")
    assert end_of(second) == (0, "", "")
    assert queue.rows("status, attempts") == ([] if task == "hold" else [(3, 2)])


def test_a_worker_whose_lease_ended_and_was_not_taken_may_still_finish(queue: Queue) -> None:
    queue.add("tasks.hold")
    process = start_holding(queue)
    freeze(process)
    queue.end_leases()
    let_go(queue)
    thaw(process)
    assert end_of(process) == (0, "", "")
    assert queue.rows() == []


@pytest.mark.long
def test_a_worker_that_is_frozen_for_longer_than_a_real_lease_loses_its_task(queue: Queue) -> None:
    queue.add("tasks.hold")
    first = start_holding(queue, TASKSERVER_LEASE="3")
    freeze(first)
    ((end,),) = queue.rows("due_at")
    second = queue.start(WORKER="second")
    while end_of(second) == (0, "", "") and queue.statuses() == [1]:
        second = queue.start(WORKER="second")
    ((status, updated_at),) = queue.rows("status, updated_at")
    assert status == 3
    assert updated_at >= end
    assert_too_late(queue, first)


@contextmanager
def transaction(queue: Queue) -> Iterator[Callable[[str], object]]:
    """Another program's transaction that holds the queue's rows until it commits; runs SQL in it."""
    with closing(Rows(queue.dsn)) as other:
        other.execute(other.begin)
        if not queue.is_sqlite:
            other.execute("SELECT * FROM jobs_queue FOR UPDATE")
        yield other.execute
        other.execute("COMMIT")


def test_a_worker_that_was_frozen_before_a_start_does_not_start_what_another_took_over(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    queue.add("tasks.hold")
    queue.add("tasks.note", '["started all the same"]')
    process = start_holding(queue)
    with transaction(queue) as execute:
        let_go(queue)
        wait_until(lambda: "task finished by first" in queue.notes())
        if not queue.is_sqlite:  # its start waits for our lock
            while not are_locks_awaited(queue):
                assert process.poll() is None
        freeze(process)
        execute(f"UPDATE jobs_queue SET claim = 7, attempts = 1, started_at = {queue.now} WHERE id = 2")
    before = queue.rows()
    thaw(process)
    assert end_of(process) == (0, "", "")  # within the lease, its producer may have changed it
    assert "started all the same" not in queue.notes()
    assert queue.rows() == [row for row in before if row[0] == 2]


# ---- at most once, and a completion that comes late


def test_a_task_of_one_attempt_whose_worker_was_killed_never_starts_again(queue: Queue) -> None:
    queue.add("tasks.hold")
    kill_elsewhere(queue, start_holding(queue, **ONCE))
    queue.end_leases()
    ended = queue.worker(**ONCE)
    assert (ended.returncode, ended.stderr) == (0, f"task 1 tasks.hold is fatal: {LOST}\n")
    before = queue.rows()
    for _ in range(2):
        assert_silent(queue.worker())
    assert queue.rows() == before
    assert queue.notes() == ["task started by first"]


def give_up(queue: Queue) -> None:
    """Its lease ends, and another worker takes it for lost."""
    queue.end_leases()
    assert queue.worker(0, OTHER_GROUP, **ONCE).returncode == 0


def frozen_and_given_up(queue: Queue, *args: object, name: str = "first") -> subprocess.Popen[str]:
    """A worker that stands still in the midst of a task that may start once, and that is taken for lost."""
    process = start_holding(queue, *args, name=name, **ONCE)
    freeze(process)
    give_up(queue)
    assert queue.rows("status, error_text") == [(4, LOST)]
    return process


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_the_completion_of_a_worker_that_was_only_frozen_is_accepted(queue: Queue, mode: str) -> None:
    queue.add("tasks.hold")
    process = frozen_and_given_up(queue, "--mode", mode)
    let_go(queue)
    thaw(process)
    assert end_of(process) == (0, "", "")
    columns = "id, status, attempts, claim, due_at, error_text, started_at <= finished_at"
    places = {"move": "jobs_queue_done", "mark": "jobs_queue"}
    for table in ("jobs_queue", "jobs_queue_done"):
        completed = [(1, 2, 1, None, None, None, 1)] if places.get(mode) == table else []
        assert queue.rows(columns, table) == completed
    assert queue.sql("SELECT done, fatal, lost FROM jobs_queue_workers WHERE group_ids = 'all'") == [(1, 0, 0)]


BY_A_PERSON = {
    "retried": "UPDATE jobs_queue SET status = 0 WHERE group_id = {group}",
    "retried, all attempts anew": "UPDATE jobs_queue SET status = 0, attempts = 0, error_text = NULL, "
    "max_attempts = NULL, claim = NULL, started_at = NULL, finished_at = NULL WHERE group_id = {group}",
    "deleted": "DELETE FROM jobs_queue WHERE group_id = {group}",
    "cancelled with a reason": "UPDATE jobs_queue SET error_text = 'cancelled by hand' WHERE group_id = {group}",
    "cancelled by its claim": "UPDATE jobs_queue SET claim = NULL WHERE group_id = {group}",
    "called done": "UPDATE jobs_queue SET status = 2 WHERE group_id = {group}",
}


def test_a_completion_is_not_accepted_once_a_person_has_retried_or_cancelled_the_task(queue: Queue) -> None:
    groups = dict(enumerate(BY_A_PERSON.values(), start=1))
    workers = {}
    for group in groups:
        queue.add("tasks.hold", f'["{group}"]', group)
        workers[group] = queue.start(1, group, WORKER="first", **ONCE)
    wait_until(lambda: len(queue.notes()) == len(groups))
    for process in workers.values():
        freeze(process)
    give_up(queue)
    assert queue.statuses() == [4] * len(groups)
    for group, statement in groups.items():
        queue.sql(statement.format(group=group))
    before = queue.rows()
    let_go(queue)
    for process in workers.values():
        thaw(process)
    for group, process in workers.items():
        code, output, errors = end_of(process)
        assert (code, output) == (0, ""), errors
        assert [line for line in errors.splitlines() if "lease was lost" in line] == errors.splitlines()
        assert len(errors.splitlines()) == 1, (groups[group], errors)
    assert queue.rows() == before


def test_a_second_frozen_worker_s_token_is_not_taken_for_that_of_the_first(queue: Queue) -> None:
    """Lost, retried by a person, and lost again: only the worker of the last claim may still complete it."""
    queue.add("tasks.hold")
    first = frozen_and_given_up(queue)
    queue.sql("UPDATE jobs_queue SET status = 0, attempts = 0")
    second = frozen_and_given_up(queue, name="second")
    assert_too_late(queue, first)
    let_go(queue, "second")
    thaw(second)
    assert end_of(second) == (0, "", "")
    assert queue.rows() == []


# ---- the heartbeat's connection and thread

CONNECTIONS = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"


def renewals(queue: Queue, count: int, look: Callable[[], object]) -> None:
    """Waits until the running task's lease was renewed so often, and calls `look` all the while."""
    ends: set[object] = set()

    def seen() -> bool:
        ends.update(queue.sql("SELECT due_at FROM jobs_queue WHERE status = 1"))
        look()
        return len(ends) > count

    wait_until(seen)


def test_a_worker_has_a_second_connection_only_while_a_task_outlasts_a_third_of_its_lease(mysql_queue: Queue) -> None:
    mysql_queue.add("tasks.hold")
    process = start_holding(mysql_queue, TASKSERVER_LEASE="30")
    assert mysql_queue.sql(CONNECTIONS) == [(1,)]
    let_go(mysql_queue)
    assert end_of(process) == (0, "", "")
    mysql_queue.add("tasks.hold")
    process = start_holding(mysql_queue, name="long", TASKSERVER_LEASE="1")
    renewals(mysql_queue, 3, lambda: None)
    assert mysql_queue.sql(CONNECTIONS) == [(2,)]
    let_go(mysql_queue, "long")
    assert end_of(process) == (0, "", "")


def test_a_heartbeat_that_gets_no_connection_says_so_once_and_gets_one_later(
    mysql_queue: Queue, mysql_server: MySQLServer
) -> None:
    database = mysql_queue.dsn.rpartition("/")[2].partition("?")[0]
    account = f"'{database}'@'%'"
    mysql_queue.sql(f"CREATE USER {account} IDENTIFIED BY 'secret' WITH MAX_USER_CONNECTIONS 2")
    mysql_queue.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO {account}")
    mysql_queue.add("tasks.hold")
    log = mysql_queue.deployment.folder / "worker.log"
    dsn = re.sub("//[^@]*@", f"//{database}:secret@", mysql_queue.dsn)
    page = mysql_server.connect(user=database, password="secret")
    process = start_holding(mysql_queue, TASKSERVER_DSN=dsn, TASKSERVER_LEASE="3", TASKSERVER_LOG="worker.log")
    wait_until(lambda: "the heartbeat has no connection" in log.read_text())
    page.close()
    renewals(mysql_queue, 1, lambda: None)
    let_go(mysql_queue)
    assert end_of(process)[0] == 0
    assert log.read_text().count("the heartbeat has no connection") == 1
    assert mysql_queue.rows() == []
    mysql_queue.sql(f"DROP USER {account}")


class Here(NamedTuple):
    """A TaskServer of this process with a lease of a second, and its module of tasks, which wait until they may end."""

    server: TaskServer
    module: Any

    def add(self, task: str) -> None:
        self.server.add_task(f"tasks.{task}")


@pytest.fixture
def here(queue: Queue) -> Iterator[Here]:
    with TaskServer(queue.dsn, folder=queue.folder, lease=1) as server:
        server.add_task("tasks.nothing")
        assert server.run().done == 1
        module: Any = sys.modules["tasks"]
        module.server = server
        yield Here(server, module)


@contextmanager
def running(here: Here, task: str) -> Iterator[futures.Future[RunResult]]:
    """In the `with`, a thread runs this task, which may end after it at the latest."""
    here.add(task)
    with futures.ThreadPoolExecutor(1) as pool:
        run = pool.submit(here.server.run, 1)
        try:
            yield run
        finally:
            here.module.may_end.set()


@pytest.mark.parametrize("fails", [False, True])
def test_what_one_thread_is_giving_back_is_no_empty_claim_to_the_other(here: Here, fails: bool) -> None:
    """It may have to be put back, and would be forgotten: the run claims again once it is empty."""
    here.add("nothing")
    claims = here.server.store.claims
    claimed = Claimed(claims.claim(1, ()).tasks, time.monotonic(), 60)
    seen: list[bool] = []
    release, other = claims.release, threading.Thread(target=lambda: seen.append(bool(claimed)))

    def meanwhile(tasks: Collection[ClaimedTask]) -> int:
        other.start()
        other.join(0.2)
        assert seen == []
        if fails:
            raise DatabaseError("away")
        return release(tasks)

    claims.release = meanwhile  # type: ignore[method-assign]
    with suppress(DatabaseError):
        claimed.release(here.server.store)
    other.join()
    assert (seen, bool(claimed), claimed.released) == ([fails], fails, int(not fails))


def test_a_started_task_whose_release_was_cut_off_gets_no_turn(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be new again, and another worker's."""
    here.add("nothing")
    store, unstart = here.server.store, Batches.unstart
    claimed = Claimed((), time.monotonic(), 60)
    claimed.put_started(store.claims.claim(1, ()).tasks)

    def cut_off(batches: Batches, tasks: Sequence[ClaimedTask]) -> int:
        unstart(batches, tasks)
        raise DatabaseError("the answer was cut off")

    monkeypatch.setattr(Batches, "unstart", cut_off)
    with pytest.raises(DatabaseError):
        claimed.release(store)
    assert (claimed.take(), claimed.started(), claimed.has_started, bool(claimed)) == (None, [], False, True)


def test_a_lease_is_renewed_for_the_last_time_when_the_task_s_timeout_has_passed(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a task that nothing interrupts: its process ends a lease after its timeout."""
    here.add("nothing")
    store, clock, renewed_at = here.server.store, Clock(monkeypatch), list[float]()
    [task] = store.claims.claim(1, ()).tasks
    store.finishes.advance([], Start(task, None))
    renew = store.finishes.renew

    def note_and_renew(task: ClaimedTask) -> bool:
        renewed_at.append(round(clock.now - 1000, 2))
        return renew(task)

    monkeypatch.setattr(store.finishes, "renew", note_and_renew)
    monkeypatch.setattr(store, "lease_seconds", 0.06)
    with Heartbeat(store, Alarm(Stop(), 1), 0.06, 0.05, False) as beat:
        beat.begin(CallPlan([task], 0.05, 10))
        beat.start()
        for hundredths in range(1, 30):
            clock.turn_to(1000 + hundredths / 100)
    assert renewed_at == [0.02, 0.04, 0.06, 0.08]


def test_a_task_whose_claim_is_gone_is_interrupted_though_it_asks_nothing(
    sqlite_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    sqlite_queue.add("tasks.hold")
    with (
        TaskServer(sqlite_queue.dsn) as server,
        Alarm(Stop(), 1) as alarm,
        Heartbeat(server.store, alarm, 0.06, 0, False) as beat,
    ):
        server.store.lease_seconds = 0.06  # type: ignore[assignment]
        [task] = server.store.claims.claim(1, ()).tasks
        server.store.finishes.advance([], Start(task, None))
        sqlite_queue.sql("UPDATE jobs_queue SET claim = 17")

        def work() -> None:
            clock.now += 0.03  # more than a third of the lease
            time.sleep(WAIT_SECONDS)

        beat.begin(CallPlan([task], 0, 10))
        beat.start()
        with pytest.raises(TaskInterrupted, match="its lease was lost"):
            alarm.call(0, work)


def heartbeats() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "taskserver-heartbeat"]


def test_a_run_returns_once_its_heartbeat_s_last_write_is_over_and_not_before(
    here: Here, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a connection of its own, while the worker's is in use: the run need not wait for it before its very end."""
    writes, may_write = threading.Event(), threading.Event()
    renew = here.server.store.finishes.renew

    def renew_late(task: ClaimedTask) -> bool:
        writes.set()
        assert may_write.wait(WAIT_SECONDS)
        return renew(task)

    monkeypatch.setattr(here.server.store.finishes, "renew", renew_late)
    with running(here, "use_connection") as run:
        try:
            assert writes.wait(WAIT_SECONDS)
            assert queue.sql("SELECT reason FROM jobs_queue_workers") == [(None,)]
            here.module.may_end.set()
            wait_until(lambda: queue.sql("SELECT reason FROM jobs_queue_workers") == [("max_tasks",)])
            assert not futures.wait([run], 0.2).done
        finally:
            may_write.set()
    assert (run.result().done, run.result().lost) == (1, 0)
    assert heartbeats() == []


def test_the_heartbeat_s_thread_ends_with_a_run_that_an_error_ends(here: Here) -> None:
    here.add("nothing")
    seen: list[threading.Thread] = []

    def break_down(result: object) -> None:
        seen.extend(heartbeats())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        here.server.run(on_progress=break_down)
    assert len(seen) == 1
    assert heartbeats() == []


def test_workers_end_with_code_0_while_their_heartbeat_is_at_work(queue: Queue) -> None:
    queue.define("\ndef nap(seconds):\n    time.sleep(seconds)\n")
    for _ in range(2):
        for group in range(6):
            # Just before, at and after the moment at which the heartbeat wakes, a third of a lease.
            queue.add("tasks.nap", f"[{0.32 + 0.02 * (group % 3)}]", group)
        workers = [queue.start(0, group, TASKSERVER_LEASE="1") for group in range(6)]
        assert [end_of(process) for process in workers] == [(0, "", "")] * 6
    assert queue.rows() == []
