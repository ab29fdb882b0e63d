"""The stats: what runs count of their tasks, and how that gets into the table.

What one run counts is looked at through worker.py as a process; what gets lost, and never twice, with workers that are
killed, with a table that others hold, and with a network that a proxy cuts.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskserver import Reason, TaskServer
from taskserver.errors import Conflict
from taskserver.messages.text import utc
from taskserver.model.task import ClaimedTask
from taskserver.stores import Store
from taskserver.stores import retrying as tries
from taskserver.stores.queue import stats
from taskserver.stores.queue.stats import COLUMNS, NO_HOUR, HourStats, Stats
from taskserver.stores.sqlite import session as sqlite
from taskserver.stores.words import Statements
from taskserver.worker import stats as run_stats
from taskserver.worker.attempt import Attempt
from taskserver.worker.stats import ANY_OTHER, MAX_STATS_KEYS, MAX_WAIT_SECONDS, RunStats
from tests.support.databases import ON_MYSQL
from tests.support.locks import are_locks_awaited, holding
from tests.support.processes import (
    WAIT_SECONDS,
    assert_silent,
    kill,
    wait_for,
    wait_until,
)
from tests.support.proxy import Matches, Proxy, contains
from tests.support.queues import LONG_AGO, Queue
from tests.support.rows import Rows
from tests.support.servers import MySQLServer
from tests.support.threads import together

MODES = ("delete", "move", "mark")
TASKS = """
import os
import time

from taskserver import Fatal, task


def quick():
    note("quick")


def sleep(seconds):
    time.sleep(seconds)


def fail():
    note("fail")
    raise ValueError("no")


def give_up():
    raise Fatal("never")


@task(max_attempts=1, on_fatal="tasks.save")
def saved():
    raise ValueError("no")


def save(error):
    note("saved")


def hold():
    note("hold")
    while not (HERE / "go").exists():
        time.sleep(0.01)


def meet(count):
    note(os.getpid())
    while len(set((HERE / "notes").read_text().split())) < count:
        time.sleep(0.01)
"""
WRITE_EACH_TIME = """
from taskserver.worker.stats import RunStats

