"""Rows as no honest producer writes them, what may become of each, and the web script that writes them by SQL alone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg
import pymysql

from tests.support.postgresql import connection_in_utc
from tests.support.queues import Queue

MEBIBYTE = 1024 * 1024
MOST_UNSIGNED = 2**32 - 1
MOST_SIGNED = 2**31 - 1


class Sql(NamedTuple):
    """An expression as it stands; `{past}` and `{future}` are instants an hour and years away."""

    text: str


class Raw(NamedTuple):
    """Bytes said to be text: kept as they are on SQLite, where they may be no UTF-8; latin1 on servers."""

    content: bytes


Columns = Mapping[str, object]
Row = tuple[Any, ...]
STATUS, ATTEMPTS, DUE_AT, ERROR_TEXT, STARTED_AT, AWAITED = 4, 5, 7, 10, 12, 18
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
    postgresql: set[str]

    def allowed(self, kind: str) -> set[str]:
        """On a store of this kind."""
        return {"sqlite": self.sqlite, "mysql": self.mysql, "postgresql": self.postgresql}[kind]


SURVIVED = {RUNS, FATAL, LEFT, WAITS, LOST, REFUSED}


def both(name: str, *becomes: str, **columns: object) -> Nasty:
    """The same on all stores."""
    return Nasty(name, columns, set(becomes), set(becomes), set(becomes))


def strict(name: str, *becomes: str, **columns: object) -> Nasty:
    """What PostgreSQL takes in no column of that type."""
    return Nasty(name, columns, set(becomes), set(becomes), {REFUSED})


def typed(name: str, becomes: str = RUNS, **columns: object) -> Nasty:
    """Refused by SQLite's CHECKs, and PostgreSQL's types; MySQL without strict mode bends it to what fits."""
    return Nasty(name, columns, {REFUSED}, {becomes}, {REFUSED})


def sqlite_only(name: str, *becomes: str, **columns: object) -> Nasty:
    """What the types of servers cannot hold, or hold as something else; there it only must be survived."""
    return Nasty(name, columns, set(becomes), SURVIVED, SURVIVED)


CONTROLS = "".join(map(chr, [*range(1, 32), *range(0x7F, 0xA0), 0x202E, 0x2028, 0x2066, 0xFEFF, 0xE0001]))

NAMES = [
    both("a name of control characters", FATAL, task=CONTROLS),
    both("a name of high bytes", FATAL, task=Raw(bytes(range(128, 256)))),
    strict("a name with a NUL before more", FATAL, task="tasks.note\0.more"),
    both("a name that forges a line", FATAL, task="tasks.x\nworker.py: all is well"),
    both("a name that a terminal obeys", FATAL, task="tasks.\x1b]0;owned\x07\x1b[2J\x9b31m\r"),
    both("an empty name", FATAL, task=""),
    both("a name of dots", FATAL, task="...."),
    both("a name with a Cyrillic letter", FATAL, task="t\u0430sks.note"),
    both("a way through a function", FATAL, task="tasks.note.__globals__"),
    both("a program", FATAL, task="os.system", args='["true"]'),
    both("a name of 255 characters", FATAL, task="tasks." + "n" * 249),
    typed("a name of 256 characters", FATAL, task="tasks." + "n" * 250),
    both("no name", REFUSED, task=None),
    both("a number for a name", FATAL, task=7),
    sqlite_only("bytes for a name", FATAL, task=b"tasks.note"),
    sqlite_only("random bytes for a name", FATAL, task=b"\x00\xff\xfe\x1b[2J"),
    sqlite_only("a mebibyte of name behind a NUL", FATAL, task="tasks.note\0" + "n" * MEBIBYTE),
    sqlite_only("a mebibyte of blanks behind a NUL", FATAL, task="tasks.note\0" + " " * MEBIBYTE + "."),
]

ARGUMENTS = [
    both("arguments 500 deep", RUNS, args="[" * 500 + "]" * 500),
    both("arguments 200,000 deep", FATAL, args="[" * 200_000 + "]" * 200_000),
    both("arguments that open and never close", FATAL, args='{"a":' * 200_000),
    strict("a bare NUL in arguments", FATAL, args='["a\0b"]'),
    both("an escaped NUL", RUNS, args='["a\\u0000b"]'),
    both("escaped lone surrogates", RUNS, args='["\\ud800 \\udfff"]'),
    both("exactly one mebibyte", RUNS, args=f'["{"x" * (MEBIBYTE - 4)}"]'),
    both("one mebibyte and a byte", FATAL, args=f'["{"x" * (MEBIBYTE - 3)}"]'),
    both("five mebibytes", FATAL, args=f'["{"x" * 5 * MEBIBYTE}"]'),
    both("NaN", FATAL, args="[NaN]"),
    both("a number too large", FATAL, args="[1e999]"),
    both("odd keys", RUNS, args='{"": 1, "a b": 2, "self": 3, "__class__": 4, "\\u0000": 5, "\\ud800": 6}'),
    both("odd keys where they do not fit", FATAL, task="tasks.only", args='{"": 1, "\\u001b[2J": 2, "\\ud800": 6}'),
    both("empty arguments", FATAL, args=""),
    both("what Python pickles", FATAL, args=Raw(b"cos\nsystem\n(S'true'\ntR.")),
    both("control characters for arguments", FATAL, args=CONTROLS),
    sqlite_only("bytes for arguments", FATAL, args=b'["bytes"]'),
    sqlite_only("random bytes for arguments", FATAL, args=b"\x00\xff\xfe"),
    sqlite_only("arguments that are no UTF-8", FATAL, args=Raw(b'["\xff"]')),
]

# MySQL and MariaDB store these, which are no UTF-8 for Python: what PHP and Java make of emoji, now and then.
SURROGATES = [
    both("a name with a surrogate", FATAL, REFUSED, task="tasks.\ud800"),
    both("arguments with a surrogate", FATAL, REFUSED, RUNS, args='["\ud800"]'),
    both("long arguments with a surrogate", FATAL, REFUSED, RUNS, args=f'["\ud800{"x" * 100_000}"]'),
    both("an error with a surrogate", LEFT, REFUSED, status=4, error_text="E: \ud800"),
]

NUMBERS = [
    both("the greatest version", RUNS, version=2**63 - 1),
    sqlite_only("a version beyond the greatest", RUNS, version=2**64),
    sqlite_only("bytes for a version", RUNS, version=b"\xff\x00"),
    both("the greatest group", RUNS, group_id=MOST_UNSIGNED - 1),
    typed("a group beyond the greatest", group_id=MOST_UNSIGNED),
    typed("bytes for a group", group_id=b"\xff\x00"),
    both("the smallest priority", RUNS, priority=-MOST_SIGNED - 1),
    both("the greatest priority", RUNS, priority=MOST_SIGNED),
    typed("a priority beyond the greatest", priority=10**30),
    typed("a word for a priority", priority="\x1b[2Jhigh"),
    both("max_attempts 0", FATAL, max_attempts=0),
    typed("negative max_attempts", FATAL, max_attempts=-1),
    both("attempts at their greatest", FATAL, attempts=MOST_UNSIGNED),
    both("attempts and their limit at the greatest", FATAL, attempts=MOST_UNSIGNED, max_attempts=MOST_UNSIGNED),
    both("one attempt below the greatest limit", RUNS, attempts=MOST_UNSIGNED - 1, max_attempts=MOST_UNSIGNED),
    both("attempts used up", FATAL, attempts=10),
    both("an integral fraction", RUNS, priority=3.0, group_id=2.0),
]

INSTANTS = [
    both("a due_at of the past", RUNS, due_at=PAST),
    both("a due_at years ahead", WAITS, due_at=FUTURE),
    typed("a word for due_at", FATAL, due_at="tomorrow\x1b[2J"),
    Nasty("a due_at that no calendar has", {"due_at": "2020-99-99 99:99:99"}, {REFUSED}, {FATAL}, {REFUSED}),
    Nasty("a due_at with more behind it", {"due_at": "2020-01-01 00:00:00\x1b[2J\0"}, {REFUSED}, {RUNS}, {REFUSED}),
    Nasty("a due_at beyond 2038", {"due_at": "9999-12-31 23:59:59"}, {WAITS}, {FATAL}, {REFUSED}),
    sqlite_only("bytes for due_at", REFUSED, due_at=b"2020-01-01 00:00:00"),
    # Each in a group of its own, where it is the oldest new row, whose age is shown.
    strict("a created_at of nonsense", RUNS, created_at="never", group_id=71),
    sqlite_only("bytes for created_at", RUNS, created_at=b"\xff\x1b[2J", group_id=74),
    both("a created_at years ahead", RUNS, created_at=FUTURE, group_id=75),
    strict("instants of nonsense", RUNS, started_at="\x1b[2J", finished_at="", updated_at="x"),
]

KEYS = [
    strict("a key of all bytes", RUNS, unique_key=bytes(range(255))),
    both("a key that a terminal obeys", RUNS, unique_key="\x1b[2J\n"),
    typed("a key of 256 bytes", unique_key="q" * 256),
    both("a finished key of bytes", LEFT, status=2, unique_key=b"\xff\x00\x1b[2J"),
]

STATUSES = [
    *(both(f"status {status}", LEFT, status=status, due_at=PAST) for status in (6, 7, 99, 128, 254, 255)),
    *(both(f"over, and due: status {status}", LEFT, status=status, due_at=PAST) for status in (2, 4)),
    *(both(f"over, and due in years: status {status}", LEFT, status=status, due_at=FUTURE) for status in (2, 4)),
    both("fatal, and awaited by more than there are", LEFT, status=4, due_at=PAST, awaited=255),
    both("waiting, and awaited by more than there are", RUNS, status=5, due_at=PAST, awaited=255),
    both("new, and awaited by none", RUNS, awaited=1),
    both("done and awaited, without an instant", LEFT, status=2, awaited=1),
    sqlite_only("fatal, and due at what is no text", REFUSED, status=4, due_at=Sql(NO_TEXT), awaited=1),
    both("waiting for nothing", LEFT, status=5),
    both("an error without due_at", LEFT, RUNS, status=3),
    both("waiting for years", LEFT, status=5, due_at=FUTURE),
    both("waiting and due", RUNS, status=5, due_at=PAST),
    both("an error that is due", RUNS, status=3, due_at=PAST, attempts=1),
    typed("status 256", LEFT, status=256),
    both("no status", REFUSED, status=None),
    both("a fatal row that a terminal obeys", LEFT, status=4, error_text=CONTROLS, task=CONTROLS),
    strict("a fatal row of an error of 200,000 characters", LEFT, status=4, error_text="x\x1b" * 100_000),
    sqlite_only("bytes for an error", LEFT, status=4, error_text=b"\xff\x1b[2J"),
]

FORGED: dict[str, Any] = {"status": 1, "claim": 12345}
"""In progress, by a claim of the producer's own making."""
STARTED = FORGED | {"started_at": PAST, "attempts": 1}

