"""The record of worker processes on every store, and the leases of those that vanished."""

from __future__ import annotations

import os

from taskserver.stores import Store
from taskserver.stores.queue.claims import number_of
from taskserver.stores.queue.runs import LeftTask
from tests.contract.verbs import PLAIN, add_many, claim, start
from tests.support.rows import Rows


def test_a_process_is_at_work_from_its_begin_to_its_end_and_vanishes_once(store: Store) -> None:
    processes, runs = store.processes, store.runs
    processes.begin(7, "host", "0", "identity")
    assert runs.at_work("host") == [(7, os.getpid(), "identity")]
    assert runs.at_work("another host") == []
    processes.show(7, (6, 5, 4, 3, 2, 1))
    (shown,) = processes.all()
    assert (shown.taken, shown.done, shown.failed, shown.fatal, shown.lost, shown.released) == (6, 5, 4, 3, 2, 1)
    assert [processes.mark_ended(7) for _ in range(2)] == [True, False]
    processes.end(7)
    assert (runs.at_work("host"), processes.mark_ended(7)) == ([], False)


def test_the_record_of_a_host_without_a_run_for_a_month_is_forgotten(store: Store, rows: Rows) -> None:
    for host, days in (("gone", 31), ("daily", 1), ("monthly", 29)):
        store.runs.begin(host, "all")
        began = rows.after(-days * 86_400)
        rows.execute(f"UPDATE jobs_queue_workers SET started_at = {began} WHERE host = '{host}'")
    store.runs.forget_old()
    assert [run.host for run in store.views.runs()] == ["daily", "monthly"]


def test_the_leases_of_a_process_that_vanished_are_ended_and_those_of_others_stand(store: Store, rows: Rows) -> None:
    """In progress stays, and is due at once. Another number, or another status: nothing matched."""
    add_many(store, [PLAIN] * 3)
    tasks = claim(store)
    assert start(store, tasks[1])
    number = number_of(tasks[0].claim)
    left = store.processes.claimed_by([number, number + 1])
    assert left[number] == [LeftTask(task.id, "tasks.send", task is tasks[1]) for task in tasks]
    assert left[number + 1] == []
    before = rows.all()
    store.processes.end_leases(number + 1, left[number])
    assert rows.all() == before
    rows.set(f"status = 5 WHERE id = {tasks[2].id}")
    store.processes.end_leases(number, left[number])
    due = store.due.look()
    assert (due.unstarted, [lost.id for lost in due.lost]) == ([tasks[0].id], [tasks[1].id])
