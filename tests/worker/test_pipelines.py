"""Pipelines: one row that becomes new for one callable after the other, and what others do to it meanwhile.

tests/unit/test_pipelines.py shows what stages may be, tests/contract/test_stage.py their ends as the store writes them,
and tests/process/test_pipelines.py workers that race.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from taskserver import RunResult, TaskServer
from taskserver.model.task import Status
from tests.support.queues import LONG_AGO
from tests.support.reruns import BY_SQL
from tests.support.sites import Site

CODE = """
from taskserver import task

calls = []
does = {}

def called(name, args, kwargs):
    calls.append([name, kwargs or list(args)])
    return does.get(name, lambda *args, **kwargs: kwargs or list(args))(*args, **kwargs)

def first(*args, **kwargs): return called("first", args, kwargs)

def second(*args, **kwargs): return called("second", args, kwargs)

def third(*args, **kwargs): return called("third", args, kwargs)

@task(max_attempts=2)
def twice(*args, **kwargs): return called("twice", args, kwargs)

def rescue(error, *args, **kwargs):
    calls.append(["rescue", str(error)])

@task(max_attempts=1, on_fatal=rescue)
def rescued(*args, **kwargs): return called("rescued", args, kwargs)

def _hidden(*args):
    calls.append(["hidden", []])
