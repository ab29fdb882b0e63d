"""Leases and claims in whole runs: tasks that are lost, taken over or given back, and completions that come late.

SQL moves the clock, and does what another worker or a person does while a task runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from taskserver import Reason
from taskserver.worker.finishing import Finishing
from taskserver.worker.maintenance import LOST_TEXT
from tests.support.queues import LAST_GROUP, Queue

"""Without a task: a run for it takes back what is due, and runs nothing."""
SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "10", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends, is renewed or comes back while a test looks, unless it says so."""
acts: list[Callable[[], object]] = []
"""What a test does while its tasks run, one for each."""
TASKS = """
import time

from taskserver import task
from tests.worker.test_leases import acts

def act(end=""):
    acts.pop(0)()
    note(f"acted{end}")
    if end == "fail":
        raise ValueError("too late")

@task(max_attempts=1)
def once():
    note("once")

def tick():
    note("tick")
    time.sleep(0.15)
"""


def lose(queue: Queue) -> None:
    """As if a worker had died in these tasks long ago."""
    queue.sql(f"UPDATE jobs_queue SET status = 1, attempts = attempts + 1, claim = 7, started_at = {queue.ago(900)}")
    queue.end_leases()


def give_up(queue: Queue) -> None:
    """The lease of the running task ends, and another worker takes it for lost."""
    queue.end_leases()
    queue.server.reclaim()


# ---- tasks whose worker died


def test_a_lost_task_has_used_its_attempt_and_waits_or_is_fatal_and_an_unstarted_one_is_as_before(queue: Queue) -> None:
    for attempts, most in [(0, None), (8, None), (9, None), (0, 1), (2, 2)]:
        queue.sql("INSERT INTO jobs_queue (task, attempts, max_attempts) VALUES ('tasks.note', ?, ?)", attempts, most)
    lose(queue)
    queue.sql("UPDATE jobs_queue SET attempts = 2, started_at = NULL WHERE id = 5")  # was claimed, and not started
    result = queue.run_here(groups=[LAST_GROUP])
    assert result.reason is Reason.EMPTY
    wait = queue.seconds_between("updated_at", "due_at")
    found = queue.rows(f"status, attempts, claim, error_text, {wait}")
    ends = [(3, 1, None), (3, 9, None), (4, 10, None), (4, 1, 7)]  # a completion that comes late names its claim
    assert [row[:4] for row in found] == [*((*end, LOST_TEXT) for end in ends), (0, 2, None, None)]
    assert [bool(wait) and 499.9 <= float(wait) <= 550.1 for *_, wait in found] == [True] * 2 + [False] * 3


def test_a_lost_task_whose_callable_may_start_once_never_runs_before_a_person_retries_it(queue: Queue) -> None:
    """Who takes it back reads no code."""
    queue.add("tasks.once")
    lose(queue)
    for _ in range(2):
        queue.run_here()
        queue.end_backoffs()
    words = "BadTask: it was started once, as often as it may: client.py retry 1 runs it again"
    assert queue.rows("status, attempts, error_text") == [(4, 1, f"{LOST_TEXT}\n{words}")]
    assert queue.notes() == []
    assert queue.server.retry(1) == 1
    queue.run_here()
    assert (queue.notes(), queue.rows()) == (["once"], [])


def test_a_half_uploaded_module_is_tried_again_after_its_backoff_and_runs_once_it_is_whole(queue: Queue) -> None:
    queue.define("def half(:\n")
    for _ in range(2):
        queue.add("tasks.note")
    assert queue.run_here().failed == 2
    wait = queue.seconds_between("updated_at", "due_at")
    for status, attempts, claim, error_text, seconds in queue.rows(f"status, attempts, claim, error_text, {wait}"):
        assert (status, attempts, claim) == (3, 1, None)
        assert "SyntaxError" in error_text.partition("\n")[0]
        assert 499.9 <= float(seconds) <= 550.1
    queue.define("")
    queue.run_here()
    assert queue.notes() == [], "before its backoff ended"
    queue.end_backoffs()
    queue.run_here(mode="mark")
    assert queue.rows("status, attempts, error_text") == [(2, 2, None)] * 2
    assert queue.notes() == ["noted"] * 2


# ---- tasks that a worker holds and does not run


def test_between_tasks_a_worker_gives_back_what_it_has_held_for_half_a_lease(queue: Queue, whole_claims: None) -> None:
    for _ in range(6):
        queue.add("tasks.tick")
    result = queue.run_here(mode="mark", lease=1)
    assert (result.taken, result.done, result.lost, result.released > 0) == (6, 6, 0, True)
    assert queue.notes() == ["tick"] * 6
    assert queue.rows("status, attempts") == [(2, 1)] * 6


