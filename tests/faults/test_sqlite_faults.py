"""SQLite files that fail: held by others, on a full disk, read-only, damaged, replaced and deleted under a run.

Real processes and real faults. Whatever happens, a program ends with code 1 and one line that names the file, never
with a traceback; once the fault is gone the next run goes on, and what was acknowledged is still there.
"""

from __future__ import annotations

import os
import random
import resource
import shlex
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskserver import TaskServer
from taskserver.host.private_folder import make_private_folder
from taskserver.stores.sqlite.session import LOCK_WAIT_SECONDS
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line, assert_silent, end_of, kill, wait_for, wait_until
from tests.support.queues import Queue

TASKS = '''
import os
import time

NOTES = os.open(HERE / "notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def note(name, seconds=0.0):
    """Its name and the process that ran it. A short write to the end of a file is one piece."""
    os.write(NOTES, f"{name} {os.getpid()}\\n".encode())
    time.sleep(seconds)


def wait_for_go(name):
    note(name)
    while not (HERE / "go").exists():
        time.sleep(0.01)


def fill(name, path):
    """Take all the space there is on a disk; the first time only."""
    note(name)
    if (HERE / "filled").exists():
        return
    (HERE / "filled").touch()
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
'''
IMPATIENT = {"TASKSERVER_DB_PATIENCE": "1"}
AFTER_A_CRASH = {"TASKSERVER_LEASE": "1", "TASKSERVER_BACKOFF": "fixed:0"}
"""So that what a worker left behind is taken back while a test waits."""


@pytest.fixture
def queue(make_queue: Callable[..., Queue]) -> Queue:
    return make_queue("sqlite:///var/taskserver.db")


def add(queue: Queue, *names: object, seconds: float = 0.0) -> None:
    for name in names:
        queue.add("tasks.note", f'["{name}", {seconds}]')


def ran(queue: Queue) -> list[str]:
    """The names of the tasks that ran, in order."""
    return [line.split()[0] for line in queue.notes()]


def assert_one_line_each(queue: Queue, *words: str) -> None:
    """Every command that uses the queue fails in the same way."""
    for arguments in (["worker.py"], ["client.py", "add", "tasks.note", '["lost"]'], ["client.py", "status"]):
        assert_one_line(queue.deployment.run(*arguments, env=IMPATIENT), 1, *words)


def run_until_empty(queue: Queue) -> None:
    """Runs worker.py again and again, as cron does, until no row is left that a run could take."""

    def is_empty() -> bool:
        assert_silent_but_for_fatal(queue.worker(**AFTER_A_CRASH))
        return not queue.sql("SELECT 1 FROM jobs_queue WHERE status IN (0, 1, 3)")

    wait_until(is_empty)


def assert_silent_but_for_fatal(ended: subprocess.CompletedProcess[str]) -> None:
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    assert all(" is fatal: " in line for line in ended.stderr.splitlines()), ended.stderr


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


def test_tables_are_made_by_four_at_once(queue: Queue) -> None:
    # More than once from nothing, as only now and then two of them make the folder at once.
    for _ in range(3):
        shutil.rmtree(queue.path.parent, ignore_errors=True)
        inits = [queue.deployment.popen("client.py", "init") for _ in range(4)]
        assert [(code, errors) for code, _, errors in map(end_of, inits)] == [(0, "")] * 4
    add(queue, "first")
    assert_silent(queue.worker())
    assert ran(queue) == ["first"]


