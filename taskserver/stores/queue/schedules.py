"""Periodic tasks: producers put schedules into a table, and workers add a task when a schedule's time has come.

A look for due rows names the schedules (`Due.schedules`), and the run fires each of them. The next time is reckoned in
Python (model/schedule.py), from the planned time and the time of the database's clock.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from logging import INFO, WARNING, getLogger
from typing import NamedTuple

from ...errors import Conflict, DatabaseError, InvalidTask, SettingError, Unavailable
from ...messages.programs import CLIENT
from ...model.schedule import Schedule, check_schedule, next_time
from ..database import P, Row
from ..retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope
from .adding import Adding
from .due import MAX_DUE_PER_LOOK
from .schedule_holders import KEY_PREFIX, holders
from .store import Store

LOG = getLogger("taskserver")

MAX_FAULTS_TOLD = 20
"""Lines a run on standard error, which cron mails; the log has all of them."""

PAUSE_PER_SECOND = 4.0
"""After a wait for a row that others hold, the run goes on with its tasks for so many times as long."""
PUT_OFF_SECONDS = 3600
"""A row that can be no schedule is looked at again after so long: cron would mail the same line each minute."""


HOUR = len("2026-01-31 12")
"""Characters of an instant up to its hour."""


class StoredSchedule(NamedTuple):
    """A row as an operator sees it."""

    schedule: Schedule
    next_at: str
    """The next time, as text in UTC."""
    next_seconds: float | None
    """The seconds until then, below 0 where it is late; None where `next_at` is no instant."""
    fault: str | None
    """The reason why no task can be added; None without one."""
    held: str | None = None
    """The row that keeps it from adding tasks for longer than its own task would, in a sentence; None without one."""


class _Planned(NamedTuple):
    """A row and the database's clock, as one look read them."""

    schedule: Schedule
    next_at: str
    now: str

    def reckon(self) -> str:
        """The time after the planned one, as text in UTC.

        Raises InvalidTask, and SettingError where this host lacks something.
        """
        check_schedule(self.schedule)
        now = _instant(self.now)
        return _text(next_time(self.schedule, _instant_or_none(self.next_at) or now, now))


