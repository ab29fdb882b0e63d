"""What becomes of tasks whose workers are killed: 20 SIGKILLs, while four workers run 2,000 tasks."""

from __future__ import annotations

import random
import subprocess
import threading
import time

from .place import Place, kill, stop

WORKERS = 4
RESTART_SECONDS = 1.0
"""The supervisor starts a worker again so long after it has ended."""
QUIET_SECONDS = 10.0
"""If nothing is left in the queue, and nothing was called for so long, the rest is lost."""


class Supervisor(threading.Thread):
    """A plain loop that starts each worker again."""

    def __init__(self, place: Place) -> None:
        super().__init__(daemon=True)
        self.place, self.lock = place, threading.Lock()
        workers = min(WORKERS, place.peer.most_workers)
        self.stopped = threading.Event()
        self.workers: list[subprocess.Popen[bytes]] = [place.start(n, "effect") for n in range(workers)]
        self.ended_at = [0.0] * workers
        self.calls_before = [0] * workers

    def run(self) -> None:
        while not self.stopped.wait(0.02):
            with self.lock:
                for number, process in enumerate(self.workers):
                    self._look_after(number, process)

    def _look_after(self, number: int, process: subprocess.Popen[bytes]) -> None:
        now = time.monotonic()
        if process.poll() is None:
            self.ended_at[number] = now
        elif now - self.ended_at[number] > RESTART_SECONDS:
            self.ended_at[number] = now
            self.calls_before[number] = self.place.calls(WORKERS)[number]
            self.workers[number] = self.place.start(number, "effect")

    def kill_one(self, *, idle_too: bool) -> bool:
        """Kill one that has run a task since it was started; which one is chance. Whether there was one."""
        with self.lock:
            both = zip(self.place.calls(WORKERS), self.calls_before, self.workers, strict=False)
            found = [worker for now, before, worker in both if worker.poll() is None and (idle_too or now > before)]
            if found:
                kill(random.choice(found))
        return bool(found)

    def end(self) -> None:
        self.stopped.set()
        self.join()
        stop(self.workers)


def kills(place: Place, killing: threading.Lock, *, tasks: int, count: int, limit_seconds: float) -> dict[str, float]:
    """lost, stuck at the limit, twice, seconds until all had run (or -1), kills.

    Only one peer at once is in the part with the kills (`killing`); in the wait after it others may be killed.
    """
    with killing:
        place.base.empty(place.name, place.peer.tables)
        place.run("add_many", tasks, "effect")
        place.forget_calls(WORKERS)
        begun = time.monotonic()
        supervisor = Supervisor(place)
        supervisor.start()
        killed = _kill(place, supervisor, tasks, count)
    try:
        last_kill = last_change = time.monotonic()
        seen = (0, 0)
        while (found := place.base.effects(place.name))[0] < tasks and time.monotonic() - last_kill < limit_seconds:
            if found != seen:
                seen, last_change = found, time.monotonic()
            elif time.monotonic() - last_change > QUIET_SECONDS and place.unfinished() == 0:
                break
            time.sleep(0.2)
        took = time.monotonic() - begun if found[0] == tasks else -1.0
        missing = tasks - found[0]
        stuck = min(missing, place.unfinished())
    finally:
        supervisor.end()
    run, written = place.base.effects(place.name)
    return {"lost": missing - stuck, "stuck": stuck, "twice": written - run, "seconds": took, "kills": killed}


def _kill(place: Place, supervisor: Supervisor, tasks: int, count: int) -> int:
    """Kill at random numbers of calls, so that they fall into the work of fast and slow queues.

    One that has not run a task yet is killed only if there is no other for some seconds.
    """
    killed, begun = 0, time.monotonic()
    for number in sorted(random.sample(range(tasks // 50, tasks * 19 // 20), count)):
        end = time.monotonic() + 5
        while (calls := sum(place.calls(WORKERS))) < number and time.monotonic() < end:
            time.sleep(0.001)
        # At any instant of a worker's next task.
        time.sleep(random.uniform(0, min(0.5, WORKERS * (time.monotonic() - begun) / max(1, calls))))
        while not supervisor.kill_one(idle_too=time.monotonic() > end + 5):
            time.sleep(0.01)
        killed += 1
    return killed
