"""TASKSERVER_WARN_AFTER: one line once a task name has failed so often in a row, whichever runs that were."""

from __future__ import annotations

import os

import pytest

from tests.support.processes import assert_silent, end_of
from tests.support.queues import Queue

TASKS = """
import time

from taskserver import Retry, task

def fail(message="no luck"):
    raise ValueError(message)

def either():
    note("called")
    if (HERE / "broken").exists():
        raise ValueError("broken")

def wait_then_either():
    note("called")
    while not (HERE / "go").exists():
        time.sleep(0.01)
    either()

def later():
    raise Retry("not yet")

@task(batch=5)
def index(items):
    if (HERE / "broken").exists():
        raise ValueError("broken")

"""
SETTINGS = {"TASKSERVER_WARN_AFTER": "3"}
LOST = "UPDATE jobs_queue SET status = 1, attempts = 1, claim = 1, started_at = created_at, due_at = created_at"


def told(task: str, error: str, last: int = 1) -> str:
    return f"{task} has failed 3 times in a row, last as task {last}: {error} (said once until it goes well)\n"


def run_again(queue: Queue) -> str:
    """A run for which every failed task is due; what it wrote on standard error."""
    queue.end_backoffs()
    ended = queue.worker()
    assert (ended.returncode, ended.stdout) == (0, "")
    return ended.stderr


def test_the_third_failure_in_a_row_is_told_once_whatever_run_it_is_in(queue: Queue) -> None:
    queue.add("tasks.fail")
    words = [run_again(queue) for _ in range(6)]
    assert words == ["", "", told("tasks.fail", "ValueError: no luck"), "", "", ""]


def test_failures_of_one_run_and_of_several_tasks_count_together(sqlite_queue: Queue) -> None:
    for _ in range(5):
        sqlite_queue.add("tasks.fail")
    assert run_again(sqlite_queue) == told("tasks.fail", "ValueError: no luck", 3)


@pytest.mark.parametrize("name", ["either", "index"])
def test_a_success_between_begins_a_new_row_and_the_next_outage_is_told_again(sqlite_queue: Queue, name: str) -> None:
    def add_and_run() -> str:
        sqlite_queue.sql("DELETE FROM jobs_queue")
        sqlite_queue.add(f"tasks.{name}")
        return run_again(sqlite_queue)

    def told_now(text: str) -> bool:
        return text.startswith(f"tasks.{name} has failed 3 times in a row")

    broken = sqlite_queue.folder / "broken"
    for _ in range(2):
        broken.touch()
        assert [add_and_run() for _ in range(2)] == ["", ""]
        broken.unlink()
        assert add_and_run() == ""
        broken.touch()
        assert [told_now(add_and_run()) for _ in range(4)] == [False, False, True, False]
        broken.unlink()
        assert add_and_run() == ""


def test_a_success_of_another_worker_counts_too(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.wait_then_either")
    worker = sqlite_queue.start_task()
    (sqlite_queue.folder / "broken").touch()
    for _ in range(2):
        sqlite_queue.add("tasks.either")
        assert_silent(sqlite_queue.worker())
    (sqlite_queue.folder / "broken").unlink()
    sqlite_queue.add("tasks.either")
    assert_silent(sqlite_queue.worker())
    (sqlite_queue.folder / "broken").touch()
    sqlite_queue.go()
    assert end_of(worker) == (0, "", "")
    assert run_again(sqlite_queue) == ""


def test_lost_tasks_count_and_retries_that_a_task_asks_for_do_not(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.fail")
    sqlite_queue.add("tasks.later")
    assert [run_again(sqlite_queue) for _ in range(2)] == [""] * 2
    sqlite_queue.sql(f"{LOST} WHERE id = 1")
    (line,) = run_again(sqlite_queue).splitlines()
    assert line.startswith("tasks.fail has failed 3 times in a row, last as task 1: lost: ")
    assert run_again(sqlite_queue) == ""


def test_where_nothing_fails_nothing_is_kept(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.note")
    assert run_again(sqlite_queue) == ""
    assert not (sqlite_queue.folder / "var" / "failing").exists()


def test_without_the_setting_nothing_is_told_and_nothing_kept(sqlite_queue: Queue) -> None:
    for _ in range(4):
        sqlite_queue.add("tasks.fail")
    assert_silent(sqlite_queue.worker(TASKSERVER_WARN_AFTER="0"))
    assert not (sqlite_queue.folder / "var" / "failing").exists()


def test_counts_that_cannot_be_kept_are_told_once_and_fail_no_run(sqlite_queue: Queue) -> None:
    (sqlite_queue.folder / "var").mkdir(mode=0o700)
    (sqlite_queue.folder / "var" / "failing").touch()
    for _ in range(4):
        sqlite_queue.add("tasks.fail")
    ended = sqlite_queue.worker()
    assert (ended.returncode, len(ended.stderr.splitlines())) == (0, 1)
    assert ended.stderr.startswith("TASKSERVER_WARN_AFTER: failures are not counted, as ")
    assert sqlite_queue.statuses() == [3] * 4


def test_made_up_names_fill_no_folder(sqlite_queue: Queue) -> None:
    folder = sqlite_queue.folder / "var" / "failing"
    folder.mkdir(parents=True, mode=0o700)
    for number in range(500):
        (folder / f"{number:08x}").touch()
    for number in range(3):
        sqlite_queue.add(f"tasks.made_up_{number}")
    sqlite_queue.sql(LOST)
    assert_silent(sqlite_queue.worker(1))
    assert len(os.listdir(folder)) == 500
