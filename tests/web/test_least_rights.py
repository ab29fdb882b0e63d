"""The page as a database user who may SELECT alone, and the one file, the check and the metrics as the same user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.support.documents import read
from tests.support.pages import PageSite
from tests.web.sites import fill_odd
from tests.web.test_views import VIEWS

PASSWORD = "monitor-password"
GRANT = "GRANT SELECT ON you_queue.* TO 'you_monitor'@'localhost'"
GRANT_ON_POSTGRESQL = re.findall("GRANT SELECT ON jobs_queue, [^;]* TO you_monitor;", read("docs/security.md"))


@pytest.fixture(params=["mysql", "postgresql"])
def reading(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PageSite]:
    """A full queue, whose page has a user of docs/security.md."""
    assert f"{GRANT};" in read("docs/security.md")
    server, dsn = (request.getfixturevalue(f"{request.param}_{name}") for name in ("server", "dsn"))
    site = PageSite(tmp_path, dsn)
    fill_odd(site)
    database = dsn.rpartition("/")[2]
    user = f"m_{database[2:]}"
    if request.param == "mysql":
        grant = GRANT.replace("you_queue", f"`{database}`").replace("you_monitor", user).replace("localhost", "%")
        server.execute(f"CREATE USER '{user}'@'%' IDENTIFIED BY '{PASSWORD}'", grant)
        server.meet(user, PASSWORD)
        removes = [f"DROP USER '{user}'@'%'"]
    else:
        grant = GRANT_ON_POSTGRESQL[0].replace("you_monitor", user)
        server.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{PASSWORD}'", grant, database=database)
        removes = [f"DROP OWNED BY {user}", f"DROP ROLE {user}"]
    site.dsn = f"{request.param}://{user}:{PASSWORD}@{server.host}:{server.port}/{database}"
    site.set(TASKSERVER_PAGE_ALLOW="0.0.0.0/0")
    yield site
    site.close()
    server.execute(*removes, database=database)


def test_each_view_is_shown_to_a_page_that_may_select_alone(reading: PageSite) -> None:
    visitor = reading.visitor()
    for view in [*VIEWS, "tasks&status=fatal", "hours&days=7", "doctor"]:
        answer = visitor.get(f"view={view}")
        assert answer.status_code == HTTPStatus.OK, (view, answer.text)
    assert "may not read" not in visitor.get().text
    doctor = visitor.get("view=doctor").text
    assert "may not UPDATE on jobs_queue" in doctor
    assert "this page, which only shows, can do without" in doctor
    assert re.search(r'chip unknown">unknown</span></span><div class="body"><strong>rights</strong>', doctor)
    assert "check --accept rights" not in doctor


def test_such_a_page_can_change_nothing_even_where_acts_are_allowed(reading: PageSite) -> None:
    reading.let_act()
    before = reading.rows.all()
    visitor = reading.owner()
    for fields in ({"verb": "retry", "all": "1"}, {"verb": "cancel", "all": "1"}, {"verb": "pause", "group": "3"}):
        answer = visitor.act(**fields)
        assert answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE
        assert "denied" in answer.text
    assert reading.rows.all() == before
