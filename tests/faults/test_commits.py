"""What becomes of a task's own transaction if the network or the server fails around its COMMIT."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.faults.conftest import READERS
from tests.faults.failing import FailingQueue
from tests.support.postgresql import PostgreSQL
from tests.support.processes import assert_one_line, assert_silent, end_of
from tests.support.proxy import Proxy, contains
from tests.support.servers import MariaDB
from tests.support.sites import EFFECTS

COMMIT = contains(b"COMMIT /* of a task")
SETTINGS = {"LEASE": "600", "MAX_ATTEMPTS": "3", "BACKOFF": "fixed:500"}
"""Nothing ends, is renewed or comes back while a test looks, unless it says so."""
TASKS = """
import time

import taskserver
from taskserver.stores.queue import transactions

transactions.OUR_SECONDS = 1.5  # in place of the minute that a worker waits for the answer to its COMMIT
transactional = taskserver.task(transactional=True)


def wait(name):
    while not (HERE / name).exists():
        time.sleep(0.005)


def write(number):
    taskserver.connection().cursor().execute(f"INSERT INTO effects (number) VALUES ({number})")


def plain():
    note("plain")
    wait("go-plain")


@transactional
def effect(number):
    write(number)


@transactional
def hold(number):
    write(number)
    note(f"hold {number}")
    wait("go")
    write(number + 100)
"""


def with_effects(queue: FailingQueue, **settings: Any) -> FailingQueue:
    """With a table that tasks write to."""
    queue.sql(EFFECTS[queue.kind])
    queue.set(**{**SETTINGS, **settings})
    return queue


def add(queue: FailingQueue, name: str, *args: int) -> None:
    queue.add(f"tasks.{name}", json.dumps(args))


def effects(queue: FailingQueue) -> list[int]:
    """What was committed, in order."""
    return [number for (number,) in queue.sql("SELECT number FROM effects ORDER BY number")]


@pytest.mark.parametrize(("mode", "silent"), [("mark", False), ("delete", True)])
def test_a_task_whose_commit_took_effect_unheard_is_done_once(
    proxied_queue: FailingQueue, proxy: Proxy, mode: str, silent: bool
) -> None:
    queue = with_effects(proxied_queue)
    cut = proxy.cut_after(COMMIT, silent=silent)
    add(queue, "effect", 1)
    add(queue, "effect", 2)
    assert_silent(queue.worker("--mode", mode))
    assert cut.has_struck
    assert effects(queue) == [1, 2]
    assert queue.rows("status, attempts") == ([(2, 1)] * 2 if mode == "mark" else [])
    assert queue.sql("SELECT taken, done, lost FROM jobs_queue_workers") == [(2, 2, 0)]


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("words", "silent"),
    [
        (b"COMMIT /* of a task", False),
        pytest.param(b"COMMIT /* of a task", True, marks=LONG),
        pytest.param(b"RELEASE SAVEPOINT", True, marks=LONG),
        pytest.param(b"INSERT INTO effects", False, marks=LONG),
    ],
)
def test_a_task_whose_commit_did_not_arrive_left_nothing_and_is_retried(
    proxied_queue: FailingQueue, proxy: Proxy, words: bytes, silent: bool
) -> None:
    queue = with_effects(proxied_queue)
    cut = proxy.cut_before(contains(words), silent=silent)
    add(queue, "effect", 1)
    add(queue, "effect", 2)
    assert_silent(queue.worker())
    assert cut.has_struck
    assert effects(queue) == [2]
    assert queue.rows("status, attempts")[0] == (3, 1)
    assert queue.sql("SELECT taken, done, lost FROM jobs_queue_workers") == [(2, 1, 0)]
    queue.end_backoffs()
    assert_silent(queue.worker())
    assert effects(queue) == [1, 2]


@pytest.mark.parametrize("is_done", [False, True])
def test_a_database_that_is_killed_around_the_commit_has_done_all_or_nothing(
    fragile_queue: FailingQueue, fragile: MariaDB | PostgreSQL, is_done: bool
) -> None:
    queue = with_effects(fragile_queue)

    def kill_and_match(request: bytes) -> bool:
        """The server is dead before a byte of such a request arrives."""
        if COMMIT(request):
            fragile.kill()
        return COMMIT(request)

    with Proxy(fragile.host, fragile.port, READERS[queue.kind]) as proxy:
        queue.set(**SETTINGS, DSN=proxy.dsn(queue.dsn))
        add(queue, "hold", 1)
        process = queue.start_task("--mode", "mark")
        if is_done:
            cut = proxy.cut_after(COMMIT)
            proxy.cut_before(contains(b"SET due_at"), times=3)  # so that it cannot ask before the kill
        else:
            cut = proxy.cut_before(kill_and_match)
        queue.go()
        assert cut.wait(10)
        fragile.kill()
        proxy.pass_on()
        fragile.start()
        assert end_of(process) == (0, "", "")
    expected = ([1, 101], [(2, 1)]) if is_done else ([], [(3, 1)])
    assert (effects(queue), queue.rows("status, attempts")) == expected


def test_a_task_that_gets_no_second_connection_goes_back_uncounted_and_those_behind_it_run(
    shared_queue: FailingQueue,
) -> None:
    """The first one is started for the import of its module already; each has one attempt."""
    queue = with_effects(shared_queue)
    for number in (1, 2):
        add(queue, "effect", number)
    queue.go("go-plain")
    add(queue, "plain")
    once = {**SETTINGS, "MAX_ATTEMPTS": "1"}
    with queue.with_account(connections=1, **once):
        ended = queue.worker("--mode", "mark")
        needs = "a worker needs two for a transactional or a long task"
        assert_one_line(ended, 0, "tasks.effect is postponed, as a transactional task needs a second connection", needs)
        assert (effects(queue), queue.rows("status, attempts")) == ([], [(5, 0), (5, 0), (2, 1)])
        assert all(line.startswith("postponed: ") for line in queue.first_lines()[:2])
    queue.sql("UPDATE jobs_queue SET due_at = created_at WHERE status = 5")
    queue.set(**once)
    assert_silent(queue.worker("--mode", "mark"))
    assert (effects(queue), queue.rows("status, attempts")) == ([1, 2], [(2, 1)] * 3)
