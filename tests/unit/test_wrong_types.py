"""Values of wrong types given to the Python API: each is refused in one line that names the argument, or it is fine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskserver import InvalidTask, Retry, Selection, SettingError, TaskServer, progress, task


class Mute:
    """Is no value of anything, and answers no question."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError

    def __repr__(self) -> str:
        raise ArithmeticError


WRONG: list[Any] = [
    *(None, True, -1, 10**5000, 1.5, float("nan"), "", "x", "a\ud800", b"x", [], ["x"], [[]], [None], (), {}, {1: 2}),
    *(set(), object(), print, Path("x"), datetime(2030, 1, 1), timedelta.max, range(3), Mute(), [Mute()]),  # noqa: DTZ001
]
MORE = "args group_id priority max_attempts delay at unique_key rerun version depends_on"


def function() -> None:
    pass


def options(**given: Any) -> None:
    task(**given)(function)


def constructed(**given: Any) -> None:
    TaskServer(**{"dsn": "sqlite:///:memory:"} | given).close()


CALLS: dict[str, Callable[[TaskServer], Callable[..., object]]] = {
    "dsn table mode modules max_attempts backoff lease timeout db_patience pauses password": lambda server: constructed,
    "setup between on_failure": lambda server: constructed,
    "folder": lambda server: lambda folder: constructed(folder=folder),
    "settings": lambda server: TaskServer.from_settings,
    f"task {MORE}": lambda server: lambda **given: server.add_task(**{"task": "tasks.x"} | given),
    f"stages {MORE}": lambda server: lambda **given: server.add_pipeline(**{"stages": ["tasks.x"]} | given),
    "tasks": lambda server: server.add_tasks,
    "task_id": lambda server: server.get,
    "task_ids": lambda server: server.get_many,
    "schedules": lambda server: server.sync_schedules,
    "timeout": lambda server: lambda timeout: server.wait(999, timeout),
    "name task args every cron timezone group_id priority": lambda server: (
        lambda **given: server.schedule(
            **{"name": "n", "task": "tasks.x"} | ({} if "cron" in given else {"every": 9}) | given
        )
    ),
    "name": lambda server: server.unschedule,
    "task_id priority": lambda server: lambda **given: server.set_priority(**{"task_id": 1, "priority": 1} | given),
    "tasks ": lambda server: server.retry,
    "tasks  ": lambda server: server.cancel,
    "ids groups task error limit": lambda server: lambda **given: server.retry(Selection(**given)),
    "group_id": lambda server: server.pause,
    "group_id ": lambda server: server.resume,
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
    "max_attempts backoff timeout on_fatal batch transactional": lambda server: options,
    "group_id priority unique_key rerun": lambda server: options,
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
    "on_fatal": "task is",
    "stop": "no task 999",
}


@pytest.fixture(scope="module")
def server() -> Iterator[TaskServer]:
    with TaskServer("sqlite:///:memory:") as server:
        server.create_tables()
        yield server


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
    assert len(refused) > 5
    for text in refused:
        assert "\n" not in text
        assert re.search(f"{argument}|{PARTS.get(argument, argument)}", text, re.IGNORECASE), text
