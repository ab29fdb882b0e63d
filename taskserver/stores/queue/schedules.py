"""Periodic tasks: producers put schedules into a table, and workers add a task when a schedule is due.

A look for due rows finds the schedules (`Due.schedules`), and the run fires each. Python computes the next time
(model/schedule.py) from the planned time and the database's clock.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from logging import INFO, WARNING, getLogger
from typing import Any, NamedTuple

from ...errors import Conflict, DatabaseError, InvalidTask, SettingError, Unavailable
from ...messages.log_records import ONCE_AN_HOUR
from ...messages.programs import CLIENT
from ...messages.text import age, on_day, shown, utc
from ...model.checks import check_text
from ...model.results import as_texts, read_result
from ...model.schedule import ScheduleRow, check_schedule, next_time
from ...model.task import Status, name_of_status
from ..database import Database, Row
from ..retrying import HELD_PATIENCE_SECONDS, MIN_CONFLICT_SECONDS, RetryPolicy, Scope
from .adding import Adding
from .notes import Note, Notes
from .store import Store

LOG = getLogger("taskserver")

RETRY_INVALID_SECONDS = 3600
"""The pause after an invalid schedule: otherwise cron would mail the same line every minute."""
FIRE = RetryPolicy(Scope.TRANSACTION, HELD_PATIENCE_SECONDS)
RUN_NOW = RetryPolicy(Scope.TRANSACTION, MIN_CONFLICT_SECONDS, is_repeatable=False)
SYNCED = "schedules"
"""The note with the names of the last sync's schedules."""
MAX_NAMES_BYTES = 60_000
"""MySQL's TEXT holds 65,535."""
KEY_PREFIX = "schedule:"
"""Followed by the schedule's name, it is the unique_key of its tasks."""
RAN = "ran"
"""The kind of notes about the last run of each schedule, as the mode `delete` leaves no row."""


class ScheduledRun(NamedTuple):
    """How the last task of a schedule ended; known even if its row is deleted."""

    started_at: datetime
    status: int
    """2 done, 3 error, 4 fatal."""
    seconds: float | None
    """How long it ran; None if its worker died."""

    @property
    def words(self) -> str:
        """As `today 03:30, done in 4 s`."""
        if self.seconds is None:
            end = "will be retried" if self.status == Status.ERROR else "failed for good"
            return f"{on_day(self.started_at)}, its worker died, {end}"
        known: dict[int, str] = {Status.DONE: "done in {}", Status.ERROR: "failed after {}, will be retried"}
        ended = known.get(self.status, "failed for good after {}").format(age(self.seconds))
        return f"{on_day(self.started_at)}, {ended}"

    def as_dict(self) -> dict[str, Any]:
        """The run, with its status by name."""
        return {**self._asdict(), "status": name_of_status(self.status)}


class StoredSchedule(NamedTuple):
    """A row as an operator sees it."""

    schedule: ScheduleRow
    next_at: datetime | None
    next_seconds: float | None
    """Below 0 if it is late; None if `next_at` is invalid."""
    fault: str | None
    """Why no task can be added."""
    held: str | None = None
    """The unfinished task that has its key: no task is added until it ends."""
    is_silenced: bool = False
    """Whether that task waits for other tasks, or is not due for more than a day."""
    last: ScheduledRun | None = None
    """None if no run has ended yet."""

    @property
    def when_due(self) -> str:
        """As `in 3 min` or `late by 2 h`; `now` in the minute that cron may need to start a worker."""
        if self.next_seconds is None:
            return ""
        late = f"late by {age(-self.next_seconds)}" if self.next_seconds <= -60 else "now"
        return f"in {age(self.next_seconds)}" if self.next_seconds > 0 else late


class Synced(NamedTuple):
    """What a sync of schedules did, by their names in order."""

    made: list[str]
    changed: list[str]
    removed: list[str]


