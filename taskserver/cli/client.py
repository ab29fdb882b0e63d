"""client.py: finds the command that the arguments name, and calls it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .commands import (
    add,
    check,
    doctor,
    history,
    init,
    look,
    operate,
    page,
    run,
    status,
)
from ..messages.programs import CLIENT, IS_INSTALLED
from ..server import TaskServer
from ..settings.load import load_settings
from .terminal.arguments import ABOUT_DEPLOYMENT, Parser, add_deployment, add_deployment_of_command, queues_of
from .terminal.program import Exit, deployment_of, run_program, settings_in_words
from .terminal.output import BOLD, painted

GROUPS: dict[str, tuple[Callable[[Any], None], ...]] = {
    "For producers": (add.add_parser, add.add_schedule, add.add_unschedule),
    "To look": (
        *(status.add_parser, look.add_list, look.add_show, history.add_stats, look.add_errors),
        *(check.add_parser, page.add_metrics, page.add_page),
    ),
    "To act": (
        *(partial(operate.add_act, name) for name in ("retry", "cancel", "delete", "priority")),
        operate.add_pause,
        operate.add_resume,
        partial(operate.add_act, "reclaim"),
        run.add_parser,
        history.add_prune,
        history.add_compact,
    ),
    "For a deployment": (init.add_parser, doctor.add_parser),
}
"""Add the parsers of commands. A parser sets `run(server, options) → exit code or None`, for init
`run_in_folder(folder, options) → exit code`, and for commands that take several --env
`run_on_queues(queues, options) → exit code`."""
COMMANDS = tuple(command for commands in GROUPS.values() for command in commands)
EXAMPLES = f"""\
  {CLIENT} add tasks.send_letter '{{"to": "a@example.org"}}' --group 3 --delay 5m
  {CLIENT} list fatal --since 1d
  {CLIENT} retry --task tasks.send_letter --dry-run
  {CLIENT} stats --by task --since 7d"""


def main(folder: Path, arguments: Sequence[str]) -> int:
    """Run one command for the deployment in `folder`, unless options name another; return the exit code."""
    return run_program(CLIENT, lambda: _run(folder, arguments))


def _run(folder: Path, arguments: Sequence[str]) -> int:
    if hasattr(signal, "pthread_sigmask"):  # Windows has none
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the program blocked it
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")  # rows may have characters that the terminal lacks
    if arguments[:1] == ["help"]:
        arguments = [*(one for one in arguments[1:] if one != "help"), "--help"]
    options = make_parser().parse_args(arguments)
    env_files = (options.env_files or []) + options.more_env_files
    if IS_INSTALLED and options.folder is None and not env_files and sys.stderr.isatty():
        print(settings_in_words(folder, None), file=sys.stderr)
    if "run_on_queues" in options:
        worst: int = options.run_on_queues(queues_of(folder, options.folder, env_files), options)
        return worst
    folder, options.env_file = deployment_of(folder, options.folder, env_files)
    if "run_in_folder" in options:
        code: int = options.run_in_folder(folder, options)
        return code
    with TaskServer.from_settings(load_settings(folder, env_file=options.env_file)) as server:
        return options.run(server, options) or Exit.OK


def make_parser() -> Parser:
    """The parser of client.py and its commands."""
    parser = Parser(prog=CLIENT)
    add_deployment(parser)
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    parsers = subparsers.choices
    sections: dict[str, str] = {}
    for heading, commands in GROUPS.items():
        known = set(parsers)
        for add_parser in commands:
            add_parser(subparsers)
        lines = [f"  {name:<12}{command.description}" for name, command in parsers.items() if name not in known]
        sections[heading] = "\n".join(lines)
    for command in parsers.values():
        about = command.description or ""
        command.description = f"{about[:1].upper()}{about[1:]}."
        add_deployment_of_command(command)
    sections |= {"Options of every command": ABOUT_DEPLOYMENT, "Examples": EXAMPLES}
    parser.about_commands = "\n\n".join(
        [
            "Add tasks to the queue, look at it, and act on it.",
            *(f"{painted(heading, BOLD, sys.stdout)}\n{lines}" for heading, lines in sections.items()),
            f"{CLIENT} help COMMAND, or COMMAND --help, shows the options of a command.\n",
        ]
    )
    return parser
