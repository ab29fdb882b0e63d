"""`make bundle`: a folder and a zip of it in dist/, to be uploaded by FTP and run with nothing but python3.

    dist/taskserver-VERSION/        worker.py, client.py, taskserver/, … and beside them pymysql/ and dotenv/
    dist/taskserver-VERSION.zip     that one folder

The two packages of requirements.txt come from the environment that runs this, just as the tests ran with them, and are
what requirements.lock names. They need no mechanism: the folder of worker.py is the first place where Python looks.
With --web those of the status page lie there, too: the packages that requirements.lock names for it.

What is in it is named here, file by file or by folder and suffix, and git must know each: nothing of a developer's own
folder gets in. The same commit with the same packages makes the same bytes.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from taskserver import __version__  # noqa: E402
from taskserver.host.private_folder import DENY_ALL  # noqa: E402

NAME = f"taskserver-{__version__}"
FILES = (
    ".env.example",
    ".htaccess",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "client.py",
    "crontab.example",
    "passenger_wsgi.py",
    "requirements.txt",
    "schema.sql",
    "worker.py",
)
FOLDERS = {
    "taskserver": {".py", ".sql", ".typed", ".html", ".css", ".js", ".svg"},
    "docs": {".md", ".png"},
    "examples": {".cgi", ".md", ".mjs", ".php", ".py", ".sh", ".sql", ".txt"},
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
LEFT_OUT = {
    "markupsafe/_speedups.": "MarkupSafe's compiled form",  # it has the same in plain Python
    "werkzeug/debug/shared/": "what a browser would show of Werkzeug's debugger",
}
"""How names of files begin that are not taken from a package → what they are."""
AGAIN = "make bundle" + (" ARGS=--web" if "--web" in sys.argv else "")
"""What installs the packages and makes the bundle that was asked for."""

Members = dict[str, bytes]
"""A file's place in the bundle → what is in it."""


class BundleError(Exception):
    """There can be no bundle; the text says why, and what to do."""


def main() -> int:
    """Parse, write, say what was written; the exit code."""
    parser = argparse.ArgumentParser(description="Writes the folder and the zip that are uploaded to a host.")
    parser.add_argument("--web", action="store_true", help="take in the packages of the status page")
    try:
        return _bundle(ROOT / "dist", parser.parse_args().web)
    except (BundleError, OSError) as error:
        print(f"bundle.py: {error}", file=sys.stderr)
        return 2


def _bundle(target: Path, web: bool) -> int:
    sources = own_sources()
    refuse_strangers(sources)
    packages = [_required(line) for line in _lines(ROOT / "requirements.txt")]
    packages += [_installed(name) for name in locked("web")] if web else []
    members = {place: _content(ROOT / source) for source, place in sources.items()}
    members |= {"var/.htaccess": DENY_ALL.encode(), LISTED: third_party(packages).encode()}
    for package in packages:
        members |= locked_members_of(package)
    instant = instant_of(sources)
    write(target, members, instant - instant % 2)  # a zip counts in steps of two seconds
    size = sum(map(len, members.values())) / 1e6
    names = ", ".join(f"{package.name} {package.version}" for package in packages)
    print(f"wrote dist/{NAME}/ and dist/{NAME}.zip: {len(members)} files, {size:.1f} MB, with {names} inside")
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
    if not (ROOT / ".git").exists():
        return
    tracked = _git("ls-files", "-z").split("\0")
    strangers = sorted(set(sources).difference(tracked))
    if strangers:
        raise BundleError(f"git does not know {', '.join(strangers)}: `git add` what belongs to it, remove the rest")


def _git(*arguments: str) -> str:
    # safe.directory: the checkout may be another user's, as in a container.
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    try:
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError:
        raise BundleError("git is not installed, and it knows which files belong to the project") from None
    except subprocess.CalledProcessError as error:
        raise BundleError(f"git {arguments[0]} failed: {error.stderr.partition(chr(10))[0]}") from None


def _content(path: Path) -> bytes:
    """As git keeps it: cron and shells stumble over other line ends, which a checkout's texts may have."""
    content = path.read_bytes()
    return content if path.suffix == ".png" else content.replace(b"\r\n", b"\n")


