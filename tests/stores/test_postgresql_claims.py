"""What a claim costs on PostgreSQL: the indexes of its plan, whatever the statistics say, and what others do to it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from taskserver import TaskServer
from taskserver.model.attempt import Finish, Start
from taskserver.stores import Store
from taskserver.stores.postgresql.dialect import WORDS
from taskserver.stores.queue.counts import Counts
from taskserver.stores.queue.views import Pages
from tests.conftest import without
from tests.stores.verbs import PLAIN, add_many, claim, ids, start
from tests.support.pgbouncer import pooled
from tests.support.rows import Rows
from tests.support.servers import find_program
from tests.support.threads import together

GROUPS = (1, 3, 5)


@pytest.fixture
def store(emptied_postgresql_dsn: str) -> Iterator[Store]:
    with TaskServer(emptied_postgresql_dsn) as server:
        yield server.store


@pytest.fixture
def rows(emptied_postgresql_dsn: str) -> Iterator[Rows]:
    seen = Rows(emptied_postgresql_dsn)
    yield seen
    seen.close()


def fill(store: Store, count: int) -> None:
    """Rows of eight groups and five priorities; every third one is finished."""
    store.database.change(
        "INSERT INTO {table} (task, group_id, priority, status) "
        "SELECT 'tasks.x', n % 8, n % 5, CASE n % 3 WHEN 0 THEN 2 ELSE 0 END FROM generate_series(1, ?) AS n",
        (count,),
    )


@pytest.fixture
def plan(store: Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[set[str], int, int]]:
    """Does a verb, and tells how PostgreSQL read the queue for its statements.

    By which indexes; how many buffers the first one read; how many rows were looked at beside an index alone.
    """
    session = store.database.session()
    send = type(session).send

    def explained(verb: Callable[[], object]) -> tuple[set[str], int, int]:
        lines: list[str] = []

        def explain(self: Any, sql: str, values: Any = ()) -> Any:
            if "jobs_queue" in sql and not sql.startswith("EXPLAIN"):
                send(self, "BEGIN")
                cursor = send(self, f"EXPLAIN (ANALYZE, BUFFERS) {sql}", values)
                lines.extend(row[0] for row in cursor.fetchall())
                send(self, "ROLLBACK")
            return send(self, sql, values)

        with monkeypatch.context() as patch:
            patch.setattr(type(session), "send", explain)
            verb()
        assert not [line for line in lines if "Seq Scan on jobs_queue " in line], "\n".join(lines)
        used = {line.split("using jobs_queue_")[1].split()[0] for line in lines if "using jobs_queue_" in line}
        hits = [int(line.split("shared hit=")[1].split()[0]) for line in lines if "Buffers: shared hit=" in line]
        fetches = [int(line.split("Heap Fetches:")[1]) for line in lines if "Heap Fetches:" in line]
        return used, hits[0], sum(fetches)

    return explained


@pytest.mark.parametrize("statistics", ["none", "that no task is new", "of now"])
@pytest.mark.parametrize("groups", [(), GROUPS], ids=["all", "some"])
def test_a_claim_picks_by_its_index_and_reads_no_more_of_a_long_queue(
    store: Store,
    rows: Rows,
    plan: Callable[..., tuple[set[str], int, int]],
    groups: tuple[int, ...],
    statistics: str,
) -> None:
    claim(store)  # the connection is there
    if statistics == "that no task is new":
        rows.execute("INSERT INTO jobs_queue (task, status) SELECT 'tasks.x', 2 FROM generate_series(1, 5000)")
        rows.execute("ANALYZE jobs_queue")
    index = "claim_by_group" if groups else "claim_any_group"
    reads = []
    for count in (2_000, 20_000):
        fill(store, count)
        if statistics == "of now":
            rows.execute("VACUUM ANALYZE jobs_queue")
        used, hits, _ = plan(lambda: claim(store, 20, *groups))
        assert used - {"pkey", "paused_pkey"} == {index}
        reads.append(hits)
    short, long = reads
    assert long <= short * 1.5, reads


LOOKS: dict[str, tuple[str, tuple[object, ...]]] = {
    "groups": (WORDS["groups_of_status"].format("{table}", "", 0), (1000,)),
    "groups of done ones": (WORDS["groups_of_status"].format("{table}", "", 2), (1000,)),
    "ages": (Counts.AGES, (100,)),
    "ages of last": (Counts.AGES_OF_LAST, (0, 0, 0, 20)),
    "page": (Pages.OF_UNDATED.replace("{wanted}", "1 = 1"), (0, 2**40, 30)),
    "page of done ones": (Pages.OF_UNDATED.replace("{wanted}", "1 = 1"), (2, 2**40, 30)),
    "page of dated ones": (Pages.OF_DATED.replace("{wanted}", "1 = 1"), (5, "2026-01-01", "2026-01-01", 7, 30)),
}


@pytest.mark.parametrize("statistics", ["none", "that no task is new", "of now"])
def test_a_look_reads_no_more_of_a_long_queue(store: Store, rows: Rows, statistics: str) -> None:
    if statistics == "that no task is new":
        rows.execute("INSERT INTO jobs_queue (task, status) SELECT 'tasks.x', 2 FROM generate_series(1, 5000)")
        rows.execute("ANALYZE jobs_queue")
    read: list[dict[str, int]] = []
    for count in (2_000, 20_000):
        fill(store, count)
        if statistics == "of now":
            rows.execute("VACUUM ANALYZE jobs_queue")
        read.append({name: buffers(store, *look) for name, look in LOOKS.items()})
    short, long = read
    assert {name: (short[name], long[name]) for name in LOOKS if long[name] > short[name] * 1.5 + 10} == {}


def buffers(store: Store, sql: str, values: tuple[object, ...]) -> int:
    """How many buffers a SELECT reads."""
    lines = [str(row[0]) for row in store.database.fetch(f"EXPLAIN (ANALYZE, BUFFERS) {sql}", values)]
    found = next(line for line in lines if "Buffers: " in line)  # of the whole
    return sum(int(number) for number in re.findall(r"(?:hit|read)=(\d+)", found))


def test_a_count_of_groups_scans_no_table(store: Store, plan: Callable[..., tuple[set[str], int, int]]) -> None:
    fill(store, 5_000)
    used, _, _ = plan(lambda: Counts(store.database).by_group())
    assert used <= {"by_status", "claim_by_group", "wake_due", "pkey"}  # the last one for the highest ids


def test_writes_to_one_row_read_that_row_alone(
    store: Store, rows: Rows, plan: Callable[..., tuple[set[str], int, int]]
) -> None:
    """Though by the statistics an index of the status could seem to have no row for it."""
    rows.execute("INSERT INTO jobs_queue (task, status) SELECT 'tasks.x', 2 FROM generate_series(1, 3000)")
    rows.execute("ANALYZE jobs_queue")
    add_many(store, [PLAIN] * 3000)
    tasks = claim(store, 1000)
    assert start(store, tasks[0])
    for write in (
        lambda: store.finishes.renew(tasks[0]),
        lambda: store.claims.release([tasks[1]]),
        lambda: store.due.reclaim_unstarted([tasks[2].id]),
        lambda: store.finishes.write_progress([tasks[0]], "{}", 1.0),
    ):
        used, hits, _ = plan(write)
        assert used == {"pkey"}
        assert hits < 100
    assert store.finishes.advance([Finish(tasks[0])], None)


def test_four_workers_that_claim_at_once_get_all_that_there_are_and_each_task_once(
    store: Store, emptied_postgresql_dsn: str
) -> None:
    got: list[list[int]] = []

    def claim_some() -> None:
        with TaskServer(emptied_postgresql_dsn) as server:
            while some := ids(claim(server.store, 25, *GROUPS)):
                got.append(some)

    add_many(store, (PLAIN._replace(group_id=GROUPS[n % 3], priority=n % 4) for n in range(2000)))
    with together(*[claim_some] * 4):
        pass
    claimed = Counter(task_id for some in got for task_id in some)
    assert len(claimed) == 2000
    assert set(claimed.values()) == {1}
    # While one looks, others may take most of what it sees.
    assert len([some for some in got if len(some) < 25]) < len(got) / 5


@pytest.mark.parametrize("groups", [(), (0,)], ids=["all", "some"])
def test_a_claim_goes_behind_any_number_of_rows_that_another_transaction_holds(
    store: Store, emptied_postgresql_dsn: str, groups: tuple[int, ...]
) -> None:
    added = add_many(store, [PLAIN] * 3000)
    other = Rows(emptied_postgresql_dsn)
    other.execute("BEGIN")
    other.execute(f"SELECT * FROM jobs_queue WHERE id < {added[2900]} FOR UPDATE")
    assert ids(claim(store, 10, *groups)) == added[2900:2910]
    other.execute("ROLLBACK")
    other.close()


def test_the_writes_of_a_run_are_prepared_and_claims_are_planned_anew(store: Store, rows: Rows) -> None:
    """Of a claim an older plan may be for a queue that was empty."""
    add_many(store, [PLAIN] * 3)
    first, second, third = claim(store)
    assert start(store, first)
    for ended, following in ((first, second), (second, third)):
        assert store.finishes.advance([Finish(ended)], Start(following, 3))[1]
    prepared = [row[0].split() for row in store.database.fetch("SELECT statement FROM pg_prepared_statements")]
    assert sorted(words[0] for words in prepared) == ["UPDATE", "WITH"]
    assert not [words for words in prepared if "candidates" in words]


def test_behind_a_transaction_pooler_nothing_of_a_session_is_relied_on(
    store: Store, emptied_postgresql_dsn: str
) -> None:
    if find_program("pgbouncer") is None:
        without("pgbouncer is not installed")
    store.database.change(
        "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', "
        "current_database()); END $$"
    )
    with pooled(emptied_postgresql_dsn) as dsn, TaskServer(dsn) as server, psycopg.connect(dsn) as other:
        pooled_store, database = server.store, server.store.database
        others = add_many(store, [PLAIN] * 4)
        tasks = claim(pooled_store)
        assert ids(tasks) == others
        assert start(pooled_store, tasks[0])
        sessions = {database.fetch_value("SELECT pg_backend_pid()")}
        for ended, following in pairwise(tasks):
            other.execute("SELECT 1")  # its transaction keeps the server's session that was ours
            assert pooled_store.finishes.advance([Finish(ended)], Start(following, 3))[1]
            sessions.add(database.fetch_value("SELECT pg_backend_pid()"))
            assert database.fetch_value("SHOW transaction_isolation") == "read committed"
            assert database.fetch_value("SHOW enable_seqscan") == "off"
            other.rollback()
        assert len(sessions) > 1
        assert database.fetch("SELECT name FROM pg_prepared_statements") == []
        notices = database.dialect.notices(database)
        notices.begin()
        assert not notices.is_listening
    store.database.change("DO $$ BEGIN EXECUTE format('ALTER DATABASE %I RESET ALL', current_database()); END $$")


def test_rounds_of_many_finishes_are_no_statements_of_their_own_each(store: Store) -> None:
    """Each would be planned and kept by the server, with megabytes for a round of a hundred failures."""
    for count in range(12, 18):
        added = add_many(store, [PLAIN] * count)
        tasks = claim(store, count)
        assert all(start(store, task) for task in tasks)
        finishes = [Finish(task, error_text="E: e") if task.id % 3 else Finish(task) for task in tasks]
        assert len(store.finishes.advance(finishes, None)[0]) == len(added)
    prepared = [row[0].split()[0] for row in store.database.fetch("SELECT statement FROM pg_prepared_statements")]
    assert sorted(prepared) == ["DELETE", "UPDATE", "UPDATE"]


@pytest.mark.parametrize("every", [1, 10])
def test_the_floor_of_the_bench_claims_by_our_index_and_does_all(
    store: Store, rows: Rows, emptied_postgresql_dsn: str, every: int
) -> None:
    from bench.peers.floor import CLAIM, Floor

    fill(store, 330)
    floor = Floor(emptied_postgresql_dsn, every)
    lines = floor.connection.execute(b"EXPLAIN " + CLAIM, (1,)).fetchall()
    assert any("using jobs_queue_claim_any_group" in str(line) for (line,) in lines), lines
    floor.run()
    floor.connection.close()
    assert rows.statuses() == [2] * 110
