"""Fixtures that every test may use.

    dsn         of an empty database: the test runs for SQLite, MySQL/MariaDB and PostgreSQL
    sqlite_dsn, mysql_dsn               of one of them alone
    mysql_server                        the server behind mysql_dsn: a private MariaDB, or TASKSERVER_TEST_MYSQL
    postgresql_dsn, postgresql_server   the same for PostgreSQL: a private one, or TASKSERVER_TEST_POSTGRESQL
    mariadb     the private MariaDB that the whole test run shares: leave it running; to kill one, start your own
    postgresql  the same of PostgreSQL
    deployment  a user's folder, whose worker.py and client.py run as processes
    queue       of a deployment whose tasks.py has the TASKS of the test's file, and .env its SETTINGS: for both stores
    sqlite_queue, mysql_queue, postgresql_queue     of one of them alone
    one_queue   on SQLite; among the long tests on MySQL/MariaDB too
                (tests/support/turns.py does that for tests of `queue`, and for values in turn)
    make_queue  makes one, for a DSN
    whole_claims        claims of the test's own process take 100 tasks at once from the first one on
    bound_by_rights     runs a deployment's programs without root's power to pass over a file's rights
    php         path of a PHP that has mysqli and PDO

A missing server skips a test on a laptop, and fails it where the variable CI is set.

Tests run in several processes at once (pytest-xdist): fixed names, ports and paths belong to nobody. Those that need a
server bear the mark `server`, which `make test-sqlite` leaves out; it is set here, by the fixtures that they ask for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn
from zlib import crc32

import pytest

from tests.support.deployment import Deployment
from tests.support.postgresql import ExternalPostgreSQL, PostgreSQL, PostgreSQLServer, programs_folder
from tests.support.processes import Run
from tests.support.queues import Queue
from tests.support.servers import ExternalServer, MariaDB, MySQLServer, find_program, missing_programs

EXTERNAL_MYSQL = os.environ.get("TASKSERVER_TEST_MYSQL", "")
EXTERNAL_POSTGRESQL = os.environ.get("TASKSERVER_TEST_POSTGRESQL", "")
SERVERS = ("mysql", "postgresql")
SERVER_FIXTURES = {"mariadb", "mysql_dsn", "mysql_queue", "postgresql", "postgresql_dsn", "postgresql_queue", "php"}
"""These, and whatever ends in _server."""
IN_CI = os.environ.get("CI", "").lower() not in ("", "0", "false")


ON_ALL_AT_ONCE = {
    *("test_kinds", "test_complete", "test_notices", "test_doctor_postgresql", "test_callers_sessions"),
    *("test_dsn", "test_doctor_facts", "test_env_mistakes", "test_init"),
}
"""`make test` has ten minutes. It runs the stores' contract and these on all databases. Of the others that are for
several it runs most on MySQL/MariaDB, some in its place on PostgreSQL, and some on SQLite, too. The long tests have the
rest."""
ON_POSTGRESQL_INSTEAD, ON_SQLITE_TOO = 5, 6
"""One of so many."""
OF_ALL_CASES = {"docs", "contract", "unit", "work"}
"""Folders of which `make test` runs all cases of each test."""
MOST_CASES = 3
"""Of a test elsewhere that has more cases, it runs every second one."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and _needs_server(item):
            item.add_marker("server")
    if config.getoption("only_on", None):  # tests/contract/other_servers
        return
    at_once = {item.nodeid for item in items if item.get_closest_marker("long") is None}
    for item in items:
        if "contract" not in _folders(item) and item.path.stem not in ON_ALL_AT_ONCE and _is_left_out(item, at_once):
            item.add_marker("long")
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("long") is None and not OF_ALL_CASES.intersection(_folders(item)):
            cases.setdefault((item.path, item.name.partition("[")[0]), []).append(item)
    for each in cases.values():
        for item in each[1::2] if len(each) > MOST_CASES else []:
            item.add_marker("long")


def _is_left_out(item: pytest.Item, at_once: set[str]) -> bool:
    """Whether `make test` has enough of a test without its run on this database."""
    kinds = [kind for kind in ("sqlite", *SERVERS) if kind in _values(item)]
    if len(kinds) != 1:
        return False
    on_mysql = item.nodeid.replace(kinds[0], "mysql")
    on_postgresql = on_mysql.replace("mysql", "postgresql")
    number = crc32(on_mysql.encode())
    is_on_postgresql = on_postgresql in at_once and number % ON_POSTGRESQL_INSTEAD == 2
    if kinds == ["mysql"]:
        return is_on_postgresql
    if on_mysql not in at_once:  # tests/support/turns.py has chosen, or the test is for this database alone
        return False
    return not is_on_postgresql if kinds == ["postgresql"] else number % ON_SQLITE_TOO != 0


def _folders(item: pytest.Item) -> tuple[str, ...]:
    """Below tests/: what lies above may have any name, as /work."""
    return Path(os.path.relpath(item.path, Path(__file__).parent)).parts


def _values(item: pytest.Item) -> list[str]:
    chosen = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return [value for value in chosen if isinstance(value, str)]


def _needs_server(item: pytest.Function) -> bool:
    if any(value in SERVERS for value in _values(item)):
        return True
    return any(name in SERVER_FIXTURES or name.endswith("_server") for name in item.fixturenames)


def without(what: str) -> NoReturn:
    """Ends a test that needs what this machine lacks."""
    if IN_CI:
        pytest.fail(f"{what}; in CI that is a failure", pytrace=False)
    pytest.skip(f"{what}; make test installs it on Debian and Ubuntu")


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
    if EXTERNAL_MYSQL:
        return ExternalServer(EXTERNAL_MYSQL)
    server = request.getfixturevalue("mariadb")
    assert isinstance(server, MariaDB)
    return server


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
    if EXTERNAL_POSTGRESQL:
        return ExternalPostgreSQL(EXTERNAL_POSTGRESQL)
    server = request.getfixturevalue("postgresql")
    assert isinstance(server, PostgreSQL)
    return server


@pytest.fixture
def postgresql_dsn(postgresql_server: PostgreSQLServer) -> Iterator[str]:
    with postgresql_server.database() as name:
        yield postgresql_server.dsn(name)


@pytest.fixture
def sqlite_dsn(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/taskserver.db"


@pytest.fixture(params=["sqlite", "mysql", "postgresql"])
def dsn(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_dsn"))


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployed = Deployment(tmp_path)
    try:
        yield deployed
    finally:
        deployed.close()


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


@pytest.fixture(params=["sqlite", pytest.param("mysql", marks=pytest.mark.long)])
def one_queue(request: pytest.FixtureRequest) -> Queue:
    queue = request.getfixturevalue(f"{request.param}_queue")
    assert isinstance(queue, Queue)
    return queue


@pytest.fixture
def bound_by_rights(deployment: Deployment) -> None:
    if os.getuid() != 0:
        return
    setpriv = find_program("setpriv")
    if setpriv is None:
        pytest.skip("setpriv of util-linux is needed to give up root's rights")
    dropped = "-dac_override,-dac_read_search"
    deployment.wrap_python([setpriv, f"--inh-caps={dropped}", f"--bounding-set={dropped}"])


@pytest.fixture(scope="session")
def php() -> str:
    path = find_program("php")
    check = 'exit(extension_loaded("mysqli") && extension_loaded("pdo_mysql") ? 0 : 1);'
    if path is None or subprocess.run([path, "-r", check], check=False, capture_output=True).returncode != 0:
        without("PHP with mysqli and PDO is not installed")
    return path
