"""The files of examples/, each in its real surroundings: they add tasks, and worker.py runs them.

PHP's and Python's own web servers, a CGI script, Django with mysqlclient, WordPress, and Laravel's database package.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from taskserver.stores.database.database import IDLE_SECONDS
from tests.conftest import without
from tests.support.deployment import ROOT
from tests.support.processes import assert_silent
from tests.support.queues import Queue
from tests.support.servers import MySQLServer
from tests.support.websites import (
    EXAMPLES,
    WEB_PASSWORD,
    Answer,
    Page,
    Website,
    example,
    php_website,
    run_cgi,
    shown_in_comment,
    web_user,
    wsgi_website,
)

TASKS = """
import json

note_text = note


def note(*args, **kwargs):
    note_text(json.dumps([args, kwargs]))


def send_letter(**kwargs):
    note(**kwargs)


confirm_order = check_comment = send_letter
"""

ODD_TEXT = "Grüße 🎉 日本語 'quoted' \"twice\" \\ back / slash \t tab %s %d ? {x} <b>bold</b>"
SORRY = Answer(500, "Something went wrong. Please try again later.")
LATER = [(5, 0, 3600)]
DELAYED = "SELECT status, attempts, ROUND(TIMESTAMPDIFF(SECOND, NOW(6), due_at), -2) FROM jobs_queue"

PHP_VALUES = """[
    ['to' => 'a@example.org', 'text' => $odd, 'größe' => ['tief' => [1, 2.0, -2.5, true, null]], 'list' => [],
     'dict' => new stdClass],
    [$odd, 9007199254740993],
    [],
]"""
VALUES: list[list[Any]] = [
    [
        [],
        {
            "to": "a@example.org",
            "text": ODD_TEXT,
            "größe": {"tief": [1, 2.0, -2.5, True, None]},
            "list": [],
            "dict": {},
        },
    ],
    [[ODD_TEXT, 9007199254740993], {}],
    [[], {}],
]


@pytest.fixture
def database(mysql_queue: Queue) -> str:
    return mysql_queue.dsn.rpartition("/")[2]


@pytest.fixture
def site(mysql_queue: Queue, tmp_path: Path) -> Path:
    """The folder of a website whose database has a table of orders beside the queue."""
    mysql_queue.sql(
        "CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, customer VARCHAR(100) NOT NULL) "
        "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"
    )
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def user(mysql_server: MySQLServer, site: Path, database: str) -> Iterator[str]:
    """May INSERT orders and tasks, and nothing else."""
    with web_user(mysql_server, database, "jobs_queue", "orders") as name:
        yield name


def noted(queue: Queue) -> list[Any]:
    return [json.loads(line) for line in queue.notes()]


def assert_same(came: list[Any], values: list[Any]) -> None:
    """In their types too: 2.0 equals 2, and is another thing."""
    assert list(map(repr, came)) == list(map(repr, values))


def run_all(queue: Queue) -> None:
    assert_silent(queue.worker(100, "3,5,6"))


def refuse_tasks(server: MySQLServer, database: str, user: str) -> None:
    """From here on the website may add orders, but no tasks."""
    server.execute(f"REVOKE INSERT ON `{database}`.jobs_queue FROM '{user}'@'%'")


# ---- enqueue.php


@pytest.fixture
def page(php: str, tmp_path: Path, mysql_server: MySQLServer, user: str, database: str) -> Page:
    """A page that has connected as a user who may INSERT alone."""
    page = Page(php, tmp_path, mysql_server, database)
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
BOTH = pytest.mark.parametrize(("connect", "add"), [(by_pdo, "add_task_by_pdo"), (by_mysqli, "add_task_by_mysqli")])


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
    mysql_queue: Queue, page: Page, connect: str, add: str
) -> None:
    adds = f"foreach ({PHP_VALUES} as $n => $args) echo {add}($db, 'tasks.note', $args, 3, $n), ' ';"
    printed = page.run(f"{ENQUEUE}{connect}$odd = $tasks; {adds}", ODD_TEXT)
    assert [int(word) for word in printed.split()] == [task_id for (task_id,) in mysql_queue.rows("id")]
    run_all(mysql_queue)
    assert_same(noted(mysql_queue), VALUES)


@BOTH
def test_php_delays_a_task_by_the_clock_of_the_database(
    mysql_queue: Queue, page: Page, connect: Callable[[], str], add: str
) -> None:
    page.run(f"{ENQUEUE}{connect()}{add}($db, 'tasks.note', [], 3, 0, 3600);")
    run_all(mysql_queue)
    assert mysql_queue.sql(DELAYED) == LATER
    mysql_queue.sql("UPDATE jobs_queue SET due_at = NOW(6)")
    run_all(mysql_queue)
    assert noted(mysql_queue) == [[[], {}]]


# The clocks go forward by an hour at this instant.
LEAP = 1774746000
ZONE = f"""
INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N');
SET @zone = LAST_INSERT_ID();
INSERT INTO mysql.time_zone_name VALUES ('{{name}}', @zone);
INSERT INTO mysql.time_zone_transition_type VALUES (@zone, 0, 3600, 0, 'CET'), (@zone, 1, 7200, 1, 'CEST');
INSERT INTO mysql.time_zone_transition VALUES (@zone, {LEAP - 15_000_000}, 0), (@zone, {LEAP}, 1)
"""


@BOTH
def test_php_delays_a_task_into_the_hour_that_the_clocks_leave_out(
    mysql_queue: Queue,
    page: Page,
    mysql_server: MySQLServer,
    database: str,
    connect: Callable[[], str],
    add: str,
) -> None:
    mysql_server.execute(*ZONE.format(name=f"Zone/{database}").split(";\n"))
    shortly_before = f"$db->query(\"SET time_zone = 'Zone/{database}', timestamp = {LEAP} - 1800\");"
    page.run(f"{ENQUEUE}{connect()}{shortly_before}{add}($db, 'tasks.note', [], 3, 0, 3600);")
    assert mysql_queue.sql("SELECT UNIX_TIMESTAMP(due_at) FROM jobs_queue") == [(LEAP + 1800,)]
    by_interval = "$db->query('INSERT INTO jobs_queue (task, due_at) VALUES (1, NOW() + INTERVAL 1 HOUR)');"
    error = page.run(f"{connect()}{shortly_before}try {{ {by_interval} }} catch (Exception $e) {{ echo $e; }}")
    assert "Incorrect datetime value" in error  # or the example could be shorter


ERRORS = [
    (by_pdo(), "add_task_by_pdo", "PDOException"),
    (by_pdo(errors="SILENT"), "add_task_by_pdo", "RuntimeException"),
    (by_pdo(errors="SILENT", emulated="false"), "add_task_by_pdo", "RuntimeException"),
    (by_mysqli(), "add_task_by_mysqli", "mysqli_sql_exception"),
    (by_mysqli(report="MYSQLI_REPORT_OFF"), "add_task_by_mysqli", "RuntimeException"),
]


@pytest.mark.parametrize(("connect", "add", "error"), ERRORS)
def test_php_that_added_nothing_is_told_so(
    page: Page, mysql_server: MySQLServer, database: str, user: str, connect: str, add: str, error: str
) -> None:
    tries = f"try {{ {add}($db, $tasks); }} catch (Throwable $e) {{ echo get_class($e), ' ', $e->getMessage(); }}"
    printed = page.run(ENQUEUE + connect + tries, "n" * 256)
    assert printed.startswith(error)
    assert "Data too long" in printed
    refuse_tasks(mysql_server, database, user)
    printed = page.run(ENQUEUE + connect + tries, "tasks.note")
    assert printed.startswith(error)
    assert "INSERT command denied" in printed


@BOTH
def test_php_that_gives_what_json_cannot_hold_is_told_so(
    mysql_queue: Queue, page: Page, connect: Callable[[], str], add: str
) -> None:
    tries = f"try {{ {add}($db, 'tasks.note', [chr(255)]); }} catch (JsonException $e) {{ echo $e->getMessage(); }}"
    assert "UTF-8" in page.run(ENQUEUE + connect() + tries)
    assert mysql_queue.rows() == []


@pytest.mark.parametrize(
    ("connect", "add", "begin"),
    [
        (by_pdo, "add_task_by_pdo", "beginTransaction"),
        (by_mysqli, "add_task_by_mysqli", "begin_transaction"),
    ],
)
def test_a_task_of_php_that_was_rolled_back_never_runs(
    mysql_queue: Queue, page: Page, connect: Callable[[], str], add: str, begin: str
) -> None:
    work = f"$db->{begin}(); $db->query(\"INSERT INTO orders (customer) VALUES ('Grace')\"); {add}($db, 'tasks.note');"
    page.run(f"{ENQUEUE}{connect()}{work} $db->rollback();")
    assert_silent(mysql_queue.worker())
    assert (noted(mysql_queue), mysql_queue.rows(table="orders")) == ([], [])
    page.run(f"{ENQUEUE}{connect()}{work} $db->commit();")
    assert_silent(mysql_queue.worker())
    assert (noted(mysql_queue), len(mysql_queue.rows(table="orders"))) == ([[[], {}]], 1)


def test_the_calls_in_the_comment_of_enqueue_php_work(mysql_queue: Queue, page: Page, tmp_path: Path) -> None:
    calls = shown_in_comment("enqueue.php").replace("/home/you/enqueue.php", str(EXAMPLES / "enqueue.php"))
    assert calls.count("add_task_by_") == 2
    page.run(f"{by_pdo()}$pdo = $db;{by_mysqli()}{calls}")
    assert mysql_queue.rows("priority, status") == [(10, 0), (10, 5)]
    run_all(mysql_queue)
    assert noted(mysql_queue) == [[[], {"to": "a@example.org"}]]


# ---- page.php


@pytest.fixture
def shop(php: str, site: Path, mysql_server: MySQLServer, user: str, database: str) -> Iterator[Website]:
    """The website with page.php."""
    outside = site.parent / "enqueue.php"
    example("enqueue.php", site.parent)
    where = f"host={mysql_server.host};port={mysql_server.port};dbname={database}"
    edits = {"/home/you/enqueue.php": str(outside), "host=localhost;dbname=you_site": where}
    example("page.php", site, edits | {"you_web": user, "web-password": WEB_PASSWORD})
    with php_website(php, site) as website:
        yield website


def orders(queue: Queue) -> list[tuple[Any, ...]]:
    return queue.rows("id, customer", "orders")


def test_a_php_page_adds_a_task_with_its_own_row_and_answers_at_once(mysql_queue: Queue, shop: Website) -> None:
    answer = shop.visit("page.php", {"customer": ODD_TEXT})
    assert answer == Answer(202, "Thank you! Your order has the number 1.")
    assert orders(mysql_queue) == [(1, ODD_TEXT)]
    run_all(mysql_queue)
    assert noted(mysql_queue) == [[[], {"order": 1, "customer": ODD_TEXT}]]


def test_a_php_page_that_cannot_add_the_task_keeps_no_row_and_tells_the_log_alone(
    mysql_queue: Queue, mysql_server: MySQLServer, database: str, user: str, shop: Website
) -> None:
    refuse_tasks(mysql_server, database, user)
    assert shop.visit("page.php", {"customer": "Grace"}) == SORRY
    assert orders(mysql_queue) == []
    assert "order: " in shop.log
    assert "INSERT command denied" in shop.log


def test_a_php_page_without_a_database_tells_the_log_alone_and_no_password(
    mysql_server: MySQLServer, user: str, shop: Website
) -> None:
    mysql_server.execute(f"SET PASSWORD FOR '{user}'@'%' = PASSWORD('another')")
    assert shop.visit("page.php", {"customer": "Grace"}) == SORRY
    assert "Access denied" in shop.log
    assert WEB_PASSWORD not in shop.log


# ---- WordPress

WORDPRESS_FOLDERS = [Path("/usr/share/wordpress"), ROOT / ".servers" / "wordpress" / "usr" / "share" / "wordpress"]
WP_CONFIG = """<?php
define('DB_NAME', '{database}');
define('DB_USER', '{user}');
define('DB_PASSWORD', '{password}');
define('DB_HOST', '{host}:{port}');
define('DB_CHARSET', 'utf8mb4');
define('DB_COLLATE', '');
define('WP_HTTP_BLOCK_EXTERNAL', true);
define('DISABLE_WP_CRON', true);
$table_prefix = 'wp_';
defined('ABSPATH') || define('ABSPATH', __DIR__ . '/');
require ABSPATH . 'wp-settings.php';
"""
LOAD_WORDPRESS = """<?php
$_SERVER['HTTP_HOST'] = '127.0.0.1';
$_SERVER['REQUEST_URI'] = '/';
function wp_mail() { return true; }
"""
INSTALL_WORDPRESS = """
define('WP_INSTALLING', true);
require 'wp-load.php';
require ABSPATH . 'wp-admin/includes/upgrade.php';
wp_install('A site', 'admin', 'a@example.org', false, '', 'password');
"""


class WordPress:
    """An installed WordPress with our plugin, in the queue's own database."""

    def __init__(self, program: Path, folder: Path, php: str, server: MySQLServer, database: str) -> None:
        self.folder = folder
        self._php = php
        for file in program.glob("*.php"):
            (folder / file.name).write_bytes(file.read_bytes())
        for name in ("wp-includes", "wp-admin"):
            (folder / name).symlink_to(program / name)
        place = {"user": server.user, "password": server.password, "host": server.host, "port": server.port}
        (folder / "wp-config.php").write_text(WP_CONFIG.format(database=database, **place))
        self.run(INSTALL_WORDPRESS)
        example("wordpress.php", folder / "wp-content" / "mu-plugins")

    def run(self, code: str) -> str:
        """Code in WordPress' folder, by PHP's command line. What it prints."""
        script = self.folder / "script.php"
        script.write_text(LOAD_WORDPRESS + code, encoding="utf-8")
        ended = subprocess.run([self._php, str(script)], cwd=self.folder, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout
        return ended.stdout

    def call(self, code: str) -> str:
        return self.run(f"require 'wp-load.php';\n{code}")


@pytest.fixture
def wordpress(php: str, site: Path, mysql_server: MySQLServer, database: str) -> WordPress:
    program = next((folder for folder in WORDPRESS_FOLDERS if (folder / "wp-settings.php").exists()), None)
    if program is None:
        without("WordPress is not there")
    return WordPress(program, site, php, mysql_server, database)


def test_a_comment_in_wordpress_adds_a_task(mysql_queue: Queue, php: str, wordpress: WordPress) -> None:
    form = {"comment_post_ID": "1", "author": "Grüße 🎉 日本語", "email": "a@example.org", "comment": "Well said!"}
    with php_website(php, wordpress.folder) as website:
        wordpress.call(f"update_option('siteurl', {website.url!r}); update_option('home', {website.url!r});")
        answer = website.visit("wp-comments-post.php", form)
    assert answer.status == 200, answer
    ((comment,),) = mysql_queue.sql("SELECT MAX(comment_ID) FROM wp_comments")
    assert mysql_queue.rows("task, group_id") == [("tasks.check_comment", 3)]
    run_all(mysql_queue)
    assert noted(mysql_queue) == [[[], {"comment": comment, "author": form["author"]}]]


def test_wordpress_passes_values_unchanged_and_gets_ids(mysql_queue: Queue, wordpress: WordPress) -> None:
    odd = f"$odd = json_decode(<<<'E'\n{json.dumps(ODD_TEXT)}\nE);\n"
    adds = f"foreach ({PHP_VALUES} as $n => $args) echo taskserver_add_task('tasks.note', $args, 3, $n), ' ';"
    printed = wordpress.call(odd + adds)
    assert [int(word) for word in printed.split()] == [task_id for (task_id,) in mysql_queue.rows("id")]
    run_all(mysql_queue)
    assert_same(noted(mysql_queue), VALUES)


def test_wordpress_delays_a_task_with_the_same_values(mysql_queue: Queue, wordpress: WordPress) -> None:
    odd = f"$odd = json_decode(<<<'E'\n{json.dumps(ODD_TEXT)}\nE);\n"
    wordpress.call(f"{odd}taskserver_add_task('tasks.note', {PHP_VALUES}[0], 3, 0, 3600);")
    run_all(mysql_queue)
    assert mysql_queue.sql(DELAYED) == LATER
    mysql_queue.sql("UPDATE jobs_queue SET due_at = NOW(6)")
    run_all(mysql_queue)
    assert_same(noted(mysql_queue), VALUES[:1])


def test_wordpress_tells_its_log_alone_that_a_task_was_not_added(mysql_queue: Queue, wordpress: WordPress) -> None:
    log = wordpress.folder / "error.log"
    to_log = f"ini_set('error_log', '{log}'); ini_set('display_errors', '0'); "
    mysql_queue.sql("RENAME TABLE jobs_queue TO elsewhere")
    for delay in (0, 60):
        assert wordpress.call(f"{to_log}echo taskserver_add_task('tasks.note', [], 0, 0, {delay});") == "0"
        assert "taskserver: tasks.note was not added: " in log.read_text()
        assert "jobs_queue' doesn't exist" in log.read_text()
        log.unlink()


def test_a_task_of_wordpress_that_was_rolled_back_never_runs(mysql_queue: Queue, wordpress: WordPress) -> None:
    add = "$wpdb->query('START TRANSACTION'); taskserver_add_task('tasks.note', ['{0}']); $wpdb->query('{0}');"
    wordpress.call(add.format("ROLLBACK"))
    wordpress.call(add.format("COMMIT"))
    assert_silent(mysql_queue.worker())
    assert noted(mysql_queue) == [[["COMMIT"], {}]]


# ---- Laravel

ILLUMINATE = Path("/usr/share/php/Illuminate/Database/autoload.php")
LARAVEL_PAGE = """<?php
require '%(illuminate)s';
require '%(example)s';

use Illuminate\\Support\\Facades\\DB;

$app = new Illuminate\\Container\\Container;
Illuminate\\Support\\Facades\\Facade::setFacadeApplication($app);
$manager = new Illuminate\\Database\\Capsule\\Manager($app);
$manager->addConnection(json_decode('%(place)s', true));
$app->instance('db', $manager->getDatabaseManager());

$customer = $_POST['customer'];
$odd = $customer;
%(code)s
"""


Send = Callable[..., Answer]


@pytest.fixture
def laravel(php: str, site: Path, mysql_server: MySQLServer, user: str, database: str) -> Iterator[Send]:
    """Sends a customer's name to a page that has Laravel's DB, and this code."""
    if not ILLUMINATE.exists():
        without("Laravel's database package is not there")
    place = {
        "driver": "mysql",
        "host": mysql_server.host,
        "port": mysql_server.port,
        "database": database,
        "username": user,
        "password": WEB_PASSWORD,
        "charset": "utf8mb4",
        "collation": "utf8mb4_unicode_ci",
    }
    words = {"illuminate": ILLUMINATE, "example": example("laravel.php", site.parent), "place": json.dumps(place)}
    # Laravel 8 is older than Debian's PHP.
    with php_website(php, site, "-d", "error_reporting=E_ALL&~E_DEPRECATED") as website:

        def send(code: str, customer: str = ODD_TEXT) -> Answer:
            (site / "index.php").write_text(LARAVEL_PAGE % {**words, "code": code}, encoding="utf-8")
            return website.visit("", {"customer": customer})

        yield send


def test_a_transaction_of_laravel_adds_an_order_and_its_task(mysql_queue: Queue, laravel: Send) -> None:
    code = shown_in_comment("laravel.php")
    assert "DB::transaction" in code
    assert laravel(f"{code}\necho 'ok';") == Answer(200, "ok")
    assert orders(mysql_queue) == [(1, ODD_TEXT)]
    run_all(mysql_queue)
    assert noted(mysql_queue) == [[[], {"order": 1}]]


def test_a_transaction_of_laravel_that_fails_leaves_neither(mysql_queue: Queue, laravel: Send) -> None:
    code = shown_in_comment("laravel.php").replace("});", "throw new Exception('no');});")
    assert laravel(f"try {{ {code} }} catch (Exception $e) {{ echo $e->getMessage(); }}") == Answer(200, "no")
    assert_silent(mysql_queue.worker())
    assert (orders(mysql_queue), noted(mysql_queue), mysql_queue.rows()) == ([], [], [])


def test_an_order_of_laravel_whose_task_cannot_be_added_is_rolled_back(
    mysql_queue: Queue, mysql_server: MySQLServer, database: str, user: str, laravel: Send
) -> None:
    refuse_tasks(mysql_server, database, user)
    assert laravel(shown_in_comment("laravel.php")).status == 500
    assert orders(mysql_queue) == []


def test_laravel_passes_values_unchanged_and_gets_ids(mysql_queue: Queue, laravel: Send) -> None:
    answer = laravel(f"foreach ({PHP_VALUES} as $n => $args) echo add_task('tasks.note', $args, 3, $n), ' ';")
    assert [int(word) for word in answer.text.split()] == [task_id for (task_id,) in mysql_queue.rows("id")]
    run_all(mysql_queue)
    assert_same(noted(mysql_queue), VALUES)


def test_laravel_delays_a_task_by_the_clock_of_the_database(mysql_queue: Queue, laravel: Send) -> None:
    assert laravel("add_task('tasks.note', [], 3, 0, 3600);").status == 200
    assert mysql_queue.sql(DELAYED) == LATER


# ---- Django

DJANGO_PYTHON = "/usr/bin/python3"
DJANGO_SETTINGS = """
SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "urls"
USE_TZ = True
LOGGING = {{
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {{"log": {{"class": "logging.StreamHandler"}}}},
    "root": {{"handlers": ["log"], "level": "WARNING"}},
}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {{
    "default": {{
        "ENGINE": "django.db.backends.mysql",
        "HOST": "{host}",
        "PORT": "{port}",
        "NAME": "{database}",
        "USER": "{user}",
        "PASSWORD": "{password}",
        "OPTIONS": {{"charset": "utf8mb4"}},
    }}
}}
"""
DJANGO_FILES = {
    "urls.py": "from django.urls import path\nfrom django_page import order\nurlpatterns = [path('order', order)]\n",
    "shop/__init__.py": "",
    "shop/models.py": (
        "from django.db import models\n\n\nclass Order(models.Model):\n"
        "    customer = models.CharField(max_length=100)\n\n"
        "    class Meta:\n        db_table = 'orders'\n"
    ),
    "site_wsgi.py": (
        "import os\nos.environ['DJANGO_SETTINGS_MODULE'] = 'settings'\n"
        "from django.core.wsgi import get_wsgi_application\napplication = get_wsgi_application()\n"
    ),
}


class DjangoSite:
    """A Django site with django_page.py, on the Python that has Django and mysqlclient."""

    def __init__(self, folder: Path, server: MySQLServer, database: str, user: str) -> None:
        self.folder = folder
        place = {"host": server.host, "port": server.port, "database": database}
        settings = DJANGO_SETTINGS.format(user=user, password=WEB_PASSWORD, **place)
        for name, text in {"settings.py": settings, **DJANGO_FILES}.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        example("django_page.py", folder)

    def run(self, code: str, *args: str) -> str:
        """Code inside the site, after `import site_wsgi`. What it prints."""
        program = f"import sys; sys.path.insert(0, sys.argv.pop(1)); import site_wsgi, json\n{code}"
        command = [DJANGO_PYTHON, "-c", program, str(self.folder), *args]
        ended = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture
def django(site: Path, mysql_server: MySQLServer, database: str, user: str) -> DjangoSite:
    check = [DJANGO_PYTHON, "-c", "import django, MySQLdb"]
    if not Path(DJANGO_PYTHON).exists() or subprocess.run(check, capture_output=True).returncode != 0:
        without(f"{DJANGO_PYTHON} has no Django with mysqlclient")
    # Django has MariaDB return the ids of its own rows.
    mysql_server.execute(f"GRANT SELECT ON `{database}`.orders TO '{user}'@'%'")
    return DjangoSite(site, mysql_server, database, user)


def test_a_django_page_adds_a_task_with_its_own_row_and_answers_at_once(mysql_queue: Queue, django: DjangoSite) -> None:
    with wsgi_website(DJANGO_PYTHON, django.folder, "site_wsgi") as website:
        answer = website.visit("order", {"customer": ODD_TEXT})
        assert website.visit("order").status == 405
    assert answer == Answer(202, "Thank you! Your order has the number 1.")
    assert orders(mysql_queue) == [(1, ODD_TEXT)]
    run_all(mysql_queue)
    assert noted(mysql_queue) == [[[], {"order": 1, "customer": ODD_TEXT}]]


def test_a_django_page_that_cannot_add_the_task_keeps_no_row_and_tells_the_log_alone(
    mysql_queue: Queue, mysql_server: MySQLServer, database: str, user: str, django: DjangoSite
) -> None:
    refuse_tasks(mysql_server, database, user)
    with wsgi_website(DJANGO_PYTHON, django.folder, "site_wsgi") as website:
        answer = website.visit("order", {"customer": "Grace"})
        log = website.log
    assert answer.status == 500
    assert "jobs_queue" not in answer.text
    assert "INSERT command denied" in log
    assert orders(mysql_queue) == []


ROLLED_BACK = """
from django.db import transaction
from django_page import add_task
from shop.models import Order

for fails in (True, False):
    try:
        with transaction.atomic():
            Order.objects.create(customer="Grace")
            add_task("tasks.note", [fails])
            if fails:
                raise ValueError
    except ValueError:
        pass
"""


def test_a_task_of_django_that_was_rolled_back_never_runs(mysql_queue: Queue, django: DjangoSite) -> None:
    django.run(ROLLED_BACK)
    assert_silent(mysql_queue.worker())
    assert noted(mysql_queue) == [[[False], {}]]
    assert len(orders(mysql_queue)) == 1


def test_django_passes_values_unchanged_and_gets_ids(mysql_queue: Queue, django: DjangoSite) -> None:
    add = "from django_page import add_task\nfor n, args in enumerate(json.loads(sys.argv[1])):\n"
    values = [keywords or args or None for args, keywords in VALUES]
    printed = django.run(f"{add}    print(add_task('tasks.note', args, group_id=3, priority=n))", json.dumps(values))
    assert [int(word) for word in printed.split()] == [task_id for (task_id,) in mysql_queue.rows("id")]
    run_all(mysql_queue)
    assert_same(noted(mysql_queue), VALUES)


def test_django_delays_a_task_by_the_clock_of_the_database(mysql_queue: Queue, django: DjangoSite) -> None:
    django.run("from django_page import add_task; add_task('tasks.note', delay_seconds=3600)")
    assert mysql_queue.sql(DELAYED) == LATER


# ---- Python pages with the API

FOLDER = "/home/you/taskserver"
FORM = {"text": ODD_TEXT}
LETTER = [[], {"to": "owner@example.org", "text": ODD_TEXT}]
THANKS = Answer(202, "Thank you! Your message is on its way.")
SORRY_FOR_NOW = SORRY._replace(status=503)


@pytest.fixture
def settings(site: Path, mysql_server: MySQLServer, user: str, database: str) -> Path:
    """The folder of the website's own .env, which names the user who may INSERT alone."""
    dsn = f"mysql://{user}@{mysql_server.host}:{mysql_server.port}/{database}"
    folder = site.parent / "web_settings"
    folder.mkdir()
    (folder / ".env").write_text(f"TASKSERVER_DSN='{dsn}'\nTASKSERVER_PASSWORD='{WEB_PASSWORD}'\n")
    return folder


def python_page(name: str, site: Path, queue: Queue, settings: Path, **edits: str) -> Path:
    """A page that imports the queue's taskserver and has settings of its own."""
    places = {f'(0, "{FOLDER}")': f'(0, "{queue.folder}")', f'from_env("{FOLDER}")': f'from_env("{settings}")'}
    return example(name, site, places | edits)


@pytest.fixture
def wsgi(mysql_queue: Queue, site: Path, settings: Path) -> Iterator[Website]:
    page = python_page("wsgi_page.py", site, mysql_queue, settings)
    with wsgi_website(sys.executable, site, page.stem) as website:
        yield website


def test_a_wsgi_page_adds_tasks_on_a_connection_that_it_keeps(mysql_queue: Queue, user: str, wsgi: Website) -> None:
    connections = f"SELECT id FROM information_schema.processlist WHERE user = '{user}'"
    assert wsgi.visit("", FORM) == THANKS
    kept = mysql_queue.sql(connections)
    assert wsgi.visit("", FORM) == THANKS
    assert mysql_queue.sql(connections) == kept
    assert len(kept) == 1
    run_all(mysql_queue)
    assert noted(mysql_queue) == [LETTER, LETTER]


def test_a_wsgi_page_goes_on_after_its_connection_was_dropped(
    mysql_queue: Queue, mysql_server: MySQLServer, user: str, wsgi: Website
) -> None:
    assert wsgi.visit("", FORM) == THANKS
    time.sleep(IDLE_SECONDS)  # only a connection that lay idle is asked whether it still stands
    mysql_server.execute(f"KILL USER '{user}'@'%'")
    assert wsgi.visit("", FORM) == THANKS
    assert len(mysql_queue.rows()) == 2


def test_a_wsgi_page_that_cannot_add_tells_the_log_alone(
    mysql_server: MySQLServer, database: str, user: str, wsgi: Website
) -> None:
    refuse_tasks(mysql_server, database, user)
    assert wsgi.visit("", FORM) == SORRY_FOR_NOW
    assert "send_letter: " in wsgi.log
    assert "denied" in wsgi.log
    assert "Traceback" not in wsgi.log


def test_a_wsgi_page_asks_for_its_form(mysql_queue: Queue, wsgi: Website) -> None:
    for form in (None, {}, {"other": "x"}, {"text": "x" * 100_001}):
        assert wsgi.visit("", form).status == 400
    assert mysql_queue.rows() == []


def cgi_page(site: Path, queue: Queue, settings: Path) -> Path:
    return python_page("cgi_page.py", site, queue, settings, **{"#!/usr/bin/python3": f"#!{sys.executable}"})


def test_a_cgi_script_adds_a_task(mysql_queue: Queue, site: Path, settings: Path) -> None:
    assert run_cgi(cgi_page(site, mysql_queue, settings), urlencode(FORM)) == (THANKS, "")
    run_all(mysql_queue)
    assert noted(mysql_queue) == [LETTER]


def test_a_cgi_script_that_cannot_add_tells_the_log_alone(
    mysql_queue: Queue, site: Path, settings: Path, mysql_server: MySQLServer, database: str, user: str
) -> None:
    script = cgi_page(site, mysql_queue, settings)
    refuse_tasks(mysql_server, database, user)
    answer, log = run_cgi(script, urlencode(FORM))
    assert answer == SORRY_FOR_NOW
    assert log.startswith("send_letter: ")
    (settings / ".env").unlink()
    answer, log = run_cgi(script, urlencode(FORM))
    assert answer == SORRY_FOR_NOW
    assert "TASKSERVER_DSN" in log
    assert len(log.splitlines()) == 1


def test_a_cgi_script_asks_for_its_form(mysql_queue: Queue, site: Path, settings: Path) -> None:
    script = cgi_page(site, mysql_queue, settings)
    for form in (None, "", "other=x", "text=" + "x" * 100_001):
        answer, log = run_cgi(script, form)
        assert (answer.status, log) == (400, "")
    assert mysql_queue.rows() == []


# ---- a worker of one's own


def own_worker(queue: Queue) -> subprocess.CompletedProcess[str]:
    example("own_worker.py", queue.folder, {FOLDER: str(queue.folder)})
    return queue.deployment.run("own_worker.py")


def test_a_worker_of_ones_own_runs_tasks_and_says_what_it_did(mysql_queue: Queue) -> None:
    mysql_queue.add("tasks.note", json.dumps({"text": ODD_TEXT}), 3)
    mysql_queue.add("tasks.note", json.dumps(["of another group"]))
    mysql_queue.add("tasks.nowhere", None, 6)
    ended = own_worker(mysql_queue)
    assert (ended.returncode, ended.stdout) == (0, "1 done, 0 to be tried again, 1 fatal\n")
    assert noted(mysql_queue) == [[[], {"text": ODD_TEXT}]]


def test_a_worker_of_ones_own_ends_with_one_line_where_it_cannot_work(mysql_queue: Queue) -> None:
    mysql_queue.sql("DROP TABLE jobs_queue")
    ended = own_worker(mysql_queue)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("own_worker: ")
    assert len(ended.stderr.splitlines()) == 1


# ---- all of them


def test_the_table_of_the_examples_names_each_file() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for file in EXAMPLES.iterdir():
        if file.suffix in (".php", ".py"):
            assert f"| `{file.name}` |" in table
