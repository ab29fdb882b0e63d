"""What tasks do to the session of their own transaction, and what that costs neither them nor the next one."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from tests.conftest import without
from tests.support.effects import SETTINGS as EFFECT_SETTINGS
from tests.support.effects import TASKS as EFFECT_TASKS
from tests.support.effects import add, effects, with_effects
from tests.support.processes import assert_one_line, assert_silent, end_of
from tests.support.queues import Queue
from tests.support.servers import MariaDB, missing_programs

SETTINGS = EFFECT_SETTINGS
TASKS = (
    EFFECT_TASKS
    + """
kept = []


@transactional
def leave_a_factory(number):
    effect(number)
    taskserver.connection().row_factory = lambda cursor, row: 1 / 0
    return run("SELECT 1") and None


@transactional
def change_session(number, statement, value=None):
    effect(number)
    run(statement)
    return value


@transactional
def have_a_child_write(number, first=None, does="effect"):
    if first is not None:
        effect(first)
    child = os.fork()
    if not child:
        try:
            effect(number) if does == "effect" else taskserver.connection().rollback()
        except Exception:
            os._exit(1 if getattr(taskserver.connection(), "in_transaction", True) else 2)
        os._exit(0)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 1, "the child wrote"


@transactional
def keep_and_fail(number):
    kept.append(taskserver.connection())
    effect(number)
    raise ValueError("after its write")


@transactional
def use_what_was_kept(number):
    kept[0].ping(reconnect=True)
    kept[0].cursor().execute(f"INSERT INTO effects (number) VALUES ({number})")


@transactional
def keep(number):
    kept.append(taskserver.connection())
    effect(number)


def write_to_what_was_kept(number):
    kept[0].close()
    kept[0].cursor().execute(f"INSERT INTO effects (number) VALUES ({number})")


@transactional
def undo_by_the_way(number, then):
    effect(number)
    try:
        run("INSERT OR ROLLBACK INTO effects (number) VALUES (5000)")
    except Exception:
        if then == "raises it":
            raise
    effect(number + 1)


@transactional
def leave_a_cursor_open(number):
    reading = run("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i FROM n")
    reading.fetchone()
    effect(number)
    raise ValueError("with a cursor in the midst of its rows")


@transactional
def wait_for_a_lock(number, then):
    effect(number)
    note("waits")
    run("SET innodb_lock_wait_timeout = 1")
    try:
        run("UPDATE effects SET number = 1 WHERE number = 0")
    except Exception:
        if then == "raises it":
            raise
    effect(number + 1)


@transactional
def take_long(number):
    effect(number)
    time.sleep(0.25)
