"""What every store promises to the runner and to producers, for SQLite and for MySQL/MariaDB alike.

Rows are looked at through a connection of the tests' own (`Rows`), never through the store that is tested.
Below that come what MySQL alone has: a producer's time zone, the plan of the claim, binlog_format, dropped connections.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
import pytest

from taskserver import TaskServer
from taskserver.errors import Conflict, DatabaseError, TablesMissing, TablesOutdated
from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.new_task import NewTask
from taskserver.model.task import ClaimedTask, Due, LostTask, Status
from taskserver.stores import Store
from taskserver.stores.database.retrying import AT_ONCE, RetryPolicy, Scope
from taskserver.stores.database.statements import INLINE_ARGS_BYTES
from taskserver.stores.database.tables import SCHEMA_VERSION, schema_statements
from taskserver.stores.mysql import claiming
from taskserver.stores.mysql.dialect import MySQLDialect
from taskserver.stores.mysql.session import REPEATABLE_READ
from taskserver.stores.queue import finishes
from taskserver.stores.queue.finish_writes import RUN_AGAIN
from taskserver.stores.queue.leases import START
from tests.support.processes import wait_until
from tests.support.servers import MariaDB, MySQLServer, plain_connection

MODES = ("delete", "move", "mark")
COLUMNS = (
    "id, task, args, group_id, priority, status, attempts, max_attempts, due_at, claim, unique_key, error_text, "
    "created_at, started_at, finished_at, updated_at, version, stages, stage, awaited, "
    "result, progress"
)
LEASE_SECONDS = 120
AWAIT_SECONDS = 20.0

Row = dict[str, Any]


class Rows:
    """The database behind a DSN, seen and changed with plain SQL in UTC."""

    def __init__(self, dsn: str) -> None:
        self.is_mysql = dsn.startswith("mysql:")
        self._connection: Any
        if self.is_mysql:
            parts = urlsplit(dsn)
            self._connection = plain_connection(
                host=parts.hostname,
                port=parts.port or 3306,
                user=unquote(parts.username or ""),
                password=unquote(parts.password or ""),
                database=parts.path[1:],
                charset="utf8mb4",
                autocommit=True,
                init_command="SET time_zone = '+00:00'",
            )
        else:
            path = dsn.removeprefix("sqlite:///")
            self._connection = sqlite3.connect(path, isolation_level=None, timeout=10)

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        cursor.execute(sql)
        rows = list(cursor.fetchall()) if cursor.description else []
        cursor.close()
        return rows

    def all(self, table: str = "jobs_queue", columns: str = COLUMNS, order: str = "id") -> list[Row]:
        names = columns.split(", ")
        return [
            dict(zip(names, row, strict=True))
            for row in self.execute(f"SELECT {columns} FROM {table} ORDER BY {order}")
        ]

    def row(self, task_id: int, table: str = "jobs_queue") -> Row:
        (found,) = [row for row in self.all(table) if row["id"] == task_id]
        return found

    def after(self, seconds: float) -> str:
        """SQL for the instant so many seconds from now, by the database's clock."""
        if self.is_mysql:
            return f"NOW(6) + INTERVAL {seconds} SECOND"
        return f"strftime('%Y-%m-%d %H:%M:%f', 'now', '{seconds} seconds') || '000'"

    def seconds_from_now(self, instant: object) -> float:
        (now,) = self.execute(f"SELECT {self.after(0)}")[0]
        return (_instant(instant) - _instant(now)).total_seconds()

    def close(self) -> None:
        self._connection.close()


def _instant(value: object) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))


@pytest.fixture(scope="module")
def kept_mysql_dsn(mysql_server: MySQLServer) -> Iterator[str]:
    """One database for many tests, as making its tables anew for each takes longer than most tests."""
    with mysql_server.database() as name:
        dsn = mysql_server.dsn(name)
        with TaskServer(dsn) as server:
            server.create_tables()
        yield dsn


@pytest.fixture
def emptied_mysql_dsn(kept_mysql_dsn: str) -> str:
    rows = Rows(kept_mysql_dsn)
    tables = ("", "_done", "_workers", "_paused", "_schedules", "_stats", "_dependencies", "_schema")
    for table in (f"jobs_queue{name}" for name in tables):
        rows.execute(f"DELETE FROM {table}")
    rows.execute(f"INSERT INTO jobs_queue_schema (version) VALUES ({SCHEMA_VERSION})")
    rows.close()
    return kept_mysql_dsn


@pytest.fixture(params=["sqlite", "mysql"])
def queue_dsn(request: pytest.FixtureRequest) -> str:
    """A database whose tables are there, and empty: the test runs for SQLite and for MySQL/MariaDB."""
    if request.param == "mysql":
        return str(request.getfixturevalue("emptied_mysql_dsn"))
    dsn = str(request.getfixturevalue("sqlite_dsn"))
    with TaskServer(dsn) as server:
        server.create_tables()
    return dsn


@pytest.fixture
def open_store(queue_dsn: str) -> Iterator[Callable[..., Store]]:
    """Opens stores of the test's database: each is another worker."""
    servers: list[TaskServer] = []

    def open_one(mode: str = "delete") -> Store:
        servers.append(TaskServer(queue_dsn, mode=mode))
        return servers[-1].store

    yield open_one
    for server in servers:
        server.close()


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store()


@pytest.fixture
def rows(queue_dsn: str) -> Iterator[Rows]:
    seen = Rows(queue_dsn)
    yield seen
    seen.close()


def add(store: Store, group_id: int = 0, priority: int = 0, task: str = "tasks.send", args: str | None = None) -> int:
    return store.producing.add(NewTask(task, args, group_id, priority))


def claim(store: Store, limit: int = 100, *groups: int) -> list[ClaimedTask]:
    return store.claims.claim(limit, groups).tasks


def claim_one(store: Store) -> ClaimedTask:
    (task,) = claim(store)
    return task


def start(store: Store, task: ClaimedTask, max_attempts: int = 10) -> bool:
    return store.finishes.advance([], Start(task, max_attempts))[1]


def finish(store: Store, task: ClaimedTask, error_text: str | None = None) -> bool:
    """Whether that was done, and nothing else."""
    outcome = store.finishes.advance([Finish(task, error_text)], None)[0][0]
    assert outcome in (Outcome.LOST, Outcome.AS_ASKED)
    return outcome == Outcome.AS_ASKED


def ids(tasks: list[ClaimedTask]) -> list[int]:
    return [task.id for task in tasks]


# ---- add → claim


def test_an_added_task_is_new_and_has_the_defaults_of_the_contract(store: Store, rows: Rows) -> None:
    task_id = store.producing.add(NewTask("tasks.send", '{"to":"ä\\\\%s ?"}', 3, -7))
    row = rows.row(task_id)
    assert rows.seconds_from_now(row.pop("created_at")) == pytest.approx(0, abs=30)
    assert rows.seconds_from_now(row.pop("updated_at")) == pytest.approx(0, abs=30)
    assert row == {
        "id": task_id,
        "task": "tasks.send",
        "args": '{"to":"ä\\\\%s ?"}',
        "group_id": 3,
        "priority": -7,
        "status": Status.NEW,
        "attempts": 0,
        **dict.fromkeys(("max_attempts", "due_at", "claim", "unique_key", "error_text", "started_at", "finished_at")),
        "version": None,
        "stages": None,
        "stage": 0,
        "awaited": 0,
        "result": None,
        "progress": None,
    }


def test_a_claim_takes_tasks_by_priority_then_id_across_groups(store: Store) -> None:
    order = [(3, 5), (5, 5), (6, -1), (3, -1), (5, 0), (6, -2_147_483_648), (3, 2_147_483_647), (5, -1), (6, 5)]
    added = [(priority, add(store, group, priority)) for group, priority in order]
    assert ids(claim(store, 100, 3, 5, 6)) == [task_id for _, task_id in sorted(added)]


def test_a_claim_without_groups_takes_tasks_of_all_in_the_same_order(store: Store) -> None:
    added = [(priority, add(store, group, priority)) for group, priority in [(9, 1), (0, 0), (4_294_967_295, -3)]]
    assert ids(claim(store)) == [task_id for _, task_id in sorted(added)]


@pytest.mark.parametrize("groups", [(), (3, 5)])
def test_a_claim_takes_at_most_its_limit_and_the_first_ones_of_all_groups(store: Store, groups: tuple[int]) -> None:
    # Of equal priority the one of the later group has the smaller id.
    added = [(priority, add(store, group, priority)) for group in (5, 3) for priority in (2, 1, 0)]
    in_order = [task_id for _, task_id in sorted(added)]
    assert ids(claim(store, 3, *groups)) == in_order[:3]
    assert ids(claim(store, 2, *groups)) == in_order[3:5]
    assert ids(claim(store, 2, *groups)) == in_order[5:]
    assert claim(store, 2, *groups) == []


def test_a_claim_leaves_other_groups_alone(store: Store, rows: Rows) -> None:
    other, ours = add(store, 4, -100), add(store, 3, 100)
    assert ids(claim(store, 100, 3, 5)) == [ours]
    assert rows.row(other)["status"] == Status.NEW
    assert claim(store, 100, 5) == []


def test_a_claim_writes_its_token_and_its_lease_and_counts_no_attempt(store: Store, rows: Rows) -> None:
    task_id = add(store)
    task = claim_one(store)
    row = rows.row(task_id)
    assert (row["status"], row["claim"], row["attempts"], row["started_at"]) == (1, task.claim, 0, None)
    assert rows.seconds_from_now(row["due_at"]) == pytest.approx(LEASE_SECONDS, abs=30)


def test_each_claim_has_a_token_of_its_own(store: Store) -> None:
    for _ in range(20):
        add(store)
    tokens = {claim(store, 1)[0].claim for _ in range(20)}
    assert len(tokens) == 20


def test_a_claim_tells_what_the_row_says(store: Store, rows: Rows) -> None:
    task_id = add(store, 3, -4, "tasks.send", '["ü"]')
    rows.execute("UPDATE jobs_queue SET attempts = 2, max_attempts = 7")
    task = claim_one(store)
    assert task._replace(waited_seconds=0) == ClaimedTask(task_id, "tasks.send", '["ü"]', 6, 2, 7, task.claim, 3)
    assert task.waited_seconds == pytest.approx(0, abs=30)


@pytest.mark.parametrize("status", [1, 2, 3, 4, 5])
def test_a_claim_takes_new_rows_alone(store: Store, rows: Rows, status: int) -> None:
    add(store)
    rows.execute(f"UPDATE jobs_queue SET status = {status}")
    before = rows.all()
    assert store.claims.claim(100, ()) == ([], 0)
    assert not store.claims.has_new(())
    assert rows.all() == before


def test_has_new_sees_new_rows_of_its_groups_alone(store: Store) -> None:
    assert not store.claims.has_new(())
    add(store, 3)
    assert store.claims.has_new(())
    assert store.claims.has_new((3,))
    assert store.claims.has_new((5, 3))
    assert not store.claims.has_new((5, 6))
    claim_one(store)
    assert not store.claims.has_new(())


# ---- due dates


def test_a_new_row_whose_time_lies_ahead_waits_and_is_woken_when_it_is_due(store: Store, rows: Rows) -> None:
    later, now = add(store, priority=-1), add(store)
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(3600)} WHERE id = {later}")
    due_at = rows.row(later)["due_at"]
    claimed = store.claims.claim(100, ())
    assert (ids(claimed.tasks), claimed.changed) == ([now], 2)
    row = rows.row(later)
    assert (row["status"], row["due_at"], row["claim"], row["attempts"]) == (5, due_at, None, 0)
    assert store.due.wake(store.due.look().to_wake) == 0
    assert store.claims.claim(100, ()) == ([], 0)
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(-1)} WHERE id = {later}")
    assert store.due.wake(store.due.look().to_wake) == 1
    assert (rows.row(later)["status"], rows.row(later)["due_at"]) == (0, None)
    assert ids(claim(store)) == [later]


def test_a_claim_that_meets_only_rows_whose_time_lies_ahead_says_that_it_changed_rows(store: Store, rows: Rows) -> None:
    for _ in range(3):
        add(store)
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(3600)}")
    assert store.claims.claim(2, ()) == ([], 2)
    assert store.claims.claim(2, ()) == ([], 1)
    assert store.claims.claim(2, ()) == ([], 0)


def test_a_new_row_whose_time_has_come_is_claimed_without_a_wake(store: Store, rows: Rows) -> None:
    task_id = add(store)
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(-1)}")
    assert ids(claim(store)) == [task_id]


