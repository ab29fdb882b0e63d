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
from tests.support.rows import MODES, Rows
from tests.support.sites import Site


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
def site(make_site: Callable[..., Any], queue_dsn: str) -> Any:
    return make_site(queue_dsn)


@pytest.fixture(params=MODES)
def any_site(make_site: Callable[..., Any], queue_dsn: str, request: pytest.FixtureRequest) -> Any:
    return make_site(queue_dsn, mode=request.param)


@pytest.fixture
def mysql_site(make_site: Callable[..., Any], mysql_queue_dsn: str) -> Any:
    return make_site(mysql_queue_dsn)


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
