"""examples/flask_app: a site whose tasks run in its app context, with a session of their own each."""

from __future__ import annotations

import pytest

from tests.support.deployment import Deployment
from tests.support.processes import assert_silent
from tests.support.shops import Project
from tests.support.websites import wsgi_website

ROLLED_BACK = """
db = session()
db.add(Order(title="Notes"))
db.flush()
print(queue().add_task(tasks.write_receipt, [1], connection=db.connection().connection))
db.rollback()
"""
INTERRUPTED = """
import time
from pathlib import Path

import taskserver
from flask import current_app, g
from shop.db import session

@taskserver.task(timeout=1)
def hang():
    g.left = True
    session()
    with current_app.app_context():
        time.sleep(60)

def look():
    Path(__file__).with_name("notes").write_text(f"{current_app.config['SHOP_NAME']} {sorted(g)}")
"""


@pytest.fixture
def site(deployment: Deployment) -> Project:
    return Project(deployment, "flask_app", None, f"sqlite:///{deployment.folder}/shop.db")


def test_an_order_of_the_page_gets_its_receipt_by_the_app_s_settings_and_templates(site: Project) -> None:
    assert site.run(ROLLED_BACK) == 1
    assert (site.sql("SELECT number FROM orders"), site.rows("id")) == ([], [])
    with wsgi_website(site.deployment.python, site.folder, "passenger_wsgi") as website:
        assert website.visit("orders", {"title": "Notes"}).status == 201
        assert website.visit("orders", {}).status == 400
    assert site.rows("task, args") == [("shop.tasks.write_receipt", "[1]")]
    assert_silent(site.worker())
    assert site.sql("SELECT receipt FROM orders") == [("Books of Ada: order 1, Notes",)]
    assert site.rows() == []


def test_a_timeout_leaves_the_next_task_an_app_context_of_its_own(site: Project) -> None:
    site.define_beside(INTERRUPTED)
    site.add("tasks_of_test.hang")
    site.add("tasks_of_test.look")
    assert_silent(site.worker())
    assert site.notes() == ["Books of Ada []"]
    assert [line.partition(":")[0] for line in site.first_lines()] == ["TaskInterrupted"]
