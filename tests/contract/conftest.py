"""Fixtures of the contract that every store keeps: its tests run on SQLite, MySQL/MariaDB and PostgreSQL, always.

store       one on an empty queue; mysql_store and mysql_rows are on MySQL/MariaDB only
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
from tests.support.queues import Queue
from tests.support.rows import Rows
from tests.support.servers import Certificates, MariaDB, find_program, made_certificates, without


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
