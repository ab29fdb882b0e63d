"""Adding on a caller's own connection: with their rows or not at all, whatever driver and session that is.

PyMySQL and sqlite3 in this process; mysqlclient, and Django on both databases, in the Python that has them.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections import UserDict
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.cursors import DictCursor, SSCursor, SSDictCursor

from taskserver import DatabaseError, InvalidTask, TablesMissing, TaskServer
from taskserver.errors import Conflict, ConnectionLost, TooLong
from taskserver.model.arguments import MAX_ARGS_BYTES
from taskserver.stores.mysql import callers as mysql_callers
from tests.conftest import without
from tests.support.deployment import ROOT
from tests.support.processes import assert_silent, wait_until
from tests.support.queues import Queue
from tests.support.servers import MySQLServer, find_program, plain_connection

TASKS = """
import json

note_text = note

def note(*args, **kwargs):
    note_text(json.dumps([args, kwargs]))

def first(*args):
    return args
"""

ODD_TEXT = "Grüße 🎉 日本語 'quoted' \"twice\" \\ back / slash \t tab %s %d ? {x} :y"
PASSWORD = "pass-word-1"
ORDERS = "CREATE TABLE orders (customer VARCHAR(100) NOT NULL)"
EVERY_COLUMN = (
    "task, args, group_id, priority, status, attempts, max_attempts, claim, unique_key, error_text, version, stages, "
    "stage, awaited, result, progress"
)


class Site:
    """A site that has its own table in the queue's database, and a server to add tasks with."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.server = TaskServer(queue.dsn, folder=queue.folder)
        self._opened: list[Any] = []
        queue.sql(ORDERS)

    def connect(self, **kwargs: Any) -> Any:
        """A connection of the site, that has begun nothing yet."""
        connection = self._connect(**kwargs)
        self._opened.append(connection)
        return connection

    def _connect(self, **kwargs: Any) -> Any:
        if self.queue.is_sqlite:
            return sqlite3.connect(self.queue.path, **kwargs)
        at = self.server.settings.dsn
        place = {"host": at.host, "port": at.port, "user": at.user, "password": at.password, "database": at.database}  # type: ignore[union-attr]
        return plain_connection(**(place | kwargs))

    def order(self, connection: Any) -> None:
        """A row of its own."""
        cursor = connection.cursor()
        cursor.execute("INSERT INTO orders (customer) VALUES ('Ada')")
        cursor.close()

    def orders(self) -> int:
        return len(self.queue.sql("SELECT customer FROM orders"))

    def added(self) -> list[Any]:
        """The arguments of all tasks."""
        return [args and json.loads(args) for (args,) in self.queue.rows("args")]

    def close(self) -> None:
        for connection in self._opened:
            with suppress(Exception):
                connection.close()
        self.server.close()


@pytest.fixture
def site(queue: Queue) -> Iterator[Site]:
    site = Site(queue)
    yield site
    site.close()


@pytest.fixture
def mysql_site(mysql_queue: Queue) -> Iterator[Site]:
    site = Site(mysql_queue)
    yield site
    site.close()


@pytest.fixture
def sqlite_site(sqlite_queue: Queue) -> Iterator[Site]:
    site = Site(sqlite_queue)
    yield site
    site.close()


# ---- together or not at all


def test_a_task_is_there_with_the_callers_row_once_they_commit_and_runs_then(site: Site) -> None:
    connection = site.connect()
    site.order(connection)
    task_id = site.server.add_task("tasks.note", {"text": ODD_TEXT}, connection=connection)
    assert (site.orders(), site.queue.rows()) == (0, [])
    if not site.queue.is_sqlite:  # there the site holds the write lock, which a worker waits for
        assert_silent(site.queue.worker())
    assert site.queue.notes() == []
    connection.commit()
    assert (site.orders(), site.queue.rows("id")) == (1, [(task_id,)])
    assert_silent(site.queue.worker())
    assert [json.loads(note) for note in site.queue.notes()] == [[[], {"text": ODD_TEXT}]]


def test_a_task_is_rolled_back_with_the_callers_row(site: Site) -> None:
    connection = site.connect()
    site.order(connection)
    site.server.add_task("tasks.note", connection=connection)
    site.server.add_pipeline(["tasks.first", "tasks.note"], connection=connection)
    site.server.add_tasks([{"task": "tasks.note", "unique_key": "k"}, {"task": "tasks.note"}], connection=connection)
    connection.rollback()
    assert (site.orders(), site.queue.rows()) == (0, [])


def test_a_task_is_undone_with_the_callers_savepoint_alone(site: Site) -> None:
    connection = site.connect()
    site.order(connection)
    cursor = connection.cursor()
    first = site.server.add_task("tasks.note", connection=connection)
    cursor.execute("SAVEPOINT theirs")
    site.server.add_task("tasks.note", unique_key="k", connection=connection)
    cursor.execute("ROLLBACK TO SAVEPOINT theirs")
    connection.commit()
    assert (site.orders(), site.queue.rows("id")) == (1, [(first,)])


def test_what_the_server_adds_without_the_connection_stays_its_own(mysql_site: Site) -> None:
    connection = mysql_site.connect()
    mysql_site.server.add_task("tasks.note", ["theirs"], connection=connection)
    mysql_site.server.add_task("tasks.note", ["ours"])
    connection.rollback()
    assert mysql_site.added() == [["ours"]]


# ---- kinds

AT = datetime(2031, 3, 4, 5, 6, 7, 89_000, timezone.utc)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "arguments": {"args": [1, None, "a'b\\c", {"?": "%s"}], "group_id": 3, "priority": -5},
    "attempts": {"max_attempts": 3},
    "delay": {"delay": timedelta(hours=2, milliseconds=250)},
    "at": {"at": AT},
    "key": {"unique_key": "a'b\\c % ? é"},
    "rerun": {"unique_key": "k", "rerun": True},
    "rerun later": {"unique_key": "k", "rerun": True, "delay": 60},
    "version": {"unique_key": "k", "rerun": True, "version": 17},
    "all": {
        "args": {"a": 1},
        "unique_key": "k",
        "rerun": True,
        "version": 17,
        "at": AT,
        "max_attempts": 2,
        "group_id": 9,
    },
}


