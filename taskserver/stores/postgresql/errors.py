"""What errors of PostgreSQL and its driver mean: which deserve a retry, and what a person can do.

Differs from MySQL: an error is recognized by its SQLSTATE. A failed login has only a text, usually in English.
"""

from __future__ import annotations

import re

import psycopg

from ...errors import (
    AlreadyThere,
    Conflict,
    ConnectionLost,
    DatabaseError,
    Deadlock,
    NoTransaction,
    NotUnderstood,
    Refused,
    ServerFull,
    TooLong,
    Unavailable,
)
from ...settings.dsn import Dsn
from ..dialect import HELD, LIMITED, NO_RIGHT, no_tables, other_columns

DRIVER_ERRORS = (psycopg.Error, OSError, ValueError, ArithmeticError)  # the last two for values in an answer
MAX_TEXT_LENGTH = 500
"""An error's text comes from any server, and goes into cron's mail."""

TABLE_MISSING = "42P01"
COLUMN_MISSING = "42703"
RIGHTS_MISSING = "42501"
READ_ONLY = "25006"
NO_ID_LEFT = "2200H"
NO_SCHEMA = "3F000"
KEY_TAKEN = "23505"

KINDS: dict[str, type[DatabaseError]] = {
    **dict.fromkeys(("40001", "40P01"), Deadlock),  # the first is a serialization failure
    # Lock timeouts, NOWAIT, statements that an administrator or a time limit ended.
    **dict.fromkeys(("55P03", "57014"), Conflict),
    # The server ended the connection: a shutdown, a crash, a dropped database, an idle timeout.
    **dict.fromkeys(("57P01", "57P02", "57P04", "57P05", "25P03", "25P04"), ConnectionLost),
    **dict.fromkeys(("53300", "53400"), ServerFull),
    # It starts or stops; no space, no memory, a failing disk; a standby takes no writes.
    **dict.fromkeys(("57P03", "53100", "53200", "58030", READ_ONLY), Unavailable),
    **dict.fromkeys(("42701", "42P07", "42710"), AlreadyThere),
    **dict.fromkeys(("25P01", "3B001"), NoTransaction),  # or no such savepoint
    **dict.fromkeys(("54000", "54023"), TooLong),
    # A pooler shares sessions: a prepared statement is missing, or its name is taken.
    **dict.fromkeys(("26000", "42P05", "42601", "0A000"), NotUnderstood),
    # Whole classes: of connections, of constraints, of errors that a trigger raises.
    "08": ConnectionLost,
    "23": Refused,
    "P0": Refused,
}
"""The class of our error by SQLSTATE, or by its first two characters. Others are a plain DatabaseError."""

HINTS = {
    RIGHTS_MISSING: NO_RIGHT.format("to own them, or CREATE on the schema if there are none"),
    NO_SCHEMA: "no schema is chosen: set the account's search_path, or make the schema public",
    "53100": "free some space, or ask your host to raise the database's quota",
    "53300": LIMITED,
    "53400": LIMITED,
    "55P03": HELD,
    READ_ONLY: "the server takes no writes for now: wait, or name its main server in TASKSERVER_DSN",
}
IN_SCHEMA = (
    "since PostgreSQL 15 only its owner may make tables there: ask the owner of the database to run "
    "GRANT CREATE ON SCHEMA {schema} TO {user}, or make the account the owner; see docs/security.md"
)
NEXT_ID = "SELECT setval(pg_get_serial_sequence('{0}', '{1}'), (SELECT COALESCE(MAX({1}), 1) FROM {0}))"

