"""A queue under random verbs of several workers, producers and persons, step by step beside a model in plain Python.

Hypothesis chooses the steps (`QueueMachine`); the same are done to a store and to the `Model`, which says what the
contract says. After each step what the verb answered, and every row of the table and the archive, must be as the model
has them. Time is moved by SQL: a lease or a due date is put into the past, never waited for.

Where a short form fails, hypothesis prints the steps as they came; the long form of the same test meets them first, and
makes them fewer. The blob that is printed with them replays them: put its line `@reproduce_failure(…)` above
`class Machine` in `run_machine`, with the import, and run the test that failed.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from typing import Any, ClassVar, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from taskserver import TaskServer
from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.new_task import NewTask
from taskserver.model.selection import Selection
from taskserver.model.task import ClaimedTask, Due, LostTask, Status
from taskserver.stores import Store
from taskserver.stores.queue.dependencies import Dependencies
from taskserver.stores.queue.operations import Operations
from taskserver.worker.maintenance import LOST_TEXT
from tests.stores.test_store_contract import Rows

T = TypeVar("T")

LEASE_SECONDS = 3600
"""Far longer than an example takes: a lease ends here when a step says so."""
LATER_SECONDS = 3600.0
MODES = {
    "delete": ("delete",) * 3,
    "move": ("move",) * 3,
    "mark": ("mark",) * 3,
    "each_its_own": ("delete", "move", "mark"),
}
"""The mode of each of three workers: crontab lines may differ."""
GROUPS = (3, 5, 7)
SETTINGS_LIMIT = 3
MAX_ATTEMPTS = 1_000_000
LIMITS = {"tasks.once": 1, "tasks.twice": 2, "tasks.plain": None}
"""The callables, and how often each may start by its own @task."""
ERROR_TEXT = "ValueError: no\nthe end of a traceback"
BAD_TEXT = "BadTask: there is no such callable"
CANCELLED_TEXT = "cancelled"
FORGED_CLAIM = 4711
KEYS = ("a", "b", "c")
DUE_AT = {"2020-01-01 00:00:00.000000": False, "2037-01-01 00:00:00.000000": True}
"""Instants that a producer may choose, and whether they lie ahead."""


class When(Enum):
    """What a row's due_at says, against the database's clock."""

    NEVER = "never"
    PAST = "past"
    AHEAD = "ahead"


# ---- the model


@dataclass(eq=False)
class Task:
    """What the model says of one row."""

    number: int
    """Its place in the example; ids differ from one try to the next."""
    id: int
    new: NewTask
    status: int = Status.NEW
    attempts: int = 0
    max_attempts: int | None = None
    when: When = When.NEVER
    claim: int | None = None
    is_started: bool = False
    error_text: str | None = None
    version: int | None = None
    is_finished: bool = False
    """Whether it bears the instant at which it ended."""
    may_complete_late: bool = False
    """Given up as lost though it may start once only, and no person touched it since."""
    starts: int = 0
    """Since a person, or its producer, last allowed it anew."""
    ran: str | None = None
    """The arguments of its last start."""

    def __repr__(self) -> str:
        return f"task {self.number}"

    def columns(self) -> tuple[Any, ...]:
        """As `LOOK` reads them."""
        state = (self.status, self.attempts, self.max_attempts, self.when.value, self.claim, self.is_started)
        said = (self.new.task, self.new.args, self.new.group_id, self.new.priority, self.new.unique_key, self.version)
        return (self.id, *said, *state, self.is_finished, self.error_text)

    def is_running(self) -> bool:
        return self.status == Status.IN_PROGRESS and self.is_started

    def was_changed(self) -> bool:
        """Whether it was changed while it ran: a start counts at least one attempt."""
        return self.is_running() and self.attempts == 0

    def is_to_rerun(self) -> bool:
        return self.was_changed() and not self.is_cancelled()

    def is_cancelled(self) -> bool:
        """Whether a person cancelled it while it ran."""
        return self.is_running() and self.error_text == CANCELLED_TEXT

    def is_due(self) -> bool:
        return self.when is not When.AHEAD

    def is_held_by(self, token: int) -> bool:
        return self.status == Status.IN_PROGRESS and self.claim == token

    def become(self, status: Status, when: When = When.NEVER) -> None:
        """Another status, in which nobody holds it."""
        self.status, self.when, self.claim, self.may_complete_late = status, when, None, False

    def end(self, status: Status, error_text: str | None) -> None:
        self.become(status)
        self.error_text, self.is_finished = error_text, True

    def run_again(self) -> None:
        """It was changed while it ran, and that run has ended."""
        self.become(Status.NEW)
        self.error_text = None


class Model:
    """The queue as the contract has it. Every verb gives what the store's verb must answer."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.archive: list[tuple[Any, ...]] = []
        self.paused: set[int] = set()
        self.added = 0

    # ---- add

    def insert(self, task_id: int, new: NewTask, **state: Any) -> None:
        """A row as it is."""
        self.tasks.append(Task(self.added, task_id, new, **state))
        self.added += 1

    def add(self, task_id: int, new: NewTask) -> str:
        """A row of that id, unless one with the key stands. What became of it, in words."""
        task = self.with_key(new.unique_key)
        if task is None:
            assert self.find(task_id) is None
            status, when = ready_of(new)
            self.insert(task_id, new, status=status, when=when, max_attempts=new.max_attempts, version=new.version)
            return "added"
        assert task.id == task_id
        if not new.rerun:
            return "key stood"
        if None not in (new.version, task.version) and new.version <= task.version:  # type: ignore[operator]
            return "rerun of no newer version"
        return self._rerun(task, new)

    @staticmethod
    def _rerun(task: Task, new: NewTask) -> str:
        task.new, task.max_attempts = new, new.max_attempts
        task.attempts = task.starts = 0
        task.error_text, task.is_finished, task.may_complete_late = None, False, False
        task.version = task.version if new.version is None else new.version
        status, when = ready_of(new)
        if task.is_running():
            return "rerun while it ran"
        was = Status(task.status)
        if (task.status, task.when) == (Status.WAITING, When.NEVER) and when is When.NEVER:
            task.claim = None  # for other tasks it goes on waiting
        else:
            task.become(status, when)
        return f"rerun, {was.name}"

    def with_key(self, key: str | None) -> Task | None:
        return next((task for task in self.tasks if key is not None and task.new.unique_key == key), None)

    def find(self, task_id: int) -> Task | None:
        return next((task for task in self.tasks if task.id == task_id), None)

    # ---- what is due

    def look_for_due(self) -> Due:
        in_progress = [task for task in self.tasks if task.status == Status.IN_PROGRESS and task.is_due()]
        return Due(
            to_wake=[task.id for task in self.tasks if self._is_to_wake(task)],
            unstarted=[task.id for task in in_progress if not task.is_started],
            lost=[
                LostTask(
                    task.id, task.attempts, task.max_attempts, task.new.task, task.new.group_id, task.is_cancelled()
                )
                for task in in_progress
                if task.is_started
            ],
            schedules=[],
            linked=[task.id for task in self.tasks if self._is_forged_sign(task)],
        )

    @staticmethod
    def _is_forged_sign(task: Task) -> bool:
        """Whether it says that others wait for it, which none does here."""
        return task.status in (Status.DONE, Status.FATAL) and task.when is When.PAST

    def settle(self, ids: Iterable[int]) -> int:
        signed = [task for task in map(self.find, ids) if task and self._is_forged_sign(task)]
        for task in signed:
            task.when = When.NEVER
        return len(signed)

    @staticmethod
    def _is_to_wake(task: Task) -> bool:
        if task.status == Status.WAITING:
            return task.when is When.PAST
        return task.status == Status.ERROR and task.is_due()

    def wake(self, ids: Iterable[int]) -> int:
        woken = [task for task in map(self.find, ids) if task and self._is_to_wake(task)]
        for task in woken:
            task.status, task.when = Status.NEW, When.NEVER
        return len(woken)

    def reclaim_unstarted(self, ids: Iterable[int]) -> int:
        due = set(self.look_for_due().unstarted)
        taken_back = [task for task in map(self.find, ids) if task and task.id in due]
        for task in taken_back:
            task.become(Status.NEW)
        return len(taken_back)

    def reclaim_lost(self, lost: LostTask, when_retried: When) -> bool:
        task = self.find(lost.id)
        # Another rerun may have given it another name and group, of which nothing depends.
        due = [one._replace(task=lost.task, group_id=lost.group_id) for one in self.look_for_due().lost]
        if task is None or lost not in due:
            return False
        limit = limit_of(task.max_attempts)
        if task.is_to_rerun():
            task.run_again()
        elif task.is_cancelled():
            task.end(Status.FATAL, CANCELLED_TEXT)
            task.max_attempts = limit
        elif task.attempts < limit:
            task.become(Status.ERROR, when_retried)
            task.error_text = LOST_TEXT
        else:
            token = task.claim
            task.end(Status.FATAL, LOST_TEXT)
            task.max_attempts = limit
            if limit == 1:
                task.claim, task.may_complete_late = token, True
        return True

    # ---- claim, start

    def new_of(self, groups: Sequence[int]) -> list[Task]:
        new = [
            task
            for task in self.tasks
            if task.status == Status.NEW
            and (not groups or task.new.group_id in groups)
            and task.new.group_id not in self.paused
        ]
        return sorted(new, key=lambda task: (task.new.priority, task.id))

    def claim(self, limit: int, groups: Sequence[int], token: int) -> tuple[list[ClaimedTask], int]:
        met = self.new_of(groups)[:limit]
        claimed = [task for task in met if task.is_due()]
        for task in met:
            task.become(Status.WAITING, When.AHEAD)
            task.is_started = False
        for task in claimed:
            task.status, task.claim = Status.IN_PROGRESS, token
        return [self._as_claimed(task, token) for task in claimed], len(met)

    @staticmethod
    def _as_claimed(task: Task, token: int) -> ClaimedTask:
        args = task.new.args
        size = None if args is None else len(args)
        said = (task.new.task, args, size, task.attempts, task.max_attempts)
        return ClaimedTask(task.id, *said, token, task.new.group_id)

    def start(self, start: Start) -> bool:
        task = self.held(start.task)
        if task is None or task.is_started:
            return False
        task.is_started, task.when, task.ran = True, When.AHEAD, start.task.args
        task.attempts += 1
        task.starts += 1
        task.max_attempts = start.max_attempts if task.max_attempts is None else task.max_attempts
        if task.error_text == CANCELLED_TEXT:  # of a time before: a person had it run again
            task.error_text = None
        return True

    def held(self, claimed: ClaimedTask) -> Task | None:
        """The task, where the claim still stands."""
        task = self.find(claimed.id)
        return task if task and task.is_held_by(claimed.claim) else None

    def limit_attempts(self, claimed: ClaimedTask, max_attempts: int) -> bool:
        if task := self.held(claimed):
            task.when = When.AHEAD
            # What its producer changed meanwhile may be another callable.
            if task.max_attempts is None and not task.was_changed():
                task.max_attempts = max_attempts
        return task is not None

    def renew(self, claimed: ClaimedTask) -> bool:
        if task := self.held(claimed):
            task.when = When.AHEAD
        return task is not None

    # ---- finish, release

    def finish(self, finish: Finish, mode: str) -> Outcome:
        task = self.held(finish.task)
        if task is None:
            return Outcome.LOST
        if task.is_to_rerun():
            task.run_again()
            return Outcome.RUN_AGAIN
        if task.is_cancelled() and (finish.error_text is not None or task.was_changed()):
            task.end(Status.FATAL, CANCELLED_TEXT)
            return Outcome.CANCELLED
        if finish.error_text is None:
            assert task.ran == task.new.args, "it was changed, and would not run again"
            self._complete(task, mode)
        else:
            self._fail(task, finish, finish.error_text)
        return Outcome.AS_ASKED

    def complete_late(self, finish: Finish, mode: str) -> bool:
        """Promise 3: of a task that was given up as lost, by the worker that has its token."""
        task = self.find(finish.task.id)
        if finish.error_text or not task or not task.may_complete_late or task.claim != finish.task.claim:
            return False
        task.attempts = max(task.attempts, 1)  # whatever a person made of it, it was started
        self._complete(task, mode)
        return True

    def _fail(self, task: Task, finish: Finish, error_text: str) -> None:
        if finish.retry_seconds is None:
            task.end(Status.FATAL, error_text)
        else:
            task.become(Status.ERROR, when_after(finish.retry_seconds))
            task.error_text = error_text
        task.attempts = max(task.attempts - finish.uncount, 0)

    def _complete(self, task: Task, mode: str) -> None:
        task.end(Status.DONE, None)
        if mode != "mark":
            self.tasks.remove(task)
        if mode == "move":
            self.archive.append(task.columns())

    def release(self, claimed: Sequence[ClaimedTask]) -> int:
        released = [task for task in map(self.held, claimed) if task and not task.is_started]
        for task in released:
            task.become(Status.NEW)
        return len(released)

    # ---- a person's commands, as the issue has them; each gives how many tasks it was for

    def retry(self, task: Task) -> int:
        if task.status not in (Status.ERROR, Status.FATAL):
            return 0
        task.become(Status.NEW)
        task.attempts = task.starts = 0
        task.is_finished = False
        task.error_text = None if task.error_text == CANCELLED_TEXT else task.error_text
        return 1

    def cancel(self, task: Task) -> int:
        is_lost = (
            task.status == Status.FATAL and task.claim is not None and (task.error_text or "").startswith("lost: ")
        )
        if task.is_cancelled() or (task.status in (Status.DONE, Status.FATAL) and not is_lost):
            return 0
        if task.is_running():
            task.error_text = CANCELLED_TEXT
        elif is_lost:  # fatal it is already: its worker may complete it no more
            task.end(Status.FATAL, task.error_text)
        else:
            task.end(Status.FATAL, task.error_text if is_lost else CANCELLED_TEXT)
        return 1

    def set_priority(self, task: Task, priority: int) -> int:
        if task.status in (Status.DONE, Status.FATAL):
            return 0
        task.new = task.new._replace(priority=priority)
        return 1