def test_a_folder_that_another_made_meanwhile_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race of the test above, which is seldom lost: it was not there when we looked, and is when we make it."""
    folder = tmp_path / "var"
    folder.mkdir()
    first_looks = [False]
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: first_looks.pop() if first_looks else is_dir(path))
    make_private_folder(folder)
    assert folder.is_dir()


def test_many_short_runs_at_once_on_an_empty_queue_see_no_locked_database(queue: Queue) -> None:
    """The last one to close a database clears its log away while the next one opens it."""
    with Probe(queue.path) as probe:
        for _ in range(5):
            together = [queue.start("--slots", 0) for _ in range(6)]
            assert [end_of(process) for process in together] == [(0, "", "")] * 6
    assert probe.refused, "nobody ever held the lock when it was asked for"


# ---- a full disk


class SmallDisk:
    """A file system of its own, of twelve mebibytes, that is seen by those alone who are sent into it.

    In a mount namespace (and a user namespace, which gives an ordinary user the right to mount): nothing of it is left
    once its holder ends, which it does when this process does.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        self._holder = next(filter(None, map(self._hold, (["--user", "--map-root-user"], []))), None)
        if self._holder is None:
            pytest.skip("no file system may be mounted here, not even in a namespace; a quota stands for it")

    def _hold(self, namespaces: Sequence[str]) -> subprocess.Popen[str] | None:
        mount = f"mount -t tmpfs -o size=12m,mode=0700 small {shlex.quote(str(self.path))} && echo ready && exec cat"
        try:
            holder = subprocess.Popen(
                ["unshare", *namespaces, "--mount", "sh", "-c", mount],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        except OSError:
            return None
        assert holder.stdout is not None
        self._entry = ["nsenter", f"--target={holder.pid}", "--mount"]
        self._entry += ["--user", "--preserve-credentials"] if namespaces else []
        if holder.stdout.readline() == "ready\n" and self._sees():
            return holder
        holder.kill()
        holder.communicate()
        return None

    def _sees(self) -> bool:
        return subprocess.run([*self._entry, "mountpoint", "-q", str(self.path)]).returncode == 0

    def run(self, *command: object) -> str:
        """Runs a command that sees this disk; what it printed."""
        words = [*self._entry, *map(str, command)]
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout

    def free_blocks(self) -> int:
        return int(self.run("stat", "--file-system", "--format=%f", self.path))

    def fill(self) -> None:
        self.run("dd", "if=/dev/zero", f"of={self.path}/filler", "bs=4096")
        assert self.free_blocks() == 0

    def clear(self) -> None:
        self.run("rm", self.path / "filler")
        assert self.free_blocks() > 0

    def remount(self, rights: str) -> None:
        self.run("mount", "-o", f"remount,bind,{rights}", self.path)
        assert rights in self.run("findmnt", "--noheadings", "--output=OPTIONS", self.path).split(",")

    def let_in(self, deployment: Deployment) -> None:
        """From here on the deployment's programs see this disk."""
        deployment.wrap_python(self._entry)

    def close(self) -> None:
        if self._holder is not None:
            self._holder.communicate()


@pytest.fixture
def small_disk(tmp_path: Path, deployment: Deployment) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk")
    disk.let_in(deployment)
    try:
        yield disk
    finally:
        disk.close()


@pytest.fixture
def small_queue(make_queue: Callable[..., Queue], small_disk: SmallDisk) -> Queue:
    """A queue on the small disk; only programs of the deployment reach it."""
    queue = make_queue(f"sqlite:///{small_disk.path}/taskserver.db", tables=False)
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
    assert_full(small_queue.worker(**IMPATIENT), small_disk.path / "taskserver.db")
    assert small_disk.free_blocks() == 0
    assert small_queue.notes() == []
    small_disk.clear()
    assert_silent(small_queue.worker())
    assert ran(small_queue) == ["a", "b", "c"]
    assert small_queue.client("list").stdout == "no tasks\n"


def test_a_disk_that_fills_up_under_a_run_is_one_clear_line_and_nothing_is_lost(
    small_disk: SmallDisk, small_queue: Queue
) -> None:
    add_by_client(small_queue, "fill", task="tasks.fill", more=f', "{small_disk.path}/filler"')
    names = [f"n{number}" for number in range(100)]
    add_by_client(small_queue, *names)
    ended = small_queue.worker(**IMPATIENT, **AFTER_A_CRASH)
    assert_full(ended, small_disk.path / "taskserver.db")
    assert small_disk.free_blocks() == 0
    assert len(ran(small_queue)) < len(names), "the disk was never in the way"
    small_disk.clear()

    def all_is_done() -> bool:
        assert_silent(small_queue.worker(**AFTER_A_CRASH))
        return small_queue.client("list").stdout == "no tasks\n"

    wait_until(all_is_done)
    # What ran while its end could not be written ran again, which one task at most did in each run.
    assert set(ran(small_queue)) == {"fill", *names}
    assert len(ran(small_queue)) <= len(names) + 2


def test_what_a_producer_could_not_write_to_a_full_disk_it_hears_of(small_disk: SmallDisk, small_queue: Queue) -> None:
    """No id is printed for a task that is not there, in the midst of a long file either."""
    add_by_client(small_queue, "first")
    lines = "".join(f'{{"task": "tasks.note", "args": ["{"x" * 100_000}"]}}\n' for _ in range(200))
    added = small_queue.client("add", "--bulk", "-", stdin=lines, env=IMPATIENT)
    assert_full(added, small_disk.path / "taskserver.db")
    assert_silent(small_queue.worker())
    assert ran(small_queue) == ["first"]
    assert small_queue.client("list").stdout == "no tasks\n"


def test_a_file_system_that_became_read_only_is_one_line_and_code_1(small_disk: SmallDisk, small_queue: Queue) -> None:
    add_by_client(small_queue, "first")
    small_disk.remount("ro")
    path = str(small_disk.path / "taskserver.db")
    assert_one_line(small_queue.worker(**IMPATIENT), 1, path)
    assert_one_line(small_queue.client("add", "tasks.note", env=IMPATIENT), 1, path)
    small_disk.remount("rw")
    assert_silent(small_queue.worker())
    assert ran(small_queue) == ["first"]


def limit_files(process: subprocess.Popen[str], most_bytes: int) -> None:
    """No file of a running process may grow beyond this: what a quota does, without a right or a disk of its own."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


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


def test_a_quota_that_is_used_up_is_one_clear_line_and_with_space_again_all_goes_on(queue: Queue) -> None:
    add(queue, "first")
    python = queue.deployment.python
    # Bytecode would be cut off too, and Python would not notice.
    queue.deployment.wrap_python(["env", "PYTHONDONTWRITEBYTECODE=1", "prlimit", "--fsize=4096"])
    assert_one_line_each(queue, str(queue.path))
    assert_full(queue.worker(**IMPATIENT), queue.path)
    assert queue.notes() == []
    queue.deployment.python = python
    assert_silent(queue.worker())
    assert ran(queue) == ["first"]


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
@pytest.mark.parametrize("read_only", [["folder"], ["file"], ["file", "folder"]], ids=" and ".join)
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


@pytest.mark.usefixtures("bound_by_rights")
def test_a_database_that_becomes_read_only_with_the_log_of_a_killed_worker_beside_it(queue: Queue) -> None:
    queue.add("tasks.wait_for_go", '["killed"]')
    add(queue, "second")
    process = queue.start_task(**AFTER_A_CRASH)
    kill(process)
    log = queue.path.with_name("taskserver.db-wal")
    assert log.stat().st_size > 0, "nothing was left to recover"
    everything = [(path, 0o400) for path in queue.path.parent.glob("taskserver.db*")]
    with rights(*everything, (queue.path.parent, 0o500)):
        assert_one_line(queue.worker(), 1, str(queue.path))
    queue.go()
    run_until_empty(queue)
    assert ran(queue).count("second") == 1
    assert queue.statuses() == []


# ---- damaged, and other things in its place


def zero_the_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(100))


def cut_in_half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_to_nothing(path: Path) -> None:
    os.truncate(path, 0)


def fill_with_noise(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(random.Random(7).randbytes(path.stat().st_size - 4096))


def put_a_folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def put_a_folder_in_the_place_of_its_log(path: Path) -> None:
    path.with_name(f"{path.name}-wal").mkdir()


def put_a_pipe_in_its_place(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_a_socket_in_its_place(path: Path) -> None:
    path.unlink()
    here = os.open(path.parent, os.O_RDONLY)
    try:
        # By the short way, as a socket's address has room for 100 bytes alone.
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)


def put_a_link_to_nothing_in_its_place(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


def put_a_link_to_itself_in_its_place(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def put_a_null_device_in_its_place(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/null")


def put_a_text_in_its_place(path: Path) -> None:
    path.write_text("Dear diary, " * 1000)


def delete_it(path: Path) -> None:
    path.unlink()


def delete_its_folder(path: Path) -> None:
    shutil.rmtree(path.parent)


DAMAGES = [
    zero_the_header,
    cut_in_half,
    cut_to_nothing,
    fill_with_noise,
    put_a_folder_in_its_place,
    put_a_folder_in_the_place_of_its_log,
    put_a_pipe_in_its_place,
    put_a_link_to_nothing_in_its_place,
    put_a_null_device_in_its_place,
    delete_it,
    delete_its_folder,
]
LIKE_ONE_OF_THESE = [put_a_socket_in_its_place, put_a_link_to_itself_in_its_place, put_a_text_in_its_place]


@pytest.mark.parametrize(
    "damage",
    [*DAMAGES, *(pytest.param(damage, marks=pytest.mark.long) for damage in LIKE_ONE_OF_THESE)],
    ids=lambda damage: damage.__name__,
)
def test_a_damaged_or_missing_database_is_one_line_that_names_it(queue: Queue, damage: Callable[[Path], None]) -> None:
    add(queue, *(f"{number}{'x' * 100}" for number in range(200)))
    queue.sql("VACUUM")
    damage(queue.path)
    assert_one_line_each(queue, str(queue.path))
    assert queue.notes() == []


@pytest.mark.parametrize("damage", [cut_in_half, fill_with_noise], ids=lambda damage: damage.__name__)
def test_a_database_that_is_damaged_under_a_run_is_one_line_and_code_1(
    queue: Queue, damage: Callable[[Path], None]
) -> None:
    queue.add("tasks.wait_for_go", '["first"]')
    add(queue, *(f"{number}{'x' * 100}" for number in range(200)))
    queue.sql("VACUUM")
    process = queue.start_task(0, "--batch", 1, **IMPATIENT)
    # What the worker wrote so far goes from the log into the file, so that only the file counts.
    queue.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    damage(queue.path)
    queue.go()
    assert_one_line(wait_for(process), 1, str(queue.path))


@pytest.mark.parametrize("damage", [delete_it, delete_its_folder], ids=lambda damage: damage.__name__)
def test_a_database_that_is_deleted_under_a_run_ends_in_one_line_and_no_traceback(
    queue: Queue, damage: Callable[[Path], None]
) -> None:
    """The system keeps a deleted file for those who have it open: the run may end well, the next one must say it."""
    queue.add("tasks.wait_for_go", '["first"]')
    add(queue, "second")
    process = queue.start_task(**IMPATIENT)
    damage(queue.path)
    queue.go()
    code, output, errors = end_of(process)
    assert code in (0, 1)
    assert output == ""
    assert len(errors.splitlines()) == (1 if code else 0), errors
    assert_one_line_each(queue, str(queue.path), "no database")
    assert ran(queue).count("first") == 1


def test_a_database_made_anew_under_a_run_is_left_alone_by_the_old_worker(queue: Queue) -> None:
    queue.add("tasks.wait_for_go", '["old"]')
    process = queue.start_task(**IMPATIENT)
    delete_its_folder(queue.path)
    assert queue.client("init").returncode == 0
    add(queue, "new")
    queue.go()
    code, output, errors = end_of(process)
    assert code in (0, 1)
    assert output == ""
    assert len(errors.splitlines()) == (1 if code else 0), errors
    assert queue.statuses() == [0]
    assert_silent(queue.worker())
    assert ran(queue) == ["old", "new"]
    assert queue.sql("PRAGMA integrity_check") == [("ok",)]


def make_afresh(queue: Queue, rows: int) -> None:
    """A new file in the place of the old one, with so many tasks of three groups, and no log beside it."""
    delete_its_folder(queue.path)
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        server.create_tables()
        server.add_tasks(
            {"task": "tasks.note", "args": [f"{number}{'x' * 100}"], "group_id": number % 3} for number in range(rows)
        )


def assert_ends_by_itself(queue: Queue) -> list[int]:
    """Whatever was hit: what looks and what runs ends with code 0, or with 1 and one line. The codes."""
    codes = []
    for arguments in (["client.py", "status"], ["client.py", "list", "--limit", "1000"], ["worker.py"]):
        ended = queue.deployment.run(*arguments, env=IMPATIENT)
        assert ended.returncode in (0, 1), ended.stderr
        assert "Traceback" not in ended.stderr, ended.stderr
        if ended.returncode == 1:
            assert str(queue.path) in ended.stderr.splitlines()[-1]
        codes.append(ended.returncode)
    return codes


def test_a_schema_that_is_no_text_any_more_is_one_line(queue: Queue) -> None:
    """SQLite quotes it in its message, which is then no text either."""
    content = queue.path.read_bytes()
    assert b"CREATE TABLE" in content
    queue.path.write_bytes(content.replace(b"CREATE TABLE", b"CR\x80ATE TABLE"))
    assert_one_line_each(queue, str(queue.path))


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


@pytest.mark.long
def test_a_page_that_was_wiped_is_one_line_whichever_it_is(queue: Queue) -> None:
    """Some are met when a statement begins, some while its rows are read, some never."""
    codes: list[int] = []
    make_afresh(queue, 200)
    for content in pages_without(queue.path.read_bytes()):
        for left in queue.path.parent.glob("taskserver.db-*"):
            left.unlink()
        queue.path.write_bytes(content)
        codes += assert_ends_by_itself(queue)
    assert set(codes) == {0, 1}, "no page was met, or all of them"


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(places=st.lists(st.integers(0, 2**32), min_size=1, max_size=8), noise=st.binary(min_size=1, max_size=64))
def test_bytes_that_a_bad_disk_turned_are_one_line_at_the_worst(queue: Queue, places: list[int], noise: bytes) -> None:
    make_afresh(queue, 60)
    size = queue.path.stat().st_size
    with queue.path.open("r+b") as file:
        for place in places:
            file.seek(place % size)
            file.write(noise)
    assert_ends_by_itself(queue)