def instant_of(sources: dict[str, str]) -> int:
    """The time that every file bears, in seconds since 1970: that of the commit, or of the newest file.

    Not a constant: Python takes the bytecode of a module to be fresh while the module's time and size are the same, so
    a new version must not bear the time of the one that it is unpacked over.
    """
    if "SOURCE_DATE_EPOCH" in os.environ:
        return _seconds(os.environ["SOURCE_DATE_EPOCH"])
    if (ROOT / ".git").exists() and not _git("status", "--porcelain", "--untracked-files=no"):
        return int(_git("log", "-1", "--format=%ct"))
    return int(max((ROOT / source).stat().st_mtime for source in sources))


def _seconds(text: str) -> int:
    # From the first instant that a zip can hold to the last that most systems can.
    if not (text.isascii() and text.isdigit() and 315_532_800 <= int(text) < 1 << 31):
        raise BundleError(f"SOURCE_DATE_EPOCH is wrong: {text!r}; allowed: seconds since 1970, from 315532800 (1980)")
    return int(text)


# ---- the packages of others


def _lines(path: Path) -> list[str]:
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _required(line: str) -> metadata.Distribution:
    """The installed package that a line of requirements.txt asks for."""
    form = re.fullmatch(r"([\w.-]+)((?:(?:>=|<)[\d.]+,?)*)", line)
    if not form:
        raise BundleError(f"requirements.txt: {line!r} is not of the form name>=1.2,<2")
    name, bounds = form.groups()
    package = _installed(name)
    if not all(_holds(package.version, bound) for bound in bounds.split(",") if bound):
        raise BundleError(f"{name} {package.version} is installed, and requirements.txt asks for {bounds}")
    return package


def _installed(name: str) -> metadata.Distribution:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        raise BundleError(f"{name} is not installed for {sys.executable}: run {AGAIN}") from None


def _holds(version: str, bound: str) -> bool:
    """Whether 1.2.4 is >=1.2; one that is no plain number, as 2.0rc1, never is."""
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        return False
    left, right = _numbers(version), _numbers(bound.lstrip("<>="))
    return left < right if bound.startswith("<") else left >= right


def _numbers(version: str) -> list[int]:
    """Without zeros at the end: 2.0 is 2."""
    return [int(number) for number in re.sub(r"(\.0+)+$", "", version).split(".")]


def locked_members_of(package: metadata.Distribution) -> Members:
    """A package's members, if they are those of the file whose hash requirements.lock names.

    RECORD alone says nothing: who changes a file where it is installed can change RECORD, too.
    """
    members = dict(members_of(package))
    version, digest = locked().get(package.name, ("no release of it", ""))
    if version != package.version:
        raise BundleError(
            f"{package.name} {package.version} is installed, and requirements.lock names {version}: run {AGAIN}"
        )
    if digest != content_hash(members):
        raise BundleError(f"{package.name} is not what requirements.lock names: remove .venv, and run {AGAIN}")
    return members


def locked(section: str = "") -> dict[str, tuple[str, str]]:
    """The packages that a section of requirements.lock has content lines of, or all: name → version, content hash."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    if section:
        lock = lock.partition(f"# ---- {section}\n")[2].partition("# ---- ")[0]
    lines = re.findall(r"^# in (\S+) (\S+): sha256:(\S+)$", lock, re.MULTILINE)
    return {name: (version, digest) for name, version, digest in lines}


def content_line(package: metadata.Distribution) -> str:
    """The line of requirements.lock on what the bundle takes from a package."""
    return f"# in {package.name} {package.version}: sha256:{content_hash(dict(members_of(package)))}"


def content_hash(members: Members) -> str:
    """One hash for the names and contents of files."""
    lines = [f"{hashlib.sha256(content).hexdigest()} {place}\n" for place, content in sorted(members.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def members_of(package: metadata.Distribution) -> Iterator[tuple[str, bytes]]:
    """A package's own files, and what tells its version and licence."""
    licences = 0
    for file in package.files or ():
        if _belongs(file):
            licences += _is_licence(file)
            # A release for Windows may have other line ends: its bundle, and its hash, are those of every machine.
            yield file.as_posix(), _unchanged(package, file).replace(b"\r\n", b"\n")
    if not licences:
        raise BundleError(f"{package.name} {package.version} is installed without its licence: install it by pip")


