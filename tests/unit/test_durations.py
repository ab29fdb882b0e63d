"""A duration is a number of seconds, a text as "5m", or a timedelta: the same everywhere in the Python API."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from taskserver import InvalidTask, Later, Retry, SettingError, task
from taskserver.model.new_task import new_task
from taskserver.model.schedule import new_schedule
from taskserver.model.task_options import options_of
from taskserver.stores.records import earliest
from taskserver.testing import task_queue
from taskserver.worker.limits import checked_limits

READ: list[tuple[Any, float]] = [
    *((300, 300), (300.0, 300), ("5m", 300), (timedelta(minutes=5), 300)),
    *(("90s", 90), ("1h", 3600), ("2d", 172_800), ("1w", 604_800)),
]
REFUSED: list[Any] = [
    *("", "5", "5 m", "-5m", "5M", "5y", "m", "1.5h", "٣m", "9" * 11 + "s", -1, float("nan"), True, b"5m"),
]


def timeout_of(value: Any) -> float | None:
    def function() -> None: ...

    return options_of(task(timeout=value)(function)).timeout_seconds  # type: ignore[arg-type]


READERS: dict[str, Callable[[Any], Any]] = {
    "delay": lambda value: new_task("tasks.x", delay=value).delay_seconds,
    "every": lambda value: new_schedule("n", "tasks.x", None, value, None, "UTC", 0, 0).every_seconds,
    "max_time": lambda value: checked_limits(0, 1, value, None, None).max_seconds,
    "linger": lambda value: checked_limits(0, 1, None, None, value).linger_seconds,
    "timeout": timeout_of,
    "since": lambda value: -earliest(value)[1],
    "delay of Retry": lambda value: Retry(delay=value).delay,
    "delay of Later": lambda value: Later(delay=value).delay,
}


@pytest.mark.parametrize("name", READERS)
def test_each_reader_takes_each_form_of_a_duration_and_refuses_others(name: str) -> None:
    for value, seconds in READ:
        if not (isinstance(value, timedelta) and name.startswith("delay of")):  # errors.py imports nothing
            assert READERS[name](value) == seconds, value
    for value in REFUSED:
        with pytest.raises((InvalidTask, SettingError), match=rf"^{name.partition(' ')[0]} is .*; allowed: .*5m"):
            READERS[name](value)


def test_a_test_queue_passes_time_by_a_text() -> None:
    with task_queue() as queue:
        assert queue.run_all("5m").done == 0
        with pytest.raises(SettingError, match="until is 'soon'"):
            queue.run_all("soon")
