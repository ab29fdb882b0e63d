"""Acting from the page: retry, cancel, pause, resume, each as it was said before."""

from __future__ import annotations

import html
import re
from http import HTTPStatus
from pathlib import Path
from threading import Timer
from urllib.parse import urlencode

import pytest

from taskserver.web import acting as acting_module
from taskserver.web import wsgi
from tests.support.pages import ADDRESS, PASSWORD_HASH, PageSite
from tests.web.sites import Ago, insert


@pytest.fixture
def acting(site: PageSite) -> PageSite:
    """Tasks 1 to 5 failed: 1 and 2 with the same error, 3 days ago in another group, 4 is in error, 5 has quotes."""
    site.let_act()
    for task, error, more in (
        ("tasks.a", "E: one\nTraceback", {}),
        ("tasks.b", "E: one", {}),
        ("tasks.a", "E: two", {"group_id": 5, "updated_at": Ago(3 * 86_400), "finished_at": Ago(3 * 86_400)}),
        ("tasks.a", "E: three", {"status": 3}),
        ("tasks.a", "F: 'quoted' <b>", {}),
    ):
        add_failed(site, task, error, **more)
    return site


def add_failed(site: PageSite, task: str, error: str, times: int = 1, **more: object) -> None:
    """Tasks of group 3; the first one gets id 6 beside those of `acting`."""
    row = {"task": task, "group_id": 3, "status": 4, "attempts": 3, "error_text": error, **more}
    insert(site, [row] * times)


def statuses(site: PageSite) -> list[int]:
    return site.rows.statuses()


