"""Due rows: waiting and failed tasks whose due_at has passed, and expired leases.

Due rows are found without locks, then written by sorted primary keys; each write checks again that its row is due. An
UPDATE over the range of due rows would lock all rows that it reads, in the order of that index. It would deadlock with
claims, which lock in the order of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ...errors import Conflict
from ...model.task import Due, LostTask, Status
from ..database import Database, Row
from ..retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope
from .claims import SCHEDULE_KEY

if TYPE_CHECKING:
    from .dependencies import GivenUp

MAX_DUE_PER_LOOK = 250
"""Rows of each kind that one look finds: a limit, so that no transaction is long."""


class DueRows:
    """The verbs that keep a queue moving: wake and reclaim."""

    def __init__(self, database: Database, given_up: list[GivenUp]) -> None:
        """Appends tasks that become fatal with a lost one to `given_up`."""
        self._given_up = given_up
        self._database = database

    LOOK = " UNION ALL ".join(
        f"""
        SELECT * FROM (SELECT id, status, CASE WHEN started_at IS NULL THEN 0 ELSE 1 END, attempts, max_attempts, task,
                           group_id, {{is_cancelled}}, {linked}, {SCHEDULE_KEY}, {{started_at_age}}
                       FROM {{table}} WHERE {condition} LIMIT ?) AS {name}
        """
        for name, (linked, condition) in {
            "failed": (0, "{due_status} = 3 AND due_at <= {now} ORDER BY due_at"),
            "waiting": (
                "CASE WHEN {is_linked} THEN 1 ELSE 0 END",
                "{due_status} = 5 AND due_at <= {now} ORDER BY due_at",
            ),
            "expired": (0, "{due_status} = 1 AND due_at <= {now} ORDER BY due_at"),
        }.items()
    )
    # The same look finds schedules, so that queues without any pay nothing; -1 marks them. Their other columns mean
    # nothing: with a 0 or NULL instead, MariaDB would return the unsigned column above as decimals.
    LOOK_FOR_SCHEDULES = """
        UNION ALL
        SELECT group_id, group_id, 0, group_id, group_id, name, group_id, 0, -1, NULL, NULL
        FROM (SELECT name, group_id FROM {schedules} WHERE next_at <= {now} ORDER BY next_at LIMIT ?) AS scheduled
    """

    def look(self) -> Due:
        """Due rows, schedules and expired leases: a portion of each, the oldest first."""
        found = self._database.fetch(self.LOOK + self.LOOK_FOR_SCHEDULES, [MAX_DUE_PER_LOOK] * 4)
        rows = [row for row in found if not row[8]]
        expired = [row for row in rows if row[1] == Status.IN_PROGRESS]
        return Due(
            to_wake=sorted(row[0] for row in rows if row[1] != Status.IN_PROGRESS),
            unstarted=sorted(row[0] for row in expired if not row[2]),
            lost=sorted((_lost_task(row) for row in expired if row[2]), key=lambda lost: lost.id),
            schedules=[row[5] for row in found if row[8] < 0],
            linked=sorted(row[0] for row in found if row[8] > 0),
        )

    # ---- wake: waiting, error → new

    # A new row has been ready since its updated_at: a claim computes the task's wait from it. The due_at may be before
    # the task was added or failed.
    WAKE = """
        UPDATE {table} {by_key}
        SET status = 0, updated_at = CASE WHEN due_at > updated_at THEN due_at ELSE updated_at END,
            due_at = CASE WHEN {is_undated} THEN due_at END
        WHERE id IN ({ids}) AND status IN (3, 5) AND due_at <= {now}
    """

    def wake(self, ids: Sequence[int]) -> int:
        """Waiting, error → new for due rows; how many. Skips held rows."""
        return self._write_free(self.WAKE, ids)

    # ---- reclaim: in progress with an expired lease → new, error, fatal, cancelled

    RECLAIM = """
        UPDATE {table} {by_key} SET status = 0, claim = NULL, due_at = NULL, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 1 AND started_at IS NULL AND due_at <= {now}
    """
    # The row is as the look found it: these columns determine its new status.
    WHERE_AS_FOUND = """
        WHERE id = ? AND status = 1 AND started_at IS NOT NULL AND attempts = ? AND COALESCE(max_attempts, 0) = ?
            AND {is_cancelled} = ? AND due_at <= {now}
    """
    RERUN_LOST = f"""
        UPDATE {{table}} {{by_key}}
        SET status = 0, claim = NULL, due_at = NULL, error_text = NULL, updated_at = {{now}}
        {WHERE_AS_FOUND}
    """
    RETRY_LOST = f"""
        UPDATE {{table}} {{by_key}}
        SET status = 3, claim = NULL, due_at = {{after}}, error_text = ?, updated_at = {{now}}
        {WHERE_AS_FOUND}
    """
    # A task that may start only once keeps its token: its worker may be alive and complete it.
    GIVE_UP_LOST = f"""
        UPDATE {{table}} {{by_key}} SET status = ?, claim = CASE WHEN ? = 1 THEN claim END,
            unique_key = CASE WHEN {{is_cancelled}} = 0 THEN unique_key END, max_attempts = ?,
            due_at = NULL, error_text = ?, finished_at = {{now}}, updated_at = {{now}}
        {WHERE_AS_FOUND}
    """

    def reclaim_unstarted(self, ids: Sequence[int]) -> int:
        """In progress, unstarted, lease expired → new; how many. Skips held rows."""
        return self._write_free(self.RECLAIM, ids)

    def _write_free(self, sql: str, ids: Sequence[int]) -> int:
        if not ids:
            return 0
        from ..free_rows import write_free  # usually nothing is due

        with suppress(Conflict):
            return write_free(self._database, ids, partial(self._database.write_ids, sql))
        return 0

    def reclaim_lost(self, lost: LostTask, limit: int, error_text: str, retry_seconds: float | None) -> bool:
        """In progress, started, lease expired → error, or without `retry_seconds` fatal or cancelled.

        → new if a rerun came while it ran. `limit` is the maximum of attempts. Whether the row was still as the look
        found it; a held row is left to the next look.
        """
        as_found = (lost.id, lost.attempts, lost.max_attempts or 0, int(lost.is_cancelled))
        end_status = None
        values: tuple[object, ...]
        if lost.should_rerun:
            sql, values = self.RERUN_LOST, as_found
        elif retry_seconds is not None:
            sql, values = self.RETRY_LOST, (retry_seconds, error_text, *as_found)
        else:
            keeps_token = int(limit == 1 and not lost.is_cancelled)
            end_status = Status.CANCELLED if lost.is_cancelled else Status.FATAL
            sql, values = self.GIVE_UP_LOST, (int(end_status), keeps_token, limit, error_text, *as_found)
        policy = RetryPolicy(Scope.STATEMENT if end_status is None else Scope.TRANSACTION, HELD_PATIENCE_SECONDS)
        try:
            write = partial(self._write, sql, values, lost.id, end_status)
            (matched, given_up), in_doubt = self._database.run_in_doubt(policy, write)
        except Conflict as error:
            return error.in_doubt
        self._given_up += given_up
        # If the answer was lost, the row does not show whose write it was. Better report it twice than never.
        return bool(matched) or in_doubt

    def _write(
        self, sql: str, values: Sequence[object], task_id: int, end_status: Status | None
    ) -> tuple[int, list[GivenUp]]:
        """With `end_status` the task will not run again: its children become fatal."""
        matched = self._database.write(sql, values)
        if not matched or end_status is None:
            return matched, []
        from .dependencies import end  # few tasks are lost for good

        return matched, end(self._database, task_id, end_status)

    # ---- for a site's tests, without workers: pass time

    # Without claims: their due_at is the end of a lease.
    AHEAD = (
        "SELECT id, 0.0 - {due_at_age} FROM {table} WHERE {due_status} IN (0, 3, 5) AND due_at > {now} ORDER BY due_at"
    )
    MOVE = "UPDATE {table} SET due_at = {after}, updated_at = updated_at WHERE id = ? AND status IN (0, 3, 5)"

    def next_seconds(self) -> float | None:
        """Seconds until the next task is due; None without one."""
        row = self._database.fetch_first(f"{self.AHEAD} LIMIT 1")
        return None if row is None else float(row[1])

    def pass_time(self, seconds: float) -> None:
        """Move every future due_at `seconds` nearer."""
        for task_id, ahead in self._database.fetch(self.AHEAD):
            self._database.change(self.MOVE, (float(ahead) - seconds, task_id))


def _lost_task(row: Row) -> LostTask:
    task_id, _, _, attempts, max_attempts, task, group_id, is_cancelled, _, schedule_key, began = row
    return LostTask(
        task_id, attempts, max_attempts, str(task), group_id, bool(is_cancelled), schedule_key, float(began or 0)
    )
