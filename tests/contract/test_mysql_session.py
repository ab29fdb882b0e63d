"""MySQL and MariaDB: what hosts do to sessions, limits on packets, replication by statements, odd answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from taskserver import Selection, TaskServer
from taskserver.errors import TooLong
from taskserver.model.task import Status
from tests.contract.accounts import account
from tests.contract.conftest import ON_ODD_MARIADB
from tests.support.queues import Queue
from tests.support.rows import Rows
from tests.support.servers import MariaDB, MySQLServer, plain_connection

# ---- what hosts do to sessions

ODD: dict[str, dict[str, object]] = {
    "limits": {
        "init_connect": "SET max_join_size = 1, sql_safe_updates = 1, sql_select_limit = 2, completion_type = 1"
    },
    "sql_mode": {"init_connect": "SET sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'"},
    "autocommit": {"autocommit": 0},
    "begin": {"init_connect": "BEGIN"},
}
TASKS = """
import pymysql, taskserver, time

@taskserver.task(transactional=True)
def write(number, seconds=0):
    with taskserver.connection().cursor() as cursor:
        cursor.execute("INSERT INTO effects VALUES (%s)", (number,))
    time.sleep(seconds)

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


def seen(server: MySQLServer, queue: Queue) -> closing[Rows]:
    """The queue's rows as root sees them, whose sessions an init_connect leaves alone."""
    return closing(Rows(server.dsn(urlsplit(queue.dsn).path[1:])))


@pytest.fixture(params=ODD)
def odd_queue(
    make_queue: Callable[..., Queue], mysql_server: MySQLServer, request: pytest.FixtureRequest
) -> Iterator[Queue]:
    """The queue of an account, on a server with such variables."""
    with mysql_server.database() as name, account(mysql_server, name, f"ALL ON `{name}`.*") as dsn:
        queue = make_queue(dsn)
        queue.define(f"CONNECT = {options(dsn)!r}{TASKS}")
        mysql_server.execute("CREATE TABLE effects (number INT)", database=name)
        with mysql_server.set_globally(**ODD[request.param]):
            yield queue


def test_a_queue_works_where_the_host_gives_sessions_odd_defaults(odd_queue: Queue, mysql_server: MySQLServer) -> None:
    server = odd_queue.server
    server.add_tasks([{"task": "tasks.note", "args": [str(number)]} for number in range(5)])
    for number in (1, 2):
        server.add_task("tasks.write", [number])
        server.add_task("tasks.complete", [number])
    server.add_tasks({"task": "tasks.note", "group_id": 5} for _ in range(600))
    assert server.store.claims.release(server.store.claims.claim(10, [0, 5]).tasks) == 10
    assert server.cancel(Selection(groups=[5])) == 600
    assert odd_queue.here("schedule", "nightly", "tasks.note", '["1"]', "--every", "3600").returncode == 0
    server.add_task("tasks.note", ["7"])  # by one statement, after a transaction of ours: committed all the same
    with seen(mysql_server, odd_queue) as rows:
        assert rows.statuses().count(Status.NEW) == 10
        assert rows.execute("SELECT name FROM jobs_queue_schedules") == [("nightly",)]
    with plain_connection(**options(odd_queue.dsn)) as connection:
        server.add_task("tasks.note", ["5"], connection=connection)
        server.add_task("tasks.note", ["6"], unique_key="k", connection=connection)
        connection.commit()
    odd_queue.run_quietly(mode="move")
    assert sorted(odd_queue.notes()) == list("01234567")
    with seen(mysql_server, odd_queue) as rows:
        assert sorted(rows.execute("SELECT number FROM effects")) == [(1,), (1,), (2,), (2,)]
        assert set(rows.statuses()) == {Status.CANCELLED}
        assert len(rows.all("jobs_queue_done")) == 12


