"""Chaos in its short form on MySQL, and longer on each database; a failure names the seed of the order of faults."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.chaos.checks import Evidence, Row, Run, check_all
from tests.faults.chaos.run import run_chaos
from tests.faults.chaos.stage import ACCOUNTS, BALANCE, Added, WorkerRun
from tests.support.databases import DATABASES
from tests.support.postgresql import programs_folder
from tests.support.servers import missing_programs, without

SHORT_SECONDS, LONG_SECONDS = 8.0, 90.0
LONG = [pytest.param(kind, LONG_SECONDS, marks=pytest.mark.long) for kind in DATABASES]


@pytest.mark.parametrize(("dsn_kind", "seconds"), [("mysql", SHORT_SECONDS), *LONG])
def test_every_promise_holds_under_every_fault(dsn_kind: str, seconds: float, tmp_path: Path) -> None:
    if dsn_kind == "postgresql" and programs_folder() is None:
        without("PostgreSQL is not installed (postgres not found)")
    if dsn_kind == "mysql" and (missing := missing_programs()):
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    report = run_chaos(dsn_kind, seconds, random.SystemRandom().randrange(1_000_000), tmp_path)
    print(report)
    assert not report.failures, f"{report}"


STORY = Evidence(
    added=[Added(1, "quick", 101), Added(2, "transfer", 102), Added(3, "fail", 103, max_attempts=1)],
    rows=[Row(1, "queue", 2, 1, None), Row(2, "queue", 2, 1, None), Row(3, "queue", 4, 1, "Failed: on purpose")],
    runs=[
        Run(1, 50, 1.0, 1.1, "done"),
        Run(2, 50, 2.0, 2.1, "done", "transfer"),
        Run(3, 50, 3.0, 3.1, "Failed", "fail"),
    ],
    workers=[WorkerRun(0, 50, 0.0, 9.0, 0, ""), WorkerRun(1, 51, 0.0, 9.0, 0, "")],
    modes=["mark", "mark"],
    transfers=[(2, 0, 1, 30)],
    balances={account: BALANCE + {0: -30, 1: 30}.get(account, 0) for account in range(ACCOUNTS)},
)
AGAIN = Run(1, 51, 1.05, 1.2, "done")


NOT_SHOWN = [failure for failure in check_all(STORY) if failure.startswith("no ")]
"""By so short a story."""


@pytest.mark.parametrize(
    ("words", "lie"),
    [
        ("task 1 is lost", {"rows": STORY.rows[1:], "runs": STORY.runs[1:]}),
        ("task 1 is there 2 times", {"rows": [*STORY.rows, STORY.rows[0]]}),
        ("task 1 was begun by 51 while 50", {"runs": [*STORY.runs, AGAIN]}),
        (
            "task 1 was done by 50, which nothing had struck, and again",
            {"runs": [*STORY.runs, AGAIN._replace(began=1.2)]},
        ),
        ("task 3 began 2 times of 1", {"runs": [*STORY.runs, Run(3, 51, 5.0, 5.1, "Failed")]}),
        ("transfer 2 was made 2 times", {"transfers": [*STORY.transfers, *STORY.transfers]}),
        ("transfer 2 was made 0 times", {"transfers": []}),
        ("the balances are", {"balances": dict.fromkeys(range(ACCOUNTS), BALANCE)}),
        ("1 tasks or dependencies wait for ever", {"left": [(1, 2)]}),
        (
            "task 1 is done, and archive is not where",
            {"rows": [STORY.rows[0]._replace(place="archive"), *STORY.rows[1:]]},
        ),
        ("no fault of the kind 'kill' struck", {"faults": ["kill"]}),
        ("no task of the kind 'transfer' did what", {"runs": [STORY.runs[0], STORY.runs[2]]}),
        ("key k was rerun as 4, and the newest", {"added": [*STORY.added, Added(4, "keep", 104, key="k")]}),
        ("task 1 began before task 2", {"added": [STORY.added[0]._replace(parents=[102]), *STORY.added[1:]]}),
        ("a worker ended with 1", {"workers": [STORY.workers[0]._replace(code=1), STORY.workers[1]]}),
    ],
)
def test_the_checks_report_a_planted_loss_or_double(words: str, lie: dict[str, object]) -> None:
    assert check_all(STORY) == NOT_SHOWN
    found = check_all(replace(STORY, **lie))  # type: ignore[arg-type]
    assert any(words in failure for failure in found if failure not in NOT_SHOWN), found
