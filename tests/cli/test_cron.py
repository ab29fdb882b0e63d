"""The lines of crontab.example under Debian's cron, as an unprivileged user has them, each minute for two minutes.

All that is to be seen happens in the same two minutes: `seen` prepares many places, installs one crontab for all, and
waits. The tests then look at what is left.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from email.message import EmailMessage
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

from taskserver import TaskServer
from tests.conftest import without
from tests.support.cron import Cron, find_python, missing_programs, why_not
from tests.support.deployment import ROOT
from tests.support.postgresql import PostgreSQLServer
from tests.support.queues import Queue
from tests.support.servers import NOBODY, MySQLServer, find_program

pytestmark = pytest.mark.xdist_group("cron")  # one process waits, not three

EXAMPLE = ROOT / "crontab.example"
THEIR_FOLDER = "/home/you/taskserver"
THEIR_PYTHON = "/usr/bin/python3"
LINES = re.findall(r"(?m)^(?:# )?(?:[\d*/-]+ ){5}(\S.*/worker\.py .*)$", EXAMPLE.read_text(encoding="utf-8"))


def line_of(beginning: str, arguments: str) -> str:
    """The command of the example that begins so, and gives worker.py these arguments."""
    (line,) = [line for line in LINES if line.startswith(beginning) and line.endswith(f"/worker.py {arguments}")]
    return str(line)


HUNDRED, FIVE, ALL = (line_of("/", arguments) for arguments in ("100 3,5,6", "5 3", "--max-time 50"))
LINGERING = line_of("/", "0 --linger 65 --slots 1")
MANNERLY = line_of("sleep ", "100 3,5,6")
DATABASES = ["sqlite", "mysql", "postgresql"]
SQLITE = "sqlite:///var/taskserver.db"

MINUTES, CROWD = 2, 5
TEXT = "Grüße, 世界 🎉"

TASKS = """
import os, resource, signal, subprocess, sys, time


def turn(number):
    note(f"{os.getpid()} {number}")


def hold(number):
    turn(number)
    while not (HERE / "go").exists():
        time.sleep(0.05)


def leave():
    os.kill(os.getpid(), signal.SIGTERM)


def look_around(text):
    print(text)
    sys.stdout.buffer.write(b"noise")
    subprocess.run(["echo", "noise"])
    note(" ".join(sorted(os.environ)))
    note(os.environ["PATH"])
    note(os.getcwd())
    note(text)


def show_manners():
    note(f"{time.time()} {os.nice(0)} {resource.getrlimit(resource.RLIMIT_AS)[0]}")
"""

NUMBERS = range(320)
"""Of tasks in eight groups, with three priorities."""


def group_of(number: int) -> int:
    return number % 8


def priority_of(number: int) -> int:
    return -number % 3


def in_order(*groups: int) -> list[int]:
    """The numbers of these groups, as they should run."""
    return sorted((n for n in NUMBERS if group_of(n) in groups), key=lambda n: (priority_of(n), n))


class Place:
    """A deployment of nobody's, whose paths stand in the lines of the crontab."""

    def __init__(self, cron: Cron, name: str, dsn: str) -> None:
        deployment = cron.deployment(name)
        self.folder = deployment.folder
        self.python = deployment.python
        self.worker = f"{self.python} {self.folder}/worker.py"
        self.queue = Queue(deployment, dsn, tasks=TASKS)

    def add(self, task: str, *args: object, group: int = 0) -> None:
        self.queue.add(f"tasks.{task}", json.dumps(args), group)

    def add_all_numbers(self) -> None:
        with TaskServer(self.queue.dsn, folder=self.folder) as server:
            server.add_tasks(
                {"task": "tasks.turn", "args": [n], "group_id": group_of(n), "priority": priority_of(n)}
                for n in NUMBERS
            )

    def command(self, example: str) -> str:
        """One of crontab.example, with the paths of this place."""
        return example.replace(THEIR_PYTHON, self.python).replace(THEIR_FOLDER, str(self.folder))

    def runs(self) -> list[list[int]]:
        """The numbers of each run's tasks, in order."""
        turns = [note.split() for note in self.queue.notes()]
        return [[int(number) for _, number in run] for _, run in groupby(turns, key=lambda turn: turn[0])]

    def exit_codes(self) -> list[str]:
        """Of the runs whose command was told to keep it."""
        path = self.folder / "codes"
        return path.read_text().split() if path.exists() else []

    def has_met_all_runs(self, runs: int) -> bool:
        """Whether so many began, and each either holds its first task or has left."""
        return len(self.queue.notes()) + len(self.exit_codes()) == runs


