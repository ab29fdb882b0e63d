"""What each page shows: one function a view, which reads the queue and returns a template with its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ..errors import Conflict, DatabaseError, TablesMissing, TablesOutdated, Unavailable
from ..health.doctor import accepted_in, examine
from ..health.judge import describe_unserved
from ..health.status import mark_gone
from ..messages.text import in_units, read_number
from ..model.checks import is_whole, whole_numbers
from ..model.selection import Selection
from ..model.task import MAX_GROUP_ID, MAX_ID, MAX_SIGNED, Status, name_of_status
from ..server import TaskServer
from ..stores.queue.dependencies import links
from ..stores.queue.operations import CANCEL, DELETE, RETRY, Operations
from ..stores.queue.schedules import Schedules
from ..stores.queue.stats import HOUR_SECONDS, HourStats, Stats
from ..stores.queue.views import BY_TIME, ERRORS_SAMPLE, FIRST, Pages, Place
from .charts import Chart, Part, bars

if TYPE_CHECKING:  # the one file is made without Werkzeug
    from werkzeug.datastructures import MultiDict

    Query = MultiDict[str, str]

T = TypeVar("T")
TASKS_A_PAGE = 50
ERRORS_SHOWN = 50
NAMES_SHOWN = 50
INSTANT = "%Y-%m-%d %H:%M:%S.%f"
"""The format of a time in a link to more tasks."""
SPANS = {"1 day": 86_400.0, "7 days": 7 * 86_400.0}
"""Choices of `since`, in seconds."""
DAYS = {"1": 24, "7": 7 * 24}
"""The spans of the hours' view, in hours."""
STATUSES = {name_of_status(status): status for status in Status}
VERBS = {verb.name: verb for verb in (RETRY, CANCEL, DELETE)}
"""What the page can do to tasks."""


class Page(NamedTuple):
    """A template with its values."""

    template: str
    values: Mapping[str, Any]


def trouble_in_words(error: DatabaseError) -> str:
    """A database error in a few words for the page."""
    if isinstance(error, (TablesMissing, TablesOutdated)):
        return "The tables are not of this version"
    if isinstance(error, Conflict):
        return "The database is busy"
    return "The database is away" if isinstance(error, Unavailable) else "The database refused that"


class BadQuery(Exception):
    """The query of a link is invalid, or names something that does not exist."""

    def __init__(self, words: str, code: int = 400) -> None:
        super().__init__(words)
        self.code = code


def overview(server: TaskServer, query: Query) -> Page:
    """The verdict first, then its reasons."""
    return Page("overview.html", overview_values(server))


def overview_values(server: TaskServer) -> dict[str, Any]:
    """The values of the overview."""
    read = server.status()
    last_day = every_hour(read.hours, read.this_hour.hour, DAYS["1"])
    return {"overview": read, "sample": ERRORS_SAMPLE, "chart": throughput(last_day)}


def tasks(server: TaskServer, query: Query) -> Page:
    """The tasks of a status, a group or a name, a page at a time."""
    chosen = selection_in(server, query)
    by_attempts = query.get("order") == "attempts"
    place = _place(query)
    pages = Pages(server.store.database)
    found = pages.most_attempts(chosen, TASKS_A_PAGE) if by_attempts else pages.page(chosen, place, TASKS_A_PAGE)
    mark_gone(server.store, found.tasks)
    values = {
        "page": found,
        "chosen": chosen,
        "group": chosen.groups,
        "by_attempts": by_attempts,
        "status": query.get("status") or None,
        "like": query.get("like") or None,
        "is_first": place == FIRST,
        "by_time": chosen.status in BY_TIME,
        "since": query.get("since") or None,
        "spans": list(SPANS),
        "statuses": list(STATUSES),
    }
    return Page("tasks.html", values)


def task(server: TaskServer, query: Query) -> Page:
    """Everything about one task."""
    task_id = number_in(query, "id", MAX_ID)
    row = None if task_id is None else server.store.views.show(task_id)
    if task_id is None or row is None:
        which = "without an id" if task_id is None else task_id
        raise BadQuery(f"There is no task {which}. One that is done may be deleted.", 404)
    mark_gone(server.store, [row])
    of_row = Selection(ids=[row.id])
    values = {
        "task": row,
        "links": links(server.store.database, [row.id])[row.id],
        "may": [name for name, verb in VERBS.items() if Operations(server.store).preview(verb, of_row, 0).rows],
    }
    return Page("task.html", values)


def errors(server: TaskServer, query: Query) -> Page:
    """The errors of failed tasks, counted by their first lines."""
    return Page("errors.html", {"errors": server.store.views.recent_errors(ERRORS_SHOWN), "sample": ERRORS_SAMPLE})


def hours(server: TaskServer, query: Query) -> Page:
    """Hourly stats as charts and tables."""
    count = choice_in(query, "days", DAYS) or DAYS["1"]
    return Page("hours.html", hours_values(server, count) | {"is_day": count == DAYS["1"]})


