"""The fixtures of tests/worker, until all tests of this folder have moved there."""

from __future__ import annotations

from tests.worker.conftest import (
    any_site,
    emptied_mysql_dsn,
    emptied_postgresql_dsn,
    kept_mysql_dsn,
    kept_postgresql_dsn,
    make_site,
    mysql_site,
    rows,
    server,
    server_site,
    server_site_dsn,
    site,
    site_dsn,
    sqlite_site,
)

__all__ = [
    "any_site",
    "emptied_mysql_dsn",
    "emptied_postgresql_dsn",
    "kept_mysql_dsn",
    "kept_postgresql_dsn",
    "make_site",
    "mysql_site",
    "rows",
    "server",
    "server_site",
    "server_site_dsn",
    "site",
    "site_dsn",
    "sqlite_site",
]
