"""The doctor of a database: what the checks in each dialect's `facts.FACTS` share. Also what its rebuilds share.

A check is a question, its judgement, why it matters and the fix. What this account may not see is unknown.
Nothing is changed: rights are tested by statements that match no row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import ConnectionLost, DatabaseError, Unavailable
from ..messages.finding import Finding, Level, critical, found, ok, unknown, warning
from ..messages.programs import CLIENT
from ..messages.text import age
from ..model.task import MODES
from ..settings.dsn import Dsn
from .table_faults import Fault, TableLooks, table_faults
from .words import HELPERS


class Asked(NamedTuple):
    """The input of a check."""

    database: Any
    """A database.Database: importing it here would be circular."""
    dsn: Dsn
    mode: str
    only_reads: bool = False
    """Whether it is for a read-only page, whose account may lack other rights."""


def ok_if(is_good: bool, words: str, level: Level = Level.WARNING, fix: str = "") -> Finding:
    """A finding: ok, or of this level with the same words."""
    return ok(words) if is_good else found(level, words, fix=fix)


class Check(NamedTuple):
    """A check of a database."""

    name: str
    ask: str | Callable[[Asked], Any]
    """A SELECT or a function; its rows or its result are the answer."""
    judge: Callable[[Any], Finding | None]
    """Its finding's `why` and `fix` replace those of the check; None: there is nothing to say."""
    why: str = ""
    fix: str = ""
    is_acceptable: bool = True
    """Whether a person may accept its findings, because workers can do without it."""


def examine(asked: Asked) -> Iterator[Finding]:
    """The finding of each check of this database. Raises Unavailable."""
    for check in asked.database.dialect.facts().checks:
        try:
            answer = asked.database.fetch(check.ask) if isinstance(check.ask, str) else check.ask(asked)
            finding = check.judge(answer)
        except Unavailable:
            raise
        except (DatabaseError, LookupError, ValueError, TypeError) as error:  # a proxy may answer anything
            is_denied = isinstance(error, DatabaseError) and asked.database.dialect.facts().is_denied(error)
            finding = unknown(f"this account cannot see it{'' if is_denied else f': {error}'}")
        if finding is None:
            continue
        if finding.level is not Level.OK:
            fix = finding.fix or (check.fix if finding.level is not Level.UNKNOWN else "")
            finding = finding._replace(why=finding.why or check.why, fix=fix)
        yield finding._replace(name=check.name)


# ---- rights


class Right(NamedTuple):
    """What a worker does with one table."""

    verbs: str
    table: str
    column: str = "id"
    modes: Sequence[str] = MODES
    """The modes that need it."""
    what_for: str = ""


RIGHTS = (
    Right("SELECT", "table", "{columns}"),
    Right("UPDATE", "table", "priority"),
    Right("DELETE", "table", modes=("delete", "move"), what_for="the modes delete and move, and TASKSERVER_KEEP"),
    Right("INSERT", "done", modes=("move",), what_for="the mode move"),
    Right("SELECT INSERT UPDATE", "workers", "pid"),
    Right("SELECT", "paused", "group_id, paused_at"),
    Right("SELECT UPDATE", "schedules", "next_at"),
    Right("SELECT", "dependencies", "child_id"),
    Right("SELECT", "schema", "version"),
    Right("INSERT", "table", "task", (), "tasks that add tasks, and periodic ones"),
    Right("SELECT", "done", "id", (), f"{CLIENT} show"),
    Right("DELETE", "done", "id", (), "TASKSERVER_KEEP"),
    Right("DELETE", "workers", "host", (), "forgetting hosts that are gone"),
    Right("SELECT INSERT UPDATE DELETE", "processes", "taken", (), "the list of workers, quick returns of lost tasks"),
    Right("INSERT DELETE", "dependencies", "parent_id", (), "tasks that wait for others"),
    Right("SELECT INSERT UPDATE", "stats", "done", (), "stats"),
    Right("SELECT", "notes", "name", (), "what doctor and check accept"),
    Right("INSERT UPDATE DELETE", "notes", "value", (), f"{CLIENT} check --mail and --accept"),
)
TRIED = {
    "SELECT": "SELECT {column} FROM {{{table}}} WHERE 1 = 0",
    "INSERT": "INSERT INTO {{{table}}} ({column}) SELECT NULL FROM (SELECT 1 AS one) AS nothing WHERE 1 = 0",
    "UPDATE": "UPDATE {{{table}}} SET {column} = {column} WHERE 1 = 0",
    "DELETE": "DELETE FROM {{{table}}} WHERE 1 = 0",
}
"""Statements that need a right and change nothing: grants with roles and patterns are hard to read."""


def _is_denied(database: Any, sql: str) -> bool:
    try:
        (database.fetch if sql.startswith("SELECT") else database.change)(sql)
    except ConnectionLost:
        raise
    except DatabaseError as error:  # any other error is a fault of the tables
        return bool(database.dialect.facts().is_denied(error))
    return False


