"""A task that seems to run, for the test of a single function: it has no row, and no queue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import TaskServerError
from ..model.results import Progress, read_progress
from ..worker.task_context import CurrentTask, TaskLabel, enter, leave


class FakeTask:
    """What the functions of `taskserver` find as the running task, and what a function reported to them.

    The `progress` that it reported; with what it completed itself: `is_asked_for`, `completed_on` and `result`.
    """

    is_over = False
    is_asked_for = False
    """Whether `taskserver.complete` was called."""

    def __init__(self, task: CurrentTask, connection: object) -> None:
        self.progress: list[Progress] = []
        self.completed_on: Any = None
        """The connection with which `taskserver.complete` was called."""
        self.result: object = None
        """The result that `taskserver.complete` was given."""
        self.connection = connection
        self._task = task

    @property
    def running(self) -> TaskLabel:
        """The task as lines of a log name it."""
        return TaskLabel(self._task.id, "a test", self._task.attempt, len(self._task.ids) - 1)

    def current(self) -> CurrentTask:
        """The task as `taskserver.current_task` returns it."""
        return self._task

    def row(self) -> None:
        """None: there is no row."""

    def report_progress(self, progress: str) -> None:
        """Keep a progress, which is in the form of a row's column."""
        reported = read_progress(progress)
        if reported is not None:
            self.progress.append(reported)

    @property
    def completion(self) -> FakeTask:
        """The task itself, which `taskserver.complete` completes. Raises TaskServerError for a transactional one."""
        if self.connection is not None:
            raise TaskServerError("taskserver.complete() is not for a transactional task")
        return self

    def complete(self, connection: object, value: object) -> None:
        """Keep with what `taskserver.complete` was called."""
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
    """In the `with`, code that is called finds itself in a task with these values, named as in `CurrentTask`.

    `connection` is what `taskserver.connection()` returns, as in a task with @task(transactional=True).
    """
    task = FakeTask(CurrentTask(id, attempt, limit, time_left, tuple(ids or [id])), connection)
    token = enter(task)
    try:
        yield task
    finally:
        task.is_over = True
        leave(token)
