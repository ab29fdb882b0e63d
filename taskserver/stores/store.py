"""What a store can do with the queue, in the order of a task's life, and the SQL that all databases share.

Stands between the runner and a database: nothing above sees SQL, a cursor or a driver's error. A dialect
(mysql.py, sqlite.py) says how it connects, how it claims, and the words in which it differs.

Three rules hold for every write to a claimed row: it names the row by its primary key, it names the claim
token, and it counts the rows that it matched. The token decides who may write, never the clock.
"""

from __future__ import annotations

import os
import random
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import Conflict, DatabaseError
from ..lifecycle import CANCELLED, Claim, ClaimedTask, Due, Finish, LostTask, Outcome, Start, Status
from .adding import Adding
from .database import IDS_A_STATEMENT, P, Row, T, Write, with_ids
from .tries import Way
from .views import Views

if TYPE_CHECKING:
    from .task_session import TaskSession

HELD_PATIENCE_SECONDS = 0.2
"""For deadlocks, on servers without SKIP LOCKED; longer waits are the runner's, which hears of signals between."""

MOST_HELD = 2
"""Each costs a turn of waiting where it can't be skipped; of a portion in which so many are met, the rest is left."""

AT_ONCE = Way(None, conflict_seconds=0)

MOST_GROUPS = 400
"""A claim names each group; SQLite joins 500 parts in one statement at most."""

DUE_A_LOOK = 250
"""Rows of each kind that one look for what is due finds: bounded, so that no transaction is long."""


