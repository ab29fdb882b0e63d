"""Delayed, unique and rerun tasks and priorities on the fly, as producers see them: by the API, by SQL, in every mode.

Workers are real processes. A race shows that it raced: somebody waited, or a change came in the midst of a run.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pymysql
import pytest

from taskserver import InvalidTask, TaskServer
from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.task import ClaimedTask
from taskserver.stores import Store
from taskserver.stores.queue.due import MAX_DUE_PER_LOOK
from tests.faults.test_races import GROUPS, Race
from tests.support.documents import blocks
from tests.support.processes import WAIT_SECONDS, assert_silent, end_of, freeze, kill, thaw, wait_until
from tests.support.queues import LONG_AGO, Queue
from tests.support.servers import MySQLServer, lock_waits
from tests.support.websites import EXAMPLES, WEB_PASSWORD, Page, shown_in_comment, web_user

MODES = ("delete", "move", "mark")
EACH_MODE = pytest.mark.parametrize(
    "mode", ["mark", *(pytest.param(mode, marks=pytest.mark.long) for mode in ("delete", "move"))]
)
"""Where the mode should change nothing."""
OTHER_GROUP = 4294967295
"""Without a task: whoever works for it takes back what is due, and runs nothing."""
SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends or comes back while a test looks, unless it says so."""

TASKS = """
import os
import time

import taskserver


def wait(name):
    while not (HERE / name).exists():
        time.sleep(0.005)


def hold(text):
    note(text)
    wait(os.environ.get("GO", "go"))


def hold_by_name(text):
    note(text)
    wait(f"go-{text}")


def hold_and_fail(text):
    hold(text)
    raise ValueError("as it was asked to")


def hold_and_give_up(text):
    hold(text)
    raise taskserver.Fatal("as it was asked to")


@taskserver.task(timeout=2)
def hold_too_long(text):
    note(text)
    wait("what never comes")


hold_until_killed = hold
"""


@pytest.fixture
def server(queue: Queue) -> Iterator[TaskServer]:
    """A producer's, in mode delete."""
    with TaskServer(queue.dsn, folder=queue.folder, lease=600, max_attempts=3) as server:
        yield server


def seconds_ahead(queue: Queue) -> list[float]:
    """How far the due_at of each row that has one lies ahead by the database's clock, in order of id."""
    found = queue.rows(queue.seconds_between(queue.now, "due_at"))
    return [float(seconds) for (seconds,) in found if seconds is not None]


def pass_time(queue: Queue) -> None:
    """As if every waiting task had waited long enough."""
    queue.sql(f"UPDATE jobs_queue SET due_at = '{LONG_AGO}' WHERE status = 5 AND due_at IS NOT NULL")


# ---- delayed


def test_a_delayed_task_waits_by_the_clock_of_the_database_and_then_runs(queue: Queue, server: TaskServer) -> None:
    for delay in (3600, 3600.5, timedelta(hours=1)):
        server.add_task("tasks.note", ["later"], delay=delay)
    assert_silent(queue.worker())
    assert (queue.statuses(), queue.notes()) == ([5] * 3, [])
    assert all(3500 < seconds < 3601 for seconds in seconds_ahead(queue))
    pass_time(queue)
    assert_silent(queue.worker())
    assert (queue.notes(), queue.rows()) == (["later"] * 3, [])


def test_a_task_waits_until_its_instant_in_whatever_zone_it_is_told(queue: Queue, server: TaskServer) -> None:
    instant = datetime.now(timezone.utc) + timedelta(hours=2)
    server.add_task("tasks.note", ["utc"], at=instant)
    server.add_task("tasks.note", ["elsewhere"], at=instant.astimezone(timezone(timedelta(hours=-9, minutes=-30))))
    server.add_task("tasks.note", ["text"], at=instant.isoformat())
    server.add_task("tasks.note", ["past"], at=datetime(2020, 2, 29, tzinfo=timezone.utc))
    assert all(7100 < seconds < 7300 for seconds in seconds_ahead(queue)[:3])
    assert len(set(queue.sql("SELECT due_at FROM jobs_queue"))) == 2
    assert_silent(queue.worker("--mode", "mark"))
    assert queue.notes() == ["past"]
    pass_time(queue)
    assert_silent(queue.worker("--mode", "mark"))
    assert queue.notes() == ["past", "utc", "elsewhere", "text"]


def test_a_delay_of_nothing_is_none_and_the_shortest_and_longest_are_taken(queue: Queue, server: TaskServer) -> None:
    for delay in (0, 0.0, timedelta(0)):
        server.add_task("tasks.note", delay=delay)
    assert queue.rows("status, due_at") == [(0, None)] * 3
    server.add_task("tasks.note", delay=1e-7)
    server.add_task("tasks.note", delay=timedelta(days=3660))
    assert queue.statuses()[3:] == [5, 5]
    shortest, longest = seconds_ahead(queue)
    assert shortest <= 0
    assert longest / 86400 == pytest.approx(3660, abs=0.01)


def test_by_sql_a_task_waits_by_status_5_and_by_a_due_at_that_lies_ahead_alone(queue: Queue) -> None:
    hour = "strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hour') || '000'" if queue.is_sqlite else "NOW() + INTERVAL 1 HOUR"
    queue.sql(f"INSERT INTO jobs_queue (task, args, status, due_at) VALUES ('tasks.note', '[\"5\"]', 5, {hour})")
    queue.sql(f"INSERT INTO jobs_queue (task, args, due_at) VALUES ('tasks.note', '[\"0\"]', {hour})")
    queue.add("tasks.note", '["now"]')
    assert_silent(queue.worker())
    assert (queue.statuses(), queue.notes()) == ([5, 5], ["now"])
    pass_time(queue)
    assert_silent(queue.worker())
    assert (queue.statuses(), queue.notes()) == ([], ["now", "5", "0"])


def test_due_tasks_are_woken_oldest_first_and_a_portion_at_a_time(queue: Queue, server: TaskServer) -> None:
    number = 2 * MAX_DUE_PER_LOOK + 20
    server.add_tasks({"task": "tasks.note", "delay": 60} for _ in range(number))
    # Due in another order than that of their ids.
    for day in range(7):
        ids = ", ".join(str(task_id) for (task_id,) in queue.rows("id") if task_id * 3 % 7 == day)
        queue.sql(f"UPDATE jobs_queue SET due_at = '2020-01-0{1 + day} 00:00:00.000000' WHERE id IN ({ids})")
    in_turn = [task_id for (task_id,) in queue.sql("SELECT id FROM jobs_queue ORDER BY due_at, id")]
    instants = dict(queue.sql("SELECT id, due_at FROM jobs_queue"))
    woken: list[int] = []
    for size in (MAX_DUE_PER_LOOK, MAX_DUE_PER_LOOK, 20):
        due = server.store.due.look()
        assert len(due.to_wake) == size
        assert server.store.due.wake(due.to_wake) == size
        woken += sorted(due.to_wake, key=lambda task_id: (instants[task_id], task_id))
    assert [instants[task_id] for task_id in woken] == [instants[task_id] for task_id in in_turn]
    assert server.store.due.look().to_wake == []


