"""Chaos in its short form, for each store, and proof that its checks find what they look for.

The long form is `python -m tests.faults.chaos`; a failure names the seed, with which it replays the schedule of faults.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from taskserver.model.task import MODES as TASKSERVER_MODES
from tests.conftest import without
from tests.faults.chaos.begins import match_begins
from tests.faults.chaos.checks import check_all
from tests.faults.chaos.evidence import DELETED, Event, Evidence, Kept, Row, Run, Strike, Tied, WorkerRun
from tests.faults.chaos.report import Report
from tests.faults.chaos.run import run_chaos
from tests.faults.chaos.schedule import FAULTS, make_modes, make_schedule, sure_kinds, wish
from tests.faults.chaos.settings import LEASE_SECONDS, MODES, PRODUCERS, SLOTS
from tests.faults.chaos.spans import Span, merged, unreached
from tests.faults.chaos.stage import MOVING, Stage
from tests.faults.chaos.tasks import HOLD_WEIGHT, SHOWN_BY, TASK_KINDS
from tests.faults.chaos.witnesses import read_database, read_runs
from tests.support.deployment import Deployment
from tests.support.proxy import Link
from tests.support.servers import missing_programs

SHORT_SECONDS = 12.0
LONG_SECONDS = 90.0


def require_server(dsn_kind: str) -> None:
    if dsn_kind == "mysql" and (missing := missing_programs()):
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")


def chaos(dsn_kind: str, seconds: float, folder: Path) -> Report:
    require_server(dsn_kind)
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


@pytest.mark.parametrize("weights", [TASK_KINDS, TASK_KINDS | {"hold": HOLD_WEIGHT}], ids=["short", "long"])
def test_the_first_tasks_of_each_producer_misbehave_in_every_planned_way(weights: dict[str, float]) -> None:
    misbehaving = {kind for kind, weight in weights.items() if weight} - {"quick", "nap"}
    assert set(sure_kinds(weights)) == misbehaving
    for producer in range(PRODUCERS):
        wishes = [wish(7, producer + PRODUCERS * nth, weights) for nth in range(len(misbehaving))]
        assert {wished.kind for wished in wishes} == misbehaving
        assert all(wished.is_sure and wished.max_attempts is None for wished in wishes)
    assert not any(wish(7, number, weights).is_sure for number in range(PRODUCERS * len(misbehaving), 2000))


def test_it_is_said_of_each_kind_of_task_how_it_shows() -> None:
    assert SHOWN_BY.keys() == TASK_KINDS.keys()


@pytest.mark.parametrize("seed", range(50))
def test_a_seed_gives_each_slot_a_mode_and_uses_all_of_them(seed: int) -> None:
    assert make_modes(seed) == make_modes(seed)
    assert set(make_modes(seed)) == set(MODES) == set(TASKSERVER_MODES)
    assert len(make_modes(seed)) == SLOTS


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
        "begin 10 1.0 kill\nbegin 11 2.0 nap\nend 10 3.0 Failed\nbegin 10 4.0 kill\ndies 10 4.1 kill\nend 11 5.0 done\n"
    )
    assert sorted(read_runs(tmp_path), key=lambda run: run.began) == [
        Run(7, 10, 1.0, 3.0, "Failed", "kill"),
        Run(7, 11, 2.0, 5.0, "done", "nap"),
        Run(7, 10, 4.0, None, "dies kill", "kill"),
    ]


def test_a_kind_has_shown_when_a_run_did_what_the_kind_is_for() -> None:
    def is_shown(kind: str, outcome: str, seconds: float) -> bool:
        return Run(7, 10, 1.0, 1.0 + seconds, outcome, kind).is_shown

    assert is_shown("fail", "Failed", 0.1)
    assert not is_shown("fail", "done", 0.1)
    assert Run(7, 10, 1.0, None, "dies kill", "kill").is_shown
    assert is_shown("hang", "TaskInterrupted", 3.1)
    assert not is_shown("hang", "TaskInterrupted", 1.0)  # by a second SIGTERM
    assert not is_shown("nap", "TaskInterrupted", 3.1)


@pytest.mark.parametrize("dsn_kind", ["sqlite", "mysql"])
def test_the_triggers_keep_a_deleted_row_as_gone_and_a_moved_one_as_archived(dsn_kind: str, tmp_path: Path) -> None:
    require_server(dsn_kind)
    stage = Stage(dsn_kind, Deployment(tmp_path), make_modes(1), "fixed:0")
    try:
        with closing(stage.sql()) as sql:
            for number in (1, 2):
                sql.run(
                    "INSERT INTO jobs_queue (task, args, claim, status, attempts) VALUES ('tasks.play', ?, ?, 1, 1)",
                    json.dumps({"number": number}),
                    number * 10,
                )
            sql.run("DELETE FROM jobs_queue WHERE claim = 10")
            sql.run(f"UPDATE jobs_queue SET status = {MOVING} WHERE claim = 20")
            sql.run("INSERT INTO jobs_queue_done (id, task, args) SELECT id, task, args FROM jobs_queue")
            sql.run("DELETE FROM jobs_queue WHERE claim = 20")
        rows, events = read_database(stage)
    finally:
        stage.close()
    assert {(row.number, row.status, row.place) for row in rows} == {(1, 1, "gone"), (2, 2, "archive")}
    changes = [(event.number, event.was, event.status, event.claim) for event in events]
    assert changes == [(1, 1, DELETED, 10), (2, 1, 2, 20)]


# ---- the checks: an honest story passes, and each lie in it is found

TAKEN_BACK_AT = 104.0


def change(number: int, at: float, was: int, status: int, claim: int, attempts: int = 1, **changes: object) -> Event:
    """Of a task whose id is its number and a hundred, under a lease that has a second left."""
    made = Event(number, number + 100, at, was, status, attempts, attempts, None, claim, at + 1, None, None)
    return made._replace(**changes)  # type: ignore[arg-type]


def started(number: int, at: float, attempts: int, claim: int) -> Event:
    return change(number, at, 1, 1, claim, attempts, attempts_before=attempts - 1, due_at=at + LEASE_SECONDS)


def taken_back(number: int, status: int, claim: int) -> Event:
    at = TAKEN_BACK_AT
    return change(
        number, at, 1, status, claim, lease_ended_at=at - 2, due_at=at, error_text="lost: its worker vanished"
    )


LOST_LEASE = "task 101 tasks.play: the lease was lost while it ran; its result is dropped\n"
LOST_BEFORE = "task 106 tasks.play: the lease was lost before it started\n"
STORY = Evidence(
    acknowledged={1, 2, 4, 5, 6},
    unknown={3},
    rows=[
        Row(1, 101, 2, 2, 6, None, "queue"),
        Row(2, 102, 4, 1, 1, "lost: its worker vanished", "queue"),
        Row(4, 104, 1, 2, None, "Failed: as it was told to", "gone"),
        Row(5, 105, 2, 1, None, None, "archive"),
        Row(6, 106, 1, 1, 1, None, "gone"),
    ],
    runs=[
        Run(1, 50, 100.1, 105.6, "done"),
        Run(1, 51, 105.1, 105.2, "done"),
        Run(2, 52, 100.1, None, "dies kill"),
        Run(4, 55, 101.1, 101.2, "Failed", "fail"),
        Run(4, 55, 103.1, 103.2, "done", "fail"),
        Run(5, 50, 99.1, 99.2, "done"),
        Run(3, 53, 105.9, None, "dies leave"),
        # Given up as lost while its worker was frozen, which completed it late.
        Run(6, 56, 100.1, 105.6, "done"),
    ],
    events=[
        started(1, 100.0, 1, 7),
        taken_back(1, 3, 7),
        started(1, 105.0, 2, 8),
        change(1, 105.2, 1, 2, 8, 2),
        started(2, 100.0, 1, 9),
        started(4, 101.0, 1, 10),
        change(4, 101.2, 1, 3, 10, error_text="Failed: as it was told to"),
        started(4, 103.0, 2, 11),
        change(4, 103.2, 1, DELETED, 11, 2, error_text="Failed: as it was told to"),
        started(5, 99.0, 1, 12),
        change(5, 99.2, 1, 2, 12),
        change(6, 99.5, 1, 0, 13, 0, lease_ended_at=99.0),
        started(6, 100.0, 1, 14),
        taken_back(6, 4, 14),
        change(6, 105.6, 4, 1, 14, lease_ended_at=None),
        change(6, 105.6, 1, DELETED, 14, lease_ended_at=None),
    ],
    workers=[
        WorkerRun(0, 50, 99.0, 106.0, 0, LOST_LEASE),
        WorkerRun(1, 51, 99.0, 106.0, 0, LOST_BEFORE),
        WorkerRun(2, 52, 99.0, 100.2, -9, ""),
        WorkerRun(3, 53, 99.0, 106.0, 42, ""),
        WorkerRun(1, 54, 106.0, 120.0, 1, "worker.py: the database went away\n"),
        WorkerRun(3, 55, 99.0, 106.0, 0, ""),
        WorkerRun(3, 56, 99.0, 106.0, 0, ""),
    ],
    strikes=[
        Strike("freeze beyond the lease", 0, 50, 100.15, 105.5),
        Strike("drop", 1, None, 107.8, 109.0),
        Strike("kill", 3, 99, 99.0, 99.0),
    ],
    troubles={0: [Span(100.15, 105.5)], 1: [Span(107.8, 120.0)], 3: [Span(100.15, 105.5)]},
    changed={"one": 7, "two": 3},
    changed_while_it_ran=1,
    kept_rows=[Kept("one", 8), Kept("two", 3)],
    kept_runs=[Kept("one", 2), Kept("one", 7), Kept("one", 8), Kept("two", 3)],
    tied=[Tied(0, 200, [], True), Tied(1, 201, [0], False), Tied(7, 207, [], False), Tied(8, 208, [7], False)],
    tied_runs=[
        Run(0, 50, 98.0, None, "?", "tied"),
        Run(7, 50, 98.1, 98.2, "tied", "tied"),
        Run(8, 50, 98.3, 98.4, "tied", "tied"),
    ],
    tied_errors={0: "Failed: as it was told to", 1: "dependency: task 200, for which it waits, is fatal"},
    kinds=["freeze beyond the lease", "drop", "kill"],
    task_kinds=["quick", "fail"],
    modes=["move", "mark", "move", "delete"],
)


def told(**changes: object) -> list[str]:
    """The first line of each failure that the checks find in a changed story."""
    return [failure.splitlines()[0] for failure in check_all(replace(STORY, **changes))]  # type: ignore[arg-type]


def test_an_honest_story_passes() -> None:
    assert told() == []


def with_row(number: int, **changes: object) -> list[Row]:
    return [row._replace(**changes) if row.number == number else row for row in STORY.rows]  # type: ignore[arg-type]


def without_row(number: int) -> list[Row]:
    return [row for row in STORY.rows if row.number != number]


DELETION = next(event for event in STORY.events if (event.number, event.status) == (4, DELETED))


def with_deletion(**changes: object) -> dict[str, object]:
    """The story with task 4 deleted otherwise."""
    deleted = DELETION._replace(**changes)  # type: ignore[arg-type]
    return {"events": [deleted if event == DELETION else event for event in STORY.events]}


def with_worker(pid: int, **changes: object) -> list[WorkerRun]:
    return [
        worker._replace(**changes) if worker.pid == pid else worker  # type: ignore[arg-type]
        for worker in STORY.workers
    ]


LIES: dict[str, tuple[Callable[[], dict[str, object]], str]] = {
    "a fault that never struck": (lambda: {"kinds": [*STORY.kinds, "stall"]}, "'stall' struck"),
    "a lost task": (lambda: {"acknowledged": {1, 2, 9}}, "task 9 was acknowledged and is lost"),
    "a task that is there twice": (lambda: {"rows": [*STORY.rows, STORY.rows[0]]}, "task 1 is there 2 times"),
    "a queue that does not drain": (lambda: {"undrained": 3}, "3 tasks were neither done nor fatal"),
    "a done task with an error": (lambda: {"rows": with_row(1, error_text="x")}, "is done and has an error_text"),
    "a done task without a complete run": (
        lambda: {"runs": [run._replace(outcome="Failed") for run in STORY.runs]},
        "is done, and no run of it came to its end",
    ),
    "a lost task whose INSERT had no answer, but which a worker had": (
        lambda: {"acknowledged": STORY.acknowledged - {5}, "rows": without_row(5)},
        "task 5 was acknowledged and is lost",
    ),
    "a task that is gone and that no worker deleted": (
        lambda: {"rows": without_row(4), "events": [event for event in STORY.events if event != DELETION]},
        "task 4 was acknowledged and is lost",
    ),
    "a task that was deleted and archived": (
        lambda: {"rows": [*STORY.rows, STORY.rows[2]._replace(place="archive")]},
        "task 4 is there 2 times",
    ),
    "a task that was deleted and never ran": (
        lambda: {"runs": [run for run in STORY.runs if run.number != 4]},
        "task 4 was deleted before a run of it came to its end",
    ),
    "a task that was deleted when its run failed": (
        lambda: {"runs": [run._replace(outcome="Failed") if run.began == 103.1 else run for run in STORY.runs]},
        "task 4 was deleted before a run of it came to its end",
    ),
    "a task that was deleted while it ran": (
        lambda: with_deletion(at=103.15),
        "task 4 was deleted before a run of it came to its end",
    ),
    "a task that was deleted after a run that was completed, by a claim that was not": (
        lambda: with_deletion(claim=99),
        "task 4 was deleted before a run of it came to its end",
    ),
    "a task that was deleted when it was new": (
        lambda: with_deletion(was=0),
        "task 4 was deleted before a run of it came to its end",
    ),
    "a task that was started again, and then deleted for the run before": (
        lambda: {"events": [*STORY.events[:-8], started(4, 103.15, 3, 20), *STORY.events[-8:]]},
        "task 4 was deleted before a run of it came to its end",
    ),
    "a task that was deleted in the mode move": (
        lambda: {"modes": ["move", "mark", "delete", "move"]},
        "task 4 is done, and gone is not where the mode",
    ),
    "a task that was left in the queue in the mode delete": (
        lambda: {"modes": ["move", "delete", "mark", "delete"]},
        "task 1 is done, and queue is not where the mode",
    ),
    "a mode that completed nothing": (
        lambda: {"rows": [row for row in STORY.rows if row.place != "gone"]},
        "no task was completed in the mode 'delete'",
    ),
    "a kind of task that never did what it is for": (
        lambda: {"task_kinds": [*STORY.task_kinds, "hang"]},
        "no task of the kind 'hang' did what it is for",
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
    "an error of another claim than the last": (
        lambda: {"events": [event._replace(claim=99) if event.status == 3 else event for event in STORY.events]},
        "task 4 was finished by another than its last run",
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
            "events": [*STORY.events[:-1], started(1, 130.0, 3, 15), STORY.events[-1]],
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
    "a lost lease that was not told": (
        lambda: {"workers": with_worker(50, errors="")},
        "the worker 50 of slot 0 told 0 of 1 lost leases of the row 101",
    ),
    "a lost lease that was told twice": (
        lambda: {"workers": with_worker(50, errors=LOST_LEASE * 2)},
        "the worker 50 of slot 0 told 2 of 1 lost leases of the row 101",
    ),
    "a lost lease that was told twice by a worker that died": (
        lambda: {"workers": with_worker(50, errors=LOST_LEASE * 2, code=-9)},
        "the worker 50 of slot 0 told 2 of 1 lost leases of the row 101",
    ),
    "a lease told as lost that nobody took back": (
        lambda: {"workers": with_worker(55, errors=LOST_LEASE.replace("101", "104"))},
        "the worker 55 of slot 3 told 1 of 0 lost leases of the row 104",
    ),
    "a lease told as lost of a task that was completed late": (
        lambda: {"workers": with_worker(56, errors=LOST_LEASE.replace("101", "106"))},
        "the worker 56 of slot 3 told 1 of 0 lost leases of the row 106",
    ),
    "a lease told as lost before the start that nobody took back": (
        lambda: {"workers": with_worker(55, errors=LOST_BEFORE.replace("106", "104"))},
        "told a lease of the row 104 as lost that nobody took back",
    ),
    "a worker that outlives a task which left": (
        lambda: {"workers": with_worker(53, code=0)},
        "ended with 0, and its task dies leave",
    ),
    "an exit with 0 and an error": (lambda: {"workers": with_worker(50, errors="worker.py: a\n")}, "ended with 0 and"),
    "a crash": (lambda: {"workers": with_worker(50, code=-11)}, "ended with -11"),
    "a death by SIGKILL that nobody sent": (lambda: {"workers": with_worker(50, code=-9)}, "ended with -9"),
    "a change that never ran": (
        lambda: {"changed": {"two": 4}},
        "key two was changed to version 4, and the newest that ran to its end is 3",
    ),
    "a change of a key that never ran at all": (
        lambda: {"changed": {"three": 1}},
        "key three was changed to version 1, and the newest that ran to its end is 0",
    ),
    "a row that is done with arguments that never ran": (
        lambda: {"kept_rows": [Kept("one", 9)]},
        "key one is done with version 9, no run of which came to its end",
    ),
    "a run in which no change met a running task": (lambda: {"changed_while_it_ran": 0}, "no task was changed"),
    "a fatal task that never fails": (lambda: {"kept_fatal": 1}, "1 tasks with keys became fatal"),
    "a tied task that never ran": (lambda: {"tied_runs": STORY.tied_runs[:2]}, "number=8, id=208"),
    "a tied task that ran too soon": (
        lambda: {"tied_runs": [*STORY.tied_runs, Run(8, 51, 98.15, 98.3, "tied", "tied")]},
        "began before one that it waited for had come to its end",
    ),
    "a tied task that waited for a fatal one and ran": (
        lambda: {"tied_runs": [*STORY.tied_runs, Run(1, 51, 99.0, 99.1, "tied", "tied")]},
        "waited for a fatal one, and began",
    ),
    "a tied task that waited for a fatal one and is not fatal": (
        lambda: {"tied_errors": {0: "Failed"}},
        "waited for a fatal one, and its error is ''",
    ),
    "a tied task that is fatal because of another": (
        lambda: {"tied_errors": STORY.tied_errors | {1: "dependency: task 207, for which it waits, is fatal"}},
        "waited for a fatal one, and its error is",
    ),
    "ties that are left": (lambda: {"tied_left": 1}, "1 ties are left"),
    "a run in which nothing waited": (lambda: {"tied": [], "tied_errors": {}}, "no task ran that had waited"),
    "a worker that goes on for ever": (lambda: {"unended": [2]}, "the last worker of slot 2 went on"),
}


@pytest.mark.parametrize("lie", LIES)
def test_the_checks_find(lie: str) -> None:
    change, expected = LIES[lie]
    found = told(**change())
    assert any(expected in failure for failure in found), found


def test_a_worker_that_died_must_have_told_what_it_lost_if_it_began_another_run_before() -> None:
    died = with_worker(50, code=-9, errors="")
    assert not any("lost leases" in failure for failure in told(workers=died))
    runs = [*STORY.runs, Run(3, 50, 105.7, None, "dies kill")]
    assert "the worker 50 of slot 0 told 0 of 1 lost leases" in "".join(told(workers=died, runs=runs))


def test_a_worker_may_tell_once_of_a_task_that_it_lost_before_the_task_noted_anything() -> None:
    runs = STORY.runs[1:]
    assert told(runs=runs) == []
    [failure] = told(runs=runs, workers=with_worker(50, errors=LOST_LEASE * 2))
    assert failure.startswith("the worker 50 of slot 0 told 2 of 1 lost leases of the row 101")


@pytest.mark.parametrize("kind", ["drop", "server kill"])
def test_what_a_worker_tells_of_leases_is_not_judged_where_its_connection_may_have_broken(kind: str) -> None:
    strikes = [*STORY.strikes, Strike(kind, 0, None, 105.55, 105.56)]
    assert told(workers=with_worker(50, errors=""), strikes=strikes) == []
    other_slot = [*STORY.strikes, Strike("drop", 1, None, 105.55, 105.56)]
    assert told(workers=with_worker(50, errors=""), strikes=other_slot) != []


def test_what_a_worker_tells_of_leases_is_not_judged_where_starts_and_runs_cannot_be_told_apart() -> None:
    # A third worker began when two starts were counted already: either could be its own.
    events = [*STORY.events[:3], started(1, 105.05, 3, 21), *STORY.events[3:]]
    runs = [*STORY.runs, Run(1, 55, 105.12, 105.13, "Failed")]
    failures = told(workers=with_worker(50, errors=""), events=events, runs=runs)
    assert failures
    assert not any("lost leases" in failure for failure in failures)
