"""The tables of one queue as data, and the SQL that creates them on each database.

`make schema` writes the two files at the top of the repository from here. Workers do not import this file:
`tables.py` has what a run needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .words import SCHEMA_VERSION

TABLES = """
-- The queue. A producer needs no more than:
--   INSERT INTO jobs_queue (task, args, group_id, priority)
--   VALUES ('tasks.send_letter', '{"to": "a@example.org"}', 3, 10)
TABLE jobs_queue, checked
id           serial
task         text255  -       the callable: module.function or module.Class.method
args         long     null    JSON: an object (keywords) or an array (positions), at most 1 MiB
group_id     group    0       a worker may be restricted to some groups
priority     i32      0       smaller runs sooner, equal ones in order of id
status       u8       0       0 new, 1 in progress, 2 done, 3 error, 4 fatal, 5 waiting, 7 cancelled
attempts     u32      0       times started
max_attempts u32      null    NULL: as the worker is set
due_at       due      null    status 3, 5: when it becomes new, 1: when the lease ends
claim        u64      null    status 1: the token of the claim that holds the row
unique_key   key      null    only one row may hold a key, binary: compared byte by byte
error_text   text1000 null    the last error, NULL once it succeeds
created_at   instant  now
started_at   instant  null    status 1 without it: claimed, not started
finished_at  instant  null
updated_at   instant  touched status 0: ready since
version      u64      null    of what the task is about: a rerun with an older one changes nothing
stages       text     null    of a pipeline: a JSON array of what runs one after the other
stage        u16      0       how many of those are over: task, args and the rest are the next one's
awaited      u8       0       1: other tasks may wait for it, see jobs_queue_dependencies
result       long     null    status 2: what it returned, as JSON, at most 64 KiB
progress     text     null    how far it has come, as {"done": 3, "total": 10, "text": "reading"}
UNIQUE unique_key (unique_key)
INDEX claim_by_group (status, group_id, priority, id)
INDEX claim_any_group (status, priority, id)
INDEX wake_due (status, due_at)

-- The archive, for mode `move`. It has a key of its own, since old servers give an id again after a restart.
TABLE jobs_queue_done
done_id      serial
id           u64      -
COLUMNS as of the queue
INDEX show_by_id (id)

-- Which tasks wait for which: one row for each pair, until the parent is done.
TABLE jobs_queue_dependencies, checked
parent_id    id       -       has to be done, before
child_id     id       -       this one may start
KEY (parent_id, child_id)
INDEX by_child (child_id, parent_id)

-- The last run of each crontab line: one row for each host and groups.
TABLE jobs_queue_workers
host         ascii255 -
group_ids    ascii255 -       such as '3,5,6', or 'all'
pid          u32      -
started_at   instant  null
ended_at     instant  null    NULL: it runs, or it was killed
reason       text20   null    why it ended
taken        u32      0       tasks that it took up: those below, and those that failed
done         u32      0
fatal        u32      0
lost         u32      0       taken over by another worker meanwhile
released     u32      0       claimed, and released unstarted
previous_started_at instant null of the run before: how often cron runs it
KEY (host, group_ids)

-- The workers at work now: each from its first task on until it ends, one that waits for tasks from its start on.
TABLE jobs_queue_processes
number       u32      -       random: a claim of its tasks is number * 4294967296 and more
host         ascii255 -
group_ids    ascii255 -       such as '3,5,6', or 'all'
pid          u32      -
identity     ascii100 ''      distinguishes it from later ones
started_at   instant  now
seen_at      instant  now     when it wrote the counts so far
ended_at     instant  null    when a run on its host found that the process is gone
taken        u32      0       these as in jobs_queue_workers
done         u32      0
failed       u32      0
fatal        u32      0
lost         u32      0
released     u32      0
KEY (number)

-- Groups whose tasks are not claimed for now.
TABLE jobs_queue_paused, checked
group_id     u32      -       4294967295: all groups
paused_at    instant  now
KEY (group_id)

