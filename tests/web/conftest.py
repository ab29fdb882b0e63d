"""Fixtures of the page's tests: the page of a queue on the database of the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import PageSite


@pytest.fixture
def site(tmp_path: Path, dsn: str) -> Iterator[PageSite]:
    found = PageSite(tmp_path, dsn)
    yield found
    found.close()
