"""Text in rows: arguments, results, progress and errors, written and read."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from datetime import datetime, timezone
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any, NoReturn

import pytest

from taskserver import InvalidTask, Progress, SettingError, TaskState
from taskserver.errors import BadTask, Fatal, Retry
from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.stop import Stop
from taskserver.messages.error_text import describe, describe_failure
from taskserver.messages.import_errors import raised_at, why_not_imported
from taskserver.messages.text import MAX_ERROR_LENGTH
from taskserver.model.arguments import MAX_ARGS_BYTES, read_arguments, write_arguments
from taskserver.model.pipeline import MAX_STAGES_BYTES
from taskserver.model.results import (
    MAX_RESULT_BYTES,
    read_progress,
    read_result,
    task_state,
    write_progress,
    write_result,
)
from taskserver.model.task import ClaimedTask
from taskserver.worker.call import run_call, run_user_code
from taskserver.worker.callables import Callables
from taskserver.worker.preparing import fetch_texts, prepare

MakeTasks = Callable[[str], Any]

# ---- reading


def test_objects_become_keyword_arguments_and_arrays_positional_ones() -> None:
    for nothing in (None, "null", "{}", "[]"):
        assert read_arguments(nothing) == ([], {})
    assert read_arguments(' {"to": "a", "to": "b"} \n') == ([], {"to": "b"})  # the last, as for PHP and MySQL
    assert read_arguments('[1, "\\ud800", null, true, 4.5]') == ([1, "\ud800", None, True, 4.5], {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('"text"', "a bare string"),
        ("", "args is empty, as PHP's json_encode() returns when it fails: use JSON_THROW_ON_ERROR"),
        ('"{}"', "encoded twice"),
        *((text, "not valid JSON") for text in ("{'a': 1}", "\ufeff[]", "a:0:{}")),  # the last by PHP's serialize()
        ("[" + "9" * 5000 + "]", "not valid JSON"),
        ("[NaN]", "NaN is not a JSON number"),
        ("[1e400]", "the number 1e400 is too large"),
        ('["\udce9"]', "not UTF-8"),
        ("[" * 200_000, "nested too deep"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_arguments_that_are_not_a_json_object_or_array_make_a_bad_task(text: str, words: str) -> None:
    with pytest.raises(BadTask) as caught:
        read_arguments(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_arguments_are_read_up_to_the_limit() -> None:
    text = '["' + "x" * (MAX_ARGS_BYTES - 4) + '"]'
    assert read_arguments(text) == (["x" * (MAX_ARGS_BYTES - 4)], {})
    with pytest.raises(BadTask, match=f"args is {MAX_ARGS_BYTES + 1} bytes long; allowed: {MAX_ARGS_BYTES}"):
        read_arguments(text + " ")


# ---- writing


def test_arguments_are_written_as_short_ascii() -> None:
    assert (write_arguments(None), write_arguments({}), write_arguments(())) == (None, "{}", "[]")
    assert write_arguments({"to": "zoë\0\n\u2028", "n": (1, 2)}) == '{"to":"zo\\u00eb\\u0000\\n\\u2028","n":[1,2]}'


NOON = datetime(2030, 1, 31, 12, tzinfo=timezone.utc)
NESTED = reduce(lambda inner, _: [inner], range(100_000), list[Any]())
NO_ARGUMENTS = "allowed: a dict, a list, a tuple or None; a single value stands in a list, such as [1]"
WRITTEN: list[tuple[Any, str]] = [
    *((value, f"args is {value!r}; {NO_ARGUMENTS}") for value in ("text", 0)),
    ("x" * 10_000_000, "args is 'xxxxx"),
    ({1: "x"}, "args has keys that are not text"),
    ({"order": {"at": NOON}}, "args['order']['at'] is of type datetime, which JSON cannot hold: write str(x), x.iso"),
    ({"n": [math.nan]}, "args['n'][0] is nan, which is not a JSON number"),
    ({"by": {NOON.date(): 1}}, "a key of args['by'] is of type date; allowed: str"),
    ({"x" * 100: {1}}, "args['xxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxxxxx…] is of type set"),
    ([10**5000], "args cannot be written as JSON: Exceeds the limit"),
    (["\ud800"], "args cannot be written as JSON: 'utf-8' codec can't encode"),
    (NESTED, "args is nested too deep"),
]


@pytest.mark.parametrize(("args", "words"), WRITTEN, ids=[words[:30] for _, words in WRITTEN])
def test_the_error_names_the_place_and_type_that_json_cannot_hold(args: Any, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        write_arguments(args)
    message = str(caught.value)
    assert message.startswith(words)
    assert len(message) < 300
    message.encode()


def test_arguments_are_written_up_to_the_limit() -> None:
    letters = "é" * ((MAX_ARGS_BYTES - 4) // 6)  # six bytes each
    assert write_arguments([letters])
    with pytest.raises(InvalidTask, match=f"args takes .* bytes as JSON; allowed: {MAX_ARGS_BYTES}"):
        write_arguments([letters + "é"])


# ---- from the row to the call


def row(args: str | None, args_bytes: int | None = None) -> ClaimedTask:
    return ClaimedTask(1, "tasks.send", args, args_bytes, attempts=0, max_attempts=None, claim=7)


def never(task: ClaimedTask) -> NoReturn:
    raise AssertionError("arguments were fetched that must not be")


def test_long_arguments_are_fetched_and_too_long_ones_are_not(make_tasks: MakeTasks) -> None:
    args = '["' + "x" * 100_000 + '"]'
    assert fetch_texts(row(None, len(args)), lambda task: task._replace(args=args)).args == args
    with pytest.raises(BadTask, match=f"args is {MAX_ARGS_BYTES + 1} bytes long"):
        fetch_texts(row(None, MAX_ARGS_BYTES + 1), never)
    with pytest.raises(BadTask, match=f"stages is longer than {MAX_STAGES_BYTES} bytes"):
        fetch_texts(row("[]")._replace(stages_bytes=MAX_STAGES_BYTES + 1), never)
    make_tasks("def send(): pass\n")
    with pytest.raises(BadTask, match="args is empty"):
        prepare(fetch_texts(row("", 0), never), Callables(("tasks",)))


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_a_function_that_returns_a_coroutine_has_failed(make_tasks: MakeTasks) -> None:
    make_tasks("async def fetch(): pass\ndef send(): return fetch()\n")
    call = prepare(row(None), Callables(("tasks",)))
    with Alarm(Stop(), again_after_seconds=1.0) as limit:
        failure, _ = run_user_code(limit, 0, run_call, call)
    assert failure is not None


# ---- results


def test_results_are_written_as_json_and_read_back() -> None:
    written: list[tuple[Any, str]] = [
        *((False, "false"), ((1, (2,)), "[1,[2]]"), ({1: "ö", None: "b"}, '{"1":"\\u00f6","null":"b"}')),
        ("é" * 10922, '"' + "\\u00e9" * 10922 + '"'),
    ]
    for value, text in written:
        assert write_result(value) == text
        assert read_result(text) == json.loads(text)


def test_an_invalid_result_is_refused_in_one_sentence() -> None:
    for value, words in (
        ({"seen": math.nan}, "what it returned['seen'] is nan, which is not a JSON number"),
        ("é" * 10922 + "xxx", f"takes {MAX_RESULT_BYTES + 1} bytes as JSON; allowed: {MAX_RESULT_BYTES}"),
    ):
        with pytest.raises(InvalidTask, match=re.escape(words)):
            write_result(value)


def test_invalid_json_is_no_result() -> None:
    for text in ('{"a": [1', "NaN", "[1e999]", "1" * 5000, "[" * 60_000, b"{}", None):
        assert read_result(text) is None


def test_only_done_rows_have_a_result() -> None:
    for status in (1, 2, 4, 99):
        state = task_state((7, "tasks.give", status, 1, "[1]", None, '{"done": 3}'))
        assert state == TaskState(7, "tasks.give", status, 1, [1] if status == 2 else None, None, Progress(3))
        assert state.is_over is (status in (2, 4))


# ---- progress


def test_progress_takes_any_kind_of_number() -> None:
    for value in (Decimal("2.5"), 2**53):  # those of numpy are no int and no float, either
        assert json.loads(write_progress(value, value, None)) == {"done": value, "total": value}


@pytest.mark.parametrize(
    "value", [-1, math.nan, True, "7", 2**53 + 1, 10**5000, 1j], ids=lambda value: type(value).__name__
)
def test_invalid_progress_is_refused_by_argument(value: Any) -> None:
    with pytest.raises(SettingError, match=r"^progress: done is .*; allowed: a number from 0 to 2\^53$"):
        write_progress(value, None, None)
    with pytest.raises(SettingError, match=r"^progress: total is .*; allowed: a number from 0 to 2\^53$"):
        write_progress(1, value, None)


def test_the_text_of_a_progress_is_cut_to_fit_the_row() -> None:
    assert json.loads(write_progress(1, None, "\ud800" + "ü" * 300)) == {"done": 1, "text": "?" + "ü" * 199}
    with pytest.raises(SettingError, match="text is 5; allowed: a text"):
        write_progress(1, 2, 5)


def test_invalid_progress_in_a_row_counts_as_none() -> None:
    for text in ("no JSON", "[1, 2]", '{"done": "1"}', '{"total": 3}', '{"done": 1e400}', '{"done": true}', b"{}"):
        assert read_progress(text) is None


def test_a_progress_with_a_total_has_a_fraction() -> None:
    fractions = {Progress(1, 4): 0.25, Progress(9, 3): 1.0, Progress(1): None, Progress(1, 0): None}
    assert {told: told.fraction for told in fractions} == fractions
    said = {
        Progress(1, 3, "reading"): "1 of 3 (33 %): reading",
        Progress(2.5): "2.5",
        Progress(999, 1000): "999 of 1000 (99 %)",
    }
    assert {told: str(told) for told in said} == said


# ---- the text of a failed task, and of a module that cannot be imported: the site's own code comes first


def test_an_error_is_shown_as_type_and_message() -> None:
    assert describe(KeyError("x")) == "KeyError: 'x'"
    assert describe(ValueError("a\0b\ud800")) == "ValueError: a\\0b\\ud800"


def test_a_retry_without_a_message_shows_its_cause() -> None:
    refused = "ConnectionRefusedError: nobody listens"
    texts = {Retry(): f"Retry: {refused}", Retry("later"): "Retry: later", Fatal(): f"Fatal: {refused}"}
    for error, text in texts.items():
        error.__cause__ = ConnectionRefusedError("nobody listens")
        assert describe(error) == text


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def test_an_error_that_fails_to_print_itself_still_has_a_text() -> None:
    try:
        assert describe(Mute()).startswith("Mute: ")
    except BaseException as error:  # KeyboardInterrupt would end the whole test run
        pytest.fail(f"describe raised {type(error).__name__}")


def test_any_message_fits_into_any_database() -> None:
    for character in "x😀\0\ud800\n":
        text = describe(ValueError(character * 100_000))
        text.encode()
        assert "\0" not in text
        assert len(text) == MAX_ERROR_LENGTH
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


def test_the_sites_own_frames_are_shown_before_those_of_libraries(tmp_path: Path) -> None:
    frames_40 = "def f0(last):\n    return last()\n"  # each of another text
    frames_40 += "".join(f"def f{n}(last):\n    return f{n - 1}(last)\n" for n in range(1, 40))
    library = made(tmp_path / "venv" / "lib" / "site-packages" / "lib", "lib", frames_40)["f39"]
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


def test_a_long_line_or_message_does_not_hide_the_place(tmp_path: Path) -> None:
    code = f"def send():\n    raise ValueError('x' * 5000) #{'y' * 900}\n"
    text = raised_by(made(tmp_path / "site", "tasks", code)["send"])
    assert text.startswith("ValueError: xxx")
    assert text.endswith('tasks.py", line 2, in send')
    assert len(text) <= MAX_ERROR_LENGTH


def error_of(code: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:
        code()
    return caught.value


def test_the_place_of_an_import_error_is_the_line_in_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "lib" / "site-packages" / "broken_package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("\n\nraise OSError('gone')\n")
    monkeypatch.syspath_prepend(package.parent)
    code = compile("\nimport broken_package\n", str(tmp_path / "own.py"), "exec")
    for imports, place in (
        (lambda: exec(code, {}), "own.py, line 2"),
        (lambda: __import__("broken_package"), "broken_package/__init__.py, line 3"),
    ):
        error = error_of(imports)
        error.__traceback__ = error.__traceback__.tb_next.tb_next  # type: ignore[union-attr]  # without this file's frames
        assert raised_at(error) == f" ({place})"


def before_apps_are_ready() -> object:
    from django.apps import apps

    apps.check_apps_ready()
    return apps


def test_an_error_of_unprepared_django_names_the_setting_that_fixes_it() -> None:
    words = why_not_imported("shop.tasks", error_of(before_apps_are_ready), None)
    assert words.endswith(": name a function that calls django.setup() in TASKSERVER_SETUP (docs/django.md)")
