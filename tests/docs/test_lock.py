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
EXTRAS = ("run time", "cron", "web", "metrics", "test", "dev", "update", "bench", "release")


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


def wheel(folder: Path, code: str, name: str = "shop") -> Path:
    """A package of version 1.0 with this code; the same bytes for the same code."""
    notes = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": code,
        f"{notes}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{notes}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{notes}/RECORD": "",
    }
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return path


def wants(path: Path) -> str:
    """The lines of a list of requirements that ask for a wheel, by its hash."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{path.name.partition('-')[0]}==1.0 \\\n    --hash=sha256:{digest}\n"


def test_pip_settings_of_a_machine_say_where_packages_come_from_and_nothing_else(tmp_path: Path) -> None:
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    make_venv(tmp_path / ".venv")
    (tmp_path / "requirements.lock").write_text(f"# ---- run time\n{wants(wheel(tmp_path / 'wheels', ''))}")
    (tmp_path / "more.txt").write_text(wants(wheel(tmp_path / "wheels", "EVIL = True", "other")))
    (tmp_path / ".config" / "pip").mkdir(parents=True)
    (tmp_path / ".config" / "pip" / "pip.conf").write_text(
        f"[global]\nno-index = true\nfind-links =\n    {tmp_path}/none\n    {tmp_path}/wheels\n"
        f"[install]\ntarget = {tmp_path}/target\nrequirement = {tmp_path}/more.txt\n"
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    env |= {"PIP_DRY_RUN": "1", "PIP_REQUIREMENT": str(tmp_path / "more.txt"), "PIP_CONSTRAINT": "/none"}
    ended = subprocess.run([str(tmp_path / ".ci/setup"), "venv"], env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    names = {path.name for path in tmp_path.glob(".venv/lib/python*/site-packages/*.dist-info")}
    assert names == {"shop-1.0.dist-info"}
    assert not (tmp_path / "target").exists()


def test_a_package_of_another_hash_does_not_come_into_the_virtual_environment(tmp_path: Path) -> None:
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    make_venv(tmp_path / ".venv")
    right = wants(wheel(tmp_path / "wheels", "RIGHT = True"))
    (tmp_path / "requirements.lock").write_text(f"# ---- run time\n{right}")
    # As a machine's own settings may ask for.
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PIP_REQUIRE_HASHES": "0", "PIP_USER": "1"}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "wheels")}

    def set_up() -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(tmp_path / ".ci/setup"), "venv"], env=env, capture_output=True, text=True)

    def imported() -> int:
        command = [str(tmp_path / ".venv/bin/python"), "-c", "import shop"]
        return subprocess.run(command, cwd="/", capture_output=True).returncode

    wheel(tmp_path / "wheels", "EVIL = True")
    refused = set_up()
    assert (refused.returncode, imported()) == (1, 1)
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert "setup: pip could not install: shop==1.0" in refused.stderr
    wheel(tmp_path / "wheels", "RIGHT = True")
    assert (set_up().returncode, imported()) == (0, 0)
    assert (set_up().stderr, imported()) == ("", 0)
