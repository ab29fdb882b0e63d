"""Fixtures that every test may use.

    database    sqlite, mysql or postgresql: what `pytest --on` says, unless the test's mark names others
                (tests/support/databases.py); of tests/contract each test runs on all three
    dsn         of an empty one; sqlite_dsn, mysql_dsn, postgresql_dsn: of one kind
    queue_dsn   of one whose tables are there, and empty; sqlite_queue_dsn, mysql_queue_dsn, postgresql_queue_dsn
    mysql_server, postgresql_server     a private one, or TASKSERVER_TEST_MYSQL and TASKSERVER_TEST_POSTGRESQL
    mariadb, postgresql     the private ones that the whole test run shares: to kill one, start your own
    deployment  a user's folder, whose worker.py and client.py run as processes
    queue       of a deployment whose tasks.py has the TASKS of the test's file, and .env its SETTINGS;
                sqlite_queue, mysql_queue, postgresql_queue: of one kind; make_queue makes one, for a DSN

A missing server skips a test on a laptop, and fails it where the variable CI is set. Tests run in several processes at
once (pytest-xdist): fixed names, ports and paths belong to nobody. Those that need a server bear the mark `server`,
which `make test-sqlite` leaves out; it is set here, by the fixtures that they ask for.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from taskserver import TaskServer
from tests.support.databases import DATABASES
from tests.support.deployment import Deployment
from tests.support.postgresql import ExternalPostgreSQL, PostgreSQL, PostgreSQLServer, programs_folder
from tests.support.processes import Run
from tests.support.queues import Queue
from tests.support.servers import ExternalServer, MariaDB, MySQLServer, find_program, missing_programs, without
from tests.support.sites import empty_tables, kept_database

EXTERNAL_MYSQL = os.environ.get("TASKSERVER_TEST_MYSQL", "")
EXTERNAL_POSTGRESQL = os.environ.get("TASKSERVER_TEST_POSTGRESQL", "")
OF_SERVERS = re.compile(r"(mysql|mariadb|postgresql|galera)(_.*)?|php|.*_server")
"""The names of databases and of fixtures that need a server."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on", choices=DATABASES, default="sqlite", help="where tests run that name no database")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and _needs_server(item):
            item.add_marker("server")


def _needs_server(item: pytest.Function) -> bool:
    names = list(item.fixturenames)
    if hasattr(item, "callspec"):
        names += [value for value in item.callspec.params.values() if value in DATABASES]
    elif "database" in names:
        names.append(item.config.getoption("--on"))
    return any(map(OF_SERVERS.fullmatch, names))


@pytest.fixture
def whole_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims of this process take 100 tasks from the first one on, as they do later in a run of quick tasks."""
    from taskserver.worker.limits import ClaimSize

    monkeypatch.setattr(ClaimSize, "next", lambda size, left: 100 if left is None else min(left, 100))


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("TASKSERVER_", "PG"))]:  # PG…: libpq's own
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "tasks", raising=False)  # of a test before, in this process
    monkeypatch.setattr(sys, "path", sys.path.copy())  # a run puts its folder there


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB() as server:
        yield server


@pytest.fixture(scope="session")
def mysql_server(request: pytest.FixtureRequest) -> MySQLServer:
    return ExternalServer(EXTERNAL_MYSQL) if EXTERNAL_MYSQL else request.getfixturevalue("mariadb")


@pytest.fixture
def mysql_dsn(mysql_server: MySQLServer) -> Iterator[str]:
    with mysql_server.database() as name:
        yield mysql_server.dsn(name)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSQL]:
    if programs_folder() is None:
        without("PostgreSQL is not installed (postgres not found)")
    with PostgreSQL() as server:
        yield server


@pytest.fixture(scope="session")
def postgresql_server(request: pytest.FixtureRequest) -> PostgreSQLServer:
    return ExternalPostgreSQL(EXTERNAL_POSTGRESQL) if EXTERNAL_POSTGRESQL else request.getfixturevalue("postgresql")


@pytest.fixture
def postgresql_dsn(postgresql_server: PostgreSQLServer) -> Iterator[str]:
    with postgresql_server.database() as name:
        yield postgresql_server.dsn(name)


@pytest.fixture
def sqlite_dsn(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/taskserver.db"


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", request.config.getoption("--on")))


@pytest.fixture
def dsn(database: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{database}_dsn"))


@pytest.fixture(scope="session")
def kept_mysql_dsn(mysql_server: MySQLServer) -> Iterator[str]:
    with kept_database(mysql_server) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def kept_postgresql_dsn(postgresql_server: PostgreSQLServer) -> Iterator[str]:
    with kept_database(postgresql_server) as dsn:
        yield dsn


@pytest.fixture
def mysql_queue_dsn(kept_mysql_dsn: str) -> str:
    return empty_tables(kept_mysql_dsn)


@pytest.fixture
def postgresql_queue_dsn(kept_postgresql_dsn: str) -> str:
    return empty_tables(kept_postgresql_dsn)


@pytest.fixture
def sqlite_queue_dsn(sqlite_dsn: str) -> str:
    with TaskServer(sqlite_dsn) as server:
        server.create_tables()
    return sqlite_dsn


@pytest.fixture
def queue_dsn(database: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{database}_queue_dsn"))


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with closing(Deployment(tmp_path)) as deployed:
        yield deployed


@pytest.fixture
def make_queue(request: pytest.FixtureRequest, deployment: Deployment) -> Callable[..., Queue]:
    tasks, settings = getattr(request.module, "TASKS", ""), getattr(request.module, "SETTINGS", {})
    return partial(Queue, deployment, tasks=tasks, settings=settings)


@pytest.fixture
def sqlite_queue(make_queue: Callable[..., Queue], sqlite_dsn: str) -> Queue:
    return make_queue(sqlite_dsn)


@pytest.fixture
def mysql_queue(make_queue: Callable[..., Queue], mysql_dsn: str) -> Queue:
    return make_queue(mysql_dsn)


@pytest.fixture
def postgresql_queue(make_queue: Callable[..., Queue], postgresql_dsn: str) -> Queue:
    return make_queue(postgresql_dsn)


@pytest.fixture
def queue(make_queue: Callable[..., Queue], dsn: str) -> Queue:
    return make_queue(dsn)


@pytest.fixture
def client(queue: Queue) -> Run:
    """A command of client.py, inside this process."""
    return queue.here


@pytest.fixture
def bound_by_rights(deployment: Deployment) -> None:
    """Runs a deployment's programs without root's power to pass over a file's rights."""
    if os.getuid() == 0:
        setpriv = find_program("setpriv") or without("setpriv of util-linux is not installed")
        dropped = "-dac_override,-dac_read_search"
        deployment.wrap_python([setpriv, f"--inh-caps={dropped}", f"--bounding-set={dropped}"])


@pytest.fixture(scope="session")
def php() -> str:
    """Path of a PHP that has mysqli and PDO."""
    path = find_program("php")
    check = 'exit(extension_loaded("mysqli") && extension_loaded("pdo_mysql") ? 0 : 1);'
    if path is None or subprocess.run([path, "-r", check], check=False, capture_output=True).returncode != 0:
        without("PHP with mysqli and PDO is not installed")
    return path
