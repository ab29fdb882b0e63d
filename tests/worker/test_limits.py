"""A run's limits: its time and memory, what still fits into it, and how many tasks a claim takes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from taskserver import Reason, RunResult, Stop
from taskserver.worker import limits as limits_module
from taskserver.worker.limits import ClaimSize, Limits, RunLimits
from tests.support.queues import Queue

TASKS = """
import time

def nap(seconds):
    time.sleep(seconds)
    note("slept")
"""


# ---- time and memory


def test_max_time_starts_nothing_that_would_not_fit_and_releases_the_rest(queue: Queue) -> None:
    for _ in range(8):
        queue.add("tasks.nap", "[0.2]")
    result = queue.run_here(max_time=0.5)
    # A third one would, by what the first ones took, end after the time.
    assert 1 <= result.done <= 2
    assert (result.reason, result.taken) == (Reason.MAX_TIME, result.done)
    assert set(queue.rows("status, attempts, claim, due_at, started_at")) == {(0, 0, None, None, None)}
    assert len(queue.notes()) == result.done


def test_max_memory_starts_nothing_once_the_process_is_larger_and_releases_the_rest(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    megabytes = iter([100, 100, 160])
    monkeypatch.setattr(limits_module, "process_megabytes", lambda: next(megabytes, 160))
    queue.add_many([(0, 0)] * 3)
    result = queue.server.run(max_memory=150)
    assert (result.reason, result.taken, result.done) == (Reason.MAX_MEMORY, 1, 1)
    assert queue.server.run(max_memory=150).taken == 0
    assert queue.rows("status, attempts, claim") == [(0, 0, None)] * 2


def test_the_memory_of_this_process_is_known() -> None:
    before = limits_module.process_megabytes()
    more = bytearray(50_000_000)
    assert 40 < limits_module.process_megabytes() - before < 60
    assert len(more) == 50_000_000


def remember(queue: Queue, task: str, seconds: float, times: int, slowest: float) -> None:
    """As if a task had run this many times an hour ago, for so long on average."""
    queue.sql(
        "INSERT INTO jobs_queue_stats (hour, group_id, task, done, ran_seconds, slowest_seconds)"
        f" VALUES ({queue.ago(3600)}, 0, ?, ?, ?, ?)",
        *(task, times, seconds * times, slowest),
    )


def test_a_task_that_took_too_long_of_late_is_left_to_the_next_run(queue: Queue) -> None:
    for args, task in (("[0.6]", "nap"), (None, "note"), ("[0]", "nap")):
        queue.add(f"tasks.{task}", args)
    remember(queue, "tasks.note", 1, 10, 4.5)
    assert queue.run_here(max_time=5).reason is Reason.MAX_TIME
    assert queue.rows("id, status, attempts") == [(2, 0, 0), (3, 0, 0)]
    queue.run_here(max_time=5)  # it begins with that task
    assert queue.rows() == []


# ---- what fits into a run of a minute


LimitsAt = Callable[[float, int], RunLimits]


@pytest.fixture
def limits_at(monkeypatch: pytest.MonkeyPatch) -> LimitsAt:
    """The limits of one run of a minute, after so many seconds and tasks."""
    now, result = 0.0, RunResult()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limits = RunLimits(Limits(max_seconds=60), Stop(), result)

    def at(seconds: float, taken: int) -> RunLimits:
        nonlocal now
        now, result.taken = seconds, taken
        return limits

    return at


@pytest.mark.parametrize(
    ("taken", "elapsed", "seconds", "waited", "fits"),
    [
        (1, 10.0, 49.0, 0.0, True),
        (1, 10.0, 51.0, 0.0, False),
        (1, 5.0, 1000.0, 0.0, True),  # it fits into no run, and is assumed to need nine tenths of one
        (1, 7.0, 1000.0, 0.0, False),
        (1, 59.0, 1000.0, 3600.0, True),  # it has been ready for an hour, and is overtaken all the time
        (0, 59.0, 1000.0, 0.0, True),  # the first of its run
    ],
)
def test_a_task_fits_by_what_those_of_its_name_took(
    limits_at: LimitsAt, taken: int, elapsed: float, seconds: float, waited: float, fits: bool
) -> None:
    limits = limits_at(elapsed, taken)
    assert limits.fits(seconds, waited) is fits
    if not fits:
        assert limits.reason_to_end() is Reason.MAX_TIME


def test_one_call_has_as_many_tasks_as_fit_by_what_they_took_of_late(limits_at: LimitsAt) -> None:
    assert limits_at(0.0, 0).max_together(1000) == 1000  # nothing is known
    assert limits_at(0.0, 0).fits(2.0, 0.0)
    assert limits_at(10.0, 1).max_together(1000) == 25
    assert limits_at(40.0, 11).max_together(1000) == 5  # ten tasks took 4 s each


# ---- how many tasks a claim takes


def test_a_claim_takes_one_task_at_first_and_then_what_fills_half_a_second() -> None:
    size = ClaimSize(100)
    assert size.next(None) == 1
    size.note(1, 0.05)  # with what an import costs
    seen = []
    for _ in range(4):
        seen.append(size.next(None))
        size.note(seen[-1], seen[-1] * 0.001)
    assert seen == sorted(seen)
    assert (seen[0] < 10, seen[-1]) == (True, 100)
    size.note(100, 10.0)  # slower ones make it smaller at once
    assert size.next(None) == 5
    size.note(0, 5.0)  # a claim of which no task was taken up says nothing
    assert size.next(None) == 5


@pytest.mark.parametrize(("most", "left", "expected"), [(2, None, 2), (100, 3, 3), (100, 0, 1)])
def test_a_claim_is_never_more_than_the_batch_and_what_the_run_may_still_take(
    most: int, left: int | None, expected: int
) -> None:
    size = ClaimSize(most)
    size.note(1, 0.0001)
    assert size.next(left) == expected
