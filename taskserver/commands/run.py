"""client.py run: one task, here and now, with all that it prints and the whole traceback."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ..lifecycle import MAX_ID, Status
from ..log import LOG, file_handler
from ..printable import printable
from ..run_result import RunResult
from ..server import TaskServer
from ..settings import load_settings
from ..stopping import Stop, TaskInterrupted, is_in_task
from ..stores.rows import StoredTask
from .output import status_name
from .program import Exit
from .usage import whole_number

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("run", help="run one task here, with the whole traceback if it fails")
    parser.add_argument(
        "id", metavar="ID", type=whole_number(0, MAX_ID), help="of the task, as client.py list shows it"
    )
    parser.set_defaults(run=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    settings = load_settings(folder)
    stop = Stop()
    stop.ends_process = "client.py"
    with TaskServer.from_settings(settings) as server:
        server.store.check_tables()
        with _told_in_full(settings.log_file), _interrupting(stop):
            result = server.run_task(options.id, stop=stop)
        row = server.store.show(options.id)
    sys.stdout.flush()
    # In mode delete the row may be an older one, of the archive.
    returned = _returned(row) if result.done and settings.mode != "delete" else ""
    print(printable(f"task {options.id} {_outcome(result, row)}{returned}"))
    return Exit.OK


class _InFull(logging.Handler):
    """Tracebacks and warnings as they are, on standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        sys.stdout.flush()  # what the task printed came before
        print("\n".join(map(printable, record.getMessage().split("\n"))), file=sys.stderr)


@contextmanager
def _told_in_full(log_file: Path | None) -> Iterator[None]:
    handlers: list[logging.Handler] = [_InFull(logging.INFO)]
    if log_file:
        handlers.append(file_handler(log_file))
    LOG.propagate = False
    LOG.setLevel(logging.DEBUG if log_file else logging.INFO)
    for handler in handlers:
        LOG.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            LOG.removeHandler(handler)


@contextmanager
def _interrupting(stop: Stop) -> Iterator[None]:
    """In the `with`, Ctrl-C interrupts the task, and nothing that is done to its row."""

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


def _outcome(result: RunResult, row: StoredTask | None) -> str:
    """What became of the task, and of its row, which others may have changed since."""
    if result.lost:
        return "was taken over or changed by others while it ran here, and its result is dropped"
    if result.released:
        return "was given back unstarted"
    ended = f"{'is done' if result.done else 'failed'} after {result.seconds:.1f} s"
    if result.done and row is not None and not row.archived and row.status != Status.DONE and row.stage:
        return f"has done stage {row.stage} after {result.seconds:.1f} s, and {_state(row)} for the next one"
    if row is None or row.archived or row.status == Status.DONE:
        return ended if result.done else f"{ended}, and is gone since"
    return f"{ended}, and {_state(row)}"


def _returned(row: StoredTask | None) -> str:
    return "" if row is None or row.result is None else f", and returned {row.result}"


def _state(row: StoredTask) -> str:
    if row.status in (Status.ERROR, Status.WAITING) and row.due_at:
        return f"comes again at {row.due_at[:19]} UTC"
    return f"is {status_name(row.status).replace('_', ' ')}"
