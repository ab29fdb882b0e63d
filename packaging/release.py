"""`make release`: what is published of a tag vX.Y.Z, in dist/, each tried in an empty environment.

An sdist, the wheel built from it, the bundle, the bundle with the status page, and SHA256SUMS. All of it comes from a
fresh clone of the tag, never from files of this folder.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from bundle import ROOT, locked  # type: ignore[import-not-found]

VERSIONS = {
    "pyproject.toml": r'^version = "(.+)"$',
    "taskserver/__init__.py": r'^__version__ = "(.+)"$',
    "CHANGELOG.md": r"^## (.+?)(?: - \d{4}-\d\d-\d\d)?$",  # the first heading: `## 0.1.0 - 2026-11-26`
}
BUILD = "import setuptools.build_meta as backend; backend.build_{}({!r})"


def run(*command: object, cwd: Path = ROOT) -> str:
    """Runs a program, which must succeed; what it printed. A queue that this environment names is somebody's."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TASKSERVER_")}
    return subprocess.run([*map(str, command)], cwd=cwd, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def tagged_version() -> str:
    """The version of this commit's tag and of the files that name it."""
    tag = re.search(r"^v(\d+\.\d+\.\d+)$", run("git", "tag", "--points-at", "HEAD"), re.MULTILINE)
    if tag is None or run("git", "status", "--porcelain"):
        sys.exit("release.py: a release needs a commit with a tag vX.Y.Z, and no changes beyond it")
    named = {name: re.findall(form, (ROOT / name).read_text("utf-8"), re.M)[:1] for name, form in VERSIONS.items()}
    if wrong := [name for name, found in named.items() if found != [tag[1]]]:
        sys.exit(f"release.py: {', '.join(wrong)} must name the version of the tag, {tag[1]}")
    return tag[1]


def build(version: str, folder: Path) -> Path:
    """A folder with all that is published."""
    clone, built = folder / "clone", folder / "built"
    run("git", "clone", "-q", "--branch", f"v{version}", ROOT, clone)
    os.environ["SOURCE_DATE_EPOCH"] = run("git", "log", "-1", "--format=%ct", cwd=clone).strip()
    run(sys.executable, "-c", BUILD.format("sdist", str(built)), cwd=clone)
    shutil.unpack_archive(built / f"cron_taskserver-{version}.tar.gz", folder, filter="data")
    run(sys.executable, "-c", BUILD.format("wheel", str(built)), cwd=folder / f"cron_taskserver-{version}")
    for options in ([], ["--web"]):
        run(sys.executable, "packaging/bundle.py", *options, cwd=clone)
    for archive in (clone / "dist").glob("*.zip"):
        shutil.copy2(archive, built)
    return built


def try_out(artefact: Path, folder: Path) -> None:
    """Does a task, by the commands of an installed wheel, or by an unpacked bundle and a Python that has nothing."""
    is_wheel = artefact.suffix == ".whl"
    venv.create(folder / "venv", with_pip=is_wheel)
    programs, site = folder / "venv" / "bin", folder / "site"
    client, worker = ([programs / "python", f"{name}.py"] for name in ("client", "worker"))
    if is_wheel:
        (folder / "locked").write_text("\n".join(locked([])))
        pip = ("env", "PIP_CONSTRAINT=/dev/null", programs / "python", "-m", "pip", "install", "--quiet")
        run(*pip, "--require-hashes", "-r", folder / "locked")
        run(*pip, "--no-index", artefact)
        client, worker = [programs / "taskserver"], [programs / "taskserver-worker"]
        site.mkdir()
    else:
        shutil.unpack_archive(artefact, site)
        (site,) = site.iterdir()
    shutil.copy2(ROOT / "packaging" / "example_tasks.py", site / "tasks.py")
    run(*client, "init", cwd=site)
    run(*client, "add", "tasks.greet", '{"name": "Ada"}', cwd=site)
    run(*worker, cwd=site)
    if not (site / "var" / "greetings.txt").exists():
        sys.exit(f"release.py: {artefact.name} did not do the task")


os.umask(0o022)  # the rights of what is published
with tempfile.TemporaryDirectory() as name:
    built = build(tagged_version(), Path(name))
    for artefact in [*built.glob("*.whl"), *built.glob("*.zip")]:
        print(f"trying {artefact.name}", flush=True)
        try_out(artefact, Path(tempfile.mkdtemp(dir=name)))
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(built.iterdir())]
    (built / "SHA256SUMS").write_text("".join(sums))
    shutil.copytree(built, ROOT / "dist", dirs_exist_ok=True)
print("wrote to dist/:", *sorted(path.name for path in (ROOT / "dist").iterdir() if path.is_file()))