class Stage:
    """The places, and the crontab for them all."""

    def __init__(self, cron: Cron) -> None:
        self.cron = cron
        self.places: dict[str, Place] = {}
        self.lines: list[str] = []

    def place(self, name: str, dsn: str = SQLITE) -> Place:
        self.places[name] = Place(self.cron, name, dsn)
        return self.places[name]

    def each_minute(self, *commands: str) -> None:
        self.lines += [f"* * * * * {command}" for command in commands]

    def tick(self) -> None:
        """Stands first and last: once both lines have run, those between have been started."""
        self.each_minute(f"echo >>{self.cron.home}/ticks")

    def ticks(self) -> int:
        path = self.cron.home / "ticks"
        return len(path.read_text()) if path.exists() else 0


# ---- what happens in these minutes


def prepare_lines_of_the_example(stage: Stage, database: str, dsns: Iterator[str]) -> None:
    for name, example in {"hundred": HUNDRED, "five": FIVE, "all": ALL}.items():
        place = stage.place(f"{name}-{database}", next(dsns))
        place.add_all_numbers()
        stage.each_minute(place.command(example))


def prepare_crowd(stage: Stage) -> None:
    """Tasks that outlast the minute, for five runs at once with the usual number of slots."""
    place = stage.place("crowd")
    for number in range(12):
        place.add("hold", number, group=7)
    stage.each_minute(*[f"{place.worker} 0 7 --batch 1; echo $? >>{place.folder}/codes"] * CROWD)


def prepare_lingering(stage: Stage) -> None:
    place = stage.place("lingering")
    place.add("turn", 1)
    stage.each_minute(f"{place.command(LINGERING)}; echo $? >>{place.folder}/codes")


def prepare_surroundings(stage: Stage) -> None:
    place = stage.place("surroundings")
    place.add("look_around", TEXT, group=1)
    stage.each_minute(f"{place.worker} 1 1")


def prepare_manners(stage: Stage) -> None:
    place = stage.place("manners")
    place.add("show_manners", group=3)
    stage.each_minute(f"date +\\%s >>{place.folder}/starts", place.command(MANNERLY))


def prepare_traps(stage: Stage) -> None:
    place = stage.place("traps")
    (stage.cron.home / "python-of-mine").symlink_to(place.python)
    for group in range(1, 5):
        place.add("turn", group, group=group)
    stage.each_minute(
        f"{place.worker} 0 1 --verbose 2>>{place.folder}/log-$(date +\\%Y)",
        f"{place.worker} 0 2 --verbose 2>>{place.folder}/log-$(date +%Y)",
        f"python-of-mine {place.folder}/worker.py 0 3",
        f"{place.python} worker.py 0 4",
    )
    unset = stage.place("unset")
    (unset.folder / ".env").unlink()
    stage.each_minute(unset.worker)


def prepare_mail(stage: Stage) -> None:
    """Fatal tasks; each of these settings holds for the lines below it."""
    place = stage.place("fatal")
    for group in range(1, 5):
        place.add("größer", group, group=group)
        place.add("turn", group, group=group)
    stage.each_minute(f"{place.worker} 0 1")
    stage.lines.append("MAILTO=owner@example.org")
    stage.each_minute(f"{place.worker} 0 2")
    stage.lines.append('CONTENT_TYPE="text/plain; charset=utf-8"')
    stage.each_minute(f"{place.worker} 0 3")
    stage.lines.append('MAILTO=""')
    stage.each_minute(f"{place.worker} 0 4")


