"""The faults that strike workers, their network and the server, each with whether it struck."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeAlias

from tests.faults.chaos.stage import FIND_SECONDS, LEASE_SECONDS, Slot, Stage
from tests.support.processes import freeze, thaw, wait_until
from tests.support.proxy import Matches, Proxy, contains

LATE_SECONDS = 60.0
"""So long after their time strikers go on, if one of their faults has not struck yet."""
WRITES = contains(b"UPDATE ", b"DELETE ")
COMMITS, OWN_COMMITS = contains(b"COMMIT /* of a task"), contains(b"COMMIT /* by a task")
"""Of transactions that complete a task: the worker's, and the task's own."""


class Strike(NamedTuple):
    """A fault that was seen to strike."""

    kind: str
    slot: int | None
    """None if it struck all."""
    pid: int | None
    began: float
    ended: float


Struck: TypeAlias = "bool | subprocess.Popen[str] | None"
"""Whether it struck, or the process that it struck."""
Fault: TypeAlias = Callable[[Stage, Slot, random.Random], Struck]
Faults: TypeAlias = Mapping[str, Fault]


def kill(stage: Stage, slot: Slot, chance: random.Random, in_transaction: bool = False) -> Struck:
    if (process := slot.find_worker(in_transaction)) is None:
        return None
    process.kill()
    return process if process.wait(10) == -signal.SIGKILL else None


def freeze_for(stage: Stage, slot: Slot, chance: random.Random, between: tuple[float, float]) -> Struck:
    if (process := slot.find_worker()) is None:
        return None
    with suppress(ChildProcessError):  # it has ended meanwhile
        freeze(process)
        time.sleep(chance.uniform(*between))
        thaw(process)
        return process
    return None


def freeze_in_transaction(stage: Stage, slot: Slot, chance: random.Random) -> Struck:
    """Until another worker runs its task. SQLite lets none begin meanwhile."""
    if (process := slot.find_worker(in_transaction=True)) is None:
        return None
    is_taken, runs = stage.server is None, stage.folder / "runs"
    with suppress(ChildProcessError, FileNotFoundError):
        freeze(process)
        begun = f"begin {slot.mark_of(process).read_text()} "
        before, thaws_at = runs.read_text().count(begun), time.monotonic() + BEYOND[1] * 2
        while not is_taken and time.monotonic() < thaws_at:
            time.sleep(0.05)
            is_taken = runs.read_text().count(begun) > before
        time.sleep(LEASE_SECONDS if stage.server is None else 0.0)
    thaw(process)
    return process if is_taken else None


def terminate(stage: Stage, slot: Slot, chance: random.Random) -> Struck:
    """Once, or twice: then it does not wait for its task."""
    if process := slot.find_worker():
        process.terminate()
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0.05, 0.3))
            process.terminate()
    return process


def disturb(stage: Stage, slot: Slot, chance: random.Random, begin: Callable[[Proxy], object], most: float) -> Struck:
    """Until it is over no byte, or no new connection, gets through."""
    proxy = stage.proxies[slot.number]
    wait_until(lambda: proxy.open_links)
    before = proxy.lost_bytes
    has_reset = begin(proxy)
    time.sleep(chance.uniform(0.3, most))
    proxy.pass_on()
    return bool(has_reset) or proxy.lost_bytes > before


def reset(stage: Stage, slot: Slot, chance: random.Random) -> Struck:
    return stage.proxies[slot.number].reset() > 0


def refuse(proxy: Proxy) -> int:
    proxy.refuse()
    return proxy.reset()


def cut(stage: Stage, slot: Slot, chance: random.Random, is_after: bool, requests: Matches) -> Struck:
    """Half of them are silent: the worker waits for an answer that never comes."""
    proxy = stage.proxies[slot.number]
    place = (proxy.cut_after if is_after else proxy.cut_before)(requests, silent=chance.random() < 0.5)
    place.wait(FIND_SECONDS)
    proxy.pass_on()
    return place.has_struck


def kill_server(stage: Stage, slot: Slot, chance: random.Random) -> Struck:
    """While a task's own transaction is open."""
    if stage.server is None or slot.find_worker(in_transaction=True) is None:
        return None
    stage.server.kill()
    time.sleep(chance.uniform(0.0, 1.0))
    stage.server.start()
    return True


