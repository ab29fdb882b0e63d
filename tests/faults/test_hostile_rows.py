"""Rows as no honest producer writes them: odd bytes, wrong types and huge values in every column.

They are written by SQL, as a web script with bugs would: on MySQL in a session that takes anything (sql_mode '',
latin1). Then worker.py runs as a process, and client.py looks at what it left: a bad row becomes fatal with a clear
error_text, and stops nothing else.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple, NoReturn

import psycopg
import pymysql
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taskserver.cli.client import main as client_main
from tests.support.databases import EACH_DATABASE
from tests.support.postgresql import connection_in_utc
from tests.support.queues import Queue

MEBIBYTE = 1024 * 1024
MOST_UNSIGNED = 2**32 - 1
MOST_SIGNED = 2**31 - 1
MAX_LINE = 12_000
"""Characters of a line of cron's mail; rows may hold names of any length."""

TASKS = '''
"""Takes anything and writes it down in ASCII, so that nothing but the row itself can make it fail."""

import json
from pathlib import Path

NOTES = Path(__file__).resolve().parent / "notes"


def note(*texts, **named):
    with NOTES.open("a") as file:
        file.write(json.dumps(texts[0] if texts and len(str(texts[0])) < 200 else None) + "\\n")


def only(text):
    note(text)
'''


class Sql(NamedTuple):
    """An expression as it stands; `{past}` and `{future}` are instants an hour and years away."""

    text: str


class Raw(NamedTuple):
    """Bytes said to be text: kept as they are on SQLite, where they may be no UTF-8; latin1 on servers."""

    content: bytes


Columns = Mapping[str, object]
Row = tuple[Any, ...]
STATUS, ATTEMPTS, DUE_AT, ERROR_TEXT, STARTED_AT = 4, 5, 7, 10, 12
"""Places of columns in what WebScript.read gives."""

PAST, FUTURE = Sql("{past}"), Sql("{future}")
CONTROLS = "".join(map(chr, [*range(1, 32), *range(0x7F, 0xA0), 0x202E, 0x2028, 0x2066, 0xFEFF, 0xE0001]))

FATAL: dict[str, Columns] = {
    "a name of control characters": {"task": CONTROLS},
    "a name of high bytes": {"task": Raw(bytes(range(128, 256)))},
    "a name that forges a line": {"task": "tasks.x\nworker.py: all is well"},
    "a name that a terminal obeys": {"task": "tasks.\x1b]0;owned\x07\x1b[2J\x9b31m\r"},
    "an empty name": {"task": ""},
    "a name with a Cyrillic letter": {"task": "t\u0430sks.note"},
    "a way through a function": {"task": "tasks.note.__globals__"},
    "a program": {"task": "os.system", "args": '["true"]'},
    "a name of 255 characters": {"task": "tasks." + "n" * 249},
    "arguments 200,000 deep": {"args": "[" * 200_000 + "]" * 200_000},
    "arguments that never end": {"args": '{"a":' * 200_000},
    "one mebibyte and a byte": {"args": f'["{"x" * (MEBIBYTE - 3)}"]'},
    "NaN": {"args": "[NaN]"},
    "a number too large": {"args": "[1e999]"},
    "odd keys that do not fit": {"task": "tasks.only", "args": '{"": 1, "\\u001b[2J": 2, "\\ud800": 6}'},
    "empty arguments": {"args": ""},
    "what Python pickles": {"args": Raw(b"cos\nsystem\n(S'true'\ntR.")},
    "control characters for arguments": {"args": CONTROLS},
    "max_attempts 0": {"max_attempts": 0},
    "attempts used up": {"attempts": 10},
    "attempts at their greatest": {"attempts": MOST_UNSIGNED},
}
RUNS: dict[str, Columns] = {
    "exactly one mebibyte": {"args": f'["{"x" * (MEBIBYTE - 4)}"]'},
    "escaped lone surrogates": {"args": '["\\ud800 \\udfff"]'},
    "odd keys": {"args": '{"": 1, "a b": 2, "self": 3, "__class__": 4, "\\u0000": 5, "\\ud800": 6}'},
    "the greatest of all": {"version": 2**63 - 1, "group_id": MOST_UNSIGNED - 1, "priority": MOST_SIGNED},
    "a key that a terminal obeys": {"unique_key": "\x1b[2J\n"},
    "a claim that ran out": {"status": 1, "claim": 12345, "due_at": PAST},
}
LEFT: dict[str, Columns] = {
    "a status that is none": {"status": 99, "due_at": PAST},
    "a fatal row that a terminal obeys": {"status": 4, "error_text": CONTROLS, "task": CONTROLS},
    "a claim that holds for years": {"status": 1, "claim": 12345, "due_at": FUTURE},
}


