"""client.py doctor finds what is wrong with a deployment, and names the fix.

What the doctor makes of files and of answers is in tests/unit/test_findings.py.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import closing
from typing import Any

import psycopg
import pytest

from taskserver import TaskServer
from taskserver.errors import DatabaseError
from taskserver.health import modules
from taskserver.health.judge import JUDGES
from taskserver.messages.finding import Level
from taskserver.settings.dsn import parse_dsn
from taskserver.settings.load import Settings
from taskserver.stores import facts
from tests.contract.accounts import account
from tests.support.databases import EACH_DATABASE
from tests.support.postgresql import PostgreSQLServer, pooled
from tests.support.printed import ACCEPTED_HERE, Report, examined, made_healthy
from tests.support.queues import Queue
from tests.support.servers import MySQLServer

COMMON = {
    *("python", "packages", "web_folder", "code", "env_file", "settings", "var", "modules", "callables", "deletes"),
    *("connection", "version", "tables", "claim_index"),
    *(one.name for one in JUDGES),
}
OF_SERVERS = {"rights", "character_set", "clock", "durability", "connections", "transactions"}
CHECKS = {
    "sqlite": COMMON | {"database_file", "disk", "journal", "file"},
    "mysql": COMMON | OF_SERVERS | {"strict_mode", "packet"},
    "postgresql": COMMON | OF_SERVERS | {"standby"},
}


@pytest.fixture
def healthy(queue: Queue) -> Queue:
    """A deployment in which all is as it should be, a worker of cron's included."""
    return made_healthy(queue)


@pytest.fixture
def healthy_mysql(mysql_queue: Queue) -> Queue:
    return made_healthy(mysql_queue)


# ---- all is well


@EACH_DATABASE
def test_a_healthy_deployment_passes_every_check(healthy: Queue) -> None:
    report = Report(healthy)
    assert (report.code, report.worse()) == (0, {})
    assert set(report.checks) | ACCEPTED_HERE == CHECKS[healthy.kind] | ACCEPTED_HERE
    assert {(check["why"], check["fix"]) for check in report.checks.values() if check["level"] == "ok"} == {("", "")}


def test_each_check_is_one_line(sqlite_queue: Queue) -> None:
    made_healthy(sqlite_queue)
    (sqlite_queue.folder / ".env").chmod(0o644)
    ended = sqlite_queue.here("doctor")
    *lines, verdict = ended.stdout.splitlines()
    assert ended.returncode == 1
    assert [line.split()[1] for line in lines] == [*Report(sqlite_queue).checks]
    (line,) = [line for line in lines if line.startswith("warning")]
    assert all(words in line for words in ("env_file", "Why it matters: ", "Fix: chmod 600 "))
    assert verdict == f"0 critical, 1 warning, of {len(lines)} checks"


# ---- settings and files


def test_a_wrong_setting_is_critical_and_the_environment_is_enough(healthy: Queue) -> None:
    healthy.deployment.write_env("TASKSERVER_DSN=sqlite:///var/x.db\nTASKSERVER_MODULE=tasks\n")
    report = Report(healthy)
    assert (report.code, report.worse()) == (2, {"settings": "critical"})
    assert "did you mean TASKSERVER_MODULES" in report.told("settings")
    (healthy.folder / ".env").unlink()
    report = Report(healthy, TASKSERVER_DSN=healthy.dsn)
    assert (report.code, report.worse()) == (0, {})


# ---- the database


def test_a_refused_login_is_critical_and_modules_are_still_checked(
    healthy_mysql: Queue,
) -> None:
    dsn = re.sub("//[^@]*@", "//root:hunter2@", healthy_mysql.dsn)
    healthy_mysql.deployment.write_env(TASKSERVER_DSN=dsn)
    healthy_mysql.define("syntax error")
    report = Report(healthy_mysql)
    assert (report.code, report.worse()) == (2, {"database": "critical", "modules": "critical"})
    assert report.checks["callables"]["level"] == "unknown"
    # MySQL 8 asks a foreign account's login for the password itself.
    assert re.search("check user and password|the password is wrong", report.told("database"))
    assert "hunter2" not in str(report.checks)


