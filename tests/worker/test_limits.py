"""Limits: a task's time, a run's time and memory, workers at once, and what a second signal stops."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from taskserver import Reason, Stop, TaskServer
from taskserver.worker.limits import Limits, RunLimits
from taskserver.worker.result import RunResult
from tests.support.processes import (
    assert_one_line,
    assert_shows_where_it_hangs,
    assert_silent,
    end_of,
    freeze,
    kill,
    thaw,
    wait_until,
)
from tests.support.queues import Queue, row_counts

SETTINGS = {"TASKSERVER_MAX_ATTEMPTS": "10", "TASKSERVER_BACKOFF": "fixed:500", "TASKSERVER_LEASE": "600"}
SHORT = {"TASKSERVER_LEASE": "1", "TASKSERVER_TIMEOUT": "1"}

TASKS = """
import ctypes
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time

from taskserver import task

server = None


def nap(seconds=60):
    note("started")
    time.sleep(seconds)
    note("slept")


def hold():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)


def busy():
    note("started")
    while True:
        try:
            pass
        except Exception:
            note("swallowed")


def search():
    re.match("(a+)+$", "a" * 60 + "b")


def wait_for_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_for_event():
    threading.Event().wait()


def wait_for_program():
    subprocess.run(["sleep", "60"])


def swallow_once():
    try:
        time.sleep(60)
    except BaseException:
        note("swallowed")


def swallow():
    note("started")
    while True:
        try:
            time.sleep(0.05)
        except BaseException:
            note("swallowed")


def hold_interpreter():
    note("started")
    sum(itertools.repeat(0))

