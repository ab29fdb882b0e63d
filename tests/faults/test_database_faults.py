"""A MySQL or MariaDB that fails under a run: it ends, comes back, refuses, locks, turns read-only, or falls silent.

Real workers as processes, and real faults: of a private server that is killed and reconfigured, and of a network that
a proxy cuts. Each test shows that its fault struck: by the error numbers in the worker's log, by the proxy's counts, or
by what the server says of its connections. Whatever happens, no task fails because of it and no attempt counts twice.
"""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pymysql
import pytest

from taskserver import DatabaseError, RunResult, TaskServer
from taskserver.errors import Conflict, ConnectionLost, ServerFull, Unavailable
from taskserver.stores.database import retrying as tries
from taskserver.stores.mysql import session as mysql
from tests.conftest import without
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line, assert_silent, end_of, wait_for, wait_until
from tests.support.proxy import Cut, Proxy, contains
from tests.support.queues import NOTE, Queue
from tests.support.servers import MariaDB, MySQLServer, missing_programs

TASKS = """
import time

note_text = note


def note(name, seconds=0.0):
    note_text(name)
    time.sleep(seconds)


def wait_for_go(name):
    note(name)
    while not (HERE / "go").exists():
        time.sleep(0.01)


def fail(name):
    note(name)
    raise ValueError(name)
"""
ACCOUNT_PASSWORD = "worker"
LOST_CONNECTION = (0, 2006, 2013, 1927, 1053)
REFUSED = (2003,)
SHORT_READ_SECONDS = 0.25
"""In place of the ten that a worker waits for an answer."""

_names = itertools.count()


class Site(Queue):
    """A queue whose database fails. The test's own SQL goes straight to the server."""

    def __init__(self, deployment: Deployment, server: MySQLServer, database: str) -> None:
        super().__init__(deployment, server.dsn(database), TASKS)
        self.server = server
        self.database = database
        self.set()

    def set(self, dsn: str = "", **settings: object) -> None:
        """Write the worker's .env: the way to the database, and TASKSERVER_… settings by the ends of their names."""
        keys = {"DSN": dsn or self.dsn, "LOG": "log", **settings}
        self.deployment.write_env("".join(f"TASKSERVER_{key}='{value}'\n" for key, value in keys.items()))

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._connected().cursor() as cursor:
            cursor.execute(statement.replace("?", "%s"), values or None)
            return list(cursor.fetchall())

    def _connected(self) -> pymysql.Connection[Any]:
        """One connection for all, unless the database was away meanwhile."""
        try:
            if self._mysql is not None:
                self._mysql.ping(reconnect=False)
                return self._mysql
        except pymysql.MySQLError:
            pass
        self._mysql = self.connect()
        return self._mysql

    def log(self) -> str:
        path = self.deployment.folder / "log"
        return path.read_text() if path.exists() else ""

    def tries(self, *numbers: int) -> int:
        """How often a worker met an error and tried again: one of these numbers, or any."""
        lines = [line for line in self.log().splitlines() if "trying again: " in line]
        return sum(not numbers or any(f"({number})" in line for number in numbers) for line in lines)

    def counts(self) -> dict[str, Any]:
        """What the last run recorded."""
        names = ("taken", "done", "fatal", "lost", "released", "reason")
        (row,) = self.sql(f"SELECT {', '.join(names)} FROM jobs_queue_workers")
        return dict(zip(names, row, strict=True))

    def connections(self) -> list[int]:
        """The server's numbers of all connections to this database but the one that asks."""
        which = "SELECT id FROM information_schema.processlist WHERE db = ? AND id <> CONNECTION_ID()"
        return [number for (number,) in self.sql(which, self.database)]

    def kill_connections(self) -> int:
        """Have the server end all connections to this database; how many there were."""
        found = self.connections()
        for number in found:
            self.sql(f"KILL {number}")
        wait_until(lambda: not self.connections())
        return len(found)

    def waiting_since(self) -> list[Any]:
        """Since when somebody waits for a row's lock in this database: instants, one for each wait."""
        time.sleep(0.11)  # who asks sooner gets the answer of the last time, and so for ever
        return self.sql(
            "SELECT trx_wait_started FROM information_schema.innodb_trx JOIN information_schema.processlist"
            " ON processlist.id = trx_mysql_thread_id WHERE db = ? AND trx_state = 'LOCK WAIT'",
            self.database,
        )


def add(site: Site, *names: str, task: str = "note") -> list[str]:
    for name in names:
        site.add(f"tasks.{task}", f'["{name}"]')
    return list(names)


def running(site: Site, *args: object) -> subprocess.Popen[str]:
    """A worker in the midst of its first task, which ends at `go`, with two more claimed."""
    add(site, "first", task="wait_for_go")
    add(site, "second", "third")
    worker = site.start(*args)
    wait_until(lambda: site.notes() == ["first"])
    return worker


def assert_all_once(
    site: Site, worker: subprocess.Popen[str], names: Sequence[str] = ("first", "second", "third")
) -> None:
    """The run ends well, each task ran once, in order, and none is left, failed, or reported as lost."""
    assert end_of(worker) == (0, "", "")
    assert site.notes() == list(names)
    counts = site.counts()
    assert (counts["taken"], counts["done"], counts["reason"]) == (len(names), len(names), "empty")
    assert (counts["fatal"], counts["lost"]) == (0, 0)
    assert set(site.rows("status, attempts, error_text")) <= {(2, 1, None)}


@pytest.fixture(scope="module")
def fragile_server() -> Iterator[MariaDB]:
    """A server that these tests kill. What was committed is in the kernel's hands, so that SIGKILL loses none of it.

    Limits of an account's connections can be set while it runs only if there is one from the start.
    """
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB(False, "--innodb-flush-log-at-trx-commit=2", "--max-user-connections=1000") as server:
        yield server


@pytest.fixture
def fragile(fragile_server: MariaDB) -> Iterator[MariaDB]:
    """The same, running."""
    fragile_server.start()
    yield fragile_server
    fragile_server.start()


