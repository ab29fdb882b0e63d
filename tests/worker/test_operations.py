"""What a worker does with a task that is cancelled or rerun meanwhile, and with groups that are paused.

What a rerun makes of a row in any state, with any version, is shown by tests/contract/test_add.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from taskserver import RunResult, TaskServer
from taskserver.model.attempt import Start
from tests.support.databases import EACH_DATABASE
from tests.support.kinds_of_rows import BY_SQL, GOES_ON, STATES, assert_run_again, put_each_state, rerun_by_sql
from tests.support.queues import LAST_GROUP, LONG_AGO, Queue
from tests.support.sites import Site

CODE = """
import time

import taskserver

ran, meanwhile, does = [], None, []

def note(name):
    ran.append(name)
    if name == "first":
        meanwhile()

def wait():
    meanwhile()
    time.sleep(60)

@taskserver.task(timeout=0.3, backoff="fixed:500")
def work(text):
    ran.append(text)
    if does:
        does.pop()()
"""


# ---- cancel and pause


def cancel_amid(site: Site, name: str, *args: Any) -> RunResult:
    """Runs a task that a person cancels meanwhile."""
    task_id = site.add_args(name, args)
    site.module.meanwhile = lambda: site.server.cancel(task_id)
    return site.run()


def assert_cancelled_for_good(site: Site) -> None:
    """No later run brings it back."""
    for _ in range(2):
        assert site.columns("status, error_text, claim, due_at") == [(7, "cancelled", None, None)]
        assert site.run().taken == 0


def test_a_cancel_interrupts_a_running_task_at_its_heartbeat(make_site: Callable[..., Site], queue_dsn: str) -> None:
    site = make_site(queue_dsn, lease=1)
    result = cancel_amid(site, "wait")
    assert (result.cancelled, result.done, result.failed, result.fatal, result.lost) == (1, 0, 0, 0, 0)
    assert site.columns("attempts") == [(1,)]
    assert_cancelled_for_good(site)


def test_a_cancelled_task_that_succeeds_before_its_worker_hears_of_it_is_done(site: Site) -> None:
    assert cancel_amid(site, "note", "first").done == 1
    assert site.columns("status") == []


@pytest.mark.parametrize("status", [0, 1, 3])
def test_a_cancelled_task_is_never_started_nor_retried_if_its_worker_died(site: Site, status: int) -> None:
    task_id = site.add_args("note", ["never"])
    if status == 1:
        (task,) = site.store.claims.claim(1, ()).tasks
        assert site.store.finishes.advance([], Start(task, 10))[1]
    site.rows.set(f"status = {status}")
    assert site.server.cancel(task_id) == 1
    if status == 1:
        assert site.columns("status") == [(1,)]
        site.rows.set(f"due_at = '{LONG_AGO}'")
    site.run()
    assert_cancelled_for_good(site)
    assert site.module.ran == []


def test_a_pause_holds_from_the_next_claim_on(site: Site) -> None:
    def pause() -> None:
        with TaskServer(site.dsn) as operator:
            operator.pause(3)

    site.module.meanwhile = pause
    for name, group_id in (("first", 3), ("of 3", 3), ("of 4", 4)):
        site.add_args("note", [name], group_id=group_id)
    site.run(batch=1)
    assert site.module.ran == ["first", "of 4"]
    assert site.columns("group_id, status") == [(3, 0)]
    site.server.resume(3)
    assert site.run().done == 1


# ---- rerun


@EACH_DATABASE
def test_a_rerun_by_sql_makes_a_row_new_unless_it_runs_or_waits_for_other_tasks(queue: Queue) -> None:
    put_each_state(queue)
    kept = "SELECT status, claim, due_at, started_at FROM jobs_queue WHERE unique_key = ?"
    before = {state: queue.sql(kept, state) for state in GOES_ON}
    for state in STATES:
        rerun_by_sql(queue, [state], state)
    assert_run_again(queue)
    assert {state: queue.sql(kept, state) for state in GOES_ON} == before


def add(site: Site, text: str, **more: Any) -> int:
    return site.server.add_task(f"{site.name}.work", [text], unique_key="index", **more)


def fail(site: Site) -> None:
    raise ValueError


def be_lost(site: Site) -> None:
    """As if its worker had died and its lease had expired."""
    site.rows.set(f"due_at = '{LONG_AGO}'")
    with TaskServer(site.dsn) as other:
        other.run(groups=[LAST_GROUP])
    assert site.rows.one("status", "attempts") == (0, 0)


ENDS: dict[str, Callable[[Site], object]] = {
    "well": lambda site: None,
    "failed": fail,
    "too late": lambda site: time.sleep(30),
    "lost": be_lost,
}
"""How the running attempt ends after its task was changed."""


@pytest.mark.parametrize(
    ("end", "mode", "by_sql"),
    [*((end, "mark", False) for end in ENDS), ("well", "delete", True), ("well", "move", False)],
)
def test_a_running_task_that_is_changed_runs_once_more(
    make_site: Any, queue_dsn: str, end: str, mode: str, by_sql: bool
) -> None:
    site = make_site(queue_dsn, mode=mode)
    task_id = add(site, "old")

    def change() -> None:
        for number in range(1, 11):
            if by_sql:
                site.rows.execute(BY_SQL[site.rows.kind], [f"{site.name}.work", f'["new {number}"]', "index"])
            else:
                assert add(site, f"new {number}", rerun=True) == task_id
        assert site.columns("status, attempts, started_at IS NOT NULL") == [(1, 0, 1)]  # it still runs
        ENDS[end](site)

    site.module.does.append(change)
    site.run()
    assert site.module.ran == ["old", "new 10"]
    columns = "status, attempts, args, error_text"
    left = [(2, 1, '["new 10"]', None)]
    assert site.columns(columns) == (left if mode == "mark" else [])
    assert site.columns(columns, "jobs_queue_done") == (left if mode == "move" else [])
