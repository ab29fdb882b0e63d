"""The tasks that an operator chooses, by id, group, task name and error, for `retry`, `cancel` and `priority`."""

# Annotations are not deferred here: named tuples compile deferred ones, which slows down each empty run.

from collections.abc import Iterable, Sequence, Set
from datetime import datetime
from types import NoneType
from typing import NamedTuple

from ..errors import InvalidTask
from ..messages.text import Duration, shown
from .checks import check_list, check_number, check_text
from .task import MAX_GROUP_ID, MAX_GROUPS, MAX_ID, MAX_SIGNED, Status, name_of_status


class Selection(NamedTuple):
    """Tasks that meet all these conditions; without conditions, every task to which the verb applies.

    Empty `ids` or `groups` mean no task: a program may have searched for some and found none.
    """

    ids: Sequence[int] | None = None
    groups: Sequence[int] | None = None
    task: str | None = None
    """The callable's name, as in the row."""
    error: str | None = None
    """The start of the error_text, compared byte by byte."""
    limit: int | None = None
    """The maximum of tasks, in order of id."""
    error_line: str | None = None
    """The whole first line of the error_text, compared byte by byte."""
    status: int | None = None
    """One of the statuses to which the verb applies, such as 4 for fatal."""
    since: Duration | datetime | None = None
    """When they ended or were last written, at the earliest: a duration before now, or an aware datetime."""


def selection_of(tasks: int | Iterable[int] | Selection) -> Selection:
    """A Selection from an id, some ids, or a Selection. Raises InvalidTask."""
    if isinstance(tasks, Selection):
        return tasks
    if isinstance(tasks, int):
        return Selection(ids=[tasks])
    return Selection(ids=list(check_list("tasks", tasks, "an id, ids, or a Selection")))


def check_selection(selection: Selection) -> None:
    """Raises InvalidTask. `since` is checked where it is used."""
    for name, numbers, most in (("ids", selection.ids, MAX_ID), ("groups", selection.groups, MAX_GROUP_ID)):
        if isinstance(numbers, (str, bytes)) or not isinstance(numbers, (Sequence, Set, NoneType)):
            raise InvalidTask(f"{name} is {shown(numbers)}; allowed: a list of whole numbers from 0 to {most}")
        for number in numbers or ():
            check_number(f"one of {name}", number, 0, most)
    if selection.groups is not None and len(selection.groups) > MAX_GROUPS:
        raise InvalidTask(f"{len(selection.groups)} groups are chosen; allowed: at most {MAX_GROUPS}")
    for name in ("task", "error", "error_line"):
        text = getattr(selection, name)
        if text is not None and not check_text(name, text):
            raise InvalidTask(f"{name} is ''; allowed: a text, not an empty one")
    if selection.status is not None and selection.status not in list(Status):
        statuses = ", ".join(f"{status:d} {name_of_status(status)}" for status in Status)
        raise InvalidTask(f"status is {shown(selection.status)}; allowed: {statuses}")
    if selection.limit is not None:
        check_number("limit", selection.limit, 1, MAX_SIGNED)
