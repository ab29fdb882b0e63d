"""Rows as no honest producer writes them: odd bytes, wrong types and huge values in every column.

They are written by SQL alone, as a buggy or malicious web script would: on MySQL in a session that takes anything
(sql_mode '', latin1). Then worker.py runs as a process and client.py looks at what it left. Promise 5: a bad row
becomes fatal with a clear error_text and stops nothing else.
"""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple, NoReturn

import pymysql
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taskserver.cli.client import main as client_main
from tests.support.queues import Queue

MEBIBYTE = 1024 * 1024
MOST_UNSIGNED = 2**32 - 1
MOST_SIGNED = 2**31 - 1

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
    """Bytes said to be text: kept as they are on SQLite, where they may be no UTF-8; latin1 on MySQL."""

    content: bytes


Columns = Mapping[str, object]
Row = tuple[Any, ...]
STATUS, DUE_AT, ERROR_TEXT, STARTED_AT, AWAITED = 4, 7, 10, 12, 18
"""Places of columns in what WebScript.read gives."""

# ---- what may become of a row

RUNS = "runs"
"""It ran once and is gone."""
FATAL = "fatal"
"""Status 4, never started, with an error_text of BadTask."""
LEFT = "left"
"""Not one column was changed."""
WAITS = "waits"
"""New and put to 5, as its due_at lies ahead."""
LOST = "lost"
"""A started row whose worker vanished: status 3 with due_at, or 4; error_text begins `lost`."""
CANCELLED = "cancelled"
"""A started row whose worker vanished, and which says that a person cancelled it."""
UNSIGNED = "unsigned"
"""Over, and its due_at, which would say that others wait for it, taken away."""
REFUSED = "refused"
"""The database did not take it."""

PAST, FUTURE = Sql("{past}"), Sql("{future}")
NO_TEXT = "'2020-01-01 00:00:00' || CAST(x'ff' AS TEXT)"
"""What SQLite takes for an instant, and no program can read as text."""


class Nasty(NamedTuple):
    """A hostile row, and what may become of it on each store."""

    name: str
    columns: Columns
    sqlite: set[str]
    mysql: set[str]


def both(name: str, *becomes: str, **columns: object) -> Nasty:
    """The same on both stores."""
    return Nasty(name, columns, set(becomes), set(becomes))


def typed(name: str, becomes: str = RUNS, **columns: object) -> Nasty:
    """SQLite's CHECKs refuse it; MySQL without strict mode bends it to what its column can hold."""
    return Nasty(name, columns, {REFUSED}, {becomes})


def sqlite_only(name: str, *becomes: str, **columns: object) -> Nasty:
    """What MySQL's types cannot hold, or hold as something else; there it only must be survived."""
    return Nasty(name, columns, set(becomes), {RUNS, FATAL, LEFT, WAITS, LOST, REFUSED})


CONTROLS = "".join(map(chr, [*range(1, 32), *range(0x7F, 0xA0), 0x202E, 0x2028, 0x2066, 0xFEFF, 0xE0001]))

