"""The heartbeat: a thread that watches over the running task while its code has the worker's own thread.

It renews the task's lease, gives back what the worker claimed and can't start in time, and ends a process that
nothing can interrupt. It uses the connection of the worker's thread, which lies idle meanwhile or is lent for a moment.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from logging import getLogger
from typing import TypeVar

from .errors import SettingError
from .inside import Contact
from .lifecycle import CANCELLED, ClaimedTask
from .running import Running, Watch
from .stores import Store
from .stores.batches import Batches
from .time_limit import AGAIN_SECONDS, TimeLimit
from .unstarted import Unstarted
from .watchdog import Watchdog

LOG = getLogger("taskserver")

T = TypeVar("T")
R = TypeVar("R")

FROZEN_SECONDS = 1.0
"""Woken so much too late, the host stood still, and what is overdue gets a little longer."""
FROZEN_GRACE_SECONDS = 5.0
SLOWEST_WRITE_SECONDS = 60.0
LONGEST_TURN_SECONDS = 2.5
"""Of waiting for somebody's lock."""


class Heartbeat:
    """Runs beside one run of a worker, from its first task on; used in a `with` around that run."""

    def __init__(
        self,
        store: Store,
        time_limit: TimeLimit,
        lease_seconds: float,
        timeout_seconds: float,
        watchdog: Watchdog | None,
    ) -> None:
        """Without a `watchdog` it ends no process."""
        self._store = store
        self._session = store.session()
        self._time_limit = time_limit
        self._lease_seconds = lease_seconds
        self._timeout_seconds = timeout_seconds
        self._was_own = False
        """Whether the task before had a timeout of its own, so that what is armed fits no other."""
        self._watchdog = watchdog
        # So often it looks what runs. What begins after a look has nothing due before the next one, and so need not
        # wake it: that would cost each task more than all else that is done for it here.
        self._look_seconds = min(lease_seconds / 3, timeout_seconds or lease_seconds)
        self._woken = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._running: Running | None = None
        self._contact: Contact | None = None
        self.unstarted = Unstarted((), 0.0, 0.0)
        self.waiting: Collection[ClaimedTask] = ()
        """Started tasks that wait for their turn: their leases are renewed with those of what runs."""
        self.has_cancelled = False
        """Whether what ran last was interrupted because a person cancelled it."""

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *error: object) -> None:
        # Joined: a thread that outlives the interpreter's end takes the process down with it.
        self._stopped = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        if self._watchdog is not None:
            self._watchdog.disarm()

    def start(self) -> None:
        """Before a task: start the thread, unless it runs. Raises SettingError where the host allows no thread."""
        self.has_cancelled = False
        if self._thread is not None:
            return
        self._arm_watchdog()
        thread = threading.Thread(target=self._beat, name="taskserver-heartbeat", daemon=True)
        # It inherits this: the kernel gives a signal to any thread that takes it, and would not wake up the task then.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        except RuntimeError as error:
            raise SettingError(
                f"no thread can be started ({error}): the host's limit for this user is reached; run fewer workers"
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._thread = thread

    def guard(self, tasks: Sequence[ClaimedTask], claimed_at: float) -> Unstarted:
        """From now on these are the unstarted tasks, claimed at that instant of time.monotonic."""
        self.unstarted = Unstarted(tasks, claimed_at, self._lease_seconds)
        return self.unstarted

    def is_within_lease(self) -> bool:
        """Whether the lease of what was claimed last and not started yet still holds."""
        return time.monotonic() < self.unstarted.lease_ends_at

    def begin(self, watch: Watch) -> Contact:
        """The code of tasks is about to run. Its way to their rows."""
        self._running = running = Running(watch, self._lease_seconds)
        self._contact = Contact(running, self._store, self._session, self._woken.set)
        is_own = watch.timeout_seconds != self._timeout_seconds
        if is_own or self._was_own:
            self._arm_watchdog()
            self._woken.set()
        self._was_own = is_own
        return self._contact

    def end(self) -> None:
        """It has ended."""
        running, self._running = self._running, None
        contact, self._contact = self._contact, None
        if contact is not None:
            contact.end()
        self.has_cancelled = running is not None and running.is_cancelled
        self._was_own = self._was_own or self.has_cancelled  # what is armed is its end

    # ---- the thread

    def _beat(self) -> None:
        pause = self._look_seconds
        while not self._stopped:
            planned = time.monotonic() + pause
            self._woken.wait(pause)
            self._woken.clear()
            running = self._running
            if running is not None and time.monotonic() - planned > FROZEN_SECONDS:
                running.end_process_at = max(running.end_process_at, time.monotonic() + FROZEN_GRACE_SECONDS)
            pause = self._look_seconds
            if running is not None and not self._stopped:
                pause = min(self._look_after(running), pause)
            elif self.unstarted and not self._stopped:
                # The worker's own thread may be waiting for the database, or be about to begin another task.
                give_back_at = self._try(self._give_back, None, time.monotonic())
                pause = min(pause, max(give_back_at - time.monotonic(), self._lease_seconds / 24))
            self._arm_watchdog()

    def _look_after(self, running: Running) -> float:
        """Do what is due for the running task. Seconds until something else may be."""
        now = time.monotonic()
        due = [running.ends_at]
        # Each by itself: a row that somebody locks must not cost the running task its lease.
        due += [self._try(self._renew, running, now), self._try(self._give_back, running, now)]
        due.append(self._try(self._store_progress, running, now))
        if now >= running.strike_at:
            running.strike_at = now + (self._lease_seconds / 4 if self._strike(running) else AGAIN_SECONDS)
        if now >= running.end_process_at:
            self._end_process(running)
        if now >= running.ends_at:
            due = [*due[1:], running.strike_at, running.end_process_at]
        return max(min(due) - time.monotonic(), 0.001)

    def _try(self, write: Callable[[R, float], float], running: R, now: float) -> float:
        """Do what may be due. When something is due there again."""
        try:
            return write(running, now)
        except Exception as error:  # whatever it is, the next beat tries again: without one the lease would end
            LOG.debug("the heartbeat cannot write: %r", error)
            return time.monotonic() + self._lease_seconds / 12

    def _give_back(self, running: Running | None, now: float) -> float:
        """Give back the unstarted tasks once it is time. When that is."""
        unstarted = self.unstarted
        if not unstarted:
            return float("inf")
        if running is not None and running.watch.holds_lock:
            return float("inf")
        give_back_at = min(running.give_back_at, unstarted.give_back_at) if running else unstarted.give_back_at
        if now < give_back_at:
            return give_back_at
        self._write(running, unstarted.release)
        # Another task may have begun meanwhile: then nothing was given back.
        return time.monotonic() + self._lease_seconds / 24 if unstarted else float("inf")

    def _renew(self, running: Running, now: float) -> float:
        """Renew the leases once it is time. When that is."""
        if now >= running.renew_at:
            is_ours = self._write(running, lambda store: renew(store, [*running.tasks, *tuple(self.waiting)]))
            heeds_cancel = is_ours and running.watch.heeds_cancel
            if heeds_cancel and self._write(running, lambda store: is_cancelled(store, running.tasks)):
                self._cancel(running)
            # The last time at its timeout: whatever ends it does so before a lease is over.
            is_last = now >= running.ends_at or not is_ours
            running.renew_at = float("inf") if is_last else min(now + self._lease_seconds / 3, running.ends_at)
        return running.renew_at

    def _store_progress(self, running: Running, now: float) -> float:
        """Store what the task told last once it is time. When that is."""
        contact = self._contact
        if contact is None or self._running is not running:
            return float("inf")
        if now >= contact.store_at:
            self._arm_watchdog(SLOWEST_WRITE_SECONDS)
            contact.store()
        return contact.store_at

    def _cancel(self, running: Running) -> None:
        """Interrupt what runs, as if its time were up; it may have ended meanwhile."""
        if running.is_cancelled:
            return
        LOG.info("%s: cancelled, and is interrupted", running)
        running.cancel()
        self._strike(running)

    def _strike(self, running: Running) -> bool:
        """Interrupt it; whether that could be done now."""
        if running.is_cancelled:  # of which a timer knows nothing
            return self._time_limit.interrupt(CANCELLED, lambda: self._running is running)
        return self._time_limit.strike()

    def _write(self, running: Running | None, verb: Callable[[Store], T]) -> T | None:
        """Do a verb while this task runs, or none; nothing, once that has changed."""
        # The database may take its time, in which the watchdog must not bite.
        self._arm_watchdog(SLOWEST_WRITE_SECONDS)
        # While no task runs its thread is in a verb, and lets go of its session between the turns of that.
        wait_seconds = self._lease_seconds / 12 if running else max(self._lease_seconds / 12, LONGEST_TURN_SECONDS)
        with self._store.borrowed(self._session, wait_seconds):
            return verb(self._store) if self._running is running else None

    def _end_process(self, running: Running) -> None:
        if self._watchdog is None or self._running is not running:
            return
        why = "it was cancelled" if running.is_cancelled else f"its timeout of {running.watch.timeout_seconds:g} s"
        LOG.error(
            "%s goes on, %g s after %s, and cannot be interrupted: this worker ends",
            running,
            self._lease_seconds,
            why,
        )
        os._exit(1)

    def _arm_watchdog(self, later_seconds: float = 0.0) -> None:
        """Let it bite a little after this thread would have ended the process, had it had its turn."""
        if self._watchdog is None:
            return
        running = self._running
        if running is not None:
            seconds = running.end_process_at - time.monotonic()
        else:
            seconds = self._timeout_seconds + self._lease_seconds if self._timeout_seconds else float("inf")
        if seconds == float("inf"):
            self._watchdog.disarm()
        else:
            self._watchdog.arm(max(seconds, 0) + self._lease_seconds / 12 + later_seconds)


def renew(store: Store, tasks: Sequence[ClaimedTask]) -> bool:
    """Let the leases of started tasks begin anew. Whether any claim still stands."""
    return store.renew(tasks[0]) if len(tasks) == 1 else Batches(store).renew(tasks)


def is_cancelled(store: Store, tasks: Sequence[ClaimedTask]) -> bool:
    """Whether a person cancelled one of them."""
    return store.is_cancelled(tasks[0]) if len(tasks) == 1 else bool(Batches(store).cancelled(tasks))
