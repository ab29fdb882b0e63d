"""Callables whose tasks share their commits, `@task(commit_every=N)`: one start and one finish for up to N of them.

Most tests run workers in this process, on tasks that note what they were called with and do what the test says; what
kills, stops or races workers does so to real processes.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from taskserver import DatabaseError, Fatal, Retry, RunResult, Stop
from taskserver.errors import Unavailable
from taskserver.model.arguments import read_item
from taskserver.model.task import CANCELLED, Claim, ClaimedTask, Status
from taskserver.stores.queue.batches import Batches
from taskserver.worker import finishing, limits, preparing, rounds
from taskserver.worker.claimed import Claimed
from taskserver.worker.result import Reason
from tests.support.processes import end_of, needs_peak, run_telling_peak, thaw, wait_until
from tests.support.proxy import Proxy, contains
from tests.support.queues import Queue
from tests.support.rows import MODES, Rows
from tests.support.servers import MySQLServer
from tests.support.sessions import new_connection
from tests.support.sites import Site
from tests.support.words import LET_DELETE, REFUSE_DELETE

CODE = """
import taskserver
from taskserver import task

calls = []
rescued = []
does = {}

def noted(name, n):
    calls.append((name, n))
    return does.get(name, lambda n: None)(n)

@task(commit_every=5)
def five(n):
    return noted("five", n)

@task(commit_every=3)
def three(n):
    return noted("three", n)

@task(commit_every=500, backoff="fixed:50")
def many(n, text=""):
    return noted("many", n)

@task(commit_every=50, max_attempts=3)
def thrice(n):
    return noted("thrice", n)

def rescue(error, n):
    rescued.append((type(error).__name__, n))

@task(commit_every=50, max_attempts=2, on_fatal=rescue)
def rescuable(n):
    return noted("rescuable", n)

@task(commit_every=50, timeout=0.2)
def brief(n):
    return noted("brief", n)

def single(n=None, **more):
    return noted("single", n)

@task(batch=5)
def several(items):
    for item in items:
        noted("several", item["n"])