@pytest.fixture
def site(deployment: Deployment, fragile: MariaDB) -> Iterator[Site]:
    """A queue on the server that may be killed."""
    name = fragile.create_database()
    yield Site(deployment, fragile, name)
    deployment.close()
    fragile.start()
    fragile.drop_database(name)


@pytest.fixture
def plain_site(site: Site) -> Site:
    """The same; the worker has an account of its own with no more rights than it needs, as on a shared host."""
    account = f"'{site.database}'@'%'"
    site.server.execute(
        f"CREATE USER {account} IDENTIFIED BY '{ACCOUNT_PASSWORD}'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{site.database}`.* TO {account}",
    )
    site.set(plain_dsn(site))
    return site


def plain_dsn(site: Site) -> str:
    return f"mysql://{site.database}:{ACCOUNT_PASSWORD}@{site.server.host}:{site.server.port}/{site.database}"


@contextmanager
def set_for_all(site: Site, variable: str, value: int) -> Iterator[None]:
    """In the `with`, a variable of the server has this value, for connections made from now on at least."""
    ((usual,),) = site.sql(f"SELECT @@GLOBAL.{variable}")
    site.sql(f"SET GLOBAL {variable} = {value}")
    try:
        yield
    finally:
        site.sql(f"SET GLOBAL {variable} = {usual}")


def connect_plainly(site: Site) -> pymysql.Connection[Any]:
    return site.server.connect(user=site.database, password=ACCOUNT_PASSWORD)


class Ways(NamedTuple):
    """A queue on the shared server, and the proxy through which its worker reaches it."""

    site: Site
    proxy: Proxy

    def set(self, **settings: object) -> None:
        self.site.set(self.proxy.dsn(self.site.dsn), **settings)


@pytest.fixture
def ways(deployment: Deployment, mysql_server: MySQLServer) -> Iterator[Ways]:
    with mysql_server.database() as name, Proxy(mysql_server.host, mysql_server.port) as proxy:
        ways = Ways(Site(deployment, mysql_server, name), proxy)
        ways.set()
        yield ways
        deployment.close()


# ---- what an error means, and how long is waited after it

KINDS = {
    # Others are in the way; rolled back, or not done.
    1020: (Conflict, "record has changed since it was read"),
    1205: (Conflict, "lock wait timeout"),
    1213: (Conflict, "deadlock, or the loser of two nodes"),
    1317: (Conflict, "an administrator ended the statement"),
    1614: (Conflict, "deadlock, in the words of XA"),
    1969: (Conflict, "MariaDB's max_statement_time"),
    3024: (Conflict, "MySQL's max_execution_time"),
    # The connection is gone, and with it what became of the last statement.
    0: (ConnectionLost, "the driver's, on a connection that it closed"),
    1053: (ConnectionLost, "the server shuts down"),
    1077: (ConnectionLost, "normal shutdown"),
    1079: (ConnectionLost, "shutdown complete"),
    1152: (ConnectionLost, "aborted"),
    1158: (ConnectionLost, "cannot read"),
    1159: (ConnectionLost, "cannot read in time"),
    1160: (ConnectionLost, "cannot write"),
    1161: (ConnectionLost, "cannot write in time"),
    1180: (ConnectionLost, "an error in COMMIT"),
    1184: (ConnectionLost, "aborted, in another place"),
    1927: (ConnectionLost, "MariaDB's KILL"),
    2006: (ConnectionLost, "gone away"),
    2013: (ConnectionLost, "lost in a query"),
    2014: (ConnectionLost, "out of step"),
    2055: (ConnectionLost, "lost, with the system's reason"),
    3168: (ConnectionLost, "the server is not available"),
    3169: (ConnectionLost, "MySQL's KILL"),
    4031: (ConnectionLost, "MySQL's wait_timeout"),
    # It is there, and takes nobody more.
    1037: (ServerFull, "out of memory"),
    1040: (ServerFull, "too many connections"),
    1041: (ServerFull, "out of resources"),
    1135: (ServerFull, "no thread can be made"),
    1203: (ServerFull, "max_user_connections of the server"),
    1226: (ServerFull, "max_user_connections of the account, or its limits by the hour"),
    # Not reached, or not of use for a while.
    2002: (Unavailable, "no socket"),
    2003: (Unavailable, "connection refused"),
    1036: (Unavailable, "a table is read-only, as under innodb_read_only"),
    1290: (Unavailable, "read_only"),
    1792: (Unavailable, "a read-only transaction"),
    1836: (Unavailable, "read-only mode"),
    3032: (Unavailable, "offline_mode"),
    1021: (Unavailable, "disk full"),
    1030: (Unavailable, "the storage engine's errors, a full disk among them"),
    1114: (Unavailable, "the table is full"),
    1637: (Unavailable, "too many transactions"),
    1047: (Unavailable, "a node of Galera without a quorum"),
}
"""By the numbers of MySQL's and MariaDB's manuals and of the driver."""
HIGHEST_NUMBER = 5000


@pytest.fixture
def meaning() -> Callable[[int], type[DatabaseError]]:
    """What an error of this number is to a store; no server is asked."""
    store = TaskServer("mysql://nobody@127.0.0.1:1/nothing").store
    return lambda number: type(store.database.dialect.error(pymysql.err.OperationalError(number, "")))


@pytest.mark.parametrize(("number", "kind"), [(number, kind) for number, (kind, _) in KINDS.items()])
def test_an_error_that_passes_is_known_by_its_number(
    meaning: Callable[[int], type[DatabaseError]], number: int, kind: type[DatabaseError]
) -> None:
    """The kind decides who waits for how long, and whether it is asked afterwards what was done."""
    assert meaning(number) is kind


def test_no_other_error_is_waited_for(meaning: Callable[[int], type[DatabaseError]]) -> None:
    """As wrong passwords, missing rights and mistakes in SQL: no pause mends them."""
    waited_for = (Conflict, Unavailable)
    numbers = {number for number in range(HIGHEST_NUMBER) if issubclass(meaning(number), waited_for)}
    assert numbers == KINDS.keys()


