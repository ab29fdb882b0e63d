"""A peer in its place: a database and a folder of its own, and its processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..bases import Base
from ..place import cost_of
from .peer import Peer

SEEDS = 250
"""So many tasks are added by the peer itself; more are copies of their rows."""
PATIENCE_SECONDS = 3.0
"""A worker that has not ended so long after SIGTERM is killed."""


class Place:
    """Made with its tables; `close` drops them."""

    def __init__(self, peer: Peer, base: Base, folder: Path) -> None:
        self.peer, self.base = peer, base
        self.name = "".join(letter if letter.isalnum() else "_" for letter in peer.name.lower())
        self.folder = folder / f"{self.name}_{peer.base}"
        self.folder.mkdir()
        self.log = (self.folder / "log").open("ab")
        peer.lay(self.folder)
        base.create(self.name)
        self.run("install")

    def close(self) -> None:
        self.base.drop(self.name)
        self.log.close()

    def variables(self, task: str, worker: int = 0, workers: int = 1) -> dict[str, str]:
        place = {"BENCH_TASK": task, "BENCH_CALLS": str(self.calls_of(worker)), "BENCH_WORKERS": str(workers)}
        return self.peer.variables({**self.base.variables(self.name), **place})

    def run(self, verb: str, count: int = 0, task: str = "nothing") -> str:
        """What a command prints; one that fails ends the benchmark with what it said."""
        command = self.peer.command(verb, count)
        variables = self.variables(task)
        ended = subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(
                f"{self.peer.key}: {' '.join(command)}: exit {ended.returncode}:\n{ended.stderr[-2000:]}"
            )
        return ended.stdout

    def add(self, verb: str, count: int) -> float:
        """Tasks a second."""
        self.base.empty(self.name, self.peer.tables)
        return count / float(self.run(verb, count).split()[-1])

    def empty_run(self) -> tuple[float, float]:
        """CPU milliseconds and MB of a start that finds nothing."""
        self.base.empty(self.name, self.peer.tables)
        cost = cost_of(self.peer.command("empty"), self.folder, self.variables("nothing"))
        return cost.cpu_seconds * 1000, cost.peak_kb / 1024

    def fill(self, count: int) -> None:
        """As many waiting tasks, and no others."""
        self.base.empty(self.name, self.peer.tables)
        self.run("add_many", min(count, SEEDS))
        there, table = min(count, SEEDS), self.peer.tables[0]
        columns, values = (", ".join(part) for part in (self.peer.copied, self.peer.copied.values()))
        while there < count:
            more = min(there, count - there)
            self.base.execute(self.name, f"INSERT INTO {table} ({columns}) SELECT {values} FROM {table} LIMIT {more}")
            there += more
        self.base.settle(self.name)

    def unfinished(self) -> int:
        """How many tasks wait or run."""
        return int(self.base.execute(self.name, self.peer.unfinished)[0][0])

    def calls_of(self, worker: int) -> Path:
        return self.folder / f"calls.{worker}"

    def calls(self, workers: int) -> list[int]:
        """How many calls each worker has made."""
        return [os.stat(self.calls_of(worker)).st_size for worker in range(workers)]

    def forget_calls(self, workers: int) -> None:
        for worker in range(workers):
            self.calls_of(worker).write_bytes(b"")

    def start(self, worker: int, task: str = "nothing", workers: int = 1) -> subprocess.Popen[bytes]:
        """A program with so many workers, in a process group of its own; it does not outlive the benchmark."""
        return subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", *self.peer.command("work", worker=worker)],
            cwd=self.folder,
            env=self.variables(task, worker, workers),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )

    @contextmanager
    def working(self, workers: int) -> Iterator[Sequence[subprocess.Popen[bytes]]]:
        """In the `with`, so many workers work. Gives their programs."""
        programs, each = (1, workers) if self.peer.has_pool else (workers, 1)
        self.forget_calls(programs)
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for number in range(programs):
                processes.append(self.start(number, workers=each))
            yield processes
        finally:
            stop(processes)


def kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for a worker and all its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGTERM; then SIGKILL for what is left."""
    for process in processes:
        process.terminate()
    end = time.monotonic() + PATIENCE_SECONDS
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
        kill(process)
