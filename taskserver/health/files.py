"""The files of a deployment: its interpreter and packages, where its folder is, and who else may read or write it."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .. import __version__
from ..host.files import OF_SYSTEM, network_file_system, who_else_may_write, why_no_log
from ..messages import misplaced_files
from ..messages.programs import CLIENT
from ..settings.load import Settings
from .finding import Finding, critical, ok, warning

WEB_FOLDERS = {*misplaced_files.WEB_FOLDERS, "html", "public", "web", "wwwroot", "webroot", "docroot"}
MIN_FREE_BYTES = 50_000_000
PROBE_BYTES = 100_000
PROGRAM = Path(__file__).parents[2]
FILE_LIST = "FILES.txt"
MAX_FILES_SHOWN = 5
MAX_OPEN_SHOWN = 3


def of_program(folder: Path, env_file: Path | None = None) -> Iterator[Finding]:
    """One finding for each check that needs no settings. Raises OSError where a file cannot be looked at."""
    yield ok("python", f"Python {platform.python_version()} at {sys.executable or 'an unknown place'}")
    packages = [f"{name} {_version(name)}" for name in ("PyMySQL", "python-dotenv")]
    yield ok("packages", ", ".join([f"taskserver {__version__}", *packages]))
    if (PROGRAM / FILE_LIST).exists():
        yield whole(PROGRAM)
    yield _web_folder(folder)
    yield _env_file(env_file or folder / ".env")


def of_deployment(settings: Settings) -> Iterator[Finding]:
    """One finding for each check of the files that a deployment writes, which settings name. Raises OSError."""
    yield _code(settings.folder, settings.modules)
    yield _var(settings.folder / "var")
    if settings.log_file is not None:
        yield _log(settings.log_file, settings.folder)
    database_file = settings.dsn.database_file(settings.folder)
    if database_file is not None:
        yield from _database_file(database_file, settings.folder)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not found)"


def whole(program: Path) -> Finding:
    """Whether the files of a bundle are those that its list has with their hashes. Raises OSError."""
    lines = [line.partition("  ") for line in (program / FILE_LIST).read_text(errors="replace").splitlines()]
    spoilt = [place for digest, _, place in lines if _hash_of(program / place) != digest]
    if lines and not spoilt:
        return ok("program", f"{len(lines)} files in {program} are as in its {FILE_LIST}")
    more = f" and {len(spoilt) - MAX_FILES_SHOWN} more" if len(spoilt) > MAX_FILES_SHOWN else ""
    return critical(
        "program",
        f"not as in the bundle, or missing in {program}: {', '.join(spoilt[:MAX_FILES_SHOWN]) or FILE_LIST}{more}",
        "an upload that was cut off leaves files empty or short, and the program does anything then",
        "upload them again, or the whole folder; in FileZilla the tab Failed transfers must be empty afterwards",
    )


def _hash_of(path: Path) -> str:
    """The hash of a file's content, empty where there is none; FTP may have changed the ends of lines."""
    try:
        return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""


# ---- the web


def _web_folder(folder: Path) -> Finding:
    served = _served_by(folder)
    if served is None:
        return ok("web_folder", f"{folder} is in no web folder")
    return warning(
        "web_folder",
        f"{folder} looks like a part of the web folder {served}",
        "a web server that knows no .htaccess would hand out the code, and the password in .env",
        "move the whole folder out of it, beside it for example, change the path in the crontab, and then the password",
    )


def _served_by(folder: Path) -> Path | None:
    """The nearest folder, from this one upwards, that a web server seems to show; None without one."""
    folder = Path(os.path.realpath(folder))
    home = _home_of(folder)
    for upper in (folder, *folder.parents):
        if upper == home:
            # The host chooses the home's name and the folders above it: Plesk's is /var/www/vhosts/example.org.
            return upper if _has_page(upper) else None
        if upper.name in WEB_FOLDERS or _has_page(upper):
            return upper
    return None


def _home_of(folder: Path) -> Path | None:
    """The home folder of the account that a folder belongs to; None where the account is unknown."""
    import pwd  # Windows has none

    try:
        home = pwd.getpwuid(folder.stat().st_uid).pw_dir
        return Path(os.path.realpath(home)) if home else None
    except (KeyError, OSError):
        return None


