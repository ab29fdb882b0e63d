"""The network file system that a path lies on, where SQLite's locks and its shared memory do not hold.

Asked before a database file is made, and by the doctor; knows nothing of databases.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

MOUNT_TABLE = Path("/proc/self/mountinfo")

# Without 9p: some containers see their own disk by it.
NETWORK_TYPES = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "auristorfs", "coda", "moosefs", "mfs"),
        *("ceph", "ceph-fuse", "glusterfs", "lustre", "beegfs", "gpfs", "orangefs", "pvfs2", "panfs", "juicefs"),
        *("sshfs", "s3fs", "rclone", "gcsfuse", "goofys", "davfs", "davfs2", "curlftpfs"),
    )
)
_ESCAPED = re.compile(rb"\\([0-7]{3})")


def network_file_system(path: str | Path, mount_table: Path | None = None) -> str | None:
    """The type of network file system that a path lies on, such as `nfs4`; the path need not exist yet.

    None where the path lies on a disk of this host, and where nothing tells, as on systems without /proc.
    """
    kind = _file_system(os.fsencode(os.path.realpath(path)), mount_table or MOUNT_TABLE)
    return kind if kind is not None and kind.removeprefix("fuse.") in NETWORK_TYPES else None


def _file_system(path: bytes, mount_table: Path) -> str | None:
    try:
        lines = mount_table.read_bytes().splitlines()
    except OSError:
        return None
    longest, found = -1, None
    for mount_point, kind in _mounts(lines):
        # Of several mounts on one point the last one counts.
        if _holds(mount_point, path) and len(mount_point) >= longest:
            longest, found = len(mount_point), kind
    return found


def _mounts(lines: list[bytes]) -> Iterator[tuple[bytes, str]]:
    """Mount point and type of each mount; a line of another form is passed over."""
    for line in lines:
        mount, dash, source = line.partition(b" - ")
        fields, kinds = mount.split(), source.split()
        if dash and len(fields) >= 5 and kinds:
            # Spaces in a path are written as \040.
            mount_point = _ESCAPED.sub(lambda found: bytes([int(found[1], 8) & 255]), fields[4])
            yield mount_point, os.fsdecode(kinds[0])


def _holds(mount_point: bytes, path: bytes) -> bool:
    below = mount_point.rstrip(b"/") + b"/"
    return path == mount_point or path.startswith(below)
