"""Debian's cron, with real minutes, in namespaces of its own: nothing of the machine is touched. Needs root.

There cron's spool, /run, the machine's own crontabs and /usr/sbin/sendmail lie hidden behind ours. Its jobs are root's,
who has another home there; each mail becomes a file.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.conftest import without
from tests.support.servers import PROGRAM_FOLDERS, find_program

MINUTES_SECONDS = 120.0
"""How long to wait for what a full minute brings."""

NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]

# Runs in the folder. What /usr/sbin holds stays within reach by links, as only so a sendmail can be put beside it
# where there is none. Crontabs and locale of the machine are hidden: they would run too, and change the environment.
START = """
set -eu
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/spool/cron
mkdir -m 1730 /var/spool/cron/crontabs
chgrp crontab /var/spool/cron/crontabs

mkdir /run/sbin
mount --bind /usr/sbin /run/sbin
mount -t tmpfs -o mode=755 tmpfs /usr/sbin
ln -s /run/sbin/* /usr/sbin/
rm -f /usr/sbin/sendmail
cp sendmail /usr/sbin/sendmail
chmod 755 /usr/sbin/sendmail

mount --bind passwd /etc/passwd
for file in /etc/crontab /etc/environment /etc/default/locale; do
    [ ! -e "$file" ] || mount --bind /dev/null "$file"
done
[ ! -d /etc/cron.d ] || mount -t tmpfs tmpfs /etc/cron.d

crontab crontab
exec cron -f
"""
SENDMAIL = """\
#!/bin/sh
file=$(mktemp {folder}/XXXXXX) && cat >"$file" && mv "$file" "$file.mail"
"""


class Cron:
    """A crontab, and a home for its user."""

    def __init__(self, folder: Path) -> None:
        if os.getuid() != 0 or subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode != 0:
            pytest.skip("a private cron needs root and namespaces of its own")
        if not find_program("cron") or not find_program("crontab"):
            without("cron is not installed")
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir()
        self._log = folder / "log"

    def start(self, crontab: str) -> None:
        """Installs it by `crontab`, and starts cron, which wakes at each full minute."""
        others = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        accounts = "\n".join([f"root:x:0:0:root:{self.home}:/bin/sh", *others, ""])
        files = {"crontab": crontab, "sendmail": SENDMAIL.format(folder=self.folder), "passwd": accounts}
        for name, text in files.items():
            (self.folder / name).write_text(text, encoding="utf-8")
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *NAMESPACES, "sh", "-c", START],  # a run that is killed takes it along
                cwd=self.folder,
                env={"PATH": PROGRAM_FOLDERS},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + MINUTES_SECONDS
        while not condition():
            assert self._process.poll() is None, f"cron ended:\n{self._log.read_text()}"
            assert time.monotonic() < deadline, f"what was waited for did not come; mails: {self.mails()}"
            time.sleep(0.05)

    def is_idle(self) -> bool:
        """Whether every line that was started has ended, and its mail was sent."""
        (cron,) = children(self._process.pid)
        return not children(cron)

    def mails(self) -> list[EmailMessage]:
        files = self.folder.glob("*.mail")
        return [message_from_bytes(file.read_bytes(), policy=policy.default) for file in files]

    def stop(self) -> None:
        """Ends cron and all that it started."""
        self._process.kill()
        self._process.wait()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
