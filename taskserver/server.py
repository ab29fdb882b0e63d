"""TaskServer: the Python face of the queue, for producers, for workers of one's own, and for our own commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from .backoff import DAY_SECONDS, parse_backoff
from .dsn import parse_dsn
from .errors import DatabaseError, InvalidTask, SettingError
from .lifecycle import MAX_GROUP_ID, MAX_ID, NewTask
from .run_result import RunResult
from .settings import (
    DEFAULT_TABLE,
    LONGEST_SECONDS,
    MAX_ATTEMPTS,
    MAX_BATCH,
    Settings,
    check_mode,
    check_modules,
    check_table,
    load_settings,
    program_folder,
)
from .stopping import Stop
from .stores import Store, open_callers_adding, open_store
from .stores.adding import WaitsForNewer
from .stores.store import MOST_GROUPS

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from .reports import TaskState
    from .run_limits import Limits
    from .runner import Runner
    from .selection import Selection
    from .stores.callers import CallersAdding
    from .stores.interventions import ErrorCount, Interventions, Reclaimed
    from .stores.pruning import Pruned
    from .stores.stats import HourStats


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
        modules: str = "tasks",
        max_attempts: int = 10,
        backoff: str = "exponential:60",
        lease: int = 120,
        timeout: int = 600,
        db_patience: int = 30,
        password: str = "",
        folder: str | Path | None = None,
    ) -> None:
        """As in the settings of the same names; `folder`, where relative paths start, is the started program's."""
        self._open(
            Settings(
                folder=_folder(folder),
                dsn=parse_dsn(dsn, password),
                table=check_table("table", table),
                mode=check_mode("mode", mode),
                modules=check_modules("modules", modules),
                max_attempts=_check("max_attempts", max_attempts, 1, MAX_ATTEMPTS),
                backoff=parse_backoff("backoff", backoff),
                lease_seconds=_check("lease", lease, 1, LONGEST_SECONDS),
                timeout_seconds=_check("timeout", timeout, 0, LONGEST_SECONDS),
                patience_seconds=_check("db_patience", db_patience, 0, DAY_SECONDS),
            )
        )

    @classmethod
    def from_env(cls, folder: str | Path | None = None) -> TaskServer:
        """By the environment, then by the `.env` in `folder`, which is the started program's unless given."""
        return cls.from_settings(load_settings(_folder(folder)))

    @classmethod
    def from_settings(cls, settings: Settings) -> TaskServer:
        server = cls.__new__(cls)
        server._open(settings)
        return server

    def _open(self, settings: Settings) -> None:
        self.settings = settings
        self.store: Store = open_store(settings)
        self._on_connections: CallersAdding | None = None

    def __enter__(self) -> TaskServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"TaskServer({self.settings.dsn.place}, table={self.settings.table!r}, mode={self.settings.mode!r})"

    def close(self) -> None:
        """Close its connections; if it is used again, it connects again."""
        self.store.close()

    def create_tables(self) -> None:
        """Make the tables, or bring older ones up to date; safe to repeat."""
        self.store.create_tables()

    # ---- producers

    def add_task(
        self,
        task: str | Callable[..., Any],
        args: object = None,
        *,
        group_id: int = 0,
        priority: int = 0,
        max_attempts: int | None = None,
        delay: float | timedelta | None = None,
        at: datetime | str | None = None,
        unique_key: str | None = None,
        rerun: bool = False,
        version: int | None = None,
        depends_on: Iterable[int] | None = None,
        connection: object = None,
    ) -> int:
        """Add one task; its id.

        `task` is a callable's name or the function itself, `args` a dict (keywords) or a list (positions) that JSON
        can hold, at most 1 MiB. It runs after `delay` (seconds, or a timedelta) or from `at` on (an aware datetime).
        While a row with the `unique_key` exists nothing is added, and the id is that row's; with `rerun` the row
        becomes new again with all that is given here, once more after its run where it runs already. A rerun with a
        `version` changes no row of that version or a newer one. It starts when all tasks are done whose ids
        `depends_on` gives. Raises InvalidTask.

        On a `connection` of yours to the same database (PEP 249, or Django's) it is part of your transaction: there
        once you commit. All that fails there is raised as a DatabaseError; to roll back, and to do it again, is yours.
        """
        return self._add(
            _producing().new_task(
                task,
                args,
                group_id,
                priority,
                max_attempts=max_attempts,
                delay=delay,
                at=at,
                unique_key=unique_key,
                rerun=rerun,
                version=version,
                depends_on=depends_on,
            ),
            connection,
        )

    def add_pipeline(
        self,
        stages: Sequence[str | Callable[..., Any] | Mapping[str, Any]],
        args: object = None,
        *,
        group_id: int = 0,
        priority: int = 0,
        max_attempts: int | None = None,
        delay: float | timedelta | None = None,
        at: datetime | str | None = None,
        unique_key: str | None = None,
        rerun: bool = False,
        version: int | None = None,
        depends_on: Iterable[int] | None = None,
        connection: object = None,
    ) -> int:
        """Add one task that runs one callable after the other, each with what the one before it returned; its id.

        A stage is a callable's name, the function itself, or a mapping of `task`, `group_id`, `priority` and
        `max_attempts`; what it leaves out is as given here. `args` are those of the first one; all else is as in
        `add_task`. Raises InvalidTask.
        """
        return self._add(
            _producing().new_task(
                None,
                args,
                group_id,
                priority,
                max_attempts=max_attempts,
                delay=delay,
                at=at,
                unique_key=unique_key,
                rerun=rerun,
                version=version,
                stages=() if stages is None else stages,  # which are refused, too
                depends_on=depends_on,
            ),
            connection,
        )

    def _add(self, task: NewTask, connection: object) -> int:
        if connection is not None:
            # Whether it has to wait is for workers to see: they cannot yet, and nor can a connection of ours.
            return self._callers_adding().add_on(connection, task)
        task_id = self.store.add(task)
        if task.depends_on is not None:
            self._look_at(task_id)
        return task_id

    def _look_at(self, task_id: int) -> None:
        """See at once whether it has to wait, as a worker would at its next look, who does it where this cannot."""
        from .stores.dependencies import Dependencies

        with suppress(DatabaseError):
            Dependencies(self.store).settle([task_id])

    def _callers_adding(self) -> CallersAdding:
        if self._on_connections is None:
            self._on_connections = open_callers_adding(self.settings)
        return self._on_connections

    def add_tasks(self, tasks: Iterable[Mapping[str, Any]], *, connection: object = None) -> list[int]:
        """Add many tasks in one transaction, all or none; their ids.

        Each is described by a mapping whose keys are the arguments of `add_task`, of which `task` alone must be
        there, or `stages` in its place, as those of `add_pipeline`. Raises InvalidTask, which tells the number of the
        wrong one, counted from 1.

        A `connection` of yours is as in `add_task`: the transaction is yours, and so are, after an error, the rows of
        those that were added before it, until you roll back.
        """
        ids: list[int] = []
        new_tasks = _numbered(tasks)
        # What is there as a whole can be tried again when others are in its way.
        several = list(new_tasks) if isinstance(tasks, (list, tuple)) else new_tasks
        try:
            if connection is not None:
                return self._callers_adding().add_many_on(connection, several)
            self.store.add_many(several, ids.extend, ids.clear)
        except WaitsForNewer as error:
            raise InvalidTask(f"task {error.number}: {error}") from None
        return ids

    def get(self, task_id: int) -> TaskState | None:
        """What has become of a task: status, result, error, progress.

        None where there is no such task: in mode `delete` those that are done are gone, too.
        """
        return self.store.state(_check("task_id", task_id, 0, MAX_ID))

    # ---- periodic tasks

    def schedule(
        self,
        name: str,
        task: str | Callable[..., Any],
        args: object = None,
        *,
        every: float | timedelta | None = None,
        cron: str | None = None,
        timezone: str = "UTC",
        group_id: int = 0,
        priority: int = 0,
    ) -> None:
        """Have a task added again and again: `every` so many seconds, or at the times of a `cron` expression.

        The name stands for the schedule: to give it again changes what differs, and otherwise nothing. An expression
        means the clock of the `timezone`. Raises InvalidTask, and SettingError where the library for `cron` is missing.
        """
        from .schedule import new_schedule
        from .stores.schedules import Schedules

        schedule = new_schedule(name, task, args, every, cron, timezone, group_id, priority)
        Schedules(self.store).put(schedule)

    def unschedule(self, name: str) -> bool:
        """Have it added no more; what was added already runs. Whether there was such a schedule."""
        from .checks import check_text
        from .stores.schedules import Schedules

        return Schedules(self.store).remove(check_text("name", name))

    # ---- operators

    def set_priority(self, task_id: int, priority: int) -> bool:
        """Move a task that is not done. Whether there was one. Raises as `retry` does."""
        from .checks import check_priority

        check_priority(priority)
        return self._interventions().set_priority(_chosen(_check("task_id", task_id, 0, MAX_ID)), priority) == 1

    def retry(self, tasks: int | Iterable[int] | Selection) -> int:
        """Error, fatal → new, with attempts 0, for an id, some ids, or a Selection. How many.

        Raises InvalidTask, and DatabaseError where other programs held some of them.
        """
        return self._interventions().retry(_chosen(tasks))

    def cancel(self, tasks: int | Iterable[int] | Selection) -> int:
        """New, waiting, error → fatal `cancelled`; a running one is interrupted at its next heartbeat, or progress().

        For an id, some ids, or a Selection. How many. Raises as `retry` does.
        """
        return self._interventions().cancel(_chosen(tasks))

    def pause(self, group_id: int) -> bool:
        """From the next claim on, no worker takes tasks of this group. False if that was so already."""
        return self._interventions().pause(_check("group_id", group_id, 0, MAX_GROUP_ID))

    def resume(self, group_id: int) -> bool:
        """Have the tasks of a group run again. Whether it was paused."""
        return self._interventions().resume(_check("group_id", group_id, 0, MAX_GROUP_ID))

    def stats(self, since: float | timedelta | datetime | None = None) -> Sequence[HourStats]:
        """What was done, by hour, group and task name: since then, or for so many seconds; all that is kept."""
        from .stores.stats import Stats

        return Stats(self.store).hours(since)

    def errors(
        self, groups: Iterable[int] | None = None, task: str | None = None, limit: int | None = None
    ) -> Sequence[ErrorCount]:
        """Tasks in error and fatal by the first line of their errors, the most frequent first; at most `limit`."""
        from .selection import Selection

        chosen = None if groups is None else _check_groups(groups)
        return self._interventions().errors(Selection(groups=chosen, task=task, limit=limit))

    def prune(
        self,
        older_than: float | timedelta,
        *,
        done: bool = False,
        fatal: bool = False,
        archived: bool = False,
        stats: bool = False,
        keys: bool = False,
    ) -> Pruned:
        """Delete rows that ended so long ago (seconds, or a timedelta). How many.

        Of each kind that is named; where none is, completed tasks, which are done or archived. Rows of the queue that
        hold a unique_key stay unless `keys` is true. Raises InvalidTask.
        """
        from .stores.pruning import Pruning

        named = {"done": done, "fatal": fatal, "archived": archived, "stats": stats}
        kinds = [kind for kind, is_named in named.items() if is_named]
        return Pruning(self.store, older_than, kinds, keys).run()

    def reclaim(self, force: Selection | None = None) -> Reclaimed:
        """Wake what is due and take back what workers left whose lease has ended: all at once, as runs do bit by bit.

        `force` takes back chosen tasks whose lease still holds, too. Their workers may be alive: such a task may run
        twice.
        """
        from .run_limits import Limits
        from .stores.interventions import END_LEASE, Reclaimed

        forced = 0 if force is None else self._interventions().change(END_LEASE, force).changed
        return Reclaimed(forced, *self._runner((), Limits(), Stop()).reclaim())

    def run_task(self, task_id: int, *, stop: Stop | None = None) -> RunResult:
        """Run one task here and now: new, waiting, in error or fatal, of whatever group. What became of it.

        Raises InvalidTask where it is not there, done, or in progress.
        """
        from .run_limits import Limits

        make_importable(self.settings.folder)
        claimed_at = time.monotonic()
        task = self._interventions().claim_one(_check("task_id", task_id, 0, MAX_ID))
        return self._runner((), Limits(max_tasks=1), stop or Stop()).run_one(task, claimed_at)

    def _interventions(self) -> Interventions:
        from .stores.interventions import Interventions

        return Interventions(self.store)

    # ---- workers

    def run(
        self,
        max_tasks: int = 0,
        groups: Iterable[int] | None = None,
        *,
        batch: int = 100,
        max_time: float | None = None,
        max_memory: float | None = None,
        stop: Stop | None = None,
        on_progress: Callable[[RunResult], object] | None = None,
    ) -> RunResult:
        """Run tasks until `max_tasks` ran (0: no limit), `max_time` seconds would be passed, or none is left.

        It starts nothing more once the process has `max_memory` megabytes, either.
        `groups` names the groups to take tasks of, None all of them; at most `batch` are claimed at once. `stop`
        lets other code end the run; `on_progress` hears after each task, or call of several, and the next one waits
        until it returns. What was done, and why it ended.

        Signals are left alone: a KeyboardInterrupt inside a task counts as that task's failure, and the run goes on;
        to end it, let a handler of yours call `stop.ask()`.
        """
        from .run_limits import Limits

        limits = Limits(
            _check("max_tasks", max_tasks, 0, None),
            _check("batch", batch, 1, MAX_BATCH),
            _check_positive("max_time", max_time, "seconds"),
            _check_positive("max_memory", max_memory, "megabytes"),
        )
        chosen = () if groups is None else _check_groups(groups)
        make_importable(self.settings.folder)
        return self._runner(chosen, limits, stop or Stop(), on_progress).run()

    def _runner(
        self,
        groups: Sequence[int],
        limits: Limits,
        stop: Stop,
        on_progress: Callable[[RunResult], object] | None = None,
    ) -> Runner:
        from .runner import Runner

        return Runner(self.store, self.settings, groups, limits, stop, on_progress or (lambda result: None))


