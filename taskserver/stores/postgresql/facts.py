"""The doctor's checks of a PostgreSQL database, and the rebuild of its tables.

Any account may read the catalog. Only with the role pg_read_all_stats can it see the transactions of other accounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq

from ...errors import DatabaseError
from ...messages.finding import Finding, Level, ok, unknown, warning
from .. import facts
from ..facts import Asked, Check, Facts, Rebuild, check_value, ok_if
from ..retrying import RetryPolicy, Scope
from ..table_faults import TableLooks
from .errors import RIGHTS_MISSING, state_of

OLDEST_SERVER = 13


# ---- the connection and the server

TLS = "SELECT version || ' ' || cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl"


def _connection(asked: Asked) -> tuple[Any, ...]:
    ((user,),) = asked.database.fetch("SELECT CAST(current_user AS text)")
    session = asked.database.session()
    tls = ""
    if session.connection.pgconn.ssl_in_use:
        # Behind a pooler, the server describes the pooler's connection.
        rows = asked.database.fetch(TLS) if session.commits_by_itself else ()
        tls = str(rows[0][0]) if rows else "TLS"
    return asked.dsn, user, tls


def _judge_connection(answer: tuple[Any, ...]) -> Finding:
    dsn, user, tls = answer
    words = f"{dsn.place} as {user}, {tls or 'without TLS'}"
    return facts.judge_encrypted(words, bool(tls) or dsn.is_loopback, "sslmode=require")


def _judge_version(rows: Sequence[Sequence[Any]]) -> Finding:
    ((version, number),) = rows
    form = "in plain Python" if pq.__impl__ == "python" else "compiled"
    driver = f"psycopg {psycopg.__version__}, {form}, with {pq.version_pretty(pq.version())}"
    words = f"PostgreSQL {version}, by {driver}"
    if int(number) < OLDEST_SERVER * 10_000:
        return warning(f"{words}; the oldest one tried is {OLDEST_SERVER}")
    return ok(words)


# The account's defaults: our sessions change some of them.
OFF = """
    SELECT name FROM pg_settings
    WHERE reset_val = 'off' AND name IN ('fsync', 'full_page_writes', 'synchronous_commit') ORDER BY 1
"""


def _judge_durability(rows: Sequence[Sequence[Any]]) -> Finding:
    off = [str(name) for (name,) in rows]
    if not off:
        return ok("a commit is on the disk when the server says so")
    words = f"{' and '.join(off)} {'are' if len(off) > 1 else 'is'} off"
    if off == ["synchronous_commit"]:
        why = "a crash of the server may take the last second's tasks and their ends"
        fix = "set it on for each account that uses the queue: ALTER ROLE … SET synchronous_commit = on"
        return warning(words, why, fix)
    return warning(words)


ACCOUNT_LIMIT = """
    SELECT LEAST(NULLIF(rolconnlimit, -1), NULLIF(datconnlimit, -1)) FROM pg_roles, pg_database
    WHERE rolname = current_user AND datname = current_database()
"""
OLDEST_TRANSACTION = """
    SELECT pg_has_role('pg_read_all_stats', 'USAGE'), CAST(EXTRACT(EPOCH FROM age) AS float8), number, account, state
    FROM (SELECT 1) AS one LEFT JOIN (
        SELECT clock_timestamp() - xact_start AS age, CAST(pid AS text) AS number, CAST(usename AS text) AS account,
            state
        FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
            AND backend_type = 'client backend'
        UNION ALL
        SELECT clock_timestamp() - prepared, '''' || gid || '''', CAST(owner AS text), 'prepared' FROM pg_prepared_xacts
        WHERE database = current_database()
        ORDER BY age DESC LIMIT 1
    ) AS oldest ON TRUE
