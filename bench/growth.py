"""`python -m bench.growth`: what each step costs with 10,000 to 10,000,000 rows, and after as many tasks went through.

Each result is written at once, and a run that was interrupted goes on. At the end docs/benchmarks.md gets the tables,
if the results are not in a file of their own.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import taskserver
from taskserver import TaskServer
from taskserver.model.attempt import Finish, Start
from taskserver.model.task import Status
from taskserver.stores.queue.batches import Batches
from taskserver.stores.queue.pruning import Pruning
from taskserver.web.one_file import one_file, read_part

from . import growth_report
from .bases import BASES, Base
from .measure import seconds
from .place import REPOSITORY, TASK, Cost, cost_of, cron_environment
from .results import Results, parse, words
from .rows import FORMS, WANTED, Filler

ROWS = (10_000, 100_000, 1_000_000, 10_000_000)
TASKS = 10_000_000
TABLE = "jobs_queue"
GROUPS, IDLE_GROUP = (3, 5, 6), 9
CLAIMED = 100
MAX_PORTION = 1_000_000
WAITING = 10_000
"""Tasks that wait when a claim is measured after many went through."""
WORKERS = 2
TASKS_MODULE = """
import taskserver


@taskserver.task(batch=500)
def nothing(calls):
    pass
"""


class Queue(NamedTuple):
    """A queue on a database of its own."""

    base: Base
    name: str
    server: TaskServer
    folder: Path

    def fill(self, count: int, status: Status = Status.NEW) -> None:
        Filler(partial(self.base.execute, self.name), *FORMS[self.base.kind]).fill(TABLE, count, WANTED, status=status)

    def disk_bytes(self) -> int:
        """What the queue's tables and indexes take on the disk."""
        if self.base.kind == "postgresql":
            sizes = (
                f"SELECT SUM(pg_total_relation_size(oid)) FROM pg_class WHERE relname LIKE '{TABLE}%' AND relkind = 'r'"
            )
            return int(self.base.execute(self.name, sizes)[0][0])
        if self.base.kind == "mysql":
            files = list(self.base.server.folder.glob(f"data/{self.name}/{TABLE}*.ibd"))
        else:
            path = Path(self.base.variables(self.name)["BENCH_DATABASE"])
            files = [file for file in (path, Path(f"{path}-wal")) if file.exists()]
        return sum(file.stat().st_size for file in files)


def opened(base: Base, name: str, folder: Path) -> Queue:
    """A queue with its tables."""
    base.create(name)
    (folder / "tasks.py").write_text(TASKS_MODULE)
    server = TaskServer(base.dsn(name), folder=folder)
    server.create_tables()
    return Queue(base, name, server, folder)


def closed(queue: Queue) -> None:
    queue.server.close()
    queue.base.drop(queue.name)


# ---- what is measured: each yields its seconds again and again


def _look(queue: Queue) -> Iterator[float]:
    while True:
        yield seconds(partial(queue.server.run, groups=[IDLE_GROUP]))


def _status(queue: Queue) -> Iterator[float]:
    while True:
        yield seconds(queue.server.status)


def _page(queue: Queue) -> Iterator[float]:
    while True:
        yield seconds(lambda: one_file({"": read_part(queue.server, queue.folder, False, None)}, 300))


def _add(queue: Queue) -> Iterator[float]:
    while True:
        yield seconds(partial(queue.server.add_task, TASK, {"n": 1}, group_id=3, priority=12))


def _claim(queue: Queue) -> Iterator[float]:
    """The tasks are then completed, as a claim also reads past those in progress."""
    store = queue.server.store
    while True:
        begun = time.perf_counter()
        tasks = store.claims.claim(CLAIMED, GROUPS).tasks
        took = time.perf_counter() - begun
        Batches(store).start(tasks, 3)
        Batches(store).complete(tasks)
        yield took


def _start_and_finish(queue: Queue) -> Iterator[float]:
    """A task's writes: the finish of one and the start of the next in one commit."""
    store = queue.server.store
    while True:
        tasks = store.claims.claim(CLAIMED, GROUPS).tasks
        store.finishes.advance([], Start(tasks[0], 3))
        for ended, following in pairwise(tasks):
            yield seconds(partial(store.finishes.advance, [Finish(ended)], Start(following, 3)))
        store.finishes.advance([Finish(tasks[-1])], None)


def _prune(queue: Queue) -> Iterator[float]:
    """A portion of 1,000 done rows, as TASKSERVER_KEEP deletes them in each run."""
    pruning = Pruning(queue.server.store, 0, ["done"], keys=False)
    while True:
        yield seconds(partial(pruning.run_portion, "done"))


class Step(NamedTuple):
    """A step of the queue's work, and how often it is measured."""

    title: str
    times: int
    measured: Callable[[Queue], Iterator[float]]


STEPS = {
    "look": Step("an empty run", 30, _look),
    "status": Step("status", 11, _status),
    "page": Step("the page", 11, _page),
    "add": Step("add one", 200, _add),
    "claim": Step(f"claim of {CLAIMED}", 20, _claim),
    "task": Step("start and finish", 150, _start_and_finish),
    "prune": Step("prune of 1,000", 3, _prune),
}


# ---- growth


