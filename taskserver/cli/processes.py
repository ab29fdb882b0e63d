"""worker.py --processes K: K workers of one crontab line, and the supervisor that forks them.

The supervisor replaces dead workers and forwards signals. It runs no code of tasks, and has no connection. The next
worker that begins on this host reclaims the tasks of a dead one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from logging import getLogger
from typing import NoReturn

from ..errors import HostLimit
from ..interrupts.stop import Stop
from ..messages.log_records import ONCE_AN_HOUR
from ..settings.load import Settings
from .terminal.log import set_up
from .terminal.program import SIGNALS, WORKER_ENDED, Exit, StopRequests, block_signals
from .worker_options import Options

LOG = getLogger("taskserver")

LOOK_AT_WORKERS_SECONDS = 0.1
LINE_REQUEST_SECONDS = 1.0
"""Longer than in a worker, so that two forwarded signals count as two there."""
FIRST_RESTART_SECONDS = 0.5
MAX_RESTART_SECONDS = 5.0
"""The pause before a replacement doubles with each death up to this, and is short again after a minute."""
CALM_SECONDS = 60.0
MIN_SECONDS = 0.001

Work = Callable[[Settings, Options, Stop], int]


class Processes:
    """The workers of one line."""

    def __init__(self, settings: Settings, options: Options, work: Work) -> None:
        """`work` runs one worker in its process, and returns the exit code."""
        self._settings = settings
        self._options = options
        self._work = work
        self._stop = Stop()
        self._stop.line_began_at = self._began_at = time.monotonic()
        self._workers: set[int] = set()
        """Process ids."""
        self._starts = [self._began_at] * (options.processes or 1)
        """When more workers start, by time.monotonic."""
        self._pause_seconds = FIRST_RESTART_SECONDS
        self._died_at = self._began_at
        self._signals: list[int] = []
        """Not forwarded yet."""
        self._is_stopping = False
        self._worst = int(Exit.OK)

    def run(self) -> int:
        """Run the workers until all have ended; return the worst exit code. In a worker's process: SystemExit."""
        set_up(self._options.verbose, self._settings)
        requests = StopRequests(LINE_REQUEST_SECONDS)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the caller ignores it, waitpid gets no status
        for number in SIGNALS:
            signal.signal(number, lambda number, _: self._signals.append(number) if requests.is_new(number) else None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        while self._workers or self._starts:
            for start_at in [one for one in self._starts if one <= time.monotonic()]:
                self._starts.remove(start_at)
                self._start()
            time.sleep(LOOK_AT_WORKERS_SECONDS)
            while self._signals:  # the second one interrupts the tasks
                self._forward(self._signals.pop(0))
            for worker in list(self._workers):
                pid, status = os.waitpid(worker, os.WNOHANG)
                if pid:
                    self._note_end(worker, os.waitstatus_to_exitcode(status))
        block_signals()
        return self._worst

    def _start(self) -> None:
        supervisor = os.getpid()
        # Signals wait until the worker has its own handlers.
        block_signals()
        try:
            worker = os.fork()
        except OSError as error:
            if not self._workers:
                words = f"the host refuses to start a process: {error.strerror}; use fewer --processes"
                raise HostLimit(words) from None
            LOG.warning(
                "the host refuses to start a process now (%s): will retry", error.strerror, extra={ONCE_AN_HOUR: True}
            )
            self._start_later()
        else:
            if not worker:
                self._work_in_child(supervisor)
            self._workers.add(worker)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _start_later(self) -> None:
        if self._is_over():  # the line of the next minute has workers
            return
        self._starts.append(time.monotonic() + self._pause_seconds)
        self._pause_seconds = min(self._pause_seconds * 2, MAX_RESTART_SECONDS)

    def _is_over(self) -> bool:
        age = time.monotonic() - self._began_at
        return any(seconds is not None and age >= seconds for seconds in (self._options.linger, self._options.max_time))

    def _forward(self, number: int) -> None:
        # The same signal: if a worker got it too, e.g. by Ctrl-C, it counts once.
        self._is_stopping = True
        self._starts.clear()
        for worker in self._workers:
            os.kill(worker, number)

    def _note_end(self, worker: int, status: int) -> None:
        self._workers.remove(worker)
        if status - WORKER_ENDED in list(Exit):
            self._worst = max(self._worst, status - WORKER_ENDED)
            return
        self._worst = max(self._worst, Exit.DATABASE)
        cause = f"exit code {status}" if status >= 0 else f"signal {-status} ({signal.strsignal(-status)})"
        LOG.warning("process %d, a worker of this line, died: %s", worker, cause)
        if not self._is_stopping:
            died_at, self._died_at = self._died_at, time.monotonic()
            if self._died_at - died_at > CALM_SECONDS:
                self._pause_seconds = FIRST_RESTART_SECONDS
            self._start_later()

    # ---- in a worker's process

    def _work_in_child(self, supervisor: int) -> NoReturn:
        """Work, and end. Raises only SystemExit: anything else would make the worker a second supervisor."""

        def end_if_orphaned() -> None:
            if os.getppid() != supervisor and not self._stop.asked:
                LOG.info("the supervisor is gone: this worker ends after its task")
                self._stop.ask()

        self._stop.lookouts.append(end_if_orphaned)
        try:
            status = WORKER_ENDED + self._work(self._settings, self._options_now(), self._stop)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            status = Exit.DATABASE
        raise SystemExit(status)

    def _options_now(self) -> Options:
        """A replacement gets the rest of the line's time."""
        age = time.monotonic() - self._began_at
        linger, max_time = self._options.linger, self._options.max_time
        return self._options._replace(
            linger=max(linger - age, MIN_SECONDS) if linger else None,
            max_time=max(max_time - age, MIN_SECONDS) if max_time else None,
        )
