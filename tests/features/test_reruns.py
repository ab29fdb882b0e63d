"""Reruns, as producers see them: by the API and by SQL, of tasks that wait, that run, and racing with workers.

Workers are real processes. A race shows that it raced: a change came in the midst of a run. What a rerun makes of a row
in any state, with any version, is shown by tests/contract/test_rerun.py.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from taskserver import TaskServer
from tests.faults.test_races import GROUPS, Race
from tests.support.processes import WAIT_SECONDS, end_of, kill, wait_until
from tests.support.queues import Queue
from tests.support.reruns import GOES_ON, STATES, assert_run_again, put_each_state, rerun_by_sql

MODES = ("delete", "move", "mark")
KEY = "index"
PRODUCERS = 4
WORKERS = 3
SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_MAX_ATTEMPTS": "3", "TASKSERVER_BACKOFF": "fixed:500"}
"""Nothing ends or comes back while a test looks, unless it says so."""

TASKS = """
import os
import time

import taskserver

def wait(name):
    while not (HERE / name).exists():
        time.sleep(0.005)

def hold(text):
    note(text)
    wait(os.environ.get("GO", "go"))

def hold_and_fail(text):
    hold(text)
    raise ValueError("as it was asked to")

def hold_and_give_up(text):
    hold(text)
    raise taskserver.Fatal("as it was asked to")

@taskserver.task(timeout=1)
def hold_too_long(text):
    note(text)
    wait("what never comes")

hold_until_killed = hold
"""


# ---- a task that does not run


def test_a_rerun_by_sql_makes_a_row_new_unless_it_runs_or_waits_for_other_tasks(queue: Queue) -> None:
    put_each_state(queue)
    kept = "SELECT status, claim, due_at, started_at FROM jobs_queue WHERE unique_key = ?"
    before = {state: queue.sql(kept, state) for state in GOES_ON}
    for state in STATES:
        rerun_by_sql(queue, [state], state)
    assert_run_again(queue)
    assert {state: queue.sql(kept, state) for state in GOES_ON} == before
    queue.run_quietly(mode="mark")
    assert queue.notes() == [state for state in STATES if state not in GOES_ON]
    assert set(queue.sql("SELECT attempts, claim FROM jobs_queue WHERE status = 2")) == {(1, None)}


def test_a_claimed_task_is_taken_from_its_worker_without_a_word(queue: Queue) -> None:
    queue.deployment.claim_at_once()
    queue.server.add_task("tasks.hold", ["held"], priority=-1)
    queue.server.add_task("tasks.note", ["old"], unique_key=KEY)
    process = queue.start_task()
    assert queue.statuses() == [1, 1]
    rerun_by_sql(queue, ["new"], KEY)
    assert queue.statuses() == [1, 0]
    queue.run_quietly(1)
    queue.go()
    assert end_of(process) == (0, "", "")
    assert (queue.notes(), queue.rows()) == (["held", "new"], [])


# ---- a task that runs


def rerun_by_api(queue: Queue, args: list[object], key: str) -> None:
    with TaskServer(queue.dsn, folder=queue.folder) as server:
        server.add_task("tasks.note", args, unique_key=key, rerun=True)


FIRST_RUNS = ["hold", "hold_and_fail", "hold_and_give_up", "hold_too_long", "hold_until_killed"]
"""How the run ends that is under way when its task is changed."""
EACH_FIRST_RUN = [
    ("hold", "mark", rerun_by_sql),
    *(("hold", mode, rerun_by_api) for mode in MODES),
    *((name, "mark", rerun_by_api) for name in FIRST_RUNS[1:]),
    *(
        pytest.param(name, mode, rerun_by_api, marks=pytest.mark.long)
        for name in FIRST_RUNS[1:]
        for mode in ("delete", "move")
    ),
]


def assert_ran_once_more(queue: Queue, mode: str) -> None:
    assert queue.notes() == ["old", "new 5"]
    left = {"delete": [], "move": [], "mark": [(2, 1, None)]}[mode]
    assert queue.rows("status, attempts, error_text") == left
    assert queue.rows("status, attempts, args", "jobs_queue_done") == ([(2, 1, '["new 5"]')] if mode == "move" else [])


@pytest.mark.parametrize(("first", "mode", "rerun"), EACH_FIRST_RUN)
def test_a_running_task_that_is_changed_five_times_runs_once_more_however_it_ends(
    queue: Queue, first: str, mode: str, rerun: Callable[..., None]
) -> None:
    queue.server.add_task(f"tasks.{first}", ["old"], unique_key=KEY)
    process = queue.start_task("--mode", mode)
    for number in range(1, 6):
        rerun(queue, [f"new {number}"], KEY)
    # It runs still.
    assert queue.rows("status, attempts, started_at IS NOT NULL") == [(1, 0, 1)]
    if first == "hold_until_killed":
        kill(process)
        queue.move_workers()
        queue.run_quietly(mode=mode)
        assert (queue.statuses(), queue.notes()) == ([1], ["old"])  # while the lease holds
        queue.end_leases()
        queue.run_quietly(mode=mode)
    else:
        queue.go()
        code, output, errors = end_of(process)
        assert (code, output) == (0, "")
        assert "lease was lost" not in errors
    assert_ran_once_more(queue, mode)


def test_a_running_task_rerun_for_another_group_runs_again_there_right_after(queue: Queue) -> None:
    queue.server.add_task("tasks.hold", ["old"], unique_key=KEY, group_id=3)
    process = queue.start_task(0, 3)
    queue.server.add_task("tasks.note", ["new"], unique_key=KEY, rerun=True, group_id=5, delay=3600)
    queue.go()
    assert end_of(process) == (0, "", "")
    assert queue.notes() == ["old"]
    queue.run_quietly(groups=[5])
    assert (queue.notes(), queue.rows()) == (["old", "new"], [])


# ---- races

# What a task of a race leaves behind: a line as it begins and one as it ends. A short write to the end is one piece.
STEPS = """
import logging, os, pathlib, time

