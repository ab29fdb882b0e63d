"""The words of SQLite."""

from __future__ import annotations

from collections.abc import Mapping

from ..dialect import assignments

WORDS = {
    "now": "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'",
    "after": "strftime('%Y-%m-%d %H:%M:%f', 'now', ? || ' seconds') || '000'",
    "age": "(julianday('now') - julianday({})) * 86400.0",
    "text": "{}",
    "this_hour": "strftime('%Y-%m-%d %H:00:00', 'now')",
    "bytes_of": "length(CAST({} AS BLOB))",
    "as_bytes": "{}",
    "position": "INSTR({}, ?)",
    "for_update": "",
    "greatest": "MAX",
    "insert_or_ignore": "INSERT OR IGNORE",
    "keep_standing": "ON CONFLICT (unique_key) DO UPDATE SET unique_key = unique_key",
    "given": "excluded.{}",
    "quoted": '"{}"',
    "by_key": "",
    "by_status": 'INDEXED BY "{}_claim_by_group"',
    "by_due": 'INDEXED BY "{}_wake_due"',
    "by_order": 'INDEXED BY "{}_claim_any_group"',  # of all new tasks
    # Differs from MySQL: SQLite's DISTINCT reads every entry of an index, so each group is looked for behind the last.
    "groups_of_status": """
        WITH RECURSIVE found (group_id) AS (
            SELECT MIN(group_id) FROM {0} {1} WHERE status = {2}
            UNION ALL
            SELECT (SELECT MIN(group_id) FROM {0} {1} WHERE status = {2} AND group_id > found.group_id)
            FROM found WHERE found.group_id IS NOT NULL
        )
        SELECT {2}, group_id FROM found WHERE group_id IS NOT NULL LIMIT ?
    """,
    "delete_by_key": "DELETE FROM {}",
}
"""The words of SQLite from 3.24 on."""


def upsert(changes: Mapping[str, str], condition: str, key: str = "unique_key") -> str:
    """See Dialect.upsert."""
    where = f" WHERE {condition}" if condition else ""
    return f"ON CONFLICT ({key}) DO UPDATE SET {assignments(changes)}{where}"
