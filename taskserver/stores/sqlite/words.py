"""The words of SQLite."""

from __future__ import annotations

from collections.abc import Mapping

from ..database.dialect import assignments
from ..database.statements import Words


class SQLiteWords(Words):
    """The words of SQLite from 3.24 on."""

    now = "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'"
    after = "strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds') || '000'"
    seconds_since = "(julianday('now') - julianday({})) * 86400.0"
    instant_text = "{}"
    this_hour = "strftime('%Y-%m-%d %H:00:00', 'now')"
    bytes_of = "length(CAST({} AS BLOB))"
    as_bytes = "{}"
    greatest = "MAX"
    insert_or_ignore = "INSERT OR IGNORE"
    given = "excluded.{}"
    quoted = '"{}"'
    by_key = ""
    by_status = 'INDEXED BY "{}_claim_by_group"'
    by_due = 'INDEXED BY "{}_wake_due"'
    # Differs from MySQL: SQLite's DISTINCT reads every entry of an index, so each pair is looked for behind the last.
    pairs = """
        WITH RECURSIVE pair (status, group_id) AS (
            SELECT MIN(status), -1 FROM {0} {1}
            UNION ALL
            SELECT
                CASE WHEN EXISTS (SELECT 1 FROM {0} {1} WHERE status = pair.status AND group_id > pair.group_id)
                THEN pair.status ELSE (SELECT MIN(status) FROM {0} {1} WHERE status > pair.status) END,
                COALESCE(
                    (SELECT MIN(group_id) FROM {0} {1} WHERE status = pair.status AND group_id > pair.group_id), -1)
            FROM pair WHERE pair.status IS NOT NULL
            LIMIT ?
        )
        SELECT status, group_id FROM pair WHERE group_id >= 0
    """
    delete_by_key = "DELETE FROM {}"
    instant_type = "TEXT"
    number_type = "INTEGER"
    small_type = "INTEGER"
    flag_type = "INTEGER"
    text_type = "TEXT"
    long_text_type = "TEXT"

    def upsert(self, changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
        where = f" WHERE {condition}" if condition else ""
        return f"ON CONFLICT ({key}) DO UPDATE SET {assignments(changes)}{where}"

    def of_table(self, table: str) -> dict[str, str]:
        return {name: self.quoted.format(f"{table}_{name}") for name in ("claim_by_group", "claim_any_group")}
