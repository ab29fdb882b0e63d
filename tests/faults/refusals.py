"""Servers that refuse for a while: they have no connection to give, or only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import psycopg
import pymysql
import pytest

from taskserver.stores.mysql.session import log_in
from taskserver.stores.postgresql.session import connect_to
from tests.faults.failing import FailingQueue, OnMySQL, OnPostgreSQL
from tests.support.processes import wait_until


class Refusal(NamedTuple):
    """A server that refuses with this word within the `with`."""

    kind: str
    """Of the server."""
    word: str
    refusing: Callable[[Any], AbstractContextManager[None]]


def with_each(*refusals: Refusal, marks: Sequence[pytest.MarkDecorator] = ()) -> pytest.MarkDecorator:
    """Parametrizes a test of `plain_queue`."""
    return pytest.mark.parametrize(
        ("failing_kind", "refusal"),
        [
            pytest.param(
                one.kind,
                one,
                id=f"{one.kind}-{one.word.strip('()')}",
                marks=[*marks, *[pytest.mark.long] * (one.kind != "mysql")],
            )
            for one in refusals
        ],
        indirect=["failing_kind"],
    )


# ---- MySQL


@contextmanager
def all_connections_taken(queue: OnMySQL) -> Iterator[None]:
    """The server has none left for ordinary accounts."""
    with queue.set_for_all("max_connections", 10), ExitStack() as held:

        def take_one() -> int:
            try:
                held.enter_context(queue.connecting_plainly())
                return 0
            except pymysql.OperationalError as error:
                return int(error.args[0])

        wait_until(lambda: take_one() == 1040)
        yield


@contextmanager
def connections_of_each_account_taken(queue: OnMySQL) -> Iterator[None]:
    """More than the server gives to any one account."""
    with queue.set_for_all("max_user_connections", 1), queue.connecting_plainly():
        yield


@contextmanager
def connections_of_this_account_taken(queue: OnMySQL) -> Iterator[None]:
    """More than this account was granted."""
    queue.database_server.execute(f"ALTER USER '{queue.database}'@'%' WITH MAX_USER_CONNECTIONS 1")
    with queue.connecting_plainly():
        yield


@contextmanager
def read_only_server(queue: OnMySQL) -> Iterator[None]:
    """As in a failover; a statement that is under way is let end first."""
    with queue.set_for_all("read_only", 1):
        yield


@contextmanager
def read_only_transactions(queue: OnMySQL) -> Iterator[None]:
    """For connections that are made from now on, so those that stand are ended."""
    with queue.set_for_all("tx_read_only", 1):
        queue.kill_connections()
        yield


# ---- PostgreSQL


@contextmanager
def all_slots_taken(queue: OnPostgreSQL) -> Iterator[None]:
    """But for those that are kept for superusers, as the tests themselves are."""
    with ExitStack() as held:

        def take_one() -> str:
            try:
                held.enter_context(queue.connecting_plainly())
                return ""
            except psycopg.OperationalError as error:
                return str(error)

        wait_until(lambda: "connection slots" in take_one())
        yield


@contextmanager
def connections_of_this_role_taken(queue: OnPostgreSQL) -> Iterator[None]:
    queue.sql(f'ALTER ROLE "{queue.database}" CONNECTION LIMIT 1')
    with queue.connecting_plainly():
        yield


@contextmanager
def connections_of_this_database_taken(queue: OnPostgreSQL) -> Iterator[None]:
    queue.sql(f'ALTER DATABASE "{queue.database}" CONNECTION LIMIT 2')
    with queue.connecting_plainly():
        yield


@contextmanager
def read_only_sessions(queue: OnPostgreSQL) -> Iterator[None]:
    """As of a stand-in: all, those that stand, too."""
    with queue.set_for_all("default_transaction_read_only", "on"):
        yield


NO_CONNECTION = Refusal("mysql", "(1040)", all_connections_taken)
NO_CONNECTION_OF_MINE = Refusal("mysql", "(1226)", connections_of_this_account_taken)
NO_SLOT = Refusal("postgresql", "connection slots", all_slots_taken)
NO_SLOT_OF_MINE = Refusal("postgresql", "for role", connections_of_this_role_taken)
NO_CONNECTIONS = [
    NO_CONNECTION,
    Refusal("mysql", "(1203)", connections_of_each_account_taken),
    NO_CONNECTION_OF_MINE,
    NO_SLOT,
    NO_SLOT_OF_MINE,
    Refusal("postgresql", "for database", connections_of_this_database_taken),
]
READ_ONLY = Refusal("mysql", "(1290)", read_only_server)
READ_ONLY_TRANSACTIONS = Refusal("mysql", "(1792)", read_only_transactions)
STAND_IN = Refusal("postgresql", "(25006)", read_only_sessions)


def made_connections(queue: FailingQueue, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each connection that this process tries to make by taskserver's own code."""
    tried: list[int] = []

    def counting(connect: Callable[..., Any]) -> Callable[..., Any]:
        def count_and_connect(*args: Any, **kwargs: Any) -> Any:
            tried.append(len(tried))
            return connect(*args, **kwargs)

        return count_and_connect

    if isinstance(queue, OnMySQL):
        monkeypatch.setattr("taskserver.stores.mysql.session.log_in", counting(log_in))
    else:
        monkeypatch.setattr("taskserver.stores.postgresql.session.connect_to", counting(connect_to))
    return tried
