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
from taskserver import task
ran = []
seen = {}
server = None

def note(*args, **kwargs):
    ran.append([list(args), kwargs])

def fail():
    raise ValueError("no paper")

def look_at_signals():
    seen["INT"] = signal.getsignal(signal.SIGINT)
    seen["TERM"] = signal.getsignal(signal.SIGTERM)

def add_more(dsn, name):
    from taskserver import TaskServer
    adding = TaskServer(dsn) if dsn else server
    adding.add_tasks({"task": f"{name}.note", "args": [number]} for number in range(5))

@task(group_id=3, priority=-1, unique_key=lambda page, text: f"page {page}", rerun=True)
def index(page, text):
    ran.append([page, text])

class Letter:
    @staticmethod
    def fold(times):
        ran.append(["fold", times])

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


# ---- from_env

SCRIPT = """
from taskserver import TaskServer
with TaskServer.from_env({folder}) as server:
    server.create_tables()
    print(server.add_task("tasks.send"), server.settings.table, server.settings.mode)
"""


@pytest.mark.parametrize("is_named", [False, True], ids=["", "named"])
def test_a_script_has_the_settings_beside_it_or_in_the_folder_that_it_names_and_the_environment_comes_first(
    tmp_path: Path, is_named: bool
) -> None:
    for name, table in (("script", "letters"), ("elsewhere", "wrong")):
        (tmp_path / name).mkdir()
        text = f"TASKSERVER_DSN=sqlite:///var/q.db\nTASKSERVER_TABLE={table}\nTASKSERVER_MODE=move\n"
        (tmp_path / name / ".env").write_text(text)
    script = tmp_path / "elsewhere" / "add.py" if is_named else tmp_path / "script" / "add.py"
    script.write_text(SCRIPT.format(folder=repr(str(tmp_path / "script")) if is_named else ""))
    env = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "TASKSERVER_MODE": "mark"}
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, cwd=tmp_path / "elsewhere", env=env, capture_output=True, text=True, timeout=60)
    assert (ended.stdout, ended.stderr) == ("1 letters mark\n", "")
    assert (tmp_path / "script" / "var" / "q.db").exists()


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


def test_making_a_server_connects_to_nothing_and_shows_neither_user_nor_password() -> None:
    shown = repr(TaskServer("mysql://somebody:secret@host.invalid/shop", table="letters"))
    assert shown == "TaskServer(host.invalid:3306/shop, table='letters', mode='delete')"


# ---- adding functions


def test_a_function_itself_runs_as_its_name_would(server: TaskServer, tasks: Any) -> None:
    server.add_task(tasks.note, ["a", 1])
    server.add_task(tasks.note, {"b": [2, None]})
    server.add_task(tasks.Letter.fold, [3])
    result = server.run()
    assert (result.done, result.fatal) == (3, 0)
    assert tasks.ran == [[["a", 1], {}], [[], {"b": [2, None]}], ["fold", 3]]


def test_what_a_function_says_of_its_tasks_holds_for_who_gives_the_function(server: TaskServer, tasks: Any) -> None:
    first = server.add_task(tasks.index, [5, "old"])
    assert server.add_tasks([{"task": tasks.index, "args": {"page": 5, "text": "new"}}]) == [first]
    server.add_task(tasks.index, [6, "without a key"], unique_key=None, priority=5)
    server.add_task(f"{tasks.__name__}.index", [7, "by its name"])
    assert server.run(groups=[3]).done == 2
    assert tasks.ran == [[5, "new"], [6, "without a key"]]
    assert server.run(groups=[0]).done == 1


# ---- run


def test_a_run_says_what_became_of_its_tasks_and_why_it_ended(server: TaskServer, tasks: Any) -> None:
    for task in (tasks.note, tasks.fail, tasks.note):
        server.add_task(task)
    server.add_task("os.getcwd")
    result = server.run()
    assert (result.done, result.failed, result.fatal, result.taken, result.lost, result.released) == (2, 1, 1, 4, 0, 0)
    assert result.reason is Reason.EMPTY
    assert result.seconds > 0
    assert sorted((count.status, count.rows) for count in row_counts(server.store)) == [(3, 1), (4, 1)]


@pytest.mark.parametrize("own", [False, True], ids=["", "own"])
def test_a_task_that_adds_tasks_by_its_worker_s_server_or_its_own_is_done(
    server: TaskServer, tasks: Any, dsn: str, own: bool
) -> None:
    tasks.server = server
    server.add_task(tasks.note, ["before"])
    server.add_task(tasks.add_more, [dsn if own else None, tasks.__name__])
    server.add_task(tasks.note, ["after"])
    result = server.run()
    assert (result.done, result.fatal, result.lost, result.reason) == (8, 0, 0, Reason.EMPTY)
    assert [args for args, _ in tasks.ran] == [["before"], ["after"], *([number] for number in range(5))]
    assert row_counts(server.store) == []


# ---- wrong parameters


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"max_tasks": -1}, "max_tasks is .*whole number from 0"),
        ({"groups": ()}, "groups names .*None for every group"),
        ({"groups": "3,5"}, r"groups is .*; allowed: a list of numbers, such as \[3\], or None for every group"),
        ({"groups": ["3"]}, "a group is .*whole number from 0 to 4294967294"),
        ({"batch": 1001}, "batch is .*1 to 1000"),
        ({"max_time": float("nan")}, "max_time is .*, above 0$"),
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
