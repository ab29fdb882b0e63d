"""client.py check: its line, options and alarms. No database is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

from taskserver.cli.commands import check as command
from taskserver.health.alarm import Change, Reported, _read, alarm_of, is_news, name_of
from taskserver.health.judge import LIMITS, Limit, Limits
from taskserver.health.status import QueueStatus
from taskserver.stores.queue.notes import MAX_NAME
from taskserver.stores.queue.schedules import StoredSchedule
from taskserver.stores.records import ErrorCount
from tests.support.printed import parsers_of_client
from tests.unit.test_judge import DAY, NOW, SCHEDULE, a_run, a_status, judged, rows

# ---- the line of check


def line_of(status: QueueStatus, limits: Limits | None = None) -> str:
    return command._in_lines([command._seen(judged(status, limits), {**LIMITS, **(limits or {})})])


def test_the_line_has_a_level_words_and_performance_data() -> None:
    status = a_status({3: rows(new=37, fatal=2, ready=412)}, runs=[a_run(75, every=300)])
    assert line_of(status, {"waiting": Limit(300, 900), "cron": Limit(3600, 10_800)}) == (
        "TASKSERVER WARNING: group 3 waits 412 s, 2 fatal"
        " | ready=37;;;0 age=412s;300;900;0 fatal=2;0;9;0 lapsed=0;0;;0 silence=75s;3600;10800;0"
    )


def test_long_and_hostile_words_are_cut_and_escaped() -> None:
    faulty = SCHEDULE._replace(name="evil\n| age=9s\x1b[2J" * 50)
    status = judged(a_status(schedules=[StoredSchedule(faulty, NOW, 1.0, "x")], lapsed=1), accepted=["leases"])
    finding = status.findings[0]._replace(short="")
    line = command._in_lines([command._seen(status._replace(findings=[finding]), LIMITS)])
    words, performance = map(str.strip, line.split("|"))
    assert (len(words) < 80, words.isprintable()) == (True, True)
    assert words.endswith("… (accepted: leases)")
    assert re.fullmatch(r"(\w+=(U|\d+s?);\d*;\d*;0)( \w+=(U|\d+s?);\d*;\d*;0)*", performance)


# ---- its options


def parsed(*arguments: str) -> tuple[Limits, tuple[int, ...]]:
    options = parsers_of_client()["check"].parse_args(arguments)
    given = command._limits(options)
    return {name: limit for name, limit in given.items() if limit != LIMITS.get(name)}, tuple(options.groups)


def test_a_single_limit_is_a_warning_and_three_times_it_is_critical() -> None:
    taken: dict[str, Limits] = {
        "": {},
        "--max-ready 5": {"ready": Limit(5, 15)},
        "--max-ready 0": {"ready": Limit(0, 0)},
        "--max-age 90:2h": {"waiting": Limit(90, 7200)},
        "--max-fatal 2": {"fatal": Limit(2, 9)},
        "--max-silence 1d": {"cron": Limit(DAY, 3 * DAY)},
    }
    assert {arguments: parsed(*arguments.split())[0] for arguments in taken} == taken


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--max-age 15m:5m", "is below the first"),
        ("--max-silence 0", "--max-silence"),
        ("--mail --json", "not allowed with"),
    ],
)
def test_wrong_usage_is_one_line_on_standard_output_and_code_3(
    capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*arguments.split())
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (3, "")
    assert said.out.startswith("TASKSERVER UNKNOWN: ")
    assert words in said.out
    assert said.out.count("\n") == 1


# ---- its alarm


def test_each_set_of_limits_is_an_alarm_whose_name_fits_its_column() -> None:
    given = ["", "--max-ready 5", "--max-age 5m", "--group 3"]
    names = [name_of(*parsed(*arguments.split())) for arguments in given]
    assert len(set(names)) == len(names)
    assert names[:2] == ["check", "check ready=5:15"]
    assert name_of(*parsed("--max-age", "1h", "--max-fatal", "0")) == "check"
    many = [name_of(LIMITS, range(first, first + 400)) for first in (10**9, 10**9 + 1)]
    assert len(set(many)) == 2
    assert max(map(len, many)) <= MAX_NAME


class Looks:
    """Successive runs of check --mail for a queue with some fatal tasks, or tasks of dead workers."""

    def __init__(self, kind: str = "fatal") -> None:
        self.kind = kind
        self.alarm: dict[str, Reported] = {}

    def look(self, minutes: int, count: int, accepted: Sequence[str] = ()) -> str:
        """`up` or `over` if that is news, so many minutes after the begin."""
        of_kind: dict[str, Any] = {"groups": {3: rows(fatal=count)}} if self.kind == "fatal" else {self.kind: count}
        status = judged(a_status(**of_kind, now=NOW + timedelta(minutes=minutes)), accepted=accepted)
        before = _read(json.dumps(self.alarm, default=str))
        self.alarm, over = alarm_of(status, before)
        return "over" if over else "up" if is_news(before, self.alarm) else ""


NEWS: list[tuple[str, str, Callable[[int], int], list[tuple[int, str]]]] = [
    ("its end an hour after", "lapsed", lambda minutes: int(minutes < 60), [(0, "up"), (120, "over")]),
    ("what is away for 55 minutes is no news", "lapsed", lambda minutes: int(minutes % 60 == 0), [(0, "up")]),
    ("fatal tasks are over at once", "fatal", lambda minutes: int(minutes < 5), [(0, "up"), (5, "over")]),
    ("one that gets critical is news, and once", "fatal", lambda minutes: 9 + minutes // 5 % 2, [(0, "up"), (5, "up")]),
    ("a few more are none", "fatal", lambda minutes: min(1 + minutes // 5, 9), [(0, "up")]),
    ("twice as many are", "fatal", lambda minutes: min(11 + minutes // 5, 33), [(0, "up"), (25, "up"), (105, "up")]),
]


@pytest.mark.parametrize(("words", "kind", "count", "news"), NEWS, ids=[words for words, *_ in NEWS])
def test_each_change_is_mailed_once(
    words: str, kind: str, count: Callable[[int], int], news: list[tuple[int, str]]
) -> None:
    looks = Looks(kind)
    assert [(at, word) for at in range(0, 360, 5) if (word := looks.look(at, count(at)))] == news


def test_an_accepted_finding_is_over_at_once() -> None:
    looks = Looks()
    assert [looks.look(0, 1), looks.look(5, 1), looks.alarm["fatal"].seconds] == ["up", "", 300]
    assert [looks.look(10, 1, ["fatal"]), looks.alarm] == ["over", {}]
    assert _read('{"fatal": ["garbage", "2026-11-22 09:00:00", 64], "lost": [5, null, 64]}') == {}


HALF_AN_HOUR = Reported(NOW, NOW + timedelta(minutes=30), 64)


def letter_of(status: QueueStatus, alarm: Mapping[str, Reported], over: Mapping[str, Reported]) -> list[str]:
    return list(command._letter(status, Change(alarm, over, None, None), "/x/client.py"))


def test_a_mail_says_what_is_wrong_since_when_and_how_to_fix_it() -> None:
    errors = [ErrorCount(f"OSError: {all_}", all_, fatal, NOW, NOW, 1) for all_, fatal in [(9, 0), (8, 2), (6, 5)]]
    alarm = {"fatal": Reported(NOW - timedelta(hours=1), NOW, 70)}
    over = {"groups": HALF_AN_HOUR}
    first, *rest = letter_of(judged(a_status({3: rows(fatal=2)}, errors=errors)), alarm, over)
    assert first == "TASKSERVER WARNING: 2 fatal"
    assert re.fullmatch(r"fatal, seen first at 2026-11-22 09:00:00 \w+: 2 tasks are fatal: no worker .*", rest[1])
    assert rest[2:4] == ["  5 failed with: OSError: 6", "  2 failed with: OSError: 8"]
    assert rest[4].startswith("What to do: client.py errors")
    assert rest[5:] == [
        *("  /x/client.py retry --error-line='OSError: 6'", "  /x/client.py retry --error-line='OSError: 8'"),
        *("", "over: groups, after 30 min"),
    ]


def test_good_news_begins_with_ok() -> None:
    over = {"fatal": HALF_AN_HOUR}
    assert letter_of(a_status(), {}, over) == ["TASKSERVER OK: all is well again", "", "over: fatal, after 30 min"]
    assert letter_of(a_status(), {"lost": HALF_AN_HOUR}, over)[0] == "TASKSERVER OK: nothing is wrong now"
    accepted = judged(a_status({3: rows(fatal=2)}), accepted=["fatal"])
    first, _, last = letter_of(accepted, {}, over)
    assert first == "TASKSERVER OK: nothing else is wrong, but accepted: fatal"
    assert last == "fatal is accepted, and no longer reported"
