"""Callables that take several tasks at once, `@task(batch=N)`: one start, one call and one finish for all of them.

Most tests run workers in this process, on tasks that note what they were called with and do what the test says; what
kills, stops or races workers does so to real processes.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import pytest

from taskserver import DatabaseError, Fatal, Retry, Stop
from taskserver.errors import TooLong
from taskserver.messages.log_records import ONCE_AN_HOUR
from taskserver.model.attempt import Finish
from taskserver.model.task import CANCELLED, Claim, ClaimedTask, Status
from taskserver.model.task_options import MAX_TASKS_TOGETHER
from taskserver.stores.queue.batches import Batches
from taskserver.worker import batch, limits, preparing
from taskserver.worker.claimed import Claimed
from taskserver.worker.result import Reason
from tests.support.locks import holding
from tests.support.processes import end_of, needs_peak, run_telling_peak, wait_until
from tests.support.proxy import Proxy, contains
from tests.support.queues import Queue
from tests.support.rows import MODES, Rows
from tests.support.servers import MySQLServer
from tests.support.sites import Site

CODE = """
from taskserver import task

calls = []
rescued = []
does = {}

def noted(name, items):
    calls.append((name, list(items)))
    return does.get(name, lambda items: None)(items)

@task(batch=5)
def five(items):
    return noted("five", items)

@task(batch=500, backoff="fixed:50")
def many(items):
    return noted("many", items)

@task(batch=5, max_attempts=1)
def once(items):
    return noted("once", items)

def rescue(error, **kwargs):
    rescued.append((type(error).__name__, kwargs))
    return noted("rescue", [kwargs])

@task(batch=5, max_attempts=1, on_fatal=rescue)
def rescuable(items):
    return noted("rescuable", items)

@task(batch=5, timeout=0.2)
def quick(items):
    return noted("quick", items)

@task(batch=5)
def none_at_all():
    pass

def single(**kwargs):
    return noted("single", [kwargs])
