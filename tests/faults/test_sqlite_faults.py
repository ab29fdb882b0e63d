"""SQLite files that fail: held by others, on a full disk, and read-only.

Real processes and real faults. Whatever happens, a program ends with code 1 and one line that names the file, never
with a traceback; once the fault is gone the next run goes on, and what was acknowledged is still there.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.stores.sqlite.session import LOCK_WAIT_SECONDS
from tests.faults.failing_files import (
    AFTER_A_CRASH,
    IMPATIENT,
    TASKS,
    SmallDisk,
    add,
    assert_one_line_each,
    assert_silent_but_for_fatal,
    ran,
    run_until_empty,
)
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line, assert_silent, end_of, wait_for, wait_until
from tests.support.queues import Queue


@pytest.fixture
def queue(deployment: Deployment) -> Queue:
    return Queue(deployment, "sqlite:///var/taskserver.db", TASKS)


# ---- held by others


@contextmanager
def held(queue: Queue) -> Iterator[None]:
    """The write lock in the hands of another program."""
    with closing(sqlite3.connect(queue.path, isolation_level=None, timeout=60)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")


def has_open(process: subprocess.Popen[str], path: Path) -> bool:
    try:
        return any(os.path.samefile(entry.path, path) for entry in os.scandir(f"/proc/{process.pid}/fd"))
    except FileNotFoundError:  # a descriptor that was closed meanwhile
        return False


class Probe(threading.Thread):
    """Asks for the write lock again and again, without waiting; counts how often another had it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._done = threading.Event()
        self.refused = 0

    def run(self) -> None:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=0)) as connection:
            while not self._done.wait(0.001):
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    connection.execute("ROLLBACK")
                except sqlite3.OperationalError:
                    self.refused += 1

    def __enter__(self) -> Probe:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self.join()


def start_together(queue: Queue, workers: int) -> list[subprocess.Popen[str]]:
    """Workers that all come to the queue while its write lock is held, and then get on with it together."""
    with held(queue):
        processes = [queue.start(0, "--batch", 10, "--slots", 0) for _ in range(workers)]
        wait_until(lambda: all(has_open(process, queue.path) for process in processes))
        assert all(process.poll() is None for process in processes)
    return processes


def produce_by_api(queue: Queue, names: Sequence[str]) -> None:
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        for name in names:
            assert server.add_task("tasks.note", [name, 0.002]) > 0


def produce_by_client(queue: Queue, names: Sequence[str]) -> None:
    for name in names:
        added = queue.client("add", "tasks.note", f'["{name}", 0.002]')
        assert (added.returncode, added.stderr) == (0, "")
        assert added.stdout.strip().isdigit()


def produce_in_bulk(queue: Queue, names: Sequence[str]) -> None:
    lines = "".join(f'{{"task": "tasks.note", "args": ["{name}", 0.002]}}\n' for name in names)
    added = queue.client("add", "--bulk", "-", stdin=lines)
    assert (added.returncode, added.stderr) == (0, "")


