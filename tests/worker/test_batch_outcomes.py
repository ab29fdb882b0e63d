"""What a call of several tasks returns for each of them, and what others do to them while it runs."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from taskserver import Fatal, Retry
from taskserver.messages.log_records import ONCE_AN_HOUR
from taskserver.model.task import CANCELLED
from tests.support.processes import wait_until
from tests.worker.test_batches import CODE, SITE, Batch, once_together

__all__ = ["CODE", "SITE"]


# ---- what it returns


def test_an_outcome_for_each_task_is_what_becomes_of_it(make_site: Any, site_dsn: str) -> None:
    site = make_site(site_dsn, mode="mark")
    outcomes = [None, Retry("later", delay=1000), Fatal("never"), ValueError("now"), "text", Retry, 0]
    site.module.does["many"] = lambda items: outcomes
    site.add("many", *range(len(outcomes)))
    result = site.run()
    assert (result.done, result.failed, result.fatal, len(site.calls())) == (3, 3, 1, 1)
    assert site.columns("status, attempts") == [(status, 1) for status in (2, 3, 4, 3, 2, 3, 2)]
    assert site.first_lines() == ["", "Retry: later", "Fatal: never", "ValueError: now", "", "Retry: ", ""]
    assert site.figures() == (7, 7, 3, 4, 1)
    due = dict(site.rows.execute("SELECT id, due_at FROM jobs_queue WHERE status = 3"))
    assert site.rows.seconds_from_now(due[2]) == pytest.approx(1000, abs=30)
    assert site.rows.seconds_from_now(due[4]) == pytest.approx(52, abs=30)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        ([None], "a list of 1 for 3 tasks"),
        ((None,) * 4, "a list of 4 for 3 tasks"),
        ("abc", "str"),
        (0, "int"),
        ((None for _ in range(3)), "a value of type generator, which nobody runs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_outcomes_count_as_a_failed_call(
    site: Batch, caplog: pytest.LogCaptureFixture, returned: object, text: str
) -> None:
    site.module.does["once"] = lambda items: returned
    site.add("once", *range(3))
    assert (site.run().fatal, len(site.calls())) == (3, 1)
    assert all(line.startswith(f"WrongOutcomes: it returned {text}") for line in site.first_lines())
    (logged,) = [record for record in caplog.records if hasattr(record, ONCE_AN_HOUR)]
    assert f"others of its call are called again alone: WrongOutcomes: it returned {text}" in logged.getMessage()


def test_a_stage_that_takes_several_hands_each_on_what_it_returned_for_it(site: Batch) -> None:
    outcomes = [{"n": 10}, [Fatal], None, Fatal("f"), "text", {"n": 60}, "anything"]
    site.module.does["many"] = lambda items: outcomes
    for number in range(6):
        site.server.add_pipeline([f"{site.name}.many", f"{site.name}.single"], {"n": number})
    site.add("many", 6, priority=5)  # no pipeline, in the same call
    result = site.run(7)
    assert (result.done, result.fatal, len(site.calls())) == (4, 3, 1)
    assert site.columns("status, stage") == [(0, 1), (4, 0), (0, 1), (4, 0), (4, 0), (0, 1)]
    args = [text and json.loads(text) for status, text in site.columns("status, args") if status == 0]
    assert args == [{"n": 10}, None, {"n": 60}]
    lines = site.first_lines()
    assert lines[1].startswith("Fatal: what it returned[0] is of type type, which JSON cannot hold")
    assert lines[4].startswith("Fatal: what it returned is 'text'")


# ---- what others do to a task while its call runs


@pytest.mark.parametrize("raises", [False, True])
def test_a_task_that_is_rerun_while_its_call_runs_runs_once_more(site: Batch, raises: bool) -> None:
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
    assert site.numbers() == [[0, 1, 2], *([[0], [2]] if raises else []), [11]]


def test_a_task_that_is_cancelled_in_its_call_has_the_others_run_alone(make_site: Any, site_dsn: str) -> None:
    site = make_site(site_dsn, lease=1)

    def cancel(items: Any) -> None:
        assert site.server.cancel(2) == 1
        time.sleep(30)

    site.module.does["many"] = once_together(cancel)
    site.add("many", 0, 1, 2)
    result = site.run()
    assert (result.done, result.failed, result.cancelled) == (2, 0, 1)
    assert site.numbers() == [[0, 1, 2], [0], [2]]
    assert site.columns("id, status, error_text") == [(2, 7, CANCELLED)]


def test_a_call_with_a_task_of_one_start_is_not_interrupted_for_another(make_site: Any, site_dsn: str) -> None:
    site = make_site(site_dsn, lease=1)

    def do(items: Any) -> None:
        assert site.server.cancel(2) == 1
        wait_for_renewal(site)
        wait_for_renewal(site)  # by now the worker would have interrupted it

    site.module.does["many"] = do
    site.add("many", 0, 1)
    site.add("many", 2, max_attempts=1)
    assert (site.run().done, site.numbers(), site.columns("id")) == (3, [[0, 1, 2]], [])


def test_a_task_of_one_start_that_is_cancelled_in_its_call_has_no_rescue(site: Batch) -> None:
    def do(items: Any) -> None:
        assert site.server.cancel(3) == 1
        raise ValueError

    site.module.does["rescuable"] = do
    site.add("rescuable", 0, 1, 2)
    result = site.run()
    assert (result.done, result.cancelled) == (2, 1)
    assert site.module.rescued == [("ValueError", {"n": 0}), ("ValueError", {"n": 1})]
    assert site.columns("id, error_text") == [(3, CANCELLED)]


def test_a_task_that_is_cancelled_while_it_waits_to_be_called_alone_is_not_called(site: Batch) -> None:
    def do(items: Any) -> None:
        if len(items) > 1:
            raise ValueError
        if items[0]["n"] == 0:
            assert site.server.cancel(2) == 1

    site.module.does["many"] = do
    site.add("many", 0, 1, 2)
    result = site.run()
    assert (result.done, result.cancelled, site.numbers()) == (2, 1, [[0, 1, 2], [0], [2]])
    assert site.columns("id, error_text") == [(2, CANCELLED)]


@pytest.mark.parametrize("raises", [False, True])
def test_a_task_that_was_taken_away_is_neither_called_alone_nor_finished(site: Batch, raises: bool) -> None:
    def take_away(items: Any) -> None:
        site.rows.set("claim = 5 WHERE id = 2 AND status = 1")
        if raises and len(items) > 1:
            raise ValueError

    site.module.does["many"] = take_away
    site.add("many", 0, 1, 2)
    result = site.run()
    assert (result.done, result.lost) == (2, 1)
    assert site.columns("id, claim, status") == [(2, 5, 1)]
    assert site.numbers() == [[0, 1, 2], *([[0], [2]] if raises else [])]


# ---- leases


def lease_ends(site: Batch) -> list[Any]:
    """Of the started tasks: instants, which only a renewal moves."""
    rows = site.rows.execute("SELECT due_at FROM jobs_queue WHERE status = 1 AND started_at IS NOT NULL")
    return [due_at for (due_at,) in rows]


def wait_for_renewal(site: Batch) -> None:
    before = max(lease_ends(site))
    wait_until(lambda: min(lease_ends(site)) > before)


@pytest.mark.parametrize("how", ["in their call", "many short ones", "a long one"])
def test_leases_are_renewed_while_tasks_run_or_wait_for_their_turn(make_site: Any, site_dsn: str, how: str) -> None:
    site = make_site(site_dsn, lease=1 if how == "many short ones" else 2)
    least = []

    def do(items: Any) -> None:
        if len(items) > 1 and how != "in their call":
            raise ValueError
        if how == "many short ones":
            time.sleep(0.15)
        elif items[0]["n"] == 0:
            wait_for_renewal(site)
        least.append(min(site.rows.seconds_from_now(due_at) for due_at in lease_ends(site)))

    site.module.does["many"] = do
    count = 10 if how == "many short ones" else 3
    site.add("many", *range(count))
    result = site.run()
    assert (result.done, result.lost, len(least)) == (count, 0, 1 if how == "in their call" else count)
    assert min(least) > 0