-- Periodic tasks. At next_at a worker adds one, with the unique_key 'schedule:' and the name, and sets the next time.
TABLE jobs_queue_schedules, checked
name         text200  -
task         text255  -
args         long     null
group_id     group    0
priority     i32      0
every_seconds u32     null    either this, or
cron         text255  null    this, as */5 * * * *, in
timezone     text64   'UTC'   this time zone
next_at      time     now
created_at   instant  now
KEY (name)
INDEX look_for_due (next_at)

-- What was done, by the hour in which it ended. Workers add to it once a minute, and at the end of a run.
TABLE jobs_queue_stats
hour         hour     hour
group_id     u32      -
task         text255  -       empty: names that nothing can be called by
begun        u64      0       tasks that were started for the first time
attempts     u64      0       starts in all
done         u64      0
failed       u64      0       attempts that failed, the fatal ones too
fatal        u64      0
lost         u64      0       attempts whose worker died
ran_seconds  double   0       sum of the attempts that are done or failed
slowest_seconds double 0
waited_seconds double 0       sum of the same attempts: from ready to started
longest_wait_seconds double 0
KEY (hour, group_id, task)

-- What is remembered of this queue: findings that a person has accepted, what `client.py check --mail` reported, the
-- keys of requests that added tasks over HTTP, and how the last task of each schedule ended.
TABLE jobs_queue_notes
name         ascii190 -
value        text     -
noted_at     instant  now
KEY (name)

-- The versions of these tables that were applied, the greatest one counts.
TABLE jobs_queue_schema
version      version  -
applied_at   instant  now
KEY (version)
"""
"""A line is a column: its name, type word, default and comment.

Type words: u8 to u64 are whole numbers from 0, i32 has a sign; textN and asciiN have at most N characters. Producers
may write a `due` or a `time`; only the store writes an `instant`. Default words: `-` is NOT NULL without a default,
each UPDATE sets `touched`, and `hour` is a default only where the database would invent one. A `checked` table has
CHECKs.
"""


class Kind(NamedTuple):
    """A kind of database: its SQL for each type word and default, and what else differs."""

    about: str
    types: Mapping[str, str]
    defaults: Mapping[str, str]
    checks: Mapping[str, str]
    """CHECKs for what types do not refuse, by type word; `{c}` stands for the column."""
    first_version: str
    ends: Mapping[str, str]
    """What follows the columns of a table; `*`: of every other table."""
    unless_null: str = ""
    has_indexes_inside: bool = False
    has_comments: bool = False
    own: Mapping[str, str] = {}
    """Statements after a table, instead of its indexes."""


MYSQL = Kind(
    """-- taskserver: the tables of one queue, for MySQL 5.7 and later and MariaDB 10.3 and later.
--
-- `client.py init` makes them under the configured name. By hand: load this file in phpMyAdmin or with
-- `mysql DATABASE < schema.sql`, and for another name than jobs_queue replace that word everywhere first.
-- Loading it again changes nothing.
--
-- Instants are TIMESTAMP(6): stored in UTC whatever time zone a session has, and set by the database's own clock.
""",
    {"serial": "BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY", "id": "BIGINT UNSIGNED", "u64": "BIGINT UNSIGNED"}
    | {"u8": "TINYINT UNSIGNED", "u16": "SMALLINT UNSIGNED", "i32": "INT", "double": "DOUBLE"}
    | dict.fromkeys(("u32", "group", "version"), "INT UNSIGNED")
    | {"instant": "TIMESTAMP(6)", "due": "TIMESTAMP(6)", "time": "TIMESTAMP(6)", "hour": "TIMESTAMP"}
    | {"textN": "VARCHAR({n})", "text": "TEXT", "long": "MEDIUMTEXT", "key": "VARBINARY(255)"}
    | {"asciiN": "VARCHAR({n}) CHARACTER SET ascii COLLATE ascii_bin"},
    # Without a default, old servers would change an `hour` with each UPDATE.
    {"now": "CURRENT_TIMESTAMP(6)", "touched": "CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)"}
    | {"hour": "CURRENT_TIMESTAMP"},
    {},
    "INSERT IGNORE INTO jobs_queue_schema (version) SELECT {} FROM DUAL WHERE {};",
    {"*": " ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"},
    has_indexes_inside=True,
    has_comments=True,
)
POSTGRESQL = Kind(
    """-- taskserver: the tables of one queue, for PostgreSQL 13 and later.
