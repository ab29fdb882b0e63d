"""The floor on PostgreSQL: what psycopg takes for the same durable writes in our tables. Imports nothing of ours.

Nothing is checked, retried, logged or looked up.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import psycopg

Connection: TypeAlias = "psycopg.Connection[tuple[Any, ...]]"

COLUMNS = "task, args, group_id, priority"
INSERT = f"INSERT INTO jobs_queue ({COLUMNS}) VALUES (%s, %s, %s, %s) RETURNING id".encode()
IDS = b"SELECT nextval(pg_get_serial_sequence('jobs_queue', 'id')) FROM generate_series(1, %s)"
COPY = f"COPY jobs_queue (id, {COLUMNS}) FROM STDIN".encode()

CLAIM = b"""
WITH candidates AS MATERIALIZED (
    SELECT id, priority FROM jobs_queue WHERE status - 0 = 0 ORDER BY priority, id LIMIT 500
), locked AS MATERIALIZED (
    SELECT q.id, q.due_at FROM candidates c JOIN jobs_queue q ON q.id = c.id WHERE q.status = 0
    ORDER BY c.priority, c.id LIMIT 100 FOR UPDATE OF q SKIP LOCKED
)
UPDATE jobs_queue q
SET status = 1, claim = %s, due_at = now() + interval '120 seconds', started_at = NULL
FROM locked WHERE q.id = locked.id
RETURNING q.priority, q.id, q.task, q.args, q.attempts, q.max_attempts, q.group_id, now() - q.updated_at"""

START = b"""
UPDATE jobs_queue SET attempts = attempts + 1, max_attempts = 10, started_at = now(),
    due_at = now() + interval '120 seconds'
WHERE id = %s AND status = 1 AND claim = %s"""
FINISH = b"DELETE FROM jobs_queue WHERE id = %s AND status = 1 AND claim = %s"
NEXT = (
    b"WITH finished AS ("
    + FINISH
    + b" RETURNING 1), started AS ("
    + START
    + b""" RETURNING 1)
SELECT (SELECT count(*) FROM finished), (SELECT count(*) FROM started)"""
)

dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Floor:
    """The end of a task and the start of the next one share a commit."""

    def __init__(self, dsn: str) -> None:
        self.connection: Connection = psycopg.connect(dsn, autocommit=True)
        # As ours sets them. With JIT each insert took 20 ms more: the trigger reads a small table without an index.
        for setting in ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"):
            self.connection.execute(f"SET {setting} = off".encode())

    def add(self, numbers: range) -> None:
        for n in numbers:
            self.connection.execute(INSERT, ("tasks.work", dump([n]), 0, 0))

    def add_many(self, numbers: range) -> None:
        """All by COPY, with ids that were taken before, in a transaction."""
        with self.connection.transaction():
            ids = [row[0] for row in self.connection.execute(IDS, (len(numbers),))]
            with self.connection.cursor().copy(COPY) as copy:
                for task_id, n in zip(ids, numbers, strict=True):
                    copy.write_row((task_id, "tasks.work", dump([n]), 0, 0))

    def run(self, quota: int) -> None:
        """Claims of 100 tasks that do nothing, until the quota is reached."""
        token = int.from_bytes(os.urandom(8), "big") >> 1
        for _ in range(0, quota, 100):
            self._run_each([row[1] for row in sorted(self.connection.execute(CLAIM, (token,), prepare=False))], token)

    def _run_each(self, ids: Sequence[int], token: int) -> None:
        self.connection.execute(START, (ids[0], token))
        for this, following in pairwise(ids):
            self.connection.execute(NEXT, (this, token, following, token))
        self.connection.execute(FINISH, (ids[-1], token))
