"""A private pgbouncer before a PostgreSQL: a pooler that gives each transaction whichever session of the server's."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.conftest import without
from tests.support.servers import STOP_SECONDS, find_program, free_port

SERVER_CONNECTIONS = 5
CONFIGURATION = """
[databases]
* = host={host} port={port} user={user} password={password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 100
ignore_startup_parameters = extra_float_digits,options
"""


@contextmanager
def pooled(dsn: str) -> Iterator[str]:
    """The DSN of the same database by a pooler of transactions, while the `with` lasts; skips a test without one."""
    program = find_program("pgbouncer") or without("pgbouncer is not installed")
    parts = urlsplit(dsn)
    with tempfile.TemporaryDirectory() as name:
        port, folder = free_port(), Path(name)
        folder.joinpath("users").write_text(f'"{parts.username}" ""\n')
        folder.joinpath("ini").write_text(
            CONFIGURATION.format(
                host=parts.hostname,
                port=parts.port,
                user=parts.username,
                password=parts.password or "",
                own_port=port,
                folder=folder,
                connections=SERVER_CONNECTIONS,
            )
        )
        folder.chmod(0o755)
        command = [program, "-q", *(["-u", "nobody"] if os.getuid() == 0 else []), str(folder / "ini")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _await(own := f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}")
            yield own
        finally:
            process.kill()
            process.wait()


def _await(dsn: str) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