CLAIMS = [
    both("a claim without due_at", LEFT, RUNS, LOST, FATAL, **FORGED),
    both("a started claim without due_at", LEFT, LOST, **FORGED, started_at=PAST, attempts=1),
    both("a claim that ran out", RUNS, **FORGED, due_at=PAST),
    both("a claim that ran out, used up and not started", FATAL, **FORGED, due_at=PAST, attempts=10),
    both("a started claim that ran out", LOST, **FORGED, due_at=PAST, started_at=PAST, attempts=1, max_attempts=3),
    # As where its producer changed it while it ran: it becomes new.
    both("a started claim with no attempt", RUNS, **FORGED, due_at=PAST, started_at=PAST, max_attempts=3),
    both("a started claim with no attempt to make", FATAL, **FORGED, due_at=PAST, started_at=PAST, max_attempts=0),
    both("a started claim that was cancelled", CANCELLED, **STARTED, due_at=PAST, error_text="cancelled"),
    both("a claim that ran out, cancelled", RUNS, **FORGED, due_at=PAST, error_text="cancelled"),
    both("a claim that ran out, cancelled and bad", FATAL, **FORGED, due_at=PAST, task="x", error_text="cancelled"),
    both("a new row that says it was cancelled", RUNS, error_text="cancelled"),
    both("a bad row that says it was cancelled", FATAL, task="tasks.", error_text="cancelled"),
    *(
        both(
            f"a started claim of {n} attempts of {most}",
            LOST,
            **STARTED | {"attempts": n},
            due_at=PAST,
            max_attempts=most,
        )
        for n, most in ((MOST_UNSIGNED, 1), (MOST_UNSIGNED - 1, MOST_UNSIGNED))
    ),
    both("a claim that holds for years", LEFT, **FORGED, due_at=FUTURE),
    both("a started claim that holds for years", LEFT, **FORGED, due_at=FUTURE, started_at=PAST, attempts=1),
    strict("a claim of 64 bits", LEFT, status=1, claim=2**64 - 1, due_at=FUTURE),
    sqlite_only("an infinite claim", LEFT, status=1, claim=Sql("9e999"), due_at=FUTURE),
    both("a new row with a claim", RUNS, claim=12345, started_at=PAST, finished_at=PAST, error_text="E: old"),
    both("a new row with a claim and a due_at years ahead", WAITS, claim=12345, due_at=FUTURE),
    sqlite_only("a new row with an infinite claim", RUNS, claim=Sql("-9e999")),
    both("a waiting row with a claim that is due", RUNS, status=5, claim=1, due_at=PAST, started_at=PAST),
]