def test_waiting_and_failed_rows_are_woken_when_due(store: Store, rows: Rows) -> None:
    for status in (3, 5):
        for seconds in (-10, 3600):
            task_id = add(store)
            rows.execute(f"UPDATE jobs_queue SET status={status}, due_at={rows.after(seconds)} WHERE id = {task_id}")
    assert store.due.wake(store.due.look().to_wake) == 2
    assert [row["status"] for row in rows.all()] == [0, 3, 0, 5]


@pytest.mark.parametrize("status", [3, 5])
def test_a_row_that_is_not_due_any_more_when_it_is_written_is_not_woken(store: Store, rows: Rows, status: int) -> None:
    task_id = add(store)
    rows.execute(f"UPDATE jobs_queue SET status = {status}, due_at = {rows.after(60)}")
    assert store.due.wake([task_id]) == 0
    assert rows.all()[0]["status"] == status


def test_a_task_that_was_started_again_since_the_look_is_not_taken_back(store: Store, rows: Rows) -> None:
    add(store)
    [task] = claim(store)
    assert start(store, task)
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(-10)}")
    [lost] = store.due.look().lost
    for change in ("attempts = 2", "max_attempts = 7", f"due_at = {rows.after(60)}", "started_at = NULL"):
        rows.execute(f"UPDATE jobs_queue SET {change}")
        assert not store.due.reclaim_lost(lost, 1, "lost: x", None)
        as_it_was = f"attempts = 1, max_attempts = 10, due_at = {rows.after(-10)}, started_at = created_at"
        rows.execute(f"UPDATE jobs_queue SET {as_it_was}")
    assert store.due.reclaim_lost(lost, 1, "lost: x", None)


def test_an_unstarted_task_that_was_claimed_again_since_the_look_is_not_taken_back(
    open_store: Callable[..., Store], rows: Rows
) -> None:
    first, second, third = open_store(), open_store(), open_store()
    task_id = add(first)
    late = claim_one(first)
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(-10)}")
    look = third.due.look()
    assert look.unstarted == [task_id]
    assert first.claims.release([late]) == 1
    claim_one(second)
    before = rows.all()
    assert third.due.reclaim_unstarted(look.unstarted) == 0
    assert rows.all() == before
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(-10)}")
    assert third.due.reclaim_unstarted(look.unstarted) == 1
    assert rows.all("jobs_queue", "status, attempts, claim, due_at") == [
        {"status": 0, "attempts": 0, "claim": None, "due_at": None}
    ]


@pytest.mark.parametrize("due_at", ["NULL", "long ago"])
def test_a_row_that_is_no_unstarted_claim_any_more_when_it_is_written_is_not_taken_back(
    store: Store, rows: Rows, due_at: str
) -> None:
    """Cancelled, done, failed or put off by a person meanwhile, or started by its worker after all."""
    for _ in range(6):
        add(store)
    unstarted = ids(claim(store))
    for status, task_id in zip((0, 2, 3, 4, 5), unstarted, strict=False):
        rows.execute(f"UPDATE jobs_queue SET status = {status}, claim = NULL WHERE id = {task_id}")
    rows.execute(f"UPDATE jobs_queue SET started_at = created_at WHERE id = {unstarted[-1]}")
    rows.execute(f"UPDATE jobs_queue SET due_at = {'NULL' if due_at == 'NULL' else rows.after(-10)}")
    before = rows.all()
    assert store.due.reclaim_unstarted(unstarted) == 0
    assert rows.all() == before


def test_what_is_due_is_found_in_portions_the_oldest_of_each_kind_first(store: Store, rows: Rows) -> None:
    """However much it is: no statement reads or writes more than some hundreds of rows, so nobody waits for it long."""
    most, count, older = 500, 600, 5
    past = f"due_at = {rows.after(-10)}"
    kinds = {
        "failed": f"status = 3, {past}",
        "failed, forged": "status = 3, due_at = NULL",
        "waiting": f"status = 5, {past}",
        "unstarted": f"status = 1, claim = 7, {past}",
        "unstarted, forged": "status = 1, claim = 7, due_at = NULL",
        "lost": f"status = 1, claim = 7, started_at = created_at, {past}",
    }
    oldest: set[int] = set()
    for kind, values in kinds.items():
        added = add_many(store, [NewTask(kind, None, 0, 0)] * count)
        rows.execute(f"UPDATE jobs_queue SET {values} WHERE task = '{kind}'")
        if past in values:
            last = added[-older:]
            rows.execute(
                f"UPDATE jobs_queue SET due_at = {rows.after(-3600)} WHERE id BETWEEN {last[0]} AND {last[-1]}"
            )
            oldest.update(last)
    look = store.due.look()
    found = [*look.to_wake, *look.unstarted, *(lost.id for lost in look.lost)]
    kind_of = {row["id"]: row["task"] for row in rows.all(columns="id, task")}
    portions = Counter(kind_of[task_id] for task_id in found)
    assert portions.keys() == kinds.keys()
    assert max(portions.values()) <= most
    assert oldest <= set(found)
    assert store.due.wake(look.to_wake) == len(look.to_wake)
    assert store.due.reclaim_unstarted(look.unstarted) == len(look.unstarted)


@pytest.mark.parametrize(("status", "woken"), [(3, 1), (5, 0)])
def test_of_rows_without_a_due_date_those_that_failed_are_woken_and_those_that_wait_go_on(
    store: Store, rows: Rows, status: int, woken: int
) -> None:
    add(store)
    rows.execute(f"UPDATE jobs_queue SET status = {status}, due_at = NULL")
    assert store.due.wake(store.due.look().to_wake) == woken
    assert rows.all()[0]["status"] == (0 if woken else status)


@pytest.mark.parametrize("status", [1, 2, 4])
def test_rows_that_are_neither_waiting_nor_failed_are_not_woken(store: Store, rows: Rows, status: int) -> None:
    add(store)
    rows.execute(f"UPDATE jobs_queue SET status = {status}, due_at = {rows.after(-10)}")
    assert store.due.wake(store.due.look().to_wake) == 0
    assert rows.all()[0]["status"] == status


# ---- start, finish


def test_a_start_counts_the_attempt_and_stamps_the_row(store: Store, rows: Rows) -> None:
    task_id = add(store)
    task = claim_one(store)
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(5)}")
    assert start(store, task, max_attempts=4)
    row = rows.row(task_id)
    assert (row["status"], row["attempts"], row["max_attempts"], row["claim"]) == (1, 1, 4, task.claim)
    assert rows.seconds_from_now(row["started_at"]) == pytest.approx(0, abs=30)
    lease = _instant(row["due_at"]) - _instant(row["started_at"])
    assert lease.total_seconds() == pytest.approx(LEASE_SECONDS, abs=1)


def test_a_task_starts_once_a_claim(store: Store, rows: Rows) -> None:
    task_id = add(store)
    task = claim_one(store)
    assert start(store, task)
    assert not start(store, task)
    assert rows.row(task_id)["attempts"] == 1


def test_a_completed_task_is_deleted_in_mode_delete(store: Store, rows: Rows) -> None:
    add(store)
    task = claim_one(store)
    assert start(store, task)
    assert finish(store, task)
    assert rows.all() == []
    assert rows.all("jobs_queue_done") == []


def test_a_completed_task_is_marked_in_mode_mark(open_store: Callable[..., Store], rows: Rows) -> None:
    store = open_store("mark")
    add(store, args="[1]")
    rows.execute("UPDATE jobs_queue SET error_text = 'ValueError: the time before'")
    task = claim_one(store)
    assert start(store, task)
    before = rows.all()[0]
    assert finish(store, task)
    row = rows.all()[0]
    assert rows.seconds_from_now(row["finished_at"]) == pytest.approx(0, abs=30)
    changed = {"status": 2, "claim": None, "due_at": None, "error_text": None}
    clocks = {name: row[name] for name in ("finished_at", "updated_at")}
    assert row == before | changed | clocks
    assert rows.all("jobs_queue_done") == []


def test_a_completed_task_moves_to_the_archive_with_all_its_columns(
    open_store: Callable[..., Store], rows: Rows
) -> None:
    store = open_store("move")
    add(store, 3, -9, "tasks.send", '{"to":"ä"}')
    rows.execute("UPDATE jobs_queue SET unique_key = 'k', error_text = 'ValueError: x', attempts = 2")
    task = claim_one(store)
    assert start(store, task, 8)
    before = rows.all()[0]
    assert finish(store, task)
    assert rows.all() == []
    (row,) = rows.all("jobs_queue_done")
    assert rows.seconds_from_now(row["finished_at"]) == pytest.approx(0, abs=30)
    changed = {"status": 2, "claim": None, "due_at": None, "error_text": None}
    assert row == before | changed | {name: row[name] for name in ("finished_at", "updated_at")}


def test_archived_tasks_of_the_same_id_and_key_stand_side_by_side(open_store: Callable[..., Store], rows: Rows) -> None:
    # Old servers give the id of a deleted row again after a restart.
    store = open_store("move")
    for args in ("[1]", "[2]"):
        rows.execute(f"INSERT INTO jobs_queue (id, task, args, unique_key) VALUES (7, 'tasks.send', '{args}', 'k')")
        task = claim_one(store)
        assert start(store, task)
        assert finish(store, task)
    assert rows.execute("SELECT id, args FROM jobs_queue_done ORDER BY done_id") == [(7, "[1]"), (7, "[2]")]
    shown = store.views.show(7)
    assert shown is not None
    assert (shown.args, shown.archived) == ("[2]", True)


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_task_stays_as_fatal_with_its_error_in_every_mode(
    open_store: Callable[..., Store], rows: Rows, mode: str
) -> None:
    store = open_store(mode)
    add(store)
    task = claim_one(store)
    assert start(store, task)
    error_text = "ValueError: ä 🦊 %s '\\\n" + "x" * 900
    assert finish(store, task, error_text)
    row = rows.all()[0]
    assert (row["status"], row["claim"], row["due_at"], row["attempts"]) == (4, None, None, 1)
    assert row["error_text"] == error_text
    assert rows.seconds_from_now(row["finished_at"]) == pytest.approx(0, abs=30)
    assert rows.all("jobs_queue_done") == []
    assert not store.claims.has_new(())


def test_an_error_text_of_a_thousand_wide_characters_fits(store: Store, rows: Rows) -> None:
    add(store)
    assert finish(store, claim_one(store), "🦊" * 1000)
    assert rows.all()[0]["error_text"] == "🦊" * 1000


def test_a_task_may_be_failed_before_it_was_started(store: Store, rows: Rows) -> None:
    add(store)
    assert finish(store, claim_one(store), "BadTask: no such callable")
    assert (rows.all()[0]["status"], rows.all()[0]["attempts"]) == (4, 0)


# ---- the fence


@pytest.fixture
def stale(store: Store, rows: Rows) -> ClaimedTask:
    """A task whose claim was taken away, and which another worker has claimed since."""
    add(store)
    task = claim_one(store)
    rows.execute("UPDATE jobs_queue SET status = 0, claim = NULL, due_at = NULL")
    assert claim_one(store).claim != task.claim
    return task


def test_a_stale_token_starts_nothing(store: Store, rows: Rows, stale: ClaimedTask) -> None:
    before = rows.all()
    assert not start(store, stale)
    assert rows.all() == before


@pytest.mark.parametrize("error_text", [None, "ValueError: x"])
@pytest.mark.parametrize("mode", MODES)
def test_a_stale_token_finishes_nothing(
    open_store: Callable[..., Store], rows: Rows, stale: ClaimedTask, mode: str, error_text: str | None
) -> None:
    before = rows.all()
    assert not finish(open_store(mode), stale, error_text)
    assert rows.all() == before
    assert rows.all("jobs_queue_done") == []


def test_a_stale_token_releases_nothing(store: Store, rows: Rows, stale: ClaimedTask) -> None:
    before = rows.all()
    assert store.claims.release([stale]) == 0
    assert rows.all() == before


def test_a_stale_token_reads_no_arguments(store: Store, rows: Rows) -> None:
    add(store, args=f'["{"x" * INLINE_ARGS_BYTES}"]')
    task = claim_one(store)
    rows.execute("UPDATE jobs_queue SET claim = claim + 1")
    assert store.claims.fetch_args(task) is None


def test_a_claim_that_ran_out_and_was_not_taken_back_may_still_start_and_finish(store: Store, rows: Rows) -> None:
    add(store)
    task = claim_one(store)
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(-3600)}")
    assert start(store, task)
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(-3600)}")
    assert finish(store, task)
    assert rows.all() == []


