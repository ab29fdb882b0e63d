"""A claimed task's way through prepare → start → call → finish.

The finish of one task and the start of the next share a commit: both are on the disk before the next one's
code runs, and a task costs one commit instead of two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Any, NamedTuple

from .arguments import read_arguments
from .call import Call, Failure, Returned, failure_of, fetch_long, prepare, run_alone, run_call, run_foreign
from .callables import Callables
from .error_text import both, describe
from .errors import BadTask, Conflict, DatabaseError, Fatal, ModuleBroken, TooLong
from .figures import NO_NAME, Attempt, Figures
from .heartbeat import Heartbeat
from .inside import inside
from .lifecycle import CANCELLED, ClaimedTask, Finish, Outcome, Start
from .run_limits import RunLimits
from .run_result import FATAL, RunResult
from .running import Watch
from .settings import MAX_ATTEMPTS, Settings
from .stopping import STOPPED, Stop, TaskInterrupted
from .stores import Store
from .time_limit import TimeLimit

LOG = getLogger("taskserver")
MOST_UNSAVED = 50
MOST_CHARACTERS_UNSAVED = 200_000
"""Of results, and of arguments for next stages: a server limits how long a statement may be."""
TOO_LONG_RESULT = "is longer than the server takes (max_allowed_packet)"
TOO_LONG_TEXT = "Fatal: what it returned, for the next stage, is longer than the server takes (max_allowed_packet)"


class Ended(NamedTuple):
    """A task that is over, its finish not yet written."""

    finish: Finish
    attempt: Attempt | None
    """None of a bad row, which was not started."""
    full_texts: tuple[str, ...]
    """For the log, of each error that it ended with."""


class RunContext(NamedTuple):
    """What one run has beside its tasks."""

    store: Store
    settings: Settings
    heartbeat: Heartbeat
    time_limit: TimeLimit
    stop: Stop
    result: RunResult
    figures: Figures
    limits: RunLimits


class Executor:
    """Runs the claimed tasks of one run, one by one, and counts what became of them."""

    def __init__(self, run: RunContext) -> None:
        self._store = run.store
        self._settings = run.settings
        self._callables = Callables(run.settings.modules, run.settings.folder)
        self._heartbeat = run.heartbeat
        self._time_limit = run.time_limit
        self._stop = run.stop
        self._result = run.result
        self._figures = run.figures
        self._timed: Attempt | None = None
        """The attempt at the task that runs, from its start on."""
        self._ended: list[Ended] = []
        self._keeps_results = run.settings.mode != "delete"
        self._without_result: set[str] = set()
        """Names of callables that returned what cannot be kept."""
        self._may_be_saved = False
        """Whether an error in writing them left open if they were written."""
        self.may_have_due = False
        """Whether something may be due now because of what has ended: another task that waited for it, say."""

    def run(self, task: ClaimedTask) -> None:
        """Run one task; its finish is written with the next start, or by `save`."""
        self._result.taken += 1
        self._timed = None
        try:
            task = self._whole(task)
            if self._callables.would_import(task.task):
                self._run_after_import(task)
                return
            call, limit = self._ready(task)
        except BadTask as error:
            self._end(Finish(task, describe(error)))
            return
        except ModuleBroken as error:
            self._run_broken(task, failure_of(error))
            return
        self._run_ready(task, call, limit)

    def save(self) -> None:
        """Write the finishes that were not written yet."""
        if self._ended:
            self._advance(None)

    def _run_ready(self, task: ClaimedTask, call: Call, limit: int) -> None:
        """Run a task whose callable is known."""
        if self._start(task, limit):
            self._attempt(task, call)

    def _run_started(self, task: ClaimedTask, call: Call, limit: int) -> None:
        """The same for one that was started before its callable was known."""
        self._attempt(task, call)

    # ---- prepare

    def _whole(self, task: ClaimedTask) -> ClaimedTask:
        """The task with all of its arguments. Raises BadTask."""
        if not isinstance(task.task, str) or not (task.args is None or isinstance(task.args, str)):
            raise BadTask("task and args are text; this row holds something else")
        # Kept as it is now: a rerun may change the row while it runs, and on_fatal gets what the task got.
        return fetch_long(task, self._store.fetch_args)

    def _ready(self, task: ClaimedTask) -> tuple[Call, int]:
        """What it calls, and how often it may start. Raises BadTask, ModuleBroken."""
        call = prepare(task, self._callables)
        limit = self._limit(task, call)
        check_attempts(task, limit)
        return call, limit

    def _limit(self, task: ClaimedTask, call: Call | None) -> int:
        """How often a task may start: its row says it, else its callable, else the settings."""
        if task.max_attempts is not None:
            return task.max_attempts
        return (call.callable.options.max_attempts if call else None) or self._settings.max_attempts

    def _run_after_import(self, task: ClaimedTask) -> None:
        """Run a task whose module is imported first.

        That runs the module's own code, which may do to a worker whatever a task may: so it counts as an attempt
        already, and only then is the callable's own limit known.
        """
        _check_attempts_of_row(task)
        if not self._start(task, task.max_attempts):
            return
        watch = self._watch([task], None)
        failure, _ = self._guarded_unless_stopped(watch, self._callables.find, task.task)
        if failure is not None and not failure.is_a(BadTask):
            if self._heartbeat.has_cancelled:
                self._callables.forget_breakage(task.task)
            self._tell_of_modules()
            self._fail(task, None, failure)
            return
        try:
            call, limit = self._ready(task)
        except BadTask as error:
            self._end(Finish(task, describe(error), uncount=True))
            return
        if self._timed is not None:
            self._timed.ran_seconds = 0.0  # the import was for all tasks of the module
        if task.max_attempts is not None or self._store.limit_attempts(task, limit):
            self._run_started(task, call, limit)
        else:
            self._lose(task, "while its module was imported")

    def _run_broken(self, task: ClaimedTask, failure: Failure) -> None:
        """A module that cannot be imported may be mended: an attempt like any other that failed."""
        self._tell_of_modules()
        try:
            _check_attempts_of_row(task)
        except BadTask as error:
            self._end(Finish(task, describe(error)))
            return
        if self._start(task, task.max_attempts):
            self._fail(task, None, failure)

    # ---- start

    def _start(self, task: ClaimedTask, max_attempts: int | None) -> bool:
        self._heartbeat.start()
        asked_at = time.monotonic()
        started = self._advance(Start(task, max_attempts))
        if started and time.monotonic() - asked_at > self._settings.lease_seconds / 2:
            # It took so long, or the host stood still, that another may have taken the task back since it was started.
            started = self._store.renew(task)
        if started:
            self._timed = self._figures.started(task)
        else:
            self._miss(task)
        return started

    def _miss(self, task: ClaimedTask) -> None:
        """A claimed task is not ours any more, and never started here."""
        if self._heartbeat.is_within_lease():  # so no worker took it back
            self._result.lost += 1
            LOG.info("task %d %s was run again, retried or cancelled before it started", task.id, task.task)
        else:
            self._lose(task, "before it started")

    # ---- call

    def _attempt(self, task: ClaimedTask, call: Call) -> None:
        watch = self._watch([task], call)
        failure, returned = self._guarded_unless_stopped(watch, run_alone, call, self._keeps_results)
        if failure is None:
            self._end(self._finish_of(task, returned))
        else:
            self._fail(task, call, failure)

    def _watch(self, tasks: Sequence[ClaimedTask], call: Call | None) -> Watch:
        """What is known of a call of the code of these tasks; without a `call` it is an import."""
        own = call.callable.options.timeout_seconds if call else None
        seconds = self._settings.timeout_seconds if own is None else own
        return Watch(tasks, seconds, self._limit(tasks[0], call))

    def _guarded_unless_stopped(
        self, watch: Watch, function: Callable[..., object], *args: Any
    ) -> tuple[Failure | None, Any]:
        """The same behind what may have taken long, so that a second signal came meanwhile: then it has failed."""
        if self._stop.insisted:
            return failure_of(TaskInterrupted(STOPPED)), None
        return self._guarded(watch, function, *args)

    def _guarded(self, watch: Watch, function: Callable[..., object], *args: Any) -> tuple[Failure | None, Any]:
        """Run foreign code for tasks, under its time limit and the heartbeat; how it failed, and what it returned."""
        with inside(self._heartbeat.begin(watch)):
            began_at = time.monotonic()
            ended = run_foreign(self._time_limit, watch.timeout_seconds, function, *args)
        if self._timed is not None:
            self._timed.ran_seconds += time.monotonic() - began_at
        self._heartbeat.end()
        return ended

    # ---- finish

    def _finish_of(self, task: ClaimedTask, returned: Returned) -> Finish:
        """That of a task that ended well."""
        next_stage, result, fault = returned
        if fault:
            self._tell_of_result(task, fault)
        return Finish(task, next_stage=next_stage, result=result)

    def _tell_of_result(self, task: ClaimedTask, fault: str) -> None:
        """Once of each callable: to fail would have its tasks do again what they did."""
        if task.task not in self._without_result:
            self._without_result.add(task.task)
            LOG.warning(
                "task %d %s is done, and its result is not kept: what it returned %s (said once a run)",
                task.id,
                task.task,
                fault,
            )

    def _fail(self, task: ClaimedTask, call: Call | None, failure: Failure) -> None:
        """An attempt failed: it is made again after its backoff, unless it was the last one."""
        if self._heartbeat.has_cancelled:
            self._end(Finish(task, CANCELLED), failure.full_text)
            return
        attempts = task.attempts + 1
        if attempts < self._limit(task, call) and not failure.is_a(Fatal):
            seconds = self._retry_seconds(call, failure, attempts)
            self._end(Finish(task, failure.text, seconds), failure.full_text)
            return
        on_fatal = call.callable.options.on_fatal if call else None
        if call is None or on_fatal is None:
            self._end(Finish(task, failure.text), failure.full_text)
        else:
            self._complete_otherwise(task, call, on_fatal, failure)

    def _retry_seconds(self, call: Call | None, failure: Failure, attempts: int) -> float:
        if failure.delay_seconds is not None:
            return failure.delay_seconds
        backoff = (call.callable.options.backoff if call else None) or self._settings.backoff
        return backoff.seconds_after(attempts)

    def _complete_otherwise(self, task: ClaimedTask, call: Call, on_fatal: str, failure: Failure) -> None:
        """The last attempt failed: call what its callable names for that, with the same arguments and the error.

        Not where the task runs again all the same, as it was changed meanwhile.
        """
        self.save()  # what has ended must not wait for this
        if self._store.is_to_run_again(task):
            self._end(Finish(task, failure.text), failure.full_text)
            return
        LOG.info("task %d %s failed for good, %s is called:\n%s", task.id, task.task, on_fatal, failure.full_text)
        # Its lease may be nearly over, and what it was called with may have been changed.
        if not self._store.renew(task):
            self._lose(task, "before what is called for that")
            return
        watch = self._watch([task], call)
        second, _ = self._guarded_unless_stopped(watch, self._call_on_fatal, task.args, on_fatal, failure.error)
        if second is None:
            self._end(Finish(task))
        else:
            text = both(failure.text, second.text)
            self._end(Finish(task, text), failure.full_text, second.full_text or second.text)

    def _call_on_fatal(self, text: str | None, on_fatal: str, error: BaseException) -> None:
        found = self._callables.find(on_fatal)
        args, kwargs = read_arguments(text)
        kwargs["error"] = error
        found.check_arguments(args, kwargs)
        run_call(Call(found, args, kwargs))

    def _end(self, finish: Finish, *full_texts: str) -> None:
        self._leave((Ended(finish, None if finish.uncount else self._timed, full_texts),), False)
        # Bad rows end unstarted, so a whole claim of them may gather.
        returned_text = finish.next_stage is not None or finish.result is not None
        is_long = returned_text and self._unsaved_characters() > MOST_CHARACTERS_UNSAVED
        if is_long or len(self._ended) >= MOST_UNSAVED:
            self.save()

    def _leave(self, several: Sequence[Ended], may_be_saved: bool) -> None:
        """Have the next `save` write these, which an earlier try may have written."""
        self._ended.extend(several)
        self.may_have_due = self.may_have_due or any(ended.finish.task.awaited for ended in several)
        self._may_be_saved = self._may_be_saved or may_be_saved

    def _unsaved_characters(self) -> int:
        finishes = [ended.finish for ended in self._ended]
        stages = sum(len(finish.next_stage.args or "") for finish in finishes if finish.next_stage is not None)
        return stages + sum(len(finish.result or "") for finish in finishes)

    def _advance(self, start: Start | None) -> bool:
        """Write what ended, and the start of the next task. Whether that start still found its claim."""
        try:
            finished, started = self._store.advance([ended.finish for ended in self._ended], start, self._may_be_saved)
        except DatabaseError as error:
            self._may_be_saved = self._may_be_saved or error.may_have_taken_effect
            if isinstance(error, TooLong) and (self._drop_results() or self._end_pipelines()):
                return self._advance(start)
            if isinstance(error, Conflict) and self._ended and start is not None:
                self.save()
                self._may_be_saved = error.may_have_taken_effect
                return self._advance(start)
            for ended in self._ended if start is None else ():
                LOG.info(
                    "task %d %s has ended, which could not be recorded", ended.finish.task.id, ended.finish.task.task
                )
            raise
        several, self._ended, self._may_be_saved = self._ended, [], False
        for one, outcome in zip(several, finished, strict=True):
            self._settle(one, outcome)
        return started

    def _settle(self, ended: Ended, outcome: int) -> None:
        """What is to be done here, once it is written how a task ended."""
        self.may_have_due = self.may_have_due or outcome > Outcome.AS_ASKED
        if outcome != Outcome.LOST:
            self._count(ended, outcome)
        elif ended.attempt is None:
            self._miss(ended.finish.task)
        else:
            self._lose(ended.finish.task, "while it ran; its result is dropped")

    def _drop_results(self) -> bool:
        """Keep none of those that a server does not take. Whether there were any."""
        are_kept = [ended.finish.result is not None for ended in self._ended]
        for ended, is_kept in zip(self._ended, are_kept, strict=True):
            if is_kept:
                self._tell_of_result(ended.finish.task, TOO_LONG_RESULT)
        self._ended = [ended._replace(finish=ended.finish._replace(result=None)) for ended in self._ended]
        return any(are_kept)

    def _end_pipelines(self) -> bool:
        """Have those fatal whose results a server does not take, at any try. Whether there were any."""
        are_stages = [ended.finish.next_stage is not None for ended in self._ended]
        self._ended = [
            ended._replace(finish=Finish(ended.finish.task, TOO_LONG_TEXT)) if is_stage else ended
            for ended, is_stage in zip(self._ended, are_stages, strict=True)
        ]
        return any(are_stages)

    # ---- what became of them, counted and told

    def _count(self, ended: Ended, outcome: int) -> None:
        finish = _as_it_was_done(ended.finish, outcome)
        self._count_in_figures(finish, ended.attempt)
        task, error_text, retry_seconds = finish[:3]
        if error_text is None:
            self._result.done += 1
            stage = finish.next_stage if outcome == Outcome.AS_ASKED else None
            LOG.debug("task %d %s is done%s", task.id, task.task, f", and becomes {stage.task}" if stage else "")
            return
        first_line = error_text.partition("\n")[0]
        if retry_seconds is None:
            self._result.fatal += 1
            LOG.warning("task %d %s is fatal: %s", task.id, task.task, first_line, extra=FATAL)
        else:
            self._result.failed += 1
            LOG.info("task %d %s failed, and comes again in %.0f s: %s", task.id, task.task, retry_seconds, first_line)
        for text in filter(None, ended.full_texts):
            LOG.info("task %d %s raised:\n%s", task.id, task.task, text)

    def _count_in_figures(self, finish: Finish, attempt: Attempt | None) -> None:
        task, error_text, retry_seconds = finish[:3]
        name = task.task if self._callables.has_found(task.task) else NO_NAME
        if attempt is None:
            self._figures.refused(task, name)
        elif error_text is None:
            self._figures.done(task, name, attempt)
        else:
            self._figures.failed(task, name, attempt, is_fatal=retry_seconds is None)

    def _tell_of_modules(self) -> None:
        """Say once of each module that it cannot be imported, as many rows may name it."""
        if self._stop.insisted:  # it may have been that which ended the import
            return
        for text in self._callables.newly_broken():
            LOG.warning("%s (its tasks fail for now; said once a run)", text)

    def _lose(self, task: ClaimedTask, when: str) -> None:
        self._result.lost += 1
        LOG.warning("task %d %s: the lease was lost %s", task.id, task.task, when)


def _as_it_was_done(finish: Finish, outcome: int) -> Finish:
    """What a failure came to for a task that was changed or cancelled while it ran."""
    if finish.error_text is None or outcome in (Outcome.AS_ASKED, Outcome.AWAITED):
        return finish
    if outcome == Outcome.RUN_AGAIN:
        return finish._replace(retry_seconds=0.0)
    return finish._replace(error_text=CANCELLED, retry_seconds=None)


def _check_attempts_of_row(task: ClaimedTask) -> None:
    """Before it is known what its callable allows."""
    check_attempts(task, MAX_ATTEMPTS if task.max_attempts is None else task.max_attempts)


def check_attempts(task: ClaimedTask, limit: int) -> None:
    """Raises BadTask where a task may not start any more."""
    if limit < 1:
        raise BadTask(
            f"its max_attempts is {limit}; to run it, set that to NULL or to a number from 1 on, and status to 0"
        )
    if task.attempts >= limit:
        raise BadTask(f"it was started {task.attempts} times of {limit}; to run it again, set status and attempts to 0")
