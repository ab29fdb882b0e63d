"""The judgement of client.py check by its limits, its line, and what an alarm remembers: no database is asked."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from taskserver.cli.commands import check as command
from taskserver.health import alarms
from taskserver.health.acceptance import FINDINGS, NAMES, REASONS, Acceptances, Accepted
from taskserver.health.alarms import WELL, Alarm, alarm_of, is_news, name_of
from taskserver.health.checking import Judgement, Limit, Limits, State, judge_by_limits, measure, span
from taskserver.health.overview import AtWork, Overview, RowCounts
from taskserver.model.schedule import ScheduleRow
from taskserver.model.task import Status
from taskserver.stores.queue.counts import ExpiredClaims
from taskserver.stores.queue.notes import MAX_NAME
from taskserver.stores.queue.schedules import StoredSchedule
from taskserver.stores.queue.stats import HourStats
from taskserver.stores.records import ErrorCount, LastRun, RunningTask, WorkerProcess
from tests.support.commands import parsers_of_client
from tests.support.deployment import ROOT

HOUR, DAY = 3600, 86_400
OK, WARNING, CRITICAL = State.OK, State.WARNING, State.CRITICAL
NOW = "2026-11-22 10:00:00.000000"
NO_HOUR = HourStats(NOW[:19], 0, "")


def rows(new: int = 0, fatal: int = 0, ready_seconds: float | None = None, uncounted: Sequence[int] = ()) -> RowCounts:
    by_status: dict[int, int] = {**dict.fromkeys(Status, 0), Status.NEW: new, Status.FATAL: fatal}
    age = ready_seconds if ready_seconds is not None else (1.0 if new else None)
    return RowCounts(by_status, age, age, frozenset(uncounted))


def a_run(seconds_ago: float = 60.0, every: float | None = None, ended: str | None = NOW) -> LastRun:
    before = None if every is None else seconds_ago + every
    return LastRun("host", "all", 1, NOW, seconds_ago, ended, "empty", 0, 0, 0, 0, 0, before)


def at_work(has_ended: bool | None, seen_seconds: float = 5.0) -> AtWork:
    process = WorkerProcess(7, "host", "all", 1, "", NOW, 9.0, seen_seconds, None, 0, 0, 0, 0, 0, 0)
    return AtWork(process, has_ended is not None, has_ended)


def an_overview(
    groups: Mapping[int, RowCounts] | None = None,
    runs: Sequence[LastRun] = (a_run(),),
    paused: Sequence[int] = (),
    processes: Sequence[AtWork] = (),
    **others: Any,
) -> Overview:
    """A queue in which all is well, but for what is given."""
    groups = groups or {}
    new, fatal = (sum(one.by_status[status] for one in groups.values()) for status in (Status.NEW, Status.FATAL))
    given: dict[str, Any] = dict.fromkeys(("unserved", "paused"))
    given |= {
        "groups": groups,
        "total": rows(new, fatal),
        "runs": runs,
        "processes": processes,
        "paused_groups": paused,
    }
    given |= {"this_hour": NO_HOUR, "hour_before": NO_HOUR, "lapsed": ExpiredClaims(0, 0.0), "undated": 0, "now": NOW}
    given |= {"are_all_paused": False, "table": "jobs_queue", "mode": "delete", "database": "here"}
    empty = {name: () for name in Overview._fields if name not in given}
    return Overview(**given | empty | others)


def judged(overview: Overview, accepted: Sequence[str] = (), counted: int = 0, **limits: Any) -> Judgement:
    """The judgement, where the database counts so many rows of each status, up to what it is asked for."""
    wanted = Limits(**limits)
    measured = measure(overview, wanted, lambda most, status, groups: min(counted, most))
    acceptances = Acceptances({name: Accepted("so be it", NOW) for name in accepted})
    return judge_by_limits(overview, wanted, measured, acceptances)


def found(judgement: Judgement) -> dict[str, State]:
    return {problem.name: problem.state for problem in judgement.problems}


# ---- limits


def test_an_empty_queue_with_a_worker_is_well() -> None:
    assert found(judged(an_overview())) == {}


READY, AGE, FATAL = "ready", "age", "fatal"
EACH_LIMIT: list[tuple[dict[str, Any], RowCounts, str, State]] = [
    ({}, rows(new=10**5), "ready", OK),
    ({READY: Limit(5, 15)}, rows(new=5), "ready", OK),
    ({READY: Limit(5, 15)}, rows(new=6), "ready", WARNING),
    ({READY: Limit(5, 15)}, rows(new=15), "ready", WARNING),
    ({READY: Limit(5, 15)}, rows(new=16), "ready", CRITICAL),
    ({}, rows(new=1, ready_seconds=HOUR), "waiting", OK),
    ({}, rows(new=1, ready_seconds=HOUR + 1), "waiting", WARNING),
    ({}, rows(new=1, ready_seconds=3 * HOUR + 1), "waiting", CRITICAL),
    ({AGE: Limit(300, 900)}, rows(new=1, ready_seconds=301), "waiting", WARNING),
    ({AGE: Limit(300, 900)}, rows(new=1, ready_seconds=901), "waiting", CRITICAL),
    ({}, rows(fatal=1), "fatal", WARNING),
    ({}, rows(fatal=9), "fatal", WARNING),
    ({}, rows(fatal=10), "fatal", CRITICAL),
    ({FATAL: Limit(20, 60)}, rows(fatal=20), "fatal", OK),
    ({FATAL: Limit(20, 60)}, rows(fatal=61), "fatal", CRITICAL),
]


@pytest.mark.parametrize(("limits", "group", "name", "state"), EACH_LIMIT)
def test_a_value_above_a_limit_is_a_warning_and_above_the_second_critical(
    limits: dict[str, Any], group: RowCounts, name: str, state: State
) -> None:
    judgement = judged(an_overview({3: group}), **limits)
    assert found(judgement) == ({name: state} if state else {})
    assert judgement.state is state


SILENCES: list[tuple[Sequence[LastRun], Limit | None, bool, State]] = [
    ([], None, False, WARNING),
    ([], None, True, CRITICAL),
    ([], Limit(60, 180), False, WARNING),
    ([a_run(HOUR - 1, every=60)], None, True, OK),
    ([a_run(HOUR + 1, every=60)], None, False, WARNING),
    ([a_run(HOUR + 1, every=60)], None, True, CRITICAL),
    ([a_run(2 * DAY, every=DAY)], None, True, OK),
    ([a_run(4 * DAY, every=DAY)], None, False, WARNING),
    ([a_run(DAY - 1)], None, True, OK),
    ([a_run(DAY + 1)], None, False, WARNING),
    ([a_run(2 * HOUR, every=60), a_run(30 * HOUR, every=DAY)], None, True, OK),
    ([a_run(-DAY)], None, False, WARNING),
    ([a_run(60)], Limit(60, 180), False, OK),
    ([a_run(61)], Limit(60, 180), True, WARNING),
    ([a_run(181)], Limit(60, 180), False, CRITICAL),
    ([a_run(2 * DAY)], Limit(3 * DAY, 9 * DAY), True, OK),
]


@pytest.mark.parametrize(("runs", "limit", "has_new", "state"), SILENCES)
def test_cron_s_silence_is_judged_by_its_own_rhythm_or_by_the_limit_that_is_given(
    runs: Sequence[LastRun], limit: Limit | None, has_new: bool, state: State
) -> None:
    overview = an_overview({3: rows(new=1)} if has_new else {}, runs)
    assert found(judged(overview, silence=limit)) == ({"cron": state} if state else {})


def test_groups_are_judged_by_the_rhythm_of_the_runs_that_serve_them() -> None:
    daily, minutely = (a_run(age, every=every)._replace(group_ids=str(group)) for age, every, group in RUNS)
    overview = an_overview({3: rows(new=1), 9: rows()}, [daily, minutely])
    assert found(judged(overview)) == found(judged(overview, groups=(3,))) == {}
    assert found(judged(overview, groups=(5,))) == {"cron": WARNING}
    assert found(judged(overview, groups=(3, 5))) == {}


RUNS = [(40 * HOUR, DAY, 3), (5000, 60, 5)]


@pytest.mark.parametrize(("new", "state"), [(0, WARNING), (1, CRITICAL)])
@pytest.mark.parametrize("silence", [None, Limit(HOUR)])
def test_groups_that_no_run_serves_are_told_as_such(new: int, state: State, silence: Limit | None) -> None:
    overview = an_overview({3: rows(new=1), 9: rows(new=new)}, [a_run()._replace(group_ids="3")])
    judgement = judged(overview, groups=(9, 11), silence=silence)
    assert [(one.name, one.words, one.state) for one in judgement.problems] == [
        ("cron", "no run serves groups 9, 11", state)
    ]


def test_tasks_of_paused_groups_make_a_silence_no_worse_and_are_not_old() -> None:
    overview = an_overview({3: rows(new=1, ready_seconds=9 * HOUR)}, [a_run(2 * HOUR, every=60)], paused=[3])
    assert found(judged(overview)) == {"cron": WARNING}


@pytest.mark.parametrize(
    ("process", "is_silent"),
    [
        # The same for whatever host looks: not by what one of them knows of its own processes.
        (at_work(False, 9 * DAY), True),
        (at_work(True), False),
        (at_work(None), False),
        (at_work(None, 2 * DAY), True),
    ],
)
def test_a_worker_at_work_is_no_silence_unless_it_was_heard_of_long_ago(process: AtWork, is_silent: bool) -> None:
    judgement = judged(an_overview(runs=[a_run(2 * DAY)], processes=[process]))
    assert found(judgement) == ({"cron": WARNING} if is_silent else {})
    assert (judgement.measured.silence_seconds == 0) is not is_silent


def test_a_worker_in_the_midst_of_a_long_task_is_at_work_while_its_lease_holds() -> None:
    task = RunningTask(1, "tasks.long", 3, 1, 2.0 * DAY, 7, None)
    given: dict[str, Any] = {"runs": [a_run(2 * DAY)], "processes": [at_work(None, 2 * DAY)], "running": [task]}
    assert found(judged(an_overview(**given))) == {}
    assert found(judged(an_overview(**given, lapsed=ExpiredClaims(1, 500.0)))) == {"cron": WARNING, "leases": WARNING}


def test_lapsed_leases_and_what_somebody_has_to_act_on_are_warnings() -> None:
    schedule = ScheduleRow("nightly", "tasks.a", None, 0, 0, None, "x", "UTC")
    overview = an_overview(
        lapsed=ExpiredClaims(3, 500.0),
        unserved="1 new task in group 7, which no worker takes: they serve 3",
        unserved_groups=[7],
        schedules=[StoredSchedule(schedule, NOW, 1.0, "no cron expression")],
        undated=1,
        hours=[NO_HOUR._replace(lost=2)],  # to be looked at: no warning
    )
    assert found(judged(overview)) == dict.fromkeys(("leases", "groups", "schedules", "stray"), WARNING)


@pytest.mark.parametrize(("new", "state"), [(0, WARNING), (3, CRITICAL)])
def test_a_run_that_failed_before_it_could_start_a_task_is_told(new: int, state: State) -> None:
    run = a_run()._replace(reason="error", released=5)
    judgement = judged(an_overview({0: rows(new)}, [run]))
    words = "the last run for all groups on host ended with an error and could start no task"
    assert [(one.name, one.state, one.words) for one in judgement.problems] == [("runs", state, words)]
    for well in (run._replace(taken=1), run._replace(released=0), run._replace(reason="stopped")):
        assert judged(an_overview({0: rows(new)}, [well])).state is OK


def test_a_run_whose_process_died_before_its_first_task_is_told_while_it_holds_claims() -> None:
    run, died = a_run(ended=None), at_work(has_ended=True)
    for process, claims, state in ((died, {7: 3}, CRITICAL), (at_work(None), {7: 3}, OK), (died, {8: 3}, OK)):
        judgement = judged(an_overview({}, [run], processes=[process], claimed_by_number=claims))
        assert judgement.state is state
    killer = RunningTask(1, "tasks.greet", 0, 1, 5.0, 7, None)
    assert judged(an_overview({}, [run], processes=[died], claimed_by_number={7: 3}, running=[killer])).state is OK
    words = "the last run for all groups on host was killed, or ended its process, before its first task began"
    assert words in [
        one.words for one in judged(an_overview({}, [run], processes=[died], claimed_by_number={7: 3})).problems
    ]


def test_attempts_that_failed_are_told_while_a_task_is_in_error_or_fatal() -> None:
    overview = an_overview()._replace(this_hour=NO_HOUR._replace(failed=8, done=2))
    assert judged(overview).state is OK
    in_error = RowCounts({**dict.fromkeys(Status, 0), Status.ERROR: 1}, None, None)
    (problem,) = judged(overview._replace(total=in_error)).problems
    assert (problem.name, problem.state) == ("failing", WARNING)
    assert problem.words.startswith("8 of 10 attempts failed since ")


def test_the_worst_problem_stands_first() -> None:
    judgement = judged(an_overview({3: rows(new=1, fatal=10, ready_seconds=2 * HOUR)}))
    assert list(found(judgement).items()) == [("fatal", CRITICAL), ("waiting", WARNING)]


def test_of_chosen_groups_alone_the_tasks_count() -> None:
    overview = an_overview({3: rows(new=4, ready_seconds=400), 5: rows(new=9, fatal=10, ready_seconds=9 * HOUR)})
    judgement = judged(overview, groups=(3, 77), age=Limit(300, 900))
    assert found(judgement) == {"waiting": WARNING}
    measured = judgement.measured
    assert (measured.ready.rows, measured.fatal.rows, measured.oldest_group) == (4, 0, 3)


def test_tasks_of_paused_groups_are_not_ready_and_are_not_counted() -> None:
    asked: list[tuple[Status, Sequence[int]]] = []

    def up_to(most: int, status: Status, groups: Sequence[int]) -> int:
        asked.append((status, groups))
        return min(9, most)

    overview = an_overview({3: rows(new=4), 5: rows(new=2)}, paused=[3])
    measured = measure(overview, Limits(ready=Limit(100)), up_to)
    assert (measured.ready.rows, asked) == (9, [(Status.NEW, [5]), (Status.FATAL, ())])
    overview = overview._replace(paused_groups=[3, 5])
    assert measure(overview, Limits(ready=Limit(100)), up_to).ready.rows == 0


# ---- counts that an overview did not finish


@pytest.mark.parametrize(
    ("seen", "there", "limit", "state", "words"),
    [
        (100, 100, Limit(100, 300), OK, "100"),
        (100, 250, Limit(100, 300), WARNING, "250"),
        (100, 250, Limit(250, 750), OK, "250"),
        (100, 5000, Limit(100, 300), CRITICAL, "301+"),
        (500, 5000, Limit(100, 300), CRITICAL, "500+"),
        (0, 5000, Limit(100, 300), CRITICAL, "301+"),
    ],
)
@pytest.mark.parametrize("status", [Status.NEW, Status.FATAL])
def test_rows_that_an_overview_left_uncounted_count_for_a_limit_above_them(
    status: Status, seen: int, there: int, limit: Limit, state: State, words: str
) -> None:
    name = "ready" if status == Status.NEW else "fatal"
    group = rows(**{"new" if status == Status.NEW else "fatal": seen}, uncounted=[status])
    others: dict[str, Any] = {} if name == "fatal" else {"fatal": Limit(10**6)}
    judgement = judged(an_overview({3: group} if seen else {}), counted=there, **others | {name: limit})
    assert found(judgement) == ({name: state} if state else {})
    assert str(getattr(judgement.measured, name)) == words


# ---- what was accepted


def test_what_was_accepted_is_apart_and_counts_for_nothing() -> None:
    judgement = judged(an_overview({3: rows(fatal=99)}, lapsed=ExpiredClaims(1, 1.0)), accepted=["fatal", "groups"])
    assert (found(judgement), judgement.state) == ({"leases": WARNING}, WARNING)
    assert [problem.name for problem in judgement.accepted] == ["fatal"]


def test_every_name_of_a_finding_can_be_accepted_and_no_other() -> None:
    """A finding's name is the first argument of what makes it."""

    def names_in(*files: str, makers: Sequence[str]) -> set[str]:
        calls = [
            node
            for file in files
            for path in (ROOT / "taskserver").glob(file)
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
        ]
        first = [call.args[0] for call in calls if call.args and re.search(r"\w+", ast.unparse(call.func))[0] in makers]  # type: ignore[index]
        return {one.value for one in first if isinstance(one, ast.Constant) and isinstance(one.value, str)}

    reasons = names_in("health/verdict.py", "health/checking.py", makers=["VerdictReason", "Problem"])
    assert set(REASONS) == reasons
    findings = names_in("health/*.py", makers=["ok", "unknown", "warning", "critical"])
    findings |= names_in("stores/facts.py", "stores/*/facts.py", makers=["Check", "check_value"])
    of_many = {"between", "on_failure"}  # named where their search begins
    assert {*FINDINGS, "settings", "database"} == findings | of_many
    assert len(set(FINDINGS)) == len(FINDINGS)
    assert not {*NAMES} & {"settings", "database"}
    assert max(map(len, NAMES)) < MAX_NAME - 20


