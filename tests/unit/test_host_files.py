"""Files that are written atomically, folders that are closed to others, and on which file system a path lies."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskserver.errors import HostLimit, SettingError
from taskserver.host import files
from taskserver.host.files import close_to_others, make_private_folder, network_file_system, write_atomically


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


TABLE = r"""
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 0:40 / /home rw,relatime shared:2 master:3 propagate_from:1 - nfs4 filer.example.org:/home rw,vers=4.2
31 30 8:1 / /home/local rw - xfs /dev/sdb rw
32 27 0:41 / /mnt/with\040a\040space rw - cifs //filer/x rw
33 27 0:42 / /mnt/back\134slash\011tab rw - fuse.sshfs you@example.org: rw
34 27 0:43 / /srv rw - nfs filer.example.org:/srv rw
35 34 8:2 / /srv rw - ext4 /dev/sdc rw
36 27 0:44 / /backup rw - fuse.ntfs /dev/sdd rw
37 27 0:45 / /later rw - ext4 /dev/sde rw
38 37 0:46 / /later rw - ceph mon.example.org:/ rw
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE.lstrip())
    return path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", None),
        ("/home/you/taskserver/var/taskserver.db", "nfs4"),
        ("/home/locals/shop.db", "nfs4"),
        ("/mnt/with a space/shop.db", "cifs"),
        ("/mnt/back\\slash\ttab/shop.db", "fuse.sshfs"),
        ("/srv/shop.db", None),
        ("/later/shop.db", "ceph"),
    ],
)
def test_the_longest_mount_point_that_holds_a_path_tells_its_file_system(
    table: Path, path: str, kind: str | None
) -> None:
    assert network_file_system(path, table) == kind
    assert network_file_system(Path(path), table) == kind


def test_a_link_is_followed_to_where_the_file_would_lie(tmp_path: Path, table: Path) -> None:
    (tmp_path / "linked").symlink_to("/home/you")
    assert network_file_system(tmp_path / "linked" / "shop.db", table) == "nfs4"


def test_without_a_table_nothing_can_be_told(tmp_path: Path) -> None:
    assert network_file_system("/shop.db", tmp_path / "not there") is None


# ---- who else may write a file


def of(uid: int, gid: int, mode: int) -> Any:
    """A path of this owner, group and rights."""
    return SimpleNamespace(stat=lambda: SimpleNamespace(st_uid=uid, st_gid=gid, st_mode=mode))


@pytest.mark.parametrize(
    ("path", "members", "who"),
    [
        (of(5, 7, 0o644), [], ""),
        (of(0, 7, 0o600), [], ""),
        (of(5, 7, 0o646), [], "any account"),
        (of(6, 7, 0o644), [], "its owner eve"),
        (of(5, 7, 0o664), [], ""),  # the private group of an account
        (of(5, 7, 0o664), ["root"], ""),
        (of(5, 7, 0o664), ["eve"], "the group you"),
        (of(5, 8, 0o664), [], "the group users"),
        (of(5, 0, 0o664), ["eve"], ""),
    ],
)
def test_root_the_owner_of_the_folder_and_their_private_groups_are_trusted(
    monkeypatch: pytest.MonkeyPatch, path: Any, members: list[str], who: str
) -> None:
    groups = {0: "root", 7: "you", 8: "users"}
    monkeypatch.setattr("grp.getgrgid", lambda gid: SimpleNamespace(gr_name=groups[gid], gr_mem=members))
    monkeypatch.setattr(files, "account_name", {0: "root", 5: "you", 6: "eve"}.get)
    assert files.who_else_may_write(path, of(5, 7, 0o755)) == who
