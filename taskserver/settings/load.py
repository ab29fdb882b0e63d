"""The settings of a program: from the environment, then from the `.env` in its folder.

Read once when a program starts. A wrong value is a SettingError that names the key and what is allowed.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

import os
import sys
from binascii import crc32
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..errors import SettingError
from ..messages.programs import CLIENT, IS_INSTALLED
from ..messages.text import shown
from ..model.backoff import DAY_SECONDS, Backoff, parse_backoff
from ..model.run_pauses import RunPauses, parse_run_pauses
from ..model.task import DEFAULT_TABLE, MAX_ATTEMPTS, MAX_SECONDS
from .checks import (
    ALL_KEYS,
    GONE,
    LOG_FORMATS,
    LOG_LEVELS,
    PREFIX,
    Hook,
    check_between,
    check_mode,
    check_modules,
    check_on_failure,
    check_setup,
    check_table,
    check_whole_number,
    function_or,
    nearest_key,
    one_of,
    seconds_as_text,
    whole_number_as_text,
)
from .dsn import Dsn, parse_dsn

T = TypeVar("T")

_hidden: dict[str, str] = {}
"""Settings that were taken out of the environment; this process alone still knows them."""


class Settings(NamedTuple):
    """All settings, each as the type that the program works with."""

    folder: Path
    """Relative paths start here, and it is importable."""
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
    pauses: RunPauses = RunPauses()
    log_file: Path | None = None
    log_level: str = "info"
    log_format: str = "text"
    setup: Hook = None
    between: Hook = None
    on_failure: Hook = None

    @property
    def queue(self) -> str:
        """The name of the queue, without secrets: its database and its table."""
        return f"{self.dsn.place} {self.table}"


def program_folder(given: str | Path | None = None) -> Path:
    """The folder that is given, or else that of the program that was started; of a prompt or `-c`, the current one.

    Raises SettingError.
    """
    if given is not None and not isinstance(given, (str, Path)):
        raise SettingError(f"folder is {shown(given)}; allowed: a path, as a text or a pathlib.Path")
    if given:
        return Path(given).absolute()  # a task may change the current folder
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(os.path.realpath(main_file)).parent if main_file else Path.cwd()


def outages_in(folder: Path) -> Path:
    """Where a deployment keeps which errors were said within the hour: at home if another account has its var/."""
    var = folder / "var"
    if os.path.isdir(var) and not os.access(var, os.W_OK | os.X_OK):
        return Path(os.path.expanduser("~"), f".taskserver-{crc32(bytes(folder)):08x}")
    return var / "outages"


def make_importable(folder: Path) -> None:
    """Let modules in this folder be imported, as tasks.py beside worker.py."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def make_settings(
    folder: str | Path | None,
    dsn: str,
    password: str,
    table: str,
    mode: str,
    modules: str | Sequence[str],
    max_attempts: int,
    backoff: str,
    lease: int,
    timeout: int,
    db_patience: int,
    pauses: str,
    setup: Hook,
    between: Hook,
    on_failure: Hook,
) -> Settings:
    """Check settings that are given in Python, without a log file; `folder` as in `program_folder`.

    Raises SettingError, which calls each by the name that it has here.
    """
    place = program_folder(folder)
    return Settings(
        folder=place,
        dsn=parse_dsn(dsn, password),
        table=check_table("table", table),
        mode=check_mode("mode", mode),
        modules=check_modules("modules", modules, place),
        max_attempts=check_whole_number("max_attempts", max_attempts, 1, MAX_ATTEMPTS),
        backoff=parse_backoff("backoff", backoff),
        lease_seconds=check_whole_number("lease", lease, 1, MAX_SECONDS),
        timeout_seconds=check_whole_number("timeout", timeout, 0, MAX_SECONDS),
        patience_seconds=check_whole_number("db_patience", db_patience, 0, DAY_SECONDS),
        pauses=parse_run_pauses("pauses", pauses),
        setup=function_or(check_setup, "setup", setup),
        between=function_or(check_between, "between", between),
        on_failure=function_or(check_on_failure, "on_failure", on_failure),
    )


