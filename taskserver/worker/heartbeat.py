"""The heartbeat: a thread that does what is due while a task's code uses the worker's main thread.

It renews leases, checks for a cancel, stores progress, writes pending finishes of the round, and releases claimed tasks
that the worker can't start in time. The alarm interrupts cancelled or lost tasks. A process that nothing can interrupt
is ended by this thread, or by faulthandler if code holds the interpreter. The thread opens its own connection when it
first writes.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from logging import getLogger
from typing import Any

from ..errors import HostLimit, ServerFull
from ..interrupts.alarm import INFINITY, Alarm, now
from ..interrupts.stop import HAS_TIMER
from ..messages.log_records import ONCE_AN_HOUR
from ..model.task import CANCELLED, ClaimedTask
from ..stores import Store
from ..stores.queue.batches import Batches
from .claimed import Claimed
from .limits import check_open_files
from .task_context import LOOK_AT_CALL_SECONDS, CallPlan, TaskContext

LOG = getLogger("taskserver")

LOST_LEASE = "its lease was lost: another worker may have taken the task over, or a person retried it"
NO_CONNECTION = (
    "the heartbeat has no connection to renew the lease of the running task, and tries again (%s): a task that runs "
    "for longer than a third of TASKSERVER_LEASE needs a second connection; allow the account two for each worker"
)
OVERDUE = (
    "%s still runs %g s after it was interrupted: this worker ends, and a later run reclaims the task; the stacks on "
    "standard error show where it hangs"
)
MIN_ANSWER_SECONDS = 2.5
"""The shortest timeout of an answer: longer than the server waits for a lock, two seconds on MySQL 5.7."""
AT_MOST_EVERY_SECONDS = 0.9 * LOOK_AT_CALL_SECONDS
"""Less than a second, so that the next tick is not too early."""
MAX_WRITE_SECONDS = 30.0
"""How long the run may wait for an answer between two calls, besides its retries."""
STANDARD_ERROR = 2
"""The file descriptor: a task may replace sys.stderr with any object."""


class Heartbeat:
    """Runs beside one run, from its first task on; used in a `with` around that run."""

    def __init__(
        self, store: Store, alarm: Alarm, lease_seconds: float, timeout_seconds: float, ends_process: bool
    ) -> None:
        """`timeout_seconds` is the default of callables. `ends_process`: the process is ours, and may be ended."""
        self._store = store
        self._alarm = alarm
        self._lease = lease_seconds
        self._timeout = timeout_seconds or INFINITY
        self._ends_process = ends_process
        self._process_ends_at = INFINITY
        self._limiting = threading.Lock()
        self._is_over = threading.Event()
        self._runs_session, self._quiet_since = store.database.session(), now()
        self._thread: threading.Thread | None = None
        self._call: TaskContext | None = None
        self._ran_last = ""
        self.claimed = Claimed((), 0.0, 0.0)
        """Pending tasks of the last claim."""
        self.waiting: Collection[ClaimedTask] = ()
        """Started tasks that wait for their turn: their leases are renewed with those of the running call."""
        self.save_old: Callable[[], object] = lambda: None
        """Writes finishes that have waited for a second."""
        self._was_refused = False
        """Whether it was logged that the server has no connection left for the heartbeat."""

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *error: object) -> None:
        # Join: a thread that outlives the interpreter crashes the process.
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        if self._ends_process:
            faulthandler.cancel_dump_traceback_later()

    def start(self) -> None:
        """Start the thread if needed. Raises HostLimit if the host allows no more threads or files."""
        check_open_files(self._ran_last)
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run_thread, name="taskserver-heartbeat", daemon=True)
        # The thread inherits the mask. Without it, the kernel might give it a signal that must wake up the task.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()) if HAS_TIMER else None
        try:
            thread.start()
        except RuntimeError as error:
            raise HostLimit(
                f"no thread can be started ({error}): the host's limit for this user is reached; run fewer workers"
            ) from None
        finally:
            if mask is not None:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._thread = thread

    def guard(self, tasks: Sequence[ClaimedTask], claimed_at: float) -> Claimed:
        """Release these tasks in time if they do not start; `claimed_at` is by time.monotonic."""
        self.claimed = Claimed(tasks, claimed_at, self._lease)
        return self.claimed

    def is_within_lease(self) -> bool:
        """Whether the lease of the last claim still holds for its pending tasks."""
        return now() < self.claimed.lease_ends_at

    def begin(self, plan: CallPlan) -> TaskContext:
        """Watch a call that begins now. Returns the context of its code."""
        self._call = call = TaskContext(plan, self._alarm, self._store)
        covered_until = self._process_ends_at - self._lease
        if call.ends_at > covered_until or call.ends_at < covered_until == INFINITY:
            self._limit_process()
        return call

    def end(self) -> bool:
        """End the watch. Returns whether the call was interrupted because a person cancelled a task of it."""
        call, self._call, self._quiet_since = self._call, None, now()
        if self._process_ends_at < self._quiet_since + self._timeout + self._lease:
            self._limit_process()
        if call is not None:
            self._ran_last = call.tasks[0].task if call.tasks else self._ran_last
            call.end()
        return call is not None and call.why == CANCELLED

    # ---- the thread

    def _run_thread(self) -> None:
        seconds = tick = min(LOOK_AT_CALL_SECONDS, self._lease / 24)
        try:
            while not self._is_over.wait(seconds):
                self._limit_process()
                seconds = tick if self._beat(self._call) else max(tick, self._lease / 12)
        finally:
            self._store.database.disconnect()

    def _beat(self, call: TaskContext | None) -> bool:
        """Do what is due, each step by itself. False if one failed."""
        steps: list[Callable[[Any], None]] = []
        if call is not None:
            self._end_overdue(call)
            steps = [self._renew, self._look_for_interrupt, self._save_old, self._store_progress]
        if self.claimed:  # without a call, too: the run may wait for the database
            steps.append(self._give_back)
        return False not in [self._try(step, call) for step in steps]

    def _try(self, step: Callable[[Any], None], call: TaskContext | None) -> bool:
        """Do one step, so that a locked row blocks only this one. Returns whether it worked."""
        try:
            # A dead connection gives no answer: a new one must renew the lease in time, and a third of it is over.
            with self._store.database.without_retries(max(self._lease / 2, MIN_ANSWER_SECONDS)):
                if self._call is call:
                    step(call)
            return True
        except Exception as error:  # any error: the next tick tries again, else the lease would end
            if isinstance(error, ServerFull) and not self._was_refused:
                self._was_refused = True
                LOG.warning(NO_CONNECTION, error, extra={ONCE_AN_HOUR: True})
            else:
                LOG.debug("the heartbeat cannot write: %r", error)
            return False

    def _renew(self, call: TaskContext) -> None:
        if now() >= call.renew_at:
            has_claim = renew(self._store, [*call.tasks, *tuple(self.waiting)])
            # Not long after its timeout: the call is ended before the lease is over.
            is_last = now() >= call.ends_at + self._lease / 3 or not has_claim
            call.renew_at = INFINITY if is_last else now() + self._lease / 3

    def _look_for_interrupt(self, call: TaskContext) -> None:
        """Interrupt a cancelled or lost call. Looks every third of a lease, and every second while the code asks."""
        if now() < call.looked_at + (AT_MOST_EVERY_SECONDS if call.is_asking else self._lease / 3):
            return
        call.is_asking, call.looked_at = False, now()
        cancelled_by_id = self._store.finishes.still_claimed(call.tasks)
        if call.has_completion:  # its rows may have changed by that
            return
        if not cancelled_by_id:
            call.why = LOST_LEASE
        elif any(cancelled_by_id.values()) and call.plan.is_cancellable:
            call.why = CANCELLED
            LOG.info("%s: cancelled, and is interrupted", call)
        if call.why:
            call.ends_at, call.looked_at = min(call.ends_at, now()), INFINITY
            self._alarm.interrupt(call.number, call.why)

    def _save_old(self, _: TaskContext) -> None:
        self.save_old()

    def _store_progress(self, call: TaskContext) -> None:
        if call.progress is not None and now() >= call.store_at:
            call.store_at = now() + AT_MOST_EVERY_SECONDS
            call.store_progress(0.0)

    def _give_back(self, call: TaskContext | None) -> None:
        """Release pending tasks after half a lease, or after a third of one in one call."""
        give_back_at = min(self.claimed.give_back_at, call.give_back_at) if call else self.claimed.give_back_at
        if now() >= give_back_at and not (call and call.plan.holds_lock):
            self.claimed.release(self._store)

    # ---- the end of a process that nothing can interrupt

    def _end_overdue(self, call: TaskContext) -> None:
        """End the process, and show all stacks, if a call still runs a lease after its timeout."""
        if self._alarm.is_forced:
            call.ends_at = min(call.ends_at, now())
        if self._ends_process and now() >= call.ends_at + self._lease:
            LOG.error(OVERDUE, call, self._lease)
            with suppress(OSError):
                os.write(STANDARD_ERROR, f"Timeout ({timedelta(seconds=now() - call.began_at)})!\n".encode())
            # While this thread holds the interpreter, stacks stand still. To read them while they change may crash.
            faulthandler.dump_traceback(STANDARD_ERROR)
            os._exit(1)

    def _limit_process(self) -> None:
        """Let faulthandler end the process so if code of the current or next call holds the interpreter.

        Called at each tick, and before a call that may take longer; not before every call, as that costs 50 us.
        """
        if not self._ends_process:
            return
        with self._limiting:
            call = self._call
            if call is not None:
                ends_at = call.ends_at
            else:  # a call may begin now, or the run may wait for the database
                quiet_since = max(self._quiet_since, self._runs_session.used_at)
                ends_at = quiet_since + self._timeout + self._store.database.conflict_seconds + MAX_WRITE_SECONDS
            self._process_ends_at = ends_at + self._lease * 4 / 3
            if ends_at == INFINITY:
                faulthandler.cancel_dump_traceback_later()
            else:
                seconds = max(self._process_ends_at - now(), 0.001)
                with suppress(RuntimeError):  # it needs a thread, which the host may refuse: the next tick tries again
                    faulthandler.dump_traceback_later(seconds, exit=True, file=STANDARD_ERROR)


def renew(store: Store, tasks: Sequence[ClaimedTask]) -> bool:
    """Renew the leases of started tasks. Returns whether any of them is still ours."""
    return store.finishes.renew(tasks[0]) if len(tasks) == 1 else Batches(store).renew(tasks)
