"""Tasks that run inside the transaction that completes them: what they write and their end are one, case by case.

Workers are real processes, on every store. That many of them at once leave every sum right is in
tests/faults/test_transfers.py, faults of the network and of the server in tests/faults/test_commits.py.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest

import taskserver
from taskserver import TaskServerError
from tests.support import effects as common
from tests.support.databases import EACH_SERVER, ON_MYSQL
from tests.support.effects import (
    OTHER_GROUP,
    add,
    effects,
    set_settings,
    states,
    with_effects,
)
from tests.support.locks import are_locks_awaited, holding
from tests.support.processes import assert_one_line, end_of, wait_until
from tests.support.queues import Queue

EACH_MODE = pytest.mark.parametrize("mode", ["delete", "move", "mark"])
SETTINGS = common.SETTINGS
TASKS = (
    common.TASKS
    + """
@transactional
def hold_and_fail(number):
    hold(number)
    raise ValueError("in the end")

@taskserver.task(transactional=True, timeout=0.5)
def too_long(number, statement=None):
    write(number)
    if statement:
        run(statement)
    while True:
        pass

def rescue(number, error):
    note(f"rescue {number}: {error}")
    try:
        taskserver.connection()
    except taskserver.TaskServerError as refused:
        note(refused)

@taskserver.task(transactional=True, max_attempts=1, on_fatal=rescue)
def fail_for_good(number):
    write(number)
    raise ValueError("for good")

@transactional
def add_on_another_connection(number):
    write(number)
    with taskserver.TaskServer.from_env(HERE) as server:
        other = sqlite3.connect(server.settings.dsn.database_file(HERE), timeout=0.1)
        server.add_task("tasks.note", connection=other)
