"""Chaos: workers started as cron starts them, while they are killed, frozen and stopped, their database is killed, and
the network between the two breaks, producers adding all the while. At the end every promise of the queue is checked.

    python -m tests.chaos [--seconds 120] [--seed N] [--dsn-kind mysql|sqlite] [--keep FOLDER]

A seed gives the schedule of faults (kinds, instants, lengths, which worker) and what each task does at its nth run.
What happened is kept by three witnesses: each run of a task writes to a file of its task's own, a trigger keeps every
change of a row in a table `history`, and the proxies know when a worker could reach the database. All instants are of
time.monotonic(), in seconds.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pymysql

from tests.deployment import Deployment
from tests.proxy import Cut, Link, Proxy, contains
from tests.servers import MariaDB

SLOTS = 4
PRODUCERS = 2
LEASE_SECONDS = 2
TIMEOUT_SECONDS = 3
PATIENCE_SECONDS = 10
MAX_ATTEMPTS = 6

RENEWED_WITHIN_SECONDS = LEASE_SECONDS / 3
"""So often a worker renews the lease of what it runs."""
SLACK_SECONDS = 0.3
"""For the way from a fault to its effect, and for a worker to get going again behind it."""
CLOCKS_DIFFER_SECONDS = 0.01
"""The database's and ours; SQLite's has milliseconds."""
BEGIN_SECONDS = 1.5
"""So long after its start a worker has not reached the database yet, on a busy machine."""
MOST_NEW = 80
"""Producers add little while so many tasks are new: what is left when the faults end must drain soon."""
DRAIN_SECONDS = 120.0
AGAIN_SECONDS = 0.1
"""A fault that finds nothing to strike is tried again so soon,"""
LATEST_SECONDS = 6.0
"""and for so long."""

SETTINGS = {
    "TASKSERVER_LEASE": f"{LEASE_SECONDS}",
    "TASKSERVER_TIMEOUT": f"{TIMEOUT_SECONDS}",
    "TASKSERVER_DB_PATIENCE": f"{PATIENCE_SECONDS}",
    "TASKSERVER_MAX_ATTEMPTS": f"{MAX_ATTEMPTS}",
}
BACKOFFS = ("fixed:0", "fixed:1")
MODES = ("move", "mark")
ARGUMENTS: Sequence[Sequence[object]] = (
    ("--slots", 0),
    ("--slots", 0, "--batch", 5),
    (15, "--slots", 0, "--batch", 3),
    ("--slots", 0, "--batch", 1),
)
"""Of each slot's worker.py."""

HOLDS = "holds the interpreter"
"""What a worker says that ends because nothing can interrupt its task; one that was frozen cannot know better."""
HARD_EXIT = 42
"""The code with which a task leaves by os._exit."""

TASKS = '''
"""What the workers of a chaos run do. Each run leaves its begin and its end in the file of its number."""

import os
import random
import signal
import sys
import time
from pathlib import Path

RUNS = Path(__file__).resolve().parent / "runs"


class Failed(Exception):
    """A task that fails as it was told to."""


def play(number, seed, kind):
    log = os.open(RUNS / str(number), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        _note(log, "begin", "-")
        nth = os.pread(log, 1 << 20, 0).count(b"begin ")
        _act(log, kind, nth, random.Random(f"{seed}:{number}:{nth}"))
    except BaseException as error:
        _note(log, "end", type(error).__name__)
        raise
    else:
        _note(log, "end", "done")
    finally:
        os.close(log)


def _note(log, what, how):
    # One short write to the end of a file is one piece, whoever else writes.
    os.write(log, f"{what} {os.getpid()} {time.monotonic():.6f} {how}\\n".encode())


def _act(log, kind, nth, chance):
    if kind == "nap":
        time.sleep(chance.uniform(0.005, 0.2))
    elif kind != "quick" and chance.random() < (0.6 if nth <= 2 else 0.3):
        _misbehave(log, kind)


def _misbehave(log, kind):
    if kind == "fail":
        raise Failed("as it was told to")
    if kind == "exit":
        sys.exit(3)
    if kind == "hang":
        while True:
            time.sleep(0.05)
    _note(log, "dies", kind)
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "leave":
        os._exit(42)
    if kind == "hold":
        sum(range(10**13))
'''

TASK_KINDS = {
    "quick": 55.0,
    "nap": 20.0,
    "fail": 14.0,
    "exit": 4.0,
    "hang": 2.5,
    "kill": 2.0,
    "leave": 2.0,
    "hold": 0.0,
}
"""With their weights."""
HOLD_WEIGHT = 0.1
"""Of tasks that hold the interpreter, in runs of some length: each takes timeout plus lease."""
LONG_RUN_SECONDS = 60.0
ERRORS_OF_OURS = ("Failed: ", "SystemExit: 3", "TaskInterrupted: ", "taskserver.stopping.TaskInterrupted: ", "lost")
"""How an error_text may begin here. Anything else was no fault of the task's."""


# ---- the schedule


class Fault(NamedTuple):
    """What is planned."""

    at: float
    """Seconds after the begin."""
    kind: str
    slot: int
    seconds: float
    """How long it lasts; 0 for what is over at once."""


