"""What operators do beside running workers, and Ctrl-C during client.py run."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import time
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from taskserver import TaskServer
from taskserver.host.files import JsonLines
from taskserver.model.selection import Selection
from taskserver.stores.queue.operations import Operations
from tests.support.processes import WAIT_SECONDS, end_of, wait_for, wait_until
from tests.support.queues import LONG_AGO, Queue

TASKS = """
import os, time

def wait():
    note("waits")
    time.sleep(60)

def fail_first(name):
    note(name)
    try:
        os.close(os.open(HERE / f"seen-{name}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    raise ValueError("the first time")
"""


def test_ctrl_c_interrupts_the_task_that_runs_here_and_counts_as_its_failure(queue: Queue) -> None:
    queue.add("tasks.wait")
    process = queue.deployment.popen("client.py", "run", 1)
    wait_until(queue.notes)
    process.send_signal(signal.SIGINT)
    code, output, errors = end_of(process)
    assert code == 0
    assert errors.endswith("TaskInterrupted: stopped by Ctrl-C\n")
    assert re.match(r"task 1 failed after \d+\.\d s, and will be retried at ", output)
    assert queue.rows("status, attempts, claim") == [(3, 1, None)]


OLD_DONE, OLD_FATAL = 6, 7
"""Groups of rows that are to be pruned."""


def fill(queue: Queue, each: int) -> None:
    """So many tasks of five groups, each with its number; and old rows."""
    kinds = {1: "fail_first", 2: "note", 3: "note", 4: "note", 5: "note"}
    rows: list[tuple[object, ...]] = [
        (f"tasks.{task}", json.dumps([f"{group}-{number}"]), group, 0, 1, None)
        for number in range(each)
        for group, task in kinds.items()
    ]
    rows += [("tasks.old", None, OLD_DONE, 2, None, LONG_AGO)] * each
    rows += [("tasks.old", None, OLD_FATAL, 4, None, LONG_AGO)] * each
    columns = "task, args, group_id, status, max_attempts, finished_at"
    for first in range(0, len(rows), 150):
        portion = rows[first : first + 150]
        marks = ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(portion))
        queue.sql(f"INSERT INTO jobs_queue ({columns}) VALUES {marks}", *(value for row in portion for value in row))


def start_worker(queue: Queue) -> subprocess.Popen[str]:
    return queue.start("--batch", 20, "--slots", 0, TASKSERVER_MODE="mark", TASKSERVER_TIMEOUT="0")


class Acted(NamedTuple):
    """How many tasks the operator's verbs changed, and how many notes there were before each round of them."""

    retried: int
    cancelled: int
    moved: int
    pruned: int
    noted: list[int]


def act_until_all_ended(queue: Queue) -> Acted:
    crew = [start_worker(queue) for _ in range(3)]
    retried = cancelled = moved = pruned = 0
    noted: list[int] = []
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        operator = Operations(server.store)
        wait_until(queue.notes)
        deadline = time.monotonic() + WAIT_SECONDS
        while queue.sql(
            "SELECT 1 FROM jobs_queue WHERE status NOT IN (2, 4, 7) OR group_id = 1 AND status = 4 LIMIT 1"
        ):
            assert time.monotonic() < deadline, Counter(queue.rows("group_id, status"))
            noted.append(len(queue.notes()))
            is_odd = len(noted) % 2 == 1
            retried += server.retry(Selection(groups=[1]))
            cancelled += server.cancel(Selection(groups=[2], limit=3))
            moved += operator.set_priority(Selection(groups=[3]), -len(noted))
            server.resume(3)
            (server.pause if is_odd else server.resume)(4)
            pruned += server.prune(3600, done=not is_odd, fatal=is_odd).deleted
            for place, worker in enumerate(crew):
                if worker.poll() is not None:  # it found nothing more, for now
                    assert wait_for(worker).returncode == 0
                    crew[place] = start_worker(queue)
        server.resume(4)
        pruned += server.prune(3600, done=True, fatal=True).deleted
    for worker in crew:
        assert wait_for(worker).returncode == 0
    return Acted(retried, cancelled, moved, pruned, noted)


def test_operators_act_beside_running_workers_and_the_counts_add_up(queue: Queue) -> None:
    each = 60
    fill(queue, each)
    queue.sql("INSERT INTO jobs_queue_paused (group_id) VALUES (3)")  # until its tasks are moved for the first time
    acted = act_until_all_ended(queue)
    ran = Counter(queue.notes())
    of_group = {group: Counter({name: n for name, n in ran.items() if name[0] == str(group)}) for group in range(1, 6)}
    rows = Counter(queue.rows("group_id, status, error_text"))
    # Each failed once, was retried once, and ran well then.
    assert (acted.retried, of_group[1]) == (each, Counter({f"1-{n}": 2 for n in range(each)}))
    assert rows[1, 2, None] == each
    # Each was either cancelled and did not run, or ran once.
    gone = rows[2, 7, "cancelled"]
    assert rows[2, 2, None] == len(of_group[2]) == each - gone
    # Those that ran when they were cancelled may have succeeded.
    assert gone <= acted.cancelled <= gone + 3 * len(acted.noted)
    for group in (3, 4, 5):
        assert of_group[group] == Counter({f"{group}-{n}": 1 for n in range(each)}), group
        assert rows[group, 2, None] == each
    assert set(ran.values()) == {1, 2}
    assert (acted.pruned, rows[OLD_DONE, 2, None], rows[OLD_FATAL, 4, None]) == (2 * each, 0, 0)
    assert acted.moved > 0
    # It was a race: workers went on between the first act and the last.
    assert len(acted.noted) > 2
    assert acted.noted[0] < acted.noted[-1]


def is_larger(file: Path, size: int) -> bool:
    return file.exists() and file.stat().st_size > size


def test_a_killed_prune_leaves_each_row_in_the_file_or_in_the_table(queue: Queue) -> None:
    fill(queue, 1000)
    old = {row_id for row_id, group in queue.rows("id, group_id") if group in (OLD_DONE, OLD_FATAL)}
    file = queue.folder / "old.jsonl.gz"
    arguments = ("prune", "--older-than", "1d", "--done", "--fatal", "--archive-to", str(file))
    for kills in range(1, 4):
        process = queue.deployment.popen("client.py", *arguments)
        wait_until(partial(is_larger, file, file.stat().st_size if file.exists() else 0))
        time.sleep(kills / 200)
        process.kill()
        process.wait()
        left = {row_id for (row_id,) in queue.rows("id")}
        assert left & old, "it was not killed in the middle"
        with closing(JsonLines(file)), gzip.open(file, "rt") as lines:  # what the kill cut off is removed
            written = {json.loads(line)["id"] for line in lines}
        assert written | left >= old
    assert queue.client(*arguments).returncode == 0
    shown = subprocess.run(["zcat", file], check=True, capture_output=True, text=True).stdout
    assert {json.loads(line)["id"] for line in shown.splitlines()} == old
    assert old.isdisjoint(row_id for (row_id,) in queue.rows("id"))
