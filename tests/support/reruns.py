"""A rerun as plain SQL writes it, and rows with keys in each state that it may meet."""

from __future__ import annotations

import json

from tests.support.queues import Queue

RUNNING = "status = 1 AND started_at IS NOT NULL"
RUNNING_THERE = "old.status = 1 AND old.started_at IS NOT NULL"
BY_SQL = {
    "mysql": f"""
        INSERT INTO jobs_queue (task, args, unique_key) VALUES (?, ?, ?)
        ON DUPLICATE KEY UPDATE
            args = VALUES(args), attempts = 0, error_text = NULL,
            status = IF({RUNNING}, 1, IF(status = 5 AND due_at IS NULL, 5, 0)),
            due_at = IF({RUNNING}, due_at, NULL)
    """,
    "sqlite": f"""
        INSERT INTO jobs_queue (task, args, unique_key) VALUES (?, ?, ?)
        ON CONFLICT (unique_key) DO UPDATE SET
            args = excluded.args, attempts = 0, error_text = NULL,
            status = CASE WHEN {RUNNING} THEN 1 WHEN status = 5 AND due_at IS NULL THEN 5 ELSE 0 END,
            due_at = CASE WHEN {RUNNING} THEN due_at END,
            updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'
    """,
    "postgresql": f"""
        INSERT INTO jobs_queue AS old (task, args, unique_key) VALUES (?, ?, ?)
        ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO UPDATE SET
            args = excluded.args, attempts = 0, error_text = NULL,
            status = CASE WHEN {RUNNING_THERE} THEN 1 WHEN old.status = 5 AND old.due_at IS NULL THEN 5 ELSE 0 END,
            due_at = CASE WHEN {RUNNING_THERE} THEN old.due_at END,
            updated_at = now()
    """,
}
"""As docs/kinds/unique.md has it."""


def rerun_by_sql(queue: Queue, args: list[object], key: str) -> None:
    queue.sql(BY_SQL[queue.kind], "tasks.note", json.dumps(args), key)


FAR = "2037-01-01 00:00:00.000000"
STATES = {
    "new": "status = 0",
    "claimed": f"status = 1, claim = 17, due_at = '{FAR}'",
    "running": f"status = 1, claim = 17, due_at = '{FAR}', started_at = created_at, attempts = 1",
    "running, cancelled": f"status = 1, claim = 17, due_at = '{FAR}', started_at = {FAR!r}, error_text = 'cancelled'",
    "waiting for an instant": f"status = 5, due_at = '{FAR}'",
    "waiting for other tasks": "status = 5",
    "error": f"status = 3, attempts = 1, due_at = '{FAR}', error_text = 'E: e'",
    "fatal": "status = 4, attempts = 3, error_text = 'E: e'",
    "lost": "status = 4, claim = 17, attempts = 1, max_attempts = 1, error_text = 'lost: it vanished'",
    "cancelled": "status = 7, error_text = 'cancelled'",
    "done": "status = 2, attempts = 1",
}
GOES_ON = {"running": 1, "running, cancelled": 1, "waiting for other tasks": 5}
"""Statuses that a rerun leaves as they are."""


def put_each_state(queue: Queue, version: int | None = None) -> None:
    """A row in each state, which is its key."""
    for state, changes in STATES.items():
        queue.sql(
            "INSERT INTO jobs_queue (task, args, unique_key, version) VALUES ('tasks.note', '[\"old\"]', ?, ?)",
            state,
            version,
        )
        queue.sql(f"UPDATE jobs_queue SET {changes} WHERE unique_key = ?", state)


def assert_run_again(queue: Queue, version: int | None = None) -> None:
    """Each of these rows has its state as its arguments, and is new, unless it runs or waits for other tasks."""
    for state in STATES:
        (row,) = queue.sql(
            "SELECT status, attempts, args, error_text, due_at IS NULL, version FROM jobs_queue WHERE unique_key = ?",
            state,
        )
        status = GOES_ON.get(state, 0)
        assert (row[0], row[1], json.loads(row[2]), *row[3:]) == (status, 0, [state], None, status != 1, version), state
