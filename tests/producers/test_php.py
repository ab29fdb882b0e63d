"""PHP adds tasks to MySQL and to PostgreSQL, by the contract's INSERT and by the functions of examples/enqueue*.php."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.documents import blocks
from tests.support.processes import assert_silent
from tests.support.servers import MySQLServer, without
from tests.support.shops import ODD_TEXT, Shop
from tests.support.websites import EXAMPLES, PHP_VALUES, WEB_PASSWORD, Page, shown_in_comment, web_user

EXAMPLE = {"mysql": "enqueue.php", "postgresql": "enqueue_postgresql.php"}
BY_PDO = """
$db = new PDO("{kind}:host=$at->host;port=$at->port;dbname=$at->database", $at->user, $at->password);
$db->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$db->exec("{session}");
$send = [$db, 'exec'];
"""
BY_MYSQLI = """
mysqli_report(MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT);
$db = new mysqli($at->host, $at->user, $at->password, $at->database, $at->port);
$db->set_charset('latin1');
$send = [$db, 'query'];
"""
BY_PG = """
$db = pg_connect("host=$at->host port=$at->port dbname=$at->database user=$at->user password=$at->password");
pg_set_client_encoding($db, 'LATIN1');
$send = function ($sql) use ($db) { pg_query($db, $sql); };
"""
PDO = BY_PDO.format(kind="mysql", session="SET NAMES utf8mb4, time_zone = '+09:00'")
SILENT = "$db->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_SILENT);"


class Way(NamedTuple):
    """By which extension and function a page adds tasks."""

    database: str
    connect: str
    add: str
    hush: str
    """Makes the extension's errors silent."""


WAYS = {
    "PDO": Way("mysql", PDO, "add_task_by_pdo", SILENT),
    "PDO, prepared by the server": Way(
        "mysql",
        f"{PDO.replace('utf8mb4', 'latin1')}$db->setAttribute(PDO::ATTR_EMULATE_PREPARES, false);",
        "add_task_by_pdo",
        SILENT,
    ),
    "mysqli": Way("mysql", BY_MYSQLI, "add_task_by_mysqli", "mysqli_report(MYSQLI_REPORT_OFF);"),
    "PDO to PostgreSQL": Way(
        "postgresql", BY_PDO.format(kind="pgsql", session="SET timezone = 'Asia/Tokyo'"), "add_task_by_pdo", SILENT
    ),
    "pg": Way("postgresql", BY_PG, "add_task_by_pgsql", "restore_error_handler();"),
}


@pytest.fixture(params=list(WAYS.values()), ids=list(WAYS))
def way(request: pytest.FixtureRequest) -> Way:
    found: Way = request.param
    return found


@pytest.fixture
def shop(request: pytest.FixtureRequest, way: Way) -> Shop:
    found: Shop = request.getfixturevalue(f"{way.database}_shop")
    return found


@pytest.fixture
def page(request: pytest.FixtureRequest, php: str, tmp_path: Path, shop: Shop) -> Iterator[Page]:
    """Of a database user who may INSERT, and on PostgreSQL read ids."""
    server = request.getfixturevalue(f"{shop.kind}_server")
    page = Page(php, tmp_path, server, shop.database)
    with user_of(server, shop, php) as user:
        page.place |= {"user": user, "password": WEB_PASSWORD}
        yield page


@contextmanager
def user_of(server: Any, shop: Shop, php: str) -> Iterator[str]:
    if shop.kind == "mysql":
        with web_user(server, shop.database, "jobs_queue", "orders") as name:
            yield name
        return
    check = 'exit(extension_loaded("pgsql") && extension_loaded("pdo_pgsql") ? 0 : 1);'
    if subprocess.run([php, "-r", check], capture_output=True).returncode != 0:
        without("PHP with pgsql and PDO is not installed")
    name = f"web_{shop.database}"
    columns = "task, args, group_id, priority, status, due_at"
    shop.sql(f"CREATE ROLE {name} LOGIN PASSWORD '{WEB_PASSWORD}'")
    shop.sql(f"GRANT INSERT ({columns}), SELECT (id) ON jobs_queue TO {name}")
    shop.sql(f"GRANT INSERT ON orders TO {name}; GRANT USAGE ON SEQUENCE orders_id_seq TO {name}")
    yield name
    shop.sql(f"DROP OWNED BY {name}; DROP ROLE {name}")


# ---- examples/enqueue.php and examples/enqueue_postgresql.php


def required(way: Way) -> str:
    return f"require {str(EXAMPLES / EXAMPLE[way.database])!r};\n{way.connect}"


def test_php_values_arrive_unchanged_at_once_and_later(shop: Shop, page: Page, way: Way) -> None:
    adds = f"$odd = $tasks; foreach ({PHP_VALUES} as $n => $args) echo {way.add}($db, 'tasks.note', $args, 3, $n), ' ';"
    shop.assert_values_arrived(page.run(required(way) + adds, ODD_TEXT))
    page.run(f"{required(way)}{way.add}($db, 'tasks.note', [], 3, 0, 3600);")
    shop.assert_waits_an_hour()