WORKER_FAULTS = {
    "kill": (0.0, 0.0),
    "freeze": (0.2, 1.0),
    "freeze beyond the lease": (LEASE_SECONDS * 1.5, LEASE_SECONDS * 2.2),
    "terminate": (0.0, 0.0),
    "terminate twice": (0.05, 0.3),
}
NETWORK_FAULTS = {
    "drop": (0.5, 2.5),
    "stall": (0.3, 3.5),
    "reset": (0.0, 0.0),
    "refuse": (0.3, 2.0),
    "cut before a write": (1.0, 1.0),
    "cut after a write": (1.0, 1.0),
}
SERVER_FAULTS = {"server kill": (0.1, 1.0)}
FAULTS = {"sqlite": WORKER_FAULTS, "mysql": WORKER_FAULTS | NETWORK_FAULTS | SERVER_FAULTS}
"""Kinds of faults with their least and greatest length, in seconds."""
FREEZES = ("freeze", "freeze beyond the lease")
GAP_SECONDS = (0.25, 0.9)
"""Between the begins of two faults."""


def make_schedule(dsn_kind: str, seconds: float, seed: int) -> list[Fault]:
    """Faults of every kind in turns of random order, at random instants, each on a slot that no other one strikes."""
    chance = random.Random(seed)
    kinds = FAULTS[dsn_kind]
    free_at = [0.0] * SLOTS
    planned: list[Fault] = []
    turn: list[str] = []
    at = 1.0
    while at < seconds:
        turn = turn or chance.sample(sorted(kinds), len(kinds))
        kind = turn.pop()
        length = round(chance.uniform(*kinds[kind]), 3)
        slot = chance.choice([slot for slot in range(SLOTS) if free_at[slot] <= at] or [free_at.index(min(free_at))])
        if kind not in SERVER_FAULTS:
            free_at[slot] = at + length + 0.5
        planned.append(Fault(round(at, 3), kind, slot, length))
        at += chance.uniform(*GAP_SECONDS)
    return planned


class Wish(NamedTuple):
    """What a producer adds under a number."""

    kind: str
    max_attempts: int | None
    group_id: int
    priority: int


def wish(seed: int, number: int, weights: Mapping[str, float]) -> Wish:
    chance = random.Random(f"{seed}:{number}")
    return Wish(
        chance.choices(list(weights), list(weights.values()))[0],
        chance.choices([None, 1, 2, 3], [50, 25, 15, 10])[0],
        chance.randrange(3),
        chance.choice([0, 0, 0, -5, 10]),
    )


# ---- what happened


class Span(NamedTuple):
    """A stretch of time."""

    began: float
    ended: float


class Run(NamedTuple):
    """One run of a task, as the task itself noted it."""

    number: int
    pid: int
    began: float
    ended: float | None
    outcome: str
    """`done`, the name of what it raised, `dies kill` and the like, or `?`."""


class Row(NamedTuple):
    """A row at the end, from the queue or the archive."""

    number: int
    id: int
    status: int
    attempts: int
    max_attempts: int | None
    error_text: str | None
    is_archived: int


WAYS = {(0, 1), (1, 1), (1, 0), (1, 2), (1, 3), (1, 4), (3, 0), (4, 1)}
"""From status to status: claim; start and renew; release; done, error, fatal; wake; and, for a task of one attempt that
was given up as lost, its late completion."""


class Event(NamedTuple):
    """One change of a row, as the trigger kept it."""

    id: int
    at: float
    was: int
    status: int
    attempts_before: int
    attempts: int
    claim: int | None
    lease_ended_at: float | None
    """due_at before the change."""
    due_at: float | None
    error_text: str | None

    def __str__(self) -> str:
        lease = "" if self.due_at is None else f", due in {self.due_at - self.at:.3f} s"
        had = "" if self.lease_ended_at is None else f" (had {self.lease_ended_at - self.at:.3f} s left)"
        return (
            f"status {self.was} → {self.status}, attempts {self.attempts_before} → {self.attempts}, "
            f"claim {self.claim}{lease}{had}{f', {self.error_text!r:.60}' if self.error_text else ''}"
        )

    @property
    def is_start(self) -> bool:
        return self.attempts > self.attempts_before

    @property
    def is_allowed(self) -> bool:
        """Whether a worker may take a task from the one status to the other."""
        return (self.was, self.status) in WAYS

    @property
    def is_finish(self) -> bool:
        """Written by the worker that ran it; a release is none."""
        return self.was == 1 and self.status in (2, 3, 4) and not self.is_lost

    @property
    def is_lost(self) -> bool:
        return self.was == 1 and self.status in (3, 4) and (self.error_text or "").startswith("lost")


class WorkerRun(NamedTuple):
    """One process of worker.py."""

    slot: int
    pid: int
    began: float
    ended: float
    code: int
    errors: str


class Strike(NamedTuple):
    """A fault that was seen to strike."""

    kind: str
    slot: int
    pid: int | None
    began: float
    ended: float


