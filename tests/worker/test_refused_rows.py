"""Rows that the database does not delete, by a foreign key or a trigger of the site's own: done all the same, once."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tests.support.rows import LET_DELETE, REFUSE_DELETE, connection_of
from tests.support.sites import Site
from tests.worker.conftest import DSNS

CODE = """
import taskserver
from taskserver import task

calls, connect = [], None

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
    """It fails without Outcome.KEPT: the task runs again and again."""
    site = make_site(request.getfixturevalue(DSNS[kind]), mode=mode)
    site.module.connect = lambda: connection_of(site.dsn)
    ids = [site.add_args(name, {"number": number}) for number in range(6)]
    for statement in (KEEP_SILENTLY if is_silent else REFUSE_DELETE)[kind]:
        site.rows.execute(statement.format(ids[3]))
    try:
        result = site.run()
        assert (result.done, result.failed, result.fatal, result.lost) == (6, 0, 0, 0)
        assert sorted(site.module.calls) == list(range(6))
        assert site.columns("id, status, claim, due_at") == [(ids[3], 2, None, None)]
        assert site.columns("status", "jobs_queue_done") == [(2,)] * (5 + is_silent if mode == "move" else 0)
        (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert warning.startswith(f"task {ids[3]} {site.name}.{name} is completed, but its row could not be deleted")
        assert ("row level security" in warning) == is_silent
        assert site.run().taken == 0
    finally:
        site.rows.execute(LET_GO[kind])
