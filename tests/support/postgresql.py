"""Real PostgreSQL servers for tests and benchmarks; servers.py has those of MySQL.

PostgreSQL: a private one in a temporary folder, that may be killed and started again; of the version whose programs lie
in the folder TASKSERVER_TEST_POSTGRESQL_PROGRAMS, if that is set.
ExternalPostgreSQL: one that somebody else runs, named by
TASKSERVER_TEST_POSTGRESQL=postgresql://postgres@127.0.0.1:5432/postgres, whose user may create databases.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.abc import Buffer
from psycopg.types.datetime import TimestamptzLoader

from tests.support.processes import is_alive, wait_until
from tests.support.servers import PrivateServer, Server, find_program, free_port, without

PROGRAMS = ("initdb", "postgres")
DEBIAN_FOLDER = Path("/usr/lib/postgresql")
"""Debian keeps each version's programs below it, out of every PATH."""

PROGRAMS_VARIABLE = "TASKSERVER_TEST_POSTGRESQL_PROGRAMS"
CHOSEN_PROGRAMS = os.environ.get(PROGRAMS_VARIABLE, "")
"""Read before a test's environment is cleared."""

# Not durable, for speed: nothing is flushed to the disk.
FAST = ["fsync=off", "full_page_writes=off", "synchronous_commit=off"]
# New statistics would change plans in the middle of a test.
FAST += ["autovacuum=off"]

HAS_TABLES_ALONE = """
    SELECT datacl IS NULL AND datconnlimit = -1
        AND NOT EXISTS (SELECT FROM pg_db_role_setting WHERE setdatabase = pg_database.oid)
        AND NOT EXISTS (SELECT FROM pg_namespace WHERE nspname <> 'public' AND oid >= 16384 AND nspname !~ '^pg_')
        AND NOT EXISTS (SELECT FROM pg_extension WHERE extname <> 'plpgsql')
        AND NOT EXISTS (SELECT FROM pg_default_acl) AND NOT EXISTS (SELECT FROM pg_event_trigger)
        AND NOT EXISTS (SELECT FROM pg_prepared_xacts WHERE database = datname)
        AND NOT EXISTS (SELECT FROM pg_replication_slots WHERE database = datname)
    FROM pg_database WHERE datname = current_database()
"""
"""Whether a database has nothing of a test's own outside of the schema public."""