BEYOND = (LEASE_SECONDS * 1.5, LEASE_SECONDS * 2.2)
KILLS: Mapping[str, Fault] = {
    "kill": kill,
    "kill in a transaction": partial(kill, in_transaction=True),
    "terminate": terminate,
}
FREEZES: Mapping[str, Fault] = {
    "freeze": partial(freeze_for, between=(0.2, 1.0)),
    "freeze beyond the lease": partial(freeze_for, between=BEYOND),
    "freeze in a transaction": freeze_in_transaction,
}
NETWORK: Mapping[str, Fault] = {
    "drop": partial(disturb, begin=Proxy.drop, most=2.5),
    "refuse": partial(disturb, begin=refuse, most=2.0),
    "reset": reset,
    "cut before a write": partial(cut, is_after=False, requests=WRITES),
    "cut after a write": partial(cut, is_after=True, requests=WRITES),
    "cut before a COMMIT": partial(cut, is_after=False, requests=COMMITS),
    "cut after a COMMIT": partial(cut, is_after=True, requests=COMMITS),
    "cut before an own COMMIT": partial(cut, is_after=False, requests=OWN_COMMITS),
    "cut after an own COMMIT": partial(cut, is_after=True, requests=OWN_COMMITS),
}
SERVER: Mapping[str, Fault] = {"server kill": kill_server}
HINDERING = (*FREEZES, "drop", "refuse", "server kill")
"""While these last, a worker does not reach its database."""


class Striker(threading.Thread):
    """Strikes with faults of one sort, one at a time: each kind once in a turn, in random order, on a random slot."""

    def __init__(
        self, stage: Stage, slots: Sequence[Slot], faults: Mapping[str, Fault], seed: int, until: float
    ) -> None:
        super().__init__(daemon=True)
        self.strikes: list[Strike] = []
        self.faults = faults
        self.error: BaseException | None = None
        self._stage, self._slots = stage, slots
        self._chance = random.Random(f"{seed}:{sorted(faults)}")
        self._until = until
        self._gap_seconds = (2.0, 5.0) if faults.keys() <= stage.rare_faults else (0.2, 1.0)

    def run(self) -> None:
        try:
            for kind in self._turns():
                time.sleep(self._chance.uniform(*self._gap_seconds))
                self._strike(kind)
        except BaseException as error:
            self.error = error

    def _turns(self) -> Iterator[str]:
        while True:
            for kind in self._chance.sample(sorted(self.faults), len(self.faults)):
                missing = self.faults.keys() - {strike.kind for strike in self.strikes}
                if time.monotonic() > self._until + (LATE_SECONDS if missing else 0.0):
                    return
                if kind in missing or time.monotonic() < self._until:
                    yield kind

    def _strike(self, kind: str) -> None:
        in_transaction = [slot for slot in self._slots if slot.is_in_transaction()]
        slot = self._chance.choice(in_transaction if in_transaction and self._chance.random() < 0.7 else self._slots)
        began = time.monotonic()
        if struck := self.faults[kind](self._stage, slot, self._chance):
            pid = struck.pid if isinstance(struck, subprocess.Popen) else None
            number = None if kind in SERVER else slot.number
            self.strikes.append(Strike(kind, number, pid, began, time.monotonic()))


def faults_of(dsn_kind: str) -> list[Mapping[str, Fault]]:
    """Those that can strike on this kind of database, by sorts, each of which has its own striker."""
    return [KILLS, FREEZES] if dsn_kind == "sqlite" else [KILLS, FREEZES, NETWORK, SERVER]
