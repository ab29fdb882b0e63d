"""A finding: what was found, how bad it is, why it matters, and how to fix it. Every face shows these."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple


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
    """It stays the same; a finding is accepted by it."""
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


def ok(name: str, words: str) -> Finding:
    """All is well."""
    return Finding(name, Level.OK, words)


def unknown(name: str, words: str, why: str, fix: str = "") -> Finding:
    """It could not be seen."""
    return Finding(name, Level.UNKNOWN, words, why, fix)


def warning(name: str, words: str, why: str, fix: str, short: str = "") -> Finding:
    """It works, and may cost something."""
    return Finding(name, Level.WARNING, words, why, fix, short)


def critical(name: str, words: str, why: str, fix: str = "", short: str = "") -> Finding:
    """It does not work; `fix` is empty if `words` says it already."""
    return Finding(name, Level.CRITICAL, words, why, fix, short)


def worst(findings: Iterable[Finding]) -> Level:
    """The worst level of findings that could be seen."""
    return max((one.level for one in findings if one.level is not Level.UNKNOWN), default=Level.OK)
