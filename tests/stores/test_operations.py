"""An operator's verbs on every store: which states each one changes, and to what."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskserver.errors import InvalidTask
from taskserver.model.attempt import Finish, Outcome
from taskserver.model.selection import Selection
from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.queue.operations import CANCEL, END_LEASE, Operations
from tests.stores.verbs import PLAIN, STATES, add, add_many, claim_one, end, give_up_as_lost, put_into, start
from tests.support.rows import Rows

Verb = Callable[[Operations, int], int]
OF_ALL_UNENDED = ("new", "delayed", "waiting for other tasks", "claimed", "to be retried")
VERBS: dict[str, tuple[Verb, dict[str, Status]]] = {
    "retry": (
        lambda operations, task_id: operations.retry(task_id),
        dict.fromkeys(("to be retried", "fatal", "cancelled", "lost"), Status.NEW),
    ),
    "cancel": (
        lambda operations, task_id: operations.cancel(task_id),
        dict.fromkeys((*OF_ALL_UNENDED, "lost"), Status.CANCELLED) | {"started": Status.IN_PROGRESS},
    ),
    "set_priority": (
        lambda operations, task_id: operations.set_priority(task_id, -5),
        {
            "new": Status.NEW,
            "delayed": Status.WAITING,
            "waiting for other tasks": Status.WAITING,
            "claimed": Status.IN_PROGRESS,
            "started": Status.IN_PROGRESS,
            "to be retried": Status.ERROR,
        },
    ),
    "reclaim": (
        lambda operations, task_id: operations.change(END_LEASE, Selection(ids=[task_id])).changed,
        dict.fromkeys(("claimed", "started"), Status.IN_PROGRESS),
    ),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_changes_the_states_that_it_suits_and_no_other(store: Store, rows: Rows, name: str) -> None:
    """retry: error, fatal, cancelled → new. cancel: all but running and ended → cancelled."""
    verb, becomes = VERBS[name]
    task_id = add(store)
    for state in STATES:
        before = put_into(rows, state)
        changed = verb(Operations(store), task_id)
        assert changed == (state in becomes), state
        if changed:
            assert rows.one("status") == becomes[state], state
        else:
            assert rows.all() == [before], state


def test_one_task_is_claimed_in_each_state_but_done_and_in_progress(store: Store, rows: Rows) -> None:
    """New, waiting, error, fatal, cancelled → in progress; attempts begin at 0 again for those that had ended."""
    operations, task_id = Operations(store), add(store)
    attempts = {"to be retried": 2}
    for state in STATES:
        before = put_into(rows, state)
        if state in ("claimed", "started", "done"):
            with pytest.raises(InvalidTask, match="is done" if state == "done" else "is in progress"):
                operations.claim_one(task_id)
            assert rows.all() == [before], state
        else:
            task = operations.claim_one(task_id)
            columns = ("status", "claim", "attempts", "started_at")
            assert rows.one(*columns) == (1, task.claim, attempts.get(state, 0), None), state


def test_a_lost_worker_completes_no_task_that_was_retried_or_cancelled(store: Store, rows: Rows) -> None:
    """Its claim token is gone from the row."""
    for verb in (Operations.retry, Operations.cancel):
        rows.execute("DELETE FROM jobs_queue")
        store.producing.add(PLAIN._replace(max_attempts=1))
        task = claim_one(store)
        assert start(store, task)
        give_up_as_lost(store, rows)
        assert rows.one("claim") == task.claim
        assert verb(Operations(store), task.id) == 1
        assert rows.one("claim") is None


def test_a_preview_counts_the_rows_and_changes_none(store: Store, rows: Rows) -> None:
    added = add_many(store, [PLAIN] * 5)
    rows.set(f"status = 4 WHERE id = {added[0]}")
    before, operations = rows.all(), Operations(store)
    for selection, count in ((Selection(), 4), (Selection(ids=added[:2]), 1), (Selection(limit=3), 3)):
        preview = operations.preview(CANCEL, selection, 2)
        assert preview.rows == count
        assert [task.id for task in preview.first] == added[1:3][:count]
    assert rows.all() == before


def test_cancelled_tasks_that_run_and_children_that_were_given_up_are_counted(store: Store) -> None:
    operations = Operations(store)
    parent = add(store)
    (child,) = add_many(store, [PLAIN._replace(delay_seconds=0.0, depends_on=str(parent))])
    task = claim_one(store)
    assert start(store, task)
    assert operations.cancel(parent) == 1
    assert (operations.still_running(), operations.given_up_among([parent, child])) == (1, 0)
    assert end(store, Finish(task, "E: x")) == Outcome.CANCELLED
    assert (operations.still_running(), operations.given_up_among([parent, child])) == (0, 1)
