"""A backend for Django's own Tasks API (Django 6.0 and later): `@task` and `.enqueue()` of a site add tasks here.

Only the site's Django imports it, because of TASKS. worker/django_tasks.py has the worker's side, and TaskResults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import connections
from django.tasks import Task, TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils import timezone
from django.utils.module_loading import import_string

from .. import errors
from ..messages.text import shown
from ..model.checks import check_field
from ..model.functions import Parameters, why_not_runnable
from ..model.task import MAX_ID
from ..model.task_options import NO_OPTIONS, options_of
from ..server import TaskServer
from ..settings.dsn import MEMORY
from ..settings.load import program_folder
from ..worker.callables import Callables
from ..worker.django_tasks import task_result

OPTIONS = ("folder", "database", "groups")
BY_NAME = "have TaskServer.add_task add the task by its name, and give it that"
NOT_FOR_DJANGO = {
    "batch": "Django calls a function for one task at a time",
    "group_id": "give @task a queue_name, whose group OPTIONS['groups'] says",
    "priority": "give it to @task, where larger ones run sooner",
    "unique_key": BY_NAME,
    "rerun": BY_NAME,
}
"""Options of @taskserver.task that Django tasks can't have, and what to do instead."""


class Backend(BaseTaskBackend):  # type: ignore[misc]  # Django has no types
    """Adds the tasks of a Django site to the queue that the `.env` in OPTIONS["folder"] names.

    OPTIONS["database"] is the alias in DATABASES for adding tasks, in its transaction; default "default"; None: on
    taskserver's own connection, at once. OPTIONS["groups"] is the group of each queue, default {"default": 0}.
    """

    supports_defer = True
    supports_async_task = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        """Raises InvalidTaskBackend. Settings are read when used."""
        super().__init__(alias, params)
        unknown = ", ".join(sorted(self.options.keys() - set(OPTIONS)))
        if unknown:
            raise self._invalid(f"OPTIONS has {unknown}; allowed: {', '.join(OPTIONS)}")
        self.database = self.options.get("database", "default")
        if self.database is not None and self.database not in settings.DATABASES:
            raise self._invalid(
                f"OPTIONS['database'] is {shown(self.database)}; allowed: an alias in DATABASES, or None"
            )
        self.groups = self._checked_groups(self.options.get("groups", {"default": 0}))
        self.queues = set(params.get("QUEUES") or self.groups)
        if self.queues - self.groups.keys():
            raise self._invalid(
                f"QUEUES has {shown(sorted(self.queues - self.groups.keys()))}; allowed: the queues to which "
                f"OPTIONS['groups'] gives a group, {shown(list(self.groups))}"
            )

    def _invalid(self, text: str) -> InvalidTaskBackend:
        return InvalidTaskBackend(f"TASKS[{self.alias!r}]: {text}")

    def _checked_groups(self, groups: Any) -> dict[str, int]:
        try:
            return {queue: check_field("group_id", group, errors.SettingError) for queue, group in groups.items()}
        except (AttributeError, errors.SettingError) as error:
            allowed = "the number of a group for each queue, such as {'default': 0, 'mail': 3}"
            raise self._invalid(f"OPTIONS['groups'] is {shown(groups)}; allowed: {allowed}") from error

    @property
    def supports_get_result(self) -> bool:
        """Whether completed rows are kept: not in mode `delete`. Raises SettingError."""
        return self.server.settings.mode != "delete"

    @property
    def server(self) -> TaskServer:
        """The queue. Raises SettingError."""
        return _server(program_folder(self.options.get("folder", getattr(settings, "BASE_DIR", None))))

    def queue_of(self, group_id: int) -> str | None:
        """The queue whose tasks are in this group."""
        return next((queue for queue, group in self.groups.items() if group == group_id), None)

    # ---- for producers

    def validate_task(self, task: Any) -> None:
        """Raises Django's InvalidTask."""
        super().validate_task(task)
        if why := why_not_runnable(task.func):
            raise InvalidTask(f"Task {why}.")
        options = options_of(task.func)
        for name, instead in NOT_FOR_DJANGO.items():
            if getattr(options, name) != getattr(NO_OPTIONS, name):
                raise InvalidTask(f"Task has @taskserver.task({name}=…), which .enqueue() does not look at: {instead}.")

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Add a task, and return its TaskResult; `enqueued_at` is by this host's clock until it is refreshed.

        Raises Django's InvalidTask, TypeError if an argument can't be JSON, and our DatabaseError and SettingError.
        """
        self.validate_task(task)
        result = TaskResult(
            task=task,
            id="",
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        object.__setattr__(result, "id", str(self._add(task, result)))  # frozen; Django's own backends do the same
        task_enqueued.send(type(self), task_result=result)
        return result

    def _add(self, task: Any, result: Any) -> int:
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):  # USE_TZ = False
            run_after = timezone.make_aware(run_after, timezone.get_default_timezone())
        try:
            return self.server.add_task(
                task.module_path,
                _arguments(task, result.args, result.kwargs),
                group_id=self.groups[task.queue_name],
                priority=-task.priority,
                at=run_after,
                connection=None if self.database is None else connections[self.database],
            )
        except errors.InvalidTask as error:
            raise InvalidTask(str(error)) from error

    # ---- results

    def get_result(self, result_id: str) -> Any:
        """The committed TaskResult of a task.

        Raises TaskResultDoesNotExist, also for a completed task in mode `delete`, and if the row names no Django task
        of TASKSERVER_MODULES.
        """
        server = self.server
        row = server.store.views.show(_number(result_id))
        if row is None:
            raise TaskResultDoesNotExist(result_id)
        try:
            _callables(server).find(row.task)  # imports only listed modules
            task = import_string(row.task)
            if isinstance(task, Task):
                return task_result(row, task, self)
        except (errors.TaskServerError, ImportError) as error:
            raise TaskResultDoesNotExist(f"{result_id}: {error}") from error
        raise TaskResultDoesNotExist(f"{result_id}: {row.task} is not a Django task")

    # ---- for manage.py check

    def check(self, **kwargs: Any) -> list[Any]:
        """An error for a wrong setting; a warning if the queue is not ready, as errors block `manage.py migrate`."""
        try:
            self.server.store.tables.check()
        except errors.SettingError as error:
            return [checks.Error(f"TASKS[{self.alias!r}]: {error}", id="taskserver.E001")]
        except errors.DatabaseError as error:
            return [checks.Warning(f"TASKS[{self.alias!r}]: {error}", id="taskserver.W001")]
        try:
            if self.database is not None and self.server.settings.dsn.place != MEMORY:  # memory is for tests
                self.server.store.callers.check(connections[self.database])
        except (errors.DatabaseError, errors.InvalidTask) as error:
            hint = "Name the alias of the queue's database in OPTIONS['database'], or None, see docs/django.md."
            return [checks.Warning(f"TASKS[{self.alias!r}]: {error}", hint=hint, id="taskserver.W002")]
        return []


@lru_cache
def _server(folder: Path) -> TaskServer:
    """One for all threads: Django creates a Backend for each."""
    return TaskServer.from_env(folder)


@lru_cache
def _callables(server: TaskServer) -> Callables:
    return Callables(server.settings.modules, server.settings.folder)


def _number(result_id: str) -> int:
    """The id of a row. Raises TaskResultDoesNotExist."""
    is_number = type(result_id) is str and result_id.isascii() and result_id.isdigit()
    if not is_number or len(result_id) > len(str(MAX_ID)) or int(result_id) > MAX_ID:
        raise TaskResultDoesNotExist(result_id)
    return int(result_id)


def _arguments(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Positions or keywords: a row has only one kind, so mixed ones become keywords.

    Raises taskserver's InvalidTask if they cannot.
    """
    if not (args and kwargs):
        return args or kwargs
    named = Parameters(task.func).by_name(args, kwargs, left_out=int(task.takes_context))
    if named is None:
        raise errors.InvalidTask(
            "positional arguments beside keywords are kept by their names, which these have not: give all by keyword, "
            "or all by position"
        )
    return named
