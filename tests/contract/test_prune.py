"""Prune: done, fatal, cancelled → gone, archived rows and stats too, a portion a transaction.

tests/cli/test_operate.py has the command, tests/worker/test_keep.py what a run deletes.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from taskserver.errors import HostLimit, SettingError
from taskserver.host.files import JsonLines
from taskserver.stores.free_rows import Freed, work_free
from taskserver.stores.queue import many_rows, pruning
from taskserver.stores.queue.pruning import OLDEST, Pruning
from tests.support.kinds_of_rows import FAR, KINDS, put
from tests.support.processes import assert_one_line
from tests.support.queues import LONG_AGO, Queue
from tests.support.rows import ANALYZE, EXPLAIN

OLD_AND_YOUNG: dict[str, dict[str, object]] = {
    "old done": {"status": 2, "finished_at": LONG_AGO},
    "young done": {"status": 2, "finished_at": FAR},
    "old fatal": {"status": 4, "finished_at": LONG_AGO},
    "young fatal": {"status": 4, "finished_at": FAR},
    "old done with key": {"status": 2, "finished_at": LONG_AGO, "unique_key": "a"},
    "old fatal with key": {"status": 4, "finished_at": LONG_AGO, "unique_key": "b"},
    "old cancelled": {"status": 7, "finished_at": LONG_AGO},
    "old new": {"status": 0, "finished_at": LONG_AGO, "updated_at": LONG_AGO, "created_at": LONG_AGO},
    "old error": {"status": 3, "finished_at": LONG_AGO, "updated_at": LONG_AGO, "due_at": FAR},
    "running": KINDS["running"] | {"updated_at": LONG_AGO},
}
WITH_KEYS = {"old done", "old fatal", "old cancelled", "old done with key", "old fatal with key"}
PRUNES: list[tuple[list[str], bool, set[str], tuple[int, ...]]] = [
    (["done"], False, {"old done"}, (1, 0, 0, 0, 0)),
    (["archived"], False, set(), (0, 0, 0, 2, 0)),
    (["stats"], False, set(), (0, 0, 0, 0, 3)),
    (["done", "fatal", "cancelled"], False, {"old done", "old fatal", "old cancelled"}, (1, 1, 1, 0, 0)),
    (["done", "fatal", "cancelled"], True, WITH_KEYS, (2, 2, 1, 0, 0)),
]
"""The kinds that are named, whether rows with a key go, which rows go, and how many of each kind."""
PRUNED = ("jobs_queue", "jobs_queue_done", "jobs_queue_stats")


def archive(queue: Queue, finished_at: str, unique_key: str | None = None) -> None:
    queue.sql(
        "INSERT INTO jobs_queue_done (id, task, finished_at, unique_key) VALUES (7, 'tasks.note', ?, ?)",
        finished_at,
        unique_key,
    )


def contents(queue: Queue) -> dict[str, list[Any]]:
    return {table: queue.sql(f"SELECT * FROM {table}") for table in PRUNED}


@pytest.mark.parametrize(("kinds", "keys", "gone", "counts"), PRUNES)
def test_a_prune_deletes_what_is_named_and_old(
    queue: Queue, kinds: list[str], keys: bool, gone: set[str], counts: tuple[int, ...]
) -> None:
    ids = {kind: put(queue, **row) for kind, row in OLD_AND_YOUNG.items()}  # type: ignore[arg-type]
    for finished_at, key in ((LONG_AGO, "a"), (LONG_AGO, None), (FAR, None)):
        archive(queue, finished_at, key)
    for hour, group in ((LONG_AGO, 0), (LONG_AGO, 3), ("2021-01-01 01:00:00", 0), (FAR, 0)):
        queue.sql("INSERT INTO jobs_queue_stats (hour, group_id, task) VALUES (?, ?, 'tasks.note')", hour, group)
    before = contents(queue)
    prune = Pruning(queue.server.store, "30d", kinds, keys=keys)
    assert prune.count()[:5] == counts
    assert contents(queue) == before
    assert prune.run()[:5] == counts
    assert {kind for kind, one in ids.items() if (one,) not in queue.rows("id")} == gone
    left = [len(rows) for rows in contents(queue).values()]
    assert left == [len(ids) - len(gone), 3 - counts[3], 4 - counts[4]]


def test_a_prune_deletes_a_portion_a_transaction_and_goes_on_the_next_time(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_rows, "MAX_IDS_PER_STATEMENT", 4)
    for _ in range(10):
        put(queue, 2, finished_at=LONG_AGO)
    old = Pruning(queue.server.store, 60, ["done"], keys=False)
    portions = iter([True, True])

    def break_off(*values: Any) -> Freed:
        if not next(portions, False):
            raise KeyboardInterrupt
        return work_free(*values)

    with monkeypatch.context() as patch:
        patch.setattr(many_rows, "work_free", break_off)
        with pytest.raises(KeyboardInterrupt):
            old.run()
    assert old.count().done == 2
    assert old.run() == (2, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("ends", [[LONG_AGO] * 6, [LONG_AGO, None, LONG_AGO] * 3])
def test_rows_that_hold_a_key_stay_whatever_their_age_and_hide_no_others(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, ends: list[str | None]
) -> None:
    """None stands for a young row without a key."""
    monkeypatch.setattr(pruning, "PORTION", 3)
    kept = [put(queue, 2, finished_at=end or FAR, unique_key=end and str(number)) for number, end in enumerate(ends)]
    put(queue, 2, finished_at=LONG_AGO)
    prune = Pruning(queue.server.store, "30d", ["done"], keys=False)
    assert any(prune.run_portion("done") for _ in range(200))
    assert [row_id for (row_id,) in queue.rows("id")] == kept


def test_what_is_pruned_is_found_by_indexes(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    database = queue.server.store.database
    sent: list[tuple[str, Sequence[object]]] = []
    fetch = database.fetch

    def note(sql: str, values: Sequence[object] = ()) -> Any:
        sent.append((sql, values))
        return fetch(sql, values)

    queue.add_many([(0, 0)] * 1000)
    queue.sql(ANALYZE[queue.kind])  # the kept tables may have statistics of another test
    with monkeypatch.context() as patch:
        patch.setattr(database, "fetch", note)
        assert Pruning(queue.server.store, 0, ["fatal", "cancelled"], keys=True).count().deleted == 0
    assert len(sent) == 2
    for sql, values in [*sent, *((OLDEST[kind], (-60, 0, 1000)) for kind in OLDEST)]:
        plan = str(database.fetch(f"{EXPLAIN[queue.kind]} {sql}", values))
        assert not re.search("filesort|TEMP B-TREE|Sort Key", plan), plan
        assert re.search("by_status|claim_by_group|wake_due|PRIMARY|_pkey", plan), plan


# ---- written to a file before; tests/process/test_operators.py kills it, tests/unit/test_host.py has the file


def test_each_row_is_in_the_file_as_it_was_shown(queue: Queue, tmp_path: Path) -> None:
    put(queue, 2, finished_at=LONG_AGO, args='["é"]', result="1", unique_key="k")
    put(queue, 4, finished_at=LONG_AGO, error_text="E: e\nline", started_at=LONG_AGO)
    archive(queue, LONG_AGO, "k")
    queue.sql("INSERT INTO jobs_queue_stats (hour, group_id, task, done) VALUES (?, 3, 'tasks.note', 5)", LONG_AGO)
    shown = [json.loads(queue.here("show", row_id, "--json").stdout) for (row_id,) in (*queue.rows("id"), (7,))]
    (hour,) = json.loads(queue.here("stats", "--since", "2019-01-01", "--json").stdout)
    file = tmp_path / "old.jsonl.gz"
    arguments = ("prune", "--older-than", "1d", "--done", "--fatal", "--archived", "--stats", "--keys")
    assert queue.here(*arguments, "--archive-to", file, "--dry-run").returncode == 0
    assert not file.exists()
    assert queue.here(*arguments, "--archive-to", file).stdout.endswith("1 stats row, older than 24 h: deleted\n")
    assert contents(queue) == {table: [] for table in PRUNED}
    with gzip.open(file, "rt") as lines:
        *tasks, stats = map(json.loads, lines)
    links: dict[str, Any] = {"waits_for": [], "awaited_by": []}
    assert [task | links for task in tasks] == shown
    assert (stats["hour"], stats["group_id"], stats["done"]) == ("2020-01-01T00:00:00.000000Z", 3, hour["done"])


def test_a_row_that_cannot_be_written_to_the_file_stays(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        put(queue, 2, finished_at=LONG_AGO)
    arguments = ("prune", "--older-than", "1d", "--done", "--archive-to")
    assert_one_line(queue.here(*arguments, tmp_path / "none" / "file"), 2, "cannot be written: No such file")
    add = JsonLines.add

    def add_until_full(lines: JsonLines, records: Iterable[Any]) -> None:
        if os.path.getsize(tmp_path / "old") > len(JsonLines.END):
            raise HostLimit("old cannot be written: No space left on device")
        add(lines, records)

    monkeypatch.setattr(JsonLines, "add", add_until_full)
    monkeypatch.setattr(pruning, "WRITTEN_AT_ONCE", 1)
    assert_one_line(queue.here(*arguments, tmp_path / "old"), 1, "No space left on device")
    with gzip.open(tmp_path / "old", "rt") as lines:
        assert {json.loads(line)["id"] for line in lines}.isdisjoint(row_id for (row_id,) in queue.rows("id"))
    assert len(queue.rows()) == 2
    with pytest.raises(SettingError, match="archive_to is 7"):
        queue.server.prune("1d", archive_to=7)  # type: ignore[arg-type]
