"""Tasks and errors as `TaskServer.list` and `TaskServer.errors` return them: instants are aware datetimes, in UTC."""

# Annotations are not deferred here: named tuples compile deferred ones.

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from ..errors import BadTask, InvalidTask, SettingError
from ..messages.text import Duration, shown, utc
from ..model.arguments import parse_json
from ..model.checks import check_groups, check_number, check_text
from ..model.results import Progress, read_progress, read_result
from ..model.task import MAX_GROUPS, MAX_SIGNED, Status
from ..stores import Store
from ..stores.records import ErrorCount, StoredTask


class TaskRow(NamedTuple):
    """A task as its row tells it; an instant is None where the row has none."""

    id: int
    task: str
    args: Any
    """The arguments, a dict or a list, read from JSON; None where there are none; a text that is no JSON as it is."""
    group_id: int
    priority: int
    status: int
    """A Status; another number where some other program wrote one."""
    attempts: int
    max_attempts: int | None
    """None where its callable, or the settings, say it."""
    due_at: datetime | None
    """The instant at which it becomes new; of a task in progress the end of its lease."""
    unique_key: str | None
    error: str | None
    """The last error, `Type: message` in the first line; None once the task succeeded."""
    created_at: datetime | None
    started_at: datetime | None
    """The begin of its last attempt."""
    finished_at: datetime | None
    """The instant at which it was done, or became fatal."""
    updated_at: datetime | None
    version: int | None
    result: Any
    """As in a TaskState."""
    progress: Progress | None


def list_tasks(
    store: Store,
    status: int | Iterable[int] | None,
    groups: Iterable[int] | None,
    task: str | None,
    error: str | None,
    since: Duration | datetime | None,
    limit: int,
) -> list[TaskRow]:
    """The newest tasks that meet all that is given. Raises SettingError, InvalidTask, DatabaseError."""
    for what, text in (("task", task), ("error", error)):
        if text is not None:
            check_text(what, text)
    most, chosen = check_number("limit", limit, 1, MAX_SIGNED, SettingError), check_groups(groups, MAX_GROUPS) or ()
    return [_task_row(one) for one in store.views.list(_statuses(status), chosen, most, task, error, since)]


def count_errors(store: Store, groups: Iterable[int] | None, task: str | None, limit: int | None) -> list[ErrorCount]:
    """Failed tasks by the first lines of their errors. Raises SettingError, InvalidTask, DatabaseError."""
    if task is not None:
        check_text("task", task)
    most = MAX_SIGNED if limit is None else check_number("limit", limit, 1, MAX_SIGNED, SettingError)
    return store.views.errors(check_groups(groups, MAX_GROUPS) or (), task, most)


def _statuses(status: int | Iterable[int] | None) -> Sequence[int]:
    if status is None:
        return ()
    try:
        given = [status] if isinstance(status, int) else list(status)
    except TypeError:
        given = [-1]
    if not given or not all(isinstance(one, int) and one in set(Status) for one in given):
        raise InvalidTask(f"status is {shown(status)}; allowed: one of taskserver.Status, or several")
    return given


def _task_row(row: StoredTask) -> TaskRow:
    return TaskRow(
        id=row.id,
        task=str(row.task),
        args=_args(row.args),
        group_id=row.group_id,
        priority=row.priority,
        status=Status(row.status) if row.status in set(Status) else row.status,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        due_at=utc(row.due_at),
        unique_key=row.unique_key,
        error=row.error_text,
        created_at=utc(row.created_at),
        started_at=utc(row.started_at),
        finished_at=utc(row.finished_at),
        updated_at=utc(row.updated_at),
        version=row.version,
        result=read_result(row.result) if row.status == Status.DONE else None,
        progress=read_progress(row.progress),
    )


def _args(text: str | None) -> Any:
    try:
        return parse_json(text) if isinstance(text, str) and text else None
    except BadTask:
        return text