"""


# ---- a task's time

SLOW = ["nap", "busy", "search", "wait_for_lock", "wait_for_event", "wait_for_program"]


def test_a_task_that_takes_too_long_is_interrupted_and_the_next_one_runs(queue: Queue) -> None:
    queue.define("".join(f"{name} = task(timeout=0.1)({name})\n" for name in SLOW))
    for name in SLOW:
        queue.add(f"tasks.{name}")
        queue.add("tasks.note", f'["after {name}"]')
    queue.run_here()
    assert queue.rows("task, status, attempts, claim") == [(f"tasks.{name}", 3, 1, None) for name in SLOW]
    assert set(queue.first_lines()) == {"TaskInterrupted: it ran for longer than its timeout of 0.1 s"}
    assert [note for note in queue.notes() if note.startswith("after")] == [f"after {name}" for name in SLOW]


def test_the_setting_is_the_limit_of_a_callable_that_has_none_of_its_own(queue: Queue) -> None:
    queue.define(
        "@task(timeout=30)\ndef longer(): nap(0.3)\n\n@task(timeout=0)\ndef unlimited(): nap(0.3)\n",
    )
    for name in ("nap", "longer", "unlimited"):
        queue.add(f"tasks.{name}")
    queue.server.settings = queue.server.settings._replace(timeout_seconds=0.2)  # type: ignore[arg-type]
    assert queue.server.run().done == 2
    assert queue.rows("id, status, attempts") == [(1, 3, 1)]
    assert queue.first_lines() == ["TaskInterrupted: it ran for longer than its timeout of 0.2 s"]


def test_a_task_that_swallows_its_interrupt_is_done_if_it_returns_and_interrupted_again_if_not(
    queue: Queue,
) -> None:
    queue.define(
        "swallow_once = task(timeout=0.2)(swallow_once)\n\n"
        "@task(timeout=0.2)\ndef stubborn():\n    swallow_once()\n    nap()\n"
    )
    for name in ("swallow_once", "stubborn", "note"):
        queue.add(f"tasks.{name}")
    queue.run_here(lease=1)
    assert queue.notes() == ["swallowed", "swallowed", "started", "noted"]
    assert queue.rows("task, status") == [("tasks.stubborn", 3)]
    assert queue.first_lines() == ["TaskInterrupted: it ran for longer than its timeout of 0.2 s"]


def test_a_module_that_hangs_when_imported_is_interrupted_too(queue: Queue) -> None:
    queue.deployment.write_tasks("import time\n\ntime.sleep(60)\n", "hanging.py")
    queue.add("hanging.task")
    queue.add("tasks.note")
    settings = queue.server.settings
    queue.server.settings = settings._replace(timeout_seconds=0.2, modules=("tasks", "hanging"))  # type: ignore[arg-type]
    queue.server.run()
    assert queue.rows("status, attempts") == [(3, 1)]
    assert "TaskInterrupted" in queue.first_lines()[0]
    assert queue.notes() == ["noted"]


def test_tasks_that_end_just_at_their_timeout_are_done_or_failed_and_nothing_else(queue: Queue) -> None:
    queue.define("@task(timeout=0.02)\ndef close(seconds): time.sleep(seconds)\n")
    for number in range(30):
        queue.add("tasks.close", f"[{0.015 + 0.0004 * number}]")
    queue.add("tasks.note")
    result = queue.run_here()
    assert (result.done + len(queue.rows()), result.lost) == (31, 0)
    assert set(queue.rows("status, attempts")) == {(3, 1)}, "none was late: nothing was raced"
    assert result.done > 1, "all were late: nothing was raced"
    assert all(line.startswith("TaskInterrupted: ") for line in queue.first_lines())


# ---- a task that uses the alarm itself

ALARMS = [
    # a handler that raises, again and again
    "signal.signal(signal.SIGALRM, lambda *_: 1 / 0)\n    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.002)",
    # no handler, and an alarm to come
    "signal.signal(signal.SIGALRM, signal.SIG_DFL)\n    signal.setitimer(signal.ITIMER_REAL, 0.1)",
    "signal.alarm(0)",
    # one that came
    "signal.signal(signal.SIGALRM, lambda *_: note('its own'))\n"
    "    signal.setitimer(signal.ITIMER_REAL, 0.01)\n    time.sleep(0.05)",
]


def test_a_task_that_sets_the_alarm_breaks_neither_the_run_nor_the_limits_of_later_tasks(sqlite_queue: Queue) -> None:
    sqlite_queue.define(
        "".join(f"def set_alarm_{number}():\n    {code}\n\n" for number, code in enumerate(ALARMS))
        + "@task(timeout=0.2)\ndef late(): time.sleep(60)\n\ndef rest(): time.sleep(0.03)\n",
    )
    for number in range(len(ALARMS)):
        for name in (f"set_alarm_{number}", *["rest"] * 5, "late", "note"):
            sqlite_queue.add(f"tasks.{name}")
    assert_silent(sqlite_queue.worker(**SHORT))
    assert sqlite_queue.rows("task, status, attempts") == [("tasks.late", 3, 1)] * len(ALARMS)
    assert sqlite_queue.notes() == ["noted"] * (len(ALARMS) - 1) + ["its own", "noted"]


# ---- what an interrupt cannot stop


@pytest.mark.parametrize("task", ["hold_interpreter", "swallow"])
def test_what_cannot_be_interrupted_ends_its_worker_and_is_taken_back(queue: Queue, task: str) -> None:
    queue.add(f"tasks.{task}")
    queue.add("tasks.note")
    process = queue.start_task(**SHORT)
    code, output, errors = end_of(process)
    assert (code, output) == (1, ""), errors
    assert_shows_where_it_hangs(errors, task)
    assert errors.startswith("task 1 tasks.swallow, attempt 1 goes on ") == (task == "swallow")
    passed = queue.seconds_between("started_at", queue.now)
    assert float(queue.sql(f"SELECT {passed} FROM jobs_queue WHERE id = 1")[0][0]) >= 2
    assert queue.rows("status, attempts")[0] == (1, 1)
    wait_until(lambda: not queue.sql(f"SELECT 1 FROM jobs_queue WHERE status = 1 AND due_at > {queue.now}"))
    assert f"ended while it ran task 1 tasks.{task}" in queue.worker().stderr
    assert queue.rows("id, status, attempts") == [(1, 3, 1)]
    assert queue.first_lines()[0].startswith("lost: ")
    assert queue.notes()[-1] == "noted"
    assert ("swallowed" in queue.notes()) == (task == "swallow")


def test_a_task_that_swallows_a_second_signal_ends_its_worker_a_lease_later(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.swallow")
    process = sqlite_queue.start_task(**SHORT | {"TASKSERVER_TIMEOUT": "600"})
    signal_until_heard(process, signal.SIGTERM, signal.SIGTERM)
    code, _, errors = end_of(process)
    assert code == 1
    assert_shows_where_it_hangs(errors, "swallow")
    assert errors.startswith("task 1 tasks.swallow, attempt 1 goes on 1 s after it was interrupted")


@pytest.mark.long
def test_a_host_that_stands_still_for_less_than_a_lease_ends_no_worker(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.nap")
    sqlite_queue.add("tasks.note")
    process = sqlite_queue.start_task(**SHORT)
    freeze(process)
    time.sleep(1.2)
    thaw(process)
    code, output, errors = end_of(process)
    assert (code, output, errors) == (0, "", "")
    assert sqlite_queue.rows("task, status, attempts") == [("tasks.nap", 3, 1)]
    assert sqlite_queue.first_lines() == ["TaskInterrupted: it ran for longer than its timeout of 1 s"]


# ---- a program that runs tasks itself

ADDING = """
@task(timeout=0.04)
def add():
    while True:
        new_id = server.add_task("tasks.note", group_id=9)
        note(new_id)
