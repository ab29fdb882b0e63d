"""What client.py prints, for programs and for people, inside this process."""

from __future__ import annotations

import json
from typing import Any

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