# ---- its line


def line_of(judgement: Judgement) -> str:
    return command._in_lines(judgement)


def test_the_line_has_state_words_and_performance_data_as_plugins_print_them() -> None:
    overview = an_overview({3: rows(new=37, fatal=2, ready_seconds=412)}, [a_run(75, every=300)])
    judgement = judged(overview, age=Limit(300, 900), silence=Limit(3600, 10_800))
    assert line_of(judgement) == (
        "TASKSERVER WARNING: group 3 waits 412 s, 2 fatal"
        " | ready=37;;;0 age=412s;300;900;0 fatal=2;0;9;0 lapsed=0;0;;0 silence=75s;3600;10800;0"
    )


def test_the_line_of_a_queue_that_is_well_says_what_it_holds() -> None:
    said = line_of(judged(an_overview({3: rows(new=2, ready_seconds=7)}, [a_run(75, every=300)])))
    assert said.startswith("TASKSERVER OK: 2 ready, the oldest for 7 s, last run 75 s ago | ready=2;;;0 age=7s;3600;")
    assert said.endswith("silence=75s;3600;;0")
    working = line_of(judged(an_overview(processes=[at_work(False)])))
    assert working.startswith("TASKSERVER OK: 0 ready | ")
    assert line_of(judged(an_overview(runs=[]))).endswith(" silence=U;;;0")


