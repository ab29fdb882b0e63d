"""Claims: new tasks taken for this worker by one UPDATE, read back, and given back where they were not started.

The UPDATE is the dialect's (mysql/claiming.py has the essay on it).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

from ...errors import Conflict, Crowded, DatabaseError
from ...model.task import MAX_GROUP_ID, NOTHING_CHANGED, Changed, Claim, ClaimedTask
from ..database import MAX_IDS_PER_STATEMENT, Database
from ..retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope

if TYPE_CHECKING:
    from ..free_rows import FreeRows
    from .beside_paused import BesidePaused

MAX_GROUPS = 400
"""A claim names each group; SQLite joins 500 parts in one statement at most."""
MAX_INLINE_BYTES = 16 * 1024
"""Longer texts stay in the database until their task's turn: a thousand of 1 MiB each fit into no small host."""
MAX_CLAIM_BYTES = 4 * 1024 * 1024
"""Arguments, and stages, that one claim holds at most: of a claim of many rows, shorter ones stay there, too."""

SLOW_SECONDS = 0.8
"""A claim that took so long waited for a row, where none is passed over."""
HELD_SECONDS = 60.0
"""After a claim that met too many rows, or waited for one, plain looks choose the rows for so long."""
HELD = Changed(0, some_may_wait=False)
"""Others hold rows that the claim wants."""

# updated_at may lie in the future or be no instant, as a producer wrote it: the wait then counts as 0.
CLAIMED = """
    id, task, CASE WHEN {args_bytes} <= ? THEN args END, {args_bytes},
    attempts, max_attempts, claim, group_id, CASE WHEN {updated_at_age} > 0 THEN {updated_at_age} ELSE 0.0 END,
    CASE WHEN {stages_bytes} <= ? THEN stages END, {stages_bytes}, stage, awaited,
    CASE WHEN error_text = {undated} THEN 1 ELSE 0 END
"""
"""The columns of a ClaimedTask; the bound numbers are `most_inline`."""

_RANDOM_BITS = 32
"""The lower half of a claim token."""

MARKED_AT = "1971-01-01 00:00:00"
"""In the row of the last group: all groups are paused (group_pauses.py)."""
MARKED_BESIDE_AT = "1971-01-02 00:00:00"
"""The same, of a last group that is paused by itself, too."""
IS_MARK = "paused_at < '1980-01-01 00:00:00'"
"""Whether a row of the last group has either."""
PAUSED_SECONDS = 1.0
"""Paused groups are known for so long: the claim that finds nothing because of them is spared."""


