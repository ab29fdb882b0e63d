"""What others can see of a run: the record of its begin and end, and the process that is at work now."""

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
"""The write of a run's begin may wait so long for others, and compares with the database's clock after that."""
_MAX_TEXT = 255


class RunRecord:
    """The record of one run."""

    def __init__(
        self, store: Store, groups: Sequence[int], result: RunResult, line_began_at: float | None = None
    ) -> None:
        """Without `groups` the run takes tasks of all; `line_began_at` is as `Stop` has it."""
        self._line_began_at = line_began_at
        self._store = store
        self._result = result
        self.host = host_name()
        self.groups = groups_text(groups)
        self.number = new_number()
        """The worker's number, with which its claim tokens begin."""
        self._has_begun = False
        """Whether the record says that this run began."""
        self._is_at_work = False
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
                raise  # who holds the record holds all
            LOG.info("tasks run, though others hold the record of runs: %s", error)

    def end(self, reason: Reason, seconds: float) -> None:
        """Record how the run ended, after so many seconds. Raises DatabaseError."""
        result = self._result
        result.end(reason, seconds)
        try:
            self._store.runs.end(self.host, self.groups, seconds, reason.value, result.counts(), self._has_begun)
        except Conflict as error:
            if self._store.has_one_writer or reason is Reason.ERROR:
                raise
            LOG.warning("this run is not recorded, as others hold the record of runs: %s", error)
        self.leave()

    # ---- the process at work

    def be_at_work(self) -> None:
        """Show that this process has tasks now, or waits for some. Raises Unavailable where the database is away."""
        if self._is_at_work:
            return
        with optional_step("this worker is not shown among those at work"):
            self._store.processes.begin(self.number, self.host, self.groups, own_identity())
            self._is_at_work = True
        with optional_step("old records of runs stay", DEBUG):
            self._store.runs.forget_old()

    def show(self, every_seconds: float = SHOW_EVERY_SECONDS) -> None:
        """Show the counts so far, unless that was done less than so long ago. Raises Unavailable."""
        if not self._is_at_work or time.monotonic() < self._shown_at + every_seconds:
            return
        with optional_step("the counts so far are not shown", DEBUG):
            self._store.processes.show(self.number, self._result.all_counts())
        self._shown_at = time.monotonic()

    def show_life(self) -> None:
        """The same where nothing has changed, unless that was done a minute ago. Raises Unavailable."""
        self.show(SHOW_LIFE_SECONDS)

    def leave(self) -> None:
        """Show that this process is at work no more."""
        if self._is_at_work:
            self._is_at_work = False
            with suppress(DatabaseError):  # the next run here finds that the process is gone
                self._store.processes.end(self.number)


def groups_text(groups: Sequence[int]) -> str:
    """Groups as the record of runs keeps them: `3,5,6`, or `all`; a list too long for it ends in a checksum."""
    text = ",".join(map(str, groups)) or ALL_GROUPS
    if len(text) <= _MAX_TEXT:
        return text
    return f"{text[: _MAX_TEXT - 12]}...{crc32(text.encode()):08x}"
