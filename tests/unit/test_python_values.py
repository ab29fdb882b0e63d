"""The Python API refuses values of wrong types in one line that names the argument; durations."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskserver import InvalidTask, Later, Retry, Selection, SettingError, TaskServer, progress, task
from taskserver.model.new_task import new_task
from taskserver.model.schedule import new_schedule
from taskserver.model.task_options import options_of
from taskserver.stores.records import earliest
from taskserver.worker.limits import checked_limits

WRONG: list[Any] = [
    *(None, True, -1, 10**5000, float("nan"), "", "a\ud800", b"x", [], ["x"], [None], {1: 2}),
    *(object(), print, datetime(2030, 1, 1), timedelta.max),  # noqa: DTZ001
]
OF_ADDING = "task args group_id priority max_attempts delay at unique_key rerun version depends_on"


def constructed(**given: Any) -> None:
    TaskServer(**{"dsn": "sqlite:///:memory:"} | given).close()


SCHEDULE: dict[str, Any] = {"name": "n", "task": "tasks.x", "every": 9}
CALLS: dict[str, Callable[[TaskServer], Callable[..., object]]] = {
    "dsn table mode modules max_attempts backoff lease timeout db_patience pauses password": lambda server: constructed,
    "setup between on_failure": lambda server: constructed,
    "folder": lambda server: lambda folder: constructed(folder=folder),
    "settings": lambda server: TaskServer.from_settings,
    OF_ADDING: lambda server: lambda **given: server.add_task(**{"task": "tasks.x"} | given),
    "stages": lambda server: server.add_pipeline,
    "tasks": lambda server: server.add_tasks,
    "task_id": lambda server: server.get,
    "task_ids": lambda server: server.get_many,
    "schedules": lambda server: server.sync_schedules,
    "timeout": lambda server: lambda timeout: server.wait(999, timeout),
    "name task args every timezone group_id priority": lambda server: (
        lambda **given: server.schedule(**{**SCHEDULE, **given})
    ),
    "task_id priority": lambda server: lambda **given: server.set_priority(**{"task_id": 1, "priority": 1} | given),
    "tasks ": lambda server: server.retry,
    "ids groups task error limit": lambda server: lambda **given: server.retry(Selection(**given)),
    "group_id": lambda server: server.pause,
    "since": lambda server: server.stats,
    "groups task limit": lambda server: server.errors,
    "older_than done fatal archived stats keys": lambda server: (
        lambda **given: server.prune(**{"older_than": 9} | given)
    ),
    "force": lambda server: server.reclaim,
    "task_id stop": lambda server: lambda **given: server.run_task(**{"task_id": 999} | given),
    "max_tasks groups batch max_time max_memory stop on_progress": lambda server: (
        lambda **given: server.run(**{"groups": [9]} | given)
    ),
    "delay": lambda server: Retry,
    "done total text": lambda server: lambda **given: progress(**{"done": 1} | given),
}
# How an error calls a part of what was given, where it names that.
PARTS = {
    "tasks": "ids|task 1",
    "stages": "stage 1",
    "schedules": "schedule 1",
    "task_ids": "task_id",
    "groups": "a group",
    "stop": "no task 999",
}


@pytest.mark.parametrize(
    ("call", "argument"), [(call, argument) for names, call in CALLS.items() for argument in names.split()]
)
def test_a_value_of_a_wrong_type_is_refused_in_one_line_that_names_the_argument(
    server: TaskServer, call: Callable[[TaskServer], Callable[..., object]], argument: str
) -> None:
    refused = []
    for value in WRONG:
        try:
            call(server)(**{argument: value})
        except (InvalidTask, SettingError) as error:
            refused.append(str(error))
    assert len(refused) > 4
    for text in refused:
        assert "\n" not in text
        assert re.search(f"{argument}|{PARTS.get(argument, argument)}", text, re.IGNORECASE), text


READ: list[tuple[Any, float]] = [
    *((300.0, 300), (timedelta(minutes=5), 300)),
    *(("90s", 90), ("5m", 300), ("1h", 3600), ("2d", 172_800), ("1w", 604_800)),
]
REFUSED: list[Any] = ["5", "5 m", "1.5h", "٣m", "9" * 11 + "s", -1, float("nan"), True]


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
def test_each_duration_takes_the_same_forms(name: str) -> None:
    for value, seconds in READ:
        if not (isinstance(value, timedelta) and name.startswith("delay of")):  # errors.py imports nothing
            assert READERS[name](value) == seconds, value
    for value in REFUSED:
        with pytest.raises((InvalidTask, SettingError), match=rf"^{name.partition(' ')[0]} is .*; allowed: .*5m"):
            READERS[name](value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"groups": [2**32 - 1]}, "one of groups is 4294967295; allowed: a whole number from 0 to 4294967294"),
        ({"groups": list(range(401))}, "401 groups are chosen; allowed: at most 400"),
        ({"task": ""}, "task is ''; allowed: a text, not an empty one"),
        ({"groups": "3"}, "groups is '3'; allowed: a list of whole numbers from 0 to 4294967294"),
        ({"since": -1}, 'since is -1; allowed: seconds, a text such as "5m", or a timedelta, from 0 on, or an aware'),
        ({"status": 9}, "status is 9; allowed: 0 new, 1 in_progress, 2 done, 3 error, 4 fatal, 5 waiting"),
        ({"limit": 2**63}, f"limit is {2**63}; allowed: a whole number from 1 to {2**63 - 1}$"),
    ],
)
def test_a_wrong_selection_is_refused_in_one_sentence(given: dict[str, Any], message: str) -> None:
    with TaskServer("mysql://nobody@127.0.0.1:1/nothing") as server, pytest.raises(InvalidTask, match=message):
        server.cancel(Selection(**given))
