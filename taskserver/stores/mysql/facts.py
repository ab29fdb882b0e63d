"""The doctor's checks of a MySQL or MariaDB database, and the rebuild of its tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ...messages.finding import Finding, Level, ok, warning
from .. import facts
from ..facts import Asked, Check, Facts, Rebuild, check_value, ok_if
from ..retrying import MIN_CONFLICT_SECONDS, RetryPolicy, Scope
from ..schema import tables
from ..table_faults import TableLooks
from .errors import PROCESS_MISSING, RIGHTS_MISSING, number_of

OLDEST_MARIADB = (10, 3)
OLDEST_MYSQL = (5, 7)
MIN_PACKET_BYTES = 4 * 1024 * 1024
"""For a statement with arguments of 1 MiB, which quoting may double, and some spare room."""


# ---- the connection and the server


def _connection(asked: Asked) -> tuple[Any, ...]:
    ((user, version),) = asked.database.fetch("SELECT CURRENT_USER(), VERSION()")
    rows = asked.database.fetch("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
    return asked.dsn, user, rows[0][1] if rows else "", "mariadb" in version.lower()


def _judge_connection(answer: tuple[Any, ...]) -> Finding:
    dsn, user, cipher, is_mariadb = answer
    words = f"{dsn.place} as {user}, {f'TLS {cipher}' if cipher else 'without TLS'}"
    if cipher and not dsn.is_verified and not is_mariadb and not dsn.is_loopback:
        return warning(
            f"{words}, and its certificate is not verified",
            "after a restart this server asks for the password itself, which no unverified server gets",
            "add ?ssl-ca=/path/of/ca.pem to TASKSERVER_DSN, the certificate authority of the server",
        )
    return facts.judge_encrypted(words, bool(cipher) or dsn.is_loopback, "ssl-mode=required")


def _hosts(asked: Asked) -> tuple[tuple[int, list[str]], str]:
    rows = asked.database.fetch("SHOW GLOBAL STATUS LIKE 'wsrep_cluster_size'")
    size = int(rows[0][1]) if rows else 0
    return asked.database.hosts_away(), f", in a Galera cluster of {size}" if size else ""


def _judge_version(rows: Sequence[Sequence[Any]]) -> Finding:
    ((version, comment),) = rows
    is_mariadb = "mariadb" in f"{version} {comment}".lower()
    name, oldest = ("MariaDB", OLDEST_MARIADB) if is_mariadb else ("MySQL", OLDEST_MYSQL)
    # Some MariaDB servers prefix their version with 5.5.5- for old replicas.
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", version)
    numbers = (int(found[1]), int(found[2])) if found else (0, 0)
    if numbers < oldest:
        return warning(f"{name} {version}; the oldest one tried is {'.'.join(map(str, oldest))}")
    skips_locked = numbers >= ((10, 6) if is_mariadb else (8, 0))
    waits = "" if skips_locked else "; without SKIP LOCKED, so a row that a page holds delays claims"
    return ok(f"{name} {version}{waits}")


def _judge_durability(value: str) -> Finding:
    if value == "1":
        return ok("a commit is on the disk when the server says so")
    lost = "a crash of the server's host may take the last second's tasks"
    return ok(f"innodb_flush_log_at_trx_commit is {value}: {lost}")


def _judge_packet(value: str) -> Finding:
    words = f"max_allowed_packet is {int(value) // 1024} KiB: arguments may take some {int(value) // 2048} KiB"
    return ok_if(int(value) >= MIN_PACKET_BYTES, words)


# InnoDB gives trx_started in its host's time zone; the session's is UTC.
OLDEST_TRANSACTION = """
    SELECT TIMESTAMPDIFF(SECOND, trx_started, CONVERT_TZ(NOW(), '+00:00', 'SYSTEM')), trx_mysql_thread_id,
        COALESCE(user, 'another account'), COALESCE(command, 'prepared')
    FROM information_schema.innodb_trx LEFT JOIN information_schema.processlist ON id = trx_mysql_thread_id
    WHERE trx_mysql_thread_id <> CONNECTION_ID() ORDER BY trx_started LIMIT 1
