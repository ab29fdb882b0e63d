"""What is kept of an exception: the text for the column error_text."""

from __future__ import annotations

from collections.abc import Callable

MAX_ERROR_LENGTH = 1000

# Read past whatever a class of exceptions says of itself.
_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__


def describe(error: BaseException) -> str:
    """`Type: message`, in at most 1,000 characters, and storable whatever the exception holds."""
    try:
        message = str(error)
    except BaseException:  # the exception's own code runs here, which can do anything
        message = "(its text cannot be had)"
    # Joined, not formatted: the message may be of a kind of str that formats in its own way.
    text = "".join((_name_of(type(error)), ": ", message))[:MAX_ERROR_LENGTH]
    # A lone surrogate fits into no database, and a NUL not into every one.
    return text.encode(errors="backslashreplace").decode().replace("\0", "\\0")[:MAX_ERROR_LENGTH]
