"""A private pgbouncer before a PostgreSQL: a pooler that gives each transaction whichever session of the server's."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.conftest import without
from tests.support.postgresql import is_open
from tests.support.processes import wait_until
from tests.support.servers import find_program, free_port

CONFIGURATION = """
[databases]
* = host={at.hostname} port={at.port} user={at.username} password={at.password}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 5
max_client_conn = 100
ignore_startup_parameters = extra_float_digits,options
"""


@contextmanager
def pooled(dsn: str) -> Iterator[str]:
    """The DSN of the same database by a pooler of transactions, while the `with` lasts; skips a test without one."""
    program = find_program("pgbouncer") or without("pgbouncer is not installed")
    at, port = urlsplit(dsn), free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "users").write_text(f'"{at.username}" ""\n')
        (folder / "ini").write_text(CONFIGURATION.format(at=at, port=port, folder=folder))
        folder.chmod(0o755)
        command = [program, "-q", *(["-u", "nobody"] if os.getuid() == 0 else []), str(folder / "ini")]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        own = f"postgresql://{at.username}@127.0.0.1:{port}{at.path}"
        try:
            wait_until(lambda: is_open(own))
            yield own
        finally:
            process.kill()
            process.wait()
