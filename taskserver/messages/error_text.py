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
"""Characters of the message where a traceback follows it."""
MAX_LOGGED_LENGTH = 100_000
"""Characters of a traceback in the log: a message may be of any size, and a long one takes long to escape."""

NO_TEXT = "(its text could not be read)"
"""The message of an exception whose `str()` raises or hangs."""

OUR_FOLDER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
_BESIDE_US = os.path.dirname(os.path.dirname(OUR_FOLDER))
_BUNDLED = tuple(f"{_BESIDE_US}/{name}/" for name in ("pymysql", "psycopg", "jinja2", "werkzeug"))
_LIBRARIES = ("<frozen ", os.path.join(os.path.dirname(os.__file__), ""), *_BUNDLED)

# Read from the base classes: a class of exceptions may override both.
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
    except BaseException:  # str() runs the exception's own code, which can do anything
        message = NO_TEXT
    # Joined, not formatted: the message may be a subclass of str that formats in its own way.
    return storable("".join((class_name(type(error)), ": ", message)))


def describe_failure(error: BaseException) -> str:
    """The error of a task: `Type: message` in the first line, by which errors are grouped, then its traceback.

    Of a long traceback the frames of the site's own code are kept before those of libraries.
    """
    what, trace = describe(error), traceback_of(error)
    if parts := _parts_of(error):  # the text of a group names neither its first exception nor where that was raised
        what, trace = f"{what}: {describe(parts[0])}", traceback_of(parts[0]) or trace
    first = what[:MAX_MESSAGE_LENGTH]
    lines = _frames(trace, MAX_ERROR_LENGTH - len(first) - 1)
    return storable(f"{first}\n{lines}" if lines else what)


def both(first: str, second: str) -> str:
    """Two errors in one text; each has half of the room."""
    most = MAX_ERROR_LENGTH // 2 - 1
    return f"{first[:most]}\n{second[:most]}"


def full_traceback(error: BaseException) -> str:
    """The traceback as Python prints it, for the log: without our own frames, and the middle of an endless one."""
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
    """Leave our own frames out of the begin of an exception's traceback: a task's code had no part in its call."""
    trace = traceback_of(error)
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OUR_FOLDER):
        trace = trace.tb_next
    _set_traceback(error, trace)


def clear_frames(error: BaseException) -> None:
    """Clear the local variables of the frames of an exception and of its causes: they may hold a connection."""
    left, seen = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(traceback_of(one))
            left += filter(None, (_cause_of(one), _context_of(one), *_parts_of(one)))


def _parts_of(error: BaseException) -> tuple[BaseException, ...]:
    """The exceptions of an ExceptionGroup, as of an asyncio.TaskGroup; none of any other exception."""
    is_group = _group is not None and issubclass(type(error), _group)
    return tuple(_group.__dict__["exceptions"].__get__(error)) if is_group else ()


def storable(text: str) -> str:
    """The text as every database takes it for error_text."""
    text = text[:MAX_ERROR_LENGTH]
    # A lone surrogate fits into no database, and a NUL not into every one.
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:MAX_ERROR_LENGTH]


def _frames(trace: TracebackType | None, room: int) -> str:
    """Frames of a traceback, in its order: those of the site's own code first of all, and of these the last ones."""
    try:
        frames = [frame for frame in traceback.extract_tb(trace) if not frame.filename.startswith(OUR_FOLDER)]
        kept: dict[int, str] = {}
        # The first one is the task's own function, even if its module is installed among the libraries.
        is_of_library = [number > 0 and _is_of_library(frame.filename) for number, frame in enumerate(frames)]
        for number in sorted(range(len(frames)), key=lambda number: (is_of_library[number], -number)):
            text = traceback.format_list([frames[number]])[0]
            if len(text) > room:
                text = text[: text.index("\n") + 1]  # where it is, without its code
            if len(text) > room:
                break
            if text not in kept.values():  # a recursion has it often
                kept[number] = text
                room -= len(text)
        return "".join(kept[number] for number in sorted(kept)).rstrip("\n")
    except Exception:  # a source file that cannot be read, for example
        return ""


def _is_of_library(file: str) -> bool:
    return file.startswith(_LIBRARIES) or "/site-packages/" in file or "/dist-packages/" in file
