"""What a store can do with the queue, in the order of a task's life, and the SQL that all databases share.

Stands between the runner and a database: nothing above sees SQL, a cursor or a driver's error. A dialect
(mysql.py, sqlite.py) says how it connects, how it claims, and the words in which it differs.

Three rules hold for every write to a claimed row: it names the row by its primary key, it names the claim
token, and it counts the rows that it matched. The token decides who may write, never the clock.
"""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, cast

from ..errors import Conflict, TablesMissing, TablesOutdated
from ..task import Claim, ClaimedTask, Finish, NewTask, Start, Status
from .database import Database, P, Write, marks, with_ids
from .rows import INSTANTS, QUEUE_COLUMNS, LastRun, QueueCount, RunCounts, StoredTask, stored_task

SCHEMA_VERSION = 1
HELD_PATIENCE_SECONDS = 0.2
"""For deadlocks, on servers without SKIP LOCKED; longer waits are the runner's, which hears of signals between."""

INLINE_ARGS_BYTES = 16 * 1024
"""Longer arguments stay in the database until their task's turn: a thousand times 1 MiB fits into no small host."""

BYTES_A_STATEMENT = 400_000
"""Old servers take 1 MiB a statement, and quoting may double it."""
MOST_BYTES_A_CHARACTER = 4
IDS_A_STATEMENT = 500
"""Old SQLite binds 999 values a statement."""


