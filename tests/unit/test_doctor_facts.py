"""What the doctor makes of facts that no server here has, of runs, and of schedules: no database is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from taskserver.doctor import mysql, queue, sqlite
from taskserver.doctor.findings import CheckResult, Level
from taskserver.doctor.queue import _cron, _ended_badly, _schedules
from taskserver.model.schedule import Schedule
from taskserver.settings.dsn import parse_dsn
from taskserver.settings.load import Settings
from taskserver.stores.database.facts import MySQLFacts, SQLiteFacts
from taskserver.stores.database.records import LastRun
from taskserver.stores.queue.schedules import _Planned, _stored

OK, UNKNOWN, WARNING, BROKEN = Level.OK, Level.UNKNOWN, Level.WARNING, Level.BROKEN
HERE = Path("/home/you/site")
LOCAL = "mysql://u@127.0.0.1/db"
FACTS = MySQLFacts(
    version="10.11.6-MariaDB",
    is_mariadb=True,
    user="u@%",
    cipher="",
    variables={"sql_mode": "STRICT_TRANS_TABLES", "log_bin": "OFF", "max_allowed_packet": "16777216"},
    session={"character_set_connection": "utf8mb4"},
    clock_ahead_seconds=0.0,
    skips_locked=True,
    denied=(),
    spared=(),
    faults=(),
    claim_indexes=("claim_by_group", "claim_any_group"),
    oldest_transaction_seconds=0.0,
    holds_new=False,
    forged_ids=(),
)


def of_mysql(dsn: str = LOCAL, **facts: Any) -> list[CheckResult]:
    settings: Any = Settings(folder=None, dsn=parse_dsn(dsn))  # type: ignore[arg-type]
    return list(mysql.findings(FACTS._replace(**facts), settings))


def of_sqlite(**facts: Any) -> list[CheckResult]:
    whole = SQLiteFacts("3.40", "wal", "ok", (), ("claim_by_group", "claim_any_group"), ())._replace(**facts)
    settings: Any = Settings(folder=None, dsn=parse_dsn("sqlite:///x.db"))  # type: ignore[arg-type]
    return list(sqlite.findings(whole, settings))


def one_of(found: list[CheckResult], check: str) -> CheckResult:
    (finding,) = [one for one in found if one.check == check]
    return finding


# ---- MySQL


@pytest.mark.parametrize(
    ("version", "is_mariadb", "level"),
    [
        ("5.6.24", False, WARNING),
        ("5.7.29-log", False, OK),
        ("8.0.36", False, OK),
        ("10.1.48-MariaDB", True, WARNING),
        ("5.5.5-10.3.39-MariaDB", True, OK),
        ("11.8.2-MariaDB", True, OK),
        ("who knows", False, WARNING),
    ],
)
def test_a_server_that_nobody_tried_is_a_warning(version: str, is_mariadb: bool, level: Level) -> None:
    assert one_of(of_mysql(version=version, is_mariadb=is_mariadb), "version").level is level


@pytest.mark.parametrize(
    ("dsn", "cipher", "level"),
    [
        ("mysql://u@db.example.org/db", "", WARNING),
        ("mysql://u@db.example.org/db", "TLS_AES_256_GCM_SHA384", OK),
        ("mysql://u@db.example.org/db?ssl-ca=/etc/ca.pem", "TLS_AES_256_GCM_SHA384", OK),
        ("mysql://u@localhost/db", "", OK),
        ("mysql://u@127.0.0.1/db", "", OK),
        ("mysql://u@/db?unix_socket=/s", "", OK),
    ],
)
def test_a_connection_over_the_net_without_tls_is_a_warning(dsn: str, cipher: str, level: Level) -> None:
    assert one_of(of_mysql(dsn, cipher=cipher), "connection").level is level


def test_a_mysql_on_another_host_whose_certificate_is_not_verified_is_a_warning() -> None:
    """Its full login shows the password: it is refused then."""
    for query, level in (("", WARNING), ("?ssl-mode=required", WARNING), ("?ssl-ca=/ca.pem", OK)):
        found = of_mysql(f"mysql://u@h/db{query}", cipher="TLS", version="8.0.36", is_mariadb=False)
        assert one_of(found, "connection").level is level


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("max_join_size", "100000", OK),
        ("sql_safe_updates", "ON", OK),
        ("completion_type", "CHAIN", OK),
        ("max_statement_time", "30.000000", OK),
        ("tx_read_only", "ON", WARNING),
    ],
)
def test_session_variables_that_a_host_sets_oddly_are_named(name: str, value: str, level: Level) -> None:
    assert one_of(of_mysql(), "session_defaults").found == "the host leaves them as servers come"
    found = one_of(of_mysql(variables={**FACTS.variables, name: value}), "session_defaults")
    assert f"{name} {value}" in found.found
    assert found.level is level


def test_variables_that_a_proxy_hides_or_makes_up_are_no_trouble() -> None:
    made_up = {"max_user_connections": "unlimited", "character_set_connection": "utf8mb4"}
    assert {one.level for one in of_mysql(session=made_up, variables={"x": "y"})} == {OK, WARNING}
    hidden = of_mysql(variables={}, session={})
    assert {one.level for one in hidden} == {OK, UNKNOWN}
    assert not {"character_set", "strict_mode", "binlog"} & {one.check for one in hidden}


@pytest.mark.parametrize(
    ("facts", "check", "level"),
    [
        ({"session": {"character_set_connection": "latin1"}}, "character_set", BROKEN),
        ({"clock_ahead_seconds": -61.0}, "clock", WARNING),
        ({"clock_ahead_seconds": 61.0}, "clock", WARNING),
        ({"oldest_transaction_seconds": 601.0}, "transactions", WARNING),
        ({"oldest_transaction_seconds": None, "holds_new": True}, "transactions", WARNING),
        ({"oldest_transaction_seconds": 1.1}, "transactions", OK),
    ],
)
def test_a_fact_of_mysql_is_judged(facts: dict[str, Any], check: str, level: Level) -> None:
    assert one_of(of_mysql(**facts), check).level is level


# ---- SQLite


def test_a_claim_that_would_not_read_by_its_index_is_broken() -> None:
    finding = one_of(of_sqlite(claim_indexes=("claim_by_group",)), "claim_index")
    assert (finding.level, "claim_any_group" in finding.found) == (BROKEN, True)


def test_a_file_that_is_too_large_to_be_looked_through_is_not_called_well() -> None:
    assert one_of(of_sqlite(damage=None), "file").level is UNKNOWN


# ---- runs


def a_run(group_ids: str, seconds_ago: float = 60.0, previous_seconds_ago: float | None = None) -> LastRun:
    return LastRun("host", group_ids, 1, "", seconds_ago, "x", "empty", 0, 0, 0, 0, 0, previous_seconds_ago)


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ([a_run("3", 60, 360), a_run("5", 90_000, 90_300)], "groups 5"),
        ([a_run("3", 60, 360), a_run("all", 90_000, 90_300)], "all groups"),
        ([a_run("3,5", 60, 360), a_run("5", 90_000, 90_300)], None),
        ([a_run("all", 60, 360), a_run("5", 90_000, 90_300)], None),
        ([a_run("3", 60, 360), a_run("5", 8 * 86_400, 8 * 86_400 + 300)], None),
        ([a_run("3", 90_000, 90_300)], "groups 3"),
        ([a_run("3", 7200, 7500)._replace(ended_at=None), a_run("5", 60, 360)], None),
        ([a_run("3", 90_000, 90_300)._replace(ended_at=None)], "did not end"),
    ],
)
def test_a_crontab_line_that_stopped_is_told_though_others_run(runs: list[LastRun], told: str | None) -> None:
    finding = _cron(runs, HERE)
    assert finding.level is (WARNING if told else OK)
    assert told is None or told in finding.found


def test_a_line_that_an_owner_took_out_is_said_to_need_no_mend_where_others_run() -> None:
    taken_out = a_run("all", 5 * 86_400, 5 * 86_400 + 300)
    assert (
        "that you took out is named until 7 d after its last run" in _cron([a_run("3", 60, 360), taken_out], HERE).mend
    )
    assert "took out" not in _cron([taken_out], HERE).mend


def test_a_run_that_began_in_the_future_tells_nothing_of_cron() -> None:
    finding = _cron([a_run("all", -400_000.0)], HERE)
    assert (finding.level, "inf" in finding.found) == (WARNING, False)


def test_the_error_of_a_host_that_is_long_gone_is_no_warning_any_more() -> None:
    assert list(_ended_badly([a_run("3", 8 * 86_400)._replace(reason="error")])) == []
    assert [one.level for one in _ended_badly([a_run("3")._replace(reason="error")])] == [WARNING]


def test_a_run_whose_setup_failed_is_said_to_have_given_its_tasks_back() -> None:
    failed = a_run("3")._replace(reason="error", released=2)
    (of_setup,) = _ended_badly([failed])
    (of_both,) = _ended_badly([failed, failed._replace(taken=1)])
    assert "gave back" in of_setup.why
    assert "until its lease ends" in of_both.why


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (["taskserver-worker"], "*/5 * * * * BIN/taskserver-worker --folder /home/you/site into your crontab"),
        ([], "*/5 * * * * BIN/python3 -m taskserver worker --folder /home/you/site into your crontab"),
    ],
)
def test_where_pip_has_installed_the_package_the_line_of_cron_itself_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], line: str
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setattr(queue, "IS_INSTALLED", True)
    monkeypatch.setattr(queue, "WORKER", "taskserver-worker")
    assert line.replace("BIN", str(tmp_path)) in _cron([], HERE).mend


# ---- schedules


def test_a_schedule_whose_package_is_missing_here_is_told_with_the_line_that_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    now = "2026-11-22 10:00:00.000000"
    nightly = _Planned(Schedule("nightly", "tasks.note", None, 0, 0, None, "0 3 * * *", "UTC"), now, now)
    (finding,) = _schedules([_stored(nightly)])
    assert finding.level is WARNING
    assert f"{sys.executable} -I -m pip install " in finding.found
    assert finding.mend == "install the package, as said there"
