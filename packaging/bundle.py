"""`make bundle`: a folder and a zip of it in dist/, to be uploaded by FTP and run with nothing but python3.

    dist/taskserver-VERSION/        worker.py, client.py, taskserver/, … and beside them pymysql/, dotenv/ and cronsim/
    dist/taskserver-VERSION.zip     that one folder; with --web taskserver-VERSION-web.zip, and so on

Any Python of 3.10 or newer makes it, on Linux, a Mac or Windows: `python packaging/bundle.py`. The packages are those
that requirements.lock names: of this Python if it has them, as the .venv of `make`, else pip gets them. On a host they
need no mechanism: the folder of worker.py is the first place where Python looks. --web, --metrics and --postgresql take
in the packages of those extras; psycopg as plain Python, which needs the host's own libpq.

What is in it is named here, file by file or by folder and suffix, and git must know each: nothing of a developer's own
folder gets in. The same commit makes the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path, PurePosixPath

if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit("bundle.py needs Python 3.10 or newer, and this is {}.{}".format(*sys.version_info))
ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ci"))

from install import PIP, environment, settings  # noqa: E402
from requirements import requirements  # noqa: E402

# Not imported, which would leave bytecode in the folder.
INIT = (ROOT / "taskserver" / "__init__.py").read_text(encoding="utf-8")
NAME = "taskserver-" + re.findall(r'^__version__ = "(.+)"', INIT, re.MULTILINE)[0]
FILES = [
    *(".env.example", ".htaccess", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"),
    *("client.py", "worker.py", "passenger_wsgi.py", "crontab.example", "requirements.txt"),
    *("schema.postgresql.sql", "schema.sql"),
]
FOLDERS = {
    "taskserver": {".py", ".typed", ".html", ".css", ".js", ".svg"},
    "docs": {".md", ".webp"},
    "examples": {".cgi", ".example", ".md", ".mjs", ".php", ".py", ".sh", ".sql", ".txt"},
}
"""And what is taken from each."""
NOT_TAKEN = {"__pycache__", "demo"}
"""Folders: the demonstration is for a copy of the repository."""
RENAMED = {
    "packaging/START-HERE.txt": "START-HERE.txt",
    # Not tasks.py: a new version is uploaded over the old one, and must leave the owner's functions alone.
    "packaging/example_tasks.py": "tasks.example.py",
}
LISTED = "THIRD-PARTY.txt"
CHECKED = "FILES.txt"
"""The program's files and their hashes: `client.py doctor` tells by it whether an upload is whole."""
PROGRAMS = ("client.py", "worker.py")
NOT_CHECKED = ("docs", "examples", "var")
"""Folders that are no part of the program. Of the files beside them an owner may change all but the two programs."""
LEFT_OUT = {
    "markupsafe/_speedups.": "MarkupSafe's compiled form",  # it has the same in plain Python
    "werkzeug/debug/shared/": "what a browser would show of Werkzeug's debugger",
}
"""How names of files begin that are not taken from a package → what they are."""
NOT_PACKED = ("psycopg-binary", "tzdata")
"""Packages of requirements.lock: a compiled form that runs on some machines only, and what is for Windows alone."""
ALWAYS = ["cron"]
"""The extras of pyproject.toml whose packages are in every bundle."""
FOR_ANY_HOST = [
    *("--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.10", "--abi", "cp310"),
    *("--platform", "manylinux2014_x86_64"),
]
"""What pip gets is the same wherever it runs. What is compiled in it is left out, and the rest is plain Python."""

Members = dict[str, bytes]
"""A file's place in the bundle → what is in it."""


class BundleError(Exception):
    """There can be no bundle; the text says why, and what to do."""


def main() -> int:
    """Parse, write, say what was written; the exit code."""
    parser = argparse.ArgumentParser(description="Writes the folder and the zip that are uploaded to a host.")
    parser.add_argument("--web", action="store_true", help="take in the packages of the status page")
    parser.add_argument("--metrics", action="store_true", help="take in the package of `client.py metrics`")
    parser.add_argument("--postgresql", action="store_true", help="take in the driver of PostgreSQL, as plain Python")
    chosen = [extra for extra, wanted in vars(parser.parse_args()).items() if wanted]
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _bundle(ROOT / "dist", chosen, Path(folder))
    except (BundleError, OSError) as error:
        print(f"bundle.py: {error}", file=sys.stderr)
        return 2


def _bundle(target: Path, extras: list[str], folder: Path) -> int:
    sources = own_sources()
    refuse_strangers(sources)
    packages = packages_of([*ALWAYS, *extras], folder)
    members = {place: _content(ROOT / source) for source, place in sources.items()}
    members |= {"var/.htaccess": members[".htaccess"], LISTED: third_party(packages).encode()}
    for package in packages:
        members |= members_of(package)
    members[CHECKED] = file_list(members).encode()
    instant = instant_of(sources)
    archive = f"{'-'.join([NAME, *extras])}.zip"
    write(target, archive, members, instant - instant % 2)  # a zip counts in steps of two seconds
    size = sum(map(len, members.values())) / 1e6
    names = ", ".join(f"{package.name} {package.version}" for package in packages)
    print(f"wrote dist/{NAME}/ and dist/{archive}: {len(members)} files, {size:.1f} MB, with {names} inside")
    return 0


