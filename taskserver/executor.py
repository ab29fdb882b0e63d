"""A claimed task's way through prepare → start → call → finish.

The finish of one task and the start of the next share a commit: both are on the disk before the next one's
code runs, and a task costs one commit instead of two.
"""

from __future__ import annotations

from logging import getLogger
from typing import NamedTuple

from .call import Call, prepare, run_task
from .callables import Callables
from .error_text import describe
from .errors import BadTask, ModuleBroken, TaskServerError
from .run_result import RunResult
from .settings import Settings
from .stopping import Stop, TaskInterrupted
from .stores import Store
from .task import ClaimedTask, Finish, Start

LOG = getLogger("taskserver")
FATAL = {"is_fatal": True}
"""Marks the log record of a task that became fatal, as a worker shows only so many of them."""
MOST_UNSAVED = 50


class _Ended(NamedTuple):
    """A task that is over, its finish not yet written."""

    finish: Finish
    error: BaseException | None


class Executor:
    """Runs the claimed tasks of one run, one by one, and counts what became of them."""

    def __init__(self, store: Store, settings: Settings, stop: Stop, result: RunResult) -> None:
        self._store = store
        self._max_attempts = settings.max_attempts
        self._callables = Callables(settings.modules)
        self._stop = stop
        self._result = result
        self._ended: list[_Ended] = []

    def run(self, task: ClaimedTask) -> None:
        """Run one task; its finish is written with the next start, or by `save`."""
        self._result.taken += 1
        limit = self._max_attempts if task.max_attempts is None else task.max_attempts
        try:
            call = self._prepare(task, limit)
        except BadTask as error:
            self._end(task, error)
            return
        except ModuleBroken as error:
            # Not the row's fault, and it may be mended: an attempt like any other that failed.
            if self._start(task, limit):
                self._end(task, error)
            return
        if self._start(task, limit):
            self._end(task, run_task(call, self._stop))

    def save(self) -> None:
        """Write the finishes that were not written yet."""
        if self._ended:
            self._advance(None)

    def _prepare(self, task: ClaimedTask, limit: int) -> Call:
        if task.attempts >= limit:
            raise BadTask(
                f"it was started {task.attempts} times of {limit}; to run it again, set status and attempts to 0"
            )
        if not isinstance(task.task, str) or not isinstance(task.args, str | None):
            raise BadTask("task and args are text; this row holds something else")
        try:
            if not self._callables.is_known(task.task):
                self._find_first(task)
            return prepare(task, self._callables, self._store.fetch_args)
        except TaskServerError:
            raise
        except Exception as error:  # a listed module can hold objects as odd as any row
            raise BadTask(f"it cannot be made ready: {describe(error)}") from error

    def _find_first(self, task: ClaimedTask) -> None:
        """Find a callable whose module may not be imported yet, which runs that module's own code."""
        # That code could end the process: nothing may be unsaved then.
        self.save()
        try:
            with self._stop.interruptible():
                self._callables.find(task.task)
        except TaskInterrupted as error:
            raise ModuleBroken(f"its module was being imported: {error}") from error

    def _start(self, task: ClaimedTask, limit: int) -> bool:
        started = self._advance(Start(task, limit))
        if not started:
            self._lose(task, "before it started")
        return started

    def _end(self, task: ClaimedTask, error: BaseException | None) -> None:
        self._ended.append(_Ended(Finish(task, None if error is None else describe(error)), error))
        # Bad rows end unstarted, so a whole claim of them may gather: a server limits how long a statement may be.
        if len(self._ended) >= MOST_UNSAVED:
            self.save()

    def _advance(self, start: Start | None) -> bool:
        """Write what ended, and the start of the next task. Whether that start still found its claim."""
        finished, started = self._store.advance([ended.finish for ended in self._ended], start)
        ended, self._ended = self._ended, []
        for one, in_time in zip(ended, finished, strict=True):
            self._count(one, in_time)
        return started

    def _count(self, ended: _Ended, in_time: bool) -> None:
        task, error_text = ended.finish
        if not in_time:
            self._lose(task, "while it ran; its result is dropped")
        elif error_text is None:
            self._result.done += 1
            LOG.debug("task %d %s is done", task.id, task.task)
        else:
            self._result.fatal += 1
            # A bad row says all in its one line; where a task raised, the log has the traceback too.
            traceback = None if isinstance(ended.error, BadTask) else ended.error
            first_line = error_text.partition("\n")[0]
            LOG.warning("task %d %s is fatal: %s", task.id, task.task, first_line, extra=FATAL, exc_info=traceback)

    def _lose(self, task: ClaimedTask, when: str) -> None:
        self._result.lost += 1
        LOG.warning("task %d %s: the lease was lost %s", task.id, task.task, when)
