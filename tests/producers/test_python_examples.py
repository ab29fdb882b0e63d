"""The Python files of examples/, each in its real surroundings: they add tasks, and worker.py runs them.

Python's own web server, a CGI script, and Django with mysqlclient.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from taskserver.stores.database import IDLE_SECONDS
from tests.support.processes import assert_silent
from tests.support.servers import MySQLServer
from tests.support.shops import ODD_TEXT, VALUES, Shop
from tests.support.websites import (
    EXAMPLES,
    WEB_PASSWORD,
    Answer,
    Website,
    django_site,
    example,
    run_cgi,
    wsgi_website,
)

SORRY = Answer(500, "Something went wrong. Please try again later.")
ORDERED = Answer(202, "Thank you! Your order has the number 1.")


# ---- Django


@pytest.fixture
def django(site: Path, mysql_server: MySQLServer, mysql_shop: Shop, user: str) -> Path:
    """The folder of a Django site with django_page.py."""
    # Django has MariaDB return the ids of its own rows.
    mysql_server.execute(f"GRANT SELECT ON `{mysql_shop.database}`.orders TO '{user}'@'%'")
    return django_site(site, mysql_shop.place_in_django | {"USER": user, "PASSWORD": WEB_PASSWORD})


Run = Callable[..., str]


@pytest.fixture
def run_in_django(django_python: str, django: Path) -> Run:
    """Runs code inside the site; what it prints."""

    def run(code: str, *args: str) -> str:
        program = f"import sys; sys.path.insert(0, sys.argv.pop(1)); import site_wsgi, json\n{code}"
        command = [django_python, "-c", program, str(django), *args]
        ended = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.mark.usefixtures("four_columns")
def test_a_django_page_adds_a_task_with_its_own_row_and_answers_at_once(
    mysql_shop: Shop, django_python: str, django: Path
) -> None:
    with wsgi_website(django_python, django, "site_wsgi") as website:
        assert website.visit("order").status == 405
        assert website.visit("order", {"customer": ODD_TEXT}) == ORDERED
    mysql_shop.assert_ordered()


def test_a_django_page_that_cannot_add_the_task_keeps_no_row_and_tells_the_log_alone(
    mysql_shop: Shop, django_python: str, django: Path, refuse_tasks: Callable[[], None]
) -> None:
    refuse_tasks()
    with wsgi_website(django_python, django, "site_wsgi") as website:
        answer = website.visit("order", {"customer": "Grace"})
        log = website.log
    assert answer.status == 500
    assert "jobs_queue" not in answer.text
    assert "INSERT command denied" in log
    assert mysql_shop.customers() == []


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


def test_a_task_of_django_that_was_rolled_back_never_runs(mysql_shop: Shop, run_in_django: Run) -> None:
    run_in_django(ROLLED_BACK)
    assert_silent(mysql_shop.worker())
    assert mysql_shop.noted() == [[[False], {}]]
    assert mysql_shop.customers() == ["Grace"]


def test_django_passes_values_unchanged_at_once_and_later(mysql_shop: Shop, run_in_django: Run) -> None:
    add = "from django_page import add_task\nfor n, args in enumerate(json.loads(sys.argv[1])):\n"
    values = json.dumps([keywords or args or None for args, keywords in VALUES])
    printed = run_in_django(f"{add}    print(add_task('tasks.note', args, group_id=3, priority=n))", values)
    mysql_shop.assert_values_arrived(printed)
    run_in_django("from django_page import add_task; add_task('tasks.note', delay_seconds=3600)")
    mysql_shop.assert_waits_an_hour()


# ---- Python pages with the API

FOLDER = "/home/you/taskserver"
FORM = {"text": ODD_TEXT}
LETTER = [[], {"to": "owner@example.org", "text": ODD_TEXT}]
THANKS = Answer(202, "Thank you! Your message is on its way.")
SORRY_FOR_NOW = SORRY._replace(status=503)
LONG = "x" * 100_001


@pytest.fixture
def settings(site: Path, mysql_server: MySQLServer, user: str, mysql_shop: Shop) -> Path:
    """The folder of the website's own .env, which names the user who may INSERT alone."""
    dsn = f"mysql://{user}@{mysql_server.host}:{mysql_server.port}/{mysql_shop.database}"
    folder = site.parent / "web_settings"
    folder.mkdir()
    (folder / ".env").write_text(f"TASKSERVER_DSN='{dsn}'\nTASKSERVER_PASSWORD='{WEB_PASSWORD}'\n")
    return folder