class Evidence(NamedTuple):
    """What two minutes of cron left behind."""

    places: dict[str, Place]
    mails: list[EmailMessage]
    left_at_once: list[str]
    """The exit codes of the runs that had left the crowded place while all others were still at their first task."""
    home: Path

    def mails_about(self, *words: object) -> list[EmailMessage]:
        """Those on commands with these words."""
        return [mail for mail in self.mails if all(str(word) in mail["Subject"] for word in words)]

    def line_mailed_about(self, *words: object) -> str:
        """The only line of the only mail."""
        (mail,) = self.mails_about(*words)
        (line,) = mail.get_content().splitlines()
        return str(line)


def watch(stage: Stage) -> Evidence:
    """Starts cron, lets its minutes pass, and then the crowd goes."""
    cron, crowd = stage.cron, stage.places["crowd"]
    cron.start("\n".join([*stage.lines, ""]))
    cron.wait_until(lambda: stage.ticks() == 2 * MINUTES)
    cron.start_nothing_more()
    cron.wait_until(lambda: crowd.has_met_all_runs(CROWD * MINUTES))
    left_at_once = crowd.exit_codes()
    crowd.queue.go()
    lingering = stage.places["lingering"]
    cron.wait_until(lingering.exit_codes)  # the worker of the first minute has handed over
    lingering.add("turn", 2)
    cron.wait_until(lambda: len(lingering.queue.notes()) == MINUTES)
    lingering.add("leave")
    cron.wait_until(cron.is_idle)
    return Evidence(stage.places, cron.mails(), left_at_once, cron.home)


@pytest.fixture(scope="session")
def _cron_can_run() -> None:
    """Of the scope of mysql_server, so that none is started in vain."""
    if reason := why_not():
        pytest.skip(reason)
    if missing := missing_programs():
        without(f"cron is not installed ({', '.join(missing)} not found)")
    if find_python() is None:
        without("no Python of 3.10 or newer was found that nobody may run (as Debian's python3)")


@pytest.fixture(scope="module")
def seen(_cron_can_run: None, mysql_server: MySQLServer, postgresql_server: PostgreSQLServer) -> Iterator[Evidence]:
    servers: dict[str, MySQLServer | PostgreSQLServer] = {"mysql": mysql_server, "postgresql": postgresql_server}
    with ExitStack() as stack:
        stage = Stage(stack.enter_context(Cron()))
        stage.tick()
        prepare_lines_of_the_example(stage, "sqlite", iter([SQLITE] * 3))
        for kind, server in servers.items():
            dsns = [server.dsn(stack.enter_context(server.database())) for _ in range(3)]
            prepare_lines_of_the_example(stage, kind, iter(dsns))
        prepare_crowd(stage)
        prepare_lingering(stage)
        prepare_surroundings(stage)
        prepare_manners(stage)
        prepare_traps(stage)
        prepare_mail(stage)
        stage.tick()
        yield watch(stage)


# ---- the lines of crontab.example


@pytest.mark.parametrize("database", DATABASES)
def test_each_line_of_the_example_takes_what_it_says_in_order_and_sends_no_mail(seen: Evidence, database: str) -> None:
    places = {name: seen.places[f"{name}-{database}"] for name in ("hundred", "five", "all")}
    of_three, of_one = in_order(3, 5, 6), in_order(3)
    assert places["hundred"].runs() == [of_three[:100], of_three[100:]]
    assert places["five"].runs() == [of_one[:5], of_one[5:10]]
    assert places["all"].runs() == [in_order(*range(8))]
    assert places["all"].queue.rows() == []
    assert [seen.mails_about(place.folder) for place in places.values()] == [[], [], []]


def test_a_worker_that_lingers_hands_over_to_that_of_the_next_minute(seen: Evidence) -> None:
    place = seen.places["lingering"]
    assert place.runs() == [[1], [2]]
    assert place.exit_codes() == ["0"] * MINUTES
    assert place.queue.reason() == "stopped"
    assert seen.mails_about(place.folder) == []


