"""client.py status: prints the findings, the rows by group and status, the runs, workers and schedules."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ...health.coverage import seconds_since_start
from ...health.judge import LIMITS, paused
from ...health.status import GroupStatus, QueueStatus, sum_of
from ...messages.finding import Finding, Level
from ...messages.programs import CLIENT, WORKER
from ...messages.text import age, printable, time_of_day
from ...model.task import Status
from ...stores.queue.schedules import StoredSchedule
from ...stores.queue.stats import HourStats
from ...stores.records import LastRun, RunningTask, WorkerProcess
from ...worker.result import BECAUSE, Reason, counts_in_words
from ..terminal.arguments import Queue, add, look_at, note_error
from ..terminal.output import (
    COLOURS,
    MAX_LINES,
    Amount,
    as_json,
    largest,
    painted,
    print_table,
    show_heading,
    status_name,
)

RUNS_SHOWN = 5
DONE_ROWS = {"delete": "done tasks are deleted", "move": "done tasks stay in the archive", "mark": "done tasks stay"}


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "status", description="show what is wrong, tasks by group and status, workers and runs"
    )
    add(parser, "--json")
    parser.set_defaults(run_on_queues=run)


def run(queues: Sequence[Queue], options: argparse.Namespace) -> int:
    looks = look_at(queues, _look)
    if options.json:
        reports = {
            queue.name: seen[0].as_dict() if seen else {"level": str(Level.CRITICAL), "words": result.words}
            for queue, seen, result in looks
        }
        print(as_json(reports.get("", reports)))
    for queue, seen, result in looks:
        if not options.json:
            show_heading(queue.name)
        if seen and not options.json:
            _show(*seen)
        sys.stdout.flush()
        note_error(queue, result)
    return max(result.code for _, _, result in looks)


def _look(queue: Queue) -> tuple[QueueStatus, int | None]:
    """The status of a queue, and how long its done rows are kept, in seconds."""
    with queue.open() as server:
        return server.status(), server.settings.keep_seconds


def _show(status: QueueStatus, keep: int | None) -> None:
    stay = f"{DONE_ROWS[status.mode]}{f' for {age(keep)}' if keep and status.mode != 'delete' else ''}"
    print(f"{status.table} in {status.database}, mode {status.mode} ({stay})")
    _show_findings(status)
    _show_rows(status)
    print()
    for line in (*_runs(status), *_work(status), *_hours(status.this_hour, status.hour_before)):
        print(printable(line))
    _show_schedules(status.schedules)


def _show_findings(status: QueueStatus) -> None:
    if not status.level:
        print(painted("all is well", COLOURS["ok"], sys.stdout))
    for finding in status.findings:
        level = str(finding.level)
        print(f"{painted(level, COLOURS.get(level, ''), sys.stdout)}: {_in_line(finding)}")
    for one in status.accepted:
        print(printable(f"accepted: {one.finding.words} ({one.reason})"))
    if (status.paused_groups or status.are_all_paused) and not (found := paused(status, LIMITS)).level:
        print(printable(f"paused: {found.words}"))


def _in_line(finding: Finding) -> str:
    return printable("; ".join(filter(None, (finding.words, finding.fix))))


def _show_rows(status: QueueStatus) -> None:
    if not status.groups:
        print("no tasks")
        return
    shown, rest = largest(list(status.groups.items()), lambda group: sum(group[1].rows.values()))
    lines = [(str(group_id), group) for group_id, group in shown]
    if rest:
        lines.append((f"{len(rest)} more groups", sum_of([group for _, group in rest])))
    lines.append(("all", status.total))
    hidden = [Status.NEW, Status.IN_PROGRESS]
    if not status.total.rows.get(Status.CANCELLED):
        hidden.append(Status.CANCELLED)  # rare: the table has many columns
    others = [code for code in status.total.rows if code not in hidden]
    names = [status_name(code).replace("_", " ") for code in others]
    print_table(
        ["group", "new", "claimed", "running", *names, "oldest new", "empty in"],
        [
            [
                label,
                _rows_in(group, Status.NEW),
                group.claimed,
                group.running,
                *(_rows_in(group, code) for code in others),
                age(group.oldest_new_seconds),
                age(group.seconds_left),
            ]
            for label, group in lines
        ],
    )


def _rows_in(group: GroupStatus, code: int) -> object:
    count = group.rows.get(code, 0)
    return Amount(f"{count}+") if code in group.uncounted else count


def _runs(status: QueueStatus) -> Iterator[str]:
    if not status.runs:
        sys.stdout.flush()  # in a file the table must come first, too
        print(f"no worker ran yet: is {WORKER} in a crontab?", file=sys.stderr)
    newest = sorted(status.runs, key=seconds_since_start)
    for run in newest[:RUNS_SHOWN]:
        yield _run_line(run, status)
    yield from _more(len(newest) - RUNS_SHOWN, "runs, which began before")


def _more(left_out: int, what: str) -> Iterator[str]:
    if left_out > 0:
        yield f"and {left_out} more {what}: {CLIENT} status --json has them"


def _run_line(run: LastRun, status: QueueStatus) -> str:
    often = f"; the one before began {age(run.every_seconds)} earlier" if run.every_seconds is not None else ""
    begin = f"last run on {run.host} for {run.groups}: began {age(run.started_seconds_ago)} ago"
    own = [worker for worker in status.workers if _is_of(worker, run)]
    if any(map(status.is_at_work, own)):
        return f"{begin}, is at work{often}"
    state = "is gone" if any(worker.has_ended for worker in own) else "runs, or was killed"
    because = f" ({BECAUSE[Reason(run.reason)]})" if run.reason in set(Reason) else ""
    ended = f"ended: {run.reason}{because}" if run.ended_at else f"not ended (pid {run.pid} {state})"
    counts = counts_in_words(run.done, run.failed, run.fatal, run.lost)
    return f"{begin}, {ended}; {run.taken} taken up, {counts}, {run.released} released{often}"


def _is_of(worker: WorkerProcess, run: LastRun) -> bool:
    return not run.ended_at and (worker.host, worker.group_ids, worker.pid) == (run.host, run.group_ids, run.pid)


def _work(status: QueueStatus) -> Iterator[str]:
    """Each running worker with its tasks."""
    left = list(status.running)
    for worker in status.workers[:MAX_LINES]:
        own = [task for task in left if task.number == worker.number]
        yield _work_line(worker, status.is_at_work(worker), bool(own))
        for task in own:
            left.remove(task)
            yield f"  {_lost_words(task) if worker.has_ended else _running_words(task)}"
    yield from _more(len(status.workers) - MAX_LINES, "workers")
    for task in left:
        yield f"{_running_words(task)} (which worker has it is not known)"
    if (left_out := status.total.running - len(status.running)) > 0:
        yield f"and {left_out} more running tasks"


def _work_line(worker: WorkerProcess, is_at_work: bool, has_tasks: bool) -> str:
    # Another container may have the same host name, with its own processes.
    is_known = worker.has_ended is not None
    here = "" if not worker.is_here else " (this host)" if is_known else " (as this host is named)"
    where = f"process {worker.pid} on {worker.host}{here} for {worker.groups}"
    if worker.has_ended:
        return f"gone: {where}: it was killed, or a task hung or exited"
    if not is_at_work:
        state = "alive" if is_known else "at work, or gone"
        return f"{state}: {where}: it gave its last sign of life {age(worker.seen_seconds_ago)} ago"
    counts = counts_in_words(worker.done, worker.failed, worker.fatal, worker.lost)
    now = f"; {worker.claimed} claimed" if worker.claimed else "" if has_tasks else "; it has no task now"
    return f"at work: {where}, since {age(worker.started_seconds_ago)}: {counts}{now}"


def _running_words(task: RunningTask) -> str:
    progress = f": {task.progress}" if task.progress else ""
    return f"task {task.id} {task.task} has run for {age(task.seconds)}{progress}"


def _lost_words(task: RunningTask) -> str:
    return f"task {task.id} {task.task} was running there: when its lease ends, that attempt fails"


def _hours(this: HourStats, last: HourStats) -> Iterator[str]:
    if any(hour.attempts or hour.fatal for hour in (this, last)):
        yield f"since {time_of_day(this.hour)}: {_hour_words(this)}; in the hour before: {_hour_words(last)}"


def _hour_words(one: HourStats) -> str:
    counts = {"done": one.done, "failed": one.failed, "fatal": one.fatal, "lost": one.lost}
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "done")


def _show_schedules(schedules: Sequence[StoredSchedule]) -> None:
    if not schedules:
        return
    shown = schedules[:MAX_LINES]
    print()
    print_table(
        ["schedule", "task", "runs", "next", "last"],
        [
            [
                row.schedule.name,
                row.schedule.task,
                row.schedule.timing,
                row.when_due,
                row.last.words if row.last else "",
            ]
            for row in shown
        ],
    )
    for line in _more(len(schedules) - MAX_LINES, "schedules, which come later"):
        print(line)
    for row in shown:
        for words in filter(None, (row.fault, row.held)):
            print(printable(f"schedule {row.schedule.name}: {words}"))
