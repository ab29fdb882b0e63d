"""psycopg's connection, which here waits no longer for an answer than it is told, and how it is opened."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Loader
from psycopg.pq import TransactionStatus
from psycopg.types.numeric import Int8Dumper

from ...settings.dsn import PostgreSQLDsn
from .login import log_in

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext, Buffer
    from psycopg.pq.abc import PGconn

    DriversConnection = psycopg.Connection[tuple[Any, ...]]
else:
    DriversConnection = psycopg.Connection

CONNECT_SECONDS = 10


class Connection(DriversConnection):
    """A connection that gives up an answer which takes longer than `answer_seconds`; None: it waits for ever."""

    answer_seconds: float | None = None
    last_status: int = TransactionStatus.IDLE
    """The transaction's, by the last answer: a connection that broke, or was closed, tells none."""

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """As the driver's. Raises OperationalError."""
        seconds = self.answer_seconds if timeout is None else timeout
        try:
            return super().wait(gen, interval, seconds)
        finally:
            status = self.pgconn.transaction_status
            if status not in (TransactionStatus.ACTIVE, TransactionStatus.UNKNOWN):
                self.last_status = status


class _NumberLoader(Loader):
    """Sums of numbers come as NUMERIC: whole ones are ints, as a COUNT is."""

    def load(self, data: Buffer) -> int | float:
        text = bytes(data)
        return int(text) if text.lstrip(b"-").isdigit() else float(text)


class _FlagLoader(Loader):
    """A condition is 1 or 0, as in the other databases."""

    def load(self, data: Buffer) -> int:
        return int(bytes(data) == b"t")


def connect_to(dsn: PostgreSQLDsn, seconds: float, **options: Any) -> Connection:
    """A new connection. Raises the driver's errors, and whatever a server that is none may make it raise.

    `options` are attributes of the connection that the driver's `connect` takes, too.
    """
    seconds = max(1, int(min(CONNECT_SECONDS, seconds)))
    of_libpq: dict[str, Any] = {
        "connect_timeout": seconds,
        "application_name": f"taskserver {os.getpid()}",
        "client_encoding": "utf8",
        # A cable that was cut is noticed, also while nothing is sent.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "gssencmode": "disable",
    }

    def adopt(pgconn: PGconn) -> Connection:
        connection = Connection(pgconn)
        for name, value in options.items():
            setattr(connection, name, value)
        return connection

    return log_in(dsn, of_libpq, seconds, partial(Connection.connect, **options), adopt)


def suit(place: AdaptContext) -> None:
    """Have values of a connection, or a cursor, go and come back in the forms that our statements want."""
    # By their size ints would be sent as one of four types, and a statement be prepared for each.
    place.adapters.register_dumper(int, Int8Dumper)
    place.adapters.register_loader("numeric", _NumberLoader)
    place.adapters.register_loader("bool", _FlagLoader)
