"""The earliest instant that an operator asks for: of the stats and of the list of tasks."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from ...errors import SettingError
from ...messages.printable import shown
from ...model.new_task import FIRST_INSTANT, LAST_INSTANT

MAX_SINCE_SECONDS = 50 * 366 * 86_400


def earliest(since: object, seconds_before: int = 0) -> tuple[str, Any]:
    """SQL for an instant by the database's clock, so many seconds before `since`, and the value for its mark.

    `since` is an aware datetime, or seconds or a timedelta before now. Raises SettingError.
    """
    if isinstance(since, datetime) and since.utcoffset() is not None:
        first = min(max(since, FIRST_INSTANT), LAST_INSTANT) - timedelta(seconds=seconds_before)
        return "{instant}", f"{first.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}"
    seconds: Any = since.total_seconds() if isinstance(since, timedelta) else since
    if type(seconds) not in (int, float) or not 0 <= seconds < float("inf"):
        raise SettingError(f"since is {shown(since)}; allowed: seconds from 0 on, a timedelta, or an aware datetime")
    return "{after}", -min(seconds, MAX_SINCE_SECONDS) - seconds_before
