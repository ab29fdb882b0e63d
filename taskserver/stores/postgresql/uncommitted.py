"""Ids whose row another transaction may have inserted and not committed.

Differs from MySQL: no SELECT meets such a row, with or without locks. An INSERT of the same id does: it waits for the
end of that transaction. So a missing id is tried by an INSERT, which is rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..retrying import RetryPolicy, Scope
from ..statements import with_ids

if TYPE_CHECKING:
    from ..database import Database

ARE_THERE = "SELECT id FROM {table} WHERE id IN ({ids})"
WAIT_BRIEFLY = "SET LOCAL lock_timeout = '20ms'"
TRY = "INSERT INTO {table} (id, task) VALUES (?, '') ON CONFLICT DO NOTHING"


def without_row(database: Database, ids: Sequence[int]) -> set[int]:
    """Those of these ids that have no row, not even an uncommitted one. Raises Conflict where one may have."""
    policy = RetryPolicy(Scope.BARE, conflict_seconds=0)
    missing = set(ids).difference(row[0] for row in database.fetch(with_ids(ARE_THERE, ids), ids))
    return database.run(policy, _tried, database, sorted(missing)) if missing else missing


def _tried(database: Database, missing: Sequence[int]) -> set[int]:
    database.execute("BEGIN")
    database.execute(WAIT_BRIEFLY)
    gone = {task_id for task_id in missing if database.write(TRY, (task_id,))}
    database.execute("ROLLBACK")
    return gone
