"""A chaos run from its begin to its report: faults for so many seconds, then a drain, then the checks."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from tests.faults.chaos.checks import Evidence, Row, Run, check_all
from tests.faults.chaos.faults import HINDERING, Faults, Strike, Striker, faults_of
from tests.faults.chaos.stage import PRODUCERS, SLACK_SECONDS, SLOTS, Bystander, Producer, Slot, Span, Stage, WorkerRun
from tests.support.databases import DATABASES
from tests.support.proxy import Link
from tests.support.rows import Rows

DRAIN_SECONDS = 60.0
"""So long, when the faults have ended, the queue may take until one more of its tasks is over.

A task that kills its workers takes a lease for each attempt more.
"""
LATE_SECONDS = 1.0
"""So long nothing may be left: a worker that was frozen may complete a task that was given up as lost, whose children
then wait again."""
LEFT = "SELECT id, task, args, status, attempts, due_at, awaited FROM jobs_queue WHERE status NOT IN (2, 4)"
LEFT += " OR due_at IS NOT NULL"
"""A row that is over and has an instant is still to be reported to those that wait for it."""
EDGES = """SELECT parent_id, child_id FROM jobs_queue_dependencies
WHERE child_id NOT IN (SELECT id FROM jobs_queue WHERE status = 4)"""


class Report(NamedTuple):
    """What a chaos run found."""

    heading: str
    evidence: Evidence
    failures: list[str]

    def __str__(self) -> str:
        evidence = self.evidence
        counts: dict[str, Counter[Any]] = {
            "struck": Counter(strike.kind for strike in evidence.strikes),
            "added": Counter(one.kind for one in evidence.added),
            "without an answer": Counter(one.kind for one in evidence.added if one.id is None),
            "outcomes": Counter(run.outcome for run in evidence.runs),
            "runs of each task": Counter(map(len, evidence.runs_of.values())),
            "exit codes": Counter(worker.code for worker in evidence.workers),
        }
        lines = [f"  {name}: {dict(found.most_common())}" for name, found in counts.items()]
        return "\n".join([self.heading, *lines, *self.failures[:20]])


def run_chaos(dsn_kind: str, seconds: float, seed: int, folder: Path) -> Report:
    """Faults for so many seconds, then a drain, then the checks."""
    with closing(Stage(dsn_kind, folder, seed)) as stage:
        evidence = play(stage, faults_of(dsn_kind), seconds, seed)
    return report_on(dsn_kind, seed, seconds, evidence, check_all(evidence))


def report_on(name: str, seed: int, seconds: float, evidence: Evidence, failures: list[str]) -> Report:
    outcome = f"{len(failures)} FAILURES" if failures else "all promises held"
    return Report(f"chaos on {name}: seed {seed}, {seconds:g} s of faults: {outcome}", evidence, failures)


def play(stage: Stage, faults: Sequence[Faults], seconds: float, seed: int) -> Evidence:
    """Producers, workers, and a striker for each of these sorts of faults, the last of which has the main thread."""
    producers = [Producer(stage, seed, first) for first in range(PRODUCERS)]
    slots = [Slot(stage, number) for number in range(SLOTS)]
    bystander, until = Bystander(stage), time.monotonic() + seconds
    strikers = [Striker(stage, slots, each, seed, until) for each in faults]
    broken: list[threading.ExceptHookArgs] = []
    usual, threading.excepthook = threading.excepthook, broken.append
    for thread in (*producers, bystander, *slots, *strikers[:-1]):
        thread.start()
    try:
        strikers[-1].run()  # here, as a server that the main thread starts ends with it
        for striker in strikers[:-1]:
            striker.join()
        for producer in producers:
            producer.end()
        stage.end_adding()
        left = drain(stage)
    finally:
        for actor in (*producers, *slots):
            actor.stopped.set()
        unended = [slot.number for slot in slots if not slot.has_ended(DRAIN_SECONDS / 2)]
        bystander.end()
        threading.excepthook = usual
    for error in (*(one.exc_value for one in broken), *(striker.error for striker in strikers)):
        if error is not None:
            raise error
    strikes = [strike for striker in strikers for strike in striker.strikes]
    notes = (stage.folder / "runs").read_text()
    with closing(stage.rows()) as rows:
        return Evidence(
            added=[one for producer in producers for one in producer.added],
            rows=list(read_rows(rows)),
            runs=list(read_runs(notes)),
            supervisors=read_supervisors(notes),
            workers=[run for slot in slots for run in slot.runs],
            strikes=strikes,
            faults=[kind for striker in strikers for kind in striker.faults],
            hindered={slot.number: _hindered(slot, stage, strikes, bystander.delays) for slot in slots},
            modes=stage.modes,
            transfers=[(n, source, target, by) for n, source, target, by in rows.execute("SELECT * FROM transfers")],
            balances=dict(rows.execute("SELECT id, balance FROM accounts")),
            left=left,
            unended=unended,
            lease_seconds=stage.lease_seconds,
            is_cluster=stage.is_cluster,
        )


def drain(stage: Stage) -> list[Any]:
    """Wait until every task is done or fatal, or for long none becomes so. Those that are not, and their edges."""
    least, deadline, empty_at = float("inf"), 0.0, float("inf")
    patience = DRAIN_SECONDS + stage.lease_seconds * stage.max_attempts
    with closing(stage.rows()) as rows:
        while True:
            left = [*rows.execute(LEFT), *rows.execute(EDGES)]
            now = time.monotonic()
            if len(left) < least:
                least, deadline = len(left), now + patience
            empty_at = float("inf") if left else min(empty_at, now)
            if now > min(deadline, empty_at + LATE_SECONDS):
                return left
            time.sleep(0.1)


def read_rows(rows: Rows, where: str = "1 = 1") -> Iterator[Row]:
    for place, table in {"queue": "jobs_queue", "archive": "jobs_queue_done"}.items():
        for args, *others in rows.execute(f"SELECT args, status, attempts, error_text FROM {table} WHERE {where}"):
            yield Row(json.loads(args)["number"], place, *others)


def read_runs(text: str) -> Iterator[Run]:
    """What the tasks themselves noted."""
    begun: dict[tuple[int, int], Run] = {}
    for line in text.splitlines():
        what, number, pid, at, how = line.split(" ", 4)
        key = int(number), int(pid)
        if what == "process":
            continue
        if what == "begin":
            if key in begun:
                yield begun[key]
            begun[key] = Run(*key, float(at), kind=how)
        elif what == "dies":
            begun[key] = begun[key]._replace(ended=float(at), outcome="dies")
        else:
            yield begun.pop(key)._replace(ended=float(at), outcome=how)
    yield from begun.values()


def read_supervisors(text: str) -> dict[int, int]:
    """The parent of each process that noted it."""
    lines = (line.split(" ") for line in text.splitlines() if line.startswith("process "))
    return {int(pid): int(parent) for _, parent, pid, *_ in lines}


def _hindered(slot: Slot, stage: Stage, strikes: Sequence[Strike], delays: Sequence[Span]) -> list[Span]:
    """When the workers of a slot were frozen, or could not reach the database; what is close together is one."""
    pids = {run.pid for run in slot.runs}
    spans = [*delays]
    for strike in strikes:
        if strike.kind in HINDERING and (
            strike.pid in pids or (strike.pid is None and strike.slot in (None, slot.number))
        ):
            spans.append(Span(strike.began, strike.ended))
    if stage.proxies:
        for run in slot.runs:
            spans += _unreached(stage.proxies[slot.number].links, run)
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.began <= merged[-1].ended + SLACK_SECONDS:
            merged[-1] = Span(merged[-1].began, max(merged[-1].ended, span.ended))
        else:
            merged.append(span)
    return merged


def _unreached(links: Sequence[Link], worker: WorkerRun) -> Iterator[Span]:
    """When a process had no connection, or one that had lost its bytes. Before its first one it only starts."""
    own = [link for link in links if worker.began <= link.opened_at <= worker.ended]
    reached_until = own[0].opened_at if own else worker.ended
    for link in sorted(own, key=lambda link: link.opened_at):
        closed_at = min(link.closed_at or worker.ended, worker.ended)
        if link.opened_at > reached_until:
            yield Span(reached_until, link.opened_at)
        if link.lost_at is not None:
            yield Span(link.lost_at, closed_at)
        reached_until = max(reached_until, link.lost_at or closed_at)
    yield Span(reached_until, worker.ended)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code is 1 if a promise failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos")
    parser.add_argument("--seconds", type=float, default=120.0, help="of faults (default 120)")
    parser.add_argument("--seed", type=int, help="replays an order of faults; default: a new one")
    parser.add_argument("--dsn-kind", choices=DATABASES, help="default: one after the other")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    failures = 0
    for dsn_kind in [options.dsn_kind] if options.dsn_kind else DATABASES:
        with tempfile.TemporaryDirectory() as temporary:
            report = run_chaos(dsn_kind, options.seconds, seed, Path(temporary))
        print(report, flush=True)
        failures += len(report.failures)
    return min(failures, 1)
