"""How tasks end their own transaction, or the database does: nothing is half committed."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, closing

import pytest

from tests.support.databases import EACH_DATABASE, EACH_SERVER
from tests.support.effects import EffectsSite
from tests.support.rows import Rows
from tests.support.threads import together

MAY_NOT = "a transactional task may not end its transaction itself"
CODE = """
import time

import taskserver
from taskserver import connection, task

meanwhile = lambda: None
transactional = task(transactional=True)

def run(statement):
    connection().cursor().execute(statement)

def write(number):
    run(f"INSERT INTO effects (number) VALUES ({number})")

@transactional
def effect(number):
    write(number)

@transactional
def end(code, then, number):
    write(number)
    try:
        exec(code)
    except BaseException:
        pass
    if then == "raises":
        raise ValueError("another one")
    write(number + 1)

@transactional
def act(code):
    exec(code, globals(), {})

@transactional
def meet_deadlock(then):
    run("UPDATE effects SET number = number + 10 WHERE id = 1")
    meanwhile()
    try:
        run("UPDATE effects SET number = number + 10 WHERE id = 2")
    except Exception:
        if then == "raises":
            raise
    write(7)

@task(transactional=True, timeout=0.3)
def swallow_an_interrupt(sleep):
    write(1)
    try:
        run(sleep) if sleep else time.sleep(20)
    except BaseException:
        pass
    try:
        write(2)
    except Exception:
        pass
"""
SITE = EffectsSite


# ---- a task that ends its transaction itself

COMMIT = "connection().commit()"
ROLLBACK = "connection().rollback()"
CLOSE = "connection().close()"
ENDED: dict[str, dict[str, list[int]]] = {
    # the code, and what of number and number + 1 is committed by it; a database without such a thing is left out
    COMMIT: {"sqlite": [0, 1], "mysql": [0], "postgresql": [0]},
    "run('  /* a comment */ commit')": {"sqlite": [0, 1], "mysql": [0], "postgresql": [0]},
    f"{COMMIT}; {CLOSE}": {"sqlite": [0], "mysql": [0], "postgresql": [0]},
    f"{COMMIT}; run('BEGIN')": {"sqlite": [0], "mysql": [0]},
    ROLLBACK: {"sqlite": [1], "mysql": [], "postgresql": []},
    CLOSE: {"sqlite": [], "mysql": [], "postgresql": []},
    "run('COMMIT AND CHAIN')": {"mysql": [0], "postgresql": [0]},
    "run(f'CREATE TABLE other_{number} (number INT)')": {"mysql": [0]},
    "run('SET autocommit = 1')": {"mysql": [0, 1]},
}


@EACH_DATABASE
@pytest.mark.parametrize("then", ["raises", "goes on"])
def test_a_task_that_ends_its_transaction_itself_is_fatal(site: EffectsSite, then: str) -> None:
    """What it committed before, it committed; it does not do so again, and its completion is not committed."""
    expected, count = [], 0
    for code, committed in ENDED.items():
        if site.rows.kind in committed:
            site.add_args("end", [code, then, count * 10])
            offsets = [offset for offset in committed[site.rows.kind] if then == "goes on" or not offset]
            expected += [count * 10 + offset for offset in offsets]
            count += 1
    site.add_args("effect", [1000])
    result = site.run()
    assert (result.done, result.fatal, site.effects()) == (1, count, [*expected, 1000])
    for status, attempts, error_text, args in site.columns("status, attempts, error_text, args"):
        assert (status, attempts) == (4, 1), args
        assert error_text.startswith(f"Fatal: {MAY_NOT}"), (args, error_text)


@EACH_SERVER
@pytest.mark.parametrize("is_in_a_statement", [True, False])
def test_an_interrupt_that_was_swallowed_lets_nothing_be_committed(site: EffectsSite, is_in_a_statement: bool) -> None:
    """Else a statement might get the answer to the one before it, and the fence that to a write of the task."""
    sleep = "SELECT pg_sleep(20)" if site.rows.is_postgresql else "SELECT SLEEP(20)"
    site.add_args("swallow_an_interrupt", [sleep if is_in_a_statement else ""])
    site.add_args("effect", [10])
    site.run()
    assert (site.effects(), site.states()) == ([10], [(3, 1)])
    assert site.first_lines()[0].startswith("TaskInterrupted: it was interrupted, and went on")


# ---- a transaction that the database ends


@EACH_SERVER
@pytest.mark.parametrize("then", ["raises", "goes on"])
def test_a_task_that_met_a_deadlock_is_not_half_committed(site: EffectsSite, then: str) -> None:
    """It is retried, unless it went on where MySQL had rolled back all. PostgreSQL takes nothing after an error."""
    site.rows.execute("INSERT INTO effects (number) VALUES (0), (0)")
    site.add_args("meet_deadlock", [then])
    with closing(Rows(site.dsn)) as other, ExitStack() as stack:

        def meet() -> None:
            if other.is_postgresql:
                other.execute("SET deadlock_timeout = '1min'")  # it is the task's that finds the deadlock, and fails
            other.execute(other.begin)
            other.execute("UPDATE effects SET number = number + 1 WHERE id = 2")
            # The heavier one: it is the task's that MySQL rolls back.
            other.execute(f"INSERT INTO effects (number) VALUES {', '.join(['(-1)'] * 200)}")
            stack.enter_context(together(lambda: other.execute("UPDATE effects SET number = 5 WHERE id = 1")))
            time.sleep(0.2)  # it waits for the task by then

        site.module.meanwhile = meet
        site.run()
        stack.close()
        other.execute("ROLLBACK")
    assert site.effects() == [0, 0]
    if then == "goes on" and not site.rows.is_postgresql:
        assert site.states() == [(4, 1)]
        assert MAY_NOT in site.first_lines()[0]
        return
    assert site.states() == [(3, 1)]
    site.module.meanwhile = lambda: None
    site.rows.set("due_at = created_at")
    site.run()
    assert (site.effects(), site.states()) == ([7, 10, 10], [])


KEPT = """
write(1)
try:
    run("SELECT 1 / 0")
except Exception:
    pass
"""


def test_an_error_that_a_task_kept_to_itself_undoes_what_it_wrote_on_postgresql(
    make_site: Callable[..., EffectsSite], emptied_postgresql_dsn: str
) -> None:
    """As does a COMMIT after it, which the server answers by ROLLBACK."""
    site = make_site(emptied_postgresql_dsn)
    errors = {
        KEPT: (3, "Conflict: a statement of its transaction failed and the task went on, "),
        f"{KEPT}write(2)": (3, "InFailedSqlTransaction: current transaction is aborted"),
        f"{KEPT}{COMMIT}": (4, f"Fatal: {MAY_NOT}"),
    }
    for code in errors:
        site.add_args("act", [code])
    site.add_args("act", [f"{KEPT}run('ROLLBACK TO taskserver_task'); write(4)"])  # which is well
    site.run()
    assert site.effects() == [4]
    for (status, error), row in zip(errors.values(), site.columns("status, attempts, error_text"), strict=True):
        assert row[:2] == (status, 1)
        assert row[2].startswith(error)
