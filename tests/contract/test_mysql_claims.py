"""What a claim costs on MySQL and MariaDB: the indexes of its plan, and the rows that it reads of a long queue."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskserver.stores import Store
from taskserver.stores.mysql import claiming
from taskserver.stores.mysql.dialect import MySQLDialect
from tests.contract.verbs import PLAIN, add, add_many, claim, pause
from tests.support.processes import wait_until
from tests.support.rows import Rows
from tests.support.servers import MySQLServer


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


def rows_read(store: Store) -> int:
    """Rows and index entries that the server's storage engine was asked for by this connection so far."""
    return sum(int(value) for _, value in store.database.fetch("SHOW SESSION STATUS LIKE 'Handler_read%'"))


@pytest.mark.parametrize("groups", [(), (1, 3, 5)])
@pytest.mark.parametrize("paused", [(), (1, 4, 77)], ids=["none paused", "some paused"])
def test_a_claim_picks_by_its_indexes_and_reads_no_more_of_a_long_queue(
    mysql_store: Store, mysql_queue_dsn: str, groups: tuple[int, ...], paused: tuple[int, ...]
) -> None:
    rows = Rows(mysql_queue_dsn)
    claim(mysql_store)  # a first one, which finds out what the server can do
    pause(rows, *paused)
    rows.close()
    index = "claim_by_group" if groups else "claim_any_group"
    reads = []
    for count in (2_000, 20_000):
        fill(mysql_store, count)
        if not paused:
            assert plan(mysql_store, groups) == {"task": {"PRIMARY"}, "jobs_queue": {index}}
        reads.append(rows_read_by_a_claim(mysql_store, 50, *groups))
    short, long = reads
    assert long <= short * 1.2


def rows_read_by_a_claim(store: Store, limit: int, *groups: int) -> int:
    before = rows_read(store)
    assert len(claim(store, limit, *groups)) == limit
    return rows_read(store) - before


def test_a_claim_reads_no_more_where_a_paused_backlog_is_longer(mysql_store: Store, mysql_queue_dsn: str) -> None:
    rows = Rows(mysql_queue_dsn)
    pause(rows, 4)
    rows.close()
    reads = []
    for count in (2_000, 20_000):
        add_many(mysql_store, [PLAIN._replace(group_id=4, priority=-1)] * count)
        add_many(mysql_store, [PLAIN._replace(group_id=group) for group in range(60)])
        before = rows_read(mysql_store)
        assert mysql_store.claims.has_new(())  # lists the groups
        assert len(claim(mysql_store, 50)) == 50
        reads.append(rows_read(mysql_store) - before)
    short, long = reads
    assert long <= short * 1.2


def test_the_claim_picks_by_the_claim_indexes_where_a_queue_has_eight_rows(mysql_store: Store) -> None:
    claim(mysql_store)
    fill(mysql_store, 8)
    assert plan(mysql_store, (3, 5, 6)) == {"task": {"PRIMARY"}, "jobs_queue": {"claim_by_group"}}
    assert plan(mysql_store, ()) == {"task": {"PRIMARY"}, "jobs_queue": {"claim_any_group"}}


def test_a_claim_that_an_administrator_ends_is_made_again(
    mysql_store: Store, mysql_server: MySQLServer, mysql_queue_dsn: str
) -> None:
    """At some moment of it, which decides what MySQL calls that: interrupted, or an unknown error."""
    add_many(mysql_store, [PLAIN] * 3000)
    find = (
        "SELECT id FROM information_schema.processlist "
        f"WHERE db = '{mysql_queue_dsn.rpartition('/')[2]}' AND info LIKE '%STRAIGHT_JOIN%'"
    )
    kills = 0

    def kill_one() -> None:
        nonlocal kills
        end = time.monotonic() + 5
        while time.monotonic() < end:
            for (connection,) in mysql_server.execute(find):
                time.sleep(random.uniform(0, 0.02))
                mysql_server.execute(f"KILL QUERY {connection}")
                kills += 1
                return

    for _ in range(10):
        killer = threading.Thread(target=kill_one)
        killer.start()
        # Where the first one took long, it is not made again, but gets nothing.
        assert len(claim(mysql_store, 1000) or claim(mysql_store, 1000)) == 1000
        killer.join()
        mysql_store.database.change("UPDATE {table} SET status = 0, claim = NULL, due_at = NULL")
    assert kills


def test_without_skip_locked_a_claim_leaves_a_row_that_another_one_took_while_it_waited(
    mysql_store: Store, mysql_server: MySQLServer, mysql_queue_dsn: str
) -> None:
    """As on MySQL 5.7 and MariaDB before 10.6."""
    mysql_store.database.dialect.skips_locked = False
    add(mysql_store)
    other = Rows(mysql_queue_dsn)
    other.execute("BEGIN")
    other.execute("UPDATE jobs_queue SET status = 1, claim = 5")
    with ThreadPoolExecutor(1) as worker:
        claimed = worker.submit(claim, mysql_store)
        wait_until(mysql_server.count_lock_waits)
        other.execute("COMMIT")
        assert claimed.result() == []
    assert other.one("status", "claim") == (1, 5)
    other.close()
