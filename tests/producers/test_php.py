"""A web page in PHP adds tasks by the contract's INSERT, and worker.py runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import assert_silent
from tests.support.queues import Queue
from tests.support.servers import MySQLServer
from tests.support.websites import WEB_PASSWORD, Page, web_user

TASKS = """
import json

note_text = note


def note(*args, **kwargs):
    note_text(json.dumps([args, kwargs]))
"""

MYSQLI = """
mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
$db = new mysqli($at->host, $at->user, $at->password, $at->database, $at->port, $at->socket);
$db->set_charset('utf8mb4');
$db->query("SET time_zone = '+09:00'");
$insert = $db->prepare('INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (?, ?, ?, ?)');
foreach ($tasks as [$task, $args, $group, $priority]) {
    $json = $args === null ? null : json_encode($args, $flags);
    $insert->bind_param('ssii', $task, $json, $group, $priority);
    $insert->execute();
}
"""

PDO = """
$where = $at->socket ? "unix_socket=$at->socket" : "host=$at->host;port=$at->port";
$db = new PDO("mysql:$where;dbname=$at->database;charset=utf8mb4", $at->user, $at->password);
$db->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$db->exec("SET time_zone = '+09:00'");
$insert = $db->prepare('INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (?, ?, ?, ?)');
foreach ($tasks as [$task, $args, $group, $priority]) {
    $insert->execute([$task, $args === null ? null : json_encode($args, $flags), $group, $priority]);
}
"""

PAGES = {"mysqli": MYSQLI, "PDO": PDO}
JSON_FLAGS = ["0", "JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES", "JSON_PRETTY_PRINT | JSON_PRESERVE_ZERO_FRACTION"]

ODD_TEXT = "Grüße 🎉 日本語 'quoted' \"twice\" \\ back / slash \t tab \n line \x00 nul \x7f %s ? {x} </script> "

ARGUMENTS: list[Any] = [
    {"to": "a@example.org", "text": ODD_TEXT, "schlüssel": {"tief": [1, -2.5, True, False, None]}},
    [ODD_TEXT, 9007199254740993, -0.1, [], {"k": "v"}],
    {"größe 🎉": ODD_TEXT},
    [],
    None,
]


@pytest.fixture
def page(php: str, tmp_path: Path, mysql_queue: Queue, mysql_server: MySQLServer) -> Page:
    return Page(php, tmp_path, mysql_server, mysql_queue.dsn.rpartition("/")[2])


def noted(queue: Queue) -> list[Any]:
    return [json.loads(line) for line in queue.notes()]


def assert_near_now(queue: Queue, table: str, *columns: str) -> None:
    for column in columns:
        seconds = f"ABS(TIMESTAMPDIFF(SECOND, {column}, UTC_TIMESTAMP(6)))"
        with queue.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(f"SELECT COUNT(*), MAX({seconds}) < 60 FROM {table}")
            count, is_near = cursor.fetchone()
        assert count > 0
        assert is_near == 1, column


@pytest.mark.parametrize("flags", JSON_FLAGS)
@pytest.mark.parametrize("way", PAGES)
def test_a_page_adds_tasks_that_run_at_once_with_exactly_these_arguments(
    mysql_queue: Queue, page: Page, way: str, flags: str
) -> None:
    page.run(PAGES[way], [["tasks.note", args, 3, number] for number, args in enumerate(ARGUMENTS)], flags)
    assert_near_now(mysql_queue, "jobs_queue", "created_at", "updated_at")
    assert_silent(mysql_queue.worker(100, "3,5,6", "--mode", "mark"))
    assert noted(mysql_queue) == [[[], args] if isinstance(args, dict) else [args or [], {}] for args in ARGUMENTS]
    assert mysql_queue.sql("SELECT DISTINCT status, attempts, group_id FROM jobs_queue") == [(2, 1, 3)]
    assert_near_now(mysql_queue, "jobs_queue", "created_at", "started_at", "finished_at", "updated_at")
    assert mysql_queue.sql(
        "SELECT COUNT(*) FROM jobs_queue WHERE created_at > started_at OR started_at > finished_at"
    ) == [(0,)]


@pytest.mark.parametrize("way", PAGES)
def test_a_page_may_connect_over_the_socket(
    mysql_queue: Queue, page: Page, mysql_server: MySQLServer, way: str
) -> None:
    socket = getattr(mysql_server, "socket", None)
    if socket is None:
        pytest.skip("the socket of a server that somebody else runs is not known")
    page.place |= {"host": "localhost", "socket": str(socket)}
    page.run(PAGES[way], [["tasks.note", ["by socket"], 5, 0]])
    assert_silent(mysql_queue.worker())
    assert noted(mysql_queue) == [[["by socket"], {}]]


@pytest.mark.parametrize("way", PAGES)
def test_a_page_needs_no_right_but_insert(mysql_queue: Queue, page: Page, mysql_server: MySQLServer, way: str) -> None:
    with web_user(mysql_server, str(page.place["database"]), "jobs_queue") as user:
        page.place |= {"user": user, "password": WEB_PASSWORD}
        page.run(PAGES[way], [["tasks.note", {"text": "from the web"}, 3, 10]])
    assert_silent(mysql_queue.worker(100, "3,5,6"))
    assert noted(mysql_queue) == [[[], {"text": "from the web"}]]


CONNECT = PDO.partition("$insert")[0]


def test_a_page_in_another_time_zone_delays_tasks_by_its_own_now(mysql_queue: Queue, page: Page) -> None:
    for due_at, status in [
        ("NOW() + INTERVAL 1 HOUR", 5),
        ("NOW() + INTERVAL 1 HOUR", 0),
        ("NOW() - INTERVAL 1 MINUTE", 5),
        ("NOW() - INTERVAL 1 MINUTE", 0),
    ]:
        page.run(
            f'{CONNECT}$db->exec("INSERT INTO jobs_queue (task, args, status, due_at) '
            f"VALUES ('tasks.note', '[1]', {status}, {due_at})\");"
        )
    assert_silent(mysql_queue.worker("--mode", "mark"))
    # Both that lie ahead wait, though one was added as new; both that are due ran.
    assert mysql_queue.rows("status, attempts") == [(5, 0), (5, 0), (2, 1), (2, 1)]
    assert mysql_queue.sql(
        "SELECT ABS(TIMESTAMPDIFF(SECOND, NOW(6), due_at) - 3600) < 60 FROM jobs_queue WHERE status = 5"
    ) == [(1,), (1,)]
    assert noted(mysql_queue) == [[[1], {}]] * 2


def test_a_task_added_in_an_open_transaction_runs_once_that_is_committed(mysql_queue: Queue, page: Page) -> None:
    insert = "$db->exec(\"INSERT INTO jobs_queue (task) VALUES ('tasks.note')\");"
    worker = f"env -i {mysql_queue.deployment.python} {mysql_queue.folder}/worker.py 2>&1"
    run = f"exec('{worker}', $lines, $code); if ($code || $lines) throw new Exception(join($lines));"
    page.run(f"{CONNECT}$db->beginTransaction(); {insert} $db->rollBack();")
    page.run(f"{CONNECT}$db->beginTransaction(); {insert} {run} $db->commit();")
    assert noted(mysql_queue) == []
    assert_silent(mysql_queue.worker())
    assert noted(mysql_queue) == [[[], {}]]
