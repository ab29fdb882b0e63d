"""Workers of this host whose process is gone: killed, or a task hung or exited.

What they had claimed and not started comes back at once. What they had started keeps its lease, as a program that the
task started may still be at it. Other hosts cannot know that a process is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger

from ..errors import DatabaseError
from ..host.process_identity import has_ended
from ..stores import Store

LOG = getLogger("taskserver")

WHEN = "while it ran, or could not record its end"


def take_back_from_vanished(store: Store, at_work: Sequence[tuple[int, int, str]]) -> dict[int, str]:
    """End the leases of what the workers among these that are gone had not started, so that the next look reclaims it.

    `at_work` has number, process id and identity of workers of this host. The error of each started task, by its id.
    """
    gone = {number: pid for number, pid, identity in at_work if has_ended(pid, identity)}
    errors: dict[int, str] = {}
    try:
        for number, tasks in (store.processes.claimed_by(gone) if gone else {}).items():
            started = [task for task in tasks if task.is_started]
            store.processes.end_leases(number, [task for task in tasks if not task.is_started])
            if store.processes.mark_ended(number) and started:
                LOG.warning(
                    "process %d ended while it ran task %d %s%s: once the lease is over, that attempt has failed",
                    *(gone[number], started[0].id, started[0].task),
                    f" and {len(started) - 1} others" if len(started) > 1 else "",
                )
            if not started:
                store.processes.end(number)
            errors |= {task.id: f"lost: its worker, process {gone[number]}, ended {WHEN}" for task in started}
    except DatabaseError as error:  # the leases end by themselves
        LOG.info("the claims of workers that are gone cannot be taken back now: %s", error)
    return errors