"""
NOBODYS_GROUP = 4294967294
THREE = ("first", "second", "third")
STATE = "status, stage, attempts"


class Pipelines(Site):
    def named(self, stages: Any) -> list[Any]:
        """Stages of this module, by the names of its functions."""
        full = "{}.{}".format
        return [
            full(self.name, one) if isinstance(one, str) else {**one, "task": full(self.name, one["task"])}
            for one in stages
        ]

    def add(self, stages: Any = THREE, args: Any = None, **more: Any) -> int:
        return self.server.add_pipeline(self.named(stages), args, **more)

    def does(self, name: str, does: Callable[..., object]) -> None:
        self.module.does[name] = does

    def called(self) -> list[str]:
        return [name for name, _ in self.module.calls]

    def other(self, groups: tuple[int, ...] | None = None, max_tasks: int = 0) -> RunResult:
        """A run of another worker, while one of ours is in a task."""
        with TaskServer(self.dsn, modules=self.name, folder=self.file.parent, mode=self.mode) as server:
            return server.run(max_tasks, groups)

    def take_over(self) -> None:
        """The task that runs, by another worker, which makes it wait for a retry as lost."""
        self.rows.set(f"due_at = '{LONG_AGO}' WHERE status = 1")
        self.other((NOBODYS_GROUP,))


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


def test_what_a_stage_leaves_out_by_sql_stays_as_the_row_has_it(site: Pipelines) -> None:
    stages = json.dumps(site.named(["first", {"task": "second", "group_id": 4}, "third"]))
    site.rows.execute(
        "INSERT INTO jobs_queue (task, group_id, priority, max_attempts, stages) VALUES (?, 3, 10, 7, ?)",
        [f"{site.name}.first", stages],
    )
    for name in THREE[1:]:
        site.run(1)
        assert site.columns("task, group_id, priority, max_attempts") == [(f"{site.name}.{name}", 4, 10, None)]


def test_each_stage_has_attempts_and_limits_of_its_own(make_site: Any, site_dsn: str) -> None:
    """That of its description, else that of its callable, else that of the settings."""
    site = make_site(site_dsn, max_attempts=3, backoff="fixed:0")
    for name in ("second", "twice"):
        site.does(name, raising)
    site.add(["first", "twice"])
    site.add([{"task": "first", "max_attempts": 1}, "second"])
    site.add(["first", {"task": "twice", "max_attempts": 1}])
    for _ in range(3):
        site.run()
        site.rows.set(f"due_at = '{LONG_AGO}' WHERE status = 3")
    assert site.columns(f"{STATE}, max_attempts") == [(4, 1, 2, 2), (4, 1, 3, 3), (4, 1, 1, 1)]


# ---- what a stage returns

MEGABYTE = 1024 * 1024


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("returned", "arrives"),
    [
        ({"größe 🎉": [1, -2.5, True, None, {"k": "v"}]}, {"größe 🎉": [1, -2.5, True, None, {"k": "v"}]}),
        ((1, "two", [3]), [1, "two", [3]]),
        (None, []),
        (["x" * (MEGABYTE - 4)], ["x" * (MEGABYTE - 4)]),
        ("", "Fatal: what it returned is ''; allowed: a dict, a list, a tuple or None"),
        (Hostile(), "Fatal: what it returned is a Hostile that cannot be shown"),
        ([float("nan")], "Fatal: what it returned[0] is nan, which is no JSON number"),
        (["x" * (MEGABYTE - 3)], "Fatal: what it returned takes 1048577 bytes as JSON; allowed: 1048576"),
    ],
    ids=["dict", "tuple", "None", "a megabyte", "a text", "an object without text", "not a number", "too large"],
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


@pytest.mark.parametrize("name", ["os.system", "_hidden", "nothing", "other.work"])
def test_each_stage_passes_the_allow_list_when_its_turn_comes(site: Pipelines, name: str) -> None:
    (site.file.parent / "other.py").write_text("def work(): raise SystemExit")
    full = name if "." in name else f"{site.name}.{name}"
    site.server.add_pipeline([f"{site.name}.first", full, f"{site.name}.third"])
    assert (site.run().fatal, site.called()) == (1, ["first"])
    assert site.columns(f"{STATE}, task") == [(4, 1, 0, full)]


def test_a_failed_stage_is_retried_and_by_hand_too_with_what_the_one_before_it_returned(site: Pipelines) -> None:
    site.does("second", raising)
    task_id = site.add(["first", {"task": "second", "max_attempts": 2}, "third"], [7])
    for status, attempts in ((3, 1), (4, 2)):
        site.run()
        assert site.columns(f"{STATE}, args") == [(status, 1, attempts, "[7]")]
        site.rows.set(f"due_at = '{LONG_AGO}' WHERE status = 3")
    assert site.server.retry(task_id) == 1
    assert site.columns(STATE) == [(0, 1, 0)]
    site.module.does.clear()
    site.run()
    assert site.module.calls == [["first", [7]], *[["second", [7]]] * 3, ["third", [7]]]


def test_on_fatal_ends_the_whole_pipeline(any_site: Pipelines) -> None:
    site = any_site
    site.does("rescued", raising)
    site.add(["first", "rescued", "third"])
    assert site.run().done == 2
    assert site.module.calls[1:] == [["rescued", []], ["rescue", "as it was asked to"]]
    where = "jobs_queue_done" if site.mode == "move" else "jobs_queue"
    assert site.columns(STATE, where) == ([] if site.mode == "delete" else [(2, 1, 1)])


# ---- what is done to it meanwhile


@pytest.mark.parametrize("stage", [0, 2])
def test_a_rerun_while_a_stage_runs_starts_again_when_that_one_has_ended(any_site: Pipelines, stage: int) -> None:
    site = any_site
    task_id = site.add(args=["old"], unique_key="one")

    def rerun(text: str) -> list[str]:
        if text == "old":
            for number in range(3):
                assert site.add(args=[f"new {number}"], unique_key="one", rerun=True) == task_id
            assert site.columns(STATE) == [(1, 0, 0)]
        return [text]

    site.does(THREE[stage], rerun)
    site.run()
    old = [[name, ["old"]] for name in THREE[: stage + 1]]
    assert site.module.calls == [*old, *[[name, ["new 2"]] for name in THREE]]
    assert site.columns(STATE) == ([(2, 2, 1)] if site.mode == "mark" else [])


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("becomes", ["a pipeline", "a plain task", "a pipeline by sql"])
def test_a_rerun_may_be_of_other_stages_or_of_none(site: Pipelines, becomes: str, is_running: bool) -> None:
    """docs/kinds/pipelines.md has the statement."""
    site.add(["first", {"task": "second", "max_attempts": 1}], ["old"], unique_key="one")
    third = f"{site.name}.third"

    def rerun(*args: str) -> list[str]:
        if becomes == "a pipeline":
            site.add(["third", "twice"], ["new"], unique_key="one", rerun=True)
        elif becomes == "a plain task":
            site.server.add_task(third, ["new"], unique_key="one", rerun=True)
        else:
            stages = json.dumps(site.named(["third", "twice"])).replace("'", "''")
            also = f"task = '{third}', stages = '{stages}', stage = 0, max_attempts = NULL"
            sql = BY_SQL[site.rows.kind].replace("attempts = 0", f"attempts = 0, {also}")
            site.rows.execute(sql, ["tasks.note", '["new"]', "one"])
        return [*args]

    if is_running:
        site.does("second", rerun)
    else:
        site.run(1)
        rerun()
    site.run()
    again = [["third", ["new"]], ["twice", ["new"]]][: 1 if becomes == "a plain task" else 2]
    assert site.module.calls == [["first", ["old"]], *[["second", ["old"]]] * is_running, *again]
    assert site.columns("id") == []


def test_a_cancel_while_a_stage_runs_ends_the_pipeline_and_a_retry_resumes_there(any_site: Pipelines) -> None:
    """Also if that stage succeeds before its worker learns of it."""
    site = any_site
    task_id = site.add(args=["x"])
    site.does("second", lambda text: (site.server.cancel(task_id), [text])[1])
    site.run()
    assert site.columns(f"{STATE}, error_text, claim") == [(Status.CANCELLED, 1, 1, "cancelled", None)]
    assert site.run().taken == 0
    site.module.does.clear()
    assert site.server.retry(task_id) == 1
    site.run()
    assert site.called() == ["first", "second", "second", "third"]


# ---- workers that vanish, and connections that break


@pytest.mark.parametrize("stage", [0, 1])
def test_a_worker_whose_stage_was_taken_over_moves_nothing_on(any_site: Pipelines, stage: int) -> None:
    """Its stage ends when another worker has run it and the pipeline is at the next one."""
    site = any_site
    site.add(args=["x"])
    name = THREE[stage]

    def be_late(text: str) -> list[str]:
        site.module.does.clear()
        site.take_over()
        assert site.columns(STATE) == [(3, stage, 1)]
        assert site.first_lines()[0].startswith("lost: ")
        site.rows.set(f"due_at = '{LONG_AGO}'")
        assert site.other(max_tasks=1).done == 1
        return ["too late"]

    site.does(name, be_late)
    assert site.run(stage + 1).lost == 1
    assert site.columns(f"{STATE}, args") == [(0, stage + 1, 0, '["x"]')]
    site.run()
    assert site.module.calls == [[one, ["x"]] for one in (*THREE[:stage], name, name, *THREE[stage + 1 :])]
    assert site.columns(STATE) == ([(2, 2, 1)] if site.mode == "mark" else [])
