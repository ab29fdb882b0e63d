"""What a dialect supplies: the seam between the queue's verbs and MySQL, SQLite or another database.

A dialect is a folder beside `queue/`. In the order in which a task needs them, its files supply:

    dialect.py    a `Dialect`: WORDS for SQL that differs (words.py lists them), the tables' place, INSERTs and their
                  ids, a caller's own connection, the connection for a task's own transaction
    session.py    a `Session`: one thread's connection
    claiming.py   a `Claiming`: new → in progress
    errors.py     which of our errors a driver's error means
    facts.py      what `client.py doctor` checks
"""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import ColumnsMissing, Conflict, DatabaseError, TablesMissing
from ..messages.programs import CLIENT, WORKER
from .retrying import NO_HOSTS, Hosts, Patience
from .words import Statements, Write, with_ids

if TYPE_CHECKING:
    from ..model.task import Changed
    from .facts import Facts


# ---- connections of ours

CONNECT_SECONDS = 10
READ_SECONDS_IN_A_RUN = 10
"""A worker's statements are short: a server that is silent for longer is gone, even if TCP does not know yet."""
READ_SECONDS = 60
"""Producers wait longer: a timeout would leave them in doubt about their task."""


class Pace(threading.local):
    """How one thread uses the database."""

    session: Session | None = None
    patience: Patience | None = None
    """Only a run's thread and its heartbeat have patience."""
    has_no_timeout = False
    answer_seconds = float("inf")
    """Limits every wait for an answer."""

    @property
    def connect_seconds(self) -> float:
        return min(CONNECT_SECONDS, self.answer_seconds)

    @property
    def read_seconds(self) -> float | None:
        """How long to wait for an answer; None: for ever."""
        if self.has_no_timeout:
            return self.answer_seconds if isfinite(self.answer_seconds) else None
        return min(READ_SECONDS if self.patience is None else READ_SECONDS_IN_A_RUN, self.answer_seconds)