# ---- our own files


def own_sources() -> dict[str, str]:
    """Each file of the repository that is in the bundle → its place there."""
    found = [source for folder, suffixes in FOLDERS.items() for source in _files_below(folder, suffixes)]
    sources = {source: source for source in [*FILES, *found]} | RENAMED
    missing = next((source for source in sources if not (ROOT / source).is_file()), None)
    if missing:
        raise BundleError(f"{missing} is missing in {ROOT}")
    return sources


def _files_below(folder: str, suffixes: set[str]) -> Iterator[str]:
    for path in sorted((ROOT / folder).rglob("*")):
        source = path.relative_to(ROOT)
        if path.suffix in suffixes and path.is_file() and not NOT_TAKEN & set(source.parts):
            yield source.as_posix()


def refuse_strangers(sources: dict[str, str]) -> None:
    """Where there is git, a file that it does not know is somebody's draft, or a module that was not added yet."""
    if not _has_git():
        return
    tracked = _git("ls-files", "-z").split("\0")
    strangers = sorted(set(sources).difference(tracked))
    if strangers:
        raise BundleError(f"git does not know {', '.join(strangers)}: `git add` what belongs to it, remove the rest")


def _has_git() -> bool:
    """Not in an unzipped copy, nor on a PC that has no git."""
    return (ROOT / ".git").exists() and shutil.which("git") is not None


def _git(*arguments: str) -> str:
    # safe.directory: the checkout may be another user's, as in a container.
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    try:
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        raise BundleError(f"git {arguments[0]} failed: {error.stderr.partition(chr(10))[0]}") from None


def _content(path: Path) -> bytes:
    """As git keeps it: cron and shells stumble over other line ends, which a checkout's texts may have."""
    content = path.read_bytes()
    return content if path.suffix == ".webp" else content.replace(b"\r\n", b"\n")


def instant_of(sources: dict[str, str]) -> int:
    """The time that every file bears, in seconds since 1970: that of the commit, or of the newest file.

    Not a constant: Python takes the bytecode of a module to be fresh while the module's time and size are the same, so
    a new version must not bear the time of the one that it is unpacked over.
    """
    if _has_git() and not _git("status", "--porcelain", "--untracked-files=no"):
        return int(_git("log", "-1", "--format=%ct"))
    return int(max((ROOT / source).stat().st_mtime for source in sources))


# ---- the packages of others


def packages_of(extras: list[str], folder: Path) -> list[metadata.Distribution]:
    """The packages of a run and of these extras: what this Python has, or what pip gets into the folder."""
    entries = re.split(r"\n(?=\S)", "\n".join(requirements(extras)))
    entries = [entry for entry in entries if entry.partition("==")[0] not in NOT_PACKED]
    pins = dict(entry.split()[0].split("==") for entry in entries)
    try:
        found = [metadata.distribution(name) for name in pins]
    except metadata.PackageNotFoundError:
        found = []
    if [package.version for package in found] == list(pins.values()):
        return found
    by_name = {_plain(package.name): package for package in fetched(entries, list(pins), folder)}
    return [by_name[name] for name in pins]


def _plain(name: str) -> str:
    """A package's name as requirements.lock has it."""
    return re.sub("[-_.]+", "-", name).lower()


def fetched(entries: list[str], names: list[str], folder: Path) -> list[metadata.Distribution]:
    """What pip gets for these entries of requirements.lock, in the folder. It refuses a file that has another hash."""
    print(f"getting {', '.join(names)}", flush=True)
    if util.find_spec("pip") is None:
        raise BundleError(f"{sys.executable} has no pip, which gets the packages: install pip (python -m ensurepip)")
    # For every host, though this Python might need it no more: markers are of the Python that runs pip.
    unmarked = [re.sub(r" ; [^\\\n]+", " ", entry) for entry in entries]
    (folder / "required").write_text("\n".join(unmarked), encoding="utf-8")
    command = [*PIP, "install", "--require-hashes", "--no-deps", "--no-compile", *FOR_ANY_HOST]
    command += ["-r", str(folder / "required"), "--target", str(folder / "site")]
    ended = subprocess.run(
        command, check=False, env=environment(settings()), capture_output=True, text=True, errors="replace"
    )
    if ended.returncode != 0:
        raise BundleError(_complaint(ended.stderr))
    return list(metadata.distributions(path=[str(folder / "site")]))


def _complaint(errors: str) -> str:
    """What pip said, in a line."""
    if "DO NOT MATCH THE HASHES" in errors:
        return "pip got a file whose hash is not in requirements.lock, and nothing was written: get a new copy of both"
    said = next((line for line in errors.splitlines() if line.startswith("ERROR:")), "ERROR: it did not say why")
    return f"pip could not get the packages (is the network there?): {said.removeprefix('ERROR:').strip()}"


