"""Tests that `make test` runs on one store, as what they are about is the same code on both.

They ask for a `queue`, or for what is made of one; among the long tests they run on the other store, too.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

STORES = ("sqlite", "mysql")
ONE_STORE = pytest.mark.parametrize("dsn", ["sqlite", pytest.param("mysql", marks=pytest.mark.long)], indirect=True)
A_SERVER = pytest.mark.parametrize("dsn", ["mysql", pytest.param("sqlite", marks=pytest.mark.long)], indirect=True)
"""The other one, so that both are met as often."""


def on_stores_in_turn(name: str, values: Iterable[object]) -> pytest.MarkDecorator:
    """Like parametrize: the first value on SQLite, the next on MySQL/MariaDB, and so on.

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
