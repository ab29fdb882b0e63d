"""The place of a soak run: a queue with old tables, its network, cron and the processes of its workers."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from tests.faults.chaos.stage import Stage
from tests.faults.soak.tasks import TASKS, UPLOADED
from tests.support.deployment import ROOT
from tests.support.processes import wait_until
from tests.support.rows import Rows, run_fixture
from tests.support.servers import free_port
from tests.support.websites import SERVE_WSGI

PRIVATE = Path("/run/soak")
"""What the witnesses write: on another file system than /tmp, which a fault fills; it is kept."""
TOKEN = "token-of-a-page"
LEASE_SECONDS = 10
SETTINGS = {
    "TASKSERVER_LEASE": f"{LEASE_SECONDS}",
    "TASKSERVER_TIMEOUT": "5",
    "TASKSERVER_MAX_ATTEMPTS": "6",
    "TASKSERVER_KEEP": "2m",
    "TASKSERVER_LOG": "var/taskserver.log",
    "TASKSERVER_ADD_TOKENS": f"page;sha256={hashlib.sha256(TOKEN.encode()).hexdigest()};tasks=tasks.*;groups=*",
}
OLD_TASKS = 1000
LONG = "1d"
"""How long the long workers linger: only they are never killed."""
LINES = (
    "{python} {folder}/worker.py 0 --linger 65 --slots 1",
    "{python} {folder}/worker.py 0 --linger 65 --processes 2",
    "{python} {folder}/worker.py 100 0,1,2 --batch 5 --max-time 50",
    f"flock -n {PRIVATE}/long {{python}} {{folder}}/worker.py 0 0,2 --linger {LONG} --processes 2",
)
"""One for each slot of chaos, whose mode and way to the database it takes. Group 1 has what kills its worker."""
OTHER_LINES = (
    "* * * * * {python} {folder}/client.py check --mail",
    "* * * * * {python} {folder}/client.py prune --older-than 10m --fatal --stats >/dev/null",
)
FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
CLOCK = PRIVATE / "clock"
"""Holds how wrong the clock of the first line's workers is."""


class Worker(NamedTuple):
    """A process of worker.py."""

    pid: int
    is_long: bool
    is_child: bool
    """Of a worker with --processes."""


class Place(Stage):
    """Chaos' stage with old tables, and cron in the place of its slots."""

    tasks = TASKS
    uploaded_at: float | None = None

    def __init__(self, dsn_kind: str, folder: Path, seed: int) -> None:
        super().__init__(dsn_kind, folder, seed, SETTINGS, linked=False)
        (self.folder / "runs").symlink_to(PRIVATE / "runs")
        shutil.copy(ROOT / "passenger_wsgi.py", self.folder)
        (PRIVATE / "mails").mkdir()
        self._beginning = f"{sys.executable}\0{self.folder}/worker.py\0".encode()
        self.set_clock(0)
        self.web: subprocess.Popen[bytes] | None = None
        self.web_port = free_port()

    def make_tables(self) -> None:
        """Those of the last release, with tasks that web pages added."""
        (self.folder / "var").mkdir(mode=0o700)
        with closing(Rows(self.dsn)) as rows:
            run_fixture(rows, f"version_7.{rows.kind}.sql")
            for number in range(1, OLD_TASKS + 1):
                args = json.dumps({"number": -number, "kind": "quick"})
                rows.execute("INSERT INTO jobs_queue (task, args) VALUES ('tasks.play', ?)", [args])

    def upgrade(self) -> str:
        """As docs/upgrading.md has it; what that printed."""
        ended = self.deployment.client("init", timeout=300)
        return ended.stderr + ("" if ended.returncode == 0 else f"client.py init ended with {ended.returncode}")

    def start(self) -> None:
        """The web server, and cron's lines."""
        command = [sys.executable, "-c", SERVE_WSGI, str(self.folder), "passenger_wsgi", str(self.web_port)]
        with open(PRIVATE / "web", "wb") as output:
            self.web = subprocess.Popen(command, stdout=output, stderr=output, env={"PATH": os.defpath})
        lines = [f"HOME={self.deployment.home}", f"TASKSERVER_DSN={self.dsn}", *OTHER_LINES]
        for number, line in reversed([*enumerate(LINES)]):  # the last one that is written has the faked clock
            dsn = self.proxies[number].dsn(self.dsn) if self.proxies else self.dsn
            lines += [f"TASKSERVER_DSN={dsn}", f"CHAOS_DSN={dsn}", f"TASKSERVER_MODE={self.modes[number]}"]
            lines += [f"SOAK_LINE={number}", *(self._faking() if number == 0 else ()), f"* * * * * {line}"]
        text = "\n".join([*lines, ""]).format(python=shlex.quote(sys.executable), folder=self.folder)
        subprocess.run(["crontab", "-"], input=text, text=True, check=True)

    def stop(self) -> None:
        """No more starts; the workers end in order."""
        subprocess.run(["crontab", "-r"], check=True)
        for worker in self.workers():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: not any(self.workers()))
        if self.web is not None:
            self.web.kill()
            self.web = None

    def upload(self) -> None:
        """Newer files of the same names, as by FTP."""
        for path in self.folder.rglob("*.py"):
            path.write_bytes(path.read_bytes())
        self.deployment.write_tasks(UPLOADED)
        self.uploaded_at = time.monotonic()

    @property
    def has_clock(self) -> bool:
        """SQLite has no clock but that of its processes."""
        return FAKETIME is not None and self.dsn_kind != "sqlite"

    def set_clock(self, hours: int) -> None:
        CLOCK.write_text(f"{hours:+}h\n")

    def _faking(self) -> list[str]:
        if not self.has_clock:
            return []
        # This libfaketime breaks the system call behind time.sleep.
        sleep = "import select, time\ntime.sleep = lambda seconds: select.select([], [], [], seconds) and None\n"
        (PRIVATE / "site").mkdir()
        (PRIVATE / "site" / "sitecustomize.py").write_text(sleep)
        names = [f"LD_PRELOAD={FAKETIME}", f"FAKETIME_TIMESTAMP_FILE={CLOCK}", f"PYTHONPATH={PRIVATE}/site"]
        return [*names, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1"]

    def workers(self) -> Iterator[Worker]:
        """All that live now, the supervisors of several too."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if words.startswith(self._beginning):
                    parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                    is_child = Path(f"/proc/{parent}/cmdline").read_bytes() == words
                    yield Worker(int(entry.name), f"\0{LONG}\0".encode() in words, is_child)
