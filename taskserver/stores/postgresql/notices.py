"""What wakes a waiting worker on PostgreSQL: a notice of each INSERT of tasks (LISTEN, NOTIFY).

A trigger sends the notice, without payload (the schema's function `…_notify`). Notices are expensive: commits that send
some wait for one another. So the trigger sends none unless a worker waits. It sees that by an advisory lock: a waiting
worker holds the lock, and an INSERT tries to share it. The lock ends with the worker's session.

A notice is only a hint. Some changes send none: retries, resumed groups, schedules, tasks that become due, and an
INSERT that ran before the worker waited. The worker finds them with its look once a second.
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
        """Whether a notice ended the last rest."""

    def begin(self) -> None:
        """Listen for INSERTs from now on; look for new tasks afterwards. Called before each look.

        Does nothing behind a transaction pooler, where a notice reaches any session.
        """
        self.is_listening = self._database.run(AT_ONCE, self._listen)

    def _listen(self) -> bool:
        if not self._database.session().commits_by_itself:
            return False
        self._database.execute(BEGIN)
        return True

    def wait(self, seconds: float) -> bool:
        """Rest for so long at most; whether a notice came."""
        self.was_notified = False
        connection = self._database.session().connection
        if not self.is_listening or connection is None:
            time.sleep(seconds)
            return False
        try:
            self.was_notified = any(True for _ in connection.notifies(timeout=seconds, stop_after=1))
        except DRIVER_ERRORS:  # the connection is lost: the look connects again
            self._database.disconnect()
            return True
        return self.was_notified

    def end(self) -> None:
        """Get no notices any more, so that producers need not send any for this worker."""
        if self.is_listening and self._database.is_connected:
            self._database.run(AT_ONCE, self._database.execute, END)
        self.is_listening = False
