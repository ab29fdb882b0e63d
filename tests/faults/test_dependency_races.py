"""Parents that end, children that are added, and workers that settle them: in each order in which their steps can come.

Each test says what is done at the same time; tests/support/interleaving.py has it done in one order after the other,
for every store and mode. However it came, in the end each task has run as often as it was to, none before those that it
waits for, and nothing is left that says otherwise.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple

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
from tests.support.postgresql import PostgreSQLServer
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.rows import MODES, Rows
from tests.support.servers import MariaDB, MySQLServer, missing_programs
from tests.support.sessions import whenever_connected

TABLES = ("jobs_queue", "jobs_queue_done", "jobs_queue_dependencies")


@pytest.fixture(scope="module")
def kept_mysql_dsn(mysql_server: MySQLServer) -> Iterator[str]:
    with mysql_server.database() as name:
        yield mysql_server.dsn(name)


@pytest.fixture(scope="module")
def kept_postgresql_dsn(postgresql_server: PostgreSQLServer) -> Iterator[str]:
    with postgresql_server.database() as name:
        yield postgresql_server.dsn(name)


@pytest.fixture(scope="module")
def kept_statement_server() -> Iterator[str]:
    """A server that replicates by statements, and so takes no write in READ COMMITTED."""
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB(False, "--log-bin", "--binlog-format=STATEMENT", "--server-id=1") as server, server.database() as name:
        yield server.dsn(name)


KEPT = {
    "sqlite": "sqlite_dsn",
    "mysql": "kept_mysql_dsn",
    "postgresql": "kept_postgresql_dsn",
    "statements": "kept_statement_server",
}
SERVERS = ("mysql", "postgresql")


@pytest.fixture(params=["sqlite", *SERVERS, pytest.param("statements", marks=pytest.mark.long)])
def kept_dsn(request: pytest.FixtureRequest) -> str:
    """A database for many tries: each begins with empty tables."""
    return str(request.getfixturevalue(KEPT[request.param]))


def hasty(store: Store) -> Store:
    """What these tests ask for is no promise about a power cut."""
    if store.has_one_writer:
        whenever_connected(store, lambda connection: connection.execute("PRAGMA synchronous = OFF"))
    return store


class Line(NamedTuple):
    """A line of the record of what happened: a task began, or ended well."""

    what: str
    id: int


class Family:
    """Tasks that wait for others in a queue, some workers with connections of their own, and what they did."""

    def __init__(self, dsn: str, mode: str) -> None:
        self.dsn = dsn
        self.mode = mode
        self.servers = [TaskServer(dsn, mode=mode) for _ in range(4)]
        self.servers[0].create_tables()
        self.stores = [watch(hasty(server.store)) for server in self.servers]
        self.rows = Rows(dsn)
        self.record: list[Line] = []
        self.parents: dict[int, set[int]] = {}
        self.may_run_again: set[int] = set()
        self.to_retry: list[int] = []

    def close(self) -> None:
        self.rows.close()
        for server in self.servers:
            server.close()

    def empty(self) -> None:
        for table in TABLES:
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
        """A worker of its own starts it."""
        task = Operations(self.stores[0]).claim_one(task_id)
        return self.start(self.stores[0], task, max_attempts)

    def start(self, store: Store, task: ClaimedTask, max_attempts: int = 10) -> ClaimedTask:
        store.finishes.advance([], Start(task, max_attempts))
        self.record.append(Line("began", task.id))
        return task

    def end(self, store: Store, task: ClaimedTask, error_text: str | None = None) -> None:
        """It ends well, or fatal."""
        [outcome], _ = store.finishes.advance([Finish(task, error_text)], None)
        if error_text is None and outcome:
            self.record.append(Line("ended", task.id))

    def settle(self, store: Store) -> int:
        return Dependencies(store.database).settle(store.due.look().linked)

    def work(self, store: Store, rounds: int = 1000) -> None:
        """As a worker does until nothing is left, or so many rounds of it."""
        for _ in range(rounds):
            due = store.due.look()
            moved = store.due.wake(due.to_wake) + Dependencies(store.database).settle(due.linked)
            tasks = store.claims.claim(100, ()).tasks
            for task in tasks:
                self.end(store, self.start(store, task))
            if not moved and not tasks:
                return
        assert rounds < 1000, "it goes on for ever"

    def end_and_work(self, store: Store, task: ClaimedTask, rounds: int = 2) -> None:
        self.end(store, task)
        self.work(store, rounds)

    def add_and_work(self, store: Store, parent: int, rounds: int = 2) -> None:
        self.add(parent, store=store)
        self.work(store, rounds)

    def retry_and_work(self, store: Store, parent: int) -> None:
        Operations(store).retry(Selection(ids=[parent]))
        self.work(store, 3)

    def fail(self, parent: int) -> None:
        self.end(self.stores[0], self.begin(parent), "no")

    def chain(self, length: int, key: str | None = None) -> int:
        """So many tasks, each of which waits for the one before it and was looked at; the first one."""
        first = last = self.add(key=key)
        for _ in range(length - 1):
            last = self.add(last)
        while self.settle(self.stores[0]):
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
        assert left == (
            [{"id": one, "status": 2, "due_at": None, "awaited": 0} for one in sorted(self.parents)]
            if self.mode == "mark"
            else []
        )
        archived = [row["id"] for row in self.rows.all("jobs_queue_done", "id")]
        assert archived == (sorted(self.parents) if self.mode == "move" else [])
        times = Counter(line.id for line in self.record if line.what == "ended")
        assert set(times) == set(self.parents)
        assert {one: n for one, n in times.items() if n > 1 and one not in self.may_run_again} == {}
        self.assert_none_began_too_soon()

    def assert_none_began_too_soon(self) -> None:
        ended: set[int] = set()
        for what, task_id in self.record:
            if what == "ended":
                ended.add(task_id)
            else:
                assert self.parents[task_id] <= ended, self.record


@pytest.fixture(params=["delete", *(pytest.param(mode, marks=pytest.mark.long) for mode in MODES[1:])])
def family(request: pytest.FixtureRequest, kept_dsn: str) -> Iterator[Family]:
    with closing(Family(kept_dsn, request.param)) as made:
        made.empty()
        yield made


@pytest.fixture(params=SERVERS)
def family_on_server(request: pytest.FixtureRequest) -> Iterator[Family]:
    with closing(Family(request.getfixturevalue(KEPT[request.param]), "delete")) as made:
        made.empty()
        yield made


Works = Sequence[Callable[[Store], object]]
"""What workers do at the same time, each with a store of its own."""
Scene = Callable[[Family], Works]
MOST_PLANS = 150


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
    family.settle(family.stores[0])
    return [partial(family.end_and_work, task=family.begin(parent), rounds=3) for parent in parents]


def child_is_added(family: Family) -> Works:
    parent = family.begin(family.add())
    return [partial(family.end_and_work, task=parent), partial(family.add_and_work, parent=parent.id)]


def child_is_added_while_another_waits(family: Family) -> Works:
    parent = family.begin(family.chain(2))
    return [partial(family.end_and_work, task=parent), partial(family.add_and_work, parent=parent.id)]


def fatal_parent_is_retried(family: Family) -> Works:
    """And a child is added, one given up with all that waits for it."""
    parent = family.chain(3)
    task = family.begin(parent)

    def fail(store: Store) -> None:
        family.end(store, task, "no")
        family.settle(store)
        family.settle(store)
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
        family.settle(store)

    return [add, partial(family.retry_and_work, parent=parent)]


def delayed_child_of_a_fatal_parent(family: Family) -> Works:
    parent = family.chain(2)
    family.add(parent, delay=3600.0)
    family.fail(parent)
    return [partial(family.work, rounds=3), partial(family.retry_and_work, parent=parent)]


def done_parent_runs_again(family: Family) -> Works:
    """A producer changes it just then, and adds another task that waits for it."""
    parent = family.chain(2, key="key")
    family.end(family.stores[0], family.begin(parent))

    def run_again(store: Store) -> None:
        again = family.add(store=store, key="key")
        family.may_run_again = {parent, again}
        family.add_and_work(store, again, 3)

    return [family.settle, run_again]


def lost_parent_is_completed_late(family: Family) -> Works:
    """It may start once only, so that it was fatal meanwhile."""
    task = family.begin(family.chain(3), max_attempts=1)
    family.rows.set("due_at = '2020-01-01 00:00:00' WHERE status = 1")

    def take_back(store: Store) -> None:
        for lost in store.due.look().lost:
            store.due.reclaim_lost(lost, 1, "lost: its worker vanished", None)
        family.work(store, 3)

    return [take_back, partial(family.end_and_work, task=task)]


def orphans_are_looked_for(family: Family) -> Works:
    task = family.begin(family.chain(2))

    def look(store: Store) -> None:
        Dependencies(store.database).sign_orphans()
        family.work(store, 2)

    return [partial(family.end_and_work, task=task), look]


def parent_is_fatal_twice(family: Family) -> Works:
    """A person retries it in between, and another task is added that waits for it."""
    parent = family.chain(2)
    family.fail(parent)
    family.to_retry = [parent]

    def retry_and_fail(store: Store) -> None:
        Operations(store).retry(Selection(ids=[parent]))
        family.add(parent, store=store)
        family.settle(store)
        for task in store.claims.claim(100, ()).tasks:
            family.end(store, family.start(store, task), "no")
        family.settle(store)

    return [family.settle, retry_and_fail]


SCENES = [
    parent_is_fatal_twice,
    first_child_of_a_fatal_parent,
    delayed_child_of_a_fatal_parent,
    done_parent_runs_again,
    lost_parent_is_completed_late,
    orphans_are_looked_for,
    last_parents,
    child_is_added,
    child_is_added_while_another_waits,
    fatal_parent_is_retried,
    fatal_parent_is_retried_by_another,
]


OF_MANY_STEPS = (
    parent_is_fatal_twice,
    delayed_child_of_a_fatal_parent,
    fatal_parent_is_retried,
    fatal_parent_is_retried_by_another,
)
"""On servers they are tried among the long tests."""
PLACES_AND_SCENES = [
    pytest.param(
        name,
        scene,
        marks=[pytest.mark.long] * (name == "statements" or (name in SERVERS and scene in OF_MANY_STEPS)),
    )
    for name in KEPT
    for scene in SCENES
]


@pytest.mark.parametrize(("kept_dsn", "scene"), PLACES_AND_SCENES, indirect=["kept_dsn"])
def test_each_task_runs_once_after_its_parents_wherever_one_worker_stood_still(family: Family, scene: Scene) -> None:
    """For each instant of one of two workers: the other one does all that it has to do just then."""
    assert try_each(family, scene, interrupted_once) > 10


@pytest.mark.long
@pytest.mark.parametrize("scene", SCENES)
def test_each_task_runs_once_after_its_parents_wherever_both_workers_stood_still(family: Family, scene: Scene) -> None:
    """Of all pairs of instants some at random: one goes on to its end while the other stands still in the middle."""

    def some(steps: Sequence[int]) -> Iterator[Plan]:
        plans = list(interrupted_twice(steps))
        yield from random.Random(6).sample(plans, min(len(plans), MOST_PLANS))

    assert try_each(family, scene, some) > 15


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
    """Parents that run, and what becomes of them and their children."""

    def __init__(self, server: TaskServer, rows: Rows, parents: int) -> None:
        self.server = server
        self.store = hasty(server.store)
        self.rows = rows
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
        with ThreadPoolExecutor(7) as pool:
            works = [pool.submit(work) for work in [self.end_parents] * 4 + [self.add_children] * 3]
            for work in works:
                work.result(WAIT_SECONDS)
        while Dependencies(self.store.database).settle(self.store.due.look().linked):
            pass
        return Counter(row["status"] for row in self.rows.all() if row["error_text"] != "no")


@pytest.fixture(params=["sqlite", *SERVERS])
def race(request: pytest.FixtureRequest) -> Iterator[Race]:
    dsn = request.getfixturevalue(KEPT[request.param])
    with TaskServer(dsn) as server, closing(Rows(dsn)) as rows:
        server.create_tables()
        for table in TABLES:
            rows.execute(f"DELETE FROM {table}")
        yield Race(server, rows, 100 if request.param == "sqlite" else 600)


def test_parents_that_end_and_children_that_are_added_at_the_same_time_leave_no_child_waiting(race: Race) -> None:
    children = race.run()
    assert set(children) == {Status.NEW, Status.FATAL}
    assert race.waited > 20  # children were there when their parents ended


@pytest.mark.parametrize("race", SERVERS, indirect=True)
def test_without_the_locks_that_race_leaves_children_waiting(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: so the test above can fail."""
    lock = dependencies._lock
    monkeypatch.setattr(dependencies, "_lock", lambda place, ids, end="": lock(place, ids, ""))
    assert race.run()[Status.WAITING] > 0


