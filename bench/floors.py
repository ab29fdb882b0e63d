"""The floors: what the bare driver takes for the same durable work. Imports nothing of ours.

Every statement here does to the table what ours does, row for row; nothing is checked, retried, logged or looked up.
"""

from __future__ import annotations

import json
import os
from itertools import pairwise
from typing import Any, TypeAlias

import pymysql

Connection: TypeAlias = "pymysql.Connection[Any]"
Row = tuple[str, dict[str, Any], int, int]

INSERT = "INSERT INTO {table} (task, args, group_id, priority) VALUES (%s, %s, %s, %s)"

# Made once: json.dumps with options makes an encoder each time.
dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

CANDIDATES = """
(SELECT id, priority FROM {table} WHERE status = 0 {group}
 ORDER BY priority, id LIMIT {batch} FOR UPDATE SKIP LOCKED)"""

CLAIM = """
UPDATE {table} JOIN (SELECT id FROM ({candidates}) AS found ORDER BY priority, id LIMIT {batch}) AS chosen USING (id)
SET status = 1, claim = %s, due_at = NOW(6) + INTERVAL 120 SECOND, started_at = NULL
WHERE status = 0"""

READ = """
SELECT id, task, args, attempts, max_attempts FROM {table}
WHERE status = 1 AND claim = %s ORDER BY priority, id"""

START = """
UPDATE {table}
SET attempts = attempts + 1, max_attempts = 10, started_at = NOW(6), due_at = NOW(6) + INTERVAL 120 SECOND
WHERE id = %s AND claim = %s"""

FINISH = "DELETE FROM {table} WHERE id = %s AND claim = %s"


def connect(port: int, database: str, *, autocommit: bool) -> Connection:
    """As cheap as the driver connects to a loopback address."""
    return pymysql.connect(
        host="127.0.0.1",
        port=port,
        user="root",
        password=os.environ["MYSQL_PWD"],
        database=database,
        charset="utf8mb4",
        autocommit=autocommit,
        ssl_disabled=True,
    )


def drain(port: int, database: str, table: str, groups: tuple[int, ...] = (), batch: int = 100) -> int:
    """Claim by `batch`, start and delete every task; a commit holds the finish of one and the start of the next."""
    connection = connect(port, database, autocommit=False)
    cursor = connection.cursor()
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    claim_tasks = _claim(table, groups, batch)
    read, start, finish = (statement.format(table=table) for statement in (READ, START, FINISH))
    claim = int.from_bytes(os.urandom(8), "big") >> 1
    done = 0
    while cursor.execute(claim_tasks, (claim,)):
        connection.commit()
        cursor.execute(read, (claim,))
        ids = [row[0] for row in cursor.fetchall()]
        cursor.execute(start, (ids[0], claim))
        connection.commit()
        for this, following in pairwise(ids):
            cursor.execute(finish, (this, claim))
            cursor.execute(start, (following, claim))
            connection.commit()
        cursor.execute(finish, (ids[-1], claim))
        connection.commit()
        done += len(ids)
    connection.close()
    return done


def _claim(table: str, groups: tuple[int, ...], batch: int) -> str:
    clauses = [f"AND group_id = {group}" for group in groups] or [""]
    candidates = " UNION ALL ".join(CANDIDATES.format(table=table, group=clause, batch=batch) for clause in clauses)
    return CLAIM.format(table=table, candidates=candidates, batch=batch)


def add_one_by_one(connection: Connection, table: str, rows: list[Row]) -> None:
    """One autocommitted INSERT a task."""
    cursor = connection.cursor()
    insert = INSERT.format(table=table)
    for task, args, group_id, priority in rows:
        cursor.execute(insert, (task, dump(args), group_id, priority))


def add_many(connection: Connection, table: str, rows: list[Row], statement_rows: int = 1_000) -> None:
    """Multi-row INSERTs in one transaction."""
    cursor = connection.cursor()
    insert = INSERT.format(table=table)
    for begin in range(0, len(rows), statement_rows):
        part = rows[begin : begin + statement_rows]
        cursor.executemany(insert, [(task, dump(args), group, priority) for task, args, group, priority in part])
    connection.commit()
