"""Tasks of Django's own Tasks API, which sites define with `@django.tasks.task`: what a worker calls for one, and its
TaskResult.

A listed module holds an object of Django's class Task in the place of its function. Django is imported only here and in
taskserver/django, and never before a module of the site has imported it.
"""

from __future__ import annotations

import builtins
import os
import sys
from contextlib import suppress
from inspect import iscoroutinefunction, signature
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ..errors import TaskServerError
from ..interrupts.stop import TaskInterrupted
from ..messages.error_text import full_traceback
from ..model.arguments import read_arguments
from ..model.task import CANCELLED, Status
from ..model.task_options import options_of
from .record import host_name
from .task_context import current_row, current_task

if TYPE_CHECKING:
    from datetime import datetime

    from ..stores.records import StoredTask

STATES: dict[int, str] = {
    Status.NEW: "READY",
    Status.IN_PROGRESS: "RUNNING",
    Status.DONE: "SUCCESSFUL",
    Status.ERROR: "READY",
    Status.FATAL: "FAILED",
    Status.CANCELLED: "FAILED",
    Status.WAITING: "READY",
}
MOST_PRIORITY = 100
"""Of Django's; the least is its negative."""
UNKNOWN_WORKER = "unknown"
MAX_TOLD_SECONDS = 1.0
"""So long an interrupted task waits until receivers have heard of its end."""
MAX_WORKERS_NAMED = 1000
"""A forged row may have had two thousand million attempts."""
"""Stands in `worker_ids` for the worker of an earlier attempt: a row keeps their number, not their names."""


