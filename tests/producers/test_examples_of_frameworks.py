"""The examples for WordPress, Laravel and Django: a task stands or falls with its order, and worker.py runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.databases import EACH_SERVER
from tests.support.servers import needs_version, without
from tests.support.shops import NEEDED_BY_DJANGO_5, ODD_TEXT, VALUES, Shop
from tests.support.websites import (
    LARAVEL_PAGE,
    PHP_VALUES,
    Answer,
    WordPress,
    django_site,
    example,
    php_website,
    shown_in_comment,
    wsgi_website,
)

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


def test_wordpress_passes_values_unchanged_at_once_and_later_and_tells_its_log_alone_of_an_error(
    mysql_shop: Shop, wordpress: WordPress
) -> None:
    adds = f"foreach ({PHP_VALUES} as $n => $args) echo taskserver_add_task('tasks.note', $args, 3, $n), ' ';"
    mysql_shop.assert_values_arrived(wordpress.call(adds, ODD_TEXT))
    wordpress.call("taskserver_add_task('tasks.note', [], 3, 0, 3600);")
    mysql_shop.assert_waits_an_hour()
    mysql_shop.sql("RENAME TABLE jobs_queue TO elsewhere")
    log = wordpress.folder / "error.log"
    to_log = f"ini_set('error_log', '{log}'); ini_set('display_errors', '0'); "
    assert wordpress.call(f"{to_log}echo taskserver_add_task('tasks.note');") == "0"
    assert "taskserver: tasks.note was not added: " in log.read_text()
    assert "jobs_queue' doesn't exist" in log.read_text()


# ---- Laravel

ILLUMINATE = Path("/usr/share/php/Illuminate/Database/autoload.php")
Send = Callable[[str], Answer]


@pytest.fixture
def laravel(php: str, site: Path, shop: Shop) -> Iterator[Send]:
    """Sends ODD_TEXT as a customer's name to a page that has Laravel's DB, and this code."""
    if not ILLUMINATE.exists():
        without("Laravel's database package is not there")
    place = {"username": shop.place["user"], "database": shop.database}
    place |= {name: shop.place[name] for name in ("host", "port", "password")}
    if shop.is_postgresql:
        place |= {"driver": "pgsql", "charset": "utf8"}
    else:
        place |= {"driver": "mysql", "charset": "utf8mb4", "collation": "utf8mb4_unicode_ci"}
    words = {"illuminate": ILLUMINATE, "example": example("laravel.php", site.parent), "place": json.dumps(place)}
    # Laravel 8 is older than Debian's PHP.
    with php_website(php, site, "-d", "error_reporting=E_ALL&~E_DEPRECATED") as website:

        def send(code: str) -> Answer:
            (site / "index.php").write_text(LARAVEL_PAGE % {**words, "code": code}, encoding="utf-8")
            return website.visit("", {"customer": ODD_TEXT})

        yield send


@EACH_SERVER
def test_laravel_adds_an_order_and_its_task_or_neither_and_passes_values_unchanged(shop: Shop, laravel: Send) -> None:
    code = shown_in_comment("laravel.php")
    assert "DB::transaction" in code
    fails = code.replace("});", "throw new Exception('no');});")
    assert laravel(f"try {{ {fails} }} catch (Exception $e) {{ echo $e->getMessage(); }}") == Answer(200, "no")
    assert (shop.customers(), shop.rows()) == ([], [])
    assert laravel(f"{code}\necho 'ok';") == Answer(200, "ok")
    ((order, customer),) = shop.rows("id, customer", "orders")
    assert customer == ODD_TEXT
    shop.run_all()
    assert shop.noted() == [[[], {"order": order}]]
    (shop.folder / "notes").unlink()
    answer = laravel(f"foreach ({PHP_VALUES} as $n => $args) echo add_task('tasks.note', $args, 3, $n), ' ';")
    shop.assert_values_arrived(answer.text)
    assert laravel("add_task('tasks.note', [], 3, 0, 3600);").status == 200
    shop.assert_waits_an_hour()


# ---- Django


@pytest.fixture
def python(django_python: str, shop: Shop) -> str:
    """That of the tests has Django with psycopg, the system's with mysqlclient."""
    if not shop.is_postgresql:
        return django_python
    needs_version(shop.sql("SELECT VERSION()")[0][0], **NEEDED_BY_DJANGO_5)
    return sys.executable


@EACH_SERVER
def test_a_django_page_adds_a_task_with_its_own_row_or_neither(shop: Shop, python: str, site: Path) -> None:
    with wsgi_website(python, django_site(site, shop.place_in_django), "site_wsgi") as website:
        assert website.visit("order").status == 405
        assert website.visit("order", {"customer": ODD_TEXT}) == (202, "Thank you! Your order has the number 1.")
        shop.assert_ordered()
        shop.sql("ALTER TABLE jobs_queue RENAME TO elsewhere")
        answer = website.visit("order", {"customer": "Grace"})
        assert (answer.status, "jobs_queue" in answer.text, "jobs_queue" in website.log) == (500, False, True)
    assert shop.customers() == [ODD_TEXT]


IN_DJANGO = """
import json
import sys
sys.path.insert(0, sys.argv[1])
import site_wsgi
from django_page import add_task

for n, args in enumerate(json.loads(sys.argv[2])):
    print(add_task("tasks.note", args, group_id=3, priority=n, delay_seconds=int(sys.argv[3])))
"""


@EACH_SERVER
def test_django_passes_values_unchanged_at_once_and_later(shop: Shop, python: str, site: Path) -> None:
    folder = django_site(site, shop.place_in_django)

    def add(values: list[object], delay: int) -> str:
        command = [python, "-c", IN_DJANGO, str(folder), json.dumps(values), str(delay)]
        return subprocess.run(command, check=True, capture_output=True, text=True, encoding="utf-8").stdout

    shop.assert_values_arrived(add([keywords or args or None for args, keywords in VALUES], 0))
    add([None], 3600)
    shop.assert_waits_an_hour()
