"""What tasks returned and what they told of their progress, as JSON in their rows: written, and read whatever it is."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from taskserver import InvalidTask, Progress, SettingError, Status, TaskState
from taskserver.model.results import (
    MAX_RESULT_BYTES,
    read_progress,
    read_result,
    task_state,
    write_progress,
    write_result,
)

# ---- results; what JSON can hold is shown by test_arguments.py


def test_a_result_is_json_of_any_kind_and_is_read_as_it_was_written() -> None:
    written: list[tuple[Any, str]] = [
        *((False, "false"), (5e-324, "5e-324"), ((1, (2,)), "[1,[2]]"), ({1: "a", None: "b"}, '{"1":"a","null":"b"}')),
        ({"größe": {"k": [True, None]}}, '{"gr\\u00f6\\u00dfe":{"k":[true,null]}}'),
        ("é" * 10922, '"' + "\\u00e9" * 10922 + '"'),
    ]
    for value, text in written:
        assert write_result(value) == text
        assert read_result(text) == json.loads(text)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, "what it returned is nan, which is not a JSON number"),
        ({1}, "what it returned is of type set, which JSON cannot hold: write str(x)"),
        ({"seen": {"x" * 1000: {1}}}, "what it returned['seen']['xxxx"),
        ({(1, 2): 3}, "a key of what it returned is of type tuple; allowed: str"),
        (10**5000, "what it returned cannot be written as JSON: "),
        ({"\udfff": 1}, "surrogates not allowed"),
        ("é" * 10922 + "xxx", f"takes {MAX_RESULT_BYTES + 1} bytes as JSON; allowed: {MAX_RESULT_BYTES}"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_result_is_said_in_a_sentence(value: object, words: str) -> None:
    with pytest.raises(InvalidTask) as raised:
        write_result(value)
    assert words in str(raised.value)
    assert len(str(raised.value)) < 230


@pytest.mark.parametrize(
    "text", ["", '{"a": [1', "1 2", "NaN", "[1e999]", "1" * 5000, "[" * 60_000, "null", b"{}", None, 7], ids=repr
)
def test_what_is_no_json_is_no_result(text: object) -> None:
    assert read_result(text) is None


def test_a_result_is_told_of_a_row_that_is_done_and_of_no_other() -> None:
    for status in (0, 1, 2, 3, 4, 5, 99):
        state = task_state((7, "tasks.give", status, 1, "[1]", None, '{"done": 3}'))
        assert state == TaskState(7, "tasks.give", status, 1, [1] if status == 2 else None, None, Progress(3))
        assert state.is_over is (status in (2, 4))
        assert type(state.status) is (int if status == 99 else Status)


# ---- progress


class Number:
    """As those of numpy: no int and no float."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __float__(self) -> float:
        return self._value


def test_whatever_is_a_number_may_be_told() -> None:
    numbers: dict[Any, float] = {Decimal("2.5"): 2.5, Fraction(1, 4): 0.25, Number(3.0): 3, 2.0: 2, 2**53: 2**53}
    for value, number in numbers.items():
        assert json.loads(write_progress(value, value, None)) == {"done": number, "total": number}
    assert "." not in write_progress(3.0, None, None)


class Odd:
    def __float__(self) -> float:
        raise ZeroDivisionError


WRONG = [-1, math.nan, math.inf, True, "7", None, 2**53 + 1, 10**5000, Decimal("NaN"), Number(-1.0), 1j, Odd()]


@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
def test_whatever_is_none_is_refused_with_its_name(value: Any) -> None:
    with pytest.raises(SettingError, match=r"^progress: done is .*; allowed: a number from 0 to 2\^53$"):
        write_progress(value, None, None)
    if value is not None:
        with pytest.raises(SettingError, match=r"^progress: total is .*; allowed: a number from 0 to 2\^53$"):
            write_progress(1, value, None)


def test_a_text_is_a_text_that_fits_into_the_row() -> None:
    assert json.loads(write_progress(0, 0, "")) == {"done": 0, "total": 0, "text": ""}
    assert json.loads(write_progress(1, None, "\ud800" + "ü" * 300)) == {"done": 1, "text": "?" + "ü" * 199}
    with pytest.raises(SettingError, match="text is 5; allowed: a text"):
        write_progress(1, 2, 5)


@pytest.mark.parametrize(
    "text", ["no JSON", "[1, 2]", "null", '{"done": "1"}', '{"total": 3}', '{"done": 1e400}', '{"done": true}', b"{}"]
)
def test_an_invalid_progress_counts_as_none(text: object) -> None:
    assert read_progress(text) is None


def test_how_far_a_task_has_come_is_a_fraction_if_the_total_is_known() -> None:
    fractions = {Progress(1, 4): 0.25, Progress(9, 3): 1.0, Progress(1): None, Progress(1, 0): None, Progress(-1, 2): 0}
    assert {told: told.fraction for told in fractions} == fractions
    said = {
        Progress(1, 3, "reading"): "1 of 3 (33 %): reading",
        Progress(2.5): "2.5",
        Progress(999, 1000): "999 of 1000 (99 %)",
        Progress(9, 3): "9 of 3 (100 %)",
        Progress(29, 100): "29 of 100 (29 %)",
    }
    assert {told: str(told) for told in said} == said
