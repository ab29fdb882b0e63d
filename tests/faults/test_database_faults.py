"""A MySQL or MariaDB that fails under a run: it ends, comes back, refuses, locks, and turns read-only.

Real workers as processes, and real faults of a private server. Each test shows that its fault struck: by the error
numbers in the worker's log, or by what the server says of its connections. Whatever happens, no task fails because of
it and no attempt counts twice.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any, NamedTuple

import pymysql
import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.stores.mysql.connection import Connection
from tests.faults.failing import LOCK_TASK, FailingQueue
from tests.support.processes import assert_one_line, assert_silent, end_of, wait_for, wait_until
from tests.support.servers import MariaDB

ACCOUNT_PASSWORD = "worker"
LOST_CONNECTION = (0, 2006, 2013, 1927, 1053)
REFUSED = 2003


@pytest.fixture
def plain_queue(fragile_queue: FailingQueue) -> FailingQueue:
    """The worker has an account of its own with no more rights than it needs, as on a shared host."""
    queue, database = fragile_queue, fragile_queue.database
    queue.database_server.execute(
        f"CREATE USER '{database}'@'%' IDENTIFIED BY '{ACCOUNT_PASSWORD}'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.* TO '{database}'@'%'",
    )
    queue.workers_dsn = (
        f"mysql://{database}:{ACCOUNT_PASSWORD}@{queue.database_server.host}:{queue.database_server.port}/{database}"
    )
    queue.set()
    return queue


# ---- a database that ends, and comes back or not


@pytest.mark.parametrize("end", [MariaDB.stop, MariaDB.kill], ids=["SIGTERM", "SIGKILL"])
def test_a_run_goes_on_where_it_was_when_its_database_comes_back(
    fragile_queue: FailingQueue, fragile: MariaDB, end: Callable[[MariaDB], None]
) -> None:
    queue, names = fragile_queue, [f"n{number}" for number in range(40)]
    for name in names:
        queue.add("tasks.note", f'["{name}", 0.01]')
    worker = queue.start("--mode", "mark", "--batch", 30)
    wait_until(lambda: len(queue.notes()) >= 10)
    end(fragile)
    wait_until(lambda: queue.tries(REFUSED))
    assert len(queue.notes()) < len(names)
    fragile.start()
    queue.assert_all_once(worker, names)
    assert queue.rows("status, attempts") == [(2, 1)] * len(names)


@pytest.mark.parametrize("at", ["the last task", "a task in the midst"])
def test_a_round_goes_on_where_it_was_when_its_database_comes_back(
    fragile_queue: FailingQueue, fragile: MariaDB, at: str
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
    wait_until(lambda: queue.tries(REFUSED))
    fragile.start()
    queue.assert_all_once(worker, names)
    assert queue.rows("status, attempts") == [(2, 1)] * len(names)


def test_a_task_is_finished_on_a_database_that_was_away_while_it_ran(
    fragile_queue: FailingQueue, fragile: MariaDB
) -> None:
    worker = fragile_queue.start_first("--mode", "mark")
    fragile.kill()
    fragile.start()
    assert fragile_queue.connections() == [], "the worker noticed before its task ended"
    fragile_queue.go()
    fragile_queue.assert_all_once(worker)


def test_a_task_is_finished_though_its_lease_ended_while_the_database_was_away(
    fragile_queue: FailingQueue, fragile: MariaDB
) -> None:
    queue = fragile_queue
    queue.set(LEASE=1)
    worker = queue.start_first()
    fragile.kill()
    wait_until(lambda: "the heartbeat cannot write" in queue.log())
    queue.go()
    wait_until(lambda: queue.tries(REFUSED))
    away_at = time.monotonic()
    wait_until(lambda: time.monotonic() - away_at > 1.0)
    fragile.start()
    queue.assert_all_once(worker)


def test_a_database_that_stays_away_ends_the_run_with_a_line_and_a_later_one_goes_on(
    fragile_queue: FailingQueue, fragile: MariaDB
) -> None:
    queue = fragile_queue
    queue.set(LEASE=2, DB_PATIENCE=1, BACKOFF="fixed:60", MODE="mark")
    worker = queue.start_first()
    fragile.kill()
    queue.go()
    gone_at = time.monotonic()
    assert_one_line(wait_for(worker), 1, "(2003)", queue.database)
    assert time.monotonic() - gone_at >= 1.0, "it did not wait for as long as its patience"
    assert queue.tries(*LOST_CONNECTION, REFUSED) >= 3
    fragile.start()
    columns = "status, attempts, started_at IS NOT NULL, claim IS NOT NULL, error_text"
    assert queue.rows(columns) == [(1, 1, 1, 1, None), (1, 0, 0, 1, None), (1, 0, 0, 1, None)]
    wait_until(lambda: queue.sql("SELECT MAX(due_at) <= NOW(6) FROM jobs_queue") == [(1,)])
    ended = queue.worker()
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (0, "", 1)
    assert f": lost: its worker, process {worker.pid}, ended while it ran, or could not record its end" in ended.stderr
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
    fragile_queue: FailingQueue, fragile: MariaDB
) -> None:
    fragile.stop()
    assert_one_line(fragile_queue.worker(), 1, "(2003)", "check host and port")
    assert_one_line(fragile_queue.client("add", "tasks.note"), 1, "(2003)")
    assert fragile_queue.tries() == 0


def test_a_worker_asked_to_end_while_its_database_is_away_still_writes_what_it_did(
    fragile_queue: FailingQueue, fragile: MariaDB
) -> None:
    queue = fragile_queue
    worker = queue.start_first("--mode", "mark")
    fragile.kill()
    queue.go()
    wait_until(lambda: queue.tries(REFUSED))
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


class Refusal(NamedTuple):
    """A server that refuses with this number within the `with`."""

    number: int
    refusing: Callable[[FailingQueue], AbstractContextManager[None]]


def connect_plainly(queue: FailingQueue) -> AbstractContextManager[pymysql.Connection[Any]]:
    return closing(queue.database_server.connect(user=queue.database, password=ACCOUNT_PASSWORD))


@contextmanager
def all_connections_taken(queue: FailingQueue) -> Iterator[None]:
    """The server has none left for ordinary accounts."""
    with queue.set_for_all("max_connections", 10), ExitStack() as held:

        def take_one() -> int:
            try:
                held.enter_context(connect_plainly(queue))
                return 0
            except pymysql.OperationalError as error:
                return int(error.args[0])

        wait_until(lambda: take_one() == 1040)
        yield


@contextmanager
def connections_of_each_account_taken(queue: FailingQueue) -> Iterator[None]:
    """More than the server gives to any one account."""
    with queue.set_for_all("max_user_connections", 1), connect_plainly(queue):
        yield


@contextmanager
def connections_of_this_account_taken(queue: FailingQueue) -> Iterator[None]:
    """More than this account was granted."""
    queue.database_server.execute(f"ALTER USER '{queue.database}'@'%' WITH MAX_USER_CONNECTIONS 1")
    with connect_plainly(queue):
        yield


@contextmanager
def read_only_server(queue: FailingQueue) -> Iterator[None]:
    """As in a failover; a statement that is under way is let end first."""
    with queue.set_for_all("read_only", 1):
        yield


@contextmanager
def read_only_transactions(queue: FailingQueue) -> Iterator[None]:
    """For connections that are made from now on, so those that stand are ended."""
    with queue.set_for_all("tx_read_only", 1):
        queue.kill_connections()
        yield


NO_CONNECTION, READ_ONLY = Refusal(1040, all_connections_taken), Refusal(1290, read_only_server)
NO_CONNECTIONS = [
    NO_CONNECTION,
    Refusal(1203, connections_of_each_account_taken),
    Refusal(1226, connections_of_this_account_taken),
]


@pytest.mark.parametrize("refusal", [NO_CONNECTION, READ_ONLY], ids=lambda refusal: str(refusal.number))
def test_a_worker_that_is_refused_at_its_beginning_waits(plain_queue: FailingQueue, refusal: Refusal) -> None:
    names = plain_queue.add_named("first", "second")
    with refusal.refusing(plain_queue):
        worker = plain_queue.start()
        wait_until(lambda: plain_queue.tries(refusal.number) >= 2)
        assert plain_queue.notes() == []
    plain_queue.assert_all_once(worker, names)


@pytest.mark.parametrize("refusal", NO_CONNECTIONS, ids=lambda refusal: str(refusal.number))
def test_a_worker_that_is_refused_in_the_midst_of_a_run_goes_on_where_it_was(
    plain_queue: FailingQueue, refusal: Refusal
) -> None:
    worker = plain_queue.start_first("--mode", "mark")
    assert plain_queue.kill_connections() == 1
    with refusal.refusing(plain_queue):
        plain_queue.go()
        wait_until(lambda: plain_queue.tries(refusal.number) >= 2)
        assert plain_queue.notes() == ["first"]
    plain_queue.assert_all_once(worker)


@pytest.mark.parametrize(
    "refusal", [READ_ONLY, Refusal(1792, read_only_transactions)], ids=lambda refusal: str(refusal.number)
)
def test_a_run_whose_database_turns_read_only_goes_on_where_it_was(plain_queue: FailingQueue, refusal: Refusal) -> None:
    worker = plain_queue.start_first("--mode", "mark")
    with refusal.refusing(plain_queue):
        plain_queue.go()
        wait_until(lambda: plain_queue.tries(refusal.number) >= 2)
        assert plain_queue.notes() == ["first"]
    plain_queue.assert_all_once(worker)


@pytest.mark.parametrize(
    "refusal", [NO_CONNECTION, pytest.param(READ_ONLY, marks=pytest.mark.long)], ids=lambda refusal: str(refusal.number)
)
def test_a_worker_that_is_refused_for_longer_than_its_patience_ends_with_one_line(
    plain_queue: FailingQueue, refusal: Refusal
) -> None:
    plain_queue.add_named("first")
    with refusal.refusing(plain_queue):
        ended = plain_queue.worker(TASKSERVER_DB_PATIENCE="1")
        assert_one_line(ended, 1, f"({refusal.number})")
    assert ACCOUNT_PASSWORD + "@" not in ended.stderr
    assert plain_queue.tries(refusal.number) >= 2
    assert_silent(plain_queue.worker())
    assert plain_queue.notes() == ["first"]


def test_a_producer_that_gets_no_connection_is_told_at_once(plain_queue: FailingQueue, connects: list[int]) -> None:
    with (
        connections_of_this_account_taken(plain_queue),
        TaskServer(plain_queue.workers_dsn) as server,
        pytest.raises(DatabaseError, match="1226"),
    ):
        server.add_task("tasks.note", ["new"])
    assert len(connects) == 1
    assert plain_queue.statuses() == []


def test_a_connection_that_the_server_dropped_under_a_task_is_made_anew(fragile_queue: FailingQueue) -> None:
    with fragile_queue.set_for_all("wait_timeout", 1):
        worker = fragile_queue.start_first("--mode", "mark")
        assert len(fragile_queue.connections()) == 1
        wait_until(lambda: fragile_queue.connections() == [])  # no heartbeat is due in this time
        fragile_queue.go()
        fragile_queue.assert_all_once(worker)


# ---- locks


def test_a_finish_whose_row_is_locked_for_long_is_written_once_the_lock_is_gone(shared_queue: FailingQueue) -> None:
    worker = shared_queue.start_first("--mode", "mark")
    waits: set[Any] = set()

    def has_waited_anew() -> bool:
        waits.update(shared_queue.waiting_since())
        return len(waits) >= 2

    with shared_queue.locking(LOCK_TASK, 1):
        shared_queue.go()
        # A wait that begins anew was ended by 1205: nobody else has given anything up.
        wait_until(has_waited_anew)
        assert shared_queue.sql("SELECT status FROM jobs_queue WHERE id = 1") == [(1,)]
    shared_queue.assert_all_once(worker)


@pytest.mark.long
def test_a_lock_that_outlasts_the_patience_ends_the_run_with_one_line(shared_queue: FailingQueue) -> None:
    shared_queue.set(DB_PATIENCE=1)
    worker = shared_queue.start_first()
    with shared_queue.locking(LOCK_TASK, 1):
        shared_queue.go()
        assert_one_line(wait_for(worker), 1, "(1205)")
    assert shared_queue.statuses() == [1, 0, 0]
    assert shared_queue.notes() == ["first"]


def test_a_finish_that_falls_victim_to_a_deadlock_is_written_again(shared_queue: FailingQueue) -> None:
    """A worker's transaction has finished one task and waits to start the next, while another's goes the other way."""
    queue = shared_queue
    # Of two in a deadlock the server ends the one that has changed less: this makes it the worker.
    weights = ", ".join(f"({task_id}, 'x', 4)" for task_id in range(1001, 1201))
    queue.sql(f"INSERT INTO jobs_queue (id, task, status) VALUES {weights}")
    worker = queue.start_first("--mode", "mark")
    first, second = queue.sql("SELECT id FROM jobs_queue WHERE status = 1 ORDER BY id LIMIT 2")
    with queue.locking("UPDATE jobs_queue SET priority = 1 WHERE id BETWEEN 1001 AND 1200") as cursor:
        cursor.execute(LOCK_TASK, second)
        queue.go()
        wait_until(queue.waiting_since)
        # The worker holds this row and waits for the other: we get it only if the worker's transaction is undone.
        cursor.execute(LOCK_TASK, first)
        assert cursor.fetchall() == (first,)
        cursor.execute("SELECT status, started_at IS NOT NULL FROM jobs_queue WHERE id IN (%s, %s)", (*first, *second))
        assert cursor.fetchall() == ((1, 1), (1, 0))
    assert "LATEST DETECTED DEADLOCK" in queue.sql("SHOW ENGINE INNODB STATUS")[0][2]
    queue.sql("DELETE FROM jobs_queue WHERE status = 4")
    queue.assert_all_once(worker)


# ---- producers do not wait


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each connection that this process tries to make by taskserver's own code."""
    tried: list[int] = []
    connect = Connection.connect

    def counting(*args: Any, **kwargs: Any) -> Any:
        tried.append(len(tried))
        return connect(*args, **kwargs)

    monkeypatch.setattr(Connection, "connect", counting)
    return tried


@pytest.mark.parametrize(
    "add",
    [lambda server: server.add_task("tasks.note", ["new"]), lambda server: server.add_tasks([{"task": "tasks.note"}])],
    ids=["one", "many"],
)
@pytest.mark.parametrize("is_connected", [False, True], ids=["new", "connected"])
def test_a_producer_is_told_at_once_that_the_database_is_away(
    fragile_queue: FailingQueue,
    fragile: MariaDB,
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
