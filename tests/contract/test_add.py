"""Add: → new, or waiting; one task or many, with a key or without, by SQL too. Rerun: any state → new, or waiting.

test_store_machine.py shows what becomes of a task that runs meanwhile, however it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

from taskserver.errors import DatabaseError, InvalidTask
from taskserver.model.new_task import NewTask
from taskserver.model.task import Status
from taskserver.stores import Store
from tests.contract.verbs import PLAIN, STATES, add, add_many, keyed, put_into, rerun
from tests.support.rows import Row, Rows, as_instant


@pytest.mark.parametrize("by_sql", [False, True], ids=["api", "sql"])
def test_an_added_task_is_new_and_has_the_defaults_of_the_contract(store: Store, rows: Rows, by_sql: bool) -> None:
    args = '{"to": "ä@example.org %s ?"}'
    if by_sql:
        rows.execute(f"INSERT INTO jobs_queue (task, args, group_id, priority) VALUES ('tasks.send', '{args}', 3, -7)")
    else:
        add(store, 3, -7, args=args)
    (row,) = rows.all()
    said = {"id": row["id"], "task": "tasks.send", "args": args, "group_id": 3, "priority": -7}
    clocks = {name: row[name] for name in ("created_at", "updated_at")}
    assert row == dict.fromkeys(row) | said | clocks | {"status": 0, "attempts": 0, "stage": 0, "awaited": 0}
    for instant in clocks.values():
        assert rows.seconds_from_now(instant) == pytest.approx(0, abs=30)


def test_an_added_task_has_all_that_its_producer_said(store: Store, rows: Rows) -> None:
    at = "2030-02-03 04:05:06.789000"
    row = rows.row(store.producing.add(NewTask("tasks.send", "[1]", 3, -7, 4, None, at, "kü", True, 2**63 - 1)))
    said = {"task": "tasks.send", "args": "[1]", "group_id": 3, "priority": -7, "max_attempts": 4, "status": 5}
    assert row | said | {"version": 2**63 - 1, "attempts": 0} == row
    assert row["unique_key"] in ("kü", "kü".encode())
    assert as_instant(row["due_at"]) == datetime.fromisoformat(at)
    delayed = rows.row(store.producing.add(PLAIN._replace(delay_seconds=90.5)))
    assert delayed["status"] == Status.WAITING
    assert rows.seconds_from_now(delayed["due_at"]) == pytest.approx(90.5, abs=30)


# ---- many


def test_many_tasks_are_added_in_order_with_the_ids_of_their_rows(store: Store, rows: Rows) -> None:
    assert add_many(store, []) == []
    first = add(store)
    added = add_many(store, (NewTask("tasks.send", f"[{n}]", n % 7, -n) for n in range(2500)))
    assert rows.execute(f"SELECT id, args, group_id, priority FROM jobs_queue WHERE id <> {first} ORDER BY id") == [
        (task_id, f"[{n}]", n % 7, -n) for n, task_id in enumerate(added)
    ]
    assert len(added) == 2500


def test_many_tasks_with_keys_are_added_in_order(store: Store, rows: Rows) -> None:
    """Also if some have the key of another one, which stands or is run again."""
    stands, again = store.producing.add(keyed("stands", "[0]")), store.producing.add(keyed("again", "[0]"))
    tasks = [
        PLAIN._replace(args="[1]", delay_seconds=60.0),
        keyed("a", "[2]"),
        keyed("stands", "[3]"),
        keyed("a", "[4]"),
        keyed("again", "[5]", rerun=True),
        keyed("b", "[6]", rerun=True),
        keyed("b", "[7]", rerun=True),
        *(keyed(f"key {number % 150}", f"[{100 + number % 150}]") for number in range(300)),
    ]
    added = add_many(store, tasks)
    args = {row["id"]: row["args"] for row in rows.all()}
    assert (added[2], added[4]) == (stands, again)
    wanted = [task.args for task in tasks]
    wanted[2], wanted[3], wanted[5] = "[0]", "[2]", "[7]"
    assert [args[task_id] for task_id in added] == wanted
    assert len(args) == len(set(added)) == 155


def test_an_error_at_one_of_many_tasks_adds_none(store: Store, rows: Rows) -> None:
    def broken() -> Iterator[NewTask]:
        yield from [PLAIN] * 1500
        raise ValueError("line 1501")

    with pytest.raises(ValueError, match="line 1501"):
        add_many(store, broken())
    with pytest.raises(DatabaseError):
        add_many(store, [PLAIN] * 1500 + [PLAIN._replace(group_id=-1)])
    assert rows.all() == []
    assert add_many(store, [PLAIN]) == [row["id"] for row in rows.all()]


# ---- keys: while a row has one, adding does nothing


def test_a_key_that_stands_keeps_its_row_as_it_is_in_every_state(store: Store, rows: Rows) -> None:
    first = store.producing.add(keyed(args="[1]"))
    for state in STATES:
        before = put_into(rows, state)
        assert store.producing.add(keyed(args="[2]", group_id=9, max_attempts=1, delay_seconds=60.0)) == first
        assert add_many(store, [keyed(args="[3]"), keyed(args="[4]")]) == [first, first]
        assert rows.all() == [before], state


KEYS = ("k", "K", "k ", "k\0", "ä", "a\u0308", "Ä", "ß", "ss", "🦊", "k%", "'", "\\")


def test_keys_are_compared_by_their_bytes(store: Store, rows: Rows) -> None:
    keys = [key for key in KEYS if "\0" not in key or not rows.is_postgresql]
    added = add_many(store, [keyed(key) for key in keys])
    assert len(set(added)) == len(keys)
    assert [store.producing.add(keyed(key)) for key in keys] == added
    for key in set(KEYS).difference(keys):  # PostgreSQL cannot hold it
        with pytest.raises(InvalidTask, match="NUL"):
            store.producing.add(keyed(key))
    assert len(rows.all()) == len(keys)


def test_a_key_longer_than_its_column_is_refused_and_not_cut(store: Store, rows: Rows) -> None:
    fits = "ä" * 127
    task_id = store.producing.add(keyed(fits))
    for is_rerun in (False, True):
        for tasks in ([keyed(fits + "kk", rerun=is_rerun)], [keyed("other"), keyed(fits + "kk", rerun=is_rerun)]):
            with pytest.raises(DatabaseError):
                add_many(store, tasks)
    assert [row["id"] for row in rows.all()] == [task_id]


def without_clocks(row: Row) -> Row:
    return {name: value for name, value in row.items() if name not in ("created_at", "updated_at")}


@pytest.mark.parametrize("delay_seconds", [None, 60.0], ids=["at once", "delayed"])
def test_a_rerun_makes_a_row_new_with_all_that_it_says_unless_the_row_runs_or_waits(
    store: Store, rows: Rows, delay_seconds: float | None
) -> None:
    store.producing.add(rerun("[1]"))
    other = NewTask("tasks.other", "[2]", 5, -3, 6, delay_seconds, None, "k", True, None)
    said = {"task": "tasks.other", "args": "[2]", "group_id": 5, "priority": -3, "max_attempts": 6, "attempts": 0}
    said |= {"error_text": None, "finished_at": None}
    for state in STATES:
        before = put_into(rows, state)
        assert store.producing.add(other) == before["id"]
        (row,) = rows.all()
        if state == "started":
            # Its worker goes on: attempts 0 are the mark that it is to run once more.
            becomes = {}
        elif state == "waiting for other tasks":
            becomes = {"status": 5, "claim": None, "due_at": None}
        elif delay_seconds:
            becomes = {"status": 5, "claim": None, "due_at": row["due_at"]}
            assert rows.seconds_from_now(row["due_at"]) == pytest.approx(delay_seconds, abs=30)
        else:
            becomes = {"status": 0, "claim": None, "due_at": None}
        assert without_clocks(row) == without_clocks(before) | said | becomes, state
        assert rows.seconds_from_now(row["updated_at"]) == pytest.approx(0, abs=30)


@pytest.mark.parametrize(
    ("stands", "comes", "is_newer"),
    [(5, 4, False), (5, 5, False), (5, 6, True), (5, None, True), (None, 0, True), (2**63 - 1, 1, False)],
)
def test_a_rerun_of_no_newer_version_changes_nothing(
    store: Store, rows: Rows, stands: int | None, comes: int | None, is_newer: bool
) -> None:
    task_id = store.producing.add(rerun("[1]"))
    for state in STATES:
        rows.set(f"version = {'NULL' if stands is None else stands}")
        before = put_into(rows, state)
        assert add_many(store, [rerun("[2]", version=comes)]) == [task_id]
        (row,) = rows.all()
        assert (row["args"] == "[2]") == is_newer, state
        assert row["version"] == max(stands or 0, comes or 0), state
        assert is_newer or row == before, state
