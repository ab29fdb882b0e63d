"""Parents that end, children that are added, and workers that settle them: in each order in which their steps can come.

Each test says what is done at the same time; tests/support/interleaving.py has it done in one order after the other,
for every store and mode. However it came, in the end each task has run as often as it was to, none before those that it
waits for, and nothing is left that says otherwise.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from taskserver import TaskServer
from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.new_task import NewTask
from taskserver.model.selection import Selection
from taskserver.model.task import ClaimedTask
from taskserver.stores import Store
from taskserver.stores.queue.dependencies import Dependencies
from taskserver.stores.queue.operations import Operations
from taskserver.stores.sqlite import session as sqlite
from tests.conftest import without
from tests.support.deployment import ROOT
from tests.support.interleaving import Plan, by_chance, in_order, interrupted_once, interrupted_twice, watch
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.rows import MODES, Rows
from tests.support.servers import MariaDB, MySQLServer, lock_waits, missing_programs
from tests.support.sessions import whenever_connected

TABLES = ("jobs_queue", "jobs_queue_done", "jobs_queue_dependencies")


@pytest.fixture(scope="module")
def kept_mysql_dsn(mysql_server: MySQLServer) -> Iterator[str]:
    with mysql_server.database() as name:
        yield mysql_server.dsn(name)


@pytest.fixture(scope="module")
def kept_statement_server() -> Iterator[str]:
    """A server that replicates by statements, and so takes no write in READ COMMITTED."""
    if missing := missing_programs():
        without(f"MariaDB is not installed ({', '.join(missing)} not found)")
    with MariaDB(False, "--log-bin", "--binlog-format=STATEMENT", "--server-id=1") as server, server.database() as name:
        yield server.dsn(name)


KEPT = {"sqlite": "sqlite_dsn", "mysql": "kept_mysql_dsn", "statements": "kept_statement_server"}


@pytest.fixture(params=["sqlite", "mysql", pytest.param("statements", marks=pytest.mark.long)])
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


class Site:
    """A queue, some workers with connections of their own, and what they did."""

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
        return Dependencies(store).settle(store.due.look().linked)

    def work(self, store: Store, rounds: int = 1000) -> None:
        """As a worker does until nothing is left, or so many rounds of it."""
        for _ in range(rounds):
            due = store.due.look()
            moved = store.due.wake(due.to_wake) + Dependencies(store).settle(due.linked)
            tasks = store.claims.claim(100, ()).tasks
            for task in tasks:
                self.end(store, self.start(store, task))
            if not moved and not tasks:
                return
        assert rounds < 1000, "it goes on for ever"

    # ---- verdict

    def assert_all_ran_once(self) -> None:
        self.work(self.stores[0])
        if self.to_retry:
            assert self.rows.execute("SELECT id FROM jobs_queue WHERE status <> 4") == []
            Operations(self.stores[0]).retry(Selection(ids=self.to_retry))
            self.work(self.stores[0])
        self.rows.execute(
            f"UPDATE jobs_queue SET due_at = {self.rows.after(0)} WHERE status = 5 AND due_at IS NOT NULL"
        )
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
def site(request: pytest.FixtureRequest, kept_dsn: str) -> Iterator[Site]:
    made = Site(kept_dsn, request.param)
    made.empty()
    yield made
    made.close()


@pytest.fixture
def mysql_site(kept_mysql_dsn: str) -> Iterator[Site]:
    made = Site(kept_mysql_dsn, "delete")
    made.empty()
    yield made
    made.close()


Works = Sequence[Callable[[], object]]
MOST_PLANS = 150


Scene = Callable[[Site], Works]


def try_each(site: Site, scene: Callable[[], Works], orders: Callable[[Sequence[int]], Iterator[Plan]]) -> int:
    """A scene gives the works that are done at the same time. How many orders were tried."""
    steps = in_order([], *scene())
    site.empty()
    tried = 0
    for plan in orders(steps):
        works = scene()
        in_order(plan, *works)
        try:
            site.assert_all_ran_once()
        except AssertionError as error:
            raise AssertionError(f"in the order {plan}: {error}") from error
        site.empty()
        tried += 1
    return tried


def last_parents(site: Site) -> Works:
    first, second = site.add(), site.add()
    child = site.add(first, second)
    site.add(child)
    site.settle(site.stores[0])
    ends = [site.begin(first), site.begin(second)]

    def end(store: Store, task: ClaimedTask) -> None:
        site.end(store, task)
        site.work(store, 3)

    return [partial(end, store, task) for store, task in zip(site.stores[:2], ends, strict=True)]


def child_is_added(site: Site) -> Works:
    parent = site.begin(site.add())

    def end(store: Store) -> None:
        site.end(store, parent)
        site.work(store, 2)

    def add(store: Store) -> None:
        site.add(parent.id, store=store)
        site.work(store, 2)

    return [partial(end, site.stores[0]), partial(add, site.stores[1])]


def child_is_added_while_another_waits(site: Site) -> Works:
    parent = site.add()
    site.add(parent)
    site.settle(site.stores[0])
    task = site.begin(parent)

    def end(store: Store) -> None:
        site.end(store, task)
        site.work(store, 2)

    def add(store: Store) -> None:
        site.add(parent, store=store)
        site.work(store, 2)

    return [partial(end, site.stores[0]), partial(add, site.stores[1])]


def fatal_parent_is_retried(site: Site) -> Works:
    """And a child is added, one given up with all that waits for it."""
    parent = site.add()
    child = site.add(parent)
    site.add(child)
    site.settle(site.stores[0])
    site.settle(site.stores[0])
    task = site.begin(parent)

    def fail(store: Store) -> None:
        site.end(store, task, "no")
        site.settle(store)
        site.settle(store)
        Operations(store).retry(Selection(ids=[parent]))

    def add(store: Store) -> None:
        site.add(parent, store=store)
        site.work(store, 3)

    return [partial(fail, site.stores[0]), partial(add, site.stores[1])]


def fatal_parent_is_retried_by_another(site: Site) -> Works:
    parent = site.add()
    child = site.add(parent)
    site.add(child)
    site.settle(site.stores[0])
    site.settle(site.stores[0])
    site.end(site.stores[0], site.begin(parent), "no")

    def retry(store: Store) -> None:
        Operations(store).retry(Selection(ids=[parent]))
        site.work(store, 3)

    return [partial(site.work, site.stores[0], 3), partial(retry, site.stores[1])]


def first_child_of_a_fatal_parent(site: Site) -> Works:
    parent = site.add()
    site.end(site.stores[0], site.begin(parent), "no")

    def retry(store: Store) -> None:
        Operations(store).retry(Selection(ids=[parent]))
        site.work(store, 3)

    def add(store: Store) -> None:
        site.add(parent, store=store)
        site.settle(store)

    return [partial(add, site.stores[0]), partial(retry, site.stores[1])]


def delayed_child_of_a_fatal_parent(site: Site) -> Works:
    parent = site.add()
    site.add(parent)
    site.settle(site.stores[0])
    site.add(parent, delay=3600.0)
    site.end(site.stores[0], site.begin(parent), "no")

    def retry(store: Store) -> None:
        Operations(store).retry(Selection(ids=[parent]))
        site.work(store, 3)

    return [partial(site.work, site.stores[0], 3), partial(retry, site.stores[1])]


def done_parent_runs_again(site: Site) -> Works:
    """A producer changes it just then, and adds another task that waits for it."""
    parent = site.add(key="key")
    site.add(parent)
    site.settle(site.stores[0])
    site.end(site.stores[0], site.begin(parent))

    def run_again(store: Store) -> None:
        again = site.add(store=store, key="key")
        site.may_run_again = {parent, again}
        site.add(again, store=store)
        site.work(store, 3)

    return [partial(site.settle, site.stores[0]), partial(run_again, site.stores[1])]


def lost_parent_is_completed_late(site: Site) -> Works:
    """It may start once only, so that it was fatal meanwhile."""
    parent = site.add()
    child = site.add(parent)
    site.add(child)
    site.settle(site.stores[0])
    site.settle(site.stores[0])
    task = site.begin(parent, max_attempts=1)
    site.rows.execute("UPDATE jobs_queue SET due_at = '2020-01-01 00:00:00' WHERE status = 1")

    def take_back(store: Store) -> None:
        for lost in store.due.look().lost:
            store.due.reclaim_lost(lost, 1, "lost: its worker vanished", None)
        site.work(store, 3)

    def end(store: Store) -> None:
        site.end(store, task)
        site.work(store, 2)

    return [partial(take_back, site.stores[0]), partial(end, site.stores[1])]


def orphans_are_looked_for(site: Site) -> Works:
    parent = site.add()
    site.add(parent)
    site.settle(site.stores[0])
    task = site.begin(parent)

    def end(store: Store) -> None:
        site.end(store, task)
        site.work(store, 2)

    def look(store: Store) -> None:
        Dependencies(store).sign_orphans()
        site.work(store, 2)

    return [partial(end, site.stores[0]), partial(look, site.stores[1])]


def parent_is_fatal_twice(site: Site) -> Works:
    """A person retries it in between, and another task is added that waits for it."""
    parent = site.add()
    site.add(parent)
    site.settle(site.stores[0])
    site.end(site.stores[0], site.begin(parent), "no")
    site.to_retry = [parent]

    def retry_and_fail(store: Store) -> None:
        Operations(store).retry(Selection(ids=[parent]))
        site.add(parent, store=store)
        site.settle(store)
        for task in store.claims.claim(100, ()).tasks:
            site.end(store, site.start(store, task), "no")
        site.settle(store)

    return [partial(site.settle, site.stores[0]), partial(retry_and_fail, site.stores[1])]


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


@pytest.mark.parametrize("scene", SCENES)
def test_each_task_runs_once_and_after_those_that_it_waits_for_wherever_one_worker_stood_still(
    site: Site, scene: Scene
) -> None:
    """For each instant of one of two workers: the other one does all that it has to do just then."""
    assert try_each(site, partial(scene, site), interrupted_once) > 15


@pytest.mark.long
@pytest.mark.parametrize("scene", SCENES)
def test_each_task_runs_once_and_after_those_that_it_waits_for_wherever_both_workers_stood_still(
    site: Site, scene: Scene
) -> None:
    """Of all pairs of instants some at random: one goes on to its end while the other stands still in the middle."""

    def some(steps: Sequence[int]) -> Iterator[Plan]:
        plans = list(interrupted_twice(steps))
        yield from random.Random(6).sample(plans, min(len(plans), MOST_PLANS))

    assert try_each(site, partial(scene, site), some) > 30


@pytest.mark.parametrize("times", [4, pytest.param(100, marks=pytest.mark.long)])
def test_a_web_of_tasks_is_done_once_each_by_workers_that_take_turns_at_random(site: Site, times: int) -> None:
    chance = random.Random(times)

    def web() -> Works:
        ids = [site.add() for _ in range(3)]
        for _ in range(9):
            ids.append(site.add(*chance.sample(ids, min(len(ids), chance.choice((1, 2, 4))))))
        return [partial(site.work, store, 12) for store in site.stores[:3]]

    assert try_each(site, web, lambda steps: by_chance(3, times, seed=times)) == times


# ---- in the midst of it


def test_two_workers_that_let_go_of_the_same_task_at_the_same_moment_lose_it_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has the last parent but the other's: the one that comes later finds the row held, and leaves its own."""
    monkeypatch.setattr(sqlite, "LOCK_WAIT_SECONDS", 0.05)
    parents = [site.add(), site.add()]
    child = site.add(*parents)
    site.settle(site.stores[0])
    for parent in parents:
        site.end(site.stores[0], site.begin(parent))
    is_in_it, may_go_on = threading.Event(), threading.Event()

    class Slow(Dependencies):
        def _let_go_locked(self, edges: Any, children: Sequence[int]) -> None:
            super()._let_go_locked(edges, children)
            is_in_it.set()
            assert may_go_on.wait(WAIT_SECONDS)

    first = threading.Thread(target=Slow(site.stores[1]).settle, args=(parents[:1],))
    first.start()
    try:
        assert is_in_it.wait(WAIT_SECONDS)
        assert Dependencies(site.stores[2]).settle(parents[1:]) == 0
        assert site.rows.row(parents[1])["due_at"] is not None  # it is to be looked at again
    finally:
        may_go_on.set()
        first.join()
    assert site.rows.row(child)["status"] == 5
    assert Dependencies(site.stores[2]).settle(parents[1:])
    assert site.rows.row(child)["status"] == 0
    site.assert_all_ran_once()


