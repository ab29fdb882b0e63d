"""Arguments as JSON: written for a producer, read for a worker; and the last steps before and after a call."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import MagicMock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from taskserver.errors import BadTask, Fatal, InvalidTask, Retry
from taskserver.interrupts.alarm import Alarm
from taskserver.interrupts.stop import Stop, TaskInterrupted
from taskserver.messages.error_text import describe
from taskserver.messages.text import MAX_ERROR_LENGTH
from taskserver.model.arguments import (
    MAX_ARGS_BYTES,
    check_size,
    read_arguments,
    write_arguments,
)
from taskserver.model.pipeline import MAX_STAGES_BYTES
from taskserver.model.task import ClaimedTask
from taskserver.worker.call import run_call, run_user_code
from taskserver.worker.callables import Callables
from taskserver.worker.preparing import Call, fetch_texts, prepare


def run_task(call: Call) -> BaseException | None:
    """Call it without a time limit; what it raised."""
    with Alarm(Stop(), again_after_seconds=1.0) as limit:
        failure, _ = run_user_code(limit, 0, run_call, call)
    return None if failure is None else failure.error


# ---- reading


@pytest.mark.parametrize(
    ("text", "args", "kwargs"),
    [
        (None, [], {}),
        ("null", [], {}),
        ("{}", [], {}),
        ("[]", [], {}),
        (' {"to": "a@example.org"} \n', [], {"to": "a@example.org"}),
        ('[1, "two", null, true, 4.5]', [1, "two", None, True, 4.5], {}),
        ('[{"a": 1}]', [{"a": 1}], {}),
        ('{"": 1, "a b": [], "\\u00e9": "\\ud83d\\ude00"}', [], {"": 1, "a b": [], "é": "😀"}),
        ("[1e308, -0.0, 1e-400]", [1e308, -0.0, 0.0], {}),
        ("[" + "9" * 4000 + "]", [10**4000 - 1], {}),
        ('{"a": 1, "a": 2}', [], {"a": 2}),  # the last one counts, as for PHP and MySQL
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
        ("true", "true or false"),
        ("", "args is empty, as PHP's json_encode() returns when it fails: use JSON_THROW_ON_ERROR"),
        (" ", "not valid JSON"),
        ('"{}"', "encoded twice"),
        ("[1,]", "not valid JSON"),
        ("{'a': 1}", "not valid JSON"),
        ("[] []", "not valid JSON"),
        ("[１]", "not valid JSON"),
        ('["\n"]', "not valid JSON"),
        ("[NaN]", "NaN is no JSON number"),
        ('{"a": Infinity}', "Infinity is no JSON number"),
        ("[1e400]", "the number 1e400 is too large"),
        ("[" + "9" * 400 + ".0]", "too large"),
        ("[" + "9" * 5000 + "]", "not valid JSON"),
        ("\ufeff[]", "not valid JSON"),
        ("a:0:{}", "not valid JSON"),  # PHP's serialize()
        ('["\udce9"]', "not UTF-8"),
        ("\ud800", "not UTF-8"),
        ("[" * 200_000, "nested too deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deep"),
    ],
)
def test_what_is_no_strict_json_or_neither_object_nor_array_is_a_bad_task(text: str, words: str) -> None:
    with pytest.raises(BadTask) as caught:
        read_arguments(text)
    assert words in str(caught.value)
    assert len(str(caught.value)) < 300


def test_bytes_are_allowed_exactly_to_the_limit() -> None:
    text = '["' + "x" * (MAX_ARGS_BYTES - 4) + '"]'
    assert len(text) == MAX_ARGS_BYTES == 1024 * 1024
    assert read_arguments(text) == (["x" * (MAX_ARGS_BYTES - 4)], {})
    with pytest.raises(BadTask, match=f"args is {MAX_ARGS_BYTES + 1} bytes long; allowed: {MAX_ARGS_BYTES}"):
        read_arguments(text + " ")
    check_size(None)
    check_size(0)
    check_size(MAX_ARGS_BYTES)
    with pytest.raises(BadTask, match="bytes long"):
        check_size(MAX_ARGS_BYTES + 1)


def test_escaped_lone_surrogates_reach_the_task_as_they_are() -> None:
    assert read_arguments('["\\ud800"]') == (["\ud800"], {})


@given(st.text())
@example("[" * 501)
@example("\udfff")
def test_no_text_raises_anything_but_a_bad_task(text: str) -> None:
    with contextlib.suppress(BadTask):
        args, kwargs = read_arguments(text)
        assert isinstance(args, list)
        assert isinstance(kwargs, dict)


JSON_SCRAPS = st.sampled_from(
    [
        *("[", "]", "{", "}", ",", ":", '"', "\\", "\\u", "d800", "1", "-", "e9", "e999", ".", "0", " ", "\n"),
        *("\ufeff", "null", "true", "NaN", "Infinity", "-Infinity", '"a":', "[[", "]]", "é", "\0", "\ud800"),
        "9" * 500,
    ]
)


@given(st.lists(JSON_SCRAPS, max_size=60).map("".join))
def test_no_heap_of_json_scraps_raises_anything_but_a_bad_task(text: str) -> None:
    with contextlib.suppress(BadTask):
        args, kwargs = read_arguments(text)
        assert not any(isinstance(value, float) and not math.isfinite(value) for value in [*args, *kwargs.values()])


# ---- writing

TEXTS = st.text(st.characters(codec="utf-8"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=15,
)


@given(st.lists(VALUES, max_size=5) | st.dictionaries(TEXTS, VALUES, max_size=5))
def test_what_is_written_comes_back_and_is_plain_json_for_any_other_language(args: Any) -> None:
    text = write_arguments(args)
    assert text is not None
    assert text.isascii()
    assert json.loads(text) == args
    assert read_arguments(text) == (([], args) if isinstance(args, dict) else (args, {}))


def test_what_is_written_is_short_and_readable() -> None:
    assert write_arguments(None) is None
    assert write_arguments({}) == "{}"
    assert write_arguments([]) == write_arguments(()) == "[]"
    assert write_arguments({"to": "zoë", "n": (1, 2)}) == '{"to":"zo\\u00eb","n":[1,2]}'


class Colour(IntEnum):
    RED = 1


class Size(str, Enum):
    SMALL = "small"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ([Colour.RED], "[1]"),
        ([Size.SMALL], '["small"]'),
        ([10**4000], "[1" + "0" * 4000 + "]"),
        (["\0\n\u2028\x7f"], '["\\u0000\\n\\u2028\\u007f"]'),
        ([-0.0, 1e308, 5e-324], "[-0.0,1e+308,5e-324]"),
    ],
)
def test_odd_values_that_json_can_hold_are_written(args: object, text: str) -> None:
    assert write_arguments(args) == text
    assert read_arguments(text) == (args, {})


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


class Liar(int):
    """A number whose class answers nothing."""

    def __repr__(self) -> NoReturn:
        raise AssertionError


NO_ARGUMENTS = "allowed: a dict, a list, a tuple or None; a single value stands in a list, as [1]"
WRITTEN: list[tuple[Any, str]] = [
    *((value, f"args is {value!r}; {NO_ARGUMENTS}") for value in ("text", b"{}", 0, True, 1.5, {1, 2}, range(3))),
    (iter([]), "args is <list_iterator object"),
    ("x" * 10_000_000, "args is 'xxxxx"),
    *(({key: "x"}, "args has keys that are no text") for key in (1, 1.5, True, None, (1, 2))),
    ({"order": {"at": NOON}}, "args['order']['at'] is of type datetime, which JSON cannot hold: write str(x), x.iso"),
    ([1, [2], NOON.date()], "args[2] is of type date, which JSON cannot hold"),
    ([(0, object())], "args[0][1] is of type object, which JSON cannot hold"),
    ([b"bytes"], "args[0] is of type bytes"),
    ({"n": [math.nan]}, "args['n'][0] is nan, which is no JSON number"),
    ([-math.inf], "args[0] is -inf, which is no JSON number"),
    ({"by": {NOON.date(): 1}}, "a key of args['by'] is of type date; allowed: str"),
    ({"x" * 100: {1}}, "args['xxxxxxxxxxxxxxxxxxx…xxxxxxxxxxxxxxxxxx…] is of type set"),
    ([Liar(5), {1}], "args[1] is of type set"),
    ([{"a": [{1}]}] * 2, "args[0]['a'][0] is of type set"),
    ([MagicMock(spec=dict)], "args cannot be written as JSON: Object of type dict is not JSON serializable"),
    (circular(), "args cannot be written as JSON: Circular reference detected"),
    ([10**5000], "args cannot be written as JSON: Exceeds the limit"),
    (["\ud800"], "args cannot be written as JSON: 'utf-8' codec can't encode"),
    ({"\udfff": 1}, "args cannot be written as JSON: 'utf-8' codec can't encode"),
    (nested(100_000), "args is nested too deep"),
]


@pytest.mark.parametrize(("args", "words"), WRITTEN, ids=[words[:30] for _, words in WRITTEN])
def test_what_json_cannot_hold_is_refused_when_it_is_added_by_its_place_and_type(args: Any, words: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        write_arguments(args)
    message = str(caught.value)
    assert message.startswith(words)
    assert len(message) < 300
    message.encode()


@pytest.mark.parametrize(("character", "size"), [("x", 1), ("é", 6), ("漢", 6), ("😀", 12)])
def test_arguments_are_written_to_the_limit_each_letter_beyond_ascii_as_its_code(character: str, size: int) -> None:
    count, rest = divmod(MAX_ARGS_BYTES - 4, size)
    text = write_arguments([character * count + "x" * rest])
    assert text is not None
    assert len(text) == MAX_ARGS_BYTES
    with pytest.raises(InvalidTask, match=f"args takes {MAX_ARGS_BYTES + 1} bytes as JSON; allowed: {MAX_ARGS_BYTES}"):
        write_arguments([character * count + "x" * (rest + 1)])


# ---- from the row to the call


@pytest.fixture
def write_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Writes the module `tasks`, which every test gets afresh."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = sys.modules.pop("tasks", None)

    def write(text: str) -> None:
        (tmp_path / "tasks.py").write_text(text, encoding="utf-8")
        importlib.invalidate_caches()

    yield write
    sys.modules.pop("tasks", None)
    if before is not None:
        sys.modules["tasks"] = before


def row(args: str | None, args_bytes: int | None = None, task: str = "tasks.send") -> ClaimedTask:
    if args is not None and args_bytes is None:
        args_bytes = len(args.encode(errors="surrogatepass"))
    return ClaimedTask(1, task, args, args_bytes, attempts=0, max_attempts=None, claim=7)


def never(task: ClaimedTask) -> NoReturn:
    raise AssertionError("arguments were fetched that need not or must not be")


TAKES_TWO = "def send(to, text='hello', *, copies=1): return (to, text, copies)\n"


@pytest.mark.parametrize(
    ("args", "result"),
    [
        ('["a"]', ("a", "hello", 1)),
        ('["a", "b"]', ("a", "b", 1)),
        ('{"to": "a"}', ("a", "hello", 1)),
        ('{"copies": 2, "to": "a", "text": "b"}', ("a", "b", 2)),
    ],
)
def test_a_row_is_called_with_its_arguments(
    write_tasks: Callable[[str], None], args: str, result: tuple[object, ...]
) -> None:
    write_tasks(TAKES_TWO)
    call = prepare(row(args), Callables(("tasks",)))
    assert call.callable.call(*call.args, **call.kwargs) == result
    assert run_task(call) is None


@pytest.mark.parametrize(
    "args",
    [None, "[]", "{}", '["a", "b", 3]', '{"text": "b"}', '{"to": "a", "colour": 1}', '{"to": "a", "": 1}'],
)
def test_wrong_arguments_are_a_bad_task_that_says_what_is_taken(
    write_tasks: Callable[[str], None], args: str | None
) -> None:
    write_tasks(TAKES_TWO)
    with pytest.raises(BadTask) as caught:
        prepare(row(args), Callables(("tasks",)))
    assert "tasks.send(to, text=…, *, copies=…) does not take these arguments: " in str(caught.value)


def test_wrong_arguments_with_odd_keys_still_fit_into_an_error_text(write_tasks: Callable[[str], None]) -> None:
    write_tasks(TAKES_TWO)
    for key in ("\\ud800", "\\u0000", "x" * 100_000, "\\n"):
        with pytest.raises(BadTask) as caught:
            prepare(row(f'{{"to": 1, "{key}": 2}}'), Callables(("tasks",)))
        text = describe(caught.value)
        text.encode()
        assert "\0" not in text
        assert len(text) <= MAX_ERROR_LENGTH


@pytest.mark.parametrize("error", ["RuntimeError('no database yet')", "SystemExit"])
def test_a_default_that_cannot_be_shown_does_not_stop_a_worker(write_tasks: Callable[[str], None], error: str) -> None:
    write_tasks(f"class Lazy:\n    def __repr__(self): raise {error}\ndef send(to, database=Lazy()): pass\n")
    callables = Callables(("tasks",))
    prepare(row('["a"]'), callables)
    with pytest.raises(BadTask, match=r"tasks\.send.* does not take these arguments"):
        prepare(row("[]"), callables)


def test_long_arguments_are_fetched_and_what_is_over_the_limit_is_refused_before_that() -> None:
    args = '["' + "x" * 100_000 + '"]'
    assert fetch_texts(row(None, len(args)), lambda task: task._replace(args=args)).args == args
    with pytest.raises(BadTask, match=f"args is {MAX_ARGS_BYTES + 1} bytes long"):
        fetch_texts(row(None, MAX_ARGS_BYTES + 1), never)
    with pytest.raises(BadTask, match=f"stages is longer than {MAX_STAGES_BYTES} bytes"):
        fetch_texts(row("[]")._replace(stages_bytes=MAX_STAGES_BYTES + 1), never)


def test_without_arguments_nothing_is_fetched(write_tasks: Callable[[str], None]) -> None:
    write_tasks("def send(): pass\n")
    task = row(None)
    assert fetch_texts(task, never) == task
    assert prepare(task, Callables(("tasks",)))[1:] == ([], {}, None)
    with pytest.raises(BadTask, match="args is empty"):
        prepare(fetch_texts(row("", 0), never), Callables(("tasks",)))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("raise ValueError('x')", ValueError),
        ("raise SystemExit(3)", SystemExit),
        ("raise KeyboardInterrupt", KeyboardInterrupt),
        ("raise MemoryError", MemoryError),
        ("send()", RecursionError),
        ("raise 5", TypeError),
    ],
)
def test_whatever_a_task_raises_is_handed_back_not_raised(
    write_tasks: Callable[[str], None], body: str, kind: type[BaseException]
) -> None:
    write_tasks(f"def send(): {body}\n")
    error = run_task(prepare(row(None), Callables(("tasks",))))
    assert type(error) is kind


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_a_task_that_hands_back_a_coroutine_has_not_run_and_is_not_done(write_tasks: Callable[[str], None]) -> None:
    write_tasks(
        "import functools\ndef decorated(function):\n    @functools.wraps(function)\n"
        "    def wrapper(*args): return function(*args)\n    return wrapper\n"
        "@decorated\nasync def send(): pass\n"
    )
    assert run_task(prepare(row(None), Callables(("tasks",)))) is not None


def test_a_task_is_interrupted_by_a_second_wish_to_stop_and_not_by_a_first_one(
    write_tasks: Callable[[str], None],
) -> None:
    write_tasks("steps = []\ndef send():\n    for step in range(2):\n        asked(); steps.append(step)\n")
    call = prepare(row(None), Callables(("tasks",)))
    stop = Stop()
    names = vars(sys.modules["tasks"])
    names["asked"] = stop.ask
    with Alarm(stop, again_after_seconds=1.0) as limit:
        failure, _ = run_user_code(limit, 0, run_call, call)
    assert failure is not None
    assert failure.is_a(TaskInterrupted)
    assert names["steps"] == [0]
    stop.ask()  # outside a task it raises nothing


# ---- what an error says of itself


class _Message(Exception):
    def __init__(self, show: Callable[[], Any]) -> None:
        self.show = show

    def __str__(self) -> str:
        return self.show()  # type: ignore[no-any-return]


def _raise(error: BaseException) -> NoReturn:
    raise error


class _OddText(str):
    def __format__(self, specification: str) -> str:
        raise RuntimeError("cannot be formatted")

    def __getitem__(self, key: object) -> str:
        raise RuntimeError("cannot be cut")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x"), "ValueError: x"),
        (KeyError("x"), "KeyError: 'x'"),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
        (ValueError("two\nlines"), "ValueError: two\nlines"),
        (ValueError("a\0b"), "ValueError: a\\0b"),
        (ValueError("a\ud800b"), "ValueError: a\\ud800b"),
        (UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "bad"), "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9"),
    ],
)
def test_an_error_is_told_as_type_and_message(error: BaseException, text: str) -> None:
    assert describe(error).startswith(text)


REFUSED = "ConnectionRefusedError: nobody listens"


@pytest.mark.parametrize(
    ("error", "how", "text"),
    [
        (Retry(delay=60), "from", f"Retry: {REFUSED}"),
        (Retry(delay=60), "while", f"Retry: {REFUSED}"),
        (Retry(delay=60), "from None", "Retry: "),
        (Retry("later", delay=60), "from", "Retry: later"),
        (Fatal(), "from", f"Fatal: {REFUSED}"),
        (ValueError(), "from", "ValueError: "),
    ],
)
def test_a_retry_that_says_nothing_is_told_by_the_error_from_which_it_came(
    error: Exception, how: str, text: str
) -> None:
    refused = ConnectionRefusedError("nobody listens")
    error.__context__, error.__suppress_context__ = refused, how != "while"
    if how == "from":
        error.__cause__ = refused
    assert describe(error) == text


@pytest.mark.parametrize(
    "show",
    [
        lambda: _raise(RuntimeError("no")),
        lambda: _raise(SystemExit(3)),
        lambda: _raise(KeyboardInterrupt()),
        lambda: _raise(MemoryError()),
        lambda: 5,
        lambda: b"bytes",
        lambda: _OddText("odd"),
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


class _NamelessKind(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class _Nameless(Exception, metaclass=_NamelessKind):
    pass


def test_an_error_of_a_class_that_cannot_say_its_name_still_leaves_a_text() -> None:
    assert describe(_Nameless("x"))


@pytest.mark.parametrize("filling", ["x", "é", "😀", "\0", "\ud800", "\n"])
def test_a_huge_message_or_name_is_cut_to_what_the_column_holds(filling: str) -> None:
    text = describe(ValueError(filling * 1_000_000))
    assert len(text) == MAX_ERROR_LENGTH
    assert text.startswith("ValueError: ")
    assert "\0" not in text
    text.encode()
    assert len(describe(type("E" * 5000, (Exception,), {})("x"))) == MAX_ERROR_LENGTH


@given(st.text())
def test_any_message_fits_into_any_database(message: str) -> None:
    text = describe(ValueError(message))
    text.encode()
    assert "\0" not in text
    assert len(text) <= MAX_ERROR_LENGTH


def test_the_words_of_a_bad_task_show_no_more_than_the_error() -> None:
    with pytest.raises(BadTask) as caught:
        read_arguments("[1")
    assert "During handling" not in "".join(traceback.format_exception(caught.value))
