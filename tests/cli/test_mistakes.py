"""What a person does who never used a queue, and what the programs answer: what is wrong, and the mend.

An answer is one line on standard error with an exit code, or the first line of a row's error_text; never a traceback,
and never the password. Mistakes that need no database are in tests/unit: test_command_lines, test_env_mistakes.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from taskserver import TaskServer
from taskserver.stores.words import SCHEMA_VERSION
from tests.support.deployment import ROOT, Deployment
from tests.support.processes import assert_one_line, assert_silent
from tests.support.queues import Queue
from tests.support.servers import MySQLServer, find_program, free_port

SECRET = "s3cr3tOfTheShop"
DSN = f"mysql://you_shop:{SECRET}@localhost/you_shop"
SCRIPTS = ("worker.py", "client.py")
LETTER = "tasks.send_letter"
STATUS = ["client.py", "status"]
ADD = ["client.py", "add", LETTER, '["a"]']
INIT = ["client.py", "init"]
WORK = ["worker.py"]

TASKS = """
import os
import re
from json import dumps


def send_letter(to, subject="Hello", copies=1):
    note(to)


def rebuild_cache():
    note("rebuilt")


def _forget():
    note("never")


def fetch():
    yield note("never")


class Letter:
    @staticmethod
    def post(to):
        note(to)

    def read(self):
        note("never")
