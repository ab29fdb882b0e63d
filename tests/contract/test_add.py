"""Add: → new, or waiting. One task or many, with a key or without, by SQL too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

import pytest

from taskserver.errors import Conflict, DatabaseError, InvalidTask
from taskserver.model.new_task import NewTask
from taskserver.model.task import Status
from taskserver.stores import Store
from tests.contract.verbs import PLAIN, STATES, add, add_many, claim, keyed, put_into, wake
from tests.support.processes import WAIT_SECONDS
from tests.support.rows import Rows, as_instant


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


def test_a_producer_with_plain_sql_may_say_when(store: Store, rows: Rows) -> None:
    added: dict[str, tuple[int, float | None]] = {
        "at_once": (0, None),
        "later": (0, 3600),
        "now": (0, -3600),
        "waits": (5, 3600),
        "woken": (5, -3600),
    }
    for task, (status, seconds) in added.items():
        due_at = "NULL" if seconds is None else rows.after(seconds)
        rows.execute(f"INSERT INTO jobs_queue (task, status, due_at) VALUES ('{task}', {status}, {due_at})")
    assert wake(store) == 1
    assert [task.task for task in claim(store)] == ["at_once", "now", "woken"]
    assert rows.statuses() == [1, 5, 1, 5, 1]


# ---- many


def test_many_tasks_are_added_in_order_with_the_ids_of_their_rows(store: Store, rows: Rows) -> None:
    assert add_many(store, []) == []
    first = add(store)
    added = add_many(store, (NewTask("tasks.send", f"[{n}]", n % 7, -n) for n in range(2500)))
    assert rows.execute(f"SELECT id, args, group_id, priority FROM jobs_queue WHERE id <> {first} ORDER BY id") == [
        (task_id, f"[{n}]", n % 7, -n) for n, task_id in enumerate(added)
    ]
    assert len(added) == 2500


def test_many_tasks_of_all_kinds_are_added_in_order(store: Store, rows: Rows) -> None:
    """Also if some have the key of another one, which stands or is run again."""
    stands, again = store.producing.add(keyed("stands", "[0]")), store.producing.add(keyed("again", "[0]"))
    tasks = [
        PLAIN._replace(args="[1]"),
        PLAIN._replace(args="[2]", delay_seconds=60.0),
        PLAIN._replace(args="[3]", due_at="2030-01-01 00:00:00.000000"),
        keyed("a", "[4]"),
        keyed("stands", "[5]"),
        keyed("a", "[6]"),
        PLAIN._replace(args="[7]", max_attempts=1),
        keyed("again", "[8]", rerun=True),
        keyed("b", "[9]", rerun=True),
        keyed("b", "[10]", rerun=True),
        keyed("again", "[11]", rerun=True, version=1),
        keyed("again", "[12]", rerun=True, version=1),
        PLAIN._replace(args="[13]"),
        *(keyed(f"key {number % 150}", f"[{100 + number % 150}]") for number in range(300)),
    ]
    added = add_many(store, tasks)
    args = {row["id"]: row["args"] for row in rows.all()}
    assert [added[4], added[7], added[10], added[11]] == [stands, again, again, again]
    wanted = [task.args for task in tasks]
    wanted[4], wanted[5], wanted[7], wanted[8], wanted[11] = "[0]", "[4]", "[11]", "[10]", "[11]"
    assert [args[task_id] for task_id in added] == wanted
    assert len(args) == len(set(added)) == 159
    assert rows.statuses().count(Status.WAITING) == 2


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


KEYS = ("k", "K", "k ", " k", "k\0", "k\0a", "ä", "a\u0308", "Ä", "ß", "ss", "🦊", "%", "k%", "_", "'", '"', "\\", "0")


def test_keys_are_compared_by_their_bytes(store: Store, rows: Rows) -> None:
    keys = [key for key in KEYS if "\0" not in key or not rows.is_postgresql]
    added = add_many(store, [keyed(key) for key in keys])
    assert len(set(added)) == len(keys)
    assert [store.producing.add(keyed(key)) for key in keys] == added
    for key in set(KEYS).difference(keys):  # PostgreSQL cannot hold it
        with pytest.raises(InvalidTask, match="NUL"):
            store.producing.add(keyed(key))
    assert len(rows.all()) == len(keys)


@pytest.mark.parametrize("letter", ["k", "ä"])
def test_a_key_longer_than_its_column_is_refused_and_not_cut(store: Store, rows: Rows, letter: str) -> None:
    fits = letter * (255 // len(letter.encode()))
    task_id = store.producing.add(keyed(fits))
    for is_rerun in (False, True):
        too_long = keyed(fits + "k" * 2, rerun=is_rerun)
        for tasks in ([too_long], [keyed("other"), too_long]):
            with pytest.raises(DatabaseError):
                add_many(store, tasks)
        with pytest.raises(DatabaseError):
            store.producing.add(too_long)
    assert [row["id"] for row in rows.all()] == [task_id]


@pytest.mark.parametrize(("ending", "is_same"), [("ROLLBACK", True), ("COMMIT", False)])
def test_a_waiting_producer_goes_on_once_the_row_of_its_key_is_released(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch, ending: str, is_same: bool
) -> None:
    monkeypatch.setattr("taskserver.stores.sqlite.session.LOCK_WAIT_SECONDS", 0.05)
    first = store.producing.add(keyed(args="[1]"))
    store.close()  # the next connection waits in shorter turns
    rows.execute(rows.begin)
    rows.execute("DELETE FROM jobs_queue WHERE unique_key = 'k'")
    with held_up(store, lambda: store.producing.add(keyed(args="[2]"))) as added:
        rows.execute(ending)
    assert (added == [first]) == is_same
    assert [(row["id"], row["args"]) for row in rows.all()] == [(added[0], "[1]" if is_same else "[2]")]


@contextmanager
def held_up(store: Store, work: Callable[[], object]) -> Iterator[list[object]]:
    """Do work in another thread; others are in its way until the end of the `with`, and were met by its start."""
    outcomes: list[object] = []
    met = threading.Event()
    dialect = store.database.dialect
    plain_error = dialect.error

    def error(error: BaseException) -> DatabaseError:
        ours = plain_error(error)
        if isinstance(ours, Conflict):
            met.set()
        return ours

    dialect.error = error  # type: ignore[assignment,method-assign]
    thread = threading.Thread(target=lambda: outcomes.append(work()))
    thread.start()
    try:
        assert met.wait(WAIT_SECONDS)
        assert outcomes == []
        yield outcomes
    finally:
        thread.join(WAIT_SECONDS)
        del dialect.error
