"""Debian's cron, with real minutes, in namespaces of its own: nothing of the machine is touched. Needs root.

There cron's spool, /run, the machine's own crontabs and /usr/sbin/sendmail lie hidden behind ours, and its jobs see no
process but their own. They are those of `nobody`, who has a home there; each mail becomes a file.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from email import message_from_bytes, policy
from email.message import EmailMessage
from functools import lru_cache
from pathlib import Path

import dotenv

from tests.support.deployment import Deployment
from tests.support.servers import NOBODY, PROGRAM_FOLDERS, find_program

MINUTES_SECONDS = 120.0
"""How long to wait for what a full minute brings."""

NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# A test run that is killed takes cron with it.
PRIVATE = ["setpriv", "--pdeathsig=KILL", *NAMESPACES]
CRON = 1
"""Its process id there."""
# env starts the program with none of the rights that setpriv itself still has.
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "env", "-i"]

# Runs in the folder. What /usr/sbin holds stays within reach by links, as only so a sendmail can be put beside it
# where there is none. Crontabs and locale of the machine are hidden: they would run too, and change the environment.
START = """
set -eu
readlink /proc/self/ns/pid >namespace
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/spool/cron
mkdir /var/spool/cron/crontabs
chgrp crontab /var/spool/cron/crontabs
chmod 1730 /var/spool/cron/crontabs

mkdir /run/sbin
mount --bind /usr/sbin /run/sbin
mount -t tmpfs -o mode=755 tmpfs /usr/sbin
ln -s /run/sbin/* /usr/sbin/
rm -f /usr/sbin/sendmail
cp sendmail /usr/sbin/sendmail

mount --bind passwd /etc/passwd
for file in /etc/crontab /etc/environment /etc/default/locale; do
    [ ! -e "$file" ] || mount --bind empty "$file"
done
[ ! -d /etc/cron.d ] || mount -t tmpfs tmpfs /etc/cron.d

crontab -u nobody crontab
exec cron -f
"""

SENDMAIL = """\
#!/bin/sh
file=$(mktemp {folder}/XXXXXX) && cat >"$file" && mv "$file" "$file.mail"
"""


def why_not() -> str:
    """What keeps this machine from running a cron of our own; empty if nothing does."""
    if os.getuid() != 0:
        return "a private cron needs root"
    programs = ["setpriv", "unshare", "mount"]
    if missing := [name for name in programs if not find_program(name)]:
        return f"util-linux is not installed: {', '.join(missing)} not found"
    if subprocess.run([*NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True).returncode != 0:
        return "a private cron needs namespaces of its own, which this machine does not give even to root"
    return ""


def missing_programs() -> list[str]:
    return [name for name in ("cron", "crontab") if find_program(name) is None]


@lru_cache
def find_python() -> str | None:
    """A Python that nobody may run; one below root's home is root's alone."""
    base = getattr(sys, "_base_executable", sys.executable)
    for python in (base, "/usr/local/bin/python3", "/usr/bin/python3"):
        check = [*AS_NOBODY, python, "-c", "import sqlite3, ssl, sys; sys.exit(sys.version_info < (3, 10))"]
        if subprocess.run(check, capture_output=True, cwd="/").returncode == 0:
            return python
    return None


class Cron:
    """One crontab of nobody's, a home for it, and places for deployments that are nobody's too."""

    def __init__(self) -> None:
        # Not below pytest's own folder, which root's nobody may not enter.
        self.folder = Path(tempfile.mkdtemp(prefix="taskserver-cron-", dir="/tmp"))
        self.home = self.folder / "home"
        self._mail = self.folder / "mail"
        self._log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        for folder in (self.home, self._mail):
            folder.mkdir()
        self._create_venv()

    def __enter__(self) -> Cron:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()

    def deployment(self, name: str) -> Deployment:
        """One with the .venv that `make venv` would create, but for the drivers of servers."""
        folder = self.folder / name
        folder.mkdir()
        deployed = Deployment(folder, python=str(folder / "deployment/.venv/bin/python"), linked=False)
        (deployed.folder / ".venv").symlink_to(self.folder / "venv")
        return deployed

    def start(self, crontab: str) -> None:
        """Gives all to nobody, installs the crontab by `crontab`, and starts cron, which wakes at each full minute."""
        for path in (self.folder, *self.folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        self._write("crontab", crontab)
        self._write("sendmail", SENDMAIL.format(folder=self._mail), mode=0o755)
        self._write("passwd", _accounts(self.home))
        self._write("empty", "")
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*PRIVATE, "sh", "-c", START],
                cwd=self.folder,
                env={"PATH": PROGRAM_FOLDERS},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + MINUTES_SECONDS
        while not condition():
            assert self._process is not None
            assert self._process.poll() is None, f"cron ended:\n{self._log.read_text()}"
            assert time.monotonic() < deadline, f"what was waited for did not come; mails: {self.mails()}"
            time.sleep(0.05)

    def start_nothing_more(self) -> None:
        """Freezes cron itself; what runs goes on, and its mail comes."""
        os.kill(self._processes()[CRON], signal.SIGSTOP)

    def is_idle(self) -> bool:
        """Whether every line that was started has ended, and its mail was sent."""
        return list(self._processes()) == [CRON]

    def mails(self) -> list[EmailMessage]:
        """The oldest first."""
        files = sorted(self._mail.glob("*.mail"), key=lambda file: file.stat().st_mtime_ns)
        return [message_from_bytes(file.read_bytes(), policy=policy.default) for file in files]

    def remove(self) -> None:
        """Ends cron and all that it started, and removes the folder."""
        if self._process is not None:
            try:
                os.kill(self._processes()[CRON], signal.SIGKILL)
            except (KeyError, OSError):  # it ended by itself, or did not begin yet
                self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder)

    def _create_venv(self) -> None:
        python = find_python()
        assert python is not None
        venv = self.folder / "venv"
        subprocess.run([python, "-m", "venv", "--without-pip", venv], check=True, cwd="/")
        (packages,) = venv.glob("lib/python*/site-packages")
        source = Path(dotenv.__file__).parent
        shutil.copytree(source, packages / source.name)

    def _write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)

    def _processes(self) -> dict[int, int]:
        """The process ids of all that live in the namespace, by what they are there."""
        namespace = (self.folder / "namespace").read_text().strip()
        assert namespace != os.readlink("/proc/self/ns/pid")
        return dict(filter(None, (_ids_in(namespace, process) for process in Path("/proc").glob("[0-9]*"))))


def _ids_in(namespace: str, process: Path) -> tuple[int, int] | None:
    """A process's id inside and outside, if it lives in that namespace."""
    try:
        if os.readlink(process / "ns" / "pid") != namespace:
            return None
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    except OSError:
        return None  # it has ended meanwhile
    is_zombie = status["State"].split()[0] == "Z"
    return None if is_zombie else (int(status["NSpid"].split()[-1]), int(process.name))


def _accounts(home: Path) -> str:
    """The machine's /etc/passwd, but for nobody's home."""
    others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("nobody:")]
    return "\n".join([*others, f"nobody:x:{NOBODY}:{NOBODY}:nobody:{home}:/usr/sbin/nologin", ""])
