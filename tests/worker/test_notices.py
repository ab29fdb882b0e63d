"""A worker that lingers on PostgreSQL is told of new tasks: it starts them without a look in between (NOTIFY).

Where not said otherwise its pauses are an hour, so that no test ends by a look that the worker would take anyway.
"""

from __future__ import annotations

import signal
import subprocess
import time
from contextlib import closing, suppress
from functools import partial
from urllib.parse import urlsplit

import psycopg
import pytest

from taskserver import TaskServer
from tests.conftest import without
from tests.support.pgbouncer import pooled
from tests.support.postgresql import PostgreSQLServer, connection_in_utc
from tests.support.processes import WAIT_SECONDS, end_of, freeze, kill, thaw, wait_until
from tests.support.queues import Queue
from tests.support.servers import find_program

TASKS = """
import time

def hold():
    note("started")
    while not (HERE / "go").exists():
        time.sleep(0.01)
"""
SETTINGS = {"TASKSERVER_PAUSES": "3600,3600,3600"}
LONG = 3 * WAIT_SECONDS
STAYS = ("--linger", LONG, "--slots", "1")
LAST_LOOK = """
    SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = ? AND state = 'idle'
        AND starts_with(query, 'SELECT 1 FROM ')
"""


def rests(queue: Queue, process: subprocess.Popen[str]) -> bool:
    """Whether a worker has its row, and has looked a last time."""
    assert process.poll() is None
    is_over = bool(queue.sql(LAST_LOOK, f"taskserver {process.pid}"))
    return is_over and bool(queue.sql("SELECT 1 FROM jobs_queue_waiting WHERE waits_until > now()"))


def start_resting(queue: Queue, *args: object) -> subprocess.Popen[str]:
    process = queue.start(*(args or ("0",)), *STAYS)
    wait_until(lambda: rests(queue, process))
    return process


def has_noted(queue: Queue, *texts: str) -> bool:
    return queue.notes() == list(texts)


def stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    assert end_of(process) == (0, "", "")


def listener(queue: Queue) -> psycopg.Connection[tuple[object, ...]]:
    """A connection that hears all notices of the queue."""
    connection = connection_in_utc(queue.dsn)
    ((channel,),) = queue.sql("SELECT 'taskserver_' || CAST(CAST('jobs_queue_waiting' AS regclass) AS oid)")
    connection.execute(f"LISTEN {channel}".encode())
    return connection


def heard(ears: psycopg.Connection[tuple[object, ...]]) -> list[str]:
    """The payloads that came since the last time."""
    ears.execute(b"SELECT pg_notify(pg_listening_channels(), 'the last one')")  # notices come in the order of commits
    payloads: list[str] = []
    while "the last one" not in payloads:
        payloads += [notice.payload for notice in ears.notifies(timeout=WAIT_SECONDS, stop_after=1)]
    return payloads[:-1]


# ---- what wakes it