@dataclass
class Evidence:
    """All that the checks look at."""

    acknowledged: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    """Their INSERT was sent, and its answer did not come."""
    rows: list[Row] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    workers: list[WorkerRun] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    troubles: dict[int, list[Span]] = field(default_factory=dict)
    """By slot: when its worker was stopped, or could not reach the database."""
    planned: Counter[str] = field(default_factory=Counter)
    kinds: Sequence[str] = ()
    """Of faults, all of which must have struck."""
    undrained: int = 0
    """Tasks that were neither done nor fatal at the end."""
    unended: list[int] = field(default_factory=list)
    """Slots whose worker did not end though nothing was left to do."""
    drain_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.row_of = {row.number: row for row in self.rows}
        self.runs_of: dict[int, list[Run]] = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.began):
            self.runs_of[run.number].append(run)
        number_of = {row.id: row.number for row in self.rows}
        self.events_of: dict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            self.events_of[number_of.get(event.id, -1)].append(event)
        self.worker_of = {worker.pid: worker for worker in self.workers}
        self._begins_in: dict[int, list[float]] = defaultdict(list)
        for run in self.runs:
            self._begins_in[run.pid].append(run.began)

    def end_of(self, run: Run) -> float:
        """When a run was over: as it says, or when its worker began another, or when that ended."""
        if run.ended is not None:
            return run.ended
        worker = self.worker_of.get(run.pid)
        later = [began for began in self._begins_in[run.pid] if began > run.began]
        return min([*later, worker.ended if worker else run.began])

    def tell(self, number: int) -> str:
        """All that is known of a task in order of time, for the message of a failure."""
        lines: list[tuple[float, str]] = []
        for run in self.runs_of[number]:
            lines.append((run.began, f"run by {run.pid} begins"))
            lines.append((self.end_of(run), f"run by {run.pid} is over: {run.outcome}"))
        lines += [(event.at, str(event)) for event in self.events_of[number]]
        for worker in filter(None, map(self.worker_of.get, {run.pid for run in self.runs_of[number]})):
            lines.append((worker.began, f"worker {worker.pid} of slot {worker.slot} is started"))
            lines.append((worker.ended, f"worker {worker.pid} ended with {worker.code} {worker.errors!r:.400}"))
            for strike in self.strikes_on(worker):
                lines.append((strike.began, f"{strike.kind} of slot {strike.slot}, {strike.pid or 'no process'}"))
                lines.append((strike.ended, f"{strike.kind} of slot {strike.slot} is over"))
        return "\n".join([f"    {self.row_of.get(number)}", *(f"    {at:.3f} {text}" for at, text in sorted(lines))])

    def strikes_on(self, worker: WorkerRun) -> list[Strike]:
        """What struck while a worker ran: its process, its slot's network, or the server."""
        return [
            strike
            for strike in self.strikes
            if (strike.began <= worker.ended and worker.began <= strike.ended)
            and (
                strike.pid == worker.pid
                or strike.kind in SERVER_FAULTS
                or (strike.kind in NETWORK_FAULTS and strike.slot == worker.slot)
            )
        ]


# ---- the checks: each yields a sentence for everything that is wrong


def check_all(evidence: Evidence) -> list[str]:
    return [failure for check in CHECKS for failure in check(evidence)]


def check_faults(evidence: Evidence) -> Iterator[str]:
    """A proof without its faults proves nothing."""
    struck = Counter(strike.kind for strike in evidence.strikes)
    for kind in evidence.kinds:
        if not struck[kind]:
            yield f"no fault of the kind '{kind}' struck; planned: {evidence.planned[kind]}"


def check_nothing_is_lost(evidence: Evidence) -> Iterator[str]:
    """Every acknowledged task is done or fatal with a reason, and there once."""
    if evidence.undrained:
        yield f"{evidence.undrained} tasks were neither done nor fatal {DRAIN_SECONDS:g} s after the last fault"
    for number in sorted(evidence.acknowledged - evidence.row_of.keys()):
        yield f"task {number} was acknowledged and is lost\n{evidence.tell(number)}"
    for number, rows in Counter(row.number for row in evidence.rows).items():
        if rows > 1:
            yield f"task {number} is there {rows} times\n{evidence.tell(number)}"


def check_ends(evidence: Evidence) -> Iterator[str]:
    """A done task completed a run; a fatal one has used up its attempts, by errors of its own."""
    for row in evidence.rows:
        wrong = _wrong_end(row, evidence)
        if wrong:
            yield f"task {row.number} {wrong}\n{evidence.tell(row.number)}"


def _wrong_end(row: Row, evidence: Evidence) -> str | None:
    if row.status == 2:
        if row.error_text is not None:
            return "is done and has an error_text"
        if not any(run.outcome == "done" for run in evidence.runs_of[row.number]):
            return "is done, and no run of it came to its end"
    if row.status == 4:
        if not (row.error_text or "").startswith(ERRORS_OF_OURS):
            return f"is fatal for no reason of its own: {row.error_text!r}"
        if row.max_attempts is None or row.attempts != row.max_attempts:
            return f"is fatal after {row.attempts} of {row.max_attempts} attempts"
    return None


def check_overlaps(evidence: Evidence) -> Iterator[str]:
    """No task is run by two workers while the lease of the first holds."""
    for number, runs in evidence.runs_of.items():
        for index, first in enumerate(runs):
            for second in runs[index + 1 :]:
                if second.began < evidence.end_of(first) and not may_have_lapsed(evidence, first, second.began):
                    yield (
                        f"task {number} was begun by {second.pid} at {second.began:.3f} while {first.pid}, which "
                        f"nothing had hindered, ran it until {evidence.end_of(first):.3f}\n{evidence.tell(number)}"
                    )


