"""An operator's verbs: retry, cancel, delete, priority, reclaim by force, run one task.

Each of the first five is one write, which many_rows.py does to the chosen rows in portions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ...errors import Conflict, InvalidTask
from ...messages.programs import CLIENT
from ...messages.text import in_sentence
from ...model.checks import check_field
from ...model.pipeline import named
from ...model.selection import Selection, selection_of
from ...model.task import ClaimedTask, Status
from ..database import Database
from ..records import TaskRow, task_row
from ..words import with_ids
from .adding import Adding
from .claims import new_token
from .dependencies import IS_GIVEN_UP, Dependencies, give_up_children, links, revive_children
from .many_rows import ManyRows, OnWritten, Verb, Written, chosen_by
from .store import Store

Chosen = int | Iterable[int] | Selection
"""An id, some ids, or a Selection."""
DECIDE_SECONDS = 10.0
"""How long we decide about waiting tasks after a retry; a worker decides about the rest."""
RUNNABLE = (Status.NEW, Status.IN_PROGRESS, Status.ERROR, Status.WAITING)

# ---- retry: error, fatal, cancelled → new

# The row keeps its error until the task succeeds, but not the word `cancelled`, which would cancel it again. It loses
# its claim token: a lost worker that is alive must not complete a task that a person wants to run again. A task that
# waits for others becomes waiting: a look decides whether it must still wait (dependencies.py).
RETRIED = f"""
    attempts = 0, due_at = CASE WHEN {{is_linked}} THEN {{now}} END, claim = NULL,
    finished_at = NULL, updated_at = {{now}},
    error_text = CASE WHEN {IS_GIVEN_UP} THEN NULL ELSE NULLIF(error_text, {{cancelled}}) END,
    status = CASE WHEN {{is_linked}} THEN 5 ELSE 0 END
