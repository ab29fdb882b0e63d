"""An operator's pauses: groups whose tasks no claim takes, for now, and the pause of all groups.

A paused group is a row of its own, which claims look up (claims.py). There is a group for each number up to 4294967295,
so a pause of all of them is a mark: the row of the last group, with an instant that no clock tells any more.
Workers of all groups obey the mark. Workers of named groups look up these groups alone, so those that are known are
paused one by one beside it. The claim's statements know nothing of the mark, and cost what they did.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ...model.task import MAX_GROUP_ID
from ..database import Database
from ..retrying import RetryPolicy, Scope
from .claims import IS_MARK, MARKED_AT, MARKED_BESIDE_AT

CONFLICT_SECONDS = 2.0
"""A mark is tried again for so long while others hold its row."""


class GroupPauses:
    """The verbs that write pauses; claims.py reads them."""

    def __init__(self, database: Database) -> None:
        self._database = database

    PAUSE = "{insert_or_ignore} INTO {paused} (group_id) VALUES (?) {or_ignore}"
    RESUME = "DELETE FROM {paused} WHERE group_id = ?"

    def pause(self, groups: Iterable[int]) -> list[int]:
        """Stop claims of these groups' tasks, from the next claim on; the groups that were not paused before."""
        return [group for group in groups if self._database.change(self.PAUSE, (group,)) == 1]

    # A row that pauses the last group alone becomes a mark that remembers it.
    MARK_BESIDE = f"""
        UPDATE {{paused}} SET paused_at = '{MARKED_BESIDE_AT}' WHERE group_id = {MAX_GROUP_ID} AND NOT ({IS_MARK})
    """
    MARK = f"{{insert_or_ignore}} INTO {{paused}} (group_id, paused_at) VALUES (?, '{MARKED_AT}') {{or_ignore}}"

    def pause_all(self) -> None:
        """Stop claims by workers of all groups, from the next claim on, whatever groups there will be."""
        self._database.run(RetryPolicy(Scope.TRANSACTION, CONFLICT_SECONDS), self._mark)

    def _mark(self) -> None:
        if not self._database.write(self.MARK_BESIDE):
            self._database.write(self.MARK, (MAX_GROUP_ID,))

    def resume(self, groups: Sequence[int]) -> list[int]:
        """Allow claims of these groups' tasks again; the groups that were paused.

        A pause of all groups ends with it: the others that have rows now, or were known then, stay paused, each by
        itself.
        """
        were_all = bool(self._database.fetch(self.IS_MARKED))
        if were_all:
            self._pause_present(groups)
        resumed = [group for group in groups if self._database.change(self.RESUME, (group,)) == 1]
        return list(groups) if were_all else resumed

    IS_MARKED = f"SELECT group_id FROM {{paused}} WHERE group_id = {MAX_GROUP_ID} AND {IS_MARK}"
    PRESENT = "SELECT group_id FROM {table} GROUP BY status, group_id"
    KEEP_LAST = f"UPDATE {{paused}} SET paused_at = {{now}} WHERE group_id = {MAX_GROUP_ID} AND {IS_MARK}"
    KEEP_LAST_BESIDE = f"{KEEP_LAST} AND paused_at = '{MARKED_BESIDE_AT}'"
    UNMARK = f"DELETE FROM {{paused}} WHERE group_id = {MAX_GROUP_ID} AND {IS_MARK}"

    def _pause_present(self, but: Collection[int]) -> None:
        """End a pause of all groups; those of them that have rows are paused by themselves, `but` some."""
        with self._database.unhurried():
            present = {row[0] for row in self._database.fetch(self.PRESENT)}.difference(but)
        self.pause(sorted(present))
        self._database.change(self.KEEP_LAST if MAX_GROUP_ID in present else self.KEEP_LAST_BESIDE)
        self._database.change(self.UNMARK)

    RESUME_ALL = "DELETE FROM {paused}"

    def resume_all(self) -> int:
        """Allow claims of every group's tasks again; how many groups were paused."""
        return self._database.change(self.RESUME_ALL)
