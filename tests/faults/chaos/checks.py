"""The promises of the queue, checked on what the witnesses kept: each check yields a sentence for all that is wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.faults.chaos.faults import Strike
from tests.faults.chaos.stage import ACCOUNTS, BALANCE, LEASE_SECONDS, SLACK_SECONDS, Added, Span, WorkerRun
from tests.faults.chaos.tasks import MONEY, PLAYED, WEIGHTS

PLACES = {"delete": "gone", "move": "archive", "mark": "queue"}
"""Where each mode leaves a completed task."""
INTERRUPTED = "TaskInterrupted: "
BEFORE_IT = ("", "taskserver.interrupts.stop.", "ModuleBroken: module tasks cannot be imported: ")
OWN_ERRORS = ("Failed: ", "lost", *(f"{words}{INTERRUPTED}" for words in BEFORE_IT))
"""How the error of a fatal task may begin; anything else was not the task's fault."""
GIVEN_UP = "dependency: task "
CONFLICTS = ("Deadlock", "1213")
"""Words of an error by which a task of one attempt may not end: its transaction is tried again."""


class Run(NamedTuple):
    """One run of a task, as the task itself noted it."""

    number: int
    pid: int
    began: float
    ended: float | None = None
    outcome: str = "?"
    """`done`, the name of what it raised, `dies` if it killed its worker, or `?` if that died otherwise."""
    kind: str = "quick"


class Row(NamedTuple):
    """A row at the end."""

    number: int
    place: str
    """One of PLACES."""
    status: int
    attempts: int
    error_text: str | None


@dataclass
class Evidence:
    """All that the checks look at."""

    added: Sequence[Added] = ()
    rows: Sequence[Row] = ()
    runs: Sequence[Run] = ()
    workers: Sequence[WorkerRun] = ()
    strikes: Sequence[Strike] = ()
    faults: Sequence[str] = ()
    """Kinds, each of which must have struck."""
    hindered: Mapping[int, Sequence[Span]] = field(default_factory=dict)
    """By slot: when its worker was frozen, or could not reach the database."""
    modes: Sequence[str] = ()
    """Of each slot."""
    transfers: Sequence[tuple[int, int, int, int]] = ()
    """Number, source, target and amount, as they were committed."""
    balances: Mapping[int, int] = field(default_factory=dict)
    left: Sequence[object] = ()
    """Tasks that did not end, and dependencies of ended ones."""
    is_pruned: bool = False
    """Whether done rows may have been deleted meanwhile."""
    unended: Sequence[int] = ()
    """Slots whose worker did not end though nothing was left to do."""
    supervisors: Mapping[int, int] = field(default_factory=dict)
    """The parent of each process."""
    lease_seconds: float = LEASE_SECONDS
    is_cluster: bool = False

    def __post_init__(self) -> None:
        self.worker_of = {worker.pid: worker for worker in self.workers}
        line_of = {pid: self.worker_of[parent] for pid, parent in self.supervisors.items() if parent in self.worker_of}
        self.worker_of |= line_of
        self.runs_of: dict[int, list[Run]] = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.began):
            self.runs_of[run.number].append(run)
        self.rows_of: dict[int, list[Row]] = defaultdict(list)
        for row in self.rows:
            self.rows_of[row.number].append(row)
        self.once = [one for one in self.added if not one.key]
        """All but those with a key, whose row is used again."""

    def done_runs(self, number: int) -> list[Run]:
        return [run for run in self.runs_of[number] if run.outcome == "done"]

    def is_fatal(self, number: int) -> bool:
        return any(row.status == 4 for row in self.rows_of[number])

    def end_of(self, run: Run) -> float:
        """When a run was over: as it says, or when its worker ended."""
        return run.ended if run.ended is not None else self.worker_of[run.pid].ended

    def was_struck(self, worker: WorkerRun, began: float, ended: float) -> bool:
        """Whether a fault struck a worker, or its way to the database, in a stretch of time."""
        spans = [*self.hindered.get(worker.slot, ())]
        spans += [Span(one.began, one.ended) for one in self.strikes_on(worker)]
        return any(span.began <= ended and began <= span.ended for span in spans)

    def strikes_on(self, worker: WorkerRun) -> list[Strike]:
        """What struck while a worker ran: its process, its slot's network, or the server."""
        return [
            one
            for one in self.strikes
            if one.began <= worker.ended
            and worker.began <= one.ended
            and (one.pid == worker.pid or (one.pid is None and one.slot in (None, worker.slot)))
        ]

    def story_of(self, one: Added) -> str:
        """All that is known of a task, for the message of a failure."""
        runs = self.runs_of[one.number]
        workers = [self.worker_of[pid] for pid in dict.fromkeys(run.pid for run in runs) if pid in self.worker_of]
        strikes = dict.fromkeys(strike for worker in workers for strike in self.strikes_on(worker))
        return "".join(f"\n    {known}" for known in (one, *self.rows_of[one.number], *runs, *workers, *strikes))