LOGIN = (
    "the password is wrong, or the user: correct them in TASKSERVER_DSN, or in TASKSERVER_PASSWORD, which wins if both "
    "have one; in .env a password stands in single quotes, and in a DSN its % is %25"
)
CLEAR_PASSWORD = (
    "only a verified server gets the password itself: add ?sslrootcert=/path/of/ca.pem to TASKSERVER_DSN, the server's "
    "certificate authority, or name its socket on this host (?host=/run/postgresql); or have the server ask by "
    "scram-sha-256, which takes libpq 16 or newer: psycopg[binary] has it (docs/installing.md)"
)
PEER = (
    "through its socket the server knows the account of this system, under the same name: leave the user out of "
    "TASKSERVER_DSN, or name localhost and a password"
)
NOT_ALLOWED = (
    "allow this account from this machine in the server's pg_hba.conf, or ask your host; if the text says 'no "
    "encryption', add ?sslmode=require to TASKSERVER_DSN"
)
AT_ADDRESS = "does the server run? if so, check host and port in TASKSERVER_DSN"
STRANGER = "is that a PostgreSQL server? its port is 5432 as a rule"
AT_LOGIN = (
    (r"requested a cleartext password|channel binding required", DatabaseError, CLEAR_PASSWORD),
    (r"Peer authentication failed", DatabaseError, PEER),
    (
        r"(password|Ident) authentication failed|no password supplied|role .* does not exist|not permitted to log in",
        DatabaseError,
        LOGIN,
    ),
    (r"no pg_hba\.conf entry|pg_hba\.conf rejects", DatabaseError, NOT_ALLOWED),
    (r"database .* does not exist", DatabaseError, "create it in your host's panel, or correct TASKSERVER_DSN"),
    (r"permission denied for database", DatabaseError, "grant this account CONNECT on it"),
    (r"too many (clients|connections)|remaining connection slots|no more connections", ServerFull, LIMITED),
    (r"the database system is", Unavailable, "it starts or stops: wait"),
    # If TLS was a second try, the server's answer to the first one counts.
    (r"^(?!.*FATAL).*(SSL|TLS)|certificate", DatabaseError, "check sslmode and sslrootcert in TASKSERVER_DSN"),
    (r"invalid response to|unsupported frontend protocol|received invalid", DatabaseError, STRANGER),
    (r"", Unavailable, AT_ADDRESS),
)
"""A pattern of a failed login's text, the class of our error, and the hint. The first that matches counts."""


def state_of(error: BaseException | None) -> str:
    """The server's SQLSTATE; empty if the error has none."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or ""  # psycopg2's


def kind_of(state: str) -> type[DatabaseError]:
    """The class of our error for a SQLSTATE."""
    return KINDS.get(state) or KINDS.get(state[:2], DatabaseError)


def error_of(error: BaseException, dsn: Dsn, table: str, where: str = "", is_login: bool = False) -> DatabaseError:
    """Our error for a driver's error; `where` names a caller's connection."""
    state, text, where = state_of(error), text_of(error), where or dsn.place
    kind, hint = kind_of(state), HINTS.get(state, "")
    if state == TABLE_MISSING:
        return no_tables(where, f"{table} in a schema that this account may use")
    if state == COLUMN_MISSING:
        return other_columns(where, table, text)
    if is_login and not state:
        pattern, kind, hint = next(meaning for meaning in AT_LOGIN if re.search(meaning[0], text))
        # libpq may have tried twice, with TLS and without: show only the answer that matched.
        said = [line for line in str(error).splitlines() if "FATAL" in line and re.search(pattern, line)]
        text = " ".join(said[0][:MAX_TEXT_LENGTH].split()) if said else text
    elif state == RIGHTS_MISSING and (schema := re.search(r"for schema (\w+)", text)):
        hint = IN_SCHEMA.format(schema=schema[1], user=dsn.user or "this account")
    elif state in (NO_ID_LEFT, KEY_TAKEN):
        kind, hint = _meaning_for_ids(error, state, table)
    elif not state and (isinstance(error, OSError) or type(error).__name__ in ("OperationalError", "InterfaceError")):
        kind, text = ConnectionLost, text or "the connection is closed"
    if is_login and kind is ConnectionLost:
        kind = Unavailable  # no statement was sent
    what = f"{where}: {text} ({state or type(error).__name__})"
    return kind(f"{what}: {hint}" if hint else what)


def _meaning_for_ids(error: BaseException, state: str, table: str) -> tuple[type[DatabaseError], str]:
    """The class and the hint if there is no next id, or an id or a key is taken."""
    diagnosis = getattr(error, "diag", None)
    if getattr(diagnosis, "schema_name", None) == "pg_catalog":
        return AlreadyThere, ""  # another connection is creating the same table
    if state == NO_ID_LEFT:
        how = f"delete the row of {table} (or {table}_done) with the greatest id, then {NEXT_ID.format(table, 'id')}"
        return DatabaseError, f"no id is left: {how}"
    for name, key in ((table, "id"), (f"{table}_done", "done_id")):
        if getattr(diagnosis, "constraint_name", None) == f"{name}_pkey":
            return Refused, f"rows were added with ids of their own; set the next id: {NEXT_ID.format(name, key)}"
    return Refused, ""


def text_of(error: BaseException) -> str:
    """The text of a driver's error on one line; for a server's error its main message."""
    diagnosis = getattr(error, "diag", None)
    text = getattr(diagnosis, "message_primary", None) or str(error)
    return " ".join(text[:MAX_TEXT_LENGTH].split())