def test_one_that_has_run_again_since_its_end_was_looked_at_is_told_of_once_more(site: Site) -> None:
    parent = site.add(key="key")
    site.add(parent)
    site.settle(site.stores[0])
    site.end(site.stores[0], site.begin(parent))
    site.may_run_again = {parent}

    class Slow(Dependencies):
        def _end(self, parents: Sequence[int]) -> int:
            site.add(store=site.stores[1], key="key")
            site.add(parent, store=site.stores[1])
            site.settle(site.stores[1])
            site.end(site.stores[0], site.begin(parent))
            return super()._end(parents)

    Slow(site.stores[2]).settle([parent])
    assert site.rows.row(parent)["due_at"] is not None
    site.assert_all_ran_once()


def test_one_that_is_fatal_again_since_its_end_was_looked_at_is_told_of_once_more(site: Site) -> None:
    parent = site.add()
    site.add(parent)
    site.settle(site.stores[0])
    site.end(site.stores[0], site.begin(parent), "no")
    site.to_retry = [parent]

    class Slow(Dependencies):
        def _give_up(self, *args: Any) -> set[int]:
            held = super()._give_up(*args)
            Operations(site.stores[1]).retry(Selection(ids=[parent]))
            site.add(parent, store=site.stores[1])
            site.settle(site.stores[1])
            site.end(site.stores[0], site.begin(parent), "no")
            return held

    Slow(site.stores[2]).settle([parent])
    assert site.rows.row(parent)["due_at"] is not None
    site.assert_all_ran_once()