PERFORMANCE = re.compile(r"(\w+=(U|\d+s?);\d*;\d*;0)( \w+=(U|\d+s?);\d*;\d*;0)*")


def test_long_and_hostile_words_are_cut_and_leave_one_line_and_its_performance_data() -> None:
    faulty = ScheduleRow("evil\n| age=9s\x1b[2J" * 50, "tasks.a", None, 0, 0, None, "x", "UTC")
    overview = an_overview(schedules=[StoredSchedule(faulty, NOW, 1.0, "fault")], lapsed=ExpiredClaims(1, 9.0))
    said = line_of(judged(overview, accepted=["leases"]))
    words, performance = said.split(" | ")
    assert len(words) < 80
    assert words.endswith("… (accepted: leases)")
    assert words.isprintable()
    assert PERFORMANCE.fullmatch(performance)


def test_an_account_that_may_not_read_what_was_accepted_is_told_so_below_the_line() -> None:
    judgement = judged(an_overview())._replace(acceptances=Acceptances({}, "it cannot be read"))
    first, second = line_of(judgement).splitlines()
    assert (first.startswith("TASKSERVER OK"), second) == (True, "it cannot be read")


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (412, "412 s"), (2000, "33 min"), (3 * DAY, "3 d")])
def test_spans_are_told_in_seconds_while_they_are_short(seconds: float, words: str) -> None:
    assert span(seconds) == words


