"""Tasks that complete themselves in a transaction of their own code, by `taskserver.complete(connection)`.

Connections of SQLAlchemy and mysqlclient are in tests/producers/test_callers_complete.py; that many tasks at once leave
every sum right is in tests/faults/test_chaos.py.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pymysql
import pytest

import taskserver
from taskserver import TaskServerError
from taskserver.errors import Conflict
from taskserver.stores.queue.callers import CallersRows
from tests.support.databases import EACH_DATABASE, EACH_SERVER
from tests.support.postgresql import PostgreSQLServer
from tests.support.proxy import Proxy, contains
from tests.support.servers import MySQLServer
from tests.support.sites import EffectsSite

CODE = """
import time

import taskserver
from taskserver import task

connect = meanwhile = None
kept, heard = [], []

def insert(connection, number):
    connection.cursor().execute(f"INSERT INTO effects (number) VALUES ({number})")

def pay(number, after="commit", result=None, returns=None):
    connection = connect()
    kept.append(connection)  # else it would be closed, and rolled back, as this returns
    meanwhile("begun")
    insert(connection, number)
    taskserver.complete(connection, result)
    insert(connection, number + 100)
    meanwhile("completed")
    if after == "raise":
        raise ValueError("before the commit")
    if after == "roll back":
        connection.rollback()
    elif after != "leave open":
        connection.cursor().execute("COMMIT /* by the task */")
    if after == "commit, raise":
        raise ValueError("after the commit")
    return returns

@task(timeout=0.2)
def swallow_an_interrupt():
    connection = connect()
    insert(connection, 1)
    try:
        time.sleep(20)
    except BaseException:
        pass
    taskserver.complete(connection)
    connection.commit()

def swallow(number, before=""):
    connection = connect()
    if before:
        taskserver.complete(connection)
    if before == "rolled back":
        connection.rollback()
    insert(connection, number)
    try:
        taskserver.complete(connection)
    except taskserver.TaskServerError as error:
        heard.append(str(error))
    connection.commit()

def by_itself():
    taskserver.complete(connect(True))

def give_none():
    taskserver.complete(None)

@task(batch=5)
def of_several(items):
    taskserver.complete(connect())

@task(transactional=True)
def transactional():
    taskserver.complete(taskserver.connection())

def rescue(error):
    taskserver.complete(connect())

@task(max_attempts=1, on_fatal=rescue)
def fail_for_good():
    raise ValueError("for good")
"""


class Paying(EffectsSite):
    """Its tasks connect as a site does, by the driver's own means."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.module.connect, self.module.meanwhile = self.connect, lambda moment: None

    def connect(self, commits_each: bool = False) -> Any:
        at = self.server.settings.dsn
        if self.rows.is_sqlite:
            return sqlite3.connect(at.database, timeout=30, isolation_level=None if commits_each else "DEFERRED")
        place: dict[str, Any] = {"host": at.host, "port": at.port, "user": at.user, "password": at.password}
        if self.rows.is_postgresql:
            return psycopg.connect(**place, dbname=at.database, autocommit=commits_each)
        return pymysql.connect(**place, database=at.database, autocommit=commits_each, ssl_disabled=True)

    def add(self, name: str, *args: object, **more: Any) -> int:
        return self.add_args(name, args, **more)

    def at(self, moment: str, act: Callable[[], object]) -> None:
        """Do this in the midst of the task."""
        self.module.meanwhile = lambda reached: act() if reached == moment else None

    def close(self) -> None:
        for connection in self.module.kept:
            with suppress(pymysql.Error):  # of one that is closed
                connection.close()
        super().close()


SITE = Paying
NOT_COMMITTED = "NotCompleted: it called taskserver.complete(), and that was not committed: commit on the connection"


# ---- effects and completion together


@EACH_DATABASE
def test_what_a_task_wrote_and_its_completion_are_one_commit(make_site: Callable[..., Paying], queue_dsn: str) -> None:
    site = make_site(queue_dsn, mode="move")
    seen: list[object] = []
    site.at("completed", lambda: seen.extend([site.effects(), site.states()]))
    task_id = site.add("pay", 1, "commit", {"größe": [1]}, "what it returns")
    result = site.run()
    assert seen == [[], [(1, 1)]]
    assert (result.done, result.failed, site.effects(), site.states()) == (1, 0, [1, 101], [])
    assert site.columns("id, status, attempts", "jobs_queue_done") == [(1, 2, 1)]
    state = site.server.get(task_id)
    assert (state and state.result) == {"größe": [1]}