RunStats.are_due = lambda self: True
"""
"""In tasks.py: the worker writes its figures after each task, in place of once a minute."""

COUNTS = COLUMNS[:6]
ONE_HOUR = "2026-11-22 10:00:00"

_numbers = itertools.count()


def counts(queue: Queue) -> dict[tuple[int, str], tuple[int, ...]]:
    """begun, attempts, done, failed, fatal and lost of all hours, by group and name."""
    sums = ", ".join(f"SUM({column})" for column in COUNTS)
    rows = queue.sql(f"SELECT group_id, task, {sums} FROM jobs_queue_stats GROUP BY group_id, task")
    return {(group, task): tuple(map(int, rest)) for group, task, *rest in rows}


def seconds(queue: Queue, task: str) -> dict[str, float]:
    """The other columns, for a name."""
    functions = ("SUM", "MAX", "SUM", "MAX")
    chosen = ", ".join(f"{function}({column})" for function, column in zip(functions, COLUMNS[6:], strict=True))
    (row,) = queue.sql(f"SELECT {chosen} FROM jobs_queue_stats WHERE task = ?", task)
    return dict(zip(COLUMNS[6:], row, strict=True))


# ---- what a run counts


@pytest.mark.parametrize("mode", MODES)
def test_the_figures_of_a_run_are_exactly_what_it_did(queue: Queue, mode: str) -> None:
    queue.add("tasks.quick", "[1, 2]")  # bad, which is known only after its start: nothing was imported yet
    for group in (0, 0, 0, 3, 3):
        queue.add("tasks.quick", group_id=group)
    for name in ("fail", "give_up", "saved", "nothing", "quick.quick"):
        queue.add(f"tasks.{name}")
    queue.add("elsewhere.quick")
    assert queue.worker("--mode", mode).returncode == 0
    assert counts(queue) == {
        (0, "tasks.quick"): (3, 3, 3, 0, 1, 0),
        (3, "tasks.quick"): (2, 2, 2, 0, 0, 0),
        (0, "tasks.fail"): (1, 1, 0, 1, 0, 0),
        (0, "tasks.give_up"): (1, 1, 0, 1, 1, 0),
        (0, "tasks.saved"): (1, 1, 1, 0, 0, 0),
        (0, ""): (0, 0, 0, 0, 3, 0),
    }


def test_each_attempt_is_counted_and_each_task_begins_once(queue: Queue) -> None:
    queue.add("tasks.fail")
    for _ in range(3):
        queue.worker(TASKSERVER_MAX_ATTEMPTS="3")
        queue.end_backoffs()
    assert counts(queue) == {(0, "tasks.fail"): (1, 3, 0, 3, 1, 0)}


def test_a_task_whose_module_cannot_be_imported_has_no_name_that_counts(queue: Queue) -> None:
    queue.define("1 / 0")
    queue.add("tasks.quick")
    queue.add("tasks.anything")
    queue.worker()
    assert counts(queue) == {(0, ""): (2, 2, 0, 2, 0, 0)}


def test_a_run_that_finds_no_task_writes_no_figures(queue: Queue) -> None:
    queue.run_quietly()
    assert queue.sql("SELECT * FROM jobs_queue_stats") == []


def test_the_hour_is_the_database_s_own(queue: Queue) -> None:
    queue.add("tasks.quick")
    with TaskServer(queue.dsn) as server:
        before = Stats(server.store).recent()[0].hour
        queue.worker(TZ="Asia/Kolkata")
        after = Stats(server.store).recent()[0].hour
        (found,) = server.stats()
    assert before <= found.hour <= after


def test_how_long_tasks_ran_and_waited_adds_up_and_the_slowest_one_stays(queue: Queue) -> None:
    queue.define("""
time.sleep(1)  # on nobody's account


@task(max_attempts=1, on_fatal="tasks.after")
def before():
    time.sleep(0.2)
    raise ValueError("no")


def after(error):
    time.sleep(0.2)