class Clock:
    """In the place of `time`: pauses take no time, and are written down."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._now += seconds


@pytest.mark.parametrize("kind", [Unavailable, ConnectionLost, ServerFull, Conflict])
def test_the_pauses_between_tries_grow_and_are_random_up_to_the_patience(
    sqlite_dsn: str, kind: type[DatabaseError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a hundred workers which lost their database at one instant do not come back at one."""
    patience, longest, count = 30, 5, 30

    def fail(*args: object) -> None:
        raise kind("away")

    def pauses() -> list[float]:
        clock = Clock()
        with server.store.database.patiently(), monkeypatch.context() as faulty:
            server.store.tables.check()  # who never reached it does not wait
            faulty.setattr(tries, "time", clock)
            faulty.setattr(server.store.database, "_try", fail)
            with pytest.raises(kind):
                server.store.due.look()
        return clock.pauses

    with TaskServer(sqlite_dsn, db_patience=patience) as server:
        server.create_tables()
        drawn = [pauses() for _ in range(count)]
    assert [sum(each) for each in drawn] == pytest.approx([patience] * count)
    assert max(itertools.chain(*drawn)) <= longest
    first_ones = list(zip(*(each[:5] for each in drawn), strict=True))
    means = [sum(step) / count for step in first_ones]
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(means))
    assert all(max(step) > 1.2 * min(step) for step in first_ones)


# ---- a database that ends, and comes back or not

ENDINGS = pytest.mark.parametrize("end", [MariaDB.stop, MariaDB.kill], ids=["SIGTERM", "SIGKILL"])
End = Callable[[MariaDB], None]


@ENDINGS
def test_a_run_goes_on_where_it_was_when_its_database_comes_back(site: Site, fragile: MariaDB, end: End) -> None:
    names = [f"n{number}" for number in range(40)]
    for name in names:
        site.add("tasks.note", f'["{name}", 0.01]')
    worker = site.start("--mode", "mark", "--batch", 30)
    wait_until(lambda: len(site.notes()) >= 10)
    end(fragile)
    wait_until(lambda: site.tries(*REFUSED))
    assert len(site.notes()) < len(names)
    fragile.start()
    assert_all_once(site, worker, names)
    assert site.sql("SELECT COUNT(*) FROM jobs_queue WHERE status = 2 AND attempts = 1") == [(len(names),)]


@ENDINGS
def test_a_task_is_finished_on_a_database_that_was_away_while_it_ran(site: Site, fragile: MariaDB, end: End) -> None:
    worker = running(site, "--mode", "mark")
    end(fragile)
    fragile.start()
    assert site.connections() == [], "the worker noticed before its task ended"
    site.go()
    assert_all_once(site, worker)


def test_a_task_is_finished_though_its_lease_ended_while_the_database_was_away(site: Site, fragile: MariaDB) -> None:
    site.set(LEASE=1)
    worker = running(site)
    fragile.kill()
    wait_until(lambda: "the heartbeat cannot write" in site.log())
    site.go()
    wait_until(lambda: site.tries(*REFUSED))
    away_at = time.monotonic()
    wait_until(lambda: time.monotonic() - away_at > 1.0)
    fragile.start()
    assert_all_once(site, worker)


@pytest.mark.parametrize("max_attempts", [10, pytest.param(1, marks=pytest.mark.long)])
def test_a_database_that_stays_away_ends_the_run_with_one_line_and_a_later_one_takes_up_the_rest(
    site: Site, fragile: MariaDB, max_attempts: int
) -> None:
    site.set(LEASE=2, DB_PATIENCE=1, BACKOFF="fixed:60", MAX_ATTEMPTS=max_attempts)
    worker = running(site, "--mode", "mark")
    fragile.kill()
    site.go()
    gone_at = time.monotonic()
    assert_one_line(wait_for(worker), 1, "(2003)", site.database)
    assert time.monotonic() - gone_at >= 1.0, "it did not wait for as long as its patience"
    assert site.tries(*LOST_CONNECTION, *REFUSED) >= 3
    fragile.start()
    columns = "status, attempts, started_at IS NOT NULL, claim IS NOT NULL, error_text"
    look = f"SELECT {columns} FROM jobs_queue ORDER BY id"
    assert site.sql(look) == [(1, 1, 1, 1, None), (1, 0, 0, 1, None), (1, 0, 0, 1, None)]
    wait_until(lambda: site.sql("SELECT MAX(due_at) <= NOW(6) FROM jobs_queue") == [(1,)])
    later = site.worker("--mode", "mark")
    assert (later.returncode, later.stdout) == (0, "")
    assert site.notes() == ["first", "second", "third"]
    lost, *others = site.sql(look)
    assert lost[4].startswith("lost: ")
    assert others == [(2, 1, 1, 0, None)] * 2
    if max_attempts == 1:
        assert lost[:4] == (4, 1, 1, 1)
        assert "is fatal: lost" in later.stderr
        return
    assert lost[:4] == (3, 1, 1, 0)
    assert later.stderr == ""
    site.sql("UPDATE jobs_queue SET due_at = NOW(6) WHERE status = 3")
    assert_silent(site.worker("--mode", "mark"))
    assert site.notes() == ["first", "second", "third", "first"]
    assert site.sql(look)[0] == (2, 2, 1, 0, None)


def test_a_database_that_is_away_from_the_beginning_is_told_at_once(site: Site, fragile: MariaDB) -> None:
    add(site, "first")
    fragile.stop()
    assert_one_line(site.worker(), 1, "(2003)", "check host and port")
    assert site.tries() == 0


def test_a_worker_that_is_asked_to_end_while_its_database_is_away_still_writes_what_it_did(
    site: Site, fragile: MariaDB
) -> None:
    worker = running(site, "--mode", "mark")
    fragile.kill()
    site.go()
    wait_until(lambda: site.tries(*REFUSED))
    worker.send_signal(signal.SIGTERM)
    before = site.tries()
    wait_until(lambda: site.tries() > before)
    fragile.start()
    assert end_of(worker) == (0, "", "")
    done = len(site.notes())  # the start of the second one was on its way already
    assert site.notes() == ["first", "second"][:done]
    assert site.statuses() == [2] * done + [0] * (3 - done)
    assert {key: site.counts()[key] for key in ("done", "lost", "released")} == {
        "done": done,
        "lost": 0,
        "released": 3 - done,
    }


