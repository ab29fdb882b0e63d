"""SQL that tests say in the words of each kind of database: by `kind`, the first word of a DSN."""

from __future__ import annotations

from collections.abc import Sequence

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
INSERT_OR_IGNORE = {
    "sqlite": "INSERT OR IGNORE INTO {}",
    "mysql": "INSERT IGNORE INTO {}",
    "postgresql": "INSERT INTO {} ON CONFLICT DO NOTHING",
}


FIRST_ID_AGAIN = {
    "mysql": "ALTER TABLE jobs_queue AUTO_INCREMENT = 1",
    "postgresql": "ALTER SEQUENCE jobs_queue_id_seq RESTART",
}
"""The next row of an empty queue has the id 1."""
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
"""A row of another table refers to the task of this id; an SQLite that minds foreign keys is rare."""
LET_DELETE = {"sqlite": "DROP TRIGGER keeping", "mysql": "DROP TABLE orders", "postgresql": "DROP TABLE orders"}
"""So that it can go again."""
LOCK_WAITS = {
    "mysql": "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    "postgresql": "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
}
"""A row for each transaction that waits for a lock, on MySQL anywhere on the server. SQLite does not tell."""


def kind_of(dsn: str) -> str:
    """sqlite, mysql or postgresql."""
    return dsn.partition(":")[0]


def marked(statement: str, values: Sequence[object]) -> tuple[str, Sequence[object] | None]:
    """A statement with a `?` for each value, as PyMySQL and psycopg take it."""
    return (statement.replace("%", "%%").replace("?", "%s"), values) if values else (statement, None)
