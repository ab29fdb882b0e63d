"""The queue in a database: one dialect for each kind of database. Drivers are imported when a store is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DatabaseError
from ..settings.dsn import MEMORY
from ..settings.load import Settings, how_to_install
from .database import Database
from .queue.store import Store

if TYPE_CHECKING:
    from .dialect import Dialect

PSYCOPG = "psycopg[binary]>=3.3,<4"

__all__ = ["Store", "open_store"]


def open_store(settings: Settings) -> Store:
    """The store that the settings name; it connects when first used. Raises DatabaseError without its driver.

    A database in memory is a file of this process, made here with its tables, and removed with the store.
    """
    if settings.dsn.kind != "sqlite" or settings.dsn.database != MEMORY:
        return _store(settings)
    from .sqlite.dialect import make_private_file, remove_with  # for tests, mostly

    path = make_private_file()
    store = _store(settings._replace(dsn=settings.dsn._replace(database=str(path))))
    remove_with(store.database.dialect, path)
    store.tables.create()
    return store


def _store(settings: Settings) -> Store:
    database = Database(_dialect(settings), settings.patience_seconds, settings.pauses.after_error)
    return Store(database, settings.mode, settings.lease_seconds)


def _dialect(settings: Settings) -> Dialect:
    dsn = settings.dsn
    if dsn.kind == "sqlite":
        from .sqlite.dialect import SQLiteDialect

        return SQLiteDialect(Path(settings.folder, dsn.database), settings.table, dsn.synchronous)
    if dsn.kind == "mysql":
        try:
            from .mysql.dialect import MySQLDialect
        except ImportError as error:
            raise _missing("PyMySQL 1.2", error, how_to_install(settings.folder, "pymysql")) from None
        return MySQLDialect(dsn, settings.table)
    try:
        from .postgresql.dialect import PostgreSQLDialect
    except ImportError as error:
        from ..messages.programs import install_command

        raise _missing("psycopg 3.3", error, install_command(PSYCOPG)) from None
    return PostgreSQLDialect(dsn, settings.table)


def _missing(driver: str, error: ImportError, fix: str) -> DatabaseError:
    why = " ".join(str(error).split())  # psycopg lists on several lines what it lacks
    if "pq wrapper" in why:
        return DatabaseError(f"psycopg finds no libpq ({why}): install Debian's libpq5, or its compiled form: {fix}")
    return DatabaseError(f"{driver} or newer is missing ({why}): {fix}")
