"""TaskServer: the Python face of the queue, for producers, for a site's own workers, and for our commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from .errors import DatabaseError
from .interrupts.stop import Stop
from .model.task import DEFAULT_TABLE, MAX_GROUPS, NOT_GIVEN, NotGiven
from .settings.checks import check_group_id, check_groups, check_kind, check_task_id
from .settings.load import Settings, load_settings, make_importable, make_settings, program_folder
from .stores import Store, open_store
from .worker.result import RunResult

if TYPE_CHECKING:
    import builtins
    from datetime import datetime

    from .health.queue_status import QueueStatus
    from .health.task_rows import ErrorLine, TaskRow
    from .messages.text import Duration
    from .model.attempt import FailedAttempt
    from .model.new_task import NewTask
    from .model.results import TaskState
    from .model.selection import Selection
    from .stores.queue.operations import Operations, Reclaimed
    from .stores.queue.pruning import Pruned
    from .stores.queue.stats import HourStats


class TaskServer:
    """A queue in a database: adds tasks, and runs them.

    Connects when first used, each thread and each forked process on a connection of its own. Close it, or use it
    in a `with`. All of its errors are TaskServerErrors.
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

        `modules` may be a list of names, too, and `setup`, `between` and `on_failure` functions. Raises SettingError.
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
        """Take settings that are checked already."""
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
        """Make the tables, or bring older ones up to date; safe to repeat."""
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

        `task` is a callable's name or the function itself, `args` a dict (keywords) or a list (positions) that JSON
        can hold, at most 1 MiB. The task runs after `delay` (seconds, "5m", a timedelta) or from `at` on (an aware
        datetime), and once all tasks are done whose ids `depends_on` gives. While a row with the `unique_key` exists
        nothing is added, and the id is that row's; with `rerun` the row becomes new again with all that is given
        here, or runs once more after its run where it runs already. A rerun with a `version` changes no row of that
        version or a newer one. Where the function itself is given, `group_id`, `priority`, `unique_key` and `rerun` are
        as @task says if they are left out here; unique_key=None is without a key. Raises InvalidTask.

        On your own `connection` to the same database (PEP 249, or Django's) the task is part of your transaction:
        it is there once you commit. Every failure there is a DatabaseError; you roll back, and you try again.
        """
        from .model.new_task import new_task  # a worker's run seldom adds a task

        new = new_task(
            task, args, group_id, priority, max_attempts, delay, at, unique_key, rerun, version, None, depends_on
        )
        return self._add(new, connection)

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
        `max_attempts`; where a stage leaves one out, the value given here counts, or else what @task says of group and
        priority. `args` are the first stage's; the other arguments are as in `add_task`. Raises InvalidTask.
        """
        from .model.new_task import new_task  # a worker's run seldom adds a task

        given = () if stages is None else stages  # an empty list is refused, too
        new = new_task(
            None, args, group_id, priority, max_attempts, delay, at, unique_key, rerun, version, given, depends_on
        )
        return self._add(new, connection)

    def _add(self, task: NewTask, connection: object) -> int:
        if connection is not None:
            # A worker settles whether the task has to wait: until the commit no connection of ours sees it.
            return self.store.callers.add(connection, task)
        task_id = self.store.producing.add(task)
        if task.depends_on is not None:
            from .stores.queue.dependencies import Dependencies

            # Decide at once whether it has to wait; if that fails, a worker's next look does it.
            with suppress(DatabaseError):
                Dependencies(self.store.database).decide([task_id])
        return task_id

    def add_tasks(self, tasks: Iterable[Mapping[str, Any]], *, connection: object = None) -> builtins.list[int]:
        """Add many tasks in one transaction, all or none; return their ids.

        A mapping describes each task: its keys are the arguments of `add_task`. Only `task` must be there, or in its
        place `stages`, as for `add_pipeline`. Raises InvalidTask, with the number of the wrong task, counted from 1.

        On your own `connection` the transaction is yours, as in `add_task`: after an error, the tasks that were added
        before it stand there until you roll back.
        """
        from .model.new_task import new_tasks_from

        if connection is not None:
            return self.store.callers.add_many(connection, new_tasks_from(tasks))
        return self.store.producing.add_many(new_tasks_from(tasks))

    def get(self, task_id: int) -> TaskState | None:
        """Read a task's status, result, error and progress.

        None where there is no such task: in mode `delete` a completed task is gone, too.
        """
        return self.store.views.state(check_task_id(task_id))

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
        """Have a task added `every` so many seconds (or "5m", or a timedelta), or at the times of a `cron` expression.

        The name identifies the schedule: given again, it changes the values that differ. `cron` follows the clock of
        the `timezone`. Returns the next time, in UTC. Raises InvalidTask, and SettingError if `cron` lacks its library.
        """
        from .model.schedule import new_schedule
        from .stores.queue.schedules import Schedules

        schedule = new_schedule(name, task, args, every, cron, timezone, group_id, priority)
        return Schedules(self.store).put(schedule)

    def unschedule(self, name: str) -> bool:
        """End a schedule; a task that it added already still runs. False where there was no such schedule."""
        from .model.field_checks import check_text
        from .stores.queue.schedules import Schedules

        return Schedules(self.store).remove(check_text("name", name))

    def run_schedule_now(self, name: str) -> int:
        """Add a schedule's task at once, and return its id; the schedule's next time stays.

        A task that it added before, and that has not ended, stays as it is, and the id is that task's. Raises
        InvalidTask where there is no such schedule.
        """
        from .model.field_checks import check_text
        from .stores.queue.schedules import Schedules

        return Schedules(self.store).run_now(check_text("name", name))

    # ---- operators

    def set_priority(self, task_id: int, priority: int) -> bool:
        """Move a task that is not done; False where there is none. Raises as `retry` does."""
        return self._operations().set_priority(check_task_id(task_id), priority) == 1

    def retry(self, tasks: int | Iterable[int] | Selection, *, as_task: str | Callable[..., Any] | None = None) -> int:
        """Error, fatal, cancelled → new, with attempts 0, for an id, some ids, or a Selection; how many tasks changed.

        `as_task` is another callable for them, for a name that was misspelt; pipelines stay as they are then. Raises
        InvalidTask, and DatabaseError where other programs held some of the rows.
        """
        return self._operations().retry(tasks, as_task)

    def cancel(self, tasks: int | Iterable[int] | Selection) -> int:
        """New, waiting, error → cancelled; a running task is interrupted at its next heartbeat or progress().

        For an id, some ids, or a Selection; returns how many tasks changed. Raises as `retry` does.
        """
        return self._operations().cancel(tasks)

    def pause(self, group_id: int) -> bool:
        """Stop workers from taking tasks of a group, from the next claim on. False if it was paused already."""
        return bool(self.store.claims.pause([check_group_id(group_id)]))

    def resume(self, group_id: int) -> bool:
        """Let workers take tasks of a group again. False if it was not paused.

        Raises InvalidTask while all groups are paused, by `client.py pause --all`.
        """
        return bool(self.store.claims.resume([check_group_id(group_id)]))

    def stats(self, since: Duration | datetime | None = None) -> Sequence[HourStats]:
        """Counts and times by hour, group and task name: since an instant, for so many seconds, or all that is kept."""
        from .stores.queue.stats import Stats

        return Stats(self.store).hours(since)

    def errors(
        self, groups: Iterable[int] | None = None, task: str | None = None, limit: int | None = None
    ) -> Sequence[ErrorLine]:
        """Count tasks in error and fatal by the first line of their errors, most frequent first; at most `limit`."""
        from .health.task_rows import count_errors

        return count_errors(self.store, groups, task, limit)

    def list(
        self,
        status: int | Iterable[int] | None = None,
        groups: Iterable[int] | None = None,
        task: str | None = None,
        error: str | None = None,
        since: Duration | datetime | None = None,
        limit: int = 100,
    ) -> Sequence[TaskRow]:
        """Read the newest tasks: of a status or some, of these groups, of this name, whose error begins so.

        They were added, started or ended `since` then: a duration before now, or an aware datetime.
        """
        from .health.task_rows import list_tasks

        return list_tasks(self.store, status, groups, task, error, since, limit)

    def status(self) -> QueueStatus:
        """Read the queue as a whole, as `client.py status` tells it; cheap, however many rows there are."""
        from .health.queue_status import read_status

        return read_status(self)

    def prune(
        self,
        older_than: Duration,
        *,
        done: bool = False,
        fatal: bool = False,
        archived: bool = False,
        stats: bool = False,
        keys: bool = False,
    ) -> Pruned:
        """Delete rows that ended so long ago (seconds, "5m", a timedelta); return how many.

        Rows of each kind that is named; where none is named, completed tasks: done or archived. `fatal` includes
        cancelled tasks. Rows of the queue that hold a unique_key stay unless `keys` is true. Raises InvalidTask.
        """
        from .stores.queue.pruning import prune

        return prune(self.store, older_than, keys, done=done, fatal=fatal, archived=archived, stats=stats)

    def reclaim(self, force: Selection | None = None) -> Reclaimed:
        """Wake all due tasks and take back all whose lease has ended, at once; runs do the same bit by bit.

        `force` also takes back chosen tasks whose lease still holds. A worker that is alive may run such a task on,
        and another one runs it a second time.
        """
        from .worker.run import reclaim

        return reclaim(self.store, self.settings, force)

    def run_task(self, task_id: int, *, stop: Stop | None = None) -> RunResult:
        """Run one new, waiting, failed or fatal task of any group here and now; return what became of it.

        Raises InvalidTask where the task is not there, done, or in progress.
        """
        from .worker.limits import Limits, check_system
        from .worker.run import Runner

        check_system()
        check_kind("stop", stop, (Stop, NoneType), "a taskserver.Stop, or None")
        make_importable(self.settings.folder)
        claimed_at = time.monotonic()
        task = self._operations().claim_one(check_task_id(task_id))
        return Runner(self.store, self.settings, limits=Limits(max_tasks=1), stop=stop).run_one(task, claimed_at)

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
        """Run tasks until `max_tasks` ran (0: no limit), `max_time` seconds would be passed, or no task is left.

        The run starts no task once the process has `max_memory` megabytes. It takes tasks of `groups` (None: all) and
        claims at most `batch` at once. With `linger` it waits for new tasks until it is so many seconds old. `stop`
        lets other code end the run; `on_progress` is called after each call of a task or of a batch, and the next call
        waits for it. Returns what was done, and why the run ended.

        Signals are left alone: a KeyboardInterrupt inside a task counts as that task's failure, and the run goes on;
        to end it, have a signal handler call `stop.ask()`.
        """
        from .worker.limits import check_system, checked_limits
        from .worker.run import Runner

        check_system()
        limits = checked_limits(max_tasks, batch, max_time, max_memory, linger)
        check_kind("stop", stop, (Stop, NoneType), "a taskserver.Stop, or None")
        check_kind("on_progress", on_progress, (Callable, NoneType), "a function that takes a RunResult, or None")
        chosen = check_groups(groups, MAX_GROUPS) or ()
        make_importable(self.settings.folder)
        return Runner(self.store, self.settings, chosen, limits, stop, on_progress).run()
