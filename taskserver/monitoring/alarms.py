"""The alarm that tells of a change once: what `client.py check --mail` has told last, kept in the database.

While all is well there is no note. Of several hosts that look at once, one changes the note, and that one tells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple
from zlib import crc32

from ..stores import Store
from ..stores.queue.notes import MAX_NAME, Notes
from .checking import Judgement, Limits, State

KIND = "check"
MANY_MORE = 5
"""So many more fatal tasks are news, if they are twice as many."""


class Alarm(NamedTuple):
    """What was told. Instants are text in UTC."""

    state: str
    """The name of a State."""
    began: str
    """When all was well last, and then was not."""
    since: Mapping[str, str]
    """For each problem, by name: when it was found first."""
    fatal: int = 0
    """How many tasks were fatal: when it was told last, or later, where they are fewer by now."""


class Change(NamedTuple):
    """What is to be told now."""

    before: Alarm | None
    """None: all was well."""
    after: Alarm | None


def changed(store: Store, judgement: Judgement) -> Change | None:
    """Note the state of a queue; what this program is to tell, None where there is nothing. Raises DatabaseError."""
    notes, name = Notes(store.database), name_of(judgement.limits)
    note = notes.find(name)
    before = None if note is None else _read(note.value)
    after = _alarm(judgement, before)
    if note is None and after is None:
        return None
    is_news = not (before and after and _is_the_same(before, after))
    if not is_news and before and after and before.fatal <= after.fatal:
        return None
    has_noted = notes.replace(name, note and note.value, _written(after))
    return Change(before, after) if has_noted and is_news else None


def _is_the_same(before: Alarm, after: Alarm) -> bool:
    """Whether somebody who was told of one need not be told of the other."""
    is_more = after.fatal >= max(2 * before.fatal, before.fatal + MANY_MORE)
    return (before.state, set(before.since)) == (after.state, set(after.since)) and not is_more


def take_back(store: Store, judgement: Judgement, change: Change) -> None:
    """Note what was before, as nobody has heard of the change: the next look tells it. Raises DatabaseError."""
    Notes(store.database).replace(name_of(judgement.limits), _written(change.after), _written(change.before))


def _written(alarm: Alarm | None) -> str | None:
    return None if alarm is None else json.dumps(alarm._asdict())


def _alarm(judgement: Judgement, before: Alarm | None) -> Alarm | None:
    if not judgement.state:
        return None
    known = before.since if before else {}
    return Alarm(
        judgement.state.name,
        before.began if before else judgement.now,
        {problem.name: known.get(problem.name, judgement.now) for problem in judgement.problems},
        judgement.measured.fatal.rows if any(problem.name == "fatal" for problem in judgement.problems) else 0,
    )


def _read(text: str) -> Alarm:
    """An alarm from a note's text, in which anybody may have put anything."""
    try:
        found = json.loads(text)
        since = {str(name): str(instant) for name, instant in found["since"].items()}
        return Alarm(str(found["state"]), str(found["began"]), since, int(found.get("fatal", 0)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Alarm(State.OK.name, "", {})


def name_of(limits: Limits) -> str:
    """The name of the note of an alarm: other limits are another alarm."""
    given = {name: value for name, value in limits._asdict().items() if value != Limits._field_defaults[name]}
    parts = [f"{name}={':'.join(map(str, value))}" for name, value in sorted(given.items())]
    text = " ".join([KIND, *parts])
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 12]}...{crc32(text.encode()):08x}"
