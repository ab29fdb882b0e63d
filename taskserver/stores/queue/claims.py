"""Claims: new tasks taken for this worker by one UPDATE, read back, and given back where they were not started.

The UPDATE is the dialect's (mysql/claiming.py has the essay on it).
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import TYPE_CHECKING

from ...errors import Conflict, DatabaseError
from ...model.task import Claim, ClaimedTask
from ..database.database import MAX_IDS_PER_STATEMENT, Database
from ..database.retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope

if TYPE_CHECKING:
    from ..database.free_rows import FreeRows

MAX_GROUPS = 400
"""A claim names each group; SQLite joins 500 parts in one statement at most."""
MAX_INLINE_BYTES = 16 * 1024
"""Longer arguments stay in the database until their task's turn: a thousand of 1 MiB each fit into no small host."""
MAX_CLAIM_BYTES = 4 * 1024 * 1024
"""Arguments that one claim holds at most: of a claim of many rows, shorter ones stay in the database, too."""


class Claims:
    """The verbs of a worker before it starts a task."""

    def __init__(self, database: Database, lease_seconds: int, free_rows: Callable[[], FreeRows]) -> None:
        """`free_rows` makes them when a claim is given back."""
        self._database = database
        self._lease_seconds = lease_seconds
        self._free_rows = free_rows

    # ---- claim: new → in progress

    # updated_at may lie in the future or be no instant, as a producer wrote it: the wait then counts as 0.
    READ_CLAIM = """
        SELECT id, task, CASE WHEN {args_bytes} <= ? THEN args END, {args_bytes},
            attempts, max_attempts, claim, group_id, CASE WHEN {updated_at_age} > 0 THEN {updated_at_age} ELSE 0.0 END,
            stages, stage, awaited
        FROM {table} WHERE status = 1 AND claim = ? ORDER BY priority, id
    """
    READ_ARGS = "SELECT args FROM {table} WHERE id = ? AND status = 1 AND claim = ?"

    def claim(self, limit: int, groups: Sequence[int]) -> Claim:
        """New → in progress for up to `limit` rows of `groups` (none: of all), in order of priority, then id.

        A new row among them whose due_at lies ahead becomes waiting instead. Where others hold the rows, the claim gets
        nothing rather than wait for them: the caller looks again. Raises DatabaseError.
        """
        token = new_token()
        changed, some_may_wait = self._claim_unless_held(token, limit, groups)
        if not changed and not groups and (others := self._groups_beside(self.paused_groups())):
            changed, some_may_wait = self._claim_unless_held(token, limit, others)
        if not changed:
            return Claim([], 0)
        tasks = self.read(token, changed)
        if len(tasks) < changed and not some_may_wait:
            self._check_claim(token, len(tasks))
        return Claim(tasks, changed)

    def _check_claim(self, token: int, seen: int) -> None:
        """Raises DatabaseError, and gives the claim back, where it holds more than the `seen` tasks.

        Within the lease only a person's rerun or cancel takes a row from a claim. In a transaction the look asks the
        server that was written to, where a proxy sends single looks to a replica.
        """
        policy = RetryPolicy(Scope.TRANSACTION, self._database.conflict_seconds)
        taken = len(self._database.run(policy, self._database.rows, self.READ_CLAIM, (0, token)))
        if taken > seen:
            self._database.change(self.RELEASE_CLAIM, (token,))
            raise DatabaseError(
                f"a claim took {taken} tasks, and reads {seen} of them: does a proxy before the server read from a "
                "replica? name the main server itself in TASKSERVER_DSN"
            )

    def _claim_unless_held(self, token: int, limit: int, groups: Sequence[int]) -> tuple[int, bool]:
        """How many rows one claim changed, and whether some may wait; none where others hold rows that it wants."""
        policy = RetryPolicy(Scope.STATEMENT, HELD_PATIENCE_SECONDS)
        try:
            return self._database.run(policy, self._claimer(token, limit, groups))
        except Conflict as error:
            return (len(self.read(token, limit)) if error.may_have_taken_effect else 0), True

    def _claimer(self, token: int, limit: int, groups: Sequence[int]) -> Callable[[], tuple[int, bool]]:
        """The claim as work, which first looks for the rows that an earlier try may have claimed."""
        database, tries = self._database, count()

        def claim() -> tuple[int, bool]:
            if next(tries) and (rows := database.rows(self.READ_CLAIM, (0, token))):
                return len(rows), True
            return database.dialect.claiming.claim(database, token, self._lease_seconds, limit, groups)

        return claim

    def read(self, token: int, count: int) -> list[ClaimedTask]:
        """The tasks of a claim of up to `count` rows, in the order in which they are to run."""
        inline_bytes = min(MAX_INLINE_BYTES, MAX_CLAIM_BYTES // count)
        return [ClaimedTask(*row) for row in self._database.fetch(self.READ_CLAIM, (inline_bytes, token))]

    def fetch_args(self, task: ClaimedTask) -> str | None:
        """The arguments that the claim left in the database; None where there are none, or the claim was lost."""
        row = self._database.fetch_first(self.READ_ARGS, (task.id, task.claim))
        return row[0] if row else None

    def has_new(self, groups: Sequence[int]) -> bool:
        """Whether a plain look, which takes no locks and waits for none, finds a new row in these groups.

        Rows of paused groups do not count.
        """
        database, paused = self._database, self.paused_groups()
        if paused:
            groups = [group for group in groups if group not in paused] if groups else self._groups_beside(paused)
            if not groups:
                return False
        return database.dialect.claiming.has_new(database, groups)

    # ---- paused groups: no claim takes their rows

    PAUSED = "SELECT group_id FROM {paused} ORDER BY group_id"

    def paused_groups(self) -> Sequence[int]:
        """The groups whose tasks are not claimed for now, in order."""
        return [row[0] for row in self._database.fetch(self.PAUSED)]

    def _groups_beside(self, paused: Sequence[int]) -> Sequence[int]:
        """The groups beside the paused ones that have new rows; none where no group is paused.

        The claim of all groups reads in the order of all tasks: rows of paused groups would be in its way.
        """
        if not paused:
            return []
        with_new = self._database.dialect.claiming.groups_with_new(self._database)
        others = [group for group in with_new if group not in paused]
        # Where there are more groups than fit into one claim, they have their turns at random.
        return others if len(others) <= MAX_GROUPS else sorted(random.sample(others, MAX_GROUPS))

    # ---- release: in progress, unstarted → new

    RELEASE = """
        UPDATE {table} {by_key} SET status = 0, claim = NULL, due_at = NULL, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 1 AND claim = ? AND started_at IS NULL
    """

    RELEASE_CLAIM = """
        UPDATE {table} SET status = 0, claim = NULL, due_at = NULL, updated_at = updated_at
        WHERE status = 1 AND claim = ? AND started_at IS NULL
    """

    def release(self, tasks: Collection[ClaimedTask]) -> int:
        """In progress, unstarted → new for tasks of one claim; how many. No attempt is counted. Raises DatabaseError.

        A row that others hold is left until its lease ends.
        """
        ids = sorted(task.id for task in tasks)
        values, seconds = [task.claim for task in tasks][:1], self._database.conflict_seconds
        portions = (ids[first : first + MAX_IDS_PER_STATEMENT] for first in range(0, len(ids), MAX_IDS_PER_STATEMENT))
        return sum(self._free_rows().write(self.RELEASE, portion, values, (), seconds) for portion in portions)


def new_token() -> int:
    """A random claim token, from 0 to 2^63 - 1."""
    return int.from_bytes(os.urandom(8), "big") >> 1
