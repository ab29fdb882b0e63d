"""The parts of a dialect: the seam between the queue's verbs and MySQL, SQLite or another database.

To add a database, write a folder beside `mysql/` with these parts. Where `queue/` holds SQL that the database does not
take, put a word for it into the dialects' words.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import Conflict, DatabaseError, TablesMissing
from ..messages.programs import CLIENT
from .session import Pace, Session
from .words import with_ids

if TYPE_CHECKING:
    from typing import Protocol

    from ..model.task import Changed
    from .facts import Facts

    # Faces for the type checker alone: a run that finds no task need not pay for them. A `database` in them is a
    # database.Database, whose file imports this one.

    class Rows(Protocol):
        """A connection on which rows are added: our database's, or a caller's own."""

        @property
        def words(self) -> Mapping[str, str]: ...

        def upsert(self, changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str: ...

        @property
        def inserts(self) -> Inserts: ...

        @property
        def max_keyed_rows(self) -> int: ...

        def compose(self, sql: str) -> str: ...

        def execute(self, sql: str, values: Sequence[Any] = ()) -> Any: ...

        def rows(self, sql: str, values: Sequence[Any] = ()) -> Sequence[tuple[Any, ...]]: ...

    class Claiming(Protocol):
        """The claim of a dialect: its hard part."""

        def claim(self, database: Any, token: int, lease_seconds: int, limit: int, groups: Sequence[int]) -> Changed:
            """New → in progress by one UPDATE, in order of priority, then id.

            A new row whose due_at lies ahead becomes waiting instead. Raises Conflict where others hold rows that
            cannot be passed over.
            """

        def has_new(self, database: Any, groups: Sequence[int]) -> bool:
            """Whether a look without locks finds a new row in these groups (none: in any)."""

        def indexes(self, database: Any, groups: Sequence[int]) -> Sequence[str]:
            """The indexes by which the claim of these groups (none: of all) reads the queue."""


ADD = "INSERT INTO {table} (task, args, group_id, priority) VALUES "
ADD_ROW = "(?, ?, ?, ?)"
"""A plain row."""


class Inserts(ABC):
    """How rows are added, and the ids that they get."""

    rows_per_statement = 1000
    """Plain rows, of task, args, group and priority; rows with more columns are fewer a statement."""

    def key(self, key: str) -> str:
        """A key as the word `any_key` takes it: in hexadecimal, which is the same in each character set.

        Raises InvalidTask.
        """
        return key.encode().hex()

    def insert_plain(self, database: Rows, rows: Sequence[Sequence[Any]]) -> Sequence[int]:
        """Insert plain rows; their ids, in order. Raises DatabaseError."""
        sql = ADD + ", ".join([ADD_ROW] * len(rows))
        return self.insert(database, sql, [value for row in rows for value in row], len(rows))

    @abstractmethod
    def insert(self, database: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        """Insert `count` rows; their ids, in order. Raises DatabaseError."""

    def insert_key(self, database: Rows, sql: str, values: Sequence[Any], key: str) -> int:
        """Insert one row with a key, or change the row that has this key; its id. Raises DatabaseError."""
        database.execute(sql, values)
        return id_of_key(database, key)

    def insert_keyed(self, database: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        """The same for several rows, on a connection of ours; their ids, in order of `keys`."""
        database.execute(sql, values)
        ids = ids_of_keys(database, keys)
        return [ids[key.encode()] for key in keys]


ID_OF_KEY = "SELECT id FROM {table} WHERE unique_key = {any_key}"
IDS_OF_KEYS = "SELECT unique_key, id FROM {table} WHERE unique_key IN ({ids})"


def ids_of_keys(database: Rows, keys: Sequence[str], lock: str = "") -> dict[bytes, int]:
    """The ids of the rows that have these keys, by key. `lock` ends the SELECT."""
    found = database.rows(with_ids(IDS_OF_KEYS, keys) + lock, keys)
    # MySQL keeps keys as bytes.
    return {key if isinstance(key, bytes) else key.encode(): row_id for key, row_id in found}


def id_of_key(database: Rows, key: str) -> int:
    """The id of the row that has the key. Raises Conflict if there is none."""
    rows = database.rows(ID_OF_KEY, (database.inserts.key(key),))
    if not rows:
        raise Conflict("the task with this key was deleted meanwhile, as its row was committed by itself: add it again")
    return int(rows[0][0])


class Dialect(ABC):
    """One queue's database: how to reach it, what its errors mean, and the words in which its SQL differs."""

    own_words: Mapping[str, str]
    """See words_of."""
    claiming: Claiming
    inserts: Inserts
    driver_errors: tuple[type[BaseException], ...]
    kind: str
    """One of schema.KINDS."""
    about_space: str
    """A sentence for a person: the fate of the space of rows that were deleted from the tables `{}`."""
    has_one_writer = False
    """Whether a transaction that writes keeps all others from writing, whichever rows they want."""
    skips_locked = False
    """Whether a SELECT can pass over rows that others hold; False once the server refused such a SELECT."""
    skip_locked = ""
    """The end of a SELECT that locks rows and passes over rows that others hold."""
    for_update = ""
    """The end of a SELECT that locks rows and waits for rows that others hold."""
    for_update_at_once = ""
    """The end of a SELECT that locks rows and waits for nobody: Conflict. Servers that skip locked rows know it."""
    joins_statements = False
    """Whether several statements go in one round trip; False once the server refused that."""

    def __init__(self, table: str) -> None:
        self.table = table

    @staticmethod
    @abstractmethod
    def upsert(changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        """The end of an INSERT that changes the row which has the key, where the condition (empty: always) holds.

        `key` names the key's columns; `changes` has each column's new value. In the new values and in the condition,
        `{given_…}` is the value that was to be inserted into a column.
        """

    def with_marks(self, sql: str) -> str:
        """A statement with the driver's parameter marks for `?`."""
        return sql

    @abstractmethod
    def new_session(self) -> Session:
        """A session for one thread, not yet connected."""

    # ---- a task's own transaction

    begin_task = "START TRANSACTION"

    @abstractmethod
    def open_task_connection(self, pace: Pace) -> Any:
        """A new connection of the driver's, without autocommit, for a task's own transaction. Raises DatabaseError."""

    def set_timeout(self, connection: Any, seconds: float | None) -> None:  # noqa: B027
        """Set how long the task's connection waits for each answer; None: for ever."""

    def was_closed(self, connection: Any) -> bool:
        """Whether the task's code closed its connection, if a statement on it would not say so clearly."""
        return False

    def close_task_connection(self, connection: Any) -> None:
        """Close it, and so roll back its transaction; swallow the driver's errors."""
        with suppress(*self.driver_errors):
            connection.close()

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

    @abstractmethod
    def error(self, error: BaseException, where: str = "") -> DatabaseError:
        """The error of ours that a driver's error means; `where` it came, if on a caller's connection."""

    @abstractmethod
    def facts(self) -> Facts:
        """The checks of `client.py doctor`."""

    def notices(self, database: Any) -> Any:
        """What wakes a waiting worker when tasks are added, as postgresql.notices.Notices; None: nothing does."""
        return None

    def rebuild_tables(self, database: Any, statements: Iterable[str]) -> None:  # noqa: B027
        """In an upgrade: rebuild tables that cannot be altered to what `statements` create. Raises DatabaseError."""

    def make_place(self, database: Any) -> None:  # noqa: B027
        """Make the file, or other place, in which the tables are to lie. Raises DatabaseError."""


# ---- errors that all dialects have


def no_tables(place: object, table: str) -> TablesMissing:
    """The queue's tables are not there."""
    return missing(f"{place} has no tables of {table}")


def other_columns(place: object, table: str, text: str) -> DatabaseError:
    """A statement of ours names a column that is not there."""
    return DatabaseError(
        f"{place}: table {table} was not made by taskserver, or by another version of it ({text}): run "
        f"{CLIENT} init, or choose another TASKSERVER_TABLE"
    )


def missing(what: str) -> TablesMissing:
    """`client.py init` makes the missing file or tables that `what` tells of."""
    return TablesMissing(f"{what}: run {CLIENT} init")


def assignments(changes: Mapping[str, str]) -> str:
    """Columns and their new values, in the form that follows SET."""
    return ", ".join(f"{column} = {to}" for column, to in changes.items())
