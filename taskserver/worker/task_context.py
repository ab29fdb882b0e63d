"""The face of a run towards a task's own code: current_task(), progress(), complete(), connection().

They find the task by a context variable, which is set for the length of its call. Outside of a task the first two do
nothing, so that a function can be called by hand, or in a test, as it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from logging import getLogger
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..errors import DatabaseError, LeaseLost, TaskServerError
from ..interrupts.stop import TaskInterrupted
from ..model.results import write_progress
from ..model.task import CANCELLED
from ..stores import Store
from .watched_call import OwnCompletion, WatchedCall

if TYPE_CHECKING:
    from ..stores.records import StoredTask

LOG = getLogger("taskserver")

STORE_EVERY_SECONDS = 1.0
ASK_AGAIN_SECONDS = 5.0
"""Use a database again after so long that did not answer: a task must not wait for it each time."""
ANSWER_SECONDS = 3.0
"""Wait so long for an answer: longer than the server itself waits for a lock."""
MAX_LAST_WAIT_SECONDS = 4.5
"""Wait so long at the call's end for the row's holder, and for the heartbeat, which may be storing progress."""
LOOK_SHARE = 0.2
LOOK_SECONDS = 0.1
"""Looks at the row take this share of a task's time at most, beside so many seconds: a loop that asks at each of its
steps must not spend all of its time on them."""
LOST_LEASE = "its lease was lost: another worker may have taken the task over, or a person retried it"


class CurrentTask(NamedTuple):
    """The running task as its code may know it; where one call is for several tasks, the first of them."""

    id: int
    attempt: int
    """The number of this attempt, from 1 on."""
    limit: int
    """How often the task may start."""
    time_left: float | None
    """Seconds until it is interrupted; None without a timeout."""
    ids: tuple[int, ...]
    """The ids of all tasks of this call."""


class TaskLabel(NamedTuple):
    """The running task as lines of a log name it."""

    id: int
    task: str
    attempt: int
    others: int = 0
    """Where one call is for several tasks: how many there are beside the first of them, which this is."""

    def __str__(self) -> str:
        others = f" and {self.others} others" if self.others else ""
        return f"task {self.id} {self.task}{others}, attempt {self.attempt}"


def current_task() -> CurrentTask | None:
    """The task whose code runs here; None outside of one.

    Interrupts a task that was cancelled, or whose lease was lost.
    """
    context = _context_of_call()
    return None if context is None else context.current()


def progress(done: float, total: float | None = None, text: str | None = None) -> None:
    """Tell how far the task has come whose code runs here; outside of one this does nothing.

    Stored at most once a second, the latest one last. `text` is cut after 200 characters. Interrupts a task that was
    cancelled, or whose lease was lost. Raises SettingError where `done` or `total` is no number.
    """
    written = write_progress(done, total, text)
    context = _context_of_call()
    if context is not None:
        context.tell_progress(written)


def complete(connection: object, result: object = None) -> None:
    """Complete the task whose code runs here, in the open transaction of a connection to the queue's database.

    The connection is any that `add_task(connection=…)` takes. The completion counts once you commit it there, with
    whatever else you wrote; where that transaction is rolled back, or never committed, this attempt has failed.
    `result` is kept as a return value would be, and goes to the next stage of a pipeline; what the function itself
    returns does not count then.
    Raises LeaseLost where the task is not this worker's any more: the transaction must be rolled back. Raises
    InvalidTask for a connection that cannot be used, DatabaseError, and TaskServerError where no task runs here that
    can be completed so, or where it was completed before.
    """
    context = _context_of_call()
    if context is None:
        raise TaskServerError("taskserver.complete() is for tasks, while they run, and none runs here")
    context.completion.complete(connection, result)


def connection() -> Any:
    """The connection of the transaction that completes the task whose code runs here.

    Rows that are written there and the task's completion are committed together. It is the driver's connection:
    PyMySQL's, or sqlite3's. Raises TaskServerError outside of a task with @task(transactional=True).
    """
    context = _context_of_call()
    found = None if context is None else context.connection
    if found is None:
        raise TaskServerError("taskserver.connection() is for tasks with @task(transactional=True), while they run")
    return found


class CallContext(Protocol):
    """What stands between the code of one call and its tasks."""

    @property
    def running(self) -> TaskLabel: ...
    @property
    def is_over(self) -> bool: ...
    def current(self) -> CurrentTask: ...
    @property
    def connection(self) -> Any: ...
    @property
    def completion(self) -> OwnCompletion: ...
    def tell_progress(self, progress: str) -> None: ...
    def row(self) -> StoredTask | None: ...


def current_row() -> StoredTask:
    """The row of the task whose code runs here, of a batch that of its first. Raises LeaseLost, DatabaseError."""
    context = _context_of_call()
    row = None if context is None else context.row()
    if row is None:
        raise LeaseLost("the task that runs here has no row any more")
    return row


class TaskContext:
    """Stands between the code of one call and the rows of its tasks: asks the rows, and stores progress in them."""

    _looked_seconds = 0.0
    _ask_again_at = 0.0
    """Until then the database is left alone: it did not answer, or others held the row."""
    _unstored: str | None = None
    """The latest progress, unless it is stored."""
    _store_again_at = 0.0
    _is_over = False

    def __init__(self, call: WatchedCall, store: Store, wake: Callable[[], object]) -> None:
        """`wake` makes the heartbeat look whether it has something to store."""
        self._call = call
        self._store = store
        self._wake = wake
        self._pid = os.getpid()
        self._began_at = time.monotonic()
        self._storing = threading.Lock()

    # ---- for the task's code

    @property
    def running(self) -> TaskLabel:
        """Asks no row, and so can be had for each line of a log."""
        first, *others = self._call.tasks
        return TaskLabel(first.id, first.task, first.attempts + 1, len(others))

    @property
    def is_over(self) -> bool:
        """Whether the call has ended: a thread that the task left behind may still ask."""
        return self._is_over

    def current(self) -> CurrentTask:
        """Raises TaskInterrupted where the task was cancelled or lost."""
        self._check()
        first, limit, ends_at = self._call.tasks[0], self._call.plan.max_attempts, self._call.ends_at
        time_left = None if ends_at == float("inf") else max(ends_at - time.monotonic(), 0.0)
        ids = tuple([task.id for task in self._call.tasks])
        return CurrentTask(first.id, first.attempts + 1, limit, time_left, ids)

    @property
    def connection(self) -> Any:
        """The driver's connection; None outside of a transaction. Raises TaskServerError in a forked process."""
        found = self._call.plan.connection
        if found is not None and os.getpid() != self._pid:  # whose end, or close(), would break it for the task
            raise TaskServerError("taskserver.connection() is the task's own: a process that it forked opens another")
        return found

    @property
    def completion(self) -> OwnCompletion:
        """The task's completion by its own code. Raises TaskServerError where that cannot complete it."""
        completion = self._call.plan.completion
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

    def tell_progress(self, progress: str) -> None:
        """Store this progress now, or have the heartbeat do it. Raises TaskInterrupted as `current` does."""
        self._check()
        if self._call.plan.holds_lock or self._has_completion:
            return
        is_planned = self._unstored is not None
        self._unstored = progress
        if time.monotonic() >= self.store_at:
            self.store()
            is_planned = False
        if not is_planned and self._unstored is not None:
            self._wake()

    @property
    def _has_completion(self) -> bool:
        """Whether the task's code writes to its row itself, so that there is nothing to look for and to store."""
        completion = self._call.plan.completion
        return completion is not None and completion.is_asked_for

    def _check(self) -> None:
        if self._has_completion:
            return
        now = time.monotonic()
        may_look = self._looked_seconds < LOOK_SECONDS + LOOK_SHARE * (now - self._began_at)
        if may_look and now >= self._ask_again_at and not self._call.is_cancelled:
            self._look()
        if self._is_over:  # meanwhile, so that its row may be anybody's
            return
        if self._call.is_cancelled:
            raise TaskInterrupted(CANCELLED)
        if self._call.is_lost:
            raise TaskInterrupted(LOST_LEASE)

    def _look(self) -> None:
        """Ask the rows whether the call is cancelled or lost."""
        began_at = time.monotonic()
        try:
            with self._store.database.tried_once(ANSWER_SECONDS):
                cancelled_by_id = self._store.finishes.claimed_still(self._call.tasks)
        except DatabaseError as error:
            LOG.debug("%s cannot ask for its row: %s", self._call, error)
            self._ask_again_at = time.monotonic() + ASK_AGAIN_SECONDS
            return
        self._call.is_lost = not cancelled_by_id
        if any(cancelled_by_id.values()) and self._call.plan.heeds_cancel:
            LOG.info("%s: cancelled, and hears of it", self._call)
            self._call.cancel()
            self._wake()  # a task that swallows the interrupt is interrupted again
        self._looked_seconds += time.monotonic() - began_at

    def row(self) -> StoredTask | None:
        """The first task's row; None where it is gone. Raises DatabaseError."""
        with self._store.database.tried_once(ANSWER_SECONDS):
            return self._store.views.show(self._call.tasks[0].id)

    # ---- for whoever stores the progress

    @property
    def store_at(self) -> float:
        """When progress is to be stored, by time.monotonic; infinity where there is none."""
        return float("inf") if self._unstored is None else max(self._store_again_at, self._ask_again_at)

    def store(self) -> None:
        """Store the latest progress, unless another thread is doing that."""
        with self._alone(0.0) as is_alone:
            if is_alone:
                with self._store.database.tried_once(ANSWER_SECONDS):
                    self._write(0.0)

    @contextmanager
    def _alone(self, wait_seconds: float) -> Iterator[bool]:
        """In the `with`, no other thread stores progress, if it got there within so many seconds."""
        is_alone = self._storing.acquire(timeout=wait_seconds)
        try:
            yield is_alone
        finally:
            if is_alone:
                self._storing.release()

    def _write(self, conflict_seconds: float) -> None:
        progress, self._unstored = self._unstored, None
        if progress is None:
            return
        try:
            self._store.finishes.write_progress(self._call.tasks, progress, conflict_seconds)
            self._store_again_at = time.monotonic() + STORE_EVERY_SECONDS
        except DatabaseError as error:
            LOG.debug("%s cannot store its progress: %s", self._call, error)
            self._unstored = self._unstored or progress
            self._ask_again_at = time.monotonic() + ASK_AGAIN_SECONDS

    def end(self) -> None:
        """The call has ended: store the latest progress now."""
        self._is_over = True
        if self._unstored is None and not self._storing.locked():
            return
        with self._alone(MAX_LAST_WAIT_SECONDS):
            # By the run's own thread, which waits for a holder of the row as it does with the end of the task next.
            self._write(MAX_LAST_WAIT_SECONDS)


