"""A queue for one test that replaces the site's: it has what the site adds, and runs it when the test asks.

The runs are those of a worker. Time passes only for waiting tasks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Retry, SettingError, TaskServerError
from ..host.files import make_folder_in_memory
from ..messages.text import Duration
from ..model import functions
from ..model.attempt import FailedAttempt
from ..model.checks import check_duration
from ..model.functions import GivenFunction
from ..model.new_task import MAX_DELAY_DAYS, NewTask
from ..server import TaskServer
from ..settings.dsn import parse_dsn
from ..settings.load import Settings, load_settings, make_importable
from ..settings.table import PREFIX, SETTINGS, fields_of
from ..stores import Store, open_store
from ..worker import reporting
from ..worker.hooks import find_hook
from ..worker.limits import Limits
from ..worker.result import Reason
from ..worker.run import Runner
from .added import AddedTask, RecordingCallers, RecordingProducing, added_task
from .callables import PatchableCallables

DSN = f"{PREFIX}DSN"
MAX_TASKS = 1000
MAX_ROUNDED_SECONDS = 0.002
"""A database rounds times to milliseconds: a smaller difference is ignored."""


@dataclass
class Ran:
    """What ran."""

    done: int = 0
    failed: int = 0
    """Failed attempts that will be retried."""
    fatal: int = 0
    """Tasks that failed for good."""
    postponed: int = 0
    """Calls that raised Later."""
    called: list[str] = field(default_factory=list)
    """The names of the called callables, in order; one for each batch."""
    failures: list[FailedAttempt] = field(default_factory=list)
    """Each failed attempt with its exception, and each task that can never run."""


class TaskQueue:
    """The queue of a test, created by `task_queue`."""

    def __init__(self, settings: Settings, is_in_memory: bool, immediate: bool, raises: bool) -> None:
        self.immediate = immediate
        """Whether a task is run as soon as it is added."""
        self.raises = raises
        """Whether a task that fails raises its exception in the test."""
        self.added: list[AddedTask] = []
        """All tasks that Python code added since the test began, in order, even if they ran."""
        self._settings = settings
        self._is_running = False
        self.store = open_store(settings)
        self.store.producing = RecordingProducing(self.store, self._record)
        self.server = TaskServer.from_settings(settings)
        """A TaskServer of this queue; those of the site use it too."""
        self.path: Path | None = settings.dsn.database_file(settings.folder)
        """The queue's SQLite file, for the tables of a transactional task; None on MySQL."""
        self.store.callers = RecordingCallers(self.store, self._record, is_in_memory)

    def _record(self, tasks: Iterable[tuple[int, NewTask]], is_visible: bool) -> None:
        known = {task.id for task in self.added}
        # If a row had the key already, and this is no rerun, nothing was added.
        self.added += [added_task(task_id, task) for task_id, task in tasks if task.rerun or task_id not in known]
        if self.immediate and is_visible and not self._is_running:
            self.run_all()

    # ---- runs

    def run_all(self, until: Duration = 0, *, raises: bool | None = None, max_tasks: int = MAX_TASKS) -> Ran:
        """Run all ready tasks, and those that become ready by that; with `until`, as if so much time passed.

        `until` is a duration such as "5m": delayed tasks and retries that become due meanwhile run in order.
        If a task fails, its exception is raised here after all other ready tasks have run; with `raises=False` all
        failures are only returned. A Retry is no failure unless it is the last attempt. Raises TaskServerError after
        more than `max_tasks`, as tasks that add each other would never end.
        """
        __tracebackhide__ = True
        left, due, ran = check_duration("until", until, MAX_DELAY_DAYS, SettingError), self.store.due, Ran()
        raises = self.raises if raises is None else raises
        while True:
            self._run_ready(ran, raises, max_tasks)
            seconds = due.next_seconds()
            if seconds is None or seconds > left + MAX_ROUNDED_SECONDS:
                break
            due.pass_time(seconds)
            left = max(left - seconds, 0.0)
        due.pass_time(left)
        return ran

    def _run_ready(self, ran: Ran, raises: bool, max_tasks: int) -> None:
        __tracebackhide__ = True
        left, begin = max_tasks - ran.done - ran.failed - ran.fatal - ran.postponed, len(ran.failures)
        settings = self._settings._replace(on_failure=self._on_failure(ran.failures))
        callables = PatchableCallables(settings, ran.called)
        make_importable(settings.folder)
        self._is_running = True
        try:
            with _keeping_frames() if raises else nullcontext():
                result = Runner(self.store, settings, limits=Limits(max_tasks=left + 1), callables=callables).run()
            if result.taken:  # the setup succeeded, and must not be called twice
                self._settings = self._settings._replace(setup=None)
        finally:
            self._is_running = False
        ran.done, ran.failed, ran.fatal = ran.done + result.done, ran.failed + result.failed, ran.fatal + result.fatal
        ran.postponed += result.postponed
        for failed in ran.failures[begin:]:
            if raises and (failed.is_fatal or not isinstance(failed.error, Retry)):
                raise failed.error
        if result.reason is Reason.MAX_TASKS:
            raise TaskServerError(
                f"more than {max_tasks} tasks ran, the last of them {ran.called[-1:]}: do they add each other without "
                "end? max_tasks of run_all takes a larger number"
            )

    def given(self, function: object) -> GivenFunction | None:
        """The test's replacement of a task's function, if a producer adds that itself."""
        return PatchableCallables(self._settings, []).given(function)

    def _on_failure(self, failures: list[FailedAttempt]) -> Any:
        own = self._settings.on_failure

        def record(failed: FailedAttempt) -> None:
            failures.append(failed)
            if own is not None:
                find_hook(own)(failed)

        return record


