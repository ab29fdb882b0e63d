"""SQLite files that are damaged, replaced and deleted, under a run too: one line names the file, with no traceback."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskserver import DatabaseError, TaskServer
from taskserver.model.task import MODES
from tests.faults.failing_files import AFTER_A_CRASH, IMPATIENT, TASKS, add, assert_one_line_each, ran
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line, end_of, wait_for
from tests.support.queues import Queue


@pytest.fixture
def queue(deployment: Deployment) -> Queue:
    return Queue(deployment, "sqlite:///var/taskserver.db", TASKS)


Damage = Callable[[Path], object]


def write_at(path: Path, place: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(content)


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def fill_with_noise(path: Path) -> None:
    write_at(path, 4096, random.Random(7).randbytes(path.stat().st_size - 4096))


def replace(path: Path, put: Damage) -> None:
    path.unlink()
    put(path)


def delete_its_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


DAMAGES: dict[str, Damage] = {
    "a header of zeros": lambda path: write_at(path, 0, bytes(100)),
    "cut in half": cut_in_half,
    "cut to nothing": lambda path: os.truncate(path, 0),
    "noise": fill_with_noise,
    "a folder in its place": lambda path: replace(path, Path.mkdir),
    "a folder in the place of its log": lambda path: path.with_name(f"{path.name}-wal").mkdir(),
    "a pipe in its place": lambda path: replace(path, os.mkfifo),
    "a link to nothing in its place": lambda path: replace(path, lambda gone: gone.symlink_to("nowhere")),
    "a null device in its place": lambda path: replace(path, lambda gone: gone.symlink_to("/dev/null")),
    "deleted": Path.unlink,
    "its folder deleted": delete_its_folder,
    "a schema that is no text": lambda path: path.write_bytes(
        # SQLite quotes it in its message, which is then no text either.
        path.read_bytes().replace(b"CREATE TABLE", b"CR\x80ATE TABLE")
    ),
}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(damage, id=name, marks=[pytest.mark.long] * (number % 2))
        for number, (name, damage) in enumerate(DAMAGES.items())
    ],
)
def test_a_damaged_or_missing_database_is_one_line_that_names_it(queue: Queue, damage: Damage) -> None:
    add(queue, *(f"{number}{'x' * 100}" for number in range(200)))
    queue.sql("VACUUM")
    damage(queue.path)
    assert_one_line_each(queue, str(queue.path))
    assert queue.notes() == []


@pytest.mark.parametrize("damage", [cut_in_half, fill_with_noise])
def test_a_database_that_is_damaged_under_a_run_is_one_line_and_code_1(queue: Queue, damage: Damage) -> None:
    queue.add("tasks.wait_for_go", '["first"]')
    add(queue, *(f"{number}{'x' * 100}" for number in range(200)))
    queue.sql("VACUUM")
    process = queue.start_task(0, "--batch", 1, **IMPATIENT)
    # What the worker wrote so far goes from the log into the file, so that only the file counts.
    queue.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(queue.path)
    queue.go()
    assert_one_line(wait_for(process), 1, str(queue.path))


def assert_ended_by_itself(process: subprocess.Popen[str]) -> None:
    """Well, or with one line."""
    code, output, errors = end_of(process)
    assert code in (0, 1)
    assert output == ""
    assert len(errors.splitlines()) == code, errors


@pytest.mark.parametrize("damage", [Path.unlink, delete_its_folder])
def test_a_database_that_is_deleted_under_a_run_ends_in_one_line_and_no_traceback(queue: Queue, damage: Damage) -> None:
    """The system keeps a deleted file for those who have it open: the run may end well, the next one must say it."""
    queue.add("tasks.wait_for_go", '["first"]')
    add(queue, "second")
    process = queue.start_task(**IMPATIENT)
    damage(queue.path)
    queue.go()
    assert_ended_by_itself(process)
    assert_one_line_each(queue, str(queue.path), "no database")
    assert ran(queue).count("first") == 1


def test_a_database_made_anew_under_a_run_gets_nothing_of_the_old_one_from_its_worker(queue: Queue) -> None:
    queue.add("tasks.wait_for_go", '["old"]')
    process = queue.start_task(**IMPATIENT)
    delete_its_folder(queue.path)
    assert queue.client("init").returncode == 0
    add(queue, "new")
    queue.go()
    assert_one_line(wait_for(process), 0, "task 1 tasks.wait_for_go: the lease was lost")
    assert ran(queue) == ["old", "new"]
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


def close_log(name):
    note(name)
    log = os.stat(HERE / "var" / "taskserver.db-wal").st_ino
    for number in map(int, os.listdir("/dev/fd")):
        try:
            if os.fstat(number).st_ino == log:
                os.close(number)
        except OSError:  # that of the list itself
            pass
    KEPT.extend(open(HERE / f"own{number}", "wb+") for number in range(12))


def copy_database(name):
    note(name)
    shutil.copytree(HERE / "var", HERE / "copy", dirs_exist_ok=True)  # and what links there lead to
    # The last process that has the database open removes the log; this one takes itself for the last.
    subprocess.run([sys.executable, HERE / "client.py", "add", "tasks.note", '["meanwhile"]'], check=True)


@taskserver.task(transactional=True)
def close_others_in_transaction(name):
    close_others(name)


@taskserver.task(transactional=True)
def close_log_in_transaction(name):
    close_log(name)


@taskserver.task(transactional=True)
def copy_database_in_transaction(name):
    copy_database(name)
"""
CHANGED = "what is open is no longer the file at this path"


