"""The checks of a database, by its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..settings.load import Settings
from ..stores.database.facts import Facts
from . import mysql, sqlite
from .findings import Finding

CHECKS: Mapping[str, Callable[[Any, Settings], Iterator[Finding]]] = {
    "mysql": mysql.findings,
    "sqlite": sqlite.findings,
}
"""The checks for each kind of database, by `Facts.kind`."""


def findings(facts: Facts, settings: Settings) -> Iterator[Finding]:
    """One finding for each check of the database that the facts are about."""
    return CHECKS[facts.kind](facts, settings)
