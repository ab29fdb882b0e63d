"""The words of MySQL and MariaDB, and how rows are added there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..dialect import Inserts, assignments, ids_of_keys
from .session import READ_COMMITTED, Abilities

if TYPE_CHECKING:
    from ..dialect import Rows


WORDS = {
    "now": "NOW(6)",
    "after": "NOW(6) + INTERVAL ? SECOND",
    "age": "TIMESTAMPDIFF(MICROSECOND, {}, NOW(6)) / 1e6",
    "text": "DATE_FORMAT({}, '%Y-%m-%d %H:%i:%s.%f')",
    "this_hour": "DATE_FORMAT(NOW(), '%Y-%m-%d %H:00:00')",
    "bytes_of": "OCTET_LENGTH({})",
    "as_bytes": "CAST({} AS BINARY)",
    "position": "INSTR({}, ?)",
    "is_undated": "due_at + 0 = 0",
    "greatest": "GREATEST",
    "insert_or_ignore": "INSERT IGNORE",
    # The INSERT itself returns the id of the row that stands: a look could miss that row in an old snapshot.
    "keep_standing": "ON DUPLICATE KEY UPDATE unique_key = unique_key, id = LAST_INSERT_ID(id)",
    "any_key": "UNHEX(?)",
    "given": "VALUES({})",
    "quoted": "`{}`",
    "by_key": "FORCE INDEX (PRIMARY)",
    "by_status": "FORCE INDEX (claim_by_group)",
    "by_due": "FORCE INDEX (wake_due)",
    "groups_of_status": "SELECT DISTINCT status, group_id FROM {0} {1} WHERE status = {2} ORDER BY group_id LIMIT ?",
    "limit_statements": (
        "SET @seconds = {0}/*!50708 , max_execution_time = {0}000*//*M!100101 , max_statement_time = {0}*/"
    ),
    "delete_by_key": "DELETE gone FROM {} AS gone FORCE INDEX (PRIMARY)",
}
"""The words of MySQL from 5.7 on, and MariaDB from 10.3 on."""


def upsert(changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
    """See Dialect.upsert."""
    # MySQL has no condition for all changes together.
    new = {column: f"IF({condition}, {to}, {column})" if condition else to for column, to in changes.items()}
    returns_id = ", id = LAST_INSERT_ID(id)" if key == "unique_key" else ""
    return f"ON DUPLICATE KEY UPDATE {assignments(new)}{returns_id}"


class MySQLInserts(Inserts):
    """How rows are added, and the ids that they get."""

    def __init__(self, abilities: Abilities) -> None:
        self._abilities = abilities

    def insert(self, database: Rows, sql: str, values: Sequence[Any], count: int) -> Sequence[int]:
        first = int(database.execute(sql, values).lastrowid)
        if count == 1:
            return (first,)
        # InnoDB gives the rows of one INSERT … VALUES consecutive ids, in the steps of this variable (Galera sets it).
        step = int(database.rows("SELECT @@SESSION.auto_increment_increment LIMIT 1")[0][0])
        return range(first, first + count * step, step)

    def insert_key(self, database: Rows, sql: str, values: Sequence[Any], key: str) -> int:
        return int(database.execute(sql, values).lastrowid)

    def insert_keyed(self, database: Rows, sql: str, values: Sequence[Any], keys: Sequence[str]) -> Sequence[int]:
        # In REPEATABLE READ a plain SELECT sees the database as it was at the transaction's first look. A locking one
        # sees the right row, which is locked already. For several keys it would wait for rows beside them, so it is
        # sent for one key at a time.
        database.execute(sql, values)
        ids = ids_of_keys(database, keys) if self._abilities.isolation == READ_COMMITTED else {}
        for unseen in [key for key in keys if key.encode() not in ids]:
            ids |= ids_of_keys(database, [unseen], " FOR UPDATE")
        return [ids[key.encode()] for key in keys]
