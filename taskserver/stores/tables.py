"""A queue's tables: how they are made, kept up to date, and checked before a run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress

from ..errors import AlreadyThere, TablesMissing, TablesOutdated
from ..messages.printable import shown
from ..messages.programs import CLIENT
from .database import Database
from .dialect import Dialect

SCHEMA_VERSION = 8

UPGRADES: dict[int, tuple[str, ...]] = {
    1: ("ALTER TABLE {workers} ADD COLUMN previous_started_at {instant_type} NULL DEFAULT NULL",),
    2: (
        "ALTER TABLE {table} ADD COLUMN version {number_type} NULL DEFAULT NULL",
        "ALTER TABLE {done} ADD COLUMN version {number_type} NULL DEFAULT NULL",
    ),
    3: tuple(
        f"ALTER TABLE {table} ADD COLUMN {column}"
        for table in ("{table}", "{done}")
        for column in (
            "stages {text_type} NULL DEFAULT NULL",
            "stage {small_type} NOT NULL DEFAULT 0",
            "awaited {flag_type} NOT NULL DEFAULT 0",
        )
    ),
    4: tuple(
        f"ALTER TABLE {table} ADD COLUMN {column}"
        for table in ("{table}", "{done}")
        for column in ("result {long_text_type} NULL DEFAULT NULL", "progress {text_type} NULL DEFAULT NULL")
    ),
}
"""From version n to n + 1: the changes to existing tables, one a statement; the schema file makes the newest tables.
An upgrade passes over a change that an earlier one, cut off, has made."""


class Tables:
    """The tables of one queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    VERSION = "SELECT MAX(version) FROM {schema}"
    TABLES_ARE_OURS = "SELECT {columns} FROM {table} WHERE id = 0"
    TABLES_WERE_OURS = "SELECT {first_columns} FROM {table} WHERE id = 0"
    SET_VERSION = "{insert_or_ignore} INTO {schema} (version) VALUES (?) {or_ignore}"

    def create(self) -> None:
        """Make the tables, or bring older ones up to date; safe to repeat. Raises DatabaseError."""
        database = self._database
        database.dialect.make_place(database)
        with database.unhurried():
            version = self._version_of_what_stands()
            for statement in schema_statements(database.dialect):
                with suppress(AlreadyThere):  # another made it since the server looked whether it is there
                    database.change(statement)
            for step in range(version, SCHEMA_VERSION):
                self._upgrade_from(step)
            self.check()
            database.fetch(self.TABLES_ARE_OURS)

    def _version_of_what_stands(self) -> int:
        """The version of the tables; the newest one where there are no tables yet.

        0 where the tables' version is lost, as after a backup that was restored in part.
        """
        try:
            return self._version() or 0
        except TablesMissing:
            try:
                self._database.fetch(self.TABLES_WERE_OURS)
            except TablesMissing:
                return SCHEMA_VERSION
            return 0

    def _version(self) -> int | None:
        """The version that the tables record; None where they record none."""
        version = self._database.fetch_value(self.VERSION)
        if version is None or isinstance(version, int):
            return version
        raise self._database.dialect.error(TypeError(f"the version of its tables is {shown(version)}"))

    def _upgrade_from(self, version: int) -> None:
        for statement in (*UPGRADES.get(version, ()), *self._database.dialect.upgrades.get(version, ())):
            with suppress(AlreadyThere):
                self._database.change(statement)
        self._database.change(self.SET_VERSION, (version + 1,))

    def check(self) -> None:
        """Raises TablesMissing or TablesOutdated unless the tables are of this program's version."""
        version, table = self._version(), self._database.dialect.table
        if version is None or version < SCHEMA_VERSION:
            raise TablesOutdated(
                f"the tables of {table} have version {version or 0}, this program needs {SCHEMA_VERSION}: "
                f"run {CLIENT} init"
            )
        if version > SCHEMA_VERSION:
            raise TablesOutdated(
                f"the tables of {table} have version {version}, this program knows {SCHEMA_VERSION}: "
                f"upload the newer taskserver here too, or, where there is none, delete that row of {table}_schema"
            )


def schema_statements(dialect: Dialect) -> Iterator[str]:
    """The statements that make the newest tables, under the queue's name."""
    text = dialect.schema_file.read_text(encoding="utf-8")
    lines = (line.partition("-- ")[0].rstrip() for line in text.splitlines() if not line.startswith("--"))
    # Lines of one statement are indented, but for its first: so are those of a function, which have semicolons, too.
    for statement in re.split(r";\n+(?=\S)", _named("\n".join(lines), dialect)):
        if statement.strip():
            yield statement.strip().removesuffix(";")


def _named(text: str, dialect: Dialect) -> str:
    # In quotes: `order` is an allowed table name, too.
    return re.sub(r"jobs_queue(\w*)", lambda found: dialect.words.quoted.format(dialect.table + found[1]), text)
