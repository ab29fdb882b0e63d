"""programs.py of docs/work/recipes.md: a program ends with its task, and the task says what it said."""

from __future__ import annotations

import pytest

from taskserver import Status
from tests.support.processes import end_of, is_alive, wait_until
from tests.support.queues import Queue
from tests.support.work import RECIPES, paste

BELOW = """

def do(*args):
    return run(*args)


def print_much(bytes):
    with open(HERE / "much", "wb") as file:
        run(["head", "-c", str(bytes), "/dev/zero"], output=file)


def plant():
    inner = f"sleep 600 & echo $! $$ >> {HERE}/pids; wait"
    run(["sh", "-c", f"sh -c '{inner}' & sleep 600 & echo $! $$ >> {HERE}/pids; wait"])


@taskserver.task(timeout=1.5)
def hasty():
    plant()
"""


@pytest.fixture
def queue(sqlite_queue: Queue) -> Queue:
    paste(sqlite_queue, f"{RECIPES}#A program", {}, slice(1, None), BELOW)
    return sqlite_queue


# ---- what ends it


def planted(queue: Queue) -> list[int]:
    """The program, what it started, and what that started: four processes."""
    path = queue.folder / "pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["timeout", "cancelled"])
def test_whatever_ends_a_task_ends_all_that_its_program_started(queue: Queue, is_cancelled: bool) -> None:
    queue.add("tasks.plant" if is_cancelled else "tasks.hasty")
    worker = queue.deployment.popen("worker.py", env={"TASKSERVER_LEASE": "1"})
    wait_until(lambda: len(planted(queue)) == 4)
    assert all(map(is_alive, planted(queue)))
    if is_cancelled:
        assert queue.server.cancel(1) == 1
    end_of(worker)
    wait_until(lambda: not any(map(is_alive, planted(queue))))
    assert queue.statuses() == [Status.CANCELLED if is_cancelled else Status.ERROR]


# ---- what it said


def outcome(queue: Queue, *args: object) -> object:
    """The result of a program, or the first line of its error."""
    task_id = queue.server.add_task("tasks.do", args)
    queue.server.run()
    state = queue.server.get(task_id)
    assert state is not None
    return state.error.partition("\n")[0] if state.error else state.result


def test_a_task_has_what_its_program_printed_or_its_code_and_its_last_words(queue: Queue) -> None:
    queue.deployment.write_env(TASKSERVER_DSN=queue.dsn, TASKSERVER_MODE="mark")
    said = ["sh", "-c"]
    assert outcome(queue, ["cat"], "Grüße 🎉\n" * 2000) == "Grüße 🎉\n" * 2000
    failed = "RuntimeError: sh ended with code"
    assert outcome(queue, [*said, "echo out; echo no such picture >&2; exit 3"]) == f"{failed} 3: no such picture"
    assert outcome(queue, [*said, "kill -9 $$"]) == f"{failed} -9: "
    assert str(outcome(queue, [*said, "seq 100000 >&2; exit 1"])).endswith(" 99999 100000")
    assert "No such file or directory: 'no-such-program'" in str(outcome(queue, ["no-such-program"]))


def test_what_a_program_prints_may_go_to_a_file(queue: Queue) -> None:
    queue.add("tasks.print_much", "[3000000]")
    queue.server.run()
    assert (queue.folder / "much").stat().st_size == 3_000_000
    assert queue.rows() == []


@pytest.mark.parametrize("name", ["tasks.run", "tasks.subprocess.run"])
def test_a_row_cannot_start_a_program_by_its_name(queue: Queue, name: str) -> None:
    made = queue.folder / "made"
    queue.add(name, f'[["touch", "{made}"]]')
    queue.server.run()
    assert queue.statuses() == [Status.FATAL]
    assert not made.exists()
