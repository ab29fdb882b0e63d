"""What a worker says as it ends: to the shell, to a person at a terminal, or to the supervisor of several workers."""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Report(NamedTuple):
    """How a worker ended."""

    code: int
    counts: Sequence[int] = (0, 0, 0, 0, 0, 0)
    """Tasks taken, done, failed, fatal, lost and released."""
    untold: Mapping[str, int] = {}
    """How many records of each kind got no line on standard error (terminal/log.py)."""
    words: str = ""
    """For a person: the reason for a code that is not 0, in one line."""


def in_words(counts: Sequence[int]) -> str:
    """The counts of a Report for a person."""
    _, done, failed, fatal, lost, _ = counts
    more = (f", {failed} to be tried again" if failed else "", f", {lost} lost" if lost else "")
    return f"{done} done{more[0]}, {fatal} fatal{more[1]}"
