"""The text of an exception, for the column error_text and for the log."""

from __future__ import annotations

import builtins
import os
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

from .classes import class_name
from .text import MAX_ERROR_LENGTH, truncate_middle

MAX_MESSAGE_LENGTH = 500
"""Characters of the message before a traceback."""
MAX_LOGGED_LENGTH = 100_000
"""Characters of a traceback in the log: a message may have any size, and escaping a long one is slow."""

NO_TEXT = "(its text could not be read)"
"""The message if `str(exception)` raises or hangs."""

OUR_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_BESIDE_US = os.path.dirname(os.path.dirname(OUR_FOLDER))
_BUNDLED = tuple(f"{_BESIDE_US}/{name}/" for name in ("pymysql", "psycopg", "jinja2", "werkzeug"))
_LIBRARIES = ("<frozen ", os.path.join(os.path.dirname(os.__file__), ""), *_BUNDLED)

# Read from the base class: an exception's class may override them.
traceback_of: Callable[[BaseException], TracebackType | None] = BaseException.__dict__["__traceback__"].__get__
_cause_of: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__cause__"].__get__
_context_of: Callable[[BaseException], BaseException | None] = BaseException.__dict__["__context__"].__get__
_group: Any = getattr(builtins, "BaseExceptionGroup", None)
"""From Python 3.11 on."""
_set_traceback: Callable[[BaseException, TracebackType | None], None] = BaseException.__dict__["__traceback__"].__set__


def describe(error: BaseException) -> str:
    """`Type: message`, in at most MAX_ERROR_LENGTH characters that every database takes."""
    try:
        message = str(error)
    except BaseException:  # str() runs the exception's own code
        message = NO_TEXT
    # Joined, not formatted: the message may be a subclass of str with its own format.
    return storable("".join((class_name(type(error)), ": ", message)))


def describe_failure(error: BaseException) -> str:
    """The error of a task: `Type: message` on the first line, by which errors are grouped, then its traceback.

    A long traceback keeps the site's frames rather than those of libraries.
    """
    what, trace = describe(error), traceback_of(error)
    if parts := _parts_of(error):  # a group's text does not show its first exception, or where it was raised
        what, trace = f"{what}: {describe(parts[0])}", traceback_of(parts[0]) or trace
    first = what[:MAX_MESSAGE_LENGTH]
    lines = _frames(trace, MAX_ERROR_LENGTH - len(first) - 1)
    return storable(f"{first}\n{lines}" if lines else what)


def both(first: str, second: str) -> str:
    """Two errors in one text, each with half of the room."""
    most = MAX_ERROR_LENGTH // 2 - 1
    return f"{first[:most]}\n{second[:most]}"


def full_traceback(error: BaseException) -> str:
    """The traceback for the log, as Python prints it, without our frames; a very long one loses its middle."""
    whole = traceback.TracebackException(type(error), error, traceback_of(error))
    left = [whole]
    while left:
        one = left.pop()
        one.stack[:] = [frame for frame in one.stack if not frame.filename.startswith(OUR_FOLDER)]
        if not one.stack:
            one.stack = None  # type: ignore[assignment]  # no heading without a frame
        left += filter(None, (one.__cause__, one.__context__, *(getattr(one, "exceptions", None) or ())))
    return truncate_middle("".join(whole.format()).rstrip("\n"), MAX_LOGGED_LENGTH)


def drop_our_frames(error: BaseException) -> None:
    """Remove our frames from the start of an exception's traceback, so that it starts with the task's code."""
    trace = traceback_of(error)
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OUR_FOLDER):
        trace = trace.tb_next
    _set_traceback(error, trace)


def clear_frames(error: BaseException) -> None:
    """Clear local variables in the frames of an exception and its causes: they may hold a connection."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(traceback_of(one))
            left += filter(None, (_cause_of(one), _context_of(one), *_parts_of(one)))


def _parts_of(error: BaseException) -> tuple[BaseException, ...]:
    """The exceptions of an ExceptionGroup, such as a TaskGroup's; empty for any other exception."""
    is_group = _group is not None and issubclass(type(error), _group)
    return tuple(_group.__dict__["exceptions"].__get__(error)) if is_group else ()


def storable(text: str) -> str:
    """The text in a form that every database accepts as error_text."""
    text = text[:MAX_ERROR_LENGTH]
    # No database accepts a lone surrogate, and some refuse NUL.
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:MAX_ERROR_LENGTH]


def _frames(trace: TracebackType | None, room: int) -> str:
    """Frames of a traceback in order; if there is no room, the site's last frames are kept first."""
    try:
        frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(OUR_FOLDER)]
        kept: dict[int, str] = {}
        # The first one is the task's function, even if its module is installed like a library.
        is_of_library = [number > 0 and _is_of_library(frame.filename) for number, frame in enumerate(frames)]
        for number in sorted(range(len(frames)), key=lambda number: (is_of_library[number], -number)):
            text = traceback.format_list([frames[number]])[0]
            if len(text) > room:
                text = text[: text.index("\n") + 1]  # the place without the code
            if len(text) > room:
                break
            if text not in kept.values():  # a recursion repeats it
                kept[number] = text
                room -= len(text)
        return "".join(kept[number] for number in sorted(kept)).rstrip("\n")
    except Exception:  # a source file that cannot be read, for example
        return ""


def _is_of_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or "/site-packages/" in file or "/dist-packages/" in file
