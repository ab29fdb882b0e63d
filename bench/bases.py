"""Where everything is measured: private durable servers, or a folder of SQLite files."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.postgresql import PostgreSQL
from tests.support.servers import MariaDB, PrivateServer


class Base:
    """One kind of database, with a database for each purpose."""

    kind: str
    title: str
    truncate = "TRUNCATE TABLE {}"
    server: PrivateServer

    def __enter__(self) -> Base:
        return self

    def __exit__(self, *exception: object) -> None:
        self.server.remove()

    def create(self, name: str) -> None:
        self.server.create_database(name)
        self.execute(name, "CREATE TABLE effects (n INTEGER NOT NULL)")

    def drop(self, name: str) -> None:
        self.server.drop_database(name)

    def execute(self, name: str, *statements: str) -> Any:
        """The rows of the last one."""
        return self.server.execute(*statements, database=name)

    def dsn(self, name: str) -> str:
        return self.server.dsn(name)

    def effects(self, name: str) -> Any:
        """How many different numbers were written, and how many numbers in all."""
        return self.execute(name, "SELECT COUNT(DISTINCT n), COUNT(*) FROM effects")[0]

    def empty(self, name: str, tables: tuple[str, ...]) -> None:
        self.execute(name, *map(self.truncate.format, tables))

    def settle(self, name: str) -> None:
        """Leave nothing to be written out in the background, and bring statistics up to date."""

    def version(self) -> str:
        return str(self.execute("", "SELECT VERSION()")[0][0])

    def variables(self, name: str) -> dict[str, str]:
        """The place of a database, for processes."""
        server = self.server
        found = {"HOST": server.host, "PORT": str(server.port), "USER": server.user, "PASSWORD": server.password}
        found |= {"DATABASE": name, "URL": self.dsn(name), "EFFECTS": ""}
        return {f"BENCH_{key}": value for key, value in found.items()}


class OnMariaDB(Base):
    """A private MariaDB."""

    kind, title = "mysql", "MariaDB"

    def __init__(self, quick: bool) -> None:
        memory = () if quick else ("--innodb-buffer-pool-size=1G", "--innodb-log-file-size=256M")
        self.server = MariaDB(True, *memory)
        if self.server.execute("SELECT @@innodb_flush_log_at_trx_commit") != ((1,),):
            raise SystemExit("MariaDB is not durable")

    def execute(self, name: str, *statements: str) -> Any:
        return self.server.execute(*statements, database=name or None)

    def settle(self, name: str) -> None:
        flushing = "SET GLOBAL innodb_max_dirty_pages_pct = {}, GLOBAL innodb_io_capacity = {}"
        self.execute("", flushing.format(0, 50_000))
        unfinished = (
            "SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME IN "
            "('INNODB_BUFFER_POOL_PAGES_DIRTY', 'INNODB_HISTORY_LIST_LENGTH')"
        )
        end = time.monotonic() + 20
        while time.monotonic() < end and self.execute("", unfinished)[0][0] > 500:
            time.sleep(0.05)
        self.execute("", flushing.format(90, 200))


class OnPostgreSQL(Base):
    """A private PostgreSQL."""

    kind, title = "postgresql", "PostgreSQL"
    truncate = "TRUNCATE TABLE {} CASCADE"

    def __init__(self, quick: bool) -> None:
        self.server = PostgreSQL(True, *(() if quick else ("shared_buffers=1GB", "max_wal_size=4GB")))
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            if self.server.execute(f"SHOW {setting}") != [("on",)]:
                raise SystemExit(f"PostgreSQL is not durable: {setting} is not on")

    def execute(self, name: str, *statements: str) -> Any:
        return self.server.execute(*statements, database=name or None)

    def settle(self, name: str) -> None:
        self.execute(name, "VACUUM ANALYZE", "CHECKPOINT")

    def version(self) -> str:
        return str(self.execute("", "SHOW server_version")[0][0])


class OnSQLite(Base):
    """Files; `effects` has one of its own, so that it does not wait for the queue's locks."""

    kind, title = "sqlite", "SQLite"
    truncate = "DELETE FROM {}"

    def __init__(self, quick: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="taskserver-sqlite-", dir="/tmp"))

    def __exit__(self, *exception: object) -> None:
        shutil.rmtree(self.folder)

    def create(self, name: str) -> None:
        with closing(sqlite3.connect(self._path(f"{name}-effects"))) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE effects (n INTEGER NOT NULL)")

    def drop(self, name: str) -> None:
        for path in self.folder.glob(f"{name}*"):
            path.unlink()

    def execute(self, name: str, *statements: str) -> Any:
        with closing(sqlite3.connect(self._path(name), timeout=60, isolation_level=None)) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall()

    def dsn(self, name: str) -> str:
        return f"sqlite:///{self._path(name)}"

    def effects(self, name: str) -> Any:
        return super().effects(f"{name}-effects")

    def settle(self, name: str) -> None:
        self.execute(name, "PRAGMA wal_checkpoint(TRUNCATE)")
        os.sync()

    def version(self) -> str:
        return sqlite3.sqlite_version

    def variables(self, name: str) -> dict[str, str]:
        path = self._path(name)
        found = dict.fromkeys(("HOST", "PORT", "USER", "PASSWORD"), "")
        found |= {"DATABASE": str(path), "URL": self.dsn(name), "EFFECTS": str(self._path(f"{name}-effects"))}
        return {f"BENCH_{key}": value for key, value in found.items()}

    def _path(self, name: str) -> Path:
        return self.folder / f"{name or 'none'}.db"


BASES = {base.kind: base for base in (OnMariaDB, OnSQLite, OnPostgreSQL)}


def databases(versions: Mapping[str, str]) -> str:
    """Those of which a version is given, with it."""
    return ", ".join(f"{base.title} {versions[kind]}" for kind, base in BASES.items() if kind in versions)
