"""The store for SQLite, on the standard library's driver: the embedded default, for several processes at once.

Differs from MySQL: one writer at a time, so a claim needs neither row locks nor SKIP LOCKED, and every
transaction takes the write lock when it begins (a reader that turns writer later could not wait for it).
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..dsn import MEMORY
from ..errors import AlreadyThere, Conflict, DatabaseError, Unavailable
from ..lifecycle import NewTask
from ..private_folder import make_private_folder
from .adding import PLAIN_VALUES, portions
from .database import Session, marks
from .store import Store
from .tries import Way

if TYPE_CHECKING:
    from .facts import SQLiteFacts
    from .sqlite_task_session import TaskConnection
    from .task_session import TaskSession

OLDEST = (3, 24, 0)
LOCK_WAIT_SECONDS = 2.0
"""One turn of waiting for the writer; between turns a signal is heard and the patience ends."""
_FILE_RIGHTS = 0o600
GATHERED_VALUES = len(NewTask._fields)

HINTS = {
    "readonly database": "let this user write the file and its folder",
    "unable to open database file": "let this user read and write the file and its folder",
    "not a database": "name another file in TASKSERVER_DSN",
    "malformed": "it is damaged: stop the workers, put back a copy, or move it away and run client.py init",
    "no such index": "run client.py init",
}


class _Connection(sqlite3.Connection):
    """The driver's, made so that it can stand in a set that does not keep it alive."""

    in_use = threading.RLock()
    """That of its session, once it has one."""


C = TypeVar("C", "_Connection", "TaskConnection")

# The open connections of this process, and those that a fork left in it in the midst of a transaction.
_open: weakref.WeakSet[_Connection | TaskConnection] = weakref.WeakSet()
_unfinished: list[_Connection | TaskConnection] = []


def _close_inherited() -> None:
    """In a forked child: close what its parent had open.

    SQLite keeps one account of its locks for each file and process, and a fork copies the account without the
    locks: a connection that the child opens beside an inherited one believes itself locked, and a parent that
    closes last removes the log into which the child goes on writing. One in the midst of a transaction stays, as
    closing it would roll back what the parent still does; beside it the child can open no other.
    """
    for connection in list(_open):
        with suppress(sqlite3.ProgrammingError):  # it is closed, and something refers to it still
            _close_here(connection)
    _open.clear()


def _close_here(connection: _Connection | TaskConnection) -> None:
    # The heartbeat may be in the midst of a statement, and closing would wait for it for ever.
    if connection.in_transaction or not connection.in_use.acquire(blocking=False):
        _unfinished.append(connection)
    else:
        connection.close()


os.register_at_fork(after_in_child=_close_inherited)