"""
RETRY = Verb(
    name="retry",
    done="retried",
    applies_to="in error, fatal or cancelled",
    statuses=(Status.ERROR, Status.FATAL, Status.CANCELLED),
    write=f"UPDATE {{table}} {{by_key}} SET {RETRIED}",
    then=revive_children,
    needs_decision=True,
)
RETRY_PIPELINES = RETRY._replace(only="stages IS NOT NULL")
"""For the tasks that `retry_as` skips."""


def retry_as(task: str | Callable[..., Any]) -> Verb:
    """RETRY under another name, for a misspelt task. Raises InvalidTask.

    Not for pipelines: their stages name callables too, and a row whose task differs from its stage is fatal.
    """
    name = named(task)[0]
    return RETRY._replace(
        name="retry --as",
        done=f"retried as {name}",
        applies_to=f"{RETRY.applies_to}, and no pipeline",
        only="stages IS NULL",
        write=f"UPDATE {{table}} {{by_key}} SET task = ?, {RETRIED}",
        values=(name,),
    )


# ---- cancel: new, waiting, error, claimed, lost → cancelled; running → running, until its heartbeat interrupts it

RUNS = Adding.IS_RUNNING
# A lost task is already fatal, but its worker may be alive and complete it. After a cancel it cannot.
IS_LOST = "status = 4 AND claim IS NOT NULL AND error_text LIKE 'lost: %'"
ARE_CANCELLED = "SELECT id FROM {table} {by_key} WHERE id IN ({ids}) AND status = 7 AND awaited <> 0"


def _give_up_children(database: Database, ids: Sequence[int]) -> None:
    """Waiting → fatal for the children of cancelled tasks that are not running."""
    parents = [row[0] for row in database.rows(with_ids(ARE_CANCELLED, ids), ids)]
    give_up_children(database, parents, Status.CANCELLED)


# A running task with a rerun keeps its 0 attempts, so the cancel also applies to the rerun, however this attempt ends.
# MySQL assigns from left to right: all other assignments read the old status, so the status comes last.
CANCEL = Verb(
    name="cancel",
    done="cancelled",
    applies_to="new, waiting, in error, in progress or lost",
    statuses=(*RUNNABLE, Status.FATAL),
    only=f"(status <> 4 OR {IS_LOST}) AND NOT ({RUNS} AND {{is_cancelled}} = 1)",
    write=f"""
    UPDATE {{table}} {{by_key}} SET error_text = CASE WHEN status = 4 THEN error_text ELSE {{cancelled}} END,
        claim = CASE WHEN {RUNS} THEN claim END,
        unique_key = CASE WHEN {RUNS} THEN unique_key END,
        due_at = CASE WHEN {RUNS} THEN due_at END,
        finished_at = CASE WHEN {RUNS} THEN finished_at ELSE {{now}} END,
        updated_at = {{now}},
        status = CASE WHEN {RUNS} THEN 1 ELSE 7 END
    """,
    then=_give_up_children,
)

# ---- delete: fatal, cancelled → gone


def _delete_edges(database: Database, ids: Sequence[int]) -> None:
    database.write_ids("DELETE FROM {dependencies} WHERE child_id IN ({ids})", ids)


DELETE = Verb(
    name="delete",
    done="deleted",
    applies_to="fatal or cancelled",
    statuses=(Status.FATAL, Status.CANCELLED),
    write="{delete_task}",
    then=_delete_edges,
)

# ---- priority: for tasks that may still run; for a task in progress, for its next attempt

PRIORITY = Verb(
    name="priority",
    done="moved to another priority",
    applies_to="new, waiting, in error or in progress",
    statuses=RUNNABLE,
    # updated_at stays: a new row has been ready since then.
    write="UPDATE {table} {by_key} SET priority = ?, updated_at = updated_at",
    undone="priority <> ?",
)


def to_priority(number: int) -> Verb:
    """PRIORITY with its value. Raises InvalidTask."""
    check_field("priority", number)
    return PRIORITY._replace(done=f"moved to priority {number}", values=(number,))


# ---- end leases: of held claims, so that a look reclaims their tasks

END_LEASE = Verb(
    name="reclaim",
    done="taken from workers",
    applies_to="in progress",
    statuses=(Status.IN_PROGRESS,),
    write="UPDATE {table} {by_key} SET due_at = {now}, updated_at = updated_at",
    undone="due_at > {now}",
)


class Preview(NamedTuple):
    """The rows that a verb would change."""

    rows: int
    """How many."""
    first: list[TaskRow]


class Reclaimed(NamedTuple):
    """The counts of a reclaim."""

    forced: int
    """Leases that were ended early."""
    woken: int
    """Due waiting and failed tasks → new."""
    unstarted: int
    """Claimed, unstarted tasks → new."""
    lost: int
    """Started tasks → error or fatal."""
    orphaned: int
    """Orphans; a look decides again whether they wait."""
    left: int
    """Held tasks, which were not changed."""


class Operations:
    """An operator's verbs on one queue. Raises InvalidTask, DatabaseError."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._database = store.database

    def retry(self, tasks: Chosen, as_task: str | Callable[..., Any] | None = None) -> int:
        """Error, fatal, cancelled → new, with 0 attempts and perhaps a new name; how many."""
        return self.do(RETRY if as_task is None else retry_as(as_task), tasks)

    def cancel(self, tasks: Chosen) -> int:
        """New, waiting, error, claimed, lost → cancelled; running tasks are interrupted. How many."""
        return self.do(CANCEL, tasks)

    def set_priority(self, tasks: Chosen, priority: int) -> int:
        """Set the priority of tasks that may still run; how many."""
        return self.do(to_priority(priority), tasks)

    def do(self, verb: Verb, tasks: Chosen) -> int:
        """From → to, as the verb says; how many rows. Raises Conflict if some are held."""
        changed, held = self.change(verb, selection_of(tasks))
        if held:
            raise Conflict(
                f"{verb.name}: {changed} tasks of {self._store.table} were changed, and {len(held)} left as they were, "
                f"since other programs hold them, as {held[0]}: try again"
            )
        return changed

    def change(self, verb: Verb, selection: Selection, on_written: OnWritten = lambda ids: None) -> Written:
        """From → to, as the verb says, for all chosen rows to which it applies."""
        rows = ManyRows(self._database, verb, chosen_by(selection), on_written)
        written = rows.write(selection.ids, selection.limit)
        if written.changed and verb.needs_decision:
            dependencies = Dependencies(self._database)
            until = time.monotonic() + DECIDE_SECONDS
            while time.monotonic() < until and dependencies.decide(self._store.due.look().linked):
                pass
        return written

    SHOW = "SELECT {readable}, 0 FROM {table} WHERE id IN ({ids}) ORDER BY id"

    def preview(self, verb: Verb, selection: Selection, most: int) -> Preview:
        """How many rows a verb would change, and the first `most` of them."""
        rows = ManyRows(self._database, verb, chosen_by(selection))
        if selection.ids is None:
            count, first = rows.count(), rows.look(most)
        else:
            first = rows.look_among(selection.ids)
            count = len(first)
        limit = count if selection.limit is None else min(count, selection.limit)
        shown = self._database.fetch_ids(self.SHOW, first[: min(most, limit)])
        return Preview(limit, [task_row(row) for row in shown])

    # ---- the state of changed tasks

    GIVEN_UP_AMONG = f"SELECT id FROM {{table}} WHERE id IN ({{ids}}) AND {IS_GIVEN_UP}"
    STILL_RUNNING = (
        "SELECT {readable}, 0 FROM {table} {by_status} "
        f"WHERE {{group_status}} = 1 AND {RUNS} AND {{is_cancelled}} = 1"
    )

    def given_up_among(self, ids: Sequence[int]) -> int:
        """How many of these tasks are fatal because of a parent."""
        return len(self._database.fetch_ids(self.GIVEN_UP_AMONG, ids))

    def still_running(self) -> list[TaskRow]:
        """Cancelled tasks that still run: their workers have not noticed, or are gone."""
        return [task_row(row) for row in self._database.fetch(self.STILL_RUNNING)]

    # ---- claim one: new, waiting, error, fatal, cancelled → in progress, regardless of group and due_at

    # MySQL assigns from left to right: the status comes last. A task that waits for others is not claimed.
    CLAIM_ONE = """
        UPDATE {table} {by_key} SET attempts = CASE WHEN status IN (4, 7) THEN 0 ELSE attempts END,
            error_text = NULLIF(error_text, {cancelled}), claim = ?, due_at = {after}, started_at = NULL,
            finished_at = NULL, updated_at = CASE WHEN status = 0 THEN updated_at ELSE {now} END, status = 1
        WHERE id = ? AND status IN (0, 3, 4, 5, 7)
            AND NOT EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id)
    """

    def claim_one(self, task_id: int) -> ClaimedTask:
        """New, waiting, error, fatal, cancelled → in progress for one task; an ended one gets 0 attempts.

        Raises InvalidTask with the reason, and Conflict if the row is held.
        """
        token = new_token()
        try:
            self._database.change(self.CLAIM_ONE, (token, self._store.lease_seconds, task_id))
        except Conflict as error:
            raise Conflict(f"task {task_id} is left, as other programs hold it: try again ({error})") from error
        for task in self._store.claims.read(token, 1):
            return task
        raise InvalidTask(self._why_not_claimed(task_id))

    def _why_not_claimed(self, task_id: int) -> str:
        table, row, the_task = self._store.table, self._store.views.show(task_id), f"task {task_id}"
        if row is None:
            return f"there is no {the_task} in {table} or {table}_done; a completed one may be deleted"
        if row.status == Status.DONE:
            return f"{the_task} is done: add it again to have it run again"
        if row.status == Status.IN_PROGRESS:
            ends = in_sentence(row.due_at)
            return f"{the_task} is in progress: a worker has it, or had it until its lease ended, at {ends}"
        if parents := links(self._database, [task_id])[task_id].waits_for:
            return f"{the_task} waits for task {parents[0]}: run or retry that one; {CLIENT} show {task_id} shows more"
        return f"{the_task} has the status {row.status}, and cannot be run; look again"
