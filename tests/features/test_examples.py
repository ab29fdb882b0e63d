"""examples/kinds.php and chains.php as pages use them, and examples/chains.py: each runs as it lies there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pymysql
import pytest

from taskserver import TaskServer
from tests.support.deployment import ROOT
from tests.support.documents import blocks
from tests.support.processes import WAIT_SECONDS, assert_silent, wait_until
from tests.support.queues import Queue
from tests.support.reruns import BY_SQL, STATES, assert_run_again, put_each_state
from tests.support.servers import MySQLServer
from tests.support.websites import EXAMPLES, WEB_PASSWORD, Page, shown_in_comment, web_user

SETTINGS = {"TASKSERVER_LEASE": "600", "TASKSERVER_BACKOFF": "fixed:500"}
TASKS = """
def first():
    note("first")
    return {"by": "first"}

def second(by):
    note(f"second, by {by}")
"""
BY_PDO = """
require '{path}';
$pdo = new PDO("mysql:host=$at->host;port=$at->port;dbname=$at->database;charset=utf8mb4", $at->user, $at->password);
$pdo->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$pdo->exec("SET time_zone = '+09:00'");
"""
KINDS, CHAINS = (BY_PDO.format(path=EXAMPLES / name) for name in ("kinds.php", "chains.php"))


@pytest.fixture
def make_page(php: str, tmp_path: Path, mysql_server: MySQLServer, mysql_queue: Queue) -> Callable[[str], Page]:
    def make(name: str) -> Page:
        (tmp_path / name).mkdir()
        return Page(php, tmp_path / name, mysql_server, mysql_queue.dsn.rpartition("/")[2])

    return make


@pytest.fixture
def page(make_page: Callable[[str], Page]) -> Page:
    return make_page("page")


# ---- kinds.php


def one_line(statement: str) -> str:
    return " ".join(statement.split())


def test_the_statement_of_the_example_and_of_the_document_is_the_one_that_is_tested(page: Page) -> None:
    assert one_line(page.run(f"require '{EXAMPLES}/kinds.php'; echo RUN_AGAIN;")) == one_line(BY_SQL["mysql"])
    shown = [block.text for block in blocks("docs/kinds/rerun.md") if "INSERT" in block.text and block.kind == "sql"]
    plain = [one_line(re.sub(r"-- .*$", "", text, flags=re.MULTILINE)).rstrip(";") for text in shown]
    statements = [re.sub(r"VALUES \('.*?'\) ON", "VALUES (?, ?, ?) ON", text) for text in plain]
    assert [statements[0], statements[-1]] == [one_line(BY_SQL["mysql"]), one_line(BY_SQL["sqlite"])]


def test_a_page_delays_a_task_by_the_clock_of_the_database(mysql_queue: Queue, page: Page) -> None:
    page.run(f"{KINDS}add_delayed($pdo, 'tasks.note', ['later'], 3600);")
    assert_silent(mysql_queue.worker())
    assert 3500 < mysql_queue.seconds_ahead()[0] < 3601
    mysql_queue.pass_time()
    assert_silent(mysql_queue.worker())
    assert mysql_queue.notes() == ["later"]


def test_a_page_that_may_only_insert_adds_one_of_a_kind(
    mysql_queue: Queue, page: Page, mysql_server: MySQLServer
) -> None:
    with web_user(mysql_server, str(page.place["database"]), "jobs_queue") as user:
        page.place |= {"user": user, "password": WEB_PASSWORD}
        calls = "foreach ([1, 2] as $n) echo json_encode(add_unique($pdo, 'tasks.note', [$n], 'Key '));"
        assert page.run(KINDS + calls) == "truefalse"
        too_long = "try { add_unique($pdo, 'tasks.note', [], str_repeat('k', 256)); }"
        assert "too long" in page.run(f"{KINDS}{too_long} catch (PDOException $e) {{ echo $e->getMessage(); }}")
    assert mysql_queue.rows("args, unique_key") == [("[1]", b"Key ")]
    with TaskServer(mysql_queue.dsn) as server:
        assert server.add_task("tasks.note", unique_key="Key ") == mysql_queue.rows("id")[0][0]


@pytest.mark.parametrize(("stands", "is_newer"), [(7, True), (8, False), (9, False), (None, True)])
def test_a_page_with_an_older_version_changes_nothing(
    mysql_queue: Queue, page: Page, stands: int | None, is_newer: bool
) -> None:
    put_each_state(mysql_queue, stands)
    before = mysql_queue.rows()
    for_each = "foreach ($tasks as $key) run_again_if_newer($pdo, 'tasks.note', [$key], $key, 8);"
    page.run(KINDS + for_each, list(STATES))
    if is_newer:
        assert_run_again(mysql_queue, 8)
    else:
        assert mysql_queue.rows() == before


ADDS_ON = (
    KINDS
    + """
