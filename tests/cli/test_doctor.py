"""client.py doctor: each thing that can be wrong with a deployment is told, with its mend; a healthy one is well."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskserver.doctor import files, mysql, sqlite
from taskserver.doctor.findings import Finding, Level
from taskserver.doctor.queue import MAX_SCHEDULES_NAMED, _cron, _ended_badly, _schedules
from taskserver.model.schedule import Schedule
from taskserver.model.task import Status
from taskserver.monitoring.coverage import describe_unserved, unserved
from taskserver.settings.dsn import parse_dsn
from taskserver.settings.load import Settings
from taskserver.stores.database.facts import MySQLFacts, SQLiteFacts
from taskserver.stores.database.records import LastRun, QueueCount
from taskserver.stores.queue.schedules import _Planned, _stored
from tests.support.processes import assert_one_line, assert_silent
from tests.support.queues import Queue
from tests.support.servers import MariaDB, MySQLServer

PLACE_CHECKS = {"python", "packages", "web_folder", "code", "env_file", "settings", "var"}
QUEUE_CHECKS = {"cron", "groups", "leases", "fatal", "due_dates", "stray", "modules", "callables"}
SQLITE_CHECKS = PLACE_CHECKS | QUEUE_CHECKS | {
    "database_file", "disk", "connection", "version", "journal", "file", "tables", "claim_index",
}  # fmt: skip
MYSQL_CHECKS = PLACE_CHECKS | QUEUE_CHECKS | {
    "connection", "version", "rights", "tables", "claim_index", "character_set", "strict_mode", "clock",
    "binlog", "durability", "wait_timeout", "connections", "packet", "transactions",
}  # fmt: skip


def a_run(group_ids: str, seconds_ago: float = 60.0, previous_seconds_ago: float | None = None) -> LastRun:
    return LastRun("host", group_ids, 1, "", seconds_ago, "x", "empty", 0, 0, 0, 0, 0, previous_seconds_ago)


NOW = "2026-11-22 10:00:00.000000"
HEALTH = {"ok": 0, "warning": 1, "broken": 2}


class Report:
    """What `client.py doctor --json` said."""

    def __init__(self, queue: Queue, **env: str) -> None:
        ended = queue.client("doctor", "--json", env=env)
        assert ended.stderr == ""
        said = json.loads(ended.stdout)
        self.code = ended.returncode
        self.checks: dict[str, dict[str, str]] = {check["check"]: check for check in said["checks"]}
        assert len(self.checks) == len(said["checks"])
        assert HEALTH[said["health"]] == self.code

    def worse(self) -> dict[str, str]:
        """The level of each check that is not well."""
        return {name: check["level"] for name, check in self.checks.items() if check["level"] not in ("ok", "unknown")}

    def told(self, check: str) -> str:
        """All that it says of a check."""
        return " | ".join(self.checks[check].values())


@pytest.fixture
def healthy(queue: Queue) -> Queue:
    """A deployment in which all is as it should be, a worker of cron's included."""
    return made_healthy(queue)


@pytest.fixture
def healthy_sqlite(sqlite_queue: Queue) -> Queue:
    return made_healthy(sqlite_queue)


@pytest.fixture
def healthy_mysql(mysql_queue: Queue) -> Queue:
    return made_healthy(mysql_queue)


def made_healthy(queue: Queue) -> Queue:
    assert queue.client("init").returncode == 0
    assert_silent(queue.worker())
    return queue


# ---- all is well


def test_a_healthy_deployment_is_well_in_every_check(healthy: Queue) -> None:
    report = Report(healthy)
    assert (report.code, report.worse()) == (0, {})
    assert set(report.checks) == (SQLITE_CHECKS if healthy.is_sqlite else MYSQL_CHECKS)


def test_each_check_is_a_line_with_its_level_its_name_and_what_was_found(healthy: Queue) -> None:
    (healthy.folder / ".env").chmod(0o644)
    ended = healthy.client("doctor")
    *lines, verdict = ended.stdout.splitlines()
    assert ended.returncode == 1
    assert [line.split()[1] for line in lines] == [*Report(healthy).checks]
    assert {line.split()[0] for line in lines} <= {"ok", "unknown", "warning"}
    (line,) = [line for line in lines if line.startswith("warning")]
    assert "env_file" in line
    assert "Why it matters: " in line
    assert "Mend: chmod 600 " in line
    assert verdict == f"0 broken, 1 warnings, of {len(lines)} checks"


def test_what_is_well_needs_no_mend_and_what_is_not_names_one(healthy: Queue) -> None:
    healthy.sql("DROP TABLE jobs_queue_workers")
    (healthy.folder / ".env").chmod(0o644)
    for check in Report(healthy).checks.values():
        if check["level"] == "ok":
            assert (check["why"], check["mend"]) == ("", "")
        elif check["level"] == "warning":
            assert check["why"]
            assert check["mend"]


def test_wrong_usage_is_code_3(healthy_sqlite: Queue) -> None:
    assert_one_line(healthy_sqlite.client("doctor", "--all"), 3, "--all")
    assert_one_line(healthy_sqlite.client("doctor", "now"), 3, "now")


