"""An interrupt reaches the task that is meant, and no other, and none of our own code."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.stop import Stop, TaskInterrupted
from taskserver.model.task import CANCELLED
from taskserver.worker.call import run_user_code
from tests.support.processes import WAIT_SECONDS
from tests.support.threads import in_another_thread, together


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


def test_code_that_asks_and_is_interrupted_may_clean_up(alarm: Alarm) -> None:
    """The heartbeat says why, and makes the alarm ring: the code may ask between the two."""
    cleaned = []

    def cancelled_task() -> None:
        try:
            alarm.interrupt_here(CANCELLED)
        finally:
            alarm.interrupt(alarm.number, CANCELLED)
            time.sleep(0.1)
            cleaned.append(True)

    with pytest.raises(TaskInterrupted, match=CANCELLED):
        alarm.call(0, cancelled_task)
    assert cleaned == [True]


def test_a_second_signal_that_met_no_sleep_yet_is_heard_soon() -> None:
    """As if it had come while Python returned from the handler of the first to the sleep."""
    stop = Stop()

    def nap() -> None:
        stop.ask()
        stop.is_forced = True
        time.sleep(WAIT_SECONDS)

    with Alarm(stop, 60) as alarm, pytest.raises(TaskInterrupted, match="second signal"):
        alarm.call(0, nap)


def test_a_first_signal_leaves_a_task_its_timeout_and_its_time() -> None:
    stop = Stop()

    def nap(seconds: float) -> str:
        stop.asked = False
        stop.ask()
        time.sleep(seconds)
        return "ended well"

    with Alarm(stop, 60) as alarm:
        assert alarm.call(0, nap, 0.3) == "ended well"
        assert alarm.call(10, nap, 0.3) == "ended well"
        with pytest.raises(TaskInterrupted, match=r"longer than its timeout of 0\.3 s"):
            alarm.call(0.3, nap, WAIT_SECONDS)


def test_code_that_asks_and_goes_on_is_interrupted_again() -> None:
    often = Alarm(Stop(), 0.2)

    def ask_for_ever() -> None:
        with suppress(TaskInterrupted):
            often.interrupt_here(CANCELLED)
        often.interrupt(often.number, CANCELLED)
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            with suppress(TaskInterrupted):
                often.interrupt_here(CANCELLED)
            time.sleep(0.01)

    with often, pytest.raises(TaskInterrupted, match=CANCELLED):
        often.call(0, ask_for_ever)


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


def test_a_cancel_that_comes_at_any_instant_means_the_task_that_was_cancelled(alarm: Alarm) -> None:
    chance, is_over, counts = random.Random(2), threading.Event(), Counter[str]()

    def cancel_now_and_then() -> None:
        while not is_over.is_set():
            number = alarm.number
            time.sleep(chance.uniform(0, 0.004))
            alarm.interrupt(number, str(number))

    def work(lasts: float) -> None:
        until = time.monotonic() + lasts
        while time.monotonic() < until:
            time.sleep(1e-5)  # lets the other thread run

    with together(cancel_now_and_then):
        until = time.monotonic() + WAIT_SECONDS
        while counts["right"] < 100 and time.monotonic() < until:
            own_number = alarm.number + 1
            try:
                alarm.call(0, work, chance.uniform(0.0005, 0.004))
            except TaskInterrupted as error:
                counts["right" if str(error) == str(own_number) else "wrong"] += 1
        is_over.set()
    assert counts == {"right": 100}


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


def test_a_process_that_a_task_forked_ends_as_it_comes_out_of_the_call(alarm: Alarm) -> None:
    """It would be a second worker, with the same claim."""
    failure, child = run_user_code(alarm, 0, os.fork)
    if child == 0:
        os._exit(3)
    assert (failure, os.waitpid(child, 0)[1]) == (None, 0)


def test_in_another_thread_tasks_have_no_timeout_which_is_said_once(
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
