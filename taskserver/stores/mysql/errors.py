"""The meaning of the errors of MySQL, MariaDB and their driver: which are worth another try, and what a person can do.

Errors are told apart by their numbers: some servers come without texts, and others translate them.
"""

from __future__ import annotations

import re
import struct

import pymysql

from ...errors import (
    AlreadyThere,
    Conflict,
    ConnectionLost,
    Crowded,
    DatabaseError,
    NotUnderstood,
    Refused,
    ServerFull,
    TooLong,
    Unavailable,
)
from ...messages.programs import CLIENT, WORKER
from ...settings.dsn.mysql import MySQLDsn, folder_of_sockets, usual_socket
from ..dialect import no_tables, other_columns

MALFORMED = (AssertionError, struct.error, LookupError, TypeError, AttributeError, ArithmeticError)
"""Raised by the driver where an answer is none of MySQL's."""
DRIVER_ERRORS = (pymysql.MySQLError, OSError, RuntimeError, ValueError, *MALFORMED)
MAX_TEXT_LENGTH = 500
"""An error's text comes from whoever answers, and goes into cron's mail."""

SNAPSHOT_CHANGED = 1020
"""A row was changed since the transaction's snapshot, where MariaDB is set to refuse a write to that."""
LOCK_WAIT_ENDED = 1205
CROWDED = frozenset({1206, 1969})
"""No room for more locks, or MariaDB's limit on a statement's time: ours are limited in claims alone."""
# Deadlocks, locks that did not come in time, and statements that an administrator or a time limit ended.
CONFLICTS = CROWDED | frozenset({SNAPSHOT_CHANGED, 1028, LOCK_WAIT_ENDED, 1213, 1317, 1614, 3024, 3572})
UNKNOWN = 1105
IN_CLAIM = "in multi-table update"
"""MySQL's words, in English everywhere, where an administrator ends a claim as it writes."""
LOST_CONNECTION = frozenset(
    {0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1927, 2006, 2013, 2014, 2055, 3168, 3169, 4031}
)
# Too many connections, or threads; no memory for one more.
FULL = frozenset({1037, 1040, 1041, 1135, 1203, 1226})
# Not reached; read-only or offline for a while, as in a failover or a backup; a full disk; too many transactions;
# no quorum.
UNAVAILABLE = frozenset({2002, 2003, 1036, 1290, 1792, 1836, 3032, 1021, 1030, 1114, 1637, 1047})
FORBIDDEN_BY_OPTION = 1290
"""The text names the server's option, whatever language it is in: `--read-only` mostly."""
REFUSED = frozenset({1062, 1216, 1217, 1451, 1452, 1644, 3819, 4025})
"""By a key, a foreign one, a check, or a trigger's SIGNAL."""
REFERRED_TO = frozenset({1217, 1451})
STATEMENT_BINLOG = 1665
SAVEPOINT_MISSING = 1305
SYNTAX = 1064
ACCESS_DENIED = 1045
RIGHTS_MISSING = frozenset({1142, 1143})  # on a table, on a column
NEEDS_TLS = frozenset({ACCESS_DENIED, 3159})
TABLE_MISSING = 1146
COLUMN_MISSING = 1054
ALREADY_THERE = frozenset({1060, 1061})  # a column, an index
INDEX_MISSING = 1176
NO_ID_LEFT = 1467
TOO_LONG = 1153
CANNOT_CONNECT = 2003
TLS_FAILED = 2026
CLEAR_PASSWORD = 2061
CUT_OFF = frozenset({2006, 2013, 2014})
PREFIX = "panels put the account's name before it, as in you_shop"
LIMITED = f"let fewer workers run at once ({WORKER} --slots), or ask your host for more"
ACCOUNT_LIMIT = 1226
HOURLY_COUNTS = {"queries": "ask", "questions": "ask", "updates": "write", "connections": "connect"}
"""MySQL calls them max_questions, max_updates and max_connections_per_hour; MariaDB ends each with _per_hour."""
HOURLY = re.compile(f"max_({'|'.join(HOURLY_COUNTS)})(_per_hour)?")
NO_SPACE = "free some space, or have your host raise the database's quota"
READ_ONLY = "the server takes no writes for now: wait, or name its main server in TASKSERVER_DSN"
COLUMN = "give that column its type and character set of schema.sql, with ALTER TABLE"
RIGHTS_HINT = (
    f"which account does TASKSERVER_DSN name? a website's may only add; {WORKER} needs a worker's; {CLIENT} pause, "
    "resume, schedule, unschedule and prune need an operator's, with SELECT, INSERT, UPDATE and DELETE on all of the "
    f"queue's tables; {CLIENT} init needs CREATE and ALTER too; see docs/security.md for what to grant"
)
LOGIN = (
    "check user and password in TASKSERVER_DSN and TASKSERVER_PASSWORD, which wins where both have one; of a user, "
    f"{PREFIX}; a password stands in .env in single quotes, and in a DSN its % is %25"
)
HINTS = {
    1021: NO_SPACE,
    1030: "is the disk full, or a quota used up?",
    1040: LIMITED,
    1044: f"grant this user rights on it in your host's panel, or mend the name in TASKSERVER_DSN ({PREFIX})",
    ACCESS_DENIED: LOGIN,
    1049: f"make it in your host's panel, or mend the name in TASKSERVER_DSN ({PREFIX})",
    1114: NO_SPACE,
    1129: "ask your host to unblock this machine (FLUSH HOSTS)",
    1130: "allow this machine in your host's panel (remote MySQL); on the web server itself name localhost",
    **dict.fromkeys(RIGHTS_MISSING, RIGHTS_HINT),
    **dict.fromkeys(
        REFERRED_TO,
        "another table refers to the queue's rows by a foreign key, and must not: drop that table or key, or ask your "
        "host's administrator to",
    ),
    1071: "its keys are too short: ask your host for MySQL 5.7, MariaDB 10.3 or newer",
    TOO_LONG: "give the task smaller arguments, or raise the server's max_allowed_packet",
    1203: LIMITED,
    FORBIDDEN_BY_OPTION: READ_ONLY,
    1366: COLUMN,
    1406: COLUMN,
    1698: LOGIN,
    1792: READ_ONLY,
    1836: READ_ONLY,
    TLS_FAILED: "check ssl-mode and ssl-ca in TASKSERVER_DSN: ssl-ca is the file of the server's certificate "
    "authority, by its absolute path",
}
WHEN_SHOWN = "MySQL 8 and newer do so after a restart, and where the password is wrong (check TASKSERVER_PASSWORD)"
SHOWN_ON_THIS_HOST = (
    f"{WHEN_SHOWN}, but who answers there is neither root nor this account nor mysql: in TASKSERVER_DSN name "
    "localhost, which means the server's socket where that is at one of the usual places, add ?unix_socket=/its/path, "
    "or ?ssl-ca=/path/of/ca.pem"
)
SHOWN_TO_ANOTHER = (
    f"{WHEN_SHOWN}, but it is shown only to a server whose certificate is verified: add ?ssl-ca=/path/of/ca.pem to "
    "TASKSERVER_DSN, the certificate authority of the server (or ?ssl-mode=verify_identity alone, where a public one "
    "signed it; or &ssl-mode=required behind ssl-ca, where its certificate does not name the host)"
)
STRANGER = "is that a MySQL server? its port is 3306 as a rule, and not that of a panel or a web page"


