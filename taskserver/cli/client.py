"""client.py: finds the command that the arguments name, and calls it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from .commands import (
    add,
    cancel,
    doctor,
    errors,
    init,
    list,
    pause,
    priority,
    prune,
    reclaim,
    resume,
    retry,
    run,
    schedule,
    show,
    stats,
    status,
    unschedule,
)
from ..server import TaskServer
from ..settings.load import load_settings
from .terminal.arguments import Parser
from .terminal.program import Exit, run_program

COMMANDS = (
    *(init, add, schedule, unschedule, status, list, show, stats, errors),
    *(retry, cancel, priority, pause, resume, run, reclaim, prune, doctor),
)
"""Each has `add_parser`, which describes its arguments and names its `run(server, options)`.

init and doctor need no server, and name their `run_in_folder(folder, options) → exit code`."""


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Run one command with the settings in `folder`; return the exit code."""
    return run_program("client.py", lambda: _run(folder, arguments))


def _run(folder: Path, arguments: Sequence[str]) -> int:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # client.py held SIGINT back
    _survive_any_terminal()
    parser = Parser(prog="client.py", description="Add tasks to the queue, look at it, and act on it.")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    for command in COMMANDS:
        command.add_parser(subparsers)
    options = parser.parse_args(arguments)
    if "run_in_folder" in options:
        code: int = options.run_in_folder(folder, options)
        return code
    with TaskServer.from_settings(load_settings(folder)) as server:
        options.run(server, options)
    return Exit.OK


def _survive_any_terminal() -> None:
    # Rows may hold any character; a terminal or pipe may be set to a narrow encoding.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure:
            reconfigure(errors="backslashreplace")
