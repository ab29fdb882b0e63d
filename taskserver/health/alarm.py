"""The alarm: what `client.py check --mail` has reported, kept in the database, so that each change is mailed once.

While all is well there is no note. If several hosts look at once, one of them changes the note, and that one reports.
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
"""A finding is over once it has been away for so long: what comes back before is no news."""
NEVER_FLAPS = "fatal"
"""Ended by a person, so it is over as soon as it is away: other tasks that are fatal are news."""
DEGREES = 64
"""Of one level: a finding that is worse by a degree is news."""
MANY_FATAL = 8
"""From so many fatal tasks on, twice as many are news."""


class Reported(NamedTuple):
    """A finding that was reported."""

    first: datetime
    """When it was found first."""
    last: datetime
    degree: int
    """The worst that was reported."""

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return (self.last - self.first).total_seconds()


Alarm = Mapping[str, Reported]
"""What was reported and is not over, by name."""


class Change(NamedTuple):
    """What is to be mailed now."""

    alarm: Alarm
    over: Alarm
    before: str | None
    """The note that was there."""
    after: str | None
    fault: str = ""
    """Why it cannot be noted: then it is mailed each time."""


def changed(store: Store, name: str, status: QueueStatus) -> Change | None:
    """Note what is found; what this program is to mail, None if nothing is news."""
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


def take_back(store: Store, name: str, change: Change) -> None:
    """Note what was before, if that can be, as nobody has read the mail: the next look reports it."""
    if change.after != change.before:
        with suppress(DatabaseError):
            Notes(store.database).replace(name, change.after, change.before)


def alarm_of(status: QueueStatus, before: Alarm) -> tuple[dict[str, Reported], dict[str, Reported]]:
    """What is reported from now on, and what is over."""
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
    """Whether a finding is new, or worse than what was reported."""
    return any(name not in before or reported.degree > before[name].degree for name, reported in alarm.items())


def bad(findings: Sequence[Finding]) -> list[Finding]:
    """The findings that count."""
    return [finding for finding in findings if finding.level in (Level.WARNING, Level.CRITICAL)]


def _degree(finding: Finding, status: QueueStatus) -> int:
    doubled = max(status.fatal.rows, MANY_FATAL).bit_length() if finding.name == "fatal" else 0
    return finding.level * DEGREES + doubled


def _read(text: str | None) -> dict[str, Reported]:
    """An alarm from a note's text, in which anybody may have put anything."""
    try:
        return {
            str(name): Reported(began, seen, int(degree))
            for name, (first, last, degree) in json.loads(text or "{}").items()
            if (began := utc(first)) and (seen := utc(last))
        }
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def name_of(limits: Limits, groups: Sequence[int]) -> str:
    """The name of the note of an alarm: other limits or groups are another alarm."""
    given = {name: limit for name, limit in limits.items() if limit != LIMITS.get(name)}
    parts = [f"{name}={':'.join(map(str, limit))}" for name, limit in sorted(given.items())]
    parts += [f"groups={','.join(map(str, groups))}"] if groups else []
    text = " ".join([KIND, *parts])
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 12]}...{crc32(text.encode()):08x}"