def limit_of(*limits: int | None) -> int:
    """How often a task may start: the first that says it, else the settings."""
    return next((limit for limit in limits if limit is not None), SETTINGS_LIMIT)


def ready_of(new: NewTask) -> tuple[Status, When]:
    """The status of a task that was just added, and what its due_at says."""
    if new.delay_seconds is not None:
        return Status.WAITING, When.AHEAD
    if new.due_at is not None:
        return Status.WAITING, When.AHEAD if DUE_AT[new.due_at] else When.PAST
    return Status.NEW, When.NEVER


def when_after(seconds: float) -> When:
    return When.AHEAD if seconds else When.PAST


# ---- workers, and what they may do next


class Stage(Enum):
    """How far a worker believes itself with a task."""

    CLAIMED = "claimed"
    IMPORTING = "importing"
    RUNNING = "running"
    OVER = "over"


@dataclass(eq=False)
class Held:
    """A task as a worker holds it that claimed it; it may have been taken away since."""

    number: int
    claimed: ClaimedTask
    stage: Stage = Stage.CLAIMED

    def __repr__(self) -> str:
        return f"task {self.number}, {self.stage.value}"

    def limit(self) -> int:
        return limit_of(self.claimed.max_attempts, LIMITS[self.claimed.task])

    def is_used_up(self, limit: int) -> bool:
        return self.claimed.attempts >= limit


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
        """As executor.py has it: a failure is retried while attempts are left."""
        if self in (Ending.WELL, Ending.CANCELLED):
            return Finish(held.claimed, None if self is Ending.WELL else CANCELLED_TEXT)
        seconds = {Ending.FAILED_AT_ONCE_AGAIN: 0.0, Ending.FAILED_LATER_AGAIN: LATER_SECONDS}.get(self)
        is_last = held.is_used_up(held.limit() - 1)
        return Finish(held.claimed, ERROR_TEXT, None if is_last else seconds)