class Store(Database):
    """The queue in one database."""

    # The words in which dialects differ.
    now: str
    after: str
    """The instant that lies a bound number of seconds after now."""
    seconds_since: str
    """The age in seconds of the instant `{}`."""
    instant_text: str
    """The instant `{}` as YYYY-MM-DD HH:MM:SS.ffffff."""
    bytes_of: str
    """The length of the text `{}` in bytes."""
    insert_or_ignore: str
    quoted: str
    """A table's name `{}` in the dialect's quotes."""
    schema_file: str
    rows_a_statement = 1000
    upgrades: ClassVar[dict[int, tuple[str, ...]]] = {}
    """From version n to n + 1: the statements that the schema file, which makes the newest tables, does not hold."""

    def __init__(self, table: str, mode: str, lease_seconds: int, patience_seconds: float) -> None:
        super().__init__(patience_seconds)
        self.table = table
        self.mode = mode
        self._lease_seconds = lease_seconds
        self._words = self._make_words(table)

    # ---- tables

    VERSION = "SELECT MAX(version) FROM {schema}"
    TABLES_ARE_OURS = "SELECT {columns} FROM {table} WHERE id = 0"
    SET_VERSION = "{insert_or_ignore} INTO {schema} (version) VALUES (?)"

    def create_tables(self) -> None:
        """Make the tables, or bring older ones up to date; safe to repeat."""
        try:
            version = self._version()
        except TablesMissing:
            version = None
        if version is not None:
            for step in range(version, SCHEMA_VERSION):
                self._upgrade_from(step)
        for statement in self._schema_statements():
            self._alone(self._execute, statement)
        self.check_tables()
        self._alone(self._one, self.TABLES_ARE_OURS)

    def _version(self) -> int | None:
        """The version that the tables record; None where they record none."""
        return cast("int | None", self._alone(self._one, self.VERSION)[0])

    def _upgrade_from(self, version: int) -> None:
        for statement in self.upgrades.get(version, ()):
            self._alone(self._execute, statement)
        self._alone(self._execute, self.SET_VERSION, (version + 1,))

    def check_tables(self) -> None:
        """Raises TablesMissing or TablesOutdated unless the tables are of this program's version."""
        version = self._version()
        if version is None or version < SCHEMA_VERSION:
            raise TablesOutdated(
                f"the tables of {self.table} have version {version or 0}, this program needs {SCHEMA_VERSION}: "
                "run client.py init"
            )
        if version > SCHEMA_VERSION:
            raise TablesOutdated(
                f"the tables of {self.table} have version {version}, this program knows {SCHEMA_VERSION}: "
                "upload the newer taskserver here too"
            )

    # ---- add: → new

    ADD = "INSERT INTO {table} (task, args, group_id, priority) VALUES "
    ADD_ROW = "(?, ?, ?, ?)"
    ADD_ONE = ADD + ADD_ROW

    def add(self, task: NewTask) -> int:
        """→ new. The id of the row."""
        return self._alone(self._insert_one, task)

    def add_many(self, tasks: Iterable[NewTask], added: Callable[[range], object]) -> None:
        """→ new, all or none; `added` hears of the ids of each statement, which count once this returns."""

        def insert_all() -> None:
            for portion in _portions(tasks, self.rows_a_statement):
                added(self._insert(portion))

        # Not repeated after a conflict: what an iterator has given is gone.
        self._in_transaction(insert_all, patience_seconds=0)

    def _insert_one(self, task: NewTask) -> int:
        new_id: int = self._execute(self.ADD_ONE, task).lastrowid
        return new_id

    def _insert(self, tasks: Sequence[NewTask]) -> range:
        rows = ", ".join([self.ADD_ROW] * len(tasks))
        cursor = self._execute(self.ADD + rows, [value for task in tasks for value in task])
        return self._inserted_ids(cursor, len(tasks))

    @abstractmethod
    def _inserted_ids(self, cursor: Any, count: int) -> range:
        """The ids of the rows that this cursor's INSERT just made."""

    # ---- wake: waiting, error → new

    DUE = """
        SELECT id FROM (SELECT id FROM {table} WHERE status = 3 AND due_at <= {now} ORDER BY due_at LIMIT ?) AS failed
        UNION ALL
        SELECT id FROM (SELECT id FROM {table} WHERE status = 5 AND due_at <= {now} ORDER BY due_at LIMIT ?) AS waiting
    """
    WAKE = """
        UPDATE {table} SET status = 0, due_at = NULL, updated_at = {now}
        WHERE id IN ({ids}) AND status IN (3, 5) AND due_at <= {now}
    """

    def wake(self) -> int:
        """waiting, error → new for rows whose time has come, oldest first, a portion at most. How many."""
        # Looked up without locks and updated by primary key: an UPDATE over the range deadlocks with claims.
        limit = IDS_A_STATEMENT // 2
        ids = sorted(row[0] for row in self._alone(self._all, self.DUE, (limit, limit)))
        if not ids:
            return 0
        return self._unless_held(self._write_ids, self.WAKE, ids)

    def _unless_held(self, write: Callable[P, int], *args: P.args, **kwargs: P.kwargs) -> int:
        """How many rows a write changed: none where others hold one of them, to be looked at again in the next turn."""
        try:
            return self._retry_conflicts(HELD_PATIENCE_SECONDS, None, write, *args, **kwargs)
        except Conflict:
            return 0

    # ---- claim: new → in progress

    READ_CLAIM = """
        SELECT id, task, CASE WHEN {args_bytes} <= {inline_bytes} THEN args END, {args_bytes},
            attempts, max_attempts, claim
        FROM {table} WHERE status = 1 AND claim = ? ORDER BY priority, id
    """
    READ_ARGS = "SELECT args FROM {table} WHERE id = ? AND status = 1 AND claim = ?"

    def claim(self, limit: int, groups: Sequence[int]) -> Claim:
        """New → in progress for up to `limit` rows of `groups` (none: of all), in order of priority, then id.

        A new row whose due_at lies ahead that is met on the way becomes waiting instead. Where others hold the rows
        it gets nothing, rather than to wait for them: the caller looks again.
        """
        token = int.from_bytes(os.urandom(8), "big") >> 1
        changed = self._unless_held(self._claim, token, limit, groups)
        if not changed:
            return Claim([], 0)
        rows = self._alone(self._all, self.READ_CLAIM, (token,))
        return Claim([ClaimedTask(*row) for row in rows], changed)

    @abstractmethod
    def _claim(self, token: int, limit: int, groups: Sequence[int]) -> int:
        """The one claiming UPDATE. How many rows it changed."""

    @abstractmethod
    def has_new(self, groups: Sequence[int]) -> bool:
        """Whether a plain look, which takes no locks and waits for none, finds a new row in these groups."""

    def fetch_args(self, task: ClaimedTask) -> str | None:
        """The arguments that the claim left in the database. None if the claim was lost, too."""
        row = self._alone(self._first, self.READ_ARGS, (task.id, task.claim))
        return row[0] if row else None

    # ---- start, finish: in progress → done, fatal

    START = """
        UPDATE {table}
        SET attempts = attempts + 1, max_attempts = ?, started_at = {now}, due_at = {after},
            updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ? AND started_at IS NULL
    """
    DELETE = "DELETE FROM {table} WHERE id = ? AND status = 1 AND claim = ?"
    MARK = """
        UPDATE {table}
        SET status = 2, claim = NULL, due_at = NULL, error_text = NULL, finished_at = {now}, updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ?
    """
    # A move is three writes in one transaction. The first takes the row's lock and says whether the claim still
    # stands; the others find only what it left, by a token that no other row of status 2 has.
    MARK_TO_MOVE = MARK.replace(" claim = NULL,", "")
    ARCHIVE = """
        INSERT INTO {done} ({columns}) SELECT {archived_columns} FROM {table} WHERE id = ? AND status = 2 AND claim = ?
    """
    DELETE_ARCHIVED = "DELETE FROM {table} WHERE id = ? AND status = 2 AND claim = ?"
    FAIL = """
        UPDATE {table}
        SET status = 4, claim = NULL, due_at = NULL, error_text = ?, finished_at = {now}, updated_at = {now}
        WHERE id = ? AND status = 1 AND claim = ?
    """

    def advance(self, finishes: Sequence[Finish], start: Start | None) -> tuple[list[bool], bool]:
        """Finish tasks and start the next one in one commit.

        in progress → gone, archived, done or fatal; in progress, unstarted → in progress, started.
        For each finish, and for the start, whether the row still carried our claim.
        """
        writes = [self._writes_of(finish) for finish in finishes]
        if start is not None:
            writes.append([(self.START, (start.max_attempts, self._lease_seconds, start.task.id, start.task.claim))])
        if not writes:
            return [], False
        matched = self._together([write for several in writes for write in several])
        # The first write of each tells; those that follow it in a move find what it found.
        firsts = accumulate((len(several) for several in writes[:-1]), initial=0)
        found = [matched[first] == 1 for first in firsts]
        return found[: len(finishes)], found[-1] if start is not None else False

    def _writes_of(self, finish: Finish) -> list[Write]:
        which = (finish.task.id, finish.task.claim)
        if finish.error_text is not None:
            return [(self.FAIL, (finish.error_text, *which))]
        return [(sql, which) for sql in self.COMPLETE[self.mode]]

    COMPLETE: ClassVar = {"delete": (DELETE,), "mark": (MARK,), "move": (MARK_TO_MOVE, ARCHIVE, DELETE_ARCHIVED)}

    # ---- release: in progress, unstarted → new

    RELEASE = """
        UPDATE {table} SET status = 0, claim = NULL, due_at = NULL, updated_at = {now}
        WHERE id IN ({ids}) AND status = 1 AND claim = ? AND started_at IS NULL
    """

    def release(self, tasks: Collection[ClaimedTask]) -> int:
        """In progress → new for tasks of one claim that were not started; nothing is counted. How many."""
        ids = sorted(task.id for task in tasks)
        claim = next(task.claim for task in tasks)
        released = 0
        for first in range(0, len(ids), IDS_A_STATEMENT):
            portion = ids[first : first + IDS_A_STATEMENT]
            released += self._alone(self._write_ids, self.RELEASE, portion, (claim,))
        return released

    # ---- the record of runs

    RUN_BEGINS = """
        UPDATE {workers} SET pid = ?, started_at = {now}, ended_at = NULL, reason = NULL,
            taken = 0, done = 0, fatal = 0, lost = 0, released = 0
        WHERE host = ? AND group_ids = ?
    """
    FIRST_RUN_BEGINS = "{insert_or_ignore} INTO {workers} (pid, host, group_ids, started_at) VALUES (?, ?, ?, {now})"
    RUN_ENDS = """
        UPDATE {workers} SET pid = ?, started_at = {after}, ended_at = {now}, reason = ?,
            taken = ?, done = ?, fatal = ?, lost = ?, released = ?
        WHERE host = ? AND group_ids = ?
    """

    def begin_run(self, host: str, group_ids: str) -> None:
        """Record that a run begins here."""
        who = (os.getpid(), host, group_ids)
        if not self._alone(self._write, self.RUN_BEGINS, who):
            self._alone(self._write, self.FIRST_RUN_BEGINS, who)

    def end_run(self, host: str, group_ids: str, seconds: float, reason: str, counts: RunCounts) -> None:
        """Record how the run ended that began so many seconds ago; one that ran beside it may have written since."""
        values = (os.getpid(), -seconds, reason, *counts, host, group_ids)
        self._alone(self._write, self.RUN_ENDS, values)

    # ---- what operators read

    COUNTS = """
        SELECT group_id, status, COUNT(*), MIN(id) FROM {table} GROUP BY status, group_id ORDER BY group_id, status
    """
    AGES = "SELECT id, {created_at_age} FROM {table} WHERE id IN ({ids})"
    RUNS = """
        SELECT host, group_ids, pid, {started_at_text}, {started_at_age}, {ended_at_text}, reason,
            taken, done, fatal, lost, released
        FROM {workers} ORDER BY host, group_ids
    """
    LIST = "SELECT {readable}, 0 FROM {table}"
    SHOW = "SELECT {readable}, 0 FROM {table} WHERE id = ?"
    SHOW_ARCHIVED = "SELECT {readable}, 1 FROM {done} WHERE id = ? ORDER BY done_id DESC LIMIT 1"

    def counts(self) -> list[QueueCount]:
        """Rows by group and status. One pass over an index; of new rows the one of the smallest id is the oldest."""
        rows = self._alone(self._all, self.COUNTS)
        oldest = [row[3] for row in rows if row[1] == Status.NEW]
        ages: dict[int, float] = {}
        for first in range(0, len(oldest), IDS_A_STATEMENT):
            ids = oldest[first : first + IDS_A_STATEMENT]
            found = self._alone(self._all, with_ids(self.AGES, ids), ids)
            ages.update((row[0], float(row[1])) for row in found)
        return [QueueCount(group, status, count, ages.get(least)) for group, status, count, least in rows]

    def runs(self) -> list[LastRun]:
        """The last run of each host and groups."""
        return [LastRun(*row) for row in self._alone(self._all, self.RUNS)]

    def list(self, statuses: Sequence[int], groups: Sequence[int], limit: int) -> list[StoredTask]:
        """The newest tasks of these statuses and groups (none: of all)."""
        wanted = {"status": statuses, "group_id": groups}
        conditions = [f"{column} IN ({marks(len(values))})" for column, values in wanted.items() if values]
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        sql = f"{self.LIST}{where} ORDER BY id DESC LIMIT ?"
        return [stored_task(row) for row in self._alone(self._all, sql, (*statuses, *groups, limit))]

    def show(self, task_id: int) -> StoredTask | None:
        """One task, from the queue or else from the archive, where of several with this id the last one counts."""
        row = self._alone(self._first, self.SHOW, (task_id,))
        row = row or self._alone(self._first, self.SHOW_ARCHIVED, (task_id,))
        return stored_task(row) if row else None

    # ---- words

    def _make_words(self, table: str) -> dict[str, str]:
        words = {
            "table": self.quoted.format(table),
            "done": self.quoted.format(f"{table}_done"),
            "workers": self.quoted.format(f"{table}_workers"),
            "schema": self.quoted.format(f"{table}_schema"),
            "now": self.now,
            "after": self.after,
            "columns": QUEUE_COLUMNS,
            "archived_columns": QUEUE_COLUMNS.replace("claim", "NULL"),
            "args_bytes": self.bytes_of.format("args"),
            "inline_bytes": str(INLINE_ARGS_BYTES),
            "insert_or_ignore": self.insert_or_ignore,
        }
        for column in INSTANTS:
            words[f"{column}_text"] = self.instant_text.format(column)
            words[f"{column}_age"] = self.seconds_since.format(column)
        readable = (words.get(f"{column}_text", column) for column in QUEUE_COLUMNS.split(", "))
        return words | {"readable": ", ".join(readable)}

    def _named(self, text: str) -> str:
        # In quotes: `order` is an allowed name, too.
        return re.sub(r"jobs_queue(\w*)", lambda found: self.quoted.format(self.table + found[1]), text)

    def _schema_statements(self) -> Iterator[str]:
        text = Path(__file__).with_name(self.schema_file).read_text(encoding="utf-8")
        lines = (line.partition("-- ")[0].rstrip() for line in text.splitlines() if not line.startswith("--"))
        for statement in self._named("\n".join(lines)).split(";"):
            if statement.strip():
                yield statement.strip()

    def _missing(self, what: str) -> TablesMissing:
        return TablesMissing(f"{what}: run client.py init")


def _portions(tasks: Iterable[NewTask], most_rows: int) -> Iterator[list[NewTask]]:
    """Tasks by the statement: by number, and by size too, as a server limits how long a statement may be."""
    portion: list[NewTask] = []
    size = 0
    for task in tasks:
        args = task.args or ""
        length = len(args) * (1 if args.isascii() else MOST_BYTES_A_CHARACTER)
        if len(portion) == most_rows or (portion and size + length > BYTES_A_STATEMENT):
            yield portion
            portion, size = [], 0
        portion.append(task)
        size += length
    if portion:
        yield portion
