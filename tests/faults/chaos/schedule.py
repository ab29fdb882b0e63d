"""What a seed gives: the schedule of faults, and what a producer adds under each number."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.faults.chaos.settings import LEASE_SECONDS, MODES, PRODUCERS, SLOTS
from tests.faults.chaos.tasks import SHOWN_BY


class Fault(NamedTuple):
    """What is planned."""

    at: float
    """Seconds after the begin."""
    kind: str
    slot: int
    seconds: float
    """How long it lasts; 0 for what is over at once."""


WORKER_FAULTS = {
    "kill": (0.0, 0.0),
    "freeze": (0.2, 1.0),
    "freeze beyond the lease": (LEASE_SECONDS * 1.5, LEASE_SECONDS * 2.2),
    "terminate": (0.0, 0.0),
    "terminate twice": (0.05, 0.3),
}
NETWORK_FAULTS = {
    "drop": (0.5, 2.5),
    "stall": (0.3, 3.5),
    "reset": (0.0, 0.0),
    "refuse": (0.3, 2.0),
    "cut before a write": (1.0, 1.0),
    "cut after a write": (1.0, 1.0),
}
SERVER_FAULTS = {"server kill": (0.1, 1.0)}
OF_A_SERVER = WORKER_FAULTS | NETWORK_FAULTS | SERVER_FAULTS
FAULTS = {"sqlite": WORKER_FAULTS, "mysql": OF_A_SERVER, "postgresql": OF_A_SERVER}
"""Kinds of faults with their least and greatest length, in seconds."""
FREEZES = ("freeze", "freeze beyond the lease")
GAP_SECONDS = (0.25, 0.9)
"""Between the begins of two faults."""


def make_schedule(dsn_kind: str, seconds: float, seed: int) -> list[Fault]:
    """Faults of every kind in turns of random order, at random instants, each on a slot that no other one strikes."""
    chance = random.Random(seed)
    kinds = FAULTS[dsn_kind]
    free_at = [0.0] * SLOTS
    planned: list[Fault] = []
    turn: list[str] = []
    at = 1.0
    while at < seconds:
        turn = turn or chance.sample(sorted(kinds), len(kinds))
        kind = turn.pop()
        length = round(chance.uniform(*kinds[kind]), 3)
        slot = chance.choice([slot for slot in range(SLOTS) if free_at[slot] <= at] or [free_at.index(min(free_at))])
        if kind not in SERVER_FAULTS:
            free_at[slot] = at + length + 0.5
        planned.append(Fault(round(at, 3), kind, slot, length))
        at += chance.uniform(*GAP_SECONDS)
    return planned


def make_modes(seed: int) -> list[str]:
    """Of each slot, so that every mode is used in the shortest run too, and completes what another was about to."""
    chance = random.Random(f"{seed}:modes")
    modes = [*MODES, *chance.choices(MODES, k=SLOTS - len(MODES))]
    chance.shuffle(modes)
    return modes


class Wish(NamedTuple):
    """What a producer adds under a number."""

    kind: str
    max_attempts: int | None
    group_id: int
    priority: int
    is_sure: bool = False
    """Whether it surely misbehaves, in its first two runs."""


def planned_kinds(weights: Mapping[str, float]) -> list[str]:
    """The kinds of tasks that a run with these weights adds."""
    return [kind for kind, weight in weights.items() if weight]


def sure_kinds(weights: Mapping[str, float]) -> Sequence[str]:
    """Those that misbehave: each producer adds one of each first, which comes before all others."""
    return [kind for kind in planned_kinds(weights) if SHOWN_BY[kind] != "done"]


def wish(seed: int, number: int, weights: Mapping[str, float]) -> Wish:
    sure = sure_kinds(weights)
    if number // PRODUCERS < len(sure):
        return Wish(sure[number // PRODUCERS], None, 0, -10, True)
    chance = random.Random(f"{seed}:{number}")
    return Wish(
        chance.choices(list(weights), list(weights.values()))[0],
        chance.choices([None, 1, 2, 3], [50, 25, 15, 10])[0],
        chance.randrange(3),
        chance.choice([0, 0, 0, -5, 10]),
    )
