"""A soak run in its short form, and whether its judge sees growth and its checks what they must."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.faults.chaos.checks import Evidence, Run
from tests.faults.chaos.stage import WorkerRun
from tests.faults.soak import checks
from tests.faults.soak.judge import growths
from tests.faults.soak.run import run_soak, why_not
from tests.faults.soak.tasks import TICK
from tests.support.databases import DATABASES

CHANCE = random.Random(1)
HOUR = range(0, 3600, 30)


@pytest.mark.long
def test_an_everyday_minute_with_faults_on_each_database_ends_with_all_tasks_done(tmp_path: Path) -> None:
    if words := why_not():
        pytest.skip(words)
    outcomes = run_soak(DATABASES, 90.0, random.SystemRandom().randrange(1_000_000), tmp_path)
    print(*outcomes, sep="\n\n")
    assert not any(outcome.failures for outcome in outcomes), "\n\n".join(map(str, outcomes))


@pytest.mark.parametrize(
    ("name", "value", "is_growth"),
    [
        ("worker MB @7", lambda at: 25 + at / 3600 * 6 + CHANCE.uniform(-1, 1), True),
        ("worker MB @7", lambda at: 25 + min(at, 900) / 900 * 6 + CHANCE.uniform(-1, 1), False),
        ("queue rows", lambda at: 800 + at % 300, False),
        ("queue rows", lambda at: 800 + at % 300 + at / 4, True),
        ("connections", lambda at: 90 if at % 600 < 60 else 6, False),
        ("connections", lambda at: 6 + at // 300, True),
        ("log MB", lambda at: at / 3600 * 40, False),
        ("log MB", lambda at: at / 3600 * 50, True),
        ("oldest ready s", lambda at: 3000 if at == 1800 else 1, True),
    ],
)
def test_the_judge_reports_growth_and_no_waves_or_outliers(
    name: str, value: Callable[[int], float], is_growth: bool
) -> None:
    (growth,) = growths([{"at": at, name: value(at)} for at in HOUR])
    assert (growth.fault is not None) == is_growth, growth
    assert [growth.fault for growth in growths([{"at": at, "var files": at} for at in range(0, 600, 30)])] == [None]


def test_of_workers_that_came_and_went_the_one_that_stayed_longest_is_judged() -> None:
    samples = [{"at": at, f"worker MB @{at // 1800 if at < 2400 else 2}": at} for at in HOUR]
    (growth,) = growths([*samples, *({"at": at, "worker MB @2": at} for at in range(3600, 7200, 30))])
    assert (growth.first, growth.last) == (2400, 7170)
    assert growth.fault is not None


STORY = Evidence(
    runs=[
        Run(1, 5, 10.0, 11.0, "done"),
        Run(2, 5, 12.0, 13.0, "done"),
        *(Run(TICK, 5, at, at, "done", "second") for at in (0.0, 15.0, 30.0)),
    ],
    workers=[WorkerRun(0, 5, 0.0, 99.0, 0, ""), WorkerRun(0, 6, 40.0, 99.0, 0, "")],
)


def test_the_checks_report_early_and_late_runs() -> None:
    early, old = [Run(2, 5, 10.5, 13.0, "done")], [Run(TICK, pid, 45.0, 45.0, "done", "first") for pid in (5, 6)]
    often = [Run(TICK, 5, 30.0, 30.0, "done", "second")] * 3
    assert [*checks.check_delays(STORY, {1: 10.0}), *checks.check_pipelines(STORY, [[1, 2]])] == []
    assert [*checks.check_ticks(STORY, 1.0)] == []
    assert len([*checks.check_delays(STORY, {1: 10.5, 3: 1.0})]) == 1
    for runs in ([STORY.runs[0], *early], STORY.runs[1:2]):  # before its end, and without the first stage
        assert len([*checks.check_pipelines(replace(STORY, runs=runs), [[1, 2]])]) == 1, runs
    assert len([*checks.check_ticks(replace(STORY, runs=[*STORY.runs, *often]), None)]) == 1
    assert len([*checks.check_ticks(replace(STORY, runs=[*STORY.runs, *old]), 1.0)]) == 1


def mail(subject: str, text: str) -> EmailMessage:
    message = EmailMessage()
    message["Subject"] = subject
    message.set_content(text)
    return message


def test_the_checks_report_what_cron_mails_too_often() -> None:
    away, fatal = mail("worker.py", "worker.py: 7 away (said once an hour)\n"), mail("worker.py", "task 8 is fatal\n")
    assert [*checks.check_mails([away, away, fatal, fatal, fatal, mail("other", away.get_content())], 2)] == []
    assert [*checks.check_mails([away, away], 1)] == ["mailed 2 times: worker.py: … away (said once an hour)"]
    assert len([*checks.check_mails([mail("client.py check --mail", "8 fatal\n")] * 20, 2)]) == 1
