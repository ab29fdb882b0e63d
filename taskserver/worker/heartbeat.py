"""The heartbeat: a thread that watches over the running call while a task's code has the worker's own thread.

It renews the leases of the call's tasks, stores their progress, has the finishes written of tasks that ended before it
in the same round, gives back claimed tasks that the worker can't start in time, and ends a process that nothing can
interrupt. It has a connection of its own, opened when it first has something to write.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Sequence
from logging import getLogger
from typing import TypeVar

from ..errors import HostLimit, ServerFull
from ..interrupts.alarm import Alarm
from ..interrupts.watchdog import Watchdog
from ..model.task import CANCELLED, ClaimedTask
from ..stores import Store
from ..stores.queue.batches import Batches
from .claimed import Claimed
from .limits import check_open_files
from .task_context import TaskContext
from .watched_call import CallPlan, WatchedCall

LOG = getLogger("taskserver")

T = TypeVar("T")
C = TypeVar("C")

FROZEN_SECONDS = 1.0
"""Woken so much too late, the host stood still, and an overdue call gets a little longer."""
FROZEN_GRACE_SECONDS = 5.0
"""Nor is a call's process ended sooner after its first interrupt, unless the lease is shorter: the host may have stood
still in the midst of a look, too.
"""
NO_CONNECTION = (
    "the heartbeat has no connection to renew the lease of the running task, and tries again (%s): a task that runs "
    "for longer than a third of TASKSERVER_LEASE needs a second connection; allow the account two for each worker"
)
MIN_ANSWER_SECONDS = 2.5
"""The shortest wait for an answer: longer than the server itself waits for a lock, two seconds on MySQL 5.7."""
MAX_WRITE_SECONDS = 60.0
SAVE_LATER_SECONDS = 0.05
"""Finishes may be saved so much later, so that a call need not wake the thread for a look that is planned by then."""


class Heartbeat:
    """Runs beside one run of a worker, from its first task on; used in a `with` around that run."""

    def __init__(
        self,
        store: Store,
        time_limit: Alarm,
        lease_seconds: float,
        timeout_seconds: float,
        watchdog: Watchdog | None,
    ) -> None:
        """`timeout_seconds` is that of callables without one of their own. Without a `watchdog` it ends no process."""
        self._store = store
        self._runs_session = store.database.session()
        self._time_limit = time_limit
        self._lease_seconds = lease_seconds
        self._timeout_seconds = timeout_seconds
        self._was_own = False
        """Whether the call before had a timeout of its own, so that the armed watchdog fits no other call."""
        self._watchdog = watchdog
        # The thread looks so often at the running call. A call that begins after a look has nothing due before the
        # next one, and so need not wake the thread: that would cost each task more than all else that is done here.
        self._look_seconds = min(lease_seconds / 3, timeout_seconds or lease_seconds)
        self._woken = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._call: WatchedCall | None = None
        self._quiet_since = time.monotonic()
        """When the last call ended, or the host stood still."""
        self._context: TaskContext | None = None
        self.claimed = Claimed((), 0.0, 0.0)
        """Tasks of the last claim that are not started yet."""
        self.waiting: Collection[ClaimedTask] = ()
        """Started tasks that wait to be called again, or to be finished with others: their leases are renewed with that
        of the running call."""
        self.save_ended: Callable[[], object] = lambda: None
        """Writes the finishes of tasks that ended before the running call."""
        self.save_ended_at = float("inf")
        """By time.monotonic: if the next call still runs then, it is time to do that; infinity: there are none."""
        self._looks_at = float("inf")
        """By time.monotonic: when the thread looks next, if nobody wakes it."""
        self._was_refused = False
        """Whether the server had no connection left for the heartbeat, which was logged."""
        self.was_cancelled = False
        """Whether the last call was interrupted because a person cancelled a task of it."""

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
        """Start the thread before a task, unless it runs. Raises HostLimit if the host allows no thread or no file."""
        check_open_files()
        self.was_cancelled = False
        if self._thread is not None:
            return
        self._arm_watchdog()
        thread = threading.Thread(target=self._run_thread, name="taskserver-heartbeat", daemon=True)
        # The thread inherits the mask: the kernel gives a signal to any thread that takes it, and would not wake up the
        # task then.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            thread.start()
        except RuntimeError as error:
            raise HostLimit(
                f"no thread can be started ({error}): the host's limit for this user is reached; run fewer workers"
            ) from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._thread = thread

    def guard(self, tasks: Sequence[ClaimedTask], claimed_at: float) -> Claimed:
        """Give back these tasks in time that were claimed at that instant of time.monotonic."""
        self.claimed = Claimed(tasks, claimed_at, self._lease_seconds)
        self.save_ended_at, self.waiting = float("inf"), ()  # those of the claim before are written
        return self.claimed

    def is_within_lease(self) -> bool:
        """Whether the lease of the last claim still holds for its unstarted tasks."""
        return time.monotonic() < self.claimed.lease_ends_at

    def begin(self, plan: CallPlan) -> TaskContext:
        """Watch over a call that is about to begin. The context in which its code runs."""
        self._call = call = WatchedCall(plan, self._lease_seconds)
        call.number = self._time_limit.number + 1
        self._context = TaskContext(call, self._store, self._woken.set)
        is_own = plan.timeout_seconds != self._timeout_seconds
        if is_own or self._was_own:
            self._arm_watchdog()
            self._woken.set()
        self._was_own = is_own
        call.save_ended_at = self.save_ended_at
        if call.save_ended_at < self._looks_at - SAVE_LATER_SECONDS:
            self._woken.set()
        return self._context

    def end(self) -> None:
        """The call has ended."""
        call, self._call = self._call, None
        context, self._context = self._context, None
        if context is not None:
            context.end()
        self._quiet_since = time.monotonic()
        self.was_cancelled = call is not None and call.is_cancelled
        self._was_own = self._was_own or self.was_cancelled  # the watchdog is armed for that call's end

    # ---- the thread

    def _run_thread(self) -> None:
        try:
            self._beat()
        finally:
            self._store.database.disconnect()

    def _beat(self) -> None:
        pause = self._look_seconds
        while not self._stopped:
            self._looks_at = planned = time.monotonic() + pause
            self._woken.wait(pause)
            self._woken.clear()
            self._looks_at = float("inf")  # a call that begins from here on may go unseen: it wakes the thread
            call = self._call
            if time.monotonic() - planned > FROZEN_SECONDS:
                self._quiet_since = time.monotonic()
                if call is not None:
                    call.end_process_at = max(call.end_process_at, time.monotonic() + FROZEN_GRACE_SECONDS)
            pause = self._look_seconds
            if call is not None and not self._stopped:
                pause = min(self._look_after(call), pause)
            elif self.claimed and not self._stopped:
                # The worker's own thread may be waiting for the database, or be about to begin another task.
                give_back_at = self._try(self._give_back, None, time.monotonic())
                pause = min(pause, max(give_back_at - time.monotonic(), self._lease_seconds / 24))
            if call is None:
                self._end_process_if_quiet()
                # Between two quick calls of a round none runs; without this plan the next call would wake the thread.
                pause = min(pause, max(self.save_ended_at - time.monotonic(), SAVE_LATER_SECONDS))
            self._arm_watchdog()

    def _look_after(self, call: WatchedCall) -> float:
        """Do whatever is due for the running call. Seconds until something else may be."""
        now = time.monotonic()
        due = [call.ends_at]
        # Each by itself: a row that somebody locks must not cost the call its lease.
        due += [self._try(self._renew, call, now), self._try(self._give_back, call, now)]
        due.append(self._try(self._save_ended, call, now))
        due.append(self._try(self._store_progress, call, now))
        now = time.monotonic()  # the writes may have taken long
        if now >= call.strike_at:
            call.give_time_to_end(now, FROZEN_GRACE_SECONDS)
            call.strike_at = now + self._lease_seconds / 4
            self._strike(call)
        if now >= call.end_process_at:
            self._end_process(call)
        if now >= call.ends_at:
            due = [*due[1:], call.strike_at, call.end_process_at]
        return max(min(due) - time.monotonic(), 0.001)

    def _try(self, write: Callable[[C, float], float], call: C, now: float) -> float:
        """Do a write that may be due. The instant at which it is due again."""
        try:
            return write(call, now)
        except Exception as error:  # whatever it is, the next beat tries again: without one the lease would end
            if isinstance(error, ServerFull) and not self._was_refused:
                self._was_refused = True
                LOG.warning(NO_CONNECTION, error)
            else:
                LOG.debug("the heartbeat cannot write: %r", error)
            return time.monotonic() + self._lease_seconds / 12

    def _give_back(self, call: WatchedCall | None, now: float) -> float:
        """Give back the unstarted tasks once it is time. The instant at which that is due."""
        claimed = self.claimed
        if not claimed:
            return float("inf")
        if call is not None and call.plan.holds_lock:
            return float("inf")
        give_back_at = min(call.give_back_at, claimed.give_back_at) if call else claimed.give_back_at
        if now < give_back_at:
            return give_back_at
        self._write(call, claimed.release)
        # Another call may have begun meanwhile: then nothing was given back.
        return time.monotonic() + self._lease_seconds / 24 if claimed else float("inf")

    def _renew(self, call: WatchedCall, now: float) -> float:
        """Renew the leases once it is time. The instant at which that is due."""
        if now >= call.renew_at:
            has_claim = self._write(call, lambda store: renew(store, [*call.tasks, *tuple(self.waiting)]))
            if has_claim and call.plan.heeds_cancel:
                cancelled_by_id = self._write(call, lambda store: store.finishes.claimed_still(call.tasks))
                if cancelled_by_id and any(cancelled_by_id.values()):
                    self._cancel(call)
            # The last time at its timeout: whatever ends the call does so before a lease is over.
            is_last = now >= call.ends_at or not has_claim
            call.renew_at = float("inf") if is_last else min(now + self._lease_seconds / 3, call.ends_at)
        return call.renew_at

    def _save_ended(self, call: WatchedCall, now: float) -> float:
        """Have the finishes written of tasks that ended before this call, once it is time. The instant for that."""
        if now >= call.save_ended_at:
            call.save_ended_at = now + self._lease_seconds / 12  # if that fails
            self._write(call, lambda store: self.save_ended())
            call.save_ended_at = float("inf")
        return call.save_ended_at

    def _store_progress(self, call: WatchedCall, now: float) -> float:
        """Store the latest progress once it is time. The instant at which that is due."""
        context = self._context
        if context is None or self._call is not call:
            return float("inf")
        if now >= context.store_at:
            self._arm_watchdog(MAX_WRITE_SECONDS)
            context.store()
        return context.store_at

    def _cancel(self, call: WatchedCall) -> None:
        """Interrupt the call, as if its time were up; it may have ended meanwhile."""
        if call.is_cancelled:
            return
        LOG.info("%s: cancelled, and is interrupted", call)
        call.cancel()
        self._strike(call)

    def _strike(self, call: WatchedCall) -> None:
        if call.is_cancelled:  # of which a timer knows nothing
            self._time_limit.interrupt(call.number, CANCELLED)

    def _write(self, call: WatchedCall | None, verb: Callable[[Store], T]) -> T | None:
        """Do a verb while this call runs, or none (None). None, with nothing done, once that has changed."""
        # The database may take its time, in which the watchdog must not bite.
        self._arm_watchdog(MAX_WRITE_SECONDS)
        # A dead connection gives no answer: another one must renew the lease, of which a third is over, in time.
        with self._store.database.tried_once(max(self._lease_seconds / 2, MIN_ANSWER_SECONDS)):
            return verb(self._store) if self._call is call else None

    def _end_process(self, call: WatchedCall) -> None:
        if self._watchdog is None or self._call is not call:
            return
        why = "it was cancelled" if call.is_cancelled else f"its timeout of {call.plan.timeout_seconds:g} s"
        LOG.error(
            "%s goes on, %g s after %s, and cannot be interrupted: this worker ends",
            call,
            self._lease_seconds,
            why,
        )
        os._exit(1)

    def _end_process_if_quiet(self) -> None:
        """End the process whose worker's own thread gives no sign of life between two calls.

        Python may clean up there what a task left, which may hang. Beside that the thread does nothing that takes long
        but to wait for the database.
        """
        longest = self._timeout_seconds + self._lease_seconds
        may_last = longest + self._store.database.conflict_seconds + MAX_WRITE_SECONDS
        quiet = time.monotonic() - max(self._quiet_since, self._runs_session.used_at)
        if self._watchdog is None or not self._timeout_seconds or quiet < may_last or self._call is not None:
            return
        LOG.error("the clean-up after a task goes on, for longer than %g s: this worker ends", longest)
        os._exit(1)

    def _arm_watchdog(self, later_seconds: float = 0.0) -> None:
        """Let the watchdog bite a little after this thread would have ended the process, had it had its turn."""
        if self._watchdog is None:
            return
        call = self._call
        if call is not None:
            seconds = call.end_process_at - time.monotonic()
        else:
            seconds = self._timeout_seconds + self._lease_seconds if self._timeout_seconds else float("inf")
        if seconds == float("inf"):
            self._watchdog.disarm()
        else:
            self._watchdog.arm(max(seconds, 0) + self._lease_seconds / 12 + later_seconds)


def renew(store: Store, tasks: Sequence[ClaimedTask]) -> bool:
    """Let the leases of started tasks begin anew. Whether the claim of any of them still stands."""
    return store.finishes.renew(tasks[0]) if len(tasks) == 1 else Batches(store).renew(tasks)
