"""Several workers from one line (--processes): the supervisor replaces, kills, hands on, and leaves no orphans."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskserver.worker.vanished import WHEN
from tests.support.printed import json_of
from tests.support.processes import assert_one_line, assert_silent, end_of, is_alive, kill, wait_until
from tests.support.queues import Queue
from tests.support.turns import A_SERVER

TASKS = """
import os
import signal
import sys
import time

from taskserver import Fatal, task

def hold():
    note(os.getpid())
    while not (HERE / "go").exists():
        time.sleep(0.01)

def die(number):
    note(os.getpid())
    os.kill(os.getpid(), number)

def die_later():
    note(os.getpid())
    while not (HERE / "die").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), 9)

def leave(code):
    os._exit(code)

def fail():
    raise Fatal("no")

def close_all(path):
    os.closerange(3, 300)
    for number in range(20):
        open(f"{path}/own{number}", "wb")
    files.extend(open(f"{path}/own{number}", "r+b") for number in range(20))

files = []

def read():
    note(repr(sys.stdin.read()))

@task(timeout=0.2)
def stay():
    note(os.getpid())
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""
SETTINGS = {"TASKSERVER_BACKOFF": "fixed:500", "TASKSERVER_LEASE": "600"}


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The process ids of its workers."""
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


@pytest.fixture
def held(queue: Queue) -> Iterator[tuple[Queue, subprocess.Popen[str], set[int]]]:
    """Two workers that hold a task each, and two more tasks behind these."""
    for _ in range(2):
        queue.add("tasks.hold", None, 0)
    queue.add("tasks.note")
    process = queue.start(0, "--processes", 2, "--batch", 1)
    wait_until(lambda: len(queue.notes()) == 2)
    workers = set(map(int, queue.notes()))
    yield queue, process, workers
    queue.go()
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, workers)))


Held = tuple[Queue, subprocess.Popen[str], set[int]]


@A_SERVER
def test_several_workers_run_tasks_at_once_and_end_as_one_program(held: Held) -> None:
    queue, process, workers = held
    assert len(workers) == 2
    assert set(workers_of(process)) == workers
    queue.go()
    assert end_of(process) == (0, "", "")
    assert queue.rows() == []


@A_SERVER
def test_a_signal_reaches_all_workers_which_finish_their_tasks(held: Held) -> None:
    queue, process, _ = held
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)  # several looks of the supervisor
    assert process.poll() is None
    queue.go()
    assert end_of(process) == (0, "", "")
    assert queue.statuses() == [0]


def test_a_signal_to_the_whole_group_counts_once(sqlite_queue: Queue) -> None:
    """As `timeout` sends one, and a terminal at Ctrl-C."""
    for _ in range(2):
        sqlite_queue.add("tasks.hold")
    sqlite_queue.deployment.wrap_python(["setsid"])
    process = sqlite_queue.start(0, "--processes", 2, "--batch", 1)
    wait_until(lambda: len(sqlite_queue.notes()) == 2)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(0.3)  # several looks of the supervisor
    sqlite_queue.go()
    assert end_of(process) == (0, "", "")
    assert sqlite_queue.rows() == []  # no task was interrupted


def test_a_signal_to_each_process_counts_once(sqlite_queue: Queue) -> None:
    """As one of systemd's, or of a host that goes down."""
    for _ in range(2):
        sqlite_queue.add("tasks.hold")
    process = sqlite_queue.start(0, "--processes", 2, "--batch", 1)
    wait_until(lambda: len(sqlite_queue.notes()) == 2)
    for pid in (process.pid, *workers_of(process)):
        os.kill(pid, signal.SIGTERM)
    time.sleep(0.5)  # it is handed on
    sqlite_queue.go()
    assert end_of(process) == (0, "", "")
    assert sqlite_queue.rows() == []  # no task was interrupted


