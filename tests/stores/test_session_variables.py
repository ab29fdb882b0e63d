"""The variables of a session that a host may set oddly: for our own connections, a task's, and a caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
import pytest

from taskserver import DatabaseError, Selection, TaskServer
from taskserver.stores import Store
from tests.stores.accounts import account
from tests.support.queues import Queue
from tests.support.servers import MySQLServer, plain_connection

ODD = "max_join_size = 1000, sql_safe_updates = 1, sql_select_limit = 2, completion_type = 1, unique_checks = 0"
TASKS = """
import pymysql, taskserver, time

@taskserver.task(transactional=True)
def write(number, seconds=0):
    with taskserver.connection().cursor() as cursor:
        cursor.execute("INSERT INTO effects VALUES (%s)", (number,))
    time.sleep(seconds)

@taskserver.task(transactional=True)
def undo(limit=None):
    if limit:
        taskserver.connection().query(f"SET sql_select_limit = {limit}")
    taskserver.connection().rollback()

def complete(number):
    with pymysql.connect(**CONNECT) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO effects VALUES (%s)", (number,))
        taskserver.complete(connection)
        connection.commit()
"""


def options(dsn: str) -> dict[str, Any]:
    """The options of a connection whose session is as the host has it, a task's own or a caller's."""
    parts = urlsplit(dsn)
    password = unquote(parts.password or "").encode()
    return {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": password,
            "database": parts.path[1:]}  # fmt: skip


def is_mariadb(server: MySQLServer) -> bool:
    return "MariaDB" in str(server.execute("SELECT VERSION()"))


@pytest.fixture
def odd_queue(
    make_queue: Callable[..., Queue], mysql_server: MySQLServer, request: pytest.FixtureRequest
) -> Iterator[Queue]:
    """The queue of an account whose every connection begins with ODD (or as a test says), by a host's init_connect."""
    odd = getattr(request, "param", ODD)
    try:
        mysql_server.execute(f"SET {odd}")
    except pymysql.MySQLError:
        pytest.skip(f"this server knows no {odd}")
    with mysql_server.database() as name, account(mysql_server, name, f"ALL ON `{name}`.*") as dsn:
        queue = make_queue(dsn)
        queue.define(f"CONNECT = {options(dsn)!r}{TASKS}")
        mysql_server.execute("CREATE TABLE effects (number INT)", database=name)
        with mysql_server.set_globally(init_connect=f"SET {odd}"):
            yield queue


@pytest.mark.parametrize("mode", ["delete", "move"])
def test_a_queue_works_where_the_host_gives_sessions_odd_defaults(
    odd_queue: Queue, mysql_server: MySQLServer, mode: str
) -> None:
    server = odd_queue.server
    server.add_tasks([{"task": "tasks.note", "args": [str(number)]} for number in range(5)])
    for number in (1, 2):
        server.add_task("tasks.write", [number])
        server.add_task("tasks.complete", [number])
    server.add_tasks({"task": "tasks.note", "group_id": 5} for _ in range(2500))
    assert server.store.claims.release(server.store.claims.claim(10, [0, 5]).tasks) == 10
    assert server.cancel(Selection(groups=[5])) == 2500
    with plain_connection(**options(odd_queue.dsn)) as connection:
        server.add_task("tasks.note", ["5"], connection=connection)
        server.add_task("tasks.note", ["6"], unique_key="k", connection=connection)
        connection.commit()
    ran = odd_queue.worker("--mode", mode)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert sorted(odd_queue.notes()) == list("0123456")
    database = options(odd_queue.dsn)["database"]
    assert sorted(mysql_server.execute("SELECT number FROM effects", database=database)) == [(1,), (1,), (2,), (2,)]
    assert set(mysql_server.execute("SELECT status FROM jobs_queue", database=database)) == {(4,)}
    assert mysql_server.execute("SELECT COUNT(*) FROM jobs_queue_done", database=database) == (
        (11 * (mode == "move"),),
    )


MODES = ("NO_BACKSLASH_ESCAPES", "ANSI", "ORACLE", "TRADITIONAL,NO_AUTO_VALUE_ON_ZERO")


@pytest.mark.parametrize(
    "odd_queue", [f"sql_mode = '{mode}', max_join_size = 1" for mode in MODES], ids=MODES, indirect=True
)
def test_a_transactional_task_runs_in_each_sql_mode_of_a_host(odd_queue: Queue, mysql_server: MySQLServer) -> None:
    odd_queue.server.add_task("tasks.write", [1])
    odd_queue.server.add_task("tasks.undo")
    with plain_connection(**options(odd_queue.dsn)) as connection:
        odd_queue.server.add_task("tasks.complete", [2], connection=connection)
        connection.commit()
    assert odd_queue.worker().returncode == 0
    database = options(odd_queue.dsn)["database"]
    assert sorted(mysql_server.execute("SELECT number FROM effects", database=database)) == [(1,), (2,)]
    ((status, text),) = mysql_server.execute("SELECT status, error_text FROM jobs_queue", database=database)
    assert (status, text.partition(":")[0]) == (3, "Conflict")