@EACH_DATABASE
def test_without_a_commit_the_attempt_has_failed(site: Paying) -> None:
    errors = {"leave open": NOT_COMMITTED, "roll back": NOT_COMMITTED, "raise": "ValueError: before the commit"}
    for after in errors:
        site.add("pay", 1, after)
        site.add("pay", 2)
    site.run()
    assert site.effects() == [2, 2, 2, 102, 102, 102]
    assert site.states() == [(3, 1)] * 3
    for line, error in zip(site.first_lines(), errors.values(), strict=True):
        assert line.startswith(error)


def test_a_failure_after_the_commit_is_reported_and_the_task_is_done(
    site: Paying, caplog: pytest.LogCaptureFixture
) -> None:
    site.add("pay", 1, "commit, raise")
    assert site.run().done == 1
    assert "has completed itself, and failed after that: ValueError: after the commit" in caplog.text
    assert (site.effects(), site.states()) == ([1, 101], [])


def test_a_stage_hands_its_result_on(site: Paying) -> None:
    site.server.add_pipeline([f"{site.name}.pay"] * 2, [1, "commit", {"number": 2}])
    assert (site.run().done, site.effects()) == (2, [1, 2, 101, 102])


# ---- whose task it is


@EACH_DATABASE
def test_a_task_that_was_taken_over_raises_lease_lost_and_leaves_nothing(
    site: Paying, caplog: pytest.LogCaptureFixture
) -> None:
    site.at("begun", lambda: site.rows.set("claim = claim + 1"))
    site.add("pay", 1)
    site.run()
    assert f"{site.name}.pay: the lease was lost while it ran" in caplog.text
    assert (site.effects(), site.states()) == ([], [(1, 1)])


def test_an_interrupt_that_was_swallowed_lets_nothing_be_completed(site: Paying) -> None:
    site.add("swallow_an_interrupt")
    site.run()
    assert (site.effects(), site.states()) == ([], [(3, 1)])
    assert site.first_lines()[0].startswith("TaskInterrupted: it was interrupted, and went on")


def test_an_error_that_was_swallowed_leaves_no_part_of_a_completion(
    make_site: Callable[..., Paying], queue_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task commits what it wrote before, and its row stays as it is."""
    first_write = iter([CallersRows.write])

    def write(*given: Any) -> int:
        for real in first_write:
            return real(*given)
        raise Conflict("the archive is locked")

    monkeypatch.setattr(CallersRows, "write", write)
    site = make_site(queue_dsn, mode="move")
    site.add("swallow", 5)
    site.run()
    assert (site.module.heard, site.effects(), site.states()) == (["the archive is locked"], [5], [(3, 1)])


# ---- where it is refused


def test_a_second_time_it_says_so_unless_the_first_was_rolled_back(site: Paying) -> None:
    for number, before in enumerate(("completed", "rolled back")):
        site.add("swallow", number, before)
    site.run()
    assert (site.effects(), site.states()) == ([0, 1], [])
    assert ["was called before, which completed this task" in error for error in site.module.heard] == [True]


def test_outside_of_a_task_it_says_so() -> None:
    with pytest.raises(TaskServerError, match=r"taskserver\.complete\(\) is for tasks, while they run, and none runs"):
        taskserver.complete(None)


@EACH_DATABASE
def test_it_is_refused_where_it_cannot_work(site: Paying) -> None:
    refused = {
        "of_several": "taskserver.complete() is for the code of one task",
        "transactional": "taskserver.complete() is ",
        "fail_for_good": "taskserver.complete() is ",
        "by_itself": "InvalidTask: connection is in no transaction, and",
        "give_none": "connection is of the type NoneType",
    }
    for name in refused:
        site.add(name)
    site.run()
    assert site.states() == [(4 if name == "fail_for_good" else 3, 1) for name in refused]
    for (name, words), (error,) in zip(refused.items(), site.columns("error_text"), strict=True):
        assert words in error, name


# ---- a connection that breaks


@EACH_SERVER
@pytest.mark.parametrize("is_after", [False, True])
def test_a_commit_that_was_cut_off_is_found_out(
    make_site: Callable[..., Paying],
    queue_dsn: str,
    database: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    is_after: bool,
) -> None:
    server: MySQLServer | PostgreSQLServer = request.getfixturevalue(f"{database}_server")
    with Proxy(server.host, server.port) as proxy:
        site = make_site(proxy.dsn(queue_dsn))
        cut = (proxy.cut_after if is_after else proxy.cut_before)(contains(b"COMMIT /* by"))
        site.add("pay", 1)
        site.add("pay", 2)
        result = site.run()
        assert cut.has_struck
        assert (result.done, result.failed, result.lost) == ((2, 0, 0) if is_after else (1, 1, 0))
        assert site.effects() == ([1, 2, 101, 102] if is_after else [2, 102])
        assert site.states() == ([] if is_after else [(3, 1)])
        assert ("has completed itself, and failed after that: OperationalError: " in caplog.text) is is_after
