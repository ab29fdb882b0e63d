"""Rows that somebody else's open transaction holds: they wait, and no other task does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from taskserver import TaskServer
from tests.faults.failing import LOCK_TASK, LOCK_TASKS, FailingQueue
from tests.support.processes import end_of, wait_until
from tests.support.queues import server_skips_locked


@pytest.fixture
def skipping_queue(shared_queue: FailingQueue) -> FailingQueue:
    """A queue whose server can skip rows that others hold."""
    if not server_skips_locked(shared_queue.dsn):
        pytest.skip("this server has no SKIP LOCKED: many held rows leave some of the others for later")
    return shared_queue


def test_a_held_row_costs_the_running_task_no_lease(shared_queue: FailingQueue) -> None:
    """What the worker gives back, and cannot, must not keep it from renewing."""
    shared_queue.set(LEASE=5)
    worker = shared_queue.start_first()
    with shared_queue.locking(LOCK_TASK, 2):
        first_lease_ended = f"SELECT 1 FROM jobs_queue WHERE id = 1 AND started_at < {shared_queue.ago(5)}"
        wait_until(lambda: shared_queue.sql(first_lease_ended))
        assert shared_queue.worker("1").returncode == 0  # it takes what is due
        assert shared_queue.sql("SELECT status, attempts FROM jobs_queue WHERE id = 1") == [(1, 1)]
    shared_queue.go()
    assert end_of(worker)[0] == 0
    assert sorted(shared_queue.notes()) == ["first", "second", "third"]


@pytest.mark.long
def test_a_worker_that_is_stopped_releases_all_rows_but_those_that_are_held(shared_queue: FailingQueue) -> None:
    worker = shared_queue.start_first()
    with shared_queue.locking(LOCK_TASK, 2):
        worker.send_signal(signal.SIGTERM)
        shared_queue.go()
        assert end_of(worker) == (0, "", "")
        assert shared_queue.sql("SELECT id, status, attempts FROM jobs_queue") == [(2, 1, 0), (3, 0, 0)]


def test_rows_that_are_held_keep_none_of_those_behind_them_from_waking(skipping_queue: FailingQueue) -> None:
    """However many they are: these are more than a worker waits for."""
    names = skipping_queue.add_named(*(f"n{number}" for number in range(12)))
    skipping_queue.sql(f"UPDATE jobs_queue SET status = 3, attempts = 1, due_at = {skipping_queue.now}")
    with skipping_queue.locking(LOCK_TASKS, 1, 6):
        ended = skipping_queue.worker()
        assert (ended.returncode, ended.stderr) == (0, "")
        assert skipping_queue.notes() == names[6:]
    assert skipping_queue.worker().returncode == 0
    assert skipping_queue.notes() == names[6:] + names[:6]


@pytest.mark.long
def test_rows_that_are_held_keep_none_of_those_behind_them_from_being_released(skipping_queue: FailingQueue) -> None:
    skipping_queue.deployment.claim_at_once()
    skipping_queue.add_named("first", task="wait_for_go")
    skipping_queue.add_named(*(f"n{number}" for number in range(12)))
    worker = skipping_queue.start()
    wait_until(lambda: skipping_queue.notes() == ["first"])
    with skipping_queue.locking(LOCK_TASKS, 2, 7):
        worker.send_signal(signal.SIGTERM)
        skipping_queue.go()
        assert end_of(worker) == (0, "", "")
        assert skipping_queue.statuses() == [1] * 6 + [0] * 6


def test_a_finish_does_not_wait_for_the_held_row_of_the_next_task(shared_queue: FailingQueue) -> None:
    worker = shared_queue.start_first()
    with shared_queue.locking(LOCK_TASK, 2):
        shared_queue.go()
        wait_until(lambda: not shared_queue.sql("SELECT 1 FROM jobs_queue WHERE id = 1"))
        assert shared_queue.notes() == ["first"]
    assert end_of(worker) == (0, "", "")
    assert shared_queue.notes() == ["first", "second", "third"]


def test_tasks_behind_a_start_that_waits_are_given_back_after_half_a_lease(shared_queue: FailingQueue) -> None:
    shared_queue.set(LEASE=4)
    worker = shared_queue.start_first()
    with shared_queue.locking(LOCK_TASK, 2):
        shared_queue.go()
        wait_until(shared_queue.waiting_since)
        wait_until(lambda: shared_queue.sql("SELECT 1 FROM jobs_queue WHERE id = 3 AND status = 0"))
        assert shared_queue.sql("SELECT 1 FROM jobs_queue WHERE id = 2 AND status = 1 AND started_at IS NULL")
    assert end_of(worker) == (0, "", "")
    assert shared_queue.notes() == ["first", "second", "third"]


@pytest.mark.long
def test_tasks_that_come_slowly_keep_nobody_from_the_queue(dsn: str) -> None:
    """A script may hand over tasks as it finds them; meanwhile workers work."""
    asked, worked = threading.Event(), threading.Event()

    def found_slowly() -> Iterator[dict[str, object]]:
        yield {"task": "tasks.note", "args": ["slow"]}
        asked.set()
        assert worked.wait(60)
        yield {"task": "tasks.note", "args": ["slower"]}

    with TaskServer(dsn) as server:
        server.store.tables.create()
        producer = threading.Thread(target=server.add_tasks, args=(found_slowly(),))
        producer.start()
        assert asked.wait(60)
        task_id = server.add_task("tasks.note", ["fast"])
        assert server.store.claims.claim(10, []).tasks[0].id == task_id
        worked.set()
        producer.join()
        assert len(server.store.claims.claim(10, []).tasks) == 2