def check_all(evidence: Evidence) -> list[str]:
    checks = (check_power, check_ends, check_repeats, check_overlaps, check_money, check_keys, check_workers)
    return [failure for check in checks for failure in check(evidence)]


def check_power(evidence: Evidence) -> Iterator[str]:
    """A proof without its faults, kinds of tasks or modes proves nothing."""
    struck = {strike.kind for strike in evidence.strikes}
    yield from (f"no fault of the kind '{kind}' struck" for kind in evidence.faults if kind not in struck)
    shown = {run.kind for run in evidence.runs if run.outcome == PLAYED.get(run.kind, "done")}
    missing = WEIGHTS.keys() - {"child"} - shown
    yield from (f"no task of the kind '{kind}' did what it is for" for kind in sorted(missing))
    # Every end but a fatal one: no row, a moved one, or a marked one.
    places = {_place(evidence, one) for one in evidence.once if not evidence.is_fatal(one.number)}
    modes = [] if evidence.is_pruned else PLACES
    yield from (f"no task was completed in mode '{mode}'" for mode in modes if PLACES[mode] not in places)
    ended = {one.id: one.number for one in evidence.once}
    children = [one for one in evidence.once if one.parents]
    if not any(evidence.done_runs(one.number) for one in children):
        yield "no task ran that had waited for another"
    if not any(evidence.is_fatal(ended[parent]) for one in children for parent in one.parents):
        yield "no task waited for a fatal one"


def _place(evidence: Evidence, one: Added) -> str:
    rows = evidence.rows_of[one.number]
    return rows[0].place if rows else "gone"


def check_ends(evidence: Evidence) -> Iterator[str]:
    """Every acknowledged task is done, where the mode says, or fatal for a reason of its own; and it is there once."""
    if evidence.left:
        yield f"{len(evidence.left)} tasks or dependencies wait for ever: {evidence.left}"
    number_of = {one.id: one.number for one in evidence.once}
    for one in evidence.once:
        parents = [number_of[parent] for parent in one.parents]
        if wrong := _wrong_end(one, evidence) or _wrong_child(one, parents, evidence):
            yield f"task {one.number} {wrong}{evidence.story_of(one)}"


def _wrong_end(one: Added, evidence: Evidence) -> str | None:
    rows, runs, done = evidence.rows_of[one.number], evidence.runs_of[one.number], evidence.done_runs(one.number)
    if one.id is None and not rows and not runs:
        return None
    if len(rows) > 1:
        return f"is there {len(rows)} times"
    begun = len(runs) if not _is_tried_again(one, evidence) else 0
    if begun > one.max_attempts or (rows and rows[0].attempts < begun):
        return f"began {len(runs)} times of {one.max_attempts}, and its row counts {[row.attempts for row in rows]}"
    if rows and rows[0].status == 4:
        return _wrong_fatal(one, rows[0], runs, evidence)
    if rows and rows[0].status != 2:
        return f"has the status {rows[0].status}"
    if not done:
        # Its worker may have died between its COMMIT and its note.
        is_made = any(number == one.number for number, *_ in evidence.transfers)
        return None if is_made else "is lost: no run of it came to its end, and it is not fatal"
    places = {PLACES[evidence.modes[evidence.worker_of[run.pid].slot]] for run in done}
    if _place(evidence, one) not in places | ({"gone"} if evidence.is_pruned else set()):
        return f"is done, and {_place(evidence, one)} is not where the mode of its workers puts it"
    return None


def _wrong_fatal(one: Added, row: Row, runs: Sequence[Run], evidence: Evidence) -> str | None:
    error = row.error_text or ""
    if error.startswith(GIVEN_UP) and one.parents:
        return None
    if one.kind == "once" and _broke_with_its_database(runs, error, evidence):
        return None
    if not error.startswith(OWN_ERRORS) or row.attempts != one.max_attempts:
        return f"is fatal after {row.attempts} of {one.max_attempts} attempts: {error!r}"
    return None


def _is_tried_again(one: Added, evidence: Evidence) -> bool:
    """Whether its transaction may lose a conflict at its COMMIT, so that it begins again in the same attempt."""
    return evidence.is_cluster and one.kind in ("transfer", "once")


def _broke_with_its_database(runs: Sequence[Run], error: str, evidence: Evidence) -> bool:
    """Whether the only attempt of a transaction failed because of a fault, and not by a conflict."""
    lease = evidence.lease_seconds  # its completion is written after its end
    spans = [(evidence.worker_of[run.pid], run.began - 1, evidence.end_of(run) + lease) for run in runs]
    is_struck = any(evidence.was_struck(*span) for span in spans)
    return (is_struck or not runs) and not any(word in error for word in CONFLICTS)


