"""What errors of MySQL, MariaDB and their driver mean: which deserve a retry, and what a person can do.

Errors are recognized by number: some servers have no texts, and others translate them.
"""

from __future__ import annotations

import os
import struct

import pymysql

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
from ...host import peer
from ...messages.programs import CLIENT, WORKER
from ...settings.dsn import Dsn
from ..dialect import HELD, LIMITED, NO_RIGHT, no_tables, other_columns

MALFORMED = (AssertionError, struct.error, LookupError, TypeError, AttributeError, ArithmeticError)
"""What the driver raises for an answer that is not MySQL's."""
DRIVER_ERRORS = (pymysql.MySQLError, OSError, RuntimeError, ValueError, *MALFORMED)
MAX_TEXT_LENGTH = 500
"""An error's text comes from any server, and goes into cron's mail."""

NO_ID_LEFT = 1467
"""MariaDB also says this if an INSERT of many rows holds the counter of ids for longer than our lock timeout."""
TOO_LONG = 1153
RIGHTS_MISSING = frozenset({1142, 1143})  # on a table, on a column
PROCESS_MISSING = 1227
TABLE_MISSING = 1146
UNKNOWN = 1105
COLUMN_MISSING = 1054
ACCESS_DENIED = 1045
NEEDS_TLS = frozenset({ACCESS_DENIED, 3159})
CANNOT_CONNECT = 2003
TLS_FAILED = 2026
CLEAR_PASSWORD = 2061

TEMPORARY_FILE_FULL = 1878  # of client.py compact
DAMAGES = (1034, 1194, 1712, 1877)  # of a table or an index

KINDS: dict[int | None, type[DatabaseError]] = {
    1213: Deadlock,
    # Lock timeouts, NOWAIT, rows changed after a snapshot, too many locks, statements that an administrator
    # or a time limit ended.
    **dict.fromkeys((1020, 1028, 1205, 1206, 1317, NO_ID_LEFT, 1614, 1969, 3024, 3572), Conflict),
    # The connection is gone: a shutdown, a KILL, an idle timeout, the network.
    **dict.fromkeys((0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1180, 1184, 1927), ConnectionLost),
    **dict.fromkeys((2006, 2013, 2014, 2055, 3168, 3169, 4031), ConnectionLost),
    # Too many connections or threads; no memory for one more.
    **dict.fromkeys((1037, 1040, 1041, 1135, 1203, 1226), ServerFull),
    # Unreachable; read-only or offline, as in a failover or a backup; a full disk; too many transactions; no quorum.
    **dict.fromkeys((2002, CANNOT_CONNECT, 1036, 1290, 1792, 1836, 3032, 1021, 1030, 1114, 1637, 1047), Unavailable),
    TEMPORARY_FILE_FULL: Unavailable,
    **dict.fromkeys(DAMAGES, Unavailable),
    # By a key, a foreign key, a check, or a trigger's SIGNAL.
    **dict.fromkeys((1062, 1216, 1217, 1451, 1452, 1644, 3819, 4025), Refused),
    **dict.fromkeys((1060, 1061), AlreadyThere),  # a column, an index
    TOO_LONG: TooLong,
    1064: NotUnderstood,
    1305: NoTransaction,  # or no such savepoint
}
"""The class of our error by number. Others are a plain DatabaseError."""

PANELS = "panels put the account's name before it, as in you_shop"
NO_SPACE = "free some space, or ask your host to raise the database's quota"
DAMAGED = "it is damaged on the server's disk: do not drop it; ask your host for its backup"
READ_ONLY = "the server takes no writes for now: wait, or name its main server in TASKSERVER_DSN"
COLUMN = "give that column its type and character set of schema.sql, with ALTER TABLE"
LOGIN = (
    "check user and password in TASKSERVER_DSN and TASKSERVER_PASSWORD, which wins if both have one; of a user, "
    f"{PANELS}; in .env a password stands in single quotes, and in a DSN its % is %25"
)
TLS = "check ssl-mode and ssl-ca in TASKSERVER_DSN: ssl-ca is the absolute path of the server's certificate authority"
STRANGER = "is that a MySQL server? its port is 3306 as a rule, and not that of a panel or a web page"
WHEN_SHOWN = "MySQL 8 and newer do so after a restart, and if the password is wrong (check TASKSERVER_PASSWORD)"
SHOWN_ON_THIS_HOST = (
    f"{WHEN_SHOWN}, but only root, this account and mysql may get it on this host: in TASKSERVER_DSN name localhost, "
    "which means the server's socket if that is at one of the usual places, add ?unix_socket=/its/path, or "
    "?ssl-ca=/path/of/ca.pem"
)
SHOWN_TO_ANOTHER = (
    f"{WHEN_SHOWN}, but only a server whose certificate is verified may get it: add ?ssl-ca=/path/of/ca.pem to "
    "TASKSERVER_DSN, the server's certificate authority (or only ?ssl-mode=verify_identity, if a public one signed it; "
    "or &ssl-mode=required behind ssl-ca, if its certificate does not name the host)"
)
HINTS = {
    1021: NO_SPACE,
    1030: "is the disk full, or a quota used up?",
    1040: LIMITED,
    1044: f"grant this user rights on it in your host's panel, or correct the name in TASKSERVER_DSN ({PANELS})",
    ACCESS_DENIED: LOGIN,
    1049: f"create it in your host's panel, or correct the name in TASKSERVER_DSN ({PANELS})",
    1071: "its keys are too short: ask your host for MySQL 5.7, MariaDB 10.3 or newer",
    1114: NO_SPACE,
    1129: "ask your host to unblock this machine (FLUSH HOSTS)",
    1130: "allow this machine in your host's panel (remote MySQL); on the web server itself name localhost",
    **dict.fromkeys(RIGHTS_MISSING, NO_RIGHT.format("CREATE and ALTER too")),
    TOO_LONG: "give the task smaller arguments, or raise the server's max_allowed_packet",
    1176: f"run {CLIENT} init, which makes that index",
    1203: LIMITED,
    1205: HELD,
    1226: f"your host limits this account; a limit per hour ends with the hour: start {WORKER} less often, as */5; "
    f"else {LIMITED}",
    1290: READ_ONLY,
    1364: f"run {CLIENT} init, which says what the table lacks",
    1366: COLUMN,
    1406: COLUMN,
    TEMPORARY_FILE_FULL: NO_SPACE,
    **dict.fromkeys(DAMAGES, DAMAGED),
    1698: LOGIN,
    1792: READ_ONLY,
    1836: READ_ONLY,
    TLS_FAILED: TLS,
}


