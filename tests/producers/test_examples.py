"""The pages and programs of examples/, each in its real surroundings: they add tasks, and worker.py runs them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from taskserver.stores.database import IDLE_SECONDS
from tests.support.documents import blocks
from tests.support.servers import MySQLServer, free_port
from tests.support.shops import ODD_TEXT, Shop
from tests.support.websites import (
    EXAMPLES,
    WEB_PASSWORD,
    Answer,
    Website,
    example,
    php_website,
    run_cgi,
    web_user,
    wsgi_website,
)

SORRY = Answer(500, "Something went wrong. Please try again later.")


@pytest.fixture
def user(mysql_server: MySQLServer, mysql_shop: Shop) -> Iterator[str]:
    """May INSERT orders and tasks, and nothing else."""
    with web_user(mysql_server, mysql_shop.database, "jobs_queue", "orders") as name:
        yield name


# ---- page.php, and the tutorial's page


def test_a_php_page_adds_a_task_with_its_own_row_or_neither(
    php: str, site: Path, mysql_shop: Shop, mysql_server: MySQLServer, user: str
) -> None:
    where = f"host={mysql_server.host};port={mysql_server.port};dbname={mysql_shop.database}"
    edits = {
        "/home/you/enqueue.php": str(example("enqueue.php", site.parent)),
        "host=localhost;dbname=you_site": where,
        "you_web": user,
        "web-password": WEB_PASSWORD,
    }
    example("page.php", site, edits)
    with php_website(php, site) as website:
        assert website.visit("page.php", {"customer": ODD_TEXT}) == (202, "Thank you! Your order has the number 1.")
        mysql_shop.assert_ordered()
        assert website.visit("page.php", {"customer[]": "Grace"}).status == 400
        assert "PHP Warning" not in website.log
        mysql_shop.sql("RENAME TABLE jobs_queue TO elsewhere")
        assert website.visit("page.php", {"customer": "Grace"}) == SORRY
        assert mysql_shop.customers() == [ODD_TEXT]
        assert "order: " in website.log
        assert WEB_PASSWORD not in website.log


def test_the_tutorials_page_tells_the_log_alone_that_the_database_is_away(php: str, tmp_path: Path, site: Path) -> None:
    shown = [block.text for block in blocks("docs/shared-hosting.md") if block.kind == "php"]
    pages = {text.splitlines()[1]: text for text in shown}
    at = f"host=127.0.0.1;port={free_port()}"
    (tmp_path / "queue.php").write_text(pages["// /home/you/queue.php"].replace("host=localhost", at))
    hello = pages["// /home/you/public_html/hello.php"].replace("/home/you/", f"{tmp_path}/")
    (site / "hello.php").write_text(hello)
    with php_website(php, site, "-d", "display_errors=1") as website:
        assert website.visit("hello.php") == SORRY
        assert "greet: SQLSTATE" in website.log


# ---- Python pages with the API

FOLDER = "/home/you/taskserver"
FORM = {"text": ODD_TEXT}
LETTER = [[], {"to": "owner@example.org", "text": ODD_TEXT}]
THANKS = Answer(202, "Thank you! Your message is on its way.")
SORRY_FOR_NOW = SORRY._replace(status=503)
LONG = "x" * 100_001


@pytest.fixture
def page(site: Path, mysql_server: MySQLServer, user: str, mysql_shop: Shop) -> Path:
    """It imports the queue's taskserver, and has a .env of its own, which names the user who may INSERT alone."""
    dsn = f"mysql://{user}@{mysql_server.host}:{mysql_server.port}/{mysql_shop.database}"
    settings = site.parent / "web_settings"
    settings.mkdir()
    (settings / ".env").write_text(f"TASKSERVER_DSN='{dsn}'\nTASKSERVER_PASSWORD='{WEB_PASSWORD}'\n")
    places = {f'(0, "{FOLDER}")': f'(0, "{mysql_shop.folder}")', f'from_env("{FOLDER}")': f'from_env("{settings}")'}
    return example("wsgi_page.py", site, places)


@pytest.fixture
def wsgi(site: Path, page: Path) -> Iterator[Website]:
    with wsgi_website(sys.executable, site, page.stem) as website:
        yield website


def test_a_wsgi_page_adds_tasks_on_a_connection_that_it_keeps_until_it_is_dropped(
    mysql_shop: Shop, mysql_server: MySQLServer, user: str, wsgi: Website
) -> None:
    connections = f"SELECT id FROM information_schema.processlist WHERE user = '{user}'"
    assert wsgi.visit("", FORM) == THANKS
    kept = mysql_shop.sql(connections)
    assert wsgi.visit("", FORM) == THANKS
    assert mysql_shop.sql(connections) == kept
    assert len(kept) == 1
    time.sleep(IDLE_SECONDS)  # only a connection that lay idle is asked whether it still stands
    mysql_server.execute(f"KILL {kept[0][0]}")
    assert wsgi.visit("", FORM) == THANKS
    mysql_shop.run_all()
    assert mysql_shop.noted() == [LETTER] * 3


def test_a_wsgi_page_asks_for_its_form_and_tells_the_log_alone_that_it_cannot_add(
    mysql_shop: Shop, wsgi: Website
) -> None:
    for form in (None, {"other": "x"}, {"text": LONG}):
        assert wsgi.visit("", form).status == 400
    mysql_shop.sql("RENAME TABLE jobs_queue TO elsewhere")
    assert wsgi.visit("", FORM) == SORRY_FOR_NOW
    assert "send_letter: " in wsgi.log
    assert "Traceback" not in wsgi.log


def test_a_cgi_script_asks_for_its_form_and_adds_a_task_or_tells_the_log_alone_that_it_cannot(
    mysql_shop: Shop, site: Path, page: Path
) -> None:
    cgi = example("cgi_page.py", page.parent, {"#!/usr/bin/python3": f"#!{sys.executable}"})
    for form in (None, "other=x"):
        answer, log = run_cgi(cgi, form)
        assert (answer.status, log) == (400, "")
    assert run_cgi(cgi, urlencode(FORM)) == (THANKS, "")
    mysql_shop.run_all()
    assert mysql_shop.noted() == [LETTER]
    (site.parent / "web_settings" / ".env").unlink()
    answer, log = run_cgi(cgi, urlencode(FORM))
    assert answer == SORRY_FOR_NOW
    assert log.startswith("send_letter: ")
    assert "TASKSERVER_DSN" in log
    assert len(log.splitlines()) == 1


# ---- a worker of one's own, and all of them


def test_a_worker_of_ones_own_says_what_it_did_or_in_one_line_why_it_cannot_work(mysql_shop: Shop) -> None:
    example("own_worker.py", mysql_shop.folder, {FOLDER: str(mysql_shop.folder)})
    mysql_shop.add("tasks.note", json.dumps({"text": ODD_TEXT}), 3)
    mysql_shop.add("tasks.note", json.dumps(["of another group"]))
    mysql_shop.add("tasks.nowhere", None, 6)
    ended = mysql_shop.deployment.run("own_worker.py")
    assert (ended.returncode, ended.stdout) == (0, "1 done, 0 to be retried, 1 fatal\n")
    assert mysql_shop.noted() == [[[], {"text": ODD_TEXT}]]
    mysql_shop.sql("DROP TABLE jobs_queue")
    ended = mysql_shop.deployment.run("own_worker.py")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("own_worker: ")
    assert len(ended.stderr.splitlines()) == 1


def test_the_table_of_the_examples_names_each_file() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for file in EXAMPLES.iterdir():
        if file.suffix in (".php", ".py"):
            assert f"| `{file.name}` |" in table
