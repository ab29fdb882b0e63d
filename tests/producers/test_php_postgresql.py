"""PHP and plain SQL add tasks to PostgreSQL: by the contract's INSERT, and by examples/enqueue_postgresql.php."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import without
from tests.producers.test_php import ARGUMENTS, JSON_FLAGS, assert_near_now
from tests.producers.test_php_examples import PHP_VALUES
from tests.support.documents import blocks
from tests.support.postgresql import PostgreSQLServer, programs_folder
from tests.support.processes import assert_silent
from tests.support.servers import find_program
from tests.support.shops import ODD_TEXT, Shop
from tests.support.websites import EXAMPLES, WEB_PASSWORD, Page, shown_in_comment

BY_PDO = """
$db = new PDO("pgsql:host=$at->host;port=$at->port;dbname=$at->database", $at->user, $at->password);
$db->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
$db->exec("SET timezone = 'Asia/Tokyo'");
"""
BY_PG = """
$db = pg_connect("host=$at->host port=$at->port dbname=$at->database user=$at->user password=$at->password");
pg_query($db, "SET timezone = 'Asia/Tokyo'");
"""
PDO = f"""{BY_PDO}
$insert = $db->prepare('INSERT INTO jobs_queue (task, args, group_id, priority) VALUES (?, ?, ?, ?)');
foreach ($tasks as [$task, $args, $group, $priority]) {{
    $insert->execute([$task, $args === null ? null : json_encode($args, $flags), $group, $priority]);
}}
"""
PG = f"""{BY_PG}
$insert = 'INSERT INTO jobs_queue (task, args, group_id, priority) VALUES ($1, $2, $3, $4)';
foreach ($tasks as [$task, $args, $group, $priority]) {{
    pg_query_params($db, $insert, [$task, $args === null ? null : json_encode($args, $flags), $group, $priority]);
}}
"""
ENQUEUE = f"require {str(EXAMPLES / 'enqueue_postgresql.php')!r};\n"
BOTH = pytest.mark.parametrize(
    ("connect", "add"), [(BY_PDO, "add_task_by_pdo"), (BY_PG, "add_task_by_pgsql")], ids=["PDO", "pg"]
)


@pytest.fixture(scope="module")
def php_pgsql() -> str:
    path = find_program("php")
    check = 'exit(extension_loaded("pgsql") && extension_loaded("pdo_pgsql") ? 0 : 1);'
    if path is None or subprocess.run([path, "-r", check], check=False, capture_output=True).returncode != 0:
        without("PHP with pgsql and PDO is not installed")
    return path


@pytest.fixture
def shop(postgresql_shop: Shop) -> Shop:
    return postgresql_shop


@pytest.fixture
def page(php_pgsql: str, tmp_path: Path, shop: Shop, postgresql_server: PostgreSQLServer) -> Page:
    return Page(php_pgsql, tmp_path, postgresql_server, shop.database)


@pytest.fixture
def least_rights(shop: Shop, page: Page) -> Iterator[str]:
    """The page's user may do what the example says, and nothing else; the user's name."""
    name = f"web_{shop.database}"
    shop.sql(f"CREATE ROLE {name} LOGIN PASSWORD '{WEB_PASSWORD}'")
    columns = "task, args, group_id, priority, status, due_at"
    shop.sql(f"GRANT INSERT ({columns}), SELECT (id) ON jobs_queue TO {name}")
    shop.sql(f"GRANT INSERT ON orders TO {name}; GRANT USAGE ON SEQUENCE orders_id_seq TO {name}")
    page.place |= {"user": name, "password": WEB_PASSWORD}
    yield name
    shop.sql(f"DROP OWNED BY {name}")
    shop.sql(f"DROP ROLE {name}")


@pytest.mark.parametrize("way", [PDO, PG], ids=["PDO", "pg"])
def test_a_page_adds_tasks_that_run_at_once_with_exactly_these_arguments(shop: Shop, page: Page, way: str) -> None:
    for flags in JSON_FLAGS:
        page.run(way, [["tasks.note", args, 3, number] for number, args in enumerate(ARGUMENTS)], flags)
    assert_near_now(shop, "created_at", "updated_at")
    assert_silent(shop.worker(100, "3,5,6", "--mode", "mark"))
    called = [[[], args] if isinstance(args, dict) else [args or [], {}] for args in ARGUMENTS]
    assert shop.noted() == [one for one in called for _ in JSON_FLAGS]
    assert shop.sql("SELECT DISTINCT status, attempts, group_id FROM jobs_queue") == [(2, 1, 3)]
    assert shop.sql("SELECT id FROM jobs_queue WHERE created_at > started_at OR started_at > finished_at") == []


@pytest.mark.usefixtures("least_rights")
@BOTH
@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1"])
def test_php_values_arrive_unchanged_with_the_least_rights(
    shop: Shop, page: Page, connect: str, add: str, encoding: str
) -> None:
    encoded = (
        f"$db->exec(\"SET client_encoding = '{encoding}'\");"
        if "PDO" in connect
        else (f"pg_set_client_encoding($db, '{encoding}');")
    )
    adds = f"foreach ({PHP_VALUES} as $n => $args) echo {add}($db, 'tasks.note', $args, 3, $n), ' ';"
    shop.assert_values_arrived(page.run(f"{ENQUEUE}{connect}{encoded}$odd = $tasks; {adds}", ODD_TEXT))


@pytest.mark.usefixtures("least_rights")
@BOTH
def test_php_delays_a_task_by_the_clock_of_the_database(shop: Shop, page: Page, connect: str, add: str) -> None:
    page.run(f"{ENQUEUE}{connect}{add}($db, 'tasks.note', [], 3, 0, 3600);")
    shop.assert_waits_an_hour()


@BOTH
def test_php_that_added_nothing_is_told_so(shop: Shop, page: Page, connect: str, add: str) -> None:
    for errors in ("EXCEPTION", "SILENT"):
        silent = f"$db->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_{errors});" if "PDO" in connect else ""
        tries = f"try {{ {add}($db, $tasks); }} catch (Throwable $e) {{ echo get_class($e), ' ', $e->getMessage(); }}"
        printed = page.run("restore_error_handler();" + ENQUEUE + connect + silent + tries, "n" * 256)
        assert printed.startswith("PDOException" if silent and errors == "EXCEPTION" else "RuntimeException")
        assert "value too long" in printed
    assert shop.rows() == []


@BOTH
def test_a_task_of_php_that_was_rolled_back_never_runs(shop: Shop, page: Page, connect: str, add: str) -> None:
    send = "$db->exec" if "PDO" in connect else "$send"
    prepared = "$send = function ($sql) use ($db) { pg_query($db, $sql); };"
    for end, count in (("ROLLBACK", 0), ("COMMIT", 1)):
        order = f"{send}('BEGIN'); {send}(\"INSERT INTO orders (customer) VALUES ('Grace')\");"
        page.run(f"{ENQUEUE}{connect}{prepared}{order} {add}($db, 'tasks.note'); {send}('{end}');")
        assert_silent(shop.worker())
        assert shop.noted() == [[[], {}]] * count
    assert shop.customers() == ["Grace"]


def test_the_calls_in_the_comment_of_the_example_work(shop: Shop, page: Page) -> None:
    name = "enqueue_postgresql.php"
    calls = shown_in_comment(name).replace(f"/home/you/{name}", str(EXAMPLES / name))
    assert calls.count("add_task_by_") == 2
    page.run(f"{BY_PDO}$pdo = $db;{BY_PG}{calls}")
    assert shop.rows("priority, status") == [(10, 0), (10, 5)]


def test_the_statements_of_the_document_add_tasks_of_each_kind(shop: Shop) -> None:
    (statements,) = [block.text for block in blocks("docs/producers.md") if "WITH parent AS" in block.text]
    shop.define("greet = rebuild_index = charge_card = note\n")
    shop.sql(statements)
    shop.sql("UPDATE jobs_queue SET status = 4, attempts = 3, error_text = 'x' WHERE unique_key = 'page 5'")
    shop.sql(statements)
    assert_silent(shop.worker())
    once = [[["every five minutes"], {}], [[], {}], [["page 5"], {}]]
    assert sorted(map(repr, shop.noted())) == sorted(map(repr, [*once, *[[[17], {}], [["Ada"], {}]] * 2]))
    assert shop.noted().index([[17], {}]) < shop.noted().index([["Ada"], {}])
    assert shop.rows("args, status") == [('["in an hour"]', 5)] * 2


def test_psql_adds_a_task_by_the_contracts_insert(shop: Shop, postgresql_server: PostgreSQLServer) -> None:
    folder = programs_folder()
    psql = find_program("psql") or str(folder and folder / "psql")
    insert = """
        INSERT INTO jobs_queue (task, args, group_id, priority) VALUES ('tasks.note', '{"to": "a@example.org"}', 3, 10);
        INSERT INTO jobs_queue (task, status, due_at) VALUES ('tasks.note', 5, now() + interval '1 hour');
    """
    place = {f"PG{name.upper()}": str(shop.place[name]) for name in ("host", "port", "user", "password")}
    command = [psql, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", shop.database]
    subprocess.run(command, input=insert, text=True, env=os.environ | place, check=True)
    assert_silent(shop.worker())
    assert shop.noted() == [[[], {"to": "a@example.org"}]]
    assert [round(seconds or 0, -2) for seconds in shop.due_in()] == [3600]
