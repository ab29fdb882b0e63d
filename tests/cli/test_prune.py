"""client.py prune, and the same in Python. tests/contract/test_prune.py has which rows go."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskserver import InvalidTask
from tests.support.kinds_of_rows import put
from tests.support.processes import Run, assert_one_line
from tests.support.queues import LONG_AGO, Queue


def test_a_prune_says_what_would_go_and_what_went(queue: Queue, client: Run) -> None:
    for status, key in ((2, None), (2, "a"), (4, None), (4, None), (7, None)):
        put(queue, status, finished_at=LONG_AGO, unique_key=key)
    queue.sql("INSERT INTO jobs_queue_done (id, task, finished_at) VALUES (7, 'tasks.note', ?)", LONG_AGO)
    queue.sql("INSERT INTO jobs_queue_stats (hour, group_id, task) VALUES (?, 0, 'tasks.note')", LONG_AGO)
    for options, words in (
        ([], "1 done task, 1 archived task"),
        (["--stats"], "1 stats row"),
        (["--fatal"], "2 fatal tasks"),
        (["--done", "--cancelled", "--keys"], "1 done task, 1 cancelled task"),
    ):
        for more, end in ((["--dry-run"], "would be deleted"), ([], "deleted")):
            printed = client("prune", "--older-than", "30d", *options, *more).stdout
            assert printed == f"{words}, older than 30 d: {end}\n"
    assert queue.rows("id") == queue.rows("id", "jobs_queue_done") == []


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
