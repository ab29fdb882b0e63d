"""client.py run: runs one task now, with all its output and the whole traceback."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from ...interrupts.alarm import is_in_task
from ...interrupts.stop import Stop, TaskInterrupted
from ...messages.programs import CLIENT
from ...messages.text import escaped, in_sentence
from ...model.task import Status
from ...server import TaskServer
from ...settings.load import hide_secrets
from ...stores.records import TaskRow
from ...worker.result import RunResult
from ..terminal import arguments
from ..terminal.log import showing_all
from ..terminal.log_lines import TaskRecord, lines_of
from ..terminal.output import status_name
from ..terminal.program import SIGNALS


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("run", description="run one task here, with the whole traceback if it fails")
    arguments.add(parser, "id")
    parser.set_defaults(run=run)


def run(server: TaskServer, options: argparse.Namespace) -> None:
    settings = server.settings
    hide_secrets()
    stop = Stop()
    stop.ends_process = CLIENT
    server.store.tables.check()
    with showing_all(_InFull(logging.INFO), settings), _interrupting(stop):
        result = server.run_task(options.id, stop=stop)
    row = server.store.views.show(options.id)
    sys.stdout.flush()
    returned = ""
    # In mode delete the row may be an older one from the archive.
    if result.done and settings.mode != "delete" and row is not None and row.columns["result"] is not None:
        returned = f", and returned {row.columns['result']}"
    print(escaped(f"task {options.id} {_outcome(result, row)}{returned}"))


class _InFull(logging.Handler):
    """Prints the log on standard error, with tracebacks, but not the end of the task, which the command prints."""

    def filter(self, record: logging.LogRecord) -> bool:
        is_end = hasattr(record, "task_id") and not hasattr(record, "error")
        return isinstance(record, TaskRecord) or not is_end or record.levelno > logging.INFO

    def emit(self, record: logging.LogRecord) -> None:
        sys.stdout.flush()  # the task's own prints came first
        print("\n".join(lines_of(record)), file=sys.stderr)


@contextmanager
def _interrupting(stop: Stop) -> Iterator[None]:
    """In the `with`, Ctrl-C interrupts the task, but never a write to its row."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop.ask()
        if is_in_task(frame):
            raise TaskInterrupted("stopped by Ctrl-C" if number == signal.SIGINT else "stopped by a signal")
        stop.ask()

    before = {number: signal.signal(number, interrupt) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _outcome(result: RunResult, row: TaskRow | None) -> str:
    """The outcome of the task and of its row, which other programs may have changed since."""
    if result.lost:
        return "was reclaimed or changed while it ran here: its result is dropped"
    if result.released:
        return "was released, and not started"
    if result.cancelled:
        return f"was cancelled after {result.seconds:.1f} s"
    if result.postponed:
        return f"asked to run later, which counts no attempt{'' if row is None else f': it {_state(row)}'}"
    ended = f"{'is done' if result.done else 'failed'} after {result.seconds:.1f} s"
    if result.done and row is not None and not row.archived and row.status != Status.DONE and row.columns["stage"]:
        return f"has done stage {row.columns['stage']} after {result.seconds:.1f} s, and {_state(row)} for the next one"
    if row is None or row.archived or row.status == Status.DONE:
        return ended if result.done else f"{ended}, and is gone since"
    return f"{ended}, and {_state(row)}"


def _state(row: TaskRow) -> str:
    if row.ready_at:
        verb = "will be retried" if row.status == Status.ERROR else "will run"
        return f"{verb} at {in_sentence(row.ready_at)}"
    return f"is {status_name(row.status).replace('_', ' ')}"
