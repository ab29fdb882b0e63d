"""What is remembered of a queue beside its tasks: findings that a person has accepted, and alarms that were told.

A note is a name, a text and the instant at which it was written. Workers know nothing of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...model.results import as_texts
from ..database import Database

MAX_NAME = 190
"""Characters of a name, in ASCII: the longest key of old servers."""
MAX_READ = 1000
"""Notes that are read at once: there are few, unless somebody forges them."""


class Note(NamedTuple):
    """One note."""

    name: str
    value: str
    noted_at: str
    """When it was written, as text in UTC."""


class Notes:
    """The notes of one queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    COLUMNS = "name, value, {noted_at_text}"
    FIND = f"SELECT {COLUMNS} FROM {{notes}} WHERE name = ?"
    # The character behind a blank is "!": so all names that begin so are a part of the primary key.
    BEGINNING = f"SELECT {COLUMNS} FROM {{notes}} WHERE name >= ? AND name < ? ORDER BY name LIMIT {MAX_READ}"

    def find(self, name: str) -> Note | None:
        """The note of this name, if there is one. Raises DatabaseError."""
        return next(iter(self._read(self.FIND, (name,))), None)

    def of_kind(self, kind: str) -> list[Note]:
        """The notes whose names begin with a word and a blank, in order of their names. Raises DatabaseError."""
        found = self._read(self.BEGINNING, (f"{kind} ", f"{kind}!"))
        return [note for note in found if note.name.startswith(f"{kind} ")]  # to MySQL blanks at the end are nothing

    def _read(self, sql: str, values: Sequence[str]) -> list[Note]:
        try:
            return [Note._make(map(str, as_texts(row))) for row in self._database.fetch(sql, values)]
        except TypeError as error:  # a proxy answered something else
            raise self._database.dialect.error(error) from error

    # ---- for a person, whose later word counts

    PUT = "INSERT INTO {notes} (name, value, noted_at) VALUES (?, ?, {now})"
    REMOVE = "DELETE FROM {notes} WHERE name = ?"

    def put(self, name: str, value: str) -> None:
        """Write a note, over one of this name. Raises DatabaseError."""
        words = self._database.words
        given = {column: words["given"].format(column) for column in ("value", "noted_at")}
        self._database.change(f"{self.PUT} {self._database.upsert(given, '', 'name')}", (name, value))

    def remove(self, name: str) -> bool:
        """Delete a note; whether there was one. Raises DatabaseError."""
        removed, in_doubt = self._database.change_in_doubt(self.REMOVE, (name,))
        return bool(removed) or in_doubt

    # ---- for programs that look at once, of which one is to speak
    #
    # Each write names the value that was read. Of all programs that read it one finds it unchanged, and has the word.
    # Where the answer to a write was lost, two may have it: rather two mails than none.

    MAKE = "{insert_or_ignore} INTO {notes} (name, value) VALUES (?, ?) {or_ignore}"
    CHANGE = "UPDATE {notes} SET value = ?, noted_at = {now} WHERE name = ? AND value = ?"
    END = "DELETE FROM {notes} WHERE name = ? AND value = ?"

    def replace(self, name: str, read: str | None, value: str | None) -> bool:
        """Write a note in the place of the one that was read; None is no note. Whether this program was the one.

        Raises DatabaseError.
        """
        sql, values = self._replacing(name, read, value)
        written, in_doubt = self._database.change_in_doubt(sql, values)
        return bool(written) or in_doubt

    def _replacing(self, name: str, read: str | None, value: str | None) -> tuple[str, Sequence[str | None]]:
        if read is None:
            return self.MAKE, (name, value)
        return (self.END, (name, read)) if value is None else (self.CHANGE, (value, name, read))
