"""Rounds that cannot go on: started tasks are given back as if never claimed, rows are held, writes fail."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest

from taskserver import DatabaseError, Stop
from taskserver.errors import Unavailable
from taskserver.model.task import Status
from taskserver.stores.queue.batches import Batches
from taskserver.worker import finishing
from taskserver.worker.claimed import Claimed
from taskserver.worker.result import Reason
from tests.support.databases import EACH_SERVER
from tests.support.processes import wait_until
from tests.support.rows import Rows
from tests.worker.rounds import CODE, Rounds, failing, on

__all__ = ["CODE"]
pytestmark = pytest.mark.usefixtures("whole_claims")
SITE = Rounds


# ---- started tasks are given back as if they had never been claimed


def test_started_tasks_behind_a_long_call_are_given_back_as_if_never_claimed(make_site: Any, site_dsn: str) -> None:
    site = make_site(site_dsn, lease=2)
    ids = site.add("many", *range(3)) + site.add("many", 3, max_attempts=5)
    before = {row["id"]: row for row in site.rows.all()}

    def wait() -> None:
        wait_until(lambda: site.rows.row(ids[3])["status"] == Status.NEW)
        for task_id in ids[2:]:
            row = site.rows.row(task_id)
            assert row == before[task_id] | {"max_attempts": row["max_attempts"]}  # which the start recorded

    site.module.does["many"] = on(1, wait)
    result = site.run()
    assert (result.taken, result.done, result.released, result.failed) == (4, 4, 2, 0)
    assert (site.calls(), site.figures()[:3]) == ([0, 1, 2, 3], (4, 4, 4))


def test_a_run_that_has_to_end_gives_started_tasks_back_uncounted(site: Rounds) -> None:
    stop = Stop()
    site.add("many", *range(6))
    site.module.does["many"] = on(1, stop.ask)
    result = site.run(stop=stop)
    assert (result.taken, result.done, result.released, result.reason) == (2, 2, 4, Reason.STOPPED)
    columns = site.columns("status, attempts, max_attempts, claim, started_at, due_at")
    assert (site.calls(), columns) == ([0, 1], [(0, 0, 10, None, None, None)] * 4)  # the limit of their start stays
    assert [one for one in site.shared if one[0] != "complete"] == [("start", 6), ("unstart", 4)]
    assert site.run().done == 4


def test_a_started_task_that_was_given_back_is_started_again_by_the_same_run(site: Rounds) -> None:
    """Its start is not taken for the one that was taken back."""
    attempts = []

    def do(n: int) -> None:
        attempts.append(site.columns("attempts")[0])
        if n == 0:  # as if half of the lease had passed
            for claimed in gc.get_objects():
                if type(claimed) is Claimed:  # isinstance would ask a proxy whose object has gone
                    claimed.give_back_at = 0.0

    site.module.does["many"] = do
    site.add("many", *range(4))
    assert site.run().done == 4
    assert (site.calls(), attempts) == ([0, 1, 2, 3], [(1,)] * 4)
    assert site.shared[:3] == [("start", 4), ("unstart", 3), ("start", 3)]


def test_started_tasks_whose_release_failed_get_no_turn(site: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("many", *range(3))
    tasks = site.store.claims.claim(3, ()).tasks
    claimed = Claimed(tasks, time.monotonic(), 60)
    assert Batches(site.store).start([task for task in tasks if claimed.take()], 10)
    claimed.put_started(tasks)
    with monkeypatch.context() as patch:
        patch.setattr(Batches, "unstart", failing(Unavailable("gone")))
        with pytest.raises(Unavailable):
            claimed.release(site.store)
    assert (claimed.take(), bool(claimed)) == (None, True)
    claimed.release(site.store)
    assert (bool(claimed), site.columns("status, attempts")) == (False, [(0, 0)] * 3)


# ---- rows that a page holds


@contextmanager
def a_page(site: Rounds, condition: Callable[[Rows], bool]) -> Any:
    """What holds a row, which is free once the other rows are as the condition says."""
    with ThreadPoolExecutor(1) as beside, closing(Rows(site.dsn)) as page:

        def let_go() -> None:
            with closing(Rows(site.dsn)) as rows:
                wait_until(lambda: condition(rows))
            page.execute("ROLLBACK")

        def hold(task_id: int) -> None:
            page.execute("BEGIN")
            page.execute(f"SELECT * FROM jobs_queue WHERE id = {task_id} FOR UPDATE")
            beside.submit(let_go)

        yield hold


@EACH_SERVER
@pytest.mark.parametrize("has_to_end", [False, True])
def test_a_started_task_whose_row_is_held_is_given_back_later(make_site: Any, site_dsn: str, has_to_end: bool) -> None:
    """By the heartbeat, while a call takes long; or by the run, which ends."""
    site = make_site(site_dsn, lease=2)
    ids = site.add("many", *range(5))
    stop = Stop()
    new = f"SELECT COUNT(*) FROM jobs_queue WHERE status = 0 AND id > {ids[0]}"
    with a_page(site, lambda rows: rows.execute(new) == [(3,)]) as hold:

        def do() -> None:
            hold(ids[2])
            if has_to_end:
                stop.ask()
            else:
                wait_until(lambda: site.rows.row(ids[2])["status"] == Status.NEW)

        site.module.does["many"] = on(0, do)
        result = site.run(stop=stop)
    assert (result.released, result.lost, result.done) == (4, 0, 1 if has_to_end else 5)
    assert site.columns("attempts, max_attempts, claim") == ([(0, 10, None)] * 4 if has_to_end else [])


@EACH_SERVER
def test_an_ended_task_whose_row_is_held_keeps_no_other_from_its_end(site: Rounds) -> None:
    ids = site.add("many", *range(4))
    with a_page(site, lambda rows: rows.execute("SELECT id FROM jobs_queue") == [(ids[1],)]) as hold:
        site.module.does["many"] = on(3, lambda: hold(ids[1]))
        result = site.run()
    assert (result.done, result.lost, site.columns("id")) == (4, 0, [])


# ---- writes that fail


def test_a_finish_of_all_that_is_refused_becomes_one_of_each(site: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add("three", *range(5))
    for verb in ("complete", "complete_and_start"):
        monkeypatch.setattr(Batches, verb, failing(DatabaseError("an error of a trigger")))
    assert site.run().done == 5
    assert (site.columns("id"), site.calls()) == ([], list(range(5)))


@pytest.mark.parametrize("verb", ["complete", "complete_and_start"])
def test_finishes_that_cannot_be_written_are_logged_and_leave_all_started(
    site: Rounds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    site.add("three", *range(5))
    for name in (verb, "complete"):
        monkeypatch.setattr(Batches, name, failing(Unavailable("gone")))
    with caplog.at_level("INFO", "taskserver"), pytest.raises(Unavailable, match="gone"):
        site.run(3 if verb == "complete" else 0)
    logged = {message for message in caplog.messages if "could not be recorded" in message}
    assert logged == {f"task {one} {site.name}.three has ended, which could not be recorded" for one in (1, 2, 3)}
    assert site.columns("status, attempts") == [(1, 1)] * 3 + [(0, 0)] * 2


def test_a_task_whose_finish_fails_is_not_given_back(site: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "SAVE_SECONDS", 0.0)

    def run(n: int) -> None:
        if n:  # the first of a round is started in its turn, the others are started behind it
            monkeypatch.setattr(site.store.finishes, "advance", failing(Unavailable("gone")))

    site.module.does["many"] = run
    site.add("many", *range(4))
    with pytest.raises(Unavailable, match="gone"):
        site.run()
    assert (site.calls(), site.columns("status, attempts")) == ([0, 1], [(1, 1), (0, 0), (0, 0)])
