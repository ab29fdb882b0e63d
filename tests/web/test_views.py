"""What the views show, whatever rows hold and however many there are."""

from __future__ import annotations

import html
import re
import subprocess
from collections.abc import Iterable
from http import HTTPStatus
from pathlib import Path
from unittest.mock import Mock

import pytest

from taskserver.errors import Unavailable
from taskserver.messages.text import prefix_in_shell
from taskserver.stores.tables import Tables
from taskserver.web import wsgi
from tests.support.pages import URL, PageSite
from tests.support.servers import MySQLServer
from tests.web.sites import Ago, Hour, fill_odd, insert

QUEUE_VIEWS = [view for view in wsgi.VIEWS if view not in ("task", "confirm")]
VIEWS = [*QUEUE_VIEWS, "confirm&verb=retry&all=1", "confirm&verb=retry&like=1", "task&id=1"]


@pytest.fixture
def open_site(site: PageSite) -> PageSite:
    site.let_act()
    return site


def ids_of(text: str) -> list[int]:
    return [int(number) for number in re.findall(r'class="title" href="\?view=task&amp;id=(\d+)"', text)]


# ---- hostile rows


def test_no_text_of_a_row_becomes_markup_in_any_view(open_site: PageSite) -> None:
    fill_odd(open_site)
    visitor = open_site.owner()
    for view in [*VIEWS, "doctor"]:
        answer = visitor.get(f"view={view}")
        assert answer.status_code == HTTPStatus.OK, view
        assert "<script>document" not in answer.text
        assert "<img" not in answer.text
        assert "Set-Cookie: x=1" not in str(answer.headers)
        assert html.escape("<script>") in answer.text or view in ("hours", "doctor"), view


def test_each_view_is_shown_to_a_page_whose_account_may_only_select(
    mysql_server: MySQLServer, mysql_dsn: str, tmp_path: Path
) -> None:
    site = PageSite(tmp_path, mysql_dsn)
    fill_odd(site)
    database = mysql_dsn.rpartition("/")[2]
    user, password = f"m_{database[2:]}", "monitor-password"
    grant = f"GRANT SELECT ON `{database}`.* TO '{user}'@'%'"
    mysql_server.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY '{password}'", grant)
    mysql_server.meet(user, password)
    site.dsn = f"mysql://{user}:{password}@{mysql_server.host}:{mysql_server.port}/{database}"
    site.set(TASKSERVER_PAGE_ALLOW="0.0.0.0/0")
    visitor = site.visitor()
    for view in VIEWS:
        assert visitor.get(f"view={view}").status_code == HTTPStatus.OK, view
    assert "this page, which only shows, can do without" in visitor.get("view=doctor").text
    site.close()
    mysql_server.execute(f"DROP USER '{user}'@'%'")


def test_a_task_s_own_page_has_its_error_arguments_and_result_and_lists_have_none_of_its_arguments(
    open_site: PageSite,
) -> None:
    row = {"task": "tasks.send", "status": 4, "args": '{"to": "a@example.org"}'}
    insert(open_site, [row | {"error_text": "E: one\n  File tasks.py, line 9"}])
    visitor = open_site.owner()
    text = html.unescape(visitor.get("view=task&id=1").text)
    assert '{"to": "a@example.org"}' in text
    assert "File tasks.py, line 9" in text
    for view in ("", "tasks", "errors", "confirm&verb=retry&id=1"):
        assert "a@example.org" not in visitor.get(f"view={view}").text


def test_a_chain_of_tasks_links_to_its_neighbours(open_site: PageSite) -> None:
    first = open_site.server.add_task("tasks.a")
    second = open_site.server.add_task("tasks.b", depends_on=[first])
    visitor = open_site.owner()
    assert f"id={second}" in visitor.get(f"view=task&id={first}").text
    assert f"id={first}" in visitor.get(f"view=task&id={second}").text


def test_a_task_whose_process_has_ended_is_gone_in_the_list_and_on_its_own_page(site: PageSite) -> None:
    insert(site, [{"number": 1, "host": "h", "group_ids": "all", "pid": 2, "ended_at": Ago(0)}], "_processes")
    row = {"task": "tasks.a", "status": 1, "attempts": 1, "due_at": Ago(-600)}
    insert(site, [row | {"claim": number << 32, "started_at": Ago(0)} for number in (1, 2)])
    insert(site, [row | {"claim": 1 << 32}])
    insert(site, [row | {"status": 3, "started_at": Ago(0)}])
    visitor = site.owner()
    chips = re.findall(r'class="chip (\w+)"', visitor.get("view=tasks").text)
    assert chips == ["error", "claimed", "running", "gone"]
    assert visitor.get("view=tasks").text.count(", due <time") == 2  # of the lease, and of the next attempt
    own = [visitor.get(f"view=task&id={one}").text for one in (1, 2)]
    assert ["process has ended" in text for text in own] == [True, False]
    assert ["Ran for" in text for text in own] == [False, True]
    assert re.findall(r'class="chip (\w+)"', visitor.get("view=workers").text) == ["gone", "gone", "running"]


def test_an_archived_task_is_shown_and_offers_no_act(open_site: PageSite) -> None:
    open_site.sql("INSERT INTO jobs_queue_done (id, task) VALUES (77, ?)", "tasks.a")
    text = open_site.owner().get("view=task&id=77").text
    assert "in the archive" in text
    assert "confirm" not in text


