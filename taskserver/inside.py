"""What a task's own code may ask for and tell while it runs: current_task(), progress(), connection().

They know the task by a context variable, which is set for the length of its call: outside of one the first two do
nothing, so that a function can be called by hand, or in a test, as it is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from logging import getLogger
from typing import Any, NamedTuple, TypeVar

from .errors import DatabaseError, TaskServerError
from .lifecycle import CANCELLED
from .reports import write_progress
from .running import Running
from .stopping import TaskInterrupted, uninterrupted
from .stores import Store
from .stores.database import Session

LOG = getLogger("taskserver")

T = TypeVar("T")

STORE_EVERY_SECONDS = 1.0
AGAIN_SECONDS = 5.0
"""After so long what the database did not take, or tell, is tried again: a task must not wait for it each time."""
WAIT_SECONDS = 1.0
"""For the connection, where the heartbeat uses it."""
ANSWER_SECONDS = 3.0
"""For an answer: longer than the server itself waits for a lock."""
LAST_WAIT_SECONDS = 4.5
"""At the end, for the heartbeat that is still storing what was told before, and for whoever holds the row."""
LOOK_SHARE = 0.2
LOOK_SECONDS = 0.1
"""Looks take so much of a task's time at most, beside so many seconds: a loop that calls with each of its steps must
not spend all of its time on them."""
LOST = "its lease was lost: another worker may have taken the task over, or a person retried it"


class CurrentTask(NamedTuple):
    """What a task may know of itself; where one call is for several, of the first of them."""

    id: int
    attempt: int
    """This one, counted from 1."""
    limit: int
    """So often it may start."""
    time_left: float | None
    """Seconds until it is interrupted; None without a timeout."""
    ids: tuple[int, ...]
    """Of all tasks of this call."""


def current_task() -> CurrentTask | None:
    """The task whose code runs here; None outside of one.

    One that was cancelled, or whose lease was lost, is interrupted by it.
    """
    contact = _here()
    return None if contact is None else contact.current()


def progress(done: float, total: float | None = None, text: str | None = None) -> None:
    """Tell how far the task has come whose code runs here; outside of one this does nothing.

    Stored at most once a second, the latest one last. `text` is cut after 200 characters. One that was cancelled, or
    whose lease was lost, is interrupted by it. Raises SettingError where the numbers are none.
    """
    told = write_progress(done, total, text)
    contact = _here()
    if contact is not None:
        contact.tell(told)


def connection() -> Any:
    """The connection of the transaction that completes the task whose code runs here: what is written there and its
    completion are committed together.

    The driver's: PyMySQL's, or sqlite3's. Raises TaskServerError outside of a task with @task(transactional=True).
    """
    contact = _here()
    found = None if contact is None else contact.connection
    if found is None:
        raise TaskServerError("taskserver.connection() is for tasks with @task(transactional=True), while they run")
    return found


class Contact:
    """One call's way to the rows of its tasks, in both directions."""

    def __init__(self, running: Running, store: Store, session: Session, wake: Callable[[], object]) -> None:
        """`session` is that of the run's thread; `wake` has the heartbeat look when it has to store something."""
        self._running = running
        self._store = store
        self._session = session
        self._wake = wake
        self._pid = os.getpid()
        self._began_at = time.monotonic()
        self._looked_seconds = 0.0
        self._ask_again_at = 0.0
        """Before that the database did not answer, or others held the row."""
        self._untold: str | None = None
        self._store_again_at = 0.0
        self._is_over = False
        self._storing = threading.Lock()

    # ---- for the task's code

    @property
    def is_over(self) -> bool:
        """Whether the call has ended: a thread that the task left behind may still ask."""
        return self._is_over

    def current(self) -> CurrentTask:
        self._hear()
        first, limit, ends_at = self._running.tasks[0], self._running.watch.limit, self._running.ends_at
        time_left = None if ends_at == float("inf") else max(ends_at - time.monotonic(), 0.0)
        ids = tuple([task.id for task in self._running.tasks])
        return CurrentTask(first.id, first.attempts + 1, limit, time_left, ids)

    @property
    def connection(self) -> Any:
        """None outside of a transaction."""
        return self._running.watch.connection

    def tell(self, told: str) -> None:
        self._hear()
        if self._running.watch.holds_lock:
            return
        is_planned = self._untold is not None
        self._untold = told
        if time.monotonic() >= self.store_at:
            self.store()
            is_planned = False
        if not is_planned and self._untold is not None:
            self._wake()

    def _hear(self) -> None:
        """Raises TaskInterrupted where the task was cancelled or lost."""
        now = time.monotonic()
        may_look = self._looked_seconds < LOOK_SECONDS + LOOK_SHARE * (now - self._began_at)
        if may_look and now >= self._ask_again_at and not self._running.is_cancelled:
            self._look()
        if self._is_over:  # meanwhile, so that its row may be anybody's
            return
        if self._running.is_cancelled:
            raise TaskInterrupted(CANCELLED)
        if self._running.is_lost:
            raise TaskInterrupted(LOST)

    @uninterrupted
    def _look(self) -> None:
        began_at = time.monotonic()
        try:
            with self._borrowed():
                ours = self._store.ours(self._running.tasks)
        except DatabaseError as error:
            LOG.debug("%s cannot ask for its row: %s", self._running, error)
            self._ask_again_at = time.monotonic() + AGAIN_SECONDS
            return
        self._running.is_lost = not ours
        if any(ours.values()) and self._running.watch.heeds_cancel:
            LOG.info("%s: cancelled, and hears of it", self._running)
            self._running.cancel()
            self._wake()  # one that swallows it is interrupted again
        self._looked_seconds += time.monotonic() - began_at

    # ---- for whoever stores it

    @property
    def store_at(self) -> float:
        """When something is to be stored, by time.monotonic."""
        return float("inf") if self._untold is None else max(self._store_again_at, self._ask_again_at)

    @uninterrupted
    def store(self) -> None:
        """Store what was told last, unless that is being done."""
        with self._alone(0.0) as is_alone:
            if is_alone:
                with self._borrowed():
                    self._write(0.0)

    @contextmanager
    def _alone(self, wait_seconds: float) -> Iterator[bool]:
        """In the `with`, nobody else stores anything, if that came about in so many seconds."""
        is_alone = self._storing.acquire(timeout=wait_seconds)
        try:
            yield is_alone
        finally:
            if is_alone:
                self._storing.release()

    def _write(self, conflict_seconds: float) -> None:
        told, self._untold = self._untold, None
        if told is None:
            return
        try:
            self._store.tell(self._running.tasks, told, conflict_seconds)
            self._store_again_at = time.monotonic() + STORE_EVERY_SECONDS
        except DatabaseError as error:
            LOG.debug("%s cannot store its progress: %s", self._running, error)
            self._untold = self._untold or told
            self._ask_again_at = time.monotonic() + AGAIN_SECONDS

    def end(self) -> None:
        """The call has ended: what was told last is stored now."""
        self._is_over = True
        if self._untold is None and not self._storing.locked():
            return
        with self._alone(LAST_WAIT_SECONDS):
            # By the run's own thread, which waits for whoever holds the row as it does with the end of the task next.
            self._write(LAST_WAIT_SECONDS)

    @contextmanager
    def _borrowed(self) -> Iterator[None]:
        # A process that the task forked has a connection of its own.
        is_here = os.getpid() == self._pid
        session = self._store.borrowed(self._session, WAIT_SECONDS) if is_here else nullcontext()
        with session, self._store.tried_once(ANSWER_SECONDS):
            yield


_contact: ContextVar[Contact | None] = ContextVar("taskserver_contact", default=None)


def _here() -> Contact | None:
    contact = _contact.get()
    return None if contact is None or contact.is_over else contact


@contextmanager
def inside(contact: Contact) -> Iterator[None]:
    """In the `with` the code of these tasks runs."""
    token = _contact.set(contact)
    try:
        yield
    finally:
        _contact.reset(token)
