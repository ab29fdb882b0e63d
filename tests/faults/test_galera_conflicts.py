"""Conflicts of transactions on two nodes of Galera, which know nothing of each other's locks.

Nodes compare what they wrote: the later one is rolled back. Each test shows that there was such a conflict.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.task import ClaimedTask, Status
from taskserver.stores.queue.dependencies import Dependencies
from taskserver.stores.queue.operations import Operations
from tests.support.deployment import Deployment
from tests.support.galera import Galera
from tests.support.processes import end_of, wait_until

pytestmark = pytest.mark.long

DECIDED_SECONDS = 30.0


# ---- hot rows

HOT = """
import time
import taskserver
from taskserver import task


@task(transactional=True)
def count():
    taskserver.connection().cursor().execute("UPDATE hot SET n = n + 1")
    time.sleep(0.005)
"""
HOT_TASKS = 200


def test_hot_rows_of_transactional_tasks_on_all_nodes_make_none_fatal(
    cluster: Galera, name: str, deployment: Deployment
) -> None:
    deployment.write_tasks(HOT)
    deployment.write_env(TASKSERVER_DSN=cluster.dsn(name))
    cluster.execute("CREATE TABLE hot (id INT PRIMARY KEY, n INT)", "INSERT INTO hot VALUES (1, 0)", database=name)
    with TaskServer(cluster.dsn(name)) as server:
        server.add_tasks([{"task": "tasks.count", "max_attempts": 1} for _ in range(HOT_TASKS)])
    before = sum(node.lost_conflicts() for node in cluster.nodes)
    workers = [
        deployment.popen("worker.py", "--mode", "mark", "--slots", 0, env={"TASKSERVER_DSN": node.dsn(name)})
        for node in cluster.nodes
    ]
    assert [end_of(worker) for worker in workers] == [(0, "", "")] * len(workers)
    with closing(cluster.nodes[0].rows(name)) as rows:
        assert rows.execute("SELECT n FROM hot") == [(HOT_TASKS,)]
        assert rows.execute("SELECT status, attempts, COUNT(*) FROM jobs_queue GROUP BY 1, 2") == [(2, 1, HOT_TASKS)]
    assert sum(node.lost_conflicts() for node in cluster.nodes) - before > 20, "nothing was contended"


def test_a_transaction_that_loses_each_conflict_fails_by_it(cluster: Galera, name: str, deployment: Deployment) -> None:
    """Not as one that the task ended itself, which would be fatal at once."""
    first, second, _ = cluster.nodes
    deployment.write_tasks(HOT.replace("0.005", "0.2"))
    deployment.write_env(TASKSERVER_DSN=first.dsn(name), TASKSERVER_BACKOFF="fixed:60")
    cluster.execute("CREATE TABLE hot (id INT PRIMARY KEY, n INT)", "INSERT INTO hot VALUES (1, 0)", database=name)
    with TaskServer(first.dsn(name)) as server, closing(second.rows(name)) as rows:
        task_id = server.add_task("tasks.count", max_attempts=2)
        worker = deployment.popen("worker.py")
        while worker.poll() is None:
            rows.execute("UPDATE hot SET n = n + 1")
        assert end_of(worker) == (0, "", "")
        failed = server.get(task_id)
        assert failed is not None
        assert failed.status == Status.ERROR
        assert "(1213)" in str(failed.error)


# ---- dependencies, whose ends and decisions pass each other on two nodes


def begin(server: TaskServer, task_id: int) -> ClaimedTask:
    task = Operations(server.store).claim_one(task_id)
    server.store.finishes.advance([], Start(task, 10))
    return task


def add_child(server: TaskServer, *parents: int) -> int:
    """One of many, so that a look decides later whether it has to wait."""
    return server.add_tasks([{"task": "tasks.child", "depends_on": list(parents)}])[0]


def child_on_each(cluster: Galera, name: str, child: int) -> list[tuple[Any, ...]]:
    """Its status, and how many edges it has, on each node."""
    cluster.await_all()
    found = []
    for node in cluster.nodes:
        with closing(node.rows(name)) as rows:
            rows.execute("SET SESSION wsrep_sync_wait = 1")
            edges = "(SELECT COUNT(*) FROM jobs_queue_dependencies WHERE child_id = id)"
            found += rows.execute(f"SELECT status, {edges} FROM jobs_queue WHERE id = {child}")
    return found


def test_a_child_that_must_wait_by_one_node_while_its_parent_ends_on_another_does_not_wait_for_ever(
    cluster: Galera, name: str
) -> None:
    behind, ahead, _ = cluster.nodes
    with TaskServer(behind.dsn(name)) as late, TaskServer(ahead.dsn(name)) as early:
        parent = begin(early, early.add_task("tasks.parent"))
        child = add_child(early, parent.id)
        with closing(behind.rows(name)) as rows:
            wait_until(lambda: rows.execute(f"SELECT 1 FROM jobs_queue_dependencies WHERE child_id = {child}"))
        before = behind.lost_conflicts()
        with cluster.lagging(behind, name) as catch_up, ThreadPoolExecutor(1) as worker:
            assert early.store.finishes.advance([Finish(parent)], None)[0] == [Outcome.AS_ASKED]
            deciding = worker.submit(Dependencies(late.store.database).decide, [child])
            time.sleep(0.5)
            assert not deciding.done(), "it decided without what the other node wrote"
            catch_up()
            deciding.result(DECIDED_SECONDS)
        assert behind.lost_conflicts() > before, "nothing was contended"
        Dependencies(late.store.database).decide(late.store.due.look().linked)
    assert child_on_each(cluster, name, child) == [(Status.NEW, 0)] * 3


def test_a_child_whose_last_parents_end_on_two_nodes_at_once_does_not_wait_for_ever(cluster: Galera, name: str) -> None:
    behind, ahead, _ = cluster.nodes
    with TaskServer(behind.dsn(name)) as late, TaskServer(ahead.dsn(name)) as early:
        parents = [begin(early, early.add_task("tasks.parent")) for _ in range(2)]
        child = early.add_task("tasks.child", depends_on=[parent.id for parent in parents])
        with closing(behind.rows(name)) as rows:
            wait_until(lambda: rows.execute(f"SELECT 1 FROM jobs_queue WHERE id = {child} AND due_at IS NULL"))
        before = behind.lost_conflicts()
        with cluster.lagging(behind, name) as catch_up, ThreadPoolExecutor(1) as worker:
            assert early.store.finishes.advance([Finish(parents[0])], None)[0] == [Outcome.AS_ASKED]
            ending = worker.submit(late.store.finishes.advance, [Finish(parents[1])], None)
            time.sleep(0.5)
            assert not ending.done(), "it ended without what the other node wrote"
            catch_up()
            assert ending.result(DECIDED_SECONDS)[0] == [Outcome.AS_ASKED]
        assert behind.lost_conflicts() > before, "nothing was contended"
    assert child_on_each(cluster, name, child) == [(Status.NEW, 0)] * 3