"""
WAYS_TO_END = "end that program, or KILL {0}; without a session: XA RECOVER, and XA ROLLBACK"


# ---- the tables

COLUMNS = ", ".join(f"'{column.name}'" for table in tables() for column in table.columns)
SERIAL = "ALTER TABLE `', table_name, '` MODIFY ', column_name, ' BIGINT UNSIGNED NOT NULL AUTO_INCREMENT"
CHARSET = "ALTER TABLE `', table_name, '` CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
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
    """
    SELECT table_name, column_name, character_maximum_length FROM information_schema.columns
    WHERE table_schema = DATABASE() AND character_maximum_length IS NOT NULL
    """,
    "ALTER TABLE {table} MODIFY {definition}",
    f"""
    SELECT table_name, CONCAT('has no AUTO_INCREMENT in ', column_name), CONCAT('{SERIAL}')
    FROM information_schema.columns WHERE table_schema = DATABASE() AND extra NOT LIKE '%auto_increment%'
        AND column_name = IF(table_name LIKE '%\\_done', 'done_id', 'id')
    UNION ALL
    SELECT table_name, CONCAT('has texts in ', MIN(collation_name)), CONCAT('{CHARSET}')
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND column_name IN ({COLUMNS})
        AND collation_name NOT IN ('utf8mb4_bin', 'ascii_bin') GROUP BY table_name
    UNION ALL
    SELECT table_name, CONCAT('is of the engine ', engine), CONCAT('ALTER TABLE `', table_name, '` ENGINE = InnoDB')
    FROM information_schema.tables WHERE table_schema = DATABASE() AND engine <> 'InnoDB'
    """,
    add="ALTER TABLE {table} ADD {unique}KEY {name} ({columns})",
    drop="ALTER TABLE {table} DROP KEY {name}",
)

CHECKS = (
    Check("connection", _connection, _judge_connection, facts.LISTENING),
    Check("hosts", _hosts, lambda found: facts.judge_hosts(*found)),
    facts.check_version("SELECT VERSION(), @@version_comment", _judge_version),
    facts.CHECK_RIGHTS,
    *facts.OF_TABLES,
    check_value(
        "character_set",
        "SELECT @@character_set_connection",
        lambda found: ok_if(found == "utf8mb4", f"connections use {found}", Level.CRITICAL),
        "arguments would be cut or changed",
        "ask the host for utf8mb4",
    ),
    check_value(
        "strict_mode",
        "SELECT @@GLOBAL.sql_mode",
        lambda found: ok_if("STRICT_" in found, f"sql_mode is {found or 'empty'}"),
        "if a page's INSERT has a wrong value, the server stores another one instead of refusing it",
        "let pages say SET SESSION sql_mode = 'STRICT_ALL_TABLES' after they connect; workers do",
    ),
    check_value("durability", "SELECT @@innodb_flush_log_at_trx_commit", _judge_durability),
    facts.check_connections("SELECT @@max_user_connections"),
    check_value(
        "packet",
        "SELECT @@GLOBAL.max_allowed_packet",
        _judge_packet,
        "pages get an error, and add no task with longer ones",
        "keep arguments short, as the id of a row or the path of a file, or ask the host for 4 MiB",
    ),
    facts.check_clock("SELECT UNIX_TIMESTAMP(NOW(6))", "FROM_UNIXTIME(UNIX_TIMESTAMP() + 3600)"),
    Check(
        "transactions",
        OLDEST_TRANSACTION,
        lambda rows: facts.judge_transaction(rows, WAYS_TO_END),
        facts.TRANSACTION,
    ),
)


# ---- the rebuild of the tables

# The hint is for MySQL 8, which shows sizes of up to a day ago. Other servers ignore it.
SIZES = """
    SELECT /*+ SET_VAR(information_schema_stats_expiry = 0) */ table_name, data_length + index_length + data_free,
        data_length + index_length
    FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN ({ids}) ORDER BY table_name
"""
# As OPTIMIZE TABLE does it, which returns its errors as rows, and would lock the table if it could not do without.
REBUILD = "ALTER TABLE `{}` FORCE, ALGORITHM = INPLACE, LOCK = NONE"
WORDS = "ALTER TABLE … FORCE copies the rows of a table into a new file, which needs free disk space"
MEANWHILE = "tasks can be added and run meanwhile, but a mysqldump that runs now may fail"
IN_CLUSTER = "in a Galera cluster no node can add, claim or finish a task meanwhile"


def _rebuild(database: Any, table: str) -> None:
    # Each lock of the table is short. But an open transaction or a backup delays it, and then it delays all others: for
    # a second, as the session's lock_wait_timeout says. The server's own threads hold tables for a second at times, so
    # there are several tries.
    policy = RetryPolicy(Scope.BARE, MIN_CONFLICT_SECONDS, is_repeatable=False)
    database.run(policy, database.execute, REBUILD.format(table))
    database.fetch(f"ANALYZE TABLE `{table}`")


def _rebuilds(database: Any) -> list[Rebuild]:
    in_cluster = [value for _, value in database.fetch("SHOW VARIABLES LIKE 'wsrep_on'")] == ["ON"]
    words = f"{WORDS}; {IN_CLUSTER if in_cluster else MEANWHILE}"
    return [Rebuild(facts.sizes_by(SIZES), _rebuild, words, 20_000_000, in_cluster)]


FACTS = Facts(CHECKS, LOOKS, _rebuilds, lambda error: number_of(error.__cause__) in {*RIGHTS_MISSING, PROCESS_MISSING})
