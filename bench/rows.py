"""Fills queue tables quickly, by INSERT … SELECT, and looks at what stands in them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from taskserver.model.task import Status

from .place import TASK, Place

# Group and priority of a made row; {n} counts from 1. The wanted groups are 3, 5 and 6, at priorities 10 to 14.
WANTED = "CASE {n} % 3 WHEN 0 THEN 3 WHEN 1 THEN 5 ELSE 6 END, 10 + {n} % 5"
# The same groups, sooner.
WANTED_SOONER = "CASE {n} % 3 WHEN 0 THEN 3 WHEN 1 THEN 5 ELSE 6 END, {n} % 5"
# Other groups (7 to 13), and sooner than every wanted task.
OTHERS_SOONER = "7 + {n} % 7, {n} % 5"

_AT_ONCE = 100_000


class Filler(NamedTuple):
    """How one database makes rows: runs a statement, counts from {begin} to {end}, writes {n} as JSON, knows now."""

    sql: Callable[[str], Any]
    numbers: str
    args: str
    now: str

    def fill(
        self, table: str, count: int, columns: str = WANTED, *, status: Status = Status.NEW, task: str = TASK
    ) -> None:
        """Add `count` rows that are new, done or fatal."""
        more = values = ""
        if status != Status.NEW:
            more = ", status, attempts, started_at, finished_at"
            values = f", {int(status)}, 1, {self.now}, {self.now}"
        insert = f"INSERT INTO {table} (task, args, group_id, priority{more}) SELECT '{task}', {self.args}, "
        for begin in range(1, count + 1, _AT_ONCE):
            numbers = self.numbers.format(begin=begin, end=min(count, begin + _AT_ONCE - 1))
            self.sql(insert + columns.format(n="seq") + values.format(n="seq") + " FROM " + numbers)


FORMS = {
    "mysql": ("seq_{begin}_to_{end}", """CONCAT('{"n": ', seq, '}')""", "NOW(6)"),
    "postgresql": ("generate_series({begin}, {end}) AS n (seq)", """'{"n": ' || seq || '}'""", "now()"),
    "sqlite": (
        "(WITH RECURSIVE n(seq) AS (SELECT {begin} UNION ALL SELECT seq + 1 FROM n WHERE seq < {end}) SELECT * FROM n)",
        """'{"n": ' || seq || '}'""",
        "strftime('%Y-%m-%d %H:%M:%f000', 'now')",
    ),
}
"""What a Filler of each kind of database needs after its function."""


def mariadb(place: Place) -> Filler:
    """Fills tables of the benchmarks' MariaDB."""
    return Filler(place.sql, *FORMS["mysql"])


def sqlite(path: Path) -> Filler:
    """Fills tables of an SQLite file."""

    def sql(statement: str) -> None:
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)

    return Filler(sql, *FORMS["sqlite"])


def fill(place: Place, table: str, count: int, task: str = TASK) -> None:
    """Add waiting rows of the wanted groups to a MariaDB table."""
    mariadb(place).fill(table, count, task=task)


def count(place: Place, table: str) -> int:
    """How many rows of any status stand in a MariaDB table."""
    return int(place.sql(f"SELECT COUNT(*) FROM {table}"))
