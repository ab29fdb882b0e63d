"""A periodic task: checks of the producer's values, and its next time.

The table of schedules is in stores/queue/schedules.py. This file uses no database and no clock: its callers pass the
database's instants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ..errors import BadTask, InvalidTask, SettingError
from ..messages.programs import install_command
from ..messages.text import Duration, shown
from .arguments import read_arguments
from .checks import check_duration, check_list
from .names import check_name
from .new_task import LAST_INSTANT, MAX_DELAY_DAYS, new_task
from .task import NOT_GIVEN, NotGiven

if TYPE_CHECKING:
    from cronsim import CronSim

UTC = "UTC"
MAX_SCHEDULE_NAME_BYTES = 200
"""With a prefix, the name is the unique_key of the schedule's tasks."""
MAX_EVERY_SECONDS = MAX_DELAY_DAYS * 86_400
MAX_CRON_LENGTH = 255
MAX_ZONE_LENGTH = 64
"""The column of MySQL holds no more."""
CRON_FIELDS = 5
CRON_EXAMPLE = "*/5 * * * *"


class _Named(TypedDict):
    name: str
    task: str | Callable[..., Any]


class Schedule(_Named, total=False):
    """A periodic task for `TaskServer.sync_schedules`: a dict with the arguments of `TaskServer.schedule`."""

    args: object
    every: Duration
    cron: str
    timezone: str
    group_id: int
    priority: int


class ScheduleRow(NamedTuple):
    """A periodic task, in the order of its columns."""

    name: str
    task: str
    args: str | None
    """JSON text."""
    group_id: int
    priority: int
    every_seconds: int | None
    """Seconds from one time to the next; None if `cron` gives the times."""
    cron: str | None
    """A cron expression of five fields; None if `every_seconds` gives the times."""
    timezone: str
    """The time zone of `cron`."""

    @property
    def timing(self) -> str:
        """Its times in words."""
        if self.cron is not None:
            return f"{cron_in_words(self.cron)} {self.timezone}"
        seconds = self.every_seconds
        if not seconds:  # written by hand
            return "never"
        unit, length = next(one for one in UNITS if seconds % one[1] == 0)
        return f"every {unit}" if seconds == length else f"every {seconds // length} {unit}s"


UNITS = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
WEEKDAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
COMMON_FORMS = (
    (r"\* \* \* \* \*", "every minute"),
    (r"\*/([2-6]|10|12|15|20|30) \* \* \* \*", "every {} minutes"),
    (r"([0-9]+) \* \* \* \*", "hourly at :{:0>2}"),
    (r"([0-9]+) ([0-9]+) \* \* \*", "daily {1:0>2}:{0:0>2}"),
    (r"([0-9]+) ([0-9]+) \* \* ([0-7])", "weekly on {2} {1:0>2}:{0:0>2}"),
    (r"([0-9]+) ([0-9]+) \* \* 1-5", "Mon to Fri {1:0>2}:{0:0>2}"),
)
"""Common cron expressions and their words."""


def cron_in_words(expression: str) -> str:
    """A common cron expression in words, as `daily 03:30`; any other unchanged."""
    for form, words in COMMON_FORMS:
        if found := re.fullmatch(form, expression):
            minute_and_hour, day = found.groups()[:2], found.groups()[2:]
            return words.format(*minute_and_hour, *(WEEKDAYS[int(number)] for number in day))
    return expression


def new_schedule(
    name: str,
    task: str | Callable[..., Any],
    args: object = None,
    every: Duration | None = None,
    cron: str | None = None,
    timezone: str = UTC,
    group_id: int | NotGiven = NOT_GIVEN,
    priority: int | NotGiven = NOT_GIVEN,
) -> ScheduleRow:
    """A checked schedule. Raises InvalidTask, and SettingError if the package for `cron` is missing."""
    check_schedule_name(name)
    described = new_task(task, args, group_id, priority, unique_key=None)  # its tasks have their own key
    if not isinstance(timezone, str):
        raise InvalidTask(f"timezone is {shown(timezone)}; allowed: UTC, or a name such as Europe/Berlin")
    if every is not None and timezone != UTC:
        raise InvalidTask("it has every and a timezone, which only cron has a use for; every counts seconds")
    if isinstance(cron, str):
        cron = " ".join(cron.split())  # more blanks do not change a schedule
    schedule = ScheduleRow(name, *described[:4], _seconds(every), cron, timezone)
    _check_timing(schedule)
    return schedule


SCHEDULE_KEYS = new_schedule.__code__.co_varnames[: new_schedule.__code__.co_argcount]


def new_schedules(schedules: Iterable[Schedule]) -> list[ScheduleRow]:
    """Checked schedules. Raises like `new_schedule`, with the number and name of the wrong one."""
    rows: dict[str, ScheduleRow] = {}
    for number, given in enumerate(check_list("schedules", schedules, f"a list, such as [{_EXAMPLE}]"), start=1):
        try:
            row = _new_schedule_from(given)
            if row.name in rows:
                raise InvalidTask("a schedule before it has the same name")
        except (InvalidTask, SettingError) as error:
            name = f" {shown(given['name'])}" if isinstance(given, Mapping) and "name" in given else ""
            raise type(error)(f"schedule {number}{name}: {error}") from None
        rows[row.name] = row
    return list(rows.values())


