"""Checks of a deployment's files: its packages and settings, its place, and who else may read or change it."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

from .. import __version__
from ..errors import SettingError
from ..host.files import OF_SYSTEM, account_name, network_file_system, who_else_may_write, why_no_log
from ..messages.finding import Finding, Look, critical, findings_of, ok, warning
from ..messages.programs import CLIENT
from ..settings.load import Settings, sources
from ..settings.page import SOCKET, Network, PageSettings, load_page_settings

WEB_FOLDERS = {
    *("public_html", "www", "htdocs", "httpdocs", "html", "public", "web", "wwwroot", "webroot", "docroot"),
}
PAGE_PACKAGES = ("jinja2", "markupsafe", "werkzeug", "itsdangerous")
MIN_FREE_BYTES = 50_000_000
PROBE_BYTES = 100_000
PROGRAM = Path(__file__).parents[2]
FILE_LIST = "FILES.txt"
MAX_FILES_SHOWN, MAX_OPEN_SHOWN = 5, 3


def of_program(folder: Path, env_file: Path | None = None) -> Iterator[Finding]:
    """Checks that need no settings. Raises OSError if a file cannot be read."""
    return findings_of(OF_PROGRAM, folder, env_file or folder / ".env")


def of_deployment(settings: Settings, env_file: Path | None = None) -> Iterator[Finding]:
    """Checks of what the settings name. Raises OSError and SettingError."""
    yield from findings_of(OF_DEPLOYMENT, settings, env_file)
    if (database := settings.dsn.database_file(settings.folder)) is not None:
        yield from findings_of(OF_DATABASE_FILE, database)


# ---- the program and its settings


def whole(program: Path) -> Finding:
    """Whether the files of a bundle match the hashes in its list. Raises OSError."""
    lines = [line.partition("  ") for line in (program / FILE_LIST).read_text(errors="replace").splitlines()]
    damaged = [place for digest, _, place in lines if _hash_of(program / place) != digest]
    if lines and not damaged:
        return ok(f"{len(lines)} files in {program} are as in its {FILE_LIST}")
    more = f" and {len(damaged) - MAX_FILES_SHOWN} more" if len(damaged) > MAX_FILES_SHOWN else ""
    return critical(
        f"not as in the bundle, or missing in {program}: {', '.join(damaged[:MAX_FILES_SHOWN]) or FILE_LIST}{more}",
        "an upload that was cut off leaves files empty or short, and the program does anything then",
        "upload them again, or the whole folder; in FileZilla the tab Failed transfers must be empty afterwards",
    )


def _hash_of(path: Path) -> str:
    """The hash of a file, empty if it is missing; FTP may have changed the line ends."""
    try:
        return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""


def _web_folder(folder: Path, env_file: Path) -> Finding:
    if not (served := _served_by(folder)):
        return ok(f"{folder} is in no web folder")
    return warning(
        f"{folder} looks like a part of the web folder {served}",
        "a web server that knows no .htaccess would hand out the code, and the password in .env",
        "move the folder out of it, beside it for example, change the path in the crontab, and then the password",
    )


def _served_by(folder: Path) -> Path | None:
    """The nearest folder, from this one upwards, that a web server seems to serve; None if there is none."""
    folder, home = Path(os.path.realpath(folder)), None
    with suppress(KeyError, OSError, ImportError):  # the owner may be unknown; Windows has no pwd
        import pwd

        home = Path(os.path.realpath(pwd.getpwuid(folder.stat().st_uid).pw_dir))
    for upper in (folder, *folder.parents):
        if upper == home:
            # The host chooses the home's name and the folders above it, such as Plesk's /var/www/vhosts/example.org.
            return upper if _has_page(upper) else None
        if upper.name in WEB_FOLDERS or _has_page(upper):
            return upper
    return None


def _has_page(folder: Path) -> bool:
    return any(os.path.exists(folder / name) for name in ("index.php", "index.html", "wp-config.php"))


def _env_file(folder: Path, env_file: Path) -> Finding:
    if not env_file.exists():
        return ok(f"there is no {env_file}: settings come from the environment alone")
    return _private(env_file, "600", "other accounts of this host may read the database's password in it")


def _private(path: Path, rights: str, why: str) -> Finding:
    """Whether only the owner of a file or folder may read it; `code` checks who may write it. Raises OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o055:
        return warning(f"{path} has the rights {mode:04o}", why, _chmod(rights, path))
    return ok(f"only its owner may read {path}")


