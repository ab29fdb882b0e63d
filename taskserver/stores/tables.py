"""The version of a queue's tables, which each run checks. `upgrading.py` creates and upgrades tables."""

from __future__ import annotations

from ..errors import TablesOutdated
from ..messages.programs import CLIENT
from ..messages.text import shown
from .database import Database
from .words import SCHEMA_VERSION


class Tables:
    """The tables of one queue. Raises DatabaseError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    VERSION = "SELECT MAX(version) FROM {schema}"

    def create(self) -> None:
        """Create the tables, or upgrade older ones; safe to repeat."""
        from .upgrading import create  # a run does not need it

        create(self._database, self.version)
        self.check()

    def version(self) -> int | None:
        """The recorded version; None if there is none."""
        version = self._database.fetch_value(self.VERSION)
        if version is None or isinstance(version, int):
            return version
        raise self._database.dialect.error(TypeError(f"the version of its tables is {shown(version)}"))

    def check(self) -> None:
        """Raises TablesMissing or TablesOutdated unless the tables have this program's version."""
        version, table = self.version(), self._database.dialect.table
        if version is None or version < SCHEMA_VERSION:
            raise TablesOutdated(
                f"the tables of {table} have version {version or 0}, this program needs {SCHEMA_VERSION}: "
                f"run {CLIENT} init"
            )
        if version > SCHEMA_VERSION:
            raise TablesOutdated(
                f"the tables of {table} have version {version}, this program knows {SCHEMA_VERSION}: "
                f"upload the newer taskserver here too; if you have none, delete the row of version {version} from "
                f"{table}_schema"
            )