def due_in(site: Site) -> list[float | None]:
    """Seconds until the tasks are due."""
    seconds = site.queue.seconds_between(site.queue.now, "due_at")
    return [None if value is None else float(value) for (value,) in site.queue.rows(seconds)]


@pytest.mark.parametrize(
    ("kind", "stands"),
    [*((kind, False) for kind in KINDS), *((kind, True) for kind in KINDS if "unique_key" in KINDS[kind])],
)
@pytest.mark.parametrize("pipeline", [False, True], ids=["", "pipeline"])
def test_a_task_of_every_kind_is_the_same_row_as_without_the_connection(
    site: Site, kind: str, stands: bool, pipeline: bool
) -> None:
    stages: list[Any] = ["tasks.first", {"task": "tasks.note", "group_id": 5}]
    rows, due = [], []
    connection = site.connect()
    for given in ({}, {"connection": connection}):
        site.queue.sql("DELETE FROM jobs_queue")
        if stands:
            site.server.add_task("tasks.old", ["old"], unique_key=KINDS[kind]["unique_key"])
        task_id = (
            site.server.add_pipeline(stages, **KINDS[kind], **given)
            if pipeline
            else site.server.add_task("tasks.note", **KINDS[kind], **given)
        )
        connection.commit()
        assert site.queue.rows("id") == [(task_id,)]
        rows.append(site.queue.rows(EVERY_COLUMN))
        due += due_in(site)
    assert rows[0] == rows[1]
    assert due[1] == (None if due[0] is None else pytest.approx(due[0], abs=5))
    if "at" in KINDS[kind] and (not stands or "rerun" in KINDS[kind]):
        text = (
            "due_at"
            if site.queue.is_sqlite
            else "DATE_FORMAT(CONVERT_TZ(due_at, @@time_zone, '+00:00'), '%%Y-%%m-%%d %%T.%%f')"
        )
        assert site.queue.rows(text) == [("2031-03-04 05:06:07.089000",)]


def test_an_older_version_changes_nothing_and_its_id_is_known(site: Site) -> None:
    key: dict[str, Any] = {"unique_key": "k", "rerun": True}
    first = site.server.add_task("tasks.note", ["new"], version=17, **key)
    connection = site.connect()
    site.server.add_task("tasks.note", ["other"], connection=connection)
    assert site.server.add_task("tasks.note", ["old"], version=16, connection=connection, **key) == first
    connection.commit()
    assert site.added() == [["new"], ["other"]]


def test_many_tasks_of_all_kinds_have_their_ids_in_order(site: Site) -> None:
    def described() -> Iterator[dict[str, Any]]:
        for number in range(2500):
            kind = number // 4 % 5
            more: list[dict[str, Any]] = [{}, {"delay": 60}, {"unique_key": f"k{number % 7}"}, {"max_attempts": 2}, {}]
            yield {"task": "tasks.note", "args": [number], **more[kind]}

    connection = site.connect()
    site.order(connection)
    ids = site.server.add_tasks(described(), connection=connection)
    assert site.queue.rows() == []
    connection.commit()
    rows = {
        args[0]: task_id for (task_id, args) in zip([i for (i,) in site.queue.rows("id")], site.added(), strict=True)
    }
    keyed: dict[int, int] = {}
    for number, task_id in enumerate(ids):
        if number // 4 % 5 == 2:
            assert keyed.setdefault(number % 7, task_id) == task_id
        else:
            assert rows[number] == task_id
    assert len(ids) == 2500
    assert len(rows) == 2000 + 7
    assert sorted(set(keyed.values()) & set(rows.values())) == sorted(keyed.values())


def test_an_iterator_may_add_tasks_on_the_connection_itself(site: Site) -> None:
    connection = site.connect()

    def described() -> Iterator[dict[str, Any]]:
        yield {"task": "tasks.note", "args": ["one"]}
        site.server.add_task("tasks.note", ["inside"], connection=connection)
        yield {"task": "tasks.note", "args": ["two"], "unique_key": "k"}

    ids = site.server.add_tasks(described(), connection=connection)
    connection.commit()
    assert sorted(site.added()) == [["inside"], ["one"], ["two"]]
    assert len(ids) == 2


def test_keyed_tasks_of_an_iterator_are_checked_before_the_first_of_them_is_sent(site: Site) -> None:
    described = ({"task": "tasks.note", "unique_key": key} for key in ("a", "b", ""))
    connection = site.connect()
    with pytest.raises(InvalidTask, match="task 3: unique_key"):
        site.server.add_tasks(described, connection=connection)
    connection.commit()
    assert site.added() == []


def test_threads_add_on_connections_of_their_own_with_one_server(mysql_site: Site) -> None:
    def add(number: int) -> None:
        connection = mysql_site.connect()
        for _ in range(20):
            mysql_site.server.add_task("tasks.note", [number], connection=connection)
            (connection.rollback if number % 2 else connection.commit)()

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(mysql_site.added()) == [[0]] * 20 + [[2]] * 20


# ---- tasks that wait for others


def test_a_task_waits_for_one_of_the_same_transaction(site: Site) -> None:
    connection = site.connect()
    parent = site.server.add_task("tasks.note", ["parent"], priority=5, connection=connection)
    child = site.server.add_task("tasks.note", ["child"], depends_on=[parent], connection=connection)
    site.server.add_tasks(
        [{"task": "tasks.note", "args": ["grandchild"], "depends_on": [parent, child]}], connection=connection
    )
    connection.commit()
    assert_silent(site.queue.worker())
    assert [json.loads(note)[0] for note in site.queue.notes()] == [["parent"], ["child"], ["grandchild"]]


