"""Fixtures of tests whose tasks run in the test's own process, as test modules give them by CODE.

make_site   makes a Site (or what the test's file calls SITE) for a DSN and settings
site        one in mode delete, on the database of this run
mysql_site and sqlite_site on one kind
any_site    the same in each mode
server      one with tables, whose folder holds no tasks
rows        of its tables
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskserver import TaskServer
from tests.support.postgresql import PostgreSQLServer
from tests.support.rows import MODES, Rows
from tests.support.servers import MySQLServer
from tests.support.sites import Site, empty_tables, kept_database


@pytest.fixture(scope="module")
def kept_mysql_dsn(mysql_server: MySQLServer) -> Iterator[str]:
    with kept_database(mysql_server) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def kept_postgresql_dsn(postgresql_server: PostgreSQLServer) -> Iterator[str]:
    with kept_database(postgresql_server) as dsn:
        yield dsn


@pytest.fixture
def emptied_mysql_dsn(kept_mysql_dsn: str) -> str:
    return empty_tables(kept_mysql_dsn)


@pytest.fixture
def emptied_postgresql_dsn(kept_postgresql_dsn: str) -> str:
    return empty_tables(kept_postgresql_dsn)


DSNS = {"sqlite": "sqlite_dsn", "mysql": "emptied_mysql_dsn", "postgresql": "emptied_postgresql_dsn"}
"""The fixture of each kind."""


@pytest.fixture
def site_dsn(database: str, request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(DSNS[database]))


@pytest.fixture
def make_site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    sites: list[Site] = []

    def make(dsn: str, **settings: Any) -> Site:
        sites.append(getattr(request.module, "SITE", Site)(dsn, tmp_path, request.module.CODE, settings))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(make_site: Callable[..., Any], site_dsn: str) -> Any:
    return make_site(site_dsn)


@pytest.fixture(params=MODES)
def any_site(make_site: Callable[..., Any], site_dsn: str, request: pytest.FixtureRequest) -> Any:
    return make_site(site_dsn, mode=request.param)


@pytest.fixture
def mysql_site(make_site: Callable[..., Any], emptied_mysql_dsn: str) -> Any:
    return make_site(emptied_mysql_dsn)


@pytest.fixture
def sqlite_site(make_site: Callable[..., Any], sqlite_dsn: str) -> Any:
    return make_site(sqlite_dsn)


@pytest.fixture
def server(dsn: str, tmp_path: Path) -> Iterator[TaskServer]:
    with TaskServer(dsn, folder=tmp_path) as opened:
        opened.create_tables()
        yield opened


@pytest.fixture
def rows(server: TaskServer, dsn: str) -> Iterator[Rows]:
    with closing(Rows(dsn)) as seen:
        yield seen