def kind_of(number: int | None) -> type[DatabaseError]:
    """The class of our error for a number, which says whether it is worth another try."""
    kinds = {
        CROWDED: Crowded,
        CONFLICTS: Conflict,
        LOST_CONNECTION: ConnectionLost,
        FULL: ServerFull,
        UNAVAILABLE: Unavailable,
        ALREADY_THERE: AlreadyThere,
        REFUSED: Refused,
        frozenset({TOO_LONG}): TooLong,
        frozenset({SYNTAX}): NotUnderstood,
    }
    return next((kind for numbers, kind in kinds.items() if number in numbers), DatabaseError)


def number_of(error: BaseException | None) -> int | None:
    """The server's or driver's error number."""
    number = error.args[0] if error is not None and error.args else None
    return number if isinstance(number, int) else None


def hint_at(number: int | None, text: str, dsn: MySQLDsn, is_login: bool) -> str:
    """Advice for a person about an error; empty where we have none."""
    if is_login and (number is None or number in CUT_OFF):
        return STRANGER
    if number == CLEAR_PASSWORD:
        return SHOWN_ON_THIS_HOST if dsn.is_loopback else SHOWN_TO_ANOTHER
    if number == ACCOUNT_LIMIT:
        return _hint_at_limit(text)
    if number == FORBIDDEN_BY_OPTION and "read-only" not in text:
        return ""
    return _hint_at_address(text, dsn) if number == CANNOT_CONNECT else HINTS.get(number or 0, "")


