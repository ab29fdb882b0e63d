"""A new task, checked before it becomes a row. Imported late, because most runs add no task."""

# Annotations are not deferred here: named tuples compile deferred ones, which slows down each producer.

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from itertools import islice
from typing import Any, NamedTuple

from ..errors import InvalidTask
from ..messages.text import Duration, shown
from .arguments import write_arguments
from .checks import check_duration, check_field, check_key, check_list, check_number
from .pipeline import named, new_stages
from .task import MAX_ID, NOT_GIVEN, NotGiven, given_or

MAX_DELAY_DAYS = 3660
FIRST_INSTANT = datetime(1970, 1, 2, tzinfo=timezone.utc)
LAST_INSTANT = datetime(2038, 1, 19, 3, 14, 7, tzinfo=timezone.utc)
"""The last instant for most MySQL servers, and so for all databases."""
MAX_VERSION = 2**63 - 1
MAX_PARENTS = 100_000


class NewTask(NamedTuple):
    """A checked task, as a producer gave it."""

    task: str
    args: str | None
    group_id: int
    priority: int
    max_attempts: int | None = None
    delay_seconds: float | None = None
    """How long the task waits, by the database's clock; None with a due_at."""
    due_at: str | None = None
    """Until when the task waits: YYYY-MM-DD HH:MM:SS.ffffff in UTC."""
    unique_key: str | None = None
    rerun: bool = False
    """Whether an existing row with the key becomes new again; otherwise it is not changed."""
    version: int | None = None
    """A rerun does not change a row with this version or a newer one."""
    stages: str | None = None
    """The stages of a pipeline, as JSON; the fields above are the first stage's."""
    depends_on: str | None = None
    """The ids of its parents, such as 3,5."""


def new_task(
    task: str | Callable[..., Any] | None = None,
    args: object = None,
    group_id: int | NotGiven = NOT_GIVEN,
    priority: int | NotGiven = NOT_GIVEN,
    max_attempts: int | None = None,
    delay: Duration | None = None,
    at: datetime | str | None = None,
    unique_key: str | NotGiven | None = NOT_GIVEN,
    rerun: bool | NotGiven = NOT_GIVEN,
    version: int | None = None,
    stages: object = None,
    depends_on: Iterable[int] | None = None,
) -> NewTask:
    """A checked task, or with `stages` a checked pipeline; for a function, @task gives the defaults.

    Raises InvalidTask, which names the wrong value and what is allowed.
    """
    text, stages_text = write_arguments(args), None
    if max_attempts is not None:
        check_field("max_attempts", max_attempts)
    if stages is None:
        name, function = named(task)  # type: ignore[arg-type]
        if function is not None:
            group_id, priority, unique_key, rerun = function.placing(args, group_id, priority, unique_key, rerun)
    elif task is not None:
        raise InvalidTask("it has task and stages; allowed: one of them, as the first of the stages is the task")
    else:
        (first, *_), stages_text = new_stages(stages, args, group_id, priority, max_attempts)
        name, group_id, priority, max_attempts = first[:4]  # type: ignore[assignment]  # new_stages gives each of them
    group = check_field("group_id", given_or(group_id, 0))
    order = check_field("priority", given_or(priority, 0))
    key, is_rerun = given_or(unique_key, None), given_or(rerun, False)
    if key is not None:
        check_key("unique_key", key)
    _check_rerun(key, is_rerun, version)
    parents = None if depends_on is None else _parents(depends_on, key)
    seconds, due_at = _wait(delay, at, parents is not None)
    row = (name, text, group, order, max_attempts, seconds, due_at)
    return NewTask(*row, key, is_rerun, version, stages_text, parents)


TASK_KEYS = new_task.__code__.co_varnames[: new_task.__code__.co_argcount]
"""The keys that describe a task, in add_tasks and in JSON lines."""


