"""Tasks a page at a time, by key and never by OFFSET: in the order of an index, or those with the most attempts.

No index has a group's tasks, or a name's, in the order of their ids. So a page looks through a window: so many rows at
most, in the order of an index that there is. The next page goes on where the window ended, so that whoever turns pages
to the end has seen each task once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...model.task import MAX_SIGNED, Status
from ..database import Database
from ..records import StoredTask, stored_task

WINDOW = 5000
"""Rows that one page looks through."""
SAMPLE = 1000
"""Rows of each status among which those of one name with the most attempts are found."""
BY_TIME = (Status.ERROR, Status.WAITING)
"""Statuses whose tasks come by time: their pages begin with the next."""


class Place(NamedTuple):
    """Where a page begins: behind the task of this id."""

    id: int = MAX_SIGNED
    attempts: int | None = None
    """Its attempts, among those with the most."""
    due_at: str | None = None
    """Its instant as text in UTC, among those that come by time."""


FIRST = Place()
UNDATED = Place(MAX_SIGNED - 1)
"""Behind all tasks that come by time: those that wait for other tasks."""


class Filter(NamedTuple):
    """The tasks that are looked for; None: whatever it is."""

    status: int | None = None
    group_id: int | None = None
    task: str | None = None
    error_line: str | None = None
    """The first line of the error, byte by byte."""
    since_seconds: float | None = None
    """They were written to, or ended, no longer ago."""

    @property
    def looks_at_rows(self) -> bool:
        """Whether a row has to be read to know whether it is one of these."""
        return self[1:] != (None,) * 4


class TaskPage(NamedTuple):
    """A page of tasks, without their arguments and results."""

    tasks: list[StoredTask]
    next_place: Place | None
    """Where the next page begins; None where this is the last."""
    is_cut: bool = False
    """Whether there may be more tasks, which no further page shows."""
    is_by_time: bool = False
    """Whether they come by time, the next first."""


class Window(NamedTuple):
    """The rows that one page looks through."""

    sql: str
    values: Sequence[Any]


class Browsing:
    """The tasks of one queue, for a person who turns pages."""

    def __init__(self, database: Database) -> None:
        self._database = database

    COLUMNS = "id, attempts, group_id, task, {due_at_text} AS due"
    # The text of an error stays out of the window, which may have to be kept somewhere.
    IS_LIKE = "CASE WHEN {error_bytes} = ? OR {error_position} = 1 THEN 1 ELSE 0 END AS is_like"
    IS_RECENT = "CASE WHEN COALESCE(finished_at, updated_at) >= {after} THEN 1 ELSE 0 END AS is_recent"

    OF_ALL = "SELECT {seen} FROM {table} {by_key} WHERE id < ? ORDER BY id DESC LIMIT ?"
    OF_STATUS = "SELECT {seen} FROM {table} {by_due} WHERE {due_status} = ? ORDER BY due_at, id LIMIT ?"
    OF_GROUP = "SELECT {seen} FROM {table} {by_status} WHERE {group_status} = ? AND group_id = ? LIMIT ?"
    OF_NO_STATUS = f"SELECT {{seen}} FROM {{table}} {{by_status}} WHERE {{group_status}} > {max(Status):d} LIMIT ?"
    # New, done and fatal rows have no due_at, so the index by due_at has them in the order of their ids. The few that
    # have one, as fatal ones whose children are still to be told, come beside each page.
    WITHOUT_DUE = """
        SELECT {seen} FROM {table} {by_due} WHERE {due_status} = ? AND due_at IS NULL AND id < ?
        ORDER BY due_at DESC, id DESC LIMIT ?
    """
    WITH_DUE = """
        SELECT {seen} FROM {table} {by_due} WHERE {due_status} = ? AND due_at IS NOT NULL ORDER BY due_at, id LIMIT ?
    """
    BEHIND_DUE = """
        SELECT {seen} FROM {table} {by_due}
        WHERE {due_status} = ? AND due_at >= {instant} AND (due_at > {instant} OR id > ?) ORDER BY due_at, id LIMIT ?
    """

    SEEN = "SELECT COUNT(*), MIN(id) FROM ({window}) AS seen"
    LAST_DUE = "SELECT id, due FROM ({window}) AS seen ORDER BY due DESC, id DESC LIMIT 1"
    BY_ID = "SELECT id FROM ({window}) AS seen WHERE {wanted} AND id >= ? AND id < ? ORDER BY id DESC LIMIT ?"
    BY_DUE = "SELECT id, due FROM ({window}) AS seen WHERE {wanted} ORDER BY due, id LIMIT ?"
    BY_ATTEMPTS = """
        SELECT id, attempts FROM ({window}) AS seen WHERE {wanted} AND (attempts < ? OR attempts = ? AND id < ?)
        GROUP BY id, attempts ORDER BY attempts DESC, id DESC LIMIT ?
    """
    LISTED = "SELECT {listed}, 0 FROM {table} WHERE id IN ({ids})"

    # ---- pages

    def page(self, chosen: Filter, place: Place, most: int) -> TaskPage:
        """`most` tasks at most: the newest first; those in error or waiting for an instant the next first."""
        small = self._small_group(chosen)
        if small is not None:
            return self._by_id(chosen, small, place, 0, most)
        rows = WINDOW if chosen.looks_at_rows else most + 1
        if chosen.status in BY_TIME and (place == FIRST or place.due_at is not None):
            return self._by_time(chosen, place, rows, most)
        if chosen.status is None:
            window = self._window(chosen, self.OF_ALL, place.id, rows)
            return self._by_id(chosen, window, place, self._least_id(window, rows), most)
        window = self._window(chosen, self.WITHOUT_DUE, chosen.status, place.id, rows)
        least_id = self._least_id(window, rows)
        if chosen.status in BY_TIME:
            return self._by_id(chosen, window, place, least_id, most)
        dated = self._window(chosen, self.WITH_DUE, chosen.status, WINDOW)
        page = self._by_id(chosen, _union([window, dated]), place, least_id, most)
        return page._replace(is_cut=self._seen(dated)[0] >= WINDOW)

    def _by_id(self, chosen: Filter, window: Window, place: Place, least_id: int, most: int) -> TaskPage:
        """A page of a window that has all wanted rows from this id on, up to the place; 0: all that there are."""
        # A row below the least id has neighbours that the next page shows.
        found = self._look(self.BY_ID, chosen, window, least_id, place.id, most + 1)
        ids = [row[0] for row in found]
        if len(ids) > most:
            return TaskPage(self._listed(ids[:most]), Place(ids[most - 1]))
        return TaskPage(self._listed(ids), Place(least_id) if least_id else None)

    def _by_time(self, chosen: Filter, place: Place, rows: int, most: int) -> TaskPage:
        if place.due_at is None:
            window = self._window(chosen, self.WITH_DUE, chosen.status, rows)
        else:
            values = (chosen.status, place.due_at, place.due_at, place.id, rows)
            window = self._window(chosen, self.BEHIND_DUE, *values)
        found = self._look(self.BY_DUE, chosen, window, most + 1)
        tasks = self._listed([row[0] for row in found[:most]])
        if len(found) > most:
            return TaskPage(tasks, Place(found[most - 1][0], None, found[most - 1][1]), is_by_time=True)
        seen, _ = self._seen(window)
        if seen >= rows:
            last_id, due_at = self._fetch(self.LAST_DUE, window)[0]
            return TaskPage(tasks, Place(last_id, None, due_at), is_by_time=True)
        if len(tasks) == most:
            undated = self._window(chosen, self.WITHOUT_DUE, chosen.status, MAX_SIGNED, 1)
            return TaskPage(tasks, UNDATED if self._seen(undated)[0] else None, is_by_time=True)
        rest = self.page(chosen, UNDATED, most - len(tasks))
        return rest._replace(tasks=[*tasks, *rest.tasks], is_by_time=True)

    def most_attempts(self, chosen: Filter, place: Place, most: int) -> TaskPage:
        """Those with the most attempts of the tasks that a window or some hold, `most` at most."""
        windows, rows = self._windows_of_attempts(chosen)
        attempts = MAX_SIGNED if place.attempts is None else place.attempts
        found = self._look(self.BY_ATTEMPTS, chosen, _union(windows), attempts, attempts, place.id, most + 1)
        tasks = self._listed([row[0] for row in found[:most]])
        next_place = Place(*found[most - 1]) if len(found) > most else None
        return TaskPage(tasks, next_place, any(self._seen(window)[0] >= rows for window in windows))

    # ---- windows

    def _small_group(self, chosen: Filter) -> Window | None:
        """All rows of a group, where they are few; they are looked through to their end, and not among all others."""
        if chosen.group_id is None:
            return None
        statuses = map(int, Status) if chosen.status is None else [chosen.status]
        windows = [self._window(chosen, self.OF_GROUP, status, chosen.group_id, WINDOW) for status in statuses]
        if chosen.status is None:
            windows.append(self._window(chosen, self.OF_NO_STATUS, WINDOW))
        return None if any(self._seen(window)[0] >= WINDOW for window in windows) else _union(windows)

    def _windows_of_attempts(self, chosen: Filter) -> tuple[list[Window], int]:
        """The windows, and how many rows a full one has."""
        small = self._small_group(chosen)
        if small is not None:
            return [small], MAX_SIGNED
        newest = self._window(chosen, self.OF_ALL, MAX_SIGNED, WINDOW)
        if chosen.status is not None:
            return [
                self._window(chosen, self.WITHOUT_DUE, chosen.status, MAX_SIGNED, WINDOW),
                self._window(chosen, self.WITH_DUE, chosen.status, WINDOW),
            ], WINDOW
        if chosen.task is None:
            return [newest], WINDOW
        # The overview names tasks among the first of each status, and links here.
        return [*(self._window(chosen, self.OF_STATUS, int(status), SAMPLE) for status in Status), newest], SAMPLE

    def _window(self, chosen: Filter, sql: str, *values: Any) -> Window:
        columns, seen = [self.COLUMNS], list[Any]()
        if chosen.error_line is not None:
            columns.append(self.IS_LIKE)
            seen += [chosen.error_line, f"{chosen.error_line}\n"]
        if chosen.since_seconds is not None:
            columns.append(self.IS_RECENT)
            seen.append(-chosen.since_seconds)
        return Window(sql.replace("{seen}", ", ".join(columns)), [*seen, *values])

    # ---- looks

    def _look(self, sql: str, chosen: Filter, window: Window, *values: Any) -> Sequence[Any]:
        wanted, wanted_values = _wanted(chosen)
        return self._fetch(sql.replace("{wanted}", wanted), window, *wanted_values, *values)

    def _fetch(self, sql: str, window: Window, *values: Any) -> Sequence[Any]:
        return self._database.fetch(sql.replace("{window}", window.sql), [*window.values, *values])

    def _seen(self, window: Window) -> tuple[int, int]:
        rows, least_id = self._fetch(self.SEEN, window)[0]
        return rows, least_id or 0

    def _least_id(self, window: Window, rows: int) -> int:
        """The least id of a window that is full; 0 where it has all rows that there are."""
        seen, least_id = self._seen(window)
        return least_id if seen >= rows else 0

    def _listed(self, ids: list[int]) -> list[StoredTask]:
        """The tasks of these ids, in this order; one that went meanwhile is left out."""
        found = {row[0]: stored_task(row) for row in self._database.fetch_ids(self.LISTED, ids)}
        return [found[one] for one in ids if one in found]


def _union(windows: Sequence[Window]) -> Window:
    arms = [f"SELECT * FROM ({window.sql}) AS part_{number}" for number, window in enumerate(windows)]
    return Window(" UNION ALL ".join(arms), [value for window in windows for value in window.values])


def _wanted(chosen: Filter) -> tuple[str, list[Any]]:
    given: dict[str, Any] = {
        "group_id = ?": chosen.group_id,
        "task = ?": chosen.task,
        "is_like = ?": None if chosen.error_line is None else 1,
        "is_recent = ?": None if chosen.since_seconds is None else 1,
    }
    found = {condition: value for condition, value in given.items() if value is not None}
    return " AND ".join(["1 = 1", *found]), list(found.values())
