"""What a person has accepted: a finding that cannot be changed on their host, by its name, once and with a reason.

It is kept in the database, for all hosts of a queue. No face counts such a finding; each shows it apart.
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
    """A finding that was accepted."""

    finding: Finding
    reason: str
    since: datetime | None

    def as_dict(self) -> dict[str, str | None]:
        """The finding for JSON."""
        return {**self.finding.as_dict(), "reason": self.reason, "since": iso(self.since)}


class Acceptances(NamedTuple):
    """All that was accepted."""

    notes: Mapping[str, Note]
    """By the names of the findings: the reason, and since when."""
    fault: str = ""
    """Why it cannot be read; empty if it can."""

    def apart(self, findings: Iterable[Finding]) -> tuple[list[Finding], list[Accepted]]:
        """The findings that count, and those that were accepted; what is ok is never accepted."""
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
        """That it cannot be read."""
        why = "what you accepted counts again"
        return [Finding("accepted", Level.UNKNOWN, self.fault, why)] if self.fault else []


def read_accepted(store: Store) -> Acceptances:
    """What was accepted; nothing if this account may not read it. Raises Unavailable."""
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
    """Accept a finding no more; whether it was accepted. Raises DatabaseError."""
    # Names are ASCII, and a server need not compare others with them.
    return name.isascii() and Notes(store.database).remove(f"{KIND} {name}")
