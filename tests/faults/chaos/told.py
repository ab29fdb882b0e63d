"""What workers say of leases that they lost, beside what the database knows of them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from tests.faults.chaos.begins import CLOCKS_DIFFER_SECONDS, match_begins
from tests.faults.chaos.evidence import Event, Evidence, Run, WorkerRun
from tests.faults.chaos.schedule import NETWORK_FAULTS, SERVER_FAULTS

WHILE_IT_RAN = re.compile(r"^task (\d+) tasks\.play: the lease was lost while it ran", re.MULTILINE)
BEFORE_IT_STARTED = re.compile(r"^task (\d+) tasks\.play: the lease was lost before it started", re.MULTILINE)


def told_as_lost(worker: WorkerRun) -> Counter[int]:
    """By the id of a row: how often a worker said that a lease was lost under its running task."""
    return Counter(map(int, WHILE_IT_RAN.findall(worker.errors)))


def lost_runs(evidence: Evidence) -> list[tuple[Run, int]]:
    """Runs whose claim was taken back, and that were not completed late, each with the id of its row."""
    return [(run, start.id) for start, run in _lost_starts(evidence) if run is not None]


def check_told(evidence: Evidence) -> Iterator[str]:
    """A worker says once of each run whose claim was taken back that it lost the lease, and says it of no other.

    One that ended with that run says it once or not at all. A worker that was frozen between a start and the task's
    first line may say it of a run that noted nothing: by the start alone nobody knows whose it was. One whose
    connection broke in the midst of a write is not judged: whether that write was done it sees from what others have
    made of the row since.
    """
    unclear = _unclear_ids(evidence)
    lost: dict[int, Counter[int]] = defaultdict(Counter)
    must_tell: dict[int, Counter[int]] = defaultdict(Counter)
    for run, row_id in lost_runs(evidence):
        lost[run.pid][row_id] += 1
        must_tell[run.pid][row_id] += evidence.was_outlived(run)
    lost_unbegun = Counter(start.id for start, run in _lost_starts(evidence) if run is None)
    for worker in evidence.workers:
        if _may_have_been_cut_off(evidence, worker):
            continue
        told, lost_here = told_as_lost(worker), lost[worker.pid]
        for row_id in sorted((told.keys() | lost_here.keys()) - unclear):
            most = lost_here[row_id] + lost_unbegun[row_id]
            if not must_tell[worker.pid][row_id] <= told[row_id] <= most:
                yield f"{_who(worker)} told {told[row_id]} of {most} lost leases of the row {row_id}: {worker}"
        for row_id in map(int, BEFORE_IT_STARTED.findall(worker.errors)):
            if not _was_taken_back(evidence, row_id, worker):
                yield f"{_who(worker)} told a lease of the row {row_id} as lost that nobody took back: {worker}"


def _who(worker: WorkerRun) -> str:
    return f"the worker {worker.pid} of slot {worker.slot}"


def _may_have_been_cut_off(evidence: Evidence, worker: WorkerRun) -> bool:
    return any(strike.kind in NETWORK_FAULTS or strike.kind in SERVER_FAULTS for strike in evidence.strikes_on(worker))


def _starts_with_runs(evidence: Evidence, number: int) -> list[tuple[Event, Run | None]]:
    starts = [event for event in evidence.events_of[number] if event.is_start]
    begun, _ = match_begins(evidence.runs_of[number], [start.at for start in starts])
    return [(start, begun.get(start.at)) for start in starts]


def _lost_starts(evidence: Evidence) -> list[tuple[Event, Run | None]]:
    """Starts whose claim was taken back, and that were not completed late, each with the run to which it led."""
    return [
        (start, run)
        for number, events in evidence.events_of.items()
        for start, run in _starts_with_runs(evidence, number)
        if _was_lost(events, start)
    ]


def _was_lost(events: Sequence[Event], start: Event) -> bool:
    of_claim = [event for event in events if event.claim == start.claim]
    return any(event.is_lost for event in of_claim) and not any(event.is_finish for event in of_claim)


def _unclear_ids(evidence: Evidence) -> set[int]:
    """Rows of which a run began when another start was counted already: whose start was it?"""
    unclear = set()
    for number in evidence.events_of:
        pairs = _starts_with_runs(evidence, number)
        for start, run in pairs:
            if run is not None and any(start.at < other.at <= run.began for other, _ in pairs):
                unclear.add(start.id)
    return unclear


def _was_taken_back(evidence: Evidence, row_id: int, worker: WorkerRun) -> bool:
    """Whether somebody took a row from its claim, whose lease had ended, while a worker lived."""
    return any(
        event.id == row_id
        and event.was == 1
        and (event.status == 0 or event.is_lost)
        and event.lease_ended_at is not None
        and event.lease_ended_at <= event.at + CLOCKS_DIFFER_SECONDS
        and worker.began <= event.at <= worker.ended
        for event in evidence.events
    )
