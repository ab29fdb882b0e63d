"""Parents that end while children are added: no child runs too early, and none waits for ever."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest

from taskserver import TaskServer
from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.new_task import NewTask
from taskserver.model.task import ClaimedTask, Status
from taskserver.stores.queue.dependencies import Dependencies
from taskserver.stores.queue.operations import Operations
from tests.support.databases import EACH_SERVER
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.rows import Rows

LONG = pytest.mark.long
FINISHERS, ADDERS = 4, 3


class Race:
    """Running parents, and what becomes of them and their children."""

    def __init__(self, server: TaskServer, rows: Rows, parents: int) -> None:
        self.server, self.store, self.rows = server, server.store, rows
        server.add_tasks([{"task": "tasks.note"}] * parents)
        rows.set(f"status = 1, claim = 7, attempts = 1, started_at = created_at, due_at = {rows.after(3600)}")
        self.to_end = [row["id"] for row in rows.all()]
        random.Random(7).shuffle(self.to_end)
        self.parents, self.added, self.waited = parents, 0, 0
        self.early: list[int] = []

    def end_parents(self) -> None:
        while self.to_end:
            if self.added < self.parents - len(self.to_end):
                time.sleep(0.0001)  # so that children are added all the time
                continue
            task = ClaimedTask(self.to_end.pop(), "tasks.note", None, None, 0, None, 7)
            finish = Finish(task, "no" if task.id % 10 == 0 else None)
            assert self.store.finishes.advance([finish], None)[0] == [Outcome.AS_ASKED]

    def add_children(self) -> None:
        until, children = time.monotonic() + WAIT_SECONDS, list[tuple[int, list[int]]]()
        while (ahead := self.to_end[-12:]) and time.monotonic() < until:
            parents = random.sample(ahead, min(len(ahead), random.randint(1, 4)))
            children.append((self.server.add_task("tasks.note", depends_on=parents), parents))
            self.added += 1
            for child_id, awaited in children[-2:]:
                child = self.server.get(child_id)
                if child is not None and child.status == Status.NEW and not set(awaited).isdisjoint(self.to_end):
                    self.early.append(child_id)  # an error here would leave the others waiting
            self.waited += child is not None and child.status == Status.WAITING

    def run(self) -> Counter[int]:
        """The children by status, once the last parent has ended."""
        with ThreadPoolExecutor(FINISHERS + ADDERS) as pool:
            works = [pool.submit(work) for work in [self.end_parents] * FINISHERS + [self.add_children] * ADDERS]
            for work in works:
                work.result(WAIT_SECONDS)
        while (due := self.store.due.look()).to_wake or due.linked:  # of children whose parents were held for long
            self.store.due.wake(due.to_wake)
            Dependencies(self.store.database).decide(due.linked)
        return Counter(row["status"] for row in self.rows.all() if row["error_text"] != "no")


@pytest.fixture
def race(dsn: str) -> Iterator[Race]:
    with TaskServer(dsn) as server, closing(Rows(dsn)) as rows:
        server.create_tables()
        yield Race(server, rows, 100 if rows.is_sqlite else 300)


@pytest.mark.parametrize(
    "database", ["mysql", pytest.param("sqlite", marks=LONG), pytest.param("postgresql", marks=LONG)], indirect=True
)
def test_parents_that_end_and_children_that_are_added_at_the_same_time_leave_no_child_waiting(race: Race) -> None:
    children = race.run()
    assert set(children) == {Status.NEW, Status.FATAL}
    assert not race.early
    assert race.waited > 20  # children were there when their parents ended


# ---- two transactions at the same time


@contextmanager
def transaction(dsn: str, statement: str) -> Iterator[Rows]:
    """Another worker is amid this; it is committed at the end, unless it was rolled back."""
    with closing(Rows(dsn)) as other:
        other.execute("BEGIN")
        other.execute(statement)
        yield other
        other.execute("COMMIT")


def begin(server: TaskServer, task_id: int) -> ClaimedTask:
    task = Operations(server.store).claim_one(task_id)
    server.store.finishes.advance([], Start(task, 10))
    return task


@EACH_SERVER
def test_a_parent_that_ends_while_it_is_marked_as_awaited_releases_the_child(
    dsn: str, database: str, request: pytest.FixtureRequest
) -> None:
    lock_waits = request.getfixturevalue(f"{database}_server").count_lock_waits
    with TaskServer(dsn) as server, TaskServer(dsn) as other, ThreadPoolExecutor(1) as worker:
        server.create_tables()
        parent = begin(server, server.add_task("tasks.note"))
        child = server.add_task("tasks.note", depends_on=[parent.id])
        with transaction(dsn, f"UPDATE jobs_queue SET awaited = 1 WHERE id = {parent.id}"):
            ending = worker.submit(other.store.finishes.advance, [Finish(parent)], None)
            wait_until(lock_waits)
            assert not ending.done()
        assert ending.result(WAIT_SECONDS) == ([Outcome.AS_ASKED], False)
        with closing(Rows(dsn)) as rows:
            assert [(row["id"], row["status"]) for row in rows.all()] == [(child, Status.NEW)]


@EACH_SERVER
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_child_of_a_parent_that_just_ends_is_decided_at_the_next_look(dsn: str, end: str) -> None:
    with TaskServer(dsn) as server, closing(Rows(dsn)) as rows:
        server.create_tables()
        task = begin(server, server.add_task("tasks.note"))
        waiting = NewTask("tasks.note", None, 0, 0, delay_seconds=0.0, depends_on=str(task.id))
        [child] = server.store.producing.add_many([waiting])  # of many tasks, none is decided as it is added

        def decide() -> int:
            return Dependencies(server.store.database).decide(server.store.due.look().linked)

        with transaction(dsn, f"DELETE FROM jobs_queue WHERE id = {task.id} AND awaited = 0") as other:
            assert decide() == 0
            assert rows.row(child)["status"] == Status.WAITING
            other.execute(end)
        assert decide() == 1
        assert rows.row(child)["status"] == (Status.NEW if end == "COMMIT" else Status.WAITING)
