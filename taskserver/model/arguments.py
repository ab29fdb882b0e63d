"""Arguments of a task as JSON text: written for a producer, read for a worker.

An object becomes keyword arguments, an array positional ones. Reading is strict: values that some JSON parsers take
and others refuse (NaN, Infinity, numbers that overflow) are refused, and no text exhausts the stack or the memory.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NoReturn

from ..errors import BadTask, InvalidTask
from ..messages.text import shown

MAX_ARGS_BYTES = 1024 * 1024
MAX_NESTING = 500
MAX_LOOKED_AT_CHARACTERS = 2000
"""Characters of a text that is no JSON; a hint at its form is taken from these."""

Arguments = tuple[list[Any], dict[str, Any]]
"""Positional and keyword arguments."""

encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def write_arguments(args: object, what: str = "args") -> str | None:
    """The JSON text of a dict, list, tuple or None. Raises InvalidTask, which calls the arguments `what`."""
    if args is None:
        return None
    if not isinstance(args, (dict, list, tuple)):
        allowed = "a dict, a list, a tuple or None; a single value stands in a list, as [1]"
        raise InvalidTask(f"{what} is {shown(args)}; allowed: {allowed}")
    if isinstance(args, dict) and args and set(map(type, args)) != {str}:
        raise InvalidTask(f"{what} has keys that are no text, which cannot be names of arguments")
    return write_json(args, MAX_ARGS_BYTES, what)


def write_json(value: object, most_bytes: int, what: str) -> str:
    """The JSON text of a value. Raises InvalidTask, which calls the value `what`, and says why there is no text."""
    try:
        text = encode(value)
        size = len(text) if text.isascii() else len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTask(_why_not_written(value, what, error)) from None
    if _is_nested_too_deep(text):
        raise InvalidTask(f"{what} is nested more than {MAX_NESTING} deep")
    if size > most_bytes:
        raise InvalidTask(f"{what} takes {size} bytes as JSON; allowed: {most_bytes}")
    return text


def _why_not_written(value: object, what: str, error: Exception) -> str:
    from .unwritable import fault_in  # most values can be written

    return fault_in(value, what) or f"{what} cannot be written as JSON: {error or type(error).__name__}"


def read_arguments(text: str | None) -> Arguments:
    """The positional and the keyword arguments in a row's JSON text. Raises BadTask."""
    return as_call(read_item(text))


def as_call(value: Any, *, takes_list: bool = False) -> Arguments:
    """A task's object or array as arguments; with `takes_list` those of a callable that gets one list of them."""
    if takes_list:
        return [[value]], {}
    return ([], value) if isinstance(value, dict) else (value, {})


def read_item(text: str | None) -> dict[str, Any] | list[Any]:
    """The object or the array in a row's JSON text; {} where there are no arguments. Raises BadTask."""
    if text is None or not text.strip():
        return {}
    check_size(len(text))
    value = parse_json(text)
    if isinstance(value, (dict, list)):
        return value
    if value is None:
        return {}
    raise BadTask(f"args is {describe_bare(value)}; allowed: a JSON object, an array, NULL or nothing")


def check_size(size: int | None) -> None:
    """Refuse arguments by their size in bytes, before they are fetched. Raises BadTask."""
    if size is not None and size > MAX_ARGS_BYTES:
        raise BadTask(
            f"args is {size} bytes long; allowed: {MAX_ARGS_BYTES}; keep the rest elsewhere, and give its place"
        )


def parse_json(text: str, what: str = "args") -> Any:
    """The value of a JSON text, read strictly. Raises BadTask, which calls the text `what`."""
    if _is_nested_too_deep(text):
        raise BadTask(f"{what} is nested more than {MAX_NESTING} deep")
    try:
        text.encode()
        return _read(text)
    except UnicodeEncodeError:
        raise BadTask(f"{what} is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise BadTask(f"{what} is not valid JSON: {error or type(error).__name__}; {_way_out(text)}") from None


def _is_nested_too_deep(text: str) -> bool:
    # Counting is quick; only a text with that many brackets is read character by character.
    return len(text) > MAX_NESTING and text.count("[") + text.count("{") > MAX_NESTING and _nesting(text) > MAX_NESTING


def _nesting(text: str) -> int:
    """How deep brackets stand in each other; brackets inside strings do not count."""
    depth = deepest = 0
    inside_string = escaped = False
    for character in text:
        if inside_string:
            inside_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            inside_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def in_ascii(text: str | None, most_bytes: int) -> str | None:
    r"""JSON text with \u00e9 for é, which a session of any character set takes.

    The text as it is, where that would be longer than `most_bytes`.
    """
    if text is None or text.isascii():
        return text
    escaped = _BEYOND_ASCII.sub(_escaped, text)
    return escaped if len(escaped) <= most_bytes else text


def _escaped(found: re.Match[str]) -> str:
    r"""A character as \u and four digits; as two surrogates, where four digits are too few."""
    units = found[0].encode("utf-16-be").hex()
    return "".join(f"\\u{units[first : first + 4]}" for first in range(0, len(units), 4))


_BEYOND_ASCII = re.compile("[^\x00-\x7f]")


def describe_bare(value: object) -> str:
    """Words for a value that stands where an object or an array belongs, and for how to make one of it."""
    match value:
        case bool():
            return "true or false"
        case str() if value.lstrip()[:1] in ("{", "["):
            return "a bare string that holds JSON, so it was encoded twice: encode it once"
        case str():
            return 'a bare string: put it into an array, as ["text"]'
        case _:
            return "a bare number: put it into an array, as [5]"


def _way_out(text: str) -> str:
    """Words for the form that a text which is no JSON has, and for how to make JSON of it."""
    begin = text[:MAX_LOOKED_AT_CHARACTERS]
    outside = _STRING.sub('""', begin)
    return next((mend for form, mend in _MISTAKES if form.search(outside)), _WRITERS)


_WRITERS = "json_encode() in PHP and json.dumps() in Python write it"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"?', re.DOTALL)  # one without an end, too, or each quote in it would be tried
_MISTAKES = tuple(
    (re.compile(form), mend)
    for form, mend in (
        (r"^\ufeff", "a byte order mark stands before it: take that away"),
        (r"^\s*(?:[aOsC]:\d+:|[bid]:[-\d.]+;|N;)", "that is PHP's serialize(): use json_encode()"),
        (r"=>", "that is PHP's own form: use json_encode()"),
        ("[“”„‘’]", 'it has curly quotes: write straight ones, "'),
        (r"'", 'it has single quotes, and JSON double ones: {"to": "a@example.org"}; in Python use json.dumps()'),
        (r"\b(?:True|False|None)\b", "JSON writes true, false and null: in Python use json.dumps()"),
        (r",\s*[\]}]", "take away the comma before the closing bracket"),
        (r"[{,]\s*[^\W\d][\w-]*\s*:", 'names and texts stand in double quotes: {"to": "a@example.org"}'),
        (r"^\s*\w+=", "that is the form of a web address: use json_encode()"),
    )
)
"""The form of a mistake and its mend; looked for in this order, outside of strings."""

# One decoder for all texts: json.loads with options would make one for each.
_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # type: ignore[attr-defined]


def _read(text: str) -> Any:
    # Most texts are one value from end to end. The decoder also allows for spaces, and takes twice as long.
    try:
        value, end = _scan(text, 0)
        if end == len(text):
            return value
    except StopIteration:
        pass
    return _decoder.decode(text)