def may_have_lapsed(evidence: Evidence, run: Run, at: float) -> bool:
    """Whether, by that instant, the worker of a run was hindered for long enough to miss its renewals.

    A lease that is renewed each third of it has two thirds left at least when a hindrance begins.
    """
    worker = evidence.worker_of.get(run.pid)
    if worker is None:
        return False
    if run.outcome == "dies hold":  # nor can its worker's heartbeat get a turn
        return at - run.began >= LEASE_SECONDS - SLACK_SECONDS
    least = LEASE_SECONDS - RENEWED_WITHIN_SECONDS - SLACK_SECONDS
    spans = merged(evidence.troubles.get(worker.slot, []), SLACK_SECONDS)
    return any(
        min(span.ended, at) - max(span.began, run.began - LEASE_SECONDS) >= least for span in spans if span.began < at
    )


def check_leases(evidence: Evidence) -> Iterator[str]:
    """No task is taken back before its lease has ended, by the database's own clock."""
    for number, events in evidence.events_of.items():
        for event in events:
            if event.is_lost and (
                event.lease_ended_at is None or event.lease_ended_at > event.at + CLOCKS_DIFFER_SECONDS
            ):
                yield f"task {number} was taken back before its lease had ended: {event}\n{evidence.tell(number)}"


def check_at_most_once(evidence: Evidence) -> Iterator[str]:
    """max_attempts 1 means one start."""
    for row in evidence.rows:
        begins, starts = len(evidence.runs_of[row.number]), len(_starts(evidence, row.number))
        if row.max_attempts == 1 and (begins > 1 or starts > 1):
            yield f"task {row.number} of max_attempts 1 began {begins} times\n{evidence.tell(row.number)}"
        if row.max_attempts is not None and begins > row.max_attempts:
            yield f"task {row.number} began {begins} times of {row.max_attempts}\n{evidence.tell(row.number)}"


def check_attempts(evidence: Evidence) -> Iterator[str]:
    """Each begin was counted before, and each count was followed by a begin, unless a fault came between the two."""
    for row in evidence.rows:
        starts = _starts(evidence, row.number)
        if row.attempts != len(starts):
            yield f"task {row.number} has attempts {row.attempts} and {len(starts)} starts\n{evidence.tell(row.number)}"
        begun, uncounted = match_begins(evidence.runs_of[row.number], starts)
        for run in uncounted:
            yield f"task {row.number} began at {run.began:.3f}, which was not counted\n{evidence.tell(row.number)}"
        for start in starts:
            if start not in begun and not _is_explained(evidence, start):
                yield (
                    f"task {row.number} was counted as started at {start:.3f} and did not begin, though no fault was "
                    f"near\n{evidence.tell(row.number)}"
                )


def check_finishes(evidence: Evidence) -> Iterator[str]:
    """What is written of a task is what became of the run that was started last: no late word of one before counts."""
    for number, events in evidence.events_of.items():
        begun, _ = match_begins(evidence.runs_of[number], _starts(evidence, number))
        for event in events:
            if not event.is_allowed:
                yield f"task {number} went a way that no task may go: {event}\n{evidence.tell(number)}"
            if not event.is_finish:
                continue
            starts = [start for start in _starts(evidence, number) if start <= event.at]
            run = begun.get(starts[-1]) if starts else None
            if run is not None and ((run.outcome == "done") != (event.status == 2) or not _is_over(run, event.at)):
                yield f"task {number} was finished by another than its last run: {event}\n{evidence.tell(number)}"


def _is_over(run: Run, at: float) -> bool:
    return run.ended is not None and run.ended <= at + CLOCKS_DIFFER_SECONDS


def _starts(evidence: Evidence, number: int) -> list[float]:
    return [event.at for event in evidence.events_of[number] if event.is_start]


def match_begins(runs: Sequence[Run], starts: Sequence[float]) -> tuple[dict[float, Run], list[Run]]:
    """The run that each start led to, and runs without a start. A run belongs to the last free start before it.

    A worker that was frozen between the two begins late, when another has started the task again.
    """
    begun: dict[float, Run] = {}
    uncounted = []
    for run in sorted(runs, key=lambda run: run.began):
        free = [start for start in starts if start not in begun]
        before = [start for start in free if start <= run.began]
        if before:
            begun[max(before)] = run
        elif free and min(free) <= run.began + CLOCKS_DIFFER_SECONDS:
            begun[min(free)] = run
        else:
            uncounted.append(run)
    return begun, uncounted


def _is_explained(evidence: Evidence, start: float) -> bool:
    """Whether, between a start and the begin that should have followed at once, something struck a worker."""
    near = Span(start - SLACK_SECONDS, start + 1.0)
    troubles = [span for spans in evidence.troubles.values() for span in spans]
    strikes = [Span(strike.began, strike.ended) for strike in evidence.strikes]
    deaths = [Span(worker.ended, worker.ended) for worker in evidence.workers if worker.code]
    return any(span.began <= near.ended and near.began <= span.ended for span in (*troubles, *strikes, *deaths))


