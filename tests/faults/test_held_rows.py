"""Rows that somebody else's open transaction holds: they wait, and no other task does."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from taskserver import TaskServer
from tests.faults.test_database_faults import LOCK_TASK, Site, add, locking, running
from tests.support.deployment import Deployment
from tests.support.processes import end_of, wait_until
from tests.support.queues import server_skips_locked
from tests.support.servers import MySQLServer

HELD_TASKS = "SELECT id FROM jobs_queue WHERE id BETWEEN %s AND %s FOR UPDATE"


@pytest.fixture
def site(deployment: Deployment, mysql_server: MySQLServer) -> Iterator[Site]:
    with mysql_server.database() as name:
        yield Site(deployment, mysql_server, name)
        deployment.close()


@pytest.fixture
def skipping_site(site: Site) -> Site:
    """A queue whose server can skip rows that others hold."""
    if not server_skips_locked(site.dsn):
        pytest.skip("this server has no SKIP LOCKED: many held rows leave some of the others for later")
    return site


def test_a_held_row_costs_the_running_task_no_lease(site: Site) -> None:
    """What the worker gives back, and cannot, must not keep it from renewing."""
    site.set(LEASE=5)
    worker = running(site)
    with locking(site, LOCK_TASK, 2):
        wait_until(site.waiting_since)
        first_lease_ended = "SELECT 1 FROM jobs_queue WHERE id = 1 AND started_at < NOW(6) - INTERVAL 5 SECOND"
        wait_until(lambda: site.sql(first_lease_ended))
        assert site.worker("1").returncode == 0  # it takes what is due
        assert site.sql("SELECT status, attempts FROM jobs_queue WHERE id = 1") == [(1, 1)]
    site.go()
    assert end_of(worker)[0] == 0
    assert sorted(site.notes()) == ["first", "second", "third"]


def test_a_worker_that_is_stopped_releases_all_rows_but_those_that_are_held(site: Site) -> None:
    worker = running(site)
    with locking(site, LOCK_TASK, 2):
        worker.send_signal(signal.SIGTERM)
        site.go()
        assert end_of(worker) == (0, "", "")
        assert site.sql("SELECT id, status, attempts FROM jobs_queue") == [(2, 1, 0), (3, 0, 0)]


def test_what_is_due_wakes_though_a_row_beside_it_is_held(site: Site) -> None:
    site.set()
    add(site, "first", "second", "third")
    site.sql("UPDATE jobs_queue SET status = 3, attempts = 1, due_at = NOW(6)")
    with locking(site, LOCK_TASK, 2):
        ended = site.worker()
        assert (ended.returncode, ended.stderr) == (0, "")
        assert site.notes() == ["first", "third"]
    assert site.worker().returncode == 0
    assert site.notes() == ["first", "third", "second"]


def test_rows_that_are_held_keep_none_of_those_behind_them_from_waking(skipping_site: Site) -> None:
    """However many they are: these are more than a worker waits for."""
    site = skipping_site
    site.set()
    names = add(site, *(f"n{number}" for number in range(12)))
    site.sql("UPDATE jobs_queue SET status = 3, attempts = 1, due_at = NOW(6)")
    with locking(site, HELD_TASKS, 1, 6):
        ended = site.worker()
        assert (ended.returncode, ended.stderr) == (0, "")
        assert site.notes() == names[6:]
    assert site.worker().returncode == 0
    assert site.notes() == names[6:] + names[:6]


def test_rows_that_are_held_keep_none_of_those_behind_them_from_being_released(skipping_site: Site) -> None:
    site = skipping_site
    add(site, "first", task="wait_for_go")
    add(site, *(f"n{number}" for number in range(12)))
    worker = site.start()
    wait_until(lambda: site.notes() == ["first"])
    with locking(site, HELD_TASKS, 2, 7):
        worker.send_signal(signal.SIGTERM)
        site.go()
        assert end_of(worker) == (0, "", "")
        assert site.statuses() == [1] * 6 + [0] * 6


def test_where_held_rows_cannot_be_skipped_some_behind_them_are_woken_all_the_same(site: Site) -> None:
    """As on servers without SKIP LOCKED: each look tries them in another order."""
    add(site, *(f"n{number}" for number in range(12)))
    site.sql("UPDATE jobs_queue SET status = 3, attempts = 1, due_at = NOW(6)")
    with TaskServer(site.dsn) as server, locking(site, HELD_TASKS, 1, 3):
        server.store.database.dialect.skips_locked = False
        wait_until(lambda: server.store.due.wake(server.store.due.look().to_wake))


def test_a_finish_does_not_wait_for_the_held_row_of_the_next_task(site: Site) -> None:
    worker = running(site)
    with locking(site, LOCK_TASK, 2):
        site.go()
        wait_until(lambda: not site.sql("SELECT 1 FROM jobs_queue WHERE id = 1"))
        assert site.notes() == ["first"]
    assert end_of(worker) == (0, "", "")
    assert site.notes() == ["first", "second", "third"]


@pytest.mark.long
def test_a_finish_is_not_lost_where_the_held_row_of_the_next_task_outlasts_the_patience(site: Site) -> None:
    site.set(DB_PATIENCE=0)
    worker = running(site)
    with locking(site, LOCK_TASK, 2):
        site.go()
        code, output, errors = end_of(worker)
    assert (code, output) == (1, "")
    assert "(1205)" in errors
    assert errors.count("\n") == 1
    assert site.statuses() == [1, 0]  # what could not be started is left to its lease


def test_no_patience_with_an_absent_database_is_some_with_those_who_hold_a_row(site: Site) -> None:
    site.set(DB_PATIENCE=0)
    worker = running(site)
    with locking(site, LOCK_TASK, 1):
        site.go()
        wait_until(site.waiting_since)
        time.sleep(1.5)  # more than one turn of waiting for a lock
    assert end_of(worker) == (0, "", "")
    assert site.notes() == ["first", "second", "third"]


@pytest.mark.long
def test_a_row_that_was_left_for_later_takes_no_patience_from_what_comes_after(site: Site) -> None:
    site.set(DB_PATIENCE=0)
    add(site, "lost")
    site.sql(
        "UPDATE jobs_queue SET status = 1, attempts = 1, claim = 7, started_at = NOW(6),"
        " due_at = NOW(6) - INTERVAL 1 SECOND"
    )
    with locking(site, LOCK_TASK, 1):
        add(site, "first", task="wait_for_go")
        worker = site.start()
        wait_until(lambda: site.notes() == ["first"])
        with locking(site, LOCK_TASK, 2):
            site.go()
            wait_until(site.waiting_since)
            time.sleep(1.5)  # more than one turn of waiting for a lock
        assert end_of(worker) == (0, "", "")
    assert site.sql("SELECT id, status FROM jobs_queue") == [(1, 1)]


def test_a_second_signal_while_a_start_waits_keeps_its_task_from_being_called(site: Site) -> None:
    worker = running(site)
    with locking(site, LOCK_TASK, 2):
        site.go()
        wait_until(site.waiting_since)
        for _ in range(2):
            worker.send_signal(signal.SIGTERM)
            time.sleep(0.2)  # two of a kind at once are one
    assert end_of(worker) == (0, "", "")
    assert site.notes() == ["first"]
    assert site.sql("SELECT id, status, attempts, error_text FROM jobs_queue") == [
        (2, 3, 1, "TaskInterrupted: stopped by a second signal"),
        (3, 0, 0, None),
    ]


def test_tasks_behind_a_start_that_waits_are_given_back_after_half_a_lease(site: Site) -> None:
    site.set(LEASE=4)
    worker = running(site)
    with locking(site, LOCK_TASK, 2):
        site.go()
        wait_until(site.waiting_since)
        wait_until(lambda: site.sql("SELECT 1 FROM jobs_queue WHERE id = 3 AND status = 0"))
        assert site.sql("SELECT 1 FROM jobs_queue WHERE id = 2 AND status = 1 AND started_at IS NULL")
    assert end_of(worker) == (0, "", "")
    assert site.notes() == ["first", "second", "third"]


def test_a_lock_on_the_whole_table_costs_no_connections(site: Site) -> None:
    """As a backup sets it: what waits must wait on the connection that there is."""
    site.set(LEASE=4, MODE="mark")
    worker = running(site)
    before = site.connections()
    with closing(site.connect()) as backup, backup.cursor() as cursor:
        cursor.execute("LOCK TABLES jobs_queue READ")
        wait_until(lambda: site.log().count("the heartbeat cannot write: Conflict") >= 2)
        assert len(site.connections()) == len(before) + 1, "more than the backup's"
        cursor.execute("UNLOCK TABLES")
    site.go()
    assert end_of(worker) == (0, "", "")
    assert site.notes() == ["first", "second", "third"]


def test_a_producer_waits_for_a_lock_on_the_whole_table(site: Site) -> None:
    """What add_tasks was given cannot be tried again: so it waits where a worker looks again."""
    with TaskServer(site.dsn) as server, closing(site.connect()) as backup, backup.cursor() as cursor:
        cursor.execute("LOCK TABLES jobs_queue READ")
        producer = threading.Thread(target=server.add_tasks, args=([{"task": "tasks.note", "args": ["added"]}],))
        producer.start()
        producer.join(2.5)  # more than a turn of waiting
        assert producer.is_alive()
        cursor.execute("UNLOCK TABLES")
        producer.join(60)
    assert site.worker().returncode == 0
    assert site.notes() == ["added"]


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
