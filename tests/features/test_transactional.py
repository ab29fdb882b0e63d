"""Tasks that run inside the transaction that completes them: what they write and their end are one, case by case.

Workers are real processes, on every store; faults of the network and of the server are real ones too. That many of
them at once leave every sum right is in test_transfers.py.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

import taskserver
from taskserver import SettingError, TaskServer, TaskServerError
from tests.conftest import without
from tests.support.processes import assert_one_line, assert_silent, end_of, freeze, kill, thaw, wait_until
from tests.support.proxy import Matches, Proxy, contains
from tests.support.queues import Queue
from tests.support.servers import MariaDB, MySQLServer, lock_waits, missing_programs

EACH_MODE = pytest.mark.parametrize("mode", ["delete", "move", "mark"])
SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends, is renewed or comes back while a test looks, unless it says so."""
OTHER_GROUP = 4294967295
"""Without a task: whoever works for it takes back what is due, and runs nothing."""
COMMIT = contains(b"COMMIT /* of a task")
MAY_NOT = "a task may not end its transaction itself"
ACCOUNT_PASSWORD = "worker"

TASKS = """
import os
import time

import taskserver
from taskserver import task
from taskserver.stores.mysql import task_session as mysql_task_session

# In place of the minute that a worker waits for the answer to its COMMIT.
mysql_task_session.SECONDS_OF_OURS = 1.5

transactional = task(transactional=True)


def run(statement):
    cursor = taskserver.connection().cursor()
    cursor.execute(statement)
    return cursor


def write(number):
    run(f"INSERT INTO effects (number) VALUES ({number})")


def wait(name="go"):
    while not (HERE / name).exists():
        time.sleep(0.005)


def plain(name="plain"):
    note(name)
    wait(f"go-{name}")


@transactional
def effect(number, value=None):
    write(number)
    return value


@transactional
def effect_of(**row):
    write(row["number"])
    return {"number": row["number"] + 1}


@transactional
def effect_with_id(number):
    write(number)
    note(f"{number} {taskserver.connection().thread_id()}")


@transactional
def fail(number):
    write(number)
    raise ValueError("after its write")


@transactional
def hold(number, name="go"):
    write(number)
    note(f"hold {number}")
    wait(name)
    write(number + 100)
    return {"number": number}


@transactional
def hold_and_fail(number):
    hold(number)
    raise ValueError("in the end")


@transactional
def hold_before(number):
    note(f"hold_before {taskserver.connection().thread_id()}")
    wait()
    write(number)


@transactional
def busy(number):
    write(number)
    note("busy")
    while True:
        pass


@task(transactional=True, timeout=0.5)
def too_long(number):
    write(number)
    while True:
        pass


@task(transactional=True, timeout=0.5)
def too_long_in_the_database(number):
    write(number)
    run("SELECT SLEEP(20)")


@transactional
def roll_back(*numbers):
    for number in numbers:
        if number is None:
            taskserver.connection().rollback()
        else:
            write(number)


@transactional
def roll_back_and_fail(number):
    roll_back(number, None, number + 1)
    raise ValueError("after its rollback")


@transactional
def roll_back_and_commit(number):
    roll_back(number, None, number + 1)
    run("COMMIT AND CHAIN" if "pymysql" in str(type(taskserver.connection()).__mro__) else "COMMIT")


@transactional
def use_harmlessly(number):
    connection = taskserver.connection()
    with connection:
        write(number)
    connection.close()
    write(number + 1)
    with connection.cursor() if hasattr(connection, "ping") else connection:
        write(number + 2)
    run("SAVEPOINT own")
    write(number + 99)
    run("ROLLBACK TO own")
    run("RELEASE SAVEPOINT own")
    try:
        with connection:
            raise KeyError("the task's own")
    except KeyError:
        write(number + 3)
    assert taskserver.connection() is connection


@transactional
def add_child(number, fails):
    write(number)
    run(f"INSERT INTO jobs_queue (task, args) VALUES ('tasks.note', '[\\"child {number}\\"]')")
    if fails:
        raise ValueError("no child")


@transactional
def return_a_set(number):
    write(number)
    return {number}


def rescue(number, error):
    note(f"rescue {number}: {error}")
    try:
        taskserver.connection()
    except taskserver.TaskServerError as refused:
        note(refused)


@task(transactional=True, max_attempts=1, on_fatal=rescue)
def fail_for_good(number):
    write(number)
    raise ValueError("for good")


def ask_outside():
    taskserver.connection()


def procedure(name):
    run(f"CALL {name}()")


ENDINGS = {
    "commit()": lambda number: taskserver.connection().commit(),
    "COMMIT": lambda number: run("COMMIT"),
    "lower case": lambda number: run("  /* a comment */ commit"),
    "COMMIT AND CHAIN": lambda number: run("COMMIT AND CHAIN"),
    "END": lambda number: run("END"),
    "BEGIN": lambda number: run("BEGIN"),
    "START TRANSACTION": lambda number: run("START TRANSACTION"),
    "begin()": lambda number: taskserver.connection().begin(),
    "CREATE TABLE": lambda number: run(f"CREATE TABLE other_{number} (number INT)"),
    "autocommit()": lambda number: taskserver.connection().autocommit(True),
    "SET autocommit": lambda number: run("SET autocommit = 1"),
    "procedure": lambda number: run("CALL commit_now()"),
    "procedure that begins": lambda number: run("CALL commit_and_begin()"),
    "ROLLBACK": lambda number: run("ROLLBACK"),
    "executescript": lambda number: taskserver.connection().executescript("SELECT 1;"),
    "isolation_level": lambda number: setattr(taskserver.connection(), "isolation_level", None),
}


@transactional
def end(how, then, number):
    write(number)
    try:
        ENDINGS[how](number)
    except BaseException:
        if then == "raises it":
            raise
    if then == "raises another":
        raise ValueError("another one")
    write(number + 1)


@transactional
def meet_deadlock(then):
    run("UPDATE effects SET number = number + 10 WHERE id = 1")
    note("meet_deadlock")
    wait()
    try:
        if then == "raises it, later":
            run("CALL change_second()").nextset()
        else:
            run("UPDATE effects SET number = number + 10 WHERE id = 2")
    except Exception:
        if then.startswith("raises it"):
            raise
    if then == "begins anew":
        taskserver.connection().rollback()
    write(7)


@transactional
def add_by_server(number):
    write(number)
    with taskserver.TaskServer.from_env(HERE) as server:
        server.add_task("tasks.note")


@transactional
def add_on_another_connection(number):
    import sqlite3

    write(number)
    with taskserver.TaskServer.from_env(HERE) as server:
        other = sqlite3.connect(server.settings.dsn.database_file(HERE), timeout=0.1)
        server.add_task("tasks.note", connection=other)


@transactional
def do(statement):
    run(statement)


@transactional
def ask(statement):
    return [list(row) for row in run(statement).fetchall()]
"""

