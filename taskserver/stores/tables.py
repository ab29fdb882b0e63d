"""A queue's tables: their names, the words in which dialects differ, how they are made and kept up to date.

Between the connections of database.py and the verbs of store.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, cast

from ..errors import AlreadyThere, DatabaseError, TablesMissing, TablesOutdated
from ..lifecycle import CANCELLED
from .database import Database

SCHEMA_VERSION = 5

QUEUE_COLUMNS = (
    "id, task, args, group_id, priority, status, attempts, max_attempts, due_at, claim, unique_key, error_text, "
    "created_at, started_at, finished_at, updated_at, version, stages, stage, awaited, "
    "result, progress"
)
INSTANTS = ("due_at", "created_at", "started_at", "finished_at", "updated_at", "ended_at", "previous_started_at")

ALL_GROUPS = "all"
"""How the record of runs names a worker without GROUP_IDS."""

INLINE_ARGS_BYTES = 16 * 1024
"""Longer arguments stay in the database until their task's turn: a thousand times 1 MiB fits into no small host."""


class Tables(Database):
    """The tables of one queue in a database."""

    # The words in which dialects differ.
    now: str
    after: str
    """The instant that lies a bound number of seconds after now."""
    seconds_since: str
    """The age in seconds of the instant `{}`."""
    instant_text: str
    """The instant `{}` as YYYY-MM-DD HH:MM:SS.ffffff."""
    bytes_of: str
    """The length of the text `{}` in bytes."""
    this_hour: str
    """When the hour began, as YYYY-MM-DD HH:00:00 in UTC."""
    greatest: str
    """The function that gives the greatest of its arguments."""
    insert_or_ignore: str
    quoted: str
    """A table's name `{}` in the dialect's quotes."""
    by_key: str
    """The hint that an UPDATE shall reach its rows by the primary key."""
    by_status: str
    """The hint that a SELECT from the queue shall read by an index that begins with status and group_id."""
    delete_by_key: str
    """A DELETE from the table `{}` that shall reach its rows by the primary key, without its WHERE."""
    about_space: str
    """What becomes of the space of rows that were deleted from the tables `{}`, for a person."""
    schema_file: str
    upgrades: ClassVar[dict[int, tuple[str, ...]]] = {
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
    """From version n to n + 1: what has to be done to tables that stand, one change a statement; the schema file makes
    the newest ones. A change that was made already, by an upgrade that was cut off, is passed over."""
    instant_type: str
    number_type: str
    """Of a whole number from 0 to 2^63 - 1."""
    small_type: str
    """Of one from 0 to 65,535."""
    flag_type: str
    """Of 0 or 1."""
    text_type: str
    """Of a text of at most 65,535 bytes."""
    long_text_type: str
    """Of a longer one."""

    def __init__(self, table: str, mode: str, lease_seconds: int, patience_seconds: float) -> None:
        super().__init__(patience_seconds)
        self.table = table
        self.mode = mode
        self._lease_seconds = lease_seconds
        self._words = self._make_words(table, self.quoted)

    # ---- tables

    VERSION = "SELECT MAX(version) FROM {schema}"
    TABLES_ARE_OURS = "SELECT {columns} FROM {table} WHERE id = 0"
    TABLES_WERE_OURS = "SELECT {first_columns} FROM {table} WHERE id = 0"
    SET_VERSION = "{insert_or_ignore} INTO {schema} (version) VALUES (?)"

    def create_tables(self) -> None:
        """Make the tables, or bring older ones up to date; safe to repeat."""
        with self._unhurried():
            self._create_tables()

    def _create_tables(self) -> None:
        version = self._version_of_what_stands()
        for statement in self.schema_statements():
            self._alone(self._execute, statement)
        for step in range(version, SCHEMA_VERSION):
            self._upgrade_from(step)
        self.check_tables()
        self._alone(self._one, self.TABLES_ARE_OURS)

    def _version_of_what_stands(self) -> int:
        """The newest where nothing stands yet; 0 for tables whose version is lost, as of a backup restored in part."""
        try:
            return self._version() or 0
        except TablesMissing:
            try:
                self._alone(self._one, self.TABLES_WERE_OURS)
            except TablesMissing:
                return SCHEMA_VERSION
            return 0

    def _version(self) -> int | None:
        """The version that the tables record; None where they record none."""
        return cast("int | None", self._alone(self._one, self.VERSION)[0])

    def _upgrade_from(self, version: int) -> None:
        for statement in self.upgrades.get(version, ()):
            with suppress(AlreadyThere):
                self._alone(self._execute, statement)
        self._alone(self._execute, self.SET_VERSION, (version + 1,))

    def check_tables(self) -> None:
        """Raises TablesMissing or TablesOutdated unless the tables are of this program's version."""
        version = self._version()
        if version is None or version < SCHEMA_VERSION:
            raise TablesOutdated(
                f"the tables of {self.table} have version {version or 0}, this program needs {SCHEMA_VERSION}: "
                "run client.py init"
            )
        if version > SCHEMA_VERSION:
            raise TablesOutdated(
                f"the tables of {self.table} have version {version}, this program knows {SCHEMA_VERSION}: "
                f"upload the newer taskserver here too, or, where there is none, delete that row of {self.table}_schema"
            )

    # ---- words

    def full_words(self) -> dict[str, str]:
        """Those whose tables mean the same in whatever database of the server a session is."""
        return self._words

    def _make_words(self, table: str, quoted: str) -> dict[str, str]:
        words = {
            "table": quoted.format(table),
            "done": quoted.format(f"{table}_done"),
            "workers": quoted.format(f"{table}_workers"),
            "paused": quoted.format(f"{table}_paused"),
            "schedules": quoted.format(f"{table}_schedules"),
            "stats": quoted.format(f"{table}_stats"),
            "dependencies": quoted.format(f"{table}_dependencies"),
            "schema": quoted.format(f"{table}_schema"),
            "now": self.now,
            "now_text": self.instant_text.format(self.now),
            "next_at_text": self.instant_text.format("next_at"),
            "after": self.after,
            "columns": QUEUE_COLUMNS,
            "first_columns": QUEUE_COLUMNS.partition(", version")[0],
            "archived_columns": QUEUE_COLUMNS.replace("claim", "NULL").replace("status", "2"),
            "args_bytes": self.bytes_of.format("args"),
            "this_hour": self.this_hour,
            "greatest": self.greatest,
            "hour_text": self.instant_text.format("hour"),
            "inline_bytes": str(INLINE_ARGS_BYTES),
            "cancelled": f"'{CANCELLED}'",
            # Dependencies have no id: it is that of the row.
            "is_linked": "(awaited <> 0 OR EXISTS (SELECT 1 FROM {dependencies} WHERE child_id = id))".format(
                dependencies=quoted.format(f"{table}_dependencies")
            ),
            "is_cancelled": f"CASE WHEN error_text = '{CANCELLED}' THEN 1 ELSE 0 END",
            "insert_or_ignore": self.insert_or_ignore,
            "by_key": self.by_key,
            "by_status": self.by_status.format(table),
            "delete_task": self.delete_by_key.format(quoted.format(table)),
            "delete_archived": self.delete_by_key.format(quoted.format(f"{table}_done")),
            "instant_type": self.instant_type,
            "number_type": self.number_type,
            "small_type": self.small_type,
            "flag_type": self.flag_type,
            "text_type": self.text_type,
            "long_text_type": self.long_text_type,
        }
        for column in INSTANTS:
            words[f"{column}_text"] = self.instant_text.format(column)
            words[f"{column}_age"] = self.seconds_since.format(column)
        readable = (words.get(f"{column}_text", column) for column in QUEUE_COLUMNS.split(", "))
        return words | {"readable": ", ".join(readable)}

    def _named(self, text: str) -> str:
        # In quotes: `order` is an allowed name, too.
        return re.sub(r"jobs_queue(\w*)", lambda found: self.quoted.format(self.table + found[1]), text)

    def schema_statements(self) -> Iterator[str]:
        """What makes the newest tables."""
        text = Path(__file__).with_name(self.schema_file).read_text(encoding="utf-8")
        lines = (line.partition("-- ")[0].rstrip() for line in text.splitlines() if not line.startswith("--"))
        for statement in self._named("\n".join(lines)).split(";"):
            if statement.strip():
                yield statement.strip()

    def _other_columns(self, place: object, text: str) -> DatabaseError:
        """A column that a statement of ours names is not there."""
        return DatabaseError(
            f"{place}: table {self.table} was not made by taskserver, or by another version of it ({text}): run "
            "client.py init, or choose another TASKSERVER_TABLE"
        )

    def _missing(self, what: str) -> TablesMissing:
        return TablesMissing(f"{what}: run client.py init")
