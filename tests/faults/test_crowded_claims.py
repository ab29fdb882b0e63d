"""Claims that meet rows which others hold: they are skipped where the server can do that, and else waited for."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from taskserver import TaskServer
from taskserver.worker.result import Reason, RunResult
from tests.support.postgresql import PostgreSQLServer
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.queues import row_counts, server_skips_locked
from tests.support.servers import MySQLServer

GROUPS = (3, 5, 6)
TASKS = """
ran = []

def note(number):
    ran.append(number)
"""


class Crowd:
    """A queue of tasks whose rows others hold, and a run in another thread."""

    def __init__(
        self, folder: Path, server: MySQLServer | PostgreSQLServer, dsn: str, pool: ThreadPoolExecutor
    ) -> None:
        self._module = f"crowded_tasks_{time.monotonic_ns()}"  # a folder's name comes again
        self._server = server
        self._folder = folder
        self._pool = pool
        self.dsn = dsn
        (folder / f"{self._module}.py").write_text(TASKS)

    def open(self, tasks: int = 6, **settings: Any) -> TaskServer:
        server = TaskServer(self.dsn, modules=self._module, folder=self._folder, **settings)
        server.create_tables()
        server.add_tasks(
            {"task": f"{self._module}.note", "args": [number], "group_id": GROUPS[number % 3]}
            for number in range(tasks)
        )
        return server

    @contextmanager
    def held(self, rows: str = "status = 0") -> Iterator[Any]:
        """Holds the locks of all new rows, as a worker in its claim does; `.rollback()` lets go."""
        with self.connect() as connection:
            with connection.cursor() as cursor:
                if isinstance(self._server, MySQLServer):
                    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                cursor.execute(f"SELECT id FROM jobs_queue WHERE {rows} FOR UPDATE")
                assert cursor.fetchall()
            yield connection
            connection.rollback()

    def connect(self) -> Any:
        """A connection without autocommit."""
        name = "database" if isinstance(self._server, MySQLServer) else "dbname"
        return self._server.connect(**{name: urlsplit(self.dsn).path[1:]}, autocommit=False)

    def run(self, server: TaskServer, groups: Sequence[int] | None = GROUPS) -> Future[RunResult]:
        return self._pool.submit(server.run, groups=groups)

    def ran(self) -> list[int]:
        return sorted(getattr(sys.modules.get(self._module), "ran", []))

    def await_lock_wait(self) -> None:
        wait_until(self._server.count_lock_waits)


@pytest.fixture
def crowd(tmp_path: Path, mysql_server: MySQLServer, mysql_dsn: str) -> Iterator[Crowd]:
    with ThreadPoolExecutor() as pool:
        yield Crowd(tmp_path, mysql_server, mysql_dsn, pool)


@pytest.fixture
def skipping_mysql_crowd(crowd: Crowd) -> Crowd:
    if not server_skips_locked(crowd.dsn):
        pytest.skip("this server has no SKIP LOCKED: its claims wait")
    return crowd


@pytest.fixture
def skipping_postgresql_crowd(
    tmp_path: Path, postgresql_server: PostgreSQLServer, postgresql_dsn: str
) -> Iterator[Crowd]:
    with ThreadPoolExecutor() as pool:
        yield Crowd(tmp_path, postgresql_server, postgresql_dsn, pool)


@pytest.fixture(params=["mysql", "postgresql"])
def skipping_crowd(request: pytest.FixtureRequest) -> Crowd:
    chosen = request.getfixturevalue(f"skipping_{request.param}_crowd")
    assert isinstance(chosen, Crowd)
    return chosen


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Callable[[TaskServer], list[bool]]:
    """Of a server for new rows: what each of them found."""

    def watch(server: TaskServer) -> list[bool]:
        found: list[bool] = []
        look = server.store.claims.has_new

        def noted(groups: Sequence[int]) -> bool:
            found.append(look(groups))
            return found[-1]

        monkeypatch.setattr(server.store.claims, "has_new", noted)
        return found

    return watch


@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("rows", ["status = 0", "id > 0"])
def test_a_run_does_not_end_as_empty_while_others_hold_all_new_rows(
    skipping_crowd: Crowd, looks: Callable[[TaskServer], list[bool]], groups: Sequence[int] | None, rows: str
) -> None:
    with skipping_crowd.open() as server, skipping_crowd.held(rows) as holder:
        found = looks(server)
        run = skipping_crowd.run(server, groups)
        wait_until(lambda: len(found) >= 4)
        assert not run.done()
        assert skipping_crowd.ran() == []
        holder.rollback()
        result = run.result(WAIT_SECONDS)
    assert (result.reason, result.done) == (Reason.EMPTY, 6)


def test_a_run_takes_the_rows_that_others_do_not_hold(
    skipping_crowd: Crowd, looks: Callable[[TaskServer], list[bool]]
) -> None:
    with skipping_crowd.open() as server, skipping_crowd.held("status = 0 AND group_id = 3") as holder:
        found = looks(server)
        run = skipping_crowd.run(server)
        wait_until(lambda: len(found) >= 3)
        assert skipping_crowd.ran() == [1, 2, 4, 5]
        holder.rollback()
        result = run.result(WAIT_SECONDS)
    assert (result.reason, result.done) == (Reason.EMPTY, 6)


@pytest.mark.long
def test_a_lock_on_the_whole_table_is_waited_for_by_looking_again(
    skipping_crowd: Crowd, looks: Callable[[TaskServer], list[bool]]
) -> None:
    """As a backup sets it: no single row could be had, and a signal is heard between two looks."""
    with skipping_crowd.open() as server, skipping_crowd.connect() as backup:
        with backup.cursor() as cursor:
            is_mysql = skipping_crowd.dsn.startswith("mysql")
            cursor.execute("LOCK TABLES jobs_queue READ" if is_mysql else "LOCK TABLE jobs_queue IN SHARE MODE")
            found = looks(server)
            run = skipping_crowd.run(server)
            wait_until(lambda: len(found) >= 2)
            cursor.execute("UNLOCK TABLES" if is_mysql else "ROLLBACK")
        result = run.result(WAIT_SECONDS)
    assert (result.reason, result.done) == (Reason.EMPTY, 6)


@pytest.mark.long
@pytest.mark.parametrize("db_patience", [0, 1])
def test_a_run_whose_patience_ran_out_ends_as_crowded(skipping_crowd: Crowd, db_patience: int) -> None:
    with skipping_crowd.open(db_patience=db_patience) as server, skipping_crowd.held():
        assert_crowded(server)


def assert_crowded(server: TaskServer) -> None:
    result = server.run(groups=GROUPS)
    assert (result.reason, result.taken) == (Reason.CROWDED, 0)
    assert [(count.status, count.rows) for count in row_counts(server.store)] == [(0, 2)] * 3
    assert [run.reason for run in server.store.views.runs()] == ["crowded"]


@pytest.mark.long
def test_a_run_ends_as_empty_where_others_hold_rows_of_other_groups_alone(crowd: Crowd) -> None:
    with crowd.open() as server, crowd.held():
        result = server.run(groups=[4, 9])
    assert (result.reason, result.taken) == (Reason.EMPTY, 0)


# ---- servers without SKIP LOCKED: a claim waits for the rows' locks


@contextmanager
def without_skip_locked(crowd: Crowd, tasks: int = 6, **settings: Any) -> Iterator[TaskServer]:
    with crowd.open(tasks, **settings) as server:
        server.store.database.dialect.skips_locked = False
        yield server


@pytest.mark.parametrize("groups", [None, GROUPS])
def test_a_claim_without_skip_locked_waits_for_the_rows_and_takes_them(
    crowd: Crowd, groups: Sequence[int] | None
) -> None:
    with without_skip_locked(crowd) as server, crowd.held() as holder:
        run = crowd.run(server, groups)
        crowd.await_lock_wait()
        assert not run.done()
        holder.rollback()
        result = run.result(WAIT_SECONDS)
    assert (result.reason, result.done) == (Reason.EMPTY, 6)
