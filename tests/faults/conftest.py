"""Queues whose database fails.

fragile         a server of these tests' own, which they kill; it runs as each of them begins
fragile_queue   a queue on it
shared_queue    one on the server of the whole test run, which is left alone: rows and tables are locked there
proxy           between the worker of proxied_queue and that server
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import without
from tests.faults.failing import FailingQueue
from tests.support.deployment import Deployment
from tests.support.proxy import Proxy
from tests.support.servers import MariaDB, MySQLServer, missing_programs


@pytest.fixture(scope="module")
def fragile_server() -> Iterator[MariaDB]:
    """What was committed is in the kernel's hands, so that SIGKILL loses none of it.

    Limits of an account's connections can be set while it runs only if there is one from the start.
    """
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB(False, "--innodb-flush-log-at-trx-commit=2", "--max-user-connections=1000") as server:
        yield server


@pytest.fixture
def fragile(fragile_server: MariaDB) -> Iterator[MariaDB]:
    fragile_server.start()
    yield fragile_server
    fragile_server.start()


@pytest.fixture
def fragile_queue(deployment: Deployment, fragile: MariaDB) -> Iterator[FailingQueue]:
    name = fragile.create_database()
    yield FailingQueue(deployment, fragile, name)
    deployment.close()
    fragile.start()
    fragile.drop_database(name)


@pytest.fixture
def shared_queue(deployment: Deployment, mysql_server: MySQLServer) -> Iterator[FailingQueue]:
    with mysql_server.database() as name:
        yield FailingQueue(deployment, mysql_server, name)
        deployment.close()


@pytest.fixture
def proxy(mysql_server: MySQLServer) -> Iterator[Proxy]:
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        yield proxy


@pytest.fixture
def proxied_queue(deployment: Deployment, mysql_server: MySQLServer, proxy: Proxy) -> Iterator[FailingQueue]:
    with mysql_server.database() as name:
        yield FailingQueue(deployment, mysql_server, name, proxy)
        deployment.close()