@pytest.mark.parametrize("options", [(), ("--processes", 1)], ids=["a worker", "a supervisor"])
def test_two_signals_right_after_each_other_are_one_wish(sqlite_queue: Queue, options: tuple[object, ...]) -> None:
    """As `timeout` sends one to its child, and one to the group of both."""
    sqlite_queue.add("tasks.hold")
    process = sqlite_queue.start(0, *options)
    wait_until(lambda: len(sqlite_queue.notes()) == 1)
    for _ in range(2):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.02)  # the program has heard it
    time.sleep(0.3)  # several looks of the supervisor
    sqlite_queue.go()
    assert end_of(process) == (0, "", "")
    assert sqlite_queue.rows() == []  # the task was not interrupted


@A_SERVER
def test_a_second_signal_interrupts_the_tasks_of_all(held: Held) -> None:
    queue, process, _ = held
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)  # the first one is handed on by itself
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (0, "", "")
    assert sorted(queue.statuses()) == [0, 3, 3]
    assert [error for error in queue.first_lines() if error] == ["TaskInterrupted: stopped by a second signal"] * 2


@A_SERVER
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_worker_that_dies_is_replaced_and_its_tasks_come_back_at_once(queue: Queue, number: signal.Signals) -> None:
    queue.add("tasks.die", f"[{int(number)}]")
    for _ in range(3):
        queue.add("tasks.note")
    ended = queue.worker(0, "--processes", 1)
    assert (ended.returncode, ended.stdout) == (0, "")
    died, ran = ended.stderr.splitlines()
    (pid, *others) = queue.notes()
    assert died == f"process {pid}, a worker of this line, died: {number.name}"
    assert re.fullmatch(rf"task 1 tasks.die comes again in 5\d\d s: lost: its worker, process {pid}, .*", ran)
    assert others == ["noted"] * 3
    assert queue.statuses() == [3]
    assert queue.errors() == [f"lost: its worker, process {pid}, ended {WHEN}"]


def test_a_worker_in_the_place_of_a_dead_one_that_cannot_begin_is_started_again(sqlite_queue: Queue) -> None:
    (sqlite_queue.folder / "var").mkdir(exist_ok=True)
    for name in ("hold", "die_later"):
        sqlite_queue.add(f"tasks.{name}")
    process = sqlite_queue.start(0, "--processes", 2, "--batch", 1, TASKSERVER_LOG="var/log")
    wait_until(lambda: len(sqlite_queue.notes()) == 2)
    sqlite_queue.sql("UPDATE jobs_queue_schema SET version = version + 1")  # as if the database were away
    sqlite_queue.add("tasks.note")
    sqlite_queue.go("die")
    log = sqlite_queue.folder / "var" / "log"
    wait_until(lambda: ": the tables of jobs_queue" in log.read_text())
    sqlite_queue.sql("UPDATE jobs_queue_schema SET version = version - 1")
    wait_until(lambda: sqlite_queue.notes()[-1] == "noted")
    sqlite_queue.go()
    code, _, errors = end_of(process)
    assert (code, len(errors.splitlines())) == (0, 2)
    assert sqlite_queue.statuses() == [3]


