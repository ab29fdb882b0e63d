"""Rows with texts longer than any that we write: whoever looks at them never holds them."""

from __future__ import annotations

import tracemalloc

import pytest

from taskserver.stores.database.statements import TOO_LONG
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
        views.telling(10)
        forged.server.errors()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MIB
    assert [(state.result, state.progress) for state in states if state] == [(None, None)] * 3
    assert {task.args for task in listed[:3]} == {TOO_LONG}


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
