"""PyMySQL's connection, which here waits no longer for a whole answer than for a part of it.

The driver waits anew for each piece that arrives: a server, or whoever stands in its place, that sends a byte now and
then would hold a worker for ever, and so its slot.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

import pymysql.connections

if TYPE_CHECKING:
    DriversConnection = pymysql.connections.Connection[Any]
else:
    DriversConnection = pymysql.connections.Connection

SLOWEST_BYTES_PER_SECOND = 10_000
"""A long answer may take longer, over a line of this speed at least."""
MAX_SECONDS_FOR_BYTES = 600.0
"""So much longer at most: a server could send rows without end."""


class _Answers(io.RawIOBase):
    """What the server sends; a read raises TimeoutError once the answer has taken too long."""

    def __init__(self, raw: io.RawIOBase, seconds: float | None) -> None:
        self._raw = raw
        self.expect(seconds)

    def expect(self, seconds: float | None) -> None:
        """A new answer begins, which may take so long; None: for ever."""
        self._ends_at = float("inf") if seconds is None else monotonic() + seconds
        self._bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        # The wait for the first piece is the driver's own. Whoever was stopped meanwhile finds it there.
        if self._bytes:
            more = min(self._bytes / SLOWEST_BYTES_PER_SECOND, MAX_SECONDS_FOR_BYTES)
            if monotonic() > self._ends_at + more:
                raise TimeoutError("timed out")
        count: int | None = self._raw.readinto(buffer)
        self._bytes += count or 0
        return count

    def close(self) -> None:
        super().close()
        self._raw.close()


class Connection(DriversConnection):
    """A connection whose `read_timeout` holds for an answer as a whole, too; in a login, for each of its steps."""

    before_login: Callable[[], None]
    """Is called once the server has greeted, and may raise."""
    _read_timeout: float | None
    _answers: _Answers | None = None
    _file: io.BufferedReader | None = None

    # The driver makes a file of its socket, and another one for TLS.
    @property
    def _rfile(self) -> io.BufferedReader | None:
        return self._file

    @_rfile.setter
    def _rfile(self, file: Any) -> None:
        self._answers = None if file is None else _Answers(file.detach(), self._read_timeout)
        self._file = None if self._answers is None else io.BufferedReader(self._answers)

    def _request_authentication(self) -> None:
        self.before_login()
        super()._request_authentication()  # type: ignore[misc]

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        if self._answers is not None:
            self._answers.expect(self._read_timeout)
        super()._execute_command(command, sql)  # type: ignore[misc]