def test_a_task_that_ends_the_process_with_a_code_is_told_so(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.leave", "[1]")
    ended = sqlite_queue.worker(0, "--processes", 2)
    assert ended.returncode == 0
    assert "died: exit code 1" in ended.stderr
    assert "task 1 tasks.leave comes again in" in ended.stderr


@pytest.mark.long
def test_a_worker_whose_task_outruns_its_timeout_and_a_grace_is_killed(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.stay")
    sqlite_queue.add("tasks.note")
    ended = sqlite_queue.worker(0, "--processes", 1)
    (pid, noted) = sqlite_queue.notes()
    assert (ended.returncode, noted) == (1, "noted")
    killed, died, ran = ended.stderr.splitlines()
    assert f"process {pid} is killed: its task goes on 10 s after its timeout" in killed
    assert died.endswith("died: SIGKILL")
    assert "task 1 tasks.stay comes again in" in ran
    assert sqlite_queue.statuses() == [3]


@A_SERVER
def test_workers_whose_supervisor_is_killed_end_after_their_tasks(held: Held) -> None:
    queue, process, workers = held
    kill(process)
    time.sleep(0.3)  # several looks of the workers
    assert all(map(is_alive, workers))
    queue.go()
    wait_until(lambda: not any(map(is_alive, workers)))
    assert queue.statuses() == [0]
    assert_silent(queue.worker())


def test_idle_workers_whose_supervisor_is_killed_end_at_once(sqlite_queue: Queue) -> None:
    process = sqlite_queue.start(0, "--processes", 2, "--linger", 60)
    wait_until(lambda: len(sqlite_queue.sql("SELECT pid FROM jobs_queue_processes")) == 2)
    workers = workers_of(process)
    kill(process)
    wait_until(lambda: not any(map(is_alive, workers)))
    assert sqlite_queue.sql("SELECT pid FROM jobs_queue_processes") == []


@pytest.mark.long
def test_a_replaced_worker_does_not_drive_out_the_next_line_s(sqlite_queue: Queue) -> None:
    line = (0, "--processes", 1, "--linger", 60, "--slots", 1)
    sqlite_queue.add("tasks.hold")
    first = sqlite_queue.start_task(*line)
    (holding,) = workers_of(first)
    second = sqlite_queue.start(*line)
    wait_until(lambda: workers_of(second))
    (waiting,) = workers_of(second)
    time.sleep(0.5)  # it waits for the slot by then, or gets it a moment later
    os.kill(holding, signal.SIGKILL)
    assert end_of(first)[0] == 0
    wait_until(lambda: sqlite_queue.sql("SELECT pid FROM jobs_queue_processes WHERE ended_at IS NULL") == [(waiting,)])
    time.sleep(0.5)  # several looks for a successor
    assert workers_of(second) == [waiting]
    second.terminate()
    assert end_of(second)[0] == 0


def test_workers_that_all_die_while_they_are_stopped_leave_a_code_all_the_same(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.hold")
    process = sqlite_queue.start_task(0, "--processes", 1)
    (worker,) = workers_of(process)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)  # it is handed on
    os.kill(worker, signal.SIGKILL)
    code, output, told = end_of(process)
    assert (code, output, "died: SIGKILL" in told) == (0, "", True)
    assert "mistake" not in told
    assert sqlite_queue.statuses() == [3]


def test_it_works_for_callers_that_ignore_the_ends_of_children(sqlite_queue: Queue) -> None:
    sqlite_queue.deployment.wrap_python(["env", "--ignore-signal=CHLD"])
    sqlite_queue.add("tasks.note")
    assert_silent(sqlite_queue.worker(0, "--processes", 2))
    assert sqlite_queue.notes() == ["noted"]


def test_a_task_that_closes_all_descriptors_finds_no_word_of_ours_in_its_files(sqlite_queue: Queue) -> None:
    folder = sqlite_queue.folder / "own"
    folder.mkdir()
    sqlite_queue.add("tasks.close_all", f'["{folder}"]')
    sqlite_queue.add("tasks.fail")
    sqlite_queue.worker(0, "--processes", 1)
    assert {path.read_bytes() for path in folder.iterdir()} == {b""}


def test_what_a_task_reads_is_empty(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.read")
    assert_silent(sqlite_queue.worker(0, "--processes", 1))
    assert sqlite_queue.notes() == ["''"]


def test_a_hook_that_ends_the_process_ends_no_supervisor(sqlite_queue: Queue) -> None:
    (sqlite_queue.folder / "alerts.py").write_text("import os\ndef tell(failed): os._exit(9)\n")
    sqlite_queue.add("tasks.leave", "[3]")
    sqlite_queue.add("tasks.note")
    ended = sqlite_queue.worker(0, "--processes", 1, TASKSERVER_ON_FAILURE="alerts:tell")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert sqlite_queue.notes() == ["noted"]
    assert sqlite_queue.statuses() == [3]


def test_a_program_that_a_hook_starts_after_a_death_obeys_signals(sqlite_queue: Queue) -> None:
    path = sqlite_queue.folder / "status"
    copy = f"subprocess.run(['cp', '/proc/self/status', {str(path)!r}])"
    (sqlite_queue.folder / "alerts.py").write_text(f"import subprocess\ndef tell(failed): {copy}\n")
    sqlite_queue.add("tasks.leave", "[3]")
    sqlite_queue.worker(0, "--processes", 1, TASKSERVER_ON_FAILURE="alerts:tell")
    masks = {name: int(mask, 16) for name, mask in re.findall(r"(Sig(?:Blk|Ign)):\s*(\w+)", path.read_text())}
    term = 1 << (signal.SIGTERM - 1)
    assert {name: mask & term for name, mask in masks.items()} == {"SigBlk": 0, "SigIgn": 0}


@pytest.mark.parametrize("refused", [range(2, 4), range(1, 99)], ids=["for a while", "for ever"])
def test_a_host_that_refuses_processes_is_asked_again(sqlite_queue: Queue, refused: range) -> None:
    sqlite_queue.add("tasks.note")
    code = (
        "import os\nfork, count = os.fork, [0]\n"
        "def refuse():\n    count[0] += 1\n"
        f"    if count[0] in {refused!r}:\n        raise OSError(11, 'Resource temporarily unavailable')\n"
        "    return fork()\nos.fork = refuse\n"
    )
    (sqlite_queue.folder / "sitecustomize.py").write_text(code)
    ended = sqlite_queue.worker(0, "--processes", 2, PYTHONPATH=str(sqlite_queue.folder))
    lines = ended.stderr.splitlines()
    assert "the host lets no process be started now" in lines[0]
    if refused[0] == 1:
        assert (ended.returncode, len(lines)) == (1, 2)
        assert "take fewer --processes" in lines[1]
    else:
        assert (ended.returncode, len(lines), sqlite_queue.notes()) == (0, 1, ["noted"])


def test_a_worker_that_the_host_lets_open_nothing_does_not_become_a_supervisor(sqlite_queue: Queue) -> None:
    """It would start workers, and each of these would, and no signal would end them all."""
    sqlite_queue.add("tasks.note")
    code = (
        "import os, sys\nreal, pid = os.dup2, os.getpid()\n"
        "def refuse(*numbers):\n    if os.getpid() != pid:\n        raise OSError(24, 'Too many open files')\n"
        "    return real(*numbers)\nos.dup2 = refuse\n"
    )
    (sqlite_queue.folder / "sitecustomize.py").write_text(code)
    ended = sqlite_queue.worker(0, "--processes", 3, PYTHONPATH=str(sqlite_queue.folder))
    assert_one_line(ended, 1, "worker.py: Too many open files", "may keep what they took")
    assert sqlite_queue.statuses() == [0]


def test_all_workers_share_the_lines_of_one_run(sqlite_queue: Queue) -> None:
    sqlite_queue.server.add_tasks({"task": "tasks.fail"} for _ in range(90))
    ended = sqlite_queue.worker(0, "--processes", 3, "--batch", 5)
    assert (ended.returncode, ended.stdout) == (0, "")
    *lines, last = ended.stderr.splitlines()
    assert len(lines) == 20
    assert all("is fatal: Fatal: no" in line for line in lines)
    assert last == "and 70 more became fatal: see client.py list --status fatal"


@pytest.mark.long
def test_lines_about_fatal_tasks_are_counted_over_workers_that_die_too(sqlite_queue: Queue) -> None:
    sqlite_queue.server.add_tasks({"task": "tasks.leave", "args": [3], "max_attempts": 1} for _ in range(22))
    sqlite_queue.server.add_tasks({"task": "tasks.fail"} for _ in range(30))
    ended = sqlite_queue.worker(0, "--processes", 24, "--batch", 1)
    lines = ended.stderr.splitlines()
    assert ended.returncode == 0
    assert sum("is fatal: " in line for line in lines) == 20
    assert sum(" died: exit code 3" in line for line in lines) == 20
    assert lines[-2:] == [
        "and 32 more became fatal: see client.py list --status fatal",
        "and 2 more workers of this line died",
    ]


@pytest.mark.long
def test_workers_of_one_line_do_not_say_that_cron_starts_it_all_the_time(sqlite_queue: Queue) -> None:
    assert_silent(sqlite_queue.worker(0, "--processes", 3))
    assert sqlite_queue.sql("SELECT previous_started_at FROM jobs_queue_workers") == [(None,)]
    sqlite_queue.sql(f"UPDATE jobs_queue_workers SET started_at = {sqlite_queue.ago(86_400)}")
    assert_silent(sqlite_queue.worker(0, "--processes", 3))
    (run,) = json_of(sqlite_queue, "status")["runs"]
    assert run["every_seconds"] == pytest.approx(86_400, abs=30)


def test_an_error_that_all_workers_meet_is_told_once(sqlite_queue: Queue) -> None:
    sqlite_queue.path.unlink()
    assert_one_line(sqlite_queue.worker(0, "--processes", 3), 1, "worker.py: ", "client.py init")


def test_lingering_workers_hand_over_to_those_of_the_next_line(sqlite_queue: Queue) -> None:
    line = (0, "--processes", 2, "--linger", 60)

    def pids() -> list[int]:
        return sorted(pid for (pid,) in sqlite_queue.sql("SELECT pid FROM jobs_queue_processes"))

    first = sqlite_queue.start(*line, "--slots", 2)
    wait_until(lambda: pids() == sorted(workers_of(first)) and len(pids()) == 2)
    second = sqlite_queue.start(*line, "--slots", 2)
    assert end_of(first) == (0, "", "")
    wait_until(lambda: pids() == sorted(workers_of(second)) and len(pids()) == 2)
    second.send_signal(signal.SIGTERM)
    assert end_of(second) == (0, "", "")


@pytest.mark.long
def test_a_worker_that_was_started_again_stays_for_what_is_left_of_the_time(sqlite_queue: Queue) -> None:
    process = sqlite_queue.start(0, "--processes", 1, "--linger", 4)
    wait_until(lambda: sqlite_queue.sql("SELECT pid FROM jobs_queue_processes"))
    began = time.monotonic()
    (worker,) = workers_of(process)
    os.kill(worker, signal.SIGKILL)
    code, _, told = end_of(process)
    assert (code, "died: SIGKILL" in told) == (0, True)
    assert time.monotonic() - began < 5.5


def test_as_many_slots_as_processes_are_free_unless_it_is_said_otherwise(sqlite_queue: Queue) -> None:
    for _ in range(6):
        sqlite_queue.add("tasks.hold")
    process = sqlite_queue.start(0, "--processes", 6, "--batch", 1)
    wait_until(lambda: len(sqlite_queue.notes()) == 6)
    sqlite_queue.go()
    assert end_of(process) == (0, "", "")


def test_a_second_line_of_as_many_processes_finds_no_slot(sqlite_queue: Queue) -> None:
    for _ in range(4):
        sqlite_queue.add("tasks.hold")
    process = sqlite_queue.start(0, "--processes", 2, "--batch", 1)
    wait_until(lambda: len(sqlite_queue.notes()) == 2)
    assert_silent(sqlite_queue.worker(0, "--processes", 2))
    assert sorted(sqlite_queue.statuses()) == [0, 0, 1, 1]
    sqlite_queue.go()
    assert end_of(process) == (0, "", "")


@pytest.mark.parametrize("count", ["0", "101", "-1", "x", "1.5"])
def test_a_wrong_number_of_processes_is_refused(sqlite_queue: Queue, count: str) -> None:
    ended = sqlite_queue.worker(0, f"--processes={count}")
    assert ended.returncode == 2
    assert "--processes" in ended.stderr
