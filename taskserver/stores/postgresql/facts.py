"""Facts about a PostgreSQL database, for `client.py doctor`. Changes nothing.

Any account may read the catalog. Of sessions of other accounts it sees who has them and what snapshot they hold, and
since when only with the role pg_read_all_stats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq

from ..database import Database
from ..dialect import claim_indexes
from ..facts import (
    MAX_USUAL_ID,
    Holder,
    IdsAhead,
    PostgreSQLFacts,
    TableRows,
    as_typed,
    forged_ids,
)
from ..server_facts import WORKER_RIGHTS, Right, allowed, clock_ahead, held_rows, lacking
from .session import PostgreSQLSession
from .tables_facts import WITH_THESE, compared

IDENTITY = """
    SELECT current_setting('server_version'), CAST(current_setting('server_version_num') AS integer),
        CAST(current_user AS text), pg_is_in_recovery(), pg_has_role('pg_read_all_stats', 'USAGE')
"""
TLS = "SELECT version || ' ' || cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid() AND ssl"
# Our sessions set some of them; reset_val is with what sessions of this account begin in this database.
VARIABLES = "SELECT name, reset_val FROM pg_settings"
CLOCK = "SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS float8)"

# ---- rights

HAS_RIGHT = "SELECT has_table_privilege(to_regclass('{{{table}}}'), ?)"
HAS_RIGHT_ON_COLUMN = "SELECT has_column_privilege(to_regclass('{{{table}}}'), CAST(? AS text), ?)"

# ---- ids

COUNTER = "SELECT pg_get_serial_sequence('{{{table}}}', '{key}')"
# The greatest id has no next one among the numbers of ids.
NEXT_ID = "SELECT CASE WHEN is_called THEN CAST(last_value AS numeric) + 1 ELSE last_value END FROM {}"
AHEAD = f"SELECT COUNT(*), MIN({{key}}) FROM {{{{{{table}}}}}} WHERE {{key}} >= ? AND {{key}} <= {MAX_USUAL_ID}"
SET_BACK = (
    "SELECT setval(pg_get_serial_sequence('{table}', '{key}'), "
    f"(SELECT COALESCE(MAX({{key}}), 0) + 1 FROM {{table}} WHERE {{key}} <= {MAX_USUAL_ID}), false)"
)
MAX_GIVEN_ID = 2**63 - 1

# ---- the tables

PLACES = """
    SELECT CAST(relname AS text), CAST(schema AS text)
    FROM unnest(current_schemas(false)) WITH ORDINALITY AS path (schema, position)
    JOIN pg_namespace ON nspname = schema
    JOIN pg_class ON relnamespace = pg_namespace.oid AND relname = ANY (CAST(? AS text[]))
    WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
    ORDER BY relname, position
"""
# 0 stands for all accounts.
OPEN_SCHEMAS = """
    SELECT CAST(nspname AS text) FROM pg_namespace, aclexplode(nspacl)
    WHERE nspname = ANY (current_schemas(false)) AND grantee = 0 AND privilege_type = 'CREATE'
"""
NOT_VACUUMED = f"""
    SELECT CAST(relname AS text) FROM pg_class, pg_options_to_table(reloptions)
    WHERE oid = {WITH_THESE} AND option_name = 'autovacuum_enabled' AND NOT CAST(option_value AS boolean)
    ORDER BY relname
"""
ROWS = f"""
    SELECT CAST(pg_class.relname AS text), GREATEST(n_live_tup, CAST(reltuples AS bigint)), n_dead_tup,
        pg_relation_size(pg_class.oid)
    FROM pg_class JOIN pg_stat_all_tables ON relid = pg_class.oid
    WHERE pg_class.oid = {WITH_THESE} ORDER BY pg_class.relname
"""

# ---- the server

# A snapshot keeps dead rows of its own database alone, but for that of a standby. VACUUM's own keeps none.
SESSION = """
    SELECT CASE backend_type WHEN 'walsender' THEN 'standby' ELSE 'session' END, CAST(pid AS text),
        COALESCE(CAST(usename AS text), ''), COALESCE(application_name, ''), COALESCE(host(client_addr), ''),
        COALESCE(state, ''), CAST(EXTRACT(EPOCH FROM clock_timestamp() - xact_start) AS float8),
        GREATEST(age(backend_xmin), age(backend_xid), 0)
    FROM pg_stat_activity AS session WHERE pid <> pg_backend_pid()
"""
SESSIONS = f"""
    {SESSION} AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
        AND (datname = current_database() OR backend_type = 'walsender' OR datid IS NULL AND usename IS NOT NULL)
        AND NOT EXISTS (SELECT FROM pg_stat_progress_vacuum AS vacuum WHERE vacuum.pid = session.pid)
    ORDER BY 8 DESC LIMIT 20
"""
PREPARED = """
    SELECT 'prepared', gid, CAST(owner AS text), '', '', '',
        CAST(EXTRACT(EPOCH FROM clock_timestamp() - prepared) AS float8), age(transaction)
    FROM pg_prepared_xacts WHERE database = current_database() ORDER BY 8 DESC LIMIT 20
"""
SLOTS = """
    SELECT 'slot', CAST(slot_name AS text), '', '', '', '', NULL, age(xmin)
    FROM pg_replication_slots WHERE xmin IS NOT NULL ORDER BY 8 DESC LIMIT 20
"""
# Whoever locks a row writes the number of its transaction into it.
LOCKS_ROW = """
    CAST({transaction} AS text) IN (SELECT CAST(xmax AS text) FROM {{table}} WHERE id IN ({{ids}}))