EFFECTS = {
    True: "CREATE TABLE effects (id INTEGER PRIMARY KEY AUTOINCREMENT, number INTEGER)",
    False: "CREATE TABLE effects (id INT PRIMARY KEY AUTO_INCREMENT, number INT) ENGINE=InnoDB",
}
"""By whether it is for SQLite."""


@pytest.fixture
def make_queue(make_queue: Callable[..., Queue]) -> Callable[..., Queue]:
    """With a table that tasks write to."""

    def make(dsn: str) -> Queue:
        queue = make_queue(dsn)
        queue.sql(EFFECTS[queue.is_sqlite])
        return queue

    return make


def effects(queue: Queue) -> list[int]:
    """What was committed."""
    return [number for (number,) in queue.sql("SELECT number FROM effects ORDER BY number")]


def add(queue: Queue, name: str, *args: object) -> None:
    queue.add(f"tasks.{name}", json.dumps(args))


def states(queue: Queue) -> list[tuple[Any, ...]]:
    return queue.rows("status, attempts")


def set_settings(queue: Queue, **settings: str) -> None:
    queue.deployment.write_env(**{"TASKSERVER_DSN": queue.dsn, **SETTINGS, **settings})


def run_program(queue: Queue, code: str) -> list[str]:
    """What a program of the queue's folder prints, which has a `server`."""
    (queue.folder / "program.py").write_text(
        "import sqlite3, threading\nfrom taskserver import TaskServer\nserver = TaskServer.from_env()\n" + code
    )
    ended = queue.deployment.run("program.py")
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.splitlines()


def assert_fatal(ended: subprocess.CompletedProcess[str], *words: str) -> None:
    assert_one_line(ended, 0, "is fatal: ", *words)


# ---- effects and completion together


@EACH_MODE
def test_what_a_task_wrote_and_its_completion_come_at_once(queue: Queue, mode: str) -> None:
    add(queue, "hold", 1)
    process = queue.start_task("--mode", mode)
    assert (effects(queue), states(queue)) == ([], [(1, 1)])
    queue.go()
    assert end_of(process) == (0, "", "")
    assert effects(queue) == [1, 101]
    assert states(queue) == ([(2, 1)] if mode == "mark" else [])
    archived = [(1, 2, 1)] if mode == "move" else []
    assert queue.rows("id, status, attempts", "jobs_queue_done") == archived
    assert_silent(queue.worker("--mode", mode))
    assert queue.notes() == ["hold 1"]


@EACH_MODE
def test_what_a_killed_worker_had_not_completed_is_not_there(queue: Queue, mode: str) -> None:
    add(queue, "hold", 1)
    kill(queue.start_task("--mode", mode))
    assert (effects(queue), states(queue)) == ([], [(1, 1)])
    queue.go()
    queue.end_leases()
    assert_silent(queue.worker("--mode", mode))
    assert (effects(queue), states(queue)) == ([], [(3, 1)])
    queue.end_backoffs()
    assert_silent(queue.worker("--mode", mode))
    assert effects(queue) == [1, 101]
    assert states(queue) == ([(2, 2)] if mode == "mark" else [])


def test_tasks_of_all_kinds_take_turns(queue: Queue) -> None:
    queue.go("go-plain")
    for number in (1, 2):
        for name, args in (("effect", [number]), ("plain", []), ("fail", [number + 10]), ("nothing", [])):
            add(queue, name, *args)
    ended = queue.worker("--mode", "mark")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (0, 2)
    assert effects(queue) == [1, 2]
    assert states(queue) == [(2, 1), (2, 1), (3, 1), (4, 0)] * 2
    assert queue.notes() == ["plain"] * 2


@EACH_MODE
def test_a_stage_of_a_pipeline_hands_on_in_its_own_transaction(queue: Queue, mode: str) -> None:
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        server.add_pipeline(["tasks.effect_of", "tasks.effect_of", "tasks.fail"], {"number": 1})
    assert_silent(queue.worker(1, "--mode", mode))
    assert effects(queue) == [1]
    assert queue.rows("task, args, status, attempts") == [("tasks.effect_of", '{"number":2}', 0, 0)]
    assert_silent(queue.worker("--mode", mode))
    assert effects(queue) == [1, 2]
    assert queue.rows("task, args, status, attempts") == [("tasks.fail", '{"number":3}', 3, 1)]


def test_a_stage_that_returns_what_cannot_be_handed_on_leaves_nothing(queue: Queue) -> None:
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        server.add_pipeline(["tasks.return_a_set", "tasks.effect"], [1])
    assert_fatal(queue.worker(), "what it returned is {1}; allowed: a dict, a list, a tuple or None")
    assert (effects(queue), states(queue)) == ([], [(4, 1)])


