"""What the doctor says of files: a folder as it should be, and each thing that can be wrong with one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from taskserver.health import files
from taskserver.messages.finding import Finding, Level
from taskserver.settings.load import load_settings
from tests.support.pages import PASSWORD_HASH

DSN = "TASKSERVER_DSN=sqlite:///../../data/queue.db\n"
CODE = ("worker.py", "taskserver/call.py", "taskserver/stores/queue.py", "tasks.py")
LISTED = ("shop/__init__.py", "shop/jobs/__init__.py", "shop/jobs/letters.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A deployment in which all is as it should be."""
    folder = tmp_path / "site" / "deployment"
    for name in ("taskserver/stores", "var/slots", "../../data", "shop/jobs"):
        (folder / name).mkdir(parents=True)
    for name in (*CODE, *LISTED, "taskserver/__init__.py", "var/slots/1", "../../data/queue.db"):
        (folder / name).touch(0o644)
    for name in (".", "..", "shop"):
        (folder / name).chmod(0o755)
    (folder / "gone.py").symlink_to("nowhere.py")
    set_env(folder, f"{DSN}TASKSERVER_LOG=../../data/worker.log\nTASKSERVER_MODULES=tasks,shop.jobs.*,missing\n")
    for name, mode in ((".env", 0o600), ("var", 0o700), ("../../data", 0o700)):
        (folder / name).chmod(mode)
    return folder


def worse(folder: Path) -> list[Finding]:
    """The findings that are not well."""
    found = [*files.of_program(folder), *of_deployment(folder)]
    assert all(one.level is Level.OK or (one.why and one.fix) for one in found)
    return [one for one in found if one.level is not Level.OK]


def of_deployment(folder: Path) -> list[Finding]:
    return list(files.of_deployment(load_settings(folder, {})))


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
    "settings that others may read": (chmod(".env", 0o604), "env_file", "0604"),
    **{
        f"{name} that all may change": (chmod(name, 0o777), "code", f"others of this host may change {name} (any acc")
        for name in ("worker.py", "taskserver/stores/queue.py", "tasks.py", LISTED[-1], "taskserver", "shop/jobs")
    },
    "a site's pages beside it": (lambda folder: (folder / "index.php").write_text("<?php"), "web_folder", "web folder"),
    "an open folder of locks": (chmod("var", 0o755), "var", "0755"),
    "no folder of locks": (lambda folder: shutil.rmtree(folder / "var"), "var", "client.py init"),
    "a log in a web folder": (serve_log, "log", "htdocs"),
    "a database in a web folder": (serve_database, "database_file", "public_html"),
    "a database that others may read": (chmod("../../data", 0o755), "database_file", "chmod 600"),
    "settings that all may change": (chmod(".env", 0o602), "code", ".env (any account)"),
    "a database that all may change": (chmod("../../data/queue.db", 0o602), "code", "queue.db (any account)"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_is_wrong_with_a_file_is_a_warning_that_names_it(folder: Path, what: str) -> None:
    assert worse(folder) == []
    do, check, words = FAULTS[what]
    do(folder)
    (finding,) = worse(folder)
    assert (finding.name, finding.level) == (check, Level.WARNING)
    assert words in f"{finding.words} {finding.fix}"
    if finding.fix.startswith("chmod"):
        command, _, by_ftp = finding.fix.partition(" (by FTP: file permissions ")
        assert not by_ftp or by_ftp.startswith(command.split()[1])
        subprocess.run(["/bin/sh", "-ec", command], check=True)
        assert worse(folder) == []


@pytest.mark.parametrize(("name", "mode"), [(".", 0o757), ("../..", 0o757), (".", 0o1777)])
def test_a_folder_on_the_way_that_all_may_change_is_a_warning(folder: Path, name: str, mode: int) -> None:
    open_one = (folder / name).resolve()
    open_one.chmod(mode)
    (finding,) = worse(folder)
    assert (finding.name, finding.level) == ("code", Level.WARNING)
    assert f"{open_one} (any account)" in finding.words
    assert finding.fix == f"chmod go-w {open_one}"


def test_in_a_sticky_folder_above_nobody_else_can_rename_ours(folder: Path) -> None:
    folder.parent.parent.chmod(0o1777)
    assert worse(folder) == []


def test_a_log_that_a_worker_refuses_for_its_folder_is_broken(folder: Path) -> None:
    (folder / "logs").mkdir()
    (folder / "logs").chmod(0o1777)
    set_env(folder, f"{DSN}TASKSERVER_LOG=logs/worker.log\n")
    (finding,) = worse(folder)
    assert (finding.name, finding.level) == ("log", Level.CRITICAL)
    assert f"any account of this host may write {folder / 'logs'}" in finding.words


def test_a_database_on_a_network_file_system_is_broken(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "network_file_system", lambda path: "nfs4")
    (finding,) = worse(folder)
    assert (finding.name, finding.level) == ("file_system", Level.CRITICAL)
    assert "nfs4" in finding.words
    assert "MySQL" in finding.fix


# ---- the page


@pytest.mark.parametrize(
    ("settings", "level", "words"),
    [
        ("", None, ""),
        ("TASKSERVER_PAGE_PASSWORD=secret", Level.WARNING, "no hash of a password"),
        ("TASKSERVER_PAGE_ALLOW=10.0.0.0/8", Level.OK, "is for listed addresses; it only shows"),
        ("TASKSERVER_PAGE_ALLOW=10.0.0.0/8\nTASKSERVER_PAGE_ACTIONS=yes", Level.WARNING, "set both, or neither"),
        ("TASKSERVER_PAGE_ALLOW=10.0.0.0/8\nTASKSERVER_PAGE_PROXIES=127.0.0.1", Level.WARNING, "no password"),
        (f"TASKSERVER_PAGE_PASSWORD='{PASSWORD_HASH}'", Level.OK, "asks for a password; it only shows"),
        (f"TASKSERVER_PAGE_PASSWORD='{PASSWORD_HASH}'\nTASKSERVER_PAGE_ACTIONS=yes", Level.OK, "may retry"),
    ],
)
def test_the_settings_of_the_page_are_looked_at(tmp_path: Path, settings: str, level: Level | None, words: str) -> None:
    (tmp_path / ".env").write_text(settings)
    found = files.page(tmp_path)
    assert (found and found.level) is level
    assert words in (found.words if found else "")
