"""The faults: how each kind is begun and ended on a worker, its network or the server, and whether it struck."""

from __future__ import annotations

import heapq
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from tests.faults.chaos.evidence import Strike
from tests.faults.chaos.schedule import FREEZES, NETWORK_FAULTS, SERVER_FAULTS, Fault
from tests.faults.chaos.settings import SLOTS
from tests.faults.chaos.stage import Producer, Slot, Stage
from tests.support.proxy import Cut, Proxy, contains

AGAIN_SECONDS = 0.1
"""A fault that finds nothing to strike is tried again so soon,"""
LATEST_SECONDS = 6.0
"""and for so long."""


class Striker:
    """Strikes with the faults of a schedule, one thread for all of them, and keeps those that were seen to strike."""

    def __init__(self, stage: Stage, slots: Sequence[Slot], producers: Sequence[Producer]) -> None:
        self.stage = stage
        self.slots = slots
        self.producers = producers
        self.strikes: list[Strike] = []
        self._order = count()
        self.busy: set[int] = set()
        """Slots under a fault that lasts: they get no other one meanwhile."""
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []

    def run(self, schedule: Sequence[Fault]) -> None:
        """All of it, to the end of the last fault."""
        began = time.monotonic()
        for fault in schedule:
            self.plan(began + fault.at, _Attempt(self, fault, began + fault.at).strike)
        while self._agenda:
            at, _, act = heapq.heappop(self._agenda)
            time.sleep(max(0.0, at - time.monotonic()))
            act(time.monotonic())

    def plan(self, at: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._agenda, (at, next(self._order), act))


class _Attempt:
    """One fault on its way: struck when there is something to strike, and ended after its time.

    Where its slot has no worker just now, or one that is under another fault, the next slot gets it.
    """

    def __init__(self, striker: Striker, fault: Fault, due_at: float) -> None:
        self._striker = striker
        self._fault = fault
        self._due_at = due_at
        self._slot = fault.slot
        self._stage = striker.stage
        self._process: subprocess.Popen[str] | None = None
        self._began = 0.0
        self._before = 0
        self._cut: Cut | None = None

    def strike(self, now: float) -> None:
        self._process = self._striker.slots[self._slot].process
        self._began = now
        if (self._slot not in self._striker.busy or self._fault.kind in SERVER_FAULTS) and self._begin():
            if self._fault.kind not in SERVER_FAULTS:
                self._striker.busy.add(self._slot)
            self._striker.plan(time.monotonic() + self._fault.seconds, self.end)
        else:
            self._try_again(now)

    def end(self, now: float) -> None:
        has_struck = self._finish()
        if self._fault.kind not in SERVER_FAULTS:
            self._striker.busy.discard(self._slot)
        if has_struck:
            pid = self._process.pid if self._process is not None else None
            self._striker.strikes.append(Strike(self._fault.kind, self._slot, pid, self._began, time.monotonic()))
        else:
            self._try_again(now)

    def _try_again(self, now: float) -> None:
        self._slot = (self._slot + 1) % SLOTS
        if now < self._due_at + LATEST_SECONDS:
            self._striker.plan(now + AGAIN_SECONDS, self.strike)

    # ---- what each kind does; whether there was something to strike

    def _begin(self) -> bool:
        kind = self._fault.kind
        if kind in SERVER_FAULTS:
            return self._kill_server()
        if kind in NETWORK_FAULTS:
            return self._begin_on_network(self._stage.proxies[self._slot])
        return self._process is not None and self._begin_on_worker(self._process)

    def _kill_server(self) -> bool:
        assert self._stage.server is not None
        self._process = None
        # In the midst of an INSERT if one comes by: then its producer cannot know what became of it.
        _comes_true(lambda: any(producer.is_adding for producer in self._striker.producers))
        self._stage.server.kill()
        return True

    def _begin_on_worker(self, process: subprocess.Popen[str]) -> bool:
        kind = self._fault.kind
        if kind == "kill":
            process.kill()
            return True
        if kind in FREEZES:
            process.send_signal(signal.SIGSTOP)
            return _comes_true(lambda: state_of(process.pid) == "T")
        if not catches(process.pid, signal.SIGTERM):
            return False
        process.terminate()
        return True

    def _begin_on_network(self, proxy: Proxy) -> bool:
        kind = self._fault.kind
        if not proxy.open_links:
            return False
        if kind.startswith("cut "):
            place = proxy.cut_before if kind == "cut before a write" else proxy.cut_after
            self._cut = place(contains(b"UPDATE ", b"DELETE FROM "))
        elif kind == "drop":
            self._before = proxy.lost_bytes
            proxy.drop()
        elif kind == "stall":
            self._before = proxy.held_chunks
            proxy.stall()
        else:
            if kind == "refuse":
                proxy.refuse()
            if not proxy.reset():
                proxy.pass_on()
                return False
        return True

    # ---- how each kind ends; whether it struck

    def _finish(self) -> bool:
        kind, process = self._fault.kind, self._process
        if kind in SERVER_FAULTS:
            assert self._stage.server is not None
            self._stage.server.start()
            return True
        if kind in NETWORK_FAULTS:
            return self._finish_on_network(self._stage.proxies[self._slot])
        assert process is not None
        if kind in FREEZES:
            process.send_signal(signal.SIGCONT)
        elif kind == "terminate twice":
            if not catches(process.pid, signal.SIGTERM):
                return False
            process.terminate()
        elif kind == "kill":
            return process.wait(10) == -signal.SIGKILL
        return True

    def _finish_on_network(self, proxy: Proxy) -> bool:
        kind = self._fault.kind
        if kind != "reset":
            proxy.pass_on()
        if kind == "drop":
            return proxy.lost_bytes > self._before
        if kind == "stall":
            return proxy.held_chunks > self._before
        return self._cut is None or self._cut.has_struck


def _comes_true(condition: Callable[[], bool], seconds: float = 0.5) -> bool:
    deadline = time.monotonic() + seconds
    while not (came := condition()) and time.monotonic() < deadline:
        time.sleep(0.001)
    return came


def state_of(pid: int) -> str:
    """As the kernel names it: R, S, D, T for stopped, Z; empty where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return ""


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal: before, it would die of it like any other."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)
