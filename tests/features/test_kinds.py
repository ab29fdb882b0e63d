"""Delayed and unique tasks and priorities on the fly, as producers see them: by the API, by SQL, in every mode.

Workers are real processes. What keys and instants may be is shown by tests/unit/test_new_task.py, what they do to rows
in any state by tests/contract/test_add.py; reruns stand in test_reruns.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest

from taskserver import TaskServer
from tests.support.databases import EACH_DATABASE
from tests.support.locks import are_locks_awaited
from tests.support.processes import WAIT_SECONDS, end_of, wait_until
from tests.support.queues import Queue
from tests.support.rows import Rows
from tests.support.words import INSERT_OR_IGNORE

SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends or comes back while a test looks, unless it says so."""
TASKS = """
import time

def hold(text):
    note(text)
    while not (HERE / "go").exists():
        time.sleep(0.005)
"""
PRODUCERS = 16


# ---- delayed


@EACH_DATABASE
def test_a_delayed_task_waits_by_the_clock_of_the_database_and_then_runs(queue: Queue) -> None:
    for delay in (3600, 3600.5, timedelta(hours=1), timedelta(days=3660)):
        queue.server.add_task("tasks.note", ["later"], delay=delay)
    queue.run_quietly()
    assert (queue.statuses(), queue.notes()) == ([5] * 4, [])
    *hours, longest = queue.seconds_ahead()
    assert all(3500 < seconds < 3601 for seconds in hours)
    assert longest / 86400 == pytest.approx(3660, abs=0.01)
    queue.pass_time()
    queue.run_quietly()
    assert (queue.notes(), queue.rows()) == (["later"] * 4, [])


@EACH_DATABASE
def test_by_sql_a_task_waits_by_status_5_and_by_a_due_at_that_lies_ahead_alone(queue: Queue) -> None:
    hour = queue.ago(-3600)
    queue.sql(f"INSERT INTO jobs_queue (task, args, status, due_at) VALUES ('tasks.note', '[\"5\"]', 5, {hour})")
    queue.sql(f"INSERT INTO jobs_queue (task, args, due_at) VALUES ('tasks.note', '[\"0\"]', {hour})")
    queue.add("tasks.note", '["now"]')
    queue.run_quietly()
    assert (queue.statuses(), queue.notes()) == ([5, 5], ["now"])
    queue.pass_time()
    queue.run_quietly()
    assert (queue.statuses(), queue.notes()) == ([], ["now", "5", "0"])


# ---- unique


@contextmanager
def holding_the_key(queue: Queue) -> Iterator[Callable[[str], object]]:
    """A row with the key `held` that is inserted and not committed; how that transaction is to end."""
    with closing(Rows(queue.dsn)) as other:
        other.execute(other.begin)
        other.execute("INSERT INTO jobs_queue (task, unique_key) VALUES ('tasks.note', 'held')")
        yield other.execute


def wait_until_all_wait(queue: Queue, producers: int) -> None:
    """Until so many transactions wait for a lock; SQLite does not tell."""
    if not queue.is_sqlite:
        wait_until(lambda: are_locks_awaited(queue, by=producers))


@EACH_DATABASE
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_sixteen_producers_at_once_of_one_key_make_one_row_and_all_get_its_id(queue: Queue, end: str) -> None:
    begun = threading.Barrier(PRODUCERS + 1, timeout=WAIT_SECONDS)

    def produce(number: int) -> int:
        with TaskServer(queue.dsn) as server:
            server.store.tables.check()
            begun.wait()
            return server.add_task("tasks.note", [number], unique_key="held")

    with holding_the_key(queue) as finish, ThreadPoolExecutor(PRODUCERS) as pool:
        waiting = [pool.submit(produce, number) for number in range(PRODUCERS)]
        begun.wait()
        wait_until_all_wait(queue, PRODUCERS)
        # None can have come through while the key is held: they race from here.
        assert not any(one.done() for one in waiting)
        finish(end)
        ids = {one.result() for one in waiting}
    ((task_id, args),) = queue.rows("id, args")
    assert ids == {task_id}
    assert (args is None) == (end == "COMMIT")


@EACH_DATABASE
def test_a_key_is_free_after_its_task_in_delete_and_move_and_held_in_mark(queue: Queue) -> None:
    for mode, count_of_runs in (("delete", 2), ("move", 2), ("mark", 1)):
        with TaskServer(queue.dsn, folder=queue.folder, mode=mode) as server:
            first = server.add_task("tasks.note", [mode], unique_key=mode)
            assert server.add_task("tasks.note", ["too soon"], unique_key=mode) == first
            queue.run_quietly(mode=mode)
            second = server.add_task("tasks.note", [mode], unique_key=mode)
            queue.run_quietly(mode=mode)
        assert queue.notes().count(mode) == count_of_runs
        assert (first == second) == (mode == "mark")
    assert "too soon" not in queue.notes()


@EACH_DATABASE
def test_one_of_a_kind_by_sql_is_one_row_for_the_api_too(queue: Queue) -> None:
    statement = INSERT_OR_IGNORE[queue.kind].format("jobs_queue (task, unique_key) VALUES ('tasks.note', 'one')")
    for _ in range(2):
        queue.sql(statement)
    ((task_id,),) = queue.rows("id")
    assert queue.server.add_task("tasks.note", unique_key="one") == task_id


# ---- priority


@EACH_DATABASE
@pytest.mark.parametrize("by_sql", [True, False])
def test_a_waiting_task_moves_at_once_when_its_priority_is_changed(queue: Queue, by_sql: bool) -> None:
    queue.server.add_task("tasks.hold", ["held"], priority=-9)
    ids = queue.server.add_tasks({"task": "tasks.note", "args": [name]} for name in ("1", "2", "3"))
    process = queue.start_task("--batch", 1)
    for task_id, priority in ((ids[2], -1), (ids[0], 1)):
        if by_sql:
            queue.sql("UPDATE jobs_queue SET priority = ? WHERE id = ?", priority, task_id)
        else:
            assert queue.server.set_priority(task_id, priority)
    queue.go()
    assert end_of(process) == (0, "", "")
    assert queue.notes() == ["held", "3", "2", "1"]
