"""What holds for a batch, `@task(batch=N)`, and for tasks that share their commits, `@task(commit_every=N)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest

from taskserver import DatabaseError
from taskserver.model.task import Claim, ClaimedTask
from taskserver.stores.queue.batches import Batches
from tests.support.databases import EACH_SERVER
from tests.support.proxy import Proxy, contains
from tests.support.rows import Rows
from tests.support.servers import MySQLServer
from tests.support.sites import NumberedSite

CODE = """
from taskserver import task

calls = []
does = []

def noted(numbers):
    calls.append(numbers)
    for do in does:
        do(numbers)

@task(batch=500)
def call(items): noted([item["n"] for item in items])

@task(commit_every=500)
def round(n): noted([n])

@task(commit_every=3)
def two_rounds(n): noted([n])
"""
SITE = NumberedSite
KINDS = pytest.mark.parametrize("name", ["call", "round"])

pytestmark = pytest.mark.usefixtures("whole_claims")


def calls(site: NumberedSite) -> list[int]:
    """The numbers of the tasks, in the order of their calls."""
    return [n for numbers in site.module.calls for n in numbers]


# ---- rows that others hold or took


@EACH_SERVER
@KINDS
def test_a_row_that_a_page_holds_has_the_others_run_without_it(site: NumberedSite, name: str) -> None:
    """It runs once it is free."""
    assert site.module
    ids = site.add(name, *range(5))
    real = site.store.claims.claim
    with closing(Rows(site.dsn)) as page:
        page.execute("BEGIN")

        def claim(limit: int, groups: Sequence[int], number: int | None = None) -> Claim:
            claimed = real(limit, groups, number)
            if claimed.tasks:
                page.execute(f"SELECT * FROM jobs_queue WHERE id = {ids[2]} FOR UPDATE")
            return claimed

        site.store.claims.claim = claim  # type: ignore[method-assign]
        site.module.does.append(lambda numbers: page.execute("ROLLBACK") if 4 in numbers else None)
        result = site.run()
    assert (result.taken, result.done, result.lost) == (5, 5, 0)
    assert calls(site) == [0, 1, 3, 4, 2]


@KINDS
def test_a_task_taken_before_its_start_is_not_called(
    site: NumberedSite, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    real = Batches.start

    def start(batches: Batches, tasks: Sequence[ClaimedTask], max_attempts: int) -> set[int]:
        site.rows.set(f"claim = 5 WHERE id = {tasks[1].id}")
        return real(batches, tasks, max_attempts)

    assert site.module
    site.add(name, 0, 1, 2)
    monkeypatch.setattr(Batches, "start", start)
    result = site.run()
    assert (result.done, calls(site)) == (2, [0, 2])
    assert site.columns("id, status, claim") == [(2, 1, 5)]


@KINDS
def test_a_start_that_fails_gives_all_back(site: NumberedSite, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def start(*given: Any) -> set[int]:
        raise DatabaseError("the disk is full")

    assert site.module
    site.add(name, *range(3))
    with monkeypatch.context() as patch:
        patch.setattr(Batches, "start", start)
        with pytest.raises(DatabaseError, match="disk is full"):
            site.run()
    assert site.columns("status, attempts, claim") == [(0, 0, None)] * 3
    assert site.run().done == 3


# ---- a connection that breaks

START = b"started_at = NOW(6), due_at"
FINISH = {"delete": b"DELETE FROM", "mark": b"status = 2", "move": b"status = 6"}
CUTS = [
    *((START, is_done, "mark") for is_done in (True, False)),
    *((finish, is_done, mode) for mode, finish in FINISH.items() for is_done in (True, False)),
    (b"COMMIT", True, "mark"),
]


@pytest.mark.parametrize(("words", "is_done", "mode"), CUTS)
@pytest.mark.parametrize(("name", "last"), [("call", 5), ("round", 5), ("two_rounds", 2)])
def test_a_connection_that_breaks_has_each_task_run_once(
    make_site: Callable[..., NumberedSite],
    mysql_server: MySQLServer,
    emptied_mysql_dsn: str,
    name: str,
    last: int,
    words: bytes,
    is_done: bool,
    mode: str,
) -> None:
    """At the start, at the finish, and where one round is finished and the next one started."""
    with Proxy(mysql_server.host, mysql_server.port) as proxy:
        site = make_site(proxy.dsn(emptied_mysql_dsn), mode=mode)
        assert site.module
        cuts = []

        def cut(numbers: Sequence[int] = ()) -> None:
            if not numbers or last in numbers:
                cuts.append((proxy.cut_after if is_done else proxy.cut_before)(contains(words)))

        site.add(name, *range(6))
        if words == b"COMMIT" or name == "two_rounds":
            site.module.does.append(cut)
        else:
            cut()
        result = site.run()
        assert cuts[0].has_struck
        assert (result.done, result.lost, result.failed) == (6, 0, 0)
        assert calls(site) == list(range(6))
        assert site.columns("id, attempts") == ([(n, 1) for n in range(1, 7)] if mode == "mark" else [])
        assert len(site.columns("id", "jobs_queue_done")) == (6 if mode == "move" else 0)
