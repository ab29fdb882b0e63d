"""What the benchmark knows of a queue. Each module of this folder with a list PEERS describes some, ours too.

A peer acts by commands only, so it may be written in any language. They run in a folder with its files, and get:

BENCH_URL       mysql://…, postgresql://… or sqlite:////path; also BENCH_HOST, _PORT, _USER, _PASSWORD and _DATABASE
BENCH_TASK      nothing or effect: which of its two tasks `add` and `add_many` add, with the numbers from 0 on
BENCH_WORKERS   how many workers `work` has, for a queue whose program starts several; else 1
BENCH_CALLS     a file to which each call of a task appends one byte at its end
BENCH_EFFECTS   the SQLite file of the table `effects`; with servers it is in the peer's own database
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENTS = REPOSITORY / ".servers" / "peers"

TASKS = '''\
"""The two tasks, without a queue. `effect` takes about 5 ms, and writes its number in the middle of them."""
import asyncio, os, time

CALLS = os.open(os.environ["BENCH_CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
HALF_SECONDS = 0.0025
connections = {}


def connect():
    place = {name: os.environ["BENCH_" + name.upper()] for name in ("host", "user", "password")}
    kind = os.environ["BENCH_URL"].split(":")[0]
    if kind == "sqlite":
        import sqlite3
        return sqlite3.connect(os.environ["BENCH_EFFECTS"], timeout=60, isolation_level=None, check_same_thread=False)
    place["port"] = int(os.environ["BENCH_PORT"])
    if kind == "mysql":
        try:
            import MySQLdb as driver
        except ImportError:
            import pymysql as driver
        return driver.connect(**place, database=os.environ["BENCH_DATABASE"], autocommit=True)
    try:
        import psycopg as driver
    except ImportError:
        import psycopg2 as driver
    connection = driver.connect(**place, dbname=os.environ["BENCH_DATABASE"])
    connection.autocommit = True
    return connection


def write(n):
    if os.getpid() not in connections:
        connections[os.getpid()] = connect()
    cursor = connections[os.getpid()].cursor()
    cursor.execute("INSERT INTO effects (n) VALUES (%d)" % n)
    cursor.close()


def nothing(n):
    os.write(CALLS, b".")


def effect(n):
    time.sleep(HALF_SECONDS)
    write(n)
    time.sleep(HALF_SECONDS)
    os.write(CALLS, b".")


async def effect_async(n):
    await asyncio.sleep(HALF_SECONDS)
    write(n)
    await asyncio.sleep(HALF_SECONDS)
    os.write(CALLS, b".")
'''
PROGRAM = '''\
"""Adds: python program.py install | add COUNT | add_many COUNT. Prints the seconds that adding took."""
import os, sys, time

import app


def main(verb, count=0):
    app.{name}(verb == "install")
    if verb == "install":
        return
    task = getattr(app, os.environ["BENCH_TASK"])
    numbers = range(int(count))
    begun = time.perf_counter()
    getattr(app, verb)(task, numbers)
    print(time.perf_counter() - begun)


main(*sys.argv[1:])
'''.replace("{name}", "connect")
"""For peers in Python, whose app.py has connect(install), add(task, numbers), add_many and both tasks."""


BUILD = "libmariadb-dev gcc pkg-config python3-dev"
"""Debian's packages, with which pip builds mysqlclient."""
ADDING = {
    "install": "python program.py install",
    "add": "python program.py add {count}",
    "add_many": "python program.py add_many {count}",
}


