"""Connections: forks, idle ones, accounts with few rights, sockets, TLS, and servers that cannot be reached."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import sqlite3
import subprocess
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pymysql
import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.settings import dsn as dsn_module
from taskserver.stores.database import database as stores_database
from taskserver.stores.mysql import login
from tests.conftest import without
from tests.support.deployment import Deployment
from tests.support.servers import NOBODY, MariaDB, MySQLServer, find_program

SECRET = "s3cret/ä@?#"
MINIMAL_INSERT = (
    "INSERT INTO jobs_queue (task, args, group_id, priority)"
    " VALUES ('tasks.send_letter', '{\"to\": \"a@example.org\"}', 3, 10)"
)
_names = itertools.count()


@pytest.fixture
def server(dsn: str) -> Iterator[TaskServer]:
    with TaskServer(dsn) as server:
        server.create_tables()
        yield server


def rows(dsn: str) -> dict[int, str | None]:
    """The args of all tasks by id, read on a connection that nothing else uses."""
    with TaskServer(dsn) as reader:
        return {task.id: task.args for task in reader.store.views.list([], [], 100_000)}


def failure(server: TaskServer) -> DatabaseError:
    """The error with which a server that cannot be used fails: one line, and its password nowhere."""
    with pytest.raises(DatabaseError) as raised:
        server.add_task("tasks.a")
    text = str(raised.value)
    told = "".join(traceback.format_exception(raised.value))
    assert text
    assert "\n" not in text
    for written in (SECRET, quote(SECRET, safe=""), "s3cret"):
        assert written not in text
        assert written not in told
        assert written not in repr(raised.value)
    return raised.value


# ---- fork


class Child:
    """A forked child that does `work` once `go` is called; its outcome, JSON, is what `work` returned."""

    def __init__(self, work: Callable[[], Any]) -> None:
        go_read, self._go = os.pipe()
        self._outcome, outcome_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            signal.alarm(35)  # a child that hangs ends, and its outcome is missing
            try:
                os.read(go_read, 1)
                outcome = {"returned": work()}
            except BaseException as error:
                outcome = {"raised": f"{type(error).__name__}: {error}"}
            os.write(outcome_write, json.dumps(outcome).encode())
            os._exit(0)
        os.close(go_read)
        os.close(outcome_write)

    def go(self) -> None:
        os.write(self._go, b"!")

    def outcome(self) -> Any:
        with open(self._outcome, "rb") as pipe:
            text = pipe.read()
        os.close(self._go)
        os.waitpid(self.pid, 0)
        assert text, "the child hung or died"
        outcome = json.loads(text)
        assert "returned" in outcome, outcome["raised"]
        return outcome["returned"]


def add_named(server: TaskServer, who: str, count: int) -> list[tuple[int, str]]:
    return [(server.add_task("tasks.a", [who, number]), f'["{who}",{number}]') for number in range(count)]


def told(server: TaskServer) -> str:
    """What the error says with which an add failed, or that it did not."""
    try:
        server.add_task("tasks.a")
    except DatabaseError as error:
        return str(error)
    return "nothing"


def as_pairs(outcome: list[list[Any]]) -> list[tuple[int, str]]:
    return [(task_id, args) for task_id, args in outcome]


def test_a_forked_child_and_its_parent_add_at_the_same_time(server: TaskServer, dsn: str) -> None:
    first = add_named(server, "first", 1)
    child = Child(lambda: add_named(server, "child", 60))
    child.go()
    parents = add_named(server, "parent", 60)
    childs = as_pairs(child.outcome())
    last = add_named(server, "last", 3)
    assert rows(dsn) == dict([*first, *parents, *childs, *last])


def test_two_children_and_their_parent_add_many_at_the_same_time(server: TaskServer, dsn: str) -> None:
    def add_many(who: str) -> list[tuple[int, str]]:
        ids = server.add_tasks({"task": "tasks.a", "args": [who, number]} for number in range(1500))
        return [(task_id, f'["{who}",{number}]') for number, task_id in enumerate(ids)]

    added = add_many("first")
    children = [Child(lambda who=who: add_many(who)) for who in ("anna", "berta")]  # type: ignore[misc]
    for child in children:
        child.go()
    added += add_many("parent")
    for child in children:
        added += as_pairs(child.outcome())
    assert rows(dsn) == dict(added)


def add_in_process(server: TaskServer, results: Any) -> None:
    results.put(add_named(server, "process", 20))


def test_a_process_of_multiprocessing_uses_the_server_that_it_inherits(server: TaskServer, dsn: str) -> None:
    first = add_named(server, "first", 1)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=add_in_process, args=(server, results)) for _ in range(2)]
    for process in processes:
        process.start()
    parents = add_named(server, "parent", 20)
    added = [pair for _ in processes for pair in results.get(timeout=40)]
    for process in processes:
        process.join(40)
        assert process.exitcode == 0
    last = add_named(server, "last", 1)
    assert rows(dsn) == dict([*first, *parents, *added, *last])


@pytest.mark.parametrize("child_was_first", [False, True])
def test_what_a_child_adds_after_its_parent_closed_is_not_lost(
    server: TaskServer, dsn: str, child_was_first: bool
) -> None:
    """As of a program that adds a task, puts itself into the background, and whose first process then ends."""
    added = add_named(server, "parent", 1)
    ready_read, ready = os.pipe()

    def work() -> list[tuple[int, str]]:
        early = add_named(server, "early", 1) if child_was_first else []
        os.write(ready, b"!")
        os.read(closed_read, 1)
        return [*early, *add_named(server, "child", 5)]

    closed_read, closed = os.pipe()
    child = Child(work)
    child.go()
    os.read(ready_read, 1)
    server.close()
    os.write(closed, b"!")
    added += as_pairs(child.outcome())
    for descriptor in (ready_read, ready, closed_read, closed):
        os.close(descriptor)
    assert rows(dsn) == dict(added)


def test_what_a_parent_adds_after_its_child_closed_is_not_lost(server: TaskServer, dsn: str) -> None:
    added = add_named(server, "parent", 1)

    def add_and_close() -> list[tuple[int, str]]:
        pairs = add_named(server, "child", 5)
        server.close()
        return pairs

    child = Child(add_and_close)
    child.go()
    added += as_pairs(child.outcome())
    added += add_named(server, "parent again", 5)
    assert rows(dsn) == dict(added)


def test_a_child_that_only_closes_leaves_its_parent_s_connection_alone(server: TaskServer, dsn: str) -> None:
    added = add_named(server, "parent", 1)
    child = Child(server.close)
    child.go()
    assert child.outcome() is None
    added += add_named(server, "parent again", 1)
    assert rows(dsn) == dict(added)


@pytest.fixture
def fork_amid_adding(server: TaskServer) -> Callable[[Callable[[], Any]], Any]:
    """Forks while another thread stands between two statements of one transaction; the child's outcome."""

    def fork_for(work: Callable[[], Any]) -> Any:
        forked, inside = threading.Event(), threading.Event()

        def slow() -> Iterator[dict[str, Any]]:
            for number in range(1001):  # the first statement is sent before the last one is asked for
                if number == 1000:
                    inside.set()
                    forked.wait(30)
                yield {"task": "tasks.slow", "args": [number]}

        server.add_task("tasks.a")
        adding = threading.Thread(target=lambda: server.add_tasks(slow()))
        adding.start()
        assert inside.wait(30)
        child = Child(work)
        forked.set()
        adding.join(30)
        child.go()
        return child.outcome()

    return fork_for


