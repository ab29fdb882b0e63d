"""The folder of a database, which several programs may come to make at once."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from taskserver.host.files import close_to_others, make_private_folder


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


def test_what_is_made_is_closed_to_others_under_every_umask(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "data" / "var"
    umask = os.umask(0)
    try:
        make_private_folder(folder)
        (tmp_path / "uploaded").mkdir()
        close_to_others(tmp_path / "uploaded")
    finally:
        os.umask(umask)
    made = (folder, folder / ".htaccess", folder.parent, folder.parent.parent, tmp_path / "uploaded" / ".htaccess")
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700, 0o644, 0o700, 0o700, 0o644]
