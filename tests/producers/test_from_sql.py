"""Statements of docs/kinds/ that a page sends: what a rerun does to rows of each state, and with which rights."""

from __future__ import annotations

from pathlib import Path

import pymysql
import pytest

from tests.support.documents import blocks
from tests.support.processes import assert_silent
from tests.support.queues import Queue
from tests.support.reruns import BY_SQL, STATES, assert_run_again, put_each_state
from tests.support.servers import MySQLServer
from tests.support.websites import WEB_PASSWORD, Page, web_user

SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_BACKOFF": "fixed:500"}
BY_PDO = """
$pdo = new PDO("mysql:host=$at->host;port=$at->port;dbname=$at->database;charset=utf8mb4", $at->user, $at->password);
$pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$pdo->exec("SET time_zone = '+09:00'");
"""


@pytest.mark.parametrize(("stands", "is_newer"), [(7, True), (8, False), (9, False), (None, True)])
def test_a_page_with_an_older_version_changes_nothing(
    mysql_queue: Queue, php: str, tmp_path: Path, mysql_server: MySQLServer, stands: int | None, is_newer: bool
) -> None:
    (code,) = (block.text for block in blocks("docs/kinds/unique.md") if block.kind == "php" and "$newer" in block.text)
    prepared = code.partition("->execute(")[0]
    page = Page(php, tmp_path, mysql_server, mysql_queue.dsn.rpartition("/")[2])
    put_each_state(mysql_queue, stands)
    before = mysql_queue.rows()
    values = "['tasks.note', json_encode([$key]), $key, 8]"
    page.run(f"{BY_PDO} foreach ($tasks as $key) {{ {prepared}->execute({values}); }}", list(STATES))
    if is_newer:
        assert_run_again(mysql_queue, 8)
    else:
        assert mysql_queue.rows() == before


def test_a_rerun_by_sql_needs_the_documented_rights(mysql_queue: Queue, mysql_server: MySQLServer) -> None:
    database = mysql_queue.dsn.rpartition("/")[2]
    grants = next(block.text for block in blocks("docs/kinds/unique.md") if "GRANT" in block.text)
    statement = BY_SQL["mysql"].replace("?", "%s")

    def run_again(user: str) -> None:
        with mysql_server.connect(user=user, password=WEB_PASSWORD, database=database) as connection:
            connection.cursor().execute(statement, ("tasks.note", '["new"]', "index"))

    with web_user(mysql_server, database, "jobs_queue") as user:
        with pytest.raises(pymysql.MySQLError, match="denied"):
            run_again(user)
        mysql_server.execute(f"REVOKE INSERT ON `{database}`.jobs_queue FROM '{user}'@'%'")
        grants = grants.replace("you_queue.", f"`{database}`.").replace("'you_web'@'localhost'", f"'{user}'@'%'")
        mysql_server.execute(*filter(None, map(str.strip, grants.split(";"))))
        run_again(user)
        run_again(user)
    assert mysql_queue.rows("args, status") == [('["new"]', 0)]


def test_tasks_that_wait_need_only_the_right_to_insert(mysql_queue: Queue, mysql_server: MySQLServer) -> None:
    database = mysql_queue.dsn.rpartition("/")[2]
    mysql_queue.define("def charge_card(order):\n    note('charged')\n\ndef greet(name):\n    note(name)\n")
    (text,) = (one.text for one in blocks("docs/kinds/dependencies.md") if "@parent" in one.text and one.kind == "sql")
    with (
        web_user(mysql_server, database, "jobs_queue", "jobs_queue_dependencies") as user,
        mysql_server.connect(user=user, password=WEB_PASSWORD, database=database) as connection,
    ):
        for statement in filter(None, map(str.strip, text.split(";"))):
            connection.cursor().execute(statement)
    assert_silent(mysql_queue.worker())
    assert mysql_queue.notes() == ["charged", "Ada"]
