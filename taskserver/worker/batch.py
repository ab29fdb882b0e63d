"""Executes several tasks of one callable at once: `@task(batch=N)`. One start, one call, one finish for all of them.

A batch is here the tasks of one call: of one name and one claim, never started before. Every other task of such a
callable is called alone, and so is each of a batch whose call raised:

    take them → prepare each → start all → call → complete all that are done, fail the others
                                             ↘ it raised: each is started once more, and called alone
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from logging import getLogger
from typing import Any, NamedTuple

from ..errors import BadTask, DatabaseError, is_refusal
from ..messages.error_text import describe
from ..model.arguments import read_item
from ..model.attempt import Finish, NextStage
from ..model.task import CANCELLED, ClaimedTask
from ..stores.queue.batches import Batches
from .attempts import Attempts, ReadyTask
from .call import (
    MAX_DESCRIBE_SECONDS,
    NOTHING,
    Failure,
    WrongOutcomes,
    failure_of,
    failure_of_raised,
    is_error,
    run_batch,
    undescribed,
)
from .finishing import Finishing
from .preparing import Call, check_attempts, fetch_texts, next_stage_of, no_room_for
from .reporting import Ended, Reporter
from .run_context import RunContext
from .starts import Starts
from .stats import Attempt

LOG = getLogger("taskserver")

MAX_CALL_BYTES = 2 * 1024 * 1024
"""Arguments of one call, as JSON: as objects they may take thirty times as much memory."""
MAX_MUTE = 3
"""Where the exceptions of one call have taken as long as so many may, the others are not asked for their texts."""
CANCELLED_BESIDE = "TaskInterrupted: another task of the same call was cancelled"


class _Item(NamedTuple):
    """A task that is ready for its call."""

    task: ClaimedTask
    value: Any
    """The task's arguments: one item of the list that the callable gets."""
    next_stage: NextStage | None


class _Share(NamedTuple):
    """One task's share of the times of its call."""

    waited_seconds: float
    """From the claim on."""
    ran_seconds: float


