"""Rows that somebody else's open transaction holds: they wait, and no other task does."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from taskserver import TaskServer
from taskserver.host.process_identity import host_name
from tests.faults.failing import LOCK_TASK, LOCK_TASKS, ON_MYSQL, FailingQueue, OnMySQL
from tests.support.processes import assert_one_line, end_of, wait_until
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


def test_a_worker_that_is_stopped_releases_all_rows_but_those_that_are_held(shared_queue: FailingQueue) -> None:
    worker = shared_queue.start_first()
    with shared_queue.locking(LOCK_TASK, 2):
        worker.send_signal(signal.SIGTERM)
        shared_queue.go()
        assert end_of(worker) == (0, "", "")
        assert shared_queue.sql("SELECT id, status, attempts FROM jobs_queue") == [(2, 1, 0), (3, 0, 0)]


@pytest.mark.long
@pytest.mark.parametrize("ran_before", [True, False])
def test_a_held_record_of_runs_stops_no_task_and_is_reported(shared_queue: FailingQueue, ran_before: bool) -> None:
    now = shared_queue.now
    if ran_before:
        assert shared_queue.worker().returncode == 0
        hold = "UPDATE jobs_queue_workers SET pid = 1"
    else:
        hold = f"INSERT INTO jobs_queue_workers (pid, host, group_ids, started_at) VALUES (1, %s, 'all', {now})"
    shared_queue.add_named("first", "second")
    with shared_queue.locking(hold, *[] if ran_before else [host_name()]):
        worker = shared_queue.start()
        wait_until(lambda: shared_queue.notes() == ["first", "second"])
        assert_one_line(
            subprocess.CompletedProcess([], *end_of(worker)), 0, "this run is not recorded", shared_queue.waited
        )
    shared_queue.add_named("third")
    with shared_queue.locking(hold, *[] if ran_before else [host_name()]):
        worker = shared_queue.start()
        wait_until(lambda: "third" in shared_queue.notes())
    assert end_of(worker) == (0, "", "")
    assert shared_queue.counts()["done"] == 1
    assert shared_queue.sql("SELECT previous_started_at IS NULL FROM jobs_queue_workers") == [(not ran_before,)]


def test_what_is_due_wakes_though_a_row_beside_it_is_held(shared_queue: FailingQueue) -> None:
    shared_queue.add_named("first", "second", "third")
    shared_queue.sql(f"UPDATE jobs_queue SET status = 3, attempts = 1, due_at = {shared_queue.now}")
    with shared_queue.locking(LOCK_TASK, 2):
        ended = shared_queue.worker()
        assert (ended.returncode, ended.stderr) == (0, "")
        assert shared_queue.notes() == ["first", "third"]
    assert shared_queue.worker().returncode == 0
    assert shared_queue.notes() == ["first", "third", "second"]


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


@pytest.mark.long
def test_where_held_rows_cannot_be_skipped_some_behind_them_are_woken_all_the_same(shared_queue: FailingQueue) -> None:
    """As on servers without SKIP LOCKED: each look tries them in another order."""
    shared_queue.add_named(*(f"n{number}" for number in range(12)))
    shared_queue.sql(f"UPDATE jobs_queue SET status = 3, attempts = 1, due_at = {shared_queue.now}")
    with TaskServer(shared_queue.dsn) as server, shared_queue.locking(LOCK_TASKS, 1, 3):
        server.store.database.dialect.skips_locked = False
        wait_until(lambda: server.store.due.wake(server.store.due.look().to_wake))


def test_a_finish_does_not_wait_for_the_held_row_of_the_next_task(shared_queue: FailingQueue) -> None:
    worker = shared_queue.start_first()
    with shared_queue.locking(LOCK_TASK, 2):
        shared_queue.go()
        wait_until(lambda: not shared_queue.sql("SELECT 1 FROM jobs_queue WHERE id = 1"))
        assert shared_queue.notes() == ["first"]
    assert end_of(worker) == (0, "", "")
    assert shared_queue.notes() == ["first", "second", "third"]


@pytest.mark.long
def test_a_finish_is_not_lost_where_the_held_row_of_the_next_outlasts_the_patience(
    shared_queue: FailingQueue,
) -> None:
    shared_queue.set(DB_PATIENCE=0)
    worker = shared_queue.start_first()
    with shared_queue.locking(LOCK_TASK, 2):
        shared_queue.go()
        code, output, errors = end_of(worker)
    assert (code, output) == (1, "")
    assert shared_queue.waited in errors
    assert errors.count("\n") == 1
    assert shared_queue.statuses() == [1, 0]  # what could not be started is left to its lease


def test_no_patience_with_an_absent_database_is_some_with_those_who_hold_a_row(shared_queue: FailingQueue) -> None:
    shared_queue.set(DB_PATIENCE=0)
    worker = shared_queue.start_first()
    with shared_queue.locking(LOCK_TASK, 1):
        shared_queue.go()
        wait_until(shared_queue.waiting_since)
        time.sleep(1.5)  # more than one turn of waiting for a lock
    assert end_of(worker) == (0, "", "")
    assert shared_queue.notes() == ["first", "second", "third"]


def test_a_second_signal_while_a_start_waits_keeps_its_task_from_being_called(shared_queue: FailingQueue) -> None:
    worker = shared_queue.start_first()
    with shared_queue.locking(LOCK_TASK, 2):
        shared_queue.go()
        wait_until(shared_queue.waiting_since)
        for _ in range(2):
            worker.send_signal(signal.SIGTERM)
            time.sleep(0.2)  # two of a kind at once are one
    assert end_of(worker) == (0, "", "")
    assert shared_queue.notes() == ["first"]
    assert shared_queue.sql("SELECT id, status, attempts, error_text FROM jobs_queue") == [
        (2, 3, 1, "TaskInterrupted: stopped by a second signal"),
        (3, 0, 0, None),
    ]


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


def test_a_producer_waits_for_a_lock_on_the_whole_table(shared_queue: FailingQueue) -> None:
    """What add_tasks was given cannot be tried again: so it waits where a worker looks again."""
    with TaskServer(shared_queue.dsn) as server:
        producer = threading.Thread(target=server.add_tasks, args=([{"task": "tasks.note", "args": ["added"]}],))
        with shared_queue.locking_table():
            producer.start()
            producer.join(2.5)  # more than a turn of waiting
            assert producer.is_alive()
        producer.join(60)
    assert shared_queue.worker().returncode == 0
    assert shared_queue.notes() == ["added"]


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


SLOW_INSERT = """
    INSERT INTO {} (id, group_id, task) SELECT {}, 9, CONCAT(letter, SLEEP(CASE letter WHEN 'b' THEN 4 ELSE 0 END))
    FROM (SELECT 'a' AS letter UNION ALL SELECT 'b') AS letters