def test_a_task_that_would_wait_for_a_newer_one_is_refused_and_runs_not_even_if_it_is_committed(site: Site) -> None:
    connection = site.connect()
    first = site.server.add_task("tasks.note", ["first"], connection=connection)
    with pytest.raises(InvalidTask, match=rf"depends_on names {first + 10}, .*; roll your transaction back"):
        site.server.add_task("tasks.note", ["child"], depends_on=[first, first + 10], connection=connection)
    with pytest.raises(InvalidTask, match=r"task 2: depends_on .*; roll your transaction back"):
        site.server.add_tasks(
            [{"task": "tasks.note"}, {"task": "tasks.note", "depends_on": [first + 10]}], connection=connection
        )
    connection.commit()
    site.queue.worker()
    assert [json.loads(note)[0] for note in site.queue.notes()] == [["first"], []]
    named = f"dependency: task {first + 10}, for which it waits, is not older than this one"
    assert site.queue.first_lines() == [named] * 2


# ---- what goes over the connection

OURS = re.compile(r"(INSERT INTO|SELECT) ")


class Recording(pymysql.connections.Connection):
    """Keeps what is sent."""

    sent: list[str]

    def _execute_command(self, command: int, sql: Any) -> None:
        text = sql.decode("utf-8", "replace") if isinstance(sql, bytes) else str(sql)
        self.__dict__.setdefault("sent", []).append(text)
        super()._execute_command(command, sql)  # type: ignore[misc]


def add_some(site: Site, connection: Any) -> list[int]:
    """Tasks of several kinds, by statements of all forms."""
    server = site.server
    first = server.add_task("tasks.note", [ODD_TEXT], connection=connection)
    return [
        first,
        server.add_task("tasks.note", delay=60, connection=connection),
        server.add_task("tasks.note", depends_on=[first], connection=connection),
        server.add_pipeline(["tasks.first", "tasks.note"], unique_key="p", connection=connection),
        *server.add_tasks(
            [
                *({"task": "tasks.note", "unique_key": key, "rerun": True} for key in ("a", "é", "a")),
                *({"task": "tasks.note", "at": AT} for _ in range(3)),
            ],
            connection=connection,
        ),
    ]


def assert_added(site: Site, ids: list[int]) -> None:
    rows = {row[0]: row[1:] for row in site.queue.rows("id, unique_key, status")}
    assert set(rows) == set(ids)
    assert len(rows) == len(ids) - 1
    key = str if site.queue.is_sqlite else str.encode
    assert [rows[task_id][0] for task_id in ids] == [
        *(None, None, None, key("p"), key("a"), key("é"), key("a"), None, None, None)
    ]
    assert site.queue.sql("SELECT parent_id, child_id FROM jobs_queue_dependencies") == [(ids[0], ids[2])]


def test_nothing_is_sent_to_mysql_but_inserts_and_a_look(mysql_site: Site) -> None:
    at: Any = mysql_site.server.settings.dsn
    connection = Recording(host=at.host, port=at.port, user=at.user, password=at.password, database=at.database)
    with closing(connection):
        connection.sent.clear()
        ids = add_some(mysql_site, connection)
        assert connection.sent
        assert not [sql for sql in connection.sent if not OURS.match(sql)]
        connection.commit()
    assert_added(mysql_site, ids)


def test_nothing_is_sent_to_sqlite_but_inserts_and_a_look_and_the_drivers_own_begin(sqlite_site: Site) -> None:
    connection = sqlite_site.connect()
    sent: list[str] = []
    connection.set_trace_callback(sent.append)
    ids = add_some(sqlite_site, connection)
    asks, begins, *others = sent
    assert (asks, begins.strip()) == ("PRAGMA database_list", "BEGIN")
    assert not [sql for sql in others if not (OURS.match(sql) or sql == asks)]
    assert connection.in_transaction
    connection.commit()
    assert_added(sqlite_site, ids)


# A view of the processes, as that of transactions is kept for as long as one goes on asking.
WAITING = "SELECT COUNT(*) FROM information_schema.processlist WHERE id = ? AND info LIKE 'INSERT INTO%%'"
CHANGE_BY_THEMSELVES = {
    "timestamp",
    "last_insert_id",
    "identity",
    "last_gtid",
    "statement_id",
    "warning_count",
    "error_count",
}
FOREIGN_SESSION = (
    "SET time_zone = '+05:00'",
    "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,IGNORE_SPACE,NO_ZERO_DATE'",
    "SET innodb_lock_wait_timeout = 17",
)


def session_of(connection: Any) -> dict[str, str]:
    with connection.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute("SHOW SESSION VARIABLES")
        return {name: value for name, value in cursor.fetchall() if name not in CHANGE_BY_THEMSELVES}


@pytest.mark.parametrize("autocommit", [False, True], ids=["", "autocommit"])
@pytest.mark.parametrize("begun", [False, True], ids=["", "begun"])
def test_a_session_is_after_it_as_it_was_before(mysql_site: Site, autocommit: bool, begun: bool) -> None:
    connection = mysql_site.connect(autocommit=autocommit, charset="latin1")
    cursor = connection.cursor()
    for statement in FOREIGN_SESSION:
        cursor.execute(statement)
    if begun:
        connection.begin()
        mysql_site.order(connection)
        cursor.execute("SAVEPOINT theirs")
    before = session_of(connection)
    ids = add_some(mysql_site, connection)
    if not autocommit and not begun and "in_transaction" in before:  # MySQL does not tell
        before["in_transaction"] = "1"  # as the first row of the site's own would have it
    assert session_of(connection) == before
    assert before["time_zone"] == "+05:00"
    assert len(mysql_site.queue.rows()) == (len(ids) - 1 if autocommit and not begun else 0)
    if begun:
        cursor.execute("ROLLBACK TO SAVEPOINT theirs")
        connection.commit()
        assert (mysql_site.orders(), mysql_site.queue.rows()) == (1, [])
    else:
        connection.commit()
        assert_added(mysql_site, ids)