def test_limits_of_the_host_on_time_are_lifted_for_ours(mysql_queue: Queue, mysql_server: MySQLServer) -> None:
    """On a statement, and on how long a connection may be quiet, as that of a transactional task is."""
    is_mariadb = "MariaDB" in str(mysql_server.execute("SELECT VERSION()"))
    limits = {"max_statement_time": 0.02} if is_mariadb else {"max_execution_time": 20}
    if is_mariadb:
        limits |= {"idle_transaction_timeout": 1, "idle_write_transaction_timeout": 1}
    mysql_queue.define(TASKS)
    mysql_queue.sql("CREATE TABLE effects (number INT)")
    mysql_queue.server.add_task("tasks.write", [1, 1.5])
    with mysql_server.set_globally(wait_timeout=1, **limits), TaskServer(mysql_queue.dsn) as server:
        assert server.store.database.fetch_value("SELECT SUM(1) FROM {table} WHERE id + SLEEP(0.06) > 0") == 1
        mysql_queue.run_quietly()
    assert mysql_queue.sql("SELECT number FROM effects") == [(1,)]


# ---- statements that are longer than max_allowed_packet: the server hangs up on them, so they are not sent

SIZE = 64 * 1024
PACKET_TASKS = """
def short(number): return "s"
def long(number): return "x" * 65_000  # too long together with the next start
def hand_on(number): return ["x" * 900_000]
def end(text): pass
"""


@pytest.fixture
def server(mysql_queue_dsn: str, mysql_server: MySQLServer, tmp_path: Path) -> Iterator[TaskServer]:
    (tmp_path / "packets.py").write_text(PACKET_TASKS)
    with (
        mysql_server.set_globally(max_allowed_packet=SIZE),
        TaskServer(mysql_queue_dsn, modules="packets", folder=tmp_path, mode="mark", max_attempts=3) as server,
    ):
        yield server


def test_a_next_stage_that_the_server_does_not_take_is_fatal_and_costs_no_other_task_its_result(
    server: TaskServer, mysql_rows: Rows
) -> None:
    server.add_task("packets.short", [1])
    server.add_pipeline(["packets.hand_on", "packets.end"], [2])
    server.add_task("packets.long", [3])
    server.add_task("packets.short", [4])
    thread = server.store.database.session().connection.thread_id()
    ran = server.run()
    assert server.store.database.session().connection.thread_id() == thread
    assert (ran.done, ran.failed, ran.fatal, ran.lost) == (3, 0, 1, 0)
    found = mysql_rows.all()
    assert [(row["status"], row["attempts"]) for row in found] == [(2, 1), (Status.FATAL, 1), (2, 1), (2, 1)]
    assert [row["result"] and row["result"][:3] for row in found] == ['"s"', None, '"xx', '"s"']
    assert "longer than the server takes (max_allowed_packet)" in found[1]["error_text"]


def test_a_task_that_the_server_does_not_take_is_refused_before_it_is_sent(server: TaskServer) -> None:
    server.add_task("packets.short", [0])
    thread = server.store.database.session().connection.thread_id()
    with pytest.raises(TooLong, match="max_allowed_packet"):
        server.add_task("packets.short", ["x" * SIZE])
    assert server.add_task("packets.short", ["x" * (SIZE - 200)])
    assert server.store.database.session().connection.thread_id() == thread


@pytest.mark.parametrize("letter", ['"', "🦊"], ids=["quotes", "four-bytes"])
def test_many_long_tasks_can_be_added_where_a_statement_may_hold_one_mebibyte(
    mysql_queue_dsn: str, mysql_server: MySQLServer, mysql_rows: Rows, letter: str
) -> None:
    text = letter * (300_000 // len(json.dumps(letter)[1:-1]))
    with mysql_server.set_globally(max_allowed_packet=1048576), TaskServer(mysql_queue_dsn) as server:
        added = server.add_tasks({"task": "tasks.send", "args": [number, text]} for number in range(5))
    found = {row["id"]: json.loads(row["args"]) for row in mysql_rows.all()}
    assert found == {task_id: [number, text] for number, task_id in enumerate(added)}


@ON_ODD_MARIADB
def test_a_queue_works_where_replication_is_by_statements(
    odd_mariadb: MariaDB, make_queue: Callable[..., Queue]
) -> None:
    with odd_mariadb.database() as name:
        queue = make_queue(odd_mariadb.dsn(name))
        queue.server.add_tasks({"task": "tasks.note", "args": [str(number)]} for number in range(5))
        queue.run_quietly(mode="move")
        assert queue.notes() == list("01234")
