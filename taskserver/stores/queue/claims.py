"""Claims: one UPDATE takes new tasks for this worker; those that it does not start are released.

The UPDATE is the dialect's (mysql/claiming.py has the essay on it). A claim skips paused groups.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial

from ...errors import Conflict, InvalidTask
from ...messages.programs import CLIENT
from ...model.task import MAX_GROUP_ID, MAX_GROUPS, Changed, Claim, ClaimedTask
from ..database import Database
from ..retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope

MAX_INLINE_BYTES = 16 * 1024
"""Longer texts stay in the database until their task's turn: a small host cannot hold a thousand of 1 MiB."""
MAX_CLAIM_BYTES = 4 * 1024 * 1024
"""The maximum of arguments and of stages in one claim: in a claim of many rows, shorter texts stay there too."""

SCHEDULE_KEY = "CASE WHEN unique_key >= 'schedule:' AND unique_key < 'schedule;' THEN unique_key END"
"""The unique_key of a task that a schedule added; NULL for others."""
# A producer may have written an updated_at in the future or an invalid one: the wait is then 0.
CLAIMED = f"""
    id, task, CASE WHEN {{args_bytes}} <= ? THEN args END, {{args_bytes}},
    attempts, max_attempts, claim, group_id, CASE WHEN {{updated_at_age}} > 0 THEN {{updated_at_age}} ELSE 0.0 END,
    CASE WHEN {{stages_bytes}} <= ? THEN stages END, {{stages_bytes}}, stage, awaited,
    CASE WHEN error_text = {{undated}} THEN 1 ELSE 0 END,
    {SCHEDULE_KEY}
"""
"""The columns of a ClaimedTask; the bound numbers are `most_inline`."""

_RANDOM_BITS = 32
"""The lower half of a claim token."""

PAUSE_OF_ALL = MAX_GROUP_ID + 1
"""The row of this group, which no task has, pauses all groups; the dialects' claims check it too."""
LISTED_SECONDS = 1.0
"""While groups are paused, a worker lists the others that have new tasks. It keeps the list for so long, or for
LISTED_PER_SECOND times as long as listing took."""
LISTED_PER_SECOND = 10.0
MAX_LISTED_GROUPS = 1_000_000
MAX_LISTED_ROWS = 4000
"""The rows that a claim of listed groups reads in all."""

HELD_POLICY = RetryPolicy(Scope.STATEMENT, HELD_PATIENCE_SECONDS)