# ---- forms of rows


@pytest.mark.parametrize("form", [DictCursor, SSCursor, SSDictCursor])
def test_a_connection_may_give_rows_in_other_forms_and_unbuffered(mysql_site: Site, form: Any) -> None:
    connection = mysql_site.connect(cursorclass=form)
    mysql_site.order(connection)
    ids = add_some(mysql_site, connection)
    with connection.cursor() as cursor:  # would tell of a result that was left unread
        cursor.execute("SELECT 1 AS one")
        assert len(cursor.fetchall()) == 1
    connection.commit()
    assert_added(mysql_site, ids)


def test_a_connection_may_give_numbers_as_text(mysql_site: Site) -> None:
    connection = mysql_site.connect(conv=dict(pymysql.converters.encoders))
    ids = add_some(mysql_site, connection)
    connection.commit()
    assert_added(mysql_site, ids)


def of_no_use(cursor: Any, row: Any) -> object:
    return object()


def as_dict(cursor: Any, row: Any) -> Any:
    return UserDict({column[0]: value for column, value in zip(cursor.description, row, strict=True)})


@pytest.mark.parametrize("factory", [sqlite3.Row, as_dict, of_no_use])
@pytest.mark.parametrize("text", [str, bytes, len])
def test_a_connection_to_sqlite_may_give_rows_in_other_forms(sqlite_site: Site, factory: Any, text: Any) -> None:
    connection = sqlite_site.connect(isolation_level="IMMEDIATE")
    connection.row_factory = factory
    connection.text_factory = text
    ids = add_some(sqlite_site, connection)
    connection.commit()
    assert_added(sqlite_site, ids)
    assert (connection.row_factory, connection.text_factory) == (factory, text)


def test_a_connection_may_come_out_of_a_pool_that_wraps_it(site: Site) -> None:
    class Borrowed:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

    connection = Borrowed(site.connect())
    ids = add_some(site, connection)
    connection.commit()
    assert_added(site, ids)


def test_every_cursor_is_closed_after_errors_too(site: Site) -> None:
    connection = site.connect()
    cursors: list[Any] = []

    class Counting:
        def cursor(self) -> Any:
            cursors.append(connection.cursor())
            return cursors[-1]

    # The cursor tells what it is of.
    add_some(site, Counting())
    with pytest.raises(InvalidTask):
        site.server.add_tasks(iter([{"task": "tasks.note"}, {}]), connection=Counting())
    with TaskServer(site.queue.dsn, table="elsewhere") as server, pytest.raises(TablesMissing):
        server.add_task("tasks.note", connection=Counting())
    assert len(cursors) == 5 + 2
    for cursor in cursors:
        with pytest.raises((sqlite3.ProgrammingError, pymysql.ProgrammingError)):
            cursor.execute("SELECT 1")


def test_a_deadlock_is_told_and_nothing_is_done_again(mysql_site: Site) -> None:
    connection, other = mysql_site.connect(), mysql_site.connect()
    mysql_site.server.add_task("tasks.note", unique_key="a", connection=other)
    for number in range(20):  # who changed more stays
        mysql_site.server.add_task("tasks.note", [number], connection=other)
    mysql_site.order(connection)
    mysql_site.server.add_task("tasks.note", unique_key="b", connection=connection)
    waits = threading.Thread(
        target=mysql_site.server.add_task, args=("tasks.note",), kwargs={"unique_key": "b", "connection": other}
    )
    waits.start()
    wait_until(lambda: mysql_site.queue.sql(WAITING, other.thread_id()) == [(1,)])
    with pytest.raises(Conflict, match="do all of it again"):
        mysql_site.server.add_task("tasks.note", unique_key="a", connection=connection)
    waits.join()
    connection.commit()  # of what the server has undone
    assert (mysql_site.orders(), mysql_site.queue.rows()) == (0, [])
    other.commit()
    assert len(mysql_site.queue.rows()) == 22


def test_a_raw_connection_of_sqlalchemy_serves(site: Site) -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    driver = "sqlite://" if site.queue.is_sqlite else "mysql+pymysql://"
    engine = sqlalchemy.create_engine(driver, creator=site.connect)
    with engine.begin() as connection:
        ids = add_some(site, connection.connection)
    with closing(engine.raw_connection()) as connection, suppress(KeyError):
        site.server.add_task("tasks.note", connection=connection)
        raise KeyError
    assert_added(site, ids)


# ---- foreign sessions


def due(site: Site) -> list[tuple[str]]:
    with site.connect(autocommit=True).cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        cursor.execute("SELECT DATE_FORMAT(due_at, '%Y-%m-%d %H:%i:%s.%f') FROM jobs_queue ORDER BY id")
        return list(cursor.fetchall())


@pytest.fixture
def new_york(mysql_site: Site, mysql_server: MySQLServer) -> str:
    """A zone with summer time, which a server knows once its tables are loaded."""
    zone = "America/New_York"
    file, program = Path("/usr/share/zoneinfo", zone), find_program("mariadb-tzinfo-to-sql")
    try:
        mysql_server.execute(f"SET time_zone = '{zone}'")
    except pymysql.MySQLError:
        if program is None or not file.exists():
            pytest.skip("the server has no time zones, and there is nothing to load them from")
        made = subprocess.run([program, str(file), zone], capture_output=True, text=True, check=True).stdout
        inserts = re.findall(r"^INSERT [^;]*;", made, re.MULTILINE)
        with (
            mysql_server.connect(database="mysql") as connection,
            connection.cursor() as cursor,
            suppress(pymysql.MySQLError),
        ):
            for statement in inserts:  # each hands the zone's number on to the next, in @time_zone_id
                cursor.execute(statement)
                if "time_zone (" in statement.partition("VALUES")[0]:
                    cursor.execute("SET @time_zone_id = LAST_INSERT_ID()")
        mysql_server.execute(f"SET time_zone = '{zone}'")
    return zone


