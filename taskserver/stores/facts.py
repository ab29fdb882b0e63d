"""The doctor of a database: each dialect's folder has a table of checks, `facts.FACTS`; here is what they share.

A check is a question, its judgement, why it matters and the fix. What the server refuses this account is unknown.
Nothing is changed: rights are tried by statements that match no row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import ConnectionLost, DatabaseError, TablesMissing, Unavailable
from ..messages.printable import age
from ..messages.programs import CLIENT
from ..model.task import MODES
from ..settings.dsn import Dsn

OK, UNKNOWN, WARNING, BROKEN = "ok", "unknown", "warning", "broken"


class Asked(NamedTuple):
    """What a check is asked about."""

    database: Any
    """A database.Database, whose file imports the dialect's, and that this one."""
    dsn: Dsn
    mode: str


class Found(NamedTuple):
    """A judgement; its own `fix` and `why` replace those of its check."""

    level: str
    words: str
    fix: str = ""
    why: str = ""


class Check(NamedTuple):
    """A check of a database."""

    name: str
    ask: str | Callable[[Asked], Any]
    """A SELECT, whose rows are the answer, or a function."""
    judge: Callable[[Any], Found]
    why: str = ""
    fix: str = ""


Finding = NamedTuple("Finding", [("name", str), ("level", str), ("found", str), ("why", str), ("fix", str)])  # noqa: UP014
"""The result of a check; `why` and `fix` are empty if it is ok."""


def examine(asked: Asked) -> Iterator[Finding]:
    """The findings of all checks of this database, one after the other. Raises Unavailable."""
    for check in asked.database.dialect.facts().checks:
        try:
            answer = asked.database.fetch(check.ask) if isinstance(check.ask, str) else check.ask(asked)
            found = check.judge(answer)
        except Unavailable:
            raise
        except (DatabaseError, LookupError, ValueError, TypeError) as error:  # a proxy may answer anything
            found = Found(UNKNOWN, f"this account cannot see it: {error}")
        is_ok = found.level == OK
        why, fix = ("", "") if is_ok else (found.why or check.why, found.fix or check.fix)
        yield Finding(check.name, found.level, found.words, why, fix if found.level != UNKNOWN or found.fix else "")


# ---- rights


class Right(NamedTuple):
    """A worker's right on one of the tables."""

    verb: str
    table: str
    column: str = ""
    needless_in: tuple[str, ...] = ()
    """Modes whose workers do without the right."""
    what_for: str = ""


def _spared(table: str, what_for: str, **columns: str) -> tuple[Right, ...]:
    return tuple(Right(verb, table, column, MODES, what_for) for verb, column in columns.items())


RIGHTS = (
    Right("SELECT", "table", "{columns}"),
    Right("UPDATE", "table", "priority"),
    Right("DELETE", "table", "", ("mark",), "the modes delete and move"),
    Right("INSERT", "done", "id", ("delete", "mark"), "the mode move"),
    *(Right(verb, "workers", "pid") for verb in ("SELECT", "INSERT", "UPDATE")),
    Right("SELECT", "paused", "group_id, paused_at"),
    Right("SELECT", "schedules", "name"),
    Right("UPDATE", "schedules", "next_at"),
    Right("SELECT", "dependencies", "child_id"),
    Right("SELECT", "schema", "version"),
    *_spared("table", "tasks that add tasks, and periodic ones", INSERT="task"),
    *_spared("done", f"{CLIENT} show", SELECT="id"),
    *_spared("processes", "the list of workers, and quick returns of a killed worker's tasks", SELECT="pid"),
    *_spared("processes", "the same", INSERT="pid", UPDATE="taken", DELETE=""),
    *_spared("dependencies", "tasks that wait for others", DELETE="", INSERT="parent_id"),
    *_spared("stats", "figures", SELECT="task", INSERT="task", UPDATE="done"),
    *_spared("notes", "what doctor and check accept", SELECT="name"),
    *_spared("notes", f"{CLIENT} check --mail and --accept", INSERT="name", UPDATE="value", DELETE=""),
)
TRIED = {
    "SELECT": "SELECT {column} FROM {{{table}}} WHERE 1 = 0",
    "INSERT": "INSERT INTO {{{table}}} ({column}) SELECT NULL FROM (SELECT 1 AS one) AS nothing WHERE 1 = 0",
    "UPDATE": "UPDATE {{{table}}} SET {column} = {column} WHERE 1 = 0",
    "DELETE": "DELETE FROM {{{table}}} WHERE 1 = 0",
}
"""Statements that need a right and change nothing: a server's grants, with roles and patterns, are hard to read."""


