"""A cluster of Galera, node by node: which host serves, what a move shows, and what nodes do not know of each other.

Nodes compare what they wrote, and know nothing of each other's locks: each test of a conflict shows that it had one.
`make test-long` and `make test-galera` install what the cluster needs.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from taskserver import TaskServer
from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.task import ClaimedTask, Status
from taskserver.stores.queue.dependencies import Dependencies
from taskserver.stores.queue.operations import Operations
from tests.faults.failing import FailingQueue
from tests.faults.galera.run import run_storm
from tests.support.deployment import Deployment
from tests.support.galera import Galera, Node, missing_parts
from tests.support.processes import end_of, wait_until
from tests.support.rows import Rows
from tests.support.servers import without

pytestmark = pytest.mark.long

STORM_SECONDS = 60.0
PATIENCE_SECONDS = 30.0


@pytest.fixture(scope="module")
def galera() -> Iterator[Galera]:
    """Of all these tests."""
    if missing := missing_parts():
        without(f"Galera is not installed ({', '.join(missing)} not found)")
    with Galera() as cluster:
        yield cluster


@pytest.fixture
def cluster(galera: Galera) -> Iterator[Galera]:
    """Whole as each test begins."""
    yield galera
    galera.heal()


@pytest.fixture
def name(cluster: Galera) -> Iterator[str]:
    """Of a database with tables on all nodes."""
    name = cluster.create_database()
    with TaskServer(cluster.dsn(name)) as server:
        server.create_tables()
    yield name
    cluster.heal()
    cluster.nodes[0].drop_database(name)


def rows_at(node: Node, name: str) -> Rows:
    return Rows(node.dsn(name))


def port_of(server: TaskServer) -> int:
    """Of the node that its connection leads to."""
    return int(server.store.database.fetch_value("SELECT @@port"))


def test_every_promise_holds_in_a_storm(tmp_path: Path) -> None:
    if missing := missing_parts():
        without(f"Galera is not installed ({', '.join(missing)} not found)")
    report = run_storm(STORM_SECONDS, random.SystemRandom().randrange(1_000_000), tmp_path)
    print(report)
    assert not report.failures, f"{report}"


# ---- which host serves


@contextmanager
def killed(node: Node) -> Iterator[None]:
    node.kill()
    yield


@contextmanager
def frozen(node: Node) -> Iterator[None]:
    node.freeze()
    yield
    node.thaw()


@contextmanager
def set_to(node: Node, statement: str, usual: str, sign: Callable[[Node], object]) -> Iterator[None]:
    node.execute(statement)
    wait_until(lambda: sign(node))
    yield
    node.execute(usual)


def desynced(node: Node) -> Any:
    """As a node that sends its data to another one."""
    sign = lambda node: node.state()["wsrep_local_state"] != "4"  # noqa: E731
    return set_to(node, "SET GLOBAL wsrep_desync = ON", "SET GLOBAL wsrep_desync = OFF", sign)


def read_only(node: Node) -> Any:
    return set_to(node, "SET GLOBAL read_only = 1", "SET GLOBAL read_only = 0", lambda _: True)


def isolated(node: Node) -> Any:
    """It runs, and sees no other node."""
    option = "SET GLOBAL wsrep_provider_options = 'gmcast.isolate={}'"
    sign = lambda node: node.state()["wsrep_ready"] == "OFF"  # noqa: E731
    return set_to(node, option.format(1), option.format(0), sign)


@contextmanager
def full(node: Node) -> Iterator[None]:
    """It has no connection for anybody (1040), its administrator included."""
    before = node.execute("SELECT @@GLOBAL.max_connections")[0][0]
    node.execute("SET GLOBAL max_connections = 10")
    with ExitStack() as held:
        with suppress(pymysql.OperationalError):
            for _ in range(20):
                held.enter_context(node.connect())
        assert node.state() == {}
        yield
    wait_until(node.serves)
    node.execute(f"SET GLOBAL max_connections = {before}")


@pytest.mark.parametrize("fault", [killed, frozen, desynced, read_only, isolated, full])
def test_the_next_host_serves_while_the_first_one_cannot(
    cluster: Galera, name: str, fault: Callable[[Node], Any]
) -> None:
    first, second, _ = cluster.nodes
    with fault(first), TaskServer(cluster.dsn(name)) as server:
        server.add_task("tasks.a")
        assert port_of(server) == second.port
        with TaskServer(cluster.dsn(name, [2, 0, 1])) as other:
            assert port_of(other) == cluster.nodes[2].port
    cluster.heal()
    with TaskServer(cluster.dsn(name)) as server:
        assert port_of(server) == first.port
        assert [task.task for task in server.list()] == ["tasks.a"]


@pytest.mark.parametrize("fault", [killed, frozen])
def test_an_add_at_the_command_line_goes_to_the_next_host_without_a_word(
    cluster: Galera, name: str, deployment: Deployment, fault: Callable[[Node], Any]
) -> None:
    deployment.write_env(TASKSERVER_DSN=cluster.dsn(name))
    with fault(cluster.nodes[0]):
        added = deployment.client("add", "tasks.a")
    assert (added.returncode, added.stderr) == (0, "")
    with closing(rows_at(cluster.nodes[1], name)) as rows:
        assert [row["id"] for row in rows.all()] == [int(added.stdout)]


def test_without_a_quorum_no_node_serves_and_a_bootstrapped_one_goes_on(
    cluster: Galera, name: str, deployment: Deployment
) -> None:
    left, *others = cluster.nodes
    deployment.write_env(TASKSERVER_DSN=cluster.dsn(name))
    for node in others:
        node.kill()
    wait_until(lambda: left.state().get("wsrep_ready") == "OFF")
    refused = deployment.client("add", "tasks.a")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "wsrep_ready is OFF" in refused.stderr
    assert "may have been added" not in refused.stderr
    left.bootstrap()
    wait_until(left.serves)
    assert deployment.client("add", "tasks.b").returncode == 0
    cluster.heal()
    with closing(rows_at(others[0], name)) as rows:
        assert [row["task"] for row in rows.all()] == ["tasks.b"]


# ---- running workers


@pytest.fixture
def queue(cluster: Galera, name: str, deployment: Deployment) -> Iterator[FailingQueue]:
    """Its worker prefers the first node, and the tests' own SQL goes to the last one."""
    queue = FailingQueue(deployment, cluster.nodes[2], name)
    queue.workers_dsn = cluster.dsn(name)
    queue.set()
    yield queue
    deployment.close()


