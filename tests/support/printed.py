"""What client.py prints, for programs and for people; what its doctor says; and the parsers of both programs."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from taskserver import TaskServer
from taskserver.cli import client
from taskserver.cli.terminal import arguments as usage
from taskserver.cli.worker_options import read_options
from taskserver.health.accepted import accept
from taskserver.host.files import make_private_folder
from taskserver.messages.finding import Finding
from taskserver.stores import facts
from tests.support.queues import Queue

HOSTILE = "\x1b[2J\x1b]0;title\x07\r\n\x9b31m\u202e\u2028 'end' \\x1b ü🎉"


def json_of(queue: Queue, *args: object) -> Any:
    """What a reading command prints with --json, which must be JSON alone."""
    output, errors = _client(queue, *args, "--json")
    assert errors == ""
    assert output.isascii()
    return json.loads(output)


def text_of(queue: Queue, *args: object) -> str:
    """What a command prints for a person: never a character that a terminal would obey."""
    both = "".join(_client(queue, *args))
    assert not [character for character in both if not character.isprintable() and character != "\n"]
    return both


def _client(queue: Queue, *args: object) -> tuple[str, str]:
    ended = queue.here(*args)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


HEALTH = {"ok": 0, "warning": 1, "critical": 2}
ACCEPTED_HERE = {"durability"}
"""The tests' PostgreSQL is quick rather than safe."""


class Report:
    """What `client.py doctor --json` said."""

    def __init__(self, queue: Queue, by_process: bool = False, **env: str) -> None:
        """By a process of its own where its rights or its imports matter."""
        self._spared = ACCEPTED_HERE if queue.is_postgresql else set()
        ended = (queue.client if by_process else queue.here)("doctor", "--json", env=env)
        assert ended.stderr == ""
        said = json.loads(ended.stdout)
        self.code = ended.returncode
        self.checks: dict[str, dict[str, str]] = {finding["name"]: finding for finding in said["findings"]}
        assert len(self.checks) == len(said["findings"])
        assert HEALTH[said["level"]] == self.code

    def worse(self) -> dict[str, str]:
        """The level of each check that is not well, but for those that are a server's of the tests."""
        levels = {name: check["level"] for name, check in self.checks.items() if name not in self._spared}
        return {name: level for name, level in levels.items() if level not in ("ok", "unknown")}

    def told(self, check: str) -> str:
        """All that it says of a check."""
        return " | ".join(self.checks[check].values())


def examined(server: TaskServer) -> dict[str, Finding]:
    """What the doctor finds of the database and its tables, by check."""
    settings = server.settings
    asked = facts.Asked(server.store.database, settings.dsn, settings.mode)
    return {one.name: one for one in facts.examine(asked)}


def made_healthy(queue: Queue) -> Queue:
    """The queue, whose worker ran; what is wrong with a server of the tests' is accepted."""
    queue.run_quietly()
    make_private_folder(queue.folder / "var")  # as worker.py does
    if queue.is_postgresql:
        for name in ACCEPTED_HERE:
            accept(queue.server.store, name, "a server for tests")
    return queue


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
