"""A plugin of pytest's: of the collected tests only those that run on the server under test, which `--on` names.

The others need no server or one of the other kind, or start a private MariaDB or PHP of the machine's own.
"""

from __future__ import annotations

import pytest

OWN = {"mariadb", "odd_mariadb", "php"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kind = config.getoption("--on")
    others = [item for item in items if not runs_on(kind, item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if runs_on(kind, item)]


def runs_on(kind: str, item: pytest.Item) -> bool:
    """By a fixture or a parameter of that name, or because it runs on the database that `--on` names."""
    fixtures = set(getattr(item, "fixturenames", ()))
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    is_named = kind in map(str, parameters.values()) or any(kind in name for name in fixtures)
    return not OWN & fixtures and (is_named or ("database" in fixtures and "database" not in parameters))
