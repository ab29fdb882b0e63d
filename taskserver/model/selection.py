"""Which tasks an operator means: by id, group, task name and error, as `retry`, `cancel` and `priority` take them."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from ..errors import InvalidTask
from ..messages.printable import shown


class Selection(NamedTuple):
    """Tasks that meet every condition given here; with no condition, every task that the verb is for.

    Empty `ids` or `groups` mean no task: a program may have looked for some, and found none.
    """

    ids: Sequence[int] | None = None
    groups: Sequence[int] | None = None
    task: str | None = None
    """The callable's name, as the row has it."""
    error: str | None = None
    """The beginning of the error_text, compared byte by byte."""
    limit: int | None = None
    """At most so many of these tasks, in order of id."""
    error_line: str | None = None
    """The first line of the error_text, the whole of it, byte by byte."""
    status: int | None = None
    """Their status, as 4 for fatal; of those that the verb is for."""
    since: float | timedelta | datetime | None = None
    """They ended, or were written to last, since then: seconds or a timedelta before now, or an aware datetime."""


def selection_of(tasks: int | Iterable[int] | Selection) -> Selection:
    """The Selection that an id, some ids, or a Selection stand for. Raises InvalidTask."""
    if isinstance(tasks, Selection):
        return tasks
    if isinstance(tasks, int):
        return Selection(ids=[tasks])
    try:
        ids = None if isinstance(tasks, (str, bytes, Mapping)) else list(tasks)
    except TypeError:
        ids = None
    if ids is None:
        raise InvalidTask(f"tasks is {shown(tasks)}; allowed: an id, ids, or a Selection")
    return Selection(ids=ids)
