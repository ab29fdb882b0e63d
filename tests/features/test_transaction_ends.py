"""How tasks end their own transaction, or the database does, and what they leave behind: nothing is half committed."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from tests.conftest import without
from tests.support import effects as common
from tests.support.effects import add, effects, states, with_effects
from tests.support.locks import holding
from tests.support.pgbouncer import pooled
from tests.support.processes import assert_one_line, assert_silent, end_of, wait_until
from tests.support.proxy import Proxy, contains
from tests.support.queues import Queue
from tests.support.rows import Rows
from tests.support.servers import MariaDB, MySQLServer, missing_programs
from tests.support.turns import EACH_SERVER

MAY_NOT = "a task may not end its transaction itself"
SETTINGS = common.SETTINGS
TASKS = (
    common.TASKS
    + """
kept = []

ENDINGS = {
    "commit()": lambda number: taskserver.connection().commit(),
    "COMMIT": lambda number: run("  /* a comment */ commit"),
    "COMMIT AND CHAIN": lambda number: run("COMMIT AND CHAIN"),
    "END": lambda number: run("END"),
    "BEGIN": lambda number: run("BEGIN"),
    "with": lambda number: taskserver.connection().__enter__().__exit__(None, None, None),
    "CREATE TABLE": lambda number: run(f"CREATE TABLE other_{number} (number INT)"),
    "SET autocommit": lambda number: run("SET autocommit = 1"),
    "procedure": lambda number: run("CALL commit_now()"),
    "procedure that begins": lambda number: run("CALL commit_and_begin()"),
    "commit(), close()": lambda number: (taskserver.connection().commit(), taskserver.connection().close()),
    "commit(), connect()": lambda number: (taskserver.connection().commit(), taskserver.connection().connect()),
    "FLUSH STATUS": lambda number: run("FLUSH STATUS"),
    "prepared": lambda number: [run("PREPARE it FROM 'COMMIT'"), run("EXECUTE it")],
    "executescript": lambda number: taskserver.connection().executescript("SELECT 1;"),
    "isolation_level": lambda number: setattr(taskserver.connection(), "isolation_level", None),
    "COMMIT; BEGIN": lambda number: run("COMMIT; BEGIN"),
    "commit(), autocommit": lambda number: (
        taskserver.connection().commit(), setattr(taskserver.connection(), "autocommit", True)
    ),
    "rollback(), commit()": lambda number: (
        taskserver.connection().rollback(), write(number + 2), taskserver.connection().commit()
    ),
    "rollback(), autocommit": lambda number: (
        taskserver.connection().rollback(), setattr(taskserver.connection(), "autocommit", True), write(number + 2)
    ),
    "rollback(), rollback()": lambda number: (
        taskserver.connection().rollback(), write(number + 2), taskserver.connection().rollback()
    ),
}

@transactional
def end(how, then, number):
    write(number)
    try:
        ENDINGS[how](number)
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
        if then == "raises it, later":
            run("CALL change_second()").nextset()
        else:
            run("UPDATE effects SET number = number + 10 WHERE id = 2")
    except Exception:
        if then.startswith("raises it"):
            raise
    write(7)

@transactional
def have_a_child_write(number, first=None, does="write"):
    if first is not None:
        write(first)
    child = os.fork()
    if not child:
        try:
            write(number) if does == "write" else taskserver.connection().rollback()
        except Exception:
            os._exit(1)
        os._exit(0)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 1, "the child wrote"

def write_to_what_was_kept(number):
    kept[0].cursor().execute(f"INSERT INTO effects (number) VALUES ({number})")

@transactional
def wait_for_a_lock(number, then):
    write(number)
    try:
        run("UPDATE effects SET number = 1 WHERE number = 0")
    except Exception:
        if then == "raises it":
            raise
    write(number + 1)

# ---- SQLite rolls back

WITH = "WITH n (i) AS (SELECT {}) INSERT INTO effects (number) SELECT i FROM n"
WAYS_ON = {
    "as before": write,
    "with": lambda number: run(WITH.format(number)),
    "many": lambda number: taskserver.connection().executemany("INSERT INTO effects VALUES (NULL, ?)", [(number,)]),
    "blob": lambda number: taskserver.connection().blobopen("effects", "number", 1).write(b"9"),
    "table": lambda number: run(f"CREATE TABLE made{number} (n)"),
    "begin": lambda number: (run("BEGIN"), write(number), taskserver.connection().commit()),
}

