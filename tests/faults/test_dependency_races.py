"""Parents that end, children that are added, workers that decide about them: in each order that their steps can have.

A scene is what workers do at the same time; tests/support/interleaving.py does that in one order after the other. In
the end each task has run as often as it should, none before its parents, and no edge or mark is left.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial

import pytest

from taskserver import TaskServer
from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.new_task import NewTask
from taskserver.model.selection import Selection
from taskserver.model.task import ClaimedTask, Status
from taskserver.stores import Store
from taskserver.stores.queue import dependencies
from taskserver.stores.queue.dependencies import Dependencies
from taskserver.stores.queue.operations import Operations
from tests.conftest import without
from tests.support.interleaving import Plan, by_chance, in_order, interrupted_once, interrupted_twice, watch
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.rows import MODES, Rows
from tests.support.servers import MariaDB, missing_programs
from tests.support.sessions import whenever_connected

SERVERS = ("mysql", "postgresql")


@pytest.fixture(scope="module")
def statements_dsn() -> Iterator[str]:
    """A server that replicates by statements, and so takes no write in READ COMMITTED."""
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB(False, "--log-bin", "--binlog-format=STATEMENT", "--server-id=1") as server, server.database() as name:
        yield server.dsn(name)


@pytest.fixture(params=["sqlite", *SERVERS, pytest.param("statements", marks=pytest.mark.long)])
def any_dsn(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_dsn"))


def without_sync(store: Store) -> Store:
    """No power fails here."""
    if store.has_one_writer:
        whenever_connected(store, lambda connection: connection.execute("PRAGMA synchronous = OFF"))
    return store


class Family:
    """Tasks that wait for others, workers with connections of their own, and a record of what they did."""

    def __init__(self, dsn: str, mode: str) -> None:
        self.dsn, self.mode = dsn, mode
        self.servers = [TaskServer(dsn, mode=mode) for _ in range(4)]
        self.servers[0].create_tables()
        self.stores = [watch(without_sync(server.store)) for server in self.servers]
        self.rows = Rows(dsn)
        self.record: list[tuple[str, int]] = []
        """Tasks that began, or ended well."""
        self.parents: dict[int, set[int]] = {}
        self.may_run_again: set[int] = set()
        self.to_retry: list[int] = []

    def close(self) -> None:
        self.rows.close()
        for server in self.servers:
            server.close()

    def empty(self) -> None:
        for table in ("jobs_queue", "jobs_queue_done", "jobs_queue_dependencies"):
            self.rows.execute(f"DELETE FROM {table}")
        self.record.clear()
        self.parents.clear()

    # ---- steps

    def add(self, *parents: int, store: Store | None = None, delay: float = 0.0, key: str | None = None) -> int:
        task = NewTask("tasks.note", None, 0, 0, unique_key=key, rerun=key is not None)
        if parents:
            task = task._replace(delay_seconds=delay, depends_on=",".join(map(str, parents)))
        task_id = (store or self.stores[0]).producing.add(task)
        self.parents[task_id] = set(parents)
        return task_id

    def begin(self, task_id: int, max_attempts: int = 10) -> ClaimedTask:
        return self.start(self.stores[0], Operations(self.stores[0]).claim_one(task_id), max_attempts)

    def start(self, store: Store, task: ClaimedTask, max_attempts: int = 10) -> ClaimedTask:
        store.finishes.advance([], Start(task, max_attempts))
        self.record.append(("began", task.id))
        return task

    def end(self, store: Store, task: ClaimedTask, error_text: str | None = None) -> None:
        [outcome], _ = store.finishes.advance([Finish(task, error_text)], None)
        if error_text is None and outcome:
            self.record.append(("ended", task.id))

    def fail(self, parent: int) -> None:
        self.end(self.stores[0], self.begin(parent), "no")

    def decide(self, store: Store) -> int:
        return Dependencies(store.database).decide(store.due.look().linked)

    def work(self, store: Store, rounds: int = 1000) -> None:
        """As a worker does until nothing is left, or so many rounds of it."""
        for _ in range(rounds):
            due = store.due.look()
            moved = store.due.wake(due.to_wake) + Dependencies(store.database).decide(due.linked)
            tasks = store.claims.claim(100, ()).tasks
            for task in tasks:
                self.end(store, self.start(store, task))
            if not moved and not tasks:
                return
        assert rounds < 1000, "it never ends"

    def end_and_work(self, store: Store, task: ClaimedTask, rounds: int = 2) -> None:
        self.end(store, task)
        self.work(store, rounds)

    def add_and_work(self, store: Store, parent: int, rounds: int = 2) -> None:
        self.add(parent, store=store)
        self.work(store, rounds)

    def retry_and_work(self, store: Store, parent: int) -> None:
        Operations(store).retry(Selection(ids=[parent]))
        self.work(store, 3)

    def chain(self, length: int, key: str | None = None) -> int:
        """So many tasks, each of which waits for the one before it; the first one."""
        first = last = self.add(key=key)
        for _ in range(length - 1):
            last = self.add(last)
        while self.decide(self.stores[0]):
            pass
        return first

    # ---- verdict

    def assert_all_ran_once(self) -> None:
        self.work(self.stores[0])
        if self.to_retry:
            assert self.rows.execute("SELECT id FROM jobs_queue WHERE status <> 4") == []
            Operations(self.stores[0]).retry(Selection(ids=self.to_retry))
            self.work(self.stores[0])
        self.rows.set(f"due_at = {self.rows.after(0)} WHERE status = 5 AND due_at IS NOT NULL")
        self.work(self.stores[0])
        assert self.rows.all("jobs_queue_dependencies", "parent_id, child_id", "1") == []
        left = self.rows.all(columns="id, status, due_at, awaited")
        marked = sorted(self.parents) if self.mode == "mark" else []
        assert left == [{"id": one, "status": 2, "due_at": None, "awaited": 0} for one in marked]
        moved = sorted(self.parents) if self.mode == "move" else []
        assert [row["id"] for row in self.rows.all("jobs_queue_done", "id")] == moved
        times = Counter(task_id for what, task_id in self.record if what == "ended")
        assert set(times) == set(self.parents)
        assert {one: n for one, n in times.items() if n > 1 and one not in self.may_run_again} == {}
        ended: set[int] = set()
        for what, task_id in self.record:
            if what == "ended":
                ended.add(task_id)
            else:
                assert self.parents[task_id] <= ended, self.record


@pytest.fixture(params=["delete", *(pytest.param(mode, marks=pytest.mark.long) for mode in MODES[1:])])
def family(request: pytest.FixtureRequest, any_dsn: str) -> Iterator[Family]:
    with closing(Family(any_dsn, request.param)) as made:
        made.empty()
        yield made


Works = Sequence[Callable[[Store], object]]
"""What workers do at the same time, each with a store of its own."""
Scene = Callable[[Family], Works]


def try_each(family: Family, scene: Scene, orders: Callable[[Sequence[int]], Iterator[Plan]]) -> int:
    """How many orders of a scene were tried."""

    def works() -> Iterator[Callable[[], object]]:
        return (partial(work, store) for work, store in zip(scene(family), family.stores, strict=False))

    steps = in_order([], *works())
    family.empty()
    tried = 0
    for plan in orders(steps):
        in_order(plan, *works())
        try:
            family.assert_all_ran_once()
        except AssertionError as error:
            raise AssertionError(f"in the order {plan}: {error}") from error
        family.empty()
        tried += 1
    return tried


def last_parents(family: Family) -> Works:
    parents = [family.add(), family.add()]
    family.add(family.add(*parents))
    family.decide(family.stores[0])
    return [partial(family.end_and_work, task=family.begin(parent), rounds=3) for parent in parents]


def child_is_added(family: Family, length: int = 1) -> Works:
    parent = family.begin(family.chain(length))
    return [partial(family.end_and_work, task=parent), partial(family.add_and_work, parent=parent.id)]


def child_is_added_while_another_waits(family: Family) -> Works:
    return child_is_added(family, 2)


def fatal_parent_is_retried(family: Family) -> Works:
    """And a child is added, one given up with all its descendants."""
    parent = family.chain(3)
    task = family.begin(parent)

    def fail(store: Store) -> None:
        family.end(store, task, "no")
        family.decide(store)
        family.decide(store)
        Operations(store).retry(Selection(ids=[parent]))

    return [fail, partial(family.add_and_work, parent=parent, rounds=3)]


def fatal_parent_is_retried_by_another(family: Family) -> Works:
    parent = family.chain(3)
    family.fail(parent)
    return [partial(family.work, rounds=3), partial(family.retry_and_work, parent=parent)]


def first_child_of_a_fatal_parent(family: Family) -> Works:
    parent = family.add()
    family.fail(parent)

    def add(store: Store) -> None:
        family.add(parent, store=store)
        family.decide(store)

    return [add, partial(family.retry_and_work, parent=parent)]


def delayed_child_of_a_fatal_parent(family: Family) -> Works:
    parent = family.chain(2)
    family.add(parent, delay=3600.0)
    family.fail(parent)
    return [partial(family.work, rounds=3), partial(family.retry_and_work, parent=parent)]


def done_parent_runs_again(family: Family) -> Works:
    """A producer changes it just then, and adds another child."""
    parent = family.chain(2, key="key")
    family.end(family.stores[0], family.begin(parent))

    def run_again(store: Store) -> None:
        again = family.add(store=store, key="key")
        family.may_run_again = {parent, again}
        family.add_and_work(store, again, 3)

    return [partial(family.work, rounds=3), run_again]


def lost_parent_is_completed_late(family: Family) -> Works:
    """It has one attempt, so that it is fatal meanwhile."""
    task = family.begin(family.chain(3), max_attempts=1)
    family.rows.set("due_at = '2020-01-01 00:00:00' WHERE status = 1")

    def reclaim(store: Store) -> None:
        for lost in store.due.look().lost:
            store.due.reclaim_lost(lost, 1, "lost: its worker died", None)
        family.work(store, 3)

    return [reclaim, partial(family.end_and_work, task=task)]


def orphans_are_looked_for(family: Family) -> Works:
    task = family.begin(family.chain(2))

    def look(store: Store) -> None:
        Dependencies(store.database).find_orphans()
        family.work(store, 2)

    return [partial(family.end_and_work, task=task), look]


def parent_is_fatal_twice(family: Family) -> Works:
    """A person retries it in between, and another child is added."""
    parent = family.chain(2)
    family.fail(parent)
    family.to_retry = [parent]

    def retry_and_fail(store: Store) -> None:
        Operations(store).retry(Selection(ids=[parent]))
        family.add(parent, store=store)
        family.decide(store)
        for task in store.claims.claim(100, ()).tasks:
            family.end(store, family.start(store, task), "no")
        family.decide(store)

    return [family.decide, retry_and_fail]


OF_FEW_STEPS = [
    first_child_of_a_fatal_parent,
    done_parent_runs_again,
    lost_parent_is_completed_late,
    orphans_are_looked_for,
    last_parents,
    child_is_added,
    child_is_added_while_another_waits,
]
OF_MANY_STEPS = [
    parent_is_fatal_twice,
    delayed_child_of_a_fatal_parent,
    fatal_parent_is_retried,
    fatal_parent_is_retried_by_another,
]
"""On servers they are tried among the long tests."""
PLACES_AND_SCENES = [
    pytest.param(
        *(place, scene),
        marks=[pytest.mark.long] * (place == "statements" or (place != "sqlite" and scene in OF_MANY_STEPS)),
    )
    for place in ("sqlite", *SERVERS, "statements")
    for scene in (*OF_FEW_STEPS, *OF_MANY_STEPS)
]


@pytest.mark.parametrize(("any_dsn", "scene"), PLACES_AND_SCENES, indirect=["any_dsn"])
def test_each_task_runs_once_after_its_parents_wherever_one_worker_stood_still(family: Family, scene: Scene) -> None:
    """For each instant of one of two workers: the other one does all its work just then."""
    assert try_each(family, scene, interrupted_once) > 10


@pytest.mark.long
@pytest.mark.parametrize("scene", [*OF_FEW_STEPS, *OF_MANY_STEPS[1:]])  # in the first, one worker has one step
def test_each_task_runs_once_after_its_parents_wherever_both_workers_stood_still(family: Family, scene: Scene) -> None:
    """At some pairs of instants: one goes on to its end while the other stands still in the middle."""

    def some(steps: Sequence[int]) -> Iterator[Plan]:
        plans = list(interrupted_twice(steps))
        yield from random.Random(6).sample(plans, min(len(plans), 150))

    assert try_each(family, scene, some) > 15


@pytest.mark.long
@pytest.mark.parametrize("times", [4, pytest.param(100, marks=pytest.mark.long)])
def test_a_web_of_tasks_is_done_once_each_by_workers_that_take_turns_at_random(family: Family, times: int) -> None:
    chance = random.Random(times)

    def web(family: Family) -> Works:
        ids = [family.add() for _ in range(3)]
        for _ in range(9):
            ids.append(family.add(*chance.sample(ids, min(len(ids), chance.choice((1, 2, 4))))))
        return [partial(family.work, rounds=12)] * 3

    assert try_each(family, web, lambda steps: by_chance(3, times, seed=times)) == times


# ---- within the transactions: threads that end parents, and threads that add children of just these

FINISHERS, ADDERS = 4, 3


class Race:
    """Running parents, and what becomes of them and their children."""

    def __init__(self, server: TaskServer, rows: Rows, parents: int) -> None:
        self.server, self.store, self.rows = server, without_sync(server.store), rows
        server.add_tasks([{"task": "tasks.note"}] * parents)
        rows.set(f"status = 1, claim = 7, attempts = 1, started_at = created_at, due_at = {rows.after(3600)}")
        self.to_end = [row["id"] for row in rows.all()]
        random.Random(7).shuffle(self.to_end)
        self.parents, self.added, self.waited = parents, 0, 0

    def end_parents(self) -> None:
        while self.to_end:
            if self.added < self.parents - len(self.to_end):
                time.sleep(0.0001)  # so that children are added all the time
                continue
            task = ClaimedTask(self.to_end.pop(), "tasks.note", None, None, 0, None, 7)
            finish = Finish(task, "no" if task.id % 10 == 0 else None)
            assert self.store.finishes.advance([finish], None)[0] == [Outcome.AS_ASKED]

    def add_children(self) -> None:
        until = time.monotonic() + WAIT_SECONDS
        while (ahead := self.to_end[-12:]) and time.monotonic() < until:
            parents = random.sample(ahead, min(len(ahead), random.randint(1, 4)))
            child = self.server.get(self.server.add_task("tasks.note", depends_on=parents))
            self.added += 1
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
def race(any_dsn: str) -> Iterator[Race]:
    with TaskServer(any_dsn) as server, closing(Rows(any_dsn)) as rows:
        server.create_tables()
        yield Race(server, rows, 100 if rows.is_sqlite else 600)


@pytest.mark.parametrize("any_dsn", ["sqlite", *SERVERS], indirect=True)
def test_parents_that_end_and_children_that_are_added_at_the_same_time_leave_no_child_waiting(race: Race) -> None:
    children = race.run()
    assert set(children) == {Status.NEW, Status.FATAL}
    assert race.waited > 20  # children were there when their parents ended


@pytest.mark.parametrize("any_dsn", SERVERS, indirect=True)
def test_without_the_locks_that_race_leaves_children_waiting(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: so the test above can fail."""
    lock = dependencies._lock
    monkeypatch.setattr(dependencies, "_lock", lambda place, ids, end="": lock(place, ids, ""))
    assert race.run()[Status.WAITING] > 0


