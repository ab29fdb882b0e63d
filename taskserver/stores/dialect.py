"""What a dialect supplies: the seam between the queue's verbs and MySQL, SQLite or another database.

A dialect is a folder beside `queue/`. In the order in which a task needs them, its files supply:

    dialect.py    a `Dialect`: WORDS for SQL that differs (words.py lists them), the tables' place, INSERTs and the ids
                  that they return, a caller's own connection, the connection for a task's own transaction
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
from .retrying import Patience
from .words import Statements, Write, with_ids

if TYPE_CHECKING:
    from ..model.task import Changed
    from .facts import Facts


# ---- connections of ours

CONNECT_SECONDS = 10
READ_SECONDS_IN_A_RUN = 10
"""A worker's statements are short: a server that is silent for so long is gone, though TCP may not know it yet."""
READ_SECONDS = 60
"""Producers wait longer: after a timeout they would not know whether their task was added."""


class Pace(threading.local):
    """How a thread deals with the database; each thread has its own."""

    session: Session | None = None
    patience: Patience | None = None
    """Only a run's thread and its heartbeat have patience."""
    has_no_timeout = False
    """Whether a statement may take any time."""
    answer_seconds = float("inf")
    """The longest wait for an answer, if it would be longer else."""

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
    """One thread's connection, made when it is first needed, and made again after it broke.

    Its verbs raise the driver's own errors, unless they say otherwise: Database makes ours of them.
    """

    driver_errors: ClassVar[tuple[type[BaseException], ...]]
    begin_sql = "BEGIN"
    commits_by_itself = True
    """Whether a statement outside of a transaction is committed when it returns."""

    def __init__(self) -> None:
        self.connection: Any = None
        self.cursor: Any = None
        self.pid = os.getpid()
        self.in_transaction = False
        self.in_use = threading.RLock()
        """Held for the length of a verb, so that a process that is forked meanwhile leaves the connection alone."""
        self.was_interrupted = False
        """Whether an interrupt ended the last verb, which may leave an answer, or a transaction, on the connection."""
        self.generation = 0
        """That of the database when it connected."""
        self.used_at = 0.0
        """By time.monotonic."""

    @abstractmethod
    def connect(self, pace: Pace) -> None:
        """Connect, and configure the connection. Raises DatabaseError."""

    def make_ready(self, pace: Pace) -> None:  # noqa: B027
        """Before each verb: set the timeout of answers. Must cost next to nothing. Raises DatabaseError."""

    def is_alive(self) -> bool:
        """Ask an idle connection whether it still stands."""
        return True

    @abstractmethod
    def send(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Send one composed statement; the cursor that has its rows."""

    def send_joined(self, writes: Sequence[Write], are_apart: bool) -> list[int]:
        """Send composed writes as one transaction in one round trip; how many rows each matched.

        `are_apart`: no write touches the row of another.
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
    """A connection on which rows are written: our database's, or a caller's own. Raises DatabaseError."""

    max_keyed_rows: int
    """New rows with keys a statement."""

    def __init__(self, dialect: Dialect, statements: Statements) -> None:
        self.dialect = dialect
        self.upsert = dialect.upsert
        self.words, self.compose = statements.words, statements.compose

    @abstractmethod
    def execute(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Send one statement; the driver's cursor."""

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]:
        """The rows of a SELECT."""

    def write(self, sql: str, values: Sequence[Any] = ()) -> int:
        """Send a statement that writes; how many rows it matched."""
        matched: int = self.execute(sql, values).rowcount
        return matched

    def write_ids(self, sql: str, ids: Sequence[int], before: Sequence[Any] = (), after: Sequence[Any] = ()) -> int:
        """Write to rows by their ids, which fill `{ids}`; the other values stand before and after the ids."""
        return self.write(with_ids(sql, ids), (*before, *ids, *after))


ID_OF_KEY = "SELECT id FROM {table} WHERE unique_key = {any_key}"
IDS_OF_KEYS = "SELECT unique_key, id FROM {table} WHERE unique_key IN ({ids})"


def ids_of_keys(place: Rows, keys: Sequence[str], lock: str = "") -> dict[bytes, int]:
    """The ids of the rows that have these keys, by key. `lock` ends the SELECT."""
    found = place.rows(with_ids(IDS_OF_KEYS, keys) + lock, keys)
    # MySQL keeps keys as bytes.
    return {key if isinstance(key, bytes) else key.encode(): row_id for key, row_id in found}


def id_of_key(place: Rows, key: str) -> int:
    """The id of the row that has the key. Raises Conflict if there is none."""
    rows = place.rows(ID_OF_KEY, (place.dialect.key(key),))
    if not rows:
        raise Conflict("the task with this key was deleted meanwhile, as its row was committed by itself: add it again")
    return int(rows[0][0])


# ---- claim


class Claiming(ABC):
    """The claim: a dialect's hard part. `database` is a Database. Raises DatabaseError."""

    @abstractmethod
    def claim(self, database: Any, token: int, lease_seconds: int, limit: int, groups: Sequence[int]) -> Changed:
        """New → in progress by one UPDATE, in order of priority, then id; of these groups (none: of all).

        A new row whose due_at is in the future becomes waiting instead. Raises Conflict if others hold rows that cannot
        be passed over.
        """

    @abstractmethod
    def has_new(self, database: Any, groups: Sequence[int]) -> bool:
        """Whether a look without locks finds a new row."""

    @abstractmethod
    def indexes(self, database: Any, groups: Sequence[int]) -> Sequence[str]:
        """The indexes by which the claim reads the queue."""


# ---- all of it


class Dialect(ABC):
    """One queue's database: how to reach it, what its errors mean, and the words in which its SQL differs."""

    kind: str
    """One of schema.KINDS."""
    own_words: Mapping[str, str]
    """See words.words_of."""
    claiming: Claiming
    driver_errors: tuple[type[BaseException], ...]
    has_one_writer = False
    """Whether a transaction that writes keeps all others from writing, whichever rows they want."""
    joins_statements = True
    """Whether several statements go in one round trip; False once the server refused that."""
    skips_locked = True
    """Whether a SELECT can pass over rows that others hold; False once the server refused such a SELECT."""
    # The ends of a SELECT that locks rows, and which passes over rows that others hold; waits for them; or raises
    # Conflict at once. Servers know the first and the third, or neither.
    skip_locked = " FOR UPDATE SKIP LOCKED"
    for_update = " FOR UPDATE"
    for_update_at_once = " FOR UPDATE NOWAIT"

    def __init__(self, table: str) -> None:
        self.table = table

    @abstractmethod
    def error(self, error: BaseException, where: str = "") -> DatabaseError:
        """The error of ours that a driver's error means; `where` it came from, if from a caller's connection."""

    def make_place(self, database: Any) -> None:  # noqa: B027
        """Make the file, or other place, in which the tables are to be. Raises DatabaseError."""

    def rebuild_tables(self, database: Any, statements: Iterable[str]) -> None:  # noqa: B027
        """In an upgrade: rebuild tables that cannot be altered to what `statements` create. Raises DatabaseError."""

    @abstractmethod
    def new_session(self) -> Session:
        """A session for one thread, not yet connected."""

    def with_marks(self, sql: str) -> str:
        """A statement with the driver's parameter marks for `?`."""
        return sql

    @staticmethod
    @abstractmethod
    def upsert(changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        """The end of an INSERT that changes the row which has the key, if the condition (empty: always) holds.

        `key` names the key's columns; `changes` has each column's new value. In the new values and in the condition,
        `{given_…}` is the value that was to be inserted into a column.
        """

    # ---- add: on our connections and on callers' own

    rows_per_statement = 1000
    """Plain rows, of task, args, group and priority; rows with more columns are fewer a statement."""

    def key(self, key: str) -> str:
        """A key as the word `any_key` takes it: in hexadecimal, which is the same in each character set."""
        return key.encode().hex()

    @abstractmethod
    def insert(self, place: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        """Insert `count` rows; their ids, in order."""

    def insert_key(self, place: Rows, sql: str, values: Sequence[Any], key: str) -> int:
        """Insert one row with a key, or change the row that has this key; its id."""
        place.execute(sql, values)
        return id_of_key(place, key)

    def insert_keyed(self, place: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        """The same for several rows, on a connection of ours; their ids, in order of `keys`."""
        place.execute(sql, values)
        ids = ids_of_keys(place, keys)
        return [ids[key.encode()] for key in keys]

    # ---- a caller's own connection

    callers_words: ClassVar[dict[str, str]] = {}
    """The words that differ there, as a caller's session may have any settings."""
    callers_quoted = ""
    """A table's name in full there, as `{}` in quotes; empty: as elsewhere."""

    @property
    @abstractmethod
    def callers_place(self) -> str:
        """Where the connection should lead, for a person."""

    def callers_cursor(self, connection: Any) -> Any:
        """Our cursor on it, which gives plain rows if the driver is the dialect's own. Raises InvalidTask."""
        return connection.cursor()

    def has_open(self, rows: Rows) -> bool:
        """For tests of a site: whether the connection has the queue's own file open."""
        return False

    def keeps_transaction(self, cursor: Any) -> bool:
        """False if the connection would commit each statement by itself, which a savepoint there would not show."""
        return True

    # ---- a task's own transaction

    begin_task = "START TRANSACTION"

    @abstractmethod
    def open_task_connection(self, pace: Pace) -> Any:
        """A new connection of the driver's, without autocommit. Raises DatabaseError."""

    def set_timeout(self, connection: Any, seconds: float | None) -> None:  # noqa: B027
        """Set how long the connection waits for each answer; None: for ever."""

    def was_closed(self, connection: Any) -> bool:
        """Whether the task's code closed its connection, if a statement on it would not say so clearly."""
        return False

    def close_task_connection(self, connection: Any) -> None:
        """Close it, and so roll back its transaction; swallow the driver's errors."""
        with suppress(*self.driver_errors):
            connection.close()

    # ---- beside the tasks

    def notices(self, database: Any) -> Any:
        """What wakes a waiting worker when tasks are added, as postgresql.notices.Notices; None: nothing does."""
        return None

    @abstractmethod
    def facts(self) -> Facts:
        """The checks of `client.py doctor`."""


# ---- for the dialects: SQL and errors that they share

LIMITED = (
    "ask your host for more connections (a worker needs two for a transactional or a long task, three if it is both), "
    f"or let fewer workers run at once ({WORKER} --slots)"
)
HELD = f"another transaction holds it: end that, then try again; {CLIENT} doctor names one that stands open for long"
NO_RIGHT = (
    f"check this account's rights: a website's may only add; {WORKER} needs a worker's; {CLIENT} pause, resume, "
    "schedule, unschedule and prune need an operator's, with SELECT, INSERT, UPDATE and DELETE on all of the queue's "
    f"tables; {CLIENT} init needs {{}}; see docs/security.md for what to grant"
)


def assignments(changes: Mapping[str, str]) -> str:
    """Columns and their new values, in the form that follows SET."""
    return ", ".join(f"{column} = {to}" for column, to in changes.items())


def missing(what: str) -> TablesMissing:
    """The file or tables are missing that `client.py init` makes."""
    return TablesMissing(f"{what}: run {CLIENT} init")


def no_tables(place: object, table: str, text: str = "") -> TablesMissing:
    """The queue's tables are not there, or only the one of its others that the server's text names."""
    one = re.search(rf"{re.escape(table)}_(?!schema)\w+", text)
    return missing(f"{place} has no table {one[0]}" if one else f"{place} has no tables of {table}")


def other_columns(place: object, table: str, text: str) -> ColumnsMissing:
    """A statement of ours names a column that is not there."""
    return ColumnsMissing(
        f"{place}: table {table} was not made by taskserver, or by another version of it ({text}): run "
        f"{CLIENT} init, or choose another TASKSERVER_TABLE"
    )