def test_the_doctor_changes_nothing(healthy: Queue) -> None:
    for number, status in enumerate((0, 1, 3, 4, 5)):
        healthy.add("tasks.note", f"[{number}]")
        healthy.sql(
            "UPDATE jobs_queue SET status = ?, due_at = ? WHERE args = ?", status, "2030-01-01 00:00:00", f"[{number}]"
        )

    def everything() -> list[list[tuple[Any, ...]]]:
        return [healthy.sql(f"SELECT * FROM jobs_queue{table}") for table in ("", "_done", "_workers", "_schema")]

    before = everything()
    Report(healthy)
    assert everything() == before


def test_no_password_is_told(healthy_mysql: Queue, mysql_dsn: str) -> None:
    healthy_mysql.deployment.write_env(TASKSERVER_DSN=mysql_dsn.replace("root@", "root:hunter2@"))
    ended = healthy_mysql.client("doctor")
    assert ended.returncode == 2
    assert "hunter2" not in ended.stdout + ended.stderr


# ---- settings and files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "TASKSERVER_DSN is not set"),
        ("TASKSERVER_DSN=sqlite:///var/x.db\nTASKSERVER_MODE=remove\n", "TASKSERVER_MODE"),
        ("TASKSERVER_DSN=sqlite:///var/x.db\nTASKSERVER_MODULE=tasks\n", "did you mean TASKSERVER_MODULES"),
    ],
)
def test_a_wrong_setting_is_broken_and_told(healthy_sqlite: Queue, text: str, words: str) -> None:
    healthy_sqlite.deployment.write_env(text)
    report = Report(healthy_sqlite)
    assert (report.code, report.worse()) == (2, {"settings": "broken"})
    assert words in report.told("settings")


def test_settings_from_the_environment_alone_are_well(healthy_sqlite: Queue) -> None:
    (healthy_sqlite.folder / ".env").unlink()
    report = Report(healthy_sqlite, TASKSERVER_DSN=healthy_sqlite.dsn)
    assert (report.code, report.worse()) == (0, {})


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o620])
def test_a_file_of_settings_that_others_may_read_or_write_is_a_warning(healthy_sqlite: Queue, mode: int) -> None:
    (healthy_sqlite.folder / ".env").chmod(mode)
    report = Report(healthy_sqlite)
    assert (report.code, report.worse()) == (1, {"env_file": "warning"})
    assert f"{mode:04o}" in report.told("env_file")
    assert "chmod 600" in report.told("env_file")


@pytest.mark.parametrize("name", ["public_html", "www", "htdocs"])
def test_a_deployment_in_a_web_folder_is_a_warning(healthy_sqlite: Queue, name: str) -> None:
    inside = healthy_sqlite.folder.parent / name / "queue"
    inside.parent.mkdir()
    healthy_sqlite.folder.rename(inside)
    healthy_sqlite.deployment.folder = inside
    report = Report(healthy_sqlite)
    assert report.worse() == {"web_folder": "warning"}
    assert str(inside.parent) in report.told("web_folder")


def test_the_name_of_a_home_folder_and_of_those_above_it_is_the_hosts_choice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "www" / "web"
    inside = home / "private" / "taskserver"
    inside.mkdir(parents=True)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_dir=str(home)))
    assert files._web_folder(inside).level is Level.OK
    below = home / "httpdocs" / "taskserver"
    below.mkdir(parents=True)
    assert files._web_folder(below).level is Level.WARNING
    (home / "index.php").touch()
    assert files._web_folder(inside).level is Level.WARNING


@pytest.mark.usefixtures("bound_by_rights")
def test_a_database_in_a_folder_that_may_not_be_entered_is_broken(healthy_sqlite: Queue, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "inner").mkdir(parents=True)
    (closed / "inner").chmod(0)
    healthy_sqlite.deployment.write_env(TASKSERVER_DSN=f"sqlite:///{closed}/inner/queue.db")
    report = Report(healthy_sqlite)
    assert report.code == 2
    assert report.worse()["files"] == "broken"


def test_a_log_in_a_web_folder_is_a_warning(healthy_sqlite: Queue) -> None:
    (healthy_sqlite.folder.parent / "htdocs").mkdir()
    healthy_sqlite.deployment.write_env(TASKSERVER_DSN=healthy_sqlite.dsn, TASKSERVER_LOG="../htdocs/worker.log")
    assert Report(healthy_sqlite).worse() == {"log": "warning"}


def test_a_deployment_beside_a_sites_pages_is_a_warning(healthy_sqlite: Queue) -> None:
    (healthy_sqlite.folder / "index.php").write_text("<?php")
    assert Report(healthy_sqlite).worse() == {"web_folder": "warning"}


def test_a_database_in_a_web_folder_is_a_warning(healthy_sqlite: Queue) -> None:
    folder = healthy_sqlite.folder.parent / "public_html"
    folder.mkdir(mode=0o700)
    healthy_sqlite.deployment.write_env(TASKSERVER_DSN=f"sqlite:///{folder}/queue.db")
    made_healthy(healthy_sqlite)
    assert Report(healthy_sqlite).worse() == {"database_file": "warning"}


def test_a_database_that_others_may_read_is_a_warning(healthy_sqlite: Queue) -> None:
    healthy_sqlite.path.chmod(0o644)
    assert Report(healthy_sqlite).worse() == {}  # its folder lets nobody in
    healthy_sqlite.path.parent.chmod(0o755)
    assert Report(healthy_sqlite).worse() == {"database_file": "warning"}
    healthy_sqlite.path.parent.chmod(0o700)


