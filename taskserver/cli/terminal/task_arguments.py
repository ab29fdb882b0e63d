"""The arguments that describe a task on a command line, shared by `add` and `schedule`."""

from __future__ import annotations

import argparse
from typing import Any

from ...errors import BadTask, InvalidTask
from ...model.arguments import describe_bare, parse_json
from ...model.task import MAX_GROUP_ID, MAX_PRIORITY, MIN_PRIORITY
from .arguments import whole_number

EXAMPLE = """'{"to": "a@example.org"}'"""
QUOTING = f"write ARGS_JSON in single quotes, as {EXAMPLE}"


def describe_task(parser: argparse.ArgumentParser, is_required: bool) -> None:
    """Add the callable and its arguments to a parser."""
    nargs = None if is_required else "?"
    parser.add_argument("task", metavar="TASK", nargs=nargs, help="the callable, as tasks.send_letter")
    parser.add_argument("args", metavar="ARGS_JSON", nargs="?", help=f"its arguments, as {EXAMPLE}")


def describe_order(parser: argparse.ArgumentParser) -> None:
    """Add group and priority to a parser, by which claims choose and order tasks."""
    parser.add_argument("--group", metavar="G", type=whole_number(0, MAX_GROUP_ID), help="default 0")
    parser.add_argument(
        "--priority", metavar="P", type=whole_number(MIN_PRIORITY, MAX_PRIORITY), help="smaller runs sooner; default 0"
    )


def read_args(text: str) -> Any:
    """The value of ARGS_JSON. Raises InvalidTask."""
    example = f"allowed: a JSON object or array in single quotes, as {EXAMPLE}"
    try:
        args = parse_json(text, "ARGS_JSON")
    except BadTask as error:
        raise InvalidTask(f"{error}; {example}") from None
    if args is not None and not isinstance(args, (dict, list)):
        raise InvalidTask(f"ARGS_JSON is {describe_bare(args)}; {example}")
    return args
