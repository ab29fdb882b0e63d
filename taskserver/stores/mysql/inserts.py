"""How rows are added on MySQL and MariaDB, and the ids that they got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..dialect import Inserts, ids_of_keys
from .session import READ_COMMITTED, Abilities

if TYPE_CHECKING:
    from ..dialect import Rows


class MySQLInserts(Inserts):
    """Adding on connections of ours."""

    def __init__(self, abilities: Abilities) -> None:
        self._abilities = abilities

    def insert(self, database: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        return inserted_ids(database, sql, values, count)

    def insert_keyed(self, database: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        # In REPEATABLE READ a plain SELECT does not see a key's row that another transaction committed since the first
        # look of this one, or sees a row that is gone. A locking SELECT sees the right row, which is locked already. It
        # is sent for one key at a time: for several keys it would wait for rows beside them.
        database.execute(sql, values)
        ids = ids_of_keys(database, keys) if self._abilities.isolation == READ_COMMITTED else {}
        for unseen in [key for key in keys if key.encode() not in ids]:
            ids |= ids_of_keys(database, [unseen], " FOR UPDATE")
        return [ids[key.encode()] for key in keys]


def inserted_ids(database: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
    """Insert `count` rows; their ids, in order."""
    first = int(database.execute(sql, values).lastrowid)
    if count == 1:
        return (first,)
    # InnoDB gives the rows of one INSERT … VALUES consecutive ids, in the steps of this variable (Galera sets it).
    step = int(database.rows("SELECT @@SESSION.auto_increment_increment LIMIT 1")[0][0])
    return range(first, first + count * step, step)
