"""Workers that race for the same rows: real processes, which start at one word.

Each race proves that it raced: runs overlapped, somebody waited, or claims were lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pymysql
import pytest

from taskserver import TaskServer
from taskserver.model.task import Status
from tests.support.deployment import ROOT
from tests.support.postgresql import PostgreSQLServer
from tests.support.queues import row_counts, server_skips_locked
from tests.support.servers import MariaDB, MySQLServer

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

# Workers in one process, each a thread with a TaskServer of its own: made ready, then waiting for the word, so that
# their start-up is no part of the race.
RACER = """
import json, os, sys, threading, time
from taskserver import TaskServer
import taskserver.worker.run_context, taskserver.worker.run

wish = json.loads(sys.argv[1])
sys.path.insert(0, wish["folder"])
import race_tasks

race_tasks.os.getpid = threading.get_native_id  # each thread is a worker
totals = []


def work():
    settings = {"mode": wish["mode"], "db_patience": wish["db_patience"]}
    with TaskServer(wish["dsn"], modules="race_tasks", folder=wish["folder"], **settings) as server:
        server.store.tables.check()
        if not wish["skips_locked"]:
            server.store.database.dialect.skips_locked = False
        line.wait()
        total = {"pid": threading.get_native_id(), "done": 0, "fatal": 0, "lost": 0, "reasons": []}
        while True:
            last = not wish["until"] or os.path.exists(wish["until"])
            result = server.run(groups=wish["groups"], batch=wish["batch"])
            for name in ("done", "fatal", "lost"):
                total[name] += getattr(result, name)
            if result.reason.value not in total["reasons"]:
                total["reasons"].append(result.reason.value)
            if last:
                break
            time.sleep(0.002)
        totals.append(total)


line = threading.Barrier(wish["threads"] + 1)
threads = [threading.Thread(target=work) for _ in range(wish["threads"])]
for thread in threads:
    thread.start()
print("ready", flush=True)
sys.stdin.readline()
line.wait()
for thread in threads:
    thread.join()
print(json.dumps(totals))
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
    reasons: list[str]


class Race:
    """Workers over one queue, in processes of theirs and a folder of their own."""

    def __init__(self, folder: Path, dsn: str, mode: str = "delete") -> None:
        self.folder = folder
        self._wish = {"dsn": dsn, "mode": mode, "folder": str(folder), "groups": GROUPS, "db_patience": 30}
        self._racers: list[subprocess.Popen[str]] = []
        (folder / "race_tasks.py").write_text(RACE_TASKS)
        (folder / "racer.py").write_text(RACER)
        with TaskServer(dsn) as server:
            server.create_tables()

    @property
    def producers_are_done(self) -> Path:
        """Once this file is there, racers with `until` make their last run."""
        return self.folder / "producers_are_done"

    def get_ready(self, processes: int, until: bool = False, **wish: object) -> None:
        """Start the workers; returns once all of them stand at the line."""
        usual = {"threads": 1, "batch": 5, "skips_locked": True}
        more = {**usual, "until": str(self.producers_are_done) if until else "", **wish}
        for _ in range(processes):
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

    def outcomes(self, timeout: float = AWAIT_SECONDS) -> list[Outcome]:
        """Wait for all of them to end. One that ended with an error fails the test."""
        found = []
        for racer in self._racers:
            output, errors = racer.communicate(timeout=timeout)
            assert racer.returncode == 0, errors
            found += [Outcome(**outcome) for outcome in json.loads(output)]
        return found

    def ran(self) -> list[Ran]:
        lines = (line.split() for line in (self.folder / "ran.log").read_text().splitlines())
        return [Ran(int(number), int(pid), float(began), float(ended)) for number, pid, began, ended in lines]

    def close(self) -> None:
        for racer in self._racers:
            if racer.poll() is None:
                racer.kill()
                racer.communicate()


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
        return sum(count.rows for count in row_counts(server.store) if count.status != Status.DONE)


