"""Tasks that run inside the transaction that completes them: what they write and their end are one commit.

That many of them at once leave every sum right is in tests/faults/test_transfers.py, faults of the network and of the
server in tests/faults/test_commits.py, tasks that end their transaction themselves in test_transaction_ends.py.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

import taskserver
from taskserver import TaskServer, TaskServerError
from tests.support.databases import EACH_DATABASE, EACH_SERVER, ON_MYSQL
from tests.support.effects import EffectsSite
from tests.support.processes import wait_until
from tests.support.rows import MODES

CODE = """
import taskserver
from taskserver import task

heard, meanwhile = [], lambda: None
transactional = task(transactional=True)

def run(statement):
    taskserver.connection().cursor().execute(statement)

def write(number):
    run(f"INSERT INTO effects (number) VALUES ({number})")

@transactional
def effect(number, value=None):
    write(number)
    meanwhile()
    write(number + 100)
    return value

@transactional
def fail(number):
    write(number)
    raise ValueError("after its write")

@task(transactional=True, timeout=0.3)
def too_long(number, statement=None):
    write(number)
    if statement:
        run(statement)
    while True:
        pass

def rescue(number, error):
    try:
        taskserver.connection()
    except taskserver.TaskServerError as refused:
        heard.append(refused)

@task(transactional=True, max_attempts=1, on_fatal=rescue)
def fail_for_good(number):
    write(number)
    raise ValueError("for good")
"""
SITE = EffectsSite


@EACH_DATABASE
@pytest.mark.parametrize("mode", MODES)
def test_what_a_task_wrote_and_its_completion_are_one_commit(
    make_site: Callable[..., EffectsSite], site_dsn: str, mode: str
) -> None:
    site = make_site(site_dsn, mode=mode)
    seen: list[object] = []
    site.module.meanwhile = lambda: seen.extend([site.effects(), site.states()])
    task_id = site.add_args("effect", [1, "result"])
    assert site.run().done == 1
    assert seen == [[], [(1, 1)]]
    assert site.effects() == [1, 101]
    assert site.states() == ([(2, 1)] if mode == "mark" else [])
    assert site.columns("id, status, attempts", "jobs_queue_done") == ([(1, 2, 1)] if mode == "move" else [])
    state = site.server.get(task_id)
    assert (state and state.result) == (None if mode == "delete" else "result")


@EACH_DATABASE
def test_a_task_that_raises_leaves_nothing_and_is_retried(site: EffectsSite) -> None:
    site.add_args("fail", [1], max_attempts=2)
    for status in (3, 4):
        site.rows.set("due_at = created_at")
        site.run()
        assert (site.effects(), site.states()[0][0]) == ([], status)
        assert site.first_lines() == ["ValueError: after its write"]


@EACH_SERVER
def test_a_task_whose_time_is_up_leaves_nothing(site: EffectsSite) -> None:
    sleep = "SELECT pg_sleep(20)" if site.rows.is_postgresql else "SELECT SLEEP(20)"
    for name, args in (("too_long", [1]), ("too_long", [2, sleep]), ("effect", [3])):
        site.add_args(name, args)
    site.run()
    assert (site.effects(), site.states()) == ([3, 103], [(3, 1), (3, 1)])
    assert all("TaskInterrupted" in line or "Timeout" in line for line in site.first_lines())
    if site.rows.is_postgresql:  # which would go on without the worker
        wait_until(lambda: site.rows.execute("SELECT 1 FROM pg_stat_activity WHERE query = ?", [sleep]) == [])


def test_what_is_called_when_the_last_attempt_failed_is_outside_of_it(site: EffectsSite) -> None:
    site.add_args("fail_for_good", [1])
    assert (site.run().done, site.effects()) == (1, [])
    words = "taskserver.connection() is for tasks with @task(transactional=True), while they run"
    assert words in str(site.module.heard[0])
    with pytest.raises(TaskServerError, match=re.escape(words)):
        taskserver.connection()


@EACH_SERVER
@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_was_taken_over_leaves_nothing(
    make_site: Callable[..., EffectsSite], site_dsn: str, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """Its row is free for others until its last statement."""
    site = make_site(site_dsn, mode=mode)
    site.module.meanwhile = lambda: site.rows.set("claim = claim + 1")
    site.add_args("effect", [1])
    assert site.run().lost == 1
    assert f"task 1 {site.name}.effect: the lease was lost while it ran" in caplog.text
    assert (site.effects(), site.states()) == ([], [(1, 1)])


@ON_MYSQL
def test_the_lease_of_a_long_task_is_renewed_meanwhile(make_site: Callable[..., EffectsSite], site_dsn: str) -> None:
    site = make_site(site_dsn, lease=1)
    site.add_args("effect", [1])

    def wait_for_renewal() -> None:
        first = site.rows.one("due_at")
        wait_until(lambda: site.rows.one("due_at") > first)

    site.module.meanwhile = wait_for_renewal
    assert (site.run().done, site.effects()) == (1, [1, 101])


# ---- on SQLite, of which only one connection may write at a time


def test_on_sqlite_others_wait_for_it_without_an_error(sqlite_site: EffectsSite) -> None:
    site = sqlite_site

    def add() -> None:
        with TaskServer(site.dsn) as producer:
            producer.add_task(f"{site.name}.effect", [2])

    others = threading.Thread(target=add)

    def let_wait() -> None:
        if not others.ident:
            others.start()
            time.sleep(1)
            assert others.is_alive()

    site.module.meanwhile = let_wait
    site.add_args("effect", [1])
    site.run(1)
    others.join()
    site.run()
    assert (site.effects(), site.states()) == ([1, 2, 101, 102], [])


def test_on_sqlite_a_task_that_writes_past_its_transaction_is_an_error_with_a_way_out(
    make_site: Callable[..., EffectsSite], sqlite_dsn: str
) -> None:
    """It waits for itself, as long as for anybody."""
    site = make_site(sqlite_dsn, db_patience=1)
    path = sqlite_dsn.removeprefix("sqlite:///")

    def add_by_another() -> None:
        with TaskServer(sqlite_dsn, db_patience=1) as other:
            other.add_task("tasks.note")

    def add_on_another_connection() -> None:
        with closing(sqlite3.connect(path, timeout=0.1)) as connection:
            site.server.add_task("tasks.note", connection=connection)

    for act in (add_by_another, add_on_another_connection):
        site.module.meanwhile = act
        site.add_args("effect", [1])
        site.run(1)
    assert (site.effects(), site.states()) == ([], [(3, 1)] * 2)
    first, second = site.first_lines()
    assert re.search(r"Conflict: .*database is locked: .*connection=taskserver\.connection\(\)", first)
    assert second.startswith("Conflict: on the connection that was given: database is locked")
