"""Browse: pages, lists and single tasks, as people see them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from taskserver import SettingError
from taskserver.model.selection import Selection
from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.queue import views
from taskserver.stores.queue.claims import number_of
from taskserver.stores.queue.views import BY_TIME, FIRST, Pages
from tests.contract.verbs import add, claim, claim_one, finish, start
from tests.support.rows import Rows, as_instant

NAMES = ("tasks.a", "tasks.b", "tasks.ß")
ERRORS = (None, "ValueError: no", "ValueError: no\n  at line 3", "ValueError: No", "")
STATUSES = (*map(int, Status), 77)


def fill(rows: Rows) -> list[dict[str, Any]]:
    """Rows of every status, many of them due at the same instant or at none."""
    written = []
    for number in range(1, 121):
        row = {"id": number, "task": NAMES[number % 3], "group_id": 3 + number % 2, "attempts": number % 4}
        row |= {"status": STATUSES[number * 7 % 8], "error_text": ERRORS[number % 5]}
        due = (None, 60, 60, 120)[number // 3 % 4]
        marks = f"?, ?, ?, ?, ?, ?, {'NULL' if due is None else rows.after(due)}"
        rows.execute(f"INSERT INTO jobs_queue ({', '.join(row)}, due_at) VALUES ({marks})", tuple(row.values()))
        written.append(row | {"due": due, "error_line": str(row["error_text"] or "").split("\n")[0]})
    return written


@pytest.mark.parametrize(("window", "most"), [(9, 1), (40, 500)])
def test_turning_pages_to_the_end_shows_each_wanted_task_once_and_the_next_first(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch, window: int, most: int
) -> None:
    """The newest first; those with a due date by that."""
    monkeypatch.setattr(views, "WINDOW", window)
    written = fill(rows)
    filters: list[dict[str, Any]] = [
        *({}, {"group_id": 3}, {"task": "tasks.ß", "status": 3}, {"error_line": "ValueError: no"}),
        *({"status": status} for status in map(int, Status)),
    ]
    for given in filters:
        groups = {"groups": [given["group_id"]]} if "group_id" in given else given
        chosen, found = Selection(**groups), list[int]()
        page = Pages(store.database).page(chosen, FIRST, most)
        while page.next_place is not None:
            found += [task.id for task in page.tasks]
            page = Pages(store.database).page(chosen, page.next_place, most)
        found += [task.id for task in page.tasks]
        wanted = [row for row in reversed(written) if given.items() <= row.items()]
        if "status" in given:
            wanted.sort(key=lambda row: (row["due"] or 0, row["id"] if row["due"] else 0))
            if given["status"] in BY_TIME:
                wanted.sort(key=lambda row: row["due"] is None)
        assert found == [row["id"] for row in wanted], given


def test_tasks_of_the_first_window_with_the_most_attempts_come_first(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "WINDOW", 10)
    wanted = sorted(fill(rows)[-10:], key=lambda row: (-row["attempts"], -row["id"]))
    page = Pages(store.database).most_attempts(Selection(), 7)
    assert ([task.id for task in page.tasks], page.is_cut) == ([row["id"] for row in wanted[:7]], True)


# ---- lists and single tasks


def test_the_list_can_be_restricted_to_an_error_and_to_what_happened_since(store: Store, rows: Rows) -> None:
    long_ago, failed, ended, lately = (add(store) for _ in range(4))
    rows.set(f"created_at = {rows.after(-9000)} WHERE id <> {lately}")
    rows.set(f"status = 3, error_text = 'OSError: 50%', updated_at = {rows.after(-60)} WHERE id = {failed}")
    rows.set(f"status = 4, error_text = 'oserror: 50%', finished_at = {rows.after(-60)} WHERE id = {ended}")

    def listed(**given: Any) -> list[int]:
        return [task.id for task in store.views.list(limit=10, **given)]

    assert listed(since=600) == [lately, ended, failed]
    assert listed(since=10_000) == [lately, ended, failed, long_ago]
    assert listed(since=datetime.now(timezone.utc) - timedelta(seconds=600)) == [lately, ended, failed]
    assert listed(error="OSError: 50%", since=600) == [failed]
    assert listed(error="Error") == listed(error="OSError: 50_") == []
    with pytest.raises(SettingError, match="since is -1; allowed"):
        listed(since=-1)


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
    """Old servers give the id of a deleted row again after a restart."""
    store = open_store("move")
    for args in ("[1]", "[2]"):
        rows.execute(f"INSERT INTO jobs_queue (id, task, args, unique_key) VALUES (7, 'tasks.send', '{args}', 'k')")
        assert finish(store, claim_one(store))
    archived = store.views.show(7)
    assert archived
    assert (archived.args, archived.status, archived.archived) == ([2], 2, True)
    rows.execute("INSERT INTO jobs_queue (id, task) VALUES (7, 'tasks.other')")
    shown = store.views.show(7)
    assert shown
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
    found = store.views.states([claimed, running, claimed + 1])
    assert list(found) == [claimed, running]
    assert found[running] == store.views.state(running)
