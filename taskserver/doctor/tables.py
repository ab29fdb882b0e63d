"""Checks of the queue's tables and of how claims read them, which are the same for every kind of database."""

from __future__ import annotations

from collections.abc import Sequence

from ..messages.programs import CLIENT
from ..stores.facts import MAX_USUAL_ID, ForgedIds, TableFault
from ..stores.tables import SCHEMA_VERSION
from .findings import CheckResult, broken, ok, unknown, warning

CLAIM_INDEXES = ("claim_by_group", "claim_any_group")
MAX_FAULTS_NAMED = 3


MYSQL_COMPARES = "may SELECT and CREATE TEMPORARY TABLES in the whole database"


def check_tables(
    faults: Sequence[TableFault] | str, compares: str = MYSQL_COMPARES, schema: str = "schema.sql"
) -> CheckResult:
    """Whether tables and indexes are as the schema file makes them; a text tells why that cannot be found out.

    An account of which `compares` holds finds it out.
    """
    if isinstance(faults, str):
        return unknown(
            "tables",
            f"this account cannot compare them with those that this version makes: {faults}",
            "where they differ, claims would fail, be slow, or wait for one another",
            f"let an account run this once that {compares}",
        )
    if not faults:
        return ok("tables", f"tables and indexes are those of version {SCHEMA_VERSION}")
    named = "; ".join(f"{fault.table}: {fault.what}" for fault in faults[:MAX_FAULTS_NAMED])
    more = f"; and {len(faults) - MAX_FAULTS_NAMED} more" if len(faults) > MAX_FAULTS_NAMED else ""
    return broken(
        "tables",
        named + more,
        "claims would fail, be slow, or wait for one another",
        f"{CLIENT} init makes what is missing as a whole; change the rest by ALTER TABLE to what {schema} says",
    )


def check_claim_index(used: Sequence[str], lacks_rights: bool = False, schema: str = "schema.sql") -> CheckResult:
    """Whether claims read by the indexes made for them; `used` names the indexes that they do read by.

    With `lacks_rights` the account may not have been allowed to ask.
    """
    missing = [name for name in CLAIM_INDEXES if name not in used]
    if not missing:
        return ok("claim_index", f"claims read by {' and '.join(CLAIM_INDEXES)}")
    if not used and lacks_rights:
        return unknown("claim_index", "how claims read the queue cannot be told", "EXPLAIN takes the right to SELECT")
    return broken(
        "claim_index",
        f"claims do not read by {' and '.join(missing)}",
        "they would read, and lock, the whole queue",
        f"make that index as in {schema}",
    )


def check_ids(
    found: Sequence[ForgedIds] | None, who: str, takes: str = "SHOW CREATE TABLE takes SELECT"
) -> CheckResult:
    """Whether tables have ids left; `who` may run the statements that mend it.

    None: the account may not see it, which `takes` some right.
    """
    why = "a table whose ids come to their end takes no more rows, so that no task can be added"
    if found is None:
        return unknown("ids", "the next ids of the tables cannot be told", why, takes)
    if not found:
        return ok("ids", "the tables have ids left")
    words = [
        f"{'no id is left in' if one.is_full else 'the ids are far from all usual ones in'} {one.table}, where "
        f"{_rows_beyond(one.rows)} beyond {MAX_USUAL_ID}"
        for one in found
    ]
    statements = " ".join(f"{statement};" for one in found for statement in one.mend)
    return (broken if any(one.is_full for one in found) else warning)(
        "ids",
        f"{'; '.join(words)}: somebody forged one",
        why,
        f"save what you need of these rows ({CLIENT} list shows the greatest ids first), or wait until workers have "
        f"done them; then have {who} run: {statements}",
    )


def _rows_beyond(rows: int | None) -> str:
    if rows is None:
        return "the next one lies"
    return f"{rows} row{' has an id' if rows == 1 else 's have ids'}"
