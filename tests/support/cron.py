"""Debian's cron in namespaces of its own: the machine's crontabs do not run, and what cron mails is kept in files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path

NAMESPACES = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
# Crontabs and locale of the machine are hidden, as they would run too and change the environment. What /usr/sbin holds
# stays within reach by links, as only so a sendmail can be put beside it where there is none.
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
for file in /etc/crontab /etc/environment /etc/default/locale; do [ ! -e "$file" ] || mount --bind empty "$file"; done
[ ! -d /etc/cron.d ] || mount -t tmpfs tmpfs /etc/cron.d
"""
"""The begin of a script of sh, for a folder with the files that `prepare` writes."""
SENDMAIL = '#!/bin/sh\nfile=$(mktemp {0}/XXXXXX) && cat >"$file" && mv "$file" "$file.mail"\n'


def has_namespaces() -> bool:
    return os.getuid() == 0 and subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode == 0


def prepare(folder: Path, mails: Path) -> None:
    """Write what START reads in this folder; in `mails` cron's users leave their mails."""
    (folder / "sendmail").write_text(SENDMAIL.format(mails))
    (folder / "empty").write_text("")


def read_mails(folder: Path) -> Iterator[EmailMessage]:
    for file in folder.glob("*.mail"):
        yield message_from_bytes(file.read_bytes(), policy=policy.default)