def test_an_open_folder_of_locks_is_a_warning_and_a_missing_one_too(healthy_sqlite: Queue) -> None:
    var = healthy_sqlite.folder / "var"
    var.chmod(0o755)
    assert Report(healthy_sqlite).worse() == {"var": "warning"}
    shutil.rmtree(var)
    report = Report(healthy_sqlite)
    assert report.worse() == {"var": "warning"}
    assert "client.py init" in report.told("var")


@pytest.mark.usefixtures("bound_by_rights")
def test_a_folder_that_cannot_be_written_to_is_broken(healthy_sqlite: Queue) -> None:
    var = healthy_sqlite.folder / "var"
    var.chmod(0o500)
    report = Report(healthy_sqlite)
    var.chmod(0o700)
    assert (report.code, report.worse()) == (2, {"var": "broken"})


@pytest.mark.usefixtures("bound_by_rights")
def test_locks_of_another_user_are_broken(healthy_sqlite: Queue) -> None:
    (lock, *_) = (healthy_sqlite.folder / "var" / "slots").iterdir()
    lock.chmod(0o400)
    report = Report(healthy_sqlite)
    lock.chmod(0o600)
    assert (report.code, report.worse()) == (2, {"var": "broken"})
    assert str(lock) in report.told("var")


def test_what_tasks_leave_in_the_folder_of_locks_is_their_own_affair(healthy_sqlite: Queue) -> None:
    var = healthy_sqlite.folder / "var"
    (var / "latest.pdf").symlink_to("nowhere.pdf")
    (var / "invoice.pdf").touch(0o400)
    assert Report(healthy_sqlite).worse() == {}


@pytest.mark.parametrize("name", ["tasks.py", "worker.py", "taskserver", "."])
def test_code_that_everybody_may_change_is_a_warning(healthy_sqlite: Queue, name: str) -> None:
    path = healthy_sqlite.folder / name
    path.chmod(path.stat().st_mode | 0o002)
    report = Report(healthy_sqlite)
    assert report.worse() == {"code": "warning"}
    assert "chmod -R o-w" in report.told("code")


@pytest.mark.usefixtures("bound_by_rights")
def test_a_log_that_cannot_be_written_is_broken(healthy_sqlite: Queue) -> None:
    logs = healthy_sqlite.folder / "logs"
    logs.mkdir(mode=0o500)
    healthy_sqlite.deployment.write_env(TASKSERVER_DSN=healthy_sqlite.dsn, TASKSERVER_LOG="logs/worker.log")
    assert Report(healthy_sqlite).worse() == {"log": "broken"}
    logs.chmod(0o700)
    assert Report(healthy_sqlite).worse() == {}


def test_a_database_on_a_network_file_system_is_broken(monkeypatch: pytest.MonkeyPatch, healthy_sqlite: Queue) -> None:
    monkeypatch.setattr(files, "network_file_system", lambda path: "nfs4")
    settings = Settings(folder=healthy_sqlite.folder, dsn=parse_dsn(healthy_sqlite.dsn))
    (finding,) = [one for one in files.of_deployment(settings) if one.check == "file_system"]
    assert finding.level is Level.BROKEN
    assert "nfs4" in finding.found
    assert "MySQL" in finding.mend


def test_a_disk_that_is_nearly_full_is_a_warning(monkeypatch: pytest.MonkeyPatch, healthy_sqlite: Queue) -> None:
    monkeypatch.setattr(files, "MIN_FREE_BYTES", 2**62)
    settings = Settings(folder=healthy_sqlite.folder, dsn=parse_dsn(healthy_sqlite.dsn))
    assert [one.check for one in files.of_deployment(settings) if one.level is Level.WARNING] == ["disk"]


# ---- the database


def test_a_database_that_is_away_is_broken_and_modules_are_looked_at_all_the_same(healthy_mysql: Queue) -> None:
    healthy_mysql.deployment.write_env(TASKSERVER_DSN="mysql://u:p@127.0.0.1:1/db")
    healthy_mysql.define("syntax error")
    report = Report(healthy_mysql)
    assert report.worse() == {"database": "broken", "modules": "broken"}
    assert report.checks["callables"]["level"] == "unknown"
    assert "check host and port" in report.told("database")


def test_missing_tables_are_broken(healthy: Queue) -> None:
    healthy.sql("DROP TABLE jobs_queue_schema")
    report = Report(healthy)
    assert (report.code, report.worse()) == (2, {"database": "broken"})
    assert "client.py init" in report.told("database")


