"""The table of periodic tasks: what producers put there, and how workers add a task at its time.

Beside the verbs of store.py, on the same connections. A look for what is due names the schedules (`Due.schedules`),
and the runner has each of them fired. Times are reckoned in Python (schedule.py), from those that the database tells:
what was planned, and what time it is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from logging import INFO, WARNING, getLogger
from typing import NamedTuple

from ..errors import Conflict, DatabaseError, InvalidTask, SettingError, Unavailable
from ..schedule import Schedule, check_schedule, next_time
from .adding import Adding
from .database import P, Row
from .store import DUE_A_LOOK, HELD_PATIENCE_SECONDS, Store
from .tries import Way

LOG = getLogger("taskserver")

MOST_TOLD = 20
"""Lines a run on standard error, which cron mails: the rest is only in the log."""

KEY = "schedule:"
"""What stands before its name is the unique_key of its tasks."""
PAUSE_PER_SECOND = 4.0
"""So many times as long as the wait for what others hold the run goes on with its tasks, before it tries again."""
PUT_OFF_SECONDS = 3600
"""Until what a row says that can be no schedule is looked at again: cron would mail the same line each minute."""


class StoredSchedule(NamedTuple):
    """A row as an operator sees it."""

    schedule: Schedule
    next_at: str
    """In UTC."""
    next_seconds: float | None
    """From now until then; below 0 where it is late."""
    fault: str | None
    """Why nothing comes of it."""


class _Planned(NamedTuple):
    """A row, and the clock, as one look read them."""

    schedule: Schedule
    next_at: str
    now: str

    def reckon(self) -> str:
        """The time after the planned one. Raises InvalidTask, and SettingError where this host lacks something."""
        check_schedule(self.schedule)
        now = _instant(self.now)
        return _text(next_time(self.schedule, _instant_or_none(self.next_at) or now, now))


class Schedules:
    """The periodic tasks of a queue."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._told: set[str] = set()
        self._left: set[str] = set()
        """Those that this host cannot reckon, and another one may."""
        self._again_at = 0.0
        """By time.monotonic: until then none is fired, as others hold what that writes to."""

    # ---- put: made, or changed

    COLUMNS = ", ".join(Schedule._fields)
    PUT = f"INSERT INTO {{schedules}} ({COLUMNS}, next_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    # First of all: MySQL assigns from left to right, and what it compares is what stands there still.
    NEXT_AT = """
        CASE WHEN COALESCE(every_seconds, 0) = COALESCE({every_seconds}, 0)
            AND COALESCE(cron, '') = COALESCE({cron}, '') AND timezone = {timezone} THEN next_at ELSE {next_at} END
    """
    NOW = "SELECT {now_text}"
    REMOVE = "DELETE FROM {schedules} WHERE name = ?"

    def put(self, schedule: Schedule) -> None:
        """Make it, or change what stands under its name; its next time is reckoned anew where its timing changes."""
        now = _instant(self._store._alone(self._store._one, self.NOW)[0])
        next_at = _text(next_time(schedule, now, now))
        self._store._alone(self._store._write, f"{self.PUT} {self._if_it_stands()}", (*schedule, next_at))

    def _if_it_stands(self) -> str:
        given = {column: self._store.given.format(column) for column in (*Schedule._fields, "next_at")}
        changes = {"next_at": self.NEXT_AT.format_map(given)} | {column: given[column] for column in Schedule._fields}
        del changes["name"]
        return self._store._changing(changes, "", "name")

    def remove(self, name: str) -> bool:
        """What it added stays. Whether there was one."""
        removed = self._store._alone(self._store._write, self.REMOVE, (name,))
        return bool(removed) or self._store._may_have_taken_effect()

    # ---- what stands there

    ALL = f"SELECT {COLUMNS}, {{next_at_text}}, {{now_text}} FROM {{schedules}}"

    def all(self) -> list[StoredSchedule]:
        """In the order in which they come."""
        rows = self._store._alone(self._store._all, f"{self.ALL} ORDER BY next_at, name")
        return [_stored(_planned(row)) for row in rows]

    def find(self, name: str) -> StoredSchedule | None:
        planned = self._find(name)
        return None if planned is None else _stored(planned)

    def _find(self, name: str) -> _Planned | None:
        row = self._store._alone(self._store._first, f"{self.ALL} WHERE name = ?", (name,))
        return None if row is None else _planned(row)

    # ---- fire: its time has come → a new task, and the time after that
    #
    # The next time is reckoned in Python, from what was read without a lock. So the write names the time that was read:
    # of all workers that read it one alone finds it still there, and adds the task in the same transaction. A worker
    # that is killed between the two leaves neither.

    MOVE = "UPDATE {schedules} SET next_at = ? WHERE name = ? AND next_at = ?"
    PUT_OFF = "UPDATE {schedules} SET next_at = {after} WHERE name = ? AND next_at = ?"
    ADD = "INSERT INTO {table} (task, args, group_id, priority, unique_key) VALUES (?, ?, ?, ?, ?)"
    # Of the row that an earlier time added: one that waits, runs or is to be retried stays as it is, so that two of one
    # schedule never run at once. One that is done or fatal becomes new, as by a rerun of what is not running. MySQL
    # assigns from left to right: the status comes last, as the condition of each assignment asks for it.
    HAS_ENDED = "status IN (2, 4)"
    ANEW = {
        column: to for column, to in Adding.RERUN.items() if column not in ("max_attempts", "version", "status")
    } | {"max_attempts": "NULL", "claim": "NULL", "due_at": "NULL", "status": "0"}

    def fire_all(self, names: Sequence[str]) -> int:
        """Fire each of these, until others are found to hold one. How many have another time now."""
        fired = 0
        # Not in order: one that is held would keep all behind it from their turn.
        for name in random.sample(names, len(names)):
            if time.monotonic() < self._again_at:
                break
            fired += self.fire(name)
        return fired

    def fire(self, name: str) -> bool:
        """Add the task of a schedule whose time has come, and reckon its next time. Whether its time was moved.

        What can be no schedule, whoever wrote it there, is told once and put off.
        """
        if name in self._left and not self._left_too_many():
            return False
        if not _is_utf8(name):
            return self._tell(name, "its name is no UTF-8 text")
        planned = self._find(name)
        if planned is None or planned.next_at > planned.now:
            return False  # another worker was here
        try:
            next_at = planned.reckon()
        except InvalidTask as error:
            return self._put_off(name, planned, error)
        except SettingError as error:
            return self._leave(name, planned, error)
        return self._unless_held(name, self._move_and_add, name, planned, next_at)

    def _move_and_add(self, name: str, planned: _Planned, next_at: str) -> int:
        moved = self._store._write(self.MOVE, (next_at, name, planned.next_at))
        if moved:
            # As it stands now that it is locked: a deploy script may have changed it since it was read.
            schedule = (self._find(name) or planned).schedule
            values = (schedule.task, schedule.args, schedule.group_id, schedule.priority, KEY + schedule.name)
            self._store._execute(f"{self.ADD} {self._store._changing(self.ANEW, self.HAS_ENDED)}", values)
        return moved

    def _put_off(self, name: str, planned: _Planned, error: Exception) -> bool:
        self._tell(name, error)
        return self._unless_held(name, self._store._write, self.PUT_OFF, (PUT_OFF_SECONDS, name, planned.next_at))

    def _leave(self, name: str, planned: _Planned, error: SettingError) -> bool:
        """Leave it to another host, unless so many are left here that a look would find nothing else."""
        self._left.add(name)
        self._tell(name, error)
        return self._left_too_many() and self._put_off(name, planned, error)

    def _left_too_many(self) -> bool:
        return len(self._left) >= DUE_A_LOOK

    def _tell(self, name: str, fault: object) -> bool:
        """Once a run. False, as nothing came of it."""
        if name not in self._told:
            self._told.add(name)
            is_one_of_many = len(self._told) > MOST_TOLD
            LOG.log(INFO if is_one_of_many else WARNING, "schedule %s: %s", name, fault)
            if len(self._told) == MOST_TOLD + 1:
                LOG.warning("more than %d schedules have faults: see client.py status", MOST_TOLD)
        return False

    def _unless_held(self, name: str, write: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Whether a transaction changed the row; not where others hold it, to be looked at again in the next turn."""
        began_at = time.monotonic()
        try:
            return bool(self._store._do(Way(True, HELD_PATIENCE_SECONDS), write, *args, **kwargs))
        except Conflict:
            now = time.monotonic()
            self._again_at = now + PAUSE_PER_SECOND * (now - began_at)
            return False
        except Unavailable:
            raise
        except DatabaseError as error:
            # As where a forged row has the greatest id there is: tasks that are there run all the same.
            return self._tell(name, error)


def _planned(row: Row) -> _Planned:
    # SQLite lets a column hold bytes.
    texts = (value.decode(errors="surrogateescape") if type(value) is bytes else value for value in row)
    *columns, next_at, now = texts
    return _Planned(Schedule._make(columns), next_at, now)


def _stored(planned: _Planned) -> StoredSchedule:
    next_at = _instant_or_none(planned.next_at)
    seconds = (next_at - _instant(planned.now)).total_seconds() if next_at else None
    return StoredSchedule(planned.schedule, planned.next_at, seconds, _fault(planned))


def _fault(planned: _Planned) -> str | None:
    try:
        planned.reckon()
    except (InvalidTask, SettingError) as error:
        return str(error)
    return None


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def _instant_or_none(text: str) -> datetime | None:
    """None where it is none: SQLite lets a column hold any text, and MySQL a day that never was."""
    try:
        return _instant(text)
    except ValueError:
        return None


def _text(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S.%f}"


def _is_utf8(name: str | bytes) -> bool:
    """Of SQLite, which lets a column hold any bytes; as such they are found again, as a text of surrogates not."""
    try:
        return isinstance(name, bytes) or bool(name.encode())
    except UnicodeEncodeError:
        return False
