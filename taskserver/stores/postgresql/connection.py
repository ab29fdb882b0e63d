"""psycopg's connection, which here waits no longer for an answer than it is told, and how it is opened."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import suppress
from fcntl import ioctl
from functools import partial
from logging import NullHandler, getLogger
from termios import FIONREAD
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
from psycopg.adapt import Loader
from psycopg.pq import PipelineStatus
from psycopg.types.numeric import Int8Dumper

from ...settings.dsn import PostgreSQLDsn
from .login import log_in

if TYPE_CHECKING:
    from psycopg.abc import AdaptContext, Buffer
    from psycopg.pq.abc import PGconn
    from psycopg.waiting import Wait

    DriversConnection = psycopg.Connection[tuple[Any, ...]]
else:
    DriversConnection = psycopg.Connection

CONNECT_SECONDS = 10
SLOWEST_BYTES_PER_SECOND = 10_000
"""A long answer may take longer, over a line of this speed at least."""
MAX_SECONDS_FOR_A_PIECE = 0.5
"""Between two pieces of it then; a silent server is given up so much later."""
MAX_SECONDS_FOR_BYTES = 600.0
"""So much longer at most: a server could send rows without end."""

# What it cannot undo on a connection that broke it tells there; where nobody listens, Python prints that to standard
# error, and so into cron's mail.
getLogger("psycopg").addHandler(NullHandler())

T = TypeVar("T")


class Connection(DriversConnection):
    """A connection that gives up an answer which takes longer than `answer_seconds`; None: it waits for ever."""

    answer_seconds: float | None = None

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """As the driver's. Raises OperationalError."""
        seconds = self.answer_seconds
        if timeout is not None:  # of the driver's own calls, which await its own error
            return super().wait(gen, interval, timeout)
        # Older releases of the driver know no limit, and none is told how much of an answer has come.
        return super().wait(gen if seconds is None else self._within(seconds, gen), interval)

    def _within(self, seconds: float, gen: Generator[Wait, Any, T]) -> Generator[Wait, Any, T]:
        """The driver's wait for an answer, which wakes at each piece of it and ten times a second."""
        ends_at = monotonic() + seconds
        send = gen.send
        try:
            wanted = next(gen)
            # The look at the time comes last: whoever was stopped meanwhile finds the answer there.
            while True:
                wanted = send((yield wanted))
                if monotonic() > ends_at:
                    break
            # Half of an answer is there, or nothing: what comes from now on tells.
            ends_at = monotonic() + min(seconds, MAX_SECONDS_FOR_A_PIECE)
            count = 0
            while monotonic() <= ends_at + min(count / SLOWEST_BYTES_PER_SECOND, MAX_SECONDS_FOR_BYTES):
                ready = yield wanted
                count += self._unread_bytes()
                wanted = send(ready)
        except StopIteration as end:
            result: T = end.value
            return result
        self._give_up(gen)
        raise psycopg.OperationalError("timed out")

    def _unread_bytes(self) -> int:
        try:
            return int.from_bytes(ioctl(self.pgconn.socket, FIONREAD, bytes(4)), sys.byteorder)
        except (OSError, psycopg.Error):  # closed meanwhile
            return 0

    def _give_up(self, gen: Generator[Wait, Any, Any]) -> None:
        # At its end a pipeline would wait for its answers once more.
        if self.pgconn.pipeline_status != PipelineStatus.OFF:
            self.pgconn.finish()
        # Else Python would do so some time, and print what a pipeline raises then.
        with suppress(Exception):
            gen.close()


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
