"""Chaos in its short form (on SQLite a long test), and longer; tests/unit/test_chaos_checks.py tests its checks.

The long form is `python -m tests.faults.chaos`; a failure names the seed, with which it replays the schedule of faults.
"""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import without
from tests.faults.chaos.evidence import DELETED
from tests.faults.chaos.run import run_chaos
from tests.faults.chaos.schedule import make_modes
from tests.faults.chaos.settings import SHORT_SECONDS
from tests.faults.chaos.stage import MOVING, Stage
from tests.faults.chaos.witnesses import read_database
from tests.support.deployment import Deployment
from tests.support.postgresql import programs_folder
from tests.support.servers import missing_programs

LONG_SECONDS = 90.0


@pytest.fixture(params=["sqlite", "mysql", "postgresql"])
def dsn_kind(request: pytest.FixtureRequest) -> str:
    if request.param == "postgresql" and programs_folder() is None:
        without("PostgreSQL is not installed (postgres not found)")
    if request.param == "mysql" and (missing := missing_programs()):
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    return str(request.param)


def assert_every_promise_holds(dsn_kind: str, seconds: float, folder: Path) -> None:
    report = run_chaos(dsn_kind, seconds, random.SystemRandom().randrange(1_000_000), folder)
    print(report)
    assert not report.failures, f"{report}"


@pytest.mark.parametrize(
    "dsn_kind", ["mysql", "postgresql", pytest.param("sqlite", marks=pytest.mark.long)], indirect=True
)
def test_every_promise_holds_under_every_fault(dsn_kind: str, tmp_path: Path) -> None:
    assert_every_promise_holds(dsn_kind, SHORT_SECONDS[dsn_kind], tmp_path)


@pytest.mark.long
def test_every_promise_holds_under_many_faults(dsn_kind: str, tmp_path: Path) -> None:
    assert_every_promise_holds(dsn_kind, LONG_SECONDS, tmp_path)


def test_the_triggers_keep_a_deleted_row_as_gone_and_a_moved_one_as_archived(dsn_kind: str, tmp_path: Path) -> None:
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
