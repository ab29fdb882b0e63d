"""A worker that lingers on PostgreSQL is woken by an INSERT: it starts the task without a look in between (NOTIFY).

Its pauses are an hour, so that no test ends by a look that the worker would take anyway, unless a test says otherwise.
"""

from __future__ import annotations

import subprocess
from functools import partial
from urllib.parse import urlsplit

import pytest

from tests.support.postgresql import PostgreSQLServer, pooled
from tests.support.processes import WAIT_SECONDS, stop, wait_until
from tests.support.queues import Queue

SETTINGS = {"TASKSERVER_PAUSES": "0.1,3600,3600"}
STAYS = ("--linger", 3 * WAIT_SECONDS, "--slots", "1")
LAST_LOOK = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = ? AND state = 'idle'
        AND starts_with(query, 'SELECT 1 FROM ')
"""
WHO_WAITS = """
    SELECT pid FROM pg_locks
    WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def rests(queue: Queue, process: subprocess.Popen[str]) -> bool:
    """Whether a worker listens, and has looked after that."""
    assert process.poll() is None
    return queue.sql(WHO_WAITS) == queue.sql(LAST_LOOK, f"taskserver {process.pid}") != []


def has_noted(queue: Queue, *texts: str) -> bool:
    return queue.notes() == list(texts)


def test_an_insert_with_the_least_rights_wakes_a_waiting_worker(
    postgresql_queue: Queue, postgresql_server: PostgreSQLServer, request: pytest.FixtureRequest
) -> None:
    queue = postgresql_queue
    database = urlsplit(queue.dsn).path[1:]
    role = f"web_{database}"
    queue.sql(f"CREATE ROLE {role} LOGIN PASSWORD '{postgresql_server.password}'")
    request.addfinalizer(lambda: [queue.sql(f"DROP {what} {role}") for what in ("OWNED BY", "ROLE")])
    queue.sql(f"GRANT INSERT (task, args, group_id, priority) ON jobs_queue TO {role}")
    worker = queue.start("0", *STAYS)
    wait_until(lambda: rests(queue, worker))
    with postgresql_server.connect(user=role, dbname=database, options="-c search_path=pg_catalog") as web:
        for number in (1, 2):
            web.execute("INSERT INTO public.jobs_queue (task) VALUES ('tasks.note')")
            wait_until(partial(has_noted, queue, *["noted"] * number))
            wait_until(lambda: rests(queue, worker))
    stop(worker)


def test_behind_a_pooler_where_no_notice_comes_tasks_are_found_by_a_look(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    queue.add_many([(7, 4)])
    with pooled(queue.dsn) as dsn:
        queue.deployment.write_env(TASKSERVER_DSN=dsn, TASKSERVER_PAUSES="0.1,0.5,5")
        worker = queue.start("0", *STAYS)
        wait_until(lambda: queue.sql("SELECT * FROM jobs_queue_processes"))
        assert queue.server.retry(*queue.rows("id")[0])  # which sends none either
        wait_until(partial(has_noted, queue, "noted"))
        queue.add("tasks.note")
        wait_until(partial(has_noted, queue, "noted", "noted"))
        assert queue.sql(WHO_WAITS) == []
        stop(worker)