def _chmod(rights: str, path: Path) -> str:
    """How to give a file or folder these rights, with and without a shell."""
    return f"chmod {rights} {path} (by FTP: file permissions {rights})"


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} (not found)"


OF_PROGRAM = (
    Look("python", lambda *_: ok(f"Python {platform.python_version()} at {sys.executable or 'an unknown place'}")),
    Look("packages", lambda *_: ok(f"taskserver {__version__}, {_version('PyMySQL')}, {_version('python-dotenv')}")),
    Look("program", lambda *_: whole(PROGRAM) if (PROGRAM / FILE_LIST).exists() else None, is_acceptable=False),
    Look("web_folder", _web_folder),
    Look("env_file", _env_file),
)


# ---- what the settings name


def _settings(settings: Settings, env_file: Path | None) -> Finding:
    """Which settings are given, and where."""
    where, overriding = sources(settings.folder, env_file)
    words = f"table {settings.table}, mode {settings.mode}, modules {', '.join(settings.modules)}; {where}"
    if not overriding:
        return ok(words)
    why = "what cron or a web server starts may have other values; `source .env` in a shell changes a $ in a password"
    return warning(words, why, f"unset {' '.join(overriding)} in this shell, or in .env")


def _code(settings: Settings, env_file: Path | None) -> Finding:
    """Whether other accounts may change what the programs run, read or write."""
    folder, open_ones, fixes = settings.folder, list[str](), dict[str, None]()
    for path in dict.fromkeys([env_file or folder / ".env", *_trusted_paths(settings)]):
        with suppress(OSError):  # a broken link, or deleted meanwhile
            if who := who_else_may_write(path, folder):
                is_inside = folder in path.parents
                open_ones.append(f"{path.relative_to(folder) if is_inside else path} ({who})")
                fixes[f"chmod -R go-w {quote(str(folder))}" if is_inside else f"chmod go-w {quote(str(path))}"] = None
    if not open_ones:
        return ok("no other account may change the program, its files or the listed modules")
    more = f" and {len(open_ones) - MAX_OPEN_SHOWN} more" if len(open_ones) > MAX_OPEN_SHOWN else ""
    return warning(
        f"others of this host may change {', '.join(open_ones[:MAX_OPEN_SHOWN])}{more}",
        "what they write there runs as you, or takes the place of your tasks; your host can give you what another owns",
        "; ".join([*fixes][:MAX_OPEN_SHOWN]),
    )


def _trusted_paths(settings: Settings) -> Iterator[Path]:
    """Files and folders that only we may write."""
    folder, database = settings.folder, settings.dsn.database_file(settings.folder)
    yield from (above for above in Path(os.path.realpath(folder)).parents if not above.stat().st_mode & stat.S_ISVTX)
    yield from (folder, *sorted(folder.glob("*.py")), folder / "var")
    if database is not None:
        database = Path(os.path.realpath(database))
        yield from (database.parent, database)  # SQLite would trust a journal beside it, or a file that replaces it
    for name in ("taskserver", *dict.fromkeys(module.partition(".")[0] for module in settings.modules)):
        spec = PathFinder.find_spec(name, [str(folder), *sys.path])
        if spec and spec.submodule_search_locations:
            for place in map(Path, spec.submodule_search_locations):
                yield from (place, *sorted(one for one in place.rglob("*") if one.suffix == ".py" or one.is_dir()))
        elif spec and spec.origin:
            yield Path(spec.origin)


def _var(settings: Settings, env_file: Path | None) -> Finding:
    path = settings.folder / "var"
    if not path.is_dir():
        return warning(f"there is no folder {path}", "locks of --slots lie in it", f"{CLIENT} init")
    for used in (path, path / "slots", *(path / "slots").glob("*"), *path.glob("*.db*")):
        if used.exists() and not os.access(used, os.W_OK):
            rights = _chmod("700" if used.is_dir() else "600", used)
            return critical(
                f"{used} belongs to {account_name(used.stat().st_uid)}, and cannot be written to",
                "a worker that cannot use its locks, its log or its database ends at once",
                f"{rights}, or rename {path} and run {CLIENT} init, as the account that cron uses",
            )
    if fault := _probe_write(path):
        words = f"nothing can be written into {path}: {fault}"
        return critical(words, "logs end in mid-line, and tasks' files, too", "make room")
    return _private(path, "700", "what lies in it is private")


