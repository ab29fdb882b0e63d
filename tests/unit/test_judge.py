"""How a queue is judged by its limits. No database is asked."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskserver.health import doctor, files, modules
from taskserver.health.accepted import Acceptances
from taskserver.health.coverage import unserved
from taskserver.health.doctor import crontab_line
from taskserver.health.judge import JUDGES, LIMITS, Limit, Limits, judge, worst_first
from taskserver.health.status import Count, GroupStatus, QueueStatus, seconds_left, sum_of
from taskserver.messages.finding import Level
from taskserver.model.schedule import ScheduleRow
from taskserver.model.task import Status
from taskserver.stores.mysql import facts as mysql
from taskserver.stores.postgresql import facts as postgresql
from taskserver.stores.queue.notes import MAX_NAME, Note
from taskserver.stores.queue.schedules import StoredSchedule
from taskserver.stores.queue.stats import HourStats
from taskserver.stores.records import ErrorCount, LastRun, RunningTask, WorkerProcess
from taskserver.stores.sqlite import facts as sqlite

HOUR, DAY = 3600, 86_400
OK, WARNING, CRITICAL, UNKNOWN = Level
NOW = datetime(2026, 11, 22, 10, tzinfo=timezone.utc)
LATER = NOW + timedelta(hours=1)
NO_STATS = HourStats(NOW, 0, "")


def rows(new: int = 0, fatal: int = 0, ready: float | None = None, **more: Any) -> GroupStatus:
    counts: dict[int, int] = {**dict.fromkeys(Status, 0), Status.NEW: new, Status.FATAL: fatal}
    age = ready if ready is not None else (1.0 if new else None)
    return GroupStatus({**counts, **more.pop("counts", {})}, age, age, **more)


def a_run(ago: float = 60.0, every: float | None = None, groups: str = "all", **more: Any) -> LastRun:
    before = None if every is None else ago + every
    run = LastRun("host", groups, 1, NOW, ago, NOW, "empty", 0, 0, 0, 0, 0, before)
    return run._replace(**more)


def worker(has_ended: bool | None = None, seen: float = 5.0) -> WorkerProcess:
    return WorkerProcess(7, "host", "all", 1, "", NOW, 9.0, seen, None, 0, 0, 0, 0, 0, 0, has_ended=has_ended)


def a_status(groups: Mapping[int, GroupStatus] | None = None, **given: Any) -> QueueStatus:
    """A queue in which all is well, but for what is given."""
    groups = groups or {}
    total, paused = sum_of([rows(), *groups.values()]), given.get("paused_groups", ())
    ready = sum(one.rows[Status.NEW] for group, one in groups.items() if group not in paused)
    values: dict[str, Any] = {
        **dict.fromkeys(QueueStatus._fields, ()),
        "table": "jobs_queue",
        "mode": "delete",
        "database": "here",
        "now": NOW,
        "unnamed": frozenset(),
        "groups": groups,
        "total": total,
        "ready": Count(ready),
        "fatal": Count(total.rows[Status.FATAL]),
        "this_hour": NO_STATS,
        "hour_before": NO_STATS,
        "runs": [a_run()],
        "names": {},
        **dict.fromkeys(("has_more_groups", "are_all_paused"), False),
        **dict.fromkeys(("lapsed", "undated", "orphaned"), 0),
        "lapsed_seconds": 0.0,
    }
    return QueueStatus(**{**values, **given})


def judged(status: QueueStatus, limits: Limits | None = None, accepted: Sequence[str] = ()) -> QueueStatus:
    """The status with its findings."""
    acceptances = Acceptances({name: Note(name, "so be it", NOW) for name in accepted})
    counted, apart = acceptances.split(worst_first(judge(status, {**LIMITS, **(limits or {})})))
    return status._replace(findings=counted, accepted=apart)


def found(status: QueueStatus, limits: Limits | None = None) -> dict[str, Level]:
    return {finding.name: finding.level for finding in judged(status, limits).findings}


# ---- the table of judgements: what is given to a queue that is well, and the only finding

IN_ERROR: dict[str, Any] = {"counts": {Status.ERROR: 1}}
SCHEDULE = ScheduleRow("nightly", "tasks.a", None, 0, 0, None, "x", "UTC")
BROKEN = ErrorCount("ModuleBroken: module tasks cannot be imported: SyntaxError: (line 3)", 4, 1, NOW, NOW, 9)
STUCK = a_run(reason="error", released=5)
LOST_HOUR = NO_STATS._replace(lost=2)
TASK_OF_7 = RunningTask(1, "tasks.long", 3, 1, 2.0 * DAY, 7, None)
LATE = [StoredSchedule(SCHEDULE, NOW, -2.0 * HOUR, None)]

JUDGEMENTS: list[tuple[dict[str, Any], str, Level, str]] = [
    # cron by its own rhythm: three times the usual pause, an hour at least, a day if no rhythm is known
    ({"runs": []}, "cron", WARNING, "no worker ran yet"),
    ({"runs": [], "groups": {3: rows(new=1)}}, "cron", CRITICAL, "no worker ran yet"),
    ({"runs": [], "workers": [worker()]}, "cron", OK, "a worker is at work"),
    ({"runs": [a_run(HOUR - 1, 60)], "groups": {3: rows(new=1)}}, "cron", OK, "60 min ago, 60 s after the one before"),
    ({"runs": [a_run(HOUR + 1, 60)]}, "cron", WARNING, "cron seems to have stopped: the last run for all groups"),
    ({"runs": [a_run(DAY + 1)]}, "cron", WARNING, "stopped"),
    ({"runs": [a_run(2 * HOUR, 60)], "groups": {3: rows(new=1)}, "paused_groups": [3]}, "cron", WARNING, "stopped"),
    # a line that stopped, and is covered by no other, nor by a worker at work
    ({"runs": [a_run(60, 60, "3"), a_run(2 * DAY, 60, "5")]}, "cron", WARNING, "stopped running a line: the last run"),
    ({"runs": [a_run(60, 60), a_run(2 * DAY, 60, "5")]}, "cron", OK, ""),
    ({"runs": [a_run(60, 60, "3"), a_run(8 * DAY, 60, "5")]}, "cron", OK, ""),
    # a worker at work is no silence: seen of late, or in the midst of a task whose lease holds
    ({"runs": [a_run(2 * DAY)], "workers": [worker(False, 9 * DAY)]}, "cron", WARNING, "stopped"),
    ({"runs": [a_run(2 * DAY)], "workers": [worker(None, 2 * DAY)], "running": [TASK_OF_7]}, "cron", OK, ""),
    # runs
    ({"runs": [STUCK]}, "runs", WARNING, "the last run for all groups on host ended with an error and could start no"),
    ({"runs": [STUCK], "groups": {3: rows(new=1)}}, "runs", CRITICAL, "could start no task"),
    ({"runs": [STUCK._replace(taken=1)]}, "runs", OK, ""),
    # groups
    ({"groups": {7: rows(new=1)}, "unserved_groups": [7], "runs": [a_run(groups="3")]}, "groups", WARNING,
     "1 new task in group 7, which no worker takes: they serve 3, and 3 have no task"),
    ({"groups": {3: rows(new=1, ready=9 * HOUR)}, "paused_groups": [3]}, "paused", OK,
     "group 3 is paused, with 1 new task: client.py resume 3 ends that"),
    ({"groups": {3: rows(new=2)}, "paused_groups": [3, 5], "are_all_paused": True}, "paused", OK,
     "all groups are paused, with 2 new tasks: client.py resume --all ends that"),
    ({"groups": {3: rows(new=1, ready=DAY + 1)}, "paused_groups": [3]}, "paused", WARNING,
     "group 3 is paused, with 1 new task, the oldest ready for 24 h"),
    # waiting, ready, fatal
    ({"groups": {3: rows(new=1, ready=HOUR)}}, "waiting", OK, "of group 3 has waited for 60 min"),
    ({"groups": {3: rows(new=1, ready=HOUR + 1)}}, "waiting", WARNING, "a ready task of group 3 has waited for 60 min"),
    ({"groups": {3: rows(new=1, ready=3 * HOUR + 1)}}, "waiting", CRITICAL, "3 h"),
    ({"groups": {3: rows(fatal=1)}}, "fatal", WARNING, "1 task is fatal: no worker retries it"),
    ({"groups": {3: rows(fatal=10)}}, "fatal", CRITICAL, "10 tasks are fatal"),
    # failing: while tasks are in error or fatal
    ({"this_hour": NO_STATS._replace(failed=8, done=2)}, "failing", OK, ""),
    ({"this_hour": NO_STATS._replace(failed=8, done=2), "groups": {3: rows(**IN_ERROR)}}, "failing", WARNING,
     "8 of 10 attempts failed since "),
    ({"groups": {3: rows(counts={Status.ERROR: 21})}}, "failing", WARNING, "21 tasks are in error and will be retried"),
    ({"errors": [BROKEN], "groups": {3: rows(**IN_ERROR)}}, "failing", CRITICAL,
     "3 tasks failed: module tasks cannot be imported: SyntaxError: (line 3)"),
    ({"errors": [BROKEN], "runs": [a_run(started_at=LATER, done=1)]}, "failing", WARNING,
     "3 tasks failed as a module could not be imported, and others were done since: module tasks cannot be imported:"),
    # lost and gone workers
    ({"hours": [LOST_HOUR]}, "lost", WARNING, "2 attempts were lost in the last day: the worker died"),
    ({"workers": [worker(True)]}, "lost", WARNING, "1 worker is gone: killed, or a task hung or exited"),
    # rows
    ({"lapsed": 3, "lapsed_seconds": 500.0}, "leases", WARNING, "3 tasks of dead workers are not reclaimed"),
    ({"undated": 1}, "stray", WARNING, "1 task never starts: status 3 or 5 without due_at"),
    ({"groups": {3: rows(counts={-1: 2})}}, "stray", WARNING, "2 tasks never start: an unknown status"),
    ({"orphaned": 2}, "orphaned", WARNING, "2 tasks wait only for tasks that were deleted or have ended"),
    # schedules
    ({"schedules": [StoredSchedule(SCHEDULE, NOW, 1.0, None, "task 1 has its key", True)]}, "schedules", WARNING,
     "schedule nightly: task 1 has its key"),
    ({"schedules": [StoredSchedule(SCHEDULE, NOW, 1.0, "x")] * 5}, "schedules", WARNING, "x; and 2 more"),
    ({"schedules": [StoredSchedule(SCHEDULE, NOW, -HOUR - 1.0, None)]}, "schedules", WARNING, "late by 60 min"),
    ({"schedules": [StoredSchedule(SCHEDULE, NOW, -60.0, None)]}, "schedules", OK, "1 schedule without a fault"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "name", "level", "words"), JUDGEMENTS)
def test_each_judge_finds_only_its_own_faults(given: dict[str, Any], name: str, level: Level, words: str) -> None:
    status = a_status(**given)
    (finding,) = [one for one in judge(status) if one.name == name]
    assert (finding.level, words in finding.words) == (level, True), finding
    assert found(status) == ({name: level} if level else {})
    assert not level or (finding.why and finding.fix)


def test_an_empty_queue_with_a_worker_is_ok_for_each_judge() -> None:
    findings = judge(a_status())
    assert [one.name for one in findings] == [one.name for one in JUDGES]
    assert {one.level for one in findings} == {OK}
    assert a_status().words == "All is well"


WAITS: dict[str, Any] = {"groups": {3: rows(), 5: rows(new=50, ready=10 * HOUR)}}
OF_LIMIT = {"cron": Limit(HOUR, 3 * HOUR)}
TOGETHER: list[tuple[dict[str, Any], Limits, dict[str, Level]]] = [
    # a long task whose lease expired is no worker at work, nor is a process that is known to be gone
    ({"runs": [a_run(2 * DAY)], "workers": [worker(None, 2 * DAY)], "running": [TASK_OF_7], "lapsed": 1}, {},
     {"cron": WARNING, "leases": WARNING}),
    ({"runs": [a_run(2 * DAY)], "workers": [worker(True)]}, {}, {"cron": WARNING, "lost": WARNING}),
    # a broken module whose tasks are all fatal is found by these
    ({"groups": {3: rows(fatal=4)}, "errors": [BROKEN._replace(fatal=4)]}, {}, {"fatal": WARNING}),
    # the line of group 5 is dead: its tasks wait for longer than any limit
    ({**WAITS, "runs": [a_run(60, 60, "3"), a_run(3 * DAY, 60, "5")], "unserved_groups": [5]}, {},
     {"waiting": CRITICAL, "cron": WARNING, "groups": WARNING}),
    # a silence that is a warning hides no wait that is critical, and one that is as bad says it better
    ({**WAITS, "schedules": LATE, "runs": [a_run(2 * HOUR)]}, OF_LIMIT, {"waiting": CRITICAL, "cron": WARNING}),
    ({**WAITS, "schedules": LATE, "runs": [a_run(4 * HOUR)]}, OF_LIMIT, {"cron": CRITICAL}),
    # a value above a limit that is given is a warning, and above the second critical
    ({"groups": {3: rows(new=5)}}, {"ready": Limit(5, 15)}, {}),
    ({"groups": {3: rows(new=6)}}, {"ready": Limit(5, 15)}, {"ready": WARNING}),
    ({"groups": {3: rows(new=16)}}, {"ready": Limit(5, 15)}, {"ready": CRITICAL}),
    ({"groups": {3: rows(new=1)}, "paused_groups": [3]}, {"ready": Limit(0, 0)}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "limits", "findings"), TOGETHER)
def test_a_finding_hides_another_only_if_it_explains_it(
    given: dict[str, Any], limits: Limits, findings: dict[str, Level]
) -> None:
    assert found(a_status(**given), limits) == findings


def test_the_worst_finding_comes_first() -> None:
    status = judged(a_status({3: rows(new=1, fatal=10, ready=2 * HOUR)}))
    assert [(one.name, one.level) for one in status.findings] == [("fatal", CRITICAL), ("waiting", WARNING)]
    assert (status.level, status.words) == (CRITICAL, "10 tasks are fatal: no worker retries them")


def test_an_installed_package_shows_its_own_line_for_cron(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert crontab_line(Path("/home/you/site")) == "paste a line of crontab.example"
    monkeypatch.setattr(sys, "executable", "/not/there/python3")
    monkeypatch.setattr(doctor, "IS_INSTALLED", True)
    command = "/not/there/python3 -m taskserver worker"
    assert crontab_line(Path("/home/you/site")) == f"paste */5 * * * * {command} --folder /home/you/site"


# ---- which runs serve which groups

SERVED: list[tuple[list[int], list[LastRun], list[int]]] = [  # groups, runs, and those that no run serves
    ([1], [], []),
    ([1], [a_run()], []),
    ([1, 2], [a_run(groups="1")], [2]),
    ([1, 2], [a_run(groups="1"), a_run(8 * DAY, groups="2")], [2]),
    ([1, 2], [a_run(groups="3"), a_run(-400_000.0)], [1, 2]),
    ([1, 2], [a_run(groups="1,3,...deadbeef")], []),
]


def test_only_runs_in_time_serve_a_group() -> None:
    for groups, runs, expected in SERVED:
        assert unserved(groups, runs) == expected


# ---- how long a group will take


def test_the_time_left_is_estimated_from_recent_tasks() -> None:
    recent = HourStats(NOW, 3, "", done=90, failed=10, ran_seconds=50.0)
    group = rows(new=900, claimed=98, running=2)
    assert seconds_left(group, recent) == 1000 * 0.5 / 2
    assert seconds_left(group._replace(claimed=0, running=0), recent) is None
    assert seconds_left(group, None) is seconds_left(group, HourStats(NOW, 3, "")) is None


# ---- what was accepted


def test_accepted_findings_are_separate_and_do_not_count() -> None:
    status = judged(a_status({3: rows(fatal=99)}, lapsed=1), accepted=["fatal", "groups"])
    assert ([one.name for one in status.findings], status.level) == (["leases"], WARNING)
    assert [(one.finding.name, one.reason) for one in status.accepted] == [("fatal", "so be it")]


def test_only_findings_that_workers_can_live_with_are_acceptable() -> None:
    """And each name is one check's."""
    for facts in (mysql, postgresql, sqlite):
        checks: list[Any] = [*files.CHECKS, *modules.CHECKS, *facts.CHECKS]
        names = [*(check.name for check in checks), *(one.name for one in JUDGES)]
        assert len(set(names)) == len(names)
        assert max(map(len, names)) < MAX_NAME - 20
        store: Any = SimpleNamespace(database=SimpleNamespace(dialect=SimpleNamespace(facts=lambda: facts.FACTS)))  # noqa: B023
        needed = {"settings", "program", "rights", "tables", "claim_index", "standby", "modules", "callables"}
        assert {*names} - doctor.acceptable(store) == needed.intersection(names)
