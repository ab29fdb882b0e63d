"""Wakes a waiting worker on PostgreSQL when tasks are added (LISTEN, NOTIFY).

A trigger sends a notice without payload (the schema's function `…_notify`). Notices are expensive: commits with notices
wait for each other. So the trigger sends one only while a worker waits. A waiting worker holds an advisory lock, which
the INSERT tries to share. The lock ends with the worker's session.

A notice is only a hint. Some changes send none: retries, resumed groups, schedules, due tasks, and an INSERT before the
wait. The worker finds them with its look once a second.
"""

from __future__ import annotations

import time

from ..database import Database
from ..retrying import AT_ONCE
from .errors import DRIVER_ERRORS

BEGIN = "LISTEN {table}; SELECT pg_try_advisory_lock(CAST(CAST('{table}' AS regclass) AS integer), 0)"
END = "UNLISTEN *; SELECT pg_advisory_unlock_all()"


class Notices:
    """The notices of one run. Raises DatabaseError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.is_listening = False
        self.was_notified = False
        """Whether a notice ended the last wait."""

    def begin(self) -> None:
        """Listen for INSERTs. Call it before each look, so that no task is missed.

        Does nothing behind a transaction pooler, where a notice may reach another session.
        """
        self.is_listening = self._database.run(AT_ONCE, self._listen)

    def _listen(self) -> bool:
        if not self._database.session().commits_by_itself:
            return False
        self._database.execute(BEGIN)
        return True

    def wait(self, seconds: float) -> bool:
        """Wait for at most so long; whether a notice came."""
        self.was_notified = False
        connection = self._database.session().connection
        if not self.is_listening or connection is None:
            time.sleep(seconds)
            return False
        try:
            self.was_notified = any(True for _ in connection.notifies(timeout=seconds, stop_after=1))
        except DRIVER_ERRORS:  # the connection is lost: the next look reconnects
            self._database.disconnect()
            return True
        return self.was_notified

    def end(self) -> None:
        """Stop listening, so that producers send no notices for this worker."""
        if self.is_listening and self._database.is_connected:
            self._database.run(AT_ONCE, self._database.execute, END)
        self.is_listening = False
