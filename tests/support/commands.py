"""The parsers of worker.py and client.py, as they are made when the programs run."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from taskserver.cli import client
from taskserver.cli.terminal import arguments as usage
from taskserver.cli.worker_options import read_options


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Those of worker.py, of client.py, and of its commands, by their names."""
    return {"worker.py": _parser_of_worker(), **parsers_of_client()}


def _parser_of_worker() -> argparse.ArgumentParser:
    found: list[argparse.ArgumentParser] = []

    class Caught(Exception):
        """The parser was made."""

    def catch(self: argparse.ArgumentParser, *args: Any) -> None:
        found.append(self)
        raise Caught

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage.Parser, "parse_args", catch)
        with pytest.raises(Caught):
            read_options(["--verbose"])
    return found[0]


def parsers_of_client() -> dict[str, argparse.ArgumentParser]:
    subparsers = usage.Parser(prog="client.py").add_subparsers(parser_class=usage.Parser)
    for add_parser in client.COMMANDS:
        add_parser(subparsers)
    return dict(subparsers.choices)


def arguments_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.dest != "help" and action.help != argparse.SUPPRESS]