KINDS = {
    "names": NAMES,
    "arguments": ARGUMENTS,
    "surrogates": SURROGATES,
    "numbers": NUMBERS,
    "instants": INSTANTS,
    "keys": KEYS,
    "statuses": STATUSES,
    "claims": CLAIMS,
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


# ---- what became of them


class Written(NamedTuple):
    """A hostile row in the table, or refused by it."""

    nasty: Nasty
    id: int | None
    row: Row | None


def write_among_good_ones(script: WebScript, nasties: Iterable[Nasty]) -> list[Written]:
    """Each hostile row is followed by a good one with the argument `good: …`."""
    nasties, ids = list(nasties), list[int | None]()
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
    error_text = text_of(now[ERROR_TEXT])
    if error_text.startswith("lost") and (now[STATUS] == 4 or (now[STATUS] == 3 and now[DUE_AT])):
        return LOST
    if now[STATUS] == 7 and error_text == "cancelled":
        return CANCELLED
    # It may have been started with the others of its round, which counts no attempt then.
    is_uncounted = not now[STARTED_AT] or now[ATTEMPTS] == (written.row or now)[ATTEMPTS]
    if now[STATUS] == 4 and error_text.startswith("BadTask: ") and len(error_text) > 20 and is_uncounted:
        return FATAL
    if now[STATUS] == 5 and now[DUE_AT]:
        return WAITS
    return f"became {now!r:.500}"


def complaint_of(written: Written, after: Mapping[int, Row], kind: str) -> str:
    """What became of a row and should not have; nothing where all is well."""
    allowed = written.nasty.allowed(kind)
    became = outcome_of(written, after)
    return "" if became in allowed else f"{written.nasty.name}: {became}, not {' or '.join(sorted(allowed))}"


def text_of(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
