"""`make release`: what is published of a tag vX.Y.Z, in dist/, each tried in an empty environment.

    dist/taskserver-X.Y.Z.tar.gz            the sdist
    dist/taskserver-X.Y.Z-py3-none-any.whl  the wheel, built from it
    dist/taskserver-X.Y.Z.zip               the bundle, and -web.zip, the one with the status page inside
    dist/SHA256SUMS

All of it comes from a fresh clone of the tag, never from files of this folder. This folder must be the same, though:
who changed something wants it published.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / ".ci"))

from requirements import requirements  # noqa: E402

BUILD = "import sys, setuptools.build_meta as backend; print(getattr(backend, 'build_' + sys.argv[1])(sys.argv[2]))"


class ReleaseError(Exception):
    """There can be no release; the text says why, and what to do."""


def main() -> int:
    """Check, build, try, and say what was written; the exit code."""
    os.umask(0o022)  # the rights of what is published
    try:
        version = tagged_version()
        with tempfile.TemporaryDirectory() as folder:
            artefacts = build(version, Path(folder))
            for artefact in artefacts:
                print(f"trying {artefact.name}", flush=True)
                place = Path(tempfile.mkdtemp(dir=folder))
                (try_bundle if artefact.suffix == ".zip" else try_installed)(artefact, place)
            publish(artefacts, ROOT / "dist")
        return 0
    except (ReleaseError, OSError) as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 2


# ---- the version


def tagged_version() -> str:
    """The version of the tag, which is that of all the files that name it."""
    if changed := run("git", "status", "--porcelain", cwd=ROOT).splitlines():
        raise ReleaseError(f"the checkout is not the commit (git status: {changed[0].strip()}): commit or remove it")
    tags = run("git", "tag", "--points-at", "HEAD", cwd=ROOT).split()
    version = next((tag[1:] for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)), None)
    if version is None:
        raise ReleaseError("this commit has no tag vX.Y.Z: `git tag v0.1.0`, for example")
    named = versions()
    if set(named.values()) != {version}:
        told = ", ".join(f"{place} {found}" for place, found in named.items())
        raise ReleaseError(f"the tag v{version} is not what the files name: {told}")
    return version


def versions() -> dict[str, str]:
    """What each file names as the version; CHANGELOG.md by its first heading: `## 0.1.0 - 2026-11-26`."""
    forms = {
        "pyproject.toml": r'^version = "(.+)"$',
        "taskserver/__init__.py": r'^__version__ = "(.+)"$',
        "CHANGELOG.md": r"^## (.+?)(?: - \d{4}-\d\d-\d\d)?$",
    }
    texts = {place: (ROOT / place).read_text(encoding="utf-8") for place in forms}
    return {place: next(iter(re.findall(form, texts[place], re.MULTILINE)), "none") for place, form in forms.items()}


# ---- building


def build(version: str, folder: Path) -> list[Path]:
    """The sdist, the wheel and the bundles, in a folder."""
    clone, built = folder / "clone", folder / "built"
    run("git", "clone", "-q", "--depth", "1", "--branch", f"v{version}", ROOT.as_uri(), str(clone), cwd=folder)
    epoch = run("git", "log", "-1", "--format=%ct", cwd=clone).strip()
    sdist = _built("sdist", clone, built, epoch)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    wheel = _built("wheel", folder / f"cron_taskserver-{version}", built, epoch)
    check_whole(sdist, wheel)
    return [sdist, wheel, _bundle(clone, built), _bundle(clone, built, "web")]


def _built(kind: str, source: Path, target: Path, epoch: str) -> Path:
    said = run(sys.executable, "-c", BUILD, kind, str(target), cwd=source, SOURCE_DATE_EPOCH=epoch)
    return target / said.splitlines()[-1]


def _bundle(clone: Path, target: Path, *extras: str) -> Path:
    run(sys.executable, "packaging/bundle.py", *(f"--{extra}" for extra in extras), cwd=clone)
    (archive,) = (clone / "dist").glob("*.zip")
    return archive.replace(target / f"{'-'.join([archive.stem, *extras])}.zip")


def check_whole(sdist: Path, wheel: Path) -> None:
    """The sdist has all that git knows, and the wheel all of the package."""
    known = set(run("git", "ls-files", "-z", cwd=ROOT).strip("\0").split("\0"))
    with tarfile.open(sdist) as archive:
        lacking = known.difference(name.partition("/")[2] for name in archive.getnames())
    with zipfile.ZipFile(wheel) as archive:
        lacking |= {name for name in known if name.startswith("taskserver/")}.difference(archive.namelist())
    if lacking:
        raise ReleaseError(f"sdist or wheel lack {min(lacking)}: see MANIFEST.in, and package-data in pyproject.toml")


# ---- trying


def try_installed(artefact: Path, folder: Path) -> None:
    """Does a task with the commands that an sdist or a wheel installs; what it needs comes by the lock's hashes."""
    venv.create(folder / "venv", with_pip=True)
    python = str(folder / "venv" / "bin" / "python")
    needed = requirements(["release"] if artefact.suffix == ".gz" else [])
    (folder / "needed").write_text("\n".join(needed))
    run(python, str(ROOT / ".ci" / "install.py"), str(folder / "needed"), cwd=folder)
    pip = [python, "-m", "pip", "install", "--quiet", "--isolated", "--no-index", "--no-build-isolation"]
    run(*pip, str(artefact), cwd=folder, PIP_CONFIG_FILE=os.devnull)
    deployment = folder / "deployment"
    deployment.mkdir()
    client, worker = (str(folder / "venv" / "bin" / name) for name in ("taskserver", "taskserver-worker"))
    do_a_task([client, "--folder", str(deployment)], [worker, "--folder", str(deployment)], deployment)


