"""Rows that another program holds while a test looks what that costs whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.queues import Queue
from tests.support.rows import Rows

LOCK_WAITS = {
    "mysql": "SELECT 1 FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'",
    "postgresql": "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
}
"""A row for each transaction that waits for a lock, on MySQL anywhere on the server. SQLite does not tell."""


@contextmanager
def holding(dsn: str, which: str = "1 = 1", table: str = "jobs_queue") -> Iterator[Callable[[], object]]:
    """In the `with`, a transaction holds these rows and none beside them, on SQLite the whole file; what lets go."""
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
            other.execute("ROLLBACK")  # a server hears of a close later
        other.close()


def are_locks_awaited(queue: Queue, by: int = 1) -> bool:
    """Whether so many transactions wait for a lock, on a server that runs nothing else of that kind."""
    if not queue.is_postgresql:
        time.sleep(0.11)  # InnoDB shows the waits anew only where nobody has looked for 0.1 s
    return len(queue.sql(LOCK_WAITS[queue.kind])) >= by
