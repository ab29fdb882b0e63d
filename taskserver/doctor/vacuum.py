"""Checks of the rows that were deleted and that PostgreSQL still has: who keeps them, and whether VACUUM comes.

A claim steps over the index entries of all rows that were claimed since the oldest snapshot; VACUUM cannot free them
while somebody might still look.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..messages.printable import age, printable
from ..stores.facts import Holder, PostgreSQLFacts, TableRows
from .findings import CheckResult, broken, ok, unknown, warning
from .servers import MAX_TRANSACTION_SECONDS

MAX_TRANSACTIONS = 100_000
"""Of a snapshot whose age is hidden, or that has none: a queue at work makes so many in half a minute."""
MAX_DEAD = 1_000_000
MIN_BLOATED_BYTES = 500 * 1024 * 1024
MAX_ROW_BYTES = 2048
"""In the table itself: of a longer row PostgreSQL keeps the long texts elsewhere."""
MIN_USED_SHARE = 0.1
MAX_NAMED = 3
MAX_AGE = 2**31
"""In transactions. The server stops before a row is older."""
MIN_AGE_LEFT = 40_000_000
"""From there on the server warns with each transaction."""
MAX_USUAL_AGE = 1_500_000_000
FREEZE_AGES = ("autovacuum_freeze_max_age", "autovacuum_multixact_freeze_max_age")
DEFAULT_FREEZE_AGE = 400_000_000


def findings(facts: PostgreSQLFacts) -> Iterator[CheckResult]:
    """One finding for each check."""
    yield _transactions(facts)
    yield _autovacuum(facts)
    yield _dead_rows(facts.rows)
    yield _transaction_ids(facts)


# ---- who keeps them


def _transactions(facts: PostgreSQLFacts) -> CheckResult:
    if facts.held:
        return _held(facts)
    old = [holder for holder in facts.holders if _is_old(holder)]
    if old:
        return warning(
            "transactions",
            f"dead rows are kept for the sake of {_named(old)}",
            "the server frees nothing that was deleted since then, and every claim reads past it",
            _ways_to_end(old),
        )
    if not facts.sees_all:
        return unknown(
            "transactions",
            "how long the transactions of other accounts are open cannot be seen: that takes the role "
            "pg_read_all_stats",
            "one that stands open for hours makes every claim slower",
            f"have an administrator of the server run GRANT pg_read_all_stats TO {facts.user}",
        )
    return ok("transactions", "none stands open for long, and no snapshot is old")


def _is_old(holder: Holder) -> bool:
    if holder.seconds is not None:
        return holder.seconds > MAX_TRANSACTION_SECONDS
    return holder.transactions > MAX_TRANSACTIONS


def _held(facts: PostgreSQLFacts) -> CheckResult:
    who = _named(facts.held_by) if facts.held_by else "an open transaction of another program"
    return warning(
        "transactions",
        f"{facts.held} new task{' is' if facts.held == 1 else 's are'} held by {who}",
        "no worker can take them up before it ends",
        _ways_to_end(facts.held_by) or "find it in pg_stat_activity, or pg_prepared_xacts, and end the program",
    )


def _named(holders: Sequence[Holder]) -> str:
    more = f"; and {len(holders) - MAX_NAMED} more" if len(holders) > MAX_NAMED else ""
    return "; ".join(map(_words, holders[:MAX_NAMED])) + more


def _words(holder: Holder) -> str:
    name = printable(holder.name)
    since = f"open since {age(holder.seconds)}" if holder.seconds is not None else ""
    behind = f"{holder.transactions} transactions behind" if holder.seconds is None else ""
    if holder.kind == "prepared":
        return f"the prepared transaction '{name}' of {holder.user}, {since}"
    if holder.kind == "slot":
        return f"the replication slot '{name}', {behind}"
    known = [
        f"by {printable(holder.user)}",
        holder.program and f"with {printable(holder.program)}",
        holder.address and f"from {holder.address}",
    ]
    what = "a standby's long query, by the process" if holder.kind == "standby" else "the session"
    return ", ".join(filter(None, [f"{what} {name} {' '.join(filter(None, known))}", holder.state, since, behind]))


def _ways_to_end(holders: Sequence[Holder]) -> str:
    return "; ".join(map(_way_to_end, holders[:MAX_NAMED]))


def _way_to_end(holder: Holder) -> str:
    if holder.kind == "session":
        return f"end that program, or SELECT pg_terminate_backend({holder.name})"
    quoted = "'" + printable(holder.name).replace("'", "''") + "'"
    if holder.kind == "prepared":
        return f"ROLLBACK PREPARED {quoted}, or COMMIT PREPARED {quoted}, in this database"
    if holder.kind == "slot":
        return f"have its standby catch up; where that is gone, SELECT pg_drop_replication_slot({quoted})"
    return "end the query on the standby, or set hot_standby_feedback = off there"


# ---- whether VACUUM comes


def _autovacuum(facts: PostgreSQLFacts) -> CheckResult:
    why = "nothing frees the rows that were deleted: the tables grow, and every claim reads past more of them"
    off = [name for name in ("autovacuum", "track_counts") if facts.variables.get(name) == "off"]
    if off:
        return warning("autovacuum", f"{' and '.join(off)} off", why, "ask the host to set it on, in postgresql.conf")
    if facts.not_vacuumed:
        return warning(
            "autovacuum",
            f"autovacuum is switched off for {', '.join(facts.not_vacuumed)}",
            why,
            "; ".join(f"as its owner: ALTER TABLE {one} RESET (autovacuum_enabled)" for one in facts.not_vacuumed),
        )
    return ok("autovacuum", "autovacuum looks after the queue's tables")


def _dead_rows(tables: Sequence[TableRows]) -> CheckResult:
    dead = [one for one in tables if one.dead > max(MAX_DEAD, one.live)]
    if dead:
        return warning(
            "dead_rows",
            "; ".join(f"{one.table} has {one.dead} dead rows beside {one.live}" for one in dead),
            "every claim reads past those that were claimed since the last VACUUM",
            "see the checks transactions and autovacuum; then " + " ".join(f"VACUUM {one.table};" for one in dead),
        )
    bloated = [one for one in tables if _is_bloated(one)]
    if bloated:
        return warning(
            "dead_rows",
            "; ".join(f"{one.table} takes {one.size_bytes // 2**20} MB for {one.live} rows" for one in bloated),
            "the space is kept for new rows; backups and looks through the whole table take longer",
            " ".join(f"VACUUM FULL {one.table};" for one in bloated) + " while no worker runs",
        )
    return ok("dead_rows", f"{sum(one.dead for one in tables)} dead rows in the queue's tables")


def _is_bloated(table: TableRows) -> bool:
    most = (table.live + table.dead) * MAX_ROW_BYTES
    return table.size_bytes > MIN_BLOATED_BYTES and most < MIN_USED_SHARE * table.size_bytes


def _transaction_ids(facts: PostgreSQLFacts) -> CheckResult:
    oldest = max(facts.transaction_age, facts.multixact_age)
    left = MAX_AGE - oldest
    found = f"the oldest rows of this database are {oldest} transactions old, and {left} are left"
    given = (facts.variables.get(name, "") for name in FREEZE_AGES)
    usual = max((int(value) for value in given if value.isdigit()), default=DEFAULT_FREEZE_AGE)
    if left > MIN_AGE_LEFT and oldest <= max(usual, min(2 * usual, MAX_USUAL_AGE)):
        return ok("transaction_ids", found)
    return (warning if left > MIN_AGE_LEFT else broken)(
        "transaction_ids",
        found,
        "once none is left, the server takes no writes any more",
        "see who keeps old rows (the check transactions), and run VACUUM FREEZE in this database, as its owner",
    )
