"""A server that fails under a run: it ends, comes back, refuses, locks, and turns read-only.

Real workers as processes, and real faults of a private server. Each test shows that its fault struck: by the errors in
the worker's log, or by what the server says of its connections. Whatever happens, no task fails because of it and no
attempt counts twice.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple, TypeAlias

import psycopg
import pymysql
import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.stores.mysql import session
from tests.faults.failing import LOCK_TASK, ON_MYSQL, FailingQueue
from tests.support.postgresql import PostgreSQL
from tests.support.processes import assert_one_line, assert_silent, end_of, wait_for, wait_until
from tests.support.servers import MariaDB

Server: TypeAlias = MariaDB | PostgreSQL


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
    wait_until(lambda: queue.tries(queue.words.refused))
    assert len(queue.notes()) < len(names)
    fragile.start()
    queue.assert_all_once(worker, names)
    assert queue.rows("status, attempts") == [(2, 1)] * len(names)


@pytest.mark.long
def test_a_round_goes_on_where_it_was_when_its_database_comes_back(
    fragile_queue: FailingQueue, fragile: Server
) -> None:
    """Killed between the start and the finish that its tasks share, while the heartbeat tries to write, too."""
    queue, names = fragile_queue, [f"n{number}" for number in range(10)]
    for name in names:
        queue.add("tasks.share", f'["{name}", {str(name == "n5").lower()}]')
    worker = queue.start("--mode", "mark")
    wait_until(lambda: "n5" in queue.notes())
    fragile.kill()
    wait_until(lambda: "the heartbeat cannot write" in queue.log())
    queue.go()
    wait_until(lambda: queue.tries(queue.words.refused))
    fragile.start()
    queue.assert_all_once(worker, names)
    assert queue.rows("status, attempts") == [(2, 1)] * len(names)


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
    assert fragile_queue.tries(*fragile_queue.words.lost)


def test_a_database_that_stays_away_ends_the_run_with_a_line_and_a_later_one_goes_on(
    fragile_queue: FailingQueue, fragile: Server
) -> None:
    queue = fragile_queue
    queue.set(LEASE=2, DB_PATIENCE=1, BACKOFF="fixed:60", MODE="mark")
    worker = queue.start_first()
    fragile.kill()
    queue.go()
    gone_at = time.monotonic()
    assert_one_line(wait_for(worker), 1, queue.words.refused, queue.database)
    assert time.monotonic() - gone_at >= 1.0, "it did not wait for as long as its patience"
    assert queue.tries(*queue.words.lost, queue.words.refused) >= 3
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


def test_a_database_that_is_away_from_the_beginning_is_reported_at_once(
    fragile_queue: FailingQueue, fragile: Server
) -> None:
    fragile.stop()
    assert_one_line(fragile_queue.worker(), 1, fragile_queue.words.refused, "check host and port")
    assert_one_line(fragile_queue.client("add", "tasks.note"), 1, fragile_queue.words.refused)
    assert fragile_queue.tries() == 0


def test_a_worker_asked_to_end_while_its_database_is_away_still_writes_what_it_did(
    fragile_queue: FailingQueue, fragile: Server
) -> None:
    queue = fragile_queue
    worker = queue.start_first("--mode", "mark")
    fragile.kill()
    queue.go()
    wait_until(lambda: queue.tries(queue.words.refused))
    worker.send_signal(signal.SIGTERM)
    before = queue.tries()
    wait_until(lambda: queue.tries() > before)
    fragile.start()
    assert end_of(worker) == (0, "", "")
    done = len(queue.notes())  # the start of the second one was on its way already
    assert queue.notes() == ["first", "second"][:done]
    assert queue.statuses() == [2] * done + [0] * (3 - done)
    assert queue.counts() | {"done": done, "lost": 0, "released": 3 - done} == queue.counts()


# ---- a server that has no connection to give, or only reads, for a while


@contextmanager
def all_connections_taken(queue: FailingQueue) -> Iterator[None]:
    """The server has none left for ordinary accounts."""
    with ExitStack() as held:
        if not queue.is_postgresql:
            held.enter_context(variable_set(queue, "max_connections", 10))

        def are_taken() -> bool:
            try:
                held.enter_context(queue.connect_plainly())
            except (pymysql.OperationalError, psycopg.OperationalError) as error:
                return any(words in str(error) for words in ("1040", "connection slots"))
            return False

        wait_until(are_taken)
        yield


@contextmanager
def connections_of_this_account_taken(queue: FailingQueue) -> Iterator[None]:
    """More than this account was granted."""
    queue.sql(f"ALTER USER '{queue.database}'@'%' WITH MAX_USER_CONNECTIONS 1")
    with queue.connect_plainly():
        yield


@contextmanager
def variable_set(queue: FailingQueue, variable: str, value: int) -> Iterator[None]:
    ((usual,),) = queue.sql(f"SELECT @@GLOBAL.{variable}")
    queue.sql(f"SET GLOBAL {variable} = {value}")
    try:
        yield
    finally:
        queue.sql(f"SET GLOBAL {variable} = {usual}")


def read_only_server(queue: FailingQueue) -> AbstractContextManager[None]:
    """As in a failover."""
    return variable_set(queue, "read_only", 1)


@contextmanager
def read_only_sessions(queue: FailingQueue) -> Iterator[None]:
    """As of a stand-in: all, those that stand, too."""

    def set_to(value: str) -> None:
        queue.sql("SET default_transaction_read_only = off")
        queue.sql(f"ALTER SYSTEM SET default_transaction_read_only = '{value}'")
        queue.sql("SELECT pg_reload_conf()")
        wait_until(lambda: queue.database_server.execute("SHOW default_transaction_read_only")[0][0] == value)

    set_to("on")
    try:
        yield
    finally:
        set_to("off")


class Refusal(NamedTuple):
    """A server that refuses with this word within the `with`."""

    word: str
    refusing: Callable[[Any], AbstractContextManager[None]]


REFUSALS = pytest.mark.parametrize(
    ("failing_kind", "refusal"),
    [
        ("mysql", Refusal("(1040)", all_connections_taken)),
        ("mysql", Refusal("(1226)", connections_of_this_account_taken)),
        ("mysql", Refusal("(1290)", read_only_server)),
        pytest.param("postgresql", Refusal("connection slots", all_connections_taken), marks=pytest.mark.long),
        pytest.param("postgresql", Refusal("(25006)", read_only_sessions), marks=pytest.mark.long),
    ],
    indirect=["failing_kind"],
)


@REFUSALS
def test_a_worker_that_is_refused_in_the_midst_of_a_run_goes_on_where_it_was(
    fragile_queue: FailingQueue, refusal: Refusal
) -> None:
    queue = fragile_queue
    with queue.with_account():
        worker = queue.start_first("--mode", "mark")
        assert queue.kill_connections() == 1
        with refusal.refusing(queue):
            queue.go()
            wait_until(lambda: queue.tries(refusal.word) >= 2)
            assert queue.notes() == ["first"]
        queue.assert_all_once(worker)


@pytest.mark.long
@REFUSALS
def test_a_worker_that_is_refused_at_its_beginning_waits(fragile_queue: FailingQueue, refusal: Refusal) -> None:
    queue = fragile_queue
    with queue.with_account():
        names = queue.add_named("first", "second")
        with refusal.refusing(queue):
            worker = queue.start()
            wait_until(lambda: queue.tries(refusal.word) >= 2)
            assert queue.notes() == []
        queue.assert_all_once(worker, names)


# ---- locks


@ON_MYSQL
def test_a_finish_whose_row_is_locked_for_long_is_written_once_the_lock_is_gone(shared_queue: FailingQueue) -> None:
    worker = shared_queue.start_first("--mode", "mark")
    waits: set[object] = set()

    def has_waited_again() -> bool:
        shared_queue.await_lock_wait()
        waits.update(shared_queue.sql("SELECT trx_wait_started FROM information_schema.innodb_trx"))
        return len(waits - {(None,)}) >= 2

    with shared_queue.locking(LOCK_TASK, 1):
        shared_queue.go()
        # A wait that begins again was ended by the server: nobody else has given anything up.
        wait_until(has_waited_again)
        assert shared_queue.sql("SELECT status FROM jobs_queue WHERE id = 1") == [(1,)]
    shared_queue.assert_all_once(worker)


@ON_MYSQL
def test_a_finish_that_falls_victim_to_a_deadlock_is_written_again(shared_queue: FailingQueue) -> None:
    """A worker's transaction has finished one task and waits to start the next, while another's goes the other way."""
    queue = shared_queue
    # Of two in a deadlock the server ends the one that has changed less.
    weights = ", ".join(f"({task_id}, 'x', 4)" for task_id in range(1001, 1201))
    queue.sql(f"INSERT INTO jobs_queue (id, task, status) VALUES {weights}")
    worker = queue.start_first("--mode", "mark")
    first, second = queue.sql("SELECT id FROM jobs_queue WHERE status = 1 ORDER BY id LIMIT 2")
    with queue.locking("UPDATE jobs_queue SET priority = 1 WHERE id BETWEEN 1001 AND 1200") as cursor:
        cursor.execute(LOCK_TASK, second)
        queue.go()
        queue.await_lock_wait()
        # The worker holds this row and waits for the other: we get it only if the worker's transaction is undone.
        cursor.execute(LOCK_TASK, first)
        assert list(cursor.fetchall()) == [first]
        cursor.execute("SELECT status FROM jobs_queue WHERE id IN (%s, %s)", (*first, *second))
        assert list(cursor.fetchall()) == [(1,), (1,)]
    queue.sql("DELETE FROM jobs_queue WHERE status = 4")
    queue.assert_all_once(worker)
    assert "LATEST DETECTED DEADLOCK" in queue.sql("SHOW ENGINE INNODB STATUS")[0][2]


# ---- producers do not wait


@ON_MYSQL
@pytest.mark.parametrize("is_connected", [False, True], ids=["new", "connected"])
def test_a_producer_is_told_at_once_that_the_database_is_away(
    fragile_queue: FailingQueue, fragile: Server, is_connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in, connects = session.log_in, []

    def count_and_log_in(*args: Any, **kwargs: Any) -> Any:
        connects.append(args)
        return log_in(*args, **kwargs)

    monkeypatch.setattr(session, "log_in", count_and_log_in)
    with TaskServer(fragile_queue.dsn) as server:
        if is_connected:
            server.add_task("tasks.note", ["new"])
        fragile.stop()
        connects.clear()
        for _ in range(2):
            with pytest.raises(DatabaseError) as raised:
                server.add_tasks([{"task": "tasks.note"}])
            assert "\n" not in str(raised.value)
        # Where it was connected, the first try found that out.
        assert len(connects) == (1 if is_connected else 2)
        fragile.start()
        server.add_task("tasks.note", ["new"])
        assert len(fragile_queue.statuses()) == is_connected + 1