--
-- `client.py init` makes them under the configured name. By hand: `psql DATABASE -f schema.postgresql.sql`, and for
-- another name than jobs_queue replace that word everywhere first. Loading it again changes nothing.
--
-- The tables are those of schema.sql, and mean the same. PostgreSQL has no unsigned numbers, so CHECKs stand for their
-- ranges; another CHECK keeps out instants that programs cannot read. Texts are compared byte by byte (COLLATE "C").
""",
    {"serial": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY", "u8": "SMALLINT", "u16": "INTEGER"}
    | dict.fromkeys(("id", "u64", "u32", "group"), "BIGINT")
    | {"i32": "INTEGER", "version": "INTEGER", "double": "DOUBLE PRECISION"}
    | dict.fromkeys(("instant", "due", "time", "hour"), "TIMESTAMPTZ")
    | dict.fromkeys(("textN", "asciiN"), 'VARCHAR({n}) COLLATE "C"')
    | dict.fromkeys(("text", "long", "key"), 'TEXT COLLATE "C"'),
    dict.fromkeys(("now", "touched", "hour"), "statement_timestamp()"),
    {"u8": "{c} BETWEEN 0 AND 255", "u16": "{c} BETWEEN 0 AND 65535", "u32": "{c} BETWEEN 0 AND 4294967295"}
    | {"group": "{c} BETWEEN 0 AND 4294967294", "id": "{c} >= 0", "u64": "{c} >= 0", "key": "octet_length({c}) <= 255"}
    | dict.fromkeys(("instant", "due", "time"), "{c} BETWEEN '0001-01-02 00:00:00+00' AND '9999-12-30 00:00:00+00'"),
    "INSERT INTO jobs_queue_schema (version) SELECT {} WHERE {}\nON CONFLICT DO NOTHING;",
    {"jobs_queue": " WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)", "*": ""},
    own={
        "jobs_queue": """
CREATE UNIQUE INDEX IF NOT EXISTS jobs_queue_unique_key ON jobs_queue (unique_key) WHERE unique_key IS NOT NULL;

-- The status is written in another way for each index. So a write to one row, which names its id and its status, cannot
-- be led to read an index of many rows; and a claim by group cannot be led to read the tasks of all groups.
CREATE INDEX IF NOT EXISTS jobs_queue_claim_by_group ON jobs_queue (group_id, priority, id) WHERE 0 + status = 0;
CREATE INDEX IF NOT EXISTS jobs_queue_claim_any_group ON jobs_queue (priority, id) WHERE status - 0 = 0;
CREATE INDEX IF NOT EXISTS jobs_queue_by_status ON jobs_queue ((0 + status), group_id, id) WHERE 0 + status > 0;
CREATE INDEX IF NOT EXISTS jobs_queue_wake_due ON jobs_queue ((status + 0), due_at, id);

-- Notify waiting workers of new tasks, on the channel of the queue's name. A worker that waits has the lock; while none
-- has it, an INSERT sends nothing: notices make the commits of all producers wait for one another.
DO $do$
  BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'jobs_queue'::regclass AND tgname = 'notify_added') THEN
      CREATE OR REPLACE FUNCTION jobs_queue_notify() RETURNS trigger LANGUAGE plpgsql AS
        $body$ BEGIN PERFORM pg_notify(TG_TABLE_NAME, ''); RETURN NULL; END $body$;
      CREATE TRIGGER notify_added AFTER INSERT ON jobs_queue
        WHEN (NOT pg_try_advisory_xact_lock_shared('jobs_queue'::regclass::integer, 0))
        EXECUTE FUNCTION jobs_queue_notify();
    END IF;
  END $do$;