"""


pytestmark = pytest.mark.usefixtures("whole_claims")


class Rounds(Site):
    """Tasks with the arguments {"n": number}, and an account of the writes that several of them shared."""

    def __init__(self, *site: Any) -> None:
        super().__init__(*site)
        self.shared: list[tuple[str, int]] = []
        """What was written, and for how many tasks."""

    def add(self, name: str, *numbers: int, **more: Any) -> list[int]:
        """Their ids."""
        new = [{"task": f"{self.name}.{name}", "args": {"n": number}, **more} for number in numbers]
        return self.server.add_tasks(new)

    def calls(self) -> list[int]:
        """The numbers of the tasks that were called since this was asked."""
        numbers = [n for _, n in self.module.calls]
        self.module.calls.clear()
        return numbers

    def run(self, max_tasks: int = 0, **how: Any) -> RunResult:
        self.shared.clear()
        with pytest.MonkeyPatch.context() as patch:
            for verb in ("start", "complete", "unstart"):
                patch.setattr(Batches, verb, self._noting(verb, getattr(Batches, verb)))
            patch.setattr(Batches, "complete_and_start", self._noting_both(Batches.complete_and_start))
            return super().run(max_tasks, **how)

    def _noting(self, verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(batches: Batches, tasks: Sequence[ClaimedTask], *values: Any) -> Any:
            self.shared.append((verb, len(tasks)))
            return real(batches, tasks, *values)

        return write

    def _noting_both(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(batches: Batches, ended: Sequence[Any], tasks: Sequence[Any], *values: Any) -> Any:
            self.shared += [("complete", len(ended)), ("start", len(tasks))]
            return real(batches, ended, tasks, *values)

        return write

    def figures(self) -> tuple[int, ...]:
        """Begun, attempts, done, failed, fatal of all tasks."""
        stats = self.server.stats()
        return tuple(
            sum(getattr(one, name) for one in stats) for name in ("begun", "attempts", "done", "failed", "fatal")
        )


SITE = Rounds


def on(number: int, does: Callable[[], Any]) -> Callable[[int], Any]:
    """It does this at the task with this number, and nothing at others."""
    return lambda n: does() if n == number else None


def raising(error: BaseException) -> Callable[[], None]:
    def do() -> None:
        raise error

    return do


# ---- a round


@pytest.mark.parametrize("is_imported", [False, True], ids=["imported by the run", "imported before"])
def test_tasks_are_called_one_by_one_between_one_start_and_one_finish(any_site: Rounds, is_imported: bool) -> None:
    site, mode = any_site, any_site.mode
    if is_imported:
        assert site.module
    site.add("many", *range(40))
    result = site.run()
    assert (result.taken, result.done, result.released, result.reason) == (40, 40, 0, Reason.EMPTY)
    assert site.calls() == list(range(40))
    # The import costs a start of its own: it may kill the worker.
    first, together = ([], 40) if is_imported else ([("complete", 1)], 39)
    assert site.shared == [*first, ("start", together), ("complete", together)]
    assert site.figures() == (40, 40, 40, 0, 0)
    table = "jobs_queue_done" if mode == "move" else "jobs_queue"
    columns = site.columns("status, attempts, max_attempts, claim, due_at, error_text", table)
    assert columns == ([] if mode == "delete" else [(2, 1, 10, None, None, None)] * 40)
    if mode != "mark":
        assert site.columns("id") == []


def test_a_run_that_has_claimed_one_task_claims_again_for_a_round(
    site: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    assert site.module
    site.add("many", *range(40))
    result = site.run()
    assert (result.taken, result.done, result.released) == (40, 40, 0)
    assert site.shared == [("start", 40), ("complete", 40)]


def test_a_round_has_as_many_tasks_as_the_smallest_of_its_callables_says(site: Rounds) -> None:
    assert site.module
    site.add("five", *range(12))
    assert site.run().done == 12
    assert site.shared == [("start", 5), ("complete", 5), ("start", 5), ("complete", 5), ("start", 2), ("complete", 2)]
    assert site.calls() == list(range(12))
    for number, name in enumerate(["many", "five", "many", "three", "many", "many", "many"]):
        site.add(name, number)
    site.run()
    # Three tasks stood there before the one that allows three.
    assert [count for verb, count in site.shared if verb == "start"] == [3, 3]
    assert site.calls() == list(range(7))
    for number, name in enumerate(["many", "three", "many", "many", "many"]):
        site.add(name, number)
    site.run()
    assert [count for verb, count in site.shared if verb == "start"] == [3, 2]
    assert site.calls() == list(range(5))


def test_the_order_is_that_of_the_claim_whatever_stands_between(site: Rounds) -> None:
    assert site.module
    names = ["many", "many", "single", "five", "several", "many", "many", "single", "many"]
    for number, name in enumerate(names):
        site.add(name, number)
    site.add("many", 10, priority=-1)
    assert site.run().done == 10
    assert site.calls() == [10, *range(9)]
    assert [count for verb, count in site.shared if verb == "start"] == [3, 2]


NEVER_WITH_OTHERS = {
    "started before": "attempts = 1",
    "of one start": "max_attempts = 1",
}


@pytest.mark.parametrize("which", NEVER_WITH_OTHERS)
def test_a_task_that_must_not_share_a_crash_with_others_is_started_alone(site: Rounds, which: str) -> None:
    assert site.module
    ids = site.add("many", *range(5))
    site.rows.set(f"{NEVER_WITH_OTHERS[which]} WHERE id = {ids[2]}")
    assert site.run().done == 5
    assert site.calls() == list(range(5))
    assert [count for verb, count in site.shared if verb == "start"] == [2, 2]


def test_where_settings_allow_one_start_each_task_is_started_alone(
    make_site: Callable[..., Rounds], site_dsn: str
) -> None:
    site = make_site(site_dsn, max_attempts=1)
    assert site.module
    site.add("many", *range(3))
    site.add("thrice", 3, 4)
    assert site.run().done == 5
    assert [count for verb, count in site.shared if verb == "start"] == [2]
    assert site.calls() == list(range(5))


def test_each_task_of_a_round_has_the_limit_of_its_own_callable_or_row(make_site: Any, site_dsn: str) -> None:
    site = make_site(site_dsn, mode="mark")
    assert site.module
    ids = [*site.add("many", 1), *site.add("thrice", 2), *site.add("many", 3, max_attempts=7), *site.add("thrice", 4)]
    assert site.run().done == 4
    assert [row[1] for row in site.columns("id, max_attempts") if row[0] in ids] == [10, 3, 7, 3]
    assert site.shared == []  # one write has one limit for rows that have none: such neighbours are started alone


# ---- how its tasks end


def test_each_task_ends_by_itself(any_site: Rounds) -> None:
    site = any_site
    errors = [None, ValueError("now"), Retry("later", delay=1000), Fatal("never"), SystemExit(3), None]

    def do(n: int) -> Any:
        if (error := errors[n]) is not None:
            raise error
        return {"sum": n}

    site.module.does["many"] = do
    site.add("many", *range(6))
    result = site.run()
    assert (result.done, result.failed, result.fatal) == (2, 3, 1)
    assert site.calls() == list(range(6))
    assert site.figures() == (6, 6, 2, 4, 1)
    failed = [row for row in site.columns("status, attempts, error_text") if row[0] != Status.DONE]
    assert [(status, attempts) for status, attempts, _ in failed] == [(3, 1), (3, 1), (4, 1), (3, 1)]
    assert [text.partition("\n")[0] for *_, text in failed] == [
        "ValueError: now",
        "Retry: later",
        "Fatal: never",
        "SystemExit: 3",
    ]
    due = site.rows.execute("SELECT due_at FROM jobs_queue WHERE status = 3 ORDER BY id")
    assert [site.rows.seconds_from_now(due_at) for (due_at,) in due] == [
        pytest.approx(seconds, abs=30) for seconds in (52, 1000, 52)
    ]
    table = {"delete": None, "move": "jobs_queue_done", "mark": "jobs_queue"}[site.mode]
    if table:
        results = [result for status, result in site.columns("status, result", table) if status == Status.DONE]
        assert results == ['{"sum":0}', '{"sum":5}']


def test_a_task_whose_timeout_ends_it_costs_the_others_nothing(site: Rounds) -> None:
    assert site.module
    site.module.does["brief"] = on(1, lambda: time.sleep(30))
    site.add("brief", *range(4))
    result = site.run()
    assert (result.done, result.failed, site.calls()) == (3, 1, [0, 1, 2, 3])
    assert site.first_lines() == ["TaskInterrupted: it ran for longer than its timeout of 0.2 s"]


def test_a_last_attempt_is_handed_to_on_fatal_after_the_finishes_before_it(site: Rounds) -> None:
    assert site.module
    site.module.does["rescuable"] = on(2, raising(Fatal("no")))
    site.add("rescuable", *range(4))
    assert site.run().done == 4
    assert site.module.rescued == [("Fatal", 2)]
    assert [count for verb, count in site.shared if verb == "complete"] == [2, 2]


def test_a_bad_row_in_a_round_is_fatal_uncounted_and_memory_that_is_short_fails_one_task(
    site: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.module
    ids = site.add("many", *range(5))
    site.rows.set(f"args = '{{\"m\": 1}}' WHERE id = {ids[1]}")
    site.rows.set(f"args = '{{' WHERE id = {ids[4]}")
    real = read_item

    def read(text: str | None) -> Any:
        if text == '{"n":3}':
            raise MemoryError
        return real(text)

    monkeypatch.setattr(preparing, "read_item", read)
    result = site.run()
    assert (result.taken, result.done, result.failed, result.fatal) == (5, 2, 1, 2)
    assert site.calls() == [0, 2]
    assert site.columns("status, attempts") == [(4, 0), (3, 1), (4, 0)]
    assert all(line.startswith(("BadTask: ", "MemoryError: ")) for line in site.first_lines())


@needs_peak
def test_a_round_of_long_arguments_keeps_those_of_one_task_at_a_time(sqlite_queue: Queue) -> None:
    sqlite_queue.define("from taskserver import task\n\n@task(commit_every=200)\ndef eat(text):\n    pass\n")
    text = json.dumps(["x" * 1_000_000])
    for _ in range(150):
        sqlite_queue.add("tasks.eat", text)
    ended = run_telling_peak(sqlite_queue.deployment, "worker.py", "0", "--batch", "200")
    assert (ended.returncode, sqlite_queue.rows()) == (0, [])
    assert int(ended.stderr) < 70_000  # some 190,000 for those of a round


def test_a_stage_of_a_pipeline_and_a_task_that_others_wait_for_go_on_from_a_round(any_site: Rounds) -> None:
    site = any_site
    assert site.module
    site.module.does["many"] = lambda n: {"n": n + 10}
    many, single = f"{site.name}.many", f"{site.name}.single"
    site.server.add_pipeline([many, single], {"n": 1})
    parent = site.server.add_task(many, {"n": 2})
    site.server.add_task(single, {"n": 3}, depends_on=[parent])
    site.server.add_task(many, {"n": 4})
    assert site.run().done == 5
    assert sorted(site.calls()) == [1, 2, 3, 4, 11]
    if site.mode == "move":
        assert len(site.columns("id", "jobs_queue_done")) == 4
    assert site.columns("status, awaited, due_at") == ([(2, 0, None)] * 4 if site.mode == "mark" else [])


COMPLETES = """
def paid(n):
    calls.append(("paid", n))
    connection = does["connect"]()
    connection.cursor().execute("UPDATE jobs_queue_workers SET reason = 'paid' WHERE pid < 0")
    taskserver.complete(connection)
    does["end"](connection)