def test_the_line_with_manners_begins_at_a_second_of_the_account_and_takes_little(seen: Evidence) -> None:
    place = seen.places["manners"]
    (note,) = place.queue.notes()
    began_at, niceness, most_bytes = note.split()
    first_minute = min(map(int, (place.folder / "starts").read_text().split()))
    assert float(began_at) - first_minute > (NOBODY & 31) - 5  # the date's own line may begin late, the sleep not early
    assert int(niceness) == min(os.nice(0) + 10, 19)  # cron has that of these tests
    assert int(most_bytes) == 1_000_000 * 1024
    assert seen.mails_about(place.folder) == []


# ---- runs that overlap


def test_of_five_runs_in_one_minute_four_work_and_later_ones_leave_at_once(seen: Evidence) -> None:
    place = seen.places["crowd"]
    assert seen.left_at_once == ["0"] * 6
    turns = [note.split() for note in place.queue.notes()]
    assert len({run for run, _ in turns}) == 4
    assert sorted(int(number) for _, number in turns) == list(range(12))
    assert place.exit_codes() == ["0"] * 10
    assert seen.mails_about(place.folder) == []


# ---- what cron gives, and its traps


def test_tasks_find_the_environment_of_cron_and_their_text_unharmed(seen: Evidence) -> None:
    variables, path, folder, text = seen.places["surroundings"].queue.notes()
    assert {"HOME", "LOGNAME", "PATH", "SHELL"} <= set(variables.split())
    assert not {"USER", "LANG", "TZ", "VIRTUAL_ENV"} & set(variables.split())
    assert path == "/usr/bin:/bin"
    assert folder == str(seen.home)
    assert text == TEXT
    assert seen.mails_about(seen.places["surroundings"].folder) == []  # though it printed


def test_a_percent_sign_needs_a_backslash(seen: Evidence) -> None:
    place = seen.places["traps"]
    (log,) = place.folder.glob("log-*")
    assert re.fullmatch(r"log-\d{4}", log.name)
    assert [1] in place.runs()
    assert [2] not in place.runs()
    assert len(seen.mails_about(place.folder, "0 2")) == MINUTES


def test_mere_names_are_looked_for_in_crons_own_path_and_in_the_home_folder(seen: Evidence) -> None:
    place = seen.places["traps"]
    pythons, scripts = seen.mails_about("python-of-mine"), seen.mails_about(place.folder, "python worker.py 0 4")
    assert (len(pythons), len(scripts)) == (MINUTES, MINUTES)
    assert all("not found" in mail.get_content() for mail in pythons)
    assert all(f"{seen.home}/worker.py" in mail.get_content() for mail in scripts)
    assert [3] not in place.runs()


# ---- mail


def test_a_fatal_task_is_mailed_once_in_one_line_to_whom_mailto_names(seen: Evidence) -> None:
    place = seen.places["fatal"]
    assert "fatal" in seen.line_mailed_about(place.folder, "0 1")
    assert [mail["To"] for mail in seen.mails_about(place.folder, "0 1")] == ["nobody"]
    assert [mail["To"] for mail in seen.mails_about(place.folder, "0 2")] == ["owner@example.org"]
    assert "größer" not in seen.line_mailed_about(place.folder, "0 2")
    assert "größer" in seen.line_mailed_about(place.folder, "0 3")  # by its content type
    assert seen.mails_about(place.folder, "0 4") == []  # by an empty MAILTO
    assert [4] in place.runs()
    assert place.queue.statuses() == [4] * 4


def test_a_missing_setting_is_mailed_once_an_hour_in_one_line(seen: Evidence) -> None:
    mails = seen.mails_about(seen.places["unset"].folder)
    (mail,) = mails
    (line,) = mail.get_content().splitlines()
    assert "TASKSERVER_DSN" in line


# ---- the file itself


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
