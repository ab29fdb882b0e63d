"""A row of each kind that an operator may change, written by SQL."""

from __future__ import annotations

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
