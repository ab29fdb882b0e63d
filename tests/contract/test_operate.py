"""Retry, cancel, priority, reclaim, delete, claim one: what each does to which rows, and beside whom."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import ANY

import pytest

from taskserver import InvalidTask, TaskServer
from taskserver.model.selection import Selection
from taskserver.stores import Store
from taskserver.stores.queue import many_rows
from taskserver.stores.queue.operations import DELETE, END_LEASE, RETRY, Operations, to_priority
from tests.contract.verbs import STATES, add, put_into
from tests.support.kinds_of_rows import KINDS, put, put_all_kinds
from tests.support.queues import LONG_AGO, Queue
from tests.support.rows import Rows, holding

SEEN = "status, attempts, max_attempts, due_at, claim, error_text, started_at, finished_at, priority"


def seen(queue: Queue) -> dict[int, dict[str, Any]]:
    columns = SEEN.split(", ")
    return {row[0]: dict(zip(columns, row[1:], strict=True)) for row in queue.rows(f"id, {SEEN}")}


# ---- what each verb does to each kind of row


MAY_RUN = ("new", "waiting", "waiting for others", "error", "claimed", *(kind for kind in KINDS if "running" in kind))
NEW = {"status": 0, "attempts": 0}
ENDED = {"status": 7, "error_text": "cancelled", "finished_at": ANY}
CHANGES: dict[str, tuple[Callable[[TaskServer], int], dict[str, dict[str, Any]]]] = {
    "retry": (
        lambda server: server.retry(Selection()),
        {
            "error": NEW | {"due_at": None},
            "fatal": NEW | {"finished_at": None},
            "lost": NEW | {"claim": None},
            "cancelled": NEW | {"error_text": None, "finished_at": None},
        },
    ),
    "cancel": (
        lambda server: server.cancel(Selection()),
        {
            "new": ENDED,
            "waiting": ENDED | {"due_at": None},
            "waiting for others": ENDED,
            "error": ENDED | {"due_at": None},
            "claimed": ENDED | {"due_at": None, "claim": None},
            "lost": {"status": 7, "claim": None, "finished_at": ANY},  # what a person must know of it stays
            "running": {"error_text": "cancelled"},
            "running, to run again": {"error_text": "cancelled"},
        },
    ),
    "priority": (
        lambda server: Operations(server.store).set_priority(Selection(), -7),
        {kind: {"priority": -7} for kind in MAY_RUN},
    ),
    "reclaim": (
        lambda server: Operations(server.store).change(END_LEASE, Selection()).changed,
        {kind: {"due_at": ANY} for kind in MAY_RUN if "running" in kind or kind == "claimed"},
    ),
    "delete": (
        lambda server: Operations(server.store).change(DELETE, Selection()).changed,
        {key: {"id": None} for key in ("fatal", "lost", "cancelled")},
    ),
}
"""What each verb writes to the rows of each kind; it leaves the others. No id: they are gone."""


@pytest.mark.parametrize("verb", CHANGES)
def test_a_verb_changes_the_rows_that_it_suits_and_leaves_all_others(queue: Queue, verb: str) -> None:
    act, expected = CHANGES[verb]
    ids = put_all_kinds(queue)
    before = seen(queue)
    assert act(queue.server) == len(expected)
    after, updated = seen(queue), dict(queue.rows("id, updated_at"))
    found = {
        kind: {
            name: value for name, value in after.get(one, {"id": None}).items() if value != before[one].get(name, one)
        }
        for kind, one in ids.items()
    }
    assert {kind: changed for kind, changed in found.items() if changed} == expected
    # Of a new task, updated_at is the instant since which it is ready: only what changes its state moves it.
    moved = {kind for kind, one in ids.items() if one in updated and str(updated[one])[:4] != LONG_AGO[:4]}
    assert moved == (set(expected) if verb in ("retry", "cancel") else set())
    running = sum("running" in kind for kind in KINDS) if verb == "cancel" else 1
    assert len(Operations(queue.server.store).still_running()) == running  # cancelled, and not over yet


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


def test_a_deleted_task_leaves_no_edge_and_its_children_can_be_retried(queue: Queue) -> None:
    parent = queue.server.add_task("tasks.note", unique_key="a")
    child, other = (queue.server.add_task("tasks.note", depends_on=[parent]) for _ in range(2))
    server, operations = queue.server, Operations(queue.server.store)
    server.cancel(parent)
    assert queue.rows("id, status") == [(parent, 7), (child, 4), (other, 4)]
    assert operations.given_up_among([parent, child]) == 1
    assert operations.do(DELETE, [other, parent]) == 2
    assert queue.sql("SELECT child_id FROM jobs_queue_dependencies") == [(child,)]
    assert operations.retry(child) == 1
    assert queue.rows("id, status") == [(child, 0)]


# ---- which rows are chosen

CHOICES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, ["a", "b", "c", "d", "e"]),
    ({"groups": [3, 5]}, ["a", "b", "c"]),
    ({"task": "tasks.note"}, ["a", "c", "e"]),
    ({"task": "tasks.Note"}, ["d"]),
    ({"error": "E: 100%"}, ["a", "c"]),
    ({"error": "E: 1__%"}, []),
    ({"error": "100%"}, []),
    ({"error_line": "E: 100%"}, ["a", "c"]),
    ({"status": 3}, []),
    ({"groups": [3], "error": "e:", "limit": 1}, ["b"]),
    ({"ids": ["a", "c", "a", "b"], "groups": [5]}, ["c"]),
    ({"ids": []}, []),
    ({"groups": []}, []),
    ({"since": 0}, []),
    ({"since": timedelta(hours=1), "limit": 2}, ["a", "b"]),
]


def put_choices(queue: Queue) -> dict[str, int]:
    rows: dict[str, dict[str, object]] = {
        "a": {"group_id": 3, "error_text": "E: 100%"},
        "b": {"group_id": 3, "error_text": "e: 100% and more", "task": "tasks.other"},
        "new": {"group_id": 3, "status": 0},
        "c": {"group_id": 5, "error_text": "E: 100%\nwhere it was"},
        "d": {"error_text": "Ärger", "task": "tasks.Note"},
        "e": {"error_text": None},
    }
    return {name: put(queue, **{"status": 4} | row) for name, row in rows.items()}  # type: ignore[arg-type]


def test_tasks_are_chosen_by_all_that_is_given(queue: Queue) -> None:
    ids = put_choices(queue)
    names = {one: name for name, one in ids.items()}
    operator = Operations(queue.server.store)
    for given, expected in CHOICES:
        chosen = Selection(**given | ({"ids": [ids[name] for name in given["ids"]]} if "ids" in given else {}))
        preview = operator.preview(RETRY, chosen, most=3)
        assert (preview.rows, [names[task.id] for task in preview.first]) == (len(expected), expected[:3]), given
        written: list[int] = []
        assert operator.change(RETRY, chosen, on_written=written.extend).changed == len(expected), given
        assert [names[one] for one in sorted(written)] == expected, given
        new = {names[one] for one, status in queue.rows("id, status") if status == 0}
        assert new == {*expected, "new"}, given
        queue.sql("UPDATE jobs_queue SET status = 4 WHERE id <> ?", ids["new"])


# ---- beside others


@pytest.mark.parametrize("skips_locked", [True, False], ids=["skips locked", "waits for locked"])
def test_rows_that_others_hold_are_tried_again_and_reported(
    mysql_queue: Queue, monkeypatch: pytest.MonkeyPatch, skips_locked: bool
) -> None:
    dialect: Any = mysql_queue.server.store.database.dialect
    operations = Operations(mysql_queue.server.store)
    dialect.skips_locked = skips_locked
    ids = [put(mysql_queue, 4) for _ in range(9)]
    with monkeypatch.context() as patch, holding(mysql_queue.dsn, f"id = {ids[0]}"):
        patch.setattr(many_rows.ManyRows.write, "__defaults__", (None, None, 0.2))  # held_seconds
        assert operations.change(RETRY, Selection(ids=ids[:6], limit=2)) == (1, [ids[0]])
    portions: list[Sequence[int]] = []
    # In order of id: at random both held rows may come first, time and again, and nothing is written to release them.
    monkeypatch.setattr("taskserver.stores.free_rows.random.sample", lambda found, count: list(found))
    with holding(mysql_queue.dsn, f"id IN ({ids[0]}, {ids[8]})") as rollback:

        def release(written: Sequence[int]) -> None:
            portions.append(written)
            if len(portions) == 1:
                rollback()

        assert operations.change(RETRY, Selection(), on_written=release) == (8, [])
    assert not {ids[0], ids[8]} & set(portions[0])


@pytest.mark.parametrize(("priority", "rows"), [(-5, 23), (0, 0)])
def test_many_rows_are_found_a_portion_after_the_other_and_none_twice(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, priority: int, rows: int
) -> None:
    monkeypatch.setattr(many_rows, "MAX_IDS_PER_LOOK", 6)
    monkeypatch.setattr(many_rows, "MAX_IDS_PER_STATEMENT", 4)
    ids = [put(queue, 0, group_id=number % 3) for number in range(23)]
    written: list[int] = []
    outcome = Operations(queue.server.store).change(to_priority(priority), Selection(), written.extend)
    assert (outcome, sorted(written)) == ((rows, []), ids[:rows])
    assert queue.rows("priority") == [(priority,)] * 23
    assert queue.server.retry(Selection()) == 0
