"""The settings of a program: from the environment, then from the `.env` in its folder.

Read once when a program starts. A wrong value is a SettingError that names the key and what is allowed.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which slows down each empty run.

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import SettingError
from ..messages.programs import CLIENT, IS_INSTALLED
from ..messages.text import shown
from ..model.backoff import Backoff
from ..model.task import DEFAULT_TABLE
from .dsn import Dsn, parse_dsn
from .table import ALL_KEYS, GONE, PREFIX, SETTINGS, Hook, RunPauses, fields_of, nearest_key

NAMES_LIKE_ENV = ("env", ".env.txt", "env.txt")
_hidden: dict[str, str] = {}
"""Settings that were removed from the environment; only this process still has them."""


class Settings(NamedTuple):
    """All settings, parsed."""

    folder: Path
    """Relative paths start here, and its modules can be imported."""
    dsn: Dsn
    table: str = DEFAULT_TABLE
    mode: str = "delete"
    modules: tuple[str, ...] = ("tasks",)
    max_attempts: int = 10
    backoff: Backoff = Backoff("exponential", 60)
    lease_seconds: int = 120
    timeout_seconds: int = 600
    """0: no limit."""
    patience_seconds: int = 30
    keep_seconds: int | None = None
    """How long done rows are kept; None: for ever."""
    pauses: RunPauses = RunPauses()
    log_file: Path | None = None
    log_level: str = "info"
    log_format: str = "text"
    setup: Hook = None
    between: Hook = None
    on_failure: Hook = None

    @property
    def queue(self) -> str:
        """Database and table, without secrets."""
        return f"{self.dsn.place} {self.table}"


def program_folder(given: str | Path | None = None) -> Path:
    """The given folder, or the started program's; for a prompt or `-c`, the current one. Raises SettingError."""
    if given is not None and not isinstance(given, (str, Path)):
        raise SettingError(f"folder is {shown(given)}; allowed: a path, as a text or a pathlib.Path")
    if given:
        return Path(given).absolute()  # a task may change the current folder
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(os.path.realpath(main_file)).parent if main_file else Path.cwd()


def make_importable(folder: Path) -> None:
    """Make modules in this folder importable, such as tasks.py beside worker.py."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def make_settings(folder: str | Path | None, given: Mapping[str, Any]) -> Settings:
    """Settings from Python, by name; `folder` as in `program_folder`. Raises SettingError."""
    return _settings(program_folder(folder), given, in_python=True)


def load_settings(folder: Path, environ: Mapping[str, str] = os.environ, env_file: Path | None = None) -> Settings:
    """Read and check all settings of a deployment; `env_file` defaults to its `.env`. Raises SettingError."""
    found = found_settings(folder, environ, env_file)
    if "dsn" not in found:
        file = env_file or folder / ".env"
        hint = misnamed(file)
        if IS_INSTALLED and not file.exists():
            hint += "; --folder DIR names another folder than this one"
        raise SettingError(
            f"TASKSERVER_DSN is not set, neither in the environment nor in {file}: put it there, "
            "as TASKSERVER_DSN=mysql://user:password@localhost/database (or postgresql://), or as TASKSERVER_DSN="
            f"sqlite:///var/taskserver.db for SQLite, which {CLIENT} init does where there is no .env{hint}"
        )
    return _settings(folder, found)


def _settings(folder: Path, given: Mapping[str, Any], in_python: bool = False) -> Settings:
    dsn = parse_dsn(given["dsn"], given.get("password", ""))
    settings = Settings(folder, dsn, **fields_of(SETTINGS, given, in_python))
    return settings._replace(log_file=folder / settings.log_file) if settings.log_file else settings


def found_settings(folder: Path, environ: Mapping[str, str], env_file: Path | None) -> dict[str, str]:
    """The non-empty settings as texts, by name. Raises SettingError."""
    in_file, in_environment = given_settings(folder, environ, env_file)
    return {key.removeprefix(PREFIX).lower(): value for key, value in (in_file | in_environment).items()}


def given_settings(
    folder: Path, environ: Mapping[str, str], env_file: Path | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of the `.env` by key, and those of the environment, which win. Raises SettingError."""
    if env_file is not None and not env_file.is_file():
        raise SettingError(f"there is no file {env_file}, which --env names; allowed: a plain file")
    in_file = _settings_in(env_file or folder / ".env")
    given = {key: value for key, value in {**_hidden, **environ}.items() if key.startswith(PREFIX) and value}
    for key in given:
        if key in GONE:
            raise SettingError(f"the environment sets {key}, which {GONE[key]}")
        # Refuse only keys that are very similar to a setting: other programs' variables may have our prefix.
        if key not in ALL_KEYS and (meant := nearest_key(key, 0.85)):
            raise SettingError(f"the environment names {key[:60]}, which is not a setting; did you mean {meant}?")
    return in_file, {key: given[key] for key in ALL_KEYS if key in given}


def sources(folder: Path, env_file: Path | None) -> tuple[str, list[str]]:
    """Which settings are given where, in words without values; and the keys that the environment overrides.

    These have another value in the `.env`. Raises SettingError.
    """
    in_file, in_environment = given_settings(folder, os.environ, env_file)
    file = env_file or folder / ".env"
    overruling = [key for key, value in in_environment.items() if in_file.get(key, value) != value]
    places = {file: [key for key in in_file if key not in in_environment], "environment": in_environment}
    parts = [f"from {place}: {', '.join(keys)}" for place, keys in places.items() if keys]
    if overruling:
        parts.append(f"the environment wins over another value in {file} for {', '.join(overruling)}")
    return "; ".join(parts) or "all settings have their defaults", overruling


def hide_secrets() -> None:
    """Remove passwords from the environment, which programs that tasks start would inherit.

    `load_settings` still finds them in this process and its forks. Call this after a first `load_settings`.
    """
    for key in ("TASKSERVER_PASSWORD", "TASKSERVER_DSN"):
        value = os.environ.get(key)
        if value and (key != "TASKSERVER_DSN" or parse_dsn(value).password):
            _hidden[key] = value
            del os.environ[key]


def _settings_in(env_file: Path) -> dict[str, str]:
    """The settings of a `.env` by key, if the file exists. Raises SettingError."""
    try:
        if not env_file.exists() or env_file.is_dir():
            return {}
        require_dotenv(env_file.parent)
        from .env_file import read_env_file

        return read_env_file(env_file)
    except OSError as error:
        raise SettingError(
            f"{env_file} cannot be read: {error.strerror}: it must be readable for the user of this program"
        ) from None


def misnamed(env_file: Path) -> str:
    """The end of the message that nothing is set: a misnamed file in the same folder; empty without one."""
    other = next((name for name in NAMES_LIKE_ENV if env_file.with_name(name).is_file()), None)
    return f"; {env_file.with_name(other)} is not read: rename it to {env_file.name}" if other else ""


# ---- packages that a host may lack


def require_dotenv(folder: Path) -> None:
    """Raises SettingError, with the fix, if the package that reads `.env` is missing."""
    try:
        import dotenv  # noqa: F401
    except ImportError:
        raise SettingError(
            f"python-dotenv is missing, which reads {folder / '.env'}: {how_to_install(folder, 'dotenv')}"
        ) from None


def how_to_install(folder: Path, package: str) -> str:
    """The fix for a missing required package; `folder` is the program's."""
    if (folder / "START-HERE.txt").exists():
        return f"the folder {folder / package} is missing or incomplete: upload it again"
    python = folder / ".venv" / "bin" / "python"
    if python.exists():
        return f"start this with {python}"
    return "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt, then start this with .venv/bin/python"
