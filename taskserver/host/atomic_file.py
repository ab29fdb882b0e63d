"""A text file that others read while it is written: they find the old text or the new one, never a part of either."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

from ..errors import HostLimit, SettingError

NO_SPACE = (ENOSPC, EDQUOT, EFBIG)


def write_atomically(path: Path, text: str, mode: int) -> None:
    """Write a file with these rights, whatever the umask is; a link in its place is replaced, not followed.

    Raises SettingError where the file cannot be there, and HostLimit where the host has no room for it; then the old
    file stays.
    """
    try:
        # A rename would put a file in the place of /dev/null, for root.
        if path.exists() and not path.is_file():
            raise SettingError(f"{path} cannot be written: it is no file")
        if not path.parent.is_dir():
            raise SettingError(f"{path} cannot be written: there is no folder {path.parent}")
        _replace(path, text, mode)
    except OSError as error:
        kind = HostLimit if error.errno in NO_SPACE else SettingError
        raise kind(f"{path} cannot be written: {error.strerror}") from None


def _replace(path: Path, text: str, mode: int) -> None:
    # In the same folder, as a rename works within one file system. No reader of `*.html` or `*.prom` takes this name.
    descriptor, temporary = tempfile.mkstemp(".tmp", ".taskserver-", path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)  # otherwise a file system may have the new name without the text after a power cut
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
