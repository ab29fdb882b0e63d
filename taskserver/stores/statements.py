"""How a verb's SQL becomes a driver's: names, words and marks are filled in.

A verb writes `{table}` for the queue's table, `{now}` for the database's clock and `?` for each value. `Words` has the
words in which dialects differ.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..model.task import CANCELLED

QUEUE_COLUMNS = (
    "id, task, args, group_id, priority, status, attempts, max_attempts, due_at, claim, unique_key, error_text, "
    "created_at, started_at, finished_at, updated_at, version, stages, stage, awaited, "
    "result, progress"
)
INSTANTS = (
    *("due_at", "created_at", "started_at", "finished_at", "updated_at"),
    *("ended_at", "previous_started_at", "seen_at", "noted_at"),
)
HELPERS = ("done", "workers", "processes", "paused", "schedules", "stats", "dependencies", "notes", "schema")
"""Tables beside the queue's: `{stats}` stands for jobs_queue_stats."""
SCHEMA_VERSION = 8
"""The version of all these tables."""

MAX_READ_BYTES = {"args": 1024 * 1024} | dict.fromkeys(
    ("stages", "error_text", "result", "progress", "value"), 64 * 1024
)
"""We write no longer text into these columns. A longer one was forged: whoever looks at the row must not hold it."""
TOO_LONG = "(too long: not read)"
"""What is read in the place of such a text."""

SHORT_BYTES = 16 * 1024
"""No server is set to take less a statement (on MySQL: net_buffer_length, with which each connection begins)."""
MAX_UTF8_BYTES = 4
"""The longest character."""

Write = tuple[str, Sequence[Any]]
"""A statement and its values."""


