"""examples/flask_app: a site whose tasks run in its app context, with a session of their own each."""

from __future__ import annotations

import pytest

from tests.support.deployment import Deployment
from tests.support.postgresql import PostgreSQLServer
from tests.support.processes import assert_silent
from tests.support.projects import Project
from tests.support.servers import MySQLServer
from tests.support.websites import wsgi_website


@pytest.fixture
def on_sqlite(deployment: Deployment) -> Project:
    return Project(deployment, "flask_app", None, f"sqlite:///{deployment.folder}/shop.db")


@pytest.fixture
def on_mysql(deployment: Deployment, mysql_server: MySQLServer, mysql_dsn: str) -> Project:
    return Project(deployment, "flask_app", mysql_server, mysql_dsn)


@pytest.fixture
def on_postgresql(deployment: Deployment, postgresql_server: PostgreSQLServer, postgresql_dsn: str) -> Project:
    return Project(deployment, "flask_app", postgresql_server, postgresql_dsn)


@pytest.mark.parametrize("store", ["sqlite", pytest.param("mysql", marks=pytest.mark.long), "postgresql"])
def test_an_order_of_the_page_gets_its_receipt_by_the_app_s_settings_and_templates(
    request: pytest.FixtureRequest, store: str
) -> None:
    site: Project = request.getfixturevalue(f"on_{store}")
    with wsgi_website(site.deployment.python, site.folder, "passenger_wsgi") as website:
        assert website.visit("orders", {"title": "Notes"}).status == 201
        assert website.visit("orders", {}).status == 400
    assert site.rows("task, args") == [("shop.tasks.write_receipt", "[1]")]
    assert_silent(site.worker())
    assert site.sql("SELECT receipt FROM orders") == [("Books of Ada: order 1, Notes",)]
    assert site.rows() == []


ROLLED_BACK = """
db = session()
db.add(Order(title="Notes"))
db.flush()
print(queue().add_task(tasks.write_receipt, [1], connection=db.connection().connection))
db.rollback()
"""


def test_what_is_rolled_back_leaves_neither_row_nor_task(on_sqlite: Project) -> None:
    assert on_sqlite.run(ROLLED_BACK) == 1
    assert (on_sqlite.sql("SELECT number FROM orders"), on_sqlite.rows("id")) == ([], [])


INTERRUPTED = """
import time
from pathlib import Path

import taskserver
from flask import current_app, g
from shop.db import session

def note(text):
    with open(Path(__file__).with_name("notes"), "a") as file:
        file.write(f"{text}\\n")

@taskserver.task(timeout=1)
def hang(nested):
    g.left = True
    session()
    if nested:
        with current_app.app_context():
            time.sleep(60)
    time.sleep(60)

def look():
    note(f"{current_app.config['SHOP_NAME']} {sorted(g)}")
"""


def test_a_timeout_leaves_the_next_task_an_app_context_of_its_own(on_sqlite: Project) -> None:
    on_sqlite.define_beside(INTERRUPTED)
    for nested in ("false", "true"):
        on_sqlite.add("tasks_of_test.hang", f"[{nested}]")
        on_sqlite.add("tasks_of_test.look")
    assert_silent(on_sqlite.worker())
    assert on_sqlite.notes() == ["Books of Ada []"] * 2
    assert [line.partition(":")[0] for line in on_sqlite.first_lines()] == ["TaskInterrupted"] * 2
