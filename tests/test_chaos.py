"""Chaos in its short form, for each store, and proof that its checks find what they look for.

The long form is `python -m tests.chaos`; a failure names the seed, with which it replays the schedule of faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.checks import check_all, match_begins
from tests.chaos.evidence import Event, Evidence, Row, Run, Strike, WorkerRun
from tests.chaos.report import Report
from tests.chaos.run import run_chaos
from tests.chaos.schedule import FAULTS, make_schedule, wish
from tests.chaos.settings import LEASE_SECONDS, SLOTS
from tests.chaos.spans import Span, merged, unreached
from tests.chaos.tasks import TASK_KINDS
from tests.chaos.witnesses import read_runs
from tests.conftest import without
from tests.proxy import Link
from tests.servers import missing_programs

SHORT_SECONDS = 12.0
LONG_SECONDS = 90.0


def chaos(dsn_kind: str, seconds: float, folder: Path) -> Report:
    if dsn_kind == "mysql" and (missing := missing_programs()):
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    report = run_chaos(dsn_kind, seconds, random.SystemRandom().randrange(1_000_000), folder)
    print(report)
    return report


@pytest.mark.parametrize("dsn_kind", ["sqlite", "mysql"])
def test_every_promise_holds_under_every_fault(dsn_kind: str, tmp_path: Path) -> None:
    report = chaos(dsn_kind, SHORT_SECONDS, tmp_path)
    assert not report.failures, f"{report}"


@pytest.mark.long
@pytest.mark.parametrize("dsn_kind", ["sqlite", "mysql"])
def test_every_promise_holds_under_many_faults(dsn_kind: str, tmp_path: Path) -> None:
    report = chaos(dsn_kind, LONG_SECONDS, tmp_path)
    assert not report.failures, f"{report}"


# ---- the schedule


@pytest.mark.parametrize("dsn_kind", FAULTS)
def test_a_seed_gives_one_schedule_and_another_seed_another(dsn_kind: str) -> None:
    assert make_schedule(dsn_kind, 60.0, 7) == make_schedule(dsn_kind, 60.0, 7)
    assert make_schedule(dsn_kind, 60.0, 7) != make_schedule(dsn_kind, 60.0, 8)


@pytest.mark.parametrize("dsn_kind", FAULTS)
@pytest.mark.parametrize("seed", range(50))
def test_the_short_form_plans_every_kind_of_fault_and_every_slot(dsn_kind: str, seed: int) -> None:
    schedule = make_schedule(dsn_kind, SHORT_SECONDS, seed)
    assert {fault.kind for fault in schedule} == set(FAULTS[dsn_kind])
    assert {fault.slot for fault in schedule} == set(range(SLOTS))
    assert [fault.at for fault in schedule] == sorted(fault.at for fault in schedule)


def test_what_a_task_is_told_to_do_depends_on_seed_and_number_alone() -> None:
    assert wish(1, 2, TASK_KINDS) == wish(1, 2, TASK_KINDS)
    wishes = [wish(1, number, TASK_KINDS) for number in range(2000)]
    assert {kind for kind, weight in TASK_KINDS.items() if weight} == {wished.kind for wished in wishes}
    assert {None, 1, 2, 3} == {wished.max_attempts for wished in wishes}


# ---- what the checks look at


def test_merged_spans_are_in_order_and_close_ones_are_one() -> None:
    assert merged([Span(5, 6), Span(0, 2), Span(1, 1.5), Span(2.2, 3)], 0.3) == [Span(0, 3), Span(5, 6)]


def test_runs_belong_to_the_last_free_start_before_them() -> None:
    def matched(begins: list[float], starts: list[float]) -> tuple[dict[float, float], list[float]]:
        begun, uncounted = match_begins([Run(1, 2, began, None, "?") for began in begins], starts)
        return {start: run.began for start, run in begun.items()}, [run.began for run in uncounted]

    assert matched([1.1, 2.1], [1.0, 2.0]) == ({1.0: 1.1, 2.0: 2.1}, [])
    assert matched([2.1], [1.0, 2.0]) == ({2.0: 2.1}, [])
    assert matched([1.1, 1.2], [1.0]) == ({1.0: 1.1}, [1.2])
    # The first worker froze before it began, and began when a second one had.
    assert matched([2.1, 2.5], [1.0, 2.0]) == ({2.0: 2.1, 1.0: 2.5}, [])
    assert matched([0.5], [1.0]) == ({}, [0.5])


def link(opened_at: float, lost_at: float | None, closed_at: float | None) -> Link:
    made = Link.__new__(Link)
    made.opened_at, made.lost_at, made.closed_at = opened_at, lost_at, closed_at
    return made


def test_a_worker_is_out_of_reach_between_its_connections_and_on_a_dead_one() -> None:
    within = Span(0.0, 10.0)
    assert unreached([link(0.0, None, None)], within) == []
    assert unreached([link(0.0, None, 10.0)], within) == []
    assert unreached([link(0.0, None, 3.0), link(5.0, None, None)], within) == [Span(3.0, 5.0)]
    assert unreached([link(0.0, 2.0, 6.0), link(6.5, None, None)], within) == [Span(2.0, 6.0), Span(2.0, 6.5)]
    assert unreached([link(0.0, None, 8.0)], within) == [Span(8.0, 10.0)]
    assert unreached([], within) == [within]


def test_what_tasks_noted_is_read_as_runs(tmp_path: Path) -> None:
    (tmp_path / "7").write_text(
        "begin 10 1.0 -\nbegin 11 2.0 -\nend 10 3.0 Failed\nbegin 10 4.0 -\ndies 10 4.1 kill\nend 11 5.0 done\n"
    )
    assert sorted(read_runs(tmp_path), key=lambda run: run.began) == [
        Run(7, 10, 1.0, 3.0, "Failed"),
        Run(7, 11, 2.0, 5.0, "done"),
        Run(7, 10, 4.0, None, "dies kill"),
    ]


# ---- the checks: an honest story passes, and each lie in it is found

TAKEN_BACK_AT = 104.0


def started(at: float, attempts: int, claim: int) -> Event:
    return Event(1, at, 1, 1, attempts - 1, attempts, claim, at + 1, at + LEASE_SECONDS, None)


STORY = Evidence(
    acknowledged={1, 2},
    unknown={3},
    rows=[
        Row(1, 1, 2, 2, 6, None, 0),
        Row(2, 2, 4, 1, 1, "lost: its worker vanished", 0),
    ],
    runs=[
        Run(1, 50, 100.1, None, "?"),
        Run(1, 51, 105.1, 105.2, "done"),
        Run(2, 52, 100.1, None, "dies kill"),
    ],
    events=[
        started(100.0, 1, 7),
        Event(1, TAKEN_BACK_AT, 1, 3, 1, 1, 7, 102.0, 104.0, "lost: its worker vanished"),
        started(105.0, 2, 8),
        Event(1, 105.2, 1, 2, 2, 2, 8, 107.0, None, None),
        started(100.0, 1, 9)._replace(id=2),
    ],
    workers=[
        WorkerRun(0, 50, 99.0, 106.0, 0, "task 1 tasks.play: the lease was lost while it ran\n"),
        WorkerRun(1, 51, 99.0, 106.0, 0, ""),
        WorkerRun(2, 52, 99.0, 100.2, -9, ""),
        WorkerRun(3, 53, 99.0, 106.0, 42, ""),
        WorkerRun(1, 54, 106.0, 120.0, 1, "worker.py: the database went away\n"),
    ],
    strikes=[
        Strike("freeze beyond the lease", 0, 50, 100.15, 105.5),
        Strike("drop", 1, None, 107.8, 109.0),
        Strike("kill", 3, 99, 99.0, 99.0),
    ],
    troubles={0: [Span(100.15, 105.5)], 1: [Span(107.8, 120.0)]},
    kinds=["freeze beyond the lease", "drop", "kill"],
)
STORY.runs.append(Run(3, 53, 105.9, None, "dies leave"))


def told(**changes: object) -> list[str]:
    """The first line of each failure that the checks find in a changed story."""
    return [failure.splitlines()[0] for failure in check_all(replace(STORY, **changes))]  # type: ignore[arg-type]


def test_an_honest_story_passes() -> None:
    assert told() == []


def with_row(number: int, **changes: object) -> list[Row]:
    return [row._replace(**changes) if row.number == number else row for row in STORY.rows]  # type: ignore[arg-type]


def with_worker(pid: int, **changes: object) -> list[WorkerRun]:
    return [
        worker._replace(**changes) if worker.pid == pid else worker  # type: ignore[arg-type]
        for worker in STORY.workers
    ]


LIES: dict[str, tuple[Callable[[], dict[str, object]], str]] = {
    "a fault that never struck": (lambda: {"kinds": [*STORY.kinds, "stall"]}, "'stall' struck"),
    "a lost task": (lambda: {"acknowledged": {1, 2, 4}}, "task 4 was acknowledged and is lost"),
    "a task that is there twice": (lambda: {"rows": [*STORY.rows, STORY.rows[0]]}, "task 1 is there 2 times"),
    "a queue that does not drain": (lambda: {"undrained": 3}, "3 tasks were neither done nor fatal"),
    "a done task with an error": (lambda: {"rows": with_row(1, error_text="x")}, "is done and has an error_text"),
    "a done task without a complete run": (
        lambda: {"runs": [run._replace(outcome="Failed") for run in STORY.runs]},
        "is done, and no run of it came to its end",
    ),
    "a fatal task without a reason": (lambda: {"rows": with_row(2, error_text=None)}, "fatal for no reason"),
    "a task that failed because the database was away": (
        lambda: {"rows": with_row(2, error_text="DatabaseError: away")},
        "fatal for no reason of its own",
    ),
    "a task given up too early": (lambda: {"rows": with_row(2, max_attempts=2)}, "is fatal after 1 of 2 attempts"),
    "two runs at once while nothing hindered the first": (
        lambda: {"troubles": {1: STORY.troubles[1]}},
        "which nothing had hindered",
    ),
    "two runs at once after a hindrance shorter than the lease": (
        lambda: {"troubles": {0: [Span(104.5, 105.5)], 1: STORY.troubles[1]}},
        "which nothing had hindered",
    ),
    "a task taken back under a lease that held": (
        lambda: {
            "events": [
                event._replace(lease_ended_at=event.at + 0.5) if event.at == TAKEN_BACK_AT else event
                for event in STORY.events
            ]
        },
        "was taken back before its lease had ended",
    ),
    "a second begin of a task of one attempt": (
        lambda: {"runs": [*STORY.runs, Run(2, 51, 103.0, 103.1, "done")]},
        "task 2 of max_attempts 1 began 2 times",
    ),
    "a begin that was not counted": (
        lambda: {"runs": [*STORY.runs, Run(1, 51, 105.3, 105.4, "done")]},
        "task 1 began at 105.300, which was not counted",
    ),
    "a completion by a worker that had lost the task": (
        lambda: {"events": [event._replace(at=105.15) if event.status == 2 else event for event in STORY.events]},
        "task 1 was finished by another than its last run",
    ),
    "a completion of a task that nobody runs": (
        lambda: {"events": [event._replace(was=3) if event.status == 2 else event for event in STORY.events]},
        "task 1 went a way that no task may go",
    ),
    "a failure of a run that ended well": (
        lambda: {
            "events": [
                event._replace(status=3, error_text="Failed: x") if event.status == 2 else event
                for event in STORY.events
            ]
        },
        "task 1 was finished by another than its last run",
    ),
    "a count that differs from the starts": (
        lambda: {"rows": with_row(1, attempts=3)},
        "task 1 has attempts 3 and 2 starts",
    ),
    "a start without a begin, far from every fault": (
        lambda: {
            "rows": with_row(1, attempts=3),
            "events": [*STORY.events[:-1], started(130.0, 3, 10), STORY.events[-1]],
        },
        "task 1 was counted as started at 130.000 and did not begin",
    ),
    "a traceback": (lambda: {"workers": with_worker(50, errors="Traceback (most recent call last):\n")}, "traceback"),
    "an exit with 1 and no line": (lambda: {"workers": with_worker(54, errors="")}, "ended with 1 and 0 lines"),
    "an exit with 1 and an empty line": (
        lambda: {"workers": with_worker(54, errors="worker.py: \n")},
        "no word of why",
    ),
    "a task taken for one that holds the interpreter": (
        lambda: {"workers": with_worker(54, errors="worker.py: a task holds the interpreter\n")},
        "took a task for one that holds the interpreter",
    ),
    "an exit with 1 and two lines": (
        lambda: {"workers": with_worker(54, errors="worker.py: a\nworker.py: b\n")},
        "ended with 1 and 2 lines",
    ),
    "giving up a database that was away for a moment": (
        lambda: {"troubles": STORY.troubles | {1: [Span(113.0, 120.0)]}},
        "gave up a database that was not away for so long",
    ),
    "giving up a database that was there": (
        lambda: {"troubles": {0: STORY.troubles[0]}},
        "gave up a database that was not away for so long",
    ),
    "an exit with 0 and an error": (lambda: {"workers": with_worker(50, errors="worker.py: a\n")}, "ended with 0 and"),
    "a crash": (lambda: {"workers": with_worker(50, code=-11)}, "ended with -11"),
    "a death by SIGKILL that nobody sent": (lambda: {"workers": with_worker(50, code=-9)}, "ended with -9"),
    "a worker that goes on for ever": (lambda: {"unended": [2]}, "the last worker of slot 2 went on"),
}


@pytest.mark.parametrize("lie", LIES)
def test_the_checks_find(lie: str) -> None:
    change, expected = LIES[lie]
    found = told(**change())
    assert any(expected in failure for failure in found), found
