"""The text of a failed task, and the words for a module that cannot be imported: the site's own code comes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskserver.errors import Fatal, Retry
from taskserver.messages.error_text import describe, describe_failure
from taskserver.messages.import_errors import raised_at, why_not_imported
from taskserver.messages.text import MAX_ERROR_LENGTH

# ---- what an error says of itself


class _Message(Exception):
    def __init__(self, show: Callable[[], Any]) -> None:
        self.show = show

    def __str__(self) -> str:
        return self.show()  # type: ignore[no-any-return]


def _raise(error: BaseException) -> NoReturn:
    raise error


def test_an_error_is_its_type_and_message() -> None:
    texts = {
        KeyError("x"): "KeyError: 'x'",
        ValueError("a\0b"): "ValueError: a\\0b",
        ValueError("a\ud800b"): "ValueError: a\\ud800b",
        UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "bad"): "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9",
    }
    for error, text in texts.items():
        assert describe(error).startswith(text)


REFUSED = "ConnectionRefusedError: nobody listens"


@pytest.mark.parametrize(
    ("error", "how", "text"),
    [
        (Retry(delay=60), "from", f"Retry: {REFUSED}"),
        (Retry(delay=60), "from None", "Retry: "),
        (Retry("later", delay=60), "from", "Retry: later"),
        (Fatal(), "from", f"Fatal: {REFUSED}"),
    ],
)
def test_a_retry_that_says_nothing_has_the_words_of_its_cause(error: Exception, how: str, text: str) -> None:
    refused = ConnectionRefusedError("nobody listens")
    error.__context__, error.__suppress_context__ = refused, how != "while"
    if how == "from":
        error.__cause__ = refused
    assert describe(error) == text


@pytest.mark.parametrize(
    "show",
    [
        *(lambda error=error: _raise(error) for error in (RuntimeError("no"), SystemExit(3), KeyboardInterrupt())),
        *(lambda: 5, lambda: b"bytes"),
    ],
)
def test_an_error_that_cannot_say_what_it_is_still_leaves_a_text(show: Callable[[], Any]) -> None:
    asked_for = Retry()
    asked_for.__cause__ = _Message(show)
    try:
        texts = [describe(_Message(show)), describe(asked_for)]
    except BaseException as error:  # KeyboardInterrupt and SystemExit would end the whole test run
        pytest.fail(f"describe raised {type(error).__name__}")
    assert texts[1].startswith("Retry: ")
    assert ": " in texts[0]
    "".join(texts).encode()


@settings(max_examples=50)
@given(st.text() | st.sampled_from("xé😀\0\ud800\n").map(lambda character: character * 100_000))
def test_any_message_fits_into_any_database(message: str) -> None:
    text = describe(ValueError(message))
    text.encode()
    assert "\0" not in text
    assert len(text) == MAX_ERROR_LENGTH or len(message) < MAX_ERROR_LENGTH
    assert len(text) <= MAX_ERROR_LENGTH
    assert len(describe(type("E" * 5000, (Exception,), {})("x"))) == MAX_ERROR_LENGTH


# ---- its frames


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
    text = raised_by(made(tmp_path / "site", "tasks", code)["send"], library)
    first, *frames = text.split("\n")
    assert first == "ValueError: no luck"
    places = [line for line in frames if line.startswith("  File ")]
    assert places[0] == f'  File "{tmp_path}/site/tasks.py", line 2, in send'
    assert places[-1] == f'  File "{tmp_path}/site/tasks.py", line 4, in connect'
    assert "    raise ValueError('no luck')" in frames
    assert all("/site-packages/" in place for place in places[1:-1])  # the rest of the room
    assert 800 < len(text) <= MAX_ERROR_LENGTH
    installed = made(tmp_path / "site-packages" / "shop", "tasks", code)["send"]
    assert '/shop/tasks.py", line 2, in send\n' in raised_by(installed, library)


@pytest.mark.parametrize("length", [10, 450, 5000])
def test_a_long_line_or_message_leaves_the_place_of_the_function(tmp_path: Path, length: int) -> None:
    code = f"def send(length):\n    raise ValueError('x' * length) #{'y' * 900}\n"
    text = raised_by(made(tmp_path / "site", "tasks", code)["send"], length)
    assert text.startswith("ValueError: xxx")
    assert text.endswith('tasks.py", line 2, in send')
    assert len(text) <= MAX_ERROR_LENGTH


MODULES = {
    "a package's own error": ("\nimport broken_package\n", "own.py, line 2"),
    "a text that the standard library refuses": ("import json\n\njson.loads('{')\n", "own.py, line 3"),
}


def error_of(code: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:
        code()
    return caught.value


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, one of which fails."""
    folder = tmp_path / "lib" / "site-packages"
    (folder / "broken_package").mkdir(parents=True)
    (folder / "broken_package" / "__init__.py").write_text("\n\nraise OSError('gone')\n")
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("what", MODULES)
def test_the_place_of_an_error_is_the_line_of_the_site(tmp_path: Path, what: str) -> None:
    source, place = MODULES[what]
    code = compile(source, str(tmp_path / "own.py"), "exec")
    error = error_of(lambda: exec(code, {}))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]  # without this file's frames
    assert raised_at(error) == f" ({place})"


@pytest.mark.usefixtures("packages")
def test_the_place_in_a_package_has_the_name_of_the_package() -> None:
    error = error_of(lambda: __import__("broken_package"))
    error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]
    assert raised_at(error) == " (broken_package/__init__.py, line 3)"


def without_settings() -> object:
    from django.conf import settings

    return settings.INSTALLED_APPS


def before_apps_are_ready() -> object:
    from django.apps import apps

    apps.check_apps_ready()
    return apps


@pytest.mark.parametrize("code", [without_settings, before_apps_are_ready])
def test_a_django_that_nobody_made_ready_is_told_with_the_setting_that_does(code: Callable[[], object]) -> None:
    words = why_not_imported("shop.tasks", error_of(code), None)
    assert words.endswith(": name a function that calls django.setup() in TASKSERVER_SETUP (docs/django.md)")
