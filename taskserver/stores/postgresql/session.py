"""A connection to PostgreSQL on psycopg: login, settings of the session, the wait for answers, statements.

Differs from MySQL: there may be a transaction pooler (pgbouncer, `pool_mode = transaction`) between us and the server.
It may give each transaction another session, so settings, prepared statements and LISTEN do not last. We recognize it
at login: the connection's process id is not the server's. Then each statement has a transaction, which begins with the
settings, and nothing is prepared.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from itertools import count
from logging import NullHandler, getLogger
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.adapt import Loader
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

from ...host import peer
from ...settings.dsn import Dsn
from ..dialect import Pace, Session
from ..retrying import Hosts
from ..words import Write
from .errors import DRIVER_ERRORS

if TYPE_CHECKING:
    from psycopg.abc import Buffer
    from psycopg.waiting import Wait

HAS_REQUIRE_AUTH = 160000

# Hosts change the defaults of sessions. Lock timeouts of a second: between two waits, signals are handled and the
# patience can end. A queue's statistics are always old and may say that no task is new: the planner would then scan the
# table instead of an index, or compile a statement that takes a millisecond.
SESSION_SETTINGS = {
    "timezone": "UTC",
    "lock_timeout": "1s",
    "statement_timeout": "0",
    **dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit"), "off"),
}
# The server notices a dead client within a minute and rolls back its transaction; the default is two hours.
SETTINGS_OF_SESSION = {
    "default_transaction_isolation": "read committed",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


def _set_all(settings: dict[str, str], is_local: bool) -> str:
    return "SELECT " + ", ".join(f"set_config('{name}', '{value}', {is_local})" for name, value in settings.items())


SET_IF_DIRECT = f"{_set_all(SESSION_SETTINGS | SETTINGS_OF_SESSION, False)} WHERE pg_backend_pid() = $1"
"""Returns a row only if the server's own session answers."""
BEGIN_POOLED = f"BEGIN ISOLATION LEVEL READ COMMITTED; {_set_all(SESSION_SETTINGS, True)}"

NEVER_BY_ITSELF = 2**62
"""The driver prepares only what we ask for; None would disable preparing."""
MAX_IN_ONE = 10
"""Writes in one statement. With more, each round would be a new statement to plan and keep."""
NUMBERED_MARK = re.compile(r"\$\d+")
REPLACEMENT = "\ufffd"
MAX_BIGINT = 2**63

# The driver logs failed rollbacks on broken connections. Without a handler, Python prints them, and cron mails them.
getLogger("psycopg").addHandler(NullHandler())

T = TypeVar("T")


# ---- the driver's connection


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """The driver's connection. A wait for an answer ends after `answer_seconds` without a byte."""

    answer_seconds: float | None = None
    """None: never."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        if timeout is None and self.answer_seconds is not None:
            gen = _wait_for_answer(gen, self.answer_seconds)
        return super().wait(gen, interval, timeout)


def _wait_for_answer(gen: Generator[Wait, Any, T], seconds: float) -> Generator[Wait, Any, T]:
    """The driver's wait, which wakes ten times a second. Raises OperationalError after `seconds` without a byte."""
    ends_at = monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            # Checked before the wait, so that a process resumed after SIGSTOP still finds the answer.
            is_over = monotonic() > ends_at
            ready = yield wanted
            if ready:
                ends_at = monotonic() + seconds
            elif is_over:
                break
            wanted = gen.send(ready)
    except StopIteration as end:
        answer: T = end.value
        return answer
    gen.close()
    raise psycopg.OperationalError("timed out")


class _NumberLoader(Loader):
    """Sums are NUMERIC: whole ones become ints."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return int(text) if text.lstrip(b"-").isdigit() else float(text)


class _FlagLoader(Loader):
    """A condition is 1 or 0, as in the other databases."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


# ---- login


def connect_to(dsn: Dsn, seconds: float, must_take_writes: bool = False, **options: Any) -> Connection:
    """A driver's connection; `options` are those of its `connect`. Raises the driver's errors.

    `must_take_writes`: whether a standby is an error, as another host takes writes.

    The server chooses whether it gets a proof of the password (scram-sha-256, md5) or the password (password, ldap,
    pam). Only a verified server, or one at a socket of a server's account, may get the password. libpq before 16 cannot
    refuse to send it: there we require scram-sha-256 bound to TLS, unless a server's account listens on this host.
    """
    is_trusted = dsn.is_verified or (
        bool(dsn.unix_socket) and peer.is_of_server(dsn.unix_socket, peer.POSTGRESQL_ACCOUNTS)
    )
    is_old = pq.version() < HAS_REQUIRE_AUTH
    if is_old and dsn.is_loopback and not dsn.unix_socket:
        is_trusted = is_trusted or peer.listens(dsn.port, peer.POSTGRESQL_ACCOUNTS)
    keywords: dict[str, Any] = {
        "user": dsn.user,
        "password": dsn.password,
        "host": dsn.host,
        "port": dsn.port,
        "dbname": dsn.database,
        "sslmode": dsn.tls_mode,
        "sslrootcert": dsn.tls_ca,
        "target_session_attrs": "read-write" if must_take_writes else "",
    }
    keywords = {name: value for name, value in keywords.items() if value}  # libpq takes the rest from its environment
    # `localhost` may mean ::1, where most servers do not listen, so any account could. PGHOSTADDR is ignored.
    keywords["hostaddr"] = "127.0.0.1" if dsn.host == "localhost" else ""
    if not is_trusted and "PGREQUIREAUTH" not in os.environ:
        keywords |= {"channel_binding": "require"} if is_old else {"require_auth": "!password"}
    # Nobody can intercept a loopback address. TLS only costs time there, unless the server or an old libpq needs it.
    if dsn.is_loopback and (is_trusted or not is_old) and not {"PGSSLMODE", "PGSERVICE"}.intersection(os.environ):
        keywords.setdefault("sslmode", "allow")
    return Connection.connect(
        **keywords,
        connect_timeout=max(1, int(seconds)),
        application_name=f"taskserver {os.getpid()}",
        client_encoding="utf8",
        keepalives_idle=30,  # notices a cut cable even if nothing is sent
        keepalives_interval=10,
        keepalives_count=3,
        gssencmode="disable",
        **options,
    )


