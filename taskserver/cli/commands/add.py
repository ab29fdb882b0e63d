"""client.py add: one task from the command line, or many from a file of JSON lines."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import nullcontext, suppress
from typing import Any

from ...errors import BadTask, DatabaseError, InvalidTask, SettingError
from ...health.judge import describe_unserved
from ...messages.programs import CLIENT
from ...messages.text import count_of, nearest
from ...model.arguments import parse_json, read_item
from ...model.new_task import MAX_VERSION, TASK_KEYS, NewTask, new_task, new_task_from
from ...model.pipeline import read_stages
from ...model.source import why_doubtful
from ...model.task import MAX_ATTEMPTS, Status
from ...server import TaskServer
from ...settings.load import Settings
from ..terminal import arguments
from ..terminal.arguments import QUOTING, read_args, seconds, task_ids, whole_number
from ..terminal.output import note

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Arguments of 1 MiB take several MiB as JSON text with every character escaped."""
MAX_NAMES, MAX_WARNINGS = 100, 5
"""Names of a file that are looked for in the modules, and those that get a line."""
NOT_FOUND = f"a worker that does not find it either makes the task fatal ({CLIENT} retry ID --as NAME renames it)"
_OPTIONS = {"group_id": "group", "unique_key": "unique"}
"""The options of keys that have another name."""
_Callables = dict[tuple[str, int], Any]
"""The names of the functions to call, each with its group: the JSON text of its arguments, or ... if not known yet."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("add", description="add one task and print its id, or many from JSON lines")
    arguments.add(parser, "task", nargs="?")
    arguments.add(parser, "args")
    arguments.add_order(parser)
    parser.add_argument(
        "--delay",
        metavar="S",
        type=seconds(or_zero=True),
        help="run it S seconds from now, or later; also as 5m, 1h, 2d",
    )
    parser.add_argument(
        "--at", metavar="INSTANT", help="run it at this time, or later: 2026-01-31T12:00:00+01:00; Z is UTC"
    )
    parser.add_argument(
        "--max-attempts", metavar="N", type=whole_number(1, MAX_ATTEMPTS), help="give up after N attempts"
    )
    parser.add_argument("--unique", metavar="KEY", help="if a task with this key exists, add nothing and print its id")
    parser.add_argument("--rerun", action="store_true", default=None, help="with --unique: run that task again")
    parser.add_argument(
        "--version",
        metavar="N",
        type=whole_number(0, MAX_VERSION),
        help="with --rerun: change nothing if the task has this version or a newer one",
    )
    parser.add_argument(
        "--then",
        metavar="TASK",
        dest="following",
        action="append",
        type=_stage,
        help="then run this TASK with what the one before returned (a pipeline); may be repeated; also a JSON object "
        "with task, group_id, priority, max_attempts",
    )
    parser.add_argument(
        "--depends-on",
        metavar="ID,ID",
        action="extend",
        type=task_ids,
        help="start it when all of these are done; may be repeated",
    )
    parser.add_argument(
        "--bulk",
        metavar="FILE",
        help=f"add the tasks of FILE (-: of standard input), all or none; each line is a JSON object with "
        f"{', '.join(TASK_KEYS)}",
    )
    parser.set_defaults(run=run)
    parser.about_more = QUOTING


def run(server: TaskServer, options: argparse.Namespace) -> None:
    one_task = {key: getattr(options, _OPTIONS.get(key, key), None) for key in TASK_KEYS}
    if options.following is not None:
        one_task |= {"task": None, "stages": [*filter(None, [options.task]), *options.following]}
    given = {key: value for key, value in one_task.items() if value is not None}
    if options.bulk is not None and given:
        raise InvalidTask("--bulk takes everything from its file: give it alone")
    if options.bulk is None and options.task is None:
        raise InvalidTask("name a TASK, or --bulk FILE")
    try:
        found = _add_one(server, given) if options.bulk is None else _add_lines(server, options.bulk)
    except DatabaseError as error:
        if error.may_have_taken_effect:
            raise DatabaseError(f"{error}; what you gave may be added all the same: look first") from error
        raise
    warn_of_names(server.settings, {name: args for (name, _), args in found.items()})
    warn_of_groups(server, {group for _, group in found})


def _add_one(server: TaskServer, given: dict[str, Any]) -> _Callables:
    if "args" in given:
        given["args"] = read_args(given["args"])
    found = _callables_of(new_task(**given))
    task_id = server.add_pipeline(**given) if "stages" in given else server.add_task(**given)
    print(task_id)
    if "unique_key" in given:
        with suppress(DatabaseError):  # it is added, though this account may not read it
            if (state := server.get(task_id)) and state.status == Status.DONE:
                note(f"{CLIENT}: warning: task {task_id} is done and holds this key, so nothing runs; see --rerun")
    return found


def _add_lines(server: TaskServer, name: str) -> _Callables:
    tasks = _Tasks(_lines(name))
    count = len(server.store.producing.add_many(tasks, lambda number: f"line {tasks.line_of(number)}"))
    or_there = f", or there already: {tasks.keyed} have a unique_key" if tasks.keyed else ""
    print(f"{count_of(count, 'task')} added{or_there}")
    return tasks.found


# ---- JSON lines


class _Tasks:
    """The tasks of JSON lines, read once."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self._empty_lines: list[int] = []
        self.found: _Callables = {}
        """Of the first ones."""
        self.keyed = 0
        """How many of these tasks have a unique_key."""

    def line_of(self, number: int) -> int:
        """The line of the task with this number, counted from 1; empty lines hold no task."""
        for line in self._empty_lines:
            number += line <= number
        return number

    def __iter__(self) -> Iterator[NewTask]:
        for number, line in enumerate(self._lines, start=1):
            if not line.strip():
                self._empty_lines.append(number)
                continue
            try:
                task = _task_of(line)
            except InvalidTask as error:
                raise InvalidTask(f"line {number}: {error}; nothing was added") from None
            self.keyed += task.unique_key is not None
            if len(self.found) < MAX_NAMES:
                self.found |= _callables_of(task)
            yield task


