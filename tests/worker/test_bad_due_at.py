"""Times that MySQL and MariaDB store as 0000-00-00 in a session without STRICT: the task is fatal, and never runs."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from tests.support.rows import Rows
from tests.support.sites import Site

BAD = ("UNIX_TIMESTAMP() + 3600", "''", "'+1 hour'", "DATE_FORMAT(NOW() + INTERVAL 1 HOUR, '%d.%m.%Y %H:%i:%s')")


@pytest.mark.parametrize("how", ["claimed", "in a batch", "sharing commits", "released", "awaited"])
@pytest.mark.parametrize("status", [0, 5])
def test_a_task_whose_due_at_is_no_time_is_fatal_and_says_what_to_write(
    mysql_dsn: str, tmp_path: Path, status: int, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import taskserver\nRAN = []\n\n\ndef note(*args):\n    RAN.append(args)\n"
    if how == "in a batch":
        code = code.replace("def note(*args)", "@taskserver.task(batch=10)\ndef note(args)")
    if how == "sharing commits":
        code = code.replace("def note", "@taskserver.task(commit_every=10)\ndef note")
    with closing(Site(mysql_dsn, tmp_path, code, {})) as site, closing(Rows(mysql_dsn)) as shop:
        shop.execute("SET sql_mode = ''")
        for due_at in (*BAD, "FROM_UNIXTIME(UNIX_TIMESTAMP() - 1)", "FROM_UNIXTIME(UNIX_TIMESTAMP() + 3600)"):
            values = f"'{site.name}.note', '[]', {status}, {due_at}"
            shop.execute(f"INSERT INTO jobs_queue (task, args, status, due_at) VALUES ({values})")
        if how == "awaited":
            shop.set("awaited = 1")
        if how == "released":  # by a worker that vanished after its claim
            site.store.due.wake(site.store.due.look().to_wake)
            site.store.claims.claim(100, [])
            shop.set("due_at = NOW(6) - INTERVAL 1 HOUR WHERE status = 1")
        ended = site.run()
        assert (ended.done, ended.fatal) == (1, 4)
        assert site.module.RAN in ([()], [[[]]])
        assert shop.statuses() == [4, 4, 4, 4, 5]
        texts = {row["error_text"] for row in shop.all() if row["status"] == 4}
        assert len(texts) == 1
        assert "due_at is no valid time (0000-00-00): write FROM_UNIXTIME(" in texts.pop()
        shop.set("status = 0, attempts = 0 WHERE id = 1")  # as a person does who retries it
        assert site.run().done == 1
