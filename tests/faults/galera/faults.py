"""The faults that strike a cluster, one at a time; each ends when all three nodes serve again."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from functools import partial
from typing import cast

from tests.faults.chaos.faults import Fault
from tests.faults.chaos.stage import Slot, Stage
from tests.faults.galera.stage import GaleraStage
from tests.support.galera import Node
from tests.support.processes import wait_until


def _nodes(stage: Stage, chance: random.Random) -> tuple[Node, Node, Node]:
    """In random order."""
    first, second, third = chance.sample(cast(GaleraStage, stage).cluster.nodes, 3)
    return first, second, third


def kill(stage: Stage, slot: Slot, chance: random.Random, forgets: bool = False) -> bool:
    """SIGKILL; the node catches up from another's cache, or gets a copy of all (SST)."""
    node, *_ = _nodes(stage, chance)
    node.kill()
    time.sleep(chance.uniform(0.0, 4.0))
    if forgets:
        node.forget()
    copies = node.log().count("SST succeeded")
    node.start()
    cast(GaleraStage, stage).cluster.await_all()
    return node.log().count("SST succeeded") > copies or not forgets


def stop(stage: Stage, slot: Slot, chance: random.Random) -> bool:
    """An orderly shutdown, as for an upgrade."""
    node, *_ = _nodes(stage, chance)
    node.stop()
    node.start()
    cast(GaleraStage, stage).cluster.await_all()
    return True


def freeze(stage: Stage, slot: Slot, chance: random.Random) -> bool:
    """SIGSTOP for 2 to 20 seconds: connections stay, and nothing answers."""
    node, *_ = _nodes(stage, chance)
    node.freeze()
    time.sleep(chance.uniform(2.0, 20.0))
    node.thaw()
    cast(GaleraStage, stage).cluster.await_all()
    return True


def lose_quorum(stage: Stage, slot: Slot, chance: random.Random) -> bool:
    """Two nodes die at once; a person has the third one serve alone, and starts the others."""
    left, *others = _nodes(stage, chance)
    for node in others:
        node.kill()
    wait_until(lambda: left.state().get("wsrep_ready") == "OFF")
    time.sleep(chance.uniform(0.0, 2.0))
    left.bootstrap()
    for node in others:
        node.start()
    cast(GaleraStage, stage).cluster.await_all()
    return True


def freeze_quorum(stage: Stage, slot: Slot, chance: random.Random) -> bool:
    """Two nodes do not answer for a while: none serves until they are back, and nobody has to help."""
    left, *others = _nodes(stage, chance)
    for node in others:
        node.freeze()
    wait_until(lambda: left.state().get("wsrep_ready") == "OFF")
    time.sleep(chance.uniform(0.0, 5.0))
    for node in others:
        node.thaw()
    cast(GaleraStage, stage).cluster.await_all()
    return True


CLUSTER: Mapping[str, Fault] = {
    "node kill": kill,
    "node copy": partial(kill, forgets=True),
    "node stop": stop,
    "node freeze": freeze,
    "quorum lost": lose_quorum,
    "quorum frozen": freeze_quorum,
}
