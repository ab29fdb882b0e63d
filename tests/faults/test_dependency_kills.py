"""A worker killed as it ends a parent or decides about a child: before each statement in turn, and another ends it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from taskserver import TaskServer
from tests.support.deployment import ROOT
from tests.support.rows import MODES

KILLED = """
import json, os, signal, sys
sys.path.insert(0, sys.argv[1])
from taskserver import TaskServer
from taskserver.stores.queue.dependencies import Dependencies
from taskserver.stores.queue.finishes import Finishes

folder, dsn, mode = sys.argv[2:]

def open_server():
    return TaskServer(dsn, mode=mode, modules="killed_tasks", folder=folder)

def die_before(number):
    \"\"\"Run as a worker, and be killed before this statement of those that concern parents and children.\"\"\"
    server, left, is_settling = open_server(), number, False

    def counted(send):
        def count_and_send(*args):
            nonlocal left
            left -= is_settling
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return send(*args)
        return count_and_send

    def counting(verb):
        def verb_and_count(*args):
            nonlocal is_settling
            is_settling = True
            try:
                return verb(*args)
            finally:
                is_settling = False
        return verb_and_count

    store = server.store
    session = store.database.session()
    session.send, session.send_joined = counted(session.send), counted(session.send_joined)
    Dependencies.decide = counting(Dependencies.decide)
    Finishes._finish_otherwise = counting(Finishes._finish_otherwise)
    server.run()
    os._exit(0)

def add(server, name, *parents):
    return server.add_task("killed_tasks.note", [name], depends_on=parents)

def scene():
    with open_server() as server:
        for table in ("jobs_queue", "jobs_queue_done", "jobs_queue_dependencies"):
            server.store.database.change(f"DELETE FROM {table}")
        first, second = add(server, "first"), add(server, "second")
        child = add(server, "child", first, second)
        add(server, "grandchild", child)
        fatal = add(server, "fatal")
        add(server, "never", add(server, "never", fatal))

def state():
    with open_server() as server:
        look = server.store.database.fetch
        for _ in range(4):  # the killed one's tasks are lost, and then retried
            server.store.database.change("UPDATE {table} SET due_at = '2020-01-01 00:00:00' WHERE status IN (1, 3)")
            server.run()
        rows = look("SELECT status, due_at, error_text FROM {table} WHERE status <> 2 ORDER BY id")
        edges = look("SELECT COUNT(*) FROM {dependencies}")[0][0]
    with open(os.path.join(folder, "noted"), "r+") as noted:
        names = sorted(set(noted.read().split()))  # one whose end was not written has run again
        noted.truncate(0)
    return [[[status, due_at, text.partition(chr(10))[0]] for status, due_at, text in rows], edges, names]

number, states = 0, []
while True:
    number += 1
    scene()
    child = os.fork()
    if child == 0:
        die_before(number)
    killed = os.WIFSIGNALED(os.waitpid(child, 0)[1])
    states.append(state())
    if not killed:
        break
print(json.dumps(states))
"""
KILLED_TASKS = """
import os, pathlib
from taskserver import Fatal

def note(name):
    file = os.open(pathlib.Path(__file__).parent / "noted", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{name}\\n".encode())
    os.close(file)
    if name == "fatal":
        raise Fatal("no")
"""


@pytest.mark.long
@pytest.mark.parametrize("mode", ["delete", *(pytest.param(mode, marks=pytest.mark.long) for mode in MODES[1:])])
def test_what_a_killed_worker_began_another_one_ends_wherever_it_was(dsn: str, tmp_path: Path, mode: str) -> None:
    with TaskServer(dsn) as server:
        server.create_tables()
    (tmp_path / "killed.py").write_text(KILLED)
    (tmp_path / "killed_tasks.py").write_text(KILLED_TASKS)
    (tmp_path / "noted").touch()
    ended = subprocess.run(
        [sys.executable, tmp_path / "killed.py", ROOT, tmp_path, dsn, mode],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    states = json.loads(ended.stdout)
    # So often it was killed; on PostgreSQL several writes are one statement.
    assert len(states) > (30 if dsn.startswith("postgresql:") else 40)
    fatal = [[4, None, "Fatal: no"]] + [[4, None, "dependency: task {}, for which it waits, is fatal"]] * 2
    for number, (rows, edges, names) in enumerate(states, start=1):
        told = [[status, due_at, re.sub(r"task \d+", "task {}", text)] for status, due_at, text in rows]
        assert (told, edges, names) == (fatal, 2, ["child", "fatal", "first", "grandchild", "second"]), number