NAMES = [
    both("a name of control characters", FATAL, task=CONTROLS),
    both("a name of high bytes", FATAL, task=Raw(bytes(range(128, 256)))),
    both("a name with a NUL", FATAL, task="tasks.note\0"),
    both("a name with a NUL before more", FATAL, task="tasks.note\0.more"),
    both("a name that ends a line", FATAL, task="tasks.note\n"),
    both("a name that forges a line", FATAL, task="tasks.x\nworker.py: all is well"),
    both("a name that a terminal obeys", FATAL, task="tasks.\x1b]0;owned\x07\x1b[2J\x9b31m\r"),
    both("a name with a space behind it", FATAL, task="tasks.note "),
    both("an empty name", FATAL, task=""),
    both("a name of a space", FATAL, task=" "),
    both("a name of dots", FATAL, task="...."),
    both("a name without its function", FATAL, task="tasks."),
    both("a name without its module", FATAL, task=".note"),
    both("a name with two dots", FATAL, task="tasks..note"),
    both("a name with two colons", FATAL, task="tasks::note"),
    both("a name in capitals", FATAL, task="TASKS.NOTE"),
    both("a name with a Cyrillic letter", FATAL, task="t\u0430sks.note"),
    both("a name in wide letters", FATAL, task="tasks.ｎｏｔｅ"),
    both("a private name", FATAL, task="tasks.__doc__"),
    both("a way through a function", FATAL, task="tasks.note.__globals__"),
    both("a way through a module", FATAL, task="tasks.json.dumps"),
    both("a built-in function", FATAL, task="builtins.eval", args='["1"]'),
    both("a program", FATAL, task="os.system", args='["true"]'),
    both("a path", FATAL, task="../../tasks.note"),
    both("a name of 255 characters", FATAL, task="tasks." + "n" * 249),
    typed("a name of 256 characters", FATAL, task="tasks." + "n" * 250),
    both("no name", REFUSED, task=None),
    both("a number for a name", FATAL, task=7),
    both("a fraction for a name", FATAL, task=0.5),
    sqlite_only("bytes for a name", FATAL, task=b"tasks.note"),
    sqlite_only("random bytes for a name", FATAL, task=b"\x00\xff\xfe\x1b[2J"),
    sqlite_only("a mebibyte of name behind a NUL", FATAL, task="tasks.note\0" + "n" * MEBIBYTE),
]

ARGUMENTS = [
    both("arguments 500 deep", RUNS, args="[" * 500 + "]" * 500),
    both("arguments 501 deep", FATAL, args="[" * 501 + "]" * 501),
    both("arguments 100,000 deep", FATAL, args="[" * 100_000 + "]" * 100_000),
    both("arguments that open and never close", FATAL, args='{"a":' * 200_000),
    both("a bare NUL in arguments", FATAL, args='["a\0b"]'),
    both("a NUL for arguments", FATAL, args="\0"),
    both("an escaped NUL", RUNS, args='["a\\u0000b"]'),
    both("escaped lone surrogates", RUNS, args='["\\ud800 \\udfff"]'),
    both("exactly one mebibyte", RUNS, args=f'["{"x" * (MEBIBYTE - 4)}"]'),
    both("one mebibyte and a byte", FATAL, args=f'["{"x" * (MEBIBYTE - 3)}"]'),
    both("exactly one mebibyte of two-byte letters", RUNS, args=f'["{"ü" * (MEBIBYTE // 2 - 2)}"]'),
    both("one mebibyte of two-byte letters and more", FATAL, args=f'["{"ü" * (MEBIBYTE // 2)}"]'),
    both("five mebibytes", FATAL, args=f'["{"x" * 5 * MEBIBYTE}"]'),
    both("a mebibyte of spaces and more", FATAL, args=" " * (MEBIBYTE + 1)),
    both("NaN", FATAL, args="[NaN]"),
    both("Infinity", FATAL, args='{"text": Infinity}'),
    both("minus Infinity", FATAL, args="-Infinity"),
    both("a number too large", FATAL, args="[1e999]"),
    both("an integer of 4,000 digits", RUNS, args=f"[{'9' * 4000}]"),
    both("an integer of a million digits", FATAL, args=f"[{'9' * 1_000_000}]"),
    both("a key twice", RUNS, FATAL, args='{"text": "a", "text": "b"}'),
    both("odd keys", RUNS, args='{"": 1, "a b": 2, "self": 3, "__class__": 4, "\\u0000": 5, "\\ud800": 6}'),
    both("odd keys where they do not fit", FATAL, task="tasks.only", args='{"": 1, "\\u001b[2J": 2, "\\ud800": 6}'),
    both("ten thousand keys", RUNS, args=json.dumps({f"k{number}": number for number in range(10_000)})),
    both("a hundred thousand positions", RUNS, args=json.dumps(list(range(100_000)))),
    both("too many positions", FATAL, task="tasks.only", args="[1, 2]"),
    both("empty arguments", RUNS, args=""),
    both("blank arguments", RUNS, args=" \n\t "),
    both("a byte order mark", FATAL, args="\ufeff[]"),
    both("a bare string", FATAL, args='"text"'),
    both("a bare number", FATAL, args=5),
    both("single quotes", FATAL, args="['a']"),
    both("two values", FATAL, args="[] []"),
    both("a comment", FATAL, args="[] // nothing"),
    both("what PHP serializes", FATAL, args='a:1:{i:0;s:1:"x";}'),
    both("what Python pickles", FATAL, args=Raw(b"cos\nsystem\n(S'true'\ntR.")),
    both("control characters for arguments", FATAL, args=CONTROLS),
    sqlite_only("bytes for arguments", FATAL, args=b'["bytes"]'),
    sqlite_only("random bytes for arguments", FATAL, args=b"\x00\xff\xfe"),
    sqlite_only("arguments that are no UTF-8", FATAL, args=Raw(b'["\xff"]')),
    sqlite_only("overlong UTF-8", FATAL, args=Raw(b'["\xc0\xaf \xed\xa0\x80"]')),
]