# ---- options


def parsed(*arguments: str) -> Limits:
    return command._limits(parsers_of_client()["check"].parse_args(arguments))


@pytest.mark.parametrize(
    ("arguments", "limits"),
    [
        ("", Limits()),
        ("--max-ready 5", Limits(ready=Limit(5, 15))),
        ("--max-ready 0", Limits(ready=Limit(0, 0))),
        ("--max-ready 5:6", Limits(ready=Limit(5, 6))),
        ("--max-age 5m", Limits(age=Limit(300, 900))),
        ("--max-age 5m:15m", Limits(age=Limit(300, 900))),
        ("--max-age 90:2h", Limits(age=Limit(90, 7200))),
        ("--max-fatal 0", Limits()),
        ("--max-fatal 2", Limits(fatal=Limit(2, 9))),
        ("--max-fatal 100", Limits(fatal=Limit(100, 300))),
        ("--max-fatal 0:0", Limits(fatal=Limit(0, 0))),
        ("--max-silence 1d", Limits(silence=Limit(DAY, 3 * DAY))),
        ("--group 5,3 --group 3", Limits(groups=(3, 5))),
    ],
)
def test_a_limit_is_one_number_or_two_and_three_times_the_first_is_the_second(arguments: str, limits: Limits) -> None:
    assert parsed(*arguments.split()) == limits


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--max-age x", "--max-age"),
        ("--max-age 15m:5m", "is below the first"),
        ("--max-ready -1", "--max-ready"),
        ("--max-ready 5:", "--max-ready"),
        ("--max-silence 0", "--max-silence"),
        ("--group all", "--group"),
        ("--mail --json", "not allowed with"),
        ("--accept nothing", "known are between, callables"),
        ("--accept settings", "nothing that can be accepted"),
        ("--accept", "--accept"),
        ("now", "now"),
    ],
)
def test_wrong_usage_is_a_line_on_standard_output_and_code_3(
    capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*arguments.split())
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (3, "")
    assert said.out.startswith("TASKSERVER UNKNOWN: ")
    assert words in said.out
    assert said.out.count("\n") == 1