# ---- the web script


RAW = {
    "sqlite": "CAST(x'{}' AS TEXT)",
    "mysql": "_latin1 x'{}'",
}
TEXT = {
    "sqlite": "CAST(x'{}' AS TEXT)",
    "mysql": "CONVERT(x'{}' USING utf8mb4)",
}
BYTES = {"sqlite": "x'{}'", "mysql": "x'{}'", "postgresql": "CAST('\\x{}' AS bytea)"}
"""SQL for a value by its bytes in hexadecimal digits."""
SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now', '{}') || '000'"
INSTANTS_OF = {
    "sqlite": {"past": SQLITE_NOW.format("-1 hour"), "future": SQLITE_NOW.format("+8 years")},
    # A TIMESTAMP ends in 2038.
    "mysql": {"past": "NOW(6) - INTERVAL 1 HOUR", "future": "NOW(6) + INTERVAL 8 YEAR"},
    "postgresql": {"past": "now() - INTERVAL '1 hour'", "future": "now() + INTERVAL '8 years'"},
}


def literal(value: object, kind: str) -> str:
    """A value in the words of a store's SQL, written without a driver that would look after it."""
    match value:
        case None:
            return "NULL"
        case Sql():
            return value.text.format(**INSTANTS_OF[kind])
        case Raw() if kind == "postgresql":
            return _escaped(value.content.decode("latin1"))
        case str() if kind == "postgresql":
            return _escaped(value)
        case Raw():
            return RAW[kind].format(value.content.hex())
        case str():
            return TEXT[kind].format(value.encode("utf-8", "surrogatepass").hex())
        case bytes():
            return BYTES[kind].format(value.hex())
        case _:
            return repr(value)


def _escaped(text: str) -> str:
    """A literal of PostgreSQL's, which takes the type of its column."""
    return "E'" + "".join(f"\\x{byte:02x}" for byte in text.encode("utf-8", "surrogatepass")) + "'"


class WebScript:
    """Writes rows by statements of its own; what the database refuses is its own concern."""

    def __init__(self, queue: Queue) -> None:
        self.kind = queue.kind
        self._queue = queue
        self._connection: Any = CONNECT[queue.kind](queue)

    def write(self, columns: Columns, table: str = "jobs_queue") -> int | None:
        """The id of the new row; None where the database refused it."""
        names = ", ".join(columns)
        values = ", ".join(literal(value, self.kind) for value in columns.values())
        returning = " RETURNING *" if self.kind == "postgresql" else ""
        cursor = self._connection.cursor()
        try:
            cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({values}){returning}")
        except (sqlite3.Error, pymysql.MySQLError, psycopg.Error):
            return None
        # Of the tables beside the queue any answer but None will do.
        return int(cursor.fetchone()[0] if table == "jobs_queue" else 0) if returning else int(cursor.lastrowid)

    def read(self) -> dict[int, Row]:
        """Every column of every row but the key, by id; texts are the bytes that they are."""
        if self.kind == "mysql":
            rows = _read_mysql(self._queue)
        else:
            rows = self._connection.execute("SELECT * FROM jobs_queue").fetchall()
        return {int(row[0]): tuple(row[1:]) for row in rows}

    def empty(self) -> None:
        self._connection.cursor().execute("DELETE FROM jobs_queue")

    def close(self) -> None:
        self._connection.close()


