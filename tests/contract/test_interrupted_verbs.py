"""An interrupt may come at any instant of a verb: the next verb on that store is right, and nothing is doubled.

Each verb is interrupted again and again, each time a little later after its beginning, over its whole length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from timeit import timeit

import pytest

from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.stop import Stop, TaskInterrupted
from taskserver.model.new_task import NewTask
from taskserver.stores import Store
from taskserver.stores.retrying import RetryPolicy, Scope
from tests.support.rows import Rows

INSTANTS = 400
MIN_INTERRUPTS = 5
"""Fewer would show that the verb was hardly interrupted at all."""
ADD_PRIORITY = "UPDATE {table} SET priority = priority + 1 WHERE task = ?"


@pytest.fixture
def limit() -> Iterator[Alarm]:
    with Alarm(Stop(), 60) as made:
        yield made


def task(name: str, args: str | None = None) -> NewTask:
    return NewTask(name, args, 0, 0)


def interrupt_at_each_instant(limit: Alarm, verb: Callable[[int], object], check: Callable[[int], object]) -> int:
    """Call the verb with a number, interrupted a little later each time, and check after each; how often it was."""
    interrupts = 0
    usual_seconds = timeit(lambda: verb(INSTANTS), number=10) / 10
    for number in range(INSTANTS):
        try:
            limit.call(1e-6 + 1.2 * usual_seconds * number / INSTANTS, verb, number)
        except TaskInterrupted:
            interrupts += 1
        check(number)
    assert interrupts >= MIN_INTERRUPTS
    return interrupts


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_verb_gets_no_answer_of_the_one_before(store: Store, limit: Alarm, is_connected: bool) -> None:
    database = store.database

    def fetch(number: int) -> None:
        if not is_connected:
            database.disconnect()
        assert database.fetch_value(f"SELECT {number}") == number

    def fetch_another(number: int) -> None:
        assert database.fetch_value(f"SELECT {-number - 1}") == -number - 1

    interrupt_at_each_instant(limit, fetch, fetch_another)


def test_an_interrupted_add_adds_once_or_not_at_all(store: Store, rows: Rows, limit: Alarm) -> None:
    adds, added = count(), {}

    def add(number: int) -> None:
        args = f"[{next(adds)}]"
        added[store.producing.add(task("tasks.a", args))] = args

    interrupts = interrupt_at_each_instant(limit, add, add)
    there = {row["id"]: row["args"] for row in rows.all()}
    assert added.items() <= there.items()
    assert len(set(there.values())) == len(there)
    assert len(there) - len(added) <= interrupts


def test_the_next_verb_commits_nothing_of_an_interrupted_transaction(store: Store, rows: Rows, limit: Alarm) -> None:
    first, second, other = (store.producing.add(task(name)) for name in ("tasks.a", "tasks.b", "tasks.c"))
    database, returned = store.database, []

    def change_both() -> None:
        assert database.write(ADD_PRIORITY, ["tasks.a"]) == 1
        assert database.write(ADD_PRIORITY, ["tasks.b"]) == 1

    def change(number: int) -> None:
        database.run(RetryPolicy(Scope.TRANSACTION, 60), change_both)
        returned.append(number)

    checks: list[int] = []

    def check(number: int) -> None:
        assert database.change(ADD_PRIORITY, ["tasks.c"]) == 1
        checks.append(number)

    interrupts = interrupt_at_each_instant(limit, change, check)
    priorities = {row["id"]: row["priority"] for row in rows.all()}
    assert priorities[first] == priorities[second]
    assert len(returned) <= priorities[first] <= len(returned) + interrupts
    assert priorities[other] == len(checks)


def test_an_interrupt_while_an_error_is_undone_leaves_no_transaction_open(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.producing.add(task("tasks.a"))
    database = store.database

    def fail() -> None:
        database.write(ADD_PRIORITY, ["tasks.a"])
        monkeypatch.setattr(database.session(), "roll_back", interrupted)
        raise ZeroDivisionError

    with pytest.raises(TaskInterrupted):
        database.run(RetryPolicy(Scope.TRANSACTION, 60), fail)
    store.producing.add(task("tasks.b"))
    assert {row["task"]: row["priority"] for row in rows.all()} == {"tasks.a": 0, "tasks.b": 0}


def interrupted() -> None:
    raise TaskInterrupted
