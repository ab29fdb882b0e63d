"""The lines of crontab.example: under Debian's cron, as an unprivileged user has them, and its file itself.

`seen` prepares all places, installs one crontab for all, and waits for one full minute. The tests look at what is left.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from email.message import EmailMessage
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from taskserver import TaskServer
from tests.conftest import without
from tests.support.cron import Cron, find_python, missing_programs, why_not
from tests.support.deployment import ROOT
from tests.support.processes import assert_silent, end_of, wait_until
from tests.support.queues import Queue
from tests.support.servers import find_program

pytestmark = pytest.mark.xdist_group("cron")  # one process waits

EXAMPLE = ROOT / "crontab.example"
LINES = re.findall(r"(?m)^(?:# )?(?:[\d*/-]+ ){5}(\S.*/worker\.py .*)$", EXAMPLE.read_text(encoding="utf-8"))


def line_of(beginning: str, arguments: str) -> str:
    """The command of the example that begins so, and gives worker.py these arguments."""
    (line,) = [line for line in LINES if line.startswith(beginning) and line.endswith(f"/worker.py {arguments}")]
    return str(line)


HUNDRED, FIVE, ALL = (line_of("/", arguments) for arguments in ("100 3,5,6", "5 3", "--max-time 50"))
KIND_TO_OTHERS = line_of("sleep ", "100 3,5,6")
SQLITE = "sqlite:///var/taskserver.db"
TEXT = "Grüße, 世界 🎉"

TASKS = """
import os, resource, subprocess, sys, time


def turn(number):
    note(f"{os.getpid()} {number}")


def hold():
    note("holds")
    while not (HERE / "go").exists():
        time.sleep(0.02)


def look_around(text):
    print(text)
    sys.stdout.buffer.write(b"noise")
    subprocess.run(["echo", "noise"])
    note(" ".join(sorted(os.environ)))
    note(os.environ["PATH"])
    note(os.getcwd())
    note(text)


def show_limits():
    note(f"{os.nice(0)} {resource.getrlimit(resource.RLIMIT_AS)[0]}")
"""

NUMBERS = range(320)
"""Of tasks in eight groups, with three priorities."""


def in_order(*groups: int) -> list[int]:
    """The numbers of these groups, as they should run."""
    return sorted((n for n in NUMBERS if n % 8 in groups), key=lambda n: (-n % 3, n))


class Place:
    """A deployment of nobody's, whose paths stand in the lines of the crontab."""

    def __init__(self, cron: Cron, name: str) -> None:
        deployment = cron.deployment(name)
        self.folder = deployment.folder
        self.python = deployment.python
        self.worker = f"{self.python} {self.folder}/worker.py"
        self.queue = Queue(deployment, SQLITE, tasks=TASKS)

    def add(self, task: str, *args: object, group: int = 0) -> None:
        self.queue.add(f"tasks.{task}", json.dumps(args), group)

    def command(self, example: str) -> str:
        """One of crontab.example, with the paths of this place."""
        return with_paths(example, self.python, self.folder)

    def runs(self) -> list[list[int]]:
        """The numbers of each run's tasks, in order."""
        turns = [note.split() for note in self.queue.notes()]
        return [[int(number) for _, number in run] for _, run in groupby(turns, key=lambda turn: turn[0])]


def with_paths(example: str, python: str, folder: Path) -> str:
    return example.replace("/usr/bin/python3", python).replace("/home/you/taskserver", str(folder))


