"""`make bundle`: a folder and a zip of it in dist/, to be uploaded by FTP and run with nothing but python3.

Any Python from 3.10 on makes it, on Linux, a Mac or Windows: `python packaging/bundle.py`. The packages are those that
requirements.lock names: of this Python if it has them, else pip gets them. On a host Python finds them by itself: it
looks in the folder of worker.py first. Files of the same times make the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = (ROOT / "taskserver" / "__init__.py").read_text(encoding="utf-8")
NAME = "taskserver-" + re.findall(r'^__version__ = "(.+)"', SOURCE, re.MULTILINE)[0]
FILES = (
    *(".env.example", ".htaccess", "client.py", "crontab.example", "schema.sql", "worker.py"),
    *(
        "docs/shared-hosting.md",
        "docs/operating.md",
        "docs/security.md",
        "examples/enqueue.php",
        "examples/wordpress.php",
    ),
)
FILES_OF = {
    "web": ("passenger_wsgi.py", "docs/page.md", "examples/page.cgi"),
    "metrics": ("docs/metrics.md",),
    "postgresql": ("schema.postgresql.sql", "docs/postgresql.md"),
}
"""What an option takes in, beside the packages of that extra."""
RENAMED = {
    "packaging/START-HERE.txt": "START-HERE.txt",
    # Not tasks.py: a new version is uploaded over the old one, and must leave the owner's functions alone.
    "packaging/example_tasks.py": "tasks.example.py",
}
PACKAGE = re.compile(r"taskserver/(?!testing/|web/(?!__init__)).*\.py")
"""What every host needs of the package. The page's part says in its __init__.py what to do without the rest."""
PACKAGE_WITH_PAGE = re.compile(r"taskserver/(?!testing/).*\.(py|html|css|js|svg)")
PACKAGES_OF_OTHERS = re.compile(r"(?!dotenv/(__main__|cli|ipython)|werkzeug/debug/shared/|cronsim-).*(\.py|/METADATA)")
"""What is taken of them: no programs, nothing that was compiled. `client.py doctor` and psycopg read METADATA."""
NOT_PACKED = ("psycopg-binary", "tzdata")
FOR_ANY_HOST = (
    *("--only-binary", ":all:", "--implementation", "cp", "--python-version", "3.10", "--abi", "cp310"),
    *("--platform", "manylinux2014_x86_64"),
)
"""What pip gets is the same wherever it runs."""
PIP_SETTINGS = {"PIP_CONSTRAINT": os.devnull, "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def main() -> int:
    """Parse, write, say what was written; the exit code."""
    parser = argparse.ArgumentParser(description="Writes the folder and the zip that are uploaded to a host.")
    parser.add_argument("--web", action="store_true", help="take in the status page")
    parser.add_argument("--metrics", action="store_true", help="take in the package of `client.py metrics`")
    parser.add_argument("--postgresql", action="store_true", help="take in the driver of PostgreSQL, as plain Python")
    extras = [extra for extra, wanted in vars(parser.parse_args()).items() if wanted]
    archive = ROOT / "dist" / f"{'-'.join([NAME, *extras])}.zip"
    with tempfile.TemporaryDirectory() as folder:
        packages = packages_of(extras, Path(folder))
        members, newest = own_files(extras)
        for package in packages:
            members |= files_of(package)
        members["LICENSES.txt"] = licences(packages).encode()
    members["FILES.txt"] = file_list(members).encode()
    write(ROOT / "dist" / NAME, archive, members, int(os.environ.get("SOURCE_DATE_EPOCH", newest)))
    size = sum(map(len, members.values())) / 1e6
    print(f"wrote dist/{NAME}/ and dist/{archive.name}: {len(members)} files, {size:.1f} MB")
    return 0


def own_files(extras: list[str]) -> tuple[dict[str, bytes], float]:
    """Each file's place in the bundle and its content, as git keeps it; and when the newest one was changed."""
    package = PACKAGE_WITH_PAGE if "web" in extras else PACKAGE
    found = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "taskserver").rglob("*"))]
    names = [*FILES, *(name for extra in extras for name in FILES_OF.get(extra, ())), *filter(package.fullmatch, found)]
    places = dict(zip(names, names, strict=True)) | RENAMED
    members = {place: (ROOT / name).read_bytes().replace(b"\r\n", b"\n") for name, place in places.items()}
    for place in [place for place in members if place.endswith(".md")]:
        members[place] = without_dead_links(members[place].decode(), place, members).encode()
    return members | {"var/.htaccess": members[".htaccess"]}, max((ROOT / name).stat().st_mtime for name in names)


