"""make release: what it refuses, and what it publishes of a tag. One version is in all the files that name it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from taskserver import __version__
from tests.support.deployment import ROOT
from tests.support.repositories import in_git

Run = subprocess.CompletedProcess[str]
NAMING = ("pyproject.toml", "taskserver/__init__.py", "CHANGELOG.md")
HEADING = f"## {__version__} - 2026-11-26\n"


def repository_of(files: Sequence[str], folder: Path) -> Path:
    """A repository with these of our files, in one commit, whose changelog has the version."""
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    changelog = re.sub(r"^## Unreleased\n", HEADING, (folder / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    (folder / "CHANGELOG.md").write_text(changelog)
    in_git(folder, "init", "-q")
    in_git(folder, "add", "-A")
    in_git(folder, "commit", "-q", "-m", "all")
    return folder


def test_all_files_that_name_the_version_name_the_same() -> None:
    assert re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE) == [__version__]
    released = re.findall(r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[:1] == [__version__]


@pytest.fixture
def release(tmp_path: Path) -> Callable[..., Run]:
    """Runs it in a small repository, where it can build nothing."""
    ours = [".ci/install.py", ".ci/requirements.py", "packaging/release.py"]
    folder = repository_of([*NAMING, *ours, ".gitignore"], tmp_path / "repository")

    def run() -> Run:
        command = [sys.executable, "-B", str(folder / "packaging" / "release.py")]
        return subprocess.run(command, cwd="/", capture_output=True, text=True)

    return run


def test_a_release_is_refused_in_a_line_that_says_why(release: Callable[..., Run], tmp_path: Path) -> None:
    folder = tmp_path / "repository"

    def refused(*words: str) -> None:
        ended = release()
        assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1), ended.stderr
        assert all(word in ended.stderr for word in ("release.py: ", *words)), ended.stderr

    refused("has no tag vX.Y.Z")
    in_git(folder, "tag", "latest")
    refused("has no tag vX.Y.Z")
    (folder / "notes.txt").write_text("")
    refused("the checkout is not the commit", "?? notes.txt")
    (folder / "notes.txt").unlink()
    in_git(folder, "tag", "v99.0.0")
    refused("v99.0.0 is not what the files name", *(f"{name} {__version__}" for name in NAMING))
    in_git(folder, "tag", "-d", "v99.0.0")
    in_git(folder, "tag", f"v{__version__}")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n\n{HEADING}")
    refused("the checkout is not the commit", "M CHANGELOG.md")
    in_git(folder, "commit", "-qam", "more")
    in_git(folder, "tag", "-f", f"v{__version__}")
    refused(f"v{__version__} is not what the files name", "CHANGELOG.md Unreleased")


@pytest.mark.long
def test_a_release_has_all_that_git_knows_and_each_part_of_it_does_a_task(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    known = [name for name in in_git(ROOT, "ls-files", "-z").split("\0") if name]
    folder = repository_of(known, tmp_path / "repository")
    in_git(folder, "tag", f"v{__version__}")
    env = os.environ | {"TASKSERVER_DSN": "sqlite:////none/queue.db"}
    made = subprocess.run(["make", "release"], cwd=folder, env=env, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout + made.stderr
    assert len(re.findall("^trying ", made.stdout, re.MULTILINE)) == 3
    stem, bundle = f"cron_taskserver-{__version__}", f"taskserver-{__version__}"
    names = {f"{stem}.tar.gz", f"{stem}-py3-none-any.whl", f"{bundle}.zip", f"{bundle}-web.zip"}
    listed = [line.split("  ") for line in (folder / "dist" / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in listed} == names
    assert {path.name for path in (folder / "dist").iterdir()} == {*names, "SHA256SUMS"}
    for digest, name in listed:
        assert hashlib.sha256((folder / "dist" / name).read_bytes()).hexdigest() == digest
    with tarfile.open(folder / "dist" / f"{stem}.tar.gz") as archive:
        in_sdist = {entry.name.partition("/")[2] for entry in archive if entry.isfile()}
    generated = {
        name for name in in_sdist if name in ("PKG-INFO", "setup.cfg") or name.startswith("cron_taskserver.egg-info/")
    }
    assert in_sdist - generated == set(known)
    with zipfile.ZipFile(folder / "dist" / f"{stem}-py3-none-any.whl") as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert in_wheel == {name for name in known if name.startswith("taskserver/")}
