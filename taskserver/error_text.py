"""What is kept of an exception: the text for the column error_text."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from types import TracebackType

MAX_ERROR_LENGTH = 1000
MOST_OF_THE_MESSAGE = 500
"""Characters, where there is a traceback too."""

_OUR_FOLDER = os.path.join(os.path.dirname(__file__), "")

# Read past whatever a class of exceptions says of itself.
_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__
_traceback_of: Callable[[BaseException], TracebackType | None] = BaseException.__dict__["__traceback__"].__get__


def type_name(error: BaseException) -> str:
    """The name of its type, without asking it."""
    return _name_of(type(error))


def describe(error: BaseException) -> str:
    """`Type: message`, in at most 1,000 characters, and storable whatever the exception holds."""
    try:
        message = str(error)
    except BaseException:  # the exception's own code runs here, which can do anything
        message = "(its text cannot be had)"
    # Joined, not formatted: the message may be of a kind of str that formats in its own way.
    return storable("".join((type_name(error), ": ", message)))


def describe_failure(error: BaseException) -> str:
    """What a task raised: `Type: message` as the first line, by which errors can be grouped; then where it was raised.

    The end of the traceback is kept, which tells most.
    """
    return storable(_describe_one(error, MAX_ERROR_LENGTH))


def both(first: str, second: str) -> str:
    """Two such texts in one: half of the room for each."""
    most = MAX_ERROR_LENGTH // 2 - 1
    return f"{first[:most]}\n{second[:most]}"


def full_traceback(error: BaseException) -> str:
    """All that Python would print of it, for the log."""
    return "".join(traceback.format_exception(type(error), error, _traceback_of(error))).rstrip("\n")


def storable(text: str) -> str:
    """A text as every database takes it for error_text."""
    text = text[:MAX_ERROR_LENGTH]
    # A lone surrogate fits into no database, and a NUL not into every one.
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:MAX_ERROR_LENGTH]


def _describe_one(error: BaseException, most: int) -> str:
    where = _where(_traceback_of(error))
    if not where:
        return describe(error)[:most]
    what = describe(error)[: min(MOST_OF_THE_MESSAGE, most)]
    left = max(most - len(what) - 1, 0)
    if len(where) > left:
        where = "\n".join(where[len(where) - left :].split("\n")[1:])  # whole lines
    return f"{what}\n{where}" if where else what


def _where(trace: TracebackType | None) -> str:
    """The traceback, of the task's own code alone."""
    try:
        frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(_OUR_FOLDER)]
        return "".join(traceback.format_list(frames)).rstrip("\n")
    except Exception:  # source files that cannot be read, and the like
        return ""
