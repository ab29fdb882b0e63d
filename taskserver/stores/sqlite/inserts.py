"""How rows are added on SQLite, and the ids that they got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..dialect import Inserts

if TYPE_CHECKING:
    from ..dialect import Rows


class SQLiteInserts(Inserts):
    """Adding on connections of ours. The rows of an INSERT get consecutive ids, as there is one writer."""

    rows_per_statement = 200  # old SQLite binds 999 values a statement

    def key(self, key: str) -> str:
        return key  # each connection is in UTF-8, and there is no function for hexadecimal

    def insert(self, database: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        last = database.execute(sql, values).lastrowid or 0
        return range(last - count + 1, last + 1)