@pytest.mark.long
def test_two_workers_run_each_task_once_on_a_database_that_is_killed_and_restarted_many_times(
    site: Site, fragile: MariaDB
) -> None:
    chance = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    names = [f"n{number:04}" for number in range(1500)]
    with TaskServer(site.dsn, folder=site.folder) as server:
        server.add_tasks({"task": "tasks.note", "args": [name, 0.004]} for name in names)
    workers = [site.start("--mode", "mark", "--batch", 20) for _ in range(2)]
    struck = 0
    for end in [MariaDB.kill, MariaDB.stop] * 8:
        before = len(site.notes())
        goal = before + chance.randrange(30, 100)
        wait_until(lambda goal=goal: len(site.notes()) >= goal or all(w.poll() is not None for w in workers))  # type: ignore[misc]
        end(fragile)
        struck += any(worker.poll() is None for worker in workers)
        fragile.start()
    assert [end_of(worker) for worker in workers] == [(0, "", "")] * 2
    assert sorted(site.notes()) == names
    assert site.sql("SELECT status, attempts, error_text, COUNT(*) FROM jobs_queue GROUP BY 1, 2, 3") == [
        (2, 1, None, len(names))
    ]
    assert struck >= 8
    assert site.tries() >= struck


# ---- a database that has no connection to give


@contextmanager
def all_connections_taken(site: Site) -> Iterator[None]:
    """1040: the server has none left for ordinary accounts."""
    with set_for_all(site, "max_connections", 10), ExitStack() as held:

        def take_one() -> int:
            try:
                held.enter_context(closing(connect_plainly(site)))
                return 0
            except pymysql.OperationalError as error:
                return int(error.args[0])

        wait_until(lambda: take_one() == 1040)
        yield


@contextmanager
def connections_of_each_account_taken(site: Site) -> Iterator[None]:
    """1203: more than the server gives to any one account."""
    with set_for_all(site, "max_user_connections", 1), closing(connect_plainly(site)):
        yield


@contextmanager
def connections_of_this_account_taken(site: Site) -> Iterator[None]:
    """1226: more than this account was granted."""
    site.sql(f"ALTER USER '{site.database}'@'%' WITH MAX_USER_CONNECTIONS 1")
    with closing(connect_plainly(site)):
        yield


class Refusal(NamedTuple):
    number: int
    refusing: Callable[[Site], AbstractContextManager[None]]


def first_alone(cases: Sequence[Any]) -> list[Any]:
    """The first case for every day, the others in `make test-long`."""
    return [cases[0], *(pytest.param(case, marks=pytest.mark.long) for case in cases[1:])]


REFUSALS = [
    Refusal(1040, all_connections_taken),
    Refusal(1203, connections_of_each_account_taken),
    Refusal(1226, connections_of_this_account_taken),
]
EACH_REFUSAL = pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: str(refusal.number))
FIRST_REFUSAL = pytest.mark.parametrize("refusal", first_alone(REFUSALS), ids=lambda refusal: str(refusal.number))


@FIRST_REFUSAL
def test_a_worker_that_is_refused_at_its_beginning_waits_for_a_connection(plain_site: Site, refusal: Refusal) -> None:
    names = add(plain_site, "first", "second")
    with refusal.refusing(plain_site):
        worker = plain_site.start()
        wait_until(lambda: plain_site.tries(refusal.number) >= 2)
        assert plain_site.notes() == []
    assert_all_once(plain_site, worker, names)


@EACH_REFUSAL
def test_a_worker_that_is_refused_in_the_midst_of_a_run_goes_on_where_it_was(
    plain_site: Site, refusal: Refusal
) -> None:
    worker = running(plain_site, "--mode", "mark")
    assert plain_site.kill_connections() == 1
    with refusal.refusing(plain_site):
        plain_site.go()
        wait_until(lambda: plain_site.tries(refusal.number) >= 2)
        assert plain_site.notes() == ["first"]
    assert_all_once(plain_site, worker)


@FIRST_REFUSAL
def test_a_worker_that_gets_no_connection_ends_with_one_line(plain_site: Site, refusal: Refusal) -> None:
    add(plain_site, "first")
    with refusal.refusing(plain_site):
        ended = plain_site.worker(TASKSERVER_DB_PATIENCE="1")
        assert_one_line(ended, 1, f"({refusal.number})")
    assert ACCOUNT_PASSWORD + "@" not in ended.stderr
    assert plain_site.tries(refusal.number) >= 2
    assert_silent(plain_site.worker())
    assert plain_site.notes() == ["first"]


# ---- a database that drops idle connections


def test_a_connection_that_the_server_dropped_under_a_task_is_made_anew(site: Site) -> None:
    with set_for_all(site, "wait_timeout", 1):
        worker = running(site, "--mode", "mark")
        assert len(site.connections()) == 1
        wait_until(lambda: site.connections() == [])  # no heartbeat is due in this time
        site.go()
        assert_all_once(site, worker)


@pytest.mark.long
def test_a_task_of_twenty_seconds_outlasts_connections_that_live_for_five(site: Site) -> None:
    with set_for_all(site, "wait_timeout", 5):
        site.add("tasks.note", '["first", 20]')
        add(site, "second", "third")
        worker = site.start("--mode", "mark")
        wait_until(lambda: site.notes() == ["first"])
        wait_until(lambda: site.connections() == [])
        assert_all_once(site, worker)


# ---- locks


@contextmanager
def locking(site: Site, statement: str, *values: object) -> Iterator[pymysql.cursors.Cursor]:
    """Another program's open transaction that holds the rows which a statement reached."""
    with closing(site.connect()) as connection, connection.cursor() as cursor:
        # As ours, so that it locks no more than the rows that it names.
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("SET innodb_lock_wait_timeout = 30")
        cursor.execute("BEGIN")
        cursor.execute(statement, values)
        yield cursor
        connection.rollback()


LOCK_TASK = "SELECT id FROM jobs_queue WHERE id = %s FOR UPDATE"


