"""An operator's verbs: retry, cancel, priority, reclaim by force, run one task. many_rows.py writes the rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ...errors import Conflict, InvalidTask, SettingError
from ...messages.programs import CLIENT
from ...model.field_checks import check_priority, name_of
from ...model.selection import Selection, check_selection, selection_of
from ...model.task import MAX_SIGNED, ClaimedTask, Status
from ..database import Database
from ..records import StoredTask, earliest, stored_task
from ..words import marks, with_ids
from .adding import Adding
from .claims import new_token
from .dependencies import IS_GIVEN_UP, Dependencies, give_up_children, links, revive_children
from .many_rows import ChosenRows, ManyRows, OnWritten, Then, Written
from .store import Store

Chosen = int | Iterable[int] | Selection
"""An id, some ids, or a Selection."""
DECIDE_SECONDS = 10.0
"""After a retry, waiting tasks are decided about for so long; a worker decides about the rest."""


# ---- the children of changed tasks

ARE_CANCELLED = "SELECT id FROM {table} {by_key} WHERE id IN ({ids}) AND status = 7 AND awaited <> 0"


def _give_up_children(database: Database, ids: Sequence[int]) -> None:
    """Waiting → fatal for the children of cancelled tasks that do not run."""
    parents = [row[0] for row in database.rows(with_ids(ARE_CANCELLED, ids), ids)]
    give_up_children(database, parents, Status.CANCELLED)


class Verb(NamedTuple):
    """A write to chosen rows."""

    name: str
    condition: str
    """For the rows that it suits, with `{status}` for the status by which an index has them."""
    write: str
    """The statement, without its WHERE."""
    suits: str
    """The same as `condition`, in words."""
    then: Then | None = None
    undone: str = ""
    """For rows to which it was not done yet, with marks for the values of `write`: a look finds no row twice."""


# ---- retry: error, fatal, cancelled → new

# The row keeps its error until the task succeeds, but not the word `cancelled`, which asks for the task's end. A claim
# token goes: a lost worker that turns out to be alive must not complete a task that a person wants to run again. A task
# that waits for others becomes waiting: a look decides whether it still has to wait (dependencies.py).
RETRY = Verb(
    "retry",
    "{status} IN (3, 4, 7)",
    f"""
    UPDATE {{table}} {{by_key}} SET attempts = 0, due_at = CASE WHEN {{is_linked}} THEN {{now}} END, claim = NULL,
        finished_at = NULL, updated_at = {{now}},
        error_text = CASE WHEN {IS_GIVEN_UP} THEN NULL ELSE NULLIF(error_text, {{cancelled}}) END,
        status = CASE WHEN {{is_linked}} THEN 5 ELSE 0 END
    """,
    "in error, fatal or cancelled",
    revive_children,
)

# ---- retry as: the same under another name, for tasks whose name was misspelt

# Not for pipelines: the stages of a row name callables, too, and a row whose task differs from its stage is fatal.
RETRY_AS = RETRY._replace(
    name="retry --as",
    condition=f"{RETRY.condition} AND stages IS NULL",
    write=RETRY.write.replace("SET", "SET task = ?,", 1),
    suits=f"{RETRY.suits}, and no pipeline",
)
PIPELINES = RETRY._replace(condition=f"{RETRY.condition} AND stages IS NOT NULL")
"""The tasks that RETRY_AS leaves out."""

# ---- cancel: new, waiting, error, claimed, lost → cancelled; running → running, with the word for its heartbeat

RUNS = Adding.IS_RUNNING
# A lost task is fatal already, but its worker may be alive and complete it. After a cancel it cannot.
IS_LOST = "status = 4 AND claim IS NOT NULL AND error_text LIKE 'lost: %'"
# A task that a rerun changed while it ran keeps attempts of 0: so the cancel holds for its rerun, however this attempt
# ends. MySQL assigns from left to right: all other assignments ask for the old status, so the status comes last.
CANCEL = Verb(
    "cancel",
    f"{{status}} IN (0, 1, 3, 4, 5) AND (status <> 4 OR {IS_LOST}) AND NOT ({RUNS} AND {{is_cancelled}} = 1)",
    f"""
    UPDATE {{table}} {{by_key}} SET error_text = CASE WHEN status = 4 THEN error_text ELSE {{cancelled}} END,
        claim = CASE WHEN {RUNS} THEN claim END,
        due_at = CASE WHEN {RUNS} THEN due_at END,
        finished_at = CASE WHEN {RUNS} THEN finished_at ELSE {{now}} END,
        updated_at = {{now}},
        status = CASE WHEN {RUNS} THEN 1 ELSE 7 END
    """,
    "new, waiting, in error, in progress or lost",
    _give_up_children,
)

# ---- priority: for tasks that may run yet; for a task in progress, of its next attempt

# updated_at stays: of a new row it is the instant since which it is ready.
PRIORITY = Verb(
    "priority",
    "{status} IN (0, 1, 3, 5)",
    "UPDATE {table} {by_key} SET priority = ?, updated_at = updated_at",
    "new, waiting, in error or in progress",
    undone="priority <> ?",
)

# ---- end leases: of claims that hold, so that their tasks are taken back

END_LEASE = Verb(
    "reclaim",
    "{status} = 1",
    "UPDATE {table} {by_key} SET due_at = {now}, updated_at = updated_at",
    "in progress",
    undone="due_at > {now}",
)


class Preview(NamedTuple):
    """The rows to which a verb would be done."""

    rows: int
    """How many there are."""
    first: list[StoredTask]


class Reclaimed(NamedTuple):
    """The counts of a reclaim."""

    forced: int
    """Claims whose lease still held, and was ended."""
    woken: int
    """Waiting and failed tasks whose time had come → new."""
    unstarted: int
    """Claimed tasks that were not started → new."""
    lost: int
    """Started tasks → error or fatal, for a lost attempt."""
    orphaned: int
    """Waiting tasks whose parents somebody deleted; a look decides again whether they wait."""
    left: int
    """Tasks left unchanged, as others held them."""


class Operations:
    """An operator's verbs over one queue. They raise InvalidTask, DatabaseError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database

    # ---- verbs to chosen rows

    def retry(self, tasks: Chosen, as_task: str | Callable[..., Any] | None = None) -> int:
        """Error, fatal, cancelled → new, with attempts 0, perhaps renamed; how many."""
        return self._changed(RETRY, tasks) if as_task is None else self._changed(RETRY_AS, tasks, (name_of(as_task),))

    def cancel(self, tasks: Chosen) -> int:
        """New, waiting, error, claimed, lost → cancelled; running tasks are interrupted. How many."""
        return self._changed(CANCEL, tasks)

    def set_priority(self, tasks: Chosen, priority: int) -> int:
        """Give tasks that may run yet another priority; how many."""
        check_priority(priority)
        return self._changed(PRIORITY, tasks, (priority,))

    def _changed(self, verb: Verb, tasks: Chosen, values: Sequence[Any] = ()) -> int:
        """How many rows a verb changed. Raises Conflict if others held some rows."""
        written = self.change(verb, selection_of(tasks), values)
        if written.held:
            raise Conflict(
                f"{verb.name}: {written.changed} tasks of {self._store.table} were changed, and {len(written.held)} "
                f"left as they were, since other programs hold them, as {written.held[0]}: try again"
            )
        return written.changed

    def change(
        self, verb: Verb, selection: Selection, values: Sequence[Any] = (), on_written: OnWritten = lambda ids: None
    ) -> Written:
        """From → to, as the verb says, for all chosen rows that it suits."""
        writer = ManyRows(self._database, chosen_rows(verb, selection, values), on_written)
        written = writer.write(selection.ids, selection.limit)
        if written.changed and verb in (RETRY, RETRY_AS):
            self._decide_about_waiting()
        return written

    def _decide_about_waiting(self) -> None:
        dependencies = Dependencies(self._database)
        until = time.monotonic() + DECIDE_SECONDS
        while time.monotonic() < until and dependencies.decide(self._store.due.look().linked):
            pass

    GIVEN_UP_AMONG = f"SELECT id FROM {{table}} WHERE id IN ({{ids}}) AND {IS_GIVEN_UP}"

    def given_up_among(self, ids: Sequence[int]) -> int:
        """How many of these tasks are fatal because of a task for which they wait."""
        return len(self._database.fetch_ids(self.GIVEN_UP_AMONG, ids))

    def preview(self, verb: Verb, selection: Selection, most: int, values: Sequence[Any] = ()) -> Preview:
        """How many rows a verb would change, and the first `most` of them."""
        rows = ManyRows(self._database, chosen_rows(verb, selection, values))
        if selection.ids is None:
            count, first = rows.count(), rows.look(most)
        else:
            first = rows.look_among(selection.ids)
            count = len(first)
        limit = MAX_SIGNED if selection.limit is None else selection.limit
        return Preview(min(count, limit), self.show_all(first[: min(most, limit)]))

    SHOW_ALL = "SELECT {readable}, 0 FROM {table} WHERE id IN ({ids}) ORDER BY id"

    def show_all(self, ids: Sequence[int]) -> list[StoredTask]:
        """The tasks of these ids that stand in the queue, in order of id."""
        return [stored_task(row) for row in self._database.fetch_ids(self.SHOW_ALL, ids)]

    STILL_RUNNING = (
        f"SELECT COUNT(*) FROM {{table}} {{by_status}} WHERE {{group_status}} = 1 AND {RUNS} AND {{is_cancelled}} = 1"
    )

    def still_running(self) -> int:
        """How many cancelled tasks still run: their workers have not heard of it yet."""
        found: int = self._database.fetch_value(self.STILL_RUNNING)
        return found

    # ---- claim one: new, waiting, error, fatal, cancelled → in progress, whatever its group and its time

    # The status comes last, as above. A task that waits for others is not claimed.
    CLAIM_ONE = """
        UPDATE {table} {by_key} SET attempts = CASE WHEN status IN (4, 7) THEN 0 ELSE attempts END,
            error_text = NULLIF(error_text, {cancelled}), claim = ?, due_at = {after}, started_at = NULL,
            finished_at = NULL, updated_at = CASE WHEN status = 0 THEN updated_at ELSE {now} END, status = 1
        WHERE id = ? AND status IN (0, 3, 4, 5, 7)
            AND NOT EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id)
    """

    def claim_one(self, task_id: int) -> ClaimedTask:
        """New, waiting, error, fatal, cancelled → in progress for one task; an ended one gets attempts 0.

        Raises InvalidTask, which says why not, and Conflict if others hold its row.
        """
        store = self._store
        token = new_token()
        try:
            self._database.change(self.CLAIM_ONE, (token, store.lease_seconds, task_id))
        except Conflict as error:
            raise Conflict(f"task {task_id} is left, as other programs hold it: try again ({error})") from error
        for task in store.claims.read(token, 1):
            return task
        raise InvalidTask(_why_not_claimed(store, task_id))


