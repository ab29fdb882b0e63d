"""A file that is written atomically: what its readers find, its rights, and what is said where it cannot be written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from taskserver.errors import HostLimit, SettingError
from taskserver.host.files import close_to_others, make_private_folder, write_atomically


def test_a_file_is_made_with_the_rights_that_are_asked_for_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        write_atomically(tmp_path / "page.html", "état\ud800", 0o644)
    finally:
        os.umask(before)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "état\\ud800"
    assert stat.S_IMODE((tmp_path / "page.html").stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none/page.html", "No such file or directory"),
        (".", "it is not a file"),
        ("/dev/null", "it is not a file"),
        ("x" * 300, ""),
    ],
)
def test_a_place_where_no_file_can_be_is_named(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(SettingError, match=f"cannot be written: {words}"):
        write_atomically(tmp_path / name, "", 0o644)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, HostLimit), (errno.EROFS, SettingError)])
def test_a_disk_that_takes_no_more_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    write_atomically(tmp_path / "page.html", "old", 0o644)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(kind, match=os.strerror(number)):
        write_atomically(tmp_path / "page.html", "new", 0o644)
    assert os.listdir(tmp_path) == ["page.html"]
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "old"


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