@EACH_MODE
def test_what_waits_for_such_a_task_runs_after_it(queue: Queue, mode: str) -> None:
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        first = server.add_task("tasks.effect", [1])
        server.add_task("tasks.effect", [2], depends_on=[first])
    assert_silent(queue.worker("--mode", mode))
    assert effects(queue) == [1, 2]
    assert [status for status in queue.statuses() if status != 2] == []


def test_a_task_that_it_adds_is_there_with_its_effects_or_not_at_all(queue: Queue) -> None:
    add(queue, "add_child", 1, False)
    add(queue, "add_child", 2, True)
    assert_silent(queue.worker())
    assert (queue.notes(), effects(queue), states(queue)) == (["child 1"], [1], [(3, 1)])


def test_a_task_that_an_operator_runs_has_a_transaction_too(queue: Queue) -> None:
    add(queue, "effect", 1)
    add(queue, "fail", 2)
    assert queue.client("run", 1).returncode == 0
    assert "ValueError: after its write" in queue.client("run", 2).stderr
    assert effects(queue) == [1]
    assert states(queue)[0][0] == 3


@pytest.mark.parametrize("mode", ["move", "mark"])
def test_its_result_is_kept_and_shown(queue: Queue, mode: str) -> None:
    add(queue, "effect", 1, {"größe": [1]})
    assert_silent(queue.worker("--mode", mode))
    assert effects(queue) == [1]
    with TaskServer(queue.dsn) as server:
        state = server.get(1)
        assert state is not None
        assert state.result == {"größe": [1]}
    assert '\n  result       {"größe":[1]}\n' in queue.client("show", 1).stdout


def test_a_result_that_cannot_be_kept_leaves_the_task_done(queue: Queue) -> None:
    add(queue, "return_a_set", 1)
    add(queue, "effect", 2, "x" * 70_000)
    ended = queue.worker("--mode", "mark")
    first, second = ended.stderr.splitlines()
    assert "return_a_set is done, and its result is not kept" in first
    assert "effect is done, and its result is not kept: what it returned takes 70002 bytes" in second
    assert effects(queue) == [1, 2]
    assert queue.rows("status, result") == [(2, None)] * 2


# ---- what fails is rolled back


def test_a_task_that_raises_leaves_nothing_and_comes_again(queue: Queue) -> None:
    add(queue, "fail", 1)
    assert_silent(queue.worker())
    assert (effects(queue), states(queue)) == ([], [(3, 1)])
    assert queue.first_lines() == ["ValueError: after its write"]
    for _ in range(2):
        queue.end_backoffs()
        ended = queue.worker()
    assert_fatal(ended, "ValueError: after its write")
    assert (effects(queue), states(queue)) == ([], [(4, 3)])
    shown = queue.client("show", 1).stdout
    assert "ValueError: after its write" in shown


def test_a_connection_serves_the_next_task_unless_it_failed(mysql_queue: Queue) -> None:
    queue = mysql_queue
    add(queue, "effect_with_id", 1)
    add(queue, "effect_with_id", 2)
    add(queue, "fail", 3)
    add(queue, "effect_with_id", 4)
    assert_silent(queue.worker())
    first, second, last = (note.split()[1] for note in queue.notes())
    assert first == second != last
    assert effects(queue) == [1, 2, 4]


def test_a_task_whose_time_is_up_leaves_nothing(queue: Queue) -> None:
    names = ["too_long"] if queue.is_sqlite else ["too_long", "too_long_in_the_database"]
    for number, name in enumerate([*names, "effect"]):
        add(queue, name, number)
    assert_silent(queue.worker("--mode", "mark"))
    assert effects(queue) == [len(names)]
    assert states(queue) == [*[(3, 1)] * len(names), (2, 1)]
    assert all("TaskInterrupted" in line or "Timeout" in line for line in queue.first_lines()[:-1])


def test_a_task_whose_time_is_up_in_another_thread_leaves_nothing(queue: Queue) -> None:
    add(queue, "too_long", 1)
    add(queue, "effect", 2)
    code = "thread = threading.Thread(target=server.run)\nthread.start()\nthread.join()\n"
    assert run_program(queue, code) == []
    assert (effects(queue), states(queue)) == ([2], [(3, 1)])


@pytest.mark.parametrize("name", ["hold", "busy"])
def test_a_second_signal_leaves_nothing(queue: Queue, name: str) -> None:
    add(queue, name, 1)
    add(queue, "effect", 2)
    process = queue.start_task()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert end_of(process) == (0, "", "")
    assert (effects(queue), states(queue)) == ([], [(3, 1), (0, 0)])
    assert queue.first_lines()[0] == "TaskInterrupted: stopped by a second signal"


def test_one_signal_lets_it_end(queue: Queue) -> None:
    add(queue, "hold", 1)
    process = queue.start_task()
    process.send_signal(signal.SIGTERM)
    queue.go()
    assert end_of(process) == (0, "", "")
    assert (effects(queue), states(queue)) == ([1, 101], [])


def test_a_cancelled_task_that_hears_of_it_leaves_nothing(mysql_queue: Queue) -> None:
    set_settings(mysql_queue, TASKSERVER_LEASE="2")
    add(mysql_queue, "hold", 1)
    process = mysql_queue.start_task()
    assert mysql_queue.client("cancel", 1).returncode == 0
    code, output, errors = end_of(process)
    assert (code, output) == (0, "")
    assert "cancelled" in errors
    assert (effects(mysql_queue), mysql_queue.statuses()) == ([], [4])
    assert mysql_queue.first_lines()[0].startswith("cancelled")


def test_a_cancelled_task_that_ends_well_before_it_hears_of_it_is_done(mysql_queue: Queue) -> None:
    add(mysql_queue, "hold", 1)
    process = mysql_queue.start_task("--mode", "mark")
    assert mysql_queue.client("cancel", 1).returncode == 0
    mysql_queue.go()
    assert end_of(process) == (0, "", "")
    assert (effects(mysql_queue), mysql_queue.statuses()) == ([1, 101], [2])


