"""Writes to rows that nobody holds: a page's open transaction must not hold up the rows beside its own.

A write passes over rows that others hold where the server can do that. Where it cannot, the write tries all rows at
once and then one by one: each held row costs a wait, and one row at a time cannot deadlock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import Conflict, Refused
from .database import Database
from .retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope
from .session import RowsChanged
from .words import with_ids

MAX_HELD = 2
"""Stop after this many held rows that each cost a wait; leave the rest for the next look."""

Work = Callable[[list[int]], Any]
"""The write to locked rows, given their ids; its result is the caller's own."""


NOT_FREE = (RowsChanged, Conflict, Refused)
"""Errors of a write to several rows for the sake of some of them: each is then written alone."""


class Lock(NamedTuple):
    """A SELECT that locks those rows of `{ids}` that meet its condition; the work is done to these rows alone."""

    select: str = "SELECT id FROM {table} {by_key} WHERE id IN ({ids})"
    values: Sequence[Any] = ()
    """The values for the marks behind those of the ids."""


class Freed(NamedTuple):
    """The outcome of work on rows that nobody held."""

    ids: list[int]
    """The rows to which the work was done."""
    results: list[Any]
    """The work's result for each transaction."""
    in_doubt: bool
    """Whether the work may have been done to more rows: a connection broke before its answer came."""


class FreeRows:
    """Writes that leave out the rows that others hold.

    Where the database has one writer, others hold all of it or nothing: each verb waits for them for `writer_seconds`.
    """

    def __init__(self, database: Database, has_time: Callable[[], bool] = lambda: True) -> None:
        """Once it has no time, no held row is waited for after another one."""
        self._database = database
        self._has_time = has_time

    def write_ids(self, sql: str, ids: Sequence[int], values: Sequence[Any] = ()) -> int:
        """Write to rows by their ids; how many rows were changed. Held rows are left for the next look."""
        with suppress(Conflict):
            return self.write(sql, ids, values)
        return 0

    def write(
        self,
        sql: str,
        ids: Sequence[int],
        values: Sequence[Any] = (),
        values_before: Sequence[Any] = (),
        writer_seconds: float = HELD_PATIENCE_SECONDS,
    ) -> int:
        """The same; `values_before` stand before the ids. Raises Conflict where others are writing (one writer)."""
        return self.write_in_doubt(sql, ids, values, values_before, writer_seconds)[0]

    def write_in_doubt(
        self,
        sql: str,
        ids: Sequence[int],
        values: Sequence[Any] = (),
        values_before: Sequence[Any] = (),
        writer_seconds: float = HELD_PATIENCE_SECONDS,
    ) -> tuple[int, bool]:
        """The same; the flag tells whether more rows may be written: a connection broke before its answer came."""
        if not ids:
            return 0, False

        def write(free: Sequence[int]) -> int:
            return self._database.write(with_ids(sql, free), (*values_before, *free, *values))

        policy = RetryPolicy(Scope.STATEMENT, self._seconds(writer_seconds))
        try:
            return self._database.run_in_doubt(policy, write, ids)
        except Conflict as error:
            if self._database.dialect.has_one_writer:
                raise
            in_doubt = error.may_have_taken_effect
        if not self._may_try_again():
            return 0, in_doubt
        freed = self.work(ids, write)
        return sum(freed.results), in_doubt or freed.in_doubt

    def work(
        self,
        ids: Sequence[int],
        work: Work,
        lock: Lock = Lock(),  # noqa: B008  # immutable
        writer_seconds: float = HELD_PATIENCE_SECONDS,
    ) -> Freed:
        """Do work to the free rows of `ids` under their locks: in one transaction, else in one for each row.

        Raises Conflict where others are writing (one writer).
        """
        try:
            return self._work_at_once(ids, work, lock, self._seconds(writer_seconds))
        except NOT_FREE as error:
            if isinstance(error, Conflict) and self._database.dialect.has_one_writer:
                raise
            in_doubt = error.may_have_taken_effect
        if len(ids) > 1 and self._may_try_again():
            return self._work_singly(ids, work, lock, in_doubt)
        return Freed([], [], in_doubt)

    def _may_try_again(self) -> bool:
        """Whether to go on after a held row: where the server passes over held rows, that costs no wait."""
        return self._database.dialect.skips_locked or self._has_time()

    def _seconds(self, writer_seconds: float) -> float:
        return writer_seconds if self._database.dialect.has_one_writer else 0

    def _work_at_once(self, ids: Sequence[int], work: Work, lock: Lock, conflict_seconds: float) -> Freed:
        policy = RetryPolicy(Scope.TRANSACTION, conflict_seconds)
        (locked, result), in_doubt = self._database.skipping_locked(
            lambda end: self._database.run_in_doubt(policy, self._lock_and_work, ids, work, lock, end)
        )
        return Freed(locked, [result] if locked else [], in_doubt)

    def _work_singly(self, ids: Sequence[int], work: Work, lock: Lock, in_doubt: bool) -> Freed:
        done: list[int] = []
        results: list[Any] = []
        held = 0
        # In random order: in a fixed order the rows behind two held ones would be left each time.
        for row_id in random.sample(ids, len(ids)):
            try:
                one = self._work_at_once([row_id], work, lock, 0.0)
            except NOT_FREE as error:
                in_doubt = in_doubt or error.may_have_taken_effect
                held += isinstance(error, Conflict)
                if held == MAX_HELD or not self._may_try_again():
                    break
            else:
                done += one.ids
                results += one.results
                in_doubt = in_doubt or one.in_doubt
        return Freed(done, results, in_doubt)

    def _lock_and_work(self, ids: Sequence[int], work: Work, lock: Lock, end: str) -> tuple[list[int], Any]:
        rows = self._database.rows(with_ids(lock.select, ids) + end, (*ids, *lock.values))
        locked = [row[0] for row in rows]
        return locked, work(locked) if locked else None
