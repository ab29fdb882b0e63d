"""A web page in PHP adds tasks by the contract's INSERT, and worker.py runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import assert_silent
from tests.support.servers import MySQLServer
from tests.support.shops import Shop
from tests.support.websites import Page

INSERT = "$insert = $db->prepare('INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (?, ?, ?, ?)');"
MYSQLI = f"""
mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
$db = new mysqli($at->host, $at->user, $at->password, $at->database, $at->port, $at->socket);
$db->set_charset('utf8mb4');
$db->query("SET time_zone = '+09:00'");
{INSERT}
foreach ($tasks as [$task, $args, $group, $priority]) {{
    $json = $args === null ? null : json_encode($args, $flags);
    $insert->bind_param('ssii', $task, $json, $group, $priority);
    $insert->execute();
}}
"""
CONNECT = """
$where = $at->socket ? "unix_socket=$at->socket" : "host=$at->host;port=$at->port";
$db = new PDO("mysql:$where;dbname=$at->database;charset=utf8mb4", $at->user, $at->password);
$db->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$db->exec("SET time_zone = '+09:00'");
"""
PDO = f"""{CONNECT}{INSERT}
foreach ($tasks as [$task, $args, $group, $priority]) {{
    $insert->execute([$task, $args === null ? null : json_encode($args, $flags), $group, $priority]);
}}
"""
WAYS = pytest.mark.parametrize("way", [MYSQLI, PDO], ids=["mysqli", "PDO"])
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
def page(php: str, tmp_path: Path, mysql_shop: Shop, mysql_server: MySQLServer) -> Page:
    return Page(php, tmp_path, mysql_server, mysql_shop.database)


def assert_near_now(shop: Shop, *columns: str) -> None:
    for column in columns:
        seconds = [float(value) for (value,) in shop.rows(shop.seconds_between(column, shop.now))]
        assert seconds
        assert all(0 <= one < 60 for one in seconds), column


@WAYS
def test_a_page_adds_tasks_that_run_at_once_with_exactly_these_arguments(
    mysql_shop: Shop, page: Page, way: str
) -> None:
    for flags in JSON_FLAGS:
        page.run(way, [["tasks.note", args, 3, number] for number, args in enumerate(ARGUMENTS)], flags)
    assert_near_now(mysql_shop, "created_at", "updated_at")
    assert_silent(mysql_shop.worker(100, "3,5,6", "--mode", "mark"))
    called = [[[], args] if isinstance(args, dict) else [args or [], {}] for args in ARGUMENTS]
    assert mysql_shop.noted() == [one for one in called for _ in JSON_FLAGS]
    assert mysql_shop.sql("SELECT DISTINCT status, attempts, group_id FROM jobs_queue") == [(2, 1, 3)]
    assert_near_now(mysql_shop, "created_at", "started_at", "finished_at", "updated_at")
    backwards = "created_at > started_at OR started_at > finished_at"
    assert mysql_shop.sql(f"SELECT id FROM jobs_queue WHERE {backwards}") == []


@WAYS
def test_a_page_may_connect_over_the_socket(mysql_shop: Shop, page: Page, mysql_server: MySQLServer, way: str) -> None:
    socket = getattr(mysql_server, "socket", None)
    if socket is None:
        pytest.skip("the socket of a server that somebody else runs is not known")
    page.place |= {"host": "localhost", "socket": str(socket)}
    page.run(way, [["tasks.note", ["by socket"], 5, 0]])
    assert mysql_shop.added() == [["by socket"]]


def test_a_page_in_another_time_zone_delays_tasks_by_its_own_now(mysql_shop: Shop, page: Page) -> None:
    for due_at in ("NOW() + INTERVAL 1 HOUR", "NOW() - INTERVAL 1 MINUTE"):
        for status in (5, 0):
            insert = (
                f"INSERT INTO jobs_queue (task, args, status, due_at) VALUES ('tasks.note', '[1]', {status}, {due_at})"
            )
            page.run(f'{CONNECT}$db->exec("{insert}");')
    assert_silent(mysql_shop.worker("--mode", "mark"))
    # Both that lie ahead wait, though one was added as new; both that are due ran.
    assert mysql_shop.rows("status, attempts") == [(5, 0), (5, 0), (2, 1), (2, 1)]
    assert [round(seconds or 0, -2) for seconds in mysql_shop.due_in()[:2]] == [3600, 3600]
    assert mysql_shop.noted() == [[[1], {}]] * 2


def test_a_task_added_in_an_open_transaction_runs_once_that_is_committed(mysql_shop: Shop, page: Page) -> None:
    insert = "$db->exec(\"INSERT INTO jobs_queue (task) VALUES ('tasks.note')\");"
    worker = f"env -i {mysql_shop.deployment.python} {mysql_shop.folder}/worker.py 2>&1"
    run = f"exec('{worker}', $lines, $code); if ($code || $lines) throw new Exception(join($lines));"
    page.run(f"{CONNECT}$db->beginTransaction(); {insert} $db->rollBack();")
    page.run(f"{CONNECT}$db->beginTransaction(); {insert} {run} $db->commit();")
    assert mysql_shop.notes() == []
    assert_silent(mysql_shop.worker())
    assert mysql_shop.noted() == [[[], {}]]
