"""Deadlocks between producers, workers and operators: the server breaks them, and no caller gets an error.

Each test shows that it raced. Of the two transactions of a deadlock a server undoes the smaller one, whoever's that is.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.model.new_task import NewTask
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
KEYS = [f"key {number:03}" for number in range(300)]
"""More than fit into one statement of rows with keys, so that a transaction takes them step by step."""


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