def check_workers(evidence: Evidence) -> Iterator[str]:
    """Every worker ended as it may: with 0, with 1 and one line, or killed; never with a traceback."""
    deaths = {run.pid: run.outcome for run in evidence.runs if run.outcome.startswith("dies ")}
    killed = {strike.pid for strike in evidence.strikes if strike.kind == "kill"}
    for slot in evidence.unended:
        yield f"the last worker of slot {slot} went on though nothing was left to do"
    for worker in evidence.workers:
        wrong = _wrong_exit(worker, deaths.get(worker.pid, ""), worker.pid in killed, evidence)
        if "Traceback" in worker.errors:
            wrong = "printed a traceback"
        if wrong:
            struck = "".join(f"\n    {strike}" for strike in evidence.strikes_on(worker))
            yield f"the worker {worker.pid} of slot {worker.slot} {wrong}: {worker}{struck}"


def _wrong_exit(worker: WorkerRun, death: str, was_killed: bool, evidence: Evidence) -> str | None:
    lines = [line for line in worker.errors.splitlines() if line.startswith("worker.py: ")]
    match worker.code:
        case 0:
            return f"ended with 0 and {lines}" if lines else None
        case 1 if len(lines) != 1:
            return f"ended with 1 and {len(lines)} lines of its own"
        case 1 if lines[0] == "worker.py: ":
            return "ended with 1 and no word of why"
        case 1 if HOLDS in lines[0]:
            frozen = any(strike.kind in FREEZES for strike in evidence.strikes_on(worker))
            return None if frozen or death == "dies hold" else "took a task for one that holds the interpreter"
        case 1 if not may_give_up(worker, evidence.troubles.get(worker.slot, [])):
            return "gave up a database that was not away for so long"
        case 1:
            return None
        case -9 if was_killed or death == "dies kill":
            return None
        case code if code == HARD_EXIT and death == "dies leave":
            return None
    return f"ended with {worker.code}"


def may_give_up(worker: WorkerRun, troubles: Sequence[Span]) -> bool:
    """Whether the database was away when a worker began, or from then to its end for as long as it is waited for."""
    return any(
        span.began <= worker.ended
        and (
            worker.began - SLACK_SECONDS <= span.began <= worker.began + BEGIN_SECONDS
            or span.began < worker.began <= span.ended
            or span.ended - span.began >= PATIENCE_SECONDS - SLACK_SECONDS
        )
        for span in merged(troubles, SLACK_SECONDS)
        if span.ended >= worker.began
    )


CHECKS: Sequence[Callable[[Evidence], Iterable[str]]] = (
    check_faults,
    check_nothing_is_lost,
    check_ends,
    check_overlaps,
    check_leases,
    check_at_most_once,
    check_attempts,
    check_finishes,
    check_workers,
)


def merged(spans: Iterable[Span], gap: float) -> list[Span]:
    """Spans in order, those that are no more than `gap` apart made one."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.began <= joined[-1].ended + gap:
            joined[-1] = Span(joined[-1].began, max(joined[-1].ended, span.ended))
        else:
            joined.append(span)
    return joined


def unreached(links: Sequence[Link], within: Span) -> list[Span]:
    """When a worker's process had no connection that worked: none at all, or one that had lost its bytes."""
    spans = []
    reached_until = within.began
    for link in sorted(links, key=lambda link: link.opened_at):
        if (link.closed_at is not None and link.closed_at < within.began) or link.opened_at > within.ended:
            continue
        closed_at = within.ended if link.closed_at is None else link.closed_at
        worked_until = closed_at if link.lost_at is None else link.lost_at
        if link.opened_at > reached_until:
            spans.append(Span(reached_until, link.opened_at))
        if worked_until < closed_at:
            spans.append(Span(worked_until, closed_at))
        reached_until = max(reached_until, worked_until)
    if reached_until < within.ended:
        spans.append(Span(reached_until, within.ended))
    return spans


# ---- the stage: databases, producers, workers

DRIVER_ERRORS = (pymysql.MySQLError, sqlite3.Error, OSError)

HISTORY = {
    "mysql": """
        CREATE TABLE history (
            n BIGINT AUTO_INCREMENT PRIMARY KEY, id BIGINT UNSIGNED, at DOUBLE, was INT, status INT,
            attempts_before INT, attempts INT, claim BIGINT UNSIGNED, lease_ended_at DOUBLE, due_at DOUBLE,
            error_text VARCHAR(1000) CHARACTER SET utf8mb4) ENGINE = InnoDB;
        CREATE TABLE pulse (id INT PRIMARY KEY, beats INT) ENGINE = InnoDB;
        INSERT INTO pulse VALUES (1, 0);
        CREATE TRIGGER remember AFTER UPDATE ON jobs_queue FOR EACH ROW {remember}
    """,
    "sqlite": """
        CREATE TABLE history (n INTEGER PRIMARY KEY, id, at, was, status, attempts_before, attempts, claim,
            lease_ended_at, due_at, error_text);
        CREATE TABLE pulse (id INTEGER PRIMARY KEY, beats);
        INSERT INTO pulse VALUES (1, 0);
        CREATE TRIGGER remember AFTER UPDATE ON jobs_queue BEGIN {remember}; END
    """,
}
REMEMBER = """
    INSERT INTO history (id, at, was, status, attempts_before, attempts, claim, lease_ended_at, due_at, error_text)
    VALUES (NEW.id, {now}, OLD.status, NEW.status, OLD.attempts, NEW.attempts, COALESCE(NEW.claim, OLD.claim),
            {old_due_at}, {new_due_at}, NEW.error_text)
"""
INSTANTS = {
    "mysql": ("UNIX_TIMESTAMP({})", "NOW(6)"),
    "sqlite": ("(julianday({}) - 2440587.5) * 86400.0", "'now'"),
}
"""An instant as seconds, and now."""