"""


def assert_told(ended: CompletedProcess[str], code: int, *words: str) -> None:
    """One line with these words, and no password in it."""
    assert_one_line(ended, code, *words)
    assert SECRET not in ended.stderr


def run(deployment: Deployment, script: str, *arguments: str) -> CompletedProcess[str]:
    """A worker as a process; a client inside this one."""
    if script == "worker.py":
        return deployment.worker(*arguments)
    return deployment.here(*arguments)


@pytest.fixture
def shop(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    """Whose folder is called taskserver, beside a home folder, which is the current one."""
    deployment.folder = deployment.folder.rename(deployment.folder.parent / "taskserver")
    monkeypatch.chdir(deployment.home)
    return deployment


@pytest.mark.parametrize("program", [WORK, STATUS], ids=SCRIPTS)
def test_a_wrong_env_is_answered_by_the_programs(shop: Deployment, program: list[str]) -> None:
    assert_told(shop.run(*program), 2, f"{program[0]}: TASKSERVER_DSN is not set", f"{shop.folder}/.env")
    (shop.folder / "env").write_text(f"TASKSERVER_DSN={DSN}\n")
    assert_told(shop.run(*program), 2, f"{shop.folder}/env is not read: rename it to .env")
    shop.write_env(f"TASKSERVER_DNS={DSN}\n")
    assert_told(shop.run(*program), 2, f"{shop.folder}/.env, line 1 has an unknown key; did you mean TASKSERVER_DSN?")


@pytest.mark.parametrize("line", [["worker.py", "3,5,6"], ["client.py", "add", LETTER, "{to:", "a}"]])
def test_a_wrong_line_is_answered_by_the_programs(deployment: Deployment, line: list[str]) -> None:
    assert_told(deployment.run(*line), 2, line[0], line[-1])
    assert not (deployment.folder / ".env").exists()


# ---- rows

MODULES = "none of the modules that may run: tasks"
MEANT = "did you mean 'tasks.send_letter'?"
THERE = "there is note, send_letter"
TAKES = "(to, subject=…, copies=…)"

ROWS: list[tuple[str, str | None, tuple[str, ...]]] = [
    ("send_letter", None, ("none of the modules", MEANT)),
    ("tasks", None, ("none of the modules", "tasks.function")),
    ("tasks.send_leter", None, ("has no 'send_leter'", "did you mean 'send_letter'?")),
    ("taks.send_letter", None, ("TASKSERVER_MODULES", MEANT)),
    ("TASKS.send_letter", None, ("none of the modules", MEANT)),
    ("tasks.zzz", None, ("no 'zzz'", f"{THERE}, rebuild_cache")),
    ("tasks._forget", None, ("underscore", "rename it")),
    ("tasks.Letter", None, ("is a class", "static and class methods")),
    ("tasks.Letter.read", None, ("is a plain function inside a class", "@staticmethod")),
    ("tasks.Letter.pots", None, ("no method 'pots'", "did you mean 'post'?")),
    ("tasks.Leter.post", None, ("no 'Leter'", "did you mean 'Letter'?")),
    ("tasks.dumps", None, ("comes from json", "define a function there")),
    ("tasks.fetch", None, ("generator", "a plain function that runs it")),
    ("mailing.send", None, (f"{MODULES} (TASKSERVER_MODULES)",)),
    (LETTER, "{'to': 'a'}", ("not valid JSON", "json_encode()")),
    (LETTER, "", ("args is empty", "JSON_THROW_ON_ERROR")),
    (LETTER, '"{\\"to\\": \\"a\\"}"', ("encoded twice", "encode it once")),
    (LETTER, '"a"', ("a bare string", '["text"]')),
    (LETTER, '{"to": "a", "subjct": "b"}', (TAKES, "unexpected keyword argument 'subjct'")),
    (LETTER, None, (TAKES, "missing a required argument: 'to'")),
    (LETTER, '{"email": 1}', (TAKES, "missing a required argument: 'to'; and it takes no 'email'")),
    (LETTER, '["a", "b", 1, 2]', (TAKES, "too many positional")),
    (LETTER, f'["{"x" * 1024 * 1024}"]', ("1048580 bytes", "allowed: 1048576", "elsewhere")),
]


def test_a_wrong_row_is_fatal_with_what_is_wrong_and_its_mend(queue: Queue) -> None:
    for task, args, _ in ROWS:
        queue.add(task, args)
    queue.add(LETTER, '["good"]')
    ended = queue.worker()
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "Traceback" not in ended.stderr
    assert queue.notes() == ["good"]
    assert set(queue.rows("status, attempts, claim, due_at")) == {(4, 0, None, None)}
    wrong = [
        (task, str(args)[:80], answer)
        for (task, args, words), answer in zip(ROWS, queue.first_lines(), strict=True)
        if not answer.startswith("BadTask: ")
        or not all(word in answer for word in words)
        or ("_forget" in answer and task != "tasks._forget")
    ]
    assert wrong == []


# ---- the tasks' files

FILES: dict[str, tuple[dict[str, str | bytes], tuple[str, ...]]] = {
    "mailer": ({}, ("no module mailer", "put mailer.py beside worker.py (SHOP/taskserver)")),
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


def test_files_that_cannot_be_imported_are_told_once_each_and_stop_no_other(shop: Deployment, sqlite_dsn: str) -> None:
    queue = Queue(shop, sqlite_dsn, TASKS, {"TASKSERVER_MODULES": ",".join(["tasks", *FILES])})
    for module, (files, _) in FILES.items():
        for name, content in files.items():
            (shop.folder / name).parent.mkdir(exist_ok=True)
            (shop.folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
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
            assert [word for word in words if word.replace("SHOP", str(shop.folder.parent)) not in told] == [], told
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


def test_a_part_that_is_missed_later_is_told_in_the_same_words(sqlite_queue: Queue) -> None:
    cut("taskserver/health/doctor.py", 50)(sqlite_queue.folder)
    ended = sqlite_queue.client("doctor")
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
        mend = f"the folder {deployment.folder / package} is missing, or not whole: upload it again"
        assert_one_line(ended, 1 if ended is missing else 2, mend if is_bundle else "python3 -m venv .venv")
        assert ("venv" in ended.stderr) is not is_bundle


@pytest.mark.usefixtures("bound_by_rights")
def test_a_file_that_this_user_may_not_read_is_told(sqlite_queue: Queue) -> None:
    (sqlite_queue.folder / "tasks.py").chmod(0)
    sqlite_queue.add("tasks.rebuild_cache")
    words = "module tasks cannot be imported: PermissionError", "let this user read it"
    assert_told(sqlite_queue.worker(), 0, *words)


# ---- the tables

FOREIGN = ("was not made by taskserver", "choose another TASKSERVER_TABLE")
TABLES = {
    "ran no init": (
        ["DROP TABLE jobs_queue_schema", "DROP TABLE jobs_queue"], STATUS, ("run client.py init",),
    ),
    "loaded half of the tables": (["DROP TABLE jobs_queue_schema"], WORK, ("run client.py init",)),
    "loaded the other half": (
        ["DROP TABLE jobs_queue"], ADD, ("has no tables of jobs_queue", "run client.py init"),
    ),
    "uploaded a newer program over it": (
        ["ALTER TABLE jobs_queue_workers DROP COLUMN previous_started_at", "UPDATE jobs_queue_schema SET version = 1"],
        STATUS,
        (f"have version 1, this program needs {SCHEMA_VERSION}: run client.py init",),
    ),
    "uploaded an older program over it": (
        ["UPDATE jobs_queue_schema SET version = 99"], WORK, ("version 99", "upload the newer taskserver"),
    ),
    "made its table with a column missing": (
        ["DROP TABLE jobs_queue", "CREATE TABLE jobs_queue (id INTEGER PRIMARY KEY, task VARCHAR(255))"], ADD, FOREIGN,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("statements", "command", "words"), TABLES.values(), ids=TABLES)
def test_wrong_tables_are_answered_with_what_to_do(
    queue: Queue, statements: list[str], command: list[str], words: tuple[str, ...]
) -> None:
    for statement in statements:
        queue.sql(statement)
    assert_told(run(queue.deployment, *command), 1, *words)


def test_a_letter_that_a_column_of_latin1_lacks_names_the_column_and_its_mend(mysql_queue: Queue) -> None:
    mysql_queue.sql("ALTER TABLE jobs_queue MODIFY task VARCHAR(255) CHARACTER SET latin1 NOT NULL")
    ended = mysql_queue.here("add", "tasks.\N{GREEK SMALL LETTER OMEGA}")
    assert_told(ended, 1, "column", "task", "character set of schema.sql")


def test_a_dump_that_was_loaded_in_part_leaves_no_counter_of_ids_and_is_told(mysql_queue: Queue) -> None:
    mysql_queue.sql("ALTER TABLE jobs_queue MODIFY id BIGINT UNSIGNED NOT NULL")  # phpMyAdmin's dumps add it last
    assert_told(mysql_queue.here("add", LETTER), 1, "'id'", "client.py init")


# ---- the server


@contextmanager
def account(server: MySQLServer, grant: str = "", limits: str = "") -> Iterator[str]:
    """A user with some rights; its name."""
    name = f"m_{secrets.token_hex(4)}"
    server.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{SECRET}' {limits}")
    try:
        if grant:
            server.execute(f"GRANT {grant} TO '{name}'@'%'")
        server.meet(name, SECRET)
        yield name
    finally:
        server.execute(f"DROP USER '{name}'@'%'")


def dsn_of(server: MySQLServer, login: str, database: str) -> str:
    return f"mysql://{login}@{server.host}:{server.port}/{database}"


PREFIX = ("account's name before it", "you_shop")
SERVERS = {
    "wrote a wrong password": ("", "USER:SECRETx", "DB", STATUS, ("1045", "TASKSERVER_PASSWORD", "single quotes")),
    "forgot the panel's prefix": ("", "shop:SECRET", "DB", STATUS, ("1045", *PREFIX)),
    "made no database": ("CREATE ON *.*", "USER:SECRET", "t_none", INIT, ("t_none", "1049", "create it in")),
    "did not add the user to it": ("", "USER:SECRET", "DB", INIT, ("1044", "grant this user rights on it", "panel")),
    "gave no right to create tables": (
        *("SELECT, INSERT, UPDATE ON `DB`.*", "USER:SECRET", "DB"), INIT, ("CREATE", "1142", "grant", "client.py init"),
    ),
    "gave the worker the web's user": (
        *("INSERT ON `DB`.jobs_queue", "USER:SECRET", "DB"), WORK, ("SELECT", "1142", "grant", "UPDATE"),
    ),
}  # fmt: skip
"""By what a person did: the rights of an account, login and database of that person, a command, and its answer."""


@pytest.mark.parametrize("what", SERVERS)
def test_what_a_server_refuses_is_answered_with_its_mend(
    shop: Deployment, mysql_server: MySQLServer, mysql_dsn: str, what: str
) -> None:
    grant, login, name, command, words = SERVERS[what]
    database = mysql_dsn.rpartition("/")[2]
    if "jobs_queue" in grant:
        with TaskServer(mysql_dsn) as owner:
            owner.create_tables()
    with account(mysql_server, grant.replace("DB", database)) as user:
        login = login.replace("USER", user).replace("SECRET", SECRET)
        place = dsn_of(mysql_server, login, name.replace("DB", database))
        shop.write_env(TASKSERVER_DSN=place, TASKSERVER_DB_PATIENCE=0)
        if "1045" in words and mysql_server.execute("SHOW VARIABLES LIKE 'caching_sha2_password%'"):
            words = ("2061", "TASKSERVER_PASSWORD")  # it asks for a wrong password itself before it refuses it
        assert_told(run(shop, *command), 1, *words)


AN_HOUR = ("(1226)", "a limit per hour ends with the hour", "*/5")
LIMITS = {
    "USER_CONNECTIONS": ("max_user_connections", "--slots", "ask your host"),
    "QUERIES_PER_HOUR": AN_HOUR,
    "CONNECTIONS_PER_HOUR": AN_HOUR,
}


@pytest.mark.parametrize("limit", LIMITS)
def test_an_account_that_has_used_up_what_it_may_have_is_told_what_to_do(
    shop: Deployment, mysql_server: MySQLServer, mysql_dsn: str, limit: str
) -> None:
    database = mysql_dsn.rpartition("/")[2]
    with account(mysql_server, f"ALL ON `{database}`.*", f"WITH MAX_{limit} 1") as user, ExitStack() as held:
        if limit == "USER_CONNECTIONS":
            held.enter_context(mysql_server.connect(user=user, password=SECRET))
        shop.write_env(TASKSERVER_DSN=dsn_of(mysql_server, f"{user}:{SECRET}", database), TASKSERVER_DB_PATIENCE=0)
        assert_told([run(shop, *ADD) for _ in range(3)][-1], 1, *LIMITS[limit])


@contextmanager
def saying(words: bytes) -> Iterator[int]:
    """A port of a program that says this to whoever comes, and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    visitor = listening.accept()[0]
                    visitor.sendall(words)
                    visitor.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def refusal(number: int, text: str) -> bytes:
    """What a MySQL server says that greets nobody from here."""
    body = b"\xff" + number.to_bytes(2, "little") + text.encode()
    return len(body).to_bytes(3, "little") + b"\0" + body


