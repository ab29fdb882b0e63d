"""A plugin of pytest's: of the collected tests only those that run on the server under test.

The others need no server, or start a private MariaDB or PHP of the machine's own.
"""

from __future__ import annotations

import pytest

OWN = {"mariadb", "php"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    others = [item for item in items if not runs_on_the_server(item)]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if runs_on_the_server(item)]


def runs_on_the_server(item: pytest.Item) -> bool:
    return item.get_closest_marker("server") is not None and not OWN & set(getattr(item, "fixturenames", ()))
