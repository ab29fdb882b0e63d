"""Tasks of one key, however many producers add them at once.

tests/contract/test_add.py shows what keys, instants and delays do to rows in any state.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from taskserver import TaskServer
from tests.support.databases import EACH_DATABASE
from tests.support.processes import WAIT_SECONDS, wait_until
from tests.support.queues import Queue
from tests.support.rows import Rows
from tests.support.sites import Site

CODE = """
calls = []

def work(text):
    calls.append(text)
"""
PRODUCERS = 16


@EACH_DATABASE
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_sixteen_producers_at_once_of_one_key_make_one_row_and_all_get_its_id(
    queue: Queue, end: str, request: pytest.FixtureRequest
) -> None:
    begun = threading.Barrier(PRODUCERS + 1, timeout=WAIT_SECONDS)

    def produce(number: int) -> int:
        with TaskServer(queue.dsn) as server:
            server.store.tables.check()
            begun.wait()
            return server.add_task("tasks.note", [number], unique_key="held")

    with closing(Rows(queue.dsn)) as other, ThreadPoolExecutor(PRODUCERS) as pool:
        other.execute(other.begin)
        other.execute("INSERT INTO jobs_queue (task, unique_key) VALUES ('tasks.note', 'held')")
        waiting = [pool.submit(produce, number) for number in range(PRODUCERS)]
        begun.wait()
        if not queue.is_sqlite:  # which does not show who waits: there all have the file open, and some come later
            server = request.getfixturevalue(f"{queue.kind}_server")
            wait_until(lambda: server.count_lock_waits() >= PRODUCERS)
        # None can have come through while the key is held: they race from here.
        assert not any(one.done() for one in waiting)
        other.execute(end)
        ids = {one.result() for one in waiting}
    ((task_id, args),) = queue.rows("id, args")
    assert ids == {task_id}
    assert (args is None) == (end == "COMMIT")


def test_a_key_is_free_after_its_task_in_delete_and_move_and_held_in_mark(any_site: Site) -> None:
    site, name = any_site, f"{any_site.name}.work"
    first = site.server.add_task(name, ["1"], unique_key="k")
    assert site.server.add_task(name, ["too soon"], unique_key="k") == first
    site.run()
    assert (site.server.add_task(name, ["2"], unique_key="k") == first) == (site.mode == "mark")
    site.run()
    assert site.module.calls == (["1"] if site.mode == "mark" else ["1", "2"])
