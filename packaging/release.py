"""`make release`: what is published of a tag vX.Y.Z, in dist/, each tried in an empty environment.

    dist/cron_taskserver-X.Y.Z.tar.gz            the sdist
    dist/cron_taskserver-X.Y.Z-py3-none-any.whl  the wheel, built from it
    dist/taskserver-X.Y.Z.zip                    the bundle, and -web.zip, the one with the status page inside
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
VERSIONS = {
    "pyproject.toml": r'^version = "(.+)"$',
    "taskserver/__init__.py": r'^__version__ = "(.+)"$',
    "CHANGELOG.md": r"^## (.+?)(?: - \d{4}-\d\d-\d\d)?$",  # the first heading: `## 0.1.0 - 2026-11-26`
}
"""How each file names the version."""


class ReleaseError(Exception):
    """There can be no release; the text says why, and what to do."""


def main() -> int:
    """Check, build, try, and say what was written; the exit code."""
    os.umask(0o022)  # the rights of what is published
    try:
        version = tagged_version()
        with tempfile.TemporaryDirectory() as folder:
            artefacts = build(version, Path(folder))
            for artefact in artefacts[1:]:  # the wheel was built from the sdist
                print(f"trying {artefact.name}", flush=True)
                try_out(artefact, Path(tempfile.mkdtemp(dir=folder)))
            publish(artefacts, ROOT / "dist")
        return 0
    except (ReleaseError, OSError) as error:
        print(f"release.py: {error}", file=sys.stderr)
        return 2


def tagged_version() -> str:
    """The version of the tag, which is that of all the files that name it."""
    if changed := run("git", "status", "--porcelain", cwd=ROOT).splitlines():
        raise ReleaseError(f"the checkout is not the commit (git status: {changed[0].strip()}): commit or remove it")
    tags = run("git", "tag", "--points-at", "HEAD", cwd=ROOT).split()
    version = next((tag[1:] for tag in tags if re.fullmatch(r"v\d+\.\d+\.\d+", tag)), None)
    if version is None:
        raise ReleaseError("this commit has no tag vX.Y.Z: `git tag v0.1.0`, for example")
    found = {place: re.search(form, (ROOT / place).read_text("utf-8"), re.M) for place, form in VERSIONS.items()}
    named = {place: match[1] if match else "none" for place, match in found.items()}
    if set(named.values()) != {version}:
        names = ", ".join(f"{place} {one}" for place, one in named.items())
        raise ReleaseError(f"the tag v{version} is not what the files name: {names}")
    return version


def build(version: str, folder: Path) -> list[Path]:
    """The sdist, the wheel and the bundles, in a folder."""
    clone, built = folder / "clone", folder / "built"
    run("git", "clone", "-q", "--depth", "1", "--branch", f"v{version}", ROOT.as_uri(), str(clone), cwd=folder)
    epoch = run("git", "log", "-1", "--format=%ct", cwd=clone).strip()

    def made(kind: str, source: Path) -> Path:
        said = run(sys.executable, "-c", BUILD, kind, str(built), cwd=source, SOURCE_DATE_EPOCH=epoch)
        return built / said.splitlines()[-1]

    def bundle(*extras: str) -> Path:
        run(sys.executable, "packaging/bundle.py", *(f"--{extra}" for extra in extras), cwd=clone)
        (archive,) = (clone / "dist").glob("*.zip")
        return archive.replace(built / archive.name)

    sdist = made("sdist", clone)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    wheel = made("wheel", folder / f"cron_taskserver-{version}")
    known = set(run("git", "ls-files", "-z", cwd=ROOT).strip("\0").split("\0"))
    in_package = {name for name in known if name.startswith("taskserver/")}
    if lacking := (known - in_sdist) | in_package.difference(zipfile.ZipFile(wheel).namelist()):
        raise ReleaseError(f"sdist or wheel lack {min(lacking)}: see MANIFEST.in, and package-data in pyproject.toml")
    return [sdist, wheel, bundle(), bundle("web")]


def try_out(artefact: Path, folder: Path) -> None:
    """Does a task with the commands of an installed wheel, or with an unpacked bundle and a Python that has nothing."""
    is_wheel = artefact.suffix == ".whl"
    venv.create(folder / "venv", with_pip=is_wheel)
    programs, site = folder / "venv" / "bin", folder / "site"
    if is_wheel:
        python = str(programs / "python")
        (folder / "needed").write_text("\n".join(requirements([])))
        run(python, str(ROOT / ".ci" / "install.py"), str(folder / "needed"), cwd=folder)
        pip = [python, "-m", "pip", "install", "--quiet", "--isolated", "--no-index"]
        run(*pip, str(artefact), cwd=folder, PIP_CONFIG_FILE=os.devnull)
        site.mkdir()
        client, worker = ([str(programs / name)] for name in ("taskserver", "taskserver-worker"))
    else:
        shutil.unpack_archive(artefact, site)
        (site,) = site.iterdir()
        client, worker = ([str(programs / "python"), name] for name in ("client.py", "worker.py"))
    shutil.copy2(ROOT / "packaging" / "example_tasks.py", site / "tasks.py")
    run(*client, "init", cwd=site)
    run(*client, "add", "tasks.greet", '{"name": "Ada"}', cwd=site)
    run(*worker, cwd=site)
    if "Hello Ada\n" not in (site / "var" / "greetings.txt").read_text(encoding="utf-8"):
        raise ReleaseError(f"{artefact.name} did not do the task")


def publish(artefacts: list[Path], target: Path) -> None:
    """Copies them to their place, with a file of their hashes beside them."""
    target.mkdir(exist_ok=True)
    for artefact in artefacts:
        shutil.copy2(artefact, target)
    sums = [f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in sorted(artefacts)]
    (target / "SHA256SUMS").write_text("".join(sums), encoding="ascii")
    print(f"wrote to {target.name}/: {', '.join([*(one.name for one in sorted(artefacts)), 'SHA256SUMS'])}")


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
