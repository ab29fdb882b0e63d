"""What 20 SIGKILLs do to each queue on PostgreSQL: tasks lost, tasks that ran twice, and the time until all are done.

Two workers run tasks of 2 ms; each time that a twenty-first of the tasks is done one of them is killed, and another is
started in its place. All take a worker for dead after 30 s: it is the default of procrastinate and PgQueuer. The
documentation of procrastinate has its user write a periodic task that retries what dead workers left, each ten minutes;
here it runs each minute.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .measure import Rate, rate
from .postgresql import PostgreSQLPlace

KILLS = 20
WORKERS = 2
PATIENCE_SECONDS = 100
"""So long after the last task ended those that are missing are lost: three times what the slowest needs to notice."""
KILLED = ("taskserver", "taskserver by 10", "procrastinate", "pgqueuer by 10", "pgqueuer by 100", "huey")


class Outcome(NamedTuple):
    """What became of the tasks."""

    lost: int
    run_twice: int
    seconds: float


def pg_kills(place: PostgreSQLPlace) -> Iterator[Rate]:
    """One run of each: its seconds depend on clocks that tick each minute."""
    tasks = place.size(4_000, 400)
    for peer in KILLED:
        outcome = _outcome(place, peer, tasks, place.size(KILLS, 2))
        for what, value in zip(("tasks lost", "tasks run twice", "seconds until all done"), outcome, strict=True):
            yield rate(f"{place.size(KILLS, 2)} SIGKILLs, {tasks:,} tasks, {peer}: {what}", [value], "")


def _outcome(place: PostgreSQLPlace, peer: str, tasks: int, kills: int) -> Outcome:
    database = place.database(peer)
    place.act(peer, "fill", database, tasks)
    place.prepare(database)
    # The server has a folder of its own, which goes with it.
    marks = Path(place.server.folder, f"marks-{database}")
    marks.touch()
    # All of them ready, so that another one begins at once where one is killed.
    ready = [place.start(peer, "wait", database, marks=str(marks)) for _ in range(WORKERS + kills)]
    for worker in ready[:WORKERS]:
        place.let_go(worker)
    begun_at = last_at = time.monotonic()
    done = killed = 0
    try:
        while done < tasks and time.monotonic() < last_at + PATIENCE_SECONDS:
            time.sleep(0.02)
            now_done = len(_numbers(marks, "ended"))
            if now_done > done:
                done, last_at = now_done, time.monotonic()
            if killed < kills and done >= (killed + 1) * tasks // (kills + 1):
                ready[killed].kill()
                place.let_go(ready[killed + WORKERS])
                killed += 1
    finally:
        for worker in ready:
            worker.kill()
            worker.communicate()
    if killed < kills:
        raise SystemExit(f"{peer}: {killed} of {kills} workers were killed before the last task was done")
    begun = _numbers(marks, "begun")
    place.server.drop_database(database)
    return Outcome(tasks - done, sum(times > 1 for times in begun.values()), last_at - begun_at)


def _numbers(marks: Path, what: str) -> Counter[str]:
    """How often each task begun, or ended."""
    return Counter(line.split()[1] for line in marks.read_text().splitlines() if line.startswith(what))