def test_a_waiting_worker_starts_new_and_due_tasks_and_ends_at_once(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    queue.sql(f"INSERT INTO jobs_queue (task, args, due_at, status) VALUES ('tasks.note', '[1]', {queue.ago(-2)}, 5)")
    began = time.monotonic()
    worker = start_resting(queue)
    wait_until(partial(has_noted, queue, "1"))  # known when it went to rest
    assert time.monotonic() - began > 1.5
    wait_until(lambda: rests(queue, worker))
    queue.add("tasks.note", "[2]")
    wait_until(partial(has_noted, queue, "1", "2"))
    wait_until(lambda: rests(queue, worker))
    began = time.monotonic()
    queue.sql(f"INSERT INTO jobs_queue (task, args, due_at) VALUES ('tasks.note', '[3]', {queue.ago(-1)})")
    wait_until(partial(has_noted, queue, "1", "2", "3"))  # added while it rested
    assert time.monotonic() - began >= 1
    wait_until(lambda: rests(queue, worker))
    began = time.monotonic()
    stop(worker)
    assert time.monotonic() - began < 3
    assert queue.sql("SELECT * FROM jobs_queue_waiting") == []


def test_it_is_told_of_tasks_of_its_groups_alone(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    with closing(listener(queue)) as ears:
        queue.add("tasks.note", "[3]", 3)
        assert heard(ears) == []  # nobody waits
        worker = start_resting(queue, 0, "3,5")
        heard(ears)
        queue.add_many([(0, 0), (4, 0), (4, 0), (5, 2), (5, 4)])
        assert heard(ears) == []
        ((number,),) = queue.sql("SELECT number FROM jobs_queue_waiting")
        queue.add_many([(4, 0), (5, 0), (5, 0), (3, 0)])
        assert heard(ears) == [f"{number} 0"]
        wait_until(lambda: len(queue.notes()) == 4)
        stop(worker)
    assert sorted(queue.rows("group_id, status")) == [(0, 0), (4, 0), (4, 0), (4, 0), (5, 2), (5, 4)]


@pytest.mark.long
def test_retries_reruns_resumed_groups_and_schedules_wake_it(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    queue.add_many([(7, 4)])
    worker = start_resting(queue)
    (fatal,) = queue.rows("id")[0]
    assert queue.client("retry", fatal).returncode == 0
    wait_until(partial(has_noted, queue, "noted"))
    wait_until(lambda: rests(queue, worker))
    assert queue.client("pause", "7").returncode == 0
    queue.add("tasks.note", None, 7)
    assert queue.client("resume", "7").returncode == 0
    wait_until(partial(has_noted, queue, *["noted"] * 2))
    wait_until(lambda: rests(queue, worker))
    queue.server.schedule("often", "tasks.note", every=1)
    wait_until(lambda: len(queue.notes()) >= 4)
    stop(worker)


@pytest.mark.long
def test_a_task_of_another_group_is_woken_for_the_worker_of_that_group(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    parent = queue.server.add_task("tasks.note", ["parent"], group_id=1)
    queue.server.add_task("tasks.note", ["child"], group_id=2, depends_on=[parent])
    worker = start_resting(queue, 0, "2")
    assert queue.worker(0, "1").returncode == 0
    wait_until(partial(has_noted, queue, "parent", "child"))
    stop(worker)


@pytest.mark.long
def test_a_producer_with_insert_alone_tells_it(postgresql_queue: Queue, postgresql_server: PostgreSQLServer) -> None:
    queue = postgresql_queue
    queue.sql("DROP ROLE IF EXISTS of_web")
    queue.sql(f"CREATE ROLE of_web LOGIN PASSWORD '{postgresql_server.password}'")
    queue.sql("GRANT INSERT (task, args, group_id, priority) ON jobs_queue TO of_web")
    worker = start_resting(queue)
    database = urlsplit(queue.dsn).path[1:]
    with postgresql_server.connect(user="of_web", dbname=database, options="-c search_path=pg_catalog") as web:
        web.execute("INSERT INTO public.jobs_queue (task) VALUES ('tasks.note')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            web.execute("SELECT * FROM public.jobs_queue_waiting")
    wait_until(queue.notes)
    stop(worker)
    queue.sql("DROP OWNED BY of_web")
    queue.sql("DROP ROLE of_web")


# ---- while it has enough to do, nobody tells it


@pytest.mark.long
def test_nobody_tells_a_worker_that_has_a_task(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    worker = start_resting(queue)
    with closing(listener(queue)) as ears:
        queue.add("tasks.hold")
        wait_until(partial(has_noted, queue, "started"))
        heard(ears)
        assert queue.sql("SELECT * FROM jobs_queue_waiting") == []
        queue.add("tasks.note")
        assert heard(ears) == []
    queue.go()
    wait_until(partial(has_noted, queue, "started", "noted"))
    wait_until(lambda: rests(queue, worker))
    stop(worker)


@pytest.mark.long
def test_the_row_of_a_killed_worker_soon_counts_for_nothing_and_goes(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    kill(start_resting(queue))
    ((number, seconds),) = queue.sql("SELECT number, EXTRACT(EPOCH FROM waits_until - now()) FROM jobs_queue_waiting")
    assert 0 < seconds <= 15
    with closing(listener(queue)) as ears:
        queue.sql("UPDATE jobs_queue_waiting SET waits_until = now() - INTERVAL '1 second'")
        queue.add("tasks.note")
        assert heard(ears) == []
    worker = queue.start("0", *STAYS)
    wait_until(queue.notes)
    wait_until(lambda: rests(queue, worker))
    ((other,),) = queue.sql("SELECT number FROM jobs_queue_waiting")
    assert other != number
    worker.send_signal(signal.SIGTERM)
    end_of(worker)


# ---- notices that are lost


@pytest.mark.long
def test_a_task_of_which_nobody_tells_is_found_by_a_look(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    queue.deployment.write_env(TASKSERVER_DSN=queue.dsn, TASKSERVER_PAUSES="0.1,1,5")
    queue.sql("DROP TRIGGER tell_of_added ON jobs_queue")
    worker = queue.start("0", *STAYS)
    wait_until(lambda: queue.sql("SELECT * FROM jobs_queue_waiting"))
    queue.add("tasks.note")
    wait_until(queue.notes)
    stop(worker)


@pytest.mark.long
def test_a_task_whose_transaction_was_open_as_it_went_to_rest_waits_not_much_longer(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    queue.deployment.write_env(TASKSERVER_DSN=queue.dsn, TASKSERVER_PAUSES="0.1,3600,3600")
    with connection_in_utc(queue.dsn) as producer, producer.transaction():
        producer.execute("INSERT INTO jobs_queue (task) VALUES ('tasks.note')")
        worker = start_resting(queue)
    wait_until(queue.notes)
    stop(worker)


@pytest.mark.long
def test_it_listens_anew_where_its_connection_is_cut(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    worker = start_resting(queue)
    ((backend,),) = queue.sql(LAST_LOOK, f"taskserver {worker.pid}")
    queue.sql("SELECT pg_terminate_backend(?)", backend)
    wait_until(lambda: rests(queue, worker) and queue.sql(LAST_LOOK, f"taskserver {worker.pid}") != [(backend,)])
    queue.add("tasks.note")
    wait_until(queue.notes)
    stop(worker)


@pytest.mark.long
def test_it_looks_once_it_goes_on_after_its_row_counts_no_more(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    worker = start_resting(queue)
    freeze(worker)
    # As if the host had stood still for a while: nobody told the worker meanwhile.
    queue.sql("UPDATE jobs_queue_waiting SET waits_until = now() - INTERVAL '1 second'")
    queue.add("tasks.note")
    time.sleep(16)  # by the worker's own clock
    thaw(worker)
    wait_until(queue.notes)
    worker.send_signal(signal.SIGTERM)
    assert end_of(worker)[0] == 0


@pytest.mark.long
def test_it_sleeps_and_looks_where_its_account_may_not_enter_a_row(
    postgresql_queue: Queue, postgresql_server: PostgreSQLServer
) -> None:
    queue, password = postgresql_queue, postgresql_server.password
    with suppress(psycopg.errors.UndefinedObject):
        queue.sql("DROP OWNED BY of_worker")
    queue.sql("DROP ROLE IF EXISTS of_worker")
    queue.sql(f"CREATE ROLE of_worker LOGIN PASSWORD '{password}'")
    queue.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO of_worker")
    queue.sql("REVOKE ALL ON jobs_queue_waiting FROM of_worker")
    place = queue.dsn.rpartition("@")[2]
    queue.deployment.write_env(
        TASKSERVER_DSN=f"postgresql://of_worker:{password}@{place}", TASKSERVER_PAUSES="0.1,0.5,5"
    )
    worker = queue.start("0", *STAYS)
    wait_until(lambda: queue.sql("SELECT * FROM jobs_queue_processes"))
    queue.add("tasks.note")
    wait_until(queue.notes)
    stop(worker)
    queue.sql("DROP OWNED BY of_worker")
    queue.sql("DROP ROLE of_worker")


@pytest.mark.long
def test_it_sleeps_and_looks_behind_a_pooler_of_transactions(postgresql_queue: Queue) -> None:
    if find_program("pgbouncer") is None:
        without("pgbouncer is not installed")
    queue = postgresql_queue
    with pooled(queue.dsn) as dsn:
        queue.deployment.write_env(TASKSERVER_DSN=dsn, TASKSERVER_PAUSES="0.1,0.5,5")
        worker = queue.start("0", *STAYS)
        wait_until(lambda: queue.sql("SELECT * FROM jobs_queue_processes"))
        for number in range(1, 4):
            queue.add("tasks.note")
            wait_until(partial(has_noted, queue, *["noted"] * number))
        assert queue.sql("SELECT * FROM jobs_queue_waiting") == []
        stop(worker)


# ---- the hand-over


@pytest.mark.long
def test_a_resting_worker_leaves_for_its_successor_which_is_told_then(postgresql_queue: Queue) -> None:
    queue = postgresql_queue
    first = start_resting(queue)
    second = queue.start("0", *STAYS)
    assert end_of(first) == (0, "", "")
    wait_until(lambda: rests(queue, second))
    queue.add("tasks.note")
    wait_until(queue.notes)
    stop(second)


# ---- the triggers


def test_making_the_tables_again_keeps_one_trigger_of_each_kind(postgresql_queue: Queue) -> None:
    triggers = "SELECT tgname, tgrelid FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1, 2"
    before = postgresql_queue.sql(triggers)
    assert len(before) == 4
    for table in ("jobs_queue", "order"):
        with TaskServer(postgresql_queue.dsn, table=table) as server:
            server.create_tables()
            server.create_tables()
            server.add_task("tasks.note")
    assert len(postgresql_queue.sql(triggers)) == 8


def test_a_program_that_keeps_its_connection_is_told_of_nothing_after_its_runs(postgresql_queue: Queue) -> None:
    with TaskServer(postgresql_queue.dsn, folder=postgresql_queue.folder) as server:
        for _ in range(3):
            server.run(linger=0.2)
        assert server.store.database.fetch("SELECT pg_listening_channels()") == []
        assert server.store.database.session().connection._notify_handlers == []