def test_nothing_is_rolled_back_where_autocommit_is_off_for_all(mysql_dsn: str, mysql_server: MySQLServer) -> None:
    with mysql_server.set_globally(autocommit=0):
        with TaskServer(mysql_dsn) as server:
            server.create_tables()
            server.add_task("tasks.a")
            server.pause(3)
        with TaskServer(mysql_dsn) as other:
            assert (len(other.store.views.list([], [], 9)), other.store.claims.paused_groups()) == (1, [3])


def test_nothing_is_rolled_back_where_each_connection_begins_within_a_transaction(
    make_queue: Callable[..., Queue], mysql_server: MySQLServer
) -> None:
    with mysql_server.database() as name, account(mysql_server, name, f"ALL ON `{name}`.*") as dsn:
        queue = make_queue(dsn)
        queue.define(f"CONNECT = {options(dsn)!r}{TASKS}")
        mysql_server.execute("CREATE TABLE effects (number INT)", database=name)
        with mysql_server.set_globally(init_connect="BEGIN"):
            assert queue.client("add", "tasks.write", "[1]").stdout == "1\n"
            assert queue.client("schedule", "nightly", "tasks.note", '["1"]', "--every", "3600").returncode == 0
            assert [queue.worker().returncode, queue.notes()] == [0, []]
        for table, rows in [("effects", 1), ("jobs_queue", 0), ("jobs_queue_schedules", 1)]:
            assert mysql_server.execute(f"SELECT COUNT(*) FROM {table}", database=name) == ((rows,),)


def test_a_rolled_back_task_is_known_where_the_host_limits_rows(odd_queue: Queue) -> None:
    """By counts that the server shows as rows. One that limits these itself counts as one that may have committed."""
    odd_queue.server.add_task("tasks.undo")
    odd_queue.server.add_task("tasks.undo", [1])
    odd_queue.server.add_task("tasks.note", ["good"])
    assert odd_queue.worker().returncode == 0
    assert odd_queue.notes() == ["good"]
    undone, limited = (task.error_text for task in odd_queue.server.store.views.list([], [], 10)[::-1])
    assert str(undone).startswith("Conflict: its transaction was rolled back")
    assert str(limited).startswith("Fatal: a task may not end its transaction itself")


def test_a_limit_on_a_statements_time_is_lifted_for_ours(mysql_dsn: str, mysql_server: MySQLServer) -> None:
    name, small = ("max_statement_time", 0.02) if is_mariadb(mysql_server) else ("max_execution_time", 20)
    with TaskServer(mysql_dsn) as server:
        server.create_tables()
        server.add_tasks({"task": "tasks.a"} for _ in range(3))
    with TaskServer(mysql_dsn) as server, mysql_server.set_globally(**{name: small}):
        slow = "SELECT SUM(1) FROM {table} WHERE id + SLEEP(0.02) > 0"
        assert server.store.database.fetch_value(slow) == 3


@pytest.mark.parametrize("seen", [1, 0])
def test_a_claim_that_is_not_read_back_whole_is_an_error_and_is_given_back(
    mysql_store: Store, monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    """As where a proxy reads from a replica that lags behind."""
    for number in range(3):
        mysql_store.database.change(f"INSERT INTO {{table}} (task, args) VALUES ('tasks.a', '[{number}]')")
    read = mysql_store.claims.read
    monkeypatch.setattr(mysql_store.claims, "read", lambda token, count: read(token, count)[:seen])
    with pytest.raises(DatabaseError, match=f"took 3 tasks, and reads {seen} of them"):
        mysql_store.claims.claim(10, ())
    assert mysql_store.database.fetch("SELECT status, claim FROM {table}") == ((0, None),) * 3


def test_a_claim_that_met_tasks_whose_time_lies_ahead_is_whole(store: Store) -> None:
    store.database.change("INSERT INTO {table} (task) VALUES ('tasks.a')")
    store.database.change("INSERT INTO {table} (task, due_at) VALUES ('tasks.a', {after})", [60])
    claim = store.claims.claim(10, ())
    assert (len(claim.tasks), claim.changed) == (1, 2)


def test_a_transactional_task_may_be_quiet_for_longer_than_the_host_lets_connections_be(
    make_queue: Callable[..., Queue], mysql_dsn: str, mysql_server: MySQLServer
) -> None:
    names = ["idle_transaction_timeout", "idle_write_transaction_timeout"] if is_mariadb(mysql_server) else []
    queue = make_queue(mysql_dsn, tasks=TASKS)
    queue.sql("CREATE TABLE effects (number INT)")
    queue.server.add_task("tasks.write", [1, 1.5])
    with mysql_server.set_globally(wait_timeout=1, **dict.fromkeys(names, 1)):
        ran = queue.worker()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert mysql_server.execute("SELECT number FROM effects", database=mysql_dsn.rpartition("/")[2]) == ((1,),)
