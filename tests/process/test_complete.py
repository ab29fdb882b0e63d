"""Tasks that complete themselves in a transaction of their own code, by `taskserver.complete(connection)`.

Each test is made on PyMySQL, sqlite3 or psycopg; tests/producers has those on the connections of Django and SQLAlchemy.
That many of them at once leave every sum right is in tests/faults/test_transfers.py.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pymysql
import pytest

import taskserver
from taskserver import TaskServerError
from tests.conftest import without
from tests.support import effects as common
from tests.support.databases import EACH_DATABASE, EACH_SERVER, ON_MYSQL
from tests.support.deployment import ROOT
from tests.support.effects import OTHER_GROUP, add, effects, set_settings, states, with_effects
from tests.support.postgresql import PostgreSQLServer
from tests.support.processes import assert_one_line, assert_silent, end_of
from tests.support.proxy import Proxy, contains
from tests.support.queues import Queue
from tests.support.rows import Rows
from tests.support.servers import MySQLServer

MODES = ["delete", "move", "mark"]
EACH_MODE = pytest.mark.parametrize("mode", MODES)
SETTINGS = common.SETTINGS
TASKS = (
    common.TASKS
    + """
import psycopg
import pymysql

DSN = taskserver.TaskServer.from_env(HERE).settings.dsn
kept = []

def connect(**how):
    if DSN.kind == "sqlite":
        return sqlite3.connect(DSN.database, timeout=30, **how)
    place = {"host": DSN.host, "port": DSN.port, "user": DSN.user, "password": DSN.password}
    if DSN.kind == "postgresql":
        return psycopg.connect(**place, dbname=DSN.database, **how)
    place["database"] = DSN.database
    return pymysql.connect(ssl_disabled=True, read_timeout=1.5, **place, **how)

def insert(connection, number):
    connection.cursor().execute(f"INSERT INTO effects (number) VALUES ({number})")

def pay(number, after="commit", result=None, returns=None):
    connection = connect()
    kept.append(connection)
    insert(connection, number)
    note(f"pay {number}")
    wait(f"go-{number}")
    taskserver.complete(connection, result)
    insert(connection, number + 100)
    if after == "hold":
        note(f"completed {number}")
        wait(f"commit-{number}")
    if after == "raise":
        raise ValueError("before the commit")
    if after == "roll back":
        connection.rollback()
    if after not in ("leave open", "roll back"):
        connection.cursor().execute("COMMIT /* by the task */")
    if after == "commit, raise":
        raise ValueError("after the commit")
    return returns

def swallow(number):
    try:
        pay(number)
    except taskserver.LeaseLost as error:
        note(f"{type(error).__mro__[1].__name__}: {error}")

def twice(number, between):
    connection = connect()
    insert(connection, number)
    taskserver.complete(connection)
    if between == "rollback":
        connection.rollback()
        insert(connection, number)
    elif between == "commit":
        connection.commit()
    try:
        taskserver.complete(connection)
    except taskserver.TaskServerError as error:
        note(f"{type(error).__name__}: {error}")
    connection.commit()

def work(code):
    exec(code, globals(), {})

@taskserver.task(batch=5)
def of_several(items):
    taskserver.complete(connect())

def rescue(number, error):
    taskserver.complete(connect())

@taskserver.task(max_attempts=1, on_fatal=rescue)
def fail_for_good(number):
    raise ValueError("for good")

def in_a_child(number):
    child = os.fork()
    if not child:
        try:
            taskserver.complete(connect())
        except taskserver.TaskServerError as error:
            note(error)
        os._exit(0)
    os.waitpid(child, 0)

@taskserver.task(timeout=0.5)
def swallow_an_interrupt(number):
    connection = connect()
    insert(connection, number)
    try:
        time.sleep(20)
    except BaseException:
        pass
    taskserver.complete(connection)
    connection.commit()

