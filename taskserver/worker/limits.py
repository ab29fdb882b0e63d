"""The limits of a run: when it ends, how much it claims, and what still fits into its time.

To add a limit: a field of Limits, its check in `checked_limits`, and a line in `RunLimits.reason_to_end`, or in
`_reason_of_host` if it also stops tasks in hand. Its reason is in result.py, its options in `TaskServer.run` and
cli/worker_options.py.
"""

# No deferred annotations here: named tuples would compile them in every empty run.

import os
import sys
import time
from collections.abc import Callable
from errno import EMFILE
from typing import NamedTuple

from ..errors import HostLimit, SettingError
from ..interrupts.stop import HAS_TIMER, Stop
from ..messages.text import Duration
from ..model.checks import check_duration, check_number, check_positive
from ..model.task import MAX_BATCH
from .result import Reason, RunResult


class Limits(NamedTuple):
    """The limits that a person sets for a run."""

    max_tasks: int = 0
    """0: no limit."""
    batch: int = 100
    """Most tasks of one claim."""
    max_seconds: float | None = None
    max_megabytes: float | None = None
    """Memory of the process at which nothing more is started, in units of 1,000,000 bytes."""
    linger_seconds: float | None = None
    """Age of the run until which it waits for new tasks; None: it ends when its queue is empty."""


NO_LIMITS = Limits()
CLAIM_SECONDS = 0.5
"""Work of one claim: not more, as later tasks may be more urgent, and other workers idle."""
FEW_FILES, SPARE_FILES = 100, 16
"""Open files that no limit forbids, and free ones that the next task needs."""
LONGEST_SHARE = 0.9
"""Of a run's time: no task is assumed to need more."""
OVERTAKEN_SECONDS = 3600.0
OVERTAKEN_TIMES = 3
"""A task that waited at least so long, and so many times longer than every other task of the run, starts even if it may
not fit: else more urgent tasks could overtake it for ever."""


def checked_limits(
    max_tasks: int, batch: int, max_time: Duration | None, max_memory: float | None, linger: Duration | None
) -> Limits:
    """The limits of `TaskServer.run`. Raises SettingError, which names the limit."""
    return Limits(
        check_number("max_tasks", max_tasks, 0, wrong=SettingError),
        check_number("batch", batch, 1, MAX_BATCH, SettingError),
        None if max_time is None else check_duration("max_time", max_time, wrong=SettingError),
        check_positive("max_memory", max_memory, "megabytes"),
        None if linger is None else check_duration("linger", linger, wrong=SettingError),
    )


def check_system() -> None:
    """Raises SettingError on a system where nothing could interrupt a task."""
    if not HAS_TIMER:
        raise SettingError(
            "a worker needs Linux or another Unix: on Windows start it in WSL; adding, listing and testing work here"
        )