@pytest.mark.parametrize("mode", MODES)
def test_a_row_that_was_deleted_meanwhile_is_neither_started_nor_finished(
    open_store: Callable[..., Store], rows: Rows, mode: str
) -> None:
    store = open_store(mode)
    add(store)
    task = claim_one(store)
    rows.execute("DELETE FROM jobs_queue")
    assert store.finishes.advance([Finish(task, None)], Start(task, 1)) == ([Outcome.LOST], False)
    assert rows.all("jobs_queue_done") == []


@pytest.mark.parametrize("mode", MODES)
def test_a_finish_and_the_next_start_are_judged_each_by_its_own_claim(
    open_store: Callable[..., Store], rows: Rows, mode: str
) -> None:
    store = open_store(mode)
    first, second, third = (add(store) for _ in range(3))
    tasks = claim(store)
    assert start(store, tasks[0])
    rows.execute(f"UPDATE jobs_queue SET claim = claim + 1 WHERE id = {second}")
    assert store.finishes.advance([Finish(tasks[0], None)], Start(tasks[1], 10)) == ([Outcome.AS_ASKED], False)
    assert rows.row(second)["attempts"] == 0
    assert store.finishes.advance([Finish(tasks[1], None)], Start(tasks[2], 10)) == ([Outcome.LOST], True)
    assert rows.row(second)["status"] == Status.IN_PROGRESS
    assert rows.row(third)["attempts"] == 1
    queued = {row["id"]: row["status"] for row in rows.all()}
    archived = [row["id"] for row in rows.all("jobs_queue_done")]
    assert queued.get(first) == (Status.DONE if mode == "mark" else None)
    assert archived == ([first] if mode == "move" else [])


