"""Workers of this host whose process is gone: killed, or ended by a task. What they claimed comes back at once.

Other hosts cannot know that a process is gone, and wait for the lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import getLogger

from ..errors import DatabaseError
from ..host.process_identity import has_ended
from ..stores import Store

LOG = getLogger("taskserver")


def end_leases_of_vanished(store: Store, host: str, at_work: Sequence[tuple[int, int, str]]) -> dict[int, str]:
    """End the leases of the workers among these that are gone, so that the next look takes their tasks back.

    `at_work` has number, process id and identity of workers of this host. The reason why each started task is lost, by
    its id.
    """
    reasons: dict[int, str] = {}
    for number, pid, identity in at_work:
        if not has_ended(pid, identity):
            continue
        try:
            started = store.processes.end_leases(number)
            store.processes.end(number)
        except DatabaseError as error:  # the leases end by themselves
            LOG.debug("the claims of process %d, which is gone, cannot be taken back now: %s", pid, error)
            continue
        reasons |= dict.fromkeys(started, f"lost: its worker, process {pid} on {host}, ended while it ran")
    return reasons
