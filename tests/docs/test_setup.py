""".ci/setup on a machine that lacks everything: one line says what to do."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.deployment import ROOT
from tests.support.hosts import as_user, open_folder
from tests.support.servers import find_program

TOOLS = "bash cat comm cut dirname env grep id mkdir mktemp rm sed sort sudo tail".split()  # noqa: SIM905
APT_GET = "#!/bin/sh\ncase $* in *install*) echo E: Could not resolve the name of the server; exit 1; esac\n"


@pytest.fixture
def place() -> Iterator[Path]:
    """The script, and programs that are next to nothing."""
    with open_folder() as folder:
        shutil.copytree(ROOT / ".ci", folder / ".ci")
        (folder / ".servers" / "wordpress").mkdir(parents=True)
        (folder / ".servers" / "axe").mkdir()
        (folder / "bin").mkdir()
        for name in TOOLS:
            (folder / "bin" / name).symlink_to(find_program(name) or f"/none/{name}")
        yield folder


def set_up(place: Path, command: str, wrapper: list[str]) -> list[str]:
    """What it says."""
    run = [*wrapper, str(place / "bin" / "bash"), str(place / ".ci" / "setup"), command]
    ended = subprocess.run(run, env={"PATH": str(place / "bin"), "HOME": "/none"}, capture_output=True, text=True)
    assert ended.stdout == ""
    return ended.stderr.splitlines()


def test_one_line_says_what_to_do_without_python_root_apt_or_network(place: Path) -> None:
    assert set_up(place, "venv", as_user()) == [
        "setup: there is no apt-get here: install what Debian calls python3 python3-venv"
    ]
    for name, content in {"apt-get": APT_GET, "apt-cache": "#!/bin/sh\n"}.items():
        (place / "bin" / name).write_text(content)
        (place / "bin" / name).chmod(0o755)
    assert set_up(place, "venv", as_user()) == ["setup: run as root: apt-get install python3 python3-venv"]
    (place / "bin" / "id").unlink()
    (place / "bin" / "id").write_text("#!/bin/sh\necho 0\n")
    (place / "bin" / "id").chmod(0o755)
    installing, failed = set_up(place, "venv", as_user())
    assert installing == "setup: installing python3 python3-venv"
    assert failed.startswith("setup: apt-get failed: E: Could not resolve the name of the server, see /")
    *_, failed, goes_on = set_up(place, "packages", as_user())
    assert failed.startswith("setup: apt-get failed: E: Could not resolve the name of the server, see /")
    assert goes_on == "setup: going on without: tests that need them are skipped, or fail if CI is set"
