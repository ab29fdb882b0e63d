"""The options that @task gives to a function: what may be given."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from taskserver import SettingError, task
from taskserver.model.task_options import options_of

WHOLE, SPAN, CLASSES = (
    "a whole number from",
    "seconds, a text such as",
    "an exception class, or a tuple of one or more$",
)
WRONG: dict[str, tuple[list[Any], str]] = {
    "batch": ([0, 501, True, 2.0], f"{WHOLE} 1 to 500$"),
    "commit_every": ([0, 501], f"{WHOLE} 1 to 500$"),
    "max_attempts": ([0, -1, 1.5, True, "3", 10**7], f"{WHOLE} 1 to"),
    "timeout": ([-1, float("nan"), float("inf"), "5", True, 10**9, "1y", "8d"], SPAN),
    "backoff": (["soon", "", "60", "fixed:", "fixed:-1", "fixed:1.5", "FIXED:5", "cubic:5", 60, True], ""),
    "on_fatal": (["x", "", "no dots", "tasks.", "tasks.rescue()", 5], ""),
    "transactional": ([1, None, "yes"], "True or False"),
    "group_id": ([-1], f"{WHOLE} 0 to"),
    "priority": ([2**31], WHOLE),
    "unique_key": (["", "k" * 256, 5], "a text"),
    "retry_on": (["ValueError", ValueError(), int, [ValueError], (ValueError, None), ()], CLASSES),
    "fatal_on": (["ValueError", ()], CLASSES),
}
TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"commit_every": 5, "batch": 5}, "it has commit_every and batch; allowed: one of them"),
    ({"commit_every": 5, "transactional": True}, "it has commit_every and transactional; allowed: one of them"),
    ({"commit_every": 5, "max_attempts": 1}, "it has commit_every and max_attempts=1; allowed: max_attempts from 2"),
    ({"transactional": True, "batch": 5}, "it has transactional and batch; allowed: one of them"),
    ({"unique_key": "k", "rerun": 1}, "rerun is 1; allowed: True or False"),
    ({"rerun": True}, "it has rerun and no unique_key, which says which row"),
]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_option_is_named_with_what_is_allowed(name: str) -> None:
    values, allowed = WRONG[name]
    for value in values:
        with pytest.raises(SettingError, match=f"^{name} .*; allowed: {allowed}" if allowed else f"^{name}"):
            task(**{name: value})


@pytest.mark.parametrize(("given", "words"), TOGETHER)
def test_options_that_do_not_go_together_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=f"^{words}"):
        task(**given)


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