def test_one_that_is_cancelled_while_it_is_looked_at_stays_so(site: Site) -> None:
    child = site.add(site.add())

    class Slow(Dependencies):
        def _look_at(self, children: Sequence[int]) -> Any:
            looked = super()._look_at(children)
            Operations(site.stores[1]).cancel(Selection(ids=[child]))
            return looked

    Slow(site.stores[2]).settle([child])
    row = site.rows.row(child)
    assert (row["status"], row["error_text"]) == (4, "cancelled")


@contextmanager
def transaction(site: Site, statement: str) -> Iterator[Rows]:
    """Another worker is in the midst of this; it is committed at the end, unless it was rolled back."""
    other = Rows(site.dsn)
    try:
        other.execute("BEGIN")
        other.execute(statement)
        yield other
        other.execute("COMMIT")
    finally:
        other.close()


def test_a_parent_that_ends_while_it_is_marked_as_awaited_is_told_of(
    mysql_site: Site, mysql_server: MySQLServer
) -> None:
    site = mysql_site
    parent = site.begin(site.add())
    site.add(parent.id)
    with ThreadPoolExecutor(1) as worker:
        with transaction(site, f"UPDATE jobs_queue SET awaited = 1 WHERE id = {parent.id}"):
            ending = worker.submit(site.stores[1].finishes.advance, [Finish(parent)], None)
            wait_until(lambda: lock_waits(mysql_server.execute))
            assert not ending.done()
        assert ending.result(WAIT_SECONDS) == ([Outcome.AWAITED], False)
    site.record.append(Line("ended", parent.id))
    site.assert_all_ran_once()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_whether_to_wait_for_one_that_is_just_ending_is_found_out_at_the_next_look(mysql_site: Site, end: str) -> None:
    site = mysql_site
    task = site.begin(site.add())
    child = site.add(task.id)
    with transaction(site, f"DELETE FROM jobs_queue WHERE id = {task.id} AND awaited = 0") as other:
        assert site.settle(site.stores[1]) == 0
        row = site.rows.row(child)
        assert (row["status"], row["due_at"] is not None) == (5, True)
        other.execute(end)
    assert site.settle(site.stores[1]) == 1
    assert site.rows.row(child)["status"] == (0 if end == "COMMIT" else 5)
    if end == "ROLLBACK":
        site.end(site.stores[0], task)
    else:
        site.record.append(Line("ended", task.id))
    site.assert_all_ran_once()


