"""The Python API: settings of a script, adding, running, wrong parameters, threads. For SQLite and for MySQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskserver import Reason, SettingError, TaskServer
from tests.support.deployment import ROOT
from tests.support.queues import row_counts
from tests.support.sites import Site

TASKS = """
import signal
import threading
from taskserver import task
ran = []
seen = {}
server = None
both = threading.Barrier(2)

def meet(number):
    both.wait(30)
    ran.append([[number], {}])

def note(*args, **kwargs):
    ran.append([list(args), kwargs])

def fail():
    raise ValueError("no paper")

def look_at_signals():
    seen["INT"] = signal.getsignal(signal.SIGINT)
    seen["TERM"] = signal.getsignal(signal.SIGTERM)

def add_more(dsn=None, name=None, count=1):
    from taskserver import TaskServer
    if dsn is None:
        for number in range(count):
            server.add_task(f"{name}.note", [number])
        return
    with TaskServer(dsn) as own:
        own.add_tasks({"task": f"{name}.note", "args": [number]} for number in range(count))

def add_more_and_fail(name):
    server.add_task(f"{name}.note", ["added"])
    raise ValueError("after adding")

@task(group_id=3, priority=-1, unique_key=lambda page, text: f"page {page}", rerun=True)
def index(page, text):
    ran.append([page, text])

class Letter:
    @staticmethod
    def fold(times):
        ran.append(["fold", times])

    @classmethod
    def send(cls, to):
        ran.append([cls.__name__, to])

class Parcel(Letter):
    pass
"""


@pytest.fixture
def site(dsn: str, tmp_path: Path) -> Iterator[Site]:
    with closing(Site(dsn, tmp_path, TASKS, {})) as site:
        yield site


@pytest.fixture
def server(site: Site) -> TaskServer:
    return site.server


@pytest.fixture
def tasks(site: Site) -> Any:
    """The module."""
    return site.module


def counts_by_status(server: TaskServer) -> dict[int, int]:
    counts: dict[int, int] = {}
    for count in row_counts(server.store):
        counts[count.status] = counts.get(count.status, 0) + count.rows
    return counts


# ---- from_env

SCRIPT = """\
import sys
from taskserver import TaskServer
with TaskServer.from_env({argument}) as server:
    server.create_tables()
    sys.stdout.write(f"{{server.add_task('tasks.send')}} {{server.settings.table}} {{server.settings.mode}}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has the script of a user."""
    folder = tmp_path / "script"
    folder.mkdir()
    (folder / "add.py").write_text(SCRIPT.format(argument=""))
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A current folder with a .env of its own, which nobody may read."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / ".env").write_text("TASKSERVER_DSN=sqlite:///wrong.db\nTASKSERVER_TABLE=wrong\n")
    return folder


def said_by(script: Path, cwd: Path, **env: str) -> str:
    """What a script printed that was started from `cwd`."""
    env = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), **env}
    ended = subprocess.run([sys.executable, str(script)], cwd=cwd, env=env, capture_output=True, text=True, timeout=60)
    assert ended.stderr == ""
    return ended.stdout


def test_a_script_gets_its_settings_from_the_env_file_beside_it(folder: Path, elsewhere: Path, dsn: str) -> None:
    (folder / ".env").write_text(f"TASKSERVER_DSN='{dsn}'\nTASKSERVER_TABLE=letters\nTASKSERVER_MODE=mark\n")
    assert said_by(folder / "add.py", elsewhere) == "1 letters mark"
    assert os.listdir(elsewhere) == [".env"]


def test_a_script_started_by_a_link_has_settings_and_database_where_it_really_lies(
    folder: Path, elsewhere: Path
) -> None:
    (folder / ".env").write_text("TASKSERVER_DSN=sqlite:///var/q.db\n")
    (elsewhere / "link.py").symlink_to(folder / "add.py")
    assert said_by(elsewhere / "link.py", elsewhere) == "1 jobs_queue delete"
    assert (folder / "var" / "q.db").exists()