def test_a_child_that_was_forked_amid_another_thread_s_adding_adds_or_is_told_why_not(
    server: TaskServer, dsn: str, fork_amid_adding: Callable[[Callable[[], Any]], Any]
) -> None:
    # SQLite: the copied connection holds a lock for ever, and giving it up would roll back what the parent does.
    outcome = fork_amid_adding(lambda: told(server))
    assert outcome == "nothing" or ("sqlite" in dsn and "was forked" in outcome)
    stored = rows(dsn)
    assert len(stored) == 1 + 1001 + (outcome == "nothing")
    assert server.add_task("tasks.a")


def test_a_forked_child_runs_tasks_too(server: TaskServer) -> None:
    server.add_task("os.getcwd")  # in no listed module: fatal, which is an outcome as good as any
    child = Child(lambda: server.run().fatal)
    child.go()
    assert child.outcome() == 1


# ---- in memory


def test_a_database_in_memory_is_shared_by_the_threads_of_its_process() -> None:
    with TaskServer("sqlite:///:memory:") as server:
        threads = [threading.Thread(target=add_named, args=(server, f"t{number}", 50)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [count.rows for count in server.store.views.counts()] == [300]
        assert server.run().taken == 300


def test_a_forked_child_is_told_that_a_database_in_memory_is_its_parent_s() -> None:
    server = TaskServer("sqlite:///:memory:")
    server.add_task("tasks.a")
    child = Child(lambda: told(server))
    child.go()
    outcome = child.outcome()
    assert "memory" in outcome
    assert "process" in outcome
    server.add_task("tasks.b")
    assert [count.rows for count in server.store.views.counts()] == [2]


def test_a_child_that_was_forked_while_a_thread_held_the_database_in_memory_is_told_so_too() -> None:
    server = TaskServer("sqlite:///:memory:")
    inside, forked = threading.Event(), threading.Event()

    def slow() -> Iterator[dict[str, str]]:
        inside.set()
        forked.wait(30)
        yield {"task": "tasks.a"}

    adding = threading.Thread(target=lambda: server.add_tasks(slow()))
    adding.start()
    assert inside.wait(30)
    child = Child(lambda: told(server))
    forked.set()
    adding.join(30)
    child.go()
    assert "memory" in child.outcome()


# ---- idle connections


def kill_connections(mysql_server: MySQLServer, dsn: str) -> int:
    """Ends the database's connections from another one, as a host's wait_timeout does; returns once they are gone."""
    which = f"FROM information_schema.processlist WHERE db = '{dsn.rpartition('/')[2]}'"
    found = mysql_server.execute(f"SELECT id {which}")
    mysql_server.execute(*(f"KILL {number}" for (number,) in found))
    for _ in range(2000):
        if not mysql_server.execute(f"SELECT id {which}"):
            return len(found)
        threading.Event().wait(0.005)
    raise AssertionError("the connections did not go")


def test_an_idle_connection_that_was_dropped_is_made_anew(
    mysql_dsn: str, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_database, "IDLE_SECONDS", 0.0)  # as if more than a second had passed
    with TaskServer(mysql_dsn) as server:
        server.create_tables()
        added = add_named(server, "before", 2)
        assert kill_connections(mysql_server, mysql_dsn) == 1
        added += add_named(server, "after", 2)
        assert kill_connections(mysql_server, mysql_dsn) == 1
        added += [(task_id, "[1]") for task_id in server.add_tasks([{"task": "tasks.a", "args": [1]}] * 3)]
        assert kill_connections(mysql_server, mysql_dsn) == 1
        assert server.run().taken == len(added)
        assert kill_connections(mysql_server, mysql_dsn) == 1
        assert len(server.store.views.counts()) == 1


def test_an_idle_connection_is_one_that_was_not_used_for_a_second() -> None:
    assert stores_database.IDLE_SECONDS == 1.0


def test_a_connection_that_breaks_in_use_is_an_error_and_the_next_use_works(
    mysql_dsn: str, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_database, "IDLE_SECONDS", 1e9)  # as if it had been used just now
    with TaskServer(mysql_dsn) as server:
        server.create_tables()
        kill_connections(mysql_server, mysql_dsn)
        # Whether the row was stored cannot be known, so it is not sent again.
        with pytest.raises(DatabaseError) as raised:
            server.add_task("tasks.a")
        assert "\n" not in str(raised.value)
        assert server.add_task("tasks.b")
    assert len(rows(mysql_dsn)) == 1


def test_a_connection_that_breaks_between_the_statements_of_many_adds_none(
    mysql_dsn: str, mysql_server: MySQLServer
) -> None:
    def broken() -> Iterator[dict[str, str]]:
        for number in range(1500):
            if number == 1200:
                kill_connections(mysql_server, mysql_dsn)
            yield {"task": "tasks.a"}

    with TaskServer(mysql_dsn) as server:
        server.create_tables()
        with pytest.raises(DatabaseError):
            server.add_tasks(broken())
        assert rows(mysql_dsn) == {}
        assert len(server.add_tasks([{"task": "tasks.a"}] * 3)) == 3


def test_a_run_goes_on_where_its_connection_is_killed_at_its_begin(
    mysql_dsn: str, mysql_server: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores_database, "IDLE_SECONDS", 1e9)
    with TaskServer(mysql_dsn) as server:
        server.create_tables()
        check_tables = server.store.tables.check

        def then_killed() -> None:
            check_tables()
            kill_connections(mysql_server, mysql_dsn)

        monkeypatch.setattr(server.store.tables, "check", then_killed)
        server.add_task("tasks.a")
        assert server.run().taken == 1


@pytest.mark.parametrize("step", [2, 3])
def test_ids_are_right_where_the_server_counts_in_steps(mysql_dsn: str, mysql_server: MySQLServer, step: int) -> None:
    """As Galera and paired masters do, by auto_increment_increment."""
    with TaskServer(mysql_dsn) as server:
        server.create_tables()
        server.add_task("tasks.a")
        with global_value(mysql_server, "auto_increment_increment", step):
            server.close()
            ids = server.add_tasks({"task": "tasks.a", "args": [number]} for number in range(1200))
            one = server.add_task("tasks.a", ["one"])
    stored = rows(mysql_dsn)
    assert [stored[task_id] for task_id in ids] == [f"[{number}]" for number in range(1200)]
    assert stored[one] == '["one"]'


@contextmanager
def global_value(mysql_server: MySQLServer, name: str, value: int) -> Iterator[None]:
    """Another global value of a variable, for connections that are made meanwhile."""
    before = mysql_server.execute(f"SELECT @@GLOBAL.{name}")[0][0]
    mysql_server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        mysql_server.execute(f"SET GLOBAL {name} = {before}")


# ---- accounts


@contextmanager
def account(
    mysql_server: MySQLServer, rights: str = "", on: str = "*.*", requires: str = ""
) -> Iterator[tuple[str, str]]:
    """A user of its own with some rights, and its password in a DSN's form."""
    name, password = f"u{next(_names)}_{secrets.token_hex(3)}", f"{SECRET}x"
    quoted = pymysql.converters.escape_string(password)
    mysql_server.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{quoted}' {requires}")
    try:
        if rights:
            mysql_server.execute(f"GRANT {rights} ON {on} TO '{name}'@'%'")
        yield name, quote(password, safe="")
    finally:
        mysql_server.execute(f"DROP USER '{name}'@'%'")


class Producer(NamedTuple):
    """A user who may insert into the queue and nothing else."""

    dsn: str
    database: str
    user: str


@pytest.fixture
def producer(mysql_dsn: str, mysql_server: MySQLServer) -> Iterator[Producer]:
    database = mysql_dsn.rpartition("/")[2]
    with TaskServer(mysql_dsn) as server:
        server.create_tables()
    with account(mysql_server, "INSERT", f"`{database}`.jobs_queue") as (user, password):
        yield Producer(f"mysql://{user}:{password}@{mysql_server.host}:{mysql_server.port}/{database}", database, user)


def test_a_producer_needs_no_right_but_insert(producer: Producer, mysql_dsn: str) -> None:
    with TaskServer(producer.dsn) as server:
        added = add_named(server, "one", 2)
        ids = server.add_tasks({"task": "tasks.a", "args": [number]} for number in range(1100))
    assert rows(mysql_dsn) == dict(added) | {task_id: f"[{number}]" for number, task_id in enumerate(ids)}


def test_a_producer_s_minimal_insert_makes_a_whole_task(
    producer: Producer, mysql_dsn: str, mysql_server: MySQLServer
) -> None:
    with (
        mysql_server.connect(
            user=producer.user, password=f"{SECRET}x".encode(), database=producer.database
        ) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(MINIMAL_INSERT)
    with TaskServer(mysql_dsn) as reader:
        (task,) = reader.store.views.list([], [], 10)
    assert (task.task, task.args) == ("tasks.send_letter", '{"to": "a@example.org"}')
    assert (task.group_id, task.priority, task.status, task.attempts) == (3, 10, 0, 0)
    assert (task.max_attempts, task.due_at, task.claim, task.unique_key) == (None, None, None, None)
    assert task.error_text is None
    assert task.created_at == task.updated_at


def test_a_worker_with_a_producer_s_account_says_which_right_it_lacks(
    producer: Producer, deployment: Deployment
) -> None:
    deployment.write_env(TASKSERVER_DSN=producer.dsn)
    deployment.write_tasks("def send(): pass\n")
    ended = deployment.worker()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.count("\n") == 1
    assert "1142" in ended.stderr
    assert "grant" in ended.stderr
    assert "s3cret" not in ended.stderr


def test_a_wrong_password_is_one_line_that_says_where_to_mend_it(mysql_dsn: str) -> None:
    address = mysql_dsn.rpartition("@")[2]
    error = failure(TaskServer(f"mysql://root:{quote(SECRET, safe='')}@{address}"))
    assert "TASKSERVER_PASSWORD" in str(error)
    assert "1045" in str(error)
    failure(TaskServer(f"mysql://root:{SECRET}@{address}"))
    failure(TaskServer(f"mysql://root@{address}", password=SECRET))


def test_an_unknown_database_is_named(mysql_server: MySQLServer) -> None:
    with account(mysql_server, "INSERT") as (user, password):
        error = failure(
            TaskServer(f"mysql://{user}:{password}@{mysql_server.host}:{mysql_server.port}/t_no_such_database")
        )
    assert "t_no_such_database" in str(error)
    assert "1049" in str(error)


def test_a_database_that_the_account_may_not_use_is_named(mysql_dsn: str, mysql_server: MySQLServer) -> None:
    with account(mysql_server) as (user, password):
        error = failure(TaskServer(f"mysql://{user}:{password}@{mysql_dsn.rpartition('@')[2]}"))
    assert "1044" in str(error)
    assert "grant" in str(error)


@pytest.mark.parametrize("missing_tables", ["add", "run"])
def test_an_empty_database_says_run_init(dsn: str, missing_tables: str) -> None:
    server = TaskServer(dsn)
    with pytest.raises(DatabaseError, match=r"run client\.py init"):
        server.add_task("tasks.a") if missing_tables == "add" else server.run()


# ---- servers that are none


def test_an_unknown_host_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    error = failure(TaskServer(f"mysql://root:{quote(SECRET, safe='')}@no-such-host.invalid:3306/shop"))
    assert "no-such-host.invalid" in str(error)
    assert "2003" in str(error)


def test_a_port_on_which_nothing_listens_is_one_line() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        error = failure(TaskServer(f"mysql://root:{quote(SECRET, safe='')}@127.0.0.1:{port}/shop"))
    assert f"127.0.0.1:{port}" in str(error)


class Stranger:
    """A TCP server that is no MySQL: sends these bytes to whoever comes, and then closes or stays silent."""

    def __init__(self, says: bytes, closes: bool) -> None:
        self._says, self._closes = says, closes
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                visitor = self._listening.accept()[0]
                self._open.append(visitor)
                visitor.sendall(self._says)
                if self._closes:
                    visitor.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        for visitor in self._open:
            with suppress(OSError):
                visitor.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Stranger:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)
        for visitor in self._open:
            visitor.close()


GREETINGS = {
    "nothing": b"",
    "ssh": b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
    "smtp": b"220 mail.example.org ESMTP Postfix\r\n",
    "zeros": b"\0" * 100,
    "noise": bytes(range(256)) * 40,
    "an empty packet": b"\0\0\0\0",
    "a cut packet": b"\x0a\0\0\0\x0a5.7",
    "an old protocol": b"\x0e\0\0\0\x095.0.0\0aaaaaaa",
    "a cut greeting": b"\x08\0\0\0\x0a5.7.29\0",
    "too many connections": b"\x17\0\0\0\xff\x10\x04Too many connections",
    "letters that are no UTF-8": b"\x0c\0\0\0\xff\x10\x04\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8",
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
def test_a_server_that_is_no_mysql_is_a_database_error_in_one_line(greeting: bytes) -> None:
    with Stranger(greeting, closes=True) as stranger:
        error = failure(TaskServer(f"mysql://root:{quote(SECRET, safe='')}@127.0.0.1:{stranger.port}/shop"))
    assert f"127.0.0.1:{stranger.port}" in str(error)


@pytest.mark.parametrize("greeting", ["nothing", "ssh"])
def test_a_server_that_says_nothing_more_is_given_up_by_itself(greeting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Web servers, Redis and a half-dead host take a connection and wait; cron must not pile up workers there."""
    monkeypatch.setattr(login, "CONNECT_SECONDS", 1)
    with Stranger(GREETINGS[greeting], closes=False) as stranger:
        server = TaskServer(f"mysql://root:{quote(SECRET, safe='')}@127.0.0.1:{stranger.port}/shop")
        errors: list[DatabaseError] = []
        trying = threading.Thread(target=lambda: errors.append(failure(server)), daemon=True)
        trying.start()
        trying.join(10)
        gave_up = not trying.is_alive()
        stranger.hang_up()
        trying.join(15)
    assert gave_up, "after ten times the time to connect it still waited"
    assert errors


# ---- sockets


def test_a_socket_may_be_named_instead_of_a_host(mariadb: MariaDB) -> None:
    with mariadb.database() as name:
        for address in ("", "localhost", "host.invalid:1"):
            with TaskServer(f"mysql://root@{address}/{name}?unix_socket={mariadb.socket}") as server:
                server.create_tables()
                server.add_task("tasks.a")
                assert hosts_of_connections(mariadb, name) == {"localhost"}
        assert [count.rows for count in server.store.views.counts()] == [3]


def hosts_of_connections(mariadb: MariaDB, database: str) -> set[str]:
    found = mariadb.execute(f"SELECT host FROM information_schema.processlist WHERE db = '{database}'")
    return {host.partition(":")[0] for (host,) in found}


def test_a_socket_that_is_not_there_is_a_database_error(tmp_path: Path) -> None:
    error = failure(TaskServer(f"mysql://root:{quote(SECRET, safe='')}@/shop?unix_socket={tmp_path}/none.sock"))
    assert f"{tmp_path}/none.sock" in str(error)


def test_localhost_means_the_first_of_the_usual_sockets_that_exists(
    mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dsn_module, "SOCKETS", (f"{tmp_path}/none.sock", str(mariadb.socket), f"{tmp_path}/other.sock"))
    with mariadb.database() as name, TaskServer(f"mysql://root@localhost:1/{name}") as server:
        server.create_tables()
        assert hosts_of_connections(mariadb, name) == {"localhost"}


def test_localhost_without_a_usual_socket_means_the_port(
    mariadb: MariaDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dsn_module, "SOCKETS", (f"{tmp_path}/none.sock",))
    with mariadb.database() as name, TaskServer(f"mysql://root@localhost:{mariadb.port}/{name}") as server:
        server.create_tables()
        assert hosts_of_connections(mariadb, name) == {"127.0.0.1"}


def test_an_address_in_numbers_never_means_a_socket(mariadb: MariaDB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dsn_module, "SOCKETS", (str(mariadb.socket),))
    with mariadb.database() as name, TaskServer(mariadb.dsn(name)) as server:
        server.create_tables()
        assert hosts_of_connections(mariadb, name) == {"127.0.0.1"}


# ---- TLS


class Certificates(NamedTuple):
    """A certificate for 127.0.0.1 and localhost, signed by `authority`; `stranger` signed nothing of it."""

    authority: Path
    stranger: Path
    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    if find_program("openssl") is None:
        without("openssl is not installed")
    folder = Path(tempfile.mkdtemp(prefix="taskserver-tls-", dir="/tmp"))
    try:
        for name in ("authority", "stranger"):
            make_authority(folder, name)
        yield Certificates(folder / "authority.pem", folder / "stranger.pem", *sign(folder, "server"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_authority(folder: Path, name: str) -> None:
    openssl(folder, "req", "-x509", *EC_KEY, "-days", "2", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.pem")  # fmt: skip


def sign(folder: Path, name: str) -> tuple[Path, Path]:
    openssl(folder, "req", *EC_KEY, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "authority.pem", "-CAkey", "authority.key",
            "-CAcreateserial", "-days", "2", "-extfile", "names", "-out", f"{name}.pem")  # fmt: skip
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    if os.getuid() == 0:
        folder.chmod(0o755)
        os.chown(key, NOBODY, NOBODY)
    return certificate, key


@pytest.fixture(scope="module")
def tls_server(certificates: Certificates) -> Iterator[MariaDB]:
    options = (f"--ssl-cert={certificates.certificate}", f"--ssl-key={certificates.key}")
    if find_program("mariadbd") is None:
        without("MariaDB is not installed")
    with MariaDB(False, *options) as server:
        yield server


def cipher(server: TaskServer) -> str:
    """The cipher of a server's own connection; empty without TLS."""
    return str(server.store.database.fetch("SHOW SESSION STATUS LIKE 'Ssl_cipher'")[0][1])


@contextmanager
def queue_at(tls_server: MariaDB, options: str, host: str = "127.0.0.1") -> Iterator[TaskServer]:
    with (
        tls_server.database() as name,
        TaskServer(f"mysql://root@{host}:{tls_server.port}/{name}{options}") as server,
    ):
        yield server


@pytest.mark.parametrize(
    ("options", "encrypted"),
    [
        ("", False),
        ("?ssl-mode=disabled", False),
        ("?ssl-mode=preferred", True),
        ("?ssl-mode=required", True),
        ("?ssl-mode=REQUIRED", True),
        ("?ssl-mode=required&ssl-ca={certificates.authority}", True),
        ("?ssl-mode=verify_identity&ssl-ca={certificates.authority}", True),
    ],
)
def test_tls_is_used_as_the_mode_says(
    tls_server: MariaDB, certificates: Certificates, options: str, encrypted: bool
) -> None:
    with queue_at(tls_server, options.format(certificates=certificates)) as server:
        server.create_tables()
        server.add_task("tasks.a")
        assert bool(cipher(server)) == encrypted


@pytest.mark.parametrize(
    "options",
    [
        "?ssl-mode=verify_identity",
        "?ssl-mode=verify_identity&ssl-ca={certificates.stranger}",
        "?ssl-mode=required&ssl-ca={certificates.stranger}",
        "?ssl-mode=verify_identity&ssl-ca=/no/such/file.pem",
        "?ssl-mode=verify_identity&ssl-ca={certificates.key}",
    ],
)
def test_a_certificate_that_cannot_be_verified_is_a_database_error(
    tls_server: MariaDB, certificates: Certificates, options: str
) -> None:
    with queue_at(tls_server, options.format(certificates=certificates)) as server:
        failure(server)


def test_the_identity_of_another_host_is_refused_and_required_alone_does_not_ask(
    tls_server: MariaDB, certificates: Certificates
) -> None:
    # 127.0.0.2 reaches the server, too, where it listens on all addresses; the certificate does not name it.
    with Relay(tls_server.port) as port:
        address = f"mysql://root@127.0.0.2:{port}/mysql"
        failure(TaskServer(f"{address}?ssl-mode=verify_identity&ssl-ca={certificates.authority}"))
        with pytest.raises(DatabaseError, match=r"client\.py init"):
            TaskServer(f"{address}?ssl-mode=required&ssl-ca={certificates.authority}").add_task("tasks.a")


class Relay:
    """Passes bytes on from 127.0.0.2 to a port of 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.2", 0))

    def __enter__(self) -> int:
        threading.Thread(target=self._serve, daemon=True).start()
        return int(self._listening.getsockname()[1])

    def __exit__(self, *exception: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                visitor = self._listening.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._port))
                for one, other in ((visitor, server), (server, visitor)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while received := one.recv(65536):
                other.sendall(received)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


def test_required_tls_is_never_given_up_where_the_server_offers_none(mariadb: MariaDB) -> None:
    for mode in ("required", "verify_identity"):
        with mariadb.database() as name:
            error = failure(TaskServer(mariadb.dsn(name) + f"?ssl-mode={mode}"))
            assert "SSL" in str(error)
    with mariadb.database() as name, TaskServer(mariadb.dsn(name) + "?ssl-mode=preferred") as server:
        server.create_tables()
        assert cipher(server) == ""


def test_an_account_that_requires_tls_connects_on_loopback_by_itself(tls_server: MariaDB) -> None:
    with (
        tls_server.database() as name,
        account(tls_server, "ALL", f"`{name}`.*", "REQUIRE SSL") as (user, password),
    ):
        address = f"mysql://{user}:{password}@127.0.0.1:{tls_server.port}/{name}"
        with TaskServer(address) as server:
            server.create_tables()
            server.add_task("tasks.a")
            assert cipher(server)
        assert "1045" in str(failure(TaskServer(f"{address}?ssl-mode=disabled")))
        wrong = f"mysql://{user}:{quote(SECRET, safe='')}@127.0.0.1:{tls_server.port}/{name}"
        assert "1045" in str(failure(TaskServer(wrong)))


# ---- files of SQLite


def test_a_file_that_is_no_database_is_a_database_error(tmp_path: Path) -> None:
    (tmp_path / "letter.db").write_text("Dear Sir or Madam, " * 100)
    server = TaskServer(f"sqlite:///{tmp_path}/letter.db")
    for use in (server.create_tables, lambda: server.add_task("tasks.a")):
        with pytest.raises(DatabaseError) as raised:
            use()
        assert "letter.db" in str(raised.value)
    assert (tmp_path / "letter.db").read_text().startswith("Dear Sir")


def test_a_file_that_another_process_holds_for_long_is_waited_for(sqlite_dsn: str) -> None:
    with TaskServer(sqlite_dsn) as server:
        server.create_tables()
        holder = sqlite3.connect(sqlite_dsn.removeprefix("sqlite:///"), isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        added: list[int] = []
        adding = threading.Thread(target=lambda: added.append(server.add_task("tasks.a")))
        adding.start()
        adding.join(0.2)
        assert adding.is_alive(), "it did not wait for the lock"
        holder.execute("COMMIT")
        adding.join(30)
        holder.close()
    assert added == [1]
