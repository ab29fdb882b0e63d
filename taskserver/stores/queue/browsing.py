"""Tasks a page at a time, by key and never by OFFSET: the newest first, or those with the most attempts.

No index has a group's tasks, or a name's, in the order of their ids. So a page looks through so many of the newest rows
of a status at most, and says how far it looked; the next one goes on there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...model.task import MAX_SIGNED
from ..database.database import Database
from ..database.records import StoredTask, stored_task

WINDOW = 5000
"""Rows that one page looks through."""


class Place(NamedTuple):
    """Where a page begins: behind the task of this id; among those with the most attempts, behind so many attempts."""

    id: int = MAX_SIGNED
    attempts: int | None = None


class Filter(NamedTuple):
    """The tasks that are looked for; None: whatever it is."""

    status: int | None = None
    group_id: int | None = None
    task: str | None = None
    error: str | None = None
    """How the error begins, byte by byte."""


class TaskPage(NamedTuple):
    """A page of tasks, without their arguments and results."""

    tasks: list[StoredTask]
    next_place: Place | None
    """Where the next page begins; None where this is the last."""
    is_cut: bool
    """Whether there are older tasks that were not looked at."""


class Window(NamedTuple):
    """The rows that one page looks through."""

    sql: str
    """The SELECT of their ids, attempts, groups and names."""
    values: list[Any]
    least_id: int
    """All rows from this id on are in it; 0: all that there are."""
    is_cut: bool
    """Whether there may be rows that are not."""


class Browsing:
    """The tasks of one queue, for a person who turns pages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    COLUMNS = "id, attempts, group_id, task"
    IS_LIKE = "CASE WHEN {error_position} = 1 THEN 1 ELSE 0 END AS is_like"
    # New, done and fatal rows have no due_at, but for some whose end is still to be told. The index by due_at has the
    # former in the order of their ids.
    UNDATED = """
        SELECT {seen} FROM {table} {by_due}
        WHERE status = ? AND due_at IS NULL AND id < ? ORDER BY id DESC LIMIT ?
    """
    DATED = """
        SELECT {seen} FROM {table} {by_due}
        WHERE status = ? AND due_at IS NOT NULL AND id < ? ORDER BY due_at LIMIT ?
    """
    OF_STATUS = f"SELECT * FROM ({UNDATED}) AS undated UNION ALL SELECT * FROM ({DATED}) AS dated"
    OF_GROUP = """
        SELECT {seen} FROM {table} {by_status} WHERE status = ? AND group_id = ? AND id < ? LIMIT ?
    """
    OF_ALL = "SELECT {seen} FROM {table} {by_key} WHERE id < ? ORDER BY id DESC LIMIT ?"
    SEEN = "SELECT COUNT(*), MIN(id) FROM ({window}) AS seen"
    NEWEST = "SELECT id FROM ({window}) AS seen WHERE {wanted} ORDER BY id DESC LIMIT ?"
    MOST_ATTEMPTS = """
        SELECT id FROM ({window}) AS seen WHERE {wanted} AND (attempts < ? OR attempts = ? AND id < ?)
        ORDER BY attempts DESC, id DESC LIMIT ?
    """
    LISTED = "SELECT {listed}, 0 FROM {table} WHERE id IN ({ids})"

    def newest(self, chosen: Filter, place: Place, most: int) -> TaskPage:
        """The newest of these tasks, `most` at most."""
        window = self._window(chosen, place.id)
        wanted, values = _wanted(chosen, window.least_id)
        ids = self._ids(self.NEWEST, window, wanted, [*values, most + 1])
        if len(ids) > most:
            return TaskPage(self._listed(ids[:most]), Place(ids[most - 1]), False)
        next_place = Place(window.least_id) if window.least_id else None
        return TaskPage(self._listed(ids), next_place, window.is_cut)

    def most_attempts(self, chosen: Filter, place: Place, most: int) -> TaskPage:
        """Those of the newest WINDOW of these tasks with the most attempts, `most` at most."""
        window = self._window(chosen, MAX_SIGNED)
        wanted, values = _wanted(chosen, window.least_id)
        attempts = MAX_SIGNED if place.attempts is None else place.attempts
        ids = self._ids(self.MOST_ATTEMPTS, window, wanted, [*values, attempts, attempts, place.id, most + 1])
        tasks = self._listed(ids[:most])
        next_place = Place(tasks[-1].id, tasks[-1].attempts) if len(ids) > most and tasks else None
        return TaskPage(tasks, next_place, window.is_cut)

    def _window(self, chosen: Filter, before_id: int) -> Window:
        # The columns of the window; the text of an error stays out of it.
        columns, error = self.COLUMNS, []
        if chosen.error is not None:
            columns, error = f"{columns}, {self.IS_LIKE}", [chosen.error]

        def sql(select: str) -> str:
            return select.replace("{seen}", columns)

        if chosen.status is None:
            return self._whole(sql(self.OF_ALL), [*error, before_id, WINDOW])
        if chosen.group_id is not None:
            values = [*error, chosen.status, chosen.group_id, before_id, WINDOW]
            # A small group is looked through to its end, and not among all rows of its status.
            if self._seen(sql(self.OF_GROUP), values)[0] < WINDOW:
                return Window(sql(self.OF_GROUP), values, 0, False)
        values = [*error, chosen.status, before_id, WINDOW]
        dated, _ = self._seen(sql(self.DATED), values)
        undated = self._whole(sql(self.UNDATED), values)
        return Window(sql(self.OF_STATUS), values * 2, undated.least_id, undated.is_cut or dated >= WINDOW)

    def _whole(self, sql: str, values: list[Any]) -> Window:
        """The window of a SELECT that has the rows in the order of their ids."""
        rows, least_id = self._seen(sql, values)
        return Window(sql, values, least_id if rows >= WINDOW else 0, rows >= WINDOW)

    def _seen(self, sql: str, values: list[Any]) -> tuple[int, int]:
        rows, least_id = self._database.fetch(self.SEEN.replace("{window}", sql), values)[0]
        return rows, least_id or 0

    def _ids(self, sql: str, window: Window, wanted: str, values: list[Any]) -> list[int]:
        sql = sql.replace("{window}", window.sql).replace("{wanted}", wanted)
        return [row[0] for row in self._database.fetch(sql, [*window.values, *values])]

    def _listed(self, ids: list[int]) -> list[StoredTask]:
        """The tasks of these ids, in this order; one that went meanwhile is left out."""
        found = {row[0]: stored_task(row) for row in self._database.fetch_ids(self.LISTED, ids)}
        return [found[one] for one in ids if one in found]


def _wanted(chosen: Filter, least_id: int) -> tuple[str, list[Any]]:
    # A row below the window's least id has neighbours that the next page shows.
    is_like = None if chosen.error is None else 1
    given = {
        "id >= ?": least_id,
        "group_id = ?": chosen.group_id,
        "task = ?": chosen.task,
        "is_like = ?": is_like,
    }
    found = {condition: value for condition, value in given.items() if value is not None}
    return " AND ".join(found), list(found.values())