def test_a_cancelled_stage_that_ends_well_has_its_effects_and_no_next_stage(mysql_queue: Queue) -> None:
    with TaskServer(mysql_queue.dsn, folder=mysql_queue.folder) as server:
        server.add_pipeline(["tasks.hold", "tasks.effect"], [1])
    process = mysql_queue.start_task()
    assert mysql_queue.client("cancel", 1).returncode == 0
    mysql_queue.go()
    assert end_of(process)[:2] == (0, "")
    assert (effects(mysql_queue), mysql_queue.statuses()) == ([1, 101], [4])
    assert mysql_queue.first_lines()[0].startswith("cancelled")


def test_what_is_called_when_the_last_attempt_failed_is_outside_of_it(queue: Queue) -> None:
    add(queue, "fail_for_good", 1)
    assert_silent(queue.worker("--mode", "mark"))
    assert effects(queue) == []
    assert queue.notes()[0] == "rescue 1: for good"
    assert "taskserver.connection() is for tasks with @task(transactional=True)" in queue.notes()[1]
    assert states(queue) == [(2, 1)]


# ---- whose task it is


@EACH_MODE
def test_a_task_that_was_taken_over_leaves_nothing(mysql_queue: Queue, mode: str) -> None:
    queue = mysql_queue
    add(queue, "hold", 1)
    process = queue.start_task("--mode", mode)
    queue.end_leases()
    assert_silent(queue.worker(0, OTHER_GROUP))
    before = queue.rows()
    queue.go()
    ended = end_of(process)
    assert ended[:2] == (0, "")
    assert "task 1 tasks.hold: the lease was lost while it ran" in ended[2]
    assert (effects(queue), queue.rows()) == ([], before)
    assert states(queue) == [(3, 1)]
    queue.end_backoffs()
    assert_silent(queue.worker("--mode", mode))
    assert effects(queue) == [1, 101]


def test_a_task_that_two_workers_ran_has_the_effects_of_one(mysql_queue: Queue) -> None:
    """The first one is frozen; the second one takes its task and completes it while the first transaction stands."""
    queue = mysql_queue
    add(queue, "hold", 1)
    process = queue.start_task("--mode", "mark")
    freeze(process)
    queue.end_leases()
    assert_silent(queue.worker(0, OTHER_GROUP))
    queue.end_backoffs()
    queue.go()
    assert_silent(queue.worker("--mode", "mark"))
    assert (effects(queue), states(queue)) == ([1, 101], [(2, 2)])
    thaw(process)
    code, _, errors = end_of(process)
    assert (code, "the lease was lost" in errors) == (0, True)
    assert (effects(queue), states(queue)) == ([1, 101], [(2, 2)])


def test_on_sqlite_a_task_that_was_taken_over_before_its_transaction_began_does_not_run(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "effect", 1)
    (result,) = run_program_quietly(
        sqlite_queue,
        f"""
from taskserver.stores.queue.transactions import Transactions

begin = Transactions.begin

def begin_late(self, task):
    other = sqlite3.connect({str(sqlite_queue.path)!r}, isolation_level=None)
    other.execute("UPDATE jobs_queue SET status = 4, claim = NULL, error_text = 'theirs'")
    other.close()
    return begin(self, task)

Transactions.begin = begin_late
print(server.run())
""",
    )
    assert "lost=1" in result
    assert "done=0" in result
    assert (effects(sqlite_queue), sqlite_queue.rows("status, error_text")) == ([], [(4, "theirs")])


@EACH_MODE
def test_a_task_that_is_to_run_again_meanwhile_has_its_effects_and_runs_again(mysql_queue: Queue, mode: str) -> None:
    queue = mysql_queue
    adding = ("add", "tasks.hold", "--unique", "key", "--rerun")
    assert queue.client(*adding[:2], "[1]", *adding[2:]).returncode == 0
    process = queue.start_task(1, "--mode", mode)
    assert queue.client(*adding[:2], "[2]", *adding[2:]).returncode == 0
    queue.go()
    assert end_of(process) == (0, "", "")
    assert effects(queue) == [1, 101]
    assert queue.rows("args, status, attempts, claim") == [("[2]", 0, 0, None)]
    assert_silent(queue.worker("--mode", mode))
    assert effects(queue) == [1, 2, 101, 102]


@EACH_MODE
def test_a_task_that_may_start_once_and_was_given_up_is_completed_late_with_its_effects(
    mysql_queue: Queue, mode: str
) -> None:
    queue = mysql_queue
    add(queue, "hold", 1)
    queue.sql("UPDATE jobs_queue SET max_attempts = 1")
    process = queue.start_task("--mode", mode)
    queue.end_leases()
    assert_fatal(queue.worker(0, OTHER_GROUP), "lost: ")
    assert states(queue) == [(4, 1)]
    queue.go()
    assert end_of(process) == (0, "", "")
    assert effects(queue) == [1, 101]
    assert states(queue) == ([(2, 1)] if mode == "mark" else [])


def test_a_task_that_was_given_up_and_fails_late_leaves_nothing(mysql_queue: Queue) -> None:
    add(mysql_queue, "hold_and_fail", 1)
    mysql_queue.sql("UPDATE jobs_queue SET max_attempts = 1")
    process = mysql_queue.start_task()
    mysql_queue.end_leases()
    assert_fatal(mysql_queue.worker(0, OTHER_GROUP), "lost: ")
    mysql_queue.go()
    assert end_of(process)[:2] == (0, "")
    assert (effects(mysql_queue), states(mysql_queue)) == ([], [(4, 1)])


def test_the_transaction_leaves_the_row_to_others_until_its_last_statement(mysql_queue: Queue) -> None:
    add(mysql_queue, "hold", 1)
    process = mysql_queue.start_task()
    with closing(mysql_queue.connect()) as other, other.cursor() as cursor:
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        other.begin()
        cursor.execute("SELECT status, started_at IS NOT NULL FROM jobs_queue WHERE id = 1 FOR UPDATE")
        assert cursor.fetchall() == ((1, 1),)
        mysql_queue.go()
        wait_until(lambda: lock_waits(mysql_queue.sql))
        assert process.poll() is None
        other.rollback()
    assert end_of(process) == (0, "", "")
    assert effects(mysql_queue) == [1, 101]