def python_page(name: str, site: Path, shop: Shop, settings: Path, **edits: str) -> Path:
    """A page that imports the queue's taskserver and has settings of its own."""
    places = {f'(0, "{FOLDER}")': f'(0, "{shop.folder}")', f'from_env("{FOLDER}")': f'from_env("{settings}")'}
    return example(name, site, places | edits)


@pytest.fixture
def wsgi(mysql_shop: Shop, site: Path, settings: Path) -> Iterator[Website]:
    page = python_page("wsgi_page.py", site, mysql_shop, settings)
    with wsgi_website(sys.executable, site, page.stem) as website:
        yield website


def test_a_wsgi_page_adds_tasks_on_a_connection_that_it_keeps(mysql_shop: Shop, user: str, wsgi: Website) -> None:
    connections = f"SELECT id FROM information_schema.processlist WHERE user = '{user}'"
    assert wsgi.visit("", FORM) == THANKS
    kept = mysql_shop.sql(connections)
    assert wsgi.visit("", FORM) == THANKS
    assert mysql_shop.sql(connections) == kept
    assert len(kept) == 1
    mysql_shop.run_all()
    assert mysql_shop.noted() == [LETTER, LETTER]


def test_a_wsgi_page_goes_on_after_its_connection_was_dropped(
    mysql_shop: Shop, mysql_server: MySQLServer, user: str, wsgi: Website
) -> None:
    assert wsgi.visit("", FORM) == THANKS
    time.sleep(IDLE_SECONDS)  # only a connection that lay idle is asked whether it still stands
    mysql_server.execute(f"KILL USER '{user}'@'%'")
    assert wsgi.visit("", FORM) == THANKS
    assert len(mysql_shop.rows()) == 2


def test_a_wsgi_page_asks_for_its_form_and_tells_the_log_alone_that_it_cannot_add(
    mysql_shop: Shop, refuse_tasks: Callable[[], None], wsgi: Website
) -> None:
    for form in (None, {}, {"other": "x"}, {"text": LONG}):
        assert wsgi.visit("", form).status == 400
    refuse_tasks()
    assert wsgi.visit("", FORM) == SORRY_FOR_NOW
    assert "send_letter: " in wsgi.log
    assert "denied" in wsgi.log
    assert "Traceback" not in wsgi.log
    assert mysql_shop.rows() == []


@pytest.fixture
def cgi(site: Path, mysql_shop: Shop, settings: Path) -> Path:
    python_page("wsgi_page.py", site, mysql_shop, settings)
    return example("cgi_page.py", site, {"#!/usr/bin/python3": f"#!{sys.executable}"})


def test_a_cgi_script_asks_for_its_form_and_adds_a_task(mysql_shop: Shop, cgi: Path) -> None:
    for form in (None, "", "other=x", f"text={LONG}"):
        answer, log = run_cgi(cgi, form)
        assert (answer.status, log) == (400, "")
    assert mysql_shop.rows() == []
    assert run_cgi(cgi, urlencode(FORM)) == (THANKS, "")
    mysql_shop.run_all()
    assert mysql_shop.noted() == [LETTER]


def test_a_cgi_script_that_cannot_add_tells_the_log_alone(
    cgi: Path, settings: Path, refuse_tasks: Callable[[], None]
) -> None:
    refuse_tasks()
    answer, log = run_cgi(cgi, urlencode(FORM))
    assert answer == SORRY_FOR_NOW
    assert log.startswith("send_letter: ")
    (settings / ".env").unlink()
    answer, log = run_cgi(cgi, urlencode(FORM))
    assert answer == SORRY_FOR_NOW
    assert "TASKSERVER_DSN" in log
    assert len(log.splitlines()) == 1


# ---- a worker of one's own


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


# ---- all of them


def test_the_table_of_the_examples_names_each_file() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for file in EXAMPLES.iterdir():
        if file.suffix in (".php", ".py"):
            assert f"| `{file.name}` |" in table