# ---- the note of an alarm


def test_other_limits_are_another_alarm_and_the_same_ones_the_same() -> None:
    given = ["", "--max-ready 5", "--max-ready 5:16", "--max-age 5m", "--group 3", "--group 3,5", "--max-silence 1h"]
    names = [name_of(parsed(*arguments.split())) for arguments in given]
    assert len(set(names)) == len(names)
    assert names[:2] == ["check", "check ready=5:15"]
    assert name_of(parsed("--max-age", "1h", "--max-fatal", "0")) == "check"
    assert name_of(parsed("--group", "5,3")) == name_of(parsed("--group", "3,5"))


def test_the_name_of_an_alarm_of_many_groups_fits_its_column_and_is_its_own() -> None:
    many = [Limits(groups=tuple(range(first, first + 400))) for first in (10**9, 10**9 + 1)]
    names = [name_of(limits) for limits in many]
    assert len(set(names)) == 2
    assert max(map(len, names)) <= MAX_NAME
    assert all(name.isascii() for name in names)


FORGED = [
    *('{"began": "x", "since": {}, "fatal": ' + rest for rest in ('1e999, "told": {}, "away": {}}', '1, "told": 5}')),
    *("", "null", "[]", "5", "{}", '{"state": 5, "began": 5, "since": 5}', "[" * 10_000, '{"since": {"a": "b"}}'),
]


