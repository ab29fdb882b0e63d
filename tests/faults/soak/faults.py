"""The faults of a soak run, one at a time, with most of the time between them."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.faults.chaos.faults import Strike
from tests.faults.soak.place import Place

Fault = Callable[[Place, random.Random], bool]
"""Returns whether it struck."""


def kill(place: Place, chance: random.Random) -> bool:
    """Up to three workers at once."""
    workers = [worker for worker in place.workers() if not worker.is_long]
    chosen = chance.sample(workers, min(len(workers), chance.randint(1, 3)))
    return [_signal(worker.pid, signal.SIGKILL) for worker in chosen].count(True) > 0


def freeze(place: Place, chance: random.Random) -> bool:
    """Half of them for longer than a lease."""
    workers = [worker.pid for worker in place.workers()]
    if not workers or not _signal(pid := chance.choice(workers), signal.SIGSTOP):
        return False
    time.sleep(chance.uniform(2, 20))
    return _signal(pid, signal.SIGCONT)


def _signal(pid: int, number: signal.Signals) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


def without_server(place: Place, chance: random.Random, begin: str, end: str, seconds: tuple[float, ...]) -> bool:
    getattr(place.server, begin)()
    time.sleep(chance.choice(seconds))
    getattr(place.server, end)()
    return True


def slow_network(place: Place, chance: random.Random) -> bool:
    for proxy in place.proxies:
        proxy.delay(chance.uniform(0.02, 0.2))
    time.sleep(chance.uniform(5, 20))
    for proxy in place.proxies:
        proxy.pass_on()
    return True


def fill_disk(place: Place, chance: random.Random) -> bool:
    """That of the database and of var/; a server that ends by it is started again."""
    ballast, is_full = Path("/tmp/ballast"), False
    until = time.monotonic() + chance.uniform(3, 10)
    with open(ballast, "wb", buffering=0) as file:
        while time.monotonic() < until:
            for size in (1 << 24, 1 << 16, 1 << 12):  # what others free is taken too
                with suppress(OSError):
                    while file.write(bytes(size)) == size and time.monotonic() < until:
                        pass
            is_full = is_full or os.statvfs("/tmp").f_bavail == 0
            time.sleep(0.05)
    ballast.unlink()
    for cache in place.folder.rglob("__pycache__"):  # as a worker asks for if Python put an incomplete file there
        shutil.rmtree(cache, ignore_errors=True)
    if place.server is not None:
        place.server.start()
    return is_full


def step_clock(place: Place, chance: random.Random) -> bool:
    for hours in (chance.randint(1, 30), -chance.randint(1, 30)):
        place.set_clock(hours)
        time.sleep(chance.uniform(5, 15))
    place.set_clock(0)
    return True


ANYWHERE: Mapping[str, Fault] = {"kill": kill, "freeze": freeze, "full disk": fill_disk}
ON_SERVERS: Mapping[str, Fault] = {
    "server kill": partial(without_server, begin="kill", end="start", seconds=(0, 2, 8)),
    # Now and then for longer than workers wait.
    "server restart": partial(without_server, begin="stop", end="start", seconds=(1, 2, 40)),
    "server freeze": partial(without_server, begin="freeze", end="thaw", seconds=(1, 4, 12)),
    "slow network": slow_network,
}
HARMLESS = ("upload", "clock step")
"""These hinder no worker."""
OLD_CODE_SECONDS = 70.0
"""The first line's workers live at most so long. With code from before the upload they must not meet a clock step: they
compare their clock with the times of files, which libfaketime does not shift, as a wrong clock of a machine would."""


def faults_of(place: Place) -> dict[str, Fault]:
    faults = {**ANYWHERE, **(ON_SERVERS if place.server else {})}
    return faults | ({"clock step": step_clock} if place.has_clock else {})


def strikes(place: Place, seed: int, seconds: float, gap: tuple[float, float]) -> Iterator[Strike]:
    """Makes all faults again and again in random orders, for so many seconds, and an upload of the code amid them."""
    chance, faults, begin = random.Random(f"{seed}:faults"), faults_of(place), time.monotonic()
    left: list[str] = []
    while time.monotonic() < begin + seconds:
        time.sleep(chance.uniform(*gap))
        began = time.monotonic()
        has_old_code = place.uploaded_at is None or began < place.uploaded_at + OLD_CODE_SECONDS
        known = [kind for kind in faults if kind != "clock step" or not has_old_code]
        left = left or chance.sample(known, len(known))
        if place.uploaded_at is None and began > begin + 0.3 * seconds:
            place.upload()
            yield Strike("upload", None, None, began, time.monotonic())
        elif faults[kind := left.pop()](place, chance):
            yield Strike(kind, None, None, began, time.monotonic())
