"""Queues whose database fails: on MySQL/MariaDB, and in long tests on PostgreSQL.

fragile         a server of these tests' own, which they kill; it runs as each of them begins
fragile_queue   a queue on it
shared_queue    one on the server of the whole test run, which keeps running: rows and tables are locked there
cluster         three nodes of Galera for the tests of a file, whole as each of them begins
name            a database with tables on it
proxy           between the worker of proxied_queue and that server
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskserver import TaskServer
from tests.faults.failing import TASKS, FailingQueue
from tests.support.deployment import Deployment
from tests.support.galera import Galera, missing_parts
from tests.support.postgresql import PostgreSQL, PostgreSQLServer, programs_folder
from tests.support.proxy import Proxy, Reader, Requests, as_sent
from tests.support.servers import MariaDB, MySQLServer, missing_programs, without

READERS: dict[str, Callable[[], Reader]] = {"mysql": as_sent, "postgresql": Requests}


@pytest.fixture(scope="module", params=["mysql", pytest.param("postgresql", marks=pytest.mark.long)])
def failing_kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def fragile_server(failing_kind: str) -> Iterator[MariaDB | PostgreSQL]:
    """What was committed is in the kernel's hands, so that SIGKILL loses none of it."""
    if failing_kind == "postgresql":
        if programs_folder() is None:
            without("PostgreSQL is not installed (postgres not found)")
        # A handful for all but the tests themselves, whose account is the superuser's.
        with PostgreSQL(False, "synchronous_commit=on", "max_connections=20") as postgresql:
            yield postgresql
        return
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    # Limits of an account's connections can be set while it runs only if there is one from the start.
    with MariaDB(False, "--innodb-flush-log-at-trx-commit=2", "--max-user-connections=1000") as mariadb:
        yield mariadb


@pytest.fixture
def fragile(fragile_server: MariaDB | PostgreSQL) -> Iterator[MariaDB | PostgreSQL]:
    fragile_server.start()
    yield fragile_server
    fragile_server.start()


@pytest.fixture
def tasks(request: pytest.FixtureRequest) -> str:
    """Of the test's file, or those of failing.py."""
    return str(getattr(request.module, "TASKS", TASKS))


@pytest.fixture
def fragile_queue(deployment: Deployment, fragile: MariaDB | PostgreSQL, tasks: str) -> Iterator[FailingQueue]:
    name = fragile.create_database()
    yield FailingQueue(deployment, fragile, name, tasks=tasks)
    deployment.close()
    fragile.start()
    fragile.drop_database(name)


@pytest.fixture
def shared_server(failing_kind: str, request: pytest.FixtureRequest) -> MySQLServer | PostgreSQLServer:
    server = request.getfixturevalue(f"{failing_kind}_server")
    assert isinstance(server, (MySQLServer, PostgreSQLServer))
    return server


@pytest.fixture
def shared_queue(
    deployment: Deployment, shared_server: MySQLServer | PostgreSQLServer, tasks: str
) -> Iterator[FailingQueue]:
    with shared_server.database() as name:
        yield FailingQueue(deployment, shared_server, name, tasks=tasks)
        deployment.close()


@pytest.fixture
def proxy(failing_kind: str, shared_server: MySQLServer | PostgreSQLServer) -> Iterator[Proxy]:
    with Proxy(shared_server.host, shared_server.port, READERS[failing_kind]) as proxy:
        yield proxy


@pytest.fixture
def proxied_queue(
    deployment: Deployment, shared_server: MySQLServer | PostgreSQLServer, proxy: Proxy, tasks: str
) -> Iterator[FailingQueue]:
    with shared_server.database() as name:
        yield FailingQueue(deployment, shared_server, name, proxy, tasks)
        deployment.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.fixture(scope="module")
def galera() -> Iterator[Galera]:
    """Of all these tests."""
    if missing := missing_parts():
        without(f"Galera is not installed ({', '.join(missing)} not found)")
    with Galera() as cluster:
        yield cluster


@pytest.fixture
def cluster(galera: Galera) -> Iterator[Galera]:
    """Whole as each test begins."""
    yield galera
    galera.heal()


@pytest.fixture
def name(cluster: Galera) -> Iterator[str]:
    """Of a database with tables on all nodes."""
    name = cluster.create_database()
    with TaskServer(cluster.dsn(name)) as server:
        server.create_tables()
    yield name
    cluster.heal()
    cluster.nodes[0].drop_database(name)