def test_a_finish_whose_row_is_locked_for_long_is_written_once_the_lock_is_gone(ways: Ways) -> None:
    site = ways.site
    site.set()
    worker = running(site, "--mode", "mark")
    waits: set[Any] = set()

    def has_waited_anew() -> bool:
        waits.update(site.waiting_since())
        return len(waits) >= 2

    with locking(site, LOCK_TASK, 1):
        site.go()
        # A wait that begins anew was ended by 1205: nobody else has given anything up.
        wait_until(has_waited_anew)
        assert site.sql("SELECT status FROM jobs_queue WHERE id = 1") == [(1,)]
    assert_all_once(site, worker)


@pytest.mark.long
def test_a_lock_that_outlasts_the_patience_ends_the_run_with_one_line(ways: Ways) -> None:
    site = ways.site
    site.set(DB_PATIENCE=1)
    worker = running(site)
    with locking(site, LOCK_TASK, 1):
        site.go()
        assert_one_line(wait_for(worker), 1, "(1205)")
    assert site.statuses() == [1, 0, 0]
    assert site.notes() == ["first"]


def test_a_finish_that_falls_victim_to_a_deadlock_is_written_again(ways: Ways) -> None:
    """A worker's transaction has finished one task and waits to start the next, while another's goes the other way."""
    site = ways.site
    site.set()
    # Of two in a deadlock the server ends the one that has changed less: this makes it the worker.
    weights = ", ".join(f"({task_id}, 'x', 4)" for task_id in range(1001, 1201))
    site.sql(f"INSERT INTO jobs_queue (id, task, status) VALUES {weights}")
    worker = running(site, "--mode", "mark")
    first, second = site.sql("SELECT id FROM jobs_queue WHERE status = 1 ORDER BY id LIMIT 2")
    with locking(site, "UPDATE jobs_queue SET priority = 1 WHERE id BETWEEN 1001 AND 1200") as cursor:
        cursor.execute(LOCK_TASK, second)
        site.go()
        wait_until(site.waiting_since)
        # The worker holds this row and waits for the other: we get it only if the worker's transaction is undone.
        cursor.execute(LOCK_TASK, first)
        assert cursor.fetchall() == (first,)
        cursor.execute("SELECT status, started_at IS NOT NULL FROM jobs_queue WHERE id IN (%s, %s)", (*first, *second))
        assert cursor.fetchall() == ((1, 1), (1, 0))
    assert "LATEST DETECTED DEADLOCK" in site.sql("SHOW ENGINE INNODB STATUS")[0][2]
    site.sql("DELETE FROM jobs_queue WHERE status = 4")
    assert_all_once(site, worker)


# ---- a database that only reads for a while


@contextmanager
def read_only_server(site: Site) -> Iterator[None]:
    """1290: as in a failover; a statement that is under way is let end first."""
    with set_for_all(site, "read_only", 1):
        yield


@contextmanager
def read_only_transactions(site: Site) -> Iterator[None]:
    """1792: for connections that are made from now on, so those that stand are ended."""
    with set_for_all(site, "tx_read_only", 1):
        site.kill_connections()
        yield


READ_ONLY = [Refusal(1290, read_only_server), Refusal(1792, read_only_transactions)]


@pytest.mark.parametrize("refusal", first_alone(READ_ONLY), ids=lambda refusal: str(refusal.number))
def test_a_run_that_begins_on_a_read_only_database_waits(plain_site: Site, refusal: Refusal) -> None:
    names = add(plain_site, "first", "second")
    with refusal.refusing(plain_site):
        worker = plain_site.start()
        wait_until(lambda: plain_site.tries(refusal.number) >= 2)
    assert_all_once(plain_site, worker, names)


@pytest.mark.parametrize("refusal", READ_ONLY, ids=lambda refusal: str(refusal.number))
def test_a_run_whose_database_turns_read_only_goes_on_where_it_was(plain_site: Site, refusal: Refusal) -> None:
    worker = running(plain_site, "--mode", "mark")
    with refusal.refusing(plain_site):
        plain_site.go()
        wait_until(lambda: plain_site.tries(refusal.number) >= 2)
        assert plain_site.notes() == ["first"]
    assert_all_once(plain_site, worker)


@pytest.mark.long
def test_a_database_that_stays_read_only_ends_the_run_with_one_line(plain_site: Site) -> None:
    add(plain_site, "first")
    with read_only_server(plain_site):
        assert_one_line(plain_site.worker(TASKSERVER_DB_PATIENCE="1"), 1, "(1290)")
    assert_silent(plain_site.worker())
    assert plain_site.notes() == ["first"]


