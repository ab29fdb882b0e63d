"""The PHP files of examples/, each in its real surroundings: they add tasks, and worker.py runs them.

PHP's command line and its own web server, WordPress, and Laravel's database package.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import without
from tests.support.documents import blocks
from tests.support.processes import assert_silent
from tests.support.servers import MySQLServer, free_port
from tests.support.shops import ODD_TEXT, VALUES, Shop
from tests.support.websites import (
    EXAMPLES,
    LARAVEL_PAGE,
    WEB_PASSWORD,
    Answer,
    Page,
    Website,
    WordPress,
    example,
    php_website,
    shown_in_comment,
)

SORRY = Answer(500, "Something went wrong. Please try again later.")
ORDERED = Answer(202, "Thank you! Your order has the number 1.")

PHP_VALUES = """[
    ['to' => 'a@example.org', 'text' => $odd, 'größe' => ['tief' => [1, 2.0, -2.5, true, null]], 'list' => [],
     'dict' => new stdClass],
    [$odd, 9007199254740993],
    [],
]"""


# ---- enqueue.php


@pytest.fixture
def page(php: str, tmp_path: Path, mysql_server: MySQLServer, user: str, mysql_shop: Shop) -> Page:
    """A page that has connected as a user who may INSERT alone."""
    page = Page(php, tmp_path, mysql_server, mysql_shop.database)
    page.place |= {"user": user, "password": WEB_PASSWORD}
    return page


BY_PDO = """
$db = new PDO("mysql:host=$at->host;port=$at->port;dbname=$at->database;charset={charset}", $at->user, $at->password);
$db->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_{errors});
$db->setAttribute(PDO::ATTR_EMULATE_PREPARES, {emulated});
"""
BY_MYSQLI = """
mysqli_report({report});
$db = new mysqli($at->host, $at->user, $at->password, $at->database, $at->port);
$db->set_charset('{charset}');
"""


def by_pdo(charset: str = "utf8mb4", errors: str = "EXCEPTION", emulated: str = "true") -> str:
    return BY_PDO.format(charset=charset, errors=errors, emulated=emulated)


def by_mysqli(charset: str = "utf8mb4", report: str = "MYSQLI_REPORT_ERROR | MYSQLI_REPORT_STRICT") -> str:
    return BY_MYSQLI.format(charset=charset, report=report)


ENQUEUE = f"require {str(EXAMPLES / 'enqueue.php')!r};\n"
BOTH = pytest.mark.parametrize(
    ("connect", "add"), [(by_pdo(), "add_task_by_pdo"), (by_mysqli(), "add_task_by_mysqli")], ids=["PDO", "mysqli"]
)


@pytest.mark.parametrize(
    ("connect", "add"),
    [
        (by_pdo(), "add_task_by_pdo"),
        (by_pdo(emulated="false"), "add_task_by_pdo"),
        (by_pdo(charset="latin1"), "add_task_by_pdo"),
        (by_mysqli(), "add_task_by_mysqli"),
        (by_mysqli(charset="latin1"), "add_task_by_mysqli"),
    ],
    ids=["PDO", "PDO with statements prepared by the server", "PDO in latin1", "mysqli", "mysqli in latin1"],
)
def test_php_values_arrive_unchanged_whatever_the_connection_is(
    mysql_shop: Shop, page: Page, connect: str, add: str
) -> None:
    adds = f"foreach ({PHP_VALUES} as $n => $args) echo {add}($db, 'tasks.note', $args, 3, $n), ' ';"
    mysql_shop.assert_values_arrived(page.run(f"{ENQUEUE}{connect}$odd = $tasks; {adds}", ODD_TEXT))


@BOTH
def test_php_delays_a_task_by_the_clock_of_the_database(mysql_shop: Shop, page: Page, connect: str, add: str) -> None:
    page.run(f"{ENQUEUE}{connect}{add}($db, 'tasks.note', [], 3, 0, 3600);")
    mysql_shop.assert_waits_an_hour()
    mysql_shop.sql("UPDATE jobs_queue SET due_at = NOW(6)")
    mysql_shop.run_all()
    assert mysql_shop.noted() == [[[], {}]]


@pytest.mark.parametrize(
    ("connect", "add", "error"),
    [
        (by_pdo(), "add_task_by_pdo", "PDOException"),
        (by_pdo(errors="SILENT"), "add_task_by_pdo", "RuntimeException"),
        (by_pdo(errors="SILENT", emulated="false"), "add_task_by_pdo", "RuntimeException"),
        (by_mysqli(), "add_task_by_mysqli", "mysqli_sql_exception"),
        (by_mysqli(report="MYSQLI_REPORT_OFF"), "add_task_by_mysqli", "RuntimeException"),
    ],
)
def test_php_that_added_nothing_is_told_so(
    mysql_shop: Shop, page: Page, refuse_tasks: Callable[[], None], connect: str, add: str, error: str
) -> None:
    tries = f"try {{ {add}($db, $tasks); }} catch (Throwable $e) {{ echo get_class($e), ' ', $e->getMessage(); }}"
    printed = page.run(ENQUEUE + connect + tries, "n" * 256)
    assert printed.startswith(error)
    assert "Data too long" in printed
    no_json = f"try {{ {add}($db, 'tasks.note', [chr(255)]); }} catch (JsonException $e) {{ echo $e->getMessage(); }}"
    assert "UTF-8" in page.run(ENQUEUE + connect + no_json)
    refuse_tasks()
    printed = page.run(ENQUEUE + connect + tries, "tasks.note")
    assert printed.startswith(error)
    assert "INSERT command denied" in printed
    assert mysql_shop.rows() == []


@BOTH
def test_a_task_of_php_that_was_rolled_back_never_runs(mysql_shop: Shop, page: Page, connect: str, add: str) -> None:
    begin = "beginTransaction" if "pdo" in add else "begin_transaction"
    work = f"$db->{begin}(); $db->query(\"INSERT INTO orders (customer) VALUES ('Grace')\"); {add}($db, 'tasks.note');"
    for end, count in (("rollback", 0), ("commit", 1)):
        page.run(f"{ENQUEUE}{connect}{work} $db->{end}();")
        assert_silent(mysql_shop.worker())
        assert mysql_shop.noted() == [[[], {}]] * count
    assert mysql_shop.customers() == ["Grace"]


def test_the_calls_in_the_comment_of_enqueue_php_work(mysql_shop: Shop, page: Page) -> None:
    calls = shown_in_comment("enqueue.php").replace("/home/you/enqueue.php", str(EXAMPLES / "enqueue.php"))
    assert calls.count("add_task_by_") == 2
    page.run(f"{by_pdo()}$pdo = $db;{by_mysqli()}{calls}")
    assert mysql_shop.rows("priority, status") == [(10, 0), (10, 5)]
    mysql_shop.run_all()
    assert mysql_shop.noted() == [[[], {"to": "a@example.org"}]]


# ---- page.php


@pytest.fixture
def website(php: str, site: Path, mysql_server: MySQLServer, user: str, mysql_shop: Shop) -> Iterator[Website]:
    """The website with page.php."""
    outside = site.parent / "enqueue.php"
    example("enqueue.php", site.parent)
    where = f"host={mysql_server.host};port={mysql_server.port};dbname={mysql_shop.database}"
    edits = {"/home/you/enqueue.php": str(outside), "host=localhost;dbname=you_site": where}
    example("page.php", site, edits | {"you_web": user, "web-password": WEB_PASSWORD})
    with php_website(php, site) as website:
        yield website


@pytest.mark.usefixtures("four_columns")
def test_a_php_page_adds_a_task_with_its_own_row_and_answers_at_once(mysql_shop: Shop, website: Website) -> None:
    assert website.visit("page.php", {"customer": ODD_TEXT}) == ORDERED
    mysql_shop.assert_ordered()


def test_a_php_page_takes_a_name_alone_and_shows_no_path(mysql_shop: Shop, website: Website) -> None:
    assert website.visit("page.php", {"customer[]": "Grace"}).status == 400
    assert mysql_shop.customers() == []
    assert "PHP Warning" not in website.log


def test_a_php_page_that_cannot_add_the_task_keeps_no_row_and_tells_the_log_alone(
    mysql_shop: Shop, mysql_server: MySQLServer, user: str, website: Website, refuse_tasks: Callable[[], None]
) -> None:
    refuse_tasks()
    assert website.visit("page.php", {"customer": "Grace"}) == SORRY
    assert mysql_shop.customers() == []
    assert "order: " in website.log
    assert "INSERT command denied" in website.log
    mysql_server.execute(f"SET PASSWORD FOR '{user}'@'%' = PASSWORD('another')")
    assert website.visit("page.php", {"customer": "Grace"}) == SORRY
    assert "Access denied" in website.log
    assert WEB_PASSWORD not in website.log


# ---- the pages of the tutorial


def test_the_tutorials_page_tells_the_log_alone_that_the_database_is_away(php: str, tmp_path: Path) -> None:
    pages = {
        block.text.splitlines()[1]: block.text for block in blocks("docs/shared-hosting.md") if block.kind == "php"
    }
    at = f"host=127.0.0.1;port={free_port()}"
    (tmp_path / "queue.php").write_text(pages["// /home/you/queue.php"].replace("host=localhost", at))
    (tmp_path / "site").mkdir()
    hello = pages["// /home/you/public_html/hello.php"].replace("/home/you/", f"{tmp_path}/")
    (tmp_path / "site" / "hello.php").write_text(hello)
    with php_website(php, tmp_path / "site", "-d", "display_errors=1") as website:
        assert website.visit("hello.php") == SORRY
        assert "greet: SQLSTATE" in website.log


# ---- WordPress


@pytest.fixture
def wordpress(php: str, site: Path, mysql_shop: Shop) -> WordPress:
    return WordPress(site, php, mysql_shop.place)


def test_a_comment_in_wordpress_adds_a_task(mysql_shop: Shop, php: str, wordpress: WordPress) -> None:
    form = {"comment_post_ID": "1", "author": "Grüße 🎉 日本語", "email": "a@example.org", "comment": "Well said!"}
    with php_website(php, wordpress.folder) as website:
        wordpress.call(f"update_option('siteurl', {website.url!r}); update_option('home', {website.url!r});")
        answer = website.visit("wp-comments-post.php", form)
    assert answer.status == 200, answer
    ((comment,),) = mysql_shop.sql("SELECT MAX(comment_ID) FROM wp_comments")
    assert mysql_shop.rows("task, group_id") == [("tasks.check_comment", 3)]
    mysql_shop.run_all()
    assert mysql_shop.noted() == [[[], {"comment": comment, "author": form["author"]}]]


def test_wordpress_passes_values_unchanged_at_once_and_later(mysql_shop: Shop, wordpress: WordPress) -> None:
    adds = f"foreach ({PHP_VALUES} as $n => $args) echo taskserver_add_task('tasks.note', $args, 3, $n), ' ';"
    mysql_shop.assert_values_arrived(wordpress.call(adds, ODD_TEXT))
    wordpress.call(f"taskserver_add_task('tasks.note', {PHP_VALUES}[0], 3, 0, 3600);", ODD_TEXT)
    mysql_shop.assert_waits_an_hour()
    mysql_shop.sql("UPDATE jobs_queue SET due_at = NOW(6)")
    mysql_shop.run_all()
    assert repr(mysql_shop.noted()[-1]) == repr(VALUES[0])


def test_wordpress_tells_its_log_alone_that_a_task_was_not_added(mysql_shop: Shop, wordpress: WordPress) -> None:
    log = wordpress.folder / "error.log"
    to_log = f"ini_set('error_log', '{log}'); ini_set('display_errors', '0'); "
    mysql_shop.sql("RENAME TABLE jobs_queue TO elsewhere")
    for delay in (0, 60):
        assert wordpress.call(f"{to_log}echo taskserver_add_task('tasks.note', [], 0, 0, {delay});") == "0"
        assert "taskserver: tasks.note was not added: " in log.read_text()
        assert "jobs_queue' doesn't exist" in log.read_text()
        log.unlink()


def test_a_task_of_wordpress_that_was_rolled_back_never_runs(mysql_shop: Shop, wordpress: WordPress) -> None:
    add = "$wpdb->query('START TRANSACTION'); taskserver_add_task('tasks.note', ['{0}']); $wpdb->query('{0}');"
    wordpress.call(add.format("ROLLBACK"))
    wordpress.call(add.format("COMMIT"))
    assert_silent(mysql_shop.worker())
    assert mysql_shop.noted() == [[["COMMIT"], {}]]


# ---- Laravel

ILLUMINATE = Path("/usr/share/php/Illuminate/Database/autoload.php")
Send = Callable[[str], Answer]


@pytest.fixture
def laravel(php: str, site: Path, user: str, mysql_shop: Shop) -> Iterator[Send]:
    """Sends ODD_TEXT as a customer's name to a page that has Laravel's DB, and this code."""
    if not ILLUMINATE.exists():
        without("Laravel's database package is not there")
    place = mysql_shop.place | {"driver": "mysql", "username": user, "password": WEB_PASSWORD}
    place |= {"charset": "utf8mb4", "collation": "utf8mb4_unicode_ci"}
    words = {"illuminate": ILLUMINATE, "example": example("laravel.php", site.parent), "place": json.dumps(place)}
    # Laravel 8 is older than Debian's PHP.
    with php_website(php, site, "-d", "error_reporting=E_ALL&~E_DEPRECATED") as website:

        def send(code: str) -> Answer:
            (site / "index.php").write_text(LARAVEL_PAGE % {**words, "code": code}, encoding="utf-8")
            return website.visit("", {"customer": ODD_TEXT})

        yield send


def test_a_transaction_of_laravel_adds_an_order_and_its_task_or_neither(
    mysql_shop: Shop, laravel: Send, refuse_tasks: Callable[[], None]
) -> None:
    code = shown_in_comment("laravel.php")
    assert "DB::transaction" in code
    fails = code.replace("});", "throw new Exception('no');});")
    assert laravel(f"try {{ {fails} }} catch (Exception $e) {{ echo $e->getMessage(); }}") == Answer(200, "no")
    assert (mysql_shop.customers(), mysql_shop.rows()) == ([], [])
    assert laravel(f"{code}\necho 'ok';") == Answer(200, "ok")
    ((order, customer),) = mysql_shop.rows("id, customer", "orders")
    assert customer == ODD_TEXT
    mysql_shop.run_all()
    assert mysql_shop.noted() == [[[], {"order": order}]]
    refuse_tasks()
    assert laravel(code).status == 500
    assert mysql_shop.customers() == [ODD_TEXT]


@pytest.mark.usefixtures("four_columns")
def test_laravel_needs_no_more_rights_than_a_task_takes(mysql_shop: Shop, laravel: Send) -> None:
    assert laravel("add_task('tasks.note');").status == 200
    assert len(mysql_shop.rows()) == 1


def test_laravel_passes_values_unchanged_at_once_and_later(mysql_shop: Shop, laravel: Send) -> None:
    answer = laravel(f"foreach ({PHP_VALUES} as $n => $args) echo add_task('tasks.note', $args, 3, $n), ' ';")
    mysql_shop.assert_values_arrived(answer.text)
    assert laravel("add_task('tasks.note', [], 3, 0, 3600);").status == 200
    mysql_shop.assert_waits_an_hour()
