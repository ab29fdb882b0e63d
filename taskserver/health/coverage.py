"""Which runs come in time, and which groups they serve; judged from the record of runs, which it does not read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model.task import ALL_GROUPS, MAX_GROUP_ID
from ..stores.records import LastRun

MIN_LATE_SECONDS = 3600
"""No run is late before this, however often cron starts it."""
LATE_UNLESS_KNOWN_SECONDS = 86_400
"""A run is late after this if nothing shows how often cron starts it."""
RECENT_SECONDS = 7 * 86_400
"""Older records of runs belong to removed hosts and crontab lines."""


def seconds_since_start(run: LastRun) -> float:
    """Seconds since a run began; infinite if the record holds no instant that can be."""
    seconds = run.started_seconds_ago
    # An instant in the future was written by a wrong clock: it does not show when a worker ran.
    return float("inf") if seconds is None or seconds < -MIN_LATE_SECONDS else max(float(seconds), 0.0)


def late_after_seconds(run: LastRun) -> float:
    """The seconds since its begin after which a run is late."""
    # A run that is still at work keeps the slot: the runs that cron starts meanwhile leave before they are recorded.
    if run.every_seconds is None or not run.ended_at:
        return LATE_UNLESS_KNOWN_SECONDS
    return max(3 * run.every_seconds, MIN_LATE_SECONDS)


def is_late(run: LastRun) -> bool:
    """Whether cron should have started the next run by now."""
    return seconds_since_start(run) > late_after_seconds(run)


def in_time(runs: Iterable[LastRun]) -> list[LastRun]:
    """The runs that are not late."""
    return [run for run in runs if not is_late(run)]


def is_stuck(run: LastRun) -> bool:
    """Whether a run ended with an error and gave back all that it had claimed, as if a setup fails."""
    return run.reason == "error" and run.released > 0 and not run.taken


# ---- groups, as records name them


def groups_in(records: Iterable[str]) -> set[int] | None:
    """The groups that the `group_ids` of records name together; None: all groups, as far as it shows."""
    named = set[int]()
    for group_ids in records:
        # A list that was too long for the record ends in a checksum.
        if group_ids == ALL_GROUPS or "..." in group_ids:
            return None
        # A record may have a number that Python refuses to read.
        groups = [group for group in group_ids.split(",") if len(group) <= len(str(MAX_GROUP_ID))]
        named.update(int(group) for group in groups if group.isascii() and group.isdigit())
    return named


def serves(group_ids: str, groups: Sequence[int]) -> bool:
    """Whether a worker of these `group_ids` takes tasks of one of the groups; without groups, of any."""
    named = groups_in([group_ids])
    return not groups or named is None or not named.isdisjoint(groups)


def groups_served(runs: Iterable[LastRun]) -> set[int] | None:
    """The groups that runs in time serve; None: all groups, or nothing is known as no run is in time."""
    prompt = in_time(runs)
    return groups_in(run.group_ids for run in prompt) if prompt else None


def unserved(groups: Iterable[int], runs: Iterable[LastRun]) -> list[int]:
    """The groups among these that no run in time serves; none if no run is in time: then cron has stopped."""
    served = groups_served(runs)
    return [] if served is None else [group for group in groups if group not in served]


def stopped(runs: Sequence[LastRun], at_work: Iterable[str]) -> list[LastRun]:
    """Late runs whose groups are covered by no run in time, nor by a worker at work, whose `group_ids` are given."""
    served = groups_in([*(run.group_ids for run in in_time(runs)), *at_work])
    if served is None:
        return []
    late = [run for run in runs if is_late(run) and seconds_since_start(run) <= RECENT_SECONDS]
    return [run for run in late if (own := groups_in([run.group_ids])) is None or not own <= served]
