"""Which file system a path lies on, read from tables of mounts as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskserver.host.files import network_file_system

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