@pytest.mark.parametrize("count", [120, pytest.param(600, marks=pytest.mark.long)])
def test_four_workers_and_producers_at_once_never_see_a_locked_database(queue: Queue, count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    third = count // 3
    produce_in_bulk(queue, names[:third])
    with Probe(queue.path) as probe, ThreadPoolExecutor() as pool:
        first = start_together(queue, 4)
        producing: list[Future[Any]] = [
            pool.submit(produce_by_api, queue, names[third:-third]),
            pool.submit(produce_by_client, queue, names[-4:]),
            pool.submit(produce_in_bulk, queue, names[-third:-4]),
            *(pool.submit(lambda: queue.client("status").returncode) for _ in range(3)),
        ]

        def crontab() -> None:
            while True:
                last = all(future.done() for future in producing)
                assert_silent(queue.worker(0, "--batch", 10, "--slots", 0))
                if last:
                    return

        lines = [pool.submit(crontab) for _ in range(4)]
        assert [end_of(process) for process in first] == [(0, "", "")] * 4
        assert not [outcome for future in producing if (outcome := future.result())]
        for line in lines:
            line.result()
    assert sorted(ran(queue)) == sorted(names)
    assert queue.statuses() == []
    assert probe.refused, "nobody ever held the lock when it was asked for"
    pids = [line.split()[1] for line in queue.notes()]
    turns = sum(one != other for one, other in pairwise(pids))
    assert turns >= len(set(pids)), "the workers ran one after the other"


@pytest.mark.long
def test_a_lock_that_is_held_for_longer_than_one_turn_is_waited_for(queue: Queue) -> None:
    add(queue, "first")
    with held(queue):
        waiting = [queue.start(), queue.deployment.popen("client.py", "add", "tasks.note", '["second"]')]
        wait_until(lambda: all(has_open(process, queue.path) for process in waiting))
        time.sleep(LOCK_WAIT_SECONDS + 0.5)
        assert [process.poll() for process in waiting] == [None, None]
    ended = [end_of(process) for process in waiting]
    assert [(code, errors) for code, _, errors in ended] == [(0, ""), (0, "")]
    assert_silent(queue.worker())
    assert ran(queue) == ["first", "second"]


def test_a_lock_that_outlasts_the_patience_is_one_line_and_nothing_is_lost(queue: Queue) -> None:
    add(queue, "first")
    with held(queue), ThreadPoolExecutor() as pool:
        worker = pool.submit(queue.worker, **IMPATIENT)
        client = pool.submit(queue.client, "add", "tasks.note", '["second"]', env=IMPATIENT)
        assert_one_line(worker.result(), 1, str(queue.path), "other processes")
        assert_one_line(client.result(), 1, str(queue.path), "other processes")
    assert_silent(queue.worker())
    assert ran(queue) == ["first"]


LEAVES_LOCKED = """
import sqlite3

def leave_locked(path):
    connection = sqlite3.connect(path)
    connection.execute("UPDATE jobs_queue SET priority = priority")
    raise ValueError("amid it")
"""


def test_a_task_that_raises_amid_its_own_transaction_keeps_no_lock(queue: Queue) -> None:
    """Its connection lies among the variables that the traceback holds."""
    queue.define(LEAVES_LOCKED)
    queue.add("tasks.leave_locked", json.dumps([str(queue.path)]))
    assert_silent(queue.worker())
    assert queue.first_lines() == ["ValueError: amid it"]


@pytest.mark.long
def test_a_reader_that_stays_in_the_midst_of_reading_holds_up_nobody(queue: Queue) -> None:
    """As a backup or a person's SQLite browser does."""
    add(queue, *range(50))
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM jobs_queue").fetchone() == (50,)
        assert_silent(queue.worker(**IMPATIENT))
        assert reader.execute("SELECT COUNT(*) FROM jobs_queue").fetchone() == (50,)
    assert len(ran(queue)) == 50
    assert queue.statuses() == []


@pytest.mark.long
def test_tables_are_made_by_four_at_once(queue: Queue) -> None:
    # More than once from nothing, as only now and then two of them make the folder at once.
    for _ in range(3):
        shutil.rmtree(queue.path.parent, ignore_errors=True)
        inits = [queue.deployment.popen("client.py", "init") for _ in range(4)]
        assert [(code, errors) for code, _, errors in map(end_of, inits)] == [(0, "")] * 4
    add(queue, "first")
    assert_silent(queue.worker())
    assert ran(queue) == ["first"]


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path: Path, deployment: Deployment) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    disk.let_in(deployment)
    try:
        yield disk
    finally:
        disk.close()


@pytest.fixture
def small_queue(deployment: Deployment, small_disk: SmallDisk) -> Queue:
    """A queue on the small disk; only programs of the deployment reach it."""
    queue = Queue(deployment, f"sqlite:///{small_disk.path}/taskserver.db", TASKS, tables=False)
    assert queue.client("init").returncode == 0
    return queue


def add_by_client(queue: Queue, *names: str, task: str = "tasks.note", more: str = "") -> None:
    lines = "".join(f'{{"task": "{task}", "args": ["{name}"{more}]}}\n' for name in names)
    assert queue.client("add", "--bulk", "-", stdin=lines).returncode == 0


def assert_full(ended: subprocess.CompletedProcess[str], path: Path) -> None:
    """Code 1 and one line, from which a person knows what to do; the path itself may hold any word."""
    assert_one_line(ended, 1, str(path))
    words = ended.stderr.replace(str(path.parent), "")
    assert any(word in words for word in ("full", "space", "quota")), words


def test_a_full_disk_is_one_clear_line_and_with_space_again_nothing_is_lost(
    small_disk: SmallDisk, small_queue: Queue
) -> None:
    add_by_client(small_queue, "a", "b", "c")
    small_disk.fill()
    assert_one_line_each(small_queue, str(small_disk.path / "taskserver.db"))
    again = small_queue.worker(**IMPATIENT)
    assert (again.returncode, again.stdout, again.stderr) == (1, "", "")  # it is told once an hour
    assert small_disk.free_blocks() == 0
    assert small_queue.notes() == []
    small_disk.clear()
    assert_silent(small_queue.worker())
    assert ran(small_queue) == ["a", "b", "c"]
    assert small_queue.client("list").stdout == "no tasks\n"


