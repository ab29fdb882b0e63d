"""A run that lingers: it waits for new tasks, and ends if its code is older than its files."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial

from taskserver import Reason, RunResult, Stop
from tests.support.processes import WAIT_SECONDS
from tests.support.queues import Queue
from tests.support.servers import MySQLServer

SETTINGS = {"TASKSERVER_PAUSES": "0.02,0.05,0.1"}
LONG = 2 * WAIT_SECONDS


def one_by_one(queue: Queue, *acts: Callable[[], object]) -> Stop:
    """A request to stop that does these whenever the queue is empty, one after the other, and then stops the run."""
    stop, left = Stop(), list(acts)

    def look() -> None:
        if not queue.rows():
            (left.pop(0) if left else stop.ask)()

    stop.lookouts.append(look)
    return stop


def test_a_run_that_lingers_runs_tasks_that_come_later_until_it_is_asked_to_stop(queue: Queue) -> None:
    add = partial(queue.add, "tasks.note")
    later = f"INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.note', 5, {queue.now})"
    result = queue.run_here(linger=LONG, stop=one_by_one(queue, add, add, partial(queue.sql, later)))
    assert (result.done, result.reason, queue.notes()) == (3, Reason.STOPPED, ["noted"] * 3)
    assert queue.sql("SELECT reason, taken, done FROM jobs_queue_workers") == [("stopped", 3, 3)]


def test_it_leaves_an_empty_queue_once_its_time_is_over(queue: Queue) -> None:
    began = time.monotonic()
    assert queue.server.run(linger=0.3).reason is Reason.EMPTY
    assert time.monotonic() - began >= 0.3


def test_max_tasks_and_max_time_end_its_wait(queue: Queue) -> None:
    for _ in range(3):
        queue.add("tasks.note")
    assert queue.server.run(2, linger=LONG).reason is Reason.MAX_TASKS
    assert len(queue.rows()) == 1
    assert queue.server.run(linger=math.inf, max_time=0.5).reason is Reason.MAX_TIME
    assert queue.rows() == []


def test_it_goes_on_where_its_connection_breaks_while_it_waits(mysql_queue: Queue, mysql_server: MySQLServer) -> None:
    def cut() -> None:
        [(number,)] = mysql_queue.server.store.database.fetch("SELECT CONNECTION_ID()")
        mysql_server.execute(f"KILL {number}")
        mysql_queue.add("tasks.note")

    stop = one_by_one(mysql_queue, lambda: None, cut)
    assert mysql_queue.server.run(linger=LONG, stop=stop).done == 1


# ---- code that changes meanwhile


def run_and_change(queue: Queue, change: Callable[[], object]) -> RunResult:
    """A run in a process of ours; the files and the rows change after its first task."""
    stop, changes = Stop(), iter([change])
    stop.ends_process = "worker.py"
    return queue.run_here(linger=1, stop=stop, on_progress=lambda result: next(changes, int)())


def test_a_run_whose_code_is_older_than_its_files_leaves_a_task_that_needs_the_new_one(queue: Queue) -> None:
    queue.define("def greet(): note('old')\n")
    queue.add("tasks.greet")

    def upload() -> None:
        queue.define("def greet(name=''): note(name or 'old')\n")
        for args in ("[]", '["ada"]', '["grace"]'):
            queue.add("tasks.greet", args)

    result = run_and_change(queue, upload)
    assert (result.reason, result.taken, result.done) == (Reason.OUTDATED, 2, 2)
    assert queue.rows("status, attempts") == [(0, 0)] * 2
    queue.run_quietly()
    assert queue.notes() == ["old", "old", "ada", "grace"]
    assert queue.rows() == []


def test_what_a_new_module_lacks_in_a_loaded_one_costs_no_attempt(queue: Queue) -> None:
    queue.deployment.write_env(TASKSERVER_DSN=queue.dsn, TASKSERVER_MODULES="tasks,more", **SETTINGS)
    queue.add("tasks.note")

    def upload() -> None:
        queue.define("def shout(): note('new')\n")
        queue.deployment.write_tasks("from tasks import shout\n\ndef greet(): shout()\n", "more.py")
        queue.sql("INSERT INTO jobs_queue (task, max_attempts) VALUES ('more.greet', 1)")

    assert run_and_change(queue, upload).reason is Reason.OUTDATED
    assert queue.rows("status, attempts, max_attempts") == [(0, 0, 1)]
    queue.run_quietly()
    assert queue.notes() == ["noted", "new"]