class Stage:
    """The places, and the crontab for them all."""

    def __init__(self, cron: Cron) -> None:
        self.cron = cron
        self.places: dict[str, Place] = {}
        self.lines: list[str] = []

    def place(self, name: str) -> Place:
        self.places[name] = Place(self.cron, name)
        return self.places[name]

    def each_minute(self, *commands: str) -> None:
        self.lines += [f"* * * * * {command}" for command in commands]

    def tick(self) -> None:
        """Stands first and last: once both lines have run, those between have been started."""
        self.each_minute(f"echo >>{self.cron.home}/ticks")

    def has_started_all(self) -> bool:
        path = self.cron.home / "ticks"
        return path.exists() and len(path.read_text()) == 2

    def prepare_lines_of_the_example(self) -> None:
        for name, example in {"hundred": HUNDRED, "five": FIVE, "all": ALL}.items():
            place = self.place(name)
            with TaskServer(SQLITE, folder=place.folder) as server:
                server.add_tasks(
                    {"task": "tasks.turn", "args": [n], "group_id": n % 8, "priority": -n % 3} for n in NUMBERS
                )
            self.each_minute(place.command(example))

    def prepare_surroundings(self) -> None:
        place = self.place("surroundings")
        place.add("look_around", TEXT)
        self.each_minute(place.worker)

    def prepare_traps(self) -> None:
        place = self.place("traps")
        (self.cron.home / "python-of-mine").symlink_to(place.python)
        for group in range(1, 5):
            place.add("turn", group, group=group)
        self.each_minute(
            f"{place.worker} 0 1 --verbose 2>>{place.folder}/log-$(date +\\%Y)",
            f"{place.worker} 0 2 --verbose 2>>{place.folder}/log-$(date +%Y)",
            f"python-of-mine {place.folder}/worker.py 0 3",
            f"{place.python} worker.py 0 4",
        )
        unset = self.place("unset")
        (unset.folder / ".env").unlink()
        self.each_minute(unset.worker)

    def prepare_mail(self) -> None:
        """Fatal tasks; each of these settings holds for the lines below it."""
        place = self.place("fatal")
        for group in range(1, 5):
            place.add("größer", group, group=group)
            place.add("turn", group, group=group)
        self.each_minute(f"{place.worker} 0 1")
        self.lines.append("MAILTO=owner@example.org")
        self.each_minute(f"{place.worker} 0 2")
        self.lines.append('CONTENT_TYPE="text/plain; charset=utf-8"')
        self.each_minute(f"{place.worker} 0 3")
        self.lines.append('MAILTO=""')
        self.each_minute(f"{place.worker} 0 4")


class Evidence(NamedTuple):
    """What a minute of cron left behind."""

    places: dict[str, Place]
    mails: list[EmailMessage]
    home: Path

    def mails_about(self, *words: object) -> list[EmailMessage]:
        """Those on commands with these words."""
        return [mail for mail in self.mails if all(str(word) in mail["Subject"] for word in words)]

    def line_mailed_about(self, *words: object) -> str:
        """The only line of the only mail."""
        (mail,) = self.mails_about(*words)
        (line,) = mail.get_content().splitlines()
        return str(line)


@pytest.fixture(scope="module")
def seen() -> Iterator[Evidence]:
    if reason := why_not():
        pytest.skip(reason)
    if missing := missing_programs():
        without(f"cron is not installed ({', '.join(missing)} not found)")
    if find_python() is None:
        without("no Python of 3.10 or newer was found that nobody may run (as Debian's python3)")
    with Cron() as cron:
        stage = Stage(cron)
        stage.tick()
        stage.prepare_lines_of_the_example()
        stage.prepare_surroundings()
        stage.prepare_traps()
        stage.prepare_mail()
        stage.tick()
        cron.start("\n".join([*stage.lines, ""]))
        cron.wait_until(stage.has_started_all)
        cron.start_nothing_more()
        cron.wait_until(cron.is_idle)
        yield Evidence(stage.places, cron.mails(), cron.home)


def test_each_line_of_the_example_takes_what_it_says_in_order_and_sends_no_mail(seen: Evidence) -> None:
    taken = {"hundred": in_order(3, 5, 6)[:100], "five": in_order(3)[:5], "all": in_order(*range(8))}
    assert {name: seen.places[name].runs() for name in taken} == {name: [numbers] for name, numbers in taken.items()}
    assert [seen.mails_about(seen.places[name].folder) for name in taken] == [[], [], []]


def test_tasks_find_the_environment_of_cron_and_their_text_unharmed(seen: Evidence) -> None:
    variables, path, folder, text = seen.places["surroundings"].queue.notes()
    assert {"HOME", "LOGNAME", "PATH", "SHELL"} <= set(variables.split())
    assert not {"USER", "LANG", "TZ", "VIRTUAL_ENV"} & set(variables.split())
    assert (path, folder, text) == ("/usr/bin:/bin", str(seen.home), TEXT)
    assert seen.mails_about(seen.places["surroundings"].folder) == []  # though it printed


