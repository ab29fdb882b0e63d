"""Which tasks an operator means: by id, group, task name and error, as `retry`, `cancel` and `priority` take them."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from collections.abc import Sequence
from typing import NamedTuple


class Selection(NamedTuple):
    """Tasks that meet all that is given here; with nothing given, every one that the verb is for.

    Ids or groups that are given and empty mean no task: a program may have looked for some, and found none.
    """

    ids: Sequence[int] | None = None
    groups: Sequence[int] | None = None
    task: str | None = None
    """The callable's name, as the row has it."""
    error: str | None = None
    """With what the error_text begins, byte by byte."""
    limit: int | None = None
    """The first so many of them, in order of id."""
