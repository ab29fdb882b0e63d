"""Tasks whose callable takes several at once: `@task(batch=N)`. One start, one call, one finish for all of them.

A batch is here what one call gets: tasks of one name and one claim that were never started. All other tasks go the way
of executor.py, and so does each of a batch whose call raised:

    take them → prepare each → start all → call → complete all that are done, fail the others
                                             ↘ it raised: each is started once more, and called alone
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from logging import DEBUG, getLogger
from typing import Any, NamedTuple

from .arguments import read_item
from .call import (
    NOTHING,
    TELLING_SECONDS,
    Call,
    Failure,
    WrongOutcomes,
    is_error,
    next_stage_of,
    run_batch,
    tell,
    untold,
)
from .error_text import describe
from .errors import BadTask, DatabaseError
from .executor import Ended, RunContext, check_attempts
from .figures import Attempt
from .lifecycle import CANCELLED, ClaimedTask, Finish, NextStage
from .stores.batches import Batches
from .transactional_executor import TransactionalExecutor

LOG = getLogger("taskserver")

MOST_MUTE = 3
"""So many exceptions of one call may take too long to give their texts; the others are not asked then."""
CANCELLED_BESIDE = "TaskInterrupted: another task of the same call was cancelled"


class _Item(NamedTuple):
    """A task that is ready for its call."""

    task: ClaimedTask
    value: Any
    """What its arguments say."""
    next_stage: NextStage | None


class _Share(NamedTuple):
    """What one task of a call has of its times."""

    waited_seconds: float
    """From the claim on."""
    ran_seconds: float


class BatchExecutor(TransactionalExecutor):
    """Runs the claimed tasks of one run: several in one call, where their callable takes them so."""

    def __init__(self, run: RunContext) -> None:
        super().__init__(run)
        self._limits = run.limits
        self._batches = Batches(run.store)
        self._told_of: set[str] = set()
        """Names of callables that return what they may not."""
        self._renewed_at = 0.0
        """By time.monotonic: when the leases of those that wait for their turn were renewed."""

    # ---- take and prepare

    def _run_ready(self, task: ClaimedTask, call: Call, limit: int) -> None:
        if others := self._take_others(task, call):
            self._call_several(self._start_several([_item_of(task, call)], others, limit), call)
        else:
            super()._run_ready(task, call, limit)

    def _run_started(self, task: ClaimedTask, call: Call, limit: int) -> None:
        if others := self._take_others(task, call):
            self._call_several([_item_of(task, call), *self._start_several([], others, limit)], call)
        else:
            super()._run_started(task, call, limit)

    def _attempt(self, task: ClaimedTask, call: Call) -> None:
        if call.callable.options.batch is None:
            super()._attempt(task, call)
        else:
            self._call_alone(_item_of(task, call), call)

    def _take_others(self, task: ClaimedTask, call: Call) -> list[ClaimedTask]:
        """Those that are to be called with this task."""
        most = call.callable.options.batch
        if most is None or task.attempts:
            return []
        return self._heartbeat.unstarted.take_alike(task.task, self._limits.most_at_once(most) - 1)

    def _prepared(self, task: ClaimedTask) -> _Item | None:
        """None of a bad row, which ends by itself."""
        try:
            task = self._whole(task)
            if task.max_attempts is not None:
                check_attempts(task, task.max_attempts)
            return _Item(task, read_item(task.args), None if task.stages is None else next_stage_of(task))
        except BadTask as error:
            self._end(Finish(task, describe(error)))
            return None

    # ---- start

    def _start_several(self, items: list[_Item], others: list[ClaimedTask], limit: int) -> list[_Item]:
        """Start tasks that are ready, and others, in one write. Those of them that were started, and are ours."""
        self._result.taken += len(others)
        self._limits.called_with_others += len(others)
        self._timed = None
        try:
            items += [item for one in others if (item := self._prepared(one)) is not None]
            self.save()
            started = self._started([item.task for item in items], limit)
        except BaseException:
            self._heartbeat.unstarted.put_last(others)  # a release leaves those alone that were started
            raise
        return items if len(started) == len(items) else [item for item in items if item.task.id in started]

    def _started(self, tasks: Sequence[ClaimedTask], limit: int) -> set[int]:
        if not tasks:
            return set()
        self._heartbeat.start()
        self._renewed_at = time.monotonic()
        started = self._batches.start(tasks, limit)
        if started and time.monotonic() - self._renewed_at > self._settings.lease_seconds / 2:
            # As with a single one: another may have taken them back since.
            self._batches.renew(tasks)
            started = self._batches.started(tasks)
        if len(started) < len(tasks):
            self._look_after([task for task in tasks if task.id not in started])
        return started

    def _look_after(self, tasks: Sequence[ClaimedTask]) -> None:
        """Those that were not started: somebody holds their rows for now, or took them."""
        held = self._batches.unstarted(tasks)
        for task in tasks:
            if task.id in held:
                self._result.taken -= 1
                self._limits.called_with_others -= 1
                self._heartbeat.unstarted.put_last([task])
            else:
                self._miss(task)

    # ---- call

    def _call_several(self, items: Sequence[_Item], call: Call) -> None:
        """Call it once for tasks that were started."""
        if len(items) < 2:
            for item in items:
                self._timed = self._figures.started(item.task)
                self._call_alone(item, call)
            return
        waited_seconds = self._figures.waited_since_claim()
        self._timed = timed = Attempt(waited_seconds)
        failure, outcomes = self._called(items, call)
        share = _Share(waited_seconds, timed.ran_seconds / len(items))
        was_cancelled, self._heartbeat.has_cancelled = self._heartbeat.has_cancelled, False
        if failure is None:
            self._finish_several(items, call, outcomes, share)
        else:
            self._fall_back(items, call, failure, share, was_cancelled)

    def _call_alone(self, item: _Item, call: Call) -> None:
        """The same for one that was started, and that is timed: if it raises, the task has failed."""
        failure, outcomes = self._called([item], call)
        outcome = outcomes[0] if outcomes else NOTHING
        if failure is None and is_error(outcome):
            [failure] = self._told([item.task], [outcome])
        if failure is None:
            self._end(self._finish_of(item.task, outcome))
        else:
            self._fail(item.task, call, failure)

    def _called(self, items: Sequence[_Item], call: Call) -> tuple[Failure | None, Any]:
        watch = self._watch([item.task for item in items], call)
        # Interrupted with one that was cancelled, those that may not start again would be fatal.
        heeds_cancel = len(items) == 1 or all(self._limit(item.task, call) > 1 for item in items)
        return self._guarded_unless_stopped(
            watch._replace(heeds_cancel=heeds_cancel),
            run_batch,
            call._replace(args=[[item.value for item in items]]),
            [item.next_stage for item in items],
            self._keeps_results,
        )

    def _told(self, tasks: Sequence[ClaimedTask], errors: Sequence[BaseException]) -> list[Failure]:
        """What each of these exceptions says; some may hang, or lie, when they are asked."""
        told: list[Failure] = []
        watch = self._watch(tasks, None)._replace(timeout_seconds=TELLING_SECONDS)
        for _ in range(MOST_MUTE):
            failure, _ = self._guarded(watch, tell, errors, told)
            if len(told) == len(errors):
                break
            if failure is not None:
                told.append(untold(errors[len(told)]))
        return told + [untold(error) for error in errors[len(told) :]]

    # ---- finish: the call returned

    def _finish_several(self, items: Sequence[_Item], call: Call, outcomes: list[Any] | None, share: _Share) -> None:
        if outcomes is None:
            self._complete([item.task for item in items], share)
            return
        ended = list(zip([item.task for item in items], outcomes, strict=True))
        self._complete([task for task, outcome in ended if outcome is NOTHING], share)
        for task, outcome in ended:
            if outcome is not NOTHING and not is_error(outcome):
                self._time(task, share)
                self._end(self._finish_of(task, outcome))
        failed = [(task, outcome) for task, outcome in ended if is_error(outcome)]
        if failed:
            self._fail_each([task for task, _ in failed], [error for _, error in failed], call, share)

    def _complete(self, tasks: Sequence[ClaimedTask], share: _Share) -> None:
        """Write that these are done; those by themselves to which something was done while they ran."""
        if not tasks:
            return
        try:
            completed, may_be_completed = self._batches.complete(tasks)
        except DatabaseError as error:
            self._leave_done(tasks, share, error.may_have_taken_effect)
            raise
        left = [] if len(completed) == len(tasks) else [task for task in tasks if task.id not in completed]
        self._count_done([task for task in tasks if task.id in completed] if left else tasks, share)
        self._leave_done(left, share, may_be_completed)
        self.save()

    def _leave_done(self, tasks: Sequence[ClaimedTask], share: _Share, may_be_saved: bool) -> None:
        """Have these written one by one, which knows every special case."""
        ended = [Ended(Finish(task), self._figures.share(task, *share), ()) for task in tasks]
        self._leave(ended, may_be_saved)

    def _count_done(self, tasks: Sequence[ClaimedTask], share: _Share) -> None:
        """Those that were completed together."""
        if not tasks:
            return
        self._result.done += len(tasks)
        self._figures.done_together(tasks, *share)
        if LOG.isEnabledFor(DEBUG):
            for task in tasks:
                LOG.debug("task %d %s is done", task.id, task.task)

    def _fail_each(
        self, tasks: Sequence[ClaimedTask], errors: Sequence[BaseException], call: Call, share: _Share
    ) -> None:
        self.save()
        self._timed = None
        failures = self._told(tasks, errors)
        for task, failure in zip(self._in_turn(tasks), failures, strict=True):
            self._time(task, share)
            self._fail(task, call, failure)

    def _time(self, task: ClaimedTask, share: _Share) -> None:
        self._timed = self._figures.share(task, *share)

    # ---- one by one: the call raised

    def _fall_back(
        self, items: Sequence[_Item], call: Call, failure: Failure, share: _Share, was_cancelled: bool
    ) -> None:
        """Start each once more, and call with it alone: a bad one then spoils nothing but itself.

        But those that may not start again fail with what the call raised, and so do all once the run is to end.
        """
        tasks = [item.task for item in items]
        LOG.info("the call of %d tasks %s failed:\n%s", len(tasks), tasks[0].task, failure.full_text or failure.text)
        if failure.is_a(WrongOutcomes) and tasks[0].task not in self._told_of:
            self._told_of.add(tasks[0].task)
            LOG.warning("%s: %s (so each is called again alone; said once a run)", tasks[0].task, failure.text)
        failure = failure._replace(full_text="", text=CANCELLED_BESIDE if was_cancelled else failure.text)
        cancelled = self._batches.cancelled(tasks)
        for task, item in zip(self._in_turn(tasks), items, strict=True):
            self._time(task, share)
            if task.id in cancelled:
                self._end(Finish(task, CANCELLED))
            elif self._limit(task, call) < 2:
                self._fail(task, call, failure)
            elif self._limits.is_to_leave():
                self._end(Finish(task, failure.text, self._retry_seconds(call, failure, 1)))
            else:
                self._call_again(item, call, failure)

    def _call_again(self, item: _Item, call: Call, failure: Failure) -> None:
        self.save()
        task = item.task
        failed = Finish(task, failure.text, 0.0)
        if not self._batches.start_again(task):
            self._end(failed)  # which finds out what was done to it while it ran
            return
        self._count_in_figures(failed, self._timed)
        self._timed = Attempt(0.0)
        # Read once more: the call may have changed what it got.
        self._call_alone(_Item(task._replace(attempts=1), read_item(task.args), item.next_stage), call)

    def _in_turn(self, tasks: Sequence[ClaimedTask]) -> Iterator[ClaimedTask]:
        """Started tasks, one by one; the leases of those that wait for their turn are renewed meanwhile."""
        waiting = self._heartbeat.waiting = deque(tasks)
        try:
            while waiting:
                self._renew_waiting()
                self._heartbeat.has_cancelled = False  # it was another's
                yield waiting.popleft()
        finally:
            self._heartbeat.waiting = ()

    def _renew_waiting(self) -> None:
        # The heartbeat does it only while one runs for long.
        if time.monotonic() - self._renewed_at >= self._settings.lease_seconds / 3:
            self._renewed_at = time.monotonic()
            self._batches.renew(tuple(self._heartbeat.waiting))


def _item_of(task: ClaimedTask, call: Call) -> _Item:
    return _Item(task, call.args[0][0], call.next_stage)