paid = task(commit_every=50)(paid)
"""


def test_a_task_of_a_round_may_complete_itself(site: Rounds) -> None:
    site.file.write_text(site.file.read_text() + COMPLETES)
    site.module.does["connect"] = lambda: _transaction(site)
    site.module.does["end"] = lambda connection: (connection.commit(), connection.close())
    site.add("paid", *range(3))
    assert site.run().done == 3
    assert (site.calls(), site.columns("id")) == ([0, 1, 2], [])
    site.module.does["end"] = lambda connection: (connection.rollback(), connection.close())
    site.add("paid", *range(3))
    assert site.run().failed == 3
    assert all("that was not committed" in line for line in site.first_lines())


def _transaction(site: Rounds) -> Any:
    connection = new_connection(site.store)
    connection.cursor().execute(site.rows.begin)
    return connection


# ---- one second


def test_what_has_ended_is_written_after_a_second_and_the_round_goes_on(
    site: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "SAVE_SECONDS", 0.0)
    assert site.module
    seen = []
    site.module.does["many"] = lambda n: seen.append(site.columns("attempts"))
    site.add("many", *range(4))
    assert site.run().done == 4
    assert seen == [[(1,)] * count for count in (4, 3, 2, 1)]
    assert [count for verb, count in site.shared if verb == "start"] == [4]


@pytest.mark.parametrize("lease", [120, 2])
def test_what_has_ended_is_written_while_the_next_call_takes_long(
    make_site: Callable[..., Rounds], site_dsn: str, lease: int
) -> None:
    """And counted once the call has ended, whether the heartbeat looks often for the sake of a short lease or not."""
    site = make_site(site_dsn, lease=lease, mode="mark")
    assert site.module
    statuses: list[list[int]] = []

    def wait() -> None:
        wait_until(lambda: site.rows.statuses()[:2] == [2, 3])
        statuses.append(site.rows.statuses())

    site.module.does["many"] = lambda n: {1: raising(ValueError()), 2: wait}.get(n, lambda: None)()
    site.add("many", *range(4))
    result = site.run()
    assert (result.taken, result.done, result.failed) == (4, 3, 1)
    assert statuses[0][2] == Status.IN_PROGRESS
    assert (site.calls(), site.rows.statuses()) == ([0, 1, 2, 3], [2, 3, 2, 2])


def test_started_tasks_behind_a_long_call_are_given_back_as_if_never_claimed(
    make_site: Callable[..., Rounds], site_dsn: str
) -> None:
    site = make_site(site_dsn, lease=2)
    assert site.module
    ids = site.add("many", *range(3))
    [waits] = site.add("many", 3, max_attempts=5)
    before = {row["id"]: row for row in site.rows.all()}

    def wait() -> None:
        wait_until(lambda: site.rows.row(waits)["status"] == Status.NEW)
        for task_id in (ids[2], waits):
            row = site.rows.row(task_id)
            assert (row["claim"], row["started_at"], row["due_at"]) == (None, None, None)
            limit = row["max_attempts"]  # which the start recorded
            assert row == before[task_id] | {"claim": None, "due_at": None, "max_attempts": limit}

    site.module.does["many"] = on(1, wait)
    result = site.run()
    assert (result.taken, result.done, result.released, result.failed) == (4, 4, 2, 0)
    assert site.calls() == [0, 1, 2, 3]
    assert site.figures()[:3] == (4, 4, 4)


@pytest.mark.parametrize("meanwhile", ["cancelled", "changed", "taken away", "deleted"])
def test_what_became_of_a_started_task_is_found_out_before_its_turn(
    any_site: Rounds, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """After a second: a round that is over sooner does not look."""
    site = any_site
    monkeypatch.setattr(rounds, "LOOK_AT_ROUND_SECONDS", 0.0)
    assert site.module
    name = f"{site.name}.many"
    ids = [site.server.add_task(name, {"n": n}, unique_key=f"k{n}") for n in range(3)]
    deeds: dict[str, Callable[[], object]] = {
        "cancelled": lambda: site.server.cancel(ids[1]),
        "changed": lambda: site.server.add_task(name, {"n": 11}, unique_key="k1", rerun=True),
        "taken away": lambda: site.rows.set(f"claim = 5 WHERE id = {ids[1]}"),
        "deleted": lambda: site.rows.execute(f"DELETE FROM jobs_queue WHERE id = {ids[1]}"),
    }
    site.module.does["many"] = on(0, deeds[meanwhile])
    result = site.run()
    left = [row for row in site.columns("id, status, attempts, error_text") if row[0] == ids[1]]
    if meanwhile == "changed":
        assert (site.calls(), result.done) == ([0, 1, 2, 11], 4)
    else:
        assert (site.calls(), result.done, result.taken) == ([0, 2], 2, 3)
    if meanwhile == "cancelled":
        assert (result.cancelled, left) == (1, [(ids[1], 7, 1, CANCELLED)])
    elif meanwhile != "changed":
        assert result.lost == 1
        assert left == ([(ids[1], 1, 1, None)] if meanwhile == "taken away" else [])


@pytest.mark.parametrize("meanwhile", ["cancelled", "changed", "taken away", "deleted"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_became_of_a_task_that_has_run_is_found_out_as_its_finish_is_written(
    any_site: Rounds, meanwhile: str, fails: bool
) -> None:
    site = any_site
    assert site.module
    name = f"{site.name}.many"
    ids = [site.server.add_task(name, {"n": n}, unique_key=f"k{n}") for n in range(3)]
    deeds: dict[str, Callable[[], object]] = {
        "cancelled": lambda: site.server.cancel(ids[1]),
        "changed": lambda: site.server.add_task(name, {"n": 11}, unique_key="k1", rerun=True),
        "taken away": lambda: site.rows.set(f"claim = 5 WHERE id = {ids[1]}"),
        "deleted": lambda: site.rows.execute(f"DELETE FROM jobs_queue WHERE id = {ids[1]}"),
    }

    def do(n: int) -> None:
        if n == 2:
            deeds[meanwhile]()
        if n == 1 and fails:
            raise ValueError

    site.module.does["many"] = do
    result = site.run()
    assert site.calls() == [0, 1, 2, *([11] if meanwhile == "changed" else [])]
    left = [row for row in site.columns("id, status, attempts") if row[0] == ids[1] and row[1] != Status.DONE]
    if meanwhile == "cancelled":  # which came too late for one that is done
        assert (result.done, result.cancelled, left) == ((2, 1, [(ids[1], 7, 1)]) if fails else (3, 0, []))
    elif meanwhile == "changed":
        assert (result.done + result.failed, left) == (4, [])
    else:
        assert (result.done, result.lost) == (2, 1)
        assert left == ([(ids[1], 1, 1)] if meanwhile == "taken away" else [])


@pytest.mark.parametrize("meanwhile", ["cancelled", "changed", "taken away", "deleted"])
@pytest.mark.parametrize("which", [1, 4], ids=["finished", "started"])
def test_what_became_of_a_row_is_found_out_as_one_round_is_finished_and_the_next_started(
    any_site: Rounds, meanwhile: str, which: int
) -> None:
    site = any_site
    assert site.module
    name = f"{site.name}.three"
    ids = [site.server.add_task(name, {"n": n}, unique_key=f"k{n}") for n in range(6)]
    deeds: dict[str, Callable[[], object]] = {
        "cancelled": lambda: site.server.cancel(ids[which]),
        "changed": lambda: site.server.add_task(name, {"n": 11}, unique_key=f"k{which}", rerun=True),
        "taken away": lambda: site.rows.set(f"claim = 5 WHERE id = {ids[which]}"),
        "deleted": lambda: site.rows.execute(f"DELETE FROM jobs_queue WHERE id = {ids[which]}"),
    }
    site.module.does["three"] = on(2, deeds[meanwhile])
    result = site.run()
    called = [n for n in range(6) if n < 3 or n != which]
    assert site.calls() == [*called, *([11] if meanwhile == "changed" else [])]
    left = [row for row in site.columns("id, status") if row[0] == ids[which] and row[1] != Status.DONE]
    # A cancel came too late for a task that has run; one that was not started is fatal at once, or new with its change.
    done = 7 if (meanwhile, which) == ("changed", 1) else 6 if "c" in meanwhile[0] and which == 1 else 5
    done += (meanwhile, which) == ("changed", 4)
    assert (result.done, result.fatal, result.failed) == (done, 0, 0)
    assert left == {"cancelled": [(ids[which], 7)] if which == 4 else [], "taken away": [(ids[which], 1)]}.get(
        meanwhile, []
    )


# ---- the end of a run in the midst of a round


def ask_to_stop(site: Rounds, number: int) -> dict[str, Any]:
    stop = Stop()
    site.module.does["many"] = on(number, stop.ask)
    return {"stop": stop}


def be_large(site: Rounds, number: int) -> dict[str, Any]:
    megabytes = [10.0]
    limits.process_megabytes = lambda: megabytes[-1]
    site.module.does["many"] = on(number, lambda: megabytes.append(200.0))
    return {"max_memory": 150}


def take_long(site: Rounds, number: int) -> dict[str, Any]:
    site.module.does["many"] = on(number, lambda: time.sleep(0.6))
    return {"max_time": 0.6}


def not_fit(site: Rounds, number: int) -> dict[str, Any]:
    """As its history says; that is asked of a task that has been taken."""
    ended: list[int] = []

    def fits(of_run: limits.RunLimits, seconds: float, waited_seconds: float) -> bool:
        of_run._is_full = bool(ended)
        return not ended

    limits.RunLimits.fits = fits  # type: ignore[method-assign, assignment]
    site.module.does["many"] = on(number, lambda: ended.append(number))
    return {"max_time": 600}


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (ask_to_stop, Reason.STOPPED),
        (be_large, Reason.MAX_MEMORY),
        (take_long, Reason.MAX_TIME),
        (not_fit, Reason.MAX_TIME),
    ],
)
def test_a_run_that_is_to_end_gives_started_tasks_back_uncounted(
    site: Rounds, monkeypatch: pytest.MonkeyPatch, end: Callable[[Rounds, int], dict[str, Any]], reason: Reason
) -> None:
    assert site.module
    monkeypatch.setattr(limits, "process_megabytes", limits.process_megabytes)  # put back after the test
    monkeypatch.setattr(limits.RunLimits, "fits", limits.RunLimits.fits)
    site.add("many", *range(6))
    result = site.run(**end(site, 1))
    assert (result.taken, result.done, result.released, result.reason) == (2, 2, 4, reason)
    assert site.calls() == [0, 1]
    columns = site.columns("status, attempts, max_attempts, claim, started_at, due_at")
    assert columns == [(0, 0, 10, None, None, None)] * 4  # the limit that their start recorded stays
    assert site.shared == [("start", 6), ("complete", 2), ("unstart", 4)] or site.shared == [
        ("start", 6),
        ("unstart", 4),
    ]
    assert site.run().done == 4


def test_max_tasks_counts_the_tasks_of_rounds(site: Rounds) -> None:
    assert site.module
    site.add("many", *range(6))
    result = site.run(4)
    assert (result.taken, result.done, result.reason) == (4, 4, Reason.MAX_TASKS)
    assert (site.calls(), site.columns("attempts")) == ([0, 1, 2, 3], [(0,)] * 2)


def test_a_started_task_that_was_given_back_is_started_anew_by_the_same_run(site: Rounds) -> None:
    """Its start is not taken for the one that was taken back."""
    assert site.module
    site.add("many", *range(4))
    attempts = []

    def do(n: int) -> None:
        attempts.append(site.columns("attempts")[0])
        if n == 0:  # as if half of the lease had passed
            for claimed in gc.get_objects():
                if isinstance(claimed, Claimed):
                    claimed.give_back_at = 0.0

    site.module.does["many"] = do
    assert site.run().done == 4
    assert (site.calls(), attempts) == ([0, 1, 2, 3], [(1,)] * 4)
    assert site.shared[:3] == [("start", 4), ("unstart", 3), ("start", 3)]


# ---- rows that others hold, and writes that fail


def test_a_row_that_a_page_holds_has_the_others_of_its_round_run_without_it(server_site: Rounds) -> None:
    site = server_site
    assert site.module
    ids = site.add("many", *range(5))
    page = Rows(site.dsn)
    page.execute("BEGIN")
    real = site.store.claims.claim

    def claim(limit: int, groups: Sequence[int], number: int | None = None) -> Claim:
        claimed = real(limit, groups, number)
        if claimed.tasks:
            page.execute(f"SELECT * FROM jobs_queue WHERE id = {ids[2]} FOR UPDATE")
        return claimed

    site.store.claims.claim = claim  # type: ignore[method-assign]
    site.module.does["many"] = on(4, lambda: page.execute("ROLLBACK"))
    result = site.run()
    page.close()
    assert (result.taken, result.done, result.lost) == (5, 5, 0)
    assert site.calls() == [0, 1, 3, 4, 2]


@pytest.mark.parametrize("is_to_end", [False, True])
def test_a_started_task_whose_row_a_page_holds_is_given_back_once_it_is_free(
    server_site_dsn: str, make_site: Callable[..., Rounds], is_to_end: bool
) -> None:
    """By the heartbeat, while a call takes long; or by the run, which ends."""
    site = make_site(server_site_dsn, lease=2)
    assert site.module
    ids = site.add("many", *range(5))
    stop = Stop()
    with ThreadPoolExecutor(1) as beside, closing(Rows(site.dsn)) as page:
        page.execute("BEGIN")

        def let_go_once_the_others_are_new() -> None:
            rows = Rows(site.dsn)
            where = f"WHERE status = 0 AND id > {ids[0]}"
            wait_until(lambda: rows.execute(f"SELECT COUNT(*) FROM jobs_queue {where}") == [(3,)])
            rows.close()
            page.execute("ROLLBACK")

        def hold() -> None:
            page.execute(f"SELECT * FROM jobs_queue WHERE id = {ids[2]} FOR UPDATE")
            beside.submit(let_go_once_the_others_are_new)
            if is_to_end:
                stop.ask()
            else:
                wait_until(lambda: site.rows.row(ids[2])["status"] == Status.NEW)

        site.module.does["many"] = on(0, hold)
        result = site.run(stop=stop)
    assert (result.released, result.lost) == (4, 0)
    assert site.columns("attempts, max_attempts, claim") == ([(0, 10, None)] * 4 if is_to_end else [])
    assert result.done == (1 if is_to_end else 5)


def test_an_ended_task_whose_row_a_page_holds_keeps_no_other_from_its_end(server_site: Rounds) -> None:
    site = server_site
    assert site.module
    ids = site.add("many", *range(4))
    with ThreadPoolExecutor(1) as beside, closing(Rows(site.dsn)) as page:
        page.execute("BEGIN")

        def hold() -> None:
            page.execute(f"SELECT * FROM jobs_queue WHERE id = {ids[1]} FOR UPDATE")
            beside.submit(let_go_once_alone)

        def let_go_once_alone() -> None:
            rows = Rows(site.dsn)
            wait_until(lambda: rows.execute("SELECT id FROM jobs_queue") == [(ids[1],)])
            rows.close()
            page.execute("ROLLBACK")

        site.module.does["many"] = on(3, hold)
        result = site.run()
    assert (result.done, result.lost, site.columns("id")) == (4, 0, [])


def test_a_start_that_fails_gives_all_back(site: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    assert site.module
    site.add("many", *range(3))
    with monkeypatch.context() as patch:
        patch.setattr(Batches, "start", failing(DatabaseError("the disk is full")))
        with pytest.raises(DatabaseError, match="disk is full"):
            site.run()
    assert site.columns("status, attempts, claim") == [(0, 0, None)] * 3
    assert site.run().done == 3


def test_bad_rows_that_cannot_be_recorded_have_the_tasks_beside_them_given_back(
    site: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.module
    good = site.add("many", 0, 1)
    for _ in range(60):  # more than wait for their end to be written
        site.server.add_task(f"{site.name}.many", {"m": 1})
    good += site.add("many", 2)
    monkeypatch.setattr(site.store.finishes, "advance", failing(Unavailable("gone")))
    with pytest.raises(Unavailable, match="gone"):
        site.run()
    assert [row[1:] for row in site.columns("id, status, attempts") if row[0] in good] == [(0, 0)]
    assert site.calls() == [0, 1]


def test_a_finish_of_all_that_is_refused_is_made_up_for_by_one_of_each(
    site: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.module
    site.add("three", *range(5))
    for verb in ("complete", "complete_and_start"):
        monkeypatch.setattr(Batches, verb, failing(DatabaseError("an error of a trigger")))
    assert site.run().done == 5
    assert (site.columns("id"), site.calls()) == ([], list(range(5)))


@pytest.mark.parametrize("verb", ["complete", "complete_and_start"])
def test_finishes_that_cannot_be_written_are_told_and_leave_all_started(
    site: Rounds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    assert site.module
    site.add("three", *range(5))
    for name in (verb, "complete"):
        monkeypatch.setattr(Batches, name, failing(Unavailable("gone")))
    with caplog.at_level("INFO", "taskserver"), pytest.raises(Unavailable, match="gone"):
        site.run(3 if verb == "complete" else 0)
    told = {message for message in caplog.messages if "could not be recorded" in message}
    assert told == {f"task {one} {site.name}.three has ended, which could not be recorded" for one in (1, 2, 3)}
    assert site.columns("status, attempts") == [(1, 1)] * 3 + [(0, 0)] * 2


def test_a_task_whose_finish_fails_in_the_midst_of_a_round_is_not_given_back_as_if_it_had_not_run(
    site: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finishing, "SAVE_SECONDS", 0.0)
    assert site.module

    def run(n: int) -> None:
        if n:  # the first of a round is started in its turn, the others are started behind it
            monkeypatch.setattr(site.store.finishes, "advance", failing(Unavailable("gone")))

    site.module.does["many"] = run
    site.add("many", *range(4))
    with pytest.raises(Unavailable, match="gone"):
        site.run()
    assert (site.calls(), site.columns("status, attempts")) == ([0, 1], [(1, 1), (0, 0), (0, 0)])


def failing(error: Exception) -> Callable[..., Any]:
    def fail(*values: Any) -> Any:
        raise error

    return fail


def test_a_row_that_the_database_does_not_let_go_stays_as_a_done_one(
    site: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site.module
    ids = site.add("many", *range(3))
    for statement in REFUSE_DELETE[site.rows.kind]:
        site.rows.execute(statement.format(ids[1]))
    try:
        assert site.run().done == 3
    finally:
        site.rows.execute(LET_DELETE[site.rows.kind])
    assert site.columns("id, status") == [(ids[1], Status.DONE)]


# ---- a connection that breaks

START, FINISH = b"started_at = NOW(6), due_at", b"finish"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["many", "three"], ids=["in one round", "in two rounds"])
@pytest.mark.parametrize(
    ("words", "is_done"), [(START, True), (START, False), (FINISH, True), (FINISH, False), (b"COMMIT", True)]
)
def test_a_connection_that_breaks_has_each_task_of_a_round_run_once(
    make_site: Callable[..., Rounds],
    mysql_server: MySQLServer,
    emptied_mysql_dsn: str,
    mode: str,
    name: str,
    words: bytes,
    is_done: bool,
) -> None:
    if words == FINISH:
        words = {"delete": b"DELETE FROM", "mark": b"status = 2", "move": b"status = 6"}[mode]
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        site = make_site(proxy.dsn(emptied_mysql_dsn), mode=mode)
        assert site.module
        cuts = []

        def cut() -> None:
            cuts.append((proxy.cut_after if is_done else proxy.cut_before)(contains(words)))

        site.add(name, *range(6))
        if words == b"COMMIT" or name == "three":  # as the only round ends, or between both
            site.module.does[name] = on(5 if name == "many" else 2, cut)
        else:
            cut()
        result = site.run()
        assert cuts[0].has_struck
        assert (result.done, result.lost, result.failed) == (6, 0, 0)
        assert site.calls() == list(range(6))
        assert site.columns("id, attempts") == ([] if mode != "mark" else [(n, 1) for n in range(1, 7)])
        assert len(site.columns("id", "jobs_queue_done")) == (6 if mode == "move" else 0)


# ---- real processes

TASKS = """
import os
import signal
import time