"""


class Packets(Site):
    """Tasks with the arguments {"n": number}."""

    def add(self, name: str, *numbers: int, **more: Any) -> list[int]:
        """Their ids."""
        new = [{"task": f"{self.name}.{name}", "args": {"n": number}, **more} for number in numbers]
        return self.server.add_tasks(new)

    def add_text(self, name: str, args: str | None) -> None:
        """As SQL adds it."""
        text = "NULL" if args is None else f"'{args}'"
        self.rows.execute(f"INSERT INTO jobs_queue (task, args) VALUES ('{self.name}.{name}', {text})")

    def calls(self) -> list[tuple[str, list[Any]]]:
        """What was called since this was asked, with the numbers of its tasks."""
        calls = [(name, [item["n"] for item in items]) for name, items in self.module.calls]
        self.module.calls.clear()
        return calls

    def figures(self) -> tuple[int, ...]:
        """Begun, attempts, done, failed, fatal of all tasks."""
        stats = self.server.stats()
        return tuple(
            sum(getattr(one, name) for one in stats) for name in ("begun", "attempts", "done", "failed", "fatal")
        )


SITE = Packets


def raising(error: BaseException) -> Callable[[Any], None]:
    def do(items: Any) -> None:
        raise error

    return do


def once_together(does: Callable[[Any], None]) -> Callable[[Any], None]:
    """It does this where it is called with several items, and nothing with one alone."""
    return lambda items: does(items) if len(items) > 1 else None


def bad_one(number: int) -> Callable[[Any], None]:
    """What a packet does of which one item is bad."""

    def do(items: Any) -> None:
        if any(item["n"] == number for item in items):
            raise ValueError(f"bad {number}")

    return do


# ---- one call


@pytest.mark.parametrize("is_imported", [False, True], ids=["imported by the run", "imported before"])
def test_tasks_of_one_name_are_done_by_one_call_in_their_order(any_site: Packets, is_imported: bool) -> None:
    site, mode = any_site, any_site.mode
    if is_imported:
        assert site.module
    site.add("many", *range(40))
    result = site.run()
    assert (result.taken, result.done, result.reason) == (40, 40, Reason.EMPTY)
    assert site.calls() == [("many", list(range(40)))]
    assert site.figures() == (40, 40, 40, 0, 0)
    table = "jobs_queue_done" if mode == "move" else "jobs_queue"
    expected = [] if mode == "delete" else [(2, 1, None, None, None)] * 40
    assert site.columns("status, attempts, claim, due_at, error_text", table) == expected
    if mode != "mark":
        assert site.columns("id") == []


def test_at_most_as_many_as_its_batch_says_are_called_at_once(site: Packets) -> None:
    site.add("five", *range(12))
    assert site.run().done == 12
    assert site.calls() == [("five", [0, 1, 2, 3, 4]), ("five", [5, 6, 7, 8, 9]), ("five", [10, 11])]
    site.add("many", *range(MAX_TASKS_TOGETHER + 1))
    assert site.run(batch=1000).done == MAX_TASKS_TOGETHER + 1
    assert [len(numbers) for _, numbers in site.calls()] == [MAX_TASKS_TOGETHER, 1]


def test_a_call_has_the_turn_of_its_first_task_wherever_the_others_stand_in_the_claim(site: Packets) -> None:
    for number, name in enumerate(["single", "five", "many", "single", "many", "five"]):
        site.add(name, number)
    assert site.run().done == 6
    assert site.calls() == [("single", [0]), ("five", [1, 5]), ("many", [2, 4]), ("single", [3])]


def test_an_item_is_what_the_arguments_of_its_row_say(site: Packets) -> None:
    long = "x" * 20_000
    texts = ['{"n": 1}', "[1, 2]", "[]", None, "null", "{}", f'["{long}"]']
    for text in texts:
        site.add_text("many", text)
    assert site.run().done == len(texts)
    assert site.module.calls == [("many", [{"n": 1}, [1, 2], [], {}, {}, {}, [long]])]


def test_a_bad_row_becomes_fatal_by_itself_and_all_do_of_a_callable_that_takes_no_list(site: Packets) -> None:
    site.add("many", 0)
    for text in ("{", '"a"', "5"):
        site.add_text("many", text)
    site.add("many", 1)
    site.add("many", 2)
    site.rows.set("max_attempts = 0 WHERE id = 6")
    result = site.run()
    assert (result.taken, result.done, result.fatal) == (6, 2, 4)
    assert site.calls() == [("many", [0, 1])]
    assert site.columns("status, attempts") == [(4, 0)] * 4
    assert site.figures() == (2, 2, 2, 0, 4)
    site.add("none_at_all", 1, 2)
    assert site.run().fatal == 2
    assert all(line.startswith("BadTask: ") for line in site.first_lines()[-2:])
    assert all(line.endswith(": with @task(batch=…) it gets one list") for line in site.first_lines()[-2:])


def test_tasks_that_were_started_before_run_alone(site: Packets) -> None:
    site.add("many", *range(5))
    site.rows.set("attempts = 1 WHERE id IN (1, 3)")
    assert site.run().done == 5
    assert site.calls() == [("many", [0]), ("many", [1, 3, 4]), ("many", [2])]


@pytest.mark.usefixtures("whole_claims")
def test_a_task_whose_module_was_just_imported_is_called_though_no_other_is_ready(site: Packets) -> None:
    site.add("many", 0)
    site.add_text("many", "{")
    result = site.run()
    assert (result.done, result.fatal, site.calls()) == (1, 1, [("many", [0])])


def test_no_more_are_called_at_once_than_fit_by_what_tasks_and_calls_took_so_far(site: Packets) -> None:
    site.module.does["single"] = lambda items: time.sleep(0.3)
    site.add("single", 0)
    site.add("many", *range(50))
    result = site.run(max_time=1.2)
    assert result.reason == Reason.MAX_TIME or result.done == 51
    _, (_, first), *_ = site.calls()
    assert 1 <= len(first) <= 3
    site.rows.execute("DELETE FROM jobs_queue")
    site.module.does["five"] = lambda items: time.sleep(0.4)
    site.add("five", *range(40))
    result = site.run(max_time=1)
    assert (result.reason, len(site.columns("id"))) == (Reason.MAX_TIME, 40 - result.taken)
    assert [len(numbers) for _, numbers in site.calls()] == [5] * (result.taken // 5)
    assert result.seconds < 1.4  # three calls would not fit


def test_a_call_gets_no_more_arguments_than_its_share_of_memory(site: Packets, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "MAX_CALL_BYTES", 25)  # of three tasks
    site.add("many", *range(7))
    site.add_text("many", '{"n": 7, "more": "than a share"}')
    site.add("many", 8)
    assert site.run().done == 9
    assert [numbers for _, numbers in site.calls()] == [[0, 1, 2], [3, 4, 5], [6], [7], [8]]


@pytest.mark.usefixtures("whole_claims")
def test_tasks_for_which_the_run_has_no_memory_left_are_neither_called_nor_counted(
    site: Packets, monkeypatch: pytest.MonkeyPatch
) -> None:
    megabytes = iter([10, 10, 10, 10])
    monkeypatch.setattr(limits, "process_megabytes", lambda: next(megabytes, 200))
    site.add("many", *range(9))
    result = site.run(max_memory=150)
    [(_, called)] = site.calls()
    assert called == list(range(len(called)))
    assert 1 < len(called) < 4
    assert (result.reason, result.taken, result.released) == (Reason.MAX_MEMORY, len(called), 9 - len(called))
    assert site.columns("status, attempts, claim") == [(0, 0, None)] * (9 - len(called))


@pytest.mark.parametrize(("name", "reads"), [("five", 0), ("five", 1), ("single", 0)])
def test_a_row_that_memory_has_no_room_for_fails_by_itself_and_comes_again(
    site: Packets, monkeypatch: pytest.MonkeyPatch, name: str, reads: int
) -> None:
    """After one read that goes well, the call raises, and for the second call all are read again."""
    left = iter(range(reads))

    def read(text: str) -> Any:
        if text == '{"n":2}' and next(left, None) is None:
            raise MemoryError
        return json.loads(text)

    site.module.does["five"] = once_together(raising(ValueError("all of them"))) if reads else lambda items: None
    site.add(name, *range(5))
    with monkeypatch.context() as full:
        for module in (batch, preparing):
            full.setattr(module, "read_item", read)
        result = site.run()
    assert (result.done, result.failed, result.taken) == (4, 1, 5)
    assert site.first_lines() == [
        "MemoryError: its arguments, 7 bytes as JSON, do not fit into the memory of this worker"
    ]
    assert site.columns("status, attempts") == [(Status.ERROR, 1 + reads)]
    site.rows.set("status = 0, due_at = NULL")
    assert site.run().done == 1


@needs_peak
def test_a_batch_of_the_largest_rows_there_may_be_needs_no_more_memory_than_two(sqlite_queue: Queue) -> None:
    sqlite_queue.define("from taskserver import task\n\n@task(batch=50)\ndef eat(items):\n    note(len(items))\n")
    largest = f"[{'1.5,' * 262_142}0]"
    for _ in range(25):
        sqlite_queue.add("tasks.eat", largest)
    sqlite_queue.add("tasks.note")
    ended = run_telling_peak(sqlite_queue.deployment, "worker.py")
    assert (ended.returncode, sqlite_queue.notes()) == (0, ["2"] * 12 + ["1", "noted"])
    assert int(ended.stderr) < 100_000  # some 350,000 for all of them at once


# ---- the call raises


def test_a_call_that_raises_is_made_again_for_each_task_alone(any_site: Packets) -> None:
    site, mode = any_site, any_site.mode
    site.module.does["many"] = bad_one(3)
    site.add("many", *range(5))
    result = site.run()
    assert (result.taken, result.done, result.failed, result.fatal) == (5, 4, 1, 0)
    assert site.calls() == [("many", [0, 1, 2, 3, 4]), *(("many", [n]) for n in range(5))]
    assert site.figures() == (5, 10, 4, 6, 0)
    assert site.columns("attempts", "jobs_queue_done" if mode == "move" else "jobs_queue") == [
        (2,) for _ in range({"delete": 1, "move": 4, "mark": 5}[mode])
    ]
    [(status, attempts, text)] = site.columns("status, attempts, error_text")[3 if mode == "mark" else 0 :][:1]
    assert (status, attempts) == (Status.ERROR, 2)
    assert text.startswith("ValueError: bad 3\n")


def test_the_second_start_of_each_is_counted_before_it_is_called(site: Packets) -> None:
    seen = []

    def do(items: Any) -> None:
        seen.append(site.columns("attempts"))
        once_together(raising(ValueError()))(items)

    site.module.does["many"] = do
    site.add("many", 0, 1)
    assert site.run().done == 2
    assert seen == [[(1,), (1,)], [(2,), (1,)], [(2,)]]


def test_what_a_call_did_to_its_items_is_not_seen_by_the_second_one(site: Packets) -> None:
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


def test_whatever_a_call_raises_each_is_called_alone(site: Packets) -> None:
    for error in (Retry("r", delay=3), Fatal("f"), SystemExit(3), KeyboardInterrupt()):
        site.module.does["many"] = once_together(raising(error))
        site.add("many", 1, 2, 3)
        assert site.run().done == 3
        assert site.calls() == [("many", [1, 2, 3]), *(("many", [n]) for n in (1, 2, 3))]


def test_tasks_at_their_limit_become_fatal_with_the_error_of_the_call(site: Packets) -> None:
    site.module.does["once"] = bad_one(1)
    site.add("once", *range(3))
    site.rows.set("max_attempts = 2 WHERE id = 3")
    result = site.run()
    assert (result.done, result.fatal) == (1, 2)
    assert site.calls() == [("once", [0, 1, 2]), ("once", [2])]
    assert site.columns("status, attempts") == [(4, 1)] * 2
    assert site.first_lines() == ["ValueError: bad 1"] * 2
    assert site.figures() == (3, 4, 1, 3, 2)


def test_what_is_called_on_fatal_is_called_for_each_with_its_own_arguments(site: Packets) -> None:
    site.module.does["rescuable"] = raising(ValueError("no"))
    site.module.does["rescue"] = bad_one(1)
    site.add("rescuable", *range(3))
    result = site.run()
    assert (result.done, result.fatal) == (2, 1)
    assert site.module.rescued == [("ValueError", {"n": n}) for n in range(3)]
    [(text,)] = site.columns("error_text")
    assert "ValueError: no" in text
    assert "ValueError: bad 1" in text


def test_a_timeout_holds_for_the_whole_call(site: Packets) -> None:
    site.module.does["quick"] = lambda items: time.sleep(0.15 * len(items))
    site.add("quick", 0, 1)
    result = site.run()
    assert (result.done, result.failed) == (2, 0)
    assert site.calls() == [("quick", [0, 1]), ("quick", [0]), ("quick", [1])]
    assert site.figures() == (2, 4, 2, 2, 0)


def test_tasks_fail_with_the_call_where_the_run_is_to_end_meanwhile(site: Packets) -> None:
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
    assert set(site.first_lines()) == {"Fatal: all of it"}
    assert len(site.calls()) == 1


@pytest.mark.parametrize("is_imported", [False, True])
def test_a_limit_that_one_task_has_is_not_that_of_the_tasks_beside_it(site: Packets, is_imported: bool) -> None:
    site.file.write_text(site.file.read_text() + "\ndef fail(items): raise ValueError\ndoes['many'] = fail\n")
    if is_imported:
        assert site.module
    site.add("many", 0, max_attempts=3)
    site.add("many", 1, 2)
    assert site.run().failed == 3
    assert site.columns("max_attempts") == [(3,), (10,), (10,)]


# ---- what it returns


def test_an_outcome_for_each_task_is_what_becomes_of_it(any_site: Packets) -> None:
    site = any_site
    outcomes = [None, Retry("later", delay=1000), Fatal("never"), ValueError("now"), "text", Retry, 0]
    site.module.does["many"] = lambda items: outcomes
    site.add("many", *range(len(outcomes)))
    result = site.run()
    assert (result.done, result.failed, result.fatal) == (3, 3, 1)
    assert len(site.calls()) == 1
    failed = [row for row in site.columns("id, status, attempts, error_text") if row[1] != 2]
    assert [(row[0], row[1], row[2]) for row in failed] == [(2, 3, 1), (3, 4, 1), (4, 3, 1), (6, 3, 1)]
    lines = [row[3].partition("\n")[0] for row in failed]
    assert lines == ["Retry: later", "Fatal: never", "ValueError: now", "Retry: "]
    assert site.figures() == (7, 7, 3, 4, 1)
    due = dict(site.rows.execute("SELECT id, due_at FROM jobs_queue WHERE status = 3"))
    assert site.rows.seconds_from_now(due[2]) == pytest.approx(1000, abs=30)
    assert site.rows.seconds_from_now(due[4]) == pytest.approx(52, abs=30)


WRONG_OUTCOMES: dict[str, object] = {
    "a list of 1 for 3 tasks": [None],
    "a list of 4 for 3 tasks": (None,) * 4,
    "str": "abc",
    "int": 0,
    "a value of type generator, which nobody runs": (None for _ in range(3)),
}


def test_what_tells_not_of_each_task_counts_as_a_failed_call(
    sqlite_site: Packets, caplog: pytest.LogCaptureFixture
) -> None:
    site = sqlite_site
    for text, returned in WRONG_OUTCOMES.items():
        site.module.does["once"] = lambda items, returned=returned: returned
        site.add("once", *range(3))
        assert site.run().fatal == 3
        assert len(site.calls()) == 1
        assert all(line.startswith(f"WrongOutcomes: it returned {text}") for line in site.first_lines()[-3:])
        (told,) = [record for record in caplog.records if hasattr(record, ONCE_AN_HOUR)]
        assert f"others of its call are called again alone: WrongOutcomes: it returned {text}" in told.getMessage()
        caplog.clear()


class Mute(Exception):
    def __str__(self) -> str:
        time.sleep(30)
        return ""


class Rude(Exception):
    def __str__(self) -> str:
        raise SystemExit


def test_exceptions_that_hang_or_exit_when_asked_cost_no_other_task(
    make_site: Callable[..., Packets], sqlite_dsn: str
) -> None:
    """One that hangs is interrupted at the timeout of the call."""
    site = make_site(sqlite_dsn, timeout=1)
    errors = {1: Rude(), 2: ValueError("v"), 3: Mute()}
    site.module.does["many"] = lambda items: [errors.get(item["n"]) for item in items]
    site.add("many", *range(5))
    result = site.run()
    assert (result.done, result.failed, len(site.calls())) == (2, 3, 1)
    assert [line.partition(":")[0] for line in site.first_lines()] == ["Rude", "ValueError", "Mute"]


# ---- pipelines, and tasks for which others wait


def test_a_stage_that_takes_several_hands_each_on_what_it_returned_for_it(site: Packets) -> None:
    outcomes = [{"n": 10}, [Fatal], None, Fatal("f"), "text", {"n": 60}]
    site.module.does["many"] = lambda items: outcomes
    stages = [f"{site.name}.many", f"{site.name}.single"]
    for number in range(len(outcomes)):
        site.server.add_pipeline(stages, {"n": number})
    site.add("many", 6, priority=5)  # which is no pipeline, in the same call
    outcomes.append("anything")
    result = site.run(7)
    assert (result.done, result.fatal, len(site.calls())) == (4, 3, 1)
    assert site.columns("status, stage") == [(0, 1), (4, 0), (0, 1), (4, 0), (4, 0), (0, 1)]
    args = [text and json.loads(text) for status, text in site.columns("status, args") if status == 0]
    assert args == [{"n": 10}, None, {"n": 60}]
    lines = site.first_lines()
    assert lines[1].startswith("Fatal: what it returned[0] is of type type, which JSON cannot hold")
    assert lines[4].startswith("Fatal: what it returned is 'text'")


# ---- what happens to a task while its call runs


@pytest.mark.parametrize("raises", [False, True])
def test_a_task_that_is_added_again_while_its_call_runs_runs_once_more(any_site: Packets, raises: bool) -> None:
    site = any_site
    name = f"{site.name}.many"

    def do(items: Any) -> None:
        if len(items) == 3:
            site.server.add_task(name, {"n": 11}, unique_key="k1", rerun=True)
            if raises:
                raise ValueError

    site.module.does["many"] = do
    for number in range(3):
        site.server.add_task(name, {"n": number}, unique_key=f"k{number}")
    site.run()
    alone = [("many", [0]), ("many", [2])] if raises else []
    assert site.calls() == [("many", [0, 1, 2]), *alone, ("many", [11])]


def test_a_task_cancelled_in_its_call_has_the_others_run_alone(
    make_site: Callable[..., Packets], site_dsn: str
) -> None:
    site = make_site(site_dsn, lease=1)

    def cancel(items: Any) -> None:
        assert site.server.cancel(2) == 1
        time.sleep(30)

    site.module.does["many"] = once_together(cancel)
    site.add("many", 0, 1, 2)
    result = site.run()
    assert (result.done, result.failed, result.cancelled) == (2, 0, 1)
    assert site.calls() == [("many", [0, 1, 2]), ("many", [0]), ("many", [2])]
    assert site.columns("id, status, error_text") == [(2, 7, CANCELLED)]


def test_a_call_with_one_of_one_start_is_not_interrupted_for_another(
    make_site: Callable[..., Packets], site_dsn: str
) -> None:
    site = make_site(site_dsn, lease=1)

    def do(items: Any) -> None:
        assert site.server.cancel(2) == 1
        # After two renewals the worker has heard of it, if it was to.
        wait_for_renewal(site)
        wait_for_renewal(site)

    site.module.does["many"] = do
    site.add("many", 0, 1)
    site.add("many", 2, max_attempts=1)
    assert site.run().done == 3
    assert (site.calls(), site.columns("id")) == ([("many", [0, 1, 2])], [])


def test_a_cancelled_rescue_leaves_the_next_task_its_own_and_a_cancelled_task_has_none(
    make_site: Callable[..., Packets], sqlite_dsn: str
) -> None:
    site = make_site(sqlite_dsn, lease=1)

    def do(items: Any) -> None:
        assert site.server.cancel(3) == 1
        raise ValueError

    def rescue(items: Any) -> None:
        if items[0]["n"] == 0:
            assert site.server.cancel(1) == 1
            time.sleep(30)

    site.module.does.update(rescuable=do, rescue=rescue)
    site.add("rescuable", 0, 1, 2)
    result = site.run()
    assert (result.done, result.cancelled) == (1, 2)
    assert site.module.rescued == [("ValueError", {"n": 0}), ("ValueError", {"n": 1})]
    assert site.columns("id, error_text") == [(1, CANCELLED), (3, CANCELLED)]


def test_a_task_that_is_cancelled_while_it_waits_to_be_called_alone_is_not_called(site: Packets) -> None:
    def do(items: Any) -> None:
        if len(items) > 1:
            raise ValueError
        if items[0]["n"] == 0:
            assert site.server.cancel(2) == 1

    site.module.does["many"] = do
    site.add("many", 0, 1, 2)
    result = site.run()
    assert (result.done, result.cancelled) == (2, 1)
    assert site.calls() == [("many", [0, 1, 2]), ("many", [0]), ("many", [2])]
    assert site.columns("id, error_text") == [(2, CANCELLED)]


@pytest.mark.parametrize("raises", [False, True])
def test_a_task_that_was_taken_away_is_neither_called_alone_nor_finished(site: Packets, raises: bool) -> None:
    def take_away(items: Any) -> None:
        site.rows.set("claim = 5 WHERE id = 2 AND status = 1")
        if raises and len(items) > 1:
            raise ValueError

    site.module.does["many"] = take_away
    site.add("many", 0, 1, 2)
    result = site.run()
    assert (result.done, result.lost) == (2, 1)
    assert site.columns("id, claim, status") == [(2, 5, 1)]
    assert site.calls() == [("many", [0, 1, 2]), *([("many", [0]), ("many", [2])] if raises else [])]


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_was_taken_away_is_not_called_and_what_cannot_be_started_is_given_back(
    site: Packets, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    real = Batches.start

    def start(self: Batches, tasks: Sequence[Any], max_attempts: int) -> set[int]:
        if is_gone:
            raise DatabaseError("gone")
        site.rows.set(f"claim = 5 WHERE id = {tasks[1].id}")
        return real(self, tasks, max_attempts)

    monkeypatch.setattr(Batches, "start", start)
    assert site.module
    site.add("many", 0, 1, 2)
    if is_gone:
        with pytest.raises(DatabaseError, match="gone"):
            site.run()
        assert site.columns("status, attempts, claim") == [(0, 0, None)] * 3
        return
    result = site.run()
    assert (result.done, result.lost) == (2, 1)
    assert site.calls() == [("many", [0, 2])]


def test_a_bad_row_is_counted_and_not_put_back_where_the_arguments_of_the_next_cannot_be_read(
    site: Packets, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch_texts(task: ClaimedTask) -> NoReturn:
        raise DatabaseError("the disk is full")

    site.add("many", 0)
    site.add_text("many", "{")
    added = site.server.add_tasks([{"task": f"{site.name}.many", "args": ["x" * 20_000]}] * 10)
    released: list[ClaimedTask] = []
    monkeypatch.setattr(site.store.claims, "fetch_texts", fetch_texts)
    monkeypatch.setattr(Claimed, "put_back", lambda _, tasks: released.extend(tasks))
    with pytest.raises(DatabaseError, match="disk is full"):
        site.run()
    assert {task.id for task in released} <= {1, *added}
    [run] = site.store.views.runs()
    assert (run.taken, site.rows.row(2)["status"]) == (2, 4)


@pytest.mark.usefixtures("whole_claims")
def test_all_that_could_not_be_recorded_one_by_one_is_told(
    site: Packets, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert site.module  # imported: a bad row is not started
    for _ in range(3):
        site.add_text("many", "{")

    def fails(finishes: Sequence[Finish], *values: Any) -> None:
        raise TooLong("together") if len(finishes) > 1 else DatabaseError("the disk is full")

    monkeypatch.setattr(site.store.finishes, "advance", fails)
    with caplog.at_level("INFO", "taskserver"), pytest.raises(DatabaseError, match="disk is full"):
        site.run()
    told = [message for message in caplog.messages if "could not be recorded" in message]
    assert told == [f"task {one} {site.name}.many has ended, which could not be recorded" for one in (1, 2, 3)]


# ---- leases


def lease_ends(site: Packets) -> list[Any]:
    """Of the started tasks: instants, which a renewal alone moves."""
    rows = site.rows.execute("SELECT due_at FROM jobs_queue WHERE status = 1 AND started_at IS NOT NULL")
    return [due_at for (due_at,) in rows]


def wait_for_renewal(site: Packets) -> None:
    before = max(lease_ends(site))
    wait_until(lambda: min(lease_ends(site)) > before)


def test_the_leases_of_all_are_renewed_while_their_call_runs(make_site: Callable[..., Packets], site_dsn: str) -> None:
    site = make_site(site_dsn, lease=2)
    site.module.does["many"] = lambda items: wait_for_renewal(site)
    site.add("many", *range(5))
    assert site.run().done == 5
    assert len(site.calls()) == 1


@pytest.mark.parametrize("what", ["many short ones", "a long one", "a rescue"])
def test_the_leases_of_those_that_wait_for_their_turn_are_renewed(
    make_site: Callable[..., Packets], site_dsn: str, what: str
) -> None:
    site = make_site(site_dsn, lease=1 if what == "many short ones" else 2)
    least = []

    def do(items: Any) -> None:
        if len(items) > 1:
            raise ValueError
        if what == "many short ones":
            time.sleep(0.15)
        elif items[0]["n"] == 0:
            wait_for_renewal(site)
        least.append(min(site.rows.seconds_from_now(due_at) for due_at in lease_ends(site)))

    site.module.does.update(many=do, rescuable=do, rescue=do)
    count = 10 if what == "many short ones" else 3
    site.add("rescuable" if what == "a rescue" else "many", *range(count))
    result = site.run()
    assert (result.done, result.lost) == (count, 0)
    assert len(least) == count
    assert min(least) > 0


# ---- rows that others hold


@pytest.mark.parametrize("skips_locked", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_row_that_a_page_holds_has_the_others_started_and_finished_without_it(
    make_site: Callable[..., Packets], server_site_dsn: str, skips_locked: bool
) -> None:
    site = make_site(server_site_dsn, db_patience=5)
    store = site.store
    site.add("many", *range(5))
    tasks = store.claims.claim(5, ()).tasks
    store.database.dialect.skips_locked &= skips_locked
    batches = Batches(store)
    with holding(site.dsn, "id = 3"):
        assert batches.start(tasks, 10) == {1, 2, 4, 5}
        assert batches.unstarted(tasks) == {3}
    with holding(site.dsn, "id = 4"):
        started = [task for task in tasks if task.id != 3]
        assert batches.renew(started)
        assert batches.complete(started) == ({1, 2, 5}, False)
    assert [row[0] for row in site.columns("id")] == [3, 4]


def test_a_run_does_what_a_page_does_not_hold_and_then_the_rest(server_site: Packets) -> None:
    site = server_site
    assert site.module
    site.add("many", *range(5))
    page = Rows(site.dsn)
    page.execute("BEGIN")

    def hold(items: Any) -> None:
        if 2 not in [item["n"] for item in items]:
            page.execute("ROLLBACK")

    real = site.store.claims.claim

    def claim(limit: int, groups: Sequence[int], number: int | None = None) -> Claim:
        claimed = real(limit, groups, number)
        if claimed.tasks:
            page.execute("SELECT * FROM jobs_queue WHERE id = 3 FOR UPDATE")
        return claimed

    site.store.claims.claim = claim  # type: ignore[method-assign]
    site.module.does["many"] = hold
    result = site.run()
    page.close()
    assert (result.taken, result.done, result.lost) == (5, 5, 0)
    assert site.calls() == [("many", [0, 1, 3, 4]), ("many", [2])]


# ---- a connection that breaks


START, FINISH = b"started_at = NOW(6), due_at", b"finish"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("words", "is_done"), [(START, True), (START, False), (FINISH, True), (FINISH, False), (b"COMMIT", True)]
)
def test_a_connection_that_breaks_has_each_task_run_once(
    make_site: Callable[..., Packets],
    mysql_server: MySQLServer,
    emptied_mysql_dsn: str,
    mode: str,
    words: bytes,
    is_done: bool,
) -> None:
    if words == FINISH:
        words = {"delete": b"DELETE FROM", "mark": b"status = 2", "move": b"status = 6"}[mode]
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        site = make_site(proxy.dsn(emptied_mysql_dsn), mode=mode)
        cuts = []

        def cut(items: Any = ()) -> None:
            cuts.append((proxy.cut_after if is_done else proxy.cut_before)(contains(words)))

        site.add("many", *range(4))
        if words == b"COMMIT":
            site.module.does["many"] = cut
        else:
            cut()
        result = site.run()
        assert cuts[0].has_struck
        assert (result.done, result.lost, result.failed) == (4, 0, 0)
        assert site.calls() == [("many", [0, 1, 2, 3])]
        assert site.columns("id") == ([] if mode != "mark" else [(n,) for n in range(1, 5)])
        assert len(site.columns("id", "jobs_queue_done")) == (4 if mode == "move" else 0)


# ---- real processes

TASKS = """
import os
import signal
import time

