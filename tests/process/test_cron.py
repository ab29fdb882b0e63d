"""The lines of crontab.example: under Debian's cron, and its file itself."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import subprocess
import time
from email.message import EmailMessage
from pathlib import Path

import pytest

from tests.support.cron import NAMESPACES, START, has_namespaces, prepare, read_mails
from tests.support.deployment import ROOT, Deployment
from tests.support.processes import assert_silent
from tests.support.queues import Queue
from tests.support.servers import PROGRAM_FOLDERS, find_program, without

EXAMPLE = (ROOT / "crontab.example").read_text(encoding="utf-8")
LINES = re.findall(r"(?m)^(?:# )?(?:[\d*/-]+ ){5}(\S.*/worker\.py .*)$", EXAMPLE)
TEXT = "Grüße, 世界 🎉"
TASKS = """
import os, resource, subprocess, sys

def look_around(text):
    print(text)
    sys.stdout.buffer.write(b"noise")
    subprocess.run(["echo", "noise"])
    note(f"{os.environ['PATH']} {'LANG' in os.environ} {os.getcwd()} {text}")

def show_limits():
    note(f"{os.nice(0)} {resource.getrlimit(resource.RLIMIT_AS)[0]}")
"""


def line_of(beginning: str, arguments: str, python: str, folder: Path) -> str:
    """The command of the example that begins so and gives worker.py these arguments, with other paths."""
    (line,) = [line for line in LINES if line.startswith(beginning) and line.endswith(f"/worker.py {arguments}")]
    return str(line).replace("/usr/bin/python3", python).replace("/home/you/taskserver", str(folder))


def mails_of_cron(folder: Path, *lines: str) -> list[EmailMessage]:
    """Debian's cron runs lines of a crontab at the next full minute, in namespaces of its own; the mails it sent."""
    tick, ticks = f"* * * * * echo >>{folder}/ticks", folder / "ticks"
    texts = {
        "crontab": "\n".join([tick, *lines, tick, ""]),
        "ticks": "",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    prepare(folder, folder)
    command, env = [*NAMESPACES, "sh", "-c", f"{START}crontab crontab; exec cron -f"], {"PATH": PROGRAM_FOLDERS}
    with subprocess.Popen(command, cwd=folder, env=env, start_new_session=True) as unshare:
        try:
            deadline = time.monotonic() + 120
            while len(ticks.read_text()) < 2 or children(*children(unshare.pid)):  # all were started, and have ended
                assert unshare.poll() is None, "cron ended"
                assert time.monotonic() < deadline, "cron did not run all lines"
                time.sleep(0.05)
        finally:
            unshare.kill()
    return [*read_mails(folder)]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_cron_runs_a_line_of_the_example_silently_and_mails_one_line_of_what_went_wrong(tmp_path: Path) -> None:
    if not has_namespaces():
        pytest.skip("a private cron needs root and namespaces of its own")
    if not find_program("cron"):
        without("cron is not installed")
    for name in ("shop", "unset"):
        (tmp_path / name).mkdir()
    shop, unset = Deployment(tmp_path / "shop"), Deployment(tmp_path / "unset")
    queue = Queue(shop, "sqlite:///var/taskserver.db", tasks=TASKS)
    for number, priority in enumerate([5, 0, 0, 5, -1, 0, 0]):
        queue.add("tasks.note", f"[{number}]", 3, priority)
    queue.add("tasks.look_around", f'["{TEXT}"]', 4)
    queue.add("tasks.größer", None, 1)
    worker = f"{shop.python} {shop.folder}/worker.py"
    commands = [line_of("/", "5 3", shop.python, shop.folder), f"{worker} 0 4", f"{worker} 0 1"]
    commands.append(f"{unset.python} {unset.folder}/worker.py")
    mime = 'CONTENT_TYPE="text/plain; charset=utf-8"'
    mails = mails_of_cron(tmp_path, mime, *(f"* * * * * {command}" for command in commands))
    around = f"/usr/bin:/bin False {pwd.getpwuid(0).pw_dir} {TEXT}"
    assert [note for note in queue.notes() if note != around] == ["4", "1", "2", "5", "6"]
    assert around in queue.notes()
    mails.sort(key=lambda mail: str(mail["Subject"]))
    for mail, folder, words in zip(
        mails, (shop.folder, unset.folder), ("tasks.größer is fatal", "TASKSERVER_DSN is not set"), strict=True
    ):
        (line,) = mail.get_content().splitlines()
        assert words in line
        assert (str(folder) in mail["Subject"], mail["To"]) == (True, "root")


def test_the_line_that_is_kind_to_others_begins_at_a_second_of_the_account_and_takes_little(queue: Queue) -> None:
    queue.add("tasks.show_limits", group_id=3)
    folder = queue.deployment.home
    (folder / "sleep").write_text('#!/bin/sh\necho "$1" >seconds\n')
    (folder / "sleep").chmod(0o700)
    line = line_of("sleep ", "100 3,5,6", shlex.quote(queue.deployment.python), queue.folder)
    env = {"PATH": f"{folder}:{os.defpath}"}
    ended = subprocess.run(["/bin/sh", "-c", line], cwd=folder, env=env, capture_output=True, text=True)
    assert_silent(ended)
    assert int((folder / "seconds").read_text()) == os.getuid() & 31
    niceness, most_bytes = map(int, queue.notes()[0].split())
    assert (niceness, most_bytes) == (min(os.nice(0) + 10, 19), 1_000_000 * 1024)


def test_crontab_accepts_the_example_and_every_line_of_it_that_is_commented_out(tmp_path: Path) -> None:
    crontab = find_program("crontab")
    if crontab is None:
        pytest.skip("crontab is not installed")
    lines, count = re.subn(r"(?m)^# (?=[A-Z_]+=|[\d*/-]+ [\d*])", "", EXAMPLE)
    assert count >= 6
    file = tmp_path / "crontab"
    for text in (EXAMPLE, lines):
        file.write_text(text, encoding="utf-8")
        said = subprocess.run([crontab, "-n", file], capture_output=True, text=True, env={"LC_ALL": "C"})
        if "invalid option" in said.stderr:
            pytest.skip("this crontab has no -n")
        assert said.returncode == 0, said.stderr