@pytest.mark.parametrize("text", FORGED)
def test_a_note_that_holds_anything_is_an_alarm_of_nothing(text: str) -> None:
    assert alarms._read(text) == WELL


def test_an_alarm_is_read_as_it_was_written() -> None:
    alarm = Alarm(NOW, {"fatal": NOW}, 2, {"fatal": [NOW], "groups": [NOW, NOW]}, {"failing": NOW}, {"groups": NOW})
    assert alarms._read(json.dumps(alarm._asdict())) == alarm


class Looks:
    """Checks one after the other, of a queue with so many fatal tasks."""

    def __init__(self) -> None:
        self.alarm = WELL

    def look(self, minutes: int, fatal: int, **more: Any) -> bool:
        """Whether that is news, so many minutes after the begin."""
        now = str(datetime.fromisoformat(NOW) + timedelta(minutes=minutes))
        judgement = judged(an_overview({3: rows(fatal=fatal)}, **more))._replace(now=now)
        before, self.alarm = self.alarm, alarm_of(judgement, self.alarm)
        return is_news(before, self.alarm)

    def news(self, times: range, fatal: Callable[[int], int]) -> list[int]:
        """The minutes that had some, where the minutes tell the fatal tasks."""
        return [minutes for minutes in times if self.look(minutes, fatal(minutes))]