def test_an_instant_is_right_in_a_session_of_any_time_zone(mysql_site: Site) -> None:
    for offset in ("+05:00", "-09:30", "SYSTEM"):
        connection = mysql_site.connect()
        connection.cursor().execute(f"SET time_zone = '{offset}', timestamp = 1900000000.25")
        mysql_site.server.add_task("tasks.note", at=AT, connection=connection)
        mysql_site.server.add_task("tasks.note", delay=3600.5, connection=connection)
        connection.commit()
    assert due(mysql_site) == [("2031-03-04 05:06:07.089000",), ("2030-03-17 18:46:40.750000",)] * 3


@pytest.mark.parametrize(
    ("now", "delay", "at"),
    [
        ("2026-03-08 06:30:00.250000", 3600, "2026-03-08 07:30:00.250000"),  # 02:30 is not there on that day
        ("2026-03-08 06:30:00.250000", 86400, "2026-03-09 06:30:00.250000"),
        ("2026-11-01 04:30:00.250000", 86400, "2026-11-02 04:30:00.250000"),
        ("2026-11-01 05:30:00.250000", 86400, "2026-11-02 05:30:00.250000"),  # 01:30, for the first time
        ("2026-11-01 06:30:00.250000", 86400, "2026-11-02 06:30:00.250000"),  # 01:30, for the second time
    ],
)
def test_an_instant_is_right_across_a_change_of_summer_time(
    mysql_site: Site, new_york: str, now: str, delay: int, at: str
) -> None:
    connection = mysql_site.connect()
    stamp = datetime.fromisoformat(f"{now}+00:00").timestamp()
    connection.cursor().execute(f"SET time_zone = '{new_york}', timestamp = {stamp}")
    mysql_site.server.add_task("tasks.note", delay=delay, connection=connection)
    mysql_site.server.add_task("tasks.note", at=f"{at}+00:00", connection=connection)
    mysql_site.server.add_task("tasks.note", unique_key="k", connection=connection)
    mysql_site.server.add_task("tasks.note", unique_key="k", rerun=True, delay=delay, connection=connection)
    connection.commit()
    assert due(mysql_site) == [(at,)] * 3


