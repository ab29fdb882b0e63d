"""The `.env` file: read with python-dotenv, and every key in it checked.

Imported where there is such a file; an installation that keeps its settings in the environment does not pay for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from dotenv.parser import Binding, parse_stream

from ..errors import SettingError
from .checks import PREFIX, SETTING_KEYS, letters_of, nearest_key

SECRET_KEYS = ("TASKSERVER_DSN", "TASKSERVER_PASSWORD")


def read_env_file(path: Path) -> dict[str, str]:
    """The settings of a `.env` that are not empty, by key. Raises SettingError, and OSError where it can't be read."""
    bindings = _bindings_in(path)
    # A line that is passed over could be the mode or the password.
    broken = next((binding.original.line for binding in bindings if binding.error), None)
    if broken is not None:
        raise SettingError(f"{path}, line {broken} is not of the form KEY=value, or a quote in it is not closed")
    _check_keys(path, [binding.key for binding in bindings if binding.key])
    return {
        binding.key: binding.value
        for binding in bindings
        if binding.key and binding.value and binding.key.startswith(PREFIX)
    }


def _bindings_in(path: Path) -> list[Binding]:
    try:
        # utf-8-sig: Windows editors put a byte order mark before the first key.
        with path.open(encoding="utf-8-sig") as file:
            bindings = list(parse_stream(file))
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} cannot be read: {error}: save it as UTF-8 text") from None
    if any("\0" in binding.original.string for binding in bindings):
        raise SettingError(f"{path} cannot be read: it holds zero bytes, as UTF-16 does: save it as UTF-8 text")
    return bindings


def _check_keys(path: Path, keys: Iterable[str]) -> None:
    """Refuse a mistyped key: its setting would keep the default, so mode delete where rows were to be kept."""
    unknown = next((key for key in keys if key not in SETTING_KEYS and _is_meant_as_setting(key)), None)
    if unknown is None:
        return
    meant = nearest_key(unknown, 0.6)
    hint = f"; did you mean {meant}?" if meant else f"; allowed: {', '.join(SETTING_KEYS)}"
    raise SettingError(f"{path} names {_without_secret(unknown)}, which is no setting, or lacks its '='{hint}")


def _is_meant_as_setting(key: str) -> bool:
    """Whether a key is a setting in whatever spelling: taskserver_dsn, TASKSERVER-DSN, TASK_SERVER_DSN."""
    return key.upper().startswith(PREFIX) or letters_of(key) in map(letters_of, SETTING_KEYS)


def _without_secret(key: str) -> str:
    """The part of a mistyped key that an error may show: where the `=` is missing, the password follows the name."""
    name = re.split(r"[^\w-]|->", key)[0][:60]
    letters = letters_of(name)
    secret = next((one for one in SECRET_KEYS if _goes_on_after(letters_of(one), letters)), None)
    return name if secret is None else f"{secret}…"


def _goes_on_after(name: str, letters: str) -> bool:
    return letters.startswith(name) and len(letters) > len(name) + 1