class DjangoCall:
    """What a worker calls for a Django task: for one of `async def` it returns a coroutine, as the function does."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.function: FunctionType = task.func
        whole = signature(self.function, follow_wrapped=False)
        parameters = list(whole.parameters.values())
        self.__signature__ = whole.replace(parameters=parameters[1:] if task.takes_context else parameters)
        """The parameters that a row gives: all but the context."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the task, between Django's signals. What it returned. Raises whatever it raises."""
        if iscoroutinefunction(self.function):
            # Not by Task.call: that runs the coroutine in a thread, where no timeout reaches it.
            return self._awaited(args, kwargs)
        attempt = _Attempt(self)
        try:
            returned = self.function(*attempt.context, *args, **kwargs)
        except BaseException as error:
            attempt.fail(error)
            raise
        return attempt.complete(returned)

    async def _awaited(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import asyncio

        from asgiref.sync import sync_to_async

        from ..interrupts.coroutines import as_interrupt

        # In the thread in which Django's database works for a coroutine.
        attempt = await sync_to_async(_Attempt)(self)
        try:
            returned = await self.function(*attempt.context, *args, **kwargs)
        except asyncio.CancelledError as error:
            interrupt = as_interrupt(error)
            with suppress(asyncio.TimeoutError):  # the task may keep that thread busy
                await asyncio.wait_for(sync_to_async(attempt.fail)(interrupt), MAX_TOLD_SECONDS)
            raise
        except BaseException as error:
            await sync_to_async(attempt.fail)(error)
            raise
        return await sync_to_async(attempt.complete)(returned)


class _Attempt:
    """An attempt at a Django task, from its begin on: its signals, its TaskResult, and Django's connections."""

    def __init__(self, call: DjangoCall) -> None:
        from django.tasks import TaskContext
        from django.tasks.signals import task_started

        current = current_task()
        if current is None:
            raise TaskServerError("a Django task is called by a worker; elsewhere call its function")
        self._is_last = current.attempt >= current.limit
        self._options = options_of(call.function)
        self._sender = _backend_for(call.task)
        self._result = task_result(current_row(), call.task, self._sender)
        earlier = [UNKNOWN_WORKER] * min(current.attempt - 1, MAX_WORKERS_NAMED)
        self._result.worker_ids[:] = [*earlier, f"{host_name()}:{os.getpid()}"]
        self.context = (TaskContext(task_result=self._result),) if call.task.takes_context else ()
        _close_old_connections()
        # A receiver that fails must not fail the task: Django logs its error.
        task_started.send_robust(type(self._sender), task_result=self._result)

    def complete(self, returned: Any) -> Any:
        """The task has returned this; it as JSON, or as it is where it is none: the worker tells of that."""
        from django.utils.json import normalize_json

        with suppress(Exception):  # the work is done all the same
            returned = normalize_json(returned)
        self._end("SUCCESSFUL", _return_value=returned)
        return returned

    def fail(self, error: BaseException) -> None:
        """The task has raised this."""
        kind = type(error)
        is_last = self._is_last or not self._options.allows_retry(kind)
        path = f"{kind.__module__}.{kind.__qualname__}"
        self._result.errors[:] = [_task_error(path, full_traceback(error))]
        self._end("FAILED" if is_last or _was_cancelled(error) else "READY")

    def _end(self, state: str, **more: Any) -> None:
        from django.tasks import TaskResultStatus
        from django.tasks.signals import task_finished
        from django.utils.timezone import now

        finished = {} if state == "READY" else {"finished_at": now()}
        for name, value in {"status": TaskResultStatus(state), **finished, **more}.items():
            object.__setattr__(self._result, name, value)  # as Django's own backends do: the class is frozen
        task_finished.send_robust(type(self._sender), task_result=self._result)
        _close_old_connections()


def _close_old_connections() -> None:
    """As Django closes them between two requests, but for one in a transaction, as of a test."""
    from django.db import connections

    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def _was_cancelled(error: BaseException) -> bool:
    """Whether this error is the interrupt of a task that a person cancelled."""
    if not isinstance(error, TaskInterrupted):
        return False
    try:
        current_task()  # raises it anew: one that struck a thread has no words yet
    except TaskInterrupted as told:
        return told.args == (CANCELLED,)
    return False


def django_call(value: object) -> DjangoCall | None:
    """What to call for the value in a module's namespace, if it is a Django task."""
    base = sys.modules.get("django.tasks.base")
    return DjangoCall(value) if base is not None and issubclass(type(value), base.Task) else None


def _backend_for(task: Any) -> Any:
    """The task's backend, if it is ours: `using(backend=…)` may have brought the task here. Raises TaskServerError."""
    from django.tasks import task_backends

    for backend in (task.get_backend(), *task_backends.all()):
        if hasattr(backend, "queue_of"):
            return backend
    raise TaskServerError("TASKS in Django's settings names no taskserver.django.Backend")


# ---- the TaskResult of a row


def task_result(row: StoredTask, task: Any, backend: Any) -> Any:
    """Django's TaskResult of a row, as far as rows keep what it has. Raises BadTask where the row holds bad arguments.

    Its `errors` hold the last error alone; `started_at` and `last_attempted_at` are both the start of the last attempt.
    """
    from django.tasks import TaskResult, TaskResultStatus

    from ..model.results import read_result

    state = STATES.get(row.status, "READY")
    if state == "RUNNING" and row.started_at is None:
        state = "READY"  # claimed, and waits for its turn
    args, kwargs = read_arguments(row.args)
    result = TaskResult(
        task=_task_of(row, task, backend),
        id=str(row.id),
        status=TaskResultStatus(state),
        enqueued_at=_instant(row.created_at),
        started_at=_instant(row.started_at),
        last_attempted_at=_instant(row.started_at),
        finished_at=_instant(row.finished_at) if state in ("SUCCESSFUL", "FAILED") else None,
        args=args,
        kwargs=kwargs,
        backend=backend.alias,
        errors=_errors(row.error_text),
        worker_ids=[UNKNOWN_WORKER] * min(row.attempts, MAX_WORKERS_NAMED),
    )
    if state == "SUCCESSFUL":
        object.__setattr__(result, "_return_value", read_result(row.result))
    return result


def _task_of(row: StoredTask, task: Any, backend: Any) -> Any:
    """The task with what its row says; SQL may have written a group without a queue, and any priority."""
    from dataclasses import replace

    queue = backend.queue_of(row.group_id)
    return replace(
        task,
        backend=backend.alias,
        priority=max(-MOST_PRIORITY, min(-row.priority, MOST_PRIORITY)),
        queue_name=task.queue_name if queue is None else queue,
        run_after=_instant(row.due_at) if row.status == Status.WAITING else None,
    )


def _errors(error_text: str | None) -> list[Any]:
    """The last error. A row has the name of the exception's class without its module, but for Python's own."""
    if not error_text:
        return []
    name = error_text.partition(":")[0]
    return [_task_error(f"builtins.{name}" if hasattr(builtins, name) else name, error_text)]


def _task_error(path: str, trace: str) -> Any:
    from django.tasks.base import TaskError

    return TaskError(exception_class_path=path, traceback=trace)


def _instant(text: str | None) -> datetime | None:
    """An instant of a row as Django has it: aware, or with USE_TZ = False naive in the site's time zone."""
    from django.conf import settings
    from django.utils.timezone import get_default_timezone, make_naive

    from ..messages.instants import utc

    instant = utc(text)
    return instant if instant is None or settings.USE_TZ else make_naive(instant, get_default_timezone())
