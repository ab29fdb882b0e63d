"""Notes of a queue: accepted findings, reported alarms, keys of requests that added tasks, last runs of schedules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from ...model.new_task import NewTask
from ...model.results import by_name
from ..database import Database, Row
from ..retrying import RetryPolicy, Scope
from ..words import with_ids
from .adding import Adding

MAX_NAME = 190
"""Characters of a name, in ASCII: the longest key of old servers."""
MAX_READ = 1000
"""Notes that are read, or deleted, at once."""
ADDED = "added"
"""The kind of notes with senders' keys."""
MAX_CONFLICT_SECONDS = 10.0
"""The wait for another sender of the same key: web servers end requests after half a minute."""
KEY_KEPT_SECONDS = 7 * 86_400.0
"""How long a sender's key is kept."""


class Note(NamedTuple):
    """A text under a name; the name's first word is the kind."""

    name: str
    value: str
    noted_at: datetime | None


def _notes_of(rows: Sequence[Row]) -> list[Note]:
    return [Note(**by_name(Note._fields, row)) for row in rows]


class KeyTaken(Exception):
    """The key was used before with other tasks."""


class Notes:
    """The notes of one queue. Raises DatabaseError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    OF_KIND = f"""
        SELECT name, value, {{noted_at_text}} FROM {{notes}} WHERE name >= ? AND name < ? ORDER BY name LIMIT {MAX_READ}
    """
    FIND_ALL = "SELECT name, value, {noted_at_text} FROM {notes} WHERE name IN ({ids})"
    PUT = "INSERT INTO {notes} (name, value, noted_at) VALUES (?, ?, {now})"
    REMOVE = "DELETE FROM {notes} WHERE name = ?"

    def find(self, name: str) -> Note | None:
        return next(iter(self.find_all([name])), None)

    def find_all(self, names: Sequence[str]) -> list[Note]:
        """The existing notes with these names."""
        return _notes_of(self._database.fetch_ids(self.FIND_ALL, names))

    def of_kind(self, kind: str) -> list[Note]:
        """The notes with names that begin with a word and a blank, in order of name."""
        found = _notes_of(self._database.fetch(self.OF_KIND, (f"{kind} ", f"{kind}!")))  # "!" follows the blank
        return [note for note in found if note.name.startswith(f"{kind} ")]  # MySQL ignores blanks at the end

    def put(self, name: str, value: str) -> None:
        """Write a note, or replace the one with this name."""
        self._database.change(self._put_sql(), (name, value))

    def put_all(self, notes: Iterable[tuple[str, str]]) -> None:
        """Write names and values in one commit, in order of name, so that two programs do not deadlock."""
        sql = self._put_sql()
        self._database.write_together([(sql, note) for note in sorted(notes)], self._database.conflict_seconds)

    def _put_sql(self) -> str:
        given = {column: self._database.words["given"].format(column) for column in ("value", "noted_at")}
        return f"{self.PUT} {self._database.upsert(given, '', 'name')}"

    def remove(self, name: str) -> bool:
        """Delete a note; whether there was one."""
        removed, in_doubt = self._database.change_in_doubt(self.REMOVE, (name,))
        return bool(removed) or in_doubt

    # ---- replace: only one of the programs that read a value writes the next

    MAKE = "{insert_or_ignore} INTO {notes} (name, value) VALUES (?, ?) {or_ignore}"
    CHANGE = "UPDATE {notes} SET value = ?, noted_at = {now} WHERE name = ? AND value = ?"
    END = "DELETE FROM {notes} WHERE name = ? AND value = ?"

    def replace(self, name: str, read: str | None, value: str | None) -> bool:
        """Replace the value that was read; None: no note. Whether this program, not another one, replaced it.

        If an answer is lost, two programs may get True: better two mails than none.
        """
        if read is None:
            sql, values = self.MAKE, [name, value]
        elif value is None:
            sql, values = self.END, [name, read]
        else:
            sql, values = self.CHANGE, [value, name, read]
        written, in_doubt = self._database.change_in_doubt(sql, values)
        return bool(written) or in_doubt

    # ---- add once, even if the sender repeats the request: a note with its key is committed with the tasks

    READ = "SELECT value FROM {notes} WHERE name = ?"
    COMPLETE = "UPDATE {notes} SET value = ? WHERE name = ?"
    EXPIRE = "DELETE FROM {notes} WHERE name = ? AND noted_at < {after}"
    OLD = f"""
        SELECT name FROM {{notes}}
        WHERE name >= '{ADDED} ' AND name < '{ADDED}!' AND noted_at < {{after}} LIMIT {MAX_READ // 2}
    """

    def add_once(self, tasks: Sequence[NewTask], key: str, digest: str) -> list[int]:
        """→ new, or waiting, all or none, unless this key already added them; their ids.

        `digest` identifies the tasks. Raises KeyTaken, InvalidTask.
        """
        seconds = min(self._database.conflict_seconds, MAX_CONFLICT_SECONDS)
        policy = RetryPolicy(Scope.TRANSACTION, seconds, is_repeatable=False)
        return self._database.run(policy, self._add_once, tasks, f"{ADDED} {key}", digest)

    def _add_once(self, tasks: Sequence[NewTask], name: str, digest: str) -> list[int]:
        self._database.write(self.EXPIRE, (name, -KEY_KEPT_SECONDS))
        # The note comes first: a second sender of the same key waits here for the first one's commit.
        if not self._database.write(self.MAKE, (name, "")):
            ((value,),) = self._database.rows(self.READ, (name,))
            found = json.loads(value)
            if found["digest"] != digest:
                raise KeyTaken
            return list(found["ids"])
        ids = [one for portion in Adding(self._database).insert_all(tasks) for one in portion]
        self._database.write(self.COMPLETE, (json.dumps({"digest": digest, "ids": ids}), name))
        return ids

    def delete_old_keys(self) -> None:
        """Delete a portion of the old keys."""
        names = [row[0] for row in self._database.fetch(self.OLD, (-KEY_KEPT_SECONDS,))]
        if names:
            self._database.change(with_ids("DELETE FROM {notes} WHERE name IN ({ids})", names), names)