def try_bundle(archive: Path, folder: Path) -> None:
    """Does a task with an unpacked bundle and a Python that has nothing else."""
    shutil.unpack_archive(archive, folder)
    (deployment,) = folder.iterdir()
    venv.create(folder / "venv", with_pip=False)
    python = str(folder / "venv" / "bin" / "python")
    do_a_task([python, str(deployment / "client.py")], [python, str(deployment / "worker.py")], deployment)


def do_a_task(client: list[str], worker: list[str], deployment: Path) -> None:
    """From the tables to what the task wrote, in a folder that has nothing but tasks.py, or a bundle."""
    shutil.copy2(ROOT / "packaging" / "example_tasks.py", deployment / "tasks.py")
    run(*client, "init", cwd=deployment.parent)
    run(*client, "add", "tasks.hello", '{"name": "Ada"}', cwd=deployment.parent)
    run(*worker, cwd=deployment.parent)
    if "Hello, Ada\n" not in (deployment / "var" / "hello.txt").read_text(encoding="utf-8"):
        raise ReleaseError(f"{worker[0]} did not do the task")


# ---- publishing


def publish(artefacts: list[Path], target: Path) -> None:
    """Copies them to their place, with a file of their hashes beside them."""
    target.mkdir(exist_ok=True)
    lines = []
    for artefact in sorted(artefacts):
        shutil.copy2(artefact, target)
        lines.append(f"{hashlib.sha256(artefact.read_bytes()).hexdigest()}  {artefact.name}\n")
    (target / "SHA256SUMS").write_text("".join(lines), encoding="ascii")
    print(f"wrote to {target.name}/: {', '.join([*(artefact.name for artefact in sorted(artefacts)), 'SHA256SUMS'])}")


def run(*command: str, cwd: Path, **env: str) -> str:
    """Runs a program to its end; what it printed. Its last line is the error if it fails."""
    # A queue that this environment names is somebody's.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TASKSERVER_")}
    ended = subprocess.run(command, check=False, cwd=cwd, env=environ | env, capture_output=True, text=True)
    if ended.returncode != 0:
        said = (ended.stderr.strip() or ended.stdout.strip() or "it said nothing").splitlines()[-1]
        raise ReleaseError(f"{' '.join(command)}: {said}")
    return ended.stdout


if __name__ == "__main__":
    sys.exit(main())
