"""`python -m bench.growth`: what each step costs with 10,000 to 10,000,000 rows, and after as many tasks went through.

Each result is written at once, and a run that was interrupted goes on. At the end docs/benchmarks.md gets the tables,
if the results are not in a file of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

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
from .page import machine
from .place import REPOSITORY, TASK
from .rows import FORMS, WANTED, Filler

RESULTS = REPOSITORY / "var" / "bench-growth.json"
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

    @property
    def dsn(self) -> str:
        return self.base.variables(self.name)["BENCH_URL"]

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
    server = TaskServer(base.variables(name)["BENCH_URL"], folder=folder)
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


class Results:
    """The figures, in a file."""

    def __init__(self, path: Path, again: bool) -> None:
        self._path = path
        self.data: dict[str, Any] = {} if again or not path.exists() else json.loads(path.read_text())
        self.of("about")["machine"], self.of("about")["python"] = machine(), sys.version.split()[0]
        self.of("about")["taskserver"] = taskserver.__version__

    def of(self, *keys: str) -> dict[str, Any]:
        """The record below these keys."""
        found = self.data
        for key in keys:
            found = found.setdefault(key, {})
        return found

    def save(self) -> None:
        self.of("about")["date"] = time.strftime("%Y-%m-%d")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.with_suffix(".tmp").write_text(json.dumps(self.data, indent=1))
        os.replace(self._path.with_suffix(".tmp"), self._path)


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
    began_at = time.monotonic()
    _program(queue, "client.py", "compact", "--yes").check_returncode()
    seconds_taken = time.monotonic() - began_at
    found["compacted"] = _compared(queue, new) | {"seconds": seconds_taken}
    results.save()
    for one in (queue, new):
        closed(one)


def _compared(queue: Queue, new: Queue) -> dict[str, float]:
    """Claims of 100 from both queues in turn, and what both take on the disk."""
    pairs = list(islice(zip(_claim(queue), _claim(new), strict=False), 1, 21))  # the first ones connect
    ms, new_ms = (1000 * median(side) for side in zip(*pairs, strict=True))
    ratio = median(one / other for one, other in pairs)
    mb, new_mb = (one.disk_bytes() / 1e6 for one in (queue, new))
    print(f"{queue.base.kind}: claims {ms:.2f} ms, in a new queue {new_ms:.2f}; {mb:.1f} MB, {new_mb:.1f}", flush=True)
    return {"ms": ms, "new_ms": new_ms, "ratio": ratio, "mb": mb, "new_mb": new_mb}


def _drain(queue: Queue) -> None:
    """Have workers run everything."""
    workers = [_start(queue, "worker.py", "0", "--slots", "0", "--batch", "500") for _ in range(WORKERS)]
    codes = [worker.wait() for worker in workers]
    if any(codes):
        raise SystemExit(f"{queue.base.kind}: a worker ended with an error")
    left = queue.base.execute(queue.name, f"SELECT COUNT(*) FROM {TABLE}")[0][0]
    if left:
        raise SystemExit(f"{queue.base.kind}: {left} tasks were left")


def _start(queue: Queue, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    program, *more = arguments
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, str(REPOSITORY / program), *more, "--folder", str(queue.folder)],
        env=environment | {"TASKSERVER_DSN": queue.dsn},
        text=True,
        **options,
    )


def _program(queue: Queue, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = _start(queue, *arguments, stdout=subprocess.PIPE)
    output, _ = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, output)


# ---- the command


def main(arguments: list[str]) -> int:
    options = _parse(arguments)
    results = Results(options.results, options.again)
    for kind in options.on:
        with tempfile.TemporaryDirectory(prefix="bench-growth-") as folder, BASES[kind](options.quick) as base:
            results.of("about", "versions")[kind] = base.version()
            for rows in options.rows if "growth" in options.part else ():
                grow(base, rows, Path(folder), results)
            if "back" in options.part:
                go_back(base, options.tasks, Path(folder), results)
            results.save()
    titles = {name: step.title for name, step in STEPS.items()}
    if options.results == RESULTS:
        growth_report.write(titles, results.data)
    else:
        print(growth_report.text(titles, results.data))
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=_numbers, default=None, help=f"default {','.join(map(str, ROWS))}")
    parser.add_argument("--tasks", type=int, default=None, help=f"how many go through; default {TASKS}")
    parser.add_argument("--on", type=_words, default=list(BASES), help="databases: mysql,sqlite,postgresql")
    parser.add_argument("--part", type=_words, default=["growth", "back"], help="growth,back")
    parser.add_argument("--quick", action="store_true", help="few rows: does it work at all? Only prints the tables")
    parser.add_argument("--results", type=Path, metavar="FILE", help=f"default {RESULTS.relative_to(REPOSITORY)}")
    parser.add_argument("--again", action="store_true", help="forget the results that are there")
    options = parser.parse_args(arguments)
    options.rows = options.rows or ([10_000, 20_000] if options.quick else list(ROWS))
    options.tasks = options.tasks or (5_000 if options.quick else TASKS)
    options.again = options.again or options.quick
    options.results = options.results or (RESULTS.with_stem("bench-growth-quick") if options.quick else RESULTS)
    for words, known in ((options.on, list(BASES)), (options.part, ["growth", "back"])):
        if unknown := [word for word in words if word not in known]:
            parser.error(f"{unknown[0]}: choose from {', '.join(known)}")
    if min(options.rows) < 10_000 or options.tasks < 1_000:
        parser.error("--rows: at least 10000 each; --tasks: at least 1000")
    return options


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",")]


def _numbers(text: str) -> list[int]:
    return [int(word.replace("_", "")) for word in _words(text)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
