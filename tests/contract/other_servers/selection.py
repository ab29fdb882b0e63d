"""A plugin of pytest's: of the collected tests only those that run on the server under test.

    --only-on mysql|postgresql

The others need no server or one of the other kind, or start a private MariaDB or PHP of the machine's own.
"""

from __future__ import annotations

import pytest

OWN = {"mariadb", "php"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only-on", choices=("mysql", "postgresql"), required=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kind = config.getoption("only_on")
    others = [item for item in items if not runs_on(kind, item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if runs_on(kind, item)]


def runs_on(kind: str, item: pytest.Item) -> bool:
    """By a fixture or a parameter of that name."""
    fixtures = set(getattr(item, "fixturenames", ()))
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return not OWN & fixtures and (kind in map(str, parameters) or any(kind in name for name in fixtures))
