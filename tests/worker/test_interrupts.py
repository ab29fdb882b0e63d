"""An interrupt reaches the task that is meant, and no other, and none of our own code."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.stop import Stop, TaskInterrupted
from taskserver.model.task import CANCELLED
from taskserver.worker.call import run_user_code
from tests.support.processes import WAIT_SECONDS, in_another_thread


def hang() -> None:
    until = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < until:
        time.sleep(0.01)


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    with Alarm(Stop(), 60) as made:
        yield made


def test_a_late_interrupt_leaves_the_next_task_its_own_timeout(alarm: Alarm) -> None:
    """A worker's own thread may be two tasks on, by the time at which its heartbeat interrupts one."""

    def next_task() -> None:
        alarm.interrupt(alarm.number - 2, CANCELLED)
        signal.setitimer(signal.ITIMER_REAL, 0.001)  # as if the heartbeat had looked at the number just before
        hang()

    def cancelled_task() -> None:
        alarm.interrupt(alarm.number, CANCELLED)
        hang()

    with pytest.raises(TaskInterrupted, match=r"longer than its timeout of 0\.2 s"):
        alarm.call(0.2, next_task)
    with pytest.raises(TaskInterrupted, match=CANCELLED):
        alarm.call(0, cancelled_task)


def test_a_first_signal_leaves_a_task_its_timeout_and_its_time() -> None:
    stop = Stop()

    def nap(seconds: float) -> str:
        stop.asked = False
        stop.ask()
        time.sleep(seconds)
        return "ended well"

    with Alarm(stop, 60) as alarm:
        assert alarm.call(0, nap, 0.3) == "ended well"
        with pytest.raises(TaskInterrupted, match=r"longer than its timeout of 0\.3 s"):
            alarm.call(0.3, nap, WAIT_SECONDS)


def test_an_alarm_that_comes_as_its_task_ends_is_dropped(alarm: Alarm) -> None:
    """In our own code it would end the run."""
    seconds, counts = 0.0005, Counter[str]()
    chance = random.Random(1)

    def work(lasts: float) -> None:
        until = time.monotonic() + lasts
        while time.monotonic() < until:
            pass

    until = time.monotonic() + WAIT_SECONDS
    while min(counts["returned"], counts["interrupted"]) < 100 and time.monotonic() < until:
        try:
            alarm.call(seconds, work, seconds + chance.uniform(-3e-5, 3e-5))
            counts["returned"] += 1
        except TaskInterrupted:
            counts["interrupted"] += 1
        list(range(50))
    assert min(counts["returned"], counts["interrupted"]) == 100


def test_a_task_that_catches_exceptions_does_not_catch_its_interrupt(alarm: Alarm) -> None:
    def careless_task() -> None:
        with suppress(Exception):
            hang()

    with pytest.raises(TaskInterrupted):
        alarm.call(0.05, careless_task)


def test_a_second_signal_between_two_tasks_interrupts_none_of_our_code() -> None:
    stop = Stop()
    with Alarm(stop, 60):
        stop.ask()
        stop.ask()
        signal.raise_signal(signal.SIGALRM)
    assert stop.is_forced


def test_a_process_that_a_task_forked_ends_after_its_call(alarm: Alarm) -> None:
    """It would be a second worker, with the same claim."""
    failure, child = run_user_code(alarm, 0, os.fork)
    if child == 0:
        os._exit(3)
    assert (failure, os.waitpid(child, 0)[1]) == (None, 0)


def test_in_another_thread_tasks_have_no_timeout_and_that_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskserver.interrupts.alarm._has_warned", False)

    def run() -> None:
        with Alarm(Stop(), 60) as alarm:
            alarm.call(0.1, time.sleep, 0.2)

    for _ in range(2):
        in_another_thread(run)
    [record] = caplog.records
    assert (record.levelname, "have no timeout" in record.getMessage()) == ("WARNING", True)
