"""Tasks that run inside the transaction that completes them: what they write and their end are one commit.

That many of them at once leave every sum right is in tests/faults/test_chaos.py, faults of the network and of the
server in tests/faults/test_commits.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest

import taskserver
from taskserver import TaskServer, TaskServerError
from taskserver.model.task import ClaimedTask
from taskserver.stores import database
from taskserver.stores.queue.transactions import Transactions
from tests.support.databases import EACH_DATABASE, EACH_SERVER, ON_MYSQL
from tests.support.processes import together, wait_until
from tests.support.rows import MODES, Rows
from tests.support.sites import EffectsSite

MAY_NOT = "a transactional task may not end its transaction itself"
CODE = """
import time

import taskserver
from taskserver import Fatal, connection, task

heard, meanwhile = [], lambda: None
transactional = task(transactional=True)

def run(statement):
    connection().cursor().execute(statement)

def write(number):
    run(f"INSERT INTO effects (number) VALUES ({number})")

@transactional
def effect(number, value=None):
    write(number)
    meanwhile()
    write(number + 100)
    return value

@task(transactional=True, timeout=0.3)
def too_long(statement, swallows=False):
    write(1)
    try:
        run(statement) if statement else time.sleep(20)
    except BaseException:
        if not swallows:
            raise
    try:
        write(2)
    except Exception:
        pass

def rescue(number, error):
    try:
        connection()
    except taskserver.TaskServerError as refused:
        heard.append(refused)

@task(transactional=True, max_attempts=2, on_fatal=rescue)
def fail(number):
    write(number)
    raise ValueError("after its write")

@transactional
def end(code, number):
    write(number)
    try:
        exec(code)
    except BaseException:
        pass
    write(number + 1)

@transactional
def keep_an_error():
    write(1)
    try:
        run("SELECT 1 / 0")
    except Exception:
        pass

@task(transactional=True, max_attempts=1)
def meet_deadlock():
    run("UPDATE effects SET number = number + 10 WHERE id = 1")
    meanwhile()
    run("UPDATE effects SET number = number + 10 WHERE id = 2")
    write(7)

@transactional
def give_up_after_deadlock():
    try:
        meet_deadlock()
    except Exception as error:
        raise Fatal("no stock") from error

@transactional
def swallow_deadlock():
    try:
        meet_deadlock()
    except Exception:
        pass
    write(7)
"""
SITE = EffectsSite


@EACH_DATABASE
@pytest.mark.parametrize("mode", MODES)
def test_what_a_task_wrote_and_its_completion_are_one_commit(make_site: Any, queue_dsn: str, mode: str) -> None:
    site = make_site(queue_dsn, mode=mode)
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


def test_a_task_that_raises_leaves_nothing_and_its_on_fatal_is_outside(site: EffectsSite) -> None:
    site.add_args("fail", [1])
    site.run()
    assert (site.effects(), site.states(), site.first_lines()) == ([], [(3, 1)], ["ValueError: after its write"])
    site.rows.set("due_at = created_at")
    assert (site.run().done, site.effects()) == (1, [])
    words = "taskserver.connection() is for tasks with @task(transactional=True), while they run"
    assert words in str(site.module.heard[0])
    with pytest.raises(TaskServerError, match=re.escape(words)):
        taskserver.connection()


@ON_MYSQL
def test_a_task_that_was_taken_over_leaves_nothing(site: EffectsSite, caplog: pytest.LogCaptureFixture) -> None:
    """Others can change its row until its last statement."""
    site.module.meanwhile = lambda: site.rows.set("claim = claim + 1")
    site.add_args("effect", [1])
    assert site.run().lost == 1
    assert f"task 1 {site.name}.effect: the lease was lost while it ran" in caplog.text
    assert (site.effects(), site.states()) == ([], [(1, 1)])


def test_on_sqlite_a_task_that_was_taken_over_before_its_transaction_began_does_not_run(
    sqlite_site: EffectsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Transactions.begin
    ran: list[str] = []

    def begin_late(transactions: Transactions, task: ClaimedTask) -> bool:
        sqlite_site.rows.set("claim = claim + 1")
        return begin(transactions, task)

    monkeypatch.setattr(Transactions, "begin", begin_late)
    sqlite_site.module.meanwhile = lambda: ran.append("ran")
    sqlite_site.add_args("effect", [1])
    assert (sqlite_site.run().lost, ran, sqlite_site.states()) == (1, [], [(1, 1)])


def test_on_sqlite_a_task_that_writes_past_its_transaction_is_an_error_with_a_way_out(
    sqlite_site: EffectsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for itself until its patience ends."""
    site = sqlite_site
    monkeypatch.setattr(database, "MIN_CONFLICT_SECONDS", 0.5)

    def add() -> None:
        with TaskServer(site.dsn, db_patience=1) as other:
            other.add_task("tasks.note")

    site.module.meanwhile = add
    site.add_args("effect", [1])
    site.run()
    assert (site.effects(), site.states()) == ([], [(3, 1)])
    assert re.search(r"database is locked: .*connection=taskserver\.connection\(\)", site.first_lines()[0])