HINDRANCES = {
    "sqlite": ("CREATE TRIGGER keep BEFORE DELETE ON jobs_queue BEGIN SELECT RAISE(IGNORE); END", "the trigger keep"),
    "mysql": ("CREATE TRIGGER keep BEFORE DELETE ON jobs_queue FOR EACH ROW SET @kept = 1", "the trigger keep"),
    "postgresql": ("CREATE TABLE mine (id BIGINT REFERENCES jobs_queue (id))", "a foreign key of mine"),
}


@EACH_DATABASE
def test_triggers_and_foreign_keys_that_block_deletes_are_a_warning(queue: Queue) -> None:
    statement, words = HINDRANCES[queue.kind]
    queue.sql(statement)
    found = examined(queue.server)["deletes"]
    assert (found.level, words in found.words) == (Level.WARNING, True)


def test_a_missing_table_is_critical_with_the_fix(healthy: Queue) -> None:
    healthy.sql("DROP TABLE jobs_queue_done")
    report = Report(healthy)
    assert (report.code, report.worse()["tables"]) == (2, "critical")
    assert "jobs_queue_done is missing" in report.told("tables")
    healthy.sql("DROP TABLE jobs_queue_schema")
    report = Report(healthy)
    assert (report.code, report.worse()) == (2, {"database": "critical"})
    assert "client.py init" in report.told("database")


def test_a_journal_other_than_wal_and_a_damaged_file_are_critical(sqlite_queue: Queue) -> None:
    made_healthy(sqlite_queue)
    sqlite_queue.sql("PRAGMA journal_mode = DELETE")
    assert Report(sqlite_queue).worse() == {"journal": "critical"}
    many = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
    sqlite_queue.sql(f"{many} INSERT INTO jobs_queue (task, args) SELECT 'tasks.note', hex(zeroblob(100)) FROM n")
    with sqlite_queue.path.open("r+b") as file:
        file.seek(-3 * 4096, os.SEEK_END)
        file.write(os.urandom(2 * 4096))
    assert Report(sqlite_queue).code == 2


LEAST = {"": "SELECT, UPDATE", "_workers": "SELECT, INSERT, UPDATE", "_paused": "SELECT"}
LEAST |= {"_schedules": "SELECT, UPDATE", "_dependencies": "SELECT"}
RIGHTS_OF_MODES: list[tuple[str, dict[str, str], tuple[str, ...]]] = [
    ("delete", {"_schema": "SELECT"}, ("SELECT on jobs_queue,", "DELETE on jobs_queue,", "UPDATE on jobs_queue_wo")),
    ("mark", LEAST, ()),
    ("delete", {}, ("DELETE on jobs_queue",)),
    ("move", {"": "DELETE"}, ("INSERT on jobs_queue_done",)),
]
"""A mode, what is granted for it besides what was granted before, and what a worker lacks then."""


def test_the_rights_that_a_worker_lacks_in_its_mode_are_named(healthy_mysql: Queue, mysql_server: MySQLServer) -> None:
    name = healthy_mysql.dsn.rpartition("/")[2]
    with account(mysql_server, name) as dsn:
        user = dsn.partition("//")[2].partition(":")[0]
        for mode, granted, lacks in RIGHTS_OF_MODES:
            for table, rights in granted.items():
                mysql_server.execute(f"GRANT {rights} ON `{name}`.jobs_queue{table} TO '{user}'@'%'")
            healthy_mysql.deployment.write_env(TASKSERVER_DSN=dsn, TASKSERVER_MODE=mode)
            report = Report(healthy_mysql)
            assert report.checks["rights"]["level"] == ("critical" if lacks else "ok")
            assert [right for right in lacks if right not in report.told("rights")] == []
            if not lacks:
                assert "INSERT on jobs_queue (for tasks that add tasks, and periodic ones)" in report.told("rights")