# MySQL and MariaDB store these, which are no UTF-8 for Python: what PHP and Java make of emoji, now and then.
SURROGATES = [
    both("a name with a surrogate", FATAL, REFUSED, task="tasks.\ud800"),
    both("a name with a pair of surrogates", FATAL, REFUSED, task="tasks.\ud83d\ude00"),
    both("arguments with a surrogate", FATAL, REFUSED, RUNS, args='["\ud800"]'),
    both("long arguments with a surrogate", FATAL, REFUSED, RUNS, args=f'["\ud800{"x" * 100_000}"]'),
    both("an error with a surrogate", LEFT, REFUSED, status=4, error_text="E: \ud800"),
]

NUMBERS = [
    both("the greatest version", RUNS, version=2**63 - 1),
    sqlite_only("a version beyond the greatest", RUNS, version=2**64),
    sqlite_only("a word for a version", RUNS, version="\x1b[2J"),
    sqlite_only("bytes for a version", RUNS, version=b"\xff\x00"),
    both("the greatest group", RUNS, group_id=MOST_UNSIGNED),
    typed("a group beyond the greatest", group_id=MOST_UNSIGNED + 1),
    typed("a group of a hundred digits", group_id=10**100),
    typed("a negative group", group_id=-1),
    typed("a fraction of a group", group_id=1.5),
    typed("a word for a group", group_id="letters"),
    typed("bytes for a group", group_id=b"\xff\x00"),
    both("no group", REFUSED, group_id=None),
    both("the smallest priority", RUNS, priority=-MOST_SIGNED - 1),
    both("the greatest priority", RUNS, priority=MOST_SIGNED),
    typed("a priority beyond the smallest", priority=-MOST_SIGNED - 2),
    typed("a priority beyond the greatest", priority=10**30),
    typed("a fraction of a priority", priority=-0.25),
    typed("a word for a priority", priority="\x1b[2Jhigh"),
    both("no priority", REFUSED, priority=None),
    both("max_attempts 0", FATAL, max_attempts=0),
    both("the greatest max_attempts", RUNS, max_attempts=MOST_UNSIGNED),
    typed("max_attempts beyond the greatest", max_attempts=MOST_UNSIGNED + 1),
    typed("negative max_attempts", FATAL, max_attempts=-1),
    typed("a word for max_attempts", FATAL, max_attempts="many"),
    both("attempts at their greatest", FATAL, attempts=MOST_UNSIGNED),
    both("attempts and their limit at the greatest", FATAL, attempts=MOST_UNSIGNED, max_attempts=MOST_UNSIGNED),
    both("one attempt below the greatest limit", RUNS, attempts=MOST_UNSIGNED - 1, max_attempts=MOST_UNSIGNED),
    both("the last attempt of ten", RUNS, attempts=9),
    both("attempts used up", FATAL, attempts=10),
    typed("attempts beyond the greatest", FATAL, attempts=10**20),
    typed("a fraction of an attempt", attempts=0.25),
    both("an integral fraction", RUNS, priority=3.0, group_id=2.0),
]