def test_of_what_comes_and_goes_the_third_end_within_a_day_is_told_once_it_has_been_over_for_an_hour() -> None:
    """A look each five minutes, half of which find it."""
    looks = Looks()
    assert looks.news(range(0, 300, 5), lambda minutes: int(minutes % 10 == 0)) == [0, 5, 10, 15, 20]
    assert looks.news(range(300, 400, 5), lambda minutes: 0) == [355]  # it was there at 290 last
    assert looks.news(range(400, 500, 5), lambda minutes: 1) == [400]
    assert looks.news(range(500, 700, 5), lambda minutes: 0) == [620]  # and the fourth once for two hours
    assert looks.news(range(3000, 3010, 5), lambda minutes: 1) == [3000]  # two days later
    assert looks.news(range(3010, 3020, 5), lambda minutes: 0) == [3010]
    assert looks.news(range(6000, 6010, 5), lambda minutes: 0) == []
    assert looks.alarm == WELL


def test_what_comes_back_and_stays_is_told_again() -> None:
    looks = Looks()
    looks.news(range(0, 300, 5), lambda minutes: int(minutes % 10 == 0))
    assert looks.news(range(300, 4000, 5), lambda minutes: 1) == [360]


def test_what_gets_critical_or_much_more_again_and_again_is_told_three_times_a_day() -> None:
    assert Looks().news(range(0, 300, 5), lambda minutes: 9 + (minutes % 10 == 0)) == [0, 5, 10, 15, 20]
    assert Looks().news(range(0, 300, 5), lambda minutes: 1 + 5 * (minutes % 10 == 0)) == [0, 10, 20, 30]
    grows = Looks().news(range(0, 300, 5), lambda minutes: 2 ** (minutes // 5))
    assert grows == [0, 15, *range(20, 300, 5)]  # 1, 8, which doubles, and 16, which is critical


def test_a_problem_that_gets_critical_is_told_whatever_else_is_critical_or_comes_and_goes() -> None:
    fatal = {3: rows(fatal=10)}
    stands = alarm_of(judged(an_overview(fatal, [a_run(7200, every=60)])), WELL)
    assert set(stands.since) == {"cron", "fatal", "fatal critical"}
    waits = {3: rows(new=1, fatal=10)}
    worse = alarm_of(judged(an_overview(waits, [a_run(7200, every=60)])), stands)
    assert "cron critical" in worse.since
    assert is_news(stands, worse)
    # Nothing is critical that is over, and so nothing keeps the good news back.
    often = stands._replace(told={"fatal critical": [NOW] * 3})
    assert alarm_of(judged(an_overview()), often).since == {}
    eased = alarm_of(judged(an_overview({3: rows(fatal=9)})), often)
    letter = list(command._letter(judged(an_overview({3: rows(fatal=9)})), alarms.Change(often, eased, None)))
    assert letter[-1].startswith("fatal is critical now and then, and not now: ")
    assert "over: cron, after 0 s" in letter


def test_at_random_a_problem_that_is_there_was_told_and_mails_are_few() -> None:
    """As its reader keeps it in mind: what stood in a mail and was not told as over."""
    for seed in range(8):
        random, looks, mails, known = Random(seed), Looks(), 0, set[str]()
        fatal, groups = 0, False
        for minutes in range(0, 3 * 1440, 5):
            fatal = random.choice([0, 1, 9, 10, 20]) if random.random() < 0.4 else fatal
            groups = not groups if random.random() < 0.2 else groups
            more: dict[str, Any] = {"unserved": "groups"} if groups else {}
            before, judgement = looks.alarm, judged(an_overview({3: rows(fatal=fatal)}, **more))
            if looks.look(minutes, fatal, **more):
                letter = list(command._letter(judgement, alarms.Change(before, looks.alarm, None)))
                mails += 1
                known = {line.partition(",")[0] for line in letter if ", seen first at " in line}
                known |= {line.partition(" comes and goes, ")[0] for line in letter if " comes and goes, " in line}
                assert judgement.problems or letter[0].startswith("TASKSERVER OK: ")
                assert not judgement.problems or letter[0].startswith(f"TASKSERVER {judgement.state.name}: ")
            assert {problem.name for problem in judgement.problems} <= known
        assert 10 < mails < 3 * 40
        looks.news(range(3 * 1440, 4 * 1440, 5), lambda minutes: 1)
        assert "fatal" not in looks.alarm.away


def test_what_is_away_is_told_with_nothing_and_nothing_is_called_well_before() -> None:
    often = {"fatal": [NOW] * 3}
    before = Alarm(NOW, {"fatal": NOW, "groups": NOW}, told=often)
    away = alarm_of(judged(an_overview()), before)
    assert (set(away.since), away.away) == ({"fatal"}, {"fatal": NOW})
    letter = list(command._letter(judged(an_overview()), alarms.Change(before, away, None)))
    assert letter == [
        "TASKSERVER OK: nothing is wrong now",
        "",
        "over: groups, after 0 s",
        "",
        "fatal comes and goes, and is not there now: its end is told once it has been over for an hour or more",
    ]
    # What is accepted is over at once.
    assert not alarm_of(judged(an_overview({3: rows(fatal=1)}), ["fatal"]), before).since


@pytest.mark.parametrize("instant", ["garbage", "2099-01-01 00:00:00"])
def test_a_forged_or_a_future_instant_silences_nothing(instant: str) -> None:
    forged = Alarm(NOW, {"fatal": NOW}, 1, {"fatal": [instant] * 3}, {"fatal": instant})
    assert alarm_of(judged(an_overview()), forged) == WELL
    frequent = forged._replace(told={"fatal": [NOW] * 3})
    assert not alarm_of(judged(an_overview()), frequent).since


def test_while_cron_has_stopped_no_mail_asks_for_more_workers() -> None:
    waits = {3: rows(new=1, ready_seconds=9000.0)}
    stopped, goes = (judged(an_overview(waits, [a_run(age, every=60)])) for age in (7200, 30))
    assert [list(found(one)) for one in (stopped, goes)] == [["cron", "waiting"], ["waiting"]]
    cron = alarm_of(stopped, WELL)
    assert list(cron.since) == ["cron", "cron critical"]
    assert list(alarm_of(goes, cron).since) == ["waiting"]
    # What waited before goes on waiting.
    assert list(alarm_of(stopped, alarm_of(goes, WELL)).since) == ["cron", "waiting", "cron critical"]


def test_a_mail_names_the_most_frequent_errors() -> None:
    counts = [(9, 0), (8, 2), (7, 1), (6, 5), (5, 4), (0, 0)]
    errors = [ErrorCount(f"OSError: {all_}", all_, fatal, NOW, NOW, 1) for all_, fatal in counts]
    overview = an_overview({3: rows(fatal=2)})._replace(errors=errors)
    letter = list(command._lines(judged(overview)))
    assert [line for line in letter if " failed with: " in line] == [
        "  5 failed with: OSError: 6",
        "  4 failed with: OSError: 5",
        "  2 failed with: OSError: 8",
    ]
    retries = [line for line in command._lines(judged(overview), "/x/client.py") if " retry --" in line]
    assert retries == [f"  /x/client.py retry --error-line='OSError: {number}'" for number in (6, 5, 8)]
    assert not [line for line in command._lines(judged(overview, groups=(3,))) if " failed with: " in line]


LETTERS: list[tuple[Alarm, Alarm, list[str]]] = [
    (WELL, Alarm(NOW, {"fatal": NOW}), ["TASKSERVER WARNING: 2 fatal", "What to do: client.py errors"]),
    (
        WELL,
        Alarm(NOW, {"fatal": NOW}, told={"fatal": [NOW] * 3}),
        ["It comes and goes: its end is told once it has been over for an hour."],
    ),
    (
        Alarm("2026-11-22 08:00:00", {"fatal": "x", "groups": "2026-11-22 09:30:00"}),
        Alarm("2026-11-22 08:00:00", {"fatal": "x"}),
        ["fatal, seen first at x: 2 tasks are fatal", "over: groups, after 30 min"],
    ),
    (
        Alarm("2026-11-22 08:00:00", {"fatal": NOW}),
        WELL,
        [
            "TASKSERVER OK: all is well again\nSomething was wrong from 2026-11-22 08:00:00",
            "on, in the end: fatal\n\nover: fatal, after 0 s",
        ],
    ),
]


@pytest.mark.parametrize(("before", "after", "words"), LETTERS)
def test_a_mail_tells_what_is_wrong_since_when_what_to_do_and_what_is_over(
    before: Alarm, after: Alarm, words: Sequence[str]
) -> None:
    letter = "\n".join(command._letter(judged(an_overview({3: rows(fatal=2)})), alarms.Change(before, after, None)))
    for one in words:
        assert one in letter
