"""What the views show, whatever rows hold and however many there are."""

from __future__ import annotations

import html
import re
import subprocess
from collections.abc import Iterable
from http import HTTPStatus

import pytest

from taskserver.errors import Unavailable
from taskserver.messages.text import prefix_in_shell
from taskserver.model.task import Status
from taskserver.stores.tables import Tables
from taskserver.web import wsgi
from taskserver.web.views import TASKS_A_PAGE
from tests.support.pages import URL, PageSite
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


def test_a_task_s_own_page_has_its_error_arguments_and_result_and_lists_have_none_of_its_arguments(
    open_site: PageSite,
) -> None:
    open_site.sql(
        "INSERT INTO jobs_queue (task, status, args, error_text) VALUES (?, 4, ?, ?)",
        "tasks.send",
        '{"to": "a@example.org"}',
        "E: one\n  File tasks.py, line 9",
    )
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
    now, ahead = site.rows.after(0), site.rows.after(600)
    site.sql(
        f"INSERT INTO jobs_queue_processes (number, host, group_ids, pid, ended_at) VALUES (1, 'h', 'all', 2, {now})"
    )
    for status, started_at, claim in ((1, now, 1 << 32), (1, now, 2 << 32), (1, "NULL", 1 << 32), (3, now, "NULL")):
        site.sql(
            "INSERT INTO jobs_queue (task, status, attempts, started_at, claim, due_at) "
            f"VALUES ('tasks.a', {status}, 1, {started_at}, {claim}, {ahead})"
        )
    visitor = site.owner()
    chips = re.findall(r'class="chip (\w+)"', visitor.get("view=tasks").text)
    assert chips == ["error", "claimed", "running", "gone"]
    assert visitor.get("view=tasks").text.count(", due <time") == 2  # of the lease, and of the next attempt
    own = [visitor.get(f"view=task&id={one}").text for one in (1, 2)]
    assert ["process has ended" in text for text in own] == [True, False]
    assert ["Ran for" in text for text in own] == [False, True]
    assert re.findall(r'class="chip (\w+)"', visitor.get("view=workers").text) == ["gone", "gone", "running"]


def test_a_list_has_errors_in_the_colour_of_their_status_and_only_buttons_that_can_act(open_site: PageSite) -> None:
    for status in (Status.NEW, Status.DONE, Status.ERROR, Status.FATAL, Status.CANCELLED):
        open_site.sql("INSERT INTO jobs_queue (task, status, error_text) VALUES ('tasks.a', ?, 'E: a')", int(status))
    visitor = open_site.owner()
    assert re.findall(r'"error mono ([\w-]+)"', visitor.get("view=tasks").text) == [
        *("dim", "act-words", "look-words", "dim", "dim")
    ]
    for name, verbs in (("done", []), ("new", ["cancel"]), ("error", ["retry", "cancel"])):
        text = visitor.get(f"view=tasks&status={name}").text
        assert (re.findall(r'name="verb" value="(\w+)"', text), "The marked ones" in text) == (verbs, bool(verbs))


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
        ("view=task", 404),
        ("view=task&id=99", 404),
        ("view=task&id=x", 400),
        ("view=task&id=" + "9" * 40, 400),
        ("view=tasks&status=gone", 400),
        ("view=tasks&group=-1", 400),
        ("view=tasks&before=1e3", 400),
        ("view=tasks&like=1", 400),
        ("view=hours&days=400", 400),
        ("view=tasks&status=waiting&before=1&due=２０２６-11-30 04:05:06.000000", 400),
        ("view=tasks&status=waiting&before=1&due=2026-13-40 99:99:99.000000", 400),
        ("view=tasks&status=waiting&before=1&due=2026-11-30 04:05:06.000000", 200),
        ("view=confirm", 400),
        ("view=confirm&verb=retry&id=1&id=x", 400),
        ("view=tasks&task=%00%ff", 200),
        ("view=tasks&task=%ed%a0%80", 200),
        ("done=retry", 200),
        ("done=retry&rows=12345678901x", 200),
        pytest.param(f"done=retry&rows={'9' * 5000}", 200, id="a long number"),
        ("done=retry&rows=³", 200),
        ("done=%3Cscript%3E", 200),
        ("asset=../views.py", 404),
        ("asset=overview.html", 404),
        ("asset=page.css", 200),
    ],
)
def test_an_odd_link_gets_a_plain_answer(open_site: PageSite, query: str, code: int) -> None:
    answer = open_site.owner().get(query)
    assert answer.status_code == code
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(("method", "code"), [("HEAD", 200), *((name, 405) for name in ("PUT", "DELETE", "OPTIONS"))])
def test_head_is_answered_as_get_is_without_a_text_and_other_methods_are_refused(
    open_site: PageSite, method: str, code: int
) -> None:
    answer = open_site.owner().client.open("/", method=method, base_url=URL)
    assert (answer.status_code, answer.data == b"") == (code, method == "HEAD")


