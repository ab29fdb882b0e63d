"""client.py add: one task from the command line, or many from a file of JSON lines."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO

from ...errors import BadTask, DatabaseError, InvalidTask, SettingError
from ...messages.programs import CLIENT
from ...model.arguments import parse_json
from ...model.new_task import MAX_VERSION, TASK_KEYS, NewTask, new_task, new_task_from
from ...model.task import MAX_ATTEMPTS, MAX_ID
from ...server import TaskServer
from ..terminal.arguments import seconds, whole_number
from ..terminal.misnamed import MAX_NAMES, callables_of, warn_of_missing
from ..terminal.task_arguments import QUOTING, describe_order, describe_task, read_args
from ..terminal.unserved import warn_of_unserved

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Arguments of 1 MiB take several MiB as JSON text with every character escaped."""
MISNAMED = f"It was added all the same, and becomes fatal: {CLIENT} retry ID --as NAME has it run under the right one"
_OPTIONS = {"group_id": "group", "unique_key": "unique"}
"""The options of keys that have another name."""
_Callables = dict[tuple[str, int], None]
"""The names of callables that tasks are to run, each with its group, in their order."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("add", help="add one task and print its id, or many from JSON lines")
    describe_task(parser, is_required=False)
    describe_order(parser)
    parser.add_argument(
        "--delay", metavar="S", type=seconds(or_zero=True), help="run it after S seconds at the earliest, or 5m, 1h, 2d"
    )
    parser.add_argument(
        "--at", metavar="INSTANT", help="run it from then on, as 2026-01-31T12:00:00+01:00; Z at the end is UTC"
    )
    parser.add_argument(
        "--max-attempts", metavar="N", type=whole_number(1, MAX_ATTEMPTS), help="starts before it is fatal"
    )
    parser.add_argument("--unique", metavar="KEY", help="add nothing while a task with this key exists; print its id")
    parser.add_argument("--rerun", action="store_true", default=None, help="with --unique: have that task run again")
    parser.add_argument(
        "--version",
        metavar="N",
        type=whole_number(0, MAX_VERSION),
        help="with --rerun: change nothing where the task has this version or a newer one",
    )
    parser.add_argument(
        "--then",
        metavar="TASK",
        dest="following",
        action="append",
        type=_stage,
        help="makes it a pipeline: runs next, with what TASK returned; also as JSON, with group_id, priority, "
        "max_attempts; may be repeated",
    )
    parser.add_argument(
        "--depends-on",
        metavar="ID,ID",
        action="extend",
        type=_task_ids,
        help="start it when all of these are done; may be repeated",
    )
    parser.add_argument(
        "--bulk",
        metavar="FILE",
        help=f"one task a line, a JSON object with {', '.join(TASK_KEYS)}; - reads standard input; all or nothing",
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
    found: _Callables = {}
    try:
        print(_add_one(server, given, found) if options.bulk is None else _add_lines(server, options.bulk, found))
    except DatabaseError as error:
        if error.may_have_taken_effect:
            raise DatabaseError(f"{error}; what you gave may be added all the same: look first") from error
        raise
    warn_of_missing(server.settings, [name for name, _ in found], MISNAMED)
    warn_of_unserved(server, {group for _, group in found})


def _add_one(server: TaskServer, given: dict[str, Any], found: _Callables) -> int:
    """Add a task and return its id; `found` gets its callables."""
    if "args" in given:
        given["args"] = read_args(given["args"])
    found |= dict.fromkeys(callables_of(new_task(**given)))
    return server.add_pipeline(**given) if "stages" in given else server.add_task(**given)


def _add_lines(server: TaskServer, name: str, found: _Callables) -> str:
    """Add the tasks of a file; return the words that say how many. `found` gets their callables."""
    with _open(name) as file:
        tasks = _Tasks(file, found)
        count = len(server.store.producing.add_many(tasks, lambda number: f"line {tasks.line_of(number)}"))
    added_tasks = "1 task added" if count == 1 else f"{count} tasks added"
    return f"{added_tasks}, or there already: {tasks.keyed} have a unique_key" if tasks.keyed else added_tasks


class _Tasks:
    """The tasks of a file of JSON lines, read once."""

    def __init__(self, file: BinaryIO, found: _Callables | None = None) -> None:
        """`found` gets the first callables in it."""
        self._file = file
        self._found = {} if found is None else found
        self._empty_lines: list[int] = []
        self.count = 0
        self.keyed = 0
        """How many of these tasks have a unique_key."""

    def line_of(self, number: int) -> int:
        """The line of the task with this number, counted from 1; empty lines hold no task."""
        for line in self._empty_lines:
            number += line <= number
        return number

    def __iter__(self) -> Iterator[NewTask]:
        for number, line in enumerate(_lines(self._file), start=1):
            if not line.strip():
                self._empty_lines.append(number)
                continue
            try:
                task = _task_of(line)
            except InvalidTask as error:
                raise InvalidTask(f"line {number}: {error}; nothing was added") from None
            self.count += 1
            self.keyed += task.unique_key is not None
            if len(self._found) < MAX_NAMES:
                self._found |= dict.fromkeys(callables_of(task))
            yield task


def _open(name: str) -> AbstractContextManager[BinaryIO]:
    if name == "-":
        return nullcontext(sys.stdin.buffer)
    try:
        return open(name, "rb")
    except OSError as error:
        raise SettingError(f"{name} cannot be read: {error.strerror}") from None


def _lines(file: BinaryIO) -> Iterator[bytes]:
    try:
        while line := file.readline(MAX_LINE_BYTES):
            yield line
    except OSError as error:
        raise SettingError(f"{file.name} cannot be read: {error.strerror}") from None


def _task_of(line: bytes) -> NewTask:
    if len(line) == MAX_LINE_BYTES:
        raise InvalidTask(f"it is longer than {MAX_LINE_BYTES} bytes")
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidTask("it is not UTF-8 text") from None
    return new_task_from(_read_line(text))


def _read_line(text: str) -> Any:
    try:
        return parse_json(text, "it")
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


def _task_ids(text: str) -> list[int]:
    """An argument's type: ids of tasks, as 17,18."""
    parse = whole_number(1, MAX_ID)
    try:
        return [parse(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not right: write ids, each from 1 to {MAX_ID}, with commas and no spaces, as 17,18"
        ) from None
