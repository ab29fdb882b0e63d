"""worker.py --processes K: several workers of one crontab line, and the process that looks after them.

The workers are forked from it. It starts another one in the place of a worker that died, kills one whose task outran
its timeout and a grace, hands signals on, and makes one exit code and one set of lines of all. It connects to the
database for the moment alone in which it gives a dead worker's tasks back.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from logging import getLogger
from typing import Any, NoReturn, Protocol

from ..errors import DatabaseError
from ..interrupts.stopping import Stop
from ..server import TaskServer
from ..settings.load import Settings
from ..worker.run import Runner
from .report import Report, in_words
from .terminal.live_line import LiveLine
from .terminal.log import MAX_LINES, Tokens, set_up
from .terminal.program import Exit, outcome_of
from .worker_options import Options

LOG = getLogger("taskserver")

LOOK_SECONDS = 0.1
GRACE_SECONDS = 10.0
"""A task that is interrupted at its timeout has so long to end."""
FROZEN_SECONDS = 1.0
"""Woken so much too late, the host stood still, and so did the workers."""
SHORT_LIFE_SECONDS = 60.0
MAX_PAUSE_SECONDS = 30.0
"""A worker that dies young over and over is started again after growing pauses, up to this."""
MIN_SECONDS = 0.001
MAX_REPORT_BYTES = 65_536
NO_DEADLINE = float("inf")
_INSTANT = struct.Struct("d")


class Work(Protocol):
    """Be a worker, in its own process."""

    def __call__(
        self, settings: Settings, options: Options, stop: Stop, live: LiveLine, lines_left: Mapping[str, Tokens]
    ) -> Report: ...


class _Place:
    """The place of one worker, and whoever has it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 0
        """0: nobody has it."""
        self.report_end = -1
        """The descriptor from which its report is read."""
        self.began_at = 0.0
        self.start_at: float | None = 0.0
        """When a worker is to be started here; None: not any more."""
        self.pause_seconds = 0.5


