"""Mistakes of people who never used a queue: the programs say what is wrong, and how to fix it.

An answer is one line on standard error with an exit code, or the first line of a row's error_text; never the password.
Mistakes that need no database are in tests/unit: test_terminal, test_settings; of files in tests/process.
"""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import NamedTuple

import pytest

from taskserver import TaskServer
from taskserver.settings.dsn import parse_dsn
from taskserver.stores.table_faults import table_faults
from tests.contract.accounts import account
from tests.support.databases import EACH_DATABASE
from tests.support.deployment import Deployment
from tests.support.processes import assert_one_line
from tests.support.queues import Queue
from tests.support.servers import MySQLServer, free_port

SECRET = "s3cret"
LETTER = "tasks.send_letter"
STATUS = ["status"]
ADD = ["add", LETTER, '["a"]']
INIT = ["init"]


# ---- the tables

TABLES = {
    "ran no init": (["DROP TABLE jobs_queue_schema", "DROP TABLE jobs_queue"], STATUS, ("run client.py init",)),
    "loaded half of the tables": (["DROP TABLE jobs_queue"], ADD, ("has no tables of jobs_queue", "client.py init")),
}


@pytest.mark.parametrize(("statements", "command", "words"), TABLES.values(), ids=TABLES)
def test_wrong_tables_are_answered_with_the_fix(
    queue: Queue, statements: list[str], command: list[str], words: tuple[str, ...]
) -> None:
    for statement in statements:
        queue.sql(statement)
    assert_one_line(queue.here(*command), 1, *words)


# ---- the server


Dsn = Callable[[str], str]
SERVERS: dict[str, tuple[str, Dsn, list[str], tuple[str, ...]]] = {
    "wrote a wrong password": (
        *("", lambda dsn: dsn.replace("x@", "y@")), STATUS, ("1045", "TASKSERVER_PASSWORD", "single quotes"),
    ),
    "forgot the panel's prefix": (
        *("", lambda dsn: re.sub("//[^:]+", "//shop", dsn)), STATUS, ("1045", "account's name before it", "you_shop"),
    ),
    "made no database": (
        *("CREATE ON *.*", lambda dsn: f"{dsn.rpartition('/')[0]}/t_none"), INIT, ("t_none", "1049", "create it in"),
    ),
    "did not add the user to it": ("", str, INIT, ("1044", "grant this user rights on it", "panel")),
    "gave no right to create tables": (
        *("SELECT, INSERT, UPDATE ON `DB`.*", str), INIT, ("CREATE", "1142", "grant", "client.py init"),
    ),
}  # fmt: skip
"""By what a person did: the rights of an account, the DSN that this person writes, a command, and its answer."""


@pytest.mark.parametrize("what", SERVERS)
def test_a_refusal_of_the_server_is_answered_with_the_fix(
    deployment: Deployment, mysql_server: MySQLServer, mysql_dsn: str, what: str
) -> None:
    rights, written, command, words = SERVERS[what]
    database = mysql_dsn.rpartition("/")[2]
    with account(mysql_server, database, rights.replace("DB", database)) as dsn:
        deployment.write_env(TASKSERVER_DSN=written(dsn), TASKSERVER_DB_PATIENCE=0)
        if "1045" in words and mysql_server.execute("SHOW VARIABLES LIKE 'caching_sha2_password%'"):
            words = ("2061", "TASKSERVER_PASSWORD")  # it asks for a wrong password itself before it refuses it
        assert_one_line(deployment.here(*command), 1, *words)


LIMITS = {
    "USER_CONNECTIONS": ("max_user_connections", "--slots", "ask your host"),
    "QUERIES_PER_HOUR": ("(1226)", "a limit per hour ends with the hour", "*/5"),
}


@pytest.mark.parametrize("limit", LIMITS)
def test_an_account_at_its_limit_is_answered_with_the_fix(
    deployment: Deployment, mysql_server: MySQLServer, mysql_dsn: str, limit: str
) -> None:
    database = mysql_dsn.rpartition("/")[2]
    with account(mysql_server, database, f"ALL ON `{database}`.*", f"WITH MAX_{limit} 1") as dsn, ExitStack() as held:
        if limit == "USER_CONNECTIONS":
            login = parse_dsn(dsn)
            held.enter_context(mysql_server.connect(user=login.user, password=login.password.encode()))
        deployment.write_env(TASKSERVER_DSN=dsn, TASKSERVER_DB_PATIENCE=0)
        assert_one_line([deployment.here(*ADD) for _ in range(3)][-1], 1, *LIMITS[limit])