@transactional
def go_on_after_it(how, number):
    write(number)
    try:
        run("INSERT OR ROLLBACK INTO effects (number) VALUES (5000)")
    except sqlite3.Error:
        if how == "raises it":
            raise
    if how == "goes on":
        write(number + 1)
    try:
        WAYS_ON[how](number + 1)
    except Exception:
        pass

# ---- MySQL's answers

@taskserver.task(transactional=True, timeout=0.5)
def swallow_an_interrupt(then, sleep):
    write(1)
    try:
        run(sleep) if then != "outside" else time.sleep(20)
    except BaseException:
        note("struck")
    wait()
    try:
        write(2)
    except Exception:
        if then == "raises it":
            raise

@transactional
def swallow_what_cannot_be_read(number):
    connection = taskserver.connection()
    write(number)
    decoders = connection.decoders
    connection.decoders = {**decoders, **dict.fromkeys(decoders, lambda value: 1 / 0)}
    try:
        run("SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3")
    except ZeroDivisionError:
        pass
    connection.decoders = decoders

@taskserver.task(transactional=True, timeout=1)
def roll_back_in_silence():
    write(1)
    wait()
    taskserver.connection().rollback()

"""
)


@pytest.fixture
def make_queue(make_queue: Callable[..., Queue]) -> Callable[..., Queue]:
    return with_effects(make_queue)


# ---- a task that ends its transaction itself

KINDS = ("sqlite", "mysql", "postgresql")
ENDED: dict[str, tuple[list[int] | None, list[int] | None, list[int] | None]] = {
    # how, for each of KINDS: what is committed of number and number + 1; None where there is no such thing
    "commit()": ([], [0], [0]),
    "COMMIT": ([], [0], [0]),
    "COMMIT AND CHAIN": (None, [0], [0]),
    "COMMIT; BEGIN": (None, None, [0]),
    "END": ([], None, [0]),
    "BEGIN": (None, [0], None),
    "with": ([], None, [0]),
    "CREATE TABLE": (None, [0], None),
    "SET autocommit": (None, [0], None),
    "commit(), autocommit": (None, None, [0]),
    "rollback(), commit()": (None, [2], [2]),
    "rollback(), autocommit": (None, None, [2]),
    "rollback(), rollback()": (None, None, []),  # which is one too many to be known
    "procedure": (None, [0], None),
    "procedure that begins": (None, [0], None),
    "commit(), close()": (None, [0], [0]),
    "commit(), connect()": (None, [0], None),
    "FLUSH STATUS": (None, [0], None),
    "prepared": (None, [0], None),
    "executescript": ([], None, None),
    "isolation_level": ([], None, None),
}
BY_THEMSELVES = ("SET autocommit", "commit(), autocommit", "rollback(), autocommit")
"""Each statement after it is committed by itself, as it asks for."""


@pytest.mark.parametrize("then", ["raises it", "raises another", "goes on"])
def test_a_task_that_ends_its_transaction_itself_is_fatal(queue: Queue, then: str) -> None:
    """What it committed before, it committed; it does not do so again, and nothing is committed after that."""
    if queue.kind == "mysql":
        queue.sql("CREATE PROCEDURE commit_now() COMMIT")
        queue.sql("CREATE PROCEDURE commit_and_begin() BEGIN COMMIT; START TRANSACTION; END")
    cases = [(how, ended[KINDS.index(queue.kind)]) for how, ended in ENDED.items()]
    expected = []
    for index, (how, offsets) in enumerate((how, offsets) for how, offsets in cases if offsets is not None):
        add(queue, "end", how, then, index * 10)
        expected += [index * 10 + offset for offset in offsets]
        if how in BY_THEMSELVES and then != "raises another":
            expected.append(index * 10 + 1)
    add(queue, "effect", 1000)
    ended = queue.worker()
    rows = queue.rows("status, attempts, error_text, args")
    assert len(rows) == sum(offsets is not None for _, offsets in cases)
    for status, attempts, error_text, args in rows:
        assert (status, attempts) == (4, 1), (args, error_text)
        assert error_text.startswith(f"Fatal: {MAY_NOT}"), (args, error_text)
    assert len([line for line in ended.stderr.splitlines() if MAY_NOT in line]) == len(rows)
    assert effects(queue) == [*sorted(expected), 1000]
    assert MAY_NOT in queue.client("show", 1).stdout


def test_a_task_that_commits_is_shown_with_its_own_traceback_when_run_by_hand(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "end", "commit()", "raises it", 1)
    ended = sqlite_queue.client("run", 1)
    assert ended.stderr.count("Traceback (most recent call last):") == 1
    assert re.search(r"COMMIT was refused, and committed nothing\n    Traceback ", ended.stderr)
    assert ended.stdout.endswith(", and is fatal\n")


@pytest.mark.parametrize("dsn", ["sqlite", pytest.param("mysql", marks=pytest.mark.long), "postgresql"], indirect=True)
def test_a_task_that_rolls_back_or_closes_its_connection_fails_with_nothing_committed(queue: Queue) -> None:
    errors = {
        "taskserver.connection().rollback(); write(1)": "Conflict: its transaction was rolled back",
        "run('ROLLBACK'); write(1)": "Conflict: its transaction was rolled back",
        "taskserver.connection().rollback(); 1 / 0": "ZeroDivisionError: ",
        "taskserver.connection().close()": "",
    }
    for code in errors:
        add(queue, "act", f"write(0); {code}")
        add(queue, "effect", 10)
    add(queue, "act", "write(20); run('ROLLBACK TO taskserver_task'); write(21)")  # which is well
    assert_silent(queue.worker())
    assert (effects(queue), states(queue)) == ([10] * len(errors) + [21], [(3, 1)] * len(errors))
    for (code, error), line in zip(errors.items(), queue.first_lines(), strict=True):
        assert line.startswith(error), code
    assert "closed" in queue.first_lines()[-1]


def test_a_connection_that_was_kept_from_an_earlier_task_takes_nothing(queue: Queue) -> None:
    """Be it in another task, or in the next one of its kind before that begins."""
    add(queue, "act", "kept.append(taskserver.connection()); write(1)")
    add(queue, "write_to_what_was_kept", 2)
    add(queue, "note")
    add(queue, "write_to_what_was_kept", 3)
    add(queue, "effect", 4)
    assert_silent(queue.worker("--mode", "mark"))
    assert queue.statuses() == [2, 3, 2, 3, 2]
    for line in queue.first_lines()[1::2]:
        assert re.match("InterfaceError|(ProgrammingError|OperationalError): .* closed", line)
    assert effects(queue) == [1, 4]


IN_A_CHILD = """
write(1)
if not (child := os.fork()):
    try:
        taskserver.connection()
    except taskserver.TaskServerError as error:
        os._exit(7 if "forked" in str(error) else 8)
    os._exit(9)