"""
SESSIONS_THAT_LOCK = f"{SESSION} AND {LOCKS_ROW.format(transaction='backend_xid')}"
PREPARED_THAT_LOCK = PREPARED.replace("WHERE", f"WHERE {LOCKS_ROW.format(transaction='transaction')} AND")
AGES = "SELECT age(datfrozenxid), mxid_age(datminmxid) FROM pg_database WHERE datname = current_database()"
CONNECTIONS = "SELECT COUNT(*) FROM pg_stat_activity WHERE datid IS NOT NULL"
LIMITS = """
    SELECT rolconnlimit, datconnlimit FROM pg_roles, pg_database
    WHERE rolname = current_user AND datname = current_database()
"""


def read_facts(database: Database, mode: str) -> PostgreSQLFacts:
    """All facts, each asked for by itself. Raises DatabaseError."""
    version, number, user, is_standby, sees_all = database.fetch(IDENTITY)[0]
    denied, spared = lacking(_lacking(database), database.dialect.table, mode)
    tables = compared(database)
    oids, names = list(tables.oids.values()), list(tables.oids)
    next_ids = _next_ids(database)
    session = database.session()
    assert isinstance(session, PostgreSQLSession)
    variables = {name: str(value) for name, value in allowed(database, VARIABLES)}
    is_writable = not is_standby and variables.get("default_transaction_read_only") != "on"
    held = held_rows(database) if is_writable and not denied else []
    transaction_age, multixact_age = database.fetch(AGES)[0]
    return PostgreSQLFacts(
        version=version,
        version_number=number,
        driver=_driver(),
        user=user,
        tls=_tls(database, session),
        is_direct=session.is_direct,
        is_standby=bool(is_standby),
        variables=variables,
        clock_ahead_seconds=clock_ahead(database, CLOCK),
        denied=denied,
        spared=spared,
        faults=tables.faults,
        lost_triggers=tables.lost_triggers,
        claim_indexes=claim_indexes(database),
        forged_ids=forged_ids(database, next_ids, MAX_GIVEN_ID, SET_BACK) if "id" in next_ids else None,
        ids_ahead=tuple(filter(None, (_ahead(database, *each) for each in next_ids.items()))),
        places=_places(database, names),
        open_schemas=tuple(name for (name,) in allowed(database, OPEN_SCHEMAS)),
        not_vacuumed=tuple(name for (name,) in allowed(database, NOT_VACUUMED, (oids,))),
        rows=tuple(TableRows(*row) for row in allowed(database, ROWS, (oids,))),
        holders=_holders(allowed(database, SESSIONS), allowed(database, PREPARED), allowed(database, SLOTS)),
        sees_all=bool(sees_all),
        held=len(held),
        held_by=_holders(database.fetch_ids(SESSIONS_THAT_LOCK, held), database.fetch_ids(PREPARED_THAT_LOCK, held)),
        transaction_age=transaction_age,
        multixact_age=multixact_age,
        connections=database.fetch(CONNECTIONS)[0][0],
        account_connections=_account_connections(database),
    )


def _driver() -> str:
    form = "in plain Python" if pq.__impl__ == "python" else "compiled"
    return f"psycopg {psycopg.__version__}, {form}, with {pq.version_pretty(pq.version())}"


def _lacking(database: Database) -> list[Right]:
    """A worker's rights that the account lacks; a table that is missing is told elsewhere."""
    return [right for right in WORKER_RIGHTS if _lacks(database, right)]


def _lacks(database: Database, right: Right) -> bool:
    if not right.column:
        return bool(database.fetch_value(HAS_RIGHT.format(table=right.table), (right.verb,)) == 0)
    columns = database.compose(right.column).split(", ")
    sql = HAS_RIGHT_ON_COLUMN.format(table=right.table)
    return any((0,) in allowed(database, sql, (column, right.verb)) for column in columns)


def _tls(database: Database, session: PostgreSQLSession) -> str:
    if not session.connection.pgconn.ssl_in_use:
        return ""
    # Behind a pooler the server tells of its connection to that.
    found = allowed(database, TLS) if session.is_direct else ()
    return str(found[0][0]) if found else "TLS"


# ---- ids


def _next_ids(database: Database) -> dict[str, int]:
    """The next `id` and `done_id` that are given, as far as the account may see the counter."""
    next_ids: dict[str, int] = {}
    for key in ("id", "done_id"):
        for (counter,) in allowed(database, COUNTER.format(table=_table_of(key), key=key)):
            if counter is not None:
                name = counter.replace("{", "{{").replace("}", "}}")
                for (next_id,) in allowed(database, NEXT_ID.format(name)):
                    next_ids[key] = next_id
    return next_ids


def _table_of(key: str) -> str:
    return "table" if key == "id" else "done"


def _ahead(database: Database, key: str, next_id: int) -> IdsAhead | None:
    for rows, first in allowed(database, AHEAD.format(key=key, table=_table_of(key)), (next_id,)):
        if rows:
            name = f"{database.dialect.table}{'' if key == 'id' else '_done'}"
            mend = SET_BACK.format(table=as_typed(database, name), key=key)
            return IdsAhead(name, rows, next_id, first, mend)
    return None


# ---- the tables and the server


def _places(database: Database, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    places: dict[str, tuple[str, ...]] = {}
    for table, schema in allowed(database, PLACES, (names,)):
        places[table] = (*places.get(table, ()), schema)
    return places


def _holders(*found: Sequence[Sequence[Any]]) -> tuple[Holder, ...]:
    return tuple(Holder(*row) for rows in found for row in rows)


def _account_connections(database: Database) -> int:
    ((of_account, of_database),) = database.fetch(LIMITS)
    limits = [limit for limit in (of_account, of_database) if limit >= 0]
    return min(limits, default=-1)
