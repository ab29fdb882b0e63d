"""Which tasks an operator may mean; which rows that finds is shown by tests/contract/test_operate.py."""

from __future__ import annotations

from typing import Any

import pytest

from taskserver import InvalidTask, Selection, TaskServer


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ids": [2**64]}, "one of ids is 18446744073709551616; allowed: a whole number from 0 to"),
        ({"groups": [2**32 - 1]}, "one of groups is 4294967295; allowed: a whole number from 0 to 4294967294"),
        ({"groups": list(range(401))}, "401 groups are chosen; allowed: at most 400"),
        ({"task": ""}, "task is ''; allowed: a text, not an empty one"),
        ({"error": "\udc80"}, "error is '.udc80'; allowed: a text"),
        ({"groups": "3"}, "groups is '3'; allowed: a list of whole numbers from 0 to 4294967294"),
        ({"ids": iter([1])}, "ids is <list_iterator"),  # which one look would use up
        ({"since": -1}, 'since is -1; allowed: seconds, a text as "5m", or a timedelta, from 0 on, or an aware'),
        ({"status": 9}, "status is 9; allowed: 0 new, 1 in_progress, 2 done, 3 error, 4 fatal, 5 waiting"),
        ({"limit": 2**63}, f"limit is {2**63}; allowed: a whole number from 1 to {2**63 - 1}$"),
    ],
)
def test_a_wrong_choice_is_refused_in_a_sentence(given: dict[str, Any], message: str) -> None:
    with TaskServer("mysql://nobody@127.0.0.1:1/nothing") as server, pytest.raises(InvalidTask, match=message):
        server.cancel(Selection(**given))