""")
    for name, args in (("sleep", "[0.3]"), ("sleep", "[0.1]"), ("before", None), ("quick", None)):
        queue.add(f"tasks.{name}", args)
    queue.worker()
    slept, quick = seconds(queue, "tasks.sleep"), seconds(queue, "tasks.quick")
    assert slept["ran_seconds"] >= 0.4
    assert 0.3 <= slept["slowest_seconds"] <= slept["ran_seconds"] - 0.1
    assert seconds(queue, "tasks.before")["slowest_seconds"] >= 0.4  # with what is called after its last attempt
    assert quick["slowest_seconds"] < 0.3
    assert quick["waited_seconds"] >= 0.8  # for those that its worker claimed before it


# ---- how long tasks waited

ADD_READY = "INSERT INTO jobs_queue (task, status, due_at, updated_at, created_at) VALUES ('tasks.quick', {})"
READY = (
    "0, NULL, {ready}, {ready}",  # new since it was added
    "5, {ready}, {early}, {early}",  # delayed since its time came
    "3, {ready}, {early}, {early}",  # failed since its backoff ended
)


def test_a_task_waits_from_the_instant_at_which_it_is_ready(queue: Queue) -> None:
    instants = {"ready": queue.ago(1000), "early": queue.ago(90_000)}
    for values in READY:
        queue.sql("DELETE FROM jobs_queue_stats")
        queue.sql(ADD_READY.format(values.format(**instants)))
        queue.worker()
        found = seconds(queue, "tasks.quick")
        assert 1000 <= found["waited_seconds"] < 80_000
        assert found["longest_wait_seconds"] == found["waited_seconds"]


def test_a_task_that_was_given_back_or_left_behind_has_waited_since_it_was_ready_first(queue: Queue) -> None:
    for _ in range(2):
        queue.sql(ADD_READY.format(f"0, NULL, {queue.ago(1000)}, {queue.ago(1000)}"))
    with TaskServer(queue.dsn) as server:
        first = server.store.claims.claim(1, ()).tasks
        server.store.claims.claim(1, ())
        assert server.store.claims.release(first) == 1
    queue.sql(f"UPDATE jobs_queue SET due_at = '{LONG_AGO}', updated_at = updated_at WHERE status = 1")
    queue.worker()
    assert len(queue.notes()) == 2
    assert seconds(queue, "tasks.quick")["waited_seconds"] >= 2000


def test_forged_instants_harm_no_run(queue: Queue) -> None:
    instants = ["'2037-01-01 00:00:00.000000'", "'1970-01-02 00:00:00.000000'"]
    if queue.is_sqlite:
        instants += ["'never'", "17", "X'ff'", "1e300"]
    for instant in instants:
        queue.sql(ADD_READY.format(f"0, NULL, {instant}, {instant}"))
    queue.run_quietly()
    assert counts(queue) == {(0, "tasks.quick"): (len(instants),) * 3 + (0,) * 3}
    found = seconds(queue, "tasks.quick")
    assert 0 <= found["longest_wait_seconds"] <= found["waited_seconds"] < MAX_WAIT_SECONDS


# ---- workers that vanish


def test_an_attempt_whose_worker_vanished_is_counted_by_the_one_that_takes_the_task_back(queue: Queue) -> None:
    queue.add("tasks.hold")
    for times in (1, 2):
        kill(queue.start_task())
        assert counts(queue).get((0, "tasks.hold"), (0,))[-1] == times - 1
        queue.end_leases()
        queue.worker()
        assert counts(queue) == {(0, "tasks.hold"): (1, times, 0, 0, 0, times)}
        queue.end_backoffs()
    queue.go()
    queue.worker()
    assert counts(queue) == {(0, "tasks.hold"): (1, 3, 1, 0, 0, 2)}


def test_a_lost_attempt_is_counted_though_the_worker_that_took_it_back_is_killed_too(queue: Queue) -> None:
    for _ in range(2):
        queue.add("tasks.hold")
        kill(queue.start_task(TASKSERVER_MAX_ATTEMPTS="1"))
        queue.end_leases()
    assert counts(queue) == {(0, "tasks.hold"): (1, 1, 0, 0, 1, 1)}


@pytest.mark.parametrize(
    ("code", "written"), [("", {}), (WRITE_EACH_TIME, {(0, "tasks.quick"): (2, 2, 2, 0, 0, 0)})], ids=["", "written"]
)
def test_a_killed_worker_takes_along_what_it_had_not_written_and_nothing_is_counted_twice(
    queue: Queue, code: str, written: dict[tuple[int, str], tuple[int, ...]]
) -> None:
    queue.define(code)
    for name in ("quick", "quick", "hold"):
        queue.add(f"tasks.{name}")
    process = queue.start("--batch", 3)
    wait_until(lambda: "hold" in queue.notes())
    kill(process)
    assert counts(queue) == written
    queue.end_leases()
    queue.worker()
    assert counts(queue) == {**written, (0, "tasks.hold"): (1, 1, 0, 0, 0, 1)}


@ON_MYSQL
def test_a_worker_that_is_killed_as_it_writes_has_written_nothing(queue: Queue) -> None:
    queue.define(WRITE_EACH_TIME)
    queue.add("tasks.quick")
    queue.worker()
    queue.add("tasks.quick")
    with closing(Rows(queue.dsn)) as holder:
        holder.execute(holder.begin)
        holder.execute("UPDATE jobs_queue_stats SET done = done")
        process = queue.start()
        wait_until(lambda: are_locks_awaited(queue))
        assert queue.statuses() == []  # what has ended does not wait for its figures
        kill(process)
    wait_until(lambda: not are_locks_awaited(queue))
    assert counts(queue) == {(0, "tasks.quick"): (1, 1, 1, 0, 0, 0)}


# ---- several workers


def test_what_several_workers_do_at_once_adds_up(queue: Queue) -> None:
    queue.define(WRITE_EACH_TIME)
    for number in range(30):
        queue.add("tasks.meet", "[3]", group_id=number % 2)
    for ended in [wait_for(process) for process in [queue.start("--batch", 1) for _ in range(3)]]:
        assert_silent(ended)
    assert len(set(queue.notes())) == 3
    assert counts(queue) == {(group, "tasks.meet"): (15, 15, 15, 0, 0, 0) for group in (0, 1)}


# ---- into the table


@pytest.fixture
def store(dsn: str) -> Iterator[Store]:
    with TaskServer(dsn) as server:
        server.create_tables()
        yield at_one_hour(server)


def at_one_hour(server: TaskServer, hour: str = ONE_HOUR) -> Store:
    """Its store, by whose clock it stays that hour."""
    database = server.store.database
    database.words["this_hour"] = f"'{hour}'"
    database.compose = Statements(database.words, database.dialect.with_marks).compose
    return server.store


def counted(group_id: int, task: str, done: int = 1, ran: float = 1.0, slowest: float = 1.0) -> tuple[Any, ...]:
    return (group_id, task, done, done, done, 0, 0, 0, ran, slowest, 0.0, 0.0)


def test_figures_add_up_and_the_greatest_ones_stay(store: Store) -> None:
    for ran, slowest in ((1.5, 1.0), (4.0, 3.0), (2.0, 2.0)):
        Stats(store).add([counted(3, "tasks.a", 2, ran, slowest)])
    assert Stats(store).hours() == [HourStats(utc(ONE_HOUR) or NO_HOUR, 3, "tasks.a", 6, 6, 6, 0, 0, 0, 7.5, 3.0)]


def test_each_hour_has_figures_of_its_own(dsn: str) -> None:
    with TaskServer(dsn) as server:
        server.create_tables()
        for hour in ("2026-11-22 10:00:00", "2026-11-22 11:00:00", "2026-11-22 11:00:00"):
            Stats(at_one_hour(server, hour)).add([counted(0, "tasks.a")])
        assert [(one.hour.hour, one.done) for one in server.stats()] == [(10, 1), (11, 2)]


def test_more_figures_than_a_statement_takes_are_written_all_or_none(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [counted(group, "tasks.a") for group in range(stats.MAX_ROWS_PER_STATEMENT * 3 + 1)]
    Stats(store).add(rows)
    assert [one.group_id for one in Stats(store).hours()] == [row[0] for row in rows]
    execute = store.database.execute

    def fail_late(sql: str, values: Sequence[Any] = ()) -> Any:
        if len(values) == len(rows[0]):  # the last statement's one row
            raise Conflict("in the way")
        return execute(sql, values)

    monkeypatch.setattr(store.database, "execute", fail_late)
    monkeypatch.setattr(stats, "CONFLICT_SECONDS", 0)
    with pytest.raises(Conflict):
        Stats(store).add(rows)
    assert {one.done for one in Stats(store).hours()} == {1}


def test_figures_in_whose_way_others_are_come_with_the_next_ones(
    store: Store, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "CONFLICT_SECONDS", 0.1)
    monkeypatch.setattr(sqlite, "LOCK_WAIT_SECONDS", 0.1)
    kept = RunStats(store)
    finish(kept, "tasks.a")
    kept.write()
    finish(kept, "tasks.a")
    store.close()  # it connects again with the shorter time
    with holding(dsn, table="jobs_queue_stats"):
        kept.write()
    assert [one.done for one in Stats(store).hours()] == [1]
    finish(kept, "tasks.a")
    for _ in range(2):
        kept.write()
        assert [one.done for one in Stats(store).hours()] == [3]


def finish(kept: RunStats, name: str, group_id: int = 0) -> None:
    task = ClaimedTask(1, name, None, None, 0, None, 1, group_id, 0.5)
    kept.done(Attempt(task, has_started=True), name)


def test_workers_that_write_the_same_figures_at_once_do_not_deadlock(
    dsn: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"tasks.t{number}" for number in range(40)]
    Stats(store).add(counted(0, name) for name in names)
    conflicts: list[str] = []
    entered = threading.Semaphore(0)
    go_on_after, add = tries.Tries.go_on_after, Stats.add

    def noted(self: tries.Tries, error: Any) -> bool:
        conflicts.append(str(error))
        return go_on_after(self, error)

    def announced(self: Stats, rows: Any) -> None:
        entered.release()
        add(self, rows)

    monkeypatch.setattr(tries.Tries, "go_on_after", noted)
    monkeypatch.setattr(Stats, "add", announced)

    def write_often(seed: int) -> None:
        with TaskServer(dsn) as server:
            mine = Stats(at_one_hour(server))
            for _ in range(10):
                mine.add(counted(0, name) for name in random.Random(seed).sample(names, len(names)))

    writers = (partial(write_often, seed) for seed in range(4))
    with holding(dsn, table="jobs_queue_stats") as let_go, together(*writers):
        for _ in range(4):
            assert entered.acquire(timeout=WAIT_SECONDS)
        let_go()
    assert {one.done for one in Stats(store).hours()} == {1 + 4 * 10}
    assert not [text for text in conflicts if "(1213)" in text]


# ---- names that would fill the table


ADD_LOST = f"""
    INSERT INTO jobs_queue (task, status, attempts, max_attempts, started_at, due_at)
    VALUES (?, 1, 1, 1, '{LONG_AGO}', '{LONG_AGO}')
