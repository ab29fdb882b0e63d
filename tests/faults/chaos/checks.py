"""The promises of the queue, checked on the evidence: each check yields a sentence for everything that is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

from tests.faults.chaos.begins import CLOCKS_DIFFER_SECONDS, match_begins
from tests.faults.chaos.evidence import DELETED, PLACES, Event, Evidence, Row, Run, Tied, WorkerRun
from tests.faults.chaos.settings import DRAIN_SECONDS, LEASE_SECONDS, PATIENCE_SECONDS, SLACK_SECONDS
from tests.faults.chaos.spans import Span, merged
from tests.faults.chaos.tasks import HARD_EXIT
from tests.faults.chaos.told import check_told

RENEWED_WITHIN_SECONDS = LEASE_SECONDS / 3
"""So often a worker renews the lease of what it runs."""
BEGIN_SECONDS = 1.5
"""So long after its start a worker has not reached the database yet, on a busy machine."""

OVER = "worker.py: the database can be used again"
HOLDS = "Timeout ("
"""What a worker says first that ends because nothing can interrupt its task."""
GIVEN_UP = "dependency: task "
ERRORS_OF_OURS = (
    "Failed: ",
    "SystemExit: 3",
    "TaskInterrupted: ",
    "taskserver.interrupts.stop.TaskInterrupted: ",
    "lost",
)
"""How an error_text may begin here. Anything else was no fault of the task's."""


def check_all(evidence: Evidence) -> list[str]:
    return [failure for check in CHECKS for failure in check(evidence)]


def check_faults(evidence: Evidence) -> Iterator[str]:
    """A proof without its faults, from outside and of the tasks' own, and without all the modes proves nothing."""
    struck = Counter(strike.kind for strike in evidence.strikes)
    for kind in evidence.kinds:
        if not struck[kind]:
            yield f"no fault of the kind '{kind}' struck; planned: {evidence.planned[kind]}"
    shown = {run.kind for run in evidence.runs if run.is_shown}
    for kind in evidence.task_kinds:
        if kind not in shown:
            yield f"no task of the kind '{kind}' did what it is for; added: {evidence.added[kind]}"
    places = {row.place for row in evidence.rows if row.is_done}
    for mode in sorted(set(evidence.modes)):
        if PLACES[mode] not in places:
            yield f"no task was completed in the mode '{mode}'"


def check_nothing_is_lost(evidence: Evidence) -> Iterator[str]:
    """Every acknowledged task is done or fatal with a reason, and there once; so is one that a worker ever touched.

    A deleted one is gone for a good reason only if the tasks' own notes say so: the run that was started last, under
    the claim that deleted the row, had come to its end before.
    """
    if evidence.undrained:
        yield f"{evidence.undrained} tasks were neither done nor fatal, and for {DRAIN_SECONDS:g} s none became so"
    for number in sorted((evidence.acknowledged | evidence.events_of.keys()) - evidence.row_of.keys()):
        yield f"task {number} was acknowledged and is lost\n{evidence.tell(number)}"
    for number, events in evidence.events_of.items():
        for event in events:
            if event.status == DELETED and not is_completed(evidence, event):
                yield f"task {number} was deleted before a run of it came to its end: lost\n{evidence.tell(number)}"
    for number, rows in Counter(row.number for row in evidence.rows).items():
        if rows > 1:
            yield f"task {number} is there {rows} times\n{evidence.tell(number)}"


def check_ends(evidence: Evidence) -> Iterator[str]:
    """A done task completed a run, and is where that worker's mode puts it; a fatal one used up its attempts itself."""
    for row in evidence.rows:
        wrong = _wrong_end(row, evidence)
        if wrong:
            yield f"task {row.number} {wrong}\n{evidence.tell(row.number)}"