@pytest.mark.parametrize("fault", [killed, frozen])
def test_a_running_worker_moves_to_the_next_host(
    cluster: Galera, queue: FailingQueue, fault: Callable[[Node], Any]
) -> None:
    names = [f"n{number}" for number in range(60)]
    for each in names:
        queue.add("tasks.note", f'["{each}", 0.02]')
    worker = queue.start("--mode", "mark", "--batch", 30)
    wait_until(lambda: len(queue.notes()) >= 10)
    with fault(cluster.nodes[0]):
        began_at = time.monotonic()
        wait_until(lambda: len(queue.notes()) == len(names))
        assert time.monotonic() - began_at < PATIENCE_SECONDS
        queue.assert_all_once(worker, names)
    assert queue.tries(), "it lost no connection"


# ---- what a node knows late


@contextmanager
def lagging(cluster: Galera, node: Node, name: str) -> Iterator[Callable[[], None]]:
    """In the `with`, or until the call, it applies nothing that others commit; its own commits wait for that, too."""
    cluster.execute(
        "CREATE TABLE IF NOT EXISTS small (id INT PRIMARY KEY, x INT)",
        "REPLACE INTO small VALUES (1, 0)",
        database=name,
    )
    other = next(one for one in cluster.nodes if one is not node)
    with closing(rows_at(node, name)) as holder:
        wait_until(lambda: holder.execute("SHOW TABLES LIKE 'small'"))
        holder.execute("LOCK TABLES small READ")
        other.execute("UPDATE small SET x = x + 1", database=name)
        yield lambda: (holder.execute("UNLOCK TABLES"), None)[1]


def cert_failures(node: Node) -> int:
    """How many transactions of a node lost a conflict with another one's."""
    found = node.execute(
        "SELECT SUM(variable_value) FROM information_schema.global_status "
        "WHERE variable_name IN ('wsrep_local_cert_failures', 'wsrep_local_bf_aborts')"
    )
    return int(found[0][0])


def test_a_connection_that_moves_sees_what_its_client_wrote(cluster: Galera, name: str) -> None:
    first, second, _ = cluster.nodes
    with TaskServer(cluster.dsn(name)) as server, lagging(cluster, second, name) as catch_up:
        task_id = server.add_task("tasks.a")
        server.close()
        with desynced(first), closing(rows_at(second, name)) as rows:
            assert rows.statuses() == [], "it does not lag"
            threading.Timer(1.0, catch_up).start()
            assert server.get(task_id) is not None
            assert port_of(server) == second.port