def test_the_lease_of_a_long_task_is_renewed_meanwhile(mysql_queue: Queue) -> None:
    queue = mysql_queue
    set_settings(queue, TASKSERVER_LEASE="2")
    add(queue, "hold", 1)
    process = queue.start_task()
    ((first,),) = queue.rows("due_at")
    while (queue.rows("due_at")[0][0] - first).total_seconds() < 4:  # so it ran for two leases beyond its first
        assert_silent(queue.worker())
        assert states(queue) == [(1, 1)]
    queue.go()
    assert end_of(process) == (0, "", "")
    assert (effects(queue), states(queue), queue.notes()) == ([1, 101], [], ["hold 1"])


def test_on_sqlite_others_wait_for_it_without_an_error(sqlite_queue: Queue) -> None:
    queue = sqlite_queue
    set_settings(queue, TASKSERVER_LEASE="2")
    add(queue, "hold", 1)
    process = queue.start_task()
    other = queue.start()
    producer = queue.deployment.popen("client.py", "add", "tasks.note", '["added"]')
    time.sleep(3.5)  # longer than SQLite waits for a lock by itself, and than the lease
    assert [one.poll() for one in (process, other, producer)] == [None] * 3
    queue.go()
    assert end_of(process) == (0, "", "")
    assert end_of(producer)[0::2] == (0, "")
    assert end_of(other) == (0, "", "")
    assert_silent(queue.worker())
    assert (effects(queue), states(queue), queue.notes()) == ([1, 101], [], ["hold 1", "added"])


def test_on_sqlite_a_task_that_writes_past_its_transaction_is_told_what_to_do(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "add_by_server", 1)
    assert_silent(sqlite_queue.worker())
    assert (effects(sqlite_queue), states(sqlite_queue)) == ([], [(3, 1)])
    assert re.search(
        r"the task that does this holds the lock itself.*let it use taskserver\.connection\(\)",
        sqlite_queue.first_lines()[0],
    )


def test_on_sqlite_a_task_that_adds_past_its_transaction_is_not_told_to_do_it_again(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "add_on_another_connection", 1)
    assert_silent(sqlite_queue.worker())
    assert (effects(sqlite_queue), states(sqlite_queue)) == ([], [(3, 1)])
    [line] = sqlite_queue.first_lines()
    assert line.startswith("DatabaseError: on the connection that was given: database is locked")
    assert "again" not in line


# ---- a task that ends its transaction itself

ENDED: dict[str, tuple[list[int] | None, list[int] | None]] = {
    # how, for SQLite, for MySQL: what is committed of number and number + 1; None where there is no such thing
    "commit()": ([], []),
    "COMMIT": ([], [0]),
    "lower case": ([], [0]),
    "COMMIT AND CHAIN": (None, [0]),
    "END": ([], None),
    "BEGIN": (None, [0]),
    "START TRANSACTION": (None, [0]),
    "begin()": (None, []),
    "CREATE TABLE": (None, [0]),
    "autocommit()": (None, []),
    "SET autocommit": (None, [0]),
    "procedure": (None, [0]),
    "procedure that begins": (None, [0]),
    "ROLLBACK": ([], []),
    "executescript": ([], None),
    "isolation_level": ([], None),
}


@pytest.mark.parametrize("then", ["raises it", "raises another", "goes on"])
def test_a_task_that_ends_its_transaction_itself_is_fatal(queue: Queue, then: str) -> None:
    """What it committed before, it committed; it does not do so again, and nothing is committed after that."""
    if not queue.is_sqlite:
        queue.sql("CREATE PROCEDURE commit_now() COMMIT")
        queue.sql("CREATE PROCEDURE commit_and_begin() BEGIN COMMIT; START TRANSACTION; END")
    cases = [(how, ended[0 if queue.is_sqlite else 1]) for how, ended in ENDED.items()]
    expected = []
    for index, (how, offsets) in enumerate((how, offsets) for how, offsets in cases if offsets is not None):
        add(queue, "end", how, then, index * 10)
        expected += [index * 10 + offset for offset in offsets]
        if how == "SET autocommit" and then == "goes on":
            expected.append(index * 10 + 1)  # each statement by itself, as it asked for
    add(queue, "effect", 1000)
    ended = queue.worker()
    rows = queue.rows("status, attempts, error_text, args")
    assert len(rows) == sum(offsets is not None for _, offsets in cases)
    for status, attempts, error_text, args in rows:
        assert (status, attempts) == (4, 1), (args, error_text)
        assert error_text.startswith(f"Fatal: {MAY_NOT}"), (args, error_text)
        if args.startswith('["commit()"'):
            assert re.search(r": commit\(\) in tasks\.py, line \d+, was refused, and committed nothing$", error_text)
        elif args.startswith('["CREATE TABLE"'):
            assert re.search(r": CREATE TABLE in tasks\.py, line \d+, has ended it; if that committed ", error_text)
    assert len([line for line in ended.stderr.splitlines() if MAY_NOT in line]) == len(rows)
    assert effects(queue) == [*expected, 1000]
    assert MAY_NOT in queue.client("show", 1).stdout


def test_a_task_that_commits_is_shown_with_one_traceback_of_its_own_code_when_it_is_run_by_hand(queue: Queue) -> None:
    add(queue, "end", "commit()", "raises it", 1)
    ended = queue.client("run", 1)
    assert ended.stderr.count("Traceback (most recent call last):") == 1
    assert re.search(r"commit\(\) in tasks\.py, line \d+, was refused.*\nTraceback ", ended.stderr)
    assert ended.stdout.endswith(", and is fatal\n")


