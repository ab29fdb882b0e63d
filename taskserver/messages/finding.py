"""A finding: what was found, how bad it is, why it matters, and how to fix it. Every face shows these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple


class Level(IntEnum):
    """How bad a finding is; the numbers are exit codes, as monitoring programs have them."""

    OK = 0
    WARNING = 1
    """It works, but you should look."""
    CRITICAL = 2
    """Tasks do not run, or promises do not hold."""
    UNKNOWN = 3
    """It could not be seen. It counts as ok."""

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class Finding(NamedTuple):
    """What one judgement or check found. `why` and `fix` are empty if all is well."""

    name: str
    """It stays the same; a finding is accepted by it. The row of its check gives it."""
    level: Level
    words: str
    """A sentence without a full stop."""
    why: str = ""
    fix: str = ""
    short: str = ""
    """The words for a line that names several findings; empty: `words`."""

    def as_dict(self) -> dict[str, str]:
        """The finding for JSON."""
        return {"name": self.name, "level": str(self.level), "words": self.words, "why": self.why, "fix": self.fix}


def found(level: Level, words: str, why: str = "", fix: str = "", short: str = "") -> Finding:
    """A finding that has no name yet."""
    return Finding("", level, words, why, fix, short)


def ok(words: str) -> Finding:
    """All is well."""
    return found(Level.OK, words)


def unknown(words: str, why: str = "", fix: str = "") -> Finding:
    """It could not be seen."""
    return found(Level.UNKNOWN, words, why, fix)


def warning(words: str, why: str = "", fix: str = "", short: str = "") -> Finding:
    """It works, and may cost something."""
    return found(Level.WARNING, words, why, fix, short)


def critical(words: str, why: str = "", fix: str = "", short: str = "") -> Finding:
    """It does not work; `fix` is empty if `words` says it already."""
    return found(Level.CRITICAL, words, why, fix, short)


class Look(NamedTuple):
    """A check that is one function."""

    name: str
    judge: Callable[..., Finding | None]
    """None: there is nothing to look at."""
    is_acceptable: bool = True
    """Whether workers can do without it: then a person may accept what it finds."""


def findings_of(looks: Iterable[Look], *given: Any) -> Iterator[Finding]:
    """What each finds, one after the other."""
    for look in looks:
        if finding := look.judge(*given):
            yield finding._replace(name=look.name)


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level of findings that could be seen."""
    return max((one.level for one in findings if one.level is not Level.UNKNOWN), default=Level.OK)
