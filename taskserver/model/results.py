"""A task's progress and its result, in its row: written by workers, read by pages.

Both are JSON text. Any program may have written the row, so an invalid text counts as missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

from ..errors import BadTask, InvalidTask, SettingError
from ..messages.text import shown, utc
from .arguments import encode, parse_json, write_json
from .task import Status, known_status

MAX_RESULT_BYTES = 64 * 1024
MAX_FAULT = 227
"""Characters of the reason why a result cannot be stored."""
MAX_PROGRESS_TEXT = 200
"""Characters; a longer text is cut."""
MAX_NUMBER = 2**53
"""Every JSON parser reads whole numbers up to this one exactly."""


class Progress(NamedTuple):
    """The progress of a task."""

    done: float
    """In the task's own units."""
    total: float | None = None
    """The value of `done` at the end; None if unknown."""
    text: str | None = None

    @property
    def fraction(self) -> float | None:
        """The part that is done, from 0 to 1; None if the total is unknown."""
        return min(max(self.done / self.total, 0.0), 1.0) if self.total else None

    def __str__(self) -> str:
        amount = f"{self.done:.15g}"
        if self.total is not None:
            amount += f" of {self.total:.15g}"
        if (fraction := self.fraction) is not None:
            # Rounded, so that 0.29 of 1 is 29 %, but 100 % only at the end.
            amount += f" ({min(math.floor(round(fraction * 100, 6)), 100 if fraction == 1 else 99)} %)"
        return f"{amount}: {self.text}" if self.text else amount


class TaskState(NamedTuple):
    """The state of a task, as `TaskServer.get` returns it."""

    id: int
    task: str
    status: int
    """A Status, or another number that a program wrote."""
    attempts: int
    """How often the task was started."""
    result: Any
    """The result; None if none is stored."""
    error: str | None
    """The last error, with `Type: message` on the first line; None once the task succeeded."""
    progress: Progress | None

    @property
    def is_over(self) -> bool:
        """Whether the task is done, fatal or cancelled, and so will not change by itself."""
        return self.status in (Status.DONE, Status.FATAL, Status.CANCELLED)


# ---- written by the worker


def write_result(value: object) -> str:
    """The JSON text of a task's result. Raises InvalidTask with the reason."""
    try:
        return write_json(value, MAX_RESULT_BYTES, "what it returned")
    except InvalidTask as error:
        raise InvalidTask(str(error)[:MAX_FAULT]) from None


def write_progress(done: object, total: object, text: object) -> str:
    """The JSON text of a progress. Raises SettingError, which names the wrong value."""
    if text is not None and not isinstance(text, str):
        raise SettingError(f"progress: text is {shown(text)}; allowed: a text")
    report: dict[str, object] = {"done": _number("done", done)}
    if total is not None:
        report["total"] = _number("total", total)
    if text is not None:  # other languages refuse a lone surrogate
        report["text"] = str.__str__(text)[:MAX_PROGRESS_TEXT].encode(errors="replace").decode()
    return encode(report)


def _number(name: str, value: Any) -> float:
    try:
        number = value if type(value) is int else float(value)  # numpy's numbers, and Decimal
    except Exception:  # an array, a signalling NaN; a site's class may raise anything
        number = -1
    if isinstance(value, (bool, str, bytes)) or not 0 <= number <= MAX_NUMBER:
        raise SettingError(f"progress: {name} is {shown(value)}; allowed: a number from 0 to 2^53")
    return int(number) if number == int(number) else number  # readers see 3, not 3.0


# ---- read from the row


def read_result(text: object) -> Any:
    """The value of a result's text; None if it is invalid."""
    try:
        return parse_json(text) if isinstance(text, str) else None
    except BadTask:
        return None


def read_progress(text: object) -> Progress | None:
    """The Progress in a row's text; None if it is invalid."""
    report = read_result(text)
    if not isinstance(report, dict):
        return None
    done, total, words = report.get("done"), report.get("total"), report.get("text")
    if not _is_number(done) or not (total is None or _is_number(total)):
        return None
    return Progress(done, total, words if isinstance(words, str) else None)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and abs(value) <= MAX_NUMBER


def as_texts(row: Sequence[Any]) -> list[Any]:
    """The values of a row, with bytes as text: MySQL returns keys as bytes, and SQLite stores bytes in any column."""
    return [value.decode(errors="backslashreplace") if type(value) is bytes else value for value in row]


def by_name(names: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """The values of a row by column name; those with `_at` are instants, and bytes become text."""
    values = zip(names, as_texts(row), strict=False)
    return {name: utc(value) if name.endswith("_at") else value for name, value in values}


def task_state(row: Sequence[Any]) -> TaskState:
    """A TaskState from its row."""
    task_id, task, status, attempts, result, error, progress = row
    task, error = as_texts((task, error))
    returned = read_result(result) if status == Status.DONE else None
    return TaskState(task_id, str(task), known_status(status), attempts, returned, error, read_progress(progress))