INSTANTS = [
    both("a due_at of the past", RUNS, due_at=PAST),
    both("a due_at years ahead", WAITS, due_at=FUTURE),
    typed("an empty due_at", due_at=""),
    typed("a word for due_at", due_at="tomorrow\x1b[2J"),
    typed("a number for due_at", due_at=0),
    typed("a date alone", due_at="2020-02-30"),
    Nasty("a due_at that no calendar has", {"due_at": "2020-99-99 99:99:99"}, {RUNS}, {RUNS}),
    Nasty("a due_at with more behind it", {"due_at": "2020-01-01 00:00:00\x1b[2J\0"}, {RUNS}, {RUNS}),
    Nasty("a due_at beyond 2038", {"due_at": "9999-12-31 23:59:59"}, {WAITS}, {RUNS}),
    sqlite_only("bytes for due_at", REFUSED, due_at=b"2020-01-01 00:00:00"),
    # Each in a group of its own, where it is the oldest new row, whose age is shown.
    both("a created_at of nonsense", RUNS, created_at="never", group_id=71),
    both("an empty created_at", RUNS, created_at="", group_id=72),
    both("a created_at of control characters", RUNS, created_at=CONTROLS, group_id=73),
    sqlite_only("bytes for created_at", RUNS, created_at=b"\xff\x1b[2J", group_id=74),
    both("a created_at years ahead", RUNS, created_at=FUTURE, group_id=75),
    both("instants of nonsense", RUNS, started_at="\x1b[2J", finished_at="", updated_at="x"),
]

KEYS = [
    both("a key of all bytes", RUNS, unique_key=bytes(range(255))),
    both("an empty key", RUNS, unique_key=""),
    both("a key that a terminal obeys", RUNS, unique_key="\x1b[2J\n"),
    both("a key of 255 bytes of text", RUNS, unique_key="k" * 255),
    typed("a key of 256 bytes", unique_key="q" * 256),
    both("a number for a key", RUNS, unique_key=12),
    both("a finished key of bytes", LEFT, status=2, unique_key=b"\xff\x00\x1b[2J"),
]

STATUSES = [
    *(both(f"status {status}", LEFT, status=status, due_at=PAST) for status in (6, 7, 99, 128, 254, 255)),
    *(both(f"over, and due: status {status}", UNSIGNED, status=status, due_at=PAST) for status in (2, 4)),
    *(both(f"over, and due in years: status {status}", LEFT, status=status, due_at=FUTURE) for status in (2, 4)),
    *(
        both(f"fatal, and awaited by {many} of none", UNSIGNED, status=4, due_at=PAST, awaited=many)
        for many in (1, 255)
    ),
    *(both(f"waiting, and awaited by {many} of none", RUNS, status=5, due_at=PAST, awaited=many) for many in (1, 255)),
    both("new, and awaited by none", RUNS, awaited=1),
    both("done and awaited, without an instant", LEFT, status=2, awaited=1),
    both("fatal and awaited, without an instant", LEFT, status=4, awaited=1),
    sqlite_only("fatal, and due at what is no text", UNSIGNED, status=4, due_at=Sql(NO_TEXT), awaited=1),
    both("waiting for nothing", LEFT, status=5),
    both("an error without due_at", LEFT, RUNS, status=3),
    both("waiting for years", LEFT, status=5, due_at=FUTURE),
    both("an error to be tried in years", LEFT, status=3, due_at=FUTURE),
    both("waiting and due", RUNS, status=5, due_at=PAST),
    both("an error that is due", RUNS, status=3, due_at=PAST, attempts=1),
    both("an error that is due and used up", FATAL, status=3, due_at=PAST, attempts=10),
    typed("status 256", LEFT, status=256),
    typed("status -1", status=-1),
    typed("a word for a status", status="new"),
    both("no status", REFUSED, status=None),
    both("a fatal row that a terminal obeys", LEFT, status=4, error_text=CONTROLS, task=CONTROLS),
    both("a fatal row with a NUL", LEFT, status=4, error_text="E: \0\n\n\n"),
    both("a fatal row of an error of 200,000 characters", LEFT, status=4, error_text="x\x1b" * 100_000),
    sqlite_only("bytes for an error", LEFT, status=4, error_text=b"\xff\x1b[2J"),
    both("a fatal row that was never tried", LEFT, status=4, attempts=0),
]

FORGED: dict[str, Any] = {"status": 1, "claim": 12345}
"""In progress, by a claim of the producer's own making."""
STARTED = FORGED | {"started_at": PAST, "attempts": 1}