class BatchExecution:
    """Executes tasks, several in one call where the claim has several."""

    def __init__(
        self, run: RunContext, attempts: Attempts, starts: Starts, finishing: Finishing, reporter: Reporter
    ) -> None:
        self._run = run
        self._batches = Batches(run.store)
        self._attempts = attempts
        self._starts = starts
        self._finishing = finishing
        self._reporter = reporter
        self._wrong: set[str] = set()
        """Names of callables that returned wrong outcomes; each is reported once."""
        self._renewed_at = 0.0
        """When the leases of started tasks that wait for their turn were renewed, by time.monotonic."""

    def execute(self, ready: ReadyTask, attempt: Attempt | None) -> None:
        """Start a task, unless `attempt` says that it is started, with others like it, and call once for all of them.

        Raises DatabaseError.
        """
        task, call, max_attempts = ready
        item = _Item(task, call.args[0][0], call.next_stage)
        if others := self._take_others(task, call):
            # The first task's row may say another for itself alone.
            usual = self._attempts.usual_max_attempts(call.callable)
            if attempt is None:
                items = self._start_together([item], others, usual)
            else:
                items = [item, *self._start_together([], others, usual)]
            self._call_together(items, call)
            return
        attempt = attempt or self._attempts.start(task, max_attempts)
        if attempt is not None:
            self._call_alone(item, call, attempt)

    # ---- take and prepare

    def _take_others(self, task: ClaimedTask, call: Call) -> list[ClaimedTask]:
        """Take the claimed tasks that are to be called with this one."""
        max_items = call.callable.options.batch
        if max_items is None or task.attempts:
            return []
        count, most_bytes = self._run.limits.max_together(max_items) - 1, MAX_CALL_BYTES - task.text_bytes
        return self._run.heartbeat.claimed.take_alike(task.task, count, most_bytes)

    def _prepare(self, others: list[ClaimedTask]) -> list[_Item]:
        """Read the arguments of tasks; only these stay in `others`. Bad rows are over with that.

        What memory has no room for is put back.
        """
        items: list[_Item] = []
        while len(items) < len(others):
            task = others[len(items)]
            try:
                if self._run.limits.is_too_large():
                    raise MemoryError
                items.append(self._prepared(task))
            except BadTask as error:
                # Before anything can fail: a task that has a finish is not put back.
                del others[len(items)]
                self._count_taken(1)
                self._finishing.add(Finish(task, describe(error)), None, failure_of(BadTask(*error.args)))
            except MemoryError:
                self._run.heartbeat.claimed.put_back(*others[len(items) :])
                del others[len(items) :]
        self._count_taken(len(others))
        return items

    def _count_taken(self, tasks: int) -> None:
        self._run.result.taken += tasks
        self._run.limits.called_with_others += tasks

    def _prepared(self, claimed: ClaimedTask) -> _Item:
        """The task with its arguments read. Raises BadTask, DatabaseError."""
        task = fetch_texts(claimed, self._run.store.claims.fetch_texts)
        if task.max_attempts is not None:
            check_attempts(task, task.max_attempts)
        return _Item(task, read_item(task.args), None if task.stages is None else next_stage_of(task))

    # ---- start

    def _start_together(self, items: list[_Item], others: list[ClaimedTask], max_attempts: int) -> list[_Item]:
        """Start ready tasks, and others once they are ready, in one write. The items that were started."""
        try:
            items += self._prepare(others)
            self._finishing.save()
            started = self._start([item.task for item in items], max_attempts)
        except BaseException:
            self._run.heartbeat.claimed.put_last(others)  # a release leaves started ones alone
            raise
        return items if len(started) == len(items) else [item for item in items if item.task.id in started]

    def _start(self, tasks: Sequence[ClaimedTask], max_attempts: int) -> set[int]:
        """Start tasks in one write; those are left for later whose rows others hold. The ids of the started tasks."""
        self._renewed_at = time.monotonic()
        ids, held = self._starts.start(tasks, max_attempts)
        self._count_taken(-len(held))
        self._run.heartbeat.claimed.put_last(held)
        return ids

    # ---- call

    def _call_together(self, items: Sequence[_Item], call: Call) -> None:
        """Call once for all of these started tasks."""
        if len(items) < 2:
            for item in items:
                self._call_alone(item, call, self._run.stats.started(item.task))
            return
        attempt = Attempt(self._run.stats.waited_since_claim())
        failure, outcomes = self._call(items, call, attempt)
        share = _Share(attempt.waited_seconds, attempt.ran_seconds / len(items))
        was_cancelled, self._run.heartbeat.was_cancelled = self._run.heartbeat.was_cancelled, False
        if failure is None:
            self._finish_together(items, call, outcomes, share)
        else:
            self._fall_back(items, call, failure, share, was_cancelled)

    def _call_alone(self, item: _Item, call: Call, attempt: Attempt) -> None:
        """Call for one started task: if that raises, the task has failed."""
        failure, outcomes = self._call([item], call, attempt)
        outcome = outcomes[0] if outcomes else NOTHING
        if failure is None and is_error(outcome):
            [failure] = self._describe([item.task], [outcome], attempt)
        if failure is None:
            self._attempts.complete(item.task, attempt, outcome)
        else:
            self._attempts.fail(item.task, call, attempt, failure)

    def _call(self, items: Sequence[_Item], call: Call, attempt: Attempt) -> tuple[Failure | None, Any]:
        plan = self._attempts.plan([item.task for item in items], call)
        # Interrupted with one that was cancelled, tasks that may not start again would be fatal.
        heeds_cancel = len(items) == 1 or all(self._attempts.max_attempts(item.task, call) > 1 for item in items)
        return self._attempts.call(
            plan._replace(heeds_cancel=heeds_cancel),
            attempt,
            run_batch,
            call._replace(args=[[item.value for item in items]]),
            [item.next_stage for item in items],
            self._run.keeps_results,
        )

    def _describe(
        self, tasks: Sequence[ClaimedTask], errors: Sequence[BaseException], attempt: Attempt | None
    ) -> list[Failure]:
        """The failure of each of these tasks: its exception in words, though it may hang, or lie, when it is asked."""
        plan = self._attempts.plan(tasks, None)._replace(timeout_seconds=MAX_DESCRIBE_SECONDS)
        until = time.monotonic() + MAX_MUTE * MAX_DESCRIBE_SECONDS
        failures: list[Failure] = []
        for error in errors:
            failure = None
            if time.monotonic() < until:
                _, failure = self._attempts.watch(plan, attempt, failure_of_raised, error)
            failures.append(failure or undescribed(error))
        return failures

    # ---- finish: the call returned

    def _finish_together(self, items: Sequence[_Item], call: Call, outcomes: list[Any] | None, share: _Share) -> None:
        """End the tasks of a call that returned: the outcome of each, or None where all are done."""
        if outcomes is None:
            self._complete_together([item.task for item in items], share)
            return
        ended = list(zip([item.task for item in items], outcomes, strict=True))
        self._complete_together([task for task, outcome in ended if outcome is NOTHING], share)
        for task, outcome in ended:
            if outcome is not NOTHING and not is_error(outcome):
                self._attempts.complete(task, self._run.stats.share(task, *share), outcome)
        failed = [(task, outcome) for task, outcome in ended if is_error(outcome)]
        if failed:
            self._fail_each([task for task, _ in failed], [error for _, error in failed], call, share)

    def _complete_together(self, tasks: Sequence[ClaimedTask], share: _Share) -> None:
        """Complete tasks in one write; tasks that were changed while they ran are completed one by one."""
        if not tasks:
            return
        try:
            completed, may_be_completed = self._batches.complete(tasks)
        except DatabaseError as error:
            if not is_refusal(error):
                self._complete_later(tasks, share, error.may_have_taken_effect)
                raise
            completed, may_be_completed = set(), error.may_have_taken_effect  # one of them may be to blame
        left = [] if len(completed) == len(tasks) else [task for task in tasks if task.id not in completed]
        done = [task for task in tasks if task.id in completed] if left else tasks
        self._reporter.report_done_together(done, *share)
        self._complete_later(left, share, may_be_completed)
        self._finishing.save()

    def _complete_later(self, tasks: Sequence[ClaimedTask], share: _Share, may_be_saved: bool) -> None:
        """Leave tasks to be completed one by one, by a write that knows every special case."""
        ended = [Ended(Finish(task), self._run.stats.share(task, *share)) for task in tasks]
        self._finishing.add_all(ended, may_be_saved)

    def _fail_each(
        self, tasks: Sequence[ClaimedTask], errors: Sequence[BaseException], call: Call, share: _Share
    ) -> None:
        """Fail tasks for which the call returned exceptions."""
        self._finishing.save()
        failures = self._describe(tasks, errors, None)
        for task, failure in zip(self._in_turn(tasks), failures, strict=True):
            self._attempts.fail(task, call, self._run.stats.share(task, *share), failure)

    # ---- one by one: the call raised

    def _fall_back(
        self, items: Sequence[_Item], call: Call, failure: Failure, share: _Share, was_cancelled: bool
    ) -> None:
        """Start each task once more, and call for it alone: a bad one then spoils nothing but itself.

        But tasks that may not start again fail with the error of the call, and so do all once the run is to end.
        """
        tasks = [item.task for item in items]
        self._reporter.report_call_failed(tasks, failure)
        if failure.is_a(WrongOutcomes) and tasks[0].task not in self._wrong:
            self._wrong.add(tasks[0].task)
            LOG.warning("%s: %s (so each is called again alone; said once a run)", tasks[0].task, failure.text)
        failure = failure._replace(full_text="", text=CANCELLED_BESIDE if was_cancelled else failure.text)
        cancelled_by_id = self._run.store.finishes.claimed_still(tasks)
        for task, item in zip(self._in_turn(tasks), items, strict=True):
            attempt = self._run.stats.share(task, *share)
            if cancelled_by_id.get(task.id):
                self._finishing.add(Finish(task, CANCELLED), attempt)
            elif self._attempts.max_attempts(task, call) < 2:
                self._attempts.fail(task, call, attempt, failure)
            elif self._run.limits.is_to_leave():
                seconds = self._attempts.retry_seconds(call, failure, 1)
                self._attempts.end_failed(Finish(task, failure.text, seconds), attempt, failure)
            else:
                self._call_again(item, call, attempt, failure)

    def _call_again(self, item: _Item, call: Call, attempt: Attempt, failure: Failure) -> None:
        """Start a task once more whose first attempt failed with others, and call for it alone."""
        self._finishing.save()
        task = item.task
        failed = Finish(task, failure.text, 0.0)
        if not self._batches.start_again(task):
            # Its write finds out how the task was changed while it ran.
            self._attempts.end_failed(failed, attempt, failure)
            return
        self._reporter.count_attempt(failed, attempt)
        task, attempt = task._replace(attempts=1), Attempt(0.0)
        try:
            # The arguments are read once more: the call may have changed the objects that it got.
            again = _Item(task, read_item(task.args), item.next_stage)
        except MemoryError:
            self._attempts.fail(task, call, attempt, failure_of(no_room_for(task)))
            return
        self._call_alone(again, call, attempt)

    def _in_turn(self, tasks: Sequence[ClaimedTask]) -> Iterator[ClaimedTask]:
        """Started tasks, one by one; the leases of tasks that wait for their turn are renewed meanwhile."""
        waiting = self._run.heartbeat.waiting = deque(tasks)
        try:
            while waiting:
                self._renew_waiting()
                self._run.heartbeat.was_cancelled = False  # another task of the call was
                yield waiting.popleft()
        finally:
            self._run.heartbeat.waiting = ()

    def _renew_waiting(self) -> None:
        # The heartbeat does it only while a call runs for long.
        if time.monotonic() - self._renewed_at >= self._run.settings.lease_seconds / 3:
            self._renewed_at = time.monotonic()
            self._batches.renew(tuple(self._run.heartbeat.waiting))