"""


def hammer(queue: Queue, count: int) -> int:
    """Run tasks that add tasks through the TaskServer that runs them, until their time is up; how many they added."""
    queue.define(ADDING)
    queue.add("tasks.note", '["first"]', 1)
    assert queue.server.run(groups=[1]).done == 1
    vars(sys.modules["tasks"])["server"] = queue.server
    for _ in range(count):
        queue.add("tasks.add", None, 1)
    queue.add("tasks.note", '["last"]', 1, 1)
    result = queue.server.run(groups=[1])
    assert (result.reason, result.done, result.failed, result.lost) == (Reason.EMPTY, 1, count, 0)
    assert queue.notes()[-1] == "last"
    failed = queue.sql("SELECT error_text FROM jobs_queue WHERE group_id = 1 AND status = 3")
    assert [text.startswith("TaskInterrupted: ") for (text,) in failed] == [True] * count
    added = {new_id for (new_id,) in queue.sql("SELECT id FROM jobs_queue WHERE group_id = 9")}
    acknowledged = {int(note) for note in queue.notes()[1:-1]}
    assert acknowledged <= added
    # At most the one whose id the interrupt kept from being noted.
    assert len(added - acknowledged) <= count
    return len(acknowledged)


def test_interrupts_amid_writes_to_the_queue_lose_and_double_nothing(queue: Queue) -> None:
    assert hammer(queue, 8) > 8


@pytest.mark.long
def test_hundreds_of_interrupts_amid_writes_to_the_queue_lose_and_double_nothing(queue: Queue) -> None:
    assert hammer(queue, 200) > 200


@pytest.fixture
def own_alarm() -> Iterator[None]:
    """Leaves this process's alarm as it was."""
    handler = signal.getsignal(signal.SIGALRM)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


@pytest.fixture
def server(sqlite_queue: Queue) -> TaskServer:
    """Runs tasks in this process's main thread."""
    sqlite_queue.define("@task(timeout=0.1)\ndef late(): time.sleep(60)\n")
    return sqlite_queue.server


