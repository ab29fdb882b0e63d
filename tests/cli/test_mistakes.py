"""What a person does who never used a queue, and what the programs answer: what is wrong, and the mend.

Tables of mistakes, a row each: what the person did, what stands there then, and words that the answer must hold. An
answer is one line on standard error with an exit code, or the first line of a row's error_text; never a traceback, and
never the password. Most rows run inside this process, where they end before any task; some of each table as a process.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest

from taskserver import TaskServer
from taskserver.cli.client import main as client_main
from taskserver.cli.worker import main as worker_main
from taskserver.host import network_mounts as mounts
from taskserver.settings import dsn
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line, assert_silent, run_here
from tests.support.queues import Queue
from tests.support.servers import MySQLServer, find_program, free_port

SECRET = "s3cr3tOfTheShop"
DSN = f"mysql://you_shop:{SECRET}@localhost/you_shop"
MAINS = {"worker.py": worker_main, "client.py": client_main}

TASKS = """
import os
from json import dumps


def send_letter(to, subject="Hello", copies=1):
    note(to)


def rebuild_cache():
    note("rebuilt")


def _forget():
    note("never")


async def fetch():
    note("never")


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


def by_what(row: object) -> str:
    return str(row[0]) if isinstance(row, tuple) else str(row)


# ---- the line in the crontab or the shell


class Line(NamedTuple):
    what: str
    arguments: list[str]
    """Of the program, whose name comes first."""
    words: tuple[str, ...]


LINES = [
    Line(
        "wrote the groups with spaces, in quotes",
        ["worker.py", "100", "3, 5, 6"],
        ("'3, 5, 6'", "commas and no spaces", "3,5,6"),
    ),
    Line(
        "wrote the groups with spaces, without quotes",
        ["worker.py", "100", "3,", "5,", "6"],
        ("'3,'", "commas and no spaces", "3,5,6"),
    ),
    Line(
        "wrote the groups as words", ["worker.py", "100", "3", "5", "6"], ("5 6", "with commas and no spaces, as 3,5,6")
    ),
    Line("left out how many tasks", ["worker.py", "3,5,6"], ("MAX_TASKS", "'3,5,6'", "worker.py 0 3,5,6")),
    Line("wanted all tasks", ["worker.py", "all"], ("'all'", "0 is for all")),
    Line("wrote a number with a minus", ["worker.py", "-100"], ("'-100'", "from 0 on")),
    Line("wrote a group that is too large", ["worker.py", "100", "4294967296"], ("4294967296", "from 0 to 4294967295")),
    Line("named a status as the mode", ["worker.py", "--mode=done"], ("--mode", "'done'", "delete", "move", "mark")),
    Line("left an s out of an option", ["worker.py", "--slot=2"], ("--slot", "did you mean --slots?")),
    Line("wrote an option's unit", ["worker.py", "--max-time", "55s"], ("--max-time", "'55s'", "seconds")),
    Line("named a command that there is not", ["client.py", "jobs"], ("'jobs'", "'add'", "'status'", "'list'")),
    Line("named no command", ["client.py"], ("COMMAND", "client.py --help")),
    Line(
        "let the shell take the arguments apart",
        ["client.py", "add", "tasks.send_letter", "{to:", "a}"],
        ("a}", "ARGS_JSON in single quotes", """'{"to": "a@example.org"}'"""),
    ),
    Line("misspelt an option of add", ["client.py", "add", "tasks.a", "--groups", "3"], ("did you mean --group?",)),
    Line("named no task", ["client.py", "add"], ("TASK", "--bulk FILE")),
    Line("asked for a task by its name", ["client.py", "show", "tasks.a"], ("ID", "'tasks.a'", "a whole number")),
    Line("misspelt a status", ["client.py", "list", "--status", "failed"], ("'failed'", "error", "fatal")),
    Line("wrote a group that is none", ["client.py", "list", "--group", "all"], ("--group", "'all'", "as 3,5,6")),
    Line("wrote groups with blanks", ["client.py", "list", "--group", "3", "5"], ("5", "commas and no spaces")),
]


@pytest.mark.parametrize("row", LINES, ids=by_what)
def test_a_wrong_line_is_answered_with_what_is_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, row: Line
) -> None:
    monkeypatch.setenv("TASKSERVER_DSN", "sqlite:///:memory:")
    script, *arguments = row.arguments
    assert_told(run_here(MAINS[script], capsys, tmp_path, *arguments), 2, script.partition(".")[0], *row.words)


def test_a_wrong_line_is_answered_by_the_programs_too(deployment: Deployment) -> None:
    for row in (LINES[0], LINES[3], LINES[12]):
        assert_told(deployment.run(*row.arguments), 2, *row.words)


ARGUMENTS = [
    Line("left the quotes to the shell", ["{to: a}"], ("ARGS_JSON", "double quotes", "in single quotes, as")),
    Line("wrote JSON with single quotes", ["{'to': 'a'}"], ("ARGS_JSON", "single quotes", '{"to": "a@example.org"}')),
    Line("gave a text alone", ["a@example.org"], ("ARGS_JSON", "in single quotes, as")),
    Line("gave a text in quotes", ['"a@example.org"'], ("a bare string", '["text"]')),
    Line("gave a number", ["5"], ("a bare number", "[5]")),
    Line("gave what PHP serialized", ['a:1:{s:2:"to";s:1:"a";}'], ("serialize()", "json_encode()")),
]


@pytest.mark.parametrize("row", ARGUMENTS, ids=by_what)
def test_wrong_arguments_are_refused_before_they_are_added(
    sqlite_queue: Queue, capsys: pytest.CaptureFixture[str], row: Line
) -> None:
    assert_told(
        run_here(client_main, capsys, sqlite_queue.folder, "add", "tasks.send_letter", *row.arguments), 2, *row.words
    )
    assert sqlite_queue.rows() == []


