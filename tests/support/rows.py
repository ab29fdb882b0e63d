"""The database behind a DSN, seen and changed with plain SQL in UTC: never through the store that is tested."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.postgresql import connection_in_utc
from tests.support.servers import plain_connection
from tests.support.words import AFTER, kind_of, marked

MODES = ("delete", "move", "mark")
COLUMNS = (
    "id, task, args, group_id, priority, status, attempts, max_attempts, due_at, claim, unique_key, error_text, "
    "created_at, started_at, finished_at, updated_at, version, stages, stage, awaited, "
    "result, progress"
)

Row = dict[str, Any]


class Rows:
    """A connection of the tests' own."""

    def __init__(self, dsn: str) -> None:
        self.kind = kind_of(dsn)
        self.is_mysql = self.kind == "mysql"
        self.is_postgresql = self.kind == "postgresql"
        self.is_sqlite = self.kind == "sqlite"
        self.begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        """The statement by which a transaction begins that is going to write."""
        self._connection: Any
        if self.is_postgresql:
            self._connection = connection_in_utc(dsn)
        elif self.is_mysql:
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

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a statement; a `?` stands for each value."""
        cursor = self._connection.cursor()
        cursor.execute(*((sql, values) if self.is_sqlite else marked(sql, values)))
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

    def one(self, *columns: str) -> Any:
        """Of the only row: the value of a column, or the values of several."""
        ((*values,),) = self.execute(f"SELECT {', '.join(columns)} FROM jobs_queue")
        return values[0] if len(columns) == 1 else tuple(values)

    def statuses(self) -> list[int]:
        return [status for (status,) in self.execute("SELECT status FROM jobs_queue ORDER BY id")]

    def set(self, assignments: str) -> None:
        """In all rows, or in those that a WHERE behind the assignments names."""
        self.execute(f"UPDATE jobs_queue SET {assignments}")

    def after(self, seconds: float) -> str:
        """SQL for the instant so many seconds from now, by the database's clock."""
        return AFTER[self.kind].format(seconds)

    def seconds_from_now(self, instant: object) -> float:
        (now,) = self.execute(f"SELECT {self.after(0)}")[0]
        return (as_instant(instant) - as_instant(now)).total_seconds()

    def close(self) -> None:
        self._connection.close()


def as_instant(value: object) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
