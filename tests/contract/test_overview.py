"""The overview: bounded queries for counts, ages, names and errors, which hold up no worker."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from taskserver import TaskServer
from taskserver.health.status import read_status
from taskserver.model.selection import Selection
from taskserver.model.task import Status
from taskserver.stores import Store
from taskserver.stores.queue import counts, views
from taskserver.stores.queue.counts import Counts, NameCount
from taskserver.stores.queue.views import Pages, Place
from tests.contract.verbs import PLAIN, add_many, claim
from tests.support.queues import row_counts
from tests.support.rows import ANALYZE, EXPLAIN, Rows

INSERT = "INSERT INTO jobs_queue (task, group_id, priority, status, error_text, due_at, created_at, updated_at) VALUES "


def put(rows: Rows, *wanted: tuple[str, int, int], **more: object) -> None:
    """Rows of a name, a group and a status; with an error, a due_at, or ages in seconds."""
    given = {"priority": 0, "error": "NULL", "due": "NULL", "added": 0, "ready": 0, **more}
    added, ready = (rows.after(-float(str(given[name]))) for name in ("added", "ready"))
    error = "NULL" if given["error"] == "NULL" else f"'{given['error']}'"
    values = [
        f"('{task}', {group}, {given['priority']}, {status}, {error}, {given['due']}, {added}, {ready})"
        for task, group, status in wanted
    ]
    rows.execute(INSERT + ", ".join(values))


def test_a_count_up_to_a_number_stops_there_and_names_are_counted_in_each_status(store: Store, rows: Rows) -> None:
    put(rows, *[("a", 3, 0)] * 5, ("b", 5, 0), ("a", 5, 4))
    look = Counts(store.database)
    assert [look.up_to(most, Status.NEW) for most in (3, 7)] == [3, 6]
    assert look.up_to(10, Status.NEW, [5]) == 1
    assert sorted(look.by_name()) == [NameCount("a", 3, 0, 5), NameCount("a", 5, 4, 1), NameCount("b", 5, 0, 1)]


def test_tasks_that_wait_for_nothing_are_counted_and_those_that_wait_for_a_task_are_not(
    store: Store, rows: Rows
) -> None:
    put(rows, ("a", 3, 0), *[("wait", 3, 5)] * 3, ("odd", 3, 77))
    put(rows, ("later", 3, 5), due=rows.after(3600))
    put(rows, ("failed", 3, 3), ("failed", 3, 3))
    assert Counts(store.database).undated() == 5
    rows.execute(
        "INSERT INTO jobs_queue_dependencies (parent_id, child_id) SELECT 1, MIN(id) FROM jobs_queue WHERE status = 5"
    )
    assert Counts(store.database).undated() == 4


def test_the_age_of_a_group_is_that_of_its_oldest_row_since_it_was_added_and_since_it_is_ready(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it starves behind many sooner ones."""
    monkeypatch.setattr(counts, "NAMES_SAMPLE", 4)
    put(rows, ("a", 3, 0), added=5000, ready=10)  # retried, or delayed
    put(rows, ("a", 3, 0), priority=-5, added=100, ready=100)
    put(rows, ("a", 4, 0), priority=50, added=172_800, ready=172_800)
    put(rows, *[("a", 4, 0)] * 6, added=5, ready=5)
    put(rows, ("a", 6, 4), added=9000, ready=9000)
    put(rows, ("a", 7, 0), due=rows.after(3600), added=9000, ready=9000)
    ages: dict[int, object] = {one.group_id: (one.oldest_seconds, one.ready_seconds) for one in row_counts(store)}
    assert ages[3] == (pytest.approx(5000, abs=30), pytest.approx(100, abs=30))
    assert ages[4] == (pytest.approx(172_800, abs=30), pytest.approx(172_800, abs=30))
    assert ages[6] == (None, None)
    assert ages[7] == (None, None), "its time is in the future, so it does not wait"


def test_counts_are_exact_up_to_one_share_for_each_group_and_status(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "MAX_COUNTED", 90)
    monkeypatch.setattr(counts, "MIN_SHARE", 10)
    put(rows, *[("a", 3, 0)] * 90, *[("a", 5, 0)] * 3, *[("a", 5, 4)] * 2, *[("a", 7, 0)] * 60)
    counted = {(one.group_id, one.status): (one.rows, one.is_more) for one in row_counts(store)}
    assert counted == {(3, 0): (22, True), (5, 0): (3, False), (5, 4): (2, False), (7, 0): (22, True)}