FAULTS_OF_BOTH = [
    ("DROP TABLE jobs_queue_done", "jobs_queue_done: is missing"),
    ("ALTER TABLE jobs_queue DROP COLUMN error_text", "column error_text"),
]
FAULTS_OF_SQLITE = [
    ("DROP INDEX jobs_queue_wake_due", "index jobs_queue_wake_due is missing"),
    ("DROP INDEX jobs_queue_unique_key; CREATE INDEX jobs_queue_unique_key ON jobs_queue (unique_key)", "not unique"),
    (
        "ALTER TABLE jobs_queue RENAME TO x; CREATE TABLE jobs_queue AS SELECT * FROM x; DROP TABLE x",
        "column id is INT or",
    ),
]
FAULTS_OF_MYSQL = [
    ("DROP INDEX wake_due ON jobs_queue", "index wake_due is missing"),
    ("ALTER TABLE jobs_queue MODIFY due_at DATETIME NULL", "due_at is datetime or NULL, not timestamp(6) or NULL"),
    ("ALTER TABLE jobs_queue MODIFY args TEXT NULL", "args is text utf8mb4_bin or NULL"),
    ("ALTER TABLE jobs_queue MODIFY args MEDIUMTEXT CHARACTER SET latin1", "args is mediumtext latin1_swedish_ci or"),
    ("ALTER TABLE jobs_queue MODIFY task VARCHAR(255) COLLATE utf8mb4_general_ci NOT NULL", "utf8mb4_general_ci"),
    ("ALTER TABLE jobs_queue MODIFY id BIGINT UNSIGNED NOT NULL", "id is bigint unsigned, not bigint unsigned auto_"),
    ("ALTER TABLE jobs_queue MODIFY status TINYINT UNSIGNED NOT NULL", "status is tinyint unsigned, not"),
    (
        "ALTER TABLE jobs_queue MODIFY created_at TIMESTAMP(6) NOT NULL DEFAULT '2020-01-01'",
        "created_at is timestamp(6)",
    ),
    ("ALTER TABLE jobs_queue DROP KEY unique_key, ADD KEY unique_key (unique_key)", "(unique_key), not unique"),
    ("ALTER TABLE jobs_queue DROP KEY claim_by_group, ADD KEY claim_by_group (status, priority)", "claim_by_group"),
    ("ALTER TABLE jobs_queue ADD COLUMN mine INT NOT NULL", "column mine, which is not ours, has no default"),
    ("ALTER TABLE jobs_queue ENGINE = MyISAM", "engine is MyISAM"),
]


@pytest.mark.parametrize(("change", "words"), FAULTS_OF_BOTH)
def test_tables_that_are_not_as_in_the_schema_are_broken(healthy: Queue, change: str, words: str) -> None:
    assert_faulty(healthy, change, words)


@pytest.mark.parametrize(("change", "words"), FAULTS_OF_SQLITE)
def test_sqlite_tables_that_are_not_as_in_the_schema_are_broken(healthy_sqlite: Queue, change: str, words: str) -> None:
    assert_faulty(healthy_sqlite, change, words)


@pytest.mark.parametrize(("change", "words"), FAULTS_OF_MYSQL)
def test_mysql_tables_that_are_not_as_in_the_schema_are_broken(healthy_mysql: Queue, change: str, words: str) -> None:
    assert_faulty(healthy_mysql, change, words)


def assert_faulty(queue: Queue, change: str, words: str) -> None:
    for statement in change.split("; "):
        queue.sql(statement)
    report = Report(queue)
    assert report.code == 2
    assert words in report.told("tables")


def test_claims_that_cannot_read_by_their_indexes_are_broken(healthy_mysql: Queue) -> None:
    [(version,)] = healthy_mysql.sql("SELECT VERSION()")
    if "MariaDB" not in version or tuple(map(int, version.split(".")[:2])) < (10, 6):
        pytest.skip("this server has no IGNORED")
    healthy_mysql.sql("ALTER TABLE jobs_queue ALTER INDEX claim_by_group IGNORED, ALTER INDEX claim_any_group IGNORED")
    assert Report(healthy_mysql).worse() == {"claim_index": "broken"}


def test_a_table_whose_name_differs_in_capitals_alone_is_another(healthy_mysql: Queue) -> None:
    healthy_mysql.sql("CREATE TABLE Jobs_Queue (id INT PRIMARY KEY, mine INT NOT NULL)")
    assert Report(healthy_mysql).worse() == {}


def test_columns_and_indexes_of_ones_own_are_no_fault(healthy: Queue) -> None:
    healthy.sql("ALTER TABLE jobs_queue ADD COLUMN note VARCHAR(20) NULL")
    healthy.sql("ALTER TABLE jobs_queue ADD COLUMN mark INTEGER NOT NULL DEFAULT 7")
    healthy.sql("CREATE INDEX of_mine ON jobs_queue (created_at)")
    assert Report(healthy).worse() == {}


def test_a_claim_that_would_not_read_by_its_index_is_broken() -> None:
    (finding,) = [one for one in of_sqlite(claim_indexes=("claim_by_group",)) if one.check == "claim_index"]
    assert (finding.level, "claim_any_group" in finding.found) == (Level.BROKEN, True)


def test_a_damaged_file_is_broken(healthy_sqlite: Queue) -> None:
    for number in range(500):
        healthy_sqlite.add("tasks.note", json.dumps([f"{number}" * 50]))
    healthy_sqlite.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    size = healthy_sqlite.path.stat().st_size
    with healthy_sqlite.path.open("r+b") as file:
        file.seek(size - 3 * 4096)
        file.write(os.urandom(2 * 4096))
    assert Report(healthy_sqlite).code == 2


def test_a_file_that_is_too_large_to_be_looked_through_is_not_called_well() -> None:
    assert [one.level for one in of_sqlite(damage=None) if one.check == "file"] == [Level.UNKNOWN]


def test_another_journal_than_wal_is_broken(healthy_sqlite: Queue) -> None:
    healthy_sqlite.sql("PRAGMA journal_mode = DELETE")
    assert Report(healthy_sqlite).worse() == {"journal": "broken"}


