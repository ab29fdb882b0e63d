"""Stage: in progress, started → new for the next callable of the pipeline, in the write that ends the stage."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskserver.model.attempt import Finish, NextStage, Outcome
from taskserver.stores import Store
from tests.contract.verbs import PLAIN, claim_one, end, start
from tests.support.rows import Rows

STAGES = '["tasks.a", "tasks.b", "tasks.c"]'
FOLLOWING = NextStage("tasks.b", 5, -3, 7, '{"by":"a"}')


SINCE: dict[str, Callable[[Store, Rows], object]] = {
    "new": lambda store, rows: None,
    "started": lambda store, rows: start(store, claim_one(store)),
    "at the third": lambda store, rows: end_again(store),
    "cancelled": lambda store, rows: rows.set("status = 7, error_text = 'cancelled'"),
}
"""What became of the row when its first stage had ended."""


def end_again(store: Store) -> None:
    task = claim_one(store)
    assert start(store, task)
    assert end(store, Finish(task, next_stage=NextStage("tasks.c"))) == Outcome.AS_ASKED


@pytest.mark.parametrize("since", SINCE)
def test_a_stage_ends_once(store: Store, rows: Rows, since: str) -> None:
    store.producing.add(PLAIN._replace(task="tasks.a", stages=STAGES))
    task = claim_one(store)
    assert start(store, task)
    finish = Finish(task, next_stage=FOLLOWING)
    rows.set("claim = claim + 1")
    assert end(store, finish, is_repeated=True) == Outcome.LOST
    rows.set("claim = claim - 1")
    assert end(store, finish) == Outcome.AS_ASKED
    columns = ("task", "args", "group_id", "priority", "max_attempts", "status", "stage", "attempts", "claim")
    assert rows.one(*columns) == ("tasks.b", '{"by":"a"}', 5, -3, 7, 0, 1, 0, None)
    SINCE[since](store, rows)
    before = rows.all()
    assert end(store, finish, is_repeated=True) == Outcome.AS_ASKED
    assert end(store, finish) == Outcome.LOST
    assert rows.all() == before
