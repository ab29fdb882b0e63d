"""Times that MySQL and MariaDB store as 0000-00-00 in a session without STRICT: the task is fatal, and never runs."""

from __future__ import annotations

import pytest

from tests.support.rows import Rows
from tests.support.sites import Site

CODE = """
from taskserver import task

ran = []

def note():
    ran.append("note")

@task(commit_every=10)
def share():
    ran.append("share")
"""
BAD = ("UNIX_TIMESTAMP() + 3600", "''", "'+1 hour'", "DATE_FORMAT(NOW() + INTERVAL 1 HOUR, '%d.%m.%Y %H:%i:%s')")


@pytest.mark.parametrize(("status", "name", "awaited"), [(0, "note", 0), (5, "note", 1), (0, "share", 0)])
def test_a_task_with_an_invalid_due_at_is_fatal_and_its_error_says_what_to_write(
    mysql_site: Site, status: int, name: str, awaited: int
) -> None:
    site, shop = mysql_site, Rows(mysql_site.dsn)
    shop.execute("SET sql_mode = ''")
    for due_at in (*BAD, "FROM_UNIXTIME(UNIX_TIMESTAMP() - 1)", "FROM_UNIXTIME(UNIX_TIMESTAMP() + 3600)"):
        values = f"'{site.name}.{name}', '[]', {status}, {due_at}, {awaited}"
        shop.execute(f"INSERT INTO jobs_queue (task, args, status, due_at, awaited) VALUES ({values})")
    ended = site.run()
    assert (ended.done, ended.fatal, site.module.ran) == (1, 4, [name])
    assert shop.statuses() == [4, 4, 4, 4, 5]
    for line in site.first_lines()[:4]:
        assert "due_at is not a valid time (0000-00-00): write FROM_UNIXTIME(" in line
    shop.set("status = 0, attempts = 0 WHERE id = 1")  # as a person does who retries it
    assert site.run().done == 1
    shop.close()