CLAIMS = [
    both("a claim without due_at", LEFT, RUNS, LOST, FATAL, **FORGED),
    both("in progress without claim and due_at", LEFT, RUNS, LOST, FATAL, status=1),
    both("a started claim without due_at", LEFT, LOST, **FORGED, started_at=PAST, attempts=1),
    both("a claim that ran out", RUNS, **FORGED, due_at=PAST),
    both("a claim that ran out, with no token", RUNS, status=1, due_at=PAST),
    both("a claim that ran out, used up and not started", FATAL, **FORGED, due_at=PAST, attempts=10),
    both("a started claim that ran out", LOST, **FORGED, due_at=PAST, started_at=PAST, attempts=1, max_attempts=3),
    both("a started claim that ran out, with no limit", LOST, **FORGED, due_at=PAST, started_at=PAST, attempts=1),
    # As where its producer changed it while it ran: it becomes new.
    both("a started claim with no attempt", RUNS, **FORGED, due_at=PAST, started_at=PAST, max_attempts=3),
    both("a started claim with no attempt to make", FATAL, **FORGED, due_at=PAST, started_at=PAST, max_attempts=0),
    both("a started claim that was cancelled", CANCELLED, **STARTED, due_at=PAST, error_text="cancelled"),
    both("a started claim that holds, cancelled", LEFT, **STARTED, due_at=FUTURE, error_text="cancelled"),
    both("a claim that ran out, cancelled", RUNS, **FORGED, due_at=PAST, error_text="cancelled"),
    both("a claim that ran out, cancelled and bad", FATAL, **FORGED, due_at=PAST, task="x", error_text="cancelled"),
    both("a new row that says it was cancelled", RUNS, error_text="cancelled"),
    both("a bad row that says it was cancelled", FATAL, task="tasks.", error_text="cancelled"),
    both("an error that is due and says cancelled", RUNS, status=3, due_at=PAST, attempts=1, error_text="cancelled"),
    both(
        "a started claim beyond its attempts",
        LOST,
        **FORGED,
        due_at=PAST,
        started_at=PAST,
        attempts=MOST_UNSIGNED,
        max_attempts=1,
    ),
    both(
        "a started claim with the greatest limit",
        LOST,
        **FORGED,
        due_at=PAST,
        started_at=PAST,
        attempts=MOST_UNSIGNED - 1,
        max_attempts=MOST_UNSIGNED,
    ),
    both("a claim that holds for years", LEFT, **FORGED, due_at=FUTURE),
    both("a started claim that holds for years", LEFT, **FORGED, due_at=FUTURE, started_at=PAST, attempts=1),
    both("claim 0", LEFT, status=1, claim=0, due_at=FUTURE),
    both("the greatest claim", LEFT, status=1, claim=2**63 - 1, due_at=FUTURE),
    both("a claim of 64 bits", LEFT, status=1, claim=2**64 - 1, due_at=FUTURE),
    both("a negative claim", LEFT, status=1, claim=-1, due_at=FUTURE),
    sqlite_only("a word for a claim", LEFT, status=1, claim="mine\x1b[2J", due_at=FUTURE),
    sqlite_only("bytes for a claim", LEFT, status=1, claim=b"\xff\x1b", due_at=FUTURE),
    sqlite_only("an infinite claim", LEFT, status=1, claim=Sql("9e999"), due_at=FUTURE),
    both("a new row with a claim", RUNS, claim=12345, started_at=PAST, finished_at=PAST, error_text="E: old"),
    both("a new row with a claim and a due_at years ahead", WAITS, claim=12345, due_at=FUTURE),
    sqlite_only("a new row with a word for a claim", RUNS, claim="mine"),
    sqlite_only("a new row with an infinite claim", RUNS, claim=Sql("-9e999")),
    both("a waiting row with a claim that is due", RUNS, status=5, claim=1, due_at=PAST, started_at=PAST),
    both("a claim that ran out, of a bad name", FATAL, **FORGED, due_at=PAST, task="tasks.\x1b[2J"),
]

NASTIES = [*NAMES, *ARGUMENTS, *SURROGATES, *NUMBERS, *INSTANTS, *KEYS, *STATUSES, *CLAIMS]


# ---- the web script


