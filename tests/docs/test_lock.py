"""requirements.lock: it is what pyproject.toml allows, with hashes, by which pip refuses anything else."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.deployment import ROOT

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
