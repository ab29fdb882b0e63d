"""What operators do to a queue: run again, cancel, move, pause; and how errors are counted for them.

Verbs over a store, apart from store.py, as a worker has no need of them. Those to many rows go by sweep.py.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence, Set
from typing import NamedTuple

from ..errors import Conflict, InvalidTask
from ..lifecycle import MAX_GROUP_ID, MAX_ID, ClaimedTask, Status
from ..selection import Selection
from .chains import Chains
from .database import IDS_A_STATEMENT, marks
from .dependencies import GIVEN_UP, IS_GIVEN_UP, Dependencies
from .rows import StoredTask, stored_task
from .store import MOST_GROUPS, Store
from .sweep import Sweep, Swept, Target, Told

SETTLE_SECONDS = 10.0
ANY_GIVEN_UP = f"{GIVEN_UP}…, for which it waits, is fatal"


class Verb(NamedTuple):
    """What is done to chosen rows, and to which of them it can be done."""

    name: str
    which: str
    write: str
    suits: str
    """The same as `which`, in words."""


# ---- retry: error, fatal → new

# What it failed with stays until it succeeds, but not the word that it was cancelled: that asks for its end. A token
# goes, so that a worker which turns out to be alive completes nothing that a person wants to have run again. One that
# waits for others, or is waited for, has to be settled first (dependencies.py).
RETRY = Verb(
    "retry",
    "status IN (3, 4)",
    f"""
    UPDATE {{table}} {{by_key}} SET attempts = 0, due_at = CASE WHEN {{is_linked}} THEN {{now}} END, claim = NULL,
        finished_at = NULL, updated_at = {{now}},
        error_text = CASE WHEN {IS_GIVEN_UP} THEN NULL ELSE NULLIF(error_text, {{cancelled}}) END,
        status = CASE WHEN {{is_linked}} THEN 5 ELSE 0 END
    """,
    "in error or fatal",
)

# ---- cancel: new, waiting, error, claimed → fatal; running → running, with the word that its heartbeat looks for

RUNS = Store.IS_RUNNING
# Fatal already, and its worker may yet turn out to be alive and complete it: not after this.
IS_LOST = "status = 4 AND claim IS NOT NULL AND error_text LIKE 'lost: %'"
# One that a rerun reached while it ran keeps its attempts of 0: so what was to follow is cancelled, however it ends.
# MySQL assigns from left to right: the status, by which all the others are decided, comes last.
CANCEL = Verb(
    "cancel",
    f"status IN (0, 1, 3, 4, 5) AND (status <> 4 OR {IS_LOST}) AND NOT ({RUNS} AND {{is_cancelled}} = 1)",
    f"""
    UPDATE {{table}} {{by_key}} SET error_text = CASE WHEN status = 4 THEN error_text ELSE {{cancelled}} END,
        claim = CASE WHEN {RUNS} THEN claim END,
        due_at = CASE WHEN {RUNS} THEN due_at WHEN awaited <> 0 THEN {{now}} END,
        finished_at = CASE WHEN {RUNS} THEN finished_at ELSE {{now}} END,
        updated_at = {{now}},
        status = CASE WHEN {RUNS} THEN 1 ELSE 4 END
    """,
    "new, waiting, in error, in progress or lost",
)

# ---- priority: of whatever may run yet; of one in progress for its next attempt

# updated_at stays: of a new row it is the instant since which it is ready.
PRIORITY = Verb(
    "priority",
    "status IN (0, 1, 3, 5)",
    "UPDATE {table} {by_key} SET priority = ?, updated_at = updated_at",
    "new, waiting, in error or in progress",
)

# ---- end leases: of claims that hold, so that what they hold is taken back

END_LEASE = Verb(
    "reclaim",
    "status = 1",
    "UPDATE {table} {by_key} SET due_at = {now}, updated_at = updated_at",
    "in progress",
)


class Preview(NamedTuple):
    """What a verb would be done to."""

    rows: int
    first: list[StoredTask]


class Reclaimed(NamedTuple):
    """What a reclaim did."""

    forced: int
    """Claims whose lease held, and was ended."""
    woken: int
    """Waiting and failed tasks whose time had come: new."""
    unstarted: int
    """Claimed and not started: new."""
    lost: int
    """Started: an attempt that failed."""
    orphaned: int
    """Tasks that waited for others which somebody deleted: looked at anew."""
    left: int
    """As they were, as others held them."""


class ErrorCount(NamedTuple):
    """Tasks in error and fatal whose errors have the same first line."""

    line: str
    rows: int
    fatal: int
    """How many of them are fatal."""
    first_seen: str
    """Of those that stand there, when the one that failed first did; in UTC."""
    last_seen: str
    example_id: int
    """The newest one."""


class Interventions:
    """An operator's verbs over one queue."""

    def __init__(self, store: Store) -> None:
        self._store = store

    # ---- verbs to chosen rows

    def retry(self, selection: Selection) -> int:
        """Error, fatal → new, with attempts 0. How many. Raises Conflict where others held some of them."""
        return self._changed(RETRY, selection)

    def cancel(self, selection: Selection) -> int:
        """New, waiting, error, claimed → fatal `cancelled`; a running one is interrupted. How many. Raises Conflict."""
        return self._changed(CANCEL, selection)

    def set_priority(self, selection: Selection, priority: int) -> int:
        """Move tasks that may run yet. How many. Raises Conflict."""
        return self._changed(PRIORITY, selection, (priority,))

    def _changed(self, verb: Verb, selection: Selection, values: Sequence[int] = ()) -> int:
        swept = self.change(verb, selection, values)
        if swept.held:
            raise Conflict(
                f"{verb.name}: {swept.changed} tasks of {self._store.table} were changed, and {len(swept.held)} left "
                f"as they were, since other programs hold them, as {swept.held[0]}: try again"
            )
        return swept.changed

    def change(
        self, verb: Verb, selection: Selection, values: Sequence[int] = (), told: Told = lambda ids: None
    ) -> Swept:
        """Do a verb to all chosen rows that it is for. Raises InvalidTask."""
        sweep = Sweep(self._store, _target(verb, selection, values), told)
        swept = sweep.run(selection.ids, selection.limit)
        if swept.changed and verb in (RETRY, CANCEL):
            self._settle()
        return swept

    GIVEN_UP_AMONG = f"SELECT COUNT(*) FROM {{table}} WHERE id IN ({{ids}}) AND {IS_GIVEN_UP}"

    def given_up_among(self, ids: Sequence[int]) -> int:
        """How many of these are fatal because of a task that they wait for."""
        portions = (ids[first : first + IDS_A_STATEMENT] for first in range(0, len(ids), IDS_A_STATEMENT))
        return sum(self._store.look(self.GIVEN_UP_AMONG, portion)[0][0] for portion in portions)

    def _settle(self) -> None:
        """Tell those that wait for the changed ones, and those that wait for these. What is left a worker tells."""
        dependencies = Dependencies(self._store)
        until = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until and dependencies.settle(self._store.look_for_due().linked):
            pass

    def preview(self, verb: Verb, selection: Selection, most: int) -> Preview:
        """How many rows a verb would be done to, and the first of them. Raises InvalidTask."""
        sweep = Sweep(self._store, _target(verb, selection))
        limit = MAX_ID if selection.limit is None else selection.limit
        if selection.ids is not None:
            found = sweep.look_among(sorted(set(selection.ids)))
            count, first = len(found), found
        else:
            count, first = sweep.count(), sweep.look(-1, most)
        return Preview(min(count, limit), self.show_all(first[: min(most, limit)]))

    SHOW_ALL = "SELECT {readable}, 0 FROM {table} WHERE id IN ({ids}) ORDER BY id"

    def show_all(self, ids: Sequence[int]) -> list[StoredTask]:
        """Those of some tasks that stand in the queue, in order of id."""
        if not ids:
            return []
        return [stored_task(row) for row in self._store.look(self.SHOW_ALL, ids)]

    STILL_RUNNING = f"SELECT COUNT(*) FROM {{table}} {{by_status}} WHERE {RUNS} AND {{is_cancelled}} = 1"

    def still_running(self) -> int:
        """How many tasks run that were cancelled: their workers have not heard of it yet."""
        found: int = self._store.look(self.STILL_RUNNING)[0][0]
        return found

    # ---- pause, resume

    PAUSE = "{insert_or_ignore} INTO {paused} (group_id) VALUES (?)"
    RESUME = "DELETE FROM {paused} WHERE group_id = ?"

    def pause(self, group_id: int) -> bool:
        """From the next claim on no worker takes tasks of this group. False if that was so already."""
        return self._store._alone(self._store._write, self.PAUSE, (group_id,)) == 1

    def resume(self, group_id: int) -> bool:
        """Have the tasks of a group run again. Whether it was paused."""
        return self._store._alone(self._store._write, self.RESUME, (group_id,)) == 1

    # ---- claim one: new, waiting, error, fatal → in progress, whatever its group and its time

    # The status last, as above. One that waits for other tasks is left to them.
    CLAIM_ONE = """
        UPDATE {table} {by_key} SET attempts = CASE WHEN status = 4 THEN 0 ELSE attempts END,
            error_text = NULLIF(error_text, {cancelled}), claim = ?, due_at = {after}, started_at = NULL,
            finished_at = NULL, updated_at = CASE WHEN status = 0 THEN updated_at ELSE {now} END, status = 1
        WHERE id = ? AND status IN (0, 3, 4, 5)
            AND NOT EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id)
    """

    def claim_one(self, task_id: int) -> ClaimedTask:
        """Claim this task alone; a fatal one begins anew. Raises InvalidTask where that cannot be, and says why."""
        store = self._store
        token = int.from_bytes(os.urandom(8), "big") >> 1
        store._alone(store._write, self.CLAIM_ONE, (token, store._lease_seconds, task_id))
        for task in store._read_claim(token):
            return task
        raise InvalidTask(_why_not_claimed(store, task_id))

    # ---- errors, by their first lines

    # Those that were given up because of others stand together, behind what they were given up for.
    # Of a fatal task the end of its last attempt stands in finished_at, of one in error the row was written last then.
    ERRORS = """
        SELECT line, COUNT(*), SUM(CASE WHEN status = 4 THEN 1 ELSE 0 END), {first_seen}, {last_seen}, MAX(id)
        FROM (
            SELECT id, status, CASE WHEN status = 4 THEN COALESCE(finished_at, updated_at) ELSE updated_at END AS seen,
                CASE WHEN {is_given_up} THEN {given_up}
                    WHEN INSTR(error_text, ?) > 0 THEN SUBSTR(error_text, 1, INSTR(error_text, ?) - 1)
                    ELSE COALESCE(error_text, '') END AS line
            FROM {table} {by_status} WHERE {which}
        ) AS failed
        GROUP BY line ORDER BY CASE WHEN line = {given_up} THEN 1 ELSE 0 END, COUNT(*) DESC, MAX(id) DESC LIMIT ?
    """

    def errors(self, selection: Selection) -> list[ErrorCount]:
        """Tasks in error and fatal by the first line of their errors, the most frequent first: `limit` lines at most.

        Raises InvalidTask.
        """
        store = self._store
        most = MAX_ID if selection.limit is None else selection.limit
        target = _target(RETRY, selection)
        sql = self.ERRORS.replace("{which}", target.which).replace("{is_given_up}", IS_GIVEN_UP)
        sql = sql.replace("{given_up}", f"'{ANY_GIVEN_UP}'")
        for name, instant in (("first_seen", "MIN(seen)"), ("last_seen", "MAX(seen)")):
            sql = sql.replace(f"{{{name}}}", store.instant_text.format(instant))
        with store._unhurried():
            rows = store._alone(store._all, sql, ("\n", "\n", *target.values, most))
        return [ErrorCount(_text(line), count, int(fatal), *rest) for line, count, fatal, *rest in rows]