def _has_page(folder: Path) -> bool:
    try:
        return any((folder / name).exists() for name in ("index.php", "index.html", "wp-config.php"))
    except OSError:
        return False


# ---- who else may write the code


def _code(folder: Path, modules: Iterable[str]) -> Finding:
    """Whether other accounts may change the folder, one above it, the program or the listed modules beside it."""
    found: dict[Path, str] = {}
    fixes: dict[str, None] = {}
    for top, path in _code_of(folder, modules):
        with suppress(OSError):  # a link to nowhere, or gone meanwhile
            if path not in found and (who := who_else_may_write(path, folder)):
                found[path] = who
                is_ours = os.geteuid() in (0, path.stat().st_uid)
                command = f"chmod {'-R ' if path != top else ''}go-w {shlex.quote(str(top))}"
                fixes[command if is_ours else f"ask your host to give you {path}"] = None
    if not found:
        return ok("code", "no other account may change the program or the listed modules")
    named = ", ".join(f"{_short(path, folder)} ({who})" for path, who in list(found.items())[:MAX_OPEN_SHOWN])
    more = f" and {len(found) - MAX_OPEN_SHOWN} more" if len(found) > MAX_OPEN_SHOWN else ""
    return warning(
        "code",
        f"others of this host may change {named}{more}",
        "what they write there runs as you",
        "; ".join(list(fixes)[:MAX_OPEN_SHOWN]),
    )


def _code_of(folder: Path, modules: Iterable[str]) -> Iterator[tuple[Path, Path]]:
    """Each path to look at, after the file or folder that contains it and is corrected as a whole."""
    for above in Path(os.path.realpath(folder)).parents:
        if not above.stat().st_mode & stat.S_ISVTX:  # in a sticky folder nobody else can rename ours
            yield above, above
    for own in (folder, *sorted(folder.glob("*.py"))):
        yield own, own
    for name in ("taskserver", *dict.fromkeys(module.partition(".")[0] for module in modules)):
        spec = PathFinder.find_spec(name, [str(folder), *sys.path])
        if spec and spec.submodule_search_locations:
            for place in map(Path, spec.submodule_search_locations):
                files = sorted(place.rglob("*.py"))
                yield from ((place, path) for path in (place, *dict.fromkeys(file.parent for file in files), *files))
        elif spec and spec.origin:
            yield Path(spec.origin), Path(spec.origin)


