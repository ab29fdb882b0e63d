"""The queue as the contract has it, in plain Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.new_task import NewTask
from taskserver.model.task import ClaimedTask, Due, LostTask, Status
from taskserver.worker.maintenance import LOST_TEXT

LATER_SECONDS = 3600.0
GROUPS = (3, 5, 7)
SETTINGS_LIMIT = 3
LIMITS = {"tasks.once": 1, "tasks.twice": 2, "tasks.plain": None}
"""The callables, and how often each may start by its own @task."""
ERROR_TEXT = "ValueError: no\nthe end of a traceback"
CANCELLED_TEXT = "cancelled"
OVER = (Status.DONE, Status.FATAL, Status.CANCELLED)
KEYS = ("a", "b", "c")


class When(Enum):
    """What a row's due_at says, against the database's clock."""

    NEVER = "never"
    PAST = "past"
    AHEAD = "ahead"


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
    is_finished: bool = False
    """Whether finished_at is set."""
    may_complete_late: bool = False
    """Given up as lost though it may start only once, and no person changed it since."""
    starts: int = 0
    """Since a person or its producer last reset its attempts."""
    ran: str | None = None
    """The arguments of its last start."""

    def __repr__(self) -> str:
        return f"task {self.number}"

    def columns(self) -> tuple[Any, ...]:
        """As `LOOK` reads them."""
        state = (self.status, self.attempts, self.max_attempts, self.when.value, self.claim, self.is_started)
        said = (self.new.task, self.new.args, self.new.group_id, self.new.priority, self.new.unique_key)
        return (self.id, *said, *state, self.is_finished, self.error_text)

    def is_running(self) -> bool:
        return self.status == Status.IN_PROGRESS and self.is_started

    def was_changed(self) -> bool:
        """Whether it was changed while it ran: a start counts at least one attempt."""
        return self.is_running() and self.attempts == 0

    def should_rerun(self) -> bool:
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
        if status == Status.CANCELLED:
            self.new = self.new._replace(unique_key=None)

    def run_again(self) -> None:
        """It was changed while it ran, and that run has ended."""
        self.become(Status.NEW)
        self.error_text = None


class Model:
    """The queue as the contract has it. Every verb gives what the store's verb must answer."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.archive: list[tuple[Any, ...]] = []
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
            self.insert(task_id, new, status=status, when=when, max_attempts=new.max_attempts)
            return "added"
        assert task.id == task_id
        if not new.rerun:
            return "key stood"
        return self._rerun(task, new)

    @staticmethod
    def _rerun(task: Task, new: NewTask) -> str:
        task.new, task.max_attempts = new, new.max_attempts
        task.attempts = task.starts = 0
        task.error_text, task.is_finished, task.may_complete_late = None, False, False
        status, when = ready_of(new)
        if task.is_running():
            return "rerun while it ran"
        if (task.status, task.when) == (Status.WAITING, When.NEVER) and when is When.NEVER:
            task.claim = None  # for other tasks it goes on waiting
        else:
            task.become(status, when)
        return "rerun"

    def with_key(self, key: str | None) -> Task | None:
        return next((task for task in self.tasks if key is not None and task.new.unique_key == key), None)

    def find(self, task_id: int) -> Task | None:
        return next((task for task in self.tasks if task.id == task_id), None)

    # ---- what is due

    def look_for_due(self) -> Due:
        expired = [task for task in self.tasks if task.status == Status.IN_PROGRESS and task.when is When.PAST]
        return Due(
            to_wake=[task.id for task in self.tasks if self._should_wake(task)],
            unstarted=[task.id for task in expired if not task.is_started],
            lost=[self._as_lost(task) for task in expired if task.is_started],
            schedules=[],
            linked=[],
        )

    @staticmethod
    def _as_lost(task: Task) -> LostTask:
        said = (task.attempts, task.max_attempts, task.new.task, task.new.group_id)
        return LostTask(task.id, *said, task.is_cancelled())

    @staticmethod
    def _should_wake(task: Task) -> bool:
        return task.status in (Status.WAITING, Status.ERROR) and task.when is When.PAST

    def wake(self, ids: Iterable[int]) -> int:
        woken = [task for task in map(self.find, ids) if task and self._should_wake(task)]
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
        if task.should_rerun():
            task.run_again()
        elif task.is_cancelled():
            task.end(Status.CANCELLED, CANCELLED_TEXT)
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
        new = [task for task in self.tasks if task.status == Status.NEW and (not groups or task.new.group_id in groups)]
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
        task.max_attempts = task.max_attempts or start.max_attempts
        if task.error_text == CANCELLED_TEXT:  # of a time before: a person had it run again
            task.error_text = None
        return True

    def held(self, claimed: ClaimedTask) -> Task | None:
        """The task, where the claim still stands."""
        task = self.find(claimed.id)
        return task if task and task.is_held_by(claimed.claim) else None

    def renew(self, claimed: ClaimedTask) -> bool:
        if task := self.held(claimed):
            task.when = When.AHEAD
        return task is not None

    # ---- finish, release

    def finish(self, finish: Finish, mode: str) -> Outcome:
        task = self.held(finish.task)
        if task is None:
            return Outcome.LOST
        if task.should_rerun():
            task.run_again()
            return Outcome.RUN_AGAIN
        if task.is_cancelled() and (finish.error_text is not None or task.was_changed()):
            task.end(Status.CANCELLED, CANCELLED_TEXT)
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
        self._complete(task, mode)
        return True

    def _fail(self, task: Task, finish: Finish, error_text: str) -> None:
        if finish.retry_seconds is None:
            task.end(Status.CANCELLED if error_text == CANCELLED_TEXT else Status.FATAL, error_text)
        else:
            task.become(Status.ERROR, when_after(finish.retry_seconds))
            task.error_text = error_text

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
        if task.status not in (Status.ERROR, Status.FATAL, Status.CANCELLED):
            return 0
        task.become(Status.NEW)
        task.attempts = task.starts = 0
        task.is_finished = False
        task.error_text = None if task.error_text == CANCELLED_TEXT else task.error_text
        return 1

    def cancel(self, task: Task) -> int:
        is_lost = task.may_complete_late
        if task.is_cancelled() or (task.status in OVER and not is_lost):
            return 0
        if task.is_running():
            task.error_text = CANCELLED_TEXT
        else:  # if it is lost, its worker may no longer complete it
            task.end(Status.CANCELLED, task.error_text if is_lost else CANCELLED_TEXT)
        return 1


def limit_of(*limits: int | None) -> int:
    """How often a task may start: the first that says it, else the settings."""
    return next((limit for limit in limits if limit is not None), SETTINGS_LIMIT)


def ready_of(new: NewTask) -> tuple[Status, When]:
    """The status of a task that was just added, and what its due_at says."""
    return (Status.NEW, When.NEVER) if new.delay_seconds is None else (Status.WAITING, When.AHEAD)


def when_after(seconds: float) -> When:
    return When.AHEAD if seconds else When.PAST
