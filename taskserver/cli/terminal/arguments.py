"""Reads arguments, declares those that several commands share, and reports wrong usage in one line."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from ... import __version__
from ...errors import SPAN_EXAMPLES, BadTask, InvalidTask, SettingError, span_seconds
from ...messages.programs import CLIENT
from ...messages.text import nearest, printable, read_number
from ...model.arguments import describe_bare, parse_json
from ...model.backoff import DAY_SECONDS
from ...model.checks import is_whole, whole_numbers
from ...model.task import MAX_GROUP_ID, MAX_GROUPS, MAX_ID, MAX_PRIORITY, MAX_SIGNED, MIN_PRIORITY
from ...server import TaskServer
from ...settings.load import load_settings, sources
from ...settings.table import MAX_DAYS
from .program import CommandResult, Exit, deployment_of, result_of

ABOUT_GROUPS = "write group ids with commas and no spaces, such as 3,5,6"
EXAMPLE = """'{"to": "a@example.org"}'"""
QUOTING = f"write ARGS_JSON in single quotes, such as {EXAMPLE}"
AN_INSTANT = "an instant such as 2026-01-31 or 2026-01-31T12:00+01:00"
T = TypeVar("T")
SINCE = f"a span {SPAN_EXAMPLES}, or {AN_INSTANT} (UTC if no zone is given)"


class Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line. Refuses abbreviated options: a new option could make them ambiguous."""

    about_more = ""
    """A hint if one argument was given as several."""
    usage_exit: int = Exit.USAGE
    usage_head = ""
    """If set, wrong usage is a line on standard output that starts with it, for other programs."""
    about_commands = ""
    """The help of a program with commands."""
    _is_intermixed = False

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, **keywords)
        # No option starts with a digit: in `--since -1h` the value is invalid, not the option.
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    # Typed as argparse types it.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Accept options before, after and between the arguments. Refuse extra ones with the usage of their command."""
        if self._subparsers:
            options, more = super().parse_known_args(args, namespace)
            hint = f"; options follow their command: {self.prog} COMMAND …"
        elif self._is_intermixed:
            return super().parse_known_args(args, namespace)
        else:
            self._is_intermixed = True  # the next line calls this again: once for the options, once for the arguments
            try:
                options, more = self.parse_known_intermixed_args(args, namespace)
            finally:
                self._is_intermixed = False
            is_option = any(word.startswith("-") for word in more)
            hint = f"; {self.about_more}" if self.about_more and not is_option else ""
        if more:
            self.error(f"unrecognized arguments: {' '.join(more)}{hint}")
        return options, more

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        meant = nearest(str(value), choices)
        hint = f"; did you mean {meant!r}?" if meant else f" (choose from {', '.join(map(repr, choices))})"
        raise argparse.ArgumentError(action, f"invalid choice: {value!r}{hint}")

    def format_help(self) -> str:
        return f"{self.format_usage()}\n{self.about_commands}" if self.about_commands else super().format_help()

    def error(self, message: str) -> NoReturn:
        words = f"{printable(message)}; see {self.prog} --help"
        if self.usage_head:
            print(f"{self.usage_head}: {words}")
            self.exit(self.usage_exit)
        self.exit(self.usage_exit, f"{self.prog}: {words}\n")


# ---- the deployment

_FOLDER = "the deployment's folder: its .env, its modules, its var/"
_ENV = "read settings from FILE, and use its folder"
_VERSION = "print the version"
ABOUT_DEPLOYMENT = f"""\
  --folder DIR  {_FOLDER}
  --env FILE    {_ENV}; status, check, metrics,
                page and doctor take several, and show each queue by its name
  --version     {_VERSION}"""


def add_deployment(parser: Any) -> None:
    """Add the options that name a deployment, and --version."""
    parser.add_argument("--folder", metavar="DIR", help=_FOLDER)
    parser.add_argument("--env", dest="env_files", metavar="FILE", action="append", help=_ENV)
    parser.add_argument("--version", action="version", version=f"taskserver {__version__}", help=_VERSION)