def _why_not_claimed(store: Store, task_id: int) -> str:
    row = store.show(task_id)
    if row is None:
        return f"there is no task {task_id} in {store.table} or {store.table}_done; a completed one may be deleted"
    if row.status == Status.DONE:
        return f"task {task_id} is done: add it again to have it run again"
    if row.status == Status.IN_PROGRESS:
        return f"task {task_id} is in progress: a worker has it, or had it until its lease ended, at {row.due_at} (UTC)"
    if parents := Chains(store).links([task_id])[task_id].waits_for:
        return f"task {task_id} waits for task {parents[0]}: run or retry that one; client.py show {task_id} tells more"
    return f"task {task_id} has the status {row.status}, and cannot be run; look again"


def _target(verb: Verb, selection: Selection, values: Sequence[int] = ()) -> Target:
    _check(selection)
    conditions = [verb.which]
    groups = selection.groups or ()
    if selection.groups is not None:
        conditions.append(f"group_id IN ({marks(len(groups))})" if groups else "1 = 0")
    if selection.task is not None:
        conditions.append("task = ?")
    if selection.error is not None:
        conditions.append("INSTR(error_text, ?) = 1")  # LIKE of SQLite holds a and A for the same
    texts = [text for text in (selection.task, selection.error) if text is not None]
    return Target(" AND ".join(f"({condition})" for condition in conditions), (*groups, *texts), verb.write, values)