def test_a_disk_that_fills_up_under_a_run_is_one_clear_line_and_nothing_is_lost(
    small_disk: SmallDisk, small_queue: Queue
) -> None:
    small_queue.deployment.claim_at_once()
    add_by_client(small_queue, "fill", task="tasks.fill", more=f', "{small_disk.path}/filler"')
    names = [f"n{number}" for number in range(100)]
    add_by_client(small_queue, *names)
    ended = small_queue.worker(**IMPATIENT, **AFTER_A_CRASH)
    assert_full(ended, small_disk.path / "taskserver.db")
    assert small_disk.free_blocks() == 0
    assert len(ran(small_queue)) < len(names), "the disk was never in the way"
    small_disk.clear()

    def all_is_done() -> bool:
        assert_silent_but_for_fatal(small_queue.worker(**AFTER_A_CRASH))
        return small_queue.client("list").stdout == "no tasks\n"

    wait_until(all_is_done)
    # What ran while its end could not be written ran again, which one task at most did in each run.
    assert set(ran(small_queue)) == {"fill", *names}
    assert len(ran(small_queue)) <= len(names) + 2


def limit_files(process: subprocess.Popen[str], most_bytes: int) -> None:
    """No file of a running process may grow beyond this: what a quota does, without a right or a disk of its own."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


@pytest.mark.long
def test_a_quota_that_is_used_up_under_a_run_is_one_clear_line_and_nothing_is_lost(queue: Queue) -> None:
    queue.add("tasks.wait_for_go", '["first"]')
    add(queue, "second", "third")
    process = queue.start_task(**IMPATIENT, **AFTER_A_CRASH)
    log = queue.path.with_name("taskserver.db-wal")
    size = log.stat().st_size
    limit_files(process, size)
    queue.go()
    assert_full(wait_for(process), queue.path)
    assert ran(queue) == ["first"], "the quota was never in the way"
    run_until_empty(queue)
    assert sorted(set(ran(queue))) == ["first", "second", "third"]
    assert ran(queue).count("second") == ran(queue).count("third") == 1
    assert queue.statuses() == []


def test_a_task_that_may_start_once_is_not_run_again_because_its_end_could_not_be_written(queue: Queue) -> None:
    queue.add("tasks.wait_for_go", '["once"]')
    queue.sql("UPDATE jobs_queue SET max_attempts = 1")
    process = queue.start_task(**IMPATIENT, **AFTER_A_CRASH)
    limit_files(process, queue.path.with_name("taskserver.db-wal").stat().st_size)
    queue.go()
    assert end_of(process)[0] == 1
    run_until_empty(queue)
    assert ran(queue) == ["once"]
    assert queue.statuses() == [4]
    assert queue.errors()[0].startswith("lost")


# ---- read-only


@contextmanager
def rights(*given: tuple[Path, int]) -> Iterator[None]:
    """Files and folders with these rights, and then with their own again."""
    before = [(path, path.stat().st_mode & 0o777) for path, _ in given]
    for path, mode in given:
        path.chmod(mode)
    try:
        yield
    finally:
        for path, mode in reversed(before):
            path.chmod(mode)


@pytest.mark.usefixtures("bound_by_rights")
@pytest.mark.parametrize("read_only", [["folder"], ["file", "folder"]], ids=" and ".join)
def test_a_read_only_database_is_one_line_and_nothing_is_lost(queue: Queue, read_only: list[str]) -> None:
    add(queue, "first")
    places = {"file": (queue.path, 0o400), "folder": (queue.path.parent, 0o500)}
    with rights(*(places[name] for name in read_only)):
        assert_one_line(queue.worker(), 1, str(queue.path))
        assert_one_line(queue.client("add", "tasks.note", '["second"]'), 1, str(queue.path))
        status = queue.client("status")
        assert status.returncode == 0 or len(status.stderr.splitlines()) == 1
        assert "Traceback" not in status.stderr
    # SQLite gives its log the rights that the file had when it was looked at.
    for path in queue.path.parent.glob("taskserver.db*"):
        path.chmod(0o600)
    assert_silent(queue.worker())
    assert ran(queue) == ["first"]
