"""The report of a chaos run: what struck, what became of the tasks and workers, and which promises failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.checks import match_begins
from tests.chaos.evidence import Evidence

MOST_FAILURES_TOLD = 20


class Report(NamedTuple):
    """What a chaos run found."""

    evidence: Evidence
    failures: list[str]
    heading: str

    def __str__(self) -> str:
        return "\n".join([self.heading, *_table(self.evidence), *self.failures[:MOST_FAILURES_TOLD]])


def _table(evidence: Evidence) -> Iterator[str]:
    struck = Counter(strike.kind for strike in evidence.strikes)
    yield f"  {'fault':<26}{'planned':>8}{'struck':>8}"
    for kind in evidence.kinds:
        yield f"  {kind:<26}{evidence.planned[kind]:>8}{struck[kind]:>8}"
    statuses = Counter(row.status for row in evidence.rows)
    lost = sum(event.is_lost for event in evidence.events)
    unbegun = sum(
        len(starts) - len(match_begins(evidence.runs_of[number], starts)[0])
        for number, starts in ((row.number, evidence.starts_of(row.number)) for row in evidence.rows)
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