def test_a_server_that_is_restarted_to_read_only_for_a_repair_is_waited_for(
    site: Site, fragile: MariaDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    """InnoDB's own way of being read-only: 1036 on MariaDB, with 1836 as a warning beside it."""
    names = add(site, "first", "second")
    usual = fragile._options
    fragile.stop()
    monkeypatch.setattr(fragile, "_options", [*usual, "--innodb-read-only"])
    fragile.start()
    with pytest.raises(pymysql.MySQLError, match="read only"):
        site.sql("UPDATE jobs_queue SET priority = 1")
    worker = site.start()
    try:
        wait_until(lambda: site.tries() >= 3 or worker.poll() is not None)
    finally:
        fragile.stop()
        monkeypatch.setattr(fragile, "_options", usual)
        fragile.start()
    assert_all_once(site, worker, names)


# ---- answers that are cut off: what was asked was done, or it was not


class Step(NamedTuple):
    """A statement of a run, known by words of it, in a run where it occurs."""

    name: str
    words: bytes
    mode: str = "mark"
    task: str = "note"
    args: str = '["second"]'
    prepared: str = ""
    """What is done to the second task's row before."""
    ends_as: tuple[int, int] = (2, 1)
    """Its status and attempts afterwards."""


LONG_ARGS = f'["second", {" " * 20_000}0]'
STEPS = [
    Step("begin the run", b"ended_at = NULL"),
    Step("look for what is due", b"UNION ALL"),
    Step(
        "wake",
        b"SET status = 0, updated_at = CASE",
        prepared="status = 3, attempts = 1, due_at = NOW(6) - INTERVAL 1 SECOND",
        ends_as=(2, 2),
    ),
    Step(
        "reclaim unstarted",
        b"SET status = 0, claim = NULL",
        prepared="status = 1, claim = 7, due_at = NOW(6) - INTERVAL 1 SECOND",
    ),
    Step(
        "reclaim lost",
        b"lost: its worker vanished",
        prepared="status = 1, claim = 7, attempts = 1, started_at = NOW(6), due_at = NOW(6) - INTERVAL 1 SECOND",
        ends_as=(3, 1),
    ),
    Step("claim", b"STRAIGHT_JOIN"),
    Step("read the claim", b"SELECT id, task, CASE"),
    Step("read long arguments", b"SELECT args FROM", args=LONG_ARGS),
    Step("start", b"attempts = attempts + 1"),
    Step("limit the attempts", b"SET max_attempts = "),
    Step("delete", b"DELETE FROM `jobs_queue`", mode="delete"),
    Step("move", b"INSERT INTO `jobs_queue_done`", mode="move"),
    Step("mark", b"SET status = 2"),
    Step("retry", b"SET status = 3, claim = NULL", task="fail", ends_as=(3, 1)),
    Step("give up", b"SET status = 4, claim = NULL", task="fail", prepared="max_attempts = 1", ends_as=(4, 1)),
    Step("look for new ones", b"SELECT 1 FROM"),
    Step("end the run", b"reason = "),
]
WHEN = pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])


def prepare(site: Site, step: Step, module: str = "tasks") -> None:
    site.add(f"{module}.note", '["first"]')
    site.add(f"{module}.{step.task}", step.args)
    site.add(f"{module}.note", '["third"]')
    if step.prepared:
        site.sql(f"UPDATE jobs_queue SET {step.prepared} WHERE id = 2")


def assert_done_once(site: Site, step: Step) -> None:
    runs = step.ends_as != (3, 1) or step.task == "fail"
    order = ["first", "second", "third"] if runs else ["first", "third"]
    assert site.notes() == order
    counts = site.counts()
    done = 2 + (step.ends_as[0] == 2)
    assert (counts["taken"], counts["done"], counts["lost"]) == (len(order), done, 0)
    assert counts["fatal"] == (step.ends_as[0] == 4)
    left = {
        "delete": [],
        "move": site.rows("id, status, attempts", "jobs_queue_done"),
        "mark": site.rows("id, status, attempts"),
    }
    assert left[step.mode] == ([] if step.mode == "delete" else [(1, 2, 1), (2, *step.ends_as), (3, 2, 1)])
    assert step.mode == "mark" or site.statuses() == []


def cut_at(proxy: Proxy, step: Step, is_done: bool, silent: bool = False) -> Cut:
    return (proxy.cut_after if is_done else proxy.cut_before)(contains(step.words), silent=silent)


def cuts(quick: Callable[[Step, bool], bool]) -> pytest.MarkDecorator:
    """Each step, cut off when the server has done it and before; those that are not quick in `make test-long`."""
    return pytest.mark.parametrize(
        ("step", "is_done"),
        [
            pytest.param(
                step,
                is_done,
                id=f"{step.name.replace(' ', '-')}-{'done' if is_done else 'not-done'}",
                marks=[] if quick(step, is_done) else [pytest.mark.long],
            )
            for step, is_done in itertools.product(STEPS, (True, False))
        ],
    )


@cuts(quick=lambda step, is_done: is_done and step.name in ("start", "delete", "move"))
def test_a_worker_whose_answer_is_cut_off_finds_out_what_was_done(ways: Ways, step: Step, is_done: bool) -> None:
    prepare(ways.site, step)
    ways.set(MODE=step.mode, BACKOFF="fixed:60")
    cut = cut_at(ways.proxy, step, is_done)
    ended = ways.site.worker()
    assert (ended.returncode, ended.stdout) == (0, "")
    assert [" is fatal: ValueError" in line for line in ended.stderr.splitlines()] == [True] * (step.name == "give up")
    assert cut.has_struck
    assert ways.site.tries(*LOST_CONNECTION) == 1
    assert len(ways.proxy.links) == 2
    assert_done_once(ways.site, step)


def test_a_finish_that_was_cut_off_when_patience_is_over_is_counted_as_what_it_was(ways: Ways) -> None:
    """The run ends, and what it saves then finds that finish done already."""
    ways.set(DB_PATIENCE=0)
    add(ways.site, "first", "second", "third")
    cut = ways.proxy.cut_after(contains(b"DELETE FROM `jobs_queue`"))
    assert_one_line(ways.site.worker(), 1, "(2013)")
    assert cut.has_struck
    counts = ways.site.counts()
    assert (counts["taken"], counts["done"], counts["lost"], counts["reason"]) == (2, 1, 0, "error")


def test_a_connection_that_breaks_at_a_run_s_first_statement_is_told_at_once(ways: Ways) -> None:
    """Whoever was never reached may be the wrong one."""
    add(ways.site, "first")
    cut = ways.proxy.cut_before(contains(b"SELECT MAX(version)"))
    assert_one_line(ways.site.worker(), 1, "(2013)")
    assert cut.has_struck
    assert ways.site.notes() == []


@WHEN
def test_a_release_whose_answer_is_cut_off_is_done_once(ways: Ways, is_done: bool) -> None:
    site = ways.site
    worker = running(site, "--mode", "mark")
    worker.send_signal(signal.SIGTERM)
    cut = (ways.proxy.cut_after if is_done else ways.proxy.cut_before)(contains(b"SET status = 0, claim = NULL"))
    site.go()
    assert end_of(worker) == (0, "", "")
    assert cut.has_struck
    assert site.tries(*LOST_CONNECTION) == 1
    assert site.rows("status, attempts, claim") == [(2, 1, None), (0, 0, None), (0, 0, None)]
    assert site.notes() == ["first"]