def swallow_an_error(number):
    connection = connect()
    connection._read_timeout = 30  # MySQL 5.7 takes up to two seconds for one
    insert(connection, number)
    is_mysql = isinstance(connection, pymysql.Connection)
    connection.cursor().execute("SET innodb_lock_wait_timeout = 1" if is_mysql else "SET lock_timeout = '1s'")
    note("begun")
    wait("go-5")
    try:
        taskserver.complete(connection)
    except taskserver.DatabaseError as error:
        note(type(error).__name__)
    connection.commit()

@taskserver.task(timeout=1)
def wait_for_the_row(number):
    connection = connect()
    connection._read_timeout = None
    insert(connection, number)
    note("begun")
    wait("go-5")
    taskserver.complete(connection)
    connection.commit()


"""
)


@pytest.fixture
def make_queue(make_queue: Callable[..., Queue]) -> Callable[..., Queue]:
    return with_effects(make_queue)


@pytest.fixture(autouse=True)
def _go(request: pytest.FixtureRequest) -> None:
    """Tasks of the numbers 1 and 2 wait for nothing; one of 5 waits for its test."""
    for name in ("queue", "mysql_queue", "sqlite_queue", "postgresql_queue"):
        if name in request.fixturenames:
            for number in (1, 2):
                request.getfixturevalue(name).go(f"go-{number}")


def begin(queue: Queue, name: str, *args: object, mode: str = "delete") -> Callable[[], tuple[int, str, str]]:
    """Starts a worker with a task that waits for its test in the midst of its transaction; to let it go on and end."""
    add(queue, name, 5, *args)
    process = queue.start_task("--mode", mode)

    def end() -> tuple[int, str, str]:
        queue.go("go-5")
        return end_of(process)

    return end


# ---- effects and completion together


@EACH_SERVER
@EACH_MODE
def test_what_a_task_wrote_and_its_completion_are_one_commit(queue: Queue, mode: str) -> None:
    add(queue, "pay", 1, "hold")
    process = queue.start_task("--mode", mode)
    while "completed 1" not in queue.notes():
        assert process.poll() is None
    assert (effects(queue), states(queue)) == ([], [(1, 1)])
    queue.go("commit-1")
    assert end_of(process) == (0, "", "")
    assert effects(queue) == [1, 101]
    assert states(queue) == ([(2, 1)] if mode == "mark" else [])
    assert queue.rows("id, status, attempts", "jobs_queue_done") == ([(1, 2, 1)] if mode == "move" else [])
    assert queue.sql("SELECT taken, done, lost FROM jobs_queue_workers") == [(1, 1, 0)]


NOT_COMMITTED = "NotCompleted: it called taskserver.complete(), and that was not committed: commit on the connection"


@EACH_DATABASE
@pytest.mark.parametrize("mode", MODES)
def test_without_a_commit_the_attempt_has_failed(queue: Queue, mode: str) -> None:
    errors = {"leave open": NOT_COMMITTED, "roll back": NOT_COMMITTED, "raise": "ValueError: before the commit"}
    for after in errors:
        add(queue, "pay", 1, after)
        add(queue, "pay", 2)
    queue.run_quietly(mode=mode)
    assert effects(queue) == [2, 2, 2, 102, 102, 102]
    assert states(queue) == ([(3, 1), (2, 1)] * 3 if mode == "mark" else [(3, 1)] * 3)
    for line, error in zip([line for line in queue.first_lines() if line], errors.values(), strict=True):
        assert line.startswith(error)


def test_a_failure_after_the_commit_is_told_and_the_task_is_done(queue: Queue) -> None:
    add(queue, "pay", 1, "commit, raise")
    assert_one_line(queue.worker("--mode", "mark"), 0, "has completed itself, and failed after that: ValueError: after")
    assert (effects(queue), states(queue)) == ([1, 101], [(2, 1)])


def test_a_stage_hands_its_result_on(queue: Queue) -> None:
    first = queue.server.add_pipeline(["tasks.pay", "tasks.pay"], [1, "commit", {"number": 2, "returns": 3}])
    queue.server.add_pipeline(["tasks.pay", "tasks.note"], {"number": 1, "result": 7})
    queue.server.add_task("tasks.note", ["what waited for it"], depends_on=[first])
    assert_one_line(queue.worker("--mode", "mark"), 0, "is fatal: Fatal: what it returned is 7; allowed: a dict")
    assert effects(queue) == [1, 2, 101, 102]
    assert queue.rows("status, stage") == [(2, 1), (4, 0), (2, 0)]
    assert queue.notes()[-1] == "what waited for it"
    assert "pay 2" in queue.notes()


def test_its_result_is_kept_and_what_it_returns_is_not(queue: Queue) -> None:
    add(queue, "pay", 1, "commit", {"größe": [1]}, "returned")
    add(queue, "pay", 2, "commit", "x" * 70_000)
    ended = queue.worker("--mode", "mark")
    assert_one_line(ended, 0, "pay is done, and its result is not kept: what it returned takes 70002 bytes")
    assert [(status, result and json.loads(result)) for status, result in queue.rows("status, result")] == [
        (2, {"größe": [1]}),
        (2, None),
    ]


def test_a_session_of_any_kind_completes(mysql_queue: Queue) -> None:
    modes = "time_zone = '+05:00', sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"
    code = f"""
