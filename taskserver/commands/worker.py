"""worker.py: one run, as cron starts it."""

from __future__ import annotations

import argparse
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
from ..server import MAX_GROUPS, TaskServer
from ..settings import MAX_BATCH, MODES, load_settings
from ..stopping import Stop
from ..task import MAX_GROUP_ID
from .live_line import LiveLine
from .program import Exit, Parser, run_program, whole_number


def main(folder: Path, arguments: list[str]) -> int:
    """Run tasks with the settings in `folder`. The exit code."""
    return run_program("worker.py", lambda: _run(folder, _parse(arguments)))


def _run(folder: Path, options: argparse.Namespace) -> int:
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
    with redirect_stdout(prints):
        yield
    prints.end()


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(prog="worker.py", description="Run tasks of the queue until MAX_TASKS ran or none is left.")
    parser.add_argument(
        "max_tasks",
        metavar="MAX_TASKS",
        nargs="?",
        type=whole_number(0),
        default=0,
        help="how many tasks to run at most; 0 or absent: until the queue is empty",
    )
    parser.add_argument("groups", metavar="GROUP_IDS", nargs="?", type=_groups, help="as 3,5,6; absent: every group")
    parser.add_argument("--mode", choices=MODES, help="what becomes of completed tasks, over TASKSERVER_MODE")
    parser.add_argument(
        "--batch",
        metavar="N",
        type=whole_number(1, MAX_BATCH),
        default=100,
        help=f"claim at most N at once (default 100, at most {MAX_BATCH})",
    )
    parser.add_argument(
        "--max-time", metavar="S", type=_seconds, help="start nothing that would not fit into S seconds"
    )
    parser.add_argument("--verbose", action="store_true", help="say on standard error what it does")
    return parser.parse_args(arguments)


def _groups(text: str) -> list[int]:
    parse = whole_number(0, MAX_GROUP_ID)
    try:
        groups = [parse(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of group ids from 0 to {MAX_GROUP_ID} with commas and no spaces between, as 3,5,6"
        ) from None
    if len(groups) > MAX_GROUPS:
        raise argparse.ArgumentTypeError(f"it names {len(groups)} groups; at most {MAX_GROUPS} are allowed")
    return groups


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


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
