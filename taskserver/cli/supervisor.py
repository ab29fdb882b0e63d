"""worker.py --processes K: several workers of one crontab line, and the process that looks after them.

The workers are forked from it. It starts another one in the place of a worker that died, kills one whose task outran
its timeout and a grace, hands signals on, and makes one exit code and one set of lines of all. No code of tasks runs in
it, and it has no connection: another process gives back what a dead worker had claimed.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from logging import INFO, WARNING, getLogger
from typing import NoReturn

from ..errors import HostLimit
from ..interrupts.stop import Stop
from ..server import TaskServer
from ..settings.load import Settings
from ..worker.result import counts_in_words
from ..worker.run import Runner
from .report import NO_COUNTS, Part, Report
from .shared_memory import SharedMemory, SharedTokens
from .terminal.live_line import LiveLine
from .terminal.log import MAX_LINES, set_up
from .terminal.program import SIGNALS, Exit, Wishes, result_of, say
from .worker_options import Options

LOG = getLogger("taskserver")

LOOK_SECONDS = 0.1
GRACE_SECONDS = 10.0
"""A task that is interrupted at its timeout has so long to end."""
FROZEN_SECONDS = 1.0
"""Woken so much too late, the host stood still, and so did the workers."""
SHORT_LIFE_SECONDS = 60.0
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0
"""A worker that dies young over and over is started again after growing pauses, up to this."""
MAX_FORKS_REFUSED = 5
"""So many times in a row the host may refuse a process while no worker lives."""
MAX_RECLAIM_SECONDS = 60.0
RECLAIM_AGAIN_SECONDS = 1.0
RECLAIM_AT_END_SECONDS = 5.0
"""Once all are to end, nobody waits longer for a process that gives back: the leases end by themselves."""
MAX_DEATHS_TOLD = 20
MIN_SECONDS = 0.001


class _Place:
    """The place of one worker, and whoever has it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        """0: nobody has it."""
        self.is_first = True
        """Whether nobody had it before."""
        self.is_killed = False
        """Whether its worker was killed, as its task could not be ended."""
        self.is_replaced = False
        """Whether a worker died here."""
        self.began_at = 0.0
        self.start_at: float | None = 0.0
        """When a worker is to be started here; None: not any more."""
        self.pause_seconds = FIRST_PAUSE_SECONDS