class ClaimSize:
    """How many tasks the next claim takes: 1 at first, then as many as fill half a second."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = 1
        """How many more tasks the run may take."""
        self._least = 1
        """The N of a batch or round that was found since the last claim."""
        self._seconds = CLAIM_SECONDS
        """Usual time of a task in this run, with the overhead of the queue."""
        self._asked = 1
        """Size of the last claim."""
        self._was_full = True
        """Whether the last claim got that many."""

    def next(self, left: int | None) -> int:
        """The size of the next claim; `left` is how many more tasks the run may take, None: any number."""
        self._left = self._most if left is None else left
        self._asked, self._least = self._size(), 1
        return self._asked

    def _size(self) -> int:
        fill = int(CLAIM_SECONDS / max(self._seconds, 1e-4))
        return max(min(max(fill, self._least), self._most, self._left), 1)

    def note(self, tasks: int, seconds: float) -> None:
        """Learn from a claim of which so many tasks ran: adapt to slower ones at once, to faster ones gradually."""
        if tasks:
            self._seconds = max(seconds / tasks, (self._seconds + 3 * seconds / tasks) / 4)

    def note_claimed(self, tasks: int) -> None:
        self._was_full = tasks == self._asked

    def want(self, tasks: int) -> bool:
        """Ask for this many in the next claim. Returns whether it will probably get more than the last one."""
        self._least = max(self._least, tasks)
        return self._was_full and tasks > self._asked and self._size() > self._asked


class RunLimits:
    """The limits of one run, and how much of them it has used."""

    def __init__(self, limits: Limits, stop: Stop, result: RunResult) -> None:
        self._limits = limits
        self.has_max_time = limits.max_seconds is not None
        self._stop = stop
        self._result = result
        self._began_at = time.monotonic()
        self._waited_seconds = 0.0
        """Time that it waited for new tasks."""
        self._known_seconds = 0.0
        """The time that `fits` was last asked about; 0: unknown."""
        self._longest_wait = 0.0
        """Of the tasks that were started so far."""
        self._is_full = False
        """Whether a task was left because it may not fit into the remaining time."""
        self.is_outdated = False
        """Whether a task needs newer code, which the files have."""
        self.called_with_others = 0
        """How many of the taken tasks shared a call."""
        self.claim_size = ClaimSize(limits.batch)

    def reason_to_end(self) -> Reason | None:
        """Why nothing more should be claimed or started; None if the run goes on."""
        limits, taken = self._limits, self._result.taken
        if self._stop.should_end():
            return Reason.STOPPED if self._stop.asked else Reason.HANDED_OVER
        if limits.max_tasks and taken >= limits.max_tasks:
            return Reason.MAX_TASKS
        return self._reason_of_host(taken - self.called_with_others)

    def should_leave(self) -> bool:
        """Whether tasks in hand should not be started one by one either."""
        return self._stop.should_end() or self._reason_of_host(self._result.taken) is not None

    def _reason_of_host(self, calls: int) -> Reason | None:
        """The reason by time or memory; the next call is assumed to take as long as the mean of the `calls` so far."""
        limits = self._limits
        if self.is_outdated:
            return Reason.OUTDATED
        if self._is_full:
            return Reason.MAX_TIME
        if limits.max_seconds is not None and self.elapsed() + self._usual_seconds(calls) >= limits.max_seconds:
            return Reason.MAX_TIME
        return Reason.MAX_MEMORY if limits.max_megabytes is not None and self.is_too_large() else None

    def fits(self, seconds: float, waited_seconds: float) -> bool:
        """Whether to start a task that may take so long, and has waited so long. If not, the run ends.

        The first task of a run always starts, unless the run has lingered: else a task that fits into no run would
        never run. So does a task that is always overtaken, but not in a backlog, where all have waited.
        """
        most, self._known_seconds = self._limits.max_seconds, seconds
        is_first = self._result.taken == 0 and not self._waited_seconds
        is_overtaken = waited_seconds >= max(OVERTAKEN_SECONDS, OVERTAKEN_TIMES * self._longest_wait)
        if most is not None and not is_first and not is_overtaken:
            self._is_full = self.elapsed() + min(seconds, most * LONGEST_SHARE) > most
        self._longest_wait = max(self._longest_wait, waited_seconds)
        return not self._is_full

    def _usual_seconds(self, calls: int) -> float:
        """Mean seconds of the `calls` so far, with the overhead of the queue."""
        return (self.elapsed() - self._waited_seconds) / calls if calls else 0.0

    def wait(self, seconds: float, rest: Callable[[float], object] = time.sleep) -> bool:
        """Wait at most so long for new tasks; `rest` is that of `Stop.wait`. False if the run should end."""
        limits = self._limits
        ends = [end for end in (limits.linger_seconds, limits.max_seconds) if end is not None]
        left = min(ends) - self.elapsed() if limits.linger_seconds is not None else 0.0
        if left <= 0:
            return False
        began_at = time.monotonic()
        goes_on = self._stop.wait(min(seconds, left), rest)
        self._waited_seconds += time.monotonic() - began_at
        return goes_on

    def is_too_large(self) -> bool:
        most = self._limits.max_megabytes
        return most is not None and process_megabytes() > most

    def tasks_left(self) -> int | None:
        """How many more tasks the run may take; None: any number."""
        return self._limits.max_tasks - self._result.taken if self._limits.max_tasks else None

    def max_together(self, max_items: int) -> int:
        """How many tasks, from 1 to `max_items`, one call may have in the remaining time, with the last taken one."""
        usual_seconds = max(self._usual_seconds(self._result.taken - 1), self._known_seconds)
        if self._limits.max_seconds is None or not usual_seconds:
            return max_items
        return max(min(max_items, int((self._limits.max_seconds - self.elapsed()) / usual_seconds)), 1)

    def elapsed(self) -> float:
        return time.monotonic() - self._began_at


def process_megabytes() -> float:
    """Memory of this process in units of 1,000,000 bytes; its peak if the system reports only that."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    except (OSError, ValueError, IndexError):
        import resource  # not needed with /proc

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def check_open_files(ran_last: str) -> None:
    """Raises HostLimit if tasks have used up the open files of this process."""
    try:
        lowest_free = os.dup(2)
        os.close(lowest_free)
    except OSError as error:
        is_used_up = error.errno == EMFILE
    else:
        is_used_up = lowest_free > FEW_FILES and lowest_free + SPARE_FILES > _most_files()
    if is_used_up:
        raise HostLimit(
            "Too many open files: tasks keep theirs open until the run ends: close files and connections in them"
            + f" ({ran_last} ran last)" * bool(ran_last)
        )


def _most_files() -> float:
    import resource  # few runs get here

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return float("inf") if most == resource.RLIM_INFINITY else most