def without_dead_links(text: str, place: str, members: dict[str, bytes]) -> str:
    """A document whose links lead to documents of the bundle only; of others the words stay."""

    def link(found: re.Match[str]) -> str:
        target = os.path.normpath(Path(place).parent / found[2]).replace(os.sep, "/")
        return found[0] if not found[2] or target in members else found[1]

    return re.sub(r"!?\[([^]]*)\]\((?!https?:)([^)#]*)[^)]*\)", link, text)


# ---- the packages of others


def locked(extras: list[str]) -> list[str]:
    """What requirements.lock has for a run and these extras: an entry of several lines for each package."""
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^# ---- (.+)\n([^#]*)", lock, re.MULTILINE))
    return re.split(r"\n(?=\S)", "\n".join(sections[title].strip() for title in ["run time", *extras]))


def packages_of(extras: list[str], folder: Path) -> list[metadata.Distribution]:
    """Those of a run, of periodic tasks and of these extras: what this Python has, or what pip gets into the folder."""
    # For every host, though this Python might not need it: without markers, which are of the Python that runs pip.
    entries = [re.sub(r" ; [^\\\n]+", " ", entry) for entry in locked(["cron", *extras])]
    entries = [entry for entry in entries if not entry.startswith(NOT_PACKED)]
    pins = dict(entry.split()[0].split("==") for entry in entries)
    found = {name: next(iter(metadata.distributions(name=name)), None) for name in pins}
    if all(package and package.version == pins[name] for name, package in found.items()):
        return [package for package in found.values() if package]
    print(f"getting {', '.join(pins)}", flush=True)
    (folder / "required").write_text("\n".join(entries), encoding="utf-8")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--no-deps", "--no-compile"]
    command += [*FOR_ANY_HOST, "-r", str(folder / "required"), "--target", str(folder / "site")]
    if subprocess.run(command, check=False, env=os.environ | PIP_SETTINGS).returncode != 0:
        sys.exit("bundle.py: pip could not get the packages, see above")
    return [next(iter(metadata.distributions(name=name, path=[str(folder / "site")]))) for name in pins]


def files_of(package: metadata.Distribution) -> dict[str, bytes]:
    """What a package brings into the bundle."""
    taken = [file for file in package.files or () if PACKAGES_OF_OTHERS.fullmatch(file.as_posix())]
    return {file.as_posix(): Path(str(file.locate())).read_bytes().replace(b"\r\n", b"\n") for file in taken}


def licences(packages: list[metadata.Distribution]) -> str:
    """The licences of taskserver and of the packages, in one text."""
    parts = [f"---- {NAME.replace('-', ' ')}\n\n{(ROOT / 'LICENSE').read_text('utf-8')}"]
    for package in packages:
        texts = [file for file in package.files or () if re.search(r"dist-info/.*(LICEN[CS]E|COPYING)", str(file))]
        text = "\n".join(Path(str(file.locate())).read_text(encoding="utf-8") for file in texts)
        parts.append(f"---- {package.name} {package.version}\n\n{text.strip()}\n")
    return "\n".join(parts)


# ---- writing


def file_list(members: dict[str, bytes]) -> str:
    """The files of which an owner changes none, with their hashes: `client.py doctor` compares an upload with them."""
    program = [name for name in members if re.match(r"(worker|client)\.py$|(?!docs/|examples/|var/).*/", name)]
    return "".join(f"{hashlib.sha256(members[name]).hexdigest()}  {name}\n" for name in sorted(program))


def write(folder: Path, archive: Path, members: dict[str, bytes], instant: int) -> None:
    """The folder and the zip. All files bear one time, and only programs may be executed."""
    own = [path for path in (folder / ".env", folder / "tasks.py", *folder.glob("var/[!.]*")) if path.exists()]
    if own:  # somebody tried the bundle where it was made, and has a queue in there now
        sys.exit(f"bundle.py: {own[0]} is somebody's, and would be lost: move {folder} away")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "var").mkdir(mode=0o700)
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file:  # to compress makes other bytes on other machines
        for name, content in sorted(members.items()):
            mode = 0o755 if content.startswith(b"#!") else 0o644
            entry = zipfile.ZipInfo(f"{NAME}/{name}", time.gmtime(instant)[:6])
            entry.create_system, entry.external_attr = 3, (0o100000 | mode) << 16  # Unix, whose rights follow
            file.writestr(entry, content)
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            path.chmod(mode)
            os.utime(path, (instant, instant))


if __name__ == "__main__":
    sys.exit(main())
