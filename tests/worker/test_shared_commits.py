"""Callables whose tasks share their commits, `@task(commit_every=N)`: one start and one finish for up to N of them.

What a round has in common with a batch is shown by test_several_at_once.py, what kills and races do to it by
tests/process/test_several_at_once.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taskserver import Fatal, Retry
from taskserver.model.task import Status
from taskserver.worker import finishing, rounds
from taskserver.worker.result import Reason
from tests.support.processes import wait_until
from tests.support.sessions import new_connection
from tests.worker.rounds import CODE, Rounds, failing

__all__ = ["CODE"]
pytestmark = pytest.mark.usefixtures("whole_claims")
SITE = Rounds


# ---- a round


def test_tasks_are_called_one_by_one_between_one_start_and_one_finish(any_site: Rounds) -> None:
    site, mode = any_site, any_site.mode
    # The import costs a start of its own, as it may kill the worker.
    new, known = [("complete", 1), ("start", 39), ("complete", 39)], [("start", 40), ("complete", 40)]
    for is_imported, written in ((False, new), (True, known)):
        site.add("many", *range(40))
        result = site.run(is_imported=is_imported)
        assert (result.taken, result.done, result.released, result.reason) == (40, 40, 0, Reason.EMPTY)
        assert site.calls() == list(range(40))
        assert site.shared == written
    assert site.figures() == (80, 80, 80, 0, 0)
    table = "jobs_queue_done" if mode == "move" else "jobs_queue"
    columns = site.columns("status, attempts, max_attempts, claim, due_at, error_text", table)
    assert columns == ([] if mode == "delete" else [(2, 1, 10, None, None, None)] * 80)
    assert mode == "mark" or site.columns("id") == []


def test_a_run_that_claimed_one_task_claims_again_for_a_round(site: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    site.add("many", *range(40))
    result = site.run()
    assert (result.taken, result.done, result.released) == (40, 40, 0)
    assert site.shared == [("start", 40), ("complete", 40)]


@pytest.mark.parametrize(
    ("names", "starts"),
    [
        (["five"] * 12, [5, 5, 2]),
        (["many", "five", "many", "three", "many", "many", "many"], [3, 3]),  # three stood before that of three
        (["many", "three", "many", "many", "many"], [3, 2]),
        (["many", "many", "single", "five", "several", "many", "many", "single", "many"], [2, 2]),
    ],
)
def test_a_round_has_as_many_neighbours_as_each_allows(site: Rounds, names: list[str], starts: list[int]) -> None:
    for number, name in enumerate(names):
        site.add(name, number)
    assert site.run().done == len(names)
    assert site.calls() == list(range(len(names)))
    assert site.starts() == starts


@pytest.mark.parametrize("column", ["attempts = 1", "max_attempts = 1"])
def test_a_task_that_must_not_share_a_crash_with_others_is_started_by_itself(site: Rounds, column: str) -> None:
    """It was started before, or may start only once."""
    ids = site.add("many", *range(5))
    site.rows.set(f"{column} WHERE id = {ids[2]}")
    assert site.run().done == 5
    assert (site.calls(), site.starts()) == (list(range(5)), [2, 2])


def test_only_tasks_of_one_limit_share_a_start_and_none_whose_limit_is_one(make_site: Any, site_dsn: str) -> None:
    site = make_site(site_dsn, mode="mark")
    ids = [*site.add("many", 1), *site.add("thrice", 2), *site.add("many", 3, max_attempts=7), *site.add("thrice", 4)]
    assert site.run().done == 4
    assert [row[1] for row in site.columns("id, max_attempts") if row[0] in ids] == [10, 3, 7, 3]
    assert site.shared == []  # one write has one limit for rows that have none
    site.server.settings = site.server.settings._replace(max_attempts=1)
    site.add("many", *range(3))
    site.add("thrice", 3, 4)
    assert (site.run().done, site.starts()) == (5, [2])


# ---- how its tasks end


def test_each_task_ends_by_itself(make_site: Any, site_dsn: str) -> None:
    site = make_site(site_dsn, mode="mark")
    errors = [None, ValueError("now"), Retry("later", delay=1000), Fatal("never"), SystemExit(3), None]

    def do(n: int) -> Any:
        if (error := errors[n]) is not None:
            raise error
        return {"sum": n}

    site.module.does["many"] = do
    site.add("many", *range(6))
    result = site.run()
    assert (result.done, result.failed, result.fatal) == (2, 3, 1)
    assert (site.calls(), site.figures()) == (list(range(6)), (6, 6, 2, 4, 1))
    assert [(*row[:2], row[2]) for row in site.columns("status, attempts, result")] == [
        (2, 1, '{"sum":0}'), (3, 1, None), (3, 1, None), (4, 1, None), (3, 1, None), (2, 1, '{"sum":5}'),
    ]  # fmt: skip
    assert site.first_lines()[1:5] == ["ValueError: now", "Retry: later", "Fatal: never", "SystemExit: 3"]
    due = site.rows.execute("SELECT due_at FROM jobs_queue WHERE status = 3 ORDER BY id")
    waits = [site.rows.seconds_from_now(due_at) for (due_at,) in due]
    assert waits == [pytest.approx(seconds, abs=30) for seconds in (52, 1000, 52)]


def test_a_bad_row_in_a_round_is_fatal_uncounted(site: Rounds) -> None:
    ids = site.add("many", *range(4))
    site.rows.set(f"args = '{{\"m\": 1}}' WHERE id = {ids[1]}")
    site.rows.set(f"args = '{{' WHERE id = {ids[3]}")
    result = site.run()
    assert (result.taken, result.done, result.fatal) == (4, 2, 2)
    assert (site.calls(), site.columns("status, attempts")) == ([0, 2], [(4, 0)] * 2)


def test_a_stage_of_a_pipeline_and_a_task_that_others_wait_for_go_on_from_a_round(site: Rounds) -> None:
    site.module.does["many"] = lambda n: {"n": n + 10}
    many, single = f"{site.name}.many", f"{site.name}.single"
    site.server.add_pipeline([many, single], {"n": 1})
    parent = site.server.add_task(many, {"n": 2})
    site.server.add_task(single, {"n": 3}, depends_on=[parent])
    site.server.add_task(many, {"n": 4})
    assert site.run().done == 5
    assert (sorted(site.calls()), site.columns("id")) == ([1, 2, 3, 4, 11], [])


def test_a_task_of_a_round_may_complete_itself(site: Rounds) -> None:
    def transaction() -> Any:
        connection = new_connection(site.store)
        connection.cursor().execute(site.rows.begin)
        return connection

    site.module.does["connect"] = transaction
    for end, counts in (("commit", (3, 0)), ("rollback", (0, 3))):
        site.module.does["end"] = lambda connection, end=end: (getattr(connection, end)(), connection.close())
        site.add("paid", *range(3))
        result = site.run()
        assert (result.done, result.failed) == counts
    assert all("that was not committed" in line for line in site.first_lines())


# ---- finishes wait for a second at most


def test_what_has_waited_is_written_before_the_next_turn(site: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "SAVE_SECONDS", 0.0)
    seen = []
    site.module.does["many"] = lambda n: seen.append(site.columns("attempts"))
    site.add("many", *range(4))
    assert site.run().done == 4
    assert (seen, site.starts()) == ([[(1,)] * count for count in (4, 3, 2, 1)], [4])


@pytest.mark.parametrize("lease", [120, 2])
def test_what_has_ended_is_written_while_the_next_call_takes_long(make_site: Any, site_dsn: str, lease: int) -> None:
    """Also if the heartbeat looks seldom, as the lease is long."""
    site = make_site(site_dsn, lease=lease, mode="mark")
    statuses: list[list[int]] = []

    def wait() -> None:
        wait_until(lambda: site.rows.statuses()[:2] == [2, 3])
        statuses.append(site.rows.statuses())

    site.module.does["many"] = lambda n: {1: failing(ValueError()), 2: wait}.get(n, lambda: None)()
    site.add("many", *range(4))
    result = site.run()
    assert (result.taken, result.done, result.failed) == (4, 3, 1)
    assert statuses[0][2] == Status.IN_PROGRESS
    assert (site.calls(), site.rows.statuses()) == ([0, 1, 2, 3], [2, 3, 2, 2])


# ---- what others do to its rows meanwhile

DEEDS: dict[str, Callable[[Rounds, int], object]] = {
    "cancelled": lambda site, task_id: site.server.cancel(task_id),
    "changed": lambda site, task_id: site.server.add_task(
        f"{site.name}.three", {"n": 11}, unique_key=f"k{task_id}", rerun=True
    ),
    "taken away": lambda site, task_id: site.rows.set(f"claim = 5 WHERE id = {task_id}"),
    "deleted": lambda site, task_id: site.rows.execute(f"DELETE FROM jobs_queue WHERE id = {task_id}"),
}
"""What is done to the task of this id, whose key is made of it."""


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize(
    ("during", "to", "fails"),
    [
        pytest.param(0, 1, False, id="before its turn"),
        pytest.param(2, 1, False, id="before its finish, with which others start"),
        pytest.param(2, 1, True, id="before it fails, after which others start"),
        pytest.param(5, 4, False, id="before its finish"),
        pytest.param(5, 4, True, id="before it fails"),
        pytest.param(2, 4, False, id="before its start, with which others finish"),
    ],
)
def test_what_became_of_a_task_is_noticed(
    site: Rounds, monkeypatch: pytest.MonkeyPatch, deed: str, during: int, to: int, fails: bool
) -> None:
    """Two rounds of three tasks. A round that is over within a second does not look before each turn."""
    if during == 0:
        monkeypatch.setattr(rounds, "LOOK_AT_ROUND_SECONDS", 0.0)
    ids = [number + 1 for number in range(6)]
    for n, task_id in enumerate(ids):
        assert site.server.add_task(f"{site.name}.three", {"n": n}, unique_key=f"k{task_id}") == task_id

    def do(n: int) -> None:
        if n == during:
            DEEDS[deed](site, ids[to])
        if n == to and fails:
            raise ValueError

    site.module.does["three"] = do
    result = site.run()
    was_started, has_run = to // 3 == during // 3, to < during
    # A change holds for the run after this one, a cancel comes too late for a task that is done.
    is_called = has_run or (deed == "changed" and was_started)
    is_cancelled = deed == "cancelled" and (fails or not has_run)
    is_lost = deed in ("taken away", "deleted") or not was_started
    assert site.calls() == [n for n in range(6) if n != to or is_called] + [11] * (deed == "changed")
    assert (result.cancelled, result.lost) == (is_cancelled and was_started, is_lost)
    assert result.done + result.failed == 5 + {"cancelled": not is_cancelled, "changed": 1 + is_called}.get(deed, 0)
    left = [status for task_id, status in site.columns("id, status") if task_id == ids[to]]
    assert left == ([Status.CANCELLED] if is_cancelled else [Status.IN_PROGRESS] if deed == "taken away" else [])
