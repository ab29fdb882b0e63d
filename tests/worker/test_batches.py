"""Callables that take several tasks at once, `@task(batch=N)`: one start, one call and one finish for all of them.

What a batch has in common with a round is shown by test_several_at_once.py, what kills and races do to it by
tests/process/test_several_at_once.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from taskserver import Fatal, Retry, Stop
from taskserver.model.task import Status
from taskserver.model.task_options import MAX_TASKS_TOGETHER
from taskserver.worker import batch, limits, preparing
from taskserver.worker.result import Reason
from tests.support.sites import NumberedSite

CODE = """
from taskserver import task

calls = []
rescued = []
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

def rescue(error, **kwargs):
    rescued.append((type(error).__name__, kwargs))
    return noted("rescue", [kwargs])

@task(batch=5, max_attempts=1, on_fatal=rescue)
def rescuable(items): return noted("rescuable", items)

@task(batch=5, timeout=0.2)
def quick(items): return noted("quick", items)

@task(batch=5)
def none_at_all(): pass

def single(**kwargs): return noted("single", [kwargs])
"""


class Batch(NumberedSite):
    def add_text(self, name: str, args: str | None) -> None:
        """As SQL adds it."""
        text = "NULL" if args is None else f"'{args}'"
        self.rows.execute(f"INSERT INTO jobs_queue (task, args) VALUES ('{self.name}.{name}', {text})")

    def calls(self) -> list[tuple[str, list[Any]]]:
        """What was called since this was asked, with the numbers of its tasks."""
        calls = [(name, [item["n"] for item in items]) for name, items in self.module.calls]
        self.module.calls.clear()
        return calls

    def numbers(self) -> list[list[int]]:
        return [numbers for _, numbers in self.calls()]


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


@pytest.mark.parametrize("is_imported", [False, True], ids=["imported by the run", "imported before"])
def test_tasks_of_one_name_are_done_by_one_call_in_their_order(any_site: Batch, is_imported: bool) -> None:
    site, mode = any_site, any_site.mode
    assert not is_imported or site.module
    site.add("many", *range(40))
    result = site.run()
    assert (result.taken, result.done, result.reason) == (40, 40, Reason.EMPTY)
    assert (site.numbers(), site.figures()) == ([list(range(40))], (40, 40, 40, 0, 0))
    table = "jobs_queue_done" if mode == "move" else "jobs_queue"
    expected = [] if mode == "delete" else [(2, 1, None, None, None)] * 40
    assert site.columns("status, attempts, claim, due_at, error_text", table) == expected
    assert mode == "mark" or site.columns("id") == []


def test_at_most_as_many_as_its_batch_says_are_called_at_once(site: Batch) -> None:
    site.add("five", *range(12))
    assert site.run().done == 12
    assert site.numbers() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
    site.add("many", *range(MAX_TASKS_TOGETHER + 1))
    assert site.run(batch=1000).done == MAX_TASKS_TOGETHER + 1
    assert [len(numbers) for numbers in site.numbers()] == [MAX_TASKS_TOGETHER, 1]


def test_a_call_has_the_turn_of_its_first_task_wherever_the_others_stand_in_the_claim(site: Batch) -> None:
    for number, name in enumerate(["single", "five", "many", "single", "many", "five"]):
        site.add(name, number)
    assert site.run().done == 6
    assert site.calls() == [("single", [0]), ("five", [1, 5]), ("many", [2, 4]), ("single", [3])]


def test_an_item_is_what_the_arguments_of_its_row_say(site: Batch) -> None:
    long = "x" * 20_000
    for text in ('{"n": 1}', "[1, 2]", "[]", None, "null", "{}", f'["{long}"]'):
        site.add_text("many", text)
    assert site.run().done == 7
    assert site.module.calls == [("many", [{"n": 1}, [1, 2], [], {}, {}, {}, [long]])]


def test_a_bad_row_becomes_fatal_by_itself_and_all_do_of_a_callable_that_takes_no_list(site: Batch) -> None:
    site.add("many", 0)
    for text in ("{", '"a"', "5"):
        site.add_text("many", text)
    site.add("many", 1)
    site.add("many", 2, max_attempts=1)
    site.rows.set("max_attempts = 0 WHERE id = 6")
    result = site.run()
    assert (result.taken, result.done, result.fatal, site.numbers()) == (6, 2, 4, [[0, 1]])
    assert (site.columns("status, attempts"), site.figures()) == ([(4, 0)] * 4, (2, 2, 2, 0, 4))
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


def test_a_call_gets_no_more_arguments_than_its_share_of_memory(site: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_CALL_BYTES", 25)  # of three tasks
    site.add("many", *range(7))
    site.add_text("many", '{"n": 7, "more": "than a share"}')
    site.add("many", 8)
    assert site.run().done == 9
    assert site.numbers() == [[0, 1, 2], [3, 4, 5], [6], [7], [8]]


@pytest.mark.usefixtures("whole_claims")
def test_a_call_gets_no_more_tasks_than_fit_into_the_time(site: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.RunLimits, "max_together", lambda _, most: min(most, 3))
    site.add("five", *range(7))
    assert site.run().done == 7
    assert site.numbers() == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_row_too_large_for_memory_fails_by_itself(site: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(text: str) -> Any:
        if text == '{"n":2}':
            raise MemoryError
        return json.loads(text)

    for module in (batch, preparing):
        monkeypatch.setattr(module, "read_item", read)
    site.add("five", *range(5))
    result = site.run()
    assert (result.done, result.failed, result.taken) == (4, 1, 5)
    assert site.columns("status, attempts") == [(Status.ERROR, 1)]
    assert site.first_lines()[0].startswith("MemoryError: its arguments, 7 bytes as JSON, do not fit")


# ---- the call raises


def test_a_call_that_raises_is_made_again_for_each_task_alone(any_site: Batch) -> None:
    """The second start of each is counted before it is called."""
    site, mode = any_site, any_site.mode
    seen = []

    def do(items: Any) -> None:
        seen.append([attempts for status, attempts in site.columns("status, attempts") if status == 1])
        bad_one(3)(items)

    site.module.does["many"] = do
    site.add("many", *range(5))
    result = site.run()
    assert (result.taken, result.done, result.failed, result.fatal) == (5, 4, 1, 0)
    assert site.numbers() == [[0, 1, 2, 3, 4], [0], [1], [2], [3], [4]]
    assert site.figures() == (5, 10, 4, 6, 0)
    assert seen == [[1] * 5, *([2] + [1] * waiting for waiting in (4, 3, 2, 1, 0))]
    table = "jobs_queue_done" if mode == "move" else "jobs_queue"
    assert site.columns("attempts", table) == [(2,)] * {"delete": 1, "move": 4, "mark": 5}[mode]
    [(attempts, text)] = site.rows.execute("SELECT attempts, error_text FROM jobs_queue WHERE status = 3")
    assert (attempts, text.partition("\n")[0]) == (2, "ValueError: bad 3")


def test_what_a_call_did_to_its_items_is_not_seen_by_the_second_one(site: Batch) -> None:
    def do(items: Any) -> None:
        for item in items:
            item["n"] += 100
        if len(items) > 1:
            items.clear()
            raise ValueError

    site.module.does["many"] = do
    site.add("many", 1, 2)
    assert site.run().done == 2
    assert [items for _, items in site.module.calls[1:]] == [[{"n": 101}], [{"n": 102}]]  # as noted, and changed then


@pytest.mark.parametrize("error", [Retry("r", delay=3), Fatal("f"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_whatever_a_call_raises_each_is_called_alone(site: Batch, error: BaseException) -> None:
    site.module.does["many"] = once_together(raising(error))
    site.add("many", 1, 2, 3)
    assert (site.run().done, site.numbers()) == (3, [[1, 2, 3], [1], [2], [3]])


def test_tasks_at_their_limit_become_fatal_with_the_error_of_the_call(site: Batch) -> None:
    site.module.does["once"] = bad_one(1)
    site.add("once", *range(3))
    site.rows.set("max_attempts = 2 WHERE id = 3")
    result = site.run()
    assert (result.done, result.fatal, site.numbers()) == (1, 2, [[0, 1, 2], [2]])
    assert (site.columns("status, attempts"), site.first_lines()) == ([(4, 1)] * 2, ["ValueError: bad 1"] * 2)
    assert site.figures() == (3, 4, 1, 3, 2)


def test_on_fatal_is_called_for_each_with_its_own_arguments(site: Batch) -> None:
    site.module.does["rescuable"] = raising(ValueError("no"))
    site.module.does["rescue"] = bad_one(1)
    site.add("rescuable", *range(3))
    result = site.run()
    assert (result.done, result.fatal) == (2, 1)
    assert site.module.rescued == [("ValueError", {"n": n}) for n in range(3)]
    [(text,)] = site.columns("error_text")
    assert "ValueError: no" in text
    assert "ValueError: bad 1" in text


def test_a_timeout_holds_for_the_whole_call(site: Batch) -> None:
    site.module.does["quick"] = once_together(lambda items: time.sleep(30))
    site.add("quick", 0, 1)
    result = site.run()
    assert (result.done, result.failed, site.numbers()) == (2, 0, [[0, 1], [0], [1]])
    assert site.figures() == (2, 4, 2, 2, 0)


def test_tasks_fail_with_their_call_if_the_run_has_to_end_meanwhile(site: Batch) -> None:
    stop = Stop()

    def do(items: Any) -> None:
        stop.ask()
        raise Fatal("all of it")

    site.module.does["many"] = do
    site.add("many", *range(3))
    site.rows.set("max_attempts = 1 WHERE id = 2")
    result = site.run(stop=stop)
    assert (result.failed, result.fatal, result.reason) == (2, 1, Reason.STOPPED)
    assert site.columns("status, attempts") == [(3, 1), (4, 1), (3, 1)]
    assert (set(site.first_lines()), len(site.calls())) == ({"Fatal: all of it"}, 1)


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_limit_that_one_task_has_is_not_that_of_the_tasks_beside_it(site: Batch, is_imported: bool) -> None:
    site.file.write_text(site.file.read_text() + "\ndef fail(items): raise ValueError\ndoes['many'] = fail\n")
    assert not is_imported or site.module
    site.add("many", 0, max_attempts=3)
    site.add("many", 1, 2)
    assert site.run().failed == 3
    assert site.columns("max_attempts") == [(3,), (10,), (10,)]