def _short(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if folder in path.parents else str(path)


# ---- files


def _open_to_others(check: str, path: Path, rights: str, why: str) -> Finding | None:
    """The warning that a file or folder is not private to its owner, who is trusted; None if it is. Raises OSError."""
    found = path.stat()
    if found.st_uid not in (0, os.geteuid(), path.parent.stat().st_uid):
        return warning(check, f"{path} belongs to {_owner(path)}", why, "ask your host to give it to you")
    mode = stat.S_IMODE(found.st_mode)
    return warning(check, f"{path} has the rights {mode:04o}", why, _chmod(rights, path)) if mode & 0o077 else None


def _chmod(rights: str, path: Path) -> str:
    """The command that gives a file or folder these rights, and how somebody without a shell does."""
    return f"chmod {rights} {path} (by FTP: file permissions {rights})"


def _env_file(path: Path) -> Finding:
    why = "other accounts of this host may read or change the database's password in it"
    try:
        found = _open_to_others("env_file", path, "600", why)
    except FileNotFoundError:
        return ok("env_file", f"there is no {path}: settings come from the environment alone")
    except OSError as error:
        return critical("env_file", f"{path} cannot be looked at: {error.strerror}", "settings are read from it")
    return found or ok("env_file", f"{path} is for its owner alone")


def _var(path: Path) -> Finding:
    if not path.is_dir():
        return warning("var", f"there is no folder {path}", "locks of --slots lie in it", f"{CLIENT} init")
    if not os.access(path, os.W_OK | os.X_OK):
        return critical(
            "var",
            f"{path} cannot be written to",
            "a worker keeps its locks there, and SQLite its database",
            f"{_chmod('700', path)}, or rename it and run {CLIENT} init, as the account that cron uses",
        )
    of_others = next((one for one in _used_by_workers(path) if one.exists() and not os.access(one, os.W_OK)), None)
    if of_others is not None:
        return critical(
            "var",
            f"{of_others} belongs to {_owner(of_others)}, and cannot be written to",
            "a worker that cannot use its locks, its log or its database ends at once",
            f"have it given to you with chown, or rename {path} and run {CLIENT} init",
        )
    if fault := _write_some(path):
        words = f"nothing can be written into {path}: {fault}"
        return critical("var", words, "logs end in mid-line, and tasks' files, too", "make room")
    found = _open_to_others("var", path, "700", "what lies in it is private")
    return found or ok("var", f"{path} is for its owner alone")


def _write_some(path: Path) -> str | None:
    """Why a file without a name cannot be filled there; a quota shows in no other way."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _used_by_workers(var: Path) -> Iterator[Path]:
    """The files in `var` that a worker writes; other files there are the tasks' own."""
    slots = var / "slots"
    yield slots
    if os.access(slots, os.R_OK | os.X_OK):
        yield from slots.iterdir()
    yield from var.glob("*.db*")


def _owner(path: Path) -> str:
    try:
        return path.owner()
    except (KeyError, OSError):
        return "another user"


def _log(path: Path, folder: Path) -> Finding:
    found, _, fix = why_no_log(path, folder).rpartition(": ")
    if found:
        return critical("log", found, "a worker does not start with it", fix)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        fix = "let this user write it, or name another file as TASKSERVER_LOG"
        return critical("log", f"{path} cannot be written", "a worker does not start without it", fix)
    if not os.access(path.parent, os.W_OK):
        why = "it cannot be rotated at 10 MB, and grows without end"
        return warning("log", f"its folder {path.parent} cannot be written", why, "let this user write there")
    if not str(path).startswith(OF_SYSTEM) and (fault := _write_some(path.parent)):
        return critical(
            "log", f"nothing can be written beside {path}: {fault}", "what workers log is lost", "make room"
        )
    served = _served_by(path.parent)
    if served is None:
        return ok("log", str(path))
    return warning(
        "log",
        f"{path} looks like a part of the web folder {served}",
        "it holds what tasks print, and who knows its name could download it",
        "name a file in var/ as TASKSERVER_LOG, and delete this one",
    )


def _database_file(path: Path, folder: Path) -> Iterator[Finding]:
    network = network_file_system(path)
    if network:
        yield critical(
            "file_system",
            f"{path} lies on a network file system ({network})",
            "SQLite's locks do not hold there: a file that several processes use can be damaged",
            "use the MySQL database of this hosting, or move the file to a disk of this host",
        )
    if path.exists():
        yield _database_rights(path, folder)
        yield _free_space(path)


def _database_rights(path: Path, folder: Path) -> Finding:
    served = _served_by(path.parent)
    if served is not None:
        return warning(
            "database_file",
            f"{path} looks like a part of the web folder {served}",
            "who knows its name might download every task with its arguments",
            "move it out of there, and write its new place into TASKSERVER_DSN",
        )
    found = _open_to_others("database_file", path, "600", "other accounts of this host may read or forge tasks")
    if found and path.parent.stat().st_mode & 0o077:
        return found
    if who := who_else_may_write(path.parent, folder):
        return warning(
            "database_file",
            f"{who} of this host may write {path.parent}",
            "a file in the place of the database, or a log beside it, would replace or forge every task",
            "move it into var/, and write its new place into TASKSERVER_DSN; or let nobody else write there",
        )
    return ok("database_file", f"{path} is for its owner alone")


def _free_space(path: Path) -> Finding:
    free = shutil.disk_usage(path.parent).free
    if free < MIN_FREE_BYTES:
        return warning("disk", f"{free // 1_000_000} MB are free", "no task can be added on a full disk", "make room")
    return ok("disk", f"{free // 1_000_000} MB are free on it, of which your account's quota may leave less")