class _Planned(NamedTuple):
    """A row and the database's clock, read together."""

    schedule: ScheduleRow
    next_at: str
    now: str

    def following(self) -> str:
        """The time after the planned one. Raises InvalidTask, and SettingError without cronsim."""
        check_schedule(self.schedule)
        now = _instant(self.now)
        return _text(next_time(self.schedule, utc(self.next_at) or now, now))


class Schedules:
    """The periodic tasks of a queue. Raises DatabaseError."""

    def __init__(self, store: Store) -> None:
        self._database = store.database
        self._reported: set[str] = set()

    # ---- put: make or change

    COLUMNS = ", ".join(ScheduleRow._fields)
    PUT = f"INSERT INTO {{schedules}} ({COLUMNS}, next_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, {{instant}})"
    # Assigned first: MySQL assigns from left to right, and this compares the old timing with the new one.
    NEXT_AT = """
        CASE WHEN COALESCE({old_every_seconds}, 0) = COALESCE({every_seconds}, 0)
            AND COALESCE({old_cron}, '') = COALESCE({cron}, '') AND {old_timezone} = {timezone}
            THEN {old_next_at} ELSE {next_at} END
    """
    REMOVE = "DELETE FROM {schedules} WHERE name = ?"

    def put(self, schedule: ScheduleRow) -> datetime:
        """Make a schedule, or change the one with its name; a new timing also gives a new next time.

        Returns the next time, which is in the past if a run is late. Raises InvalidTask, SettingError.
        """
        now = self._database.now()
        first = next_time(schedule, now, now)
        self._database.change(self._put_sql(), (*schedule, _text(first)))
        stored = self._find(schedule.name)
        return (stored and utc(stored.next_at)) or first

    def _put_sql(self) -> str:
        words, columns = self._database.words, (*ScheduleRow._fields, "next_at")
        given = {column: words["given"].format(column) for column in columns}
        standing = {f"old_{column}": words["standing"].format("{schedules}", column) for column in columns}
        changes = {"next_at": self.NEXT_AT.format_map(given | standing)}
        changes |= {column: given[column] for column in ScheduleRow._fields if column != "name"}
        return f"{self.PUT} {self._database.upsert(changes, '', 'name')}"

    def remove(self, name: str) -> bool:
        """Delete a schedule, but not its tasks; whether it existed. Raises InvalidTask."""
        removed, in_doubt = self._database.change_in_doubt(self.REMOVE, (check_text("name", name),))
        if removed:
            Notes(self._database).remove(_note_name(KEY_PREFIX + name))
        return bool(removed) or in_doubt

    # ---- sync: a note has the names of the last sync

    LOCK = "INSERT INTO {notes} (name, value, noted_at) VALUES (?, '[]', {now})"

    def sync(self, schedules: Sequence[ScheduleRow]) -> Synced:
        """In one transaction, make and change these, and delete those of earlier syncs only. Raises InvalidTask."""
        wanted = {schedule.name: schedule for schedule in schedules}
        names = json.dumps(sorted(wanted))
        if len(names) > MAX_NAMES_BYTES:
            raise InvalidTask(f"the names of all schedules have {len(names)} bytes; allowed: {MAX_NAMES_BYTES}")
        policy = RetryPolicy(Scope.TRANSACTION, self._database.conflict_seconds)
        return self._database.run(policy, self._sync, wanted, names)

    def _sync(self, wanted: dict[str, ScheduleRow], names: str) -> Synced:
        # This locks the note: of two deploys at once, the second waits and reads what the first wrote.
        given = {"noted_at": self._database.words["given"].format("noted_at")}
        self._database.write(f"{self.LOCK} {self._database.upsert(given, '', 'name')}", (SYNCED,))
        ((value,),) = self._database.rows(Notes.READ, (SYNCED,))
        before = read_result(value)
        standing = {planned.schedule.name: planned.schedule for planned in map(_planned, self._database.rows(self.ALL))}
        done = Synced(
            sorted(wanted.keys() - standing.keys()),
            sorted(name for name, row in wanted.items() if standing.get(name, row) != row),
            sorted(name for name in standing.keys() - wanted.keys() if isinstance(before, list) and name in before),
        )
        now = self._database.now()
        for name in (*done.made, *done.changed):
            self._database.write(self._put_sql(), (*wanted[name], _text(next_time(wanted[name], now, now))))
        for name in done.removed:
            self._database.write(self.REMOVE, (name,))
            self._database.write(Notes.REMOVE, (_note_name(KEY_PREFIX + name),))
        self._database.write(Notes.COMPLETE, (names, SYNCED))
        return done

    # ---- look

    ALL = f"SELECT {COLUMNS}, {{next_at_text}}, {{now_text}} FROM {{schedules}}"
    HOLDERS = """
        SELECT unique_key, id, status, CASE WHEN status IN (0, 1) OR {due_at_age} >= -86400 THEN 0 ELSE 1 END
        FROM {table} WHERE unique_key IN ({ids}) AND status NOT IN (2, 4, 7)
    """

    def all(self) -> list[StoredSchedule]:
        """All schedules, in order of next time."""
        found = [_stored(_planned(row)) for row in self._database.fetch(f"{self.ALL} ORDER BY next_at, name")]
        keys = [KEY_PREFIX + stored.schedule.name for stored in found if stored.fault is None]
        held = {
            key: (
                f"task {task_id} has its key and is {name_of_status(status).replace('_', ' ')}: "
                "its times add nothing until that task has ended",
                bool(is_silenced),
            )
            for key, task_id, status, is_silenced in map(as_texts, self._database.fetch_ids(self.HOLDERS, keys))
        }
        names = [_note_name(KEY_PREFIX + stored.schedule.name) for stored in found]
        ran = {note.name: note for note in Notes(self._database).find_all(names)}
        return [
            stored._replace(held=words, is_silenced=is_silenced, last=_last_run(ran.get(_note_name(key))))
            for stored in found
            for key in (KEY_PREFIX + stored.schedule.name,)
            for words, is_silenced in (held.get(key, (None, False)),)
        ]

    def _find(self, name: str) -> _Planned | None:
        row = self._database.fetch_first(f"{self.ALL} WHERE name = ?", (name,))
        return None if row is None else _planned(row)

    # ---- fire: a due schedule → a new task, and the next time
    #
    # The row is read without a lock, so the write names the time that was read: only one of the workers finds it
    # unchanged, and adds the task in the same transaction. If that worker is killed, both writes are rolled back.

    MOVE = "UPDATE {schedules} SET next_at = {instant} WHERE name = ? AND next_at = {instant}"
    RETRY_LATER = "UPDATE {schedules} SET next_at = {after} WHERE name = ? AND next_at = {instant}"
    ADD = "INSERT INTO {table} (task, args, group_id, priority, unique_key) VALUES (?, ?, ?, ?, ?)"
    # An earlier task has the key until it ends, and is not changed, so two tasks of one schedule never run at once.
    # An ended one becomes new, as by a rerun. MySQL assigns from left to right: the status comes last, because each
    # assignment reads it.
    HAS_ENDED = "{old_status} IN (2, 4, 7)"
    RUN_AGAIN = {
        column: to for column, to in Adding.RERUN.items() if column not in ("max_attempts", "version", "status")
    } | {"max_attempts": "NULL", "claim": "NULL", "due_at": "NULL", "status": "0"}

    def fire_all(self, names: Sequence[str]) -> int:
        """→ new by due schedules, until one is held; how many next times were written."""
        fired = 0
        try:
            for name in random.sample(names, len(names)):  # in order, a held one would always block the next ones
                fired += self.fire(name)
        except Conflict:
            pass  # the next look retries
        return fired

    def fire(self, name: str) -> bool:
        """→ new by a due schedule; whether its next time was written.

        Logs a schedule's fault once a run, and postpones an invalid one. Raises Conflict if the row is held.
        """
        try:
            planned = self._find(name)
            if planned is None or planned.next_at > planned.now:
                return False  # another worker was faster
            try:
                following = planned.following()
            except InvalidTask as error:
                self._report(name, error)
                values = (RETRY_INVALID_SECONDS, name, planned.next_at)
                return bool(self._database.run(FIRE, self._database.write, self.RETRY_LATER, values))
            return bool(self._database.run(FIRE, self._move_and_add, name, planned, following))
        except (Conflict, Unavailable):
            raise
        except (DatabaseError, SettingError, UnicodeEncodeError) as error:
            # Such as: no id is left, cronsim is missing, a name in SQLite is invalid. The other tasks still run.
            self._report(name, error)
            return False

    def _move_and_add(self, name: str, planned: _Planned, following: str) -> int:
        moved = self._database.write(self.MOVE, (following, name, planned.next_at))
        if moved:
            # Read again under the lock: a deployment may have changed it.
            self._add((self._find(name) or planned).schedule)
        return moved

    def _add(self, schedule: ScheduleRow) -> int:
        """→ new; the id. An earlier task that has not ended is not changed: then it is that task's id."""
        key, sql = KEY_PREFIX + schedule.name, f"{self.ADD} {self._database.upsert(self.RUN_AGAIN, self.HAS_ENDED)}"
        values = (schedule.task, schedule.args, schedule.group_id, schedule.priority, key)
        return self._database.dialect.insert_key(self._database, sql, values, key)

    def run_now(self, name: str) -> int:
        """→ new by a schedule now; its next time stays. The id, as from `_add`. Raises InvalidTask."""
        return self._database.run(RUN_NOW, self._add_now, check_text("name", name))

    def _add_now(self, name: str) -> int:
        found = self._find(name)
        if found is None:
            raise InvalidTask(f"there is no schedule {shown(name)}: {CLIENT} status lists them")
        check_schedule(found.schedule)
        return self._add(found.schedule)

    def _report(self, name: str, fault: Exception) -> None:
        """Log a schedule's fault once a run; only the first one is a warning."""
        if name not in self._reported:
            level = INFO if self._reported else WARNING
            LOG.log(level, "schedule %s: %s", name, fault, extra={ONCE_AN_HOUR: True})
            self._reported.add(name)


