"""A fake running task, for the test of a single function: without a row or a queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import TaskServerError
from ..model.results import Progress, read_progress
from ..worker.task_context import CurrentTask, TaskLabel, enter, leave


class FakeTask:
    """The running task for the functions of `taskserver`, which records what code reports.

    The `progress`; with its completion: `is_asked_for`, `completed_on` and `result`.
    """

    is_over = False
    is_asked_for = False
    """Whether `taskserver.complete` was called."""

    def __init__(self, task: CurrentTask, connection: object) -> None:
        self.progress: list[Progress] = []
        self.completed_on: Any = None
        """The connection of `taskserver.complete`."""
        self.result: object = None
        """The result of `taskserver.complete`."""
        self.connection = connection
        self._task = task

    @property
    def running(self) -> TaskLabel:
        """The task for lines of a log."""
        return TaskLabel(self._task.id, "a test", self._task.attempt, len(self._task.ids) - 1)

    def current(self) -> CurrentTask:
        """What `taskserver.current_task` returns."""
        return self._task

    def row(self) -> None:
        """None: there is no row."""

    def report_progress(self, progress: str) -> None:
        """Record a progress, given as in a row's column."""
        reported = read_progress(progress)
        if reported is not None:
            self.progress.append(reported)

    @property
    def completion(self) -> FakeTask:
        """The task itself. Raises TaskServerError for a transactional one."""
        if self.connection is not None:
            raise TaskServerError("taskserver.complete() is not for a transactional task")
        return self

    def complete(self, connection: object, value: object) -> None:
        """Record the arguments of `taskserver.complete`."""
        self.is_asked_for = True
        self.completed_on, self.result = connection, value


@contextmanager
def running_task(
    id: int = 1,
    *,
    attempt: int = 1,
    limit: int = 10,
    time_left: float | None = None,
    ids: Sequence[int] | None = None,
    connection: object = None,
) -> Iterator[FakeTask]:
    """In the `with`, code runs as if in a task with these values of `CurrentTask`.

    `connection` is what `taskserver.connection()` returns in a task with @task(transactional=True).
    """
    task = FakeTask(CurrentTask(id, attempt, limit, time_left, tuple(ids or [id])), connection)
    token = enter(task)
    try:
        yield task
    finally:
        task.is_over = True
        leave(token)
