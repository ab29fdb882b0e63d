"""Turning pages: whatever the rows, the filter and the size of a page, each task is shown once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.queue import browsing
from taskserver.stores.queue.browsing import FIRST, Browsing, Filter
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


def turn_all(store: Store, chosen: Filter, most: int, by_attempts: bool = False) -> tuple[list[int], bool]:
    """The ids of all pages in their order, and whether it was said that there may be more."""
    browse = Browsing(store.database)
    turn = browse.most_attempts if by_attempts else browse.page
    place = FIRST
    ids = []
    for _ in range(3 * ROWS):
        page = turn(chosen, place, most)
        ids += [task.id for task in page.tasks]
        if page.next_place is None:
            return ids, page.is_cut
        place = page.next_place
    raise AssertionError("the pages come to no end")


def is_wanted(row: dict[str, Any], chosen: Filter) -> bool:
    exact = (chosen.status, chosen.group_id, chosen.task)
    found = (row["status"], row["group_id"], row["task"])
    if any(want is not None and want != have for want, have in zip(exact, found, strict=True)):
        return False
    return chosen.error_line is None or str(row["error_text"] or "").split("\n")[0] == chosen.error_line


FILTERS = [
    *(Filter(status) for status in (None, *map(int, Status))),
    *(Filter(status, 3) for status in (None, 0, 3, 4, 5)),
    *(Filter(status, None, "tasks.ß") for status in (None, 0, 3, 5)),
    *(Filter(status, None, None, "ValueError: no") for status in (None, 3, 4)),
    Filter(4, 5, "tasks.a", "ValueError: no"),
]


@pytest.mark.parametrize(("window", "most"), [(5000, 7), (40, 7), (9, 1), (5000, 500)])
def test_turning_pages_to_the_end_shows_each_wanted_task_once(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch, window: int, most: int
) -> None:
    monkeypatch.setattr(browsing, "WINDOW", window)
    written = fill(rows, Random(window * most))
    for chosen in FILTERS:
        wanted = [row["id"] for row in written if is_wanted(row, chosen)]
        found, is_cut = turn_all(store, chosen, most)
        assert len(found) == len(set(found))
        assert sorted(found) == wanted or (is_cut and window < 10 and set(found) < set(wanted)), chosen


@pytest.mark.parametrize("status", [Status.NEW, Status.FATAL, Status.DONE])
def test_new_and_ended_tasks_come_the_newest_first_and_due_ones_the_next_first(
    store: Store, rows: Rows, status: Status
) -> None:
    written = fill(rows, Random(status))
    ids, _ = turn_all(store, Filter(int(status)), 7)
    assert ids == sorted(ids, reverse=True)
    due = {row["id"]: row["due"] for row in written}
    found = [due[one] for one in turn_all(store, Filter(int(Status.ERROR)), 7)[0]]
    dated = [one for one in found if one is not None]
    assert (dated, found[len(dated) :]) == (sorted(dated), [None] * (len(found) - len(dated)))


@pytest.mark.parametrize("chosen", FILTERS)
def test_those_with_the_most_attempts_come_first_each_once(store: Store, rows: Rows, chosen: Filter) -> None:
    written = fill(rows, Random(7))
    wanted = [row for row in written if is_wanted(row, chosen)]
    wanted.sort(key=lambda row: (-row["attempts"], -row["id"]))
    assert turn_all(store, chosen, 7, by_attempts=True)[0] == [row["id"] for row in wanted]
