"""What people see of a queue: lists, pages, single tasks, running ones, errors and runs. Changes nothing.

No index has the tasks of a group or a name in order of id. So a page searches a window: a limited number of rows in the
order of an index, never by OFFSET. The next page starts after the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ...errors import InvalidTask, SettingError
from ...messages.text import MAX_ERROR_LENGTH, Duration, shown
from ...model.checks import check_groups, check_number
from ...model.results import TaskState, by_name, task_state
from ...model.selection import Selection
from ...model.task import MAX_SIGNED, Status
from ..database import Database, Row
from ..records import (
    GIVEN_UP_LINE,
    ErrorCount,
    LastRun,
    RunningTask,
    TaskRow,
    earliest,
    error_count,
    running_task,
    task_row,
)
from ..words import marks
from .claims import number_of
from .dependencies import IS_GIVEN_UP
from .many_rows import chosen_by

MAX_IN_PROGRESS = 10_000
"""Rows in progress that are counted."""
RUNNING_SAMPLE = 1000
"""Rows in progress that `running` searches."""
ERRORS_SAMPLE = 1000
"""Rows of each status that `recent_errors` reads."""
WINDOW = 5000
"""Rows that one page searches."""


class InProgress(NamedTuple):
    """How many tasks are in progress."""

    running: dict[int, int]
    """Started tasks, by group."""
    claimed: dict[int, int]
    """Unstarted tasks, by the number of their worker."""


class Views:
    """The queue as an operator sees it. Raises DatabaseError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    RUNS = """
        SELECT host, group_ids, pid, {started_at_text}, {started_at_age}, {ended_at_text}, reason,
            taken, done, fatal, lost, released, {previous_started_at_age}
        FROM {workers} ORDER BY host, group_ids
    """

    def runs(self) -> list[LastRun]:
        return [LastRun(**by_name(LastRun._fields, row)) for row in self._database.fetch(self.RUNS)]

    # ---- tasks in progress

    FIRST_ONES = """
        FROM (
            SELECT id, task, group_id, attempts, started_at, progress, claim FROM {table} {by_due}
            WHERE {due_status} = 1 ORDER BY due_at, id LIMIT ?
        ) AS seen
    """
    RUNNING = f"""
        SELECT id, task, group_id, attempts, {{started_at_age}}, progress, claim {FIRST_ONES}
        WHERE started_at IS NOT NULL ORDER BY progress IS NULL, started_at, id LIMIT ?
    """
    COUNT_IN_PROGRESS = f"""
        SELECT CASE WHEN started_at IS NULL THEN claim END, CASE WHEN started_at IS NOT NULL THEN group_id END, COUNT(*)
        {FIRST_ONES} GROUP BY 1, 2
    """

    def running(self, limit: int) -> list[RunningTask]:
        """At most `limit` running tasks: first those that report progress, then the oldest."""
        rows = self._database.fetch(self.RUNNING, (RUNNING_SAMPLE, limit))
        return [running_task(row, number_of(claim) if isinstance(claim, int) else None) for *row, claim in rows]

    def in_progress(self) -> InProgress:
        found = InProgress({}, {})
        for claim, group, count in self._database.fetch(self.COUNT_IN_PROGRESS, (MAX_IN_PROGRESS,)):
            if group is not None:
                found.running[group] = count
            elif isinstance(claim, int):
                found.claimed[number_of(claim)] = found.claimed.get(number_of(claim), 0) + count
        return found

    # ---- one task

    FIND = "SELECT {found}, 0 FROM {table} WHERE id = ?"
    FIND_ARCHIVED = "SELECT {found}, 1 FROM {done} WHERE id = ? ORDER BY done_id DESC LIMIT 1"
    STATE = "id, task, status, attempts, result, error_text, progress"

    def show(self, task_id: int) -> TaskRow | None:
        """One task from the queue, or else the last one with this id in the archive."""
        row = self._find("{readable}", task_id)
        return task_row(row) if row else None

    def state(self, task_id: int) -> TaskState | None:
        """One task as a page may show it, found as `show` finds it."""
        row = self._find(self.STATE, task_id)
        return task_state(row[:-1]) if row else None

    STATES = f"SELECT {STATE} FROM {{table}} WHERE id IN ({{ids}})"
    ARCHIVED_STATES = f"SELECT {STATE} FROM {{done}} WHERE id IN ({{ids}}) ORDER BY done_id"

    def states(self, ids: Sequence[int]) -> dict[int, TaskState]:
        """The existing ones of these tasks, in this order."""
        found = {row[0]: task_state(row) for row in self._database.fetch_ids(self.STATES, ids)}
        archived = self._database.fetch_ids(self.ARCHIVED_STATES, [one for one in ids if one not in found])
        found |= {row[0]: task_state(row) for row in archived}  # the last one with an id wins
        return {one: found[one] for one in ids if one in found}

    def _find(self, columns: str, task_id: int) -> Row | None:
        """These columns of a task, and whether it is archived."""
        row = self._database.fetch_first(self.FIND.replace("{found}", columns), (task_id,))
        return row or self._database.fetch_first(self.FIND_ARCHIVED.replace("{found}", columns), (task_id,))

    # ---- errors, counted by their first lines

    # Tasks that were given up because of others have one line, the last. A fatal task's last attempt ended at
    # finished_at; that of a task in error at updated_at, when its row was last written.
    LINE = f"""
        SUBSTR(CASE WHEN {IS_GIVEN_UP} THEN '{GIVEN_UP_LINE}'
            WHEN {{error_position}} > 0 THEN SUBSTR(error_text, 1, {{error_position}} - 1)
            ELSE COALESCE(error_text, '') END, 1, {MAX_ERROR_LENGTH})
    """
    ERRORS = f"""
        SELECT line, COUNT(*), SUM(CASE WHEN status = 4 THEN 1 ELSE 0 END), {{first_seen}}, {{last_seen}}, MAX(id)
        FROM (
            SELECT id, status, CASE WHEN status = 4 THEN COALESCE(finished_at, updated_at) ELSE updated_at END AS seen,
                {{line}} AS line
            FROM {{failed}}
        ) AS failed
        GROUP BY line
        ORDER BY CASE WHEN line = '{GIVEN_UP_LINE}' THEN 1 ELSE 0 END, COUNT(*) DESC, MAX(id) DESC LIMIT ?
    """
    FAILED = "{table} {by_status} WHERE {group_status} IN (3, 4) AND {condition}"
    FAILED_LAST = " UNION ALL ".join(
        f"""
        SELECT * FROM (
            SELECT id, status, group_id, finished_at, updated_at, error_text FROM {{table}} {{by_due}}
            WHERE {{due_status}} = {status} ORDER BY due_at DESC, id DESC LIMIT ?
        ) AS failed_{status}
        """
        for status in (3, 4)
    )

    def errors(
        self, groups: Iterable[int] | None = None, task: str | None = None, limit: int | None = None
    ) -> list[ErrorCount]:
        """Failed tasks by the first line of their errors: at most `limit` lines, the most frequent first.

        Raises SettingError, InvalidTask.
        """
        most = MAX_SIGNED if limit is None else check_number("limit", limit, 1, MAX_SIGNED, SettingError)
        condition, values = chosen_by(Selection(groups=check_groups(groups), task=task))
        with self._database.without_timeout():
            return self._errors(self.FAILED.replace("{condition}", condition), values, most)

    def recent_errors(self, most: int, groups: Sequence[int] = ()) -> list[ErrorCount]:
        """The same among the newest ERRORS_SAMPLE fatal tasks, and as many in error."""
        condition, values = chosen_by(Selection(groups=groups or None))
        return self._errors(f"({self.FAILED_LAST}) AS recent WHERE {condition}", [*[ERRORS_SAMPLE] * 2, *values], most)

    def _errors(self, failed: str, values: Sequence[Any], most: int) -> list[ErrorCount]:
        words = self._database.words
        sql = self.ERRORS.replace("{line}", words["as_bytes"].format(self.LINE)).replace("{failed}", failed)
        sql = sql.replace("{first_seen}", words["text"].format("MIN(seen)"))
        sql = sql.replace("{last_seen}", words["text"].format("MAX(seen)"))
        return [error_count(row) for row in self._database.fetch(sql, ("\n", "\n", *values, most))]

    # ---- several tasks

    LIST = "SELECT {readable}, 0 FROM {table} WHERE {condition} ORDER BY id DESC LIMIT ?"
    HAPPENED = ("created_at", "started_at", "finished_at", "CASE WHEN status = 3 THEN updated_at END")
    """When a task was added, last started and ended; a task in error ended at its updated_at."""

    def list(
        self,
        status: int | Iterable[int] | None = None,
        groups: Iterable[int] | None = None,
        task: str | None = None,
        error: str | None = None,
        since: Duration | datetime | None = None,
        limit: int = 100,
    ) -> list[TaskRow]:
        """The newest tasks, at most `limit`, of these statuses and groups (None: all) and this name.

        `error` is the start of their error_text, byte by byte. `since` is a duration before now or an aware datetime:
        only tasks that were added, started or ended since. Raises SettingError, InvalidTask.
        """
        check_number("limit", limit, 1, MAX_SIGNED, SettingError)
        condition, values = chosen_by(Selection(groups=check_groups(groups), task=task, error=error))
        values = list(values)
        if status is not None:
            statuses = _statuses(status)
            condition += f" AND status IN ({marks(len(statuses))})"
            values += statuses
        if since is not None:
            instant, value = earliest(since)
            condition += f" AND ({' OR '.join(f'{column} >= {instant}' for column in self.HAPPENED)})"
            values += [value] * len(self.HAPPENED)
        with self._database.without_timeout():
            rows = self._database.fetch(self.LIST.replace("{condition}", condition), (*values, limit))
        return [task_row(row) for row in rows]