@pytest.mark.usefixtures("own_alarm")
def test_a_program_has_its_own_alarm_back_after_a_run(server: TaskServer) -> None:
    def handler(number: int, frame: object) -> None:
        raise AssertionError("it is an hour away")

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 3600, 60)
    others = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for name in ("note", "late", "note"):
        server.add_task(f"tasks.{name}")
    result = server.run()
    assert (result.done, result.failed) == (2, 1)
    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert 3000 < left < 3600
    assert interval == 60
    assert {number: signal.getsignal(number) for number in others} == others


@pytest.mark.usefixtures("own_alarm")
def test_a_program_s_alarm_that_fell_due_during_a_run_comes_after_it(server: TaskServer) -> None:
    came: list[int] = []
    signal.signal(signal.SIGALRM, lambda number, frame: came.append(len(row_counts(server.store))))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    server.add_task("tasks.nap", [0.5])
    assert server.run().done == 1
    wait_until(lambda: came)
    assert came == [0]


@pytest.mark.usefixtures("own_alarm")
@pytest.mark.parametrize("handler", [signal.SIG_DFL, signal.SIG_IGN, lambda number, frame: None])
def test_a_program_without_an_alarm_has_none_after_a_run_or_one_that_broke_down(
    server: TaskServer, handler: signal.Handlers
) -> None:
    def break_down(result: object) -> None:
        raise ZeroDivisionError

    signal.signal(signal.SIGALRM, handler)
    for on_progress in (None, break_down):
        server.add_task("tasks.late")
        with pytest.raises(ZeroDivisionError) if on_progress else nullcontext():
            assert server.run(on_progress=on_progress).failed == 1
        assert signal.getsignal(signal.SIGALRM) is handler
        assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


# ---- a run's time and memory


def test_max_time_starts_nothing_that_would_not_fit_and_releases_the_rest(queue: Queue) -> None:
    for _ in range(8):
        queue.add("tasks.nap", "[0.4]")
    result = queue.run_here(max_time=1)
    # A third one would, by what the first ones took, end after the time.
    assert 1 <= result.done <= 2
    assert (result.reason, result.taken) == (Reason.MAX_TIME, result.done)
    assert set(queue.rows("status, attempts, claim, due_at, started_at")) == {(0, 0, None, None, None)}
    assert len(queue.notes()) == 2 * result.done


def test_max_memory_starts_nothing_once_the_process_is_larger_and_releases_the_rest(queue: Queue) -> None:
    queue.define("kept = []\n\ndef grow():\n    note('grown')\n    kept.append(bytearray(150_000_000))\n")
    for _ in range(3):
        queue.add("tasks.grow")
    assert_silent(queue.worker("--max-memory", 150))
    assert queue.sql("SELECT reason, taken, done FROM jobs_queue_workers") == [("max_memory", 1, 1)]
    assert queue.notes() == ["grown"]
    assert_silent(queue.worker("--max-memory", 1))  # a process is larger from its begin on
    assert queue.rows("status, attempts, claim") == [(0, 0, None)] * 2


def remember(queue: Queue, task: str, seconds: float, times: int, slowest: float) -> None:
    """As if a task had run so often an hour ago, for so long on average."""
    queue.sql(
        "INSERT INTO jobs_queue_stats (hour, group_id, task, done, ran_seconds, slowest_seconds)"
        f" VALUES ({queue.ago(3600)}, 0, ?, ?, ?, ?)",
        *(task, times, seconds * times, slowest),
    )


def test_a_task_that_took_too_long_of_late_is_left_to_the_next_run(queue: Queue) -> None:
    for args, task in (("[0.6]", "nap"), (None, "note"), ("[0]", "nap")):
        queue.add(f"tasks.{task}", args)
    remember(queue, "tasks.note", 1, 10, 4.5)
    assert queue.run_here(max_time=5).reason is Reason.MAX_TIME
    assert queue.rows("id, status, attempts") == [(2, 0, 0), (3, 0, 0)]
    queue.run_here(max_time=5)  # it begins with that task
    assert queue.rows() == []


