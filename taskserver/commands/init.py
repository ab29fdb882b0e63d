"""client.py init: settings where there are none, and the tables; safe to repeat."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..errors import SettingError
from ..server import TaskServer
from ..settings import load_settings
from .program import Exit

FIRST_SETTINGS = """\
# Every setting is described in .env.example.
TASKSERVER_DSN=sqlite:///var/taskserver.db
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "init", help="write .env where nothing is set, create or upgrade the tables; safe to repeat"
    )
    parser.set_defaults(run=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    del options
    env_file = folder / ".env"
    if not env_file.exists() and not os.environ.get("TASKSERVER_DSN"):
        _write_first_settings(env_file)
        print(f"wrote {env_file}")
    with TaskServer.from_settings(load_settings(folder)) as server:
        server.create_tables()
    print(f"tables of {server.settings.table} are ready in {server.settings.dsn.place}")
    return Exit.OK


def _write_first_settings(path: Path) -> None:
    try:
        # O_EXCL: never over a file that came up meanwhile. The rights stand from the start: passwords go in here.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(FIRST_SETTINGS)
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}") from None