def words(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


@pytest.mark.parametrize(
    ("choice", "after"),
    [
        ({"verb": "retry", "id": ["1", "4"]}, [0, 4, 4, 0, 4]),
        ({"verb": "retry", "group": "3"}, [0, 0, 4, 0, 0]),
        ({"verb": "retry", "like": "5"}, [4, 4, 4, 3, 0]),
        ({"verb": "retry", "all": "1"}, [0] * 5),
        ({"verb": "cancel", "group": "3"}, [4, 4, 4, 7, 4]),
        ({"verb": "retry", "all": "1", "since": "1 day"}, [0, 0, 4, 0, 0]),
        ({"verb": "retry", "task": "tasks.a", "status": "fatal"}, [0, 4, 0, 3, 0]),
        ({"verb": "delete", "like": "1"}, [4, 3, 4]),
        ({"verb": "delete", "id": ["3", "4"]}, [4, 4, 3, 4]),
        ({"verb": "delete", "status": "fatal"}, [3]),
    ],
)
def test_a_page_says_how_many_tasks_would_be_touched_and_the_form_of_it_touches_these(
    acting: PageSite, choice: dict[str, str], after: list[int]
) -> None:
    before = statuses(acting)
    left = before if choice["verb"] != "delete" else after
    changed = sum(one != other for one, other in zip(left, after, strict=True)) + len(before) - len(left)
    visitor = acting.owner()
    said = visitor.get(urlencode({"view": "confirm", **choice}, doseq=True))
    tasks = "1 task" if changed == 1 else f"{changed} tasks"
    assert f"{tasks} would be" in words(said.text)
    assert statuses(acting) == before
    answer = visitor.act(**choice)
    assert answer.status_code == HTTPStatus.SEE_OTHER
    assert statuses(acting) == after
    done = words(visitor.get(answer.headers["Location"].removeprefix("?")).text)
    assert f"{tasks} {acting_module.DONE[choice['verb']]}." in done


def test_a_task_s_page_offers_what_can_be_done_to_it(acting: PageSite) -> None:
    visitor = acting.owner()
    for status, offered in ((1, ["cancel"]), (2, []), (3, ["retry", "cancel"]), (4, ["retry", "delete"])):
        acting.sql(f"UPDATE jobs_queue SET status = {status} WHERE id = 1")
        text = visitor.get("view=task&id=1").text
        assert re.findall(r'href="\?view=confirm&amp;verb=(\w+)&amp;id=1&amp;back=', text) == offered


def test_groups_are_paused_and_resumed_also_one_without_tasks(acting: PageSite) -> None:
    visitor = acting.owner()
    assert "Groups 3, 5 would be paused" in words(visitor.get("view=confirm&verb=pause&group=3&group=5").text)
    paused = acting.server.store.claims.paused
    assert paused() == ([], False)
    visitor.act(verb="pause", group=["3", "5"])
    assert paused() == ([3, 5], False)
    assert "Paused: group 3, group 5." in words(visitor.get().text)
    visitor.act(verb="pause", group="99")
    assert "Paused, without tasks: group 99 Resume" in words(visitor.get().text)
    visitor.act(verb="resume", group=["3", "99"])
    assert paused() == ([5], False)
    acting.server.store.claims.pause_all()
    assert "resume all of them first" in visitor.get("view=confirm&verb=resume&group=5").text
    visitor.act(verb="resume", all="1")
    assert paused() == ([], False)


def test_all_tasks_of_a_misspelt_name_are_retried_under_the_right_one(acting: PageSite) -> None:
    add_failed(acting, "tasks.sent", "BadTask: 'tasks.sent': module tasks has no 'sent'; did you mean 'send'?", times=3)
    add_failed(acting, "tasks.a", "ValueError: did you mean 'tasks.b'?")
    visitor = acting.owner()
    assert "Retry as" not in visitor.get("view=task&id=9").text
    for view, tasks in (("", "3 tasks"), ("errors", "3 tasks"), ("task&id=7", "1 task")):
        (offered,) = re.findall(r'href="\?([^"]*)">Retry as tasks.send', visitor.get(f"view={view}").text)
        said = words(visitor.get(html.unescape(offered)).text)
        assert f"{tasks} would be retried as tasks.send" in said
    assert visitor.act(**{"verb": "retry", "id": "7", "as": "tasks.send"}).status_code == HTTPStatus.SEE_OTHER
    assert log_of(acting)[-1].endswith("retry of task 7, as 'tasks.send': 1 retried")
    assert visitor.act(**{"verb": "retry", "like": "8", "as": "tasks.send"}).status_code == HTTPStatus.SEE_OTHER
    assert acting.sql("SELECT task, status FROM jobs_queue WHERE id IN (6, 7, 8)") == [("tasks.send", 0)] * 3


@pytest.mark.parametrize(
    ("verb", "back", "on"),
    [
        ("retry", "?view=tasks&status=fatal&group=3&before=9", "?view=tasks&status=fatal&group=3&before=9"),
        ("retry", "?view=tasks&like=1", "?view=errors"),  # it may have no error any more
        ("delete", "?view=task&id=1", "?view=errors"),
        ("delete", "//other.example", "?"),
    ],
)
def test_an_act_leads_back_to_where_it_was_offered(acting: PageSite, verb: str, back: str, on: str) -> None:
    visitor = acting.owner()
    said = html.unescape(visitor.get(urlencode({"view": "confirm", "verb": verb, "id": 1, "back": back})).text)
    assert f'href="{back if back[0] == "?" else on}">Leave it' in said
    location = visitor.act(verb=verb, id="1", back=back).headers["Location"]
    assert location == f"{on}&done={verb}&rows=1"
    assert visitor.get(location.removeprefix("?")).status_code == HTTPStatus.OK


REFUSED: list[dict[str, object]] = [
    {"verb": "retry"},
    {"verb": "delete", "id": "1", "like": "99"},
    {"verb": "pause", "all": "1"},
    {"verb": "prune", "all": "1"},
    {"verb": "retry", "id": "9" * 30},
    {"verb": "pause", "group": str((1 << 32) - 1)},
    {"verb": "retry", "all": "1", "since": "1 year"},
    {"verb": "retry", "id": [str(number) for number in range(501)]},
]


def test_an_act_that_names_nothing_or_what_there_is_not_is_refused(acting: PageSite) -> None:
    visitor = acting.owner()
    for choice in REFUSED:
        asked = visitor.get(urlencode({"view": "confirm", **choice}, doseq=True))
        answer = visitor.post("view=act", data={**choice, "token": visitor.token()})
        assert (asked.status_code, answer.status_code) == (HTTPStatus.BAD_REQUEST, HTTPStatus.BAD_REQUEST), choice
    assert statuses(acting) == [4, 4, 4, 3, 4]


@pytest.mark.parametrize(
    ("choice", "times", "after"),
    [
        ({"verb": "retry", "like": "6"}, 2, [2, 0] + [4] * 40),
        ({"verb": "retry", "task": "tasks.many"}, 25, [2] + [0] * 25 + [4] * 39),  # more than the page names
        ({"verb": "delete", "task": "tasks.many"}, 30, [2] + [4] * 40),  # the very tasks that there were
    ],
)
def test_an_act_touches_no_more_tasks_than_its_page_said_and_only_those_that_it_named(
    acting: PageSite, choice: dict[str, str], times: int, after: list[int]
) -> None:
    add_failed(acting, "tasks.many", "E: many", times)
    visitor = acting.owner()
    form = visitor.form(**choice)
    acting.sql("UPDATE jobs_queue SET status = 2 WHERE id = 6")
    add_failed(acting, "tasks.many", "E: many", 40)
    assert visitor.post("view=act", data=form).status_code == HTTPStatus.SEE_OTHER
    assert statuses(acting)[5:] == after


def test_the_list_of_a_status_offers_only_its_own_tasks_and_says_what_else_is_among_others(acting: PageSite) -> None:
    add_failed(acting, "tasks.a", "cancelled", status=7)
    visitor = acting.owner()
    for query, offered in (
        ("status=fatal", ["Retry all that failed for good", "Delete all that failed for good"]),
        ("status=error", ["Retry all that will be retried"]),
        ("group=3", ["Retry all failed tasks of this kind", "Cancel those of this kind that have not ended"]),
        ("status=new", []),
    ):
        found = re.findall(r'<a class="button[^>]*>([^<]*) …</a>', visitor.get(f"view=tasks&{query}").text)
        assert found == offered, query
    said = words(visitor.get("view=confirm&verb=retry&group=3").text)
    assert "1 of them would be retried without that, too. 1 of them was cancelled by somebody." in said
    assert "No task that is chosen can be retried now." in words(visitor.get("view=confirm&verb=retry&id=99").text)


def test_a_visitor_waits_for_no_lock(mysql_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers nothing, for as long as somebody has the table."""
    site = PageSite(tmp_path, mysql_dsn)
    site.let_act()
    add_failed(site, "tasks.a", "E: one")
    visitor = site.owner()
    form = visitor.form(verb="retry", all="1")
    monkeypatch.setattr(wsgi, "ANSWER_SECONDS", 0.3)
    site.sql("LOCK TABLES jobs_queue WRITE, jobs_queue_paused WRITE")
    lets_go = Timer(60, site.rows.close)  # so that the test ends in any case
    lets_go.start()
    try:
        for view in ("", "view=tasks", "view=errors", "view=confirm&verb=retry&all=1"):
            assert visitor.get(view).status_code == HTTPStatus.SERVICE_UNAVAILABLE, view
        assert 'chip critical"' in visitor.get("view=doctor").text
        assert visitor.post("view=act", data=form).status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert lets_go.is_alive()
    finally:
        lets_go.cancel()
        site.sql("UNLOCK TABLES")
        site.close()


def test_a_link_changes_nothing(acting: PageSite) -> None:
    before = statuses(acting)
    visitor = acting.owner()
    for view in ("act", "confirm", "sign-out", "tasks"):
        visitor.get(f"view={view}&verb=retry&all=1&token={visitor.token()}")
    assert statuses(acting) == before


# ---- where the page may only show


def test_a_page_that_may_only_show_refuses_acts_and_has_the_line_of_client_py(acting: PageSite) -> None:
    acting.set(TASKSERVER_PAGE_PASSWORD=PASSWORD_HASH)
    visitor = acting.owner()
    answer = visitor.post("view=act", data={"verb": "retry", "all": "1", "token": visitor.token()})
    assert (answer.status_code, statuses(acting)) == (HTTPStatus.FORBIDDEN, [4, 4, 4, 3, 4])
    for view in ("", "tasks", "errors", "task&id=1"):
        assert "confirm" not in visitor.get(f"view={view}").text
    for view, line in {
        "errors": "client.py retry --error-line='E: one'",
        "confirm&verb=retry&group=3&group=5&task=tasks.a": "client.py retry --group 3,5 --task=tasks.a</pre>",
        "confirm&verb=retry&like=5": """client.py retry --error-line='F: '"'"'quoted""",
    }.items():
        assert line in html.unescape(visitor.get(f"view={view}").text), view


# ---- the log


def log_of(site: PageSite) -> list[str]:
    return (site.folder / "var" / "page" / "actions.log").read_text().splitlines()


def test_each_act_is_logged_with_the_visitor_s_address_and_no_row_forges_a_line(acting: PageSite) -> None:
    add_failed(acting, "tasks.a\nforged", "E: x")
    add_failed(acting, "tasks.a", "E: \x1b[2Jx")
    visitor = acting.owner()
    visitor.act(verb="retry", like="1")
    begun, done = log_of(acting)
    what = rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ {ADDRESS} retry of tasks 1, 2; error 'E: one': "
    assert re.fullmatch(f"{what}begins", begun)
    assert re.fullmatch(f"{what}2 retried", done)
    visitor.post("view=act", data={**visitor.form(verb="retry", id="3"), "as": "../x"})
    assert "not done, or not to its end: " in log_of(acting)[-1]
    visitor.act(verb="retry", task="tasks.a\nforged")
    visitor.act(verb="retry", like="7")
    assert not [line for line in log_of(acting) if line.startswith("forged") or "\x1b" in line]


def test_what_cannot_be_logged_is_not_done(site: PageSite) -> None:
    site.let_act()
    add_failed(site, "tasks.a", "E: one")
    visitor = site.owner()
    (site.folder / "var" / "page" / "actions.log").mkdir()
    assert visitor.act(verb="retry", id="1").status_code == HTTPStatus.INTERNAL_SERVER_ERROR
    assert statuses(site) == [4]