def history_statements(dsn_kind: str) -> list[str]:
    """The tables of the test's own, and the trigger that keeps what becomes of each row."""
    seconds, now = INSTANTS[dsn_kind]
    instants = {"now": now, "old_due_at": "OLD.due_at", "new_due_at": "NEW.due_at"}
    remember = REMEMBER.format_map({name: seconds.format(instant) for name, instant in instants.items()})
    *tables, trigger = HISTORY[dsn_kind].split(";\n")
    return [*tables, trigger.replace("{remember}", remember)]


class Sql:
    """A connection of the test's own, past every proxy; made anew after an error. For one thread."""

    def __init__(self, dsn_kind: str, connect: Callable[[], Any]) -> None:
        self._mark = "%s" if dsn_kind == "mysql" else "?"
        self._connect = connect
        self._connection: Any = None

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of one statement, which commits by itself. Raises one of DRIVER_ERRORS."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            with closing(self._connection.cursor()) as cursor:
                cursor.execute(statement.replace("?", self._mark), values)
                return list(cursor.fetchall())
        except DRIVER_ERRORS:
            self.close()
            raise

    def close(self) -> None:
        if self._connection is not None:
            with suppress(*DRIVER_ERRORS):
                self._connection.close()
            self._connection = None


class Stage:
    """The database of a chaos run, and the network between it and each slot."""

    def __init__(self, dsn_kind: str, deployment: Deployment, mode: str, backoff: str) -> None:
        self.dsn_kind = dsn_kind
        self.deployment = deployment
        self.server: MariaDB | None = None
        self.proxies: list[Proxy] = []
        self._stack = ExitStack()
        self._path = deployment.folder / "var" / "taskserver.db"
        self._database = ""
        dsn = "sqlite:///var/taskserver.db"
        if dsn_kind == "mysql":
            self.server = self._stack.enter_context(MariaDB(durable=True))
            self._database = self.server.create_database()
            dsn = self.server.dsn(self._database)
            self.proxies = [self._stack.enter_context(Proxy(self.server.host, self.server.port)) for _ in range(SLOTS)]
        self.dsns = [proxy.dsn(dsn) for proxy in self.proxies] or [dsn] * SLOTS
        deployment.write_tasks(TASKS)
        (deployment.folder / "runs").mkdir()
        settings = {"TASKSERVER_DSN": dsn, "TASKSERVER_MODE": mode, "TASKSERVER_BACKOFF": backoff} | SETTINGS
        deployment.write_env(**settings)
        made = deployment.client("init")
        assert made.returncode == 0, made.stderr
        with closing(self.sql()) as sql:
            for statement in history_statements(dsn_kind):
                sql.run(statement)

    def sql(self) -> Sql:
        return Sql(self.dsn_kind, self._connect)

    def close(self) -> None:
        self._stack.close()

    def _connect(self) -> Any:
        if self.server is not None:
            return self.server.connect(database=self._database, connect_timeout=5, read_timeout=30)
        return sqlite3.connect(self._path, isolation_level=None, timeout=60, check_same_thread=False)


class Producer(threading.Thread):
    """Adds tasks by SQL, as a web script does. An INSERT without an answer is not repeated: its outcome is unknown."""

    def __init__(self, stage: Stage, seed: int, first: int, weights: Mapping[str, float]) -> None:
        super().__init__(name=f"producer-{first}", daemon=True)
        self.acknowledged: set[int] = set()
        self.unknown: set[int] = set()
        self.stopped = threading.Event()
        self.is_adding = False
        self._sql = stage.sql()
        self._seed = seed
        self._numbers = count(first, PRODUCERS)
        self._weights = weights

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            with suppress(*DRIVER_ERRORS):
                new = self._sql.run("SELECT COUNT(*) FROM jobs_queue WHERE status = 0")[0][0]
                for _ in range(10 if new < MOST_NEW else 1):
                    self._add(next(self._numbers))
        self._sql.close()

    def _add(self, number: int) -> None:
        wished = wish(self._seed, number, self._weights)
        args = json.dumps({"number": number, "seed": self._seed, "kind": wished.kind})
        self.is_adding = True
        try:
            self._sql.run(
                "INSERT INTO jobs_queue (task, args, max_attempts, group_id, priority) VALUES (?, ?, ?, ?, ?)",
                "tasks.play",
                args,
                *wished[1:],
            )
        except DRIVER_ERRORS:
            self.unknown.add(number)
        else:
            self.acknowledged.add(number)
        finally:
            self.is_adding = False


class Bystander(threading.Thread):
    """Writes to the database again and again, unhindered by any fault but the server's own.

    While it cannot, no worker is to be blamed: the machine is too slow, or a frozen worker holds SQLite's one lock.
    """

    def __init__(self, stage: Stage) -> None:
        super().__init__(name="bystander", daemon=True)
        self.delays: list[Span] = []
        self.stopped = threading.Event()
        self._sql = stage.sql()

    def run(self) -> None:
        last = time.monotonic()
        while not self.stopped.wait(0.1):
            with suppress(*DRIVER_ERRORS):
                self._sql.run("UPDATE pulse SET beats = beats + 1")
                now = time.monotonic()
                if now - last > 0.1 + SLACK_SECONDS:
                    self.delays.append(Span(last, now))
                last = now
        self._sql.close()