@pytest.mark.parametrize(
    ("database", "zone", "fix"), [("mysql", "time_zone", "KILL "), ("postgresql", "timezone", "pg_terminate_backend(")]
)
def test_an_open_transaction_is_named_with_the_statement_that_ends_it(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, database: str, zone: str, fix: str
) -> None:
    queue: Queue = request.getfixturevalue(f"{database}_queue")
    monkeypatch.setattr(facts, "MAX_TRANSACTION_SECONDS", -1)
    opened: Any = queue.connect() if database == "mysql" else psycopg.connect(queue.dsn)
    with closing(opened), opened.cursor() as cursor:
        for statement in (f"SET {zone} = '+05:00'", "BEGIN", "SELECT * FROM jobs_queue FOR UPDATE"):
            cursor.execute(statement)
        time.sleep(0.2)  # InnoDB shows its list again, as it is, if it was read less than a tenth of a second ago
        found = examined(queue.server)["transactions"]
    assert found.level is Level.WARNING
    assert re.search(r"has one open since \d s, in the session \d+ \((Sleep|idle in transaction)\)", found.words)
    assert fix in found.fix


# ---- tasks


@pytest.mark.parametrize("code", ["def f(:", "import os; os._exit(0)"])
def test_a_module_that_cannot_be_imported_is_critical(healthy: Queue, code: str) -> None:
    healthy.define(code)
    report = Report(healthy)
    assert report.worse() == {"modules": "critical"}
    assert "tasks" in report.told("modules")


def test_a_hook_for_failures_that_cannot_be_used_is_a_warning(healthy: Queue) -> None:
    healthy.deployment.write_tasks("import sys; sys.exit(3)", "alerts.py")
    report = Report(healthy, TASKSERVER_ON_FAILURE="alerts:tell")
    assert report.worse() == {"on_failure": "warning"}
    assert "SystemExit" in report.told("on_failure")


def test_a_module_whose_import_hangs_is_critical(healthy: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MAX_IMPORT_SECONDS", 0.5)
    healthy.deployment.write_tasks("import time\ntime.sleep(600)\n", "sleepy_tasks.py")
    settings = Settings(folder=healthy.folder, dsn=parse_dsn(healthy.dsn), modules=("sleepy_tasks",))
    assert [one.level for one in modules.findings(settings, [])] == [Level.CRITICAL]


def test_names_of_rows_and_schedules_that_cannot_be_called_are_a_warning(healthy: Queue) -> None:
    for name, status in {"tasks.note": 0, "tasks.notes": 0, "other.thing": 5, "tasks.gone": 3, "tasks.old": 4}.items():
        healthy.sql("INSERT INTO jobs_queue (task, status, due_at) VALUES (?, ?, '2030-01-01 00:00:00')", name, status)
    for name in ("tasks.note", "tasks.nota"):
        assert healthy.here("schedule", name, name, "--every", 600).returncode == 0
    report = Report(healthy)
    assert report.worse() == {"callables": "warning", "fatal": "warning"}
    for name in ("tasks.notes", "other.thing", "tasks.gone", "module tasks has no 'nota'; did you mean 'note'?"):
        assert name in report.told("callables")
    assert "tasks.old" not in report.told("callables")


# ---- PostgreSQL


def test_no_queue_is_made_in_an_encoding_without_all_letters(postgresql_server: PostgreSQLServer) -> None:
    name = postgresql_server.create_database()
    postgresql_server.drop_database(name)
    postgresql_server.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with TaskServer(postgresql_server.dsn(name)) as server, pytest.raises(DatabaseError, match="encoding is LATIN1"):
        server.create_tables()
    postgresql_server.drop_database(name)


def test_every_check_works_through_a_transaction_pooler(postgresql_queue: Queue) -> None:
    with pooled(postgresql_queue.dsn) as dsn, TaskServer(dsn) as server:
        levels = {name: one.level for name, one in examined(server).items() if name not in ACCEPTED_HERE}
    assert set(levels.values()) == {Level.OK}
