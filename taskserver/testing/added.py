"""The producers' side of a queue in a test: adds as in production, and notes each task for the test."""

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
    """A task as a producer added it."""

    id: int
    task: str
    """The callable's name; of a pipeline, that of its first stage."""
    args: dict[str, Any] | list[Any]
    """The arguments as the callable gets them: through JSON and back; {} where there are none."""
    group_id: int
    priority: int
    delay: float | None
    """In seconds."""
    at: datetime | None
    unique_key: str | None


def added_task(task_id: int, task: NewTask) -> AddedTask:
    """The task as a test reads it."""
    delay, at = task.delay_seconds or None, utc(task.due_at)
    args = read_item(task.args)
    return AddedTask(task_id, task.task, args, task.group_id, task.priority, delay, at, task.unique_key)


Note = Callable[[Iterable[tuple[int, NewTask]], bool], object]
"""Called with the ids and the tasks that were added, and whether a worker sees them already."""


class NotedProducing(Producing):
    """Adds, and notes."""

    def __init__(self, store: Store, note: Note) -> None:
        super().__init__(store.database)
        self._note = note

    def add(self, task: NewTask) -> int:
        task_id = super().add(task)
        self._note([(task_id, task)], True)
        return task_id

    def add_many(self, tasks: Iterable[NewTask], name: Callable[[int], str] = "task {}".format) -> list[int]:
        given = list(tasks)
        ids = super().add_many(given, name)
        self._note(zip(ids, given, strict=True), True)
        return ids


class NotedCallers(Callers):
    """Adds on callers' connections, and notes.

    A site's connection does not lead to a queue in memory. What is written on it is there at once, whatever becomes of
    the site's transaction.
    """

    def __init__(self, store: Store, note: Note, is_in_memory: bool) -> None:
        super().__init__(store.database.dialect, store.mode, store.lease_seconds)
        self._store = store
        self._note = note
        self._is_in_memory = is_in_memory

    def add(self, connection: object, task: NewTask) -> int:
        return self.add_many(connection, [task])[0]

    def add_many(self, connection: object, tasks: Iterable[NewTask]) -> list[int]:
        if self._is_elsewhere(connection):
            return self._store.producing.add_many(tasks)  # which notes them
        given = list(tasks)
        ids = super().add_many(connection, given)
        self._note(zip(ids, given, strict=True), False)
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
        """Whether this is a connection that does not lead to a queue in memory. Raises InvalidTask if it is none."""
        if not self._is_in_memory:
            return False
        connection = unwrapped(connection)
        try:
            with self.on(connection) as rows:
                return not self._store.database.dialect.has_open(rows)
        except InvalidTask:  # to another kind of database
            return True
