"""Which runs come in time, which groups they serve, and which groups' tasks wait for nobody.

Judged from counts, from the record of runs and from the paused groups; reads nothing itself. For `client.py status`,
the doctor, and whatever else watches a queue.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ..messages.programs import CLIENT
from ..model.task import ALL_GROUPS, MAX_GROUP_ID, Status
from ..stores.records import LastRun, QueueCount

MIN_LATE_SECONDS = 3600
"""No run is late before this, however often cron starts it."""
LATE_UNLESS_KNOWN_SECONDS = 86_400
"""A run is late after this where nothing tells how often cron starts it."""
MAX_GROUPS_NAMED = 10
"""Group ids in one sentence."""


class Paused(NamedTuple):
    """The groups whose tasks are not claimed for now."""

    groups: Sequence[int]
    """In order."""
    are_all: bool
    """Whether all groups are, those that come up later included."""


# ---- runs


def seconds_since_start(run: LastRun) -> float:
    """Seconds since a run began; infinite where the record holds no instant that can be."""
    seconds = run.started_seconds_ago
    # An instant ahead of now was forged, or written by a wrong clock: it does not tell when a worker ran.
    return float("inf") if seconds is None or seconds < -MIN_LATE_SECONDS else float(seconds)


def is_late(run: LastRun) -> bool:
    """Whether cron should have started the next run by now."""
    return seconds_since_start(run) > late_after_seconds(run)


def late_after_seconds(run: LastRun) -> float:
    """The seconds since its begin after which a run is late."""
    # A run that is still at work keeps the slot: the runs that cron starts meanwhile leave before they are recorded.
    if run.every_seconds is None or not run.ended_at:
        return LATE_UNLESS_KNOWN_SECONDS
    return max(3 * run.every_seconds, MIN_LATE_SECONDS)


def in_time(runs: Sequence[LastRun]) -> list[LastRun]:
    """The runs that are not late."""
    return [run for run in runs if not is_late(run)]


def is_stuck(run: LastRun) -> bool:
    """Whether a run ended with an error, and gave back all that it had claimed, as where a setup fails."""
    return run.reason == "error" and run.released > 0 and not run.taken


def takes_all_groups(run: LastRun) -> bool:
    """Whether a run takes tasks of every group, as far as its record tells."""
    return names_all_groups(run.group_ids)


def names_all_groups(group_ids: str) -> bool:
    """Whether the groups of a record are all groups, as far as it tells."""
    # A list that was too long for the record ends in a checksum.
    return group_ids == ALL_GROUPS or "..." in group_ids


def groups_served(runs: Sequence[LastRun]) -> set[int]:
    """The groups that runs name."""
    return {group for run in runs for group in groups_in(run.group_ids)}


def groups_in(group_ids: str) -> set[int]:
    """The groups that a record names."""
    # A forged record may have a number that Python refuses to read.
    groups = [group for group in group_ids.split(",") if len(group) <= len(str(MAX_GROUP_ID))]
    return {int(group) for group in groups if group.isascii() and group.isdigit()}


# ---- groups


def unserved(counts: Sequence[QueueCount], runs: Sequence[LastRun], paused: Sequence[int] = ()) -> list[QueueCount]:
    """The counts of new tasks in groups that no run in time serves; paused groups are left out.

    Empty where no run at all is in time: then cron has stopped, whatever the groups are.
    """
    prompt = in_time(runs)
    if not prompt or any(map(takes_all_groups, prompt)):
        return []
    served = groups_served(prompt).union(paused)
    return [count for count in counts if count.status == Status.NEW and count.group_id not in served]


def describe_unserved_groups(groups: Collection[int], runs: Sequence[LastRun]) -> str | None:
    """The groups among these that no run in time serves, in words; None where every one is served."""
    waiting = unserved([QueueCount(group, Status.NEW, 1, None) for group in groups], runs)
    if not waiting:
        return None
    which = f"group{'s' if len(waiting) > 1 else ''} {_listed([count.group_id for count in waiting])}"
    return f"no worker takes tasks of {which}: they serve {_listed(groups_served(in_time(runs)))}"


def describe_unserved(counts: Sequence[QueueCount], runs: Sequence[LastRun], paused: Sequence[int] = ()) -> str | None:
    """The unserved groups in a sentence for a person; None where every group is served."""
    waiting = unserved(counts, runs, paused)
    if not waiting:
        return None
    rows = sum(count.rows for count in waiting)
    served = groups_served(in_time(runs))
    idle = served - {count.group_id for count in counts}
    return (
        f"{rows} new task{'s' if rows != 1 else ''} in group{'s' if len(waiting) > 1 else ''} "
        f"{_listed([count.group_id for count in waiting])}, which no worker takes: "
        f"they serve {_listed(served)}" + (f", and {_listed(idle)} have no task" if idle else "")
    )


def paused_of(counts: Sequence[QueueCount], groups: Sequence[int], are_all: bool) -> Paused:
    """The paused groups; if all are, every group that has tasks."""
    return Paused(sorted({*groups, *(count.group_id for count in counts)}), True) if are_all else Paused(groups, False)


def describe_resuming(paused: Paused) -> str:
    """What ends the pause, for a person."""
    which = "--all" if paused.are_all else paused.groups[0] if len(paused.groups) == 1 else "GROUP"
    return f"{CLIENT} resume {which} has workers take them again"


def describe_paused(counts: Sequence[QueueCount], paused: Paused) -> str | None:
    """The paused groups, and the new tasks in them, in a sentence for a person; None where no group is paused."""
    if not paused.groups and not paused.are_all:
        return None
    groups = set(paused.groups)
    rows = sum(count.rows for count in counts if count.status == Status.NEW and count.group_id in groups)
    one = len(groups) == 1
    which = (
        "all groups are" if paused.are_all else f"group{'' if one else 's'} {_listed(groups)} {'is' if one else 'are'}"
    )
    return f"{which} paused, with {rows} new task{'' if rows == 1 else 's'}"


def _listed(groups: Collection[int]) -> str:
    first = sorted(groups)[:MAX_GROUPS_NAMED]
    return ", ".join(map(str, first)) + (" …" if len(groups) > MAX_GROUPS_NAMED else "")
