"""The examples for Django and Laravel, on PostgreSQL: a task stands or falls with its order, and worker.py runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import without
from tests.producers.test_php_examples import ILLUMINATE, PHP_VALUES
from tests.producers.test_python_examples import ORDERED, ROLLED_BACK
from tests.support.processes import assert_silent
from tests.support.shops import ODD_TEXT, VALUES, Shop
from tests.support.websites import (
    LARAVEL_PAGE,
    Answer,
    django_site,
    example,
    php_website,
    shown_in_comment,
    wsgi_website,
)

SYSTEM_PYTHON = "/usr/bin/python3"


@pytest.fixture
def shop(postgresql_shop: Shop) -> Shop:
    return postgresql_shop


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


# ---- Django


@pytest.fixture(params=["psycopg", "psycopg2"])
def python(request: pytest.FixtureRequest) -> str:
    """That of the tests has Django with psycopg, the system's with psycopg2."""
    if request.param == "psycopg":
        return sys.executable
    if subprocess.run([SYSTEM_PYTHON, "-c", "import django, psycopg2"], capture_output=True).returncode != 0:
        without(f"{SYSTEM_PYTHON} has no Django with psycopg2")
    return SYSTEM_PYTHON


@pytest.fixture
def run_in_django(python: str, site: Path, shop: Shop) -> Callable[..., str]:
    """Runs code inside the site; what it prints."""
    django_site(site, shop.place_in_django)

    def run(code: str, *args: str) -> str:
        program = f"import sys; sys.path.insert(0, sys.argv.pop(1)); import site_wsgi, json\n{code}"
        command = [python, "-c", program, str(site), *args]
        ended = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


def test_a_django_page_adds_a_task_with_its_own_row(shop: Shop, python: str, site: Path) -> None:
    with wsgi_website(python, django_site(site, shop.place_in_django), "site_wsgi") as website:
        assert website.visit("order", {"customer": ODD_TEXT}) == ORDERED
    shop.assert_ordered()


def test_django_passes_values_unchanged_at_once_and_later(shop: Shop, run_in_django: Callable[..., str]) -> None:
    run_in_django(ROLLED_BACK)
    assert_silent(shop.worker())
    assert (shop.noted(), shop.customers()) == ([[[False], {}]], ["Grace"])
    (shop.folder / "notes").unlink()
    add = "from django_page import add_task\nfor n, args in enumerate(json.loads(sys.argv[1])):\n"
    values = json.dumps([keywords or args or None for args, keywords in VALUES])
    printed = run_in_django(f"{add}    print(add_task('tasks.note', args, group_id=3, priority=n))", values)
    shop.assert_values_arrived(printed)
    run_in_django("from django_page import add_task; add_task('tasks.note', delay_seconds=3600)")
    shop.assert_waits_an_hour()


# ---- Laravel


def test_a_transaction_of_laravel_adds_an_order_and_its_task_or_neither(shop: Shop, php: str, site: Path) -> None:
    if not ILLUMINATE.exists():
        without("Laravel's database package is not there")
    place = {"driver": "pgsql", "charset": "utf8", "username": shop.place["user"], "database": shop.database}
    place |= {name: shop.place[name] for name in ("host", "port", "password")}
    words = {"illuminate": ILLUMINATE, "example": example("laravel.php", site.parent), "place": json.dumps(place)}
    code = shown_in_comment("laravel.php")
    fails = code.replace("});", "throw new Exception('no');});")
    with php_website(php, site, "-d", "error_reporting=E_ALL&~E_DEPRECATED") as website:

        def send(code: str) -> Answer:
            (site / "index.php").write_text(LARAVEL_PAGE % {**words, "code": code}, encoding="utf-8")
            return website.visit("", {"customer": ODD_TEXT})

        assert send(f"try {{ {fails} }} catch (Exception $e) {{ echo $e->getMessage(); }}") == Answer(200, "no")
        assert (shop.customers(), shop.rows()) == ([], [])
        assert send(f"{code}\necho 'ok';") == Answer(200, "ok")
        ((order, customer),) = shop.rows("id, customer", "orders")
        assert customer == ODD_TEXT
        shop.run_all()
        assert shop.noted() == [[[], {"order": order}]]
        (shop.folder / "notes").unlink()
        answer = send(f"foreach ({PHP_VALUES} as $n => $args) echo add_task('tasks.note', $args, 3, $n), ' ';")
        shop.assert_values_arrived(answer.text)
        assert send("add_task('tasks.note', [], 3, 0, 3600);").status == 200
        shop.assert_waits_an_hour()
