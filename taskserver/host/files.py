"""Files and folders of a deployment: make them private, replace them atomically, check who else may write them.

Each run imports this for its slots, so rarely needed modules are imported in the functions.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import HostLimit, SettingError
from ..messages.programs import CLIENT
from ..messages.text import plain

DENY_ALL = """\
<IfModule mod_authz_core.c>
  Require all denied
</IfModule>
<IfModule !mod_authz_core.c>
  Order allow,deny
  Deny from all
</IfModule>
"""
IN_MEMORY = "/dev/shm"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ROOT = 0


# ---- making them


def make_private_folder(path: Path) -> None:
    """Make a folder for its owner only, closed to web servers; keep an existing one. Raises OSError."""
    if not path.is_dir():
        for folder in (*reversed(path.absolute().parents), path):
            folder.mkdir(mode=0o700, exist_ok=True)  # another process may make it now
        close_to_others(path)


def close_to_others(path: Path) -> None:
    """Make an existing folder private. Raises OSError."""
    path.chmod(0o700)
    if not (path / ".htaccess").exists():
        descriptor = os.open(path / ".htaccess", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(DENY_ALL)


def make_folder_in_memory(prefix: str) -> Path:
    """Make a new folder for this user only, in memory if the host allows that. Raises OSError."""
    import tempfile

    return Path(tempfile.mkdtemp(prefix=prefix, dir=IN_MEMORY if os.access(IN_MEMORY, os.W_OK) else None))


def write_atomically(path: Path, text: str, mode: int) -> None:
    """Write a file with these rights, regardless of the umask: readers see the old text or the new one.

    A link is replaced, not followed. Raises SettingError if the file cannot be written, HostLimit if the disk is full;
    then the old file stays.
    """
    try:
        # As root, a rename would replace /dev/null.
        if path.exists() and not path.is_file():
            raise SettingError(f"{path} cannot be written: it is not a file")
        _replace(path, text, mode)
    except OSError as error:
        kind = HostLimit if error.errno in NO_ROOM else SettingError
        raise kind(f"{path} cannot be written: {error.strerror}") from None


def _replace(path: Path, text: str, mode: int) -> None:
    import tempfile

    # In the same folder, as a rename needs the same file system. The name does not match `*.html` or `*.prom`.
    descriptor, temporary = tempfile.mkstemp(".tmp", ".taskserver-", path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.chmod(temporary, mode)
            os.fsync(descriptor)  # else a power cut may leave the new name without the text
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def fill_standard_descriptors() -> None:
    """Open closed descriptors from 0 to 2 on /dev/null, else the next file or connection gets what is printed."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


# ---- a file that only grows


