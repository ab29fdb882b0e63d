"""How tasks end their own transaction, or the database does, and what they leave behind: nothing is half committed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest

from tests.conftest import without
from tests.support import effects as common
from tests.support.databases import EACH_SERVER
from tests.support.effects import add, effects, states, with_effects
from tests.support.pgbouncer import pooled
from tests.support.processes import end_of, wait_until
from tests.support.queues import Queue
from tests.support.rows import Rows
from tests.support.servers import MariaDB, missing_programs
from tests.support.threads import together

MAY_NOT = "a transactional task may not end its transaction itself"
SETTINGS = common.SETTINGS
TASKS = (
    common.TASKS
    + """
@transactional
def end(code, then, number):
    write(number)
    try:
        exec(code)
    except BaseException:
        if then == "raises it":
            raise
    if then == "raises another":
        raise ValueError("another one")
    write(number + 1)

@transactional
def meet_deadlock(then):
    run("UPDATE effects SET number = number + 10 WHERE id = 1")
    note("meet_deadlock")
    wait()
    try:
        run("UPDATE effects SET number = number + 10 WHERE id = 2")
    except Exception as error:
        if then == "raises it":
            raise
        if then == "raises its own":
            raise ValueError("no transfer") from error
    write(7)

@taskserver.task(transactional=True, timeout=0.5)
def swallow_an_interrupt(then, sleep):
    write(1)
    try:
        run(sleep) if then != "outside" else time.sleep(20)
    except BaseException:
        note("interrupted")
    wait()
    try:
        write(2)
    except Exception:
        if then == "raises it":
            raise
"""
)


@pytest.fixture
def make_queue(make_queue: Callable[..., Queue]) -> Callable[..., Queue]:
    return with_effects(make_queue)


# ---- a task that ends its transaction itself

COMMIT = "taskserver.connection().commit()"
ROLLBACK = "taskserver.connection().rollback()"
CLOSE = "taskserver.connection().close()"
ENDED: dict[str, dict[str, list[int]]] = {
    # the code, and what of number and number + 1 is committed by it; a database without such a thing is left out
    COMMIT: {"sqlite": [0, 1], "mysql": [0], "postgresql": [0]},
    "run('  /* a comment */ commit')": {"sqlite": [0, 1], "mysql": [0], "postgresql": [0]},
    "taskserver.connection().__enter__().__exit__(None, None, None)": {"sqlite": [0, 1], "postgresql": [0]},
    f"{COMMIT}; {CLOSE}": {"sqlite": [0], "mysql": [0], "postgresql": [0]},
    f"{COMMIT}; run('BEGIN')": {"sqlite": [0], "mysql": [0]},
    ROLLBACK: {"sqlite": [1], "mysql": [], "postgresql": []},
    f"write(-1); {ROLLBACK}; {COMMIT}": {"sqlite": [1], "mysql": [], "postgresql": []},
    CLOSE: {"sqlite": [], "mysql": [], "postgresql": []},
    "run('COMMIT AND CHAIN')": {"mysql": [0], "postgresql": [0]},
    "run('COMMIT; BEGIN')": {"postgresql": [0]},
    "run('BEGIN')": {"mysql": [0]},
    "run(f'CREATE TABLE other_{number} (number INT)')": {"mysql": [0]},
    "run('SET autocommit = 1')": {"mysql": [0, 1]},
    f"{COMMIT}; taskserver.connection().connect()": {"mysql": [0]},
    "run('CALL commit_and_begin()')": {"mysql": [0]},
    "run('INSERT OR ROLLBACK INTO effects (number) VALUES (5000)')": {"sqlite": [1]},
}


@pytest.mark.parametrize("then", ["raises it", "raises another", "goes on"])
def test_a_task_that_ends_its_transaction_itself_is_fatal(queue: Queue, then: str) -> None:
    """What it committed before, it committed; it does not do so again, and its completion is not committed."""
    if queue.kind == "mysql":
        queue.sql("CREATE PROCEDURE commit_and_begin() BEGIN COMMIT; START TRANSACTION; END")
    expected, count = [], 0
    for code, committed in ENDED.items():
        if queue.kind in committed and not ("ROLLBACK INTO" in code and then == "raises it"):
            add(queue, "end", code, then, count * 10)
            goes_on = then == "goes on" or (then == "raises it" and "INTO effects (number) VALUES (5" not in code)
            expected += [count * 10 + offset for offset in committed[queue.kind] if goes_on or not offset]
            count += 1
    add(queue, "effect", 1000)
    ended = queue.worker()
    rows = queue.rows("status, attempts, error_text, args")
    assert len(rows) == count
    for status, attempts, error_text, args in rows:
        assert (status, attempts) == (4, 1), (args, error_text)
        assert error_text.startswith(f"Fatal: {MAY_NOT}"), (args, error_text)
    assert len([line for line in ended.stderr.splitlines() if MAY_NOT in line]) == count
    assert effects(queue) == [*expected, 1000]


@EACH_SERVER
@pytest.mark.parametrize("then", ["raises it", "goes on", "outside"])
def test_an_interrupt_that_was_swallowed_lets_nothing_be_committed(queue: Queue, then: str) -> None:
    """Else a statement might get the answer to the one before it, and the fence that to a write of the task."""
    sleep = "pg_sleep" if queue.is_postgresql else "SLEEP"
    add(queue, "swallow_an_interrupt", then, f"SELECT {sleep}(20)")
    add(queue, "effect", 10)
    worker = queue.start("--mode", "mark")
    wait_until(lambda: queue.notes() == ["interrupted"])
    queue.go()
    assert end_of(worker) == (0, "", "")
    assert (effects(queue), queue.statuses()) == ([10], [3, 2])
    if then != "raises it":
        assert queue.first_lines()[0].startswith("TaskInterrupted: it was interrupted, and went on")


# ---- a transaction that the database ends


@EACH_SERVER
@pytest.mark.parametrize("then", ["raises it", "raises its own", "goes on"])
def test_a_task_that_met_a_deadlock_is_not_half_committed(queue: Queue, then: str) -> None:
    """It is retried, unless it went on where MySQL had rolled back all. PostgreSQL takes nothing after an error."""
    queue.sql("INSERT INTO effects (number) VALUES (0), (0)")
    add(queue, "meet_deadlock", then)
    process = queue.start(1)
    with closing(Rows(queue.dsn)) as other:
        if queue.is_postgresql:
            other.execute("SET deadlock_timeout = '1min'")  # it is the task's that finds the deadlock, and fails
        other.execute(other.begin)
        other.execute("UPDATE effects SET number = number + 1 WHERE id = 2")
        # The heavier one: it is the task's that MySQL rolls back.
        other.execute(f"INSERT INTO effects (number) VALUES {', '.join(['(-1)'] * 200)}")
        wait_until(lambda: "meet_deadlock" in queue.notes())
        with together(lambda: other.execute("UPDATE effects SET number = 5 WHERE id = 1")):
            queue.go()
        other.execute("ROLLBACK")
    code, output, errors = end_of(process)
    assert (code, output, effects(queue)) == (0, "", [0, 0])
    if then == "goes on" and not queue.is_postgresql:
        assert MAY_NOT in errors
        assert states(queue) == [(4, 1)]
        return
    assert (errors, states(queue)) == ("", [(3, 1)])
    queue.end_backoffs()
    queue.run_quietly()
    assert (effects(queue), states(queue)) == ([7, 10, 10], [])


KEPT = """
write(1)
try:
    run("SELECT 1 / 0")
