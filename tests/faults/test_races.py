"""Workers that race for the same rows: real processes, which start at one word, and locks held on purpose.

Each race proves that it raced: runs overlapped, somebody waited, or claims were lost.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pymysql
import pytest

from taskserver import TaskServer
from taskserver.errors import DatabaseError
from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.mysql.dialect import MySQLDialect
from taskserver.worker.result import Reason, RunResult
from tests.support.deployment import ROOT
from tests.support.queues import server_skips_locked
from tests.support.servers import MariaDB, MySQLServer, lock_waits
from tests.support.sessions import whenever_connected

AWAIT_SECONDS = 60.0
GROUPS = (3, 5, 6)

# What a task leaves behind: a line for each run of it. A short write to the end of a file is one piece.
RACE_TASKS = """
import os, pathlib, time

LOG = os.open(pathlib.Path(__file__).resolve().parent / "ran.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(number, seconds=0.0):
    began = time.monotonic()
    if seconds:
        time.sleep(seconds)
    os.write(LOG, f"{number} {os.getpid()} {began} {time.monotonic()}\\n".encode())
"""

# A worker's process: made ready, then waiting for the word, so that its start-up is no part of the race.
RACER = """
import json, os, sys, time
from taskserver import TaskServer
import taskserver.worker.equipment, taskserver.worker.run

wish = json.loads(sys.argv[1])
server = TaskServer(wish["dsn"], mode=wish["mode"], modules="race_tasks", folder=wish["folder"])
server.store.tables.check()
if not wish["skips_locked"]:
    server.store.database.dialect.skips_locked = False
sys.path.insert(0, wish["folder"])
import race_tasks

print("ready", flush=True)
sys.stdin.readline()
total = {"done": 0, "fatal": 0, "lost": 0, "released": 0, "reasons": [], "pid": os.getpid()}
while True:
    last = not wish["until"] or os.path.exists(wish["until"])
    result = server.run(groups=wish["groups"], batch=wish["batch"])
    for name in ("done", "fatal", "lost", "released"):
        total[name] += getattr(result, name)
    if result.reason.value not in total["reasons"]:
        total["reasons"].append(result.reason.value)
    if last:
        break
    time.sleep(0.002)
print(json.dumps(total))
"""


class Ran(NamedTuple):
    """One run of a task, as the task itself noted it; the clock is one for all processes of this machine."""

    number: int
    pid: int
    began: float
    ended: float


class Outcome(NamedTuple):
    """What one worker's process says that it did."""

    pid: int
    done: int
    fatal: int
    lost: int
    released: int
    reasons: list[str]


class Race:
    """Workers' processes over one queue, in a folder of their own."""

    def __init__(self, folder: Path, dsn: str, mode: str = "delete") -> None:
        self.folder = folder
        self._wish = {"dsn": dsn, "mode": mode, "folder": str(folder), "groups": GROUPS}
        self._racers: list[subprocess.Popen[str]] = []
        (folder / "race_tasks.py").write_text(RACE_TASKS)
        (folder / "racer.py").write_text(RACER)
        with TaskServer(dsn) as server:
            server.create_tables()

    @property
    def producers_are_done(self) -> Path:
        """Once this file is there, racers with `until` make their last run."""
        return self.folder / "producers_are_done"

    def get_ready(self, workers: int, batch: int = 5, skips_locked: bool = True, until: bool = False) -> None:
        """Start the processes; returns once all of them stand at the line."""
        more = {"batch": batch, "skips_locked": skips_locked, "until": str(self.producers_are_done) if until else ""}
        for _ in range(workers):
            self._racers.append(
                subprocess.Popen(
                    [sys.executable, str(self.folder / "racer.py"), json.dumps(self._wish | more)],
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for racer in self._racers:
            assert racer.stdout is not None
            if racer.stdout.readline() != "ready\n":
                raise AssertionError(racer.communicate()[1])

    def go(self) -> None:
        for racer in self._racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()

    def outcomes(self) -> list[Outcome]:
        """Wait for all of them to end. One that ended with an error, or that said anything, fails the test."""
        found = []
        for racer in self._racers:
            output, errors = racer.communicate(timeout=AWAIT_SECONDS)
            assert racer.returncode == 0, errors
            found.append(Outcome(**json.loads(output)))
        return found

    def ran(self) -> list[Ran]:
        runs = []
        for line in (self.folder / "ran.log").read_text().splitlines():
            number, pid, began, ended = line.split()
            runs.append(Ran(int(number), int(pid), float(began), float(ended)))
        return runs

    def close(self) -> None:
        for racer in self._racers:
            if racer.poll() is None:
                racer.kill()
            racer.wait()
            for stream in (racer.stdin, racer.stdout, racer.stderr):
                if stream is not None:
                    stream.close()


@pytest.fixture
def race(tmp_path: Path) -> Iterator[Callable[..., Race]]:
    races: list[Race] = []

    def make(dsn: str, mode: str = "delete") -> Race:
        races.append(Race(tmp_path, dsn, mode))
        return races[-1]

    yield make
    for one in races:
        one.close()


def add_notes(dsn: str, numbers: Sequence[int], seconds: float = 0.0) -> None:
    """Tasks that note their number, over three groups and several priorities."""
    with TaskServer(dsn) as server:
        server.add_tasks(
            {
                "task": "race_tasks.note",
                "args": [number, seconds],
                "group_id": GROUPS[number % 3],
                "priority": number * 7 % 5,
            }
            for number in numbers
        )


def count_unfinished(dsn: str) -> int:
    with TaskServer(dsn) as server:
        return sum(count.rows for count in server.store.views.counts() if count.status != Status.DONE)


def assert_it_raced(runs: Sequence[Ran], workers: int) -> None:
    """At some instant at least half of the workers were between their first and their last task."""
    spans: dict[int, tuple[float, float]] = {}
    for run in runs:
        first, last = spans.get(run.pid, (run.began, run.ended))
        spans[run.pid] = (min(first, run.began), max(last, run.ended))
    at_once = max(sum(first <= began <= last for first, last in spans.values()) for began, _ in spans.values())
    tasks_of_each = sorted(Counter(run.pid for run in runs).values())
    assert at_once >= workers / 2, f"nothing was contended: {tasks_of_each}"


def assert_each_ran_once(runs: Sequence[Ran], count: int) -> None:
    times = Counter(run.number for run in runs)
    assert {number: n for number, n in times.items() if n != 1} == {}
    assert sorted(times) == list(range(count))


def count_deadlocks(server: MySQLServer) -> int:
    [[count]] = server.execute("SELECT `count` FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'")
    return int(count)


def drain(racing: Race, dsn: str, workers: int, count: int, skips_locked: bool = True, seconds: float = 0.0) -> None:
    """The race itself: each task ran once, by many workers at once, and nothing is left."""
    add_notes(dsn, range(count), seconds)
    racing.get_ready(workers, skips_locked=skips_locked)
    racing.go()
    outcomes = racing.outcomes()
    runs = racing.ran()
    assert_each_ran_once(runs, count)
    assert_it_raced(runs, workers)
    assert Counter(run.pid for run in runs) == {one.pid: one.done for one in outcomes if one.done}
    assert [(one.fatal, one.lost, one.released, one.reasons) for one in outcomes] == [(0, 0, 0, ["empty"])] * workers
    assert count_unfinished(dsn) == 0


# ---- draining one queue


def test_eight_workers_run_each_task_once_and_meet_no_deadlock(
    race: Callable[..., Race], mysql_server: MySQLServer, mysql_dsn: str
) -> None:
    before = count_deadlocks(mysql_server)
    drain(race(mysql_dsn), mysql_dsn, 8, 1_200)
    if server_skips_locked(mysql_dsn):
        assert count_deadlocks(mysql_server) == before


@pytest.mark.long
@pytest.mark.parametrize("mode", ["delete", "move", "mark"])
def test_sixteen_workers_run_each_task_once_and_meet_no_deadlock(
    race: Callable[..., Race], mysql_server: MySQLServer, mysql_dsn: str, mode: str
) -> None:
    before = count_deadlocks(mysql_server)
    count = 6_000
    drain(race(mysql_dsn, mode), mysql_dsn, 16, count)
    kept = {"delete": (0, 0), "move": (0, count), "mark": (count, 0)}[mode]
    tables = ("jobs_queue WHERE status = 2", "jobs_queue_done WHERE status = 2")
    database = mysql_dsn.rpartition("/")[2]
    found = [mysql_server.execute(f"SELECT COUNT(*) FROM {table}", database=database) for table in tables]
    assert found == [((number,),) for number in kept]
    if server_skips_locked(mysql_dsn):
        assert count_deadlocks(mysql_server) == before


def test_four_workers_on_sqlite_run_each_task_once(race: Callable[..., Race], sqlite_dsn: str) -> None:
    # A worker whose tasks take no time at all has the one write lock again before those who wait for it look again.
    drain(race(sqlite_dsn), sqlite_dsn, 4, 400, seconds=0.002)


def test_workers_on_a_server_without_skip_locked_run_each_task_once(race: Callable[..., Race], mysql_dsn: str) -> None:
    drain(race(mysql_dsn), mysql_dsn, 8, 600, skips_locked=False)


@pytest.mark.long
def test_sixteen_workers_on_a_server_without_skip_locked_run_each_task_once(
    race: Callable[..., Race], mysql_dsn: str
) -> None:
    drain(race(mysql_dsn), mysql_dsn, 16, 3_000, skips_locked=False)


def test_workers_where_the_binlog_holds_statements_run_each_task_once(
    race: Callable[..., Race], mariadb: MariaDB
) -> None:
    with MariaDB(False, "--log-bin", "--binlog-format=STATEMENT", "--server-id=1") as server, server.database() as name:
        racing = race(server.dsn(name))
        drain(racing, server.dsn(name), 6, 600)


# ---- a hundred workers write each number once

# One process of several workers, each a thread with a TaskServer of its own.
CROWD = """
import json, sys, threading
from taskserver import TaskServer
import taskserver.worker.equipment, taskserver.worker.run

wish = json.loads(sys.argv[1])
sys.path.insert(0, wish["folder"])
import race_tasks

race_tasks.os.getpid = threading.get_native_id  # each thread is a worker
results = []


def work():
    with TaskServer(wish["dsn"], modules="race_tasks", folder=wish["folder"], db_patience=600) as server:
        server.store.tables.check()
        line.wait()
        results.append(server.run(batch=20))


line = threading.Barrier(wish["threads"] + 1)
threads = [threading.Thread(target=work) for _ in range(wish["threads"])]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.readline()
line.wait()
for thread in threads:
    thread.join()
print(json.dumps([[result.done, result.taken, result.lost] for result in results]))
"""


def crowd_around(folder: Path, dsn: str, tasks: int, processes: int = 4, threads: int = 25) -> list[Ran]:
    """A hundred workers on so many tasks, each of which writes its number. Their runs."""
    (folder / "race_tasks.py").write_text(RACE_TASKS)
    (folder / "crowd.py").write_text(CROWD)
    with TaskServer(dsn) as server:
        server.create_tables()
    add_notes(dsn, range(tasks))
    wish = json.dumps({"dsn": dsn, "folder": str(folder), "threads": threads})
    started = [
        subprocess.Popen(
            [sys.executable, str(folder / "crowd.py"), wish],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n", process.communicate()[1]
        results: list[list[int]] = []
        outputs = list(ThreadPoolExecutor().map(lambda process: process.communicate("go\n", timeout=3600), started))
        for process, (output, errors) in zip(started, outputs, strict=True):
            assert (process.returncode, errors) == (0, "")
            results += json.loads(output)
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert len(results) == processes * threads
    assert sum(done for done, _, _ in results) == tasks
    lines = (folder / "ran.log").read_text().splitlines()
    return [
        Ran(int(number), int(worker), float(began), float(ended))
        for number, worker, began, ended in (line.split() for line in lines)
    ]


def assert_each_number_is_there_once(folder: Path, dsn: str, tasks: int) -> None:
    runs = crowd_around(folder, dsn, tasks)
    assert len(runs) == tasks
    assert {run.number for run in runs} == set(range(tasks))
    assert_it_raced(runs, 100)
    assert count_unfinished(dsn) == 0


def test_many_workers_write_each_number_once(tmp_path: Path, dsn: str) -> None:
    assert_each_number_is_there_once(tmp_path, dsn, 10_000)


@pytest.fixture(params=["sqlite", "mysql"])
def tidy_dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a server that is told to tidy up as fast as it is used.

    Else, on two cores, it gets no turn beside a hundred workers, and claims read past the entries of all tasks done.
    """
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_dsn")
        return
    server = MariaDB(False, "--innodb-max-purge-lag=2000", "--innodb-max-purge-lag-delay=20000")
    try:
        with server.database() as name:
            yield server.dsn(name)
    finally:
        server.remove()


@pytest.mark.long
def test_a_hundred_workers_write_a_hundred_thousand_numbers_once(tmp_path: Path, tidy_dsn: str) -> None:
    assert_each_number_is_there_once(tmp_path, tidy_dsn, 100_000)


# ---- beside producers


def produce(mysql_server: MySQLServer, dsn: str, each: int) -> None:
    """Three producers at once: by single tasks, by many, and by SQL with rows that are woken; so many tasks each."""

    def add_portions(first: int, add: Callable[[range], object]) -> None:
        for number in range(first, first + each, 10):
            add(range(number, number + 10))

    def add_one_by_one(numbers: range) -> None:
        for number in numbers:
            server.add_task("race_tasks.note", [number], group_id=GROUPS[number % 3])

    def add_many(numbers: range) -> None:
        server.add_tasks({"task": "race_tasks.note", "args": [number], "group_id": 5} for number in numbers)

    def add_waiting(numbers: range) -> None:
        rows = ", ".join(f"('race_tasks.note', '[{number}]', 6, 5, NOW(6))" for number in numbers)
        mysql_server.execute(
            f"INSERT INTO jobs_queue (task, args, group_id, status, due_at) VALUES {rows}",
            database=dsn.rpartition("/")[2],
        )

    with TaskServer(dsn) as server, ThreadPoolExecutor() as threads:
        producers = (add_one_by_one, add_many, add_waiting)
        list(threads.map(add_portions, range(0, 3 * each, each), producers))
        while server.store.due.wake(server.store.due.look().to_wake):
            pass


@pytest.mark.parametrize("skips_locked", [True, False], ids=["skip-locked", "no-skip-locked"])
def test_workers_beside_producers_and_woken_tasks_run_each_task_once(
    race: Callable[..., Race], mysql_server: MySQLServer, mysql_dsn: str, skips_locked: bool
) -> None:
    racing = race(mysql_dsn)
    racing.get_ready(4, batch=10, skips_locked=skips_locked, until=True)
    racing.go()
    each = 200
    produce(mysql_server, mysql_dsn, each)
    racing.producers_are_done.touch()
    outcomes = racing.outcomes()
    assert_each_ran_once(racing.ran(), 3 * each)
    assert sum(one.done for one in outcomes) == 3 * each
    assert_it_raced(racing.ran(), 4)
    assert count_unfinished(mysql_dsn) == 0


# ---- the fence, under attack


def steal_until_all_are_archived(thief: Any, count: int) -> int:
    """Takes claims away from workers, as many as there are tasks, and then lets them be. How many it took."""
    stolen = 0
    deadline = time.monotonic() + AWAIT_SECONDS
    with thief.cursor() as cursor:
        while True:
            cursor.execute("SELECT COUNT(*) FROM jobs_queue_done")
            [[archived]] = cursor.fetchall()
            if archived == count:
                return stolen
            assert time.monotonic() < deadline, f"{archived} tasks were completed"
            if stolen >= count:
                continue
            # Whose attempts are used up would be fatal, as it should be.
            cursor.execute("SELECT id FROM jobs_queue WHERE status = 1 AND attempts < 5 ORDER BY RAND() LIMIT 3")
            for (task_id,) in sorted(cursor.fetchall()):
                # Servers without SKIP LOCKED may choose the thief as a deadlock's victim.
                with suppress(pymysql.OperationalError):
                    stolen += cursor.execute(
                        "UPDATE jobs_queue SET status = 0, claim = NULL, due_at = NULL, started_at = NULL "
                        "WHERE id = %s AND status = 1",
                        (task_id,),
                    )


def test_tasks_that_are_taken_away_while_they_run_are_completed_once(
    race: Callable[..., Race], mysql_server: MySQLServer, mysql_dsn: str
) -> None:
    count = 300
    racing = race(mysql_dsn, "move")
    add_notes(mysql_dsn, range(count), 0.005)
    racing.get_ready(4, until=True)
    racing.go()
    database = mysql_dsn.rpartition("/")[2]
    with mysql_server.connect(database=database) as thief:
        stolen = steal_until_all_are_archived(thief, count)
    racing.producers_are_done.touch()
    outcomes = racing.outcomes()
    archived_ids = mysql_server.execute("SELECT id FROM jobs_queue_done", database=database)
    assert len(set(archived_ids)) == count
    assert sum(one.done for one in outcomes) == count
    lost = sum(one.lost for one in outcomes)
    assert lost > 0, f"{stolen} claims were taken away, and no worker noticed: nothing was contended"
    runs = racing.ran()
    assert {run.number for run in runs} == set(range(count))
    assert count <= len(runs) <= count + lost
    assert count_unfinished(mysql_dsn) == 0


# ---- rows that others hold


class Looks:
    """Counts a store's looks for new rows, so that a test can await them."""

    def __init__(self, store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._changed = threading.Condition()
        look = store.claims.has_new

        def counted(groups: Sequence[int]) -> bool:
            found: bool = look(groups)
            with self._changed:
                self.count += 1
                self._changed.notify_all()
            return found

        monkeypatch.setattr(store.claims, "has_new", counted)

    def wait_for(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.count >= count, AWAIT_SECONDS)


class RunInThread:
    """A run in a thread of its own; its result, or its error."""

    def __init__(self, server: TaskServer, groups: Sequence[int] | None) -> None:
        self._outcome: list[RunResult | BaseException] = []
        self._server = server
        self._groups = groups
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._server.run(groups=self._groups))
        except BaseException as error:
            self._outcome.append(error)

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def ends_within(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self.goes_on

    def result(self) -> RunResult:
        self._thread.join(AWAIT_SECONDS)
        assert not self.goes_on, "the run did not end"
        (outcome,) = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@contextmanager
def held(server: MySQLServer, dsn: str, rows: str = "status = 0") -> Iterator[Any]:
    """Holds the locks of all new rows, as a worker in its claim does; `.rollback()` lets go."""
    with server.connect(database=urlsplit(dsn).path[1:], autocommit=False) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            assert cursor.execute(f"SELECT id FROM jobs_queue WHERE {rows} FOR UPDATE")
        yield connection
        connection.rollback()


def open_race_server(dsn: str, folder: Path, patience_seconds: int = 30) -> TaskServer:
    (folder / "race_tasks.py").write_text(RACE_TASKS)
    with TaskServer(dsn, modules="race_tasks", folder=folder) as server:
        settings = server.settings
    server = TaskServer.from_settings(settings._replace(patience_seconds=patience_seconds))
    server.create_tables()
    return server


@pytest.fixture
def _race_tasks_are_imported_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", sys.path.copy())
    sys.modules.pop("race_tasks", None)
    yield
    sys.modules.pop("race_tasks", None)


@pytest.mark.usefixtures("_race_tasks_are_imported_anew")
@pytest.mark.parametrize("groups", [None, GROUPS])
@pytest.mark.parametrize("rows", ["status = 0", "id > 0"])
def test_a_run_does_not_end_as_empty_while_others_hold_all_new_rows(
    mysql_server: MySQLServer,
    mysql_dsn: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: Sequence[int] | None,
    rows: str,
) -> None:
    if not server_skips_locked(mysql_dsn):
        pytest.skip("this server has no SKIP LOCKED: its claims wait")
    with open_race_server(mysql_dsn, tmp_path) as server:
        add_notes(mysql_dsn, range(6))
        looks = Looks(server.store, monkeypatch)
        with held(mysql_server, mysql_dsn, rows) as holder:
            run = RunInThread(server, groups)
            assert looks.wait_for(4)
            assert run.goes_on
            assert not (tmp_path / "ran.log").exists()
            holder.rollback()
            result = run.result()
    assert (result.reason, result.done) == (Reason.EMPTY, 6)


@pytest.mark.usefixtures("_race_tasks_are_imported_anew")
def test_a_run_takes_the_rows_that_others_do_not_hold(
    mysql_server: MySQLServer, mysql_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not server_skips_locked(mysql_dsn):
        pytest.skip("this server has no SKIP LOCKED: its claims wait")
    with open_race_server(mysql_dsn, tmp_path) as server:
        add_notes(mysql_dsn, range(6))
        looks = Looks(server.store, monkeypatch)
        with held(mysql_server, mysql_dsn, "status = 0 AND group_id = 3") as holder:
            run = RunInThread(server, GROUPS)
            assert looks.wait_for(3)
            ran = (tmp_path / "ran.log").read_text().splitlines()
            assert sorted(int(line.split()[0]) % 3 for line in ran) == [1, 1, 2, 2]
            holder.rollback()
            result = run.result()
    assert (result.reason, result.done) == (Reason.EMPTY, 6)


@pytest.mark.usefixtures("_race_tasks_are_imported_anew")
@pytest.mark.parametrize("patience_seconds", [0, 1])
def test_a_run_whose_patience_ran_out_ends_as_crowded(
    mysql_server: MySQLServer, mysql_dsn: str, tmp_path: Path, patience_seconds: int
) -> None:
    if not server_skips_locked(mysql_dsn):
        pytest.skip("this server has no SKIP LOCKED: its claims wait")
    with open_race_server(mysql_dsn, tmp_path, patience_seconds) as server:
        add_notes(mysql_dsn, range(6))
        with held(mysql_server, mysql_dsn):
            result = server.run(groups=GROUPS)
        assert (result.reason, result.taken) == (Reason.CROWDED, 0)
        assert [(count.status, count.rows) for count in server.store.views.counts()] == [(0, 2)] * 3
        assert [run.reason for run in server.store.views.runs()] == ["crowded"]


@pytest.mark.usefixtures("_race_tasks_are_imported_anew")
def test_a_run_ends_as_empty_where_others_hold_rows_of_other_groups_alone(
    mysql_server: MySQLServer, mysql_dsn: str, tmp_path: Path
) -> None:
    with open_race_server(mysql_dsn, tmp_path) as server:
        add_notes(mysql_dsn, range(6))
        with held(mysql_server, mysql_dsn):
            result = server.run(groups=[4, 9])
    assert (result.reason, result.taken) == (Reason.EMPTY, 0)


# ---- servers without SKIP LOCKED: a claim waits for the rows' locks


def await_lock_wait(server: MySQLServer) -> None:
    deadline = time.monotonic() + AWAIT_SECONDS
    while not lock_waits(server.execute):
        assert time.monotonic() < deadline, "nobody waits for a lock"


def forbid_skip_locked(server: TaskServer) -> Store:
    assert isinstance(server.store.database.dialect, MySQLDialect)
    server.store.database.dialect.skips_locked = False
    return server.store


@pytest.mark.usefixtures("_race_tasks_are_imported_anew")
@pytest.mark.parametrize("groups", [None, GROUPS])
def test_a_claim_without_skip_locked_waits_for_the_rows_and_takes_them(
    mysql_server: MySQLServer, mysql_dsn: str, tmp_path: Path, groups: Sequence[int] | None
) -> None:
    with open_race_server(mysql_dsn, tmp_path) as server:
        add_notes(mysql_dsn, range(6))
        forbid_skip_locked(server)
        with held(mysql_server, mysql_dsn) as holder:
            run = RunInThread(server, groups)
            await_lock_wait(mysql_server)
            assert run.goes_on
            holder.rollback()
            result = run.result()
    assert (result.reason, result.done) == (Reason.EMPTY, 6)


@pytest.mark.usefixtures("_race_tasks_are_imported_anew")
def test_a_claim_without_skip_locked_that_loses_its_rows_to_another_takes_the_next_ones(
    mysql_server: MySQLServer, mysql_dsn: str, tmp_path: Path
) -> None:
    with open_race_server(mysql_dsn, tmp_path) as server:
        add_notes(mysql_dsn, range(200))
        forbid_skip_locked(server)
        with held(mysql_server, mysql_dsn) as holder:
            run = RunInThread(server, GROUPS)
            await_lock_wait(mysql_server)
            with holder.cursor() as cursor:
                # Those that the waiting claim picked, and more: it changes nothing, though others are new.
                taken = cursor.execute(
                    "UPDATE jobs_queue FORCE INDEX (claim_any_group) "
                    "SET status = 1, claim = 1, due_at = NOW(6) + INTERVAL 1 HOUR "
                    "WHERE status = 0 ORDER BY priority, id LIMIT 150"
                )
            assert taken == 150
            holder.commit()
            result = run.result()
    assert (result.reason, result.done) == (Reason.EMPTY, 50)


@pytest.mark.usefixtures("_race_tasks_are_imported_anew")
def test_a_run_without_skip_locked_whose_patience_ran_out_ends_as_crowded(
    mysql_server: MySQLServer, mysql_dsn: str, tmp_path: Path
) -> None:
    with open_race_server(mysql_dsn, tmp_path, patience_seconds=1) as server:
        add_notes(mysql_dsn, range(6))
        store = forbid_skip_locked(server)
        store.database.change("SET SESSION innodb_lock_wait_timeout = 1")
        with held(mysql_server, mysql_dsn):
            result = server.run(groups=GROUPS)
        assert (result.reason, result.taken) == (Reason.CROWDED, 0)
        assert [(count.status, count.rows) for count in server.store.views.counts()] == [(0, 2)] * 3


@pytest.mark.usefixtures("_race_tasks_are_imported_anew")
def test_a_lock_that_did_not_come_in_time_is_tried_again(
    mysql_server: MySQLServer, mysql_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_race_server(mysql_dsn, tmp_path) as server:
        add_notes(mysql_dsn, range(6))
        store = forbid_skip_locked(server)
        failures: list[int] = []
        failed = threading.Event()
        dialect = store.database.dialect
        real_error = dialect.error

        def seen_error(error: BaseException) -> DatabaseError:
            failures.append(error.args[0])
            failed.set()
            return real_error(error)

        monkeypatch.setattr(dialect, "error", seen_error)

        def be_impatient(connection: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")

        whenever_connected(store, be_impatient)
        with held(mysql_server, mysql_dsn) as holder:
            run = RunInThread(server, GROUPS)
            assert failed.wait(AWAIT_SECONDS)
            holder.rollback()
            result = run.result()
    assert set(failures) == {1205}
    assert (result.reason, result.done) == (Reason.EMPTY, 6)


# ---- SQLite: one writer at a time


@pytest.mark.usefixtures("_race_tasks_are_imported_anew")
def test_a_run_on_sqlite_waits_for_another_transaction_and_then_goes_on(sqlite_dsn: str, tmp_path: Path) -> None:
    with open_race_server(sqlite_dsn, tmp_path) as server:
        add_notes(sqlite_dsn, range(6))
        other = sqlite3.connect(sqlite_dsn.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        run = RunInThread(server, GROUPS)
        # SQLite shows nobody who waits; that the run has not ended is all that can be seen.
        assert not run.ends_within(0.5)
        other.execute("COMMIT")
        other.close()
        result = run.result()
    assert (result.reason, result.done) == (Reason.EMPTY, 6)
