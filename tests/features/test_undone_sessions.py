"""Whatever went wrong in the middle of a task's transaction, and the task kept to itself: nothing is half committed."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.conftest import without
from tests.support.effects import EFFECTS, add, effects, with_effects
from tests.support.effects import SETTINGS as EFFECT_SETTINGS
from tests.support.effects import TASKS as EFFECT_TASKS
from tests.support.processes import assert_silent, end_of, wait_until
from tests.support.proxy import Proxy, contains
from tests.support.queues import Queue
from tests.support.servers import MariaDB, MySQLServer, missing_programs

SETTINGS = EFFECT_SETTINGS
TASKS = (
    EFFECT_TASKS
    + """
# ---- SQLite rolls back

WITH = "WITH n (i) AS (SELECT {}) INSERT INTO effects SELECT i FROM n"
WAYS_ON = {
    "as before": effect,
    "with": lambda number: run(WITH.format(number)),
    "many": lambda number: taskserver.connection().executemany("INSERT INTO effects VALUES (?)", [(number,)]),
    "rows": lambda number: taskserver.connection().executemany("INSERT INTO effects VALUES (?)", [(number,)] * 2),
    "blob": lambda number: taskserver.connection().blobopen("effects", "number", 1).write(b"9"),
    "table": lambda number: run(f"CREATE TABLE made{number} (n)"),
    "begin": lambda number: (run("BEGIN"), effect(number), taskserver.connection().commit()),
    "other cursor": lambda number: sqlite3.Cursor(taskserver.connection()).execute(WITH.format(number)),
}


@transactional
def go_on_after_it(how, number):
    effect(number)
    try:
        run("INSERT OR ROLLBACK INTO effects (number) VALUES (5000)")
    except sqlite3.Error:
        pass
    if how == "begins anew":
        taskserver.connection().rollback()
        how = "as before"
    try:
        WAYS_ON[how](number + 1)
    except Exception:
        pass


@transactional
def give_rows_and_undo():
    def rows():
        yield (1,)
        try:
            run("INSERT OR ROLLBACK INTO effects (number) VALUES (5000)")
        except sqlite3.Error:
            pass
        yield (2,)

    taskserver.connection().executemany("INSERT INTO effects (number) VALUES (?)", rows())


@transactional
def leave_settings(number):
    effect(number)
    taskserver.connection().row_factory = lambda cursor, row: 1 / 0
    taskserver.connection().text_factory = bytes
    taskserver.connection().isolation_level = "DEFERRED"


# ---- MySQL's answers


def strike(*args):
    raise KeyboardInterrupt


@transactional
def swallow_interrupts(times, then):
    connection = taskserver.connection()
    for number in range(times):
        connection._read_query_result = strike
        try:
            effect(number)
        except BaseException:
            pass
        finally:
            del connection._read_query_result
    note("struck")
    wait()
    try:
        effect(times)
    except Exception:
        if then == "raises it":
            raise


@transactional
def send_what_cannot_be_sent(number):
    connection = taskserver.connection()
    connection.set_character_set("latin1")
    for send in (lambda: connection.select_db(5), lambda: connection.select_db("\\u6f22"), lambda: connection.query(5)):
        try:
            send()
        except (TypeError, ValueError, AttributeError):
            pass
    effect(number)


@transactional
def swallow_what_cannot_be_read(number):
    connection = taskserver.connection()
    effect(number)
    decoders = connection.decoders
    connection.decoders = {**decoders, **dict.fromkeys(decoders, lambda value: 1 / 0)}
    try:
        run("SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3")
    except ZeroDivisionError:
        pass
    connection.decoders = decoders


@taskserver.task(transactional=True, timeout=1)
def roll_back_in_silence():
    effect(1)
    note("wrote")
    wait()
    taskserver.connection().rollback()


@transactional
def look_and_wait(number):
    run("SELECT COUNT(*) FROM effects").fetchall()
    note("looked")
    wait()
    effect(number)


@transactional
def spoil_the_session(number):
    effect(number)
    run("SET SESSION TRANSACTION READ ONLY")
"""
)


@pytest.fixture
def make_queue(make_queue: Callable[..., Queue]) -> Callable[..., Queue]:
    """With a table that tasks write to."""
    return lambda dsn: with_effects(make_queue(dsn))


# ---- SQLite rolls back

WAYS_ON = ("as before", "with", "many", "rows", "blob", "table", "begin", "other cursor")


@pytest.mark.parametrize("how", WAYS_ON)
def test_a_task_that_goes_on_after_sqlite_rolled_it_back_commits_nothing(sqlite_queue: Queue, how: str) -> None:
    add(sqlite_queue, "go_on_after_it", how, 1)
    add(sqlite_queue, "effect", 10)
    assert_silent(sqlite_queue.worker("--mode", "mark"))
    assert sqlite_queue.statuses() == [3, 2]
    assert sqlite_queue.first_lines()[0].startswith("Conflict: its transaction was rolled back, and it went on")
    assert effects(sqlite_queue) == [10]
    assert sqlite_queue.sql("SELECT COUNT(*) FROM sqlite_master WHERE name LIKE 'made%'") == [(0,)]


def test_rows_of_a_generator_that_met_the_error_itself_are_not_committed(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "give_rows_and_undo")
    assert_silent(sqlite_queue.worker("--mode", "mark"))
    assert sqlite_queue.statuses() == [3]
    assert effects(sqlite_queue) == []


def test_a_task_that_sqlite_rolled_back_may_begin_anew(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "go_on_after_it", "begins anew", 1)
    assert_silent(sqlite_queue.worker("--mode", "mark"))
    assert sqlite_queue.statuses() == [2]
    assert effects(sqlite_queue) == [2]


IN_MEMORY = f"""
import logging
from pathlib import Path

