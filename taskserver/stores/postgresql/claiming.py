"""The claim on PostgreSQL: one statement that also returns the tasks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...model.task import Changed, ClaimedTask, Status
from ..database import Database
from ..dialect import Claiming
from ..queue.claims import CLAIMED, most_inline
from ..words import with_ids

# Each group gives the ids of its first rows in order, straight from claim_by_group: the candidates, more than needed.
# They are reached by primary key and locked one by one, in order, until there are enough. So a claim reads groups times
# candidates index entries, whatever the size of the table. What goes wrong in other forms:
#
# - group_id = ANY(…) ORDER BY priority, id LIMIT n reads every earlier task of every other group.
# - A lock inside each group's SELECT locks n rows per group, which other workers then cannot get.
# - Without MATERIALIZED the planner may run the SELECT again for each row of the UPDATE. Without a LIMIT of the
#   candidates, another worker's commit makes the statement run for minutes: PostgreSQL scans the whole list again for
#   each row that was changed meanwhile.
#
# Limits are literals: for a bound limit the planner assumes a tenth of the table.

CLAIM = """
    WITH candidates AS MATERIALIZED (
        SELECT id, priority FROM ({picked}) AS first_ones ORDER BY priority, id LIMIT {most}
    ), free AS MATERIALIZED (
        SELECT task.id AS free_id, task.due_at AS free_due_at
        FROM candidates JOIN {table} AS task ON task.id = candidates.id WHERE task.status = 0
        ORDER BY candidates.priority, candidates.id LIMIT {limit} FOR UPDATE OF task SKIP LOCKED
    ), changed AS (
        UPDATE {table}
        SET status = CASE WHEN free_due_at > {now} THEN 5 ELSE 1 END,
            claim = CASE WHEN free_due_at > {now} THEN NULL ELSE CAST(? AS bigint) END,
            due_at = CASE WHEN free_due_at > {now} THEN free_due_at ELSE {after} END,
            started_at = NULL
        FROM free WHERE id = free_id
        RETURNING priority, status, {claimed}
    )
    SELECT (SELECT COUNT(*) FROM candidates), changed.* FROM (SELECT 1) AS always LEFT JOIN changed ON TRUE
    ORDER BY priority, id
""".replace("{claimed}", CLAIMED)
PICK_OF_GROUP = """
    (SELECT id, priority FROM {table}
     WHERE {group_status} = 0 AND group_id = ?
         AND (SELECT COUNT(*) FROM {paused} WHERE group_id IN (?, 4294967295)) = 0
     ORDER BY priority, id LIMIT {most})
"""
PICK_OF_ALL = """
    SELECT id, priority FROM {table} WHERE {any_status} = 0 AND (SELECT COUNT(*) FROM {paused}) = 0
    ORDER BY priority, id LIMIT {most}
"""
LOOK_OF_GROUPS = "SELECT 1 FROM {table} WHERE {group_status} = 0 AND group_id IN ({ids}) LIMIT 1"
LOOK_OF_ALL = "SELECT 1 FROM {table} WHERE {any_status} = 0 LIMIT 1"

CANDIDATES_PER_TASK = 5
"""Other workers may hold the first candidates."""
MORE_CANDIDATES = 20
"""The factor for the next try if others hold all candidates."""
MAX_CANDIDATES = 200_000


class PostgreSQLClaiming(Claiming):
    """The claiming statement."""

    def claim(self, database: Database, token: int, lease_seconds: int, limit: int, groups: Sequence[int]) -> Changed:
        picked, of_groups = _picked(groups), [value for group in groups for value in (group, group)]
        most, inline, can_retry = CANDIDATES_PER_TASK * limit, most_inline(limit), True
        while True:
            sql = _filled(CLAIM.replace("{picked}", picked), most=most, limit=limit)
            rows = database.rows(sql, (*of_groups, token, lease_seconds, inline, inline))
            candidates = rows[0][0]
            if rows[0][1] is not None:
                break
            if candidates == most and most < MAX_CANDIDATES:  # others hold all of these
                most = min(most * MORE_CANDIDATES, MAX_CANDIDATES)
            elif candidates and can_retry:  # others just took them, but there may be new ones
                can_retry = False
            else:
                return Changed(0)
        return Changed(len(rows), [ClaimedTask(*task) for _, _, status, *task in rows if status == Status.IN_PROGRESS])

    def has_new(self, database: Database, groups: Sequence[int]) -> bool:
        if not groups:
            return bool(database.fetch(LOOK_OF_ALL))
        return bool(database.fetch(with_ids(LOOK_OF_GROUPS, groups), groups))

    def indexes(self, database: Database, groups: Sequence[int]) -> Sequence[str]:
        values = [value for group in groups for value in (group, group)]
        plan = database.fetch(f"EXPLAIN {_filled(_picked(groups), most=1)}", values)
        # As: Index Only Scan using jobs_queue_claim_by_group on jobs_queue; in quotes if it has capital letters
        used = (re.search(rf'using "?{database.dialect.table}_(\w+)', str(row[0])) for row in plan)
        return [found[1] for found in used if found]


def _picked(groups: Sequence[int]) -> str:
    return " UNION ALL ".join([PICK_OF_GROUP] * len(groups)) or PICK_OF_ALL


def _filled(sql: str, **limits: int) -> str:
    for name, limit in limits.items():
        sql = sql.replace(f"{{{name}}}", str(limit))
    return sql