@pytest.mark.parametrize(
    ("taken", "waits", "elapsed", "seconds", "waited", "fits"),
    [
        (1, False, 10.0, 49.0, 0.0, True),
        (1, False, 10.0, 51.0, 0.0, False),
        (1, False, 5.0, 1000.0, 0.0, True),  # it fits into no run, and is taken to need nine tenths of one
        (1, False, 7.0, 1000.0, 0.0, False),
        (1, False, 59.0, 1000.0, 3600.0, True),  # it has been ready for an hour, and is overtaken all the time
        (0, False, 59.0, 1000.0, 0.0, True),  # the first of its run
        (0, True, 59.0, 1000.0, 0.0, False),  # which has lingered: the next run has all its time for it
    ],
)
def test_a_task_fits_by_what_those_of_its_name_took(
    monkeypatch: pytest.MonkeyPatch, taken: int, waits: bool, elapsed: float, seconds: float, waited: float, fits: bool
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    stop, result = Stop(), RunResult()
    limits = RunLimits(Limits(max_seconds=60, linger_seconds=60), stop, result)
    if waits:
        monkeypatch.setattr(stop, "wait", lambda seconds, rest: True)
        now = 1.0
        waits_until = iter([1.0, 2.0])
        monkeypatch.setattr(time, "monotonic", lambda: next(waits_until, elapsed))
        assert limits.wait(1.0)
    now, result.taken = elapsed, taken
    assert limits.fits(seconds, waited) is fits
    if not fits:
        assert limits.reason_to_end() is Reason.MAX_TIME


LimitsAt = Callable[[float, int], RunLimits]


@pytest.fixture
def limits_at(monkeypatch: pytest.MonkeyPatch) -> LimitsAt:
    """The limits of one run of a minute, after so many seconds and tasks."""
    now, result = 0.0, RunResult()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    limits = RunLimits(Limits(max_seconds=60), Stop(), result)

    def at(seconds: float, taken: int) -> RunLimits:
        nonlocal now
        now, result.taken = seconds, taken
        return limits

    return at


def test_one_call_has_as_many_tasks_as_fit_by_what_they_took_of_late(limits_at: LimitsAt) -> None:
    assert limits_at(0.0, 0).max_together(1000) == 1000  # nothing is known
    assert limits_at(0.0, 0).fits(2.0, 0.0)
    assert limits_at(10.0, 1).max_together(1000) == 25
    assert limits_at(40.0, 11).max_together(1000) == 5  # ten tasks took 4 s each
    assert limits_at(40.0, 11).fits(0.0, 0.0)
    assert limits_at(40.0, 1001).max_together(1000) == 500


def test_in_a_backlog_no_task_that_does_not_fit_is_started(limits_at: LimitsAt) -> None:
    assert limits_at(0.0, 0).fits(1.0, 7200.0)
    assert limits_at(30.0, 1).fits(1.0, 7000.0)
    assert not limits_at(30.0, 1).fits(40.0, 7200.0)


def test_a_task_that_others_overtake_is_started_though_they_have_waited_too(limits_at: LimitsAt) -> None:
    assert limits_at(0.0, 0).fits(1.0, 3000.0)
    assert limits_at(30.0, 1).fits(40.0, 9000.0)


def test_tasks_that_share_a_start_are_all_done_or_given_back_where_no_other_would_fit(queue: Queue) -> None:
    queue.define("@task(commit_every=50)\ndef quick():\n    note()\n    time.sleep(0.1)\n")
    for _ in range(14):
        queue.add("tasks.quick")
    remember(queue, "tasks.quick", 0.4, 10, 0.4)
    assert queue.run_here(max_time=1).reason is Reason.MAX_TIME
    left = queue.rows("status, attempts")
    assert left
    assert left == [(0, 0)] * (14 - len(queue.notes()))


def test_one_run_that_was_slow_beyond_all_others_says_nothing_of_the_next(sqlite_queue: Queue) -> None:
    sqlite_queue.add("tasks.nap", "[0.5]")
    sqlite_queue.add("tasks.note")
    remember(sqlite_queue, "tasks.note", 0.1, 1000, 59.8)
    assert sqlite_queue.run_here(max_time=60).done == 2


# ---- workers at once


def test_one_worker_more_than_there_are_places_leaves_at_once_and_says_nothing(queue: Queue) -> None:
    for _ in range(2):
        queue.add("tasks.hold")
    queue.add("tasks.note")
    first, second = (queue.start_task(1, "--slots", 2) for _ in range(2))
    before = queue.sql("SELECT pid, started_at FROM jobs_queue_workers")
    assert_silent(queue.worker("--slots", 2))
    assert "2 workers of these groups at work here" in queue.worker("--slots", 2, "--verbose").stderr
    assert queue.statuses() == [1, 1, 0]
    assert queue.sql("SELECT pid, started_at FROM jobs_queue_workers") == before
    kill(first)
    queue.move_workers()
    assert_silent(queue.worker("--slots", 2))
    assert queue.statuses() == [1, 1]
    assert queue.notes()[-1] == "noted"
    queue.go()
    assert end_of(second) == (0, "", "")


def test_four_workers_may_run_at_once_unless_it_is_said_otherwise(sqlite_queue: Queue) -> None:
    for _ in range(4):
        sqlite_queue.add("tasks.hold")
    sqlite_queue.add("tasks.note")
    workers = [sqlite_queue.start_task(1) for _ in range(4)]
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.statuses() == [1] * 4 + [0]
    assert_silent(sqlite_queue.worker("--slots", 5))
    assert sqlite_queue.statuses() == [1] * 4
    sqlite_queue.go()
    assert [end_of(process) for process in workers] == [(0, "", "")] * 4


def test_other_groups_tables_and_databases_have_places_of_their_own(queue: Queue) -> None:
    table, database = {"TASKSERVER_TABLE": "other_queue"}, {"TASKSERVER_DSN": "sqlite:///var/other.db"}
    for other in (table, database):
        assert queue.client("init", env=other).returncode == 0
        assert queue.client("add", "tasks.note", '["elsewhere"]', "--group", 5, env=other).returncode == 0
    queue.add("tasks.hold", None, 3)
    process = queue.start_task(1, "5,3", "--slots", 1)
    queue.add("tasks.note", '["same groups"]', 5)
    queue.add("tasks.note", '["other groups"]', 6)
    assert_silent(queue.worker(0, "3,5", "--slots", 1))
    assert_silent(queue.worker(0, "6", "--slots", 1))
    for other in (table, database):
        assert_silent(queue.worker(0, "5,3", "--slots", 1, **other))
    assert queue.notes() == ["started", "other groups", "elsewhere", "elsewhere"]
    assert_silent(queue.worker("--slots", 1))
    assert queue.notes()[-1] == "same groups"
    queue.go()
    assert end_of(process) == (0, "", "")


CHILDREN = {
    "forked": "if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)\n        os._exit(0)",
    "a program with every file": "subprocess.Popen(['sleep', '60'], close_fds=False, start_new_session=True)",
}


@pytest.mark.parametrize("code", CHILDREN.values(), ids=CHILDREN.keys())
def test_a_child_that_a_task_leaves_behind_does_not_hold_its_worker_s_place(sqlite_queue: Queue, code: str) -> None:
    sqlite_queue.define(f"def leave_child():\n    {code}\n    note('started')\n    time.sleep(60)\n")
    sqlite_queue.add("tasks.leave_child")
    process = sqlite_queue.start_task("--slots", 1)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    try:
        kill(process)
        sqlite_queue.move_workers()
        sqlite_queue.add("tasks.note")
        assert_silent(sqlite_queue.worker("--slots", 1))
        assert sqlite_queue.notes() == ["started", "noted"]
        if children.parent.parent.parent.exists():
            assert pids, "no child lived on: nothing was shown"
        for pid in pids:
            os.kill(pid, 0)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_a_task_that_reads_the_whole_folder_does_not_free_its_worker_s_place(sqlite_queue: Queue) -> None:
    """As one does that makes a backup."""
    sqlite_queue.define(
        "def back_up():\n"
        "    files = [path for path in (HERE / 'var' / 'slots').iterdir() if path.read_bytes() is not None]\n"
        "    assert files\n"
        "    hold()\n"
    )
    sqlite_queue.add("tasks.back_up")
    worker = sqlite_queue.start_task("--slots", 1)
    sqlite_queue.add("tasks.note")
    assert_silent(sqlite_queue.worker("--slots", 1))
    assert sqlite_queue.statuses() == [1, 0]
    sqlite_queue.go()
    assert end_of(worker) == (0, "", "")
    assert sqlite_queue.notes() == ["started", "noted"]


@pytest.mark.parametrize("place", ["var", "var/slots"])
def test_a_place_that_cannot_be_written_is_one_line_that_says_the_way_out(sqlite_queue: Queue, place: str) -> None:
    path = sqlite_queue.folder / place
    shutil.rmtree(path, ignore_errors=True)
    path.parent.mkdir(exist_ok=True)
    path.write_text("a file where a folder should be")
    sqlite_queue.add("tasks.note")
    assert_one_line(sqlite_queue.worker(), 2, "worker.py", str(path), "--slots 0")
    assert sqlite_queue.statuses() == [0]
    assert_silent(sqlite_queue.worker("--slots", 0))
    assert sqlite_queue.notes() == ["noted"]


def test_a_worker_that_ended_leaves_its_place_and_private_files(sqlite_queue: Queue) -> None:
    umask = os.umask(0)
    try:
        for _ in range(2):
            sqlite_queue.add("tasks.note")
            assert_silent(sqlite_queue.worker("--slots", 1))
    finally:
        os.umask(umask)
    assert sqlite_queue.notes() == ["noted"] * 2
    slots = sqlite_queue.folder / "var" / "slots"
    files = list(slots.iterdir())
    assert files
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (slots, slots.parent)} == {0o700}