_current: ContextVar[CallContext | None] = ContextVar("taskserver_context", default=None)


_latest: tuple[CallContext, frozenset[int | None]] | None = None
"""The context of the call that began last, and the threads that were there before, if there were any of tasks."""
OUR_THREADS = 2


def _context_of_call() -> CallContext | None:
    """The context of the call that runs here; None outside of one."""
    context = _current.get()
    return None if context is None or context.is_over else context


def running_task() -> TaskLabel | None:
    """The task whose code runs here, if any; for a program in which one task runs at a time.

    A thread has no context variables of the one that started it, before Python 3.14: one that began after the task did
    counts as the task's.
    """
    context = _context_of_call()
    if context is None and _latest is not None:
        latest, threads_before = _latest
        is_threads_own = threading.current_thread() is not threading.main_thread()
        if is_threads_own and not latest.is_over and threading.get_ident() not in threads_before:
            context = latest
    return None if context is None else context.running


# Two functions, as a context manager would cost each task more than both.


def enter(context: CallContext) -> Token[CallContext | None]:
    """From here on the code of the context's tasks runs, until `leave` gets what this returns."""
    global _latest
    has_others = threading.active_count() > OUR_THREADS
    _latest = context, frozenset(thread.ident for thread in threading.enumerate()) if has_others else frozenset()
    return _current.set(context)


def leave(token: Token[CallContext | None]) -> None:
    """The code of these tasks has ended."""
    _current.reset(token)
