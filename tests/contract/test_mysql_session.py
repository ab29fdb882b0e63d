"""Sessions on MySQL: variables that a host sets oddly, limits on packets, statement-based replication, odd answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
import pytest

from taskserver import DatabaseError, Selection, TaskServer
from taskserver.errors import TooLong
from taskserver.model.new_task import NewTask
from taskserver.model.task import Status
from taskserver.stores import Store
from tests.contract.accounts import account
from tests.contract.verbs import PLAIN, add_many, keyed
from tests.support.fake_server import DECIMAL, FakeServer, answering, column, result
from tests.support.queues import Queue
from tests.support.servers import MariaDB, MySQLServer, plain_connection

ODD = "max_join_size = 1000, sql_safe_updates = 1, sql_select_limit = 2, completion_type = 1, unique_checks = 0"
TASKS = """
import pymysql, taskserver, time

@taskserver.task(transactional=True)
def write(number, seconds=0):
    with taskserver.connection().cursor() as cursor:
        cursor.execute("INSERT INTO effects VALUES (%s)", (number,))
    time.sleep(seconds)

@taskserver.task(transactional=True)
def undo():
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
    assert set(mysql_server.execute("SELECT status FROM jobs_queue", database=database)) == {(Status.CANCELLED,)}
    assert mysql_server.execute("SELECT COUNT(*) FROM jobs_queue_done", database=database) == (
        (11 * (mode == "move"),),
    )


SQL_MODES = ("NO_BACKSLASH_ESCAPES", "ANSI", "ORACLE", "TRADITIONAL,NO_AUTO_VALUE_ON_ZERO")


