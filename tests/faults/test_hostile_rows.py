"""Rows as no honest producer writes them: odd bytes, wrong types and huge values in every column.

They are written by SQL alone, as a buggy or malicious web script would: on MySQL in a session that takes anything
(sql_mode '', latin1). Then worker.py runs as a process and client.py looks at what it left. Promise 5: a bad row
becomes fatal with a clear error_text and stops nothing else.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from itertools import chain
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taskserver.cli.client import main as client_main
from tests.faults.hostile import (
    CONTROLS,
    DUE_AT,
    ERROR_TEXT,
    FUTURE,
    KINDS,
    MOST_SIGNED,
    MOST_UNSIGNED,
    PAST,
    RUNS,
    STATUS,
    Columns,
    Nasty,
    Raw,
    Row,
    Sql,
    complaint_of,
    web_script,
    write_among_good_ones,
)
from tests.support.queues import Queue

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
EACH_KIND = pytest.mark.parametrize("nasties", KINDS.values(), ids=KINDS)


@EACH_KIND
def test_every_hostile_row_becomes_what_it_must_and_the_good_ones_among_them_run_once(
    queue: Queue, nasties: list[Nasty]
) -> None:
    assert_that_each_becomes_what_it_must(queue, nasties)


@EACH_KIND
def test_hostile_rows_spoil_no_round_of_tasks_that_share_their_commits(queue: Queue, nasties: list[Nasty]) -> None:
    queue.define(SHARING)
    assert_that_each_becomes_what_it_must(queue, nasties)


def assert_that_each_becomes_what_it_must(queue: Queue, nasties: list[Nasty]) -> None:
    with web_script(queue) as script:
        written = write_among_good_ones(script, nasties)
        assert_ran_clean(queue)
        after = script.read()
    wrong = [complaint for one in written if (complaint := complaint_of(one, after, queue.kind))]
    assert not wrong, "\n".join(wrong)
    notes = notes_of(queue)
    for one in written:
        assert notes.count(f"good: {one.nasty.name}") == 1
        ran = "args" not in one.nasty.columns and one.id is not None and one.id not in after
        assert notes.count(one.nasty.name) == ran, one.nasty.name


def test_client_lives_through_hostile_rows_and_a_second_run_changes_none(
    queue: Queue,
) -> None:
    with web_script(queue) as script:
        ids = [one.id for one in write_among_good_ones(script, chain(*KINDS.values())) if one.id is not None]
        before = script.read()
        assert_client_lives(queue, ids)
        assert_ran_clean(queue)
        after, notes = script.read(), queue.notes()
        assert_client_lives(queue, sorted(row_id for row_id, row in after.items() if row != before[row_id]))
        assert_ran_clean(queue)
        assert script.read() == after
    assert queue.notes() == notes


@pytest.mark.parametrize("mode", ["move", "mark"])
def test_hostile_rows_that_run_are_kept_as_the_mode_says_and_can_be_shown(queue: Queue, mode: str) -> None:
    with web_script(queue) as script:
        written = write_among_good_ones(script, [*KINDS["instants"], *KINDS["keys"], *KINDS["numbers"]])
        assert_ran_clean(queue, TASKSERVER_MODE=mode)
    kept = "jobs_queue_done" if mode == "move" else "jobs_queue"
    done = {row_id for (row_id,) in queue.sql(f"SELECT id FROM {kept} WHERE status = 2 AND finished_at IS NOT NULL")}
    sure = {one.id for one in written if one.nasty.allowed(queue.kind) == {RUNS}}
    assert sure
    assert sure <= done
    assert_client_lives(queue, sorted(done))


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
        assert now == row, "a row that is none of the worker's was changed"
    elif row[STATUS] == 0 and now is not None:
        assert now[STATUS] in (3, 4, 5), now
        assert now[ERROR_TEXT] if now[STATUS] in (3, 4) else now[DUE_AT] is not None, now
    elif now is not None and now != row:
        assert now[STATUS] in (3, 4, 5), now


@generated(batches=5)
@given(rows=hostile_rows)
@example(rows=[WORST_CLAIM, WORST_CLAIM | {"max_attempts": MOST_UNSIGNED}])
def test_any_rows_are_survived(queue: Queue, rows: list[dict[str, object]]) -> None:
    assert_survived(queue, rows)


@pytest.mark.long
@generated(batches=150)
@given(rows=hostile_rows)
def test_any_rows_are_survived_at_length(queue: Queue, rows: list[dict[str, object]]) -> None:
    assert_survived(queue, rows)