"""
IS_INSERTING = """
    SELECT 1 FROM information_schema.processlist WHERE INSTR(info, 'SLEEP(CASE') AND id <> CONNECTION_ID()
"""


@ON_MYSQL
@pytest.mark.parametrize(("table", "row_id"), [("jobs_queue", "NULL"), ("jobs_queue_done", "1")])
def test_an_insert_that_holds_the_counter_of_ids_is_waited_for(shared_queue: OnMySQL, table: str, row_id: str) -> None:
    """As an INSERT of many selected rows does. MariaDB says of it what it says where no id is left."""
    shared_queue.add_named("first")
    shared_queue.sql(
        "CREATE TABLE others (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY) AUTO_INCREMENT = ?", 2**63 + 9
    )

    def insert_slowly() -> None:
        with closing(shared_queue.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(SLOW_INSERT.format(table, row_id))

    with ThreadPoolExecutor() as pool, TaskServer(shared_queue.dsn) as server:
        holder = pool.submit(insert_slowly)
        wait_until(lambda: shared_queue.sql(IS_INSERTING))
        if table == "jobs_queue":
            assert server.add_task("tasks.note", ["second"], group_id=5) > 1
        ended = shared_queue.worker("0", "0", "--mode", "move")
        assert (ended.returncode, ended.stderr, shared_queue.notes()) == (0, "", ["first"])
        holder.result()
    assert shared_queue.sql("SELECT COUNT(*) FROM jobs_queue_done WHERE task = 'tasks.note'") == [(1,)]