def test_more_due_tasks_than_a_portion_run_in_one_run(one_queue: Queue) -> None:
    with TaskServer(one_queue.dsn, folder=one_queue.folder) as server:
        server.add_tasks({"task": "tasks.note", "delay": 60} for _ in range(2 * MAX_DUE_PER_LOOK + 20))
    pass_time(one_queue)
    assert_silent(one_queue.worker())
    assert (len(one_queue.notes()), one_queue.rows()) == (2 * MAX_DUE_PER_LOOK + 20, [])


def test_a_run_that_goes_on_wakes_a_task_whose_time_comes_meanwhile(queue: Queue, server: TaskServer) -> None:
    # It looks once a second.
    queue.define(
        "def linger():\n    if 'came due' not in (HERE / 'notes').read_text():\n        time.sleep(0.05)\n",
    )
    server.add_task("tasks.hold", ["held"], priority=-1)
    server.add_tasks([{"task": "tasks.linger"}] * 60)
    process = queue.start_task("--batch", 1)
    server.add_task("tasks.note", ["came due"], delay=3600, priority=-1)
    pass_time(queue)
    queue.go()
    assert_silent_end(process)
    assert queue.notes() == ["held", "came due"]


def test_a_woken_task_whose_worker_is_killed_is_taken_back_like_any_other(queue: Queue, server: TaskServer) -> None:
    server.add_task("tasks.hold", ["held"], delay=3600)
    pass_time(queue)
    kill(queue.start_task())
    assert queue.rows("status, attempts") == [(1, 1)]
    queue.end_leases()
    assert_silent(queue.worker())
    ((status, attempts, error),) = queue.rows("status, attempts, error_text")
    assert (status, attempts, error[:5]) == (3, 1, "lost:")
    queue.end_backoffs()
    queue.go()
    assert_silent(queue.worker())
    assert (queue.notes(), queue.rows()) == (["held"] * 2, [])


def assert_silent_end(process: Any) -> None:
    assert end_of(process) == (0, "", "")


# ---- unique

PRODUCERS = 16


@contextmanager
def holding_the_key(queue: Queue) -> Iterator[Callable[[str], object]]:
    """A row with the key `held` that is inserted and not committed; how that transaction is to end."""
    with ExitStack() as stack:
        if queue.is_sqlite:
            connection: Any = sqlite3.connect(queue.path, isolation_level=None)
            connection.execute("BEGIN IMMEDIATE")
        else:
            connection = queue.connect()
            connection.begin()
        stack.callback(connection.close)
        cursor = connection.cursor()
        cursor.execute("INSERT INTO jobs_queue (task, unique_key) VALUES ('tasks.note', 'held')")
        yield cursor.execute


def wait_until_all_wait(queue: Queue, producers: int) -> None:
    """Until so many transactions wait for a lock; SQLite does not tell."""
    if not queue.is_sqlite:
        wait_until(lambda: lock_waits(queue.sql) >= producers)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_sixteen_producers_at_once_of_one_key_make_one_row_and_all_get_its_id(queue: Queue, end: str) -> None:
    begun = threading.Barrier(PRODUCERS + 1, timeout=WAIT_SECONDS)

    def produce(number: int) -> int:
        with TaskServer(queue.dsn) as server:
            server.store.tables.check()
            begun.wait()
            return server.add_task("tasks.note", [number], unique_key="held")

    with holding_the_key(queue) as finish, ThreadPoolExecutor(PRODUCERS) as pool:
        waiting = [pool.submit(produce, number) for number in range(PRODUCERS)]
        begun.wait()
        wait_until_all_wait(queue, PRODUCERS)
        # None can have come through while the key is held: they race from here.
        assert not any(one.done() for one in waiting)
        finish(end)
        ids = {one.result() for one in waiting}
    ((task_id, args),) = queue.rows("id, args")
    assert ids == {task_id}
    assert (args is None) == (end == "COMMIT")


class Added(NamedTuple):
    """What a producer got."""

    task_id: int
    before: float
    after: float


@pytest.mark.parametrize(("store", "mode"), [("sqlite", "delete"), ("mysql", "delete"), ("mysql", "move")])
def test_producers_of_one_key_and_workers_that_drain_it_lose_nothing_and_run_each_row_once(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, mode: str
) -> None:
    queue: Queue = request.getfixturevalue(f"{store}_queue")
    gives_up_at = time.monotonic() + 2 * WAIT_SECONDS
    with racing(queue, tmp_path, mode) as race:

        def produce(producer: int, tell: Callable[[], object]) -> list[Added]:
            found: list[Added] = []
            with TaskServer(queue.dsn, mode=mode) as server:
                for number in count():
                    if number >= 40 and len({one.task_id for one in found}) > 2:  # the workers took some meanwhile
                        break
                    before = time.monotonic()
                    assert before < gives_up_at
                    key = f"key {number % 2}"
                    task_id = server.add_task("race_tasks.step", [key, number, 0.0], unique_key=key, group_id=3)
                    found.append(Added(task_id, before, time.monotonic()))
            return found

        added = [one for several in race.produce(produce, 6) for one in several]
        steps = race.finish()
    runs = [step for step in steps if step.word == "begin"]
    assert len(runs) == len({one.task_id for one in added})
    assert 2 < len(runs) < len(added)  # some were added, and some stood already
    assert queue.rows() == []


def test_a_key_is_free_after_its_task_in_delete_and_move_and_held_in_mark(queue: Queue) -> None:
    for mode, count_of_runs in (("delete", 2), ("move", 2), ("mark", 1)):
        with TaskServer(queue.dsn, folder=queue.folder, mode=mode) as server:
            first = server.add_task("tasks.note", [mode], unique_key=mode)
            assert server.add_task("tasks.note", ["too soon"], unique_key=mode) == first
            assert_silent(queue.worker("--mode", mode))
            second = server.add_task("tasks.note", [mode], unique_key=mode)
            assert_silent(queue.worker("--mode", mode))
        assert queue.notes().count(mode) == count_of_runs
        assert (first == second) == (mode == "mark")
    assert "too soon" not in queue.notes()