class Store(Adding, Views):
    """The queue in one database."""

    one_writer = False
    """Whether who writes keeps all others from writing, not only those who want the same rows."""

    # ---- what is due: found without locks, then written by sorted primary keys
    #
    # An UPDATE over the range of due rows would lock what it reads in the order of that index, and deadlock with
    # claims, which lock in theirs. So the ids are looked up first, and each write looks again whether its row is due.

    DUE = " UNION ALL ".join(
        f"""
        SELECT * FROM (SELECT id, status, started_at IS NOT NULL, attempts, max_attempts, task, group_id,
                           {{is_cancelled}}, {linked}
                       FROM {{table}} WHERE {condition} LIMIT ?) AS {name}
        """
        for name, (linked, condition) in {
            "failed": (0, "status = 3 AND due_at <= {now} ORDER BY due_at"),
            "waiting": ("CASE WHEN {is_linked} THEN 1 ELSE 0 END", "status = 5 AND due_at <= {now} ORDER BY due_at"),
            "expired": (0, "status = 1 AND due_at <= {now} ORDER BY due_at"),
            # Over, and what waits for it has not been told.
            "done": (1, "status = 2 AND due_at <= {now} ORDER BY due_at"),
            "fatal": (1, "status = 4 AND due_at <= {now} ORDER BY due_at"),
            # Rows that nobody here wrote: without an instant they would stay as they are for ever.
            "failed_forged": (0, "status = 3 AND due_at IS NULL"),
            "claimed_forged": (0, "status = 1 AND due_at IS NULL"),
        }.items()
    )
    # They come along in the same look, so that queues without any pay nothing for them; the last number tells them. The
    # others are of no meaning: beside an unsigned column a 0 or NULL would make MariaDB give all of them as decimals.
    DUE_SCHEDULES = """
        UNION ALL
        SELECT group_id, group_id, 0, group_id, group_id, name, group_id, 0, -1
        FROM (SELECT name, group_id FROM {schedules} WHERE next_at <= {now} ORDER BY next_at LIMIT ?) AS scheduled
    """
    IS_DUE = "(due_at <= {now} OR due_at IS NULL)"

    def look_for_due(self) -> Due:
        """Rows whose time has come and claims whose lease has ended, the oldest of each first, a portion at most."""
        found = self._alone(self._all, self.DUE + self.DUE_SCHEDULES, [DUE_A_LOOK] * 8)
        rows = [row for row in found if not row[8]]
        expired = [row for row in rows if row[1] == Status.IN_PROGRESS]
        return Due(
            to_wake=sorted(row[0] for row in rows if row[1] != Status.IN_PROGRESS),
            unstarted=sorted(row[0] for row in expired if not row[2]),
            lost=sorted((_lost_task(row) for row in expired if row[2]), key=lambda lost: lost.id),
            schedules=[row[5] for row in found if row[8] < 0],
            linked=sorted(row[0] for row in found if row[8] > 0),
        )

    # ---- wake: waiting, error → new

    # A new row's updated_at is the instant since which it is ready: a claim reads from it how long the task waited. Its
    # time may lie before it was added, or failed.
    WAKE = """
        UPDATE {table} {by_key}
        SET status = 0, updated_at = CASE WHEN due_at > updated_at THEN due_at ELSE updated_at END, due_at = NULL
        WHERE id IN ({ids}) AND (status IN (3, 5) AND due_at <= {now} OR status = 3 AND due_at IS NULL)
    """

    def wake(self, ids: Sequence[int]) -> int:
        """Waiting, error → new for rows whose time has come. How many."""
        return self._write_free(self.WAKE, ids)

    # ---- reclaim: in progress with an ended lease → new, error, fatal

    RECLAIM = f"""
        UPDATE {{table}} {{by_key}} SET status = 0, claim = NULL, due_at = NULL, updated_at = updated_at
        WHERE id IN ({{ids}}) AND status = 1 AND started_at IS NULL AND {IS_DUE}
    """
    # As it was when it was looked at: what is to become of it was decided by these.
    WHICH_LOST = f"""
        WHERE id = ? AND status = 1 AND started_at IS NOT NULL AND attempts = ? AND COALESCE(max_attempts, 0) = ?
            AND {{is_cancelled}} = ? AND {IS_DUE}
    """
    RERUN_LOST = f"""
        UPDATE {{table}} {{by_key}}
        SET status = 0, claim = NULL, due_at = NULL, error_text = NULL, updated_at = {{now}}
        {WHICH_LOST}
    """
    RETRY_LOST = f"""
        UPDATE {{table}} {{by_key}}
        SET status = 3, claim = NULL, due_at = {{after}}, error_text = ?, updated_at = {{now}}
        {WHICH_LOST}
    """
    # One that may start once only keeps its token: its worker may be alive after all, and complete it.
    GIVE_UP_LOST = f"""
        UPDATE {{table}} {{by_key}} SET status = 4, claim = CASE WHEN ? = 1 THEN claim END, max_attempts = ?,
            due_at = CASE WHEN awaited <> 0 THEN {{now}} END, error_text = ?, finished_at = {{now}},
            updated_at = {{now}}
        {WHICH_LOST}
    """

    def reclaim_unstarted(self, ids: Sequence[int]) -> int:
        """In progress, unstarted, lease ended → new, as if never claimed. How many."""
        return self._write_free(self.RECLAIM, ids)

    def reclaim_lost(self, lost: LostTask, limit: int, error_text: str, retry_seconds: float | None) -> bool:
        """In progress, started, lease ended → error, to be retried after so many seconds, or (None) fatal.

        → new where a rerun came while it ran. `limit` is how often it may start. Whether the row was still so.
        """
        which = (lost.id, lost.attempts, lost.max_attempts or 0, int(lost.is_cancelled))
        if lost.is_to_rerun:
            written = self._unless_held(self._write, self.RERUN_LOST, which)
        elif retry_seconds is None:
            keeps_token = limit == 1 and not lost.is_cancelled
            written = self._unless_held(self._write, self.GIVE_UP_LOST, (int(keeps_token), limit, error_text, *which))
        else:
            written = self._unless_held(self._write, self.RETRY_LOST, (retry_seconds, error_text, *which))
        # Where the answer was cut off the row cannot tell whose write it was: rather told twice than not at all.
        return bool(written) or self._may_have_taken_effect()

    def _write_free(self, sql: str, ids: Sequence[int], values: Sequence[Any] = ()) -> int:
        """How many rows a write changed, without those that others hold: what is due is looked at again."""
        if not ids:
            return 0
        if self.one_writer:
            return self._unless_held(self._write_ids, sql, ids, values)
        with suppress(Conflict):
            return self._do(AT_ONCE, self._write_ids, sql, ids, values)
        with suppress(Conflict):
            written = self._write_unheld(sql, ids, values)
            if written is not None:
                return written
        return self._write_singly(sql, ids, values)

    def _write_unheld(self, sql: str, ids: Sequence[int], values: Sequence[Any]) -> int | None:
        """How many rows a write changed of those that nobody holds; None where they cannot be told apart."""
        return None

    def _locking(self, work: Callable[[str], T]) -> T:
        """Do what reads rows to lock them; it gets the end of its SELECT, which passes over those that others hold."""
        return work("")

    def _write_singly(self, sql: str, ids: Sequence[int], values: Sequence[Any]) -> int:
        written = held = 0
        # Not in order: what is left today would be left tomorrow, and one row at a time cannot deadlock.
        for row_id in random.sample(ids, len(ids)):
            try:
                written += self._do(AT_ONCE, self._write_ids, sql, [row_id], values)
            except Conflict:
                held += 1
                if held == MOST_HELD:
                    break
        return written

    def _unless_held(self, write: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> int:
        """How many rows a write changed: none where others hold one of them, to be looked at again in the next turn."""
        try:
            return self._do(Way(None, HELD_PATIENCE_SECONDS), write, *args, **kwargs)
        except Conflict:
            return 0

    # ---- claim: new → in progress

    # An updated_at of the future, or one that is no instant, is a producer's own: it says of no wait.
    READ_CLAIM = """
        SELECT id, task, CASE WHEN {args_bytes} <= {inline_bytes} THEN args END, {args_bytes},
            attempts, max_attempts, claim, group_id, CASE WHEN {updated_at_age} > 0 THEN {updated_at_age} ELSE 0.0 END,
            stages, stage, awaited
        FROM {table} WHERE status = 1 AND claim = ? ORDER BY priority, id
    """
    READ_ARGS = "SELECT args FROM {table} WHERE id = ? AND status = 1 AND claim = ?"

    def claim(self, limit: int, groups: Sequence[int]) -> Claim:
        """New → in progress for up to `limit` rows of `groups` (none: of all), in order of priority, then id.

        A new row whose due_at lies ahead that is met on the way becomes waiting instead. Where others hold the rows
        it gets nothing, rather than to wait for them: the caller looks again.
        """
        token = int.from_bytes(os.urandom(8), "big") >> 1
        changed = self._unless_held(self._claim_once, token, limit, groups)
        if not changed and not groups and (others := self._groups_beside(self.paused_groups())):
            changed = self._unless_held(self._claim_once, token, limit, others)
        if not changed:
            return Claim([], 0)
        return Claim(self._read_claim(token), changed)

    def _claim_once(self, token: int, limit: int, groups: Sequence[int]) -> int:
        """How many rows were changed; where an earlier try broke off, those that it got are looked for first."""
        if self._may_have_taken_effect() and (tasks := self._claimed_by(token)):
            return len(tasks)
        return self._claim(token, limit, groups)

    def _read_claim(self, token: int) -> list[ClaimedTask]:
        return self._alone(self._claimed_by, token)

    def _claimed_by(self, token: int) -> list[ClaimedTask]:
        return [ClaimedTask(*row) for row in self._all(self.READ_CLAIM, (token,))]

    @abstractmethod
    def _claim(self, token: int, limit: int, groups: Sequence[int]) -> int:
        """The one claiming UPDATE. How many rows it changed."""

    def has_new(self, groups: Sequence[int]) -> bool:
        """Whether a plain look, which takes no locks and waits for none, finds a new row in these groups.

        Rows of paused groups do not count.
        """
        paused = self.paused_groups()
        if not paused:
            return self._has_new(groups)
        groups = [group for group in groups if group not in paused] if groups else self._groups_beside(paused)
        return bool(groups) and self._has_new(groups)

    @abstractmethod
    def _has_new(self, groups: Sequence[int]) -> bool:
        """The look itself, in groups that are not paused."""

    # ---- paused groups: no claim takes their rows

    PAUSED = "SELECT group_id FROM {paused} ORDER BY group_id"

    def paused_groups(self) -> Sequence[int]:
        """Those whose tasks are not claimed for now."""
        return [row[0] for row in self._alone(self._all, self.PAUSED)]

    def _groups_beside(self, paused: Sequence[int]) -> Sequence[int]:
        """The other groups that have new rows, where some are paused; none where none is.

        The claim of all groups reads in the order of all tasks, in which those of paused groups would be in its way.
        """
        others = [group for group in self._groups_with_new() if group not in paused] if paused else []
        # More than fit into one claim have their turns at random.
        return others if len(others) <= MOST_GROUPS else sorted(random.sample(others, MOST_GROUPS))

    @abstractmethod
    def _groups_with_new(self) -> Sequence[int]:
        """The groups that have new rows, found by the index."""

    def fetch_args(self, task: ClaimedTask) -> str | None:
        """The arguments that the claim left in the database. None if the claim was lost, too."""
        row = self._alone(self._first, self.READ_ARGS, (task.id, task.claim))
        return row[0] if row else None

    # ---- start: in progress, unstarted → in progress, started; renew: its lease anew

    START = """
        UPDATE {table} {by_key}
        SET attempts = attempts + 1, max_attempts = COALESCE(max_attempts, ?), started_at = {now}, due_at = {after},
            error_text = NULLIF(error_text, {cancelled}), result = NULL, progress = NULL, updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NULL
    """
    # Not that of a row which a rerun changed meanwhile: it may name another callable.
    LIMIT_ATTEMPTS = """
        UPDATE {table} {by_key}
        SET max_attempts = COALESCE(max_attempts, CASE WHEN attempts > 0 THEN ? END), due_at = {after},
            updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ?
    """
    RENEW = "UPDATE {table} {by_key} SET due_at = {after}, updated_at = {now} WHERE id = ? AND status = 1 AND claim = ?"

    def limit_attempts(self, task: ClaimedTask, max_attempts: int) -> bool:
        """Record the limit of a started task, where it was not known at the start, and let its lease begin anew.

        Whether the claim still stands.
        """
        values = (max_attempts, self._lease_seconds, task.id, task.claim)
        return self._alone(self._write, self.LIMIT_ATTEMPTS, values) == 1

    LOOK_WHETHER_CANCELLED = "SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ? AND {is_cancelled} = 1"

    def renew(self, task: ClaimedTask) -> bool:
        """Let the lease of a started task begin anew. Whether the claim still stands."""
        return self._alone(self._write, self.RENEW, (self._lease_seconds, task.id, task.claim)) == 1

    def is_cancelled(self, task: ClaimedTask) -> bool:
        """Whether a person cancelled a task that is running."""
        return bool(self._alone(self._all, self.LOOK_WHETHER_CANCELLED, (task.id, task.claim)))

    # That of a task which may start once only stays where it was given up as lost: it is completed all the same.
    OURS = "SELECT id, {is_cancelled} FROM {table} {by_key} WHERE id IN ({ids}) AND claim = ?"
    TELL = """
        UPDATE {table} {by_key} SET progress = ?, updated_at = {now} WHERE id IN ({ids}) AND status = 1 AND claim = ?
    """

    def ours(self, tasks: Sequence[ClaimedTask]) -> dict[int, bool]:
        """Which of the running tasks of one call still carry their claim, by id, and whether a person cancelled it."""
        ids = [task.id for task in tasks]
        rows = self._alone(self._all, with_ids(self.OURS, ids), (*ids, tasks[0].claim))
        return {row[0]: bool(row[1]) for row in rows}

    def tell(self, tasks: Sequence[ClaimedTask], progress: str, conflict_seconds: float) -> int:
        """Store how far the running tasks of one call have come. How many of them still carried their claim.

        Raises Conflict where others hold one of the rows for so long.
        """
        ids = sorted([task.id for task in tasks])
        way = Way(None, conflict_seconds, repeatable=False)  # nobody waits for the database for that
        return self._do(way, self._write, with_ids(self.TELL, ids), (progress, *ids, tasks[0].claim))

    LOOK_WHETHER_CHANGED = """
        SELECT 1 FROM {table} WHERE id = ? AND status = 1 AND claim = ? AND attempts = 0 AND {is_cancelled} = 0
    """

    def is_to_run_again(self, task: ClaimedTask) -> bool:
        """Whether a rerun came while it ran."""
        return bool(self._alone(self._all, self.LOOK_WHETHER_CHANGED, (task.id, task.claim)))

    # ---- finish: in progress → done, error, fatal

    # Each of these leaves a row alone that a rerun changed while it ran, which set its attempts to 0; those that fail
    # leave alone one that was cancelled meanwhile; those that end a task leave alone one for which others wait. All are
    # rare, and looked after when a write matched nothing.

    IS_OURS = "id = ? AND status = 1 AND claim = ? AND (attempts > 0 OR started_at IS NULL)"
    IS_ALONE = f"{IS_OURS} AND awaited = 0"
    DELETE = f"DELETE FROM {{table}} WHERE {IS_ALONE}"
    MARK = f"""
        UPDATE {{table}} {{by_key}}
        SET status = 2, claim = NULL, due_at = NULL, error_text = NULL, finished_at = {{now}}, updated_at = {{now}}
        WHERE {IS_ALONE}
    """
    # A move is three writes in one transaction. The first takes the row's lock and says whether the claim still
    # stands; the others find only what it left, by a status that nobody else sees.
    MARK_TO_MOVE = MARK.replace("status = 2, claim = NULL,", "status = 6,")
    ARCHIVE = """
        INSERT INTO {done} ({columns}) SELECT {archived_columns} FROM {table}
        WHERE id = ? AND status = 6 AND claim = ?
    """
    DELETE_ARCHIVED = "DELETE FROM {table} WHERE id = ? AND status = 6 AND claim = ?"
    COMPLETE: ClassVar = {"delete": (DELETE,), "mark": (MARK,), "move": (MARK_TO_MOVE, ARCHIVE, DELETE_ARCHIVED)}
    RETRY = f"""
        UPDATE {{table}} {{by_key}}
        SET status = 3, claim = NULL, due_at = {{after}}, error_text = ?, updated_at = {{now}}
        WHERE {IS_OURS} AND {{is_cancelled}} = 0
    """
    GIVE_UP = f"""
        UPDATE {{table}} {{by_key}}
        SET status = 4, claim = NULL, due_at = NULL, error_text = ?,
            attempts = attempts - CASE WHEN attempts > 0 THEN ? ELSE 0 END, finished_at = {{now}},
            updated_at = {{now}}
        WHERE {IS_ALONE} AND ({{is_cancelled}} = 0 OR started_at IS NULL)
    """
    # → done, fatal, with the sign that what waits for it is to be told; in modes delete and move it stays till then.
    MARK_AWAITED = MARK.replace("due_at = NULL", "due_at = {now}").replace("awaited = 0", "awaited <> 0")
    GIVE_UP_AWAITED = GIVE_UP.replace("due_at = NULL", "due_at = {now}").replace("awaited = 0", "awaited <> 0")
    # → new, as the next stage of its pipeline. One that was cancelled while it ran has none.
    NEXT_STAGE = f"""
        UPDATE {{table}} {{by_key}}
        SET status = 0, task = ?, args = ?, group_id = COALESCE(?, group_id), priority = COALESCE(?, priority),
            max_attempts = ?, attempts = 0, stage = stage + 1, claim = NULL, due_at = NULL, started_at = NULL,
            error_text = NULL, progress = NULL, updated_at = {{now}}
        WHERE {IS_OURS} AND {{is_cancelled}} = 0
    """
    # → new, however the run ended.
    RUN_AGAIN = """
        UPDATE {table} {by_key} SET status = 0, claim = NULL, due_at = NULL, error_text = NULL, updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NOT NULL AND attempts = 0 AND {is_cancelled} = 0
    """
    # A run that failed, or what was to follow it.
    CANCEL = """
        UPDATE {table} {by_key}
        SET status = 4, claim = NULL, due_at = CASE WHEN awaited <> 0 THEN {now} END, finished_at = {now},
            updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NOT NULL AND {is_cancelled} = 1
            AND (attempts = 0 OR ? = 1)
    """
    # Of a task that may start once only: fatal, because its worker seemed to have vanished → in progress, to be
    # completed in the same transaction. What a person did to it meanwhile took its status or its token away.
    RESUME = """
        UPDATE {table} {by_key} SET status = 1, attempts = CASE WHEN attempts > 0 THEN attempts ELSE 1 END
        WHERE id = ? AND status = 4 AND claim = ? AND max_attempts = 1 AND error_text LIKE 'lost: %'
    """
    FIND = "SELECT status, claim, started_at IS NOT NULL, error_text, attempts, stage FROM {table} WHERE id = ?"

    def advance(
        self, finishes: Sequence[Finish], start: Start | None, is_repeated: bool = False
    ) -> tuple[list[int], bool]:
        """Finish tasks and start the next one in one commit.

        in progress → gone, archived, done, error or fatal; in progress, unstarted → in progress, started.
        For each finish its Outcome, LOST where the row did not carry our claim any more and (`is_repeated`) is not as
        an earlier try with an error that may have taken effect would leave it; for the start, whether it did. Raises
        Conflict at once, with nothing written, where there are both and others hold one of the rows: what has ended
        need not wait for what has not begun, so each is to be tried by itself.
        """
        if not finishes or start is None:
            return self._advance(finishes, start, self._conflict_seconds, is_repeated)
        try:
            return self._advance(finishes, start, 0, is_repeated)
        except Conflict as error:
            if not error.may_have_taken_effect:
                raise
        try:
            return self._advance(finishes, start, self._conflict_seconds, is_repeated=True)
        except DatabaseError as error:
            error.may_have_taken_effect = True
            raise

    def _advance(
        self, finishes: Sequence[Finish], start: Start | None, conflict_seconds: float, is_repeated: bool
    ) -> tuple[list[int], bool]:
        writes = [self.writes_of(finish) for finish in finishes]
        if start is not None:
            writes.append([(self.START, (start.max_attempts, self._lease_seconds, start.task.id, start.task.claim))])
        if not writes:
            return [], False
        matched = self._together([write for several in writes for write in several], conflict_seconds)
        may_have_taken_effect = is_repeated or self._may_have_taken_effect()
        # The first write of each tells; those that follow it in a move find what it found.
        firsts = accumulate((len(several) for several in writes[:-1]), initial=0)
        found = [matched[first] for first in firsts]
        if not all(found):
            steps: list[Finish | Start] = [*finishes, *([] if start is None else [start])]
            try:
                found = [
                    was_found or (may_have_taken_effect and self._effect_of(step)) or self._finish_otherwise(step)
                    for was_found, step in zip(found, steps, strict=True)
                ]
            except DatabaseError as error:
                error.may_have_taken_effect = True  # those that were found are written
                raise
        outcomes = [self.outcome_of(*several) for several in zip(finishes, found[: len(finishes)], strict=True)]
        return outcomes, start is not None and bool(found[-1])

    # In parts, as a task's own transaction does the same (transactions.py): first this, for a task to which nothing was
    # done while it ran, then what follows.

    def writes_of(self, finish: Finish) -> list[Write]:
        """Finish a task to which nothing was done meanwhile: the first one tells whether it matched."""
        return self._writes_of(finish, bool(finish.task.awaited))

    @staticmethod
    def outcome_of(finish: Finish, found: int) -> int:
        """The Outcome, by what the first of these found."""
        is_awaited = found == Outcome.AS_ASKED and finish.task.awaited and finish.is_end
        return Outcome.AWAITED if is_awaited else found

    def _writes_of(self, finish: Finish, is_awaited: bool) -> list[Write]:
        """Of which the first one tells by what it matched whether the task was ours, and awaited or not."""
        which = (finish.task.id, finish.task.claim)
        if finish.next_stage is not None:
            task, group_id, priority, max_attempts, args = finish.next_stage
            return [(self.NEXT_STAGE, (task, args, group_id, priority, max_attempts, *which))]
        if finish.retry_seconds is not None:
            return [(self.RETRY, (finish.retry_seconds, finish.error_text, *which))]
        if finish.error_text is None:
            first, *others = (self.MARK_AWAITED,) if is_awaited else self.COMPLETE[self.mode]
            complete = (first, which) if finish.result is None else (_with_result(first), (finish.result, *which))
            return [complete, *((sql, which) for sql in others)]
        give_up = self.GIVE_UP_AWAITED if is_awaited else self.GIVE_UP
        return [(give_up, (finish.error_text, 1 if finish.uncount else 0, *which))]

    def _effect_of(self, step: Finish | Start) -> int:
        """The Outcome, where a row that a repeated write did not find is as its first try leaves it, else LOST."""
        row = self._alone(self._first, self.FIND, (step.task.id,))
        if isinstance(step, Start):
            return int(row is not None and row[:3] == (Status.IN_PROGRESS, step.task.claim, 1))
        if row is None:
            return Outcome.AS_ASKED if step.error_text is None else Outcome.LOST
        status, claim, _, error_text, attempts, stage = row
        if claim == step.task.claim:
            return Outcome.LOST
        if step.next_stage is not None and stage > step.task.stage:
            return Outcome.AS_ASKED  # whatever became of it since
        if status == Status.NEW and attempts == 0:
            return Outcome.RUN_AGAIN
        if step.next_stage is not None:
            return Outcome.CANCELLED if error_text == CANCELLED else Outcome.LOST
        if step.error_text is None and error_text != CANCELLED:
            return int(status == Status.DONE)
        # It may have been woken again since.
        return {step.error_text: Outcome.AS_ASKED, CANCELLED: Outcome.CANCELLED}.get(error_text, Outcome.LOST)

    def _finish_otherwise(self, step: Finish | Start) -> int:
        """Finish a task to which something was done while it ran. The Outcome."""
        if isinstance(step, Start):
            return Outcome.LOST
        outcome = self.outcome_otherwise(step, self._together(self.writes_otherwise(step), self._conflict_seconds))
        if outcome == Outcome.LOST and self._may_have_taken_effect():
            outcome = self._effect_of(step)
        return outcome or (Outcome.LOST if step.error_text is not None else int(self._complete_late(step)))

    def writes_otherwise(self, finish: Finish) -> list[Write]:
        """Finish a task to which something was done while it ran: changed, cancelled, waited for or not any more."""
        which = (finish.task.id, finish.task.claim)
        is_to_end = finish.error_text is not None or finish.next_stage is not None
        # The first one takes the row's lock, if it is ours still: between two of these it would be changed again.
        return [
            (self.RENEW, (self._lease_seconds, *which)),
            (self.RUN_AGAIN, which),
            (self.CANCEL, (*which, int(is_to_end))),
            *self._writes_of(finish, is_awaited=True),
            *self._writes_of(finish, is_awaited=False),
        ]

    @staticmethod
    def outcome_otherwise(finish: Finish, matched: Sequence[int]) -> int:
        """The Outcome, by what these matched."""
        _, was_changed, was_cancelled, was_awaited, was_finished, *_ = matched
        if was_changed:
            return Outcome.RUN_AGAIN
        if was_cancelled:
            return Outcome.CANCELLED
        if was_awaited or was_finished:
            return Outcome.AWAITED if was_awaited and finish.is_end else Outcome.AS_ASKED
        return Outcome.LOST

    def _complete_late(self, finish: Finish) -> bool:
        was_resumed = self._together(self.writes_late(finish), self._conflict_seconds)[0] == 1
        return was_resumed or (self._may_have_taken_effect() and bool(self._effect_of(finish)))

    def writes_late(self, finish: Finish) -> list[Write]:
        """Complete a task that may start once only and was given up as lost: the first one tells whether it was."""
        resume = (self.RESUME, (finish.task.id, finish.task.claim))
        return [resume, *self._writes_of(finish, is_awaited=True), *self._writes_of(finish, is_awaited=False)]

    def took_effect(self, finish: Finish) -> bool:
        """Whether a row that does not carry our claim any more is as this finish would leave it."""
        return bool(self._effect_of(finish))

    @abstractmethod
    def open_task_session(self) -> TaskSession:
        """A new connection for tasks' own transactions. Raises DatabaseError."""

    # ---- release: in progress, unstarted → new

    RELEASE = """
        UPDATE {table} {by_key} SET status = 0, claim = NULL, due_at = NULL, updated_at = updated_at
        WHERE id IN ({ids}) AND status = 1 AND claim = ? AND started_at IS NULL
    """

    def release(self, tasks: Collection[ClaimedTask]) -> int:
        """In progress → new for tasks of one claim that were not started; nothing is counted. How many.

        A row that somebody else holds is left to the end of its lease.
        """
        ids = sorted(task.id for task in tasks)
        values = (next(task.claim for task in tasks),)
        released = 0
        for first in range(0, len(ids), IDS_A_STATEMENT):
            portion = ids[first : first + IDS_A_STATEMENT]
            if self.one_writer:
                released += self._alone(self._write_ids, self.RELEASE, portion, values)
            else:
                released += self._write_free(self.RELEASE, portion, values)
        return released

    # ---- the record of runs

    RUN_BEGINS = """
        UPDATE {workers} SET pid = ?, previous_started_at = started_at, started_at = {now},
            ended_at = NULL, reason = NULL, taken = 0, done = 0, fatal = 0, lost = 0, released = 0
        WHERE host = ? AND group_ids = ?
    """
    FIRST_RUN_BEGINS = "{insert_or_ignore} INTO {workers} (pid, host, group_ids, started_at) VALUES (?, ?, ?, {now})"
    RUN_ENDS = """
        UPDATE {workers} SET pid = ?, started_at = {after}, ended_at = {now}, reason = ?,
            taken = ?, done = ?, fatal = ?, lost = ?, released = ?
        WHERE host = ? AND group_ids = ?
    """

    def begin_run(self, host: str, group_ids: str) -> None:
        """Record that a run begins here."""
        who = (os.getpid(), host, group_ids)
        if not self._alone(self._write, self.RUN_BEGINS, who):
            self._alone(self._write, self.FIRST_RUN_BEGINS, who)

    def end_run(self, host: str, group_ids: str, seconds: float, reason: str, counts: Sequence[int]) -> None:
        """Record how the run ended that began so many seconds ago; one that ran beside it may have written since.

        `counts` are the tasks taken, done, fatal, lost and released.
        """
        values = (os.getpid(), -seconds, reason, *counts, host, group_ids)
        self._alone(self._write, self.RUN_ENDS, values)


def _with_result(mark: str) -> str:
    return mark.replace("SET status", "SET result = ?, status", 1)


def _lost_task(row: Row) -> LostTask:
    task_id, _, _, attempts, max_attempts, task, group_id, is_cancelled = row[:8]
    return LostTask(task_id, attempts, max_attempts, str(task), group_id, bool(is_cancelled))