class JsonLines:
    """A gzip file of JSON lines, open for additions.

    It begins with END, an empty gzip member, and so does each addition end. If the file does not, a crash has cut off
    an addition: it is removed, as no program could read what comes after it. Raises SettingError if the file cannot be
    written, HostLimit if the disk is full; then it has only whole additions.
    """

    END = b"\x1f\x8b\x08\0\0\0\0\0\0\xff\x03\0\0\0\0\0\0\0\0\0"

    def __init__(self, path: Path) -> None:
        """Open the file, or create it for its owner only."""
        self._path = path
        with self._named_errors():
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)
            try:
                self._lock()
                self._size = self._whole_size()
                os.ftruncate(self._file, self._size)
                if not self._size:
                    self._add(self.END)
            except BaseException:
                self.close()
                raise

    def _lock(self) -> None:
        with suppress(ImportError):  # Windows has no such lock
            import fcntl

            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SettingError(f"{self._path} is being written by another program: wait until it ends") from None

    def _whole_size(self) -> int:
        import mmap

        if not os.fstat(self._file).st_size:
            return 0
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as content:
            end = content.rfind(self.END)
        if end < 0:
            raise SettingError(f"{self._path} was not written by {CLIENT} prune: name another file, or a new one")
        return end + len(self.END)

    def add(self, records: Iterable[Any]) -> None:
        """Add a line for each record; they are on the disk when it returns."""
        import gzip
        import json

        lines = "".join(f"{json.dumps(plain(record), allow_nan=False)}\n" for record in records)
        with self._named_errors():
            self._add(gzip.compress(lines.encode("ascii")) + self.END)

    def _add(self, content: bytes) -> None:
        try:
            written = 0
            while written < len(content):  # a full disk may take a part
                written += os.write(self._file, content[written:])
            os.fsync(self._file)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(content)

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            kind = HostLimit if error.errno in NO_ROOM else SettingError
            raise kind(f"{self._path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        os.close(self._file)


# ---- who else may write them


def who_else_may_write(path: Path, folder: Path) -> str:
    """Which other accounts may write a file or folder, as text; empty: none. Raises OSError.

    Root, this account and the owner of the program's `folder` are trusted. Access control lists are ignored.
    """
    if not hasattr(os, "geteuid"):  # Windows has other rights
        return ""
    found = path.stat()
    trusted = {ROOT, os.geteuid(), folder.stat().st_uid}
    if found.st_uid not in trusted:
        return f"its owner {account_name(found.st_uid)}"
    if found.st_mode & stat.S_IWOTH:
        return "any account"
    group = _shared_group(found.st_gid, trusted) if found.st_mode & stat.S_IWGRP else ""
    return group and f"the group {group}"


def account_name(uid: int) -> str:
    """An account's name, or its number if it has none."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _shared_group(gid: int, trusted: set[int]) -> str:
    """A group's name; empty for root's, and for the private group that many hosts give each account."""
    import grp

    names = {account_name(uid) for uid in trusted}
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return "" if gid in trusted else str(gid)
    is_private = group.gr_name in names and names.issuperset(group.gr_mem)
    return "" if gid == ROOT or is_private else group.gr_name


# ---- a file for the log

OF_SYSTEM = ("/dev/", "/proc/")
"""`/dev/stderr` may be a pipe, which is open already."""
SQLITE_BEGIN = b"SQLite format 3\0"
OWN_FILE = "name a file of its own, as var/taskserver.log"


class LogFault(NamedTuple):
    """Why a file can't be the log, and what to do."""

    what: str
    fix: str


def why_no_log(path: Path, folder: Path) -> LogFault | None:
    """Why a file can't be the log, which is renamed when full and later deleted; None if it can.

    `folder` is the program's. Raises OSError.
    """
    if str(path).startswith(OF_SYSTEM):
        return None
    is_in_var = path.parent == folder / "var"
    if not path.parent.is_dir():
        fix = f"{CLIENT} init makes it" if is_in_var else f"make it, or {OWN_FILE}"
        return LogFault(f"there is no folder {path.parent}", fix)
    # Others could replace it with a link to any file of ours.
    if who := who_else_may_write(path.parent, folder):
        fix = f"rename it by FTP and run {CLIENT} init" if is_in_var else f"let nobody else write there, or {OWN_FILE}"
        return LogFault(f"{who} of this host may write {path.parent}", fix)
    # Opening a pipe would block until it has a reader.
    if path.exists() and not (path.is_file() or path.is_char_device()):
        return LogFault(f"{path} is not a file", OWN_FILE)
    return LogFault(f"{path} is a database", OWN_FILE) if _is_database(path) else None


def _is_database(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:  # it may not exist yet
        return file.read(len(SQLITE_BEGIN)) == SQLITE_BEGIN
    return False


# ---- network file systems

MOUNT_TABLE = Path("/proc/self/mountinfo")
NETWORK_TYPES = frozenset(  # without 9p, which some containers use for their own disk
    (
        *("nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "ncpfs", "afs", "auristorfs", "coda", "moosefs", "mfs"),
        *("ceph", "ceph-fuse", "glusterfs", "lustre", "beegfs", "gpfs", "orangefs", "pvfs2", "panfs", "juicefs"),
        *("sshfs", "s3fs", "rclone", "gcsfuse", "goofys", "davfs", "davfs2", "curlftpfs"),
    )
)


def network_file_system(path: str | Path, mount_table: Path | None = None) -> str | None:
    """The type of a path's network file system, such as `nfs4`: SQLite's locks do not work there.

    The path need not exist. None for a local disk, or if it is unknown, as on systems without /proc.
    """
    try:
        lines = (mount_table or MOUNT_TABLE).read_bytes().splitlines()
    except OSError:
        return None
    real = os.fsencode(os.path.realpath(path)) + b"/"
    longest, kind = b"", ""
    for line in lines:
        mount, _, source = line.partition(b" - ")
        # Spaces in a path are written as \040.
        point = mount.split()[4].decode("unicode_escape").encode("latin-1", "replace").rstrip(b"/") + b"/"
        if real.startswith(point) and len(point) >= len(longest):  # the last of several mounts on one point counts
            longest, kind = point, os.fsdecode(source.split()[0])
    return kind if kind.removeprefix("fuse.") in NETWORK_TYPES else None
