"""The last resort: a process that nothing can interrupt shows where it hangs and ends, and no healthy process does."""

from __future__ import annotations

import time
from itertools import product

import pytest

from taskserver import TaskServer
from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.stop import Stop
from taskserver.worker import heartbeat
from taskserver.worker.heartbeat import Heartbeat
from taskserver.worker.task_context import CallPlan

LEASE, TIMEOUT = 60.0, 600.0


class Armed:
    """Replaces faulthandler, and records the instant at which it would end the process."""

    def __init__(self) -> None:
        self.ends_at = float("inf")
        self.times = 0

    def dump_traceback_later(self, seconds: float, exit: bool, file: int) -> None:
        assert (exit, file) == (True, 2)
        self.ends_at, self.times = time.monotonic() + seconds, self.times + 1

    def cancel_dump_traceback_later(self) -> None:
        self.ends_at = float("inf")


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> Armed:
    armed = Armed()
    monkeypatch.setattr(heartbeat, "faulthandler", armed)
    return armed


def made(server: TaskServer, timeout: float = TIMEOUT, ends_process: bool = True) -> Heartbeat:
    return Heartbeat(server.store, Alarm(Stop(), LEASE / 4), LEASE, timeout, ends_process)


def call(seconds: float) -> CallPlan:
    return CallPlan((), seconds, 0, name="a hook")


TIMEOUTS = tuple(product([0.0, TIMEOUT], [0.0, 1.0, 10 * TIMEOUT], [0.0, 10 * TIMEOUT]))


def test_each_call_has_its_timeout_and_a_lease(server: TaskServer, armed: Armed) -> None:
    for of_run, own, before in TIMEOUTS:
        with made(server, of_run) as beat:
            beat.begin(call(before))
            beat.end()
            began_at = time.monotonic()
            beat.begin(call(own))
            earliest = began_at + (own or float("inf")) + LEASE
            assert armed.ends_at >= earliest
            assert (armed.ends_at < float("inf")) == (own > 0)
            beat._limit_process()  # as the heartbeat's thread does each second
            assert earliest <= armed.ends_at <= time.monotonic() + (own or float("inf")) + 4 / 3 * LEASE
            beat.end()
            beat._limit_process()
            assert armed.ends_at >= began_at + (of_run or float("inf")) + LEASE
        assert armed.ends_at == float("inf")


def test_what_is_written_between_two_calls_may_take_longer_than_a_lease(server: TaskServer, armed: Armed) -> None:
    with made(server) as beat:
        beat.begin(call(0.01))
        beat._limit_process()
        beat.end()
        assert armed.ends_at > time.monotonic() + TIMEOUT + LEASE + server.store.database.conflict_seconds
        used_at = server.store.database.session().used_at = time.monotonic() + 1000
        beat._limit_process()
        assert armed.ends_at > used_at + TIMEOUT + LEASE + server.store.database.conflict_seconds


def test_a_process_of_others_is_never_ended(server: TaskServer, armed: Armed) -> None:
    with made(server, ends_process=False) as beat:
        beat.begin(call(0.01))
        beat.end()
    assert armed.times == 0
