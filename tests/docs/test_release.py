"""A release: one version, locked packages, a line for old Pythons, benchmarks that run; and `make release`."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from taskserver import __version__
from tests.support.deployment import ROOT, Deployment
from tests.support.hosts import in_git
from tests.support.processes import assert_one_line

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_all_files_that_name_the_version_name_the_same() -> None:
    assert re.findall(r'^version = "(.+)"$', PROJECT, re.MULTILINE) == [__version__]
    released = re.findall(r"^## (\d\S*) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[:1] == [__version__]


def test_those_who_install_by_hand_are_asked_for_the_same_packages() -> None:
    named = re.search(r"^dependencies = \[(.*?)\]\n", PROJECT, re.MULTILINE | re.DOTALL)
    assert named
    asked = [Requirement(text) for text in re.findall('"([^"]+)"', named[1])]
    assert (ROOT / "requirements.txt").read_text().splitlines() == [
        f"{one.name}>={low},<{high}"
        for one in asked
        for high, low in [sorted((bound.version for bound in one.specifier), key=len)]
    ]


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


# ---- an old Python


SCRIPTS = pytest.mark.parametrize("script", ["worker.py", "client.py"])
# This Python, told that it is another.
PRETEND = """
import runpy, sys
sys.argv = sys.argv[1:]
sys.version_info = {version!r}
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    assert {is_new} or "taskserver" not in sys.modules
"""


@SCRIPTS
@pytest.mark.parametrize("version", [(3, 9), (3, 10)], ids=str)
def test_the_line_names_the_version_that_runs(deployment: Deployment, script: str, version: tuple[int, int]) -> None:
    program = deployment.home / "pretend.py"
    is_new = version >= (3, 10)
    program.write_text(PRETEND.format(version=(*version, 18, "final", 0), is_new=is_new))
    command = [sys.executable, "-S", str(program), str(deployment.folder / script), "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, env={})
    if is_new:
        assert (ended.returncode, ended.stderr) == (0, "")
        assert ended.stdout.startswith(f"usage: {script}")
    else:
        assert_one_line(ended, 2, script, "this is {}.{}: ".format(*version), "3.10 or newer", "/usr/bin/python3.11")


# ---- the benchmarks, which take the program's own statements apart


BESIDE_PEERS = "bench.peers --quick --only taskserver --part add,add_many,drain_2,million,empty_cpu,empty_memory"


@pytest.mark.long
@pytest.mark.parametrize(
    "command", ["bench --quick", "bench --quick --postgresql", "bench.growth --quick", BESIDE_PEERS]
)
def test_every_benchmark_runs_with_few_rows(command: str) -> None:
    subprocess.run([sys.executable, "-m", *command.split()], cwd=ROOT, check=True, timeout=600)
