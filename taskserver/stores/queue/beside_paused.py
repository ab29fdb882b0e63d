"""The claim of all groups while some are paused: it passes over their rows.

Rows of paused groups stand in the order of all tasks, in the way of a claim. The claim reads the first rows of that
order, its window, and takes those that no pause concerns. A paused backlog may fill the window: for a moment claims go
by groups then, as a claim of given groups does. They find the groups in the gaps between the paused ones.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...model.task import NOTHING_CHANGED, Changed

if TYPE_CHECKING:
    from ..database import Database

MIN_WINDOW_ROWS = 1000
"""So many paused rows cost a claim some milliseconds to pass over, less than going by groups does."""
WINDOW_PER_TASK = 4
MIN_SHARE_OF_LIMIT = 4
"""A claim by the window that gets less than this part of its limit, a quarter, costs more than one by groups."""
MAX_GROUPS_IN_TURN = 100
"""Where groups have their turns, a claim names so many at once: its cost grows with them."""
MAX_GAPS_PER_LOOK = 100
MAX_ROWS_PER_LOOK = 400
MIN_KEPT_SECONDS = 1.0
"""What a look has found is kept for so long: a group in which a task appears meanwhile waits no longer than this."""
KEPT_PER_SECOND = 10.0
"""A look that takes long is kept for so many times as long, so that looking takes a tenth of the time at most."""

Gap = tuple[int, int]
"""Groups from a first to a last one, none of which is paused."""


class BesidePaused:
    """The claims of one store while groups are paused, and what they remember from one to the next."""

    def __init__(self, database: Database, max_groups: int) -> None:
        """A claim can name `max_groups` groups at most; where there are more, they have their turns at random."""
        self._database = database
        self._max_groups = max_groups
        self._blocked_until = 0.0
        self._groups: Sequence[int] = ()
        self._are_all = True
        """Whether no other groups had tasks."""
        self._kept_until = 0.0

    def claim(
        self,
        limit: int,
        paused: Callable[[], Sequence[int]],
        claim_first: Callable[[int], Changed],
        claim_of: Callable[[Sequence[int]], Changed],
    ) -> Changed:
        """Claim up to `limit` rows beside the paused groups.

        `claim_first` claims from so many first rows; `claim_of` claims rows of groups.
        """
        if time.monotonic() >= self._blocked_until:
            changed = claim_first(max(MIN_WINDOW_ROWS, WINDOW_PER_TASK * limit))
            if changed.was_all or changed.rows * MIN_SHARE_OF_LIMIT >= limit:
                return changed
            self._blocked_until = time.monotonic() + MIN_KEPT_SECONDS
            if changed.rows:
                return changed  # few, but they come before all others
        return self._claim_by_groups(limit, paused, claim_of)

    def _claim_by_groups(
        self, limit: int, paused: Callable[[], Sequence[int]], claim_of: Callable[[Sequence[int]], Changed]
    ) -> Changed:
        if time.monotonic() < self._kept_until and self._groups:
            changed = self._claim_next(limit, claim_of)
            if changed.rows:
                return changed
        self._groups = self._look(paused())
        return self._claim_next(limit, claim_of) if self._groups else NOTHING_CHANGED

    def _claim_next(self, limit: int, claim_of: Callable[[Sequence[int]], Changed]) -> Changed:
        # All groups, and so in order across them, unless there are more than a claim can name.
        named = self._groups if self._are_all else self._groups[:MAX_GROUPS_IN_TURN]
        changed = claim_of(sorted(named))
        if changed.rows < limit and not self._are_all:
            self._groups = self._groups[MAX_GROUPS_IN_TURN:]
        return changed

    def _look(self, paused: Sequence[int]) -> Sequence[int]:
        began_at = time.monotonic()
        groups = groups_beside(self._database, paused, self._max_groups)
        self._are_all = len(groups) < self._max_groups
        ended_at = time.monotonic()
        self._kept_until = ended_at + max(MIN_KEPT_SECONDS, KEPT_PER_SECOND * (ended_at - began_at))
        return groups


# Some rows of each gap, read by the index in its order: for a DISTINCT, MariaDB would read every new row. One statement
# looks into many gaps, lest ten thousand paused groups cost as many round trips.
FIRST_OF_GAP = """
    SELECT * FROM (SELECT {number} AS gap, group_id FROM {table} {by_status}
                   WHERE {group_status} = 0 AND group_id BETWEEN ? AND ? ORDER BY group_id LIMIT ?) AS of_gap
"""
LAST_GROUP = "SELECT MAX(group_id) FROM {table} {by_status} WHERE {group_status} = 0"


def groups_beside(database: Database, paused: Sequence[int], most: int) -> Sequence[int]:
    """Groups with new rows that are not among the paused ones, which are in order; `most` of them at most.

    They are in order from a random one on.
    """
    last = database.fetch_value(LAST_GROUP)
    if last is None:
        return []
    # From any group on: where there are too many groups to find all, each is to have its turn.
    found: dict[int, None] = {}
    for part in _gaps(paused, last, random.randint(0, last)):
        _find_in_gaps(database, deque(part), most, found)
    return list(found)[:most]


def _find_in_gaps(database: Database, gaps: deque[Gap], most: int, found: dict[int, None]) -> None:
    while gaps and len(found) < most:
        some = [gaps.popleft() for _ in range(min(MAX_GAPS_PER_LOOK, len(gaps)))]
        rows_per_gap = min(most, MAX_ROWS_PER_LOOK // len(some))
        for (_, end), groups in zip(some, _groups_of_gaps(database, some, rows_per_gap), strict=True):
            found |= dict.fromkeys(groups)
            if len(groups) == rows_per_gap and groups[-1] < end:
                gaps.append((groups[-1] + 1, end))


def _groups_of_gaps(database: Database, gaps: Sequence[Gap], rows_per_gap: int) -> list[list[int]]:
    """The group of each row that a look into these gaps reads, in order."""
    looks = " UNION ALL ".join(FIRST_OF_GAP.replace("{number}", str(number)) for number in range(len(gaps)))
    found: list[list[int]] = [[] for _ in gaps]
    for number, group in database.fetch(looks, [value for gap in gaps for value in (*gap, rows_per_gap)]):
        found[number].append(group)
    return [sorted(groups) for groups in found]


def _gaps(paused: Sequence[int], last: int, first: int) -> tuple[list[Gap], list[Gap]]:
    """The gaps between paused groups, up to group `last`: those from group `first` on, and those before it."""
    ends = [*(group for group in paused if group <= last), last + 1]
    begins = [0, *(group + 1 for group in ends)]
    gaps = [(begin, end - 1) for begin, end in zip(begins, ends, strict=False) if begin < end]
    from_first = [(max(first, begin), end) for begin, end in gaps if end >= first]
    return from_first, [(begin, min(first - 1, end)) for begin, end in gaps if begin < first]