# ---- a claim that is gone


@pytest.mark.parametrize("end", ["", "fail"])
def test_a_worker_whose_task_another_has_taken_over_changes_nothing_in_it(
    queue: Queue, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    queue.add("tasks.act", f'["{end}"]')
    before: list[object] = []

    def take_over() -> None:
        queue.sql(f"UPDATE jobs_queue SET claim = 7, attempts = 2, started_at = {queue.now}")
        before.extend(queue.rows())

    acts[:] = [take_over]
    result = queue.run_here()
    assert (result.lost, result.done, result.failed) == (1, 0, 0)
    assert queue.rows() == before
    assert "task 1 tasks.act: the lease was lost while it ran" in caplog.text


@pytest.mark.usefixtures("whole_claims")
def test_a_claimed_task_that_another_worker_took_over_is_not_started(queue: Queue) -> None:
    queue.add("tasks.act")
    queue.add("tasks.note")
    acts[:] = [lambda: queue.sql("UPDATE jobs_queue SET claim = 7, attempts = 1, started_at = created_at WHERE id = 2")]
    result = queue.run_here()
    assert (result.taken, result.done, queue.notes()) == (2, 1, ["acted"])
    assert queue.rows("id, status, attempts, claim") == [(2, 1, 1, 7)]


def test_a_task_that_was_taken_over_while_its_module_was_imported_is_not_called(queue: Queue) -> None:
    code = "from tasks import acts, note\nacts.pop(0)()\n\ndef called(): note('called')\n"
    queue.deployment.write_tasks(code, "slow.py")
    queue.add("slow.called")
    acts[:] = [lambda: queue.sql("UPDATE jobs_queue SET claim = 7")]
    result = queue.run_here(modules="tasks,slow")
    assert (result.lost, queue.notes()) == (1, [])
    assert queue.rows("status, attempts, claim") == [(1, 1, 7)]


def test_a_worker_whose_lease_ended_and_was_not_taken_may_still_finish(queue: Queue) -> None:
    queue.add("tasks.act")
    acts[:] = [queue.end_leases]
    assert queue.run_here().done == 1
    assert queue.rows() == []


def test_a_start_whose_answer_came_late_is_checked_before_the_code_runs(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile another worker may have taken the task over."""
    save_and_start = Finishing.save_and_start

    def start_late(*args: Any) -> set[int]:
        started = save_and_start(*args)
        if 2 in started:
            queue.sql("UPDATE jobs_queue SET claim = 7 WHERE id = 2")
            monkeypatch.setattr(
                "taskserver.worker.attempts.time", SimpleNamespace(monotonic=lambda: time.monotonic() + 1000)
            )
        return started

    monkeypatch.setattr(Finishing, "save_and_start", start_late)
    for text in ("in time", "late"):
        queue.add("tasks.note", f'["{text}"]')
    assert queue.run_here().taken == 2
    assert (queue.notes(), queue.rows("id, claim")) == (["in time"], [(2, 7)])


# ---- at most once, and a completion that comes late


def test_the_completion_of_a_worker_that_was_taken_for_dead_is_accepted(queue: Queue) -> None:
    queue.add("tasks.act")
    queue.sql("UPDATE jobs_queue SET max_attempts = 1")
    seen: list[object] = []

    def take_for_dead() -> None:
        give_up(queue)
        seen.extend(queue.rows("status, error_text"))

    acts[:] = [take_for_dead]
    result = queue.run_here(mode="mark")
    assert seen == [(4, LOST_TEXT)]
    assert (result.done, result.fatal, result.lost) == (1, 0, 0)
    assert queue.rows("status, attempts, claim, due_at, error_text") == [(2, 1, None, None, None)]


MEANWHILE = {
    "retried": "UPDATE jobs_queue SET status = 0",
    "deleted": "DELETE FROM jobs_queue",
    "cancelled with a reason": "UPDATE jobs_queue SET error_text = 'cancelled by hand'",
    "retried, and lost again by another worker": "UPDATE jobs_queue SET claim = 7",
}


@pytest.mark.parametrize("statement", MEANWHILE.values(), ids=MEANWHILE)
def test_a_completion_is_not_accepted_once_a_person_has_retried_or_cancelled_the_task(
    queue: Queue, statement: str
) -> None:
    queue.add("tasks.act")
    queue.sql("UPDATE jobs_queue SET max_attempts = 1")
    before: list[object] = []

    def act() -> None:
        give_up(queue)
        assert queue.statuses() == [4]
        queue.sql(statement)
        before.extend(queue.rows())

    acts[:] = [act]
    result = queue.run_here(1)
    assert (result.lost, result.done) == (1, 0)
    assert queue.rows() == before