def _belongs(file: metadata.PackagePath) -> bool:
    """Not the programs that lie in bin/, nor notes of the installer; nothing that was compiled."""
    if ".." in file.parts or "__pycache__" in file.parts or file.as_posix().startswith(tuple(LEFT_OUT)):
        return False
    if file.parts[0].endswith(".dist-info"):
        return file.name == "METADATA" or _is_licence(file)
    if file.suffix not in (".py", ".typed"):
        raise BundleError(f"{file} is not plain Python, which runs on every host: another release of it is needed")
    return True


def _is_licence(file: PurePosixPath) -> bool:
    return file.parts[0].endswith(".dist-info") and bool(re.match("(LICEN[CS]E|COPYING|NOTICE|AUTHORS)", file.name))


def _unchanged(package: metadata.Distribution, file: metadata.PackagePath) -> bytes:
    """What is in it, if that is what was installed."""
    content = Path(str(file.locate())).read_bytes()
    if file.hash is None:
        raise BundleError(f"{package.name} does not say what is in {file}: install it by pip")
    digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, content).digest()).rstrip(b"=").decode()
    if digest != file.hash.value:
        raise BundleError(f"{file} was changed since {package.name} was installed: remove .venv, and run {AGAIN}")
    return content


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


def write(target: Path, members: Members, instant: int) -> None:
    """Folder and zip; what was there before goes once both are complete."""
    folder, archive = target / NAME, target / f"{NAME}.zip"
    _refuse_to_replace(folder)
    unfinished = target / f"{NAME}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        _write_folder(unfinished / NAME, members, instant)
        _write_zip(unfinished / "zip", members, instant)
        shutil.rmtree(folder, ignore_errors=True)
        (unfinished / NAME).rename(folder)
        (unfinished / "zip").replace(archive)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _refuse_to_replace(folder: Path) -> None:
    """Somebody may have tried the bundle where it was made, and have a queue in there now."""
    own = [path for path in (folder / ".env", folder / "tasks.py", *folder.glob("var/[!.]*")) if path.exists()]
    if own:
        raise BundleError(f"{own[0]} is somebody's, and would be lost: move {folder} away")


def _folders(members: Members) -> list[str]:
    """Every folder in it, each after the one that it lies in; not the outermost one."""
    parents = {str(parent) for place in members for parent in PurePosixPath(place).parents}
    return sorted(parents - {"."})


def _mode(place: str, content: bytes | None) -> int:
    """The rights of a file, or of a folder (no content). var/ is private, as the program would make it."""
    if content is None:
        return 0o700 if place == "var" else 0o755
    return 0o755 if content.startswith(b"#!") else 0o644


def _write_folder(folder: Path, members: Members, instant: int) -> None:
    folder.mkdir()
    for place in _folders(members):
        (folder / place).mkdir()
    for place, content in members.items():
        (folder / place).write_bytes(content)
    for place in [*members, *reversed(_folders(members)), "."]:
        (folder / place).chmod(_mode(place, members.get(place)))
        os.utime(folder / place, (instant, instant))


def _write_zip(archive: Path, members: Members, instant: int) -> None:
    """Not compressed: the bytes would depend on the machine's zlib."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:
        for place in ["", *sorted([*members, *_folders(members)])]:
            file.writestr(_entry(place, members.get(place), instant), members.get(place, b""))


def _entry(place: str, content: bytes | None, instant: int) -> zipfile.ZipInfo:
    """A file's, or a folder's (no content). Its time is in no time zone."""
    name = PurePosixPath(NAME, place).as_posix() + ("/" if content is None else "")
    entry = zipfile.ZipInfo(name, time.gmtime(instant)[:6])
    entry.create_system = 3  # Unix, whose rights follow
    kind = stat.S_IFDIR if content is None else stat.S_IFREG
    entry.external_attr = (kind | _mode(place, content)) << 16 | (0x10 if content is None else 0)
    return entry


if __name__ == "__main__":
    sys.exit(main())
