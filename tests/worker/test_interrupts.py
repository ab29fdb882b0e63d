"""A task that a person cancels is interrupted, and no other: not the next one, whatever that one's own fate is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from taskserver import TaskServer
from taskserver.interrupts.stopping import Stop, TaskInterrupted
from taskserver.interrupts.time_limit import TimeLimit, time_limit
from taskserver.model.selection import Selection
from taskserver.model.task import CANCELLED, Status
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.rows import Rows
from tests.support.threads import in_another_thread

TASKS = """
import time

def hang():
    while True:
        time.sleep(0.01)

def swallow():
    try:
        hang()
    except BaseException:
        pass
"""


def hang() -> None:
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        time.sleep(0.01)


def in_main_thread(work: Callable[[TimeLimit], None]) -> None:
    with time_limit(Stop(), 60) as limit:
        work(limit)


def in_helper_thread(work: Callable[[TimeLimit], None]) -> None:
    in_another_thread(lambda: in_main_thread(work))


@pytest.mark.parametrize("in_thread", [in_main_thread, in_helper_thread])
def test_a_late_interrupt_leaves_the_next_task_its_own_timeout(
    in_thread: Callable[[Callable[[TimeLimit], None]], None],
) -> None:
    """A worker's own thread may be two tasks on, by the time at which its heartbeat strikes."""

    def work(limit: TimeLimit) -> None:
        def next_task() -> None:
            limit.interrupt(CANCELLED, lambda: False)
            if in_thread is in_helper_thread:  # there the heartbeat sees to the timeout
                limit.strike()
            hang()

        def cancelled_task() -> None:
            limit.interrupt(CANCELLED, lambda: True)
            hang()

        with pytest.raises(TaskInterrupted, match=r"longer than its timeout of 0\.2 s"):
            limit.call(0.2, next_task)
        with pytest.raises(TaskInterrupted, match=CANCELLED):
            limit.call(0, cancelled_task)

    in_thread(work)


def test_a_late_interrupt_leaves_a_task_without_a_timeout_alone() -> None:
    def work(limit: TimeLimit) -> None:
        def next_task() -> str:
            limit.interrupt(CANCELLED, lambda: False)
            time.sleep(0.2)
            return "ended well"

        assert limit.call(0, next_task) == "ended well"

    in_main_thread(work)


def test_a_task_after_a_cancelled_one_is_not_taken_for_cancelled(dsn: str, tmp_path: Path) -> None:
    """However it fails: here its module cannot be imported, which is known before it starts."""
    (tmp_path / "cancelled_tasks.py").write_text(TASKS)
    (tmp_path / "broken_tasks.py").write_text("raise ValueError('broken')\n")
    with TaskServer(dsn, lease=1, modules="cancelled_tasks, broken_tasks", folder=tmp_path) as server:
        server.create_tables()
        tasks = (
            "broken_tasks.a",
            "cancelled_tasks.swallow",
            "broken_tasks.b",
            "cancelled_tasks.hang",
            "broken_tasks.c",
        )
        ids = server.add_tasks([{"task": task} for task in tasks])
        rows = Rows(dsn)

        thread = threading.Thread(target=cancel_once_they_run, args=(dsn, [ids[1], ids[3]]))
        thread.start()
        server.run(max_tasks=5)
        thread.join(WAIT_SECONDS)
        ends = {row["task"]: (row["status"], str(row["error_text"]).partition(":")[0]) for row in rows.all()}
        rows.close()
    broken = (Status.ERROR, "ModuleBroken")
    assert ends == {
        "broken_tasks.a": broken,
        "broken_tasks.b": broken,
        "cancelled_tasks.hang": (Status.CANCELLED, CANCELLED),
        "broken_tasks.c": broken,
    }


def cancel_once_they_run(dsn: str, ids: list[int]) -> None:
    rows = Rows(dsn)
    with TaskServer(dsn) as person:
        for task_id in ids:
            wait_until(partial(has_started, rows, task_id))
            assert person.cancel(Selection(ids=[task_id])) == 1
    rows.close()


def has_started(rows: Rows, task_id: int) -> bool:
    return any(row["id"] == task_id and row["started_at"] is not None for row in rows.all())
