"""The file of TASKSERVER_LOG, which the workers of a host share; tests/process/test_logging.py has the rest."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path

import pytest

from taskserver.cli.terminal import log_file
from taskserver.errors import SettingError
from taskserver.host.files import why_no_log
from taskserver.settings.load import load_settings


def test_a_forked_process_and_its_parent_rotate_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was opened before the fork is one file to both, and so is a lock on it."""
    monkeypatch.setattr(log_file, "MAX_FILE_BYTES", 20_000)
    monkeypatch.setattr(log_file, "KEPT_FILES", 50)
    settings = load_settings(tmp_path, {"TASKSERVER_DSN": "sqlite:///q.db", "TASKSERVER_LOG": "log"})
    handler = log_file.file_handler(settings)
    record = logging.makeLogRecord({"msg": "x" * 100, "levelno": logging.INFO, "levelname": "INFO"})
    handler.emit(record)
    children = []
    for _ in range(4):
        children.append(os.fork())
        if not children[-1]:
            for _ in range(1000):
                handler.emit(record)
            os._exit(0)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    files = sorted(tmp_path.glob("log*"), key=lambda file: file.stat().st_size)
    assert sum(len(file.read_text().splitlines()) for file in files) == 4001
    assert all(file.stat().st_size > 15_000 for file in files[1:])


@pytest.mark.parametrize("name", ["q.db", "pipe", "folder"])
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, name: str) -> None:
    """It would be renamed at 10 MB, and deleted three times later; a pipe would hold the worker up for ever."""
    sqlite3.connect(tmp_path / "q.db").execute("CREATE TABLE t (x)").connection.close()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    settings = load_settings(tmp_path, {"TASKSERVER_DSN": "sqlite:///q.db", "TASKSERVER_LOG": name})
    with pytest.raises(SettingError, match=f"^TASKSERVER_LOG: .*/{name} .*: name a file of its own"):
        log_file.file_handler(settings)


@pytest.mark.parametrize("name", ["/dev/null", "/dev/stderr", "log", "logs.txt", "old.log"])
def test_other_files_may_be_logs(tmp_path: Path, name: str) -> None:
    (tmp_path / "old.log").write_text("what another program wrote\n")
    assert why_no_log(tmp_path / name, tmp_path) is None


def test_a_var_that_is_missing_is_refused_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load_settings(tmp_path, {"TASKSERVER_DSN": "sqlite:///q.db", "TASKSERVER_LOG": "var/taskserver.log"})
    with pytest.raises(SettingError, match=rf"there is no folder {tmp_path}/var: client.py init makes it$"):
        log_file.file_handler(settings)
    (tmp_path / "var").mkdir(mode=0o700)
    log_file.file_handler(settings)