connection = connect(charset="latin1", cursorclass=pymysql.cursors.DictCursor)
connection.cursor().execute("SET {modes}")
taskserver.complete(connection, {{"größe": "Käse 😀 \\\\ ' %s"}})
connection.commit()
"""
    add(mysql_queue, "work", code)
    mysql_queue.run_quietly(mode="mark")
    ((result, age),) = mysql_queue.rows("result, ABS(TIMESTAMPDIFF(SECOND, finished_at, NOW(6)))")
    assert (json.loads(result), age < 60) == ({"größe": "Käse 😀 \\ ' %s"}, True)


# ---- whose task it is


@ON_MYSQL
@pytest.mark.parametrize(
    ("mode", "name"),
    [
        pytest.param(mode, name, marks=[pytest.mark.long] * (mode != "delete" and name == "swallow"))
        for mode in MODES
        for name in ("pay", "swallow")
    ],
)
def test_a_task_that_was_taken_over_raises_lease_lost_and_leaves_nothing(queue: Queue, mode: str, name: str) -> None:
    end = begin(queue, name, mode=mode)
    queue.end_leases()
    queue.run_quietly(groups=[int(OTHER_GROUP)])
    before = queue.rows()
    code, output, errors = end()
    assert (code, output) == (0, "")
    assert "tasks." + name + ": the lease was lost while it ran" in errors
    assert (effects(queue), queue.rows()) == ([], before)
    if name == "swallow":
        assert queue.notes()[1].startswith("TaskServerError: task 1 is not this worker's any more, so this transaction")


@ON_MYSQL
@EACH_MODE
def test_a_task_that_is_to_run_again_meanwhile_has_its_effects_and_runs_again(queue: Queue, mode: str) -> None:
    adding = ("--unique", "key", "--rerun")
    assert queue.client("add", "tasks.pay", "[5]", *adding).returncode == 0
    process = queue.start_task(1, "--mode", mode)
    assert queue.client("add", "tasks.pay", "[2]", *adding).returncode == 0
    queue.go("go-5")
    assert end_of(process) == (0, "", "")
    assert (effects(queue), queue.rows("args, status, attempts, claim")) == ([5, 105], [("[2]", 0, 0, None)])


def test_an_interrupt_that_was_swallowed_lets_nothing_be_completed(queue: Queue) -> None:
    add(queue, "swallow_an_interrupt", 1)
    queue.run_quietly()
    assert (effects(queue), states(queue)) == ([], [(3, 1)])
    assert queue.first_lines()[0].startswith("TaskInterrupted: it was interrupted, and went on")


@EACH_SERVER
def test_an_error_that_was_swallowed_leaves_no_part_of_a_completion(queue: Queue) -> None:
    """In mode move the archive's lock is held: the row that was marked to be moved is as it was before."""
    add(queue, "swallow_an_error", 5)
    process = queue.start_task("--mode", "move")
    with closing(Rows(queue.dsn)) as other:
        other.execute("INSERT INTO jobs_queue_done (id, task) VALUES (1, 'theirs')")
        other.execute("BEGIN")
        if queue.is_postgresql:
            other.execute("LOCK TABLE jobs_queue_done IN EXCLUSIVE MODE")
        else:
            other.execute("SELECT * FROM jobs_queue_done FOR UPDATE")  # and the gaps, for others' rows
        queue.go("go-5")
        assert end_of(process) == (0, "", "")
    assert (queue.notes(), effects(queue)) == (["begun", "Conflict"], [5])
    assert states(queue) == [(3, 1)]