@contextmanager
def saying(words: bytes) -> Iterator[int]:
    """A port of a program that says this to each visitor, and hangs up."""

    class Visit(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(words)

    with socketserver.TCPServer(("127.0.0.1", 0), Visit) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


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
    "has all connections": (refusal(1040, "Too many connections"), HERE, (HERE, "1040", "ask your host")),
    "misspelt the host": (None, "db.example.invalid", ("db.example.invalid", "check host and port", "TASKSERVER_DSN")),
    "named a port where nothing is": (None, HERE, (HERE, "check host and port", "TASKSERVER_DSN")),
    "wrote localhost where no socket is": (
        *(None, "localhost:PORT", ("phpinfo()", "?unix_socket=", "check host and port", "TASKSERVER_DSN")),
    ),
    "has a server that is merely down": (
        *(None, "localhost:PORT", ("the server seems to be down: no MySQL socket in HOME", "once it runs again")),
    ),
}
"""By what a person did: what the server says, None if there is none; the address, and the words of the answer."""


@pytest.mark.parametrize("what", STRANGERS)
def test_a_server_that_does_not_answer_is_explained(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    says, address, words = STRANGERS[what]
    sockets = (f"{deployment.home}/s.sock",) if what == "has a server that is merely down" else ()
    monkeypatch.setattr("taskserver.stores.mysql.errors.SOCKETS", sockets)
    with nullcontext(free_port()) if says is None else saying(says) as port:
        place = address.replace("PORT", str(port))
        deployment.write_env(TASKSERVER_DSN=f"mysql://you_shop:{SECRET}@{place}/you_shop")
        ended = deployment.here("status")
    assert_one_line(
        ended, 1, *(word.replace("PORT", str(port)).replace("HOME", str(deployment.home)) for word in words)
    )
    assert ("phpinfo" in ended.stderr) == ("phpinfo()" in words)


# ---- files


def test_init_makes_a_database_and_its_folder(deployment: Deployment) -> None:
    deployment.write_env(TASKSERVER_DSN="sqlite:///data/shop.db")
    assert_one_line(deployment.here("status"), 1, "there is no database", "data/shop.db", "run client.py init")
    assert deployment.here("init").returncode == 0
    assert deployment.here("status").returncode == 0


def test_a_file_that_is_not_a_database_is_named(deployment: Deployment) -> None:
    (deployment.folder / "shop.db").write_bytes(b"<!doctype html>\n" * 100)
    deployment.write_env(TASKSERVER_DSN="sqlite:///shop.db")
    assert_one_line(deployment.here("init"), 1, "shop.db", "not a database", "name another file in TASKSERVER_DSN")
    assert (deployment.folder / "shop.db").read_bytes() == b"<!doctype html>\n" * 100
    deployment.write_env(TASKSERVER_DSN="sqlite:///shop.db/shop.db")
    assert_one_line(deployment.here("init"), 1, "shop.db/shop.db cannot be made", "TASKSERVER_DSN")


def test_a_host_that_allows_no_thread_is_one_line(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    queue.add(LETTER)
    monkeypatch.setattr(threading.Thread, "start", start)
    words = "no thread can be started (can't start new thread)", "run fewer workers"
    assert_one_line(queue.here("run", "1"), 1, *words)
    assert queue.statuses() == [0]


# ---- init over damaged tables: it makes what can be made, and names the rest with its fix


class Damage(NamedTuple):
    """Statements, how what they did is named, and the statement that init names; "" if it makes that itself."""

    by: str
    words: str
    fix: str = ""


COPIED = (
    "CREATE TABLE copied AS SELECT * FROM jobs_queue; DROP TABLE jobs_queue; ALTER TABLE copied RENAME TO jobs_queue"
)
LOST_TABLE = Damage("DROP TABLE jobs_queue_done", "jobs_queue_done is missing")
OF_SQLITE = (
    LOST_TABLE,
    Damage("DROP INDEX jobs_queue_unique_key", "lacks the unique index jobs_queue_unique_key (unique_key)"),
    Damage(
        "DROP INDEX jobs_queue_unique_key; CREATE INDEX jobs_queue_unique_key ON jobs_queue (unique_key)",
        "lacks the unique index jobs_queue_unique_key (",
        'DROP INDEX "jobs_queue_unique_key"',
    ),
    Damage(
        "ALTER TABLE jobs_queue DROP COLUMN error_text",
        "jobs_queue lacks the column error_text",
        'ALTER TABLE "jobs_queue" ADD COLUMN error_text TEXT NULL DEFAULT NULL',
    ),
)
DAMAGES = {
    "sqlite": (*OF_SQLITE, Damage(COPIED, "jobs_queue has no primary key (id)")),
    "postgresql": (
        OF_SQLITE[2],
        Damage(
            "ALTER TABLE jobs_queue DROP COLUMN due_at",  # and an index with it
            "jobs_queue lacks the column due_at",
            'ALTER TABLE "jobs_queue" ADD COLUMN due_at TIMESTAMPTZ NULL DEFAULT NULL CHECK (',
        ),
        Damage(
            "ALTER TABLE jobs_queue ALTER id DROP IDENTITY",
            "gives no ids by itself",
            "ALTER TABLE jobs_queue ALTER id ADD GENERATED BY DEFAULT AS IDENTITY",
        ),
        Damage("ALTER TABLE jobs_queue SET UNLOGGED", "is unlogged", "ALTER TABLE jobs_queue SET LOGGED"),
    ),
    "mysql": (
        LOST_TABLE,
        Damage(
            "ALTER TABLE jobs_queue DROP KEY claim_by_group, ADD KEY claim_by_group (status)",
            "lacks the index claim_by_group (status, group_id, priority, id)",
            "ALTER TABLE `jobs_queue` DROP KEY `claim_by_group`; "
            "ALTER TABLE `jobs_queue` ADD KEY `claim_by_group` (status, group_id, priority, id)",
        ),
        Damage(
            "ALTER TABLE jobs_queue MODIFY error_text VARCHAR(10)",
            "jobs_queue takes texts of 10 letters in error_text, and not of 1000",
            "ALTER TABLE `jobs_queue` MODIFY error_text VARCHAR(1000) NULL DEFAULT NULL",
        ),
        Damage(
            "ALTER TABLE jobs_queue MODIFY id BIGINT UNSIGNED NOT NULL",
            "has no AUTO_INCREMENT in id",
            "ALTER TABLE `jobs_queue` MODIFY id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT",
        ),
        Damage(
            "ALTER TABLE jobs_queue MODIFY args MEDIUMTEXT CHARACTER SET latin1",
            "has texts in latin1_swedish_ci",
            "ALTER TABLE `jobs_queue` CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        ),
        Damage(
            "ALTER TABLE jobs_queue_schedules ENGINE = MyISAM",
            "jobs_queue_schedules is of the engine MyISAM",
            "ALTER TABLE `jobs_queue_schedules` ENGINE = InnoDB",
        ),
    ),
}


@pytest.mark.parametrize(
    ("database", "damage"), [(database, damage) for database, damages in DAMAGES.items() for damage in damages]
)
def test_init_repairs_what_it_can_and_names_the_statement_for_the_rest(
    request: pytest.FixtureRequest, database: str, damage: Damage
) -> None:
    queue: Queue = request.getfixturevalue(f"{database}_queue")
    queue.add("tasks.note")
    with TaskServer(queue.dsn) as server:
        assert table_faults(server.store.database) == []
        for statement in damage.by.split("; "):
            queue.sql(statement)
        named = [f"{fault.table} {fault.what}" for fault in table_faults(server.store.database)]
        assert any(damage.words in words for words in named)
        ended = queue.here("init")
        if damage.fix:
            *faults, verdict = ended.stderr.splitlines()
            assert (ended.returncode, ended.stdout) == (1, "")
            assert any(damage.words in fault and damage.fix in fault for fault in faults)
            assert "are not ready: keep a copy of the database" in verdict
            for fault in faults:
                fix = fault.rpartition(": ")[2]
                for statement in fix.split("; ") if "client.py init" not in fix else ():
                    queue.sql(statement)
            ended = queue.here("init")
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "are ready in" in ended.stdout
        assert table_faults(server.store.database) == []
    assert queue.sql("SELECT COUNT(*) FROM jobs_queue") == [(1,)]
    queue.add("tasks.note")


def test_a_unique_index_that_cannot_be_made_is_named_with_the_reason(sqlite_queue: Queue) -> None:
    sqlite_queue.sql("DROP INDEX jobs_queue_unique_key")
    sqlite_queue.sql("INSERT INTO jobs_queue (task, unique_key) VALUES ('tasks.charge', '7'), ('tasks.charge', '7')")
    ended = sqlite_queue.here("init")
    assert ended.returncode == 1
    assert "unique_key" in ended.stderr
    assert "ready in" not in ended.stdout


@EACH_DATABASE
@pytest.mark.parametrize("table", ["jobs_queue", "jobs_queue_schema"])
def test_a_table_of_another_program_is_left_unchanged(queue: Queue, table: str) -> None:
    queue.sql(f"DROP TABLE {table}")
    queue.sql(f"CREATE TABLE {table} (code INTEGER PRIMARY KEY, payload TEXT)")
    ended = queue.here("init")
    assert_one_line(ended, 1, f"{table} is a table of another program in ")
    assert ended.stderr.endswith(": set another TASKSERVER_TABLE\n")
    queue.sql(f"INSERT INTO {table} (code, payload) VALUES (1, 'theirs')")
