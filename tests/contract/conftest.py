"""Fixtures of the contract that every store keeps: its tests run on SQLite, MySQL/MariaDB and PostgreSQL, always.

queue_dsn   of a database whose tables are there, and empty; mysql_queue_dsn and postgresql_queue_dsn are of one server
store       one on it; mysql_store and mysql_rows are on MySQL/MariaDB only
open_store  opens more of them, each another worker, in a mode
rows        the database itself, seen past the store
queue       of a deployment on it
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from taskserver import TaskServer
from taskserver.stores import Store
from tests.support.databases import DATABASES
from tests.support.postgresql import PostgreSQLServer
from tests.support.queues import Queue
from tests.support.rows import Rows
from tests.support.servers import Certificates, MariaDB, MySQLServer, find_program, made_certificates, without
from tests.support.sites import empty_tables, kept_database


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


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def queue_dsn(database: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{database}_queue_dsn"))


@pytest.fixture
def queue(make_queue: Callable[..., Queue], queue_dsn: str) -> Queue:
    return make_queue(queue_dsn)


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
    with closing(Rows(queue_dsn)) as seen:
        yield seen


@pytest.fixture
def mysql_rows(mysql_queue_dsn: str) -> Iterator[Rows]:
    with closing(Rows(mysql_queue_dsn)) as seen:
        yield seen


@pytest.fixture
def mysql_store(mysql_queue_dsn: str) -> Iterator[Store]:
    with TaskServer(mysql_queue_dsn) as server:
        yield server.store


@pytest.fixture(scope="session")
def certificates() -> Iterator[Certificates]:
    if find_program("openssl") is None:
        without("openssl is not installed")
    with made_certificates() as made:
        yield made


ON_ODD_MARIADB = pytest.mark.xdist_group("odd_mariadb")
"""For tests of `odd_mariadb`, so that it starts once."""


@pytest.fixture(scope="session")
def odd_mariadb(certificates: Certificates) -> Iterator[MariaDB]:
    """A MariaDB with TLS, and with replication by statements, which refuses to write in READ COMMITTED."""
    if find_program("mariadbd") is None:
        without("MariaDB is not installed")
    tls = (f"--ssl-cert={certificates.certificate}", f"--ssl-key={certificates.key}")
    with MariaDB(False, *tls, "--log-bin", "--binlog-format=STATEMENT", "--server-id=1") as server:
        assert server.execute("SELECT @@log_bin, @@binlog_format") == ((1, "STATEMENT"),)
        yield server
