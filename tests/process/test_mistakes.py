"""Mistakes with files, and what a host does not give: what the programs answer, as processes."""

from __future__ import annotations

import compileall
import re
import shutil
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from taskserver.host.once_an_hour import OVER
from tests.support.deployment import Deployment
from tests.support.printed import Report, made_healthy
from tests.support.processes import assert_one_line, assert_silent
from tests.support.queues import Queue

SECRET = "s3cr3tOfTheShop"
DSN = f"mysql://you_shop:{SECRET}@localhost/you_shop"
SCRIPTS = ("worker.py", "client.py")
LETTER = "tasks.send_letter"
STATUS = ["client.py", "status"]
ADD = ["client.py", "add", LETTER, '["a"]']
INIT = ["client.py", "init"]

TASKS = """
def rebuild_cache():
    note("rebuilt")
"""


def test_a_wrong_env_or_line_is_answered_by_the_programs(deployment: Deployment) -> None:
    env = deployment.folder / ".env"
    for program in (["worker.py"], ["client.py", "status"]):
        assert_one_line(deployment.run(*program), 2, f"{program[0]}: TASKSERVER_DSN is not set", str(env))
    deployment.write_env(f"TASKSERVER_DNS={DSN}\n")
    assert_one_line(
        deployment.worker(), 2, f"worker.py: {env}, line 1 has an unknown key; did you mean TASKSERVER_DSN?"
    )
    assert_one_line(deployment.worker("3,5,6"), 2, "worker.py: argument MAX_TASKS: '3,5,6'")


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
        assert_one_line(ended, 2, script, "not for a web server", "outside the web folder")


# ---- the tasks' files

FILES: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "mailer": (None, ("no module mailer", "put mailer.py beside worker.py (SHOP/deployment)")),
    "unclosed": ("x = 1\ndef f(:\n    pass\n", ("SyntaxError", "line 2")),
    "buyer": (
        "import no_shop\n",
        (
            "No module named 'no_shop' (buyer.py, line 1)",
            "if it is a file of yours, put no_shop.py beside worker.py; if it is a package, ",
            "install it for the Python that runs this",
            "-m pip install",
        ),
    ),
    "quitter": ("raise SystemExit(3)\n", ("SystemExit", "(quitter.py, line 1)")),
}
"""By the module that a row names: what lies there, and words of the answer."""


def test_files_that_cannot_be_imported_are_reported_once_each_and_stop_no_other(queue: Queue) -> None:
    for module, (text, _) in FILES.items():
        if text is not None:
            queue.deployment.write_tasks(text, f"{module}.py")
        for _ in range(3):
            queue.add(f"{module}.f")
            queue.add("tasks.rebuild_cache")
    modules = {"TASKSERVER_MODULES": ",".join(["tasks", *FILES])}
    ended = queue.worker(**modules)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert queue.notes() == ["rebuilt"] * len(FILES) * 3
    assert queue.rows("status, attempts") == [(3, 1)] * len(FILES) * 3
    lines, errors = ended.stderr.splitlines(), queue.first_lines()
    assert len(lines) == len(FILES), ended.stderr
    for number, (_, words) in enumerate(FILES.values()):
        assert "once an hour" in lines[number]
        for line in (lines[number], *errors[3 * number : 3 * number + 3]):
            for word in words:
                assert word.replace("SHOP", str(queue.folder.parent)) in line
    assert all(error.startswith("ModuleBroken: ") for error in errors)
    queue.end_backoffs()
    assert_silent(queue.worker(**modules))


# ---- an upload that was cut off


def cut(folder: Path, file: str, length: int) -> None:
    content = (folder / file).read_bytes()[:length]
    (folder / file).unlink()  # other deployments have the same file
    (folder / file).write_bytes(content)


def test_a_program_of_which_a_part_is_missing_says_so_in_one_line(deployment: Deployment) -> None:
    words = ("the program is not whole", "upload the folder again")
    (deployment.folder / "taskserver" / "cli" / "client.py").unlink()
    assert_one_line(deployment.client("doctor"), 2, "client.py", "'taskserver.cli.client'", *words)
    cut(deployment.folder, "taskserver/server.py", 100)
    assert_one_line(deployment.worker(), 2, "worker.py", "taskserver/server.py", *words)


def test_a_part_that_is_missed_later_is_reported_in_the_same_words(queue: Queue) -> None:
    cut(queue.folder, "taskserver/health/doctor.py", 50)
    ended = queue.client("doctor")
    assert_one_line(ended, 1, "this program is incomplete (upload the folder again)", "doctor.py")


def test_what_python_compiled_onto_a_full_disk_is_named_with_the_way_out(queue: Queue) -> None:
    words = "a full disk cut off what Python compiled: delete all folders __pycache__"
    queue.add("shop.f")
    queue.deployment.write_tasks("def f(): ...\n", "shop.py")
    compileall.compile_dir(queue.folder, quiet=2)

    def cut_compiled(name: str) -> None:
        cut(queue.folder, cache_from_source(name), 100)

    cut_compiled("shop.py")
    ended = queue.worker(TASKSERVER_MODULES="shop")
    assert f"module shop cannot be imported: EOFError: marshal data too short: {words}" in ended.stderr
    cut_compiled("taskserver/health/doctor.py")
    assert_one_line(queue.client("doctor"), 1, f"client.py: {words}")
    for script in SCRIPTS:
        cut_compiled(f"taskserver/cli/{script}")
        assert_one_line(queue.deployment.run(script, "0"), 2, f"{script}: {words}")
    for cache in queue.folder.rglob("__pycache__"):
        shutil.rmtree(cache)
    assert_silent(queue.worker())


