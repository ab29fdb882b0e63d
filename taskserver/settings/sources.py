"""Who set what: for each setting, whether its value comes from the environment, from the `.env`, or is the default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .load import given_settings
from .table import ALL_KEYS


class Source(NamedTuple):
    """Where the value of a setting comes from; the value itself, which may be a password, is not here."""

    key: str
    place: str
    """`environment`, the path of the `.env`, or `default`."""
    overrides: bool
    """Whether the environment sets it, and the `.env` sets another value."""


def sources(folder: Path, environ: Mapping[str, str] = os.environ, env_file: Path | None = None) -> list[Source]:
    """The sources of all settings, of the files as in `load_settings`. Raises SettingError."""
    in_file, in_environment = given_settings(folder, environ, env_file)

    def source_of(key: str) -> Source:
        if key in in_environment:
            return Source(key, "environment", in_file.get(key, in_environment[key]) != in_environment[key])
        return Source(key, str(env_file or folder / ".env") if key in in_file else "default", False)

    return [source_of(key) for key in ALL_KEYS]


def sources_in_words(folder: Path, env_file: Path | None = None) -> str:
    """The names of the settings that are given, and where; without a value."""
    found = sources(folder, env_file=env_file)
    places = dict.fromkeys(one.place for one in found if one.place != "default")
    parts = [f"from {place}: {', '.join(one.key for one in found if one.place == place)}" for place in places]
    overriding = [one.key for one in found if one.overrides]
    if overriding:
        parts.append(
            f"the environment wins over another value in {env_file or folder / '.env'} for {', '.join(overriding)}"
        )
    return "; ".join(parts) or "all settings have their defaults"
