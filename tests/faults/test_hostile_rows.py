"""Rows as no honest producer writes them: odd bytes, wrong types and huge values in every column.

They are written by SQL, as a web script with bugs would: on MySQL in a session that takes anything (sql_mode ''). Then
worker.py runs as a process, and client.py looks at what it left: a bad row becomes fatal with a clear error_text, and
stops nothing else.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import psycopg
import pymysql
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support.databases import EACH_DATABASE
from tests.support.queues import Queue

MEBIBYTE = 1024 * 1024
MOST_UNSIGNED, MOST_SIGNED = 2**32 - 1, 2**31 - 1
MAX_LINE = 12_000
"""Characters of a line of cron's mail; rows may hold names of any length."""

TASKS = '''
"""Takes anything and writes it down in ASCII, so that nothing but the row itself can make it fail."""

import json
from pathlib import Path

from taskserver import task

NOTES = Path(__file__).resolve().parent / "notes"


def note(*texts, **named):
    with NOTES.open("a") as file:
        file.write(json.dumps(texts[0] if texts and len(str(texts[0])) < 200 else None) + "\\n")


def only(text):
    note(text)


@task(commit_every=50)
def share(*texts, **named):
    note(*texts)
'''


class Sql(NamedTuple):
    """An expression as it stands; `{past}` and `{future}` are instants an hour and years away."""

    text: str


Columns = Mapping[str, object]
PAST, FUTURE = Sql("{past}"), Sql("{future}")
CONTROLS = "".join(map(chr, [*range(1, 32), *range(0x7F, 0xA0), 0x202E, 0x2028, 0x2066, 0xFEFF, 0xE0001]))

FATAL: dict[str, Columns] = {
    "a name of control characters": {"task": CONTROLS},
    "a name of high bytes": {"task": bytes(range(128, 256))},
    "a name that forges a line": {"task": "tasks.x\nworker.py: all is well"},
    "a name that a terminal obeys": {"task": "tasks.\x1b]0;owned\x07\x1b[2J\x9b31m\r"},
    "an empty name": {"task": ""},
    "a way through a function": {"task": "tasks.note.__globals__"},
    "a program": {"task": "os.system", "args": '["true"]'},
    "a name of 255 characters": {"task": "tasks." + "n" * 249},
    "arguments 200,000 deep": {"args": "[" * 200_000 + "]" * 200_000},
    "one mebibyte and a byte": {"args": f'["{"x" * (MEBIBYTE - 3)}"]'},
    "NaN": {"args": "[NaN]"},
    "odd keys that do not fit": {"task": "tasks.only", "args": '{"": 1, "\\u001b[2J": 2, "\\ud800": 6}'},
    "empty arguments of a shared task": {"task": "tasks.share", "args": ""},
    "max_attempts 0": {"max_attempts": 0},
    "attempts at their greatest": {"attempts": MOST_UNSIGNED},
}
RUNS: dict[str, Columns] = {
    "exactly one mebibyte": {"args": f'["{"x" * (MEBIBYTE - 4)}"]'},
    "odd keys": {"args": '{"": 1, "a b": 2, "self": 3, "__class__": 4, "\\u0000": 5, "\\ud800": 6}'},
    "the greatest of all": {"version": 2**63 - 1, "group_id": MOST_UNSIGNED - 1, "priority": MOST_SIGNED},
    "a key that a terminal obeys": {"unique_key": "\x1b[2J\n"},
    "a claim that ran out": {"status": 1, "claim": 12345, "due_at": PAST},
}
LEFT: dict[str, Columns] = {
    "an unknown status": {"status": 99, "due_at": PAST},
    "a fatal row that a terminal obeys": {"status": 4, "error_text": CONTROLS, "task": CONTROLS},
    "a claim that holds for years": {"status": 1, "claim": 12345, "due_at": FUTURE},
}


# ---- the web script


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
        case str() | bytes():
            content = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            if kind == "postgresql":
                return "E'" + "".join(f"\\x{byte:02x}" for byte in content) + "'"
            return f"CAST(x'{content.hex()}' AS TEXT)" if kind == "sqlite" else f"x'{content.hex()}'"
        case _:
            return repr(value)


class Row(NamedTuple):
    """What shows how a row was dealt with."""

    status: Any
    attempts: Any
    due_at: Any
    started_at: Any
    updated_at: Any
    error_text: Any


