"""Checks of a PostgreSQL server, from the facts that its store read; vacuum.py has those of rows that were deleted."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from ..messages.programs import CLIENT
from ..settings.dsn import Dsn
from ..settings.load import Settings
from ..stores.facts import IdsAhead, PostgreSQLFacts
from . import vacuum
from .findings import CheckResult, broken, ok, warning
from .servers import check_account_limit, check_clock, check_encrypted, check_idle, check_rights, read_only
from .tables import check_claim_index, check_ids, check_tables

OLDEST = 13
SCHEMA_FILE = "schema.postgresql.sql"
USUAL = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "transaction_timeout": "0",
    "session_replication_role": "origin",
    "standard_conforming_strings": "on",
}
"""The variables that a host may set for an account or a database to something that is in a program's way, and what is
usual. Times are in milliseconds."""
MAX_USED_SHARE = 0.9
"""Of the server's connections."""


def findings(facts: PostgreSQLFacts, settings: Settings) -> Iterator[CheckResult]:
    """One finding for each check."""
    yield _connection(facts, settings.dsn)
    yield _pooler(facts)
    yield _version(facts)
    yield _standby(facts)
    yield check_rights(facts.denied, facts.spared)
    yield check_tables(facts.faults, "may make temporary tables in this database (TEMPORARY)", SCHEMA_FILE)
    yield _triggers(facts)
    yield _schema(facts)
    yield check_claim_index(facts.claim_indexes, bool(facts.denied), SCHEMA_FILE)
    yield _ids(facts)
    yield _character_set(facts)
    yield _durability(facts)
    yield _session_defaults(facts)
    yield _wait_timeout(facts)
    yield _connections(facts)
    yield check_clock(facts.clock_ahead_seconds, "now() + interval '1 hour'")
    yield from vacuum.findings(facts)


def _connection(facts: PostgreSQLFacts, dsn: Dsn) -> CheckResult:
    tls = facts.tls and (facts.tls if facts.tls.startswith("TLS") else f"TLS {facts.tls}")
    found = f"{dsn.place} as {facts.user}, {tls or 'without TLS'}"
    return check_encrypted(found, bool(facts.tls) or dsn.is_loopback, "sslmode=require")


def _pooler(facts: PostgreSQLFacts) -> CheckResult:
    if facts.is_direct:
        return ok("pooler", "each connection has a session of the server's own")
    return warning(
        "pooler",
        "a pooler, as pgbouncer in transaction mode, gives each transaction another session",
        "all works, but each statement takes more time, and a worker that waits (--linger) is told of no new task",
        "name the server's own port in TASKSERVER_DSN, 5432 as a rule, at least for workers",
    )


def _version(facts: PostgreSQLFacts) -> CheckResult:
    found = f"PostgreSQL {facts.version}, by {facts.driver}"
    if facts.version_number < OLDEST * 10_000:
        return warning(
            "version", found, f"nothing before PostgreSQL {OLDEST} was tried", "ask the host for a newer one"
        )
    return ok("version", found)


def _standby(facts: PostgreSQLFacts) -> CheckResult:
    if not facts.is_standby:
        return ok("standby", "the server is no standby of another")
    return broken(
        "standby",
        "the server is a standby: it repeats what another one does",
        "it takes no writes: tasks can neither be added nor run",
        "name the main server in TASKSERVER_DSN; where that one died, have this one promoted",
    )


def _triggers(facts: PostgreSQLFacts) -> CheckResult:
    if not facts.lost_triggers:
        return ok("triggers", "workers that wait are told of new tasks")
    return warning(
        "triggers",
        f"missing, of another name's tables, or switched off: {', '.join(facts.lost_triggers)}",
        "a worker that waits (--linger) is not told of each new task, so that some wait for its next look",
        f"have the owner of the tables run {CLIENT} init, and, where one is switched off, ALTER TABLE … ENABLE TRIGGER "
        "USER",
    )


