"""What somebody may do next: workers, producers, persons and time, each step with a weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from taskserver.model.attempt import Finish
from taskserver.model.new_task import NewTask
from taskserver.model.task import ClaimedTask, Due, Status
from taskserver.stores import Store
from tests.contract.machine.model import (
    CANCELLED_TEXT,
    DUE_AT,
    ERROR_TEXT,
    GROUPS,
    KEYS,
    LATER_SECONDS,
    LIMITS,
    Model,
    Task,
    When,
    limit_of,
)

if TYPE_CHECKING:
    from tests.contract.machine.queue_machine import QueueMachine

# ---- workers, and what they may do next


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

    def in_stage(self, *stages: Stage) -> list[Held]:
        return [held for held in self.held if held.stage in stages]


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


class Step(NamedTuple):
    """What somebody does next: a method of the machine and what it gets."""

    method: str
    arguments: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.method}({', '.join(map(repr, self.arguments))})"


class Choice(NamedTuple):
    """A step that a worker may choose: a method of the machine, which gets the worker, the task and the others."""

    weight: int
    tasks: Callable[[Worker, Model], Sequence[Held | None]]
    """Those for which it can be done: one is drawn. None: it needs no task."""
    others: tuple[st.SearchStrategy[Any], ...] = ()


def no_task(worker: Worker, model: Model) -> list[None]:
    return [None]


def in_stage(*stages: Stage) -> Callable[[Worker, Model], list[Held]]:
    return lambda worker, model: worker.in_stage(*stages)


def taken_away(worker: Worker, model: Model) -> list[Held]:
    """What it believes to run, and no longer holds."""
    return [held for held in worker.in_stage(Stage.RUNNING) if model.held(held.claimed) is None]


BACKOFFS = st.sampled_from([When.PAST, When.AHEAD])
NOT_OVER = (Stage.CLAIMED, Stage.RUNNING)
CHOICES = {
    "claim": Choice(2, no_task, (st.integers(1, 5), st.lists(st.sampled_from(GROUPS), max_size=3, unique=True))),
    "start": Choice(8, in_stage(Stage.CLAIMED)),
    "finish": Choice(5, in_stage(Stage.RUNNING), (st.sampled_from(Ending),)),
    "finish_all_and_start": Choice(2, in_stage(Stage.CLAIMED), (st.sampled_from(Ending),)),
    "finish_late": Choice(4, taken_away, (st.sampled_from([Ending.WELL, *Ending]),)),
    "write_again": Choice(1, in_stage(Stage.OVER), (st.sampled_from([None, *Ending]),)),
    "renew": Choice(1, in_stage(*NOT_OVER)),
    "renew_just_in_time": Choice(1, in_stage(*NOT_OVER)),
    "release": Choice(1, in_stage(*NOT_OVER)),
    "fall_silent": Choice(2, lambda worker, model: worker.in_stage(*NOT_OVER)[:1]),
    "look": Choice(2, no_task),
    "act_on_look": Choice(1, lambda worker, model: [None] if worker.look else [], (BACKOFFS,)),
    "look_and_act": Choice(2, no_task, (BACKOFFS,)),
}


def steps_of_a_worker(machine: QueueMachine) -> st.SearchStrategy[Step]:
    return st.sampled_from(machine.workers).flatmap(lambda worker: steps_of(worker, machine.model))


@st.composite
def steps_of(draw: st.DrawFn, worker: Worker, model: Model) -> Step:
    """What this worker does next."""
    possible = {what: tasks for what, choice in CHOICES.items() if (tasks := choice.tasks(worker, model))}
    what = draw(st.sampled_from([what for what in possible for _ in range(CHOICES[what].weight)]))
    task = draw(st.sampled_from(possible[what]))
    others = draw(st.tuples(*CHOICES[what].others))
    return Step(what, (worker, *([] if task is None else [task]), *others))


# ---- what others may do next: producers, persons, and time

PLAIN_TASKS = st.tuples(
    st.sampled_from(sorted(LIMITS)),
    st.none() | st.integers(1, 9).map("[{}]".format),
    st.sampled_from(GROUPS),
    st.integers(-1, 1),
).map(lambda what: NewTask(*what))
MORE = (
    st.none() | st.integers(1, 2),
    st.sampled_from([*[(None, None)] * 6, (LATER_SECONDS, None), *((None, at) for at in DUE_AT)]),
    st.sampled_from(KEYS),
    st.one_of(st.just((False, None)), st.just((True, None)), st.tuples(st.just(True), st.integers(0, 3))),
)


@st.composite
def tasks_of_any_kind(draw: st.DrawFn) -> NewTask:
    """Delayed, with a key, with a rerun, of a version, and with all of that in any combination."""
    plain = draw(PLAIN_TASKS)
    max_attempts, (delay_seconds, due_at), key, (is_rerun, version) = draw(st.tuples(*MORE))
    return plain._replace(
        max_attempts=max_attempts,
        delay_seconds=delay_seconds,
        due_at=due_at,
        unique_key=key,
        rerun=is_rerun,
        version=version,
    )


NEW_TASKS = st.one_of(PLAIN_TASKS, tasks_of_any_kind(), tasks_of_any_kind())
COMMANDS = ("retry", "cancel", "cancel", "delete", "set_priority")


@st.composite
def step(draw: st.DrawFn, method: str, arguments: st.SearchStrategy[tuple[Any, ...]]) -> Step:
    # No st.builds: if a test fails, hypothesis would show how a step was built instead of its short form.
    return Step(method, draw(arguments))


def steps_of_a_producer(machine: QueueMachine) -> st.SearchStrategy[Step]:
    several = st.tuples(st.just(machine.workers[0]), st.lists(NEW_TASKS, min_size=1, max_size=4), st.booleans())
    adds = step("add", several) | step("insert", st.tuples(PLAIN_TASKS, st.sampled_from(When)))
    running = [task for task in machine.model.tasks if task.is_running() and task.new.unique_key]
    return adds | steps_of_one_who_changes(machine.workers[0], running) if running else adds


@st.composite
def steps_of_one_who_changes(draw: st.DrawFn, worker: Worker, tasks: list[Task]) -> Step:
    """A rerun of a task that runs."""
    key = draw(st.sampled_from(tasks)).new.unique_key
    return Step("add", (worker, [draw(PLAIN_TASKS)._replace(unique_key=key, rerun=True)], False))


def steps_of_one_who_pauses(machine: QueueMachine) -> st.SearchStrategy[Step]:
    # Resumed sooner than paused: some of the three groups should run.
    return step("pause", st.tuples(st.sampled_from(GROUPS))) | step(
        "resume", st.tuples(st.sampled_from(sorted(machine.model.paused) or GROUPS))
    )


def steps_of_a_person(machine: QueueMachine) -> st.SearchStrategy[Step]:
    tasks = machine.model.tasks
    # Those with which something happened come sooner.
    touched = [task for task in tasks if task.status != Status.NEW] * 2
    lost = [task for task in tasks if task.may_complete_late] * 4
    running = [task for task in tasks if task.is_running()] * 4
    return st.sampled_from(tasks + touched + lost + running).flatmap(deeds) if tasks else steps_of_a_producer(machine)


@st.composite
def deeds(draw: st.DrawFn, task: Task) -> Step:
    command = draw(st.sampled_from(COMMANDS))
    return Step(command, (task, draw(st.integers(-2, 2))) if command == "set_priority" else (task,))


def steps_of_time(machine: QueueMachine) -> st.SearchStrategy[Step]:
    ahead = machine.tasks_ahead()
    if not ahead:
        return steps_of_a_worker(machine)
    some = st.lists(st.sampled_from(ahead), min_size=1, max_size=4, unique_by=id)
    return step("time_comes", st.tuples(some))


SOMEBODY = (
    *(steps_of_a_worker,) * 16,
    *(steps_of_a_producer,) * 4,
    *(steps_of_a_person,) * 3,
    *(steps_of_time,) * 2,
    steps_of_one_who_pauses,
)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    following: Step = draw(draw(st.sampled_from(SOMEBODY))(draw(st.runner())))
    return following
