"""How tasks are added: one, many, one that bears a key, and one whose key stands already.

A row that has the key either stays as it is, or (`rerun`) becomes new again as its producer now describes it. That
needs no column of its own: a rerun sets `attempts` to 0, which a running row, being started, cannot have otherwise. So
the writes that finish a task (store.py) ask for attempts above 0, and where there are none make it new instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

from ..errors import InvalidTask
from ..lifecycle import NewTask, Status
from .database import with_ids
from .tables import Tables
from .tries import Way

BYTES_A_STATEMENT = 400_000
"""Old servers take 1 MiB a statement, and quoting may double it."""
MOST_BYTES_A_CHARACTER = 4
MOST_KEYED = 100
"""Rows with keys a statement, as it locks those that stand already until the transaction's end."""

MOST_KEPT = 1000
MOST_CHARACTERS_KEPT = 2_000_000
"""Tasks of an iterator, and their arguments, so that they can be added again where others were in the way."""

PLAIN_VALUES = 4
ANY_VALUES = 11


class WaitsForNewer(InvalidTask):
    """A task that would wait for one that is not older than itself."""

    def __init__(self, parent_id: int, child_id: int, number: int, what_now: str) -> None:
        super().__init__(
            f"depends_on names {parent_id}, and this task would be {child_id}: a task can wait for those alone that "
            f"were added before it; {what_now}"
        )
        self.number = number
        """Of those that were to be added together, counted from 1."""