# ---- where it is refused


def test_a_second_time_it_says_so_unless_the_first_was_rolled_back(queue: Queue) -> None:
    for number, between in enumerate(("nothing", "commit", "rollback")):
        add(queue, "twice", number, between)
    queue.run_quietly()
    assert (effects(queue), states(queue)) == ([0, 1, 2], [])
    first, second = queue.notes()
    assert first == second
    assert first.startswith("LeaseLost: taskserver.complete() was called before, which completed this task")


def test_outside_of_a_task_it_says_so() -> None:
    with pytest.raises(TaskServerError, match=r"taskserver\.complete\(\) is for tasks, while they run, and none runs"):
        taskserver.complete(None)


BY_ITSELF = "how = {'isolation_level': None} if DSN.kind == 'sqlite' else {'autocommit': True}\n"
REFUSED: list[tuple[str, list[object], str]] = [
    ("of_several", [], "taskserver.complete() is for the code of one task"),
    ("act", ["taskserver.complete(taskserver.connection())"], "taskserver.complete() is "),
    ("fail_for_good", [1], "taskserver.complete() is "),
    ("work", [f"{BY_ITSELF}taskserver.complete(connect(**how))"], "InvalidTask: connection is in no transaction, and"),
    ("work", ["taskserver.complete(None)"], "connection is of the type NoneType"),
    ("work", ["taskserver.complete('here')"], "connection is of the type str"),
    ("work", ["taskserver.complete(object())"], "connection is of the type object"),
    ("work", ["try: taskserver.complete('here')\nexcept Exception: pass"], NOT_COMMITTED),
]


def test_where_it_cannot_be_it_is_refused(queue: Queue) -> None:
    for name, args, _ in REFUSED:
        add(queue, name, *args)
    add(queue, "in_a_child", 1)
    queue.worker("--mode", "mark")
    failed = [(4 if name == "fail_for_good" else 3, 1) for name, _, _ in REFUSED]
    assert states(queue) == [*failed, (2, 1)]
    for (_, args, words), error in zip(REFUSED, queue.errors(), strict=False):
        assert words in error, args
    assert "or a forked process" in queue.notes()[0]


BY_SQLALCHEMY = """
import sqlalchemy
from sqlalchemy.orm import Session
driver = "sqlite" if DSN.kind == "sqlite" else "postgresql+psycopg" if DSN.kind == "postgresql" else "mysql+pymysql"
session = Session(sqlalchemy.create_engine(driver + "://", creator=connect))
session.execute(sqlalchemy.text("INSERT INTO effects (number) VALUES (1)"))
taskserver.complete(session if {by_session} else session.connection(), {{"größe": "Käse 😀"}})
session.commit() if {commits} else session.rollback()
"""


@EACH_DATABASE
@pytest.mark.parametrize("by_session", [True, False])
def test_a_session_or_connection_of_sqlalchemy_completes(queue: Queue, by_session: bool) -> None:
    for commits in (True, False):
        add(queue, "work", BY_SQLALCHEMY.format(by_session=by_session, commits=commits))
    queue.run_quietly(mode="mark")
    assert (effects(queue), queue.statuses()) == ([1], [2, 3])
    assert json.loads(queue.rows("result")[0][0]) == {"größe": "Käse 😀"}


# ---- connections that break


@pytest.fixture
def proxy(mysql_server: MySQLServer) -> Iterator[Proxy]:
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        yield proxy