# ---- a second signal

TWO_SIGNALS = [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM), (signal.SIGTERM, signal.SIGTERM)]


def signal_until_heard(process: subprocess.Popen[str], first: signal.Signals, second: signal.Signals) -> None:
    """Two of one kind would become one if the process had no time between them."""
    process.send_signal(first)
    if first == second:
        time.sleep(0.3)
    process.send_signal(second)


@pytest.mark.parametrize(("first", "second"), TWO_SIGNALS)
def test_a_second_signal_stops_the_running_task_which_has_failed_and_comes_again(
    queue: Queue, first: signal.Signals, second: signal.Signals
) -> None:
    queue.add("tasks.busy")
    queue.add("tasks.note")
    process = queue.start_task()
    signal_until_heard(process, first, second)
    assert end_of(process) == (0, "", "")
    assert queue.rows("status, attempts, claim") == [(3, 1, None), (0, 0, None)]
    assert queue.first_lines() == ["TaskInterrupted: stopped by a second signal", ""]
    assert queue.reason() == "stopped"


def test_two_signals_at_once_wake_a_task_that_sleeps(sqlite_queue: Queue) -> None:
    """The kernel gives the second to any thread that is free: one that takes it would leave the sleeper asleep."""
    count = 12
    for group in range(count):
        sqlite_queue.add("tasks.nap", None, group)
    workers = [sqlite_queue.start(0, group) for group in range(count)]
    wait_until(lambda: len(sqlite_queue.notes()) == count)
    for process in workers:
        signal_until_heard(process, signal.SIGTERM, signal.SIGINT)
    assert [end_of(process) for process in workers] == [(0, "", "")] * count
    assert sqlite_queue.rows("status, attempts") == [(3, 1)] * count
