"""The words of PostgreSQL, and how rows are added there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from ...errors import Conflict, InvalidTask, Refused
from ...messages.printable import shown
from ..dialect import Inserts, assignments, id_of_key, ids_of_keys

if TYPE_CHECKING:
    from ..dialect import Rows

RETURNING_ID = " RETURNING id"
RETURNING_KEY = " RETURNING unique_key, id"

WORDS = {
    # The begin of the statement, as NOW() of MySQL: PostgreSQL's own now() is the begin of the transaction, and
    # clock_timestamp() keeps a condition from an index.
    "now": "statement_timestamp()",
    "after": "statement_timestamp() + make_interval(secs => ?)",
    "age": "CAST(EXTRACT(EPOCH FROM statement_timestamp() - {}) AS float8)",
    # Whatever time zone the session has: behind a pooler of transactions no setting of a session holds.
    "text": "to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US')",
    "instant": "CAST(? AS timestamp) AT TIME ZONE 'UTC'",
    "this_hour": "date_trunc('hour', statement_timestamp(), 'UTC')",
    "bytes_of": "octet_length({})",
    "as_bytes": "{}",
    "position": "strpos({}, ?)",
    "greatest": "GREATEST",
    "insert_or_ignore": "INSERT",
    "or_ignore": "ON CONFLICT DO NOTHING",
    # Not DO UPDATE, which would write the row anew.
    "keep_standing": "ON CONFLICT (unique_key) WHERE unique_key IS NOT NULL DO NOTHING",
    "any_key": "convert_from(decode(?, 'hex'), 'UTF8')",
    "given": "EXCLUDED.{}",
    "standing": "{0}.{1}",  # a bare column could be either of the two
    "quoted": '"{}"',
    # PostgreSQL takes no hints. In their place each index has the status in a form of its own (schema.sql): only looks
    # that are to read it say the status in that form.
    "by_key": "",
    "by_status": "",
    "by_due": "",
    "group_status": "(0 + status)",
    "due_status": "(status + 0)",
    "undated_order": "due_at DESC,",
    "any_status": "(status - 0)",
    # As on SQLite, DISTINCT would read every entry of an index, so each group is looked for behind the last.
    "groups_of_status": """
        WITH RECURSIVE found (group_id) AS (
            SELECT (SELECT MIN(group_id) FROM {0} WHERE (0 + status) = {2})
            UNION ALL
            SELECT (SELECT MIN(group_id) FROM {0} WHERE (0 + status) = {2} AND group_id > found.group_id)
            FROM found WHERE found.group_id IS NOT NULL
        )
        SELECT CAST({2} AS integer), group_id FROM found WHERE group_id IS NOT NULL LIMIT ?
    """,
    "limit_statements": "SET statement_timeout = '{0}s'",
    "delete_by_key": "DELETE FROM {}",
}
"""The words of PostgreSQL from 13 on."""


def upsert(changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
    """See Dialect.upsert."""
    rows = " WHERE unique_key IS NOT NULL" if key == "unique_key" else ""  # as its index has it
    where = f" WHERE {condition}" if condition else ""
    return f"ON CONFLICT ({key}){rows} DO UPDATE SET {assignments(changes)}{where}"


def numbered(sql: str) -> str:
    """A statement with PostgreSQL's own marks, $1, $2, in place of each `?`."""
    numbers = count(1)
    return re.sub(r"\?", lambda _: f"${next(numbers)}", sql)


class PostgreSQLInserts(Inserts):
    """How rows are added."""

    def key(self, key: str) -> str:
        if "\0" in key:
            raise InvalidTask(f"unique_key is {shown(key)}; allowed on PostgreSQL: a text without NUL")
        return super().key(key)

    def insert(self, database: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        return all_of(count, [int(row[0]) for row in database.rows(sql + RETURNING_ID, values)])

    def insert_key(self, database: Rows, sql: str, values: Sequence[Any], key: str) -> int:
        # A row that stays as it is, since it has the key already, is not returned. The next statement sees it, also
        # where another transaction has committed it just now; unless a worker has deleted it since.
        rows = database.rows(sql + RETURNING_ID, values)
        return int(rows[0][0]) if rows else id_of_key(database, key)

    def insert_keyed(self, database: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        ids = {key.encode(): row_id for key, row_id in database.rows(sql + RETURNING_KEY, values)}
        if unseen := [key for key in dict.fromkeys(keys) if key.encode() not in ids]:
            ids |= ids_of_keys(database, unseen)
        try:
            return [ids[key.encode()] for key in keys]
        except KeyError:
            raise Conflict("a task whose key stood was deleted meanwhile: add it again") from None


def all_of(count: int, ids: Sequence[int]) -> Sequence[int]:
    """The ids of so many rows. Raises Refused where there are fewer."""
    if len(ids) < count:
        raise Refused(
            f"{count - len(ids)} of {count} tasks were not added: a trigger or a rule of the queue's table drops them"
        )
    return ids
