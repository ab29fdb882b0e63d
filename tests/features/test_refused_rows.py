"""Rows that the database does not let go, by a foreign key or a trigger of the site's own: done all the same, once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from taskserver import DatabaseError
from tests.support.sessions import new_connection
from tests.support.sites import Site
from tests.support.words import LET_DELETE, REFUSE_DELETE

CODE = """
import taskserver
from taskserver import task

calls = []
connect = None
has_money = False

def note(number):
    calls.append(number)

def pay(connection, number):
    if has_money:
        connection.cursor().execute(f"INSERT INTO money VALUES ({number})")

@task(transactional=True, backoff="fixed:0")
def transfer(number):
    calls.append(number)
    pay(taskserver.connection(), number)

@task(backoff="fixed:0")
def complete(number):
    calls.append(number)
    connection = connect()
    connection.cursor().execute("BEGIN")
    pay(connection, number)
    taskserver.complete(connection)
    connection.commit()
    connection.close()

@task(batch=10)
def many(items):
    calls.extend(item["number"] for item in items)
"""


def keep(site: Site, row_id: int) -> None:
    for statement in REFUSE_DELETE[site.rows.kind]:
        site.rows.execute(statement.format(row_id))


def let_go(site: Site) -> None:
    site.rows.execute(LET_DELETE[site.rows.kind])


AUDIT = {
    "mysql": [
        "CREATE TRIGGER auditing AFTER DELETE ON jobs_queue FOR EACH ROW IF OLD.id = {} "
        "THEN INSERT INTO audit VALUES (OLD.task); END IF"
    ],
    "postgresql": [
        "CREATE FUNCTION audit_it() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO audit VALUES (OLD.task); RETURN NULL; END $$",
        "CREATE TRIGGER auditing AFTER DELETE ON jobs_queue FOR EACH ROW WHEN (OLD.id = {}) "
        "EXECUTE FUNCTION audit_it()",
    ],
}
END_AUDIT = {"mysql": "DROP TRIGGER auditing", "postgresql": "DROP FUNCTION audit_it() CASCADE"}


@pytest.mark.parametrize("name", ["note", "many", "transfer"])
def test_a_trigger_that_fails_by_itself_keeps_its_row_and_no_other(server_site: Site, name: str) -> None:
    site = server_site
    ids = [site.add_args(name, {"number": number}) for number in range(6)]
    site.rows.execute("CREATE TABLE audit (task VARCHAR(3))")
    for statement in AUDIT[site.rows.kind]:
        site.rows.execute(statement.format(ids[3]))
    try:
        assert site.run().done == 6
        assert sorted(site.module.calls) == list(range(6))
        assert site.columns("id, status") == [(ids[3], 2)]
    finally:
        site.rows.execute(END_AUDIT[site.rows.kind])
        site.rows.execute("DROP TABLE audit")


@pytest.fixture(params=["delete", "move"])
def site(make_site: Callable[..., Site], site_dsn: str, request: pytest.FixtureRequest) -> Iterator[Site]:
    site = make_site(site_dsn, mode=request.param)
    yield site
    let_go(site)


@pytest.mark.parametrize("name", ["note", "many", "transfer", "complete"])
def test_a_row_that_cannot_go_stays_as_done_and_spoils_no_other(
    site: Site, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    site.module.connect = lambda: new_connection(site.store)
    ids = [site.add_args(name, {"number": number}) for number in range(6)]
    keep(site, ids[3])
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
@pytest.mark.parametrize("kind", SILENT)
@pytest.mark.parametrize("name", ["note", "many", "transfer", "complete"])
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


@pytest.mark.parametrize("name", ["transfer", "complete"])
def test_a_task_whose_whole_transaction_a_trigger_rolled_back_is_not_done(
    sqlite_site: Site, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    site = sqlite_site
    site.rows.execute("CREATE TABLE money (number)")
    site.module.connect = lambda: new_connection(site.store)
    site.module.has_money = True
    ids = [site.add_args(name, {"number": number}) for number in range(3)]
    (keeping,) = REFUSE_DELETE["sqlite"]
    site.rows.execute(keeping.format(ids[1]).replace("ABORT", "ROLLBACK"))
    result = site.run()
    assert (result.done, result.failed, result.lost) == (2, 1, 0)
    assert site.rows.execute("SELECT number FROM money") == [(0,), (2,)]
    ((row_id, status, error),) = site.columns("id, status, error_text")
    assert (row_id, status) == (ids[1], 3)
    assert "an order names it; it rolled the whole transaction back" in error
    assert "could not be deleted" not in caplog.text


def test_a_completion_that_is_interrupted_is_no_refusal(sqlite_site: Site) -> None:
    site = sqlite_site
    site.rows.execute("CREATE TABLE money (number)")

    def connect() -> object:
        connection = new_connection(site.store)
        steps = count(1)
        number = len(site.module.calls) * 7  # once, ever later
        connection.set_progress_handler(lambda: next(steps) == number, 1)
        return connection

    site.module.connect, site.module.has_money = connect, True
    for number in range(60):
        site.add_args("complete", {"number": number}, max_attempts=1)
    result = site.run()
    paid = {number for (number,) in site.rows.execute("SELECT number FROM money")}
    failed = {json.loads(args)["number"] for (args,) in site.columns("args")}
    assert paid | failed == set(range(60))
    assert not paid & failed
    assert result.done == len(paid)
    assert result.fatal == len(failed) > 0


def test_the_tasks_that_wait_for_one_that_cannot_go_are_let_go(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    parents = [site.add_args("note", {"number": number}) for number in range(3)]
    for number, parent in enumerate(parents, start=3):
        site.add_args("note", {"number": number}, depends_on=[parent])
    keep(site, parents[1])
    assert site.run().done == 6
    assert site.run().taken == 0
    assert sorted(site.module.calls) == list(range(6))
    assert site.columns("id, status, awaited, due_at") == [(parents[1], 2, 0, None)]
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told.startswith(f"task {parents[1]} ")
    assert "is completed, but its row could not be deleted, and is marked done: " in told


def test_a_row_that_cannot_go_gives_up_its_key(site: Site) -> None:
    first = site.server.add_task(f"{site.name}.note", [1], unique_key="nightly")
    keep(site, first)
    assert site.run().done == 1
    assert site.server.add_task(f"{site.name}.note", [2], unique_key="nightly") > first
    assert site.run().done == 1
    assert site.module.calls == [1, 2]


REFUSING = {
    "mysql": [
        "CREATE TRIGGER refusing BEFORE UPDATE ON jobs_queue FOR EACH ROW IF NEW.id = {} AND NEW.attempts > 0 "
        "THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'not this one'; END IF"
    ],
    "postgresql": [
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$",
        "CREATE TRIGGER refusing BEFORE UPDATE ON jobs_queue FOR EACH ROW "
        "WHEN (NEW.id = {} AND NEW.attempts > 0) EXECUTE FUNCTION refuse()",
    ],
}
END_REFUSING = {"mysql": "DROP TRIGGER refusing", "postgresql": "DROP FUNCTION refuse() CASCADE"}


def test_a_start_that_is_refused_ends_the_run_with_the_reason(server_site: Site) -> None:
    site = server_site
    ids = [site.add_args("note", [number]) for number in range(3)]
    for statement in REFUSING[site.rows.kind]:
        site.rows.execute(statement.format(ids[1]))
    try:
        with pytest.raises(DatabaseError, match="not this one"):
            site.run()
    finally:
        site.rows.execute(END_REFUSING[site.rows.kind])
    assert site.columns("id, status, attempts") == [(ids[1], 0, 0), (ids[2], 0, 0)]


@pytest.mark.long
def test_a_prune_leaves_what_cannot_go_and_deletes_the_rest(site: Site) -> None:
    ids = [site.add_args("note", {"number": number}) for number in range(6)]
    site.rows.set("status = 2, finished_at = '2020-01-01 00:00:00'")
    keep(site, ids[3])
    pruned = site.server.prune(0)
    assert (pruned.done, pruned.held) == (5, 1)
    assert site.columns("id") == [(ids[3],)]
