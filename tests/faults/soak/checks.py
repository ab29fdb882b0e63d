"""What a soak run must show, besides the checks of chaos: each yields a sentence for all that is wrong."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from email.message import EmailMessage
from itertools import pairwise

from tests.faults.chaos.checks import Evidence, Row
from tests.faults.chaos.faults import Strike
from tests.faults.chaos.run import read_rows, read_runs
from tests.faults.chaos.stage import Added, Span, WorkerRun
from tests.faults.soak.faults import HARMLESS
from tests.faults.soak.load import TICK_SECONDS
from tests.faults.soak.place import LEASE_SECONDS, OLD_TASKS, PRIVATE, Place
from tests.faults.soak.tasks import TICK, VERSION
from tests.support.rows import Rows

RECOVERY_SECONDS = 5.0
"""The longest pause of TASKSERVER_PAUSES until a worker tries the database again."""
MOST_ALARMS = 8
"""Mails of `check` in an hour: one for each finding, and one when it becomes worse."""


def read_evidence(
    place: Place,
    added: Sequence[Added],
    strikes: Sequence[Strike],
    fatal: Mapping[int, Row],
    delays: Sequence[Span],
    left: Sequence[object],
) -> Evidence:
    """`fatal` rows may have been pruned."""
    lines = (PRIVATE / "runs").read_text().splitlines()
    hinderers = [one for one in strikes if one.kind not in HARMLESS]
    spans = [*delays, *(Span(one.began, one.ended + RECOVERY_SECONDS) for one in hinderers)]
    with closing(Rows(place.dsn)) as rows:
        last = [*read_rows(rows)]
        known = {row.number for row in last}
        return Evidence(
            added=[*(Added(-number, "old", -number) for number in range(1, OLD_TASKS + 1)), *added],
            rows=[*last, *(row for number, row in fatal.items() if number not in known)],
            runs=[*read_runs("\n".join(line for line in lines if not line.startswith("worker ")))],
            workers=[*_workers(lines)],
            strikes=hinderers,
            hindered=dict.fromkeys(range(len(place.modes)), spans),
            modes=place.modes,
            transfers=[(n, source, target, by) for n, source, target, by in rows.execute("SELECT * FROM transfers")],
            balances=dict(rows.execute("SELECT id, balance FROM accounts")),
            left=left,
            lease_seconds=LEASE_SECONDS,
            is_pruned=True,
        )


def _workers(lines: Sequence[str]) -> Iterator[WorkerRun]:
    """From their first to their last sign of life."""
    slots: dict[int, int] = {}
    signs: dict[int, list[float]] = defaultdict(list)
    for what, number, pid, at, *_ in (line.split(" ") for line in lines if not line.startswith("process ")):
        signs[int(pid)].append(float(at))
        if what == "worker":
            slots[int(pid)] = int(number)
    for each, times in signs.items():
        yield WorkerRun(slots[each], each, min(times), max(times), 0, "")


def check_delays(evidence: Evidence, earliest: Mapping[int, float]) -> Iterator[str]:
    """Delayed tasks begin when they are due, whatever the clock of their worker says."""
    for number, instant in earliest.items():
        if (runs := evidence.runs_of[number]) and runs[0].began < instant - 0.1:
            yield f"task {number} began {instant - runs[0].began:.1f} s before it was due"


def check_pipelines(evidence: Evidence, pipelines: Sequence[Sequence[int]]) -> Iterator[str]:
    """Each stage begins once the one before it is done."""
    for earlier, later in (pair for numbers in pipelines for pair in pairwise(numbers)):
        ends = [run.ended for run in evidence.done_runs(earlier) if run.ended is not None]
        runs = evidence.runs_of[later]
        if runs and (not ends or runs[0].began < min(ends)):
            yield f"stage {later} of a pipeline began before {earlier} was done"


def check_ticks(evidence: Evidence, uploaded_at: float | None) -> Iterator[str]:
    """The periodic task ran about once in each period. Only workers that are older than the upload ran old code."""
    done = evidence.done_runs(TICK)
    seconds = done[-1].began - done[0].began if done else 0.0
    if not seconds / TICK_SECONDS / 2 <= len(done) <= seconds / TICK_SECONDS + 2:
        yield f"a task of each {TICK_SECONDS} s ran {len(done)} times in {seconds:.0f} s"
    for run in done:
        if uploaded_at is not None and run.kind in VERSION and evidence.worker_of[run.pid].began > uploaded_at:
            yield f"a worker that began after the upload ran old code: {run}"


def without_numbers(text: str) -> str:
    return re.sub("[^ ]*[0-9][^ ]*", "…", text)


def check_mails(mails: Sequence[EmailMessage], hours: int) -> Iterator[str]:
    """What says that it is said once an hour is said so, by each line of the crontab; `hours` are begun ones.

    But for the line whose clock is wrong by hours: it cannot know when it said something.
    """
    lines = ((mail["Subject"], without_numbers(line)) for mail in mails for line in mail.get_content().splitlines())
    said = Counter(one for one in lines if "once an hour" in one[1] and "--slots 1" not in one[0])
    yield from (f"mailed {times} times: {kind}" for (_, kind), times in said.items() if times > hours)
    alarms = sum("client.py check" in mail["Subject"] for mail in mails)
    if alarms > MOST_ALARMS * hours:
        yield f"check mailed {alarms} times in {hours} hours"


def check_output(texts: Sequence[str]) -> Iterator[str]:
    yield from (f"a traceback: {text[-2000:]}" for text in texts if "Traceback" in text)