class Step(NamedTuple):
    """What somebody does next: a method of the machine and what it gets."""

    method: str
    arguments: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.method}({', '.join(map(repr, self.arguments))})"


class Choice(NamedTuple):
    """A step that a worker may choose."""

    weight: int
    tasks: Callable[[Worker, Model], Sequence[Held | None]]
    """Those for which it can be done: one is drawn, and none makes it impossible."""
    others: tuple[st.SearchStrategy[Any], ...] = ()
    """What else it needs."""


def no_task(worker: Worker, model: Model) -> list[None]:
    return [None]


def in_stage(*stages: Stage) -> Callable[[Worker, Model], list[Held]]:
    return lambda worker, model: worker.in_stage(*stages)


def taken_away(worker: Worker, model: Model) -> list[Held]:
    """What it believes to run, and holds no more."""
    believed = worker.in_stage(Stage.IMPORTING, Stage.RUNNING)
    return [held for held in believed if model.held(held.claimed) is None]


BACKOFFS = st.sampled_from([When.PAST, When.AHEAD])
NOT_OVER = (Stage.CLAIMED, Stage.IMPORTING, Stage.RUNNING)
CHOICES = {
    "claim": Choice(2, no_task, (st.integers(1, 5), st.lists(st.sampled_from(GROUPS), max_size=3, unique=True))),
    "start": Choice(8, in_stage(Stage.CLAIMED), (st.booleans(),)),
    "end_import_well": Choice(3, in_stage(Stage.IMPORTING)),
    "end_import_badly": Choice(1, in_stage(Stage.IMPORTING), (st.booleans(),)),
    "finish": Choice(5, in_stage(Stage.RUNNING), (st.sampled_from(Ending),)),
    "finish_all_and_start": Choice(2, in_stage(Stage.CLAIMED), (st.sampled_from(Ending),)),
    "finish_late": Choice(4, taken_away, (st.sampled_from([Ending.WELL, *Ending]),)),
    "start_again": Choice(1, in_stage(Stage.IMPORTING, Stage.RUNNING)),
    "renew": Choice(1, in_stage(*NOT_OVER)),
    "renew_just_in_time": Choice(1, in_stage(*NOT_OVER)),
    "release": Choice(1, in_stage(*NOT_OVER), (st.booleans(),)),
    "write_again": Choice(1, in_stage(Stage.OVER), (st.sampled_from([None, *Ending]),)),
    "renew_and_release_again": Choice(1, in_stage(Stage.OVER)),
    "fall_silent": Choice(2, lambda worker, model: worker.in_stage(*NOT_OVER)[:1]),
    "look": Choice(2, no_task),
    "act_on_look": Choice(1, lambda worker, model: [None] if worker.look else [], (BACKOFFS,)),
    "look_and_act": Choice(2, no_task, (BACKOFFS,)),
}
"""What a worker may do; each is a method of the machine, which gets the worker, the task (if any) and the rest."""


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
STATES = st.fixed_dictionaries(
    {},
    optional={
        "max_attempts": st.sampled_from([1, 0, 2]),
        "when": st.sampled_from([When.PAST, When.AHEAD]),
        "status": st.just(Status.WAITING),
    },
)
FORGED_STATES = st.fixed_dictionaries(
    {
        "status": st.sampled_from([Status.IN_PROGRESS, *Status]),
        "when": st.sampled_from(When),
        "attempts": st.integers(0, 4),
        "is_started": st.booleans(),
    },
    optional={
        "max_attempts": st.sampled_from([1, 0, 2]),
        "claim": st.just(FORGED_CLAIM),
        "error_text": st.sampled_from(["lost: so it says", CANCELLED_TEXT]),
    },
)
DEEDS = ("retry", "retry_and_leave_the_claim", "cancel", "delete", "reset_attempts")
DEEDS_FOR = {
    Status.ERROR: (*DEEDS, "postpone"),
    Status.WAITING: (*DEEDS, "postpone"),
    Status.IN_PROGRESS: (*DEEDS, "forget_the_lease"),
}
COMMANDS = ("command_retry", "command_cancel", "command_cancel", "command_priority")


