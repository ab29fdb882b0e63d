"""What somebody may do next: workers, producers, persons and time, each step with a weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any

from taskserver.model.attempt import Finish
from taskserver.model.new_task import NewTask
from taskserver.model.task import ClaimedTask, Due, Status
from taskserver.stores import Store
from tests.contract.machine.model import CANCELLED_TEXT, ERROR_TEXT, GROUPS, KEYS, LATER_SECONDS, LIMITS, When, limit_of

if TYPE_CHECKING:
    from tests.contract.machine.queue_machine import QueueMachine

Step = tuple[str, tuple[Any, ...]]
"""A method of the machine and its arguments."""


class Stage(Enum):
    """How far a worker believes itself with a task."""

    CLAIMED = "claimed"
    RUNNING = "running"
    OVER = "over"


@dataclass(eq=False)
class Held:
    """A task as the worker that claimed it holds it; it may have been taken away since."""

    number: int
    claimed: ClaimedTask
    stage: Stage = Stage.CLAIMED

    def __repr__(self) -> str:
        return f"task {self.number}, {self.stage.value}"

    def limit(self) -> int:
        return limit_of(self.claimed.max_attempts, LIMITS[self.claimed.task])


@dataclass(eq=False)
class Worker:
    """A store of its own, on a connection of its own."""

    number: int
    mode: str
    store: Store
    held: list[Held] = field(default_factory=list)
    """All that it claimed in this example."""
    look: Due | None = None
    """What it found due, a while ago."""

    def __repr__(self) -> str:
        return f"worker {self.number}"

    def in_stage(self, stage: Stage) -> list[Held]:
        return [held for held in self.held if held.stage is stage]


class Ending(Enum):
    """How an attempt ends."""

    WELL = "well"
    FAILED_AT_ONCE_AGAIN = "failed, to be retried at once"
    FAILED_LATER_AGAIN = "failed, to be retried later"
    FAILED_FOR_GOOD = "failed for good"
    CANCELLED = "interrupted, as a person cancelled it"

    def finish(self, held: Held) -> Finish:
        """As a worker does it: a failure is retried while attempts are left."""
        if self in (Ending.WELL, Ending.CANCELLED):
            return Finish(held.claimed, None if self is Ending.WELL else CANCELLED_TEXT)
        seconds = {Ending.FAILED_AT_ONCE_AGAIN: 0.0, Ending.FAILED_LATER_AGAIN: LATER_SECONDS}.get(self)
        is_last = held.claimed.attempts + 1 >= held.limit()
        return Finish(held.claimed, ERROR_TEXT, None if is_last else seconds)


def next_step(machine: QueueMachine, chance: Random) -> Step:
    (following,) = chance.choices([a_worker_s_step, a_producer_s_step, a_person_s_step, a_step_of_time], [16, 4, 3, 2])
    return following(machine, chance)


def a_worker_s_step(machine: QueueMachine, chance: Random) -> Step:
    worker = chance.choice(machine.workers)
    claimed, running, over = (worker.in_stage(stage) for stage in Stage)
    taken_away = [held for held in running if machine.model.held(held.claimed) is None]
    ending, when = chance.choice(list(Ending)), chance.choice([When.PAST, When.AHEAD])
    possible: list[tuple[int, str, list[Held] | bool, tuple[object, ...]]] = [
        (2, "claim", True, (chance.randint(1, 5), chance.sample(GROUPS, chance.randint(0, 3)))),
        (8, "start", claimed, ()),
        (5, "finish", running, (ending,)),
        (4, "finish", taken_away, (chance.choice([Ending.WELL, ending]),)),
        (2, "finish_all_and_start", claimed, (ending,)),
        (1, "finish", over, (ending,)),  # as after a connection that broke
        (1, "renew", claimed + running, ()),
        (1, "renew_just_in_time", claimed + running, ()),
        (1, "release", claimed + running, ()),
        (2, "fall_silent", bool(claimed + running), ()),
        (2, "look", True, ()),
        (1, "act_on_look", worker.look is not None, (when,)),
        (2, "look_and_act", True, (when,)),
    ]
    possible = [step for step in possible if step[2]]
    ((_, method, tasks, others),) = chance.choices(possible, [weight for weight, *_ in possible])
    return method, (worker, *([] if isinstance(tasks, bool) else [chance.choice(tasks)]), *others)


def a_plain_task(chance: Random) -> NewTask:
    args = chance.choice([None, *map("[{}]".format, range(1, 10))])
    return NewTask(chance.choice(sorted(LIMITS)), args, chance.choice(GROUPS), chance.randint(-1, 1))


def a_task(chance: Random) -> NewTask:
    """Plain, or with a key, delayed and a rerun in any combination."""
    if chance.random() < 1 / 3:
        return a_plain_task(chance)
    return a_plain_task(chance)._replace(
        max_attempts=chance.choice([None, 1, 2]),
        delay_seconds=chance.choice([None, None, None, LATER_SECONDS]),
        unique_key=chance.choice(KEYS),
        rerun=chance.random() < 0.7,
    )


def a_producer_s_step(machine: QueueMachine, chance: Random) -> Step:
    worker = machine.workers[0]
    running = [task for task in machine.model.tasks if task.is_running() and task.new.unique_key]
    if running and chance.random() < 0.5:
        key = chance.choice(running).new.unique_key
        return "add", (worker, [a_plain_task(chance)._replace(unique_key=key, rerun=True)])
    if chance.random() < 0.5:
        return "insert", (a_plain_task(chance), chance.choice(list(When)))
    return "add", (worker, [a_task(chance) for _ in range(chance.randint(1, 4))])


def a_person_s_step(machine: QueueMachine, chance: Random) -> Step:
    tasks = machine.model.tasks
    if not tasks:
        return a_producer_s_step(machine, chance)
    # Those with which something happened come sooner.
    weights = [
        1 + 2 * (task.status != Status.NEW) + 4 * (task.may_complete_late or task.is_running()) for task in tasks
    ]
    (task,) = chance.choices(tasks, weights)
    return chance.choice(["retry", "cancel", "cancel", "delete"]), (task,)


def a_step_of_time(machine: QueueMachine, chance: Random) -> Step:
    ahead = machine.tasks_ahead()
    return "time_comes", (chance.sample(ahead, min(len(ahead), chance.randint(1, 4))),)
