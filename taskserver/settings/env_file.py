"""Reads the `.env` file with python-dotenv and checks every key.

An error gives a line's number but repeats nothing of it: each part of a mistyped line may be a piece of the password.
Imported only if the file exists.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from dotenv.parser import Binding, parse_stream

from ..errors import SettingError
from .table import ALL_KEYS, GONE, PREFIX, letters_of, nearest_key


def read_env_file(path: Path) -> dict[str, str]:
    """The non-empty settings of a `.env`, by key. Raises SettingError, and OSError if it cannot be read."""
    try:
        # utf-8-sig: Windows editors put a byte order mark before the first key.
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise SettingError(f"{path} cannot be read: it is not UTF-8: save it as UTF-8 text")
    settings = {}
    for binding in parse_stream(io.StringIO(text)):
        fault = _fault_of(binding)
        if fault:
            raise SettingError(f"{path}, line {_line_of(binding)} {fault}")
        if binding.key in ALL_KEYS and binding.value:
            settings[binding.key] = binding.value
    return settings


def _fault_of(binding: Binding) -> str:
    """The end of the sentence about a wrong line; empty for a valid one."""
    key, value = binding.key or "", binding.value
    if binding.error:  # an ignored line could be the mode or the password
        return "is not of the form KEY=value, or a quote in it is not closed; in quotes a ' of the value is written \\'"
    if key in GONE:
        return f"sets {key}, which {GONE[key]}"
    if key not in ALL_KEYS and letters_of(key).startswith(letters_of(PREFIX)):
        meant = nearest_key(key, 0.65)
        hint = f"did you mean {meant}?" if meant else f"allowed: {', '.join(ALL_KEYS)}"
        return f"{'lacks its =' if value is None else 'has an unknown key'}; {hint}"
    if key in ALL_KEYS and re.search(rf"{PREFIX}\w+\s*=", value or ""):
        return "holds two settings, or the key stands in its value once more; each setting has a line of its own"
    return ""


def _line_of(binding: Binding) -> int:
    """The line number of a setting: the parser includes the empty lines before it."""
    text = binding.original.string
    return int(binding.original.line) + len(re.findall(r"\r\n|\n|\r", text[: len(text) - len(text.lstrip())]))
