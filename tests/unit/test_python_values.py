"""Values given to the Python API: those of wrong types are refused in a line that names the argument; durations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskserver import InvalidTask, Later, Retry, Selection, SettingError, TaskServer, progress, task
from taskserver.model.new_task import new_task
from taskserver.model.schedule import new_schedule
from taskserver.model.task_options import options_of
from taskserver.stores.records import earliest
from taskserver.testing import task_queue
from taskserver.worker.limits import checked_limits


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


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ids": [2**64]}, "one of ids is 18446744073709551616; allowed: a whole number from 0 to"),
        ({"groups": [2**32 - 1]}, "one of groups is 4294967295; allowed: a whole number from 0 to 4294967294"),
        ({"groups": list(range(401))}, "401 groups are chosen; allowed: at most 400"),
        ({"task": ""}, "task is ''; allowed: a text, not an empty one"),
        ({"error": "\udc80"}, "error is '.udc80'; allowed: a text"),
        ({"groups": "3"}, "groups is '3'; allowed: a list of whole numbers from 0 to 4294967294"),
        ({"ids": iter([1])}, "ids is <list_iterator"),  # which one look would use up
        ({"since": -1}, 'since is -1; allowed: seconds, a text such as "5m", or a timedelta, from 0 on, or an aware'),
        ({"status": 9}, "status is 9; allowed: 0 new, 1 in_progress, 2 done, 3 error, 4 fatal, 5 waiting"),
        ({"limit": 2**63}, f"limit is {2**63}; allowed: a whole number from 1 to {2**63 - 1}$"),
    ],
)
def test_a_wrong_choice_is_refused_in_a_sentence(given: dict[str, Any], message: str) -> None:
    with TaskServer("mysql://nobody@127.0.0.1:1/nothing") as server, pytest.raises(InvalidTask, match=message):
        server.cancel(Selection(**given))
