"""TaskServer: the Python API of the queue, for producers, for a site's own workers, and for our commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ParamSpec

from .errors import NotEnded, SettingError
from .interrupts.stop import Stop
from .model.checks import check_duration, check_field, check_groups, check_kind, check_list
from .model.task import DEFAULT_TABLE, NOT_GIVEN, NotGiven
from .settings.load import Settings, load_settings, make_importable, make_settings, program_folder
from .stores import Store, open_store
from .worker.result import RunResult

if TYPE_CHECKING:
    import builtins
    from datetime import datetime

    from .health.status import QueueStatus
    from .messages.text import Duration
    from .model.attempt import FailedAttempt
    from .model.new_task import NewTask
    from .model.results import TaskState
    from .model.schedule import Schedule
    from .model.selection import Selection
    from .stores.queue.operations import Operations, Reclaimed
    from .stores.queue.pruning import Pruned
    from .stores.queue.schedules import Schedules, Synced
    from .stores.queue.stats import HourStats
    from .stores.records import ErrorCount, TaskRow


P = ParamSpec("P")


class TaskServer:
    """A queue in a database: adds tasks, and runs them.

    Each thread and each forked process connects at its first use. Close it, or use it in a `with`. All errors are
    TaskServerErrors. A duration is a number of seconds, a text such as "5m", or a timedelta.
    """

    def __init__(
        self,
        dsn: str,
        *,
        table: str = DEFAULT_TABLE,
        mode: str = "delete",
        modules: str | Sequence[str] = "tasks",
        max_attempts: int = 10,
        backoff: str = "exponential:60",
        lease: int | str = 120,
        timeout: int | str = 600,
        db_patience: int | str = 30,
        keep: int | str | None = None,
        pauses: str = "0.1,1,5",
        setup: str | Callable[[], object] | None = None,
        between: str | Callable[[], object] | None = None,
        on_failure: str | Callable[[FailedAttempt], object] | None = None,
        password: str = "",
        folder: str | Path | None = None,
    ) -> None:
        """Each argument is the setting of its name; relative paths start in `folder`, by default the program's.

        `modules` can also be a list; `setup`, `between` and `on_failure` can be functions. Raises SettingError.
        """
        given = locals()
        self.settings = make_settings(folder, given)
        self.store: Store = open_store(self.settings)

    @classmethod
    def from_env(cls, folder: str | Path | None = None) -> TaskServer:
        """Take settings from the environment, then from the `.env` in `folder`, by default the program's."""
        return cls.from_settings(load_settings(program_folder(folder)))

    @classmethod
    def from_settings(cls, settings: Settings) -> TaskServer:
        """Take checked settings."""
        check_kind("settings", settings, Settings, "the settings of another TaskServer")
        server = cls.__new__(cls)
        server.settings, server.store = settings, open_store(settings)
        return server

    def __enter__(self) -> TaskServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TaskServer({self.settings.dsn.place}, table={self.settings.table!r}, mode={self.settings.mode!r})"

    def close(self) -> None:
        """Close all connections; the next use connects again."""
        self.store.close()

    def create_tables(self) -> None:
        """Create or upgrade the tables; safe to repeat."""
        self.store.tables.create()

    # ---- producers

    def add_task(
        self,
        task: str | Callable[..., Any],
        args: object = None,
        *,
        group_id: int | NotGiven = NOT_GIVEN,
        priority: int | NotGiven = NOT_GIVEN,
        max_attempts: int | None = None,
        delay: Duration | None = None,
        at: datetime | str | None = None,
        unique_key: str | NotGiven | None = NOT_GIVEN,
        rerun: bool | NotGiven = NOT_GIVEN,
        version: int | None = None,
        depends_on: Iterable[int] | None = None,
        connection: object = None,
    ) -> int:
        """Add one task and return its id.

        `task` is a callable's name or the function itself; then the defaults come from @task (unique_key=None: no key).
        `args` is a dict (keywords) or a list (positions) for JSON, at most 1 MiB. The task runs after `delay` or from
        `at` on (an aware datetime), and after the tasks in `depends_on` (ids) are done.
        If a row with the `unique_key` exists, nothing is added and its id is returned. With `rerun` that row becomes
        new again with these values; if it runs now, it runs again afterwards. But not if its `version` is the same or
        newer. Raises InvalidTask.

        On your own `connection` to the same database (PEP 249, or Django's) the task is part of your transaction. After
        a DatabaseError there, roll back and retry.
        """
        from .model.new_task import new_task  # most runs of a worker add no task

        placing = (task, args, group_id, priority, max_attempts)
        return self._add(new_task(*placing, delay, at, unique_key, rerun, version, None, depends_on), connection)

    def enqueue(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> int:
        """Add a call of a function with the options of @task, and return its id; mypy and editors check the arguments.

        For delay, connection and so on use `add_task`. Raises InvalidTask.
        """
        from .model.functions import given_function

        return self.add_task(function, given_function(function).args_of(args, kwargs))

    def add_pipeline(
        self,
        stages: Sequence[str | Callable[..., Any] | Mapping[str, Any]],
        args: object = None,
        *,
        group_id: int | NotGiven = NOT_GIVEN,
        priority: int | NotGiven = NOT_GIVEN,
        max_attempts: int | None = None,
        delay: Duration | None = None,
        at: datetime | str | None = None,
        unique_key: str | None = None,
        rerun: bool = False,
        version: int | None = None,
        depends_on: Iterable[int] | None = None,
        connection: object = None,
    ) -> int:
        """Add one task that runs several callables in turn, each with the result of the one before; return its id.

        A stage is a callable's name, the function itself, or a mapping of `task`, `group_id`, `priority` and
        `max_attempts`; their defaults are the arguments here, then @task. `args` are for the first stage. Otherwise as
        `add_task`.
        """
        from .model.new_task import new_task  # most runs of a worker add no task

        given = () if stages is None else stages  # an empty list is invalid, too
        placing = (None, args, group_id, priority, max_attempts)
        return self._add(new_task(*placing, delay, at, unique_key, rerun, version, given, depends_on), connection)

    def _add(self, task: NewTask, connection: object) -> int:
        if connection is not None:
            # A worker decides whether the task must wait: our connections see it only after the commit.
            return self.store.callers.add(connection, task)
        return self.store.producing.add(task)

    def add_tasks(self, tasks: Iterable[Mapping[str, Any]], *, connection: object = None) -> builtins.list[int]:
        """Add many tasks in one transaction, all or none; return their ids.

        Each is a mapping of the arguments of `add_task` or `add_pipeline`. Raises InvalidTask with the number of the
        invalid one. On your own `connection`, the tasks before it stay until you roll back.
        """
        from .model.new_task import new_tasks_from

        if connection is not None:
            return self.store.callers.add_many(connection, new_tasks_from(tasks))
        return self.store.producing.add_many(new_tasks_from(tasks))

    def get(self, task_id: int) -> TaskState | None:
        """Read a task's status, result, error and progress; None if it was deleted, like done ones in mode `delete`."""
        return self.store.views.state(check_field("task_id", task_id, SettingError))

    def get_many(self, task_ids: Iterable[int]) -> dict[int, TaskState]:
        """Read many tasks, 500 per query; deleted ones are left out."""
        given = check_list("task_ids", task_ids, "a list of ids", SettingError)
        return self.store.views.states([check_field("task_id", one, SettingError) for one in given])

    def wait(self, task_id: int, timeout: Duration) -> TaskState | None:
        """Wait until a task is done, fatal or cancelled, then read it like `get`.

        Raises NotEnded after the `timeout`. A task that waits here blocks its worker.
        """
        seconds, pause = check_duration("timeout", timeout, 366, SettingError), 0.05
        ends_at = time.monotonic() + seconds
        while (state := self.get(task_id)) is not None and not state.is_over:
            if (left := ends_at - time.monotonic()) <= 0:
                raise NotEnded(f"task {task_id} has not ended within {seconds:g} s: its status is {state.status}")
            time.sleep(min(pause, left))
            pause = min(2 * pause, 1)
        return state

    # ---- periodic tasks

    def schedule(
        self,
        name: str,
        task: str | Callable[..., Any],
        args: object = None,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        group_id: int | NotGiven = NOT_GIVEN,
        priority: int | NotGiven = NOT_GIVEN,
    ) -> datetime:
        """Add a task after `every` duration, or at the times of a `cron` expression in the `timezone`.

        The same name again changes the schedule. Returns the next time, in UTC. Raises InvalidTask, and SettingError if
        `cron` lacks its library.
        """
        from .model.schedule import new_schedule

        schedule = new_schedule(name, task, args, every, cron, timezone, group_id, priority)
        return self._schedules().put(schedule)

    def sync_schedules(self, schedules: Iterable[Schedule]) -> Synced:
        """Put these schedules in one transaction, and return the names of what changed: for a deploy script.

        Each is a `taskserver.Schedule(…)` with the arguments of `schedule`. Schedules of an earlier sync that are
        missing here are removed; the others stay. Raises like `schedule`.
        """
        from .model.schedule import new_schedules

        return self._schedules().sync(new_schedules(schedules))

    def unschedule(self, name: str) -> bool:
        """End a schedule; its added tasks still run. False if there was no such schedule."""
        return self._schedules().remove(name)

    def run_schedule_now(self, name: str) -> int:
        """Add a schedule's task now, and return its id; the next time stays. Raises InvalidTask if one is pending."""
        return self._schedules().run_now(name)

    def _schedules(self) -> Schedules:
        from .stores.queue.schedules import Schedules

        return Schedules(self.store)

    # ---- operators

    def set_priority(self, task_id: int, priority: int) -> bool:
        """Change the priority of a task that is not done; False if there is none. Raises like `retry`."""
        return self._operations().set_priority(check_field("task_id", task_id, SettingError), priority) == 1

    def retry(self, tasks: int | Iterable[int] | Selection, *, as_task: str | Callable[..., Any] | None = None) -> int:
        """Error, fatal, cancelled → new, with attempts 0, for one id, several, or a Selection. Returns their number.

        `as_task` replaces a wrong name of the callable, except in pipelines. Raises InvalidTask, and DatabaseError if
        other programs lock some of the rows.
        """
        return self._operations().retry(tasks, as_task)

    def cancel(self, tasks: int | Iterable[int] | Selection) -> int:
        """New, waiting, error → cancelled; running tasks are interrupted within seconds. Otherwise as `retry`."""
        return self._operations().cancel(tasks)

    def pause(self, group_id: int) -> bool:
        """Stop workers from taking tasks of a group, from the next claim on. False if it was paused already."""
        return bool(self.store.claims.pause([check_field("group_id", group_id, SettingError)]))

    def resume(self, group_id: int) -> bool:
        """Let workers take tasks of a group again. False if it was not paused; InvalidTask while all are paused."""
        return bool(self.store.claims.resume([check_field("group_id", group_id, SettingError)]))

    def stats(self, since: Duration | datetime | None = None) -> Sequence[HourStats]:
        """Counts and times by hour, group and task name: since a time, for a duration, or all."""
        from .stores.queue.stats import Stats

        return Stats(self.store).hours(since)

    def errors(
        self, groups: Iterable[int] | None = None, task: str | None = None, limit: int | None = None
    ) -> Sequence[ErrorCount]:
        """Count tasks in error and fatal by the first line of their errors, most frequent first; at most `limit`."""
        return self.store.views.errors(groups, task, limit)

    def list(
        self,
        status: int | Iterable[int] | None = None,
        groups: Iterable[int] | None = None,
        task: str | None = None,
        error: str | None = None,
        since: Duration | datetime | None = None,
        limit: int = 100,
    ) -> Sequence[TaskRow]:
        """Read the newest tasks of these statuses, groups, and name, whose error starts with `error`.

        `since`: only tasks added, started or ended after it; an aware datetime, or a duration before now.
        """
        return self.store.views.list(status, groups, task, error, since, limit)

    def status(self) -> QueueStatus:
        """Read the whole queue, with the findings of `client.py status`; cheap even with many rows."""
        from .health.judge import judged

        return judged(self.store, self.settings)

    def prune(
        self,
        older_than: Duration,
        *,
        done: bool = False,
        fatal: bool = False,
        cancelled: bool = False,
        archived: bool = False,
        stats: bool = False,
        keys: bool = False,
        archive_to: str | Path | None = None,
    ) -> Pruned:
        """Delete rows of the chosen kinds (default: done and archived) that ended so long ago; return how many.

        Rows with a unique_key stay in the queue unless `keys`. Each row is added as a JSON line to the gzip file
        `archive_to` before it is deleted. Raises InvalidTask, and SettingError or HostLimit if that file cannot be
        written.
        """
        from .stores.queue.pruning import prune

        return prune(self.store, older_than, keys, archive_to, done, fatal, cancelled, archived, stats)

    def reclaim(self, force: Selection | None = None) -> Reclaimed:
        """Wake all due tasks and reclaim all with an expired lease, at once; runs do the same bit by bit.

        `force` also reclaims chosen tasks whose lease still holds: if their worker is alive, they may run twice.
        """
        from .worker.run import reclaim

        return reclaim(self.store, self.settings, force)

    def run_task(self, task_id: int, *, stop: Stop | None = None) -> RunResult:
        """Run one new, waiting, failed or fatal task now. Raises InvalidTask if it is deleted, done or in progress."""
        from .worker.run import run_task

        return run_task(self.store, self.settings, check_field("task_id", task_id, SettingError), stop)

    def _operations(self) -> Operations:
        from .stores.queue.operations import Operations

        return Operations(self.store)

    # ---- workers

    def run(
        self,
        max_tasks: int = 0,
        groups: Iterable[int] | None = None,
        *,
        batch: int = 100,
        max_time: Duration | None = None,
        max_memory: float | None = None,
        linger: Duration | None = None,
        stop: Stop | None = None,
        on_progress: Callable[[RunResult], object] | None = None,
    ) -> RunResult:
        """Run tasks of `groups` (None: all) until a limit is reached or no task is left.

        The limits are `max_tasks` (0: none), `max_time`, and `max_memory` (megabytes of the process). It claims at most
        `batch` tasks at once. With `linger` it waits for new tasks until the run is so old. `on_progress` is called
        after each call of a task or batch. Returns what was done, and why the run ended.

        Signal handlers are not changed. A KeyboardInterrupt inside a task is a failure of that task, and the run goes
        on; to end the run, let a signal handler call `stop.ask()`.
        """
        from .worker.limits import check_system, checked_limits
        from .worker.run import Runner

        check_system()
        limits = checked_limits(max_tasks, batch, max_time, max_memory, linger)
        check_kind("stop", stop, (Stop, NoneType), "a taskserver.Stop, or None")
        check_kind("on_progress", on_progress, (Callable, NoneType), "a function that takes a RunResult, or None")
        chosen = check_groups(groups) or ()
        make_importable(self.settings.folder)
        return Runner(self.store, self.settings, chosen, limits, stop, on_progress).run()
