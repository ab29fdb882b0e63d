"""Where the benchmarks run: a private durable MariaDB, a deployment as a user would lay it out, and its processes."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pymysql

REPOSITORY = Path(__file__).resolve().parent.parent
DATABASE = "bench"
TASK = "tasks.nothing"
TASKS_MODULE = '''"""The task that does nothing: what remains is the cost of the server around it."""


def nothing(n: int = 0) -> None:
    """Do nothing."""
'''

_LAUNCH = Path(__file__).with_name("launch.py")


class Cost(NamedTuple):
    """What one process took, from its start to its end."""

    wall_seconds: float
    cpu_seconds: float
    peak_kb: int


class Place(NamedTuple):
    """A folder for deployments and a server to measure against; `pairs` and `quick` are how much to measure."""

    folder: Path
    port: int
    pairs: int
    quick: bool

    @property
    def dsn(self) -> str:
        """The MariaDB database of the benchmarks, as a setting."""
        return f"mysql://root:{os.environ['MYSQL_PWD']}@127.0.0.1:{self.port}/{DATABASE}"

    def size(self, full: int, quick: int) -> int:
        """How many rows: the full number, or the small one of a smoke test."""
        return quick if self.quick else full

    def connect(self, *, autocommit: bool = True, database: str | None = DATABASE) -> pymysql.Connection[Any]:
        """A plain connection, for filling tables and looking into them."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            password=os.environ["MYSQL_PWD"],
            database=database,
            charset="utf8mb4",
            autocommit=autocommit,
            ssl_disabled=True,
        )

    def sql(self, statement: str) -> Any:
        """Run one statement; the first column of the first row, where there is one."""
        connection = self.connect(database=None)
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"USE {DATABASE}")
                cursor.execute(statement)
                row = cursor.fetchone() if cursor.description else None
            return row[0] if row else None
        finally:
            connection.close()

    def prepare(self) -> None:
        """Make the database, and refuse a server that doesn't flush at each commit."""
        connection = self.connect(database=None)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4")
            cursor.execute("SELECT @@innodb_flush_log_at_trx_commit")
            durable = cursor.fetchone()
        connection.close()
        if durable != (1,):
            raise SystemExit(f"the server is not durable: innodb_flush_log_at_trx_commit is {durable}")

    def settle(self, patience_seconds: float = 60) -> None:
        """Wait until the server has written out and purged what filling tables left to do in the background."""
        if self.quick:
            return
        self.sql("SET GLOBAL innodb_max_dirty_pages_pct = 0, GLOBAL innodb_io_capacity = 50000")
        end = time.monotonic() + patience_seconds
        while time.monotonic() < end and self._unfinished() > 500:
            time.sleep(0.05)
        self.sql("SET GLOBAL innodb_max_dirty_pages_pct = 90, GLOBAL innodb_io_capacity = 200")

    def _unfinished(self) -> int:
        return int(
            self.sql(
                "SELECT SUM(VARIABLE_VALUE) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME IN "
                "('INNODB_BUFFER_POOL_PAGES_DIRTY', 'INNODB_HISTORY_LIST_LENGTH')"
            )
        )

    def deployment(self, name: str, *, dsn: str = "", table: str = "jobs_queue", mode: str = "delete") -> Path:
        """A folder with worker.py, the package (compiled), a tasks.py and a `.env`, as a user has it."""
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            shutil.copy(REPOSITORY / "worker.py", folder)
            shutil.copytree(
                REPOSITORY / "taskserver", folder / "taskserver", ignore=shutil.ignore_patterns("__pycache__")
            )
            (folder / "tasks.py").write_text(TASKS_MODULE)
            compileall.compile_dir(folder, quiet=2, force=True)
        (folder / ".env").write_text(
            f"TASKSERVER_DSN={dsn or self.dsn}\nTASKSERVER_TABLE={table}\nTASKSERVER_MODE={mode}\n"
        )
        return folder

    def floors(self) -> Path:
        """A folder with nothing but the compiled floors: it can import nothing of ours."""
        folder = self.folder / "floors"
        if not folder.exists():
            folder.mkdir()
            shutil.copy(Path(__file__).with_name("floors.py"), folder)
            compileall.compile_dir(folder, quiet=2, force=True)
        return folder


def environment() -> dict[str, str]:
    """That of a child: what cron would give it, so neither our settings nor Python's switches; and the password."""
    kept = ("PATH", "HOME", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "MYSQL_PWD")
    return {key: os.environ[key] for key in kept if key in os.environ}


def launched(arguments: list[str], folder: Path) -> Cost:
    """Run Python with these arguments in this folder and say what it cost; a failure ends the benchmark."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(_LAUNCH), sys.executable, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    code, wall, cpu, peak = done.stderr.rsplit("\n", 2)[-2].split()
    if int(code):
        raise SystemExit(f"python {' '.join(arguments)} ended with {code}: {done.stderr}")
    return Cost(float(wall), float(cpu), int(peak))