def _keeping_frames() -> AbstractContextManager[object]:
    """In the `with`, a debugger can see the variables of a failed call, which a worker clears."""
    from unittest.mock import patch

    return patch.object(reporting, "clear_frames", lambda error: None)


# ---- replace the site's queue


@contextmanager
def task_queue(
    *, immediate: bool = False, raises: bool = True, folder: str | Path | None = None, **settings: object
) -> Iterator[TaskQueue]:
    """In the `with`, an empty queue in memory replaces the site's.

    Each TaskServer of this process uses it, even an older one, and so do programs that the test starts. Settings come
    from the environment and the `.env` in `folder` (the current one), except the database; you can pass each, such as
    `modules="shop.tasks"`. With a `dsn` the queue is in that database: its tables are created if needed, and their rows
    stay. With `immediate` each task runs as soon as it is added; `raises` is that of `run_all`. Raises SettingError.
    """
    private = make_folder_in_memory("the_task_queue_of_a_test-")
    try:
        dsn = str(settings.get("dsn", f"sqlite:///{private}/queue.db?synchronous=normal"))
        found = _settings(Path(folder or Path.cwd()).absolute(), {**settings, "dsn": dsn})
        queue = TaskQueue(found, "dsn" not in settings, immediate, raises)
        with closing(queue.store):
            queue.store.tables.create()
            with _replacing_site_queue(queue, dsn):
                yield queue
    finally:
        shutil.rmtree(private, ignore_errors=True)


def _settings(folder: Path, given: dict[str, object]) -> Settings:
    names = ["dsn", "password", *(one.name for one in SETTINGS)]
    for name in given:
        if name not in names:
            raise SettingError(f"{name} is not a setting; allowed: {', '.join(names)}")
    login = {f"{PREFIX}{name.upper()}": str(given[name]) for name in ("dsn", "password") if name in given}
    # The hook between tasks might close the test's connection, whose transaction is open.
    others = {"between": None} | {name: None if value == "" else value for name, value in given.items()}
    return load_settings(folder, {**os.environ, **login})._replace(**fields_of(SETTINGS, others, in_python=True))


@contextmanager
def _replacing_site_queue(queue: TaskQueue, dsn: str) -> Iterator[None]:
    """In the `with`, each TaskServer uses this queue, and the environment names its database.

    The class gets the store, so that each TaskServer of the process has it. A test's replacement of a function is found
    where a function's name is looked up.
    """
    from unittest.mock import patch  # a slow import

    real = functions.given_function

    def keep(server: TaskServer, own: Store) -> None:
        if dsn_before and server.settings.dsn == queue.server.settings.dsn:
            # It took the DSN from the environment, and will again after the test.
            password = os.environ.get(f"{PREFIX}PASSWORD", "")
            server.settings = server.settings._replace(dsn=parse_dsn(dsn_before, password))
            own = open_store(server.settings)
        vars(server)["store"] = own  # for the time after the test

    def given(function: Any) -> GivenFunction:
        return queue.given(function) or real(function)

    dsn_before = os.environ.get(DSN)
    with (
        patch.object(TaskServer, "store", property(lambda server: queue.store, keep), create=True),
        patch.object(functions, "given_function", given),  # producers import it at each call
    ):
        os.environ[DSN] = dsn
        try:
            yield
        finally:
            if dsn_before is None:
                del os.environ[DSN]
            else:
                os.environ[DSN] = dsn_before