def grow(base: Base, rows: int, folder: Path, results: Results) -> None:
    """Measure all steps that are not measured yet with so many rows: half of them new, the others done, 1 % fatal."""
    found = results.of("growth", base.kind, str(rows))
    left = {name: step for name, step in STEPS.items() if name not in found}
    if not left:
        return
    queue = opened(base, f"grow_{rows}", folder)
    began_at = time.monotonic()
    fatal = rows // 100
    queue.fill(rows // 2 - fatal, Status.DONE)
    queue.fill(fatal, Status.FATAL)
    queue.fill(rows - rows // 2)
    base.settle(queue.name)
    print(f"{base.kind}: {rows:,} rows filled in {time.monotonic() - began_at:.0f} s", flush=True)
    for name, step in left.items():
        measured = step.measured(queue)
        if name != "prune":
            next(measured)  # connects, and fills the caches
        taken = [1000 * one for one in islice(measured, step.times)]
        found[name] = {"ms": median(taken), "low": min(taken), "high": max(taken), "times": step.times}
        if base.kind == "mysql":
            found[name]["rows_read"] = _rows_read(base, measured)
        results.save()
        print(f"{base.kind:<11} {rows:>11,} rows  {step.title:<20} {median(taken):10.2f} ms", flush=True)
    closed(queue)


def _rows_read(base: Base, measured: Iterator[float]) -> int:
    """How many rows and index entries MariaDB reads for a step: a figure that no other load changes."""

    def reads() -> int:
        return sum(int(value) for _, value in base.execute("", "SHOW GLOBAL STATUS LIKE 'Handler_read%'"))

    first, second = reads(), reads()
    next(measured)
    return max(reads() - second - (second - first), 0)


# ---- the way back


def go_back(base: Base, tasks: int, folder: Path, results: Results) -> None:
    """Let so many tasks go through; then compare the queue with a new one, also after it was compacted."""
    found = results.of("back", base.kind, str(tasks))
    if "compacted" in found:
        return
    queue, new = (opened(base, f"{name}_{tasks}", folder) for name in ("back", "new"))
    began_at, portion, peak = time.monotonic(), min(MAX_PORTION, max(1, tasks // 10)), 0
    for begin in range(0, tasks, portion):
        queue.fill(min(portion, tasks - begin))
        _drain(queue)
        peak = max(peak, queue.disk_bytes())
        rate = min(tasks, begin + portion) / (time.monotonic() - began_at)
        print(f"{base.kind}: {min(tasks, begin + portion):,} tasks went through, {rate:,.0f} a second", flush=True)
    found |= {"tasks_a_second": tasks / (time.monotonic() - began_at), "peak_mb": peak / 1e6}
    for one in (queue, new):
        one.fill(WAITING)
    found["after"] = _compared(queue, new)
    cost = _program(queue, "client.py", "compact", "--yes")
    found["compacted"] = _compared(queue, new) | {"seconds": cost.wall_seconds}
    results.save()
    for one in (queue, new):
        closed(one)


def _compared(queue: Queue, new: Queue) -> dict[str, float]:
    """Claims of 100 from both queues in turn, and what both take on the disk."""
    pairs = list(islice(zip(_claim(queue), _claim(new), strict=False), 1, 21))  # the first ones connect
    ms, new_ms = (1000 * median(side) for side in zip(*pairs, strict=True))
    mb, new_mb = (one.disk_bytes() / 1e6 for one in (queue, new))
    print(f"{queue.base.kind}: claims {ms:.2f} ms, in a new queue {new_ms:.2f}; {mb:.1f} MB, {new_mb:.1f}", flush=True)
    return {"ms": ms, "new_ms": new_ms, "mb": mb, "new_mb": new_mb}


def _drain(queue: Queue) -> None:
    """Have workers run everything."""
    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(lambda _: _program(queue, "worker.py", "0", "--slots", "0", "--batch", "500"), range(WORKERS)))
    left = queue.base.execute(queue.name, f"SELECT COUNT(*) FROM {TABLE}")[0][0]
    if left:
        raise SystemExit(f"{queue.base.kind}: {left} tasks were left")


def _program(queue: Queue, *arguments: str) -> Cost:
    program, *more = arguments
    command = [sys.executable, str(REPOSITORY / program), *more, "--folder", str(queue.folder)]
    return cost_of(command, queue.folder, {**cron_environment(), "TASKSERVER_DSN": queue.base.dsn(queue.name)})


# ---- the command


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    results = Results(options.results, options.again)
    results.data |= {"python": platform.python_version(), "taskserver": taskserver.__version__}
    for kind in options.on:
        with tempfile.TemporaryDirectory(prefix="bench-growth-") as folder, BASES[kind](options.quick) as base:
            results.of("versions")[kind] = base.version()
            for rows in options.rows if "growth" in options.part else ():
                grow(base, rows, Path(folder), results)
            if "back" in options.part:
                go_back(base, options.tasks, Path(folder), results)
            results.data["date"] = time.strftime("%Y-%m-%d")
            results.save()
    titles = {name: step.title for name, step in STEPS.items()}
    if options.writes_page:
        growth_report.write(titles, results.data)
    else:
        print(growth_report.text(titles, results.data))
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=words, help=f"default {','.join(map(str, ROWS))}")
    parser.add_argument("--tasks", type=int, default=None, help=f"how many go through; default {TASKS}")
    options = parse(parser, arguments, "growth", ["growth", "back"])
    options.rows = [int(word) for word in options.rows or ([10_000, 20_000] if options.quick else ROWS)]
    options.tasks = options.tasks or (5_000 if options.quick else TASKS)
    if min(options.rows) < 10_000 or options.tasks < 1_000:
        parser.error("--rows: at least 10000 each; --tasks: at least 1000")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