def _connect_sqlite(queue: Queue) -> sqlite3.Connection:
    connection = sqlite3.connect(queue.path, isolation_level=None)
    connection.text_factory = bytes
    # Losing power is another test.
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _connect_mysql(queue: Queue) -> pymysql.Connection[Any]:
    connection = queue.connect()
    with connection.cursor() as cursor:
        cursor.execute("SET NAMES latin1")
        cursor.execute("SET sql_mode = '', foreign_key_checks = 0")
    return connection


CONNECT: Mapping[str, Callable[[Queue], Any]] = {
    "sqlite": _connect_sqlite,
    "mysql": _connect_mysql,
    "postgresql": lambda queue: connection_in_utc(queue.dsn),
}


def _read_mysql(queue: Queue) -> Sequence[Sequence[Any]]:
    connection = queue.connect()
    # The driver would stumble over texts that the server took and that are no UTF-8.
    connection.use_unicode = False
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM jobs_queue")
        return list(cursor.fetchall())


@contextmanager
def web_script(queue: Queue) -> Iterator[WebScript]:
    script = WebScript(queue)
    try:
        yield script
    finally:
        script.close()


# ---- what is seen


def text_of(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def notes_of(queue: Queue) -> list[object]:
    """What tasks wrote down; None for arguments that carry no word of ours."""
    return [json.loads(line) for line in queue.notes()]


def assert_ran_clean(queue: Queue, most_lines: int = 21, **env: str) -> None:
    """One run of worker.py survived: code 0, silence but for at most 20 fatal tasks and their count, all printable."""
    ended = queue.worker(**env)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert "Traceback" not in ended.stderr
    lines = ended.stderr.split("\n")
    assert lines.pop() == ""
    assert len(lines) <= most_lines, ended.stderr
    assert all(len(line) <= MAX_LINE for line in lines)
    assert all(line.isprintable() for line in lines), ended.stderr


def client_here(queue: Queue, *arguments: object) -> str:
    """client.py's command inside this process, as it is called for each row; what it printed."""
    output, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(errors):
        code = client_main(queue.folder, [str(argument) for argument in arguments])
    assert (code, errors.getvalue()) in ((0, ""), (0, "no worker ran yet: is worker.py in a crontab?\n")), arguments
    return output.getvalue()


def strict_json(text: str) -> Any:
    """The value of a text that every JSON parser takes."""

    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} is no JSON")

    assert text.isascii()
    return json.loads(text, parse_constant=refuse)


def assert_printable(text: str) -> None:
    lines = text.replace("\n", "")
    assert lines.isprintable(), [character for character in lines if not character.isprintable()][:10]


def assert_client_lives(queue: Queue, ids: Sequence[int] = ()) -> None:
    """The commands that read go through with code 0, obey nothing, and their JSON is JSON."""
    assert_printable(client_here(queue, "status"))
    strict_json(client_here(queue, "status", "--json"))
    assert_printable(client_here(queue, "list", "--limit", 1000))
    strict_json(client_here(queue, "list", "--limit", 1000, "--json"))
    for task_id in ids:
        assert_printable(client_here(queue, "show", task_id))
        assert strict_json(client_here(queue, "show", task_id, "--json"))["id"] == task_id


# ---- hand-picked rows


SHARING = """
from taskserver import task
note, only = (task(commit_every=50)(function) for function in (note, only))
"""


@EACH_DATABASE
@pytest.mark.parametrize("shares", [False, True], ids=["alone", "sharing commits"])
def test_every_hostile_row_becomes_what_it_must_and_the_good_ones_among_them_run_once(
    queue: Queue, shares: bool
) -> None:
    queue.define(SHARING if shares else "")
    ids: dict[str, int | None] = {}
    with web_script(queue) as script:
        for name, columns in (FATAL | RUNS | LEFT).items():
            ids[name] = script.write({"task": "tasks.note", "args": json.dumps([name])} | dict(columns))
            assert script.write({"task": "tasks.note", "args": json.dumps([f"good: {name}"])})
        before = script.read()
        assert_client_lives(queue)
        assert_ran_clean(queue)
        after = script.read()
        assert_client_lives(queue, sorted(after))
    for name, row_id in ids.items():
        if row_id is not None:  # else the database refused it
            now = after.get(row_id)
            assert (now is None) == (name in RUNS), name
            if name in FATAL and now is not None:
                text = text_of(now[ERROR_TEXT])
                assert now[STATUS] == 4, name
                assert text.startswith("BadTask: "), name
                assert not now[STARTED_AT] or now[ATTEMPTS] == before[row_id][ATTEMPTS], name  # started with its round
            assert name not in LEFT or now == before[row_id], name
    notes = notes_of(queue)
    assert all(notes.count(f"good: {name}") == 1 for name in ids)
    assert sum(row_id is None for row_id in ids.values()) <= 3


