"""client.py init: writes settings if there are none, and creates the tables; safe to repeat."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ...errors import DatabaseError, SettingError
from ...host.files import close_to_others, make_private_folder, network_file_system
from ...messages.programs import CLIENT
from ...server import TaskServer
from ...settings.dsn import Dsn, parse_dsn
from ...settings.load import load_settings, misnamed, require_dotenv
from ...stores.upgrading import repair
from ..terminal.output import note
from ..terminal.program import Exit

FIRST_DSN = "sqlite:///var/taskserver.db"
FIRST_SETTINGS = f"""\
# Every setting is described in .env.example.
TASKSERVER_DSN={FIRST_DSN}
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("init", description="write .env if nothing is set, and create or upgrade the tables")
    parser.set_defaults(run_in_folder=run)


def run(folder: Path, options: argparse.Namespace) -> int:
    env_file = options.env_file or folder / ".env"
    if not env_file.exists() and not os.environ.get("TASKSERVER_DSN"):
        require_dotenv(folder)
        _check_first_settings(env_file, folder)
        _write_first_settings(env_file)
        print(f"wrote {env_file}")
    settings = load_settings(folder, env_file=options.env_file)
    _refuse_network_file(env_file, folder, settings.dsn)
    _make_var(folder / "var")
    with TaskServer.from_settings(settings) as server:
        faults = repair(server.store.database, server.create_tables)
    for fault in filter(lambda one: one.is_of_other_program, faults):
        raise DatabaseError(f"{fault.table} {fault.what} in {settings.dsn.place}: set another TASKSERVER_TABLE")
    for fault in faults:
        fix = fault.fix or f"{CLIENT} init makes it after that" * fault.is_missing_index
        note(": ".join(filter(None, (f"{fault.table} {fault.what}", fix))))
    if faults:
        raise DatabaseError(
            f"the tables of {settings.table} in {settings.dsn.place} are not ready: keep a copy of the database, run "
            f"the statements above (in phpMyAdmin: SQL), then {CLIENT} init again"
        )
    print(f"tables of {settings.table} are ready in {settings.dsn.place}")
    return Exit.OK


def _check_first_settings(env_file: Path, folder: Path) -> None:
    if env_file.is_symlink():
        raise SettingError(f"{env_file} is a link to a missing file: remove the link, or create the file")
    other = misnamed(env_file)
    if other:
        raise SettingError(f"{env_file} is not there{other}")
    _refuse_network_file(env_file, folder, parse_dsn(FIRST_DSN))


def _refuse_network_file(env_file: Path, folder: Path, dsn: Dsn) -> None:
    """SQLite needs locks and shared memory, which network file systems lack. Raises SettingError."""
    path = dsn.database_file(folder)
    network = path and network_file_system(path)
    if network:
        raise SettingError(
            f"{path} lies on a network file system ({network}), where SQLite files get damaged: name a MySQL or a "
            f"PostgreSQL database in TASKSERVER_DSN ({env_file}), or an SQLite file in a folder on a disk of this host"
        )


def _make_var(path: Path) -> None:
    """Make the private folder for database, locks and log. Raises SettingError."""
    try:
        make_private_folder(path)
        close_to_others(path)
    except OSError as error:
        raise SettingError(
            f"{path} cannot be made, or made private: {error.strerror}: give this user the right to write "
            f"{path.parent}, and {path.name} to this user where it is another's"
        ) from None


def _write_first_settings(path: Path) -> None:
    try:
        # O_EXCL: never overwrite a new file. Private from the start, as it gets passwords.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(FIRST_SETTINGS)
    except OSError as error:
        raise SettingError(
            f"{path} cannot be written: {error.strerror}: give this user the right to write {path.parent}"
        ) from None