class Claims:
    """The verbs of a worker before it starts a task. Raises DatabaseError."""

    def __init__(self, database: Database, lease_seconds: int) -> None:
        self._database = database
        self._lease_seconds = lease_seconds
        self._groups: Sequence[int] = ()
        """The listed groups that claims name, while others are paused."""
        self._listed_until = 0.0
        """By time.monotonic."""

    # ---- claim: new → in progress

    # By the index: amid the entries of tasks that ended, MariaDB would read the whole table instead.
    READ_CLAIM = f"""
        SELECT {CLAIMED} FROM {{table}} {{by_due}} WHERE {{due_status}} = 1 AND claim = ? ORDER BY priority, id
    """
    READ_TEXTS = "SELECT args, stages FROM {table} WHERE id = ? AND status = 1 AND claim = ?"

    def claim(self, limit: int, groups: Sequence[int], number: int | None = None) -> Claim:
        """New → in progress for up to `limit` rows of `groups` (none: all), in order of priority, then id.

        A row with due_at in the future becomes waiting. The claim does not wait for held rows: the caller looks again.
        `number` is the worker's; its tokens contain it.
        """
        is_listed = not groups and time.monotonic() < self._listed_until
        of_groups = self._groups if is_listed else groups
        if is_listed:  # it reads and locks up to `limit` rows of each group
            limit = min(limit, max(MAX_LISTED_ROWS // len(of_groups), 1))
        database, token = self._database, new_token(number)
        try:
            changed, in_doubt = database.run_in_doubt(
                HELD_POLICY, database.dialect.claiming.claim, database, token, self._lease_seconds, limit, of_groups
            )
        except Conflict as error:
            changed, in_doubt = Changed(0), error.in_doubt
        tasks, rows = changed.tasks or [], changed.rows
        if in_doubt:  # an earlier try may have claimed these rows or others before its connection broke
            found = self.read(token, limit)
            tasks, rows = found[:limit], max(rows, len(found))
            self.release(found[limit:])
        elif rows and changed.tasks is None:
            tasks = self.read(token, rows)
        if is_listed and not rows:
            self._listed_until = 0.0
        elif not rows and not groups:
            paused, are_all = self.paused()
            if paused and not are_all and self._list_groups(paused):
                return self.claim(limit, groups, number)
        return Claim(tasks, rows)

    def read(self, token: int, count: int) -> list[ClaimedTask]:
        """The tasks of a claim of up to `count` rows, in the order in which they run."""
        most = most_inline(count)
        return [ClaimedTask(*row) for row in self._database.fetch(self.READ_CLAIM, (most, most, token))]

    def fetch_texts(self, task: ClaimedTask) -> ClaimedTask:
        """The task with its arguments and stages, or without if the claim was lost."""
        row = self._database.fetch_first(self.READ_TEXTS, (task.id, task.claim))
        args, stages = row or (None, None)
        return task._replace(args=args, stages=stages)

    def has_new(self, groups: Sequence[int]) -> bool:
        """Whether these groups have a new row, except paused ones; without locks."""
        has_new = self._database.dialect.claiming.has_new
        if not has_new(self._database, groups):
            return False
        paused, are_all = self.paused()
        if not paused or are_all:
            self._listed_until = 0.0
            return not are_all
        if not groups:
            return self._list_groups(paused)
        unpaused = [group for group in groups if group not in paused]
        return bool(unpaused) and has_new(self._database, unpaused)

    # ---- pauses: no claim takes rows of a paused group

    PAUSED = "SELECT group_id FROM {paused} ORDER BY group_id"

    def paused(self) -> tuple[list[int], bool]:
        """The groups that are paused one by one, in order; whether all groups are, including future ones."""
        groups = [row[0] for row in self._database.fetch(self.PAUSED)]
        are_all = groups[-1:] == [PAUSE_OF_ALL]
        return groups[:-1] if are_all else groups, are_all

    def _list_groups(self, paused: Collection[int]) -> bool:
        """List unpaused groups with new tasks, a random choice if one claim cannot name all. Whether there are any."""
        began_at = time.monotonic()
        sql = self._database.words["groups_of_status"].format("{table}", "{by_status}", 0)
        new = {row[1] for row in self._database.fetch(sql, (MAX_LISTED_GROUPS,))}
        found = sorted(new.difference(paused))
        self._groups = found if len(found) <= MAX_GROUPS else random.sample(found, MAX_GROUPS)
        now = time.monotonic()
        self._listed_until = now + max(LISTED_SECONDS, LISTED_PER_SECOND * (now - began_at)) if found else 0.0
        return bool(found)

    PAUSE = "{insert_or_ignore} INTO {paused} (group_id) VALUES (?) {or_ignore}"
    RESUME = "DELETE FROM {paused} WHERE group_id = ?"
    RESUME_ALL = "DELETE FROM {paused}"

    def pause(self, groups: Iterable[int]) -> list[int]:
        """Stop claims of these groups, from the next claim on; the groups that were not paused before."""
        return [group for group in groups if self._database.change(self.PAUSE, (group,)) == 1]

    def pause_all(self) -> None:
        self.pause([PAUSE_OF_ALL])

    def resume(self, groups: Iterable[int]) -> list[int]:
        """Allow claims of these groups again; the groups that were paused.

        Raises InvalidTask while all groups are paused.
        """
        _, are_all = self.paused()
        if are_all:
            raise InvalidTask(f"all groups are paused: run {CLIENT} resume --all first")
        return [group for group in groups if self._database.change(self.RESUME, (group,)) == 1]

    def resume_all(self) -> int:
        """Allow all claims again; how many pauses ended."""
        return self._database.change(self.RESUME_ALL)

    # ---- release: in progress, unstarted → new

    RELEASE = """
        UPDATE {table} {by_key} SET status = 0, claim = NULL, due_at = NULL, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 1 AND claim = ? AND started_at IS NULL
    """

    def release(self, tasks: Collection[ClaimedTask]) -> int:
        """In progress, unstarted → new for tasks of one claim; how many. No attempt is counted.

        A held row stays until its lease ends.
        """
        if not tasks:
            return 0
        from ..free_rows import write_free  # usually all tasks of a claim are started

        claim, seconds = next(iter(tasks)).claim, self._database.conflict_seconds
        release = partial(self._database.write_ids, self.RELEASE, after=(claim,))
        with suppress(Conflict):
            return write_free(self._database, [task.id for task in tasks], release, seconds)
        return 0


def most_inline(count: int) -> int:
    """The longest text, in bytes, that a claim of so many rows returns with its task."""
    return min(MAX_INLINE_BYTES, MAX_CLAIM_BYTES // count)


def new_number() -> int:
    """A random number for a worker, from 0 to 2^31 - 1."""
    return int.from_bytes(os.urandom(4), "big") >> 1


def new_token(number: int | None = None) -> int:
    """A random claim token, from 0 to 2^63 - 1; with the worker's number, if given."""
    low = int.from_bytes(os.urandom(4), "big")
    return (new_number() if number is None else number) << _RANDOM_BITS | low


def number_of(token: int) -> int:
    """The worker's number in a claim token."""
    return token >> _RANDOM_BITS


def tokens_of(number: int) -> tuple[int, int]:
    """The first and the last claim token of a worker."""
    return number << _RANDOM_BITS, (number + 1 << _RANDOM_BITS) - 1
