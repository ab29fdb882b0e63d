"""The heartbeat: a thread that does what is due while a task's code has the worker's own thread.

It renews the leases of the call's tasks, looks for a cancel, stores progress, writes the finishes of tasks that ended
before the call in the same round, and gives back claimed tasks that the worker can't start in time. The alarm
interrupts what it finds cancelled or lost, and faulthandler ends a process that nothing can interrupt. It has a
connection of its own, opened when it first has something to write.
"""

from __future__ import annotations

import faulthandler
import signal
import threading
from collections.abc import Callable, Collection, Sequence
from logging import getLogger
from queue import Empty, SimpleQueue
from typing import TypeVar

from ..errors import HostLimit, ServerFull
from ..interrupts.alarm import INFINITY, Alarm, now
from ..messages.log_records import ONCE_AN_HOUR
from ..model.task import CANCELLED, ClaimedTask
from ..stores import Store
from ..stores.queue.batches import Batches
from .claimed import Claimed
from .limits import check_open_files
from .task_context import LOOK_SECONDS, CallPlan, TaskContext

LOG = getLogger("taskserver")

C = TypeVar("C", TaskContext, TaskContext | None)
"""The call that runs, if any."""

LOST_LEASE = "its lease was lost: another worker may have taken the task over, or a person retried it"
NO_CONNECTION = (
    "the heartbeat has no connection to renew the lease of the running task, and tries again (%s): a task that runs "
    "for longer than a third of TASKSERVER_LEASE needs a second connection; allow the account two for each worker"
)
OVERDUE = (
    "%s goes on %g s after it was interrupted: this worker ends, and a later run reclaims the task; the stacks on "
    "standard error show where it hangs"
)
MIN_ANSWER_SECONDS = 2.5
"""The shortest wait for an answer: longer than the server itself waits for a lock, two seconds on MySQL 5.7."""
MAX_WRITE_SECONDS = 30.0
"""Between two calls the run may wait so long for an answer, beside the time for which it tries again."""
SAVE_LATER_SECONDS = 0.05
"""Finishes may be saved so much later, so that a call need not wake the thread for a look that is planned by then."""
STANDARD_ERROR = 2
"""By its number, which we keep open: sys.stderr may be any object by the time at which a task hangs."""


