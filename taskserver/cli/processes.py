"""worker.py --processes K: K workers of one crontab line, and the process that looks after them.

It forks the workers, starts another one in the place of one that died, and hands signals on. No code of tasks runs in
it, and it has no connection. What a dead worker had claimed comes back with the next worker that begins on this host.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from logging import INFO, WARNING, getLogger
from typing import NoReturn

from ..errors import HostLimit
from ..interrupts.stop import Stop
from ..messages.programs import WORKER
from ..settings.load import Settings
from .terminal.log import set_up
from .terminal.program import SIGNALS, Exit, Wishes, result_of, say
from .worker_options import Options

LOG = getLogger("taskserver")

ENDED = 200
"""Added to a worker's own exit code: with any other status it died."""
LOOK_SECONDS = 0.1
ONE_WISH_OF_LINE_SECONDS = 1.0
"""Longer than in a worker: two that are handed on count there as two."""
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
"""Workers that die young again and again are started again after growing pauses, up to this."""
YOUNG_SECONDS = 60.0
MAX_FORKS_REFUSED = 5
"""The host may refuse a process so often in a row while no worker lives."""
MAX_DEATHS_LOGGED = 20
MIN_SECONDS = 0.001

Work = Callable[[Settings, Options, Stop, bool], int]


class _Place:
    """The place of one worker."""

    def __init__(self) -> None:
        self.pid = 0
        """0: no worker runs here."""
        self.began_at = 0.0
        self.start_at: float | None = 0.0
        """When a worker starts here; None: none does any more."""
        self.pause_seconds = FIRST_PAUSE_SECONDS

    def start_later(self) -> None:
        self.start_at = time.monotonic() + self.pause_seconds
        self.pause_seconds = min(self.pause_seconds * 2, MAX_PAUSE_SECONDS)


class Processes:
    """The workers of one line."""

    def __init__(self, settings: Settings, options: Options, work: Work) -> None:
        """`work` runs a worker in its process, and returns the exit code; its last argument: whether it is the first
        in its place.
        """
        self._settings = settings
        self._options = options
        self._work = work
        self._places = [_Place() for _ in range(options.processes or 1)]
        self._began_at = time.monotonic()
        self._wishes = Wishes(ONE_WISH_OF_LINE_SECONDS)
        self._worst = int(Exit.OK)
        self._deaths = 0
        self._forks_refused = 0

    def run(self) -> int:
        """Run the workers until each has ended: the worst exit code. In a worker's process it raises SystemExit."""
        set_up(self._options.verbose, self._settings, lambda: None)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the caller ignores it, waitpid gets no status
        for number in SIGNALS:
            signal.signal(number, lambda number, frame: self._wishes.hear(number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        handed_on = 0
        while any(place.pid or place.start_at is not None for place in self._places):
            for place in self._places:
                if place.start_at is not None and time.monotonic() >= place.start_at:
                    self._start(place)
            time.sleep(LOOK_SECONDS)
            while handed_on < self._wishes.count:  # the second one interrupts the tasks
                handed_on += 1
                self._hand_on()
            for place in self._places:
                pid, status = os.waitpid(place.pid, os.WNOHANG) if place.pid else (0, 0)
                if pid:
                    self._note_end(place, os.waitstatus_to_exitcode(status))
        if self._deaths > MAX_DEATHS_LOGGED:
            say(f"and {self._deaths - MAX_DEATHS_LOGGED} more workers of this line died")
        for number in SIGNALS:  # all is over: as Python ends, a signal would look like a death
            signal.signal(number, signal.SIG_IGN)
        return self._worst

    def _start(self, place: _Place) -> None:
        is_first = not place.began_at
        # A signal that comes before the worker has its own handlers waits.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            place.pid = os.fork()
            if not place.pid:
                self._be_worker(is_first)
        except OSError as error:
            self._forks_refused += 1
            if self._forks_refused == 1:
                LOG.warning("the host lets no process be started now (%s): tried again", error.strerror)
            if self._forks_refused >= MAX_FORKS_REFUSED and not any(one.pid for one in self._places):
                words = f"the host lets no process be started: {error.strerror}; take fewer --processes"
                raise HostLimit(words) from None
            place.start_later()
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        place.start_at, place.began_at = None, time.monotonic()
        self._forks_refused = 0

    def _hand_on(self) -> None:
        for place in self._places:
            place.start_at = None
            if place.pid:
                os.kill(place.pid, signal.SIGTERM)

    def _note_end(self, place: _Place, status: int) -> None:
        pid, place.pid = place.pid, 0
        if status - ENDED in list(Exit):
            self._worst = max(self._worst, status - ENDED)
            return
        self._worst = max(self._worst, Exit.DATABASE)
        self._deaths += 1
        cause = signal.Signals(-status).name if status < 0 else f"exit code {status}"
        level = WARNING if self._deaths <= MAX_DEATHS_LOGGED else INFO
        LOG.log(level, "process %d, a worker of this line, died: %s", pid, cause)
        if not self._wishes.count:
            if time.monotonic() - place.began_at > YOUNG_SECONDS:
                place.pause_seconds = FIRST_PAUSE_SECONDS
            place.start_later()

    # ---- in a worker's process

    def _be_worker(self, is_first: bool) -> NoReturn:
        """Work, and end. Nothing but SystemExit gets out: it would make the worker a second supervisor."""
        supervisor = os.getppid()

        def end_if_orphaned() -> None:
            if os.getppid() != supervisor and not stop.asked:
                LOG.info("the supervisor is gone: this worker ends after its task")
                stop.ask()

        stop = Stop()
        stop.line_began_at = self._began_at
        stop.lookouts.append(end_if_orphaned)
        try:
            code, words, _ = result_of(lambda: self._work_in_background(stop, is_first))
            if words:
                say(f"{WORKER}: {words}")
            raise SystemExit(ENDED + code)
        except SystemExit:
            raise
        except BaseException:
            if sys.flags.dev_mode:
                sys.excepthook(*sys.exc_info())
            os._exit(Exit.DATABASE)

    def _work_in_background(self, stop: Stop, is_first: bool) -> int:
        os.setpgid(0, 0)  # a terminal's Ctrl-C, and a signal to the group, come once, through the supervisor
        nothing = os.open(
            os.devnull, os.O_RDONLY
        )  # a process in the background that reads from its terminal is stopped
        os.dup2(nothing, 0)
        os.close(nothing)
        options, age = self._options, time.monotonic() - self._began_at
        if not is_first:  # its time is what the line has left
            linger, max_time = (
                None if seconds is None else max(seconds - age, MIN_SECONDS)
                for seconds in (options.linger, options.max_time)
            )
            options = options._replace(linger=linger, max_time=max_time)
        return self._work(self._settings, options, stop, is_first)
