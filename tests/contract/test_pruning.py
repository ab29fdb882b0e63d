"""Old rows are deleted: those that are named, and no others, a portion a transaction."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from typing import Any

import pytest

from taskserver import DatabaseError, InvalidTask, Reason, Stop, TaskServer
from taskserver.errors import Unavailable
from taskserver.stores import Store
from taskserver.stores.database import Database
from taskserver.stores.free_rows import Freed, work_free
from taskserver.stores.queue import many_rows, pruning
from taskserver.stores.queue.pruning import OLDEST, Pruning
from taskserver.worker import run
from tests.support.databases import EACH_SERVER
from tests.support.kinds_of_rows import FAR, KINDS, put
from tests.support.locks import holding
from tests.support.processes import Run, assert_one_line
from tests.support.queues import LONG_AGO, Queue

OLD_AND_YOUNG: dict[str, dict[str, object]] = {
    "old done": {"status": 2, "finished_at": LONG_AGO},
    "young done": {"status": 2, "finished_at": FAR},
    "old fatal": {"status": 4, "finished_at": LONG_AGO},
    "young fatal": {"status": 4, "finished_at": FAR},
    "fatal by hand": {"status": 4, "updated_at": LONG_AGO},
    "old done with key": {"status": 2, "finished_at": LONG_AGO, "unique_key": "a"},
    "old fatal with key": {"status": 4, "finished_at": LONG_AGO, "unique_key": "b"},
    "old cancelled": {"status": 7, "finished_at": LONG_AGO},
    "young cancelled": {"status": 7, "finished_at": FAR},
    "old new": {"status": 0, "finished_at": LONG_AGO, "updated_at": LONG_AGO, "created_at": LONG_AGO},
    "old error": {"status": 3, "finished_at": LONG_AGO, "updated_at": LONG_AGO, "due_at": FAR},
    "running": KINDS["running"] | {"updated_at": LONG_AGO},
}
PRUNES: list[tuple[list[str], set[str], str]] = [
    (["--done"], {"old done"}, "1 done task"),
    (["--fatal"], {"old fatal", "fatal by hand"}, "2 fatal tasks"),
    (["--cancelled"], {"old cancelled"}, "1 cancelled task"),
    (["--archived"], set(), "2 archived tasks"),
    (["--stats"], set(), "3 stats rows"),
    ([], {"old done"}, "1 done task, 2 archived tasks"),
    (
        ["--done", "--fatal", "--cancelled", "--keys"],
        {"old done", "old fatal", "fatal by hand", "old cancelled", "old done with key", "old fatal with key"},
        "2 done tasks, 3 fatal tasks, 1 cancelled task",
    ),
]
PRUNED = ("jobs_queue", "jobs_queue_done", "jobs_queue_stats")


def archive(queue: Queue, finished_at: str, unique_key: str | None = None) -> None:
    queue.sql(
        "INSERT INTO jobs_queue_done (id, task, finished_at, unique_key) VALUES (7, 'tasks.note', ?, ?)",
        finished_at,
        unique_key,
    )


def contents(queue: Queue) -> dict[str, list[Any]]:
    return {table: queue.sql(f"SELECT * FROM {table}") for table in PRUNED}


@pytest.mark.parametrize(("options", "gone", "words"), PRUNES)
def test_a_prune_deletes_what_is_named_and_old(
    queue: Queue, client: Run, options: list[str], gone: set[str], words: str
) -> None:
    ids = {kind: put(queue, **row) for kind, row in OLD_AND_YOUNG.items()}  # type: ignore[arg-type]
    for finished_at, key in ((LONG_AGO, "a"), (LONG_AGO, None), (FAR, None)):
        archive(queue, finished_at, key)
    for hour, group in ((LONG_AGO, 0), (LONG_AGO, 3), ("2021-01-01 01:00:00", 0), (FAR, 0)):
        queue.sql("INSERT INTO jobs_queue_stats (hour, group_id, task) VALUES (?, ?, 'tasks.note')", hour, group)
    before = contents(queue)
    printed = client("prune", "--older-than", "30d", *options, "--dry-run").stdout
    assert printed == f"{words}, older than 30 d: would be deleted\n"
    assert contents(queue) == before
    printed = client("prune", "--older-than", "30d", *options).stdout
    assert printed == f"{words}, older than 30 d: deleted\n"
    assert {kind for kind, one in ids.items() if (one,) not in queue.rows("id")} == gone
    left = {table: len(rows) for table, rows in contents(queue).items() if table != "jobs_queue"}
    assert left == {
        "jobs_queue_done": 1 if "archived" in words else 3,
        "jobs_queue_stats": 1 if "stats" in words else 4,
    }


def test_a_prune_must_say_how_old(queue: Queue, client: Run) -> None:
    assert_one_line(client("prune", "--done"), 2, "--older-than")
    for wrong in ("30", "d", "1.5d", "1y", ""):
        assert_one_line(client("prune", "--done", "--older-than", wrong), 2, "is not a span of time")
    assert_one_line(client("prune", "--done", "--older-than", "36501d"), 2, "'36501d' is not", "at most 36500d")
    assert client("prune", "--done", "--older-than", "1s").stdout == "0 done tasks, older than 1 s: deleted\n"
    for key in (None, "a"):
        put(queue, 2, finished_at=LONG_AGO, unique_key=key)
    assert queue.server.prune(3600.0, done=True) == (1, 0, 0, 0, 0, 0)
    assert queue.server.prune(timedelta(days=30), done=True, keys=True) == (1, 0, 0, 0, 0, 0)
    for older_than in (-1, True, float("nan"), "30 d", timedelta(days=-1)):
        with pytest.raises(InvalidTask, match="older_than is"):
            queue.server.prune(older_than, done=True)


def test_a_prune_that_was_broken_off_goes_on_the_next_time(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_rows, "MAX_IDS_PER_STATEMENT", 4)
    for _ in range(10):
        put(queue, 2, finished_at=LONG_AGO)
        archive(queue, LONG_AGO)
    old = Pruning(queue.server.store, 60, ["done", "archived"], keys=False)
    portions: list[int] = []

    def break_off(*values: Any) -> Freed:
        freed = work_free(*values)
        portions.append(len(freed.ids))
        if len(portions) == 4:
            raise KeyboardInterrupt
        return freed

    with monkeypatch.context() as patch:
        patch.setattr(many_rows, "work_free", break_off)
        with pytest.raises(KeyboardInterrupt):
            old.run()
    assert portions == [4, 4, 2, 4]
    assert len(queue.rows("id")) == 0
    assert old.count().archived == 6
    assert old.run() == (0, 0, 0, 6, 0, 0)


# ---- in each run, by TASKSERVER_KEEP

YOUNG = {"status": 2}
"""A row that a run would mark now."""
RUN_BY_A_RUN = ("old new", "old error", "running")


def archived(queue: Queue) -> int:
    return len(queue.sql("SELECT done_id FROM jobs_queue_done"))


@pytest.mark.parametrize(
    ("mode", "keep", "gone", "left"),
    [
        ("mark", "30d", {"old done"}, 2),
        ("move", "30d", set(), 1),
        ("delete", "30d", set(), 2),
        ("mark", "", set(), 2),
        ("move", "", set(), 2),
    ],
)
def test_a_run_deletes_old_done_rows_of_its_mode_and_no_others(
    queue: Queue, mode: str, keep: str, gone: set[str], left: int
) -> None:
    ids = {kind: put(queue, **row) for kind, row in OLD_AND_YOUNG.items() if kind not in RUN_BY_A_RUN}  # type: ignore[arg-type]
    for finished_at in (LONG_AGO, FAR):
        archive(queue, finished_at)
    queue.run_here(mode=mode, keep=keep)
    assert {kind for kind, one in ids.items() if (one,) not in queue.rows("id")} == gone
    assert archived(queue) == left


def test_a_run_deletes_a_portion_after_its_tasks(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "PORTION", 3)
    for _ in range(5):
        put(queue, 2, finished_at=LONG_AGO)
    queue.add("tasks.note", '{"text": "x"}')
    assert queue.run_here(mode="mark", keep="30d").done == 1
    assert len(queue.rows("id")) == 3
    queue.run_here(mode="mark", keep="30d")
    assert queue.rows("status") == [(2,)], "the task of just now stays"


@pytest.mark.parametrize("ends", [[LONG_AGO] * 6, [FAR] * 6, [LONG_AGO, FAR] * 3, [LONG_AGO, None, LONG_AGO] * 3])
def test_rows_that_hold_a_key_stay_whatever_their_age_and_hide_no_others(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, ends: list[str | None]
) -> None:
    """None stands for a young row without a key."""
    monkeypatch.setattr(pruning, "PORTION", 3)
    kept = [put(queue, 2, finished_at=end or FAR, unique_key=end and str(number)) for number, end in enumerate(ends)]
    put(queue, 2, finished_at=LONG_AGO)
    for _ in range(200):
        queue.run_here(mode="mark", keep="30d")
        if [row_id for (row_id,) in queue.rows("id")] == kept:
            return
    pytest.fail("the row behind them was never found")


def test_a_portion_whose_rows_another_run_deletes_meanwhile_is_no_error(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "PORTION", 2)
    for number in range(3):
        put(queue, 2, finished_at=LONG_AGO, unique_key=str(number))
    for gone in ("SELECT MIN(id) - 1 FROM {table}", "SELECT MAX(id) FROM {table} WHERE 1 = 0"):
        monkeypatch.setattr(pruning, "NEWEST", gone)
        assert pruning.prune_portion(queue.server.store, 60) == 0


@EACH_SERVER
def test_a_portion_waits_for_no_row_that_others_hold(queue: Queue) -> None:
    first, _ = (put(queue, 2, finished_at=LONG_AGO) for _ in range(2))
    with holding(queue.dsn, f"id = {first}"):
        began = time.monotonic()
        assert Pruning(queue.server.store, "30d", ["done"], keys=False).run_portion("done") == 1
        assert time.monotonic() - began < 3
    assert queue.rows("id") == [(first,)]


def test_a_run_that_is_told_to_stop_deletes_nothing(queue: Queue) -> None:
    put(queue, 2, finished_at=LONG_AGO)
    stop = Stop()
    stop.ask()
    with TaskServer(queue.dsn, mode="mark", keep="30d", folder=queue.folder) as server:
        assert server.run(stop=stop).reason is Reason.STOPPED
    assert len(queue.rows("id")) == 1


def test_an_empty_run_asks_one_question_more(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    fetch = Database.fetch

    def note(database: Database, sql: str, *values: Any) -> Any:
        asked.append(sql)
        return fetch(database, sql, *values)

    monkeypatch.setattr(Database, "fetch", note)
    put(queue, **YOUNG)
    counts = []
    for keep in ("", "30d"):
        asked.clear()
        queue.run_here(mode="mark", keep=keep)
        counts.append(len(asked))
    assert counts[1] == counts[0] + 1


@pytest.mark.parametrize("kind", OLDEST)
def test_a_run_finds_old_rows_by_an_index_in_its_order(queue: Queue, kind: str) -> None:
    for _ in range(20):
        put(queue, **YOUNG)
        archive(queue, FAR)
    explain = {"sqlite": "EXPLAIN QUERY PLAN", "mysql": "EXPLAIN FORMAT = TRADITIONAL", "postgresql": "EXPLAIN"}
    if queue.is_postgresql:
        queue.sql("SET enable_seqscan = off")
    plan = str(queue.server.store.database.fetch(f"{explain[queue.kind]} {OLDEST[kind]}", (-60, 0, 1000)))
    assert not re.search("filesort|TEMP B-TREE|Sort Key", plan), plan
    assert re.search("wake_due" if kind == "done" else "PRIMARY|_pkey", plan), plan


def test_a_run_whose_account_may_delete_nothing_says_so_and_goes_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    error = DatabaseError("DELETE command denied")

    def refuse(*given: object) -> int:
        raise error

    monkeypatch.setattr(pruning, "prune_portion", refuse)
    queue.add("tasks.note", '{"text": "x"}')
    with caplog.at_level("WARNING", "taskserver"):
        assert queue.run_here(mode="mark", keep="30d").done == 1
    assert "rows older than TASKSERVER_KEEP are not deleted: DELETE command denied" in caplog.text
    error = Unavailable("it went away")
    with pytest.raises(Unavailable):
        queue.run_here(mode="mark", keep="30d")


def test_a_run_that_lingers_deletes_while_it_waits(sqlite_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []

    def note(store: Store, seconds: int) -> int:
        called.append(seconds)
        return 0

    monkeypatch.setattr(run, "PRUNE_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(pruning, "prune_portion", note)
    with TaskServer(sqlite_queue.dsn, mode="mark", keep=60, folder=sqlite_queue.folder) as server:
        server.run(linger=0.3)
    assert called == [60, 60], "as it begins to wait, and at its end"
