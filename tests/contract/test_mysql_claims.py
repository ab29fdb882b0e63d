"""MySQL and MariaDB: what a claim and a finish read and survive, and time zones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.model.attempt import Finish, Outcome
from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.mysql import claiming
from taskserver.stores.mysql.dialect import MySQLDialect
from taskserver.stores.queue.batches import Batches
from taskserver.stores.queue.dependencies import Dependencies
from taskserver.stores.queue.finishes import FinishWrites
from tests.contract.verbs import ENDINGS, PLAIN, a_running_task, add, add_many, claim, end, start, wake
from tests.support.processes import wait_until
from tests.support.rows import ANALYZE, EXPLAIN, Rows
from tests.support.servers import MySQLServer


def fill(store: Store, count: int) -> None:
    """Rows of eight groups and five priorities; every fourth one is finished."""
    add_many(store, (PLAIN._replace(group_id=n % 8, priority=n % 5) for n in range(count)))
    store.database.change("UPDATE {table} SET status = 2 WHERE id % 4 = 0")


def plan(store: Store, groups: tuple[int, ...]) -> dict[str, set[str | None]]:
    """The key that the claim uses for each table of its plan.

    MySQL and MariaDB show the updated table by its alias, and the one from which rows are picked by its name.
    """
    dialect = store.database.dialect
    assert isinstance(dialect, MySQLDialect)
    skip = dialect.skip_locked if dialect.skips_locked else ""
    sql = f"{EXPLAIN['mysql']} {claiming.claim_statement(groups, skip)}"
    lines = lines_of(store.database.execute(sql, claiming.claim_values(1, 120, 50, groups)))
    return {table: {line["key"] for line in lines if line["table"] == table} for table in ("task", "jobs_queue")}


def lines_of(plan: Any) -> list[dict[str, Any]]:
    """Of the cursor of an EXPLAIN."""
    names = [column[0].lower() for column in plan.description]
    return [dict(zip(names, row, strict=True)) for row in plan.fetchall()]


def rows_read_by(store: Store, verb: Callable[[], list[Any]]) -> int:
    """Rows and index entries that the server's storage engine is asked for while 50 tasks are claimed."""

    def read() -> int:
        return sum(int(value) for _, value in store.database.fetch("SHOW SESSION STATUS LIKE 'Handler_read%'"))

    before = read()
    assert len(verb()) == 50
    return read() - before


@pytest.mark.parametrize("groups", [(), (1, 3, 5)])
def test_a_claim_picks_by_its_indexes_and_reads_no_more_of_a_long_queue(
    mysql_store: Store, groups: tuple[int, ...]
) -> None:
    claim(mysql_store)  # a first one, which finds out what the server can do
    reads = []
    for count in (8, 1_000, 8_000):
        fill(mysql_store, count)
        index = "claim_by_group" if groups else "claim_any_group"
        assert plan(mysql_store, groups) == {"task": {"PRIMARY"}, "jobs_queue": {index}}
        if count > 8:
            reads.append(rows_read_by(mysql_store, lambda: claim(mysql_store, 50, *groups)))
    assert reads[1] <= reads[0] * 1.2


def test_a_claim_reads_no_more_among_index_entries_of_tasks_that_ended(mysql_store: Store, mysql_rows: Rows) -> None:
    """They look to the optimizer like as many tasks in progress; here a reader's snapshot keeps them."""
    batches = Batches(mysql_store)
    fill(mysql_store, 4_000)
    mysql_rows.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
    mysql_rows.statuses()
    reads = []
    for lives in (2, 55):
        for _ in range(lives):
            tasks = claim(mysql_store, 50)
            batches.start(tasks, 3)
            batches.complete(tasks)
        reads.append(rows_read_by(mysql_store, lambda: claim(mysql_store, 50)))
    assert reads[1] <= reads[0] * 1.2


def test_a_claim_reads_no_more_where_a_paused_backlog_is_longer(mysql_store: Store) -> None:
    mysql_store.claims.pause([4])
    reads = []
    for count in (1_000, 8_000):
        add_many(mysql_store, [PLAIN._replace(group_id=4, priority=-1)] * count)
        add_many(mysql_store, [PLAIN._replace(group_id=group) for group in range(60)])
        reads.append(
            rows_read_by(mysql_store, lambda: claim(mysql_store, 50) if mysql_store.claims.has_new(()) else [])
        )
    assert reads[1] <= reads[0] * 1.2


def assert_reads_only_its_rows(plan: Any) -> None:
    """If another index or a scan comes into question, the optimizer chooses it at times.

    Then the statement waits for rows of other workers, and deadlocks with them. MySQL explains the table into which
    rows are inserted, too.
    """
    lines = [line for line in lines_of(plan) if line["table"] != "jobs_queue_done"]
    assert [line["key"] for line in lines] == ["PRIMARY"], lines
    assert all(line["type"] == "const" or line["possible_keys"] == "PRIMARY" for line in lines), lines