from taskserver import task

@task(commit_every=10, backoff="fixed:500")
def quick(n):
    note(n)
    for what in HERE.glob(f"does-{n}"):
        exec(what.read_text())
"""
SETTINGS = {"TASKSERVER_LEASE": "600"}


def add_quick(queue: Queue, count: int, does: dict[int, str] | None = None) -> None:
    for number in range(count):
        queue.add("tasks.quick", f'{{"n": {number}}}')
    for number, code in (does or {}).items():
        (queue.folder / f"does-{number}").write_text(code)


KILL = "(HERE / f'does-{n}').unlink()\nos.kill(os.getpid(), signal.SIGKILL)"


def test_a_kill_in_the_midst_of_a_round_costs_its_tasks_an_attempt_and_loses_none(queue: Queue) -> None:
    """The module is imported with the first task, which so has a start and a finish of its own."""
    add_quick(queue, 8, {4: KILL})
    assert queue.worker().returncode == -signal.SIGKILL
    assert queue.notes() == ["0", "1", "2", "3", "4"]
    assert queue.rows("status, attempts") == [(1, 1)] * 8 or queue.rows("status, attempts") == [(1, 1)] * 7
    left = len(queue.rows())
    assert queue.worker().returncode == 0
    assert len(queue.notes()) == 5  # not within their lease
    queue.end_leases()
    assert queue.worker().returncode == 0
    assert queue.rows("status, attempts") == [(3, 1)] * left
    assert all(text.startswith("lost: ") for text in queue.errors())
    queue.end_backoffs()
    assert queue.worker("--mode", "mark").returncode == 0
    ran = [int(number) for number in queue.notes()]
    assert set(ran) == set(range(8))
    assert ran.count(5) == ran.count(6) == ran.count(7) == 1
    assert all(ran.count(number) == 2 for number in (1, 2, 3, 4))
    assert queue.rows("status, attempts") == [(2, 2)] * left


def test_a_task_that_kills_its_worker_each_time_takes_no_other_along(queue: Queue) -> None:
    queue.deployment.write_env(TASKSERVER_DSN=queue.dsn, TASKSERVER_LEASE="600", TASKSERVER_MAX_ATTEMPTS="3")
    add_quick(queue, 6, {3: "os.kill(os.getpid(), signal.SIGKILL)"})
    for _ in range(3):
        assert queue.worker("--mode", "mark").returncode == -signal.SIGKILL
        queue.end_leases()
        queue.worker("--mode", "mark")
        queue.end_backoffs()
    assert queue.worker("--mode", "mark").returncode == 0
    assert queue.statuses() == [2, 2, 2, 4, 2, 2]
    assert max(attempts for status, attempts in queue.rows("status, attempts") if status == 2) == 2


def test_a_worker_that_was_frozen_in_a_round_calls_and_changes_nothing_that_was_taken_back(queue: Queue) -> None:
    queue.deployment.write_env(TASKSERVER_DSN=queue.dsn, TASKSERVER_LEASE="3")
    add_quick(queue, 6, {2: "os.kill(os.getpid(), signal.SIGSTOP)"})
    process = queue.start()
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    stood_still_at = time.monotonic()
    queue.end_leases()
    assert queue.worker().returncode == 0
    taken_back = queue.rows("id, status, attempts")
    assert [row[1:] for row in taken_back] == [(3, 1)] * 6
    wait_until(lambda: time.monotonic() > stood_still_at + 0.3)  # a twelfth of the lease
    thaw(process)
    code, _, errors = end_of(process)
    assert (code, queue.notes(), queue.rows("id, status, attempts")) == (0, ["0", "1", "2"], taken_back)
    assert errors.count("the lease was lost while it ran") == 3


HANG = "\nwhile not (HERE / 'go').exists():\n    time.sleep(0.01)\n"


@pytest.mark.parametrize("asked", [1, 2])
def test_a_worker_asked_to_end_in_a_round_ends_after_its_task_and_one_asked_twice_fails_it(
    queue: Queue, asked: int
) -> None:
    add_quick(queue, 8, {2: HANG})
    process = queue.start("--mode", "mark")
    wait_until(lambda: queue.notes() == ["0", "1", "2"])
    process.send_signal(signal.SIGTERM)
    if asked == 2:
        process.send_signal(signal.SIGINT)  # two of one kind may come as one
    else:
        queue.go()
    assert end_of(process)[0] == 0
    assert queue.notes() == ["0", "1", "2"]
    ended = (3, 1) if asked == 2 else (2, 1)
    assert queue.rows("status, attempts") == [(2, 1), (2, 1), ended] + [(0, 0)] * 5
    assert queue.reason() == "stopped"
    if asked == 2:
        assert queue.first_lines()[2] == "TaskInterrupted: stopped by a second signal"


def test_workers_that_race_for_rounds_call_each_task_once(queue: Queue) -> None:
    """Both are in a call at the same time: neither ends before the other has begun."""
    meet = "(HERE / f'met-{os.getpid()}').touch()\nwhile len(list(HERE.glob('met-*'))) < 2:\n    time.sleep(0.01)\n"
    add_quick(queue, 60, dict.fromkeys(range(60), meet))
    workers = [queue.start(0, "--batch", 15) for _ in range(2)]
    assert [end_of(worker)[0] for worker in workers] == [0, 0]
    assert sorted(map(int, queue.notes())) == list(range(60))
    assert len(list(queue.folder.glob("met-*"))) == 2
    assert queue.rows() == []