@pytest.mark.parametrize("charset", ["latin1", "utf8mb3", "utf8mb4", "gbk"])
@pytest.mark.parametrize("mode", ["", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,STRICT_ALL_TABLES"])
def test_texts_come_through_a_session_of_any_character_set_and_mode(mysql_site: Site, charset: str, mode: str) -> None:
    connection = mysql_site.connect(charset="utf8mb4" if charset == "utf8mb3" else charset, sql_mode=mode)
    if charset == "utf8mb3":
        connection.cursor().execute("SET NAMES utf8")
    key = "schlüssel 日本 🎉 ' \\ \" %"
    ids = [
        mysql_site.server.add_task("tasks.note", [ODD_TEXT], connection=connection),
        mysql_site.server.add_task("tasks.note", {"größe": ODD_TEXT}, unique_key=key, connection=connection),
        mysql_site.server.add_pipeline(["tasks.first", "tasks.größe"], [ODD_TEXT], connection=connection),
    ]
    connection.commit()
    assert mysql_site.added() == [[ODD_TEXT], {"größe": ODD_TEXT}, [ODD_TEXT]]
    assert mysql_site.queue.rows("unique_key") == [(None,), (key.encode(),), (None,)]
    assert json.loads(mysql_site.queue.rows("stages")[2][0])[1]["task"] == "tasks.größe"
    assert mysql_site.server.add_task("tasks.note", unique_key=key) == ids[1]


def test_arguments_that_would_be_too_long_in_ascii_are_sent_as_they_are(mysql_site: Site) -> None:
    connection = mysql_site.connect(charset="utf8mb4")
    text = "é" * (MAX_ARGS_BYTES // 2 - 10)
    mysql_site.server.add_task("tasks.note", [text], connection=connection)
    connection.commit()
    assert mysql_site.queue.rows("args") == [(f'["{text}"]',)]


def test_a_key_that_another_committed_since_an_old_snapshot_is_found(mysql_site: Site) -> None:
    connection = mysql_site.connect()
    cursor = connection.cursor()
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with suppress(pymysql.MySQLError):
        cursor.execute("SET innodb_snapshot_isolation = OFF")  # newer ones would call it a conflict
    cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    first = mysql_site.server.add_task("tasks.note", unique_key="k")
    cursor.execute("SELECT COUNT(*) FROM jobs_queue")
    assert cursor.fetchall() == ((0,),)
    assert mysql_site.server.add_task("tasks.note", unique_key="k", connection=connection) == first
    described = [{"task": "tasks.note", "unique_key": key} for key in ("j", "k", "j")]
    new, *again = mysql_site.server.add_tasks(described, connection=connection)
    assert again == [first, new]
    connection.commit()
    assert mysql_site.queue.rows("id") == [(first,), (new,)]


def test_each_statement_commits_by_itself_where_the_session_does_so(site: Site) -> None:
    connection = site.connect(**({"isolation_level": None} if site.queue.is_sqlite else {"autocommit": True}))
    first = site.server.add_task("tasks.note", unique_key="k", connection=connection)
    assert site.queue.rows("id") == [(first,)]
    assert site.server.add_task("tasks.note", unique_key="k", connection=connection) == first
    site.queue.sql("UPDATE jobs_queue SET status = 1, claim = 7")
    assert site.server.add_task("tasks.note", unique_key="k", rerun=True, connection=connection) == first
    assert site.queue.statuses() == [0]


# ---- errors


class Cursorless:
    cursor = None


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (lambda site: site.queue.dsn, "a str"),
        (lambda site: site.server, "a TaskServer"),
        (lambda site: site.connect().cursor(), r"a \w*Cursor"),
        (lambda site: False, "a bool"),
        (lambda site: Cursorless(), "a Cursorless"),
        (lambda site: sqlite3.Connection, "the class Connection"),
    ],
)
def test_what_is_no_connection_is_refused(site: Site, wrong: Callable[[Site], object], what: str) -> None:
    for add in (
        lambda given: site.server.add_task("tasks.note", connection=given),
        lambda given: site.server.add_pipeline(["tasks.note"], connection=given),
        lambda given: site.server.add_tasks([{"task": "tasks.note"}], connection=given),
    ):
        with pytest.raises(
            InvalidTask, match=rf"connection is {what}; allowed: an open connection .*PyMySQL"
        ) as caught:
            add(wrong(site))
        assert "mysql://" not in str(caught.value)
    assert site.queue.rows() == []


class Unknown:
    """A connection whose driver does not say how it writes values."""

    closed = 0

    def cursor(self) -> Unknown:
        return self

    def close(self) -> None:
        self.closed += 1


def test_a_driver_that_does_not_say_how_it_marks_values_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Unknown()
    with pytest.raises(InvalidTask, match="connection is an Unknown without a paramstyle; allowed"):
        site.server.add_task("tasks.note", connection=connection)
    monkeypatch.setitem(globals(), "paramstyle", "numeric")
    with pytest.raises(InvalidTask, match="connection is one with the paramstyle numeric; allowed"):
        site.server.add_task("tasks.note", connection=connection)
    assert connection.closed == 2


def test_a_connection_to_another_kind_of_database_is_refused_before_anything_is_sent(
    mysql_site: Site, tmp_path: Path
) -> None:
    other = sqlite3.connect(":memory:")
    sent: list[str] = []
    other.set_trace_callback(sent.append)
    with pytest.raises(InvalidTask, match="is one to SQLite, and the queue of TASKSERVER_DSN lies in MySQL; allowed"):
        mysql_site.server.add_task("tasks.note", connection=other)
    assert sent == []
    connection = mysql_site.connect()
    with TaskServer(f"sqlite:///{tmp_path}/x.db") as server, pytest.raises(InvalidTask, match="is one to MySQL, and"):
        server.add_task("tasks.note", connection=connection)


def test_a_closed_connection_is_an_error_that_says_so(site: Site) -> None:
    connection = site.connect()
    connection.close()
    with pytest.raises(DatabaseError, match=r"on the connection that was given: .*closed") as caught:
        site.server.add_task("tasks.note", connection=connection)
    assert isinstance(caught.value.__cause__, (sqlite3.Error, pymysql.Error))


def test_a_connection_that_breaks_is_an_error_that_says_so(mysql_site: Site) -> None:
    connection = mysql_site.connect()
    mysql_site.order(connection)
    mysql_site.queue.sql(f"KILL {connection.thread_id()}")
    with pytest.raises(ConnectionLost, match="open another, and do all of your transaction again"):
        mysql_site.server.add_task("tasks.note", connection=connection)
    assert (mysql_site.orders(), mysql_site.queue.rows()) == (0, [])


@pytest.mark.parametrize("place", ["other.db", ":memory:", ""])
def test_a_connection_to_another_file_is_refused_though_it_has_the_tables_of_a_queue(
    sqlite_site: Site, tmp_path: Path, place: str
) -> None:
    path = tmp_path / place if place.endswith(".db") else place
    with TaskServer(f"sqlite:///{tmp_path / 'other.db'}") as other:
        other.store.tables.create()
    with closing(sqlite3.connect(path)) as connection:
        with pytest.raises(InvalidTask, match=r"connection is one to .*, and the queue of TASKSERVER_DSN lies in .*db"):
            sqlite_site.server.add_task("tasks.note", connection=connection)
        assert not connection.in_transaction
    assert sqlite_site.queue.rows() == []


def test_a_connection_to_a_file_of_its_own_that_attached_the_queues_serves(sqlite_site: Site, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("ATTACH DATABASE ? AS queue", (str(sqlite_site.queue.path),))
        sqlite_site.server.add_task("tasks.note", [1], connection=connection)
        connection.commit()
    assert sqlite_site.added() == [[1]]


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_connection_to_another_database_of_the_server_adds_to_the_queue(
    mysql_site: Site, mysql_server: MySQLServer, has_tables: bool
) -> None:
    with mysql_server.database() as name:
        if has_tables:
            with TaskServer(mysql_server.dsn(name)) as other:
                other.store.tables.create()
        for database in (name, None):
            connection = mysql_site.connect(database=database)
            add = partial(mysql_site.server.add_task, "tasks.note", connection=connection)
            first = add([1], unique_key="k")
            assert add([1], unique_key="k") == first
            add([2], depends_on=[first])
            connection.commit()
            assert mysql_site.added() == [[1], [2]]
            mysql_site.queue.sql("DELETE FROM jobs_queue")


def test_a_queue_that_is_not_where_the_connection_leads_is_told_as_such(mysql_site: Site) -> None:
    mysql_site.queue.sql("DROP TABLE jobs_queue")
    with pytest.raises(TablesMissing, match="reaches no tables of jobs_queue: is it to the database of TASKSERVER_DSN"):
        mysql_site.server.add_task("tasks.note", connection=mysql_site.connect())


def test_what_others_hold_is_a_conflict_that_is_not_repeated_and_leaves_the_rest_to_the_caller(site: Site) -> None:
    holder, connection = site.connect(), site.connect(**({"timeout": 0.2} if site.queue.is_sqlite else {}))
    site.order(connection)
    if not site.queue.is_sqlite:
        connection.cursor().execute("SET innodb_lock_wait_timeout = 1")
        site.server.add_task("tasks.note", ["theirs"], unique_key="k", connection=holder)
    else:
        connection.commit()
        holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(Conflict, match="roll your transaction back, and do all of it again"):
        site.server.add_task("tasks.note", unique_key="k", connection=connection)
    holder.rollback()
    site.server.add_task("tasks.note", ["again"], unique_key="k", connection=connection)
    connection.commit()
    assert (site.orders(), site.added()) == (1, [["again"]])


def test_a_statement_that_is_too_long_is_told_as_such(mysql_site: Site) -> None:
    connection = mysql_site.connect()
    ((size,),) = mysql_site.queue.sql("SELECT @@GLOBAL.max_allowed_packet")
    mysql_site.queue.sql("SET GLOBAL max_allowed_packet = 65536")
    try:
        connection = mysql_site.connect()
        # Over TLS, old servers hang up before they can say why.
        told = r"raise the server's max_allowed_packet|MySQL server has gone away"
        with pytest.raises((TooLong, ConnectionLost), match=told):
            mysql_site.server.add_task("tasks.note", ["x" * 100_000], connection=connection)
    finally:
        mysql_site.queue.sql("SET GLOBAL max_allowed_packet = ?", size)


def test_a_delay_beyond_what_the_column_holds_is_refused(mysql_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_callers, "LAST_SECOND", time.time() + 100)
    connection = mysql_site.connect()
    mysql_site.server.add_task("tasks.note", delay=50, connection=connection)
    with pytest.raises(InvalidTask, match="delay is 200 seconds, which ends after 2038-01-18"):
        mysql_site.server.add_task("tasks.note", delay=200, connection=connection)


def test_a_missing_right_names_the_document_and_no_password(mysql_site: Site, mysql_server: MySQLServer) -> None:
    at: Any = mysql_site.server.settings.dsn
    user = at.database[:16]
    mysql_server.execute(
        f"CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'", f"GRANT SELECT ON `{at.database}`.* TO '{user}'@'%'"
    )
    try:
        connection = mysql_site.connect(user=user, password=PASSWORD)
        with pytest.raises(DatabaseError, match=r"denied.*the account of that connection.*docs/security\.md") as caught:
            mysql_site.server.add_task("tasks.note", connection=connection)
        assert PASSWORD not in repr(caught.value) + repr(caught.value.__cause__)
        connection.close()
    finally:
        mysql_server.execute(f"DROP USER '{user}'@'%'")


def test_a_mapping_of_add_tasks_may_not_hold_the_connection(site: Site) -> None:
    with pytest.raises(InvalidTask, match="task 1: it has 'connection'; allowed: task, args"):
        site.server.add_tasks([{"task": "tasks.note", "connection": site.connect()}])


def test_a_wrong_task_in_a_list_is_found_before_anything_is_sent(site: Site) -> None:
    connection = site.connect()
    with pytest.raises(InvalidTask, match="task 2: it has no"):
        site.server.add_tasks([{"task": "tasks.note"}, {}], connection=connection)
    connection.commit()
    assert site.queue.rows() == []


# ---- mysqlclient and Django

DJANGO_PYTHON = "/usr/bin/python3"
CONNECT = {
    "MySQLdb": """
import MySQLdb, MySQLdb.cursors
from taskserver import TaskServer
server = TaskServer(place["dsn"])
at = server.settings.dsn
connection = MySQLdb.connect(
    host=at.host, port=at.port, user=at.user, password=at.password, database=at.database, charset="latin1",
    cursorclass=MySQLdb.cursors.SSDictCursor,
)
connection.query("SET time_zone = '+05:00'")
""",
    "django": """
import django
from django.conf import settings
settings.configure(DATABASES={"default": place["django"]}, USE_TZ=True, DEBUG=place["debug"])
django.setup()
from django.db import connection, transaction
from taskserver import TaskServer
server = TaskServer(place["dsn"])
""",
}
PROGRAM = """
import json, sys
place = json.loads(sys.argv[1])
from taskserver import DatabaseError
from datetime import datetime, timezone
AT = datetime(2031, 3, 4, 5, 6, 7, 89_000, timezone.utc)
"""
ADD_SOME = """
def add_some():
    cursor = connection.cursor()
    cursor.execute("INSERT INTO orders (customer) VALUES (%s)", ["Ada"])
    cursor.close()
    first = server.add_task("tasks.note", [place["text"]], connection=connection)
    return [
        first,
        server.add_task("tasks.note", at=AT, connection=connection),
        server.add_task("tasks.note", depends_on=[first], connection=connection),
        server.add_pipeline(["tasks.first", "tasks.note"], unique_key="p", connection=connection),
        *server.add_tasks(
            [
                *({"task": "tasks.note", "unique_key": key, "rerun": True} for key in ("a", "é", "a")),
                *({"task": "tasks.note", "delay": 3600} for _ in range(3)),
            ],
            connection=connection,
        ),
    ]
"""


class There:
    """The Python that has Django and mysqlclient, with taskserver and PyMySQL in its path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        for package in (ROOT / "taskserver", Path(pymysql.__file__).parent):
            (path / package.name).symlink_to(package)

    def run(self, site: Site, driver: str, code: str, debug: bool = False) -> Any:
        """Runs code that has `connection`, `server` and `add_some`. What it prints, which is JSON."""
        place = {"dsn": site.queue.dsn, "django": _djangos(site), "debug": debug, "text": ODD_TEXT}
        done = subprocess.run(
            [DJANGO_PYTHON, "-c", PROGRAM + CONNECT[driver] + ADD_SOME + code, json.dumps(place)],
            env={"PYTHONPATH": str(self._path), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)


def _djangos(site: Site) -> dict[str, Any]:
    """The database, as in Django's settings."""
    if site.queue.is_sqlite:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(site.queue.path)}
    at: Any = site.server.settings.dsn
    place = {"HOST": at.host, "PORT": at.port, "NAME": at.database, "USER": at.user, "PASSWORD": at.password}
    return {"ENGINE": "django.db.backends.mysql", "OPTIONS": {"charset": "utf8mb4"}, **place}


@pytest.fixture
def there(tmp_path: Path) -> There:
    check = [DJANGO_PYTHON, "-c", "import django, MySQLdb"]
    if not Path(DJANGO_PYTHON).exists() or subprocess.run(check, capture_output=True).returncode != 0:
        without(f"{DJANGO_PYTHON} has no Django with mysqlclient")
    path = tmp_path / "path"
    path.mkdir()
    return There(path)


def assert_added_there(site: Site, ids: list[int]) -> None:
    assert_added(site, ids)
    assert site.added()[0] == [ODD_TEXT]
    seconds = [None if value is None else round(value, -1) for value in due_in(site)]
    assert seconds[0] is None
    assert seconds[-3:] == [3600] * 3
    assert site.orders() == 1


def test_a_connection_of_mysqlclient_serves(mysql_site: Site, there: There) -> None:
    ids = there.run(
        mysql_site, "MySQLdb", "ids = add_some(); connection.commit(); add_some(); connection.rollback(); print(ids)"
    )
    assert_added_there(mysql_site, ids)
    assert due(mysql_site)[1] == ("2031-03-04 05:06:07.089000",)


FAILED_IN_MYSQLCLIENT = """
import re
cursor = connection.cursor()
cursor.execute("RENAME TABLE jobs_queue TO elsewhere")
cursor.close()
said = []
try:
    server.add_task("tasks.note", connection=connection)
except DatabaseError as error:
    said.append(f"{type(error).__name__} {type(error.__cause__).__module__} {error}")
connection.close()
try:
    server.add_task("tasks.note", connection=connection)
except DatabaseError as error:
    said.append(f"{type(error).__name__} {type(error.__cause__).__module__} {error}")
print(json.dumps(said))
"""


def test_errors_of_mysqlclient_are_ours(mysql_site: Site, there: There) -> None:
    missing, closed = there.run(mysql_site, "MySQLdb", FAILED_IN_MYSQLCLIENT)
    assert re.match(r"TablesMissing MySQLdb\S* the connection that was given reaches no tables of jobs_queue", missing)
    assert re.match(r"ConnectionLost MySQLdb\S* on the connection that was given: .*open another", closed)


COMMITTED_AND_ROLLED_BACK = """
class Undo(Exception):
    pass

with transaction.atomic():
    ids = add_some()
    for undo in (True, False):
        try:
            with transaction.atomic():
                server.add_task("tasks.note", unique_key="inner", connection=connection)
                raise Undo
        except Undo:
            pass
try:
    with transaction.atomic():
        add_some()
        raise Undo
except Undo:
    pass
print(ids)
"""


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_djangos_own_connection_serves(site: Site, there: There, debug: bool) -> None:
    assert_added_there(site, there.run(site, "django", COMMITTED_AND_ROLLED_BACK, debug))


FAILED_IN_DJANGO = """
from django.db import connections
said = []
with transaction.atomic():
    connection.cursor().execute("INSERT INTO orders (customer) VALUES ('Ada')")
    try:
        with transaction.atomic():
            connection.cursor().execute("INSERT INTO orders (customer) VALUES ('Grace')")
            other = TaskServer(place["dsn"], table="elsewhere")
            other.add_task("tasks.note", connection=connection)
    except DatabaseError as error:
        said.append(f"{type(error).__name__} {type(error.__cause__).__module__} {error}")
    server.add_task("tasks.note", ["after"], connection=connection)
print(json.dumps(said))
"""


def test_an_error_in_djangos_atomic_block_rolls_that_back_and_no_more(site: Site, there: There) -> None:
    (said,) = there.run(site, "django", FAILED_IN_DJANGO)
    assert said.startswith("TablesMissing django.db.utils the connection that was given reaches no tables of elsewhere")
    assert site.queue.sql("SELECT customer FROM orders") == [("Ada",)]
    assert site.added() == [["after"]]


def test_djangos_connection_to_another_kind_of_database_is_refused(
    mysql_site: Site, there: There, tmp_path: Path
) -> None:
    code = f"""
from taskserver import InvalidTask
try:
    TaskServer("sqlite:///{tmp_path}/x.db").add_task("tasks.note", connection=connection)
except InvalidTask as error:
    print(json.dumps(str(error)))
"""
    assert "connection is one to MySQL, and the queue of TASKSERVER_DSN lies in SQLite" in there.run(
        mysql_site, "django", code
    )


# ---- with what completes it


TRANSFER = """
import taskserver
from taskserver import TaskServer


@taskserver.task(transactional=True)
def move_on(number, fails):
    connection = taskserver.connection()
    with TaskServer.from_env() as server:
        server.add_task("tasks.note", [f"next {number}"], connection=connection)
        server.add_tasks([{"task": "tasks.note", "args": [f"{number} {n}"]} for n in range(3)], connection=connection)
    if fails:
        raise ValueError("after it added")
"""


def test_a_task_adds_others_in_the_transaction_that_completes_it(queue: Queue) -> None:
    queue.define(TRANSFER)
    queue.add("tasks.move_on", '["one", false]')
    queue.add("tasks.move_on", '["two", true]')
    assert_silent(queue.worker("--mode", "delete"))
    assert sorted(json.loads(note)[0][0] for note in queue.notes()) == ["next one", "one 0", "one 1", "one 2"]
    assert queue.first_lines() == ["ValueError: after it added"]


def test_the_example_of_a_payment_runs_by_itself() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.payment"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert ended.stdout.splitlines() == [
        "order 1: 30 are taken, and the power fails",
        "order 1: 30 paid, by attempt 2",
        "Ada has 70",
        "shop has 30",
        "1 payment was made",
    ]