@EACH_MODE
def test_a_fatal_task_and_one_to_be_retried_keep_their_keys(queue: Queue, server: TaskServer, mode: str) -> None:
    queue.go()
    fatal = server.add_task("tasks.no_such_thing", unique_key="fatal")
    failed = server.add_task("tasks.hold_and_fail", [1], unique_key="failed")
    queue.worker("--mode", mode)
    assert queue.statuses() == [4, 3]
    assert server.add_task("tasks.note", unique_key="fatal") == fatal
    assert server.add_task("tasks.note", unique_key="failed") == failed
    assert queue.statuses() == [4, 3]


KEYS = [
    *("a", "A", "\u00e4", "a\u0308", " a", "a ", "a  ", "\u00df", "ss", "0", "00", "\U0001f389", "\x00", "%", "\\'\"`"),
    "k" * 255,
]


def test_keys_are_compared_byte_by_byte(queue: Queue, server: TaskServer) -> None:
    ids = [server.add_task("tasks.note", unique_key=key) for key in KEYS]
    assert len(set(ids)) == len(KEYS)
    assert [server.add_task("tasks.note", unique_key=key) for key in KEYS] == ids
    many = [{"task": "tasks.note", "unique_key": key} for key in reversed(KEYS)]
    assert server.add_tasks(many) == ids[::-1]
    assert server.add_tasks(iter(many)) == ids[::-1]
    kept = [key if isinstance(key, bytes) else key.encode() for (key,) in queue.rows("unique_key")]
    assert kept == [key.encode() for key in KEYS]


@pytest.mark.parametrize("key", ["k" * 256, "\u00e4" * 128, "\U0001f389" * 64, "", "\udc80"])
def test_a_key_that_does_not_fit_is_refused_and_nothing_is_added(queue: Queue, server: TaskServer, key: str) -> None:
    with pytest.raises(InvalidTask, match=r"^unique_key is .*; allowed: a text of 1 to 255 bytes in UTF-8"):
        server.add_task("tasks.note", unique_key=key)
    assert queue.rows() == []


def test_by_sql_a_key_that_does_not_fit_is_refused_too(queue: Queue) -> None:
    with pytest.raises(Exception, match=r"(?i)too long|constraint"):
        queue.sql("INSERT INTO jobs_queue (task, unique_key) VALUES ('tasks.note', ?)", "k" * 256)
    assert queue.rows() == []


def test_one_of_a_kind_by_sql_is_one_row_for_the_api_too(queue: Queue, server: TaskServer) -> None:
    ignore = "INSERT OR IGNORE" if queue.is_sqlite else "INSERT IGNORE"
    for _ in range(2):
        queue.sql(f"{ignore} INTO jobs_queue (task, unique_key) VALUES ('tasks.note', 'one')")
    ((task_id,),) = queue.rows("id")
    assert server.add_task("tasks.note", unique_key="one") == task_id


def test_a_unique_task_that_stands_is_not_changed_in_any_column(queue: Queue, server: TaskServer) -> None:
    server.add_task("tasks.note", ["first"], unique_key="one", delay=3600)
    before = queue.rows()
    server.add_task("tasks.hold", ["other"], unique_key="one", group_id=9, priority=-1, max_attempts=1)
    assert queue.rows() == before


def test_a_unique_task_whose_worker_is_killed_keeps_its_key_until_it_is_done(queue: Queue, server: TaskServer) -> None:
    task_id = server.add_task("tasks.hold", ["held"], unique_key="one")
    kill(queue.start_task())
    assert server.add_task("tasks.hold", unique_key="one") == task_id
    queue.end_leases()
    assert_silent(queue.worker())
    assert server.add_task("tasks.hold", unique_key="one") == task_id
    queue.end_backoffs()
    queue.go()
    assert_silent(queue.worker())
    assert server.add_task("tasks.hold", unique_key="one") != task_id


# ---- rerun, from each state

KEY = "index"


def start_one(store: Store) -> ClaimedTask:
    """The one task that is new, or woken."""
    (task,) = store.claims.claim(1, ()).tasks
    assert store.finishes.advance([], Start(task, 3)) == ([], True)
    return task


def finish_one(store: Store, *how: Any) -> None:
    store.finishes.advance([Finish(start_one(store), *how)], None)


def lose_one(queue: Queue, store: Store, limit: int) -> ClaimedTask:
    task = start_one(store)
    queue.end_leases()
    (lost,) = store.due.look().lost
    assert store.due.reclaim_lost(lost, limit, "lost: it vanished", None)
    return task


def set_new(queue: Queue, **columns: object) -> None:
    """In the one row that is new."""
    queue.sql(
        f"UPDATE jobs_queue SET {', '.join(f'{name} = ?' for name in columns)} WHERE status = 0", *columns.values()
    )


def cancel_running(queue: Queue, store: Store) -> None:
    queue.sql("UPDATE jobs_queue SET error_text = 'cancelled' WHERE id = ?", start_one(store).id)


STATES: dict[str, Callable[[Queue, Store], object]] = {
    # The leases that end are those of the first two.
    "lost": lambda queue, store: lose_one(queue, store, 3),
    "lost with its token": lambda queue, store: lose_one(queue, store, 1),
    "claimed": lambda queue, store: store.claims.claim(1, ()),
    "running": lambda queue, store: start_one(store),
    "running and cancelled": cancel_running,
    "waiting for an instant": lambda queue, store: set_new(queue, status=5, due_at="2037-01-01 00:00:00.000000"),
    "waiting for other tasks": lambda queue, store: set_new(queue, status=5),
    "cancelled": lambda queue, store: set_new(queue, status=4, error_text="cancelled"),
    "error": lambda queue, store: finish_one(store, "ValueError: no", 500.0),
    "done": lambda queue, store: finish_one(store),
    "fatal": lambda queue, store: finish_one(store, "ValueError: no"),
    "new": lambda queue, store: None,
}
"""How a row that is new becomes what stands before it."""
GOES_ON = {"waiting for other tasks": 5, "running": 1, "running and cancelled": 1}
"""Statuses that a rerun leaves as they are."""


class Ways(NamedTuple):
    """How a rerun is written."""

    mysql: str
    sqlite: str


RUNNING = "status = 1 AND started_at IS NOT NULL"
BY_SQL = Ways(
    mysql=f"""
        INSERT INTO jobs_queue (task, args, unique_key) VALUES (?, ?, ?)
        ON DUPLICATE KEY UPDATE
            args = VALUES(args), attempts = 0, error_text = NULL,
            status = IF({RUNNING}, 1, IF(status = 5 AND due_at IS NULL, 5, 0)),
            due_at = IF({RUNNING}, due_at, NULL)
    """,
    sqlite=f"""
        INSERT INTO jobs_queue (task, args, unique_key) VALUES (?, ?, ?)
        ON CONFLICT (unique_key) DO UPDATE SET
            args = excluded.args, attempts = 0, error_text = NULL,
            status = CASE WHEN {RUNNING} THEN 1 WHEN status = 5 AND due_at IS NULL THEN 5 ELSE 0 END,
            due_at = CASE WHEN {RUNNING} THEN due_at END,
            updated_at = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'
    """,
)


