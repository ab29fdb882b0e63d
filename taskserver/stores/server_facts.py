"""Facts for which servers of all kinds are asked in the same way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import DatabaseError, Unavailable
from ..messages.programs import CLIENT
from ..model.task import MODES
from .database import Database
from .free_rows import FreeRows

FIRST_NEW = "SELECT id FROM {table} WHERE {any_status} = 0 ORDER BY priority, id LIMIT 100"
STILL_NEW = "SELECT id FROM {table} WHERE id IN ({ids}) AND status = 0"
LOOKS_AT_HELD = 3
SECONDS_BETWEEN_LOOKS = 0.5


class Right(NamedTuple):
    """A worker's right on one of the tables, and what takes it."""

    verb: str
    table: str
    """As statements name it: `done`, for one."""
    column: str = ""
    needless_in: tuple[str, ...] = ()
    """Modes whose workers do without the right."""
    what_for: str = ""
    """The use of the right in other modes, for a person."""

    def named(self, queue: str) -> str:
        """The right in words, as `DELETE on jobs_queue`."""
        return f"{self.verb} on {queue}{'' if self.table == 'table' else f'_{self.table}'}"


WORKER_RIGHTS = (
    Right("SELECT", "table", "{columns}"),
    Right("UPDATE", "table", "priority"),
    Right("DELETE", "table", "", ("mark",), "the modes delete and move"),
    Right("INSERT", "table", "task", MODES, "tasks that add tasks, and periodic ones"),
    Right("INSERT", "done", "id", ("delete", "mark"), "the mode move"),
    Right("SELECT", "done", "id", MODES, f"{CLIENT} show"),
    Right("SELECT", "workers", "pid"),
    Right("INSERT", "workers", "pid"),
    Right("UPDATE", "workers", "pid"),
    *(
        Right(verb, "processes", column, MODES, "what runs now, and quick returns of a killed worker's tasks")
        for verb, column in {"SELECT": "pid", "INSERT": "pid", "UPDATE": "taken", "DELETE": ""}.items()
    ),
    Right("SELECT", "paused", "group_id, paused_at"),
    Right("SELECT", "schedules", "name"),
    Right("UPDATE", "schedules", "next_at"),
    Right("SELECT", "dependencies", "child_id"),
    Right("DELETE", "dependencies", "", MODES, "tasks that wait for others"),
    Right("INSERT", "dependencies", "parent_id", MODES, "tasks that add some which wait for others"),
    Right("SELECT", "stats", "task", MODES, "figures"),
    Right("INSERT", "stats", "task", MODES, "figures"),
    Right("UPDATE", "stats", "done", MODES, "figures"),
    *(
        Right(verb, "notes", column, MODES, what_for)
        for verb, column, what_for in (
            ("SELECT", "name", "what doctor and check accept"),
            ("INSERT", "name", f"{CLIENT} check --mail and --accept"),
            ("UPDATE", "value", f"{CLIENT} check --mail and --accept"),
            ("DELETE", "", f"{CLIENT} check --mail and --withdraw"),
        )
    ),
    Right("SELECT", "schema", "version"),
)


class Lacking(NamedTuple):
    """The rights that an account lacks, in words."""

    denied: tuple[str, ...]
    """A worker of this mode needs them."""
    spared: tuple[str, ...]
    """A worker of this mode does without them."""


def lacking(rights: Sequence[Right], queue: str, mode: str) -> Lacking:
    """What it means for a worker of this mode to lack these rights."""
    denied = tuple(right.named(queue) for right in rights if mode not in right.needless_in)
    spared = tuple(f"{right.named(queue)} (for {right.what_for})" for right in rights if mode in right.needless_in)
    return Lacking(denied, spared)


def allowed(database: Database, sql: str, values: Sequence[Any] = ()) -> Sequence[Sequence[Any]]:
    """The rows of a SELECT; none where the server refuses it. Raises Unavailable."""
    try:
        return database.fetch(sql, values)
    except Unavailable:
        raise
    except DatabaseError:
        return ()


def clock_ahead(database: Database, clock: str) -> float:
    """How far the server's clock is ahead of this host's, in seconds; `clock` selects its seconds since 1970."""
    before = time.time()
    there = float(database.fetch(clock)[0][0])
    return there - (before + time.time()) / 2


def held_rows(database: Database) -> list[int]:
    """The ids of the same new rows, of the first ones, that others hold at each look: a claim holds them briefly."""
    held = [row[0] for row in database.fetch(FIRST_NEW)]
    for number in range(LOOKS_AT_HELD):
        if held:
            time.sleep(number and SECONDS_BETWEEN_LOOKS)
            free = FreeRows(database).work(held, len).ids
            held = [row[0] for row in database.fetch_ids(STILL_NEW, sorted(set(held).difference(free)))]
    return held
