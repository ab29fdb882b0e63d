"""Rows with texts longer than any that we write: whoever looks at them never holds them."""

from __future__ import annotations

import tracemalloc

import pytest

from taskserver.stores.statements import TOO_LONG
from tests.support.printed import json_of, text_of
from tests.support.queues import Queue
from tests.support.turns import A_SERVER, ONE_STORE

MIB = 2**20
FORGED = {"args": 2 * MIB, "result": 8 * MIB}
"""Bytes in each column; the other columns of MySQL take no text of forged size."""
FORGED_IN_SQLITE = FORGED | dict.fromkeys(("stages", "error_text", "progress"), 2 * MIB)


@pytest.fixture
def forged(queue: Queue) -> Queue:
    sizes = FORGED_IN_SQLITE if queue.is_sqlite else FORGED
    queue.add("tasks.note")
    for status in (1, 2, 4):
        columns = ", ".join(sizes)
        values = [f'["{"x" * size}"]' for size in sizes.values()]
        queue.sql(
            f"INSERT INTO jobs_queue (task, status, started_at, {columns}) "
            f"VALUES ('tasks.note', {status}, {queue.now}, {', '.join('?' * len(values))})",
            *values,
        )
    return queue


def test_a_reader_never_holds_a_text_of_forged_size(forged: Queue) -> None:
    views = forged.server.store.views
    views.show(1)  # connect, and import what that takes
    tracemalloc.start()
    try:
        states = [forged.server.get(task_id) for task_id in (2, 3, 4)]
        listed = views.list((), (), 10)
        views.running(10)
        forged.server.errors()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB
    assert [(state.result, state.progress) for state in states if state] == [(None, None)] * 3
    assert {task.args for task in listed[:3]} == {TOO_LONG}


def test_what_lies_behind_a_nul_is_not_held_where_it_is_long(sqlite_queue: Queue) -> None:
    """SQLite counts the characters of a name up to a NUL: its CHECK lets any length through."""
    for _ in range(50):
        sqlite_queue.sql("INSERT INTO jobs_queue (task) VALUES ('tasks.note' || char(0) || hex(zeroblob(?)))", MIB // 2)
    store = sqlite_queue.server.store
    store.views.show(1)
    tracemalloc.start()
    try:
        claim = store.claims.claim(50, ())
        names = {task.task[:11] for task in claim.tasks}
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB  # the driver holds one of them for a moment
    assert (len(claim.tasks), names) == (50, {"tasks.note\0"})


@pytest.mark.parametrize("forged_name", ["'x' || hex(zeroblob(?))", "'x' || char(0) || hex(zeroblob(?))"])
def test_a_line_stays_short_whatever_length_its_names_have(sqlite_queue: Queue, forged_name: str) -> None:
    """SQLite's columns have no lengths."""
    for column in ("name", "task", "cron", "timezone"):
        own = {"name": "'forged'", "task": "'tasks.note'", "cron": "'* * * * *'", "timezone": "'UTC'"}
        if forged_name.count("char(0)") or column != "task":  # its CHECK counts up to a NUL
            columns = own | {"name": f"'{column}'", column: forged_name}
            sqlite_queue.sql(
                f"INSERT INTO jobs_queue_schedules ({', '.join(columns)}, next_at) "
                f"VALUES ({', '.join(columns.values())}, '2020-01-01 00:00:00')",
                MIB,
            )
    sqlite_queue.sql(f"INSERT INTO jobs_queue_workers (host, group_ids, pid) VALUES ({forged_name}, '1', 1)", MIB)
    ended = sqlite_queue.worker()
    told = [ended, *(sqlite_queue.client(command) for command in ("status", "doctor", "list", "stats"))]
    lines = "".join(one.stdout + one.stderr for one in told).splitlines()
    assert max(map(len, lines)) < 15_000
    [schedules] = [line for line in lines if " schedules " in line]
    assert "client.py unschedule NAME" in schedules


@A_SERVER
def test_a_person_sees_that_a_text_is_too_long(forged: Queue) -> None:
    assert text_of(forged, "show", 3).count(TOO_LONG) == (5 if forged.is_sqlite else 2)
    assert [task["args"] for task in json_of(forged, "list")] == [TOO_LONG] * 3 + [None]


@ONE_STORE
def test_texts_of_the_greatest_allowed_size_are_shown(queue: Queue) -> None:
    args, result = f'["{"x" * (MIB - 4)}"]', f'"{"ä" * (32 * 1024 - 1)}"'
    queue.sql("INSERT INTO jobs_queue (task, args, result, status) VALUES ('tasks.note', ?, ?, 2)", args, result)
    report = json_of(queue, "show", 1)
    assert (report["args"], report["result"]) == (args, result)
    state = queue.server.get(1)
    assert state is not None
    assert len(state.result) == 32 * 1024 - 1