def _missing_rights(asked: Asked) -> tuple[Asked, list[tuple[str, Right]]]:
    """The rights that this account lacks."""
    missing = [
        (verb, right)
        for right in RIGHTS
        for verb in right.verbs.split()
        if _is_denied(asked.database, TRIED[verb].format(table=right.table, column=right.column))
    ]
    return asked, missing


def _judge_rights(answer: tuple[Asked, list[tuple[str, Right]]]) -> Finding:
    asked, missing = answer
    needed, optional = list[str](), list[str]()
    for verb, right in missing:
        words = f"{verb} on {asked.database.dialect.table}{'' if right.table == 'table' else f'_{right.table}'}"
        if asked.mode in right.modes:
            needed.append(words)
        else:
            optional.append(f"{words} (for {right.what_for})")
    if not needed:
        but = f", but not {', '.join(optional)}" if optional else ""
        return ok(f"this account may do all that a worker does{but}")
    words = f"this account may not {', '.join(needed)}"
    if asked.only_reads and any(verb == "UPDATE" and right.table == "table" for verb, right in missing):
        why = "this page, which only shows, can do without; workers with this account could do no work"
        return unknown(words, why, f"give workers an account of their own, and have {CLIENT} doctor look")
    return critical(words)


CHECK_RIGHTS = Check(
    "rights",
    _missing_rights,
    _judge_rights,
    "workers cannot do their work without that",
    "grant it in the host's panel, or as docs/security.md says",
    is_acceptable=False,
)


# ---- tables


class TableSize(NamedTuple):
    """A table, or the file of all, on the disk."""

    name: str
    size: int
    """In bytes, with the indexes."""
    used: int
    """About how many of these bytes a rebuild copies."""


def sizes_by(sql: str) -> Callable[[Any], list[TableSize]]:
    """The sizes of the queue's tables; `{ids}` in the SELECT stands for their names."""

    def sizes(database: Any) -> list[TableSize]:
        table = database.dialect.table
        names = [table, *(f"{table}_{name}" for name in HELPERS)]
        return [TableSize(*row) for row in database.fetch_ids(sql, names)]

    return sizes


class Rebuild(NamedTuple):
    """How `client.py compact` gives the disk space of deleted rows back."""

    sizes: Callable[[Any], Sequence[TableSize]]
    """The tables of a Database that it is for."""
    run: Callable[[Any, str], object]
    """Rebuilds one table of a Database, once. Raises DatabaseError if others hold it."""
    words: str
    bytes_a_second: int
    """A rough figure, for a forecast."""
    locks_writers: bool = False
    """Whether nobody can add, claim or finish a task meanwhile."""


class Facts(NamedTuple):
    """What `client.py doctor` and `client.py compact` need from a dialect."""

    checks: Sequence[Check]
    looks: TableLooks
    rebuilds: Callable[[Any], Sequence[Rebuild]]
    """What compacts a Database, in order."""
    is_denied: Callable[[DatabaseError], bool] = lambda error: False
    """Whether an error means that the account lacks a right."""


MAX_FAULTS_NAMED = 3


def _judge_tables(faults: Sequence[Fault]) -> Finding:
    if not faults:
        return ok("tables, keys and indexes are as this version makes them")
    more = len(faults) - MAX_FAULTS_NAMED
    words = "; ".join(f"{fault.table} {fault.what}" for fault in faults[:MAX_FAULTS_NAMED])
    words += f"; and {more} more" if more > 0 else ""
    fix = (
        f"keep a copy of the database, and run {CLIENT} init: it makes what it can, and names a statement for the rest"
    )
    if any(fault.is_of_other_program for fault in faults):
        fix = "set another TASKSERVER_TABLE"
    return critical(words, fix=fix)


def _deletion_blockers(asked: Asked) -> Any:
    sql = asked.database.dialect.facts().looks.deletion_blockers
    return asked.database.fetch(sql, [asked.database.dialect.table] * sql.count("?"))


def _judge_deletion_blockers(found: Sequence[Sequence[Any]]) -> Finding:
    what = ", ".join(str(what) for (what,) in found[:MAX_FAULTS_NAMED])
    return ok_if(not what, f"the queue has {what or 'no trigger or foreign key that keeps rows from being deleted'}")


CLAIM_INDEXES = ("claim_by_group", "claim_any_group")


def _claim_indexes(asked: Asked) -> list[str]:
    """The indexes that claims use, for some groups and for all; a lost index gives none."""
    claiming, used = asked.database.dialect.claiming, list[str]()
    for groups in ((1, 2), ()):
        with suppress(DatabaseError):
            used += claiming.indexes(asked.database, groups)
    return used


def _judge_claim_index(used: Sequence[str]) -> Finding:
    missing = [name for name in CLAIM_INDEXES if name not in used]
    words = f"do not read by {' and '.join(missing)}" if missing else f"read by {' and '.join(CLAIM_INDEXES)}"
    return ok_if(not missing, f"claims {words}", Level.CRITICAL)


