"""The heartbeat: when it renews, gives back, interrupts and writes, its connection, and the end of its thread."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from taskserver import DatabaseError, Stop, TaskServer
from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.stop import TaskInterrupted
from taskserver.model.attempt import Start
from taskserver.model.task import ClaimedTask
from taskserver.worker import heartbeat, task_context
from taskserver.worker.claimed import MAX_TURN_SECONDS, Claimed
from taskserver.worker.heartbeat import Heartbeat
from taskserver.worker.task_context import CallPlan
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.queues import Queue
from tests.support.servers import MySQLServer

LEASE = 0.06
"""The heartbeat looks often by it; what is due it learns from the test's clock."""
acts: list[Callable[[], object]] = []
"""What a test does while its tasks run, one for each."""
TASKS = """
from tests.worker.test_heartbeat import acts

def act():
    acts.pop(0)()
"""


class Clock:
    """In place of the alarm's clock: its instants are the test's, in seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._reads = 0
        for module in (heartbeat, task_context):
            monkeypatch.setattr(module, "now", self.read)

    def read(self) -> float:
        self._reads += 1
        return self.now

    def turn_to(self, instant: float) -> None:
        """Returns once the heartbeat, which reads it some times a look, has done what is due by then."""
        self.now = instant
        before = self._reads
        wait_until(lambda: self._reads > before + 30)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def server(queue: Queue) -> Iterator[TaskServer]:
    with TaskServer(queue.dsn, folder=queue.folder) as opened:
        opened.store.lease_seconds = LEASE  # type: ignore[assignment]
        yield opened


def started(server: TaskServer) -> ClaimedTask:
    """A task that was claimed and started."""
    server.add_task("tasks.act")
    [task] = server.store.claims.claim(1, ()).tasks
    assert server.store.finishes.advance([], Start(task, None)) == ([], True)
    return task


@contextmanager
def beating(server: TaskServer, timeout: float = 0.0, alarm: Alarm | None = None) -> Iterator[Heartbeat]:
    with Heartbeat(server.store, alarm or Alarm(Stop(), 1), LEASE, timeout, False) as beat:
        yield beat


# ---- what is due


@pytest.mark.parametrize(("begins_at", "given_back_at"), [(0.0, 1 / 3), (0.3, 1 / 2)], ids=["one call", "the claim"])
def test_unstarted_tasks_go_back_after_a_third_of_a_lease_under_one_call_and_half_a_lease_after_their_claim(
    queue: Queue, server: TaskServer, clock: Clock, begins_at: float, given_back_at: float
) -> None:
    """Instants are in parts of a lease, from the claim on."""
    claimed_at = clock.now
    queue.add_many([(0, 0)] * 3)
    with beating(server) as beat:
        batch = beat.guard(server.store.claims.claim(3, ()).tasks, claimed_at)
        task = batch.take()
        assert task is not None
        assert server.store.finishes.advance([], Start(task, None)) == ([], True)
        clock.now += begins_at * LEASE
        beat.begin(CallPlan([task], 0, 10))
        beat.start()
        clock.turn_to(claimed_at + (given_back_at - 0.01) * LEASE)
        assert queue.statuses() == [1, 1, 1]
        clock.turn_to(claimed_at + (given_back_at + 0.01) * LEASE)
        assert queue.statuses() == [1, 0, 0]


def test_what_a_run_has_held_for_half_a_lease_or_a_second_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    for lease in (1.0, 60.0):
        claimed, until = Claimed((), 1000.0, lease), 1000.0 + min(lease / 2, MAX_TURN_SECONDS)
        for now, is_stale in ((1000.0, False), (until - 0.01, False), (until, True)):
            monkeypatch.setattr(time, "monotonic", partial(float, now))
            assert claimed.is_stale() is is_stale


def test_a_lease_is_renewed_each_third_of_it_until_the_task_s_timeout_has_passed(
    server: TaskServer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a task that nothing interrupts: its process ends a lease after its timeout."""
    task, renewed_at = started(server), list[float]()
    renew = server.store.finishes.renew

    def note_and_renew(task: ClaimedTask) -> bool:
        renewed_at.append(round(clock.now - 1000, 2))
        if len(renewed_at) == 1:
            raise DatabaseError("one error does not end the heartbeat")
        return renew(task)

    monkeypatch.setattr(server.store.finishes, "renew", note_and_renew)
    with beating(server, timeout=0.05) as beat:
        beat.begin(CallPlan([task], 0.05, 10))
        beat.start()
        for hundredths in (1, 2, 3, 4, 5, 6, 8, 9, 10, 20):
            clock.turn_to(1000 + hundredths / 100)
    assert renewed_at == [0.02, 0.02, 0.04, 0.06, 0.08]