def test_php_that_added_nothing_is_told_so(shop: Shop, page: Page, way: Way) -> None:
    tries = f"try {{ {way.add}($db, $tasks); }} catch (Throwable $e) {{ echo get_class($e), ' ', $e->getMessage(); }}"
    printed = page.run(required(way) + way.hush + tries, "n" * 256)
    assert printed.startswith("RuntimeException The task was not added: ")
    assert "too long" in printed
    no_json = (
        f"try {{ {way.add}($db, 'tasks.note', [chr(255)]); }} catch (JsonException $e) {{ echo $e->getMessage(); }}"
    )
    assert "UTF-8" in page.run(required(way) + no_json)
    assert shop.rows() == []


def test_a_task_of_php_that_was_rolled_back_never_runs(shop: Shop, page: Page, way: Way) -> None:
    order = f"$send('BEGIN'); $send(\"INSERT INTO orders (customer) VALUES ('Grace')\"); {way.add}($db, 'tasks.note');"
    for end, count in (("ROLLBACK", 0), ("COMMIT", 1)):
        page.run(f"{required(way)}{order} $send('{end}');")
        shop.run_quietly()
        assert shop.noted() == [[[], {}]] * count
    assert shop.customers() == ["Grace"]


@pytest.mark.parametrize(
    ("way", "other"), [(WAYS["PDO"], WAYS["mysqli"]), (WAYS["PDO to PostgreSQL"], WAYS["pg"])], ids=["mysql", "pgsql"]
)
def test_the_calls_in_the_comment_of_the_example_work(shop: Shop, page: Page, way: Way, other: Way) -> None:
    name = EXAMPLE[way.database]
    calls = shown_in_comment(name).replace(f"/home/you/{name}", str(EXAMPLES / name))
    assert calls.count("add_task_by_") == 2
    page.run(f"{way.connect}$pdo = $db;{other.connect}{calls}")
    assert shop.rows("priority, status") == [(10, 0), (10, 5)]


# ---- the contract's INSERT

ARGUMENTS: list[Any] = [
    {"größe 🎉": f"{ODD_TEXT} \n line \x00 nul \x7f </script> ", "schlüssel": {"tief": [1, -2.5, True, False, None]}},
    [ODD_TEXT, 9007199254740993, -0.1, [], {"k": "v"}],
    [],
    None,
]
ADDS = """
$insert = $db->prepare('INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (?, ?, ?, ?)');
foreach ($tasks as [$task, $args, $group, $priority]) {
    $insert->execute([$task, $args === null ? null : json_encode($args, $flags), $group, $priority]);
}
"""


@pytest.fixture
def page_on_mysql(php: str, tmp_path: Path, mysql_shop: Shop, mysql_server: MySQLServer) -> Page:
    return Page(php, tmp_path, mysql_server, mysql_shop.database)


def test_a_page_adds_tasks_that_run_at_once_with_exactly_these_arguments(mysql_shop: Shop, page_on_mysql: Page) -> None:
    for flags in ("0", "JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES | JSON_PRETTY_PRINT"):
        tasks = [["tasks.note", args, 3, number] for number, args in enumerate(ARGUMENTS)]
        page_on_mysql.run(PDO + ADDS, tasks, flags)
    mysql_shop.run_quietly(mode="mark")
    called = [[[], args] if isinstance(args, dict) else [args or [], {}] for args in ARGUMENTS]
    assert mysql_shop.noted() == [one for one in called for _ in range(2)]
    assert mysql_shop.sql("SELECT DISTINCT status, attempts, group_id FROM jobs_queue") == [(2, 1, 3)]
    for column in ("created_at", "started_at", "finished_at", "updated_at"):
        seconds = [float(value) for (value,) in mysql_shop.rows(mysql_shop.seconds_between(column, mysql_shop.now))]
        assert all(0 <= one < 60 for one in seconds), column


def test_a_page_in_another_time_zone_delays_tasks_by_its_own_now(mysql_shop: Shop, page_on_mysql: Page) -> None:
    for due_at in ("NOW() + INTERVAL 1 HOUR", "NOW() - INTERVAL 1 MINUTE"):
        for status in (5, 0):
            insert = f"INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.note', {status}, {due_at})"
            page_on_mysql.run(f'{PDO}$db->exec("{insert}");')
    assert_silent(mysql_shop.worker("--mode", "mark"))
    # Both that lie ahead wait, though one was added as new; both that are due ran.
    assert mysql_shop.rows("status, attempts") == [(5, 0), (5, 0), (2, 1), (2, 1)]
    assert [round(seconds or 0, -2) for seconds in mysql_shop.due_in()[:2]] == [3600, 3600]


def test_the_statements_of_the_document_add_tasks_of_each_kind_on_postgresql(postgresql_shop: Shop) -> None:
    shop = postgresql_shop
    (statements,) = [block.text for block in blocks("docs/producers.md") if "WITH parent AS" in block.text]
    shop.define("greet = rebuild_index = charge_card = note\n")
    shop.sql(statements)
    shop.sql("UPDATE jobs_queue SET status = 4, attempts = 3, error_text = 'x' WHERE unique_key = 'page 5'")
    shop.sql(statements)
    shop.run_quietly()
    once = [[["every five minutes"], {}], [[], {}], [["page 5"], {}]]
    assert sorted(map(repr, shop.noted())) == sorted(map(repr, [*once, *[[[17], {}], [["Ada"], {}]] * 2]))
    assert shop.noted().index([[17], {}]) < shop.noted().index([["Ada"], {}])
    assert shop.rows("args, status") == [('["in an hour"]', 5)] * 2