def members_of(package: metadata.Distribution) -> Iterator[tuple[str, bytes]]:
    """A package's own files, and what tells its version and licence."""
    licences = 0
    for file in package.files or ():
        if _belongs(file):
            licences += _is_licence(file)
            # A release for Windows may have other line ends: its bundle, and its hash, are those of every machine.
            yield file.as_posix(), Path(str(file.locate())).read_bytes().replace(b"\r\n", b"\n")
    if not licences:
        raise BundleError(f"{package.name} {package.version} comes without its licence")


def _belongs(file: metadata.PackagePath) -> bool:
    """Not the programs that lie in bin/, nor notes of the installer; nothing that was compiled."""
    if ".." in file.parts or "__pycache__" in file.parts or file.as_posix().startswith(tuple(LEFT_OUT)):
        return False
    if file.parts[0].endswith(".dist-info"):
        return file.name == "METADATA" or _is_licence(file)
    if file.suffix not in (".py", ".pyi", ".typed"):
        raise BundleError(f"{file} is not plain Python, which runs on every host: another release of it is needed")
    return True


def _is_licence(file: PurePosixPath) -> bool:
    return file.parts[0].endswith(".dist-info") and bool(re.match("(LICEN[CS]E|COPYING|NOTICE|AUTHORS)", file.name))


def third_party(packages: list[metadata.Distribution]) -> str:
    """What is told of the packages inside."""
    lines = [
        "In this folder are packages of others, unchanged. Each has its licence in the folder that is named last.",
        "",
    ]
    for package in packages:
        folder = next(file.parts[0] for file in package.files or () if file.name == "METADATA")
        lines.append(f"{package.name} {package.version}, licence {_licence(package)}, {folder}/")
    files = [file.as_posix() for package in packages for file in package.files or ()]
    if left_out := [what for start, what in LEFT_OUT.items() if any(file.startswith(start) for file in files)]:
        lines += ["", f"Left out: {', '.join(left_out)}."]
    return "\n".join(lines) + "\n"


def _licence(package: metadata.Distribution) -> str:
    keys = ("License-Expression", "License")
    named = [package.metadata[key] for key in keys if key in package.metadata]
    named += [
        kind.rpartition(" :: ")[2] for kind in package.metadata.get_all("Classifier") or () if "License ::" in kind
    ]
    return next(iter(named), "see there")


# ---- writing


def file_list(members: Members) -> str:
    """A line for each file of the program and of the packages, as `sha256sum --check` takes it."""
    program = [place for place in members if place in PROGRAMS or ("/" in place and _folder(place) not in NOT_CHECKED)]
    return "".join(f"{hashlib.sha256(members[place]).hexdigest()}  {place}\n" for place in sorted(program))


def _folder(place: str) -> str:
    return place.partition("/")[0]


def write(target: Path, archive: str, members: Members, instant: int) -> None:
    """Folder and zip; what was there before goes once both are complete."""
    folder, new = target / NAME, target / f"{NAME}.unfinished"
    own = [path for path in (folder / ".env", folder / "tasks.py", *folder.glob("var/[!.]*")) if path.exists()]
    if own:  # somebody tried the bundle where it was made, and has a queue in there now
        raise BundleError(f"{own[0]} is somebody's, and would be lost: move {folder} away")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        _write_zip(new / "zip", members, instant)
        _write_folder(new / NAME, members, instant)
        shutil.rmtree(folder, ignore_errors=True)
        (new / NAME).rename(folder)
        (new / "zip").replace(target / archive)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _places(members: Members) -> list[str]:
    """Every file and folder in it, each after the folder that it lies in; the outermost one is the empty name."""
    folders = {str(parent) for place in members for parent in PurePosixPath(place).parents}
    return ["", *sorted([*members, *folders - {"."}])]


def _mode(place: str, content: bytes | None) -> int:
    """The rights of a file, or of a folder (no content). var/ is private, as the program would make it."""
    if content is None:
        return 0o700 if place == "var" else 0o755
    return 0o755 if content.startswith(b"#!") else 0o644


def _write_folder(folder: Path, members: Members, instant: int) -> None:
    places = _places(members)
    for place in places:
        if place in members:
            (folder / place).write_bytes(members[place])
        else:
            (folder / place).mkdir()
    for place in reversed(places):
        (folder / place).chmod(_mode(place, members.get(place)))
        os.utime(folder / place, (instant, instant))


def _write_zip(archive: Path, members: Members, instant: int) -> None:
    """Not compressed: the bytes would depend on the machine's zlib. Times are in no time zone."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for place in _places(members):
            content = members.get(place)
            name = PurePosixPath(NAME, place).as_posix() + ("/" if content is None else "")
            entry = zipfile.ZipInfo(name, time.gmtime(instant)[:6])
            entry.create_system = 3  # Unix, whose rights follow
            kind = stat.S_IFDIR if content is None else stat.S_IFREG
            entry.external_attr = (kind | _mode(place, content)) << 16 | (0x10 if content is None else 0)
            file.writestr(entry, content or b"")


if __name__ == "__main__":
    sys.exit(main())