def _planned(row: Row) -> _Planned:
    *columns, next_at, now = as_texts(row)
    return _Planned(ScheduleRow._make(columns), next_at, now)


def _stored(planned: _Planned) -> StoredSchedule:
    next_at, fault = utc(planned.next_at), None
    try:
        planned.following()
    except (InvalidTask, SettingError) as error:
        fault = str(error)
    seconds = (next_at - _instant(planned.now)).total_seconds() if next_at else None
    return StoredSchedule(planned.schedule, next_at, seconds, fault)


# ---- how the last task of a schedule ended

ALL_NAMES = "SELECT name FROM {schedules}"


def note_ends(database: Database, ends: Iterable[tuple[str | bytes, int, float | None, float]]) -> None:
    """Note how tasks of schedules ended: key, status, seconds that they ran, seconds since the end.

    For a lost one: None, and the seconds since its start. Ignores keys of deleted schedules.
    """
    keys = {KEY_PREFIX + name for row in database.fetch(ALL_NAMES) for name in as_texts(row)}
    notes = [(_note_name(key), json.dumps(end)) for key, *end in map(as_texts, ends) if key in keys]
    if notes:
        Notes(database).put_all(notes)


def _note_name(key: str) -> str:
    return f"{RAN} {hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()[:32]}"


def _last_run(note: Note | None) -> ScheduledRun | None:
    """None if the note is missing or invalid."""
    if note is None or note.noted_at is None:
        return None
    try:
        status, ran_seconds, ago = json.loads(note.value)
        began_at = note.noted_at - timedelta(seconds=(ran_seconds or 0.0) + ago)
        return ScheduledRun(began_at, int(status), None if ran_seconds is None else float(ran_seconds))
    except (ValueError, TypeError, OverflowError):
        return None


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def _text(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S.%f}"
