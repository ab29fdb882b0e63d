"""Checks of a MySQL or MariaDB server, from the facts that its store read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from ..messages.programs import CLIENT
from ..settings.dsn import Dsn
from ..settings.load import Settings
from ..stores.facts import MySQLFacts
from .findings import CheckResult, broken, ok, unknown, warning
from .servers import (
    MAX_TRANSACTION_SECONDS,
    check_account_limit,
    check_clock,
    check_encrypted,
    check_idle,
    check_rights,
    read_only,
)
from .tables import check_claim_index, check_ids, check_tables

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
"""The variables that a host may set for each session to something that is in a program's way, and what is usual."""


def findings(facts: MySQLFacts, settings: Settings) -> Iterator[CheckResult]:
    """One finding for each check."""
    yield _connection(facts, settings.dsn)
    yield _version(facts)
    yield check_rights(facts.denied, facts.spared)
    yield check_tables(facts.faults)
    yield check_claim_index(facts.claim_indexes, bool(facts.denied))
    yield check_ids(facts.forged_ids, "a user with the rights DELETE and ALTER, which a worker's need not have,")
    if facts.variables and facts.session:
        yield from _of_variables(facts)
    else:
        yield unknown(
            "variables", "the server does not tell its variables", "character set, strict mode and limits matter"
        )
    yield check_clock(facts.clock_ahead_seconds, "FROM_UNIXTIME(UNIX_TIMESTAMP() + 3600)")
    yield _transactions(facts)


def _of_variables(facts: MySQLFacts) -> Iterator[CheckResult]:
    yield _character_set(facts)
    yield _strict_mode(facts)
    yield _binlog(facts)
    yield _durability(facts)
    yield _session_defaults(facts)
    yield _wait_timeout(facts)
    yield _connections(facts)
    yield _packet(facts)


def _connection(facts: MySQLFacts, dsn: Dsn) -> CheckResult:
    found = f"{dsn.place} as {facts.user}, {'TLS ' + facts.cipher if facts.cipher else 'without TLS'}"
    if facts.cipher and not dsn.is_verified and not facts.is_mariadb and not dsn.is_loopback:
        return warning(
            "connection",
            f"{found}, and its certificate is not verified",
            "after a restart this server asks for the password itself, which is shown to no unverified one",
            "add ?ssl-ca=/path/of/ca.pem to TASKSERVER_DSN, the certificate authority of the server",
        )
    return check_encrypted(found, bool(facts.cipher) or dsn.is_loopback, "ssl-mode=required")


def _version(facts: MySQLFacts) -> CheckResult:
    name, oldest = ("MariaDB", OLDEST_MARIADB) if facts.is_mariadb else ("MySQL", OLDEST_MYSQL)
    found = f"{name} {facts.version}"
    if _numbers(facts.version) < oldest:
        return warning(
            "version",
            found,
            f"nothing before {name} {'.'.join(map(str, oldest))} was tried",
            "ask the host for a newer one",
        )
    if facts.skips_locked:
        return ok("version", f"{found}: claims skip what others hold (SKIP LOCKED)")
    newer = "10.6" if facts.is_mariadb else "8.0.1"
    return ok("version", f"{found}: without SKIP LOCKED, so workers wait for one another a little ({newer} has it)")


