"""Rows that the database does not let go, by a foreign key or a trigger of the site's own: done all the same, once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from tests.support.sessions import new_connection
from tests.support.sites import Site
from tests.support.words import LET_DELETE, REFUSE_DELETE

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


@pytest.fixture(params=["delete", "move"])
def site(make_site: Callable[..., Site], site_dsn: str, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = make_site(site_dsn, mode=request.param)
    site.module.connect = lambda: new_connection(site.store)
    yield site
    site.rows.execute(LET_DELETE[site.rows.kind])


@pytest.mark.parametrize("name", ["note", "many", "transfer", "complete"])
def test_a_row_that_cannot_go_stays_as_done_and_spoils_no_other(
    site: Site, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    ids = [site.add_args(name, {"number": number}) for number in range(6)]
    for statement in REFUSE_DELETE[site.rows.kind]:
        site.rows.execute(statement.format(ids[3]))
    result = site.run()
    assert (result.done, result.failed, result.fatal, result.lost) == (6, 0, 0, 0)
    assert sorted(site.module.calls) == list(range(6))
    assert site.columns("id, status, claim, due_at") == [(ids[3], 2, None, None)]
    assert site.columns("status", "jobs_queue_done") == [(2,)] * (5 if site.mode == "move" else 0)
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told.startswith(
        f"task {ids[3]} {site.name}.{name} is completed, but its row could not be deleted, and is marked done: "
    )
    assert site.run().taken == 0


SILENT = {
    "sqlite": ["CREATE TRIGGER keeping BEFORE DELETE ON jobs_queue WHEN OLD.id = {} BEGIN SELECT RAISE(IGNORE); END"],
    "postgresql": [
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
        "CREATE TRIGGER keeping BEFORE DELETE ON jobs_queue FOR EACH ROW WHEN (OLD.id = {}) EXECUTE FUNCTION keep()",
    ],
}
END_SILENT = {"sqlite": "DROP TRIGGER keeping", "postgresql": "DROP FUNCTION keep() CASCADE"}


@pytest.mark.parametrize("mode", ["delete", "move"])
@pytest.mark.parametrize("name", ["note", "many", "transfer", "complete"])
@pytest.mark.parametrize("kind", SILENT)
def test_a_row_that_is_silently_not_deleted_is_marked_done_and_its_task_runs_once(
    make_site: Callable[..., Site],
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    mode: str,
    name: str,
) -> None:
    """MySQL has no way to do that. It fails without Outcome.KEPT: the task runs again and again."""
    site = make_site(request.getfixturevalue(f"{kind}_dsn"), mode=mode)
    site.module.connect = lambda: new_connection(site.store)
    ids = [site.add_args(name, {"number": number}) for number in range(4)]
    for statement in SILENT[kind]:
        site.rows.execute(statement.format(ids[2]))
    try:
        result = site.run()
        assert (result.done, result.failed, result.lost) == (4, 0, 0)
        assert sorted(site.module.calls) == list(range(4))
        assert site.columns("id, status, claim, due_at") == [(ids[2], 2, None, None)]
        (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert warning.startswith(f"task {ids[2]} {site.name}.{name} is completed, but its row could not be deleted")
        assert "row level security" in warning
        assert site.run().taken == 0
    finally:
        site.rows.execute(END_SILENT[kind])
