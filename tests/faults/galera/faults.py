"""The faults that strike a cluster, one at a time; each ends when all three nodes serve again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from tests.faults.chaos.faults import Fault, Faults
from tests.faults.chaos.stage import Slot, Stage
from tests.faults.galera.stage import GaleraStage
from tests.support.galera import Node
from tests.support.processes import wait_until


def kill(nodes: Sequence[Node], chance: random.Random, forgets: bool = False) -> bool:
    """SIGKILL; the node catches up from another's cache, or gets a copy of all (SST)."""
    node, *_ = nodes
    node.kill()
    time.sleep(chance.uniform(0.0, 4.0))
    if forgets:
        node.forget()
    copies = node.log().count("SST succeeded")
    node.start()
    return node.log().count("SST succeeded") > copies or not forgets


def stop(nodes: Sequence[Node], chance: random.Random) -> bool:
    """An orderly shutdown, as for an upgrade."""
    nodes[0].stop()
    nodes[0].start()
    return True


def freeze(nodes: Sequence[Node], chance: random.Random) -> bool:
    """SIGSTOP for 2 to 20 seconds: connections stay, and nothing answers."""
    nodes[0].freeze()
    time.sleep(chance.uniform(2.0, 20.0))
    nodes[0].thaw()
    return True


def lose_quorum(nodes: Sequence[Node], chance: random.Random) -> bool:
    """Two nodes die at once; a person has the third one serve alone, and starts the others."""
    left, *others = nodes
    for node in others:
        node.kill()
    wait_until(lambda: left.state().get("wsrep_ready") == "OFF")
    time.sleep(chance.uniform(0.0, 2.0))
    left.bootstrap()
    for node in others:
        node.start()
    return True


def freeze_quorum(nodes: Sequence[Node], chance: random.Random) -> bool:
    """Two nodes do not answer for a while: none serves until they are back, and nobody has to help."""
    left, *others = nodes
    for node in others:
        node.freeze()
    wait_until(lambda: left.state().get("wsrep_ready") == "OFF")
    time.sleep(chance.uniform(0.0, 5.0))
    for node in others:
        node.thaw()
    return True


def on_nodes(strike: Callable[[Sequence[Node], random.Random], bool]) -> Fault:
    """On nodes in random order, until all serve again."""

    def fault(stage: Stage, slot: Slot, chance: random.Random) -> bool:
        cluster = cast(GaleraStage, stage).cluster
        has_struck = strike(chance.sample(cluster.nodes, len(cluster.nodes)), chance)
        cluster.await_all()
        return has_struck

    return fault


CLUSTER: Faults = {
    "node kill": on_nodes(kill),
    "node copy": on_nodes(partial(kill, forgets=True)),
    "node stop": on_nodes(stop),
    "node freeze": on_nodes(freeze),
    "quorum lost": on_nodes(lose_quorum),
    "quorum frozen": on_nodes(freeze_quorum),
}