class Claims:
    """The verbs of a worker before it starts a task."""

    def __init__(self, database: Database, lease_seconds: int, free_rows: Callable[[], FreeRows]) -> None:
        """`free_rows` makes them when a claim is given back."""
        self._database = database
        self._lease_seconds = lease_seconds
        self._free_rows = free_rows
        self._in_doubt: set[int] = set()
        """Tokens of claims that are under way, and of which an earlier try may take effect as well."""
        self._held_until = 0.0
        """By time.monotonic: until then a plain look chooses the rows of a claim."""
        self._paused_until = 0.0
        """By time.monotonic: until then a claim of all groups takes it that some are paused, as they were."""
        self._are_all_paused = False
        """Whether all groups were."""

    # ---- claim: new → in progress

    READ_CLAIM = f"SELECT {CLAIMED} FROM {{table}} WHERE {{due_status}} = 1 AND claim = ? ORDER BY priority, id"
    READ_TEXTS = "SELECT args, stages FROM {table} WHERE id = ? AND status = 1 AND claim = ?"

    def claim(self, limit: int, groups: Sequence[int], number: int | None = None) -> Claim:
        """New → in progress for up to `limit` rows of `groups` (none: of all), in order of priority, then id.

        A new row among them whose due_at lies ahead becomes waiting instead. Where others hold the rows, the claim gets
        nothing rather than wait for them: the caller looks again. `number` is the worker's, which its claims tell
        (processes.py). Raises DatabaseError.
        """
        token = new_token(number)
        changed = self._claim_of_all(token, limit) if not groups else self._claim_of(token, limit, groups)
        in_doubt = token if token in self._in_doubt else None
        self._in_doubt.discard(token)
        if not changed.rows:
            return Claim([], 0, in_doubt)
        if changed.tasks is not None:
            return Claim(changed.tasks, changed.rows, in_doubt)
        tasks = self.read(token, changed.rows)
        if len(tasks) < changed.rows and not changed.some_may_wait:
            self._check_claim(token, len(tasks))
        return Claim(tasks, changed.rows, in_doubt)

    def _check_claim(self, token: int, seen: int) -> None:
        """Raises DatabaseError, and gives the claim back, where it holds more than the `seen` tasks.

        Within the lease only a person's rerun or cancel takes a row from a claim.
        """
        taken = len(self._read_written(self.READ_CLAIM, (0, 0, token)))
        if taken > seen:
            self.release_claim(token)
            raise DatabaseError(
                f"a claim took {taken} tasks, and reads {seen} of them: does a proxy before the server read from a "
                "replica? name the main server itself in TASKSERVER_DSN"
            )

    def _claim_of(self, token: int, limit: int, groups: Sequence[int]) -> Changed:
        database, lease_seconds = self._database, self._lease_seconds
        claim, claim_seen = database.dialect.claiming.claim, database.dialect.claiming.claim_seen
        changed = HELD
        if time.monotonic() >= self._held_until:
            changed = self._unless_held(token, lambda: claim(database, token, lease_seconds, limit, groups))
        if changed is not HELD or not (self._waits_for_rows or time.monotonic() < self._held_until):
            return changed  # a claim that passes over rows is held up by a lock on the whole table alone
        if claim_seen(database, self._free_rows(), token, lease_seconds, limit, groups):
            self._in_doubt.add(token)
        return self._claimed(token)

    def _claim_of_all(self, token: int, limit: int) -> Changed:
        if time.monotonic() >= self._paused_until:
            changed = self._claim_of(token, limit, ())
            last = None if changed.rows else self._last_paused()
            if last is None:
                return changed
            self._paused_until = time.monotonic() + PAUSED_SECONDS
            self._are_all_paused = bool(last[1])
        return NOTHING_CHANGED if self._are_all_paused else self._claim_beside_paused(token, limit)

    def _claim_beside_paused(self, token: int, limit: int) -> Changed:
        return self._beside_paused.claim(
            limit,
            self.paused_groups,
            lambda count: self._claim_first(token, limit, count),
            lambda groups: self._claim_of(token, limit, groups),
        )

    def _claim_first(self, token: int, limit: int, count: int) -> Changed:
        database = self._database
        claim_first = database.dialect.claiming.claim_first
        if time.monotonic() < self._held_until:
            return HELD
        return self._unless_held(token, lambda: claim_first(database, token, self._lease_seconds, limit, count))

    @cached_property
    def _beside_paused(self) -> BesidePaused:
        from .beside_paused import BesidePaused  # mostly no group is paused

        return BesidePaused(self._database, MAX_GROUPS)

    def _unless_held(self, token: int, claim: Callable[[], Changed]) -> Changed:
        """Claim; HELD, with nothing changed, where others hold rows that the claim wants.

        A further try first looks for the rows that an earlier one may have claimed.
        """
        database, tries = self._database, count()

        def try_claim() -> Changed:
            if next(tries):
                if rows := database.rows(self.READ_CLAIM, (0, 0, token)):
                    return Changed(len(rows), some_may_wait=True)
                if time.monotonic() < self._held_until:
                    raise Conflict("a claim met more rows of others than another try is worth")
            began_at = time.monotonic()
            try:
                return claim()
            except Conflict as error:
                is_slow = time.monotonic() - began_at > SLOW_SECONDS
                if isinstance(error, Crowded) or (is_slow and self._waits_for_rows):
                    self._held_until = time.monotonic() + HELD_SECONDS
                raise

        policy = RetryPolicy(Scope.STATEMENT, HELD_PATIENCE_SECONDS)
        try:
            changed, is_in_doubt = database.run_in_doubt(policy, try_claim)
        except Conflict as error:
            if not error.may_have_taken_effect:
                return HELD
            changed, is_in_doubt = self._claimed(token), True
        if is_in_doubt:
            self._in_doubt.add(token)
        return changed

    @property
    def _waits_for_rows(self) -> bool:
        """Whether a claim waits for rows that others hold, rather than pass over them."""
        return not (self._database.dialect.skips_locked or self._database.dialect.has_one_writer)

    def _claimed(self, token: int) -> Changed:
        """The rows that carry the token, by a look."""
        return Changed(len(self._read_written(self.READ_CLAIM, (0, 0, token))), some_may_wait=False)

    def read(self, token: int, count: int) -> list[ClaimedTask]:
        """The tasks of a claim of up to `count` rows, in the order in which they are to run."""
        most = most_inline(count)
        return [ClaimedTask(*row) for row in self._database.fetch(self.READ_CLAIM, (most, most, token))]

    def fetch_texts(self, task: ClaimedTask) -> ClaimedTask:
        """The task with its arguments and stages; without any where the claim was lost."""
        row = self._database.fetch_first(self.READ_TEXTS, (task.id, task.claim))
        args, stages = row or (None, None)
        return task._replace(args=args, stages=stages)

    def has_new(self, groups: Sequence[int]) -> bool:
        """Whether a plain look, which takes no locks and waits for none, finds a new row in these groups.

        Rows of paused groups do not count.
        """
        database = self._database
        if not database.dialect.claiming.has_new(database, groups):
            return False
        paused = self.paused_groups()
        if not paused:
            return True
        if not groups:
            if self.are_all_paused():
                return False
            from .beside_paused import groups_beside

            return bool(groups_beside(database, paused, most=1))
        beside = [group for group in groups if group not in paused]
        return bool(beside) and database.dialect.claiming.has_new(database, beside)

    # ---- paused groups: no claim takes their rows

    PAUSED = "SELECT group_id FROM {paused} ORDER BY group_id"

    def paused_groups(self) -> Sequence[int]:
        """The groups whose tasks are not claimed for now, in order."""
        return [row[0] for row in self._database.fetch(self.PAUSED)]

    # The mark of a pause of all is the last group's row: one look into the key tells whether any or all are paused.
    LAST_PAUSED = f"""
        SELECT group_id, CASE WHEN group_id = {MAX_GROUP_ID} AND {IS_MARK} THEN 1 ELSE 0 END
        FROM {{paused}} ORDER BY group_id DESC LIMIT 1
    """

    def _last_paused(self) -> Sequence[Any] | None:
        return self._database.fetch_first(self.LAST_PAUSED)

    def are_all_paused(self) -> bool:
        """Whether all groups are, those that come up later included."""
        last = self._last_paused()
        return last is not None and bool(last[1])

    # ---- release: in progress, unstarted → new

    RELEASE = """
        UPDATE {table} {by_key} SET status = 0, claim = NULL, due_at = NULL, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 1 AND claim = ? AND started_at IS NULL
    """

    UNSTARTED_OF_CLAIM = "SELECT id FROM {table} WHERE {due_status} = 1 AND claim = ? AND started_at IS NULL"

    def release(self, tasks: Collection[ClaimedTask]) -> int:
        """In progress, unstarted → new for tasks of one claim; how many. No attempt is counted. Raises DatabaseError.

        A row that others hold is left until its lease ends.
        """
        return self._release([task.id for task in tasks], next(iter(tasks)).claim) if tasks else 0

    def release_claim(self, token: int) -> int:
        """The same for all unstarted tasks of a claim, known or not. Raises DatabaseError."""
        # No index has the claim: a write that looked for it would wait for each running row that others hold.
        rows = self._read_written(self.UNSTARTED_OF_CLAIM, (token,))
        return self._release([row[0] for row in rows], token)

    def _release(self, ids: Sequence[int], token: int) -> int:
        ids, seconds = sorted(ids), self._database.conflict_seconds
        portions = (ids[first : first + MAX_IDS_PER_STATEMENT] for first in range(0, len(ids), MAX_IDS_PER_STATEMENT))
        return sum(self._free_rows().write(self.RELEASE, portion, (token,), (), seconds) for portion in portions)

    def _read_written(self, sql: str, values: Sequence[int]) -> Sequence[Sequence[Any]]:
        """The rows of a SELECT, from the server that is written to: a proxy sends single looks to a replica."""
        policy = RetryPolicy(Scope.TRANSACTION, self._database.conflict_seconds)
        return self._database.run(policy, self._database.rows, sql, values)


def most_inline(count: int) -> int:
    """The longest text, in bytes, that comes with its task in a claim of so many rows."""
    return min(MAX_INLINE_BYTES, MAX_CLAIM_BYTES // count)


def new_number() -> int:
    """A random number for a worker, from 0 to 2^31 - 1."""
    return int.from_bytes(os.urandom(4), "big") >> 1


def new_token(number: int | None = None) -> int:
    """A random claim token, from 0 to 2^63 - 1, of the worker of this number: of any, where there is none."""
    random = int.from_bytes(os.urandom(4), "big")
    return (new_number() if number is None else number) << _RANDOM_BITS | random


def number_of(token: int) -> int:
    """The number of the worker that has a claim token."""
    return token >> _RANDOM_BITS


def tokens_of(number: int) -> tuple[int, int]:
    """The first and the last claim token of a worker."""
    return number << _RANDOM_BITS, (number + 1 << _RANDOM_BITS) - 1