OF_TABLES = (
    Check(
        "tables",
        lambda asked: table_faults(asked.database),
        _judge_tables,
        "claims would fail or be slow, or a key would not keep a task from being added twice",
        is_acceptable=False,
    ),
    Check(
        "claim_index",
        _claim_indexes,
        _judge_claim_index,
        "they would read, and lock, the whole queue",
        f"make that index as in the file of the schema, or run {CLIENT} init",
        is_acceptable=False,
    ),
    Check(
        "deletes",
        _deletion_blockers,
        _judge_deletion_blockers,
        "if that keeps a completed row from being deleted or moved, it is marked done, with a warning each time",
        "drop that, or see that it lets the worker's account delete rows",
    ),
)


# ---- checks that the servers share

FEW_CONNECTIONS, MAX_TRANSACTION_SECONDS, MAX_CLOCK_DIFFERENCE_SECONDS = 5, 300, 60
HOST_AWAY = "workers and pages move to the other hosts: start this one again, or name it right in TASKSERVER_DSN"
LISTENING = "anyone on the way between the hosts can read tasks and their arguments"


def judge_encrypted(words: str, is_safe: bool, option: str) -> Finding:
    """`option` is the DSN's option for TLS."""
    return ok_if(is_safe, words, fix=f"add ?{option} to TASKSERVER_DSN; if the server has no TLS, ask the host for it")


TAKES_NO_WRITES = ("read_only is ON", "session is read-only")
"""What a standby answers, in MySQL's and PostgreSQL's words."""


def judge_hosts(answer: tuple[int, list[str]], cluster: str = "") -> Finding | None:
    """`cluster` says that the server is a node of one."""
    count, away = answer
    named = "it is the only host" if count == 1 else f"{count - len(away)} of {count} hosts serve"
    are_standbys = all(any(words in one for words in TAKES_NO_WRITES) for one in away)
    words = "; ".join([f"{named}{cluster}", *away])
    return ok_if(are_standbys, words, fix=HOST_AWAY) if cluster or count > 1 else None


def check_version(ask: str, judge: Callable[[Sequence[Sequence[Any]]], Finding]) -> Check:
    """Whether the server's version is old."""
    return Check("version", ask, judge, "it may lack what claims need", "ask the host for a newer one")


def check_value(name: str, ask: str, judge: Callable[[str], Finding], why: str = "", fix: str = "") -> Check:
    """A check of the one value that `ask` selects."""

    def judge_rows(rows: Sequence[Sequence[Any]]) -> Finding:
        if rows[0][0] is None:
            raise ValueError("it is hidden")
        return judge(str(rows[0][0]))

    return Check(name, ask, judge_rows, why, fix)


def check_clock(clock: str, in_sql: str) -> Check:
    """Whether the server's clock is this host's; `clock` selects its seconds since 1970, `in_sql` is an instant."""

    def ahead(asked: Asked) -> float:
        before = time.time()
        there = float(asked.database.fetch_value(clock))
        return there - (before + time.time()) / 2

    def judge(seconds: float) -> Finding:
        words = f"the server's clock is {abs(seconds):.1f} s {'ahead of' if seconds > 0 else 'behind'} this host's"
        return ok_if(abs(seconds) <= MAX_CLOCK_DIFFERENCE_SECONDS, words)

    why = "the queue uses the server's clock only, but PHP or a task may take another time for now"
    fix = f"write due dates in SQL, such as {in_sql}, and ask your host to set its clocks"
    return Check("clock", ahead, judge, why, fix)


def check_connections(ask: str) -> Check:
    """The account's limit of connections; `ask` selects no row, 0 or NULL if it has none."""

    def judge(rows: Sequence[Sequence[Any]]) -> Finding:
        limit = int(rows[0][0] or 0) if rows else 0
        words = (
            f"at most {limit} for this account; a worker needs two for a transactional or a long task, three if both"
        )
        return ok_if(limit > FEW_CONNECTIONS, words) if limit else ok("the account has no limit of its own")

    why = "web pages need the rest: a page that gets none shows an error"
    return Check("connections", ask, judge, why, "start workers with --slots 1, and ask the host for more")


TRANSACTION = "nothing that was deleted since then is freed, and every claim reads past it; tasks may be held as well"


def judge_transaction(rows: Sequence[Sequence[Any]], way_to_end: str) -> Finding:
    """The oldest open transaction: its seconds, process id, account, state. `way_to_end` has `{0}` for the id."""
    if not rows or rows[0][0] is None or float(rows[0][0]) <= MAX_TRANSACTION_SECONDS:
        return ok("none stands open for long")
    seconds, number, account, state = rows[0]
    words = f"{account} has one open since {age(float(seconds))}, in the session {number} ({state})"
    return warning(words, fix=way_to_end.format(number))