def _schema(facts: PostgreSQLFacts) -> CheckResult:
    used = sorted({schemas[0] for schemas in facts.places.values()})
    doubled = {table: schemas for table, schemas in facts.places.items() if len(schemas) > 1}
    if len(used) > 1 or doubled:
        places = "; ".join(f"{table} in {', '.join(schemas)}" for table, schemas in list(doubled.items())[:3])
        return warning(
            "schema",
            f"the search_path leads to tables of the queue in several schemas: {places or ', '.join(used)}",
            "another account's search_path may lead to others: a task that it adds there is never run",
            "keep one set of tables, and ALTER ROLE … SET search_path for each account that uses the queue",
        )
    found = f"the queue's tables are in the schema {', '.join(used) or 'that was not found'}"
    if not facts.open_schemas:
        return ok("schema", found)
    names = ", ".join(facts.open_schemas)
    return warning(
        "schema",
        f"{found}; every account of the server may make functions in {names}",
        "whoever may connect to this database can make one that our statements then call, with a worker's rights",
        " ".join(f"REVOKE CREATE ON SCHEMA {name} FROM PUBLIC;" for name in facts.open_schemas)
        + " run it as the owner of the database",
    )


def _ids(facts: PostgreSQLFacts) -> CheckResult:
    if facts.forged_ids or not facts.ids_ahead:
        takes = "it takes SELECT on the sequence jobs_queue_id_seq, as docs/security.md has it"
        return check_ids(facts.forged_ids, "the owner of the tables", takes)
    return warning(
        "ids",
        f"{'; '.join(map(_in_words, facts.ids_ahead))}: somebody chose them",
        "an INSERT that comes to an id which is taken is refused",
        f"have the owner of the tables run: {' '.join(f'{one.mend};' for one in facts.ids_ahead)}",
    )


def _in_words(ahead: IdsAhead) -> str:
    rows = "1 row has one" if ahead.rows == 1 else f"{ahead.rows} rows have ids"
    return f"in {ahead.table} the next id is {ahead.next_id}, and {rows} from {ahead.first_id} on"


def _character_set(facts: PostgreSQLFacts) -> CheckResult:
    encoding = facts.variables.get("server_encoding", "")
    if encoding == "UTF8":
        return ok("character_set", "the database's encoding is UTF8")
    return broken(
        "character_set",
        f"the database's encoding is {encoding}",
        "a task, or the error of one, that holds another letter cannot be stored or read",
        "make a database with ENCODING 'UTF8' TEMPLATE template0 for the queue",
    )


def _durability(facts: PostgreSQLFacts) -> CheckResult:
    off = [name for name in ("fsync", "full_page_writes") if facts.variables.get(name) == "off"]
    if off:
        return warning(
            "durability",
            f"{' and '.join(off)} {'are' if len(off) > 1 else 'is'} off",
            "a power cut, or a crash of the server's host, may destroy the whole database",
            "ask the host to set it on, in postgresql.conf",
        )
    if facts.variables.get("synchronous_commit") == "off":
        return warning(
            "durability",
            "synchronous_commit is off",
            "a crash of the server may take the last second's tasks, and what was done with them",
            "set it on for each account that uses the queue: ALTER ROLE … SET synchronous_commit = on",
        )
    return ok("durability", "a commit is on the disk when the server says so")


def _session_defaults(facts: PostgreSQLFacts) -> CheckResult:
    given = {name: facts.variables.get(name, usual) for name, usual in USUAL.items()}
    odd = [f"{name} {value}" for name, value in given.items() if value != USUAL[name]]
    if not odd:
        return ok("session_defaults", "the host leaves them as servers come")
    found = f"the host, or the account, sets {', '.join(odd)}"
    if given["default_transaction_read_only"] == "on":
        return read_only(found)
    return ok("session_defaults", f"{found}: workers and {CLIENT} set what they need, pages' own connections do not")


def _wait_timeout(facts: PostgreSQLFacts) -> CheckResult:
    milliseconds = facts.variables.get("idle_session_timeout", "0")
    seconds = int(milliseconds) / 1000 if milliseconds.isdigit() else 0
    if not seconds:
        return ok("wait_timeout", "the server drops no connection for being idle")
    return check_idle(seconds)


def _connections(facts: PostgreSQLFacts) -> CheckResult:
    if facts.account_connections >= 0:
        return check_account_limit(facts.account_connections)
    limit = _most_connections(facts)
    found = f"{facts.connections} in use, of {limit:g} for all accounts together"
    if facts.connections < MAX_USED_SHARE * limit:
        return ok("connections", found)
    return warning(
        "connections",
        found,
        "who finds none gets an error: workers end, and pages add no task",
        "see who has them in pg_stat_activity; start fewer workers (--slots), put a pooler before the pages, or raise "
        "max_connections",
    )


def _most_connections(facts: PostgreSQLFacts) -> float:
    numbers = [
        int(facts.variables.get(name) or 0)
        for name in ("max_connections", "superuser_reserved_connections", "reserved_connections")
    ]
    return numbers[0] - sum(numbers[1:]) if numbers[0] else inf
