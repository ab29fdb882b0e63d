"""The bounded looks of the overview: counts, ages, names, errors and hours, and that none of them holds anybody up."""

from __future__ import annotations

import time

import pytest

from taskserver import TaskServer
from taskserver.model.task import Status
from taskserver.monitoring.overview import read_overview
from taskserver.stores import Store
from taskserver.stores.queue import counts, failures
from taskserver.stores.queue.counts import Counts, NameCount
from taskserver.stores.queue.failures import Failures
from taskserver.stores.queue.stats import Stats
from tests.support.locks import holding
from tests.support.rows import Rows

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


def counted(store: Store) -> dict[tuple[int, int], tuple[int, bool]]:
    return {(one.group_id, one.status): (one.rows, one.is_more) for one in store.views.counts()}


def test_counts_are_exact_up_to_a_bound_that_large_groups_share(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "MAX_COUNTED", 100)
    put(rows, *[("a", 3, 0)] * 30, *[("a", 5, 0)] * 3, *[("a", 5, 4)] * 2, ("a", 6, 77))
    # Each of the four counts 6 at first; what is left of 100 is for the large one.
    assert counted(store) == {(3, 0): (30, False), (5, 0): (3, False), (5, 4): (2, False), (6, 77): (1, False)}
    put(rows, *[("a", 3, 0)] * 60, *[("a", 7, 0)] * 60)
    found = counted(store)
    assert found[5, 4] == (2, False)
    assert {key: value[1] for key, value in found.items() if value[1]} == {(3, 0): True, (7, 0): True}
    assert sum(number for number, _ in found.values()) <= 100


def test_tasks_that_wait_for_nothing_are_counted_and_those_that_wait_for_a_task_are_not(
    store: Store, rows: Rows
) -> None:
    put(rows, ("a", 3, 0), *[("wait", 3, 5)] * 3, ("odd", 3, 77))
    put(rows, ("later", 3, 5), due=rows.after(3600))
    assert store.diagnosis.undated() == 3
    put(rows, ("failed", 3, 3), ("failed", 3, 3))
    put(rows, ("failed", 3, 3), due=rows.after(3600))
    assert store.diagnosis.undated() == 5
    rows.execute(
        "INSERT INTO jobs_queue_dependencies (parent_id, child_id) SELECT 1, MIN(id) FROM jobs_queue WHERE status = 5"
    )
    assert store.diagnosis.undated() == 4


def test_a_count_up_to_a_number_says_whether_there_are_more(store: Store, rows: Rows) -> None:
    put(rows, *[("a", 3, 0)] * 5, *[("a", 5, 0)] * 2, ("a", 5, 4))
    count = Counts(store.database).up_to
    assert [count(most, Status.NEW) for most in (3, 7, 8)] == [3, 7, 7]
    assert count(10, Status.NEW, [5]) == 2
    assert count(10, Status.FATAL, [3]) == 0


def test_the_age_of_a_group_is_that_of_its_oldest_row_since_it_was_added_and_since_it_is_ready(
    store: Store, rows: Rows
) -> None:
    put(rows, ("a", 3, 0), added=5000, ready=10)  # retried, or delayed
    put(rows, ("a", 3, 0), priority=-5, added=100, ready=100)
    put(rows, ("a", 5, 0), added=1, ready=1)
    put(rows, ("a", 6, 4), added=9000, ready=9000)
    ages: dict[int, object] = {one.group_id: (one.oldest_seconds, one.ready_seconds) for one in store.views.counts()}
    assert ages[3] == (pytest.approx(5000, abs=30), pytest.approx(100, abs=30))
    assert ages[5] == (pytest.approx(1, abs=30), pytest.approx(1, abs=30))
    assert ages[6] == (None, None)


def test_a_task_that_starves_behind_sooner_ones_and_behind_another_group_is_seen(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "SAMPLE", 4)
    monkeypatch.setattr(counts, "HEADS", 3)
    put(rows, *[("a", 0, 0)] * 6, added=9, ready=9)
    put(rows, ("a", 1, 0), priority=50, added=172_800, ready=172_800)
    put(rows, *[("a", 1, 0)] * 6, added=5, ready=5)
    ages = {one.group_id: one.ready_seconds for one in store.views.counts()}
    assert ages == {0: pytest.approx(9, abs=30), 1: pytest.approx(172_800, abs=30)}


def test_old_tasks_behind_others_that_were_just_retried_are_seen(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "SAMPLE", 4)
    monkeypatch.setattr(counts, "HEADS", 3)
    put(rows, *[("a", 0, 0)] * 30, added=9000, ready=5)
    put(rows, *[("a", 0, 0)] * 10, added=8000, ready=8000)
    put(rows, *[("a", 0, 0)] * 60, added=7, ready=7)
    assert Counts(store.database).by_group().oldest.since_ready == pytest.approx(8000, abs=30)


def test_a_row_whose_time_lies_ahead_does_not_wait(store: Store, rows: Rows) -> None:
    put(rows, ("a", 3, 0), due=rows.after(3600), added=86_400, ready=86_400)
    (count,) = store.views.counts()
    assert (count.rows, count.ready_seconds) == (1, None)


