"""A worker's writes and looks touch a row only while it carries the worker's token and is as the verb wants it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from taskserver.model.attempt import Finish, NextStage, postponed
from taskserver.model.task import ClaimedTask
from taskserver.stores import Store
from taskserver.stores.queue.batches import Batches
from tests.contract.verbs import PLAIN, add_many, claim, end, start
from tests.support.rows import Rows

STARTED = "status = 1, started_at = created_at"
STATES = {
    "claimed": "status = 1, started_at = NULL",
    "started": f"{STARTED}, attempts = 1",
    "cancelled": f"{STARTED}, attempts = 1, error_text = 'cancelled'",
    "changed": f"{STARTED}, attempts = 0",  # by a rerun
    "lost": "started_at = created_at, status = 4, attempts = 1, max_attempts = 1, error_text = 'lost: x'",
    "new": "started_at = created_at, status = 0, attempts = 1",  # as a person's UPDATE may leave it
    "new, unstarted": "status = 0",
}
CLAIMED, STILL_RUNNING = {"claimed"}, {"started", "cancelled", "changed"}
ALL_IN_PROGRESS = CLAIMED | STILL_RUNNING

Verb = Callable[[Store, ClaimedTask], object]
WRITES: dict[str, tuple[Verb, set[str]]] = {
    "start": (start, CLAIMED),
    "start of several": (lambda store, task: Batches(store).start([task], 10), CLAIMED),
    "start again": (lambda store, task: Batches(store).start_again(task), {"started"}),
    "release": (lambda store, task: store.claims.release([task]), CLAIMED),
    "unstart": (lambda store, task: Batches(store).unstart([task]), {"started", "changed"}),
    "postpone": (lambda store, task: end(store, postponed(task, "full", 60)), ALL_IN_PROGRESS),
    "renew": (lambda store, task: store.finishes.renew(task), ALL_IN_PROGRESS),
    "renew several": (lambda store, task: Batches(store).renew([task]), ALL_IN_PROGRESS),
    "limit attempts": (lambda store, task: store.finishes.limit_attempts(task, 3), ALL_IN_PROGRESS),
    "progress": (lambda store, task: store.finishes.write_progress([task], "[1]", 1), ALL_IN_PROGRESS),
    "done": (lambda store, task: end(store, Finish(task)), ALL_IN_PROGRESS | {"lost"}),  # a lost one late
    "several done": (lambda store, task: Batches(store).complete([task]), {"claimed", "started", "cancelled"}),
    "error": (lambda store, task: end(store, Finish(task, "E: x", 60)), ALL_IN_PROGRESS),
    "fatal": (lambda store, task: end(store, Finish(task, "E: x")), ALL_IN_PROGRESS),
    "bad": (lambda store, task: end(store, Finish(task, "BadTask: x", is_uncounted=True)), ALL_IN_PROGRESS),
    "next stage": (
        lambda store, task: end(store, Finish(task, next_stage=NextStage("tasks.b"))),
        ALL_IN_PROGRESS | {"lost"},
    ),
}
"""Each verb, and the states in which it writes to a row that carries the worker's token."""
LOOKS: dict[str, tuple[Verb, set[str]]] = {
    "started": (lambda store, task: Batches(store).started([task]), STILL_RUNNING),
    "unstarted": (lambda store, task: Batches(store).unstarted([task]), CLAIMED),
    "has a rerun": (
        lambda store, task: store.finishes.has_rerun(task),
        {"claimed", "changed"},
    ),  # asked of started ones
    "texts": (lambda store, task: store.claims.fetch_texts(task).args, ALL_IN_PROGRESS),
    "claimed still": (lambda store, task: store.finishes.still_claimed([task]), {*STATES}),
}


@pytest.fixture
def tasks(store: Store, rows: Rows) -> dict[tuple[str, bool], ClaimedTask]:
    """A task of one claim for each state, with the worker's token, and with that of another."""
    places = [(state, is_ours) for state in STATES for is_ours in (True, False)]
    add_many(store, [PLAIN._replace(args="[1]")] * len(places))
    claimed = dict(zip(places, claim(store), strict=True))
    for (state, is_ours), task in claimed.items():
        token = task.claim if is_ours else task.claim + 1
        rows.set(f"{STATES[state]}, claim = {token} WHERE id = {task.id}")
    return claimed


@pytest.mark.parametrize("name", WRITES)
def test_a_write_changes_only_rows_with_its_token_in_the_states_that_it_asks_for(
    store: Store, rows: Rows, tasks: dict[tuple[str, bool], ClaimedTask], name: str
) -> None:
    verb, wanted = WRITES[name]
    before = {row["id"]: row for row in rows.all()}
    for task in tasks.values():
        verb(store, task)
    after = {row["id"]: row for row in rows.all()}
    changed = {place for place, task in tasks.items() if after.get(task.id) != before[task.id]}
    assert changed == {(state, True) for state in wanted}


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_finds_only_rows_with_its_token_in_the_states_that_it_asks_for(
    store: Store, tasks: dict[tuple[str, bool], ClaimedTask], name: str
) -> None:
    verb, wanted = LOOKS[name]
    assert {place for place, task in tasks.items() if verb(store, task)} == {(state, True) for state in wanted}
