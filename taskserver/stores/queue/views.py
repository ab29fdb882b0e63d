"""An operator's views of a queue: counts, lists, single tasks, and the record of runs. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from ...model.results import TaskState, task_state
from ..database import Database
from ..records import LastRun, QueueCount, RunningTask, StoredTask, last_run, running_task, stored_task
from ..statements import marks
from .claims import number_of
from .counts import Counts
from .since import earliest

MAX_IN_PROGRESS = 10_000
"""Rows in progress that are counted."""
MAX_RUNNING = 1000
"""Rows in progress among which the running ones are shown."""
MAX_CLAIMS = 1000
"""Claims whose tasks are counted; each worker has one at a time."""


class Views:
    """The queue as an operator sees it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    RUNS = """
        SELECT host, group_ids, pid, {started_at_text}, {started_at_age}, {ended_at_text}, reason,
            taken, done, fatal, lost, released, {previous_started_at_age}
        FROM {workers} ORDER BY host, group_ids
    """
    LIST = "SELECT {readable}, 0 FROM {table}"
    SHOW = "SELECT {readable}, 0 FROM {table} WHERE id = ?"
    SHOW_ARCHIVED = "SELECT {readable}, 1 FROM {done} WHERE id = ? ORDER BY done_id DESC LIMIT 1"

    def counts(self) -> list[QueueCount]:
        """Rows by group and status, with the age of the oldest new one, as far as `Counts` counts them."""
        return Counts(self._database).by_group().counts

    def runs(self) -> list[LastRun]:
        """The last run of each host and groups."""
        return [last_run(row) for row in self._database.fetch(self.RUNS)]

    # Of the first rows in progress, those that tell how far they have come, then those that have run the longest.
    IN_PROGRESS = "SELECT {wanted} FROM {table} {by_due} WHERE {due_status} = 1 ORDER BY due_at, id LIMIT ?"
    RUNNING = f"""
        SELECT id, task, group_id, attempts, {{started_at_age}}, progress, claim FROM ({IN_PROGRESS}) AS seen
        WHERE started_at IS NOT NULL ORDER BY progress IS NULL, started_at, id LIMIT ?
    """
    OF_RUNNING = "id, task, group_id, attempts, started_at, progress, claim"
    RUNNING_COUNTS = f"""
        SELECT group_id, COUNT(*) FROM ({IN_PROGRESS}) AS seen WHERE started_at IS NOT NULL GROUP BY group_id
    """
    CLAIMED_COUNTS = f"""
        SELECT claim, COUNT(*) FROM ({IN_PROGRESS}) AS seen WHERE started_at IS NULL GROUP BY claim LIMIT ?
    """

    def claimed_counts(self) -> dict[int, int]:
        """How many tasks are claimed and wait for their turn, by the number of the worker that has them."""
        counts: dict[int, int] = {}
        sql = self.CLAIMED_COUNTS.replace("{wanted}", "claim, started_at")
        for claim, count in self._database.fetch(sql, (MAX_IN_PROGRESS, MAX_CLAIMS)):
            if isinstance(claim, int):
                counts[number_of(claim)] = counts.get(number_of(claim), 0) + count
        return counts

    def running(self, limit: int) -> list[RunningTask]:
        """Running tasks; `limit` at most."""
        sql = self.RUNNING.replace("{wanted}", self.OF_RUNNING)
        rows = self._database.fetch(sql, (MAX_RUNNING, limit))
        return [running_task(row, number_of(claim) if isinstance(claim, int) else None) for *row, claim in rows]

    def running_counts(self) -> dict[int, int]:
        """How many tasks are running, by group; others in progress are claimed, and wait for their turn."""
        sql = self.RUNNING_COUNTS.replace("{wanted}", "group_id, started_at")
        return dict(self._database.fetch(sql, (MAX_IN_PROGRESS,)))

    def list(
        self,
        statuses: Sequence[int],
        groups: Sequence[int],
        limit: int,
        task: str | None = None,
        error: str | None = None,
        since: float | timedelta | datetime | None = None,
    ) -> list[StoredTask]:
        """The newest tasks, `limit` at most: of these statuses and groups (none: of all), and of this name.

        `error` is the begin of their error_text, byte by byte. `since`, in seconds or a timedelta before now, or as an
        aware datetime, restricts them to those that were added, started or ended since. Raises SettingError.
        """
        wanted = {"status": statuses, "group_id": groups, "task": () if task is None else (task,)}
        conditions = [f"{column} IN ({marks(len(values))})" for column, values in wanted.items() if values]
        values: list[Any] = [value for several in wanted.values() for value in several]
        if error is not None:
            conditions.append("{error_position} = 1")
            values.append(error)
        if since is not None:
            instant, value = earliest(since)
            conditions.append(f"({' OR '.join(f'{column} >= {instant}' for column in self.HAPPENED)})")
            values += [value] * len(self.HAPPENED)
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = f"{self.LIST}{where} ORDER BY id DESC LIMIT ?"
        with self._database.unhurried():
            return [stored_task(row) for row in self._database.fetch(sql, (*values, limit))]

    HAPPENED = ("created_at", "started_at", "finished_at", "CASE WHEN status = 3 THEN updated_at END")
    """When a task was added, and when it was last started and ended. One in error ended as its row was last written."""

    NOW = "SELECT {now_text}"

    def now(self) -> str:
        """The database's clock, as text in UTC."""
        return str(self._database.fetch_value(self.NOW))

    def show(self, task_id: int) -> StoredTask | None:
        """One task, from the queue, or else the last one of this id in the archive."""
        row = self._database.fetch_first(self.SHOW, (task_id,))
        row = row or self._database.fetch_first(self.SHOW_ARCHIVED, (task_id,))
        return stored_task(row) if row else None

    STATE = """
        SELECT id, task, status, attempts, result, error_text, progress FROM {table} WHERE id = ?
    """
    STATE_ARCHIVED = STATE.replace("{table}", "{done}") + " ORDER BY done_id DESC LIMIT 1"

    def state(self, task_id: int) -> TaskState | None:
        """One task as a page may show it, found as `show` finds it."""
        row = self._database.fetch_first(self.STATE, (task_id,))
        row = row or self._database.fetch_first(self.STATE_ARCHIVED, (task_id,))
        return task_state(row) if row else None