"""
)


@pytest.fixture
def make_queue(make_queue: Callable[..., Queue]) -> Callable[..., Queue]:
    return with_effects(make_queue)


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
    queue.run_quietly(mode=mode)
    assert queue.notes() == ["hold 1"]


def test_tasks_of_all_kinds_take_turns(queue: Queue) -> None:
    queue.go("go-plain")
    for number in (1, 2):
        for name, args in (("effect", [number]), ("plain", []), ("fail", [number + 10]), ("nothing", [])):
            add(queue, name, *args)
    queue.server.add_task("tasks.effect", [3], depends_on=[1, 5])
    ended = queue.worker("--mode", "mark")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (0, 2)
    assert effects(queue) == [1, 2, 3]
    assert states(queue) == [*[(2, 1), (2, 1), (3, 1), (4, 0)] * 2, (2, 1)]
    assert queue.notes() == ["plain"] * 2


def test_a_task_that_an_operator_runs_has_a_transaction_too(queue: Queue) -> None:
    add(queue, "effect", 1)
    add(queue, "fail", 2)
    assert queue.client("run", 1).returncode == 0
    assert "ValueError: after its write" in queue.client("run", 2).stderr
    assert effects(queue) == [1]
    assert states(queue)[0][0] == 3


def test_a_task_that_raises_leaves_nothing_and_comes_again(queue: Queue) -> None:
    add(queue, "fail", 1)
    for attempt in (1, 2, 3):
        ended = queue.worker()
        assert (effects(queue), states(queue)) == ([], [(3 if attempt < 3 else 4, attempt)])
        assert queue.first_lines() == ["ValueError: after its write"]
        queue.end_backoffs()
    assert_one_line(ended, 0, "is fatal: ", "ValueError: after its write")


@EACH_SERVER
def test_a_task_whose_time_is_up_leaves_nothing(queue: Queue) -> None:
    sleep = "SELECT pg_sleep(20)" if queue.is_postgresql else "SELECT SLEEP(20)"
    add(queue, "too_long", 1)
    add(queue, "too_long", 2, sleep)
    add(queue, "effect", 3)
    queue.run_quietly(mode="mark")
    assert (effects(queue), states(queue)) == ([3], [(3, 1), (3, 1), (2, 1)])
    assert all("TaskInterrupted" in line or "Timeout" in line for line in queue.first_lines()[:-1])
    if queue.is_postgresql:  # which would go on without the worker
        wait_until(lambda: queue.sql("SELECT 1 FROM pg_stat_activity WHERE query = ?", sleep) == [])


def test_a_second_signal_leaves_nothing(queue: Queue) -> None:
    add(queue, "hold", 1)
    add(queue, "effect", 2)
    process = queue.start_task()
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert end_of(process) == (0, "", "")
    assert (effects(queue), states(queue)) == ([], [(3, 1), (0, 0)])
    assert queue.first_lines()[0] == "TaskInterrupted: stopped by a second signal"


@EACH_SERVER
def test_a_cancelled_task_that_hears_of_it_leaves_nothing(queue: Queue) -> None:
    set_settings(queue, TASKSERVER_LEASE="2")
    add(queue, "hold", 1)
    process = queue.start_task()
    assert queue.client("cancel", 1).returncode == 0
    assert end_of(process) == (0, "", "")
    assert (effects(queue), queue.statuses()) == ([], [7])
    assert queue.first_lines()[0].startswith("cancelled")


def test_what_is_called_when_the_last_attempt_failed_is_outside_of_it(queue: Queue) -> None:
    add(queue, "fail_for_good", 1)
    queue.run_quietly(mode="mark")
    assert effects(queue) == []
    assert queue.notes()[0] == "rescue 1: for good"
    assert "taskserver.connection() is for tasks with @task(transactional=True)" in queue.notes()[1]
    assert states(queue) == [(2, 1)]


@EACH_SERVER
@pytest.mark.parametrize(
    ("mode", "runs_elsewhere"), [("delete", False), ("move", False), ("mark", False), ("mark", True)]
)
def test_a_task_that_was_taken_over_leaves_nothing(queue: Queue, mode: str, runs_elsewhere: bool) -> None:
    add(queue, "hold", 1)
    process = queue.start_task("--mode", mode)
    if runs_elsewhere:
        queue.sql("UPDATE jobs_queue SET claim = claim + 1")
    else:
        queue.end_leases()
        queue.run_quietly(groups=[int(OTHER_GROUP)])
    before = queue.rows()
    queue.go()
    ended = end_of(process)
    assert ended[:2] == (0, "")
    assert "task 1 tasks.hold: the lease was lost while it ran" in ended[2]
    assert (effects(queue), queue.rows()) == ([], before)
    assert states(queue) == [(1 if runs_elsewhere else 3, 1)]
    queue.end_backoffs()
    queue.run_quietly(mode=mode)
    assert effects(queue) == ([] if runs_elsewhere else [1, 101])


@EACH_SERVER
@pytest.mark.parametrize(
    ("name", "mode"), [("hold", "delete"), ("hold", "move"), ("hold", "mark"), ("hold_and_fail", "mark")]
)
def test_a_task_that_was_given_up_has_its_effects_if_it_ends_well_and_late(queue: Queue, mode: str, name: str) -> None:
    add(queue, name, 1)
    queue.sql("UPDATE jobs_queue SET max_attempts = 1")
    process = queue.start_task("--mode", mode)
    queue.end_leases()
    assert_one_line(queue.worker(0, OTHER_GROUP), 0, "is fatal: ", "lost: ")
    queue.go()
    assert end_of(process)[:2] == (0, "")
    assert effects(queue) == ([1, 101] if name == "hold" else [])
    assert states(queue) == ([(4, 1)] if name != "hold" else [(2, 1)] if mode == "mark" else [])


@EACH_SERVER
def test_the_transaction_leaves_the_row_to_others_until_its_last_statement(queue: Queue) -> None:
    add(queue, "hold", 1)
    process = queue.start_task()
    with holding(queue.dsn, "status = 1 AND started_at IS NOT NULL"):  # which is to be had
        queue.go()
        wait_until(lambda: are_locks_awaited(queue))
        assert process.poll() is None
    assert end_of(process) == (0, "", "")
    assert effects(queue) == [1, 101]


@ON_MYSQL
def test_the_lease_of_a_long_task_is_renewed_meanwhile(queue: Queue) -> None:
    set_settings(queue, TASKSERVER_LEASE="2")
    add(queue, "hold", 1)
    process = queue.start_task()
    ((first,),) = queue.rows("due_at")
    while (queue.rows("due_at")[0][0] - first).total_seconds() < 4:  # so it ran for two leases beyond its first
        queue.run_quietly()
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
    queue.run_quietly()
    assert (effects(queue), states(queue), queue.notes()) == ([1, 101], [], ["hold 1", "added"])


def test_on_sqlite_a_task_that_writes_past_its_transaction_is_an_error_with_a_way_out(
    sqlite_queue: Queue,
) -> None:
    """It waits for itself, as long as for anybody."""
    set_settings(sqlite_queue, TASKSERVER_DB_PATIENCE="1")
    by_server = "write(1)\nwith taskserver.TaskServer.from_env(HERE) as server: server.add_task('tasks.note')"
    add(sqlite_queue, "act", by_server)
    add(sqlite_queue, "add_on_another_connection", 2)
    sqlite_queue.run_quietly()
    assert (effects(sqlite_queue), states(sqlite_queue)) == ([], [(3, 1)] * 2)
    first, by_connection = sqlite_queue.first_lines()
    assert re.search(r"Conflict: .*database is locked: .*connection=taskserver\.connection\(\)", first)
    assert by_connection.startswith("Conflict: on the connection that was given: database is locked")


# ---- one process


def test_outside_of_such_a_task_there_is_no_connection() -> None:
    words = r"taskserver\.connection\(\) is for tasks with @task\(transactional=True\), while they run"
    with pytest.raises(TaskServerError, match=words):
        taskserver.connection()
