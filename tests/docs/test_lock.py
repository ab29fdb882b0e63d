"""requirements.lock: it is what pyproject.toml allows, and nothing comes into .venv that has another hash."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.deployment import ROOT
from tests.support.venvs import make_venv

LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
EXTRAS = ("run time", "cron", "web", "metrics", "test", "dev", "docs", "update", "bench", "release")


def asked_for(extra: str) -> list[Requirement]:
    """What pyproject.toml names for an extra; Python 3.10 has no reader for such files."""
    key = "dependencies" if extra == "run time" else extra
    found = re.search(rf"^{key} = \[(.*?)\]\n", PROJECT, re.MULTILINE | re.DOTALL)
    assert found, extra
    return [Requirement(text) for text in re.findall('"([^"]+)"', found[1])]


def locked() -> dict[str, list[Requirement]]:
    """The entries for each package, more than one where Pythons differ."""
    entries: dict[str, list[Requirement]] = {}
    for line in re.findall(r"^(\w.*) \\$", LOCK, re.MULTILINE):
        entries.setdefault(canonicalize_name(Requirement(line).name), []).append(Requirement(line))
    return entries


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_lock_names_a_release_that_pyproject_allows_of_each_package(extra: str) -> None:
    for asked in asked_for(extra):
        if asked.name == "cron-taskserver":
            continue
        entries = locked().get(canonicalize_name(asked.name))
        assert entries, f"{asked.name} is not in requirements.lock: run make update"
        for entry in entries:
            (pin,) = entry.specifier
            assert pin.operator == "=="
            assert pin.version in asked.specifier, f"{entry} is not {asked}: run make update"


def test_those_who_install_by_hand_are_asked_for_the_same_packages() -> None:
    assert (ROOT / "requirements.txt").read_text().splitlines() == [
        f"{one.name}>={low},<{high}"
        for one in asked_for("run time")
        for high, low in [sorted((bound.version for bound in one.specifier), key=len)]
    ]


def test_each_package_in_the_lock_has_hashes_and_no_registry_is_named() -> None:
    entries = re.split(r"\n(?=\w)", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE).strip())
    assert len(entries) > 20
    for entry in entries:
        first, *hashes = re.split(r" \\\n    ", entry.strip())
        assert hashes, first
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), first
    assert "://" not in LOCK
    assert "-index" not in LOCK


def test_a_package_of_another_hash_does_not_come_into_the_virtual_environment(tmp_path: Path) -> None:
    """Whatever the machine's own settings of pip ask for."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    make_venv(tmp_path / ".venv")
    right = hashlib.sha256(wheel_of(tmp_path, "RIGHT = True").read_bytes()).hexdigest()
    (tmp_path / "requirements.lock").write_text(f"# ---- run time\nshop==1.0 \\\n    --hash=sha256:{right}\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_REQUIRE_HASHES": "0", "PIP_USER": "1"}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONSTRAINT": "/none", "PIP_REQUIREMENT": "/none"}

    def set_up() -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(tmp_path / ".ci/setup"), "venv"], env=env, capture_output=True, text=True)

    def imported() -> int:
        command = [str(tmp_path / ".venv/bin/python"), "-c", "import shop"]
        return subprocess.run(command, cwd="/", capture_output=True).returncode

    wheel_of(tmp_path, "EVIL = True")
    refused = set_up()
    assert (refused.returncode, imported()) == (1, 1)
    assert "setup: pip failed: ERROR: THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr
    wheel_of(tmp_path, "RIGHT = True")
    assert (set_up().returncode, imported()) == (0, 0)
    assert (set_up().stderr, imported()) == ("", 0)


def wheel_of(folder: Path, code: str) -> Path:
    """A package shop of version 1.0 with this code; the same bytes for the same code."""
    path = folder / "shop-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {
            "shop.py": code,
            "shop-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n",
            "shop-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            "shop-1.0.dist-info/RECORD": "",
        }.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return path