class Heartbeat:
    """Runs beside one run of a worker, from its first task on; used in a `with` around that run."""

    def __init__(
        self, store: Store, alarm: Alarm, lease_seconds: float, timeout_seconds: float, ends_process: bool
    ) -> None:
        """`timeout_seconds` is that of callables without one of their own. `ends_process`: the process is ours."""
        self._store = store
        self._runs_session = store.database.session()
        self._alarm = alarm
        self._lease = lease_seconds
        self._timeout = timeout_seconds or INFINITY
        self._ends_process = ends_process
        self._process_ends_at = INFINITY
        self._arming = threading.Lock()
        self._quiet_since = now()
        """When the last call ended."""
        self._woken: SimpleQueue[None] = SimpleQueue()  # unlike an Event it is whole after an interrupt amid its `put`
        self._looks_at = INFINITY
        """When the thread looks next, if nobody wakes it; infinity while it looks."""
        self._is_over = False
        self._thread: threading.Thread | None = None
        self._call: TaskContext | None = None
        self._ran_last = ""
        self.claimed = Claimed((), 0.0, 0.0)
        """Tasks of the last claim that are not started yet."""
        self.waiting: Collection[ClaimedTask] = ()
        """Started tasks that wait to be called again, or to be finished with others: their leases are renewed with that
        of the running call."""
        self.save_ended: Callable[[], object] = lambda: None
        """Writes the finishes of tasks of a round that ended before the running call."""
        self.save_ended_at = INFINITY
        """When it is time to do that, between two calls or during one; infinity: there is no round."""
        self._was_refused = False
        """Whether the server had no connection left for the heartbeat, which was logged."""

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *error: object) -> None:
        # Joined: a thread that outlives the interpreter's end takes the process down with it.
        self._is_over = True
        self._wake()
        if self._thread is not None:
            self._thread.join()
        if self._ends_process:
            faulthandler.cancel_dump_traceback_later()

    def start(self) -> None:
        """Start the thread before a task, unless it runs. Raises HostLimit if the host allows no thread or no file."""
        check_open_files(self._ran_last)
        if self._thread is not None:
            return
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
        self.claimed = Claimed(tasks, claimed_at, self._lease)
        self.save_ended_at, self.waiting = INFINITY, ()  # those of the claim before are written
        return self.claimed

    def is_within_lease(self) -> bool:
        """Whether the lease of the last claim still holds for its unstarted tasks."""
        return now() < self.claimed.lease_ends_at

    def begin(self, plan: CallPlan) -> TaskContext:
        """Watch over a call that is about to begin. The context in which its code runs."""
        self._call = call = TaskContext(plan, self._alarm, self._store, self._wake)
        call.save_ended_at = self.save_ended_at
        if call.save_ended_at < self._looks_at - SAVE_LATER_SECONDS:
            self._wake()
        self._limit_process(call)
        return call

    def end(self) -> bool:
        """The call has ended. Whether it was interrupted because a person cancelled a task of it."""
        call, self._call = self._call, None
        self._quiet_since = now()
        if self._process_ends_at < self._quiet_since + self._timeout + self._lease:
            self._arm_for_what_runs()
        if call is not None:
            self._ran_last = call.tasks[0].task if call.tasks else self._ran_last
            call.end()
        return call is not None and call.why == CANCELLED

    # ---- the thread

    def _wake(self) -> None:
        self._woken.put(None)

    def _run_thread(self) -> None:
        try:
            while not self._is_over:
                self._arm_for_what_runs()
                seconds = self._do_what_is_due(self._call)
                self._looks_at = now() + seconds
                self._sleep(seconds)
                self._looks_at = INFINITY  # a call that begins from here on may go unseen: it wakes the thread
        finally:
            self._store.database.disconnect()

    def _sleep(self, seconds: float) -> None:
        try:
            self._woken.get(timeout=seconds)
            while True:  # several may have woken it
                self._woken.get_nowait()
        except Empty:
            pass

    def _do_what_is_due(self, call: TaskContext | None) -> float:
        """The seconds until something else is due."""
        due = [now() + self._lease / 3]
        if call is None:
            due.append(max(self.save_ended_at, now() + SAVE_LATER_SECONDS))  # for the next call of a round
        else:
            steps = (self._renew, self._look_for_cancel, self._save_ended, self._store_progress, self._note_overdue)
            due += [self._try(step, call) for step in steps]
        if self.claimed:  # without a call, too: the run may wait for its database
            due.append(self._try(self._give_back, call))
        return max(min(due) - now(), 0.001)

    def _try(self, step: Callable[[C], float], call: C) -> float:
        """Do one step by itself: a row that somebody locks must not cost the lease. The instant of its next turn."""
        try:
            # A dead connection gives no answer: another one must renew the lease, of which a third is over, in time.
            with self._store.database.tried_once(max(self._lease / 2, MIN_ANSWER_SECONDS)):
                return step(call) if self._call is call else now() + self._lease / 24
        except Exception as error:  # whatever it is, the next turn tries again: without one the lease would end
            if isinstance(error, ServerFull) and not self._was_refused:
                self._was_refused = True
                LOG.warning(NO_CONNECTION, error, extra={ONCE_AN_HOUR: True})
            else:
                LOG.debug("the heartbeat cannot write: %r", error)
            return now() + self._lease / 12

    def _renew(self, call: TaskContext) -> float:
        """Renew the leases every third of a lease."""
        if now() >= call.renew_at:
            has_claim = renew(self._store, [*call.tasks, *tuple(self.waiting)])
            # Not for long after its timeout: whatever ends the call does so before a lease is over.
            is_last = now() >= call.ends_at + self._lease / 3 or not has_claim
            call.renew_at = INFINITY if is_last else now() + self._lease / 3
        return call.renew_at

    def _look_for_cancel(self, call: TaskContext) -> float:
        """Look every third of a lease, and each second while the code asks."""
        look_at = call.looked_at + (LOOK_SECONDS if call.is_asking else self._lease / 3)
        if now() < look_at:
            return look_at
        call.is_asking, call.looked_at = False, now()
        cancelled_by_id = self._store.finishes.claimed_still(call.tasks)
        if call.has_completion:  # by which its rows may have changed
            return INFINITY
        if not cancelled_by_id:
            call.why = LOST_LEASE
        elif any(cancelled_by_id.values()) and call.plan.heeds_cancel:
            call.why = CANCELLED
            LOG.info("%s: cancelled, and is interrupted", call)
        if call.why:
            call.ends_at, call.looked_at = min(call.ends_at, now()), INFINITY
            self._alarm.interrupt(call.number, call.why)
        return call.looked_at + self._lease / 3

    def _save_ended(self, call: TaskContext) -> float:
        """Have the finishes written of tasks that ended before this call."""
        if now() >= call.save_ended_at:
            self.save_ended()
            call.save_ended_at = INFINITY
        return call.save_ended_at

    def _store_progress(self, call: TaskContext) -> float:
        if call.progress is not None and now() >= call.store_at:
            call.store_at = now() + LOOK_SECONDS
            call.store_progress(0.0)
        return INFINITY if call.progress is None else call.store_at

    def _note_overdue(self, call: TaskContext) -> float:
        """Say that a call goes on a lease after its end: the process ends soon, and shows where it hangs."""
        if self._alarm.is_insisted:
            call.ends_at = min(call.ends_at, now())
        at = call.ends_at + self._lease
        if now() < at or not self._ends_process:
            return at if now() < at else INFINITY
        if not call.is_overdue:
            call.is_overdue = True
            LOG.error(OVERDUE, call, self._lease)
        return INFINITY

    def _give_back(self, call: TaskContext | None) -> float:
        """Give back the unstarted tasks after half a lease, or a third of one under one call."""
        give_back_at = min(self.claimed.give_back_at, call.give_back_at) if call else self.claimed.give_back_at
        if call is not None and call.plan.holds_lock:
            return INFINITY
        if now() < give_back_at:
            return give_back_at
        self.claimed.release(self._store)
        return now() + self._lease / 24 if self.claimed else INFINITY

    # ---- the end of a process that nothing can interrupt

    def _limit_process(self, call: TaskContext) -> None:
        """Before a call: let the process outlive its timeout by a lease, and by not much more."""
        usual = call.began_at + self._timeout
        latest = call.ends_at if usual == INFINITY else max(call.ends_at, usual)
        with self._arming:
            if not call.ends_at <= self._process_ends_at - self._lease <= latest + self._lease / 3:
                self._arm(latest)  # not for each call: that takes 50 us

    def _arm_for_what_runs(self) -> None:
        with self._arming:
            if self._call is not None:
                self._arm(self._call.ends_at)
            else:  # a call may begin before the thread looks again, or the run wait for its database
                quiet_since = max(self._quiet_since, self._runs_session.used_at)
                waits = self._store.database.conflict_seconds + MAX_WRITE_SECONDS
                self._arm(quiet_since + self._timeout + waits)

    def _arm(self, ends_at: float) -> None:
        """Show all stacks and end the process a lease after this instant, and some time for what is logged before."""
        if not self._ends_process:
            return
        self._process_ends_at = ends_at + self._lease * 4 / 3
        if ends_at == INFINITY:
            faulthandler.cancel_dump_traceback_later()
        else:
            seconds = max(self._process_ends_at - now(), 0.001)
            faulthandler.dump_traceback_later(seconds, exit=True, file=STANDARD_ERROR)


def renew(store: Store, tasks: Sequence[ClaimedTask]) -> bool:
    """Let the leases of started tasks begin again. Whether the claim of any of them still stands."""
    return store.finishes.renew(tasks[0]) if len(tasks) == 1 else Batches(store).renew(tasks)
