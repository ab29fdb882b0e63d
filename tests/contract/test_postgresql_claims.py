"""What a claim and other verbs cost on PostgreSQL: which indexes they read, what is prepared, and behind a pooler."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.errors import Refused
from taskserver.model.attempt import Finish, Start
from taskserver.model.task import ClaimedTask
from taskserver.stores import Store
from taskserver.stores.retrying import AT_ONCE, Scope
from tests.contract.verbs import PLAIN, add, add_many, claim, ids, start
from tests.support.postgresql import PostgreSQLServer, pooled
from tests.support.processes import wait_until
from tests.support.rows import Rows


@pytest.fixture
def store(postgresql_dsn: str) -> Iterator[Store]:
    """On a database of its own, which has no statistics yet."""
    with TaskServer(postgresql_dsn) as server:
        server.create_tables()
        yield server.store


def say_that_no_task_is_new(store: Store) -> None:
    """By statistics, which then are old."""
    change = store.database.change
    change("INSERT INTO {table} (task, status) SELECT 'tasks.x', 2 FROM generate_series(1, 5000)")
    change("ANALYZE {table}")


def explained(store: Store, sql: str, values: Any = ()) -> tuple[set[str], int]:
    """By which indexes PostgreSQL reads the queue for a statement, which is done; and how many buffers it reads."""
    lines = [str(row[0]) for row in store.database.rows(f"EXPLAIN (ANALYZE, BUFFERS) {sql}", values)]
    assert not [line for line in lines if "Seq Scan on jobs_queue " in line], "\n".join(lines)
    used = {line.split("using jobs_queue_")[1].split()[0] for line in lines if "using jobs_queue_" in line}
    found = next(line for line in lines if "Buffers: " in line)  # of the whole
    return used, sum(int(number) for number in re.findall(r"(?:hit|read)=(\d+)", found))


@pytest.fixture
def plan(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], tuple[set[str], int]]:
    """The same for the first statement of a verb, which is rolled back before the verb is done."""
    session = type(store.database.session())
    send = session.send

    def plan_of(verb: Callable[[], object]) -> tuple[set[str], int]:
        plans: list[tuple[set[str], int]] = []

        def explain(self: Any, sql: str, values: Any = ()) -> Any:
            if "jobs_queue" in sql and not sql.startswith("EXPLAIN"):
                send(self, "BEGIN")
                plans.append(explained(store, sql.replace("{", "{{").replace("}", "}}"), values))
                send(self, "ROLLBACK")
            return send(self, sql, values)

        with monkeypatch.context() as patch:
            patch.setattr(session, "send", explain)
            verb()
        return plans[0]

    return plan_of


FILL = """INSERT INTO {table} (task, group_id, priority, status)
    SELECT 'tasks.x', n % 8, n % 5, CASE n % 3 WHEN 0 THEN 2 ELSE 0 END FROM generate_series(1, ?) AS n"""


@pytest.mark.parametrize("has_old_statistics", [False, True])
@pytest.mark.parametrize("groups", [(), (1, 3, 5)], ids=["all", "some"])
def test_a_claim_picks_by_its_index_and_reads_no_more_of_a_long_queue(
    store: Store, plan: Callable[..., tuple[set[str], int]], groups: tuple[int, ...], has_old_statistics: bool
) -> None:
    """Rows of eight groups and five priorities, every third one finished."""
    if has_old_statistics:
        say_that_no_task_is_new(store)
    claim(store)  # the connection is there
    reads = []
    for count in (2_000, 20_000):
        store.database.change(FILL, (count,))
        used, buffers = plan(lambda: claim(store, 20, *groups))
        assert used - {"pkey", "paused_pkey"} == {"claim_by_group" if groups else "claim_any_group"}
        reads.append(buffers)
    assert reads[1] <= reads[0] * 1.5, reads


def test_writes_to_one_row_read_only_that_row(store: Store, plan: Callable[..., tuple[set[str], int]]) -> None:
    """Though by the statistics an index of the status could seem to have no row for it."""
    say_that_no_task_is_new(store)
    add_many(store, [PLAIN] * 3000)
    tasks = claim(store, 1000)
    assert start(store, tasks[0])
    for write in (
        lambda: store.finishes.renew(tasks[0]),
        lambda: store.claims.release([tasks[1]]),
        lambda: store.due.reclaim_unstarted([tasks[2].id]),
        lambda: store.finishes.write_progress([tasks[0]], "{}", 1.0),
    ):
        used, buffers = plan(write)
        assert used == {"pkey"}
        assert buffers < 100


def test_a_row_that_another_claim_took_since_it_was_seen_is_left(
    store: Store, postgresql_dsn: str, postgresql_server: PostgreSQLServer
) -> None:
    """A claim sees the rows as they are when it begins, and locks them later."""
    add_many(store, [PLAIN])

    def claim_slowly() -> list[ClaimedTask]:
        for sql in (
            "SET lock_timeout = 0",
            # It asks for pauses before it looks for rows.
            "CREATE TEMPORARY VIEW jobs_queue_paused AS "
            "SELECT CAST(0 AS bigint) AS group_id FROM pg_advisory_lock_shared(7) AS held WHERE held::text = 'never'",
        ):
            store.database.change(sql)
        return claim(store)

    with closing(Rows(postgresql_dsn)) as other, ThreadPoolExecutor(1) as worker:
        other.execute("SELECT pg_advisory_lock(7)")
        claimed = worker.submit(claim_slowly)
        wait_until(postgresql_server.count_lock_waits)
        other.execute("UPDATE jobs_queue SET status = 1, claim = 5")
        other.execute("SELECT pg_advisory_unlock(7)")
        assert claimed.result() == []
        assert other.one("status", "claim") == (1, 5)


def test_a_claim_waits_for_no_row_that_others_hold(store: Store, postgresql_dsn: str) -> None:
    first, second = add_many(store, [PLAIN] * 2)
    with psycopg.connect(postgresql_dsn) as other:
        other.execute("SELECT id FROM jobs_queue WHERE id = %s FOR UPDATE", (first,))
        assert ids(claim(store)) == [second]


def test_a_transaction_that_went_on_after_an_error_is_not_taken_for_committed(store: Store) -> None:
    """PostgreSQL answers its COMMIT with ROLLBACK, which is no error."""

    def go_on() -> None:
        with suppress(DatabaseError):
            store.database.execute("SELECT 1 / 0")

    with pytest.raises(DatabaseError, match="rolled back"):
        store.database.run(AT_ONCE._replace(scope=Scope.TRANSACTION), go_on)


def test_the_writes_of_a_run_are_prepared_and_claims_are_planned_each_time(store: Store) -> None:
    """An old plan of a claim may be one for an empty queue."""
    add_many(store, [PLAIN] * 3)
    first, second, third = claim(store)
    assert start(store, first)
    for ended, following in ((first, second), (second, third)):
        assert store.finishes.advance([Finish(ended)], Start(following, 3))[1]
    rows = store.database.fetch("SELECT statement FROM pg_prepared_statements")
    assert sorted(sql.split()[0] for (sql,) in rows if "candidates" not in sql) == ["UPDATE", "WITH"]
    assert len(rows) == 2


def test_behind_a_transaction_pooler_nothing_of_a_session_is_relied_on(store: Store, postgresql_dsn: str) -> None:
    with pooled(postgresql_dsn) as dsn, TaskServer(dsn) as server, psycopg.connect(dsn) as other:
        database = server.store.database
        add_many(store, [PLAIN] * 4)
        tasks = claim(server.store)
        assert start(server.store, tasks[0])
        sessions = {database.fetch_value("SELECT pg_backend_pid()")}
        for ended, following in pairwise(tasks):
            other.execute("SELECT 1")  # its transaction keeps the server's session that was ours
            assert server.store.finishes.advance([Finish(ended)], Start(following, 3))[1]
            sessions.add(database.fetch_value("SELECT pg_backend_pid()"))
            assert database.fetch_value("SHOW enable_seqscan") == "off"
            other.rollback()
        assert len(sessions) > 1
        assert database.fetch("SELECT name FROM pg_prepared_statements") == []
        notices = database.dialect.notices(database)
        notices.begin()
        assert not notices.is_listening


def test_an_id_that_a_row_has_already_is_named_with_the_statement_that_fixes_it(store: Store) -> None:
    """Only PostgreSQL's counter does not follow the ids that rows are given."""
    first = add(store)
    for step in (1, 7):
        store.database.change("INSERT INTO {table} (id, task) VALUES (?, 'tasks.send')", (first + step,))
    with pytest.raises(Refused, match="ids of their own") as raised:
        add(store)
    (fix,) = re.findall("SELECT setval.*", str(raised.value))
    store.database.fetch(fix)
    assert add(store) == first + 8
