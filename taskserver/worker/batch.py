"""Runs several tasks of one callable in one call: `@task(batch=N)`. One start, one call, one finish for all of them.

A batch is the tasks of one call: same name, same claim, never started before. Other tasks of such a callable are called
one by one. If the call of a batch raises, its tasks are called one by one too:

    take them → prepare each → start all → call → complete all that are done, fail the others
                                             ↘ it raised: start each again, and call it by itself
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import repeat
from typing import Any

from ..errors import BadTask
from ..model.arguments import read_item
from ..model.attempt import Finish
from ..model.task import CANCELLED, ClaimedTask
from ..stores.queue.batches import Batches
from .attempt import Attempt
from .attempts import Attempts
from .call import NOTHING, Failure, failure_of, run_batch
from .finishing import Finishing
from .preparing import Call, check_attempts, fetch_texts, next_stage_of, no_room_for
from .reporting import Reporter
from .run_context import RunContext

MAX_CALL_BYTES = 2 * 1024 * 1024
"""Of the arguments of one call, as JSON; as objects they may need thirty times as much memory."""
CANCELLED_BESIDE = "TaskInterrupted: another task of the same call was cancelled"


class BatchCalls:
    """Runs several tasks in one call if the claim has several."""

    def __init__(self, run: RunContext, attempts: Attempts, finishing: Finishing, reporter: Reporter) -> None:
        self._run = run
        self._batches = Batches(run.store)
        self._attempts = attempts
        self._finishing = finishing
        self._reporter = reporter
        self._renewed_at = 0.0
        """When the leases of waiting started tasks were renewed, by time.monotonic."""

    def run(self, first: Attempt) -> None:
        """Start a task with others like it, and make one call for all of them."""
        others = self._take_others(first)
        if not others:
            if self._attempts.start(first):
                self._call_alone(first)
            return
        started = self._start_together(first, others)
        if len(started) > 1:
            self._call_together(started)
        elif started:
            self._call_alone(started[0])

    # ---- take, prepare and start

    def _take_others(self, first: Attempt) -> list[ClaimedTask]:
        """Take the claimed tasks that share the call of this one."""
        assert first.call is not None
        most = first.call.callable.options.batch or 1
        if first.task.attempts or most == 1:
            return []
        count = self._run.limits.max_together(most) - 1
        return self._run.heartbeat.claimed.take_alike(first.task.task, count, MAX_CALL_BYTES - first.task.text_bytes)

    def _start_together(self, first: Attempt, others: Sequence[ClaimedTask]) -> list[Attempt]:
        """Prepare tasks and start them in one write. Returns the started attempts."""
        assert first.call is not None
        ready = self._prepare(others, first.call)
        claimed = self._run.heartbeat.claimed
        attempts = ready if first.has_started else [first, *ready]
        try:
            self._finishing.save()
            self._renewed_at = time.monotonic()
            # The row of the first task may have its own limit.
            limit = self._attempts.usual_limit(first.call.callable)
            ids, held = self._attempts.start_together([attempt.task for attempt in attempts], limit)
        except BaseException:
            claimed.put_back([attempt.task for attempt in ready])  # a release skips started ones
            raise
        claimed.put_back(held)
        self._count_taken(-len(held))
        for attempt in attempts:
            if attempt.task.id in ids:
                self._attempts.note_start(attempt)
        return [attempt for attempt in (first, *ready) if attempt.has_started]

    def _prepare(self, others: Sequence[ClaimedTask], alike: Call) -> list[Attempt]:
        """Prepare attempts at the taken tasks; bad rows end here. Put back what does not fit into memory."""
        ready: list[Attempt] = []
        left = deque(others)
        try:
            with suppress(MemoryError):
                while left and not self._run.limits.is_too_large():
                    if (attempt := self._prepared(left[0], alike)) is not None:
                        ready.append(attempt)
                    left.popleft()
        except BaseException:
            self._run.heartbeat.claimed.put_back([attempt.task for attempt in ready])
            raise
        finally:
            self._run.heartbeat.claimed.put_back(left)
        self._count_taken(len(ready))
        return ready

    def _prepared(self, claimed: ClaimedTask, alike: Call) -> Attempt | None:
        """An attempt with its arguments; None if the row is bad, which ends it."""
        attempt = Attempt(claimed)
        try:
            task = attempt.task = fetch_texts(claimed, self._run.store.claims.fetch_texts)
            if task.max_attempts is not None:
                check_attempts(task, task.max_attempts)
            stage = None if task.stages is None else next_stage_of(task)
            attempt.call = Call(alike.callable, [[read_item(task.args)]], {}, stage)
        except BadTask as error:
            self._count_taken(1)
            failure = failure_of(BadTask(*error.args))
            self._finishing.add(attempt, Finish(claimed, failure.text), failure)
            return None
        attempt.limit = self._attempts.limit_of(task, alike.callable)
        return attempt

    def _count_taken(self, tasks: int) -> None:
        self._run.result.taken += tasks
        self._run.limits.called_with_others += tasks

    # ---- call

    def _call_together(self, attempts: Sequence[Attempt]) -> None:
        failure, outcomes, seconds = self._call(attempts)
        for attempt in attempts:
            attempt.ran_seconds = seconds / len(attempts)
        if failure is None:
            self._finish_together(attempts, outcomes)
        else:
            self._fall_back(attempts, failure)

    def _call_alone(self, attempt: Attempt) -> None:
        """Call one started task: if that raises, the task fails."""
        failure, outcomes, attempt.ran_seconds = self._call([attempt])
        outcome = outcomes[0] if outcomes else NOTHING
        if isinstance(outcome, Failure):
            self._attempts.fail(attempt, outcome)
        else:
            self._attempts.finish(attempt, failure, outcome)

    def _call(self, attempts: Sequence[Attempt]) -> tuple[Failure | None, list[Any] | None, float]:
        """Make one call for all. Returns its failure, the outcomes (None if all are done), and its seconds."""
        calls = [attempt.call for attempt in attempts if attempt.call is not None]
        # A cancel interrupts all tasks of the call: those that may not start again would become fatal.
        is_cancellable = len(attempts) == 1 or all(attempt.limit > 1 for attempt in attempts)
        whole = Attempt(attempts[0].task)  # measures the time of the whole call
        failure, outcomes = self._attempts.call(
            self._attempts.plan(attempts[0])._replace(
                tasks=[attempt.task for attempt in attempts], is_cancellable=is_cancellable
            ),
            whole,
            run_batch,
            calls[0]._replace(args=[[call.args[0][0] for call in calls]]),
            [call.next_stage for call in calls],
            self._run.keeps_results,
        )
        return failure, outcomes, whole.ran_seconds

    # ---- finish: the call returned

    def _finish_together(self, attempts: Sequence[Attempt], outcomes: Iterable[Any] | None) -> None:
        """Complete the done tasks in one write, then fail the others."""
        failed: list[tuple[Attempt, Failure]] = []
        for attempt, outcome in zip(attempts, outcomes or repeat(NOTHING), strict=False):
            if isinstance(outcome, Failure):
                failed.append((attempt, outcome))
            else:
                self._attempts.finish(attempt, None, outcome)
        self._finishing.save()
        for attempt, (_, failure) in zip(self._in_turn([attempt for attempt, _ in failed]), failed, strict=True):
            self._attempts.fail(attempt, failure)

    # ---- one by one: the call raised

    def _fall_back(self, attempts: Sequence[Attempt], failure: Failure) -> None:
        """Start each task again, and call it by itself, so that a bad one affects only itself.

        Tasks that may not start again fail with the error of the call; if the run must end, all do. If the call raised
        Later, all are postponed.
        """
        tasks = [attempt.task for attempt in attempts]
        if failure.later_seconds is not None:
            for attempt in attempts:
                self._attempts.fail(attempt, failure)
            return
        self._reporter.report_call_failed(tasks, failure)
        text = CANCELLED_BESIDE if failure.was_cancelled else failure.text
        failure = failure._replace(full_text="", text=text, was_cancelled=False)
        cancelled_by_id = self._run.store.finishes.still_claimed(tasks)
        for attempt in self._in_turn(attempts):
            if cancelled_by_id.get(attempt.task.id):
                self._finishing.add(attempt, Finish(attempt.task, CANCELLED))
            elif attempt.limit < 2:
                self._attempts.fail(attempt, failure)
            elif self._run.limits.should_leave():
                seconds = self._attempts.retry_seconds(attempt, failure)
                self._attempts.end_failed(attempt, failure, Finish(attempt.task, failure.text, seconds))
            else:
                self._call_again(attempt, failure)

    def _call_again(self, attempt: Attempt, failure: Failure) -> None:
        """Start a task again after its batch failed, and call it by itself."""
        self._finishing.save()
        task = attempt.task
        failed = attempt.finish = Finish(task, failure.text, 0.0)
        if not self._batches.start_again(task):
            # The task was changed while it ran: the write of its end finds out how.
            self._attempts.end_failed(attempt, failure, failed)
            return
        self._reporter.count(attempt)
        again = Attempt(task._replace(attempts=1), has_started=True)
        again.call, again.limit = attempt.call, attempt.limit
        assert again.call is not None
        try:
            # Parse the arguments again: the call may have changed its argument objects.
            again.call = again.call._replace(args=[[read_item(task.args)]])
        except MemoryError:
            self._attempts.fail(again, failure_of(no_room_for(task)))
            return
        self._call_alone(again)

    def _in_turn(self, attempts: Sequence[Attempt]) -> Iterator[Attempt]:
        """Yield started tasks one by one, and renew the leases of the waiting ones meanwhile."""
        waiting = self._run.heartbeat.waiting = deque(attempt.task for attempt in attempts)
        try:
            for attempt in attempts:
                if time.monotonic() - self._renewed_at >= self._run.settings.lease_seconds / 3:
                    self._renewed_at = time.monotonic()
                    self._batches.renew(tuple(waiting))
                waiting.popleft()
                yield attempt
        finally:
            self._run.heartbeat.waiting = ()