@pytest.mark.parametrize(
    ("mode", "ending"), [("move", "well"), ("mark", "well"), *(("delete", ending) for ending in ENDINGS)]
)
def test_a_finish_reads_no_row_but_its_own(mysql_store: Store, mode: str, ending: str) -> None:
    task = a_running_task(mysql_store)
    for sql, values in FinishWrites(mode, 60).of(ENDINGS[ending](task)):
        assert_reads_only_its_rows(mysql_store.database.execute(f"{EXPLAIN['mysql']} {sql}", values))
        assert mysql_store.database.change(sql, values) == 1


@pytest.fixture
def watched(mysql_store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each DELETE and each copy into the archive from here on: its plan is looked at first."""
    session = type(mysql_store.database.session())
    send, found = session.send, []

    def watch(self: Any, sql: str, values: Sequence[Any] = ()) -> Any:
        if sql.startswith("DELETE") or "jobs_queue_done" in sql:
            assert_reads_only_its_rows(send(self, f"{EXPLAIN['mysql']} {sql}", values))
            found.append(sql)
        return send(self, sql, values)

    monkeypatch.setattr(session, "send", watch)
    return found


@pytest.mark.parametrize(("mode", "writes"), [("delete", 1), ("move", 2)])
def test_several_finishes_at_once_read_no_rows_but_their_own(
    mysql_store: Store, mysql_rows: Rows, monkeypatch: pytest.MonkeyPatch, watched: list[str], mode: str, writes: int
) -> None:
    monkeypatch.setattr(mysql_store, "mode", mode)
    add_many(mysql_store, [PLAIN] * 20)
    batches, tasks = Batches(mysql_store), claim(mysql_store, 10)
    batches.start(tasks, 3)
    mysql_rows.execute(ANALYZE["mysql"])  # the kept table may have statistics of another test
    assert batches.complete(tasks) == ({task.id for task in tasks}, False)
    assert len(watched) == writes


def test_the_end_of_a_parent_reads_no_edges_but_its_own(mysql_store: Store, watched: list[str]) -> None:
    if "MariaDB" not in str(mysql_store.database.fetch_value("SELECT VERSION()")):
        pytest.skip("MySQL 9 reads so few edges all the same: it costs as much as the index")
    parent = a_running_task(mysql_store)
    parents = [parent.id, add(mysql_store)] * 3
    children = add_many(mysql_store, [PLAIN._replace(delay_seconds=0.0, depends_on=str(one)) for one in parents])
    assert Dependencies(mysql_store.database).decide(children) == 6
    assert end(mysql_store, Finish(parent)) == Outcome.AS_ASKED
    assert len(watched) == 2


def test_without_skip_locked_a_claim_leaves_a_row_that_another_one_took_while_it_waited(
    mysql_store: Store, mysql_server: MySQLServer, mysql_rows: Rows
) -> None:
    """As on MySQL 5.7 and MariaDB before 10.6."""
    mysql_store.database.dialect.skips_locked = False
    add(mysql_store)
    mysql_rows.execute("BEGIN")
    mysql_rows.set("status = 1, claim = 5")
    with ThreadPoolExecutor(1) as worker:
        claimed = worker.submit(claim, mysql_store)
        wait_until(mysql_server.count_lock_waits)
        mysql_rows.execute("COMMIT")
        assert claimed.result() == []
    assert mysql_rows.one("status", "claim") == (1, 5)


def test_instants_are_right_whatever_the_time_zones_of_the_server_and_of_a_producer(
    mysql_queue_dsn: str, mysql_server: MySQLServer, mysql_rows: Rows
) -> None:
    mysql_rows.execute("SET time_zone = '-11:00'")
    mysql_rows.execute(
        "INSERT INTO jobs_queue (task, status, due_at) VALUES ('at_once', 0, NULL), "
        "('in_an_hour', 0, NOW() + INTERVAL 1 HOUR), ('an_hour_ago', 0, NOW() - INTERVAL 1 HOUR), "
        "('waits', 5, NOW() + INTERVAL 1 HOUR), ('woken', 5, NOW() - INTERVAL 1 HOUR)"
    )
    with mysql_server.set_globally(time_zone="+05:00"), TaskServer(mysql_queue_dsn) as server:
        assert wake(server.store) == 1
        tasks = claim(server.store)
        assert [task.task for task in tasks] == ["at_once", "an_hour_ago", "woken"]
        assert start(server.store, tasks[0])
        at_once, in_an_hour = (server.store.views.show(tasks[0].id + further) for further in (0, 1))
        assert at_once
        assert in_an_hour
        assert in_an_hour.status == Status.WAITING
        now = datetime.now(timezone.utc)
        for instant, ahead in ((at_once.created_at, 0), (at_once.started_at, 0), (in_an_hour.due_at, 3600)):
            assert instant
            assert (instant - now).total_seconds() == pytest.approx(ahead, abs=30)