def test_two_hundred_bad_rows_at_the_head_of_the_queue_stop_no_good_one_behind_them(queue: Queue) -> None:
    """More than one claim, so that a run which gave up on a claim of bad rows would show."""
    with web_script(queue) as script:
        for number in range(200):
            script.write({"task": f"tasks.\x1b[2J{number}", "args": Raw(b"\xff"), "priority": -1})
        script.write({"task": "tasks.note", "args": '["last"]'})
        assert_ran_clean(queue)
    assert notes_of(queue) == ["last"]
    assert queue.statuses() == [4] * 200


# ---- the tables beside the queue

WORST = [
    CONTROLS,
    Raw(bytes(range(128, 256))),
    b"\xff\x00\x1b[2J",
    "",
    "\ud800",
    -1,
    0.5,
    MOST_UNSIGNED + 1,
    2**64,
    10**100,
    Sql("9e999"),
    "x" * 300,
    PAST,
    Sql("'0000-00-00 00:00:00'"),
    "2020-99-99 99:99:99\x1b[2J",
]
HONEST: dict[str, dict[str, object]] = {
    "schedules": {
        "name": "nightly",
        "task": "tasks.note",
        "args": '["night"]',
        "group_id": 0,
        "priority": 0,
        "every_seconds": 60,
        "cron": None,
        "timezone": "UTC",
        "next_at": PAST,
        "created_at": PAST,
    },
    "stats": {
        "hour": PAST,
        "group_id": 0,
        "task": "tasks.note",
        "begun": 1,
        "attempts": 1,
        "done": 1,
        "failed": 0,
        "fatal": 0,
        "lost": 0,
        "ran_seconds": 1.5,
        "slowest_seconds": 1.5,
        "waited_seconds": 1.5,
        "longest_wait_seconds": 1.5,
    },
    "paused": {"group_id": 77, "paused_at": PAST},
    "notes": {"name": "accepted fatal", "value": "x", "noted_at": PAST},
}


@pytest.mark.parametrize("table", HONEST)
def test_a_run_survives_hostile_rows_in_the_tables_beside_the_queue(queue: Queue, table: str) -> None:
    """An honest row with one hostile column, for each column and each of the worst values."""
    honest = HONEST[table]
    with web_script(queue) as script:
        written = 0
        for number, (column, value) in enumerate((column, value) for column in honest for value in WORST):
            # Each in an hour, under a name and a group of its own: rows are told apart by those.
            own = {"name": f"n{number}", "group_id": number + 1, "hour": Sql("{past}")}
            row = honest | {name: value for name, value in own.items() if name in honest} | {column: value}
            written += script.write(row, f"jobs_queue_{table}") is not None
        assert written >= len(honest)
        # MySQL without strict mode makes the group that pauses all of a number that is too large.
        queue.sql("DELETE FROM jobs_queue_paused WHERE group_id = 4294967295")
        assert script.write({"task": "tasks.note", "args": '["good"]', "group_id": 9999})
        assert_ran_clean(queue, most_lines=written)  # each schedule that can be none is told
        assert_client_lives(queue)
        assert_printable(client_here(queue, "stats"))
        strict_json(client_here(queue, "stats", "--json"))
    assert notes_of(queue).count("good") == 1


# ---- generated rows

