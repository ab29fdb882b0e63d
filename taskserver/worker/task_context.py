"""What a task's own code can call: current_task(), progress(), complete(), connection().

They find the task by a context variable that is set during its call. Outside of a task the first two do nothing, so
that functions can be called by hand or in tests.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextvars import ContextVar, Token
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import DatabaseError, LeaseLost, TaskServerError
from ..interrupts.alarm import INFINITY, Alarm, now
from ..model.results import write_progress
from ..model.task import ClaimedTask
from ..stores import Store

if TYPE_CHECKING:
    from ..stores.records import TaskRow

LOG = getLogger("taskserver")

LOOK_AT_CALL_SECONDS = 1.0
"""How often progress is stored at most, and how often the heartbeat looks for a cancel while a task's code asks."""
ANSWER_TO_TASK_SECONDS = 3.0
"""Timeout of an answer: longer than the server waits for a lock."""
MAX_LAST_WAIT_SECONDS = 4.5
"""How long the last progress, at the end of a call, waits for a locked row."""


class OwnCompletion(Protocol):
    """The completion of a task by its own code: see completion.py."""

    is_asked_for: bool
    """Whether the task's code called complete()."""

    def complete(self, connection: object, value: object) -> None:
        """Complete the task with this result in the transaction of a connection."""


class CallPlan(NamedTuple):
    """What is known of a call before it begins."""

    tasks: Sequence[ClaimedTask]
    """The tasks whose code is called; several for a batch, none for a hook."""
    timeout_seconds: float
    """0: no limit."""
    max_attempts: int
    """How often the first of the tasks may start."""
    completion: OwnCompletion | None = None
    """None if the task's own code cannot complete it."""
    is_cancellable: bool = True
    """Whether a cancel of one of its tasks interrupts the call."""
    connection: Any = None
    """The driver's connection with the task's own transaction; None outside of one."""
    holds_lock: bool = False
    """Whether that transaction blocks all other writers: nobody can reclaim the task then, or renew its lease."""
    name: str = ""
    """Its name in messages if it is not the call of a task."""


class CurrentTask(NamedTuple):
    """The running task, for its own code; in a batch the first one."""

    id: int
    attempt: int
    """The number of this attempt, starting with 1."""
    limit: int
    """How often the task may start."""
    time_left: float | None
    """Seconds until it is interrupted; None without a timeout."""
    ids: tuple[int, ...]
    """Of all tasks of this call."""


class TaskLabel(NamedTuple):
    """The running task, for lines of a log."""

    id: int
    task: str
    attempt: int
    others: int = 0
    """In a batch, how many tasks there are besides this first one."""

    def __str__(self) -> str:
        others = f" and {self.others} others" if self.others else ""
        return f"task {self.id} {self.task}{others}, attempt {self.attempt}"


def current_task() -> CurrentTask | None:
    """The task whose code runs here; None outside of one.

    Interrupts a task that was cancelled, or whose lease was lost. It does not query the database.
    """
    context = _context_of_call()
    return None if context is None else context.current()


def progress(done: float, total: float | None = None, text: str | None = None) -> None:
    """Report the progress of the task whose code runs here; outside of one this does nothing.

    It is stored within two seconds, at most once a second. `text` is cut after 200 characters. Interrupts a task that
    was cancelled, or whose lease was lost. Raises SettingError if `done` or `total` is not a number.
    """
    written = write_progress(done, total, text)
    context = _context_of_call()
    if context is not None:
        context.report_progress(written)


def complete(connection: object, result: object = None) -> None:
    """Complete the task whose code runs here, in the open transaction of a connection to the queue's database.

    The connection is any that `add_task(connection=…)` takes. The task is complete when you commit there, with your own
    rows. If you roll back, or never commit, this attempt fails. `result` is used instead of the return value: it is
    kept, and goes to the next stage of a pipeline.
    Raises LeaseLost if this worker has lost the task: then roll back. Raises InvalidTask for an unusable connection,
    DatabaseError, and TaskServerError if no such task runs here, or if it was completed before.
    """
    context = _context_of_call()
    if context is None:
        raise TaskServerError("taskserver.complete() is for tasks, while they run, and none runs here")
    context.completion.complete(connection, result)


def connection() -> Any:
    """The connection of the transaction that completes the task whose code runs here.

    Rows that you write there and the task's completion are committed together. It is the driver's connection, such as
    PyMySQL's or sqlite3's. Raises TaskServerError outside of a task with @task(transactional=True).
    """
    context = _context_of_call()
    found = None if context is None else context.connection
    if found is None:
        raise TaskServerError("taskserver.connection() is for tasks with @task(transactional=True), while they run")
    return found


class CallContext(Protocol):
    """What the code of one call sees of its run."""

    @property
    def running(self) -> TaskLabel: ...
    @property
    def is_over(self) -> bool: ...
    def current(self) -> CurrentTask: ...
    @property
    def connection(self) -> Any: ...
    @property
    def completion(self) -> OwnCompletion: ...
    def report_progress(self, progress: str) -> None: ...
    def row(self) -> TaskRow | None: ...


def current_row() -> TaskRow:
    """The row of the task whose code runs here; in a batch, of the first one. Raises LeaseLost, DatabaseError."""
    context = _context_of_call()
    row = None if context is None else context.row()
    if row is None:
        raise LeaseLost("the task that runs here has no row any more")
    return row


