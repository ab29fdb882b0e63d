"""Workers that stopped, stand still or vanished, as client.py and the next run report them."""

from __future__ import annotations

import re
import socket

from taskserver.model.task import Status
from taskserver.worker.maintenance import DEAD_WORKER_TEXT
from tests.support.printed import json_of, text_of
from tests.support.processes import assert_silent, end_of, freeze, thaw
from tests.support.queues import Queue

TASKS = """
import os
import time

def hold():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)

def slow():
    time.sleep(0.1)

def end_process():
    os._exit(7)
"""


def test_status_shows_what_runs_in_which_process_and_how_long_the_rest_takes(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    queue.add("tasks.slow", None, 3)
    queue.run_quietly(groups=[3])
    for _ in range(3):
        queue.add("tasks.hold", None, 3)
    assert json_of(queue, "status")["groups"][0]["seconds_left"] is None
    worker = queue.start_task(0, 3)
    report = json_of(queue, "status")
    (process,), (task,), (group,) = report["workers"], report["running"], report["groups"]
    assert [process[key] for key in ("group_ids", "pid", "is_here", "has_ended")] == ["3", worker.pid, True, False]
    assert [task[key] for key in ("id", "task", "attempts", "progress")] == [2, "tasks.hold", 1, None]
    assert (process["claimed"], group["claimed"], group["running"]) == (2, 2, 1)
    assert 3 * 0.1 <= group["seconds_left"] < 3 * 2
    text = text_of(queue, "status")
    assert f"at work: process {worker.pid} on {socket.gethostname()} (this host) for groups 3, since " in text
    assert "  task 2 tasks.hold has run for " in text
    queue.go()
    assert end_of(worker) == (0, "", "")
    assert json_of(queue, "status")["workers"] == []


def test_a_task_that_ends_its_process_is_reported_by_the_next_run_and_others_come_back(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    queue.add("tasks.end_process")
    for _ in range(2):
        queue.add("tasks.note")
    ended = queue.start(TASKSERVER_LEASE="9m")
    assert end_of(ended) == (7, "", "")
    assert queue.statuses() == [Status.IN_PROGRESS] * 3
    text = text_of(queue, "status")
    assert f"gone: process {ended.pid} on {socket.gethostname()} (this host)" in text
    assert "task 1 tasks.end_process was running there: when its lease ends, that attempt fails" in text
    assert f"not ended (pid {ended.pid} is gone)" in text
    assert "1 worker is gone: killed, or a task hung or exited" in text
    assert json_of(queue, "status")["findings"][0]["name"] == "lost"
    assert re.search(r"^ 1  gone +.*in [89] min +tasks\.end_process", text_of(queue, "list"), re.MULTILINE)
    gone = r"gone +its process has ended; the attempt fails when its lease ends \(in [89] min\)"
    assert re.search(gone, text_of(queue, "show", "1"))
    done = queue.worker()
    assert (done.returncode, done.stdout) == (0, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"process {ended.pid} ended while it ran task 1 tasks.end_process: when the lease ends")
    assert queue.notes() == ["noted"] * 2
    assert_silent(queue.worker())  # reported once; the task itself waits for its lease
    assert queue.statuses() == [Status.IN_PROGRESS]
    (process,) = json_of(queue, "status")["workers"]
    assert process["ended_at"] is not None
    queue.end_leases()
    assert_silent(queue.worker())
    assert queue.errors() == [DEAD_WORKER_TEXT.format(ended.pid)]
    queue.run_here()
    assert json_of(queue, "status")["workers"] == []


def test_claims_of_a_process_that_only_stands_still_are_left_alone(queue: Queue) -> None:
    queue.add("tasks.hold")
    worker = queue.start_task()
    freeze(worker)
    queue.run_quietly()
    assert queue.statuses() == [Status.IN_PROGRESS]
    thaw(worker)
    queue.go()
    assert end_of(worker) == (0, "", "")
    assert queue.rows() == []