def test_a_script_may_name_the_folder_of_its_settings_before_which_the_environment_comes(
    folder: Path, elsewhere: Path
) -> None:
    (folder / ".env").write_text("TASKSERVER_DSN=sqlite:///q.db\nTASKSERVER_TABLE=of_file\nTASKSERVER_MODE=move\n")
    (elsewhere / "named.py").write_text(SCRIPT.format(argument=repr(str(folder))))
    said = said_by(elsewhere / "named.py", elsewhere, TASKSERVER_TABLE="of_environment")
    assert said == "1 of_environment move"
    assert (folder / "q.db").exists()


# ---- context manager, close, reuse


def test_a_server_is_used_again_after_it_was_closed(server: TaskServer, dsn: str) -> None:
    first = server.add_task("tasks.a")
    server.close()
    server.close()
    second = server.add_task("tasks.b")
    with server as same:
        assert same is server
        third = server.add_task("tasks.c")
    assert [task.id for task in server.store.views.list(limit=10)] == [third, second, first]


def test_making_a_server_connects_to_nothing_and_shows_neither_user_nor_password(tmp_path: Path) -> None:
    shown = repr(TaskServer("mysql://somebody:secret@host.invalid/shop", table="letters"))
    assert shown == "TaskServer(host.invalid:3306/shop, table='letters', mode='delete')"
    TaskServer(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()


# ---- add_task


@pytest.mark.parametrize(
    ("task", "given", "stored"),
    [
        ("tasks.clean", {}, (None, 0, 0)),
        ("tasks.send", {"args": {"to": "ä"}, "group_id": 3, "priority": -10}, (r'{"to":"\u00e4"}', 3, -10)),
        ("tasks.low", {"priority": -(2**31)}, (None, 0, -(2**31))),
        ("t." + "a" * 253, {"group_id": 2**32 - 2, "priority": 2**31 - 1}, (None, 2**32 - 2, 2**31 - 1)),
    ],
    ids=["defaults", "all", "least", "most"],
)
def test_a_task_is_added_with_its_arguments_group_and_priority(
    server: TaskServer, task: str, given: dict[str, Any], stored: tuple[Any, ...]
) -> None:
    found = server.store.views.show(server.add_task(task, **given))
    assert found is not None
    assert (found.task, found.columns["args"], found.group_id, found.priority) == (task, *stored)
    assert (found.status, found.attempts, found.columns["claim"], found.archived) == (0, 0, None, False)


def test_a_function_itself_runs_as_its_name_would(server: TaskServer, tasks: Any) -> None:
    server.add_task(tasks.note, ["a", 1])
    server.add_task(tasks.note, {"b": [2, None]})
    server.add_task(tasks.Letter.fold, [3])
    server.add_task(tasks.Letter.send, {"to": "x"})
    server.add_task(tasks.Parcel.send, {"to": "x"})  # inherited: it runs for the class on which it was named
    result = server.run()
    assert (result.done, result.fatal) == (5, 0)
    assert tasks.ran == [[["a", 1], {}], [[], {"b": [2, None]}], ["fold", 3], ["Letter", "x"], ["Parcel", "x"]]


def test_what_a_function_says_of_its_tasks_holds_for_who_gives_the_function(server: TaskServer, tasks: Any) -> None:
    first = server.add_task(tasks.index, [5, "old"])
    assert server.add_tasks([{"task": tasks.index, "args": {"page": 5, "text": "new"}}]) == [first]
    server.add_task(tasks.index, [6, "without a key"], unique_key=None, priority=5)
    server.add_task(f"{tasks.__name__}.index", [7, "by its name"])
    assert server.run(groups=[3]).done == 2
    assert tasks.ran == [[5, "new"], [6, "without a key"]]
    assert server.run(groups=[0]).done == 1


# ---- add_tasks


def test_many_tasks_of_a_generator_get_the_ids_of_their_own_rows(server: TaskServer) -> None:
    ids = server.add_tasks({"task": "tasks.a", "args": (number,), "priority": number} for number in range(2501))
    rows = {task.id: (task.columns["args"], task.priority) for task in server.store.views.list(limit=5000)}
    assert [rows[task_id] for task_id in ids] == [(f"[{number}]", number) for number in range(2501)]
    assert len(rows) == 2501


# ---- run


def test_a_run_says_what_became_of_its_tasks_and_why_it_ended(server: TaskServer, tasks: Any) -> None:
    for task in (tasks.note, tasks.fail, tasks.note):
        server.add_task(task)
    server.add_task("os.getcwd")
    result = server.run()
    assert (result.done, result.failed, result.fatal, result.taken, result.lost, result.released) == (2, 1, 1, 4, 0, 0)
    reason: str | None = result.reason
    assert reason == "empty"
    assert result.reason is Reason.EMPTY
    assert result.seconds > 0
    assert counts_by_status(server) == {3: 1, 4: 1}


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("own", [False, True], ids=["", "own"])
def test_a_task_that_adds_tasks_by_its_worker_s_server_or_its_own_is_done(
    server: TaskServer, tasks: Any, dsn: str, own: bool, batch: int
) -> None:
    tasks.server = server
    server.add_task(tasks.note, ["before"])
    server.add_task(tasks.add_more, {"dsn": dsn if own else None, "name": tasks.__name__, "count": 5})
    server.add_task(tasks.note, ["after"])
    result = server.run(batch=batch)
    assert (result.done, result.fatal, result.lost, result.reason) == (8, 0, 0, Reason.EMPTY)
    assert [args for args, _ in tasks.ran] == [["before"], ["after"], *([number] for number in range(5))]
    assert counts_by_status(server) == {}


# ---- wrong parameters


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        *(({"max_tasks": wrong}, "max_tasks is .*whole number from 0") for wrong in (-1, "100", None, 1.0, True)),
        *(({"groups": wrong}, "groups names .*None for every group") for wrong in ((), range(1000))),
        *(
            ({"groups": wrong}, r"groups is .*; allowed: a list of numbers, as \[3\], or None for every group")
            for wrong in (3, "3,5", b"3", {3: 5})
        ),
        *(({"groups": wrong}, "a group is .*whole number from 0 to 4294967294") for wrong in (["3"], [3, -1], [None])),
        *(({"batch": wrong}, "batch is .*1 to 1000") for wrong in (0, 1001, None)),
        *(({"max_time": wrong}, "max_time is .*, above 0$") for wrong in (0, -1.5, float("nan"), "5", True)),
        ({"max_memory": 0}, "max_memory is 0; allowed: .* above 0"),
    ],
    ids=repr,
)
def test_a_wrong_limit_of_a_run_is_named_with_what_is_allowed(wrong: dict[str, Any], told: str) -> None:
    with TaskServer("sqlite:///:memory:") as server, pytest.raises(SettingError, match=told):
        server.run(**wrong)


