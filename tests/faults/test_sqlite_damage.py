"""SQLite files that are damaged, replaced and deleted, under a run too: one line names the file, with no traceback."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from taskserver import DatabaseError, TaskServer
from tests.faults.failing_files import AFTER_A_CRASH, IMPATIENT, TASKS, add, assert_one_line_each, ran
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line, wait_for
from tests.support.queues import Queue

CHANGED = "what is open is no longer the file at this path"


@pytest.fixture
def queue(deployment: Deployment) -> Queue:
    return Queue(deployment, "sqlite:///var/taskserver.db", TASKS)


Damage = Callable[[Path], object]


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def fill_with_noise(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(7).randbytes(path.stat().st_size - 4096))


def delete_its_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


@pytest.mark.parametrize("damage", [cut_in_half, fill_with_noise, delete_its_folder])
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
        with pytest.raises(DatabaseError, match=CHANGED):
            server.add_task("tasks.note", ["lost"])
        assert server.add_task("tasks.note", ["new"]) == 1
    assert queue.sql("PRAGMA integrity_check") == [("ok",)]


CARELESS = """
import shutil
import subprocess
import sys
import taskserver

KEPT = []


def close_others(name):
    note(name)
    os.closerange(3, 200)
    KEPT.extend(open(HERE / f"own{number}", "wb+") for number in range(12))


def copy_database(name):
    note(name)
    shutil.copytree(HERE / "var", HERE / "copy")
    # The last process that has the database open removes the log; this one takes itself for the last.
    subprocess.run([sys.executable, HERE / "client.py", "add", "tasks.note", '["meanwhile"]'], check=True)


@taskserver.task(transactional=True)
def copy_database_in_transaction(name):
    copy_database(name)
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["close_others", "copy_database", "copy_database_in_transaction"])
def test_a_task_that_takes_the_files_from_its_worker_ends_it_with_one_line_and_nothing_is_lost(
    queue: Queue, how: str
) -> None:
    queue.define(TASKS + CARELESS)
    add(queue, "first", "second")
    queue.client("add", f"tasks.{how}", '["careless"]', "--max-attempts", "1")
    add(queue, "last")
    # With a lease of a second the heartbeat would write, and so lock the log again, as the other program closes it.
    assert_one_line(queue.worker(), 1, str(queue.path), CHANGED)
    assert queue.sql("PRAGMA integrity_check") == [("ok",)]
    assert {path.read_bytes() for path in queue.folder.glob("own*")} <= {b""}
    queue.end_leases()
    ended = queue.worker(**AFTER_A_CRASH)
    gone, fatal = ended.stderr.splitlines()
    assert (ended.returncode, "ended while it ran task 3 " in gone, f"{how} is fatal: lost" in fatal) == (0, True, True)
    more = ["meanwhile"] if "copy" in how else []
    assert sorted(ran(queue)) == sorted(["first", "second", "careless", "last", *more])


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
