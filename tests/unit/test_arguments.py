"""Arguments as JSON: written for a producer, read for a worker; and the last steps before and after a call."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable
from datetime import datetime, timezone
from enum import Enum, IntEnum
from typing import Any, NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskserver.errors import BadTask, InvalidTask
from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.stop import Stop
from taskserver.model.arguments import MAX_ARGS_BYTES, check_size, read_arguments, write_arguments
from taskserver.model.pipeline import MAX_STAGES_BYTES
from taskserver.model.task import ClaimedTask
from taskserver.worker.call import run_call, run_user_code
from taskserver.worker.callables import Callables
from taskserver.worker.preparing import Call, fetch_texts, prepare

MakeTasks = Callable[[str], Any]

# ---- reading


@pytest.mark.parametrize(
    ("text", "args", "kwargs"),
    [
        *((text, [], {}) for text in (None, "null", "{}", "[]")),
        (' {"to": "a@example.org"} \n', [], {"to": "a@example.org"}),
        ('[1, "two", null, true, 4.5]', [1, "two", None, True, 4.5], {}),
        ('{"a": 1, "a": 2}', [], {"a": 2}),  # the last one counts, as for PHP and MySQL
        ('["\\ud800"]', ["\ud800"], {}),
    ],
)
def test_an_object_becomes_keywords_an_array_positions_and_nothing_nothing(
    text: str | None, args: list[Any], kwargs: dict[str, Any]
) -> None:
    assert read_arguments(text) == (args, kwargs)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5", "a bare number"),
        ('"text"', "a bare string"),
        ("", "args is empty, as PHP's json_encode() returns when it fails: use JSON_THROW_ON_ERROR"),
        ('"{}"', "encoded twice"),
        *((text, "not valid JSON") for text in (" ", "[1,]", "{'a': 1}", "[] []", "[１]", '["\n"]', "\ufeff[]")),
        *((text, "not valid JSON") for text in ("[" + "9" * 5000 + "]", "a:0:{}")),  # PHP's serialize()
        ("[NaN]", "NaN is not a JSON number"),
        ('{"a": Infinity}', "Infinity is not a JSON number"),
        ("[1e400]", "the number 1e400 is too large"),
        ('["\udce9"]', "not UTF-8"),
        ("[" * 200_000, "nested too deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deep"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_what_is_no_strict_json_or_neither_object_nor_array_is_a_bad_task(text: str, words: str) -> None:
    with pytest.raises(BadTask) as caught:
        read_arguments(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_bytes_are_allowed_exactly_to_the_limit() -> None:
    text = '["' + "x" * (MAX_ARGS_BYTES - 4) + '"]'
    assert len(text) == MAX_ARGS_BYTES == 1024 * 1024
    assert read_arguments(text) == (["x" * (MAX_ARGS_BYTES - 4)], {})
    with pytest.raises(BadTask, match=f"args is {MAX_ARGS_BYTES + 1} bytes long; allowed: {MAX_ARGS_BYTES}"):
        read_arguments(text + " ")
    check_size(None)
    check_size(MAX_ARGS_BYTES)
    with pytest.raises(BadTask, match="bytes long"):
        check_size(MAX_ARGS_BYTES + 1)


JSON_SCRAPS = st.sampled_from(
    [
        *("[", "]", "{", "}", ",", ":", '"', "\\", "\\u", "d800", "1", "-", "e9", "e999", ".", "0", " ", "\n"),
        *("\ufeff", "null", "true", "NaN", "Infinity", "-Infinity", '"a":', "[[", "]]", "é", "\0", "\ud800"),
        "9" * 500,
    ]
)


@settings(max_examples=100)
@given(st.lists(JSON_SCRAPS, max_size=40).map("".join) | st.text())
@example("[" * 501)
@example("\udfff")
def test_no_text_raises_anything_but_a_bad_task(text: str) -> None:
    with contextlib.suppress(BadTask):
        args, kwargs = read_arguments(text)
        assert not any(isinstance(value, float) and not math.isfinite(value) for value in [*args, *kwargs.values()])


# ---- writing

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.lists(VALUES, max_size=3) | st.dictionaries(TEXTS, VALUES, max_size=3))
def test_what_is_written_comes_back_and_is_plain_json_for_any_other_language(args: Any) -> None:
    text = write_arguments(args)
    assert text is not None
    assert text.isascii()
    assert json.loads(text) == args
    assert read_arguments(text) == (([], args) if isinstance(args, dict) else (args, {}))


class Colour(IntEnum):
    RED = 1


class Size(str, Enum):
    SMALL = "small"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        *((None, None), ({}, "{}"), ([], "[]"), ((), "[]")),
        ({"to": "zoë", "n": (1, 2)}, '{"to":"zo\\u00eb","n":[1,2]}'),
        ([Colour.RED], "[1]"),
        ([Size.SMALL], '["small"]'),
        (["\0\n\u2028\x7f"], '["\\u0000\\n\\u2028\\u007f"]'),
    ],
)
def test_what_is_written_is_short_ascii(args: Any, text: str | None) -> None:
    assert write_arguments(args) == text


def circular() -> list[Any]:
    args: list[Any] = []
    args.append(args)
    return args


def nested(depth: int) -> list[Any]:
    args: list[Any] = []
    for _ in range(depth - 1):
        args = [args]
    return args


NOON = datetime(2030, 1, 31, 12, tzinfo=timezone.utc)


NO_ARGUMENTS = "allowed: a dict, a list, a tuple or None; a single value stands in a list, such as [1]"
WRITTEN: list[tuple[Any, str]] = [
    *((value, f"args is {value!r}; {NO_ARGUMENTS}") for value in ("text", b"{}", 0, True, 1.5, {1, 2}, range(3))),
    ("x" * 10_000_000, "args is 'xxxxx"),
    *(({key: "x"}, "args has keys that are not text") for key in (1, 1.5, True, None, (1, 2))),
    ({"order": {"at": NOON}}, "args['order']['at'] is of type datetime, which JSON cannot hold: write str(x), x.iso"),
    ([(0, object())], "args[0][1] is of type object, which JSON cannot hold"),
    ({"n": [math.nan]}, "args['n'][0] is nan, which is not a JSON number"),
    ({"by": {NOON.date(): 1}}, "a key of args['by'] is of type date; allowed: str"),
    ({"x" * 100: {1}}, "args['xxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxxxxx…] is of type set"),
    (circular(), "args cannot be written as JSON: Circular reference detected"),
    ([10**5000], "args cannot be written as JSON: Exceeds the limit"),
    (["\ud800"], "args cannot be written as JSON: 'utf-8' codec can't encode"),
    (nested(100_000), "args is nested too deep"),
]


@pytest.mark.parametrize(("args", "words"), WRITTEN, ids=[words[:30] for _, words in WRITTEN])
def test_what_json_cannot_hold_is_refused_by_its_place_and_type(args: Any, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        write_arguments(args)
    message = str(caught.value)
    assert message.startswith(words)
    assert len(message) < 300
    message.encode()


@pytest.mark.parametrize(("character", "size"), [("x", 1), ("é", 6), ("😀", 12)])
def test_arguments_are_written_up_to_the_limit(character: str, size: int) -> None:
    count, rest = divmod(MAX_ARGS_BYTES - 4, size)
    text = write_arguments([character * count + "x" * rest])
    assert text is not None
    assert len(text) == MAX_ARGS_BYTES
    with pytest.raises(InvalidTask, match=f"args takes {MAX_ARGS_BYTES + 1} bytes as JSON; allowed: {MAX_ARGS_BYTES}"):
        write_arguments([character * count + "x" * (rest + 1)])


# ---- from the row to the call


def row(args: str | None, args_bytes: int | None = None) -> ClaimedTask:
    if args is not None and args_bytes is None:
        args_bytes = len(args.encode(errors="surrogatepass"))
    return ClaimedTask(1, "tasks.send", args, args_bytes, attempts=0, max_attempts=None, claim=7)


def prepared(args: str | None) -> Call:
    return prepare(row(args), Callables(("tasks",)))


def never(task: ClaimedTask) -> NoReturn:
    raise AssertionError("arguments were fetched that need not or must not be")


def run_task(call: Call) -> BaseException | None:
    """Call it without a time limit; what it raised."""
    with Alarm(Stop(), again_after_seconds=1.0) as limit:
        failure, _ = run_user_code(limit, 0, run_call, call)
    return None if failure is None else failure.error


TAKES_TWO = "def send(to, text='hello', *, copies=1): return (to, text, copies)\n"


@pytest.mark.parametrize(
    ("args", "result"),
    [
        ('["a"]', ("a", "hello", 1)),
        ('["a", "b"]', ("a", "b", 1)),
        ('{"copies": 2, "to": "a", "text": "b"}', ("a", "b", 2)),
    ],
)
def test_a_row_is_called_with_its_arguments(make_tasks: MakeTasks, args: str, result: tuple[object, ...]) -> None:
    make_tasks(TAKES_TWO)
    call = prepared(args)
    assert call.callable.call(*call.args, **call.kwargs) == result
    assert run_task(call) is None


@pytest.mark.parametrize(
    "args", [None, "[]", "{}", '["a", "b", 3]', '{"text": "b"}', '{"to": "a", "colour": 1}', '{"to": "a", "": 1}']
)
def test_wrong_arguments_are_a_bad_task_that_says_what_is_taken(make_tasks: MakeTasks, args: str | None) -> None:
    make_tasks(TAKES_TWO)
    with pytest.raises(BadTask, match=r"tasks.send\(to, text=…, \*, copies=…\) does not take these arguments: "):
        prepared(args)


def test_long_arguments_are_fetched_and_what_is_over_the_limit_is_refused_before_that(make_tasks: MakeTasks) -> None:
    args = '["' + "x" * 100_000 + '"]'
    assert fetch_texts(row(None, len(args)), lambda task: task._replace(args=args)).args == args
    with pytest.raises(BadTask, match=f"args is {MAX_ARGS_BYTES + 1} bytes long"):
        fetch_texts(row(None, MAX_ARGS_BYTES + 1), never)
    with pytest.raises(BadTask, match=f"stages is longer than {MAX_STAGES_BYTES} bytes"):
        fetch_texts(row("[]")._replace(stages_bytes=MAX_STAGES_BYTES + 1), never)
    make_tasks("def send(): pass\n")
    without = row(None)
    assert fetch_texts(without, never) == without
    assert prepared(None)[1:] == ([], {}, None)
    with pytest.raises(BadTask, match="args is empty"):
        prepare(fetch_texts(row("", 0), never), Callables(("tasks",)))


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_a_task_that_returns_a_coroutine_has_not_run_and_is_not_done(make_tasks: MakeTasks) -> None:
    make_tasks("""
import functools
def decorated(function):
    @functools.wraps(function)
    def wrapper(*args): return function(*args)
    return wrapper
@decorated
async def send(): pass
""")
    assert run_task(prepared(None)) is not None
