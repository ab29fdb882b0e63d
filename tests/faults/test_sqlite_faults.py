"""SQLite files that fail: held by others, on a full disk, read-only, damaged, replaced and deleted.

Real processes and real faults. Whatever happens, a program ends with code 1 and one line that names the file, never
with a traceback; once the fault is gone the next run goes on, and what was acknowledged is still there.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from taskserver import DatabaseError, TaskServer
from taskserver.stores.retrying import RetryPolicy, Scope
from tests.faults.failing_files import (
    AFTER_A_CRASH,
    IMPATIENT,
    TASKS,
    SmallDisk,
    add,
    assert_one_line_each,
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


def produce_in_bulk(queue: Queue, names: Sequence[str]) -> None:
    lines = "".join(f'{{"task": "tasks.note", "args": ["{name}", 0.002]}}\n' for name in names)
    added = queue.client("add", "--bulk", "-", stdin=lines)
    assert (added.returncode, added.stderr) == (0, "")


@pytest.mark.parametrize("count", [90, pytest.param(600, marks=pytest.mark.long)])
def test_four_workers_and_producers_at_once_never_see_a_locked_database(queue: Queue, count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    third = count // 3
    produce_in_bulk(queue, names[:third])
    with Probe(queue.path) as probe, ThreadPoolExecutor() as pool:
        first = start_together(queue, 4)
        producing: list[Future[Any]] = [
            pool.submit(produce_by_api, queue, names[third:-third]),
            pool.submit(produce_in_bulk, queue, names[-third:]),
            pool.submit(lambda: queue.client("status").returncode),
        ]

        def crontab() -> None:
            while True:
                last = all(future.done() for future in producing)
                assert_silent(queue.worker(0, "--batch", 10, "--slots", 0))
                if last:
                    return

        lines = [pool.submit(crontab) for _ in range(2)]
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


def test_a_transaction_of_ours_takes_the_lock_as_it_begins(queue: Queue) -> None:
    """One that read first could not wait for the lock later: SQLite refuses it at once."""
    with closing(sqlite3.connect(queue.path, timeout=0)) as other:

        def read() -> None:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")

        queue.server.store.database.run(RetryPolicy(Scope.TRANSACTION, 0), read)


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
    """The traceback holds its connection among the variables."""
    queue.define(LEAVES_LOCKED)
    queue.add("tasks.leave_locked", json.dumps([str(queue.path)]))
    assert_silent(queue.worker())
    assert queue.first_lines() == ["ValueError: amid it"]


def test_a_reader_that_stays_in_the_midst_of_reading_holds_up_nobody(queue: Queue) -> None:
    """As a backup or a person's SQLite browser does."""
    add(queue, *range(20))
    with closing(sqlite3.connect(queue.path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM jobs_queue").fetchone() == (20,)
        assert_silent(queue.worker(**IMPATIENT))
        assert reader.execute("SELECT COUNT(*) FROM jobs_queue").fetchone() == (20,)
    assert len(ran(queue)) == 20
    assert queue.statuses() == []


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path: Path, deployment: Deployment) -> Iterator[SmallDisk]:
    with closing(SmallDisk(tmp_path / "disk", deployment)) as disk:
        yield disk


def test_a_disk_that_fills_up_under_a_run_is_one_clear_line_and_nothing_is_lost(
    small_disk: SmallDisk, deployment: Deployment
) -> None:
    file, filler = small_disk.path / "taskserver.db", small_disk.path / "filler"
    # Only programs of the deployment reach the disk.
    queue = Queue(deployment, f"sqlite:///{file}", TASKS, tables=False)
    deployment.claim_at_once()
    assert queue.client("init").returncode == 0
    names = [f"n{number}" for number in range(60)]
    tasks = [("fill", ["fill", str(filler)]), *(("note", [name]) for name in names)]
    lines = "".join(json.dumps({"task": f"tasks.{task}", "args": args}) + "\n" for task, args in tasks)
    assert queue.client("add", "--bulk", "-", stdin=lines).returncode == 0
    with small_disk.opened(file):
        ended = queue.worker(**IMPATIENT, **AFTER_A_CRASH)
    assert_one_line(ended, 1, str(file))
    words = ended.stderr.replace(str(file.parent), "")
    assert any(word in words for word in ("full", "space", "quota")), words
    assert len(ran(queue)) < len(names), "the disk was never in the way"
    small_disk.run("dd", "if=/dev/zero", f"of={filler}-2")  # what SQLite's log had taken may be free again
    assert small_disk.free_blocks() == 0
    assert_one_line_each(queue, str(file))
    small_disk.run("rm", filler, f"{filler}-2")
    run_until_empty(queue)
    # What ran while its end could not be written ran again, which one task at most did in each run.
    assert set(ran(queue)) == {"fill", *names}
    assert len(ran(queue)) <= len(names) + 3


def test_a_task_that_may_start_once_is_not_run_again_because_its_end_could_not_be_written(queue: Queue) -> None:
    queue.add("tasks.wait_for_go", '["once"]')
    queue.sql("UPDATE jobs_queue SET max_attempts = 1")
    process = queue.start_task(**IMPATIENT, **AFTER_A_CRASH)
    # What a quota does, without a right or a disk of its own.
    most_bytes = queue.path.with_name("taskserver.db-wal").stat().st_size
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    queue.go()
    assert end_of(process)[0] == 1
    run_until_empty(queue)
    assert ran(queue) == ["once"]
    assert queue.statuses() == [4]
    assert queue.errors()[0].startswith("lost")


# ---- read-only


@pytest.mark.usefixtures("bound_by_rights")
def test_a_read_only_database_is_one_line_and_nothing_is_lost(queue: Queue) -> None:
    add(queue, "first")
    files = [queue.path, queue.path.parent]
    for path, mode in zip(files, (0o400, 0o500), strict=True):
        path.chmod(mode)
    assert_one_line(queue.worker(), 1, str(queue.path))
    assert_one_line(queue.client("add", "tasks.note", '["second"]'), 1, str(queue.path))
    for path in (queue.path.parent, *queue.path.parent.glob("taskserver.db*")):
        path.chmod(0o700)
    assert_silent(queue.worker())
    assert ran(queue) == ["first"]


# ---- damaged, replaced and deleted

Damage = Callable[[Path], object]


def fill_with_noise(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(7).randbytes(path.stat().st_size - 4096))


def delete_its_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("damage", [fill_with_noise, delete_its_folder])
def test_a_damaged_or_missing_database_is_one_line_that_names_it(queue: Queue, damage: Damage) -> None:
    add(queue, *(f"{number}{'x' * 100}" for number in range(200)))
    queue.sql("VACUUM")
    damage(queue.path)
    assert_one_line_each(queue, str(queue.path))
    assert queue.notes() == []


def test_a_database_that_is_damaged_under_a_run_is_one_line_and_code_1(queue: Queue) -> None:
    queue.add("tasks.wait_for_go", '["first"]')
    add(queue, *(f"{number}{'x' * 100}" for number in range(200)))
    queue.sql("VACUUM")
    process = queue.start_task(0, "--batch", 1, **IMPATIENT)
    # What the worker wrote so far goes from the log into the file, so that only the file counts.
    queue.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    fill_with_noise(queue.path)
    queue.go()
    assert_one_line(wait_for(process), 1, str(queue.path))


def test_a_program_that_has_the_file_open_hears_that_another_has_its_place(queue: Queue) -> None:
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        server.add_task("tasks.note", ["old"])
        delete_its_folder(queue.path)
        assert queue.client("init").returncode == 0
        with pytest.raises(DatabaseError, match="what is open is no longer the file at this path"):
            server.add_task("tasks.note", ["lost"])
        assert server.add_task("tasks.note", ["new"]) == 1
    assert queue.sql("PRAGMA integrity_check") == [("ok",)]


def test_making_tables_again_takes_no_locks_from_other_connections(queue: Queue) -> None:
    """Of the site's own connection, as a page has one that adds in its transaction."""
    with closing(sqlite3.connect(queue.path)) as own, TaskServer(queue.dsn, folder=queue.folder) as server:
        for name in ("own", "own again"):
            server.add_task("tasks.note", [name], connection=own)
            own.commit()
            server.create_tables()
            server.close()
            assert queue.client("add", "tasks.note", json.dumps(["another"])).returncode == 0
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue") == [(4,)]
    assert queue.sql("PRAGMA integrity_check") == [("ok",)]
