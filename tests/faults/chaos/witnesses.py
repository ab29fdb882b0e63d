"""What the witnesses of a chaos run kept, read as evidence: the tasks' files, the database, the proxies."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.faults.chaos.evidence import DELETED, Event, Kept, Row, Run, Strike
from tests.faults.chaos.schedule import FREEZES
from tests.faults.chaos.spans import Span, merged, unreached
from tests.faults.chaos.stage import MOVING, Slot, Stage


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
            open_runs[pid] = Run(number, pid, at, None, "?", how)
        elif what == "dies":
            open_runs[pid] = open_runs[pid]._replace(outcome=f"dies {how}")
        elif what == "end":
            yield open_runs.pop(pid)._replace(ended=at, outcome=how)
    yield from open_runs.values()


def read_database(stage: Stage) -> tuple[list[Row], list[Event]]:
    """The rows as they are now or were deleted, and their changes with instants of time.monotonic()."""
    offset = time.time() - time.monotonic()
    rows = []
    with closing(stage.sql()) as sql:
        for place, table in {"queue": "jobs_queue", "archive": "jobs_queue_done"}.items():
            found = sql.run(
                f"SELECT args, id, status, attempts, max_attempts, error_text, '{place}' FROM {table} "
                "WHERE task = 'tasks.play'"
            )
            rows += [Row(_number(row[0]), *row[1:]) for row in found]
        changes = sql.run(
            "SELECT args, id, at, was, status, attempts_before, attempts, max_attempts, claim, lease_ended_at, due_at, "
            f"error_text FROM history WHERE NOT {IS_KEPT} AND NOT {IS_TIED} ORDER BY n"
        )
    # A move deletes what it has archived.
    events = [event for event in (_event(row, offset) for row in changes) if event.was != MOVING]
    return rows + [_deleted(event) for event in events if event.status == DELETED], events


IS_KEPT = """SUBSTR(args, 1, 7) = '{"key":'"""
"""Of tasks with keys; no LIKE, as the drivers would take its % for a mark of theirs."""
IS_TIED = """SUBSTR(args, 1, 8) = '{"tied":'"""


def read_tied(stage: Stage) -> tuple[dict[int, str], int]:
    """Why those of the tied tasks are fatal that are; and how much is left of what ties them."""
    with closing(stage.sql()) as sql:
        fatal = sql.run("SELECT args, error_text FROM jobs_queue WHERE task = 'tasks.tie' AND status = 4")
        signs = sql.run("SELECT COUNT(*) FROM jobs_queue WHERE status IN (2, 4) AND due_at IS NOT NULL")[0][0]
        edges = sql.run(
            "SELECT COUNT(*) FROM jobs_queue_dependencies"
            " WHERE child_id NOT IN (SELECT id FROM jobs_queue WHERE status = 4)"
        )[0][0]
    return {json.loads(args)["tied"]: text for args, text in fatal}, signs + edges


def read_kept_runs(folder: Path) -> list[Kept]:
    """Runs of tasks with keys that came to their end, as they noted it."""
    return [
        Kept(file.name, int(version))
        for file in folder.iterdir()
        for what, *_, version in map(str.split, file.read_text().splitlines())
        if what == "end"
    ]


def read_kept_rows(stage: Stage) -> tuple[list[Kept], int, int]:
    """Tasks with keys as they were done; how many became fatal; and how many changes found one running."""
    queries = {
        "done": "SELECT args FROM jobs_queue WHERE status = 2 AND task = 'tasks.keep'",
        "archived": "SELECT args FROM jobs_queue_done WHERE task = 'tasks.keep'",
        "deleted": f"SELECT args FROM history WHERE status = {DELETED} AND was <> {MOVING} AND {IS_KEPT}",
        "fatal": "SELECT args FROM jobs_queue WHERE status = 4 AND task = 'tasks.keep'",
        "changed": "SELECT args FROM history WHERE was = 1 AND status = 1 AND attempts_before > 0 AND attempts = 0",
    }
    with closing(stage.sql()) as sql:
        found = {name: [json.loads(row[0]) for row in sql.run(query)] for name, query in queries.items()}
    done = [Kept(args["key"], args["version"]) for name in ("done", "archived", "deleted") for args in found[name]]
    return done, len(found["fatal"]), len(found["changed"])


def _number(args: str) -> int:
    number: int = json.loads(args)["number"]
    return number


def _deleted(event: Event) -> Row:
    return Row(event.number, event.id, event.was, event.attempts, event.max_attempts, event.error_text, "gone")


def _event(row: tuple[Any, ...], offset: float) -> Event:
    event = Event(_number(row[0]), *row[1:])
    ends = [None if at is None else at - offset for at in (event.lease_ended_at, event.due_at)]
    return event._replace(at=event.at - offset, lease_ended_at=ends[0], due_at=ends[1])


def troubles_of(slot: Slot, stage: Stage, strikes: Sequence[Strike], delays: Sequence[Span]) -> list[Span]:
    """When the workers of a slot were hindered."""
    # Refused: a worker that begins meanwhile has no connection to judge by.
    hinders = (*FREEZES, "stall", "drop", "refuse")
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
