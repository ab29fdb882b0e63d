"""A claim takes what fills half a second: workers share slow tasks, and a more urgent task waits a moment."""

from __future__ import annotations

from collections import Counter

import pytest

from taskserver.worker.limits import ClaimSize
from tests.support.processes import assert_silent
from tests.support.queues import Queue

TASKS = """
import os
import time

def nap(seconds):
    note(os.getpid())
    time.sleep(seconds)

def number(n, seconds):
    note(n)
    time.sleep(seconds)
"""


def test_it_is_one_at_first_and_grows_to_what_fills_half_a_second() -> None:
    size = ClaimSize(100)
    assert size.next(None) == 1
    size.note(1, 0.05)  # with what an import costs
    seen = []
    for _ in range(4):
        seen.append(size.next(None))
        size.note(seen[-1], seen[-1] * 0.001)
    assert seen == sorted(seen)
    assert (seen[0] < 10, seen[-1]) == (True, 100)


def test_tasks_that_are_slower_make_the_next_claim_smaller_at_once() -> None:
    size = ClaimSize(100)
    for _ in range(5):
        size.note(100, 0.1)
    assert size.next(None) == 100
    size.note(100, 10.0)
    assert size.next(None) == 5
    size.note(5, 50.0)
    assert size.next(None) == 1


@pytest.mark.parametrize(("most", "left", "expected"), [(2, None, 2), (100, 3, 3), (100, 0, 1), (1, 50, 1)])
def test_it_is_never_more_than_the_batch_and_what_the_run_may_still_take(
    most: int, left: int | None, expected: int
) -> None:
    size = ClaimSize(most)
    size.note(1, 0.0001)
    assert size.next(left) == expected


def test_a_batch_of_slow_tasks_is_claimed_as_a_whole_once_it_is_known() -> None:
    size = ClaimSize(100)
    assert size.next(None) == 1
    assert size.want(20)
    assert size.next(None) == 20
    assert not size.want(20)
    size.note(20, 60.0)
    assert size.next(None) == 20
    assert size.next(None) == 1, "no batch was met since"
    assert size.want(20)
    assert size.next(5) == 5
    assert not size.want(20), "the run may take no more"


def test_a_run_that_took_nothing_up_learns_nothing() -> None:
    size = ClaimSize(100)
    size.note(0, 5.0)
    assert size.next(None) == 1


def test_four_workers_share_few_slow_tasks(queue: Queue) -> None:
    for _ in range(16):
        queue.add("tasks.nap", "[0.3]")
    assert_silent(queue.worker("--processes", 4))
    calls = Counter(queue.notes())
    assert (len(calls), sum(calls.values())) == (4, 16)
    assert min(calls.values()) >= 3


def test_slow_tasks_behind_quick_ones_are_left_to_others_after_a_second(queue: Queue) -> None:
    """The claim that took them was as large as the quick ones made it."""
    for number in range(60):
        queue.add("tasks.number", f"[{number}, 0]")
    for _ in range(12):
        queue.add("tasks.nap", "[0.3]")
    result = queue.run_here()
    assert (result.done, result.released >= 6) == (72, True)


def test_a_more_urgent_task_waits_for_few_of_those_before_it(queue: Queue) -> None:
    queue.define(
        "def urgent():\n    from taskserver import TaskServer\n    with TaskServer.from_env(HERE) as server:\n"
        "        server.add_task('tasks.number', [1000, 0], priority=-1000)\n"
    )
    for number in range(40):
        queue.add("tasks.number", f"[{number}, 0.04]")
        if number == 9:
            queue.add("tasks.urgent")
    assert queue.run_here().done == 42
    assert queue.notes().index("1000") - 10 <= 20, "half a second, and some"