class SQLiteStore(Store):
    """A queue in an SQLite file, or in memory for one process."""

    now = "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'"
    after = "strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds') || '000'"
    seconds_since = "(julianday('now') - julianday({})) * 86400.0"
    instant_text = "{}"
    bytes_of = "length(CAST({} AS BLOB))"
    this_hour = "strftime('%Y-%m-%d %H:00:00', 'now')"
    greatest = "MAX"
    insert_or_ignore = "INSERT OR IGNORE"
    given = "excluded.{}"
    quoted = '"{}"'
    by_key = ""
    by_status = 'INDEXED BY "{}_claim_by_group"'
    delete_by_key = "DELETE FROM {}"
    about_space = (
        "SQLite keeps the space in its file, for new rows; the statement VACUUM makes the file as small as it can be, "
        "if there is room for a copy, and nobody can write meanwhile"
    )
    schema_file = "sqlite.sql"
    instant_type = "TEXT"
    number_type = "INTEGER"
    small_type = "INTEGER"
    flag_type = "INTEGER"
    text_type = "TEXT"
    long_text_type = "TEXT"
    one_writer = True
    rows_a_statement = 200  # old ones bind 999 values a statement

    def __init__(self, path: str | Path, table: str, mode: str, lease_seconds: int, patience_seconds: float) -> None:
        super().__init__(table, mode, lease_seconds, patience_seconds)
        self._path = path
        self._memory = Session()
        self._sessions.add(self._memory)
        if sqlite3.sqlite_version_info < OLDEST:
            raise DatabaseError(f"SQLite {sqlite3.sqlite_version} is too old: 3.24 or newer is needed")

    # ---- add
    #
    # A transaction that writes keeps all others from writing, and an iterator of tasks may wait for anything: so what
    # it gives is gathered in a table of this connection alone, which is on the disk where it is large.

    FORGET = "DROP TABLE IF EXISTS temp.taskserver_gathered"
    GATHER = """
        CREATE TEMP TABLE taskserver_gathered
            (task, args, group_id, priority, max_attempts, delay_seconds, due_at, unique_key, rerun, version,
             stages, depends_on)
    """
    GATHER_ROWS = "INSERT INTO temp.taskserver_gathered VALUES "
    GATHERED = "SELECT * FROM temp.taskserver_gathered WHERE rowid > ? ORDER BY rowid LIMIT ?"

    def add_many(
        self,
        tasks: Iterable[NewTask],
        added: Callable[[Sequence[int]], object],
        begun: Callable[[], object] = lambda: None,
    ) -> None:
        if isinstance(tasks, Sequence):
            super().add_many(tasks, added, begun)
        else:
            self._do(Way(False, conflict_seconds=0, repeatable=False), self._gather_and_add, tasks, added)

    def _gather_and_add(self, tasks: Iterable[NewTask], added: Callable[[Sequence[int]], object]) -> None:
        session = self._session
        self._execute(self.FORGET)
        self._execute(self.GATHER)
        session.in_transaction = True  # as for an iterator that would add_tasks itself
        mark = f"({marks(GATHERED_VALUES)})"
        try:
            for portion in portions(tasks, self.rows_a_statement * PLAIN_VALUES // GATHERED_VALUES):
                rows = ", ".join([mark] * len(portion))
                self._execute(self.GATHER_ROWS + rows, [value for task in portion for value in task])
        finally:
            session.in_transaction = False
        way = Way(True, self._conflict_seconds, repeatable=False)
        for ids in self._do(way, lambda: list(self._insert_all(self._gathered()))):
            added(ids)
        self._execute(self.FORGET)

    def _gathered(self) -> Iterator[NewTask]:
        read = 0
        while rows := self._all(self.GATHERED, (read, self.rows_a_statement)):
            read += len(rows)
            yield from (NewTask(*row) for row in rows)

    def _changing(self, changes: dict[str, str], condition: str, key: str = "unique_key") -> str:
        assigned = ", ".join(f"{column} = {to}" for column, to in changes.items())
        return f"ON CONFLICT ({key}) DO UPDATE SET {assigned}{f' WHERE {condition}' if condition else ''}"

    # ---- tables

    def create_tables(self) -> None:
        if self._path != MEMORY:
            self._create_file()
        super().create_tables()

    def _create_file(self) -> None:
        path = Path(self._path)
        try:
            make_private_folder(path.parent)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, _FILE_RIGHTS))
        except OSError as error:
            raise DatabaseError(
                f"{path} cannot be made: {error.strerror}: let this user write {path.parent}, or name another file in "
                "TASKSERVER_DSN"
            ) from error
        # Kept in the file: readers then never wait for the writer, nor it for them.
        journal = self._alone(self._one, "PRAGMA journal_mode = WAL")[0]
        if journal != "wal":
            raise DatabaseError(
                f"{path} lies where SQLite cannot share a file (WAL), as in a network folder: name another one, or a "
                "MySQL database, in TASKSERVER_DSN"
            )

    # ---- claim

    CLAIM = """
        UPDATE {table}
        SET status = CASE WHEN due_at > {now} THEN 5 ELSE 1 END,
            claim = CASE WHEN due_at > {now} THEN NULL ELSE ? END,
            due_at = CASE WHEN due_at > {now} THEN due_at ELSE {after} END,
            started_at = NULL
        WHERE id IN (SELECT id FROM ({picked}) ORDER BY priority, id LIMIT ?3)
    """
    PICK_OF_GROUP = """
        SELECT * FROM (SELECT id, priority FROM {table} INDEXED BY {claim_by_group}
                       WHERE status = 0 AND group_id = {group}
                           AND (SELECT COUNT(*) FROM {paused} WHERE group_id = {group}) = 0
                       ORDER BY priority, id LIMIT ?3)
    """
    PICK_OF_ALL = """
        SELECT id, priority FROM {table} INDEXED BY {claim_any_group}
        WHERE status = 0 AND (SELECT COUNT(*) FROM {paused}) = 0 ORDER BY priority, id LIMIT ?3
    """
    LOOK_OF_GROUP = (
        "SELECT EXISTS (SELECT 1 FROM {table} INDEXED BY {claim_by_group} WHERE status = 0 AND group_id = ?)"
    )
    # From group to group, as DISTINCT would read every new row.
    GROUPS_WITH_NEW = """
        WITH RECURSIVE found (group_id) AS (
            SELECT (SELECT MIN(group_id) FROM {table} INDEXED BY {claim_by_group} WHERE status = 0)
            UNION ALL
            SELECT (SELECT MIN(group_id) FROM {table} INDEXED BY {claim_by_group}
                    WHERE status = 0 AND group_id > found.group_id)
            FROM found WHERE found.group_id IS NOT NULL
        )
        SELECT group_id FROM found WHERE group_id IS NOT NULL
    """
    LOOK_OF_ALL = "SELECT EXISTS (SELECT 1 FROM {table} INDEXED BY {claim_any_group} WHERE status = 0)"

    def _claim(self, token: int, limit: int, groups: Sequence[int]) -> int:
        sql = self.CLAIM.replace("{picked}", self._picked(groups))
        return self._write(sql, (token, self._lease_seconds, limit, *groups))

    def _picked(self, groups: Sequence[int]) -> str:
        """Each group gives its first rows in order, straight from the index; those few are put in order together.

        Marks are numbered, as old ones bind 999 values a statement: the limit is the third, the groups follow it.
        """
        of_groups = [self.PICK_OF_GROUP.replace("{group}", f"?{4 + index}") for index in range(len(groups))]
        return " UNION ALL ".join(of_groups) or self.PICK_OF_ALL

    def _has_new(self, groups: Sequence[int]) -> bool:
        if not groups:
            return bool(self._alone(self._one, self.LOOK_OF_ALL)[0])
        return any(self._alone(self._all, self.LOOK_OF_GROUP, (group,))[0][0] for group in groups)

    def _groups_with_new(self) -> Sequence[int]:
        return [row[0] for row in self._alone(self._all, self.GROUPS_WITH_NEW)]

    def _make_words(self, table: str, quoted: str) -> dict[str, str]:
        indexes = {name: quoted.format(f"{table}_{name}") for name in ("claim_by_group", "claim_any_group")}
        return super()._make_words(table, quoted) | indexes

    # ---- for client.py doctor

    def facts(self) -> SQLiteFacts:
        from .sqlite_facts import read_facts

        return read_facts(self, os.path.getsize(self._path) if self._path != MEMORY else 0)

    def explain_claim(self, groups: Sequence[int]) -> Sequence[str]:
        plan = self.look(f"EXPLAIN QUERY PLAN {self._picked(groups)}", (0, 0, 1, *groups))
        # As: SEARCH jobs_queue USING INDEX jobs_queue_claim_by_group (status=? AND group_id=?)
        used = (re.search(rf"INDEX {self.table}_(\w+)", str(row[-1])) for row in plan)
        return [found[1] for found in used if found]

    # ---- connections

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection
        if self._path == MEMORY:
            from .sqlite_task_session import TaskConnection

            connection = self._opened(TaskConnection)
        else:
            connection = self._opened(_Connection)
        connection.text_factory = _text
        return connection

    def open_task_session(self) -> TaskSession:
        from .sqlite_task_session import MemoryTaskSession, SQLiteTaskSession

        if self._path == MEMORY:
            return MemoryTaskSession(MEMORY, self._memory)
        return SQLiteTaskSession(os.path.realpath(self._path), self._opened)

    def _opened(self, kind: type[C]) -> C:
        if self._path != MEMORY and not os.path.exists(self._path):
            raise self._missing(f"there is no database {self._path}")
        if _unfinished:
            raise DatabaseError(
                f"{self._path}: this process was forked while another thread wrote to SQLite; fork before that"
            )
        try:
            connection = sqlite3.connect(
                self._path,
                timeout=LOCK_WAIT_SECONDS,
                isolation_level=None,  # transactions are begun and committed in words of ours
                check_same_thread=False,  # close() closes those of all threads
                factory=kind,
                # What was prepared once, SQLite would not ask a task's connection about again.
                cached_statements=128 if kind is _Connection else 0,
            )
            _open.add(connection)
            # A commit is on the disk when it returns, as on MySQL.
            connection.execute("PRAGMA synchronous = FULL")
        except Exception as error:
            if not self._is_driver_error(error):
                raise
            raise self._error(error) from error
        return connection

    def session(self) -> Session:
        if self._path != MEMORY:
            return super().session()
        # All threads share the one connection: another would be another database.
        self._local.session = self._memory
        if self._memory.pid != os.getpid():
            raise DatabaseError("a database in memory belongs to the process that made it; a child needs one in a file")
        return self._memory

    def _make_ready(self, session: Session) -> None:
        is_new = session.connection is None
        super()._make_ready(session)
        session.connection.in_use = session.in_use
        if is_new and self._path == MEMORY:
            super().create_tables()

    def _drop(self) -> None:
        # A database in memory would go with its connection.
        if self._path == MEMORY:
            self._roll_back()
        else:
            super()._drop()

    def _is_alive(self, connection: sqlite3.Connection) -> bool:
        return True

    def _begin(self) -> None:
        self._execute("BEGIN IMMEDIATE")

    def _roll_back(self) -> None:
        connection = self._session.connection
        if connection is not None and connection.in_transaction:
            super()._roll_back()

    def _inserted_ids(self, cursor: sqlite3.Cursor, count: int) -> range:
        last = cursor.lastrowid or 0
        return range(last - count + 1, last + 1)

    # ---- errors

    def _is_lent_here(self) -> bool:
        from .sqlite_task_session import lent_in

        return lent_in.get(threading.get_ident()) == os.path.realpath(self._path)

    def _is_driver_error(self, error: BaseException) -> bool:
        # UnicodeDecodeError: SQLite's own message, quoting a damaged file.
        return isinstance(error, (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeDecodeError))

    def _error(self, error: Exception) -> DatabaseError:
        text = " ".join(str(error).split())
        if "is full" in text:
            return Unavailable(f"{self._path}: {text}: free some space, or have your host raise the quota")
        if "disk I/O error" in text:
            return Unavailable(f"{self._path}: {text}: is the disk full, or a quota used up?")
        if "no such table" in text:
            return self._missing(f"{self._path} has no tables of {self.table}")
        if "duplicate column name" in text:
            return AlreadyThere(f"{self._path}: {text}")
        if "no such column" in text or "has no column" in text:
            return self._other_columns(self._path, text)
        if "locked" in text or "busy" in text:
            if self._is_lent_here():
                return DatabaseError(
                    f"{self._path}: the task that does this holds the lock itself, by its own transaction: let it use "
                    "taskserver.connection(), as in add_task(…, connection=taskserver.connection())"
                )
            return Conflict(f"{self._path}: {text}, by other processes for longer than was waited")
        hint = next((hint for words, hint in HINTS.items() if words in text), None)
        return DatabaseError(f"{self._path}: {text}: {hint}" if hint else f"{self._path}: {text}")


def _text(value: bytes) -> str:
    # What is no UTF-8 must not end a worker here; whoever uses it finds the surrogates.
    return value.decode("utf-8", "surrogateescape")