$done = 0;
while (!file_exists($tasks->stop)) {
    run_again($pdo, 'tasks.note', [$done], 'key ' . random_int(0, 3));
    add_unique($pdo, 'tasks.note', [$done], 'key ' . random_int(0, 3));
    $done++;
    usleep(random_int(0, 4000));
}
echo $done;
"""
)
"""A page that adds one task after the other until the test ends it."""


@pytest.mark.long
def test_pages_that_meet_a_deadlock_with_workers_and_one_another_add_all_the_same(
    mysql_queue: Queue, make_page: Callable[[str], Page], tmp_path: Path
) -> None:
    def deadlocks() -> int:
        ((count,),) = mysql_queue.sql(
            "SELECT count FROM information_schema.innodb_metrics WHERE name = 'lock_deadlocks'"
        )
        return int(count)

    stop = tmp_path / "stop"
    before = deadlocks()
    several = [make_page(str(number)) for number in range(4)]
    with ThreadPoolExecutor(len(several)) as threads:
        printed = [threads.submit(one.run, ADDS_ON, {"stop": str(stop)}) for one in several]
        try:
            wait_until(lambda: not mysql_queue.worker("--max-time", 2).returncode and deadlocks() > before + 5)
        finally:
            stop.touch()
        assert all(int(one.result(WAIT_SECONDS)) > 0 for one in printed)  # else what PHP threw is told
    assert_silent(mysql_queue.worker())
    assert mysql_queue.rows() == []


def test_the_calls_in_the_comment_of_kinds_php_work(mysql_queue: Queue, page: Page) -> None:
    calls = shown_in_comment("kinds.php").replace("require '/home/you/kinds.php';", "")
    page.run(KINDS + calls + calls)
    columns = "task, status, unique_key, version"
    assert mysql_queue.rows(columns) == [
        ("tasks.remind", 5, None, None),
        ("tasks.rebuild_index", 0, b"index", None),
        ("tasks.index", 0, b"page 5", 8),
        ("tasks.remind", 5, None, None),
    ]


def test_a_rerun_from_sql_needs_the_rights_that_the_document_grants(
    mysql_queue: Queue, mysql_server: MySQLServer
) -> None:
    database = mysql_queue.dsn.rpartition("/")[2]
    grants = next(block.text for block in blocks("docs/kinds/rerun.md") if "GRANT" in block.text)
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


# ---- chains.php and chains.py


def test_a_page_that_may_only_insert_adds_steps(mysql_queue: Queue, page: Page, mysql_server: MySQLServer) -> None:
    database = str(page.place["database"])
    calls = """
    add_pipeline($pdo, ['tasks.first', ['task' => 'tasks.second', 'max_attempts' => 7], 'tasks.note'], []);
    $parents = [add_task($pdo, 'tasks.note', ['text' => 'a']), add_task($pdo, 'tasks.note', ['Grüße 🎉'])];
    echo add_after($pdo, [...$parents, $parents[0]], 'tasks.note', ['after both']);
    """
    with web_user(mysql_server, database, "jobs_queue", "jobs_queue_dependencies") as user:
        page.place |= {"user": user, "password": WEB_PASSWORD}
        assert page.run(CHAINS + calls) == "4"
    assert mysql_queue.sql("SELECT parent_id, child_id FROM jobs_queue_dependencies") == [(2, 4), (3, 4)]
    assert_silent(mysql_queue.worker(1))
    assert mysql_queue.rows("id, status, max_attempts")[0] == (1, 0, 7)
    assert_silent(mysql_queue.worker("--batch", 2))
    *notes, last = mysql_queue.notes()
    assert sorted(notes) == sorted(["first", "second, by first", "noted", "a", "Grüße 🎉"])
    assert (last, mysql_queue.rows()) == ("after both", [])


def test_a_page_adds_what_waits_within_its_own_transaction_or_not_at_all(mysql_queue: Queue, page: Page) -> None:
    calls = """
    $parent = add_task($pdo, 'tasks.note', ['before']);
    $pdo->beginTransaction();
    add_after($pdo, [$parent], 'tasks.note', ['undone']);
    $pdo->rollBack();
    $pdo->beginTransaction();
    $child = add_after($pdo, [$parent], 'tasks.note', ['after']);
    $pdo->commit();
    try {
        add_after($pdo, [$parent, null], 'tasks.note', ['half']);
    } catch (PDOException $error) {
        echo $pdo->inTransaction() ? 'open' : 'undone';
    }
    """
    assert page.run(CHAINS + calls) == "undone"
    assert mysql_queue.rows("args") == [('["before"]',), ('["after"]',)]
    assert len(mysql_queue.sql("SELECT * FROM jobs_queue_dependencies")) == 1
    assert_silent(mysql_queue.worker())
    assert mysql_queue.notes() == ["before", "after"]
    assert mysql_queue.sql("SELECT * FROM jobs_queue_dependencies") == []


def test_the_calls_in_the_comment_of_chains_php_work(mysql_queue: Queue, page: Page) -> None:
    page.run(CHAINS + shown_in_comment("chains.php").replace("require '/home/you/chains.php';", ""))
    assert mysql_queue.rows("task, status, stages IS NULL") == [
        ("tasks.shrink", 0, 0),
        ("tasks.charge_card", 0, 1),
        ("tasks.print_slip", 0, 1),
        ("tasks.send_letter", 5, 1),
    ]
    assert mysql_queue.sql("SELECT parent_id, child_id FROM jobs_queue_dependencies") == [(2, 4), (3, 4)]


def test_the_example_in_python_runs_by_itself() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "examples.chains"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert sorted(ended.stdout.splitlines()) == sorted(
        [
            "shrinking beach.jpg",
            "publishing beach.jpg in 2 sizes",
            "counting 21 views at once",
            "sending the report to you@example.org",
            "1 fatal: Fatal: a view of no page",
            "23 done",
        ]
    )
