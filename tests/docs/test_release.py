"""`make release`: what it publishes of a tag. One version is in all the files that name it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from taskserver import __version__
from tests.support.deployment import ROOT
from tests.support.repositories import in_git


def test_all_files_that_name_the_version_name_the_same() -> None:
    assert re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE) == [__version__]
    released = re.findall(r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[:1] == [__version__]


@pytest.mark.long
def test_a_release_has_all_that_git_knows_and_each_part_of_it_does_a_task(tmp_path: Path) -> None:
    known = [name for name in in_git(ROOT, "ls-files", "-z").split("\0") if name]
    folder = tmp_path / "repository"
    for name in known:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    changelog = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    (folder / "CHANGELOG.md").write_text(re.sub(r"^## .*", f"## {__version__}", changelog, count=1, flags=re.MULTILINE))
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        in_git(folder, *command)

    def release() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["make", "release"], cwd=folder, capture_output=True, text=True)

    assert "release.py: a release needs a commit with a tag vX.Y.Z" in release().stderr
    in_git(folder, "tag", "v99.0.0")
    assert "pyproject.toml, taskserver/__init__.py, CHANGELOG.md must name the version" in release().stderr
    in_git(folder, "tag", "-d", "v99.0.0")
    in_git(folder, "tag", f"v{__version__}")
    made = release()
    assert made.returncode == 0, made.stdout + made.stderr
    assert len(re.findall("^trying ", made.stdout, re.MULTILINE)) == 3
    stem, bundle = f"cron_taskserver-{__version__}", f"taskserver-{__version__}"
    names = {f"{stem}.tar.gz", f"{stem}-py3-none-any.whl", f"{bundle}.zip", f"{bundle}-web.zip"}
    listed = [line.split("  ") for line in (folder / "dist" / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in listed} == names
    assert {path.name for path in (folder / "dist").iterdir()} == {*names, "SHA256SUMS"}
    for digest, name in listed:
        assert hashlib.sha256((folder / "dist" / name).read_bytes()).hexdigest() == digest
    with tarfile.open(folder / "dist" / f"{stem}.tar.gz") as sdist:
        assert {f"{stem}/{name}" for name in known} <= set(sdist.getnames())
    with zipfile.ZipFile(folder / "dist" / f"{stem}-py3-none-any.whl") as wheel:
        in_wheel = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert in_wheel == {name for name in known if name.startswith("taskserver/")}
