"""Deadlocks between producers, workers and operators: the server breaks them, and no caller gets an error.

Each test shows that it raced. Of the two transactions of a deadlock a server undoes the smaller one, whoever's that is.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.model.new_task import NewTask
from taskserver.model.selection import Selection
from taskserver.model.task import Status
from taskserver.stores.mysql.dialect import MySQLDialect
from taskserver.stores.mysql.errors import number_of
from taskserver.stores.postgresql.dialect import PostgreSQLDialect
from taskserver.stores.postgresql.errors import state_of
from tests.support.postgresql import PostgreSQLServer
from tests.support.processes import WAIT_SECONDS
from tests.support.queues import row_counts
from tests.support.threads import together

DEADLOCK, WAITED = "deadlock", "waited"
KINDS: dict[object, str] = {1213: DEADLOCK, 1205: WAITED, "40P01": DEADLOCK, "55P03": WAITED}
"""Of errors, by their numbers and states."""
MOST_ROUNDS = 100
KEYS = [f"key {number:03}" for number in range(300)]
"""More than fit into one statement of rows with keys, so that a transaction takes them step by step."""
TASKS = """
ran = []

def note(key, version):
    ran.append((key, version))
"""


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often stores here met which error of a server's: DEADLOCK says that it broke one by undoing this side."""
    kinds: Counter[str] = Counter()
    watched: tuple[tuple[Any, Any], ...] = ((MySQLDialect, number_of), (PostgreSQLDialect, state_of))
    for dialect, number_in in watched:

        def error(self: Any, error: BaseException, error_of: Any = dialect.error, number_in: Any = number_in) -> Any:
            kinds[KINDS.get(number_in(error), "")] += 1
            return error_of(self, error)

        monkeypatch.setattr(dialect, "error", error)
    return kinds


@pytest.fixture
def hasty_postgresql_dsn(postgresql_server: PostgreSQLServer) -> Iterator[str]:
    """Of a database that looks for deadlocks before a wait for a lock is over: by default both come after a second."""
    with postgresql_server.database() as name:
        postgresql_server.execute(f"ALTER DATABASE {name} SET deadlock_timeout = '100ms'")
        yield postgresql_server.dsn(name)


@pytest.fixture(params=["mysql_dsn", "hasty_postgresql_dsn"], ids=["mysql", "postgresql"])
def server_dsn(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.mark.parametrize("is_rerun", [False, True], ids=["unique", "rerun"])
@pytest.mark.parametrize("stand", [False, True], ids=["new keys", "standing keys"])
def test_two_producers_that_add_the_same_keys_in_opposite_order_both_succeed(
    server_dsn: str, met: Counter[str], stand: bool, is_rerun: bool
) -> None:
    """Each has taken its first keys before either goes on, so that one of them must be undone, and does it again."""
    with TaskServer(server_dsn) as one, TaskServer(server_dsn) as two:
        one.create_tables()
        tasks = [NewTask("tasks.note", None, 0, 0, unique_key=key, rerun=is_rerun) for key in KEYS]
        if stand:
            one.store.producing.add_many(tasks)
        met.clear()
        both_are_inside = threading.Barrier(2)
        added: dict[str, list[int]] = {}

        def add(name: str, server: TaskServer, tasks: Sequence[NewTask]) -> None:
            adding: Any = server.store.producing._adding
            insert, first = adding.insert, iter([True])

            def insert_and_wait(tasks: Sequence[NewTask], *names: Any) -> Sequence[int]:
                ids: Sequence[int] = insert(tasks, *names)
                if next(first, False):
                    both_are_inside.wait(WAIT_SECONDS)
                return ids

            adding.insert = insert_and_wait
            added[name] = server.store.producing.add_many(tasks)

        with together(partial(add, "one", one, tasks), partial(add, "two", two, tasks[::-1])):
            pass
        # Keys that stand, and are to stay as they are, are only read on PostgreSQL.
        is_read = stand and not is_rerun and server_dsn.startswith("postgresql")
        # On a busy machine the second one may come to wait too late.
        assert (met[DEADLOCK] + met[WAITED] > 0) is not is_read
        assert added["one"] == added["two"][::-1]
        assert len(set(added["one"])) == len(KEYS)
        assert [count.rows for count in row_counts(one.store)] == [len(KEYS)]


def test_reruns_and_cancels_beside_workers_are_errors_to_nobody_and_the_newest_arguments_run_last(
    server_dsn: str, met: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"deadlock_tasks_of_{server_dsn.partition(':')[0]}"
    (tmp_path / f"{module}.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    ran: list[tuple[str, int]] = __import__(module).ran
    versions, keys, is_over = itertools.count(1), KEYS[:60], threading.Event()

    def open_server() -> TaskServer:
        return TaskServer(server_dsn, modules=module, folder=tmp_path)

    def add_all(server: TaskServer, keys: Sequence[str]) -> int:
        version = next(versions)
        task = {"task": f"{module}.note", "rerun": True, "version": version}
        assert len(server.add_tasks({**task, "args": [key, version], "unique_key": key} for key in keys)) == len(keys)
        return version

    def change(keys: Sequence[str]) -> None:
        with open_server() as server:
            for number in range(MOST_ROUNDS):
                if met[DEADLOCK] > 2 and number > 10:
                    break
                add_all(server, keys)

    def work() -> None:
        with open_server() as server:
            while not is_over.is_set():
                server.run(batch=10)

    def cancel() -> None:
        with open_server() as server:
            while not is_over.is_set():
                server.cancel(Selection(limit=20))

    with open_server() as server:
        server.create_tables()
        with together(work, work, cancel):
            try:
                with together(partial(change, keys), partial(change, keys[::-1])):
                    pass
                add_all(server, keys)
            finally:
                is_over.set()
        assert met[DEADLOCK] > 0
        # A task that was cancelled after the last change of its key does not run.
        newest = add_all(server, keys)
        result = server.run()
        assert result.failed == result.lost == 0
        assert dict(ran) == dict.fromkeys(keys, newest)
        assert {count.status for count in row_counts(server.store)} <= {Status.CANCELLED}