"""
    },
)
_WHOLE = "typeof({c}) = 'integer' AND {c} "
# A valid date and time in UTC, perhaps with a fraction of at most six digits.
_IS_TIME = """{c} GLOB '[0-9]*' AND datetime(substr({c}, 1, 19), '0 days') IS substr({c}, 1, 19)
               AND (length({c}) = 19 OR length({c}) BETWEEN 21 AND 26 AND rtrim(substr({c}, 20), '0123456789') = '.')"""
SQLITE = Kind(
    "",
    {"serial": "INTEGER PRIMARY KEY AUTOINCREMENT", "double": "REAL"}
    | dict.fromkeys(("id", "u8", "u16", "u32", "u64", "i32", "group", "version"), "INTEGER")
    | dict.fromkeys(("instant", "due", "time", "hour", "textN", "asciiN", "text", "long", "key"), "TEXT"),
    dict.fromkeys(("now", "touched"), "(strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')"),
    {"u8": f"{_WHOLE}BETWEEN 0 AND 255", "u16": f"{_WHOLE}BETWEEN 0 AND 65535", "id": f"{_WHOLE}>= 0"}
    | {"u32": f"{_WHOLE}BETWEEN 0 AND 4294967295", "group": f"{_WHOLE}BETWEEN 0 AND 4294967294"}
    | {"i32": f"{_WHOLE}BETWEEN -2147483648 AND 2147483647"}
    | {"text255": "length({c}) <= 255", "key": "length(CAST({c} AS BLOB)) <= 255"}
    # The end of a lease is not checked: a worker writes it, and the check would double the cost of a claim's write.
    | {"due": f"status = 1 OR {_IS_TIME}", "time": _IS_TIME},
    "INSERT OR IGNORE INTO jobs_queue_schema (version) SELECT {} WHERE {};",
    {"jobs_queue_dependencies": " WITHOUT ROWID", "*": ""},
    unless_null="{c} IS NULL OR ",
    own={
        # This index has only new rows, not running ones, so each commit writes one page less.
        "jobs_queue": """
