"""What the workers of a chaos run are given to do, well-behaved and not: the tasks.py of their deployment."""

from __future__ import annotations

TASKS = '''
"""What the workers of a chaos run do. Each run leaves its begin, its kind and its end in the file of its number."""

import os
import random
import signal
import sys
import time
from pathlib import Path

from taskserver import task

RUNS = Path(__file__).resolve().parent / "runs"


class Failed(Exception):
    """A task that fails as it was told to."""


def play(number, seed, kind, is_sure):
    log = os.open(RUNS / str(number), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        _note(log, "begin", kind)
        nth = os.pread(log, 1 << 20, 0).count(b"begin ")
        _act(log, kind, random.Random(f"{seed}:{number}:{nth}"), 0.3 if nth > 2 else 1.0 if is_sure else 0.6)
    except BaseException as error:
        _note(log, "end", type(error).__name__)
        raise
    else:
        _note(log, "end", "done")
    finally:
        os.close(log)


@task(commit_every=10)
def keep(key, version):
    """What a key stands for is brought up to date with its newest version; never fails, and takes a moment."""
    log = os.open(RUNS.parent / "kept" / key, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        _note(log, "begin", version)
        time.sleep(random.uniform(0.02, 0.15))
        _note(log, "end", version)
    finally:
        os.close(log)


@task(commit_every=10)
def tie(tied, is_fatal):
    """One that others wait for, or that waits for others; it fails for good, or never."""
    log = os.open(RUNS.parent / "tied" / str(tied), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        _note(log, "begin", "tied")
        time.sleep(random.uniform(0.0, 0.1))
        if is_fatal:
            raise Failed("as it was told to")
        _note(log, "end", "tied")
    finally:
        os.close(log)


def _note(log, what, how):
    # One short write to the end of a file is one piece, whoever else writes.
    os.write(log, f"{what} {os.getpid()} {time.monotonic():.6f} {how}\\n".encode())


def _act(log, kind, chance, how_probably):
    if kind == "nap":
        time.sleep(chance.uniform(0.005, 0.2))
    elif kind != "quick" and chance.random() < how_probably:
        _misbehave(log, kind)


def _misbehave(log, kind):
    if kind == "fail":
        raise Failed("as it was told to")
    if kind == "exit":
        sys.exit(3)
    if kind == "hang":
        while True:
            time.sleep(0.05)
    _note(log, "dies", kind)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "leave":
        os._exit(42)
    if kind == "hold":
        sum(range(10**13))
'''

HARD_EXIT = 42
"""The code with which a task leaves by os._exit."""

TASK_KINDS = {
    "quick": 55.0,
    "nap": 20.0,
    "fail": 14.0,
    "exit": 4.0,
    "hang": 2.0,
    "kill": 1.5,
    "leave": 1.5,
    "hold": 0.0,
}
"""With their weights."""
SHOWN_BY = {
    "quick": "done",
    "nap": "done",
    "fail": "Failed",
    "exit": "SystemExit",
    "hang": "TaskInterrupted",
    "kill": "dies kill",
    "leave": "dies leave",
    "hold": "dies hold",
}
"""The outcome of a run that did what its kind is for."""
HOLD_WEIGHT = 0.1
"""Of tasks that hold the interpreter, in runs of some length: each takes timeout plus lease."""
LONG_RUN_SECONDS = 60.0