def test_a_missing_package_is_installed_and_one_of_a_bundle_uploaded_again(deployment: Deployment) -> None:
    python = deployment.home / "python"
    python.write_text(f'#!/bin/sh\nexec {deployment.python} -S "$@"\n')
    python.chmod(0o700)
    deployment.python = str(python)
    assert_one_line(deployment.client("status", env={"TASKSERVER_DSN": DSN}), 1, "python3 -m venv .venv")
    (deployment.folder / "START-HERE.txt").touch()
    deployment.write_env(TASKSERVER_DSN=DSN)
    ended = deployment.client("status")
    assert_one_line(ended, 2, f"the folder {deployment.folder}/dotenv is missing or incomplete: upload it again")
    assert "venv" not in ended.stderr


# ---- files, folders and disks


RIGHTS = {
    "may not write the folder": (".", 0o500, INIT, 2, (".env cannot be written", "right to write")),
    "may not read .env": (".env", 0o000, STATUS, 2, (".env cannot be read", "readable for the user")),
    "may not write the database": ("shop.db", 0o400, ADD, 1, ("shop.db", "readonly", "let this user write")),
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
        assert_one_line(deployment.run(*command), code, *words)
    finally:
        path.chmod(0o700)


HOGS = """
import os, resource

kept = []

def leak_files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    try:
        while True:
            kept.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass

def leak_memory():
    resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000))
    for size in (10**7, 10**5, 10**3, 100, 10):
        try:
            while True:
                kept.append(bytearray(size))
        except MemoryError:
            pass

def read():
    open(__file__).close()
"""


def test_memory_that_a_task_uses_up_is_reported_in_one_line(queue: Queue) -> None:
    queue.define(HOGS)
    for name in ("leak_memory", "read"):
        queue.add(f"tasks.{name}")
    assert_one_line(queue.worker(), 1, "No memory: the host lets a program have no more of that")
    ended = queue.worker()  # without any memory the one before could not write its end
    was_cut_off = r"process \d+ ended while it ran task 1 tasks\.leak_memory: .*\n"
    assert (ended.returncode, ended.stdout, re.sub(was_cut_off, "", ended.stderr)) == (0, "", "")


def test_open_files_that_a_task_uses_up_end_the_run_before_the_next_task(queue: Queue) -> None:
    queue.define(HOGS)
    for name in ("leak_files", "read", "read"):
        queue.add(f"tasks.{name}")
    assert_one_line(queue.worker(), 1, "Too many open files: ", "(tasks.leak_files ran last)")
    assert queue.rows("status, attempts") == [(0, 0)] * 2
    assert_silent(queue.worker())
    assert queue.rows() == []


@pytest.mark.usefixtures("bound_by_rights")
def test_the_doctor_finds_folders_that_this_user_may_not_write(sqlite_queue: Queue) -> None:
    made_healthy(sqlite_queue)
    sqlite_queue.deployment.write_env(TASKSERVER_DSN=sqlite_queue.dsn, TASKSERVER_LOG="log/worker.log")
    paths = {name: sqlite_queue.folder / name for name in ("var", "log")}
    for path in paths.values():
        path.mkdir(exist_ok=True)
        path.chmod(0o500)
    report = Report(sqlite_queue, by_process=True)
    for name, path in paths.items():
        path.chmod(0o700)
        assert (report.code, report.checks[name]["level"]) == (2, "critical")
        assert str(path) in report.told(name)


# ---- once an hour: tests/unit/test_host.py has the notes and their times

AWAY = "mysql://user:secret@127.0.0.1:1/shop"


@pytest.fixture
def site(deployment: Deployment) -> Deployment:
    deployment.write_tasks("")
    deployment.write_env(TASKSERVER_DSN="sqlite:///q.db")
    assert deployment.here("init").returncode == 0
    (deployment.folder / "var").mkdir(exist_ok=True)
    return deployment


def test_a_database_that_is_away_is_reported_once_an_hour_whatever_the_number_of_workers(site: Deployment) -> None:
    env = {"TASKSERVER_DSN": AWAY, "TASKSERVER_LOG": "var/log"}
    first, second, verbose = [site.worker(*line, env=env) for line in (["--processes", "2"], [], ["--verbose"])]
    assert [one.returncode for one in (first, second, verbose)] == [1] * 3
    assert re.fullmatch(r"worker\.py: 127\.0\.0\.1:1/shop: Can't connect .*\(said once an hour\)\n", first.stderr)
    assert second.stderr == ""
    assert len(verbose.stderr.splitlines()) == 2  # the first names the deployment
    assert (site.folder / "var/log").read_text().count("ERROR 127.0.0.1:1/shop: Can't connect") >= 3


def test_the_end_of_an_outage_is_reported_once(site: Deployment) -> None:
    (site.folder / "q.db").rename(site.folder / "gone.db")
    assert "run client.py init" in site.worker().stderr
    site.age_outages(600)
    assert site.worker().stderr == ""
    (site.folder / "gone.db").rename(site.folder / "q.db")
    assert [site.worker().stderr for _ in range(2)] == [f"worker.py: {OVER}\n", ""]


@pytest.mark.parametrize("words", ["TASKSERVER_MODE is wrong", "module tasks cannot be imported: SyntaxError"])
def test_code_and_settings_that_are_wrong_are_reported_once_an_hour(site: Deployment, words: str) -> None:
    env = {"TASKSERVER_MODE": "keep"} if "MODE" in words else {}
    site.write_tasks("" if env else "def")
    for _ in range(3):
        assert site.here("add", "tasks.send").returncode == 0
    first, second = [site.worker(env=env) for _ in range(2)]
    assert_one_line(first, 2 if env else 0, words, " (said once an hour)")
    assert (second.returncode, second.stderr) == (first.returncode, "")