@st.composite
def step(draw: st.DrawFn, method: str, arguments: st.SearchStrategy[tuple[Any, ...]]) -> Step:
    # No st.builds: where a test fails, hypothesis would show how a step was built instead of its short form.
    return Step(method, draw(arguments))


def steps_of_a_producer(machine: QueueMachine) -> st.SearchStrategy[Step]:
    several = st.tuples(st.just(machine.workers[0]), st.lists(NEW_TASKS, min_size=1, max_size=4), st.booleans())
    adds = step("add", several) | step("insert", st.tuples(PLAIN_TASKS, STATES))
    running = [task for task in machine.model.tasks if task.is_running() and task.new.unique_key]
    return adds | steps_of_one_who_changes(machine.workers[0], running) if running else adds


@st.composite
def steps_of_one_who_changes(draw: st.DrawFn, worker: Worker, tasks: list[Task]) -> Step:
    """A rerun of a task that runs."""
    key = draw(st.sampled_from(tasks)).new.unique_key
    return Step("add", (worker, [draw(PLAIN_TASKS)._replace(unique_key=key, rerun=True)], False))


def steps_of_a_forger(machine: QueueMachine) -> st.SearchStrategy[Step]:
    return step("insert", st.tuples(PLAIN_TASKS, FORGED_STATES))


def steps_of_one_who_pauses(machine: QueueMachine) -> st.SearchStrategy[Step]:
    # Sooner resumed than paused: of three groups some are to run.
    return step("pause", st.tuples(st.sampled_from(GROUPS))) | step(
        "resume", st.tuples(st.sampled_from(sorted(machine.model.paused) or GROUPS))
    )


def steps_of_a_person(machine: QueueMachine) -> st.SearchStrategy[Step]:
    tasks = machine.model.tasks
    # Sooner those with which something happened.
    touched = [task for task in tasks if task.status != Status.NEW] * 2
    lost = [task for task in tasks if task.may_complete_late] * 4
    running = [task for task in tasks if task.is_running()] * 4
    return st.sampled_from(tasks + touched + lost + running).flatmap(deeds) if tasks else steps_of_a_producer(machine)


@st.composite
def deeds(draw: st.DrawFn, task: Task) -> Step:
    """What a person may do to a row, by SQL or by a command."""
    if draw(st.booleans()):
        return Step(draw(st.sampled_from(DEEDS_FOR.get(Status(task.status), DEEDS))), (task,))
    command = draw(st.sampled_from(COMMANDS))
    return Step(command, (task, draw(st.integers(-2, 2))) if command == "command_priority" else (task,))


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
    machine: QueueMachine = draw(st.runner())
    somebody = draw(st.sampled_from(SOMEBODY + (steps_of_a_forger,) * 2 * machine.has_forgers))
    following: Step = draw(somebody(machine))
    return following


# ---- the machine


@dataclass
class Place:
    """Where examples happen one after the other: a database, the workers' stores, and a count of what happened."""

    rows: Rows
    stores: list[tuple[str, Store]]
    happened: Counter[str] = field(default_factory=Counter)

    def begin(self) -> list[Worker]:
        self.rows.execute("DELETE FROM jobs_queue")
        self.rows.execute("DELETE FROM jobs_queue_done")
        self.rows.execute("DELETE FROM jobs_queue_paused")
        return [Worker(number, mode, store) for number, (mode, store) in enumerate(self.stores)]


