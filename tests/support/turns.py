"""Tests that `make test` runs on one store, as what they are about is the same code on all.

They ask for a `queue`, or for what is made of one; among the long tests they run on the other stores, too.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

STORES = ("sqlite", "mysql", "postgresql")


def _first_of(*stores: str) -> pytest.MarkDecorator:
    others = [pytest.param(store, marks=pytest.mark.long) for store in stores[1:]]
    return pytest.mark.parametrize("dsn", [stores[0], *others], indirect=True)


ONE_STORE = _first_of("sqlite", "mysql", "postgresql")
A_SERVER = _first_of("mysql", "postgresql", "sqlite")
"""Another one, so that all are met as often."""
ONE_SERVER = _first_of("mysql", "postgresql")
EACH_SERVER = pytest.mark.parametrize("dsn", ["mysql", "postgresql"], indirect=True)


def on_stores_in_turn(name: str, values: Iterable[object]) -> pytest.MarkDecorator:
    """Like parametrize: the first value on SQLite, the next on MySQL/MariaDB, then PostgreSQL, and so on.

    Of several names, between commas, each value is a sequence.
    """
    return pytest.mark.parametrize(
        ("dsn", *name.split(", ")),
        [
            pytest.param(store, *value, marks=[pytest.mark.long] * (store != STORES[number % len(STORES)]))
            for number, value in enumerate(_as_tuples(name, values))
            for store in STORES
        ],
        indirect=["dsn"],
    )


def _as_tuples(name: str, values: Iterable[object]) -> Iterable[tuple[object, ...]]:
    for value in values:
        yield tuple(value) if ", " in name and isinstance(value, (list, tuple)) else (value,)