def test_a_percent_sign_needs_a_backslash_and_names_are_looked_for_in_crons_own_path(seen: Evidence) -> None:
    place = seen.places["traps"]
    (log,) = place.folder.glob("log-*")
    assert re.fullmatch(r"log-\d{4}", log.name)
    assert place.runs() == [[1]]
    assert len(seen.mails_about(place.folder, "0 2")) == 1
    assert "not found" in seen.line_mailed_about("python-of-mine")
    assert f"{seen.home}/worker.py" in seen.line_mailed_about(place.folder, "python worker.py 0 4")


def test_what_went_wrong_is_mailed_in_one_line_to_whom_mailto_names(seen: Evidence) -> None:
    place = seen.places["fatal"]
    assert "fatal" in seen.line_mailed_about(place.folder, "0 1")
    assert [mail["To"] for mail in seen.mails_about(place.folder, "0 1")] == ["nobody"]
    assert [mail["To"] for mail in seen.mails_about(place.folder, "0 2")] == ["owner@example.org"]
    assert "größer" not in seen.line_mailed_about(place.folder, "0 2")
    assert "größer" in seen.line_mailed_about(place.folder, "0 3")  # by its content type
    assert seen.mails_about(place.folder, "0 4") == []  # by an empty MAILTO
    assert place.queue.statuses() == [4] * 4
    assert "TASKSERVER_DSN" in seen.line_mailed_about(seen.places["unset"].folder)


# ---- without cron


def test_the_line_that_is_kind_to_others_begins_at_a_second_of_the_account_and_takes_little(queue: Queue) -> None:
    queue.add("tasks.show_limits", group_id=3)
    folder = queue.deployment.home
    (folder / "sleep").write_text('#!/bin/sh\necho "$1" >seconds\n')
    (folder / "sleep").chmod(0o700)
    line = with_paths(KIND_TO_OTHERS, shlex.quote(queue.deployment.python), queue.folder)
    env = {"PATH": f"{folder}:{os.defpath}"}
    ended = subprocess.run(["/bin/sh", "-c", line], cwd=folder, env=env, capture_output=True, text=True)
    assert_silent(ended)
    assert int((folder / "seconds").read_text()) == os.getuid() & 31
    niceness, most_bytes = map(int, queue.notes()[0].split())
    assert (niceness, most_bytes) == (min(os.nice(0) + 10, 19), 1_000_000 * 1024)


def test_of_runs_that_overlap_four_work_and_later_ones_leave_at_once(queue: Queue) -> None:
    for _ in range(5):
        queue.add("tasks.hold")
    workers = [queue.start("--batch", 1) for _ in range(4)]
    wait_until(lambda: len(queue.notes()) == 4)
    assert_silent(queue.worker("--batch", 1))
    queue.go()
    assert [end_of(worker) for worker in workers] == [(0, "", "")] * 4
    assert queue.notes() == ["holds"] * 5


def dry_run(file: Path) -> subprocess.CompletedProcess[str]:
    """What `crontab` says of a file, which it does not install."""
    crontab = find_program("crontab")
    if crontab is None:
        pytest.skip("crontab is not installed")
    said = subprocess.run([crontab, "-n", file], capture_output=True, text=True, env={"LC_ALL": "C"})
    if "invalid option" in said.stderr:
        pytest.skip("this crontab has no -n")
    return said


def test_crontab_accepts_the_example_and_every_line_of_it_that_is_commented_out(tmp_path: Path) -> None:
    file = tmp_path / "crontab"
    text = EXAMPLE.read_text(encoding="utf-8")
    lines, count = re.subn(r"(?m)^# (?=[A-Z_]+=|[\d*/-]+ [\d*])", "", text)
    assert count >= 6
    for good in (text, lines):
        file.write_text(good, encoding="utf-8")
        said = dry_run(file)
        assert said.returncode == 0, said.stderr
    file.write_text(text.rstrip("\n") + "\n* * * * * true", encoding="utf-8")  # which has no end
    assert dry_run(file).returncode != 0


def test_the_example_has_the_lines_of_the_first_article() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    commands = re.findall(r"(?m)^(?:# )?((?:[\d*/-]+ ){5})/.*/worker.py (.*)$", text)
    assert commands[:2] == [("*/5 * * * * ", "100 3,5,6"), ("0-59/5 * * * * ", "5 3")]