class QueueMachine(RuleBasedStateMachine):
    """One example: steps of workers, producers, persons and of time, in any order.

    All of them are one rule: hypothesis leaves out half of the rules in most examples, and without claims, or starts,
    or ends of leases there is little to see. So a step is chosen by weights, among those that are possible.
    """

    place: ClassVar[Place]

    def __init__(self) -> None:
        super().__init__()
        self.rows = self.place.rows
        self.workers = self.place.begin()
        self.interventions = Operations(self.workers[0].store)
        self.model = Model()
        self.tokens: set[int] = set()
        self.has_forgers = self.is_draining = False

    @initialize(tasks=st.lists(NEW_TASKS, min_size=1, max_size=6), has_forgers=st.booleans())
    def begin(self, tasks: list[NewTask], has_forgers: bool) -> None:
        self.has_forgers = has_forgers
        self.add(self.workers[0], tasks, False)

    @rule(step=steps())
    def do(self, step: Step) -> None:
        getattr(self, step.method)(*step.arguments)

    # ---- time

    def time_comes(self, tasks: list[Task]) -> None:
        """Of leases, backoffs and due dates."""
        for task in tasks:
            self.write(task, f"due_at = {self.instant(When.PAST)}")
            task.when = When.PAST

    def tasks_ahead(self) -> list[Task]:
        return [task for task in self.model.tasks if task.when is When.AHEAD]

    def note(self, what: str, times: int | bool = 1) -> None:
        if times and not self.is_draining:
            self.place.happened[what] += int(times)

    def write(self, task: Task, assignments: str) -> None:
        """Change a row as a person would, by SQL."""
        self.rows.execute(f"UPDATE jobs_queue SET {assignments} WHERE id = {task.id}")

    def instant(self, when: When) -> str:
        if when is When.NEVER:
            return "NULL"
        return self.rows.after(LATER_SECONDS if when is When.AHEAD else -1)

    # ---- add

    def add(self, worker: Worker, tasks: list[NewTask], breaks_off: bool) -> None:
        if len(tasks) == 1:
            added = [worker.store.producing.add(tasks[0])]
        else:
            added = self.add_together(worker, tasks, breaks_off)
        for task_id, task in zip(added, tasks, strict=len(added) > 0):
            self.note(self.model.add(task_id, task))

    def add_together(self, worker: Worker, tasks: list[NewTask], breaks_off: bool) -> list[int]:
        def broken_off() -> Iterator[NewTask]:
            yield from tasks
            raise EOFError

        added: list[int] = []
        if not breaks_off:
            worker.store.producing.add_many(tasks, added.extend)
            assert len(added) == len(tasks)
            return added
        with pytest.raises(EOFError):
            worker.store.producing.add_many(broken_off(), added.extend)
        return []

    def insert(self, new: NewTask, state: dict[str, Any]) -> None:
        """A row as SQL of others makes it."""
        task = Task(0, 0, new, **state)
        values = {
            "task": f"'{new.task}'",
            "args": f"'{new.args}'" if new.args else None,
            "group_id": new.group_id,
            "priority": new.priority,
            "status": int(task.status),
            "attempts": task.attempts,
            "max_attempts": task.max_attempts,
            "due_at": self.instant(task.when),
            "claim": task.claim,
            "started_at": self.rows.after(-1) if task.is_started else None,
            "error_text": f"'{task.error_text}'" if task.error_text else None,
        }
        texts = ", ".join("NULL" if value is None else str(value) for value in values.values())
        self.rows.execute(f"INSERT INTO jobs_queue ({', '.join(values)}) VALUES ({texts})")
        ((task_id,),) = self.rows.execute("SELECT MAX(id) FROM jobs_queue")
        self.model.insert(task_id, new, **state)

    # ---- wake, reclaim

    def look(self, worker: Worker) -> None:
        worker.look = worker.store.due.look()
        assert worker.look == self.model.look_for_due()

    def act_on_look(self, worker: Worker, when_retried: When) -> None:
        """As runner.py does it at once; a frozen worker does it long after its look."""
        due, worker.look = worker.look, None
        assert due is not None
        now = self.model.look_for_due()
        is_outdated = {*due.to_wake, *due.unstarted, *due.lost} - {*now.to_wake, *now.unstarted, *now.lost}
        self.note("acted on what was no longer so", bool(is_outdated))
        woken = self.model.wake(due.to_wake)
        taken_back = self.model.reclaim_unstarted(due.unstarted)
        assert worker.store.due.wake(due.to_wake) == woken
        assert worker.store.due.reclaim_unstarted(due.unstarted) == taken_back
        assert Dependencies(worker.store).settle(due.linked) == self.model.settle(due.linked)
        self.note("woken", woken)
        self.note("taken back unstarted", taken_back)
        for lost in due.lost:
            self.reclaim(worker, lost, when_retried)

    def reclaim(self, worker: Worker, lost: LostTask, when_retried: When) -> None:
        task = self.model.find(lost.id)
        limit = limit_of(lost.max_attempts)
        is_last = (lost.attempts >= limit or lost.is_cancelled) and not lost.is_to_rerun
        seconds = None if is_last else LATER_SECONDS if when_retried is When.AHEAD else 0.0
        is_ours = self.model.reclaim_lost(lost, when_retried)
        text = CANCELLED_TEXT if lost.is_cancelled else LOST_TEXT
        assert worker.store.due.reclaim_lost(lost, limit, text, seconds) == is_ours
        if is_ours and task is not None:
            ends = {Status.NEW: "lost, and run again", Status.ERROR: "lost, to be retried"}
            last = "lost and cancelled" if lost.is_cancelled else "lost for good"
            self.note("lost, its token kept" if task.claim else ends.get(Status(task.status), last))

    def look_and_act(self, worker: Worker, when_retried: When) -> None:
        self.look(worker)
        self.act_on_look(worker, when_retried)

    def fall_silent(self, worker: Worker, any_task: Held) -> None:
        """All its leases end."""
        held = [task for held in worker.held if (task := self.model.held(held.claimed))]
        self.time_comes([task for task in held if task.when is When.AHEAD])

    # ---- claim

    def claim(self, worker: Worker, limit: int, groups: list[int]) -> None:
        assert worker.store.claims.has_new(groups) == bool(self.model.new_of(groups))
        claim = worker.store.claims.claim(limit, groups)
        tokens = {task.claim for task in claim.tasks}
        assert len(tokens) <= 1
        assert not tokens & self.tokens
        expected, changed = self.model.claim(limit, groups, max(tokens, default=-1))
        assert [task._replace(waited_seconds=0.0) for task in claim.tasks] == expected
        assert all(0 <= task.waited_seconds < LATER_SECONDS for task in claim.tasks)
        assert claim.changed == changed
        self.note("passed over as paused", any(task.status == Status.NEW for task in self.of_paused_groups()))
        self.tokens |= tokens
        for claimed in claim.tasks:
            task = self.model.find(claimed.id)
            assert task is not None
            worker.held.append(Held(task.number, claimed))
        self.note("claimed", len(claim.tasks))
        self.note("met before its time", changed - len(claim.tasks))

    def of_paused_groups(self) -> list[Task]:
        return [task for task in self.model.tasks if task.new.group_id in self.model.paused]

    # ---- start, finish: as executor.py has it

    def start(self, worker: Worker, held: Held, imports_first: bool) -> None:
        self.turn(worker, [], held, imports_first)

    def finish(self, worker: Worker, held: Held, ending: Ending) -> None:
        self.turn(worker, [(held, ending)])

    def finish_late(self, worker: Worker, held: Held, ending: Ending) -> None:
        self.turn(worker, [(held, ending)])

    def finish_all_and_start(self, worker: Worker, held: Held, ending: Ending) -> None:
        self.turn(worker, [(running, ending) for running in worker.in_stage(Stage.RUNNING)], held)

    def turn(
        self,
        worker: Worker,
        endings: Sequence[tuple[Held, Ending]],
        following: Held | None = None,
        imports_first: bool = False,
    ) -> None:
        """Finish some tasks and start the next one in one commit."""
        finishes = [ending.finish(held) for held, ending in endings]
        for held, _ in endings:
            held.stage = Stage.OVER
        if following is None:
            self.advance(worker, finishes, None)
            return
        # Where its module must be imported, what the callable says of its attempts is not known yet.
        limit = limit_of(following.claimed.max_attempts, MAX_ATTEMPTS) if imports_first else following.limit()
        following.stage = Stage.OVER
        if following.is_used_up(limit):
            self.advance(worker, [*finishes, Finish(following.claimed, BAD_TEXT)], None)
        else:
            known = following.claimed.max_attempts if imports_first else limit
            if self.advance(worker, finishes, Start(following.claimed, known)):
                following.stage = Stage.IMPORTING if imports_first else Stage.RUNNING

    def advance(self, worker: Worker, finishes: list[Finish], start: Start | None) -> bool:
        """The verb, in the store and in the model. Whether it started what it should."""
        succeeded = [self.model.held(finish.task) for finish in finishes if finish.error_text is None]
        self.note("done though cancelled", any(task and task.is_cancelled() for task in succeeded))
        in_time = [self.model.finish(finish, worker.mode) for finish in finishes]
        started = start is not None and self.model.start(start)
        late = [
            was_in_time is Outcome.LOST and self.model.complete_late(finish, worker.mode)
            for finish, was_in_time in zip(finishes, in_time, strict=True)
        ]
        outcomes = [Outcome.AS_ASKED if other else one for one, other in zip(in_time, late, strict=True)]
        assert worker.store.finishes.advance(finishes, start) == (outcomes, started)
        self.note("finished", len(outcomes) - in_time.count(Outcome.LOST))
        self.note("finished late", sum(late))
        self.note("refused to finish", outcomes.count(Outcome.LOST))
        self.note("run again after it ended", outcomes.count(Outcome.RUN_AGAIN))
        self.note("fatal as cancelled", outcomes.count(Outcome.CANCELLED))
        self.note("started", started)
        self.note("refused to start", start is not None and not started)
        return started

    def end_import_well(self, worker: Worker, held: Held) -> None:
        """Only now the callable's own limit is known."""
        if held.is_used_up(held.limit()):
            self.end_import_badly(worker, held, False)
            return
        held.stage = Stage.RUNNING
        if held.claimed.max_attempts is None:
            still_ours = self.model.limit_attempts(held.claimed, held.limit())
            assert worker.store.leases.limit_attempts(held.claimed, held.limit()) == still_ours
            held.stage = Stage.RUNNING if still_ours else Stage.OVER
            self.note("limited" if still_ours else "refused to limit")

    def end_import_badly(self, worker: Worker, held: Held, is_broken: bool) -> None:
        """Without such a callable it was no attempt; a broken module may be mended."""
        is_last = held.is_used_up(limit_of(held.claimed.max_attempts) - 1)
        finish = Finish(held.claimed, BAD_TEXT, uncount=True)
        if is_broken:
            finish = Finish(held.claimed, ERROR_TEXT, None if is_last else LATER_SECONDS)
        self.note("uncounted", finish.uncount and self.model.held(held.claimed) is not None)
        held.stage = Stage.OVER
        self.advance(worker, [finish], None)

    def start_again(self, worker: Worker, held: Held) -> None:
        self.advance(worker, [], Start(held.claimed, held.limit()))

    def write_again(self, worker: Worker, held: Held, ending: Ending | None) -> None:
        """A start or a finish of a task that was over: as after a connection that broke."""
        if ending is None:
            self.advance(worker, [], Start(held.claimed, held.limit()))
        else:
            self.advance(worker, [ending.finish(held)], None)

    # ---- renew, release

    def renew(self, worker: Worker, held: Held) -> None:
        still_ours = self.model.renew(held.claimed)
        assert worker.store.leases.renew(held.claimed) == still_ours
        task = self.model.held(held.claimed)
        is_cancelled = task is not None and task.error_text == CANCELLED_TEXT
        assert any(worker.store.leases.claimed_still([held.claimed]).values()) == is_cancelled
        self.note("heard that it was cancelled", is_cancelled)
        self.note("renewed" if still_ours else "refused to renew")

    def renew_just_in_time(self, worker: Worker, held: Held) -> None:
        """Between another's look at its ended leases and what that one does about them."""
        other = self.workers[worker.number - 1]
        self.fall_silent(worker, held)
        self.look(other)
        self.renew(worker, held)
        self.act_on_look(other, When.PAST)

    def release(self, worker: Worker, held: Held, whole_claim: bool) -> None:
        """Of one claim all tasks, or one; those that were started stay as they are."""
        of_claim = [other for other in worker.held if other.claimed.claim == held.claimed.claim]
        released = of_claim if whole_claim else [held]
        expected = self.model.release([one.claimed for one in released])
        assert worker.store.claims.release([one.claimed for one in released]) == expected
        for one in released:
            one.stage = Stage.OVER if one.stage is Stage.CLAIMED else one.stage
        self.note("released", expected)
        self.note("refused to release", len(released) - expected)

    def renew_and_release_again(self, worker: Worker, held: Held) -> None:
        self.renew(worker, held)
        self.release(worker, held, False)

    # ---- persons, by SQL

    def retry(self, task: Task) -> None:
        self.note("retried after it was lost", task.may_complete_late)
        self.write(task, "status = 0, attempts = 0, claim = NULL")
        task.become(Status.NEW, task.when)
        task.attempts = task.starts = 0

    def retry_and_leave_the_claim(self, task: Task) -> None:
        self.note("retried after it was lost", task.may_complete_late)
        token = task.claim
        self.write(task, "status = 0, attempts = 0")
        task.become(Status.NEW, task.when)
        task.attempts, task.starts, task.claim = 0, 0, token

    def cancel(self, task: Task) -> None:
        self.note("cancelled after it was lost", task.may_complete_late)
        self.write(task, f"status = 4, claim = NULL, error_text = '{CANCELLED_TEXT}'")
        task.become(Status.FATAL, task.when)
        task.error_text = CANCELLED_TEXT

    def delete(self, task: Task) -> None:
        self.rows.execute(f"DELETE FROM jobs_queue WHERE id = {task.id}")
        self.model.tasks.remove(task)

    def reset_attempts(self, task: Task) -> None:
        """And nothing else, whatever its status."""
        self.write(task, "attempts = 0")
        task.attempts = task.starts = 0

    def postpone(self, task: Task) -> None:
        self.write(task, f"due_at = {self.instant(When.AHEAD)}")
        task.when = When.AHEAD

    def forget_the_lease(self, task: Task) -> None:
        self.write(task, "due_at = NULL")
        task.when = When.NEVER

    # ---- persons, by commands

    def command(self, task: Task, verb: Callable[[Task], int], written: Callable[[Selection], int]) -> int:
        expected = verb(task)
        assert written(Selection(ids=[task.id])) == expected
        return expected

    def settling_command(self, task: Task, verb: Callable[[Task], int], written: Callable[[Selection], int]) -> None:
        """One that tells those which wait for the task: so it meets what signs there are."""
        if self.command(task, verb, written):
            self.model.settle([one.id for one in self.model.tasks])

    def command_retry(self, task: Task) -> None:
        self.note("retried after it was lost", task.may_complete_late)
        self.settling_command(task, self.model.retry, self.interventions.retry)

    def command_cancel(self, task: Task) -> None:
        self.note("cancelled after it was lost", task.may_complete_late)
        self.note("cancelled while it ran", task.is_running())
        self.note("cancelled while it was to run again", task.is_to_rerun())
        self.settling_command(task, self.model.cancel, self.interventions.cancel)

    def command_priority(self, task: Task, priority: int) -> None:
        self.note("moved while it was new", task.status == Status.NEW)
        self.command(
            task,
            lambda one: self.model.set_priority(one, priority),
            lambda selection: self.interventions.set_priority(selection, priority),
        )

    def pause(self, group: int) -> None:
        self.interventions.pause(group)
        self.model.paused.add(group)

    def resume(self, group: int) -> None:
        assert self.interventions.resume(group) == (group in self.model.paused)
        self.model.paused.discard(group)

    # ---- what holds after every step

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        due = f"CASE WHEN due_at IS NULL THEN 'never' WHEN due_at <= {self.rows.after(0)} THEN 'past' ELSE 'ahead' END"
        state = f"status, attempts, max_attempts, {due}, claim, started_at IS NOT NULL, finished_at IS NOT NULL"
        # MySQL keeps keys as bytes.
        key = "CAST(unique_key AS CHAR)" if self.rows.is_mysql else "unique_key"
        columns = f"id, task, args, group_id, priority, {key}, version, {state}, error_text"
        queue = self.rows.execute(f"SELECT {columns} FROM jobs_queue ORDER BY id")
        assert queue == [task.columns() for task in self.model.tasks]
        archive = self.rows.execute(f"SELECT {columns} FROM jobs_queue_done ORDER BY done_id")
        assert archive == self.model.archive
        assert set(self.workers[0].store.claims.paused_groups()) == self.model.paused
        keys = [task.new.unique_key for task in self.model.tasks if task.new.unique_key is not None]
        assert len(set(keys)) == len(keys)
        assert [task for task in self.model.tasks if task.max_attempts == 1 and task.starts > 1] == []
        assert len(set(self.holders())) == len(self.holders())

    def holders(self) -> list[int]:
        """The tasks that workers hold: each once, if at all."""
        held = (held for worker in self.workers for held in worker.held)
        return [one.number for one in held if self.model.held(one.claimed)]

    def teardown(self) -> None:
        # Not where a step failed already: that is what is to be told.
        if sys.exc_info()[0] is None:
            self.drain()

    def drain(self) -> None:
        """Nothing is stuck: once leases and waiting are over, a worker brings every task to an end."""
        worker, self.is_draining = self.workers[0], True
        for group in sorted(self.model.paused):
            self.resume(group)
        for _ in range(3):
            self.time_comes(self.tasks_ahead())
            self.look_and_act(worker, When.PAST)
            self.claim(worker, 1000, [])
            for held in worker.in_stage(Stage.CLAIMED):
                self.start(worker, held, False)
            if running := worker.in_stage(Stage.RUNNING):
                self.turn(worker, [(held, Ending.WELL) for held in running])
            self.all_is_as_the_model_says()
        waiting_for_ever = (Status.WAITING, When.NEVER)
        left = [task for task in self.model.tasks if task.status not in (Status.DONE, Status.FATAL)]
        assert [task for task in left if (task.status, task.when) != waiting_for_ever] == []


