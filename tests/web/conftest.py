"""Fixtures of the page's tests: the page of a queue, on both stores, or on SQLite where the store does not matter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import PageSite


@pytest.fixture
def site(tmp_path: Path, sqlite_dsn: str) -> Iterator[PageSite]:
    found = PageSite(tmp_path, sqlite_dsn)
    yield found
    found.close()


@pytest.fixture
def each_site(tmp_path: Path, dsn: str) -> Iterator[PageSite]:
    found = PageSite(tmp_path, dsn)
    yield found
    found.close()
