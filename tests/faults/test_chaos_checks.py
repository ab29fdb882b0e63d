"""Chaos' own checks: how its witnesses are read, and that every lie in a story is found.

The chaos itself is run by tests/faults/test_chaos.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.faults.chaos.checks import check_all
from tests.faults.chaos.evidence import DELETED, Event, Evidence, Kept, Row, Run, Strike, Tied, WorkerRun
from tests.faults.chaos.settings import LEASE_SECONDS
from tests.faults.chaos.spans import Span

# ---- what the checks look at


# ---- the checks: an honest story passes, and each lie in it is found

TAKEN_BACK_AT = 104.0


def change(number: int, at: float, was: int, status: int, claim: int, attempts: int = 1, **changes: object) -> Event:
    """Of a task whose id is its number and a hundred, under a lease that has a second left."""
    made = Event(number, number + 100, at, was, status, attempts, attempts, None, claim, at + 1, None, None)
    return made._replace(**changes)  # type: ignore[arg-type]


def started(number: int, at: float, attempts: int, claim: int) -> Event:
    return change(number, at, 1, 1, claim, attempts, attempts_before=attempts - 1, due_at=at + LEASE_SECONDS)


def taken_back(number: int, status: int, claim: int) -> Event:
    at = TAKEN_BACK_AT
    return change(number, at, 1, status, claim, lease_ended_at=at - 2, due_at=at, error_text="lost: its worker died")


LOST_LEASE = "task 101 tasks.play: the lease was lost while it ran; its result is dropped\n"
LOST_BEFORE = "task 106 tasks.play: the lease was lost before it started\n"
STORY = Evidence(
    acknowledged={1, 2, 4, 5, 6},
    unknown={3},
    rows=[
        Row(1, 101, 2, 2, 6, None, "queue"),
        Row(2, 102, 4, 1, 1, "lost: its worker died", "queue"),
        Row(4, 104, 1, 2, None, "Failed: as it was told to", "gone"),
        Row(5, 105, 2, 1, None, None, "archive"),
        Row(6, 106, 1, 1, 1, None, "gone"),
    ],
    runs=[
        Run(1, 50, 100.1, 105.6, "done"),
        Run(1, 51, 105.1, 105.2, "done"),
        Run(2, 52, 100.1, None, "dies kill"),
        Run(4, 55, 101.1, 101.2, "Failed", "fail"),
        Run(4, 55, 103.1, 103.2, "done", "fail"),
        Run(5, 50, 99.1, 99.2, "done"),
        Run(3, 53, 105.9, None, "dies leave"),
        # Given up as lost while its worker was frozen, which completed it late.
        Run(6, 56, 100.1, 105.6, "done"),
    ],
    events=[
        started(1, 100.0, 1, 7),
        taken_back(1, 3, 7),
        started(1, 105.0, 2, 8),
        change(1, 105.2, 1, 2, 8, 2),
        started(2, 100.0, 1, 9),
        started(4, 101.0, 1, 10),
        change(4, 101.2, 1, 3, 10, error_text="Failed: as it was told to"),
        started(4, 103.0, 2, 11),
        change(4, 103.2, 1, DELETED, 11, 2, error_text="Failed: as it was told to"),
        started(5, 99.0, 1, 12),
        change(5, 99.2, 1, 2, 12),
        change(6, 99.5, 1, 0, 13, 0, lease_ended_at=99.0),
        started(6, 100.0, 1, 14),
        taken_back(6, 4, 14),
        change(6, 105.6, 4, 1, 14, lease_ended_at=None),
        change(6, 105.6, 1, DELETED, 14, lease_ended_at=None),
    ],
    workers=[
        WorkerRun(0, 50, 99.0, 106.0, 0, LOST_LEASE),
        WorkerRun(1, 51, 99.0, 106.0, 0, LOST_BEFORE),
        WorkerRun(2, 52, 99.0, 100.2, -9, ""),
        WorkerRun(3, 53, 99.0, 106.0, 42, ""),
        WorkerRun(1, 54, 106.0, 120.0, 1, "worker.py: the database went away\n"),
        WorkerRun(3, 55, 99.0, 106.0, 0, ""),
        WorkerRun(3, 56, 99.0, 106.0, 0, ""),
    ],
    strikes=[
        Strike("freeze beyond the lease", 0, 50, 100.15, 105.5),
        Strike("drop", 1, None, 107.8, 109.0),
        Strike("kill", 3, 99, 99.0, 99.0),
    ],
    troubles={0: [Span(100.15, 105.5)], 1: [Span(107.8, 120.0)], 3: [Span(100.15, 105.5)]},
    changed={"one": 7, "two": 3},
    changed_while_it_ran=1,
    kept_rows=[Kept("one", 8), Kept("two", 3)],
    kept_runs=[Kept("one", 2), Kept("one", 7), Kept("one", 8), Kept("two", 3)],
    tied=[Tied(0, 200, [], True), Tied(1, 201, [0], False), Tied(7, 207, [], False), Tied(8, 208, [7], False)],
    tied_runs=[
        Run(0, 50, 98.0, None, "?", "tied"),
        Run(7, 50, 98.1, 98.2, "tied", "tied"),
        Run(8, 50, 98.3, 98.4, "tied", "tied"),
    ],
    tied_errors={0: "Failed: as it was told to", 1: "dependency: task 200, for which it waits, is fatal"},
    kinds=["freeze beyond the lease", "drop", "kill"],
    task_kinds=["quick", "fail"],
    modes=["move", "mark", "move", "delete"],
)


def told(**changes: object) -> list[str]:
    """The first line of each failure that the checks find in a changed story."""
    return [failure.splitlines()[0] for failure in check_all(replace(STORY, **changes))]  # type: ignore[arg-type]


def test_an_honest_story_passes() -> None:
    assert told() == []


Changes = dict[str, object]


def row(number: int, **changes: object) -> Changes:
    """The story in which a row says otherwise."""
    rows = [one._replace(**changes) if one.number == number else one for one in STORY.rows]  # type: ignore[arg-type]
    return {"rows": rows}


def events(is_meant: Callable[[Event], bool], **changes: object) -> Changes:
    """The story in which some events were others."""
    return {"events": [one._replace(**changes) if is_meant(one) else one for one in STORY.events]}  # type: ignore[arg-type]


def worker(pid: int, **changes: object) -> Changes:
    """The story in which a worker ended otherwise."""
    workers = [one._replace(**changes) if one.pid == pid else one for one in STORY.workers]  # type: ignore[arg-type]
    return {"workers": workers}


def more(what: str, *others: object) -> Changes:
    """The story in which more happened."""
    return {what: [*getattr(STORY, what), *others]}


def is_deletion(event: Event) -> bool:
    return (event.number, event.status) == (4, DELETED)


def is_done(event: Event) -> bool:
    return event.status == 2


def is_taken_back(event: Event) -> bool:
    return event.at == TAKEN_BACK_AT


def events_but(is_left_out: Callable[[Event], bool]) -> Changes:
    return {"events": [one for one in STORY.events if not is_left_out(one)]}


def without_row(number: int) -> Changes:
    return {"rows": [one for one in STORY.rows if one.number != number]}


ONLY_THE_DATABASE = {1: STORY.troubles[1]}
FAILED_AT_ITS_END = [one._replace(outcome="Failed") if one.began == 103.1 else one for one in STORY.runs]
DELETED_TOO_SOON = "task 4 was deleted before a run of it came to its end"
NOT_THE_LAST = "was finished by another than its last run"
LIES: list[tuple[str, Changes]] = [
    ("'stall' struck", more("kinds", "stall")),
    ("no task of the kind 'hang' did what it is for", more("task_kinds", "hang")),
    ("no task was completed in the mode 'delete'", {"rows": [one for one in STORY.rows if one.place != "gone"]}),
    # lost, there twice, or never over; one whose INSERT had no answer, but a worker had it
    ("3 tasks were neither done nor fatal", {"undrained": 3}),
    ("task 9 was acknowledged and is lost", {"acknowledged": {1, 2, 9}}),
    ("task 5 was acknowledged and is lost", {"acknowledged": STORY.acknowledged - {5}, **without_row(5)}),
    ("task 4 was acknowledged and is lost", without_row(4) | events_but(is_deletion)),
    ("task 1 is there 2 times", more("rows", STORY.rows[0])),
    # deleted though no run of it, or not the last one, came to its end before
    (DELETED_TOO_SOON, {"runs": [one for one in STORY.runs if one.number != 4]}),
    (DELETED_TOO_SOON, {"runs": FAILED_AT_ITS_END}),
    (DELETED_TOO_SOON, events(is_deletion, at=103.15)),
    (DELETED_TOO_SOON, events(is_deletion, claim=99)),
    # done, and not as the mode says
    ("task 1 is done, and queue is not where the mode", {"modes": ["move", "delete", "mark", "delete"]}),
    ("is done and has an error_text", row(1, error_text="x")),
    ("is done, and no run of it came", {"runs": [one._replace(outcome="Failed") for one in STORY.runs]}),
    # fatal
    ("fatal for no reason", row(2, error_text=None)),
    ("fatal for no reason of its own", row(2, error_text="DatabaseError: away")),
    ("is fatal after 1 of 2 attempts", row(2, max_attempts=2)),
    # two runs at once, while nothing hindered the first
    ("which nothing had hindered", {"troubles": ONLY_THE_DATABASE}),
    ("was taken back before its lease had ended", events(is_taken_back, lease_ended_at=TAKEN_BACK_AT + 0.5)),
    # counts and starts
    ("task 2 of max_attempts 1 began 2 times", more("runs", Run(2, 51, 103.0, 103.1, "done"))),
    ("task 1 began at 105.300, which was not counted", more("runs", Run(1, 51, 105.3, 105.4, "done"))),
    ("task 1 has attempts 3 and 2 starts", row(1, attempts=3)),
    # words of another than the last run
    (f"task 1 {NOT_THE_LAST}", events(is_done, at=105.15)),
    (f"task 4 {NOT_THE_LAST}", events(lambda one: one.status == 3, claim=99)),
    ("task 1 went a way that no task may go", events(is_done, was=3)),
    # how workers end
    ("traceback", worker(50, errors="Traceback (most recent call last):\n")),
    ("no word of why", worker(54, errors="worker.py: \n")),
    ("took a task for one that holds", worker(54, errors="Timeout (0:00:30)!\nThread 0x1 (most recent call first):\n")),
    ("ended with 1 and 2 lines", worker(54, errors="worker.py: a\nworker.py: b\n")),
    ("gave up a database that was not away for so long", {"troubles": {0: STORY.troubles[0]}}),
    ("ended with 0, and its task dies leave", worker(53, code=0)),
    ("ended with -11", worker(50, code=-11)),
    ("the last worker of slot 2 went on", {"unended": [2]}),
    # what they say of leases
    ("the worker 50 of slot 0 told 0 of 1 lost leases of the row 101", worker(50, errors="")),
    ("the worker 50 of slot 0 told 2 of 1 lost leases of the row 101", worker(50, errors=LOST_LEASE * 2)),
    ("told 1 of 0 lost leases of the row 104", worker(55, errors=LOST_LEASE.replace("101", "104"))),
    ("told a lease of the row 104 as lost that nobody took back", worker(55, errors=LOST_BEFORE.replace("106", "104"))),
    # keys
    ("key two was changed to version 4, and the newest that ran to its end is 3", {"changed": {"two": 4}}),
    ("key one is done with version 9, no run of which came to its end", {"kept_rows": [Kept("one", 9)]}),
    ("no task was changed", {"changed_while_it_ran": 0}),
    ("1 tasks with keys became fatal", {"kept_fatal": 1}),
    # ties
    ("number=8, id=208", {"tied_runs": STORY.tied_runs[:2]}),
    ("began before one that it waited for", more("tied_runs", Run(8, 51, 98.15, 98.3, "tied", "tied"))),
    ("waited for a fatal one, and began", more("tied_runs", Run(1, 51, 99.0, 99.1, "tied", "tied"))),
    ("waited for a fatal one, and its error is ''", {"tied_errors": {0: "Failed"}}),
    ("1 ties are left", {"tied_left": 1}),
    ("no task ran that had waited", {"tied": [], "tied_errors": {}}),
]


@pytest.mark.parametrize(("sentence", "lie"), LIES)
def test_the_checks_find_each_lie_in_the_story(sentence: str, lie: Changes) -> None:
    found = told(**lie)
    assert any(sentence in failure for failure in found), found


def test_a_worker_that_was_frozen_beyond_its_lease_may_end_as_it_wakes() -> None:
    shows_stacks = worker(54, errors="Timeout (0:00:05)!\nThread 0x1 (most recent call first):\n")
    frozen = [*STORY.strikes, Strike("freeze beyond the lease", 1, 54, 114.0, 119.9)]
    assert told(**shows_stacks, strikes=frozen) == []
    thawed_long_ago = [*STORY.strikes, Strike("freeze beyond the lease", 1, 54, 110.0, 115.0)]
    assert told(**shows_stacks, strikes=thawed_long_ago) != []


@pytest.mark.parametrize("kind", ["drop", "server kill"])
def test_what_a_worker_tells_of_leases_is_not_judged_where_its_connection_may_have_broken(kind: str) -> None:
    strikes = [*STORY.strikes, Strike(kind, 0, None, 105.55, 105.56)]
    assert told(**worker(50, errors=""), strikes=strikes) == []
    other_slot = [*STORY.strikes, Strike("drop", 1, None, 105.55, 105.56)]
    assert told(**worker(50, errors=""), strikes=other_slot) != []
