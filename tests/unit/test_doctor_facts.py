"""What the doctor makes of facts that no server here has, of runs, and of schedules: no database is asked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from taskserver.doctor import mysql, postgresql, queue, sqlite
from taskserver.doctor.findings import CheckResult, Level
from taskserver.doctor.queue import _cron, _ended_badly, _schedules
from taskserver.model.schedule import Schedule
from taskserver.settings.dsn import parse_dsn
from taskserver.settings.load import Settings
from taskserver.stores.facts import Holder, MySQLFacts, PostgreSQLFacts, SQLiteFacts, TableRows
from taskserver.stores.queue.schedules import _Planned, _stored
from taskserver.stores.records import LastRun

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


ON_POSTGRESQL = PostgreSQLFacts(
    driver="psycopg 3.3.0, compiled, with libpq 16.2",
    version="15.18",
    version_number=150018,
    user="u",
    tls="",
    is_direct=True,
    is_standby=False,
    variables={"server_encoding": "UTF8", "max_connections": "100", "superuser_reserved_connections": "3"},
    clock_ahead_seconds=0.0,
    denied=(),
    spared=(),
    faults=(),
    lost_triggers=(),
    claim_indexes=("claim_by_group", "claim_any_group"),
    forged_ids=(),
    ids_ahead=(),
    places={"jobs_queue": ("public",)},
    open_schemas=(),
    not_vacuumed=(),
    rows=(),
    holders=(),
    sees_all=True,
    held=0,
    held_by=(),
    transaction_age=100,
    multixact_age=0,
    connections=7,
    account_connections=-1,
)
SESSION = Holder("session", "7", "ann", "dump", "10.0.0.7", "active", 60.0, 3)


def of_postgresql(dsn: str = "postgresql://u@127.0.0.1/db", **facts: Any) -> list[CheckResult]:
    settings: Any = Settings(folder=None, dsn=parse_dsn(dsn))  # type: ignore[arg-type]
    return list(postgresql.findings(ON_POSTGRESQL._replace(**facts), settings))


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


# ---- PostgreSQL


def with_variables(**variables: str) -> dict[str, Any]:
    return {"variables": {**ON_POSTGRESQL.variables, **variables}}


@pytest.mark.parametrize(
    ("facts", "check", "level"),
    [
        ({}, "", OK),
        ({"version_number": 120010}, "version", WARNING),
        ({"is_standby": True}, "standby", BROKEN),
        ({"transaction_age": 500_000_000}, "transaction_ids", OK),
        ({"transaction_age": 900_000_000}, "transaction_ids", WARNING),
        ({"multixact_age": 2_120_000_000}, "transaction_ids", BROKEN),
        ({"transaction_age": 900_000_000, **with_variables(autovacuum_freeze_max_age="1000000000")}, "", OK),
        ({"rows": (TableRows("jobs_queue", 10, 999_999, 2**20),)}, "dead_rows", OK),
        ({"rows": (TableRows("jobs_queue", 10, 1_000_001, 2**20),)}, "dead_rows", WARNING),
        ({"rows": (TableRows("jobs_queue", 5_000_000, 1_000_001, 2**20),)}, "dead_rows", OK),
        ({"rows": (TableRows("jobs_queue", 1_000, 0, 2**30),)}, "dead_rows", WARNING),
        ({"rows": (TableRows("jobs_queue", 1_000_000, 0, 2**30),)}, "dead_rows", OK),
        ({"connections": 88}, "connections", WARNING),
        ({"account_connections": 6, "connections": 99}, "connections", OK),
        ({"clock_ahead_seconds": -61.0}, "clock", WARNING),
        ({"sees_all": False}, "transactions", UNKNOWN),
        ({"forged_ids": None}, "ids", UNKNOWN),
        ({"holders": (SESSION,)}, "transactions", OK),
        ({"holders": (SESSION._replace(seconds=301.0),)}, "transactions", WARNING),
        (
            {"sees_all": False, "holders": (SESSION._replace(seconds=None, transactions=100_001),)},
            "transactions",
            WARNING,
        ),
        ({"holders": (SESSION._replace(kind="slot", name="copy", seconds=None),)}, "transactions", OK),
        (with_variables(fsync="off"), "durability", WARNING),
        (with_variables(track_counts="off"), "autovacuum", WARNING),
        (with_variables(idle_session_timeout="60000"), "wait_timeout", OK),
    ],
)
def test_a_fact_of_postgresql_is_judged(facts: dict[str, Any], check: str, level: Level) -> None:
    found = {one.check: one.level for one in of_postgresql(**facts)}
    assert {name: one for name, one in found.items() if one is not OK} == ({} if level is OK else {check: level})


@pytest.mark.parametrize(
    ("holder", "words", "mend"),
    [
        (SESSION, "the session 7 by ann with dump from 10.0.0.7, active, open since 10 min", "pg_terminate_backend(7)"),
        (SESSION._replace(program="", address="", state=""), "the session 7 by ann, open since", "backend(7)"),
        (SESSION._replace(kind="prepared", name="o'x"), "the prepared transaction 'o'x' of ann", "PREPARED 'o''x'"),
        (SESSION._replace(kind="slot", name="s", seconds=None), "slot 's', 200000 transactions behind", "slot('s')"),
        (SESSION._replace(kind="standby", seconds=None), "a standby's long query, by the process 7", "feedback = off"),
    ],
)
def test_who_keeps_dead_rows_is_named_and_the_way_to_end_it(holder: Holder, words: str, mend: str) -> None:
    seconds = None if holder.seconds is None else 600.0
    found = one_of(of_postgresql(holders=(holder._replace(seconds=seconds, transactions=200_000),)), "transactions")
    assert found.level is WARNING
    assert words in found.found
    assert mend in found.mend


def test_many_who_keep_dead_rows_are_counted() -> None:
    assert "; and 4 more" in one_of(of_postgresql(holders=(SESSION._replace(seconds=9e9),) * 7), "transactions").found


@pytest.mark.parametrize(
    ("dsn", "tls", "level"),
    [
        ("postgresql://u@db.example.org/db", "", WARNING),
        ("postgresql://u@db.example.org/db", "TLSv1.3 TLS_AES_256_GCM_SHA384", OK),
        ("postgresql://u@localhost/db", "", OK),
        ("postgresql://u@/db?host=/run/postgresql", "", OK),
    ],
)
def test_a_connection_to_postgresql_over_the_net_without_tls_is_a_warning(dsn: str, tls: str, level: Level) -> None:
    found = one_of(of_postgresql(dsn, tls=tls), "connection")
    assert found.level is level
    assert ("sslmode=require" in found.mend) == (level is WARNING)


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