class Slot(threading.Thread):
    """A line of a crontab, with less than a minute between its starts."""

    def __init__(self, number: int, stage: Stage) -> None:
        super().__init__(name=f"slot-{number}", daemon=True)
        self.number = number
        self.runs: list[WorkerRun] = []
        self.process: subprocess.Popen[str] | None = None
        self.stopped = threading.Event()
        self._deployment = stage.deployment
        self._env = {"TASKSERVER_DSN": stage.dsns[number], "PYTHONFAULTHANDLER": "1"}

    def run(self) -> None:
        while not self.stopped.is_set():
            began = time.monotonic()
            process = self._deployment.popen("worker.py", *ARGUMENTS[self.number], env=self._env)
            self.process = process
            _, errors = process.communicate()
            self.process = None
            self.runs.append(WorkerRun(self.number, process.pid, began, time.monotonic(), process.returncode, errors))
            self.stopped.wait(0.3 if process.returncode == 1 else 0.05)

    def is_over(self, seconds: float) -> bool:
        """Wait for the last worker; one that does not end is killed, and says before in which line each thread is."""
        self.join(seconds)
        if not self.is_alive():
            return True
        if self.process is not None:
            self.process.send_signal(signal.SIGABRT)
        self.join()
        return False


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


# ---- the faults


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
            return proxy.reset() > 0
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


# ---- a run of all that


class Report(NamedTuple):
    """What a chaos run found."""

    evidence: Evidence
    failures: list[str]
    heading: str

    def __str__(self) -> str:
        return "\n".join([self.heading, *_table(self.evidence), *self.failures[:MOST_FAILURES_TOLD]])


MOST_FAILURES_TOLD = 20


def run_chaos(dsn_kind: str, seconds: float, seed: int, folder: Path) -> Report:
    """Faults for so many seconds, then a drain, then the checks."""
    began = time.monotonic()
    weights = TASK_KINDS | ({"hold": HOLD_WEIGHT} if seconds >= LONG_RUN_SECONDS else {})
    chance = random.Random(f"{seed}:settings")
    mode, backoff = chance.choice(MODES), chance.choice(BACKOFFS)
    schedule = make_schedule(dsn_kind, seconds, seed)
    deployment = Deployment(folder)
    stage = Stage(dsn_kind, deployment, mode, backoff)
    try:
        evidence = _play(stage, schedule, seed, weights)
    finally:
        deployment.close()
        stage.close()
    evidence.planned = Counter(fault.kind for fault in schedule)
    failures = check_all(evidence)
    heading = (
        f"chaos on {dsn_kind}: seed {seed}, {seconds:g} s of faults and {evidence.drain_seconds:.0f} s of "
        f"drain ({time.monotonic() - began:.0f} s in all), "
        f"mode {mode}, backoff {backoff}: {f'{len(failures)} FAILURES' if failures else 'all promises held'}"
    )
    return Report(evidence, failures, heading)


def _play(stage: Stage, schedule: Sequence[Fault], seed: int, weights: Mapping[str, float]) -> Evidence:
    producers = [Producer(stage, seed, first, weights) for first in range(PRODUCERS)]
    slots = [Slot(number, stage) for number in range(SLOTS)]
    bystander = Bystander(stage)
    striker = Striker(stage, slots, producers)
    for thread in (*producers, bystander, *slots):
        thread.start()
    try:
        striker.run(schedule)
        faults_ended = time.monotonic()
        _join(producers)
        undrained = _drain(stage)
        drained = time.monotonic()
    finally:
        _join(producers)
        _join([bystander])
        for slot in slots:
            slot.stopped.set()
        unended = [slot.number for slot in slots if not slot.is_over(DRAIN_SECONDS / 4)]
    rows, events = _read_database(stage)
    return Evidence(
        acknowledged=set().union(*(producer.acknowledged for producer in producers)),
        unknown=set().union(*(producer.unknown for producer in producers)),
        rows=rows,
        runs=read_runs(stage.deployment.folder / "runs"),
        events=events,
        workers=[run for slot in slots for run in slot.runs],
        strikes=striker.strikes,
        troubles={slot.number: troubles_of(slot, stage, striker.strikes, bystander.delays) for slot in slots},
        kinds=list(FAULTS[stage.dsn_kind]),
        undrained=undrained,
        unended=unended,
        drain_seconds=drained - faults_ended,
    )


def _join(threads: Iterable[Producer | Bystander]) -> None:
    for thread in threads:
        thread.stopped.set()
        thread.join(60)


def _drain(stage: Stage) -> int:
    """Wait until every task is done or fatal. How many are not."""
    deadline = time.monotonic() + DRAIN_SECONDS
    with closing(stage.sql()) as sql:
        while True:
            left: int = sql.run("SELECT COUNT(*) FROM jobs_queue WHERE status NOT IN (2, 4)")[0][0]
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)