except Exception:
    pass
"""


def test_an_error_that_a_task_kept_to_itself_undoes_what_it_wrote_on_postgresql(postgresql_queue: Queue) -> None:
    """As does a COMMIT after it, which the server answers by ROLLBACK."""
    queue = postgresql_queue
    errors = {
        KEPT: (3, "Conflict: a statement of its transaction failed and the task went on, "),
        f"{KEPT}write(2)": (3, "InFailedSqlTransaction: current transaction is aborted"),
        f"{KEPT}{COMMIT}": (4, f"Fatal: {MAY_NOT}"),
    }
    for code in errors:
        add(queue, "act", code)
    add(queue, "act", f"{KEPT}run('ROLLBACK TO taskserver_task'); write(4)")  # which is well
    add(queue, "act", f"run('SAVEPOINT before'){KEPT}run('ROLLBACK TO before'); write(5)")
    queue.worker()
    assert effects(queue) == [4, 5]
    for (status, error), row in zip(errors.values(), queue.rows("status, attempts, error_text"), strict=True):
        assert row[:2] == (status, 1)
        assert row[2].startswith(error)


def test_a_renewed_lease_keeps_no_task_from_its_end_where_snapshots_are_minded(
    make_queue: Callable[..., Queue],
) -> None:
    """With statement-based replication there is no READ COMMITTED, so its transaction has a snapshot."""
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    flags = ("--log-bin", "--binlog-format=STATEMENT", "--innodb-snapshot-isolation=ON")
    with MariaDB(False, *flags) as server:
        queue = make_queue(server.dsn(server.create_database()))
        add(queue, "effect", 10)
        add(queue, "act", "run('SELECT COUNT(*) FROM effects').fetchall(); note('looked'); wait(); write(1)")
        worker = queue.start("--mode", "mark")
        wait_until(lambda: queue.notes() == ["looked"])
        queue.sql("UPDATE jobs_queue SET updated_at = NOW(6), due_at = due_at + INTERVAL 1 MINUTE WHERE status = 1")
        queue.go()
        assert end_of(worker) == (0, "", "")
        assert queue.statuses() == [2, 2]
        assert effects(queue) == [1, 10]


def test_behind_a_pooler_of_transactions_each_task_has_its_own_transaction(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    with pooled(queue.dsn) as dsn:
        queue.deployment.write_env(TASKSERVER_DSN=dsn, **SETTINGS)
        for number in range(10):
            add(queue, "effect", number)
        add(queue, "act", f"{KEPT}write(20)")
        add(queue, "end", COMMIT, "goes on", 30)
        ended = queue.worker("--mode", "mark")
    assert ended.returncode == 0
    assert queue.statuses() == [*[2] * 10, 3, 4]
    assert effects(queue) == [*range(10), 30]


# ---- what a task does to its session


# ---- SQLite