# ---- odd links


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("view=nothing", 404),
        ("view=task&id=99", 404),
        ("view=task&id=" + "9" * 40, 400),
        ("view=tasks&status=gone", 400),
        ("view=tasks&group=-1", 400),
        ("view=tasks&status=waiting&before=1&due=2026-13-40 99:99:99.000000", 400),
        ("view=confirm&verb=retry&id=1&id=x", 400),
        ("view=tasks&task=%00%ff", 200),
        ("view=tasks&task=%ed%a0%80", 200),
        pytest.param(f"done=retry&rows={'9' * 5000}", 200, id="a long number"),
        ("done=%3Cscript%3E", 200),
        ("asset=../views.py", 404),
    ],
)
def test_an_odd_link_gets_a_plain_answer(open_site: PageSite, query: str, code: int) -> None:
    answer = open_site.owner().get(query)
    assert answer.status_code == code
    assert "Traceback" not in answer.text


def test_head_is_answered_as_get_is_without_a_text_and_other_methods_are_refused(open_site: PageSite) -> None:
    client = open_site.owner().client
    for method, code in (("HEAD", 200), ("PUT", 405)):
        answer = client.open("/", method=method, base_url=URL)
        assert (answer.status_code, answer.data == b"") == (code, method == "HEAD")


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("E: it's $HOME `id` \\\\host", "E: it's $HOME `id` "),
        ("E: \x15touch x #", "E: "),
        ("disk 100 % full", "disk 100 "),
    ],
)
def test_a_line_that_is_copied_into_a_terminal_or_a_crontab_commands_neither(text: str, begin: str) -> None:
    argument = prefix_in_shell(text)
    done = subprocess.run(["sh", "-c", f"printf %s {argument}"], capture_output=True, check=True)
    assert done.stdout.decode() == begin
    assert prefix_in_shell(f"\x1b{text}") == ""


# ---- turning pages


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", range(180, 0, -1)),
        ("&status=fatal&group=3&like=1&since=1+day", range(119, 0, -2)),
        ("&status=waiting", range(121, 181)),
    ],
)
def test_turning_pages_keeps_what_was_chosen_and_shows_each_task_once(
    open_site: PageSite, query: str, ids: Iterable[int]
) -> None:
    row = {"task": "tasks.a", "group_id": 3, "error_text": "E: one", "finished_at": Ago(60)}
    insert(open_site, [row | {"status": n % 2 * 4} for n in range(1, 121)])
    insert(open_site, [{"task": "tasks.due", "status": 5, "due_at": Ago(-3600 - n)} for n in range(60)])
    visitor, found, link = open_site.owner(), list[int](), f"view=tasks{query}"
    while link:
        text = visitor.get(link).text
        found += ids_of(text)
        open_site.server.add_task("tasks.later")  # which shifts nothing
        more = re.search(r'href="\?([^"]*before=[^"]*)"', text)
        link = html.unescape(more[1]) if more and len(found) < 500 else ""
    assert found == list(ids)


def test_the_tasks_with_the_most_attempts_come_first(open_site: PageSite) -> None:
    insert(open_site, [{"task": "tasks.a", "status": 4, "attempts": attempts} for attempts in (1, 3, 2)])
    text = open_site.owner().get("view=tasks&status=fatal&order=attempts").text
    assert ids_of(text) == [2, 3, 1]


# ---- the state of the queue


def test_an_empty_queue_is_shown_and_says_that_no_worker_ran(open_site: PageSite) -> None:
    visitor = open_site.owner()
    assert "No worker ran yet" in visitor.get().text
    for view in QUEUE_VIEWS:
        assert visitor.get(f"view={view}").status_code == HTTPStatus.OK


def test_a_database_that_is_away_is_code_503_and_an_unforeseen_error_shows_nothing(
    open_site: PageSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor = open_site.owner()
    with monkeypatch.context() as away:
        away.setattr(Tables, "check", Mock(side_effect=Unavailable("Can't connect to the server")))
        answer = visitor.get()
        assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert "The database is away" in answer.text
        away.setattr(Tables, "check", Mock(side_effect=ValueError("a secret")))
        answer = visitor.get()
        assert (answer.status_code, "a secret" in answer.text) == (HTTPStatus.INTERNAL_SERVER_ERROR, False)
    assert visitor.get().status_code == HTTPStatus.OK


def test_older_tables_are_reported_with_the_fix(open_site: PageSite) -> None:
    open_site.sql("DELETE FROM jobs_queue_schema")
    open_site.sql("INSERT INTO jobs_queue_schema (version) VALUES (1)")
    answer = open_site.owner().get()
    assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
    assert "client.py init" in answer.text
    assert open_site.owner().get("view=doctor").status_code == HTTPStatus.OK


def test_the_doctor_of_a_page_calls_no_setup_and_says_so(site: PageSite) -> None:
    """What it would open and write, as a log, would be the web server's."""
    (site.folder / "site_of_page.py").write_text("def setup():\n    open(__file__ + '.called', 'w').close()\n")
    site.set(TASKSERVER_PAGE_ALLOW="0.0.0.0/0", TASKSERVER_SETUP="site_of_page:setup")
    text = site.visitor().get("view=doctor").text
    assert "not looked at here, as TASKSERVER_SETUP is called before they are imported" in html.unescape(text)
    assert not list(site.folder.glob("*.called"))


def test_the_hours_are_pictures_with_a_table_beside_them(open_site: PageSite) -> None:
    counts = {"group_id": 1, "task": "tasks.a", "done": 5, "failed": 2, "attempts": 7}
    insert(open_site, [{"hour": Hour(0), **counts}], "_stats")
    text = open_site.owner().get("view=hours").text
    assert text.count('<div class="chart"') == 2
    assert "5 attempts done</title>" in text
    assert '<td class="number">5</td><td class="number"><span class="look-words">2</span></td>' in text
