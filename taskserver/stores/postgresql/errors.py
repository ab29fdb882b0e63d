"""The meaning of the errors of PostgreSQL and its driver: which are worth another try, and what a person can do.

The server's errors are told apart by their SQLSTATE. A failed login has none: only its text tells, where the server
speaks English.
"""

from __future__ import annotations

import re

import psycopg

from ...errors import (
    AlreadyThere,
    Conflict,
    ConnectionLost,
    DatabaseError,
    NotUnderstood,
    Refused,
    ServerFull,
    TooLong,
    Unavailable,
)
from ...messages.programs import CLIENT, WORKER
from ...settings.dsn import PostgreSQLDsn
from ..dialect import no_tables, other_columns

MALFORMED = (AssertionError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""Raised by the driver where an answer is none of PostgreSQL's, or none of ours."""
DRIVER_ERRORS = (psycopg.Error, OSError, *MALFORMED)
MAX_TEXT_LENGTH = 500
"""An error's text comes from whoever answers, and goes into cron's mail."""

TABLE_MISSING = "42P01"
COLUMN_MISSING = "42703"
RIGHTS_MISSING = "42501"
SAVEPOINT_MISSING = "3B001"
NO_TRANSACTION = "25P01"
IN_FAILED_TRANSACTION = "25P02"
READ_ONLY = "25006"
NO_ID_LEFT = "2200H"
NO_SCHEMA = "3F000"
SYNTAX = "42601"
KEY_TAKEN = "23505"
PREPARED = frozenset({"26000", "42P05"})
"""A prepared statement is not there, or one of its name is: sessions are shared, unseen, with others."""
# Serialization failures and deadlocks, locks that did not come in time or at once, and statements that an
# administrator or a time limit ended.
CONFLICTS = frozenset({"40001", "40P01", "55P03", "57014"})
LOST = frozenset({"57P01", "57P02", "57P04", "57P05", "25P03", "25P04"})
"""The server ended the connection: a shutdown, a crash, a dropped database, a host's limits on quiet ones."""
FULL = frozenset({"53300", "53400"})
UNAVAILABLE = frozenset({"57P03", "53100", "53200", "58030", READ_ONLY})
"""It starts or stops; no space, no memory, a failing disk; a stand-in takes no writes."""
ALREADY_THERE = frozenset({"42701", "42P07", "42710"})
TOO_MUCH = frozenset({"54000", "54023"})

RIGHTS_HINT = (
    f"which account does TASKSERVER_DSN name? a website's may only add, and some options of that take more rights; "
    f"{WORKER} needs a worker's; {CLIENT} pause, "
    "resume, schedule, unschedule and prune need an operator's, with SELECT, INSERT, UPDATE and DELETE on all of the "
    f"queue's tables; {CLIENT} init needs to own them, or CREATE on the schema where there are none; see "
    "docs/security.md for what to grant"
)
IN_SCHEMA = (
    "since PostgreSQL 15 its owner alone may make tables there: have the owner of the database run "
    "GRANT CREATE ON SCHEMA {schema} TO {user}, or make the account the owner; see docs/security.md"
)
NO_SPACE = "free some space, or have your host raise the database's quota"
LIMITED = f"let fewer workers run at once ({WORKER} --slots), or ask your host for more"
HINTS = {
    RIGHTS_MISSING: RIGHTS_HINT,
    "55P03": "another session holds that row, or the whole table: pg_locks and pg_stat_activity name it",
    NO_SCHEMA: "no schema is chosen: set the account's search_path, or make the schema public",
    "53100": NO_SPACE,
    "53300": LIMITED,
    "53400": LIMITED,
    "22P05": "the database's encoding lacks a character: make a database with ENCODING 'UTF8'",
    READ_ONLY: "the server takes no writes for now: wait, or name its main server in TASKSERVER_DSN",
}
ID_TAKEN = (
    f"rows were added with ids of their own, and the sequence comes to them now: {CLIENT} doctor tells how to mend it"
)
LOGIN = (
    "check user and password in TASKSERVER_DSN and TASKSERVER_PASSWORD, which wins where both have one; a password of "
    "odd characters is best in the latter, in single quotes, with \\' for ' and \\\\ for \\, and in a DSN its % is %25"
)
WRONG_PASSWORD = "password authentication failed"
A_TRY = "connection to server at"
"""With this begins what libpq says of a try."""
STRANGER = "is that a PostgreSQL server? its port is 5432 as a rule"
AT_LOGIN = (
    (
        r"requested a cleartext password|may ask for the password itself|channel binding required",
        DatabaseError,
        "no unverified server gets it: add ?sslrootcert=/path/of/ca.pem to TASKSERVER_DSN, the certificate authority "
        "of the server, or have the server ask by scram-sha-256; and with a libpq before version 16 that takes a newer "
        "one, too, which psycopg[binary] brings (docs/installing.md)",
    ),
    (
        r"Peer authentication failed",
        DatabaseError,
        "by the socket the server takes the account of this system alone, under its own name: leave the user out where "
        "both are called alike, or name localhost and a password",
    ),
    (r"password authentication failed|no password supplied|Ident authentication failed", DatabaseError, LOGIN),
    (
        r"role .* does not exist",
        DatabaseError,
        f"{LOGIN}; where TASKSERVER_DSN names no user, it is the account of this system",
    ),
    (r"server closed the connection unexpectedly", Unavailable, "it ended the connection at login: its log tells why"),
    (r"is not permitted to log in", DatabaseError, "have an administrator grant it LOGIN"),
    (r"the database system is", Unavailable, "it starts or stops: wait"),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        DatabaseError,
        "allow this account from this machine in the server's pg_hba.conf, or ask your host; where the text says "
        "'no encryption', add ?sslmode=require to TASKSERVER_DSN",
    ),
    (r"database .* does not exist", DatabaseError, "make it in your host's panel, or mend the name in TASKSERVER_DSN"),
    (r"permission denied for database", DatabaseError, "grant this account CONNECT on it"),
    (r"too many (clients|connections)|remaining connection slots|no more connections", ServerFull, LIMITED),
    # Where TLS is a second try, what the server said at the first one counts: it starts, or stops.
    (r"^(?!.*FATAL).*(SSL|TLS)|certificate", DatabaseError, "check sslmode and sslrootcert in TASKSERVER_DSN"),
    (
        r"invalid response to|unsupported frontend protocol|received invalid",
        DatabaseError,
        STRANGER,
    ),
)
"""A pattern of the text of a failed login, the class of our error, and advice."""
AT_ADDRESS = "does the server run? if so, check host and port in TASKSERVER_DSN"


