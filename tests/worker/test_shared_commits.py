"""Callables whose tasks share their commits, `@task(commit_every=N)`: one start and one finish for up to N of them.

With what holds for a batch, `@task(batch=N)`, too: a task that was taken away, and a start or a connection that breaks.
What kills and races do to rounds is shown by tests/process/test_several_at_once.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from taskserver import DatabaseError, Fatal, Retry, RunResult, Stop
from taskserver.errors import Unavailable
from taskserver.model.task import ClaimedTask, Status
from taskserver.stores.queue.batches import Batches
from taskserver.worker import finishing, rounds
from taskserver.worker.result import Reason
from tests.support.databases import ON_MYSQL
from tests.support.processes import wait_until
from tests.support.proxy import Proxy, contains
from tests.support.rows import holding
from tests.support.servers import MySQLServer
from tests.support.sites import NumberedSite

CODE = """
from taskserver import task

calls = []
does = {}

def noted(name, n):
    calls.append(n)
    return does.get(name, lambda n: None)(n)

@task(commit_every=3)
def three(n): return noted("three", n)

@task(commit_every=500, backoff="fixed:50")
def many(n): return noted("many", n)

def single(n): return noted("single", n)

@task(batch=500)
def batch(items):
    for item in items:
        noted("batch", item["n"])
