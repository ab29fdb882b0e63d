"""Connections of a store, for tests that do something to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskserver.stores import Store
from taskserver.stores.dialect import Pace, Session


def new_connection(store: Store) -> Any:
    """One more connection, as the store's own are made."""
    session = store.database.dialect.new_session()
    session.connect(store.database._pace)
    return session.connection


def whenever_connected(store: Store, do: Callable[[Any], object]) -> None:
    """From now on, do something with each new connection before the store uses it."""
    dialect = store.database.dialect
    new_session = dialect.new_session

    def listen(session: Session) -> Session:
        connect = session.connect

        def connect_and_do(pace: Pace) -> None:
            connect(pace)
            do(session.connection)

        session.connect = connect_and_do  # type: ignore[method-assign]
        return session

    listen(store.database.session())
    dialect.new_session = lambda: listen(new_session())  # type: ignore[method-assign]
