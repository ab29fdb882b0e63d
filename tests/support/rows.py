"""The database behind a DSN, read, changed and locked with plain SQL in UTC: never by the store that is tested."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.support.postgresql import connection_in_utc
from tests.support.servers import plain_connection

MODES = ("delete", "move", "mark")
COLUMNS = (
    "id, task, args, group_id, priority, status, attempts, max_attempts, due_at, claim, unique_key, error_text, "
    "created_at, started_at, finished_at, updated_at, version, stages, stage, awaited, result, progress"
)

# ---- SQL by the kind of the database, the first word of a DSN

AFTER = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now', '{} seconds') || '000'",
    "mysql": "NOW(6) + INTERVAL {} SECOND",
    "postgresql": "statement_timestamp() + INTERVAL '{} seconds'",
}
"""The instant so many seconds from now, by the database's clock."""
SECONDS_BETWEEN = {
    "sqlite": "(julianday({1}) - julianday({0})) * 86400.0",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, {0}, {1}) / 1e6",
    "postgresql": "CAST(EXTRACT(EPOCH FROM {1} - {0}) AS float8)",
}
HOURS_AGO = {
    "sqlite": "strftime('%Y-%m-%d %H:00:00', 'now', '-{} hours')",
    "mysql": "FROM_UNIXTIME((UNIX_TIMESTAMP() DIV 3600 - {}) * 3600)",
    "postgresql": "date_trunc('hour', now() - INTERVAL '{} hours', 'UTC')",
}
"""The begin of the hour so many hours ago."""
MINUTE_AND_SECOND = {
    "sqlite": "strftime('%M%S', 'now')",
    "mysql": "DATE_FORMAT(NOW(), '%i%s')",
    "postgresql": "to_char(now(), 'MISS')",
}
"""Of this instant, as four digits."""
EXPLAIN = {"sqlite": "EXPLAIN QUERY PLAN", "mysql": "EXPLAIN FORMAT = TRADITIONAL", "postgresql": "EXPLAIN"}
ANALYZE = {"sqlite": "ANALYZE", "mysql": "ANALYZE TABLE jobs_queue", "postgresql": "ANALYZE jobs_queue"}
REFUSE_DELETE = {
    "sqlite": [
        "CREATE TRIGGER keeping BEFORE DELETE ON jobs_queue FOR EACH ROW WHEN OLD.id = {} "
        "BEGIN SELECT RAISE(ABORT, 'an order names it'); END"
    ],
    "mysql": [
        "CREATE TABLE orders (task_id BIGINT UNSIGNED NOT NULL, FOREIGN KEY (task_id) REFERENCES jobs_queue (id))",
        "INSERT INTO orders VALUES ({})",
    ],
    "postgresql": [
        "CREATE TABLE orders (task_id BIGINT NOT NULL, FOREIGN KEY (task_id) REFERENCES jobs_queue (id))",
        "INSERT INTO orders VALUES ({})",
    ],
}
"""A row of another table refers to the task of this id; SQLite seldom checks foreign keys."""
LET_DELETE = {"sqlite": "DROP TRIGGER keeping", "mysql": "DROP TABLE orders", "postgresql": "DROP TABLE orders"}

Row = dict[str, Any]


def connection_of(dsn: str, **options: Any) -> Any:
    """A connection of the tests' own, in UTC, of which each statement commits; `options` are PyMySQL's."""
    if dsn.startswith("sqlite:"):
        return sqlite3.connect(dsn.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
    if dsn.startswith("postgresql:"):
        return connection_in_utc(dsn)
    parts = urlsplit(dsn)
    return plain_connection(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path[1:],
        charset="utf8mb4",
        autocommit=True,
        init_command="SET time_zone = '+00:00'",
        **options,
    )


def execute(connection: Any, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Rows of a statement with a `?` for each value."""
    if values and not isinstance(connection, sqlite3.Connection):
        sql = sql.replace("%", "%%").replace("?", "%s")
    cursor = connection.cursor()
    cursor.execute(sql, *([values] if values else []))
    rows = list(cursor.fetchall()) if cursor.description else []
    cursor.close()
    return rows


class Rows:
    """A connection of the tests' own."""

    def __init__(self, dsn: str, **options: Any) -> None:
        self.kind = dsn.partition(":")[0]
        self.is_mysql = self.kind == "mysql"
        self.is_postgresql = self.kind == "postgresql"
        self.is_sqlite = self.kind == "sqlite"
        self.begin = "BEGIN IMMEDIATE" if self.is_sqlite else "BEGIN"
        """The statement by which a transaction begins that is going to write."""
        self._connection = connection_of(dsn, **options)

    def execute(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Rows of a statement with a `?` for each value."""
        return execute(self._connection, sql, values)

    def all(self, table: str = "jobs_queue", columns: str = COLUMNS, order: str = "id") -> list[Row]:
        names, rows = columns.split(", "), self.execute(f"SELECT {columns} FROM {table} ORDER BY {order}")
        return [dict(zip(names, row, strict=True)) for row in rows]

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


@contextmanager
def holding(dsn: str, which: str = "1 = 1", table: str = "jobs_queue") -> Iterator[Callable[[], object]]:
    """In the `with`, a transaction locks only these rows, on SQLite the whole file; what releases them."""
    other = Rows(dsn)
    if other.is_mysql:
        other.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    other.execute(other.begin)
    if not other.is_sqlite:
        assert other.execute(f"SELECT * FROM {table} WHERE {which} FOR UPDATE")
    try:
        yield lambda: other.execute("ROLLBACK")
    finally:
        if not other.is_sqlite:
            other.execute("ROLLBACK")  # a server notices a close later
        other.close()


FIXTURES = Path(__file__).resolve().parents[1] / "contract" / "fixtures"


def run_fixture(rows: Rows, name: str) -> None:
    """The statements of a file of tables or rows of an older version, as `client.py init` ran them."""
    text = (FIXTURES / name).read_text(encoding="utf-8").partition("\n\n")[2].strip()
    text = re.sub(r"jobs_queue\w*", r"`\g<0>`" if rows.is_mysql else r'"\g<0>"', text)
    for statement in re.split(r";\n+(?=\S)", text):
        rows.execute(statement)