def _why_not_claimed(store: Store, task_id: int) -> str:
    row = store.views.show(task_id)
    if row is None:
        return f"there is no task {task_id} in {store.table} or {store.table}_done; a completed one may be deleted"
    if row.status == Status.DONE:
        return f"task {task_id} is done: add it again to have it run again"
    if row.status == Status.IN_PROGRESS:
        return f"task {task_id} is in progress: a worker has it, or had it until its lease ended, at {row.due_at} (UTC)"
    if parents := links(store.database, [task_id])[task_id].waits_for:
        return f"task {task_id} waits for task {parents[0]}: run or retry that one; {CLIENT} show {task_id} shows more"
    return f"task {task_id} has the status {row.status}, and cannot be run; look again"


def chosen_rows(verb: Verb, selection: Selection, values: Sequence[Any] = ()) -> ChosenRows:
    """The write of a verb to chosen rows; `values` are the statement's own. Raises InvalidTask."""
    check_selection(selection)
    conditions: list[str] = [verb.condition]
    given: list[Any] = []

    def add(condition: str, *its_values: Any) -> None:
        conditions.append(condition)
        given.extend(its_values)

    if selection.groups is not None:
        add(f"group_id IN ({marks(len(selection.groups))})" if selection.groups else "1 = 0", *selection.groups)
    if selection.task is not None:
        add("task = ?", selection.task)
    if selection.error is not None:
        add("{error_position} = 1", selection.error)  # LIKE of SQLite takes a and A for the same
    if selection.error_line is not None:
        add("{error_bytes} = ? OR {error_position} = 1", selection.error_line, f"{selection.error_line}\n")
    if selection.status is not None:
        add("{status} = ?", selection.status)
    if selection.since is not None:
        try:
            instant, value = earliest(selection.since)
        except SettingError as error:
            raise InvalidTask(str(error)) from None
        add(f"COALESCE(finished_at, updated_at) >= {instant}", value)
    condition = " AND ".join(f"({condition})" for condition in conditions)
    return ChosenRows(condition, given, verb.write, values, verb.then, verb.undone)
