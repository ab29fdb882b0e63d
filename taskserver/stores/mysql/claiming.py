"""The claim on MySQL and MariaDB: the dialect's hard part."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import NotUnderstood
from ...model.task import Changed
from ..database import Database
from ..dialect import Claiming
from ..retrying import AT_ONCE
from ..words import with_ids

# Each group gives its first rows in order, straight from (status, group_id, priority, id). These few are sorted
# together, and the UPDATE reaches the chosen ones by primary key. So a claim reads groups times limit index entries,
# whatever the size of the table. What goes wrong in the naive forms:
#
# - UPDATE … WHERE group_id IN (…) ORDER BY priority, id LIMIT n has no index for that order: it sorts the whole
#   backlog and locks all that it read, so a second worker waits for the first.
# - Forcing (status, priority, id) instead reads every earlier task of every other group.
# - Without SKIP LOCKED two workers pick the same rows, and one waits, or they deadlock. Servers before MariaDB 10.6 and
#   MySQL 8.0.1 cannot do better. The claim is still right: the outer WHERE checks again, and deadlocks are retried. But
#   a held or uncommitted row at the head of the queue delays it until that transaction ends.
#
# The group 4294967295, which no task has, pauses all groups (queue/claims.py).
#
# STRAIGHT_JOIN and the forced keys: on a small or freshly filled table the optimizer prefers a scan, and a scanning
# UPDATE locks everything. Values come from `picked`, because a joined UPDATE assigns in no fixed order.

CLAIM = """
    UPDATE (SELECT id, due_at FROM ({picked}) AS candidates ORDER BY priority, id LIMIT ?) AS picked
    STRAIGHT_JOIN {table} AS task FORCE INDEX (PRIMARY) ON task.id = picked.id
    SET task.status = IF(picked.due_at > NOW(6), 5, 1),
        task.claim = IF(picked.due_at > NOW(6), NULL, ?),
        task.due_at = IF(picked.due_at > NOW(6), picked.due_at, NOW(6) + INTERVAL ? SECOND),
        task.error_text = IF(picked.due_at + 0 = 0, {undated}, task.error_text),
        task.started_at = NULL,
        task.updated_at = task.updated_at
    WHERE task.status = 0
"""
SEEN = "SELECT id FROM ({picked}) AS candidates ORDER BY priority, id LIMIT ?"
PICK_OF_GROUP = """
    SELECT * FROM (SELECT id, priority, due_at FROM {table} FORCE INDEX (claim_by_group)
                   WHERE status = 0 AND group_id = ?
                       AND (SELECT COUNT(*) FROM {paused} WHERE group_id IN (?, 4294967295)) {is_no_pause}
                   ORDER BY priority, id LIMIT ?{skip_locked}) AS of_group
"""
PICK_OF_ALL = """
    SELECT * FROM (SELECT id, priority, due_at FROM {table} FORCE INDEX (claim_any_group)
                   WHERE status = 0 AND (SELECT COUNT(*) FROM {paused}) {is_no_pause}
                   ORDER BY priority, id LIMIT ?{skip_locked}) AS of_all
"""
LOOK_OF_GROUPS = """
    SELECT 1 FROM {table} FORCE INDEX (claim_by_group) WHERE status = 0 AND group_id IN ({ids}) LIMIT 1
"""
LOOK_OF_ALL = "SELECT 1 FROM {table} FORCE INDEX (claim_any_group) WHERE status = 0 LIMIT 1"


class MySQLClaiming(Claiming):
    """The claiming UPDATE."""

    def claim(self, database: Database, token: int, lease_seconds: int, limit: int, groups: Sequence[int]) -> Changed:
        dialect, values = database.dialect, claim_values(token, lease_seconds, limit, groups)
        if dialect.skips_locked:
            try:
                return Changed(database.execute(claim_statement(groups, dialect.skip_locked), values).rowcount)
            except NotUnderstood:
                dialect.skips_locked = False
        return Changed(database.execute(claim_statement(groups, ""), values).rowcount)

    def indexes(self, database: Database, groups: Sequence[int]) -> Sequence[str]:
        # EXPLAIN of the claim itself names no index while a group is paused or the first row is held.
        statement = f"EXPLAIN FORMAT = TRADITIONAL {_filled(SEEN, groups, '', '>= 0')}"
        *picked, _, _ = claim_values(0, 0, 1, groups)
        return database.run(AT_ONCE, self._indexes, database, statement, picked)

    def _indexes(self, database: Database, sql: str, values: Sequence[int]) -> list[str]:
        cursor = database.execute(sql, values)
        key = [column[0] for column in cursor.description].index("key")
        return [row[key] for row in cursor.fetchall() if row[key]]

    def has_new(self, database: Database, groups: Sequence[int]) -> bool:
        if not groups:
            return bool(database.fetch(LOOK_OF_ALL))
        return bool(database.fetch(with_ids(LOOK_OF_GROUPS, groups), groups))


def claim_values(token: int, lease_seconds: int, limit: int, groups: Sequence[int]) -> Sequence[int]:
    """The values for the marks of `claim_statement`."""
    picked = [value for group in groups for value in (group, group, limit)] or [limit]
    return (*picked, limit, token, lease_seconds)


def claim_statement(groups: Sequence[int], skip_locked: str) -> str:
    """The UPDATE; `skip_locked` ends each SELECT in it."""
    return _filled(CLAIM, groups, skip_locked, "= 0")


def _filled(sql: str, groups: Sequence[int], skip_locked: str, is_no_pause: str) -> str:
    """`is_no_pause` follows the number of pauses."""
    picked = " UNION ALL ".join([PICK_OF_GROUP] * len(groups)) or PICK_OF_ALL
    filled = sql.replace("{picked}", picked).replace("{skip_locked}", skip_locked)
    return filled.replace("{is_no_pause}", is_no_pause)