class Words(ABC):
    """The words in which a dialect differs; in each, `{}` stands for a column, a table or an instant."""

    now: str
    after: str
    """The instant a bound number of seconds after now."""
    seconds_since: str
    """The age in seconds of the instant `{}`."""
    instant_text: str
    """The instant `{}` as YYYY-MM-DD HH:MM:SS.ffffff."""
    this_hour: str
    """The begin of this hour, as YYYY-MM-DD HH:00:00 in UTC."""
    bytes_of: str
    """The length of the text `{}` in bytes."""
    as_bytes: str
    """The text `{}` as bytes, where the database does not group by one that is ill-formed; else as it is."""
    greatest: str
    """The function that returns its greatest argument."""
    insert_or_ignore: str
    """The begin of an INSERT that leaves a row alone whose key stands already."""
    or_ignore = ""
    """Its end."""
    keep_standing: str
    """The end of an INSERT into the queue that leaves the row as it is which has the unique_key already."""
    given: str
    """In an upsert: the value that was to be inserted into the column `{}`."""
    standing = "{1}"
    """In an upsert into the table `{0}`: the value of the column `{1}` in the row that stands already."""
    quoted: str
    """The table `{}` in the dialect's quotes."""
    by_key: str
    """The hint that a statement reaches its rows by the primary key."""
    by_status: str
    """The hint that a SELECT reads the queue's table `{}` by an index that begins with status and group_id."""
    by_due: str
    """The hint that a SELECT reads the queue's table `{}` by the index of status and due_at."""
    groups_of_status: str
    """A SELECT of a status and each group of its rows in the table `{0}`, at most `?`; it passes over rows alike.

    `{1}` stands for the hint `by_status`, `{2}` for the number of the status: by a mark PostgreSQL would read no index.
    """
    delete_by_key: str
    """A DELETE from the table `{}` that reaches its rows by the primary key, without its WHERE."""
    group_status = "status"
    """The status in a look that reads the queue by an index of status and group_id."""
    due_status = "status"
    """The status in a look that reads the queue by the index of status and due_at."""
    any_status = "status"
    """The status in a look that reads the new tasks of all groups in their order."""
    position: str
    """The position of the bound text in the text `{}`, from 1 on, compared byte by byte; 0 where it does not occur."""
    sign_of: str
    """The text of the instant `{}`, equal to itself alone."""
    instant = "?"
    """A bound instant, as YYYY-MM-DD HH:MM:SS.ffffff in UTC."""
    any_text = "?"
    """The mark of a bound text, which may hold any character."""
    any_row = "(?, ?, ?, ?, ?, ?, COALESCE({after}, {instant}), ?, ?, ?)"
    """The values of one row with more columns than a plain one: see adding.ADD_ANY."""

    instant_type: str
    number_type: str
    """The column type of a whole number from 0 to 2^63 - 1."""
    small_type: str
    """The column type of a whole number from 0 to 65,535."""
    flag_type: str
    """The column type of 0 or 1."""
    text_type: str
    """The column type of a text of at most 65,535 bytes."""
    long_text_type: str
    """The column type of a longer text."""

    @abstractmethod
    def upsert(self, changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        """The end of an INSERT that changes the row which has the key, where the condition (empty: always) holds.

        `key` names the key's columns; `changes` has each column's new value. In the new values and in the condition,
        `{given_…}` is the value that was to be inserted into a column.
        """

    def of_table(self, table: str) -> dict[str, str]:
        """The dialect's own words, beside those of all dialects."""
        return {}


AS_THEY_ARE = (
    *("now", "after", "this_hour", "instant", "any_text", "greatest", "insert_or_ignore", "or_ignore", "by_key"),
    *("group_status", "due_status", "any_status"),
    *("instant_type", "number_type", "small_type", "flag_type", "text_type", "long_text_type"),
)
"""Words that statements name as `Words` does."""


def words_of(words: Words, table: str, quoted: str) -> dict[str, str]:
    """The text for each `{word}` in a queue's statements; `quoted` is the form of a table's name, perhaps in full."""
    columns = QUEUE_COLUMNS.split(", ")
    names = {"table": quoted.format(table)} | {name: quoted.format(f"{table}_{name}") for name in HELPERS}
    filled = {
        **names,
        **{name: getattr(words, name) for name in AS_THEY_ARE},
        "status": "status",
        "now_text": words.instant_text.format(words.now),
        "this_hour_text": words.instant_text.format(words.this_hour),
        "next_at_text": words.instant_text.format("next_at"),
        "hour_text": words.instant_text.format("hour"),
        "by_status": words.by_status.format(table),
        "by_due": words.by_due.format(table),
        "delete_task": words.delete_by_key.format(names["table"]),
        "delete_archived": words.delete_by_key.format(names["done"]),
        "columns": QUEUE_COLUMNS,
        "first_columns": QUEUE_COLUMNS.partition(", version")[0],
        "archived_columns": ", ".join({"claim": "NULL", "status": "2"}.get(column, column) for column in columns),
        "args_bytes": words.bytes_of.format("args"),
        "stages_bytes": words.bytes_of.format("stages"),
        "error_position": words.position.format("error_text"),
        "error_bytes": words.as_bytes.format("error_text"),
        "cancelled": f"'{CANCELLED}'",
        "is_cancelled": f"CASE WHEN error_text = '{CANCELLED}' THEN 1 ELSE 0 END",
        # The table of dependencies has no column `id`: `id` is that of the task's row.
        "is_linked": f"(awaited <> 0 OR EXISTS (SELECT 1 FROM {names['dependencies']} WHERE child_id = id))",
    }
    filled |= {f"given_{column}": words.given.format(column) for column in columns}
    filled |= {f"old_{column}": words.standing.format(names["table"], column) for column in columns}
    for column in INSTANTS:
        filled[f"{column}_text"] = words.instant_text.format(column)
        filled[f"{column}_age"] = words.seconds_since.format(column)
    filled["due_at_sign"] = words.sign_of.format(filled["due_at_text"])
    for column, most in MAX_READ_BYTES.items():
        too_long = f"{words.bytes_of.format(column)} > {most}"
        filled[f"read_{column}"] = f"CASE WHEN {too_long} THEN '{TOO_LONG}' ELSE {column} END"
    readable = {column: filled.get(f"{column}_text", filled.get(f"read_{column}", column)) for column in columns}
    filled["readable"] = ", ".join(readable.values())
    # A list shows the begins of texts: whole ones would be megabytes.
    begins = {"error_text": "SUBSTR(error_text, 1, 300)"} | dict.fromkeys(("args", "stages", "result"), "NULL")
    filled["listed"] = ", ".join((readable | begins).values())
    return filled | words.of_table(table)


class Statements:
    """Composed statements, kept for their next use: there are few statements and many uses."""

    def __init__(self, words: dict[str, str], with_marks: Callable[[str], str]) -> None:
        """`with_marks` replaces each `?` by the driver's parameter mark."""
        self.words = words
        self._with_marks = with_marks
        self._composed: dict[str, str] = {}

    def compose(self, sql: str) -> str:
        """A statement with its words filled in and the driver's marks, on one line."""
        composed = self._composed.get(sql)
        if composed is None:
            if len(self._composed) > 500:
                self._composed.clear()
            composed = self._composed[sql] = self._with_marks(" ".join(sql.format_map(self.words).split()))
        return composed


def marks(count: int) -> str:
    """So many parameter marks."""
    return ", ".join("?" * count)


def with_ids(sql: str, ids: Sequence[object]) -> str:
    """A statement with a mark for each id in the place of `{ids}`."""
    return sql.replace("{ids}", marks(len(ids)))
