"""The alarm that tells of a change once: what `client.py check --mail` has told last, kept in the database.

While all has been well for a day there is no note. Of several hosts that look at once, one changes the note, and that
one tells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from zlib import crc32

from ..stores import Store
from ..stores.queue.notes import MAX_NAME, Notes
from .checking import Judgement, Limits, State

KIND = "check"
CRITICAL = " critical"
"""Behind the name of a problem: that it is critical, which is told like a problem beside it."""
MORE = "more"
"""Told in the same way: that many more tasks are fatal."""
MANY_MORE = 5
"""So many more fatal tasks are news, if they are twice as many."""
DAY_SECONDS = 86_400.0
OFTEN = 3
"""What was told so many times within a day comes and goes."""
AWAY_SECONDS = 3600.0
"""The end of what comes and goes is told once it has been away for so long; the next time for twice that, and so on."""
CLOCK_SECONDS = 60.0
"""By how much the clocks of servers may differ."""


class Alarm(NamedTuple):
    """What was told. Instants are text in UTC."""

    began: str = ""
    """When all was well last, and then was not."""
    since: Mapping[str, str] = {}
    """What was told and is not told as over, by name: when it was found first."""
    fatal: int = 0
    """How many tasks were fatal: when it was told last, or later, where they are fewer by now."""
    told: Mapping[str, Sequence[str]] = {}
    """By name, also for what is over: when it was told within the last day."""
    away: Mapping[str, str] = {}
    """What comes and goes, and is away: since when."""
    back: Mapping[str, str] = {}
    """What was away, and is there again: since when. Once it has lasted, it is told again."""

    def is_frequent(self, name: str) -> bool:
        """Whether it comes and goes."""
        return len(self.told.get(name, ())) >= OFTEN


class Change(NamedTuple):
    """What is to be told now."""

    before: Alarm
    after: Alarm
    note: str | None
    """The note that was there before."""


WELL = Alarm()


def changed(store: Store, judgement: Judgement) -> Change | None:
    """Note the state of a queue; what this program is to tell, None where there is nothing. Raises DatabaseError."""
    notes, name = Notes(store.database), name_of(judgement.limits)
    found = notes.find(name)
    note = None if found is None else found.value
    before = WELL if note is None else _read(note)
    after = alarm_of(judgement, before)
    if _written(after) == note:
        return None
    has_noted = notes.replace(name, note, _written(after))
    return Change(before, after, note) if has_noted and is_news(before, after) else None


def take_back(store: Store, judgement: Judgement, change: Change) -> None:
    """Note what was before, as nobody has heard of the change: the next look tells it. Raises DatabaseError."""
    Notes(store.database).replace(name_of(judgement.limits), _written(change.after), change.note)


def is_news(before: Alarm, after: Alarm) -> bool:
    """Whether somebody who was told of one is to be told of the other."""
    is_over = set(before.since).difference(after.since)
    return bool(is_over) or any([*at][-1:] > [*before.told.get(name, ())][-1:] for name, at in after.told.items())


def alarm_of(judgement: Judgement, before: Alarm) -> Alarm:
    """What is told from now on, by what was told before."""
    now = judgement.now
    recent = {name: [at for at in instants if _is_recent(at, now)] for name, instants in before.told.items()}
    before = before._replace(told={name: instants for name, instants in recent.items() if instants})
    found = _found(judgement, before)
    away = _away(judgement, before, found)
    since = {name: before.since.get(name, now) for name in [*found, *away]}
    fatal, is_more = before.fatal if "fatal" in away else 0, False
    if "fatal" in found:
        fatal, is_more = _fatal(judgement, before)
    back = {name: before.back.get(name, now) for name in found if name in before.away or name in before.back}
    lasting = {name for name, instant in back.items() if not _is_recent(instant, now, AWAY_SECONDS)}
    begun = [name for name in found if name not in before.since or name in lasting] + [MORE] * is_more
    told = {**before.told, **{name: [*before.told.get(name, ()), now] for name in begun}}
    back = {name: instant for name, instant in back.items() if name not in lasting}
    after = Alarm((before.began if before.since else now) if since else "", since, fatal, told, away, back)
    if "fatal" in found and is_news(before, after):  # the mail has their number
        after = after._replace(fatal=judgement.measured.fatal.rows)
    return after


def _found(judgement: Judgement, before: Alarm) -> list[str]:
    """What is to be told now, or was."""
    names = [problem.name for problem in judgement.problems]
    if "cron" in names and "waiting" in names and "waiting" not in before.since:
        names.remove("waiting")  # tasks wait for cron
    critical = [problem.name for problem in judgement.problems if problem.state is State.CRITICAL]
    return [*names, *(f"{name}{CRITICAL}" for name in critical if name in names)]


def _away(judgement: Judgement, before: Alarm, found: Sequence[str]) -> dict[str, str]:
    """What comes and goes, and is not there now, since when."""
    accepted = {problem.name for problem in judgement.accepted}
    away = {}
    for name in before.since:
        since, times = before.away.get(name, judgement.now), len(before.told.get(name, ()))
        if name in found or name in accepted or times < OFTEN:
            continue
        if _is_recent(since, judgement.now, AWAY_SECONDS * (times - OFTEN + 1)):
            away[name] = since
    # What is over is critical no more.
    return {name: since for name, since in away.items() if name.removesuffix(CRITICAL) in {*found, *away}}


def _fatal(judgement: Judgement, before: Alarm) -> tuple[int, bool]:
    """The number of fatal tasks that was told, and whether so many more are news."""
    rows = judgement.measured.fatal.rows
    if "fatal" not in before.since:
        return rows, False
    if rows >= max(2 * before.fatal, before.fatal + MANY_MORE):
        return rows, True
    return before.fatal if before.is_frequent(MORE) else min(rows, before.fatal), False


def _is_recent(instant: str, now: str, seconds: float = DAY_SECONDS) -> bool:
    passed = seconds_between(instant, now)
    return passed is not None and -CLOCK_SECONDS <= passed < seconds


def seconds_between(earlier: str, later: str) -> float | None:
    """The seconds from one instant of a note to another; None where it tells none."""
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except (ValueError, TypeError):
        return None


def _written(alarm: Alarm) -> str | None:
    return None if alarm == WELL else json.dumps(alarm._asdict())


def _read(text: str) -> Alarm:
    """An alarm from a note's text, in which anybody may have put anything."""
    try:
        found = json.loads(text)
        told = {str(name): [str(at) for at in instants] for name, instants in found["told"].items()}
        away, back = _texts(found["away"]), _texts(found["back"])
        return Alarm(str(found["began"]), _texts(found["since"]), int(found["fatal"]), told, away, back)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return WELL


def _texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(instant) for name, instant in found.items()}


def name_of(limits: Limits) -> str:
    """The name of the note of an alarm: other limits are another alarm."""
    given = {name: value for name, value in limits._asdict().items() if value != Limits._field_defaults[name]}
    parts = [f"{name}={':'.join(map(str, value))}" for name, value in sorted(given.items())]
    text = " ".join([KIND, *parts])
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 12]}...{crc32(text.encode()):08x}"
