"""client.py init: settings where there are none, and the tables; safe to repeat."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..errors import SettingError
from ..private_folder import close_to_others, make_private_folder
from ..server import TaskServer
from ..settings import load_settings, require_dotenv
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
        require_dotenv(folder)
        _write_first_settings(env_file)
        print(f"wrote {env_file}")
    settings = load_settings(folder)
    _make_var(folder / "var")
    with TaskServer.from_settings(settings) as server:
        server.create_tables()
    print(f"tables of {settings.table} are ready in {settings.dsn.place}")
    return Exit.OK


def _make_var(path: Path) -> None:
    """The folder for database, locks and log."""
    try:
        make_private_folder(path)
        close_to_others(path)
    except OSError as error:
        raise SettingError(f"{path} cannot be made: {error.strerror}") from None


def _write_first_settings(path: Path) -> None:
    try:
        # O_EXCL: never over a file that came up meanwhile. The rights stand from the start: passwords go in here.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(FIRST_SETTINGS)
    except OSError as error:
        raise SettingError(f"{path} cannot be written: {error.strerror}") from None