def state_of(error: BaseException | None) -> str:
    """The server's SQLSTATE; empty where the driver tells none."""
    return getattr(error, "sqlstate", None) or ""


def kind_of(state: str) -> type[DatabaseError]:
    """The class of our error for a SQLSTATE, which says whether it is worth another try."""
    kinds: tuple[tuple[frozenset[str], type[DatabaseError]], ...] = (
        (CONFLICTS, Conflict),
        (LOST, ConnectionLost),
        (FULL, ServerFull),
        (UNAVAILABLE, Unavailable),
        (ALREADY_THERE, AlreadyThere),
        (TOO_MUCH, TooLong),
        (PREPARED | {SYNTAX, "0A000"}, NotUnderstood),
    )
    for states, kind in kinds:
        if state in states:
            return kind
    by_class = {"08": ConnectionLost, "23": Refused, "P0": Refused}
    return by_class.get(state[:2], DatabaseError)


def error_of(error: BaseException, dsn: PostgreSQLDsn, table: str) -> DatabaseError:
    """Our error for an error of the driver on a connection of ours."""
    state, text = state_of(error), text_of(error)
    where = dsn.place
    if state == TABLE_MISSING:
        return no_tables(where, f"{table} in a schema that this account may use")
    if state == COLUMN_MISSING:
        return other_columns(where, table, text)
    if state == NO_ID_LEFT:
        return DatabaseError(
            f"{where}: no id is left in {table} or {table}_done, as its sequence has come to the greatest one: "
            f"{CLIENT} doctor tells which, and how to mend it"
        )
    # A text stays what it is however often it is read, as does a value that cannot be sent.
    if isinstance(error, MALFORMED) and not isinstance(error, (UnicodeError, OverflowError)):
        return unreadable(error, dsn)
    if not state and isinstance(error, (psycopg.OperationalError, OSError)):
        return ConnectionLost(f"{where}: {text or 'the connection is closed'} ({type(error).__name__})")
    if state == KEY_TAKEN and getattr(getattr(error, "diag", None), "schema_name", None) == "pg_catalog":
        return AlreadyThere(f"{where}: {text} ({state})")  # another makes the same table or index just now
    hint = HINTS.get(state, "")
    if state == RIGHTS_MISSING and (schema := re.search(r"for schema (\w+)", text)):
        hint = IN_SCHEMA.format(schema=schema[1], user=dsn.user or "this account")
    keys = (f"{table}_pkey", f"{table}_done_pkey")
    if state == KEY_TAKEN and getattr(getattr(error, "diag", None), "constraint_name", None) in keys:
        hint = ID_TAKEN
    what = f"{where}: {text} ({state or type(error).__name__})"
    return kind_of(state)(f"{what}: {hint}" if hint else what)


def unreadable(error: BaseException, dsn: PostgreSQLDsn) -> ConnectionLost:
    """Our error for an answer that is none, or none of ours."""
    return ConnectionLost(
        f"{dsn.place}: its answer cannot be read ({type(error).__name__}: {text_of(error)}): {STRANGER}; or a file of "
        f"this program was cut off by an upload: {CLIENT} doctor tells"
    )


def login_error(error: BaseException, dsn: PostgreSQLDsn) -> DatabaseError:
    """Our error for an error of the driver at login."""
    state, text = state_of(error), text_of(error)
    if WRONG_PASSWORD in text:
        text = A_TRY.join(text.split(A_TRY)[:2]).strip()  # a second try, with TLS, says nothing of the password
    what = f"{dsn.place}: {text} ({state or type(error).__name__})"
    if state:
        hint, kind = HINTS.get(state, ""), kind_of(state)
        # Nothing was sent yet that could have taken effect.
        return (Unavailable if kind is ConnectionLost else kind)(f"{what}: {hint}" if hint else what)
    for pattern, kind, hint in AT_LOGIN:
        if re.search(pattern, text):
            return kind(f"{what}: {hint}")
    return Unavailable(f"{what}: {AT_ADDRESS}")


def text_of(error: BaseException) -> str:
    """The text of a driver's error, on one line; of a server's error its first line."""
    diagnosis = getattr(error, "diag", None)
    text = getattr(diagnosis, "message_primary", None) or str(error)
    return " ".join(text[:MAX_TEXT_LENGTH].split())