@pytest.mark.parametrize(
    "odd_queue", [f"sql_mode = '{mode}', max_join_size = 1" for mode in SQL_MODES], ids=SQL_MODES, indirect=True
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
    assert (status, text.partition(":")[0]) == (4, "Fatal")


@pytest.mark.parametrize("odd", [{"autocommit": 0}, {"init_connect": "BEGIN"}], ids=["autocommit", "begin"])
def test_nothing_is_rolled_back_where_sessions_begin_within_a_transaction(
    make_queue: Callable[..., Queue], mysql_server: MySQLServer, odd: dict[str, Any]
) -> None:
    with mysql_server.database() as name, account(mysql_server, name, f"ALL ON `{name}`.*") as dsn:
        queue = make_queue(dsn)
        queue.define(f"CONNECT = {options(dsn)!r}{TASKS}")
        mysql_server.execute("CREATE TABLE effects (number INT)", database=name)
        with mysql_server.set_globally(**odd):
            assert queue.client("add", "tasks.write", "[1]").stdout == "1\n"
            assert queue.client("schedule", "nightly", "tasks.note", '["1"]', "--every", "3600").returncode == 0
            assert [queue.worker().returncode, queue.notes()] == [0, []]
        for table, rows in [("effects", 1), ("jobs_queue", 0), ("jobs_queue_schedules", 1)]:
            assert mysql_server.execute(f"SELECT COUNT(*) FROM {table}", database=name) == ((rows,),)


def test_a_limit_on_a_statements_time_is_lifted_for_ours(mysql_dsn: str, mysql_server: MySQLServer) -> None:
    name, small = ("max_statement_time", 0.02) if is_mariadb(mysql_server) else ("max_execution_time", 20)
    with TaskServer(mysql_dsn) as server:
        server.create_tables()
        server.add_tasks({"task": "tasks.a"} for _ in range(3))
    with TaskServer(mysql_dsn) as server, mysql_server.set_globally(**{name: small}):
        slow = "SELECT SUM(1) FROM {table} WHERE id + SLEEP(0.02) > 0"
        assert server.store.database.fetch_value(slow) == 3


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


# ---- statements that are longer than max_allowed_packet: the server hangs up on them, so they are not sent

SIZE = 64 * 1024
PACKET_TASKS = """
def short(number): return "s"
def long(number): return "x" * 65_000  # with the next start it is too long
def hand_on(number): return ["x" * 900_000]
def end(text): pass
"""


@pytest.fixture
def server(mysql_dsn: str, mysql_server: MySQLServer, tmp_path: Path) -> Iterator[TaskServer]:
    (tmp_path / "packets.py").write_text(PACKET_TASKS)
    with (
        mysql_server.set_globally(max_allowed_packet=SIZE),
        TaskServer(mysql_dsn, modules="packets", folder=tmp_path, mode="mark", max_attempts=3) as server,
    ):
        server.create_tables()
        yield server


def stored(mysql_server: MySQLServer, dsn: str, columns: str) -> tuple[tuple[Any, ...], ...]:
    return mysql_server.execute(f"SELECT {columns} FROM jobs_queue ORDER BY id", database=options(dsn)["database"])


def test_a_next_stage_that_the_server_does_not_take_is_fatal_and_costs_no_other_task_its_result(
    server: TaskServer, mysql_server: MySQLServer, mysql_dsn: str
) -> None:
    server.add_task("packets.short", [1])
    server.add_pipeline(["packets.hand_on", "packets.end"], [2])
    server.add_task("packets.long", [3])
    server.add_task("packets.short", [4])
    thread = server.store.database.session().connection.thread_id()
    ran = server.run()
    assert server.store.database.session().connection.thread_id() == thread
    assert (ran.done, ran.failed, ran.fatal, ran.lost) == (3, 0, 1, 0)
    rows = stored(mysql_server, mysql_dsn, "status, attempts, LEFT(result, 3), error_text")
    assert [row[:2] for row in rows] == [(2, 1), (Status.FATAL, 1), (2, 1), (2, 1)]
    assert [row[2] for row in rows] == ['"s"', None, '"xx', '"s"']
    assert "longer than the server takes (max_allowed_packet)" in rows[1][3]


@pytest.mark.parametrize("length", [SIZE, 900_000])
def test_a_task_that_the_server_does_not_take_is_refused_before_it_is_sent(server: TaskServer, length: int) -> None:
    assert server.add_task("packets.short", [0]) == 1
    thread = server.store.database.session().connection.thread_id()
    with pytest.raises(TooLong, match="max_allowed_packet"):
        server.add_task("packets.short", ["x" * length])
    assert server.add_task("packets.short", ["x" * (SIZE - 200)])
    assert server.store.database.session().connection.thread_id() == thread


# ---- replication by statements, which refuses to write in READ COMMITTED


@pytest.fixture(scope="module")
def statement_server(mariadb: MariaDB) -> Iterator[MariaDB]:
    # mariadb is asked for as it says what to do where MariaDB is not installed.
    with MariaDB(False, "--log-bin", "--binlog-format=STATEMENT", "--server-id=1") as server:
        assert server.execute("SELECT @@log_bin, @@binlog_format") == ((1, "STATEMENT"),)
        yield server


def test_a_queue_works_where_replication_is_by_statements(
    statement_server: MariaDB, make_queue: Callable[..., Queue]
) -> None:
    with statement_server.database() as name:
        queue = make_queue(statement_server.dsn(name))
        queue.server.add_tasks({"task": "tasks.note", "args": [str(number)]} for number in range(5))
        assert queue.worker("--mode", "move").returncode == 0
        assert queue.notes() == list("01234")


def test_a_key_that_another_added_meanwhile_is_found_where_replication_is_by_statements(
    statement_server: MariaDB,
) -> None:
    """There a transaction sees by a plain look only what stood at its first one."""
    with statement_server.database() as name:
        dsn = statement_server.dsn(name)
        with TaskServer(dsn) as one, TaskServer(dsn) as two:
            one.create_tables()
            others: list[int] = []

            def tasks() -> Iterator[NewTask]:
                yield keyed("x")
                yield from [PLAIN] * 3000  # more than are kept before the first is added
                others.append(two.add_task("tasks.send", unique_key="late"))
                yield keyed("late")

            assert add_many(one.store, tasks())[-1:] == others


# ---- answers that cannot be read

TWO_VALUES = result([column(), column()], [[b"0", b"ROW"]])
UNREADABLE = {
    "a column that is cut off": result([column()[:-3]], []),
    "no number": result([column(DECIMAL)], [[b"x"]]),
    "a long error": [b"\xff\x51\x04#HY000" + b"x" * 100_000],
}


@pytest.mark.parametrize("packets", UNREADABLE.values(), ids=UNREADABLE)
def test_an_answer_that_cannot_be_read_is_one_short_line(packets: list[bytes]) -> None:
    talk = answering(lambda peer, query: peer.send(*(TWO_VALUES if b"@@log_bin" in query else packets)))
    with FakeServer(talk) as fake, TaskServer(fake.dsn) as server, pytest.raises(DatabaseError) as raised:
        server.run()
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1000
