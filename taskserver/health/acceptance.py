"""What a person has accepted: a finding that cannot be changed on their host, by its name, once and with a reason.

It is kept in the database, for all hosts of a queue. `check`, `status` and the doctor count it no more, and show it
apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..errors import DatabaseError, InvalidTask, Unavailable
from ..messages.text import printable
from ..stores import Store
from ..stores.queue.notes import Notes

REASONS = (
    *("cron", "runs", "groups", "waiting", "ready", "fatal", "schedules", "leases", "paused", "failing", "lost"),
    "stray",
)
"""The names of what `check` and the verdict find."""
FINDINGS = (
    *("python", "packages", "program", "web_folder", "code", "env_file", "files", "var", "log"),
    *("page", "database_file", "disk", "file_system", "connection", "version", "journal", "file"),
    *("rights", "tables", "claim_index", "deletes", "character_set", "strict_mode", "clock", "durability"),
    *("connections", "packet", "transactions", "standby"),
    *("cron", "runs", "groups", "paused", "leases", "fatal", "stray", "orphaned", "schedules"),
    *("setup", "modules", "callables", "between", "on_failure"),
)
"""The names of what the doctor finds."""
MAY_STAY = frozenset(FINDINGS) - frozenset(REASONS) - {"program", "rights", "standby"}
"""What a person may be unable to change on a host, and workers can do without; the others tell of tasks."""
NAMES = tuple(dict.fromkeys((*REASONS, *FINDINGS)))
KIND = "accepted"
MAX_REASON = 1000
"""Characters of a reason."""


class Accepted(NamedTuple):
    """That a finding was accepted."""

    reason: str
    since: str
    """Text in UTC."""


class Acceptances(NamedTuple):
    """All that was accepted, by name."""

    by_name: Mapping[str, Accepted]
    fault: str = ""
    """Why it cannot be read, as without the right; empty where it can."""


def read_accepted(store: Store) -> Acceptances:
    """What was accepted; nothing where this account may not read it. Raises Unavailable."""
    try:
        notes = Notes(store.database).of_kind(KIND)
    except Unavailable:
        raise
    except DatabaseError as error:
        return Acceptances({}, f"what was accepted cannot be read: {error}")
    return Acceptances({note.name.partition(" ")[2]: Accepted(note.value, note.noted_at) for note in notes})


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