"""
WAYS_TO_END = "end that program, or SELECT pg_terminate_backend({0}); if it is prepared, ROLLBACK PREPARED {0}"


def _judge_transactions(rows: Sequence[Sequence[Any]]) -> Finding:
    ((sees_all, *oldest),) = rows
    found = facts.judge_transaction([oldest], WAYS_TO_END)
    if found.level is not Level.OK or sees_all:
        return found
    return unknown(
        "the transactions of other accounts cannot be seen without the role pg_read_all_stats",
        fix="ask an administrator of the server to GRANT pg_read_all_stats to this account",
    )


# ---- the tables

LOOKS = TableLooks(
    """
    SELECT CAST(owner.relname AS text), CAST(name.relname AS text), indisunique AND indisvalid, array_to_string(
        ARRAY(SELECT pg_get_indexdef(indexrelid, place, TRUE) FROM generate_series(1, indnkeyatts) AS place), ', ')
    FROM pg_index JOIN pg_class AS owner ON owner.oid = indrelid JOIN pg_class AS name ON name.oid = indexrelid
    WHERE pg_table_is_visible(indrelid) AND owner.relnamespace <> CAST('pg_catalog' AS regnamespace)
    """,
    """
    SELECT what FROM pg_class, LATERAL (
        SELECT 'the trigger ' || tgname FROM pg_trigger
        WHERE tgrelid = pg_class.oid AND NOT tgisinternal AND tgtype & 8 <> 0
        UNION ALL
        SELECT 'the rule ' || pg_rewrite.rulename FROM pg_rewrite WHERE ev_class = pg_class.oid AND ev_type = '4'
        UNION ALL
        SELECT 'a foreign key of ' || CAST(CAST(conrelid AS regclass) AS text) FROM pg_constraint
        WHERE confrelid = pg_class.oid
        UNION ALL
        SELECT 'row level security' WHERE row_security_active(pg_class.oid)
    ) AS hindrance (what) WHERE relname = ? AND relkind = 'r' AND pg_table_is_visible(pg_class.oid)
    """,
    """
    SELECT CAST(relname AS text), CAST(attname AS text), atttypmod - 4 FROM pg_class JOIN pg_attribute ON attrelid = oid
    WHERE pg_table_is_visible(oid) AND atttypid = CAST('varchar' AS regtype) AND atttypmod >= 4
    """,
    'ALTER TABLE {table} ALTER {column} TYPE TEXT COLLATE "C"',
    """
    SELECT CAST(relname AS text), 'gives no ids by itself',
        format('ALTER TABLE %1$I ALTER %2$I ADD GENERATED BY DEFAULT AS IDENTITY; '
            || 'SELECT setval(pg_get_serial_sequence(%3$L, %2$L), MAX(%2$I)) FROM %1$I', relname, attname,
            quote_ident(relname))
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
    WHERE pg_table_is_visible(pg_class.oid) AND NOT atthasdef AND attidentity = ''
        AND attname = CASE WHEN relname LIKE '%\\_done' THEN 'done_id' ELSE 'id' END
    UNION ALL
    SELECT CAST(relname AS text), 'is unlogged: a crash empties it',
        'ALTER TABLE ' || quote_ident(relname) || ' SET LOGGED'
    FROM pg_class WHERE pg_table_is_visible(oid) AND relpersistence = 'u'
    """,
)
CHECKS = (
    Check("connection", _connection, _judge_connection, facts.LISTENING),
    Check("hosts", lambda asked: asked.database.hosts_away(), facts.judge_hosts),
    facts.check_version(
        "SELECT current_setting('server_version'), current_setting('server_version_num')", _judge_version
    ),
    Check(
        "standby",
        "SELECT pg_is_in_recovery()",
        lambda rows: ok_if(not rows[0][0], f"the server is {'a' if rows[0][0] else 'no'} standby", Level.CRITICAL),
        "it takes no writes: tasks can neither be added nor run",
        "name the main server in TASKSERVER_DSN; if that one died, promote this one",
        is_acceptable=False,
    ),
    facts.CHECK_RIGHTS,
    *facts.OF_TABLES,
    check_value(
        "character_set",
        "SHOW server_encoding",
        lambda found: ok_if(found == "UTF8", f"the database's encoding is {found}", Level.CRITICAL),
        "a task, or the error of one, that holds another letter cannot be stored or read",
        "make a database with ENCODING 'UTF8' TEMPLATE template0 for the queue",
    ),
    Check(
        "durability",
        OFF,
        _judge_durability,
        "a power cut, or a crash of the server's host, may destroy the whole database",
        "ask the host to set it on, in postgresql.conf",
    ),
    facts.check_connections(ACCOUNT_LIMIT),
    facts.check_clock("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS float8)", "now() + interval '1 hour'"),
    Check("transactions", OLDEST_TRANSACTION, _judge_transactions, facts.TRANSACTION),
)


# ---- the rebuild of the tables
#
# Measured after 300,000 tasks, with 1 in 100 left: of 38 MB of rows and 50 MB of indexes, VACUUM freed nothing (it
# cuts only empty pages off the end of the file), REINDEX CONCURRENTLY the indexes but 0.5 MB, VACUUM FULL all but
# 0.9 MB. Only VACUUM FULL locks the table, so it is left for tables that are mostly empty after the others.

SIZES = """
    SELECT CAST(relname AS text), pg_total_relation_size(oid), pg_total_relation_size(oid) FROM pg_class
    WHERE relname IN ({ids}) AND relkind = 'r' AND pg_table_is_visible(oid) ORDER BY 1
