"""Finish: in progress → gone, archived, done, error, fatal, cancelled or new; fenced, and one commit with a start."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pymysql
import pytest

from taskserver.errors import Conflict, DatabaseError
from taskserver.model.attempt import Finish, NextStage, Outcome, Start
from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.queue import finishes
from taskserver.stores.queue.batches import Batches
from taskserver.stores.queue.finishes import RUN_AGAIN, START
from tests.contract.verbs import (
    ENDINGS,
    PLAIN,
    a_running_task,
    add,
    add_many,
    claim,
    claim_one,
    end,
    finish,
    rerun,
    start,
    take_away,
)
from tests.support.rows import MODES, Rows


@pytest.mark.parametrize("mode", MODES)
def test_a_completed_task_is_deleted_moved_with_all_its_columns_or_marked(
    open_store: Callable[..., Store], rows: Rows, mode: str
) -> None:
    store = open_store(mode)
    add(store, 3, -9, "tasks.send", '{"to":"ä"}')
    rows.set("unique_key = 'k', error_text = 'ValueError: the time before', attempts = 2")
    task = claim_one(store)
    assert start(store, task, 8)
    (before,) = rows.all()
    assert finish(store, task)
    kept = {"delete": (0, 0), "move": (0, 1), "mark": (1, 0)}[mode]
    assert (len(rows.all()), len(rows.all("jobs_queue_done"))) == kept
    for row in rows.all() + rows.all("jobs_queue_done"):
        assert rows.seconds_from_now(row["finished_at"]) == pytest.approx(0, abs=30)
        changed = {"status": 2, "claim": None, "due_at": None, "error_text": None}
        assert row == before | changed | {name: row[name] for name in ("finished_at", "updated_at")}


def test_a_failed_task_stays_as_fatal_with_its_error(store: Store, rows: Rows) -> None:
    error_text = "ValueError: ä %s '\\\n" + "🦊" * 980
    add(store)
    task = claim_one(store)
    assert start(store, task)
    assert finish(store, task, error_text)
    assert rows.one("status", "claim", "due_at", "attempts", "error_text") == (4, None, None, 1, error_text)
    assert rows.seconds_from_now(rows.one("finished_at")) == pytest.approx(0, abs=30)


# ---- the fence (test_fences.py has it by verb and state), and one commit


def test_a_stale_token_finishes_nothing(open_store: Callable[..., Store], rows: Rows) -> None:
    store = open_store("move")
    add(store)
    stale = claim_one(store)
    rows.set("status = 0, claim = NULL, due_at = NULL")
    assert claim_one(store).claim != stale.claim
    for attempts in (1, 0):  # 0: it was rerun meanwhile
        rows.set(f"started_at = created_at, attempts = {attempts}")
        before = rows.all()
        for finish_of in ENDINGS.values():
            for is_repeated in (False, True):
                assert end(store, finish_of(stale), is_repeated) == Outcome.LOST
        assert rows.all() == before
    assert rows.all("jobs_queue_done") == []


def test_finishes_and_the_next_start_are_judged_each_by_its_own_claim(store: Store, rows: Rows) -> None:
    add_many(store, [PLAIN] * 5)
    tasks = claim(store)
    take_away(rows, tasks[0].id, tasks[2].id)
    finishes = list(map(Finish, tasks[:4], (None, None, "E: x", "E: y")))
    outcomes = [Outcome.LOST, Outcome.AS_ASKED, Outcome.LOST, Outcome.AS_ASKED]
    assert store.finishes.advance(finishes, Start(tasks[4], 10)) == (outcomes, True)
    assert rows.statuses() == [1, 1, 4, 1]
    take_away(rows, tasks[4].id)
    assert store.finishes.advance([], Start(tasks[4], 10)) == ([], False)


def test_a_finish_and_the_next_start_are_one_commit(
    open_store: Callable[..., Store], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("move")
    add_many(store, [PLAIN] * 2)
    tasks = claim(store)
    assert start(store, tasks[0])
    before = rows.all()
    # The start fails in the database, after the finish took effect there: no row may show that.
    monkeypatch.setattr(finishes, "START", START.replace("started_at = {now}", "no_such_column = {now}"))
    with pytest.raises(DatabaseError, match="no_such_column"):
        store.finishes.advance([Finish(tasks[0])], Start(tasks[1], 10))
    assert (rows.all(), rows.all("jobs_queue_done")) == (before, [])
    monkeypatch.undo()
    assert store.finishes.advance([Finish(tasks[0])], Start(tasks[1], 10)) == ([Outcome.AS_ASKED], True)


def test_several_are_completed_and_others_started_in_one_commit_or_not_at_all(
    open_store: Callable[..., Store], rows: Rows
) -> None:
    store = open_store("move")
    batches = Batches(store)
    add_many(store, [PLAIN] * 4)
    tasks = claim(store)
    batches.start(tasks[:2], 10)
    for taken in (tasks[0].id, tasks[3].id):
        rows.set(f"claim = claim - 1 WHERE id = {taken}")
        before = rows.all()
        assert batches.complete_and_start(tasks[:2], tasks[2:], 10) == (False, False)
        assert (rows.all(), rows.all("jobs_queue_done")) == (before, [])
        rows.set(f"claim = claim + 1 WHERE id = {taken}")
    assert batches.complete_and_start(tasks[:2], tasks[2:], 7) == (True, False)
    started = [(row["status"], row["attempts"], row["max_attempts"]) for row in rows.all() if row["status"] == 1]
    assert started == [(1, 1, 7)] * 2
    assert len(rows.all("jobs_queue_done")) == 2


def test_of_several_only_those_are_completed_that_are_ours(store: Store, rows: Rows) -> None:
    add_many(store, [PLAIN] * 3)
    tasks = claim(store)
    assert len(Batches(store).start(tasks, 10)) == 3
    take_away(rows, tasks[1].id)
    assert Batches(store).complete(tasks) == ({tasks[0].id, tasks[2].id}, False)
    assert rows.statuses() == [Status.IN_PROGRESS]


# ---- answers that were lost: what the first try did is found, and what it did not do is done


@pytest.mark.parametrize(("mode", "took_effect"), [("delete", True), ("mark", True), ("move", False)])
def test_a_finish_that_is_written_again_is_found_or_done(
    open_store: Callable[..., Store], rows: Rows, mode: str, took_effect: bool
) -> None:
    """Whatever was done to the task while it ran."""
    store = open_store(mode)
    for deed, ending in itertools.product(["nothing", "rerun", "cancel"], ENDINGS):
        rows.execute("DELETE FROM jobs_queue")
        task = a_running_task(store)
        if deed == "rerun":
            store.producing.add(rerun("[2]"))
        elif deed == "cancel":
            rows.set("error_text = 'cancelled'")
        written = ENDINGS[ending](task)
        outcome = {"nothing": Outcome.AS_ASKED, "rerun": Outcome.RUN_AGAIN, "cancel": Outcome.CANCELLED}[deed]
        if (deed, ending) == ("cancel", "well"):
            outcome = Outcome.AS_ASKED
        if took_effect:
            assert end(store, written) == outcome, (deed, ending)
        before = rows.all()
        if (deed, ending, took_effect) == ("nothing", "cancelled", True):
            outcome = Outcome.CANCELLED  # the row cannot tell the two apart
        assert end(store, written, is_repeated=True) == outcome, (deed, ending)
        assert not took_effect or rows.all() == before
        assert rows.statuses() != [Status.IN_PROGRESS], (deed, ending)


def test_an_error_after_finishes_were_written_says_that_they_may_stand(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others hold the row of a task that is to run again: those that ended with it, and the start, are written."""
    store.producing.add(rerun("[1]"))
    add_many(store, [PLAIN] * 2)
    again, other, following = claim(store)
    for task in (again, other):
        assert start(store, task)
    store.producing.add(rerun("[2]"))
    written = [Finish(other), Finish(again)]
    failing = iter([True])
    finish_changed = store.finishes._finish_changed

    def fail_once(step: Any) -> Outcome:
        if next(failing, False):
            raise Conflict("somebody holds it")
        return finish_changed(step)

    monkeypatch.setattr(store.finishes, "_finish_changed", fail_once)
    with pytest.raises(Conflict) as raised:
        store.finishes.advance(written, Start(following, 3))
    assert raised.value.in_doubt
    outcomes = [Outcome.AS_ASKED, Outcome.RUN_AGAIN]
    assert store.finishes.advance(written, Start(following, 3), is_repeated=True) == (outcomes, True)
    left = [(row["id"], row["status"], row["attempts"]) for row in rows.all()]
    assert left == [(again.id, 0, 0), (following.id, 1, 1)]


