"""The `.env` file: read with python-dotenv, and every key in it checked.

An error names a line by its number and repeats nothing of it: where a `=` or the end of a line is missing, each part of
a line may be a piece of the password.
Imported where there is such a file; an installation that keeps its settings in the environment does not pay for it.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from dotenv.parser import Binding, parse_stream

from ..errors import SettingError
from .checks import ALL_KEYS, GONE, PREFIX, letters_of, nearest_key

_ANOTHER_SETTING = re.compile(rf"({'|'.join(ALL_KEYS)})\s*=")
_CURLED = re.compile(r"[^=]*=[ \t]*[‘’“”„‚]")


def read_env_file(path: Path) -> dict[str, str]:
    """The settings of a `.env` that are not empty, by key. Raises SettingError, and OSError where it can't be read."""
    bindings = _bindings_in(path)
    for binding in bindings:
        fault = _fault_of(binding)
        if fault:
            raise SettingError(f"{path}, line {_line_of(binding)} {fault}")
    return {
        binding.key: binding.value
        for binding in bindings
        if binding.key and binding.value and binding.key.startswith(PREFIX)
    }


def _bindings_in(path: Path) -> list[Binding]:
    content = path.read_bytes()
    try:
        # utf-8-sig: Windows editors put a byte order mark before the first key.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise SettingError(f"{path} cannot be read: line {number} is not UTF-8: save it as UTF-8 text") from None
    if "\0" in text:
        raise SettingError(f"{path} cannot be read: it holds zero bytes, as UTF-16 does: save it as UTF-8 text")
    return list(parse_stream(io.StringIO(text)))


def _fault_of(binding: Binding) -> str:
    """The end of the sentence about a line that is wrong; empty for one that is right."""
    # A line that is passed over could be the mode or the password.
    if binding.error:
        return "is not of the form KEY=value, or a quote in it is not closed; in quotes a ' of the value is written \\'"
    key = binding.key or ""
    if key in GONE:
        return f"sets {key}, which {GONE[key]}"
    # A mistyped key's setting would keep the default, so mode delete where rows were to be kept.
    if key not in ALL_KEYS and _is_meant_as_setting(key):
        meant = _meant_by(key)
        hint = f"; did you mean {meant}?" if meant else f"; allowed: {', '.join(ALL_KEYS)}"
        # A key that is nearly one is no piece of a value: it has its '='.
        is_key = binding.value is not None and nearest_key(key, 0.85)
        return f"has an unknown key{hint}" if is_key else f"has an unknown key, or lacks its '='{hint}"
    if key in ALL_KEYS and _CURLED.match(binding.original.string):
        return "has a curly quote around its value, as word processors write: write straight ones (') in their place"
    if key in ALL_KEYS and _ANOTHER_SETTING.search(binding.value or ""):
        return "holds two settings, or the key stands in its value once more; each setting has a line of its own"
    return ""


def _is_meant_as_setting(key: str) -> bool:
    """Whether a key is a setting in whatever spelling: taskserver_dsn, TASKSERVER-DSN, TASK_SERVER_DSN."""
    return key.upper().startswith(PREFIX) or letters_of(key) in map(letters_of, ALL_KEYS)


def _meant_by(key: str) -> str | None:
    """The setting that a mistyped key may have meant: where the `=` is missing, the value follows its name."""
    name = re.split(r"[^\w-]", key)[0]
    begun = (one for one in ALL_KEYS if letters_of(name).startswith(letters_of(one)))
    return next(begun, None) or nearest_key(name, 0.65)


def _line_of(binding: Binding) -> int:
    """The number of a setting's own line: the parser counts the empty lines before it to it."""
    text = binding.original.string
    return int(binding.original.line) + len(re.findall(r"\r\n|\n|\r", text[: len(text) - len(text.lstrip())]))