class WebScript:
    """Writes rows by statements of its own; what the database refuses is its own concern."""

    def __init__(self, queue: Queue) -> None:
        self.kind = queue.kind
        self.connection: Any
        if self.kind == "sqlite":
            self.connection = sqlite3.connect(queue.path, isolation_level=None)
            self.connection.text_factory = bytes
            self.connection.execute("PRAGMA synchronous = OFF")
        else:
            self.connection = queue.connect()
        if self.kind == "mysql":
            self.sql("SET sql_mode = '', foreign_key_checks = 0")

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.cursor()
        cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else []

    def write(self, columns: Columns, table: str = "jobs_queue") -> int | None:
        """The id of the new row; 0 in other tables than the queue, None if the database refused it."""
        names = ", ".join(columns)
        values = ", ".join(literal(value, self.kind) for value in columns.values())
        try:
            self.sql(f"INSERT INTO {table} ({names}) VALUES ({values})")
        except (sqlite3.Error, pymysql.MySQLError, psycopg.Error):
            return None
        return int(self.sql("SELECT MAX(id) FROM jobs_queue")[0][0]) if table == "jobs_queue" else 0

    def read(self) -> dict[int, Row]:
        found = self.sql(f"SELECT id, {', '.join(Row._fields)} FROM jobs_queue")
        return {int(row_id): Row(*columns) for row_id, *columns in found}


@contextmanager
def web_script(queue: Queue) -> Iterator[WebScript]:
    script = WebScript(queue)
    try:
        yield script
    finally:
        script.connection.close()


# ---- what is seen


def notes_of(queue: Queue) -> list[object]:
    """What tasks wrote down; None for arguments that carry no word of ours."""
    return [json.loads(line) for line in queue.notes()]


def assert_ran_clean(queue: Queue, most_lines: int = 21) -> None:
    """One run of worker.py survived: code 0, silence but for at most 20 fatal tasks and their count, all printable."""
    ended = queue.worker()
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert "Traceback" not in ended.stderr
    lines = ended.stderr.split("\n")
    assert lines.pop() == ""
    assert len(lines) <= most_lines, ended.stderr
    assert all(len(line) <= MAX_LINE and line.isprintable() for line in lines), ended.stderr


def assert_shows(queue: Queue, *arguments: object) -> None:
    """A command of client.py goes through, and prints nothing that a terminal obeys; its JSON is JSON."""
    shown = queue.here(*arguments)
    assert (shown.returncode, shown.stderr) in ((0, ""), (0, "no worker ran yet: is worker.py in a crontab?\n"))
    text = shown.stdout.replace("\n", "")
    assert text.isprintable(), [character for character in text if not character.isprintable()][:10]
    if "--json" in arguments:
        assert text.isascii()
        json.loads(shown.stdout, parse_constant=refuse_constant)


def refuse_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is no JSON")


def assert_client_lives(queue: Queue, ids: Sequence[int] = ()) -> None:
    for command in (["status"], ["list", "--limit", 1000], ["stats"]):
        assert_shows(queue, *command)
        assert_shows(queue, *command, "--json")
    for task_id in ids:
        assert_shows(queue, "show", task_id)


# ---- hand-picked rows


@pytest.mark.parametrize(
    "database", ["sqlite", "mysql", pytest.param("postgresql", marks=pytest.mark.long)], indirect=True
)
def test_every_hostile_row_becomes_what_it_must_and_the_good_ones_among_them_run_once(queue: Queue) -> None:
    ids: dict[str, int | None] = {}
    with web_script(queue) as script:
        for number, (name, columns) in enumerate((FATAL | RUNS | LEFT).items()):
            ids[name] = script.write({"task": "tasks.note", "args": json.dumps([name])} | dict(columns))
            good = "tasks.share" if number % 2 else "tasks.note"
            assert script.write({"task": good, "args": json.dumps([f"good: {name}"])})
        before = script.read()
        assert_client_lives(queue)
        assert_ran_clean(queue)
        after = script.read()
        assert_client_lives(queue, sorted(after))
    for name, row_id in ids.items():
        if row_id is not None:
            now = after.get(row_id)
            assert (now is None) == (name in RUNS), name
            if name in FATAL and now is not None:
                text = now.error_text.decode() if isinstance(now.error_text, bytes) else now.error_text
                assert (now.status, text.partition(": ")[0]) == (4, "BadTask"), name
                assert not now.started_at or now.attempts == before[row_id].attempts, name  # started with its round
            assert name not in LEFT or now == before[row_id], name
    notes = notes_of(queue)
    assert all(notes.count(f"good: {name}") == 1 for name in ids)
    assert sum(row_id is None for row_id in ids.values()) <= 3, "the database refused too many"