class Supervisor:
    """Runs several workers until each has ended well."""

    def __init__(self, settings: Settings, options: Options, work: Work) -> None:
        self._settings = settings
        self._options = options
        self._work = work
        count = options.processes or 1
        self._places = [_Place(number) for number in range(count)]
        self._deadlines = mmap.mmap(-1, count * _INSTANT.size)
        self._lines_left = {kind: SharedTokens(count) for kind, count in MAX_LINES.items()}
        self._began_at = time.monotonic()
        self._signals = 0
        """How many signals came that ask all workers to end."""
        self._patience_until = 0.0
        """After the host stood still, no worker is killed before this."""
        self._reports: list[Report] = []

    def run(self) -> int:
        """Start the workers, and look after them; the exit code for all. In a worker's process it raises SystemExit."""
        live = LiveLine(sys.stdout)
        standard_error, _ = set_up(self._options.verbose, self._settings, live.clear)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        handed_on = 0
        while any(place.pid or place.start_at is not None for place in self._places):
            for place in self._places:
                if not place.pid and place.start_at is not None and time.monotonic() >= place.start_at:
                    self._start(place)
            self._sleep()
            while handed_on < self._signals:
                handed_on += 1
                self._hand_on()
            self._kill_overdue()
            self._bury()
        standard_error.tell_more(
            {kind: sum(report.untold.get(kind, 0) for report in self._reports) for kind in MAX_LINES}
        )
        for words in dict.fromkeys(report.words for report in self._reports if report.words):
            print(f"worker.py: {words}", file=sys.stderr)
        counts = [sum(column) for column in zip(*(report.counts for report in self._reports), strict=True)]
        seconds = time.monotonic() - self._began_at
        live.end(f"{in_words(counts)} in {seconds:.1f} s, by {len(self._places)} processes")
        return max(report.code for report in self._reports)

    def _note_signal(self, number: int, frame: object) -> None:
        self._signals += 1

    def _sleep(self) -> None:
        planned = time.monotonic() + LOOK_SECONDS
        time.sleep(LOOK_SECONDS)
        if time.monotonic() - planned > FROZEN_SECONDS:
            self._patience_until = time.monotonic() + GRACE_SECONDS

    # ---- a worker's begin

    def _start(self, place: _Place) -> None:
        self._tell_deadline(place.number, NO_DEADLINE)
        reads, writes = os.pipe()
        # A signal that comes before the child has handlers of its own would be lost on it.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            pid = os.fork()
            if not pid:
                os.close(reads)
                self._be_worker(place, writes)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
        os.close(writes)
        place.pid, place.report_end, place.start_at, place.began_at = pid, reads, None, time.monotonic()

    def _be_worker(self, place: _Place, report_end: int) -> NoReturn:
        """Work in the child, and end it."""
        os.setpgid(0, 0)  # a terminal's Ctrl-C, and a signal to the group, come to the workers once, through us
        supervisor = os.getppid()
        stop = Stop()
        stop.lookouts.append(lambda: _end_if_orphaned(stop, supervisor))
        stop.tell_deadline = lambda instant: self._tell_deadline(place.number, instant)
        report = Report(Exit.OK)

        def work() -> int:
            nonlocal report
            report = self._work(self._settings, self._options_left(), stop, LiveLine(io.StringIO()), self._lines_left)
            return report.code

        code, words = outcome_of(work)
        with suppress(OSError):  # the supervisor is gone
            os.write(report_end, json.dumps(report._replace(code=code, words=words)).encode())
        raise SystemExit(int(code))

    def _options_left(self) -> Options:
        """The options of a worker that begins now: of its time, what is left."""
        gone = time.monotonic() - self._began_at
        linger, max_time = (
            None if seconds is None else max(seconds - gone, MIN_SECONDS)
            for seconds in (self._options.linger, self._options.max_time)
        )
        return self._options._replace(linger=linger, max_time=max_time)

    def _tell_deadline(self, number: int, instant: float) -> None:
        _INSTANT.pack_into(self._deadlines, number * _INSTANT.size, instant)

    # ---- its end

    def _kill_overdue(self) -> None:
        for place in self._places:
            (deadline,) = _INSTANT.unpack_from(self._deadlines, place.number * _INSTANT.size)
            if place.pid and time.monotonic() > max(deadline + GRACE_SECONDS, self._patience_until):
                LOG.warning("process %d is killed: its task goes on %g s after its timeout", place.pid, GRACE_SECONDS)
                self._tell_deadline(place.number, NO_DEADLINE)
                os.kill(place.pid, signal.SIGKILL)

    def _hand_on(self) -> None:
        """Ask each worker to end, and start no other one."""
        for place in self._places:
            place.start_at = None
            if place.pid:
                os.kill(place.pid, signal.SIGTERM)

    def _bury(self) -> None:
        """Take note of the workers that have ended."""
        for place in self._places:
            pid, status = os.waitpid(place.pid, os.WNOHANG) if place.pid else (0, 0)
            if pid:
                place.pid = 0
                report = _read_report(place.report_end)
                if report is not None:
                    self._reports.append(report)
                else:
                    LOG.warning("process %d, a worker of this line, died: %s", pid, _cause(status))
                    self._replace(place, pid)

    def _replace(self, place: _Place, child: int) -> None:
        """Give back the tasks of a worker that died, and have another one take its place."""
        with suppress(DatabaseError), TaskServer.from_settings(self._settings) as server:
            Runner(server.store, self._settings).reclaim(child)
        if self._signals:
            return
        if time.monotonic() - place.began_at > SHORT_LIFE_SECONDS:
            place.pause_seconds = 0.5
        place.start_at = time.monotonic() + place.pause_seconds
        place.pause_seconds = min(place.pause_seconds * 2, MAX_PAUSE_SECONDS)


def _end_if_orphaned(stop: Stop, supervisor: int) -> None:
    if os.getppid() != supervisor and not stop.asked:
        LOG.info("the supervisor is gone: this worker ends after its task")
        stop.ask()


class SharedTokens(Tokens):
    """So many lines that several processes may write together: bytes in a pipe, of which each line takes one."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._pipe, writes = os.pipe()
        os.write(writes, b"." * count)
        os.close(writes)

    def take(self) -> bool:
        return bool(os.read(self._pipe, 1))


def _cause(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _read_report(descriptor: int) -> Report | None:
    """The report of a worker that has ended; None where it died without one."""
    os.set_blocking(descriptor, False)  # a process that a task left behind may have the other end
    try:
        found: Any = json.loads(os.read(descriptor, MAX_REPORT_BYTES))
        return Report._make(found)
    except (OSError, ValueError, TypeError):
        return None
    finally:
        os.close(descriptor)
