"""Pause and resume: no claim takes rows of a paused group, and no paused row hides one of another group."""

from __future__ import annotations

import pytest

from taskserver.errors import InvalidTask
from taskserver.model.task import MAX_GROUP_ID
from taskserver.stores import Store
from tests.contract.verbs import PLAIN, add, add_many, claim, ids


def add_to_groups(store: Store, *groups: int, priority: int = 0) -> list[int]:
    return add_many(store, [PLAIN._replace(group_id=group, priority=priority) for group in groups])


def test_a_claim_of_given_groups_passes_over_those_that_are_paused(store: Store) -> None:
    three, five, six = (add(store, group, -group) for group in (3, 5, 6))
    assert store.claims.pause([5, 77]) == [5, 77]
    assert (store.claims.pause([5]), store.claims.paused()) == ([], ([5, 77], False))
    assert [store.claims.has_new(groups) for groups in ((3, 5), (5,), (5, 77))] == [True, False, False]
    assert claim(store, 100, 5) == []
    assert ids(claim(store, 100, 3, 5)) == [three]
    assert not store.claims.has_new((3, 5))
    assert (store.claims.resume([5, 8]), store.claims.paused()) == ([5], ([77], False))
    assert store.claims.has_new((3, 5))
    assert ids(claim(store, 100, 3, 5, 6)) == [six, five]


def test_no_claim_takes_a_row_while_all_groups_are_paused(store: Store) -> None:
    """Not even of a group that is named, or first used later."""
    first, claims = add(store, 3), store.claims
    claims.pause([3])
    other = add(store, MAX_GROUP_ID)
    assert ids(claim(store)) == [other]
    for _ in range(2):  # safe to repeat
        claims.pause_all()
    assert claims.paused() == ([3], True)
    later = add(store, 77)
    for groups in ((), (3,), (77,), (3, 77)):
        assert claim(store, 100, *groups) == []
        assert not claims.has_new(groups)
    with pytest.raises(InvalidTask, match=r"all groups are paused: run client\.py resume --all first"):
        claims.resume([77])
    assert claims.resume_all() == 2
    assert ids(claim(store)) == [first, later]


def test_a_paused_backlog_of_many_groups_hides_no_task_of_others(store: Store) -> None:
    paused = range(2, 402, 2)
    add_to_groups(store, *paused, *paused, priority=-1)
    store.claims.pause(paused)
    order = [(301, 5), (5000, 4), (0, 4), (301, -9), (401, 5)]
    in_order = [task_id for _, task_id in sorted((priority, add(store, group, priority)) for group, priority in order)]
    assert [one for _ in range(4) for one in ids(claim(store, 2))] == in_order
