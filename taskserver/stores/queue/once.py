"""Adding tasks once, however often they are sent: a note with the sender's key is committed together with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ...model.new_task import NewTask
from ...model.results import as_texts
from ..database import Database
from ..retrying import RetryPolicy, Scope
from ..words import with_ids
from .adding import Adding

KIND = "added"
MAX_CONFLICT_SECONDS = 10.0
"""So long it waits for another sender of the same: a web server ends what takes longer than half a minute."""
FORGOTTEN_AT_ONCE = 500
KEPT_SECONDS = 7 * 86_400.0
"""After so long a key is forgotten."""


class KeyTaken(Exception):
    """The key was given before, with other tasks."""


class Once:
    """The verb of producers who may repeat themselves."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._adding = Adding(database)

    # The note comes first: of two who send the same at once, the second waits here until the first has committed.
    MAKE = "{insert_or_ignore} INTO {notes} (name, value) VALUES (?, ?) {or_ignore}"
    READ = "SELECT value FROM {notes} WHERE name = ?"
    COMPLETE = "UPDATE {notes} SET value = ? WHERE name = ?"
    EXPIRE = "DELETE FROM {notes} WHERE name = ? AND noted_at < {after}"
    OLD = f"""
        SELECT name FROM {{notes}} WHERE name >= '{KIND} ' AND name < '{KIND}!' AND noted_at < {{after}} LIMIT ?
    """
    FORGET = "DELETE FROM {notes} WHERE name IN ({ids})"

    def add(self, tasks: Sequence[NewTask], name: str, digest: str) -> list[int]:
        """Add tasks under a name, all or none; their ids, also where they were added under it before.

        `digest` tells these tasks from others. Raises KeyTaken, InvalidTask, DatabaseError.
        """
        seconds = min(self._database.conflict_seconds, MAX_CONFLICT_SECONDS)
        policy = RetryPolicy(Scope.TRANSACTION, seconds, is_repeatable=False)
        return self._database.run(policy, self._add, tasks, f"{KIND} {name}", digest)

    def _add(self, tasks: Sequence[NewTask], name: str, digest: str) -> list[int]:
        self._database.write(self.EXPIRE, (name, -KEPT_SECONDS))
        if not self._database.write(self.MAKE, (name, "")):
            return _ids_in(self._database.rows(self.READ, (name,)), digest)
        ids = [one for portion in self._adding.insert_all(tasks) for one in portion]
        self._database.write(self.COMPLETE, (json.dumps({"digest": digest, "ids": ids}), name))
        return ids

    def forget(self) -> None:
        """Forget some old keys. Raises DatabaseError."""
        names = [row[0] for row in self._database.fetch(self.OLD, (-KEPT_SECONDS, FORGOTTEN_AT_ONCE))]
        if names:
            self._database.change(with_ids(self.FORGET, names), names)


def _ids_in(rows: Sequence[Sequence[Any]], digest: str) -> list[int]:
    """The ids of a note. Raises KeyTaken, also of a note that somebody forged."""
    try:
        (value,) = as_texts(rows[0])
        found = json.loads(value)
        if found["digest"] == digest:
            return [int(one) for one in found["ids"]]
    except (ValueError, TypeError, KeyError, IndexError):
        pass
    raise KeyTaken
