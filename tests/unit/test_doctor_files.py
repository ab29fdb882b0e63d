"""What the doctor says of files: a folder as it should be, and each thing that can be wrong with one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskserver.doctor import files
from taskserver.doctor.findings import Finding, Level
from taskserver.settings.load import load_settings

DSN = "TASKSERVER_DSN=sqlite:///../../data/queue.db\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A deployment in which all is as it should be."""
    folder = tmp_path / "site" / "deployment"
    for name in ("taskserver", "var/slots", "../../data"):
        (folder / name).mkdir(parents=True)
    for name in ("worker.py", "tasks.py", "var/slots/1", "../../data/queue.db"):
        (folder / name).touch(0o644)
    set_env(folder, f"{DSN}TASKSERVER_LOG=../../data/worker.log\n")
    for name, mode in ((".env", 0o600), ("var", 0o700), ("../../data", 0o700)):
        (folder / name).chmod(mode)
    return folder


def worse(folder: Path) -> list[Finding]:
    """The findings that are not well."""
    found = [*files.of_program(folder), *files.of_deployment(load_settings(folder, {}))]
    assert all(one.level is Level.OK or (one.why and one.mend) for one in found)
    return [one for one in found if one.level is not Level.OK]


def set_env(folder: Path, text: str) -> None:
    (folder / ".env").write_text(text)


def chmod(name: str, mode: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).chmod(mode)


def serve_database(folder: Path) -> None:
    (folder.parent / "public_html").mkdir(mode=0o700)
    (folder.parent / "public_html" / "queue.db").touch(0o600)
    set_env(folder, "TASKSERVER_DSN=sqlite:///../public_html/queue.db\n")


def serve_log(folder: Path) -> None:
    (folder.parent / "htdocs").mkdir()
    set_env(folder, f"{DSN}TASKSERVER_LOG=../htdocs/worker.log\n")


FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    **{f"settings of {mode:04o}": (chmod(".env", mode), "env_file", f"{mode:04o}") for mode in (0o604, 0o640, 0o620)},
    **{
        f"{name} that all may change": (chmod(name, 0o777), "code", "chmod -R o-w")
        for name in ("tasks.py", "worker.py", "taskserver", ".")
    },
    "a site's pages beside it": (lambda folder: (folder / "index.php").write_text("<?php"), "web_folder", "web folder"),
    "an open folder of locks": (chmod("var", 0o755), "var", "0755"),
    "no folder of locks": (lambda folder: shutil.rmtree(folder / "var"), "var", "client.py init"),
    "a log in a web folder": (serve_log, "log", "htdocs"),
    "a database in a web folder": (serve_database, "database_file", "public_html"),
    "a database that others may read": (chmod("../../data", 0o755), "database_file", "chmod 600"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_wrong_with_a_file_is_a_warning_that_names_it(folder: Path, what: str) -> None:
    assert worse(folder) == []
    do, check, words = FAULTS[what]
    do(folder)
    (finding,) = worse(folder)
    assert (finding.check, finding.level) == (check, Level.WARNING)
    assert words in f"{finding.found} {finding.mend}"


@pytest.mark.parametrize("name", ["public_html", "www", "htdocs"])
def test_a_deployment_in_a_web_folder_is_a_warning(folder: Path, name: str) -> None:
    inside = folder.parent.rename(folder.parent.parent / name) / folder.name
    (finding,) = worse(inside)
    assert finding.check == "web_folder"
    assert str(inside.parent) in finding.found


def test_the_name_of_a_home_folder_and_of_those_above_it_is_the_hosts_choice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "www" / "web"
    inside, below = home / "private" / "taskserver", home / "httpdocs" / "taskserver"
    for folder in (inside, below):
        folder.mkdir(parents=True)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_dir=str(home)))
    assert files._web_folder(inside).level is Level.OK
    assert files._web_folder(below).level is Level.WARNING
    (home / "index.php").touch()
    assert files._web_folder(inside).level is Level.WARNING


def test_what_tasks_leave_in_the_folder_of_locks_is_their_own_affair(folder: Path) -> None:
    (folder / "var" / "latest.pdf").symlink_to("nowhere.pdf")
    (folder / "var" / "invoice.pdf").touch(0o400)
    assert worse(folder) == []


def test_a_database_on_a_network_file_system_is_broken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "network_file_system", lambda path: "nfs4")
    (finding,) = worse(folder)
    assert (finding.check, finding.level) == ("file_system", Level.BROKEN)
    assert "nfs4" in finding.found
    assert "MySQL" in finding.mend


def test_a_disk_that_is_nearly_full_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MIN_FREE_BYTES", 2**62)
    assert [(one.check, one.level) for one in worse(folder)] == [("disk", Level.WARNING)]