def _chosen(tasks: int | Iterable[int] | Selection) -> Selection:
    from .selection import Selection

    if isinstance(tasks, Selection):
        return tasks
    if isinstance(tasks, int):
        return Selection(ids=[tasks])
    try:
        return Selection(ids=list(tasks))
    except TypeError:
        raise InvalidTask(f"tasks is {tasks!r:.80}; allowed: an id, ids, or a Selection") from None


def _folder(given: str | Path | None) -> Path:
    # Absolute, since a task may change the current folder.
    return Path(given).absolute() if given else program_folder()


@cache
def _producing() -> ModuleType:
    """What only producers need, imported with the first task that is added: a worker's run seldom adds any."""
    return import_module(".new_task", __package__)


def _numbered(tasks: Iterable[Mapping[str, Any]]) -> Iterable[NewTask]:
    new_task_from = _producing().new_task_from
    for number, task in enumerate(tasks, start=1):
        try:
            yield new_task_from(task)
        except InvalidTask as error:
            raise InvalidTask(f"task {number}: {error}") from None


def _check(name: str, value: int, least: int, most: int | None) -> int:
    if type(value) is not int or value < least or (most is not None and value > most):
        allowed = f"from {least} to {most}" if most is not None else f"from {least} on"
        raise SettingError(f"{name} is {value!r}; allowed: a whole number {allowed}")
    return value


def _check_positive(name: str, value: float | None, unit: str) -> float | None:
    if value is not None and not (type(value) in (int, float) and value > 0):
        raise SettingError(f"{name} is {value!r}; allowed: {unit} above 0")
    return value


def _check_groups(groups: Iterable[int]) -> Sequence[int]:
    try:
        chosen = sorted({_check("a group", group, 0, MAX_GROUP_ID) for group in groups})
    except TypeError:
        raise SettingError(f"groups is {groups!r}; allowed: a list of numbers, or None for every group") from None
    if not 0 < len(chosen) <= MOST_GROUPS:
        raise SettingError(f"groups names {len(chosen)} groups; allowed: 1 to {MOST_GROUPS}, or None for every group")
    return chosen


def make_importable(folder: Path) -> None:
    """Let modules in this folder be imported, as tasks.py beside worker.py."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