def rerun_by_sql(queue: Queue, server: TaskServer, args: list[object], key: str = KEY) -> None:
    statement = BY_SQL.sqlite if queue.is_sqlite else BY_SQL.mysql
    queue.sql(statement, "tasks.note", json.dumps(args), key)


def rerun_by_api(queue: Queue, server: TaskServer, args: list[object], key: str = KEY) -> None:
    ((task_id,),) = queue.sql("SELECT id FROM jobs_queue WHERE unique_key = ?", key)
    assert server.add_task("tasks.note", args, unique_key=key, rerun=True) == task_id


EACH_WAY = pytest.mark.parametrize("rerun", [rerun_by_api, rerun_by_sql])


@EACH_WAY
def test_a_rerun_makes_a_row_of_any_state_new_but_one_that_runs_or_waits_for_other_tasks(
    queue: Queue, rerun: Callable[..., None]
) -> None:
    with TaskServer(queue.dsn, folder=queue.folder, mode="mark", lease=600) as server:
        for state, prepare in STATES.items():
            server.add_task("tasks.note", ["old"], unique_key=state)
            prepare(queue, server.store)
        kept = "unique_key, status, claim, due_at, started_at"
        before = {row[0].decode() if isinstance(row[0], bytes) else row[0]: row for row in queue.rows(kept)}
        for state in STATES:
            rerun(queue, server, [state], state)
            columns = "status, attempts, args, error_text, due_at"
            (row,) = queue.sql(f"SELECT {columns} FROM jobs_queue WHERE unique_key = ?", state)
            due_at = before[state][3] if state in GOES_ON else None
            assert (row[0], row[1], json.loads(row[2]), *row[3:]) == (GOES_ON.get(state, 0), 0, [state], None, due_at)
            if state in GOES_ON:
                assert queue.sql(f"SELECT {kept} FROM jobs_queue WHERE unique_key = ?", state) == [before[state]]
    assert_silent(queue.worker("--mode", "mark"))
    assert queue.notes() == [state for state in STATES if state not in GOES_ON]
    assert set(queue.sql("SELECT attempts, claim FROM jobs_queue WHERE status = 2")) == {(1, None)}


@EACH_WAY
def test_the_late_completion_of_a_lost_task_counts_no_more_once_it_was_run_again(
    queue: Queue, server: TaskServer, rerun: Callable[..., None]
) -> None:
    server.add_task("tasks.note", ["old"], unique_key=KEY)
    task = lose_one(queue, server.store, 1)
    rerun(queue, server, ["new"])
    before = queue.rows()
    assert server.store.finishes.advance([Finish(task)], None) == ([Outcome.LOST], False)
    assert queue.rows() == before
    # Nor once it runs again, or is lost again.
    start_one(server.store)
    assert server.store.finishes.advance([Finish(task)], None) == ([Outcome.LOST], False)
    assert queue.rows("status, attempts") == [(1, 1)]


@EACH_WAY
def test_a_claimed_task_is_taken_from_its_worker_without_a_word(
    queue: Queue, server: TaskServer, rerun: Callable[..., None]
) -> None:
    server.add_task("tasks.hold", ["held"], priority=-1)
    server.add_task("tasks.note", ["old"], unique_key=KEY)
    process = queue.start_task()
    assert queue.statuses() == [1, 1]
    ((task_id, claim),) = queue.sql("SELECT id, claim FROM jobs_queue WHERE started_at IS NULL")
    assert claim is not None
    if rerun is rerun_by_api:
        assert server.add_task("tasks.note", ["new"], unique_key=KEY, rerun=True) == task_id
    else:
        rerun_by_sql(queue, server, ["new"])
    assert queue.statuses() == [1, 0]
    queue.go()
    assert_silent_end(process)
    assert (queue.notes(), queue.rows()) == (["held", "new"], [])


def test_a_claimed_task_that_another_worker_ran_after_a_change_costs_its_first_one_no_word(
    queue: Queue, server: TaskServer
) -> None:
    server.add_task("tasks.hold", ["held"], priority=-1)
    server.add_task("tasks.note", ["old"], unique_key=KEY)
    process = queue.start_task()
    server.add_task("tasks.note", ["new"], unique_key=KEY, rerun=True)
    assert_silent(queue.worker(1))
    assert queue.notes() == ["held", "new"]
    queue.go()
    assert_silent_end(process)
    assert (queue.notes(), queue.rows()) == (["held", "new"], [])


# ---- rerun, of a task that runs

FIRST_RUNS = ["hold", "hold_and_fail", "hold_and_give_up", "hold_too_long", "hold_until_killed"]
"""How the run ends that is under way when its task is changed."""
EACH_FIRST_RUN = [
    *(("hold", mode) for mode in MODES),
    *((name, "mark") for name in FIRST_RUNS[1:]),
    *(pytest.param(name, mode, marks=pytest.mark.long) for name in FIRST_RUNS[1:] for mode in ("delete", "move")),
]


def change_five_times(queue: Queue, server: TaskServer, rerun: Callable[..., None] = rerun_by_api) -> None:
    for number in range(1, 6):
        rerun(queue, server, [f"new {number}"])
    # It runs still.
    assert queue.rows("status, attempts, started_at IS NOT NULL") == [(1, 0, 1)]


def assert_ran_once_more(queue: Queue, mode: str) -> None:
    assert queue.notes() == ["old", "new 5"]
    left = {"delete": [], "move": [], "mark": [(2, 1, None)]}[mode]
    assert queue.rows("status, attempts, error_text") == left
    assert queue.rows("status, attempts, args", "jobs_queue_done") == ([(2, 1, '["new 5"]')] if mode == "move" else [])


@pytest.mark.parametrize(("first", "mode"), EACH_FIRST_RUN)
def test_a_running_task_that_is_changed_five_times_runs_once_more_however_it_ends(
    queue: Queue, server: TaskServer, first: str, mode: str
) -> None:
    server.add_task(f"tasks.{first}", ["old"], unique_key=KEY)
    process = queue.start_task("--mode", mode)
    change_five_times(queue, server)
    if first == "hold_until_killed":
        kill(process)
        queue.end_leases()
        assert_silent(queue.worker("--mode", mode))
    else:
        queue.go()
        code, output, errors = end_of(process)
        assert (code, output) == (0, "")
        assert "lease was lost" not in errors
    assert_ran_once_more(queue, mode)


@EACH_MODE
def test_a_running_task_that_is_changed_by_sql_runs_once_more_too(queue: Queue, server: TaskServer, mode: str) -> None:
    server.add_task("tasks.hold", ["old"], unique_key=KEY)
    process = queue.start_task("--mode", mode)
    change_five_times(queue, server, rerun_by_sql)
    # The task's name was left as it is.
    queue.go()
    assert_silent_end(process)
    assert_ran_once_more(queue, mode)


