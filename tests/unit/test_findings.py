"""What the doctor finds in files, settings of the page, and answers of databases."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from taskserver.health import files
from taskserver.messages.finding import Finding, Level
from taskserver.settings.dsn import parse_dsn
from taskserver.settings.load import load_settings
from taskserver.stores.mysql import facts as mysql
from taskserver.stores.postgresql import facts as postgresql
from taskserver.stores.sqlite import facts as sqlite
from tests.support.pages import PASSWORD_HASH

OK, WARNING, CRITICAL, UNKNOWN = Level
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
    set_env(folder, f"{DSN}TASKSERVER_LOG=../../data/worker.log\nTASKSERVER_MODULES=tasks,shop.jobs.*,missing\n")
    for name, mode in ((".env", 0o600), ("var", 0o700), ("../../data", 0o700)):
        (folder / name).chmod(mode)
    return folder


def worse(folder: Path) -> list[Finding]:
    """The findings that are not well."""
    found = [*files.of_program(folder), *files.of_deployment(load_settings(folder, {}))]
    assert all(one.level is OK or (one.why and one.fix) for one in found)
    return [one for one in found if one.level is not OK]


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
        for name in ("worker.py", LISTED[-1], "taskserver")
    },
    "a site's pages beside it": (lambda folder: (folder / "index.php").write_text("<?php"), "web_folder", "web folder"),
    "an open folder of locks": (chmod("var", 0o755), "var", "0755"),
    "no folder of locks": (lambda folder: shutil.rmtree(folder / "var"), "var", "client.py init"),
    "a log in a web folder": (serve_log, "log", "htdocs"),
    "a database in a web folder": (serve_database, "database_file", "public_html"),
    "a database that others may read": (chmod("../../data", 0o755), "database_file", "chmod 600"),
    "a database that all may change": (chmod("../../data/queue.db", 0o602), "code", "queue.db (any account)"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_each_fault_of_a_file_is_a_warning_that_names_it(folder: Path, what: str) -> None:
    assert worse(folder) == []
    do, check, words = FAULTS[what]
    do(folder)
    (finding,) = worse(folder)
    assert (finding.name, finding.level) == (check, WARNING)
    assert words in f"{finding.words} {finding.fix}"
    if finding.fix.startswith("chmod"):
        command, _, by_ftp = finding.fix.partition(" (by FTP: file permissions ")
        assert not by_ftp or by_ftp.startswith(command.split()[1])
        subprocess.run(["/bin/sh", "-ec", command], check=True)
        assert worse(folder) == []


def test_a_parent_folder_that_all_may_change_is_a_warning(folder: Path) -> None:
    open_one = folder.parent.parent
    open_one.chmod(0o757)
    (finding,) = worse(folder)
    assert (finding.name, finding.level) == ("code", WARNING)
    assert f"{open_one} (any account)" in finding.words
    open_one.chmod(0o1777)  # nobody else can rename ours in it
    assert worse(folder) == []


def test_an_open_log_folder_and_a_network_file_system_are_critical(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "logs").mkdir()
    (folder / "logs").chmod(0o1777)
    set_env(folder, f"{DSN}TASKSERVER_LOG=logs/worker.log\n")
    monkeypatch.setattr(files, "network_file_system", lambda path: "nfs4")
    found = {one.name: one for one in worse(folder)}
    assert {name: one.level for name, one in found.items()} == {"log": CRITICAL, "file_system": CRITICAL}
    assert f"any account of this host may write {folder / 'logs'}" in found["log"].words
    assert "MySQL" in found["file_system"].fix


# ---- the page


@pytest.mark.parametrize(
    ("settings", "level", "words"),
    [
        ("", None, ""),
        ("TASKSERVER_PAGE_PASSWORD=secret", WARNING, "not a hash of a password"),
        ("TASKSERVER_PAGE_ALLOW=10.0.0.0/8", OK, "is for listed addresses; it only shows"),
        ("TASKSERVER_PAGE_ALLOW=10.0.0.0/8\nTASKSERVER_PAGE_ACTIONS=yes", WARNING, "set both, or neither"),
        (f"TASKSERVER_PAGE_PASSWORD='{PASSWORD_HASH}'\nTASKSERVER_PAGE_ACTIONS=yes", OK, "may retry"),
    ],
)
def test_the_settings_of_the_page_are_checked(tmp_path: Path, settings: str, level: Level | None, words: str) -> None:
    (tmp_path / ".env").write_text(settings)
    found = files.page(tmp_path)
    assert (found and found.level) is level
    assert words in (found.words if found else "")


# ---- the database: no server is asked


def judged(database: str, check: str, answer: object) -> Finding:
    """The judgement of an answer."""
    checks = {"mysql": mysql.CHECKS, "postgresql": postgresql.CHECKS, "sqlite": sqlite.CHECKS}[database]
    (judge,) = [one.judge for one in checks if one.name == check]
    finding = judge(answer)
    assert finding is not None
    return finding


@pytest.mark.parametrize(
    ("database", "check", "answer", "level", "words"),
    [
        ("mysql", "version", [("5.6.24", "x")], WARNING, "the oldest one tried is 5.7"),
        ("mysql", "version", [("5.5.5-10.3.39-MariaDB", "x")], OK, "without SKIP LOCKED"),
        ("mysql", "hosts", ((1, []), ", in a Galera cluster of 3"), OK, "the only host, in a Galera cluster of 3"),
        ("mysql", "hosts", ((3, ["h2 is away"]), ", in a Galera cluster of 2"), WARNING, "2 of 3 hosts serve, in a"),
        ("mysql", "character_set", [("latin1",)], CRITICAL, "latin1"),
        ("mysql", "packet", [(1024 * 1024,)], WARNING, "max_allowed_packet is 1024 KiB"),
        ("mysql", "connections", [(1,)], WARNING, "two for a transactional or a long task"),
        ("mysql", "transactions", [(601, 7, "ann", "Sleep")], WARNING, "since 10 min, in the session 7"),
        ("mysql", "transactions", [(299, 7, "ann", "Sleep")], OK, "none stands open"),
        ("postgresql", "version", [("12.10", "120010")], WARNING, "the oldest one tried is 13"),
        ("postgresql", "standby", [(True,)], CRITICAL, "is a standby"),
        ("postgresql", "transactions", [(False, None, None, None, None)], UNKNOWN, "pg_read_all_stats"),
        ("postgresql", "durability", [("fsync",), ("full_page_writes",)], WARNING, "are off"),
        ("sqlite", "file", None, UNKNOWN, "too large"),
        ("sqlite", "claim_index", ("claim_by_group",), CRITICAL, "claim_any_group"),
    ],
)
def test_each_answer_of_a_database_is_judged(
    database: str, check: str, answer: object, level: Level, words: str
) -> None:
    found = judged(database, check, answer)
    assert found.level is level
    assert words in found.words


@pytest.mark.parametrize(
    ("dsn", "more", "level", "fix"),
    [
        ("mysql://u@h/db", ("", True), WARNING, "ssl-mode=required"),
        ("mysql://u@h/db?ssl-mode=required", ("TLS_AES_256_GCM_SHA384", True), OK, ""),
        # A full login shows the password, and is refused then.
        ("mysql://u@h/db?ssl-mode=required", ("TLS_AES_256_GCM_SHA384", False), WARNING, "ssl-ca"),
        ("mysql://u@h/db?ssl-ca=/ca.pem", ("TLS_AES_256_GCM_SHA384", False), OK, ""),
        ("mysql://u@localhost/db", ("", True), OK, ""),
        ("postgresql://u@h/db", ("",), WARNING, "sslmode=require"),
    ],
)
def test_a_remote_connection_without_verified_tls_is_a_warning(
    dsn: str, more: tuple[object, ...], level: Level, fix: str
) -> None:
    found = judged(dsn.partition(":")[0], "connection", (parse_dsn(dsn), "u@%", *more))
    assert found.level is level
    assert fix in found.fix
