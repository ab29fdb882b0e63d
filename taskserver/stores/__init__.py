"""The queue in a database: one Store for each kind of database. Drivers are imported when one is opened."""

from __future__ import annotations

from pathlib import Path

from ..dsn import MEMORY, SQLiteDsn
from ..errors import DatabaseError
from ..settings import Settings, how_to_install
from .store import Store

__all__ = ["Store", "open_store"]


def open_store(settings: Settings) -> Store:
    """The store that the settings name; it connects when first used."""
    dsn = settings.dsn
    rest = (settings.table, settings.mode, settings.lease_seconds, settings.patience_seconds)
    if isinstance(dsn, SQLiteDsn):
        from .sqlite import SQLiteStore

        return SQLiteStore(dsn.path if dsn.path == MEMORY else Path(settings.folder, dsn.path), *rest)
    try:
        from .mysql import MySQLStore
    except ImportError as error:
        raise DatabaseError(f"PyMySQL is missing ({error}): {how_to_install(settings.folder)}") from None
    return MySQLStore(dsn, *rest)
