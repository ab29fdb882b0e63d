"""The claim on SQLite.

Differs from MySQL: one writer at a time, so a claim needs neither row locks nor SKIP LOCKED.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...model.task import Changed
from ..database import Database
from ..dialect import Claiming

CLAIM = """
    UPDATE {table}
    SET status = CASE WHEN due_at > {now} THEN 5 ELSE 1 END,
        claim = CASE WHEN due_at > {now} THEN NULL ELSE ? END,
        due_at = CASE WHEN due_at > {now} THEN due_at ELSE {after} END,
        started_at = NULL
    WHERE id IN (SELECT id FROM ({picked}) ORDER BY priority, id LIMIT ?3)
"""
PICK_OF_GROUP = """
    SELECT * FROM (SELECT id, priority FROM {table} {by_status}
                   WHERE status = 0 AND group_id = {group}
                       AND (SELECT COUNT(*) FROM {paused} WHERE group_id IN ({group}, 4294967295)) = 0
                   ORDER BY priority, id LIMIT ?3)
"""
PICK_OF_ALL = """
    SELECT id, priority FROM {table} {by_order}
    WHERE status = 0 AND (SELECT COUNT(*) FROM {paused}) = 0 ORDER BY priority, id LIMIT ?3
"""
LOOK_OF_GROUP = "SELECT EXISTS (SELECT 1 FROM {table} {by_status} WHERE status = 0 AND group_id = ?)"
LOOK_OF_ALL = "SELECT EXISTS (SELECT 1 FROM {table} {by_order} WHERE status = 0)"


class SQLiteClaiming(Claiming):
    """The claiming UPDATE."""

    def claim(self, database: Database, token: int, lease_seconds: int, limit: int, groups: Sequence[int]) -> Changed:
        sql = CLAIM.replace("{picked}", _picked(groups))
        return Changed(database.execute(sql, (token, lease_seconds, limit, *groups)).rowcount)

    def has_new(self, database: Database, groups: Sequence[int]) -> bool:
        if not groups:
            return bool(database.fetch_value(LOOK_OF_ALL))
        return any(database.fetch_value(LOOK_OF_GROUP, (group,)) for group in groups)

    def indexes(self, database: Database, groups: Sequence[int]) -> Sequence[str]:
        plan = database.fetch(f"EXPLAIN QUERY PLAN {_picked(groups)}", (0, 0, 1, *groups))
        # As: SEARCH jobs_queue USING INDEX jobs_queue_claim_by_group (status=? AND group_id=?)
        used = (re.search(rf"INDEX {database.dialect.table}_(\w+)", str(row[-1])) for row in plan)
        return [found[1] for found in used if found]


def _picked(groups: Sequence[int]) -> str:
    """Each group gives its first rows in order, straight from the index; these few are sorted together.

    Marks are numbered, because old SQLite binds at most 999 values: the limit is the third, the groups follow.
    """
    of_groups = [PICK_OF_GROUP.replace("{group}", f"?{4 + index}") for index in range(len(groups))]
    return " UNION ALL ".join(of_groups) or PICK_OF_ALL