def add_deployment_of_command(parser: Any) -> None:
    """Accept these options after a command, too."""
    parser.add_argument("--folder", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--env", dest="more_env_files", action="append", default=[], help=argparse.SUPPRESS)


class Queue(NamedTuple):
    """One queue of a command that can show several."""

    name: str
    """Empty if it is the only one."""
    folder: Path
    env_file: Path | None
    """None: the folder's `.env`."""

    def check_environment(self) -> None:
        """Raises SettingError if the environment replaces settings of one of several: they could be the same queue."""
        if self.name and (overruled := sources(self.folder, self.env_file)[1]):
            keys = ", ".join(overruled)
            raise SettingError(f"the environment wins over {self.env_file} for {keys}: unset {keys} for this command")

    def open(self) -> TaskServer:
        """It, to be closed. Raises SettingError."""
        self.check_environment()
        return TaskServer.from_settings(load_settings(self.folder, env_file=self.env_file))


def queues_of(usual: Path, folder: str | None, env_files: Sequence[str]) -> list[Queue]:
    """The queues of --folder and several --env; otherwise as `deployment_of`.

    A queue has the name of its file without `.env`, or of its folder; if several have this name, the file's path.
    """
    if len(env_files) < 2:
        return [Queue("", *deployment_of(usual, folder, env_files))]
    place = None if folder is None else deployment_of(usual, folder, ())[0]
    files = [Path(file).absolute() for file in env_files]
    names = [file.name.removesuffix(".env").removeprefix(".env.") or file.parent.name for file in files]
    for file in files:
        if files.count(file) > 1:
            raise SettingError(f"--env names {file} twice: name each file once")
    return [
        Queue(name if names.count(name) == 1 else str(file), place or file.parent, file)
        for name, file in zip(names, files, strict=True)
    ]


def try_queue(queue: Queue, look: Callable[[Queue], T]) -> tuple[T | None, CommandResult]:
    """Look at a queue: what `look` returns, or None and the error. The only queue raises its error."""
    if not queue.name:
        return look(queue), CommandResult(Exit.OK)
    found: list[T] = []

    def command() -> int:
        found.append(look(queue))
        return Exit.OK

    result = result_of(command)
    if result.code == Exit.INTERRUPTED:
        raise KeyboardInterrupt
    return (found[0] if found else None), result


def look_at(queues: Sequence[Queue], look: Callable[[Queue], T]) -> list[tuple[Queue, T | None, CommandResult]]:
    """The same for all queues at the same time, so that one that is away delays no other."""
    if len(queues) == 1:
        return [(queues[0], *try_queue(queues[0], look))]
    from concurrent.futures import ThreadPoolExecutor  # needed only for several

    with ThreadPoolExecutor(len(queues)) as pool:
        looks = pool.map(partial(try_queue, look=look), queues)
        return [(queue, *found) for queue, found in zip(queues, looks, strict=True)]


def note_error(queue: Queue, result: CommandResult) -> None:
    """Print the error of one of several queues on standard error, if there is one."""
    if result.words:
        print(f"{CLIENT}: {printable(queue.name)}: {result.words}", file=sys.stderr)


# ---- types of arguments


def whole_number(least: int, most: int | None = None, hint: str = "", or_span: bool = False) -> Callable[[str], int]:
    """A whole number within inclusive limits, or with `or_span` also a span such as 5m; an error ends with `hint`."""
    return _number(lambda value: is_whole(value, least, most), f"{whole_numbers(least, most)}{hint}", or_span)


def number_of(unit: str, or_zero: bool = False, hint: str = "", or_span: bool = False) -> Callable[[str], float]:
    """A number of a unit, above 0 or from 0 on, or with `or_span` also a span such as 5m; an error ends with `hint`."""
    if or_zero:
        return _number(lambda value: value >= 0, f"a number of {unit} from 0 on{hint}", or_span)
    return _number(lambda value: value > 0, f"a number of {unit} above 0{hint}", or_span)


def _number(is_right: Callable[[float], bool], allowed: str, or_span: bool) -> Callable[[str], Any]:
    def parse(text: str) -> float:
        value = read_number(text, or_span)
        if value is not None and is_right(value):
            return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {allowed}")

    return parse


whole_seconds = partial(whole_number, hint=f", of seconds, nor a span {SPAN_EXAMPLES}", or_span=True)
seconds = partial(number_of, "seconds", hint=f", nor a span {SPAN_EXAMPLES}", or_span=True)


def span(text: str, hint: str = "") -> int:
    """The seconds of a span such as 5m, not of a plain number; an error ends with `hint`."""
    found = span_seconds(text)
    if is_whole(found, 0, MAX_DAYS * DAY_SECONDS):
        return found
    raise argparse.ArgumentTypeError(f"{text!r} is not a span of time {SPAN_EXAMPLES}, at most {MAX_DAYS}d{hint}")


def since(text: str) -> int | datetime:
    """A span before now, in seconds, or an instant."""
    from ...model.new_task import read_instant  # not needed by worker.py

    try:
        instant = read_instant(text)
    except ValueError:
        return span(text, f"; or {AN_INSTANT}")
    return instant if instant.utcoffset() is not None else instant.replace(tzinfo=timezone.utc)


def group_ids(text: str) -> list[int]:
    """Group ids, as 3 or 3,5,6."""
    groups = _numbers(text, whole_number(0, MAX_GROUP_ID), f"{ABOUT_GROUPS}, from 0 to {MAX_GROUP_ID}")
    if len(groups) > MAX_GROUPS:
        raise argparse.ArgumentTypeError(f"it names {len(groups)} groups; at most {MAX_GROUPS} are allowed")
    return groups


def task_ids(text: str) -> list[int]:
    """Ids of tasks, such as 17,18."""
    return _numbers(
        text, whole_number(1, MAX_ID), f"write ids, each from 1 to {MAX_ID}, with commas and no spaces, such as 17,18"
    )


def _numbers(text: str, parse: Callable[[str], int], allowed: str) -> list[int]:
    try:
        return [parse(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not right: {allowed}") from None


def read_args(text: str) -> Any:
    """The value of ARGS_JSON. Raises InvalidTask."""
    example = f"allowed: a JSON object or array in single quotes, such as {EXAMPLE}"
    try:
        args = parse_json(text, "ARGS_JSON")
    except BadTask as error:
        raise InvalidTask(f"{error}; {example}") from None
    if args is not None and not isinstance(args, (dict, list)):
        raise InvalidTask(f"ARGS_JSON is {describe_bare(args)}; {example}")
    return args


# ---- arguments of several commands

_ID = {"metavar": "ID", "type": whole_number(0, MAX_ID), "help": f"a task's id, as {CLIENT} list shows it"}
SHARED: dict[str, dict[str, Any]] = {
    "id": _ID,
    "ids": _ID | {"nargs": "*", "default": []},  # without a default, argparse calls the argument required
    "task": {"metavar": "TASK", "help": "the function to call, such as tasks.send_letter"},
    "args": {"metavar": "ARGS_JSON", "nargs": "?", "help": f"its arguments, such as {EXAMPLE}"},
    "groups": {"metavar": "GROUP", "nargs": "?", "type": group_ids, "help": "a group's number, or several such as 3,5"},
    "--group": {
        "dest": "groups",
        "metavar": "G",
        "action": "extend",
        "type": group_ids,
        "default": [],
        "help": "only tasks of this group, or of several such as 3,5,6",
    },
    "--task": {"metavar": "TASK", "help": "only tasks of this name, such as tasks.send_letter"},
    "--error": {"metavar": "TEXT", "help": "only tasks whose error starts with TEXT"},
    "--since": {"metavar": "WHEN", "type": since},
    "--limit": {
        "metavar": "N",
        "type": whole_number(1, MAX_SIGNED),
        "default": 20,
        "help": "show at most N; default %(default)s",
    },
    "--json": {"action": "store_true", "help": "print JSON only"},
    "--dry-run": {"action": "store_true", "help": "only show what would be changed"},
}


def add(parser: Any, *names: str, **changes: Any) -> None:
    """Add shared arguments to a parser, with some properties changed."""
    for name in names:
        parser.add_argument(name, **SHARED[name] | changes)
        if name in ("--group", "groups"):
            parser.about_more = ABOUT_GROUPS


def add_order(parser: Any) -> None:
    """Add the options for a new task's group and priority."""
    parser.add_argument("--group", metavar="G", type=whole_number(0, MAX_GROUP_ID), help="its group; default 0")
    parser.add_argument(
        "--priority", metavar="P", type=whole_number(MIN_PRIORITY, MAX_PRIORITY), help="smaller runs sooner; default 0"
    )