AMONG = ["tasks.note", "tasks.only", "tasks", "os.system", "tasks.json.dumps", "tasks.__doc__", ""]
EDGES = [-1, 0, 1, 2, 5, 255, 256, MOST_SIGNED, -MOST_SIGNED - 1, MOST_UNSIGNED, MOST_UNSIGNED + 1, 2**63 - 1, 2**64]

anything = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.sampled_from(EDGES),
    st.floats(allow_nan=False, allow_infinity=False),
    # Surrogates too, which only a broken program can send.
    st.text(st.characters(), max_size=30),
    st.binary(max_size=30),
    st.binary(max_size=30).map(Raw),
    st.sampled_from([PAST, FUTURE, Sql("'2020-01-01 00:00:00'"), Sql("'0000-00-00 00:00:00'")]),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=10)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
OWN = {
    "task": st.sampled_from(AMONG) | anything,
    "args": json_values.map(json.dumps) | json_values.map(lambda value: json.dumps(value)[1:]) | anything,
    "status": st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6]) | anything,
    "due_at": st.sampled_from([None, PAST, FUTURE]) | anything,
    "started_at": st.sampled_from([None, PAST, FUTURE]) | anything,
    "attempts": st.sampled_from([0, 1, 9, 10, 11]) | anything,
    "max_attempts": st.sampled_from([None, 0, 1, 10]) | anything,
    "awaited": st.sampled_from([0, 1, 255]) | anything,
}
PLAIN = ("group_id", "priority", "unique_key", "claim", "error_text", "finished_at", "created_at", "updated_at")
hostile_rows = st.lists(
    st.fixed_dictionaries(
        {"task": OWN["task"]},
        optional={name: values for name, values in OWN.items() if name != "task"} | dict.fromkeys(PLAIN, anything),
    ),
    min_size=20,
    max_size=50,
)


def generated(batches: int) -> settings:
    """Settings of hypothesis where an example is a whole run of a worker; each empties the table before it begins."""
    return settings(max_examples=batches, deadline=None, suppress_health_check=list(HealthCheck))


WORST_CLAIM = {"task": "tasks.note", "status": 1, "due_at": PAST, "started_at": PAST, "attempts": MOST_UNSIGNED}


def assert_survived(queue: Queue, rows: Sequence[Columns]) -> None:
    """One batch of rows, good ones among them, one run: what holds of any row whatever."""
    with web_script(queue) as script:
        script.empty()
        (queue.folder / "notes").unlink(missing_ok=True)
        good = []
        for number, columns in enumerate(rows):
            script.write(columns)
            if number % 5 == 0:
                good.append(f"good: {number}")
                assert script.write({"task": "tasks.note", "args": json.dumps([good[-1]])})
        before = script.read()
        assert_ran_clean(queue)
        after = script.read()
        assert_client_lives(queue)
    notes = notes_of(queue)
    assert sorted(note for note in notes if isinstance(note, str) and note.startswith("good: ")) == sorted(good)
    for row_id, row in before.items():
        _assert_dealt_with(row, after.get(row_id))


def _assert_dealt_with(row: Row, now: Row | None) -> None:
    if row[STATUS] not in (0, 1, 3, 5):
        assert now == row, "a row that is not one of the worker's was changed"
    elif row[STATUS] == 0 and now is not None:
        assert now[STATUS] in (3, 4, 5), now
        assert now[ERROR_TEXT] if now[STATUS] in (3, 4) else now[DUE_AT] is not None, now
    elif now is not None and now != row:
        assert now[STATUS] in (3, 4, 5), now


@EACH_DATABASE
@generated(batches=2)
@given(rows=hostile_rows)
@example(rows=[WORST_CLAIM, WORST_CLAIM | {"max_attempts": MOST_UNSIGNED}])
def test_any_rows_are_survived(queue: Queue, rows: list[dict[str, object]]) -> None:
    assert_survived(queue, rows)


@pytest.mark.long
@generated(batches=150)
@given(rows=hostile_rows)
def test_any_rows_are_survived_at_length(queue: Queue, rows: list[dict[str, object]]) -> None:
    assert_survived(queue, rows)
