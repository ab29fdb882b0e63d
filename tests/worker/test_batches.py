"""Callables that take several tasks at once, `@task(batch=N)`: one start, one call and one finish for all of them.

What a batch has in common with a round is shown by test_shared_commits.py, what kills and races do to it by
tests/process/test_several_at_once.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from taskserver import Fatal, Later, Retry, Stop
from taskserver.messages.log_records import ONCE_AN_HOUR
from taskserver.model.task import CANCELLED
from taskserver.worker import batch, limits
from taskserver.worker.result import Reason
from tests.support.processes import wait_until
from tests.support.sites import NumberedSite

CODE = """
from taskserver import task

calls = []
does = {}

def noted(name, items):
    calls.append((name, list(items)))
    return does.get(name, lambda items: None)(items)

@task(batch=5)
def five(items): return noted("five", items)

@task(batch=500, backoff="fixed:50")
def many(items): return noted("many", items)

@task(batch=5, max_attempts=1)
def once(items): return noted("once", items)

@task(batch=5, timeout=0.2)
def quick(items): return noted("quick", items)

@task(batch=5)
def none_at_all(): pass
"""


class Batch(NumberedSite):
    def add_text(self, name: str, args: str) -> None:
        """As SQL adds it."""
        self.rows.execute(f"INSERT INTO jobs_queue (task, args) VALUES ('{self.name}.{name}', {args})")

    def numbers(self) -> list[list[int]]:
        """Of the tasks of each call since this was asked."""
        numbers = [[item["n"] for item in items] for _, items in self.module.calls]
        self.module.calls.clear()
        return numbers


SITE = Batch


def raising(error: BaseException) -> Callable[[Any], None]:
    def do(items: Any) -> None:
        raise error

    return do


def once_together(does: Callable[[Any], None]) -> Callable[[Any], None]:
    """It does this if it is called with several items, and nothing with one."""
    return lambda items: does(items) if len(items) > 1 else None


def bad_one(number: int) -> Callable[[Any], None]:
    """What a call does of which one item is bad."""

    def do(items: Any) -> None:
        if any(item["n"] == number for item in items):
            raise ValueError(f"bad {number}")

    return do


# ---- one call


def test_tasks_of_one_name_are_done_by_one_call_in_their_order(any_site: Batch) -> None:
    site, mode = any_site, any_site.mode
    for _ in ("imported by the run", "imported before"):
        site.add("many", *range(40))
        result = site.run()
        assert (result.taken, result.done, result.reason) == (40, 40, Reason.EMPTY)
        assert site.numbers() == [list(range(40))]
    assert site.figures() == (80, 80, 80, 0, 0)
    table = "jobs_queue_done" if mode == "move" else "jobs_queue"
    expected = [] if mode == "delete" else [(2, 1, None, None, None)] * 80
    assert site.columns("status, attempts, claim, due_at, error_text", table) == expected


@pytest.mark.usefixtures("whole_claims")
def test_a_call_gets_no_more_tasks_than_its_option_its_time_and_its_memory_allow(
    site: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("five", *range(12))
    assert site.run().done == 12
    assert site.numbers() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    monkeypatch.setattr(batch, "MAX_CALL_BYTES", 25)  # of three tasks
    site.add("many", *range(4))
    site.add_text("many", '\'{"n": 7, "more": "than a share"}\'')
    assert site.run().done == 5
    assert site.numbers() == [[0, 1, 2], [3], [7]]
    monkeypatch.setattr(limits.RunLimits, "max_together", lambda _, most: min(most, 2))
    site.add("five", *range(3))
    assert (site.run().done, site.numbers()) == (3, [[0, 1], [2]])


def test_an_item_is_what_the_arguments_of_its_row_say(site: Batch) -> None:
    long = "x" * 20_000
    for text in ("'{\"n\": 1}'", "'[1, 2]'", "NULL", "'null'", f"'[\"{long}\"]'"):
        site.add_text("many", text)
    assert site.run().done == 5
    assert site.module.calls == [("many", [{"n": 1}, [1, 2], {}, {}, [long]])]


def test_a_bad_row_becomes_fatal_by_itself_and_all_do_of_a_callable_that_takes_no_list(site: Batch) -> None:
    site.add("many", 0)
    site.add_text("many", "'{'")
    site.add("many", 1, 2)
    site.rows.set("max_attempts = 0 WHERE id = 4")
    result = site.run()
    assert (result.taken, result.done, result.fatal, site.numbers()) == (4, 2, 2, [[0, 1]])
    assert (site.columns("status, attempts"), site.figures()) == ([(4, 0)] * 2, (2, 2, 2, 0, 2))
    site.add("none_at_all", 1, 2)
    assert site.run().fatal == 2
    for line in site.first_lines()[-2:]:
        assert line.startswith("BadTask: ")
        assert line.endswith(": with @task(batch=…) it gets one list")


@pytest.mark.usefixtures("whole_claims")
def test_tasks_that_were_started_before_run_alone(site: Batch) -> None:
    site.add("many", *range(5))
    site.rows.set("attempts = 1 WHERE id IN (1, 3)")
    assert site.run().done == 5
    assert site.numbers() == [[0], [1, 3, 4], [2]]


# ---- what it returns


def test_each_task_ends_as_its_outcome_says(make_site: Any, queue_dsn: str) -> None:
    site = make_site(queue_dsn, mode="mark")
    outcomes = [None, Retry("later", delay=1000), Fatal("never"), ValueError("now"), "text", Later(delay=600)]
    site.module.does["many"] = lambda items: outcomes
    site.add("many", *range(len(outcomes)))
    result = site.run()
    assert (result.done, result.failed, result.fatal, result.postponed, len(site.numbers())) == (2, 2, 1, 1, 1)
    assert site.columns("status, attempts") == [(2, 1), (3, 1), (4, 1), (3, 1), (2, 1), (5, 0)]
    assert site.first_lines() == ["", "Retry: later", "Fatal: never", "ValueError: now", "", "postponed"]
    due = dict(site.rows.execute("SELECT id, due_at FROM jobs_queue WHERE status = 3"))
    assert site.rows.seconds_from_now(due[2]) == pytest.approx(1000, abs=30)
    assert site.rows.seconds_from_now(due[4]) == pytest.approx(52, abs=30)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ([None], "a list of 1 for 3 tasks"),
        ("abc", "str"),
        ((None for _ in range(3)), "a value of type generator, which nobody runs"),
    ],
    ids=["too short", "text", "generator"],
)
def test_invalid_outcomes_count_as_a_failed_call(
    site: Batch, caplog: pytest.LogCaptureFixture, returned: object, text: str
) -> None:
    site.module.does["once"] = lambda items: returned
    site.add("once", *range(3))
    assert (site.run().fatal, len(site.numbers())) == (3, 1)
    assert all(line.startswith(f"WrongOutcomes: it returned {text}") for line in site.first_lines())
    (logged,) = [record for record in caplog.records if hasattr(record, ONCE_AN_HOUR)]
    assert f"others of its call are called again alone: WrongOutcomes: it returned {text}" in logged.getMessage()


def test_a_stage_with_a_batch_passes_on_what_it_returned_for_each_task(site: Batch) -> None:
    site.module.does["many"] = lambda items: [{"n": 10}, "text", "anything"]
    for number in range(2):
        site.server.add_pipeline([f"{site.name}.many", f"{site.name}.five"], {"n": number})
    site.add("many", 2)  # no pipeline, in the same call
    result = site.run(3)
    assert (result.done, result.fatal, len(site.numbers())) == (2, 1, 1)
    assert site.columns("status, stage") == [(0, 1), (4, 0)]
    assert site.columns("args")[0] == ('{"n":10}',)
    assert site.first_lines()[1].startswith("Fatal: what it returned is 'text'")


# ---- the call raises


def test_a_call_that_raises_is_made_again_for_each_task_alone(make_site: Any, queue_dsn: str) -> None:
    site, seen = make_site(queue_dsn, mode="move"), []

    def do(items: Any) -> None:
        """Notes the attempts of all whose turn has not come."""
        seen.append([attempts for status, attempts in site.columns("status, attempts") if status == 1])
        bad_one(3)(items)

    site.module.does["many"] = do
    site.add("many", *range(5))
    result = site.run()
    assert (result.taken, result.done, result.failed, result.fatal) == (5, 4, 1, 0)
    assert site.numbers() == [[0, 1, 2, 3, 4], [0], [1], [2], [3], [4]]
    assert site.figures() == (5, 10, 4, 6, 0)
    assert seen == [[1] * 5, *([2] + [1] * waiting for waiting in (4, 3, 2, 1, 0))]
    assert site.columns("attempts", "jobs_queue_done") == [(2,)] * 4
    assert (site.columns("status, attempts"), site.first_lines()) == ([(3, 2)], ["ValueError: bad 3"])


def test_a_second_call_gets_the_items_as_they_were(site: Batch) -> None:
    def do(items: Any) -> None:
        items[0]["n"] += 100
        if len(items) > 1:
            raise ValueError

    site.module.does["many"] = do
    site.add("many", 1, 2)
    assert site.run().done == 2
    assert site.numbers() == [[101, 2], [101], [102]]  # as noted, and changed then


@pytest.mark.parametrize("error", [Retry("r", delay=3), Fatal("f"), SystemExit(3)], ids=repr)
def test_after_any_error_of_the_call_each_task_is_called_alone(site: Batch, error: BaseException) -> None:
    site.module.does["many"] = once_together(raising(error))
    site.add("many", 1, 2, 3)
    assert (site.run().done, site.numbers()) == (3, [[1, 2, 3], [1], [2], [3]])


def test_a_call_that_raises_later_postpones_all(site: Batch) -> None:
    site.module.does["many"] = raising(Later("at night", delay=600))
    site.add("many", 1, 2, 3)
    assert (site.run().postponed, site.numbers()) == (3, [[1, 2, 3]])
    assert site.columns("status, attempts") == [(5, 0)] * 3


def test_tasks_at_their_limit_become_fatal_with_the_error_of_the_call(site: Batch) -> None:
    site.module.does["once"] = bad_one(1)
    site.add("once", *range(3))
    site.rows.set("max_attempts = 2 WHERE id = 3")
    result = site.run()
    assert (result.done, result.fatal, site.numbers()) == (1, 2, [[0, 1, 2], [2]])
    assert (site.columns("status, attempts"), site.first_lines()) == ([(4, 1)] * 2, ["ValueError: bad 1"] * 2)
    assert site.figures() == (3, 4, 1, 3, 2)


def test_a_limit_of_one_task_does_not_hold_for_others_of_its_call(site: Batch) -> None:
    site.module.does["many"] = raising(ValueError())
    site.add("many", 0, max_attempts=3)
    site.add("many", 1, 2)
    assert site.run().failed == 3
    assert site.columns("max_attempts") == [(3,), (10,), (10,)]


def test_a_timeout_holds_for_the_whole_call(site: Batch) -> None:
    site.module.does["quick"] = once_together(lambda items: time.sleep(30))
    site.add("quick", 0, 1)
    result = site.run()
    assert (result.done, result.failed, site.numbers()) == (2, 0, [[0, 1], [0], [1]])


def test_all_tasks_fail_with_their_call_if_the_run_must_end(site: Batch) -> None:
    stop = Stop()

    def do(items: Any) -> None:
        stop.ask()
        raise Fatal("all of it")

    site.module.does["many"] = do
    site.add("many", *range(3))
    assert (site.run(stop=stop).failed, len(site.numbers())) == (3, 1)
    assert (site.columns("status, attempts"), set(site.first_lines())) == ([(3, 1)] * 3, {"Fatal: all of it"})


# ---- what others do to a task while its call runs


@pytest.mark.parametrize("deed", ["rerun", "cancelled", "taken away"])
def test_a_task_that_others_changed_during_a_call_that_raised_is_not_called_alone(site: Batch, deed: str) -> None:
    name = f"{site.name}.many"

    def do(items: Any) -> None:
        if len(items) == 1:
            return
        if deed == "rerun":
            site.server.add_task(name, {"n": 11}, unique_key="k1", rerun=True)
        elif deed == "cancelled":
            assert site.server.cancel(2) == 1
        else:
            site.rows.set("claim = 5 WHERE id = 2")
        raise ValueError

    site.module.does["many"] = do
    for number in range(3):
        site.server.add_task(name, {"n": number}, unique_key=f"k{number}")
    result = site.run()
    assert (result.lost, result.cancelled) == (deed == "taken away", deed == "cancelled")
    assert site.numbers() == [[0, 1, 2], [0], [2], *([[11]] if deed == "rerun" else [])]
    left: dict[str, list[Any]] = {"rerun": [], "cancelled": [(2, 7, None)], "taken away": [(2, 1, 5)]}
    assert site.columns("id, status, claim") == left[deed]


def test_a_task_that_is_cancelled_in_its_call_has_the_others_run_alone(make_site: Any, queue_dsn: str) -> None:
    site = make_site(queue_dsn, lease=1)

    def cancel(items: Any) -> None:
        assert site.server.cancel(2) == 1
        time.sleep(30)

    site.module.does["many"] = once_together(cancel)
    site.add("many", 0, 1, 2)
    result = site.run()
    assert (result.done, result.failed, result.cancelled) == (2, 0, 1)
    assert site.numbers() == [[0, 1, 2], [0], [2]]
    assert site.columns("id, status, error_text") == [(2, 7, CANCELLED)]


# ---- leases


def lease_ends(site: Batch) -> list[Any]:
    """Of the started tasks: instants, which only a renewal moves."""
    rows = site.rows.execute("SELECT due_at FROM jobs_queue WHERE status = 1 AND started_at IS NOT NULL")
    return [due_at for (due_at,) in rows]


def wait_for_renewal(site: Batch) -> None:
    before = max(lease_ends(site))
    wait_until(lambda: min(lease_ends(site)) > before)


def test_a_call_with_a_task_of_one_start_is_not_interrupted_for_another(make_site: Any, queue_dsn: str) -> None:
    site = make_site(queue_dsn, lease=1)

    def do(items: Any) -> None:
        assert site.server.cancel(2) == 1
        wait_for_renewal(site)
        wait_for_renewal(site)  # by now the worker would have interrupted it

    site.module.does["many"] = do
    site.add("many", 0, 1)
    site.add("many", 2, max_attempts=1)
    assert (site.run().done, site.numbers(), site.columns("id")) == (3, [[0, 1, 2]], [])


@pytest.mark.parametrize("is_long", [False, True], ids=["many short ones", "a long one"])
def test_leases_are_renewed_while_tasks_wait_for_their_turn(make_site: Any, queue_dsn: str, is_long: bool) -> None:
    site, least, count = make_site(queue_dsn, lease=1), [], 3 if is_long else 8

    def do(items: Any) -> None:
        if len(items) > 1:
            raise ValueError
        if not is_long:
            time.sleep(0.15)
        elif items[0]["n"] == 0:
            wait_for_renewal(site)
        least.append(min(site.rows.seconds_from_now(due_at) for due_at in lease_ends(site)))

    site.module.does["many"] = do
    site.add("many", *range(count))
    result = site.run()
    assert (result.done, result.lost, len(least)) == (count, 0, count)
    assert min(least) > 0
