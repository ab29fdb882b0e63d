"""What a worker does with a task that a person cancels, and with groups that are paused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskserver import RunResult, TaskServer
from taskserver.model.attempt import Start
from tests.support.queues import LONG_AGO
from tests.support.sites import Site

CODE = """
import time

ran, meanwhile = [], None

def note(name):
    ran.append(name)
    if name == "first":
        meanwhile()

def wait():
    meanwhile()
    time.sleep(60)
"""


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


def test_a_cancel_interrupts_a_running_task_at_its_heartbeat(make_site: Callable[..., Site], site_dsn: str) -> None:
    site = make_site(site_dsn, lease=1)
    result = cancel_amid(site, "wait")
    assert (result.cancelled, result.done, result.failed, result.fatal, result.lost) == (1, 0, 0, 0, 0)
    assert site.columns("attempts") == [(1,)]
    assert_cancelled_for_good(site)


def test_a_cancelled_task_that_succeeds_before_its_worker_hears_of_it_is_done(site: Site) -> None:
    assert cancel_amid(site, "note", "first").done == 1
    assert site.columns("status") == []


def test_a_cancelled_task_whose_worker_died_is_never_retried(site: Site) -> None:
    site.add_args("note", ["never"])
    (task,) = site.store.claims.claim(1, ()).tasks
    assert site.store.finishes.advance([], Start(task, 10))[1]
    assert site.server.cancel(task.id) == 1
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
