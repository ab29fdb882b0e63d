"""Rerun: any state → new as its producer now says, or waiting; a running row runs once more after its end.

test_store_machine.py shows what becomes of a task that runs meanwhile, however it ends.
"""

from __future__ import annotations

import pytest

from taskserver.model.new_task import NewTask
from taskserver.stores import Store
from tests.contract.verbs import STATES, add_many, claim_one, finish, put_into, rerun, start
from tests.support.rows import Row, Rows


def without_clocks(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("created_at", "updated_at")}


@pytest.mark.parametrize("delay_seconds", [None, 60.0], ids=["at once", "delayed"])
def test_a_rerun_makes_a_row_new_with_all_that_it_says_unless_the_row_runs_or_waits(
    store: Store, rows: Rows, delay_seconds: float | None
) -> None:
    store.producing.add(rerun("[1]"))
    other = NewTask("tasks.other", "[2]", 5, -3, 6, delay_seconds, None, "k", True, None)
    said = {"task": "tasks.other", "args": "[2]", "group_id": 5, "priority": -3, "max_attempts": 6, "attempts": 0}
    said |= {"error_text": None, "finished_at": None}
    for state in STATES:
        before = put_into(rows, state)
        assert store.producing.add(other) == before["id"]
        (row,) = rows.all()
        if state == "started":
            # Its worker goes on: attempts 0 are the mark that it is to run once more.
            becomes = {}
        elif state == "waiting for other tasks":
            becomes = {"status": 5, "claim": None, "due_at": None}
        elif delay_seconds:
            becomes = {"status": 5, "claim": None, "due_at": row["due_at"]}
            assert rows.seconds_from_now(row["due_at"]) == pytest.approx(delay_seconds, abs=30)
        else:
            becomes = {"status": 0, "claim": None, "due_at": None}
        assert without_clocks(row) == without_clocks(before) | said | becomes, state
        assert rows.seconds_from_now(row["updated_at"]) == pytest.approx(0, abs=30)


@pytest.mark.parametrize(
    ("stands", "comes", "is_newer"),
    [(5, 4, False), (5, 5, False), (5, 6, True), (5, None, True), (None, 0, True), (2**63 - 1, 1, False)],
)
def test_a_rerun_of_no_newer_version_changes_nothing(
    store: Store, rows: Rows, stands: int | None, comes: int | None, is_newer: bool
) -> None:
    task_id = store.producing.add(rerun("[1]"))
    for state in STATES:
        rows.set(f"version = {'NULL' if stands is None else stands}")
        before = put_into(rows, state)
        assert add_many(store, [rerun("[2]", version=comes)]) == [task_id]
        (row,) = rows.all()
        assert (row["args"] == "[2]") == is_newer, state
        assert row["version"] == max(stands or 0, comes or 0), state
        assert is_newer or row == before, state


def test_a_claimed_task_that_is_run_again_is_taken_from_its_worker(store: Store, rows: Rows) -> None:
    store.producing.add(rerun("[1]"))
    task = claim_one(store)
    store.producing.add(rerun("[2]"))
    before = rows.all()
    assert not start(store, task)
    assert store.claims.release([task]) == 0
    assert not store.finishes.renew(task)
    assert not finish(store, task, "BadTask: x")
    assert rows.all() == before
    assert claim_one(store).args == "[2]"