def _new_schedule_from(given: Any) -> ScheduleRow:
    if not isinstance(given, Mapping):
        raise InvalidTask(f"it is {shown(given)}; allowed: {_EXAMPLE}")
    missing = [key for key in ("name", "task") if key not in given]
    unknown = [shown(key) for key in given if key not in SCHEDULE_KEYS]
    if missing or unknown:
        what = f"no {' and no '.join(missing)}" if missing else ", ".join(unknown)
        raise InvalidTask(f"it has {what}; allowed: {', '.join(SCHEDULE_KEYS)}")
    return new_schedule(**given)


_EXAMPLE = 'Schedule(name="nightly", task=…, cron="30 3 * * *")'


def check_schedule(schedule: ScheduleRow) -> None:
    """Check a schedule from a row, which any program may have written. Raises like `new_schedule`."""
    check_schedule_name(schedule.name)
    check_name(schedule.task)
    try:
        read_arguments(schedule.args)
    except BadTask as error:
        raise InvalidTask(str(error)) from None
    _check_timing(schedule)


def check_schedule_name(name: str) -> None:
    """Refuse a name that is empty, too long or unprintable. Raises InvalidTask."""
    # No blanks at its ends, because MySQL ignores them in comparisons.
    is_printable = isinstance(name, str) and name.isprintable() and name == name.strip()
    if not is_printable or not 1 <= len(name.encode()) <= MAX_SCHEDULE_NAME_BYTES:
        raise InvalidTask(
            f"name is {shown(name)}; allowed: a text of 1 to {MAX_SCHEDULE_NAME_BYTES} bytes in UTF-8, without control "
            "characters, and without blanks at its ends"
        )


def next_time(schedule: ScheduleRow, planned: datetime, now: datetime) -> datetime:
    """The first time after now, in UTC, of a checked schedule; `planned` was its last time. Both are aware.

    Raises InvalidTask if there is none before LAST_INSTANT.
    """
    try:
        if schedule.every_seconds:  # whole steps after the planned time, so that a late look does not shift the times
            step = timedelta(seconds=schedule.every_seconds)
            found: datetime | None = planned + step * (max((now - planned) // step, 0) + 1)
        else:
            # When clocks go back, a time of day repeats. The library returns the first one, which may be in the past.
            times = _cron(schedule.cron, now.astimezone(_zone(schedule.timezone)))
            found = next((one.astimezone(timezone.utc) for one in times if one > now), None)
    except OverflowError:  # beyond the year 9999
        found = None
    if found is None or found > LAST_INSTANT:
        raise InvalidTask(f"its next time would come after {LAST_INSTANT:%Y-%m-%d}, where the database's time ends")
    return found


# ---- checks


def _check_timing(schedule: ScheduleRow) -> None:
    if schedule.every_seconds is None and schedule.cron is None:
        raise InvalidTask(f"it has neither every nor cron; allowed: every=300, say, or cron={CRON_EXAMPLE!r}")
    if schedule.every_seconds is None:
        _cron(schedule.cron, datetime.fromtimestamp(0, _zone(schedule.timezone)))
    elif schedule.cron is not None:
        raise InvalidTask("it has every and cron; allowed: one of them")
    else:
        _seconds(schedule.every_seconds)


def _seconds(every: Duration | None) -> int | None:
    if every is None:
        return None
    seconds = check_duration("every", every, MAX_DELAY_DAYS)
    if seconds < 1 or seconds % 1:
        raise InvalidTask(f"every is {shown(every)}; allowed: whole seconds, from 1 on")
    return int(seconds)


def _zone(name: str) -> tzinfo:
    # Not every host has a time zone file for UTC.
    if name == UTC:
        return timezone.utc
    try:
        # Python treats a/a/a/… as nested packages, and would search each of them.
        return ZoneInfo(name if len(name) <= MAX_ZONE_LENGTH else "")
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):
        if not available_timezones():
            raise SettingError(f"this host knows no time zones but UTC: {install_command('tzdata')}") from None
        raise InvalidTask(
            f"timezone is {shown(name)}, which does not exist; allowed: UTC, or a name such as Europe/Berlin"
        ) from None


def _cron(expression: str | None, after: datetime) -> CronSim:
    """The times of a cron expression after an instant, in that instant's time zone. Raises like `new_schedule`."""
    try:
        from cronsim import CronSim, CronSimError
    except ImportError:
        raise SettingError(
            "the package cronsim is missing, which reads cron expressions: "
            f"{install_command('cronsim>=2.6,<3')}; every needs none"
        ) from None
    if not isinstance(expression, str) or len(expression) > MAX_CRON_LENGTH:
        raise InvalidTask(f"cron is {shown(expression)}; {_ALLOWED_CRON}")
    try:
        # The library also accepts a sixth field, for seconds.
        if len(expression.split()) != CRON_FIELDS:
            raise CronSimError("it has not five fields")
        return CronSim(expression, after)
    except (CronSimError, ValueError) as error:
        raise InvalidTask(f"cron is {shown(expression)}: {error}; {_ALLOWED_CRON}") from None


_ALLOWED_CRON = f"allowed: minute, hour, day of the month, month, day of the week, such as {CRON_EXAMPLE!r}"
