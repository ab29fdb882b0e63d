"""Whatever workers, producers and persons do in whatever order, every store does what the model of the contract does.

A failure prints the seed and the steps. The short form has the same seeds each time, the long form others.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import product

import pytest

from taskserver import TaskServer
from taskserver.model.attempt import Finish, Outcome, Start
from taskserver.model.new_task import NewTask
from taskserver.model.task import Status
from taskserver.worker.maintenance import LOST_TEXT
from tests.contract.machine.model import SETTINGS_LIMIT, When
from tests.contract.machine.queue_machine import Place, QueueMachine
from tests.contract.machine.steps import Ending, Held, Worker
from tests.support.rows import Rows

LEASE_SECONDS = 3600
"""Far longer than an example takes: a lease ends here when a step says so."""
LONG = [secrets.randbits(32) for _ in range(200)]
EACH_ITS_OWN = ("delete", "move", "mark")
"""The mode of each of three workers: crontab lines may differ."""


@pytest.fixture
def modes() -> tuple[str, ...]:
    return EACH_ITS_OWN


@pytest.fixture
def place(dsn: str, modes: tuple[str, ...]) -> Iterator[Place]:
    with ExitStack() as open_now:
        servers = [open_now.enter_context(TaskServer(dsn, mode=mode, lease=LEASE_SECONDS)) for mode in modes]
        servers[0].create_tables()
        for server in servers[1:]:
            # As in a run: on MySQL a worker's transactions begin and end otherwise than a producer's.
            open_now.enter_context(server.store.database.with_patience())
        rows = Rows(dsn)
        open_now.callback(rows.close)
        if rows.is_sqlite:
            for server in servers:
                # Nobody pulls the plug here, and waiting for the disk takes longer than all else.
                server.store.database.change("PRAGMA synchronous = OFF")
            rows.execute("PRAGMA synchronous = OFF")
        yield Place(rows, [(server.settings.mode, server.store) for server in servers])


OFTEN = {"claimed", "started", "finished", "woken", "taken back unstarted", "refused to start", "refused to finish"}
"""What surely happens in some examples, to show that they go deep enough."""
RARE = {
    *("rerun while it ran", "run again after it ended", "cancelled while it ran", "done though cancelled"),
    *("lost, and run again", "lost and cancelled", "lost, its token kept", "lost, to be retried", "finished late"),
    *("fatal as cancelled", "heard that it was cancelled"),
}
"""What happens if the machine is driven by hand, since chance seldom leads there."""


@pytest.mark.parametrize(
    ("modes", "seeds"),
    [
        pytest.param(EACH_ITS_OWN, range(10), id="each its own"),
        *(pytest.param((mode,) * 3, LONG, id=f"long-{mode}", marks=pytest.mark.long) for mode in EACH_ITS_OWN),
        pytest.param(EACH_ITS_OWN, LONG, id="long-each its own", marks=pytest.mark.long),
    ],
)
def test_whatever_workers_do_in_whatever_order_the_queue_is_as_the_contract_says(
    place: Place, modes: tuple[str, ...], seeds: Sequence[int]
) -> None:
    for seed in seeds:
        QueueMachine(place).run(seed, steps=50)
    assert set(place.happened) >= OFTEN


@pytest.mark.parametrize("deed", [None, "retry", "cancel", "delete"])
def test_a_late_completion_is_accepted_unless_a_person_decided_otherwise(place: Place, deed: str | None) -> None:
    machine, frozen, held = a_lost_task(place)
    if deed is not None:
        getattr(machine, deed)(machine.model.tasks[0])
    machine.finish(frozen, held, Ending.WELL)
    machine.all_is_as_the_model_says()
    assert place.happened["finished late"] == (deed is None)
    machine.drain()


DEEDS_AT_A_RUN = ("rerun", "cancel", "retry", "lose")
"""What may be done to a task while its worker runs it, or believes so."""


def test_whatever_is_done_to_a_task_while_it_runs_it_ends_as_the_contract_says(place: Place) -> None:
    """One or two of these, one after the other, and then each way in which its worker may end it."""
    single = [(), *((deed,) for deed in DEEDS_AT_A_RUN)]
    cases = [
        *product((1, 3), single, Ending),
        *product((3,), product(DEEDS_AT_A_RUN, repeat=2), (Ending.WELL, Ending.FAILED_AT_ONCE_AGAIN)),
    ]
    for number, (limit, done, ending) in enumerate(cases):
        machine = QueueMachine(place)
        worker = machine.workers[number % 3]
        machine.add(worker, [KEYED._replace(max_attempts=limit, args="[1]")])
        machine.claim(worker, 1, [])
        machine.start(worker, worker.held[0])
        for place_of_it, deed in enumerate(done):
            do_at_a_run(machine, worker, deed, f"[{place_of_it + 2}]")
            machine.all_is_as_the_model_says()
            machine.renew(worker, worker.held[0])
        machine.finish(worker, worker.held[0], ending)
        machine.all_is_as_the_model_says()
        do_at_a_run(machine, worker, "rerun", "[9]")
        machine.all_is_as_the_model_says()
    assert set(place.happened) >= RARE


KEYED = NewTask("tasks.plain", None, 3, 0, unique_key="a", rerun=True)


def do_at_a_run(machine: QueueMachine, worker: Worker, deed: str, args: str) -> None:
    if deed == "rerun":
        limit = next((task.max_attempts for task in machine.model.tasks), None)
        machine.add(worker, [KEYED._replace(max_attempts=limit, args=args)])
    elif deed == "lose":
        machine.time_comes(machine.tasks_ahead())
        machine.look_and_act(machine.workers[worker.number - 1], When.PAST)
    else:
        getattr(machine, deed)(machine.model.tasks[0])


def a_lost_task(place: Place) -> tuple[QueueMachine, Worker, Held]:
    """A task that may start once, and seems lost."""
    machine = QueueMachine(place)
    machine.add(machine.workers[0], [NewTask("tasks.once", None, 3, 0)])
    worker, held = lose(machine, machine.workers[2])
    assert place.happened["lost, its token kept"] == 1
    return machine, worker, held


def test_a_task_that_is_lost_at_each_of_its_attempts_is_fatal(place: Place) -> None:
    machine = QueueMachine(place)
    machine.add(machine.workers[0], [KEYED._replace(max_attempts=2)])
    for worker in machine.workers[1:]:
        machine.look_and_act(worker, When.PAST)
        lose(machine, worker)
    assert place.happened["lost for good"] == 1


def lose(machine: QueueMachine, worker: Worker) -> tuple[Worker, Held]:
    machine.claim(worker, 1, [])
    held = worker.held[-1]
    machine.start(worker, held)
    machine.fall_silent(worker)
    machine.look_and_act(machine.workers[0], When.PAST)
    machine.all_is_as_the_model_says()
    return worker, held


def test_a_limit_that_became_known_after_a_look_counts_when_the_task_is_taken_back(place: Place) -> None:
    """Its worker was only frozen, and has imported the module since: the callable may start once."""
    _, store = place.stores[0]
    store.producing.add(NewTask("tasks.once", None, 3, 0))
    (claimed,) = store.claims.claim(1, ()).tasks
    assert store.finishes.advance([], Start(claimed, None)) == ([], True)
    place.rows.execute(f"UPDATE jobs_queue SET due_at = {place.rows.after(-1)}")
    (lost,) = store.due.look().lost
    assert store.finishes.limit_attempts(claimed, 1)
    store.due.reclaim_lost(lost, SETTINGS_LIMIT, LOST_TEXT, 0.0)
    assert place.rows.row(claimed.id)["status"] != Status.ERROR
    assert store.finishes.advance([Finish(claimed)], None) == ([Outcome.AS_ASKED], False)
