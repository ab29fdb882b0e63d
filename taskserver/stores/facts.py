"""Facts about a store's database, for `client.py doctor`; doctor/ judges them.

Each fact is asked for by itself, since the server may refuse an account some of them. None is a fact that was refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import DatabaseError, Unavailable


class TableFault(NamedTuple):
    """A table that differs from the schema file's."""

    table: str
    what: str
    """The difference, as `column due_at is datetime, not timestamp(6)`."""


class TableShape(NamedTuple):
    """A table as its database describes it: ours, or one that the schema file makes beside it."""

    columns: Mapping[str, str]
    """Each column's kind, as `int unsigned default 0`."""
    indexes: Mapping[str, str]
    """Each index's columns, as `unique (id)` or `(status, due_at)`."""
    engine: str = ""
    what: str = "engine"
    """The name of that."""


def kind_of_column(column_type: str, needs_no_value: bool, default: str | None) -> str:
    """A column's kind, in words that `differences` understands."""
    if needs_no_value:
        return f"{column_type} or NULL"
    return column_type if default is None else f"{column_type} default {default}"


def shapes_of_indexes(rows: Iterable[Sequence[Any]]) -> dict[str, str]:
    """Indexes by name, from rows of an index, whether it is unique, and one of its columns, in order."""
    columns: dict[str, list[str]] = {}
    unique: dict[str, str] = {}
    for index, is_unique, column in rows:
        columns.setdefault(index, []).append(str(column))
        unique[index] = "unique " if is_unique else ""
    return {index: f"{unique[index]}({', '.join(parts)})" for index, parts in columns.items()}


def differences(table: str, wanted: TableShape, found: TableShape) -> Iterator[TableFault]:
    """How a table differs from the schema file's; columns and indexes of others may stand beside ours."""
    if not found.columns:
        yield TableFault(table, "is missing, or hidden from this account")
        return
    for name, kind in wanted.columns.items():
        if found.columns.get(name) != kind:
            yield TableFault(table, f"column {name} is {found.columns.get(name, 'missing')}, not {kind}")
    for name, kind in found.columns.items():
        if name not in wanted.columns and not kind.endswith(" or NULL") and " default " not in kind:
            yield TableFault(
                table, f"column {name}, which is not ours, has no default: rows that leave it out are refused"
            )
    for name, index in wanted.indexes.items():
        if found.indexes.get(name) != index:
            yield TableFault(table, f"index {name} is {found.indexes.get(name, 'missing')}, not {index}")
    if found.engine != wanted.engine:
        yield TableFault(table, f"its {wanted.what} is {found.engine}, not {wanted.engine}")


MAX_USUAL_ID = 2**62
"""A queue that gets a million tasks a second reaches this id after 146,000 years: a greater one was forged."""


class ForgedIds(NamedTuple):
    """A table whose next id lies beyond MAX_USUAL_ID."""

    table: str
    is_full: bool
    """Whether no id is left, so that every INSERT fails."""
    rows: int | None
    """How many of its rows have an id beyond MAX_USUAL_ID; None where the account may not look."""
    mend: tuple[str, ...]
    """The statements that mend it: the first deletes those rows."""


def forged_ids(database: Any, next_ids: Mapping[str, int], greatest: int, set_back: str) -> tuple[ForgedIds, ...]:
    """The tables among `next_ids` whose next id lies beyond MAX_USUAL_ID.

    No id is left above `greatest`; `set_back` is the statement that sets the next id behind the rows that are there.
    """
    found = []
    for key, next_id in next_ids.items():
        if next_id > MAX_USUAL_ID:
            table = database.dialect.table if key == "id" else f"{database.dialect.table}_done"
            name = as_typed(database, table)
            beyond = f"FROM {name} WHERE {key} > {MAX_USUAL_ID}"
            try:
                rows = database.fetch_value(f"SELECT COUNT(*) {beyond}")
            except Unavailable:
                raise
            except DatabaseError:
                rows = None
            mend = (f"DELETE {beyond}", set_back.format(table=name, key=key))
            found.append(ForgedIds(table, next_id > greatest, rows, mend))
    return tuple(found)


def as_typed(database: Any, table: str) -> str:
    """A table's name as a person types it: in quotes where it may be another word of SQL, or has capitals."""
    is_plain = "_" in table and table == table.lower()
    return table if is_plain else str(database.dialect.own_words["quoted"].format(table))