def literal(value: object, is_sqlite: bool) -> str:
    """A value in the words of SQL, written without a driver that would look after it."""
    match value:
        case None:
            return "NULL"
        case Sql():
            return value.text.format(**_instants(is_sqlite))
        case Raw():
            return f"CAST(x'{value.content.hex()}' AS TEXT)" if is_sqlite else f"_latin1 x'{value.content.hex()}'"
        case str():
            content = value.encode("utf-8", "surrogatepass").hex()
            return f"CAST(x'{content}' AS TEXT)" if is_sqlite else f"CONVERT(x'{content}' USING utf8mb4)"
        case bytes():
            return f"x'{value.hex()}'"
        case _:
            return repr(value)


def _instants(is_sqlite: bool) -> dict[str, str]:
    if is_sqlite:
        now = "strftime('%Y-%m-%d %H:%M:%f', 'now', '{}') || '000'"
        return {"past": now.format("-1 hour"), "future": now.format("+8 years")}
    # A TIMESTAMP ends in 2038.
    return {"past": "NOW(6) - INTERVAL 1 HOUR", "future": "NOW(6) + INTERVAL 8 YEAR"}


class WebScript:
    """Writes rows by statements of its own; what the database refuses is its own concern."""

    def __init__(self, queue: Queue) -> None:
        self.is_sqlite = queue.is_sqlite
        self._queue = queue
        self._connection: Any = _connect_sqlite(queue) if queue.is_sqlite else _connect_mysql(queue)

    def write(self, columns: Columns, table: str = "jobs_queue") -> int | None:
        """The id of the new row; None where the database refused it."""
        names = ", ".join(columns)
        values = ", ".join(literal(value, self.is_sqlite) for value in columns.values())
        cursor = self._connection.cursor()
        try:
            cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({values})")
        except (sqlite3.Error, pymysql.MySQLError):
            return None
        return int(cursor.lastrowid)

    def read(self) -> dict[int, Row]:
        """Every column of every row but the key, by id; texts are the bytes that they are."""
        if self.is_sqlite:
            rows = self._connection.execute("SELECT * FROM jobs_queue").fetchall()
        else:
            rows = _read_mysql(self._queue)
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


class Written(NamedTuple):
    """A hostile row in the table, or refused by it."""

    nasty: Nasty
    id: int | None
    row: Row | None


def write_among_good_ones(script: WebScript, nasties: Sequence[Nasty]) -> list[Written]:
    """Each hostile row is followed by a good one with the argument `good: …`."""
    ids: list[int | None] = []
    for nasty in nasties:
        ids.append(script.write({"task": "tasks.note", "args": json.dumps([nasty.name])} | dict(nasty.columns)))
        assert script.write({"task": "tasks.note", "args": json.dumps([f"good: {nasty.name}"])})
    rows = script.read()
    return [
        Written(nasty, row_id, None if row_id is None else rows[row_id])
        for nasty, row_id in zip(nasties, ids, strict=True)
    ]


def outcome_of(written: Written, after: Mapping[int, Row]) -> str:
    """What became of a row, in the words above; a sentence of what is wrong where it is none of them."""
    if written.id is None:
        return REFUSED
    now = after.get(written.id)
    if now is None:
        return RUNS
    if now == written.row:
        return LEFT
    if now == without_sign(written.row):
        return UNSIGNED
    error_text = text_of(now[ERROR_TEXT])
    if error_text.startswith("lost") and (now[STATUS] == 4 or (now[STATUS] == 3 and now[DUE_AT])):
        return LOST
    if now[STATUS] == 4 and error_text == "cancelled":
        return CANCELLED
    if now[STATUS] == 4 and error_text.startswith("BadTask: ") and len(error_text) > 20 and not now[STARTED_AT]:
        return FATAL
    if now[STATUS] == 5 and now[DUE_AT]:
        return WAITS
    return f"became {now!r:.500}"


def without_sign(row: Row | None) -> Row | None:
    """A row that is over, as it is once it is found that nobody waits for it."""
    if row is None or row[STATUS] not in (2, 4):
        return None
    return (*row[:DUE_AT], None, *row[DUE_AT + 1 :])


