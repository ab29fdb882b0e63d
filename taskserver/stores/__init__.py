"""The queue in a database: one Store for each kind of database. Drivers are imported when one is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..dsn import MEMORY, SQLiteDsn
from ..errors import DatabaseError
from ..settings import Settings, how_to_install
from .store import Store

if TYPE_CHECKING:
    from .callers import CallersAdding

__all__ = ["Store", "open_callers_adding", "open_store"]


def open_store(settings: Settings) -> Store:
    """The store that the settings name; it connects when first used."""
    dsn = settings.dsn
    if isinstance(dsn, SQLiteDsn):
        from .sqlite import SQLiteStore

        return SQLiteStore(_path(settings, dsn), *_rest(settings))
    try:
        from .mysql import MySQLStore
    except ImportError as error:
        raise DatabaseError(f"PyMySQL is missing ({error}): {how_to_install(settings.folder)}") from None
    return MySQLStore(dsn, *_rest(settings))


def open_callers_adding(settings: Settings) -> CallersAdding:
    """What adds to the same queue on connections of others; where a store is open, so that its driver is there."""
    dsn = settings.dsn
    if isinstance(dsn, SQLiteDsn):
        from .sqlite_callers import SQLiteCallers

        return SQLiteCallers(_path(settings, dsn), *_rest(settings))
    from .mysql_callers import MySQLCallers

    return MySQLCallers(dsn, *_rest(settings))


def _path(settings: Settings, dsn: SQLiteDsn) -> str | Path:
    return dsn.path if dsn.path == MEMORY else Path(settings.folder, dsn.path)


def _rest(settings: Settings) -> tuple[str, str, int, int]:
    return settings.table, settings.mode, settings.lease_seconds, settings.patience_seconds