class Schedules:
    """The periodic tasks of a queue."""

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._lease_seconds = store.lease_seconds
        self._names_told: set[str] = set()
        self._left_to_others: set[str] = set()
        """Schedules whose next time this host cannot reckon, and another host may."""
        self._again_at = 0.0
        """By time.monotonic: until then no schedule is fired, as others hold a row that one of them writes to."""

    # ---- put: made, or changed

    COLUMNS = ", ".join(Schedule._fields)
    PUT = f"INSERT INTO {{schedules}} ({COLUMNS}, next_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, {{instant}})"
    # Assigned first: MySQL assigns from left to right, and this compares the old timing with the new one.
    NEXT_AT = """
        CASE WHEN COALESCE({old_every_seconds}, 0) = COALESCE({every_seconds}, 0)
            AND COALESCE({old_cron}, '') = COALESCE({cron}, '') AND {old_timezone} = {timezone}
            THEN {old_next_at} ELSE {next_at} END
    """
    NOW = "SELECT {now_text}"
    REMOVE = "DELETE FROM {schedules} WHERE name = ?"

    def put(self, schedule: Schedule) -> datetime:
        """Make a schedule, or change the one of its name; its next time is reckoned anew where its timing changes.

        Returns that time, which lies behind now where no run has met it yet. Raises InvalidTask, SettingError,
        DatabaseError.
        """
        now = _instant(self._database.fetch_value(self.NOW))
        reckoned = next_time(schedule, now, now)
        self._database.change(f"{self.PUT} {self._if_it_stands()}", (*schedule, _text(reckoned)))
        stored = self._find(schedule.name)
        return (stored and _instant_or_none(stored.next_at)) or reckoned

    def _if_it_stands(self) -> str:
        words, columns = self._database.words, (*Schedule._fields, "next_at")
        given = {column: words["given"].format(column) for column in columns}
        standing = {f"old_{column}": words["standing"].format("{schedules}", column) for column in columns}
        changes = {"next_at": self.NEXT_AT.format_map(given | standing)} | {
            column: given[column] for column in Schedule._fields
        }
        del changes["name"]
        return self._database.upsert(changes, "", "name")

    def remove(self, name: str) -> bool:
        """Delete a schedule; the tasks that it added stay. Whether there was one."""
        removed, in_doubt = self._database.change_in_doubt(self.REMOVE, (name,))
        return bool(removed) or in_doubt

    # ---- look

    ALL = f"SELECT {COLUMNS}, {{next_at_text}}, {{now_text}} FROM {{schedules}}"

    def all(self) -> list[StoredSchedule]:
        """All schedules, in order of their next times."""
        rows = self._database.fetch(f"{self.ALL} ORDER BY next_at, name")
        found = [_stored(_planned(row)) for row in rows]
        held = self._held([stored.schedule for stored in found])
        return [stored._replace(held=held.get(stored.schedule.name)) for stored in found]

    def _held(self, schedules: Sequence[Schedule]) -> dict[str, str]:
        """A sentence on each row that keeps one of these schedules silent, by the schedule's name."""
        by_name = {one.name: one for one in schedules if _is_utf8(one.name)}
        found = holders(self._database, list(by_name))
        words = {name: holder.keeps_silent(by_name[name], self._lease_seconds) for name, holder in found.items()}
        return {name: told for name, told in words.items() if told}

    def _find(self, name: str) -> _Planned | None:
        row = self._database.fetch_first(f"{self.ALL} WHERE name = ?", (name,))
        return None if row is None else _planned(row)

    # ---- fire: its time has come → a new task, and the next time
    #
    # The next time is reckoned in Python, from a row that was read without a lock. So the write names the time that was
    # read: of all workers that read it, one finds it unchanged, and adds the task in the same transaction. A worker
    # that is killed between the two writes leaves neither.

    MOVE = "UPDATE {schedules} SET next_at = {instant} WHERE name = ? AND next_at = {instant}"
    PUT_OFF = "UPDATE {schedules} SET next_at = {after} WHERE name = ? AND next_at = {instant}"
    ADD = "INSERT INTO {table} (task, args, group_id, priority, unique_key) VALUES (?, ?, ?, ?, ?)"
    # The row that an earlier time added has the key already. While that task waits, runs or is to be retried it stays
    # as it is, so that two tasks of one schedule never run at once. Once it is done or fatal it becomes new, as by a
    # rerun. MySQL assigns from left to right: the status comes last, as the condition of each assignment asks for it.
    HAS_ENDED = "{old_status} IN (2, 4)"
    ANEW = {
        column: to for column, to in Adding.RERUN.items() if column not in ("max_attempts", "version", "status")
    } | {"max_attempts": "NULL", "claim": "NULL", "due_at": "NULL", "status": "0"}

    def fire_all(self, names: Sequence[str]) -> int:
        """Fire schedules until one of them is held by others; how many times were moved."""
        fired = 0
        # In random order: in a fixed one, a held schedule would keep all behind it from their turn.
        for name in random.sample(names, len(names)):
            if time.monotonic() < self._again_at:
                break
            fired += self.fire(name)
        return fired

    def fire(self, name: str) -> bool:
        """Add the task of a schedule whose time has come, and write its next time. Whether its time was moved.

        A row that can be no schedule, whoever wrote it, is reported once and put off.
        """
        if name in self._left_to_others and not self._are_too_many_left():
            return False
        if not _is_utf8(name):
            return self._report(name, "its name is no UTF-8 text")
        planned = self._find(name)
        if planned is None or planned.next_at > planned.now:
            return False  # another worker was here
        try:
            next_at = planned.reckon()
        except InvalidTask as error:
            return self._put_off(name, planned, error)
        except SettingError as error:
            return self._leave(name, planned, error)
        moved = self._unless_held(name, self._move_and_add, name, planned, next_at)
        if moved:
            self._tell_holder(planned, next_at)
        return moved

    def _move_and_add(self, name: str, planned: _Planned, next_at: str) -> int:
        moved = self._database.write(self.MOVE, (next_at, name, planned.next_at))
        if moved:
            # Read again now that the row is locked: a deploy script may have changed it.
            schedule = (self._find(name) or planned).schedule
            values = (schedule.task, schedule.args, schedule.group_id, schedule.priority, KEY_PREFIX + schedule.name)
            self._database.execute(f"{self.ADD} {self._database.upsert(self.ANEW, self.HAS_ENDED)}", values)
        return moved

    def _tell_holder(self, planned: _Planned, next_at: str) -> None:
        """Report a row that kept this time from adding its task; of a schedule that comes more often, once an hour."""
        if planned.next_at[:HOUR] != next_at[:HOUR] and (told := self._held([planned.schedule])):
            self._report(planned.schedule.name, *told.values())

    def _put_off(self, name: str, planned: _Planned, error: Exception) -> bool:
        self._report(name, error)
        return self._unless_held(name, self._database.write, self.PUT_OFF, (PUT_OFF_SECONDS, name, planned.next_at))

    def _leave(self, name: str, planned: _Planned, error: SettingError) -> bool:
        """Leave a schedule to another host, or put it off where so many are left that a look finds no others.

        Whether its time was moved.
        """
        self._left_to_others.add(name)
        self._report(name, error)
        return self._are_too_many_left() and self._put_off(name, planned, error)

    def _are_too_many_left(self) -> bool:
        return len(self._left_to_others) >= MAX_DUE_PER_LOOK

    def _report(self, name: str, fault: object) -> bool:
        """Log a schedule's fault, once a run. Returns False, as its time was not moved."""
        if name not in self._names_told:
            self._names_told.add(name)
            is_one_of_many = len(self._names_told) > MAX_FAULTS_TOLD
            LOG.log(INFO if is_one_of_many else WARNING, "schedule %s: %s", name, fault)
            if len(self._names_told) == MAX_FAULTS_TOLD + 1:
                LOG.warning("more than %d schedules have faults: see %s status", MAX_FAULTS_TOLD, CLIENT)
        return False

    def _unless_held(self, name: str, write: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> bool:
        """Do a write in a transaction. Whether it changed the row; False where others hold it, until a later look."""
        began_at = time.monotonic()
        policy = RetryPolicy(Scope.TRANSACTION, HELD_PATIENCE_SECONDS)
        try:
            return bool(self._database.run(policy, write, *args, **kwargs))
        except Conflict:
            now = time.monotonic()
            self._again_at = now + PAUSE_PER_SECOND * (now - began_at)
            return False
        except Unavailable:
            raise
        except DatabaseError as error:
            # For example, a forged row may have the greatest id there is. The tasks of the queue run all the same.
            return self._report(name, error)


def _planned(row: Row) -> _Planned:
    # A column of SQLite may hold bytes.
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
    """None for a text that is no instant: SQLite lets a column hold any text, and MySQL a day that never was."""
    try:
        return _instant(text)
    except ValueError:
        return None


def _text(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S.%f}"


def _is_utf8(name: str | bytes) -> bool:
    """Whether a name can be sent to the database. SQLite may hold any bytes: they find their row, surrogates do not."""
    try:
        return isinstance(name, bytes) or name.encode() is not None
    except UnicodeEncodeError:
        return False
