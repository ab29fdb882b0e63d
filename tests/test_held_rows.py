"""Rows that somebody else's open transaction holds: they wait, and no other task does."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from taskserver import TaskServer
from tests.deployment import Deployment
from tests.processes import end_of, wait_until
from tests.servers import MySQLServer
from tests.test_database_faults import LOCK_TASK, Site, add, locking, running


@pytest.fixture
def site(deployment: Deployment, mysql_server: MySQLServer) -> Iterator[Site]:
    with mysql_server.database() as name:
        yield Site(deployment, mysql_server, name)
        deployment.close()


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


def test_a_finish_does_not_wait_for_the_held_row_of_the_next_task(site: Site) -> None:
    worker = running(site)
    with locking(site, LOCK_TASK, 2):
        site.go()
        wait_until(lambda: not site.sql("SELECT 1 FROM jobs_queue WHERE id = 1"))
        assert site.notes() == ["first"]
    assert end_of(worker) == (0, "", "")
    assert site.notes() == ["first", "second", "third"]


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


def test_tasks_that_come_slowly_keep_nobody_from_the_queue(dsn: str) -> None:
    """A script may hand over tasks as it finds them; meanwhile workers work."""
    asked, worked = threading.Event(), threading.Event()

    def found_slowly() -> Iterator[dict[str, object]]:
        yield {"task": "tasks.note", "args": ["slow"]}
        asked.set()
        assert worked.wait(60)
        yield {"task": "tasks.note", "args": ["slower"]}

    with TaskServer(dsn) as server:
        server.store.create_tables()
        producer = threading.Thread(target=server.add_tasks, args=(found_slowly(),))
        producer.start()
        assert asked.wait(60)
        task_id = server.add_task("tasks.note", ["fast"])
        assert server.store.claim(10, []).tasks[0].id == task_id
        worked.set()
        producer.join()
        assert len(server.store.claim(10, []).tasks) == 2