# ---- statements


class PostgreSQLSession(Session):
    """One thread's connection of ours."""

    driver_errors = DRIVER_ERRORS

    def __init__(self, hosts: Hosts) -> None:
        super().__init__()
        self._hosts = hosts
        self.commits_by_itself = False
        """Whether there is no transaction pooler; known once connected."""

    def connect(self, pace: Pace) -> None:
        self._hosts.connect(lambda dsn, seconds: self._log_in(dsn, seconds, pace), pace.connect_seconds)

    def _log_in(self, dsn: Dsn, seconds: float, pace: Pace) -> None:
        try:
            self.connection = connect_to(
                dsn,
                seconds,
                self._hosts.are_several,
                autocommit=True,
                prepare_threshold=None,
                cursor_factory=psycopg.RawCursor,
            )
            adapters = self.connection.adapters
            # Otherwise ints would have one of four types by size, and a statement would be prepared for each.
            adapters.register_dumper(int, Int8Dumper)
            adapters.register_loader("numeric", _NumberLoader)
            adapters.register_loader("bool", _FlagLoader)
            self.cursor = self.connection.cursor()
            self.make_ready(pace)
            own = self.send(SET_IF_DIRECT, (self.connection.info.backend_pid,)).fetchall()
            self.commits_by_itself, self.begin_sql = bool(own), "BEGIN" if own else BEGIN_POOLED
            if own:
                self.connection.prepare_threshold = NEVER_BY_ITSELF
        except Exception:
            self.close()
            raise

    def make_ready(self, pace: Pace) -> None:
        self.connection.answer_seconds = pace.read_seconds

    def is_alive(self) -> bool:
        try:
            self.send("SELECT 1")
        except DRIVER_ERRORS:
            return False
        return True

    def roll_back(self) -> None:
        if self.connection.info.transaction_status != TransactionStatus.IDLE:
            self.send("ROLLBACK")

    def send(self, sql: str, values: Sequence[Any] = ()) -> Any:
        self.cursor.execute(sql, bindable(values) if values else None)
        if sql == "COMMIT" and self.cursor.statusmessage != "COMMIT":
            # After an error in the transaction the server answers ROLLBACK without an error.
            raise psycopg.errors.InFailedSqlTransaction("the transaction was rolled back")
        return self.cursor

    def send_joined(self, writes: Sequence[Write], are_apart: bool) -> list[int]:
        # One statement is faster than a transaction.
        if are_apart and 1 < len(writes) <= MAX_IN_ONE:
            one = joined_writes(tuple(sql for sql, _ in writes))
            values = [value for _, several in writes for value in several]
            (counts,) = self._send_in_transaction([(one, values)], lambda cursor: cursor.fetchone())
            return list(counts)
        return self._send_in_transaction(writes, lambda cursor: cursor.rowcount)

    def _send_in_transaction(self, statements: Sequence[Write], outcome: Callable[[Any], T]) -> list[T]:
        is_bracketed = len(statements) > 1 or not self.commits_by_itself
        if is_bracketed:
            self.send(self.begin_sql)
        outcomes = [outcome(self.cursor.execute(sql, bindable(values), prepare=True)) for sql, values in statements]
        if is_bracketed:
            self.send("COMMIT")
        return outcomes


@lru_cache(100)
def joined_writes(writes: tuple[str, ...]) -> str:
    """One statement of several writes, each with marks from $1 on; returns how many rows each matched.

    All of them see the rows as they were before the statement.
    """
    parts: list[str] = []
    numbers = count(1)
    for number, sql in enumerate(writes):
        # Each mark occurs once.
        parts.append(f"w{number} AS ({re.sub(NUMBERED_MARK, lambda _: f'${next(numbers)}', sql)} RETURNING 1)")
    counts = ", ".join(f"(SELECT COUNT(*) FROM w{number})" for number in range(len(writes)))
    return f"WITH {', '.join(parts)} SELECT {counts}"


def bindable(values: Sequence[Any]) -> list[Any]:
    """The values in forms that the server accepts."""
    return [_bindable(value) for value in values]


def _bindable(value: Any) -> Any:
    """Replaces NUL and lone surrogates in texts; an id beyond 64 bits, as in MySQL, becomes a float."""
    if type(value) is str:
        if "\0" in value:
            value = value.replace("\0", REPLACEMENT)
        return value if value.isascii() else value.encode(errors="replace").decode()
    if type(value) is int and not -MAX_BIGINT <= value < MAX_BIGINT:
        return float(value)
    return value