def _numbers(version: str) -> tuple[int, ...]:
    # Some MariaDB servers put 5.5.5- before their version, for old replicas.
    found = re.match(r"(?:5\.5\.5-)?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _character_set(facts: MySQLFacts) -> CheckResult:
    charset = facts.session.get("character_set_connection", "")
    if charset != "utf8mb4":
        return broken(
            "character_set",
            f"connections use {charset}",
            "arguments would be cut or changed",
            "ask the host for utf8mb4",
        )
    return ok("character_set", f"connections use utf8mb4 ({facts.session.get('collation_connection')})")


def _strict_mode(facts: MySQLFacts) -> CheckResult:
    mode = facts.variables.get("sql_mode", "")
    if "STRICT_TRANS_TABLES" in mode or "STRICT_ALL_TABLES" in mode:
        return ok("strict_mode", "the server refuses values that do not fit")
    return warning(
        "strict_mode",
        f"sql_mode is {mode or 'empty'}",
        "where a page's INSERT has a wrong value, the server stores another one instead of refusing it",
        "let pages say SET SESSION sql_mode = 'STRICT_ALL_TABLES' after they connect; workers do",
    )


def _binlog(facts: MySQLFacts) -> CheckResult:
    form = facts.variables.get("binlog_format", "none")
    if facts.variables.get("log_bin", "OFF").upper() != "ON":
        return ok("binlog", "the server writes no binary log")
    if form.upper() != "STATEMENT":
        return ok("binlog", f"binlog_format is {form}")
    return warning(
        "binlog",
        "binlog_format is STATEMENT",
        "the server notes each claim as unsafe in its error log, and a replica may pick other rows",
        "ask the host for binlog_format ROW or MIXED",
    )


def _durability(facts: MySQLFacts) -> CheckResult:
    value = facts.variables.get("innodb_flush_log_at_trx_commit", "1")
    if value == "1":
        return ok("durability", "a commit is on the disk when the server says so")
    return ok(
        "durability",
        f"innodb_flush_log_at_trx_commit is {value}: a crash of the server's host may take the last second's tasks",
    )


def _number(variables: Mapping[str, str], name: str, default: int) -> int:
    # A proxy in between may know fewer variables, or say something else.
    value = variables.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else default


def _wait_timeout(facts: MySQLFacts) -> CheckResult:
    return check_idle(_number(facts.session, "wait_timeout", 28_800))


def _session_defaults(facts: MySQLFacts) -> CheckResult:
    given = {name: facts.variables.get(name, usual[0]) for name, usual in USUAL.items()}
    odd = [f"{name} {' '.join(value.split())[:60]}" for name, value in given.items() if value not in USUAL[name]]
    if not odd:
        return ok("session_defaults", "the host leaves them as servers come")
    found = f"the host sets {', '.join(odd)}"
    if "ON" in (given["tx_read_only"], given["transaction_read_only"]):
        return read_only(found)
    return ok("session_defaults", f"{found}: workers and {CLIENT} set what they need, pages' own connections do not")


def _connections(facts: MySQLFacts) -> CheckResult:
    limit = _number(facts.session, "max_user_connections", 0)
    if limit == 0:
        return ok("connections", f"{facts.variables.get('max_connections')} for all accounts together")
    return check_account_limit(limit)


def _packet(facts: MySQLFacts) -> CheckResult:
    size = _number(facts.variables, "max_allowed_packet", MIN_PACKET_BYTES)
    if size >= MIN_PACKET_BYTES:
        return ok("packet", f"max_allowed_packet is {size // 1024} KiB")
    return warning(
        "packet",
        f"max_allowed_packet is {size // 1024} KiB",
        f"a task whose arguments take more than some {size // 2048} KiB cannot be added",
        "keep arguments short, as the id of a row or the path of a file, or ask the host for 4 MiB",
    )


def _transactions(facts: MySQLFacts) -> CheckResult:
    seconds = facts.oldest_transaction_seconds
    if facts.holds_new:
        return warning(
            "transactions",
            "an open transaction of another program holds new tasks",
            "no worker can take them up before it ends",
            "find it with SHOW FULL PROCESSLIST and KILL its connection; none there: XA RECOVER, and XA ROLLBACK",
        )
    if seconds is None:
        return unknown(
            "transactions",
            "open transactions cannot be seen: that takes the right PROCESS",
            "one that stands open for hours makes every claim slower",
        )
    if seconds <= MAX_TRANSACTION_SECONDS:
        return ok("transactions", "none stands open for long")
    return warning(
        "transactions",
        f"one stands open since {seconds:.0f} s",
        "the server keeps all that was deleted since then, and every claim reads past it",
        "find it with SHOW FULL PROCESSLIST and end the program, or KILL its connection",
    )