@pytest.fixture(scope="module")
def poor_server() -> Iterator[MariaDB]:
    """A server as some hosts set theirs, and a clock that goes wrong for all but its administrators."""
    with MariaDB(
        False,
        "--log-bin",
        "--server-id=1",
        "--binlog-format=STATEMENT",
        "--sql-mode=",
        "--wait-timeout=10",
        "--max-allowed-packet=1M",
        "--innodb-flush-log-at-trx-commit=2",
        "--init-connect=SET timestamp = UNIX_TIMESTAMP() + 7200",
    ) as server:
        server.execute(
            "CREATE USER poor@'%' IDENTIFIED BY 'x' WITH MAX_USER_CONNECTIONS 3",
            "GRANT ALL ON `t\\_%`.* TO poor@'%'",
        )
        yield server


@pytest.fixture
def poor_queue(poor_server: MariaDB, make_queue: Callable[..., Queue]) -> Iterator[Queue]:
    with poor_server.database() as name:
        dsn = poor_server.dsn(name)
        made_healthy(make_queue(dsn))
        yield make_queue(dsn.replace("root@", "poor:x@"))


def test_what_a_poor_server_costs_is_told(poor_queue: Queue) -> None:
    report = Report(poor_queue)
    assert report.code == 1
    assert report.worse() == dict.fromkeys(
        ("strict_mode", "clock", "binlog", "wait_timeout", "connections", "packet"), "warning"
    )
    assert re.search(r"clock is 7\d{3} s ahead", report.told("clock"))
    assert "ahead of" in report.told("clock")
    assert "at most 3" in report.told("connections")
    assert "--slots 1" in report.told("connections")
    assert report.checks["transactions"]["level"] == "unknown"
    assert "innodb_flush_log_at_trx_commit is 2" in report.told("durability")


@pytest.fixture
def limited(healthy_mysql: Queue, mysql_server: MySQLServer) -> Iterator[Callable[..., Report]]:
    """The report where the account has these rights alone; a setting may be another."""
    name = healthy_mysql.dsn.rpartition("/")[2]
    mysql_server.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY 'x'")

    def report(rights: dict[str, str], **settings: str) -> Report:
        for table, granted in rights.items():
            mysql_server.execute(f"GRANT {granted} ON `{name}`.jobs_queue{table} TO '{name}'@'%'")
        dsn = healthy_mysql.dsn.replace("root@", f"{name}:x@")
        healthy_mysql.deployment.write_env(TASKSERVER_DSN=dsn, **settings)
        return Report(healthy_mysql)

    yield report
    mysql_server.execute(f"DROP USER '{name}'@'%'")


LEAST = {
    "": "SELECT, UPDATE",
    "_workers": "SELECT, INSERT, UPDATE",
    "_paused": "SELECT",
    "_schedules": "SELECT, UPDATE",
    "_dependencies": "SELECT",
    "_schema": "SELECT",
}


def test_an_account_that_may_only_insert_is_told_what_a_worker_needs(limited: Callable[..., Report]) -> None:
    report = limited({"": "INSERT", "_schema": "SELECT"})
    assert report.worse()["rights"] == "broken"
    for right in ("SELECT on jobs_queue,", "UPDATE on jobs_queue,", "DELETE on jobs_queue,", "UPDATE on jobs_queue_wo"):
        assert right in report.told("rights")
    assert "INSERT on jobs_queue," not in report.told("rights")


@pytest.mark.parametrize(
    ("mode", "rights"),
    [
        ("mark", LEAST),
        ("delete", LEAST | {"": "SELECT, UPDATE, DELETE"}),
        ("move", LEAST | {"": "SELECT, UPDATE, DELETE", "_done": "INSERT"}),
    ],
)
def test_the_least_rights_of_a_mode_are_well(limited: Callable[..., Report], mode: str, rights: dict[str, str]) -> None:
    report = limited(rights, TASKSERVER_MODE=mode)
    assert report.checks["rights"]["level"] == "ok"
    assert "INSERT on jobs_queue (for tasks that add tasks, and periodic ones)" in report.told("rights")
    assert "DELETE on jobs_queue_dependencies (for tasks that wait for others)" in report.told("rights")


def test_an_account_that_may_not_compare_the_tables_says_so(
    limited: Callable[..., Report], healthy_mysql: Queue, mysql_server: MySQLServer
) -> None:
    name = healthy_mysql.dsn.rpartition("/")[2]

    def compared() -> tuple[str, bool]:
        told = limited({"_done": "SELECT", "_stats": "SELECT"}, TASKSERVER_MODE="mark").checks["tables"]
        return told["level"], "CREATE TEMPORARY TABLES" in told["mend"]

    limited(LEAST, TASKSERVER_MODE="mark")
    assert compared() == ("unknown", True)
    mysql_server.execute(f"GRANT CREATE TEMPORARY TABLES ON `{name}`.* TO '{name}'@'%'")
    assert compared() in (("ok", False), ("unknown", True))  # MySQL does not show it the columns
    mysql_server.execute(f"GRANT SELECT ON `{name}`.* TO '{name}'@'%'")
    assert compared() == ("ok", False)


@pytest.mark.parametrize(
    ("mode", "missing"), [("delete", "DELETE on jobs_queue"), ("move", "INSERT on jobs_queue_done")]
)
def test_less_than_the_least_rights_of_a_mode_is_broken(
    limited: Callable[..., Report], mode: str, missing: str
) -> None:
    report = limited(LEAST, TASKSERVER_MODE=mode)
    assert report.worse()["rights"] == "broken"
    assert missing in report.told("rights")


