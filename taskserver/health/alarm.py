"""What `client.py check --mail` has reported: kept in the database, so that each change is mailed once.

If all is well, there is no note. If several hosts check at once, only the one that changes the note sends a mail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import NamedTuple
from zlib import crc32

from ..errors import DatabaseError
from ..messages.finding import Finding, Level
from ..messages.text import utc
from ..stores import Store
from ..stores.queue.notes import MAX_NAME, Notes
from .judge import LIMITS, Limits
from .status import QueueStatus

KIND = "check"
AWAY_SECONDS = 3600.0
"""A finding is over when it was away for so long; if it returns earlier, it is not news."""
NEVER_FLAPS = "fatal"
"""A person ends this finding, so it is over at once: new fatal tasks are news."""
DEGREES = 64
"""Per level: a finding that gets worse by a degree is news."""
MANY_FATAL = 8
"""From this number of fatal tasks on, only twice as many are news."""


class Reported(NamedTuple):
    """A finding that was reported."""

    first: datetime
    """When it was first found."""
    last: datetime
    degree: int
    """The worst reported one."""

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return (self.last - self.first).total_seconds()


Alarm = Mapping[str, Reported]
"""Reported findings that are not over, by name."""


class Change(NamedTuple):
    """What to mail now."""

    alarm: Alarm
    over: Alarm
    before: str | None
    """The note before."""
    after: str | None
    fault: str = ""
    """Why the note cannot be written: then each check sends a mail."""


def changed(store: Store, name: str, status: QueueStatus) -> Change | None:
    """Write the note. Returns what this program should mail; None if nothing is news."""
    notes = Notes(store.database)
    try:
        found = notes.find(name)
        note = None if found is None else found.value
        before = _read(note)
        alarm, over = alarm_of(status, before)
        change = Change(alarm, over, note, json.dumps(alarm, default=str) if alarm else None)
        has_noted = change.after == note or notes.replace(name, note, change.after)
    except DatabaseError as error:
        return Change({}, {}, None, None, str(error))
    return change if has_noted and (over or is_news(before, alarm)) else None


def restore(store: Store, name: str, change: Change) -> None:
    """Restore the old note if possible, as the mail was not sent: the next check reports the change."""
    if change.after != change.before:
        with suppress(DatabaseError):
            Notes(store.database).replace(name, change.after, change.before)


def alarm_of(status: QueueStatus, before: Alarm) -> tuple[dict[str, Reported], dict[str, Reported]]:
    """The reported findings from now on, and those that are over."""
    now = status.now or datetime.now(timezone.utc)
    alarm = {}
    for finding in bad(status.findings):
        known = before.get(finding.name, Reported(now, now, 0))
        alarm[finding.name] = Reported(known.first, now, max(known.degree, _degree(finding, status)))
    accepted = {one.finding.name for one in status.accepted}
    away = {name: reported for name, reported in before.items() if name not in alarm}
    over = {
        name: reported
        for name, reported in away.items()
        if name in accepted or name == NEVER_FLAPS or abs((now - reported.last).total_seconds()) > AWAY_SECONDS
    }
    return {**alarm, **{name: reported for name, reported in away.items() if name not in over}}, over


def is_news(before: Alarm, alarm: Alarm) -> bool:
    """Whether a finding is new, or worse than reported."""
    return any(name not in before or reported.degree > before[name].degree for name, reported in alarm.items())


def bad(findings: Sequence[Finding]) -> list[Finding]:
    """The warnings and critical findings."""
    return [finding for finding in findings if finding.level in (Level.WARNING, Level.CRITICAL)]


def _degree(finding: Finding, status: QueueStatus) -> int:
    doubled = max(status.fatal.rows, MANY_FATAL).bit_length() if finding.name == "fatal" else 0
    return finding.level * DEGREES + doubled


def _read(text: str | None) -> dict[str, Reported]:
    """An alarm from a note's text, which may be invalid."""
    try:
        return {
            str(name): Reported(began, seen, int(degree))
            for name, (first, last, degree) in json.loads(text or "{}").items()
            if (began := utc(first)) and (seen := utc(last))
        }
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def name_of(limits: Limits, groups: Sequence[int]) -> str:
    """The name of the note: other limits or groups are another alarm."""
    given = {name: limit for name, limit in limits.items() if limit != LIMITS.get(name)}
    parts = [f"{name}={':'.join(map(str, limit))}" for name, limit in sorted(given.items())]
    parts += [f"groups={','.join(map(str, groups))}"] if groups else []
    text = " ".join([KIND, *parts])
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 12]}...{crc32(text.encode()):08x}"
