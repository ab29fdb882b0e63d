"""SQLite: its files, what a commit waits for, a database in memory, and columns that take what MySQL's types take."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from taskserver import TaskServer
from taskserver.stores.queue.transactions import Transactions
from tests.support.processes import together
from tests.support.queues import row_counts


@pytest.mark.parametrize(("address", "level"), [("{}/x.db", 2), ("{}/x.db?synchronous=normal", 1), (":memory:", 2)])
def test_each_connection_of_ours_has_the_synchronous_of_the_address(tmp_path: Path, address: str, level: int) -> None:
    with TaskServer(f"sqlite:///{address.format(tmp_path)}") as server:
        server.create_tables()
        database = server.store.database
        assert database.fetch_value("PRAGMA synchronous") == level
        assert database.fetch_value("PRAGMA journal_mode") == "wal"
        transactions = Transactions(server.store)
        transactions.open()
        assert transactions.connection.execute("PRAGMA synchronous").fetchone() == (level,)
        transactions.close()


def test_a_database_in_memory_is_shared_by_the_threads_of_its_process() -> None:
    with TaskServer("sqlite:///:memory:") as server:
        with together(*[lambda: [server.add_task("tasks.a") for _ in range(10)]] * 6):
            pass
        assert [count.rows for count in row_counts(server.store)] == [60]
        assert server.run().taken == 60


REFUSED: dict[str, tuple[object, ...]] = {
    "task": (None, "a" * 256),
    "group_id": (-1, 2**32 - 1, "three", 1.5),
    "priority": (2**31, -(2**31) - 1, None),
    "status": (-1, 256, "new"),
    "attempts": (-1,),
    "max_attempts": (-1,),
    "unique_key": ("ä" * 128,),
    "stage": (-1, 65_536, "first"),
    "awaited": (256, "yes", None),
    "due_at": (
        *("2026-11-28 16:48:40+00:00", "2026-11-28T16:48:40", "2026-02-29 00:00:00", "2026-01-31", "tomorrow"),
        *("", 1_790_000_000, "2026-11-28 16:48:40.1234567"),
    ),
}
TAKEN = ("'2028-02-29 23:59:59.999999'", "CURRENT_TIMESTAMP", "datetime('now', '+1 hour')", "NULL")


def test_a_column_refuses_what_the_types_of_mysql_refuse(sqlite_queue_dsn: str) -> None:
    path = sqlite_queue_dsn.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        for column, values in REFUSED.items():
            for value in values:
                row = {"task": "tasks.a"} | {column: value}
                sql = f"INSERT INTO jobs_queue ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})"
                with pytest.raises(sqlite3.IntegrityError):
                    file.execute(sql, tuple(row.values()))
        for instant in TAKEN:
            file.execute(f"INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.a', 5, {instant})")
