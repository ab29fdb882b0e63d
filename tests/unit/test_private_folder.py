"""The folder of a database, which several programs may come to make at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskserver.host.private_folder import make_private_folder


def test_a_folder_that_another_made_meanwhile_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not there when we looked, and is when we make it."""
    folder = tmp_path / "var"
    folder.mkdir()
    first_looks = [False]
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: first_looks.pop() if first_looks else is_dir(path))
    make_private_folder(folder)
    assert not first_looks
    assert folder.is_dir()