def is_finish(request: bytes) -> bool:
    """A transaction that a task's writes share, or the look whether it took effect."""
    return request.endswith(b"; COMMIT") or b"SELECT status, claim" in request


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_a_finish_whose_answer_is_cut_off_again_and_again_is_done_once(ways: Ways, mode: str) -> None:
    add(ways.site, "first", "second", "third")
    ways.set(MODE=mode)
    cut = ways.proxy.cut_after(is_finish, times=3)
    assert_silent(ways.site.worker())
    assert cut.left == 0
    assert ways.site.tries(*LOST_CONNECTION) == 3
    assert ways.site.notes() == ["first", "second", "third"]
    counts = ways.site.counts()
    assert (counts["done"], counts["lost"]) == (3, 0)


# ---- in this process, where an answer is waited for less long


class Here(NamedTuple):
    """A queue, its proxy, and a TaskServer of this process that reaches it through that."""

    ways: Ways
    server: TaskServer
    module: str

    def add(self, name: str, task: str = "note") -> None:
        self.ways.site.add(f"{self.module}.{task}", f'["{name}"]')


@pytest.fixture
def open_here(ways: Ways, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Here]]:
    monkeypatch.setattr(mysql, "READ_SECONDS_IN_A_RUN", SHORT_READ_SECONDS)
    opened = ExitStack()

    def opens(**settings: Any) -> Here:
        module = f"fault_tasks_{next(_names)}"
        folder: Path = ways.site.folder
        ways.site.deployment.write_tasks(NOTE + TASKS, f"{module}.py")
        server = TaskServer(ways.proxy.dsn(ways.site.dsn), modules=module, folder=folder, **settings)
        opened.enter_context(server)
        return Here(ways, server, module)

    with opened:
        yield opens


def lose_answer(here: Here, step: Step, is_done: bool, silent: bool) -> None:
    prepare(here.ways.site, step, here.module)
    cut = cut_at(here.ways.proxy, step, is_done, silent)
    result = here.server.run()
    assert cut.has_struck
    assert len(here.ways.proxy.links) == 2
    assert result.lost == 0
    assert_done_once(here.ways.site, step)


@cuts(quick=lambda step, is_done: is_done or step.name in ("claim", "start", "mark"))
def test_a_statement_whose_answer_is_cut_off_is_done_once(
    open_here: Callable[..., Here], step: Step, is_done: bool
) -> None:
    lose_answer(open_here(mode=step.mode, backoff="fixed:60"), step, is_done, silent=False)


@cuts(quick=lambda step, is_done: step.name == "mark" or (is_done and step.name == "start"))
def test_a_statement_that_is_never_answered_is_done_once(
    open_here: Callable[..., Here], step: Step, is_done: bool
) -> None:
    """The connection stands, as far as the worker can see."""
    lose_answer(open_here(mode=step.mode, backoff="fixed:60"), step, is_done, silent=True)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def run_to_first(here: Here, pool: ThreadPoolExecutor) -> Future[RunResult]:
    """A run of this process that is in the midst of its first task, and has claimed two more."""
    here.add("first", "wait_for_go")
    here.add("second")
    here.add("third")
    run = pool.submit(here.server.run)
    wait_until(lambda: here.ways.site.notes() == ["first"])
    return run


def leave_half_open(proxy: Proxy) -> None:
    """After the first `drop`: new connections pass once something that was said on those that stand is lost."""
    wait_until(lambda: proxy.lost_bytes > 0)
    proxy.pass_on()


def test_a_worker_gets_away_from_a_connection_that_is_half_open(
    open_here: Callable[..., Here], pool: ThreadPoolExecutor
) -> None:
    here = open_here()
    run = run_to_first(here, pool)
    here.ways.proxy.drop()
    here.ways.site.go()
    leave_half_open(here.ways.proxy)
    result = run.result()
    assert (result.done, result.lost) == (3, 0)
    assert here.ways.site.notes() == ["first", "second", "third"]
    assert here.ways.proxy.links[0].lost_at
    assert len(here.ways.proxy.links) == 2


def test_a_heartbeat_gets_away_from_a_connection_that_is_half_open_before_its_lease_ends(
    open_here: Callable[..., Here], pool: ThreadPoolExecutor
) -> None:
    here = open_here(lease=6)
    site, proxy = here.ways.site, here.ways.proxy

    def due_at() -> Any:
        return site.sql("SELECT due_at FROM jobs_queue ORDER BY id LIMIT 1")[0][0]

    run = run_to_first(here, pool)
    try:
        started = due_at()
        wait_until(lambda: due_at() > started)
        renewed = due_at()
        proxy.drop()
        leave_half_open(proxy)
        wait_until(lambda: due_at() > renewed or site.sql("SELECT NOW(6) >= ?", renewed) == [(1,)])
        assert due_at() > renewed, "the lease ended under a living worker, which others could reach"
    finally:
        proxy.reset()
        site.go()
    result = run.result()
    assert result.lost == 0
    assert result.done >= 1
    assert site.notes()[0] == "first"


@pytest.mark.long
def test_a_worker_process_gets_away_from_a_connection_that_is_half_open(ways: Ways) -> None:
    worker = running(ways.site, "--mode", "mark")
    ways.proxy.drop()
    ways.site.go()
    leave_half_open(ways.proxy)
    assert_all_once(ways.site, worker)
    assert len(ways.proxy.links) == 2


@WHEN
def test_a_late_completion_whose_answer_is_cut_off_is_done_once(
    open_here: Callable[..., Here], pool: ThreadPoolExecutor, is_done: bool
) -> None:
    """Of a task that may start once, was given up as lost, and whose worker turns out to be alive."""
    here = open_here(max_attempts=1, mode="mark")
    site, proxy = here.ways.site, here.ways.proxy
    run = run_to_first(here, pool)
    site.sql("UPDATE jobs_queue SET status = 4, error_text = 'lost: gone', due_at = NULL WHERE started_at IS NOT NULL")
    late = contains(b"AND max_attempts = 1 AND error_text LIKE")
    cut = (proxy.cut_after if is_done else proxy.cut_before)(late)
    site.go()
    result = run.result()
    assert cut.has_struck
    assert site.rows("status, attempts, error_text") == [(2, 1, None)] * 3
    assert (result.done, result.lost) == (3, 0)