def test_a_task_that_was_changed_waits_for_the_end_of_the_lease_of_a_killed_worker(
    queue: Queue, server: TaskServer
) -> None:
    server.add_task("tasks.hold", ["old"], unique_key=KEY)
    kill(queue.start_task())
    change_five_times(queue, server)
    assert_silent(queue.worker())
    assert (queue.statuses(), queue.notes()) == ([1], ["old"])
    queue.end_leases()
    assert_silent(queue.worker())
    assert (queue.rows(), queue.notes()) == ([], ["old", "new 5"])


def test_a_worker_that_was_frozen_changes_nothing_in_a_task_that_was_changed_and_runs_elsewhere(
    queue: Queue, server: TaskServer
) -> None:
    server.add_task("tasks.hold", ["old"], unique_key=KEY)
    frozen = queue.start_task(GO="go-frozen")
    freeze(frozen)
    server.add_task("tasks.hold", ["new"], unique_key=KEY, rerun=True)
    queue.end_leases()
    other = queue.start_task()
    before = queue.rows()
    queue.go("go-frozen")
    thaw(frozen)
    code, output, errors = end_of(frozen)
    assert (code, output) == (0, "")
    assert "lease was lost" in errors
    assert queue.rows() == before
    queue.go()
    assert_silent_end(other)
    assert (queue.rows(), queue.notes()) == ([], ["old", "new"])


def test_a_task_that_was_changed_again_in_its_second_run_runs_a_third_time(queue: Queue, server: TaskServer) -> None:
    server.add_task("tasks.hold_by_name", ["first"], unique_key=KEY)
    process = queue.start_task()
    for now, then in (("first", "second"), ("second", "third")):
        server.add_task("tasks.hold_by_name", [then], unique_key=KEY, rerun=True)
        queue.go(f"go-{now}")
        wait_until(lambda: then in queue.notes())  # noqa: B023 - at once
        assert queue.rows("status, attempts") == [(1, 1)]
    queue.go("go-third")
    assert_silent_end(process)
    assert queue.notes() == ["first", "second", "third"]


# ---- rerun, racing

# What a task of a race leaves behind: a line as it begins and one as it ends. A short write to the end is one piece.
STEPS = """
import logging, os, pathlib, time

HERE = pathlib.Path(__file__).resolve().parent
STEPS = os.open(HERE / "steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
logging.getLogger("taskserver").addHandler(logging.FileHandler(HERE / "warnings", delay=True))


def write(*words):
    os.write(STEPS, (" | ".join(map(str, [*words, time.monotonic()])) + chr(10)).encode())


def step(key, number, seconds):
    write("begin", key, number)
    time.sleep(seconds)
    write("end", key, number)


def hold(key, number):
    write("begin", key, number)
    while not (HERE / "changed").exists():
        time.sleep(0.005)
    write("end", key, number)
"""


class Step(NamedTuple):
    """A run of a task begins, or ends; the clock is one for all processes of this machine."""

    word: str
    key: str
    number: int
    at: float


class KindRace:
    """Workers' processes that drain one queue until the producers are done."""

    def __init__(self, folder: Path, dsn: str, mode: str) -> None:
        self._race = Race(folder, dsn, mode)
        self._folder = folder
        (folder / "race_tasks.py").write_text(STEPS)
        self._race.get_ready(WORKERS, batch=3, until=True)
        self._race.go()

    def produce(self, producer: Callable[[int, Callable[[], object]], list[Any]], producers: int) -> list[list[Any]]:
        """What each of so many producers, which add at once and beside the workers, brings back.

        Each is given what it has to call after its first change: once all have, `hold` in the workers comes to its end.
        """
        first = threading.Barrier(producers, (self._folder / "changed").touch, WAIT_SECONDS)
        with ThreadPoolExecutor(producers) as pool:
            found = list(pool.map(lambda number: producer(number, first.wait), range(producers)))
        self._race.producers_are_done.touch()
        return found

    def wait_until_held(self) -> None:
        """Until a worker is in the midst of a task."""
        wait_until(lambda: (self._folder / "steps").exists() and (self._folder / "steps").read_text())

    def finish(self) -> list[Step]:
        """Once the workers found nothing more: what the tasks wrote. Workers had nothing to warn of."""
        self._race.outcomes()
        warnings = self._folder / "warnings"
        assert not warnings.exists(), warnings.read_text()
        lines = [line.split(" | ") for line in (self._folder / "steps").read_text().splitlines()]
        return [Step(word, key, int(number), float(at)) for word, key, number, at in lines]

    def close(self) -> None:
        self._race.close()


WORKERS = 3


@contextmanager
def racing(queue: Queue, folder: Path, mode: str) -> Iterator[KindRace]:
    race = KindRace(folder, queue.dsn, mode)
    try:
        yield race
    finally:
        race.close()


def assert_never_two_at_once(steps: Sequence[Step]) -> None:
    for key in {step.key for step in steps}:
        of_key = [step for step in steps if step.key == key]
        for begin, end in zip(of_key[::2], of_key[1::2], strict=True):
            assert (begin.word, end.word, begin.number) == ("begin", "end", end.number), of_key


def last_run(steps: Sequence[Step], key: str) -> Step:
    return [step for step in steps if step.key == key and step.word == "begin"][-1]


class Change(NamedTuple):
    """A producer wrote this number into the row of this key, between these instants."""

    key: str
    number: int
    before: float
    after: float


def changes_within_runs(steps: Sequence[Step], changes: Sequence[Change]) -> int:
    """How many came in the midst of a run of their own key."""
    runs = [(begin, end) for key in {step.key for step in steps} for begin, end in _pairs(steps, key)]
    return sum(
        any(begin.key == change.key and begin.at < change.before and change.after < end.at for begin, end in runs)
        for change in changes
    )


def _pairs(steps: Sequence[Step], key: str) -> Iterator[tuple[Step, Step]]:
    of_key = [step for step in steps if step.key == key]
    yield from zip(of_key[::2], of_key[1::2], strict=True)


EACH_RACE = pytest.mark.parametrize(
    ("store", "mode"),
    [
        ("sqlite", "delete"),
        ("mysql", "mark"),
        *(pytest.param("sqlite", mode, marks=pytest.mark.long) for mode in ("move", "mark")),
        *(pytest.param("mysql", mode, marks=pytest.mark.long) for mode in ("delete", "move")),
    ],
)


