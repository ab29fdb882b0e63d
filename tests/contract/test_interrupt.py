"""An interrupt may come at any instant of a verb: the next verb on that store is right, and nothing is doubled.

Each verb is interrupted again and again, each time some lines of Python later, over its whole length.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

import pytest

from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.stop import Stop, TaskInterrupted
from taskserver.stores import Store
from taskserver.stores.retrying import RetryPolicy, Scope
from tests.contract.verbs import add
from tests.support.databases import EACH_SERVER
from tests.support.rows import Rows

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of drivers' __del__
INSTANTS = 60
ADD_PRIORITY = "UPDATE {table} SET priority = priority + 1 WHERE task = ?"
SLEEP = {"mysql": "SELECT SLEEP(1)", "postgresql": "SELECT 1 FROM pg_sleep(1)"}
Verb = Callable[[int], object]


def lines_until(verb: Verb, number: int, most: int = sys.maxsize) -> int:
    """Calls a verb with a number; how many lines it ran. It is interrupted before one more than `most`."""
    lines, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        # Not while an exception is handled: it would stay the context of all later ones in this process.
        if lines > most and event == "line" and sys.exc_info()[1] is None:
            raise TaskInterrupted
        return trace

    sys.settrace(trace)
    try:
        verb(number)
    except TaskInterrupted:
        pass
    finally:
        sys.settrace(before)
    return lines


def interrupt_at_each_instant(verb: Verb, check: Verb) -> int:
    """Calls a verb with a number, interrupted a little later each time, then a check; how often it was interrupted."""
    check(INSTANTS)  # it is connected now
    lines, interrupts = lines_until(verb, INSTANTS), 0
    for number in range(INSTANTS):
        most = lines * number // INSTANTS
        interrupts += lines_until(verb, number, most) > most
        check(number)
    assert interrupts > INSTANTS // 2, "the verb is much shorter than when it was measured"
    return interrupts


def test_a_verb_gets_no_answer_of_the_one_before(store: Store) -> None:
    database = store.database

    def fetch(number: int) -> None:
        if number % 2:
            database.disconnect()
        assert database.fetch_value(f"SELECT {number}") == number

    def fetch_another(number: int) -> None:
        assert database.fetch_value(f"SELECT {-number - 1}") == -number - 1

    interrupt_at_each_instant(fetch, fetch_another)


@EACH_SERVER
def test_a_verb_that_is_interrupted_while_it_waits_for_an_answer_leaves_it_to_nobody(store: Store, rows: Rows) -> None:
    database = store.database
    database.fetch_value("SELECT 1")
    with Alarm(Stop(), 60) as alarm, pytest.raises(TaskInterrupted):
        alarm.call(0.1, database.fetch, SLEEP[rows.kind])
    assert database.fetch_value("SELECT 7") == 7


def test_an_interrupted_add_adds_once_or_not_at_all(store: Store, rows: Rows) -> None:
    adds, added = count(), {}

    def add_next(number: int) -> None:
        args = f"[{next(adds)}]"
        added[add(store, args=args)] = args

    interrupts = interrupt_at_each_instant(add_next, add_next)
    there = {row["id"]: row["args"] for row in rows.all()}
    assert added.items() <= there.items()
    assert len(set(there.values())) == len(there)
    assert len(there) - len(added) <= interrupts


def test_the_next_verb_commits_nothing_of_an_interrupted_transaction(store: Store, rows: Rows) -> None:
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
