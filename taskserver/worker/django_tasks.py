"""Tasks of Django's own Tasks API: how a worker calls one, and its TaskResult.

A listed module has an object of Django's class Task instead of a function. This module is imported with the first such
task: then the site has imported Django already.
"""

from __future__ import annotations

import builtins
import os
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from inspect import iscoroutinefunction, signature
from types import FunctionType
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
from django.tasks.base import TaskError
from django.tasks.signals import task_finished, task_started
from django.utils.json import normalize_json
from django.utils.timezone import get_default_timezone, make_naive, now

from ..errors import TaskServerError
from ..host.process_identity import host_name
from ..interrupts.coroutines import as_plain
from ..interrupts.stop import TaskInterrupted
from ..messages.error_text import full_traceback
from ..model.arguments import read_arguments
from ..model.task import CANCELLED, Status
from ..model.task_options import options_of
from ..stores.records import TaskRow
from .task_context import current_row, current_task

READY, FAILED, SUCCESSFUL = TaskResultStatus.READY, TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL
STATES: dict[int, Any] = {
    Status.IN_PROGRESS: TaskResultStatus.RUNNING,
    Status.DONE: SUCCESSFUL,
    Status.FATAL: FAILED,
    Status.CANCELLED: FAILED,
}
"""Django's states of rows that are not READY."""
MOST_PRIORITY = 100
"""In Django; its negative is the least."""
UNKNOWN_WORKER = "unknown"
"""In `worker_ids`, once for each attempt: a row has no names of workers."""


class DjangoCall:
    """What a worker calls for a Django task."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.function: FunctionType = task.func
        whole = signature(self.function, follow_wrapped=False)
        parameters = list(whole.parameters.values())
        self.__signature__ = whole.replace(parameters=parameters[1:] if task.takes_context else parameters)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the task, between Django's signals. Raises what it raises."""
        # Not by Task.call: that runs a coroutine in a thread, which no timeout can interrupt.
        function = as_plain(self._await) if iscoroutinefunction(self.function) else self.function
        attempt = _Attempt(self)
        try:
            attempt.begin()
            returned = function(*attempt.context, *args, **kwargs)
        except BaseException as error:
            attempt.fail(error)
            raise
        return attempt.complete(returned)

    async def _await(self, *args: Any, **kwargs: Any) -> Any:
        # In the thread that Django uses for the database work of coroutines.
        close = sync_to_async(close_old_connections)
        await close()
        returned = await self.function(*args, **kwargs)
        await close()
        return returned


class _Attempt:
    """A started attempt at a Django task: its signals, its TaskResult, and Django's connections."""

    def __init__(self, call: DjangoCall) -> None:
        current = current_task()
        if current is None:
            raise TaskServerError("a Django task is called by a worker; elsewhere call its function")
        self._is_last = current.attempt >= current.limit
        self._options = options_of(call.function)
        self._backend = _backend_for(call.task)
        self._result = task_result(current_row(), call.task, self._backend)
        self._result.worker_ids[-1:] = [f"{host_name()}:{os.getpid()}"]
        self.context = (TaskContext(task_result=self._result),) if call.task.takes_context else ()
        close_old_connections()

    def begin(self) -> None:
        """Report that the task starts. If an interrupt hits a receiver, call `fail`, too."""
        # Robust: a receiver must not fail the task; Django logs its error.
        task_started.send_robust(type(self._backend), task_result=self._result)

    def complete(self, returned: Any) -> Any:
        """Report the return value. Returns it normalized, or unchanged if it can't be JSON: the worker reports that."""
        with suppress(Exception):  # the task is done anyway
            returned = normalize_json(returned)
        self._end(SUCCESSFUL, _return_value=returned)
        return returned

    def fail(self, error: BaseException) -> None:
        kind = type(error)
        was_cancelled = kind is TaskInterrupted and error.args == (CANCELLED,)
        has_failed = self._is_last or was_cancelled or not self._options.allows_retry(kind)
        path = f"{kind.__module__}.{kind.__qualname__}"
        self._result.errors[:] = [TaskError(exception_class_path=path, traceback=full_traceback(error))]
        self._end(FAILED if has_failed else READY)

    def _end(self, state: Any, **more: Any) -> None:
        more |= {"status": state} | ({} if state == READY else {"finished_at": now()})
        for name, value in more.items():
            object.__setattr__(self._result, name, value)  # the class is frozen; Django's backends do the same
        task_finished.send_robust(type(self._backend), task_result=self._result)
        close_old_connections()


def close_old_connections() -> None:
    """As Django does between requests, but not in a transaction, e.g. of a test."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _backend_for(task: Any) -> Any:
    """The task's backend if it is ours, else our first one: `using(backend=…)` may have added the task."""
    for backend in (task.get_backend(), *task_backends.all()):
        if hasattr(backend, "queue_of"):
            return backend
    raise TaskServerError("TASKS in Django's settings names no taskserver.django.Backend")


# ---- the TaskResult of a row


def task_result(row: TaskRow, task: Any, backend: Any) -> Any:
    """Django's TaskResult of a row. Raises BadTask if the row has bad arguments.

    `errors` has only the last one; `started_at` and `last_attempted_at` are both the start of the last attempt.
    """
    state = READY if row.state == "claimed" else STATES.get(row.status, READY)
    args, kwargs = read_arguments(row.columns["args"])
    result = TaskResult(
        # SQL may write a group without a queue, and any priority.
        task=replace(
            task,
            backend=backend.alias,
            priority=max(-MOST_PRIORITY, min(-row.priority, MOST_PRIORITY)),
            queue_name=backend.queue_of(row.group_id) or task.queue_name,
            run_after=_instant(row.due_at) if row.status == Status.WAITING else None,
        ),
        id=str(row.id),
        status=state,
        enqueued_at=_instant(row.created_at),
        started_at=_instant(row.started_at),
        last_attempted_at=_instant(row.started_at),
        finished_at=_instant(row.finished_at) if state in (SUCCESSFUL, FAILED) else None,
        args=args,
        kwargs=kwargs,
        backend=backend.alias,
        errors=_errors(row.error),
        worker_ids=[UNKNOWN_WORKER] * row.attempts,
    )
    if state == SUCCESSFUL:
        object.__setattr__(result, "_return_value", row.result)
    return result


def _errors(error_text: str | None) -> list[Any]:
    """The last error. A row has the class name without its module: complete only for Python's own exceptions."""
    if not error_text:
        return []
    name = error_text.partition(":")[0]
    path = f"builtins.{name}" if hasattr(builtins, name) else name
    return [TaskError(exception_class_path=path, traceback=error_text)]


def _instant(instant: datetime | None) -> datetime | None:
    """Aware, or with USE_TZ = False naive in the site's time zone."""
    return instant if instant is None or settings.USE_TZ else make_naive(instant, get_default_timezone())
