"""Depend: waiting → new or fatal, as the tasks for which it waits have ended."""

from __future__ import annotations

import pytest

from taskserver.model.attempt import Finish, Outcome
from taskserver.stores import Store
from taskserver.stores.queue.counts import Counts
from taskserver.stores.queue.dependencies import Dependencies
from taskserver.stores.queue.operations import Operations
from tests.contract.verbs import PLAIN, a_running_task, add, add_many, end
from tests.support.rows import Rows


def a_pair(store: Store) -> tuple[int, int]:
    """A parent, and a child whose parents nobody has looked at yet."""
    parent = add(store)
    return parent, add_many(store, [PLAIN._replace(delay_seconds=0.0, depends_on=str(parent))])[0]


@pytest.mark.parametrize(
    ("parent", "status"), [(0, 5), (1, 5), (2, 0), (3, 5), (4, 4), (5, 5), (7, 4), (None, 0)], ids=str
)
def test_a_child_becomes_what_its_parent_s_status_says(
    store: Store, rows: Rows, parent: int | None, status: int
) -> None:
    """Waiting → new if its parent is done or gone; → fatal if that is fatal or cancelled; else it waits on, undated."""
    dependencies = Dependencies(store.database)
    parent_id, child = a_pair(store)
    rows.set(f"due_at = {rows.after(-10)} WHERE id = {child}")
    if parent is None:
        rows.execute(f"DELETE FROM jobs_queue WHERE id = {parent_id}")
    else:
        rows.set(f"status = {parent} WHERE id = {parent_id}")
    assert store.due.look().linked == [child]
    assert dependencies.decide([child]) == 1
    row = rows.row(child)
    assert (row["status"], row["due_at"]) == (status, None)
    assert (row["error_text"] is not None) == (status == 4)
    assert dependencies.decide([child]) == 0  # it is decided


def test_a_child_that_is_no_waiting_due_one_any_more_is_left(store: Store, rows: Rows) -> None:
    """The fence of a decision: waiting and due."""
    dependencies = Dependencies(store.database)
    parent, child = a_pair(store)
    rows.set(f"status = 2 WHERE id = {parent}")
    for other in (f"status = 5, due_at = {rows.after(60)}", "status = 7, due_at = NULL", "status = 1, claim = 7"):
        rows.set(f"{other} WHERE id = {child}")
        before = rows.row(child)
        assert dependencies.decide([child]) == 0
        assert rows.row(child) == before


def test_a_child_whose_parents_a_person_deleted_is_found(store: Store, rows: Rows) -> None:
    """Waiting, undated → waiting and due, and the next look decides."""
    dependencies = Dependencies(store.database)
    parent, child = a_pair(store)
    rows.set(f"due_at = NULL WHERE id = {child}")
    assert (Counts(store.database).orphaned(), dependencies.find_orphans()) == (0, 0)
    rows.execute(f"DELETE FROM jobs_queue WHERE id = {parent}")
    assert (Counts(store.database).orphaned(), dependencies.find_orphans()) == (1, 1)
    assert store.due.look().linked == [child]
    assert dependencies.decide([child]) == 1
    assert rows.row(child)["status"] == 0


def test_a_cancelled_parent_that_succeeds_before_it_hears_of_that_is_done(store: Store, rows: Rows) -> None:
    parent = a_running_task(store)
    (child,) = add_many(store, [PLAIN._replace(delay_seconds=0.0, depends_on=str(parent.id))])
    rows.set(f"due_at = {rows.after(-10)} WHERE id = {child}")
    assert Dependencies(store.database).decide([child]) == Operations(store).cancel([parent.id]) == 1
    assert end(store, Finish(parent)) is Outcome.AS_ASKED
    assert rows.row(child)["status"] == 0