class Adding(Tables):
    """The verbs of producers."""

    rows_a_statement = 1000
    """Plain ones: the task, its arguments, group and priority."""
    what_now = "nothing was added"
    """Where a task that is wrong was found out when its row stood already."""
    given: str
    """In a change of the row that has the key: what was to be inserted into the column `{}`."""

    # ---- add: → new, waiting

    ADD = "INSERT INTO {table} (task, args, group_id, priority) VALUES "
    ADD_ROW = "(?, ?, ?, ?)"
    ADD_ONE = ADD + ADD_ROW
    ADD_ANY = """
        INSERT INTO {table}
            (task, args, group_id, priority, max_attempts, status, due_at, unique_key, version, stages)
        VALUES
    """
    ADD_ANY_ROW = "(?, ?, ?, ?, ?, ?, COALESCE({after}, ?), ?, ?, ?)"
    ADD_DEPENDENCIES = "INSERT INTO {dependencies} (parent_id, child_id) VALUES "
    ADD_DEPENDENCY = "(?, ?)"
    IDS_OF_KEYS = "SELECT unique_key, id FROM {table} WHERE unique_key IN ({ids})"

    IS_RUNNING = "status = 1 AND started_at IS NOT NULL"
    # One that runs keeps status, claim and lease; one that waits for other tasks (status 5 with no instant) goes on
    # waiting. MySQL assigns from left to right: the claim and the instant come after the status, from whose new value
    # it is told as well as from the old one whether the row is running; before it they would change what it looks at.
    # But where the task is delayed, any row that does not run has status 5 after it: there the instant comes first.
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
        "status": f"CASE WHEN {IS_RUNNING} THEN 1 WHEN status = 5 AND due_at IS NULL THEN 5 ELSE 0 END",
        "claim": f"CASE WHEN {IS_RUNNING} THEN claim END",
        "due_at": f"CASE WHEN {IS_RUNNING} THEN due_at END",
        "stages": "{given_stages}",
        "stage": "0",
        "result": "NULL",
        "progress": "NULL",
        "version": "COALESCE({given_version}, version)",
    }
    RERUN_LATER: ClassVar = {"due_at": "", **RERUN} | {
        "due_at": f"""
            CASE WHEN {IS_RUNNING} THEN due_at WHEN status <> 5 OR due_at IS NOT NULL THEN {{given_due_at}} END
        """,
        "status": f"CASE WHEN {IS_RUNNING} THEN 1 ELSE 5 END",
    }
    # Last in the order above: the version tells whether the others are to be assigned at all.
    IS_NEWER = "{given_version} IS NULL OR version IS NULL OR {given_version} > version"

    def add(self, task: NewTask) -> int:
        """→ new, or waiting. The id of the row; of the one that has the key, where one stands."""
        if _is_plain(task):
            return self._once(self._insert_one, task)
        return self._do(Way(True, self._conflict_seconds, repeatable=False), self._insert, [task])[0]

    def add_many(
        self,
        tasks: Iterable[NewTask],
        added: Callable[[Sequence[int]], object],
        begun: Callable[[], object] = lambda: None,
    ) -> None:
        """→ new, or waiting, all or none; `added` hears of the ids of each statement, which count once this returns.

        `begun` hears that they are added from the first one on: again, too, after others were in the way. Those of an
        iterator are added again if they are few: what it has given is gone, and may be too much to be kept.
        """
        if isinstance(tasks, Iterator):
            few = _few(tasks)
            more = next(tasks, None)
            tasks = few if more is None else chain(few, [more], tasks)
        given = tasks

        def insert_all() -> None:
            begun()
            for ids in self._insert_all(given):
                added(ids)

        seconds = 0 if isinstance(given, Iterator) else self._conflict_seconds
        self._do(Way(True, seconds, repeatable=False), insert_all)

    def _insert_one(self, task: NewTask) -> int:
        new_id: int = self._execute(self.ADD_ONE, task[:PLAIN_VALUES]).lastrowid
        return new_id

    def _insert_all(self, tasks: Iterable[NewTask]) -> Iterator[Sequence[int]]:
        before = 0
        for portion in portions(tasks, self.rows_a_statement):
            try:
                yield self._insert(portion)
            except WaitsForNewer as error:
                error.number += before
                raise
            before += len(portion)

    def _insert(self, tasks: Sequence[NewTask]) -> Sequence[int]:
        """Tasks of one kind, by one statement. Their ids."""
        kind = _kind(tasks[0])
        if kind is None:
            rows = ", ".join([self.ADD_ROW] * len(tasks))
            cursor = self._execute(self.ADD + rows, [value for task in tasks for value in task[:PLAIN_VALUES]])
            return self._inserted_ids(cursor, len(tasks))
        sql = self.ADD_ANY + ", ".join([self.ADD_ANY_ROW] * len(tasks))
        values = [value for task in tasks for value in _all_values(task)]
        has_key, is_rerun, has_version, is_later, has_parents = kind
        if has_key:
            return self._insert_keyed(f"{sql} {self._if_key_stands(is_rerun, has_version, is_later)}", values, tasks)
        ids = self._inserted_ids(self._execute(sql, values), len(tasks))
        if has_parents:
            self._insert_dependencies(tasks, ids)
        return ids

    def _insert_keyed(self, sql: str, values: Sequence[Any], tasks: Sequence[NewTask]) -> Sequence[int]:
        self._execute(sql, values)
        return self._ids_of_keys([str(task.unique_key) for task in tasks])

    def _insert_dependencies(self, tasks: Sequence[NewTask], ids: Sequence[int]) -> None:
        """What they wait for, in the same transaction. The rest is found out when a worker looks (dependencies.py)."""
        values: list[int] = []
        newer: WaitsForNewer | None = None
        for number, (task, child_id) in enumerate(zip(tasks, ids, strict=True), start=1):
            for parent_id in map(int, str(task.depends_on).split(",")):
                if parent_id >= child_id and newer is None:
                    newer = WaitsForNewer(parent_id, child_id, number, self.what_now)
                values += (parent_id, child_id)
        most = self.rows_a_statement * PLAIN_VALUES // 2 * 2
        for first in range(0, len(values), most):
            portion = values[first : first + most]
            rows = ", ".join([self.ADD_DEPENDENCY] * (len(portion) // 2))
            self._execute(self.ADD_DEPENDENCIES + rows, portion)
        # Only now: whoever commits all the same must not get a task that waits for nothing, and so runs.
        if newer is not None:
            raise newer

    def _ids_of_keys(self, keys: Sequence[str]) -> list[int]:
        ids = self._find_keys(self.IDS_OF_KEYS, keys)
        return [ids[key.encode()] for key in keys]

    def _find_keys(self, sql: str, keys: Sequence[str]) -> dict[bytes, int]:
        found = self._all(with_ids(sql, keys), keys)
        # MySQL keeps them as bytes.
        return {key if isinstance(key, bytes) else key.encode(): row_id for key, row_id in found}

    def _if_key_stands(self, is_rerun: bool, has_version: bool, is_later: bool) -> str:
        """What becomes of the row that has the key."""
        if not is_rerun:
            return self._changing({"unique_key": "unique_key"}, "")
        changes = self.RERUN_LATER if is_later else self.RERUN
        return self._changing(changes, self.IS_NEWER if has_version else "")

    @abstractmethod
    def _changing(self, changes: dict[str, str], condition: str, key: str = "unique_key") -> str:
        """The end of an INSERT that makes these changes to the row which has the key, on a condition if there is one.

        `key` names its columns. In both, `{given_…}` is what was to be inserted into a column.
        """

    @abstractmethod
    def _inserted_ids(self, cursor: Any, count: int) -> range:
        """The ids of the rows that this cursor's INSERT just made."""

    def _make_words(self, table: str, quoted: str) -> dict[str, str]:
        given = {f"given_{column}": self.given.format(column) for column in self.RERUN}
        return super()._make_words(table, quoted) | given


_Kind = tuple[bool, bool, bool, bool, bool]
"""What tasks of one statement have in common: a key, whether they are reruns, a version, an instant, other tasks."""


def _few(tasks: Iterator[NewTask]) -> list[NewTask]:
    """So many of them as may be kept, to be tried again."""
    few: list[NewTask] = []
    characters = 0
    while len(few) < MOST_KEPT and characters < MOST_CHARACTERS_KEPT and (task := next(tasks, None)):
        few.append(task)
        characters += len(task.args or "")
    return few


def _is_plain(task: NewTask) -> bool:
    return task[PLAIN_VALUES:] == _NOTHING_MORE


_NOTHING_MORE = NewTask("", None, 0, 0)[PLAIN_VALUES:]


def _kind(task: NewTask) -> _Kind | None:
    """None for a plain one."""
    if _is_plain(task):
        return None
    has_parents = task.depends_on is not None
    return task.unique_key is not None, task.rerun, task.version is not None, _is_later(task), has_parents


def _all_values(task: NewTask) -> Sequence[Any]:
    status = int(Status.WAITING if _is_later(task) else Status.NEW)
    return (
        *task[:PLAIN_VALUES],
        *(task.max_attempts, status, task.delay_seconds, task.due_at, task.unique_key, task.version, task.stages),
    )


def _is_later(task: NewTask) -> bool:
    return task.delay_seconds is not None or task.due_at is not None


def portions(tasks: Iterable[NewTask], most_plain: int) -> Iterator[list[NewTask]]:
    """Tasks by the statement: by kind, by number, and by size too, as a server limits how long a statement may be."""
    portion: list[NewTask] = []
    size, kind, most = 0, None, most_plain
    for task in tasks:
        length = _length(task.args) + _length(task.stages)
        its_kind = _kind(task)
        if portion and (len(portion) >= most or size + length > BYTES_A_STATEMENT or its_kind != kind):
            yield portion
            portion, size = [], 0
        if not portion:
            kind, most = its_kind, _most_rows(its_kind, most_plain)
        portion.append(task)
        size += length
    if portion:
        yield portion


def _length(text: str | None) -> int:
    return 0 if text is None else len(text) * (1 if text.isascii() else MOST_BYTES_A_CHARACTER)


def _most_rows(kind: _Kind | None, most_plain: int) -> int:
    if kind is None:
        return most_plain
    most = most_plain * PLAIN_VALUES // ANY_VALUES
    return min(most, MOST_KEYED) if kind[0] else most
