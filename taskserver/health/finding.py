"""One finding of the doctor: the check, its level, what was found, why that matters, and the mend."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Level(str, Enum):
    """The outcome of a check, from well to worse."""

    OK = "ok"
    UNKNOWN = "unknown"
    """This account or system does not let us see it."""
    WARNING = "warning"
    """It works, and may cost something."""
    BROKEN = "broken"
    """Tasks do not run, or promises do not hold."""


class CheckResult(NamedTuple):
    """The result of one check. `why` and `mend` are empty where all is well."""

    check: str
    level: Level
    found: str
    why: str = ""
    mend: str = ""


def ok(check: str, found: str) -> CheckResult:
    """All is well."""
    return CheckResult(check, Level.OK, found)


def unknown(check: str, found: str, why: str, mend: str = "") -> CheckResult:
    """It could not be seen."""
    return CheckResult(check, Level.UNKNOWN, found, why, mend)


def warning(check: str, found: str, why: str, mend: str) -> CheckResult:
    """It works, and may cost something."""
    return CheckResult(check, Level.WARNING, found, why, mend)


def broken(check: str, found: str, why: str, mend: str = "") -> CheckResult:
    """It does not work; `mend` is empty where `found` says it already."""
    return CheckResult(check, Level.BROKEN, found, why, mend)