def test_two_hundred_bad_rows_at_the_head_of_the_queue_stop_no_good_one_behind_them(queue: Queue) -> None:
    """More than one claim, so that a run which gave up on a claim of bad rows would show."""
    with web_script(queue) as script:
        for number in range(200):
            args = "{" if queue.is_postgresql else b"\xff"  # PostgreSQL takes no text that is not UTF-8
            script.write({"task": f"tasks.\x1b[2J{number}", "args": args, "priority": -1})
        script.write({"task": "tasks.note", "args": '["last"]'})
        assert_ran_clean(queue)
    assert notes_of(queue) == ["last"]
    assert queue.statuses() == [4] * 200


# ---- generated rows

AMONG = ["tasks.note", "tasks.only", "tasks.share", "tasks", "os.system", "tasks.json.dumps", "tasks.__doc__", ""]
EDGES = [-1, 0, 1, 2, 5, 255, 256, MOST_SIGNED, -MOST_SIGNED - 1, MOST_UNSIGNED, MOST_UNSIGNED + 1, 2**63 - 1, 2**64]

anything = st.one_of(
    st.none(),
    st.integers(-(2**70), 2**70),
    st.sampled_from(EDGES),
    st.floats(allow_nan=False, allow_infinity=False),
    # Surrogates too, which only a broken program can send.
    st.text(st.characters(), max_size=30),
    st.binary(max_size=30),
    st.sampled_from([PAST, FUTURE, Sql("'2020-01-01 00:00:00'"), Sql("'0000-00-00 00:00:00'")]),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(), max_size=10)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
OWN: dict[str, st.SearchStrategy[object]] = {
    "args": json_values.map(json.dumps) | json_values.map(lambda value: json.dumps(value)[1:]) | anything,
    "status": st.sampled_from([0, 0, 1, 2, 3, 4, 5, 6]) | anything,
    "due_at": st.sampled_from([None, PAST, FUTURE]) | anything,
    "started_at": st.sampled_from([None, PAST, FUTURE]) | anything,
    "attempts": st.sampled_from([0, 1, 9, 10, 11]) | anything,
    "max_attempts": st.sampled_from([None, 0, 1, 10]) | anything,
    "awaited": st.sampled_from([0, 1, 255]) | anything,
}
PLAIN = ("group_id", "priority", "unique_key", "claim", "error_text", "finished_at", "created_at", "updated_at")
row = st.fixed_dictionaries({"task": st.sampled_from(AMONG) | anything}, optional=OWN | dict.fromkeys(PLAIN, anything))
hostile_rows = st.lists(row, min_size=20, max_size=50)


def generated(batches: int) -> settings:
    """Settings of hypothesis where an example is a whole run of a worker; each empties the table before it begins."""
    return settings(max_examples=batches, deadline=None, suppress_health_check=list(HealthCheck))


def assert_survived(queue: Queue, rows: Sequence[Columns]) -> None:
    """One batch of rows, good ones among them, one run: what holds of every row."""
    with web_script(queue) as script:
        script.sql("DELETE FROM jobs_queue")
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
    notes = [note for note in notes_of(queue) if isinstance(note, str) and note.startswith("good: ")]
    assert sorted(notes) == sorted(good)
    for row_id, was in before.items():
        _assert_dealt_with(was, after.get(row_id))


def _assert_dealt_with(was: Row, now: Row | None) -> None:
    if was.status not in (0, 1, 3, 5):
        assert now == was, "a row that is none of the worker's was changed"
    elif was.status == 0 and now is not None:
        assert now.status in (3, 4, 5), now
        assert now.error_text if now.status in (3, 4) else now.due_at is not None, now
    elif now is not None and now != was:
        assert now.status in (3, 4, 5), now


WORST_CLAIM = {"task": "tasks.note", "status": 1, "due_at": PAST, "started_at": PAST, "attempts": MOST_UNSIGNED}


@generated(batches=1)
@given(rows=hostile_rows)
@example(rows=[WORST_CLAIM, WORST_CLAIM | {"max_attempts": MOST_UNSIGNED}])
def test_any_rows_are_survived(queue: Queue, rows: list[dict[str, object]]) -> None:
    assert_survived(queue, rows)


@pytest.mark.long
@EACH_DATABASE
@generated(batches=50)
@given(rows=hostile_rows)
def test_any_rows_are_survived_at_length(queue: Queue, rows: list[dict[str, object]]) -> None:
    assert_survived(queue, rows)
