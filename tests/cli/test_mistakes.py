"""What a person does who never used a queue, and what the programs answer: what is wrong, and how to fix it.

An answer is one line on standard error with an exit code, or the first line of a row's error_text; never the password.
Mistakes that need no database are in tests/unit: test_terminal, test_settings; of files in tests/process.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from subprocess import CompletedProcess
from urllib.parse import quote

import pytest

from taskserver import TaskServer
from taskserver.stores.words import SCHEMA_VERSION
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line
from tests.support.queues import Queue
from tests.support.servers import MySQLServer, free_port

SECRET = "s3cr3tOfTheShop"
DSN = f"mysql://you_shop:{SECRET}@localhost/you_shop"
LETTER = "tasks.send_letter"
STATUS = ["status"]
ADD = ["add", LETTER, '["a"]']
INIT = ["init"]


def assert_told(ended: CompletedProcess[str], code: int, *words: str) -> None:
    """One line with these words, and no password in it."""
    assert_one_line(ended, code, *words)
    assert SECRET not in ended.stderr


# ---- the tables

FOREIGN = ("was not made by taskserver", "choose another TASKSERVER_TABLE")
TABLES = {
    "ran no init": (
        ["DROP TABLE jobs_queue_schema", "DROP TABLE jobs_queue"], STATUS, ("run client.py init",),
    ),
    "loaded half of the tables": (["DROP TABLE jobs_queue_schema"], STATUS, ("run client.py init",)),
    "loaded the other half": (
        ["DROP TABLE jobs_queue"], ADD, ("has no tables of jobs_queue", "run client.py init"),
    ),
    "uploaded a newer program over it": (
        ["ALTER TABLE jobs_queue_workers DROP COLUMN previous_started_at", "UPDATE jobs_queue_schema SET version = 1"],
        STATUS,
        (f"have version 1, this program needs {SCHEMA_VERSION}: run client.py init",),
    ),
    "uploaded an older program over it": (
        ["UPDATE jobs_queue_schema SET version = 99"], STATUS, ("version 99", "upload the newer taskserver"),
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
    assert_told(queue.here(*command), 1, *words)


# ---- the server


@contextmanager
def account(server: MySQLServer, grant: str = "", limits: str = "", password: str = SECRET) -> Iterator[str]:
    """A user with some rights; its name."""
    name = f"m_{secrets.token_hex(4)}"
    with server.connect(database=None) as connection:
        literal = connection.escape(password)
    server.execute(f"CREATE USER '{name}'@'%' IDENTIFIED BY {literal} {limits}")
    try:
        if grant:
            server.execute(f"GRANT {grant} TO '{name}'@'%'")
        if password.isascii():
            server.meet(name, password)
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
}  # fmt: skip
"""By what a person did: the rights of an account, login and database of that person, a command, and its answer."""


@pytest.mark.parametrize("what", SERVERS)
def test_what_a_server_refuses_is_answered_with_its_fix(
    deployment: Deployment, mysql_server: MySQLServer, mysql_dsn: str, what: str
) -> None:
    grant, login, name, command, words = SERVERS[what]
    database = mysql_dsn.rpartition("/")[2]
    if "jobs_queue" in grant:
        with TaskServer(mysql_dsn) as owner:
            owner.create_tables()
    with account(mysql_server, grant.replace("DB", database)) as user:
        login = login.replace("USER", user).replace("SECRET", SECRET)
        place = dsn_of(mysql_server, login, name.replace("DB", database))
        deployment.write_env(TASKSERVER_DSN=place, TASKSERVER_DB_PATIENCE=0)
        if "1045" in words and mysql_server.execute("SHOW VARIABLES LIKE 'caching_sha2_password%'"):
            words = ("2061", "TASKSERVER_PASSWORD")  # it asks for a wrong password itself before it refuses it
        assert_told(deployment.here(*command), 1, *words)


AN_HOUR = ("(1226)", "a limit per hour ends with the hour", "*/5")
LIMITS = {
    "USER_CONNECTIONS": ("max_user_connections", "--slots", "ask your host"),
    "QUERIES_PER_HOUR": AN_HOUR,
    "CONNECTIONS_PER_HOUR": AN_HOUR,
}


@pytest.mark.parametrize("limit", LIMITS)
def test_an_account_that_has_used_up_what_it_may_have_is_told_what_to_do(
    deployment: Deployment, mysql_server: MySQLServer, mysql_dsn: str, limit: str
) -> None:
    database = mysql_dsn.rpartition("/")[2]
    with account(mysql_server, f"ALL ON `{database}`.*", f"WITH MAX_{limit} 1") as user, ExitStack() as held:
        if limit == "USER_CONNECTIONS":
            held.enter_context(mysql_server.connect(user=user, password=SECRET))
        deployment.write_env(
            TASKSERVER_DSN=dsn_of(mysql_server, f"{user}:{SECRET}", database), TASKSERVER_DB_PATIENCE=0
        )
        assert_told([deployment.here(*ADD) for _ in range(3)][-1], 1, *LIMITS[limit])


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
    "is not let in from this machine": (
        refusal(1130, "Host '192.0.2.7' is not allowed to connect to this MariaDB server"),
        *(HERE, (HERE, "192.0.2.7", "1130", "remote MySQL", "localhost")),
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
    "has a server that is merely down": (
        *(None, "localhost:PORT/down", ("the server seems to be down: no MySQL socket in HOME", "once it runs again")),
    ),
}
"""By what a person did: what the server says, None if there is none; the address, and the words of the answer."""


@pytest.mark.parametrize("what", STRANGERS)
def test_a_server_that_will_not_talk_or_is_not_there_is_answered_with_what_it_may_be(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    says, address, words = STRANGERS[what]
    monkeypatch.setattr(
        "taskserver.stores.mysql.errors.SOCKETS", (f"{deployment.home}/s.sock",) * address.endswith("down")
    )
    with nullcontext(free_port()) if says is None else saying(says) as port:
        place, _, query = address.replace("PORT", str(port)).partition("/")
        deployment.write_env(TASKSERVER_DSN=f"mysql://you_shop:{SECRET}@{place}/you_shop{query.removeprefix('down')}")
        ended = deployment.here("status")
    assert_told(ended, 1, *(word.replace("PORT", str(port)).replace("HOME", str(deployment.home)) for word in words))
    assert ("phpinfo" in ended.stderr) == ("phpinfo()" in words)


# ---- files


def test_a_database_whose_folder_is_missing_too_is_made_by_init(deployment: Deployment) -> None:
    deployment.write_env(TASKSERVER_DSN="sqlite:///data/shop.db")
    assert_told(deployment.here("status"), 1, "there is no database", "data/shop.db", "run client.py init")
    assert deployment.here("init").returncode == 0
    assert deployment.here("status").returncode == 0


@pytest.mark.parametrize(
    "content", [b"<!doctype html>\n" * 100, b"SQLite format 3\0" + bytes(40)], ids=["page", "half"]
)
def test_a_file_that_is_no_database_is_told(deployment: Deployment, content: bytes) -> None:
    (deployment.folder / "shop.db").write_bytes(content)
    deployment.write_env(TASKSERVER_DSN="sqlite:///shop.db")
    for command in ("init", "status"):
        assert_told(deployment.here(command), 1, "shop.db", "not a database", "name another file in TASKSERVER_DSN")
    deployment.write_env(TASKSERVER_DSN="sqlite:///shop.db/shop.db")
    assert_told(deployment.here("init"), 1, "shop.db/shop.db cannot be made", "TASKSERVER_DSN")


def test_a_host_that_allows_no_thread_is_told_in_one_line(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    queue.add(LETTER)
    monkeypatch.setattr(threading.Thread, "start", start)
    words = "no thread can be started (can't start new thread)", "run fewer workers"
    assert_told(queue.here("run", "1"), 1, *words)
    assert queue.statuses() == [0]


# ---- passwords

ODD_PASSWORD = "p@:/?#%&=+ '\"\\$[];ß"
ESCAPED = ODD_PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
WAYS = {  # where USER and PLACE stand
    "percent-encoded": f"TASKSERVER_DSN=mysql://USER:{quote(ODD_PASSWORD, safe='')}@PLACE\n",
    "as it is": f"TASKSERVER_DSN='mysql://USER:{ESCAPED}@PLACE'\n",
    "by itself": f"TASKSERVER_DSN=mysql://USER@PLACE\nTASKSERVER_PASSWORD='{ESCAPED}'\n",
}


def test_an_odd_password_opens_the_database_however_it_is_written(
    deployment: Deployment, mysql_server: MySQLServer, mysql_dsn: str
) -> None:
    place = mysql_dsn.partition("?")[0].rpartition("@")[2]
    with account(mysql_server, "ALL ON *.*", password=ODD_PASSWORD) as user:
        for text in WAYS.values():
            deployment.write_env(text.replace("USER", user).replace("PLACE", place))
            ended = deployment.here("init")
            assert ended.returncode == 0, ended.stderr
            assert ODD_PASSWORD not in ended.stdout
        deployment.write_env(f"TASKSERVER_DSN=mysql://{user}:{SECRET}%E9@{place}")
        assert_told(deployment.here("status"), 1, "TASKSERVER_PASSWORD")
