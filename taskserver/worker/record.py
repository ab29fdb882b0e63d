"""What others see of a run: the record of its begin and end, and its process while it works."""

from __future__ import annotations

import time
from binascii import crc32
from collections.abc import Sequence
from contextlib import suppress
from logging import DEBUG, getLogger

from ..errors import Conflict, DatabaseError
from ..host.process_identity import host_name, own_identity
from ..messages.log_records import optional_step
from ..model.task import ALL_GROUPS
from ..stores import Store
from ..stores.queue.claims import new_number
from .result import Reason, RunResult

LOG = getLogger("taskserver")

SHOW_EVERY_SECONDS = 5.0
SHOW_LIFE_SECONDS = 60.0
LINE_SLACK_SECONDS = 10.0
"""The write of a run's begin may wait so long for others before it reads the database's clock."""
_MAX_TEXT = 255


class RunRecord:
    """The record of one run."""

    def __init__(
        self, store: Store, groups: Sequence[int], result: RunResult, line_began_at: float | None = None
    ) -> None:
        """No `groups`: all; `line_began_at` is that of `Stop`."""
        self._line_began_at = line_began_at
        self._store = store
        self._result = result
        self.host = host_name()
        self.groups = groups_text(groups)
        self.number = new_number()
        """The worker's number: its claim tokens start with it."""
        self._has_begun = False
        """Whether the begin is recorded."""
        self._is_registered = False
        self._shown_at = float("-inf")
        """By time.monotonic."""

    def begin(self) -> None:
        """Record that the run begins. Raises DatabaseError."""
        try:
            began_at = self._line_began_at
            age = 0.0 if began_at is None else time.monotonic() - began_at + LINE_SLACK_SECONDS
            self._store.runs.begin(self.host, self.groups, line_seconds=age)
            self._has_begun = True
        except Conflict as error:
            if self._store.has_one_writer:
                raise  # the record is locked, and so is everything else
            LOG.info("tasks run, though others hold the record of runs: %s", error)

    def end(self, reason: Reason, seconds: float) -> None:
        """Record the end of the run. Raises DatabaseError."""
        result = self._result
        result.end(reason, seconds)
        try:
            self._store.runs.end(self.host, self.groups, seconds, reason.value, result.counts(), self._has_begun)
        except Conflict as error:
            if self._store.has_one_writer or reason is Reason.ERROR:
                raise
            LOG.warning("this run is not recorded, as others hold the record of runs: %s", error)
        self.unregister()

    # ---- the process at work

    def register(self) -> None:
        """Show that this process has tasks, or waits for some. Raises Unavailable if the database is away."""
        if self._is_registered:
            return
        with optional_step("this worker is not shown among those at work"):
            self._store.processes.begin(self.number, self.host, self.groups, own_identity())
            self._is_registered = True
        with optional_step("old records of runs stay", DEBUG):
            self._store.runs.delete_old()

    def show(self, every_seconds: float = SHOW_EVERY_SECONDS) -> None:
        """Show the counts so far, at most every so many seconds. Raises Unavailable."""
        if not self._is_registered or time.monotonic() < self._shown_at + every_seconds:
            return
        with optional_step("the counts so far are not shown", DEBUG):
            self._store.processes.write_counts(self.number, self._result.all_counts())
        self._shown_at = time.monotonic()

    def show_alive(self) -> None:
        """The same if nothing changed, at most once a minute. Raises Unavailable."""
        self.show(SHOW_LIFE_SECONDS)

    def unregister(self) -> None:
        """Show that this process no longer works."""
        if self._is_registered:
            self._is_registered = False
            with suppress(DatabaseError):  # the next run here finds that the process is dead
                self._store.processes.end(self.number)


def groups_text(groups: Sequence[int]) -> str:
    """Groups for the record of runs: `3,5,6`, or `all`; a list that is too long ends in a checksum."""
    text = ",".join(map(str, groups)) or ALL_GROUPS
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[: _MAX_TEXT - 12]}...{crc32(text.encode()):08x}"