def _wrong_child(one: Added, parents: Sequence[int], evidence: Evidence) -> str | None:
    """A child runs after all its parents, and not at all if one of them is fatal."""
    runs = evidence.runs_of[one.number]
    if any(map(evidence.is_fatal, parents)):
        errors = [row.error_text or "" for row in evidence.rows_of[one.number]]
        was_added = one.id is not None or errors
        return "waited for a fatal task, and was not given up" if was_added and (runs or not errors) else None
    for parent in parents:
        ends = [run.ended for run in evidence.done_runs(parent) if run.ended is not None]
        if runs and (not ends or runs[0].began < min(ends)):
            return f"began before task {parent}, for which it waited, was done"
    return None


def check_repeats(evidence: Evidence) -> Iterator[str]:
    """What was done runs again only if a fault struck its worker before that could be written."""
    for one in evidence.once:
        for run in evidence.done_runs(one.number):
            worker, ended = evidence.worker_of[run.pid], evidence.end_of(run)
            is_last = run == evidence.runs_of[one.number][-1]
            if (
                not is_last
                and not worker.code
                and not evidence.was_struck(worker, run.began - 1, ended + evidence.lease_seconds)
                and not _is_tried_again(one, evidence)
            ):
                story = evidence.story_of(one)
                yield f"task {one.number} was done by {run.pid}, which nothing had struck, and again{story}"


def check_overlaps(evidence: Evidence) -> Iterator[str]:
    """No task is run by two workers while the lease of the first holds."""
    for one in evidence.once:
        runs = evidence.runs_of[one.number]
        for index, first in enumerate(runs):
            for second in runs[index + 1 :]:
                if second.began < evidence.end_of(first) and not _may_have_lapsed(evidence, first, second.began):
                    yield (
                        f"task {one.number} was begun by {second.pid} while {first.pid}, which nothing had hindered, "
                        f"ran it{evidence.story_of(one)}"
                    )


def _may_have_lapsed(evidence: Evidence, run: Run, at: float) -> bool:
    """Whether, by that instant, the worker of a run was hindered for long enough to miss its renewals."""
    spans = evidence.hindered.get(evidence.worker_of[run.pid].slot, ())
    earliest = run.began - evidence.lease_seconds
    # A lease that is renewed each third of it has two thirds left at least when a hindrance begins.
    deaf_seconds = evidence.lease_seconds * 2 / 3 - SLACK_SECONDS
    return any(min(span.ended, at) - max(span.began, earliest) >= deaf_seconds for span in spans)


def check_money(evidence: Evidence) -> Iterator[str]:
    """Each acknowledged transfer was made exactly once, one without an answer at most once, and the sums are right."""
    times = Counter(number for number, *_ in evidence.transfers)
    for one in evidence.once:
        is_expected = one.id is not None and not (one.kind == "once" and evidence.is_fatal(one.number))
        if one.kind in MONEY and not is_expected <= times[one.number] <= (not evidence.is_fatal(one.number)):
            yield f"transfer {one.number} was made {times[one.number]} times{evidence.story_of(one)}"
    expected = dict.fromkeys(range(ACCOUNTS), BALANCE)
    for _, source, target, amount in evidence.transfers:
        expected[source] -= amount
        expected[target] += amount
    if evidence.balances != expected:
        yield f"the balances are {evidence.balances}, and the transfers make {expected}"


def check_keys(evidence: Evidence) -> Iterator[str]:
    """After the last rerun of a key that was acknowledged, its arguments or newer ones were run."""
    kept = [one for one in evidence.added if one.key]
    key_of = {one.number: one.key for one in kept}
    for key in sorted(set(key_of.values())):
        newest = max((one.number for one in kept if one.key == key and one.id is not None), default=0)
        ran = max(
            (run.number for run in evidence.runs if run.outcome == "done" and key_of.get(run.number) == key), default=0
        )
        if ran < newest:
            yield f"key {key} was rerun as {newest}, and the newest that was done is {ran}"


def check_workers(evidence: Evidence) -> Iterator[str]:
    """Every worker ended as it may: with 0, with 1 and one line an hour, or killed; never with a traceback."""
    deadly = {evidence.worker_of[run.pid].pid for run in evidence.runs if run.outcome == "dies"}
    yield from (f"the last worker of slot {slot} did not end" for slot in evidence.unended)
    for worker in evidence.workers:
        kinds = {strike.kind for strike in evidence.strikes_on(worker) if strike.pid == worker.pid}
        own = [line for line in worker.errors.splitlines() if line.startswith(("worker.py: ", "Timeout ("))]
        own = [line for line in own if "can be used again" not in line]
        is_line = worker.workers > 1 and worker.pid in deadly
        allowed = {
            0: worker.pid not in deadly and not own,
            1: (evidence.was_struck(worker, worker.began - SLACK_SECONDS, worker.ended) or is_line)
            and len(own) <= worker.workers,
            -9: worker.pid in deadly or bool(kinds & {"kill", "kill in a transaction"}),
            -15: "terminate" in kinds,  # before it had its handlers
        }
        if not allowed.get(worker.code, False) or "Traceback" in worker.errors:
            strikes = "".join(f"\n    {strike}" for strike in evidence.strikes_on(worker))
            yield f"a worker ended with {worker.code}: {worker}{strikes}"