@pytest.mark.parametrize(
    ("text", "begin"),
    [
        ("E: it's $HOME `id` \\\\host", "E: it's $HOME `id` "),
        ("E: \x15touch x #", "E: "),
        ("a\r\nb", "a"),
        ("ü\u202e", "ü"),
        ("disk 100 % full", "disk 100 "),
    ],
)
def test_a_line_that_is_copied_into_a_terminal_or_a_crontab_commands_neither(text: str, begin: str) -> None:
    argument = prefix_in_shell(text)
    done = subprocess.run(["sh", "-c", f"printf %s {argument}"], capture_output=True, check=True)
    assert done.stdout.decode() == begin
    assert prefix_in_shell(f"\x1b{text}") == ""


# ---- turning pages


def turn_all(site: PageSite, query: str) -> list[int]:
    """The ids of all pages, in their order; what is added meanwhile shifts nothing."""
    visitor, ids = site.owner(), list[int]()
    while query:
        text = visitor.get(query).text
        ids += ids_of(text)
        assert len(ids) < 500, "the pages come to no end"
        site.server.add_task("tasks.later")
        found = re.search(r'href="\?([^"]*before=[^"]*)"', text)
        query = html.unescape(found[1]) if found else ""
    return ids


def due(number: int) -> int:
    """In so many seconds a task of `full_site` is due."""
    return number * 7 % 79


@pytest.fixture
def full_site(open_site: PageSite) -> PageSite:
    """130 tasks: ids whose rest by 3 is the group, by 2 the status (new, fatal), by 5 the attempts; 80 delayed ones."""
    insert(
        open_site,
        [{"task": f"tasks.t{n % 4}", "group_id": n % 3, "status": n % 2 * 4, "attempts": n % 5} for n in range(1, 131)],
    )
    insert(
        open_site,
        [{"task": "tasks.due", "status": 5, "due_at": Ago(-due(n)) if n % 10 else None} for n in range(131, 211)],
    )
    return open_site


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", range(210, 0, -1)),
        ("&status=fatal", range(129, 0, -2)),
        ("&status=new&group=1", range(130, 0, -6)),
        ("&task=tasks.t3", range(127, 0, -4)),
        ("&status=error", []),
        ("&status=fatal&like=7", [9, 7, 3]),
        ("&status=waiting", [*sorted((n for n in range(131, 211) if n % 10), key=due), *range(210, 139, -10)]),
        ("&status=fatal&since=1+day", [129]),
    ],
)
def test_turning_pages_shows_each_task_once_the_newest_first_or_the_one_that_is_due_next(
    full_site: PageSite, query: str, ids: Iterable[int]
) -> None:
    full_site.sql("UPDATE jobs_queue SET error_text = ? WHERE id IN (3, 7, 9)", "E: one\nmore")
    full_site.sql("UPDATE jobs_queue SET error_text = ? WHERE id = 11", "F: one")
    long_ago = full_site.rows.after(-3 * 86_400)
    full_site.sql(f"UPDATE jobs_queue SET finished_at = {long_ago}, updated_at = {long_ago} WHERE id < 129")
    assert turn_all(full_site, f"view=tasks{query}") == list(ids)


def test_the_tasks_with_the_most_attempts_come_first(full_site: PageSite) -> None:
    text = full_site.owner().get("view=tasks&status=fatal&order=attempts").text
    assert ids_of(text) == sorted((n for n in range(1, 131) if n % 2), key=lambda n: (-(n % 5), -n))[:TASKS_A_PAGE]
    assert "Looked through some thousand tasks; there may be others." in text


# ---- the state of the queue


def test_an_empty_queue_is_shown_and_says_that_no_worker_ran(open_site: PageSite) -> None:
    visitor = open_site.owner()
    assert "No worker ran yet" in visitor.get().text
    for view in QUEUE_VIEWS:
        assert visitor.get(f"view={view}").status_code == HTTPStatus.OK


def test_a_database_that_is_away_is_said_with_code_503_and_comes_back(
    open_site: PageSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Tables) -> None:
        raise Unavailable("Can't connect to the server")

    visitor = open_site.owner()
    with monkeypatch.context() as away:
        away.setattr(Tables, "check", fail)
        answer = visitor.get()
        assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert "The database is away" in answer.text
    assert visitor.get().status_code == HTTPStatus.OK


def test_older_tables_are_said_with_what_mends_them(open_site: PageSite) -> None:
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
    open_site.sql("UPDATE jobs_queue_stats SET failed = 3, lost = 1, fatal = 5")  # five that could not be started
    text = open_site.owner().get().text
    assert all(f"{words}</title>" in text for words in ("4 attempts failed or lost", "5 tasks failed for good"))
