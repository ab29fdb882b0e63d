"""Spread: adds each task to one of several servers, for more work than one database can take.

Each server is a whole queue with its own workers; they do not know each other. Without a key, a task goes to a random
server that answers. A unique key always has the same server: only there can the database refuse a second row.

A task is sent to another server only if nothing was sent to the first one. If a connection breaks during the INSERT,
the row may be there, and a second row would run the task twice.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from logging import getLogger
from math import inf, log
from typing import Any, NamedTuple, ParamSpec, TypeVar

from .errors import DatabaseError, InvalidTask, SettingError, TablesMissing, Unavailable
from .messages.text import shown
from .model.checks import check_key, check_kind, check_list
from .model.new_task import NewTask, new_task_from, new_tasks_from
from .server import TaskServer

P = ParamSpec("P")
T = TypeVar("T")
AWAY_SECONDS = 60.0
"""A server that was away is the last choice for so long: each try of a silent one may take ten seconds."""
BOUND = "{} belongs to one server: call that server's own add_task, add_tasks or add_pipeline"


class Added(NamedTuple):
    """Where a task was added: each server has its own ids."""

    server: TaskServer
    id: int


class Spread:
    """Adds tasks to several servers. Close it, or use it in a `with`; threads may share it.

    `servers` is a list, or a dict by name. A server's name decides which unique keys it has: do not change it. In a
    list the name is the database and the table, `settings.queue`. All errors are TaskServerErrors.
    """

    def __init__(
        self, servers: Iterable[TaskServer] | Mapping[str, TaskServer], *, weights: Iterable[float] | None = None
    ) -> None:
        """`weights` are their shares of the tasks: numbers above 0, in the same order. Raises SettingError."""
        allowed = "a list of TaskServers, or a dict of them by name"
        values = servers.values() if isinstance(servers, Mapping) else servers
        given: list[TaskServer] = list(check_list("servers", values, allowed, SettingError))
        for server in given:
            check_kind("one of servers", server, TaskServer, "a TaskServer")
        names = list(servers) if isinstance(servers, Mapping) else [server.settings.queue for server in given]
        if len(set(names)) != len(names) or not names:
            raise SettingError(f"servers has the names {shown(names)}; allowed: {allowed}, one or more, each once")
        self.servers: Mapping[str, TaskServer] = dict(zip(names, given, strict=True))
        """By name."""
        allowed = "one number above 0 for each server"
        numbers = [1.0 for _ in given] if weights is None else [*check_list("weights", weights, allowed, SettingError)]
        if len(numbers) != len(given) or not all(type(one) in (int, float) and 0 < one < inf for one in numbers):
            raise SettingError(f"weights are {shown(numbers)}; allowed: {allowed}")
        self._weights = dict(zip(self.servers, numbers, strict=True))
        self._away_until = dict.fromkeys(self.servers, 0.0)

    def __enter__(self) -> Spread:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all servers; the next use connects again."""
        for server in self.servers.values():
            server.close()

    def server_of(self, unique_key: str) -> TaskServer:
        """The server of a key: the same in every process with these names and weights. Raises InvalidTask."""
        return self.servers[self._name_of(check_key("unique_key", unique_key))]

    def add_task(self, task: str | Callable[..., Any], args: object = None, **options: Any) -> Added:
        """Add one task, with the options of `TaskServer.add_task`; `depends_on` and `connection` raise InvalidTask.

        Raises Unavailable if no server answers, or the server of its key. After a DatabaseError with `in_doubt` the
        task may have been added.
        """
        return self._add({"task": task, "args": args, **options})

    def enqueue(self, function: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> Added:
        """Add a call of a function with the options of @task; mypy and editors check the arguments."""
        from .model.functions import given_function

        return self.add_task(function, given_function(function).args_of(args, kwargs))

    def add_pipeline(
        self, stages: Sequence[str | Callable[..., Any] | Mapping[str, Any]], args: object = None, **options: Any
    ) -> Added:
        """Add one pipeline, as `TaskServer.add_pipeline`; all its stages run on that server."""
        return self._add({"stages": () if stages is None else stages, "args": args, **options})

    def add_tasks(self, tasks: Iterable[Mapping[str, Any]]) -> list[Added]:
        """Add many tasks: those with keys in a transaction for each server, then all others in one, on one server.

        After an error add them all again: tasks with keys are not doubled, and without the error's `in_doubt` the
        others were not added. Raises like `TaskServer.add_tasks`.
        """
        new_tasks = new_tasks_from(tasks)
        added: dict[int, Added] = {}
        numbers_of: dict[str | None, list[int]] = {}
        for number, task in enumerate(new_tasks):
            if task.depends_on is not None:
                raise InvalidTask(f"task {number + 1}: {BOUND.format('depends_on')}")
            numbers_of.setdefault(self._own(task), []).append(number)
        # Last those without a key: nothing that fails comes after them.
        for name in sorted(numbers_of, key=lambda name: name is None):
            numbers = numbers_of[name]
            server, ids = self._send([new_tasks[number] for number in numbers], name)
            added |= {number: Added(server, task_id) for number, task_id in zip(numbers, ids, strict=True)}
        return [added[number] for number in range(len(new_tasks))]

    # ---- which server

    def _own(self, task: NewTask) -> str | None:
        return None if task.unique_key is None else self._name_of(task.unique_key)

    def _name_of(self, unique_key: str) -> str:
        """Rendezvous hashing: if a server comes or goes, only its own keys move."""
        return self._ranked(lambda name: _distance(name, unique_key))[0]

    def _ranked(self, draw: Callable[[str], float]) -> list[str]:
        """The names by exponentially distributed numbers: each is the first with the probability of its weight."""
        return sorted(self._weights, key=lambda name: draw(name) / self._weights[name])

    # ---- add

    def _add(self, description: dict[str, Any]) -> Added:
        if description.pop("connection", None) is not None:
            raise InvalidTask(BOUND.format("connection"))
        task = new_task_from(description)
        if task.depends_on is not None:
            raise InvalidTask(BOUND.format("depends_on"))
        server, (task_id,) = self._send([task], self._own(task))
        return Added(server, task_id)

    def _send(self, tasks: Sequence[NewTask], own: str | None) -> tuple[TaskServer, Sequence[int]]:
        """Add tasks to their own server, or to the first that answers; this server, and the ids."""
        now, errors = time.monotonic(), list[str]()
        names = self._ranked(lambda name: random.expovariate(1)) if own is None else [own]
        for name in sorted(names, key=lambda name: self._away_until[name] > now):
            if errors:
                getLogger("taskserver").warning("the task goes to another server: %s", errors[-1])
            server = self.servers[name]
            try:
                ids = (
                    [server.store.producing.add(tasks[0])]
                    if len(tasks) == 1
                    else server.store.producing.add_many(tasks)
                )
            except DatabaseError as error:
                is_absent = isinstance(error, (Unavailable, TablesMissing))  # the latter: a new one before init
                is_away = is_absent or not server.store.database.is_connected
                if is_away:
                    self._away_until[name] = time.monotonic() + AWAY_SECONDS
                if own is not None or error.in_doubt or not is_away:
                    raise
                errors.append(str(error))
            else:
                self._away_until[name] = 0.0
                return server, ids
        raise Unavailable(f"no server can take the task: {'; '.join(errors)}")


def _distance(name: str, key: str) -> float:
    """An exponentially distributed number, always the same for a server and a key."""
    bits = int.from_bytes(sha256(f"{name}\0{key}".encode()).digest()[:8], "big") >> 12
    return -log((bits + 0.5) / 2**52)  # exact: 53 bits
