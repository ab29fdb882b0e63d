"""Pipelines: one row that becomes new for one callable after the other, and what others do to it meanwhile.

tests/unit/test_new_task.py shows what stages may be, tests/contract/test_finish.py their ends as the store writes them,
and tests/process/test_several_at_once.py workers that race.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taskserver.model.task import Status
from tests.support.queues import LONG_AGO
from tests.support.sites import Site

CODE = """
calls = []
does = {}

def called(name, args, kwargs):
    calls.append([name, kwargs or list(args)])
    return does.get(name, lambda *args, **kwargs: kwargs or list(args))(*args, **kwargs)

def first(*args, **kwargs): return called("first", args, kwargs)

def second(*args, **kwargs): return called("second", args, kwargs)

def third(*args, **kwargs): return called("third", args, kwargs)
"""
THREE = ("first", "second", "third")
STATE = "status, stage, attempts"


class Pipelines(Site):
    def add(self, stages: Any = THREE, args: Any = None, **more: Any) -> int:
        """Stages by the names of this module's functions, or as they are."""
        named = [f"{self.name}.{one}" if isinstance(one, str) else one for one in stages]
        return self.server.add_pipeline(named, args, **more)

    def does(self, name: str, does: Callable[..., object]) -> None:
        self.module.does[name] = does

    def called(self) -> list[str]:
        return [name for name, _ in self.module.calls]


SITE = Pipelines


def raising(*args: Any, **kwargs: Any) -> None:
    raise ValueError("as it was asked to")


# ---- the way of one row


def test_one_row_moves_through_its_stages_and_then_ends_as_the_mode_says(any_site: Pipelines) -> None:
    site = any_site
    site.does("first", lambda a: {"by": a})
    site.does("second", lambda by: ["second", by + 1])
    task_id = site.add(args={"a": 1})
    result = site.run()
    assert (result.taken, result.done) == (3, 3)
    assert site.module.calls == [["first", {"a": 1}], ["second", {"by": 1}], ["third", ["second", 2]]]
    table = "jobs_queue_done" if site.mode == "move" else "jobs_queue"
    ended = [] if site.mode == "delete" else [(task_id, 2, 2, 1, f"{site.name}.third")]
    assert site.columns(f"id, {STATE}, task", table) == ended
    assert site.mode == "mark" or site.columns("id") == []


@pytest.mark.parametrize(
    ("returned", "arrives"),
    [
        ((1, "two", [3]), [1, "two", [3]]),
        (None, []),
        ("", "Fatal: what it returned is ''; allowed: a dict, a list, a tuple or None"),
        (["x" * (1024 * 1024 - 3)], "Fatal: what it returned takes 1048577 bytes as JSON; allowed: 1048576"),
    ],
)
def test_a_stage_returns_the_arguments_of_the_next_one(site: Pipelines, returned: object, arrives: object) -> None:
    site.does("first", lambda: returned)
    site.add(["first", "second"])
    site.run()
    if not isinstance(arrives, str):
        assert site.module.calls[1:] == [["second", arrives]]
        return
    assert (site.called(), site.columns(STATE)) == (["first"], [(4, 0, 1)])
    [line] = site.first_lines()
    assert line.startswith(arrives)
    assert f"; the next stage, {site.name}.second, gets an object as keywords" in line


# ---- what fails


def test_each_stage_passes_the_allow_list_when_its_turn_comes(site: Pipelines) -> None:
    site.add(["first", {"task": "os.system"}, "third"])
    assert (site.run().fatal, site.called()) == (1, ["first"])
    assert site.columns(f"{STATE}, task") == [(4, 1, 0, "os.system")]


def test_a_failed_stage_is_retried_and_by_hand_too_with_what_the_one_before_it_returned(site: Pipelines) -> None:
    site.does("second", raising)
    task_id = site.add(["first", {"task": f"{site.name}.second", "max_attempts": 2}, "third"], [7])
    for status, attempts in ((3, 1), (4, 2)):
        site.run()
        assert site.columns(f"{STATE}, args") == [(status, 1, attempts, "[7]")]
        site.rows.set(f"due_at = '{LONG_AGO}' WHERE status = 3")
    assert site.server.retry(task_id) == 1
    assert site.columns(STATE) == [(0, 1, 0)]
    site.module.does.clear()
    site.run()
    assert site.module.calls == [["first", [7]], *[["second", [7]]] * 3, ["third", [7]]]


# ---- what is done to it meanwhile


def test_a_rerun_while_a_stage_runs_starts_again_when_that_one_has_ended(site: Pipelines) -> None:
    site.add(args=["old"], unique_key="one")

    def rerun(text: str) -> list[str]:
        if text == "old":
            for number in range(3):
                site.add(args=[f"new {number}"], unique_key="one", rerun=True)
            assert site.columns(STATE) == [(1, 0, 0)]
        return [text]

    site.does("second", rerun)
    site.run()
    assert site.module.calls == [["first", ["old"]], ["second", ["old"]], *[[name, ["new 2"]] for name in THREE]]
    assert site.columns("id") == []


def test_a_cancel_while_a_stage_runs_ends_the_pipeline_and_a_retry_resumes_there(site: Pipelines) -> None:
    """Also if that stage succeeds before its worker learns of it."""
    task_id = site.add(args=["x"])
    site.does("second", lambda text: (site.server.cancel(task_id), [text])[1])
    site.run()
    assert site.columns(f"{STATE}, error_text, claim") == [(Status.CANCELLED, 1, 1, "cancelled", None)]
    assert site.run().taken == 0
    site.module.does.clear()
    assert site.server.retry(task_id) == 1
    site.run()
    assert site.called() == ["first", "second", "second", "third"]
