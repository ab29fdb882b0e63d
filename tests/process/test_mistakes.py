"""Mistakes with files, and what a host does not give: what the programs answer, as processes."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.support.deployment import ROOT, Deployment
from tests.support.doctor import HEALTH, Report, made_healthy
from tests.support.processes import assert_one_line, assert_silent
from tests.support.queues import Queue
from tests.support.servers import find_program

SECRET = "s3cr3tOfTheShop"
DSN = f"mysql://you_shop:{SECRET}@localhost/you_shop"
SCRIPTS = ("worker.py", "client.py")
LETTER = "tasks.send_letter"
STATUS = ["client.py", "status"]
ADD = ["client.py", "add", LETTER, '["a"]']
INIT = ["client.py", "init"]
WORK = ["worker.py"]

TASKS = """
def rebuild_cache():
    note("rebuilt")
"""


def assert_told(ended: CompletedProcess[str], code: int, *words: str) -> None:
    """One line with these words, and no password in it."""
    assert_one_line(ended, code, *words)
    assert SECRET not in ended.stderr


@pytest.mark.parametrize("program", [WORK, STATUS], ids=SCRIPTS)
def test_a_wrong_env_or_line_is_answered_by_the_programs(deployment: Deployment, program: list[str]) -> None:
    folder = deployment.folder
    assert_told(deployment.run(*program), 2, f"{program[0]}: TASKSERVER_DSN is not set", f"{folder}/.env")
    deployment.write_env(f"TASKSERVER_DNS={DSN}\n")
    assert_told(deployment.run(*program), 2, f"{folder}/.env, line 1 has an unknown key; did you mean TASKSERVER_DSN?")
    assert_told(deployment.run(program[0], "3,5,6"), 2, program[0], "3,5,6")


def test_a_setup_that_fails_ends_the_worker_in_one_line_before_any_task(queue: Queue) -> None:
    queue.define("def broken():\n    raise ValueError('no\\nmail')\n")
    queue.add("tasks.rebuild_cache")
    words = "worker.py: TASKSERVER_SETUP: tasks:broken failed: ValueError: no (tasks.py, line "
    assert_one_line(queue.worker(TASKSERVER_SETUP="tasks:broken"), 2, words)
    assert queue.rows("status, attempts") == [(0, 0)]
    assert_silent(queue.worker())
    assert queue.notes() == ["rebuilt"]


def test_a_script_in_the_web_folder_says_where_it_belongs(deployment: Deployment) -> None:
    for script in SCRIPTS:
        ended = deployment.run(script, env={"GATEWAY_INTERFACE": "CGI/1.1"})
        assert_told(ended, 2, script, "not for a web server", "outside the web folder")


# ---- the tasks' files

FILES: dict[str, tuple[dict[str, str | bytes], tuple[str, ...]]] = {
    "mailer": ({}, ("no module mailer", "put mailer.py beside worker.py (SHOP/deployment)")),
    "unclosed": ({"unclosed.py": "x = 1\ndef f(:\n    pass\n"}, ("SyntaxError", "line 2")),
    "tabs": ({"tabs.py": "if 1:\n        x = 1\n\ty = 2\n"}, ("TabError", "(tabs.py, line 3)")),
    "buyer": (
        {"buyer.py": "import no_shop\n"},
        (
            "No module named 'no_shop' (buyer.py, line 1)",
            "if it is a file of yours, put no_shop.py beside worker.py; if it is a package, ",
            "install it for the Python that runs this",
            "-m pip install",
        ),
    ),
    "umlauts": ({"umlauts.py": "x = 'Grüße'\n".encode("latin-1")}, ("SyntaxError", "UTF-8 text")),
    "zeros": ({"zeros.py": "x = 1\n".encode("utf-16-le")}, ("as UTF-8 text",)),
    "options": (
        {"options.py": "import taskserver\n@taskserver.task(max_attempts=0)\ndef f(): pass\n"},
        ("SettingError: max_attempts is 0", "from 1 to"),
    ),
    "quitter": ({"quitter.py": "raise SystemExit(3)\n"}, ("SystemExit", "(quitter.py, line 1)")),
}
"""By the module that a row names: what lies there, and words of the answer."""


def test_files_that_cannot_be_imported_are_told_once_each_and_stop_no_other(deployment: Deployment, dsn: str) -> None:
    queue = Queue(deployment, dsn, TASKS, {"TASKSERVER_MODULES": ",".join(["tasks", *FILES])})
    for module, (files, _) in FILES.items():
        for name, content in files.items():
            (deployment.folder / name).parent.mkdir(exist_ok=True)
            (deployment.folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        for _ in range(3):
            queue.add(f"{module}.f")
            queue.add("tasks.rebuild_cache")
    ended = queue.worker()
    assert (ended.returncode, ended.stdout) == (0, "")
    assert queue.notes() == ["rebuilt"] * len(FILES) * 3
    assert queue.rows("status, attempts") == [(3, 1)] * len(FILES) * 3
    lines, errors = ended.stderr.splitlines(), queue.first_lines()
    assert len(lines) == len(FILES), ended.stderr
    for number, (_, words) in enumerate(FILES.values()):
        assert "once an hour" in lines[number]
        for told in (lines[number], *errors[3 * number : 3 * number + 3]):
            assert [word for word in words if word.replace("SHOP", str(deployment.folder.parent)) not in told] == [], (
                told
            )
    assert all(error.startswith("ModuleBroken: ") for error in errors)
    queue.end_backoffs()
    assert queue.worker().stderr == ""


# ---- an upload that was cut off


def cut(file: str, length: int) -> Callable[[Path], None]:
    def do(folder: Path) -> None:
        content = (folder / file).read_bytes()[:length]
        (folder / file).unlink()  # other deployments have the same file
        (folder / file).write_bytes(content)

    return do


PROGRAMS = "taskserver/messages/programs.py"
CUT = {
    "server.py": (cut("taskserver/server.py", 100), "taskserver/server.py"),
    "TaskServer": (cut("taskserver/server.py", 0), "cannot import name 'TaskServer'"),
    "a word": (cut(PROGRAMS, (ROOT / PROGRAMS).read_text().index("os.path") + len("os.pa")), "no attribute 'pa'"),
    "settings": (lambda folder: shutil.rmtree(folder / "taskserver" / "settings"), "'taskserver.settings'"),
    "taskserver": (lambda folder: shutil.rmtree(folder / "taskserver"), "'taskserver'"),
}


@pytest.mark.parametrize("what", CUT)
def test_a_program_of_which_a_part_is_missing_says_so_in_one_line(deployment: Deployment, what: str) -> None:
    do, words = CUT[what]
    do(deployment.folder)
    for script in SCRIPTS:
        ended = deployment.run(script, *(["doctor"] if script == "client.py" else []))
        assert_one_line(ended, 2, script, "the program is not whole", words, "upload the folder again")


def test_a_part_that_is_missed_later_is_told_in_the_same_words(queue: Queue) -> None:
    cut("taskserver/health/doctor.py", 50)(queue.folder)
    ended = queue.client("doctor")
    assert_one_line(ended, 1, "this program is not whole (upload the folder again)", "doctor.py")


@pytest.mark.parametrize("is_bundle", [True, False])
def test_a_package_that_a_bundle_lost_is_uploaded_again_and_no_environment_made(
    deployment: Deployment, is_bundle: bool
) -> None:
    python = deployment.home / "python"
    python.write_text(f'#!/bin/sh\nexec {deployment.python} -S "$@"\n')
    python.chmod(0o700)
    deployment.python = str(python)
    if is_bundle:
        (deployment.folder / "START-HERE.txt").touch()
    missing = deployment.client("status", env={"TASKSERVER_DSN": DSN})
    deployment.write_env(TASKSERVER_DSN=DSN)
    for ended, package in ((missing, "pymysql"), (deployment.client("status"), "dotenv")):
        fix = f"the folder {deployment.folder / package} is missing, or not whole: upload it again"
        assert_one_line(ended, 1 if ended is missing else 2, fix if is_bundle else "python3 -m venv .venv")
        assert ("venv" in ended.stderr) is not is_bundle


@pytest.mark.usefixtures("bound_by_rights")
def test_a_file_that_this_user_may_not_read_is_told(queue: Queue) -> None:
    (queue.folder / "tasks.py").chmod(0)
    queue.add("tasks.rebuild_cache")
    words = "module tasks cannot be imported: PermissionError", "let this user read it"
    assert_told(queue.worker(), 0, *words)


# ---- files, folders and disks


RIGHTS = {
    "may not write the folder": (".", 0o500, INIT, 2, (".env cannot be written", "right to write")),
    "may not read .env": (".env", 0o000, STATUS, 2, (".env cannot be read", "readable for the user")),
    "may not write var/": ("var", 0o500, WORK, 2, ("var/slots", "writable", "--slots 0")),
    "may not write the database": ("shop.db", 0o400, ADD, 1, ("shop.db", "readonly", "let this user write")),
    "may not read the database": ("shop.db", 0o000, STATUS, 1, ("shop.db", "unable to open", "let this user read")),
}
"""By what this user may not do: a path in the folder, its rights, a command, the code and words of its answer."""


@pytest.mark.usefixtures("bound_by_rights")
@pytest.mark.parametrize("what", RIGHTS)
def test_what_this_user_may_not_do_is_answered_with_who_should(deployment: Deployment, what: str) -> None:
    name, rights, command, code, words = RIGHTS[what]
    if name != ".":
        deployment.write_env(TASKSERVER_DSN="sqlite:///shop.db")
        assert deployment.here("init").returncode == 0
    path = deployment.folder / name
    path.chmod(rights)
    try:
        assert_told(deployment.run(*command), code, *words)
    finally:
        path.chmod(0o700)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder to another user")
def test_a_var_of_another_user_is_told(deployment: Deployment) -> None:
    setpriv = find_program("setpriv")
    if setpriv is None:
        pytest.skip("setpriv of util-linux is needed to give up root's rights")
    dropped = "-dac_override,-dac_read_search,-fowner"
    deployment.wrap_python([setpriv, f"--inh-caps={dropped}", f"--bounding-set={dropped}"])
    deployment.write_env(TASKSERVER_DSN="sqlite:///shop.db")
    (deployment.folder / "var").mkdir(mode=0o755)
    os.chown(deployment.folder / "var", 65534, 65534)
    assert_told(deployment.client("init"), 2, "var cannot be made", "this user", "another's")


def test_a_quota_that_is_used_up_is_told(make_queue: Callable[..., Queue], sqlite_dsn: str) -> None:
    prlimit = find_program("prlimit")
    if prlimit is None:
        pytest.skip("prlimit of util-linux is needed")
    queue = make_queue(sqlite_dsn)
    queue.deployment.wrap_python([prlimit, f"--fsize={queue.path.stat().st_size}"])
    ended = queue.client("add", "--bulk", "-", stdin=f'{{"task": "{LETTER}", "args": ["{"x" * 500_000}"]}}')
    assert_told(ended, 1, str(queue.path), "quota")
    assert queue.rows() == []


HOGS = """
import os, resource
from taskserver import task

