"""What a fresh Python imports: pages and empty cron runs pay for nothing that they do not use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.deployment import ROOT, Deployment

DRIVERS = {"pymysql", "sqlite3", "dotenv", "ssl"}
NEVER_IN_AN_EMPTY_RUN = {
    *("pymysql", "psycopg", "dotenv", "ssl", "inspect", "json", "json.decoder", "importlib.util", "hashlib"),
    *("tempfile", "grp", "subprocess", "asyncio", "unittest", "email", "importlib.metadata", "importlib.resources"),
    *("concurrent.futures", "difflib"),
    *(
        f"taskserver.{module}"
        for module in (
            *("stores.schema", "stores.upgrading", "stores.facts", "stores.free_rows", "stores.mysql.dialect"),
            *("stores.queue.stats", "stores.queue.adding", "stores.queue.finishes", "stores.queue.views"),
            *("worker.stats", "worker.run_context", "worker.life", "worker.call", "worker.preparing"),
            *("worker.callables", "model.arguments", "model.new_task", "cli.client"),
        )
    ),
}


def python(code: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.defpath, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)


def modules_after(code: str) -> set[str]:
    """The modules that a fresh Python has imported after some code, and not before."""
    done = python(f"import sys; before = set(sys.modules)\n{code}\nprint(*(set(sys.modules) - before))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


MYSQL = "from taskserver import TaskServer\nTaskServer('mysql://u@h/db')"
ADD = "from taskserver.model.new_task import new_task\nnew_task('tasks.send', {'to': 'x'})"
NEEDLESS = {"json.decoder", "inspect", "argparse", "logging", "hashlib", "socket", "asyncio"}
OF_WORKERS = {f"taskserver.{module}" for module in ("worker.life", "worker.callables", "worker.run", "cli.commands")}


@pytest.mark.parametrize(
    ("code", "imported", "not_imported"),
    [
        ("import taskserver", {"taskserver.server"}, DRIVERS | NEEDLESS | OF_WORKERS),
        (ADD, {"taskserver.model.new_task"}, {"inspect", "difflib", "taskserver.model.functions"}),
        (MYSQL, {"pymysql"}, {"sqlite3", "dotenv"}),
    ],
    ids=["the package", "adding by a name", "a server of MySQL"],
)
def test_code_imports_only_what_it_uses(code: str, imported: set[str], not_imported: set[str]) -> None:
    found = modules_after(code)
    assert imported - found == set()
    assert not_imported & found == set()


def test_an_old_python_that_imports_the_package_gets_an_error_that_names_the_one_needed() -> None:
    ended = python("import sys; sys.version_info = (3, 9, 2, 'final', 0)\nimport taskserver")
    assert ended.stderr.endswith("ImportError: taskserver needs Python 3.10 or newer, and this is 3.9\n")


@pytest.mark.parametrize("driver", ["sqlite3", "pymysql"])
def test_an_empty_run_imports_only_what_it_uses(
    request: pytest.FixtureRequest, deployment: Deployment, driver: str
) -> None:
    dsn = "sqlite:///var/taskserver.db" if driver == "sqlite3" else request.getfixturevalue("mysql_dsn")
    environ = {"TASKSERVER_DSN": dsn}
    assert deployment.here("init", env=environ).returncode == 0
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", str(deployment.folder / "worker.py"), "100", "3,5,6"],
        cwd=deployment.home,
        env={"PATH": os.defpath, "HOME": str(deployment.home), **environ},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip() for line in lines}
    assert {driver, "taskserver.worker.run", "taskserver.cli.worker"} - imported == set()
    allowed = set() if driver == "sqlite3" else {driver, "taskserver.stores.mysql.dialect"}
    allowed |= modules_after(f"import {driver}")
    assert (NEVER_IN_AN_EMPTY_RUN - allowed) & imported == set()
    assert ("sqlite3" in imported) is (driver == "sqlite3")
