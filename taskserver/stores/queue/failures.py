"""What failed tasks failed with, counted by the first lines of their errors. Changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...messages.error_text import MAX_ERROR_LENGTH
from ...model.results import as_texts
from ...model.selection import Selection
from ...model.task import MAX_SIGNED
from ..database import Database
from .dependencies import GIVEN_UP, IS_GIVEN_UP
from .operations import RETRY, bulk_write

SAMPLE = 1000
"""Rows of each status whose errors `recent` reads."""
ANY_GIVEN_UP = f"{GIVEN_UP}…, for which it waits, is fatal"


class ErrorCount(NamedTuple):
    """Tasks in error and fatal whose errors have the same first line."""

    line: str
    rows: int
    fatal: int
    """How many of these tasks are fatal."""
    first_seen: str
    """The instant of the earliest of these failures, in UTC; only rows that stand in the queue count."""
    last_seen: str
    """The instant of the latest of these failures, in UTC."""
    example_id: int
    """The id of the newest of these tasks."""

    @property
    def is_given_up(self) -> bool:
        """Whether these tasks failed because of others, each for which it waits: they are of several errors."""
        return self.line == ANY_GIVEN_UP


class Failures:
    """The failed tasks of one queue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # Tasks that were given up because of others are one line, the last. The last attempt of a fatal task ended at
    # finished_at; that of a task in error at updated_at, as its row was last written then.
    LINE = """
        SUBSTR(CASE WHEN {is_given_up} THEN {given_up}
            WHEN {error_position} > 0 THEN SUBSTR(error_text, 1, {error_position} - 1)
            ELSE COALESCE(error_text, '') END, 1, {most_characters})
    """
    ERRORS = """
        SELECT line, COUNT(*), SUM(CASE WHEN status = 4 THEN 1 ELSE 0 END), {first_seen}, {last_seen}, MAX(id)
        FROM (
            SELECT id, status, CASE WHEN status = 4 THEN COALESCE(finished_at, updated_at) ELSE updated_at END AS seen,
                {line} AS line
            FROM {failed}
        ) AS failed
        GROUP BY line ORDER BY CASE WHEN line = {given_up} THEN 1 ELSE 0 END, COUNT(*) DESC, MAX(id) DESC LIMIT ?
    """
    RECENT = " UNION ALL ".join(
        f"""
        SELECT * FROM (
            SELECT id, status, finished_at, updated_at, error_text FROM {{table}} {{by_due}}
            WHERE {{due_status}} = {status} ORDER BY due_at DESC, id DESC LIMIT ?
        ) AS failed_{status}
        """
        for status in (3, 4)
    )

    def errors(self, selection: Selection) -> list[ErrorCount]:
        """Tasks in error and fatal by the first line of their errors, the most frequent first: `limit` lines at most.

        Raises InvalidTask.
        """
        bulk = bulk_write(RETRY, selection)
        most = MAX_SIGNED if selection.limit is None else selection.limit
        with self._database.unhurried():
            return self._errors(f"{{table}} {{by_status}} WHERE {bulk.looked_for}", bulk.values, most)

    def recent(self, most: int) -> list[ErrorCount]:
        """The same of the SAMPLE fatal tasks that were added last, and of as many in error: `most` lines at most."""
        return self._errors(f"({self.RECENT}) AS recent", [SAMPLE, SAMPLE], most)

    def _errors(self, failed: str, values: Sequence[Any], most: int) -> list[ErrorCount]:
        words = self._database.words
        sql = self.ERRORS.replace("{line}", words["as_bytes"].format(self.LINE)).replace("{failed}", failed)
        sql = sql.replace("{is_given_up}", IS_GIVEN_UP)
        sql = sql.replace("{given_up}", f"'{ANY_GIVEN_UP}'").replace("{most_characters}", str(MAX_ERROR_LENGTH))
        for name, instant in (("first_seen", "MIN(seen)"), ("last_seen", "MAX(seen)")):
            sql = sql.replace(f"{{{name}}}", words["text"].format(instant))
        rows = self._database.fetch(sql, ("\n", "\n", *values, most))
        return [ErrorCount(line, count, int(fatal), *rest) for line, count, fatal, *rest in map(as_texts, rows)]
