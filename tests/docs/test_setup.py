""".ci/setup packages: one call of apt for all that is missing, or one line for the person who is root.

What it installs it names first, with its size. Where nothing is missing it says nothing.
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.deployment import ROOT
from tests.support.hosts import as_user, open_folder
from tests.support.servers import find_program

TOOLS = ("bash", "cat", "cut", "dirname", "env", "head", "id", "mktemp", "rm", "sed", "sort", "tail", "tr")
"""All that there is but apt-get, which notes what it is asked for, and knows these packages alone."""
APT_GET = """#!/bin/sh
case "$*" in
*--assume-no*) echo "Need to get 28.9 MB/77.0 MB of archives."
    echo "After this operation, 319 MB of additional disk space will be used." ;;
*) echo "$@" >>{log} ;;
esac
for name in "$@"; do [ "$name" != {unknown} ] || exit 1; done
"""
UNPACKED = (".servers/axe-core/axe.min.js", ".servers/wordpress/usr/share/wordpress/wp-settings.php")


@pytest.fixture
def place() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture
def set_up(place: Path) -> Callable[..., list[str]]:
    """Runs it where next to nothing is installed; the lines that it prints."""
    shutil.copytree(ROOT / ".ci", place / ".ci")
    for name in UNPACKED:
        (place / name).parent.mkdir(parents=True)
        (place / name).write_text("")
    programs = place / "bin"
    programs.mkdir()
    for name in TOOLS:
        program = find_program(name)
        assert program, name
        (programs / name).symlink_to(program)

    def run(unknown: str = "-", wrapper: Sequence[str] = (), stdin: int | None = None) -> list[str]:
        (programs / "apt-get").write_text(APT_GET.format(log=place / "asked", unknown=unknown))
        (programs / "apt-get").chmod(0o755)
        command = [*wrapper, str(programs / "bash"), str(place / ".ci" / "setup"), "packages"]
        ended = subprocess.run(command, env={"PATH": str(programs)}, stdin=stdin, capture_output=True, text=True)
        assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
        return ended.stderr.splitlines()

    return run


def installs(place: Path) -> list[list[str]]:
    """The packages of each call that was to install some, but for MariaDB's."""
    asked = [line.partition("--no-remove ")[2].split() for line in (place / "asked").read_text().splitlines()]
    return [names for call in asked if (names := [name for name in call if "mariadb" not in name])]


@pytest.mark.parametrize("sudo", ["", "refuses", "refuses at a terminal"])
def test_who_is_not_root_reads_one_line_with_all_that_is_missing(
    set_up: Callable[..., list[str]], place: Path, sudo: str
) -> None:
    if sudo:
        (place / "bin" / "sudo").write_text("#!/bin/sh\necho you may not run sudo >&2\nexit 1\n")
        (place / "bin" / "sudo").chmod(0o755)
    terminal, end = pty.openpty()
    try:
        said = set_up(wrapper=as_user(), stdin=end if sudo.endswith("terminal") else None)
    finally:
        os.close(terminal)
        os.close(end)
    assert [line.partition(": ")[2].partition(" mariadb")[0] for line in said[:-1]] == ["run as root: apt-get install"]
    assert {"php-cli", "chromium", "chromium-driver", "unzip"} <= set(said[0].split())
    assert said[-1].startswith("setup: going on without")


@pytest.mark.skipif("os.getuid() != 0", reason="root alone may install")
def test_apt_is_called_once_or_for_each_package_where_it_does_not_know_one(
    set_up: Callable[..., list[str]], place: Path
) -> None:
    said = set_up()
    assert said[0].startswith("setup: installing (28.9 MB to download, 319 MB on disk; some minutes) mariadb-server-")
    (together,) = installs(place)
    assert {"php-cli", "chromium", "unzip"} <= set(together)
    (place / "asked").unlink()
    set_up(unknown="unzip")
    first, *each = installs(place)
    assert each == [[name] for name in first]
