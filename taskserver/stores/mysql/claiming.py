"""The claim on MySQL and MariaDB: the dialect's hard part."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import Conflict
from ...model.task import MAX_PRIORITY, Changed
from ..database import Database
from ..retrying import AT_ONCE
from ..words import with_ids
from .errors import LOCK_WAIT_ENDED, number_of

if TYPE_CHECKING:
    from ..free_rows import FreeRows

# Each group gives its first rows in order straight from (status, group_id, priority, id); those few are put in
# order together, and the UPDATE reaches the chosen ones by primary key. So a claim reads groups times limit
# index entries, however many rows wait, are finished, or belong to others. What goes wrong in the naive forms:
#
# - UPDATE … WHERE group_id IN (…) ORDER BY priority, id LIMIT n has no index for that order: it sorts the whole
#   backlog and locks all that it read, so a second worker waits for the first.
# - Forcing (status, priority, id) instead reads past every sooner task of every other group.
# - Without SKIP LOCKED two workers pick the same rows and one waits, or the two deadlock; that is all that
#   servers before MariaDB 10.6 and MySQL 8.0.1 can do. The claim is right there too, as the outer WHERE looks
#   again, and deadlocks are retried. One row that another program holds, or has not committed yet, keeps it waiting.
# - Where it meets too many uncommitted rows, or one without SKIP LOCKED, a plain look, which waits for none and sees
#   what is committed, chooses the rows (CLAIM_SEEN).
#
# While groups are paused, the claim of all groups reads a window of the order of all tasks, and passes over the rows of
# paused groups in it (queue/beside_paused.py). The window's end is found before, and named as two ranges of the index:
# a LIMIT within would have the claim lock the whole window.
#
# STRAIGHT_JOIN and the forced keys: on a small or freshly filled table the optimizer would rather scan, and a
# scanning UPDATE locks everything. Values are taken from `picked`, since a joined UPDATE promises no order of
# its assignments. LAST_INSERT_ID(5) is 5, and the server tells it in its answer: the sign that a row became waiting.

CLAIM = """
    UPDATE (SELECT id, due_at FROM ({picked}) AS candidates ORDER BY priority, id LIMIT ?) AS picked
    STRAIGHT_JOIN {table} AS task FORCE INDEX (PRIMARY) ON task.id = picked.id
    SET task.status = IF(picked.due_at > NOW(6), LAST_INSERT_ID(5), 1),
        task.claim = IF(picked.due_at > NOW(6), NULL, ?),
        task.due_at = IF(picked.due_at > NOW(6), picked.due_at, NOW(6) + INTERVAL ? SECOND),
        task.error_text = IF(picked.due_at + 0 = 0, {undated}, task.error_text),
        task.started_at = NULL,
        task.updated_at = task.updated_at
    WHERE task.status = 0
"""
# Of each uncommitted row that it passes over MariaDB writes down a lock, and ends itself once locks fill its memory: a
# million rows in one transaction are enough. Other servers take this for a comment.
IN_TIME = "/*M!100600 SET STATEMENT lock_wait_timeout = 0, max_statement_time = 0.3 FOR */"
# A lock on the whole table has to be waited for: without a place in line a claim might never have its turn.
IN_LINE = "/*M!100600 SET STATEMENT max_statement_time = 1.3 FOR */"
AT_ONCE_SECONDS = 0.2
MAX_BEHIND_HELD = 200
"""So many rows are looked at behind those that others hold."""
SEEN = "SELECT id FROM ({picked}) AS candidates ORDER BY priority, id LIMIT ?"
# In an UPDATE of one table the assignments are done in their order.
CLAIM_SEEN = """
    UPDATE {table} {by_key}
    SET error_text = IF({is_undated}, {undated}, error_text),
        status = IF(due_at > NOW(6), 5, 1), claim = IF(due_at > NOW(6), NULL, ?),
        due_at = IF(due_at > NOW(6), due_at, NOW(6) + INTERVAL ? SECOND), started_at = NULL, updated_at = updated_at
    WHERE id IN ({ids}) AND status = 0
"""
PICK_OF_GROUP = """
    SELECT * FROM (SELECT id, priority, due_at FROM {table} FORCE INDEX (claim_by_group)
                   WHERE status = 0 AND group_id = ?
                       AND (SELECT COUNT(*) FROM {paused} WHERE group_id = ?) {is_no_pause}
                   ORDER BY priority, id LIMIT ?{skip_locked}) AS of_group
"""
PICK_OF_ALL = """
    SELECT * FROM (SELECT id, priority, due_at FROM {table} FORCE INDEX (claim_any_group)
                   WHERE status = 0 AND (SELECT COUNT(*) FROM {paused}) {is_no_pause}
                   ORDER BY priority, id LIMIT ?{skip_locked}) AS of_all
"""
PICK_BESIDE_PAUSED = """
    SELECT * FROM (SELECT id, priority, due_at FROM {table} FORCE INDEX (claim_any_group)
                   WHERE status = 0 AND (priority < ? OR priority = ? AND id < ?)
                       AND (SELECT COUNT(*) FROM {paused} AS pause
                            WHERE pause.group_id = {table}.group_id) {is_no_pause}
                   ORDER BY priority, id LIMIT ?{skip_locked}) AS beside_paused
"""
END_OF_FIRST = """
    SELECT priority, id FROM {table} FORCE INDEX (claim_any_group) WHERE status = 0
    ORDER BY priority, id LIMIT 1 OFFSET ?
