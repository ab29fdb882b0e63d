"""Where our own benchmarks run: a server, deployments as a user would lay them out, and their processes."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from .bases import Base

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
    base: Base
    pairs: int
    quick: bool

    @property
    def port(self) -> int:
        """Of the server."""
        return self.base.server.port

    @property
    def dsn(self) -> str:
        """The database of the benchmarks, as a setting."""
        return self.base.dsn(DATABASE)

    def size(self, full: int, quick: int) -> int:
        """How many rows: the full number, or the small one of a smoke test."""
        return quick if self.quick else full

    def sql(self, statement: str) -> Any:
        """Run one statement; the first column of the first row, where there is one."""
        found = self.base.execute(DATABASE, statement)
        return found[0][0] if found else None

    def settle(self) -> None:
        """Wait until the server has written out and purged what filling tables left to do in the background."""
        if not self.quick:
            self.base.settle(DATABASE)

    def deployment(self, name: str, *, table: str = "jobs_queue") -> Path:
        """A folder with worker.py, the package (compiled), a tasks.py and a `.env`, as a user has it."""
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            (folder / "tasks.py").write_text(TASKS_MODULE)
            install(folder)
        (folder / ".env").write_text(f"TASKSERVER_DSN={self.dsn}\nTASKSERVER_TABLE={table}\n")
        return folder

    def floors(self) -> Path:
        """A folder with nothing but the compiled floors: it can import nothing of ours."""
        folder = self.folder / "floors"
        if not folder.exists():
            folder.mkdir()
            shutil.copy(Path(__file__).with_name("floors.py"), folder)
            compileall.compile_dir(folder, quiet=2, force=True)
        return folder


def install(folder: Path) -> None:
    """Copy worker.py and the package into a folder, and compile all that is in it."""
    shutil.copy(REPOSITORY / "worker.py", folder)
    shutil.copytree(REPOSITORY / "taskserver", folder / "taskserver", ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(folder, quiet=2, force=True)


def launched(arguments: list[str], folder: Path) -> Cost:
    """Run Python with these arguments in this folder and say what it cost; a failure ends the benchmark."""
    return cost_of([sys.executable, *arguments], folder, cron_environment())


def rate(tasks: int, programs: Sequence[list[str]], folders: Sequence[Path]) -> float:
    """How many tasks a second such runs of Python do together."""
    begun = time.perf_counter()
    with ThreadPoolExecutor(len(programs)) as pool:
        list(pool.map(launched, programs, folders))
    return tasks / (time.perf_counter() - begun)


def cron_environment() -> dict[str, str]:
    """What cron would give a program, so neither our settings nor Python's switches; and the password."""
    kept = ("PATH", "HOME", "LOGNAME", "SHELL", "LD_LIBRARY_PATH", "MYSQL_PWD")
    return {key: os.environ[key] for key in kept if key in os.environ}


def cost_of(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Cost:
    """Run a command, and say what it cost; a failure ends the benchmark."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(_LAUNCH), shutil.which(command[0]) or command[0], *command[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    code, wall, cpu, peak = done.stderr.rsplit("\n", 2)[-2].split()
    if int(code):
        raise RuntimeError(f"{' '.join(command)} ended with {code}: {done.stderr[-2000:]}")
    return Cost(float(wall), float(cpu), int(peak))
