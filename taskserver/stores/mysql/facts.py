"""The doctor's checks of a MySQL or MariaDB database."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import DatabaseError, Unavailable
from ..facts import (
    ACCOUNT_LIMIT,
    BROKEN,
    CHECK_CLAIM_INDEX,
    CHECK_DELETES,
    CHECK_RIGHTS,
    CHECK_TABLES,
    LISTENING,
    OK,
    TRANSACTION,
    UNKNOWN,
    WAIT_TIMEOUT,
    WARNING,
    Asked,
    Check,
    Facts,
    Found,
    TableLooks,
    check_clock,
    judge_account_limit,
    judge_encrypted,
    judge_session_defaults,
    judge_transaction,
    judge_wait_timeout,
)
from .errors import RIGHTS_MISSING, number_of

OLDEST_MARIADB = (10, 3)
OLDEST_MYSQL = (5, 7)
MIN_PACKET_BYTES = 4 * 1024 * 1024
"""A statement with arguments of 1 MiB, which quoting may double, and room to spare."""
USUAL = {
    "max_join_size": ("18446744073709551615",),
    "sql_safe_updates": ("OFF", "0"),
    "sql_select_limit": ("18446744073709551615",),
    "completion_type": ("NO_CHAIN", "0"),
    "unique_checks": ("ON", "1"),
    "autocommit": ("ON", "1"),
    "max_statement_time": ("0.000000", "0"),
    "max_execution_time": ("0",),
    "idle_transaction_timeout": ("0",),
    "idle_write_transaction_timeout": ("0",),
    "tx_read_only": ("OFF", "0"),
    "transaction_read_only": ("OFF", "0"),
    "init_connect": ("",),
}
"""Variables that a host may set so that they are in a program's way, and their usual values."""

Variables = Mapping[str, str]


def _of_variables(name: str, judge: Callable[[Variables], Found], names: str, why: str = "", fix: str = "") -> Check:
    """A check of variables of the server, or of a session by `SESSION` before their names; some servers lack some."""
    scope, _, named = names.rpartition(":")
    wanted = ", ".join(f"'{one}'" for one in named.split())
    sql = f"SHOW {scope or 'GLOBAL'} VARIABLES WHERE Variable_name IN ({wanted})"
    return Check(name, sql, lambda rows: judge({str(key).lower(): str(value) for key, value in rows}), why, fix)


# ---- the connection and the server