HERE = "127.0.0.1:PORT"
STRANGERS: dict[str, tuple[bytes | None, str, tuple[str, ...]]] = {
    "named the panel's port": (b"HTTP/1.1 400 Bad Request\r\n\r\n", HERE, (HERE, "is that a MySQL server?", "3306")),
    "named a port that hangs up": (b"", HERE, (HERE, "does the server run?", "check host and port")),
    "is not let in from this machine": (
        refusal(1130, "Host '192.0.2.7' is not allowed to connect to this MariaDB server"),
        *(HERE, (HERE, "192.0.2.7", "1130", "remote MySQL", "localhost")),
    ),
    "tried too often": (
        refusal(1129, "Host '192.0.2.7' is blocked because of many errors"),
        *(HERE, (HERE, "1129", "unblock")),
    ),
    "has all of the server's connections": (
        refusal(1040, "Too many connections"),
        *(HERE, (HERE, "1040", "ask your host")),
    ),
    "misspelt the host": (None, "db.example.invalid", ("db.example.invalid", "check host and port", "TASKSERVER_DSN")),
    "named a port where nothing is": (None, HERE, (HERE, "check host and port", "TASKSERVER_DSN")),
    "wrote localhost where no socket is": (
        *(None, "localhost:PORT", ("phpinfo()", "?unix_socket=", "check host and port", "TASKSERVER_DSN")),
    ),
    "named a socket that is not there": (
        *(None, "localhost/?unix_socket=/nowhere/s.sock", ("/nowhere/s.sock", "check unix_socket", "TASKSERVER_DSN")),
    ),
    "has a server that is merely down": (
        *(None, "localhost:PORT/down", ("the server seems to be down: no MySQL socket in HOME", "once it runs again")),
    ),
}
"""By what a person did: what the server says, None if there is none; the address, and the words of the answer."""