def _statuses(status: int | Iterable[int]) -> list[int]:
    try:
        given = [status] if isinstance(status, int) else list(status)
    except TypeError:
        given = []
    if not given or not all(isinstance(one, int) and one in set(Status) for one in given):
        raise InvalidTask(f"status is {shown(status)}; allowed: one of taskserver.Status, or several")
    return given


# ---- pages


class Place(NamedTuple):
    """Where a page starts: after the task with this id."""

    id: int = MAX_SIGNED
    due_at: str | None = None
    """Its instant as text in UTC, if it has one."""


FIRST = Place()
"""Before all tasks without an instant, the newest first."""
DATED = Place(0, "1000-01-01 00:00:00.000000")
"""Before all tasks with an instant, the next first."""
BY_TIME = (Status.ERROR, Status.WAITING)
"""Their pages start with tasks that have an instant; the others end with these, as there are few."""


class _Seen(NamedTuple):
    """A row of a window."""

    place: Place
    attempts: int
    is_wanted: bool


class TaskPage(NamedTuple):
    """A page of tasks, without their arguments and results."""

    tasks: list[TaskRow]
    next_place: Place | None
    """Where the next page starts; None after the last page."""
    is_cut: bool = False
    """Whether there may be more tasks that no other page shows."""


class Pages:
    """The tasks of one queue, page by page. Raises DatabaseError, and InvalidTask for a Selection."""

    def __init__(self, database: Database) -> None:
        self._database = database

    ROWS = "SELECT id, {due_at_text}, attempts, CASE WHEN {wanted} THEN 1 ELSE 0 END FROM {table} "
    OF_ALL = ROWS + "{by_key} WHERE id < ? ORDER BY id DESC LIMIT ?"
    OF_UNDATED = f"""
        {ROWS} {{by_due}} WHERE {{due_status}} = ? AND due_at IS NULL AND id < ?
        ORDER BY {{undated_order}} id DESC LIMIT ?
    """
    OF_DATED = f"""
        {ROWS} {{by_due}} WHERE {{due_status}} = ? AND due_at >= {{instant}} AND (due_at > {{instant}} OR id > ?)
        ORDER BY due_at, id LIMIT ?
    """
    LISTED = "SELECT {listed}, 0 FROM {table} WHERE id IN ({ids})"

    def page(self, chosen: Selection, place: Place, most: int) -> TaskPage:
        """At most `most` tasks, the newest first; those in error or waiting for an instant, the next first."""
        looked = most + 1 if chosen == Selection(status=chosen.status) else WINDOW
        rows = self._rows(chosen, place, looked)
        wanted = [row.place for row in rows if row.is_wanted]
        last = wanted[most - 1] if len(wanted) > most else rows[-1].place if len(rows) == looked else None
        return TaskPage(self._listed([at.id for at in wanted[:most]]), last)

    def most_attempts(self, chosen: Selection, most: int) -> TaskPage:
        """Those with the most attempts in the first window, at most `most`."""
        rows = self._rows(chosen, FIRST, WINDOW)
        found = sorted((-row.attempts, -row.place.id) for row in rows if row.is_wanted)
        tasks = self._listed([-negative for _, negative in found[:most]])
        return TaskPage(tasks, None, len(rows) == WINDOW or len(found) > most)

    def _rows(self, chosen: Selection, place: Place, most: int) -> list[_Seen]:
        """The rows after a place in order, at most `most`."""
        by_time = chosen.status in BY_TIME
        at = DATED if by_time and place == FIRST else place
        rows = self._window(chosen, at, most)
        if len(rows) < most and chosen.status is not None and (at.due_at is not None) == by_time:
            rows += self._window(chosen, FIRST if by_time else DATED, most - len(rows))
        return rows

    def _window(self, chosen: Selection, at: Place, most: int) -> list[_Seen]:
        wanted, values = chosen_by(chosen._replace(status=None))
        behind: list[Any]
        if chosen.status is None:
            sql, behind = self.OF_ALL, [at.id]
        elif at.due_at is None:
            sql, behind = self.OF_UNDATED, [int(chosen.status), at.id]
        else:
            sql, behind = self.OF_DATED, [int(chosen.status), at.due_at, at.due_at, at.id]
        rows = self._database.fetch(sql.replace("{wanted}", wanted), [*values, *behind, most])
        return [_Seen(Place(row_id, at.due_at and due), attempts, bool(yes)) for row_id, due, attempts, yes in rows]

    def _listed(self, ids: list[int]) -> list[TaskRow]:
        """The tasks with these ids that still exist, in this order."""
        found = {row[0]: task_row(row) for row in self._database.fetch_ids(self.LISTED, ids)}
        return [found[one] for one in ids if one in found]