@pytest.mark.parametrize("look", ["find_committed", "resolve"])
def test_a_finish_that_another_connection_wrote_is_found_once_it_is_there(store: Store, rows: Rows, look: str) -> None:
    """None while the row carries our claim; LOST if it carries another."""
    task = a_running_task(store)
    ask, finished = getattr(store.finishes, look), Finish(task, "E: x", 60)
    assert ask(finished, Outcome.AS_ASKED) is None
    assert end(store, finished) == Outcome.AS_ASKED
    assert ask(finished, Outcome.AS_ASKED) == Outcome.AS_ASKED
    rows.set("status = 1, claim = 7, error_text = NULL")
    assert ask(finished, Outcome.AS_ASKED) == Outcome.LOST


def test_a_row_that_was_changed_meanwhile_is_locked_before_it_is_ended(
    mysql_store: Store, mysql_rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, database = a_running_task(mysql_store), mysql_store.database
    mysql_rows.set("awaited = 1")
    mysql_rows.execute("SET innodb_lock_wait_timeout = 1")
    execute = database.execute

    def execute_and_disturb(sql: str, values: Sequence[Any] = ()) -> Any:
        cursor = execute(sql, values)
        if sql == RUN_AGAIN:  # a rerun that came now would leave a row that no write matches
            with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
                mysql_rows.set("attempts = 0")
        return cursor

    monkeypatch.setattr(database, "execute", execute_and_disturb)
    assert end(mysql_store, Finish(task)) == Outcome.AS_ASKED


STAGES = '["tasks.a", "tasks.b", "tasks.c"]'
FOLLOWING = NextStage("tasks.b", 5, -3, 7, '{"by":"a"}')


SINCE: dict[str, Callable[[Store, Rows], object]] = {
    "new": lambda store, rows: None,
    "started": lambda store, rows: start(store, claim_one(store)),
    "at the third": lambda store, rows: rows.set("task = 'tasks.c', stage = 2"),
    "cancelled": lambda store, rows: rows.set("status = 7, error_text = 'cancelled'"),
}
"""What became of the row when its first stage had ended."""


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
