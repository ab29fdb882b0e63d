"""Workers that race for the same rows: real processes, which start at one word.

Each race proves that it raced: runs overlapped, or claims were lost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

import pymysql
import pytest

from taskserver import TaskServer
from tests.support.databases import EACH_SERVER
from tests.support.deployment import ROOT
from tests.support.queues import server_skips_locked
from tests.support.rows import Rows

PROCESSES = 4
AWAIT_SECONDS = 60.0
GROUPS = (3, 5, 6)
IN_MODE = {"delete": (0, 0), "move": (0, 1), "mark": (1, 0)}
"""Rows in the queue and in the archive for each task that is done."""

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
    settings = {"mode": wish["mode"], "db_patience": 600}
    with TaskServer(wish["dsn"], modules="race_tasks", folder=wish["folder"], **settings) as server:
        server.store.tables.check()
        if not wish["skips_locked"]:
            server.store.database.dialect.skips_locked = False
        line.wait()
        total = {"pid": threading.get_native_id(), "done": 0, "fatal": 0, "lost": 0}
        while True:
            last = not wish["until"] or os.path.exists(wish["until"])
            result = server.run(groups=wish["groups"], batch=5)
            for name in ("done", "fatal", "lost"):
                total[name] += getattr(result, name)
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


class Race:
    """Workers over one queue, in processes of theirs and a folder of their own."""

    def __init__(self, folder: Path, dsn: str, mode: str, count: int, seconds: float) -> None:
        """Over so many tasks, each of which takes so long, in three groups and of several priorities."""
        self.folder, self.dsn, self.mode, self.count = folder, dsn, mode, count
        self._racers: list[subprocess.Popen[str]] = []
        (folder / "race_tasks.py").write_text(RACE_TASKS)
        (folder / "racer.py").write_text(RACER)
        with TaskServer(dsn) as server:
            server.create_tables()
            server.add_tasks(
                {"task": "race_tasks.note", "args": [n, seconds], "group_id": GROUPS[n % 3], "priority": n * 7 % 5}
                for n in range(count)
            )

    @property
    def last_run(self) -> Path:
        """Once this file is there, racers that go on until then make their last run."""
        return self.folder / "last_run"

    def start(self, threads: int = 1, until: str = "", skips_locked: bool = True) -> None:
        """Start the workers, and give the word once all of them stand at the line."""
        wish = {"dsn": self.dsn, "mode": self.mode, "folder": str(self.folder), "groups": GROUPS, "until": until}
        command = json.dumps(wish | {"threads": threads, "skips_locked": skips_locked})
        for _ in range(PROCESSES):
            self._racers.append(
                subprocess.Popen(
                    [sys.executable, str(self.folder / "racer.py"), command],
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
        for racer in self._racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()

    def totals(self, timeout: float = AWAIT_SECONDS) -> list[dict[str, int]]:
        """Wait for all workers to end, each of which says what it did. One that ended with an error fails the test."""
        found: list[dict[str, int]] = []
        for racer in self._racers:
            output, errors = racer.communicate(timeout=timeout)
            assert racer.returncode == 0, errors
            found += json.loads(output)
        return found

    def ran(self) -> list[Ran]:
        lines = (line.split() for line in (self.folder / "ran.log").read_text().splitlines())
        return [Ran(int(number), int(pid), float(began), float(ended)) for number, pid, began, ended in lines]

    def assert_all_done(self) -> None:
        """Each task ran, and has its place by the mode; nothing else is left."""
        assert {run.number for run in self.ran()} == set(range(self.count))
        with closing(Rows(self.dsn)) as rows:
            found = tuple(rows.execute(f"SELECT COUNT(*) FROM jobs_queue{table}")[0][0] for table in ("", "_done"))
            assert found == tuple(self.count * share for share in IN_MODE[self.mode]), rows.all()[:5]

    def close(self) -> None:
        for racer in self._racers:
            if racer.poll() is None:
                racer.kill()
                racer.communicate()


@pytest.fixture
def racing(tmp_path: Path, dsn: str, request: pytest.FixtureRequest) -> Iterator[Race]:
    with closing(Race(tmp_path, dsn, *request.param)) as race:
        yield race


def assert_it_raced(runs: Sequence[Ran], workers: int) -> None:
    """At some instant at least a quarter of the workers were between their first and their last task."""
    spans: dict[int, tuple[float, float]] = {}
    for run in runs:
        first, last = spans.get(run.pid, (run.began, run.ended))
        spans[run.pid] = (min(first, run.began), max(last, run.ended))
    at_once = max(sum(first <= began <= last for first, last in spans.values()) for began, _ in spans.values())
    assert at_once >= workers / 4, f"nothing was contended: {sorted(Counter(run.pid for run in runs).values())}"


def count_deadlocks(dsn: str) -> int:
    queries = {
        "postgresql": "SELECT SUM(deadlocks) FROM pg_stat_database",
        "mysql": "SELECT `count` FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'",
        "sqlite": "SELECT 0",
    }
    with closing(Rows(dsn)) as rows:
        return int(rows.execute(queries[rows.kind])[0][0])


# Database, mode, tasks, seconds of each, workers, whether the server may skip rows that others hold. On SQLite and
# without SKIP LOCKED workers take turns: if tasks took no time, one would have the lock again before others look.
RACES = [
    ("mysql", ("move", 600, 0.0), 40, True),
    *(pytest.param("mysql", (mode, 6000, 0.0), 16, True, marks=pytest.mark.long) for mode in ("delete", "mark")),
    pytest.param("mysql", ("delete", 600, 0.01), 8, False, marks=pytest.mark.long),
    pytest.param("sqlite", ("move", 400, 0.01), 4, True, marks=pytest.mark.long),
    pytest.param("postgresql", ("move", 6000, 0.0), 40, True, marks=pytest.mark.long),
    pytest.param("postgresql", ("delete", 20_000, 0.0), 100, True, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("database", "racing", "workers", "skips_locked"), RACES, indirect=["database", "racing"])
def test_many_workers_write_each_number_once(racing: Race, workers: int, skips_locked: bool) -> None:
    deadlocks = count_deadlocks(racing.dsn)
    racing.start(threads=workers // PROCESSES, skips_locked=skips_locked)
    totals = racing.totals(timeout=racing.count)
    runs = racing.ran()
    racing.assert_all_done()
    times = Counter(run.number for run in runs)
    assert [run for run in runs if times[run.number] > 1] == []
    assert Counter(run.pid for run in runs) == {one["pid"]: one["done"] for one in totals if one["done"]}
    assert [(one["fatal"], one["lost"]) for one in totals] == [(0, 0)] * workers
    assert_it_raced(runs, workers)
    assert not skips_locked or not server_skips_locked(racing.dsn) or count_deadlocks(racing.dsn) == deadlocks


# ---- the fence, under attack


def steal_until_all_are_archived(race: Race) -> int:
    """Takes claims away from workers, as many as there are tasks, and then lets them be. How many it took."""
    stolen, deadline = 0, time.monotonic() + AWAIT_SECONDS
    with closing(Rows(race.dsn)) as thief:
        while (archived := thief.execute("SELECT COUNT(*) FROM jobs_queue_done")[0][0]) < race.count:
            assert time.monotonic() < deadline, f"{archived} tasks were completed"
            if stolen < race.count:
                chance = "RAND()" if thief.is_mysql else "RANDOM()"
                # Those whose attempts are used up would be fatal, as they should be.
                which = f"SELECT id FROM jobs_queue WHERE status = 1 AND attempts < 5 ORDER BY {chance} LIMIT 3"
                for (task_id,) in sorted(thief.execute(which)):
                    # Servers without SKIP LOCKED may choose the thief as a deadlock's victim.
                    with suppress(pymysql.OperationalError):
                        thief.set(
                            "status = 0, claim = NULL, due_at = NULL, started_at = NULL "
                            f"WHERE id = {task_id} AND status = 1"
                        )
                        stolen += 1
    return stolen


@pytest.mark.long
@EACH_SERVER
@pytest.mark.parametrize("racing", [("move", 300, 0.005)], indirect=True)
def test_tasks_that_are_taken_away_while_they_run_are_completed_once(racing: Race) -> None:
    racing.start(until=str(racing.last_run))
    stolen = steal_until_all_are_archived(racing)
    racing.last_run.touch()
    totals = racing.totals()
    racing.assert_all_done()
    assert sum(one["done"] for one in totals) == racing.count
    lost = sum(one["lost"] for one in totals)
    assert lost > 0, f"{stolen} claims were taken away, and no worker noticed: nothing was contended"
    assert racing.count <= len(racing.ran()) <= racing.count + lost
