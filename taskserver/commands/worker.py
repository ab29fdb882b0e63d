"""worker.py: one run, as cron starts it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import TextIO

from ..log import PrintsToLog, set_up
from ..run_result import RunResult
from ..server import TaskServer
from ..settings import load_settings
from ..stopping import Stop
from .live_line import LiveLine
from .program import Exit, run_program
from .worker_options import Options, read_options


def main(folder: Path, arguments: list[str]) -> int:
    """Run tasks with the settings in `folder`. The exit code."""
    return run_program("worker.py", lambda: _run(folder, read_options(arguments)))


def _run(folder: Path, options: Options) -> int:
    settings = load_settings(folder)
    if options.mode:
        settings = settings._replace(mode=options.mode)
    stop = Stop()
    _obey_signals(stop)
    live = LiveLine(sys.stdout)
    standard_error = set_up(options.verbose, settings.log_file, live.clear)
    with _prints_kept_from(sys.stdout), TaskServer.from_settings(settings) as server:
        try:
            result = server.run(
                options.max_tasks,
                options.groups,
                batch=options.batch,
                max_time=options.max_time,
                stop=stop,
                on_progress=lambda result: live.show(_progress(result)),
            )
        finally:
            live.clear()
            standard_error.end()
    live.end(_summary(result))
    return Exit.OK


@contextmanager
def _prints_kept_from(stdout: TextIO) -> Iterator[None]:
    """Send what tasks print to the log unless a person watches: cron would mail it."""
    if stdout.isatty():
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stdout.fileno())  # for bytes, and for programs that tasks start
    os.close(nowhere)
    prints = PrintsToLog(stdout)
    try:
        with redirect_stdout(prints):
            yield
    finally:
        prints.end()


def _obey_signals(stop: Stop) -> None:
    def ask(number: int, frame: FrameType | None) -> None:
        stop.ask()

    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGINT, ask)


def _progress(result: RunResult) -> str:
    return f"{result.done} done, {result.fatal} fatal, {result.taken} taken up"


def _summary(result: RunResult) -> str:
    reason = result.reason.value if result.reason else "unknown"
    lost = f", {result.lost} lost" if result.lost else ""
    return f"{result.done} done, {result.fatal} fatal{lost} in {result.seconds:.1f} s; ended: {reason}"
