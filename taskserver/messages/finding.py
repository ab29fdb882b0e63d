"""A finding: what was found, how bad it is, why it matters, and how to fix it. Page and commands show these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple


class Level(IntEnum):
    """How bad a finding is; the numbers are the exit codes of monitoring programs."""

    OK = 0
    WARNING = 1
    """It works, but needs attention."""
    CRITICAL = 2
    """Tasks do not run, or promises are broken."""
    UNKNOWN = 3
    """It could not be checked. It counts as ok."""

    def __str__(self) -> str:
        return self.name.lower()

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class Finding(NamedTuple):
    """The result of one check. `why` and `fix` are empty if it is ok."""

    name: str
    """The name of its check, by which a person accepts it."""
    level: Level
    words: str
    """A sentence without a full stop."""
    why: str = ""
    fix: str = ""
    short: str = ""
    """The words for a line with several findings; empty: `words`."""

    def as_dict(self) -> dict[str, str]:
        return {"name": self.name, "level": str(self.level), "words": self.words, "why": self.why, "fix": self.fix}


def found(level: Level, words: str, why: str = "", fix: str = "", short: str = "") -> Finding:
    """A finding without a name."""
    return Finding("", level, words, why, fix, short)


def ok(words: str) -> Finding:
    """It is ok."""
    return found(Level.OK, words)


def unknown(words: str, why: str = "", fix: str = "") -> Finding:
    """It could not be checked."""
    return found(Level.UNKNOWN, words, why, fix)


def warning(words: str, why: str = "", fix: str = "", short: str = "") -> Finding:
    """It works, but needs attention."""
    return found(Level.WARNING, words, why, fix, short)


def critical(words: str, why: str = "", fix: str = "", short: str = "") -> Finding:
    """It does not work; `fix` is empty if `words` has it."""
    return found(Level.CRITICAL, words, why, fix, short)


class Look(NamedTuple):
    """A check that is one function."""

    name: str
    judge: Callable[..., Finding | None]
    """None: not applicable."""
    is_acceptable: bool = True
    """Whether a person may accept its findings, because workers can do without it."""


def findings_of(looks: Iterable[Look], *given: Any) -> Iterator[Finding]:
    """The findings of these checks."""
    for look in looks:
        if finding := look.judge(*given):
            yield finding._replace(name=look.name)


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level, without unknown findings."""
    return max((one.level for one in findings if one.level is not Level.UNKNOWN), default=Level.OK)