def _probe_write(path: Path) -> str | None:
    """Why a temporary file cannot be written there: the only way to see a quota."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _log(settings: Settings, env_file: Path | None) -> Finding | None:
    path = settings.log_file
    if path is None:
        return None
    if no_log := why_no_log(path, settings.folder):
        return critical(no_log.what, "a worker does not start with it", no_log.fix)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        fix = "let this user write it, or name another file as TASKSERVER_LOG"
        return critical(f"{path} cannot be written", "a worker does not start without it", fix)
    if not os.access(path.parent, os.W_OK):
        why = "it cannot be rotated at 10 MB, and grows without end"
        return warning(f"its folder {path.parent} cannot be written", why, "let this user write there")
    if not str(path).startswith(OF_SYSTEM) and (fault := _probe_write(path.parent)):
        return critical(f"nothing can be written beside {path}: {fault}", "what workers log is lost", "make room")
    if served := _served_by(path.parent):
        words = f"{path} looks like a part of the web folder {served}"
        why = "it holds what tasks print, and anyone who knows its name could download it"
        return warning(words, why, "name a file in var/ as TASKSERVER_LOG, and delete this one")
    return ok(str(path))


def page(folder: Path, env_file: Path | None = None) -> Finding | None:
    """The finding for the status page; None if it is not set up."""
    try:
        settings = load_page_settings(folder, env_file)
    except SettingError as error:
        return warning(str(error), "the page shows nothing", "correct it in .env; docs/page.md says how")
    if settings == PageSettings():
        return None
    missing = [name for name in PAGE_PACKAGES if find_spec(name) is None]
    if missing:
        return warning(
            f"the page is set up, but this Python lacks {', '.join(missing)}",
            "the page says only that, unless another Python serves it",
            "upload the bundle that was made with --web, or install what docs/page.md says",
        )
    if settings.allow and not settings.password_hash and any(map(_is_here, settings.proxies)):
        return warning(
            "TASKSERVER_PAGE_PROXIES names this host itself, and there is no password",
            "every account of this host can pretend to be that proxy, and so any visitor",
            f"set TASKSERVER_PAGE_PASSWORD ({CLIENT} page --password), and give the page a socket in a private folder",
        )
    asks = "asks for a password" if settings.password_hash else ""
    lists = "is for listed addresses" if settings.allow else ""
    does = "may retry, cancel, delete, pause and resume" if settings.may_act else "only shows"
    return ok(f"{' and '.join(filter(None, (asks, lists))) or 'shown to nobody'}; it {does}")


def _is_here(network: Network) -> bool:
    """Whether every account of this host can come from there."""
    return network == SOCKET or network.is_loopback or network.prefixlen == 0


OF_DEPLOYMENT = (
    Look("settings", _settings, is_acceptable=False),
    Look("code", _code),
    Look("var", _var),
    Look("log", _log),
    Look("page", lambda settings, env_file: page(settings.folder, env_file)),
)


# ---- an SQLite file


def _file_system(path: Path) -> Finding | None:
    if not (network := network_file_system(path)):
        return None
    return critical(
        f"{path} lies on a network file system ({network})",
        "SQLite's locks do not hold there: a file that several processes use can be damaged",
        "use the MySQL database of this hosting, or move the file to a disk of this host",
    )


def _database_file(path: Path) -> Finding | None:
    if not path.exists():
        return None
    if served := _served_by(path.parent):
        return warning(
            f"{path} looks like a part of the web folder {served}",
            "anyone who knows its name might download every task with its arguments",
            "move it out of there, and write its new place into TASKSERVER_DSN",
        )
    if path.parent.stat().st_mode & 0o077:
        return _private(path, "600", "other accounts of this host may read your tasks")
    return ok(f"{path} is in a private folder")


def _disk(path: Path) -> Finding | None:
    if not path.exists():
        return None
    free = shutil.disk_usage(path.parent).free
    words = f"{free // 1_000_000} MB are free on its disk, of which your account's quota may leave less"
    return ok(words) if free >= MIN_FREE_BYTES else warning(words, "no task can be added on a full disk", "make room")


OF_DATABASE_FILE = (
    Look("file_system", _file_system),
    Look("database_file", _database_file),
    Look("disk", _disk),
)
CHECKS = (*OF_PROGRAM, *OF_DEPLOYMENT, *OF_DATABASE_FILE)
