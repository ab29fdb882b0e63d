"""Tasks that wait for others: when they start, and when they are given up.

What parents, children and workers do at the same time is in tests/faults/test_dependency_races.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from taskserver import InvalidTask, Reason, TaskServer
from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.task import ClaimedTask
from taskserver.stores.queue.dependencies import Dependencies
from taskserver.stores.queue.operations import Operations
from tests.support.documents import blocks
from tests.support.queues import LONG_AGO
from tests.support.servers import MySQLServer
from tests.support.sites import Site
from tests.support.websites import WEB_PASSWORD, web_user

CODE = """
from taskserver import Fatal

ran, broken = [], set()

def note(name):
    ran.append(name)
    if name in broken:
        raise Fatal("no")
"""
GIVEN_UP = "dependency: task {}, for which it waits, is fatal"
CANCELLED = "dependency: task {}, for which it waits, was cancelled"


class Family(Site):
    """Tasks that wait for one another, by their names."""

    def add(self, name: str, *parents: int, **more: Any) -> int:
        return self.add_args("note", [name], depends_on=parents, **more)

    def decide(self) -> None:
        """As a worker does at a look for due rows."""
        self.store.due.wake(self.store.due.look().to_wake)
        while Dependencies(self.store.database).decide(self.store.due.look().linked):
            pass

    @property
    def ran(self) -> list[Any]:
        return list(self.module.ran)

    def break_(self, *names: str) -> None:
        """Make the tasks of these names, and no others, fatal from now on."""
        self.module.broken.clear()
        self.module.broken.update(names)

    def row(self, task_id: int) -> tuple[Any, ...]:
        """Its status, whether it has an instant, and the first line of its error."""
        row = self.rows.row(task_id)
        return row["status"], row["due_at"] is not None, row["error_text"] and row["error_text"].partition("\n")[0]

    def edges(self) -> list[tuple[int, int]]:
        return self.rows.execute("SELECT parent_id, child_id FROM jobs_queue_dependencies ORDER BY 1, 2")

    def begin(self, task_id: int) -> ClaimedTask:
        """A worker other than that of `run` starts it."""
        task = Operations(self.store).claim_one(task_id)
        assert self.store.finishes.advance([], Start(task, 10))[1]
        return task

    def end(self, task: ClaimedTask, error_text: str | None = None) -> Outcome:
        return self.store.finishes.advance([Finish(task, error_text)], None)[0][0]

    def assert_all_done(self, *ids: int) -> None:
        """Nothing waits, and what is done is where the mode has it."""
        assert self.edges() == []
        left = [(row["id"], row["status"], row["due_at"], row["awaited"]) for row in self.rows.all()]
        assert left == ([(one, 2, None, 0) for one in ids] if self.mode == "mark" else [])
        assert [row["id"] for row in self.rows.all("jobs_queue_done")] == (list(ids) if self.mode == "move" else [])


SITE = Family


# ---- when a task starts


def test_a_task_starts_once_all_that_it_waits_for_are_done(any_site: Family) -> None:
    site = any_site
    first, second = site.add("first"), site.add("second")
    child = site.add("child", first, second)
    assert site.run(1).done == 1
    site.decide()
    assert site.row(child) == (5, False, None)
    assert site.edges() == [(second, child)]
    assert site.run().done == 2
    assert site.ran == ["first", "second", "child"]
    site.assert_all_done(first, second, child)


def test_a_parent_without_a_smaller_id_is_refused_and_nothing_is_added(site: Family) -> None:
    parent = site.add("parent")
    with pytest.raises(InvalidTask, match=f"depends_on names {parent + 1}, and this task would be {parent + 1}"):
        site.add("child", parent, parent + 1)
    with pytest.raises(InvalidTask, match=f"depends_on names {2**64 - 1}"):  # SQLite cannot bind it
        site.server.add_task("tasks.note", depends_on=[2**64 - 1])
    assert [row["id"] for row in site.rows.all()] == [parent]
    assert site.edges() == []


def test_a_delayed_child_starts_after_its_delay_and_after_its_parent(site: Family) -> None:
    parent = site.add("parent")
    child = site.add("child", parent, delay=3600)
    site.add("later", parent, delay=3600)
    task = site.begin(parent)
    site.rows.set(f"due_at = '{LONG_AGO}' WHERE id = {child}")
    assert site.run().done == 0
    assert site.row(child) == (5, False, None)
    assert site.end(task) == Outcome.AS_ASKED
    assert (site.run().done, site.ran) == (1, ["child"])
    site.rows.set(f"due_at = '{LONG_AGO}'")
    assert site.run().done == 1
    site.assert_all_done()


def test_a_child_that_is_added_by_itself_gets_its_status_at_once(site: Family) -> None:
    done = site.add("done")
    assert site.run().done == 1
    parent, cancelled = site.add("parent"), site.add("cancelled")
    site.server.cancel(cancelled)

    def add(*parents: int) -> tuple[Any, ...]:
        return site.row(site.server.add_task(f"{site.name}.note", ["child"], depends_on=parents))

    assert add(done) == (0, False, None)
    assert add(done, parent) == (5, False, None)
    assert add(parent, cancelled) == (4, False, CANCELLED.format(cancelled))
    assert site.run().done == 3


def test_a_producer_that_may_only_insert_leaves_the_decision_to_a_worker(
    mysql_site: Family, mysql_server: MySQLServer
) -> None:
    site = mysql_site
    parent = site.add("parent")
    at: Any = site.server.settings.dsn
    users = web_user(mysql_server, at.database, "jobs_queue", "jobs_queue_dependencies")
    place = f"{at.host}:{at.port}/{at.database}"
    with users as user, TaskServer(f"mysql://{user}@{place}", password=WEB_PASSWORD) as server:
        child = server.add_task(f"{site.name}.note", ["child"], depends_on=[parent])
    assert site.row(child) == (5, True, None)
    assert site.run().done == 2


# ---- when one is fatal


def test_a_fatal_task_makes_all_behind_it_fatal_and_its_retry_revives_them(
    site: Family, caplog: pytest.LogCaptureFixture
) -> None:
    site.break_("parent")
    parent = site.add("parent")
    child = site.add("child", parent, group_id=7)
    grandchild = site.add("grandchild", child)
    result = site.server.run()
    assert (result.done, result.fatal, result.reason) == (0, 1, Reason.EMPTY)
    assert site.row(parent) == (4, False, "Fatal: no")
    assert site.row(child) == (4, False, GIVEN_UP.format(parent))
    assert site.row(grandchild) == (4, False, GIVEN_UP.format(child))
    assert [(one.group_id, one.fatal, one.attempts) for one in site.server.stats()] == [(0, 2, 1), (7, 1, 0)]
    assert f"task {child} {site.name}.note is fatal: {GIVEN_UP.format(parent)}" in caplog.text
    assert all(row["finished_at"] is not None for row in site.rows.all())
    site.break_()
    assert site.server.retry(parent) == 1
    assert [site.row(one) for one in (child, grandchild)] == [(5, False, None)] * 2
    assert site.row(parent)[:2] == (0, False)
    assert site.run().done == 3
    assert site.ran[1:] == ["parent", "child", "grandchild"]
    site.assert_all_done()


@pytest.mark.parametrize("is_running", [False, True])
def test_the_children_of_a_cancelled_task_are_given_up(site: Family, is_running: bool) -> None:
    parent = site.add("parent", delay=None if is_running else 3600)
    child = site.add("child", parent)
    site.decide()
    task = site.begin(parent) if is_running else None
    assert site.server.cancel(parent) == 1
    if task:
        assert site.row(child)[0] == 5
        assert site.end(task, "TaskInterrupted: cancelled") == Outcome.CANCELLED
    assert site.row(parent) == (7, False, "cancelled")
    assert site.row(child) == (4, False, CANCELLED.format(parent))
    site.server.retry(parent)
    assert site.run().done == 2


def test_a_retry_of_all_by_the_sql_of_the_documents_makes_them_wait_again(site: Family) -> None:
    [statement] = [block.text for block in blocks("docs/operating.md") if "WHERE status = 4" in block.text]
    site.break_("parent")
    site.add("child", site.add("parent"))
    for _ in range(2):
        site.run()
        assert site.rows.statuses() == [4, 4]
        site.rows.execute(statement)
    site.break_()
    site.run()
    assert site.ran == ["parent"] * 3 + ["child"]
    site.assert_all_done()


def test_a_prune_deletes_the_edges_of_fatal_tasks(site: Family) -> None:
    site.break_("parent")
    site.add("child", site.add("parent"))
    site.run()
    site.rows.set(f"finished_at = '{LONG_AGO}'")
    assert site.server.prune(60, fatal=True).deleted == 2
    assert site.edges() == []