def test_an_open_transaction_is_a_warning_once_it_is_old(healthy_mysql: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    with healthy_mysql.connect() as other, other.cursor() as cursor:
        cursor.execute("SET time_zone = '+05:00'")
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM jobs_queue FOR UPDATE")
        time.sleep(1.1)
        from taskserver import TaskServer

        with TaskServer(healthy_mysql.dsn) as server:
            facts = server.store.diagnosis.facts()
        assert isinstance(facts, MySQLFacts)
        assert facts.oldest_transaction_seconds is not None
        assert 1 <= facts.oldest_transaction_seconds < 600
        monkeypatch.setattr(mysql, "MAX_TRANSACTION_SECONDS", 0)
        assert level_of("transactions", facts) is Level.WARNING
    assert Report(healthy_mysql).checks["transactions"]["level"] == "ok"


# ---- facts that no server here has


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
)


def level_of(check: str, facts: MySQLFacts, dsn: str = "mysql://u@127.0.0.1/db") -> Level:
    (finding,) = [one for one in of_mysql(facts, dsn) if one.check == check]
    return finding.level


def of_mysql(facts: MySQLFacts, dsn: str) -> list[Finding]:
    return list(mysql.findings(facts, Settings(folder=None, dsn=parse_dsn(dsn))))  # type: ignore[arg-type]


def of_sqlite(**facts: Any) -> list[Finding]:
    whole = SQLiteFacts("3.40", "wal", "ok", (), ("claim_by_group", "claim_any_group"))._replace(**facts)
    return list(sqlite.findings(whole, Settings(folder=None, dsn=parse_dsn("sqlite:///x.db"))))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "is_mariadb", "level"),
    [
        ("5.6.24", False, Level.WARNING),
        ("5.7.29-log", False, Level.OK),
        ("8.0.36", False, Level.OK),
        ("10.1.48-MariaDB", True, Level.WARNING),
        ("5.5.5-10.3.39-MariaDB", True, Level.OK),
        ("11.8.2-MariaDB", True, Level.OK),
        ("who knows", False, Level.WARNING),
    ],
)
def test_a_server_that_nobody_tried_is_a_warning(version: str, is_mariadb: bool, level: Level) -> None:
    assert level_of("version", FACTS._replace(version=version, is_mariadb=is_mariadb)) is level


@pytest.mark.parametrize(
    ("dsn", "cipher", "level"),
    [
        ("mysql://u@db.example.org/db", "", Level.WARNING),
        ("mysql://u@db.example.org/db", "TLS_AES_256_GCM_SHA384", Level.OK),
        ("mysql://u@localhost/db", "", Level.OK),
        ("mysql://u@127.0.0.1/db", "", Level.OK),
        ("mysql://u@/db?unix_socket=/s", "", Level.OK),
    ],
)
def test_a_connection_over_the_net_without_tls_is_a_warning(dsn: str, cipher: str, level: Level) -> None:
    assert level_of("connection", FACTS._replace(cipher=cipher), dsn) is level


def test_variables_that_a_proxy_hides_or_makes_up_are_no_trouble() -> None:
    facts = FACTS._replace(session={"max_user_connections": "unlimited", "character_set_connection": "utf8mb4"})
    assert {one.level for one in of_mysql(facts._replace(variables={"x": "y"}), "mysql://u@127.0.0.1/db")} == {
        Level.OK,
        Level.WARNING,
    }


def test_a_server_that_tells_no_variables_is_judged_by_none() -> None:
    found = of_mysql(FACTS._replace(variables={}, session={}), "mysql://u@127.0.0.1/db")
    assert {one.level for one in found} == {Level.OK, Level.UNKNOWN}
    assert not {"character_set", "strict_mode", "binlog"} & {one.check for one in found}


def test_another_character_set_is_broken() -> None:
    assert level_of("character_set", FACTS._replace(session={"character_set_connection": "latin1"})) is Level.BROKEN


@pytest.mark.parametrize("ahead", [-61.0, 61.0])
def test_clocks_that_differ_are_a_warning(ahead: float) -> None:
    assert level_of("clock", FACTS._replace(clock_ahead_seconds=ahead)) is Level.WARNING


# ---- tasks


