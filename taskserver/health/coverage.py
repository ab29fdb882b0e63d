"""Which runs are on time, and which groups they serve, by given records of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..model.task import ALL_GROUPS, MAX_GROUP_ID
from ..stores.records import LastRun

MIN_LATE_SECONDS = 3600
"""No run is late before this, even if cron starts it more often."""
LATE_UNLESS_KNOWN_SECONDS = 86_400
"""A run is late after this if it is unknown how often cron starts it."""
RECENT_SECONDS = 7 * 86_400
"""Older records of runs belong to removed hosts and crontab lines."""


def seconds_since_start(run: LastRun) -> float:
    """Seconds since a run began; infinite if the record has no valid time."""
    seconds = run.started_seconds_ago
    # A time in the future comes from a wrong clock.
    return float("inf") if seconds is None or seconds < -MIN_LATE_SECONDS else max(float(seconds), 0.0)


def late_after_seconds(run: LastRun) -> float:
    """How long after its begin a run is late."""
    # A run that still works keeps the slot: the runs that cron starts meanwhile leave without a record.
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
    """Whether a run ended with an error and released all that it claimed, for example because a setup failed."""
    return run.reason == "error" and run.released > 0 and not run.taken


# ---- groups, as records name them


def groups_in(records: Iterable[str]) -> set[int] | None:
    """All groups in the `group_ids` of records; None: all groups, or too many for the record."""
    named = set[int]()
    for group_ids in records:
        # A list that is too long for the record ends in a checksum.
        if group_ids == ALL_GROUPS or "..." in group_ids:
            return None
        # A record may have a number that is too long for Python's int().
        groups = [group for group in group_ids.split(",") if len(group) <= len(str(MAX_GROUP_ID))]
        named.update(int(group) for group in groups if group.isascii() and group.isdigit())
    return named


def serves(group_ids: str, groups: Sequence[int]) -> bool:
    """Whether a worker of these `group_ids` takes tasks of one of the groups; no groups: of any."""
    named = groups_in([group_ids])
    return not groups or named is None or not named.isdisjoint(groups)


def groups_served(runs: Iterable[LastRun]) -> set[int] | None:
    """The groups that runs on time serve; None: all groups, or unknown as no run is on time."""
    prompt = in_time(runs)
    return groups_in(run.group_ids for run in prompt) if prompt else None


def unserved(groups: Iterable[int], runs: Iterable[LastRun]) -> list[int]:
    """The groups that no run on time serves; empty if no run is on time, as cron has stopped then."""
    served = groups_served(runs)
    return [] if served is None else [group for group in groups if group not in served]


def stopped(runs: Sequence[LastRun], at_work: Iterable[str]) -> list[LastRun]:
    """Late runs whose groups no run on time serves, nor a running worker; `at_work` has the `group_ids` of those."""
    served = groups_in([*(run.group_ids for run in in_time(runs)), *at_work])
    if served is None:
        return []
    late = [run for run in runs if is_late(run) and seconds_since_start(run) <= RECENT_SECONDS]
    return [run for run in late if (own := groups_in([run.group_ids])) is None or not own <= served]