# ---- a task that is interrupted


@EACH_SERVER
def test_a_task_whose_time_is_up_leaves_nothing_also_if_it_swallows_its_interrupt(site: EffectsSite) -> None:
    """Otherwise a statement, even the fence, could read the answer to the statement before it."""
    sleep = "SELECT pg_sleep(20)" if site.rows.is_postgresql else "SELECT SLEEP(20)"
    for statement, swallows in ((sleep, False), (sleep, True), ("", True)):
        site.add_args("too_long", [statement, swallows])
    site.add_args("effect", [10])
    site.run()
    assert (site.effects(), site.states()) == ([10, 110], [(3, 1)] * 3)
    first, *swallowed = site.first_lines()
    assert "TaskInterrupted" in first or "Timeout" in first
    assert all(line.startswith("TaskInterrupted: it was interrupted, and went on") for line in swallowed)
    if site.rows.is_postgresql:  # which would go on without the worker
        wait_until(lambda: site.rows.execute("SELECT 1 FROM pg_stat_activity WHERE query = ?", [sleep]) == [])


# ---- a task that ends its transaction itself, and a transaction that the database ends

COMMIT = "connection().commit()"
ENDED: dict[str, dict[str, list[int]]] = {
    # the code, and what of number and number + 1 is committed by it; a database without such a thing is left out
    COMMIT: {"sqlite": [0, 1], "mysql": [0], "postgresql": [0]},
    f"{COMMIT}; run('BEGIN')": {"sqlite": [0], "mysql": [0]},
    "connection().rollback()": {"sqlite": [1], "mysql": [], "postgresql": []},
    "connection().close()": {"sqlite": [], "mysql": [], "postgresql": []},
    "run('COMMIT AND CHAIN')": {"mysql": [0], "postgresql": [0]},
    "run(f'CREATE TABLE other_{number} (number INT)')": {"mysql": [0]},
}


@EACH_DATABASE
def test_a_task_that_ends_its_transaction_itself_is_fatal(site: EffectsSite) -> None:
    """What it committed itself stays; its completion is not committed."""
    expected, count = [], 0
    for code, committed in ENDED.items():
        if site.rows.kind in committed:
            site.add_args("end", [code, count * 10])
            expected += [count * 10 + offset for offset in committed[site.rows.kind]]
            count += 1
    site.add_args("effect", [1000])
    result = site.run()
    assert (result.done, result.fatal, site.effects()) == (1, count, [*expected, 1000, 1100])
    for status, attempts, error_text, args in site.columns("status, attempts, error_text, args"):
        assert (status, attempts) == (4, 1), args
        assert error_text.startswith(f"Fatal: {MAY_NOT}"), (args, error_text)