def _check(selection: Selection) -> None:
    _check_numbers("ids", selection.ids, MAX_ID)
    _check_numbers("groups", selection.groups, MAX_GROUP_ID)
    if selection.groups is not None and len(selection.groups) > MOST_GROUPS:
        raise InvalidTask(f"{len(selection.groups)} groups are chosen; allowed: at most {MOST_GROUPS}")
    for name, text in (("task", selection.task), ("error", selection.error)):
        if text is not None and not _is_text(text):
            raise InvalidTask(f"{name} is {text!r:.80}; allowed: a text in UTF-8, not an empty one")
    if selection.limit is not None and (type(selection.limit) is not int or selection.limit < 1):
        raise InvalidTask(f"limit is {selection.limit!r:.80}; allowed: a whole number from 1 on")


def _check_numbers(name: str, numbers: Sequence[int] | None, most: int) -> None:
    if numbers is None:
        return
    if not isinstance(numbers, (Sequence, Set)) or isinstance(numbers, (str, bytes)):
        raise InvalidTask(f"{name} is {numbers!r:.80}; allowed: a list of whole numbers from 0 to {most}")
    for number in numbers:
        if type(number) is not int or not 0 <= number <= most:
            raise InvalidTask(f"{name} has {number!r:.80}; allowed: whole numbers from 0 to {most}")


def _is_text(text: object) -> bool:
    try:
        return isinstance(text, str) and text.encode() != b""
    except UnicodeEncodeError:
        return False


def _text(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