def load_settings(folder: Path, environ: Mapping[str, str] = os.environ, env_file: Path | None = None) -> Settings:
    """Read and check every setting of a deployment; `env_file` is the `.env` in its folder unless given.

    Raises SettingError.
    """
    found = found_settings(folder, environ, env_file)
    if not found.get("TASKSERVER_DSN"):
        raise _no_dsn(env_file or folder / ".env", environ)

    def read(key: str, check: Callable[[str, str], T], default: T) -> T:
        value = found.get(PREFIX + key)
        return check(PREFIX + key, value) if value else default

    defaults = Settings._field_defaults
    return Settings(
        folder=folder,
        dsn=parse_dsn(found["TASKSERVER_DSN"], found.get("TASKSERVER_PASSWORD", "")),
        table=read("TABLE", check_table, DEFAULT_TABLE),
        mode=read("MODE", check_mode, "delete"),
        modules=read("MODULES", lambda key, value: check_modules(key, value, folder), defaults["modules"]),
        max_attempts=read("MAX_ATTEMPTS", whole_number_as_text(1, MAX_ATTEMPTS), defaults["max_attempts"]),
        backoff=read("BACKOFF", parse_backoff, defaults["backoff"]),
        lease_seconds=read("LEASE", seconds_as_text(1, MAX_SECONDS), defaults["lease_seconds"]),
        timeout_seconds=read("TIMEOUT", seconds_as_text(0, MAX_SECONDS), defaults["timeout_seconds"]),
        patience_seconds=read("DB_PATIENCE", seconds_as_text(0, DAY_SECONDS), defaults["patience_seconds"]),
        pauses=read("PAUSES", parse_run_pauses, defaults["pauses"]),
        log_file=folder / found["TASKSERVER_LOG"] if found.get("TASKSERVER_LOG") else None,
        log_level=read("LOG_LEVEL", one_of(LOG_LEVELS), defaults["log_level"]),
        log_format=read("LOG_FORMAT", one_of(LOG_FORMATS), defaults["log_format"]),
        setup=read("SETUP", check_setup, defaults["setup"]),
        between=read("BETWEEN", check_between, defaults["between"]),
        on_failure=read("ON_FAILURE", check_on_failure, defaults["on_failure"]),
    )


def found_settings(
    folder: Path, environ: Mapping[str, str] = os.environ, env_file: Path | None = None
) -> dict[str, str]:
    """The texts of all settings that are given, by key; a blank value is none. Raises SettingError."""
    in_file, in_environment = given_settings(folder, environ, env_file)
    return in_file | in_environment


def given_settings(
    folder: Path, environ: Mapping[str, str], env_file: Path | None
) -> tuple[dict[str, str], dict[str, str]]:
    """What the `.env` gives, and what the environment gives, which wins. Raises SettingError."""
    if env_file is not None and not env_file.is_file():
        raise SettingError(f"there is no file {env_file}, from which --env has settings read; allowed: a plain file")
    in_file = _settings_in(env_file or folder / ".env")
    given = {key: value for key, value in {**_hidden, **environ}.items() if key.startswith(PREFIX) and value}
    _check_environment(given)
    return in_file, given


def hide_secrets() -> None:
    """Take passwords out of the environment, which programs that tasks start inherit.

    `load_settings` still finds them in this process, and in those that it forks. Call it after a first `load_settings`.
    """
    for key in ("TASKSERVER_PASSWORD", "TASKSERVER_DSN"):
        value = os.environ.get(key)
        if value and (key != "TASKSERVER_DSN" or parse_dsn(value).password):
            _hidden[key] = value
            del os.environ[key]


def _settings_in(env_file: Path) -> dict[str, str]:
    """The settings of a `.env` by key; none where there is no such file. Raises SettingError."""
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


def _check_environment(keys: Iterable[str]) -> None:
    """Refuse keys that are very much like a setting; others in the environment may begin as ours do."""
    for key in keys:
        if key in GONE:
            raise SettingError(f"the environment sets {key}, which {GONE[key]}")
        meant = None if key in ALL_KEYS else nearest_key(key, 0.85)
        if meant:
            raise SettingError(f"the environment names {key[:60]}, which is no setting; did you mean {meant}?")


def _no_dsn(env_file: Path, environ: Mapping[str, str]) -> SettingError:
    from ..messages.misplaced_files import settings_elsewhere

    hint = (
        "; the environment names it in small letters" if "taskserver_dsn" in environ else settings_elsewhere(env_file)
    )
    if IS_INSTALLED and not env_file.exists() and "--folder" not in hint:
        hint += "; --folder DIR names another folder than this one"
    return SettingError(
        f"TASKSERVER_DSN is not set, neither in the environment nor in {env_file}: "
        "put it there, as TASKSERVER_DSN=mysql://user:password@localhost/database (or postgresql://), or as "
        f"TASKSERVER_DSN=sqlite:///var/taskserver.db for SQLite, which {CLIENT} init does where there is no .env{hint}"
    )


# ---- packages that a host may lack


def require_dotenv(folder: Path) -> None:
    """Raise SettingError, with the way out, where the package that reads `.env` is missing."""
    try:
        import dotenv  # noqa: F401
    except ImportError:
        raise SettingError(
            f"python-dotenv is missing, which reads {folder / '.env'}: {how_to_install(folder, 'dotenv')}"
        ) from None


def how_to_install(folder: Path, package: str) -> str:
    """The way out where a required package is missing; `folder` is the program's, the package named as it is there."""
    if (folder / "START-HERE.txt").exists():
        return f"the folder {folder / package} is missing, or not whole: upload it again"
    python = folder / ".venv" / "bin" / "python"
    if python.exists():
        return f"start this with {python}"
    return "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt, then start this with .venv/bin/python"
