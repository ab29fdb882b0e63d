"""Adding tasks: one, many, and with a unique key that an existing row may have.

An existing row is unchanged, or a rerun makes it new with the new values. A rerun of a running row sets `attempts` to
0, which no other running row has, because its start was counted. So the writes that finish a task (finishes.py) require
attempts above 0; a running row with 0 becomes new when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from ...errors import DatabaseError, InvalidTask
from ...model.new_task import NewTask
from ...model.task import MAX_SIGNED, Status
from ..database import Database
from ..dialect import Dialect, Rows
from ..retrying import RetryPolicy, Scope
from ..words import MAX_UTF8_BYTES, in_portions

MAX_STATEMENT_BYTES = 400_000
"""Old servers accept statements of 1 MiB, and quoting may double the length."""
MAX_DEPENDENCY_VALUES = 600
"""Old SQLite binds at most 999 values."""
PLAIN_VALUES = 4
ANY_VALUES = 11


class Adding:
    """The INSERTs of producers, in the caller's transaction. Raises InvalidTask, DatabaseError."""

    # ---- add: → new, waiting

    ADD_PLAIN = "INSERT INTO {table} (task, args, group_id, priority) VALUES "
    PLAIN_ROW = "(?, ?, ?, ?)"
    ADD_ONE_PLAIN = ADD_PLAIN + PLAIN_ROW
    ADD_ANY = """
        INSERT INTO {table}
            (task, args, group_id, priority, max_attempts, status, due_at, unique_key, version, stages)
        VALUES
    """
    ADD_DEPENDENCIES = "INSERT INTO {dependencies} (parent_id, child_id) VALUES "
    ADD_DEPENDENCY = "(?, ?)"

    IS_RUNNING = "{old_status} = 1 AND {old_started_at} IS NOT NULL"
    # A running row keeps status, claim and lease. A row that waits for other tasks (status 5 without an instant) still
    # waits. MySQL assigns from left to right. The status reads the old instant, so it comes before claim and instant;
    # these ask whether the row is running, which the new status also says. A delayed rerun gives status 5 to every row
    # that is not running, so there the instant comes first.
    RERUN: ClassVar = {
        "task": "{given_task}",
        "args": "{given_args}",
        "group_id": "{given_group_id}",
        "priority": "{given_priority}",
        "max_attempts": "{given_max_attempts}",
        "attempts": "0",
        "error_text": "NULL",
        "finished_at": "NULL",
        "created_at": "{now}",
        "updated_at": "{now}",
        "status": f"CASE WHEN {IS_RUNNING} THEN 1 WHEN {{old_status}} = 5 AND {{old_due_at}} IS NULL THEN 5 ELSE 0 END",
        "claim": f"CASE WHEN {IS_RUNNING} THEN {{old_claim}} END",
        "due_at": f"CASE WHEN {IS_RUNNING} THEN {{old_due_at}} END",
        "stages": "{given_stages}",
        "stage": "0",
        "result": "NULL",
        "progress": "NULL",
        "version": "COALESCE({given_version}, {old_version})",
    }
    RERUN_LATER: ClassVar = {"due_at": "", **RERUN} | {
        "due_at": f"""
            CASE WHEN {IS_RUNNING} THEN {{old_due_at}}
                WHEN {{old_status}} <> 5 OR {{old_due_at}} IS NOT NULL THEN {{given_due_at}} END
        """,
        "status": f"CASE WHEN {IS_RUNNING} THEN 1 ELSE 5 END",
    }
    # The condition of all assignments reads the old version, so the version is assigned last.
    IS_NEWER = "{given_version} IS NULL OR {old_version} IS NULL OR {given_version} > {old_version}"

    def __init__(self, place: Rows, what_now: str = "nothing was added") -> None:
        """`what_now` ends the message about a task that turns out to be invalid after its INSERT."""
        self._place = place
        self._what_now = what_now

    def insert_all(
        self, tasks: Iterable[NewTask], name: Callable[[int], str] = "task {}".format
    ) -> Iterator[Sequence[int]]:
        """Insert tasks, a statement for each portion; each portion's ids, in order.

        `name` makes a task's name for messages from its number, from 1 on.
        """
        before = 0
        for portion in portions(tasks, self._place):
            yield self.insert(portion, [f"{name(before + number)}: " for number in range(1, len(portion) + 1)])
            before += len(portion)

    def insert_plain(self, task: NewTask) -> int:
        """Insert a task that `is_plain`; its id."""
        return self._place.dialect.insert(self._place, self.ADD_ONE_PLAIN, task[:PLAIN_VALUES], 1)[0]

    def insert(self, tasks: Sequence[NewTask], names: Sequence[str] = ("",)) -> Sequence[int]:
        """Insert tasks of one kind by one statement, then their dependencies; the tasks' ids, in order.

        Messages start with the task's name in `names`.
        """
        place, first = self._place, tasks[0]
        if is_plain(first):
            sql = self.ADD_PLAIN + ", ".join([self.PLAIN_ROW] * len(tasks))
            values = [value for task in tasks for value in task[:PLAIN_VALUES]]
        else:
            sql = self.ADD_ANY + ", ".join([place.words["any_row"]] * len(tasks))
            values = [value for task in tasks for value in _all_values(task, place.dialect)]
        if first.unique_key is None:
            ids = place.dialect.insert(place, sql, values, len(tasks))
            if any(task.depends_on for task in tasks):
                self._insert_dependencies(tasks, ids, names)
            return ids
        if first.rerun:
            changes = self.RERUN_LATER if _is_later(first) else self.RERUN
            sql = f"{sql} {place.upsert(changes, '' if first.version is None else self.IS_NEWER)}"
        else:
            sql = f"{sql} {place.words['keep_standing']}"
        keys = [str(task.unique_key) for task in tasks]
        if len(keys) == 1:
            return [place.dialect.insert_key(place, sql, values, keys[0])]
        return place.dialect.insert_keyed(place, sql, values, keys)

    def _insert_dependencies(self, tasks: Sequence[NewTask], ids: Sequence[int], names: Sequence[str]) -> None:
        """Insert a row for each task and parent; dependencies.py decides whether the task must wait."""
        values: list[int] = []
        newer = ""
        for name, task, child_id in zip(names, tasks, ids, strict=True):
            parents = [int(text) for text in task.depends_on.split(",")] if task.depends_on else []
            parent_id = next((one for one in parents if one >= child_id), None)
            if parent_id is not None and not newer:
                newer = (
                    f"{name}depends_on names {parent_id}, and this task would be {child_id}: a task can wait only for "
                    f"those that were added before it; {self._what_now}"
                )
            for bindable in sorted({min(one, MAX_SIGNED) for one in parents}):  # SQLite's greatest number
                values += bindable, child_id
        for portion in in_portions(values, MAX_DEPENDENCY_VALUES):
            rows = ", ".join([self.ADD_DEPENDENCY] * (len(portion) // 2))
            self._place.execute(self.ADD_DEPENDENCIES + rows, portion)
        # Raised last: even if the caller commits, the task has its edge and does not run.
        if newer:
            raise InvalidTask(newer)


class Producing:
    """The verbs of producers, in our own transactions. Raises InvalidTask, DatabaseError."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._adding = Adding(database)
        self._add_plain = RetryPolicy(Scope.STATEMENT, database.conflict_seconds, is_repeatable=False)
        self._add_any = self._add_plain._replace(scope=Scope.TRANSACTION)

    def add(self, task: NewTask) -> int:
        """→ new, or waiting; the id of the new row, or of the existing row with the key."""
        if is_plain(task):
            return self._database.run(self._add_plain, self._adding.insert_plain, task)
        task_id = self._database.run(self._add_any, self._adding.insert, [task])[0]
        if task.depends_on is not None:
            from .dependencies import Dependencies

            # Decide now whether it must wait; if that fails, a worker's next look decides.
            with suppress(DatabaseError):
                Dependencies(self._database).decide([task_id])
        return task_id

    def add_many(self, tasks: Iterable[NewTask], name: Callable[[int], str] = "task {}".format) -> list[int]:
        """→ new, or waiting, all or none; the ids, in order. `name`: see Adding.insert_all."""
        several = list(tasks)  # no transaction waits for an iterator

        def insert_all() -> list[int]:
            return [task_id for portion in self._adding.insert_all(several, name) for task_id in portion]

        return self._database.run(self._add_any, insert_all)


# ---- which tasks go into one statement

_NOTHING_MORE = NewTask("", None, 0, 0)[PLAIN_VALUES:]


def is_plain(task: NewTask) -> bool:
    """Whether a task has only a name, arguments, group and priority."""
    return task[PLAIN_VALUES:] == _NOTHING_MORE


def _kind(task: NewTask) -> tuple[bool, ...]:
    """What determines a task's INSERT: equal for all tasks of a statement."""
    return is_plain(task), task.unique_key is None, task.rerun, task.version is None, _is_later(task)


def _is_later(task: NewTask) -> bool:
    return task.delay_seconds is not None or task.due_at is not None


def _all_values(task: NewTask, dialect: Dialect) -> Sequence[Any]:
    status = int(Status.WAITING if _is_later(task) else Status.NEW)
    key = None if task.unique_key is None else dialect.key(task.unique_key)
    return (
        *task[:PLAIN_VALUES],
        *(task.max_attempts, status, task.delay_seconds, task.due_at, key, task.version, task.stages),
    )


def portions(tasks: Iterable[NewTask], place: Rows) -> Iterator[list[NewTask]]:
    """The tasks for each statement: of one kind, within its limits, each key once.

    PostgreSQL cannot change a row twice in one statement.
    """
    portion: list[NewTask] = []
    keys: set[str] = set()
    size, most, kind = 0, 0, None
    for task in tasks:
        length, its_kind = _length(task.args) + _length(task.stages), _kind(task)
        is_full = len(portion) >= most or size + length > MAX_STATEMENT_BYTES
        if portion and (is_full or its_kind != kind or task.unique_key in keys):
            yield portion
            portion = []
        if not portion:
            size, most, kind = 0, _max_rows(task, place), its_kind
            keys.clear()
        portion.append(task)
        size += length
        if task.unique_key is not None:
            keys.add(task.unique_key)
    if portion:
        yield portion


def _length(text: str | None) -> int:
    return 0 if text is None else len(text) * (1 if text.isascii() else MAX_UTF8_BYTES)


def _max_rows(task: NewTask, place: Rows) -> int:
    most = place.dialect.rows_per_statement
    if not is_plain(task):
        most = most * PLAIN_VALUES // ANY_VALUES
    return most if task.unique_key is None else min(most, place.max_keyed_rows)