def behind_a_link(path: Path) -> None:
    elsewhere = path.parent.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.move(path, elsewhere / "queue.db")
    path.symlink_to(elsewhere / "queue.db")


@pytest.mark.parametrize("mode", [MODES[0], *[pytest.param(mode, marks=pytest.mark.long) for mode in MODES[1:]]])
@pytest.mark.parametrize("how", ["close_others", "close_log", "copy_database"])
@pytest.mark.parametrize("kind", ["", "_in_transaction"])
def test_a_task_that_takes_the_files_from_its_worker_ends_it_with_one_line_and_nothing_is_lost(
    queue: Queue, mode: str, how: str, kind: str
) -> None:
    queue.define(TASKS + CARELESS)
    if how == "copy_database" and mode == "mark" and not kind:
        behind_a_link(queue.path)
    add(queue, "first", "second")
    queue.client("add", f"tasks.{how}{kind}", '["careless"]', "--max-attempts", "1")
    add(queue, "last")
    # With a lease of a second the heartbeat would write, and so lock the log again, as the other program closes it.
    assert_one_line(queue.worker("--mode", mode), 1, str(queue.path), CHANGED)
    assert queue.sql("PRAGMA integrity_check") == [("ok",)]
    assert [path.read_bytes() for path in queue.folder.glob("own*")] == [b""] * (0 if how == "copy_database" else 12)
    queue.end_leases()
    assert_one_line(queue.worker("--mode", mode, **AFTER_A_CRASH), 0, f"{how}{kind} is fatal: lost")
    more = ["meanwhile"] if how == "copy_database" else []
    assert sorted(ran(queue)) == sorted(["first", "second", "careless", "last", *more])


ROBBED_PARENT = """
import os
import sys
from taskserver import DatabaseError, TaskServer

server = TaskServer(sys.argv[1])
server.add_task("tasks.note", ["one"])
os.closerange(3, 200)
own = [open(f"own{number}", "wb+") for number in range(12)]
if os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
try:
    server.add_task("tasks.note", ["two"])
except DatabaseError as error:
    print(error)
"""


def test_a_child_of_a_process_that_lost_its_files_writes_to_none_of_those_that_it_took_for_them(queue: Queue) -> None:
    program = [sys.executable, "-c", ROBBED_PARENT, f"sqlite:///{queue.path}"]
    told = subprocess.run(program, cwd=queue.folder, capture_output=True, text=True, check=True)
    assert CHANGED in told.stdout
    assert [path.read_bytes() for path in queue.folder.glob("own*")] == [b""] * 12


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_threads_that_come_and_go_take_no_files_from_one_another(queue: Queue, journal: str) -> None:
    """Without WAL, as in a copy that was put back, SQLite closes a descriptor with its connection."""
    assert queue.sql(f"PRAGMA journal_mode = {journal}") == [(journal,)]

    def visit(number: int) -> int:
        with TaskServer(queue.dsn, folder=queue.folder) as server:
            return server.add_task("tasks.note", [f"{number}"])

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(visit, range(400)))) == 400