# ---- the tests


@pytest.fixture
def place(dsn: str, modes: tuple[str, ...]) -> Iterator[Place]:
    with ExitStack() as open_now:
        servers = [open_now.enter_context(TaskServer(dsn, mode=mode, lease=LEASE_SECONDS)) for mode in modes]
        servers[0].create_tables()
        for server in servers[1:]:
            # As in a run: on MySQL a worker's transactions begin and end otherwise than a producer's.
            open_now.enter_context(server.store.database.patiently())
        rows = Rows(dsn)
        open_now.callback(rows.close)
        if not rows.is_mysql:
            for server in servers:
                # Nobody pulls the plug here, and waiting for the disk takes longer than all else.
                server.store.database.change("PRAGMA synchronous = OFF")
            rows.execute("PRAGMA synchronous = OFF")
        yield Place(rows, [(server.settings.mode, server.store) for server in servers])


def run_machine(here: Place, max_examples: int, *phases: Phase) -> None:
    class Machine(QueueMachine):
        place = here

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=50,
            deadline=None,
            print_blob=True,
            phases=(Phase.reuse, Phase.generate, *phases),
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )


OFTEN = {
    "claimed",
    "started",
    "finished",
    "woken",
    "taken back unstarted",
    "refused to start",
    "refused to finish",
    "key stood",
    "passed over as paused",
}
"""What surely happens in any run of some examples, to show that they go deep enough."""
RARE = {
    "acted on what was no longer so",
    "met before its time",
    "renewed",
    "refused to renew",
    "released",
    "refused to release",
    "rerun of no newer version",
    "rerun, IN_PROGRESS",
    "rerun, WAITING",
}
"""What many examples come to; where chance leads more seldom still, the machine is driven by hand."""
RARE_AT_A_RUN = {
    "rerun while it ran",
    "run again after it ended",
    "lost, and run again",
    "lost and cancelled",
    "lost, its token kept",
    "lost, to be retried",
    "finished late",
    "refused to finish",
    "cancelled while it ran",
    "cancelled while it was to run again",
    "cancelled after it was lost",
    "retried after it was lost",
    "done though cancelled",
    "fatal as cancelled",
    "heard that it was cancelled",
    "rerun, NEW",
    "rerun, ERROR",
    "rerun, FATAL",
    "rerun, DONE",
}


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_whatever_workers_do_in_whatever_order_the_queue_is_as_the_contract_says(place: Place) -> None:
    run_machine(place, 20)
    assert set(place.happened) >= OFTEN