def _check_rerun(unique_key: str | None, rerun: bool, version: int | None) -> None:
    if type(rerun) is not bool:
        raise InvalidTask(f"rerun is {shown(rerun)}; allowed: true or false")
    if rerun and unique_key is None:
        raise InvalidTask("it has rerun and no unique_key, which says which row is to run again")
    if version is not None:
        check_number("version", version, 0, MAX_VERSION)
        if not rerun:
            raise InvalidTask("it has a version and no rerun; a version says whether a rerun is newer than the row")


def _parents(depends_on: object, key: str | None) -> str | None:
    """Sorted, distinct ids as the text 3,5; None without ids. Raises InvalidTask."""
    ids = list(islice(check_list("depends_on", depends_on, "a list of ids of tasks"), MAX_PARENTS + 1))
    if len(ids) > MAX_PARENTS:
        raise InvalidTask(f"depends_on names more than {MAX_PARENTS} tasks, which is the most that are allowed")
    for task_id in ids:
        check_number("an id in depends_on", task_id, 1, MAX_ID)
    if ids and key is not None:
        raise InvalidTask(
            "it has depends_on and a unique_key; allowed: one of them, as a row that has the key may have started; "
            "unique_key=None leaves out the key that @task gives"
        )
    return ",".join(map(str, sorted(set(ids)))) or None


def _wait(delay: Duration | None, at: object, has_parents: bool) -> tuple[float | None, str | None]:
    """How many seconds, or until when, a task waits."""
    if delay is not None and at is not None:
        raise InvalidTask("it has delay and at; allowed: one of them")
    seconds = None if delay is None else check_duration("delay", delay, MAX_DELAY_DAYS)
    due_at = None if at is None else _instant(at)
    # A task with parents is due at once, unless it names an instant: a look must decide whether it waits.
    return seconds or (0.0 if has_parents and due_at is None else None), due_at


def _instant(at: object) -> str:
    """An instant in the form of due_at. Raises InvalidTask."""
    try:
        instant = read_instant(at) if isinstance(at, str) else at
    except ValueError:
        instant = None
    if not isinstance(instant, datetime):
        raise InvalidTask(f"at is {shown(at)}; allowed: a datetime, or its text such as 2026-01-31T12:00:00+01:00")
    if instant.utcoffset() is None:
        raise InvalidTask(
            f"at is {shown(at)}, which has no time zone; allowed: an aware datetime, such as "
            "datetime.now(timezone.utc), or a text with Z or +01:00 at its end, such as 2026-01-31T12:00:00Z"
        )
    if not FIRST_INSTANT <= instant <= LAST_INSTANT:
        raise InvalidTask(f"at is {shown(at)}; allowed: from {FIRST_INSTANT:%Y-%m-%d} to {LAST_INSTANT:%Y-%m-%d}")
    return f"{instant.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S.%f}"


def read_instant(text: str) -> datetime:
    """The instant of a text in ISO 8601. Raises ValueError."""
    # Python before 3.11 does not know Z.
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


_EXAMPLE = '{"task": …, "args": …}'


def new_task_from(description: Mapping[str, Any]) -> NewTask:
    """A checked task from a description such as {"task": "tasks.send", "args": {…}}. Raises InvalidTask."""
    if not isinstance(description, Mapping):
        raise InvalidTask(f"it is {shown(description)}; allowed: an object such as {_EXAMPLE}")
    if "task" not in description and "stages" not in description:
        raise InvalidTask('it has no "task"')
    try:
        return new_task(**description)
    except TypeError:
        unknown = sorted(str(key) for key in description if key not in TASK_KEYS)
        if not unknown:
            raise
        raise InvalidTask(f"it has {', '.join(map(repr, unknown))}; allowed: {', '.join(TASK_KEYS)}") from None


def new_tasks_from(descriptions: Iterable[Mapping[str, Any]]) -> list[NewTask]:
    """Checked tasks from descriptions. Raises InvalidTask with the number of the wrong one, from 1 on."""
    tasks = []
    given = check_list("tasks", descriptions, f"a list of objects such as {_EXAMPLE}")
    for number, description in enumerate(given, start=1):
        try:
            tasks.append(new_task_from(description))
        except InvalidTask as error:
            raise InvalidTask(f"task {number}: {error}") from None
    return tasks