"""
LOOK_OF_GROUPS = """
    SELECT 1 FROM {table} FORCE INDEX (claim_by_group) WHERE status = 0 AND group_id IN ({ids}) LIMIT 1
"""
LOOK_OF_ALL = "SELECT 1 FROM {table} FORCE INDEX (claim_any_group) WHERE status = 0 LIMIT 1"


class MySQLClaiming:
    """The claiming UPDATE, and looks at new rows."""

    def claim(self, database: Database, token: int, lease_seconds: int, limit: int, groups: Sequence[int]) -> Changed:
        """New → in progress; some rows become waiting instead."""
        return _changed(
            database, lambda end: claim_statement(groups, end), claim_values(token, lease_seconds, limit, groups)
        )

    def claim_first(self, database: Database, token: int, lease_seconds: int, limit: int, count: int) -> Changed:
        """The same for the first rows, beside paused groups."""
        beyond = database.rows(END_OF_FIRST, (count,))
        priority, row_id = beyond[0] if beyond else (MAX_PRIORITY + 1, 0)
        values = (priority, priority, row_id, limit, limit, token, lease_seconds)
        changed = _changed(database, lambda end: _filled(CLAIM, PICK_BESIDE_PAUSED, end), values)
        return changed._replace(was_all=not beyond)

    def claim_seen(
        self, database: Database, free_rows: FreeRows, token: int, lease_seconds: int, limit: int, groups: Sequence[int]
    ) -> bool:
        """The same for rows that a look without locks finds, leaving out those of them that others hold."""
        *picked, _, _ = claim_values(token, lease_seconds, limit + MAX_BEHIND_HELD, groups)
        ids = [row[0] for row in database.fetch(_filled(SEEN, _picked(groups), skip_locked=""), picked)]
        claimed, in_doubt = free_rows.write_in_doubt(CLAIM_SEEN, ids[:limit], values_before=(token, lease_seconds))
        if claimed or len(ids) <= limit:
            return in_doubt

        def claim(free: Sequence[int]) -> None:
            nonlocal claimed
            if some := free[: limit - claimed]:
                claimed += database.write(with_ids(CLAIM_SEEN, some), (token, lease_seconds, *some))

        return free_rows.work(ids[limit:], claim).in_doubt or in_doubt

    def indexes(self, database: Database, groups: Sequence[int]) -> Sequence[str]:
        """The indexes by which the claim reads the queue."""
        # While a group is paused, or others hold the first row, the server would say of the claim itself that it finds
        # nothing, and name no index.
        statement = f"EXPLAIN FORMAT = TRADITIONAL {_filled(SEEN, _picked(groups), '', is_no_pause='>= 0')}"
        *picked, _, _ = claim_values(0, 0, 1, groups)
        return database.run(AT_ONCE, self._indexes, database, statement, picked)

    def _indexes(self, database: Database, sql: str, values: Sequence[int]) -> list[str]:
        cursor = database.execute(sql, values)
        key = [column[0] for column in cursor.description].index("key")
        return [row[key] for row in cursor.fetchall() if row[key]]

    def has_new(self, database: Database, groups: Sequence[int]) -> bool:
        """Whether a look without locks finds a new row."""
        if not groups:
            return bool(database.fetch(LOOK_OF_ALL))
        return bool(database.fetch(with_ids(LOOK_OF_GROUPS, groups), groups))


def _changed(database: Database, statement: Callable[[str], str], values: Sequence[int]) -> Changed:
    """Send a claiming UPDATE, which is made from the end of each SELECT in it."""

    def send(end: str) -> Any:
        claim, began_at = statement(_skipping(database, end)), time.monotonic()
        try:
            return database.execute(IN_TIME + claim, values)
        except Conflict as error:
            has_waited = time.monotonic() - began_at > AT_ONCE_SECONDS
            if has_waited or number_of(error.__cause__) != LOCK_WAIT_ENDED:
                raise
        return database.execute(IN_LINE + claim, values)

    answer = database.skipping_locked(send)
    return Changed(answer.rowcount, some_may_wait=bool(answer.lastrowid))


def _skipping(database: Database, end: str) -> str:
    """The end of each SELECT in the claim: none where the server cannot pass over rows that others hold."""
    return end if database.dialect.skips_locked else ""


def claim_values(token: int, lease_seconds: int, limit: int, groups: Sequence[int]) -> Sequence[int]:
    """The values for the marks of `claim_statement`."""
    picked = [value for group in groups for value in (group, group, limit)] or [limit]
    return (*picked, limit, token, lease_seconds)


def claim_statement(groups: Sequence[int], skip_locked: str, is_no_pause: str = "= 0") -> str:
    """The one UPDATE; `skip_locked` ends each SELECT in it, and `is_no_pause` is asked of the number of pauses."""
    return _filled(CLAIM, _picked(groups), skip_locked, is_no_pause)


def _picked(groups: Sequence[int]) -> str:
    return " UNION ALL ".join([PICK_OF_GROUP] * len(groups)) or PICK_OF_ALL


def _filled(sql: str, picked: str, skip_locked: str, is_no_pause: str = "= 0") -> str:
    filled = sql.replace("{picked}", picked).replace("{skip_locked}", skip_locked)
    return filled.replace("{is_no_pause}", is_no_pause)
