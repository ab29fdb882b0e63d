"""A row of each kind, written by SQL, and what a rerun by SQL makes of it."""

from __future__ import annotations

import json
import re

from tests.support.documents import blocks
from tests.support.queues import LONG_AGO, Queue

FAR = "2036-01-01 00:00:00.000000"
TOKEN = 17


def put(queue: Queue, status: int = 0, **columns: object) -> int:
    """Writes a row; its id."""
    row = {"task": "tasks.note", "status": status, **columns}
    marks = ", ".join("?" * len(row))
    queue.sql(f"INSERT INTO jobs_queue ({', '.join(row)}) VALUES ({marks})", *row.values())
    ((row_id,),) = queue.sql("SELECT MAX(id) FROM jobs_queue")
    return int(row_id)


KINDS: dict[str, dict[str, object]] = {
    "new": {"status": 0},
    "waiting": {"status": 5, "due_at": FAR},
    "waiting for others": {"status": 5},
    "error": {"status": 3, "attempts": 2, "due_at": FAR, "error_text": "E: e"},
    "fatal": {"status": 4, "attempts": 9, "error_text": "E: e", "finished_at": LONG_AGO, "max_attempts": 9},
    "lost": {"status": 4, "attempts": 1, "claim": TOKEN, "error_text": "lost: its worker", "max_attempts": 1},
    "claimed": {"status": 1, "claim": TOKEN, "due_at": FAR, "attempts": 3},
    "running": {"status": 1, "claim": TOKEN, "due_at": FAR, "started_at": LONG_AGO, "attempts": 1},
    "running, to run again": {"status": 1, "claim": TOKEN, "due_at": FAR, "started_at": LONG_AGO, "attempts": 0},
    "running, cancelled": {
        "status": 1, "claim": TOKEN, "due_at": FAR, "started_at": LONG_AGO, "attempts": 1, "error_text": "cancelled",
    },
    "cancelled": {"status": 7, "attempts": 1, "error_text": "cancelled", "finished_at": LONG_AGO},
    "done": {"status": 2, "attempts": 1, "finished_at": LONG_AGO},
    "strange": {"status": 9},
}  # fmt: skip


def put_all_kinds(queue: Queue) -> dict[str, int]:
    return {kind: put(queue, **{"updated_at": LONG_AGO} | columns) for kind, columns in KINDS.items()}  # type: ignore[arg-type]


SHOWN = [
    re.sub(r"VALUES \('.*?'\)\s", "VALUES (?, ?, ?) ", re.sub(r"-- .*", "", one.text)).strip().rstrip(";")
    for one in blocks("docs/kinds/unique.md")
    if one.kind == "sql" and "attempts = 0" in one.text
]
FOR_MYSQL, FOR_SQLITE = sorted(SHOWN, key=lambda statement: "ON CONFLICT" in statement)
RUNNING = "old.status = 1 AND old.started_at IS NOT NULL"
BY_SQL = {
    "mysql": FOR_MYSQL,
    "sqlite": FOR_SQLITE,
    "postgresql": f"""
        INSERT INTO jobs_queue AS old (task, args, unique_key) VALUES (?, ?, ?)
        ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO UPDATE SET
            args = excluded.args, attempts = 0, error_text = NULL,
            status = CASE WHEN {RUNNING} THEN 1 WHEN old.status = 5 AND old.due_at IS NULL THEN 5 ELSE 0 END,
            due_at = CASE WHEN {RUNNING} THEN old.due_at END,
            updated_at = now()
    """,
}
STATES = tuple(KINDS)
GOES_ON = {"waiting for others": 5} | {state: 1 for state in STATES if "running" in state}
"""Statuses that a rerun leaves as they are."""


def rerun_by_sql(queue: Queue, args: list[object], key: str) -> None:
    queue.sql(BY_SQL[queue.kind], "tasks.note", json.dumps(args), key)


def put_each_state(queue: Queue, version: int | None = None) -> None:
    """A row in each state, which is its key."""
    for state, columns in KINDS.items():
        row = {"args": '["old"]', "unique_key": state, "version": version, **columns}
        put(queue, **row)  # type: ignore[arg-type]


def assert_run_again(queue: Queue, version: int | None = None) -> None:
    """Each of these rows has its state as its arguments, and is new, unless it runs or waits for other tasks."""
    for state in STATES:
        columns = "status, attempts, args, error_text, due_at IS NULL, version"
        (row,) = queue.sql(f"SELECT {columns} FROM jobs_queue WHERE unique_key = ?", state)
        status = GOES_ON.get(state, 0)
        assert (row[0], row[1], json.loads(row[2]), *row[3:]) == (status, 0, [state], None, status != 1, version), state