def test_on_sqlite_a_table_that_it_makes_is_its_effect_too(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "do", "CREATE TABLE other (number INT)")
    sqlite_queue.define("\n@transactional\ndef make_and_fail():\n    run('CREATE TABLE third (n INT)')\n    1 / 0\n")
    add(sqlite_queue, "make_and_fail")
    assert_silent(sqlite_queue.worker())
    names = [name for (name,) in sqlite_queue.sql("SELECT name FROM sqlite_master WHERE name IN ('other', 'third')")]
    assert names == ["other"]


def test_on_sqlite_a_second_begin_is_an_error_like_any_other(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "end", "BEGIN", "raises it", 1)
    add(sqlite_queue, "end", "BEGIN", "goes on", 11)
    assert_silent(sqlite_queue.worker())
    assert (effects(sqlite_queue), states(sqlite_queue)) == ([11, 12], [(3, 1)])
    assert "within a transaction" in sqlite_queue.first_lines()[0]


def test_a_task_may_roll_back_and_begin_anew(queue: Queue) -> None:
    add(queue, "roll_back", 1, None, 2)
    add(queue, "roll_back", None, 3, None, None, 4, 5)
    add(queue, "roll_back", 6, None)
    assert_silent(queue.worker())
    assert (effects(queue), states(queue)) == ([2, 4, 5], [])


def test_what_it_does_after_rolling_back_is_held_to_the_same(queue: Queue) -> None:
    add(queue, "roll_back_and_fail", 1)
    assert_silent(queue.worker())
    add(queue, "roll_back_and_commit", 11)
    assert_fatal(queue.worker(), MAY_NOT)
    assert effects(queue) == ([] if queue.is_sqlite else [12])
    assert states(queue) == [(3, 1), (4, 1)]


def test_closing_the_connection_and_a_with_around_it_change_nothing(queue: Queue) -> None:
    add(queue, "use_harmlessly", 1)
    add(queue, "effect", 10)
    assert_silent(queue.worker())
    assert (effects(queue), states(queue)) == ([1, 2, 3, 4, 10], [])


@contextmanager
def in_deadlock(queue: Queue) -> Iterator[None]:
    """In the `with`, another transaction wants what the task `meet_deadlock` has, and has what that one wants."""
    queue.sql("INSERT INTO effects (number) VALUES (0), (0)")
    with closing(queue.connect()) as other, other.cursor() as cursor:
        other.begin()
        cursor.execute("UPDATE effects SET number = number + 1 WHERE id = 2")
        # The heavier one: it is the task's that the server rolls back.
        cursor.execute(f"INSERT INTO effects (number) VALUES {', '.join(['(-1)'] * 200)}")
        wait_until(lambda: "meet_deadlock" in queue.notes())
        wanting = threading.Thread(target=cursor.execute, args=("UPDATE effects SET number = 5 WHERE id = 1",))
        wanting.start()
        queue.go()
        wanting.join()
        other.rollback()
    yield


@pytest.mark.parametrize("then", ["raises it", "raises it, later", "goes on", "begins anew"])
def test_a_task_that_the_server_rolled_back_is_not_half_committed(mysql_queue: Queue, then: str) -> None:
    queue = mysql_queue
    change = "UPDATE effects SET number = number + 10 WHERE id = 2"
    queue.sql(f"CREATE PROCEDURE change_second() BEGIN SELECT 1; {change}; END")
    add(queue, "meet_deadlock", then)
    process = queue.start(1)
    with in_deadlock(queue):
        assert end_of(process) == (0, "", "")
    if then == "begins anew":
        assert (effects(queue), states(queue)) == ([0, 0, 7], [])
        return
    assert (effects(queue), states(queue)) == ([0, 0], [(3, 1)])
    assert "1213" in queue.first_lines()[0]
    if then == "goes on":
        assert "was rolled back, and it went on" in queue.first_lines()[0]
    queue.end_backoffs()
    assert_silent(queue.worker())
    assert (effects(queue), states(queue)) == ([7, 10, 10], [])


# ---- connections that break


@pytest.fixture
def proxy(mysql_server: MySQLServer) -> Iterator[Proxy]:
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        yield proxy


def go_through(queue: Queue, proxy: Proxy) -> None:
    """The worker goes through the proxy from now on."""
    set_settings(queue, TASKSERVER_DSN=proxy.dsn(queue.dsn))


@EACH_MODE
@pytest.mark.parametrize("silent", [False, True], ids=["loud", "silent"])
def test_a_task_whose_commit_took_effect_unheard_is_done_once(
    mysql_queue: Queue, proxy: Proxy, mode: str, silent: bool
) -> None:
    queue = mysql_queue
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


STATEMENTS = [
    (b"COMMIT /* of a task", False),
    (b"COMMIT /* of a task", True),
    (b"RELEASE SAVEPOINT", False),
    (b"RELEASE SAVEPOINT", True),
    (b"INSERT INTO effects", False),
]


@EACH_MODE
@pytest.mark.parametrize(("words", "silent"), STATEMENTS)
def test_a_task_whose_commit_did_not_arrive_left_nothing_and_comes_again(
    mysql_queue: Queue, proxy: Proxy, mode: str, silent: bool, words: bytes
) -> None:
    queue = mysql_queue
    go_through(queue, proxy)
    cut = proxy.cut_before(contains(words), silent=silent)
    add(queue, "effect", 1)
    add(queue, "effect", 2)
    assert_silent(queue.worker("--mode", mode))
    assert cut.has_struck
    assert effects(queue) == [2]
    assert states(queue)[0] == (3, 1)
    assert queue.sql("SELECT taken, done, lost FROM jobs_queue_workers") == [(2, 1, 0)]
    queue.end_backoffs()
    assert_silent(queue.worker("--mode", mode))
    assert effects(queue) == [1, 2]


