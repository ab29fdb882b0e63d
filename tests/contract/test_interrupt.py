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
from taskserver.stores import Store
from taskserver.stores.retrying import RetryPolicy, Scope
from tests.contract.verbs import add
from tests.support.rows import Rows

INSTANTS = 60
MIN_INTERRUPTS = 10
"""Fewer would show that the verb was hardly interrupted at all; on a busy machine some more rounds may be needed."""
MAX_ROUNDS = 10
ADD_PRIORITY = "UPDATE {table} SET priority = priority + 1 WHERE task = ?"
Verb = Callable[[int], object]


@pytest.fixture
def interrupt_at_each_instant() -> Iterator[Callable[[Verb, Verb], int]]:
    """Calls a verb with a number, interrupted a little later each time, then a check; how often it was interrupted."""

    def call(verb: Verb, check: Verb) -> int:
        interrupts = 0
        usual_seconds = timeit(lambda: verb(INSTANTS), number=10) / 10
        for number in range(MAX_ROUNDS * INSTANTS):
            if number % INSTANTS == 0 and interrupts >= MIN_INTERRUPTS:
                break
            try:
                alarm.call(1e-6 + 1.2 * usual_seconds * (number % INSTANTS) / INSTANTS, verb, number)
            except TaskInterrupted:
                interrupts += 1
            check(number)
        assert interrupts >= MIN_INTERRUPTS
        return interrupts

    with Alarm(Stop(), 60) as alarm:
        yield call


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_verb_gets_no_answer_of_the_one_before(
    store: Store, interrupt_at_each_instant: Callable[[Verb, Verb], int], is_connected: bool
) -> None:
    database = store.database

    def fetch(number: int) -> None:
        if not is_connected:
            database.disconnect()
        assert database.fetch_value(f"SELECT {number}") == number

    def fetch_another(number: int) -> None:
        assert database.fetch_value(f"SELECT {-number - 1}") == -number - 1

    interrupt_at_each_instant(fetch, fetch_another)


def test_an_interrupted_add_adds_once_or_not_at_all(
    store: Store, rows: Rows, interrupt_at_each_instant: Callable[[Verb, Verb], int]
) -> None:
    adds, added = count(), {}

    def add_next(number: int) -> None:
        args = f"[{next(adds)}]"
        added[add(store, args=args)] = args

    interrupts = interrupt_at_each_instant(add_next, add_next)
    there = {row["id"]: row["args"] for row in rows.all()}
    assert added.items() <= there.items()
    assert len(set(there.values())) == len(there)
    assert len(there) - len(added) <= interrupts


def test_the_next_verb_commits_nothing_of_an_interrupted_transaction(
    store: Store, rows: Rows, interrupt_at_each_instant: Callable[[Verb, Verb], int]
) -> None:
    first, second, other = (add(store, task=name) for name in ("tasks.a", "tasks.b", "tasks.c"))
    database, returned, checks = store.database, count(), count()

    def change_both() -> None:
        assert database.write(ADD_PRIORITY, ["tasks.a"]) == 1
        assert database.write(ADD_PRIORITY, ["tasks.b"]) == 1

    def change(number: int) -> None:
        database.run(RetryPolicy(Scope.TRANSACTION, 60), change_both)
        next(returned)

    def check(number: int) -> None:
        assert database.change(ADD_PRIORITY, ["tasks.c"]) == 1
        next(checks)

    interrupts = interrupt_at_each_instant(change, check)
    priorities, done = {row["id"]: row["priority"] for row in rows.all()}, next(returned)
    assert priorities[first] == priorities[second]
    assert done <= priorities[first] <= done + interrupts
    assert priorities[other] == next(checks)


def test_an_interrupt_while_an_error_is_undone_leaves_no_transaction_open(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, task="tasks.a")
    database = store.database

    def interrupt() -> None:
        raise TaskInterrupted

    def fail() -> None:
        database.write(ADD_PRIORITY, ["tasks.a"])
        monkeypatch.setattr(database.session(), "roll_back", interrupt)
        raise ZeroDivisionError

    with pytest.raises(TaskInterrupted):
        database.run(RetryPolicy(Scope.TRANSACTION, 60), fail)
    add(store, task="tasks.b")
    assert {row["task"]: row["priority"] for row in rows.all()} == {"tasks.a": 0, "tasks.b": 0}
