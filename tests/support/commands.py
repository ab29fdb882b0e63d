"""The parsers of worker.py and client.py, as they are made when the programs run."""

from __future__ import annotations

import argparse
from contextlib import suppress
from unittest.mock import patch

from taskserver.cli import client
from taskserver.cli.terminal import arguments as usage
from taskserver.cli.worker_options import read_options


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Those of worker.py, of client.py, and of its commands, by their names."""
    found: list[argparse.ArgumentParser] = []
    with patch.object(usage.Parser, "parse_args", lambda parser, *args: found.append(parser)), suppress(TypeError):
        read_options(["--verbose"])
    return {"worker.py": found[0], **parsers_of_client()}


def parsers_of_client() -> dict[str, argparse.ArgumentParser]:
    subparsers = usage.Parser(prog="client.py").add_subparsers(parser_class=usage.Parser)
    for add_parser in client.COMMANDS:
        add_parser(subparsers)
    return dict(subparsers.choices)


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.dest != "help" and action.help != argparse.SUPPRESS]