@EACH_MODE
def test_a_completion_whose_answer_was_lost_is_not_committed(mysql_queue: Queue, proxy: Proxy, mode: str) -> None:
    """The statement before the COMMIT."""
    queue = mysql_queue
    go_through(queue, proxy)
    add(queue, "hold", 1)
    process = queue.start_task("--mode", mode)
    cut = proxy.cut_after(contains(b"jobs_queue"))
    queue.go()
    assert end_of(process) == (0, "", "")
    assert cut.has_struck
    assert (effects(queue), states(queue)) == ([], [(3, 1)])


def test_a_stage_whose_commit_took_effect_unheard_is_not_done_again(mysql_queue: Queue, proxy: Proxy) -> None:
    queue = mysql_queue
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        server.add_pipeline(["tasks.effect_of", "tasks.effect_of"], {"number": 1})
    go_through(queue, proxy)
    cut = proxy.cut_after(COMMIT)
    assert_silent(queue.worker())
    assert cut.has_struck
    assert (effects(queue), states(queue)) == ([1, 2], [])


def test_a_connection_that_breaks_before_the_first_statement_fails_the_attempt(mysql_queue: Queue) -> None:
    queue = mysql_queue
    add(queue, "hold_before", 1)
    add(queue, "effect", 2)
    process = queue.start_task()
    queue.sql(f"KILL {queue.notes()[0].split()[1]}")
    queue.go()
    assert end_of(process) == (0, "", "")
    assert (effects(queue), states(queue)) == ([2], [(3, 1)])


def test_a_task_that_keeps_its_broken_connection_to_itself_is_not_done(mysql_queue: Queue) -> None:
    queue = mysql_queue
    queue.define(
        """
@transactional
def keep_it():
    note(f"keep_it {taskserver.connection().thread_id()}")
    wait()
    for try_again in (lambda: write(1), lambda: taskserver.connection().ping(True), lambda: write(2)):
        try:
            try_again()
        except Exception:
            pass
"""
    )
    add(queue, "keep_it")
    process = queue.start_task()
    queue.sql(f"KILL {queue.notes()[0].split()[1]}")
    queue.go()
    assert end_of(process) == (0, "", "")
    assert (effects(queue), states(queue)) == ([], [(3, 1)])


@pytest.mark.parametrize("seconds", [0, 1.5], ids=["just used", "idle"])
def test_a_kept_connection_that_the_server_drops_between_two_tasks_is_replaced(
    mysql_queue: Queue, seconds: float
) -> None:
    queue = mysql_queue
    add(queue, "effect_with_id", 1)
    add(queue, "plain")
    add(queue, "effect_with_id", 2)
    process = queue.start("--mode", "mark")
    wait_until(lambda: queue.notes()[1:] == ["plain"])
    queue.sql(f"KILL {queue.notes()[0].split()[1]}")
    time.sleep(seconds)
    queue.go("go-plain")
    assert end_of(process) == (0, "", "")
    assert effects(queue) == [1, 2]
    assert states(queue) == [(2, 1)] * 3
    assert queue.notes()[0].split()[1] != queue.notes()[2].split()[1]


def test_a_kept_connection_that_was_idle_for_too_long_is_replaced(mysql_queue: Queue) -> None:
    queue = mysql_queue
    add(queue, "do", "SET SESSION wait_timeout = 1")
    add(queue, "plain")
    add(queue, "effect", 1)
    process = queue.start_task("--mode", "mark")
    time.sleep(2.5)
    queue.go("go-plain")
    assert end_of(process) == (0, "", "")
    assert (effects(queue), states(queue)) == ([1], [(2, 1)] * 3)


@pytest.fixture(scope="module")
def fragile_server() -> Iterator[MariaDB]:
    """A durable server that these tests kill. Limits of an account can be set while it runs as there is one."""
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB(True, "--max-user-connections=1000") as server:
        yield server


@pytest.fixture
def fragile_queue(fragile_server: MariaDB, make_queue: Callable[..., Queue]) -> Iterator[Queue]:
    name = fragile_server.create_database()
    yield make_queue(fragile_server.dsn(name))
    fragile_server.start()
    fragile_server.drop_database(name)


def restarted(queue: Queue, server: MariaDB) -> Queue:
    """The queue, of whose server the connections broke."""
    server.start()
    queue._mysql = None
    return queue


def killing_before(matches: Matches, server: MariaDB) -> Matches:
    """The server is dead before a byte of such a request arrives."""

    def kill_and_match(request: bytes) -> bool:
        if matches(request):
            server.kill()
            return True
        return False

    return kill_and_match


@pytest.mark.xdist_group("fragile")
@EACH_MODE
@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
def test_a_database_that_is_killed_around_the_commit_has_done_all_or_nothing(
    fragile_queue: Queue, fragile_server: MariaDB, mode: str, is_done: bool
) -> None:
    queue = fragile_queue
    with Proxy(fragile_server.host, fragile_server.port) as proxy:
        go_through(queue, proxy)
        add(queue, "hold", 1)
        process = queue.start_task("--mode", mode)
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
        assert effects(queue) == [1, 101]
        assert states(queue) == ([(2, 1)] if mode == "mark" else [])
    else:
        assert (effects(queue), states(queue)) == ([], [(3, 1)])


@pytest.mark.xdist_group("fragile")
def test_a_database_that_is_killed_under_a_task_fails_the_attempt(
    fragile_queue: Queue, fragile_server: MariaDB
) -> None:
    queue = fragile_queue
    add(queue, "hold", 1)
    add(queue, "effect", 2)
    process = queue.start_task()
    fragile_server.kill()
    queue.go()
    restarted(queue, fragile_server)
    assert end_of(process) == (0, "", "")
    assert (effects(queue), states(queue)) == ([2], [(3, 1)])