@pytest.mark.parametrize(
    ("mode", "silent", "is_after"),
    [
        # After it the mode says where to look for what was done; before it nothing was.
        pytest.param(mode, silent, is_after, marks=[pytest.mark.long] * (mode != "delete" and (silent or not is_after)))
        for mode in MODES
        for silent in (False, True)
        for is_after in (False, True)
    ],
)
def test_a_commit_that_was_cut_off_is_found_out(
    mysql_queue: Queue, proxy: Proxy, mode: str, silent: bool, is_after: bool
) -> None:
    queue = mysql_queue
    set_settings(queue, TASKSERVER_DSN=proxy.dsn(queue.dsn))
    cut = (proxy.cut_after if is_after else proxy.cut_before)(contains(b"COMMIT /* by"), silent=silent)
    add(queue, "pay", 1)
    add(queue, "pay", 2)
    ended = queue.worker("--mode", mode)
    assert cut.has_struck
    if is_after:
        assert_one_line(ended, 0, "has completed itself, and failed after that: OperationalError: (2013")
        assert effects(queue) == [1, 2, 101, 102]
    else:
        assert_silent(ended)
        assert effects(queue) == [2, 102]
        assert states(queue)[0] == (3, 1)
    assert queue.sql("SELECT taken, done, lost FROM jobs_queue_workers") == [(2, 2 if is_after else 1, 0)]


@pytest.mark.parametrize("is_after", [False, True])
def test_a_commit_on_psycopg_that_was_cut_off_is_found_out(
    postgresql_queue: Queue, postgresql_server: PostgreSQLServer, is_after: bool
) -> None:
    queue = postgresql_queue
    with Proxy(postgresql_server.host, postgresql_server.port) as proxy:
        set_settings(queue, TASKSERVER_DSN=proxy.dsn(queue.dsn))
        cut = (proxy.cut_after if is_after else proxy.cut_before)(contains(b"COMMIT /* by"))
        add(queue, "pay", 1)
        add(queue, "pay", 2)
        ended = queue.worker()
        assert cut.has_struck
    if is_after:
        assert_one_line(ended, 0, "has completed itself, and failed after that: OperationalError: ")
        assert effects(queue) == [1, 2, 101, 102]
    else:
        assert_silent(ended)
        assert (effects(queue), states(queue)) == ([2, 102], [(3, 1)])
    assert queue.sql("SELECT taken, done, lost FROM jobs_queue_workers") == [(2, 2 if is_after else 1, 0)]


# ---- other drivers

SYSTEM_PYTHON = "/usr/bin/python3"
BY_MYSQLCLIENT = """
import sys

import MySQLdb
import taskserver

server = taskserver.TaskServer(sys.argv[1], modules="__main__", mode="mark")
AT = server.settings.dsn

def pay(number):
    place = {"host": AT.host, "port": AT.port, "user": AT.user, "password": AT.password, "database": AT.database}
    connection = MySQLdb.connect(**place, charset="latin1")
    connection.cursor().execute("INSERT INTO effects (number) VALUES (%s)", [number])
    taskserver.complete(connection, {"größe": number})
    connection.commit() if number < 3 else connection.rollback()

for number in (1, 2, 3):
    server.add_task("__main__.pay", [number])
ended = server.run()
print(ended.done, ended.failed)
"""


def test_a_connection_of_mysqlclient_completes(mysql_queue: Queue, tmp_path: Path) -> None:
    if subprocess.run([SYSTEM_PYTHON, "-c", "import MySQLdb"], capture_output=True).returncode != 0:
        without(f"{SYSTEM_PYTHON} has no mysqlclient")
    (tmp_path / "pymysql").symlink_to(Path(pymysql.__file__).parent)
    (tmp_path / "taskserver").symlink_to(ROOT / "taskserver")
    (tmp_path / "program.py").write_text(BY_MYSQLCLIENT)
    command = [SYSTEM_PYTHON, str(tmp_path / "program.py"), mysql_queue.dsn]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "2 1\n")
    assert ended.stderr.startswith("task 3 __main__.pay failed, attempt 1 of 10: NotCompleted: ")  # as logging has it
    assert effects(mysql_queue) == [1, 2]
    found = [(status, result and json.loads(result)) for status, result in mysql_queue.rows("status, result")]
    assert found == [(2, {"größe": 1}), (2, {"größe": 2}), (3, None)]