@pytest.mark.parametrize("mode", MODES)
def test_a_finish_and_the_next_start_are_one_commit(
    open_store: Callable[..., Store], rows: Rows, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(mode)
    for _ in range(2):
        add(store)
    tasks = claim(store)
    assert start(store, tasks[0])
    before = rows.all()
    # The start fails in the database, after the finish took effect there: no row may show that.
    monkeypatch.setattr(finishes, "START", START.replace("started_at = {now}", "no_such_column = {now}"))
    with pytest.raises(DatabaseError, match="no_such_column"):
        store.finishes.advance([Finish(tasks[0], None)], Start(tasks[1], 10))
    assert rows.all() == before
    assert rows.all("jobs_queue_done") == []
    monkeypatch.undo()
    assert store.finishes.advance([Finish(tasks[0], None)], Start(tasks[1], 10)) == ([Outcome.AS_ASKED], True)


def test_many_finishes_are_answered_in_their_order(store: Store, rows: Rows) -> None:
    for _ in range(4):
        add(store)
    tasks = claim(store)
    rows.execute(f"UPDATE jobs_queue SET claim = claim + 1 WHERE id IN ({tasks[0].id}, {tasks[2].id})")
    finishes = [Finish(tasks[0], None), Finish(tasks[1], None), Finish(tasks[2], "E: x"), Finish(tasks[3], "E: y")]
    assert store.finishes.advance(finishes, None) == (
        [Outcome.LOST, Outcome.AS_ASKED, Outcome.LOST, Outcome.AS_ASKED],
        False,
    )
    assert [(row["id"], row["status"]) for row in rows.all()] == [
        (tasks[0].id, 1),
        (tasks[2].id, 1),
        (tasks[3].id, 4),
    ]


# ---- release


def test_released_tasks_stand_in_their_old_place_with_nothing_counted(store: Store, rows: Rows) -> None:
    order = [(3, 5), (5, 0), (3, -1), (5, 5), (3, 0)]
    added = [(priority, add(store, group, priority)) for group, priority in order]
    rows.execute("UPDATE jobs_queue SET attempts = 3, max_attempts = 9, error_text = 'ValueError: before'")
    before = rows.all()
    assert store.claims.release(claim(store, 3, 3, 5)) == 3
    after = rows.all()
    for row in before + after:
        del row["updated_at"]
    assert after == before
    assert ids(claim(store, 100, 3, 5)) == [task_id for _, task_id in sorted(added)]


def test_a_started_task_is_not_released(store: Store, rows: Rows) -> None:
    for _ in range(3):
        add(store)
    tasks = claim(store)
    assert start(store, tasks[1])
    assert store.claims.release(tasks) == 2
    assert [row["status"] for row in rows.all()] == [0, 1, 0]


def test_a_thousand_tasks_can_be_released(store: Store, rows: Rows) -> None:
    store.producing.add_many((NewTask("tasks.send", None, 0, 0) for _ in range(1000)), lambda added: None)
    tasks = claim(store, 1000)
    assert len(tasks) == 1000
    assert store.claims.release(tasks) == 1000
    assert rows.execute("SELECT status, COUNT(*) FROM jobs_queue GROUP BY status") == [(0, 1000)]


# ---- long arguments


@pytest.mark.parametrize("letter", ["x", "ä", "🦊"])
def test_arguments_are_left_in_the_database_by_their_bytes(store: Store, letter: str) -> None:
    width = len(letter.encode())
    count = (INLINE_ARGS_BYTES - 4) // width
    fits = '["' + letter * count + '"]' + " " * ((INLINE_ARGS_BYTES - 4) % width)
    assert len(fits.encode()) == INLINE_ARGS_BYTES
    add(store, args=fits)
    add(store, args=fits + " ")
    short, long = claim(store)
    assert (short.args, short.args_bytes) == (fits, INLINE_ARGS_BYTES)
    assert (long.args, long.args_bytes) == (None, INLINE_ARGS_BYTES + 1)
    assert store.claims.fetch_args(long) == fits + " "


def test_arguments_of_a_mebibyte_come_back_unchanged(store: Store) -> None:
    args = '["' + "\\\\" * (512 * 1024 - 2) + '"]'
    add(store, args=args)
    task = claim_one(store)
    assert (task.args, task.args_bytes) == (None, 1024 * 1024)
    assert store.claims.fetch_args(task) == args


def test_a_task_without_arguments_has_none(store: Store) -> None:
    add(store)
    add(store, args="")
    none, empty = claim(store)
    assert (none.args, none.args_bytes) == (None, None)
    assert (empty.args, empty.args_bytes) == ("", 0)


# ---- add_many


def add_many(store: Store, tasks: Iterator[NewTask] | list[NewTask]) -> list[int]:
    added: list[int] = []
    store.producing.add_many(tasks, added.extend)
    return added


def test_many_tasks_are_added_in_order_with_the_ids_that_the_rows_have(store: Store, rows: Rows) -> None:
    first = add(store)
    added = add_many(store, (NewTask("tasks.send", f"[{n}]", n % 7, -n) for n in range(2500)))
    assert rows.execute(f"SELECT id, args, group_id, priority FROM jobs_queue WHERE id <> {first} ORDER BY id") == [
        (task_id, f"[{n}]", n % 7, -n) for n, task_id in enumerate(added)
    ]
    assert len(added) == 2500


def test_no_tasks_at_all_can_be_added(store: Store, rows: Rows) -> None:
    assert add_many(store, []) == []
    assert rows.all() == []


def test_an_error_in_the_iterator_leaves_none_of_the_tasks(store: Store, rows: Rows) -> None:
    def broken() -> Iterator[NewTask]:
        for number in range(2300):
            yield NewTask("tasks.send", f"[{number}]", 0, 0)
        raise ValueError("line 2301")

    with pytest.raises(ValueError, match="line 2301"):
        add_many(store, broken())
    assert rows.all() == []
    assert add_many(store, [NewTask("tasks.send", None, 0, 0)]) == [row["id"] for row in rows.all()]


def test_a_row_that_the_database_refuses_leaves_none_of_the_tasks(store: Store, rows: Rows) -> None:
    tasks = [NewTask("tasks.send", None, 0, 0) for _ in range(1500)] + [NewTask("tasks.send", None, -1, 0)]
    with pytest.raises(DatabaseError):
        add_many(store, tasks)
    assert rows.all() == []


@pytest.mark.parametrize("letter", ["x", '"', "ä", "🦊"], ids=["ascii", "quotes", "two-bytes", "four-bytes"])
def test_tasks_with_long_arguments_are_split_into_statements_by_their_bytes(
    store: Store, rows: Rows, letter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = letter * (300_000 // len(letter.encode()))
    statements: list[Sequence[NewTask]] = []
    insert = store.producing._adding.insert

    def note_and_insert(tasks: Sequence[NewTask]) -> Sequence[int]:
        statements.append(tasks)
        return insert(tasks)

    monkeypatch.setattr(store.producing._adding, "insert", note_and_insert)
    added = add_many(store, (NewTask("tasks.send", f"{n}{args}", 0, 0) for n in range(5)))
    assert rows.execute("SELECT id, args FROM jobs_queue ORDER BY id") == [
        (task_id, f"{n}{args}") for n, task_id in enumerate(added)
    ]
    # A statement stays below the mebibyte that some servers take, its quoting included; SQLite has none.
    assert max(map(len, statements)) * 300_000 <= 1024 * 1024 or not rows.is_mysql


# ---- keys: while a row has one, adding does nothing


def keyed(key: str | None = "k", args: str | None = None, **given: Any) -> NewTask:
    return NewTask("tasks.send", args, 0, 0, unique_key=key)._replace(**given)


def rerun(args: str | None = None, **given: Any) -> NewTask:
    return keyed(args=args, rerun=True, **given)


STATES: dict[str, str] = {
    "new": "",
    "delayed": "status = 5, due_at = {future}",
    "waiting for other tasks": "status = 5",
    "claimed": "status = 1, claim = 7, due_at = {future}",
    "started": "status = 1, claim = 7, due_at = {future}, started_at = created_at, attempts = 2, max_attempts = 3",
    "to be retried": "status = 3, due_at = {future}, started_at = created_at, attempts = 2, error_text = 'E: x'",
    "fatal": "status = 4, started_at = created_at, finished_at = created_at, attempts = 3, error_text = 'E: x'",
    "cancelled": "status = 4, finished_at = created_at, error_text = 'cancelled'",
    "lost": "status = 4, claim = 7, attempts = 1, max_attempts = 1, started_at = created_at, error_text = 'lost: x'",
    "done": "status = 2, started_at = created_at, finished_at = created_at, attempts = 1",
}
"""What a row with a key may be in the midst of."""


def put_into(rows: Rows, state: str) -> Row:
    """The only row, made to be in this state, as it was added long ago."""
    as_added = (
        "task = 'tasks.send', args = '[1]', group_id = 0, priority = 0, status = 0, attempts = 0, max_attempts = NULL, "
        "due_at = NULL, claim = NULL, error_text = NULL, started_at = NULL, finished_at = NULL"
    )
    rows.execute(f"UPDATE jobs_queue SET {as_added}, created_at = {rows.after(-500)}")
    changes = STATES[state].format(future=rows.after(3600))
    rows.execute(f"UPDATE jobs_queue SET updated_at = {rows.after(-500)}{', ' if changes else ''}{changes}")
    (row,) = rows.all()
    return row


def test_a_key_that_stands_keeps_its_row_as_it_is_whatever_its_state(store: Store, rows: Rows) -> None:
    first = store.producing.add(keyed(args="[1]"))
    for state in STATES:
        before = put_into(rows, state)
        assert store.producing.add(keyed(args="[2]", group_id=9, max_attempts=1, delay_seconds=60.0)) == first
        assert add_many(store, [keyed(args="[3]"), keyed(args="[4]")]) == [first, first]
        assert rows.all() == [before], state


def test_keys_are_told_apart_by_their_bytes(store: Store, rows: Rows) -> None:
    keys = [
        "k",
        "K",
        "k ",
        " k",
        "k\0",
        "k\0a",
        "ä",
        "a\u0308",
        "Ä",
        "ß",
        "ss",
        "🦊",
        "%",
        "k%",
        "_",
        "'",
        '"',
        "\\",
        "0",
    ]
    added = add_many(store, [keyed(key) for key in keys])
    assert len(set(added)) == len(keys)
    assert [store.producing.add(keyed(key)) for key in keys] == added
    assert len(rows.all()) == len(keys)


@pytest.mark.parametrize("letter", ["k", "ä"])
def test_a_key_longer_than_its_column_is_refused_and_not_cut(store: Store, rows: Rows, letter: str) -> None:
    fits = letter * (255 // len(letter.encode()))
    task_id = store.producing.add(keyed(fits))
    for is_rerun in (False, True):
        with pytest.raises(DatabaseError):
            store.producing.add(keyed(fits + "k" * 2, rerun=is_rerun))
        with pytest.raises(DatabaseError):
            add_many(store, [keyed("other"), keyed(fits + "k" * 2, rerun=is_rerun)])
    assert [row["id"] for row in rows.all()] == [task_id]


@pytest.mark.parametrize("many", [list, iter], ids=["list", "iterator"])
def test_many_tasks_of_all_kinds_are_added_with_the_ids_of_their_rows_in_order(
    store: Store, rows: Rows, many: Callable[[list[NewTask]], Any]
) -> None:
    stands, again = store.producing.add(keyed("stands", "[0]")), store.producing.add(keyed("again", "[0]"))
    plain = NewTask("tasks.send", None, 0, 0)
    tasks = [
        plain._replace(args="[1]"),
        plain._replace(args="[2]", delay_seconds=60.0),
        plain._replace(args="[3]", due_at="2030-01-01 00:00:00.000000"),
        keyed("a", "[4]"),
        keyed("stands", "[5]"),
        keyed("a", "[6]"),
        plain._replace(args="[7]", max_attempts=1),
        keyed("again", "[8]", rerun=True),
        keyed("b", "[9]", rerun=True),
        keyed("b", "[10]", rerun=True),
        keyed("again", "[11]", rerun=True, version=1),
        keyed("again", "[12]", rerun=True, version=1),
        plain._replace(args="[13]"),
        *(keyed(f"key {number % 150}", f"[{100 + number % 150}]") for number in range(300)),
    ]
    added = add_many(store, many(tasks))
    args = {row["id"]: row["args"] for row in rows.all()}
    assert [added[4], added[7], added[10], added[11]] == [stands, again, again, again]
    wanted = [task.args for task in tasks]
    wanted[4], wanted[5], wanted[7], wanted[8], wanted[11] = "[0]", "[4]", "[11]", "[10]", "[11]"
    wanted[10] = "[11]"
    assert [args[task_id] for task_id in added] == wanted
    assert len(args) == len(set(added)) == 159
    assert len(rows.execute("SELECT id FROM jobs_queue WHERE status = 5")) == 2


def test_an_added_task_has_all_that_its_producer_said(store: Store, rows: Rows) -> None:
    at = "2030-02-03 04:05:06.789000"
    task_id = store.producing.add(NewTask("tasks.send", "[1]", 3, -7, 4, None, at, "kü", True, 2**63 - 1))
    row = rows.row(task_id)
    assert (row["task"], row["args"], row["group_id"], row["priority"]) == ("tasks.send", "[1]", 3, -7)
    assert (row["max_attempts"], row["version"], row["status"], row["attempts"]) == (4, 2**63 - 1, 5, 0)
    assert row["unique_key"] in ("kü", "kü".encode())
    assert _instant(row["due_at"]) == datetime.fromisoformat(at)
    delayed = rows.row(store.producing.add(NewTask("tasks.send", None, 0, 0, delay_seconds=90.5)))
    assert delayed["status"] == Status.WAITING
    assert rows.seconds_from_now(delayed["due_at"]) == pytest.approx(90.5, abs=30)
    assert ids(claim(store)) == []


def test_what_a_producer_says_of_attempts_stands_before_what_the_callable_says(store: Store, rows: Rows) -> None:
    store.producing.add(NewTask("tasks.send", None, 0, 0, 4))
    task = claim_one(store)
    assert task.max_attempts == 4
    assert start(store, task, 9)
    assert rows.all()[0]["max_attempts"] == 4


def test_a_waiting_producer_goes_on_once_the_row_of_its_key_is_let_go(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever became of the row meanwhile: it stands, it is gone, or what was done to it is undone."""
    monkeypatch.setattr("taskserver.stores.sqlite.session.LOCK_WAIT_SECONDS", 0.05)
    first = store.producing.add(keyed(args="[1]"))
    for end, is_same in (("ROLLBACK", True), ("COMMIT", False)):
        store.close()  # the next connection waits in shorter turns
        rows.execute("BEGIN" if rows.is_mysql else "BEGIN IMMEDIATE")
        rows.execute("DELETE FROM jobs_queue WHERE unique_key = 'k'")
        with awaited(store, lambda: store.producing.add(keyed(args="[2]"))) as added:
            rows.execute(end)
        assert (added == [first]) == is_same
        assert [row["id"] for row in rows.all()] == added
    assert rows.all()[0]["args"] == "[2]"


@contextmanager
def awaited(store: Store, work: Callable[[], object]) -> Iterator[list[object]]:
    """Does work in another thread, which others keep from it until the end of the `with`: they were met by then."""
    outcomes: list[object] = []
    were_in_the_way = threading.Event()
    dialect = store.database.dialect
    plain_error = dialect.error

    def error(error: BaseException) -> DatabaseError:
        ours = plain_error(error)
        if isinstance(ours, Conflict):
            were_in_the_way.set()
        return ours

    def do() -> None:
        try:
            outcomes.append(work())
        except DatabaseError as failure:
            outcomes.append(failure)

    dialect.error = error  # type: ignore[method-assign]
    thread = threading.Thread(target=do)
    thread.start()
    try:
        assert were_in_the_way.wait(AWAIT_SECONDS)
        assert outcomes == []
        yield outcomes
    finally:
        thread.join(AWAIT_SECONDS)
        del dialect.error


# ---- rerun: → new again


def without_clocks(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("created_at", "updated_at")}


@pytest.mark.parametrize("delay_seconds", [None, 60.0], ids=["at once", "delayed"])
def test_a_rerun_makes_a_row_new_with_all_that_it_says_unless_the_row_runs_or_waits(
    store: Store, rows: Rows, delay_seconds: float | None
) -> None:
    store.producing.add(keyed(args="[1]"))
    for state in STATES:
        assert_run_again(store, rows, state, delay_seconds)


def assert_run_again(store: Store, rows: Rows, state: str, delay_seconds: float | None) -> None:
    before = put_into(rows, state)
    other = NewTask("tasks.other", "[2]", 5, -3, 6, delay_seconds, None, "k", True, None)
    assert store.producing.add(other) == before["id"]
    (row,) = rows.all()
    said = {"task": "tasks.other", "args": "[2]", "group_id": 5, "priority": -3, "max_attempts": 6, "attempts": 0}
    said |= {"error_text": None, "finished_at": None}
    if state == "started":
        # Its worker goes on: attempts 0 are the mark that it is to run once more.
        becomes = {}
    elif state == "waiting for other tasks":
        becomes = {"status": 5, "claim": None, "due_at": None}
    elif delay_seconds:
        becomes = {"status": 5, "claim": None, "due_at": row["due_at"]}
        assert rows.seconds_from_now(row["due_at"]) == pytest.approx(delay_seconds, abs=30)
    else:
        becomes = {"status": 0, "claim": None, "due_at": None}
    assert without_clocks(row) == without_clocks(before) | said | becomes, state
    for clock in ("created_at", "updated_at"):
        assert rows.seconds_from_now(row[clock]) == pytest.approx(0, abs=30)


@pytest.mark.parametrize(
    ("stands", "comes", "is_newer"),
    [(5, 4, False), (5, 5, False), (5, 6, True), (5, None, True), (None, 0, True), (0, 1, True), (2**63 - 1, 1, False)],
)
def test_a_rerun_of_no_newer_version_changes_nothing(
    store: Store, rows: Rows, stands: int | None, comes: int | None, is_newer: bool
) -> None:
    task_id = store.producing.add(rerun("[1]"))
    for state in STATES:
        rows.execute(f"UPDATE jobs_queue SET version = {'NULL' if stands is None else stands}")
        before = put_into(rows, state)
        assert add_many(store, [rerun("[2]", version=comes)]) == [task_id]
        (row,) = rows.all()
        assert (row["args"] == "[2]") == is_newer, state
        assert row["version"] == max(stands or 0, comes or 0), state
        assert is_newer or row == before, state


def test_a_claimed_task_that_is_run_again_is_taken_from_its_worker(store: Store, rows: Rows) -> None:
    store.producing.add(rerun("[1]"))
    task = claim_one(store)
    store.producing.add(rerun("[2]"))
    before = rows.all()
    assert not start(store, task)
    assert store.claims.release([task]) == 0
    assert not store.leases.renew(task)
    assert not finish(store, task, "BadTask: x")
    assert rows.all() == before
    assert claim_one(store).args == "[2]"


ENDINGS: dict[str, Callable[[ClaimedTask], Finish]] = {
    "well": Finish,
    "to be retried": lambda task: Finish(task, "E: x", 60.0),
    "fatal": lambda task: Finish(task, "E: x"),
    "uncounted": lambda task: Finish(task, "BadTask: x", None, True),
    "cancelled": lambda task: Finish(task, "cancelled"),
}
"""How the run of a task may end."""


@pytest.mark.parametrize("mode", MODES)
def test_a_running_task_that_is_run_again_runs_once_more_however_it_ends(
    open_store: Callable[..., Store], rows: Rows, mode: str
) -> None:
    store = open_store(mode)
    for finish_of in ENDINGS.values():
        assert_runs_once_more(store, rows, finish_of)
        rows.execute("DELETE FROM jobs_queue_done")
        rows.execute("DELETE FROM jobs_queue")


def assert_runs_once_more(store: Store, rows: Rows, finish_of: Callable[[ClaimedTask], Finish]) -> None:
    task_id = store.producing.add(rerun("[1]", max_attempts=1))
    task = claim_one(store)
    assert start(store, task)
    for change in ("[2]", "[3]"):
        assert store.producing.add(rerun(change, max_attempts=1)) == task_id
    assert store.leases.renew(task)
    assert claim(store) == []
    assert store.finishes.advance([finish_of(task)], None) == ([Outcome.RUN_AGAIN], False)
    (row,) = rows.all()
    assert (row["status"], row["attempts"], row["claim"], row["due_at"], row["error_text"]) == (0, 0, None, None, None)
    assert rows.all("jobs_queue_done") == []
    again = claim_one(store)
    assert (again.id, again.args) == (task_id, "[3]")
    assert start(store, again)
    assert finish(store, again)
    assert not store.claims.has_new(())
    assert [row["status"] for row in rows.all()] == ([2] if store.mode == "mark" else [])


def test_a_finish_of_a_task_that_is_run_again_and_the_next_start_are_one_answer(store: Store, rows: Rows) -> None:
    store.producing.add(rerun("[1]"))
    add(store)
    first, second = claim(store)
    assert start(store, first)
    store.producing.add(rerun("[2]"))
    assert store.finishes.advance([Finish(first)], Start(second, 3)) == ([Outcome.RUN_AGAIN], True)
    assert [row["status"] for row in rows.all()] == [0, 1]


def test_a_limit_found_for_the_callable_of_before_is_not_written_to_a_row_that_is_run_again(
    store: Store, rows: Rows
) -> None:
    store.producing.add(rerun("[1]"))
    task = claim_one(store)
    assert store.finishes.advance([], Start(task, None))[1]
    store.producing.add(rerun("[2]", task="tasks.once"))
    assert store.leases.limit_attempts(task, 9)
    assert rows.all()[0]["max_attempts"] is None


def end_leases(rows: Rows) -> None:
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(-10)}, updated_at = updated_at WHERE status = 1")


@pytest.mark.parametrize("limit", [1, 3])
def test_a_lost_task_that_was_run_again_while_it_ran_becomes_new(store: Store, rows: Rows, limit: int) -> None:
    store.producing.add(rerun("[1]", max_attempts=limit))
    task = claim_one(store)
    assert start(store, task)
    store.producing.add(rerun("[2]", max_attempts=limit))
    end_leases(rows)
    (lost,) = store.due.look().lost
    assert lost.is_to_rerun
    assert store.due.reclaim_lost(lost, limit, "lost: x", None)
    row = rows.all()[0]
    assert (row["status"], row["claim"], row["due_at"], row["error_text"]) == (0, None, None, None)
    # Its worker was only frozen.
    assert not finish(store, task)
    assert not store.due.reclaim_lost(lost, limit, "lost: x", None)
    assert claim_one(store).args == "[2]"


def test_a_lost_task_that_was_run_again_since_the_look_is_left_to_the_next_look(store: Store, rows: Rows) -> None:
    store.producing.add(rerun("[1]"))
    assert start(store, claim_one(store))
    end_leases(rows)
    (lost,) = store.due.look().lost
    store.producing.add(rerun("[2]"))
    assert not store.due.reclaim_lost(lost, 1, "lost: x", None)
    (lost,) = store.due.look().lost
    assert store.due.reclaim_lost(lost, 1, "lost: x", None)
    assert rows.all()[0]["status"] == Status.NEW


def test_a_task_given_up_as_lost_and_run_again_is_not_completed_by_its_old_worker(store: Store, rows: Rows) -> None:
    store.producing.add(rerun("[1]", max_attempts=1))
    task = claim_one(store)
    assert start(store, task)
    end_leases(rows)
    (lost,) = store.due.look().lost
    assert store.due.reclaim_lost(lost, 1, "lost: x", None)
    assert rows.all()[0]["claim"] == task.claim
    store.producing.add(rerun("[2]", max_attempts=1))
    assert not finish(store, task)
    assert claim_one(store).args == "[2]"


# ---- cancelled


def cancel_running(rows: Rows) -> None:
    """As stores/queue/operations.py does it."""
    rows.execute("UPDATE jobs_queue SET error_text = 'cancelled' WHERE status = 1 AND started_at IS NOT NULL")


def a_running_task(store: Store) -> ClaimedTask:
    store.producing.add(rerun("[1]"))
    task = claim_one(store)
    assert start(store, task)
    return task


def test_a_worker_sees_that_its_running_task_was_cancelled(store: Store, rows: Rows) -> None:
    task = a_running_task(store)
    assert not any(store.leases.claimed_still([task]).values())
    rows.execute("UPDATE jobs_queue SET error_text = 'E: cancelled'")
    assert not any(store.leases.claimed_still([task]).values())
    cancel_running(rows)
    assert any(store.leases.claimed_still([task]).values())
    assert not any(store.leases.claimed_still([task._replace(claim=task.claim + 1)]).values())
    assert not any(store.leases.claimed_still([task._replace(id=task.id + 1)]).values())
    assert store.leases.renew(task)
    assert any(store.leases.claimed_still([task]).values())


@pytest.mark.parametrize("was_run_again", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_cancelled_task_that_ends_well_is_done_and_any_other_is_fatal(
    open_store: Callable[..., Store], rows: Rows, mode: str, was_run_again: bool
) -> None:
    """Where it was changed before that, what it was changed to did not run, and is cancelled."""
    store = open_store(mode)
    for ending, finish_of in ENDINGS.items():
        rows.execute("DELETE FROM jobs_queue")
        task = a_running_task(store)
        if was_run_again:
            store.producing.add(rerun("[2]"))
        cancel_running(rows)
        is_done = ending == "well" and not was_run_again
        outcome = Outcome.AS_ASKED if is_done else Outcome.CANCELLED
        assert store.finishes.advance([finish_of(task)], None) == ([outcome], False)
        assert store.due.look() == Due([], [], [], [], [])
        if is_done:
            assert [row["status"] for row in rows.all()] == ([2] if mode == "mark" else [])
            assert [row["error_text"] for row in rows.all() + rows.all("jobs_queue_done")] in ([], [None])
            continue
        (row,) = rows.all()
        assert (row["status"], row["error_text"], row["claim"], row["due_at"]) == (4, "cancelled", None, None), ending
        assert rows.seconds_from_now(row["finished_at"]) == pytest.approx(0, abs=30)
        assert row["attempts"] == (0 if was_run_again else 1)


def test_a_task_that_is_run_again_after_it_was_cancelled_runs_again(store: Store, rows: Rows) -> None:
    for ending, finish_of in ENDINGS.items():
        task = a_running_task(store)
        cancel_running(rows)
        store.producing.add(rerun("[2]"))
        assert not any(store.leases.claimed_still([task]).values())
        assert store.finishes.advance([finish_of(task)], None) == ([Outcome.RUN_AGAIN], False)
        row = rows.all()[0]
        assert (row["status"], row["attempts"], row["error_text"]) == (0, 0, None), ending


@pytest.mark.parametrize("limit", [1, 3])
def test_a_lost_task_that_was_cancelled_is_fatal_and_completed_by_nobody(store: Store, rows: Rows, limit: int) -> None:
    task = a_running_task(store)
    cancel_running(rows)
    end_leases(rows)
    (lost,) = store.due.look().lost
    assert (lost.is_cancelled, lost.is_to_rerun) == (True, False)
    assert store.due.reclaim_lost(lost, limit, "cancelled", None)
    row = rows.all()[0]
    assert (row["status"], row["error_text"], row["claim"]) == (4, "cancelled", None)
    assert not finish(store, task)
    assert rows.all() == [row]


def test_a_lost_task_that_was_cancelled_since_the_look_is_left_to_the_next_look(store: Store, rows: Rows) -> None:
    a_running_task(store)
    end_leases(rows)
    (lost,) = store.due.look().lost
    cancel_running(rows)
    before = rows.all()
    assert not store.due.reclaim_lost(lost, 3, "lost: x", 0.0)
    assert rows.all() == before


@pytest.mark.parametrize(("text", "kept"), [("cancelled", None), ("E: cancelled", "E: cancelled")])
def test_a_start_forgets_that_a_task_was_cancelled_and_no_other_error(
    store: Store, rows: Rows, text: str, kept: str | None
) -> None:
    """A person may set the status of a cancelled row alone."""
    add(store)
    rows.execute(f"UPDATE jobs_queue SET error_text = '{text}'")
    task = claim_one(store)
    assert start(store, task)
    assert rows.all()[0]["error_text"] == kept
    assert not any(store.leases.claimed_still([task]).values())
    assert store.finishes.advance([Finish(task, "E: x", 60.0)], None) == ([Outcome.AS_ASKED], False)
    assert rows.all()[0]["status"] == Status.ERROR


def test_a_bad_row_that_a_person_set_to_new_after_it_was_cancelled_is_fatal_as_any_other(
    store: Store, rows: Rows
) -> None:
    add(store)
    rows.execute("UPDATE jobs_queue SET error_text = 'cancelled'")
    assert finish(store, claim_one(store), "BadTask: x")
    assert (rows.all()[0]["status"], rows.all()[0]["error_text"]) == (4, "BadTask: x")


# ---- answers that were lost: what the first try did is found, and what it did not do is done


@pytest.mark.parametrize("took_effect", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_a_finish_that_is_written_again_is_found_or_done(
    open_store: Callable[..., Store], rows: Rows, mode: str, took_effect: bool
) -> None:
    """Whatever was done to the task while it ran."""
    store = open_store(mode)
    for deed, ending in itertools.product(["nothing", "rerun", "cancel"], ENDINGS):
        rows.execute("DELETE FROM jobs_queue")
        task = a_running_task(store)
        if deed == "rerun":
            store.producing.add(rerun("[2]"))
        elif deed == "cancel":
            cancel_running(rows)
        finishes = [ENDINGS[ending](task)]
        outcome = {"nothing": Outcome.AS_ASKED, "rerun": Outcome.RUN_AGAIN, "cancel": Outcome.CANCELLED}[deed]
        if (deed, ending) == ("cancel", "well"):
            outcome = Outcome.AS_ASKED
        if took_effect:
            assert store.finishes.advance(finishes, None) == ([outcome], False), (deed, ending)
        before = rows.all()
        if (deed, ending, took_effect) == ("nothing", "cancelled", True):
            outcome = Outcome.CANCELLED  # the row cannot tell the two apart
        assert store.finishes.advance(finishes, None, is_repeated=True) == ([outcome], False), (deed, ending)
        assert not took_effect or rows.all() == before
        assert [row["status"] for row in rows.all()] != [Status.IN_PROGRESS], (deed, ending)


def test_a_finish_that_is_written_again_of_a_task_that_another_took_over_is_refused(store: Store, rows: Rows) -> None:
    for ending, finish_of in ENDINGS.items():
        rows.execute("DELETE FROM jobs_queue")
        task = a_running_task(store)
        rows.execute("UPDATE jobs_queue SET claim = claim + 1")
        before = rows.all()
        assert store.finishes.advance([finish_of(task)], None, is_repeated=True) == ([Outcome.LOST], False), ending
        assert rows.all() == before


def test_an_error_after_finishes_were_written_is_told_as_one_after_which_they_may_stand(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others hold the row of a task that is to run again: those that ended with it, and the start, are written."""
    store.producing.add(rerun("[1]"))
    add(store)
    add(store)
    again, other, following = claim(store)
    for task in (again, other):
        assert start(store, task)
    store.producing.add(rerun("[2]"))
    finishes = [Finish(other), Finish(again)]
    failing = iter([True, True])
    finish_otherwise = store.finishes._finish_otherwise

    def fail_twice(step: Any) -> Outcome:
        if next(failing, False):
            raise Conflict("somebody holds it")
        return finish_otherwise(step)

    monkeypatch.setattr(store.finishes, "_finish_otherwise", fail_twice)
    with pytest.raises(Conflict) as raised:
        store.finishes.advance(finishes, Start(following, 3))
    assert raised.value.may_have_taken_effect
    assert store.finishes.advance(finishes, Start(following, 3), is_repeated=True) == (
        [Outcome.AS_ASKED, Outcome.RUN_AGAIN],
        True,
    )
    assert [(row["id"], row["status"], row["attempts"]) for row in rows.all()] == [
        (again.id, 0, 0),
        (following.id, 1, 1),
    ]


def test_a_late_completion_is_accepted_though_an_answer_was_lost_on_the_way_to_it(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.producing.add(rerun("[1]", max_attempts=1))
    task = claim_one(store)
    assert start(store, task)
    end_leases(rows)
    (lost,) = store.due.look().lost
    assert store.due.reclaim_lost(lost, 1, "lost: x", None)
    together = store.database.write_together

    def break_off_once(writes: Any, conflict_seconds: float) -> tuple[list[int], bool]:
        matched, _ = together(writes, conflict_seconds)
        return matched, RUN_AGAIN in (sql for sql, _ in writes)

    monkeypatch.setattr(store.database, "write_together", break_off_once)
    assert finish(store, task)
    assert rows.all() == []


def test_a_task_that_is_cancelled_just_before_it_would_be_run_again_is_fatal_in_the_same_turn(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the write that finds it changed by a rerun and the one that would make it new."""
    task = a_running_task(store)
    store.producing.add(rerun("[2]"))
    together = store.database.write_together

    def change_before(writes: Any, conflict_seconds: float) -> tuple[list[int], bool]:
        if RUN_AGAIN in [sql for sql, _ in writes]:
            cancel_running(rows)
        return together(writes, conflict_seconds)

    monkeypatch.setattr(store.database, "write_together", change_before)
    assert store.finishes.advance([Finish(task)], None) == ([Outcome.CANCELLED], False)
    assert [(row["status"], row["error_text"], row["args"]) for row in rows.all()] == [(4, "cancelled", "[2]")]


def test_a_verb_within_a_transaction_is_tried_again_with_the_whole_of_it_alone(store: Store, rows: Rows) -> None:
    """A deadlock has undone the whole: by itself, the verb would be committed without the writes before it."""
    database, tries = store.database, []
    deadlocks = iter([Conflict("deadlock")])

    def fail_once() -> None:
        for error in deadlocks:
            raise error

    def work() -> None:
        tries.append(database.change("UPDATE {table} SET priority = priority + 1"))
        database.run(RetryPolicy(Scope.STATEMENT, 5), fail_once)

    add(store)
    database.run(RetryPolicy(Scope.TRANSACTION, 5), work)
    assert (tries, rows.all()[0]["priority"]) == ([1, 1], 1)


# ---- how long a task waited


def updated_at(rows: Rows) -> Any:
    return rows.all()[0]["updated_at"]


def test_a_claim_tells_how_long_a_task_was_ready(store: Store, rows: Rows) -> None:
    add(store)
    rows.execute(f"UPDATE jobs_queue SET created_at = {rows.after(-900)}, updated_at = {rows.after(-500)}")
    since = updated_at(rows)
    task = claim_one(store)
    assert task.waited_seconds == pytest.approx(500, abs=30)
    assert updated_at(rows) == since
    assert store.claims.release([task]) == 1
    assert updated_at(rows) == since
    assert claim_one(store).waited_seconds == pytest.approx(500, abs=30)
    end_leases(rows)
    assert store.due.reclaim_unstarted(store.due.look().unstarted) == 1
    assert updated_at(rows) == since
    assert claim_one(store).waited_seconds == pytest.approx(500, abs=30)


@pytest.mark.parametrize(("due", "written"), [(-200, -900), (-900, -200)], ids=["after it was added", "before"])
@pytest.mark.parametrize("status", [3, 5])
def test_a_woken_task_was_ready_from_its_time_on_and_not_before_it_was_there(
    store: Store, rows: Rows, status: int, due: int, written: int
) -> None:
    add(store)
    rows.execute(
        f"UPDATE jobs_queue SET status = {status}, due_at = {rows.after(due)}, updated_at = {rows.after(written)}"
    )
    later = max(rows.all()[0]["due_at"], updated_at(rows))
    assert store.due.wake(store.due.look().to_wake) == 1
    assert updated_at(rows) == later
    assert claim_one(store).waited_seconds == pytest.approx(200, abs=30)


def test_a_task_that_is_run_again_is_ready_from_then_on(store: Store, rows: Rows) -> None:
    store.producing.add(rerun("[1]"))
    rows.execute(f"UPDATE jobs_queue SET status = 4, updated_at = {rows.after(-900)}, created_at = {rows.after(-900)}")
    store.producing.add(rerun("[2]"))
    assert claim_one(store).waited_seconds == pytest.approx(0, abs=30)


def test_an_instant_of_a_producer_s_own_tells_of_no_wait(store: Store, rows: Rows) -> None:
    add(store)
    rows.execute(f"UPDATE jobs_queue SET updated_at = {rows.after(900)}")
    assert claim_one(store).waited_seconds == 0
    if not rows.is_mysql:
        add(store)
        rows.execute("UPDATE jobs_queue SET updated_at = 'never' WHERE status = 0")
        assert claim_one(store).waited_seconds == 0


# ---- paused groups


def pause(rows: Rows, *groups: int) -> None:
    for group in groups:
        rows.execute(f"INSERT INTO jobs_queue_paused (group_id) VALUES ({group})")


def test_a_claim_of_given_groups_passes_over_those_that_are_paused(store: Store, rows: Rows) -> None:
    three, five, six = (add(store, group, -group) for group in (3, 5, 6))
    pause(rows, 5, 77)
    assert store.claims.paused_groups() == [5, 77]
    assert (store.claims.has_new((3, 5)), store.claims.has_new((5,)), store.claims.has_new((5, 77))) == (
        True,
        False,
        False,
    )
    assert claim(store, 100, 5) == []
    assert ids(claim(store, 100, 3, 5)) == [three]
    assert not store.claims.has_new((3, 5))
    rows.execute("DELETE FROM jobs_queue_paused")
    assert store.claims.has_new((3, 5))
    assert ids(claim(store, 100, 3, 5, 6)) == [six, five]


def test_a_claim_of_all_groups_passes_over_those_that_are_paused(store: Store, rows: Rows) -> None:
    order = [(3, 5), (5, -9), (6, 1), (3, 0), (4_294_967_295, 2), (0, 3), (5, 0)]
    added = [(priority, add(store, group, priority), group) for group, priority in order]
    pause(rows, 5, 77)
    assert store.claims.has_new(())
    assert ids(claim(store, 3)) == [task_id for _, task_id, group in sorted(added) if group != 5][:3]
    assert len(claim(store)) == 2
    assert not store.claims.has_new(())
    assert store.claims.claim(100, ()) == ([], 0)
    rows.execute("DELETE FROM jobs_queue_paused")
    assert store.claims.has_new(())
    assert len(claim(store)) == 2


def test_a_claim_puts_off_what_is_not_due_beside_paused_groups_and_in_none_of_them(store: Store, rows: Rows) -> None:
    for group in (3, 5):
        add(store, group)
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(60)}")
    pause(rows, 5)
    assert store.claims.claim(100, ()) == ([], 1)
    assert [row["status"] for row in rows.all()] == [5, 0]
    assert not store.claims.has_new(())


def test_of_more_groups_than_one_claim_can_name_all_have_their_turn_beside_a_paused_one(
    store: Store, rows: Rows
) -> None:
    add_many(store, [NewTask("tasks.send", None, group, 0) for group in range(1000)])
    pause(rows, 0, 999)
    claimed: list[int] = []
    while store.claims.has_new(()):
        more = claim(store, 1000)
        assert more, "rows of groups that are not paused are there, and no claim gets them"
        claimed += ids(more)
    left = rows.execute("SELECT group_id FROM jobs_queue WHERE status = 0 ORDER BY group_id")
    assert left == [(0,), (999,)]
    assert len(set(claimed)) == 998


def test_tasks_of_a_paused_group_that_are_held_already_go_on(store: Store, rows: Rows) -> None:
    for _ in range(2):
        add(store, 3)
    first, second = claim(store)
    assert start(store, first)
    pause(rows, 3)
    assert store.finishes.advance([Finish(first)], Start(second, 3)) == ([Outcome.AS_ASKED], True)
    assert finish(store, second, "E: x")


# ---- schedules whose time has come


def test_a_look_for_what_is_due_finds_schedules_too_and_numbers_stay_whole_numbers(store: Store, rows: Rows) -> None:
    """Some servers would give all of them as decimals, were one column read together with another's type."""
    for _ in range(3):
        add(store, 3)
    tasks = claim(store)
    assert start(store, tasks[0])
    rows.execute(f"UPDATE jobs_queue SET due_at = {rows.after(-10)}")
    rows.execute(f"UPDATE jobs_queue SET status = 5 WHERE id = {tasks[2].id}")
    for name, seconds in (("late", -60), ("now", -1), ("later", 60)):
        rows.execute(
            "INSERT INTO jobs_queue_schedules (name, task, group_id, next_at) "
            f"VALUES ('{name}', 'tasks.send', 7, {rows.after(seconds)})"
        )
    due = store.due.look()
    assert (due.to_wake, due.unstarted, due.schedules) == ([tasks[2].id], [tasks[1].id], ["late", "now"])
    (lost,) = due.lost
    assert lost == LostTask(tasks[0].id, 1, 10, "tasks.send", 3, False)
    numbers = (*due.to_wake, *due.unstarted, lost.id, lost.attempts, lost.max_attempts, lost.group_id)
    assert {type(number) for number in numbers} == {int}


# ---- the tables


def test_the_tables_that_are_not_there_are_named_with_the_way_out(dsn: str) -> None:
    with TaskServer(dsn) as server:
        with pytest.raises(TablesMissing, match=r"client\.py init"):
            server.store.tables.check()
        with pytest.raises(TablesMissing, match=r"client\.py init"):
            server.run()
        with pytest.raises(TablesMissing, match=r"client\.py init"):
            server.add_task("tasks.send")


def test_a_database_without_our_tables_among_others_lacks_them_too(dsn: str) -> None:
    other = Rows(dsn)
    other.execute("CREATE TABLE something (id INTEGER PRIMARY KEY)")
    other.close()
    with TaskServer(dsn) as server, pytest.raises(TablesMissing, match=r"client\.py init"):
        server.store.tables.check()


def test_tables_of_an_older_version_are_refused_until_init_mends_them(store: Store, rows: Rows, queue_dsn: str) -> None:
    task_id = add(store)
    rows.execute("UPDATE jobs_queue_schema SET version = 0")
    with pytest.raises(TablesOutdated, match=r"version 0.*client\.py init"):
        store.tables.check()
    with TaskServer(queue_dsn) as server, pytest.raises(TablesOutdated, match=r"client\.py init"):
        server.run()
    store.tables.create()
    store.tables.check()
    assert ids(claim(store)) == [task_id]


def to_fourth_version(rows: Rows) -> None:
    """The tables as the fourth taskserver made them."""
    for table in ("jobs_queue", "jobs_queue_done"):
        for column in ("result", "progress"):
            rows.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    rows.execute("UPDATE jobs_queue_schema SET version = 4")


def to_third_version(rows: Rows) -> None:
    """The tables as the third taskserver made them."""
    to_fourth_version(rows)
    for table in ("jobs_queue", "jobs_queue_done"):
        for column in ("stages", "stage", "awaited"):
            rows.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    rows.execute("DROP TABLE jobs_queue_dependencies")
    rows.execute("UPDATE jobs_queue_schema SET version = 3")


def to_first_version(rows: Rows) -> None:
    """The tables as the first taskserver made them."""
    to_third_version(rows)
    rows.execute("ALTER TABLE jobs_queue_workers DROP COLUMN previous_started_at")
    for table in ("jobs_queue", "jobs_queue_done"):
        rows.execute(f"ALTER TABLE {table} DROP COLUMN version")
    for table in ("paused", "schedules", "stats"):
        rows.execute(f"DROP TABLE jobs_queue_{table}")
    rows.execute("UPDATE jobs_queue_schema SET version = 1")


def test_tables_of_the_first_version_are_brought_up_to_date_with_what_they_hold(store: Store, rows: Rows) -> None:
    task_id = add(store)
    store.runs.begin("host", "3")
    to_first_version(rows)
    with pytest.raises(TablesOutdated, match=rf"version 1.*needs {SCHEMA_VERSION}.*client\.py init"):
        store.tables.check()
    store.tables.create()
    store.tables.check()
    store.runs.begin("host", "3")
    assert [run.every_seconds is not None for run in store.views.runs()] == [True]
    assert ids(claim(store)) == [task_id]


def test_an_upgrade_that_was_cut_off_is_brought_to_its_end(store: Store, rows: Rows) -> None:
    rows.execute("UPDATE jobs_queue_schema SET version = 1")  # its column stands already
    store.tables.create()
    store.tables.check()


def to_second_version(rows: Rows) -> None:
    """The tables as the second taskserver made them."""
    to_first_version(rows)
    rows.execute("ALTER TABLE jobs_queue_workers ADD COLUMN previous_started_at TIMESTAMP NULL DEFAULT NULL")
    rows.execute("UPDATE jobs_queue_schema SET version = 2")


@pytest.mark.parametrize("was_cut_off", [False, True])
def test_tables_of_the_second_version_are_brought_up_to_date_with_what_they_hold(
    open_store: Callable[..., Store], rows: Rows, was_cut_off: bool
) -> None:
    """The one that was cut off had made all tables, and one column of two."""
    store = open_store("move")
    new, done = store.producing.add(keyed("new", "[1]")), store.producing.add(keyed("done", "[2]", priority=-1))
    (task,) = claim(store, 1)
    assert start(store, task)
    assert finish(store, task)
    rows.execute(f"UPDATE jobs_queue SET updated_at = {rows.after(-500)}")
    columns = COLUMNS.partition(", version")[0]
    before = [rows.all(table, columns) for table in ("jobs_queue", "jobs_queue_done")]
    to_second_version(rows)
    if was_cut_off:
        for statement in [
            *schema_statements(store.database.dialect),
            "ALTER TABLE jobs_queue ADD COLUMN version BIGINT NULL",
        ]:
            rows.execute(statement)
    with pytest.raises(TablesOutdated, match=rf"version 2.*needs {SCHEMA_VERSION}.*client\.py init"):
        store.tables.check()
    store.tables.create()
    store.tables.check()
    assert [rows.all(table, columns) for table in ("jobs_queue", "jobs_queue_done")] == before
    assert rows.execute("SELECT MAX(version) FROM jobs_queue_schema") == [(SCHEMA_VERSION,)]
    assert store.producing.add(rerun("[3]", unique_key="new", version=7)) == new
    assert store.producing.add(rerun("[4]", unique_key="done", version=7)) not in (new, done)
    pause(rows, 5)
    assert [task.args for task in claim(store)] == ["[3]", "[4]"]


@pytest.mark.parametrize(
    ("version", "older", "column"),
    [(3, to_third_version, "stages"), (4, to_fourth_version, "result")],
    ids=["third", "fourth"],
)
@pytest.mark.parametrize("was_cut_off", [False, True])
def test_tables_of_a_later_version_are_brought_up_to_date_with_what_they_hold(
    open_store: Callable[..., Store],
    rows: Rows,
    version: int,
    older: Callable[[Rows], None],
    column: str,
    was_cut_off: bool,
) -> None:
    store = open_store("move")
    add(store)
    (task,) = claim(store, 1)
    assert start(store, task)
    assert finish(store, task)
    left = add(store)
    before = [rows.all(table, COLUMNS) for table in ("jobs_queue", "jobs_queue_done")]
    older(rows)
    if was_cut_off:
        rows.execute(f"ALTER TABLE jobs_queue ADD COLUMN {column} TEXT NULL")
    with pytest.raises(TablesOutdated, match=rf"version {version}.*needs {SCHEMA_VERSION}.*client\.py init"):
        store.tables.check()
    store.tables.create()
    assert [rows.all(table, COLUMNS) for table in ("jobs_queue", "jobs_queue_done")] == before
    assert rows.execute("SELECT MAX(version) FROM jobs_queue_schema") == [(SCHEMA_VERSION,)]
    assert ids(claim(store)) == [left]


def test_an_upgrade_makes_the_tables_that_are_missing_too(store: Store, rows: Rows) -> None:
    to_first_version(rows)
    rows.execute("DROP TABLE jobs_queue_workers")
    store.tables.create()
    store.runs.begin("host", "3")


def test_older_tables_whose_version_was_not_restored_with_them_are_upgraded(store: Store, rows: Rows) -> None:
    to_first_version(rows)
    rows.execute("DROP TABLE jobs_queue_schema")
    store.tables.create()
    store.tables.check()
    store.runs.begin("host", "3")


def test_the_schema_file_loaded_over_older_tables_does_not_call_them_new(store: Store, rows: Rows) -> None:
    to_first_version(rows)
    for statement in schema_statements(store.database.dialect):
        rows.execute(statement)
    with pytest.raises(TablesOutdated, match="version 1"):
        store.tables.check()
    store.tables.create()


def test_tables_whose_version_was_lost_are_refused_until_init_mends_them(store: Store, rows: Rows) -> None:
    rows.execute("DELETE FROM jobs_queue_schema")
    with pytest.raises(TablesOutdated, match=r"client\.py init"):
        store.tables.check()
    store.tables.create()
    store.tables.check()


def test_tables_of_a_newer_version_are_refused_and_left_alone(store: Store, rows: Rows) -> None:
    rows.execute("INSERT INTO jobs_queue_schema (version) VALUES (99)")
    with pytest.raises(TablesOutdated, match=r"version 99.*newer taskserver"):
        store.tables.check()
    with pytest.raises(TablesOutdated, match=r"version 99.*newer taskserver"):
        store.tables.create()


def test_the_tables_can_be_created_again_and_again(store: Store, rows: Rows) -> None:
    task_id = add(store)
    store.tables.create()
    store.tables.create()
    assert [row["id"] for row in rows.all()] == [task_id]
    assert len(rows.execute("SELECT version FROM jobs_queue_schema")) == 1


@pytest.mark.parametrize("name", ["jobs_queue", "jobs_queue_schema"])
def test_a_foreign_table_of_our_name_is_a_clear_error(dsn: str, name: str) -> None:
    foreign = Rows(dsn)
    foreign.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, payload VARCHAR(20))")
    foreign.execute(f"INSERT INTO {name} VALUES (1, 'precious')")
    with TaskServer(dsn) as server, pytest.raises(DatabaseError, match=r"not made by taskserver.*TASKSERVER_TABLE"):
        server.create_tables()
    assert foreign.execute(f"SELECT * FROM {name}") == [(1, "precious")]
    foreign.close()


def test_two_queues_live_in_one_database(dsn: str) -> None:
    with TaskServer(dsn, table="one") as one, TaskServer(dsn, table="Two_2", mode="move") as two:
        for server in (one, two):
            server.create_tables()
        ours, theirs = one.add_task("tasks.a"), two.add_task("tasks.b")
        assert [(task.id, task.task) for task in claim(one.store)] == [(ours, "tasks.a")]
        (task,) = claim(two.store)
        assert (task.id, task.task) == (theirs, "tasks.b")
        assert finish(two.store, task)
        assert two.store.views.show(theirs) is not None
        assert [count.rows for count in one.store.views.counts()] == [1]


# ---- what operators read


def test_counts_are_by_group_and_status_with_the_age_of_the_oldest_new_row(store: Store, rows: Rows) -> None:
    for group in (6, 3, 3, 3):
        add(store, group)
    rows.execute(f"UPDATE jobs_queue SET created_at = {rows.after(-500)} WHERE group_id = 3")
    assert finish(store, claim(store, 1, 3)[0], "E: x")
    counts = store.views.counts()
    assert [(count.group_id, count.status, count.rows) for count in counts] == [(3, 0, 2), (3, 4, 1), (6, 0, 1)]
    assert counts[0].oldest_seconds == pytest.approx(500, abs=30)
    assert counts[1].oldest_seconds is None
    assert counts[2].oldest_seconds == pytest.approx(0, abs=30)


def test_an_empty_queue_has_no_counts_no_runs_and_no_tasks(store: Store) -> None:
    assert store.views.counts() == []
    assert store.views.runs() == []
    assert store.views.list((), (), 10) == []
    assert store.views.show(1) is None


def test_a_run_is_recorded_from_its_begin_to_its_end_in_one_row(store: Store, rows: Rows) -> None:
    store.runs.begin("web1", "3,5")
    (run,) = store.views.runs()
    assert (run.host, run.group_ids, run.ended_at, run.reason) == ("web1", "3,5", None, None)
    assert run.started_seconds_ago == pytest.approx(0, abs=30)
    store.runs.end("web1", "3,5", 90.25, "empty", (5, 2, 1, 1, 7))
    (run,) = store.views.runs()
    assert (run.reason, run.taken, run.done, run.fatal, run.lost, run.released) == ("empty", 5, 2, 1, 1, 7)
    assert run.started_at is not None
    assert run.ended_at is not None
    seconds = datetime.fromisoformat(run.ended_at) - datetime.fromisoformat(run.started_at)
    assert seconds.total_seconds() == pytest.approx(90.25, abs=0.1)
    assert rows.seconds_from_now(run.ended_at) == pytest.approx(0, abs=30)
    store.runs.begin("web1", "3,5")
    store.runs.begin("web1", "all")
    first, second = store.views.runs()
    assert (first.group_ids, first.reason, first.taken, first.ended_at) == ("3,5", None, 0, None)
    assert second.group_ids == "all"


@pytest.mark.parametrize("seconds", [0.0, 1e-7, 0.00001234, 12345678.9])
def test_a_run_of_any_length_has_a_begin_and_an_end(store: Store, seconds: float) -> None:
    store.runs.begin("web1", "all")
    store.runs.end("web1", "all", seconds, "empty", (0, 0, 0, 0, 0))
    (run,) = store.views.runs()
    assert run.started_seconds_ago == pytest.approx(seconds, abs=30)
    assert run.ended_at is not None


def test_the_list_shows_the_newest_of_the_wanted_statuses_and_groups(store: Store) -> None:
    added = [add(store, group) for group in (3, 5, 3, 6)]
    assert finish(store, claim(store, 1)[0], "E: x")

    def listed(statuses: tuple[int, ...] = (), groups: tuple[int, ...] = (), limit: int = 10) -> list[int]:
        return [task.id for task in store.views.list(statuses, groups, limit)]

    assert listed() == added[::-1]
    assert listed(limit=2) == added[:1:-1]
    assert listed(statuses=(4,)) == [added[0]]
    assert listed(statuses=(0,), groups=(3, 5)) == [added[2], added[1]]
    assert listed(statuses=(0, 4), groups=(3,)) == [added[2], added[0]]
    assert listed(statuses=(2,)) == []


def test_a_shown_task_has_every_column_with_instants_as_text_in_utc(store: Store, rows: Rows) -> None:
    task_id = add(store, 3, -4, args='{"to":"ä"}')
    rows.execute("UPDATE jobs_queue SET unique_key = 'schlüssel'")
    task = claim_one(store)
    assert start(store, task, 6)
    shown = store.views.show(task_id)
    assert shown is not None
    row = rows.row(task_id)
    assert (shown.task, shown.args, shown.group_id, shown.priority) == ("tasks.send", '{"to":"ä"}', 3, -4)
    assert (shown.status, shown.attempts, shown.max_attempts, shown.claim) == (1, 1, 6, task.claim)
    assert (shown.unique_key, shown.error_text, shown.finished_at, shown.archived) == ("schlüssel", None, None, False)
    for name in ("created_at", "started_at", "due_at", "updated_at"):
        text = getattr(shown, name)
        assert datetime.strptime(text, "%Y-%m-%d %H:%M:%S.%f") == _instant(row[name])  # noqa: DTZ007
        assert len(text) == 26


def test_a_task_in_the_queue_is_shown_before_an_archived_one_of_its_id(
    open_store: Callable[..., Store], rows: Rows
) -> None:
    store = open_store("move")
    task_id = add(store)
    assert finish(store, claim_one(store))
    archived = store.views.show(task_id)
    assert archived is not None
    assert (archived.archived, archived.status) == (True, 2)
    rows.execute(f"INSERT INTO jobs_queue (id, task) VALUES ({task_id}, 'tasks.other')")
    shown = store.views.show(task_id)
    assert shown is not None
    assert (shown.archived, shown.task) == (False, "tasks.other")


def test_a_producer_with_plain_sql_needs_four_columns_and_may_say_when(store: Store, rows: Rows) -> None:
    rows.execute(
        "INSERT INTO jobs_queue (task, args, group_id, priority) "
        """VALUES ('tasks.send_letter', '{"to": "a@example.org"}', 3, 10)"""
    )
    hour = "NOW() + INTERVAL 1 HOUR" if rows.is_mysql else "datetime('now', '+1 hour')"
    past = "NOW() - INTERVAL 1 HOUR" if rows.is_mysql else "datetime('now', '-1 hour')"
    rows.execute(f"INSERT INTO jobs_queue (task, due_at) VALUES ('tasks.later', {hour})")
    rows.execute(f"INSERT INTO jobs_queue (task, due_at) VALUES ('tasks.now', {past})")
    rows.execute(f"INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.waits', 5, {hour})")
    rows.execute(f"INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.woken', 5, {past})")
    assert store.due.wake(store.due.look().to_wake) == 1
    assert [task.task for task in claim(store)] == ["tasks.now", "tasks.woken", "tasks.send_letter"]
    assert [row["status"] for row in rows.all()] == [1, 5, 1, 5, 1]


# ---- beside other transactions


def test_a_look_for_new_rows_waits_for_nobody(store: Store, rows: Rows) -> None:
    add(store, 3)
    if rows.is_mysql:
        rows.execute("BEGIN")
        assert len(rows.execute("SELECT id FROM jobs_queue WHERE status = 0 FOR UPDATE")) == 1
    else:
        rows.execute("BEGIN IMMEDIATE")
    rows.execute("UPDATE jobs_queue SET status = 1")
    # Were it to wait, the lock would stay for as long as this thread waits, and the look would end in an error.
    assert store.claims.has_new(())
    assert store.claims.has_new((3, 5))
    rows.execute("COMMIT")
    assert not store.claims.has_new(())
    assert not store.claims.has_new((3, 5))


def test_threads_of_one_store_have_connections_of_their_own(store: Store, rows: Rows) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(10):
                add(store)
                for task in claim(store, 2):
                    assert start(store, task)
                    assert finish(store, task)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(AWAIT_SECONDS)
    assert failures == []
    for task in claim(store):
        assert finish(store, task)
    assert rows.all() == []


# ---- MySQL and MariaDB alone


@pytest.fixture
def mysql_store(emptied_mysql_dsn: str) -> Iterator[Store]:
    with TaskServer(emptied_mysql_dsn) as server:
        assert isinstance(server.store.database.dialect, MySQLDialect)
        yield server.store


@pytest.mark.parametrize("time_zone", ["+09:00", "-11:00"])
def test_a_producer_in_another_time_zone_adds_tasks_that_are_due_when_it_meant(
    mysql_server: MySQLServer, kept_mysql_dsn: str, mysql_store: Store, time_zone: str
) -> None:
    with mysql_server.connect(database=kept_mysql_dsn.rpartition("/")[2]) as producer, producer.cursor() as cursor:
        cursor.execute(f"SET time_zone = '{time_zone}'")
        cursor.execute(
            "INSERT INTO jobs_queue (task, args, group_id, priority) "
            """VALUES ('tasks.send_letter', '{"to": "a@example.org"}', 3, 10)"""
        )
        at_once = cursor.lastrowid
        cursor.execute("INSERT INTO jobs_queue (task, due_at) VALUES ('tasks.b', NOW() + INTERVAL 1 HOUR)")
        in_an_hour = cursor.lastrowid
        cursor.execute("INSERT INTO jobs_queue (task, due_at) VALUES ('tasks.c', NOW() - INTERVAL 1 HOUR)")
        an_hour_ago = cursor.lastrowid
        cursor.execute("INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.d', 5, NOW() + INTERVAL 1 HOUR)")
        cursor.execute("INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.e', 5, NOW() - INTERVAL 1 HOUR)")
        woken = cursor.lastrowid
        cursor.execute("SELECT UTC_TIMESTAMP(6)")
        [[now]] = cursor.fetchall()
    assert mysql_store.due.wake(mysql_store.due.look().to_wake) == 1
    assert ids(claim(mysql_store)) == [an_hour_ago, woken, at_once]
    shown = mysql_store.views.show(at_once)
    assert shown is not None
    assert abs(_instant(shown.created_at) - now) < timedelta(seconds=30)
    waiting = mysql_store.views.show(in_an_hour)
    assert waiting is not None
    assert waiting.status == Status.WAITING
    assert abs(_instant(waiting.due_at) - now - timedelta(hours=1)) < timedelta(seconds=30)


def test_instants_are_in_utc_where_the_server_s_own_clock_shows_another_zone(mariadb: MariaDB) -> None:
    with mariadb.database() as name:
        try:
            mariadb.execute("SET GLOBAL time_zone = '+05:00'")
            with TaskServer(mariadb.dsn(name)) as server:
                server.create_tables()
                task_id = server.add_task("tasks.send")
                task = claim_one(server.store)
                assert start(server.store, task)
                shown = server.store.views.show(task_id)
        finally:
            mariadb.execute("SET GLOBAL time_zone = 'SYSTEM'")
    [[now]] = mariadb.execute("SELECT UTC_TIMESTAMP(6)")
    assert shown is not None
    for instant in (shown.created_at, shown.started_at, shown.updated_at):
        assert abs(_instant(instant) - now) < timedelta(seconds=30)
    assert abs(_instant(shown.due_at) - now - timedelta(seconds=LEASE_SECONDS)) < timedelta(seconds=30)


def plan(store: Store, groups: tuple[int, ...], limit: int) -> dict[str, set[str | None]]:
    """The key that the claim uses for each table of its plan: the real table, however it is called there."""
    dialect = store.database.dialect
    skip = dialect.skip_locked if dialect.skips_locked else ""
    sql = "EXPLAIN FORMAT=TRADITIONAL " + claiming.claim_statement(groups, skip)

    def explain() -> dict[str, set[str | None]]:
        cursor = store.database.execute(sql, claiming.claim_values(1, LEASE_SECONDS, limit, groups))
        names = [column[0].lower() for column in cursor.description]
        keys: dict[str, set[str | None]] = {}
        for row in cursor.fetchall():
            line = dict(zip(names, row, strict=True))
            if line["table"] in ("task", "jobs_queue"):
                keys.setdefault(line["table"], set()).add(line["key"])
        return keys

    return store.database.run(AT_ONCE, explain)


def fill(store: Store, count: int) -> None:
    """Rows of eight groups and five priorities; every fourth one is finished."""
    store.producing.add_many((NewTask("tasks.send", None, n % 8, n % 5) for n in range(count)), lambda added: None)
    store.database.change("UPDATE {table} SET status = 2 WHERE id % 4 = 0")


def rows_read_by_a_claim(store: Store, groups: tuple[int, ...], limit: int) -> int:
    """How many rows and index entries the server's storage engine was asked for."""
    before = rows_read(store)
    database = store.database
    assert database.run(AT_ONCE, database.dialect.claiming.claim, database, 1, LEASE_SECONDS, limit, groups) == limit
    return rows_read(store) - before


def rows_read(store: Store) -> int:
    """By this connection so far."""
    rows = store.database.fetch("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(value) for _, value in rows)


@pytest.mark.parametrize("count", [8, 20_000])
def test_the_claim_picks_by_the_claim_indexes_and_updates_by_primary_key(mysql_store: Store, count: int) -> None:
    claim(mysql_store)  # a first one, which finds out what the server can do
    fill(mysql_store, count)
    # MySQL calls the updated table by its alias alone, and MariaDB too; what is picked from stands under its name.
    assert plan(mysql_store, (3, 5, 6), 100) == {"task": {"PRIMARY"}, "jobs_queue": {"claim_by_group"}}
    assert plan(mysql_store, (), 100) == {"task": {"PRIMARY"}, "jobs_queue": {"claim_any_group"}}


@pytest.mark.parametrize("groups", [(), (3, 5, 6)])
def test_a_claim_reads_no_more_rows_of_a_long_queue_than_of_a_short_one(
    mysql_store: Store, groups: tuple[int, ...]
) -> None:
    claim(mysql_store)
    fill(mysql_store, 1_000)
    short = rows_read_by_a_claim(mysql_store, groups, 50)
    fill(mysql_store, 20_000)
    long = rows_read_by_a_claim(mysql_store, groups, 50)
    assert long <= short * 1.2


@pytest.mark.parametrize("groups", [(), (1, 3, 5)])
def test_with_paused_groups_a_claim_picks_by_its_indexes_and_reads_no_more_of_a_long_queue(
    mysql_store: Store, emptied_mysql_dsn: str, groups: tuple[int, ...]
) -> None:
    """That of all groups goes from group to group by the index, where it would else read past what is paused."""
    rows = Rows(emptied_mysql_dsn)
    claim(mysql_store)
    pause(rows, 1, 4, 77)
    reads = []
    for count in (1_000, 20_000):
        fill(mysql_store, count)
        picked = groups or tuple(mysql_store.claims._groups_beside(mysql_store.claims.paused_groups()))
        assert sorted(picked) == [1, 3, 5] if groups else [0, 2, 3, 5, 6, 7]
        assert plan(mysql_store, picked, 50) == {"task": {"PRIMARY"}, "jobs_queue": {"claim_by_group"}}
        before = rows_read(mysql_store)
        assert len(claim(mysql_store, 50, *groups)) == 50
        reads.append(rows_read(mysql_store) - before)
    rows.close()
    short, long = reads
    assert long <= short * 1.2


def test_ids_are_right_where_a_server_counts_in_steps(mariadb: MariaDB) -> None:
    with mariadb.database() as name:
        try:
            mariadb.execute("SET GLOBAL auto_increment_increment = 3")
            with TaskServer(mariadb.dsn(name)) as server:
                server.create_tables()
                added = server.add_tasks([{"task": "tasks.send", "args": [n]} for n in range(1500)])
                found = mariadb.execute("SELECT id, args FROM jobs_queue ORDER BY id", database=name)
        finally:
            mariadb.execute("SET GLOBAL auto_increment_increment = 1")
    assert found == tuple((task_id, f"[{n}]") for n, task_id in enumerate(added))
    assert added[1] - added[0] == 3


@pytest.mark.parametrize("letter", ["x", '"', "🦊"], ids=["ascii", "quotes", "four-bytes"])
def test_many_long_tasks_can_be_added_where_a_statement_may_hold_one_mebibyte(mariadb: MariaDB, letter: str) -> None:
    [[default]] = mariadb.execute("SELECT @@GLOBAL.max_allowed_packet")
    args = [letter * (300_000 // len(json.dumps(letter, ensure_ascii=False)[1:-1].encode()))]
    with mariadb.database() as name:
        try:
            mariadb.execute("SET GLOBAL max_allowed_packet = 1048576")
            with TaskServer(mariadb.dsn(name)) as server:
                server.create_tables()
                assert len(server.add_tasks([{"task": "tasks.send", "args": args}] * 5)) == 5
        finally:
            mariadb.execute(f"SET GLOBAL max_allowed_packet = {default}")


# ---- binlog_format = STATEMENT, which refuses writes in READ COMMITTED


@pytest.fixture(scope="module")
def statement_server(mariadb: MariaDB) -> Iterator[MariaDB]:
    # mariadb is asked for as it says what to do where MariaDB is not installed.
    with MariaDB(False, "--log-bin", "--binlog-format=STATEMENT", "--server-id=1") as server:
        assert server.execute("SELECT @@log_bin, @@binlog_format") == ((1, "STATEMENT"),)
        yield server


@pytest.fixture
def statement_dsn(statement_server: MariaDB) -> Iterator[str]:
    with statement_server.database() as name:
        with TaskServer(statement_server.dsn(name)) as server:
            server.create_tables()
        yield statement_server.dsn(name)


TASKS = "ran = []\n\ndef note(number: int) -> None:\n    ran.append(number)\n"


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_drains_a_queue_where_the_binlog_holds_statements(
    statement_dsn: str, mode: str, tmp_path: Path
) -> None:
    (tmp_path / "noted_tasks.py").write_text(TASKS)
    with TaskServer(statement_dsn, mode=mode, modules="noted_tasks", folder=tmp_path) as server:
        for number in range(5):
            server.add_task("noted_tasks.note", [number], group_id=3)
        assert isinstance(server.store.database.dialect, MySQLDialect)
        assert server.store.database.dialect.abilities.isolation == REPEATABLE_READ
    with TaskServer(statement_dsn, mode=mode, modules="noted_tasks", folder=tmp_path) as server:
        assert server.run(groups=[3, 5], batch=2).done == 5


def test_many_tasks_can_be_added_first_of_all_where_the_binlog_holds_statements(statement_dsn: str) -> None:
    with TaskServer(statement_dsn) as server:
        assert len(server.add_tasks([{"task": "tasks.send"}] * 1500)) == 1500


def test_a_key_that_another_added_meanwhile_is_found_where_the_binlog_holds_statements(statement_dsn: str) -> None:
    """There a transaction sees by a plain look only what stood at its first one."""
    with TaskServer(statement_dsn) as one, TaskServer(statement_dsn) as two:
        two.add_task("tasks.send", unique_key="m")  # keys before it and behind it are none of each other's concern
        others: list[int] = []

        def tasks() -> Iterator[NewTask]:
            yield keyed("x")
            yield from [NewTask("tasks.send", None, 0, 0)] * 3000  # more than are kept before the first is added
            others.append(two.add_task("tasks.send", unique_key="late"))
            yield keyed("late")

        assert add_many(one.store, tasks())[-1:] == others


def test_each_thread_falls_back_where_the_binlog_holds_statements(statement_dsn: str) -> None:
    with TaskServer(statement_dsn) as server:
        outcomes: list[object] = []
        connected, go = threading.Event(), threading.Event()

        def add_later() -> None:
            server.store.tables.check()  # connects, before the other thread finds out
            connected.set()
            go.wait(AWAIT_SECONDS)
            try:
                outcomes.append(server.add_task("tasks.send"))
            except DatabaseError as error:
                outcomes.append(error)

        thread = threading.Thread(target=add_later)
        thread.start()
        assert connected.wait(AWAIT_SECONDS)
        first = server.add_task("tasks.send")
        go.set()
        thread.join(AWAIT_SECONDS)
        assert outcomes == [first + 1]


# ---- connections that the server dropped


def connection_id(store: Store) -> int:
    return int(store.database.fetch_value("SELECT CONNECTION_ID()"))


def is_gone(server: MySQLServer, connection: int) -> bool:
    return not server.execute(f"SELECT id FROM information_schema.processlist WHERE id = {connection}")


def await_gone(server: MySQLServer, connection: int) -> None:
    wait_until(lambda: is_gone(server, connection))


def kill(server: MySQLServer, connection: int) -> None:
    def is_killed() -> bool:
        # Again and again: MySQL 5.7 misses a KILL that comes as the connection begins to wait for its next statement.
        with suppress(pymysql.MySQLError):
            server.execute(f"KILL {connection}")
        return is_gone(server, connection)

    wait_until(is_killed)


def test_a_connection_that_the_server_dropped_for_idling_is_made_anew(
    mysql_server: MySQLServer, mysql_store: Store
) -> None:
    add(mysql_store)
    mysql_store.database.change("SET SESSION wait_timeout = 1")
    await_gone(mysql_server, connection_id(mysql_store))
    add(mysql_store)
    assert len(claim(mysql_store)) == 2


def test_a_killed_connection_is_found_out_once_it_was_idle(
    mysql_server: MySQLServer, mysql_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskserver.stores.database.database.IDLE_SECONDS", 0.0)
    add(mysql_store)
    kill(mysql_server, connection_id(mysql_store))
    assert len(add_many(mysql_store, [NewTask("tasks.send", None, 0, 0)] * 3)) == 3
    kill(mysql_server, connection_id(mysql_store))
    assert mysql_store.claims.has_new(())


def test_a_task_that_outlived_its_worker_s_connection_is_finished_on_a_new_one(
    mysql_server: MySQLServer, mysql_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskserver.stores.database.database.IDLE_SECONDS", 0.0)
    for _ in range(2):
        add(mysql_store)
    mysql_store.runs.begin("web1", "all")
    first, second = claim(mysql_store)
    assert start(mysql_store, first)
    kill(mysql_server, connection_id(mysql_store))
    assert mysql_store.finishes.advance([Finish(first, None)], Start(second, 10)) == ([Outcome.AS_ASKED], True)
    kill(mysql_server, connection_id(mysql_store))
    assert finish(mysql_store, second)
    mysql_store.runs.end("web1", "all", 1.0, "empty", (2, 2, 0, 0, 0))
    assert mysql_store.views.counts() == []
    assert [run.done for run in mysql_store.views.runs()] == [2]


def test_a_broken_connection_is_an_error_of_ours_and_the_next_use_connects_anew(
    mysql_server: MySQLServer, mysql_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskserver.stores.database.database.IDLE_SECONDS", 3600.0)  # else a slow test finds it mended
    kill(mysql_server, connection_id(mysql_store))
    with pytest.raises(DatabaseError):
        add(mysql_store)
    assert add(mysql_store)


def test_a_run_that_finds_its_connection_broken_raises_an_error_of_ours(
    mysql_server: MySQLServer, mysql_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskserver.stores.database.database.IDLE_SECONDS", 3600.0)  # else a slow test finds it mended
    kill(mysql_server, connection_id(mysql_store))
    with pytest.raises(DatabaseError):
        mysql_store.runs.begin("web1", "all")
    mysql_store.runs.begin("web1", "all")