class Safety(NamedTuple):
    """What its documentation and code promise of a task."""

    durable: bool
    """Is it committed to the disk when `add` returns?"""
    survives: bool
    """Does it run, without a person's help, after its worker was killed?"""
    runs: str
    """At least once, at most once, …"""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A queue on one kind of database."""

    name: str
    base: str
    """mysql, sqlite or postgresql."""
    packages: str = ""
    """All that its environment needs, pinned; the first one is the peer itself."""
    repository: str = ""
    """A Git repository, whose tag of that version is the environment, if the peer is not in Python."""
    debian: str = ""
    """Or Debian's packages, of which again the first one is the peer itself; or what drivers are built with."""
    files: Mapping[str, str]
    """Its program: texts by name."""
    commands: Mapping[str, str]
    """install, add, add_many, work, and perhaps empty; {count} and {worker} are filled in. `work` is one worker: it
    works until it is stopped by SIGTERM, or nothing is left. `empty` ends by itself on an empty queue."""
    tables: tuple[str, ...]
    """What is emptied before a measurement. The first holds the tasks."""
    copied: Mapping[str, str]
    """Columns and their values, by which a waiting task's row is copied to fill the table."""
    unfinished: str
    """SQL that counts the tasks that wait or run."""
    safety: Safety
    notes: tuple[str, ...] = ()
    """How it is configured, and what is unfair in it."""
    lead: str = ""
    """Why it is faster than ours, where it is."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """More variables; {BENCH_URL} and the others are filled in, and {FOLDER}: its environment."""
    is_ours: bool = False
    skips: tuple[str, ...] = ()
    """Parts that are not measured: it has no such call, or another peer of the list is the same there."""
    most_workers: int = 4
    """1 if it is not made for several processes."""
    has_pool: bool = False
    """Whether one program has all workers: BENCH_WORKERS. It is killed as others are: with one worker each."""

    @property
    def key(self) -> str:
        """Its name in results and for --only."""
        return f"{self.name}/{self.base}"

    @property
    def is_safe(self) -> bool:
        """Whether it keeps a task as safely as ours."""
        return self.safety.durable and self.safety.survives

    def has(self, part: str) -> bool:
        """Whether a part is measured for it."""
        workers = int(part.removeprefix("drain_")) if part.startswith("drain_") else 1
        has_empty = "empty" in self.commands or not part.startswith("empty")
        return part not in self.skips and has_empty and workers <= self.most_workers

    @property
    def folder(self) -> Path:
        """The environment; peers with the same packages share it."""
        digest = hashlib.sha256(self.packages.encode()).hexdigest()[:8]
        return ENVIRONMENTS / f"{self.packages.split('==')[0]}-{digest}"

    def make(self) -> None:
        """Make the environment, if it is not there: in Python, a venv."""
        if len(self._from_debian()) < len(self.debian.split()):
            subprocess.run([REPOSITORY / ".ci" / "setup", "debian", *self.debian.split()], check=True)
        if not self.packages or (self.folder / "done").exists():
            return
        print(f"peers: installing {self.packages}", file=sys.stderr, flush=True)
        if self.repository:
            clone = ["git", "clone", "-q", "--depth=1", "--branch", self.packages.split("==")[1], self.repository]
            subprocess.run([*clone, str(self.folder)], check=True)
        else:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(self.folder)], check=True)
            pip = [str(self.folder / "bin" / "python"), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            subprocess.run([*pip, "--no-deps", *self.packages.split()], check=True)
        (self.folder / "done").touch()

    def version(self) -> str:
        """Of the package that is installed, and of its driver; a line."""
        return self.packages or " ".join(self._from_debian())

    def _from_debian(self) -> list[str]:
        """Those of its packages that are installed: name==version."""
        if not self.debian:
            return []
        query = ["dpkg-query", "-Wf", "${db:Status-Status} ${Package}==${Version}\n", *self.debian.split()]
        lines = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
        return [line.split()[1] for line in lines if line.startswith("installed ")]

    def lay(self, folder: Path) -> None:
        """Write its files."""
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)

    def command(self, verb: str, count: int = 0, worker: int = 0) -> list[str]:
        """The arguments of a process. `python` is that of the environment."""
        words = shlex.split(self.commands[verb].format(count=count, worker=worker))
        own = self.folder / "bin" / words[0]
        return [str(own) if own.exists() else words[0], *words[1:]]

    def variables(self, place: Mapping[str, str]) -> dict[str, str]:
        """Its process's whole environment."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        filled = {**place, "FOLDER": str(self.folder)}
        own = {name: value.format_map(filled) for name, value in self.environment.items()}
        return {**kept, "LANG": "C.UTF-8", **place, **own}