"""
MIN_EMPTY_BYTES = 8_000_000
# A row has 28 bytes more than its values; one of a TOAST table 2,000 of a long value.
MOSTLY_EMPTY = f"""
    SELECT name, size, CAST(used AS bigint) FROM (
        SELECT CAST(found.relname AS text) AS name, pg_table_size(found.oid) AS size,
            GREATEST(found.reltuples, 0) * (
                SELECT 28 + COALESCE(SUM(avg_width * (1 - null_frac)), 0) FROM pg_stats
                WHERE schemaname = nspname AND tablename = found.relname
            ) + GREATEST(toast.reltuples, 0) * 2030 AS used
        FROM pg_class AS found JOIN pg_namespace ON pg_namespace.oid = found.relnamespace
            LEFT JOIN pg_class AS toast ON toast.oid = found.reltoastrelid
        WHERE found.relname IN ({{ids}}) AND found.relkind = 'r' AND pg_table_is_visible(found.oid)
    ) AS sizes WHERE size - used > GREATEST(used, {MIN_EMPTY_BYTES}) ORDER BY name
"""
INDEXES = """
    SELECT CAST(CAST(indexrelid AS regclass) AS text), NOT indisvalid AND relname ~ '_cc(new|old)[0-9]*$'
    FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid WHERE indrelid = CAST(? AS regclass) ORDER BY relname
"""
"""The indexes of a table, and which are what a REINDEX that failed leaves behind: INSERTs write to it for nothing."""
PATIENT, BRIEF = "SET lock_timeout = '10s'", "SET lock_timeout = '1s'"
"""VACUUM and REINDEX CONCURRENTLY delay nobody: they may wait for an autovacuum, which ends then, or a short task."""
POOLED = "compact needs a session of its own: name the server, not a transaction pooler, in TASKSERVER_DSN"


def _once(database: Any, *statements: str) -> None:
    for statement in statements:
        database.run(RetryPolicy(Scope.BARE, 0, is_repeatable=False), database.execute, statement)


def _tidy(database: Any, table: str) -> None:
    quoted = f'"{table}"'
    _once(database, PATIENT, f"VACUUM (ANALYZE) {quoted}")
    # One by one: REINDEX TABLE could leave behind indexes of the TOAST table, which its owner may not drop.
    for index, is_left_behind in database.fetch(INDEXES, (quoted,)):
        _once(database, f"{'DROP' if is_left_behind else 'REINDEX'} INDEX CONCURRENTLY {index}")


REBUILDS = [
    Rebuild(
        facts.sizes_by(SIZES),
        _tidy,
        "VACUUM and REINDEX CONCURRENTLY write all indexes again; tasks can be added and run meanwhile",
        40_000_000,
    ),
    Rebuild(
        facts.sizes_by(MOSTLY_EMPTY),
        lambda database, table: _once(database, BRIEF, f'VACUUM (FULL, ANALYZE) "{table}"'),
        "VACUUM FULL copies the rows into a new file; nobody can add, claim or finish a task meanwhile",
        50_000_000,
        locks_writers=True,
    ),
]


def _rebuilds(database: Any) -> list[Rebuild]:
    database.now()  # connects
    if not database.session().commits_by_itself:
        raise DatabaseError(POOLED)
    return REBUILDS


FACTS = Facts(CHECKS, LOOKS, _rebuilds, lambda error: state_of(error.__cause__) == RIGHTS_MISSING)
