"""Writes that skip held rows, so that an open transaction delays only its own rows.

A plain write comes first. If a row is held, a SELECT with SKIP LOCKED locks the free rows, and these are written. Old
servers lack SKIP LOCKED and wait a second for a held row: there each row is written by itself, until a second is held.
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
"""Stop after so many held rows, as each costs a wait; the next look finds the rest."""
SELECT = "SELECT id FROM {table} {by_key} WHERE id IN ({ids})"


class Freed(NamedTuple):
    """The outcome of work on free rows."""

    ids: list[int]
    """The rows that were locked and worked on."""
    changed: int
    """The sum of what the work returned."""
    in_doubt: bool
    """Whether more rows may be done: a connection broke before its answer came."""


def work_free(
    database: Database,
    ids: Sequence[int],
    work: Callable[[list[int]], int],
    select: str = SELECT,
    values: Sequence[Any] = (),
    writer_seconds: float = HELD_PATIENCE_SECONDS,
) -> Freed:
    """Lock the rows that `select` finds among `ids` and do work: in one transaction, or in one for each row.

    `values` follow the ids in `select`. If the database has one writer, it raises Conflict after `writer_seconds`:
    others hold everything or nothing.
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
    # In random order: otherwise two held rows would always block the rows after them.
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
    """Write to the free rows among `ids`, by one statement; how many it changed.

    If the database has one writer, it raises Conflict after `writer_seconds`.
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