def _wrong_end(row: Row, evidence: Evidence) -> str | None:
    if row.is_done:
        if row.error_text is not None and row.place != PLACES["delete"]:
            return "is done and has an error_text"
        completed = [run for run in evidence.runs_of[row.number] if run.outcome == "done"]
        if not completed:
            return "is done, and no run of it came to its end"
        if row.place not in map(evidence.place_of, completed):
            return f"is done, and {row.place} is not where the mode of a worker that completed it puts it"
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
        begins, starts = len(evidence.runs_of[row.number]), len(evidence.starts_of(row.number))
        if row.max_attempts == 1 and (begins > 1 or starts > 1):
            yield f"task {row.number} of max_attempts 1 began {begins} times\n{evidence.tell(row.number)}"
        if row.max_attempts is not None and begins > row.max_attempts:
            yield f"task {row.number} began {begins} times of {row.max_attempts}\n{evidence.tell(row.number)}"


def check_attempts(evidence: Evidence) -> Iterator[str]:
    """Each begin was counted before, and each count was followed by a begin, unless a fault came between the two."""
    for row in evidence.rows:
        starts = evidence.starts_of(row.number)
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
        for event in events:
            if not event.is_allowed:
                yield f"task {number} went a way that no task may go: {event}\n{evidence.tell(number)}"
            if event.is_finish and not (is_completed if event.is_completion else _may_have_failed)(evidence, event):
                yield f"task {number} was finished by another than its last run: {event}\n{evidence.tell(number)}"


def is_completed(evidence: Evidence, event: Event) -> bool:
    """Whether a row was marked as done or deleted by the claim that started it last, and after that run's end."""
    start, run = last_run(evidence, event)
    if start is None or run is None or event.was != 1:
        return False
    return start.claim == event.claim and run.outcome == "done" and _is_over(run, event.at)


def _may_have_failed(evidence: Evidence, event: Event) -> bool:
    """Whether an error was written by the claim that started a task last, and after that run's end.

    A run that was interrupted at its very begin could not note it.
    """
    start, run = last_run(evidence, event)
    if start is not None and start.claim != event.claim:
        return False
    return run is None or (run.outcome != "done" and _is_over(run, event.at))


def last_run(evidence: Evidence, event: Event) -> tuple[Event | None, Run | None]:
    """The last start of a task before a later event of it, and the run that this start led to."""
    events = evidence.events_of[event.number]
    start = next((one for one in reversed(events[: events.index(event)]) if one.is_start), None)
    if start is None:
        return None, None
    begun, _ = match_begins(evidence.runs_of[event.number], evidence.starts_of(event.number))
    return start, begun.get(start.at)


def _is_over(run: Run, at: float) -> bool:
    return run.ended is not None and run.ended <= at + CLOCKS_DIFFER_SECONDS


def _is_explained(evidence: Evidence, start: float) -> bool:
    """Whether, between a start and the begin that should have followed at once, something struck a worker."""
    near = Span(start - SLACK_SECONDS, start + 1.0)
    troubles = [span for spans in evidence.troubles.values() for span in spans]
    strikes = [Span(strike.began, strike.ended) for strike in evidence.strikes]
    deaths = [Span(worker.ended, worker.ended) for worker in evidence.workers if worker.code]
    return any(span.began <= near.ended and near.began <= span.ended for span in (*troubles, *strikes, *deaths))


def check_newest(evidence: Evidence) -> Iterator[str]:
    """After the last change of a key its newest arguments were run; none is done with arguments that never were."""
    if not evidence.changed_while_it_ran:
        yield "no task was changed while it ran"
    if evidence.kept_fatal:
        yield f"{evidence.kept_fatal} tasks with keys became fatal, which never fail"
    ran = set(evidence.kept_runs)
    for key, version in evidence.changed.items():
        newest = max((run.version for run in ran if run.key == key), default=0)
        if newest < version:
            yield f"key {key} was changed to version {version}, and the newest that ran to its end is {newest}"
    for key, version in sorted(set(evidence.kept_rows) - ran):
        yield f"key {key} is done with version {version}, no run of which came to its end"


