"""What happened in a chaos run, as its witnesses saw it: all that the checks look at, and nothing else."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.faults.chaos.schedule import NETWORK_FAULTS, SERVER_FAULTS
from tests.faults.chaos.settings import SLACK_SECONDS, TIMEOUT_SECONDS
from tests.faults.chaos.spans import Span
from tests.faults.chaos.tasks import SHOWN_BY


class Run(NamedTuple):
    """One run of a task, as the task itself noted it."""

    number: int
    pid: int
    began: float
    ended: float | None
    outcome: str
    """`done`, the name of what it raised, `dies kill` and the like, or `?`."""
    kind: str = "quick"

    @property
    def is_shown(self) -> bool:
        """Whether it did what its kind is for: of what hangs, until its timeout ended it and nothing sooner."""
        if self.outcome != SHOWN_BY[self.kind]:
            return False
        seconds = 0.0 if self.ended is None else self.ended - self.began
        return self.kind != "hang" or seconds >= TIMEOUT_SECONDS - SLACK_SECONDS


class Kept(NamedTuple):
    """A task with a key that is done, by the arguments that its row held then; or a run of one that came to its end."""

    key: str
    version: int


class Tied(NamedTuple):
    """A task that waits for others, or may be waited for, as its producer gave it."""

    number: int
    id: int | None
    """None where the INSERT had no answer."""
    parents: Sequence[int]
    """Numbers of those that it waits for."""
    is_fatal: bool


PLACES = {"delete": "gone", "move": "archive", "mark": "queue"}
"""Where each mode leaves a completed task."""


class Row(NamedTuple):
    """A row at the end, from the queue or the archive; or as it was when it was deleted."""

    number: int
    id: int
    status: int
    attempts: int
    max_attempts: int | None
    error_text: str | None
    place: str
    """One of PLACES."""

    @property
    def is_done(self) -> bool:
        return self.status == 2 or self.place == "gone"


DELETED = -1
"""Stands for the status of a row that is no more."""
WAYS = {(0, 1), (1, 1), (1, 0), (1, 2), (1, DELETED), (1, 3), (1, 4), (3, 0), (4, 1)}
"""From status to status: claim; start and renew; release; done, error, fatal; wake; and, for a task of one attempt that
was given up as lost, its late completion."""


class Event(NamedTuple):
    """One change of a row, as the trigger kept it."""

    number: int
    id: int
    at: float
    was: int
    status: int
    attempts_before: int
    attempts: int
    max_attempts: int | None
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
    def is_completion(self) -> bool:
        return self.status in (2, DELETED)

    @property
    def is_finish(self) -> bool:
        """Written by the worker that ran it; a release is none."""
        return self.was == 1 and (self.is_completion or self.status in (3, 4)) and not self.is_lost

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
    added: Counter[str] = field(default_factory=Counter)
    """Acknowledged tasks by their kind."""
    task_kinds: Sequence[str] = ()
    """All of which must have shown."""
    modes: Sequence[str] = ()
    """Of each slot."""
    undrained: int = 0
    """Tasks that were neither done nor fatal at the end."""
    changed: dict[str, int] = field(default_factory=dict)
    """By key: the newest version of which its producer was told that it stands now."""
    changed_while_it_ran: int = 0
    """Changes of a row whose task was running."""
    kept_rows: list[Kept] = field(default_factory=list)
    kept_runs: list[Kept] = field(default_factory=list)
    kept_fatal: int = 0
    tied: list[Tied] = field(default_factory=list)
    tied_runs: list[Run] = field(default_factory=list)
    tied_errors: dict[int, str] = field(default_factory=dict)
    """By number: why those are fatal that are."""
    tied_left: int = 0
    """Tasks that are over and not told of, and dependencies of such as are not fatal."""
    unended: list[int] = field(default_factory=list)
    """Slots whose worker did not end though nothing was left to do."""
    drain_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.row_of = {row.number: row for row in self.rows}
        self.runs_of: dict[int, list[Run]] = defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.began):
            self.runs_of[run.number].append(run)
        self.events_of: dict[int, list[Event]] = defaultdict(list)
        for event in self.events:
            self.events_of[event.number].append(event)
        self.worker_of = {worker.pid: worker for worker in self.workers}
        self._begins_in: dict[int, list[float]] = defaultdict(list)
        for run in self.runs:
            self._begins_in[run.pid].append(run.began)

    def end_of(self, run: Run) -> float:
        """When a run was over: as it says, or when its worker began another, or when that ended."""
        if run.ended is not None:
            return run.ended
        worker = self.worker_of.get(run.pid)
        return min([*self._later_begins(run), worker.ended if worker else run.began])

    def was_outlived(self, run: Run) -> bool:
        """Whether its worker went on behind it: to another run, or to an orderly end."""
        worker = self.worker_of.get(run.pid)
        return bool(self._later_begins(run)) or (worker is not None and worker.code == 0)

    def _later_begins(self, run: Run) -> list[float]:
        return [began for began in self._begins_in[run.pid] if began > run.began]

    def place_of(self, run: Run) -> str | None:
        """Where the mode of its worker leaves a task that it completes."""
        worker = self.worker_of.get(run.pid)
        return PLACES[self.modes[worker.slot]] if worker else None

    def starts_of(self, number: int) -> list[float]:
        """When a task was counted as started."""
        return [event.at for event in self.events_of[number] if event.is_start]

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
