"""TASKSERVER_KEEP: each run deletes a portion of old done rows. tests/contract/test_prune.py has which rows go."""

from __future__ import annotations

import pytest

from taskserver import DatabaseError
from taskserver.stores.queue import pruning
from tests.support.kinds_of_rows import FAR, put
from tests.support.queues import LONG_AGO, Queue


@pytest.mark.parametrize(
    ("mode", "keep", "left"),
    [("mark", "30d", (1, 2)), ("move", "30d", (2, 1)), ("delete", "30d", (2, 2)), ("mark", "", (2, 2))],
)
def test_a_run_deletes_old_done_rows_of_its_mode_and_no_others(
    queue: Queue, mode: str, keep: str, left: tuple[int, int]
) -> None:
    for finished_at in (LONG_AGO, FAR):
        put(queue, 2, finished_at=finished_at)
        queue.sql("INSERT INTO jobs_queue_done (id, task, finished_at) VALUES (7, 'tasks.note', ?)", finished_at)
    queue.run_here(mode=mode, keep=keep)
    assert (len(queue.rows("id")), len(queue.rows("id", "jobs_queue_done"))) == left


def test_a_run_deletes_a_portion_after_its_tasks(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "PORTION", 3)
    for _ in range(5):
        put(queue, 2, finished_at=LONG_AGO)
    queue.add("tasks.note", '{"text": "x"}')
    assert queue.run_here(mode="mark", keep="30d").done == 1
    assert len(queue.rows("id")) == 3
    queue.run_here(mode="mark", keep="30d")
    assert queue.rows("status") == [(2,)], "the task of just now stays"


def test_a_run_whose_account_may_not_delete_logs_that_and_continues(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*given: object) -> int:
        raise DatabaseError("DELETE command denied")

    monkeypatch.setattr(pruning, "prune_portion", refuse)
    queue.add("tasks.note", '{"text": "x"}')
    with caplog.at_level("WARNING", "taskserver"):
        assert queue.run_here(mode="mark", keep="30d").done == 1
    assert "rows older than TASKSERVER_KEEP are not deleted: DELETE command denied" in caplog.text
