"""A reader of a document, who does what its blocks say: with a home folder, a shell, PHP and databases of their own.

The documents speak of an account `you`: /home/you, databases and users that begin with you_, a server on localhost,
/usr/bin/python3. Each of these words is replaced by what this reader has. That Python knows no installed package, so
what the documents say of the bundle is tried, too.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cronsim
import dotenv
import itsdangerous
import jinja2
import markupsafe
import prometheus_client
import psycopg
import pymysql
import pytest
import werkzeug

from taskserver import TaskServer, __version__
from taskserver.settings.load import load_settings
from taskserver.settings.page import load_page_settings
from tests.support.deployment import ROOT, TIMEOUT_SECONDS, Deployment
from tests.support.documents import Block
from tests.support.postgresql import PostgreSQLServer
from tests.support.processes import on_terminal
from tests.support.servers import MySQLServer, find_program

PASSWORDS = {"you_worker": "worker-password", "you_web": "web-password"}
TASKS = """
def greet(name): ...
def send_letter(to, subject="Hello"): ...
def rebuild_index(): ...
def remind(order): ...
def charge_card(order): ...
def index(page): ...
def fetch_rates(day): ...
def download(order): ...
def resize(): ...
def publish(): ...
def make_report(month): ...
"""
MYSQL_WORDS = re.compile(
    r"NOW\(|UNIX_TIMESTAMP|information_schema|\b(DUPLICATE|IGNORE|GRANT|RENAME|LIMIT|OPTIMIZE|TRIGGER)\b"
)
POSTGRESQL_WORDS = re.compile(
    r"\b(RETURNING|EXCLUDED|CREATE ROLE|pg_\w+)\b|pgsql:|now\(\) \+ interval|CONFLICT DO NOTHING"
)
SQLITE_WORDS = re.compile(r"ON CONFLICT|strftime")
CRON_LINE = re.compile(r"(?:[\d*/,-]+\s+){5}(?P<command>\S.*)")
FAILED = "SELECT task, error_text FROM jobs_queue WHERE status IN (3, 4)"


class Reader:
    """Follows blocks in their order; what a block printed is what the next one may say that one sees."""

    def __init__(
        self, folder: Path, server: MySQLServer, php: str, postgresql: Callable[[], PostgreSQLServer] | None = None
    ) -> None:
        """`postgresql` starts a server, which few documents speak of."""
        self._server = server
        self._start_postgresql = postgresql
        self._postgresql: PostgreSQLServer | None = None
        self._php = php
        self._prefix = f"t{secrets.token_hex(3)}_"  # MySQL 5.6 takes 16 letters for a user
        self.home = folder / "home"
        self.folder = self.home / "taskserver"
        self._bin = folder / "bin"
        self._cwd = self.home
        self._printed = ""
        self.mail_port = 25
        self.adds_to_tasks = False
        """Whether each block of tasks comes below those before it, rather than in their place."""
        self.database = server.create_database(f"{self._prefix}queue")
        (self.home / "public_html" / "status").mkdir(parents=True)
        self._bin.mkdir()
        self._write_programs()

    def close(self) -> None:
        """Drops its database, and the users that it or a document made."""
        self._server.drop_database(self.database)
        users = self._server.execute(f"SELECT user, host FROM mysql.user WHERE user LIKE '{self._prefix[:-1]}\\_%'")
        for user, host in users:
            self._server.execute(f"DROP USER '{user}'@'{host}'")
        if self._postgresql is not None:
            self._postgresql.drop_database(self.database)
            like = f"SELECT rolname FROM pg_roles WHERE rolname LIKE '{self._prefix[:-1]}\\_%'"
            for (role,) in self._postgresql.execute(like):
                self._postgresql.execute(f'DROP ROLE "{role}"')

    # ---- what there is before the first block

    def make_users(self) -> None:
        """As in the host's panel: all rights on the database, and INSERT alone."""
        for user, password in PASSWORDS.items():
            rights = "INSERT" if user == "you_web" else "ALL PRIVILEGES"
            self.execute(f"CREATE USER '{user}'@'localhost' IDENTIFIED BY '{password}'")
            self.execute(f"GRANT {rights} ON you_queue.* TO '{user}'@'localhost'")

    def upload(self) -> None:
        """The zip of the bundle, in the home folder."""
        made = self._unpack("bundle")
        with zipfile.ZipFile(self.home / f"taskserver-{__version__}.zip", "w") as file:
            for path in sorted(made.rglob("*")):
                file.write(path, f"taskserver-{__version__}/{path.relative_to(made)}")

    def extract(self) -> None:
        """The folder of the bundle, as the File Manager leaves it."""
        self._unpack("extracted").rename(self.folder)

    def install(self) -> None:
        """A deployment with tables in the database, and an SQLite file."""
        self._unpack("installed").rename(self.folder)
        # As periodic.md, metrics.md and page.md have them installed.
        for package in (cronsim, prometheus_client, jinja2, markupsafe, werkzeug, itsdangerous):
            (self.folder / package.__name__).symlink_to(Path(str(package.__file__)).parent)
        password = PASSWORDS["you_worker"]
        text = f"TASKSERVER_DSN=mysql://you_worker@localhost/you_queue\nTASKSERVER_PASSWORD='{password}'\n"
        (self.folder / ".env").write_text(self.translated(text))
        (self.folder / ".env").chmod(0o600)
        (self.folder / "tasks.py").write_text(TASKS)
        (self.folder / "var").mkdir(mode=0o700)
        for dsn in (self._server.dsn(self.database), f"sqlite:///{self.folder}/var/taskserver.db"):
            with TaskServer(dsn, folder=self.folder) as server:
                server.create_tables()

    def empty_queue(self) -> None:
        """As it was installed, so that the next task is the first one; and so is tasks.py if blocks replace it."""
        if not self.adds_to_tasks:
            (self.folder / "tasks.py").write_text(TASKS)
        tables = [str(name) for (name,) in self.execute("SHOW TABLES LIKE 'jobs\\_queue%'")]
        self.execute(*(f"DELETE FROM {name}" for name in tables if not name.endswith("_schema")))
        self.execute("ALTER TABLE jobs_queue AUTO_INCREMENT = 1")

    def _unpack(self, scratch: str) -> Path:
        """What the zip holds, in a folder of that name."""
        place = self._bin.parent / scratch
        place.mkdir()
        unpacked = Deployment(place).folder
        for package in (pymysql, dotenv):
            source = Path(str(package.__file__)).parent
            shutil.copytree(source, unpacked / source.name)  # with the bytecode, without which each command compiles it
        for name in ("schema.sql", "crontab.example", ".env.example", ".htaccess"):
            shutil.copy2(ROOT / name, unpacked)
        return unpacked

    def _write_programs(self) -> None:
        """What the shell finds by name: a Python without packages, and a dry run of make."""
        programs = {
            "python3": f'exec {shlex.quote(sys.executable)} -S "$@"',
            "make": f'exec {find_program("make")} -n -C {shlex.quote(str(ROOT))} "$@" >/dev/null',
        }
        if not find_program("unzip"):
            programs["unzip"] = 'exec python3 -m zipfile -e "$2" .'
        if not find_program("mysqldump"):
            programs["mysqldump"] = 'exec mariadb-dump "$@"'
        for name, line in programs.items():
            (self._bin / name).write_text(f"#!/bin/sh\n{line}\n")
            (self._bin / name).chmod(0o755)

    # ---- words

    def translated(self, text: str) -> str:
        """The words of the documents, as they are for this reader."""
        if POSTGRESQL_WORDS.search(text):
            at_ours = f"host={self.on_postgresql.host} port={self.on_postgresql.port}"
            text = re.sub(r"\bhost=localhost\b", at_ours, text)
        at = f"{self._server.host}:{self._server.port}"
        for pattern, replacement in (
            (r"/home/you\b", str(self.home)),
            (r"/usr/bin/python3\b(?!\.)", str(self._bin / "python3")),
            (r"/usr/bin/php\b", self._php),
            (r'SMTP\("localhost"', f'SMTP("127.0.0.1", {self.mail_port}'),
            (r"(?m)^host=localhost$", f"host={self._server.host}\nport={self._server.port}"),
            (r"'@'localhost'", "'@'%'"),
            (r"\byou_", self._prefix),
            (r"@localhost/", f"@{at}/"),
            (r"\blocalhost:3306/", f"{at}/"),
            (r"\bhost=localhost\b", f"host={self._server.host};port={self._server.port}"),
            (r"new mysqli\('localhost', (.*)\)", rf"new mysqli('{self._server.host}', \1, {self._server.port})"),
            (r'host="localhost"', f'host="{self._server.host}", port={self._server.port}'),
            (r"-h localhost\b", f"-h {self._server.host} -P {self._server.port}"),
        ):
            text = re.sub(pattern, replacement.replace("\\", "\\\\") if "\\1" not in replacement else replacement, text)
        return text

    def dsn(self, user: str, password: str) -> str:
        """Of the queue, for a user of a document."""
        return self.translated(f"mysql://{user}:{password}@localhost/you_queue")

    def connect(self, user: str, password: str) -> pymysql.Connection[Any]:
        """To the queue, as a user of a document."""
        return self._server.connect(user=self.translated(user), password=password, database=self.database)

    def execute(self, *statements: str) -> tuple[tuple[object, ...], ...]:
        return self._server.execute(*map(self.translated, statements), database=self.database)

    @property
    def on_postgresql(self) -> PostgreSQLServer:
        """The server with the queue, made when a document first speaks of it."""
        if self._postgresql is None:
            assert self._start_postgresql is not None, "this reader has no PostgreSQL"
            self._postgresql = self._start_postgresql()
            self._postgresql.create_database(self.database)
            with TaskServer(self._postgresql.dsn(self.database), folder=self.folder) as server:
                server.create_tables()
        return self._postgresql

    # ---- blocks

    def follow(self, block: Block) -> None:
        """Do what a block says, and fail where it does not go well."""
        kinds: dict[str, Callable[[str], None]] = {
            "sh": self._type,
            "text": self._compare,
            "dotenv": self._set,
            "python": self._write_python,
            "php": self._open_page,
            "sql": self._query,
            "crontab": self._schedule,
        }
        assert block.kind in kinds, f"{block}: blocks are between fences, with a kind: {', '.join(kinds)}"
        try:
            kinds[block.kind](self.translated(block.text))
        except (AssertionError, pymysql.MySQLError, psycopg.Error) as error:
            pytest.fail(f"{block}\n{error}", pytrace=False)

    def assert_that_every_task_ran(self) -> None:
        """The tasks that the blocks added are real ones, with arguments that fit."""
        if not self.execute("SHOW TABLES LIKE 'jobs_queue'"):
            return
        if self.execute("SELECT id FROM jobs_queue WHERE status = 0 LIMIT 1"):
            self._run("python3", self.folder / "worker.py")
        assert self.execute(FAILED) == ()

    def _type(self, text: str) -> None:
        """On a terminal, in the folder in which the block before left it."""
        where = self._bin.parent / "cwd"
        script = f"set -e\n{text}\npwd > {shlex.quote(str(where))}\n"
        code, screen = on_terminal(["sh", "-c", script], self._cwd, self._environ, columns=200)  # nothing is cut
        # Lines that were written over are gone, and colours.
        self._printed = re.sub(r"[^\n]*\r\x1b\[K|\x1b\[\d+m", "", screen.replace("\r\n", "\n"))
        # The doctor has an opinion of the machine on which the tests run.
        assert code == 0 or (code == 1 and text.strip().endswith("client.py doctor")), f"code {code}: {self._printed}"
        if code == 0:
            self._cwd = Path(where.read_text().strip())

    def _compare(self, text: str) -> None:
        """`…` is anything, and a line of it any lines; blanks may be more or fewer, and a run takes its time."""
        parts = [re.escape(" ".join(part.split())) for part in text.strip().split("…")]
        pattern = re.sub(r"\\ 0\\\.0\\ s", r" \\d+\\.\\d s", ".*".join(parts))
        printed = " ".join(self._printed.split())
        if not re.fullmatch(pattern.replace("\\ .*", ".*").replace(".*\\ ", ".*"), printed, re.DOTALL):
            raise AssertionError(f"this was printed instead:\n{self._printed}")

    def _set(self, text: str) -> None:
        scratch = self._bin.parent / "settings"
        scratch.mkdir(exist_ok=True)
        (scratch / ".env").write_text(text)
        load_settings(scratch, {} if "TASKSERVER_DSN" in text else {"TASKSERVER_DSN": "sqlite:///var/taskserver.db"})
        load_page_settings(scratch)
        if "TASKSERVER_" not in text or not (self.folder / ".env").exists():  # without it they are the tasks' own
            with open(self.folder / ".env", "a") as file:
                file.write(text)

    def _write_python(self, text: str) -> None:
        """A program that uses TaskServer is run; anything else is the module of tasks, or the one that it names."""
        if "import TaskServer" not in text:
            named = re.match(r"# (\w+\.py)\n", text)
            with open(self.folder / (named[1] if named else "tasks.py"), "a" if self.adds_to_tasks else "w") as file:
                file.write(text)
            self._run("python3", "-c", "import tasks", cwd=self.folder)
            return
        (self.folder / "program_of_a_reader.py").write_text(text)
        self._run("python3", self.folder / "program_of_a_reader.py")

    def _open_page(self, text: str) -> None:
        if not text.startswith("<?php"):
            server = self._server
            address = f"mysql:host={server.host};port={server.port};dbname={self.database}"
            text = f"<?php $pdo = new PDO('{address}', '{server.user}', '{server.password}');\n{text}"
        named = re.search(r"^// (/\S+\.php)$", text, re.MULTILINE)
        page = Path(named[1]) if named else self.home / "public_html" / "page.php"
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)
        options = ["-d", "display_errors=stderr", "-d", "error_reporting=-1"]
        is_for_task = "STDIN" in text  # which starts it, and gives it what it asks for
        self._run(self._php, *options, *(["-l"] if is_for_task else []), page)

    def _query(self, text: str) -> None:
        """On MySQL or MariaDB and on SQLite, but for those that have words of the other; or on PostgreSQL."""
        if POSTGRESQL_WORDS.search(text):
            self.on_postgresql.execute(text, database=self.database)
            return
        plain = re.sub(r"^(--|DELIMITER ).*$", "", text, flags=re.MULTILINE)
        statements = [part.strip() for part in re.split(r"(?:;|//)\n", plain)]
        if not SQLITE_WORDS.search(text):
            self.execute(*filter(None, statements))
        if not MYSQL_WORDS.search(text):
            connection = sqlite3.connect(self.folder / "var" / "taskserver.db")
            connection.executescript(text)
            connection.close()

    def _schedule(self, text: str) -> None:
        """Each line is one of cron's, and its command, as cron starts it, says nothing."""
        if find_program("crontab"):
            (self._bin / "lines").write_text(text)
            said = subprocess.run(["crontab", "-n", self._bin / "lines"], capture_output=True, text=True)
            assert said.returncode == 0, said.stderr
        for line in filter(None, map(str.strip, text.splitlines())):
            if line.startswith("#") or re.fullmatch(r"[A-Z]+=\S*", line):
                continue
            command = re.sub(r"--linger \d+", "--linger 1", command_of(line))
            home = {"HOME": str(self.home), "LOGNAME": "you", "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}
            done = subprocess.run(["/bin/sh", "-c", command], cwd=self.home, env=home, capture_output=True, text=True)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
            if "output.txt" in command:
                self._printed = (self.home / "output.txt").read_text()

    @property
    def _environ(self) -> dict[str, str]:
        folders = os.pathsep.join([str(self._bin), "/usr/local/bin", "/usr/bin", "/bin"])
        return {"PATH": folders, "HOME": str(self.home), "TERM": "dumb", "PYTHONDONTWRITEBYTECODE": "1"}

    def _run(self, *command: str | Path, cwd: Path | None = None) -> None:
        done = subprocess.run(
            command, cwd=cwd or self.home, env=self._environ, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
        )
        assert (done.returncode, done.stderr) == (0, ""), f"{command}: {done}"
        self._printed = done.stdout


def command_of(line: str) -> str:
    """The command of a crontab's line."""
    found = CRON_LINE.fullmatch(line)
    assert found, f"no line of a crontab: {line}"
    assert "%" not in found["command"].replace("\\%", ""), f"cron ends the command at the % in {line}"
    return found["command"].replace("\\%", "%")