"""
)


@pytest.fixture
def make_queue(make_queue: Callable[..., Queue]) -> Callable[..., Queue]:
    """With a table that tasks write to."""
    return lambda dsn: with_effects(make_queue(dsn))


@pytest.fixture(scope="module")
def odd_server() -> Iterator[MariaDB]:
    """A server that undoes a whole transaction when a lock is not to be had, and takes short statements alone."""
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB(False, "--innodb-rollback-on-timeout=ON", "--max-allowed-packet=131072") as server:
        yield server


@pytest.fixture
def odd_queue(odd_server: MariaDB, make_queue: Callable[..., Queue]) -> Iterator[Queue]:
    name = odd_server.create_database()
    try:
        yield make_queue(odd_server.dsn(name))
    finally:
        odd_server.drop_database(name)


# ---- what stays in the session


def test_a_factory_of_rows_that_a_task_left_is_not_the_next_one_s(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "leave_a_factory", 1)
    add(sqlite_queue, "effect", 2)
    assert_silent(sqlite_queue.worker("--mode", "mark"))
    assert sqlite_queue.statuses() == [2, 2]
    assert effects(sqlite_queue) == [1, 2]


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_a_task_may_go_to_another_database_of_the_server(mysql_queue: Queue, mode: str) -> None:
    for number in (1, 2):
        add(mysql_queue, "change_session", number, "USE information_schema")
        add(mysql_queue, "effect", 10 * number)
    worker = mysql_queue.worker("--mode", mode)
    # The next one finds the session as it was left, and so no such table.
    assert (worker.returncode, worker.stderr) == (0, "")
    assert effects(mysql_queue)[0] == 1
    done = {"delete": 0, "move": 0, "mark": 1}[mode]
    assert mysql_queue.statuses().count(2) >= done
    assert all("tables of jobs_queue" not in error for error in mysql_queue.errors())


def test_texts_come_through_a_character_set_that_a_task_chose(mysql_queue: Queue) -> None:
    add(mysql_queue, "change_session", 1, "SET NAMES latin1", "Käse 😀")
    add(mysql_queue, "effect", 2, "Brötchen")
    assert_silent(mysql_queue.worker("--mode", "mark"))
    results = [json.loads(result) for (result,) in mysql_queue.rows("result")]
    assert results == ["Käse 😀", "Brötchen"]


def test_a_cursor_in_the_midst_of_its_rows_keeps_no_lock(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "leave_a_cursor_open", 1)
    add(sqlite_queue, "effect", 2)
    assert_silent(sqlite_queue.worker("--mode", "mark"))
    assert sqlite_queue.statuses() == [3, 2]
    assert effects(sqlite_queue) == [2]


# ---- writes that would go elsewhere


def test_a_forked_process_cannot_write_to_its_parent_s_transaction(queue: Queue) -> None:
    add(queue, "have_a_child_write", 1)
    add(queue, "effect", 2)
    add(queue, "have_a_child_write", 3, 3)  # by a statement that was prepared before the fork
    assert_silent(queue.worker("--mode", "mark"))
    add(queue, "have_a_child_write", 0, 4, "rollback")
    assert_silent(queue.worker("--mode", "mark"))
    assert queue.errors() == ["", "", "", ""]
    assert effects(queue) == [2, 3, 4]


def test_a_task_may_fork_after_one_that_failed(queue: Queue) -> None:
    add(queue, "keep_and_fail", 1)
    add(queue, "have_a_child_write", 2, 2)
    assert_silent(queue.worker("--mode", "mark"))
    assert queue.statuses() == [3, 2]
    assert effects(queue) == [2]


@pytest.mark.parametrize("task", ["effect", "note"])
def test_a_connection_that_was_kept_from_a_task_that_succeeded_takes_nothing_after_it(queue: Queue, task: str) -> None:
    """Be it in another task, or in the next one of its kind before that begins."""
    add(queue, "keep", 1)
    add(queue, "write_to_what_was_kept", 2)
    add(queue, task, 3)
    assert_silent(queue.worker("--mode", "mark"))
    assert queue.statuses() == [2, 3, 2]
    assert "the task that this connection was for is over" in queue.first_lines()[1]
    assert effects(queue) == ([1, 3] if task == "effect" else [1])


def test_a_connection_that_was_kept_from_an_earlier_task_is_of_no_use(mysql_queue: Queue) -> None:
    add(mysql_queue, "keep_and_fail", 1)
    add(mysql_queue, "use_what_was_kept", 2)
    assert_silent(mysql_queue.worker("--mode", "mark"))
    assert mysql_queue.statuses() == [3, 3]
    assert mysql_queue.first_lines()[1].startswith("OperationalError: (2013, ")
    assert effects(mysql_queue) == []


# ---- what the database undid


@pytest.mark.parametrize("then", ["raises it", "goes on"])
def test_a_task_that_sqlite_rolled_back_comes_again(sqlite_queue: Queue, then: str) -> None:
    add(sqlite_queue, "undo_by_the_way", 1, then)
    assert_silent(sqlite_queue.worker("--mode", "mark"))
    assert sqlite_queue.statuses() == [3]
    begin = "IntegrityError: " if then == "raises it" else "OperationalError: SQLite rolled back the task's transaction"
    assert sqlite_queue.first_lines()[0].startswith(begin)
    assert effects(sqlite_queue) == []


@pytest.mark.parametrize("then", ["raises it", "goes on"])
def test_a_task_that_a_server_rolled_back_for_a_lock_comes_again(odd_queue: Queue, then: str) -> None:
    odd_queue.sql("INSERT INTO effects VALUES (0)")
    add(odd_queue, "wait_for_a_lock", 1, then)
    with closing(odd_queue.connect()) as other, other.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        other.begin()
        cursor.execute("SELECT * FROM effects WHERE number = 0 FOR UPDATE")
        assert_silent(odd_queue.worker("--mode", "mark"))
        other.rollback()
    assert odd_queue.statuses() == [3]
    begin = "OperationalError: (1205, " if then == "raises it" else "Conflict: its transaction was rolled back"
    assert odd_queue.first_lines()[0].startswith(begin)
    assert effects(odd_queue) == [0]


def test_a_result_that_is_longer_than_the_server_takes_leaves_the_task_done(odd_queue: Queue) -> None:
    add(odd_queue, "effect", 1, "x" * 60_000)
    ended = odd_queue.worker("--mode", "mark")
    assert_one_line(ended, 0, "its result is not kept", "max_allowed_packet")
    assert odd_queue.rows("status, attempts, result") == [(2, 1, None)]
    assert effects(odd_queue) == [1]


# ---- those who wait for SQLite's lock


def test_who_waits_for_the_lock_finds_it_free_between_two_tasks(sqlite_queue: Queue) -> None:
    for number in range(24):
        add(sqlite_queue, "take_long", number)
    worker = sqlite_queue.start("--mode", "mark")
    waited: list[float] = []

    def write_now_and_then() -> None:
        while worker.poll() is None:
            began_at = time.monotonic()
            with closing(sqlite3.connect(sqlite_queue.path, timeout=60, isolation_level=None)) as page:
                page.execute("INSERT INTO jobs_queue (task, group_id) VALUES ('tasks.note', 9)")
            waited.append(time.monotonic() - began_at)
            time.sleep(0.05)

    page = threading.Thread(target=write_now_and_then)
    page.start()
    assert end_of(worker) == (0, "", "")
    page.join()
    assert len(waited) > 5
    assert sorted(waited)[len(waited) // 2] < 24 * 0.25 / 3
