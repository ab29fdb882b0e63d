"""client.py doctor: it says each thing that can be wrong with a deployment, and its fix.

What the doctor makes of files and of answers is in tests/unit/test_findings.py.
"""

from __future__ import annotations

import errno
import json
import os
import re
from contextlib import closing

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
from taskserver.stores.table_faults import table_faults
from tests.contract.accounts import account
from tests.support.databases import EACH_DATABASE
from tests.support.doctor import ACCEPTED_HERE, Report, examined, made_healthy
from tests.support.documents import blocks
from tests.support.pgbouncer import pooled
from tests.support.postgresql import PostgreSQLServer
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
def test_a_healthy_deployment_is_well_in_every_check(healthy: Queue) -> None:
    report = Report(healthy)
    assert (report.code, report.worse()) == (0, {})
    assert set(report.checks) | ACCEPTED_HERE == CHECKS[healthy.kind] | ACCEPTED_HERE
    assert {(check["why"], check["fix"]) for check in report.checks.values() if check["level"] == "ok"} == {("", "")}


def test_each_check_is_a_line_with_its_level_its_name_and_what_was_found(healthy: Queue) -> None:
    (healthy.folder / ".env").chmod(0o644)
    ended = healthy.here("doctor")
    *lines, verdict = ended.stdout.splitlines()
    assert ended.returncode == 1
    accepted = [line for line in lines if line.startswith("accepted")]
    lines = lines[: len(lines) - len(accepted)]
    assert [line.split()[1] for line in lines] == [*Report(healthy).checks]
    assert {line.split()[0] for line in lines} <= {"ok", "unknown", "warning"}
    (line,) = [line for line in lines if line.startswith("warning")]
    assert "env_file" in line
    assert "Why it matters: " in line
    assert "Fix: chmod 600 " in line
    also = f", and {len(accepted)} accepted" if accepted else ""
    assert verdict == f"0 critical, 1 warning, of {len(lines)} checks{also}"


def with_login(dsn: str, login: str) -> str:
    """The DSN with another user and password."""
    return re.sub("//[^@]*@", f"//{login}@", dsn)


# ---- settings and files


def test_a_wrong_setting_is_broken_and_told_and_those_of_the_environment_alone_are_well(healthy: Queue) -> None:
    healthy.deployment.write_env("TASKSERVER_DSN=sqlite:///var/x.db\nTASKSERVER_MODULE=tasks\n")
    report = Report(healthy)
    assert (report.code, report.worse()) == (2, {"settings": "critical"})
    assert "did you mean TASKSERVER_MODULES" in report.told("settings")
    (healthy.folder / ".env").unlink()
    report = Report(healthy, TASKSERVER_DSN=healthy.dsn)
    assert (report.code, report.worse()) == (0, {})


# ---- the database


def test_a_refused_login_is_broken_and_told_without_its_password_and_modules_are_looked_at_all_the_same(
    healthy_mysql: Queue,
) -> None:
    healthy_mysql.deployment.write_env(TASKSERVER_DSN=with_login(healthy_mysql.dsn, "root:hunter2"))
    healthy_mysql.define("syntax error")
    report = Report(healthy_mysql)
    assert (report.code, report.worse()) == (2, {"database": "critical", "modules": "critical"})
    assert report.checks["callables"]["level"] == "unknown"
    assert "check user and password" in report.told("database")
    assert "hunter2" not in str(report.checks)


HINDRANCES = {
    "sqlite": {"CREATE TRIGGER keep BEFORE DELETE ON jobs_queue BEGIN SELECT RAISE(IGNORE); END": "the trigger keep"},
    "mysql": {
        "CREATE TRIGGER keep BEFORE DELETE ON jobs_queue FOR EACH ROW SET @kept = 1": "the trigger keep",
        "CREATE TABLE mine (id BIGINT UNSIGNED, FOREIGN KEY (id) REFERENCES jobs_queue (id))": "a foreign key of mine",
    },
    "postgresql": {
        "CREATE RULE keep AS ON DELETE TO jobs_queue DO INSTEAD NOTHING": "the rule keep",
        "CREATE TABLE mine (id BIGINT REFERENCES jobs_queue (id))": "a foreign key of mine",
    },
}


@EACH_DATABASE
def test_what_may_keep_rows_from_being_deleted_is_a_warning(queue: Queue) -> None:
    assert examined(queue.server)["deletes"].level is Level.OK
    for statement, words in HINDRANCES[queue.kind].items():
        queue.sql(statement)
        found = examined(queue.server)["deletes"]
        assert found.level is Level.WARNING
        assert words in found.words