class MySQLFacts(NamedTuple):
    """Facts about a MySQL or MariaDB server and the queue's tables there."""

    version: str
    is_mariadb: bool
    user: str
    """The account as the server knows it: name@host pattern."""
    cipher: str
    """The cipher of TLS; empty where the connection is not encrypted."""
    variables: Mapping[str, str]
    """The server's variables, by name in lower case."""
    session: Mapping[str, str]
    """The variables of a connection like a worker's, by name in lower case."""
    clock_ahead_seconds: float
    """How far the server's clock is ahead of this host's."""
    skips_locked: bool
    """Whether a SELECT can pass over rows that others hold."""
    denied: tuple[str, ...]
    """Rights that this account lacks and a worker needs, as `DELETE on jobs_queue`."""
    spared: tuple[str, ...]
    """Rights that this account lacks and a worker of this mode does without, each with its use for others."""
    faults: tuple[TableFault, ...] | str
    """Or the reason why the tables cannot be compared with the schema file's."""
    claim_indexes: tuple[str, ...]
    """The indexes by which claims read the queue, of some groups and of all."""
    oldest_transaction_seconds: float | None
    """The age of the server's oldest open transaction, 0 without one; None where this account may not see them."""
    holds_new: bool
    """Whether other programs hold new rows in transactions that stand open."""
    forged_ids: tuple[ForgedIds, ...] | None
    """None where the account may not see it."""


class SQLiteFacts(NamedTuple):
    """Facts about an SQLite file and the queue's tables there."""

    version: str
    journal_mode: str
    damage: str | None
    """The answer of SQLite's own check, `ok` where it finds nothing; None where the file is too large to be checked."""
    faults: tuple[TableFault, ...]
    claim_indexes: tuple[str, ...]
    forged_ids: tuple[ForgedIds, ...]


class IdsAhead(NamedTuple):
    """A table some of whose rows have ids that its counter comes to yet."""

    table: str
    rows: int
    next_id: int
    first_id: int
    """The least of those rows' ids."""
    mend: str
    """The statement that sets the counter behind them."""


class Holder(NamedTuple):
    """A transaction, or another thing, for whose sake the server keeps rows that were deleted."""

    kind: str
    """`session`, `prepared` (a transaction without a session), `slot` (of replication) or `standby`."""
    name: str
    """The session's process id; else the name of the thing."""
    user: str
    program: str
    """Its application_name; empty where it tells none."""
    address: str
    """Of its host; empty where it is this one's socket, or hidden from this account."""
    state: str
    """As `idle in transaction`; empty where it is hidden, or there is none."""
    seconds: float | None
    """The age of its transaction; None where it is hidden, or there is none."""
    transactions: int
    """How many transactions were begun since then, of those that write."""


class TableRows(NamedTuple):
    """The server's own count of the rows of a table."""

    table: str
    live: int
    dead: int
    """Deleted ones, or older forms of changed ones, whose space was not freed yet."""
    size_bytes: int
    """Of the table alone, without its indexes and long texts."""


class PostgreSQLFacts(NamedTuple):
    """Facts about a PostgreSQL server and the queue's tables there."""

    version: str
    version_number: int
    """As 150018."""
    driver: str
    """As `psycopg 3.3.0, compiled, with libpq 16.2`."""
    user: str
    tls: str
    """The version and cipher of TLS, or `TLS` alone behind a pooler; empty where the connection is not encrypted."""
    is_direct: bool
    """Whether no pooler of transactions stands between."""
    is_standby: bool
    variables: Mapping[str, str]
    """The values with which sessions of this account begin in this database."""
    clock_ahead_seconds: float
    denied: tuple[str, ...]
    spared: tuple[str, ...]
    faults: tuple[TableFault, ...] | str
    lost_triggers: tuple[str, ...]
    """The triggers that are missing or switched off, as `notify_added on jobs_queue`."""
    claim_indexes: tuple[str, ...]
    forged_ids: tuple[ForgedIds, ...] | None
    """None where the account may not see the counters."""
    ids_ahead: tuple[IdsAhead, ...]
    places: Mapping[str, tuple[str, ...]]
    """The schemas of the search_path that have a table of this name, by table; the first one is used."""
    open_schemas: tuple[str, ...]
    """The schemas of the search_path in which every account of the server may make tables and functions."""
    not_vacuumed: tuple[str, ...]
    """The tables of the queue for which autovacuum is switched off."""
    rows: tuple[TableRows, ...]
    holders: tuple[Holder, ...]
    """The sessions of this database, and others, that keep dead rows."""
    sees_all: bool
    """Whether the account may see how long the transactions of others are open."""
    held: int
    """How many new rows others hold in transactions that stand open."""
    held_by: tuple[Holder, ...]
    """The holders of these rows, as far as they can be told."""
    transaction_age: int
    """How many transactions ago the oldest row of the database may have been written."""
    multixact_age: int
    """The same in groups of transactions that shared a lock."""
    connections: int
    """The server's connections now."""
    account_connections: int
    """The most of this account, or for this database; -1: no limit of its own."""


Facts = MySQLFacts | SQLiteFacts | PostgreSQLFacts


class QueueFacts(NamedTuple):
    """Rows of the queue that may need a person."""

    names: tuple[str, ...]
    """The callables that the next rows name, each once."""
    lapsed: int
    """How many claims nobody took back, though their lease ended a while ago."""
    lapsed_seconds: float
    """The time since the end of the oldest of these leases."""
    far: int
    """How many rows are due in 2037 or later."""
    undated: int
    """How many rows wait for nothing: neither an instant nor another task; of the oldest waiting ones."""
    orphaned: int
    """How many rows wait for tasks that are gone or over, and will not hear of it."""