from taskserver import task

@task(batch=10, backoff="fixed:500")
def pack(items):
    note(" ".join(str(item["n"]) for item in items))
    if len(items) > 1:
        for what in HERE.glob("does-*"):
            exec(what.read_text())
"""
SETTINGS = {"TASKSERVER_LEASE": "600"}


def add_pack(queue: Queue, count: int = 4, does: str = "") -> None:
    for number in range(count):
        queue.add("tasks.pack", f'{{"n": {number}}}')
    if does:
        (queue.folder / "does-it").write_text(does)


def test_the_tasks_of_a_worker_that_is_killed_in_their_call_are_lost_and_then_run_alone(queue: Queue) -> None:
    add_pack(queue, 4, "os.kill(os.getpid(), signal.SIGKILL)")
    assert queue.worker().returncode == -signal.SIGKILL
    assert queue.rows("status, attempts") == [(1, 1)] * 4
    assert queue.worker().returncode == 0
    assert queue.notes() == ["0 1 2 3"]  # not within their lease
    queue.end_leases()
    assert queue.worker().returncode == 0
    assert [row[0] for row in queue.rows("status")] == [3] * 4
    assert all(text.startswith("lost: ") for text in queue.errors())
    queue.end_backoffs()
    assert queue.worker().returncode == 0
    assert queue.notes() == ["0 1 2 3", "0", "1", "2", "3"]
    assert queue.rows() == []


HANG = "\nwhile not (HERE / 'go').exists():\n    time.sleep(0.01)\n"


@pytest.mark.parametrize("asked", [1, 2])
def test_a_worker_asked_to_end_finishes_its_call_and_one_asked_twice_fails_it(queue: Queue, asked: int) -> None:
    add_pack(queue, 12, HANG)
    process = queue.start_task()
    process.send_signal(signal.SIGTERM)
    if asked == 2:
        process.send_signal(signal.SIGINT)  # two of one kind may come as one
    else:
        queue.go()
    assert end_of(process)[0] == 0
    assert queue.notes() == ["0 1 2 3 4 5 6 7 8 9"]
    assert queue.rows("status, attempts") == [(3, 1)] * (10 if asked == 2 else 0) + [(0, 0)] * 2
    assert set(queue.first_lines()) - {""} == ({"TaskInterrupted: stopped by a second signal"} if asked == 2 else set())
    assert queue.reason() == "stopped"


def test_workers_that_race_call_each_task_once(queue: Queue) -> None:
    """Both are in a call at the same time: neither ends before the other has begun."""
    meet = "(HERE / f'met-{os.getpid()}').touch()\nwhile len(list(HERE.glob('met-*'))) < 2:\n    time.sleep(0.01)\n"
    add_pack(queue, 60, meet)
    workers = [queue.start(0, "--batch", 15) for _ in range(2)]
    assert [end_of(worker)[0] for worker in workers] == [0, 0]
    ran = [int(number) for line in queue.notes() for number in line.split()]
    assert sorted(ran) == list(range(60))
    assert len(list(queue.folder.glob("met-*"))) == 2
    assert queue.rows() == []