def test_a_missing_table_is_broken_with_its_fix(healthy: Queue) -> None:
    healthy.sql("DROP TABLE jobs_queue_done")
    report = Report(healthy)
    assert (report.code, report.worse()["tables"]) == (2, "critical")
    assert "jobs_queue_done is missing" in report.told("tables")
    healthy.sql("DROP TABLE jobs_queue_schema")
    report = Report(healthy)
    assert (report.code, report.worse()) == (2, {"database": "critical"})
    assert "client.py init" in report.told("database")


def test_another_journal_than_wal_and_a_damaged_file_are_broken(sqlite_queue: Queue) -> None:
    made_healthy(sqlite_queue)
    sqlite_queue.sql("PRAGMA journal_mode = DELETE")
    assert Report(sqlite_queue).worse() == {"journal": "critical"}
    for number in range(500):
        sqlite_queue.add("tasks.note", json.dumps([f"{number}" * 50]))
    size = sqlite_queue.path.stat().st_size
    with sqlite_queue.path.open("r+b") as file:
        file.seek(size - 3 * 4096)
        file.write(os.urandom(2 * 4096))
    assert Report(sqlite_queue).code == 2


LEAST = {
    "": "SELECT, UPDATE",
    "_workers": "SELECT, INSERT, UPDATE",
    "_paused": "SELECT",
    "_schedules": "SELECT, UPDATE",
    "_dependencies": "SELECT",
}
LACKS = ("SELECT on jobs_queue,", "UPDATE on jobs_queue,", "DELETE on jobs_queue,", "UPDATE on jobs_queue_wo")
RIGHTS_OF_MODES: list[tuple[str, dict[str, str], tuple[str, ...]]] = [
    ("delete", {"": "INSERT", "_schema": "SELECT"}, LACKS),
    ("mark", LEAST, ()),
    ("delete", {}, ("DELETE on jobs_queue",)),
    ("delete", {"": "DELETE"}, ()),
    ("move", {}, ("INSERT on jobs_queue_done",)),
    ("move", {"_done": "INSERT"}, ()),
]
"""A mode, what is granted for it besides what was granted before, and what a worker lacks then."""


def test_the_rights_that_a_worker_lacks_in_its_mode_are_told(healthy_mysql: Queue, mysql_server: MySQLServer) -> None:
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
            if lacks is LACKS:
                assert "INSERT on jobs_queue," not in report.told("rights")
                mysql_server.execute(f"REVOKE INSERT ON `{name}`.jobs_queue FROM '{user}'@'%'")
            if not lacks:
                assert "INSERT on jobs_queue (for tasks that add tasks, and periodic ones)" in report.told("rights")
                assert "DELETE on jobs_queue_dependencies (for tasks that wait for others)" in report.told("rights")
                assert "DELETE on jobs_queue_done (for TASKSERVER_KEEP)" in report.told("rights")


def test_an_open_transaction_is_found_whatever_the_time_zone_of_its_session(
    healthy_mysql: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "MAX_TRANSACTION_SECONDS", -1)
    with healthy_mysql.connect() as other, other.cursor() as cursor:
        cursor.execute("SET time_zone = '+05:00'")
        cursor.execute("BEGIN")
        cursor.execute("SELECT * FROM jobs_queue FOR UPDATE")
        cursor.execute("SELECT CONNECTION_ID()")
        ((number,),) = cursor.fetchall()
        found = examined(healthy_mysql.server)["transactions"]
        assert re.search(rf"has one open since \d s, in the session {number} \(Sleep\)", found.words)
        assert found.words.startswith("root")
        assert f"KILL {number}" in found.fix


# ---- tasks

MODULES = {
    "a syntax error": ("def f(:", True),
    "an import of what is missing": ("import nothing_of_this_name", True),
    "the end of Python": ("import os; os._exit(0)", True),
    "prints": ("import os\nprint('loud')\nos.write(1, b'loud')\nos.write(2, b'loud')\n", False),
}


@pytest.mark.parametrize(("code", "is_broken"), MODULES.values(), ids=list(MODULES))
def test_a_module_that_cannot_be_imported_is_broken(healthy: Queue, code: str, is_broken: bool) -> None:
    healthy.define(code)
    report = Report(healthy)
    assert report.worse() == ({"modules": "critical"} if is_broken else {})
    assert "tasks" in report.told("modules")


def test_a_hook_for_failures_that_cannot_be_used_is_a_warning(healthy: Queue) -> None:
    for code, words in {
        "notify = 5": "it is no function, but of type int",
        "import sys; sys.exit(3)": "SystemExit",
    }.items():
        healthy.deployment.write_tasks(code, "alerts.py")
        report = Report(healthy, TASKSERVER_ON_FAILURE="alerts:notify")
        assert report.worse() == {"on_failure": "warning"}
        assert words in report.told("on_failure")