kept = []

resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

def leaks_files(left):
    try:
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        if left == "raises":
            raise
    for _ in range(left):
        os.close(kept.pop())

def opens():
    for _ in range(10):
        kept.append(open(__file__))

def leaks_memory():
    resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000))
    for size in (10**7, 10**5, 10**3, 100, 10):
        try:
            while True:
                kept.append(bytearray(size))
        except MemoryError:
            pass

@task(transactional=True)
def second():
    pass
"""


def test_the_memory_of_a_host_that_a_task_uses_up_is_told_in_one_line(queue: Queue) -> None:
    queue.deployment.write_tasks(HOGS)
    for name in ("leaks_memory", "second"):
        queue.add(f"tasks.{name}")
    assert_told(queue.worker(), 1, "No memory: the host lets a program have no more of that")
    ended = queue.worker()  # without any memory the one before could not write its end
    was_cut_off = r"process \d+ ended while it ran task 1 tasks\.leaks_memory: .*\n"
    assert (ended.returncode, ended.stdout, re.sub(was_cut_off, "", ended.stderr)) == (0, "", "")


@pytest.mark.parametrize("left", [0, 5, "raises"])
@pytest.mark.parametrize("task", ["opens", "second"])
def test_open_files_that_a_task_uses_up_end_the_run_before_the_next_task(
    queue: Queue, left: int | str, task: str
) -> None:
    queue.deployment.write_tasks(HOGS)
    queue.add("tasks.leaks_files", json.dumps([left]))
    for _ in range(3):
        queue.add(f"tasks.{task}")
    assert_told(queue.worker(), 1, "Too many open files: ", *["(tasks.leaks_files ran last)"] * (task == "opens"))
    hogs = [(3, 1)] * (left == "raises")
    assert queue.rows("status, attempts") == [*hogs, *[(0, 0)] * 3]
    assert_silent(queue.worker())
    assert queue.rows("status, attempts") == hogs


OF_DOCTOR: dict[str, tuple[str, int, str, str, str]] = {
    "a folder that cannot be written to": ("var", 0o500, "var", "critical", "PATH"),
    "a log that cannot be written": ("logs", 0o500, "log", "critical", "PATH"),
    "a log that cannot be rotated": ("with_log", 0o500, "log", "warning", "its folder PATH cannot be written"),
    "a folder of the database that may not be entered": ("data", 0o000, "files", "critical", "PATH"),
}
"""By what is wrong: a path in the folder, its rights, and the check that finds it, its level, its words."""


@pytest.mark.usefixtures("bound_by_rights")
@pytest.mark.parametrize("what", OF_DOCTOR)
def test_the_doctor_finds_what_this_user_may_not_do(sqlite_queue: Queue, what: str) -> None:
    made_healthy(sqlite_queue)
    name, rights, check, level, words = OF_DOCTOR[what]
    path = sqlite_queue.folder / name
    path.mkdir(mode=0o700, exist_ok=True)
    if name == "with_log":
        (path / "worker.log").touch(mode=0o600)
    settings = {"TASKSERVER_LOG": f"{name}/worker.log"} if check == "log" else {}
    dsn = "sqlite:///data/queue.db" if check == "files" else sqlite_queue.dsn
    sqlite_queue.deployment.write_env(TASKSERVER_DSN=dsn, **settings)
    path.chmod(rights)
    report = Report(sqlite_queue, by_process=True)
    path.chmod(0o700)
    assert (report.code, report.checks[check]["level"]) == (HEALTH[level], level)
    assert words.replace("PATH", str(path)) in report.told(check)
