"""Workers of this host whose process is gone: killed, or ended by a task.

What they had claimed and not started comes back at once. What they had started keeps its lease, as a program that the
task started may still be at it; the supervisor of a worker that died takes that back, too. Other hosts cannot know that
a process is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from logging import getLogger
from typing import NamedTuple

from ..errors import DatabaseError
from ..host.process_identity import has_ended
from ..stores import Store
from ..stores.queue.runs import LeftTask

LOG = getLogger("taskserver")

WHEN = "while it ran, or could not record its end"


class Loss(NamedTuple):
    """What is known of a lost task."""

    reason: str
    is_told: bool
    """Whether a line on standard error has told of it."""


def take_back_from_vanished(
    store: Store, at_work: Sequence[tuple[int, int, str]], children: Collection[int]
) -> dict[int, Loss]:
    """End the leases of the workers among these that are gone, so that the next look takes their tasks back.

    `at_work` has number, process id and identity of workers of this host. Of `children`, processes that their parent
    saw die, the started tasks are taken back, too. The loss of each started task, by its id.
    """
    gone = {number: pid for number, pid, identity in at_work if has_ended(pid, identity)}
    losses: dict[int, Loss] = {}
    try:
        claimed = store.processes.claimed_by(gone) if gone else {}
        for number, tasks in claimed.items():
            losses |= _take_back(store, number, gone[number], tasks, gone[number] in children)
    except DatabaseError as error:  # the leases end by themselves
        LOG.info("the claims of workers that are gone cannot be taken back now: %s", error)
    return losses


def _take_back(store: Store, number: int, pid: int, tasks: Sequence[LeftTask], with_started: bool) -> dict[int, Loss]:
    started = [task for task in tasks if task.is_started]
    store.processes.end_leases(number, tasks if with_started else [task for task in tasks if not task.is_started])
    is_news = store.processes.mark_ended(number)
    if not started or with_started:
        store.processes.end(number)
    waiting = [task for task in started if task.has_lease and not with_started]
    if waiting and is_news:
        _tell(pid, waiting)
    loss = Loss(f"lost: its worker, process {pid}, ended {WHEN}", is_told=bool(waiting) or not is_news)
    return {task.id: loss for task in started}


def _tell(pid: int, tasks: Sequence[LeftTask]) -> None:
    """Say which tasks a process was running when it ended; they are taken back once their lease is over."""
    others = f" and {len(tasks) - 1} others" if len(tasks) > 1 else ""
    LOG.warning(
        "process %d ended while it ran task %d %s%s: once the lease is over, that attempt has failed",
        *(pid, *tasks[0][:2], others),
    )
