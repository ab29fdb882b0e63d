"""Tasks of Django's own Tasks API: what a worker calls for one, and its TaskResult.

A listed module has an object of Django's class Task in the place of the function. Django is imported only here and in
taskserver/django, and only after a module of the site has imported it.
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
    Status.IN_PROGRESS: "RUNNING",
    Status.DONE: "SUCCESSFUL",
    Status.FATAL: "FAILED",
    Status.CANCELLED: "FAILED",
}
"""Django's states of rows that are not READY."""
MOST_PRIORITY = 100
"""Of Django's; the least is its negative."""
UNKNOWN_WORKER = "unknown"
"""In `worker_ids`, for each attempt: a row has their number, not the names of the workers."""
MAX_WORKERS_NAMED = 1000
MAX_TOLD_SECONDS = 1.0
"""An interrupted task waits so long until receivers of its end have returned."""


class DjangoCall:
    """What a worker calls for a Django task; for one of `async def` it returns a coroutine."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.function: FunctionType = task.func
        whole = signature(self.function, follow_wrapped=False)
        parameters = list(whole.parameters.values())
        self.__signature__ = whole.replace(parameters=parameters[1:] if task.takes_context else parameters)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the task, between Django's signals. Raises what it raises."""
        if iscoroutinefunction(self.function):
            # Not by Task.call: that runs the coroutine in a thread, where no timeout reaches it.
            return self._awaited(args, kwargs)
        attempt = _Attempt(self)
        try:
            attempt.begin()
            returned = self.function(*attempt.context, *args, **kwargs)
        except BaseException as error:
            attempt.fail(error)
            raise
        return attempt.complete(returned)

    async def _awaited(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import asyncio

        from asgiref.sync import sync_to_async

        # In the thread in which Django's database works for a coroutine.
        attempt = await sync_to_async(_Attempt)(self)
        try:
            await sync_to_async(attempt.begin)()
            returned = await self.function(*attempt.context, *args, **kwargs)
        except asyncio.CancelledError as error:
            # Of an interrupt it has the reason. The task may keep that thread busy.
            interrupt = TaskInterrupted(*error.args).with_traceback(error.__traceback__)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(
                    sync_to_async(attempt.fail)(interrupt if error.args else error), MAX_TOLD_SECONDS
                )
            raise
        except BaseException as error:
            await sync_to_async(attempt.fail)(error)
            raise
        return await sync_to_async(attempt.complete)(returned)


class _Attempt:
    """A started attempt at a Django task: its signals, its TaskResult, and Django's connections."""

    def __init__(self, call: DjangoCall) -> None:
        from django.tasks import TaskContext

        current = current_task()
        if current is None:
            raise TaskServerError("a Django task is called by a worker; elsewhere call its function")
        self._is_last = current.attempt >= current.limit
        self._options = options_of(call.function)
        self._sender = _backend_for(call.task)
        self._result = task_result(current_row(), call.task, self._sender)
        self._result.worker_ids[-1:] = [f"{host_name()}:{os.getpid()}"]
        self.context = (TaskContext(task_result=self._result),) if call.task.takes_context else ()
        _close_old_connections()

    def begin(self) -> None:
        """Report that the task starts. An interrupt may meet a receiver: then `fail` has to follow, too."""
        from django.tasks.signals import task_started

        # A receiver that fails must not fail the task: Django logs its error.
        task_started.send_robust(type(self._sender), task_result=self._result)

    def complete(self, returned: Any) -> Any:
        """Report what the task returned. Returns it as JSON, or unchanged if it is none: the worker reports that."""
        from django.utils.json import normalize_json

        with suppress(Exception):  # the work is done all the same
            returned = normalize_json(returned)
        self._end("SUCCESSFUL", _return_value=returned)
        return returned

    def fail(self, error: BaseException) -> None:
        """Report what the task raised."""
        kind = type(error)
        was_cancelled = isinstance(error, TaskInterrupted) and error.args == (CANCELLED,)
        has_failed = self._is_last or was_cancelled or not self._options.allows_retry(kind)
        path = f"{kind.__module__}.{kind.__qualname__}"
        self._result.errors[:] = [_task_error(path, full_traceback(error))]
        self._end("FAILED" if has_failed else "READY")

    def _end(self, state: str, **more: Any) -> None:
        from django.tasks import TaskResultStatus
        from django.tasks.signals import task_finished
        from django.utils.timezone import now

        more |= {"status": TaskResultStatus(state)} | ({} if state == "READY" else {"finished_at": now()})
        for name, value in more.items():
            object.__setattr__(self._result, name, value)  # as Django's own backends do: the class is frozen
        task_finished.send_robust(type(self._sender), task_result=self._result)
        _close_old_connections()


def _close_old_connections() -> None:
    """As Django does between two requests, except for one in a transaction, as of a test."""
    from django.db import connections

    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def django_call(value: object) -> DjangoCall | None:
    """What to call for the value in a module's namespace, if it is a Django task."""
    base = sys.modules.get("django.tasks.base")
    return DjangoCall(value) if base is not None and issubclass(type(value), base.Task) else None


def _backend_for(task: Any) -> Any:
    """The task's backend, if it is ours; else the first of ours: `using(backend=…)` may have brought the task here."""
    from django.tasks import task_backends

    for backend in (task.get_backend(), *task_backends.all()):
        if hasattr(backend, "queue_of"):
            return backend
    raise TaskServerError("TASKS in Django's settings names no taskserver.django.Backend")


# ---- the TaskResult of a row


def task_result(row: StoredTask, task: Any, backend: Any) -> Any:
    """Django's TaskResult of a row, as far as rows have that. Raises BadTask if the row has bad arguments.

    Its `errors` are only the last one; `started_at` and `last_attempted_at` are both the start of the last attempt.
    """
    from dataclasses import replace

    from django.tasks import TaskResult, TaskResultStatus

    from ..model.results import read_result

    is_claimed = row.status == Status.IN_PROGRESS and row.started_at is None
    state = "READY" if is_claimed else STATES.get(row.status, "READY")
    args, kwargs = read_arguments(row.args)
    result = TaskResult(
        # SQL may have written a group without a queue, and any priority.
        task=replace(
            task,
            backend=backend.alias,
            priority=max(-MOST_PRIORITY, min(-row.priority, MOST_PRIORITY)),
            queue_name=backend.queue_of(row.group_id) or task.queue_name,
            run_after=_instant(row.due_at) if row.status == Status.WAITING else None,
        ),
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


def _errors(error_text: str | None) -> list[Any]:
    """The last error. A row has the name of the exception's class without its module, except for Python's own."""
    if not error_text:
        return []
    name = error_text.partition(":")[0]
    return [_task_error(f"builtins.{name}" if hasattr(builtins, name) else name, error_text)]


def _task_error(path: str, trace: str) -> Any:
    from django.tasks.base import TaskError

    return TaskError(exception_class_path=path, traceback=trace)


def _instant(text: str | None) -> datetime | None:
    """An instant of a row: aware, or with USE_TZ = False naive in the site's time zone."""
    from django.conf import settings
    from django.utils.timezone import get_default_timezone, make_naive

    from ..messages.instants import utc

    instant = utc(text)
    return instant if instant is None or settings.USE_TZ else make_naive(instant, get_default_timezone())