def number_of(error: BaseException | None) -> int | None:
    """The server's or the driver's error number."""
    number = error.args[0] if error is not None and error.args else None
    return number if isinstance(number, int) else None


def error_of(error: BaseException, dsn: Dsn, table: str, where: str = "", is_login: bool = False) -> DatabaseError:
    """Our error for a driver's error; `where` names a caller's connection."""
    number, where = number_of(error), where or dsn.place
    text = " ".join(str(error.args[-1] if error.args else error)[:MAX_TEXT_LENGTH].split())
    text = text.partition(". Please drop the table")[0]  # which would lose it
    kind, hint = _kind_of(number, text), HINTS.get(number or 0, "")
    if number == TABLE_MISSING:
        return no_tables(where, table, text)
    if number == COLUMN_MISSING:
        return other_columns(where, table, text)
    if number == NO_ID_LEFT:
        hint = (
            f"another INSERT holds the counter of ids, or no id is left: then delete the row of {table} (or "
            f"{table}_done) with the greatest id, then ALTER TABLE {table} AUTO_INCREMENT = 1"
        )
    elif number == CLEAR_PASSWORD:
        hint = SHOWN_ON_THIS_HOST if dsn.is_loopback else SHOWN_TO_ANOTHER
    elif number == CANNOT_CONNECT or (is_login and kind is ConnectionLost):
        hint = TLS if "SSL" in text else _hint_at_address(dsn)
    elif isinstance(error, RuntimeError) and "pynacl" in text:
        hint = "this account's password needs the package PyNaCl: pip install 'PyMySQL[ed25519]'"
    elif isinstance(error, RuntimeError) and "cryptography" in text:
        how = "or the package PyMySQL[rsa] (pip install 'PyMySQL[rsa]')" if dsn.is_loopback else SHOWN_TO_ANOTHER
        hint = f"this account's password needs TLS, which the server does not offer or ssl-mode forbids: {how}"
    elif isinstance(error, MALFORMED) or (is_login and number is None):
        kind, hint, text = ConnectionLost, STRANGER, f"its answer cannot be read: {text}"
    if is_login and kind is ConnectionLost:
        kind = Unavailable  # no statement was sent
    what = f"{where}: {text or 'the connection is closed'} ({number or type(error).__name__})"
    return kind(f"{what}: {hint}" if hint else what)


def _kind_of(number: int | None, text: str) -> type[DatabaseError]:
    if number == UNKNOWN and "in multi-table update" in text:
        return Conflict  # an administrator ended a claim
    return KINDS.get(number, DatabaseError)


def _hint_at_address(dsn: Dsn) -> str:
    if dsn.unix_socket:
        return "does the server run? if so, check unix_socket in TASKSERVER_DSN"
    if dsn.host != "localhost" or usual_socket("localhost") is not None:
        return "does the server run? if so, check host and port in TASKSERVER_DSN"
    if folder := _folder_of_sockets():
        return (
            f"the server seems to be down: no MySQL socket in {folder}. Workers resume once it runs again; your host "
            "knows more. If web pages of this account reach it now, add ?unix_socket=/its/path to TASKSERVER_DSN"
        )
    return (
        "no MySQL socket at one of the usual places: if PHP's phpinfo() names a socket, add ?unix_socket=/its/path to "
        "TASKSERVER_DSN, else check host and port, and whether the server runs; 127.0.0.1 in place of localhost means "
        "the server or proxy at that port"
    )


# ---- where localhost is

SOCKETS = (
    "/run/mysqld/mysqld.sock",
    "/var/run/mysqld/mysqld.sock",
    "/var/lib/mysql/mysql.sock",
    "/tmp/mysql.sock",
)
"""Usual places of a MySQL server's socket, the most usual first."""


def _folder_of_sockets() -> str | None:
    """The first of these folders on this host; None: no server was installed here."""
    folders = (os.path.dirname(path) for path in SOCKETS)
    return next((folder for folder in folders if folder != "/tmp" and os.path.isdir(folder)), None)


def usual_socket(host: str) -> str | None:
    """The socket that `localhost` means, as for PHP on this host; None without one, and for other hosts.

    Ignores sockets of other accounts: anyone could make one in /tmp while the server is down.
    """
    if host != "localhost":
        return None
    return next((path for path in SOCKETS if peer.is_of_server(path, peer.MYSQL_ACCOUNTS)), None)
