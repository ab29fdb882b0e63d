"""Fixtures of the contract that every store keeps: its tests run on SQLite, MySQL/MariaDB and PostgreSQL, always.

store       one on a database whose tables are there, and empty
open_store  opens more of them, each another worker, in a mode
rows        the database itself, seen past the store
mysql_store the same on MySQL/MariaDB alone
certificates of a server and of authorities
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from taskserver import TaskServer
from taskserver.stores import Store
from taskserver.stores.words import HELPERS, SCHEMA_VERSION
from tests.conftest import without
from tests.support.certificates import Certificates, made_certificates
from tests.support.databases import DATABASES
from tests.support.postgresql import PostgreSQLServer
from tests.support.rows import Rows
from tests.support.servers import MySQLServer, find_program

TABLES = ("", *(f"_{name}" for name in HELPERS))


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def kept_mysql_dsn(mysql_server: MySQLServer) -> Iterator[str]:
    """One database for many tests, as making its tables anew for each takes longer than most tests."""
    with mysql_server.database() as name:
        dsn = mysql_server.dsn(name)
        with TaskServer(dsn) as server:
            server.create_tables()
        yield dsn


@pytest.fixture
def emptied_mysql_dsn(kept_mysql_dsn: str) -> str:
    _empty(kept_mysql_dsn)
    return kept_mysql_dsn


def _empty(dsn: str) -> None:
    rows = Rows(dsn)
    for name in TABLES:
        rows.execute(f"DELETE FROM jobs_queue{name}")
    rows.execute(f"INSERT INTO jobs_queue_schema (version) VALUES ({SCHEMA_VERSION})")
    rows.close()


@pytest.fixture(scope="module")
def kept_postgresql_dsn(postgresql_server: PostgreSQLServer) -> Iterator[str]:
    with postgresql_server.database() as name:
        dsn = postgresql_server.dsn(name)
        with TaskServer(dsn) as server:
            server.create_tables()
        yield dsn


@pytest.fixture
def emptied_postgresql_dsn(kept_postgresql_dsn: str) -> str:
    _empty(kept_postgresql_dsn)
    return kept_postgresql_dsn


@pytest.fixture(params=["sqlite", "mysql", "postgresql"])
def queue_dsn(request: pytest.FixtureRequest) -> str:
    if request.param != "sqlite":
        return str(request.getfixturevalue(f"emptied_{request.param}_dsn"))
    dsn = str(request.getfixturevalue("sqlite_dsn"))
    with TaskServer(dsn) as server:
        server.create_tables()
    return dsn


@pytest.fixture
def open_store(queue_dsn: str) -> Iterator[Callable[..., Store]]:
    servers: list[TaskServer] = []

    def open_one(mode: str = "delete") -> Store:
        servers.append(TaskServer(queue_dsn, mode=mode))
        return servers[-1].store

    yield open_one
    for server in servers:
        server.close()


@pytest.fixture
def store(open_store: Callable[..., Store]) -> Store:
    return open_store()


@pytest.fixture
def rows(queue_dsn: str) -> Iterator[Rows]:
    seen = Rows(queue_dsn)
    yield seen
    seen.close()


@pytest.fixture
def mysql_store(emptied_mysql_dsn: str) -> Iterator[Store]:
    with TaskServer(emptied_mysql_dsn) as server:
        yield server.store


@pytest.fixture(scope="module")
def certificates() -> Iterator[Certificates]:
    if find_program("openssl") is None:
        without("openssl is not installed")
    with made_certificates() as made:
        yield made
