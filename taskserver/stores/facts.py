"""What a store can say of its database for `client.py doctor`: facts alone, which doctor/ judges.

Each fact is asked for by itself, since an account may be refused some of them: None stands for what could not be had.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TableFault(NamedTuple):
    """A table that is not as the schema file makes it."""

    table: str
    what: str
    """As `column due_at is datetime, not timestamp(6)`."""


class MySQLFacts(NamedTuple):
    """What a MySQL or MariaDB server and its tables are like."""

    version: str
    is_mariadb: bool
    user: str
    """As the server knows it: name@host pattern."""
    cipher: str
    """Of TLS; empty where the connection is not encrypted."""
    variables: Mapping[str, str]
    """The server's own, by name in lower case."""
    session: Mapping[str, str]
    """Those of a worker's connection, and of the account that it uses."""
    clock_ahead_seconds: float
    """How far the server's clock is ahead of this host's."""
    last_instant: str
    """The last that an instant of the tables can hold: YYYY-MM-DD."""
    skips_locked: bool
    denied: tuple[str, ...]
    """What this account may not do with the tables and a worker must, as `DELETE on jobs_queue`."""
    spared: tuple[str, ...]
    """What it may not do either, and a worker of this mode does without, and what for others have it."""
    faults: tuple[TableFault, ...]
    claim_indexes: tuple[str, ...]
    """That the claims read by: of some groups, of all of them."""
    oldest_transaction_seconds: float | None
    """The age of the oldest open transaction of the server, 0 without any; None where this account may not see them."""


class SQLiteFacts(NamedTuple):
    """What an SQLite file and its tables are like."""

    version: str
    journal_mode: str
    damage: str | None
    """What SQLite's own check says, which is `ok` where it finds nothing; None where the file is too large for it."""
    faults: tuple[TableFault, ...]
    claim_indexes: tuple[str, ...]


Facts = MySQLFacts | SQLiteFacts


class QueueFacts(NamedTuple):
    """What stands in the queue that may need a person."""

    names: tuple[str, ...]
    """Of the callables that the rows name which are next, each once."""
    lapsed: int
    """Claims whose lease ended a while ago, and which nobody took back."""
    lapsed_seconds: float
    """For how long, of the oldest."""
    far: int
    """Rows that are due in 2037 or later."""
    undated: int
    """Rows that wait for nothing: neither an instant nor another task."""
    orphaned: int
    """Rows that wait for tasks which are gone, or over, without having been told of it."""
