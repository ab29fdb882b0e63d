"""The file of TASKSERVER_LOG, which the workers of a host share; tests/worker has the rest."""

from __future__ import annotations

import json
import logging
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

import pytest

from taskserver.cli.terminal import log_file
from taskserver.settings.load import load_settings


@pytest.mark.parametrize("step", ["doRollover", "rotate"], ids=["before it is closed", "before it is renamed"])
def test_a_worker_leaves_the_rotation_to_another_one_that_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Each would rotate the file away that the other one has just begun."""
    monkeypatch.setattr(log_file, "MAX_FILE_BYTES", 400)
    log = tmp_path / "log"
    log.write_text("x" * 399 + "\n")
    log.chmod(0o600)
    settings = load_settings(tmp_path, {"TASKSERVER_DSN": "sqlite:///q.db", "TASKSERVER_LOG": "log"})
    one, other = (log_file.file_handler(settings) for _ in range(2))
    record = logging.makeLogRecord({"msg": "said", "levelno": logging.INFO, "levelname": "INFO"})
    real = getattr(RotatingFileHandler, step)

    def rotate(handler: RotatingFileHandler, *names: str) -> None:
        monkeypatch.setattr(RotatingFileHandler, step, real)
        other.emit(record)
        real(handler, *names)

    monkeypatch.setattr(RotatingFileHandler, step, rotate)
    one.emit(record)
    other.emit(record)
    for handler in (one, other):
        handler.close()
    assert {path.name: len(path.read_text().splitlines()) for path in tmp_path.glob("log*")} == {"log": 2, "log.1": 2}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_has_pythons_level_and_local_time_whatever_a_module_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_format: str
) -> None:
    monkeypatch.setitem(logging._levelToName, logging.WARNING, "\x1b[33mWARN\x1b[0m")
    monkeypatch.setattr(logging.Formatter, "converter", lambda seconds: time.localtime(0))
    settings = {"TASKSERVER_DSN": "sqlite:///q.db", "TASKSERVER_LOG": "log", "TASKSERVER_LOG_FORMAT": log_format}
    handler = log_file.file_handler(load_settings(tmp_path, settings))
    for level in (logging.WARNING, 55, 25):
        record = logging.LogRecord("taskserver", level, "", 0, "said", None, None)
        record.task = object()
        handler.emit(record)
    handler.close()
    lines = (tmp_path / "log").read_text().splitlines()
    if log_format == "text":
        levels = [line.split()[3].lower() for line in lines]
        assert not any(line.startswith("1970") for line in lines)
    else:
        levels = [json.loads(line)["level"] for line in lines]
        assert json.loads(lines[0])["task"] == "<object>"
    assert levels == ["warning", "critical", "info"]