def run_into_deadlock(site: EffectsSite, task: str, lock_waits: Callable[[], int], is_taken: bool = False) -> None:
    """Run a task whose first transaction is the victim of a deadlock; the other one commits.

    is_taken: another worker takes the task over meanwhile.
    """
    site.rows.execute("INSERT INTO effects (number) VALUES (0), (0)")
    site.add_args(task)
    with closing(Rows(site.dsn)) as other, ExitStack() as stack:

        def finish() -> None:
            other.execute("UPDATE effects SET number = 5 WHERE id = 1")
            other.execute("COMMIT")

        def meet() -> None:
            site.module.meanwhile = lambda: site.module.heard.append("again")
            if is_taken:
                site.rows.set("claim = claim + 1")
            if other.is_postgresql:
                other.execute("SET deadlock_timeout = '1min'")  # it is the task's that finds the deadlock, and fails
            other.execute(other.begin)
            other.execute("UPDATE effects SET number = number + 1 WHERE id = 2")
            # The heavier one: it is the task's that MySQL rolls back.
            other.execute(f"INSERT INTO effects (number) VALUES {', '.join(['(-1)'] * 200)}")
            stack.enter_context(together(finish))
            wait_until(lock_waits)

        site.module.meanwhile = meet
        site.run()


@pytest.fixture
def lock_waits(database: str, request: pytest.FixtureRequest) -> Callable[[], int]:
    return request.getfixturevalue(f"{database}_server").count_lock_waits  # type: ignore[no-any-return]


@EACH_SERVER
def test_after_a_deadlock_the_task_is_called_again_in_the_same_attempt(
    site: EffectsSite, lock_waits: Callable[[], int], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        run_into_deadlock(site, "meet_deadlock", lock_waits)
    assert ({*site.effects()}, site.states(), site.module.heard) == ({-1, 7, 11, 15}, [], ["again"])
    assert "is called again, as all that it wrote was rolled back: " in caplog.text


@EACH_SERVER
def test_a_task_that_fails_for_good_after_a_deadlock_is_not_called_again(
    site: EffectsSite, lock_waits: Callable[[], int]
) -> None:
    run_into_deadlock(site, "give_up_after_deadlock", lock_waits)
    assert (site.states(), site.first_lines(), site.module.heard) == ([(4, 1)], ["Fatal: no stock"], [])


@EACH_SERVER
def test_after_a_deadlock_a_task_that_was_taken_over_is_not_called_again(
    site: EffectsSite, lock_waits: Callable[[], int]
) -> None:
    run_into_deadlock(site, "meet_deadlock", lock_waits, is_taken=True)
    assert ({*site.effects()}, site.states(), site.module.heard) == ({-1, 1, 5}, [(1, 1)], [])


@EACH_SERVER
def test_a_task_that_met_a_deadlock_and_went_on_is_not_half_committed(
    site: EffectsSite, lock_waits: Callable[[], int]
) -> None:
    """Fatal on MySQL, which rolled back everything; retried on PostgreSQL, which accepts nothing after an error."""
    run_into_deadlock(site, "swallow_deadlock", lock_waits)
    assert ({*site.effects()}, site.states()) == ({-1, 1, 5}, [(3 if site.rows.is_postgresql else 4, 1)])
    assert site.rows.is_postgresql or MAY_NOT in site.first_lines()[0]


def test_an_error_that_a_task_kept_to_itself_undoes_what_it_wrote_on_postgresql(
    make_site: Callable[..., EffectsSite], postgresql_queue_dsn: str
) -> None:
    """The server would answer COMMIT with ROLLBACK."""
    site = make_site(postgresql_queue_dsn)
    site.add_args("keep_an_error")
    site.run()
    assert (site.effects(), site.states()) == ([], [(3, 1)])
    assert site.first_lines()[0].startswith("Conflict: a statement of its transaction failed and the task went on, ")
