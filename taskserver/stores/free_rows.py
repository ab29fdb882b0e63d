"""Writes that leave out the rows that others hold, so that an open transaction delays no rows beside its own.

A plain write comes first. If a row is held, a SELECT with SKIP LOCKED locks the free rows, and these are written. Other
servers wait a second for a held row: there each row is then written by itself, until a second one is held.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..errors import Conflict, Refused
from .database import Database, RowsChanged
from .retrying import HELD_PATIENCE_SECONDS, RetryPolicy, Scope
from .words import in_portions, with_ids

MAX_HELD = 2
"""Stop after so many held rows that each cost a wait; leave the rest for the next look."""
SELECT = "SELECT id FROM {table} {by_key} WHERE id IN ({ids})"


class Freed(NamedTuple):
    """The outcome of work on rows that nobody held."""

    ids: list[int]
    """The rows to which the work was done."""
    changed: int
    """The sum of what the work returned."""
    in_doubt: bool
    """Whether it may have been done to more rows: a connection broke before its answer came."""


def work_free(
    database: Database,
    ids: Sequence[int],
    work: Callable[[list[int]], int],
    select: str = SELECT,
    values: Sequence[Any] = (),
    writer_seconds: float = HELD_PATIENCE_SECONDS,
) -> Freed:
    """Do work to rows that `select` finds among `ids`, under their locks: in one transaction, else one for each row.

    `values` are for its marks behind the ids. If the database has one writer, others hold all of it or nothing: after
    `writer_seconds` it raises Conflict.
    """

    def try_work(ids: Sequence[int], conflict_seconds: float) -> Freed:
        def lock_and_work(end: str) -> tuple[list[int], int]:
            locked = [row[0] for row in database.rows(with_ids(select, ids) + end, (*ids, *values))]
            return locked, work(locked) if locked else 0

        policy = RetryPolicy(Scope.TRANSACTION, conflict_seconds)
        (locked, changed), in_doubt = database.locking(
            database.dialect.skip_locked, lambda end: database.run_in_doubt(policy, lock_and_work, end)
        )
        return Freed(locked, changed, in_doubt)

    has_one_writer = database.dialect.has_one_writer
    try:
        return try_work(ids, writer_seconds if has_one_writer else 0)
    except (RowsChanged, Conflict, Refused) as error:
        if has_one_writer and isinstance(error, Conflict):
            raise
        in_doubt = error.in_doubt
    done: list[int] = []
    changed = held = 0
    # In random order: in a fixed one the rows behind two held ones would be left each time.
    for row_id in random.sample(ids, len(ids)) if len(ids) > 1 else ():
        try:
            one = try_work([row_id], 0)
        except (RowsChanged, Conflict, Refused) as error:
            in_doubt = in_doubt or error.in_doubt
            held += isinstance(error, Conflict)
            if held == MAX_HELD:
                break
        else:
            done += one.ids
            changed += one.changed
            in_doubt = in_doubt or one.in_doubt
    return Freed(done, changed, in_doubt)


def write_free(
    database: Database,
    ids: Sequence[int],
    write: Callable[[Sequence[int]], int],
    writer_seconds: float = HELD_PATIENCE_SECONDS,
) -> int:
    """Do a write of one statement to those rows of `ids` that nobody holds; how many it changed.

    If the database has one writer, others hold all of it or nothing: after `writer_seconds` it raises Conflict.
    """
    has_one_writer = database.dialect.has_one_writer
    policy = RetryPolicy(Scope.STATEMENT, writer_seconds if has_one_writer else 0)
    changed = 0
    for portion in in_portions(sorted(ids)):
        try:
            changed += database.run(policy, write, portion)
        except Conflict:
            if has_one_writer:
                raise
            changed += work_free(database, portion, write).changed
    return changed
