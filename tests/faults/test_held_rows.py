"""Rows that somebody else's open transaction holds: they wait, and no other task does.

Claims skip them if the server can do that; else they wait for them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskserver import TaskServer
from taskserver.worker.result import Reason
from tests.faults.failing import LOCK_TASK, LOCK_TASKS, ON_MYSQL, FailingQueue
from tests.support.processes import WAIT_SECONDS, end_of, wait_until
from tests.support.queues import server_skips_locked

LOCK_NEW = "SELECT id FROM jobs_queue WHERE status = 0 FOR UPDATE"


@pytest.fixture
def skipping_queue(shared_queue: FailingQueue) -> FailingQueue:
    """A queue whose server can skip rows that others hold."""
    if not server_skips_locked(shared_queue.dsn):
        pytest.skip("this server has no SKIP LOCKED")
    return shared_queue


# ---- a worker's own rows


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
def test_a_worker_that_is_stopped_releases_all_rows_but_those_that_are_held(skipping_queue: FailingQueue) -> None:
    """However many they are: these are more than a worker waits for."""
    skipping_queue.deployment.claim_at_once()
    skipping_queue.add_named("first", task="wait_for_go")
    skipping_queue.add_named(*(f"n{number}" for number in range(12)))
    worker = skipping_queue.start_task()
    with skipping_queue.locking(LOCK_TASKS, 2, 7):
        worker.send_signal(signal.SIGTERM)
        skipping_queue.go()
        assert end_of(worker) == (0, "", "")
        assert skipping_queue.statuses() == [1] * 6 + [0] * 6


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
        shared_queue.await_lock_wait()
        wait_until(lambda: shared_queue.sql("SELECT 1 FROM jobs_queue WHERE id = 3 AND status = 0"))
        assert shared_queue.sql("SELECT 1 FROM jobs_queue WHERE id = 2 AND status = 1 AND started_at IS NULL")
    assert end_of(worker) == (0, "", "")
    assert shared_queue.notes() == ["first", "second", "third"]


# ---- claims


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[TaskServer], list[bool]]:
    """Of a server for new rows: what each of them found."""

    def watch(server: TaskServer) -> list[bool]:
        found: list[bool] = []
        look = server.store.claims.has_new

        def noted(groups: Sequence[int]) -> bool:
            found.append(look(groups))
            return found[-1]

        monkeypatch.setattr(server.store.claims, "has_new", noted)
        return found

    return watch


@pytest.mark.parametrize("held", [6, 2], ids=["all", "some"])
def test_a_run_takes_the_rows_that_others_do_not_hold(
    skipping_queue: FailingQueue, looks: Callable[[TaskServer], list[bool]], pool: ThreadPoolExecutor, held: int
) -> None:
    """And it does not end as empty while others hold new rows."""
    queue = skipping_queue
    with queue.opened() as (server, module):
        names = queue.add_named(*(f"n{number}" for number in range(6)), module=module)
        with queue.locking(LOCK_TASKS, 1, held):
            found = looks(server)
            run = pool.submit(server.run)
            wait_until(lambda: len(found) >= 4)
            assert not run.done()
            assert queue.notes() == names[held:]
        result = run.result(WAIT_SECONDS)
    assert (result.reason, result.done) == (Reason.EMPTY, 6)


def test_a_run_whose_patience_ran_out_ends_as_crowded(skipping_queue: FailingQueue) -> None:
    with skipping_queue.opened(db_patience=0) as (server, module):
        skipping_queue.add_named("first", "second", module=module)
        with skipping_queue.locking(LOCK_NEW):
            result = server.run()
    assert (result.reason, result.taken, skipping_queue.reason()) == (Reason.CROWDED, 0, "crowded")
    assert skipping_queue.statuses() == [0, 0]


@ON_MYSQL
def test_a_claim_without_skip_locked_waits_for_the_rows_and_takes_them(
    shared_queue: FailingQueue, pool: ThreadPoolExecutor
) -> None:
    with shared_queue.opened() as (server, module):
        server.store.database.dialect.skips_locked = False
        shared_queue.add_named("first", "second", module=module)
        with shared_queue.locking(LOCK_NEW):
            run = pool.submit(server.run)
            shared_queue.await_lock_wait()
            assert not run.done()
        result = run.result(WAIT_SECONDS)
    assert (result.reason, result.done) == (Reason.EMPTY, 2)