def _lines(name: str) -> Iterator[bytes]:
    try:
        with nullcontext(sys.stdin.buffer) if name == "-" else open(name, "rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
    except OSError as error:
        raise SettingError(f"{name} cannot be read: {error.strerror}") from None


def _task_of(line: bytes) -> NewTask:
    if len(line) >= MAX_LINE_BYTES:
        raise InvalidTask(f"it is longer than {MAX_LINE_BYTES} bytes")
    try:
        return new_task_from(parse_json(line.decode("utf-8-sig"), "it"))
    except UnicodeDecodeError:
        raise InvalidTask("it is not UTF-8 text") from None
    except BadTask as error:
        raise InvalidTask(str(error)) from None


def _stage(text: str) -> Any:
    """An argument's type: a callable's name, or a JSON object that describes a stage."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return parse_json(text, "it")
    except BadTask as error:
        raise argparse.ArgumentTypeError(str(error)) from None


# ---- warnings: the task is added all the same, as it may be meant for another host, or for a later upload


def warn_of_names(settings: Settings, names: Mapping[str, Any]) -> None:
    """Warn of each name that a worker would refuse, by the text of the modules beside the program.

    `names` have the JSON text of the arguments, or ... if they are not known.
    """
    doubts = list(filter(None, (_doubt(settings, name, args) for name, args in names.items())))
    for words in doubts[:MAX_WARNINGS]:
        note(f"{CLIENT}: warning: {words}")
    if len(doubts) > MAX_WARNINGS:
        note(f"{CLIENT}: warning: and {len(doubts) - MAX_WARNINGS} more names like these")


def warn_of_groups(server: TaskServer, groups: Collection[int]) -> None:
    """Warn if no recent run serves one of these groups."""
    try:
        words = describe_unserved(groups, server.store.views.runs())
    except DatabaseError:  # a producer's account may not be allowed to read them
        return
    if words:
        note(f"{CLIENT}: warning: {words}; have a crontab line name it, or no groups")


def _callables_of(task: NewTask) -> _Callables:
    stages = read_stages(task.stages)
    found: _Callables = {(one.task, one.group_id or 0): ... for one in stages}
    return found | {(task.task, task.group_id): task.args}


def _doubt(settings: Settings, name: str, args: Any) -> str:
    """What a worker would refuse, in words; empty if nothing, or if no listed module lies beside the program."""
    *outer, last = re.split("[.:]", name)
    sources = {module: _source(settings, module) for module in (".".join(outer), ".".join(outer[:-1]))}
    found = [(module, text) for module, text in sources.items() if text]
    if not found:
        beside = [module for module in settings.modules if _source(settings, module)]
        if not beside:
            return ""
        meant = _hint(name, [f"{module}.{last}" for module in beside])
        return f"{name!r} is in none of TASKSERVER_MODULES ({', '.join(beside)}); {NOT_FOUND}{meant}"
    code = "\n".join(text.decode("utf-8", "replace") for _, text in found)
    defined = re.findall(r"^[ \t]*(?:async[ \t]+)?def (\w+)", code, re.M)
    module, text = found[0]
    if last not in defined:
        return f"{name!r}: module {module} has no function {last!r}; {NOT_FOUND}{_hint(last, defined)}"
    if module != ".".join(outer):  # a method
        return ""
    doubt = why_doubtful(text, name, None if args is ... else read_item(args), checks_arguments=args is not ...)
    return doubt and f"{doubt}; as it is, a worker makes the task fatal"


def _hint(name: str, names: Iterable[str]) -> str:
    meant = nearest(name, names)
    return f"; did you mean {meant!r}?" if meant else ""


def _source(settings: Settings, module: str) -> bytes:
    """The text of a listed module beside the program; empty if it is not listed, or not there."""
    # shop.jobs.* lists shop.jobs, and all below it.
    below = (one[:-1] for one in settings.modules if one.endswith(".*"))
    if module not in settings.modules and not any(f"{module}.".startswith(package) for package in below):
        return b""
    path = settings.folder.joinpath(*module.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        try:
            return file.read_bytes()
        except OSError:
            continue
    return b""
