"""SQLite, on the standard library's driver: the embedded default, for several processes.

Differs from MySQL: only one transaction can write at a time, so no statement locks rows.
"""

from __future__ import annotations

import gc
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import Conflict, DatabaseError
from ...host.files import make_private_folder
from ..database import Database
from ..dialect import Dialect, Pace, Rows, assignments
from .claiming import SQLiteClaiming
from .errors import DRIVER_ERRORS, error_of
from .session import Connection, SQLiteSession, open_connection

if TYPE_CHECKING:
    from ..facts import Facts
    from ..retrying import Hosts

OLDEST_SQLITE = (3, 24, 0)
_FILE_RIGHTS = 0o600

WORDS = {
    "now": "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'",
    "after": "strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds') || '000'",
    "age": "(julianday('now') - julianday({})) * 86400.0",
    "text": "{}",
    "this_hour": "strftime('%Y-%m-%d %H:00:00', 'now')",
    "bytes_of": "length(CAST({} AS BLOB))",
    "as_bytes": "{}",
    "position": "INSTR({}, ?)",
    "for_update": "",
    "greatest": "MAX",
    "insert_or_ignore": "INSERT OR IGNORE",
    "keep_standing": "ON CONFLICT (unique_key) DO UPDATE SET unique_key = unique_key",
    "given": "excluded.{}",
    "quoted": '"{}"',
    "by_key": "",
    "by_status": 'INDEXED BY "{}_claim_by_group"',
    "by_due": 'INDEXED BY "{}_wake_due"',
    "by_order": 'INDEXED BY "{}_claim_any_group"',  # of all new tasks
    # Differs from MySQL: DISTINCT would read every entry of an index, so each group is searched after the last one.
    "groups_of_status": """
        WITH RECURSIVE found (group_id) AS (
            SELECT MIN(group_id) FROM {0} {1} WHERE status = {2}
            UNION ALL
            SELECT (SELECT MIN(group_id) FROM {0} {1} WHERE status = {2} AND group_id > found.group_id)
            FROM found WHERE found.group_id IS NOT NULL
        )
        SELECT {2}, group_id FROM found WHERE group_id IS NOT NULL LIMIT ?
    """,
    "delete_by_key": "DELETE FROM {}",
}
"""The words of SQLite from 3.24 on."""


class SQLiteDialect(Dialect):
    """A queue in an SQLite file."""

    driver_errors = DRIVER_ERRORS
    own_words = WORDS
    kind = "sqlite"
    has_one_writer = True
    joins_statements = skips_locked = False
    for_update = ""

    def __init__(self, path: Path, table: str, synchronous: str = "full") -> None:
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise DatabaseError(f"SQLite {sqlite3.sqlite_version} is too old: 3.24 or newer is needed")
        super().__init__(table)
        self._path = path
        self._synchronous = synchronous
        self.claiming = SQLiteClaiming()

    def error(self, error: BaseException, where: str = "") -> DatabaseError:
        found = error_of(error, where or self._path, self.table)
        if isinstance(found, Conflict):  # after seconds of waiting
            # A connection that a failed task left open may hold the lock. It is part of a reference cycle with its
            # cache of statements, so only a collection closes it.
            gc.collect()
        return found

    def make_place(self, database: Database) -> None:
        """Make the file. Raises DatabaseError."""
        path = self._path
        try:
            make_private_folder(path.parent)
            # Do not open an existing file: closing it would drop this process's locks on it.
            with suppress(FileExistsError):
                os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, _FILE_RIGHTS))
        except OSError as error:
            raise DatabaseError(
                f"{path} cannot be made: {error.strerror}: let this user write {path.parent}, or name another file in "
                "TASKSERVER_DSN"
            ) from error
        # The file keeps this mode, in which readers and the writer do not wait for each other.
        journal = database.fetch_value("PRAGMA journal_mode = WAL")
        if journal != "wal":
            raise DatabaseError(
                f"{path} lies where SQLite cannot share a file (WAL), as in a network folder: name another one, or a "
                "MySQL database, in TASKSERVER_DSN"
            )

    def rebuild_tables(self, database: Database, statements: Iterable[str]) -> None:
        from .rebuilding import rebuild_tables

        rebuild_tables(database, statements)

    def new_session(self, hosts: Hosts | None = None) -> SQLiteSession:
        return SQLiteSession(self._path, self._synchronous, self.error)

    @staticmethod
    def upsert(changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        where = f" WHERE {condition}" if condition else ""
        return f"ON CONFLICT ({key}) DO UPDATE SET {assignments(changes)}{where}"

    # ---- add

    rows_per_statement = 200  # old SQLite binds at most 999 values

    def key(self, key: str) -> str:
        return key  # every connection uses UTF-8, and there is no function for hexadecimal

    def insert(self, place: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        # There is one writer, so the rows of an INSERT get consecutive ids.
        last = place.execute(sql, values).lastrowid or 0
        return range(last - count + 1, last + 1)

    # ---- a caller's own connection

    @property
    def callers_place(self) -> str:
        hint = "; in a test, open a task_queue (docs/testing.md)" if is_private_file(self._path) else ""
        return f"{self._path}{hint}"

    def callers_cursor(self, connection: Any) -> Any:
        return sqlite3.Cursor(connection) if isinstance(connection, sqlite3.Connection) else connection.cursor()

    def has_open(self, rows: Rows) -> bool:
        return any(file and os.path.samefile(file, self._path) for _, _, file in rows.rows("PRAGMA database_list"))

    def keeps_transaction(self, cursor: Any) -> bool:
        # A savepoint would begin a transaction. The driver begins one before a write, unless the caller disabled that.
        connection = cursor.connection
        begins = getattr(connection, "isolation_level", "") is not None and getattr(connection, "autocommit", 0) != 1
        return begins or connection.in_transaction

    # ---- a task's own transaction

    begin_task = "BEGIN IMMEDIATE"

    def open_task_connection(self, pace: Pace) -> Connection:
        return open_connection(self._path, self._synchronous, self.error)

    def close_task_connection(self, connection: Connection) -> None:
        with suppress(*DRIVER_ERRORS):  # cursors in a failed task's traceback would keep the lock
            connection.rollback()
        super().close_task_connection(connection)

    # ---- other

    def facts(self) -> Facts:
        from .facts import FACTS

        return FACTS


# ---- a database in memory: a file of this process, in memory if the host allows it

PREFIX, NAME = "taskserver-", "memory.db"


def make_private_file() -> Path:
    """A path for a new file, in a folder of its own. Raises DatabaseError."""
    from ...host.files import make_folder_in_memory

    try:
        return make_folder_in_memory(PREFIX) / NAME
    except OSError as error:
        raise DatabaseError(f"no file can be made for :memory: ({error}): name a file in TASKSERVER_DSN") from None


def is_private_file(path: Path) -> bool:
    """Whether a path looks like one of `make_private_file`."""
    return path.name == NAME and path.parent.name.startswith(PREFIX)


def remove_with(owner: object, path: Path) -> None:
    """Remove the file and its folder when the owner is collected or this process ends."""
    import shutil
    import weakref

    def remove(maker: int = os.getpid()) -> None:
        if os.getpid() == maker:  # a forked child uses its parent's file
            shutil.rmtree(path.parent, ignore_errors=True)

    weakref.finalize(owner, remove)
