"""Which errors of a MySQL server are retried, and with what pauses. No server is asked, and nobody sleeps."""

from __future__ import annotations

import itertools

import pymysql
import pytest

from taskserver import TaskServer
from taskserver.errors import Conflict, ConnectionLost, DatabaseError, Deadlock, ServerFull, Unavailable
from taskserver.settings.dsn import Dsn
from taskserver.stores import retrying
from taskserver.stores.retrying import (
    HELD_PATIENCE_SECONDS,
    MIN_CONFLICT_SECONDS,
    Hosts,
    Patience,
    RetryPolicy,
    Scope,
    Tries,
)

PASSING = {
    # Lock waits (of the counter of ids, too), ended statements, snapshots, limits. No room for locks; MariaDB's time
    # limits.
    Conflict: {1020, 1028, 1205, 1206, 1317, 1467, 1614, 1969, 3024, 3572},
    Deadlock: {1213},  # a loser of two nodes, too
    # The connection is gone, by shutdowns, KILLs, idle timeouts and networks; and with it the answer, COMMIT's too.
    ConnectionLost: {
        *(0, 1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1180, 1184),
        *(1927, 2006, 2013, 2014, 2055, 3168, 3169, 4031),
    },
    # It is there, and takes nobody more: no memory, threads or connections, of the server or of the account.
    ServerFull: {1037, 1040, 1041, 1135, 1203, 1226},
    # Not reached; read-only or offline for a while; a full disk or table; no quorum; damaged, until
    # the host brings back its backup.
    Unavailable: {2002, 2003, 1036, 1290, 1792, 1836, 3032, 1021, 1030, 1114, 1637, 1047, 1034, 1194, 1712, 1877, 1878},
}
"""By the numbers of MySQL's and MariaDB's manuals and of the driver."""


def test_only_transient_errors_are_retried_by_their_number() -> None:
    """Wrong passwords, missing rights and mistakes in SQL are not: no pause fixes them."""
    dialect = TaskServer("mysql://nobody@127.0.0.1:1/nothing").store.database.dialect
    found: dict[type[DatabaseError], set[int]] = {}
    for number in range(5000):
        found.setdefault(type(dialect.error(pymysql.err.OperationalError(number, ""))), set()).add(number)
    assert {kind: numbers for kind, numbers in found.items() if issubclass(kind, (Conflict, Unavailable))} == PASSING
    ended_claim = pymysql.err.OperationalError(1105, "An error occured in multi-table update")  # of MySQL 5.7, ended
    assert isinstance(dialect.error(ended_claim), Conflict)


class Clock:
    """Replaces `time`: pauses take no time, and are recorded."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._now += seconds


def test_the_pauses_between_tries_grow_and_are_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred workers that lost their database at once must not come back at once."""
    seconds = 30.0

    def pauses() -> list[float]:
        clock = Clock()
        monkeypatch.setattr(retrying, "time", clock)
        patience = Patience(seconds)
        patience.has_begun = True
        tries = Tries(RetryPolicy(Scope.STATEMENT, seconds), patience)
        while tries.wait_to_retry(ConnectionLost("away")):
            pass
        assert patience.is_over
        return clock.pauses

    drawn = [pauses() for _ in range(100)]
    assert [sum(each) for each in drawn] == pytest.approx([seconds] * 100)
    assert max(map(max, drawn)) <= 5
    steps = list(zip(*(each[:5] for each in drawn), strict=True))
    assert all(sum(later) > 1.3 * sum(earlier) for earlier, later in itertools.pairwise(steps))
    assert all(max(step) > 1.2 * min(step) for step in steps)


def test_a_first_connection_waits_only_for_a_full_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "time", Clock())
    for error in (ServerFull("full"), Unavailable("away")):
        tries = Tries(RetryPolicy(Scope.STATEMENT, 30), Patience(30))
        assert tries.wait_to_retry(error) == isinstance(error, ServerFull)


def test_work_without_patience_or_repetition_is_not_retried() -> None:
    begun = Patience(30)
    begun.has_begun = True
    for patience, is_repeatable in ((None, True), (begun, False)):
        tries = Tries(RetryPolicy(Scope.STATEMENT, 0, is_repeatable), patience)
        assert not tries.wait_to_retry(ConnectionLost("away"))


@pytest.mark.parametrize(
    ("conflict_seconds", "is_repeatable", "uses_up"),
    [(MIN_CONFLICT_SECONDS, True, True), (HELD_PATIENCE_SECONDS, True, False), (MIN_CONFLICT_SECONDS, False, False)],
    ids=["waited for", "left for later", "an add"],
)
def test_conflicts_use_up_the_patience_only_of_needed_work(
    conflict_seconds: float, is_repeatable: bool, uses_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is used up, later work is tried once."""
    clock = Clock()
    monkeypatch.setattr(retrying, "time", clock)
    patience = Patience(0)
    tries = Tries(RetryPolicy(Scope.STATEMENT, conflict_seconds, is_repeatable), patience)
    while tries.wait_to_retry(Conflict("held")):
        pass
    assert sum(clock.pauses) == pytest.approx(conflict_seconds)
    assert patience.is_over == uses_up
    assert Tries(RetryPolicy(Scope.STATEMENT, 5), patience).wait_to_retry(Conflict("held")) == (not uses_up)


def test_a_thread_asks_each_host_while_another_one_moves() -> None:
    def log_in(dsn: Dsn, seconds: float) -> str:
        if dsn.host == "first" and hosts.moves == 0 and not is_inner:
            is_inner.append(True)
            assert hosts.connect(log_in, 1) == "second"  # as another thread
        if dsn.host == "first":
            raise OSError("away")
        return dsn.host

    is_inner: list[bool] = []
    each = Dsn("mysql", "db", host="first", more_hosts=(("second", 3306),)).by_host
    hosts = Hosts(each, lambda error, dsn: Unavailable(str(error)))
    assert hosts.connect(log_in, 1) == "second"
    assert hosts.moves == 1  # otherwise the other thread would connect again
