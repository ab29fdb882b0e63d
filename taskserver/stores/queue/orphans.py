"""Tasks that wait for others which a person deleted: nothing would ever let them go."""

from __future__ import annotations

from .diagnosis import IS_ORPHAN
from .edges import MAX_EDGES_PER_LOOK
from .store import Store

ORPHANS = f"SELECT id FROM {{table}} {{by_status}} WHERE {IS_ORPHAN} AND id > ? ORDER BY id LIMIT ?"
SIGN = "UPDATE {table} {by_key} SET due_at = {now} WHERE id IN ({ids}) AND status = 5 AND due_at IS NULL"


def sign_orphans(store: Store) -> int:
    """Put the sign on orphans that has Dependencies.settle look at them; how many. Raises DatabaseError."""
    last = signed = 0
    while orphans := [row[0] for row in store.database.fetch(ORPHANS, (last, MAX_EDGES_PER_LOOK))]:
        signed += store.free_rows.write_ids(SIGN, orphans)
        last = orphans[-1]
    return signed