class Session(ABC):
    """One thread's connection, made on first use and again after it broke.

    Raises the driver's errors unless a docstring says otherwise; Database translates them.
    """

    driver_errors: ClassVar[tuple[type[BaseException], ...]]
    begin_sql = "BEGIN"
    commits_by_itself = True
    """Whether a statement outside a transaction is committed when it returns."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.cursor: Any = None
        self.pid = os.getpid()
        self.in_transaction = False
        self.in_use = threading.RLock()
        """Held during a verb, so that a process forked meanwhile does not touch the connection."""
        self.was_interrupted = False
        """Whether an interrupt ended the last verb: an answer or a transaction may be left on the connection."""
        self.generation = 0
        """The database's generation when it connected."""
        self.used_at = 0.0
        """By time.monotonic."""

    @abstractmethod
    def connect(self, pace: Pace) -> None:
        """Connect, and configure the connection. Raises DatabaseError."""

    def make_ready(self, pace: Pace) -> None:  # noqa: B027
        """Called before each verb, so it must be cheap: set the timeout of answers. Raises DatabaseError."""

    def is_alive(self) -> bool:
        """Check an idle connection."""
        return True

    @abstractmethod
    def send(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Send one composed statement; the cursor with its rows."""

    def send_joined(self, writes: Sequence[Write], are_apart: bool) -> list[int]:
        """Send composed writes as one transaction in one round trip; how many rows each matched.

        `are_apart`: each write touches other rows.
        """
        raise NotImplementedError

    def roll_back(self) -> None:
        self.send("ROLLBACK")

    def close(self) -> None:
        """Close the connection; swallow the driver's errors."""
        connection, self.connection, self.cursor = self.connection, None, None
        if connection is not None:
            with suppress(*self.driver_errors):
                connection.close()


# ---- add


class Rows(ABC):
    """A connection for writes: our database's or a caller's own. Raises DatabaseError."""

    max_keyed_rows: int
    """New rows with keys a statement."""

    def __init__(self, dialect: Dialect, statements: Statements) -> None:
        self.dialect = dialect
        self.upsert = dialect.upsert
        self.words, self.compose = statements.words, statements.compose

    @abstractmethod
    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Send one statement; the cursor."""

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """The rows of a SELECT."""

    def write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Send one write; how many rows it matched."""
        matched: int = self.execute(sql, values).rowcount
        return matched

    def write_ids(self, sql: str, ids: Sequence[int], before: Sequence[Any] = (), after: Sequence[Any] = ()) -> int:
        """Write to rows by ids, which fill `{ids}`; the other values go before and after the ids."""
        return self.write(with_ids(sql, ids), (*before, *ids, *after))


ID_OF_KEY = "SELECT id FROM {table} WHERE unique_key = {any_key}"
IDS_OF_KEYS = "SELECT unique_key, id FROM {table} WHERE unique_key IN ({ids})"


def ids_of_keys(place: Rows, keys: Sequence[str], lock: str = "") -> dict[bytes, int]:
    """The ids of rows by their unique_key; `lock` ends the SELECT."""
    found = place.rows(with_ids(IDS_OF_KEYS, keys) + lock, keys)
    # MySQL stores keys as bytes.
    return {key if isinstance(key, bytes) else key.encode(): row_id for key, row_id in found}


def id_of_key(place: Rows, key: str) -> int:
    """The id of the row with this key. Raises Conflict if the row is gone."""
    rows = place.rows(ID_OF_KEY, (place.dialect.key(key),))
    if not rows:
        raise Conflict("the task with this key was deleted meanwhile, as its row was committed by itself: add it again")
    return int(rows[0][0])


# ---- claim


class Claiming(ABC):
    """The claim: a dialect's hard part. `database` is a Database. Raises DatabaseError."""

    @abstractmethod
    def claim(self, database: Any, token: int, lease_seconds: int, limit: int, groups: Sequence[int]) -> Changed:
        """New → in progress by one UPDATE, in order of priority, then id; no groups: all groups.

        A new row with due_at in the future becomes waiting. Raises Conflict if held rows cannot be skipped.
        """

    @abstractmethod
    def has_new(self, database: Any, groups: Sequence[int]) -> bool:
        """Whether a look without locks finds a new row."""

    @abstractmethod
    def indexes(self, database: Any, groups: Sequence[int]) -> Sequence[str]:
        """The indexes that the claim uses."""


# ---- all of it


class Dialect(ABC):
    """One queue's database: how to reach it, what its errors mean, and how its SQL differs."""

    kind: str
    """One of schema.KINDS."""
    own_words: Mapping[str, str]
    """See words.words_of."""
    claiming: Claiming
    hosts = NO_HOSTS
    driver_errors: tuple[type[BaseException], ...]
    has_one_writer = False
    """Whether only one transaction can write at a time, even to different rows."""
    joins_statements = True
    """Whether several statements can share a round trip; False once the server refused that."""
    skips_locked = True
    """Whether a SELECT can skip held rows; False once the server refused that."""
    # The ends of a locking SELECT. It skips held rows, waits for them, or raises Conflict at once. Servers know the
    # first and the third, or neither.
    skip_locked = " FOR UPDATE SKIP LOCKED"
    for_update = " FOR UPDATE"
    for_update_at_once = " FOR UPDATE NOWAIT"

    def __init__(self, table: str) -> None:
        self.table = table

    @abstractmethod
    def error(self, error: BaseException, where: str = "") -> DatabaseError:
        """Our error for a driver's error; `where` names a caller's connection."""

    def make_place(self, database: Any) -> None:  # noqa: B027
        """Make the place for the tables, such as a file. Raises DatabaseError."""

    def rebuild_tables(self, database: Any, statements: Iterable[str]) -> None:  # noqa: B027
        """In an upgrade: rebuild tables that cannot be altered into those of `statements`. Raises DatabaseError."""

    @abstractmethod
    def new_session(self, hosts: Hosts | None = None) -> Session:
        """A session for one thread, not connected; `hosts` replaces the dialect's own."""

    def with_marks(self, sql: str) -> str:
        """A statement with the driver's parameter marks for `?`."""
        return sql

    @staticmethod
    @abstractmethod
    def upsert(changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        """The end of an INSERT that changes an existing row if the condition holds (empty: always).

        `key` names the key's columns; `changes` maps columns to new values. Both may use `{given_…}`: the value that
        the INSERT has for a column.
        """

    # ---- add: on our connections and on callers' own

    rows_per_statement = 1000
    """Rows of only task, args, group and priority; of rows with more columns a statement takes fewer."""

    def key(self, key: str) -> str:
        """A key for the word `any_key`: in hexadecimal, equal in each character set."""
        return key.encode().hex()

    @abstractmethod
    def insert(self, place: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        """Insert `count` rows; their ids, in order."""

    def insert_key(self, place: Rows, sql: str, values: Sequence[Any], key: str) -> int:
        """Insert one row with a key, or change the existing one; its id."""
        place.execute(sql, values)
        return id_of_key(place, key)

    def insert_keyed(self, place: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        """The same for several rows, on a connection of ours; their ids, in order of `keys`."""
        place.execute(sql, values)
        ids = ids_of_keys(place, keys)
        return [ids[key.encode()] for key in keys]

    # ---- a caller's own connection

    callers_words: ClassVar[dict[str, str]] = {}
    """Words that differ there: a caller's session may have any settings."""
    callers_quoted = ""
    """A table's full name there, with `{}`; empty: as elsewhere."""

    @property
    @abstractmethod
    def callers_place(self) -> str:
        """Where the connection should lead, in words."""

    def callers_cursor(self, connection: Any) -> Any:
        """A cursor of ours on it, with plain rows if the driver is the dialect's own. Raises InvalidTask."""
        return connection.cursor()

    def has_open(self, rows: Rows) -> bool:
        """For a site's tests: whether the connection has the queue's file open."""
        return False

    def keeps_transaction(self, cursor: Any) -> bool:
        """False if the connection commits each statement by itself and a savepoint would not show it."""
        return True

    # ---- a task's own transaction

    begin_task = "START TRANSACTION"

    @abstractmethod
    def open_task_connection(self, pace: Pace) -> Any:
        """A new connection without autocommit. Raises DatabaseError."""

    def set_timeout(self, connection: Any, seconds: float | None) -> None:  # noqa: B027
        """Set how long the connection waits for each answer; None: for ever."""

    def was_closed(self, connection: Any) -> bool:
        """Whether the task's code closed its connection, if a statement would not show that clearly."""
        return False

    def close_task_connection(self, connection: Any) -> None:
        """Close it, which rolls back its transaction; swallow the driver's errors."""
        with suppress(*self.driver_errors):
            connection.close()

    # ---- other

    def notices(self, database: Any) -> Any:
        """What wakes a waiting worker when tasks are added (postgresql.notices.Notices); None: nothing."""
        return None

    @abstractmethod
    def facts(self) -> Facts:
        """The checks of `client.py doctor`."""


# ---- shared SQL and errors

LIMITED = (
    "ask your host for more connections (a worker needs two for a transactional or a long task, three if it is both), "
    f"or let fewer workers run at once ({WORKER} --slots)"
)
HELD = f"another transaction holds it: end that, then try again; {CLIENT} doctor names one that stands open for long"
NO_RIGHT = (
    f"check this account's rights: a website's may only add; {WORKER} needs a worker's; {CLIENT} pause, resume, "
    "schedule, unschedule and prune need an operator's, with SELECT, INSERT, UPDATE and DELETE on all of the queue's "
    f"tables; {CLIENT} init and compact need {{}}; see docs/security.md for what to grant"
)


def assignments(changes: Mapping[str, str]) -> str:
    """Columns and new values, as they follow SET."""
    return ", ".join(f"{column} = {to}" for column, to in changes.items())


def missing(what: str) -> TablesMissing:
    """The file or tables of `client.py init` are missing."""
    return TablesMissing(f"{what}: run {CLIENT} init")


def no_tables(place: object, table: str, text: str = "") -> TablesMissing:
    """The queue's tables are missing, or the one that the server's text names."""
    one = re.search(rf"{re.escape(table)}_(?!schema)\w+", text)
    return missing(f"{place} has no table {one[0]}" if one else f"{place} has no tables of {table}")


def other_columns(place: object, table: str, text: str) -> ColumnsMissing:
    """A column of ours is missing."""
    return ColumnsMissing(
        f"{place}: table {table} was not made by taskserver, or by another version of it ({text}): run "
        f"{CLIENT} init, or choose another TASKSERVER_TABLE"
    )
