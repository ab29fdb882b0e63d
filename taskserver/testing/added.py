"""The producers' side of a queue in a test: adds as in production, and records each task for the test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from ..errors import InvalidTask
from ..messages.text import utc
from ..model.arguments import read_item
from ..model.attempt import Finish, Outcome
from ..model.new_task import NewTask
from ..stores import Store
from ..stores.queue.adding import Producing
from ..stores.queue.callers import Callers, unwrapped


class AddedTask(NamedTuple):
    """A task that a producer added."""

    id: int
    task: str
    """The callable's name; in a pipeline, of its first stage."""
    args: dict[str, Any] | list[Any]
    """The arguments that the callable gets, after JSON; {} if there are none."""
    group_id: int
    priority: int
    delay: float | None
    """In seconds."""
    at: datetime | None
    unique_key: str | None


def added_task(task_id: int, task: NewTask) -> AddedTask:
    """The task for the test."""
    delay, at = task.delay_seconds or None, utc(task.due_at)
    args = read_item(task.args)
    return AddedTask(task_id, task.task, args, task.group_id, task.priority, delay, at, task.unique_key)


Record = Callable[[Iterable[tuple[int, NewTask]], bool], object]
"""Called with the ids and the added tasks, and whether workers can see them already."""


class RecordingProducing(Producing):
    """Adds and records."""

    def __init__(self, store: Store, record: Record) -> None:
        super().__init__(store.database)
        self._record = record

    def add(self, task: NewTask) -> int:
        task_id = super().add(task)
        self._record([(task_id, task)], True)
        return task_id

    def add_many(self, tasks: Iterable[NewTask], name: Callable[[int], str] = "task {}".format) -> list[int]:
        given = list(tasks)
        ids = super().add_many(given, name)
        self._record(zip(ids, given, strict=True), True)
        return ids


class RecordingCallers(Callers):
    """Adds on callers' connections, and records.

    A site's connection can't reach a queue in memory. Then tasks are added at once, even if the site's transaction is
    rolled back.
    """

    def __init__(self, store: Store, record: Record, is_in_memory: bool) -> None:
        super().__init__(store.database.dialect, store.mode, store.lease_seconds)
        self._store = store
        self._record = record
        self._is_in_memory = is_in_memory

    def add(self, connection: object, task: NewTask) -> int:
        return self.add_many(connection, [task])[0]

    def add_many(self, connection: object, tasks: Iterable[NewTask]) -> list[int]:
        if self._is_elsewhere(connection):
            return self._store.producing.add_many(tasks)  # records them
        given = list(tasks)
        ids = super().add_many(connection, given)
        self._record(zip(ids, given, strict=True), False)
        return ids

    def check(self, connection: object) -> None:
        if not self._is_elsewhere(connection):
            super().check(connection)

    def complete(self, connection: object, finish: Finish) -> Outcome:
        if not self._is_elsewhere(connection):
            return super().complete(connection, finish)
        outcomes, _ = self._store.finishes.advance([finish], None)
        return outcomes[0]

    def _is_elsewhere(self, connection: object) -> bool:
        """Whether this connection can't reach the queue in memory. Raises InvalidTask if it is not a connection."""
        if not self._is_in_memory:
            return False
        connection = unwrapped(connection)
        try:
            with self.on(connection) as rows:
                return not self._store.database.dialect.has_open(rows)
        except InvalidTask:  # to another kind of database
            return True
