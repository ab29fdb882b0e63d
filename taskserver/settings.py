"""The settings of a program: from the environment, then from the `.env` in its folder.

Read once when a program starts. A wrong value is a SettingError that names the key and what is allowed.
"""

# Annotations are not deferred here: named tuples compile deferred ones, which each empty run would pay for.

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from .backoff import DAY_SECONDS, Backoff, parse_backoff
from .dsn import Dsn, parse_dsn
from .errors import SettingError

if TYPE_CHECKING:
    from dotenv.parser import Binding

PREFIX = "TASKSERVER_"
MODES = ("delete", "move", "mark")
DEFAULT_TABLE = "jobs_queue"
MAX_BATCH = 1000
MAX_ATTEMPTS = 1_000_000
LONGEST_SECONDS = 7 * DAY_SECONDS
"""Of a lease and a timeout."""

# Compiled when they are used: most settings are left alone, and a run is started each minute.
_TABLE = r"[A-Za-z_][A-Za-z0-9_]{0,39}"
_MODULE = r"[^\W\d]\w*(\.[^\W\d]\w*)*(\.\*)?"

_NAMES = (
    "DSN",
    "PASSWORD",
    "TABLE",
    "MODE",
    "MODULES",
    "MAX_ATTEMPTS",
    "BACKOFF",
    "LEASE",
    "TIMEOUT",
    "DB_PATIENCE",
    "LOG",
)
KEYS = tuple(PREFIX + name for name in _NAMES)
SECRET_KEYS = ("TASKSERVER_DSN", "TASKSERVER_PASSWORD")

T = TypeVar("T")


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
    patience_seconds: int = 30
    log_file: Path | None = None


def program_folder() -> Path:
    """The folder of the program that was started; of a Python prompt or `-c`, the current one."""
    main_file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(os.path.realpath(main_file)).parent if main_file else Path.cwd()


def load_settings(folder: Path, environ: Mapping[str, str] = os.environ) -> Settings:
    """Read and check every setting. Raises SettingError."""
    found = _read_env_file(folder / ".env")
    given = {key: value for key, value in environ.items() if key.startswith(PREFIX) and value}
    found.update(given)
    _check_environment(given)
    if not found.get("TASKSERVER_DSN"):
        raise _no_dsn(folder / ".env", environ)

    def read(key: str, check: Callable[[str, str], T], default: T) -> T:
        value = found.get(PREFIX + key)
        return check(PREFIX + key, value) if value else default

    defaults = Settings._field_defaults
    return Settings(
        folder=folder,
        dsn=parse_dsn(found["TASKSERVER_DSN"], found.get("TASKSERVER_PASSWORD", "")),
        table=read("TABLE", check_table, DEFAULT_TABLE),
        mode=read("MODE", check_mode, "delete"),
        modules=read("MODULES", check_modules, defaults["modules"]),
        max_attempts=read("MAX_ATTEMPTS", _whole_number(1, MAX_ATTEMPTS), defaults["max_attempts"]),
        backoff=read("BACKOFF", parse_backoff, defaults["backoff"]),
        lease_seconds=read("LEASE", _whole_number(1, LONGEST_SECONDS), defaults["lease_seconds"]),
        timeout_seconds=read("TIMEOUT", _whole_number(0, LONGEST_SECONDS), defaults["timeout_seconds"]),
        patience_seconds=read("DB_PATIENCE", _whole_number(0, DAY_SECONDS), defaults["patience_seconds"]),
        log_file=folder / found["TASKSERVER_LOG"] if found.get("TASKSERVER_LOG") else None,
    )


def check_table(key: str, value: str) -> str:
    """A queue table's name; `key` is what an error calls it."""
    if not (isinstance(value, str) and re.fullmatch(_TABLE, value)):
        raise _wrong(key, value, "a letter or _, then up to 39 letters, digits or _")
    return value


def check_mode(key: str, value: str) -> str:
    """One of MODES; `key` is what an error calls it."""
    if value not in MODES:
        raise _wrong(key, value, " or ".join(MODES))
    return value


def check_modules(key: str, value: str) -> tuple[str, ...]:
    """Listed modules; `key` is what an error calls them."""
    modules = tuple(dict.fromkeys(part.strip() for part in value.split(",")))
    if not all(re.fullmatch(_MODULE, module) for module in modules):
        raise _wrong(key, value, "module names with commas between them, as tasks,shop.jobs.*")
    return modules


def _whole_number(least: int, most: int) -> Callable[[str, str], int]:
    def check(key: str, value: str) -> int:
        # isascii: int() would take digits of every script, and underscores.
        if not (value.isascii() and value.isdigit() and len(value) < 12 and least <= int(value) <= most):
            raise _wrong(key, value, f"a whole number from {least} to {most}")
        return int(value)

    return check


