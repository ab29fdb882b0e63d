"""What operators read of a queue: counts, lists, single tasks, and the record of runs. Changes nothing.

The records that they get are imported when one is made: a worker makes none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..errors import DatabaseError
from ..lifecycle import Status
from .database import IDS_A_STATEMENT, Row, marks, with_ids
from .tables import Tables

if TYPE_CHECKING:
    from ..reports import TaskState
    from .facts import Facts, QueueFacts
    from .rows import LastRun, QueueCount, StoredTask, TellingTask


class Views(Tables):
    """The queue as an operator sees it."""

    COUNTS = """
        SELECT group_id, status, COUNT(*), MIN(id) FROM {table} GROUP BY status, group_id ORDER BY group_id, status
    """
    AGES = "SELECT id, {created_at_age} FROM {table} WHERE id IN ({ids})"
    RUNS = """
        SELECT host, group_ids, pid, {started_at_text}, {started_at_age}, {ended_at_text}, reason,
            taken, done, fatal, lost, released, {previous_started_at_age}
        FROM {workers} ORDER BY host, group_ids
    """
    LIST = "SELECT {readable}, 0 FROM {table}"
    SHOW = "SELECT {readable}, 0 FROM {table} WHERE id = ?"
    SHOW_ARCHIVED = "SELECT {readable}, 1 FROM {done} WHERE id = ? ORDER BY done_id DESC LIMIT 1"

    def counts(self) -> list[QueueCount]:
        """Rows by group and status. One pass over an index; of new rows the one of the smallest id is the oldest."""
        from .rows import QueueCount

        with self._unhurried():
            rows = self._alone(self._all, self.COUNTS)
        oldest = [row[3] for row in rows if row[1] == Status.NEW]
        ages: dict[int, float] = {}
        for first in range(0, len(oldest), IDS_A_STATEMENT):
            ids = oldest[first : first + IDS_A_STATEMENT]
            found = self._alone(self._all, with_ids(self.AGES, ids), ids)
            ages.update((row[0], float(row[1])) for row in found if row[1] is not None)
        return [QueueCount(group, status, count, ages.get(least)) for group, status, count, least in rows]

    def runs(self) -> list[LastRun]:
        """The last run of each host and groups."""
        from .rows import LastRun

        return [LastRun(*row) for row in self._alone(self._all, self.RUNS)]

    TELLING = """
        SELECT id, task, group_id, attempts, {started_at_age}, progress FROM {table} {by_status}
        WHERE status = 1 AND started_at IS NOT NULL AND progress IS NOT NULL ORDER BY id LIMIT ?
    """

    def telling(self, limit: int) -> list[TellingTask]:
        """The running tasks that tell how far they have come."""
        from .rows import telling_tasks

        return telling_tasks(self._alone(self._all, self.TELLING, (limit,)))

    def list(
        self, statuses: Sequence[int], groups: Sequence[int], limit: int, task: str | None = None
    ) -> list[StoredTask]:
        """The newest tasks of these statuses and groups (none: of all), and of this name."""
        from .rows import stored_task

        names = () if task is None else (task,)
        wanted = {"status": statuses, "group_id": groups, "task": names}
        conditions = [f"{column} IN ({marks(len(values))})" for column, values in wanted.items() if values]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = f"{self.LIST}{where} ORDER BY id DESC LIMIT ?"
        return [stored_task(row) for row in self._alone(self._all, sql, (*statuses, *groups, *names, limit))]

    def show(self, task_id: int) -> StoredTask | None:
        """One task, from the queue or else from the archive, where of several with this id the last one counts."""
        from .rows import stored_task

        row = self._alone(self._first, self.SHOW, (task_id,))
        row = row or self._alone(self._first, self.SHOW_ARCHIVED, (task_id,))
        return stored_task(row) if row else None

    STATE = "SELECT id, task, status, attempts, result, error_text, progress FROM {table} WHERE id = ?"
    STATE_ARCHIVED = STATE.replace("{table}", "{done}") + " ORDER BY done_id DESC LIMIT 1"

    def state(self, task_id: int) -> TaskState | None:
        """What a page may want to know of one task; found as `show` finds it."""
        from ..reports import task_state

        row = self._alone(self._first, self.STATE, (task_id,))
        row = row or self._alone(self._first, self.STATE_ARCHIVED, (task_id,))
        return task_state(row) if row else None

    # ---- for client.py doctor

    NAMES_OF_NEXT = """
        SELECT DISTINCT task FROM (
            SELECT * FROM (SELECT task FROM {table} WHERE status = 0 ORDER BY priority, id LIMIT ?) AS next_new
            UNION ALL
            SELECT * FROM (SELECT task FROM {table} WHERE status = 3 ORDER BY due_at LIMIT ?) AS next_failed
            UNION ALL
            SELECT * FROM (SELECT task FROM {table} WHERE status = 5 ORDER BY due_at LIMIT ?) AS next_waiting
        ) AS next_rows
    """
    LAPSED = "SELECT COUNT(*), MAX({due_at_age}) FROM {table} WHERE status = 1 AND due_at < {after}"
    FAR = "SELECT COUNT(*) FROM {table} WHERE status IN (3, 5) AND due_at >= '2037-01-01 00:00:00'"

    UNDATED = """
        SELECT COUNT(*) FROM {table}
        WHERE status = 5 AND due_at IS NULL AND NOT EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id)
    """
    # It waits, and none of those that it waits for will tell it of an end, as they were deleted by hand.
    IS_ORPHAN = """
        status = 5 AND due_at IS NULL AND EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id) AND NOT EXISTS (
            SELECT 1 FROM {dependencies} AS edge JOIN {table} AS parent ON parent.id = edge.parent_id
            WHERE edge.child_id = {table}.id AND (parent.status NOT IN (2, 4) OR parent.due_at IS NOT NULL))
    """
    ORPHANED = f"SELECT COUNT(*) FROM {{table}} WHERE {IS_ORPHAN}"

    @abstractmethod
    def facts(self) -> Facts:
        """What the database and the tables are like. Raises DatabaseError."""

    @abstractmethod
    def explain_claim(self, groups: Sequence[int]) -> Sequence[str]:
        """The indexes by which the claim of these groups (none: of all) reads the queue."""

    def queue_facts(self, most_rows: int, lapsed_seconds: float) -> QueueFacts:
        """What stands in the queue: names of `most_rows` rows of each kind, leases that ended so many seconds ago."""
        from .facts import QueueFacts

        names = self.look(self.NAMES_OF_NEXT, [most_rows] * 3)
        lapsed, seconds = self.look(self.LAPSED, [-lapsed_seconds])[0]
        far, undated = self.look(self.FAR)[0][0], self.look(self.UNDATED)[0][0]
        orphaned = self.look(self.ORPHANED)[0][0]
        texts = (name.decode(errors="replace") if isinstance(name, bytes) else str(name) for (name,) in names)
        return QueueFacts(tuple(sorted(texts)), lapsed, float(seconds or 0), far, undated, orphaned)

    def look(self, sql: str, values: Sequence[Any] = ()) -> Sequence[Row]:
        """The rows of a statement of facts, with a mark for each value in the place of `{ids}`."""
        return self._alone(self._all, sql.replace("{ids}", marks(len(values))), values)


def claim_indexes(views: Views) -> tuple[str, ...]:
    """By which the claims read: of some groups, of all of them. None where an index or a right is missing."""
    used: list[str] = []
    for groups in ((1, 2), ()):
        with suppress(DatabaseError):
            used += views.explain_claim(groups)
    return tuple(dict.fromkeys(used))