write(os.WEXITSTATUS(os.waitpid(child, 0)[1]))
"""


@EACH_SERVER
def test_a_forked_process_is_refused_its_parent_s_connection(queue: Queue) -> None:
    add(queue, "act", IN_A_CHILD)
    assert_silent(queue.worker("--mode", "mark"))
    assert (effects(queue), queue.errors()) == ([1, 7], [""])


def test_on_sqlite_a_forked_process_cannot_write_to_its_parent_s_transaction(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "have_a_child_write", 1)
    add(sqlite_queue, "effect", 2)
    add(sqlite_queue, "have_a_child_write", 3, 3)  # by a statement that was prepared before the fork
    add(sqlite_queue, "have_a_child_write", 0, 4, "rollback")
    assert_silent(sqlite_queue.worker("--mode", "mark"))
    assert sqlite_queue.errors() == ["", "", "", ""]
    assert effects(sqlite_queue) == [2, 3, 4]


@EACH_SERVER
@pytest.mark.parametrize("is_lost", [False, True], ids=["", "lost"])
@pytest.mark.parametrize("then", ["raises it", "goes on", "outside"])
def test_an_interrupt_that_was_swallowed_lets_nothing_be_committed(queue: Queue, then: str, is_lost: bool) -> None:
    """Else a statement might get the answer to the one before it, and the fence that to a write of the task."""
    drivers, sleep = ("OperationalError", "pg_sleep") if queue.is_postgresql else ("InterfaceError", "SLEEP")
    add(queue, "swallow_an_interrupt", then, f"SELECT {sleep}(20)")
    add(queue, "effect", 10)
    worker = queue.start("--mode", "mark")
    wait_until(lambda: queue.notes() == ["struck"])
    if is_lost:
        queue.sql("UPDATE jobs_queue SET claim = claim + 1 WHERE id = 1")
    queue.go()
    code, output, errors = end_of(worker)
    assert (code, output, len(errors.splitlines())) == (0, "", int(is_lost))
    assert queue.statuses() == [1 if is_lost else 3, 2]
    if not is_lost:
        begin = drivers if then == "raises it" else "TaskInterrupted: an interrupt struck it, and it went on"
        assert queue.first_lines()[0].startswith(begin)
    assert effects(queue) == [10]


@contextmanager
def in_deadlock(queue: Queue) -> Iterator[None]:
    """In the `with`, another transaction wants what the task `meet_deadlock` has, and has what that one wants."""
    queue.sql("INSERT INTO effects (number) VALUES (0), (0)")
    with closing(Rows(queue.dsn)) as other:
        if queue.is_postgresql:
            other.execute("SET deadlock_timeout = '1min'")  # it is the task's that finds the deadlock, and fails
        other.execute(other.begin)
        other.execute("UPDATE effects SET number = number + 1 WHERE id = 2")
        # The heavier one: it is the task's that MySQL rolls back.
        other.execute(f"INSERT INTO effects (number) VALUES {', '.join(['(-1)'] * 200)}")
        wait_until(lambda: "meet_deadlock" in queue.notes())
        wanting = threading.Thread(target=other.execute, args=("UPDATE effects SET number = 5 WHERE id = 1",))
        wanting.start()
        queue.go()
        wanting.join()
        other.execute("ROLLBACK")
    yield


@pytest.mark.parametrize("then", ["raises it", "goes on"])
def test_a_task_whose_transaction_postgresql_ended_is_not_half_committed(postgresql_queue: Queue, then: str) -> None:
    queue = postgresql_queue
    add(queue, "meet_deadlock", then)
    process = queue.start(1)
    with in_deadlock(queue):
        assert end_of(process) == (0, "", "")
    assert (effects(queue), states(queue)) == ([0, 0], [(3, 1)])
    ended = "InFailedSqlTransaction: " if then == "goes on" else "DeadlockDetected: "
    assert queue.first_lines()[0].startswith(ended)
    queue.end_backoffs()
    assert_silent(queue.worker())
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
    connection = "taskserver.connection()"
    undone = "Conflict: its transaction was rolled back, and it went on: "
    errors = {
        KEPT: undone,
        f"{KEPT}write(2)": "InFailedSqlTransaction: current transaction is aborted",
        f"{KEPT}{connection}.commit()": undone,
        f"{KEPT}{connection}.commit(); write(3)": undone,
        f"{KEPT}{connection}.rollback(){KEPT}": undone,
    }
    for code in errors:
        add(queue, "act", code)
    add(queue, "act", f"{KEPT}run('ROLLBACK TO taskserver_task'); write(4)")  # which is well
    add(queue, "act", f"run('SAVEPOINT before'){KEPT}run('ROLLBACK TO before'); write(5)")
    assert_silent(queue.worker())
    assert (effects(queue), states(queue)) == ([4, 5], [(3, 1)] * len(errors))
    for error, line in zip(errors.values(), queue.first_lines(), strict=True):
        assert line.startswith(error)


def test_limits_that_a_host_set_on_sessions_end_no_task_on_postgresql(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    for name in ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"):
        queue.sql(f"ALTER DATABASE \"{queue.dsn.rpartition('/')[2]}\" SET {name} = '200ms'")
    add(queue, "act", "write(1); time.sleep(0.4); run('SELECT pg_sleep(0.4)'); write(2)")
    assert_silent(queue.worker("--mode", "mark"))
    assert (effects(queue), states(queue)) == ([1, 2], [(2, 1)])


@pytest.mark.parametrize("then", ["raises it", "raises it, later", "goes on"])
def test_a_task_that_the_server_rolled_back_is_not_half_committed(mysql_queue: Queue, then: str) -> None:
    queue = mysql_queue
    change = "UPDATE effects SET number = number + 10 WHERE id = 2"
    queue.sql(f"CREATE PROCEDURE change_second() BEGIN SELECT 1; {change}; END")
    add(queue, "meet_deadlock", then)
    process = queue.start(1)
    with in_deadlock(queue):
        assert end_of(process) == (0, "", "")
    assert (effects(queue), states(queue)) == ([0, 0], [(3, 1)])
    assert ("was rolled back, and it went on" if then == "goes on" else "1213") in queue.first_lines()[0]
    queue.end_backoffs()
    assert_silent(queue.worker())
    assert (effects(queue), states(queue)) == ([7, 10, 10], [])


def test_on_sqlite_a_table_that_it_makes_is_its_effect_too(sqlite_queue: Queue) -> None:
    add(sqlite_queue, "do", "CREATE TABLE other (number INT)")
    add(sqlite_queue, "do", "CREATE TABLE third (n INT)", "no SQL")
    assert_silent(sqlite_queue.worker())
    names = sqlite_queue.sql("SELECT name FROM sqlite_master WHERE name IN ('other', 'third')")
    assert names == [("other",)]


@pytest.fixture(scope="module")
def odd_server() -> Iterator[MariaDB]:
    """A server that undoes a whole transaction when a lock is not to be had, and takes short statements alone."""
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB(
        False, "--innodb-rollback-on-timeout=ON", "--innodb-lock-wait-timeout=1", "--max-allowed-packet=131072"
    ) as server:
        yield server


@pytest.fixture
def odd_queue(odd_server: MariaDB, make_queue: Callable[..., Queue]) -> Iterator[Queue]:
    name = odd_server.create_database()
    try:
        yield make_queue(odd_server.dsn(name))
    finally:
        odd_server.drop_database(name)


@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_a_task_may_go_to_another_database_of_the_server(mysql_queue: Queue, mode: str) -> None:
    for number in (1, 2):
        add(mysql_queue, "act", f"write({number}); run('USE information_schema')")
        add(mysql_queue, "effect", 10 * number)
    assert_silent(mysql_queue.worker("--mode", mode))
    assert effects(mysql_queue) == [1, 2, 10, 20]


@EACH_SERVER
def test_texts_come_through_a_character_set_that_a_task_chose(queue: Queue) -> None:
    add(queue, "act", """run("SET NAMES 'latin1'"); result = 'Käse 😀'""")
    add(queue, "effect", 2, "Brötchen")
    assert_silent(queue.worker("--mode", "mark"))
    results = [json.loads(result) for (result,) in queue.rows("result")]
    assert results == ["Käse 😀", "Brötchen"]


def test_a_cursor_in_the_midst_of_its_rows_keeps_no_lock(sqlite_queue: Queue) -> None:
    numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT i FROM n"
    add(sqlite_queue, "act", f"reading = run('{numbers}'); reading.fetchone(); write(1); 1 / 0")
    add(sqlite_queue, "effect", 2)
    assert_silent(sqlite_queue.worker("--mode", "mark"))
    assert sqlite_queue.statuses() == [3, 2]
    assert effects(sqlite_queue) == [2]


def test_a_task_that_a_server_rolled_back_for_a_lock_comes_again(odd_queue: Queue) -> None:
    odd_queue.sql("INSERT INTO effects (number) VALUES (0)")
    for number, then in enumerate(("raises it", "goes on"), start=1):
        add(odd_queue, "wait_for_a_lock", number * 10, then)
    with holding(odd_queue.dsn, "number = 0", "effects"):
        assert_silent(odd_queue.worker("--mode", "mark"))
    assert odd_queue.statuses() == [3, 3]
    raised, went_on = odd_queue.first_lines()
    assert raised.startswith("OperationalError: (1205, ")
    assert went_on.startswith("Conflict: its transaction was rolled back")
    assert effects(odd_queue) == [0]


def test_a_result_that_is_longer_than_the_server_takes_leaves_the_task_done(odd_queue: Queue) -> None:
    add(odd_queue, "effect", 1, "x" * 65_500)
    ended = odd_queue.worker("--mode", "mark")
    assert_one_line(ended, 0, "its result is not kept", "max_allowed_packet")
    assert odd_queue.rows("status, attempts, result") == [(2, 1, None)]
    assert effects(odd_queue) == [1]


@pytest.mark.long
def test_who_waits_for_the_lock_finds_it_free_between_two_tasks(sqlite_queue: Queue) -> None:
    for number in range(24):
        add(sqlite_queue, "act", f"write({number}); time.sleep(0.25)")
    worker = sqlite_queue.start("--mode", "mark")
    waited: list[float] = []

    def write_now_and_then() -> None:
        while worker.poll() is None:
            began_at = time.monotonic()
            with closing(sqlite3.connect(sqlite_queue.path, timeout=60, isolation_level=None)) as page:
                page.execute("INSERT INTO jobs_queue (task, group_id) VALUES ('tasks.note', 9)")
            waited.append(time.monotonic() - began_at)
            time.sleep(0.05)

    page = threading.Thread(target=write_now_and_then)
    page.start()
    assert end_of(worker) == (0, "", "")
    page.join()
    assert len(waited) > 5
    assert sorted(waited)[len(waited) // 2] < 24 * 0.25 / 3


def test_a_task_that_goes_on_after_sqlite_rolled_it_back_commits_nothing(sqlite_queue: Queue) -> None:
    ways_on = ("raises it", "goes on", "as before", "with", "many", "blob", "table", "begin")
    for how in ways_on:
        add(sqlite_queue, "go_on_after_it", how, 1)
        add(sqlite_queue, "effect", 10)
    assert_silent(sqlite_queue.worker("--mode", "mark"))
    assert sqlite_queue.statuses() == [3, 2] * len(ways_on)
    for how, line in zip(ways_on, sqlite_queue.first_lines()[::2], strict=True):
        went_on = "Conflict: its transaction was rolled back, and it went on"
        assert line.startswith("IntegrityError: " if how == "raises it" else went_on), how
    assert effects(sqlite_queue) == [10] * len(ways_on)
    assert sqlite_queue.sql("SELECT COUNT(*) FROM sqlite_master WHERE name LIKE 'made%'") == [(0,)]


def test_rows_that_could_not_be_read_are_not_taken_for_the_answer_to_the_next_statement(mysql_queue: Queue) -> None:
    add(mysql_queue, "swallow_what_cannot_be_read", 1)
    add(mysql_queue, "effect", 2)
    assert_silent(mysql_queue.worker("--mode", "mark"))
    assert mysql_queue.statuses() == [3, 2]
    assert "Packet sequence number wrong" in mysql_queue.first_lines()[0]
    assert effects(mysql_queue) == [2]


def test_a_rollback_that_gets_no_answer_is_interrupted_by_the_timeout(
    mysql_queue: Queue, mysql_server: MySQLServer
) -> None:
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        mysql_queue.deployment.write_env(TASKSERVER_DSN=proxy.dsn(mysql_queue.dsn), TASKSERVER_BACKOFF="fixed:500")
        add(mysql_queue, "roll_back_in_silence")
        cut = proxy.cut_before(contains(b"ROLLBACK"), silent=True)
        worker = mysql_queue.start("--mode", "mark")
        mysql_queue.go()
        began_at = time.monotonic()
        assert end_of(worker) == (0, "", "")
        assert cut.has_struck
        assert time.monotonic() - began_at < 15  # and not as long as the network is silent
    assert mysql_queue.statuses() == [3]
    assert mysql_queue.first_lines()[0].startswith("TaskInterrupted: ")
    assert effects(mysql_queue) == []


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


# ---- behind a pooler of transactions


def test_behind_a_pooler_of_transactions_each_task_has_its_own_transaction(postgresql_queue: Queue) -> None:
    """What ended it by a rollback is not known there, so the task is fatal; its errors are known."""
    queue = postgresql_queue
    with pooled(queue.dsn) as dsn:
        queue.deployment.write_env(TASKSERVER_DSN=dsn, **SETTINGS)
        for number in range(10):
            add(queue, "effect", number)
        add(queue, "act", f"{KEPT}write(20)")
        add(queue, "end", "commit()", "goes on", 30)
        add(queue, "act", "write(40); taskserver.connection().rollback()")
        ended = queue.worker("--mode", "mark")
    assert ended.returncode == 0
    assert len([line for line in ended.stderr.splitlines() if MAY_NOT in line]) == 2
    assert queue.statuses() == [*[2] * 10, 3, 4, 4]
    assert effects(queue) == [*range(10), 30]
