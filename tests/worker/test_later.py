"""A task that cannot run now: `raise taskserver.Later(delay=…)` waits, and counts no attempt and no failure."""

from __future__ import annotations

from typing import Any

import pytest

from taskserver.model.task import Status
from tests.support.queues import Queue
from tests.support.sites import Site

CODE = """
import taskserver
from taskserver import task

calls = []
later = {"message": "the bank is closed", "delay": 600}

def wait():
    if later:
        raise taskserver.Later(later["message"], delay=later["delay"])
    calls.append("wait")

@task(max_attempts=1)
def once(): wait()

@task(transactional=True)
def transfer():
    taskserver.connection().cursor().execute("UPDATE jobs_queue_stats SET done = 77")
    wait()
"""
STATE = "status, attempts, claim, error_text"


@pytest.mark.parametrize("name", ["wait", "once", "transfer"])
def test_it_waits_and_counts_no_attempt_and_no_failure(site: Site, name: str, caplog: Any) -> None:
    failed: list[object] = []
    site.server.settings = site.server.settings._replace(on_failure=failed.append)
    site.add_args(name)
    with caplog.at_level("INFO", "taskserver"):
        result = site.run()
    assert (result.taken, result.postponed, result.done, result.failed, result.fatal) == (1, 1, 0, 0, 0)
    assert site.columns(STATE) == [(Status.WAITING, 0, None, "postponed: the bank is closed")]
    assert site.rows.seconds_from_now(site.rows.one("due_at")) == pytest.approx(600, abs=30)
    assert failed == []
    assert sum(one.attempts + one.failed + one.fatal for one in site.server.stats()) == 0
    assert [record.levelname for record in caplog.records if "postponed" in record.message] == ["INFO", "INFO"]
    assert [run.failed for run in site.server.status().runs] == [0]
    site.module.later = None
    site.rows.set("due_at = created_at")
    assert (site.run().done, site.module.calls) == (1, ["wait"])
    assert [(one.begun, one.attempts, one.done) for one in site.server.stats()] == [(1, 1, 1)]


def test_it_may_wait_any_number_of_times_and_keeps_the_attempts_that_failed_before(site: Site) -> None:
    site.add_args("wait")
    site.rows.set("attempts = 9, started_at = created_at")
    for _ in range(3):
        assert site.run().postponed == 1
        site.rows.set("due_at = created_at")
    assert site.columns("status, attempts") == [(Status.WAITING, 9)]


def test_the_log_and_the_commands_say_that_it_is_postponed(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    queue.define("import taskserver\n\ndef later(): raise taskserver.Later('at night', delay=600)\n")
    queue.add("tasks.later")
    with caplog.at_level("INFO", "taskserver"):
        queue.run_here()
    assert "is postponed: at night; it runs again in 600 s" in caplog.text
    assert "postponed: at night" in queue.here("list").stdout
    assert queue.here("check").returncode == 0
    assert queue.here("run", 1).stdout.startswith("task 1 asked to run later, which counts no attempt: it will run at ")