def _connection(asked: Asked) -> tuple[Any, ...]:
    ((user, version),) = asked.database.fetch("SELECT CURRENT_USER(), VERSION()")
    rows = asked.database.fetch("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    return asked.dsn, user, rows[0][1] if rows else "", "mariadb" in version.lower()


def _judge_connection(answer: tuple[Any, ...]) -> Found:
    dsn, user, cipher, is_mariadb = answer
    words = f"{dsn.place} as {user}, {f'TLS {cipher}' if cipher else 'without TLS'}"
    if cipher and not dsn.is_verified and not is_mariadb and not dsn.is_loopback:
        return Found(
            WARNING,
            f"{words}, and its certificate is not verified",
            "add ?ssl-ca=/path/of/ca.pem to TASKSERVER_DSN, the certificate authority of the server",
            "after a restart this server asks for the password itself, which no unverified server gets",
        )
    return judge_encrypted(words, bool(cipher) or dsn.is_loopback, "ssl-mode=required")


def _judge_version(rows: Sequence[Sequence[Any]]) -> Found:
    ((version, comment),) = rows
    is_mariadb = "mariadb" in f"{version} {comment}".lower()
    name, oldest = ("MariaDB", OLDEST_MARIADB) if is_mariadb else ("MySQL", OLDEST_MYSQL)
    # Some MariaDB servers put 5.5.5- before their version, for old replicas.
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", version)
    numbers = (int(found[1]), int(found[2])) if found else (0, 0)
    if numbers < oldest:
        return Found(WARNING, f"{name} {version}; the oldest one tried is {'.'.join(map(str, oldest))}")
    skips_locked = numbers >= ((10, 6) if is_mariadb else (8, 0))
    waits = "" if skips_locked else "; without SKIP LOCKED, so a row that a page holds delays claims"
    return Found(OK, f"{name} {version}{waits}")


def _judge_character_set(variables: Variables) -> Found:
    charset = variables["character_set_connection"]
    return Found(OK if charset == "utf8mb4" else BROKEN, f"connections use {charset}")


def _judge_strict_mode(variables: Variables) -> Found:
    mode = variables["sql_mode"]
    if "STRICT_TRANS_TABLES" in mode or "STRICT_ALL_TABLES" in mode:
        return Found(OK, "the server refuses values that do not fit")
    return Found(WARNING, f"sql_mode is {mode or 'empty'}")


def _judge_binlog(variables: Variables) -> Found:
    if variables.get("log_bin", "OFF") != "ON":
        return Found(OK, "the server writes no binary log")
    form = variables["binlog_format"]
    return Found(WARNING if form == "STATEMENT" else OK, f"binlog_format is {form}")


def _judge_durability(variables: Variables) -> Found:
    value = variables.get("innodb_flush_log_at_trx_commit", "1")
    if value == "1":
        return Found(OK, "a commit is on the disk when the server says so")
    lost = "a crash of the server's host may take the last second's tasks"
    return Found(OK, f"innodb_flush_log_at_trx_commit is {value}: {lost}")


def _judge_connections(variables: Variables) -> Found:
    limit = int(variables.get("max_user_connections", 0))
    return judge_account_limit(limit) if limit else Found(OK, "the account has no limit of its own")


def _judge_packet(variables: Variables) -> Found:
    size = int(variables["max_allowed_packet"])
    words = f"max_allowed_packet is {size // 1024} KiB"
    if size >= MIN_PACKET_BYTES:
        return Found(OK, words)
    return Found(WARNING, f"{words}: a task whose arguments take more than some {size // 2048} KiB cannot be added")


# InnoDB gives trx_started in the time zone of its host, whatever the session's.
OLDEST_TRANSACTION = """
    SELECT TIMESTAMPDIFF(SECOND, trx_started, NOW()), trx_mysql_thread_id, COALESCE(user, 'another account'),
        COALESCE(command, 'prepared')
    FROM information_schema.innodb_trx LEFT JOIN information_schema.processlist ON id = trx_mysql_thread_id
    WHERE trx_mysql_thread_id <> CONNECTION_ID() ORDER BY trx_started LIMIT 1
"""


def _oldest_transaction(asked: Asked) -> Sequence[Sequence[Any]] | None:
    database = asked.database
    try:
        database.change("SET time_zone = 'SYSTEM'")
        rows: Sequence[Sequence[Any]] = database.fetch(OLDEST_TRANSACTION)
        return rows
    except Unavailable:
        raise
    except DatabaseError:
        return None
    finally:
        database.change("SET time_zone = '+00:00'")


def _judge_transactions(rows: Sequence[Sequence[Any]] | None) -> Found:
    if rows is None:
        return Found(UNKNOWN, "open transactions cannot be seen: that takes the right PROCESS")
    return judge_transaction(rows, "end that program, or KILL {0}; without a session: XA RECOVER, and XA ROLLBACK")


# ---- the tables

OURS = "table_schema = DATABASE() AND table_name IN (?, ?)"
SERIAL = "ALTER TABLE ', table_name, ' MODIFY ', column_name, ' BIGINT UNSIGNED NOT NULL AUTO_INCREMENT"
CHARSET = "ALTER TABLE ', table_name, ' CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
LOOKS = TableLooks(
    """
    SELECT table_name, index_name, MAX(non_unique) = 0,
        GROUP_CONCAT(column_name, COALESCE(CONCAT('(', sub_part, ')'), '') ORDER BY seq_in_index SEPARATOR ', ')
    FROM information_schema.statistics WHERE table_schema = DATABASE() GROUP BY table_name, index_name
    """,
    """
    SELECT CONCAT('the trigger ', trigger_name) FROM information_schema.triggers
    WHERE event_object_schema = DATABASE() AND event_object_table = ? AND event_manipulation = 'DELETE'
    UNION ALL
    SELECT CONCAT('a foreign key of ', table_name) FROM information_schema.referential_constraints
    WHERE constraint_schema = DATABASE() AND referenced_table_name = ?
    """,
    f"""
    SELECT table_name, CONCAT('has no AUTO_INCREMENT in ', column_name), CONCAT('{SERIAL}')
    FROM information_schema.columns WHERE {OURS} AND extra NOT LIKE '%auto_increment%'
        AND column_name = CASE WHEN table_name = ? THEN 'id' WHEN table_name = ? THEN 'done_id' END
    UNION ALL
    SELECT table_name, CONCAT('has texts in ', MIN(collation_name)), CONCAT('{CHARSET}')
    FROM information_schema.columns WHERE {OURS} AND collation_name <> 'utf8mb4_bin' GROUP BY table_name
    UNION ALL
    SELECT table_name, CONCAT('is of the engine ', engine), CONCAT('ALTER TABLE ', table_name, ' ENGINE = InnoDB')
    FROM information_schema.tables WHERE {OURS} AND engine <> 'InnoDB'
    """,
    add="ALTER TABLE {table} ADD {unique}KEY {name} ({columns})",
    drop="ALTER TABLE {table} DROP KEY {name}",
)

CHECKS = (
    Check("connection", _connection, _judge_connection, LISTENING),
    Check(
        "version",
        "SELECT VERSION(), @@version_comment",
        _judge_version,
        "it may lack what claims need",
        "ask the host for a newer one",
    ),
    CHECK_RIGHTS,
    CHECK_TABLES,
    CHECK_CLAIM_INDEX,
    CHECK_DELETES,
    _of_variables(
        "character_set",
        _judge_character_set,
        "SESSION:character_set_connection",
        "arguments would be cut or changed",
        "ask the host for utf8mb4",
    ),
    _of_variables(
        "strict_mode",
        _judge_strict_mode,
        "sql_mode",
        "if a page's INSERT has a wrong value, the server stores another one instead of refusing it",
        "let pages say SET SESSION sql_mode = 'STRICT_ALL_TABLES' after they connect; workers do",
    ),
    _of_variables(
        "binlog",
        _judge_binlog,
        "log_bin binlog_format",
        "the server notes each claim as unsafe in its error log, and a replica may pick other rows",
        "ask the host for binlog_format ROW or MIXED",
    ),
    _of_variables("durability", _judge_durability, "innodb_flush_log_at_trx_commit"),
    _of_variables("session_defaults", lambda found: judge_session_defaults(USUAL, found), " ".join(USUAL)),
    _of_variables(
        "wait_timeout",
        lambda variables: judge_wait_timeout(float(variables["wait_timeout"])),
        "SESSION:wait_timeout",
        *WAIT_TIMEOUT,
    ),
    _of_variables("connections", _judge_connections, "SESSION:max_user_connections", *ACCOUNT_LIMIT),
    _of_variables(
        "packet",
        _judge_packet,
        "max_allowed_packet",
        "pages get an error, and add no task",
        "keep arguments short, as the id of a row or the path of a file, or ask the host for 4 MiB",
    ),
    check_clock("SELECT UNIX_TIMESTAMP(NOW(6))", "FROM_UNIXTIME(UNIX_TIMESTAMP() + 3600)"),
    Check("transactions", _oldest_transaction, _judge_transactions, TRANSACTION),
)
FACTS = Facts(CHECKS, LOOKS, lambda error: number_of(error.__cause__) in RIGHTS_MISSING)
