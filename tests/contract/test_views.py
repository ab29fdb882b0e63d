"""What operators read of a queue, for every store: counts, runs, lists and single tasks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskserver import SettingError
from taskserver.stores import Store
from taskserver.stores.queue.claims import number_of
from tests.contract.verbs import add, claim, claim_one, finish, start
from tests.support.queues import row_counts
from tests.support.rows import Rows, as_instant


def test_counts_are_by_group_and_status_with_the_age_of_the_oldest_new_row(store: Store, rows: Rows) -> None:
    for group in (6, 3, 3, 3):
        add(store, group)
    rows.set(f"created_at = {rows.after(-500)} WHERE group_id = 3")
    assert finish(store, claim(store, 1, 3)[0], "E: x")
    counts = row_counts(store)
    assert [(count.group_id, count.status, count.rows) for count in counts] == [(3, 0, 2), (3, 4, 1), (6, 0, 1)]
    assert [count.oldest_seconds for count in counts] == [pytest.approx(500, abs=30), None, pytest.approx(0, abs=30)]


def test_an_empty_queue_has_no_counts_no_runs_and_no_tasks(store: Store) -> None:
    views = store.views
    assert (row_counts(store), views.runs(), views.list(limit=10), views.show(1)) == ([], [], [], None)


def test_a_run_is_recorded_from_its_begin_to_its_end_in_one_row(store: Store, rows: Rows) -> None:
    store.runs.begin("web1", "3,5")
    (run,) = store.views.runs()
    assert (run.host, run.group_ids, run.ended_at, run.reason) == ("web1", "3,5", None, None)
    assert run.started_seconds_ago == pytest.approx(0, abs=30)
    store.runs.end("web1", "3,5", 90.25, "empty", (5, 2, 1, 1, 7))
    (run,) = store.views.runs()
    assert (run.reason, run.taken, run.done, run.fatal, run.lost, run.released) == ("empty", 5, 2, 1, 1, 7)
    assert run.started_at
    assert run.ended_at
    assert rows.seconds_from_now(run.ended_at.replace(tzinfo=None)) == pytest.approx(0, abs=30)
    assert (run.ended_at - run.started_at).total_seconds() == pytest.approx(90.25, abs=0.1)
    store.runs.begin("web1", "3,5")
    store.runs.begin("web1", "all")
    first, second = store.views.runs()
    assert (first.group_ids, first.reason, first.taken, first.ended_at) == ("3,5", None, 0, None)
    assert second.group_ids == "all"


@pytest.mark.parametrize("seconds", [1e-7, 12345678.9])
def test_a_run_of_any_length_has_a_begin_and_an_end(store: Store, seconds: float) -> None:
    store.runs.begin("web1", "all")
    store.runs.end("web1", "all", seconds, "empty", (0, 0, 0, 0, 0))
    (run,) = store.views.runs()
    assert run.started_seconds_ago == pytest.approx(seconds, abs=30)
    assert run.ended_at is not None


def test_the_list_can_be_restricted_to_an_error_and_to_what_happened_since(store: Store, rows: Rows) -> None:
    long_ago, failed, running, ended, lately = (add(store) for _ in range(5))
    rows.set(f"created_at = {rows.after(-9000)}")
    rows.set(f"created_at = {rows.after(-60)} WHERE id = {lately}")
    in_error = f"status = 3, error_text = 'OSError: 50%', updated_at = {rows.after(-60)}"
    rows.set(f"{in_error}, started_at = {rows.after(-90)} WHERE id = {failed}")
    rows.set(f"status = 1, started_at = {rows.after(-60)} WHERE id = {running}")
    fatal = f"status = 4, error_text = 'oserror: 50%', finished_at = {rows.after(-60)}"
    rows.set(f"{fatal}, started_at = {rows.after(-8000)} WHERE id = {ended}")

    def listed(**given: Any) -> list[int]:
        return [task.id for task in store.views.list(limit=10, **given)]

    assert listed(since=600) == [lately, ended, running, failed]
    assert listed(since=10_000) == [lately, ended, running, failed, long_ago]
    assert listed(since=0) == []
    assert listed(since=datetime.now(timezone.utc) - timedelta(seconds=600)) == [lately, ended, running, failed]
    assert listed(error="OSError: 5") == [failed]
    assert listed(error="OSError: 50%", since=600) == [failed]
    assert listed(error="Error") == listed(error="OSError: 50_") == []
    with pytest.raises(SettingError, match="since is -1; allowed"):
        listed(since=-1)


def test_a_task_tells_how_long_it_ran_or_has_run_so_far(store: Store, rows: Rows) -> None:
    task_id = add(store)
    ended = f"started_at = {rows.after(-300)}, finished_at = {rows.after(-180)}, error_text = NULL"

    def seconds(change: str) -> float | None:
        rows.set(change)
        shown = store.views.show(task_id)
        assert shown is not None
        return shown.run_seconds

    assert seconds("status = 0") is None
    assert seconds("status = 1") is None  # claimed, not started
    assert seconds(f"status = 1, started_at = {rows.after(-300)}") == pytest.approx(300, abs=30)
    assert seconds(f"status = 3, updated_at = {rows.after(-290)}") == pytest.approx(10, abs=1)
    assert seconds(f"status = 2, {ended}") == pytest.approx(120, abs=1)
    assert seconds("status = 4, error_text = 'BadTask: no'") is None  # its module was imported
    assert seconds("attempts = 1, error_text = 'ValueError: no'") == pytest.approx(120, abs=1)
    assert seconds("error_text = 'lost: its worker vanished'") is None
    assert seconds("status = 7, error_text = 'cancelled'") is None
    assert seconds(f"finished_at = {rows.after(-400)}, error_text = NULL, status = 2") is None


def test_a_shown_task_has_every_column_with_instants_in_utc(store: Store, rows: Rows) -> None:
    task_id = add(store, 3, -4, args='{"to":"ä"}')
    rows.set("unique_key = 'schlüssel'")
    task = claim_one(store)
    assert start(store, task, 6)
    shown = store.views.show(task_id)
    assert shown is not None
    row = rows.row(task_id)
    assert (shown.task, shown.args, shown.group_id, shown.priority) == ("tasks.send", {"to": "ä"}, 3, -4)
    assert (shown.status, shown.attempts, shown.max_attempts, shown.columns["claim"]) == (1, 1, 6, task.claim)
    assert (shown.unique_key, shown.error, shown.finished_at, shown.archived) == ("schlüssel", None, None, False)
    for name in ("created_at", "started_at", "due_at", "updated_at"):
        assert getattr(shown, name) == shown.columns[name] == as_instant(row[name]).replace(tzinfo=timezone.utc)


def test_a_task_in_the_queue_is_shown_before_archived_ones_of_its_id(
    open_store: Callable[..., Store], rows: Rows
) -> None:
    """Old servers give the id of a deleted row again after a restart; the archive keeps both, and a key twice."""
    store = open_store("move")
    for args in ("[1]", "[2]"):
        rows.execute(f"INSERT INTO jobs_queue (id, task, args, unique_key) VALUES (7, 'tasks.send', '{args}', 'k')")
        assert finish(store, claim_one(store))
    assert rows.execute("SELECT id, args FROM jobs_queue_done ORDER BY done_id") == [(7, "[1]"), (7, "[2]")]
    archived = store.views.show(7)
    assert archived is not None
    assert (archived.args, archived.status, archived.archived) == ([2], 2, True)
    rows.execute("INSERT INTO jobs_queue (id, task) VALUES (7, 'tasks.other')")
    shown = store.views.show(7)
    assert shown is not None
    assert (shown.task, shown.archived) == ("tasks.other", False)


def test_running_tasks_are_shown_with_their_worker_and_claimed_ones_are_counted(store: Store) -> None:
    running, claimed = add(store, 3), add(store)
    tasks = claim(store)
    assert {task.id for task in tasks} == {running, claimed}
    started = next(task for task in tasks if task.id == running)
    assert start(store, started)
    (shown,) = store.views.running(10)
    assert (shown.id, shown.group_id, shown.attempts, shown.number) == (running, 3, 1, number_of(started.claim))
    assert store.views.in_progress() == ({3: 1}, {number_of(started.claim): 1})
    state = store.views.state(running)
    assert state is not None
    assert state.id == running
    assert store.views.state(running + 100) is None


def test_the_states_of_many_are_in_the_order_of_the_ids_without_what_is_gone(store: Store, rows: Rows) -> None:
    first, second, third = add(store), add(store), add(store)
    rows.set(f"status = 4, error_text = 'E: x' WHERE id = {second}")
    found = store.views.states([third, second, third + 1, first])
    assert [(one, str(state.status), state.error) for one, state in found.items()] == [
        *((third, "new", None), (second, "fatal", "E: x"), (first, "new", None))
    ]
    assert found[first] == store.views.state(first)