# ---- threads, signals


def test_threads_that_add_through_one_server_at_once_get_the_ids_of_their_own_rows(server: TaskServer) -> None:
    together = threading.Barrier(4)

    def add_many(thread: int) -> list[tuple[int, str]]:
        together.wait(30)
        ids = [server.add_task("tasks.a", [thread, number]) for number in range(50)]
        ids += server.add_tasks({"task": "tasks.a", "args": [thread, number]} for number in range(50, 1250))
        return [(task_id, f"[{thread},{number}]") for number, task_id in enumerate(ids)]

    with ThreadPoolExecutor(4) as pool:
        added = [pair for pairs in pool.map(add_many, range(4)) for pair in pairs]
    assert len(added) == 5000
    assert {task.id: task.columns["args"] for task in server.store.views.list(limit=6000)} == dict(added)


def test_runs_of_one_server_in_two_threads_share_the_tasks(server: TaskServer, tasks: Any) -> None:
    # The first two can only end while both threads run one.
    server.add_tasks({"task": tasks.meet, "args": [number]} for number in range(2))
    server.add_tasks({"task": tasks.note, "args": [number]} for number in range(2, 100))
    with ThreadPoolExecutor(2) as pool:
        results = [run.result(60) for run in [pool.submit(server.run, batch=1) for _ in range(2)]]
    assert sum(result.done for result in results) == 100
    assert [result.fatal for result in results] == [0, 0]
    assert sorted(args[0] for args, _ in tasks.ran) == list(range(100))


def test_a_run_leaves_the_handlers_of_sigint_and_sigterm_alone(server: TaskServer, tasks: Any) -> None:
    def mine(number: int, frame: object) -> None: ...

    before = {number: signal.signal(number, mine) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.add_task(tasks.look_at_signals)
        assert server.run().done == 1
        assert tasks.seen == {"INT": mine, "TERM": mine}
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == (mine, mine)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