HERE = pathlib.Path(__file__).resolve().parent
STEPS = os.open(HERE / "steps", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
logging.getLogger("taskserver").addHandler(logging.FileHandler(HERE / "warnings", delay=True))

def write(*words):
    os.write(STEPS, (" | ".join(map(str, [*words, time.monotonic()])) + chr(10)).encode())

def step(key, number, seconds):
    write("begin", key, number)
    time.sleep(seconds)
    write("end", key, number)

def hold(key, number):
    write("begin", key, number)
    while not (HERE / "changed").exists():
        time.sleep(0.005)
    write("end", key, number)
"""


class Step(NamedTuple):
    """A run of a task begins, or ends; the clock is one for all processes of this machine."""

    word: str
    key: str
    number: int
    at: float


@contextmanager
def racing(queue: Queue, folder: Path, mode: str) -> Iterator[Race]:
    """In the `with`, workers' processes drain the queue until the producers are done."""
    race = Race(folder, queue.dsn, mode)
    (folder / "race_tasks.py").write_text(STEPS)
    try:
        race.get_ready(WORKERS, batch=3, until=True)
        race.go()
        yield race
    finally:
        race.close()


def steps_in(folder: Path) -> list[Step]:
    lines = [line.split(" | ") for line in (folder / "steps").read_text().splitlines()]
    return [Step(word, key, int(number), float(at)) for word, key, number, at in lines]


def runs_of(steps: Sequence[Step], key: str) -> Iterator[tuple[Step, Step]]:
    of_key = [step for step in steps if step.key == key]
    yield from zip(of_key[::2], of_key[1::2], strict=True)


def assert_never_two_at_once(steps: Sequence[Step]) -> None:
    for key in {step.key for step in steps}:
        for begin, end in runs_of(steps, key):
            assert (begin.word, end.word, begin.number) == ("begin", "end", end.number), key


class Change(NamedTuple):
    """A producer wrote this number into the row of this key, between these instants."""

    key: str
    number: int
    before: float
    after: float

    def came_within_a_run(self, steps: Sequence[Step]) -> bool:
        """Of its own key."""
        return any(begin.at < self.before and self.after < end.at for begin, end in runs_of(steps, self.key))


EACH_RACE = pytest.mark.parametrize(
    ("store", "mode"),
    [
        ("sqlite", "delete"),
        ("mysql", "mark"),
        *(pytest.param("sqlite", mode, marks=pytest.mark.long) for mode in ("move", "mark")),
        *(pytest.param("mysql", mode, marks=pytest.mark.long) for mode in ("delete", "move")),
    ],
)


@EACH_RACE
def test_the_last_change_of_each_key_is_run_and_no_key_by_two_workers_at_once(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, mode: str
) -> None:
    """Where rows are kept, the key that all change has versions that come in any order: the newest is run last."""
    queue: Queue = request.getfixturevalue(f"{store}_queue")
    numbers = list(range(1, 40 * PRODUCERS + 1))
    random.Random(mode).shuffle(numbers)

    # Once each producer has changed something, `hold` in a worker comes to its end.
    all_began = threading.Barrier(PRODUCERS, (tmp_path / "changed").touch, WAIT_SECONDS)

    def produce(producer: int) -> list[Change]:
        changes = []
        with TaskServer(queue.dsn, mode=mode) as server:
            for number in range(40):
                shared = numbers[producer * 40 + number]
                version = shared if mode == "mark" else None
                # Its own key, so that its last change is the last of all; and one that all of them change.
                for key, known in ((f"own {producer}", {}), ("shared", {"version": version})):
                    args = [key, number if key != "shared" else shared, 0.03]
                    before = time.monotonic()
                    more: dict[str, Any] = {"group_id": GROUPS[number % 3], "priority": number % 5, **known}
                    server.add_task("race_tasks.step", args, unique_key=key, rerun=True, **more)
                    changes.append(Change(key, number if key != "shared" else shared, before, time.monotonic()))
                if number == 0:
                    all_began.wait()
        return changes

    with TaskServer(queue.dsn) as server:
        server.add_task("race_tasks.hold", ["shared", 0], unique_key="shared", rerun=True, version=0, group_id=3)
    with racing(queue, tmp_path, mode) as race:
        wait_until(lambda: (tmp_path / "steps").exists() and steps_in(tmp_path))
        with ThreadPoolExecutor(PRODUCERS) as pool:
            changes = list(pool.map(produce, range(PRODUCERS)))
        race.producers_are_done.touch()
        race.outcomes()
    warnings = (tmp_path / "warnings").read_text() if (tmp_path / "warnings").exists() else ""
    assert [line for line in warnings.splitlines() if "is not in the main thread" not in line] == []
    steps = steps_in(tmp_path)
    assert_never_two_at_once(steps)
    for producer, own in enumerate(changes):
        last = own[-2]
        *_, (run, _) = runs_of(steps, f"own {producer}")
        assert (run.number, run.at > last.before) == (last.number, True)
    runs = [begin.number for begin, _ in runs_of(steps, "shared")]
    if mode == "mark":
        assert runs == sorted(set(runs))
        assert runs[-1] == max(numbers)
        assert queue.rows("status, attempts") == [(2, 1)] * (PRODUCERS + 1)
    else:
        assert runs[-1] in {own[-1].number for own in changes}
        assert queue.rows() == []
    assert any(change.came_within_a_run(steps) for own in changes for change in own)