def check_ties(evidence: Evidence) -> Iterator[str]:
    """Each ran after all that it waited for; none is lost, and what waited for a fatal one is fatal because of it."""
    doomed: set[int] = set()
    for one in evidence.tied:
        fatal = [other.id for other in evidence.tied if other.number in one.parents and other.number in doomed]
        if one.is_fatal or fatal:
            doomed.add(one.number)
        wrong = _wrong_tie(one, evidence, fatal)
        if wrong:
            yield f"the tied task {one} {wrong}"
    if evidence.tied_left:
        yield f"{evidence.tied_left} ties are left, of tasks that are over"
    if not any(
        run.outcome == "tied" and one.parents for one in evidence.tied for run in _runs_of(one.number, evidence)
    ):
        yield "no task ran that had waited for another"
    if not any(error.startswith(GIVEN_UP) for error in evidence.tied_errors.values()):
        yield "no task was fatal because of another"


def _wrong_tie(one: Tied, evidence: Evidence, fatal: Sequence[int | None]) -> str | None:
    runs = _runs_of(one.number, evidence)
    error = evidence.tied_errors.get(one.number, "")
    if fatal and runs:
        return "waited for a fatal one, and began"
    if fatal and one.id is not None and not error.startswith(tuple(f"{GIVEN_UP}{task_id}," for task_id in fatal)):
        return f"waited for a fatal one, and its error is {error!r}"
    if one.id is not None and not (fatal or one.is_fatal) and not any(run.outcome == "tied" for run in runs):
        return "did not come to its end"
    for parent in one.parents:
        ends = [run.ended for run in _runs_of(parent, evidence) if run.outcome == "tied" and run.ended is not None]
        if runs and min(run.began for run in runs) < min(ends, default=inf):
            return "began before one that it waited for had come to its end"
    return None


def _runs_of(number: int, evidence: Evidence) -> list[Run]:
    return [run for run in evidence.tied_runs if run.number == number]


def check_workers(evidence: Evidence) -> Iterator[str]:
    """Every worker ended as it may: with 0, with 1 and one line an hour, or killed; never with a traceback."""
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
    lines = _own_lines(worker)
    match worker.code:
        case 0 if death:
            return f"ended with 0, and its task {death}"
        case 0:
            return f"ended with 0 and {lines}" if lines else None
        case 1 if len(lines) != 1:
            was_told = any(other.slot == worker.slot and _own_lines(other) for other in evidence.workers)
            return None if was_told and not lines else f"ended with 1 and {len(lines)} lines of its own"
        case 1 if lines[0] == "worker.py: ":
            return "ended with 1 and no word of why"
        case 1 if lines[0].startswith(HOLDS):
            is_allowed = death == "dies hold" or _was_frozen_till_its_end(worker, evidence)
            return None if is_allowed else "took a task for one that holds the interpreter"
        case 1 if not may_give_up(worker, evidence.troubles.get(worker.slot, [])):
            return "gave up a database that was not away for so long"
        case 1:
            return None
        case -9 if was_killed or death == "dies kill":
            return None
        case code if code == HARD_EXIT and death == "dies leave":
            return None
    return f"ended with {worker.code}"


def _own_lines(worker: WorkerRun) -> list[str]:
    """The worker's lines of why it ended."""
    own = (line for line in worker.errors.splitlines() if line.startswith(("worker.py: ", HOLDS)))
    return [line for line in own if not line.startswith(OVER)]


def _was_frozen_till_its_end(worker: WorkerRun, evidence: Evidence) -> bool:
    """Whether it ended as it woke, beyond its lease: its task could not be interrupted in time either."""
    return any(
        strike.kind == "freeze beyond the lease" and worker.ended - strike.ended < SLACK_SECONDS
        for strike in evidence.strikes_on(worker)
    )


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
    check_told,
    check_newest,
    check_ties,
    check_workers,
)