CREATE UNIQUE INDEX IF NOT EXISTS jobs_queue_unique_key ON jobs_queue (unique_key);
CREATE INDEX IF NOT EXISTS jobs_queue_claim_by_group ON jobs_queue (status, group_id, priority, id);
CREATE INDEX IF NOT EXISTS jobs_queue_claim_any_group ON jobs_queue (priority, id) WHERE status = 0;
CREATE INDEX IF NOT EXISTS jobs_queue_wake_due ON jobs_queue (status, due_at);
"""
    },
)
KINDS = {"mysql": MYSQL, "postgresql": POSTGRESQL, "sqlite": SQLITE}


# ---- the SQL that creates them


class Column(NamedTuple):
    """A column of a table."""

    name: str
    word: str
    default: str = "-"
    comment: str = ""


class Table(NamedTuple):
    """A table of TABLES."""

    name: str
    about: list[str]
    columns: list[Column]
    key: str
    indexes: list[list[str]]
    """INDEX or UNIQUE, its name, its columns."""
    is_checked: bool


def tables() -> list[Table]:
    """The tables in order of creation; the first is the queue."""
    found: list[Table] = []
    for section in TABLES.strip().split("\n\n"):
        about = [line for line in section.splitlines() if line[:2] == "--"]
        table = Table("", about, [], "", [], False)
        for line in section.splitlines()[len(about) :]:
            word, _, rest = line.partition(" ")
            if word == "TABLE":
                name, _, checked = rest.partition(", ")
                table = table._replace(name=name, is_checked=bool(checked))
            elif word == "KEY":
                table = table._replace(key=rest)
            elif word in ("INDEX", "UNIQUE"):
                table.indexes.append(line.split(None, 2))
            elif word == "COLUMNS":
                table.columns.extend(map(_archived, found[0].columns[1:]))
            else:
                table.columns.append(Column(*line.split(None, 3)))
        found.append(table)
    return found


def _archived(column: Column) -> Column:
    default = {"status": "2", "updated_at": "now"}.get(column.name, column.default)
    return column._replace(default=default, comment="")


def script(name: str) -> str:
    """The schema file for a kind of database, which people can read and apply."""
    kind = KINDS[name]
    version = kind.first_version.format(SCHEMA_VERSION, "NOT EXISTS (SELECT * FROM jobs_queue_schema)")
    parts = [kind.about, *(_create(kind, table) for table in tables()), f"{ABOUT_VERSION}\n{version}\n"]
    return "\n".join(parts)


ABOUT_VERSION = (
    "-- Only where none is recorded: tables of an older version are upgraded by client.py init, not by this file."
)


def _create(kind: Kind, table: Table) -> str:
    """The statements and comments for one table."""
    lines = [(_definition(kind, column, table.is_checked), column.comment) for column in table.columns]
    if table.key:
        lines.append((f"PRIMARY KEY {table.key}", ""))
    after = kind.own.get(table.name, "")
    for word, name, columns in table.indexes:
        unique = "UNIQUE " if word == "UNIQUE" else ""
        if kind.has_indexes_inside:
            lines.append((f"{unique}KEY {name} {columns}", ""))
        elif table.name not in kind.own:
            after += f"CREATE {unique}INDEX IF NOT EXISTS {table.name}_{name} ON {table.name} {columns};\n"
    body = [f"  {sql}," for sql, _ in lines]
    body[-1] = body[-1].rstrip(",")
    if kind.has_comments:
        body = [f"{sql + ' ':<52} -- {what}" if what else sql for sql, (_, what) in zip(body, lines, strict=True)]
    end = f"){kind.ends.get(table.name, kind.ends['*'])};"
    return "\n".join([*table.about, f"CREATE TABLE IF NOT EXISTS {table.name} (", *body, end, after])


def indexes(name: str, table: Table) -> list[tuple[str, bool, str]]:
    """The indexes of a table on a kind of database: name, whether it is unique, columns."""
    pattern = r"(UNIQUE )?(?:KEY|INDEX IF NOT EXISTS) (\w+) (?:ON \w+ )?\((.*)\)(?: WHERE .*)?[,;]?$"
    found = re.findall(pattern, _create(KINDS[name], table), re.MULTILINE)
    return [(index, bool(unique), columns) for unique, index, columns in found]


MAX_LENGTHS = {"key": 255, "text": 65_535, "long": 16_777_215}


def max_length(column: Column) -> int:
    """The maximum length of a text column; meaningless for other columns."""
    return MAX_LENGTHS.get(column.word) or int(re.sub(r"\D", "", column.word) or 0)


def definition(name: str, table: Table, column: Column) -> str:
    """A column's SQL on a kind of database, in one line."""
    return " ".join(_definition(KINDS[name], column, table.is_checked).split())


def _definition(kind: Kind, column: Column, is_checked: bool) -> str:
    """A column's line in CREATE TABLE."""
    name, word, default, _ = column
    letters = word.rstrip("0123456789")
    sql_type = kind.types[word] if word in kind.types else kind.types[f"{letters}N"].format(n=word[len(letters) :])
    parts = [f"{name:<12} {sql_type}".ljust(28)]
    if default == "null":
        parts.append("NULL DEFAULT NULL")
    elif word != "serial":
        sql = kind.defaults.get(default, "" if default in ("-", "hour") else default)
        parts.append(f"NOT NULL DEFAULT {sql}" if sql else "NOT NULL")
    if is_checked and word in kind.checks:
        condition = (kind.unless_null if default == "null" else "") + kind.checks[word]
        check = f"CHECK ({condition.format(c=name)})"
        parts.append(check if len(" ".join([*parts, check])) < 110 else f"\n{' ' * 15}{check}")
    return re.sub(" +\n", "\n", " ".join(parts)).rstrip()