@pytest.mark.long
@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_of_many_more_examples_none_leaves_the_contract(place: Place) -> None:
    """Where one does, it is made smaller too, for some minutes; one that the short form found comes first."""
    run_machine(place, 150, Phase.shrink)
    assert set(place.happened) >= OFTEN | RARE


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
@pytest.mark.parametrize(
    "deed",
    [
        None,
        "reset_attempts",
        "retry",
        "retry_and_leave_the_claim",
        "cancel",
        "delete",
        "command_retry",
        "command_cancel",
    ],
)
def test_a_late_completion_is_accepted_unless_a_person_decided_otherwise(place: Place, deed: str | None) -> None:
    machine, frozen, held = a_lost_task(place)
    if deed is not None:
        getattr(machine, deed)(machine.model.tasks[0])
    machine.finish_late(frozen, held, Ending.WELL)
    machine.all_is_as_the_model_says()
    assert place.happened["finished late"] == (deed in (None, "reset_attempts"))
    machine.drain()


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_of_two_workers_that_seemed_to_vanish_under_a_task_the_second_alone_may_complete_it(place: Place) -> None:
    machine, first, held = a_lost_task(place)
    machine.retry(machine.model.tasks[0])
    second, held_again = lose(machine, machine.workers[1])
    assert place.happened["lost, its token kept"] == 2
    machine.finish_late(first, held, Ending.WELL)
    machine.all_is_as_the_model_says()
    assert place.happened["finished late"] == 0
    machine.finish_late(second, held_again, Ending.WELL)
    machine.all_is_as_the_model_says()
    assert place.happened["finished late"] == 1


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
@pytest.mark.parametrize("is_lost", [False, True], ids=["", "lost"])
def test_a_limit_that_is_known_only_after_the_import_is_written_while_the_task_is_ours(
    place: Place, is_lost: bool
) -> None:
    machine = driven(place)
    worker = machine.workers[0]
    machine.add(worker, [NewTask("tasks.plain", None, 3, 0)], False)
    machine.claim(worker, 1, [])
    machine.start(worker, worker.held[0], True)
    if is_lost:
        do_at_a_run(machine, worker, "lose", "[1]")
    machine.end_import_well(worker, worker.held[0])
    machine.all_is_as_the_model_says()
    assert place.happened["refused to limit" if is_lost else "limited"] == 1


