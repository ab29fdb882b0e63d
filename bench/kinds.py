"""What kinds of tasks that are not used, or wait beside it, cost a claim."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from taskserver import TaskServer
from taskserver.model.task import Status
from taskserver.stores.mysql.claiming import claim_statement

from . import rows
from .claim import GROUPS, compare_runs
from .measure import Bound, Line, compare, seconds
from .place import Place
from .rows import WANTED_SOONER, Filler

BESIDE = {Status.WAITING: 0.4, Status.DONE: 0.3, Status.FATAL: 0.2, Status.ERROR: 0.1}
"""What waits, or is over, beside the new tasks: of the same groups and sooner; the fatal ones hold keys."""
_PAUSED = re.compile(r"\s+AND \(SELECT COUNT\(\*\) FROM \S+ WHERE group_id IN \(%s, 4294967295\)\) = 0")


def kinds(place: Place) -> Iterator[Line]:
    """On MariaDB."""
    yield _beside(place, "MariaDB", place.dsn, rows.mariadb(place))
    yield _pauses(place)


def kinds_sqlite(place: Place) -> Iterator[Line]:
    """On SQLite."""
    path = place.folder / "kinds.db"
    yield _beside(place, "SQLite", f"sqlite:///{path}", rows.sqlite(path))


def _beside(place: Place, database: str, dsn: str, filler: Filler) -> Line:
    """A run of some claims beside 1,000,000 rows that are delayed, done, fatal or in error, and beside none."""
    beside = place.size(1_000_000, 4_000)

    def fill_alone(table: str) -> None:
        filler.fill(table, place.size(10_000, 1_000))

    def fill_beside(table: str) -> None:
        fill_alone(table)
        for status, part in BESIDE.items():
            filler.fill(table, int(beside * part), WANTED_SOONER, status=status)

    name = f"{database}: {{}} beside {beside:,} delayed, done, fatal / beside none"
    return compare_runs(place, name, dsn, filler, {"bench_beside": fill_beside, "bench_alone": fill_alone})


def _pauses(place: Place) -> Line:
    """The claiming UPDATE, which asks whether a group is paused, against the same that does not; none is paused."""
    claims = place.size(200, 20)
    with TaskServer(place.dsn, table="bench_pauses") as server:
        server.create_tables()
        rows.fill(place, "bench_pauses", place.size(10_000, 1_000))
        store = server.store
        asking = store.database.compose(claim_statement(GROUPS, store.database.dialect.skip_locked))
    connection = place.connect(autocommit=False)
    cursor = connection.cursor()
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def work(statement: str, values: Sequence[Any]) -> float:
        def claim() -> None:
            for _ in range(claims):
                if cursor.execute(statement, values) != 100:
                    raise SystemExit("a claim did not get its 100 tasks")
                connection.rollback()

        return seconds(claim) / claims * 1e6

    def bounds(*marks: int) -> list[int]:
        return [value for group in GROUPS for value in (*[group] * len(marks), 100)] + [100, 4711, 120]

    line = compare(
        "MariaDB: a claim of 100 that asks for pauses / does not",
        lambda: work(asking, bounds(1, 2)),
        lambda: work(_PAUSED.sub("", asking), bounds(1)),
        pairs=place.pairs,
        unit="us/claim",
        bound=Bound("at most", 1.1),
    )
    connection.close()
    place.sql("DROP TABLE bench_pauses")
    return line