class TaskContext:
    """One call, between its code and the heartbeat: the code reports and asks, the heartbeat stores and looks."""

    why = ""
    """Why the heartbeat interrupts it; empty if it does not."""
    progress: str | None = None
    """The latest progress, if it is not stored yet."""
    is_asking = False
    """Whether the code has asked since the heartbeat last looked for a cancel."""
    is_over = False
    """Whether the call has ended: a thread that the task left may still ask."""

    def __init__(self, plan: CallPlan, alarm: Alarm, store: Store) -> None:
        self.plan = plan
        self.tasks = plan.tasks
        self.number = alarm.number + 1
        self.began_at = now()
        """All times here are by the alarm's clock."""
        self.ends_at = self.began_at + plan.timeout_seconds if alarm.rings and plan.timeout_seconds else INFINITY
        is_fixed = plan.holds_lock or not plan.tasks
        self.looked_at = INFINITY if is_fixed else self.began_at
        self.renew_at = self.looked_at + store.lease_seconds / 3
        self.give_back_at = INFINITY if plan.holds_lock else self.began_at + store.lease_seconds / 3
        self.store_at = self.began_at + LOOK_AT_CALL_SECONDS
        self._alarm = alarm
        self._store = store
        self._storing = threading.Lock()
        self._pid = os.getpid()

    def __str__(self) -> str:
        return self.plan.name or str(self.running)

    # ---- for the task's code

    @property
    def running(self) -> TaskLabel:
        """Cheap enough for each line of a log, as it reads no row."""
        first, *others = self.tasks
        return TaskLabel(first.id, first.task, first.attempts + 1, len(others))

    def current(self) -> CurrentTask:
        """Raises TaskInterrupted if the task was cancelled or lost."""
        self._ask()
        first = self.tasks[0]
        time_left = None if self.ends_at == INFINITY else max(self.ends_at - now(), 0.0)
        ids = tuple([task.id for task in self.tasks])
        return CurrentTask(first.id, first.attempts + 1, self.plan.max_attempts, time_left, ids)

    def report_progress(self, progress: str) -> None:
        """Let the heartbeat store this progress. Raises TaskInterrupted like `current`."""
        self._ask()
        if not self.plan.holds_lock and not self.has_completion:
            self.progress = progress

    def _ask(self) -> None:
        """Raise TaskInterrupted if the heartbeat has found a reason; else make it look within a second."""
        if self.why and not self.is_over and not self.has_completion:
            self._alarm.interrupt_here(self.why)
        if now() >= self.began_at + LOOK_AT_CALL_SECONDS:  # most tasks ask at their begin, and end soon
            self.is_asking = True

    @property
    def has_completion(self) -> bool:
        """Whether the task's code writes to its row itself: then there is nothing to look for or to store."""
        return self.plan.completion is not None and self.plan.completion.is_asked_for

    @property
    def connection(self) -> Any:
        """The driver's connection; None outside of a transaction. Raises TaskServerError in a forked process."""
        found = self.plan.connection
        if found is not None and os.getpid() != self._pid:  # its exit or close() would break it for the task
            raise TaskServerError("taskserver.connection() is the task's own: a process that it forked opens another")
        return found

    @property
    def completion(self) -> OwnCompletion:
        """Raises TaskServerError if the task's own code cannot complete it."""
        completion = self.plan.completion
        if self.connection is not None:
            raise TaskServerError(
                "taskserver.complete() is not for a transactional task, which is completed as it returns"
            )
        if completion is None or os.getpid() != self._pid:
            raise TaskServerError(
                "taskserver.complete() is for the code of one task, in the worker's own process: not for a batch, an "
                "import, on_fatal or a forked process"
            )
        return completion

    def row(self) -> TaskRow | None:
        """The first task's row; None if it is gone. Raises DatabaseError."""
        with self._store.database.without_retries(ANSWER_TO_TASK_SECONDS):
            return self._store.views.show(self.tasks[0].id)

    # ---- for the run

    def store_progress(self, conflict_seconds: float) -> None:
        """Store the latest progress, if there is one. Raises DatabaseError."""
        # One at a time: the heartbeat must not write an old progress after the call's thread wrote the last one.
        with self._storing:
            progress = self.progress
            if progress is not None:
                self._store.finishes.write_progress(self.tasks, progress, conflict_seconds)
                if self.progress is progress:
                    self.progress = None

    def end(self) -> None:
        """End the call: store its last progress, and wait for a locked row."""
        self.is_over = True
        if self.progress is not None and not self.has_completion:
            try:
                self.store_progress(MAX_LAST_WAIT_SECONDS)
            except DatabaseError as error:
                LOG.debug("%s cannot store its progress: %s", self, error)


_current: ContextVar[CallContext | None] = ContextVar("taskserver_context", default=None)


_latest: tuple[CallContext, frozenset[int | None]] | None = None
"""The context of the latest call, and the threads that existed before it, if any were left by tasks."""
OUR_THREADS = 2


def _context_of_call() -> CallContext | None:
    context = _current.get()
    return None if context is None or context.is_over else context


def running_task() -> TaskLabel | None:
    """The task whose code runs here, if any; for a program in which one task runs at a time.

    Before Python 3.14 a thread does not inherit context variables: a thread that began after the task counts as its.
    """
    context = _context_of_call()
    if context is None and _latest is not None:
        latest, threads_before = _latest
        is_threads_own = threading.current_thread() is not threading.main_thread()
        if is_threads_own and not latest.is_over and threading.get_ident() not in threads_before:
            context = latest
    return None if context is None else context.running


# Two functions, as a context manager would be slower.


def enter(context: CallContext) -> Token[CallContext | None]:
    """Set the context of the code that runs from here on. Pass what this returns to `leave`."""
    global _latest
    has_others = threading.active_count() > OUR_THREADS
    _latest = context, frozenset(thread.ident for thread in threading.enumerate()) if has_others else frozenset()
    return _current.set(context)


def leave(token: Token[CallContext | None]) -> None:
    """Reset the context: the code has ended."""
    _current.reset(token)