BROKEN_MODULES = {
    "a syntax error": "def f(:",
    "an import of what is missing": "import nothing_of_this_name",
    "sys.exit": "import sys; sys.exit(3)",
    "the end of Python": "import os; os._exit(0)",
    "a kill": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


@pytest.mark.parametrize("code", BROKEN_MODULES.values(), ids=list(BROKEN_MODULES))
def test_a_module_that_cannot_be_imported_is_broken(healthy_sqlite: Queue, code: str) -> None:
    healthy_sqlite.define(code)
    report = Report(healthy_sqlite)
    assert (report.code, report.worse()) == (2, {"modules": "broken"})
    assert "tasks" in report.told("modules")


def test_a_module_below_a_listed_package_that_is_broken_is_told(healthy_sqlite: Queue) -> None:
    healthy_sqlite.deployment.write_tasks("", "shop/__init__.py")
    healthy_sqlite.deployment.write_tasks("def f(:", "shop/mail.py")
    healthy_sqlite.deployment.write_env(TASKSERVER_DSN=healthy_sqlite.dsn, TASKSERVER_MODULES="shop.*")
    healthy_sqlite.add("shop.mail.send")
    report = Report(healthy_sqlite)
    assert report.worse() == {"modules": "broken"}
    assert "mail.py" in report.told("modules")


FORKS = """
import os, time

if os.fork() == 0 and os.fork() == 0:
    time.sleep(100)  # a daemon, which holds what it inherited open
    os._exit(0)
"""


def test_a_module_that_forks_is_asked_once_and_its_daemon_is_not_waited_for(healthy_sqlite: Queue) -> None:
    healthy_sqlite.define(FORKS)
    assert Report(healthy_sqlite).worse() == {}


def test_names_that_are_made_up_by_the_thousand_are_looked_at_for_a_while_alone(healthy_sqlite: Queue) -> None:
    for number in range(300):
        healthy_sqlite.add(f"tasks.made_up_{number}")
    report = Report(healthy_sqlite)
    assert report.worse() == {"callables": "warning"}
    assert "and 95 or more others" in report.told("callables")


def test_a_module_that_prints_disturbs_nothing(healthy_sqlite: Queue) -> None:
    healthy_sqlite.define("import os\nprint('loud')\nos.write(1, b'loud')\nos.write(2, b'loud')\n")
    assert Report(healthy_sqlite).worse() == {}


def test_a_module_whose_import_hangs_is_broken(healthy_sqlite: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    from taskserver.doctor import modules

    monkeypatch.setattr(modules, "MAX_IMPORT_SECONDS", 0.5)
    healthy_sqlite.deployment.write_tasks("import time\ntime.sleep(600)\n", "sleepy_tasks.py")
    settings = Settings(folder=healthy_sqlite.folder, dsn=parse_dsn(healthy_sqlite.dsn), modules=("sleepy_tasks",))
    assert [one.level for one in modules.findings(settings, [])] == [Level.BROKEN]


def test_names_of_rows_that_cannot_be_called_are_a_warning(healthy: Queue) -> None:
    for name, status in (
        ("tasks.note", 0),
        ("tasks.notes", 0),
        ("other.thing", 5),
        ("tasks.gone", 3),
        ("tasks.old", 4),
    ):
        healthy.sql("INSERT INTO jobs_queue (task, status, due_at) VALUES (?, ?, '2030-01-01 00:00:00')", name, status)
    report = Report(healthy)
    assert report.worse() == {"callables": "warning", "fatal": "warning"}
    for name in ("tasks.notes", "other.thing", "tasks.gone"):
        assert name in report.told("callables")
    assert "tasks.old" not in report.told("callables")


def test_fatal_tasks_are_a_warning(healthy: Queue) -> None:
    healthy.sql("INSERT INTO jobs_queue (task, status) VALUES ('tasks.note', 4)")
    report = Report(healthy)
    assert (report.code, report.worse()) == (1, {"fatal": "warning"})
    assert "client.py errors" in report.told("fatal")


def test_schedules_of_which_nothing_is_wrong_are_well(healthy: Queue) -> None:
    assert healthy.client("schedule", "tidy", "tasks.note", "--every", 600).returncode == 0
    report = Report(healthy)
    assert report.worse() == {}
    assert "1, of which nothing is wrong; next comes tidy, at 20" in report.told("schedules")


def test_schedules_that_are_none_are_a_warning(healthy: Queue) -> None:
    for number in range(MAX_SCHEDULES_NAMED + 2):
        healthy.sql(
            "INSERT INTO jobs_queue_schedules (name, task, cron, timezone) VALUES (?, 'tasks.note', ?, 'Mars')",
            f"bad-{number}",
            "0 3 * * *",
        )
    report = Report(healthy)
    assert (report.code, report.worse()) == (1, {"schedules": "warning"})
    assert report.told("schedules").count("timezone is 'Mars'") == MAX_SCHEDULES_NAMED
    assert "; and 2 more |" in report.told("schedules")
    assert report.checks["schedules"]["mend"] == "client.py schedule NAME … again, or client.py unschedule NAME"


def test_a_schedule_whose_package_is_missing_here_is_told_with_the_line_that_gets_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    nightly = _Planned(Schedule("nightly", "tasks.note", None, 0, 0, None, "0 3 * * *", "UTC"), NOW, NOW)
    (finding,) = _schedules([_stored(nightly)])
    assert finding.level is Level.WARNING
    assert f"{sys.executable} -m pip install --target " in finding.found
    assert finding.mend == "install the package, as said there"


def test_rows_that_nobody_will_ever_take_are_a_warning(healthy: Queue) -> None:
    healthy.sql("INSERT INTO jobs_queue (task, status) VALUES ('tasks.note', 5)")
    healthy.sql("INSERT INTO jobs_queue (task, status) VALUES ('tasks.note', 9)")
    report = Report(healthy)
    assert report.worse() == {"stray": "warning"}
    assert "1 tasks wait for no instant" in report.told("stray")
    assert "1 have a status that is none" in report.told("stray")


def test_tasks_that_wait_for_deleted_ones_are_a_warning_until_a_reclaim(healthy: Queue) -> None:
    for statement in (
        "INSERT INTO jobs_queue (id, task) VALUES (90, 'tasks.note')",
        "INSERT INTO jobs_queue (id, task, status) VALUES (91, 'tasks.note', 5), (92, 'tasks.note', 5)",
        "INSERT INTO jobs_queue_dependencies (parent_id, child_id) VALUES (89, 91), (89, 92), (90, 92)",
    ):
        healthy.sql(statement)
    report = Report(healthy)
    assert report.worse() == {"orphaned": "warning"}
    assert "1 tasks wait for others that are gone or over" in report.told("orphaned")
    assert "client.py reclaim" in report.told("orphaned")
    assert healthy.client("reclaim").returncode == 0
    assert "orphaned" not in Report(healthy).checks


def test_leases_that_nobody_took_back_are_a_warning(healthy: Queue) -> None:
    healthy.sql(
        "INSERT INTO jobs_queue (task, status, claim, due_at) VALUES ('tasks.note', 1, 7, '2024-01-01 00:00:00')"
    )
    assert Report(healthy).worse() == {"leases": "warning"}


def test_dates_beyond_2036_are_a_warning(healthy: Queue) -> None:
    healthy.sql("INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.note', 5, '2037-12-31 00:00:00')")
    assert Report(healthy).worse() == {"due_dates": "warning"}


# ---- cron


def test_a_queue_without_a_worker_is_a_warning(queue: Queue) -> None:
    assert queue.client("init").returncode == 0
    report = Report(queue)
    assert (report.code, report.worse()) == (1, {"cron": "warning"})
    assert "crontab.example" in report.told("cron")


def test_a_run_that_began_in_the_future_tells_nothing_of_cron() -> None:
    finding = _cron([a_run("all", -400_000.0)])
    assert (finding.level, "inf" in finding.found) == (Level.WARNING, False)
    assert unserved([new_rows(2)], [a_run("all", -400_000.0), a_run("3")])


def test_how_often_cron_runs_it_is_told_and_that_it_stopped(healthy: Queue) -> None:
    assert Report(healthy).checks["cron"]["level"] == "unknown"  # it may have been by hand
    assert_silent(healthy.worker())

    def ran(seconds_ago: int, before_that: int) -> None:
        then = "strftime('%Y-%m-%d %H:%M:%f', 'now', '-{} seconds') || '000'" if healthy.is_sqlite else ""
        then = then or "NOW(6) - INTERVAL {} SECOND"
        healthy.sql(
            f"UPDATE jobs_queue_workers SET started_at = {then.format(seconds_ago)}, "
            f"previous_started_at = {then.format(seconds_ago + before_that)}"
        )

    ran(100, 300)
    report = Report(healthy)
    assert report.worse() == {}
    assert "s ago, 5 min after the one before" in report.told("cron")
    ran(2 * 86_400, 300)
    assert Report(healthy).worse() == {"cron": "warning"}
    ran(2 * 86_400, 86_400)  # nightly, and one night was missed
    assert Report(healthy).worse() == {}


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
    finding = _cron(runs)
    assert finding.level is (Level.WARNING if told else Level.OK)
    assert told is None or told in finding.found


def test_the_error_of_a_host_that_is_long_gone_is_no_warning_any_more() -> None:
    assert list(_ended_badly([a_run("3", 8 * 86_400)._replace(reason="error")])) == []
    assert [one.level for one in _ended_badly([a_run("3")._replace(reason="error")])] == [Level.WARNING]


def test_a_run_that_ended_with_an_error_is_a_warning(healthy: Queue) -> None:
    healthy.sql("UPDATE jobs_queue_workers SET reason = 'error'")
    assert Report(healthy).worse() == {"runs": "warning"}


# ---- groups


def test_new_tasks_that_no_worker_takes_are_told_by_doctor_and_status_and_not_by_workers(queue: Queue) -> None:
    assert queue.client("init").returncode == 0
    assert_silent(queue.worker(100, "3,5,6"))
    queue.add("tasks.note", group_id=0)
    queue.add("tasks.note", group_id=7)
    queue.add("tasks.note", group_id=7)
    assert_silent(queue.worker(100, "3,5,6"))
    words = "3 new tasks in groups 0, 7, which no worker takes: they serve 3, 5, 6, and no task stands in 3, 5, 6"
    report = Report(queue)
    assert report.worse() == {"groups": "warning"}
    assert words in report.told("groups")
    assert words in queue.client("status").stdout
    assert json.loads(queue.client("status", "--json").stdout)["unserved_groups"] == [0, 7]
    assert_silent(queue.worker())
    assert Report(queue).worse() == {}
    assert json.loads(queue.client("status", "--json").stdout)["unserved_groups"] == []


def new_rows(group_id: int, status: Status = Status.NEW) -> QueueCount:
    return QueueCount(group_id, status, 1, 1.0)


@pytest.mark.parametrize(
    ("groups", "runs", "expected"),
    [
        ([1], [], []),
        ([1], [a_run("all")], []),
        ([1, 2], [a_run("1")], [2]),
        ([1, 2], [a_run("1"), a_run("2")], []),
        ([1, 2], [a_run("1"), a_run("2", 8 * 86_400)], [2]),
        ([1, 2], [a_run("1"), a_run("all", 8 * 86_400)], [2]),
        ([1, 2], [a_run("1,3,...deadbeef")], []),
        ([1, 2], [a_run("1,²")], [2]),
    ],
)
def test_a_group_is_served_by_a_worker_of_the_last_days(
    groups: list[int], runs: list[LastRun], expected: list[int]
) -> None:
    counts = [new_rows(group) for group in groups]
    assert [count.group_id for count in unserved(counts, runs)] == expected
    assert bool(describe_unserved(counts, runs)) == bool(expected)


def test_only_new_tasks_of_a_group_count_as_unserved() -> None:
    assert unserved([new_rows(2, Status.FATAL)], [a_run("1")]) == []