@contextmanager
def transaction(family: Family, statement: str) -> Iterator[Rows]:
    """Another worker is amid this; it is committed at the end, unless it was rolled back."""
    with closing(Rows(family.dsn)) as other:
        other.execute("BEGIN")
        other.execute(statement)
        yield other
        other.execute("COMMIT")


@pytest.mark.parametrize("any_dsn", SERVERS, indirect=True)
def test_a_parent_that_ends_while_it_is_marked_as_awaited_releases_the_child(
    family: Family, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(f"{family.dsn.partition(':')[0]}_server")
    parent = family.begin(family.add())
    family.add(parent.id)
    with ThreadPoolExecutor(1) as worker:
        with transaction(family, f"UPDATE jobs_queue SET awaited = 1 WHERE id = {parent.id}"):
            ending = worker.submit(family.stores[1].finishes.advance, [Finish(parent)], None)
            wait_until(server.count_lock_waits)
            assert not ending.done()
        assert ending.result(WAIT_SECONDS) == ([Outcome.AS_ASKED], False)
    family.record.append(("ended", parent.id))
    family.assert_all_ran_once()


@pytest.mark.long
@pytest.mark.parametrize("family", ["delete"], indirect=True)
@pytest.mark.parametrize("any_dsn", SERVERS, indirect=True)
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_child_of_a_parent_that_just_ends_is_decided_at_the_next_look(family: Family, end: str) -> None:
    task = family.begin(family.add())
    waiting = NewTask("tasks.note", None, 0, 0, delay_seconds=0.0, depends_on=str(task.id))
    [child] = family.stores[0].producing.add_many([waiting])  # of many tasks, none is decided as it is added
    family.parents[child] = {task.id}
    with transaction(family, f"DELETE FROM jobs_queue WHERE id = {task.id} AND awaited = 0") as other:
        assert family.decide(family.stores[1]) == 0
        row = family.rows.row(child)
        assert (row["status"], row["due_at"] is not None) == (5, True)
        other.execute(end)
    assert family.decide(family.stores[1]) == 1
    assert family.rows.row(child)["status"] == (0 if end == "COMMIT" else 5)
    if end == "ROLLBACK":
        family.end(family.stores[0], task)
    else:
        family.record.append(("ended", task.id))
    family.assert_all_ran_once()
