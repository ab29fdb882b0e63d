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
from .checking import Judgement, Limits, Problem, State

KIND = "check"
MANY_MORE = 5
"""So many more fatal tasks are news, if they are twice as many."""
DAY_SECONDS = 86_400.0
OFTEN = 3
"""A problem that was told so many times within a day is told anew only once it has lasted for a while."""
HELD_SECONDS = 3600.0
"""For so long."""


class Alarm(NamedTuple):
    """What was told. Instants are text in UTC."""

    state: str = State.OK.name
    """The name of a State."""
    began: str = ""
    """When all was well last, and then was not."""
    since: Mapping[str, str] = {}
    """For each problem that was told and is not over, by name: when it was found first."""
    fatal: int = 0
    """How many tasks were fatal: when it was told last, or later, where they are fewer by now."""
    told: Mapping[str, Sequence[str]] = {}
    """For each problem, also for those that are over: when it was told within the last day."""
    held: Mapping[str, str] = {}
    """Problems that come and go, and are not told yet: when each was found first."""

    def is_frequent(self, name: str) -> bool:
        """Whether a problem comes and goes."""
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
    after = _alarm(judgement, before)
    if _written(after) == note:
        return None
    has_noted = notes.replace(name, note, _written(after))
    return Change(before, after, note) if has_noted and not _is_the_same(before, after) else None


def _is_the_same(before: Alarm, after: Alarm) -> bool:
    """Whether somebody who was told of one need not be told of the other."""
    is_more = "fatal" in before.since and after.fatal >= max(2 * before.fatal, before.fatal + MANY_MORE)
    return (before.state, set(before.since)) == (after.state, set(after.since)) and not is_more


def take_back(store: Store, judgement: Judgement, change: Change) -> None:
    """Note what was before, as nobody has heard of the change: the next look tells it. Raises DatabaseError."""
    Notes(store.database).replace(name_of(judgement.limits), _written(change.after), change.note)


def _written(alarm: Alarm) -> str | None:
    return None if alarm == WELL else json.dumps(alarm._asdict())


def _alarm(judgement: Judgement, before: Alarm) -> Alarm:
    """What is told from now on."""
    after = _told(judgement, before)
    # A mail is the whole truth: what is told in it has its end told, too.
    return after if _is_the_same(before, after) else _told(judgement, before, may_hold=False)


def _told(judgement: Judgement, before: Alarm, may_hold: bool = True) -> Alarm:
    now, since, held = judgement.now, dict[str, str](), dict[str, str]()
    told = {name: [at for at in instants if _is_recent(at, now)] for name, instants in before.told.items()}
    problems = to_tell(judgement)
    for problem in problems:
        name = problem.name
        if name in before.since:
            since[name] = before.since[name]
            continue
        found_at = before.held.get(name, now)
        seconds = seconds_between(found_at, now) or 0.0
        if may_hold and len(told.get(name, ())) >= OFTEN and 0 <= seconds < HELD_SECONDS:
            held[name] = found_at
        else:
            since[name] = found_at
            told[name] = [*told.get(name, ()), now]
    state = max((problem.state for problem in problems if problem.name in since), default=State.OK)
    return Alarm(
        state.name,
        (before.began if before.since else now) if since else "",
        since,
        _fatal(judgement, before) if "fatal" in since else 0,
        {name: instants for name, instants in told.items() if instants},
        held,
    )


def _fatal(judgement: Judgement, before: Alarm) -> int:
    """The fatal tasks that were told: fewer where they are fewer by now, more where that is news."""
    rows = judgement.measured.fatal.rows
    is_news = "fatal" not in before.since or rows >= max(2 * before.fatal, before.fatal + MANY_MORE)
    return rows if is_news else min(rows, before.fatal)


def to_tell(judgement: Judgement) -> list[Problem]:
    """The problems that a mail may tell: while cron has stopped, tasks wait for that."""
    names = {problem.name for problem in judgement.problems}
    return [problem for problem in judgement.problems if problem.name != "waiting" or "cron" not in names]


def _is_recent(instant: str, now: str) -> bool:
    seconds = seconds_between(instant, now)
    return seconds is not None and seconds < DAY_SECONDS


def seconds_between(earlier: str, later: str) -> float | None:
    """The seconds from one instant of a note to another; None where it tells none."""
    try:
        return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()
    except (ValueError, TypeError):
        return None


def _read(text: str) -> Alarm:
    """An alarm from a note's text, in which anybody may have put anything."""
    try:
        found = json.loads(text)
        told = {str(name): [str(at) for at in instants] for name, instants in found["told"].items()}
        return Alarm(
            str(found["state"]),
            str(found["began"]),
            _texts(found["since"]),
            int(found["fatal"]),
            told,
            _texts(found["held"]),
        )
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