from taskserver import TaskServer

logging.disable()
server = TaskServer("sqlite:///:memory:", modules="tasks", folder=Path(__file__).parent, mode="mark", max_attempts=2)
server.create_tables()
connection = server.store.database.session().connection
connection.execute({EFFECTS[True]!r})
ids = [server.add_task("tasks.go_on_after_it", [how, 1]) for how in {(*WAYS_ON, "begins anew")!r}]
ids += [server.add_task("tasks.leave_settings", [3]), server.add_task("tasks.effect", [10])]
server.run()
print([int(server.get(task_id).status) for task_id in ids])
print([number for number, in connection.execute("SELECT number FROM effects ORDER BY number")])
print(connection.execute("SELECT COUNT(*) FROM sqlite_master WHERE name LIKE 'made%'").fetchall())
"""


def test_nor_does_one_in_memory_and_what_a_task_set_there_is_reset(sqlite_queue: Queue) -> None:
    (sqlite_queue.folder / "program.py").write_text(IN_MEMORY)
    ended = sqlite_queue.deployment.run("program.py")
    assert ended.stderr == ""
    failed = [3] * len(WAYS_ON)
    assert ended.stdout.splitlines() == [str([*failed, 2, 2, 2]), "[2, 3, 10]", "[(0,)]"]


# ---- MySQL's answers


@pytest.mark.parametrize("is_lost", [False, True], ids=["", "lost"])
@pytest.mark.parametrize("then", ["raises it", "goes on"])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_interrupt_that_cut_off_an_answer_and_was_swallowed_lets_nothing_be_committed(
    mysql_queue: Queue, times: int, then: str, is_lost: bool
) -> None:
    """Else each statement would get the answer to the one before it, and the fence that to a write of the task."""
    add(mysql_queue, "swallow_interrupts", times, then)
    add(mysql_queue, "effect", 10)
    worker = mysql_queue.start("--mode", "mark")
    wait_until(lambda: mysql_queue.notes() == ["struck"])
    if is_lost:
        mysql_queue.sql("UPDATE jobs_queue SET claim = claim + 1 WHERE id = 1")
    mysql_queue.go()
    code, output, errors = end_of(worker)
    assert (code, output, len(errors.splitlines())) == (0, "", int(is_lost))
    assert mysql_queue.statuses() == [1 if is_lost else 3, 2]
    if not is_lost:
        assert "was cut off" in mysql_queue.first_lines()[0] or "(2013" in mysql_queue.first_lines()[0]
    assert effects(mysql_queue) == [10]


def test_what_could_not_be_sent_leaves_no_answer_due(mysql_queue: Queue) -> None:
    add(mysql_queue, "send_what_cannot_be_sent", 1)
    assert_silent(mysql_queue.worker("--mode", "mark"))
    assert mysql_queue.errors() == [""]
    assert effects(mysql_queue) == [1]


def test_rows_that_could_not_be_read_are_not_taken_for_the_answer_to_the_next_statement(mysql_queue: Queue) -> None:
    add(mysql_queue, "swallow_what_cannot_be_read", 1)
    add(mysql_queue, "effect", 2)
    assert_silent(mysql_queue.worker("--mode", "mark"))
    assert mysql_queue.statuses() == [3, 2]
    assert "was cut off" in mysql_queue.first_lines()[0]
    assert effects(mysql_queue) == [2]


def test_a_rollback_that_gets_no_answer_is_interrupted_by_the_timeout(
    mysql_queue: Queue, mysql_server: MySQLServer
) -> None:
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        mysql_queue.deployment.write_env(TASKSERVER_DSN=proxy.dsn(mysql_queue.dsn), TASKSERVER_BACKOFF="fixed:500")
        add(mysql_queue, "roll_back_in_silence")
        cut = proxy.cut_before(contains(b"ROLLBACK"), silent=True)
        worker = mysql_queue.start("--mode", "mark")
        mysql_queue.go()
        began_at = time.monotonic()
        assert end_of(worker) == (0, "", "")
        assert cut.has_struck
        assert time.monotonic() - began_at < 15  # and not as long as the network is silent
    assert mysql_queue.statuses() == [3]
    assert mysql_queue.first_lines()[0].startswith("TaskInterrupted: ")
    assert effects(mysql_queue) == []


def test_a_lease_that_is_renewed_meanwhile_does_not_keep_a_task_from_its_end_where_snapshots_are_minded(
    make_queue: Callable[..., Queue],
) -> None:
    """With statement-based replication there is no READ COMMITTED, so its transaction has a snapshot."""
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    flags = ("--log-bin", "--binlog-format=STATEMENT", "--innodb-snapshot-isolation=ON")
    with MariaDB(False, *flags) as server:
        queue = make_queue(server.dsn(server.create_database()))
        add(queue, "effect", 10)
        add(queue, "look_and_wait", 1)
        worker = queue.start("--mode", "mark")
        wait_until(lambda: queue.notes() == ["looked"])
        queue.sql("UPDATE jobs_queue SET updated_at = NOW(6), due_at = due_at + INTERVAL 1 MINUTE WHERE status = 1")
        queue.go()
        assert end_of(worker) == (0, "", "")
        assert queue.statuses() == [2, 2]
        assert effects(queue) == [1, 10]


def test_a_session_that_a_task_made_useless_is_not_the_next_one_s(mysql_queue: Queue) -> None:
    add(mysql_queue, "spoil_the_session", 1)
    for number in (2, 3):
        add(mysql_queue, "effect", number)
    assert_silent(mysql_queue.worker("--mode", "mark"))
    assert mysql_queue.statuses()[0] == 2
    assert effects(mysql_queue)[-1] == 3