@EACH_RACE
def test_the_last_change_of_each_key_is_run_after_it_and_no_key_by_two_workers_at_once(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, mode: str
) -> None:
    queue: Queue = request.getfixturevalue(f"{store}_queue")

    def produce(producer: int, tell: Callable[[], object]) -> list[Change]:
        changes = []
        with TaskServer(queue.dsn, mode=mode) as server:
            for number in range(40):
                # Its own key, so that its last change is the last of all; and one that all of them change.
                for key in (f"own {producer}", "shared"):
                    before = time.monotonic()
                    server.add_task(
                        "race_tasks.step",
                        [key, producer * 1000 + number, 0.03],
                        unique_key=key,
                        rerun=True,
                        group_id=GROUPS[number % 3],
                        priority=number % 5,
                    )
                    changes.append(Change(key, producer * 1000 + number, before, time.monotonic()))
                if number == 0:
                    tell()
        return changes

    with TaskServer(queue.dsn) as server:
        server.add_task("race_tasks.hold", ["shared", 0], unique_key="shared", group_id=3)
    with racing(queue, tmp_path, mode) as race:
        race.wait_until_held()
        changes = race.produce(produce, PRODUCERS // 4)
        steps = race.finish()
    assert_never_two_at_once(steps)
    for producer, own in enumerate(changes):
        last = own[-2]
        run = last_run(steps, f"own {producer}")
        assert (run.number, run.at > last.before) == (last.number, True)
    assert last_run(steps, "shared").number in {own[-1].number for own in changes}
    assert changes_within_runs(steps, [change for own in changes for change in own]) > 0
    left = queue.rows("status, attempts")
    assert left == ([(2, 1)] * (PRODUCERS // 4 + 1) if mode == "mark" else [])


@EACH_RACE
def test_of_versions_in_any_order_the_newest_is_run_last_and_none_after_it(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, mode: str
) -> None:
    queue: Queue = request.getfixturevalue(f"{store}_queue")
    versions = list(range(1, 121))
    random.Random(mode).shuffle(versions)
    with TaskServer(queue.dsn, mode=mode) as server:
        server.add_task("race_tasks.hold", ["k", 0], unique_key="k", rerun=True, version=0, group_id=3)

        def produce(producer: int, tell: Callable[[], object]) -> list[Change]:
            changes = []
            for version in versions[producer :: PRODUCERS // 4]:
                before = time.monotonic()
                args = ["k", version, 0.01]
                server.add_task("race_tasks.step", args, unique_key="k", rerun=True, version=version, group_id=3)
                changes.append(Change("k", version, before, time.monotonic()))
                if len(changes) == 1:
                    tell()
            return changes

        with racing(queue, tmp_path, mode) as race:
            race.wait_until_held()
            changes = [change for own in race.produce(produce, PRODUCERS // 4) for change in own]
            steps = race.finish()
    assert_never_two_at_once(steps)
    runs = [step.number for step in steps if step.word == "begin"]
    assert max(runs) == 120
    if mode == "mark":
        # In delete and move a row goes with its run, and its version with it: an older one can come anew.
        assert runs == sorted(set(runs))
        assert queue.rows("status, version") == [(2, 120)]
    assert changes_within_runs(steps, changes) > 0


# ---- versions


def versioned(server: TaskServer, args: Any, version: int | None, **more: Any) -> int:
    return server.add_task("tasks.note", args, unique_key=KEY, rerun=True, version=version, **more)


@pytest.mark.parametrize(
    ("stands", "comes", "is_newer"),
    [(7, 8, True), (7, 7, False), (7, 6, False), (0, 0, False), (None, 5, True), (7, None, True), (0, 2**63 - 1, True)],
)
def test_a_rerun_of_an_older_or_equal_version_changes_nothing(
    queue: Queue, server: TaskServer, stands: int | None, comes: int | None, is_newer: bool
) -> None:
    task_id = versioned(server, ["stands"], stands)
    before = queue.rows()
    assert versioned(server, ["comes"], comes, group_id=9, priority=-9, max_attempts=1, delay=60) == task_id
    if is_newer:
        columns = "args, group_id, priority, max_attempts, status, version"
        assert queue.rows(columns) == [('["comes"]', 9, -9, 1, 5, stands if comes is None else comes)]
    else:
        assert queue.rows() == before


@pytest.mark.parametrize("mode", MODES)
def test_an_older_version_changes_no_row_that_is_done_and_kept(queue: Queue, mode: str) -> None:
    with TaskServer(queue.dsn, folder=queue.folder, mode=mode) as server:
        versioned(server, ["7"], 7)
        assert_silent(queue.worker("--mode", mode))
        versioned(server, ["6"], 6)
        assert_silent(queue.worker("--mode", mode))
    # Where the row goes with its run nothing is left that could be newer.
    assert queue.notes() == (["7"] if mode == "mark" else ["7", "6"])


def test_an_older_version_has_a_running_task_run_no_second_time(queue: Queue, server: TaskServer) -> None:
    server.add_task("tasks.hold", ["7"], unique_key=KEY, rerun=True, version=7)
    process = queue.start_task()
    versioned(server, ["6"], 6)
    assert queue.rows("attempts, version") == [(1, 7)]
    queue.go()
    assert_silent_end(process)
    assert queue.notes() == ["7"]


def test_versions_of_one_key_in_one_add_tasks_leave_the_newest(queue: Queue, server: TaskServer) -> None:
    several = [
        {"task": "tasks.note", "args": [n], "unique_key": KEY, "rerun": True, "version": n} for n in (2, 9, 1, 9, 3)
    ]
    assert len(set(server.add_tasks(several))) == 1
    assert queue.rows("args, version") == [("[9]", 9)]


# ---- what a rerun changes


def test_a_rerun_gives_all_that_is_told_of_the_task_anew(queue: Queue, server: TaskServer) -> None:
    server.add_task("tasks.hold", ["old"], unique_key=KEY, group_id=3, priority=5, max_attempts=2, delay=60)
    server.add_task("tasks.note", unique_key=KEY, rerun=True)
    columns = "task, args, group_id, priority, max_attempts, status, due_at"
    assert queue.rows(columns) == [("tasks.note", None, 0, 0, None, 0, None)]


def test_a_rerun_moves_a_task_to_another_group_and_a_running_one_after_its_run(
    queue: Queue, server: TaskServer
) -> None:
    server.add_task("tasks.hold", ["old"], unique_key=KEY, group_id=3)
    process = queue.start_task(0, 3)
    server.add_task("tasks.note", ["new"], unique_key=KEY, rerun=True, group_id=5)
    queue.go()
    assert_silent_end(process)
    assert queue.notes() == ["old"]
    assert_silent(queue.worker(0, 5))
    assert (queue.notes(), queue.rows()) == (["old", "new"], [])


def test_a_rerun_with_a_delay_leaves_a_task_waiting_for_the_others_it_waits_for(
    queue: Queue, server: TaskServer
) -> None:
    task_id = server.add_task("tasks.note", ["old"], unique_key=KEY)
    queue.sql("UPDATE jobs_queue SET status = 5, due_at = NULL")
    for delay in (3600, 0.001, None):
        assert server.add_task("tasks.note", [delay], unique_key=KEY, rerun=True, delay=delay) == task_id
        assert queue.rows("status, due_at, args") == [(5, None, json.dumps([delay]))]
    assert_silent(queue.worker())
    assert queue.statuses() == [5]


NOT_DELAYED = ("running", "running and cancelled", "waiting for other tasks")


@pytest.mark.parametrize("state", [state for state in STATES if state not in NOT_DELAYED])
def test_a_rerun_with_a_delay_lets_a_task_of_any_state_wait(sqlite_queue: Queue, state: str) -> None:
    with TaskServer(sqlite_queue.dsn, folder=sqlite_queue.folder, mode="mark", lease=600) as server:
        server.add_task("tasks.note", ["old"], unique_key=KEY)
        STATES[state](sqlite_queue, server.store)
        server.add_task("tasks.note", ["new"], unique_key=KEY, rerun=True, delay=3600)
    assert sqlite_queue.rows("status, attempts, claim") == [(5, 0, None)]
    assert 3500 < seconds_ahead(sqlite_queue)[0] < 3601


def test_a_running_task_that_is_rerun_with_a_delay_runs_again_right_after(queue: Queue, server: TaskServer) -> None:
    server.add_task("tasks.hold", ["old"], unique_key=KEY)
    process = queue.start_task()
    server.add_task("tasks.note", ["new"], unique_key=KEY, rerun=True, delay=3600)
    queue.go()
    assert_silent_end(process)
    assert (queue.notes(), queue.rows()) == (["old", "new"], [])


# ---- many of all kinds


def test_many_of_all_kinds_get_their_ids_in_order(queue: Queue, server: TaskServer) -> None:
    stood = server.add_task("tasks.note", ["stood"], unique_key="stands")
    kinds: list[dict[str, Any]] = [
        {},
        {"delay": 60},
        {"unique_key": "stands"},
        {"unique_key": "a"},
        {"unique_key": "a"},
        {"max_attempts": 1},
        {"unique_key": "stands", "rerun": True},
        {"at": "2037-01-01T00:00:00Z"},
        {"unique_key": "b", "rerun": True, "version": 3},
        {},
        {},
    ]
    several = [{"task": "tasks.note", "args": [number], **kind} for number, kind in enumerate(kinds)]
    ids = server.add_tasks(several)
    numbers = {task_id: json.loads(args)[0] for task_id, args in queue.rows("id, args")}
    assert [ids[2], ids[6], ids[4]] == [stood, stood, ids[3]]
    assert numbers[stood] == 6
    for number in (0, 1, 3, 5, 7, 8, 9, 10):
        assert numbers[ids[number]] == number
    assert len(numbers) == 9
    # As an iterator, and more of them than a statement takes.
    many = [{"task": "tasks.note", "args": [n], "unique_key": f"k{n % 300}"} for n in range(700)]
    ids = server.add_tasks(iter(many))
    assert ids[:300] * 2 + ids[:100] == ids
    assert server.add_tasks(many) == ids


@pytest.mark.parametrize("is_lazy", [False, True])
def test_of_many_of_all_kinds_a_wrong_one_is_named_by_number_and_none_is_added_or_changed(
    queue: Queue, server: TaskServer, is_lazy: bool
) -> None:
    server.add_task("tasks.note", ["stood"], unique_key="stands")
    before = queue.rows()
    several = [
        {"task": "tasks.note", "delay": 5},
        {"task": "tasks.note", "args": ["new"], "unique_key": "stands", "rerun": True},
        {"task": "tasks.note", "rerun": True},
    ]
    with pytest.raises(InvalidTask, match=r"^task 3: it has rerun and no unique_key"):
        server.add_tasks(iter(several) if is_lazy else several)
    assert queue.rows() == before


# ---- priority


def test_a_waiting_task_moves_at_once_when_its_priority_is_changed_by_sql(queue: Queue, server: TaskServer) -> None:
    server.add_task("tasks.hold", ["held"], priority=-9)
    first, second, third = server.add_tasks({"task": "tasks.note", "args": [name]} for name in ("1", "2", "3"))
    process = queue.start_task("--batch", 1)
    queue.sql("UPDATE jobs_queue SET priority = -1 WHERE id = ?", third)
    queue.sql("UPDATE jobs_queue SET priority = 1 WHERE id = ?", first)
    queue.go()
    assert_silent_end(process)
    assert queue.notes() == ["held", "3", "2", "1"]
    assert second < third


def test_a_waiting_task_moves_at_once_by_set_priority(queue: Queue, server: TaskServer) -> None:
    server.add_task("tasks.hold", ["held"], priority=-9)
    first, _, third = server.add_tasks({"task": "tasks.note", "args": [name]} for name in ("1", "2", "3"))
    process = queue.start_task("--batch", 1)
    assert server.set_priority(third, -1)
    assert server.set_priority(first, 1)
    assert not server.set_priority(third + 1000, 1)
    queue.go()
    assert_silent_end(process)
    assert queue.notes() == ["held", "3", "2", "1"]


# ---- from SQL, as docs/kinds/rerun.md and examples/kinds.php have it

KINDS_PHP = EXAMPLES / "kinds.php"


@pytest.fixture
def page(php: str, tmp_path: Path, mysql_server: MySQLServer, mysql_queue: Queue) -> Page:
    return Page(php, tmp_path, mysql_server, mysql_queue.dsn.rpartition("/")[2])


BY_PDO = f"""
require {str(KINDS_PHP)!r};
$pdo = new PDO("mysql:host=$at->host;port=$at->port;dbname=$at->database;charset=utf8mb4", $at->user, $at->password);
$pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$pdo->exec("SET time_zone = '+09:00'");
"""


def one_line(statement: str) -> str:
    return " ".join(statement.split())


def test_the_statement_of_the_example_and_of_the_document_is_the_one_that_is_tested(page: Page) -> None:
    assert one_line(page.run(f"require {str(KINDS_PHP)!r}; echo RUN_AGAIN;")) == one_line(BY_SQL.mysql)
    shown = [block.text for block in blocks("docs/kinds/rerun.md") if "INSERT" in block.text and block.kind == "sql"]
    plain = [one_line(re.sub(r"-- .*$", "", text, flags=re.MULTILINE)).rstrip(";") for text in shown]
    statements = [re.sub(r"VALUES \('.*?'\) ON", "VALUES (?, ?, ?) ON", text) for text in plain]
    assert [statements[0], statements[-1]] == [one_line(BY_SQL.mysql), one_line(BY_SQL.sqlite)]


def test_a_page_delays_a_task_by_the_clock_of_the_database(mysql_queue: Queue, page: Page) -> None:
    page.run(f"{BY_PDO}add_delayed($pdo, 'tasks.note', ['later'], 3600);")
    assert_silent(mysql_queue.worker())
    assert 3500 < seconds_ahead(mysql_queue)[0] < 3601
    pass_time(mysql_queue)
    assert_silent(mysql_queue.worker())
    assert mysql_queue.notes() == ["later"]


def test_a_page_adds_one_of_a_kind_with_the_right_to_insert_alone(
    mysql_queue: Queue, page: Page, mysql_server: MySQLServer
) -> None:
    with web_user(mysql_server, str(page.place["database"]), "jobs_queue") as user:
        page.place |= {"user": user, "password": WEB_PASSWORD}
        calls = "foreach ([1, 2] as $n) echo json_encode(add_unique($pdo, 'tasks.note', [$n], 'Key '));"
        assert page.run(BY_PDO + calls) == "truefalse"
        too_long = "try { add_unique($pdo, 'tasks.note', [], str_repeat('k', 256)); }"
        assert "too long" in page.run(f"{BY_PDO}{too_long} catch (PDOException $e) {{ echo $e->getMessage(); }}")
    assert mysql_queue.rows("args, unique_key") == [("[1]", b"Key ")]
    with TaskServer(mysql_queue.dsn) as server:
        assert server.add_task("tasks.note", unique_key="Key ") == mysql_queue.rows("id")[0][0]


@EACH_MODE
def test_a_page_that_changes_a_running_task_five_times_has_it_run_once_more(
    mysql_queue: Queue, page: Page, mode: str
) -> None:
    page.run(f"{BY_PDO}run_again($pdo, 'tasks.hold', ['old'], 'index');")
    process = mysql_queue.start_task("--mode", mode)
    page.run(f"{BY_PDO}foreach (range(1, 5) as $n) run_again($pdo, 'tasks.hold', [\"new $n\"], 'index');")
    assert mysql_queue.rows("status, attempts") == [(1, 0)]
    mysql_queue.go()
    assert_silent_end(process)
    assert_ran_once_more(mysql_queue, mode)


@pytest.mark.parametrize(("stands", "comes", "is_newer"), [(7, 8, True), (7, 7, False), (7, 6, False), (None, 5, True)])
def test_a_page_that_knows_an_older_version_changes_nothing(
    mysql_queue: Queue, page: Page, stands: int | None, comes: int, is_newer: bool
) -> None:
    with TaskServer(mysql_queue.dsn, folder=mysql_queue.folder, mode="mark", lease=600) as server:
        for state, prepare in STATES.items():
            server.add_task("tasks.note", ["old"], unique_key=state, rerun=True, version=stands)
            prepare(mysql_queue, server.store)
    before = mysql_queue.rows()
    for_each = f"foreach ($tasks as $key) run_again_if_newer($pdo, 'tasks.note', [$key], $key, {comes});"
    page.run(BY_PDO + for_each, list(STATES))
    if not is_newer:
        assert mysql_queue.rows() == before
        return
    for state in STATES:
        columns = "status, attempts, args, error_text, version"
        (row,) = mysql_queue.sql(f"SELECT {columns} FROM jobs_queue WHERE unique_key = ?", state)
        assert (row[0], row[1], json.loads(row[2]), *row[3:]) == (GOES_ON.get(state, 0), 0, [state], None, comes)


# A page that adds one task after the other until the test ends it.
ADDS_ON = (
    BY_PDO
    + """
$done = 0;
while (!file_exists($tasks->stop)) {
    run_again($pdo, 'tasks.note', [$done], 'key ' . random_int(0, 3));
    add_unique($pdo, 'tasks.note', [$done], 'key ' . random_int(0, 3));
    $done++;
    usleep(random_int(0, 4000));
}
echo $done;
"""
)


def test_pages_that_meet_a_deadlock_with_workers_and_one_another_add_all_the_same(
    mysql_queue: Queue, php: str, tmp_path: Path, mysql_server: MySQLServer
) -> None:
    def deadlocks() -> int:
        ((count,),) = mysql_queue.sql(
            "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
        )
        return int(count)

    stop = tmp_path / "stop"
    before = deadlocks()
    for number in range(4):
        (tmp_path / str(number)).mkdir()
    several = [Page(php, tmp_path / str(n), mysql_server, mysql_queue.dsn.rpartition("/")[2]) for n in range(4)]
    with ThreadPoolExecutor(len(several)) as threads:
        printed = [threads.submit(one.run, ADDS_ON, {"stop": str(stop)}) for one in several]
        try:
            wait_until(lambda: not mysql_queue.worker("--max-time", 2).returncode and deadlocks() > before + 5)
        finally:
            stop.touch()
        assert all(int(one.result(WAIT_SECONDS)) > 0 for one in printed)  # else what PHP threw is told
    assert_silent(mysql_queue.worker())
    assert mysql_queue.rows() == []


def test_the_calls_in_the_comment_of_kinds_php_work(mysql_queue: Queue, page: Page) -> None:
    calls = shown_in_comment("kinds.php").replace("require '/home/you/kinds.php';", "")
    page.run(BY_PDO + calls + calls)
    columns = "task, status, unique_key, version"
    assert mysql_queue.rows(columns) == [
        ("tasks.remind", 5, None, None),
        ("tasks.rebuild_index", 0, b"index", None),
        ("tasks.index", 0, b"page 5", 8),
        ("tasks.remind", 5, None, None),
    ]


def test_a_rerun_from_sql_gets_by_with_the_rights_that_the_document_grants(
    mysql_queue: Queue, mysql_server: MySQLServer
) -> None:
    database = mysql_queue.dsn.rpartition("/")[2]
    grants = next(block.text for block in blocks("docs/kinds/rerun.md") if "GRANT" in block.text)
    statement = BY_SQL.mysql.replace("?", "%s")

    def run_again(user: str) -> None:
        with mysql_server.connect(user=user, password=WEB_PASSWORD, database=database) as connection:
            connection.cursor().execute(statement, ("tasks.note", '["new"]', KEY))

    with web_user(mysql_server, database, "jobs_queue") as user:
        with pytest.raises(pymysql.MySQLError, match="denied"):
            run_again(user)
        mysql_server.execute(f"REVOKE INSERT ON `{database}`.jobs_queue FROM '{user}'@'%'")
        grants = grants.replace("you_queue.", f"`{database}`.").replace("'you_web'@'localhost'", f"'{user}'@'%'")
        mysql_server.execute(*filter(None, map(str.strip, grants.split(";"))))
        run_again(user)
        run_again(user)
    assert mysql_queue.rows("args, status") == [('["new"]', 0)]
