"""Fills names, words and marks into a verb's SQL.

A verb writes `{table}` for the queue's table, `{now}` for the database's clock and `?` for each value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..model.task import CANCELLED, UNDATED

QUEUE_COLUMNS = (
    "id, task, args, group_id, priority, status, attempts, max_attempts, due_at, claim, unique_key, error_text, "
    "created_at, started_at, finished_at, updated_at, version, stages, stage, awaited, "
    "result, progress"
)
INSTANTS = (
    *("due_at", "created_at", "started_at", "finished_at", "updated_at"),
    *("ended_at", "previous_started_at", "seen_at", "noted_at", "next_at", "hour"),
)
HELPERS = ("done", "workers", "processes", "paused", "schedules", "stats", "dependencies", "notes", "schema")
"""The other tables: `{stats}` stands for jobs_queue_stats."""
SCHEMA_VERSION = 8
"""The version of all these tables."""

SHORT_BYTES = 16 * 1024
"""Every server accepts statements of this length (on MySQL: net_buffer_length, a connection's first buffer)."""
MAX_UTF8_BYTES = 4
"""The longest character."""
MAX_IDS_PER_STATEMENT = 500
"""Old SQLite binds at most 999 values."""

T = TypeVar("T")

Write = tuple[str, Sequence[Any]]
"""A statement and its values."""


# Each dialect has its own dict of these words. In some, `{}` stands for a column, a table or an instant.
#
# now, after            the database's clock; the instant a bound number of seconds later
# age, text             the age of the instant {} in seconds; the instant {} as YYYY-MM-DD HH:MM:SS.ffffff
# this_hour             the start of this hour
# bytes_of, as_bytes    the length of the text {} in bytes; the text {} in a form that can be grouped even if invalid
# position              the position of the bound text in the text {}, from 1 on, by bytes; 0 if it does not occur
# greatest              the function that returns its greatest argument
# insert_or_ignore      the start of an INSERT that does nothing if the key exists; or_ignore is its end
# keep_standing         the end of an INSERT into the queue that keeps an existing row with the unique_key
# given                 in an upsert: the new value for the column {}
# quoted                the table {} in quotes
# by_key                the hint to use the primary key
# by_status, by_due     the hint to read the table {} by status and group_id, or by status and due_at
# groups_of_status      a SELECT of a status and each group that has it in the table {0}, at most `?`, which skips equal
#                       entries; {1} is the hint by_status, {2} the status (with a mark PostgreSQL would use no index)
# delete_by_key         a DELETE from the table {} by primary key, without its WHERE: without a hint, MySQL may read the
#                       whole table or another index, and then waits for rows of others, or deadlocks
COMMON = {
    "or_ignore": "",
    # The end of a SELECT that locks rows, and of one that reads edges if the transaction may have an old snapshot.
    "for_update": "FOR UPDATE",
    "lock_edges": "",
    # In an upsert into the table {0}: the old value of the column {1}.
    "standing": "{1}",
    # The status in SELECTs by status and group_id, by status and due_at, and of all new tasks in order.
    "group_status": "status",
    "due_status": "status",
    "any_status": "status",
    # Comes before `id DESC`, and before `id`, in SELECTs by status of rows without due_at, so that nothing is sorted.
    "undated_order": "",
    "undated_order_up": "",
    # Makes the server end each statement of the session after {} seconds; 0: never. Empty if it cannot.
    "limit_statements": "",
    # A bound instant, YYYY-MM-DD HH:MM:SS.ffffff in UTC, and a bound unique_key in the form of Dialect.key.
    "instant": "?",
    "any_key": "?",
    # The values of one row for adding.ADD_ANY.
    "any_row": "(?, ?, ?, ?, ?, ?, COALESCE({after}, {instant}), {any_key}, ?, ?)",
    "columns": QUEUE_COLUMNS,
    "status": "status",
    # Only MySQL stores an invalid instant, in sessions without STRICT.
    "undated": f"'{UNDATED}'",
    "is_undated": "0 = 1",
    "cancelled": f"'{CANCELLED}'",
    "is_cancelled": f"CASE WHEN error_text = '{CANCELLED}' THEN 1 ELSE 0 END",
}
"""Words with a default, and those that are the same everywhere."""


def words_of(own: Mapping[str, str], table: str, quoted: str = "") -> dict[str, str]:
    """The text for each `{word}`, from a dialect's own words; `quoted` may be the form of a table's full name."""
    words = {**COMMON, **own}
    quoted = quoted or words["quoted"]
    names = {"table": quoted.format(table)} | {name: quoted.format(f"{table}_{name}") for name in HELPERS}
    columns = QUEUE_COLUMNS.split(", ")

    text = words["text"].format
    now = text(words["now"])
    texts = {column: text(column) for column in INSTANTS}
    readable = {column: texts.get(column, column) for column in columns}
    # A list shows only the start of a text: whole texts could be megabytes.
    begins = {"error_text": "SUBSTR(error_text, 1, 300)"} | dict.fromkeys(("args", "stages", "result"), "NULL")
    return {
        **words,
        **names,
        **{f"{column}_text": text for column, text in texts.items()},
        **{f"{column}_age": words["age"].format(column) for column in INSTANTS},
        **{f"given_{column}": words["given"].format(column) for column in columns},
        **{f"old_{column}": words["standing"].format(names["table"], column) for column in columns},
        "now_text": now,
        "this_hour_text": text(words["this_hour"]),
        **{name: hint.format(table) for name, hint in words.items() if name.startswith("by_")},
        "delete_task": words["delete_by_key"].format(names["table"]),
        "delete_edges": words["delete_by_key"].format(names["dependencies"]),
        "delete_archived": words["delete_by_key"].format(names["done"]),
        "archived_columns": ", ".join({"claim": "NULL", "status": "2"}.get(column, column) for column in columns),
        "args_bytes": words["bytes_of"].format("args"),
        "stages_bytes": words["bytes_of"].format("stages"),
        "error_position": words["position"].format("error_text"),
        "error_bytes": words["as_bytes"].format("error_text"),
        # The table of dependencies has no column `id`, so `id` is the task's.
        "is_linked": f"EXISTS (SELECT 1 FROM {names['dependencies']} WHERE child_id = id)",
        "readable": ", ".join((*readable.values(), now)),
        "listed": ", ".join((*(readable | begins).values(), now)),
    }


class Statements:
    """A cache of composed statements: there are few statements and many uses."""

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
    """Parameter marks, with commas."""
    return ", ".join("?" * count)


def with_ids(sql: str, ids: Sequence[object]) -> str:
    """A statement with a mark for each id instead of `{ids}`."""
    return sql.replace("{ids}", marks(len(ids)))


def in_portions(items: Sequence[T], most: int = MAX_IDS_PER_STATEMENT) -> Iterator[Sequence[T]]:
    """The items in order, at most `most` at once."""
    return (items[first : first + most] for first in range(0, len(items), most))
