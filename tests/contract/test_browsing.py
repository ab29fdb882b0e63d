"""Turning pages: whatever the rows, the filter and the size of a page, each task is shown once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from taskserver.model.selection import Selection
from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.queue import views
from taskserver.stores.queue.views import BY_TIME, FIRST, Pages
from tests.support.rows import Rows

NAMES = ("tasks.a", "tasks.b", "tasks.ß")
ERRORS = (None, "ValueError: no", "ValueError: no\n  at line 3", "ValueError: No", "")
ROWS = 130


def fill(rows: Rows, random: Random) -> list[dict[str, Any]]:
    """Rows of every status, many of them due at the same instant or at none."""
    sql = "INSERT INTO jobs_queue (id, task, group_id, status, attempts, error_text, due_at) VALUES "
    written = []
    for number in range(1, ROWS + 1):
        row: dict[str, Any] = {
            "id": number,
            "task": random.choice(NAMES),
            "group_id": random.choice((3, 5)),
            "status": random.choice([*map(int, Status), 77]),
            "attempts": random.randrange(4),
            "error_text": random.choice(ERRORS),
        }
        due = random.choice((None, 60, 60, 120, -60))
        rows.execute(f"{sql} (?, ?, ?, ?, ?, ?, {'NULL' if due is None else rows.after(due)})", tuple(row.values()))
        written.append(row | {"due": due})
    return written


def turn_all(store: Store, chosen: Selection, most: int) -> list[int]:
    """The ids of all pages in their order."""
    place, ids = FIRST, list[int]()
    for _ in range(3 * ROWS):
        page = Pages(store.database).page(chosen, place, most)
        ids += [task.id for task in page.tasks]
        if page.next_place is None:
            return ids
        place = page.next_place
    raise AssertionError("the pages come to no end")


def is_wanted(row: dict[str, Any], chosen: Selection) -> bool:
    groups = None if chosen.groups is None else chosen.groups[0]
    exact = (chosen.status, groups, chosen.task)
    found = (row["status"], row["group_id"], row["task"])
    if any(want is not None and want != have for want, have in zip(exact, found, strict=True)):
        return False
    return chosen.error_line is None or str(row["error_text"] or "").split("\n")[0] == chosen.error_line


FILTERS = [
    *(Selection(status=status) for status in (None, *map(int, Status))),
    *(Selection(groups=[3], status=status) for status in (None, 0, 3, 4, 5)),
    *(Selection(task="tasks.ß", status=status) for status in (None, 0, 3, 5)),
    *(Selection(error_line="ValueError: no", status=status) for status in (None, 3, 4)),
    Selection(groups=[5], task="tasks.a", error_line="ValueError: no", status=4),
]


@pytest.mark.parametrize(("window", "most"), [(5000, 7), (9, 1), (40, 500)])
def test_turning_pages_to_the_end_shows_each_wanted_task_once(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch, window: int, most: int
) -> None:
    monkeypatch.setattr(views, "WINDOW", window)
    written = fill(rows, Random(window * most))
    for chosen in FILTERS:
        found = turn_all(store, chosen, most)
        assert len(found) == len(set(found))
        assert sorted(found) == [row["id"] for row in written if is_wanted(row, chosen)], chosen


def test_tasks_come_the_newest_first_and_due_ones_the_next_first(store: Store, rows: Rows) -> None:
    written = {row["id"]: row["due"] for row in fill(rows, Random(7))}
    assert turn_all(store, Selection(), 7) == sorted(written, reverse=True)
    for status in Status:
        ids = turn_all(store, Selection(status=int(status)), 7)
        dated = [one for one in ids if written[one] is not None]
        undated = [one for one in ids if written[one] is None]
        assert [written[one] for one in dated] == sorted(written[one] for one in dated)
        assert undated == sorted(undated, reverse=True)
        assert ids == (dated + undated if status in BY_TIME else undated + dated)


def test_those_of_the_first_window_with_the_most_attempts_come_first(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = fill(rows, Random(7))
    for chosen in FILTERS:
        wanted = [row for row in written if is_wanted(row, chosen)]
        wanted.sort(key=lambda row: (-row["attempts"], -row["id"]))
        page = Pages(store.database).most_attempts(chosen, 7)
        assert [task.id for task in page.tasks] == [row["id"] for row in wanted[:7]]
        assert page.is_cut == (len(wanted) > 7)
    monkeypatch.setattr(views, "WINDOW", 10)
    page = Pages(store.database).most_attempts(Selection(), 7)
    assert {task.id for task in page.tasks} < {row["id"] for row in written[-10:]}
    assert page.is_cut
