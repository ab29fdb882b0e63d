"""What becomes of a task's own transaction where the network or the server fails around its COMMIT."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.conftest import without
from tests.faults.conftest import READERS
from tests.support import effects as common
from tests.support.effects import add, effects, set_settings, states, with_effects
from tests.support.postgresql import PostgreSQL, PostgreSQLServer, programs_folder
from tests.support.processes import assert_one_line, assert_silent, end_of
from tests.support.proxy import Matches, Proxy, contains
from tests.support.queues import Queue
from tests.support.servers import MariaDB, MySQLServer, missing_programs

MODES = ["delete", "move", "mark"]
EACH_MODE = pytest.mark.parametrize("mode", MODES)
COMMIT = contains(b"COMMIT /* of a task")
ACCOUNT_PASSWORD = "worker"
SETTINGS = common.SETTINGS
TASKS = (
    common.TASKS
    + """
def session():
    connection = taskserver.connection()
    return connection.info.backend_pid if hasattr(connection, "info") else connection.thread_id()


@transactional
def hold_before(number):
    note(f"hold_before {session()}")
    wait()
    write(number)
"""
)


@pytest.fixture
def make_queue(make_queue: Callable[..., Queue]) -> Callable[..., Queue]:
    return with_effects(make_queue)


@pytest.fixture
def server_queue(failing_kind: str, request: pytest.FixtureRequest) -> Queue:
    queue = request.getfixturevalue(f"{failing_kind}_queue")
    assert isinstance(queue, Queue)
    return queue


def go_through(queue: Queue, proxy: Proxy) -> None:
    """The worker goes through the proxy from now on."""
    set_settings(queue, TASKSERVER_DSN=proxy.dsn(queue.dsn))


STATEMENTS = [
    (b"COMMIT /* of a task", False),
    (b"COMMIT /* of a task", True),
    (b"RELEASE SAVEPOINT", False),
    (b"RELEASE SAVEPOINT", True),
    (b"INSERT INTO effects", False),
]


@EACH_MODE
@pytest.mark.parametrize("silent", [False, True], ids=["loud", "silent"])
def test_a_task_whose_commit_took_effect_unheard_is_done_once(
    server_queue: Queue, proxy: Proxy, mode: str, silent: bool
) -> None:
    queue = server_queue
    go_through(queue, proxy)
    cut = proxy.cut_after(COMMIT, silent=silent)
    add(queue, "effect", 1)
    add(queue, "effect", 2)
    assert_silent(queue.worker("--mode", mode))
    assert cut.has_struck
    assert effects(queue) == [1, 2]
    assert states(queue) == ([(2, 1)] * 2 if mode == "mark" else [])
    assert len(queue.rows("id", "jobs_queue_done")) == (2 if mode == "move" else 0)
    assert queue.sql("SELECT taken, done, lost FROM jobs_queue_workers") == [(2, 2, 0)]


@pytest.mark.long
@pytest.mark.parametrize(("words", "silent"), STATEMENTS)
def test_a_task_whose_commit_did_not_arrive_left_nothing_and_comes_again(
    server_queue: Queue, proxy: Proxy, silent: bool, words: bytes
) -> None:
    queue = server_queue
    go_through(queue, proxy)
    cut = proxy.cut_before(contains(words), silent=silent)
    add(queue, "effect", 1)
    add(queue, "effect", 2)
    assert_silent(queue.worker())
    assert cut.has_struck
    assert effects(queue) == [2]
    assert states(queue)[0] == (3, 1)
    assert queue.sql("SELECT taken, done, lost FROM jobs_queue_workers") == [(2, 1, 0)]
    queue.end_backoffs()
    assert_silent(queue.worker())
    assert effects(queue) == [1, 2]


@pytest.mark.long
def test_a_completion_whose_answer_was_lost_is_not_committed(server_queue: Queue, proxy: Proxy) -> None:
    """The statement before the COMMIT."""
    queue = server_queue
    go_through(queue, proxy)
    add(queue, "hold", 1)
    process = queue.start_task()
    cut = proxy.cut_after(contains(b"jobs_queue"))
    queue.go()
    assert end_of(process) == (0, "", "")
    assert cut.has_struck
    assert (effects(queue), states(queue)) == ([], [(3, 1)])


# ---- a server that is killed


@pytest.fixture(scope="module")
def fragile_server(failing_kind: str) -> Iterator[MariaDB | PostgreSQL]:
    """A durable server that these tests kill. Limits of an account can be set while it runs as there is one."""
    if failing_kind == "postgresql":
        if programs_folder() is None:
            without("PostgreSQL is not installed (postgres not found)")
        with PostgreSQL(True) as postgresql:
            yield postgresql
        return
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB(True, "--max-user-connections=1000") as mariadb:
        yield mariadb


@pytest.fixture
def fragile_queue(fragile_server: MariaDB | PostgreSQL, make_queue: Callable[..., Queue]) -> Iterator[Queue]:
    name = fragile_server.create_database()
    yield make_queue(fragile_server.dsn(name))
    fragile_server.start()
    fragile_server.drop_database(name)


def restarted(queue: Queue, server: MariaDB | PostgreSQL) -> Queue:
    """The queue, of whose server the connections broke."""
    server.start()
    queue._server_connection = None
    return queue


def killing_before(matches: Matches, server: MariaDB | PostgreSQL) -> Matches:
    """The server is dead before a byte of such a request arrives."""

    def kill_and_match(request: bytes) -> bool:
        if matches(request):
            server.kill()
            return True
        return False

    return kill_and_match


@pytest.mark.xdist_group("fragile")
@pytest.mark.parametrize("is_done", [False, True])
def test_a_database_that_is_killed_around_the_commit_has_done_all_or_nothing(
    fragile_queue: Queue, fragile_server: MariaDB | PostgreSQL, is_done: bool
) -> None:
    queue = fragile_queue
    with Proxy(fragile_server.host, fragile_server.port, READERS[queue.kind]) as proxy:
        go_through(queue, proxy)
        add(queue, "hold", 1)
        process = queue.start_task("--mode", "mark")
        if is_done:
            cut = proxy.cut_after(COMMIT)
            proxy.cut_before(contains(b"SET due_at"), times=3)  # so that it cannot ask before the kill
        else:
            cut = proxy.cut_before(killing_before(COMMIT, fragile_server))
        queue.go()
        assert cut.wait(10)
        fragile_server.kill()
        proxy.pass_on()
        restarted(queue, fragile_server)
        assert end_of(process) == (0, "", "")
    if is_done:
        assert (effects(queue), states(queue)) == ([1, 101], [(2, 1)])
    else:
        assert (effects(queue), states(queue)) == ([], [(3, 1)])


@contextmanager
def allowing(queue: Queue, server: MySQLServer | PostgreSQLServer, connections: int) -> Iterator[None]:
    """In the `with`, workers have an account with so many connections, and each task has one attempt."""
    account = queue.dsn.rpartition("/")[2]
    drop = allow(queue, account, connections)
    dsn = queue.dsn.replace(server.login, f"{account}:{ACCOUNT_PASSWORD}")
    set_settings(queue, TASKSERVER_DSN=dsn, TASKSERVER_MAX_ATTEMPTS="1")
    try:
        if isinstance(server, MySQLServer):
            server.meet(account, ACCOUNT_PASSWORD)
        yield
    finally:
        for statement in drop:
            queue.sql(statement)


def allow(queue: Queue, account: str, connections: int) -> Sequence[str]:
    """Make the account, with its rights on the database that has its name; the statements that drop it."""
    if queue.is_postgresql:
        queue.sql(f"CREATE ROLE {account} LOGIN PASSWORD '{ACCOUNT_PASSWORD}' CONNECTION LIMIT {connections}")
        queue.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {account}")
        queue.sql(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {account}")
        return [f"DROP OWNED BY {account}", f"DROP ROLE {account}"]
    queue.sql(f"CREATE USER '{account}'@'%' IDENTIFIED BY '{ACCOUNT_PASSWORD}' WITH MAX_USER_CONNECTIONS {connections}")
    queue.sql(f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{account}`.* TO '{account}'@'%'")
    return [f"DROP USER '{account}'@'%'"]


def test_a_task_that_gets_no_second_connection_goes_back_uncounted_and_those_behind_it_run(
    server_queue: Queue, shared_server: MySQLServer | PostgreSQLServer
) -> None:
    """The first one is started for the import of its module already; each has one attempt."""
    queue = server_queue
    for number in (1, 2):
        add(queue, "effect", number)
    queue.go("go-plain")
    add(queue, "plain")
    with allowing(queue, shared_server, 1):
        ended = queue.worker("--mode", "mark")
        needs = "a worker needs two for a transactional or a long task"
        assert_one_line(ended, 0, "tasks.effect is postponed, as a transactional task needs a second connection", needs)
        assert (effects(queue), states(queue)) == ([], [(5, 0), (5, 0), (2, 1)])
        assert all(line.startswith("postponed: ") for line in queue.first_lines()[:2])
    queue.sql("UPDATE jobs_queue SET due_at = created_at WHERE status = 5")
    set_settings(queue, TASKSERVER_MAX_ATTEMPTS="1")
    assert_silent(queue.worker("--mode", "mark"))
    assert (effects(queue), states(queue)) == ([1, 2], [(2, 1)] * 3)