WRONG_NAMES = ["send_letter", "tasks/send_letter", "tasks.send_letter()", "tasks->send_letter"]


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_a_name_in_another_form_is_refused_before_it_is_added(
    sqlite_queue: Queue, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    ended = run_here(client_main, capsys, sqlite_queue.folder, "add", name)
    assert_told(ended, 2, repr(name), "module.function")


def test_a_bad_line_of_many_is_named_with_its_mend(sqlite_queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    lines = sqlite_queue.folder / "lines"
    lines.write_text("{\"task\": \"tasks.rebuild_cache\"}\n{'task': 'tasks.rebuild_cache'}\n")
    ended = run_here(client_main, capsys, sqlite_queue.folder, "add", "--bulk", lines)
    assert_told(ended, 2, "line 2", "it is not valid JSON", "single quotes", "nothing was added")


def test_a_task_that_is_gone_is_told_from_one_that_never_was(
    sqlite_queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run_here(client_main, capsys, sqlite_queue.folder, "show", "7")
    assert_told(ended, 2, "no task 7", "a completed one may be deleted")


# ---- .env


class Env(NamedTuple):
    what: str
    files: dict[str, str | bytes]
    """By their paths from the folder of worker.py; SHOP in them is the folder that this lies in."""
    words: tuple[str, ...]
    environ: dict[str, str] = {}  # noqa: RUF012


RIGHT = f"TASKSERVER_DSN={DSN}\n"

ENVS = [
    Env("made no .env", {}, ("TASKSERVER_DSN is not set", "SHOP/taskserver/.env", "client.py init")),
    Env("called it env", {"env": RIGHT}, ("SHOP/taskserver/env names one", "make it SHOP/taskserver/.env")),
    Env("had .txt put behind it", {".env.txt": RIGHT}, (".env.txt names one, and is not read", "make it")),
    Env("edited the example itself", {".env.example": RIGHT}, (".env.example names one, and is not read", "make it")),
    Env("put it into the folder above", {"../.env": RIGHT}, ("SHOP/.env names one", "make it SHOP/taskserver/.env")),
    Env("put it into the web folder", {"../public_html/.env": RIGHT}, ("SHOP/public_html/.env names one", "make it")),
    Env("put it into the package", {"taskserver/.env": RIGHT}, ("taskserver/taskserver/.env names one", "make it")),
    Env("put it into the home folder", {"../home/.env": RIGHT}, ("SHOP/home/.env names one", "make it")),
    Env("left the example's line a comment", {".env": f"# {RIGHT}"}, ("TASKSERVER_DSN is not set", "put it there, as")),
    Env("left its value blank", {".env": "TASKSERVER_DSN=\n"}, ("TASKSERVER_DSN is not set", "put it there, as")),
    Env("left out the prefix", {".env": f"DSN={DSN}\n"}, ("has DSN", "every key begins with TASKSERVER_")),
    Env(
        "wrote it small", {".env": RIGHT.replace("TASKSERVER_DSN", "taskserver_dsn")}, ("did you mean TASKSERVER_DSN?",)
    ),
    Env(
        "wrote it with a dash",
        {".env": RIGHT.replace("_DSN", "-DSN")},
        ("TASKSERVER-DSN", "did you mean TASKSERVER_DSN?"),
    ),
    Env(
        "left an s out of a key",
        {".env": f"{RIGHT}TASKSERVER_MODULE=shop\n"},
        ("TASKSERVER_MODULE,", "did you mean TASKSERVER_MODULES?"),
    ),
    Env(
        "left an s out of a key in the crontab",
        {".env": RIGHT},
        ("the environment names TASKSERVER_MODULE,", "did you mean TASKSERVER_MODULES?"),
        {"TASKSERVER_MODULE": "shop"},
    ),
    Env("wrote it small in the crontab", {}, ("TASKSERVER_DSN is not set", "small letters"), {"taskserver_dsn": DSN}),
    Env(
        "wrote a key that there is not",
        {".env": f"{RIGHT}TASKSERVER_CHARSET=utf8\n"},
        ("_CHARSET", "TASKSERVER_TABLE,"),
    ),
    Env("wrote it as YAML", {".env": f"TASKSERVER_DSN: {DSN}\n"}, ("line 1", "KEY=value")),
    Env(
        "wrote a password as YAML",
        {".env": f"TASKSERVER_DSN={DSN}\nTASKSERVER_PASSWORD:{SECRET}\n"},
        ("lacks its '='",),
    ),
    Env(
        "forgot the = of a password",
        {".env": f"TASKSERVER_PASSWORD'{SECRET}'\n"},
        ("TASKSERVER_PASSWORD,", "lacks its"),
    ),
    Env("wrote a password right behind", {".env": f"TASKSERVER_PASSWORD{SECRET}\n"}, ("TASKSERVER_PASSWORD…",)),
    Env("wrote a password small", {".env": f"taskserver_password{SECRET}\n"}, ("TASKSERVER_PASSWORD…",)),
    Env("wrote dashes", {".env": f"TASKSERVER-PASSWORD-{SECRET}\n"}, ("TASKSERVER_DSN is not set",)),
    Env("wrote an arrow", {".env": f"TASKSERVER_PASSWORD->{SECRET}\n"}, ("TASKSERVER_PASSWORD,",)),
    Env("wrote a DSN as YAML", {".env": f"TASKSERVER_DSN:mysql://you:{SECRET}@localhost/db\n"}, ("TASKSERVER_DSN,",)),
    Env("wrote it as a Windows batch", {".env": f"set {RIGHT}"}, ("line 1", "KEY=value")),
    Env(
        "opened a quote and closed none",
        {".env": f"TASKSERVER_DSN='{DSN}\n"},
        ("line 1", "a quote in it is not closed"),
    ),
    Env(
        "let an editor curl the quotes",
        {".env": f"TASKSERVER_DSN=“{DSN}”\n"},
        ("TASKSERVER_DSN is wrong", "a quote stands before it", "take both away"),
    ),
    Env(
        "set quotes in quotes",
        {".env": f"TASKSERVER_DSN='\"{DSN}\"'\n"},
        ("a quote stands before it", "take both away"),
    ),
    Env("wrote the key twice", {".env": f"TASKSERVER_DSN={RIGHT}"}, ("the key stands in its value once more",)),
    Env("saved it as UTF-16", {".env": RIGHT.encode("utf-16")}, (".env cannot be read", "save it as UTF-8")),
    Env("saved it as UTF-16 without a mark", {".env": RIGHT.encode("utf-16-le")}, ("UTF-16", "save it as UTF-8")),
    Env("saved it as latin-1", {".env": f"{RIGHT}# Größe\n".encode("latin-1")}, ("cannot be read", "save it as UTF-8")),
    Env(
        "wrote a table's name with a dash",
        {".env": f"{RIGHT}TASKSERVER_TABLE=shop-jobs\n"},
        ("TASKSERVER_TABLE is wrong", "'shop-jobs'", "letters, digits or _"),
    ),
    Env(
        "named a file as a module",
        {".env": f"{RIGHT}TASKSERVER_MODULES=tasks, my-jobs.py\n"},
        ("_MODULES", "my-jobs.py"),
    ),
    Env(
        "wrote a unit", {".env": f"{RIGHT}TASKSERVER_TIMEOUT=10min\n"}, ("_TIMEOUT", "'10min'", "a whole number from 0")
    ),
    Env("named a status as the mode", {".env": f"{RIGHT}TASKSERVER_MODE=done\n"}, ("_MODE", "delete or move or mark")),
]


def put(deployment: Deployment, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = deployment.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A folder `taskserver` beside a home folder, which is the current one."""
    deployed = Deployment(tmp_path)
    deployed.folder = deployed.folder.rename(tmp_path / "taskserver")
    monkeypatch.chdir(deployed.home)
    yield deployed
    deployed.close()


@pytest.mark.parametrize("row", ENVS, ids=by_what)
def test_a_wrong_env_is_answered_with_its_mend(
    shop: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, row: Env
) -> None:
    put(shop, row.files)
    for key, value in row.environ.items():
        monkeypatch.setenv(key, value)
    words = [word.replace("SHOP", str(shop.folder.parent)) for word in row.words]
    assert_told(run_here(worker_main, capsys, shop.folder), 2, "worker.py: ", *words)
    assert_told(run_here(client_main, capsys, shop.folder, "status"), 2, "client.py: ", *words)


@pytest.mark.parametrize("what", ["called it env", "put it into the home folder", "let an editor curl the quotes"])
def test_a_wrong_env_is_answered_by_the_programs_too(shop: Deployment, what: str) -> None:
    (row,) = (row for row in ENVS if row.what == what)
    put(shop, row.files)
    words = [word.replace("SHOP", str(shop.folder.parent)) for word in row.words]
    assert_told(shop.worker(), 2, *words)


@pytest.mark.parametrize("name", ["env", ".env.txt"])
def test_init_makes_no_second_env_beside_one_of_a_wrong_name(
    shop: Deployment, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    put(shop, {name: RIGHT})
    assert_told(run_here(client_main, capsys, shop.folder, "init"), 2, f"{name} names one", "make it")
    assert not (shop.folder / ".env").exists()


def test_an_env_of_another_program_is_nobodys_mistake(
    shop: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(shop, {".env": "DSN=x\nMODE=production\nTABLE=y\n", "env": RIGHT, "../.env": "A=b\n"})
    monkeypatch.setenv("TASKSERVER_DSN", "sqlite:///var/shop.db")
    monkeypatch.setenv("TASKSERVER_TEST_MYSQL", "of somebody else")
    assert run_here(client_main, capsys, shop.folder, "init").returncode == 0


FORGIVEN = {
    "began with a byte order mark": b"\xef\xbb\xbfTASKSERVER_DSN=sqlite:///var/shop.db\n",
    "had Windows ends of lines": b"TASKSERVER_DSN=sqlite:///var/shop.db\r\nTASKSERVER_MODE=mark\r\n",
    "wrote spaces around the =": b"TASKSERVER_DSN = sqlite:///var/shop.db\n",
    "wrote export": b"export TASKSERVER_DSN=sqlite:///var/shop.db\n",
    "wrote straight quotes": b'TASKSERVER_DSN="sqlite:///var/shop.db"\n',
    "left a space behind it": b"TASKSERVER_DSN=sqlite:///var/shop.db  \n",
}


@pytest.mark.parametrize("content", FORGIVEN.values(), ids=FORGIVEN)
def test_what_is_clear_though_odd_is_understood(
    shop: Deployment, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    put(shop, {".env": content})
    assert run_here(client_main, capsys, shop.folder, "init").returncode == 0
    assert (shop.folder / "var" / "shop.db").exists()


# ---- the DSN


DSNS = {
    f"mysql:/you_shop:{SECRET}@localhost/you_shop": ("no '://'", "two slashes follow 'mysql:'"),
    f"mysql:host=localhost;dbname=you_shop;password={SECRET}": ("PHP's PDO", "mysql://user:password@host"),
    f"you_shop:{SECRET}@localhost/you_shop": ("no '://'", "it begins with mysql://"),
    f"mysqli://you_shop:{SECRET}@localhost/you_shop": ("its scheme is none of mysql", "write mysql"),
    f"postgresql://you_shop:{SECRET}@localhost/you_shop": ("its scheme is none of mysql, sqlite",),
    f"mysql://you_shop:{SECRET}@localhost": ("it names no database", "host:3306/database"),
    f"mysql://you_shop:{SECRET}/you_shop": ("port", "is the @ missing"),
    f"mysql://you_shop:{SECRET}@/you_shop": ("it names no host", "localhost"),
    f"mysql://you_shop:{SECRET}@localhost:https/you_shop": ("its port is not a number",),
    f"mysql://you_shop:{SECRET}@localhost/you_shop?charset=utf8": ("after its '?'", "ssl-mode"),
    "sqlite:var/taskserver.db": ("no '://'", "sqlite:///"),
    "sqlite://var/taskserver.db": ("three slashes",),
}


@pytest.mark.parametrize("text", DSNS, ids=lambda text: text.replace(SECRET, "…"))
def test_a_wrong_dsn_is_answered_with_its_mend(shop: Deployment, capsys: pytest.CaptureFixture[str], text: str) -> None:
    shop.write_env(TASKSERVER_DSN=text)
    assert_told(run_here(client_main, capsys, shop.folder, "init"), 2, "TASKSERVER_DSN is wrong", *DSNS[text])


# ---- rows


class Row(NamedTuple):
    what: str
    task: str
    args: str | None
    words: tuple[str, ...]


LETTER = "tasks.send_letter"

ROWS = [
    Row("left out the module", "send_letter", None, ("none of the modules", "did you mean 'tasks.send_letter'?")),
    Row("left out the function", "tasks", None, ("none of the modules", "tasks.function")),
    Row("misspelt the function", "tasks.send_leter", None, ("has no 'send_leter'", "did you mean 'send_letter'?")),
    Row("misspelt the module", "taks.send_letter", None, ("TASKSERVER_MODULES", "did you mean 'tasks.send_letter'?")),
    Row(
        "began with a capital", "Tasks.send_letter", None, ("none of the modules", "did you mean 'tasks.send_letter'?")
    ),
    Row("wrote the function with capitals", "tasks.sendLetter", None, ("no 'sendLetter'", "'send_letter'")),
    Row("wrote a path", "tasks/send_letter", None, ("did you mean 'tasks.send_letter'?",)),
    Row("wrote the file", "tasks.py:send_letter", None, ("did you mean 'tasks:send_letter'?",)),
    Row("called it", "tasks.send_letter()", None, ("did you mean 'tasks.send_letter'?",)),
    Row("called it with arguments", "tasks.send_letter('a')", None, ("did you mean 'tasks.send_letter'?",)),
    Row("wrote it as PHP's static method", "tasks::send_letter", None, ("did you mean 'tasks.send_letter'?",)),
    Row("left a space before it", " tasks.send_letter", None, ("did you mean 'tasks.send_letter'?",)),
    Row("set it in quotes", "'tasks.send_letter'", None, ("did you mean 'tasks.send_letter'?",)),
    Row("named nothing", "", None, ("none of the modules that may run: tasks",)),
    Row(
        "named a function that nothing is like",
        "tasks.zzz",
        None,
        ("no 'zzz'", "there is note, send_letter, rebuild_cache"),
    ),
    Row("named a private function", "tasks._forget", None, ("underscore", "rename it")),
    Row("named nearly a private function", "tasks.forget", None, ("no 'forget'", "there is note, send_letter")),
    Row("named a class", "tasks.Letter", None, ("is a class", "static and class methods")),
    Row("named an ordinary method", "tasks.Letter.read", None, ("is a plain function inside a class", "@staticmethod")),
    Row("misspelt the method", "tasks.Letter.pots", None, ("no method 'pots'", "did you mean 'post'?")),
    Row("misspelt the class", "tasks.Leter.post", None, ("no 'Leter'", "did you mean 'Letter'?")),
    Row("named what was imported", "tasks.dumps", None, ("comes from json", "define a function there")),
    Row("named a coroutine", "tasks.fetch", None, ("coroutine", "a plain function that runs it")),
    Row("misspelt the coroutine", "tasks.fetchh", None, ("no 'fetchh'", "there is note, send_letter")),
    Row("named a function of Python", "os.system", '["true"]', ("none of the modules that may run: tasks",)),
    Row("named another file", "mailing.send", None, ("none of the modules that may run: tasks (TASKSERVER_MODULES)",)),
    Row("used serialize()", LETTER, 'a:1:{s:2:"to";s:1:"a";}', ("PHP's serialize()", "json_encode()")),
    Row("used var_export()", LETTER, "['to' => 'a']", ("PHP's own form", "json_encode()")),
    Row("used single quotes", LETTER, "{'to': 'a'}", ("single quotes", '{"to": "a@example.org"}')),
    Row("used str() of a dict", LETTER, '{"to": None}', ("null", "json.dumps()")),
    Row("used http_build_query()", LETTER, "to=a&subject=b", ("a web address", "json_encode()")),
    Row("wrote names without quotes", LETTER, '{to: "a"}', ("names and texts stand in double quotes",)),
    Row("pasted curly quotes", LETTER, "{“to”: “a”}", ("curly quotes", "straight ones")),
    Row("left a last comma in an object", LETTER, '{"to": "a",}', ("the comma before the closing bracket",)),
    Row("left a last comma in an array", LETTER, '["a",]', ("the comma before the closing bracket",)),
    Row("saved it with a byte order mark", LETTER, '\ufeff["a"]', ("byte order mark", "take that away")),
    Row("cut it off", LETTER, '{"to": "a', ("not valid JSON", "json_encode()")),
    Row("wrote a text with a line break", LETTER, '["a\nb"]', ("Invalid control character", "json_encode()")),
    Row("encoded it twice", LETTER, '"{\\"to\\": \\"a\\"}"', ("encoded twice", "encode it once")),
    Row("gave a bare text", LETTER, '"a"', ("a bare string", '["text"]')),
    Row("gave a bare number", LETTER, "5", ("a bare number", "[5]")),
    Row("gave a text that is no JSON at all", LETTER, "a@example.org", ("not valid JSON", "json_encode()")),
    Row("misspelt a keyword", LETTER, '{"to": "a", "subjct": "b"}', ("(to, subject=…, copies=…)", "'subject'?")),
    Row("gave too few", LETTER, None, ("(to, subject=…, copies=…)", "missing a required argument: 'to'")),
    Row("gave too many", LETTER, '["a", "b", 1, 2]', ("(to, subject=…, copies=…)", "too many positional")),
    Row("gave some where none are taken", "tasks.rebuild_cache", '{"all": 1}', ("tasks.rebuild_cache()", "'all'")),
    Row("gave a whole file", LETTER, f'["{"x" * 1024 * 1024}"]', ("1048580 bytes", "allowed: 1048576", "elsewhere")),
]


@pytest.fixture
def answers(queue: Queue) -> list[str]:
    """The first lines of the errors of all ROWS, after one run over them and a good row among them."""
    for row in ROWS:
        queue.add(row.task, row.args)
    queue.add(LETTER, '["good"]')
    ended = queue.worker()
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "Traceback" not in ended.stderr
    assert queue.notes() == ["good"]
    return queue.first_lines()


def test_a_wrong_row_is_fatal_with_what_is_wrong_and_its_mend(answers: list[str]) -> None:
    assert len(answers) == len(ROWS)
    wrong = [
        f"{row.what}: {answer}"
        for row, answer in zip(ROWS, answers, strict=True)
        if not answer.startswith("BadTask: ") or not all(word in answer for word in row.words)
    ]
    assert wrong == []
    assert not any(
        "_forget" in answer for row, answer in zip(ROWS, answers, strict=True) if row.task != "tasks._forget"
    )


# ---- the tasks' files


class File(NamedTuple):
    what: str
    module: str
    files: dict[str, str | bytes]
    words: tuple[str, ...]


FILES = [
    File("forgot to upload it", "mailer", {}, ("no module mailer", "put mailer.py beside worker.py (SHOP/taskserver)")),
    File("named it with a capital", "reports", {"Reports.py": ""}, ("no module reports", "rename it to reports.py")),
    File("left an s out of its name", "invoices", {"invoice.py": ""}, ("invoice.py lies there: rename it",)),
    File("had .txt put behind it", "prices", {"prices.py.txt": ""}, ("prices.py.txt lies there: rename it",)),
    File("left it in the web folder", "pages", {"../public_html/pages.py": ""}, ("SHOP/public_html: move it",)),
    File(
        "forgot a bracket", "unclosed", {"unclosed.py": "x = 1\ndef f(:\n    pass\n"}, ("SyntaxError", "line 2", "mend")
    ),
    File("forgot to indent", "flat", {"flat.py": "def f():\npass\n"}, ("IndentationError", "line 2", "mend")),
    File(
        "mixed tabs with spaces", "tabs", {"tabs.py": "if 1:\n        x = 1\n\ty = 2\n"}, ("TabError", "spaces alone")
    ),
    File(
        "did not install what it imports",
        "buyer",
        {"buyer.py": "import a_package_that_nobody_has\n"},
        (
            "No module named 'a_package_that_nobody_has' (buyer.py, line 1)",
            "install it for the Python that runs this",
            "-m pip install",
        ),
    ),
    File(
        "saved it as latin-1",
        "umlauts",
        {"umlauts.py": "x = 'Grüße'\n".encode("latin-1")},
        ("SyntaxError", "UTF-8 text"),
    ),
    File("saved it as UTF-16", "wide", {"wide.py": "x = 1\n".encode("utf-16")}, ("save the file as UTF-8 text",)),
    File("saved it as UTF-16 without a mark", "zeros", {"zeros.py": "x = 1\n".encode("utf-16-le")}, ("as UTF-8 text",)),
    File(
        "gave @task a wrong option",
        "options",
        {"options.py": "import taskserver\n@taskserver.task(max_attempts=0)\ndef f(): pass\n"},
        ("SettingError: max_attempts is 0", "from 1 to"),
    ),
    File(
        "let it fail when imported",
        "shaky",
        {"shaky.py": "x = 1\nx / 0\n"},
        ("ZeroDivisionError", "(shaky.py, line 2)"),
    ),
    File(
        "let it end the program",
        "quitter",
        {"quitter.py": "raise SystemExit(3)\n"},
        ("SystemExit", "(quitter.py, line 1)"),
    ),
]


def test_files_that_cannot_be_imported_are_told_once_each_and_stop_no_other(shop: Deployment, sqlite_dsn: str) -> None:
    modules = ",".join(["tasks", *(row.module for row in FILES)])
    queue = Queue(shop, sqlite_dsn, TASKS, {"TASKSERVER_MODULES": modules})
    for row in FILES:
        put(shop, row.files)
        for _ in range(3):
            queue.add(f"{row.module}.f")
            queue.add("tasks.rebuild_cache")
    ended = queue.worker()
    assert (ended.returncode, ended.stdout) == (0, "")
    assert queue.notes() == ["rebuilt"] * len(FILES) * 3
    assert queue.rows("status, attempts") == [(3, 1)] * len(FILES) * 3
    lines = ended.stderr.splitlines()
    assert len(lines) == len(FILES), ended.stderr
    errors = queue.first_lines()
    for number, row in enumerate(FILES):
        words = [word.replace("SHOP", str(shop.folder.parent)) for word in row.words]
        assert all(word in lines[number] for word in words), lines[number]
        assert "once a run" in lines[number]
        for error in errors[3 * number : 3 * number + 3]:
            assert error.startswith("ModuleBroken: "), error
            assert all(word in error for word in words), error
    queue.end_backoffs()
    assert queue.worker().stderr == ended.stderr


def test_a_file_that_was_mended_is_not_spoken_of_any_more(sqlite_queue: Queue) -> None:
    sqlite_queue.deployment.write_tasks("def f(:\n")
    sqlite_queue.add("tasks.rebuild_cache")
    assert "SyntaxError" in sqlite_queue.worker().stderr
    sqlite_queue.define("")
    sqlite_queue.end_backoffs()
    assert_silent(sqlite_queue.worker())
    assert sqlite_queue.notes() == ["rebuilt"]


@pytest.mark.usefixtures("bound_by_rights")
def test_a_file_that_this_user_may_not_read_is_told(sqlite_queue: Queue) -> None:
    (sqlite_queue.folder / "tasks.py").chmod(0)
    sqlite_queue.add("tasks.rebuild_cache")
    ended = sqlite_queue.worker()
    assert_told(ended, 0, "module tasks cannot be imported: PermissionError", "let this user read it")


# ---- the tables


class Tables(NamedTuple):
    what: str
    statements: list[str]
    command: list[str]
    words: tuple[str, ...]


STATUS = ["client.py", "status"]
ADD = ["client.py", "add", LETTER, '["a"]']
INIT = ["client.py", "init"]

TABLES = [
    Tables("ran no init", ["DROP TABLE jobs_queue_schema", "DROP TABLE jobs_queue"], STATUS, ("run client.py init",)),
    Tables("loaded half of the tables", ["DROP TABLE jobs_queue_schema"], ["worker.py"], ("run client.py init",)),
    Tables(
        "loaded the other half", ["DROP TABLE jobs_queue"], ADD, ("has no tables of jobs_queue", "run client.py init")
    ),
    Tables(
        "uploaded a newer program over it",
        ["DELETE FROM jobs_queue_schema", "INSERT INTO jobs_queue_schema (version) VALUES (0)"],
        ["worker.py"],
        ("version 0", "run client.py init"),
    ),
    Tables(
        "uploaded an older program over it",
        ["UPDATE jobs_queue_schema SET version = 99"],
        ["worker.py"],
        ("version 99", "upload the newer taskserver"),
    ),
    Tables(
        "has a table of that name from another program",
        ["DROP TABLE jobs_queue", "CREATE TABLE jobs_queue (id INTEGER PRIMARY KEY, payload TEXT)"],
        INIT,
        ("was not made by taskserver", "choose another TASKSERVER_TABLE"),
    ),
    Tables(
        "made its table with a column missing",
        ["DROP TABLE jobs_queue", "CREATE TABLE jobs_queue (id INTEGER PRIMARY KEY, task VARCHAR(255))"],
        ADD,
        ("was not made by taskserver", "choose another TASKSERVER_TABLE"),
    ),
]


@pytest.mark.parametrize("row", TABLES, ids=by_what)
def test_wrong_tables_are_answered_with_what_to_do(
    queue: Queue, capsys: pytest.CaptureFixture[str], row: Tables
) -> None:
    for statement in row.statements:
        queue.sql(statement)
    script, *arguments = row.command
    if script == "client.py":
        assert_told(run_here(client_main, capsys, queue.folder, *arguments), 1, *row.words)
    else:
        assert_told(queue.worker(*arguments), 1, *row.words)


def test_an_emoji_for_a_column_of_latin1_names_the_column_and_its_mend(
    mysql_queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    mysql_queue.sql("ALTER TABLE jobs_queue MODIFY args MEDIUMTEXT CHARACTER SET latin1")
    ended = run_here(client_main, capsys, mysql_queue.folder, "add", LETTER, '["\N{WAVING HAND SIGN}"]')
    assert_told(ended, 1, "column", "args", "character set of schema.sql")


# ---- the server


class Server(NamedTuple):
    what: str
    make: Callable[[ExitStack, MySQLServer, str], str]
    """The DSN, on this server, of a person who means this database."""
    command: list[str]
    words: tuple[str, ...]


@contextmanager
def account(server: MySQLServer, grant: str = "", limits: str = "") -> Iterator[str]:
    """A user with some rights; its name."""
    name = f"m_{secrets.token_hex(4)}"
    server.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY '{SECRET}' {limits}")
    try:
        if grant:
            server.execute(f"GRANT {grant} TO '{name}'@'%'")
        yield name
    finally:
        server.execute(f"DROP USER '{name}'@'%'")


def dsn_of(server: MySQLServer, user: str, database: str, password: str = SECRET) -> str:
    return f"mysql://{user}:{password}@{server.host}:{server.port}/{database}"


def wrong_password(stack: ExitStack, server: MySQLServer, database: str) -> str:
    return dsn_of(server, stack.enter_context(account(server)), database, f"{SECRET}x")


def no_prefix_of_user(stack: ExitStack, server: MySQLServer, database: str) -> str:
    return dsn_of(server, "shop", database)


def no_database(stack: ExitStack, server: MySQLServer, database: str) -> str:
    return dsn_of(server, stack.enter_context(account(server, "CREATE ON *.*")), "t_shop_of_nobody")


def no_rights(stack: ExitStack, server: MySQLServer, database: str) -> str:
    return dsn_of(server, stack.enter_context(account(server)), database)


def no_right_to_create(stack: ExitStack, server: MySQLServer, database: str) -> str:
    return dsn_of(server, stack.enter_context(account(server, f"SELECT, INSERT, UPDATE ON `{database}`.*")), database)


def right_to_insert(stack: ExitStack, server: MySQLServer, database: str) -> str:
    with TaskServer(server.dsn(database)) as owner:
        owner.create_tables()
    user = stack.enter_context(account(server, f"INSERT ON `{database}`.jobs_queue"))
    return dsn_of(server, user, database)


def used_up(stack: ExitStack, server: MySQLServer, database: str) -> str:
    user = stack.enter_context(account(server, f"ALL ON `{database}`.*", "WITH MAX_USER_CONNECTIONS 1"))
    stack.enter_context(server.connect(user=user, password=SECRET))
    return dsn_of(server, user, database)


SERVERS = [
    Server("wrote a wrong password", wrong_password, STATUS, ("1045", "TASKSERVER_PASSWORD", "single quotes")),
    Server("forgot the panel's prefix", no_prefix_of_user, STATUS, ("1045", "account's name before it", "you_shop")),
    Server(
        "made no database", no_database, INIT, ("t_shop_of_nobody", "1049", "make it in your host's panel", "you_shop")
    ),
    Server("did not add the user to it", no_rights, INIT, ("1044", "grant this user rights on it", "panel")),
    Server("gave no right to create tables", no_right_to_create, INIT, ("CREATE", "1142", "grant", "client.py init")),
    Server("gave the worker the web's user", right_to_insert, ["worker.py"], ("SELECT", "1142", "grant", "UPDATE")),
    Server(
        "has used up the account's connections", used_up, STATUS, ("max_user_connections", "--slots", "ask your host")
    ),
]


@pytest.mark.parametrize("row", SERVERS, ids=by_what)
def test_what_a_server_refuses_is_answered_with_its_mend(
    shop: Deployment, mysql_server: MySQLServer, mysql_dsn: str, capsys: pytest.CaptureFixture[str], row: Server
) -> None:
    with ExitStack() as stack:
        shop.write_env(
            TASKSERVER_DSN=row.make(stack, mysql_server, mysql_dsn.rpartition("/")[2]), TASKSERVER_DB_PATIENCE=0
        )
        script, *arguments = row.command
        if script == "client.py":
            assert_told(run_here(client_main, capsys, shop.folder, *arguments), 1, *row.words)
        else:
            assert_told(shop.worker(*arguments), 1, *row.words)


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


STRANGERS = {
    "named the panel's port": (b"HTTP/1.1 400 Bad Request\r\n\r\n", ("is that a MySQL server?", "3306")),
    "named a port that hangs up": (b"", ("is that a MySQL server?", "3306")),
    "is not let in from this machine": (
        refusal(1130, "Host '192.0.2.7' is not allowed to connect to this MariaDB server"),
        ("192.0.2.7", "1130", "remote MySQL", "localhost"),
    ),
    "tried too often": (refusal(1129, "Host '192.0.2.7' is blocked because of many errors"), ("1129", "unblock")),
    "has all of the server's connections": (refusal(1040, "Too many connections"), ("1040", "ask your host")),
}


@pytest.mark.parametrize("what", STRANGERS)
def test_a_server_that_will_not_talk_is_answered_with_what_it_may_be(
    shop: Deployment, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    says, words = STRANGERS[what]
    with saying(says) as port:
        shop.write_env(TASKSERVER_DSN=f"mysql://you_shop:{SECRET}@127.0.0.1:{port}/you_shop")
        assert_told(run_here(client_main, capsys, shop.folder, "status"), 1, f"127.0.0.1:{port}", *words)


ADDRESSES = {
    "misspelt the host": ("db.example.invalid", "", ("db.example.invalid", "check host and port")),
    "named a port where nothing is": ("127.0.0.1:PORT", "", ("127.0.0.1:PORT", "check host and port")),
    "wrote localhost where no socket is": ("localhost:PORT", "", ("phpinfo()", "?unix_socket=", "check host and port")),
    "named a socket that is not there": (
        "localhost",
        "?unix_socket=/nowhere/s.sock",
        ("/nowhere/s.sock", "check unix_socket"),
    ),
}


@pytest.mark.parametrize("what", ADDRESSES)
def test_a_server_that_is_not_there_is_answered_with_what_to_check(
    shop: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(dsn, "SOCKETS", ())
    address, query, words = ADDRESSES[what]
    port = str(free_port())
    shop.write_env(TASKSERVER_DSN=f"mysql://you_shop:{SECRET}@{address.replace('PORT', port)}/you_shop{query}")
    ended = run_here(client_main, capsys, shop.folder, "status")
    assert_told(ended, 1, *(word.replace("PORT", port) for word in words), "TASKSERVER_DSN")


# ---- files, folders and disks


class Rights(NamedTuple):
    what: str
    path: str
    """In the folder of worker.py."""
    rights: int
    command: list[str]
    code: int
    words: tuple[str, ...]


RIGHTS = [
    Rights("may not write the folder", ".", 0o500, INIT, 2, (".env cannot be written", "right to write")),
    Rights("may not read .env", ".env", 0o000, STATUS, 2, (".env cannot be read", "readable for the user")),
    Rights("may not write var/", "var", 0o500, ["worker.py"], 2, ("var/slots", "writable", "--slots 0")),
    Rights("may not write the database", "shop.db", 0o400, ADD, 1, ("shop.db", "readonly", "let this user write")),
    Rights(
        "may not read the database", "shop.db", 0o000, STATUS, 1, ("shop.db", "unable to open", "let this user read")
    ),
]


@pytest.mark.usefixtures("bound_by_rights")
@pytest.mark.parametrize("row", RIGHTS, ids=by_what)
def test_what_this_user_may_not_do_is_answered_with_who_should(deployment: Deployment, row: Rights) -> None:
    if row.path != ".":
        deployment.write_env(TASKSERVER_DSN="sqlite:///shop.db")
        assert deployment.client("init").returncode == 0
    path = deployment.folder / row.path
    path.chmod(row.rights)
    try:
        assert_told(deployment.run(*row.command), row.code, *row.words)
    finally:
        path.chmod(0o700)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a folder to another user")
def test_a_var_of_another_user_is_told(deployment: Deployment, request: pytest.FixtureRequest) -> None:
    setpriv = find_program("setpriv")
    if setpriv is None:
        pytest.skip("setpriv of util-linux is needed to give up root's rights")
    dropped = "-dac_override,-dac_read_search,-fowner"
    deployment.wrap_python([setpriv, f"--inh-caps={dropped}", f"--bounding-set={dropped}"])
    deployment.write_env(TASKSERVER_DSN="sqlite:///shop.db")
    (deployment.folder / "var").mkdir(mode=0o755)
    os.chown(deployment.folder / "var", 65534, 65534)
    assert_told(deployment.client("init"), 2, "var cannot be made", "this user", "another's")


NO_DATABASES = {
    "named a web page": (b"<!doctype html>\n" * 100, ("not a database", "name another file in TASKSERVER_DSN")),
    "uploaded half of a database": (b"SQLite format 3\0" + bytes(40), ("not a database", "name another file")),
}


@pytest.mark.parametrize("what", NO_DATABASES)
def test_a_file_that_is_no_database_is_told(shop: Deployment, capsys: pytest.CaptureFixture[str], what: str) -> None:
    content, words = NO_DATABASES[what]
    put(shop, {"shop.db": content})
    shop.write_env(TASKSERVER_DSN="sqlite:///shop.db")
    for command in ("init", "status"):
        assert_told(run_here(client_main, capsys, shop.folder, command), 1, "shop.db", *words)


def test_a_folder_of_the_database_that_cannot_be_made_is_told(
    shop: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    put(shop, {"file": ""})
    shop.write_env(TASKSERVER_DSN="sqlite:///file/shop.db")
    ended = run_here(client_main, capsys, shop.folder, "init")
    assert_told(ended, 1, "file/shop.db cannot be made", "TASKSERVER_DSN")


def test_a_quota_that_is_used_up_is_told(make_queue: Callable[..., Queue], sqlite_dsn: str) -> None:
    prlimit = find_program("prlimit")
    if prlimit is None:
        pytest.skip("prlimit of util-linux is needed")
    queue = make_queue(sqlite_dsn)
    queue.deployment.wrap_python([prlimit, f"--fsize={queue.path.stat().st_size}"])
    ended = queue.client("add", "--bulk", "-", stdin=f'{{"task": "{LETTER}", "args": ["{"x" * 500_000}"]}}')
    assert_told(ended, 1, str(queue.path), "quota")
    assert queue.rows() == []


@pytest.mark.parametrize("given", [True, False])
def test_init_refuses_an_sqlite_file_on_a_network_file_system_before_it_writes_anything(
    shop: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    table = shop.home / "mountinfo"
    table.write_text(f"20 1 8:1 / / rw - ext4 /dev/sda rw\n21 20 0:9 / {shop.folder} rw - nfs4 filer:/x rw\n")
    monkeypatch.setattr(mounts, "MOUNT_TABLE", table)
    if given:
        shop.write_env(TASKSERVER_DSN="sqlite:///data/shop.db")
    before = sorted(shop.folder.iterdir())
    ended = run_here(client_main, capsys, shop.folder, "init")
    assert_told(ended, 2, "network file system (nfs4)", "MySQL", "TASKSERVER_DSN", "a disk of this host")
    assert sorted(shop.folder.iterdir()) == before
    shop.write_env(TASKSERVER_DSN=f"sqlite:///{shop.home}/shop.db")
    assert run_here(client_main, capsys, shop.folder, "init").returncode == 0


# ---- how it is started


def test_a_script_in_the_web_folder_says_where_it_belongs(deployment: Deployment) -> None:
    for script in MAINS:
        ended = deployment.run(script, env={"GATEWAY_INTERFACE": "CGI/1.1"})
        assert_told(ended, 2, script, "not for a web server", "outside the web folder")


def test_a_driver_that_was_not_installed_is_told_with_how_to_install_it(deployment: Deployment) -> None:
    put(deployment, {"pymysql.py": "raise ImportError('not installed')\n"})
    deployment.write_env(TASKSERVER_DSN=DSN)
    assert_told(deployment.worker(), 1, "PyMySQL is missing", "pip install")
    assert_told(deployment.client("init"), 1, "PyMySQL is missing", "pip install")


def test_an_old_python_is_told_with_the_one_that_is_needed(deployment: Deployment) -> None:
    put(deployment, {"sitecustomize.py": "import sys\nsys.version_info = (3, 6, 15, 'final', 0)\n"})
    for script in MAINS:
        ended = deployment.run(script, env={"PYTHONPATH": str(deployment.folder)})
        assert_told(ended, 2, script, "needs Python 3.10 or newer", "this is 3.6", "/usr/bin/python3")


def test_every_mistake_here_has_a_sentence_of_its_own() -> None:
    tables: tuple[Sequence[tuple[object, ...]], ...] = (LINES, ARGUMENTS, ENVS, ROWS, FILES, TABLES, SERVERS, RIGHTS)
    for table in tables:
        whats = [row[0] for row in table]
        assert len(set(whats)) == len(whats)
    assert sum(len(table) for table in tables) >= 35