@pytest.mark.xdist_group("fragile")
def test_where_the_second_connection_is_refused_no_attempt_is_counted(
    fragile_queue: Queue, fragile_server: MariaDB
) -> None:
    queue = fragile_queue
    database = queue.dsn.rpartition("/")[2]
    fragile_server.execute(
        f"CREATE USER '{database}'@'%' IDENTIFIED BY '{ACCOUNT_PASSWORD}' WITH MAX_USER_CONNECTIONS 1",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{database}`.* TO '{database}'@'%'",
    )
    dsn = f"mysql://{database}:{ACCOUNT_PASSWORD}@{fragile_server.host}:{fragile_server.port}/{database}"
    set_settings(queue, TASKSERVER_DSN=dsn, TASKSERVER_DB_PATIENCE="1")
    queue.go("go-plain")
    add(queue, "plain")  # which imports the module: an import is an attempt
    add(queue, "effect", 1)
    assert_one_line(queue.worker(), 1, "max_user_connections")
    assert (effects(queue), states(queue)) == ([], [(0, 0)])
    fragile_server.execute(f"ALTER USER '{database}'@'%' WITH MAX_USER_CONNECTIONS 2")
    assert_silent(queue.worker())
    assert (effects(queue), states(queue)) == ([1], [])


# ---- one process


def test_a_server_runs_twice(queue: Queue) -> None:
    add(queue, "effect", 1)
    code = "print(server.run().done)\nserver.add_task('tasks.effect', [2])\nprint(server.run().done)\n"
    assert run_program(queue, code) == ["1", "1"]
    assert effects(queue) == [1, 2]


IN_THREADS = """
done = []
threads = [threading.Thread(target=lambda: done.append(server.run(batch=3).done)) for _ in range(2)]
for thread in threads:
    thread.start()
for number in range(20, 30):
    server.add_task("tasks.effect", [number])
for thread in threads:
    thread.join()
print(sum(done) + server.run().done)
"""


def test_two_runs_in_two_threads_each_have_their_transactions(queue: Queue) -> None:
    for number in range(20):
        add(queue, "effect", number)
    assert run_program(queue, IN_THREADS) == ["30"]
    assert (effects(queue), states(queue)) == ([*range(30)], [])


IN_MEMORY = f"""
from pathlib import Path

here = Path(__file__).parent
server = TaskServer("sqlite:///:memory:", modules="tasks", folder=here, mode="mark", backoff="fixed:500")
server.create_tables()
server.add_task("tasks.do", [{EFFECTS[True]!r}])
print(server.run().done)
"""
ASK = """
task_id = server.add_task("tasks.ask", ["SELECT number FROM effects ORDER BY number"])
server.run()
print(server.get(task_id).result)
"""


def test_a_database_in_memory_has_transactions_too(sqlite_queue: Queue) -> None:
    code = """
calls = [("effect", [1]), ("fail", [2]), ("roll_back", [3, None, 4]), ("too_long", [5])]
calls += [("end", ["COMMIT", "goes on", 6]), ("use_harmlessly", [10]), ("effect", [20])]
ids = [server.add_task(f"tasks.{name}", args) for name, args in calls]
server.run()
print([int(server.get(task_id).status) for task_id in ids])
"""
    done, found, numbers = run_program_quietly(sqlite_queue, IN_MEMORY + code + ASK)
    assert (done, found) == ("1", "[2, 3, 2, 3, 4, 2, 2]")
    assert json.loads(numbers) == [[number] for number in (1, 4, 10, 11, 12, 13, 20)]


def test_two_runs_in_two_threads_share_a_database_in_memory(sqlite_queue: Queue) -> None:
    code = "for number in range(20):\n    server.add_task('tasks.effect', [number])\n"
    done, count, numbers = run_program_quietly(sqlite_queue, IN_MEMORY + code + IN_THREADS + ASK)
    assert (done, count) == ("1", "30")
    assert json.loads(numbers) == [[number] for number in range(30)]


def run_program_quietly(queue: Queue, code: str) -> list[str]:
    """The same for one whose tasks may become fatal, of which it is told."""
    return run_program(queue, "import logging\nlogging.disable()\n" + code)


def test_outside_of_such_a_task_there_is_no_connection(sqlite_queue: Queue) -> None:
    words = r"taskserver\.connection\(\) is for tasks with @task\(transactional=True\), while they run"
    with pytest.raises(TaskServerError, match=words):
        taskserver.connection()
    add(sqlite_queue, "ask_outside")
    assert_silent(sqlite_queue.worker())
    assert re.search(words, sqlite_queue.first_lines()[0])


@pytest.mark.parametrize("value", [1, 0, None, "yes", "True", [True]])
def test_what_is_neither_true_nor_false_is_refused(value: Any) -> None:
    with pytest.raises(SettingError, match=r"transactional is .*; allowed: True or False"):
        taskserver.task(transactional=value)


def test_a_task_that_takes_several_at_once_has_no_transaction() -> None:
    with pytest.raises(SettingError, match="it has transactional and batch; allowed: one of them"):
        taskserver.task(transactional=True, batch=5)
    taskserver.task(transactional=False, batch=5)


def test_a_function_stays_what_it_is(tmp_path: Path) -> None:
    @taskserver.task(transactional=True)
    def double(number: int) -> int:
        return number * 2

    assert double(2) == 4


def test_an_attempt_whose_connection_was_refused_by_the_driver_says_why(mysql_queue: Queue) -> None:
    """`ping` would connect anew, on which what was written before is missing."""
    mysql_queue.define(
        "\n@transactional\ndef reconnect():\n    write(1)\n    taskserver.connection()._force_close()\n"
        "    taskserver.connection().ping(reconnect=True)\n    write(2)\n"
    )
    add(mysql_queue, "reconnect")
    assert_silent(mysql_queue.worker())
    assert (effects(mysql_queue), states(mysql_queue)) == ([], [(3, 1)])
    assert "OperationalError" in mysql_queue.first_lines()[0]
    with pytest.raises(pymysql.MySQLError), mysql_queue.connect().cursor() as cursor:
        cursor.execute("SELECT nothing FROM nowhere")