@pytest.mark.parametrize("what", STRANGERS)
def test_a_server_that_will_not_talk_or_is_not_there_is_answered_with_what_it_may_be(
    shop: Deployment, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    says, address, words = STRANGERS[what]
    monkeypatch.setattr("taskserver.stores.mysql.errors.SOCKETS", (f"{shop.home}/s.sock",) * address.endswith("down"))
    with nullcontext(free_port()) if says is None else saying(says) as port:
        place, _, query = address.replace("PORT", str(port)).partition("/")
        shop.write_env(TASKSERVER_DSN=f"mysql://you_shop:{SECRET}@{place}/you_shop{query.removeprefix('down')}")
        ended = shop.here("status")
    assert_told(ended, 1, *(word.replace("PORT", str(port)).replace("HOME", str(shop.home)) for word in words))
    assert ("phpinfo" in ended.stderr) == ("phpinfo()" in words)


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


def test_a_database_whose_folder_is_missing_too_is_made_by_init(deployment: Deployment) -> None:
    deployment.write_env(TASKSERVER_DSN="sqlite:///data/shop.db")
    assert_told(deployment.here("status"), 1, "there is no database", "data/shop.db", "run client.py init")
    assert deployment.here("init").returncode == 0
    assert deployment.here("status").returncode == 0


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


@pytest.mark.parametrize(
    "content", [b"<!doctype html>\n" * 100, b"SQLite format 3\0" + bytes(40)], ids=["page", "half"]
)
def test_a_file_that_is_no_database_is_told(deployment: Deployment, content: bytes) -> None:
    (deployment.folder / "shop.db").write_bytes(content)
    deployment.write_env(TASKSERVER_DSN="sqlite:///shop.db")
    for command in ("init", "status"):
        ended = deployment.here(command)
        assert_told(ended, 1, "shop.db", "not a database", "name another file in TASKSERVER_DSN")
    deployment.write_env(TASKSERVER_DSN="sqlite:///shop.db/shop.db")
    ended = deployment.here("init")
    assert_told(ended, 1, "shop.db/shop.db cannot be made", "TASKSERVER_DSN")


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


def test_the_memory_of_a_host_that_a_task_uses_up_is_told_in_one_line(sqlite_queue: Queue) -> None:
    sqlite_queue.deployment.write_tasks(HOGS)
    for name in ("leaks_memory", "second"):
        sqlite_queue.add(f"tasks.{name}")
    assert_told(sqlite_queue.worker(), 1, "No memory: the host lets a program have no more of that")
    ended = sqlite_queue.worker()  # without any memory the one before could not write its end
    was_cut_off = r"process \d+ ended while it ran task 1 tasks\.leaks_memory: .*\n"
    assert (ended.returncode, ended.stdout, re.sub(was_cut_off, "", ended.stderr)) == (0, "", "")


@pytest.mark.parametrize("left", [0, 5, "raises"])
@pytest.mark.parametrize("task", ["opens", "second"])
def test_open_files_that_a_task_uses_up_end_the_run_before_the_next_task(
    sqlite_queue: Queue, left: int | str, task: str
) -> None:
    sqlite_queue.deployment.write_tasks(HOGS)
    sqlite_queue.add("tasks.leaks_files", json.dumps([left]))
    for _ in range(3):
        sqlite_queue.add(f"tasks.{task}")
    assert_told(
        sqlite_queue.worker(), 1, "Too many open files: ", *["(tasks.leaks_files ran last)"] * (task == "opens")
    )
    hogs = [(3, 1)] * (left == "raises")
    assert sqlite_queue.rows("status, attempts") == [*hogs, *[(0, 0)] * 3]
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.rows("status, attempts") == hogs


def test_a_host_that_allows_no_thread_is_told_in_one_line(sqlite_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    sqlite_queue.add(LETTER)
    monkeypatch.setattr(threading.Thread, "start", start)
    ended = sqlite_queue.here("run", "1")
    assert_told(ended, 1, "no thread can be started (can't start new thread)", "run fewer workers")
    assert sqlite_queue.statuses() == [0]


# ---- how it is started


def test_a_script_in_the_web_folder_says_where_it_belongs(deployment: Deployment) -> None:
    for script in SCRIPTS:
        ended = deployment.run(script, env={"GATEWAY_INTERFACE": "CGI/1.1"})
        assert_told(ended, 2, script, "not for a web server", "outside the web folder")
