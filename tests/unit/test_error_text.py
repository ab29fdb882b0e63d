"""The text of a failed task: the frames of the site's own code come before those of libraries."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskserver.messages.error_text import describe_failure
from taskserver.messages.text import MAX_ERROR_LENGTH


def raised_by(function: Callable[..., object], *args: object) -> str:
    with pytest.raises(BaseException) as caught:
        function(*args)
    error = caught.value
    assert error.__traceback__ is not None
    return describe_failure(error.with_traceback(error.__traceback__.tb_next))  # from the function on


def made(folder: Path, name: str, code: str) -> dict[str, Any]:
    """The names that a module of this code in this folder would have."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.py"
    file.write_text(code)
    found: dict[str, Any] = {}
    exec(compile(code, file, "exec"), found)
    return found


@pytest.fixture
def library(tmp_path: Path) -> Callable[..., object]:
    """A function whose 40 frames are each of another text."""
    code = "def f0(last):\n    return last()\n"
    code += "".join(f"def f{n}(last):\n    return f{n - 1}(last)\n" for n in range(1, 40))
    found: Callable[..., object] = made(tmp_path / "venv" / "lib" / "site-packages" / "lib", "lib", code)["f39"]
    return found


def test_the_sites_own_functions_are_named_though_libraries_have_many_frames(
    tmp_path: Path, library: Callable[..., object]
) -> None:
    code = "def send(library):\n    return library(connect)\ndef connect():\n    raise ValueError('no luck')\n"
    send = made(tmp_path / "site", "tasks", code)["send"]
    text = raised_by(send, library)
    first, *frames = text.split("\n")
    assert first == "ValueError: no luck"
    places = [line for line in frames if line.startswith("  File ")]
    assert places[0] == f'  File "{tmp_path}/site/tasks.py", line 2, in send'
    assert places[-1] == f'  File "{tmp_path}/site/tasks.py", line 4, in connect'
    assert "    raise ValueError('no luck')" in frames
    assert all("/site-packages/" in place for place in places[1:-1])  # the rest of the room
    assert re.fullmatch(r".*, in f\d", places[1])
    assert 800 < len(text) <= MAX_ERROR_LENGTH


def test_a_task_of_an_installed_module_is_named_too(tmp_path: Path, library: Callable[..., object]) -> None:
    code = "def send(library):\n    return library(lambda: 1 / 0)\n"
    send = made(tmp_path / "site-packages" / "shop", "tasks", code)["send"]
    assert '/shop/tasks.py", line 2, in send\n' in raised_by(send, library)


def test_a_recursion_is_there_once_with_what_led_to_it(tmp_path: Path) -> None:
    code = "def begin():\n    again()\ndef again():\n    again()\n"
    text = raised_by(made(tmp_path / "site", "tasks", code)["begin"])
    assert re.findall(r"line (\d), in (\w+)", text) == [("2", "begin"), ("4", "again")]


@pytest.mark.parametrize("length", [10, 450, 5000])
def test_a_long_line_or_message_leaves_the_place_of_the_function(tmp_path: Path, length: int) -> None:
    code = f"def send(length):\n    raise ValueError('x' * length) #{'y' * 900}\n"
    text = raised_by(made(tmp_path / "site", "tasks", code)["send"], length)
    assert text.startswith("ValueError: xxx")
    assert text.endswith('tasks.py", line 2, in send')
    assert len(text) <= MAX_ERROR_LENGTH