def _lacking(asked: Asked) -> tuple[list[str], list[str]]:
    """The rights that a worker of this mode lacks, and those that it lacks and does without."""
    database, (denied, spared) = asked.database, ([], [])
    for right in RIGHTS:
        sql = TRIED[right.verb].format(table=right.table, column=right.column)
        try:
            (database.fetch if right.verb == "SELECT" else database.change)(sql)
        except ConnectionLost:
            raise
        except DatabaseError as error:  # another error than a lacking right is a fault of the tables
            if database.dialect.facts().is_denied(error):
                name = f"{right.verb} on {table_name(database.dialect.table, right.table)}"
                if asked.mode in right.needless_in:
                    spared.append(f"{name} (for {right.what_for})")
                else:
                    denied.append(name)
    return denied, spared


def _judge_rights(lacking: tuple[list[str], list[str]]) -> Found:
    denied, spared = lacking
    if denied:
        return Found(BROKEN, f"this account may not {', '.join(denied)}")
    but = f", but not {', '.join(spared)}" if spared else ""
    return Found(OK, f"this account may do all that a worker does{but}")


CHECK_RIGHTS = Check(
    "rights",
    _lacking,
    _judge_rights,
    "workers cannot do their work without that",
    "grant it in the host's panel, or as docs/security.md says",
)


# ---- tables


class Fault(NamedTuple):
    """What is wrong with a table."""

    table: str
    what: str
    fix: str
    """A statement; empty if `client.py init` makes it."""


PRIMARY_KEYS = {
    "table": "id",
    "done": "done_id",
    "dependencies": "parent_id, child_id",
    "workers": "host, group_ids",
    "processes": "number",
    "paused": "group_id",
    "schedules": "name",
    "stats": "hour, group_id, task",
    "notes": "name",
    "schema": "version",
}
UNIQUE_KEY = "unique_key"
"""Without this index a key could stand twice, and its task would be done twice."""
QUEUE_INDEXES = {
    UNIQUE_KEY: UNIQUE_KEY,
    "claim_by_group": "status, group_id, priority, id",
    "claim_any_group": "status, priority, id",
    "wake_due": "status, due_at",
}
MAX_FAULTS_NAMED = 3


class TableLooks(NamedTuple):
    """How a dialect looks at tables."""

    indexes: str
    """A SELECT of table, index, whether it is unique, and its columns: of all tables, or only of ours."""
    flaws: str = ""
    """A SELECT of table, what is wrong, and the statement that fixes it; its marks are the queue and the archive."""
    hindrances: str = ""
    """A SELECT of what may keep rows of the queue from being deleted; its marks are the queue."""
    wanted: Mapping[str, str] = QUEUE_INDEXES
    prefix: str = ""
    """The begin of an index's name, in which `{}` stands for the table."""
    primary: str = "ALTER TABLE {table} ADD PRIMARY KEY ({columns})"
    drop: str = "DROP INDEX {name}"
    add: str = ""
    """The statement that makes an index; empty if `client.py init` does it."""


class Facts(NamedTuple):
    """What `client.py doctor` needs of a dialect."""

    checks: Sequence[Check]
    looks: TableLooks
    is_denied: Callable[[DatabaseError], bool] = lambda error: False
    """Whether an error means that the account lacks a right."""