class Supervisor:
    """Runs several workers until each has ended well."""

    def __init__(self, settings: Settings, options: Options, work: Callable[[Settings, Options, Part], Report]) -> None:
        """`work` makes a worker of a process."""
        self._settings = settings
        self._options = options
        self._work = work
        count = options.processes or 1
        self._places = [_Place(number) for number in range(count)]
        self._memory = SharedMemory(count)
        self._lines_left = {
            kind: SharedTokens(most, self._memory, index) for index, (kind, most) in enumerate(MAX_LINES.items())
        }
        self._count_in(count)
        self._began_at = time.monotonic()
        self._wishes = Wishes()
        """The wishes that all workers end."""
        self._deaths = 0
        self._forks_refused = 0
        self._patience_until = 0.0
        """After the host stood still, no worker is killed before this."""
        self._reclaimers: dict[int, float] = {}
        """Processes that give back what dead workers had claimed, and when each is to have ended."""
        self._reports: list[Report] = []

    def run(self) -> list[Report]:
        """Start the workers, and look after them; how they ended. In a worker's process it raises SystemExit."""
        live = LiveLine(sys.stdout)
        standard_error, _ = set_up(self._options.verbose, self._settings, live.clear, self._lines_left)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where the caller ignores it, nobody hears of a child's end
        for number in SIGNALS:
            signal.signal(number, self._note_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        handed_on = 0
        while self._reclaimers or any(place.pid or place.start_at is not None for place in self._places):
            self._start_due()
            self._sleep()
            while handed_on < self._wishes.count:
                handed_on += 1
                self._hand_on()
            self._kill_overdue()
            self._bury()
        standard_error.say_rest({kind: self._memory.untold(index) for index, kind in enumerate(MAX_LINES)})
        if self._deaths > MAX_DEATHS_TOLD:
            say(f"and {self._deaths - MAX_DEATHS_TOLD} more workers of this line died")
        counts = [sum(column) for column in zip(NO_COUNTS, *(report.counts for report in self._reports), strict=True)]
        seconds = time.monotonic() - self._began_at
        live.end(f"{counts_in_words(*counts[1:5])} in {seconds:.1f} s, by {len(self._places)} processes")
        for number in SIGNALS:  # all is over: as Python ends, a signal would have it look killed
            signal.signal(number, signal.SIG_IGN)
        return self._reports

    def _count_in(self, number: int) -> None:
        """Count the records that get no line in this cell from here on."""
        for tokens in self._lines_left.values():
            tokens.number = number

    def _note_signal(self, number: int, frame: object) -> None:
        self._wishes.hear(number)

    def _sleep(self) -> None:
        planned = time.monotonic() + LOOK_SECONDS
        time.sleep(LOOK_SECONDS)
        if time.monotonic() - planned > FROZEN_SECONDS:
            self._patience_until = time.monotonic() + GRACE_SECONDS

    # ---- a worker's begin

    def _start_due(self) -> None:
        for place in self._places:
            if place.pid or place.start_at is None or time.monotonic() < place.start_at:
                continue
            self._memory.begin(place.number)  # the deadline of the worker before would have the new one killed
            try:
                place.pid = self._fork(lambda place=place: self._be_worker(place))  # type: ignore[misc]
            except OSError as error:
                self._bear_refusal(place, error)
                continue
            place.start_at, place.began_at, place.is_first, place.is_killed = None, time.monotonic(), False, False
            self._forks_refused = 0

    def _bear_refusal(self, place: _Place, error: OSError) -> None:
        """Try later to start a worker where the host allows no process now. Raises HostLimit where it never does."""
        self._forks_refused += 1
        if self._forks_refused == 1:
            LOG.warning("the host lets no process be started now (%s): tried again", error.strerror)
        if self._forks_refused >= MAX_FORKS_REFUSED and not any(one.pid for one in self._places):
            raise HostLimit(f"the host lets no process be started: {error.strerror}; take fewer --processes")
        self._start_later(place)

    def _start_later(self, place: _Place) -> None:
        place.start_at = time.monotonic() + place.pause_seconds
        place.pause_seconds = min(place.pause_seconds * 2, MAX_PAUSE_SECONDS)

    def _fork(self, be: Callable[[], NoReturn]) -> int:
        """Start a process that is this from then on. Its process id. Raises OSError."""
        # A signal that comes before the child has handlers of its own would be lost on it.
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            pid = os.fork()
            if not pid:
                _end_with(be)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return pid

    def _be_worker(self, place: _Place) -> NoReturn:
        """Work in the child, and end it."""
        os.setpgid(0, 0)  # a terminal's Ctrl-C, and a signal to the group, come to the workers once, through us
        supervisor, memory = os.getppid(), self._memory
        stop = Stop()
        stop.line_began_at = self._began_at
        stop.lookouts.append(lambda: _end_if_orphaned(stop, supervisor))
        stop.tell_deadline = lambda instant: memory.tell_deadline(place.number, instant)
        self._count_in(place.number)
        report = Report(Exit.OK)
        options = self._options_left(place)
        part = Part(
            stop,
            LiveLine(io.StringIO()),
            self._lines_left,
            place.is_first,
            lambda: memory.tell_slot(place.number),
            memory.stops,
        )

        def work() -> int:
            nonlocal report
            _read_nothing()
            report = self._work(self._settings, options, part)
            return report.code

        code, words = result_of(work)
        memory.tell_report(place.number, report._replace(code=int(code), words=words or report.words))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        raise SystemExit(int(code))

    def _options_left(self, place: _Place) -> Options:
        """The options of a worker that begins now: of its time, what the workers before it in this place have left."""
        gone = time.monotonic() - self._memory.slot_at(place.number) if not place.is_first else 0.0
        linger, max_time = (
            None if seconds is None else max(seconds - gone, MIN_SECONDS)
            for seconds in (self._options.linger, self._options.max_time)
        )
        return self._options._replace(linger=linger, max_time=max_time)

    # ---- its end

    def _kill_overdue(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if place.pid and now > max(self._memory.deadline(place.number) + GRACE_SECONDS, self._patience_until):
                LOG.warning("process %d is killed: its task goes on %g s after its timeout", place.pid, GRACE_SECONDS)
                self._memory.begin(place.number)
                place.is_killed = True
                os.kill(place.pid, signal.SIGKILL)
        for pid, end_at in self._reclaimers.items():
            if now > end_at:
                os.kill(pid, signal.SIGKILL)

    def _hand_on(self) -> None:
        """Ask each worker to end, and start no other one."""
        self._memory.tell_stop()
        until = time.monotonic() + RECLAIM_AT_END_SECONDS
        self._reclaimers = {pid: min(end_at, until) for pid, end_at in self._reclaimers.items()}
        for place in self._places:
            place.start_at = None
            if place.pid:
                os.kill(place.pid, signal.SIGTERM)

    def _bury(self) -> None:
        """Take note of the processes that have ended."""
        dead = []
        for place in self._places:
            pid, status = os.waitpid(place.pid, os.WNOHANG) if place.pid else (0, 0)
            if not pid:
                continue
            place.pid = 0
            report = self._memory.report(place.number)
            if report is None:
                self._deaths += 1
                if place.is_killed or self._memory.deadline(place.number) <= time.monotonic():
                    self._reports.append(Report(Exit.DATABASE))  # its task could not be ended
                level = WARNING if self._deaths <= MAX_DEATHS_TOLD else INFO
                LOG.log(level, "process %d, a worker of this line, died: %s", pid, _cause(status))
                dead.append(pid)
                self._replace(place)
            elif self._is_to_try_again(place, report):
                LOG.info("a worker is started again in the place of process %d: %s", pid, report.words)
                self._replace(place)
            else:
                self._reports.append(report)
        if dead:
            with suppress(OSError):  # no process for it: the leases end by themselves
                pid = self._fork(lambda: self._be_reclaimer(dead))
                most = RECLAIM_AT_END_SECONDS if self._wishes.count else MAX_RECLAIM_SECONDS
                self._reclaimers[pid] = time.monotonic() + most
        for pid in list(self._reclaimers):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._reclaimers[pid]

    def _is_to_try_again(self, place: _Place, report: Report) -> bool:
        """Whether a worker in the place of one that died met no database, while others are at work.

        It may have been away for a moment, or have had no free connection.
        """
        return bool(place.is_replaced and report.outage and any(other.pid for other in self._places))

    def _replace(self, place: _Place) -> None:
        """Have another worker take a place."""
        if self._wishes.count:
            return
        if time.monotonic() - place.began_at > SHORT_LIFE_SECONDS:
            place.pause_seconds = FIRST_PAUSE_SECONDS
        place.is_replaced = True
        self._start_later(place)

    def _be_reclaimer(self, dead: Collection[int]) -> NoReturn:
        """Give back the tasks of workers that died; this may call code of tasks, as TASKSERVER_ON_FAILURE."""
        try:
            for number in SIGNALS:
                signal.signal(number, _do_nothing)  # what a hook starts would inherit that they are ignored, or blocked
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            until, supervisor, words = time.monotonic() + self._settings.patience_seconds, os.getppid(), ""
            # What took a worker may have taken the database, too.
            while (result := result_of(lambda: self._reclaim(dead))).code and time.monotonic() < until:
                if result.words != words:
                    LOG.info("the tasks of workers that died cannot be taken back yet: %s", result.words)
                words = result.words
                time.sleep(RECLAIM_AGAIN_SECONDS)
                if os.getppid() != supervisor:  # nobody would end this one
                    break
        finally:
            os._exit(0)

    def _reclaim(self, dead: Collection[int]) -> int:
        with TaskServer.from_settings(self._settings) as server:
            Runner(server.store, self._settings).reclaim(dead)
        return Exit.OK


def _end_with(be: Callable[[], NoReturn]) -> NoReturn:
    """Be a child to the end: an error that got out of it would make it a second supervisor."""
    try:
        be()
    except SystemExit:
        raise
    except BaseException:
        if sys.flags.dev_mode:
            sys.excepthook(*sys.exc_info())
        os._exit(Exit.DATABASE)


def _do_nothing(number: int, frame: object) -> None:
    """Let a signal pass."""


def _read_nothing() -> None:
    """Have standard input end at once: a process in the background that reads from its terminal is stopped."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing:
        os.close(nothing)


def _end_if_orphaned(stop: Stop, supervisor: int) -> None:
    if os.getppid() != supervisor and not stop.asked:
        LOG.info("the supervisor is gone: this worker ends after its task")
        stop.ask()


def _cause(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
