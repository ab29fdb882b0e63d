"""Findings that a person has accepted, with a reason, because they cannot be fixed on this host.

They are kept in the database, for all hosts of a queue. They are shown separately, and do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from ..errors import DatabaseError, InvalidTask, Unavailable
from ..messages.finding import Finding, Level
from ..messages.text import iso, printable
from ..stores import Store
from ..stores.queue.notes import Note, Notes

KIND = "accepted"
MAX_REASON = 1000
"""Characters of a reason."""


class Accepted(NamedTuple):
    """One accepted finding."""

    finding: Finding
    reason: str
    since: datetime | None

    def as_dict(self) -> dict[str, str | None]:
        """The finding for JSON."""
        return {**self.finding.as_dict(), "reason": self.reason, "since": iso(self.since)}


class Acceptances(NamedTuple):
    """All accepted findings."""

    notes: Mapping[str, Note]
    """By the names of the findings: the reason, and since when."""
    fault: str = ""
    """Why they cannot be read; empty if they can."""

    def split(self, findings: Iterable[Finding]) -> tuple[list[Finding], list[Accepted]]:
        """The findings that count, and the accepted ones; an ok finding is never accepted."""
        counted, accepted = [], []
        for finding in findings:
            note = self.notes.get(finding.name)
            if note and finding.level is not Level.OK:
                accepted.append(Accepted(finding, note.value, note.noted_at))
            else:
                counted.append(finding)
        return counted, accepted

    @property
    def findings(self) -> list[Finding]:
        """The finding that they cannot be read."""
        why = "what you accepted counts again"
        return [Finding("accepted", Level.UNKNOWN, self.fault, why)] if self.fault else []


def read_accepted(store: Store) -> Acceptances:
    """The accepted findings; none if this account may not read them. Raises Unavailable."""
    try:
        notes = Notes(store.database).of_kind(KIND)
    except Unavailable:
        raise
    except DatabaseError as error:
        return Acceptances({}, f"what was accepted cannot be read: {error}")
    return Acceptances({note.name.partition(" ")[2]: note for note in notes})


def accept(store: Store, name: str, reason: str) -> None:
    """Accept a finding from now on. Raises InvalidTask, DatabaseError."""
    words = printable(reason.strip())
    if not 0 < len(words) <= MAX_REASON:
        raise InvalidTask(f"the reason is a text of 1 to {MAX_REASON} characters: why this stays as it is here")
    Notes(store.database).put(f"{KIND} {name}", words)


def withdraw(store: Store, name: str) -> bool:
    """Stop accepting a finding. Returns whether it was accepted. Raises DatabaseError."""
    # Names are ASCII: the server need not compare other text with them.
    return name.isascii() and Notes(store.database).remove(f"{KIND} {name}")
