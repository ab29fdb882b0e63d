"""The options that @task gives to a function: what may be given."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import pytest

from taskserver import SettingError, task
from taskserver.model.task_options import options_of


@pytest.mark.parametrize(
    ("given", "words"),
    [
        *(({"batch": value}, "^batch is .*; allowed: a whole number from 1 to 500$") for value in (0, 501, True, 2.0)),
        *(
            ({"commit_every": value}, "^commit_every is .*; allowed: a whole number from 1 to 500$")
            for value in (0, 501)
        ),
        ({"commit_every": 5, "batch": 5}, "^it has commit_every and batch; allowed: one of them"),
        ({"commit_every": 5, "transactional": True}, "^it has commit_every and transactional; allowed: one of them"),
        (
            {"commit_every": 5, "max_attempts": 1},
            "^it has commit_every and max_attempts=1; allowed: max_attempts from 2",
        ),
        *(
            ({"max_attempts": value}, "^max_attempts is .*; allowed: a whole number from 1 to")
            for value in (0, -1, 1.5, True, "3", 10**7)
        ),
        *(
            ({"timeout": value}, "^timeout is .*; allowed: seconds, a text as")
            for value in (-1, float("nan"), float("inf"), "5", True, 10**9)
        ),
        ({"timeout": "1y"}, "^timeout is '1y'; allowed: seconds, a text as"),
        ({"timeout": "8d"}, "^timeout is '8d'; allowed: seconds, a text as"),
        *(
            ({"backoff": value}, "^backoff is .*; allowed: ")
            for value in (
                "soon",
                "",
                "60",
                "fixed:",
                "fixed:-1",
                "fixed:1.5",
                "fixed: 5",
                "FIXED:5",
                "cubic:5",
                60,
                True,
            )
        ),
        *(({"on_fatal": value}, "^on_fatal") for value in ("x", "", "no dots", "tasks.", "tasks.rescue()", 5)),
        *(({"transactional": value}, "^transactional is .*; allowed: True or False") for value in (1, None, "yes")),
        ({"group_id": -1}, "^group_id is -1; allowed: a whole number from 0 to"),
        ({"priority": 2**31}, "^priority is .*; allowed: a whole number from"),
        *(({"unique_key": value}, "^unique_key is .*; allowed: a text of 1 to 255 bytes") for value in ("", "k" * 256)),
        ({"unique_key": 5}, "^unique_key is 5; allowed: a text, or a function that returns one"),
        ({"unique_key": "k", "rerun": 1}, "^rerun is 1; allowed: True or False"),
        ({"rerun": True}, "^it has rerun and no unique_key, which says which row"),
        *(
            ({name: value}, f"^{name} is .*; allowed: an exception class, or a tuple of one or more$")
            for name in ("retry_on", "fatal_on")
            for value in ("ValueError", ValueError(), int, [ValueError], (ValueError, None), ())
        ),
        ({"transactional": True, "batch": 5}, "^it has transactional and batch; allowed: one of them"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        task(**given)


def test_a_timeout_may_be_a_span() -> None:
    for given, seconds in (("5m", 300), ("0s", 0), (1.5, 1.5)):

        def work() -> None: ...

        task(timeout=given)(work)
        assert isinstance(work, FunctionType)
        assert options_of(work).timeout_seconds == seconds


def test_an_option_that_is_not_there_is_an_error() -> None:
    with pytest.raises(TypeError, match="retries"):
        task(retries=3)  # type: ignore[call-overload]


@pytest.mark.parametrize("marked", [int, len, 5, functools.partial(print), object()])
def test_only_functions_and_methods_take_options(marked: Any) -> None:
    with pytest.raises(SettingError, match="allowed: functions, static and class methods"):
        task(max_attempts=1)(marked)


def test_a_function_stays_what_it_is_under_its_options() -> None:
    def plain(number: int) -> int:
        """Twice the number."""
        return 2 * number

    assert task(plain) is plain
    assert task(max_attempts=1, timeout=0)(plain) is plain
    assert plain(4) == 8
    assert options_of(plain).max_attempts == 1  # type: ignore[arg-type]
    assert options_of(plain).timeout_seconds == 0  # type: ignore[arg-type]
