"""A chaos run from its begin to its report: faults for so many seconds, then a drain, then the checks."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from tests.faults.chaos.checks import check_all
from tests.faults.chaos.evidence import Evidence
from tests.faults.chaos.faults import Striker
from tests.faults.chaos.report import Report
from tests.faults.chaos.schedule import FAULTS, Fault, make_modes, make_schedule, planned_kinds, wish
from tests.faults.chaos.settings import BACKOFFS, DRAIN_SECONDS, PRODUCERS, SLOTS
from tests.faults.chaos.stage import Binder, Bystander, Changer, Producer, Slot, Stage
from tests.faults.chaos.tasks import HOLD_WEIGHT, LONG_RUN_SECONDS, TASK_KINDS
from tests.faults.chaos.witnesses import (
    read_database,
    read_kept_rows,
    read_kept_runs,
    read_runs,
    read_tied,
    troubles_of,
)
from tests.support.deployment import Deployment


def run_chaos(dsn_kind: str, seconds: float, seed: int, folder: Path) -> Report:
    """Faults for so many seconds, then a drain, then the checks."""
    began = time.monotonic()
    weights = TASK_KINDS | ({"hold": HOLD_WEIGHT} if seconds >= LONG_RUN_SECONDS else {})
    modes, backoff = make_modes(seed), random.Random(f"{seed}:settings").choice(BACKOFFS)
    schedule = make_schedule(dsn_kind, seconds, seed)
    deployment = Deployment(folder)
    stage = Stage(dsn_kind, deployment, modes, backoff)
    try:
        evidence = _play(stage, schedule, seed, weights)
    finally:
        deployment.close()
        stage.close()
    evidence.planned = Counter(fault.kind for fault in schedule)
    evidence.added = Counter(wish(seed, number, weights).kind for number in evidence.acknowledged)
    evidence.task_kinds = planned_kinds(weights)
    failures = check_all(evidence)
    outcome = f"{len(failures)} FAILURES" if failures else "all promises held"
    heading = (
        f"chaos on {dsn_kind}: seed {seed}, {seconds:g} s of faults and {evidence.drain_seconds:.0f} s of "
        f"drain ({time.monotonic() - began:.0f} s in all), "
        f"modes {', '.join(modes)}, backoff {backoff}: {outcome}"
    )
    return Report(evidence, failures, heading)


def _play(stage: Stage, schedule: Sequence[Fault], seed: int, weights: Mapping[str, float]) -> Evidence:
    producers = [Producer(stage, seed, first, weights) for first in range(PRODUCERS)]
    slots = [Slot(number, stage) for number in range(SLOTS)]
    bystander, changer, binder = Bystander(stage), Changer(stage, seed), Binder(stage, seed)
    striker = Striker(stage, slots, producers)
    for thread in (*producers, bystander, changer, binder, *slots):
        thread.start()
    try:
        striker.run(schedule)
        faults_ended = time.monotonic()
        _join([*producers, changer, binder])
        undrained = _drain(stage)
        drained = time.monotonic()
    finally:
        _join([*producers, changer, binder, bystander])
        for slot in slots:
            slot.stopped.set()
        unended = [slot.number for slot in slots if not slot.is_over(DRAIN_SECONDS / 2)]
    rows, events = read_database(stage)
    kept_rows, kept_fatal, changed_while_it_ran = read_kept_rows(stage)
    tied_errors, tied_left = read_tied(stage)
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
        modes=stage.modes,
        changed=changer.changed,
        changed_while_it_ran=changed_while_it_ran,
        kept_rows=kept_rows,
        kept_runs=read_kept_runs(stage.deployment.folder / "kept"),
        kept_fatal=kept_fatal,
        tied=binder.tied,
        tied_runs=read_runs(stage.deployment.folder / "tied"),
        tied_errors=tied_errors,
        tied_left=tied_left,
        undrained=undrained,
        unended=unended,
        drain_seconds=drained - faults_ended,
    )


def _join(threads: Iterable[Producer | Bystander | Changer | Binder]) -> None:
    for thread in threads:
        thread.stopped.set()
        thread.join(60)


LEFT = "SELECT COUNT(*) FROM jobs_queue WHERE status NOT IN (2, 4) OR due_at IS NOT NULL"
"""What is over and has an instant is still to be told to those that wait for it."""


def _drain(stage: Stage) -> int:
    """Wait until every task is done or fatal, or for long none becomes so. How many are not."""
    least, deadline = float("inf"), 0.0
    with closing(stage.sql()) as sql:
        while True:
            left: int = sql.run(LEFT)[0][0]
            if left < least:
                least, deadline = left, time.monotonic() + DRAIN_SECONDS
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(0.1)
