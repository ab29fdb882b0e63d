"""Rows that another program locks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.support.rows import Rows


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