def assert_it_raced(runs: Sequence[Ran], workers: int) -> None:
    """At some instant at least a quarter of the workers were between their first and their last task."""
    spans: dict[int, tuple[float, float]] = {}
    for run in runs:
        first, last = spans.get(run.pid, (run.began, run.ended))
        spans[run.pid] = (min(first, run.began), max(last, run.ended))
    at_once = max(sum(first <= began <= last for first, last in spans.values()) for began, _ in spans.values())
    tasks_of_each = sorted(Counter(run.pid for run in runs).values())
    assert at_once >= workers / 4, f"nothing was contended: {tasks_of_each}"


def assert_each_ran_once(runs: Sequence[Ran], count: int, dsn: str) -> None:
    times = Counter(run.number for run in runs)
    assert [run for run in runs if times[run.number] > 1] == []
    unfinished = f"SELECT * FROM jobs_queue WHERE status <> {Status.DONE:d}"
    with TaskServer(dsn) as server:
        assert sorted(times) == list(range(count)), server.store.database.fetch(unfinished)


Server: TypeAlias = MySQLServer | PostgreSQLServer


@pytest.fixture(params=["mysql", "postgresql"])
def server(request: pytest.FixtureRequest) -> Server:
    chosen = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(chosen, (MySQLServer, PostgreSQLServer))
    return chosen


@pytest.fixture
def server_dsn(server: Server) -> Iterator[str]:
    with server.database() as name:
        yield server.dsn(name)


def count_deadlocks(server: Server) -> int:
    if isinstance(server, PostgreSQLServer):
        [[count]] = server.execute("SELECT SUM(deadlocks) FROM pg_stat_database")
    else:
        [[count]] = server.execute(
            "SELECT `count` FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
        )
    return int(count)


def drain(racing: Race, dsn: str, workers: int, count: int, skips_locked: bool = True, seconds: float = 0.0) -> None:
    """The race itself: each task ran once, by many workers at once, and nothing is left."""
    add_notes(dsn, range(count), seconds)
    racing.get_ready(workers, skips_locked=skips_locked)
    racing.go()
    outcomes = racing.outcomes()
    runs = racing.ran()
    assert_each_ran_once(runs, count, dsn)
    assert_it_raced(runs, workers)
    assert Counter(run.pid for run in runs) == {one.pid: one.done for one in outcomes if one.done}
    assert [(one.fatal, one.lost, one.reasons) for one in outcomes] == [(0, 0, ["empty"])] * workers
    assert count_unfinished(dsn) == 0


# ---- draining one queue


@pytest.mark.parametrize(
    ("workers", "count", "mode"),
    [
        (8, 1_200, "move"),
        *(pytest.param(16, 6_000, mode, marks=pytest.mark.long) for mode in ("delete", "move", "mark")),
    ],
)
def test_many_workers_run_each_task_once_and_meet_no_deadlock(
    race: Callable[..., Race], server: Server, server_dsn: str, workers: int, count: int, mode: str
) -> None:
    before = count_deadlocks(server)
    drain(race(server_dsn, mode), server_dsn, workers, count)
    kept = {"delete": (0, 0), "move": (0, count), "mark": (count, 0)}[mode]
    tables = ("jobs_queue WHERE status = 2", "jobs_queue_done WHERE status = 2")
    database = server_dsn.rpartition("/")[2]
    found = [server.execute(f"SELECT COUNT(*) FROM {table}", database=database) for table in tables]
    assert [int(rows[0][0]) for rows in found] == list(kept)
    if server_skips_locked(server_dsn):
        assert count_deadlocks(server) == before


@pytest.mark.long
def test_four_workers_on_sqlite_run_each_task_once(race: Callable[..., Race], sqlite_dsn: str) -> None:
    # A worker whose tasks take no time at all has the one write lock again before those who wait for it look again.
    drain(race(sqlite_dsn), sqlite_dsn, 4, 400, seconds=0.002)


@pytest.mark.long
@pytest.mark.parametrize(("workers", "count"), [(8, 600), pytest.param(16, 3_000, marks=pytest.mark.long)])
def test_workers_on_a_server_without_skip_locked_run_each_task_once(
    race: Callable[..., Race], mysql_dsn: str, workers: int, count: int
) -> None:
    drain(race(mysql_dsn), mysql_dsn, workers, count, skips_locked=False)