def test_recent_errors_are_those_of_the_last_failed_tasks(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "ERRORS_SAMPLE", 2)
    put(rows, ("a", 3, 4), error="E: old")
    put(rows, ("a", 3, 4), ("a", 5, 4), error="E: new")
    put(rows, ("a", 3, 3), error="F: again", due=rows.after(60))
    found = store.views.recent_errors(10)
    assert [(one.line, one.rows, one.fatal) for one in found] == [("E: new", 2, 2), ("F: again", 1, 0)]
    assert [(one.line, one.rows) for one in store.views.recent_errors(10, (5,))] == [("E: new", 1)]


def test_claims_whose_lease_ended_long_ago_are_counted(store: Store, rows: Rows) -> None:
    add_many(store, [PLAIN] * 3)
    tasks = claim(store, 2)
    rows.set(f"due_at = {rows.after(-100)} WHERE id = {tasks[0].id}")
    assert Counts(store.database).expired(200).rows == 0
    found = Counts(store.database).expired(50)
    assert found.rows == 1
    assert found.oldest_seconds == pytest.approx(100, abs=30)


# ---- it costs little however many rows there are


def test_no_look_of_an_overview_or_a_page_sorts_many_rows(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MariaDB sorted all new rows of a group for `due_at IS NULL ORDER BY due_at, id`."""
    for _ in range(10):
        put(rows, *[("a", 0, 0)] * 1000)
    sent: list[tuple[str, Sequence[object]]] = []
    fetch = store.database.fetch

    def remember(sql: str, values: Sequence[object] = ()) -> Sequence[Any]:
        sent.append((sql, values))
        return fetch(sql, values)

    monkeypatch.setattr(counts, "LOOKS_PER_STATEMENT", 1)
    monkeypatch.setattr(store.database, "fetch", remember)
    for _ in range(2):  # as it is, and with fresh statistics
        look = Counts(store.database)
        look.by_group()
        for status in (None, *Status):
            for place in (Place(), Place(10_000), Place(1, "2026-01-01 00:00:00.000000")):
                Pages(store.database).page(Selection(groups=[0], status=status), place, 50)
        rows.execute(ANALYZE[rows.kind])
    monkeypatch.undo()
    looks = [(sql, values) for sql, values in sent if "{listed}" not in sql and "AS grouped" not in sql]
    assert len(looks) > 40
    for sql, values in looks:
        # What is read: its few groups may be sorted.
        inner = re.search(r"FROM \((\s*SELECT (?:(?!UNION).)*?)\)\s+AS \w+ GROUP BY", sql, re.DOTALL)
        read = inner[1] if inner else sql
        plan = str(store.database.fetch(f"{EXPLAIN[rows.kind]} {read}", values[: read.count("?")] if inner else values))
        assert not re.search("filesort|TEMP B-TREE FOR ORDER|Sort Key", plan), (read, plan)


def test_an_overview_leaves_no_transaction_and_no_lock_behind(
    queue_dsn: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(rows, *[("a", 3, 0)] * 5, ("b", 3, 1), error="E: x")
    with TaskServer(queue_dsn) as server:
        sent: list[str] = []
        compose = server.store.database.compose

        def remember(sql: str) -> str:
            sent.append(compose(sql))
            return sent[-1]

        monkeypatch.setattr(server.store.database, "compose", remember)
        read_status(server.store, server.settings)
        assert len(sent) > 10
        limits = [statement for statement in sent if statement.startswith("SET ")]
        assert len(limits) == (0 if rows.is_sqlite else 2)
        for statement in set(sent).difference(limits):
            assert statement.lstrip("( ").startswith(("SELECT", "WITH")), statement
            assert "FOR UPDATE" not in statement
            assert "LOCK IN" not in statement
        rows.set("priority = priority + 1")  # goes through while the overview's connection is still there
        if rows.is_mysql:
            number = server.store.database.fetch_value("SELECT CONNECTION_ID()")
            own = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = ?"
            assert rows.execute(own, [number]) == [(0,)]
        elif not rows.is_sqlite:
            number = server.store.database.fetch_value("SELECT pg_backend_pid()")
            assert rows.execute(f"SELECT state FROM pg_stat_activity WHERE pid = {number}") == [("idle",)]
