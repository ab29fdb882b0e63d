"""Does the overview, which the page, check, metrics and status show, cost little however many rows there are?"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from taskserver import TaskServer
from taskserver.health.status import read_status
from taskserver.model.task import Status

from . import rows
from .measure import Bound, Line, compare, seconds
from .place import Place
from .rows import WANTED, Filler

NAMES = 20
HOURS = 24
STATS = """
    INSERT INTO {table}_stats (hour, group_id, task, begun, attempts, done, ran_seconds)
    SELECT FROM_UNIXTIME((UNIX_TIMESTAMP() DIV 3600 - seq DIV {a_hour}) * 3600), seq % 3, CONCAT('tasks.n', seq % 20),
        5, 5, 5, 1.0
    FROM seq_0_to_{last}
"""


def overview(place: Place) -> Iterator[Line]:
    """On MariaDB: 1,000,000 rows of 3 groups and 20 names, of which 10,000 are fatal, and 1,000 rows with 10.

    Then 1,000,000 rows that are all new and in one group, which once were sorted for each look.
    """
    far, near = place.size(1_000_000, 20_000), place.size(1_000, 500)
    folder = place.deployment("overview")
    servers = {}
    for table, count in (("overview_far", far), ("overview_near", near), ("overview_alike", far)):
        servers[table] = TaskServer(place.dsn, table=table, folder=folder)
        servers[table].create_tables()
        if table == "overview_alike":
            rows.mariadb(place).fill(table, count, "0, 0")
        else:
            _fill(place, rows.mariadb(place), table, count)
    place.settle()

    def read(table: str) -> float:
        return seconds(partial(read_status, servers[table].store, servers[table].settings)) * 1000

    for table in servers:
        read(table)
    for words, table in (("rows", "overview_far"), ("new rows of one group", "overview_alike")):
        yield compare(
            f"overview: {far:,} {words} / {near:,} rows",
            partial(read, table),
            partial(read, "overview_near"),
            pairs=place.pairs * 3,
            unit="ms",
            bound=Bound("at most", 5),
        )
    for server in servers.values():
        server.close()


def _fill(place: Place, filler: Filler, table: str, count: int) -> None:
    for name in range(NAMES):
        filler.fill(table, count * 99 // 100 // NAMES, WANTED, task=f"tasks.n{name}")
    filler.fill(table, count // 100, WANTED, status=Status.FATAL)
    place.sql(f"UPDATE {table} SET error_text = CONCAT('ValueError: ', id % 7) WHERE status = 4")
    a_hour = 3 * NAMES
    place.sql(STATS.format(table=table, a_hour=a_hour, last=HOURS * a_hour - 1))