# ---- a hundred workers write each number once


def assert_each_number_is_there_once(
    racing: Race, dsn: str, tasks: int, threads: int = 25, batch: int = 20, seconds: float = 0.0
) -> None:
    """Four processes of so many workers on so many tasks, each of which writes its number."""
    workers = 4 * threads
    add_notes(dsn, range(tasks), seconds)
    racing.get_ready(4, threads=threads, batch=batch, db_patience=600)
    racing.go()
    outcomes = racing.outcomes(timeout=3600)
    assert len(outcomes) == workers
    assert sum(one.done for one in outcomes) == tasks, (count_unfinished(dsn), outcomes)
    assert_each_ran_once(racing.ran(), tasks, dsn)
    assert_it_raced(racing.ran(), workers)
    assert count_unfinished(dsn) == 0


def test_many_workers_write_each_number_once(race: Callable[..., Race], dsn: str) -> None:
    if dsn.startswith("sqlite") or not server_skips_locked(dsn):
        # There workers take turns, and most of their time they wait; as above for how long a task takes.
        assert_each_number_is_there_once(race(dsn), dsn, 1_000, threads=10, batch=5, seconds=0.01)
    else:
        assert_each_number_is_there_once(race(dsn), dsn, 1_000, batch=5)


@pytest.fixture(params=["sqlite", "mysql", "postgresql"])
def tidy_dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a server that is told to tidy up as fast as it is used.

    Else, on two cores, it gets no turn beside a hundred workers, and claims read past the entries of all tasks done.
    """
    if request.param != "mysql":
        yield request.getfixturevalue(f"{request.param}_dsn")
        return
    server = MariaDB(False, "--innodb-max-purge-lag=2000", "--innodb-max-purge-lag-delay=20000")
    try:
        with server.database() as name:
            yield server.dsn(name)
    finally:
        server.remove()


@pytest.mark.long
def test_a_hundred_workers_write_a_hundred_thousand_numbers_once(race: Callable[..., Race], tidy_dsn: str) -> None:
    assert_each_number_is_there_once(race(tidy_dsn), tidy_dsn, 100_000)


# ---- beside producers


# ---- the fence, under attack


def steal_until_all_are_archived(thief: Any, count: int, chance: str) -> int:
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
            cursor.execute(f"SELECT id FROM jobs_queue WHERE status = 1 AND attempts < 5 ORDER BY {chance} LIMIT 3")
            for (task_id,) in sorted(cursor.fetchall()):
                # Servers without SKIP LOCKED may choose the thief as a deadlock's victim.
                with suppress(pymysql.OperationalError):
                    cursor.execute(
                        "UPDATE jobs_queue SET status = 0, claim = NULL, due_at = NULL, started_at = NULL "
                        "WHERE id = %s AND status = 1",
                        (task_id,),
                    )
                    stolen += cursor.rowcount


@pytest.mark.long
def test_tasks_that_are_taken_away_while_they_run_are_completed_once(
    race: Callable[..., Race], server: Server, server_dsn: str
) -> None:
    count = 300
    racing = race(server_dsn, "move")
    add_notes(server_dsn, range(count), 0.005)
    racing.get_ready(4, until=True)
    racing.go()
    database = server_dsn.rpartition("/")[2]
    is_mysql = isinstance(server, MySQLServer)
    with server.connect(**{"database" if is_mysql else "dbname": database}) as thief:
        stolen = steal_until_all_are_archived(thief, count, "RAND()" if is_mysql else "RANDOM()")
    racing.producers_are_done.touch()
    outcomes = racing.outcomes()
    archived_ids = server.execute("SELECT id FROM jobs_queue_done", database=database)
    assert len(set(archived_ids)) == count
    assert sum(one.done for one in outcomes) == count
    lost = sum(one.lost for one in outcomes)
    assert lost > 0, f"{stolen} claims were taken away, and no worker noticed: nothing was contended"
    runs = racing.ran()
    assert {run.number for run in runs} == set(range(count))
    assert count <= len(runs) <= count + lost
    assert count_unfinished(server_dsn) == 0