def test_a_task_whose_claim_is_gone_is_interrupted_even_if_it_never_asks(
    queue: Queue, server: TaskServer, clock: Clock
) -> None:
    def work() -> None:
        clock.now += 0.03  # more than a third of the lease
        time.sleep(WAIT_SECONDS)

    with Alarm(Stop(), 1) as alarm, beating(server, alarm=alarm) as beat:
        beat.begin(CallPlan([started(server)], 0, 10))
        queue.sql("UPDATE jobs_queue SET claim = 17")
        beat.start()
        with pytest.raises(TaskInterrupted, match="its lease was lost"):
            alarm.call(0, work)


# ---- its connection


def renewals(queue: Queue, count: int) -> None:
    """Waits until the running task's lease was renewed that often."""
    ends: set[object] = set()

    def are_seen() -> bool:
        ends.update(queue.sql("SELECT due_at FROM jobs_queue WHERE status = 1"))
        return len(ends) > count

    wait_until(are_seen)


def test_a_worker_has_a_second_connection_only_while_a_task_outlasts_a_third_of_its_lease(mysql_queue: Queue) -> None:
    queue, seen = mysql_queue, list[object]()
    others = "information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"

    def count() -> None:
        seen.extend(queue.sql(f"SELECT COUNT(*) FROM {others}"))

    def count_late() -> None:
        renewals(queue, 3)
        count()

    acts[:] = [count, count_late]
    for lease in (30, 1):
        queue.add("tasks.act")
        assert queue.run_here(lease=lease).done == 1
    assert seen == [(1,), (2,)]


def test_a_heartbeat_without_a_connection_logs_that_once_and_gets_one_later(
    mysql_queue: Queue, mysql_server: MySQLServer, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    queue, words = mysql_queue, "the heartbeat has no connection"
    database = queue.dsn.rpartition("/")[2].partition("?")[0]
    account = f"'{database}'@'%'"
    queue.sql(f"CREATE USER {account} IDENTIFIED BY 'secret' WITH MAX_USER_CONNECTIONS 2")
    queue.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.* TO {account}")
    request.addfinalizer(lambda: mysql_server.execute(f"DROP USER {account}"))
    page = mysql_server.connect(user=database, password="secret")

    def act() -> None:
        wait_until(lambda: words in caplog.text)
        page.close()
        renewals(queue, 1)

    acts[:] = [act]
    queue.add("tasks.act")
    result = queue.run_here(lease=3, dsn=re.sub("//[^@]*@", f"//{database}:secret@", queue.dsn))
    assert (result.done, caplog.text.count(words), queue.rows()) == (1, 1, [])


# ---- the end of its thread


def test_a_run_that_raises_ends_the_thread_of_its_heartbeat(queue: Queue) -> None:
    """A thread that outlives the interpreter's end takes the process down with it."""
    queue.add("tasks.note")

    def heartbeats() -> int:
        return [thread.name for thread in threading.enumerate()].count("taskserver-heartbeat")

    def break_down(result: object) -> None:
        assert heartbeats() == 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        queue.server.run(on_progress=break_down)
    assert heartbeats() == 0
