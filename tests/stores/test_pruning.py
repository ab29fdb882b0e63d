"""Old rows are deleted: those that are named, and no others, a portion a transaction."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskserver import InvalidTask
from taskserver.stores.free_rows import Freed, work_free
from taskserver.stores.queue import many_rows
from taskserver.stores.queue.pruning import Pruning
from tests.support.kinds_of_rows import FAR, KINDS, put
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
    (["--fatal"], {"old fatal", "fatal by hand", "old cancelled"}, "3 fatal or cancelled tasks"),
    (["--archived"], set(), "2 archived tasks"),
    (["--stats"], set(), "3 rows of figures"),
    ([], {"old done"}, "1 done task, 2 archived tasks"),
    (
        ["--done", "--fatal", "--keys"],
        {"old done", "old fatal", "fatal by hand", "old cancelled", "old done with key", "old fatal with key"},
        "2 done tasks, 4 fatal or cancelled tasks",
    ),
]
PRUNED = {"done": "jobs_queue", "fatal": "jobs_queue", "archived": "jobs_queue_done", "figures": "jobs_queue_stats"}
"""The table of each kind of row that is pruned."""
SPACE = {"sqlite": "VACUUM", "mysql": "OPTIMIZE TABLE {} copies", "postgresql": "VACUUM FULL {} copies"}
"""What is printed of the space on the disk, of these tables."""


def archive(queue: Queue, finished_at: str, unique_key: str | None = None) -> None:
    queue.sql(
        "INSERT INTO jobs_queue_done (id, task, finished_at, unique_key) VALUES (7, 'tasks.note', ?, ?)",
        finished_at,
        unique_key,
    )


def contents(queue: Queue) -> dict[str, list[Any]]:
    return {table: queue.sql(f"SELECT * FROM {table}") for table in PRUNED.values()}


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
    assert printed.splitlines()[0] == f"{words}, older than 30 d: would be deleted"
    assert "disk" not in printed
    assert contents(queue) == before
    printed = client("prune", "--older-than", "30d", *options).stdout
    assert printed.splitlines()[0] == f"{words}, older than 30 d: deleted"
    assert {kind for kind, one in ids.items() if (one,) not in queue.rows("id")} == gone
    left = {table: len(rows) for table, rows in contents(queue).items() if table != "jobs_queue"}
    assert left == {
        "jobs_queue_done": 1 if "archived" in words else 3,
        "jobs_queue_stats": 1 if "figures" in words else 4,
    }
    named = dict.fromkeys(table for kind, table in PRUNED.items() if kind in words)
    assert SPACE[queue.kind].format(", ".join(named)) in printed.splitlines()[-1]


def test_a_prune_must_say_how_old(queue: Queue, client: Run) -> None:
    assert_one_line(client("prune", "--done"), 2, "--older-than")
    for wrong in ("30", "d", "1.5d", "1y", ""):
        assert_one_line(client("prune", "--done", "--older-than", wrong), 2, "is not a span of time")
    assert_one_line(client("prune", "--done", "--older-than", "36501d"), 2, "'36501d' is not", "at most 36500d")
    assert client("prune", "--done", "--older-than", "1s").stdout == "0 done tasks, older than 1 s: deleted\n"
    for key in (None, "a"):
        put(queue, 2, finished_at=LONG_AGO, unique_key=key)
    assert queue.server.prune(3600.0, done=True) == (1, 0, 0, 0, 0)
    assert queue.server.prune(timedelta(days=30), done=True, keys=True) == (1, 0, 0, 0, 0)
    for older_than in (-1, True, float("nan"), "30 d", timedelta(days=-1)):
        with pytest.raises(InvalidTask, match="older_than is"):
            queue.server.prune(older_than, done=True)


def test_a_prune_that_was_broken_off_goes_on_the_next_time(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_rows, "MAX_IDS_PER_STATEMENT", 4)
    for _ in range(10):
        put(queue, 2, finished_at=LONG_AGO)
        archive(queue, LONG_AGO)
    pruning = Pruning(queue.server.store, 60, ["done", "archived"], keys=False)
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
            pruning.run()
    assert portions == [4, 4, 2, 4]
    assert len(queue.rows("id")) == 0
    assert pruning.count().archived == 6
    assert pruning.run() == (0, 0, 6, 0, 0)