# ---- a worker is killed in the midst of it

KILLED = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
from taskserver import TaskServer
from taskserver.stores.queue.dependencies import Dependencies

folder, dsn, mode = sys.argv[2:]
settle = Dependencies.settle

def open_server():
    return TaskServer(dsn, mode=mode, modules="killed_tasks", folder=folder)

def die_before(number):
    \"\"\"Run as a worker, and be killed before this statement of those by which others are told.\"\"\"
    server, left, is_settling = open_server(), number, False

    def counted(send):
        def count_and_send(*args):
            nonlocal left
            left -= is_settling
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return send(*args)
        return count_and_send

    def settle_and_count(self, ids):
        nonlocal is_settling
        is_settling = True
        try:
            return settle(self, ids)
        finally:
            is_settling = False

    store = server.store
    session = store.database.session()
    session.send, session.send_joined = counted(session.send), counted(session.send_joined)
    Dependencies.settle = settle_and_count
    server.run()
    os._exit(0)

def add(server, name, *parents):
    return server.add_task("killed_tasks.note", [name], depends_on=parents)

def scene():
    with open_server() as server:
        for table in ("jobs_queue", "jobs_queue_done", "jobs_queue_dependencies"):
            server.store.database.change(f"DELETE FROM {table}")
        first, second = add(server, "first"), add(server, "second")
        child = add(server, "child", first, second)
        add(server, "grandchild", child)
        fatal = add(server, "fatal")
        add(server, "never", add(server, "never", fatal))

