"""The stage of a storm: three nodes, DSNs that name them in several orders, and a balancer before them."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from taskserver import TaskServer
from tests.faults.chaos.faults import Strike
from tests.faults.chaos.stage import SETTINGS, Actor, Stage
from tests.faults.chaos.tasks import TASKS
from tests.support.galera import Galera, Node
from tests.support.proxy import Proxy
from tests.support.rows import Rows

ORDERS = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
BALANCED_SLOT = 3
"""Its workers know one address, that of the balancer."""
LOOK_SECONDS = 0.5
TICK = "tick"
TICK_NUMBER = -1
TICKING = f"""{TASKS}

def tick(number):
    with noted(number, "tick"):
        time.sleep(0.05)
"""


class GaleraStage(Stage):
    """On a cluster of its own."""

    tasks = TICKING
    lease_seconds = 30
    """A worker may wait ten seconds for a frozen node, and the others stall until they have given it up."""
    max_attempts = 3
    arguments: Sequence[Sequence[object]] = ((), ("--processes", 2), (15, "--batch", 3), ("--batch", 5, "--linger", 5))
    rare_faults = frozenset({"kill", "terminate"})
    is_cluster = True

    def __init__(self, folder: Path, seed: int) -> None:
        settings = SETTINGS | {"TASKSERVER_LEASE": f"{self.lease_seconds}", "TASKSERVER_DB_PATIENCE": "30"}
        super().__init__("mysql", folder, seed, settings)
        with TaskServer(self.dsn, folder=self.folder) as queue:
            queue.schedule(TICK, "tasks.tick", {"number": TICK_NUMBER}, every=2)

    def _open(self) -> str:
        self.cluster = self._stack.enter_context(Galera())
        self._database = self.cluster.create_database()
        node = self.cluster.nodes[0]
        self.balancer = self._stack.enter_context(Proxy(node.host, node.port))
        return self.cluster.dsn(self._database)

    def dsn_of_producer(self, number: int) -> str:
        return self.cluster.dsn(self._database, ORDERS[number])

    def dsn_of_slot(self, number: int) -> str:
        if number == BALANCED_SLOT:
            return self.balancer.dsn(self.cluster.nodes[0].dsn(self._database))
        return self.cluster.dsn(self._database, ORDERS[number])

    def rows(self) -> Rows:
        """At a node that serves, with all that was committed before."""
        return self.rows_of(self.cluster.serving()[0])

    def rows_of(self, node: Node) -> Rows:
        found = Rows(node.dsn(self._database), connect_timeout=2, read_timeout=5, write_timeout=5)
        found.execute("SET SESSION wsrep_sync_wait = 1")
        return found

    def contents(self) -> list[list[tuple[object, ...]]]:
        """What each node holds of the rows that must be equal, once all serve."""
        self.cluster.await_all()
        tables = ("jobs_queue", "jobs_queue_done", "jobs_queue_dependencies", "accounts", "transfers")
        found = []
        for node in self.cluster.nodes:
            with closing(self.rows_of(node)) as rows:
                found.append(rows.execute(f"CHECKSUM TABLE {', '.join(tables)}"))
        return found

    def end_adding(self) -> None:
        with TaskServer(self.dsn, folder=self.folder) as queue:
            queue.unschedule(TICK)


class Balancer(Actor):
    """As HAProxy: it leads to one node while that serves, then to another, and moves now and then without need."""

    def __init__(self, stage: GaleraStage, seed: int) -> None:
        super().__init__(stage)
        self.moves: list[Strike] = []
        """Those that cut connections."""
        self._nodes, self._proxy = stage.cluster.nodes, stage.balancer
        self._chance = random.Random(f"{seed}:balancer")

    def run(self) -> None:
        target, until = self._nodes[0], time.monotonic() + self._chance.uniform(3, 8)
        while not self.stopped.wait(LOOK_SECONDS):
            if target.serves() and time.monotonic() < until:
                continue
            others = [node for node in self._nodes if node is not target and node.serves()]
            if others:
                target, began = self._chance.choice(others), time.monotonic()
                if self._proxy.move(target.port):
                    self.moves.append(Strike("move", BALANCED_SLOT, None, began, time.monotonic()))
                until = began + self._chance.uniform(3, 8)
