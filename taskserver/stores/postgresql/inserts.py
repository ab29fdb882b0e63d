"""How rows are added on PostgreSQL, and the ids that they got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import Conflict, InvalidTask
from ...messages.printable import shown
from ..database.dialect import Inserts, ids_of_keys

if TYPE_CHECKING:
    from ..database.dialect import Rows

RETURNING_ID = " RETURNING id"
RETURNING_KEY = " RETURNING unique_key, id"


class PostgreSQLInserts(Inserts):
    """Adding on connections of ours."""

    def insert(self, database: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        return [row[0] for row in database.rows(sql + RETURNING_ID, values)]

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


def check_key(key: str) -> None:
    """Raises InvalidTask."""
    if "\0" in key:
        raise InvalidTask(f"unique_key is {shown(key)}; allowed on PostgreSQL: a text without NUL")