def test_a_node_that_lags_for_long_is_passed_over(cluster: Galera, name: str) -> None:
    first, second, third = cluster.nodes
    with TaskServer(cluster.dsn(name)) as server, lagging(cluster, second, name):
        task_id = server.add_task("tasks.a")
        server.close()
        with desynced(first):
            assert server.get(task_id) is not None
            assert port_of(server) == third.port


# ---- conflicts

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
    before = sum(map(cert_failures, cluster.nodes))
    workers = [
        deployment.popen("worker.py", "--mode", "mark", "--slots", 0, env={"TASKSERVER_DSN": node.dsn(name)})
        for node in cluster.nodes
    ]
    assert [end_of(worker) for worker in workers] == [(0, "", "")] * len(workers)
    with closing(rows_at(cluster.nodes[0], name)) as rows:
        assert rows.execute("SELECT n FROM hot") == [(HOT_TASKS,)]
        assert rows.execute("SELECT status, attempts, COUNT(*) FROM jobs_queue GROUP BY 1, 2") == [(2, 1, HOT_TASKS)]
    assert sum(map(cert_failures, cluster.nodes)) - before > 20, "nothing was contended"


def test_a_transaction_that_loses_each_conflict_fails_by_it(cluster: Galera, name: str, deployment: Deployment) -> None:
    """Not as one that the task ended itself, which would be fatal at once."""
    first, second, _ = cluster.nodes
    deployment.write_tasks(HOT.replace("0.005", "0.2"))
    deployment.write_env(TASKSERVER_DSN=first.dsn(name), TASKSERVER_BACKOFF="fixed:60")
    cluster.execute("CREATE TABLE hot (id INT PRIMARY KEY, n INT)", "INSERT INTO hot VALUES (1, 0)", database=name)
    with TaskServer(first.dsn(name)) as server, closing(rows_at(second, name)) as rows:
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
        with closing(rows_at(node, name)) as rows:
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
        with closing(rows_at(behind, name)) as rows:
            wait_until(lambda: rows.execute(f"SELECT 1 FROM jobs_queue_dependencies WHERE child_id = {child}"))
        before = cert_failures(behind)
        with lagging(cluster, behind, name) as catch_up, ThreadPoolExecutor(1) as worker:
            assert early.store.finishes.advance([Finish(parent)], None)[0] == [Outcome.AS_ASKED]
            deciding = worker.submit(Dependencies(late.store.database).decide, [child])
            time.sleep(0.5)
            assert not deciding.done(), "it decided without what the other node wrote"
            catch_up()
            deciding.result(PATIENCE_SECONDS)
        assert cert_failures(behind) > before, "nothing was contended"
        Dependencies(late.store.database).decide(late.store.due.look().linked)
    assert child_on_each(cluster, name, child) == [(Status.NEW, 0)] * 3


def test_a_child_whose_last_parents_end_on_two_nodes_at_once_does_not_wait_for_ever(cluster: Galera, name: str) -> None:
    behind, ahead, _ = cluster.nodes
    with TaskServer(behind.dsn(name)) as late, TaskServer(ahead.dsn(name)) as early:
        parents = [begin(early, early.add_task("tasks.parent")) for _ in range(2)]
        child = early.add_task("tasks.child", depends_on=[parent.id for parent in parents])
        with closing(rows_at(behind, name)) as rows:
            wait_until(lambda: rows.execute(f"SELECT 1 FROM jobs_queue WHERE id = {child} AND due_at IS NULL"))
        before = cert_failures(behind)
        with lagging(cluster, behind, name) as catch_up, ThreadPoolExecutor(1) as worker:
            assert early.store.finishes.advance([Finish(parents[0])], None)[0] == [Outcome.AS_ASKED]
            ending = worker.submit(late.store.finishes.advance, [Finish(parents[1])], None)
            time.sleep(0.5)
            assert not ending.done(), "it ended without what the other node wrote"
            catch_up()
            assert ending.result(PATIENCE_SECONDS)[0] == [Outcome.AS_ASKED]
        assert cert_failures(behind) > before, "nothing was contended"
    assert child_on_each(cluster, name, child) == [(Status.NEW, 0)] * 3