def state():
    with open_server() as server:
        look = server.store.database.fetch
        server.store.database.change("UPDATE {table} SET due_at = '2020-01-01 00:00:00' WHERE status = 1")
        server.run()
        rows = look("SELECT status, due_at, error_text FROM {table} WHERE status <> 2 ORDER BY id")
        edges = look("SELECT COUNT(*) FROM {dependencies}")[0][0]
    with open(os.path.join(folder, "noted"), "r+") as noted:
        names = sorted(noted.read().split())
        noted.truncate(0)
    return [[[status, due_at, text.partition(chr(10))[0]] for status, due_at, text in rows], edges, names]

number, states = 0, []
while True:
    number += 1
    scene()
    child = os.fork()
    if child == 0:
        die_before(number)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    states.append(state())
    if not killed:
        break
print(json.dumps(states))
"""
KILLED_TASKS = """
import os, pathlib
from taskserver import Fatal

def note(name):
    file = os.open(pathlib.Path(__file__).parent / "noted", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{name}\\n".encode())
    os.close(file)
    if name == "fatal":
        raise Fatal("no")
"""


@pytest.mark.parametrize("mode", ["delete", *(pytest.param(mode, marks=pytest.mark.long) for mode in MODES[1:])])
def test_what_a_killed_worker_began_another_one_ends_wherever_it_was(kept_dsn: str, tmp_path: Path, mode: str) -> None:
    with TaskServer(kept_dsn) as server:
        server.create_tables()
    (tmp_path / "killed.py").write_text(KILLED)
    (tmp_path / "killed_tasks.py").write_text(KILLED_TASKS)
    (tmp_path / "noted").touch()
    ended = subprocess.run(
        [sys.executable, tmp_path / "killed.py", ROOT, tmp_path, kept_dsn, mode],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    states = json.loads(ended.stdout)
    assert len(states) > 40  # so often it was killed
    fatal = [[4, None, "Fatal: no"]] + [[4, None, "dependency: task {}, for which it waits, is fatal"]] * 2
    for number, (rows, edges, names) in enumerate(states, start=1):
        told = [[status, due_at, re.sub(r"task \d+", "task {}", text)] for status, due_at, text in rows]
        assert (told, edges, names) == (fatal, 2, ["child", "fatal", "first", "grandchild", "second"]), number