DEEDS_AT_A_RUN = ("rerun", "command_cancel", "command_retry", "lose")
"""What may be done to a task while its worker runs it, or believes to."""


@pytest.mark.parametrize("modes", [MODES["each_its_own"]], ids=["each_its_own"])
def test_whatever_is_done_to_a_task_while_it_runs_it_ends_as_the_contract_says(place: Place) -> None:
    """Any one and any two of these, one after the other, and then each way in which its worker may end it."""
    deeds = [(), *((deed,) for deed in DEEDS_AT_A_RUN), *product(DEEDS_AT_A_RUN, repeat=2)]
    for number, (limit, done, ending) in enumerate(product((1, 3), deeds, Ending)):
        machine = driven(place)
        worker = machine.workers[number % 3]
        machine.add(worker, [KEYED._replace(max_attempts=limit, args="[1]")], False)
        machine.claim(worker, 1, [])
        machine.start(worker, worker.held[0], False)
        for place_of_it, deed in enumerate(done):
            do_at_a_run(machine, worker, deed, f"[{place_of_it + 2}]")
            machine.all_is_as_the_model_says()
            machine.renew(worker, worker.held[0])
        machine.finish(worker, worker.held[0], ending)
        machine.all_is_as_the_model_says()
        do_at_a_run(machine, worker, "rerun", "[9]")
        machine.all_is_as_the_model_says()
    assert set(place.happened) >= RARE_AT_A_RUN


@pytest.mark.parametrize("modes", MODES.values(), ids=MODES)
def test_a_task_that_is_moved_while_it_is_new_is_claimed_in_its_new_turn(place: Place) -> None:
    machine = driven(place)
    worker = machine.workers[0]
    machine.add(worker, [NewTask("tasks.plain", None, 3, 0)] * 3, False)
    machine.command_priority(machine.model.tasks[1], -1)
    machine.all_is_as_the_model_says()
    machine.claim(worker, 1, [])
    machine.all_is_as_the_model_says()
    assert place.happened["moved while it was new"] == 1
    assert worker.held[0].claimed.id == machine.model.tasks[1].id


KEYED = NewTask("tasks.plain", None, 3, 0, unique_key="a", rerun=True)


def do_at_a_run(machine: QueueMachine, worker: Worker, deed: str, args: str) -> None:
    if deed == "rerun":
        limit = next((task.max_attempts for task in machine.model.tasks), None)
        machine.add(worker, [KEYED._replace(max_attempts=limit, args=args)], False)
    elif deed == "lose":
        machine.time_comes(machine.tasks_ahead())
        machine.look_and_act(machine.workers[worker.number - 1], When.PAST)
    else:
        getattr(machine, deed)(machine.model.tasks[0])


def driven(place: Place) -> QueueMachine:
    """The machine driven by hand, as chance leads there seldom."""

    class Machine(QueueMachine):
        pass

    Machine.place = place
    return Machine()


def a_lost_task(place: Place) -> tuple[QueueMachine, Worker, Held]:
    """A task that may start once, and seems lost."""
    machine = driven(place)
    machine.add(machine.workers[0], [NewTask("tasks.once", None, 3, 0)], False)
    worker, held = lose(machine, machine.workers[2])
    assert place.happened["lost, its token kept"] == 1
    return machine, worker, held


def lose(machine: QueueMachine, worker: Worker) -> tuple[Worker, Held]:
    machine.claim(worker, 1, [])
    held = worker.held[-1]
    machine.start(worker, held, False)
    machine.fall_silent(worker, held)
    machine.look_and_act(machine.workers[0], When.PAST)
    machine.all_is_as_the_model_says()
    return worker, held


# ---- what the machine leaves out: where the package differs from the model


def a_started_task(place: Place, max_attempts: int | None) -> tuple[Store, ClaimedTask]:
    _, store = place.stores[0]
    store.producing.add(NewTask("tasks.once", None, 3, 0))
    (claimed,) = store.claims.claim(1, ()).tasks
    assert store.finishes.advance([], Start(claimed, max_attempts)) == ([], True)
    return store, claimed


@pytest.mark.parametrize("modes", list(MODES.values())[:3], ids=list(MODES)[:3])
def test_a_task_that_a_person_marked_done_under_its_worker_stays_as_it_is(place: Place) -> None:
    store, claimed = a_started_task(place, 10)
    place.rows.execute("UPDATE jobs_queue SET status = 2")
    before = place.rows.all()
    assert store.finishes.advance([Finish(claimed)], None) == ([Outcome.LOST], False)
    assert place.rows.all() == before
    assert place.rows.all("jobs_queue_done") == []


@pytest.mark.parametrize("modes", [MODES["delete"]], ids=["delete"])
def test_a_limit_that_became_known_after_a_look_is_not_overlooked_when_the_task_is_taken_back(place: Place) -> None:
    store, claimed = a_started_task(place, None)
    place.rows.execute(f"UPDATE jobs_queue SET due_at = {place.rows.after(-1)}")
    (lost,) = store.due.look().lost
    # Its worker was only frozen, and has imported the module: the callable may start once.
    assert store.leases.limit_attempts(claimed, 1)
    store.due.reclaim_lost(lost, SETTINGS_LIMIT, LOST_TEXT, 0.0)
    assert place.rows.row(claimed.id)["status"] != Status.ERROR
    assert store.finishes.advance([Finish(claimed)], None) == ([Outcome.AS_ASKED], False)


@pytest.mark.parametrize("modes", [MODES["delete"]], ids=["delete"])
def test_a_running_task_whose_attempts_a_person_set_to_0_runs_once_more(place: Place) -> None:
    store, claimed = a_started_task(place, 10)
    place.rows.execute("UPDATE jobs_queue SET attempts = 0")
    assert store.finishes.advance([Finish(claimed, BAD_TEXT, uncount=True)], None) == ([Outcome.RUN_AGAIN], False)
    row = place.rows.row(claimed.id)
    assert (row["status"], row["attempts"], row["error_text"]) == (Status.NEW, 0, None)