def hours_values(server: TaskServer, count: int) -> dict[str, Any]:
    """The values of the charts and tables of so many hours."""
    stats = Stats(server.store)
    seconds = (count - 1) * HOUR_SECONDS
    found = every_hour(stats.sums(seconds, "hour"), stats.recent().this_hour.hour, count)
    by_name = sorted(stats.sums(seconds, "task"), key=lambda one: -one.attempts)
    return {
        "hours": [one for one in reversed(found) if one.attempts or one.fatal],
        "charts": charts(found),
        "names": by_name[:NAMES_SHOWN],
        "more_names": max(len(by_name) - NAMES_SHOWN, 0),
    }


def schedules(server: TaskServer, query: Query) -> Page:
    """The periodic tasks, with their next times."""
    found, runs = Schedules(server.store).all(), server.store.views.runs()
    unserved = {group: describe_unserved([group], runs) for group in {one.schedule.group_id for one in found}}
    return Page("schedules.html", {"overview": SimpleNamespace(schedules=found), "unserved": unserved})


def workers(server: TaskServer, query: Query) -> Page:
    """The running workers, and the last run of each crontab line."""
    return Page("workers.html", {"overview": server.status()})


def findings_of(folder: Path, may_act: bool, answer_seconds: float) -> Page:
    """What the doctor finds; `answer_seconds` is the timeout of one statement."""
    found = examine(folder, answer_seconds, for_page=True, only_reads=not may_act)
    acceptances, acceptable = accepted_in(folder, answer_seconds)
    counted, accepted = acceptances.split(found)
    return Page("doctor.html", {"findings": counted, "accepted": accepted, "acceptable": acceptable})


# ---- the fields of a link or a form


def selection_in(server: TaskServer, query: Query) -> Selection:
    """The chosen tasks. Raises BadQuery."""
    return Selection(
        ids=numbers_in(query, "id", MAX_ID) or None,
        groups=numbers_in(query, "group", MAX_GROUP_ID) or None,
        task=query.get("task") or None,
        limit=number_in(query, "limit", MAX_SIGNED) or None,
        error_line=_error_like(server, query) or None,
        status=choice_in(query, "status", STATUSES),
        since=choice_in(query, "since", SPANS),
    )


def _error_like(server: TaskServer, query: Query) -> str | None:
    """The first line of the error of the task `like`: some hosts refuse links and forms with such texts."""
    task_id = number_in(query, "like", MAX_ID)
    if task_id is None:
        return None
    row = server.store.views.show(task_id)
    if row is None or not row.error:
        raise BadQuery(f"Task {task_id} is gone, or has no error any more: look at the errors again.")
    return row.error_line.encode("utf-8", "replace").decode()


def _place(query: Query) -> Place:
    """Where the page of a link begins."""
    due_at = query.get("due") or None
    try:  # compare with the formatted value, as strptime also reads digits of other scripts
        is_right = due_at is None or f"{datetime.strptime(f'{due_at}Z', f'{INSTANT}%z'):{INSTANT}}" == due_at
    except ValueError:
        is_right = False
    if not is_right:
        raise BadQuery("due is not an instant.")
    before = number_in(query, "before", MAX_SIGNED)
    return FIRST if before is None else Place(before, due_at)


def choice_in(query: Query, name: str, choices: Mapping[str, T]) -> T | None:
    """The choice of a field; None if it is missing."""
    text = query.get(name)
    if text and text not in choices:
        raise BadQuery(f"{name} is one of {', '.join(choices)}.")
    return choices[text] if text else None


def number_in(query: Query, name: str, most: int) -> int | None:
    """The number in a field, the least of several; None if it is missing."""
    return min(numbers_in(query, name, most), default=None)


def numbers_in(query: Query, name: str, most: int) -> list[int]:
    """The numbers in the fields of a name, each once, in order."""
    numbers = {read_number(text) for text in query.getlist(name) if text}
    right = [number for number in numbers if is_whole(number, 0, most)]
    if len(right) < len(numbers):
        raise BadQuery(f"{name} is {whole_numbers(0, most)}.")
    return sorted(right)


# ---- hours


def every_hour(found: Sequence[HourStats], this_hour: datetime, count: int) -> list[HourStats]:
    """The last hours up to this one, with zeros for idle hours."""
    by_hour = {one.hour: one for one in found}
    hours = [this_hour - timedelta(hours=ago) for ago in reversed(range(count))]
    return [by_hour.get(hour, HourStats(hour, 0, "")) for hour in hours]


def throughput(hours: Sequence[HourStats]) -> Chart:
    """Attempts by outcome, and tasks that failed for good, even without an attempt."""
    parts: list[Part] = [
        ("done", "attempts done", lambda hour: hour.done),
        ("error", "attempts failed or lost", lambda hour: hour.failed + hour.lost),
        ("fatal", "tasks failed for good", lambda hour: hour.fatal),
    ]
    return bars("throughput", "Attempts, and tasks that failed for good, by the hour", hours, parts, _whole)


def charts(hours: Sequence[HourStats]) -> list[Chart]:
    """The charts of the hours' view."""
    waited: list[Part] = [("waited", "in the mean", lambda hour: hour.mean_wait_seconds or 0.0)]
    return [
        throughput(hours),
        bars("waits", "How long tasks waited from ready to started, in the mean", hours, waited, _seconds),
    ]


def _whole(value: float) -> str:
    return f"{value:g}" if value < 10_000 else f"{value / 1000:g}k"


def _seconds(value: float) -> str:
    return in_units(value) if value else "0"