def test_a_module_whose_import_hangs_is_broken_and_without_a_process_none_is_known(
    healthy: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(modules, "MAX_IMPORT_SECONDS", 0.5)
    healthy.deployment.write_tasks("import time\ntime.sleep(600)\n", "sleepy_tasks.py")
    settings = Settings(folder=healthy.folder, dsn=parse_dsn(healthy.dsn), modules=("sleepy_tasks",))
    assert [one.level for one in modules.findings(settings, [])] == [Level.CRITICAL]
    monkeypatch.setattr("subprocess.run", refuse)
    assert [one.level for one in modules.findings(settings, [])] == [Level.UNKNOWN]


def test_names_of_rows_and_schedules_that_cannot_be_called_are_a_warning(healthy: Queue) -> None:
    for name, status in {"tasks.note": 0, "tasks.notes": 0, "other.thing": 5, "tasks.gone": 3, "tasks.old": 4}.items():
        healthy.sql("INSERT INTO jobs_queue (task, status, due_at) VALUES (?, ?, '2030-01-01 00:00:00')", name, status)
    for name in ("tasks.note", "tasks.nota"):
        assert healthy.here("schedule", name, name, "--every", 600).returncode == 0
    report = Report(healthy)
    assert report.worse() == {"callables": "warning", "fatal": "warning"}
    for name in ("tasks.notes", "other.thing", "tasks.gone", "module tasks has no 'nota'; did you mean 'note'?"):
        assert name in report.told("callables")
    assert "2 schedules without a fault" in report.told("schedules")
    assert "tasks.old" not in report.told("callables")


# ---- rows


def test_a_task_that_waits_for_deleted_ones_is_a_warning_until_it_is_reclaimed(healthy: Queue) -> None:
    for statement in (
        "INSERT INTO jobs_queue (id, task) VALUES (90, 'tasks.note')",
        "INSERT INTO jobs_queue (id, task, status) VALUES (91, 'tasks.note', 5), (92, 'tasks.note', 5)",
        "INSERT INTO jobs_queue_dependencies (parent_id, child_id) VALUES (89, 91), (89, 92), (90, 92)",
    ):
        healthy.sql(statement)
    report = Report(healthy)
    assert (report.code, report.worse()) == (1, {"orphaned": "warning"})
    assert "1 task waits only for tasks that were deleted or have ended" in report.told("orphaned")
    assert healthy.here("reclaim").returncode == 0
    assert Report(healthy).worse() == {}


# ---- PostgreSQL


def worse_of(queue: Queue) -> dict[str, Level]:
    """What is not well, but for what the tests' own server lacks."""
    found = examined(queue.server).items()
    return {name: one.level for name, one in found if one.level is not Level.OK and name not in ACCEPTED_HERE}


def test_the_oldest_open_transaction_is_named_with_the_statement_that_ends_it(
    postgresql_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(psycopg.connect(postgresql_queue.dsn)) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        assert worse_of(postgresql_queue) == {}
        monkeypatch.setattr(facts, "MAX_TRANSACTION_SECONDS", 0.0)
        assert worse_of(postgresql_queue) == {"transactions": Level.WARNING}
        found = examined(postgresql_queue.server)["transactions"]
        number = other.info.backend_pid
        assert f"in the session {number} (idle in transaction)" in found.words
        assert f"pg_terminate_backend({number})" in found.fix


def test_tables_that_were_renamed_as_upgrading_says_are_whole_after_init(
    postgresql_queue: Queue, postgresql_server: PostgreSQLServer
) -> None:
    (rename,) = [block.text for block in blocks("docs/upgrading.md") if "RENAME TO" in block.text]
    postgresql_server.execute(rename, database=postgresql_queue.dsn.rpartition("/")[2])
    with TaskServer(postgresql_queue.dsn, table="letters") as server:
        server.create_tables()
        assert table_faults(server.store.database) == []


def test_in_an_encoding_that_lacks_letters_no_queue_is_made(postgresql_server: PostgreSQLServer) -> None:
    name = postgresql_server.create_database()
    postgresql_server.drop_database(name)
    postgresql_server.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with (
            TaskServer(postgresql_server.dsn(name)) as server,
            pytest.raises(DatabaseError, match="encoding is LATIN1"),
        ):
            server.create_tables()
    finally:
        postgresql_server.drop_database(name)


def test_through_a_pooler_of_transactions_all_is_seen(postgresql_queue: Queue) -> None:
    with pooled(postgresql_queue.dsn) as dsn, TaskServer(dsn) as server:
        levels = {name: one.level for name, one in examined(server).items() if name not in ACCEPTED_HERE}
    assert set(levels.values()) == {Level.OK}