"""
pytestmark = pytest.mark.usefixtures("whole_claims")


class Rounds(NumberedSite):
    """It records the writes that several tasks shared."""

    def __init__(self, *site: Any) -> None:
        super().__init__(*site)
        self.shared: list[tuple[str, int]] = []
        """What was written, and for how many tasks."""

    def calls(self) -> list[int]:
        """The numbers of the tasks that were called."""
        return list(self.module.calls)

    def starts(self) -> list[int]:
        return [count for verb, count in self.shared if verb == "start"]

    def run(self, max_tasks: int = 0, **how: Any) -> RunResult:
        """Imports the module first, because a task that imports it is started by itself."""
        assert self.module
        self.shared.clear()
        with pytest.MonkeyPatch.context() as patch:
            for verb in ("start", "complete", "unstart", "complete_and_start"):
                patch.setattr(Batches, verb, self._noting(verb, getattr(Batches, verb)))
            return super().run(max_tasks, **how)

    def _noting(self, verb: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(batches: Batches, *given: Any) -> Any:
            self.shared += [(word, len(tasks)) for word, tasks in zip(verb.split("_and_"), given, strict=False)]
            return real(batches, *given)

        return write


SITE = Rounds


def on(number: int, does: Callable[[], Any]) -> Callable[[int], Any]:
    """A function that does this for the task with this number, and nothing for others."""
    return lambda n: does() if n == number else None


def failing(error: BaseException) -> Callable[..., Any]:
    def fail(*values: Any) -> Any:
        raise error

    return fail


# ---- a round


def test_tasks_are_called_one_by_one_between_one_start_and_one_finish(any_site: Rounds) -> None:
    site, mode = any_site, any_site.mode
    site.add("many", *range(40))
    result = site.run()
    assert (result.taken, result.done, result.released, result.reason) == (40, 40, 0, Reason.EMPTY)
    assert (site.calls(), site.figures()) == (list(range(40)), (40, 40, 40, 0, 0))
    assert site.shared == [("start", 40), ("complete", 40)]
    table = "jobs_queue_done" if mode == "move" else "jobs_queue"
    columns = site.columns("status, attempts, max_attempts, claim, due_at, error_text", table)
    assert columns == ([] if mode == "delete" else [(2, 1, 10, None, None, None)] * 40)
    assert mode == "mark" or site.columns("id") == []


def test_a_round_has_as_many_neighbours_as_each_allows(site: Rounds) -> None:
    for number, name in enumerate(["many", "three", "many", "many", "many", "single", "many", "batch", "many"]):
        site.add(name, number)
    assert site.run().done == 9
    assert (site.calls(), site.starts()) == (list(range(9)), [3, 2])


@pytest.mark.parametrize("column", ["attempts = 1", "max_attempts = 1"])
def test_a_task_that_must_not_share_a_crash_with_others_is_started_by_itself(site: Rounds, column: str) -> None:
    """It was started before, or may start only once."""
    ids = site.add("many", *range(5))
    site.rows.set(f"{column} WHERE id = {ids[2]}")
    assert site.run().done == 5
    assert (site.calls(), site.starts()) == (list(range(5)), [2, 2])


def test_each_task_ends_by_itself(make_site: Any, queue_dsn: str) -> None:
    site = make_site(queue_dsn, mode="mark")
    errors = [None, ValueError("now"), Retry("later", delay=1000), Fatal("never"), SystemExit(3)]

    def do(n: int) -> Any:
        if (error := errors[n]) is not None:
            raise error
        return {"sum": n}

    site.module.does["many"] = do
    ids = site.add("many", *range(6))
    site.rows.set(f"args = '{{\"m\": 1}}' WHERE id = {ids[5]}")
    result = site.run()
    assert (result.done, result.failed, result.fatal) == (1, 3, 2)
    assert site.calls() == list(range(5))
    assert site.columns("status, attempts, result") == [
        (2, 1, '{"sum":0}'), (3, 1, None), (3, 1, None), (4, 1, None), (3, 1, None), (4, 0, None),
    ]  # fmt: skip
    assert site.first_lines()[1:5] == ["ValueError: now", "Retry: later", "Fatal: never", "SystemExit: 3"]
    due = site.rows.execute("SELECT due_at FROM jobs_queue WHERE status = 3 ORDER BY id")
    waits = [site.rows.seconds_from_now(due_at) for (due_at,) in due]
    assert waits == [pytest.approx(seconds, abs=30) for seconds in (52, 1000, 52)]


def test_what_has_ended_is_written_while_the_next_call_takes_long(make_site: Any, queue_dsn: str) -> None:
    site = make_site(queue_dsn, mode="mark")
    site.module.does["many"] = on(2, lambda: wait_until(lambda: site.rows.statuses() == [2, 2, Status.IN_PROGRESS, 1]))
    site.add("many", *range(4))
    assert site.run().done == 4


# ---- what others do to its rows meanwhile


@pytest.mark.parametrize("name", ["batch", "many"])
def test_a_task_taken_before_its_start_is_not_called(site: Rounds, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = Batches.start

    def start(batches: Batches, tasks: Sequence[ClaimedTask], max_attempts: int) -> set[int]:
        site.rows.set(f"claim = 5 WHERE id = {tasks[1].id}")
        return real(batches, tasks, max_attempts)

    site.add(name, 0, 1, 2)
    monkeypatch.setattr(Batches, "start", start)
    assert (site.run().done, site.calls()) == (2, [0, 2])
    assert site.columns("id, status, claim") == [(2, 1, 5)]


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_task_that_is_cancelled_or_taken_before_its_turn_is_not_called(
    site: Rounds, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """A round that is over within a second does not look before each turn."""
    monkeypatch.setattr(rounds, "LOOK_AT_ROUND_SECONDS", 0.0)
    ids = site.add("three", *range(6))
    take = partial(site.rows.set, f"claim = 5 WHERE id = {ids[1]}")
    site.module.does["three"] = on(0, partial(site.server.cancel, ids[1]) if is_cancelled else take)
    result = site.run()
    assert (result.done, result.cancelled, result.lost) == (5, is_cancelled, not is_cancelled)
    assert site.calls() == [0, 2, 3, 4, 5]
    assert site.columns("id, status") == [(ids[1], Status.CANCELLED if is_cancelled else Status.IN_PROGRESS)]


# ---- started tasks are given back as if they had never been claimed


def test_a_run_that_has_to_end_gives_started_tasks_back_uncounted(site: Rounds) -> None:
    stop = Stop()
    site.add("many", *range(6))
    site.module.does["many"] = on(1, stop.ask)
    result = site.run(stop=stop)
    assert (result.taken, result.done, result.released, result.reason) == (2, 2, 4, Reason.STOPPED)
    columns = site.columns("status, attempts, max_attempts, claim, started_at, due_at")
    assert (site.calls(), columns) == ([0, 1], [(0, 0, 10, None, None, None)] * 4)  # the limit of their start stays
    assert [one for one in site.shared if one[0] != "complete"] == [("start", 6), ("unstart", 4)]
    assert site.run().done == 4


@ON_MYSQL
def test_a_started_task_whose_row_is_held_is_given_back_once_it_is_free(make_site: Any, queue_dsn: str) -> None:
    site = make_site(queue_dsn, lease=2)
    ids = site.add("many", *range(5))
    with ExitStack() as stack:

        def work() -> None:
            release = stack.enter_context(holding(site.dsn, f"id = {ids[2]}"))
            wait_until(lambda: site.rows.statuses().count(Status.NEW) == 3)
            release()
            wait_until(lambda: site.rows.row(ids[2])["status"] == Status.NEW)

        site.module.does["many"] = on(0, work)
        result = site.run()
    assert (result.released, result.lost, result.done) == (4, 0, 5)


# ---- writes that fail


@pytest.mark.parametrize("name", ["batch", "many"])
def test_a_start_that_fails_gives_all_back(site: Rounds, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    site.add(name, *range(3))
    with monkeypatch.context() as patch:
        patch.setattr(Batches, "start", failing(DatabaseError("the disk is full")))
        with pytest.raises(DatabaseError, match="disk is full"):
            site.run()
    assert site.columns("status, attempts, claim") == [(0, 0, None)] * 3
    assert site.run().done == 3


@pytest.mark.parametrize("verb", ["complete", "complete_and_start"])
def test_finishes_that_cannot_be_written_are_logged_and_leave_all_started(
    site: Rounds, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verb: str
) -> None:
    site.add("three", *range(5))
    for name in (verb, "complete"):
        monkeypatch.setattr(Batches, name, failing(Unavailable("gone")))
    with caplog.at_level("INFO", "taskserver"), pytest.raises(Unavailable, match="gone"):
        site.run(3 if verb == "complete" else 0)
    logged = {message for message in caplog.messages if "could not be recorded" in message}
    assert logged == {f"task {one} {site.name}.three has ended, but that could not be recorded" for one in (1, 2, 3)}
    assert site.columns("status, attempts") == [(1, 1)] * 3 + [(0, 0)] * 2


def test_a_task_whose_finish_fails_is_not_given_back(site: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishing, "SAVE_SECONDS", 0.0)

    def run(n: int) -> None:
        if n:  # the first of a round is started in its turn, the others are started behind it
            monkeypatch.setattr(site.store.finishes, "advance", failing(Unavailable("gone")))

    site.module.does["many"] = run
    site.add("many", *range(4))
    with pytest.raises(Unavailable, match="gone"):
        site.run()
    assert (site.calls(), site.columns("status, attempts")) == ([0, 1], [(1, 1), (0, 0), (0, 0)])


START, FINISH = b"started_at = NOW(6), due_at", b"status = 2"


@pytest.mark.parametrize(("words", "is_done"), [(START, True), (FINISH, False), (FINISH, True), (b"COMMIT", True)])
@pytest.mark.parametrize(("name", "last"), [("batch", 5), ("many", 5), ("three", 2)])
def test_each_task_runs_once_though_the_connection_breaks(
    make_site: Callable[..., Rounds],
    mysql_server: MySQLServer,
    mysql_queue_dsn: str,
    name: str,
    last: int,
    words: bytes,
    is_done: bool,
) -> None:
    """At the start, at the finish, and where one round is finished and the next one started."""
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        site = make_site(proxy.dsn(mysql_queue_dsn), mode="mark")
        cuts = []
        cut = proxy.cut_after if is_done else proxy.cut_before
        site.add(name, *range(6))
        if words == START and name != "three":
            cuts.append(cut(contains(words)))
        else:
            site.module.does[name] = on(last, lambda: cuts.append(cut(contains(words))))
        result = site.run()
        assert cuts[0].has_struck
        assert (result.done, result.lost, result.failed) == (6, 0, 0)
        assert site.calls() == list(range(6))
        assert site.columns("id, attempts") == [(n, 1) for n in range(1, 7)]
