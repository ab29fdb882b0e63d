"""Arguments of a task as JSON text: written for a producer, read for a worker.

An object becomes keyword arguments, an array positional ones. Reading is strict: it refuses values that only some JSON
parsers accept (NaN, Infinity, overflowing numbers). Writing is in ASCII, as PHP's json_encode() does, so that a
connection with any character set can store it.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from ..errors import BadTask, InvalidTask
from ..messages.text import shown, truncate_middle

MAX_ARGS_BYTES = 1024 * 1024
MAX_KEY_SHOWN = 40
MAX_PLACE = 100
"""Characters in a message of the path to an invalid value."""

Arguments = tuple[list[Any], dict[str, Any]]
"""Positional and keyword arguments."""

encode = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode


# ---- written for a producer


def write_arguments(args: object, what: str = "args") -> str | None:
    """The JSON text of a dict, list, tuple or None; `what` names it in messages. Raises InvalidTask."""
    if args is None:
        return None
    if not isinstance(args, (dict, list, tuple)):
        allowed = "a dict, a list, a tuple or None; a single value stands in a list, such as [1]"
        raise InvalidTask(f"{what} is {shown(args)}; allowed: {allowed}")
    if isinstance(args, dict) and args and set(map(type, args)) != {str}:
        raise InvalidTask(f"{what} has keys that are not text, which cannot name arguments")
    return write_json(args, MAX_ARGS_BYTES, what)


def write_json(value: object, most_bytes: int, what: str) -> str:
    """The JSON text of a value; `what` names it in messages. Raises InvalidTask."""
    try:
        text = encode(value)
        if "\\ud" in text:  # a character beyond the first 65,536, or half of one, which other languages refuse
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise InvalidTask(f"{what} is nested too deep") from None
    except (TypeError, ValueError) as error:
        why = _unwritable(value, what) or f"{what} cannot be written as JSON: {error}"
        raise InvalidTask(why) from None
    if len(text) > most_bytes:
        raise InvalidTask(f"{what} takes {len(text)} bytes as JSON; allowed: {most_bytes}")
    return text


def _unwritable(value: object, place: str) -> str | None:
    """A sentence about the first invalid value inside this one; None without one."""
    where = truncate_middle(place, MAX_PLACE)
    try:
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, (str, int, float, type(None))):
                    return f"a key of {where} is of type {type(key).__name__}; allowed: str"
                if found := _unwritable(inner, f"{place}[{truncate_middle(shown(key), MAX_KEY_SHOWN)}]"):
                    return found
        elif isinstance(value, (list, tuple)):
            steps = (_unwritable(inner, f"{place}[{number}]") for number, inner in enumerate(value))
            return next(filter(None, steps), None)
        elif isinstance(value, float) and not math.isfinite(value):
            return f"{where} is {value}, which is not a JSON number"
        elif not isinstance(value, (str, int, float, type(None))):
            fix = "write str(x), x.isoformat(), x.pk or list(x), say"
            return f"{where} is of type {type(value).__name__}, which JSON cannot hold: {fix}"
    except Exception:  # code of the value's class, or too deep nesting
        return None
    return None


# ---- read for a worker


def read_arguments(text: str | None) -> Arguments:
    """The positional and keyword arguments in a row's JSON text. Raises BadTask."""
    return as_call(read_item(text))


def as_call(value: Any, *, takes_list: bool = False) -> Arguments:
    """A task's object or array as arguments; with `takes_list`, for a callable that takes a list of tasks."""
    if takes_list:
        return [[value]], {}
    return ([], value) if isinstance(value, dict) else (value, {})


def read_item(text: str | None) -> dict[str, Any] | list[Any]:
    """The object or array in a row's JSON text; {} for NULL, which means no arguments. Raises BadTask."""
    if text is None:
        return {}
    if not text:
        raise BadTask(
            "args is empty, as PHP's json_encode() returns when it fails: use JSON_THROW_ON_ERROR, and write NULL or "
            "{} for no arguments"
        )
    check_size(len(text))
    value: Any = parse_json(text)
    if value is None or isinstance(value, (dict, list)):
        return {} if value is None else value
    raise BadTask(f"args is {describe_bare(value)}; allowed: a JSON object, an array or NULL")


def check_size(size: int | None) -> None:
    """Refuse too large arguments before they are fetched. Raises BadTask."""
    if size is not None and size > MAX_ARGS_BYTES:
        raise BadTask(
            f"args is {size} bytes long; allowed: {MAX_ARGS_BYTES}; keep the rest elsewhere, and give its place"
        )


def describe_bare(value: object) -> str:
    """A value that is no object or array, in words, with the fix."""
    match value:
        case bool():
            return "true or false"
        case str() if value.lstrip()[:1] in ("{", "["):
            return "a bare string that holds JSON, so it was encoded twice: encode it once"
        case str():
            return 'a bare string: put it into an array, such as ["text"]'
        case _:
            return "a bare number: put it into an array, such as [5]"


def parse_json(text: str, what: str = "args") -> Any:
    """The value of a JSON text, read strictly; `what` names the text in messages. Raises BadTask."""
    try:
        text.encode()
        return _decode(text)
    except UnicodeEncodeError:
        raise BadTask(f"{what} is not UTF-8 text") from None
    except RecursionError:
        raise BadTask(f"{what} is nested too deep") from None
    except ValueError as error:
        raise BadTask(
            f"{what} is not valid JSON: {error}; write it by json_encode() in PHP or json.dumps() in Python"
        ) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


# One decoder for all texts: json.loads with options would make one for each.
_decode = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).decode