def _hint_at_limit(text: str) -> str:
    """Advice on a limit of this account; the server names it alike in each language."""
    named = HOURLY.search(text)
    if named is None:
        return LIMITED
    return (
        f"{named[0]} is what your host allows this account in an hour, and it is used up: all goes on by itself once "
        f"that hour is over. Fewer workers at once change nothing of it: have cron start {WORKER} less often (*/5 in "
        f"place of *), let other programs of this account {HOURLY_COUNTS[named[1]]} less, or ask your host for more"
    )


def _hint_at_address(text: str, dsn: MySQLDsn) -> str:
    if "SSL" in text:
        return "check ssl-mode and ssl-ca in TASKSERVER_DSN"
    if dsn.unix_socket:
        return "does the server run? if so, check unix_socket in TASKSERVER_DSN"
    if dsn.host != "localhost" or usual_socket("localhost") is not None:
        return "does the server run? if so, check host and port in TASKSERVER_DSN"
    folder = folder_of_sockets()
    if folder and "who answers" not in text:  # login.py met somebody else there
        return (
            f"the server seems to be down, as no socket of its is in {folder}: once it runs again, so do workers; your "
            "host knows more. Where pages of this account reach it now, add ?unix_socket=/its/path to TASKSERVER_DSN"
        )
    return (
        "add ?unix_socket=/its/path to TASKSERVER_DSN where PHP's phpinfo() names a socket, else check host and port "
        "there, and whether the server runs: no socket of its is at one of the usual places; 127.0.0.1 in the place of "
        "localhost means whatever answers at that port, a proxy too"
    )


def error_of(error: BaseException, dsn: MySQLDsn, table: str, is_login: bool = False) -> DatabaseError:
    """Our error for an error of the driver on a connection of ours."""
    number = number_of(error)
    text = _text_of(error)
    where = dsn.place
    if number == TABLE_MISSING:
        return no_tables(where, table)
    if number == COLUMN_MISSING:
        return other_columns(where, table, text)
    if number == INDEX_MISSING:
        return DatabaseError(f"{where}: {text}: make it as in schema.sql")
    if number == NO_ID_LEFT:
        return DatabaseError(
            f"{where}: no id is left in {table} or {table}_done, as somebody wrote a row with the greatest one: "
            f"{CLIENT} doctor tells which, and how to mend it (ALTER TABLE {table} AUTO_INCREMENT = 1, once that row "
            "is deleted; that takes the right ALTER)"
        )
    if isinstance(error, MALFORMED):
        return unreadable(error, dsn)
    if isinstance(error, RuntimeError) and "pynacl" in text:
        how = "pip install 'PyMySQL[ed25519]'"
        return DatabaseError(f"{where}: this account's password needs the package PyNaCl: {how}")
    if isinstance(error, RuntimeError) and "cryptography" in text:
        how = "or the package PyMySQL[rsa] (pip install 'PyMySQL[rsa]')" if dsn.is_loopback else SHOWN_TO_ANOTHER
        return DatabaseError(
            f"{where}: this account's password needs TLS, which the server does not offer or ssl-mode forbids: {how}"
        )
    hint = hint_at(number, text, dsn, is_login)
    what = f"{where}: {text or 'the connection is closed'} ({number or type(error).__name__})"
    kind = Conflict if number == UNKNOWN and IN_CLAIM in text else kind_of(number)
    return kind(f"{what}: {hint}" if hint else what)


def unreadable(error: BaseException, dsn: MySQLDsn) -> ConnectionLost:
    """Our error for an answer that is none, or none of ours."""
    return ConnectionLost(
        f"{dsn.place}: its answer cannot be read ({type(error).__name__}: {_text_of(error)}): {STRANGER}; or a file of "
        f"this program was cut off by an upload: {CLIENT} doctor tells"
    )


def _text_of(error: BaseException) -> str:
    return " ".join(str(error.args[-1] if error.args else error)[:MAX_TEXT_LENGTH].split())