def troubles_of(slot: Slot, stage: Stage, strikes: Sequence[Strike], delays: Sequence[Span]) -> list[Span]:
    """When the workers of a slot were hindered."""
    hinders = (*FREEZES, "stall", "drop")
    spans = [
        Span(strike.began, strike.ended) for strike in strikes if strike.slot == slot.number and strike.kind in hinders
    ]
    if stage.proxies:
        links = stage.proxies[slot.number].links
        # Before its first connection, and after its last, a process only starts or ends.
        for run in slot.runs:
            own = [link for link in links if run.began <= link.opened_at <= run.ended]
            if own:
                spans += unreached(own, Span(own[0].opened_at, run.ended))
    return merged([*spans, *delays], 0.0)


def _read_database(stage: Stage) -> tuple[list[Row], list[Event]]:
    offset = time.time() - time.monotonic()
    rows = []
    with closing(stage.sql()) as sql:
        for is_archived, table in enumerate(["jobs_queue", "jobs_queue_done"]):
            found = sql.run(f"SELECT args, id, status, attempts, max_attempts, error_text, {is_archived} FROM {table}")
            rows += [Row(json.loads(row[0])["number"], *row[1:]) for row in found]
        events = sql.run(
            "SELECT id, at, was, status, attempts_before, attempts, claim, lease_ended_at, due_at, error_text "
            "FROM history ORDER BY n"
        )
    return rows, [_event(row, offset) for row in events]


def _event(row: tuple[Any, ...], offset: float) -> Event:
    event = Event(*row)
    ends = [None if at is None else at - offset for at in (event.lease_ended_at, event.due_at)]
    return event._replace(at=event.at - offset, lease_ended_at=ends[0], due_at=ends[1])


def read_runs(folder: Path) -> list[Run]:
    """What the tasks themselves noted."""
    return [run for file in folder.iterdir() for run in _runs_of(int(file.name), file.read_text())]


def _runs_of(number: int, text: str) -> Iterator[Run]:
    open_runs: dict[int, Run] = {}
    for line in text.splitlines():
        what, pid_text, at_text, how = line.split(" ", 3)
        pid, at = int(pid_text), float(at_text)
        if what == "begin":
            if pid in open_runs:
                yield open_runs[pid]
            open_runs[pid] = Run(number, pid, at, None, "?")
        elif what == "dies":
            open_runs[pid] = open_runs[pid]._replace(outcome=f"dies {how}")
        elif what == "end":
            yield open_runs.pop(pid)._replace(ended=at, outcome=how)
    yield from open_runs.values()


def _table(evidence: Evidence) -> Iterator[str]:
    struck = Counter(strike.kind for strike in evidence.strikes)
    yield f"  {'fault':<26}{'planned':>8}{'struck':>8}"
    for kind in evidence.kinds:
        yield f"  {kind:<26}{evidence.planned[kind]:>8}{struck[kind]:>8}"
    statuses = Counter(row.status for row in evidence.rows)
    lost = sum(event.is_lost for event in evidence.events)
    unbegun = sum(
        len(starts) - len(match_begins(evidence.runs_of[number], starts)[0])
        for number, starts in ((row.number, _starts(evidence, row.number)) for row in evidence.rows)
    )
    said = sum("lease was lost" in line for worker in evidence.workers for line in worker.errors.splitlines())
    outcomes = Counter(run.outcome for run in evidence.runs)
    codes = Counter(worker.code for worker in evidence.workers)
    yield (
        f"  tasks: {len(evidence.acknowledged)} acknowledged, {len(evidence.unknown)} unknown, of which "
        f"{len(evidence.unknown & evidence.row_of.keys())} are there; {statuses[2]} done, {statuses[4]} fatal"
    )
    yield f"  runs of tasks: {len(evidence.runs)}; {', '.join(f'{n} {how}' for how, n in outcomes.most_common())}"
    yield f"  taken back as lost: {lost}; lost leases told: {said}; counted starts that never began: {unbegun}"
    yield f"  overlapping runs: {_overlapping(evidence)}"
    yield f"  workers: {len(evidence.workers)}; exit codes {dict(codes.most_common())}"
    words = Counter(re.sub(r"[0-9a-f_]{9,}", "…", line) for line in _last_words(evidence))
    yield from (f"  {times:>4} × {line:.200}" for line, times in words.most_common(10))


def _last_words(evidence: Evidence) -> Iterator[str]:
    for worker in evidence.workers:
        yield from (line for line in worker.errors.splitlines() if worker.code == 1 and " is fatal: " not in line)


def _overlapping(evidence: Evidence) -> int:
    return sum(
        second.began < evidence.end_of(first) for runs in evidence.runs_of.values() for first, second in pairwise(runs)
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Faults, and what the queue makes of them."
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="of faults (default 120)")
    parser.add_argument("--seed", type=int, help="replays a schedule; default: a new one")
    parser.add_argument("--dsn-kind", choices=sorted(FAULTS), help="default: one after the other")
    parser.add_argument("--keep", type=Path, help="leave the deployments in this folder")
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    failed = False
    for dsn_kind in [options.dsn_kind] if options.dsn_kind else sorted(FAULTS):
        print(f"chaos on {dsn_kind}: seed {seed}", flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(options.keep or temporary) / f"{dsn_kind}-{seed}"
            folder.mkdir(parents=True)
            report = run_chaos(dsn_kind, options.seconds, seed, folder)
        print(report, flush=True)
        failed = failed or bool(report.failures)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
