"""A server that fails under a run: it ends, comes back, refuses, locks, and turns read-only.

Real workers as processes, and real faults of a private server. Each test shows that its fault struck: by the errors in
the worker's log, or by what the server says of its connections. Whatever happens, no task fails because of it and no
attempt counts twice.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from taskserver import DatabaseError, TaskServer
from tests.faults.failing import LOCK_TASK, FailingQueue
from tests.faults.refusals import (
    NO_CONNECTION,
    NO_CONNECTIONS,
    NO_SLOT,
    READ_ONLY,
    READ_ONLY_TRANSACTIONS,
    STAND_IN,
    Refusal,
    made_connections,
    with_each,
)
from tests.support.postgresql import PostgreSQL
from tests.support.processes import assert_one_line, assert_silent, end_of, wait_for, wait_until
from tests.support.servers import MariaDB

Server: TypeAlias = MariaDB | PostgreSQL


@pytest.fixture
def plain_queue(fragile_queue: FailingQueue) -> FailingQueue:
    """The worker has an account of its own with no more rights than it needs, as on a shared host."""
    fragile_queue.make_account()
    return fragile_queue


# ---- a database that ends, and comes back or not


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_run_goes_on_where_it_was_when_its_database_comes_back(
    fragile_queue: FailingQueue, fragile: Server, end: str
) -> None:
    queue, names = fragile_queue, [f"n{number}" for number in range(40)]
    for name in names:
        queue.add("tasks.note", f'["{name}", 0.01]')
    worker = queue.start("--mode", "mark", "--batch", 30)
    wait_until(lambda: len(queue.notes()) >= 10)
    getattr(fragile, end)()
    wait_until(lambda: queue.tries(queue.refused))
    assert len(queue.notes()) < len(names)
    fragile.start()
    queue.assert_all_once(worker, names)
    assert queue.rows("status, attempts") == [(2, 1)] * len(names)


@pytest.mark.long
@pytest.mark.parametrize("at", ["the last task", "a task in the midst"])
def test_a_round_goes_on_where_it_was_when_its_database_comes_back(
    fragile_queue: FailingQueue, fragile: Server, at: str
) -> None:
    """Killed between the start and the finish that its tasks share: in the midst, the heartbeat tries to write, too."""
    queue, names = fragile_queue, [f"n{number}" for number in range(10)]
    waits = names[-1 if at == "the last task" else 5]
    for name in names:
        queue.add("tasks.share", f'["{name}", {str(name == waits).lower()}]')
    worker = queue.start("--mode", "mark")
    wait_until(lambda: waits in queue.notes())
    fragile.kill()
    if at == "a task in the midst":
        wait_until(lambda: "the heartbeat cannot write" in queue.log())
    queue.go()
    wait_until(lambda: queue.tries(queue.refused))
    fragile.start()
    queue.assert_all_once(worker, names)
    assert queue.rows("status, attempts") == [(2, 1)] * len(names)


@pytest.mark.long
def test_a_task_is_finished_though_its_lease_ended_while_the_database_was_away(
    fragile_queue: FailingQueue, fragile: Server
) -> None:
    queue = fragile_queue
    queue.set(LEASE=1)
    worker = queue.start_first()
    fragile.kill()
    wait_until(lambda: "the heartbeat cannot write" in queue.log())
    queue.go()
    wait_until(lambda: queue.tries(queue.refused))
    away_at = time.monotonic()
    wait_until(lambda: time.monotonic() - away_at > 1.0)
    fragile.start()
    queue.assert_all_once(worker)


@pytest.mark.parametrize("failing_kind", ["postgresql"], indirect=True)
def test_a_run_goes_on_where_it_was_when_the_server_s_process_of_its_connection_is_killed(
    fragile_queue: FailingQueue, fragile: Server
) -> None:
    """As by a host that is out of memory: the server ends all others, and recovers."""
    worker = fragile_queue.start_first("--mode", "mark")
    (backend,) = fragile_queue.connections()
    os.kill(backend, signal.SIGKILL)
    fragile_queue.go()
    fragile_queue.assert_all_once(worker)
    assert fragile_queue.tries(*fragile_queue.lost)


def test_a_database_that_stays_away_ends_the_run_with_a_line_and_a_later_one_goes_on(
    fragile_queue: FailingQueue, fragile: Server
) -> None:
    queue = fragile_queue
    queue.set(LEASE=2, DB_PATIENCE=1, BACKOFF="fixed:60", MODE="mark")
    worker = queue.start_first()
    fragile.kill()
    queue.go()
    gone_at = time.monotonic()
    assert_one_line(wait_for(worker), 1, queue.refused, queue.database)
    assert time.monotonic() - gone_at >= 1.0, "it did not wait for as long as its patience"
    assert queue.tries(*queue.lost, queue.refused) >= 3
    fragile.start()
    columns = "status, attempts, started_at IS NOT NULL, claim IS NOT NULL, error_text"
    assert queue.rows(columns) == [(1, 1, 1, 1, None), (1, 0, 0, 1, None), (1, 0, 0, 1, None)]
    wait_until(lambda: queue.sql(f"SELECT MAX(due_at) <= {queue.now} FROM jobs_queue") == [(1,)])
    ended = queue.worker()
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (0, "", 1)
    assert f"process {worker.pid} ended while it ran task 1 " in ended.stderr
    assert queue.notes() == ["first", "second", "third"]
    lost, *others = queue.rows(columns)
    assert lost[:4] == (3, 1, 1, 0)
    assert lost[4].startswith("lost: ")
    assert others == [(2, 1, 1, 0, None)] * 2
    queue.end_backoffs()
    assert_silent(queue.worker())
    assert queue.notes() == ["first", "second", "third", "first"]
    assert queue.rows(columns)[0] == (2, 2, 1, 0, None)


def test_a_database_that_is_away_from_the_beginning_is_told_at_once(
    fragile_queue: FailingQueue, fragile: Server
) -> None:
    fragile.stop()
    assert_one_line(fragile_queue.worker(), 1, fragile_queue.refused, "check host and port")
    assert_one_line(fragile_queue.client("add", "tasks.note"), 1, fragile_queue.refused)
    assert fragile_queue.tries() == 0


def test_a_worker_asked_to_end_while_its_database_is_away_still_writes_what_it_did(
    fragile_queue: FailingQueue, fragile: Server
) -> None:
    queue = fragile_queue
    worker = queue.start_first("--mode", "mark")
    fragile.kill()
    queue.go()
    wait_until(lambda: queue.tries(queue.refused))
    worker.send_signal(signal.SIGTERM)
    before = queue.tries()
    wait_until(lambda: queue.tries() > before)
    fragile.start()
    assert end_of(worker) == (0, "", "")
    done = len(queue.notes())  # the start of the second one was on its way already
    assert queue.notes() == ["first", "second"][:done]
    assert queue.statuses() == [2] * done + [0] * (3 - done)
    assert queue.counts() | {"done": done, "lost": 0, "released": 3 - done} == queue.counts()


# ---- a database that has no connection to give, or only reads for a while


@pytest.mark.long
@with_each(NO_CONNECTION, READ_ONLY, NO_SLOT, STAND_IN)
def test_a_worker_that_is_refused_at_its_beginning_waits(plain_queue: FailingQueue, refusal: Refusal) -> None:
    names = plain_queue.add_named("first", "second")
    with refusal.refusing(plain_queue):
        worker = plain_queue.start()
        wait_until(lambda: plain_queue.tries(refusal.word) >= 2)
        assert plain_queue.notes() == []
    plain_queue.assert_all_once(worker, names)


@with_each(*NO_CONNECTIONS)
def test_a_worker_that_is_refused_in_the_midst_of_a_run_goes_on_where_it_was(
    plain_queue: FailingQueue, refusal: Refusal
) -> None:
    worker = plain_queue.start_first("--mode", "mark")
    assert plain_queue.kill_connections() == 1
    with refusal.refusing(plain_queue):
        plain_queue.go()
        wait_until(lambda: plain_queue.tries(refusal.word) >= 2)
        assert plain_queue.notes() == ["first"]
    plain_queue.assert_all_once(worker)


@with_each(READ_ONLY, READ_ONLY_TRANSACTIONS, STAND_IN)
def test_a_run_whose_database_turns_read_only_goes_on_where_it_was(plain_queue: FailingQueue, refusal: Refusal) -> None:
    worker = plain_queue.start_first("--mode", "mark")
    with refusal.refusing(plain_queue):
        plain_queue.go()
        wait_until(lambda: plain_queue.tries(refusal.word) >= 2)
        assert plain_queue.notes() == ["first"]
    plain_queue.assert_all_once(worker)


# ---- locks


def test_a_finish_whose_row_is_locked_for_long_is_written_once_the_lock_is_gone(shared_queue: FailingQueue) -> None:
    worker = shared_queue.start_first("--mode", "mark")
    waits: set[Any] = set()

    def has_waited_anew() -> bool:
        waits.update(shared_queue.waiting_since())
        return len(waits) >= 2

    with shared_queue.locking(LOCK_TASK, 1):
        shared_queue.go()
        # A wait that begins anew was ended by the server: nobody else has given anything up.
        wait_until(has_waited_anew)
        assert shared_queue.sql("SELECT status FROM jobs_queue WHERE id = 1") == [(1,)]
    shared_queue.assert_all_once(worker)


def test_a_finish_that_falls_victim_to_a_deadlock_is_written_again(shared_queue: FailingQueue) -> None:
    """A worker's transaction has finished one task and waits to start the next, while another's goes the other way."""
    queue = shared_queue
    queue.make_worker_a_victim()
    worker = queue.start_first("--mode", "mark")
    first, second = queue.sql("SELECT id FROM jobs_queue WHERE status = 1 ORDER BY id LIMIT 2")
    with queue.locking_as_survivor() as cursor:
        cursor.execute(LOCK_TASK, second)
        queue.go()
        wait_until(queue.waiting_since)
        # The worker holds this row and waits for the other: we get it only if the worker's transaction is undone.
        cursor.execute(LOCK_TASK, first)
        assert list(cursor.fetchall()) == [first]
        states = "SELECT status, started_at IS NOT NULL FROM jobs_queue WHERE id IN (%s, %s) ORDER BY id"
        cursor.execute(states, (*first, *second))
        # On PostgreSQL the worker, which writes its finish alone at once, may be quicker than the one who waited.
        assert list(cursor.fetchall()) in ([(1, 1), (1, 0)], [(2, 1), (1, 0)])
    queue.sql("DELETE FROM jobs_queue WHERE status = 4")
    queue.assert_all_once(worker)
    assert queue.had_deadlock()


# ---- producers do not wait


@pytest.fixture
def connects(fragile_queue: FailingQueue, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each connection that this process tries to make by taskserver's own code."""
    return made_connections(fragile_queue, monkeypatch)


@pytest.mark.parametrize(
    "add",
    [lambda server: server.add_task("tasks.note", ["new"]), lambda server: server.add_tasks([{"task": "tasks.note"}])],
    ids=["one", "many"],
)
@pytest.mark.parametrize("is_connected", [False, True], ids=["new", "connected"])
def test_a_producer_is_told_at_once_that_the_database_is_away(
    fragile_queue: FailingQueue,
    fragile: Server,
    add: Callable[[TaskServer], object],
    is_connected: bool,
    connects: list[int],
) -> None:
    with TaskServer(fragile_queue.dsn) as server:
        if is_connected:
            add(server)
        fragile.stop()
        connects.clear()
        for _ in range(2):
            with pytest.raises(DatabaseError) as raised:
                add(server)
            assert "\n" not in str(raised.value)
        # Where it was connected, the first try found that out.
        assert len(connects) == (1 if is_connected else 2)
        fragile.start()
        add(server)
        assert len(fragile_queue.statuses()) == is_connected + 1
