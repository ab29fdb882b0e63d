"""What tasks return, as it is kept in their rows, and rows of done tasks that the database does not delete."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from taskserver.model.results import MAX_RESULT_BYTES
from tests.support.databases import EACH_DATABASE
from tests.support.rows import LET_DELETE, REFUSE_DELETE, connection_of
from tests.support.servers import MariaDB
from tests.support.sites import Site

KEPT: list[Any] = [
    None,
    False,
    {"größe": {"k": [True, None]}},
    "\0 \x1b\u2028 ' \" \\ % %s ? {ids} :x -- ;",
    "😀" * 5461 + "xx",  # as long as allowed; each takes twelve bytes
]
CODE = """
import time

import taskserver
from taskserver import task

written, calls, connect = [], [], None

class Raises(dict):
    def items(self):
        written.append("raises")
        1 / 0

class Slow(dict):
    def items(self):
        time.sleep(60)

def give(value):
    return value

@task(batch=50)
def give_each(items):
    return [value for [value] in items]

def return_what_raises():
    return Raises(a=1)

@task(timeout=0.2)
def return_what_never_ends():
    return [Slow(a=1)]

def give_a_set():
    return {1}

def give_what_is_too_long():
    return "x" * 65535

def give_long():
    return '"' * 30 * 1024  # each is two bytes of JSON

def note(number):
    calls.append(number)

@task(transactional=True, backoff="fixed:0")
def transfer(number):
    calls.append(number)

@task(backoff="fixed:0")
def complete(number):
    calls.append(number)
    connection = connect()
    connection.cursor().execute("BEGIN")
    taskserver.complete(connection)
    connection.commit()
    connection.close()

@task(batch=10)
def many(items):
    calls.extend(item["number"] for item in items)
"""
CANNOT_BE_KEPT = {
    "return_what_raises": "raises ZeroDivisionError as JSON",
    "return_what_never_ends": "raises TaskInterrupted as JSON",
    "give_a_set": "is of type set, which JSON cannot hold: write str(x)",
    "give_what_is_too_long": "takes 65537 bytes as JSON; allowed: 65536",
}


@pytest.fixture(params=["move", "mark"])
def keeping(make_site: Callable[..., Site], queue_dsn: str, request: pytest.FixtureRequest) -> Site:
    return make_site(queue_dsn, mode=request.param)


def states(site: Site, *ids: int) -> list[tuple[int, object]]:
    found = [site.server.get(task_id) for task_id in ids]
    return [(state.status, state.result) for state in found if state]


@EACH_DATABASE
def test_what_a_task_returned_can_be_read(keeping: Site) -> None:
    ids = [keeping.add_args(name, [value]) for name in ("give", "give_each") for value in KEPT]
    keeping.run()
    assert states(keeping, *ids) == [(2, value) for value in KEPT * 2]
    table = "jobs_queue_done" if keeping.mode == "move" else "jobs_queue"
    assert max(len(text.encode()) for (text,) in keeping.columns("result", table) if text) == MAX_RESULT_BYTES


def test_in_mode_delete_no_result_is_kept_or_looked_at(site: Site) -> None:
    task_id = site.add_args("return_what_raises")
    assert (site.run().done, site.module.written, site.server.get(task_id)) == (1, [], None)


def test_a_task_whose_result_cannot_be_kept_is_done_and_that_is_logged(
    keeping: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning per run and callable."""
    names = [*CANNOT_BE_KEPT, "give_a_set"]
    ids = [keeping.add_args(name) for name in names]
    last = keeping.add_args("give", ["the next one"])
    result = keeping.run()
    assert (result.done, result.failed, result.fatal) == (len(ids) + 1, 0, 0)
    assert states(keeping, *ids, last) == [*[(2, None)] * len(ids), (2, "the next one")]
    logged = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for task_id, (name, words), line in zip(ids, CANNOT_BE_KEPT.items(), logged, strict=False):
        assert f"task {task_id} {keeping.name}.{name} is done, and its result is not kept: what it returned " in line
        assert words in line, name
    assert len(logged) == len(CANNOT_BE_KEPT)


def test_a_result_longer_than_the_server_takes_is_dropped_and_its_task_is_done(
    mariadb: MariaDB, make_site: Callable[..., Site], caplog: pytest.LogCaptureFixture
) -> None:
    [[packet]] = mariadb.execute("SELECT @@GLOBAL.max_allowed_packet")
    with mariadb.database() as name:
        try:
            mariadb.execute(f"SET GLOBAL max_allowed_packet = {48 * 1024}")
            site = make_site(mariadb.dsn(name), mode="mark")
            ids = [site.add_args("give", [1]), site.add_args("give_long"), site.add_args("give", [2])]
            result = site.run()
        finally:
            mariadb.execute(f"SET GLOBAL max_allowed_packet = {packet}")
        assert (result.done, result.failed, result.fatal) == (3, 0, 0)
        assert states(site, *ids) == [(2, 1), (2, None), (2, 2)]
        assert "longer than the server takes (max_allowed_packet)" in caplog.text


# ---- rows that a foreign key or a trigger of the site's own keeps

KEEP_SILENTLY = {
    "sqlite": ["CREATE TRIGGER keeping BEFORE DELETE ON jobs_queue WHEN OLD.id = {} BEGIN SELECT RAISE(IGNORE); END"],
    "postgresql": [
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER keeping BEFORE DELETE ON jobs_queue FOR EACH ROW WHEN (OLD.id = {}) EXECUTE FUNCTION keep()",
    ],
}
"""MySQL has no way to do that."""
LET_GO = LET_DELETE | {"postgresql": "DROP FUNCTION keep() CASCADE"}


@pytest.mark.parametrize("name", ["note", "many", "transfer", "complete"])
@pytest.mark.parametrize(
    ("kind", "mode", "is_silent"),
    [("sqlite", "delete", False), ("mysql", "move", False), ("sqlite", "move", True), ("postgresql", "delete", True)],
)
def test_a_row_that_cannot_be_deleted_is_marked_done_and_its_task_runs_once(
    make_site: Callable[..., Site],
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    mode: str,
    is_silent: bool,
    name: str,
) -> None:
    """Without Outcome.KEPT the task would run again and again."""
    site = make_site(request.getfixturevalue(f"{kind}_queue_dsn"), mode=mode)
    site.module.connect = lambda: connection_of(site.dsn)
    ids = [site.add_args(name, {"number": number}, unique_key=f"key {number}") for number in range(6)]
    for statement in (KEEP_SILENTLY if is_silent else REFUSE_DELETE)[kind]:
        site.rows.execute(statement.format(ids[3]))
    try:
        result = site.run()
        assert (result.done, result.failed, result.fatal, result.lost) == (6, 0, 0, 0)
        assert sorted(site.module.calls) == list(range(6))
        assert site.columns("id, status, claim, due_at, unique_key") == [(ids[3], 2, None, None, None)]
        assert site.columns("status", "jobs_queue_done") == [(2,)] * (5 + is_silent if mode == "move" else 0)
        (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert warning.startswith(f"task {ids[3]} {site.name}.{name} is completed, but its row could not be deleted")
        assert ("row level security" in warning) == is_silent
        assert site.run().taken == 0
    finally:
        site.rows.execute(LET_GO[kind])
