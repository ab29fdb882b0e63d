"""examples/progress.php in PHP's own web server, and in Chromium: a bar that moves."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.browser import Browser
from tests.support.processes import end_of, wait_until
from tests.support.queues import Queue
from tests.support.servers import MySQLServer
from tests.support.websites import (
    WEB_PASSWORD,
    Answer,
    Visitor,
    Website,
    example,
    php_website,
    shown_in_comment,
    web_user,
)

TASK_OF_COMMENT = shown_in_comment("progress.php").partition("GRANT")[0]
GRANTS = re.findall(r"GRANT SELECT \((.*)\)\s+ON you_site\.(\w+) TO", shown_in_comment("progress.php"))
STEPS = """
import time
import taskserver

def make_report():
    for step in range(4):
        taskserver.progress(step, 4, f"<b>step {step}</b> & more")
        while not (HERE / f"go{step}").exists():
            time.sleep(0.01)
    return "<i>ready</i>"
"""
"""Each step waits until the test lets it go on."""


@pytest.fixture
def website(php: str, tmp_path: Path, mysql_queue: Queue, mysql_server: MySQLServer) -> Iterator[Website]:
    """With the rights that the page's comment names, and no others."""
    database = mysql_queue.dsn.rpartition("/")[2]
    (tmp_path / "sessions").mkdir()
    assert [table for _, table in GRANTS] == ["jobs_queue", "jobs_queue_done"]
    assert all("args" not in columns for columns, _ in GRANTS)
    with web_user(mysql_server, database, "jobs_queue") as user:
        grants = [f"GRANT SELECT ({columns}) ON `{database}`.{table} TO '{user}'@'%'" for columns, table in GRANTS]
        mysql_server.execute(*grants)
        edits = {
            "host=localhost": f"host={mysql_server.host};port={mysql_server.port}",
            "dbname=you_site": f"dbname={database}",
            "'you_web', 'web-password'": f"'{user}', '{WEB_PASSWORD}'",
        }
        example("progress.php", tmp_path / "site", edits)
        with php_website(php, tmp_path / "site", "-d", f"session.save_path={tmp_path}/sessions") as website:
            yield website


class Shown(NamedTuple):
    """What a page says of the visitor's task."""

    state: str
    value: str | None = None
    """Of the bar."""
    text: str = ""
    result: str = ""


@pytest.fixture
def visitor(website: Website) -> Visitor:
    return Visitor(f"{website.url}/progress.php")


def shown_to(visitor: Visitor, query: str = "") -> Shown:
    page = visitor.open(query).text
    bar = re.search(r'<progress id="bar" max="1"(?: value="(.*)")?>', page)
    state, text, result = (re.search(rf'<p id="{name}">(.*)</p>', page) for name in ("state", "text", "result"))
    assert state
    assert bool(bar) == bool(text) == bool(result) == (state[1] != "none")
    return Shown(state[1], bar and bar[1], *(html.unescape(one[1]) if one else "" for one in (text, result)))


def test_the_page_shows_growing_progress_and_the_result(mysql_queue: Queue, visitor: Visitor) -> None:
    mysql_queue.define(STEPS)
    assert shown_to(visitor) == Shown("none")
    visitor.open(form={})
    assert shown_to(visitor) == Shown("waiting")
    worker = mysql_queue.start("--mode", "move")
    for step in range(4):
        wait_until(lambda: shown_to(visitor).text.startswith(f"<b>step {step}"))  # noqa: B023 - at once
        assert shown_to(visitor) == Shown("running", f"{step / 4:g}", f"<b>step {step}</b> & more")
        mysql_queue.go(f"go{step}")
    assert end_of(worker) == (0, "", "")
    assert shown_to(visitor)._replace(text="") == Shown("done", "1", result="<i>ready</i>")


def test_a_visitor_has_one_task_at_a_time_and_sees_no_other_visitor_s(mysql_queue: Queue, visitor: Visitor) -> None:
    one, other = visitor, Visitor(visitor.url)
    one.open(form={})
    assert mysql_queue.rows("id, task") == [(1, "tasks.make_report")]
    assert shown_to(other, "?report[id]=1").state == "none"
    other.open(form={})
    mysql_queue.sql("UPDATE jobs_queue SET status = 4 WHERE id = 1")
    assert (shown_to(one).state, shown_to(other).state) == ("failed", "waiting")
    one.open(form={})
    assert [task_id for (task_id,) in mysql_queue.rows("id")] == [1, 2, 3]
    assert shown_to(one).state == "waiting"


ODD_ROWS = {
    "no JSON": "no JSON",
    '{"done": null, "text": "\\ud800"}': '"</script><script>alert(1)</script>"',
}


def test_the_page_stands_whatever_the_row_holds(mysql_queue: Queue, website: Website, visitor: Visitor) -> None:
    visitor.open(form={})
    for text, result in ODD_ROWS.items():
        mysql_queue.sql("UPDATE jobs_queue SET status = 2, progress = ?, result = ?", text, result)
        now = shown_to(visitor)
        assert (now.state, now.value, now.text) == ("done", "1", ""), text
        assert "alert(1)</script>" not in visitor.open().text
        mysql_queue.sql("UPDATE jobs_queue SET status = 1")
        assert shown_to(visitor).value is None, text
    assert "PHP" not in website.log.partition("started")[2].replace("PHP 8", "")


def test_the_task_of_its_comment_runs(mysql_queue: Queue, visitor: Visitor) -> None:
    mysql_queue.define(TASK_OF_COMMENT)
    visitor.open(form={})
    mysql_queue.run_quietly(mode="move")
    assert shown_to(visitor) == Shown("done", "1", "", "30 days")


def test_the_page_says_no_more_than_that_something_went_wrong(
    mysql_queue: Queue, website: Website, visitor: Visitor
) -> None:
    visitor.open(form={})
    mysql_queue.sql("RENAME TABLE jobs_queue TO away")
    assert visitor.open() == Answer(500, "Something went wrong. Please try again later.")
    assert "report: " in website.log
    assert WEB_PASSWORD not in website.log


ASK = """
const bar = document.getElementById('bar');
return [document.getElementById('state').textContent, bar && bar.getAttribute('value')];
"""


@pytest.mark.long
def test_the_bar_moves_to_its_end_in_a_browser(mysql_queue: Queue, website: Website, tmp_path: Path) -> None:
    mysql_queue.define(STEPS)
    with Browser(tmp_path) as browser:
        browser.open(f"{website.url}/progress.php")
        assert browser.script(ASK) == ["none", None]
        browser.script("document.getElementById('button').click()")
        wait_until(lambda: browser.script(ASK)[0] == "waiting")
        worker = mysql_queue.start("--mode", "mark")
        for step in range(4):
            wait_until(lambda: browser.script(ASK) == ["running", str(step / 4).removesuffix(".0")])  # noqa: B023
            text = browser.script("return document.getElementById('text').textContent")
            assert text == f"<b>step {step}</b> & more"
            mysql_queue.go(f"go{step}")
        assert end_of(worker) == (0, "", "")
        wait_until(lambda: browser.script(ASK) == ["done", "1"])
        assert browser.script("return document.getElementById('result').textContent") == "<i>ready</i>"