"""


def test_names_that_nothing_is_called_by_do_not_get_into_the_table(queue: Queue) -> None:
    hostile = ["tasks.\x1b[2J", "x" * 255, "tasks.a'; DROP TABLE jobs_queue_stats; --", "tasks.ü", "", " ", "tasks.💥"]
    for name in hostile:
        queue.add(name)
    forged: list[object] = ["tasks.\x1b[2J", "tasks..x", "tasks.a b", "", "a'; --"]
    if queue.is_sqlite:
        forged.append(b"\xff\xfe")
    for lost in [*forged, "tasks.quick"]:
        queue.sql(ADD_LOST, lost)
    queue.worker()
    lost_ones = len(forged)
    assert counts(queue) == {
        (0, ""): (lost_ones, lost_ones, 0, 0, len(hostile) + lost_ones, lost_ones),
        (0, "tasks.quick"): (1, 1, 0, 0, 1, 1),
    }


def test_who_chooses_groups_at_will_does_not_fill_the_table(store: Store) -> None:
    kept = RunStats(store)
    for group in range(1, MAX_STATS_KEYS + 100):
        finish(kept, "tasks.a", group)
    for _ in range(2):
        finish(kept, "tasks.a", 1)
    kept.write()
    found = {(one.group_id, one.task): one.done for one in Stats(store).hours()}
    assert len(found) == MAX_STATS_KEYS + 1
    assert (found[ANY_OTHER], found[1, "tasks.a"]) == (99, 3)


# ---- a database that goes away


@pytest.fixture
def module(tmp_path: Path) -> str:
    name = f"stats_tasks_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text("def note(): ...\n")
    return name


Reached = tuple[TaskServer, TaskServer, Proxy]
"""A server of this process, another one that no fault strikes, and the proxy through which the first reaches its
database."""


@pytest.fixture
def reached(mysql_server: MySQLServer, module: str, tmp_path: Path) -> Iterator[Reached]:
    with mysql_server.database() as name, Proxy(mysql_server.host, mysql_server.port) as proxy:
        dsn = mysql_server.dsn(name)
        with (
            TaskServer(proxy.dsn(dsn), modules=module, folder=tmp_path) as server,
            TaskServer(dsn) as straight,
        ):
            server.create_tables()
            server.add_tasks({"task": f"{module}.note"} for _ in range(5))
            yield server, straight, proxy


def inserts() -> Matches:
    """Matches the statement that writes figures."""
    return contains(b"INTO `jobs_queue_stats`")


def their_commit() -> Matches:
    """Matches the commit that follows it."""
    has_come = False

    def matches(request: bytes) -> bool:
        nonlocal has_come
        has_come = has_come or inserts()(request)
        return has_come and request[5:] == b"COMMIT"

    return matches


CUTS: dict[str, tuple[str, Callable[[], Matches], int]] = {
    "before they are sent": ("cut_before", inserts, 0),
    "before they are committed": ("cut_after", inserts, 0),
    "as they are committed": ("cut_before", their_commit, 0),
    "after they were committed": ("cut_after", their_commit, 5),
}


@pytest.mark.parametrize(("cut", "request_of", "done"), CUTS.values(), ids=CUTS)
def test_figures_whose_connection_breaks_are_rather_lost_than_doubled_and_cost_no_task(
    reached: Reached, cut: str, request_of: Callable[[], Matches], done: int
) -> None:
    server, straight, proxy = reached
    struck = getattr(proxy, cut)(request_of())
    result = server.run()
    assert struck.has_struck
    assert (result.done, result.reason) == (5, Reason.EMPTY)
    assert straight.store.views.runs()[0].reason == "empty"
    assert sum(one.done for one in straight.stats()) == done


def test_what_is_counted_after_a_break_is_written(reached: Reached, monkeypatch: pytest.MonkeyPatch) -> None:
    server, straight, proxy = reached
    monkeypatch.setattr(run_stats, "WRITE_EVERY_SECONDS", 0)
    struck = proxy.cut_before(inserts())
    assert server.run().done == 5
    assert struck.has_struck
    assert sum(one.done for one in straight.stats()) == 4


def test_a_run_whose_database_is_gone_does_not_wait_for_it_with_its_figures(
    reached: Reached, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _, proxy = reached
    written: list[None] = []
    monkeypatch.setattr(RunStats, "write", lambda self: written.append(None))
    server.store.database._patience_seconds = 0
    proxy.cut_before(contains(b"DELETE FROM `jobs_queue`"), times=100)
    with pytest.raises(Exception, match="connection"):
        server.run()
    assert written == []


def test_a_missing_table_costs_no_task(queue: Queue) -> None:
    queue.sql("DROP TABLE jobs_queue_stats")
    for _ in range(3):
        queue.add("tasks.quick")
    assert_silent(queue.worker())
    assert len(queue.notes()) == 3


def test_a_run_writes_while_it_goes_on_and_each_task_once(
    dsn: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_stats, "WRITE_EVERY_SECONDS", 0)
    done: list[int] = []
    with TaskServer(dsn, modules=module, folder=tmp_path) as server, TaskServer(dsn) as other:
        server.create_tables()
        server.add_tasks({"task": f"{module}.note"} for _ in range(4))
        server.run(on_progress=lambda result: done.append(sum(one.done for one in other.stats())))
        assert done == [0, 1, 2, 3]
        assert sum(one.done for one in other.stats()) == 4


def test_tasks_wait_anew_from_the_instant_of_each_claim(
    sqlite_dsn: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed: list[float] = []
    monkeypatch.setattr(RunStats, "claimed", lambda self, at: claimed.append(at))
    with TaskServer(sqlite_dsn, modules=module, folder=tmp_path) as server:
        server.create_tables()
        server.add_tasks({"task": f"{module}.note"} for _ in range(3))
        began_at = time.monotonic()
        server.run(batch=1)
    assert len(set(claimed)) == 3
    assert began_at < min(claimed)
