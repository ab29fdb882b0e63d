"""How rows are added on PostgreSQL, and the ids that they got."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import Conflict, DatabaseError, InvalidTask, Refused
from ...messages.printable import shown
from ..dialect import Inserts, ids_of_keys
from .errors import DRIVER_ERRORS
from .session import bindable

if TYPE_CHECKING:
    from ..dialect import Rows

MIN_COPIED = 100
"""Fewer rows are not worth a second round trip."""
# COPY is for accounts that may insert an id, too, and for tables without policies of rows. A rule or a trigger of the
# site may make another row of each, or none: only an INSERT tells of that. (In tgtype 1 is ROW, 2 BEFORE, 4 INSERT.)
TAKE_IDS = """
    SELECT nextval(pg_get_serial_sequence('{table}', 'id')) FROM generate_series(1, ?)
    WHERE has_sequence_privilege(pg_get_serial_sequence('{table}', 'id'), 'USAGE')
        AND has_column_privilege('{table}', 'id', 'INSERT') AND NOT row_security_active('{table}')
        AND NOT EXISTS (SELECT FROM pg_class WHERE oid = CAST('{table}' AS regclass) AND relhasrules)
        AND NOT EXISTS (
            SELECT FROM pg_trigger
            WHERE tgrelid = CAST('{table}' AS regclass) AND tgtype & 7 = 7 AND tgenabled <> 'D' AND NOT tgisinternal
        )
"""
COPY = "COPY {table} (id, task, args, group_id, priority) FROM STDIN"
RETURNING_ID = " RETURNING id"
RETURNING_KEY = " RETURNING unique_key, id"


class PostgreSQLInserts(Inserts):
    """Adding on connections of ours."""

    def __init__(self, error_of: Callable[[BaseException], DatabaseError]) -> None:
        self._error_of = error_of

    def insert_plain(self, database: Rows, rows: Sequence[Sequence[Any]]) -> Sequence[int]:
        if len(rows) < MIN_COPIED:
            return super().insert_plain(database, rows)
        # COPY takes half of the time of an INSERT, and tells no ids: they are taken from the table's counter before.
        cursor = database.execute(TAKE_IDS, (len(rows),))
        try:
            ids = [row[0] for row in cursor.fetchall()]
            if not ids:  # COPY is not for this table, or the account may not take ids by itself
                return super().insert_plain(database, rows)
            with cursor.copy(database.compose(COPY)) as copy:
                for task_id, row in zip(ids, rows, strict=True):
                    copy.write_row((task_id, *bindable(row)))
        except DRIVER_ERRORS as error:
            raise self._error_of(error) from error
        return ids

    def insert(self, database: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        return all_of(count, [row[0] for row in database.rows(sql + RETURNING_ID, values)])

    def insert_keyed(self, database: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        for key in keys:
            check_key(key)
        ids = {key.encode(): row_id for key, row_id in database.rows(sql + RETURNING_KEY, values)}
        # A row that stays as it is, since it has the key already, is not returned. The next statement sees it, also
        # where another transaction has committed it just now; unless a worker has deleted it since.
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


def check_key(key: str) -> None:
    """Raises InvalidTask."""
    if "\0" in key:
        raise InvalidTask(f"unique_key is {shown(key)}; allowed on PostgreSQL: a text without NUL")