def _wrong(key: str, value: object, allowed: str) -> SettingError:
    shown = value[:100] if isinstance(value, str) else value
    return SettingError(f"{key} is wrong: {shown!r}; allowed: {allowed}")


def _no_dsn(env_file: Path, environ: Mapping[str, str]) -> SettingError:
    from .misplaced import settings_elsewhere

    hint = (
        "; the environment names it in small letters" if "taskserver_dsn" in environ else settings_elsewhere(env_file)
    )
    return SettingError(
        f"TASKSERVER_DSN is not set, neither in the environment nor in {env_file}: "
        "put it there, as TASKSERVER_DSN=mysql://user:password@localhost/database, or as "
        f"TASKSERVER_DSN=sqlite:///var/taskserver.db for SQLite, which client.py init does where there is no .env{hint}"
    )


def _read_env_file(path: Path) -> dict[str, str]:
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


def _bindings_in(path: Path) -> "list[Binding]":
    try:
        if not path.exists() or path.is_dir():
            return []
        # Imported here: an installation that keeps its settings in the environment need not pay for it.
        require_dotenv(path.parent)
        from dotenv.parser import parse_stream

        # utf-8-sig: Windows editors put a byte order mark before the first key.
        with path.open(encoding="utf-8-sig") as file:
            bindings = list(parse_stream(file))
    except OSError as error:
        raise _unreadable(path, f"{error.strerror}: it must be readable for the user of this program") from None
    except UnicodeDecodeError as error:
        raise _unreadable(path, f"{error}: save it as UTF-8 text") from None
    if any("\0" in binding.original.string for binding in bindings):
        raise _unreadable(path, "it holds zero bytes, as UTF-16 does: save it as UTF-8 text")
    return bindings


def _unreadable(path: Path, why: str) -> SettingError:
    return SettingError(f"{path} cannot be read: {why}")


def _check_keys(path: Path, keys: Sequence[str]) -> None:
    """A mistyped key would leave its setting at the default: mode delete, say, where rows were to be kept."""
    unknown = next((key for key in keys if key not in KEYS and _is_meant_for_us(key)), None)
    if unknown is None:
        return
    meant = _nearest_key(unknown, 0.6)
    hint = f"; did you mean {meant}?" if meant else f"; allowed: {', '.join(KEYS)}"
    raise SettingError(f"{path} names {_without_secret(unknown)}, which is no setting, or lacks its '='{hint}")


def _without_secret(key: str) -> str:
    """What of a mistyped key can be told: where the `=` is missing, it goes on with the password."""
    name = re.split(r"[^\w-]|->", key)[0][:60]
    letters = _letters(name)
    alike = (one for one in SECRET_KEYS if letters.startswith(_letters(one)) and len(letters) > len(_letters(one)) + 1)
    secret = next(alike, None)
    return name if secret is None else f"{secret}…"


def _is_meant_for_us(key: str) -> bool:
    """Whether a key is one of ours, or one written in another way: taskserver_dsn, TASKSERVER-DSN, TASK_SERVER_DSN."""
    return key.upper().startswith(PREFIX) or _letters(key) in map(_letters, KEYS)


def _letters(key: str) -> str:
    return "".join(filter(str.isalnum, key)).upper()


def _check_environment(given: Mapping[str, str]) -> None:
    """The same for the environment, where others may have keys that begin as ours do: only what is very much alike."""
    for key in given:
        meant = None if key in KEYS else _nearest_key(key, 0.85)
        if meant:
            raise SettingError(f"the environment names {key[:60]}, which is no setting; did you mean {meant}?")


def _nearest_key(key: str, likeness: float) -> str | None:
    """Compared without what all have in common."""
    from .nearest import nearest

    by_letters = {_letters(name): PREFIX + name for name in _NAMES}
    found = nearest(_letters(key).removeprefix(_letters(PREFIX)), by_letters, likeness)
    return by_letters[found] if found is not None else None


def require_dotenv(folder: Path) -> None:
    """Raises SettingError, with the way out, where the package that reads `.env` is missing."""
    try:
        import dotenv  # noqa: F401
    except ImportError:
        raise SettingError(
            f"python-dotenv is missing, which reads {folder / '.env'}: {how_to_install(folder)}"
        ) from None


def how_to_install(folder: Path) -> str:
    """The way out where a required package is missing."""
    python = folder / ".venv" / "bin" / "python"
    if python.exists():
        return f"start this with {python}"
    return "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt, then start this with .venv/bin/python"