@contextmanager
def transaction(family: Family, statement: str) -> Iterator[Rows]:
    """Another worker is in the midst of this; it is committed at the end, unless it was rolled back."""
    other = Rows(family.dsn)
    try:
        other.execute("BEGIN")
        other.execute(statement)
        yield other
        other.execute("COMMIT")
    finally:
        other.close()


def test_a_parent_that_ends_while_it_is_marked_as_awaited_is_told_of(
    family_on_server: Family, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue(f"{family_on_server.dsn.partition(':')[0]}_server")
    parent = family_on_server.begin(family_on_server.add())
    family_on_server.add(parent.id)
    with ThreadPoolExecutor(1) as worker:
        with transaction(family_on_server, f"UPDATE jobs_queue SET awaited = 1 WHERE id = {parent.id}"):
            ending = worker.submit(family_on_server.stores[1].finishes.advance, [Finish(parent)], None)
            wait_until(server.count_lock_waits)
            assert not ending.done()
        assert ending.result(WAIT_SECONDS) == ([Outcome.AS_ASKED], False)
    family_on_server.record.append(Line("ended", parent.id))
    family_on_server.assert_all_ran_once()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_whether_to_wait_for_one_that_is_just_ending_is_found_out_at_the_next_look(
    family_on_server: Family, end: str
) -> None:
    task = family_on_server.begin(family_on_server.add())
    child = family_on_server.add(task.id)
    with transaction(family_on_server, f"DELETE FROM jobs_queue WHERE id = {task.id} AND awaited = 0") as other:
        assert family_on_server.settle(family_on_server.stores[1]) == 0
        row = family_on_server.rows.row(child)
        assert (row["status"], row["due_at"] is not None) == (5, True)
        other.execute(end)
    assert family_on_server.settle(family_on_server.stores[1]) == 1
    assert family_on_server.rows.row(child)["status"] == (0 if end == "COMMIT" else 5)
    if end == "ROLLBACK":
        family_on_server.end(family_on_server.stores[0], task)
    else:
        family_on_server.record.append(Line("ended", task.id))
    family_on_server.assert_all_ran_once()