def test_a_run_outlasts_a_backup_that_locks_all_tables(
    open_here: Callable[..., Here], pool: ThreadPoolExecutor
) -> None:
    """Statements that nobody waits for any more still stand on the server, and are done there once it goes on."""
    here = open_here(mode="mark")
    site, proxy = here.ways.site, here.ways.proxy
    run = run_to_first(here, pool)
    with closing(site.connect()) as backup, backup.cursor() as cursor:
        cursor.execute("LOCK TABLES jobs_queue READ")
        site.go()
        wait_until(lambda: len(proxy.links) >= 4)
        cursor.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE state LIKE 'Waiting%%lock%%'")
        assert cursor.fetchall() > ((1,),)
        cursor.execute("UNLOCK TABLES")
    result = run.result()
    assert (result.done, result.lost) == (3, 0)
    assert site.notes() == ["first", "second", "third"]
    assert site.rows("status, attempts, error_text") == [(2, 1, None)] * 3


# ---- producers do not wait, and do not repeat


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each connection that this process tries to make by taskserver's own code."""
    tried: list[int] = []
    connect = pymysql.connect

    def counting(*args: Any, **kwargs: Any) -> Any:
        if "init_command" in kwargs:  # the tests' own have none
            tried.append(len(tried))
        return connect(*args, **kwargs)

    monkeypatch.setattr(pymysql, "connect", counting)
    return tried


TASK_THAT_ADDS = (
    NOTE
    + TASKS
    + """

def add_another(name):
    from taskserver import DatabaseError, TaskServer
    try:
        TaskServer.by_a_test.add_task(f"{__name__}.note", ["added"])
    except DatabaseError as error:
        note(f"told: {error}")
"""
)


class Requests:
    """Matches requests that have these words, and counts them."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self.count = 0

    def __call__(self, request: bytes) -> bool:
        matches = self._words in request
        self.count += matches
        return matches


class Adding(NamedTuple):
    add: Callable[[TaskServer], object]
    is_one: bool
    """One INSERT that commits by itself; several tasks share a transaction."""


ADDS = pytest.mark.parametrize(
    "adding",
    [
        Adding(lambda server: server.add_task("tasks.note", ["new"]), True),
        Adding(lambda server: server.add_tasks([{"task": "tasks.note"}] * 3), False),
    ],
    ids=["one", "many"],
)


@ADDS
@pytest.mark.parametrize("is_connected", [False, True], ids=["new", "connected"])
def test_a_producer_is_told_at_once_that_the_database_is_away(
    site: Site, fragile: MariaDB, adding: Adding, is_connected: bool, connects: list[int]
) -> None:
    with TaskServer(site.dsn) as server:
        if is_connected:
            adding.add(server)
        fragile.stop()
        connects.clear()
        for _ in range(2):
            with pytest.raises(DatabaseError) as raised:
                adding.add(server)
            assert "\n" not in str(raised.value)
        # Where it was connected, the first try found that out.
        assert len(connects) == (1 if is_connected else 2)
        fragile.start()
        added = len(site.statuses())
        adding.add(server)
        assert len(site.statuses()) > added


@ADDS
def test_a_producer_that_gets_no_connection_is_told_at_once(
    plain_site: Site, adding: Adding, connects: list[int]
) -> None:
    with (
        connections_of_this_account_taken(plain_site),
        TaskServer(plain_dsn(plain_site)) as server,
        pytest.raises(DatabaseError, match="1226"),
    ):
        adding.add(server)
    assert len(connects) == 1
    assert plain_site.statuses() == []


@ADDS
@WHEN
def test_an_add_whose_answer_is_cut_off_is_not_repeated(ways: Ways, adding: Adding, is_done: bool) -> None:
    inserts = Requests(b"INSERT INTO `jobs_queue` ")
    with TaskServer(ways.proxy.dsn(ways.site.dsn)) as server:
        cut = (ways.proxy.cut_after if is_done else ways.proxy.cut_before)(inserts)
        with pytest.raises(DatabaseError) as raised:
            adding.add(server)
        assert "\n" not in str(raised.value)
        assert cut.has_struck
        assert inserts.count == 1
        is_there = is_done and adding.is_one
        assert len(ways.site.statuses()) == is_there
        adding.add(server)
        assert len(ways.site.statuses()) > is_there


def test_an_add_of_many_whose_commit_is_cut_off_is_not_repeated(ways: Ways) -> None:
    with TaskServer(ways.proxy.dsn(ways.site.dsn)) as server:
        cut = ways.proxy.cut_after(lambda request: request.endswith(b"COMMIT"))
        with pytest.raises(DatabaseError):
            server.add_tasks([{"task": "tasks.note"}] * 3)
        assert cut.has_struck
        assert ways.site.statuses() == [0, 0, 0]


def test_a_task_that_adds_by_its_run_s_server_is_told_at_once_and_the_run_goes_on(
    open_here: Callable[..., Here],
) -> None:
    """The patience is the worker's own, not that of what its tasks add."""
    here = open_here(mode="mark")
    inserts = Requests(b"INSERT INTO `jobs_queue` ")
    cut = here.ways.proxy.cut_after(inserts)
    here.ways.site.deployment.write_tasks(TASK_THAT_ADDS, f"{here.module}.py")
    TaskServer.by_a_test = here.server  # type: ignore[attr-defined]
    try:
        here.add("first", "add_another")
        here.add("second")
        result = here.server.run()
    finally:
        del TaskServer.by_a_test  # type: ignore[attr-defined]
    assert cut.has_struck
    assert inserts.count == 1
    told, second = here.ways.site.notes()
    assert told.startswith("told: 127.0.0.1")
    assert second == "second"
    assert (result.done, result.lost) == (2, 0)


def test_client_add_does_not_wait_for_a_database_that_is_away(site: Site, fragile: MariaDB) -> None:
    fragile.stop()
    added = site.client("add", "tasks.note")
    assert_one_line(added, 1, "(2003)")
    assert site.tries() == 0
