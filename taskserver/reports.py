"""What a task tells of itself in its row: how far it has come, and what it returned. Written by workers, read by pages.

Both are JSON text. What a row holds may be anything, so what cannot be read counts as not there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeGuard

from .arguments import encode, parse_json, write_json
from .errors import BadTask, InvalidTask, SettingError
from .lifecycle import Status
from .printable import shown

MAX_RESULT_BYTES = 64 * 1024
MAX_FAULT = 227
MAX_PROGRESS_TEXT = 200
"""Characters; what is longer is cut."""
MAX_NUMBER = 2**53
"""All readers of JSON take whole numbers up to here for what they are."""


class Progress(NamedTuple):
    """How far a task has come."""

    done: float
    """In units of the task's own."""
    total: float | None = None
    """What `done` will be at the end; None where that is not known."""
    text: str | None = None

    @property
    def fraction(self) -> float | None:
        """From 0 to 1; None where the total is not known."""
        if not self.total:
            return None
        return min(max(self.done / self.total, 0.0), 1.0)

    def __str__(self) -> str:
        fraction = self.fraction
        amount = f"{self.done:.15g}"
        if self.total is not None:
            amount += f" of {self.total:.15g}"
        if self.total and fraction is not None:
            # In this order, and rounded: 29 of 100, and 0.29 of 1, are 29 %.
            percent = math.floor(round(self.done * 100 / self.total, 6))
            amount += f" ({min(max(percent, 0), 100 if fraction == 1 else 99)} %)"
        return f"{amount}: {self.text}" if self.text else amount


class TaskState(NamedTuple):
    """What has become of a task, as `TaskServer.get` tells it."""

    id: int
    task: str
    status: int
    """A Status, unless its row was written by others and holds another number."""
    attempts: int
    """Times it was started."""
    result: Any
    """What it returned, read from JSON; None where nothing is kept."""
    error: str | None
    """The last error, `Type: message` in the first line; None once it succeeded."""
    progress: Progress | None

    @property
    def is_over(self) -> bool:
        """Whether it is done or fatal, so that nothing more comes of it by itself."""
        return self.status in (Status.DONE, Status.FATAL)


# ---- written by the worker


def write_result(value: object) -> str:
    """The JSON text of what a task returned. Raises InvalidTask, which says why there is none."""
    try:
        return write_json(value, MAX_RESULT_BYTES)
    except InvalidTask as error:
        raise InvalidTask(str(error)[:MAX_FAULT]) from None


def write_progress(done: object, total: object, text: object) -> str:
    """The JSON text of a progress. Raises SettingError, which says what is wrong."""
    if text is not None and not isinstance(text, str):
        raise SettingError(f"progress: text is {shown(text)}; allowed: a text")
    told = {"done": _number("done", done)}
    if total is not None:
        told["total"] = _number("total", total)
    # A lone surrogate fits into no database.
    words = {} if text is None else {"text": str.__str__(text)[:MAX_PROGRESS_TEXT].encode(errors="replace").decode()}
    return encode(told | words)


def _number(name: str, value: object) -> float:
    number = value
    if type(number) not in (int, float) and hasattr(type(value), "__float__"):
        try:
            number = float(value)  # type: ignore[arg-type]  # as of numpy, and Decimal
        except Exception:  # an array, a signalling NaN, a fraction without end; or what a class of its own raises
            number = None
    if isinstance(value, bool) or type(number) not in (int, float) or not 0 <= number <= MAX_NUMBER:  # type: ignore[operator]
        raise SettingError(f"progress: {name} is {shown(value)}; allowed: a number from 0 to 2^53")
    # 3.0 is 3 for whoever reads it.
    return int(number) if number == int(number) else number  # type: ignore[call-overload,return-value]


# ---- read from the row


def read_result(text: object) -> Any:
    """What a result's text stands for; None where it can't be read."""
    try:
        return parse_json(text) if isinstance(text, str) else None
    except BadTask:
        return None


def read_progress(text: object) -> Progress | None:
    """What a progress's text stands for; None where it can't be read."""
    told = read_result(text)
    if not isinstance(told, dict):
        return None
    done, total, words = told.get("done"), told.get("total"), told.get("text")
    if not _is_number(done) or not (total is None or _is_number(total)):
        return None
    return Progress(done, total, words if isinstance(words, str) else None)


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and abs(value) <= MAX_NUMBER


def as_texts(row: Sequence[Any]) -> list[Any]:
    """Its values, bytes as text: keys are stored so on MySQL, and SQLite lets a row hold them anywhere."""
    return [value.decode(errors="backslashreplace") if type(value) is bytes else value for value in row]


def task_state(row: Sequence[Any]) -> TaskState:
    """What its row says: its columns are those of a TaskState."""
    task_id, task, status, attempts, result, error, progress = row
    task, error = as_texts((task, error))
    # A status is whatever number was put there.
    named = Status(status) if status in set(Status) else status
    returned = read_result(result) if status == Status.DONE else None
    return TaskState(task_id, str(task), named, attempts, returned, error, read_progress(progress))