def table_faults(database: Any) -> list[Fault]:
    """What tables lack of columns, keys and indexes, as after an import that was cut off. Raises DatabaseError."""
    looks, queue = database.dialect.facts().looks, database.dialect.table
    faults: list[Fault] = []
    found: dict[str, dict[str, tuple[bool, str]]] = {}
    for table, index, is_unique, columns in database.fetch(looks.indexes):
        found.setdefault(str(table).lower(), {})[str(index)] = (bool(is_unique), str(columns))
    for table, key in PRIMARY_KEYS.items():
        name = table_name(queue, table)
        try:
            database.fetch(f"SELECT {'{columns}' if table in ('table', 'done') else key} FROM {{{table}}} WHERE 1 = 0")
        except Unavailable:
            raise
        except DatabaseError as error:
            if not database.dialect.facts().is_denied(error):
                faults.append(Fault(name, "is missing" if isinstance(error, TablesMissing) else str(error), ""))
            continue
        indexes = found.get(name.lower(), {})
        if (True, key) not in indexes.values():
            fix = looks.primary.format(table=name, columns=key)
            faults.append(Fault(name, f"has no primary key ({key})", fix))
        if table == "table":
            faults += _of_indexes(looks, name, indexes)
    if looks.flaws:
        values = [queue, table_name(queue, "done")] * (looks.flaws.count("?") // 2)
        faults += [Fault(*map(str, row)) for row in database.fetch(looks.flaws, values)]
    return faults


def _of_indexes(looks: TableLooks, table: str, found: Mapping[str, tuple[bool, str]]) -> Iterator[Fault]:
    for wanted, columns in looks.wanted.items():
        name, is_unique = looks.prefix.format(table) + wanted, wanted == UNIQUE_KEY
        standing = found.get(name)
        if standing != (is_unique, columns):
            unique = "UNIQUE " if is_unique else ""
            drop = looks.drop.format(table=table, name=name) if standing else ""
            add = looks.add.format(table=table, name=name, unique=unique, columns=columns)
            is_now = f"is {'unique ' if standing[0] else ''}({standing[1]}), not" if standing else "is missing:"
            yield Fault(
                table, f"index {name} {is_now} {unique.lower()}({columns})", "; ".join(filter(None, (drop, add)))
            )


def table_name(queue: str, table: str) -> str:
    """The name of the table that statements call `table`, `done` and so on."""
    return queue if table == "table" else f"{queue}_{table}"


def _judge_tables(faults: Sequence[Fault]) -> Found:
    if not faults:
        return Found(OK, "tables, keys and indexes are as this version makes them")
    named = "; ".join(f"{fault.table} {fault.what}" for fault in faults[:MAX_FAULTS_NAMED])
    more = f"; and {len(faults) - MAX_FAULTS_NAMED} more" if len(faults) > MAX_FAULTS_NAMED else ""
    fixes = [f"{fault.fix};" for fault in faults[:MAX_FAULTS_NAMED] if fault.fix]
    return Found(BROKEN, named + more, f"run {' '.join([*fixes, f'{CLIENT} init'])}; keep a copy of the database first")


CHECK_TABLES = Check(
    "tables",
    lambda asked: table_faults(asked.database),
    _judge_tables,
    "claims would fail or be slow, or a key would not keep a task from being added twice",
)


def _look_at_queue(asked: Asked, sql: str) -> Any:
    return asked.database.fetch(sql, [asked.database.dialect.table] * sql.count("?"))


def _judge_hindrances(found: Sequence[Sequence[Any]]) -> Found:
    named = ", ".join(str(what) for (what,) in found[:MAX_FAULTS_NAMED])
    return Found(WARNING, f"the queue has {named}") if named else Found(OK, "nothing keeps rows from being deleted")


CHECK_DELETES = Check(
    "deletes",
    lambda asked: _look_at_queue(asked, asked.database.dialect.facts().looks.hindrances),
    _judge_hindrances,
    "if that keeps a completed row from being deleted or moved, it is marked done, with a warning each time",
    "drop that, or see that it lets the worker's account delete rows",
)
CLAIM_INDEXES = ("claim_by_group", "claim_any_group")


def _claim_indexes(asked: Asked) -> list[str]:
    """The indexes by which claims read the queue, of some groups and of all. An index that is lost gives none."""
    claiming, used = asked.database.dialect.claiming, list[str]()
    for groups in ((1, 2), ()):
        with suppress(DatabaseError):
            used += claiming.indexes(asked.database, groups)
    return used


def _judge_claim_index(used: Sequence[str]) -> Found:
    missing = [name for name in CLAIM_INDEXES if name not in used]
    if not missing:
        return Found(OK, f"claims read by {' and '.join(CLAIM_INDEXES)}")
    return Found(BROKEN, f"claims do not read by {' and '.join(missing)}")


CHECK_CLAIM_INDEX = Check(
    "claim_index",
    _claim_indexes,
    _judge_claim_index,
    "they would read, and lock, the whole queue",
    f"make that index as in the file of the schema, or run {CLIENT} init",
)


FEW_CONNECTIONS, MIN_WAIT_SECONDS, MAX_TRANSACTION_SECONDS, MAX_CLOCK_DIFFERENCE_SECONDS = 5, 20, 300, 60


def judge_encrypted(words: str, is_safe: bool, option: str) -> Found:
    """Whether nobody between the hosts can listen in; `option` of the DSN asks for TLS."""
    fix = f"add ?{option} to TASKSERVER_DSN; if the server has no TLS, ask the host for it"
    return Found(OK if is_safe else WARNING, words, fix)


LISTENING = "anyone on the way between the hosts can read tasks and their arguments"


def check_clock(clock: str, in_sql: str) -> Check:
    """Whether the server's clock is this host's; `clock` selects its seconds since 1970, `in_sql` is an instant."""

    def ahead(asked: Asked) -> float:
        before = time.time()
        there = float(asked.database.fetch_value(clock))
        return there - (before + time.time()) / 2

    def judge(seconds: float) -> Found:
        if abs(seconds) <= MAX_CLOCK_DIFFERENCE_SECONDS:
            return Found(OK, f"the server's clock and this host's are {abs(seconds):.1f} s apart")
        which = "ahead of" if seconds > 0 else "behind"
        return Found(WARNING, f"the server's clock is {abs(seconds):.0f} s {which} this host's")

    why = "the queue uses the server's clock only, but PHP or a task may take another time for now"
    return Check(
        "clock", ahead, judge, why, f"write due dates in SQL, as {in_sql}, and ask your host to set its clocks"
    )


def judge_wait_timeout(seconds: float) -> Found:
    """How long the server keeps a connection that is idle; 0: for ever."""
    if not seconds:
        return Found(OK, "the server drops no connection for being idle")
    words = f"the server drops connections that are idle for {seconds:g} s"
    return Found(OK, f"{words}; workers connect again") if seconds >= MIN_WAIT_SECONDS else Found(WARNING, words)


WAIT_TIMEOUT = (
    "workers connect again each time, which costs, and a page of yours may not",
    "connect in pages right before the INSERT, and ask the host for 60 s or more",
)


def judge_account_limit(limit: int) -> Found:
    """How many connections the account may have at once."""
    words = f"at most {limit} for this account; a worker uses two while a task is long"
    return Found(OK if limit > FEW_CONNECTIONS else WARNING, words)


ACCOUNT_LIMIT = (
    "web pages need the rest: a page that gets none shows an error",
    "start workers with --slots 1, and ask the host for more",
)


def judge_transaction(rows: Sequence[Sequence[Any]], way_to_end: str) -> Found:
    """The oldest open transaction: its seconds, process id, account and state. `way_to_end` has a `{0}` for the id."""
    if not rows or rows[0][0] is None or float(rows[0][0]) <= MAX_TRANSACTION_SECONDS:
        return Found(OK, "none stands open for long")
    seconds, number, account, state = rows[0]
    words = f"{account} has one open since {age(float(seconds))}, in the session {number} ({state})"
    return Found(WARNING, words, way_to_end.format(number))


TRANSACTION = "nothing that was deleted since then is freed, and every claim reads past it; tasks may be held as well"
READ_ONLY = Found(
    WARNING,
    "",
    "wait for the end of its maintenance, or ask the host",
    "no transaction may write: no task can be added",
)
