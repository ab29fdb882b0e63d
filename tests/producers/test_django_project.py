"""examples/django_project: a site whose tasks use its models, its mail and its transactions."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress

import pymysql
import pytest

from tests.support.deployment import Deployment
from tests.support.documents import blocks
from tests.support.mail import mail_server
from tests.support.processes import assert_silent, end_of, wait_until
from tests.support.servers import MySQLServer, needs_version
from tests.support.shops import NEEDED_BY_DJANGO_5, Project
from tests.support.websites import MINIMAL, wsgi_website


@pytest.fixture
def site(deployment: Deployment) -> Project:
    return Project(deployment, "django_project", None, f"sqlite:///{deployment.folder}/db.sqlite3")


@pytest.fixture
def on_mysql(deployment: Deployment, mysql_server: MySQLServer, mysql_dsn: str) -> Project:
    needs_version(mysql_server.execute("SELECT VERSION()")[0][0], **NEEDED_BY_DJANGO_5)
    return Project(deployment, "django_project", mysql_server, mysql_dsn)


def stock(site: Project, copies: int) -> None:
    site.sql("INSERT INTO shop_book (title, copies) VALUES ('Notes', ?)", copies)


def test_an_order_of_the_page_sends_a_letter_and_takes_a_copy_from_the_stock(site: Project) -> None:
    stock(site, 1)
    (mounted,) = [block.text for block in blocks("docs/django.md") if "DispatcherMiddleware(" in block.text]
    (site.folder / "project" / "wsgi.py").write_text(mounted.replace("/home/you/site", str(site.folder)))
    with mail_server() as mail:
        site.add_settings(f"EMAIL_HOST={mail.host}\nEMAIL_PORT={mail.port}\n")
        with wsgi_website(site.deployment.python, site.folder, "project.wsgi") as website:
            answer = website.visit("orders", {"title": "Notes", "email": "ada@example.org"})
            assert (answer.status, json.loads(answer.text)) == (201, {"order": 1})
            assert website.visit("orders", {"title": "Notes", "email": "bob@example.org"}).status == 201
            assert website.visit("orders", {"title": "None", "email": "eve@example.org"}).status == 404
            assert "TASKSERVER_PAGE_PASSWORD" in website.visit("queue/").text
        assert_silent(site.worker())
    letters = [(letter.recipients, letter.message["Subject"], letter.text.strip()) for letter in mail.letters]
    thanks = "Thank you for ordering Notes."
    assert letters == [(["ada@example.org"], "Your order 1", thanks), (["bob@example.org"], "Your order 2", thanks)]
    assert site.sql("SELECT copies FROM shop_book") == [(0,)]
    assert [bool(is_reserved) for (is_reserved,) in site.rows("is_reserved", "shop_order")] == [True, False]
    assert site.first_lines() == ["Retry: no copy of Notes is left"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="as the document says")
def test_its_own_tests_pass_and_leave_its_queue_alone(site: Project) -> None:
    command = [sys.executable, "manage.py", "test", "shop"]
    done = subprocess.run(command, cwd=site.folder, env=MINIMAL, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Ran 1 test" in done.stderr) == (0, True), done.stderr
    assert site.rows("id") == []


# ---- what a setup and a function between tasks are for


TELLS_CONNECTION = """
from pathlib import Path

from django.db import connection

def tell():
    with connection.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        (number,) = cursor.fetchone()
    with open(Path(__file__).with_name("notes"), "a") as file:
        file.write(f"{number}\\n")
"""


def test_a_connection_that_the_server_closed_between_two_tasks_is_opened_again(on_mysql: Project) -> None:
    on_mysql.define_beside(TELLS_CONNECTION)
    on_mysql.add_settings("TASKSERVER_BETWEEN=django.db:close_old_connections\n")
    on_mysql.add("tasks_of_test.tell")
    worker = on_mysql.start_task(0, "--linger", 60, TASKSERVER_PAUSES="0.02,0.05,1")
    wait_until(lambda: on_mysql.rows() == [])
    with suppress(pymysql.err.OperationalError):  # unknown, as it is closed already
        on_mysql.sql(f"KILL {on_mysql.notes()[0]}")
    on_mysql.add("tasks_of_test.tell")
    wait_until(lambda: on_mysql.rows() == [])
    worker.send_signal(signal.SIGTERM)
    assert end_of(worker) == (0, "", "")
    assert len(set(on_mysql.notes())) == 2
