"""A cluster of Galera, node by node: which host serves, what a move shows, and what nodes do not know of each other.

Nodes compare what they wrote, and know nothing of each other's locks: each test of a conflict shows that it had one.
`make test-long` and `make test-galera` install what the cluster needs.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from taskserver import TaskServer
from taskserver.model.task import Status
from tests.faults.failing import FailingQueue
from tests.faults.galera.run import run_storm
from tests.support.deployment import Deployment
from tests.support.galera import Galera, Node, missing_parts
from tests.support.processes import end_of, wait_until
from tests.support.servers import without

pytestmark = pytest.mark.long

STORM_SECONDS = 60.0
PATIENCE_SECONDS = 30.0


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
    with closing(cluster.nodes[1].rows(name)) as rows:
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
    with closing(others[0].rows(name)) as rows:
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


LEAVING = """
import os

import pymysql
import taskserver
from taskserver import task


def leave():
    with pymysql.connect(**PLACE) as connection:
        connection.cursor().execute("SET GLOBAL wsrep_desync = ON")


@task(transactional=True)
def stay():
    cursor = taskserver.connection().cursor()
    cursor.execute("INSERT INTO seen SELECT NULL, @@port")
    note("stayed")
    while not (HERE / "go").exists():
        time.sleep(0.01)
"""


def test_a_task_whose_connection_goes_to_another_node_takes_its_worker_along(
    cluster: Galera, queue: FailingQueue, name: str
) -> None:
    """The worker's own connection still works, at a node that the next connection does not take."""
    first, second, _ = cluster.nodes
    place = {"host": first.host, "port": first.port, "user": first.user, "password": first.password}
    queue.define(f"PLACE = {place}\n{LEAVING}")
    cluster.execute("CREATE TABLE seen (id INT PRIMARY KEY AUTO_INCREMENT, port INT)", database=name)
    queue.add("tasks.leave")
    queue.add("tasks.stay")
    worker = queue.start_task("--mode", "mark")
    in_use = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = %s"
    assert [_count(node, in_use, name) for node in (first, second)] == [0, 2]
    queue.go()
    assert end_of(worker) == (0, "", "")
    assert queue.rows("status, attempts") == [(2, 1)] * 2
    assert queue.sql("SELECT port FROM seen") == [(second.port,)]
    first.execute("SET GLOBAL wsrep_desync = OFF")


def _count(node: Node, statement: str, value: str) -> int:
    with node.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement, (value,))
        return int(cursor.fetchall()[0][0])


# ---- what a node knows late


def test_a_connection_that_moves_sees_what_its_client_wrote(cluster: Galera, name: str) -> None:
    first, second, _ = cluster.nodes
    with TaskServer(cluster.dsn(name)) as server, cluster.lagging(second, name) as catch_up:
        task_id = server.add_task("tasks.a")
        server.close()
        with desynced(first), closing(second.rows(name)) as rows:
            assert rows.statuses() == [], "it does not lag"
            threading.Timer(1.0, catch_up).start()
            assert server.get(task_id) is not None
            assert port_of(server) == second.port


def test_a_node_that_lags_for_long_is_passed_over(cluster: Galera, name: str) -> None:
    first, second, third = cluster.nodes
    with TaskServer(cluster.dsn(name)) as server, cluster.lagging(second, name):
        task_id = server.add_task("tasks.a")
        server.close()
        with desynced(first):
            assert server.get(task_id) is not None
            assert port_of(server) == third.port


PAYING = """
import pymysql
import taskserver


def pay():
    with pymysql.connect(**PLACE) as connection:
        taskserver.complete(connection)
        connection.commit()
"""


def test_a_completion_at_a_node_that_lags_is_refused_and_the_next_attempt_succeeds(
    cluster: Galera, queue: FailingQueue, name: str
) -> None:
    _, second, _ = cluster.nodes
    place = {"host": second.host, "port": second.port, "user": second.user, "password": second.password}
    queue.define(f"PLACE = {place | {'database': name}}\n{PAYING}")
    with cluster.lagging(second, name):
        queue.add("tasks.pay")
        assert queue.worker("--mode", "mark").returncode == 0
        assert queue.statuses() == [Status.ERROR]
        assert queue.first_lines()[0].startswith("LeaseLost: ")
    cluster.await_all()
    queue.end_backoffs()
    assert queue.worker("--mode", "mark").returncode == 0
    assert queue.statuses() == [Status.DONE]