def complaint_of(written: Written, after: Mapping[int, Row], is_sqlite: bool) -> str:
    """What became of a row and should not have; nothing where all is well."""
    allowed = written.nasty.sqlite if is_sqlite else written.nasty.mysql
    became = outcome_of(written, after)
    return "" if became in allowed else f"{written.nasty.name}: {became}, not {' or '.join(sorted(allowed))}"


def text_of(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@pytest.mark.parametrize(
    "nasties",
    [NAMES, ARGUMENTS, SURROGATES, NUMBERS, INSTANTS, KEYS, STATUSES, CLAIMS],
    ids=["names", "arguments", "surrogates", "numbers", "instants", "keys", "statuses", "claims"],
)
def test_every_hostile_row_becomes_what_it_must_and_the_good_ones_among_them_run_once(
    queue: Queue, nasties: list[Nasty]
) -> None:
    with web_script(queue) as script:
        written = write_among_good_ones(script, nasties)
        assert_ran_clean(queue)
        after = script.read()
    wrong = [complaint for one in written if (complaint := complaint_of(one, after, queue.is_sqlite))]
    assert not wrong, "\n".join(wrong)
    notes = notes_of(queue)
    for one in written:
        assert notes.count(f"good: {one.nasty.name}") == 1
        ran = "args" not in one.nasty.columns and one.id is not None and one.id not in after
        assert notes.count(one.nasty.name) == ran, one.nasty.name


def test_client_lives_through_hostile_rows_before_a_run_and_after_it(queue: Queue) -> None:
    with web_script(queue) as script:
        ids = [one.id for one in write_among_good_ones(script, NASTIES) if one.id is not None]
        before = script.read()
        assert_client_lives(queue, ids)
        assert_ran_clean(queue)
        assert_client_lives(queue, sorted(row_id for row_id, row in script.read().items() if row != before[row_id]))


@pytest.mark.parametrize("mode", ["move", "mark"])
def test_hostile_rows_that_run_are_kept_as_the_mode_says_and_can_be_shown(queue: Queue, mode: str) -> None:
    with web_script(queue) as script:
        written = write_among_good_ones(script, [*INSTANTS, *KEYS, *NUMBERS])
        assert_ran_clean(queue, TASKSERVER_MODE=mode)
    kept = "jobs_queue_done" if mode == "move" else "jobs_queue"
    done = {row_id for (row_id,) in queue.sql(f"SELECT id FROM {kept} WHERE status = 2 AND finished_at IS NOT NULL")}
    sure = {one.id for one in written if (one.nasty.sqlite if queue.is_sqlite else one.nasty.mysql) == {RUNS}}
    assert sure
    assert sure <= done
    assert_client_lives(queue, sorted(done))


def test_a_second_run_leaves_what_the_first_one_left(queue: Queue) -> None:
    with web_script(queue) as script:
        write_among_good_ones(script, NASTIES)
        assert_ran_clean(queue)
        after = script.read()
        notes = queue.notes()
        assert_ran_clean(queue)
        assert script.read() == after
    assert queue.notes() == notes


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
        assert written > len(honest)
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
    if now is None and row[STATUS] == 2:
        assert row[AWAITED], "a row that is none of the worker's was deleted"
    elif row[STATUS] in (2, 4):
        assert now in (row, without_sign(row))
    elif row[STATUS] not in (0, 1, 3, 5):
        assert now == row, "a row that is none of the worker's was changed"
    elif row[STATUS] == 0 and now is not None:
        assert now[STATUS] in (3, 4, 5), now
        assert now[ERROR_TEXT] if now[STATUS] in (3, 4) else now[DUE_AT] is not None, now
    elif now is not None and now != row:
        assert now[STATUS] in (3, 4, 5), now


@generated(batches=8)
@given(rows=hostile_rows)
@example(rows=[WORST_CLAIM, WORST_CLAIM | {"max_attempts": MOST_UNSIGNED}])
def test_any_rows_are_survived(queue: Queue, rows: list[dict[str, object]]) -> None:
    assert_survived(queue, rows)


@pytest.mark.long
@generated(batches=150)
@given(rows=hostile_rows)
def test_any_rows_are_survived_at_length(queue: Queue, rows: list[dict[str, object]]) -> None:
    assert_survived(queue, rows)