def test_where_descriptors_cannot_be_listed_none_are_missed(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at their limit. The first server's are lower than the second's, and closed first."""

    def refuse(folder: str) -> None:
        raise OSError(24, "Too many open files", folder)

    queue.sql("PRAGMA journal_mode = delete")
    with ExitStack() as others, TaskServer(queue.dsn, folder=queue.folder) as second:
        with TaskServer(queue.dsn, folder=queue.folder) as first:
            first.add_task("tasks.note", ["first"])
            for _ in range(300):
                others.enter_context(open(os.devnull))
            monkeypatch.setattr("taskserver.stores.sqlite.open_files.os.listdir", refuse)
            second.add_task("tasks.note", ["second"])
        assert second.add_task("tasks.note", ["third"]) == 3


def test_making_tables_again_takes_no_locks_from_other_connections(queue: Queue) -> None:
    """Of the site's own connection, as a page has one that adds in its transaction."""
    with closing(sqlite3.connect(queue.path)) as own, TaskServer(queue.dsn, folder=queue.folder) as server:
        server.add_task("tasks.note", ["own"], connection=own)
        own.commit()
        server.create_tables()
        server.close()
        add_by_client(queue, "another")
        server.add_task("tasks.note", ["own again"], connection=own)
        own.commit()
        add_by_client(queue, "yet another")
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue") == [(4,)]
    assert queue.sql("PRAGMA integrity_check") == [("ok",)]


def add_by_client(queue: Queue, name: str) -> None:
    assert queue.client("add", "tasks.note", json.dumps([name])).returncode == 0


def test_a_write_is_slowed_down_by_no_look_at_the_log(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system tells the names of descriptors, as Linux does."""
    look, looked_at = os.stat, []

    def stat(file: str | Path | int) -> os.stat_result:
        looked_at.append(file)
        return look(file)

    with TaskServer(queue.dsn, folder=queue.folder) as server:
        server.add_task("tasks.note", ["one"])
        with monkeypatch.context() as recording:
            recording.setattr("taskserver.stores.sqlite.open_files.os.stat", stat)
            server.add_task("tasks.note", ["two"])
    assert looked_at == [queue.path]


def test_a_file_that_is_out_of_sight_for_a_while_stays_the_same(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    look = os.stat

    def refuse(file: str | Path | int) -> os.stat_result:
        if isinstance(file, int):
            return look(file)
        raise PermissionError(13, "Permission denied", file)

    with TaskServer(queue.dsn, folder=queue.folder) as server:
        server.add_task("tasks.note", ["one"])
        with monkeypatch.context() as without_rights:
            without_rights.setattr("taskserver.stores.sqlite.open_files.os.stat", refuse)
            assert server.add_task("tasks.note", ["two"]) == 2
        assert server.add_task("tasks.note", ["three"]) == 3


def test_a_program_that_has_the_file_open_hears_that_another_has_its_place(queue: Queue) -> None:
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        server.add_task("tasks.note", ["old"])
        make_afresh(queue, 3)
        with pytest.raises(DatabaseError, match=CHANGED):
            server.add_task("tasks.note", ["lost"])
        assert server.add_task("tasks.note", ["new"]) == 4
    assert queue.sql("PRAGMA integrity_check") == [("ok",)]
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue") == [(4,)]


def make_afresh(queue: Queue, rows: int) -> None:
    """A new file in the place of the old one, with so many tasks of three groups, and no log beside it."""
    delete_its_folder(queue.path)
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        server.create_tables()
        server.add_tasks(
            {"task": "tasks.note", "args": [f"{number}{'x' * 100}"], "group_id": number % 3} for number in range(rows)
        )


def assert_ends_by_itself(queue: Queue) -> None:
    """Whatever was hit: what looks and what runs ends with code 0, or with 1 and one line."""
    shutil.rmtree(queue.folder / "var" / "outages", ignore_errors=True)  # a worker tells it once an hour
    for arguments in (["client.py", "status"], ["client.py", "list", "--limit", "1000"], ["worker.py"]):
        ended = queue.deployment.run(*arguments, env=IMPATIENT)
        assert ended.returncode in (0, 1), ended.stderr
        assert "Traceback" not in ended.stderr, ended.stderr
        if ended.returncode == 1:
            line = ended.stderr.splitlines()[-1]
            assert str(queue.path) in line or "the tables of jobs_queue have version" in line


def pages_without(content: bytes) -> Iterator[bytes]:
    """A database's file with one page wiped, for each but the first."""
    for first in range(4096, len(content), 4096):
        yield content[:first] + bytes(4096) + content[first + 4096 :]


def fails_while_it_reads(path: Path) -> bool:
    """Whether reading all tasks begins well, and then fails."""
    with closing(sqlite3.connect(path)) as connection:
        try:
            rows = connection.execute("SELECT * FROM jobs_queue ORDER BY id DESC")
        except sqlite3.DatabaseError:
            return False
        try:
            return not rows.fetchall()
        except sqlite3.DatabaseError:
            return True


def test_a_page_that_is_missed_while_rows_are_read_is_one_line(queue: Queue) -> None:
    make_afresh(queue, 200)
    for content in pages_without(queue.path.read_bytes()):
        queue.path.write_bytes(content)
        if fails_while_it_reads(queue.path):
            break
    else:
        pytest.fail("no page was missed in the midst of reading")
    assert_one_line(queue.client("list", "--limit", 1000, env=IMPATIENT), 1, str(queue.path))


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(places=st.lists(st.integers(0, 2**32), min_size=1, max_size=8), noise=st.binary(min_size=1, max_size=64))
def test_bytes_that_a_bad_disk_turned_are_one_line_at_the_worst(queue: Queue, places: list[int], noise: bytes) -> None:
    make_afresh(queue, 60)
    size = queue.path.stat().st_size
    for place in places:
        write_at(queue.path, place % size, noise)
    assert_ends_by_itself(queue)