def programs_folder() -> Path | None:
    """Where PostgreSQL's own programs lie: those asked for, else Debian's newest here, else what is in the PATH."""
    if CHOSEN_PROGRAMS:
        return Path(CHOSEN_PROGRAMS)
    installed = sorted(DEBIAN_FOLDER.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    found = installed[-1] if installed else find_program("postgres")
    return Path(found).resolve().parent if found else None


class PostgreSQLServer(Server):
    """A PostgreSQL."""

    scheme = "postgresql"
    user = "postgres"
    quoted = '"{}"'
    maintenance_database = "postgres"
    """Where one is while databases are created and dropped."""

    def connect(self, **kwargs: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection of its own, independent of taskserver's code; autocommit unless asked otherwise."""
        place: dict[str, Any] = {"host": self.host, "port": self.port, "user": self.user, "password": self.password}
        return psycopg.connect(**(place | {"dbname": self.maintenance_database, "autocommit": True} | kwargs))

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        with self.connect(dbname=database or self.maintenance_database) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def count_lock_waits(self) -> int:
        """How many statements wait for a lock."""
        return len(self.execute("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))

    def drop_database(self, name: str) -> None:
        with self.connect() as connection:
            self._end_sessions(connection, name)  # DROP would, too, but then looks for their end ten times a second
            connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())

    @contextmanager
    def database(self) -> Iterator[str]:
        """The name of a database that is as if it were fresh.

        Making and dropping one takes 0.1 s of a processor, so it is emptied at the end, for the next test; unless there
        is more in it than tables and functions.
        """
        name = self._emptied.pop() if self._emptied else self.create_database()
        try:
            yield name
        finally:
            if self._empty(name):
                self._emptied.append(name)
            else:
                self.drop_database(name)

    @cached_property
    def _emptied(self) -> list[str]:
        return []

    def _empty(self, name: str) -> bool:
        """Make a database as if it were fresh. Whether that was done."""
        with suppress(psycopg.Error), self.connect(dbname=name) as connection:
            self._end_sessions(connection, name)
            (is_plain,) = connection.execute(HAS_TABLES_ALONE.encode()).fetchone() or (False,)
            if is_plain:
                is_new = connection.info.server_version >= 150_000
                owner, rights = (" AUTHORIZATION pg_database_owner", "USAGE") if is_new else ("", "ALL")
                make = f"CREATE SCHEMA public{owner}; GRANT {rights} ON SCHEMA public TO PUBLIC"
                connection.execute(f"DROP SCHEMA public CASCADE; {make}".encode())
                return True
        return False

    def _end_sessions(self, connection: psycopg.Connection[Any], name: str) -> None:
        """End the other sessions in a database, and wait until they are gone."""
        others = "FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        connection.execute(f"SELECT pg_terminate_backend(pid) {others}".encode(), [name])
        deadline = time.monotonic() + 1.0
        while connection.execute(f"SELECT 1 {others}".encode(), [name]).rowcount and time.monotonic() < deadline:
            time.sleep(0.002)


class ExternalPostgreSQL(PostgreSQLServer):
    """A server that runs already."""

    def __init__(self, dsn: str) -> None:
        self.be(dsn, 5432)
        self.maintenance_database = urlsplit(dsn).path.strip("/") or self.maintenance_database


class PostgreSQL(PrivateServer, PostgreSQLServer):
    """A private PostgreSQL.

    durable: leave flushing as PostgreSQL's default has it, for crash tests and benchmarks.
    settings: more of them, as in "max_connections=20", after ours, so that they win.
    programs: the folder of the version that is meant; else the newest.
    """

    stop_signal = signal.SIGINT  # at SIGTERM it would wait until the last connection is closed

    def __init__(self, durable: bool = False, *settings: str, programs: Path | None = None) -> None:
        folder = programs or programs_folder()
        if folder is None:
            raise FileNotFoundError("PostgreSQL is not installed: postgres not found")
        self._programs = folder
        self._settings = ([] if durable else FAST) + list(settings)
        super().__init__()

    @property
    def tree(self) -> list[int]:
        return [self.pid, *self._children()]

    def kill(self) -> None:
        """SIGKILL for each of its processes: connections break, nothing is flushed, a start() recovers.

        Those of the connections would see the end of their parent once they are idle, and a start() fails before that.
        """
        children = self._children() if self._process else []
        super().kill()
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, children)))

    def remove(self) -> None:
        """Ends it, without ceremony, and removes its folder. First by SIGQUIT, at which it frees its shared memory."""
        with suppress(Exception):
            self._end(signal.SIGQUIT)
        super().remove()

    def _signal_all(self, number: signal.Signals) -> None:
        super()._signal_all(number)  # first, so that it starts no more
        for child in self._children():
            with suppress(ProcessLookupError):
                os.kill(child, number)

    def _children(self) -> list[int]:
        tasks = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(child) for child in tasks.read_text().split()] if tasks.exists() else []

    def _installing(self) -> list[list[str]]:
        password = self.folder / "password"
        password.touch(0o600)
        password.write_text(self.password)
        shutil.chown(password, self.folder.stat().st_uid, self.folder.stat().st_gid)
        options = ["-U", self.user, "-A", "scram-sha-256", f"--pwfile={password}"]
        options += ["-E", "UTF8", "--locale=C", "--no-sync"]
        return [[str(self._programs / "initdb"), "-D", f"{self.folder}/data", *options]]

    def _command(self) -> list[str]:
        settings = ["listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}", "shared_buffers=32MB"]
        # In the folder, not in /dev/shm, where those of a killed server would stay.
        settings += ["dynamic_shared_memory_type=mmap", *self._settings]
        options = [word for setting in settings for word in ("-c", setting)]
        return [str(self._programs / "postgres"), "-D", f"{self.folder}/data", "-p", str(self.port), *options]

    def _answers(self) -> bool:
        place = {"port": self.port, "user": self.user, "password": self.password}
        return is_open("", host=str(self.folder), dbname=self.maintenance_database, **place)


def is_open(dsn: str, **options: Any) -> bool:
    """Whether one can log in."""
    try:
        psycopg.connect(dsn, connect_timeout=2, **options).close()
    except psycopg.OperationalError:
        return False
    return True


def connection_in_utc(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    """A connection of the tests' own, whose instants come as those of PyMySQL: without a time zone, in UTC."""
    connection = psycopg.connect(dsn, autocommit=True, options="-c timezone=UTC -c lock_timeout=20s")
    connection.adapters.register_loader("timestamptz", _NaiveLoader)
    return connection


class _NaiveLoader(TimestamptzLoader):
    def load(self, data: Buffer) -> datetime:
        return super().load(data).replace(tzinfo=None)


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
