"""MySQL and MariaDB: what a claim reads and survives, and time zones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.mysql import claiming
from taskserver.stores.mysql.dialect import MySQLDialect
from tests.contract.verbs import PLAIN, add, add_many, claim, claim_one, ids, start, wake
from tests.support.processes import wait_until
from tests.support.rows import Rows
from tests.support.servers import MariaDB, MySQLServer


@pytest.fixture
def rows(mysql_queue_dsn: str) -> Iterator[Rows]:
    seen = Rows(mysql_queue_dsn)
    yield seen
    seen.close()


# ---- what a claim costs


def fill(store: Store, count: int) -> None:
    """Rows of eight groups and five priorities; every fourth one is finished."""
    add_many(store, (PLAIN._replace(group_id=n % 8, priority=n % 5) for n in range(count)))
    store.database.change("UPDATE {table} SET status = 2 WHERE id % 4 = 0")


def plan(store: Store, groups: tuple[int, ...]) -> dict[str, set[str | None]]:
    """The key that the claim uses for each table of its plan.

    MySQL calls the updated table by its alias alone, and MariaDB too; what is picked from stands under its name.
    """
    dialect = store.database.dialect
    assert isinstance(dialect, MySQLDialect)
    skip = dialect.skip_locked if dialect.skips_locked else ""
    sql = "EXPLAIN FORMAT=TRADITIONAL " + claiming.claim_statement(groups, skip)
    cursor = store.database.execute(sql, claiming.claim_values(1, 120, 50, groups))
    names = [column[0].lower() for column in cursor.description]
    lines = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {table: {line["key"] for line in lines if line["table"] == table} for table in ("task", "jobs_queue")}


def rows_read_by(store: Store, verb: Callable[[], list[Any]]) -> int:
    """Rows and index entries that the server's storage engine is asked for while 50 tasks are claimed."""

    def read() -> int:
        return sum(int(value) for _, value in store.database.fetch("SHOW SESSION STATUS LIKE 'Handler_read%'"))

    before = read()
    assert len(verb()) == 50
    return read() - before


@pytest.mark.parametrize("groups", [(), (1, 3, 5)])
@pytest.mark.parametrize("paused", [(), (1, 4, 77)], ids=["none paused", "some paused"])
def test_a_claim_picks_by_its_indexes_and_reads_no_more_of_a_long_queue(
    mysql_store: Store, groups: tuple[int, ...], paused: tuple[int, ...]
) -> None:
    claim(mysql_store)  # a first one, which finds out what the server can do
    mysql_store.claims.pause(paused)
    reads = []
    for count in (8, 1_000, 8_000):
        fill(mysql_store, count)
        if not paused:
            index = "claim_by_group" if groups else "claim_any_group"
            assert plan(mysql_store, groups) == {"task": {"PRIMARY"}, "jobs_queue": {index}}
        if count > 8:
            reads.append(rows_read_by(mysql_store, lambda: claim(mysql_store, 50, *groups)))
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


def test_without_skip_locked_a_claim_leaves_a_row_that_another_one_took_while_it_waited(
    mysql_store: Store, mysql_server: MySQLServer, rows: Rows
) -> None:
    """As on MySQL 5.7 and MariaDB before 10.6."""
    mysql_store.database.dialect.skips_locked = False
    add(mysql_store)
    rows.execute("BEGIN")
    rows.set("status = 1, claim = 5")
    with ThreadPoolExecutor(1) as worker:
        claimed = worker.submit(claim, mysql_store)
        wait_until(mysql_server.count_lock_waits)
        rows.execute("COMMIT")
        assert claimed.result() == []
    assert rows.one("status", "claim") == (1, 5)


# ---- time zones


@pytest.mark.parametrize("time_zone", ["+09:00", "-11:00"])
def test_a_producer_in_another_time_zone_adds_tasks_that_are_due_when_it_meant(
    mysql_store: Store, rows: Rows, time_zone: str
) -> None:
    rows.execute(f"SET time_zone = '{time_zone}'")
    rows.execute(
        "INSERT INTO jobs_queue (task, status, due_at) VALUES ('at_once', 0, NULL), "
        "('in_an_hour', 0, NOW() + INTERVAL 1 HOUR), ('an_hour_ago', 0, NOW() - INTERVAL 1 HOUR), "
        "('waits', 5, NOW() + INTERVAL 1 HOUR), ('woken', 5, NOW() - INTERVAL 1 HOUR)"
    )
    assert wake(mysql_store) == 1
    claimed = claim(mysql_store)
    assert [task.task for task in claimed] == ["at_once", "an_hour_ago", "woken"]
    at_once, in_an_hour = (mysql_store.views.show(ids(claimed)[0] + further) for further in (0, 1))
    assert at_once is not None
    assert in_an_hour is not None
    assert in_an_hour.status == Status.WAITING
    assert [seconds_ahead(mysql_store, one) for one in (at_once.created_at, in_an_hour.due_at)] == [
        *(pytest.approx(0, abs=30), pytest.approx(3600, abs=30))
    ]


def seconds_ahead(store: Store, instant: datetime | None) -> float:
    ((now,),) = store.database.fetch("SELECT UTC_TIMESTAMP(6)")
    assert instant is not None
    return float((instant - now.replace(tzinfo=timezone.utc)).total_seconds())


def test_instants_are_in_utc_where_the_server_s_own_clock_shows_another_zone(mariadb: MariaDB) -> None:
    zone = mariadb.set_globally(time_zone="+05:00")
    with mariadb.database() as name, zone, TaskServer(mariadb.dsn(name)) as server:
        server.create_tables()
        task_id = server.add_task("tasks.send")
        assert start(server.store, claim_one(server.store))
        shown = server.store.views.show(task_id)
        assert shown is not None
        for instant, ahead in ((shown.created_at, 0), (shown.started_at, 0), (shown.due_at, 120)):
            assert seconds_ahead(server.store, instant) == pytest.approx(ahead, abs=30)
