"""The last resort: a process whose interpreter is held by C code says one line and ends with code 1."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.support.deployment import ROOT

Process = subprocess.Popen[str]

WORDS = "worker.py: a task holds the interpreter"


def start(preparation: str = "", seconds: float = 0.2, hold: int = 60, stderr: int = subprocess.PIPE) -> Process:
    """A process that arms its watchdog, prints `armed`, and then holds its interpreter for so many seconds."""
    program = f"""
import sys
from taskserver.interrupts import watchdog
watchdog.GRACE_SECONDS = 0.2
dog = watchdog.Watchdog("worker.py", "a task holds the interpreter")
{preparation}
dog.arm({seconds})
print("armed", flush=True)
if sys.modules.get("_ctypes", 0) is None: del sys.modules["_ctypes"]
import ctypes
ctypes.PyDLL(None).usleep({hold} * 1000000)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=stderr
    )
    assert process.stdout
    assert process.stdout.readline() == "armed\n"
    return process


def assert_bit(process: Process) -> None:
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output) == (1, "")
    assert errors.startswith(WORDS), errors
    assert errors.count("\n") == 1


def test_what_holds_the_interpreter_is_ended_with_one_line() -> None:
    assert_bit(start())


def frozen() -> Process:
    process = start(seconds=1)
    process.send_signal(signal.SIGSTOP)
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), "it ended before it was frozen"
    return process


def test_a_process_that_stood_still_says_its_line_too_when_it_goes_on() -> None:
    processes = [frozen() for _ in range(10)]
    time.sleep(1.2)
    for process in processes:
        process.send_signal(signal.SIGCONT)
    for process in processes:
        assert_bit(process)


def test_a_process_that_stood_still_and_lives_goes_on_however_often() -> None:
    code = """
import os, signal, sys, time
from taskserver.interrupts import watchdog
watchdog.GRACE_SECONDS = 1
dog = watchdog.Watchdog("worker.py", "a task holds the interpreter")
for _ in range(3):
    dog.arm(0.2)
    print("armed", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
dog.arm(0.2)
time.sleep(0.3)
dog.disarm()
time.sleep(1.5)
dog.arm(0.2)
time.sleep(60)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    for _ in range(3):
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        time.sleep(0.3)
        process.send_signal(signal.SIGCONT)
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors.count("\n")) == (1, "armed\n" * 3, 1)


def test_a_process_that_stood_still_just_as_it_armed_its_watchdog_and_lives_goes_on() -> None:
    code = """
import time
from taskserver.interrupts import watchdog
from taskserver.interrupts.c_timer import Bite
watchdog.GRACE_SECONDS = 1
dog = watchdog.Watchdog("worker.py", "a task holds the interpreter")
set = Bite.set

def set_and_stand_still(bite, seconds):
    set(bite, seconds)
    time.sleep(0.5)

Bite.set = set_and_stand_still
dog.arm(0.7)
Bite.set = set
time.sleep(0.4)
dog.arm(60)
time.sleep(1.5)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, timeout=30)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_it_ends_though_nobody_reads_its_line() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"x")
    os.set_blocking(writing, True)
    process = start("watchdog.MAX_WORDS_SECONDS = 0.5", stderr=writing)
    try:
        assert process.wait(timeout=30) == 1
    finally:
        os.close(reading)
        os.close(writing)


def test_it_ends_without_a_line_where_the_library_has_no_contexts() -> None:
    process = start("from taskserver.interrupts import c_timer; c_timer.HAS_CONTEXTS = False")
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 1


@pytest.mark.parametrize(
    "preparation",
    ["dog.arm(0.2); dog.disarm(); dog.arm = abs", "sys.modules['_ctypes'] = None  # as if it were missing"],
)
def test_a_process_goes_on_whose_watchdog_is_disarmed_or_missing(preparation: str) -> None:
    process = start(preparation, hold=1)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0