def test_many_groups_of_one_status_hide_no_other_status(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "MAX_GROUPS", 10)
    put(rows, *[("a", group, 0) for group in range(30)], ("a", 77, 4), ("a", 77, 77))
    found = Counts(store.database).by_group()
    assert found.cut == {0}
    assert {(one.group_id, one.status) for one in found.counts if one.status} == {(77, 4), (77, 77)}
    assert sum(one.rows for one in found.counts if not one.status) == 10
    (exact,) = Counts(store.database).by_group([29]).counts
    assert (exact.group_id, exact.rows) == (29, 1)


def test_a_group_behind_the_sample_has_the_age_of_its_head(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "SAMPLE", 4)
    monkeypatch.setattr(counts, "PLACES", 1)
    put(rows, *[("a", 3, 0)] * 10, added=50, ready=50)
    put(rows, ("a", 5, 0), ("a", 6, 0), added=40, ready=20)
    ages = {one.group_id: one.ready_seconds for one in store.views.counts()}
    assert ages == {3: pytest.approx(50, abs=30), 5: pytest.approx(20, abs=30), 6: pytest.approx(20, abs=30)}


def test_names_are_counted_in_a_sample_of_each_status(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "SAMPLE", 3)
    put(rows, ("a", 3, 0), ("b", 3, 0), ("a", 3, 0), ("c", 3, 0))
    put(rows, ("old", 3, 4), ("a", 5, 4), ("a", 5, 4), ("b", 5, 4))
    assert sorted(Counts(store.database).by_name()) == [
        NameCount("a", 3, 0, 2),
        NameCount("a", 5, 4, 2),
        NameCount("b", 3, 0, 1),
        NameCount("b", 5, 4, 1),
    ]


def test_recent_errors_are_those_of_the_last_failed_tasks(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "SAMPLE", 2)
    put(rows, ("a", 3, 4), error="E: old")
    put(rows, ("a", 3, 4), ("a", 3, 4), error="E: new")
    put(rows, ("a", 3, 3), error="F: again", due=rows.after(60))
    found = Failures(store.database).recent(10)
    assert [(one.line, one.rows, one.fatal) for one in found] == [("E: new", 2, 2), ("F: again", 1, 0)]
    assert [one.line for one in Failures(store.database).recent(1)] == ["E: new"]


def test_stats_are_summed_in_the_database(store: Store, rows: Rows) -> None:
    hour = store.views.now()[:13] + ":00:00"
    for group, task, done, slowest in ((3, "a", 1, 5.0), (3, "b", 2, 7.0), (5, "a", 4, 1.0)):
        rows.execute(
            "INSERT INTO jobs_queue_stats (hour, group_id, task, done, attempts, slowest_seconds, ran_seconds) "
            f"VALUES ('{hour}', {group}, '{task}', {done}, {done}, {slowest}, 1.5)"
        )
    stats = Stats(store)
    (whole,) = stats.sums(0, "hour")
    assert (whole.hour, whole.done, whole.slowest_seconds, whole.ran_seconds) == (hour, 7, 7.0, 4.5)
    assert [(one.group_id, one.done) for one in stats.sums(0, "group_id")] == [(3, 3), (5, 4)]
    assert [(one.task, one.done) for one in stats.sums(0, "task")] == [("a", 5), ("b", 2)]


def test_many_groups_are_counted_in_few_statements(store: Store, rows: Rows) -> None:
    put(rows, *[("a", group, 0) for group in range(300)], ("a", 4_294_967_295, 5))
    found = counted(store)
    assert len(found) == 301
    assert found[4_294_967_295, 5] == (1, False)


# ---- nobody waits for it, and it waits for nobody


@pytest.fixture
def busy(queue_dsn: str, rows: Rows) -> str:
    put(rows, *[("a", 3, 0)] * 5, ("b", 3, 1), error="E: x")
    return queue_dsn


def test_an_overview_waits_for_no_row_that_another_transaction_holds(busy: str) -> None:
    with holding(busy), TaskServer(busy) as server:
        began = time.monotonic()
        overview = read_overview(server)
        assert overview.total.by_status[Status.NEW] == 5
        assert time.monotonic() - began < 2


def test_an_overview_leaves_no_transaction_and_no_lock_behind(
    busy: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TaskServer(busy) as server:
        sent: list[str] = []
        compose = server.store.database.compose

        def remember(sql: str) -> str:
            sent.append(compose(sql))
            return sent[-1]

        monkeypatch.setattr(server.store.database, "compose", remember)
        read_overview(server)
        assert len(sent) > 10
        for statement in sent:
            assert statement.lstrip("( ").startswith(("SELECT", "WITH")), statement
            assert "FOR UPDATE" not in statement
            assert "LOCK IN" not in statement
        # A write of everything goes through while the overview's connection is still there.
        rows.set("priority = priority + 1")
        if rows.is_mysql:
            number = server.store.database.fetch_value("SELECT CONNECTION_ID()")
            own = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = ?"
            assert rows.execute(own, [number]) == [(0,)]
