"""What client.py prints, for programs and for people, inside this process."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import pytest

from taskserver.cli.client import main
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
    code, output, errors = ended(queue, *args)
    assert code == 0, errors
    return output, errors


def ended(queue: Queue, *args: object, **env: str) -> tuple[int, str, str]:
    """The exit code of a command, and what it prints."""
    output, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(errors):
        for name, value in env.items():
            patch.setenv(name, value)
        code = main(queue.folder, [str(arg) for arg in args])
    return code, output.getvalue(), errors.getvalue()
