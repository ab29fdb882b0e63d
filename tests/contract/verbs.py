"""A store's verbs by short names, and what producers, persons and time do to rows, for the tests of the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.new_task import NewTask
from taskserver.model.task import ClaimedTask
from taskserver.stores import Store
from tests.support.rows import Row, Rows

PLAIN = NewTask("tasks.send", None, 0, 0)


def add(store: Store, group_id: int = 0, priority: int = 0, task: str = "tasks.send", args: str | None = None) -> int:
    return store.producing.add(NewTask(task, args, group_id, priority))


def add_many(store: Store, tasks: Iterable[NewTask]) -> list[int]:
    return store.producing.add_many(tasks)


def keyed(key: str | None = "k", args: str | None = None, **given: Any) -> NewTask:
    return PLAIN._replace(args=args, unique_key=key, **given)


def rerun(args: str | None = None, **given: Any) -> NewTask:
    return keyed(args=args)._replace(rerun=True, **given)


def claim(store: Store, limit: int = 100, *groups: int) -> list[ClaimedTask]:
    return store.claims.claim(limit, groups).tasks


def claim_one(store: Store) -> ClaimedTask:
    (task,) = claim(store)
    return task


def start(store: Store, task: ClaimedTask, max_attempts: int = 10) -> bool:
    return store.finishes.advance([], Start(task, max_attempts))[1]


def a_running_task(store: Store, max_attempts: int | None = None) -> ClaimedTask:
    """With a key, and started."""
    store.producing.add(rerun("[1]", max_attempts=max_attempts))
    task = claim_one(store)
    assert start(store, task)
    return task


def finish(store: Store, task: ClaimedTask, error_text: str | None = None) -> bool:
    """Whether that was done, and nothing else."""
    outcome = end(store, Finish(task, error_text))
    assert outcome in (Outcome.LOST, Outcome.AS_ASKED)
    return outcome == Outcome.AS_ASKED


def end(store: Store, finish: Finish, is_repeated: bool = False) -> Outcome:
    (outcome,), _ = store.finishes.advance([finish], None, is_repeated=is_repeated)
    return outcome


ENDINGS: dict[str, Callable[[ClaimedTask], Finish]] = {
    "well": Finish,
    "to be retried": lambda task: Finish(task, "E: x", 60.0),
    "fatal": lambda task: Finish(task, "E: x"),
    "uncounted": lambda task: Finish(task, "BadTask: x", None, True),
    "cancelled": lambda task: Finish(task, "cancelled"),
}
"""How the run of a task may end."""


def wake(store: Store) -> int:
    return store.due.wake(store.due.look().to_wake)


def ids(tasks: list[ClaimedTask]) -> list[int]:
    return [task.id for task in tasks]


def end_leases(rows: Rows) -> None:
    rows.set(f"due_at = {rows.after(-10)}, updated_at = updated_at WHERE status = 1")


def take_away(rows: Rows, *task_ids: int) -> None:
    """Tasks from their worker: another one has claimed them since."""
    rows.set(f"claim = claim + 1 WHERE id IN ({', '.join(map(str, task_ids))})")


STATES: dict[str, str] = {
    "new": "",
    "delayed": "status = 5, due_at = {future}",
    "waiting for other tasks": "status = 5",
    "claimed": "status = 1, claim = 7, due_at = {future}",
    "started": "status = 1, claim = 7, due_at = {future}, started_at = created_at, attempts = 2, max_attempts = 3",
    "to be retried": "status = 3, due_at = {future}, started_at = created_at, attempts = 2, error_text = 'E: x'",
    "fatal": "status = 4, started_at = created_at, finished_at = created_at, attempts = 3, error_text = 'E: x'",
    "cancelled": "status = 7, finished_at = created_at, error_text = 'cancelled'",
    "lost": "status = 4, claim = 7, attempts = 1, max_attempts = 1, started_at = created_at, error_text = 'lost: x'",
    "done": "status = 2, started_at = created_at, finished_at = created_at, attempts = 1",
}
"""What a row with a key may be in the midst of."""


def put_into(rows: Rows, state: str) -> Row:
    """The only row, made to be in this state, as it was added long ago."""
    as_added = (
        "task = 'tasks.send', args = '[1]', group_id = 0, priority = 0, status = 0, attempts = 0, max_attempts = NULL, "
        "due_at = NULL, claim = NULL, error_text = NULL, started_at = NULL, finished_at = NULL"
    )
    rows.set(f"{as_added}, created_at = {rows.after(-500)}")
    changes = STATES[state].format(future=rows.after(3600))
    rows.set(f"updated_at = {rows.after(-500)}{', ' if changes else ''}{changes}")
    (row,) = rows.all()
    return row
